"""Compiled emission kernels: the log density of each row of a block under each state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit
from turncoat.numerics.structures import Job, KernelTables, Observations, Scratch
from turncoat.numerics.vectors import (
    add,
    convert,
    exp,
    fma,
    largest,
    load8,
    load16,
    log,
    minimum,
    multiply,
    residual,
    splat,
    store,
    subtract,
    total,
    totals,
)

TILE_ROWS = 4


@jit
def load_block(continuous: Array, first: int, last: int, shift: Array, block: Array) -> None:
    """Copy rows first..last, shifted, into the padded block; clear rows up to a whole tile."""
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


@jit
def _load_cells(
    continuous: Array, row: int, d: int, shift: Array, block: Array, t: int, like: Any
) -> None:
    offset = load16(shift, (d,))
    cells = convert(load16(continuous, (row, d)), offset)
    store(block, (t, d), convert(subtract(cells, offset), like))


@jit
def _tile_of_four(block: Array, r: int, scale: Array, location: Array, k: int, out: Array) -> None:
    """Squared distances of four rows to four states: sixteen sums in registers."""
    nothing = splat(0.0, load16(scale, (0, 0)))
    a00 = a01 = a02 = a03 = nothing
    a10 = a11 = a12 = a13 = nothing
    a20 = a21 = a22 = a23 = nothing
    a30 = a31 = a32 = a33 = nothing
    for d in range(0, block.shape[1], 16):
        s0, s1 = load16(scale, (k, d)), load16(scale, (k + 1, d))
        s2, s3 = load16(scale, (k + 2, d)), load16(scale, (k + 3, d))
        m0, m1 = load16(location, (k, d)), load16(location, (k + 1, d))
        m2, m3 = load16(location, (k + 2, d)), load16(location, (k + 3, d))
        x = load16(block, (r, d))
        t0, t1 = residual(x, s0, m0), residual(x, s1, m1)
        t2, t3 = residual(x, s2, m2), residual(x, s3, m3)
        a00, a01, a02, a03 = fma(t0, t0, a00), fma(t1, t1, a01), fma(t2, t2, a02), fma(t3, t3, a03)
        x = load16(block, (r + 1, d))
        t0, t1 = residual(x, s0, m0), residual(x, s1, m1)
        t2, t3 = residual(x, s2, m2), residual(x, s3, m3)
        a10, a11, a12, a13 = fma(t0, t0, a10), fma(t1, t1, a11), fma(t2, t2, a12), fma(t3, t3, a13)
        x = load16(block, (r + 2, d))
        t0, t1 = residual(x, s0, m0), residual(x, s1, m1)
        t2, t3 = residual(x, s2, m2), residual(x, s3, m3)
        a20, a21, a22, a23 = fma(t0, t0, a20), fma(t1, t1, a21), fma(t2, t2, a22), fma(t3, t3, a23)
        x = load16(block, (r + 3, d))
        t0, t1 = residual(x, s0, m0), residual(x, s1, m1)
        t2, t3 = residual(x, s2, m2), residual(x, s3, m3)
        a30, a31, a32, a33 = fma(t0, t0, a30), fma(t1, t1, a31), fma(t2, t2, a32), fma(t3, t3, a33)
    store(out, (r, k), totals(a00, a01, a02, a03))
    store(out, (r + 1, k), totals(a10, a11, a12, a13))
    store(out, (r + 2, k), totals(a20, a21, a22, a23))
    store(out, (r + 3, k), totals(a30, a31, a32, a33))


@jit
def _tile_of_one(block: Array, r: int, scale: Array, location: Array, k: int, out: Array) -> None:
    """Squared distances of four rows to one state, for the states after the last four."""
    nothing = splat(0.0, load16(scale, (0, 0)))
    a0 = a1 = a2 = a3 = nothing
    for d in range(0, block.shape[1], 16):
        s, m = load16(scale, (k, d)), load16(location, (k, d))
        t0, t1 = residual(load16(block, (r, d)), s, m), residual(load16(block, (r + 1, d)), s, m)
        t2 = residual(load16(block, (r + 2, d)), s, m)
        t3 = residual(load16(block, (r + 3, d)), s, m)
        a0, a1, a2, a3 = fma(t0, t0, a0), fma(t1, t1, a1), fma(t2, t2, a2), fma(t3, t3, a3)
    out[r, k], out[r + 1, k] = total(a0), total(a1)
    out[r + 2, k], out[r + 3, k] = total(a2), total(a3)


@jit
def _gaussian_distances(tables: KernelTables, scratch: Scratch, n_rows: int) -> None:
    """Write the sum of t^2 over the present cells, for every row of the block and every state."""
    block, out, scale, location = scratch.block, scratch.distances, tables.scale, tables.location
    n_states = scale.shape[0]
    whole = n_states - n_states % 4
    for r in range(0, n_rows, TILE_ROWS):
        for k in range(0, whole, 4):
            _tile_of_four(block, r, scale, location, k, out)
        for k in range(whole, n_states):
            _tile_of_one(block, r, scale, location, k, out)


@jit
def _student_distances(tables: KernelTables, scratch: Scratch, n_rows: int) -> None:
    """Write twice the sum of half_dof * log(min(1 + t^2 / dof, max_ratio)), in float64.

    This is the Student counterpart of a squared distance.
    """
    block, half_dof, inverse_dof = scratch.block, tables.half_dof, tables.inverse_dof
    like = load8(half_dof, (0, 0))
    one, limit = splat(1.0, like), splat(tables.max_ratio, like)
    for t in range(n_rows):
        for k in range(tables.scale.shape[0]):
            summed = splat(0.0, like)
            for d in range(0, block.shape[1], 8):
                scale = convert(load8(tables.scale, (k, d)), like)
                location = convert(load8(tables.location, (k, d)), like)
                away = residual(convert(load8(block, (t, d)), like), scale, location)
                ratio = fma(multiply(away, away), load8(inverse_dof, (k, d)), one)
                summed = fma(load8(half_dof, (k, d)), log(minimum(ratio, limit)), summed)
            scratch.distances[t, k] = 2.0 * total(summed)


@jit
def _table_terms(
    obs: Observations, tables: KernelTables, n_rows: int, first: int, emissions: Array, target: int
) -> None:
    """Write constant, flag and level terms of rows first... to emissions, two rows at a time.

    Each row's terms are added in the same fixed order.
    """
    flags, levels = obs.flags, obs.levels
    flag_tables, level_table = tables.flag_tables, tables.level_table
    for base in range(0, emissions.shape[1], 8):
        constant = load8(tables.constant, (base,))
        nothing = splat(0.0, load8(tables.level_table, (0, base)))
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


@jit
def _with_distance(emissions: Array, place: int, distances: Array, t: int, base: int) -> Any:
    """Return eight states' terms of one row, minus half their distances."""
    value = load8(emissions, (place, base))
    return fma(convert(load8(distances, (t, base)), value), splat(-0.5, value), value)


