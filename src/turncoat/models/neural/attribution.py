"""Which input says what: a state's log emission over latents, shared out among the cells and codes of a row by integrated gradients.

The path leads from an average row (every cell at its mean, every code missing) to the row itself, straight in the cells as the first
LayerNorm leaves them. Along the cells themselves that norm would turn ever faster the more alike they are, and give two like cells
huge shares of opposite signs. What the inputs are given adds up to the difference between the two ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.special import erfcx

from turncoat.models.neural.folded import FoldedEncoder, add_code_rows, add_products
from turncoat.numerics.compiled import compiled
from turncoat.numerics.vectors import exp, fma, load8, load16, splat, store

Array = NDArray[Any]
Emission = Callable[[Array], Array]  # latents [M, latent_dim] to what each adds to the log emission of every state [M, K, latent_dim]

_FEWEST_STEPS, _MOST_STEPS = 16, 1024
_COMPLETE = 1e-4  # of the difference between the ends: as long as more is missing, the steps are doubled
_SMALL = 1e-4  # for slopes of the emission, which is smooth in each latent
_ROUNDING = 1e-5  # of LayerNorm, as in the encoder
_LANES = 16  # columns that `_product` works on at a time


def attributed(encoder: FoldedEncoder, emission: Emission, cells: Array, codes: Array) -> tuple[Array, Array, Array]:
    """Of one row [D] and [J]: what cells and codes add to the log emission of every state [K, D] and [K, J], and the average row's [K].

    The last holds what numerical integration missed, so that all together are the log emission itself.
    """
    path = _Path(encoder, cells, codes)
    walk = path.walked(emission)
    of_cells, of_codes = path.shared_out(walk, walk.slopes)
    return of_cells, of_codes, walk.rest


def attributed_odds(
    encoder: FoldedEncoder, emission: Emission, cells: Array, codes: Array, state: int, log_predicted: Array
) -> tuple[int, Array, Array, float]:
    """Likewise for the log odds of one state against its strongest rival alone, given the log belief before the row [K].

    The rival, and what cells [D], codes [J] and the average row add; it takes a fraction of the time that all states take.
    """
    path = _Path(encoder, cells, codes)
    walk = path.walked(emission)
    scores = log_predicted + walk.reached
    scores[state] = -np.inf
    rival = int(scores.argmax())
    slopes = walk.slopes[:, state] - walk.slopes[:, rival]
    of_cells, of_codes = path.shared_out(walk, slopes[:, None])
    return rival, of_cells[0], of_codes[0], float(walk.rest[state] - walk.rest[rival])


class _Layers(NamedTuple):
    """What slopes are led back through at the places of a path, and where it leads from there."""

    changes: Array  # [M, latent_dim] how fast the latents change along the path
    hidden_slopes: Array  # [M, hidden_dim or more] of the first GELU
    settled: Array  # [M, hidden_dim] after the second LayerNorm, without its gain
    spread: Array  # [M] that it divided by
    outer_slopes: Array  # [M, hidden_dim or more] of the second GELU


class _Walk(NamedTuple):
    """A path with as many steps as it needs."""

    weight: Array  # [M] of every step
    layers: _Layers
    slopes: Array  # [M, K, latent_dim] of the log emission in the latents
    reached: Array  # [K] the log emission at the row
    rest: Array  # [K] what is not given to cells and codes


class _Path:
    """From the average row, at t = 0, to the row, at t = 1; and slopes along it."""

    def __init__(self, encoder: FoldedEncoder, cells: Array, codes: Array) -> None:
        self.encoder, self.weights = encoder, _weights(encoder)
        self.own = encoder.table_places(np.asarray(codes, np.int64))
        given = np.asarray(cells, np.float64)
        self.missing = np.isnan(given)
        self.cells = np.where(self.missing, 0.0, given)
        self.standard, self.spread = self.cells, 1.0
        if encoder.layout.normalises_cells:
            centred = self.cells - self.cells.mean()
            self.spread = math.sqrt(float(np.square(centred).mean()) + _ROUNDING)
            self.standard = centred / self.spread
        self.inner, self.fused = _lead(self.standard, self.own, encoder.first_weight, encoder.tables, self.weights.absent)

    def latents(self, t: Array) -> tuple[Array, _Layers]:
        """Latents [M, latent_dim] at these places, and the layers on the way."""
        weights, gelu = self.weights, self.encoder.layout.activation == "gelu"
        start = weights.first_bias, self.inner, weights.fused, self.fused
        found, *layers = _along(t, *start, weights.second, weights.gain, weights.bias, weights.last, gelu)
        used = found[:, : self.encoder.layout.latent_dim]
        return used[: len(t)], _Layers(used[len(t) :], *layers)

    def walked(self, emission: Emission) -> _Walk:
        """The path with enough steps for every state."""
        steps = _FEWEST_STEPS
        while True:
            t, weight = _nodes(steps)
            latents, layers = self.latents(t)
            start, end = emission(latents[steps:]).sum(axis=2)  # [K]
            within = latents[:steps]
            slopes = (emission(within + _SMALL) - emission(within - _SMALL)) / (2 * _SMALL)
            given = np.einsum("mkl,ml->k", slopes, weight[:, None] * layers.changes[:steps])  # to all inputs together
            missed = end - start - given
            if steps >= _MOST_STEPS or (np.abs(missed) <= _COMPLETE * (1.0 + np.abs(end - start))).all():
                return _Walk(weight, layers, slopes, end, start + missed)
            steps *= 2

    def shared_out(self, walk: _Walk, slopes: Array) -> tuple[Array, Array]:
        """What cells [C, D] and codes [C, J] are given for slopes in the latents [M, C, latent_dim]."""
        weights, encoder = self.weights, self.encoder
        layers = walk.layers
        at_inner, at_fused = _back(
            walk.weight,
            slopes,
            layers.hidden_slopes,
            layers.settled,
            layers.spread,
            layers.outer_slopes,
            weights.gain,
            weights.last_back,
            weights.second_back,
        )
        of_cells, of_codes = _of_inputs(at_inner, at_fused, encoder.first_weight, encoder.tables, self.own, weights.missing)
        return self._of_present(of_cells), of_codes

    def _of_present(self, slopes: Array) -> Array:
        """What cells [C, D] are given for mean slopes [C, D] in normalised cells.

        A missing one is given nothing. It is away from the row's mean because of the others, so its share is theirs.
        """
        given = slopes * self.standard
        if self.encoder.layout.normalises_cells and self.missing.any():
            pull = -slopes[:, self.missing].sum(axis=1, keepdims=True) / (len(self.cells) * self.spread)
            given = np.where(self.missing, 0.0, given + pull * self.cells)
        return np.asarray(given)


class _Weights(NamedTuple):
    """An encoder in float64: large weights in panels as `_product` reads them, those for slopes turned."""

    first_bias: Array  # [hidden_dim]
    second: Array
    second_back: Array
    fused: Array  # [hidden_dim] what the fused layer starts from: its bias, every code missing
    gain: Array  # [hidden_dim]
    bias: Array  # [hidden_dim]
    last: Array
    last_back: Array
    missing: Array  # [J] rows of the tables for missing codes
    absent: Array  # [hidden_dim] what they add

    @classmethod
    def of(cls, encoder: FoldedEncoder) -> _Weights:
        first_bias, second, second_bias, gain, bias, last = (
            array.astype(np.float64)
            for array in (
                encoder.first_bias,
                encoder.second_weight,
                encoder.second_bias,
                encoder.norm_gain,
                encoder.norm_bias,
                encoder.latent_weight,
            )
        )
        missing = encoder.table_places(np.full(len(encoder.layout.n_categories), -1))
        absent = encoder.tables[missing].sum(axis=0, dtype=np.float64)
        panels = _panels(second), _panels(second.T), _panels(last), _panels(last.T)
        return cls(first_bias, *panels[:2], second_bias + absent, gain, bias, *panels[2:], missing, absent)


_KNOWN: WeakKeyDictionary[FoldedEncoder, _Weights] = WeakKeyDictionary()  # made once, and no part of what is saved


def _weights(encoder: FoldedEncoder) -> _Weights:
    known = _KNOWN.get(encoder)
    if known is None:
        known = _KNOWN[encoder] = _Weights.of(encoder)
    return known


def _panels(weight: Array) -> Array:
    """Weights [I, H] as [H / 16, I, 16], filled up with zeros: what is multiplied together lies together."""
    n_inputs, width = weight.shape
    filled = np.zeros((n_inputs, -(-width // _LANES) * _LANES))
    filled[:, :width] = weight
    return np.ascontiguousarray(filled.reshape(n_inputs, filled.shape[1] // _LANES, _LANES).swapaxes(0, 1))


@cache
def _nodes(steps: int) -> tuple[Array, Array]:
    """Places between 0 and 1 (Gauss-Legendre), followed by 0 and 1 themselves; the weights of those between."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return np.append(0.5 * (nodes + 1.0), [0.0, 1.0]), 0.5 * weights


