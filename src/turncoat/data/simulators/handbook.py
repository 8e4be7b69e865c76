"""Simulated card payments with three kinds of fraud, as in the Fraud Detection Handbook.

Each customer lives on a map and pays at the terminals near home, with their own rate and amount.
Fraud has three scenarios: (1) every amount above 220; (2) every payment at a terminal compromised
for 28 days; (3) a third of the payments of a customer compromised for 14 days, with five times the
amount. A later scenario overwrites an earlier one. `FraudProcess` changes these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl
from numpy.random import Generator
from scipy.spatial import cKDTree
from scipy.special import ndtri

from turncoat.arrays import Array
from turncoat.errors import ConfigError, check_count

START = np.datetime64("2018-04-01", "ms")
DAY_SECONDS = 86_400

PUBLISHED_ROWS, PUBLISHED_DAYS = 1_754_155, 183
PUBLISHED_CUSTOMERS, PUBLISHED_TERMINALS = 5_000, 10_000

MAP_SIDE = 100.0
REACH = 5.0
MIN_MEAN_AMOUNT, MAX_MEAN_AMOUNT = 5.0, 100.0
MAX_PAYMENTS_PER_DAY = 4.0
TIME_OF_DAY = NormalDist(DAY_SECONDS / 2, 20_000)  # seconds; kept from 1 to the end of the day
EARLIEST, LATEST = TIME_OF_DAY.cdf(1), TIME_OF_DAY.cdf(DAY_SECONDS)

PUBLISHED_CUSTOMER_FRAUD_SHARE = 1 / 3

WindowDistribution = Literal["fixed", "exponential"]


def _check_number(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not holds(float(value)):
        raise ConfigError(f"{name} is {value!r}; it must be {rule}")


@dataclass(frozen=True, kw_only=True)
class FraudProcess:
    """The numbers behind the three fraud scenarios. The defaults are the published process.

    A hazard is the share of all terminals or customers that is compromised per day, 0 to turn the
    scenario off. The draw includes those already compromised: their windows overlap.

    A window begins at the start of a day and lasts whole days: always `..._window_days` if the
    distribution is "fixed", and that many on average if it is "exponential" (the exponential
    distribution in whole days, also called geometric).

    Each payment in a terminal's window is fraud with probability `terminal_fraud_share`. Of the
    payments in the windows of all customers compromised on the same day, `customer_fraud_share` are
    the thief's. The published process rounds that number down; any share but the published one
    rounds it up or down at random, so that the share holds on average. The thief's amounts are
    multiplied by `amount_factor`, once per window.
    """

    large_amount: float = 220.0  # larger amounts are fraud; inf turns scenario 1 off
    terminal_hazard_per_day: float = 2 / PUBLISHED_TERMINALS
    terminal_window_days: float = 28
    terminal_fraud_share: float = 1.0
    customer_hazard_per_day: float = 3 / PUBLISHED_CUSTOMERS
    customer_window_days: float = 14
    customer_fraud_share: float = PUBLISHED_CUSTOMER_FRAUD_SHARE
    amount_factor: float = 5.0
    window_distribution: WindowDistribution = "fixed"

    def __post_init__(self) -> None:
        """Raise ConfigError for the first setting that breaks its rule."""
        choices = get_args(WindowDistribution)
        if self.window_distribution not in choices:
            rule = f"it must be one of {', '.join(choices)}"
            raise ConfigError(f"window_distribution is {self.window_distribution!r}; {rule}")
        rule = "a number above 0, or inf to turn scenario 1 off"
        _check_number("large_amount", self.large_amount, rule, lambda value: value > 0)
        rule = "a finite number above 0"
        _check_number("amount_factor", self.amount_factor, rule, lambda value: 0 < value < math.inf)
        for owner in ("terminal", "customer"):
            self._check_scenario(owner)

    def _check_scenario(self, owner: str) -> None:
        hazard, share, days = (
            f"{owner}_{name}" for name in ("hazard_per_day", "fraud_share", "window_days")
        )
        rule = "a number from 0 (no fraud) to 1"
        _check_number(hazard, getattr(self, hazard), rule, lambda value: 0 <= value <= 1)
        rule = f"a number above 0 and at most 1. Set {hazard} to 0 to turn this fraud off"
        _check_number(share, getattr(self, share), rule, lambda value: 0 < value <= 1)
        if self.window_distribution == "fixed":
            rule = "a whole number of at least 1, or window_distribution must be 'exponential'"
            _check_number(days, getattr(self, days), rule, lambda v: v >= 1 and v.is_integer())
        else:
            rule = "a finite number of at least 1"
            _check_number(days, getattr(self, days), rule, lambda value: 1 <= value < math.inf)


PUBLISHED_PROCESS = FraudProcess()


class HandbookSize(NamedTuple):
    """Numbers of customers, terminals and days to simulate."""

    n_customers: int = PUBLISHED_CUSTOMERS
    n_terminals: int = PUBLISHED_TERMINALS
    n_days: int = PUBLISHED_DAYS


def simulate_handbook(
    n_rows: int,
    seed: int,
    *,
    n_days: int = PUBLISHED_DAYS,
    n_customers: int | None = None,
    n_terminals: int | None = None,
    process: FraudProcess = PUBLISHED_PROCESS,
) -> dict[str, pl.DataFrame]:
    """Simulate exactly `n_rows` payments; returns the tables `transactions` and `truth`.

    The defaults keep the published payments per customer and day, and two terminals per customer.
    The map grows with the customers, so that each has equally many terminals nearby. A customer
    without a terminal in reach pays at the nearest one. Customers' rates only decide how the
    payments are shared out: at the published size this is the published process, conditional on its
    number of rows. `process` changes the fraud. Equal seeds and sizes have the same payments before
    fraud under any process.

    `transactions` has the published columns except the scenario, oldest first. `truth` has the
    scenario (0 is genuine) and the first and last day of the compromise of the row's terminal and
    customer, null where there is none. Overlapping windows are one compromise, and windows end with
    the simulated days.
    """
    check_count("n_rows", n_rows, 1)
    check_count("n_days", n_days, 1)
    if n_customers is None:
        per_day = n_rows / n_days * PUBLISHED_CUSTOMERS
        n_customers = max(1, round(per_day * PUBLISHED_DAYS / PUBLISHED_ROWS))
    if n_terminals is None:
        n_terminals = max(1, round(n_customers * PUBLISHED_TERMINALS / PUBLISHED_CUSTOMERS))
    return _simulate(HandbookSize(n_customers, n_terminals, n_days), n_rows, seed, process)


def simulate_published_process(
    seed: int, size: HandbookSize | None = None, process: FraudProcess = PUBLISHED_PROCESS
) -> dict[str, pl.DataFrame]:
    """Simulate the published process with a random number of rows, by default at full size.

    `process` changes the fraud alone. The tables are those of `simulate_handbook`.
    """
    return _simulate(size or HandbookSize(), None, seed, process)


def _simulate(
    size: HandbookSize, n_rows: int | None, seed: int, process: FraudProcess
) -> dict[str, pl.DataFrame]:
    check_count("seed", seed, 0)
    for name, value in size._asdict().items():
        check_count(name, value, 1)
    rng, n_days = np.random.default_rng(seed), size.n_days
    rates = rng.uniform(0, MAX_PAYMENTS_PER_DAY, size.n_customers)
    if n_rows is None:
        payments = rng.poisson(rates * n_days * (LATEST - EARLIEST))
    else:
        payments = rng.multinomial(n_rows, rates / rates.sum())
    customer = np.repeat(np.arange(size.n_customers), payments)
    days = rng.integers(n_days, size=customer.size)
    seconds = days * DAY_SECONDS + _draw_times_of_day(rng, customer.size)
    order = np.argsort(seconds, kind="stable")
    seconds, customer = seconds[order], customer[order]
    day = seconds // DAY_SECONDS
    terminal = _draw_terminals(rng, size, customer)
    amount = _draw_amounts(rng, size, customer)

    scenario = np.where(amount > process.large_amount, 1, 0).astype(np.int8)
    # Own streams for draws that the published process lacks: its own draws stay the same.
    window_rng, share_rng = rng.spawn(2)
    drawn = _draw_compromised(rng, size.n_terminals, n_days, process.terminal_hazard_per_day)
    mean_days, distribution = process.terminal_window_days, process.window_distribution
    lengths = _draw_lengths(window_rng, drawn, mean_days, distribution, n_days)
    terminal_windows = _mark_windows(drawn, lengths, size.n_terminals, n_days)
    exposed = np.flatnonzero(terminal_windows[terminal, day])
    scenario[exposed[share_rng.random(exposed.size) < process.terminal_fraud_share]] = 2
    drawn = _draw_compromised(rng, size.n_customers, n_days, process.customer_hazard_per_day)
    lengths = _draw_lengths(window_rng, drawn, process.customer_window_days, distribution, n_days)
    customer_windows = _mark_windows(drawn, lengths, size.n_customers, n_days)
    for exposed in _iterate_exposed_rows(drawn, lengths, customer, day, n_days):
        rows = _draw_stolen_rows(rng, share_rng, exposed, process.customer_fraud_share)
        amount[rows] *= process.amount_factor
        scenario[rows] = 3

    ids = pl.Series("TRANSACTION_ID", np.arange(customer.size))
    transactions = pl.DataFrame(
        {
            "TRANSACTION_ID": ids,
            "TX_DATETIME": START + (seconds * 1000).astype("timedelta64[ms]"),
            "CUSTOMER_ID": customer,
            "TERMINAL_ID": terminal,
            "TX_AMOUNT": np.round(amount, 2),
            "TX_TIME_SECONDS": seconds,
            "TX_TIME_DAYS": day,
            "TX_FRAUD": (scenario > 0).astype(np.int8),
        }
    )
    truth = pl.DataFrame(
        [
            ids,
            pl.Series("TX_FRAUD_SCENARIO", scenario),
            *_list_episodes("TERMINAL", terminal_windows, terminal, day),
            *_list_episodes("CUSTOMER", customer_windows, customer, day),
        ]
    )
    return {"transactions": transactions, "truth": truth}


def _draw_times_of_day(rng: Generator, n: int) -> Array:
    """Seconds of the day [n], normal around noon and truncated to the day."""
    draws: Array = TIME_OF_DAY.mean + TIME_OF_DAY.stdev * ndtri(rng.uniform(EARLIEST, LATEST, n))
    return np.clip(draws.astype(np.int64), 1, DAY_SECONDS - 1)  # quantiles may round over the ends


def _draw_terminals(rng: Generator, size: HandbookSize, customer: Array) -> Array:
    """A terminal for each payment, uniform among those within reach of the customer's home."""
    side = MAP_SIDE * np.sqrt(size.n_customers / PUBLISHED_CUSTOMERS)
    homes = rng.uniform(0, side, (size.n_customers, 2))
    tree = cKDTree(rng.uniform(0, side, (size.n_terminals, 2)))
    near = tree.query_ball_point(homes, REACH, return_sorted=True)
    for lonely in np.flatnonzero([not found for found in near]):
        near[lonely] = [tree.query(homes[lonely])[1]]
    n_near = np.array([len(found) for found in near])
    firsts = np.cumsum(n_near) - n_near
    picks = rng.integers(n_near[customer])
    chosen: Array = np.concatenate(list(near)).astype(np.int64)[firsts[customer] + picks]
    return chosen


