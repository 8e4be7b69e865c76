"""Customers of the simulated IEEE-CIS data, fraud episodes, and all their transactions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import ndtri

from turncoat.arrays import Array

FULL_ROWS = 590_540
FULL_CARDS = 13_553
FIRST_DAY, N_DAYS = 1, 182  # the first second of the genuine file is that of day one
DAY = 86_400
PRODUCTS = ("W", "C", "R", "H", "S")
PRODUCT_SHARES = (0.745, 0.115, 0.064, 0.056, 0.020)
N_HABITS = 7  # dimensions of a customer's behaviour; the first three have names
HABITS = ("pace", "novelty", "spending")
PACE, NOVELTY, SPENDING = range(3)
N_BEHAVIOURS = N_HABITS + 3  # habits, then log amount, log recent activity, log card age

FRAUD_RATE = 0.035
EPISODES = ("none", "card-testing", "takeover", "bust-out", "one-off")
NONE, CARD_TESTING, TAKEOVER, BUST_OUT, ONE_OFF = range(len(EPISODES))
REGIMES = ("ordinary", "travel", "season", "micropayments", "fraud")
ORDINARY, TRAVEL, SEASON, MICROPAYMENTS, FRAUD = range(len(REGIMES))

_CARD_SPREAD = 2.05  # log-normal: a median of a few rows, about 13,000 on the largest card
_MAX_CARD_AGE_DAYS = 640
_CUSTOMER_MEDIAN, _CUSTOMER_SPREAD = 2.2, 1.45  # rows per customer, log-normal
_PRODUCT_RISK = np.array([1.0, 6.0, 1.9, 2.4, 3.0])  # relative fraud risk of W, C, R, H, S
_REGIME_DAYS = 3.0  # typical duration
_USUAL_PRODUCT = 0.92
_LOG_AMOUNT = np.log([72.0, 28.0, 130.0, 70.0, 45.0])  # of W, C, R, H, S
_MIN_AMOUNT, _MAX_AMOUNT = 0.25, 31_937.39
_LOOKS_ORDINARY = 0.18  # share of fraudulent rows
_LOOKS_ODD = 0.012  # share of genuine rows

# Share of all fraudulent rows, fewest and most rows of an episode; then minutes between its rows.
_PATTERNS = {CARD_TESTING: (0.26, 4, 10), TAKEOVER: (0.34, 2, 6), BUST_OUT: (0.20, 5, 16)}
_MINUTES_BETWEEN = np.array([0.0, 5.0, 180.0, 2 * 1440.0, 0.0])
# Shifts of pace, novelty and spending by regime and by episode, in the order of their names; one
# is about one standard deviation between rows.
_REGIME_SHIFT = np.zeros((len(REGIMES), N_HABITS), np.float32)
_REGIME_SHIFT[TRAVEL:FRAUD, :3] = (0.2, 1.0, 0.3), (0.5, 0.0, 0.9), (0.8, 0.0, -0.6)
_EPISODE_SHIFT = np.zeros((len(EPISODES), N_HABITS), np.float32)
_EPISODE_SHIFT[CARD_TESTING:, :3] = (4.5, 1.5, -0.8), (1.2, 4.5, 1), (1.5, 0.8, 4.5), (0, 3, 1.5)


@dataclass(frozen=True, eq=False)
class Customers:
    """One entry per customer. Several customers may share a card number."""

    n_rows: Array  # [P] transactions in total
    card: Array  # [P] index into `card_numbers`
    card_numbers: Array  # [cards] values of card1
    product: Array  # [P] usual product, an index into PRODUCTS
    habits: Array  # [P, N_HABITS]
    drift: Array  # [P, N_HABITS] change of the habits over the whole window
    spending: Array  # [P] log of the usual amount relative to the product's
    hour: Array  # [P] usual hour of the day
    begin: Array  # [P] first day of activity, before it is reflected into the window
    span: Array  # [P] days of activity
    tenure: Array  # [P] days the card was in use before its first transaction here
    device_day: Array  # [P] day a new device replaces the old; mostly beyond the window
    move_day: Array  # [P] day they move house; nearly always beyond the window
    omission: Array  # [P, 2] tendency to leave form fields, and device fields, empty

    def __len__(self) -> int:
        """Number of customers."""
        return len(self.n_rows)


class Episodes(NamedTuple):
    """At most one fraud episode per customer."""

    kind: Array  # [P] index into EPISODES
    size: Array  # [P] fraudulent rows


@dataclass(frozen=True, eq=False)
class Activity:
    """One entry per transaction, oldest first: everything the columns are derived from."""

    customer: Array  # [N]
    seconds: Array  # [N] int64: TransactionDT
    day: Array  # [N]
    n_before: Array  # [N] earlier transactions of the customer
    days_since: Array  # [N] days since the customer's previous transaction; NaN at the first
    last_day: Array  # [N] transactions of the customer within the past day, this one included
    last_month: Array  # [N] the same within thirty days
    card_age: Array  # [N] days since the card's first use: D1
    product: Array  # [N] index into PRODUCTS
    amount: Array  # [N]
    regime: Array  # [N] index into REGIMES
    episode: Array  # [N] index into EPISODES
    away: Array  # [N] bool: unusual address
    new_device: Array  # [N] bool: device not seen with this customer before
    moved: Array  # [N] bool: after the customer moved house
    replaced_device: Array  # [N] bool: after the customer replaced the device
    behaviour: Array  # [N, N_BEHAVIOURS] float32, low-rank source of the engineered columns

    def __len__(self) -> int:
        """Number of transactions."""
        return len(self.customer)

    def take(self, rows: Array) -> Activity:
        """Some of the transactions."""
        return Activity(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


def draw_customers(n_rows: int, rng: Generator) -> Customers:
    """Customers whose transactions add up to exactly `n_rows`."""
    card_ends = np.cumsum(_draw_card_sizes(n_rows, rng))
    sizes = _CUSTOMER_MEDIAN * np.exp(_CUSTOMER_SPREAD * rng.standard_normal(n_rows))
    customer_ends = np.cumsum(np.ceil(sizes).astype(np.int64))
    ends = np.union1d(customer_ends[customer_ends < n_rows], card_ends)
    rows = np.diff(ends, prepend=0)
    n = len(rows)
    days_between = np.exp(np.log(6.0) + 0.9 * rng.standard_normal(n))
    span = np.minimum(rows * days_between, N_DAYS)
    tenure = np.minimum(np.ceil(rng.exponential(150.0, n)), _MAX_CARD_AGE_DAYS - N_DAYS)
    return Customers(
        n_rows=rows,
        card=np.searchsorted(card_ends, ends),
        card_numbers=1000 + rng.permutation(17_397)[: len(card_ends)],
        product=rng.choice(len(PRODUCTS), n, p=PRODUCT_SHARES).astype(np.int8),
        habits=0.8 * rng.standard_normal((n, N_HABITS), np.float32),
        drift=rng.standard_normal((n, N_HABITS), np.float32),
        spending=0.5 * rng.standard_normal(n),
        hour=rng.normal(17.0, 3.5, n) % 24,
        begin=FIRST_DAY + N_DAYS * rng.random(n) - span / 2,
        span=span,
        tenure=np.where(rng.random(n) < 0.55, 0, tenure).astype(np.int64),
        device_day=rng.uniform(0, 5 * N_DAYS, n),
        move_day=rng.uniform(0, 20 * N_DAYS, n),
        omission=rng.standard_normal((n, 2)),
    )


def _draw_card_sizes(n_rows: int, rng: Generator) -> Array:
    """Rows of each card: log-normal quantiles instead of draws, so every seed has the same tail."""
    n_cards = min(max(round(FULL_CARDS * n_rows / FULL_ROWS), 1), FULL_CARDS)
    weights = np.exp(_CARD_SPREAD * ndtri(np.arange(1, n_cards + 1) / (n_cards + 1)))
    sizes = 1 + np.floor(weights / weights.sum() * (n_rows - n_cards)).astype(np.int64)
    sizes = rng.permutation(sizes)
    sizes[: n_rows - sizes.sum()] += 1
    return sizes


def draw_episodes(customers: Customers, rng: Generator) -> Episodes:
    """Choose victims so that the number of fraudulent rows is a binomial draw at FRAUD_RATE."""
    n_frauds = int(rng.binomial(int(customers.n_rows.sum()), FRAUD_RATE))
    n = len(customers)
    kind, size = np.full(n, NONE, np.int8), np.zeros(n, np.int64)
    for code, (share, min_rows, max_rows) in _PATTERNS.items():
        proposed = rng.integers(min_rows, max_rows + 1, n)
        proposed = np.minimum(proposed, customers.n_rows - 1)  # keep one row for the victim
        able = np.flatnonzero((proposed >= min_rows) & (kind == NONE))
        order = _order_by_risk(customers, able, code, rng)
        victims = order[np.cumsum(proposed[order]) <= round(share * n_frauds)]
        kind[victims], size[victims] = code, proposed[victims]
    order = _order_by_risk(customers, np.flatnonzero(kind == NONE), ONE_OFF, rng)
    victims = order[: n_frauds - int(size.sum())]
    kind[victims], size[victims] = ONE_OFF, 1
    return Episodes(kind, size)


def _order_by_risk(customers: Customers, able: Array, code: int, rng: Generator) -> Array:
    """Customers that can be hit, in random order with likelier victims first."""
    habits = customers.habits[able]
    risk = _PRODUCT_RISK[customers.product[able]]
    risk = risk * np.exp(0.5 * habits[:, PACE] + 0.4 * habits[:, SPENDING])
    if code == ONE_OFF:
        risk = risk * customers.n_rows[able]  # every transaction is equally likely
    if code == BUST_OUT:
        risk = risk * np.where(customers.tenure[able] == 0, 3.0, 1.0)
    return able[np.argsort(rng.exponential(size=len(able)) / risk, kind="stable")]


def simulate_activity(customers: Customers, episodes: Episodes, rng: Generator) -> Activity:
    """Simulate all transactions customer by customer, then sort them by time."""
    customer = np.repeat(np.arange(len(customers)), customers.n_rows)
    starts = np.cumsum(customers.n_rows) - customers.n_rows
    n_before = np.arange(len(customer)) - starts[customer]
    is_fraud = n_before < episodes.size[customer]  # re-sorted by time below
    times = _draw_genuine_times(customers, customer, rng)
    fraud_rows = customer[is_fraud], n_before[is_fraud]
    times[is_fraud] = _draw_episode_times(customers, episodes, *fraud_rows, rng)
    seconds = np.clip(times.astype(np.int64), FIRST_DAY * DAY, (FIRST_DAY + N_DAYS) * DAY - 1)
    progress = np.where(is_fraud, (n_before + 1) / np.maximum(episodes.size[customer], 1), 0.0)

    order = np.lexsort((n_before, seconds, customer))
    seconds, is_fraud, progress = seconds[order], is_fraud[order], progress[order]
    episode = np.where(is_fraud, episodes.kind[customer], NONE).astype(np.int8)
    days_since = np.diff(seconds, prepend=0) / DAY
    days_since[starts] = np.nan
    day = seconds // DAY
    regime = _draw_regimes(days_since, day, rng)
    regime[is_fraud] = FRAUD
    last_month = _count_recent(customer, seconds, n_before, 30 * DAY)
    card_age = day - (day[starts] - customers.tenure)[customer]

    shift = _draw_fraud_shift(episode, progress, rng)
    through = ((day - FIRST_DAY) / N_DAYS - 0.5).astype(np.float32)
    drift = customers.drift[customer] * through[:, None]
    habits = customers.habits[customer] + drift + _REGIME_SHIFT[regime] + shift
    habits += 0.6 * rng.standard_normal(habits.shape, np.float32)
    product = _draw_products(customers.product[customer], episode, rng)
    spending = customers.spending[customer], habits[:, SPENDING]
    amount = _draw_amounts(*spending, product, regime, episode, progress, rng)
    levels = np.log(amount) / 1.2 - 3.5, np.log(last_month), np.log1p(card_age) / 2 - 1
    behaviour = np.concatenate([habits, np.stack(levels, axis=1).astype(np.float32)], axis=1)

    away_chance = np.array([0.01, 0.4, 0.02, 0.01, 0.0])[regime]
    away_chance = away_chance + np.array([0.0, 0.1, 0.5, 0.03, 0.08])[episode]
    away = rng.random(len(customer)) < away_chance
    new_chance = np.array([0.01, 0.06, 0.02, 0.01, 0.0])[regime]
    new_chance = new_chance + np.array([0.0, 0.45, 0.8, 0.05, 0.1])[episode]
    new_device = rng.random(len(customer)) < new_chance
    moved = day >= customers.move_day[customer]
    replaced_device = day >= customers.device_day[customer]
    last_day = _count_recent(customer, seconds, n_before, DAY)
    counts = n_before, days_since, last_day, last_month, card_age
    kinds = product, amount, regime, episode, away, new_device, moved, replaced_device
    activity = Activity(customer, seconds, day, *counts, *kinds, behaviour)
    return activity.take(np.lexsort((customer, seconds)))


def _reflect_into_window(days: Array) -> Array:
    """Mirror days beyond the window at its ends, so that the ends are as busy as the middle."""
    end = FIRST_DAY + N_DAYS
    late: Array = np.where(days >= end, 2 * end - days, days)
    return np.where(days < FIRST_DAY, 2 * FIRST_DAY - days, late)


def _draw_genuine_times(customers: Customers, customer: Array, rng: Generator) -> Array:
    """Seconds: days spread over the customer's span, at usual hours, some in quick succession."""
    n = len(customer)
    days = customers.begin[customer] + customers.span[customer] * rng.random(n)
    days = np.floor(_reflect_into_window(days))
    usual = rng.normal(customers.hour[customer], 3.0) % 24
    hours = np.where(rng.random(n) < 0.12, rng.uniform(0.0, 24.0, n), usual)
    follows = rng.random(n) < 0.3
    follows[np.diff(customer, prepend=-1) != 0] = False
    leader = np.maximum.accumulate(np.where(follows, 0, np.arange(n)))
    gaps = np.where(follows, rng.exponential(np.where(rng.random(n) < 0.5, 600.0, 20_000.0)), 0.0)
    passed = np.cumsum(gaps)
    times: Array = ((days * 24 + hours) * 3600)[leader] + passed - passed[leader]
    return DAY * _reflect_into_window(times / DAY)


