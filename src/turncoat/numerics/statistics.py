"""Compiled statistics kernels: posterior-weighted sums over the rows of a block."""

from __future__ import annotations

from typing import Any

from turncoat.arrays import Array
from turncoat.numerics.jit import jit
from turncoat.numerics.structures import Job, KernelSums, Scratch
from turncoat.numerics.vectors import (
    add,
    convert,
    fma,
    load8,
    load16,
    multiply,
    splat,
    store,
    zero_if_missing,
)

# Smaller posteriors are left out of the float32 moments, whose own rounding is larger.
_NEGLIGIBLE = 1e-8
# Rows whose sixteen columns stay in the L1 cache while every state uses them.
_CACHED_ROWS = 256


@jit
def _select_rows(posteriors: Array, n_rows: int, n_states: int, scratch: Scratch) -> int:
    """Write posteriors in the working precision, and each state's rows with a relevant posterior.

    Returns the number of rows selected, over all states.
    """
    weights, rows, counts = scratch.weights, scratch.rows, scratch.n_rows
    like = load8(weights, (0, 0))
    for t in range(n_rows):
        for base in range(0, weights.shape[1], 8):
            store(weights, (t, base), convert(load8(posteriors, (t, base)), like))
    threshold = _NEGLIGIBLE if weights.itemsize == 4 else 0.0
    n_selected = 0
    for k in range(n_states):
        n = 0
        for t in range(n_rows):
            rows[k, n] = t
            n += weights[t, k] > threshold
        counts[k] = n
        n_selected += n
    return n_selected


@jit
def _add_moments(once: Any, twice: Any, k: int, d: int, sums: KernelSums) -> None:
    """Add a block's moments, summed in the working precision, to the float64 totals."""
    wide = load16(sums.first, (k, d))
    store(sums.first, (k, d), add(wide, convert(once, wide)))
    store(sums.second, (k, d), add(load16(sums.second, (k, d)), convert(twice, wide)))


@jit
def clear_missing(block: Array, n_rows: int) -> None:
    """Set missing cells of the block to zero, so that they add nothing to its moments."""
    for t in range(n_rows):
        for d in range(0, block.shape[1], 16):
            store(block, (t, d), zero_if_missing(load16(block, (t, d))))


@jit
def sparse_moments(block: Array, n_states: int, scratch: Scratch, sums: KernelSums) -> None:
    """Add weighted sums of the block's cells and their squares over each state's selected rows."""
    weights, rows = scratch.weights, scratch.rows
    nothing = splat(0.0, load16(block, (0, 0)))
    for d in range(0, block.shape[1], 16):
        for k in range(n_states):
            once = twice = nothing
            for i in range(scratch.n_rows[k]):
                t = rows[k, i]
                x = load16(block, (t, d))
                weighted = multiply(splat(weights[t, k], nothing), x)
                once = add(once, weighted)
                twice = fma(weighted, x, twice)
            _add_moments(once, twice, k, d, sums)


@jit
def dense_moments(
    block: Array, n_rows: int, n_states: int, weights: Array, sums: KernelSums
) -> None:
    """Add the same sums over all rows: four states share each cell's value and square."""
    whole = n_states - n_states % 4
    nothing = splat(0.0, load16(block, (0, 0)))
    for start in range(0, n_rows, _CACHED_ROWS):
        stop = min(start + _CACHED_ROWS, n_rows)
        for d in range(0, block.shape[1], 16):
            for k in range(0, whole, 4):
                once0 = once1 = once2 = once3 = nothing
                twice0 = twice1 = twice2 = twice3 = nothing
                for t in range(start, stop):
                    x = load16(block, (t, d))
                    square = multiply(x, x)
                    w0, w1 = splat(weights[t, k], nothing), splat(weights[t, k + 1], nothing)
                    w2, w3 = splat(weights[t, k + 2], nothing), splat(weights[t, k + 3], nothing)
                    once0, once1 = fma(w0, x, once0), fma(w1, x, once1)
                    once2, once3 = fma(w2, x, once2), fma(w3, x, once3)
                    twice0, twice1 = fma(w0, square, twice0), fma(w1, square, twice1)
                    twice2, twice3 = fma(w2, square, twice2), fma(w3, square, twice3)
                _add_moments(once0, twice0, k, d, sums)
                _add_moments(once1, twice1, k + 1, d, sums)
                _add_moments(once2, twice2, k + 2, d, sums)
                _add_moments(once3, twice3, k + 3, d, sums)
            for k in range(whole, n_states):
                once = twice = nothing
                for t in range(start, stop):
                    x = load16(block, (t, d))
                    weighted = multiply(splat(weights[t, k], nothing), x)
                    once, twice = add(once, weighted), fma(weighted, x, twice)
                _add_moments(once, twice, k, d, sums)


