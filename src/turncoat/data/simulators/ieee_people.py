"""Who the simulated IEEE-CIS customers are: cards of very unequal use, the people behind them, and their habits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from turncoat.arrays import Array

FULL_ROWS = 590_540
FULL_CARDS = 13_553
FIRST_DAY, N_DAYS = 1, 182  # as in the genuine file, whose first second is that of day one
DAY = 86_400
PRODUCTS = ("W", "C", "R", "H", "S")
PRODUCT_SHARES = (0.745, 0.115, 0.064, 0.056, 0.020)
N_HABITS = 7  # dimensions of behaviour that belong to a person; the first three are named:
PACE, NOVELTY, SPENDING = 0, 1, 2

_CARD_SPREAD = (
    2.05  # log-normal; gives a median of a few rows and a largest card of about 13,000 rows
)
_LONGEST_KNOWN = 640  # days since a card's first use
_PERSON_MEDIAN, _PERSON_SPREAD = 2.2, 1.45


@dataclass(frozen=True, eq=False)
class People:
    """One entry per hidden person; several people may hold the same card number."""

    rows: Array  # [P] transactions in all
    card: Array  # [P] place in `card_numbers`
    card_numbers: Array  # [cards] the value of card1
    product: Array  # [P] the usual one, a place in PRODUCTS
    habits: Array  # [P, N_HABITS]
    drift: Array  # [P, N_HABITS] change of the habits over the whole window
    spending: Array  # [P] log of the usual amount, relative to the product's
    hour: Array  # [P] hour of the day at which they usually buy
    begin: Array  # [P] first possible day of activity, a fraction, to be folded into the window
    span: Array  # [P] days of activity
    tenure: Array  # [P] days the card was in use before its first transaction in the window
    changes_device: (
        Array  # [P] day on which a new device replaces the old; most lie beyond the window
    )
    moves: Array  # [P] day on which they move house; nearly all lie beyond the window
    traits: Array  # [P, 2] leanings towards leaving fields of the form empty

    def __len__(self) -> int:
        """Number of people."""
        return len(self.rows)


def make_people(n_rows: int, rng: np.random.Generator) -> People:
    """People whose transactions add up to exactly `n_rows`."""
    card_ends = np.cumsum(_card_sizes(n_rows, rng))
    lengths = np.ceil(_PERSON_MEDIAN * np.exp(_PERSON_SPREAD * rng.standard_normal(n_rows))).astype(
        np.int64
    )
    person_ends = np.cumsum(lengths)
    ends = np.union1d(person_ends[person_ends < n_rows], card_ends)
    rows = np.diff(ends, prepend=0)
    n = len(rows)
    days_between = np.exp(np.log(6.0) + 0.9 * rng.standard_normal(n))
    span = np.minimum(rows * days_between, N_DAYS)
    before_window = np.minimum(np.ceil(rng.exponential(150.0, n)), _LONGEST_KNOWN - N_DAYS)
    return People(
        rows=rows,
        card=np.searchsorted(card_ends, ends),
        card_numbers=1000 + rng.permutation(17_397)[: len(card_ends)],
        product=rng.choice(len(PRODUCTS), n, p=PRODUCT_SHARES).astype(np.int8),
        habits=0.8 * rng.standard_normal((n, N_HABITS), np.float32),
        drift=rng.standard_normal((n, N_HABITS), np.float32),
        spending=0.5 * rng.standard_normal(n),
        hour=rng.normal(17.0, 3.5, n) % 24,
        begin=FIRST_DAY + N_DAYS * rng.random(n) - span / 2,
        span=span,
        tenure=np.where(rng.random(n) < 0.55, 0, before_window).astype(np.int64),
        changes_device=rng.uniform(0, 5 * N_DAYS, n),
        moves=rng.uniform(0, 20 * N_DAYS, n),
        traits=rng.standard_normal((n, 2)),
    )


def folded(days: Array) -> Array:
    """Days beyond an end of the window turned back into it, so that the ends are as busy as the middle."""
    end = FIRST_DAY + N_DAYS
    inside: Array = np.where(
        days < FIRST_DAY, 2 * FIRST_DAY - days, np.where(days >= end, 2 * end - days, days)
    )
    return inside


def _card_sizes(n_rows: int, rng: np.random.Generator) -> Array:
    """Rows of each card: log-normal quantiles rather than draws, so that every seed has the same heavy tail."""
    n_cards = min(max(round(FULL_CARDS * n_rows / FULL_ROWS), 1), FULL_CARDS)
    weights = np.exp(_CARD_SPREAD * ndtri(np.arange(1, n_cards + 1) / (n_cards + 1)))
    sizes = 1 + np.floor(weights / weights.sum() * (n_rows - n_cards)).astype(np.int64)
    sizes = rng.permutation(sizes)
    sizes[: n_rows - sizes.sum()] += 1
    return sizes
