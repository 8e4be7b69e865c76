"""Every kernel again in plain NumPy and float64, with the same signature.

The reference of the fast ones.

The recursions step one row at a time in the log domain. They share nothing with the compiled
kernels but the arrays that both read.
"""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from turncoat.arrays import Array
from turncoat.numerics.generators import gap_codes
from turncoat.numerics.layout import CELL_MISSING, CODE_MISSING, IS_ONE
from turncoat.numerics.live import BAD_BELIEF, BAD_CELL, BAD_CODE, BAD_GAP, OK, LiveTables
from turncoat.numerics.structures import KernelSums, KernelTables, Observations, zero_sums


def _shifted_cells(obs: Observations, tables: KernelTables) -> Array:
    """x - shift [N, D]; NaN where the cell is missing."""
    return np.asarray(obs.continuous.astype(np.float64) - tables.shift.astype(np.float64))


def log_emissions(obs: Observations, tables: KernelTables) -> Array:
    """log b [N, K]."""
    k = tables.n_states
    d = obs.continuous.shape[1]
    x = _shifted_cells(obs, tables)[:, None, :]
    t = np.nan_to_num(
        x * tables.scale[:, :d].astype(np.float64) - tables.location[:, :d].astype(np.float64),
        nan=0.0,
    )
    if tables.half_dof.shape[0]:
        excess = np.minimum(t**2 * tables.inverse_dof[:, :d], tables.max_ratio - 1.0)
        cells = -tables.half_dof[:, :d] * np.log1p(excess)
    else:
        cells = -0.5 * t**2
    total = tables.constant[:k] + cells.sum(axis=2)
    for g in range(obs.flags.shape[1]):
        total += tables.flag_tables[g, obs.flags[:, g], :k].astype(np.float64)
    for j in range(obs.levels.shape[1]):
        total += tables.level_table[obs.levels[:, j], :k].astype(np.float64)
    if len(obs.anchors):
        total += tables.anchor_table[obs.anchors, :k]
    return np.asarray(total)


def _shifted_emissions(obs: Observations, tables: KernelTables) -> tuple[Array, Array]:
    """log b [N, K] less each row's maximum, and those maxima [N]."""
    emissions = log_emissions(obs, tables)
    shifts = emissions.max(axis=1)
    return emissions - shifts[:, None], shifts


def _forward(tables: KernelTables, gaps: Array, emissions: Array) -> Array:
    """log p(x_1..t, state) [T, K] of one sequence."""
    k = tables.n_states
    log_transition = tables.log_transition[gaps, :k, :k]
    joint = np.empty_like(emissions)
    joint[0] = tables.log_initial[:k] + emissions[0]
    for t in range(1, len(emissions)):
        joint[t] = (
            np.logaddexp.reduce(joint[t - 1][:, None] + log_transition[t], axis=0) + emissions[t]
        )
    return joint


def _backward(tables: KernelTables, gaps: Array, emissions: Array) -> Array:
    """log p(x_t+1.. | state) [T, K] of one sequence."""
    k = tables.n_states
    ahead = np.zeros_like(emissions)
    for t in range(len(emissions) - 2, -1, -1):
        ahead[t] = np.logaddexp.reduce(
            tables.log_transition[gaps[t + 1], :k, :k] + emissions[t + 1] + ahead[t + 1], axis=1
        )
    return ahead


def infer(
    obs: Observations, tables: KernelTables, smoothed: bool, n_threads: int = 1
) -> tuple[Array, Array]:
    """Filtered or smoothed probabilities [N, K] and log-likelihoods [U].

    `n_threads` is there for the signature.
    """
    emissions, shifts = _shifted_emissions(obs, tables)
    probs = np.empty_like(emissions)
    offsets = obs.offsets
    log_likelihoods = np.empty(len(offsets) - 1)
    for u in range(len(offsets) - 1):
        rows = slice(offsets[u], offsets[u + 1])
        joint = _forward(tables, obs.gaps[rows], emissions[rows])
        log_likelihoods[u] = np.logaddexp.reduce(joint[-1]) + shifts[rows].sum()
        probs[rows] = softmax(
            joint + _backward(tables, obs.gaps[rows], emissions[rows]) if smoothed else joint,
            axis=1,
        )
    return probs, log_likelihoods


