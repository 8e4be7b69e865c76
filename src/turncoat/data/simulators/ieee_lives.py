"""What happens in the simulated IEEE-CIS lives: every transaction's time, regime, amount and hidden behaviour."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncoat.arrays import Array
from turncoat.data.simulators.ieee_episodes import (
    BUST_OUT,
    CARD_TESTING,
    EPISODES,
    NONE,
    ONE_OFF,
    TAKEOVER,
    Episodes,
    episode_times,
)
from turncoat.data.simulators.ieee_people import (
    DAY,
    FIRST_DAY,
    N_DAYS,
    N_HABITS,
    NOVELTY,
    PACE,
    PRODUCT_SHARES,
    PRODUCTS,
    SPENDING,
    People,
    folded,
)

REGIMES = ("ordinary", "travel", "season", "micropayments", "fraud")
ORDINARY, TRAVEL, SEASON, MICROPAYMENTS, FRAUD = range(len(REGIMES))
N_BEHAVIOURS = (
    N_HABITS + 3
)  # the habits of the moment, then the size of the amount, of recent activity, of the time known

_REGIME_DAYS = 3.0  # a regime lasts about this long
_USUAL_PRODUCT = 0.92
_LOG_AMOUNT = np.log([72.0, 28.0, 130.0, 70.0, 45.0])  # of W, C, R, H, S
_SMALLEST, _LARGEST = 0.25, 31_937.39

# How far regimes and kinds of episode push the habits, in units of about one standard deviation between rows.
_REGIME_PUSH = np.zeros((len(REGIMES), N_HABITS), np.float32)
_REGIME_PUSH[TRAVEL, [PACE, NOVELTY, SPENDING]] = 0.2, 1.0, 0.3
_REGIME_PUSH[SEASON, [PACE, SPENDING]] = 0.5, 0.9
_REGIME_PUSH[MICROPAYMENTS, [PACE, SPENDING]] = 0.8, -0.6
_EPISODE_PUSH = np.zeros((len(EPISODES), N_HABITS), np.float32)
_EPISODE_PUSH[CARD_TESTING, [PACE, NOVELTY, SPENDING]] = 4.5, 1.5, -0.8
_EPISODE_PUSH[TAKEOVER, [PACE, NOVELTY, SPENDING]] = 1.2, 4.5, 1.0
_EPISODE_PUSH[BUST_OUT, [PACE, NOVELTY, SPENDING]] = 1.5, 0.8, 4.5
_EPISODE_PUSH[ONE_OFF, [NOVELTY, SPENDING]] = 3.0, 1.5
_LOOKS_ORDINARY = 0.18  # of fraudulent rows
_LOOKS_ODD = 0.012  # of ordinary rows


@dataclass(frozen=True, eq=False)
class Lives:
    """One entry per transaction, oldest first. Everything the columns are written from."""

    person: Array  # [N]
    seconds: Array  # [N] int64: TransactionDT
    day: Array  # [N]
    place: Array  # [N] how many transactions the person made before
    since: Array  # [N] days since the person's previous transaction; NaN at the first
    last_day: Array  # [N] the person's transactions within the day before
    last_month: Array  # [N] the same within thirty days
    known: Array  # [N] days since the card's first use: D1
    product: Array  # [N] a place in PRODUCTS
    amount: Array  # [N]
    regime: Array  # [N] a place in REGIMES
    episode: Array  # [N] a place in EPISODES
    away: Array  # [N] bool: the transaction is made from an unusual address
    new_device: Array  # [N] bool: from a device not seen with this person before
    moved: Array  # [N] bool: after the person has moved house
    replaced_device: Array  # [N] bool: after the person has replaced the device
    behaviour: Array  # [N, N_BEHAVIOURS] float32, the low-rank source of the engineered columns

    def __len__(self) -> int:
        """Number of transactions."""
        return len(self.person)


def make_lives(people: People, episodes: Episodes, rng: np.random.Generator) -> Lives:
    """Live all the lives, person by person, then put the transactions in order of time."""
    person = np.repeat(np.arange(len(people)), people.rows)
    starts = np.cumsum(people.rows) - people.rows
    place = np.arange(len(person)) - starts[person]
    in_episode = place < episodes.size[person]  # which rows those are is settled by time, below
    times = _ordinary_times(people, person, rng)
    times[in_episode] = episode_times(people, episodes, person[in_episode], place[in_episode], rng)
    seconds = np.clip(times.astype(np.int64), FIRST_DAY * DAY, (FIRST_DAY + N_DAYS) * DAY - 1)
    progress = np.where(in_episode, (place + 1) / np.maximum(episodes.size[person], 1), 0.0)

    order = np.lexsort((place, seconds, person))
    seconds, in_episode, progress = seconds[order], in_episode[order], progress[order]
    episode = np.where(in_episode, episodes.kind[person], NONE).astype(np.int8)
    since = np.diff(seconds, prepend=0) / DAY
    since[starts] = np.nan
    day = seconds // DAY
    regime = _regimes(since, day, rng)
    regime[in_episode] = FRAUD
    last_day = _recent(person, seconds, place, DAY)
    last_month = _recent(person, seconds, place, 30 * DAY)
    known = day - (day[starts] - people.tenure)[person]
    visible = _visible(episode, progress, rng)
    habits = _habits(people, person, day, regime, visible, rng)
    product = _products(people, person, episode, rng)
    amount = _amounts(people, person, product, regime, episode, progress, habits, rng)
    scale = np.stack(
        [np.log(amount) / 1.2 - 3.5, np.log(last_month), np.log1p(known) / 2 - 1], axis=1
    )

    chance_away = (
        np.array([0.01, 0.4, 0.02, 0.01, 0.0])[regime]
        + np.array([0.0, 0.1, 0.5, 0.03, 0.08])[episode]
    )
    chance_new = (
        np.array([0.01, 0.06, 0.02, 0.01, 0.0])[regime]
        + np.array([0.0, 0.45, 0.8, 0.05, 0.1])[episode]
    )
    by_time = np.lexsort((person, seconds))

    def sorted_by_time(values: Array) -> Array:
        return values[by_time]

    return Lives(
        person=sorted_by_time(person),
        seconds=sorted_by_time(seconds),
        day=sorted_by_time(day),
        place=sorted_by_time(place),
        since=sorted_by_time(since),
        last_day=sorted_by_time(last_day),
        last_month=sorted_by_time(last_month),
        known=sorted_by_time(known),
        product=sorted_by_time(product),
        amount=sorted_by_time(amount),
        regime=sorted_by_time(regime),
        episode=sorted_by_time(episode),
        away=sorted_by_time(rng.random(len(person)) < chance_away),
        new_device=sorted_by_time(rng.random(len(person)) < chance_new),
        moved=sorted_by_time(day >= people.moves[person]),
        replaced_device=sorted_by_time(day >= people.changes_device[person]),
        behaviour=sorted_by_time(np.concatenate([habits, scale.astype(np.float32)], axis=1)),
    )


def _ordinary_times(people: People, person: Array, rng: np.random.Generator) -> Array:
    """Seconds of ordinary rows: on days spread over the person's span, at usual hours, some soon after another row."""
    n = len(person)
    days = np.floor(folded(people.begin[person] + people.span[person] * rng.random(n)))
    usual = rng.normal(people.hour[person], 3.0) % 24
    hours = np.where(rng.random(n) < 0.12, rng.uniform(0.0, 24.0, n), usual)
    follows = rng.random(n) < 0.3
    follows[np.diff(person, prepend=-1) != 0] = False
    leader = np.maximum.accumulate(np.where(follows, 0, np.arange(n)))
    gaps = np.where(follows, rng.exponential(np.where(rng.random(n) < 0.5, 600.0, 20_000.0)), 0.0)
    passed = np.cumsum(gaps)
    times: Array = ((days * 24 + hours) * 3600)[leader] + passed - passed[leader]
    return DAY * folded(times / DAY)


