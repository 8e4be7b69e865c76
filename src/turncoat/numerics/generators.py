"""Chains in continuous time: transition matrices over gaps, expected jumps and hours per state.

A generator Q [K, K] holds rates per hour off the diagonal. Over a gap of h hours the transition
matrix is exp(Q h). In variational Bayes the rows of Q add up to less than zero, so that exp(Q h)
has no unit row sums; everything here allows for that.

Gaps are rounded to `GAP_BITS` significant bits, so a panel, a fit and the live step share one
table. The table doubles: exp(2Qh) is the square of exp(Qh). Only sums and products of numbers that
are not negative occur, so nothing cancels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.numerics.jit import jit, jit_exact
from turncoat.numerics.structures import pad_states
from turncoat.numerics.vectors import add, fma, load8, multiply, splat, store

SECONDS_PER_HOUR = 3600.0
GAP_BITS = 6  # a gap changes by at most one part in 2^6, see `gap_error_bound`
_PER_OCTAVE = 1 << (GAP_BITS - 1)
_MIN_EXPONENT, _N_OCTAVES = -14, 34  # from 0.2 seconds to 120 years, in hours
N_GAP_CODES = 1 + _PER_OCTAVE * _N_OCTAVES  # code 0 is a gap of 0
_SHORTEST = 2.0**_MIN_EXPONENT
MAX_RATE = 1.0 / _SHORTEST  # per hour: states are not left faster than the shortest gap
# Up to this many expected jumps exp(Qh) is a series with this many terms; beyond, a square.
_MAX_SERIES_JUMPS, _N_TERMS = 2.0, 28
# Keeps transitions possible at tiny gaps: far below any effect on a likelihood, far above
# underflow.
MIN_GAP_PROBABILITY = 1e-30


class GapTable(NamedTuple):
    """Transition matrices of gap codes, each divided by its largest row sum."""

    matrices: Array  # [codes, KP, KP], padded with zeros
    log_scales: Array  # [codes] log of the largest row sum


def gap_codes(gaps_s: ArrayLike) -> Array:
    """Return the codes [N] int16 of gaps in seconds, rounded to `GAP_BITS` significant bits.

    Gaps of less than 0.1 seconds become 0. Gaps of more than 120 years become 120 years.
    """
    gaps = np.asarray(gaps_s, np.float64, order="C")
    codes = np.empty(gaps.shape, np.int16)
    _encode_gaps(gaps.ravel(), codes.ravel())
    return codes


@jit_exact
def encode_gap(gap_s: float) -> int:
    """Return the code of one gap in seconds, as in `gap_codes`."""
    hours = gap_s / SECONDS_PER_HOUR
    if hours < _SHORTEST:
        return 1 if hours >= 0.5 * _SHORTEST else 0
    fraction, exponent = math.frexp(hours)
    steps = (
        int(2 * _PER_OCTAVE * fraction + 0.5) - _PER_OCTAVE
    )  # the last is the next octave's first
    return min(1 + _PER_OCTAVE * (exponent - 1 - _MIN_EXPONENT) + steps, N_GAP_CODES - 1)


@jit_exact
def _encode_gaps(gaps: Array, codes: Array) -> None:
    for row in range(len(gaps)):
        codes[row] = encode_gap(gaps[row])


def code_hours(codes: ArrayLike) -> Array:
    """Return the gaps of gap codes in hours."""
    places = np.asarray(codes, np.int64) - 1
    octave, step = np.divmod(places, _PER_OCTAVE)
    hours = np.ldexp(1.0 + step / _PER_OCTAVE, octave + _MIN_EXPONENT)
    return np.asarray(np.where(places < 0, 0.0, hours))


def gap_error_bound(max_exit_rate: ArrayLike, hours: ArrayLike) -> Array:
    """Return how far the rounding of a gap can move a row of its transition matrix, at most.

    The distance is the sum of absolute differences of a row. With x expected jumps in the gap at
    the fastest rate and a relative error e of the gap it is at most e * min(2x, sqrt(2x / e')),
    e' = 2.718...: the derivative of a uniformised chain is a difference of Poisson probabilities.
    """
    relative = 0.5**GAP_BITS
    jumps = np.asarray(max_exit_rate) * np.asarray(hours) * (1.0 + relative)
    return np.asarray(relative * np.minimum(2.0 * jumps, np.sqrt(2.0 * jumps / math.e)))


def transition_over(generator: Array, hours: float) -> Array:
    """Return the transition matrix over exactly this number of hours [K, K]."""
    k, (rate, moves) = len(generator), _uniformise(generator)
    doublings = max(0, math.ceil(math.log2(max(rate * hours / _MAX_SERIES_JUMPS, 1.0))))
    spans = np.ldexp(hours, np.arange(-doublings, 1))
    table = GapTable(np.zeros((len(spans), *moves.shape)), np.zeros(len(spans)))
    _fill_table(rate, moves, spans, 1, 1, k, table)
    if _has_unit_rows(generator, rate):
        return np.asarray(table.matrices[-1, :k, :k])
    return np.asarray(table.matrices[-1, :k, :k] * math.exp(table.log_scales[-1]))


def build_generator(rates: Array) -> Array:
    """Return rates off the diagonal [K, K] with a diagonal that makes all rows add up to 0."""
    generator = rates - np.diag(np.diag(rates))
    return np.asarray(generator - np.diag(generator.sum(axis=1)))


def limit_rates(generator: Array) -> Array:
    """Return the generator with rows divided so that no state is left faster than `MAX_RATE`."""
    exits = -np.diag(generator)[:, None]
    return np.asarray(generator * (MAX_RATE / np.maximum(exits, MAX_RATE)))


def build_gap_table(generator: Array, n_codes: int = N_GAP_CODES) -> GapTable:
    """Return the transition matrices of the first gap codes."""
    width = pad_states(len(generator))
    table = GapTable(np.zeros((n_codes, width, width)), np.zeros(n_codes))
    rate, moves = _uniformise(generator)
    hours = code_hours(np.arange(n_codes))
    n_series = _count_series(rate, hours)
    _fill_table(rate, moves, hours, n_series, _PER_OCTAVE, len(generator), table)
    if _has_unit_rows(generator, rate):
        table.log_scales[:] = 0.0
    return table


def expected_jumps(generator: Array, table: GapTable, codes: Array, transitions: Array) -> Array:
    """Return expected jumps [K, K] between states, with the hours in each state on the diagonal.

    `transitions` [M, K, K] are expected transitions over the gaps of these codes, under the
    matrices of the table (at least `MIN_GAP_PROBABILITY`).
    """
    n_states, width = len(generator), table.matrices.shape[1]
    weights = np.zeros((int(codes.max()) + 1, width, width))
    matrices = np.maximum(table.matrices[codes, :n_states, :n_states], MIN_GAP_PROBABILITY)
    weights[codes, :n_states, :n_states] = transitions / matrices
    rate, moves = _uniformise(generator)
    hours = code_hours(np.arange(len(weights)))
    integral = np.zeros((width, width))
    _integrate(rate, moves, hours, _count_series(rate, hours), table, weights, integral)
    totals = integral[:n_states, :n_states]
    return np.where(np.eye(n_states, dtype=bool), totals, totals * generator)


def _uniformise(generator: Array) -> tuple[float, Array]:
    """Return the fastest exit rate r and I + Q / r, padded [KP, KP]; no entry is negative."""
    n_states, width = len(generator), pad_states(len(generator))
    rate = float(max(-np.diag(generator).min(), np.finfo(np.float64).tiny))
    moves = np.zeros((width, width))
    moves[:n_states, :n_states] = np.maximum(np.eye(n_states) + generator / rate, 0.0)
    return rate, moves


def _has_unit_rows(generator: Array, rate: float) -> bool:
    """Whether rows of the transition matrices add up to one, not less."""
    return bool((np.abs(generator.sum(axis=1)) <= 1e-14 * rate).all())


def _count_series(rate: float, hours: Array) -> int:
    """Return how many codes use the series: at least the first octave, which has no half."""
    within = int(np.searchsorted(hours, _MAX_SERIES_JUMPS / rate, side="right"))
    return min(max(within, 1 + _PER_OCTAVE), len(hours))


@jit
def _multiply(left: Array, right: Array, out: Array) -> None:
    """Write left @ right [KP, KP] to `out`."""
    width = left.shape[0]
    for i in range(width):
        for base in range(0, width, 8):
            row = splat(0.0, load8(right, (0, base)))
            for k in range(width):
                row = fma(splat(left[i, k], row), load8(right, (k, base)), row)
            store(out, (i, base), row)


@jit
def _add_scaled(values: Array, factor: float, out: Array) -> None:
    """Add factor * values [KP, KP] to `out`."""
    for i in range(out.shape[0]):
        for base in range(0, out.shape[1], 8):
            row = load8(values, (i, base))
            store(out, (i, base), fma(row, splat(factor, row), load8(out, (i, base))))


@jit
def _normalise(matrix: Array, n_states: int) -> float:
    """Divide by the largest row sum and return its logarithm."""
    largest = 0.0
    for i in range(n_states):
        total = 0.0
        for j in range(n_states):
            total += matrix[i, j]
        largest = max(largest, total)
    for i in range(n_states):
        for base in range(0, matrix.shape[1], 8):
            row = load8(matrix, (i, base))
            store(matrix, (i, base), multiply(row, splat(1.0 / largest, row)))
    return math.log(largest)


@jit
def _fill_table(
    rate: float,
    moves: Array,
    hours: Array,
    n_series: int,
    per_octave: int,
    n_states: int,
    table: GapTable,
) -> None:
    """Fill a table of zeros: n_series matrices by the series, the others as squares.

    A gap is twice as long as the one `per_octave` places before it.
    """
    width = moves.shape[0]
    powers = np.zeros((_N_TERMS, width, width))
    for k in range(n_states):
        powers[0, k, k] = 1.0
    for n in range(1, _N_TERMS):
        _multiply(powers[n - 1], moves, powers[n])
    for code in range(len(hours)):
        matrix = table.matrices[code]
        if code < n_series:
            jumps = rate * hours[code]
            weight = math.exp(-jumps)
            for n in range(_N_TERMS):
                _add_scaled(powers[n], weight, matrix)
                weight *= jumps / (n + 1)
                if weight < 1e-40:
                    break
            table.log_scales[code] = _normalise(matrix, n_states)
        else:
            half = code - per_octave
            _multiply(table.matrices[half], table.matrices[half], matrix)
            scale = _normalise(matrix, n_states)
            table.log_scales[code] = 2.0 * table.log_scales[half] + scale


@jit
def _integrate(
    rate: float,
    moves: Array,
    hours: Array,
    n_series: int,
    table: GapTable,
    weights: Array,
    integral: Array,
) -> None:
    """Add up the integrals of exp(Q's) W exp(Q'(h - s)) over s from 0 to h, of all codes.

    `weights` [codes, KP, KP] are W for the table's matrices; they are overwritten. With
    A = exp(Qh), the integral over 2h of W is the integral over h of WA' + A'W. So weights of long
    gaps move down octave by octave, and the short gaps are a series.
    """
    width = moves.shape[0]
    turned, product = np.zeros((width, width)), np.zeros((width, width))
    for code in range(len(hours) - 1, n_series - 1, -1):
        half = code - _PER_OCTAVE
        factor = math.exp(2.0 * table.log_scales[half] - table.log_scales[code])
        turned[:, :] = table.matrices[half].T
        _multiply(weights[code], turned, product)
        _add_scaled(product, factor, weights[half])
        _multiply(turned, weights[code], product)
        _add_scaled(product, factor, weights[half])
    terms = np.zeros((_N_TERMS, width, width))
    for code in range(1, n_series):
        jumps = rate * hours[code]
        weight = hours[code] * math.exp(-jumps - table.log_scales[code])
        for n in range(_N_TERMS):
            _add_scaled(weights[code], weight, terms[n])
            weight *= jumps / (n + 2)
            if weight < 1e-40:
                break
    # The sum over a and b of moves'^a terms[a + b] moves'^b.
    turned[:, :] = moves.T
    for n in range(_N_TERMS - 2, -1, -1):
        _multiply(terms[n + 1], turned, product)
        _add_scaled(product, 1.0, terms[n])
    for n in range(_N_TERMS - 1, -1, -1):
        _multiply(turned, integral, product)
        for i in range(width):
            for base in range(0, width, 8):
                total = add(load8(product, (i, base)), load8(terms[n], (i, base)))
                store(integral, (i, base), total)
