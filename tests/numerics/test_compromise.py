"""The counterparty's chain against matrix exponentials and sums over all hidden paths."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from scipy.linalg import expm, logm

from tests.reference.enumeration import all_paths
from turncoat.numerics.compromise import (
    CompromiseTables,
    add_evidence,
    build_compromise_tables,
    compute_label_gains,
    pass_steps,
    smooth_compromised,
    weigh_fraud,
    weigh_genuine,
)

Array = np.ndarray
PHASES = [1, 2, 4, 8]
ONSET, MEAN_DAYS, SHARE, BACKGROUND = 0.03, 9.0, 0.4, 0.01
MAX_STEPS = 2**15 - 1


def build(n_phases: int, mean_days: float = MEAN_DAYS) -> CompromiseTables:
    return build_compromise_tables(ONSET, mean_days, SHARE, BACKGROUND, n_phases)


def generator(n_phases: int, mean_days: float = MEAN_DAYS) -> Array:
    """Clean, then every phase in turn, then clean again."""
    size = n_phases + 1
    rates = np.zeros((size, size))
    for state in range(size):
        rate = ONSET if state == 0 else n_phases / mean_days
        rates[state, state] -= rate
        rates[state, (state + 1) % size] += rate
    return rates


@pytest.mark.parametrize("n_phases", PHASES)
def test_matrices_are_exponentials_of_the_rates(n_phases: int) -> None:
    chain = build(n_phases)
    assert chain.powers.shape == (15, n_phases + 1, n_phases + 1)
    for k, matrix in enumerate(chain.powers):
        np.testing.assert_allclose(
            matrix, expm(generator(n_phases) * 2**k / 4), rtol=1e-9, atol=1e-13
        )


@pytest.mark.parametrize("n_phases", PHASES)
def test_any_number_of_steps_can_pass(n_phases: int) -> None:
    chain = build(n_phases)
    start = np.random.default_rng(n_phases).dirichlet(np.ones(n_phases + 1))
    for steps in (0, 1, 2, 3, 5, 31, 100, 1000, MAX_STEPS):
        belief = start.copy()
        pass_steps(chain, belief, float(steps))
        expected = start @ expm(generator(n_phases) * steps / 4)
        np.testing.assert_allclose(belief, expected, rtol=1e-9, atol=1e-12)
        assert belief.sum() == pytest.approx(1.0, abs=1e-12)


def test_no_steps_pass_backwards_and_very_long_gaps_are_as_good_as_endless() -> None:
    chain = build(2)
    start = np.array([0.1, 0.2, 0.7])
    for steps in (-np.inf, -3.0, 0.0, 0.9):
        belief = start.copy()
        pass_steps(chain, belief, steps)
        np.testing.assert_array_equal(belief, start)
    for long in (MAX_STEPS + 1.0, 1e9, np.inf):
        belief = start.copy()
        pass_steps(chain, belief, long)
        np.testing.assert_allclose(belief, chain.initial, rtol=1e-9)


@pytest.mark.parametrize("n_phases", PHASES)
def test_a_new_counterparty_is_as_any_other_in_the_long_run(n_phases: int) -> None:
    chain = build(n_phases)
    np.testing.assert_allclose(chain.initial @ generator(n_phases), 0.0, atol=1e-15)
    assert chain.initial.sum() == pytest.approx(1.0, abs=1e-15)
    usual = ONSET * MEAN_DAYS / (1 + ONSET * MEAN_DAYS)
    assert chain.initial[1:].sum() == pytest.approx(usual, rel=1e-12)


@pytest.mark.parametrize("n_phases", [1, 2, 3, 4, 8, 16, 32, 64])
def test_phases_shape_the_length_of_a_compromise_but_not_its_mean(n_phases: int) -> None:
    mean_days = 28.0
    rates = 4 * logm(build(n_phases, mean_days).powers[0]).real[1:, 1:]  # while compromised
    waits = -np.linalg.inv(rates)
    mean, square = waits[0].sum(), 2 * (waits @ waits)[0].sum()
    assert mean == pytest.approx(mean_days, rel=1e-6)
    assert np.sqrt(square - mean**2) == pytest.approx(mean_days / np.sqrt(n_phases), rel=1e-5)


def test_many_phases_make_the_length_nearly_fixed() -> None:
    """Without new onsets, a compromise of 28 days is over between 14 and 42 days."""
    still = {}
    for n_phases in (1, 64):
        chain = build_compromise_tables(1e-12, 28.0, SHARE, BACKGROUND, n_phases)
        beliefs = []
        for days in (14.0, 42.0):
            belief = np.eye(n_phases + 1)[1]
            pass_steps(chain, belief, 4 * days)
            beliefs.append(1.0 - belief[0])
        still[n_phases] = beliefs
    assert still[64][0] > 0.999
    assert still[64][1] < 0.002
    np.testing.assert_allclose(still[1], np.exp([-0.5, -1.5]), rtol=1e-6)


def fraud_probability(is_compromised: bool, explained: float) -> float:
    """Noisy or: at least one of three causes."""
    share = SHARE if is_compromised else 0.0
    return 1.0 - (1.0 - share) * (1.0 - explained) * (1.0 - BACKGROUND)


@pytest.mark.parametrize("explained", [0.0, 1e-3, 0.3, 0.99, 1.0])
def test_labels_weigh_as_a_noisy_or_says(explained: float) -> None:
    chain = build(2)
    compromised, clean = (fraud_probability(state, explained) for state in (True, False))
    assert weigh_fraud(chain, explained) == pytest.approx(np.log(compromised / clean), abs=1e-12)
    if explained < 1:
        ratio = np.log((1 - compromised) / (1 - clean))
        assert weigh_genuine(chain) == pytest.approx(ratio, rel=1e-10)


def test_an_explained_fraud_says_less_about_the_counterparty() -> None:
    chain = build(1)
    weights = [weigh_fraud(chain, explained) for explained in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert (np.diff(weights) < 0).all()
    assert weights[-1] == 0.0
    assert weigh_genuine(chain) < 0


def test_a_fraud_that_nothing_else_explains_weighs_a_finite_amount() -> None:
    chain = build(1)._replace(background=0.0)
    assert weigh_fraud(chain, 0.0) == pytest.approx(np.log(SHARE / 1e-12))


@pytest.mark.parametrize("log_ratio", [-900.0, -3.0, -1e-9, 0.0, 1e-9, 2.0, 900.0])
def test_evidence_is_bayes_rule(log_ratio: float) -> None:
    start = np.array([0.6, 0.3, 0.1])
    belief = start.copy()
    gain = add_evidence(belief, log_ratio)
    odds = log_ratio + np.log(start[1:] / start[0])
    if abs(log_ratio) < 100:
        np.testing.assert_allclose(np.log(belief[1:] / belief[0]), odds, rtol=1e-12)
        expected = np.log(start[0] + start[1:].sum() * np.exp(log_ratio))
        assert gain == pytest.approx(expected, abs=1e-14)
    else:
        limit = [0.0, 0.75, 0.25] if log_ratio > 0 else [1.0, 0.0, 0.0]
        np.testing.assert_allclose(belief, limit, atol=1e-15)
        sure = log_ratio + np.log(0.4) if log_ratio > 0 else np.log(0.6)
        assert gain == pytest.approx(sure, rel=1e-12)
    assert belief.sum() == pytest.approx(1.0, abs=1e-15)


def test_the_order_of_evidence_does_not_matter() -> None:
    beliefs = []
    for ratios in permutations([2.5, -0.7, -0.7, 4.0]):
        belief = np.array([0.9, 0.05, 0.05])
        gains = sum(add_evidence(belief, ratio) for ratio in ratios)
        beliefs.append([*belief, gains])
    np.testing.assert_allclose(beliefs, beliefs[:1] * len(beliefs), rtol=1e-12)


Labels = list[tuple[int, int, float]]  # step, label, how far the customer's side explains it


def log_likelihood(labels: Labels, n_phases: int) -> float:
    """Of the labels of one counterparty, by a sum over the hidden states of all its steps."""
    if not labels:
        return 0.0
    first, last = labels[0][0], labels[-1][0]
    paths, move = all_paths(n_phases + 1, last - first + 1), expm(generator(n_phases) / 4)
    usual = ONSET * MEAN_DAYS / n_phases
    initial = np.array([1.0] + [usual] * n_phases)
    total = (initial / initial.sum())[paths[:, 0]]
    total = total * move[paths[:, :-1], paths[:, 1:]].prod(axis=1)
    for step, label, explained in labels:
        fraud = np.array([fraud_probability(state, explained) for state in (False, True)])
        likelihood = fraud if label == 1 else 1.0 - fraud
        total = total * likelihood[(paths[:, step - first] > 0).astype(int)]
    return float(np.log(total.sum()))


def log_likelihood_if_clean(labels: Labels) -> float:
    fraud = [fraud_probability(False, explained) for _, _, explained in labels]
    known = [label for _, label, _ in labels]
    return float(np.log(np.where(np.array(known) == 1, fraud, 1 - np.array(fraud))).sum())


HISTORIES: list[Labels] = [
    [(3, 1, 0.0), (3, 0, 0.0), (4, 1, 0.2), (6, 1, 0.0)],
    [(0, 0, 0.0)],
    [(5, 1, 0.9), (8, 0, 0.0), (8, 0, 0.0), (8, 1, 0.0)],
]


@pytest.mark.parametrize("n_phases", [1, 2, 3])
@pytest.mark.parametrize("counts_from", [-np.inf, 0.0, 4.0, 6.0, 7.0, 99.0])
def test_label_gains_are_sums_over_all_paths(n_phases: int, counts_from: float) -> None:
    chain = build(n_phases)
    starts, steps, ratios, expected = [0], [], [], []
    for labels in HISTORIES:
        for step in sorted({step for step, _, _ in labels}):
            own = [(label, explained) for s, label, explained in labels if s == step]
            steps.append(float(step))
            ratios.append(
                sum(weigh_fraud(chain, e) if label else weigh_genuine(chain) for label, e in own)
            )
        starts.append(len(steps))
        before = [one for one in labels if one[0] < counts_from]
        gain = log_likelihood(labels, n_phases) - log_likelihood_if_clean(labels)
        if before:
            gain -= log_likelihood(before, n_phases) - log_likelihood_if_clean(before)
        expected.append(gain)
    data = np.array(starts), np.array(steps), np.array(ratios)
    found = compute_label_gains(*data, chain, counts_from)
    np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("n_phases", [1, 2])
def test_hindsight_is_a_sum_over_all_paths_without_the_steps_own_labels(n_phases: int) -> None:
    rng = np.random.default_rng(n_phases)
    chain = build_compromise_tables(0.1, 3.0, 0.7, 0.01, n_phases)
    steps, ratios = np.array([0.0, 1.0, 4.0, 6.0]), rng.normal(0.0, 2.0, 4)
    found = smooth_compromised(np.array([0, 4]), steps, ratios, chain)
    moves = [np.linalg.matrix_power(chain.powers[0], int(gap)) for gap in np.diff(steps)]
    for left_out in range(4):
        weights = np.zeros(2)  # of paths that are clean and compromised in the step
        for path in product(range(n_phases + 1), repeat=4):
            weight = chain.initial[path[0]]
            for move, before, after in zip(moves, path[:-1], path[1:], strict=True):
                weight *= move[before, after]
            for place, state in enumerate(path):
                weight *= np.exp(ratios[place]) if state and place != left_out else 1.0
            weights[int(path[left_out] > 0)] += weight
        assert found[left_out] == pytest.approx(weights[1] / weights.sum(), abs=1e-12)
