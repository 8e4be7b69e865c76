"""Compiled statistics kernels: posterior-weighted sums over the rows of a block."""

from __future__ import annotations

from turncoat.numerics.compiled import compiled
from turncoat.numerics.structures import Array, Observations, Potentials, Scratch, Sums
from turncoat.numerics.vectors import add, convert, fma, load8, load16, multiply, residual, splat, store

# A posterior below this is left out of the float32 sums of residuals, whose own rounding is far larger.
_NEGLIGIBLE = 1e-12


@compiled
def keep_rows(posteriors: Array, n_rows: int, n_states: int, weights: Array, rows: Array, kept: Array) -> None:
    """List, per state, the rows it has a part in: their places, their weights, and how many."""
    threshold = _NEGLIGIBLE if weights.itemsize == 4 else 0.0
    for k in range(n_states):
        n = 0
        for t in range(n_rows):
            rows[k, n] = t
            weights[k, n] = posteriors[t, k]
            n += posteriors[t, k] > threshold
        kept[k] = n


@compiled
def residual_sums(
    block: Array, scale: Array, location: Array, weights: Array, rows: Array, kept: Array, first: Array, second: Array
) -> None:
    """Per state, add the weighted sums of t and t^2 over its kept rows; a missing cell adds nothing.

    Summed in the working precision inside the block, added to float64 totals at its end.
    """
    for d in range(0, block.shape[1], 16):
        for k in range(scale.shape[0]):
            s, m = load16(scale, (k, d)), load16(location, (k, d))
            once = twice = splat(0.0, s)
            for i in range(kept[k]):
                t = residual(load16(block, (rows[k, i], d)), s, m)
                weighted = multiply(splat(weights[k, i], t), t)
                once = add(once, weighted)
                twice = fma(weighted, t, twice)
            wide = load16(first, (k, d))
            store(first, (k, d), add(wide, convert(once, wide)))
            store(second, (k, d), add(load16(second, (k, d)), convert(twice, wide)))


@compiled
def count_codes(codes: Array, stride: int, posteriors: Array, first: int, n_rows: int, counts: Array) -> None:
    """Add each row's posterior to the counter of each of its codes: row `stride * column + code` of `counts`.

    Most rows of a block share a column's code. Those of the first row's code are not counted one by one, which would
    make each addition wait for the last, but as what the other codes leave of the block's total.
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


@compiled
def fold_patterns(patterns: Array, flags: Array) -> None:
    """Marginalise pattern counts [256 G, KP] to counts of set flags, added to [8 G, KP]. Destroys `patterns`.

    From the highest bit down: the upper half of the patterns has it set; then the halves are added and the bit is gone.
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


@compiled
def block_statistics(
    observations: Observations,
    potentials: Potentials,
    scratch: Scratch,
    posteriors: Array,
    first: int,
    last: int,
    sums: Sums,
) -> None:
    """Add rows first..last, already loaded in the block, with their posteriors [rows, KP], to the sums."""
    n_rows = last - first
    if observations.continuous.shape[1] > 0:
        keep_rows(posteriors, n_rows, potentials.n_states, scratch.weights, scratch.rows, scratch.kept)
        residual_sums(
            scratch.block,
            potentials.scale,
            potentials.location,
            scratch.weights,
            scratch.rows,
            scratch.kept,
            sums.first,
            sums.second,
        )
    if observations.flags.shape[1] > 0:
        count_codes(observations.flags, 256, posteriors, first, n_rows, scratch.pattern_counts)
    if observations.levels.shape[1] > 0:
        count_codes(observations.levels, 0, posteriors, first, n_rows, sums.levels)
    for base in range(0, posteriors.shape[1], 8):
        occupancy = load8(sums.occupancy, (base,))
        for t in range(n_rows):
            occupancy = add(occupancy, load8(posteriors, (t, base)))
        store(sums.occupancy, (base,), occupancy)
