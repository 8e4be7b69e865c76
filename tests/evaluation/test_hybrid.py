"""Hybrid columns against enumeration and the model's own likelihoods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.reference.bridge import baum_welch, panel_of, variational
from tests.reference.enumeration import enumerate_paths
from tests.reference.enumeration import log as log0
from tests.reference.problems import Problem, random_factors, random_problem
from tests.scoring.detectors import data_of, detector
from turncoat import BaumWelchHMM, Detector, NotFittedError, Panel
from turncoat.evaluation import hybrid
from turncoat.evaluation.hybrid import hybrid_columns, hybrid_names, row_log_likelihoods

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


def sums(values: Any, panel: Panel) -> Any:
    return np.add.reduceat(values, panel.offsets[:-1])


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
    np.testing.assert_allclose(
        row_log_likelihoods(baum_welch(problem), panel_of(problem)), expected, rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@kinds
@shapes
def test_rows_add_up_to_the_sequence_whatever_the_temperature(
    shape: str, kind: str, temperature: float
) -> None:
    problem = problem_of(shape)
    model, panel = model_of(problem, kind, temperature=temperature), panel_of(problem)
    found = row_log_likelihoods(model, panel)
    np.testing.assert_allclose(
        sums(found, panel), model.log_likelihood(panel), rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(hybrid_columns(model, panel)[:, -1], found, rtol=1e-6)
    assert model.temperature == temperature


def test_rows_in_many_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = baum_welch(problem), panel_of(problem)
    whole = row_log_likelihoods(model, panel)
    monkeypatch.setattr(hybrid, "_BATCH_CELLS", 1)
    np.testing.assert_array_equal(row_log_likelihoods(model, panel), whole)


@kinds
def test_columns_are_belief_change_entropy_and_likelihood(kind: str) -> None:
    problem = problem_of("gaussian")
    model, panel = model_of(problem, kind, temperature=2.0), panel_of(problem)
    columns, belief = hybrid_columns(model, panel), model.filter(panel).probs
    assert columns.shape == (panel.n_rows, 8)
    assert columns.dtype == np.float32
    assert len(hybrid_names(3)) == len(set(hybrid_names(3))) == 8
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
    whole = hybrid_columns(model, panel)
    for u in range(panel.n_sequences):
        for length in range(1, int(panel.lengths[u]) + 1):
            start = int(panel.offsets[u])
            rows = slice(start, start + length)
            prefix = Panel.from_arrays(
                panel.continuous[rows], panel.categorical[rows], n_categories=panel.n_categories
            )
            np.testing.assert_allclose(hybrid_columns(model, prefix), whole[rows], atol=1e-6)


def test_a_detector_gives_the_columns_of_its_model() -> None:
    made = detector()
    panel = made.features_.transform(data_of("shop").transactions)
    columns = hybrid_columns(made, panel)
    np.testing.assert_array_equal(columns, hybrid_columns(made.model_, panel))
    assert np.isfinite(columns).all()
    np.testing.assert_allclose(
        sums(columns[:, -1].astype(np.float64), panel),
        made.model_.log_likelihood(panel),
        rtol=1e-4,
        atol=1e-3,
    )


def test_an_unfitted_source_is_refused() -> None:
    panel = panel_of(problem_of("gaussian"))
    for source in (Detector(), BaumWelchHMM(3)):
        with pytest.raises(NotFittedError):
            hybrid_columns(source, panel)
