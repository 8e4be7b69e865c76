"""The live recursion: one stored belief, one transaction, one new belief. Always in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.numerics.coding import Terms
from turncoat.numerics.compiled import compiled
from turncoat.numerics.ragged import starts
from turncoat.numerics.structures import Array, padded_columns, padded_states
from turncoat.numerics.vectors import add, fma, load8, load16, log, multiply, residual, splat, store, total

FINE, BAD_CELL, BAD_CODE, BAD_BELIEF = 0, 1, 2, 3
# How far a stored belief may be from adding up to one; and a normaliser too close to the smallest numbers to divide by.
_BELIEF_ROUNDING, _UNDERFLOW = 1e-6, 1e-290


class LiveTables(NamedTuple):
    """A model as the live step reads it: few arrays, since unpacking each costs a fraction of the whole step."""

    chain: Array  # [KP + 1, KP]: the initial probabilities, then the transition matrix
    columns: Array  # [3 or 5, K, DP]: scale, location, constant; for Student columns also (dof + 1) / 2 and 1 / dof
    levels: Array  # [sum of C_j, KP] log category probabilities
    bounds: Array  # [J + 1] first row of each categorical column in `levels`
    n_columns: int


def live_tables(terms: Terms) -> LiveTables:
    """Tables for `live_step`."""
    n_states, n_columns = terms.means.shape
    width = padded_states(n_states)
    chain = np.zeros((width + 1, width))
    chain[0, :n_states] = np.exp(terms.log_initial)
    chain[1 : n_states + 1, :n_states] = np.exp(terms.log_transition)
    columns = np.zeros((3 if terms.dof is None else 5, n_states, padded_columns(n_columns)))
    columns[0, :, :n_columns] = terms.scales
    columns[1, :, :n_columns] = terms.means * terms.scales
    columns[2, :, :n_columns] = terms.constants
    if terms.dof is not None:
        columns[3, :, :n_columns] = 0.5 * (terms.dof + 1.0)
        columns[4, :, :n_columns] = 1.0 / terms.dof
    levels = np.zeros((terms.log_categories.shape[1], width))
    levels[:, :n_states] = terms.log_categories.T
    bounds = np.append(starts(terms.n_categories), sum(terms.n_categories))
    return LiveTables(chain, columns, levels, bounds, n_columns)


@compiled
def live_step(belief: Array, cells: Array, codes: Array, tables: LiveTables, largest_value: float) -> tuple[int, int, Array, float]:
    """New belief [K] from a belief [K] (empty for a new customer) and one row; also its log predictive density.

    Returns (status, place, belief, log density); a bad cell, code or belief is reported by its place, and nothing is computed.
    """
    chain, columns, levels, bounds = tables.chain, tables.columns, tables.levels, tables.bounds
    n_states, width = columns.shape[1], chain.shape[1]
    if belief.shape[0] > 0:
        held = 0.0
        for k in range(n_states):
            held += belief[k] if belief[k] >= 0.0 else math.nan
        if not abs(held - 1.0) <= _BELIEF_ROUNDING:
            return BAD_BELIEF, 0, belief, math.nan
    row = np.zeros((1, columns.shape[2]))
    for d in range(tables.n_columns):
        if abs(cells[d]) > largest_value:
            return BAD_CELL, d, belief, math.nan
        row[0, d] = cells[d]
    scores = np.zeros((1, width))
    for base in range(0, width, 8):
        summed = splat(0.0, load8(scores, (0, base)))
        for j in range(codes.shape[0]):
            code = codes[j]
            if code >= 0:
                if code >= bounds[j + 1] - bounds[j]:
                    return BAD_CODE, j, belief, math.nan
                summed = add(summed, load8(levels, (bounds[j] + code, base)))
            elif code < -1:
                return BAD_CODE, j, belief, math.nan
        store(scores, (0, base), summed)
    for k in range(n_states):
        scores[0, k] += _cells_log_density(row, columns, k)
    top = -math.inf
    for k in range(n_states):
        top = max(top, scores[0, k])
    predicted = np.empty(n_states)
    _predict(belief, chain, predicted)
    updated = np.empty(n_states)
    evidence = 0.0
    for j in range(n_states):
        updated[j] = predicted[j] * math.exp(scores[0, j] - top)
        evidence += updated[j]
    if evidence < _UNDERFLOW:
        top, evidence = _rescue(predicted, scores, updated)
    for j in range(n_states):
        updated[j] /= evidence
    return FINE, 0, updated, top + math.log(evidence)


@compiled
def _predict(belief: Array, chain: Array, out: Array) -> None:
    """Where the chain is expected before the row is seen."""
    for j in range(out.shape[0]):
        out[j] = chain[0, j]
        if belief.shape[0] > 0:
            out[j] = 0.0
            for i in range(out.shape[0]):
                out[j] += belief[i] * chain[i + 1, j]


@compiled
def _cells_log_density(row: Array, columns: Array, k: int) -> float:
    """Log density of one padded row under state k; a missing cell adds nothing."""
    nothing = splat(0.0, load16(row, (0, 0)))
    density, constants = nothing, nothing
    for d in range(0, row.shape[1], 16):
        x = load16(row, (0, d))
        t = residual(x, load16(columns, (0, k, d)), load16(columns, (1, k, d)))
        if columns.shape[0] > 3:
            ratio = fma(multiply(t, t), load16(columns, (4, k, d)), splat(1.0, nothing))
            density = fma(load16(columns, (3, k, d)), log(ratio), density)
        else:
            density = fma(t, t, density)
        constants = add(constants, residual(x, nothing, load16(columns, (2, k, d))))
    return float((-1.0 if columns.shape[0] > 3 else -0.5) * total(density) - total(constants))


@compiled
def _rescue(predicted: Array, scores: Array, updated: Array) -> tuple[float, float]:
    """Redo the step in the log domain when every product underflowed; returns its shift and normaliser."""
    top = -math.inf
    for j in range(updated.shape[0]):
        updated[j] = scores[0, j] + math.log(predicted[j]) if predicted[j] > 0.0 else -math.inf
        top = max(top, updated[j])
    evidence = 0.0
    for j in range(updated.shape[0]):
        updated[j] = math.exp(updated[j] - top)
        evidence += updated[j]
    return top, evidence
