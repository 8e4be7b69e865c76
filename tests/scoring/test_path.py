"""Columns of a path against enumeration and the model's own likelihoods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference.bridge import baum_welch, panel_of, variational
from tests.reference.enumeration import enumerate_paths
from tests.reference.enumeration import log as log0
from tests.reference.problems import Problem, random_factors, random_problem
from turncoat import Panel
from turncoat.scoring import path
from turncoat.scoring.path import filter_path_columns

SHAPES: dict[str, dict[str, Any]] = {
    "gaussian": {"n_continuous": 3, "n_categories": ()},
    "categorical": {"n_continuous": 0, "n_categories": (2, 3, 5)},
    "mixed with missing cells": {
        "n_continuous": 2,
        "n_categories": (2, 4),
        "missing": 0.3,
        "missing_rows": True,
    },
    "zeros": {"n_continuous": 2, "n_categories": (3,), "zeros": True},
}
shapes = pytest.mark.parametrize("shape", list(SHAPES))
kinds = pytest.mark.parametrize("kind", ["point", "expected-log", "predictive"])


def problem_of(shape: str) -> Problem:
    return random_problem(17, 3, lengths=(5, 1, 4, 6), **SHAPES[shape])


def model_of(problem: Problem, kind: str, **settings: Any) -> Any:
    if kind == "point":
        return baum_welch(problem, **settings)
    q = random_factors(5, problem.n_states, problem.continuous.shape[1], problem.n_categories)
    return variational(q, emission=kind, **{"precision": "float64", **settings})


def columns_of(model: Any, panel: Panel) -> Any:
    return filter_path_columns(model, panel)


@shapes
def test_rows_match_enumeration_of_all_paths(shape: str) -> None:
    problem = problem_of(shape)
    chain = log0(problem.initial), log0(problem.transition)
    expected = []
    for rows in problem.split(problem.log_emission()):
        so_far = [0.0] + [
            enumerate_paths(*chain, rows[: t + 1]).log_likelihood for t in range(len(rows))
        ]
        expected.extend(np.diff(so_far))
    found = columns_of(baum_welch(problem, precision="float64"), panel_of(problem))[:, -1]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@kinds
@shapes
def test_rows_add_up_to_the_sequence(shape: str, kind: str) -> None:
    problem = problem_of(shape)
    model, panel = model_of(problem, kind), panel_of(problem)
    found = columns_of(model, panel)[:, -1].astype(np.float64)
    sums = np.add.reduceat(found, panel.offsets[:-1])
    np.testing.assert_allclose(sums, model.log_likelihood(panel), rtol=1e-5, atol=1e-5)


def test_rows_in_many_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = baum_welch(problem), panel_of(problem)
    whole = columns_of(model, panel)
    monkeypatch.setattr(path, "_BATCH_CELLS", 1)
    monkeypatch.setattr(path, "_BATCH_ROWS", 2)
    np.testing.assert_array_equal(columns_of(model, panel), whole)


@kinds
def test_columns_are_belief_change_entropy_and_likelihood(kind: str) -> None:
    problem = problem_of("gaussian")
    model, panel = model_of(problem, kind, temperature=2.0), panel_of(problem)
    columns, belief = columns_of(model, panel), model.filter(panel).probs
    assert columns.shape == (panel.n_rows, 8)
    assert columns.dtype == np.float32
    np.testing.assert_allclose(columns[:, :3], belief, atol=1e-6)
    for start, end in zip(panel.offsets[:-1], panel.offsets[1:], strict=True):
        np.testing.assert_array_equal(columns[start, 3:6], 0.0)
        np.testing.assert_allclose(
            columns[start + 1 : end, 3:6], np.diff(belief[start:end], axis=0), atol=1e-6
        )
    np.testing.assert_allclose(columns[:, 6], -(belief * np.log(belief)).sum(axis=1), atol=1e-6)


def test_no_row_depends_on_later_rows() -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = baum_welch(problem), panel_of(problem)
    whole = columns_of(model, panel)
    for u in range(panel.n_sequences):
        for length in range(1, int(panel.lengths[u]) + 1):
            start = int(panel.offsets[u])
            rows = slice(start, start + length)
            prefix = Panel.from_arrays(
                panel.continuous[rows], panel.categorical[rows], n_categories=panel.n_categories
            )
            np.testing.assert_allclose(columns_of(model, prefix), whole[rows], atol=1e-6)
