"""The arrays the kernels read and write, named. Shapes: N rows, U sequences, K states, D continuous columns.

States are padded to a multiple of eight (``KP``) and continuous columns to a multiple of sixteen (``DP``), so that the
inner loops have whole vectors to work on. Padding never reaches a result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array

STATE_LANES = 8
COLUMN_LANES = 16


class Observations(NamedTuple):
    """Rows in the form the kernels read. Continuous cells stay where the caller has them; NaN is missing."""

    continuous: Array  # [N, D] float32 or float64
    flags: Array  # [N, G] uint8, eight yes/no facts to a byte
    levels: Array  # [N, L] row of `Potentials.level_table` for each many-valued category
    anchors: Array  # [N] row of `Potentials.anchor_table`; empty when nothing is anchored
    offsets: Array  # [U + 1] first row of each sequence
    complete: bool  # no continuous cell is missing


class Potentials(NamedTuple):
    """One model at one moment, as tables: everything the recursions need and nothing about where it came from.

    log b_t(k) = constant_k + sum_d f(x_td) + flag tables + level table + anchor table, where for a Gaussian column
    f(x) = -t^2 / 2 with t = (x - shift) * scale - location, and for a Student column f(x) = -half_dof * log(1 + t^2 * inverse_dof).
    """

    initial: Array  # [KP] float64
    transition: Array  # [KP, KP] float64, from row to column
    transition_back: Array  # [KP, KP] its transpose, for the backward pass
    log_initial: Array  # [KP] float64
    log_transition: Array  # [KP, KP] float64
    constant: Array  # [KP] float64
    shift: Array  # [D] taken off every value before it is rounded to the working precision
    scale: Array  # [K, DP] working precision
    location: Array  # [K, DP]
    half_dof: Array  # [K, DP] float64, or [0, 0] for Gaussian columns
    inverse_dof: Array  # [K, DP] float64, or [0, 0]
    flag_tables: Array  # [G, 256, KP] working precision
    level_table: Array  # [R, KP] working precision
    anchor_table: Array  # [codes + 1, KP] float64
    n_states: int
    linear: bool  # True: scaled recursion; False: log domain, for models with transitions that cannot happen


class Plan(NamedTuple):
    """How sequences are grouped: a group fits in cache, a chunk is one task. Depends on the lengths alone."""

    groups: Array  # [n_groups + 1] first sequence of each group
    chunks: Array  # [n_chunks + 1] first group of each chunk
    order: Array  # [n_chunks] largest first, so that no thread is left alone with a long sequence at the end
    block_rows: int  # rows held in cache at a time
    longest: int  # rows in the largest group, rounded up to a whole number of tiles


class Scratch(NamedTuple):
    """One thread's working memory."""

    block: Array  # [block_rows, DP] working precision: cells less the shift
    distances: Array  # [block_rows, KP] working precision
    emissions: Array  # [longest, KP] float64
    shifts: Array  # [longest] float64
    posteriors: Array  # [longest, KP] float64
    filtered: Array  # [longest, KP] float64; empty for the log recursion
    log_joint: Array  # [longest, KP] float64; empty for the scaled recursion
    weights: Array  # [block_rows, KP] working precision
    rows: Array  # [K, block_rows] int64
    kept: Array  # [K] int64
    pattern_counts: Array  # [256 G, KP] float64
    pair_weights: Array  # [KP, KP] float64
    vectors: Array  # [4, KP] float64


class Sums(NamedTuple):
    """Expected sufficient statistics in float64, a part per chunk (P parts). Moments are taken about `Potentials.shift`."""

    initial: Array  # [P, KP]
    transitions: Array  # [P, KP, KP]
    occupancy: Array  # [P, KP]
    first: Array  # [P, K, DP] sum of posterior * (x - shift)
    second: Array  # [P, K, DP] sum of posterior * (x - shift)^2
    flags: Array  # [P, 8 G, KP] posterior mass where each flag is set
    levels: Array  # [P, R, KP]


def padded_states(n_states: int) -> int:
    """Number of states rounded up to whole vectors."""
    return -(-n_states // STATE_LANES) * STATE_LANES


def padded_columns(n_columns: int) -> int:
    """Number of continuous columns rounded up to whole vectors."""
    return -(-n_columns // COLUMN_LANES) * COLUMN_LANES


def zero_sums(potentials: Potentials, n_parts: int) -> Sums:
    """Statistics of no rows, in the shapes of a model's tables."""
    width = potentials.initial.shape[0]
    return Sums(
        initial=np.zeros((n_parts, width)),
        transitions=np.zeros((n_parts, width, width)),
        occupancy=np.zeros((n_parts, width)),
        first=np.zeros((n_parts, *potentials.scale.shape)),
        second=np.zeros((n_parts, *potentials.scale.shape)),
        flags=np.zeros((n_parts, 8 * potentials.flag_tables.shape[0], width)),
        levels=np.zeros((n_parts, *potentials.level_table.shape)),
    )


def sums_bytes(potentials: Potentials) -> int:
    """Size of one part."""
    return sum(field.nbytes for field in zero_sums(potentials, 1))
