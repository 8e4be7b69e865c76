"""The arrays that kernels read and write. N rows, U sequences, K states, D continuous columns.

States are padded to a multiple of eight (``KP``) and continuous columns to a multiple of sixteen
(``DP``), so that inner loops work on whole vectors. Padding never reaches a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array

STATE_LANES = 8
COLUMN_LANES = 16

Sizes = tuple[int, ...]


class Observations(NamedTuple):
    """Rows as the kernels read them. Continuous cells share the caller's memory; NaN is missing."""

    continuous: Array  # [N, D] float32 or float64
    flags: Array  # [N, G] uint8, eight yes/no facts per byte
    levels: Array  # [N, L] row of `KernelTables.level_table` of each many-valued category
    anchors: Array  # [N] row of `KernelTables.anchor_table`; empty when nothing is anchored
    gaps: Array  # [N] int16 matrix of `KernelTables.transition` that leads to the row
    offsets: Array  # [U + 1] first row of each sequence
    weights: Array  # [U] how often each sequence counts; empty if all count once
    complete: bool  # no continuous cell is missing


class KernelTables(NamedTuple):
    """A `LogModel` as padded tables: all that the kernels need of a model.

    log b_t(k) = constant_k + sum_d f(x_td) + flag tables + level table + anchor table.
    Gaussian column: f(x) = -t^2 / 2 with t = (x - shift) * scale - location.
    Student column: f(x) = -half_dof * log(min(1 + t^2 * inverse_dof, max_ratio)).
    """

    initial: Array  # [KP] float64
    transition: Array  # [M, KP, KP] float64, from row to column; M = 1 if gaps do not matter
    transition_back: Array  # [M, KP, KP] the transposes, for the backward pass
    log_initial: Array  # [KP] float64
    log_transition: Array  # [M, KP, KP] float64
    log_scales: Array  # [M] log of the factor that each of `transition` lacks
    constant: Array  # [KP] float64
    shift: Array  # [D] subtracted from every value before rounding to the working precision
    scale: Array  # [K, DP] working precision
    location: Array  # [K, DP]
    half_dof: Array  # [K, DP] float64, or [0, 0] for Gaussian columns
    inverse_dof: Array  # [K, DP] float64, or [0, 0]
    max_ratio: float
    flag_tables: Array  # [G, 256, KP] working precision
    level_table: Array  # [R, KP] working precision
    anchor_table: Array  # [codes + 1, KP] float64
    n_states: int
    linear: bool  # scaled recursion; otherwise log domain, for models with impossible transitions


class WorkPlan(NamedTuple):
    """How sequences are grouped. It depends on their lengths alone.

    A group fits in cache; a chunk is the unit of work of a thread.
    """

    groups: Array  # [n_groups + 1] first sequence of each group
    chunks: Array  # [n_chunks + 1] first group of each chunk
    order: Array  # [n_chunks] largest first, so that no thread ends with a long sequence alone
    block_rows: int  # rows in cache at a time
    longest: int  # rows of the largest group


class Job(NamedTuple):
    """What a pass reads: rows, a model and how the work is divided."""

    obs: Observations
    tables: KernelTables
    plan: WorkPlan


class Scratch(NamedTuple):
    """Working memory of one thread."""

    block: Array  # [block_rows, DP] working precision: cells minus the shift
    distances: Array  # [block_rows, KP] working precision
    emissions: Array  # [longest, KP] float64
    shifts: Array  # [longest] float64
    posteriors: Array  # [longest, KP] float64
    filtered: Array  # [longest, KP] float64; empty for the log recursion
    log_joint: Array  # [longest, KP] float64; empty for the scaled recursion
    weights: Array  # [block_rows, KP] working precision
    rows: Array  # [K, block_rows] int64
    n_rows: Array  # [K] int64, used entries of `rows`
    pattern_counts: Array  # [256 G, KP] float64
    pair_weights: Array  # [M, KP, KP] float64, for passes that do not collect
    vectors: Array  # [4, KP] float64


class KernelSums(NamedTuple):
    """Expected sufficient statistics in float64, one part per chunk (P parts).

    Moments are taken about `KernelTables.shift`.
    """

    initial: Array  # [P, KP]
    transitions: Array  # [P, M, KP, KP]
    occupancy: Array  # [P, KP]
    first: Array  # [P, K, DP] sum of posterior * (x - shift)
    second: Array  # [P, K, DP] sum of posterior * (x - shift)^2
    flags: Array  # [P, 8 G, KP] posterior mass where each flag is set
    levels: Array  # [P, R, KP]


def pad_states(n_states: int) -> int:
    """Round the number of states up to whole vectors."""
    return -(-n_states // STATE_LANES) * STATE_LANES


def pad_columns(n_columns: int) -> int:
    """Round the number of continuous columns up to whole vectors."""
    return -(-n_columns // COLUMN_LANES) * COLUMN_LANES


def zero_sums(tables: KernelTables, n_parts: int) -> KernelSums:
    """Return statistics of no rows, in the shapes of a model's tables."""
    width = tables.initial.shape[0]
    return KernelSums(
        initial=np.zeros((n_parts, width)),
        transitions=np.zeros((n_parts, *tables.transition.shape)),
        occupancy=np.zeros((n_parts, width)),
        first=np.zeros((n_parts, *tables.scale.shape)),
        second=np.zeros((n_parts, *tables.scale.shape)),
        flags=np.zeros((n_parts, 8 * tables.flag_tables.shape[0], width)),
        levels=np.zeros((n_parts, *tables.level_table.shape)),
    )


# Categories of many columns lie side by side in one array [K, C_1 + ... + C_J], so that no step
# loops over columns.


def column_starts(sizes: Sizes) -> Array:
    """Return the first place of each column [J] in a joined array."""
    return np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)


def join_columns(parts: Sequence[Array], n_states: int) -> Array:
    """Join one array [K, C_j] per column to [K, sum of C_j]."""
    return np.concatenate(parts, axis=1) if parts else np.empty((n_states, 0))


def split_columns(joined: Array, sizes: Sizes) -> tuple[Array, ...]:
    """Split a joined array into views [K, C_j], one per column."""
    starts = column_starts(sizes).tolist()
    return tuple(joined[:, at : at + size] for at, size in zip(starts, sizes, strict=True))


def column_sums(joined: Array, sizes: Sizes) -> Array:
    """Sum each column's categories and repeat the sum for each of them: the shape of `joined`."""
    if not sizes:
        return joined
    return np.repeat(np.add.reduceat(joined, column_starts(sizes), axis=1), sizes, axis=1)
