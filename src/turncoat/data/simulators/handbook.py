"""Card payments with three kinds of fraud: the process of the Fraud Detection Handbook's published simulator, at any size.

Every customer lives on a map and pays, at a rate and of an amount of their own, at the terminals near home. Fraud comes in
three scenarios: (1) any amount above 220; (2) terminals compromised for 28 days, all of whose payments are fraud; (3) customers
compromised for 14 days, a third of whose payments are fraud of five times the amount. A later scenario overwrites an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import polars as pl
from scipy.spatial import cKDTree
from scipy.special import ndtri

from turncoat.arrays import Array
from turncoat.errors import ConfigError

START = np.datetime64("2018-04-01", "ms")
DAY_SECONDS = 86_400

PUBLISHED_ROWS = 1_754_155
PUBLISHED_CUSTOMERS = 5_000
PUBLISHED_TERMINALS = 10_000
PUBLISHED_DAYS = 183

MAP_SIDE = 100.0
REACH = 5.0
LOWEST_MEAN_AMOUNT, HIGHEST_MEAN_AMOUNT = 5.0, 100.0
MOST_PAYMENTS_PER_DAY = 4.0
TIME_OF_DAY = NormalDist(
    DAY_SECONDS / 2, 20_000
)  # only times from second 1 to the end of the day become payments
EARLIEST, LATEST = TIME_OF_DAY.cdf(1), TIME_OF_DAY.cdf(DAY_SECONDS)

LARGE_AMOUNT = 220.0
TERMINALS_PER_DAY, TERMINAL_DAYS = 2, 28
CUSTOMERS_PER_DAY, CUSTOMER_DAYS = 3, 14
FRAUD_SHARE_DIVISOR = 3
FRAUD_FACTOR = 5


@dataclass(frozen=True)
class World:
    """How many customers, terminals and days are simulated."""

    n_customers: int = PUBLISHED_CUSTOMERS
    n_terminals: int = PUBLISHED_TERMINALS
    n_days: int = PUBLISHED_DAYS

    def __post_init__(self) -> None:
        """Refuse an empty world."""
        for name in ("n_customers", "n_terminals", "n_days"):
            _at_least(name, getattr(self, name), 1)


def handbook(
    n_rows: int,
    seed: int,
    *,
    n_days: int = PUBLISHED_DAYS,
    n_customers: int | None = None,
    n_terminals: int | None = None,
) -> dict[str, pl.DataFrame]:
    """Simulate exactly `n_rows` payments, and the truth about them.

    The published run has 1,754,155 payments of 5,000 customers at 10,000 terminals in 183 days. `n_days` stays as given; by
    default the number of customers is the one that keeps the published payments per customer and day, there are two
    terminals per customer, and the area of the map grows with the customers, so that as many terminals lie near each.
    As large a share of terminals and customers is compromised per day as published: 2 and 3 a day at the published size,
    fewer or more at another, spread evenly over the days. The customers' rates only say how the `n_rows` payments are
    shared out: nothing is generated and thrown away, and at the published size this is the published process, given its
    number of rows. A customer with no terminal in reach, which needs few terminals asked for, pays at the nearest one.

    `transactions` has the published columns but the scenario, oldest first. `truth` has the scenario (0 is genuine) and the
    first and last day of the compromise that the row's terminal and customer are in, null where they are in none.
    """
    _at_least("n_rows", n_rows, 1)
    _at_least("n_days", n_days, 1)
    if n_customers is None:
        n_customers = max(
            1, round(n_rows / n_days * PUBLISHED_CUSTOMERS * PUBLISHED_DAYS / PUBLISHED_ROWS)
        )
    if n_terminals is None:
        n_terminals = max(1, round(n_customers * PUBLISHED_TERMINALS / PUBLISHED_CUSTOMERS))
    return _simulate(World(n_customers, n_terminals, n_days), n_rows, seed)


def simulate_published_process(seed: int, world: World | None = None) -> dict[str, pl.DataFrame]:
    """Simulate the published process with its number of rows left to chance; by default at the published size."""
    return _simulate(world or World(), None, seed)


def _simulate(world: World, n_rows: int | None, seed: int) -> dict[str, pl.DataFrame]:
    _at_least("seed", seed, 0)
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0, MOST_PAYMENTS_PER_DAY, world.n_customers)
    if n_rows is None:
        payments = rng.poisson(rates * world.n_days * (LATEST - EARLIEST))
    else:
        payments = rng.multinomial(n_rows, rates / rates.sum())
    customer = np.repeat(np.arange(world.n_customers), payments)
    seconds = rng.integers(world.n_days, size=customer.size) * DAY_SECONDS + _times_of_day(
        rng, customer.size
    )
    oldest_first = np.argsort(seconds, kind="stable")
    seconds, customer = seconds[oldest_first], customer[oldest_first]
    day = seconds // DAY_SECONDS
    terminal = _terminals(rng, world, customer)
    amount = _amounts(rng, world, customer)

    scenario = np.where(amount > LARGE_AMOUNT, 1, 0).astype(np.int8)
    terminal_draws = _drawn_each_day(
        rng, world.n_terminals, world.n_days, TERMINALS_PER_DAY / PUBLISHED_TERMINALS
    )
    terminal_windows = _windows(terminal_draws, world.n_terminals, world.n_days, TERMINAL_DAYS)
    scenario[terminal_windows[terminal, day]] = 2
    customer_draws = _drawn_each_day(
        rng, world.n_customers, world.n_days, CUSTOMERS_PER_DAY / PUBLISHED_CUSTOMERS
    )
    customer_windows = _windows(customer_draws, world.n_customers, world.n_days, CUSTOMER_DAYS)
    for taken in _taken_over(rng, customer_draws, customer, day, world.n_days):
        amount[taken] *= FRAUD_FACTOR
        scenario[taken] = 3

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
    terminal_episodes = _episodes("TERMINAL", terminal_windows, terminal, day)
    customer_episodes = _episodes("CUSTOMER", customer_windows, customer, day)
    truth = pl.DataFrame(
        [ids, pl.Series("TX_FRAUD_SCENARIO", scenario), *terminal_episodes, *customer_episodes]
    )
    return {"transactions": transactions, "truth": truth}


def _times_of_day(rng: np.random.Generator, size: int) -> Array:
    """Whole seconds of the day, normal around noon given that they fall inside the day."""
    draws: Array = TIME_OF_DAY.mean + TIME_OF_DAY.stdev * ndtri(rng.uniform(EARLIEST, LATEST, size))
    return np.clip(
        draws.astype(np.int64), 1, DAY_SECONDS - 1
    )  # rounding in the quantile may step over the ends


def _terminals(rng: np.random.Generator, world: World, customer: Array) -> Array:
    """A terminal for each payment, any of those within reach of the customer's home alike."""
    side = MAP_SIDE * np.sqrt(world.n_customers / PUBLISHED_CUSTOMERS)
    homes = rng.uniform(0, side, (world.n_customers, 2))
    tree = cKDTree(rng.uniform(0, side, (world.n_terminals, 2)))
    near = tree.query_ball_point(homes, REACH, return_sorted=True)
    for lonely in np.flatnonzero([not found for found in near]):
        near[lonely] = [tree.query(homes[lonely])[1]]
    choices = np.array([len(found) for found in near])
    firsts = np.cumsum(choices) - choices
    picks = rng.integers(choices[customer])
    chosen: Array = np.concatenate(list(near)).astype(np.int64)[firsts[customer] + picks]
    return chosen


