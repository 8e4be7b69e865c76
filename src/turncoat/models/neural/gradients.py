"""Kernels of integrated gradients: the encoder's layers along a path, and backpropagation."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from turncoat.arrays import Array
from turncoat.models.neural.frozen import NORM_EPSILON, add_code_rows, add_products
from turncoat.numerics.jit import jit
from turncoat.numerics.vectors import exp, fma, load8, load16, splat, store

_LANES = 16  # columns per panel


def pack_panels(weight: Array) -> Array:
    """Return weights [I, H] as panels [H / 16, I, 16], padded with zeros, for `_multiply`."""
    n_inputs, width = weight.shape
    n_panels = -(-width // _LANES)
    padded = np.zeros((n_inputs, n_panels * _LANES))
    padded[:, :width] = weight
    return np.ascontiguousarray(padded.reshape(n_inputs, n_panels, _LANES).swapaxes(0, 1))


# The normal tail beyond x >= 0 is exp(-x^2 / 2) times a polynomial in (x - 4) / (x + 4), to 3e-15.
# Calling erf for one number at a time is far slower.
_TAIL_MIDDLE, _TAIL_DEGREE = 4.0, 20
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def _tail_polynomial() -> Array:
    """Return its coefficients, the highest power first."""
    nodes = chebyshev.chebpts1(_TAIL_DEGREE + 1)
    x = _TAIL_MIDDLE * (1.0 + nodes) / (1.0 - nodes)
    fitted = chebyshev.chebfit(nodes, 0.5 * erfcx(x * math.sqrt(0.5)), _TAIL_DEGREE)
    return chebyshev.cheb2poly(fitted)[::-1].copy()


_TAIL = _tail_polynomial()


@jit
def path_directions(
    standard: Array, code_rows: Array, first_weight: Array, tables: Array, absent: Array
) -> tuple[Array, Array]:
    """Return derivatives along the path of the first hidden and the fused layer, both [H]."""
    inner, fused = np.zeros(first_weight.shape[1]), -absent
    add_products(standard, first_weight, inner)
    add_code_rows(fused, code_rows, tables)
    return inner, fused


@jit
def run_along_path(
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
    """Return latents at places t, then their derivatives [2 M, latent_dim or more], and layers.

    The layers are the fields of `attribution._Layers` after the first.
    """
    n, width = len(t), len(gain)
    hidden = np.zeros((2 * n, _LANES * len(second)))
    for m in range(n):
        for h in range(width):
            hidden[m, h] = inner_start[h] + t[m] * inner_change[h]
    hidden_slopes = _apply_gelu(hidden[:n])
    for m in range(n):
        for h in range(width):
            hidden[n + m, h] = hidden_slopes[m, h] * inner_change[h]
    fused = _multiply(hidden, second)
    normalised, deviation = np.empty((n, width)), np.empty(n)
    for m in range(n):
        for h in range(width):
            fused[m, h] += fused_start[h] + t[m] * fused_change[h]
            fused[n + m, h] += fused_change[h]
        deviation[m] = _standardise(fused[m], normalised[m])
        _backpropagate_norm(fused[n + m], normalised[m], deviation[m])
        for h in range(width):
            fused[m, h] = normalised[m, h] * gain[h] + bias[h]
            fused[n + m, h] *= gain[h]
    outer_slopes = _apply_gelu(fused[:n]) if gelu else np.ones((n, fused.shape[1]))
    for m in range(n):
        for h in range(width):
            fused[n + m, h] *= outer_slopes[m, h]
    return _multiply(fused, last), hidden_slopes, normalised, deviation, outer_slopes


@jit
def backpropagate(
    weight: Array,
    slopes: Array,
    hidden_slopes: Array,
    normalised: Array,
    deviation: Array,
    outer_slopes: Array,
    gain: Array,
    last_back: Array,
    second_back: Array,
) -> tuple[Array, Array]:
    """Return the mean slopes along the path in the first hidden and in the fused layer [C, H].

    `slopes` [M, C, latent_dim] are slopes in the latents.
    """
    n, n_kinds, width = len(weight), slopes.shape[1], len(gain)
    at_fused = _multiply(slopes.reshape(n * n_kinds, slopes.shape[2]), last_back)
    mean_inner, mean_fused = np.zeros((n_kinds, width)), np.zeros((n_kinds, width))
    for m in range(n):
        for c in range(n_kinds):
            row = at_fused[m * n_kinds + c]
            for h in range(width):
                row[h] *= outer_slopes[m, h] * gain[h]
            _backpropagate_norm(row, normalised[m], deviation[m])
            for h in range(width):
                mean_fused[c, h] += weight[m] * row[h]
    at_hidden = _multiply(at_fused, second_back)  # has no columns without cells
    for m in range(n):
        for c in range(n_kinds):
            for h in range(min(width, at_hidden.shape[1])):
                mean_inner[c, h] += weight[m] * at_hidden[m * n_kinds + c, h] * hidden_slopes[m, h]
    return mean_inner, mean_fused


@jit
def backpropagate_to_inputs(
    at_inner: Array,
    at_fused: Array,
    first_weight: Array,
    tables: Array,
    code_rows: Array,
    missing: Array,
) -> tuple[Array, Array]:
    """Return slopes in the cells [C, D] and contributions of codes [C, J] from slopes [C, H]."""
    n_kinds, width = at_inner.shape
    cell_slopes = np.empty((n_kinds, len(first_weight)))
    from_codes = np.empty((n_kinds, len(code_rows)))
    for c in range(n_kinds):
        for d in range(len(first_weight)):
            slope = 0.0
            for h in range(width):
                slope += at_inner[c, h] * first_weight[d, h]
            cell_slopes[c, d] = slope
        for j in range(len(code_rows)):
            share = 0.0
            for h in range(width):
                own = np.float64(tables[code_rows[j], h])
                share += at_fused[c, h] * (own - np.float64(tables[missing[j], h]))
            from_codes[c, j] = share
    return cell_slopes, from_codes


@jit
def _multiply(values: Array, panels: Array) -> Array:
    """Return values [M, I or more] @ weights [I, H], given and returned in whole panels.

    BLAS would split so small a product between threads, which slows down a live service.
    """
    n_rows, n_panels, n_inputs = len(values), panels.shape[0], panels.shape[1]
    out = np.empty((n_rows, _LANES * n_panels))
    zero = load16(np.zeros((1, _LANES)), (0, 0))
    for p in range(n_panels):
        for first in range(0, n_rows, 4):
            second, third = min(first + 1, n_rows - 1), min(first + 2, n_rows - 1)
            fourth = min(first + 3, n_rows - 1)
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


@jit
def _apply_gelu(table: Array) -> Array:
    """Apply GELU in place to a table [M, a multiple of 8]; return its slopes, same shape."""
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


@jit
def _standardise(values: Array, out: Array) -> float:
    """Write the LayerNorm of values [H] to `out`, without gain; return the deviation."""
    width = len(out)
    mean, square = 0.0, 0.0
    for h in range(width):
        mean += values[h]
    mean /= width
    for h in range(width):
        out[h] = values[h] - mean
        square += out[h] * out[h]
    deviation = math.sqrt(square / width + NORM_EPSILON)
    for h in range(width):
        out[h] /= deviation
    return deviation


@jit
def _backpropagate_norm(slopes: Array, normalised: Array, deviation: float) -> None:
    """Carry slopes [H] through a LayerNorm, in either direction: its Jacobian is symmetric."""
    width = len(normalised)
    mean, along = 0.0, 0.0
    for h in range(width):
        mean += slopes[h]
        along += slopes[h] * normalised[h]
    mean, along = mean / width, along / width
    for h in range(width):
        slopes[h] = (slopes[h] - mean - normalised[h] * along) / deviation