def _regimes(since: Array, day: Array, rng: np.random.Generator) -> Array:
    """A regime goes on until it is drawn anew, the likelier the longer the pause; December is the season of gifts."""
    n = len(since)
    again = np.isnan(since) | (rng.random(n) > np.exp(-np.nan_to_num(since) / _REGIME_DAYS))
    season = np.where(day <= 26, 0.22, 0.04)
    travel = np.where((day >= 90) & (day <= 140), 0.13, 0.07)
    draw = rng.random(n)
    drawn = np.select(
        [draw < season, draw < season + travel, draw < season + travel + 0.09],
        [SEASON, TRAVEL, MICROPAYMENTS],
        default=ORDINARY,
    ).astype(np.int8)
    current: Array = drawn[np.maximum.accumulate(np.where(again, np.arange(n), 0))]
    return current


def _recent(person: Array, seconds: Array, place: Array, window: int) -> Array:
    """How many rows of the same person lie within the window that ends with each row, itself included."""
    keys = person * (1 << 25) + seconds
    rows = np.arange(len(keys))
    return rows - np.maximum(np.searchsorted(keys, keys - window, side="right"), rows - place) + 1


def _visible(episode: Array, progress: Array, rng: np.random.Generator) -> Array:
    """Push on the habits by fraud, which can look ordinary, and by ordinary rows that look odd."""
    n = len(episode)
    odd = (episode == NONE) & (rng.random(n) < _LOOKS_ODD)
    looks_like = np.where(odd, rng.integers(CARD_TESTING, len(EPISODES), n), episode)
    strength = 0.3 + rng.beta(2.0, 2.0, n)
    strength[(episode != NONE) & (rng.random(n) < _LOOKS_ORDINARY)] = 0.0
    strength[episode == BUST_OUT] *= 1.2 * np.sqrt(progress[episode == BUST_OUT])
    push: Array = _EPISODE_PUSH[looks_like] * strength[:, None].astype(np.float32)
    return push