def _draw_amounts(rng: Generator, size: HandbookSize, customer: Array) -> Array:
    """Amounts in cents, normal around the customer's mean; negative ones are redrawn uniformly."""
    means = rng.uniform(MIN_MEAN_AMOUNT, MAX_MEAN_AMOUNT, size.n_customers)[customer]
    amounts = rng.normal(means, means / 2)
    negative = amounts < 0
    amounts[negative] = rng.uniform(0, 2 * means[negative])
    return np.round(amounts, 2)


def _draw_compromised(rng: Generator, n: int, n_days: int, share: float) -> list[Array]:
    """Those of n compromised on each day but the last, when the published process draws none."""
    # A random phase keeps the expected number per day at any size, and whole numbers exact.
    counts = np.diff(np.floor(rng.uniform() + n * share * np.arange(n_days))).astype(int)
    return [rng.choice(n, count, replace=False) for count in counts]


def _draw_lengths(
    rng: Generator,
    drawn: list[Array],
    mean_days: float,
    distribution: WindowDistribution,
    n_days: int,
) -> list[Array]:
    """Length in days of the window of each terminal or customer drawn, at most `n_days`."""
    if distribution == "fixed":
        return [np.full(ids.size, int(min(mean_days, n_days))) for ids in drawn]
    return [np.minimum(rng.geometric(1 / mean_days, ids.size), n_days) for ids in drawn]


