"""Compiled passes over one chunk of sequences: each group's emissions, recursion and statistics while it is in cache."""

from __future__ import annotations

from turncoat.arrays import Array
from turncoat.numerics.compiled import compiled
from turncoat.numerics.emissions import block_emissions, load_block
from turncoat.numerics.recursions import (
    backward,
    forward,
    log_backward,
    log_forward,
    most_likely_path,
)
from turncoat.numerics.statistics import block_statistics, fold_patterns
from turncoat.numerics.structures import Observations, Plan, Potentials, Scratch, Sums
from turncoat.numerics.tickets import take_ticket

FILTER, SMOOTH, COLLECT = 0, 1, 2


@compiled
def _group_emissions(
    observations: Observations,
    potentials: Potentials,
    scratch: Scratch,
    block_rows: int,
    first: int,
    last: int,
) -> None:
    """Emissions of rows first..last, a cache-sized block at a time."""
    for start in range(first, last, block_rows):
        block_emissions(
            observations, potentials, scratch, start, min(start + block_rows, last), start - first
        )


@compiled
def _infer_sequence(
    potentials: Potentials, scratch: Scratch, start: int, stop: int, mode: int
) -> float:
    """Posteriors of the sequence in scratch rows start..stop, and its part of the expected transitions."""
    emissions = scratch.emissions[start:stop]
    posteriors = scratch.posteriors[start:stop]
    n_states, vectors = potentials.n_states, scratch.vectors
    if potentials.linear:
        filtered = posteriors if mode == FILTER else scratch.filtered[start:stop]
        log_likelihood = forward(
            potentials.initial,
            potentials.transition,
            n_states,
            emissions,
            scratch.shifts[start:stop],
            vectors[0],
            filtered,
        )
        if mode != FILTER:
            backward(
                potentials.transition_back,
                n_states,
                emissions,
                vectors[1],
                filtered,
                posteriors,
                scratch.pair_weights,
            )
        return log_likelihood
    log_joint = scratch.log_joint[start:stop]
    log_likelihood = log_forward(
        potentials.log_initial,
        potentials.log_transition,
        n_states,
        emissions,
        scratch.shifts[start:stop],
        vectors[0],
        log_joint,
        posteriors,
    )
    if mode != FILTER:
        log_backward(
            potentials.log_transition,
            n_states,
            emissions,
            vectors[0],
            vectors[1],
            vectors[2],
            log_joint,
            posteriors,
            scratch.pair_weights,
        )
    return log_likelihood


@compiled
def _group_statistics(
    observations: Observations,
    potentials: Potentials,
    scratch: Scratch,
    block_rows: int,
    first: int,
    last: int,
    sums: Sums,
) -> None:
    """Statistics of rows first..last from the posteriors in scratch; a group of one block is still loaded."""
    reload = last - first > block_rows and observations.continuous.shape[1] > 0
    for start in range(first, last, block_rows):
        stop = min(start + block_rows, last)
        if reload:
            load_block(observations.continuous, start, stop, potentials.shift, scratch.block)
        posteriors = scratch.posteriors[start - first : stop - first]
        block_statistics(observations, potentials, scratch, posteriors, start, stop, sums)


@compiled
def _part(sums: Sums, chunk: int) -> Sums:
    """One chunk's own statistics; with a single part, that one."""
    p = chunk % sums.initial.shape[0]
    return Sums(
        sums.initial[p],
        sums.transitions[p],
        sums.occupancy[p],
        sums.first[p],
        sums.second[p],
        sums.flags[p],
        sums.levels[p],
    )


