"""Runs the compiled passes over all sequences on a pool of threads. The result never depends on how many.

Sequences are cut into chunks by their lengths alone; each chunk's sums are its own and are added in chunk order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np

from turncoat.numerics.passes import COLLECT, FILTER, SMOOTH, decode_chunk, infer_chunk, weigh_chunk
from turncoat.numerics.structures import Array, Observations, Plan, Potentials, Scratch, Sums, zero_sums

BLOCK_ROWS = 1024
_SMALLEST_CHUNK, _LARGEST_CHUNK, _CHUNKS = 1024, 16384, 32


def available_threads() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_plan(offsets: Array, block_rows: int = BLOCK_ROWS) -> Plan:
    """Group whole sequences into cache-sized groups and groups into chunks of roughly equal rows."""
    n_rows = int(offsets[-1])
    chunk_rows = min(max(n_rows // _CHUNKS, _SMALLEST_CHUNK), _LARGEST_CHUNK)
    groups = _cut(offsets, block_rows)
    chunks = _cut(offsets[groups], chunk_rows)
    order = np.argsort(-np.diff(offsets[groups][chunks]), kind="stable")
    longest = int(np.diff(offsets[groups]).max())
    return Plan(groups, chunks, order, block_rows, longest)


def _cut(offsets: Array, most_rows: int) -> Array:
    """Cut consecutive pieces into runs of at most `most_rows` rows; a longer piece is a run of its own."""
    cuts = [0]
    last = len(offsets) - 1
    while cuts[-1] < last:
        limit = offsets[cuts[-1]] + most_rows
        nxt = int(np.searchsorted(offsets, limit, side="right")) - 1
        cuts.append(max(nxt, cuts[-1] + 1))
    return np.asarray(cuts, dtype=np.int64)


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
        log_joint=np.zeros((0 if potentials.linear else plan.longest, width)),
        weights=np.zeros((plan.block_rows, width), working),
        rows=np.zeros((potentials.n_states, plan.block_rows), np.int64),
        kept=np.zeros(potentials.n_states, np.int64),
        pattern_counts=np.zeros((n_patterns, width)),
        pair_weights=np.zeros((width, width)),
        vectors=np.zeros((4, width)),
    )


def _each_chunk(potentials: Potentials, plan: Plan, collecting: bool, n_threads: int, task: Callable[[int, Scratch], None]) -> None:
    """Run task(chunk, scratch) for every chunk, each thread with scratch memory of its own."""
    n_chunks = len(plan.chunks) - 1
    n_threads = min(n_threads, n_chunks)
    if n_threads == 1:
        scratch = _scratch(potentials, plan, collecting)
        for chunk in range(n_chunks):
            task(chunk, scratch)
        return
    spare: SimpleQueue[Scratch] = SimpleQueue()
    for _ in range(n_threads):
        spare.put(_scratch(potentials, plan, collecting))

    def run(chunk: int) -> None:
        scratch = spare.get()
        try:
            task(chunk, scratch)
        finally:
            spare.put(scratch)

    with ThreadPoolExecutor(n_threads) as pool:
        for _ in pool.map(run, plan.order.tolist()):
            pass


def _sum_in_order(parts: list[Sums]) -> Sums:
    return Sums(*(np.add.reduce(np.stack(field), axis=0) for field in zip(*parts, strict=True)))


def collect(observations: Observations, potentials: Potentials, n_threads: int = 1) -> tuple[Sums, Array]:
    """Expected sufficient statistics of all rows, and the log-likelihood of each sequence [U]."""
    plan = make_plan(observations.offsets)
    parts = [zero_sums(potentials) for _ in range(len(plan.chunks) - 1)]
    log_likelihoods = np.zeros(len(observations.offsets) - 1)
    no_probs = np.zeros((0, 0))

    def task(chunk: int, scratch: Scratch) -> None:
        infer_chunk(observations, potentials, plan, chunk, scratch, COLLECT, no_probs, log_likelihoods, parts[chunk])

    _each_chunk(potentials, plan, True, n_threads, task)
    return _sum_in_order(parts), log_likelihoods


def collect_given(observations: Observations, potentials: Potentials, probs: Array, n_threads: int = 1) -> Sums:
    """Sufficient statistics under given state probabilities [N, K]; `potentials` only says where residuals are centred."""
    plan = make_plan(observations.offsets)
    parts = [zero_sums(potentials) for _ in range(len(plan.chunks) - 1)]

    def task(chunk: int, scratch: Scratch) -> None:
        weigh_chunk(observations, potentials, plan, chunk, scratch, probs, parts[chunk])

    _each_chunk(potentials, plan, True, n_threads, task)
    return _sum_in_order(parts)


def infer(observations: Observations, potentials: Potentials, smoothed: bool, n_threads: int = 1) -> tuple[Array, Array]:
    """Filtered or smoothed probabilities [N, K] and log-likelihoods [U]."""
    plan = make_plan(observations.offsets)
    probs = np.empty((int(observations.offsets[-1]), potentials.n_states))
    log_likelihoods = np.zeros(len(observations.offsets) - 1)
    mode = SMOOTH if smoothed else FILTER

    def task(chunk: int, scratch: Scratch) -> None:
        # In the log domain smoothing adds up transitions on its way; nobody asked for them here.
        unused = zero_sums(potentials)
        infer_chunk(observations, potentials, plan, chunk, scratch, mode, probs, log_likelihoods, unused)

    _each_chunk(potentials, plan, False, n_threads, task)
    return probs, log_likelihoods


def decode(observations: Observations, potentials: Potentials, n_threads: int = 1) -> Array:
    """Most likely state path [N] of every sequence."""
    plan = make_plan(observations.offsets)
    log_potentials = potentials._replace(linear=False)
    path = np.empty(int(observations.offsets[-1]), np.int64)

    def task(chunk: int, scratch: Scratch) -> None:
        back = np.empty((plan.longest, potentials.n_states), np.int64)
        decode_chunk(observations, log_potentials, plan, chunk, scratch, back, path)

    _each_chunk(log_potentials, plan, False, n_threads, task)
    return path
