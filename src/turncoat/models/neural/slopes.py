"""The encoder's layers at many places of a path, and slopes led back through them: what integrated gradients spend their time on."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from turncoat.arrays import Array
from turncoat.models.neural.folded import add_code_rows, add_products
from turncoat.numerics.compiled import compiled
from turncoat.numerics.vectors import exp, fma, load8, load16, splat, store

ROUNDING = 1e-5  # of LayerNorm, as in the encoder
_LANES = 16  # columns that `_product` works on at a time


def panels(weight: Array) -> Array:
    """Weights [I, H] as [H / 16, I, 16], filled up with zeros: what is multiplied together lies together."""
    n_inputs, width = weight.shape
    filled = np.zeros((n_inputs, -(-width // _LANES) * _LANES))
    filled[:, :width] = weight
    return np.ascontiguousarray(
        filled.reshape(n_inputs, filled.shape[1] // _LANES, _LANES).swapaxes(0, 1)
    )


# The normal tail beyond x >= 0 is exp(-x^2 / 2) times a polynomial in (x - 4) / (x + 4), to 3e-15: erf one number at a time is far slower.
_TAIL_MIDDLE, _TAIL_DEGREE = 4.0, 20
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def _tail_polynomial() -> Array:
    """Its coefficients, the highest power first."""
    places = chebyshev.chebpts1(_TAIL_DEGREE + 1)
    x = _TAIL_MIDDLE * (1.0 + places) / (1.0 - places)
    return chebyshev.cheb2poly(
        chebyshev.chebfit(places, 0.5 * erfcx(x * math.sqrt(0.5)), _TAIL_DEGREE)
    )[::-1].copy()


_TAIL = _tail_polynomial()


@compiled
def lead(
    standard: Array, own: Array, first_weight: Array, tables: Array, absent: Array
) -> tuple[Array, Array]:
    """How fast the first hidden layer and what codes add to the fused one change along the path, both [H]."""
    inner, fused = np.zeros(first_weight.shape[1]), -absent
    add_products(standard, first_weight, inner)
    add_code_rows(fused, own, tables)
    return inner, fused


@compiled
def along(
    t: Array,
    inner_start: Array,
    inner_change: Array,
    fused_start: Array,
    fused_change: Array,
    second: Array,
    gain: Array,
    bias: Array,
    last: Array,
    gelu: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """Latents at places t, below them how fast they change there [2 M, latent_dim or more]; and the other `_Layers`."""
    n, width = len(t), len(gain)
    hidden = np.zeros((2 * n, _LANES * len(second)))
    for m in range(n):
        for h in range(width):
            hidden[m, h] = inner_start[h] + t[m] * inner_change[h]
    hidden_slopes = _gelu(hidden[:n])
    for m in range(n):
        for h in range(width):
            hidden[n + m, h] = hidden_slopes[m, h] * inner_change[h]
    fused = _product(hidden, second)
    settled, spread = np.empty((n, width)), np.empty(n)
    for m in range(n):
        for h in range(width):
            fused[m, h] += fused_start[h] + t[m] * fused_change[h]
            fused[n + m, h] += fused_change[h]
        spread[m] = _standardise(fused[m], settled[m])
        _through_norm(fused[n + m], settled[m], spread[m])
        for h in range(width):
            fused[m, h] = settled[m, h] * gain[h] + bias[h]
            fused[n + m, h] *= gain[h]
    outer_slopes = _gelu(fused[:n]) if gelu else np.ones((n, fused.shape[1]))
    for m in range(n):
        for h in range(width):
            fused[n + m, h] *= outer_slopes[m, h]
    return _product(fused, last), hidden_slopes, settled, spread, outer_slopes


@compiled
def back(
    weight: Array,
    slopes: Array,
    hidden_slopes: Array,
    settled: Array,
    spread: Array,
    outer_slopes: Array,
    gain: Array,
    last_back: Array,
    second_back: Array,
) -> tuple[Array, Array]:
    """Means along the path of the slopes in the first hidden layer and in the fused one [C, H], from those in the latents [M, C, L]."""
    n, n_kinds, width = len(weight), slopes.shape[1], len(gain)
    at_fused = _product(slopes.reshape(n * n_kinds, slopes.shape[2]), last_back)
    mean_inner, mean_fused = np.zeros((n_kinds, width)), np.zeros((n_kinds, width))
    for m in range(n):
        for c in range(n_kinds):
            row = at_fused[m * n_kinds + c]
            for h in range(width):
                row[h] *= outer_slopes[m, h] * gain[h]
            _through_norm(row, settled[m], spread[m])
            for h in range(width):
                mean_fused[c, h] += weight[m] * row[h]
    at_hidden = _product(at_fused, second_back)  # of no width without cells
    for m in range(n):
        for c in range(n_kinds):
            for h in range(min(width, at_hidden.shape[1])):
                mean_inner[c, h] += weight[m] * at_hidden[m * n_kinds + c, h] * hidden_slopes[m, h]
    return mean_inner, mean_fused


@compiled
def of_inputs(
    at_inner: Array, at_fused: Array, first_weight: Array, tables: Array, own: Array, missing: Array
) -> tuple[Array, Array]:
    """Slopes in the cells [C, D], and what codes are given [C, J], from mean slopes [C, H]."""
    n_kinds, width = at_inner.shape
    of_cells, of_codes = np.empty((n_kinds, len(first_weight))), np.empty((n_kinds, len(own)))
    for c in range(n_kinds):
        for d in range(len(first_weight)):
            slope = 0.0
            for h in range(width):
                slope += at_inner[c, h] * first_weight[d, h]
            of_cells[c, d] = slope
        for j in range(len(own)):
            given = 0.0
            for h in range(width):
                given += at_fused[c, h] * (
                    np.float64(tables[own[j], h]) - np.float64(tables[missing[j], h])
                )
            of_codes[c, j] = given
    return of_cells, of_codes


@compiled
def _product(values: Array, panels: Array) -> Array:
    """Values [M, I or more] times weights [I, H] in panels, filled up to whole panels.

    BLAS would share so small a product among threads, which costs a live service more than it brings.
    """
    n_rows, n_panels, n_inputs = len(values), panels.shape[0], panels.shape[1]
    out = np.empty((n_rows, _LANES * n_panels))
    zero = load16(np.zeros((1, _LANES)), (0, 0))
    for p in range(n_panels):
        for first in range(0, n_rows, 4):
            second, third, fourth = (
                min(first + 1, n_rows - 1),
                min(first + 2, n_rows - 1),
                min(first + 3, n_rows - 1),
            )
            a, b, c, d = zero, zero, zero, zero
            for i in range(n_inputs):
                weight = load16(panels, (p, i, 0))
                a = fma(splat(values[first, i], zero), weight, a)
                b = fma(splat(values[second, i], zero), weight, b)
                c = fma(splat(values[third, i], zero), weight, c)
                d = fma(splat(values[fourth, i], zero), weight, d)
            store(out, (first, _LANES * p), a)
            store(out, (second, _LANES * p), b)
            store(out, (third, _LANES * p), c)
            store(out, (fourth, _LANES * p), d)
    return out


@compiled
def _gelu(table: Array) -> Array:
    """GELU of every number of a table [M, a multiple of 8] in its place; its slopes."""
    n_rows, width = table.shape
    slopes = np.empty((n_rows, width))
    peaks, places, tails = np.empty(width), np.empty(width), np.empty(width)
    for m in range(n_rows):
        for h in range(width):
            size = abs(table[m, h])
            peaks[h] = -0.5 * size * size
            places[h] = (size - _TAIL_MIDDLE) / (size + _TAIL_MIDDLE)
            tails[h] = 0.0
        for h in range(0, width, 8):
            store(peaks, (h,), exp(load8(peaks, (h,))))
        for coefficient in _TAIL:
            for h in range(width):
                tails[h] = tails[h] * places[h] + coefficient
        for h in range(width):
            value, tail = table[m, h], tails[h] * peaks[h]
            below = tail if value < 0.0 else 1.0 - tail
            slopes[m, h] = below + value * peaks[h] * _DENSITY
            table[m, h] = value * below
    return slopes


@compiled
def _standardise(values: Array, out: Array) -> float:
    """LayerNorm without its gain of the first numbers [H], and the spread that it divided by."""
    width = len(out)
    mean, square = 0.0, 0.0
    for h in range(width):
        mean += values[h]
    mean /= width
    for h in range(width):
        out[h] = values[h] - mean
        square += out[h] * out[h]
    spread = math.sqrt(square / width + ROUNDING)
    for h in range(width):
        out[h] /= spread
    return spread


@compiled
def _through_norm(slopes: Array, settled: Array, spread: float) -> None:
    """Slopes on one side of a LayerNorm become those on the other: the matrix between them is symmetric."""
    width = len(settled)
    mean, along = 0.0, 0.0
    for h in range(width):
        mean += slopes[h]
        along += slopes[h] * settled[h]
    mean, along = mean / width, along / width
    for h in range(width):
        slopes[h] = (slopes[h] - mean - settled[h] * along) / spread
