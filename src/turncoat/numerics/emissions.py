"""Compiled emission kernels: how well each state explains each row of a block."""

from __future__ import annotations

import math

from turncoat.numerics.compiled import compiled
from turncoat.numerics.structures import Array, Observations, Potentials, Scratch
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
    total,
)

TILE_ROWS = 4


@compiled
def load_block(continuous: Array, first: int, last: int, shift: Array, block: Array) -> None:
    """Copy rows first..last into the padded block, shifted; rows up to the next whole tile are cleared."""
    n_rows = last - first
    for t in range(n_rows):
        for d in range(continuous.shape[1]):
            block[t, d] = continuous[first + t, d] - shift[d]
    for t in range(n_rows, -(-n_rows // TILE_ROWS) * TILE_ROWS):
        for d in range(block.shape[1]):
            block[t, d] = 0


@compiled
def _tile_of_four(block: Array, r: int, scale: Array, location: Array, k: int, out: Array) -> None:
    """Squared distances of four rows to four states: sixteen sums in registers."""
    nothing = splat(0.0, load16(scale, (0, 0)))
    a00 = a01 = a02 = a03 = nothing
    a10 = a11 = a12 = a13 = nothing
    a20 = a21 = a22 = a23 = nothing
    a30 = a31 = a32 = a33 = nothing
    for d in range(0, block.shape[1], 16):
        s0, s1, s2, s3 = load16(scale, (k, d)), load16(scale, (k + 1, d)), load16(scale, (k + 2, d)), load16(scale, (k + 3, d))
        m0, m1 = load16(location, (k, d)), load16(location, (k + 1, d))
        m2, m3 = load16(location, (k + 2, d)), load16(location, (k + 3, d))
        x = load16(block, (r, d))
        t0, t1, t2, t3 = residual(x, s0, m0), residual(x, s1, m1), residual(x, s2, m2), residual(x, s3, m3)
        a00, a01, a02, a03 = fma(t0, t0, a00), fma(t1, t1, a01), fma(t2, t2, a02), fma(t3, t3, a03)
        x = load16(block, (r + 1, d))
        t0, t1, t2, t3 = residual(x, s0, m0), residual(x, s1, m1), residual(x, s2, m2), residual(x, s3, m3)
        a10, a11, a12, a13 = fma(t0, t0, a10), fma(t1, t1, a11), fma(t2, t2, a12), fma(t3, t3, a13)
        x = load16(block, (r + 2, d))
        t0, t1, t2, t3 = residual(x, s0, m0), residual(x, s1, m1), residual(x, s2, m2), residual(x, s3, m3)
        a20, a21, a22, a23 = fma(t0, t0, a20), fma(t1, t1, a21), fma(t2, t2, a22), fma(t3, t3, a23)
        x = load16(block, (r + 3, d))
        t0, t1, t2, t3 = residual(x, s0, m0), residual(x, s1, m1), residual(x, s2, m2), residual(x, s3, m3)
        a30, a31, a32, a33 = fma(t0, t0, a30), fma(t1, t1, a31), fma(t2, t2, a32), fma(t3, t3, a33)
    out[r, k], out[r, k + 1], out[r, k + 2], out[r, k + 3] = total(a00), total(a01), total(a02), total(a03)
    out[r + 1, k], out[r + 1, k + 1], out[r + 1, k + 2], out[r + 1, k + 3] = total(a10), total(a11), total(a12), total(a13)
    out[r + 2, k], out[r + 2, k + 1], out[r + 2, k + 2], out[r + 2, k + 3] = total(a20), total(a21), total(a22), total(a23)
    out[r + 3, k], out[r + 3, k + 1], out[r + 3, k + 2], out[r + 3, k + 3] = total(a30), total(a31), total(a32), total(a33)


@compiled
def _tile_of_one(block: Array, r: int, scale: Array, location: Array, k: int, out: Array) -> None:
    """Squared distances of four rows to one state, for the states left over by `_tile_of_four`."""
    nothing = splat(0.0, load16(scale, (0, 0)))
    a0 = a1 = a2 = a3 = nothing
    for d in range(0, block.shape[1], 16):
        s, m = load16(scale, (k, d)), load16(location, (k, d))
        t0, t1 = residual(load16(block, (r, d)), s, m), residual(load16(block, (r + 1, d)), s, m)
        t2, t3 = residual(load16(block, (r + 2, d)), s, m), residual(load16(block, (r + 3, d)), s, m)
        a0, a1, a2, a3 = fma(t0, t0, a0), fma(t1, t1, a1), fma(t2, t2, a2), fma(t3, t3, a3)
    out[r, k], out[r + 1, k], out[r + 2, k], out[r + 3, k] = total(a0), total(a1), total(a2), total(a3)


@compiled
def gaussian_distances(block: Array, n_rows: int, scale: Array, location: Array, out: Array) -> None:
    """Sum of t^2 over the cells that are there, for every row of the block and every state."""
    n_states = scale.shape[0]
    whole = n_states - n_states % 4
    for r in range(0, n_rows, TILE_ROWS):
        for k in range(0, whole, 4):
            _tile_of_four(block, r, scale, location, k, out)
        for k in range(whole, n_states):
            _tile_of_one(block, r, scale, location, k, out)


@compiled
def student_distances(block: Array, n_rows: int, scale: Array, location: Array, half_dof: Array, inverse_dof: Array, out: Array) -> None:
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
def _exact_distances(values: Array, potentials: Potentials, out: Array) -> None:
    """Subtract half of one row's squared distances in float64, for values so far out that float32 overflows."""
    for k in range(potentials.n_states):
        summed = 0.0
        for d in range(values.shape[0]):
            x = float(values[d])
            if x == x:
                t = (x - float(potentials.shift[d])) * float(potentials.scale[k, d]) - float(potentials.location[k, d])
                summed += t * t
        out[k] -= 0.5 * summed


@compiled
def _table_terms(flags: Array, flag_tables: Array, levels: Array, level_table: Array, row: int, base: int, like: object) -> object:
    """Sum of one row's flag and level terms for states base..base + 8, in the lanes of `like`."""
    even = odd = splat(0.0, load8(level_table, (0, base)))
    paired = flags.shape[1] - flags.shape[1] % 2
    for g in range(0, paired, 2):
        even = add(even, load8(flag_tables, (g, flags[row, g], base)))
        odd = add(odd, load8(flag_tables, (g + 1, flags[row, g + 1], base)))
    for g in range(paired, flags.shape[1]):
        even = add(even, load8(flag_tables, (g, flags[row, g], base)))
    paired = levels.shape[1] - levels.shape[1] % 2
    for j in range(0, paired, 2):
        even = add(even, load8(level_table, (levels[row, j], base)))
        odd = add(odd, load8(level_table, (levels[row, j + 1], base)))
    for j in range(paired, levels.shape[1]):
        even = add(even, load8(level_table, (levels[row, j], base)))
    return convert(add(even, odd), like)


@compiled
def block_emissions(observations: Observations, potentials: Potentials, scratch: Scratch, first: int, last: int, target: int) -> None:
    """Load rows first..last and write their emissions to scratch rows target..., shifted by each row's maximum.

    The shift goes to `scratch.shifts`. In the scaled (linear) recursion the emissions are exponentiated here.
    """
    n_rows = last - first
    constant, emissions, anchors = potentials.constant, scratch.emissions, observations.anchors
    width = constant.shape[0]
    has_columns = observations.continuous.shape[1] > 0
    if has_columns:
        load_block(observations.continuous, first, last, potentials.shift, scratch.block)
        if potentials.half_dof.shape[0] > 0:
            student_distances(
                scratch.block,
                n_rows,
                potentials.scale,
                potentials.location,
                potentials.half_dof,
                potentials.inverse_dof,
                scratch.distances,
            )
        else:
            gaussian_distances(scratch.block, n_rows, potentials.scale, potentials.location, scratch.distances)
    has_tables = observations.flags.shape[1] + observations.levels.shape[1] > 0
    half = splat(-0.5, load8(constant, (0,)))
    for t in range(n_rows):
        row, place = first + t, target + t
        top = -math.inf
        for base in range(0, width, 8):
            value = load8(constant, (base,))
            if has_tables:
                value = add(
                    value,
                    _table_terms(
                        observations.flags,
                        potentials.flag_tables,
                        observations.levels,
                        potentials.level_table,
                        row,
                        base,
                        value,
                    ),
                )
            if anchors.shape[0] > 0:
                value = add(value, load8(potentials.anchor_table, (anchors[row], base)))
            store(emissions, (place, base), value)
            if has_columns:
                value = fma(convert(load8(scratch.distances, (t, base)), value), half, value)
            top = max(top, largest(value))
        if top == -math.inf and has_columns:
            _exact_distances(observations.continuous[row], potentials, emissions[place])
            for k in range(potentials.n_states):
                top = max(top, emissions[place, k])
            has_distance = False
        else:
            has_distance = has_columns
        scratch.shifts[place] = top
        for base in range(0, width, 8):
            value = load8(emissions, (place, base))
            if has_distance:
                value = fma(convert(load8(scratch.distances, (t, base)), value), half, value)
            value = add(value, splat(-top, value))
            store(emissions, (place, base), exp(value) if potentials.linear else value)
