"""Data drawn from a known mixed model give its parameters back.

Within sampling error and up to the names of the states.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from turncoat import BaumWelchHMM, VariationalHMM, align_states

from .bridge import panel_of
from .enumeration import Array
from .problems import Problem, draw_rows, draw_states

SIGMAS = 6.0  # about 4.5 sampling standard errors, widened by a third since the states are hidden


@cache
def known_problem(seed: int, missing: float) -> Problem:
    """Three sticky, overlapping states.

    Two continuous columns, one binary and one with four levels.
    """
    rng = np.random.default_rng(seed)
    initial = np.array([0.5, 0.3, 0.2])
    transition = np.array([[0.85, 0.10, 0.05], [0.15, 0.75, 0.10], [0.10, 0.20, 0.70]])
    means = np.array([[-1.5, 0.5], [0.8, -1.8], [2.2, 2.0]])
    variances = np.array([[0.5, 1.0], [0.8, 0.4], [1.2, 0.6]])
    tables = (
        np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]),
        np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.2, 0.6]]),
    )
    lengths = rng.integers(1, 31, size=400)
    states = draw_states(rng, initial, transition, lengths)
    continuous, categorical = draw_rows(rng, states, means, variances, tables)
    continuous[rng.random(continuous.shape) < missing] = np.nan
    categorical[rng.random(categorical.shape) < missing] = -1
    return Problem(
        initial, transition, means, variances, tables, lengths, states, continuous, categorical
    )


@cache
def best_agreement(seed: int, missing: float) -> float:
    """Share of rows whose state is the likeliest under the true parameters."""
    problem = known_problem(seed, missing)
    smoothed = np.concatenate([f.smoothed for f in problem.forward_backward()])
    return float(np.mean(smoothed.argmax(axis=1) == problem.states))


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("missing", [0.0, 0.2])
@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
def test_known_parameters_come_back(tier: Any, missing: float, precision: str) -> None:
    problem = known_problem(5, missing)
    panel = panel_of(problem)
    model = tier(3, n_restarts=3, random_state=0, precision=precision).fit(panel)
    params = model.params_
    order = linear_sum_assignment(
        ((problem.means[:, None] - np.asarray(params.means)) ** 2).sum(axis=2)
    )[1]
    rows = np.bincount(problem.states) * (1 - missing)
    leaving = np.bincount(np.concatenate([part[:-1] for part in problem.split(problem.states)]))

    def close(found: Array, truth: Array, error: Array, what: str) -> None:
        off = np.abs(found - truth) / error
        assert (off < SIGMAS).all(), (
            f"{what}: off by {off.max():.1f} standard errors\n{found}\n{truth}"
        )

    def multinomial(probs: Array, draws: Array | float) -> Array:
        return np.asarray(np.sqrt(probs * (1 - probs) / draws))

    close(
        params.initial_probs[order],
        problem.initial,
        multinomial(problem.initial, len(problem.lengths)),
        "initial",
    )
    moves = multinomial(problem.transition, leaving[:, None])
    close(params.transition_matrix[np.ix_(order, order)], problem.transition, moves, "transition")
    close(params.means[order], problem.means, np.sqrt(problem.variances / rows[:, None]), "means")
    close(
        params.variances[order],
        problem.variances,
        problem.variances * np.sqrt(2 / rows[:, None]),
        "variances",
    )
    for found, table in zip(params.category_probs, problem.category_probs, strict=True):
        close(found[order], table, multinomial(table, rows[:, None]), "category")

    probs = model.smooth(panel).probs
    np.testing.assert_array_equal(align_states(np.eye(3)[problem.states], probs), order)
    agreement = np.mean(probs[:, order].argmax(axis=1) == problem.states)
    assert agreement > best_agreement(5, missing) - 0.01
