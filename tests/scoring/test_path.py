"""Columns of a path against enumeration and the model's own likelihoods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.reference import bridge
from tests.reference.bridge import QUIET, baum_welch, variational
from tests.reference.enumeration import enumerate_paths
from tests.reference.enumeration import log as log0
from tests.reference.problems import Problem, random_factors, random_problem
from turncoat import BaumWelchHMM, Panel, VariationalHMM
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
chains = pytest.mark.parametrize("transitions", ["per-row", "continuous"])


def problem_of(shape: str) -> Problem:
    return random_problem(17, 3, lengths=(5, 1, 4, 6), **SHAPES[shape])


def panel_of(problem: Problem) -> Panel:
    """With times; some rows have that of the row before."""
    panel, rng = bridge.panel_of(problem), np.random.default_rng(3)
    gaps_s = np.where(rng.random(panel.n_rows) < 0.2, 0.0, rng.exponential(9e3, panel.n_rows))
    return replace(panel, times=gaps_s.cumsum())


def model_of(problem: Problem, kind: str, transitions: str = "per-row", **settings: Any) -> Any:
    if transitions == "continuous":
        options = {**QUIET, "max_iter": 2, "transitions": transitions, **settings}
        if kind == "point":
            return BaumWelchHMM(3, **options).fit(panel_of(problem))
        return VariationalHMM(3, emission=kind, **options).fit(panel_of(problem))
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


@chains
@kinds
@shapes
def test_rows_add_up_to_the_sequence(shape: str, kind: str, transitions: str) -> None:
    problem = problem_of(shape)
    model, panel = model_of(problem, kind, transitions), panel_of(problem)
    found = columns_of(model, panel)[:, -1].astype(np.float64)
    sums = np.add.reduceat(found, panel.offsets[:-1])
    np.testing.assert_allclose(sums, model.log_likelihood(panel), rtol=1e-5, atol=1e-5)


@chains
def test_rows_in_many_pieces_are_the_same(
    transitions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = model_of(problem, "point", transitions), panel_of(problem)
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


@chains
def test_no_row_depends_on_later_rows(transitions: str) -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = model_of(problem, "point", transitions), panel_of(problem)
    whole = columns_of(model, panel)
    for u in range(panel.n_sequences):
        for length in range(1, int(panel.lengths[u]) + 1):
            start = int(panel.offsets[u])
            rows = slice(start, start + length)
            columns = panel.continuous[rows], panel.categorical[rows]
            about = {"times": panel.times[rows], "n_categories": panel.n_categories}
            prefix = Panel.from_arrays(*columns, **about)
            np.testing.assert_allclose(columns_of(model, prefix), whole[rows], atol=1e-6)
