"""The ELBO against exact evidence: equal with one state, never above it with more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turncoat import Prior, VariationalHMM

from .bridge import QUIET, factors_of, panel_of, posterior_of, prior_of
from .evidence import Hyper, exact_log_evidence, iid_log_evidence, total_kl, update
from .problems import Problem, random_factors, random_problem, stack

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
ONE_STATE: dict[str, tuple[int, tuple[int, ...], float]] = {
    "continuous": (5, (), 0.0),
    "categorical": (0, (2, 3, 7), 0.0),
    "mixed": (3, (2, 5), 0.0),
    "missing": (3, (2, 4), 0.35),
}
TINY: dict[str, dict[str, Any]] = {
    "continuous": {"n_states": 2, "n_continuous": 2, "n_categories": (), "lengths": (3,)},
    "categorical": {"n_states": 2, "n_continuous": 0, "n_categories": (2, 3), "lengths": (3, 2)},
    "mixed": {"n_states": 2, "n_continuous": 1, "n_categories": (3,), "lengths": (4, 1, 2)},
    "missing": {
        "n_states": 2,
        "n_continuous": 2,
        "n_categories": (2,),
        "lengths": (4, 3),
        "missing": 0.3,
    },
    "three states": {"n_states": 3, "n_continuous": 1, "n_categories": (2,), "lengths": (3, 2)},
    "three states, missing": {
        "n_states": 3,
        "n_continuous": 1,
        "n_categories": (3,),
        "lengths": (2, 3),
        "missing": 0.3,
    },
}
PRIORS = {"weak": Hyper(), "own": Hyper(0.5, 0.7, 1.5, 0.8, 0.4, 2.0, 6.0, 2.5)}


def evidence_of(problem: Problem, prior: Hyper) -> float:
    """Exact log evidence, every hidden path summed."""
    data = (problem.continuous, problem.categorical, problem.n_categories)
    return exact_log_evidence(*data, problem.lengths, problem.n_states, prior)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("preset", ["weak", "paper", "own"])
@pytest.mark.parametrize("kind", list(ONE_STATE))
def test_one_state_elbo_is_the_exact_evidence(kind: str, preset: str, precision: str) -> None:
    """K = 1.

    Normal-Gamma x Dirichlet-categorical evidence of all rows, the presets' own numbers
    included. The weak prior is that of standardised columns, whose density is the columns' times
    their standard deviation.
    """
    n_continuous, n_categories, missing = ONE_STATE[kind]
    problem = random_problem(17, 1, n_continuous, n_categories, (30, 1, 12, 7), missing=missing)
    hyper = {"weak": Hyper(), "paper": Hyper.paper(n_continuous), "own": PRIORS["own"]}[preset]
    prior = {"weak": None, "paper": Prior.paper(), "own": prior_of(hyper)}[preset]
    model = VariationalHMM(1, prior=prior, **{**QUIET, "precision": precision}).fit(
        panel_of(problem)
    )
    continuous, log_volume = problem.continuous, 0.0
    if preset == "weak":
        deviations = np.nanstd(continuous, axis=0)
        continuous = (continuous - np.nanmean(continuous, axis=0)) / deviations
        log_volume = float((~np.isnan(continuous)).sum(axis=0) @ np.log(deviations))
    exact = iid_log_evidence(continuous, problem.categorical, problem.n_categories, hyper)
    exact -= log_volume
    assert model.lower_bound_ == pytest.approx(exact, rel=1e-8 if precision == "float64" else 1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("preset", list(PRIORS))
@pytest.mark.parametrize("kind", list(TINY))
def test_fitted_elbo_stays_below_the_exact_evidence(kind: str, preset: str, seed: int) -> None:
    """Below the sum over all paths, by a few nats (relabelled modes, local optima).

    And it is the ELBO of the kept parameters.
    """
    problem, prior = random_problem(50 + seed, **TINY[kind]), PRIORS[preset]
    exact = evidence_of(problem, prior)
    model = VariationalHMM(
        problem.n_states,
        prior=prior_of(prior),
        **{**QUIET, "n_restarts": 3, "max_iter": 300, "tol": 1e-12},
    )
    model.fit(panel_of(problem))
    assert exact - 8.0 < model.lower_bound_ <= exact + 1e-9
    q = factors_of(model)
    own = sum(e.log_likelihood for e in problem.enumerate_expected(q)) - total_kl(q, prior)
    assert model.lower_bound_ == pytest.approx(own, rel=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", list(TINY))
def test_random_factors_are_bounded_by_the_exact_evidence(kind: str, seed: int) -> None:
    """The ELBO of factors fitted to nothing, and of every later step.

    Equal to plain VBEM over all paths, and below the evidence.
    """
    problem, prior = random_problem(80 + seed, **TINY[kind]), PRIORS["weak"]
    q = random_factors(seed, problem.n_states, problem.continuous.shape[1], problem.n_categories)
    options = {**QUIET, "max_iter": 20, "tol": 0.0, "prior": prior_of(prior)}
    report = (
        VariationalHMM(problem.n_states, init=posterior_of(q), **options)
        .fit(panel_of(problem))
        .fit_report_
    )
    bounds = []
    for _ in range(report.n_iter):
        parts = problem.enumerate_expected(q)
        bounds.append(sum(e.log_likelihood for e in parts) - total_kl(q, prior))
        first, moves = (
            np.sum([e.initial for e in parts], axis=0),
            np.sum([e.transitions for e in parts], axis=0),
        )
        smoothed = stack(parts, lambda e: e.smoothed)
        q = update(
            problem.continuous,
            problem.categorical,
            problem.n_categories,
            smoothed,
            first,
            moves,
            prior,
        )
    np.testing.assert_allclose(report.history, bounds, rtol=1e-9)
    assert (np.asarray(report.history) <= evidence_of(problem, prior) + 1e-9).all()
