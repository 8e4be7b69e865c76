"""Compiled passes over chunks of sequences, and the work queue that hands chunks to threads.

A pass computes each group's emissions, recursion and statistics while the group is in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types

from turncoat.arrays import Array
from turncoat.numerics.emissions import block_emissions, load_block
from turncoat.numerics.jit import jit
from turncoat.numerics.recursions import (
    add_pairs,
    backward,
    forward,
    log_backward,
    log_forward,
    most_likely_path,
)
from turncoat.numerics.statistics import block_statistics, fold_patterns
from turncoat.numerics.structures import Job, KernelSums, KernelTables, Scratch
from turncoat.numerics.vectors import load8, multiply, splat, store

FILTER, SMOOTH, COLLECT = 0, 1, 2

_intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic


@_intrinsic
def next_task(typing_context: Any, queue: Any) -> Any:
    """Return the queue's counter [1] int64 and increment it atomically: one task per number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", cells, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(queue), generate


@jit
def _group_emissions(job: Job, scratch: Scratch, first: int, last: int) -> None:
    """Compute the emissions of rows first..last, one cache-sized block at a time."""
    for start in range(first, last, job.plan.block_rows):
        stop = min(start + job.plan.block_rows, last)
        block_emissions(job, scratch, start, stop, start - first)


@jit
def _infer_sequence(
    tables: KernelTables,
    gaps: Array,
    scratch: Scratch,
    start: int,
    stop: int,
    mode: int,
    weight: float,
    pair_weights: Array,
) -> float:
    """Compute posteriors of scratch rows start..stop. Collecting adds to the pair weights.

    A weight other than 1 multiplies all that is collected, the posteriors included.
    """
    emissions, shifts = scratch.emissions[start:stop], scratch.shifts[start:stop]
    posteriors, vectors = scratch.posteriors[start:stop], scratch.vectors
    if tables.linear:
        filtered = posteriors if mode == FILTER else scratch.filtered[start:stop]
        log_likelihood = forward(tables, gaps, emissions, shifts, vectors[0], filtered)
        if mode != FILTER:
            backward(tables, gaps, emissions, vectors[1], filtered, posteriors)
        if mode == COLLECT:
            if weight != 1.0:
                _scale_rows(filtered, weight)
                _scale_rows(posteriors, weight)
            add_pairs(gaps, filtered, emissions, pair_weights)
        return log_likelihood
    log_joint = scratch.log_joint[start:stop]
    log_likelihood = log_forward(tables, gaps, emissions, shifts, vectors[0], log_joint, posteriors)
    if mode != FILTER:
        log_backward(tables, gaps, emissions, vectors, log_joint, posteriors, weight, pair_weights)
        if weight != 1.0:
            _scale_rows(posteriors, weight)
    return log_likelihood


@jit
def _scale_rows(rows: Array, weight: float) -> None:
    """Multiply rows [T, KP] by a weight."""
    for t in range(rows.shape[0]):
        for base in range(0, rows.shape[1], 8):
            values = load8(rows, (t, base))
            store(rows, (t, base), multiply(values, splat(weight, values)))


@jit
def _get_weight(weights: Array, u: int) -> float:
    """Return how often sequence u counts."""
    return float(weights[u]) if weights.shape[0] > 0 else 1.0


@jit
def _group_statistics(job: Job, scratch: Scratch, first: int, last: int, sums: KernelSums) -> None:
    """Add rows first..last with the posteriors in scratch. A group of one block is still loaded."""
    obs, block_rows = job.obs, job.plan.block_rows
    reload = last - first > block_rows and obs.continuous.shape[1] > 0
    for start in range(first, last, block_rows):
        stop = min(start + block_rows, last)
        if reload:
            load_block(obs.continuous, start, stop, job.tables.shift, scratch.block)
        posteriors = scratch.posteriors[start - first : stop - first]
        block_statistics(job, scratch, posteriors, start, stop, sums)


@jit
def _get_part(sums: KernelSums, chunk: int) -> KernelSums:
    """Return one chunk's part of the sums, or the only part."""
    p = chunk % sums.initial.shape[0]
    return KernelSums(
        sums.initial[p],
        sums.transitions[p],
        sums.occupancy[p],
        sums.first[p],
        sums.second[p],
        sums.flags[p],
        sums.levels[p],
    )


@jit
def _scale_pairs(pair_weights: Array, transition: Array) -> None:
    """Turn pair weights [M, KP, KP] into expected transitions."""
    for m in range(transition.shape[0]):
        for i in range(transition.shape[1]):
            for base in range(0, transition.shape[2], 8):
                place = (m, i, base)
                scaled = multiply(load8(pair_weights, place), load8(transition, place))
                store(pair_weights, place, scaled)