# The normal tail beyond x >= 0 is exp(-x^2 / 2) times a polynomial in (x - 4) / (x + 4), to 3e-15: erf one number at a time is far slower.
_TAIL_MIDDLE, _TAIL_DEGREE = 4.0, 20
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


def _tail_polynomial() -> Array:
    """Its coefficients, the highest power first."""
    places = chebyshev.chebpts1(_TAIL_DEGREE + 1)
    x = _TAIL_MIDDLE * (1.0 + places) / (1.0 - places)
    return chebyshev.cheb2poly(chebyshev.chebfit(places, 0.5 * erfcx(x * math.sqrt(0.5)), _TAIL_DEGREE))[::-1].copy()


_TAIL = _tail_polynomial()


@compiled
def _lead(standard: Array, own: Array, first_weight: Array, tables: Array, absent: Array) -> tuple[Array, Array]:
    """How fast the first hidden layer and what codes add to the fused one change along the path, both [H]."""
    inner, fused = np.zeros(first_weight.shape[1]), -absent
    add_products(standard, first_weight, inner)
    add_code_rows(fused, own, tables)
    return inner, fused


@compiled
def _along(
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
def _back(
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
def _of_inputs(at_inner: Array, at_fused: Array, first_weight: Array, tables: Array, own: Array, missing: Array) -> tuple[Array, Array]:
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
                given += at_fused[c, h] * (np.float64(tables[own[j], h]) - np.float64(tables[missing[j], h]))
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
            second, third, fourth = min(first + 1, n_rows - 1), min(first + 2, n_rows - 1), min(first + 3, n_rows - 1)
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
    spread = math.sqrt(square / width + _ROUNDING)
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
