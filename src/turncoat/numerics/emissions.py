"""Compiled emission kernels: how well each state explains each row of a block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.compiled import compiled
from turncoat.numerics.structures import Observations, Potentials, Scratch
from turncoat.numerics.vectors import (
    add,
    convert,
    exp,
    fma,
    largest,
    load8,
    load16,
    log,
    multiply,
    residual,
    splat,
    store,
    subtract,
    total,
    totals,
)

TILE_ROWS = 4


@compiled
def load_block(continuous: Array, first: int, last: int, shift: Array, block: Array) -> None:
    """Copy rows first..last into the padded block, shifted; rows up to the next whole tile are cleared."""
    n_rows, n_columns = last - first, continuous.shape[1]
    like = load16(block, (0, 0))
    for t in range(n_rows):
        if n_columns < 16:
            for d in range(n_columns):
                block[t, d] = continuous[first + t, d] - shift[d]
        else:
            for d in range(0, n_columns - 15, 16):
                _load_cells(continuous, first + t, d, shift, block, t, like)
            _load_cells(continuous, first + t, n_columns - 16, shift, block, t, like)
    for t in range(n_rows, -(-n_rows // TILE_ROWS) * TILE_ROWS):
        for d in range(0, block.shape[1], 16):
            store(block, (t, d), splat(0.0, like))


@compiled
def _load_cells(
    continuous: Array, row: int, d: int, shift: Array, block: Array, t: int, like: Any
) -> None:
    offset = load16(shift, (d,))
    cells = convert(load16(continuous, (row, d)), offset)
    store(block, (t, d), convert(subtract(cells, offset), like))


@compiled
def _tile_of_four(block: Array, r: int, scale: Array, location: Array, k: int, out: Array) -> None:
    """Squared distances of four rows to four states: sixteen sums in registers."""
    nothing = splat(0.0, load16(scale, (0, 0)))
    a00 = a01 = a02 = a03 = nothing
    a10 = a11 = a12 = a13 = nothing
    a20 = a21 = a22 = a23 = nothing
    a30 = a31 = a32 = a33 = nothing
    for d in range(0, block.shape[1], 16):
        s0, s1, s2, s3 = (
            load16(scale, (k, d)),
            load16(scale, (k + 1, d)),
            load16(scale, (k + 2, d)),
            load16(scale, (k + 3, d)),
        )
        m0, m1 = load16(location, (k, d)), load16(location, (k + 1, d))
        m2, m3 = load16(location, (k + 2, d)), load16(location, (k + 3, d))
        x = load16(block, (r, d))
        t0, t1, t2, t3 = (
            residual(x, s0, m0),
            residual(x, s1, m1),
            residual(x, s2, m2),
            residual(x, s3, m3),
        )
        a00, a01, a02, a03 = fma(t0, t0, a00), fma(t1, t1, a01), fma(t2, t2, a02), fma(t3, t3, a03)
        x = load16(block, (r + 1, d))
        t0, t1, t2, t3 = (
            residual(x, s0, m0),
            residual(x, s1, m1),
            residual(x, s2, m2),
            residual(x, s3, m3),
        )
        a10, a11, a12, a13 = fma(t0, t0, a10), fma(t1, t1, a11), fma(t2, t2, a12), fma(t3, t3, a13)
        x = load16(block, (r + 2, d))
        t0, t1, t2, t3 = (
            residual(x, s0, m0),
            residual(x, s1, m1),
            residual(x, s2, m2),
            residual(x, s3, m3),
        )
        a20, a21, a22, a23 = fma(t0, t0, a20), fma(t1, t1, a21), fma(t2, t2, a22), fma(t3, t3, a23)
        x = load16(block, (r + 3, d))
        t0, t1, t2, t3 = (
            residual(x, s0, m0),
            residual(x, s1, m1),
            residual(x, s2, m2),
            residual(x, s3, m3),
        )
        a30, a31, a32, a33 = fma(t0, t0, a30), fma(t1, t1, a31), fma(t2, t2, a32), fma(t3, t3, a33)
    store(out, (r, k), totals(a00, a01, a02, a03))
    store(out, (r + 1, k), totals(a10, a11, a12, a13))
    store(out, (r + 2, k), totals(a20, a21, a22, a23))
    store(out, (r + 3, k), totals(a30, a31, a32, a33))


@compiled
def _tile_of_one(block: Array, r: int, scale: Array, location: Array, k: int, out: Array) -> None:
    """Squared distances of four rows to one state, for the states left over by `_tile_of_four`."""
    nothing = splat(0.0, load16(scale, (0, 0)))
    a0 = a1 = a2 = a3 = nothing
    for d in range(0, block.shape[1], 16):
        s, m = load16(scale, (k, d)), load16(location, (k, d))
        t0, t1 = residual(load16(block, (r, d)), s, m), residual(load16(block, (r + 1, d)), s, m)
        t2, t3 = (
            residual(load16(block, (r + 2, d)), s, m),
            residual(load16(block, (r + 3, d)), s, m),
        )
        a0, a1, a2, a3 = fma(t0, t0, a0), fma(t1, t1, a1), fma(t2, t2, a2), fma(t3, t3, a3)
    out[r, k], out[r + 1, k], out[r + 2, k], out[r + 3, k] = (
        total(a0),
        total(a1),
        total(a2),
        total(a3),
    )


@compiled
def gaussian_distances(
    block: Array, n_rows: int, scale: Array, location: Array, out: Array
) -> None:
    """Sum of t^2 over the cells that are there, for every row of the block and every state."""
    n_states = scale.shape[0]
    whole = n_states - n_states % 4
    for r in range(0, n_rows, TILE_ROWS):
        for k in range(0, whole, 4):
            _tile_of_four(block, r, scale, location, k, out)
        for k in range(whole, n_states):
            _tile_of_one(block, r, scale, location, k, out)


@compiled
def student_distances(
    block: Array,
    n_rows: int,
    scale: Array,
    location: Array,
    half_dof: Array,
    inverse_dof: Array,
    out: Array,
) -> None:
    """Twice the sum of half_dof * log(1 + t^2 / dof): the Student counterpart of a squared distance, in float64."""
    like = load8(half_dof, (0, 0))
    one = splat(1.0, like)
    for t in range(n_rows):
        for k in range(scale.shape[0]):
            summed = splat(0.0, like)
            for d in range(0, block.shape[1], 8):
                away = residual(
                    convert(load8(block, (t, d)), like),
                    convert(load8(scale, (k, d)), like),
                    convert(load8(location, (k, d)), like),
                )
                ratio = fma(multiply(away, away), load8(inverse_dof, (k, d)), one)
                summed = fma(load8(half_dof, (k, d)), log(ratio), summed)
            out[t, k] = 2.0 * total(summed)


@compiled
def _exact_distances(
    continuous: Array, row: int, potentials: Potentials, out: Array, place: int
) -> None:
    """Subtract half of one row's squared distances in float64, for values so far out that float32 overflows."""
    for k in range(potentials.n_states):
        summed = 0.0
        for d in range(continuous.shape[1]):
            x = np.float64(continuous[row, d])
            if x == x:
                t = (x - np.float64(potentials.shift[d])) * potentials.scale[
                    k, d
                ] - potentials.location[k, d]
                summed += t * t
        out[place, k] -= 0.5 * summed


