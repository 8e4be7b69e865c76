"""Detectors of payments with two counterparties: which is compromised, scores live and in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.scoring.bundles import rewrite_arrays
from tests.scoring.chains import (
    BUSY,
    DEVICE,
    TERMINAL,
    combine,
    device_detector,
    device_payments,
    replay_payments,
)
from tests.scoring.detectors import time_split
from turncoat import BundleError, load
from turncoat.data.simulators.handbook import FraudProcess
from turncoat.features import Features
from turncoat.features.chains import Chains, find_compromises
from turncoat.scoring.chain_fitting import fit_causes
from turncoat.scoring.descriptions import FeatureDescriber

QUIET = FraudProcess(terminal_hazard_per_day=0, customer_hazard_per_day=0)
KINDS = ("chains", "chains+trees")
every_kind = pytest.mark.parametrize("kind", KINDS)


def learn(process: FraudProcess, *columns: str) -> Chains:
    transactions = device_payments(9000, process, columns).transactions
    return fit_causes(Features(min_count=4).fit(transactions), transactions).chains


# ---- learning


@pytest.mark.parametrize("columns", [(TERMINAL, DEVICE), (DEVICE, TERMINAL)], ids=str)
def test_only_the_compromised_counterparty_has_a_chain(columns: tuple[str, ...]) -> None:
    found = dict(zip(columns, learn(QUIET, *columns).compromise, strict=True))
    assert found[TERMINAL] is None
    chain = found[DEVICE]
    assert chain is not None
    assert chain.mean_days == pytest.approx(21, rel=0.35)
    assert chain.share == pytest.approx(0.8, abs=0.1)


def test_both_are_found_where_both_are_compromised() -> None:
    of_devices, of_terminals = learn(BUSY, DEVICE, TERMINAL).compromise
    assert of_devices is not None
    assert of_terminals is not None
    assert of_devices.mean_days == pytest.approx(21, rel=0.35)
    assert of_terminals.mean_days == pytest.approx(BUSY.terminal_window_days, rel=0.35)
    assert of_devices.share == pytest.approx(0.8, abs=0.15)
    assert of_terminals.share == pytest.approx(BUSY.terminal_fraud_share, abs=0.15)


# ---- scores


@every_kind
def test_both_sides_find_frauds(kind: str) -> None:
    data = device_payments()
    made, transactions = device_detector(kind), data.transactions
    test = time_split(transactions).test
    labels, scores = np.asarray(transactions.labels)[test], made.score(transactions)
    assert roc_auc_score(labels, scores.probability[test]) > 0.65
    causes = np.asarray(made.features_.transform(transactions).causes)[test]
    for column in find_compromises(2):
        assert roc_auc_score(labels, causes[:, column]) > 0.55


@pytest.mark.parametrize(("kind", "n_rows"), [("chains", 1500), ("chains+trees", 300)])
def test_live_scores_equal_those_of_a_file(kind: str, n_rows: int) -> None:
    """Frauds are reported at once to both, with what the causes before each explain."""
    made, data = device_detector(kind), device_payments()
    live = replay_payments(made, data, n_rows)
    scores = made.score(data.transactions, reasons="all")
    places = np.array(list(live))
    found = np.array([score.probability for score in live.values()])
    np.testing.assert_allclose(found, scores.probability[places], atol=1e-6)
    assert found.std() > 0.005
    assert scores.reasons is not None
    for place, score in list(live.items())[-100:]:
        assert [one.text for one in score.reasons] == [one.text for one in scores.reasons[place]]


def test_each_counterparty_gives_a_reason() -> None:
    made, transactions = device_detector(), device_payments().transactions
    reasons = made.score(transactions, reasons="all").reasons
    assert reasons is not None
    sources = {"customer", DEVICE, TERMINAL, "transaction"}
    assert all({one.source for one in some} == sources for some in reasons)
    causes = np.asarray(made.features_.transform(transactions).causes)
    for source, column in zip((DEVICE, TERMINAL), find_compromises(2), strict=True):
        worst = int(causes[:, column].argmax())
        (own,) = [one for one in reasons[worst] if one.source == source]
        assert causes[worst, column + 1] > 0.5
        assert own.text.startswith(f"{source} ")
        assert " probably compromised" in own.text
        assert own is reasons[worst][0]


def test_features_are_described_by_their_own_counterparty() -> None:
    plan = device_detector().features_.plan
    describer = FeatureDescriber(plan)
    sources = dict(zip(plan.continuous, describer.sources.continuous, strict=True))
    for column in (DEVICE, TERMINAL):
        assert sources[f"{column}_risk_week"] == sources[f"{column}_amount_z"] == column
        assert f"{column}_n_before" in plan.growing
    assert sources["amount_z"] == "amount"
    assert not any(name.startswith("counterparty_") for name in plan.continuous)


# ---- storage


@every_kind
def test_a_saved_detector_scores_the_same(kind: str, tmp_path: Path) -> None:
    made, transactions = device_detector(kind), device_payments().transactions
    made.save(tmp_path / "made")
    again = load(tmp_path / "made")
    assert again.digest_ == made.digest_
    assert again.features_.plan.counterparties == (DEVICE, TERMINAL)
    expected, found = made.score(transactions), again.score(transactions)
    np.testing.assert_array_equal(found.probability, expected.probability)


def test_a_regression_has_a_weight_for_each_counterparty(tmp_path: Path) -> None:
    made = combine(device_detector(), [0.7, 1.2, 0.4, 0.9], -0.3)
    transactions = device_payments().transactions
    made.save(tmp_path / "made")
    expected, found = made.score(transactions), load(tmp_path / "made").score(transactions)
    np.testing.assert_array_equal(found.probability, expected.probability)
    rewrite_arrays(tmp_path / "made", {"ranker.causes.weights": np.ones(3)})
    with pytest.raises(BundleError):
        load(tmp_path / "made")


def test_the_digest_knows_which_counterparty_has_which_chain() -> None:
    made = device_detector()
    chains = made.features_.plan.chains
    assert chains is not None
    other = made._replace_calibration(made.calibration_)
    swapped = replace(chains, compromise=chains.compromise[::-1])
    other.features_ = made.features_.add_chains(swapped)
    assert other.digest_ != made.digest_
