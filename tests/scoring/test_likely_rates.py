"""Fraud rates of regimes that maximise the likelihood of the labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests.scoring.simulated import measure_regimes
from turncoat.scoring import Regimes
from turncoat.scoring.regimes import BETA_PRIOR, PRIOR_ROWS

RATES = np.array([0.02, 0.3, 0.7])


def draw(n_rows: int, softness: float, seed: int, rates: np.ndarray = RATES) -> Any:
    """Beliefs, and labels that are frauds with the chance that the beliefs give."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(len(rates), softness), n_rows)
    return probs, (rng.random(n_rows) < probs @ rates).astype(np.int8)


def measure(probs: Any, labels: Any, lengths: Any = None) -> Regimes:
    return measure_regimes(probs, labels, lengths, by_likelihood=True)


def compute_loss(rates: np.ndarray, probs: np.ndarray, labels: np.ndarray) -> float:
    """-log P(labels, rates): every regime has seen `PRIOR_ROWS` rows at the overall rate."""
    overall = (labels.sum() + BETA_PRIOR) / (len(labels) + 2 * BETA_PRIOR)
    chances = np.where(labels == 1, probs @ rates, 1 - probs @ rates)
    prior = overall * np.log(rates) + (1 - overall) * np.log1p(-rates)
    return float(-np.log(chances).sum() - PRIOR_ROWS * prior.sum())


@pytest.mark.parametrize(("n_rows", "softness"), [(60, 1.0), (300, 0.3), (300, 2.0), (2000, 4.0)])
def test_rates_maximise_the_likelihood_of_the_labels(n_rows: int, softness: float) -> None:
    for seed in range(3):
        rows = draw(n_rows, softness, seed)
        found = measure(*rows)
        start, bounds = np.full(3, 0.4), [(1e-6, 1 - 1e-6)] * 3
        options = {"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000}
        best = minimize(compute_loss, start, rows, bounds=bounds, options=options)
        np.testing.assert_allclose(found.mean_rates, best.x, atol=1e-3)
        assert compute_loss(found.mean_rates, *rows) <= best.fun + 1e-4
        assert found.frauds.sum() == pytest.approx(rows[1].sum())
        np.testing.assert_allclose(found.predict(rows[0])[0], rows[0] @ found.mean_rates)


def test_soft_counts_draw_rates_together_and_the_likelihood_does_not() -> None:
    probs, labels = draw(20_000, 1.0, 0)
    likely, soft = measure(probs, labels), measure_regimes(probs, labels)
    np.testing.assert_allclose(likely.rates, RATES, atol=0.03)
    assert np.ptp(soft.rates) < 0.6 * np.ptp(RATES)
    other, truth = draw(20_000, 1.0, 1)
    for belief, label in ((probs, labels), (other, truth)):  # where measured, and elsewhere
        scores, drawn = likely.predict(belief)[0], soft.predict(belief)[0]
        order = np.array_split(np.argsort(scores), 10)
        gaps = [abs(scores[rows].mean() - label[rows].mean()) for rows in order]
        assert np.mean(gaps) < 0.01
        gaps = [abs(drawn[rows].mean() - label[rows].mean()) for rows in order]
        assert np.mean(gaps) > 0.05


def test_sure_beliefs_give_the_counts() -> None:
    labels = np.r_[np.ones(4), np.zeros(36), np.ones(5), np.zeros(5)]
    regimes = measure(np.repeat(np.eye(2), [40, 10], axis=0), labels)
    np.testing.assert_allclose(regimes.mean_rates, [(4 + 9.5 / 51) / 41, (5 + 9.5 / 51) / 11])
    np.testing.assert_allclose(regimes.evidence, [40, 10], rtol=0.05)
    np.testing.assert_allclose(regimes.correlation, np.eye(2), atol=1e-9)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 200), st.sampled_from([0, 0.1, 1]))
