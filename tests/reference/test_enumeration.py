"""Turncoat's inference and single updates against brute force over all hidden paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from turncoat import BaumWelchHMM, VariationalHMM

from .bridge import (
    QUIET,
    anchors_of,
    baum_welch,
    factors_of,
    panel_of,
    params_of,
    posterior_of,
    prior_of,
    variational,
)
from .enumeration import Array, enumerate_paths, path_log_probs, weighted_counts, weighted_moments
from .enumeration import log as log0
from .evidence import Hyper, total_kl, update
from .problems import Problem, random_factors, random_problem, stack

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
SHAPES: dict[str, dict[str, Any]] = {
    "continuous": {"n_continuous": 3, "n_categories": ()},
    "binary": {"n_continuous": 0, "n_categories": (2, 2, 2)},
    "categorical": {"n_continuous": 0, "n_categories": (2, 3, 5)},
    "mixed": {"n_continuous": 2, "n_categories": (2, 4)},
    "missing": {"n_continuous": 2, "n_categories": (2, 3), "missing": 0.3},
    "missing rows": {"n_continuous": 2, "n_categories": (3,), "missing": 0.2, "missing_rows": True},
    "zeros": {"n_continuous": 1, "n_categories": (3,), "zeros": True},
    "anchors": {"n_continuous": 1, "n_categories": (2,), "noise": 0.0},
    "noisy anchors": {"n_continuous": 1, "n_categories": (3,), "missing": 0.2, "noise": 0.07},
    "anchors and zeros": {
        "n_continuous": 1,
        "n_categories": (2,),
        "missing": 0.2,
        "zeros": True,
        "noise": 0.0,
    },
}
LENGTHS = ((6,), (1,), (2, 6, 1, 5), (4, 3, 6, 1, 2))
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
cases = pytest.mark.parametrize("shape", list(SHAPES))
seeds = pytest.mark.parametrize("seed", range(6))
precisions = pytest.mark.parametrize("precision", list(TOLERANCE))


def make(shape: str, seed: int) -> Problem:
    """Problem `seed` of this shape: K in {1, 2, 3}, ragged lengths."""
    return random_problem(
        1000 + seed, (2, 3, 3, 2, 3, 1)[seed % 6], lengths=LENGTHS[seed % 4], **SHAPES[shape]
    )


@precisions
@seeds
@cases
def test_posteriors_and_likelihood_equal_enumeration(shape: str, seed: int, precision: str) -> None:
    """filter, smooth and log_likelihood, row by row and sequence by sequence."""
    problem, tolerance = make(shape, seed), TOLERANCE[precision]
    model, panel, anchors, truth = (
        baum_welch(problem, precision=precision),
        panel_of(problem),
        anchors_of(problem),
        problem.enumerate(),
    )
    expected = np.array([e.log_likelihood for e in truth])
    for found, rows in (
        (model.filter(panel, anchors=anchors), stack(truth, lambda e: e.filtered)),
        (model.smooth(panel, anchors=anchors), stack(truth, lambda e: e.smoothed)),
    ):
        np.testing.assert_allclose(found.probs, rows, atol=tolerance, rtol=0)
        np.testing.assert_allclose(
            found.probs.sum(axis=1), 1.0, atol=1e-12 if precision == "float64" else 1e-6
        )
        np.testing.assert_allclose(found.log_likelihood, expected, rtol=tolerance, atol=tolerance)
        assert found.probs.dtype == np.float64
    if anchors is None:
        np.testing.assert_allclose(
            model.log_likelihood(panel), expected, rtol=tolerance, atol=tolerance
        )


@precisions
@seeds
@pytest.mark.parametrize("shape", [name for name in SHAPES if "anchors" not in name])
def test_decode_is_the_best_of_all_paths(shape: str, seed: int, precision: str) -> None:
    """No path has a higher joint probability; where none ties with it, it is the very path."""
    problem = make(shape, seed)
    decoded = baum_welch(problem, precision=precision).decode(panel_of(problem))
    truth = problem.enumerate()
    for mine, rows, best in zip(
        problem.split(decoded), problem.split(problem.log_emission()), truth, strict=True
    ):
        score = path_log_probs(
            np.asarray(mine)[None], log0(problem.initial), log0(problem.transition), rows
        )[0]
        tolerance = TOLERANCE[precision] * (1 + abs(best.path_log_prob))
        assert score >= best.path_log_prob - tolerance
        if best.path_margin > tolerance:
            np.testing.assert_array_equal(mine, best.path)


def test_bic_counts_parameters_as_the_method_says() -> None:
    problem = random_problem(3, 3, 2, (2, 4), (5, 4, 6))
    total = sum(e.log_likelihood for e in problem.enumerate())
    n_params = 2 + 3 * 2 + 2 * 3 * 2 + 3 * (1 + 3)
    assert baum_welch(problem).bic(panel_of(problem)) == pytest.approx(
        -2 * total + n_params * np.log(15), rel=1e-10
    )


@dataclass(frozen=True)
class Maximised:
    """The parameters after one exact EM step."""

    initial: Array
    transition: Array
    means: Array
    variances: Array
    category_probs: tuple[Array, ...]


def maximise(problem: Problem, smoothing: float = 0.0) -> Maximised:
    """The M-step, from the enumeration's posteriors.

    Each column weighs only the rows where it is seen.
    """
    truth = problem.enumerate()
    smoothed = stack(truth, lambda e: e.smoothed)
    initial = np.mean([e.initial for e in truth], axis=0)
    transitions = np.sum([e.transitions for e in truth], axis=0)
    weight, means, squares = weighted_moments(problem.continuous, smoothed)
    counts = [
        table + smoothing
        for table in weighted_counts(problem.categorical, smoothed, problem.n_categories)
    ]
    return Maximised(
        initial,
        transitions / transitions.sum(axis=1, keepdims=True),
        means,
        squares / weight,
        tuple(table / table.sum(axis=1, keepdims=True) for table in counts),
    )


STEP_SHAPES = [name for name in SHAPES if name != "anchors and zeros"]


@precisions
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", STEP_SHAPES)
def test_one_em_step_equals_the_enumerated_one(
    shape: str, seed: int, smoothing: float, precision: str
) -> None:
    """Two E-steps with one update between them.

    Bounds before and after it, and the new parameters.
    """
    problem = random_problem(
        2000 + seed, (2, 3, 2)[seed], lengths=(6, 5, 6, 4, 6, 1, 5, 3), **SHAPES[shape]
    )
    tolerance = 1e-9 if precision == "float64" else 2e-4
    options = {
        **QUIET,
        "precision": precision,
        "max_iter": 2,
        "tol": 0.0,
        "variance_floor": 1e-10,
        "category_smoothing": smoothing,
    }
    model = BaumWelchHMM(problem.n_states, init=params_of(problem), **options).fit(
        panel_of(problem), anchors=anchors_of(problem)
    )
    expected, params = maximise(problem, smoothing), model.params_
    assert model.fit_report_.n_iter == 2
    np.testing.assert_allclose(params.initial_probs, expected.initial, atol=tolerance)
    np.testing.assert_allclose(params.transition_matrix, expected.transition, atol=tolerance)
    np.testing.assert_allclose(params.means, expected.means, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(params.variances, expected.variances, atol=tolerance, rtol=tolerance)
    for found, table in zip(params.category_probs, expected.category_probs, strict=True):
        np.testing.assert_allclose(found, table, atol=tolerance)

    after = Problem(**{**problem.__dict__, **expected.__dict__})
    bounds = []
    for stage in (problem, after):
        penalty = (
            smoothing * sum(float(log0(table).sum()) for table in stage.category_probs)
            if smoothing
            else 0.0
        )
        bounds.append(sum(e.log_likelihood for e in stage.enumerate()) + penalty)
    np.testing.assert_allclose(model.fit_report_.history, bounds, rtol=tolerance)
    assert model.lower_bound_ == pytest.approx(bounds[-1], rel=tolerance)


@precisions
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", STEP_SHAPES)
def test_one_variational_step_equals_the_enumerated_one(
    shape: str, seed: int, precision: str
) -> None:
    """From random factors: the ELBO before the update, the updated factors, the ELBO after."""
    problem = random_problem(3000 + seed, (2, 3, 1)[seed], lengths=(6, 5, 1, 4, 6), **SHAPES[shape])
    prior = (
        Hyper(),
        Hyper.paper(problem.continuous.shape[1]),
        Hyper(0.5, 0.7, 1.5, 0.8, 0.4, 2.0, 6.0, 2.5),
    )[seed]
    tolerance = 1e-9 if precision == "float64" else 2e-4
    q = random_factors(seed, problem.n_states, problem.continuous.shape[1], problem.n_categories)
    options = {**QUIET, "precision": precision, "max_iter": 2, "tol": 0.0, "prior": prior_of(prior)}
    model = VariationalHMM(problem.n_states, init=posterior_of(q), **options).fit(
        panel_of(problem), anchors=anchors_of(problem)
    )

    bounds = []
    data = (problem.continuous, problem.categorical, problem.n_categories)
    parts = problem.enumerate_expected(q)
    bounds.append(sum(e.log_likelihood for e in parts) - total_kl(q, prior))
    smoothed, initial = (
        stack(parts, lambda e: e.smoothed),
        np.sum([e.initial for e in parts], axis=0),
    )
    expected = update(
        *data, smoothed, initial, np.sum([e.transitions for e in parts], axis=0), prior
    )
    bounds.append(
        sum(e.log_likelihood for e in problem.enumerate_expected(expected))
        - total_kl(expected, prior)
    )

    assert model.fit_report_.n_iter == 2
    found = factors_of(model)
    for name in ("initial", "transition", "location", "mean_strength", "dof", "scale"):
        np.testing.assert_allclose(
            getattr(found, name),
            getattr(expected, name),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )
    for mine, table in zip(found.category, expected.category, strict=True):
        np.testing.assert_allclose(mine, table, rtol=tolerance)
    np.testing.assert_allclose(model.fit_report_.history, bounds, rtol=tolerance)
    assert model.lower_bound_ == pytest.approx(bounds[-1], rel=tolerance)


@precisions
@pytest.mark.parametrize("emission", ["expected-log", "predictive"])
@pytest.mark.parametrize("seed", range(3))
@cases
def test_variational_scoring_equals_enumeration(
    shape: str, seed: int, emission: str, precision: str
) -> None:
    """Expected-log weights (unnormalised) or Student-t emissions with posterior-mean chain."""
    problem, tolerance = make(shape, seed), TOLERANCE[precision]
    q = random_factors(seed, problem.n_states, problem.continuous.shape[1], problem.n_categories)
    if emission == "expected-log":
        truth = problem.enumerate_expected(q)
    else:
        rows = (
            q.predictive_log_emissions(problem.continuous, problem.categorical)
            + problem.anchor_weights()
        )
        chain = (
            np.log(q.initial / q.initial.sum()),
            np.log(q.transition / q.transition.sum(axis=1, keepdims=True)),
        )
        truth = [enumerate_paths(*chain, part) for part in problem.split(rows)]
    model, panel, anchors = (
        variational(q, emission=emission, precision=precision),
        panel_of(problem),
        anchors_of(problem),
    )
    filtered, smoothed = model.filter(panel, anchors=anchors), model.smooth(panel, anchors=anchors)
    np.testing.assert_allclose(filtered.probs, stack(truth, lambda e: e.filtered), atol=tolerance)
    np.testing.assert_allclose(smoothed.probs, stack(truth, lambda e: e.smoothed), atol=tolerance)
    np.testing.assert_allclose(
        smoothed.log_likelihood, [e.log_likelihood for e in truth], rtol=tolerance, atol=tolerance
    )
    if anchors is None:
        for mine, best in zip(problem.split(model.decode(panel)), truth, strict=True):
            if best.path_margin > tolerance * (1 + abs(best.path_log_prob)):
                np.testing.assert_array_equal(mine, best.path)


@precisions
@pytest.mark.parametrize("leak", [0.0, 1e-30])
def test_row_that_only_an_unreachable_state_explains(leak: float, precision: str) -> None:
    """The likely state has (almost) no way in.

    The belief must stay finite, sum to one and equal enumeration.
    """
    problem = random_problem(0, 2, 1, (2,), (3, 4))
    problem = Problem(
        **{
            **problem.__dict__,
            "initial": np.array([1.0 - leak, leak]),
            "transition": np.array([[1.0 - leak, leak], [leak, 1.0 - leak]]),
            "means": np.array([[0.0], [100.0]]),
            "variances": np.ones((2, 1)),
            "continuous": np.array([[0.0], [100.0], [0.5], [100.0], [1.0], [99.0], [0.0]]),
        }
    )
    model, panel, truth = (
        baum_welch(problem, precision=precision),
        panel_of(problem),
        problem.enumerate(),
    )
    tolerance = TOLERANCE[precision]
    filtered, smoothed = model.filter(panel), model.smooth(panel)
    np.testing.assert_allclose(filtered.probs, stack(truth, lambda e: e.filtered), atol=tolerance)
    np.testing.assert_allclose(smoothed.probs, stack(truth, lambda e: e.smoothed), atol=tolerance)
    np.testing.assert_allclose(
        smoothed.log_likelihood, [e.log_likelihood for e in truth], rtol=tolerance
    )
    np.testing.assert_array_equal(model.decode(panel), stack(truth, lambda e: e.path))
