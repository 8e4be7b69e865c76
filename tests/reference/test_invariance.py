"""What must not change the answer.

The order of customers, rows still to come, streaming, threads, repeats, length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turncoat import BaumWelchHMM, Panel, VariationalHMM

from .bridge import (
    QUIET,
    anchors_of,
    arrays_of,
    baum_welch,
    panel_of,
    params_of,
    posterior_of,
    prior_of,
    variational,
)
from .enumeration import log, weighted_moments
from .evidence import Hyper, total_kl, update
from .logdomain import forward_backward, viterbi
from .problems import Problem, random_factors, random_problem, stack

TIERS = pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
PRECISIONS = pytest.mark.parametrize("precision", ["float64", "float32"])
LONG = (3, 2000, 1, 257, 256, 255, 2, 700, 1)


def known(tier: Any, problem: Problem, **options: Any) -> Any:
    """A model of this tier with given parameters."""
    if tier is BaumWelchHMM:
        return baum_welch(problem, **options)
    return variational(
        random_factors(3, problem.n_states, problem.continuous.shape[1], problem.n_categories),
        **options,
    )


def start(tier: Any, problem: Problem) -> Any:
    """A start for fits of this tier."""
    if tier is BaumWelchHMM:
        return params_of(problem)
    return posterior_of(
        random_factors(3, problem.n_states, problem.continuous.shape[1], problem.n_categories)
    )


@TIERS
@PRECISIONS
def test_order_of_customers_does_not_matter(tier: Any, precision: str) -> None:
    """Shuffled sequences.

    The same posteriors in the shuffled order, and the same fit to rounding.
    """
    problem = random_problem(21, 3, 3, (2, 4), (*range(1, 41), 300), missing=0.1, noise=0.05)
    order = np.random.default_rng(0).permutation(len(problem.lengths))
    moved = problem.reorder(order)
    model = known(tier, problem, precision=precision)
    before, after = model.smooth(panel_of(problem)), model.smooth(panel_of(moved))
    np.testing.assert_allclose(
        after.probs,
        before.probs[problem.rows_of(order)],
        atol=1e-12 if precision == "float64" else 1e-6,
    )
    np.testing.assert_allclose(
        after.log_likelihood,
        before.log_likelihood[order],
        rtol=1e-12 if precision == "float64" else 1e-6,
    )
    fits = []
    for each in (problem, moved):
        options = {
            **QUIET,
            "precision": precision,
            "max_iter": 6,
            "tol": 0.0,
            "init": start(tier, problem),
        }
        fits.append(tier(3, **options).fit(panel_of(each), anchors=anchors_of(each)))
    tolerance = 1e-9 if precision == "float64" else 2e-4
    for a, b in zip(arrays_of(fits[0].params_), arrays_of(fits[1].params_), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
    assert fits[0].lower_bound_ == pytest.approx(fits[1].lower_bound_, rel=tolerance)


@TIERS
@PRECISIONS
@pytest.mark.parametrize("cut", [1, 2, 17, 255, 256, 257, 511])
def test_future_rows_leave_filtered_rows_bit_identical(tier: Any, precision: str, cut: int) -> None:
    """The filter of a prefix is the prefix of the filter, to the bit.

    Also where the sequence outgrows a cache block.
    """
    problem = random_problem(22, 3, 4, (3, 2), (600,), missing=0.1)
    model = known(tier, problem, precision=precision)
    full = model.filter(panel_of(problem)).probs
    head = replace(
        problem,
        lengths=np.array([cut]),
        continuous=problem.continuous[:cut],
        categorical=problem.categorical[:cut],
    )
    np.testing.assert_array_equal(model.filter(panel_of(head)).probs, full[:cut])


@TIERS
@PRECISIONS
def test_filter_of_a_sequence_does_not_depend_on_its_neighbours(tier: Any, precision: str) -> None:
    """One sequence alone, or among others, or twice: the same bits."""
    problem = random_problem(23, 3, 3, (4,), (5, 300, 1, 64, 5), missing=0.1)
    model, panel = known(tier, problem, precision=precision), panel_of(problem)
    found = problem.split(model.filter(panel).probs)
    scores = model.log_likelihood(panel)
    for u in range(len(problem.lengths)):
        np.testing.assert_array_equal(model.filter(panel[u]).probs, found[u])
        np.testing.assert_array_equal(
            model.filter(panel_of(problem.reorder([u, u]))).probs, np.concatenate([found[u]] * 2)
        )
        np.testing.assert_allclose(model.log_likelihood(panel[u]), scores[u : u + 1], rtol=1e-12)


@TIERS
@PRECISIONS
@pytest.mark.parametrize(
    "columns", [(3, (2, 4)), (2, ()), (0, (3, 2))], ids=["mixed", "continuous", "categorical"]
)
def test_replaying_step_equals_filter(
    tier: Any, precision: str, columns: tuple[int, tuple[int, ...]]
) -> None:
    """Row by row from no belief at all, missing cells and wholly missing rows included."""
    problem = random_problem(24, 3, *columns, (40, 1, 7, 300), missing=0.15, missing_rows=True)
    model = known(tier, problem, precision=precision)
    found = problem.split(model.filter(panel_of(problem)).probs)
    for numbers, codes, rows in zip(
        problem.split(problem.continuous), problem.split(problem.categorical), found, strict=True
    ):
        belief = None
        for t, row in enumerate(rows):
            belief = model.step(
                belief, numbers[t] if columns[0] else None, codes[t] if columns[1] else None
            )
            np.testing.assert_allclose(
                belief, row, atol=1e-12 if precision == "float64" else 2e-5, rtol=0
            )


@TIERS
@PRECISIONS
def test_threads_and_repeats_give_the_same_bits(tier: Any, precision: str) -> None:
    """Own initialisation with restarts.

    One thread, two threads and a second run agree to the bit; another seed does not.
    """
    problem = random_problem(25, 3, 4, (3, 2), (*range(1, 61), 900), missing=0.05, spread=0.8)
    panel = panel_of(problem)

    def fit(n_threads: int, seed: int = 4) -> Any:
        return tier(
            3,
            n_restarts=4,
            max_iter=12,
            tol=0.0,
            precision=precision,
            n_threads=n_threads,
            random_state=seed,
        ).fit(panel)

    first = fit(1)
    for other in (fit(2), fit(1), fit(2)):
        for a, b in zip(arrays_of(first.params_), arrays_of(other.params_), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(first.fit_report_.history, other.fit_report_.history)
        np.testing.assert_array_equal(first.smooth(panel).probs, other.smooth(panel).probs)
    assert any(
        (a != b).any()
        for a, b in zip(arrays_of(first.params_), arrays_of(fit(1, seed=5).params_), strict=True)
    )


def test_doubling_every_sequence_doubles_the_likelihood_and_keeps_the_fit() -> None:
    """Maximum likelihood does not see how often the same sample is repeated."""
    problem = random_problem(26, 2, 2, (3,), (9, 4, 1, 30, 12), missing=0.1)
    twice = problem.reorder([*range(5), *range(5)])
    options = {
        **QUIET,
        "init": params_of(problem),
        "max_iter": 5,
        "tol": 0.0,
        "category_smoothing": 0.0,
        "variance_floor": 1e-10,
    }
    one, two = (BaumWelchHMM(2, **options).fit(panel_of(each)) for each in (problem, twice))
    assert two.lower_bound_ == pytest.approx(2 * one.lower_bound_, rel=1e-10)
    for a, b in zip(arrays_of(one.params_), arrays_of(two.params_), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@PRECISIONS
@pytest.mark.parametrize(
    "layout", ["float32", "float64", "fortran", "sliced", "int32 codes", "one by one customers"]
)
def test_layout_of_the_arrays_does_not_matter(layout: str, precision: str) -> None:
    """Types, strides and the two ways to say where sequences begin."""
    problem = random_problem(27, 3, 3, (2, 5), (4, 9, 1, 270), missing=0.1)
    numbers, codes, keys = problem.continuous, problem.categorical, {"lengths": problem.lengths}
    if layout == "float32":
        numbers = numbers.astype(np.float32)  # the numbers are exact in float32
    elif layout == "fortran":
        numbers, codes = np.asfortranarray(numbers), np.asfortranarray(codes)
    elif layout == "sliced":
        numbers, codes = np.repeat(numbers, 2, axis=1)[:, ::2], np.repeat(codes, 2, axis=0)[::2]
    elif layout == "int32 codes":
        codes = codes.astype(np.int32)
    elif layout == "one by one customers":
        keys = {"customers": np.repeat(np.array(["d", "a", "c", "b"]), problem.lengths)}
    panel = Panel.from_arrays(
        continuous=numbers, categorical=codes, n_categories=problem.n_categories, **keys
    )
    model = baum_welch(problem, precision=precision)
    found, expected = model.smooth(panel).probs, model.smooth(panel_of(problem)).probs
    if layout == "float32":
        np.testing.assert_allclose(found, expected, atol=1e-12 if precision == "float64" else 1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


@PRECISIONS
@pytest.mark.parametrize("n_states", [1, 2, 5, 9])
def test_long_sequences_equal_log_domain_recursions(n_states: int, precision: str) -> None:
    """Thousands of rows, block boundaries, outliers, sticky states, missing rows."""
    problem = random_problem(28, n_states, 3, (4,), LONG, missing=0.1, spread=0.7)
    sticky = 0.9 * np.eye(n_states) + 0.1 * problem.transition
    numbers = problem.continuous.copy()
    numbers[100:140] = np.nan
    numbers[1500] = 40.0  # far from every state
    problem = replace(problem, transition=sticky, continuous=numbers)
    exact = precision == "float64"
    model, panel, truth = (
        baum_welch(problem, precision=precision),
        panel_of(problem),
        problem.forward_backward(),
    )
    filtered, smoothed = model.filter(panel), model.smooth(panel)
    scores = [f.log_likelihood for f in truth]
    np.testing.assert_allclose(filtered.log_likelihood, scores, rtol=1e-10 if exact else 1e-5)
    np.testing.assert_allclose(smoothed.log_likelihood, scores, rtol=1e-10 if exact else 1e-5)
    keep = (
        np.arange(len(numbers)) != 1500 if not exact else slice(None)
    )  # there, float32 rounds differences of large numbers
    np.testing.assert_allclose(
        filtered.probs[keep],
        stack(truth, lambda f: f.filtered)[keep],
        atol=1e-10 if exact else 1e-3,
    )
    np.testing.assert_allclose(
        smoothed.probs[keep],
        stack(truth, lambda f: f.smoothed)[keep],
        atol=1e-10 if exact else 1e-3,
    )
    if exact:
        chain = log(problem.initial), log(problem.transition)
        paths = np.concatenate(
            [viterbi(*chain, rows) for rows in problem.split(problem.log_emission())]
        )
        np.testing.assert_array_equal(model.decode(panel), paths)


@TIERS
def test_one_step_on_long_sequences_equals_log_domain_recursions(tier: Any) -> None:
    """Sufficient statistics over block boundaries: the whole update, in float64."""
    problem = random_problem(29, 4, 2, (3,), LONG, missing=0.1)
    numbers, codes, tables = problem.continuous, problem.categorical, problem.n_categories
    q, prior = random_factors(3, 4, 2, tables), Hyper()
    if tier is BaumWelchHMM:
        parts = problem.forward_backward()
    else:
        chain = q.expected_log_initial(), q.expected_log_transition()
        parts = [
            forward_backward(*chain, rows)
            for rows in problem.split(q.expected_log_emissions(numbers, codes))
        ]
    smoothed, moves = (
        stack(parts, lambda f: f.smoothed),
        np.sum([f.transitions for f in parts], axis=0),
    )
    first = np.sum([f.smoothed[0] for f in parts], axis=0)
    extra: dict[str, Any] = {"prior": prior_of(prior)}
    if tier is BaumWelchHMM:
        extra = {"variance_floor": 1e-10, "category_smoothing": 0.0}
    model = tier(4, init=start(tier, problem), max_iter=2, tol=0.0, **QUIET, **extra).fit(
        panel_of(problem)
    )
    total = sum(f.log_likelihood for f in parts)
    if tier is BaumWelchHMM:
        weight, means, squares = weighted_moments(numbers, smoothed)
        np.testing.assert_allclose(model.params_.initial_probs, first / len(parts), atol=1e-10)
        np.testing.assert_allclose(
            model.params_.transition_matrix, moves / moves.sum(axis=1, keepdims=True), atol=1e-10
        )
        np.testing.assert_allclose(model.params_.means, means, atol=1e-9)
        np.testing.assert_allclose(model.params_.variances, squares / weight, atol=1e-9)
    else:
        expected = update(numbers, codes, tables, smoothed, first, moves, prior)
        wanted = (
            expected.initial,
            expected.transition,
            expected.location,
            expected.mean_strength,
            expected.dof,
            expected.scale,
        )
        for found, part in zip(
            arrays_of(model.params_), (*wanted, *expected.category), strict=True
        ):
            np.testing.assert_allclose(found, part, rtol=1e-9, atol=1e-9)
        total -= total_kl(q, prior)
    assert model.fit_report_.history[0] == pytest.approx(total, rel=1e-10)
