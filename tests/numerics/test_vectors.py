"""The vector building blocks against NumPy."""

from __future__ import annotations

import numba
import numpy as np

from turncoat.numerics import vectors


def test_exp_to_the_last_bit_or_two() -> None:
    @numba.njit
    def run(values: np.ndarray, out: np.ndarray) -> None:
        for i in range(0, len(values), 8):
            vectors.store(out, (i,), vectors.exp(vectors.load8(values, (i,))))

    values = np.concatenate(
        [-np.linspace(0, 700, 8000), [-np.inf, -708.5, -1e300, 0.0, -1e-300, -0.5, -1.0, -2.0]]
    )
    out = np.empty_like(values)
    run(values, out)
    exact = np.where(values < -708, 0.0, np.exp(values))
    np.testing.assert_allclose(out, exact, rtol=5e-16)


def test_log_to_the_last_bit_or_two() -> None:
    @numba.njit
    def run(values: np.ndarray, out: np.ndarray) -> None:
        for i in range(0, len(values), 8):
            vectors.store(out, (i,), vectors.log(vectors.load8(values, (i,))))

    values = np.concatenate([np.geomspace(1e-300, 1e300, 8000), 1 + np.geomspace(1e-16, 1, 800)])
    out = np.empty_like(values)
    run(values, out)
    np.testing.assert_allclose(out, np.log(values), rtol=5e-16, atol=1e-18)


def test_reductions_residual_and_conversion() -> None:
    @numba.njit
    def run(
        values: np.ndarray, scale: np.ndarray, location: np.ndarray, out: np.ndarray
    ) -> tuple[float, float]:
        x = vectors.load16(values, (0, 16))
        t = vectors.residual(x, vectors.load16(scale, (0,)), vectors.load16(location, (0,)))
        vectors.store(out, (0,), vectors.convert(t, vectors.load16(out, (0,))))
        return vectors.total(t), vectors.largest(t)

    rng = np.random.default_rng(0)
    values = rng.normal(size=(1, 32)).astype(np.float32)
    values[0, 20] = np.nan
    scale, location = rng.normal(size=(2, 16)).astype(np.float32)
    out = np.empty(16)
    total, largest = run(values, scale, location, out)
    expected = np.nan_to_num(values[0, 16:].astype(float) * scale - location)
    np.testing.assert_allclose(out, expected, atol=1e-6)
    np.testing.assert_allclose((total, largest), (expected.sum(), expected.max()), atol=1e-5)


def test_minimum() -> None:
    @numba.njit
    def run(values: np.ndarray, out: np.ndarray) -> None:
        for i in range(0, len(values), 8):
            limit = vectors.splat(26.0, vectors.load8(values, (i,)))
            vectors.store(out, (i,), vectors.minimum(vectors.load8(values, (i,)), limit))

    for kind in (np.float32, np.float64):
        values = np.array([1.0, 26.0, np.inf, 25.999, 26.001, -np.inf, 0.0, 1e30], kind)
        out = np.empty_like(values)
        run(values, out)
        np.testing.assert_array_equal(out, np.minimum(values, kind(26.0)))


def test_four_totals_at_once() -> None:
    @numba.njit
    def run(values: np.ndarray, out: np.ndarray) -> None:
        a, b = vectors.load16(values, (0, 0)), vectors.load16(values, (1, 0))
        c, d = vectors.load16(values, (2, 0)), vectors.load16(values, (3, 0))
        vectors.store(out, (0,), vectors.totals(a, b, c, d))

    for kind in (np.float32, np.float64):
        values, out = np.random.default_rng(0).normal(size=(4, 16)).astype(kind), np.empty(4, kind)
        run(values, out)
        np.testing.assert_allclose(out, values.sum(axis=1), rtol=1e-5)