def _draw_episode_times(
    customers: Customers, episodes: Episodes, customer: Array, index: Array, rng: Generator
) -> Array:
    """Seconds of fraudulent rows, given customer by customer with their index in the episode."""
    kind, last = episodes.kind[customer], episodes.size[customer] - 1
    gaps = rng.exponential(_MINUTES_BETWEEN[kind] * 60)
    waits = (kind == CARD_TESTING) & (index == last)  # a tested card is used after a while
    gaps = np.where(waits, 12 * gaps, gaps)
    gaps[index == 0] = 0.0
    first = np.flatnonzero(index == 0)
    passed = np.cumsum(gaps)
    passed -= np.repeat(passed[first], np.diff(np.append(first, len(index))))

    # Bust-outs come late in a customer's activity; takeovers often happen at night.
    kind, victim = kind[first], customer[first]
    share = rng.uniform(np.where(kind == BUST_OUT, 0.5, 0.1), 1.0)
    days = customers.begin[victim] + customers.span[victim] * share
    days = np.floor(_reflect_into_window(days))
    usual = rng.normal(customers.hour[victim], 3.0) % 24
    at_night = (kind == TAKEOVER) & (rng.random(len(kind)) < 0.6)
    hours = np.where(at_night, rng.uniform(0.0, 6.0, len(kind)), usual)
    starts = (days * 24 + hours) * 3600
    latest = (FIRST_DAY + N_DAYS) * DAY - 1 - passed[index == last]
    starts = np.maximum(np.minimum(starts, latest), FIRST_DAY * DAY)
    times: Array = np.repeat(starts, last[first] + 1) + passed
    return times


