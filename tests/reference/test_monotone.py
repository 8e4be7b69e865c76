"""The bound never decreases beyond rounding.

Log-likelihood in tier 1 (variance floor included), ELBO in tier 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat import BaumWelchHMM, VariationalHMM

from .bridge import QUIET, anchors_of, panel_of
from .problems import Problem, random_problem

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, int]:
    """A random panel (missing cells.

    Maybe anchored) and a number of states to fit that need not be the true one.
    """
    seed = draw(st.integers(0, 10_000))
    n_continuous = draw(st.integers(0, 3))
    n_categories = tuple(
        draw(st.lists(st.integers(2, 4), min_size=0 if n_continuous else 1, max_size=2))
    )
    lengths = draw(st.lists(st.integers(1, 12), min_size=3, max_size=8))
    missing, noise = draw(st.sampled_from([0.0, 0.1, 0.4])), draw(st.sampled_from([None, 0.05]))
    n_states = draw(st.integers(1, 4))
    problem = random_problem(
        seed, n_states, n_continuous, n_categories, (6, 6, *lengths), missing=missing, noise=noise
    )
    return problem, seed


def never_falls(history: np.ndarray[Any, Any], relative: float) -> bool:
    """Each bound is at least the one before, up to a share of its size."""
    history = np.asarray(history, dtype=float)
    return bool(
        np.isfinite(history).all()
        and (np.diff(history) >= -relative * (1 + np.abs(history[1:]))).all()
    )


@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(drawn=problems())
def test_bound_never_decreases(tier: Any, drawn: tuple[Problem, int]) -> None:
    """Float64, one run from its own initialisation, to 1e-9 of the bound.

    The report agrees and ends at lower_bound_.
    """
    problem, seed = drawn
    model = tier(problem.n_states, **QUIET, max_iter=40, tol=0.0, random_state=seed)
    report = model.fit(panel_of(problem), anchors=anchors_of(problem)).fit_report_
    assert never_falls(report.history, 1e-9), np.asarray(report.history)
    assert len(report.history) == report.n_iter
    assert report.decreases == ()
    assert model.lower_bound_ == pytest.approx(report.history[-1], rel=1e-12)


@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
@settings(max_examples=15, deadline=None, derandomize=True)
@given(drawn=problems())
def test_bound_never_decreases_in_float32(tier: Any, drawn: tuple[Problem, int]) -> None:
    """The same to float32 rounding."""
    problem, seed = drawn
    model = tier(
        problem.n_states,
        **{**QUIET, "precision": "float32"},
        max_iter=40,
        tol=0.0,
        random_state=seed,
    )
    report = model.fit(panel_of(problem), anchors=anchors_of(problem)).fit_report_
    assert never_falls(report.history, 1e-5), np.asarray(report.history)


@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
def test_bound_never_decreases_while_the_floor_or_the_prior_binds(tier: Any) -> None:
    """More states than the rows support.

    Collapsing states must not cost likelihood, and parameters stay finite.
    """
    problem = random_problem(4, 2, 2, (3,), (4, 3, 5), missing=0.2)
    model = tier(5, **QUIET, max_iter=200, tol=0.0, random_state=1).fit(panel_of(problem))
    assert never_falls(model.fit_report_.history, 1e-9)
    assert np.isfinite(model.params_.means).all()
    assert (np.asarray(model.params_.variances) > 0).all()
    np.testing.assert_allclose(
        np.asarray(model.params_.transition_matrix).sum(axis=1), 1, atol=1e-9
    )