@compiled
def infer_chunks(
    observations: Observations,
    potentials: Potentials,
    plan: Plan,
    tickets: Array,
    scratch: Scratch,
    mode: int,
    probs: Array,
    log_likelihoods: Array,
    sums: Sums,
) -> None:
    """Filter, smooth or collect chunks until none is left.

    Writes log-likelihoods [U], and probs [N, K] or sums as the mode asks; collecting needs a part of `sums` for every chunk.
    """
    n_states = potentials.n_states
    offsets = observations.offsets
    ticket = take_ticket(tickets)
    while ticket < plan.order.shape[0]:
        chunk = plan.order[ticket]
        part = _part(sums, chunk)
        scratch.pair_weights[:, :] = 0.0
        if mode == COLLECT:
            scratch.pattern_counts[:, :] = 0.0
        for group in range(plan.chunks[chunk], plan.chunks[chunk + 1]):
            sequences = (plan.groups[group], plan.groups[group + 1])
            first, last = offsets[sequences[0]], offsets[sequences[1]]
            _group_emissions(observations, potentials, scratch, plan.block_rows, first, last)
            for u in range(sequences[0], sequences[1]):
                start, stop = offsets[u] - first, offsets[u + 1] - first
                log_likelihoods[u] = _infer_sequence(potentials, scratch, start, stop, mode)
                if mode == COLLECT:
                    for k in range(n_states):
                        part.initial[k] += scratch.posteriors[start, k]
            if mode == COLLECT:
                _group_statistics(
                    observations, potentials, scratch, plan.block_rows, first, last, part
                )
            else:
                for t in range(last - first):
                    for k in range(n_states):
                        probs[first + t, k] = scratch.posteriors[t, k]
        if mode == COLLECT:
            fold_patterns(scratch.pattern_counts, part.flags)
            for i in range(n_states):
                for j in range(n_states):
                    factor = potentials.transition[i, j] if potentials.linear else 1.0
                    part.transitions[i, j] += scratch.pair_weights[i, j] * factor
        ticket = take_ticket(tickets)


@compiled
def weigh_chunks(
    observations: Observations,
    potentials: Potentials,
    plan: Plan,
    tickets: Array,
    scratch: Scratch,
    probs: Array,
    sums: Sums,
) -> None:
    """Statistics of chunks under given state probabilities [N, K], until none is left; consecutive rows are independent."""
    n_states = potentials.n_states
    offsets = observations.offsets
    scratch.posteriors[:, :] = 0.0
    ticket = take_ticket(tickets)
    while ticket < plan.order.shape[0]:
        chunk = plan.order[ticket]
        part = _part(sums, chunk)
        scratch.pattern_counts[:, :] = 0.0
        for group in range(plan.chunks[chunk], plan.chunks[chunk + 1]):
            sequences = (plan.groups[group], plan.groups[group + 1])
            first, last = offsets[sequences[0]], offsets[sequences[1]]
            for t in range(first, last):
                for k in range(n_states):
                    scratch.posteriors[t - first, k] = probs[t, k]
            if last - first <= plan.block_rows:
                load_block(observations.continuous, first, last, potentials.shift, scratch.block)
            for u in range(sequences[0], sequences[1]):
                for k in range(n_states):
                    part.initial[k] += probs[offsets[u], k]
                for t in range(offsets[u] + 1, offsets[u + 1]):
                    for i in range(n_states):
                        for j in range(n_states):
                            part.transitions[i, j] += probs[t - 1, i] * probs[t, j]
            _group_statistics(observations, potentials, scratch, plan.block_rows, first, last, part)
        fold_patterns(scratch.pattern_counts, part.flags)
        ticket = take_ticket(tickets)


@compiled
def decode_chunks(
    observations: Observations,
    potentials: Potentials,
    plan: Plan,
    tickets: Array,
    scratch: Scratch,
    back: Array,
    path: Array,
    log_probs: Array,
) -> None:
    """Most likely paths [N] and their log probabilities [U], until no chunk is left. `potentials` must be in the log domain."""
    offsets = observations.offsets
    ticket = take_ticket(tickets)
    while ticket < plan.order.shape[0]:
        chunk = plan.order[ticket]
        for group in range(plan.chunks[chunk], plan.chunks[chunk + 1]):
            sequences = (plan.groups[group], plan.groups[group + 1])
            first, last = offsets[sequences[0]], offsets[sequences[1]]
            _group_emissions(observations, potentials, scratch, plan.block_rows, first, last)
            for u in range(sequences[0], sequences[1]):
                start, stop = offsets[u] - first, offsets[u + 1] - first
                log_probs[u] = most_likely_path(
                    potentials.log_initial,
                    potentials.log_transition,
                    potentials.n_states,
                    scratch.emissions[start:stop],
                    scratch.vectors[0],
                    scratch.vectors[1],
                    back,
                    path[offsets[u] : offsets[u + 1]],
                )
                for t in range(start, stop):
                    log_probs[u] += scratch.shifts[t]
        ticket = take_ticket(tickets)