def _draw_regimes(days_since: Array, day: Array, rng: Generator) -> Array:
    """Regimes [N], likelier to be redrawn after longer pauses; December is gift season."""
    n = len(days_since)
    kept = np.exp(-np.nan_to_num(days_since) / _REGIME_DAYS)
    redrawn = np.isnan(days_since) | (rng.random(n) > kept)
    season = np.where(day <= 26, 0.22, 0.04)
    travel = season + np.where((day >= 90) & (day <= 140), 0.13, 0.07)
    draw = rng.random(n)
    chances = [draw < season, draw < travel, draw < travel + 0.09]
    drawn = np.select(chances, [SEASON, TRAVEL, MICROPAYMENTS], default=ORDINARY).astype(np.int8)
    current: Array = drawn[np.maximum.accumulate(np.where(redrawn, np.arange(n), 0))]
    return current


def _count_recent(customer: Array, seconds: Array, n_before: Array, window: int) -> Array:
    """Rows of the same customer in the window that ends with each row, that row included."""
    keys = customer * (1 << 25) + seconds
    rows = np.arange(len(keys))
    first = np.searchsorted(keys, keys - window, side="right")
    return rows - np.maximum(first, rows - n_before) + 1


def _draw_fraud_shift(episode: Array, progress: Array, rng: Generator) -> Array:
    """Shift of the habits [N, N_HABITS]: some fraud looks ordinary, some genuine rows look odd."""
    n = len(episode)
    odd = (episode == NONE) & (rng.random(n) < _LOOKS_ODD)
    looks_like = np.where(odd, rng.integers(CARD_TESTING, len(EPISODES), n), episode)
    strength = 0.3 + rng.beta(2.0, 2.0, n)
    strength[(episode != NONE) & (rng.random(n) < _LOOKS_ORDINARY)] = 0.0
    strength[episode == BUST_OUT] *= 1.2 * np.sqrt(progress[episode == BUST_OUT])
    shift: Array = _EPISODE_SHIFT[looks_like] * strength[:, None].astype(np.float32)
    return shift


