"""Matrices over gaps, expected jumps and hours against matrix exponentials and quadrature."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad_vec
from scipy.linalg import expm

from turncoat.arrays import Array
from turncoat.numerics.generators import (
    GAP_BITS,
    MAX_RATE,
    N_GAP_CODES,
    GapTable,
    build_gap_table,
    build_generator,
    code_hours,
    expected_jumps,
    gap_codes,
    gap_error_bound,
    limit_rates,
    transition_over,
)

CODES = np.array([0, 1, 30, 200, 401, 451, 500, 603])


def draw_generator(n_states: int, seed: int = 0, deficit: float = 0.0) -> Array:
    """Rates of very different size; with a deficit, rows add up to less than 0."""
    rng = np.random.default_rng(seed)
    generator = build_generator(rng.gamma(0.3, 2.0, (n_states, n_states)))
    return generator - deficit * np.diag(rng.random(n_states))


def matrix(table: GapTable, code: int, n_states: int) -> Array:
    return np.exp(table.log_scales[code]) * table.matrices[code, :n_states, :n_states]


def test_codes_are_the_nearest_gaps() -> None:
    codes = np.arange(N_GAP_CODES)
    hours = code_hours(codes)
    assert (np.diff(hours) > 0).all()
    np.testing.assert_array_equal(gap_codes(3600.0 * hours), codes)
    rng = np.random.default_rng(0)
    seconds = np.exp(rng.uniform(np.log(0.3), np.log(3.6e9), 100_000))
    found = 3600.0 * code_hours(gap_codes(seconds))
    assert 0.95 / 2**GAP_BITS < np.abs(found / seconds - 1.0).max() <= 1.0 / 2**GAP_BITS
    neighbours = 3600.0 * np.stack([hours[gap_codes(seconds) + step] for step in (-1, 1)])
    assert (np.abs(found - seconds) <= np.abs(neighbours - seconds).min(axis=0) * (1 + 1e-9)).all()


def test_whole_hours_and_days_are_kept_and_extremes_end_at_the_table() -> None:
    exact = np.array([0, 15 * 60, 3600, 5 * 3600, 86400, 3 * 86400, 7 * 86400])
    np.testing.assert_array_equal(3600.0 * code_hours(gap_codes(exact)), exact)
    np.testing.assert_array_equal(gap_codes([0.0, 0.01, 0.2, 1e300]), [0, 0, 1, N_GAP_CODES - 1])
    assert code_hours(N_GAP_CODES - 1) > 24 * 365 * 100


@pytest.mark.parametrize("n_states", [1, 2, 3, 8, 9])
@pytest.mark.parametrize("deficit", [0.0, 0.5])
def test_table_is_the_matrix_exponential(n_states: int, deficit: float) -> None:
    generator = draw_generator(n_states, deficit=deficit)
    table = build_gap_table(generator)
    for code in (*CODES, 700, 750):
        expected = expm(generator * code_hours(code))
        found = matrix(table, code, n_states)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-300)
    assert (table.matrices[:, n_states:] == 0.0).all()
    assert (table.matrices >= 0.0).all()
    rows = table.matrices[:, :n_states].sum(axis=2)
    np.testing.assert_allclose(rows.max(axis=1), 1.0, rtol=1e-12)
    if not deficit:
        np.testing.assert_allclose(rows, 1.0, rtol=1e-12)
        np.testing.assert_allclose(table.log_scales, 0.0, atol=1e-8)


@pytest.mark.parametrize("hours", [0.0, 1e-9, 0.3, 1.0, 17.0, 1e4])
@pytest.mark.parametrize("deficit", [0.0, 0.001])
def test_transitions_over_any_time_are_the_matrix_exponential(hours: float, deficit: float) -> None:
    generator = draw_generator(3, deficit=deficit)
    expected = expm(generator * hours)
    np.testing.assert_allclose(transition_over(generator, hours), expected, rtol=1e-9, atol=1e-12)


def test_scales_of_long_gaps_do_not_underflow() -> None:
    generator = np.array([[-2.0, 1.0], [0.5, -1.0]])
    table = build_gap_table(generator)
    slowest = np.linalg.eigvals(generator).max()
    assert table.log_scales[-1] == pytest.approx(slowest * code_hours(N_GAP_CODES - 1), abs=1.0)
    assert (table.matrices[-1, :2, :2] > 0.1).all()


def test_extreme_rates_stay_finite() -> None:
    for generator in (
        np.zeros((3, 3)),
        build_generator(np.full((3, 3), 1e-300)),
        limit_rates(build_generator(np.full((3, 3), 1e12))),
        build_generator(np.array([[0.0, 1e-9, 0.0], [0.0, 0.0, MAX_RATE], [0.0, 0.0, 0.0]])),
    ):
        table = build_gap_table(generator)
        np.testing.assert_allclose(table.matrices[:, :3].sum(axis=2), 1.0, rtol=1e-5)
        weights = np.ones((len(CODES), 3, 3)) * table.matrices[CODES, :3, :3]
        assert np.isfinite(expected_jumps(generator, table, CODES, weights)).all()
    np.testing.assert_allclose(np.diag(limit_rates(build_generator(np.ones((3, 3))))), -2.0)


@pytest.mark.parametrize("deficit", [0.0, 0.5])
@pytest.mark.parametrize("n_states", [1, 2, 3, 9])
def test_jumps_and_hours_are_integrals_over_the_gap(n_states: int, deficit: float) -> None:
    generator = draw_generator(n_states, deficit=deficit)
    rng = np.random.default_rng(1)
    transitions = rng.random((len(CODES), n_states, n_states))
    transitions[0] = np.eye(n_states)
    expected = np.zeros((n_states, n_states))
    for code, counts in zip(CODES, transitions, strict=True):
        hours = float(code_hours(code))
        weights = counts / np.maximum(expm(generator * hours), 1e-30)

        def at(s: float, hours: float = hours, weights: Array = weights) -> Array:
            return expm(generator.T * s) @ weights @ expm(generator.T * (hours - s))

        expected += quad_vec(at, 0.0, hours, epsrel=1e-11)[0]
    table = build_gap_table(generator)
    found = expected_jumps(generator, table, CODES, transitions)
    off_diagonal = ~np.eye(n_states, dtype=bool)
    np.testing.assert_allclose(np.diag(found), np.diag(expected), rtol=1e-9)
    np.testing.assert_allclose(found[off_diagonal], (expected * generator)[off_diagonal], rtol=1e-9)
    if not deficit:  # every hour of every gap is spent in some state
        total = (transitions.sum(axis=(1, 2)) * code_hours(CODES)).sum()
        assert np.trace(found) == pytest.approx(total, rel=1e-9)


def test_jumps_and_hours_of_simulated_paths() -> None:
    """Paths on a fine time grid, which is wrong by about the size of its steps."""
    generator = draw_generator(3, seed=2)
    hours, n_steps = float(code_hours(500)), 2000
    step = np.eye(3) + generator * hours / n_steps
    first, last = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.5, 0.9])
    before, after = [first], [last]
    for _ in range(n_steps):
        before.append(before[-1] @ step)
        after.append(step @ after[-1])
    pairs = [np.outer(before[s], after[n_steps - s - 1]) for s in range(n_steps)]
    expected = np.sum(pairs, axis=0) * hours / n_steps
    expected = np.where(np.eye(3, dtype=bool), expected, expected * generator)
    transitions = first[:, None] * expm(generator * hours) * last
    code = np.array([500])
    found = expected_jumps(generator, build_gap_table(generator), code, transitions[None])
    np.testing.assert_allclose(found, expected, rtol=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_moves_rows_by_less_than_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n_states in (2, 3, 6):
        generator = draw_generator(n_states, seed)
        if seed == 0:  # round and round: the slowest to forget its gap
            generator = build_generator(np.roll(np.eye(n_states), 1, axis=1))
        fastest = -np.diag(generator).min()
        for hours in np.exp(rng.uniform(-6, 6, 30)):
            rounded = float(code_hours(gap_codes(3600.0 * hours)))
            moved = np.abs(expm(generator * hours) - expm(generator * rounded)).sum(axis=1)
            assert moved.max() <= gap_error_bound(fastest, hours) + 1e-12
    assert gap_error_bound(1.0, 1.0) < 0.02
