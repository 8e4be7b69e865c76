"""Runs the compiled passes over all sequences on several threads. The result never depends on how many.

Sequences are cut into chunks by their lengths and the model's size; each chunk's sums are its own and are added in chunk order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.compiled import compiled
from turncoat.numerics.passes import (
    COLLECT,
    FILTER,
    SMOOTH,
    decode_chunks,
    infer_chunks,
    weigh_chunks,
)
from turncoat.numerics.structures import (
    Observations,
    Plan,
    Potentials,
    Scratch,
    Sums,
    sums_bytes,
    zero_sums,
)

BLOCK_ROWS = 1024
_SMALLEST_CHUNK, _LARGEST_CHUNK, _CHUNKS = 1024, 16384, 32
_MOST_BYTES = 1 << 27  # for the sums of all chunks together


def available_threads() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_plan(offsets: Array, block_rows: int = BLOCK_ROWS, part_bytes: int = 0) -> Plan:
    """Group whole sequences into cache-sized groups and groups into chunks of roughly equal rows.

    Models with very large tables, whose sums take `part_bytes` a chunk, get fewer chunks.
    """
    n_rows = int(offsets[-1])
    chunk_rows = min(max(n_rows // _CHUNKS, _SMALLEST_CHUNK), _LARGEST_CHUNK)
    chunk_rows = max(chunk_rows, n_rows * part_bytes // _MOST_BYTES)
    groups = _cut(offsets, block_rows)
    chunks = _cut(offsets[groups], chunk_rows)
    order = np.argsort(-np.diff(offsets[groups][chunks]), kind="stable")
    longest = int(np.diff(offsets[groups]).max())
    return Plan(groups, chunks, order, block_rows, longest)


@compiled
def _cut(offsets: Array, most_rows: int) -> Array:
    """Cut consecutive pieces into runs of at most `most_rows` rows; a longer piece is a run of its own."""
    cuts = np.empty_like(offsets)
    cuts[0] = 0
    n_cuts = 1
    for piece in range(1, offsets.shape[0]):
        if offsets[piece] - offsets[cuts[n_cuts - 1]] > most_rows and cuts[n_cuts - 1] < piece - 1:
            cuts[n_cuts] = piece - 1
            n_cuts += 1
    cuts[n_cuts] = offsets.shape[0] - 1
    return cuts[: n_cuts + 1].copy()


def _scratch(potentials: Potentials, plan: Plan, collecting: bool) -> Scratch:
    working = potentials.scale.dtype
    width = potentials.initial.shape[0]
    n_patterns = 256 * potentials.flag_tables.shape[0] if collecting else 0
    return Scratch(
        block=np.zeros((plan.block_rows, potentials.scale.shape[1]), working),
        distances=np.zeros((plan.block_rows, width), working),
        emissions=np.zeros((plan.longest, width)),
        shifts=np.zeros(plan.longest),
        posteriors=np.zeros((plan.longest, width)),
        filtered=np.zeros((plan.longest if potentials.linear else 0, width)),
        log_joint=np.zeros((0 if potentials.linear else plan.longest, width)),
        weights=np.zeros((plan.block_rows, width), working),
        rows=np.zeros((potentials.n_states, plan.block_rows), np.int64),
        kept=np.zeros(potentials.n_states, np.int64),
        pattern_counts=np.zeros((n_patterns, width)),
        pair_weights=np.zeros((width, width)),
        vectors=np.zeros((4, width)),
    )


def _on_threads(
    potentials: Potentials,
    plan: Plan,
    collecting: bool,
    n_threads: int,
    work: Callable[[Array, Scratch], None],
) -> None:
    """Run work(tickets, scratch) on every thread, this one included, each with scratch memory of its own; tickets number the chunks."""
    tickets = np.zeros(1, np.int64)
    others = min(n_threads, len(plan.order)) - 1
    with ThreadPoolExecutor(max(others, 1)) as pool:
        tasks = [
            pool.submit(work, tickets, _scratch(potentials, plan, collecting))
            for _ in range(others)
        ]
        work(tickets, _scratch(potentials, plan, collecting))
        for task in tasks:
            task.result()


def _added(parts: Sums) -> Sums:
    """All parts added in order, as a single part."""
    return Sums(*(np.add.reduce(field, axis=0, keepdims=True) for field in parts))


def collect(
    observations: Observations, potentials: Potentials, n_threads: int = 1
) -> tuple[Sums, Array]:
    """Expected sufficient statistics of all rows, and the log-likelihood of each sequence [U]."""
    plan = make_plan(observations.offsets, part_bytes=sums_bytes(potentials))
    parts = zero_sums(potentials, len(plan.order))
    log_likelihoods = np.zeros(len(observations.offsets) - 1)
    no_probs = np.zeros((0, 0))

    def work(tickets: Array, scratch: Scratch) -> None:
        infer_chunks(
            observations,
            potentials,
            plan,
            tickets,
            scratch,
            COLLECT,
            no_probs,
            log_likelihoods,
            parts,
        )

    _on_threads(potentials, plan, True, n_threads, work)
    return _added(parts), log_likelihoods


def collect_given(
    observations: Observations, potentials: Potentials, probs: Array, n_threads: int = 1
) -> Sums:
    """Sufficient statistics under given state probabilities [N, K]; `potentials` only says where moments are centred."""
    plan = make_plan(observations.offsets, part_bytes=sums_bytes(potentials))
    parts = zero_sums(potentials, len(plan.order))

    def work(tickets: Array, scratch: Scratch) -> None:
        weigh_chunks(observations, potentials, plan, tickets, scratch, probs, parts)

    _on_threads(potentials, plan, True, n_threads, work)
    return _added(parts)


def infer(
    observations: Observations, potentials: Potentials, smoothed: bool, n_threads: int = 1
) -> tuple[Array, Array]:
    """Filtered or smoothed probabilities [N, K] and log-likelihoods [U]."""
    plan = make_plan(observations.offsets)
    probs = np.empty((int(observations.offsets[-1]), potentials.n_states))
    log_likelihoods = np.zeros(len(observations.offsets) - 1)
    mode = SMOOTH if smoothed else FILTER
    no_sums = zero_sums(potentials, 1)

    def work(tickets: Array, scratch: Scratch) -> None:
        infer_chunks(
            observations, potentials, plan, tickets, scratch, mode, probs, log_likelihoods, no_sums
        )

    _on_threads(potentials, plan, False, n_threads, work)
    return probs, log_likelihoods


def decode(
    observations: Observations, potentials: Potentials, n_threads: int = 1
) -> tuple[Array, Array]:
    """Most likely state path [N] and its log probability [U], for every sequence."""
    plan = make_plan(observations.offsets)
    log_potentials = potentials._replace(linear=False)
    path = np.empty(int(observations.offsets[-1]), np.int64)
    log_probs = np.empty(len(observations.offsets) - 1)

    def work(tickets: Array, scratch: Scratch) -> None:
        back = np.empty((plan.longest, potentials.n_states), np.int64)
        decode_chunks(observations, log_potentials, plan, tickets, scratch, back, path, log_probs)

    _on_threads(log_potentials, plan, False, n_threads, work)
    return path, log_probs