def _amounts(rng: np.random.Generator, world: World, customer: Array) -> Array:
    """Amounts in cents' steps, normal around the customer's own mean; negative ones are drawn again, flat up to twice the mean."""
    means = rng.uniform(LOWEST_MEAN_AMOUNT, HIGHEST_MEAN_AMOUNT, world.n_customers)[customer]
    amounts = rng.normal(means, means / 2)
    negative = amounts < 0
    amounts[negative] = rng.uniform(0, 2 * means[negative])
    return np.round(amounts, 2)


def _drawn_each_day(rng: np.random.Generator, n: int, n_days: int, share: float) -> list[Array]:
    """Which of n are drawn on each day but the last, on which the published process draws none."""
    # A random phase keeps the expected number per day at any size, and makes a whole number per day exactly that number.
    counts = np.diff(np.floor(rng.uniform() + n * share * np.arange(n_days))).astype(int)
    return [rng.choice(n, count, replace=False) for count in counts]


def _windows(draws: list[Array], n: int, n_days: int, length: int) -> Array:
    """Whether each of n is compromised on each day: from the day it is drawn, for `length` days."""
    compromised = np.zeros((n, n_days), bool)
    for day, drawn in enumerate(draws):
        compromised[drawn, day : day + length] = True
    return compromised


def _taken_over(
    rng: np.random.Generator, draws: list[Array], customer: Array, day: Array, n_days: int
) -> list[Array]:
    """The rows turned to fraud by each day's draw: a third of all payments its customers make in their window."""
    rows = np.argsort(customer, kind="stable")
    place = customer[rows] * n_days + day[rows]
    taken = []
    for today, drawn in enumerate(draws):
        first = np.searchsorted(place, drawn * n_days + today)
        last = np.searchsorted(place, drawn * n_days + min(today + CUSTOMER_DAYS, n_days))
        exposed = np.concatenate(
            [rows[a:b] for a, b in zip(first, last, strict=True)] or [rows[:0]]
        )
        taken.append(rng.choice(exposed, exposed.size // FRAUD_SHARE_DIVISOR, replace=False))
    return taken


def _episodes(name: str, windows: Array, counterparty: Array, day: Array) -> list[pl.Series]:
    """First and last day of the unbroken run of compromised days that each row lies in; null where it lies in none."""
    days = np.arange(windows.shape[1], dtype=np.int32)
    outside = np.zeros((len(windows), 1), bool)
    begins = windows & ~np.hstack([outside, windows[:, :-1]])
    ends = windows & ~np.hstack([windows[:, 1:], outside])
    first = np.maximum.accumulate(np.where(begins, days, -1), axis=1)
    last = np.minimum.accumulate(np.where(ends, days, days.size)[:, ::-1], axis=1)[:, ::-1]
    in_none = pl.Series(~windows[counterparty, day])
    bounds = {f"{name}_EPISODE_START": first, f"{name}_EPISODE_END": last}
    return [
        pl.Series(column, table[counterparty, day]).set(in_none, None)
        for column, table in bounds.items()
    ]


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(
            f"{name} must be a whole number of at least {least}; found {value!r}. Give {name}={least} or more"
        )
