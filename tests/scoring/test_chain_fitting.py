"""Learning two-sided chains: what a simulated process has is recovered, what it lacks is not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tests.scoring.chains import AMOUNT, BUSY, TERMINAL, chains_detector, payments, with_labels
from tests.scoring.detectors import time_split
from turncoat import DataError
from turncoat.data.reading import read
from turncoat.data.simulators.handbook import FraudProcess, simulate_handbook
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.chains import Chains, find_compromises, pack_chains
from turncoat.scoring.chain_fitting import FittedCauses, combine_causes, fit_causes, learn_causes

NO_TERMINALS = FraudProcess(terminal_hazard_per_day=0, customer_hazard_per_day=4e-3)
NO_CUSTOMERS = FraudProcess(terminal_hazard_per_day=2e-3, customer_hazard_per_day=0)
SHORT = FraudProcess(
    terminal_hazard_per_day=4e-3,
    terminal_window_days=5,
    customer_hazard_per_day=4e-3,
    customer_window_days=5,
)
WEAK = FraudProcess(
    terminal_hazard_per_day=2e-3,
    terminal_fraud_share=0.5,
    customer_hazard_per_day=3e-3,
    customer_fraud_share=0.6,
)
PROCESSES = {"busy": BUSY, "short": SHORT, "weak": WEAK}
every_process = pytest.mark.parametrize("name", list(PROCESSES))


def learn(transactions: Transactions, seed: int = 0) -> FittedCauses:
    return fit_causes(Features(min_count=4).fit(transactions), transactions, seed)


@cache
def learn_process(process: FraudProcess, seed: int = 1) -> Chains:
    return learn(payments(12_000, seed, 90, process).transactions).chains


def list_numbers(causes: FittedCauses) -> dict[str, Any]:
    """Everything that was learnt, as plain values."""
    content, arrays = pack_chains(causes.chains)
    card = vars(causes.scorecard)
    listed = {name: np.asarray(value).tolist() for name, value in {**arrays, **card}.items()}
    return {**listed, "chains": content}


# ---- recovery


@every_process
def test_the_length_and_share_of_compromises_are_recovered(name: str) -> None:
    process = PROCESSES[name]
    (found,) = learn_process(process).compromise
    assert found is not None
    found.check()
    assert found.mean_days == pytest.approx(process.terminal_window_days, rel=0.35)
    assert found.share == pytest.approx(process.terminal_fraud_share, abs=0.15)
    hazard = process.terminal_hazard_per_day
    assert hazard / 2 < found.onsets_per_day < 2 * hazard


@every_process
def test_the_length_and_share_of_intrusions_are_recovered(name: str) -> None:
    process = PROCESSES[name]
    found = learn_process(process).intruder
    assert found is not None
    found.check()
    days = process.customer_window_days
    assert days / 2 < 1 / found.ends_per_day < 2 * days
    assert found.share == pytest.approx(process.customer_fraud_share, abs=0.15)
    hazard = process.customer_hazard_per_day
    assert hazard / 3 < found.onsets_per_day < 3 * hazard


def test_windows_of_a_fixed_length_have_more_phases_than_random_ones() -> None:
    (fixed,) = learn_process(NO_CUSTOMERS).compromise
    lengths = replace(NO_CUSTOMERS, window_distribution="exponential")
    (random,) = learn_process(lengths).compromise
    assert fixed is not None
    assert random is not None
    assert fixed.n_phases >= 4
    assert random.n_phases <= 2


def test_the_intruder_s_amounts_are_those_far_above_the_usual() -> None:
    found = learn_process(BUSY).intruder
    assert found is not None
    usual, large = found.log_ratios[0, -1, 32], found.log_ratios[0, -1, 48]  # surprises 0 and 4
    assert large > 2
    assert usual < 0


# ---- nothing to find


def test_without_a_counterparty_effect_there_is_no_compromise_chain() -> None:
    for seed in (1, 3):
        found = learn_process(NO_TERMINALS, seed)
        assert found.compromise == (None,)
        assert found.intruder is not None
        assert found.intruder.share > 0.2


def test_without_a_customer_effect_few_transactions_are_an_intruder_s() -> None:
    found = learn_process(NO_CUSTOMERS).intruder
    if found is not None:
        pace = found.onsets_per_day + found.ends_per_day
        assert found.share * found.onsets_per_day / pace < 1e-3


def test_labels_at_random_make_no_counterparty_suspicious() -> None:
    transactions = payments(6000).transactions
    labels = np.random.default_rng(0).permutation(np.asarray(transactions.labels))
    shuffled = with_labels(transactions, labels)
    features = Features(min_count=4).fit(shuffled)
    chains = fit_causes(features, shuffled).chains
    panel = features.add_chains(chains).transform(shuffled)
    assert panel.causes is not None
    assert panel.causes[:, find_compromises(1)].max() < 0.3


def test_without_an_amount_there_is_no_intruder_chain() -> None:
    frame = simulate_handbook(6000, 1, n_days=90, process=BUSY)["transactions"]
    named = payments(6000).transactions
    unnamed = replace(named, schema=replace(named.schema, amount=None))
    missing = read(frame.with_columns(TX_AMOUNT=float("nan")), "handbook")
    for transactions in (unnamed, missing):
        found = learn(transactions).chains
        assert found.intruder is None
        assert found.compromise != (None,)
    assert AMOUNT in named.schema.continuous


def test_without_a_counterparty_there_is_no_compromise_chain() -> None:
    transactions = payments(6000).transactions
    assert transactions.schema.counterparties == (TERMINAL,)
    alone = replace(transactions, schema=replace(transactions.schema, counterparties=()))
    found = learn(alone).chains
    assert found.compromise == ()
    assert found.intruder is not None


def test_a_handful_of_frauds_makes_no_compromise_chain() -> None:
    transactions = payments(6000).transactions
    labels = np.asarray(transactions.labels)
    few = np.flatnonzero(labels == 1)[:9]
    found = learn(with_labels(transactions, np.isin(np.arange(6000), few))).chains
    assert found.compromise == (None,)


def test_labels_are_needed() -> None:
    transactions = payments(6000).transactions
    features = Features(min_count=4).fit(transactions)
    with pytest.raises(DataError, match="learning the causes of fraud needs labels"):
        fit_causes(features, replace(transactions, labels=None))


# ---- unknown labels


def test_unknown_labels_count_neither_as_genuine_nor_as_fraud() -> None:
    """If they counted as genuine, half of a compromised terminal's payments would be."""
    transactions = payments().transactions
    is_known = np.random.default_rng(0).random(transactions.n_rows) < 0.5
    hidden = with_labels(transactions, np.where(is_known, np.asarray(transactions.labels), -1))
    found = learn(hidden).chains
    (compromise,) = found.compromise
    assert compromise is not None
    assert compromise.share > 0.85
    assert compromise.mean_days == pytest.approx(28, rel=0.35)
    assert found.intruder is not None
    assert found.intruder.share == pytest.approx(1 / 3, abs=0.2)


