"""A study of a file with unknown labels: all rows are history, labelled ones are judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.metrics import average_precision_score

from tests.evaluation.samples import SCHEMA, make_portfolio
from turncoat import DataError
from turncoat.data import Transactions, read
from turncoat.data.splits import DAY
from turncoat.evaluation.candidates import ScoreColumn, calibrate
from turncoat.evaluation.evaluator import Evaluator, evaluate
from turncoat.evaluation.protocols import CALIBRATION, TEST, TRAIN
from turncoat.evaluation.results import Results
from turncoat.evaluation.settings import StudySettings
from turncoat.evaluation.study import Study, run_study

QUIET = Console(quiet=True)
QUICK = StudySettings(
    tiers=("variational",),
    states=3,
    n_restarts=1,
    max_iter=10,
    n_trials=0,
    n_resamples=40,
    seeds=(1,),
    include=("paid", "amount_to_mean", "count_hour", "device"),
)


def partly_labelled() -> Transactions:
    transactions = read(make_portfolio(), SCHEMA)
    is_known = np.random.default_rng(5).random(transactions.n_rows) < 0.7
    labels = np.where(is_known, transactions.labels, -1).astype(np.int8)
    return replace(transactions, labels=labels)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Results]:
    folder = tmp_path_factory.mktemp("run") / "study"
    found = run_study(partly_labelled(), QUICK, folder, QUIET)
    return found, evaluate(found)


def test_only_labelled_rows_are_judged(studied: tuple[Study, Results]) -> None:
    study, results = studied
    fold = study.folds[0]
    labels = fold.labels(TEST)
    known = labels >= 0
    assert 0 < known.sum() < len(known)
    for name in ("variational, corrected, filtered", "XGBoost", "hybrid"):
        scores = study.scores(0, 1, name)[TEST]
        assert len(scores) == len(labels), "all rows are scored"
        one = next(one for one in results.candidates if one.name == name)
        expected = average_precision_score(labels[known], scores[known])
        assert one.metrics["average_precision"].value == pytest.approx(expected, rel=1e-9)
    (scored,) = Evaluator(study).scored("XGBoost", 1)
    np.testing.assert_array_equal(scored.customers, fold.customers(TEST)[known])
    every = np.asarray(study.transactions.labels)
    assert results.data.fraud_rate == pytest.approx(every[every >= 0].mean())
    part = next(part for part in results.parts if part.part == "test")
    assert (part.n_rows, part.n_unlabelled) == (len(labels), int((~known).sum()))
    assert part.n_frauds == (labels == 1).sum()
    assert results.summary is not None
    traffic = results.summary.traffic
    assert (traffic.n_rows, traffic.n_frauds) == (known.sum(), (labels == 1).sum())
    times = np.floor(study.transactions.times / DAY)
    days = times[fold.rows(TEST)]
    inside = (times >= days.min()) & (times <= days.max())
    assert traffic.scale == pytest.approx(inside.sum() / known.sum())
    assert traffic.fraud_rate == pytest.approx(every[inside & (every >= 0)].mean())
    assert traffic.frauds_per_month == pytest.approx(30 * traffic.fraud_rate * traffic.rows_per_day)


def test_baselines_and_calibrators_learn_from_labelled_rows(studied: tuple[Study, Results]) -> None:
    fold = studied[0].folds[0]
    known = fold.known(TRAIN)
    rows = fold.training_rows(fold.columns[TRAIN])
    np.testing.assert_array_equal(rows.labels, fold.labels(TRAIN)[known])
    np.testing.assert_array_equal(rows.columns, fold.columns[TRAIN][known])
    np.testing.assert_array_equal(rows.customers, fold.customers(TRAIN)[known])
    assert set(rows.labels.tolist()) == {0, 1}
    scores = studied[0].scores(0, 1, "XGBoost")
    column = ScoreColumn("XGBoost", "baseline", "probability", True)
    _, expected = calibrate(column, "isotonic", fold, scores)
    moved = scores[CALIBRATION].copy()
    moved[~fold.known(CALIBRATION)] = 0.99
    _, found = calibrate(column, "isotonic", fold, scores | {CALIBRATION: moved})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("label", [0, 1])
def test_a_part_that_cannot_be_judged_is_refused_with_its_counts(
    label: int, tmp_path: Path
) -> None:
    transactions = partly_labelled()
    protocol = replace(QUICK.protocol, name="chronological", label_delay_days=0.0)
    settings = replace(QUICK, protocol=protocol)
    labels = np.asarray(transactions.labels).copy()
    late = transactions.times > np.quantile(transactions.times, 0.849)
    if label:
        labels[late] = 1  # if most were unknown, these days would be open and in no part
    else:
        labels[late & (labels == 1)] = -1
    counts = r"\d+ known frauds, 0 known genuine and \d+ unlabelled rows"
    if label == 0:
        counts = r"no fraud among \d+ rows with a label \(\d+ in all\)"
    with pytest.raises(DataError, match=rf"test (part )?has {counts}"):
        run_study(replace(transactions, labels=labels), settings, tmp_path / "run", QUIET)
    assert not (tmp_path / "run").exists()
