"""hmmlearn as an independent peer.

Equal parameters give equal answers, equal starts give equal EM trajectories.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM, GaussianHMM

from turncoat import BaumWelchHMM

from .bridge import QUIET, baum_welch, panel_of, params_of
from .enumeration import log, path_log_probs
from .problems import Problem, random_problem

LENGTHS = (40, 1, 7, 300, 2, 80, 15)
RELATIVE = {"float64": 1e-8, "float32": 1e-6}


def gaussian_problem(seed: int, n_states: int = 4) -> Problem:
    """Six standardised columns, overlapping states."""
    problem = random_problem(seed, n_states, 6, (), LENGTHS, spread=0.7)
    mean, sd = problem.continuous.mean(axis=0), problem.continuous.std(axis=0)
    scaled = ((problem.continuous - mean) / sd).astype(np.float32).astype(np.float64)
    return replace(
        problem,
        means=(problem.means - mean) / sd,
        variances=problem.variances / sd**2,
        continuous=scaled,
    )


def gaussian_peer(problem: Problem, n_iter: int = 0) -> GaussianHMM:
    """hmmlearn at the same parameters, every prior switched off."""
    peer = GaussianHMM(
        problem.n_states,
        "diag",
        min_covar=0.0,
        means_prior=0.0,
        means_weight=0.0,
        covars_prior=0.0,
        covars_weight=0.0,
        n_iter=n_iter,
        tol=-np.inf,
        init_params="",
    )
    peer.startprob_, peer.transmat_, peer.means_, peer.covars_ = (
        problem.initial,
        problem.transition,
        problem.means,
        problem.variances,
    )
    return peer


def categorical_peer(problem: Problem, n_iter: int = 0) -> CategoricalHMM:
    """hmmlearn's single-column categorical model at the same parameters."""
    peer = CategoricalHMM(problem.n_states, n_iter=n_iter, tol=-np.inf, init_params="")
    peer.startprob_, peer.transmat_, peer.emissionprob_ = (
        problem.initial,
        problem.transition,
        problem.category_probs[0],
    )
    peer.n_features = problem.n_categories[0]
    return peer


@pytest.mark.parametrize("precision", list(RELATIVE))
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_equal_parameters_equal_answers(kind: str, seed: int, precision: str) -> None:
    """Log-likelihood (relative), posteriors (absolute) and the decoded path."""
    gaussian = kind == "gaussian"
    problem = gaussian_problem(seed) if gaussian else random_problem(seed, 3, 0, (5,), LENGTHS)
    peer, rows = (
        (gaussian_peer(problem), problem.continuous)
        if gaussian
        else (categorical_peer(problem), problem.categorical)
    )
    model, panel = baum_welch(problem, precision=precision), panel_of(problem)
    score, posteriors = peer.score_samples(rows, problem.lengths)
    found = model.smooth(panel)
    assert found.log_likelihood.sum() == pytest.approx(score, rel=RELATIVE[precision])
    assert model.log_likelihood(panel).sum() == pytest.approx(score, rel=RELATIVE[precision])
    np.testing.assert_allclose(
        found.probs, posteriors, atol=1e-8 if precision == "float64" else 1e-5
    )
    mine, theirs = (
        problem.split(path) for path in (model.decode(panel), peer.predict(rows, problem.lengths))
    )
    chain = log(problem.initial), log(problem.transition)
    for a, b, part in zip(mine, theirs, problem.split(problem.log_emission()), strict=True):
        found, best = path_log_probs(np.stack([a, b]), *chain, part)
        assert found == pytest.approx(
            best, rel=RELATIVE[precision]
        )  # categorical paths that permute the same moves tie exactly
        if gaussian and precision == "float64":
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_steps", [1, 2, 3])
@pytest.mark.parametrize("kind", ["gaussian", "categorical"])
def test_equal_starts_equal_em_trajectories(kind: str, n_steps: int) -> None:
    """After each of three EM steps from the same start.

    Parameters and the history of log-likelihoods.
    """
    gaussian = kind == "gaussian"
    problem = gaussian_problem(11) if gaussian else random_problem(12, 3, 0, (5,), LENGTHS)
    rng = np.random.default_rng(0)
    problem = replace(
        problem,
        means=problem.means + 0.3 * rng.standard_normal(problem.means.shape),
        variances=problem.variances * 1.3,
    )
    peer = (gaussian_peer if gaussian else categorical_peer)(problem, n_iter=n_steps)
    peer.fit(problem.continuous if gaussian else problem.categorical, problem.lengths)
    options = {
        **QUIET,
        "max_iter": n_steps + 1,
        "tol": 0.0,
        "variance_floor": 1e-10,
        "category_smoothing": 0.0,
    }
    model = BaumWelchHMM(problem.n_states, init=params_of(problem), **options).fit(
        panel_of(problem)
    )
    np.testing.assert_allclose(
        model.fit_report_.history[:n_steps], list(peer.monitor_.history), rtol=1e-8
    )
    np.testing.assert_allclose(model.params_.initial_probs, peer.startprob_, atol=1e-8)
    np.testing.assert_allclose(model.params_.transition_matrix, peer.transmat_, atol=1e-8)
    if gaussian:
        np.testing.assert_allclose(model.params_.means, peer.means_, atol=1e-8)
        np.testing.assert_allclose(
            model.params_.variances, np.array([np.diag(c) for c in peer.covars_]), atol=1e-8
        )
    else:
        np.testing.assert_allclose(model.params_.category_probs[0], peer.emissionprob_, atol=1e-8)