@compiled
def _table_terms(
    observations: Observations,
    potentials: Potentials,
    n_rows: int,
    first: int,
    emissions: Array,
    target: int,
) -> None:
    """Write constant, flag and level terms of rows first... to emissions; two rows at a time, each in the same fixed order."""
    flags, levels = observations.flags, observations.levels
    flag_tables, level_table = potentials.flag_tables, potentials.level_table
    for base in range(0, emissions.shape[1], 8):
        constant = load8(potentials.constant, (base,))
        nothing = splat(0.0, load8(potentials.level_table, (0, base)))
        for t in range(0, n_rows, 2):
            a, b = first + t, first + min(t + 1, n_rows - 1)
            sum_a = sum_b = nothing
            for g in range(flags.shape[1]):
                sum_a = add(sum_a, load8(flag_tables, (g, flags[a, g], base)))
                sum_b = add(sum_b, load8(flag_tables, (g, flags[b, g], base)))
            for j in range(levels.shape[1]):
                sum_a = add(sum_a, load8(level_table, (levels[a, j], base)))
                sum_b = add(sum_b, load8(level_table, (levels[b, j], base)))
            store(emissions, (target + a - first, base), add(constant, convert(sum_a, constant)))
            store(emissions, (target + b - first, base), add(constant, convert(sum_b, constant)))


