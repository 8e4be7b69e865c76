"""Kernels of integrated gradients: the encoder's layers along a path, and backpropagation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erfcx

from turncoat.arrays import Array
from turncoat.models.neural.frozen import FrozenEncoder, add_code_rows, add_products, standardise
from turncoat.numerics.jit import jit
from turncoat.numerics.vectors import exp, fma, load8, load16, splat, store

_LANES = 16  # columns per panel


class PathWeights(NamedTuple):
    """An encoder in float64. Large weights are packed in panels, also transposed (`_back`)."""

    first_bias: Array  # [hidden_dim]
    fused: Array  # [hidden_dim] fused layer at the start: its bias, every code missing
    gain: Array  # [hidden_dim]
    bias: Array  # [hidden_dim]
    second: Array
    second_back: Array
    last: Array
    last_back: Array
    first: Array  # [D, hidden_dim] float32
    tables: Array  # [codes, hidden_dim] float32
    missing: Array  # [J] rows of the tables for missing codes
    absent: Array  # [hidden_dim] what these rows add

    @classmethod
    def from_encoder(cls, encoder: FrozenEncoder) -> PathWeights:
        """Convert and pack the weights of an encoder."""
        missing = encoder.table_places(np.full(len(encoder.layout.n_categories), -1))
        absent = encoder.tables[missing].sum(axis=0, dtype=np.float64)
        fused = encoder.second_bias + absent
        vectors = (encoder.first_bias, fused, encoder.norm_gain, encoder.norm_bias)
        _, second, last = encoder.float64_weights()
        packed = (pack_panels(weight) for weight in (second, second.T, last, last.T))
        wide = (vector.astype(np.float64) for vector in vectors)
        shared = encoder.first_weight, encoder.tables
        return cls._make((*wide, *packed, *shared, missing, absent))


class PathLayers(NamedTuple):
    """The layers at the M nodes of a path, for backpropagation."""

    hidden_slopes: Array  # [M, hidden_dim or more] of the first GELU
    normalised: Array  # [M, hidden_dim] after the second LayerNorm, without its gain
    deviation: Array  # [M] that it divided by
    outer_slopes: Array  # [M, hidden_dim or more] of the second GELU


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
def path_directions(standard: Array, code_rows: Array, weights: PathWeights) -> tuple[Array, Array]:
    """Return derivatives along the path of the first hidden and the fused layer, both [H]."""
    inner, fused = np.zeros(weights.first.shape[1]), -weights.absent
    add_products(standard, weights.first, inner)
    add_code_rows(fused, code_rows, weights.tables)
    return inner, fused


@jit
def run_along_path(
    t: Array, inner_change: Array, fused_change: Array, weights: PathWeights, gelu: bool
) -> tuple[Array, PathLayers]:
    """Return latents at places t, then their derivatives [2 M, latent_dim or more], and layers."""
    gain, bias = weights.gain, weights.bias
    n, width = len(t), len(gain)
    hidden = np.zeros((2 * n, _LANES * len(weights.second)))
    for m in range(n):
        for h in range(width):
            hidden[m, h] = weights.first_bias[h] + t[m] * inner_change[h]
    hidden_slopes = _apply_gelu(hidden[:n])
    for m in range(n):
        for h in range(width):
            hidden[n + m, h] = hidden_slopes[m, h] * inner_change[h]
    fused = _multiply(hidden, weights.second)
    normalised, deviation = np.empty((n, width)), np.empty(n)
    for m in range(n):
        for h in range(width):
            fused[m, h] += weights.fused[h] + t[m] * fused_change[h]
            fused[n + m, h] += fused_change[h]
        normalised[m] = fused[m, :width]
        deviation[m] = standardise(normalised[m])
        _backpropagate_norm(fused[n + m], normalised[m], deviation[m])
        for h in range(width):
            fused[m, h] = normalised[m, h] * gain[h] + bias[h]
            fused[n + m, h] *= gain[h]
    outer_slopes = _apply_gelu(fused[:n]) if gelu else np.ones((n, fused.shape[1]))
    for m in range(n):
        for h in range(width):
            fused[n + m, h] *= outer_slopes[m, h]
    layers = PathLayers(hidden_slopes, normalised, deviation, outer_slopes)
    return _multiply(fused, weights.last), layers


@jit
def backpropagate(
    node_weights: Array, slopes: Array, layers: PathLayers, weights: PathWeights
) -> tuple[Array, Array]:
    """Return mean slopes in the first hidden and the fused layer [C, H] from those in latents."""
    n, n_kinds, width = len(node_weights), slopes.shape[1], len(weights.gain)
    at_fused = _multiply(slopes.reshape(n * n_kinds, slopes.shape[2]), weights.last_back)
    mean_inner, mean_fused = np.zeros((n_kinds, width)), np.zeros((n_kinds, width))
    for m in range(n):
        for c in range(n_kinds):
            row = at_fused[m * n_kinds + c]
            for h in range(width):
                row[h] *= layers.outer_slopes[m, h] * weights.gain[h]
            _backpropagate_norm(row, layers.normalised[m], layers.deviation[m])
            for h in range(width):
                mean_fused[c, h] += node_weights[m] * row[h]
    at_hidden = _multiply(at_fused, weights.second_back)  # has no columns without cells
    for m in range(n):
        for c in range(n_kinds):
            row = at_hidden[m * n_kinds + c]
            for h in range(min(width, len(row))):
                mean_inner[c, h] += node_weights[m] * row[h] * layers.hidden_slopes[m, h]
    return mean_inner, mean_fused


@jit
def backpropagate_to_inputs(
    at_inner: Array, at_fused: Array, code_rows: Array, weights: PathWeights
) -> tuple[Array, Array]:
    """Return slopes in the cells [C, D] and contributions of codes [C, J] from slopes [C, H]."""
    first_weight, tables, missing = weights.first, weights.tables, weights.missing
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