@jit
def infer_chunks(
    job: Job,
    queue: Array,
    scratch: Scratch,
    mode: int,
    probs: Array,
    log_likelihoods: Array,
    sums: KernelSums,
) -> None:
    """Filter, smooth or collect chunks from the queue until it is empty.

    Writes log-likelihoods [U], and probs [N, K] or sums, depending on the mode. Collecting needs a
    part of `sums` for every chunk.
    """
    tables, plan, offsets = job.tables, job.plan, job.obs.offsets
    n_states = tables.n_states
    task = next_task(queue)
    while task < plan.order.shape[0]:
        chunk = plan.order[task]
        part = _get_part(sums, chunk)
        pairs = part.transitions if mode == COLLECT else scratch.pair_weights
        if mode == COLLECT:
            scratch.pattern_counts[:, :] = 0.0
        for group in range(plan.chunks[chunk], plan.chunks[chunk + 1]):
            sequences = (plan.groups[group], plan.groups[group + 1])
            first, last = offsets[sequences[0]], offsets[sequences[1]]
            _group_emissions(job, scratch, first, last)
            for u in range(sequences[0], sequences[1]):
                start, stop = offsets[u] - first, offsets[u + 1] - first
                gaps = job.obs.gaps[offsets[u] : offsets[u + 1]]
                weight = _get_weight(job.obs.weights, u)
                options = start, stop, mode, weight, pairs
                log_likelihoods[u] = _infer_sequence(tables, gaps, scratch, *options)
                if mode == COLLECT:
                    for k in range(n_states):
                        part.initial[k] += scratch.posteriors[start, k]
            if mode == COLLECT:
                _group_statistics(job, scratch, first, last, part)
            else:
                for t in range(last - first):
                    for k in range(n_states):
                        probs[first + t, k] = scratch.posteriors[t, k]
        if mode == COLLECT:
            fold_patterns(scratch.pattern_counts, part.flags)
            if tables.linear:
                _scale_pairs(pairs, tables.transition)
        task = next_task(queue)


@jit
def collect_weighted_chunks(
    job: Job, queue: Array, scratch: Scratch, probs: Array, sums: KernelSums
) -> None:
    """Collect chunks under given state probabilities [N, K]; consecutive rows are independent.

    All transitions are counted in the first matrix, whatever their gaps.
    """
    obs, tables, plan, offsets = job.obs, job.tables, job.plan, job.obs.offsets
    n_states = tables.n_states
    scratch.posteriors[:, :] = 0.0
    task = next_task(queue)
    while task < plan.order.shape[0]:
        chunk = plan.order[task]
        part = _get_part(sums, chunk)
        scratch.pattern_counts[:, :] = 0.0
        for group in range(plan.chunks[chunk], plan.chunks[chunk + 1]):
            sequences = (plan.groups[group], plan.groups[group + 1])
            first, last = offsets[sequences[0]], offsets[sequences[1]]
            for t in range(first, last):
                for k in range(n_states):
                    scratch.posteriors[t - first, k] = probs[t, k]
            if last - first <= plan.block_rows:
                load_block(obs.continuous, first, last, tables.shift, scratch.block)
            for u in range(sequences[0], sequences[1]):
                weight = _get_weight(obs.weights, u)
                if weight != 1.0:
                    start, stop = offsets[u] - first, offsets[u + 1] - first
                    _scale_rows(scratch.posteriors[start:stop], weight)
                for k in range(n_states):
                    part.initial[k] += weight * probs[offsets[u], k]
                for t in range(offsets[u] + 1, offsets[u + 1]):
                    for i in range(n_states):
                        for j in range(n_states):
                            part.transitions[0, i, j] += weight * probs[t - 1, i] * probs[t, j]
            _group_statistics(job, scratch, first, last, part)
        fold_patterns(scratch.pattern_counts, part.flags)
        task = next_task(queue)


@jit
def decode_chunks(
    job: Job, queue: Array, scratch: Scratch, back: Array, path: Array, log_probs: Array
) -> None:
    """Write most likely paths [N] and their log probabilities [U] until the queue is empty.

    The tables must be in the log domain.
    """
    plan, offsets, vectors = job.plan, job.obs.offsets, scratch.vectors
    task = next_task(queue)
    while task < plan.order.shape[0]:
        chunk = plan.order[task]
        for group in range(plan.chunks[chunk], plan.chunks[chunk + 1]):
            sequences = (plan.groups[group], plan.groups[group + 1])
            first, last = offsets[sequences[0]], offsets[sequences[1]]
            _group_emissions(job, scratch, first, last)
            for u in range(sequences[0], sequences[1]):
                start, stop = offsets[u] - first, offsets[u + 1] - first
                emissions, target = scratch.emissions[start:stop], path[offsets[u] : offsets[u + 1]]
                gaps = job.obs.gaps[offsets[u] : offsets[u + 1]]
                log_probs[u] = most_likely_path(job.tables, gaps, emissions, vectors, back, target)
                for t in range(start, stop):
                    log_probs[u] += scratch.shifts[t]
        task = next_task(queue)