def test_transactions_of_unknown_label_are_history() -> None:
    """Amounts of rows without a label still shape the owners' profiles."""
    transactions = payments(6000).transactions
    is_known = transactions.times > np.quantile(transactions.times, 0.3)
    labels = np.where(is_known, np.asarray(transactions.labels), -1)
    with_history = learn(with_labels(transactions, labels)).chains.intruder
    without = learn(
        with_labels(transactions, labels).take(np.flatnonzero(is_known))
    ).chains.intruder
    assert with_history is not None
    assert without is not None
    assert not np.array_equal(with_history.priors, without.priors)


# ---- stable results


def test_a_seed_gives_the_same_causes() -> None:
    transactions = payments(6000).transactions
    assert list_numbers(learn(transactions, 3)) == list_numbers(learn(transactions, 3))


def test_the_order_of_the_file_does_not_matter() -> None:
    frame = simulate_handbook(6000, 1, n_days=90, process=BUSY)["transactions"]
    mixed = read(frame.sample(fraction=1.0, shuffle=True, seed=7), "handbook")
    first, second = learn(payments(6000).transactions).chains, learn(mixed).chains
    (one,), (other,) = first.compromise, second.compromise
    assert one is not None
    assert other is not None
    assert one.mean_days == pytest.approx(other.mean_days, rel=1e-6)
    assert first.intruder is not None
    assert second.intruder is not None
    assert first.intruder.share == pytest.approx(second.intruder.share, rel=1e-6)


def test_chains_of_a_fit_are_valid_and_the_scorecard_fits_the_panel() -> None:
    transactions = payments(6000).transactions
    features = Features(min_count=4).fit(transactions)
    chains, card = fit_causes(features, transactions)
    chains.check()
    card.check(len(features.plan.continuous), features.plan.n_categories)
    columns = features.plan.continuous + features.plan.categorical
    used = {columns[column] for column in card.columns}
    assert AMOUNT in used  # scenario 1: every large amount is fraud
    assert not any(name.startswith("counterparty_") for name in used)


def test_risks_of_independent_causes_combine() -> None:
    risks = np.array([0.0, 0.5, 1.0]), np.array([0.2, 0.5, 0.3])
    np.testing.assert_allclose(combine_causes(*risks), [0.2, 0.75, 1.0])
    np.testing.assert_allclose(combine_causes(risks[1]), risks[1])


def test_a_detector_with_learnt_causes_is_the_one_that_learns_them() -> None:
    transactions = payments().transactions
    split = time_split(transactions)
    expected = chains_detector("chains+trees")
    features = Features(min_count=4).fit(transactions.take(split.fit))
    seed = expected.model_.random_state
    causes = learn_causes(features, transactions, split, seed, with_trees=True)
    for kind in ("chains", "chains+trees"):
        expected = chains_detector(kind)
        given = clone(expected).fit(transactions, split, causes)
        found = given.score(transactions).probability
        np.testing.assert_array_equal(found, expected.score(transactions).probability)
