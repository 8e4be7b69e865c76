"""Sample data for the evaluation tests."""

from __future__ import annotations

import numpy as np
import polars as pl

from turncoat.data import Schema
from turncoat.data.splits import DAY
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.models.tuning import TrainingRows

SCHEMA = Schema(
    customer=("who",),
    time="at",
    continuous=("paid", "age"),
    categorical=("device",),
    amount="paid",
    label="fraud",
    id="id",
    counterparties=("shop",),
)


def make_scored(
    seed: int,
    n_rows: int = 2000,
    rate: float = 0.05,
    n_levels: int | None = None,
    n_customers: int = 40,
    n_days: int = 5,
) -> ScoredLabels:
    """Scores that correlate with the labels; with `n_levels`, many are equal."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n_rows) < rate).astype(np.int64)
    scores = 1 / (1 + np.exp(-rng.normal(size=n_rows) - 2 * labels + 3))
    if n_levels is not None:
        scores = np.round(scores * n_levels) / n_levels
    customers = rng.integers(0, n_customers, n_rows)
    return ScoredLabels(scores, labels, customers, rng.integers(10, 10 + n_days, n_rows))


def make_training_rows(n: int = 3000, seed: int = 1) -> TrainingRows:
    """Columns [N, 5 + 2] with missing values and codes, and rare labels; a fourth validates.

    A shift of two columns and one category give the labels away.
    """
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.06).astype(np.int8)
    columns = rng.standard_normal((n, 7)).astype(np.float32)
    columns[:, :2] += 2.5 * labels[:, None]
    columns[:, 5] = rng.integers(3, size=n)
    columns[:, 6] = np.where(rng.random(n) < 0.5 * labels, 3, rng.integers(3, size=n))
    columns[rng.random(columns.shape) < 0.1] = np.nan
    customers = rng.integers(n // 10, size=n)
    return TrainingRows(columns, labels, customers, 40 * rng.random(n), customers % 4 == 0)


def make_portfolio(n_customers: int = 160, seed: int = 0) -> pl.DataFrame:
    """Payments of 90 days; every fourth customer has a burst of six large frauds at bad shops."""
    rng, per_customer = np.random.default_rng(seed), 18
    burst = np.arange(n_customers) % 4 == 0
    own = np.repeat(np.arange(n_customers), per_customer)
    who = np.concatenate([own, np.repeat(np.flatnonzero(burst), 6)])
    fraud = np.arange(len(who)) >= len(own)
    begins = np.repeat(rng.uniform(5 * DAY, 85 * DAY, burst.sum()), 6)
    begins += np.tile(np.arange(6) * 900.0, burst.sum())
    n_rows = len(who)
    return pl.DataFrame(
        {
            "id": np.arange(n_rows),
            "who": [f"c{k:03d}" for k in who],
            "at": np.concatenate([rng.uniform(0, 90 * DAY, len(own)), begins]),
            "paid": np.exp(rng.normal(3.0 + 2.0 * fraud, 0.7)),
            "age": np.where(rng.random(n_rows) < 0.1, np.nan, rng.normal(40, 12, n_rows)),
            "device": np.where(rng.random(n_rows) < 0.05 + 0.8 * fraud, "emulator", "phone"),
            "shop": [
                f"s{k}"
                for k in np.where(fraud, rng.integers(0, 3, n_rows), rng.integers(0, 12, n_rows))
            ],
            "fraud": fraud.astype(int),
        }
    )


def make_payments(lengths: list[int], seed: int = 0, signal: float = 1.5) -> pl.DataFrame:
    """Payments of 60 days by customers with so many each; amount and device tell 8 % frauds."""
    rng, n_rows = np.random.default_rng(seed), sum(lengths)
    fraud = rng.random(n_rows) < 0.08
    odd = np.where(fraud, 0.1 + 0.4 * min(signal, 2.0), 0.1)
    return pl.DataFrame(
        {
            "id": np.arange(n_rows),
            "who": [f"c{k:04d}" for k in np.repeat(np.arange(len(lengths)), lengths)],
            "at": rng.uniform(0, 60 * DAY, n_rows),
            "paid": np.exp(rng.normal(3.0 + signal * fraud, 0.7)),
            "age": np.where(rng.random(n_rows) < 0.1, np.nan, rng.normal(40, 12, n_rows)),
            "device": np.where(rng.random(n_rows) < odd, "emulator", "phone"),
            "shop": [f"s{k}" for k in rng.integers(0, 12, n_rows)],
            "fraud": fraud.astype(int),
        }
    )