@jit
def count_codes(
    codes: Array, stride: int, posteriors: Array, first: int, n_rows: int, counts: Array
) -> None:
    """Add each row's posterior to row `stride * column + code` of `counts`, for each code.

    Most rows of a block share a column's code. Rows with the first row's code are counted as the
    block's total minus the other codes. Counted one by one, each addition would wait for the last.
    """
    for base in range(0, counts.shape[1], 8):
        everything = splat(0.0, load8(posteriors, (0, base)))
        for t in range(n_rows):
            everything = add(everything, load8(posteriors, (t, base)))
        for j in range(codes.shape[1]):
            usual = codes[first, j]
            elsewhere = splat(0.0, everything)
            for t in range(1, n_rows):
                code = codes[first + t, j]
                if code != usual:
                    p = load8(posteriors, (t, base))
                    elsewhere = add(elsewhere, p)
                    place = (stride * j + code, base)
                    store(counts, place, add(load8(counts, place), p))
            place = (stride * j + usual, base)
            rest = fma(elsewhere, splat(-1.0, elsewhere), everything)
            store(counts, place, add(load8(counts, place), rest))


@jit
def fold_patterns(patterns: Array, flags: Array) -> None:
    """Add pattern counts [256 G, KP] up to counts of set flags [8 G, KP]. Overwrites `patterns`.

    From the highest bit down: the upper half of the patterns has the bit set. Adding the halves
    removes the bit.
    """
    for g in range(patterns.shape[0] // 256):
        for base in range(0, patterns.shape[1], 8):
            half = 128
            for bit in range(7, -1, -1):
                with_bit = load8(flags, (8 * g + bit, base))
                for pattern in range(256 * g, 256 * g + half):
                    upper = load8(patterns, (pattern + half, base))
                    with_bit = add(with_bit, upper)
                    store(patterns, (pattern, base), add(load8(patterns, (pattern, base)), upper))
                store(flags, (8 * g + bit, base), with_bit)
                half //= 2


@jit
def block_statistics(
    job: Job, scratch: Scratch, posteriors: Array, first: int, last: int, sums: KernelSums
) -> None:
    """Add rows first..last, loaded in the block, with their posteriors [rows, KP], to the sums."""
    obs, n_rows, n_states = job.obs, last - first, job.tables.n_states
    if obs.continuous.shape[1] > 0:
        if not obs.complete:
            clear_missing(scratch.block, n_rows)
        n_selected = _select_rows(posteriors, n_rows, n_states, scratch)
        if 2 * n_selected > n_rows * n_states:
            dense_moments(scratch.block, n_rows, n_states, scratch.weights, sums)
        else:
            sparse_moments(scratch.block, n_states, scratch, sums)
    if obs.flags.shape[1] > 0:
        count_codes(obs.flags, 256, posteriors, first, n_rows, scratch.pattern_counts)
    if obs.levels.shape[1] > 0:
        count_codes(obs.levels, 0, posteriors, first, n_rows, sums.levels)
    for base in range(0, posteriors.shape[1], 8):
        occupancy = load8(sums.occupancy, (base,))
        for t in range(n_rows):
            occupancy = add(occupancy, load8(posteriors, (t, base)))
        store(sums.occupancy, (base,), occupancy)
