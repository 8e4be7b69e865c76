"""The oracles against each other, hmmlearn and numerical integration.

Nothing here touches Turncoat.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM, GaussianHMM
from scipy.integrate import dblquad, quad
from scipy.stats import beta, gamma, multivariate_t, norm

from .enumeration import log
from .evidence import (
    Hyper,
    chain_log_evidence,
    dirichlet_kl,
    dirichlet_log_evidence,
    exact_log_evidence,
    iid_log_evidence,
    normal_gamma_kl,
    normal_gamma_log_evidence,
    total_kl,
    update,
)
from .logdomain import viterbi
from .problems import random_factors, random_problem, stack


@pytest.mark.parametrize("seed", range(6))
def test_enumeration_equals_log_domain_recursions(seed: int) -> None:
    problem = random_problem(
        seed,
        3,
        2,
        (2, 3),
        (5, 1, 3),
        missing=0.2,
        zeros=seed % 2 == 1,
        noise=(None, 0.0, 0.1)[seed % 3],
    )
    slow, fast = problem.enumerate(), problem.forward_backward()
    for a, b in zip(slow, fast, strict=True):
        assert a.log_likelihood == pytest.approx(b.log_likelihood, rel=1e-12)
        np.testing.assert_allclose(a.filtered, b.filtered, atol=1e-12)
        np.testing.assert_allclose(a.smoothed, b.smoothed, atol=1e-12)
        np.testing.assert_allclose(a.transitions, b.transitions, atol=1e-12)
        np.testing.assert_allclose(a.smoothed.sum(axis=1), 1, atol=1e-12)
    for part, a in zip(problem.split(problem.log_emission()), slow, strict=True):
        np.testing.assert_array_equal(
            viterbi(log(problem.initial), log(problem.transition), part), a.path
        )


def test_enumeration_equals_hmmlearn() -> None:
    problem = random_problem(0, 3, 2, (), (6, 4, 1))
    peer = GaussianHMM(3, "diag")
    peer.startprob_, peer.transmat_, peer.means_, peer.covars_ = (
        problem.initial,
        problem.transition,
        problem.means,
        problem.variances,
    )
    score, posteriors = peer.score_samples(problem.continuous, problem.lengths)
    assert sum(e.log_likelihood for e in problem.enumerate()) == pytest.approx(score, rel=1e-10)
    np.testing.assert_allclose(
        stack(problem.enumerate(), lambda e: e.smoothed), posteriors, atol=1e-10
    )
    np.testing.assert_array_equal(
        stack(problem.enumerate(), lambda e: e.path),
        peer.predict(problem.continuous, problem.lengths),
    )

    problem = random_problem(1, 2, 0, (4,), (6, 5))
    peer = CategoricalHMM(2)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = (
        problem.initial,
        problem.transition,
        problem.category_probs[0],
    )
    peer.n_features = 4
    score, posteriors = peer.score_samples(problem.categorical, problem.lengths)
    assert sum(e.log_likelihood for e in problem.enumerate()) == pytest.approx(score, rel=1e-10)
    np.testing.assert_allclose(
        stack(problem.enumerate(), lambda e: e.smoothed), posteriors, atol=1e-10
    )


def test_normal_gamma_evidence_is_a_multivariate_t() -> None:
    """Integrating the mean first leaves a multivariate Student-t.

    Another route to the same number.
    """
    prior = Hyper(mean=0.3, mean_strength=0.7, dof=4.0, scale=2.5)
    values = np.array([0.2, -1.1, 2.0, 0.9])
    shape = prior.scale / prior.dof * (np.eye(4) + np.ones((4, 4)) / prior.mean_strength)
    expected = multivariate_t.logpdf(values, np.full(4, prior.mean), shape, df=prior.dof)
    assert normal_gamma_log_evidence(values, prior) == pytest.approx(expected, rel=1e-12)


def test_dirichlet_evidence_is_the_polya_urn_product() -> None:
    concentration, drawn = np.array([0.5, 2.0, 1.0]), [0, 2, 2, 1, 0, 0]
    counts, total = np.zeros(3), 0.0
    for category in drawn:
        total += np.log((concentration + counts)[category] / (concentration + counts).sum())
        counts[category] += 1
    assert dirichlet_log_evidence(counts, concentration) == pytest.approx(total, rel=1e-12)


def test_kl_closed_forms_equal_integrals() -> None:
    q, p = beta(2.5, 4.0), beta(1.0, 5.0)
    integral = quad(lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), 0, 1)[0]
    assert dirichlet_kl(np.array([2.5, 4.0]), np.array([1.0, 5.0])) == pytest.approx(
        integral, rel=1e-8
    )
    assert dirichlet_kl(np.array([7.0]), np.array([5.0])) == pytest.approx(0.0, abs=1e-12)

    prior, (m, kappa, nu, s) = (
        Hyper(mean=0.2, mean_strength=1.5, dof=5.0, scale=3.0),
        (0.7, 3.0, 8.0, 6.0),
    )

    def log_density(mu: float, lam: float, m: float, kappa: float, nu: float, s: float) -> float:
        return float(
            gamma.logpdf(lam, nu / 2, scale=2 / s) + norm.logpdf(mu, m, 1 / np.sqrt(kappa * lam))
        )

    def integrand(mu: float, lam: float) -> float:
        mine = log_density(mu, lam, m, kappa, nu, s)
        return float(
            np.exp(mine)
            * (mine - log_density(mu, lam, prior.mean, prior.mean_strength, prior.dof, prior.scale))
        )

    integral = dblquad(
        integrand,
        1e-9,
        12,
        lambda lam: m - 9 / np.sqrt(kappa * lam),
        lambda lam: m + 9 / np.sqrt(kappa * lam),
        epsrel=1e-6,
    )
    assert normal_gamma_kl(m, kappa, nu, s, prior) == pytest.approx(integral[0], rel=1e-5)


def test_exact_evidence_at_one_state_is_the_iid_evidence_and_chain_probabilities_sum_to_one() -> (
    None
):
    problem = random_problem(3, 1, 2, (3,), (3, 1), missing=0.2)
    data = (problem.continuous, problem.categorical, problem.n_categories)
    exact = exact_log_evidence(*data, (3, 1), 1, Hyper())
    assert exact == pytest.approx(iid_log_evidence(*data, Hyper()), rel=1e-12)
    total = sum(
        np.exp(chain_log_evidence([np.array([a, b, c]), np.array([d])], 2, Hyper()))
        for a in range(2)
        for b in range(2)
        for c in range(2)
        for d in range(2)
    )
    assert total == pytest.approx(1.0, rel=1e-12)


def test_elbo_is_below_the_exact_evidence_and_tight_at_one_state() -> None:
    """Random factors and their own updates stay below.

    With one state a single update reaches the evidence.
    """
    prior = Hyper()
    problem = random_problem(5, 2, 1, (2,), (3, 2), missing=0.2)
    data = (problem.continuous, problem.categorical, problem.n_categories)
    exact = exact_log_evidence(*data, (3, 2), 2, prior)
    for seed in range(5):
        q = random_factors(seed, 2, 1, (2,))
        last = -np.inf
        for _ in range(15):
            parts = problem.enumerate_expected(q)
            bound = sum(e.log_likelihood for e in parts) - total_kl(q, prior)
            assert last - 1e-10 < bound < exact
            last = bound
            smoothed = stack(parts, lambda e: e.smoothed)
            q = update(
                *data,
                smoothed,
                np.sum([e.initial for e in parts], axis=0),
                np.sum([e.transitions for e in parts], axis=0),
                prior,
            )
    one = random_problem(6, 1, 2, (3,), (4, 2), missing=0.2)
    data = (one.continuous, one.categorical, one.n_categories)
    q = update(*data, np.ones((6, 1)), np.array([2.0]), np.array([[4.0]]), prior)
    bound = sum(e.log_likelihood for e in one.enumerate_expected(q)) - total_kl(q, prior)
    assert bound == pytest.approx(iid_log_evidence(*data, prior), rel=1e-11)


def test_exact_evidence_does_not_care_about_the_order_of_sequences() -> None:
    problem = random_problem(7, 2, 1, (3,), (3, 1, 2))
    values = []
    for order in permutations(range(3)):
        moved = problem.reorder(order)
        values.append(
            exact_log_evidence(
                moved.continuous, moved.categorical, moved.n_categories, moved.lengths, 2, Hyper()
            )
        )
    np.testing.assert_allclose(values, values[0], rtol=1e-12)
