"""Run the compiled passes over all sequences on threads. Their number never changes a result.

Chunks of sequences follow from the sequences' lengths and the model's size. Each chunk has its own
sums, and these are added in chunk order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics import chunks
from turncoat.numerics.jit import jit
from turncoat.numerics.structures import (
    Job,
    KernelSums,
    KernelTables,
    Observations,
    Scratch,
    WorkPlan,
    zero_sums,
)

T = TypeVar("T")

BLOCK_ROWS = 1024
_MIN_CHUNK_ROWS, _MAX_CHUNK_ROWS, _N_CHUNKS = 1024, 16384, 32
_MAX_SUMS_BYTES = 1 << 27  # of all chunks together
_ROWS_PER_MATRIX = 8  # at least, in a chunk


def available_threads() -> int:
    """Return the number of processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_parts(offsets: Array, work: Callable[[Array], T]) -> list[T]:
    """Do work on parts of the sequences on threads, each given its offsets; results in order.

    The parts do not depend on the number of threads.
    """
    n_rows = int(offsets[-1] - offsets[0])
    cuts = _cut(offsets, max(-(-n_rows // _N_CHUNKS), _MIN_CHUNK_ROWS))
    parts = [offsets[first : last + 1] for first, last in pairwise(cuts)]
    if len(parts) == 1:
        return [work(parts[0])]
    with ThreadPoolExecutor(available_threads()) as pool:
        return list(pool.map(work, parts))


def make_plan(
    offsets: Array, block_rows: int = BLOCK_ROWS, part_bytes: int = 0, n_matrices: int = 1
) -> WorkPlan:
    """Group whole sequences into cache-sized groups, and groups into chunks of similar size.

    Models with very large tables, whose sums take `part_bytes` per chunk, get fewer chunks. So do
    models with many transition matrices, since each chunk goes through all of them.
    """
    n_rows = int(offsets[-1])
    chunk_rows = min(max(n_rows // _N_CHUNKS, _MIN_CHUNK_ROWS), _MAX_CHUNK_ROWS)
    chunk_rows = max(chunk_rows, n_rows * part_bytes // _MAX_SUMS_BYTES)
    chunk_rows = max(chunk_rows, _ROWS_PER_MATRIX * n_matrices)
    groups = _cut(offsets, block_rows)
    cuts = _cut(offsets[groups], chunk_rows)
    order = np.argsort(-np.diff(offsets[groups][cuts]), kind="stable")
    longest = int(np.diff(offsets[groups]).max())
    return WorkPlan(groups, cuts, order, block_rows, longest)


@jit
def _cut(offsets: Array, max_rows: int) -> Array:
    """Cut pieces into runs of at most `max_rows` rows; a longer piece is a run of its own."""
    cuts = np.empty_like(offsets)
    cuts[0] = 0
    n_cuts = 1
    for piece in range(1, offsets.shape[0]):
        if offsets[piece] - offsets[cuts[n_cuts - 1]] > max_rows and cuts[n_cuts - 1] < piece - 1:
            cuts[n_cuts] = piece - 1
            n_cuts += 1
    cuts[n_cuts] = offsets.shape[0] - 1
    return cuts[: n_cuts + 1].copy()


def _allocate_scratch(job: Job, collecting: bool) -> Scratch:
    tables, plan = job.tables, job.plan
    working, width = tables.scale.dtype, tables.initial.shape[0]
    n_patterns = 256 * tables.flag_tables.shape[0] if collecting else 0
    return Scratch(
        block=np.zeros((plan.block_rows, tables.scale.shape[1]), working),
        distances=np.zeros((plan.block_rows, width), working),
        emissions=np.zeros((plan.longest, width)),
        shifts=np.zeros(plan.longest),
        posteriors=np.zeros((plan.longest, width)),
        filtered=np.zeros((plan.longest if tables.linear else 0, width)),
        log_joint=np.zeros((0 if tables.linear else plan.longest, width)),
        weights=np.zeros((plan.block_rows, width), working),
        rows=np.zeros((tables.n_states, plan.block_rows), np.int64),
        n_rows=np.zeros(tables.n_states, np.int64),
        pattern_counts=np.zeros((n_patterns, width)),
        pair_weights=np.zeros(tables.transition.shape if not collecting else (0, 0, 0)),
        vectors=np.zeros((4, width)),
    )


def _run_threads(
    job: Job, collecting: bool, n_threads: int, work: Callable[[Array, Scratch], None]
) -> None:
    """Run work(queue, scratch) on every thread, this one included, each with its own scratch."""
    queue = np.zeros(1, np.int64)
    n_others = min(n_threads, len(job.plan.order)) - 1
    with ThreadPoolExecutor(max(n_others, 1)) as pool:
        scratches = (_allocate_scratch(job, collecting) for _ in range(n_others))
        tasks = [pool.submit(work, queue, scratch) for scratch in scratches]
        work(queue, _allocate_scratch(job, collecting))
        for task in tasks:
            task.result()


def _plan_sums(obs: Observations, tables: KernelTables) -> tuple[Job, KernelSums]:
    """Return a job and zero sums with a part per chunk.

    The job's weights are at most 1, so that float32 sums neither overflow nor lose light ones.
    """
    if obs.weights.size:
        obs = obs._replace(weights=obs.weights / obs.weights.max())
    part_bytes = sum(field.nbytes for field in zero_sums(tables, 1))
    n_matrices = len(tables.transition)
    plan = make_plan(obs.offsets, part_bytes=part_bytes, n_matrices=n_matrices)
    return Job(obs, tables, plan), zero_sums(tables, len(plan.order))


def _add_parts(parts: KernelSums, obs: Observations) -> KernelSums:
    """Add all parts in order; return a single part, at the weights of the rows."""
    sums = KernelSums(*(np.add.reduce(field, axis=0, keepdims=True) for field in parts))
    if obs.weights.size:
        sums = KernelSums(*(obs.weights.max() * field for field in sums))
    return sums


def collect(
    obs: Observations, tables: KernelTables, n_threads: int = 1
) -> tuple[KernelSums, Array]:
    """Return the expected sufficient statistics, and the log-likelihood of each sequence [U].

    The weights of sequences multiply the statistics, not the log-likelihoods.
    """
    job, parts = _plan_sums(obs, tables)
    log_likelihoods = np.zeros(len(obs.offsets) - 1)
    no_probs = np.zeros((0, 0))

    def work(queue: Array, scratch: Scratch) -> None:
        outputs = no_probs, log_likelihoods, parts
        chunks.infer_chunks(job, queue, scratch, chunks.COLLECT, *outputs)

    _run_threads(job, True, n_threads, work)
    return _add_parts(parts, obs), _add_scales(obs, tables, log_likelihoods)


def _add_scales(obs: Observations, tables: KernelTables, log_likelihoods: Array) -> Array:
    """Return log-likelihoods [U] with the scales of their matrices, which scaled forms leave out.

    The first row of a sequence has a gap of 0, whose matrix has no scale.
    """
    if tables.linear and tables.log_scales.any():
        by_row = tables.log_scales[obs.gaps]
        log_likelihoods += np.add.reduceat(by_row, obs.offsets[:-1])
    return log_likelihoods


def collect_weighted(
    obs: Observations, tables: KernelTables, probs: Array, n_threads: int = 1
) -> KernelSums:
    """Return sufficient statistics under given state probabilities [N, K].

    `tables` only sets where moments are centred.
    """
    job, parts = _plan_sums(obs, tables)

    def work(queue: Array, scratch: Scratch) -> None:
        chunks.collect_weighted_chunks(job, queue, scratch, probs, parts)

    _run_threads(job, True, n_threads, work)
    return _add_parts(parts, obs)


def infer(
    obs: Observations, tables: KernelTables, smoothed: bool, n_threads: int = 1
) -> tuple[Array, Array]:
    """Return filtered or smoothed probabilities [N, K] and log-likelihoods [U]."""
    job = Job(obs, tables, make_plan(obs.offsets))
    probs = np.empty((int(obs.offsets[-1]), tables.n_states))
    log_likelihoods = np.zeros(len(obs.offsets) - 1)
    mode = chunks.SMOOTH if smoothed else chunks.FILTER
    no_sums = zero_sums(tables, 1)

    def work(queue: Array, scratch: Scratch) -> None:
        chunks.infer_chunks(job, queue, scratch, mode, probs, log_likelihoods, no_sums)

    _run_threads(job, False, n_threads, work)
    return probs, _add_scales(obs, tables, log_likelihoods)


def decode(obs: Observations, tables: KernelTables, n_threads: int = 1) -> tuple[Array, Array]:
    """Return the most likely state path [N] and its log probability [U], for every sequence."""
    job = Job(obs, tables._replace(linear=False), make_plan(obs.offsets))
    path = np.empty(int(obs.offsets[-1]), np.int64)
    log_probs = np.empty(len(obs.offsets) - 1)

    def work(queue: Array, scratch: Scratch) -> None:
        back = np.empty((job.plan.longest, tables.n_states), np.int64)
        chunks.decode_chunks(job, queue, scratch, back, path, log_probs)

    _run_threads(job, False, n_threads, work)
    return path, log_probs
