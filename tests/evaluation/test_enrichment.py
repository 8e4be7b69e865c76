"""The fraud regime's figures and their intervals, against arithmetic by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turncoat.evaluation.enrichment import tier_row
from turncoat.evaluation.metrics import ScoredLabels


def judged(n_customers: int = 300, seed: int = 0, frauds: bool = True) -> ScoredLabels:
    rng = np.random.default_rng(seed)
    customers = np.repeat(np.arange(n_customers), 5)
    risky = np.repeat(rng.random(n_customers) < 0.2, 5)
    labels = (rng.random(len(customers)) < np.where(risky, 0.3, 0.02)) * frauds
    scores = np.clip(0.7 * labels + 0.2 * rng.random(len(customers)), 0, 1)
    return ScoredLabels(scores, labels.astype(int), customers, np.zeros(len(customers), int))


def row_of(*folds: ScoredLabels, **settings: Any) -> Any:
    return tier_row("a", "b", 3, None, [list(folds)], **{"n_resamples": 400, "seed": 1, **settings})


def test_intervals_are_those_of_drawn_customers() -> None:
    one = judged()
    row = row_of(one)
    rng = np.random.default_rng(7)
    drawn = []
    for _ in range(2000):
        customers = rng.integers(300, size=300)
        rows = (customers[:, None] * 5 + np.arange(5)).ravel()
        scores, labels = one.scores[rows], one.labels[rows]
        drawn.append(((scores * labels).sum() / scores.sum()) / labels.mean())
    low, high = np.quantile(drawn, [0.05, 0.95])
    assert row.enrichment_interval == pytest.approx((low, high), rel=0.03)
    assert low < row.enrichment < high


def test_folds_and_seeds_are_averaged() -> None:
    one, other = judged(), judged(seed=3)
    both = row_of(one, other)
    for figure in ("occupancy", "fraud_rate", "captured", "enrichment"):
        assert getattr(both, figure) == pytest.approx(
            (getattr(row_of(one), figure) + getattr(row_of(other), figure)) / 2
        )
    twice = tier_row("a", "b", 3, None, [[one], [one]], n_resamples=400, seed=1)
    assert twice.enrichment_interval == pytest.approx(row_of(one).enrichment_interval)


def test_the_seed_decides() -> None:
    assert row_of(judged()) == row_of(judged())
    assert row_of(judged()) != row_of(judged(), seed=2)


def test_without_fraud_there_is_no_enrichment() -> None:
    row = row_of(judged(frauds=False))
    assert (row.fraud_rate, row.captured, row.enrichment, row.enrichment_interval) == (
        0.0,
        None,
        None,
        None,
    )
    assert row.occupancy > 0
