"""Simulated card payments with three kinds of fraud, as in the Fraud Detection Handbook.

Each customer lives on a map and pays at the terminals near home, with their own rate and amount.
Fraud has three scenarios: (1) every amount above 220; (2) every payment at a terminal compromised
for 28 days; (3) a third of the payments of a customer compromised for 14 days, with five times the
amount. A later scenario overwrites an earlier one.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.random import Generator
from scipy.spatial import cKDTree
from scipy.special import ndtri

from turncoat.arrays import Array
from turncoat.errors import check_count

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

LARGE_AMOUNT = 220.0
TERMINALS_PER_DAY, TERMINAL_DAYS = 2, 28
CUSTOMERS_PER_DAY, CUSTOMER_DAYS = 3, 14
FRAUD_SHARE_DIVISOR = 3
FRAUD_FACTOR = 5


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
) -> dict[str, pl.DataFrame]:
    """Simulate exactly `n_rows` payments; returns the tables `transactions` and `truth`.

    The defaults keep the published payments per customer and day, and two terminals per customer.
    The map grows with the customers, so that each has equally many terminals nearby. A customer
    without a terminal in reach pays at the nearest one. The published shares of terminals and
    customers are compromised per day. Customers' rates only decide how the payments are shared out:
    at the published size this is the published process, conditional on its number of rows.

    `transactions` has the published columns except the scenario, oldest first. `truth` has the
    scenario (0 is genuine) and the first and last day of the compromise of the row's terminal and
    customer, null where there is none.
    """
    check_count("n_rows", n_rows, 1)
    check_count("n_days", n_days, 1)
    if n_customers is None:
        per_day = n_rows / n_days * PUBLISHED_CUSTOMERS
        n_customers = max(1, round(per_day * PUBLISHED_DAYS / PUBLISHED_ROWS))
    if n_terminals is None:
        n_terminals = max(1, round(n_customers * PUBLISHED_TERMINALS / PUBLISHED_CUSTOMERS))
    return _simulate(HandbookSize(n_customers, n_terminals, n_days), n_rows, seed)


def simulate_published_process(
    seed: int, size: HandbookSize | None = None
) -> dict[str, pl.DataFrame]:
    """Simulate the published process with a random number of rows, by default at full size."""
    return _simulate(size or HandbookSize(), None, seed)


def _simulate(size: HandbookSize, n_rows: int | None, seed: int) -> dict[str, pl.DataFrame]:
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

    scenario = np.where(amount > LARGE_AMOUNT, 1, 0).astype(np.int8)
    share = TERMINALS_PER_DAY / PUBLISHED_TERMINALS
    draws = _draw_compromised(rng, size.n_terminals, n_days, share)
    terminal_windows = _mark_windows(draws, size.n_terminals, n_days, TERMINAL_DAYS)
    scenario[terminal_windows[terminal, day]] = 2
    share = CUSTOMERS_PER_DAY / PUBLISHED_CUSTOMERS
    draws = _draw_compromised(rng, size.n_customers, n_days, share)
    customer_windows = _mark_windows(draws, size.n_customers, n_days, CUSTOMER_DAYS)
    for rows in _draw_stolen_rows(rng, draws, customer, day, n_days):
        amount[rows] *= FRAUD_FACTOR
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


def _mark_windows(draws: list[Array], n: int, n_days: int, length: int) -> Array:
    """Whether each of n is compromised on each day [n, n_days]: for `length` days from its draw."""
    compromised = np.zeros((n, n_days), bool)
    for day, drawn in enumerate(draws):
        compromised[drawn, day : day + length] = True
    return compromised


def _draw_stolen_rows(
    rng: Generator, draws: list[Array], customer: Array, day: Array, n_days: int
) -> list[Array]:
    """Rows turned to fraud by each day's draw: a third of its customers' payments in the window."""
    rows = np.argsort(customer, kind="stable")
    keys = customer[rows] * n_days + day[rows]
    stolen = []
    for today, drawn in enumerate(draws):
        first = np.searchsorted(keys, drawn * n_days + today)
        last = np.searchsorted(keys, drawn * n_days + min(today + CUSTOMER_DAYS, n_days))
        windows = [rows[a:b] for a, b in zip(first, last, strict=True)]
        exposed = np.concatenate(windows or [rows[:0]])
        stolen.append(rng.choice(exposed, exposed.size // FRAUD_SHARE_DIVISOR, replace=False))
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