@settings(deadline=None, max_examples=60)
def test_figures_stay_finite_and_evidence_is_at_most_the_mass(
    seed: int, n_states: int, n_rows: int, rate: float
) -> None:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(n_states, rng.choice([0.01, 0.3, 5.0])), n_rows)
    if n_states > 1:
        probs = np.column_stack([np.zeros(n_rows), probs[:, :-1]])  # an empty regime
        probs[probs.sum(axis=1) == 0, -1] = 1.0
        probs /= probs.sum(axis=1, keepdims=True)
    labels = (rng.random(n_rows) < rate).astype(np.int8)
    first = rng.integers(1, n_rows) if n_rows > 2 else 1
    regimes = measure(probs, labels, [first, n_rows - first])
    regimes.check(n_states)
    assert ((regimes.mean_rates > 0) & (regimes.mean_rates < 1)).all()
    assert (regimes.evidence <= regimes.mass * (1 + 1e-12)).all()
    for values in (*regimes.interval(), regimes.rate_variances, *regimes.predict(probs)):
        assert np.isfinite(values).all()
    low, high = regimes.interval()
    assert ((low <= regimes.mean_rates) & (regimes.mean_rates <= high)).all()


def test_evidence_shrinks_where_customers_rows_are_alike_or_beliefs_are_unsure() -> None:
    probs, labels = draw(600, 0.3, 2)
    independent, copies = (
        measure(probs, labels),
        [np.repeat(x, 10, axis=0) for x in (probs, labels)],
    )
    assert (independent.evidence < independent.mass).all()
    alike = measure(*copies, np.full(600, 10))
    np.testing.assert_allclose(alike.rates, independent.rates, atol=0.02)
    np.testing.assert_allclose(alike.evidence, independent.evidence, rtol=0.3)
    assert (measure(*copies).evidence > 7 * independent.evidence).all()  # of other customers
    unsure = measure(*draw(600, 5.0, 2))
    assert unsure.evidence.sum() < 0.5 * independent.evidence.sum()


def test_intervals_cover_the_rates() -> None:
    inside = []
    for seed in range(60):
        low, high = measure(*draw(1500, 0.5, seed)).interval(0.9)
        inside.append((low <= RATES) & (high >= RATES))
    assert 0.82 < np.mean(inside) <= 0.98


def test_regimes_without_fraud_are_known_to_have_little() -> None:
    """Also where a regime can hardly be told from another one: both have no fraud."""
    rng = np.random.default_rng(4)
    share = rng.uniform(0.3, 0.7, 900)
    genuine = np.column_stack([share, 1 - share, np.zeros(900)])
    probs = np.vstack([genuine, np.tile([0.0, 0.0, 1.0], (40, 1))])
    low, high = measure(probs, np.repeat([0, 1], [900, 40])).interval(0.9)
    assert (high[:2] < 0.05).all()
    assert low[2] > 0.9


def test_an_update_is_between_both_and_forgets_with_keep_0() -> None:
    (old_probs, old_labels), new_rows = draw(2000, 0.5, 0), draw(2000, 0.5, 1, RATES[::-1])
    old, new = measure(old_probs, old_labels), measure(*new_rows)
    both = old.update(new)
    assert both.by_likelihood
    low, high = np.minimum(old.rates, new.rates), np.maximum(old.rates, new.rates)
    assert ((both.rates >= low) & (both.rates <= high)).all()
    np.testing.assert_allclose(both.evidence, old.evidence + new.evidence)
    np.testing.assert_allclose(old.update(new, keep=0.0).mean_rates, new.mean_rates)
    again = old.update(old)  # twice the rows, and the prior still counts once
    np.testing.assert_allclose(again.rates, old.rates)
    both.check(3)


def test_an_update_without_evidence_keeps_the_rates() -> None:
    """Few customers whose rows are all alike are worth less than the prior."""
    rng = np.random.default_rng(0)
    probs = np.repeat(rng.dirichlet(np.full(3, 20.0), 8), 30, axis=0)
    labels = np.repeat([1, 0, 0, 1, 0, 1, 0, 0], 30)
    regimes = measure(probs, labels, np.full(8, 30))
    assert (regimes.evidence < PRIOR_ROWS).any()
    updated = regimes.update(regimes)
    np.testing.assert_allclose(updated.rates, regimes.rates)
    assert (updated.mean_rates > 0).all()