@jit
def _find_peaks(scratch: Scratch, n_rows: int, target: int) -> bool:
    """Write each row's largest emission to `shifts`; return whether all of them are finite."""
    emissions, distances, finite = scratch.emissions, scratch.distances, True
    for t in range(n_rows):
        top = -math.inf
        for base in range(0, emissions.shape[1], 8):
            top = max(top, largest(_with_distance(emissions, target + t, distances, t, base)))
        scratch.shifts[target + t] = top
        finite &= top > -math.inf
    return finite


@jit
def _recompute_exactly(job: Job, scratch: Scratch, n_rows: int, first: int, target: int) -> None:
    """Recompute rows in float64 where float32 overflowed: those without a finite peak."""
    tables, continuous = job.tables, job.obs.continuous
    for t in range(n_rows):
        place = target + t
        if scratch.shifts[place] == -math.inf:
            for k in range(tables.n_states):
                summed = 0.0
                for d in range(continuous.shape[1]):
                    x = np.float64(continuous[first + t, d])
                    if x == x:
                        away = x - np.float64(tables.shift[d])
                        residue = away * tables.scale[k, d] - tables.location[k, d]
                        summed += residue * residue
                scratch.emissions[place, k] -= 0.5 * summed
                scratch.distances[t, k] = 0.0
                scratch.shifts[place] = max(scratch.shifts[place], scratch.emissions[place, k])


@jit
def _shift_rows(scratch: Scratch, n_rows: int, target: int, linear: bool) -> None:
    """Shift each row's emissions by its peak and, for the scaled recursion, exponentiate them."""
    emissions, distances = scratch.emissions, scratch.distances
    for t in range(n_rows):
        for base in range(0, emissions.shape[1], 8):
            value = _with_distance(emissions, target + t, distances, t, base)
            value = add(value, splat(-scratch.shifts[target + t], value))
            store(emissions, (target + t, base), exp(value) if linear else value)


@jit
def block_emissions(job: Job, scratch: Scratch, first: int, last: int, target: int) -> None:
    """Write the emissions of rows first..last to scratch rows target..., shifted by their maximum.

    The shift goes to `scratch.shifts`. For the scaled (linear) recursion the emissions are
    exponentiated. A row's emissions depend on that row alone, bit for bit: not on its neighbours,
    nor on missing values elsewhere in the panel. Each step is its own short loop, because one long
    loop would wait for each row's peak.
    """
    obs, tables, n_rows = job.obs, job.tables, last - first
    anchors, emissions = obs.anchors, scratch.emissions
    has_columns = obs.continuous.shape[1] > 0
    if has_columns:
        load_block(obs.continuous, first, last, tables.shift, scratch.block)
        if tables.half_dof.shape[0] > 0:
            _student_distances(tables, scratch, n_rows)
        else:
            _gaussian_distances(tables, scratch, n_rows)
    _table_terms(obs, tables, n_rows, first, emissions, target)
    if anchors.shape[0] > 0:
        for t in range(n_rows):
            for base in range(0, emissions.shape[1], 8):
                place = (target + t, base)
                anchor = load8(tables.anchor_table, (anchors[first + t], base))
                store(emissions, place, add(load8(emissions, place), anchor))
    if not _find_peaks(scratch, n_rows, target) and has_columns:
        _recompute_exactly(job, scratch, n_rows, first, target)
    _shift_rows(scratch, n_rows, target, tables.linear)
