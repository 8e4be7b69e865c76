"""Figures of a detector with intervals, and a verdict in words."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from tests.evaluation.samples import SCHEMA, make_payments, make_scored
from turncoat import DataError, Detector, VariationalHMM
from turncoat.data import read
from turncoat.data.splits import Split, split_by_customer
from turncoat.data.transactions import Transactions
from turncoat.evaluation import verdict
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.evaluation.verdict import (
    AS_GOOD,
    BETTER,
    CHANCE,
    DETECTOR,
    LOGISTIC,
    SHOWN,
    TOO_FEW,
    WORSE,
    XGBOOST,
    evaluate_against_baselines,
    evaluate_detector,
    evaluate_scores,
)
from turncoat.features import Features
from turncoat.models.boosting import BoostedTrees
from turncoat.models.tuning import DEFAULT_PARAMS

PARAMS = {**DEFAULT_PARAMS, "n_estimators": 30}


def make_columns(noise: dict[str, float | None], seed: int = 0) -> dict[str, ScoredLabels]:
    """Scores of the same rows with more or less noise; None is nothing but noise."""
    rows, rng = make_scored(seed, n_customers=400), np.random.default_rng(seed)
    columns = {}
    for name, sd in noise.items():
        margins = 3.0 * rows.labels + rng.normal(0, sd or 1.0, len(rows)) - 4.0
        margins = rng.normal(-4.0, 1.0, len(rows)) if sd is None else margins
        scores = 1 / (1 + np.exp(-margins))
        columns[name] = ScoredLabels(scores, rows.labels, rows.customers, rows.days)
    return columns


@pytest.mark.parametrize(
    ("noise", "expected", "words"),
    [
        ({DETECTOR: None, XGBOOST: 1.0}, CHANCE, "Do not use the detector: it is no better than"),
        ({DETECTOR: None, XGBOOST: None}, CHANCE, "Do not use the detector: it is no better than"),
        ({DETECTOR: 1.0, XGBOOST: 2.0}, BETTER, "Use the detector: it is better than XGBoost."),
        ({DETECTOR: 1.0, XGBOOST: 1.0}, AS_GOOD, "The detector is as good as XGBoost."),
        ({DETECTOR: 2.0, XGBOOST: 1.0}, WORSE, "Keep XGBoost: the detector is worse. Give it"),
        ({DETECTOR: 1.0}, "", ""),
        ({DETECTOR: None}, CHANCE, "Do not use the detector"),
    ],
)
def test_the_verdict_is_that_of_the_scores(
    noise: dict[str, float | None], expected: str, words: str
) -> None:
    for seed in range(4):
        found = evaluate_scores(make_columns(noise, seed))
        assert found.verdict == expected
        text = found.describe()
        assert (f"Verdict: {words}" in text) if words else ("Verdict" not in text)


@pytest.mark.parametrize(("shift", "is_calibrated"), [(0.0, True), (-6.0, False)])
def test_probabilities_that_are_not_calibrated_are_named(shift: float, is_calibrated: bool) -> None:
    rows, rng = make_scored(1, n_customers=2000), np.random.default_rng(1)
    margins = rng.normal(-4.0, 2.0, len(rows))
    labels = (rng.random(len(rows)) < 1 / (1 + np.exp(-margins))).astype(np.int64)
    scores = 1 / (1 + np.exp(-(margins + shift)))
    own = ScoredLabels(scores, labels, rows.customers, rows.days)
    found = evaluate_scores({DETECTOR: own, XGBOOST: own})
    assert found.verdict == AS_GOOD
    assert found.is_calibrated is is_calibrated
    assert found.mean_score == pytest.approx(scores.mean())
    text = found.describe()
    assert ("probabilities are not calibrated here" in text) is not is_calibrated
    assert ("as good as XGBoost. Use it for its intervals" in text) is is_calibrated
    assert ("as good as XGBoost. Keep XGBoost." in text) is not is_calibrated


def test_figures_are_of_the_scores_and_inside_their_intervals() -> None:
    columns = make_columns({DETECTOR: 1.5, XGBOOST: 1.0, LOGISTIC: 2.0}, 3)
    found, own = evaluate_scores(columns), columns[DETECTOR]
    assert (found.n_rows, found.n_frauds) == (len(own), int(own.labels.sum()))
    assert found.n_customers == len(np.unique(own.customers))
    precisions = {}
    for name, figures in found.models.items():
        assert figures.keys() == SHOWN.keys()
        scored = columns[name]
        precisions[name] = average_precision_score(scored.labels, scored.scores)
        assert figures["average_precision"].value == pytest.approx(precisions[name])
        assert figures["auroc"].value == pytest.approx(roc_auc_score(scored.labels, scored.scores))
        for metric, figure in figures.items():
            assert figure.value is not None
            assert figure.interval is not None
            low, high = figure.interval
            assert low <= high
            assert low <= figure.value <= high or metric == "ece_mass"  # which resampling raises
    assert found.differences.keys() == {XGBOOST, LOGISTIC}
    for name, gap in found.differences.items():
        assert gap.value == pytest.approx(precisions[DETECTOR] - precisions[name])
        assert gap.interval is not None
        assert gap.interval[0] <= gap.value <= gap.interval[1]
    text = found.describe()
    assert "2,000 transactions of" in text
    assert f"{precisions[DETECTOR]:.3f}" in text
    assert "Average precision less XGBoost's: -" in text


@pytest.mark.parametrize(("n_frauds", "is_judged"), [(9, False), (10, True)])
def test_nothing_is_judged_on_fewer_than_ten_frauds(n_frauds: int, is_judged: bool) -> None:
    labels = (np.arange(400) < n_frauds).astype(np.int64)
    one = ScoredLabels(0.1 + 0.8 * labels, labels, np.arange(400), np.zeros(400, np.int64))
    found = evaluate_scores({DETECTOR: one, XGBOOST: one})
    assert found.verdict == (AS_GOOD if is_judged else TOO_FEW)
    assert ("too few frauds to judge the detector" in found.describe()) is not is_judged
    off = replace(found, ece_limit=0.0)  # its probabilities are wrong
    assert ("are not calibrated here" in off.describe()) is is_judged


def test_intervals_are_by_customer() -> None:
    rows = make_columns({DETECTOR: 1.5}, 5)[DETECTOR]
    few = ScoredLabels(rows.scores, rows.labels, np.arange(len(rows)) // 400, rows.days)
    order = np.argsort(rows.labels * 10 + rows.scores)  # alike rows together
    alike = ScoredLabels(
        *(part[order] for part in (rows.scores, rows.labels)), few.customers, rows.days
    )

    def width(scored: ScoredLabels) -> float:
        interval = evaluate_scores({DETECTOR: scored}).models[DETECTOR]["auroc"].interval
        assert interval is not None
        return interval[1] - interval[0]

    assert width(alike) > 1.5 * width(rows)


def test_scores_that_are_no_probabilities_have_no_calibration() -> None:
    rows = make_columns({DETECTOR: 1.0})[DETECTOR]
    margins = ScoredLabels(5 * rows.scores - 2, rows.labels, rows.customers, rows.days)
    found = evaluate_scores({DETECTOR: rows, XGBOOST: margins})
    assert found.models[XGBOOST]["ece_mass"] == verdict.Figure(None, None)
    assert found.models[DETECTOR]["ece_mass"].value is not None
    (line,) = (line for line in found.describe().splitlines() if line.startswith("ECE"))
    assert line.endswith("-")


@cache
def fitted(kind: str = "regimes") -> tuple[Detector, Transactions, Split]:
    data = read(make_payments([12] * 150), SCHEMA)
    split = split_by_customer(data.customer_codes, data.times, data.labels, test=0.3)
    model = VariationalHMM(2, n_restarts=1, max_iter=20, progress=False, n_threads=1)
    trees = BoostedTrees(params=PARAMS, n_threads=1)
    options = {"supervision": "anchored", "kind": kind, "trees": trees}
    made = Detector(Features("processed", min_count=4), model, **options)
    return made.fit(data, split), data, split


def test_a_detector_is_measured_on_the_rows_of_known_label() -> None:
    made, data, split = fitted()
    is_known = np.arange(data.n_rows) % 4 > 0
    hidden = replace(data, labels=np.where(is_known, data.labels, -1).astype(np.int8))
    rows = split.test
    found, known = evaluate_detector(made, hidden, rows), rows[is_known[rows]]
    assert found.n_rows == len(known)
    scores, labels = made.score(data).probability[known], np.asarray(data.labels)[known]
    value = found.models[DETECTOR]["average_precision"].value
    assert value == pytest.approx(average_precision_score(labels, scores))
    assert evaluate_detector(made, hidden).n_rows == is_known.sum()


@pytest.mark.parametrize("kind", ["regimes", "ranker", "hybrid"])
def test_baselines_are_measured_on_the_same_test_rows(kind: str) -> None:
    made, data, split = fitted(kind)
    found = evaluate_against_baselines(made, data, split, PARAMS)
    assert list(found.models) == [DETECTOR, XGBOOST, LOGISTIC]
    labels = np.asarray(data.labels)[split.test]
    assert (found.n_rows, found.n_frauds) == (len(labels), labels.sum())
    assert all(figures["auroc"].value > 0.75 for figures in found.models.values())
    assert found.verdict in (BETTER, AS_GOOD, WORSE)
    for figures in found.models.values():
        assert figures["ece_mass"].value is not None
    if kind == "ranker":  # the same trees, so all but calibration is alike
        gap = found.differences[XGBOOST].value
        assert gap == pytest.approx(0.0, abs=0.05)


def test_a_test_part_without_fraud_is_refused() -> None:
    made, data, split = fitted()
    labels = np.asarray(data.labels).copy()
    labels[split.test] = 0
    other = replace(data, labels=labels)
    with pytest.raises(DataError, match=r"the test part has 0 known frauds.* the verdict needs"):
        evaluate_against_baselines(made, other, split, PARAMS)
    with pytest.raises(DataError, match="found 0 known frauds"):
        evaluate_detector(made, other, split.test)
    frame = make_payments([12] * 150).with_columns(fraud=pl.lit(None, pl.Int64))
    with pytest.raises(DataError, match="0 known frauds, 0 known genuine"):
        evaluate_detector(made, read(frame, SCHEMA))