def _mark_windows(drawn: list[Array], lengths: list[Array], n: int, n_days: int) -> Array:
    """Whether each of n is compromised on each day [n, n_days]."""
    compromised, days = np.zeros((n, n_days), bool), np.arange(n_days)
    for today, (ids, length) in enumerate(zip(drawn, lengths, strict=True)):
        compromised[ids] |= (today <= days) & (days < today + length[:, None])
    return compromised


def _iterate_exposed_rows(
    drawn: list[Array], lengths: list[Array], customer: Array, day: Array, n_days: int
) -> Iterator[Array]:
    """Yield, for each day, the rows in the windows of the customers drawn on it."""
    rows = np.argsort(customer, kind="stable")
    keys = customer[rows] * n_days + day[rows]
    for today, (ids, length) in enumerate(zip(drawn, lengths, strict=True)):
        first = np.searchsorted(keys, ids * n_days + today)
        last = np.searchsorted(keys, ids * n_days + np.minimum(today + length, n_days))
        windows = [rows[a:b] for a, b in zip(first, last, strict=True)]
        yield np.concatenate(windows or [rows[:0]])


def _draw_stolen_rows(
    rng: Generator, rounding_rng: Generator, exposed: Array, share: float
) -> Array:
    """The share of the exposed rows that is the thief's, drawn at random."""
    rounding = 0.0 if share == PUBLISHED_CUSTOMER_FRAUD_SHARE else rounding_rng.random()
    n_stolen = math.floor(exposed.size * share + rounding)
    stolen: Array = rng.choice(exposed, n_stolen, replace=False)
    return stolen


def _list_episodes(name: str, windows: Array, owner: Array, day: Array) -> list[pl.Series]:
    """First and last day of the compromise each row lies in; null where it lies in none."""
    days = np.arange(windows.shape[1], dtype=np.int32)
    outside = np.zeros((len(windows), 1), bool)
    begins = windows & ~np.hstack([outside, windows[:, :-1]])
    ends = windows & ~np.hstack([windows[:, 1:], outside])
    first = np.maximum.accumulate(np.where(begins, days, -1), axis=1)
    last = np.minimum.accumulate(np.where(ends, days, days.size)[:, ::-1], axis=1)[:, ::-1]
    in_none = pl.Series(~windows[owner, day])
    return [
        pl.Series(f"{name}_EPISODE_{end}", table[owner, day]).set(in_none, None)
        for end, table in (("START", first), ("END", last))
    ]