def _habits(
    people: People, person: Array, day: Array, regime: Array, push: Array, rng: np.random.Generator
) -> Array:
    """The person's habits, as they drift, plus what the moment adds."""
    through = ((day - FIRST_DAY) / N_DAYS - 0.5).astype(np.float32)
    habits = (
        people.habits[person]
        + people.drift[person] * through[:, None]
        + _REGIME_PUSH[regime]
        + push
    )
    habits += 0.6 * rng.standard_normal(habits.shape, np.float32)
    moment: Array = habits
    return moment


def _products(people: People, person: Array, episode: Array, rng: np.random.Generator) -> Array:
    """The usual product, at times another; testers of cards like the cheap goods of C."""
    n = len(person)
    other = rng.choice(len(PRODUCTS), n, p=PRODUCT_SHARES)
    product = np.where(rng.random(n) < _USUAL_PRODUCT, people.product[person], other)
    product[(episode == CARD_TESTING) & (rng.random(n) < 0.3)] = PRODUCTS.index("C")
    return product.astype(np.int8)


def _amounts(
    people: People,
    person: Array,
    product: Array,
    regime: Array,
    episode: Array,
    progress: Array,
    habits: Array,
    rng: np.random.Generator,
) -> Array:
    """Amounts in dollars and cents: tiny while a card is tested, growing in a bust-out, round for some products."""
    n = len(person)
    noise = rng.standard_normal(n)
    logs = (
        _LOG_AMOUNT[product] + people.spending[person] + 0.35 * habits[:, SPENDING] + 0.55 * noise
    )
    logs += np.array([0.0, 0.3, 0.4, 0.0, 0.0])[regime]
    logs = np.where(
        regime == MICROPAYMENTS, np.log(4.0) + 0.3 * people.spending[person] + 0.7 * noise, logs
    )
    testing = episode == CARD_TESTING
    logs = np.where(testing & (progress < 1), np.log(2.2) + 0.7 * noise, logs)
    logs = np.where(testing & (progress >= 1), np.log(260.0) + 0.8 * noise, logs)
    logs += np.where(episode == TAKEOVER, rng.normal(0.5, 0.6, n), 0.0)
    logs += np.where(episode == BUST_OUT, 2.2 * progress**3 - 0.3, 0.0)
    amounts = np.clip(np.exp(logs), _SMALLEST, _LARGEST)

    style = rng.random(n)
    priced = (product == PRODUCTS.index("W")) & (amounts > 8)
    cheap_goods = product == PRODUCTS.index("C")
    rounded = ~priced & ~cheap_goods & (amounts > 20) & (style < 0.7)
    amounts = np.where(priced & (style < 0.4), np.floor(amounts) + 0.95, amounts)
    amounts = np.where(priced & (style >= 0.4) & (style < 0.75), np.round(amounts), amounts)
    amounts = np.where(rounded, np.maximum(np.round(amounts / 25), 1) * 25, amounts)
    return np.minimum(np.round(amounts, 2), _LARGEST)