@compiled
def _distances(
    observations: Observations, potentials: Potentials, scratch: Scratch, first: int, last: int
) -> None:
    """Load rows first..last and measure them against every state."""
    load_block(observations.continuous, first, last, potentials.shift, scratch.block)
    if potentials.half_dof.shape[0] > 0:
        student_distances(
            scratch.block,
            last - first,
            potentials.scale,
            potentials.location,
            potentials.half_dof,
            potentials.inverse_dof,
            scratch.distances,
        )
    else:
        gaussian_distances(
            scratch.block, last - first, potentials.scale, potentials.location, scratch.distances
        )


@compiled
def _with_distance(emissions: Array, place: int, distances: Array, t: int, base: int) -> Any:
    """Eight states' terms of one row, less half their distances."""
    value = load8(emissions, (place, base))
    return fma(convert(load8(distances, (t, base)), value), splat(-0.5, value), value)


@compiled
def _find_peaks(
    emissions: Array, distances: Array, n_rows: int, target: int, shifts: Array
) -> bool:
    """Note each row's largest emission; says whether every row has one that is finite."""
    finite = True
    for t in range(n_rows):
        top = -math.inf
        for base in range(0, emissions.shape[1], 8):
            top = max(top, largest(_with_distance(emissions, target + t, distances, t, base)))
        shifts[target + t] = top
        finite &= top > -math.inf
    return finite


@compiled
def _measure_again(
    observations: Observations,
    potentials: Potentials,
    scratch: Scratch,
    n_rows: int,
    first: int,
    target: int,
) -> None:
    """Give the rows without a finite peak their exact distances, and their peak with them."""
    for t in range(n_rows):
        place = target + t
        if scratch.shifts[place] == -math.inf:
            _exact_distances(
                observations.continuous, first + t, potentials, scratch.emissions, place
            )
            for k in range(potentials.n_states):
                scratch.distances[t, k] = 0.0
                scratch.shifts[place] = max(scratch.shifts[place], scratch.emissions[place, k])


@compiled
def _shift_rows(
    emissions: Array, distances: Array, n_rows: int, target: int, shifts: Array, linear: bool
) -> None:
    """Shift each row's emissions by its peak and, for the scaled recursion, exponentiate them."""
    for t in range(n_rows):
        for base in range(0, emissions.shape[1], 8):
            value = _with_distance(emissions, target + t, distances, t, base)
            value = add(value, splat(-shifts[target + t], value))
            store(emissions, (target + t, base), exp(value) if linear else value)


@compiled
def block_emissions(
    observations: Observations,
    potentials: Potentials,
    scratch: Scratch,
    first: int,
    last: int,
    target: int,
) -> None:
    """Write the emissions of rows first..last to scratch rows target..., shifted by each row's maximum.

    The shift goes to `scratch.shifts`. In the scaled (linear) recursion the emissions are exponentiated here. A row's
    emissions depend on that row alone, bit for bit: not on its neighbours, nor on what the rest of the panel is missing.
    Each step is a loop of its own: short loops overlap their rows, one long loop waits for each row's peak.
    """
    emissions, distances, anchors, shifts = (
        scratch.emissions,
        scratch.distances,
        observations.anchors,
        scratch.shifts,
    )
    n_rows = last - first
    has_columns = observations.continuous.shape[1] > 0
    if has_columns:
        _distances(observations, potentials, scratch, first, last)
    _table_terms(observations, potentials, n_rows, first, emissions, target)
    if anchors.shape[0] > 0:
        for t in range(n_rows):
            for base in range(0, emissions.shape[1], 8):
                anchor = load8(potentials.anchor_table, (anchors[first + t], base))
                store(
                    emissions, (target + t, base), add(load8(emissions, (target + t, base)), anchor)
                )
    if not _find_peaks(emissions, distances, n_rows, target, shifts) and has_columns:
        _measure_again(observations, potentials, scratch, n_rows, first, target)
    _shift_rows(emissions, distances, n_rows, target, shifts, potentials.linear)
