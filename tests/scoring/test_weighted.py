"""A detector with evidence weights: scores, reasons, storage, further labels and refits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from tests.evaluation.samples import SCHEMA, make_portfolio
from tests.features.sample_data import DAY, Data, of_frame
from tests.scoring.detectors import (
    TREES,
    customers_split,
    forward,
    log_terms,
    model_of,
    replay_scores,
    time_split,
)
from turncoat import ConfigError, Detector, load
from turncoat.features import Features
from turncoat.scoring import evidence
from turncoat.scoring.descriptions import FeatureDescriber

KINDS = [
    ("regimes", "per-row"),
    ("ranker", "per-row"),
    ("hybrid", "per-row"),
    ("hybrid", "continuous"),
]
every_kind = pytest.mark.parametrize(("kind", "transitions"), KINDS)


@cache
def portfolio() -> Data:
    return of_frame(make_portfolio(48), SCHEMA)


@cache
def weighted(kind: str = "regimes", transitions: str = "per-row") -> Detector:
    """A detector whose chain is fitted on some of the columns; tests must not change it."""
    transactions = portfolio().transactions
    split, features = time_split(transactions), Features(min_count=4)
    names = sum(features.fit(transactions.take(split.fit)).feature_names, ())
    used = ("paid", "amount_z", "count_hour", "since_last", "device", "counterparty_risk_day")
    assert set(used) <= set(names)
    chain: dict[str, Any] = {"max_iter": 20, "transitions": transitions}
    model = model_of("robust", 3, weights=[float(name in used) for name in names], **chain)
    settings: dict[str, Any] = {"supervision": "anchored", "evidence": "weighted"}
    return Detector(features, model, kind=kind, trees=TREES, **settings).fit(transactions, split)


def test_the_weights_are_learnt_for_the_columns_of_the_chain() -> None:
    made = weighted()
    weights, given = np.array(made.model_.weights), np.array(made.model.weights)
    assert (weights[given == 0] == 0).all()
    assert len(set(weights[weights > 0])) > 2
    effects = made.model_.limit_field_effects()
    assert 0 < effects.max() <= evidence.MAX_EFFECT * (1 + 1e-9)
    assert (effects[weights == 0] == 0).all()
    assert made.model_.temperature == 1.0
    assert all(regimes.by_likelihood for regimes in made.calibration_.regimes.values())
    assert made.calibration_.in_sample.by_likelihood
    transactions = portfolio().transactions
    test = time_split(transactions).test
    scores = made.score(transactions).probability[test]
    assert roc_auc_score(transactions.labels[test], scores) > 0.9


@every_kind
def test_live_scores_equal_those_of_a_file(kind: str, transitions: str) -> None:
    made, data = weighted(kind, transitions), portfolio()
    scores, live = made.score(data.transactions), replay_scores(made, data)
    found = np.array([score.probability for score in live])
    np.testing.assert_allclose(found, scores.probability, atol=1e-6)
    intervals = np.array([score.interval for score in live])
    np.testing.assert_allclose(intervals, np.transpose(scores.interval()), atol=1e-6)


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_reasons_add_up_and_name_no_column_without_weight(transitions: str) -> None:
    made, transactions = weighted(transitions=transitions), portfolio().transactions
    customer = str(transactions.keys[np.diff(transactions.offsets).argmax()])
    own = np.flatnonzero(np.repeat(transactions.keys, np.diff(transactions.offsets)) == customer)
    panel = made.features_.transform(transactions, rows=own)
    beliefs = forward(*log_terms(made.model_, panel))
    star = made.regimes.fraud_state
    expected = beliefs[:, star] - np.delete(beliefs, star, axis=1).max(axis=1)
    explained = [score for _, score in made.explain(transactions, customer)]
    totals = [sum(reason.log_odds for reason in score.reasons) for score in explained]
    np.testing.assert_allclose(totals, expected, atol=1e-6)
    sources = FeatureDescriber(made.features_.plan, "").sources
    columns = zip((*sources.continuous, *sources.categorical), made.model_.weights, strict=True)
    named = {"history", "average transaction", *(name for name, weight in columns if weight > 0)}
    assert len(named) < len(sources.names)
    found = {r.source for score in explained for r in score.reasons if r.log_odds != 0.0}
    assert found <= named
    assert {"amount", "device"} <= found


@every_kind
def test_a_saved_detector_scores_updates_and_refits_alike(
    kind: str, transitions: str, tmp_path: Path
) -> None:
    made, transactions = weighted(kind, transitions), portfolio().transactions
    made.save(tmp_path / "made")
    again, split = load(tmp_path / "made"), time_split(transactions)
    assert (again.evidence, again.digest_) == ("weighted", made.digest_)
    assert again.model_.weights == made.model_.weights
    assert again.regimes.by_likelihood
    expected, found = made.score(transactions), again.score(transactions)
    np.testing.assert_array_equal(found.probability, expected.probability)
    np.testing.assert_array_equal(found.variance, expected.variance)
    first, second = made.refit(transactions, split), again.refit(transactions, split)
    assert (second.kind, second.evidence, second.n_fraud_states) == (kind, "weighted", 1)
    assert second.model_.weights == first.model_.weights
    probability = second.score(transactions).probability
    np.testing.assert_array_equal(probability, first.score(transactions).probability)
    np.testing.assert_allclose(probability.mean(), expected.probability.mean(), rtol=0.3)
    test = split.test
    assert roc_auc_score(transactions.labels[test], probability[test]) > 0.9


def test_a_refit_uses_other_rows_and_keeps_the_columns() -> None:
    made, transactions = weighted(), portfolio().transactions
    whole = time_split(transactions)
    split = replace(whole, fit=np.union1d(whole.fit, whole.test), test=np.empty(0, np.int64))
    other = made.refit(transactions, split)
    assert other.digest_ != made.digest_
    assert other.calibration_.in_sample.n_rows > made.calibration_.in_sample.n_rows
    unused = np.array(made.model_.weights) == 0
    assert (np.array(other.model_.weights)[unused] == 0).all()


@every_kind
def test_recalibration_moves_the_rates_to_the_labels(kind: str, transitions: str) -> None:
    made, transactions = weighted(kind, transitions), portfolio().transactions
    scores = made.score(transactions)
    ranks = made._rank(transactions, made.features_.transform(transactions))
    labels = np.ones(transactions.n_rows, np.int8)
    labels[::2] = 0
    rows = scores.belief, labels, transactions.offsets, ranks
    other = made.recalibrate(*rows, keep=0.0)
    assert other.regimes.by_likelihood
    assert other.digest_ == made.digest_
    found = other.score(transactions).probability
    assert found.mean() == pytest.approx(0.5, abs=0.05) != scores.probability.mean()
    same = made.recalibrate(scores.belief, transactions.labels, transactions.offsets, ranks)
    assert same.score(transactions).probability.mean() == pytest.approx(
        transactions.labels.mean(), rel=0.3
    )


def test_weights_need_anchored_states_a_selection_part_and_no_temperature() -> None:
    transactions = portfolio().transactions
    split = time_split(transactions)
    model = model_of("robust", 3)
    anchored = Detector(model=model, supervision="anchored", evidence="weighted")
    with pytest.raises(ConfigError, match="use supervision='anchored'"):
        Detector(model=model, evidence="weighted").fit(transactions, split)
    with pytest.raises(ConfigError, match="a temperature is equal weights for all"):
        anchored.set_params(temperature="auto").check_settings()
    empty = replace(split, selection=np.empty(0, np.int64))
    with pytest.raises(ConfigError, match="no selection part to choose"):
        anchored.set_params(temperature=1.0).fit(transactions, empty)
    with pytest.raises(ConfigError, match="evidence"):
        Detector(evidence="some").check_settings()


@pytest.mark.parametrize("kind", ["regimes", "ranker", "hybrid"])
def test_a_refit_takes_categories_and_flags_that_were_not_there_before(kind: str) -> None:
    """Later rows have a new device, first by name, and the first missing ages."""
    frame = make_portfolio(48)
    is_late = frame["at"] > 60 * DAY
    ages = frame["age"].fill_nan(40.0)
    frame = frame.with_columns(
        age=pl.when(is_late & (pl.col("id") % 3 == 0)).then(float("nan")).otherwise(ages),
        device=pl.when(is_late & (pl.col("id") % 2 == 0))
        .then(pl.lit("console"))
        .otherwise("device"),
    )
    transactions = of_frame(frame, SCHEMA).transactions
    early = np.flatnonzero(transactions.times <= 60 * DAY)
    first = transactions.take(early)
    features, used = Features("processed", min_count=4), ("paid", "device")
    names = sum(features.fit(first.take(customers_split(first).fit)).feature_names, ())
    model = model_of("robust", 3, max_iter=20, weights=[float(name in used) for name in names])
    settings: dict[str, Any] = {"supervision": "anchored", "evidence": "weighted", "kind": kind}
    made = Detector(features, model, trees=TREES, **settings).fit(first, customers_split(first))
    other = made.refit(transactions, customers_split(transactions))
    assert other.features_.plan.n_categories != made.features_.plan.n_categories
    weights = dict(zip(sum(other.features_.feature_names, ()), other.model_.weights, strict=True))
    assert {name for name, weight in weights.items() if weight > 0} <= set(used)
    assert np.isfinite(other.score(transactions).probability).all()