def collect(
    obs: Observations, tables: KernelTables, n_threads: int = 1
) -> tuple[KernelSums, Array]:
    """Expected sufficient statistics of all rows, and the log-likelihood of each sequence [U].

    The weights of sequences multiply the statistics.
    """
    k = tables.n_states
    probs, log_likelihoods = infer(obs, tables, smoothed=True)
    sums = _row_sums(obs, tables, probs)
    weights = _sequence_weights(obs)
    emissions, _ = _shifted_emissions(obs, tables)
    offsets = obs.offsets
    for u in range(len(offsets) - 1):
        rows = slice(offsets[u], offsets[u + 1])
        part, gaps = emissions[rows], obs.gaps[rows]
        joint, ahead = _forward(tables, gaps, part), _backward(tables, gaps, part)
        total = np.logaddexp.reduce(joint[-1])
        for t in range(1, len(part)):
            pair = (
                joint[t - 1][:, None]
                + tables.log_transition[gaps[t], :k, :k]
                + (part[t] + ahead[t])[None, :]
            )
            sums.transitions[0, gaps[t], :k, :k] += weights[u] * np.exp(pair - total)
    return sums, log_likelihoods


def collect_weighted(
    obs: Observations, tables: KernelTables, probs: Array, n_threads: int = 1
) -> KernelSums:
    """Sufficient statistics under given state probabilities [N, K].

    Consecutive rows taken as independent.
    """
    k, offsets = tables.n_states, obs.offsets
    sums = _row_sums(obs, tables, probs)
    weights = _sequence_weights(obs)
    for u in range(len(offsets) - 1):
        part = probs[offsets[u] : offsets[u + 1]]
        sums.transitions[0, 0, :k, :k] += weights[u] * part[:-1].T @ part[1:]
    return sums


def _sequence_weights(obs: Observations) -> Array:
    return obs.weights if obs.weights.size else np.ones(len(obs.offsets) - 1)


def _row_sums(obs: Observations, tables: KernelTables, probs: Array) -> KernelSums:
    """All statistics but the transitions."""
    k, d = tables.n_states, obs.continuous.shape[1]
    probs = probs * np.repeat(_sequence_weights(obs), np.diff(obs.offsets))[:, None]
    sums = zero_sums(tables, 1)
    x = np.nan_to_num(_shifted_cells(obs, tables), nan=0.0)
    sums.initial[0, :k] = probs[obs.offsets[:-1]].sum(axis=0)
    sums.occupancy[0, :k] = probs.sum(axis=0)
    sums.first[0, :, :d] = probs.T @ x
    sums.second[0, :, :d] = probs.T @ x**2
    bits = np.unpackbits(obs.flags, axis=1, bitorder="little")
    sums.flags[0, :, :k] = bits.T.astype(np.float64) @ probs
    for j in range(obs.levels.shape[1]):
        np.add.at(sums.levels[0, :, :k], obs.levels[:, j], probs)
    return sums


def decode(obs: Observations, tables: KernelTables, n_threads: int = 1) -> tuple[Array, Array]:
    """Most likely state path [N] and its log probability [U], for every sequence."""
    k, offsets = tables.n_states, obs.offsets
    emissions = log_emissions(obs, tables)
    path, log_probs = np.empty(len(emissions), np.int64), np.empty(len(offsets) - 1)
    for u in range(len(offsets) - 1):
        part = emissions[offsets[u] : offsets[u + 1]]
        best = tables.log_initial[:k] + part[0]
        choices = np.zeros((len(part), k), np.int64)
        for t in range(1, len(part)):
            moves = best[:, None] + tables.log_transition[obs.gaps[offsets[u] + t], :k, :k]
            choices[t] = moves.argmax(axis=0)
            best = moves.max(axis=0) + part[t]
        state = int(best.argmax())
        log_probs[u] = best.max()
        for t in range(len(part) - 1, -1, -1):
            path[offsets[u] + t] = state
            state = int(choices[t, state])
    return path, log_probs


def unpack_live_tables(tables: LiveTables) -> tuple[int, int, Array, Array, Array, float]:
    """K, D, chain [2 + M KP, KP], columns [3 or 5, K, DP], levels [sum of C_j, KP], max_ratio."""
    k, width, d, padded, columns_at, levels_at, student, _ = tables.layout[:8].tolist()
    columns = tables.numbers[columns_at:levels_at].reshape(5 if student else 3, k, padded)
    chain, levels = tables.numbers[:columns_at], tables.numbers[levels_at:-1]
    max_ratio = float(tables.numbers[-1])
    return k, d, chain.reshape(-1, width), columns, levels.reshape(-1, width), max_ratio


