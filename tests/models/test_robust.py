"""The robust emission: its density, and how far a single field can move the log odds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student_t

from tests.reference.bridge import baum_welch, panel_of, variational
from tests.reference.columns import column_terms
from tests.reference.problems import random_factors, random_problem
from turncoat import Panel, VariationalHMM
from turncoat.models.variational import MAX_DISTANCE, MIN_WIDTH, ROBUST_DOF

N_CELLS, SIZES = 5, (2, 6)
WEIGHTS = [1.0, 0.3, 0.0, 2.5, 0.7, 0.0, 1.4]
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"weights": WEIGHTS},
    "tempered": {"temperature": 3.0, "weights": WEIGHTS},
}
VALUES = [s * 10.0**e for e in range(-3, 13) for s in (1, -1)]
settings_ = pytest.mark.parametrize("settings", SETTINGS)


@cache
def robust_model(settings: str = "plain") -> VariationalHMM:
    """Narrow and wide columns, with few and with many degrees of freedom."""
    q = random_factors(3, 4, N_CELLS, SIZES)
    q.scale[:, 0], q.dof[:, 1], q.location[:, 4] = 1e-6, 900.0, 40.0
    return variational(q, emission="robust", **SETTINGS[settings])


def draw_rows(n_rows: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    cells = rng.standard_t(1.5, (n_rows, N_CELLS)) * 10.0 ** rng.integers(-2, 3, (n_rows, 1))
    codes = np.stack([rng.integers(-1, size, n_rows) for size in SIZES], axis=1)
    cells[rng.random(cells.shape) < 0.1] = np.nan
    return cells, codes


def test_density_is_a_student_s_with_limits() -> None:
    model, (cells, codes) = robust_model(), draw_rows(300, 0)
    found, _, _ = model.explain_emission(cells, codes)
    q = model.params_
    wanted = column_terms(model, cells, codes)[:, :, :N_CELLS]
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
    assert (ROBUST_DOF, MIN_WIDTH, MAX_DISTANCE) == (4.0, 0.1, 10.0)
    x = np.array([[0.004, 0.0, 0.0, 0.0, 0.0]]) + q.location[:1]  # first column: of least width
    near = model.explain_emission(x, [[-1, -1]])[0][0, 0, 0]
    assert near == pytest.approx(student_t.logpdf(0.004, min(q.dof[0, 0], 4.0), scale=0.1))


def test_density_is_flat_beyond_ten_widths_and_falls_before() -> None:
    model, q = robust_model(), robust_model().params_
    width = np.maximum(np.sqrt(q.scale * (1 + 1 / q.mean_strength) / q.dof), 0.1)
    assert (q.dof[:, 1] > 4).all()  # then four degrees of freedom are left
    for side in (1, -1):
        distances = [0.0, 3.0, 9.99, 10.01, 1e3, 1e9]
        cells = np.array([q.location[0] + side * d * width[0] for d in distances])
        found = model.explain_emission(cells, np.full((6, 2), -1))[0][:, 0, 1]
        assert (np.diff(found[:4]) < 0).all()
        np.testing.assert_array_equal(found[3:], found[3])


def log_odds(model: VariationalHMM, cells: Any, codes: Any) -> Any:
    """Log odds of all pairs of states [N, K, K], apart from the belief before the row."""
    emission = model.log_emission(cells, codes)
    return emission[:, :, None] - emission[:, None, :]


@settings_
def test_removing_a_field_moves_the_log_odds_by_at_most_the_limit(settings: str) -> None:
    model, (cells, codes) = robust_model(settings), draw_rows(400, 1)
    limits = model.limit_field_effects()
    assert limits.shape == (N_CELLS + 2,)
    assert np.isfinite(limits).all()
    for column, limit in enumerate(limits):
        fewer, less = cells.copy(), codes.copy()
        table, place = (fewer, column) if column < N_CELLS else (less, column - N_CELLS)
        table[:, place] = np.nan if column < N_CELLS else -1
        moved = np.abs(log_odds(model, fewer, less) - log_odds(model, cells, codes)).max()
        assert moved <= limit + 1e-9
        assert (
            (moved == 0.0) == (limit == 0.0) == (model.weights is not None and not WEIGHTS[column])
        )
    if settings != "plain":
        plain = robust_model().limit_field_effects()
        scaled = plain * WEIGHTS / model.temperature
        np.testing.assert_allclose(limits, scaled, atol=1e-12)


@settings_
def test_changing_a_field_moves_the_log_odds_by_at_most_twice_the_limit(settings: str) -> None:
    model, (cells, codes) = robust_model(settings), draw_rows(60, 2)
    limits, before = model.limit_field_effects(), log_odds(model, cells, codes)
    for column, limit in enumerate(limits):
        choices = VALUES if column < N_CELLS else range(SIZES[column - N_CELLS])
        for value in choices:
            fewer, less = cells.copy(), codes.copy()
            table, place = (fewer, column) if column < N_CELLS else (less, column - N_CELLS)
            table[:, place] = value
            assert np.abs(log_odds(model, fewer, less) - before).max() <= 2 * limit + 1e-9


@settings_
def test_a_live_step_respects_the_limit(settings: str) -> None:
    """The log odds of the new belief, given the same belief before."""
    model, (cells, codes) = robust_model(settings), draw_rows(20, 3)
    limits, belief = model.limit_field_effects(), np.full(4, 0.25)
    for row, names in zip(cells, codes, strict=True):
        before = np.log(model.step(belief, row, names))
        for column in range(N_CELLS):
            for value in (np.nan, *VALUES):
                changed = row.copy()
                changed[column] = value
                moved = np.log(model.step(belief, changed, names)) - before
                factor = 1 if np.isnan(value) or np.isnan(row[column]) else 2
                assert np.ptp(moved) <= factor * limits[column] + 1e-7


@pytest.mark.parametrize("column", range(N_CELLS + 2))
def test_the_limit_is_no_larger_than_it_must_be(column: int) -> None:
    """The highest density of one state, against the lowest of another."""
    model = robust_model()
    near = np.vstack([np.repeat(model.params_.location, 2, axis=0), np.full((4, N_CELLS), 1e12)])
    codes = np.stack([np.arange(12) % size for size in SIZES], axis=1)
    terms = np.concatenate(model.explain_emission(near, codes)[:2], axis=2)[:, :, column]
    limit = model.limit_field_effects()[column]
    if column < N_CELLS:
        assert limit == pytest.approx(terms.max() - terms.min(), rel=1e-9)
    else:
        assert limit == pytest.approx(np.ptp(terms, axis=1).max(), rel=1e-9)


def test_other_emissions_have_no_limit() -> None:
    model, problem = robust_model(), random_problem(1, 2, N_CELLS, SIZES, [3])
    for other in (
        model.copy_with(emission="expected-log"),
        model.copy_with(emission="predictive"),
        baum_welch(problem),
    ):
        limits = other.limit_field_effects()
        assert (limits[:N_CELLS] == np.inf).all()
        assert np.isfinite(limits[N_CELLS:]).all()
        unused = other.copy_with(weights=WEIGHTS).limit_field_effects()
        expected = [0.0 if w == 0 else np.inf for w in WEIGHTS[:N_CELLS]]
        np.testing.assert_array_equal(unused[:N_CELLS], expected)


@settings_
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_filter_equals_steps(settings: str, precision: str) -> None:
    cells, codes = draw_rows(80, 4)
    cells[5, 0], cells[40, 3] = 1e12, -1e9
    if precision == "float32":
        cells = cells.astype(np.float32)
    panel = Panel.from_arrays(cells, codes, lengths=[30, 1, 49], n_categories=SIZES)
    model = robust_model(settings).copy_with(precision=precision)
    filtered, belief = model.filter(panel).probs, None
    for row in range(panel.n_rows):
        belief = None if row in panel.offsets else belief
        belief = model.step(belief, panel.continuous[row], panel.categorical[row])
        atol = 1e-10 if precision == "float64" else 1e-4
        np.testing.assert_allclose(filtered[row], belief, atol=atol)


def test_a_fit_does_not_depend_on_the_emission() -> None:
    panel = panel_of(random_problem(2, 2, 3, (3,), [10] * 8))
    fits = [
        VariationalHMM(2, n_restarts=1, max_iter=5, emission=emission).fit(panel)
        for emission in ("robust", "expected-log")
    ]
    assert fits[0].fit_report_.history == fits[1].fit_report_.history
    assert not np.allclose(*(model.filter(panel).probs for model in fits), atol=1e-3)