def _draw_products(usual: Array, episode: Array, rng: Generator) -> Array:
    """Mostly the usual product; card testers prefer the cheap goods of C."""
    n = len(usual)
    other = rng.choice(len(PRODUCTS), n, p=PRODUCT_SHARES)
    product = np.where(rng.random(n) < _USUAL_PRODUCT, usual, other)
    product[(episode == CARD_TESTING) & (rng.random(n) < 0.3)] = PRODUCTS.index("C")
    return product.astype(np.int8)


def _draw_amounts(
    spending: Array,
    habit: Array,
    product: Array,
    regime: Array,
    episode: Array,
    progress: Array,
    rng: Generator,
) -> Array:
    """Amounts: tiny while a card is tested, growing in a bust-out, round for some products."""
    n = len(spending)
    noise = rng.standard_normal(n)
    logs = _LOG_AMOUNT[product] + spending + 0.35 * habit + 0.55 * noise
    logs += np.array([0.0, 0.3, 0.4, 0.0, 0.0])[regime]
    logs = np.where(regime == MICROPAYMENTS, np.log(4.0) + 0.3 * spending + 0.7 * noise, logs)
    testing = episode == CARD_TESTING
    logs = np.where(testing & (progress < 1), np.log(2.2) + 0.7 * noise, logs)
    logs = np.where(testing & (progress >= 1), np.log(260.0) + 0.8 * noise, logs)
    logs += np.where(episode == TAKEOVER, rng.normal(0.5, 0.6, n), 0.0)
    logs += np.where(episode == BUST_OUT, 2.2 * progress**3 - 0.3, 0.0)
    amounts = np.clip(np.exp(logs), _MIN_AMOUNT, _MAX_AMOUNT)

    style = rng.random(n)
    priced = (product == PRODUCTS.index("W")) & (amounts > 8)
    cheap = product == PRODUCTS.index("C")
    rounded = ~priced & ~cheap & (amounts > 20) & (style < 0.7)
    amounts = np.where(priced & (style < 0.4), np.floor(amounts) + 0.95, amounts)
    amounts = np.where(priced & (style >= 0.4) & (style < 0.75), np.round(amounts), amounts)
    amounts = np.where(rounded, np.maximum(np.round(amounts / 25), 1) * 25, amounts)
    return np.minimum(np.round(amounts, 2), _MAX_AMOUNT)