def live_step(
    belief: Array,
    gap_s: float,
    cells: Array,
    codes: Array,
    tables: LiveTables,
    largest_value: float,
) -> tuple[int, int, Array, float]:
    """One live step from a belief [K] (empty for a new customer) and one row.

    As in `live.live_step`.
    """
    k, d, chain, columns, levels, max_ratio = unpack_live_tables(tables)
    sizes = np.diff(tables.bounds)
    if len(belief) and not ((belief >= 0).all() and abs(belief.sum() - 1.0) <= 1e-6):
        return BAD_BELIEF, 0, belief, np.nan
    if tables.layout[7] and len(belief) and not 0 <= gap_s < np.inf:
        return BAD_GAP, 0, belief, np.nan
    for place in np.flatnonzero(np.abs(cells) > largest_value):
        return BAD_CELL, int(place), belief, np.nan
    for place in np.flatnonzero((codes < -1) | (codes >= sizes)):
        return BAD_CODE, int(place), belief, np.nan
    t = cells * columns[0, :, :d] - columns[1, :, :d]
    if len(columns) == 3:
        log_density = columns[2, :, :d] - 0.5 * t**2
    else:
        excess = np.minimum(t**2 * columns[4, :, :d], max_ratio - 1.0)
        log_density = columns[2, :, :d] - columns[3, :, :d] * np.log1p(excess)
    scores = np.where(np.isnan(cells), 0.0, log_density).sum(axis=1)
    scores = scores + levels[(tables.bounds[:-1] + codes)[codes >= 0], :k].sum(axis=0)
    has_gaps, width = tables.layout[7], chain.shape[1]
    first = 2 + width * int(gap_codes(gap_s)) if has_gaps and len(belief) else 2
    initial, transition = chain[0, :k], chain[first : first + k, :k]
    with np.errstate(divide="ignore"):
        joint = np.log(belief @ transition if len(belief) else initial) + scores
    return OK, 0, np.asarray(softmax(joint)), float(np.logaddexp.reduce(joint))


def predict_log(belief: Array, log_transition: Array) -> Array:
    """Where the chain is expected before a row is seen, as logs [K]."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp.reduce(np.log(belief)[:, None] + log_transition, axis=0))


def log_odds_terms(
    state: int, log_predicted: Array, cells: Array, codes: Array, rest: Array
) -> tuple[int, Array, Array, float]:
    """Split a row's log odds of a state against its strongest rival: rival, cells, codes, rest.

    `log_predicted` [K] is the log belief before the row. `cells` [K, D], `codes` [K, J] and `rest`
    [K] are the terms of the log emission of every state.
    """
    scores = log_predicted + cells.sum(axis=1) + codes.sum(axis=1) + rest
    rival = max((k for k in range(len(scores)) if k != state), key=lambda k: scores[k])
    return (
        rival,
        cells[state] - cells[rival],
        codes[state] - codes[rival],
        float(rest[state] - rest[rival]),
    )


def row_terms(
    rows: Array, codes: Array, columns: Array, levels: Array, bounds: Array
) -> tuple[Array, Array]:
    """What each cell and each code adds to log b(k), [N, K, D] and [N, K, J].

    As in `layout.row_terms`.
    """
    means, scales, constants, *student = columns
    away = (rows[:, None, :] - means) * scales
    size = 0.5 * away**2
    if student:
        half_dof, dof, max_ratio = student
        size = half_dof * np.log1p(np.minimum(away**2 / dof, max_ratio - 1.0))
    missing = (codes < 0)[:, None, :]
    names = levels[np.where(codes < 0, 0, codes + bounds[:-1])].transpose(0, 2, 1)
    return np.where(np.isnan(away), 0.0, constants - size), np.where(missing, 0.0, names)


def pack_flags(
    continuous: Array, categorical: Array, questions: Array, columns: Array, flags: Array
) -> None:
    """Answer every row's questions, eight to a byte, in `flags` [N, G], which must be zero."""
    answers = {
        IS_ONE: categorical == 1,
        CODE_MISSING: categorical < 0,
        CELL_MISSING: np.isnan(continuous),
    }
    for flag, (question, column) in enumerate(zip(questions, columns, strict=True)):
        if question in answers:
            flags[:, flag // 8] |= answers[question][:, column].astype(np.uint8) << (flag % 8)
