"""The fraud regime's figures and their intervals, against arithmetic by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.scoring.detectors import data_of, detector, time_split
from turncoat import Detector, VariationalHMM
from turncoat.data import Schema, read
from turncoat.data.splits import split_by_customer
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.evaluation.regimes import describe_regimes, measure_tier, name_category
from turncoat.features import Features
from turncoat.features.history import compute_time_features
from turncoat.features.split_panels import build_split_panel
from turncoat.scoring.formatting import NO_CALENDAR, Clock


def scored(n_customers: int = 300, seed: int = 0, frauds: bool = True) -> ScoredLabels:
    rng = np.random.default_rng(seed)
    customers = np.repeat(np.arange(n_customers), 5)
    risky = np.repeat(rng.random(n_customers) < 0.2, 5)
    labels = (rng.random(len(customers)) < np.where(risky, 0.3, 0.02)) * frauds
    scores = np.clip(0.7 * labels + 0.2 * rng.random(len(customers)), 0, 1)
    return ScoredLabels(scores, labels.astype(int), customers, np.zeros(len(customers), int))


def row_of(*folds: ScoredLabels, **settings: Any) -> Any:
    return measure_tier(
        "a", "b", 3, "given", None, [list(folds)], **{"n_resamples": 400, "seed": 1, **settings}
    )


def test_intervals_are_those_of_drawn_customers() -> None:
    one = scored()
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
    one, other = scored(), scored(seed=3)
    both = row_of(one, other)
    for figure in ("occupancy", "fraud_rate", "fraud_captured", "enrichment"):
        assert getattr(both, figure) == pytest.approx(
            (getattr(row_of(one), figure) + getattr(row_of(other), figure)) / 2
        )
    twice = measure_tier("a", "b", 3, "given", None, [[one], [one]], n_resamples=400, seed=1)
    assert twice.enrichment_interval == pytest.approx(row_of(one).enrichment_interval)


def test_the_seed_decides() -> None:
    assert row_of(scored()) == row_of(scored())
    assert row_of(scored()) != row_of(scored(), seed=2)


def test_without_fraud_there_is_no_enrichment() -> None:
    row = row_of(scored(frauds=False))
    assert (row.fraud_rate, row.fraud_captured, row.enrichment, row.enrichment_interval) == (
        0.0,
        None,
        None,
        None,
    )
    assert row.occupancy > 0


@pytest.mark.parametrize(
    ("has_calendar", "name"), [(True, "Monday"), (False, "day 5 of the file's week")]
)
def test_weekdays_have_names_where_there_is_a_calendar(has_calendar: bool, name: str) -> None:
    clock = Clock() if has_calendar else NO_CALENDAR
    monday = datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp()
    values, codes = np.empty(3), np.empty(1, np.int64)
    compute_time_features(monday, 0, values, codes)
    plan = detector().features_.plan
    assert name_category(plan, "weekday", int(codes[0]), clock) == name
    assert name_category(plan, "is_first", 1, clock) == "yes"


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_regimes_stay_with_the_diagonal_of_the_transition_matrix(transitions: str) -> None:
    made, transactions = detector(transitions=transitions), data_of("shop").transactions
    parts = transactions, time_split(transactions), "calibration"
    table = describe_regimes("made", made, build_split_panel(made.features_, *parts)[0], 0.0)
    matrix = np.array(table.transition_matrix)
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0)
    np.testing.assert_allclose(np.diag(matrix), [row.stickiness for row in table.rows])
    is_fitted = np.allclose(matrix, made.model_.params_.transition_matrix)
    assert is_fitted == (transitions == "per-row")


def test_shares_of_categories_are_those_of_the_rows_and_not_the_prior() -> None:
    rng = np.random.default_rng(4)
    n, burst = 1500, rng.random(1500) < 0.3
    table = pl.DataFrame(
        {
            "client": rng.integers(0, 60, n),
            "at": np.arange(n) * 3600.0,
            "paid": np.exp(rng.normal(3 + 3 * burst, 0.3)),
            "device": np.where(burst, "emulator", "phone"),
            "remark": [("note" if i % 60 == 0 else None) for i in range(n)],
            "fraud": (burst & (rng.random(n) < 0.4)).astype(int),
        }
    )
    schema = Schema(
        name="few",
        customer="client",
        time="at",
        label="fraud",
        continuous=("paid",),
        categorical=("device", "remark"),
    )
    data = read(table, schema)
    split = split_by_customer(data.customer_codes, data.times, data.labels)
    made = Detector(Features("processed"), VariationalHMM(2, n_restarts=1, max_iter=20))
    made.fit(data, split)
    panel, _ = build_split_panel(made.features_, data, split, "calibration")
    regimes = describe_regimes("made", made, panel, 0.0)
    traits = [trait for row in regimes.rows for trait in row.traits]
    assert "remark" not in {trait.feature for trait in traits}
    shares = {trait.category: trait.overall for trait in traits if trait.feature == "device"}
    codes = panel.categorical[:, 0]
    for code in (0, 1):
        name = name_category(made.features_.plan, "device", code, NO_CALENDAR)
        if name in shares:
            assert shares[name] == pytest.approx((codes == code).mean(), abs=0.02)
    assert shares
