"""The live recursion: one stored belief, one transaction, one new belief. Always in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.generators import encode_gap
from turncoat.numerics.jit import jit, jit_exact
from turncoat.numerics.layout import LogModel
from turncoat.numerics.structures import column_starts, pad_columns, pad_states
from turncoat.numerics.vectors import (
    add,
    fma,
    load8,
    load16,
    log,
    minimum,
    multiply,
    residual,
    splat,
    store,
    total,
)

OK, BAD_CELL, BAD_CODE, BAD_BELIEF, BAD_GAP = 0, 1, 2, 3, 4
# How far a stored belief may be from adding up to one; a normaliser too small to divide by.
_BELIEF_ROUNDING, _UNDERFLOW = 1e-6, 1e-290

# Places in `LiveTables.layout`. The first row of each categorical column, and the end of the last,
# follow at _BOUNDS.
_STATES, _WIDTH, _COLUMNS, _PADDED, _COLUMNS_AT, _LEVELS_AT, _STUDENT, _GAPS, _BOUNDS = range(9)


class LiveTables(NamedTuple):
    """A model as the live step reads it: two arrays, since each costs a tenth of a step to unpack.

    `numbers` holds initial [KP], summed constants [KP] and transition [M, KP, KP], one matrix per
    gap code, then columns [3 or 5, K, DP], then categories [sum of C_j, KP], and last the largest
    Student ratio.
    """

    numbers: Array  # float64
    layout: Array  # int64: sizes and places, see above

    @property
    def bounds(self) -> Array:
        """First row of each categorical column, and the end of the last [J + 1]."""
        return np.asarray(self.layout[_BOUNDS:])


def build_live_tables(model: LogModel) -> LiveTables:
    """Return the tables of `live_step`.

    Columns have scale, location and constant; Student columns also (dof + 1) / 2 and 1 / dof.
    """
    n_states, n_columns = model.means.shape
    width, padded = pad_states(n_states), pad_columns(n_columns)
    transition, _ = model.get_transitions()
    chain = np.zeros((2 + len(transition) * width, width))
    chain[0, :n_states] = np.exp(model.log_initial)
    chain[1, :n_states] = model.constants.sum(axis=1)
    chain[2:] = transition.reshape(-1, width)
    columns = np.zeros((3 if model.dof is None else 5, n_states, padded))
    columns[0, :, :n_columns] = model.scales
    columns[1, :, :n_columns] = model.means * model.scales
    columns[2, :, :n_columns] = model.constants
    if model.dof is not None:
        columns[3, :, :n_columns] = model.half_dof
        columns[4, :, :n_columns] = 1.0 / model.dof
    levels = np.zeros((model.log_categories.shape[1], width))
    levels[:, :n_states] = model.log_categories.T
    flags = [int(model.dof is not None), int(model.generator is not None)]
    places = [chain.size, chain.size + columns.size, *flags]
    bounds = [*column_starts(model.n_categories).tolist(), sum(model.n_categories)]
    layout = np.array([n_states, width, n_columns, padded, *places, *bounds], dtype=np.int64)
    numbers = [chain.ravel(), columns.ravel(), levels.ravel(), np.array([model.max_ratio])]
    return LiveTables(np.concatenate(numbers), layout)


@jit
def live_step(
    belief: Array, gap_s: float, cells: Array, codes: Array, tables: LiveTables, max_value: float
) -> tuple[int, int, Array, float]:
    """Update a belief [K] (empty for a new customer) with one row.

    Where transitions depend on it, `gap_s` are the seconds since the customer's previous row.

    Returns (status, place, new belief, log predictive density up to the gap's scale). For a bad
    cell, code, belief or gap, `place` says which one and nothing is computed.
    """
    numbers, layout = tables.numbers, tables.layout
    n_states, width, padded = layout[_STATES], layout[_WIDTH], layout[_PADDED]
    if belief.shape[0] > 0:
        belief_total = 0.0
        for k in range(n_states):
            belief_total += belief[k] if belief[k] >= 0.0 else math.nan
        if not abs(belief_total - 1.0) <= _BELIEF_ROUNDING:
            return BAD_BELIEF, 0, belief, math.nan
    gap = 0
    if layout[_GAPS] and belief.shape[0] > 0:
        if not 0.0 <= gap_s < math.inf:
            return BAD_GAP, 0, belief, math.nan
        gap = encode_gap(gap_s)
    work = np.zeros(padded + 2 * width)  # the row, its log densities, the predicted belief
    scores, predicted = work[padded : padded + width], work[padded + width :]
    status, place = _score_row(cells, codes, tables, max_value, work[:padded], scores)
    if status != OK:
        return status, place, belief, math.nan
    top = scores[:n_states].max()
    _predict(belief, gap, numbers, width, predicted[:n_states])
    updated = np.empty(n_states)
    evidence = 0.0
    for j in range(n_states):
        updated[j] = predicted[j] * math.exp(scores[j] - top)
        evidence += updated[j]
    if evidence < _UNDERFLOW:
        top, evidence = _update_in_logs(predicted, scores, updated)
    for j in range(n_states):
        updated[j] /= evidence
    return OK, 0, updated, top + math.log(evidence)


@jit
def _score_row(
    cells: Array, codes: Array, tables: LiveTables, max_value: float, row: Array, scores: Array
) -> tuple[int, int]:
    """Write the cells to a padded row, and its log density under every state to `scores`.

    Returns a status and the place of a bad cell or code.
    """
    numbers, layout = tables.numbers, tables.layout
    n_bad = n_missing = 0
    for d in range(layout[_COLUMNS]):
        row[d] = cells[d]
        n_bad += abs(cells[d]) > max_value
        n_missing += cells[d] != cells[d]
    if n_bad > 0:
        for d in range(layout[_COLUMNS]):
            if abs(cells[d]) > max_value:
                return BAD_CELL, d
    width = layout[_WIDTH]
    for base in range(0, width, 8):
        even = odd = splat(0.0, load8(numbers, (0,)))
        for j in range(codes.shape[0]):
            code, first = codes[j], layout[_BOUNDS + j]
            if code < -1 or code >= layout[_BOUNDS + j + 1] - first:
                return BAD_CODE, j
            if code >= 0:
                at = layout[_LEVELS_AT] + (first + code) * width + base
                even, odd = odd, add(even, load8(numbers, (at,)))
        store(scores, (base,), add(even, odd))
    for k in range(layout[_STATES]):
        scores[k] += _cells_log_density(row, numbers, layout, k, n_missing > 0)
    return OK, 0


@jit
def live_steps(
    beliefs: Array,
    known: Array,
    previous: Array,
    gaps_s: Array,
    cells: Array,
    codes: Array,
    tables: LiveTables,
    max_value: float,
) -> tuple[int, int, int, Array, Array, Array]:
    """Apply `live_step` to N rows in order, with gaps in seconds [N].

    Row i continues from the new belief of row `previous[i]`, or if that is -1 from `beliefs[i]`, or
    starts anew if that is not `known`. Returns (status, row, place, beliefs before [N, K], whether
    there was one [N], beliefs after [N, K]). For a bad cell, code or belief, row and place say
    which one.
    """
    before, has_before, after = beliefs.copy(), known.copy(), np.empty_like(beliefs)
    for i in range(len(beliefs)):
        if previous[i] >= 0:
            before[i] = after[previous[i]]
            has_before[i] = True
        stored = before[i] if has_before[i] else before[i, :0]
        status, place, belief, _ = live_step(
            stored, gaps_s[i], cells[i], codes[i], tables, max_value
        )
        if status != OK:
            return status, i, place, before, has_before, after
        after[i] = belief
    return OK, 0, 0, before, has_before, after


@jit
def live_contributions(
    state: int,
    log_predicted: Array,
    cells: Array,
    codes: Array,
    tables: LiveTables,
    max_value: float,
) -> tuple[int, int, int, Array, Array, Array]:
    """Return what N rows add to the log odds of a state against each row's strongest rival.

    `log_predicted` [N, K] are the log beliefs before the rows. Returns (status, row, place,
    rivals [N], terms of cells [N, D], terms of codes [N, J]). A missing value adds nothing. For a
    bad cell or code, row and place say which one.
    """
    numbers, layout = tables.numbers, tables.layout
    n_states, width, n_columns = layout[_STATES], layout[_WIDTH], layout[_COLUMNS]
    rivals = np.zeros(len(cells), np.int64)
    from_cells = np.zeros((len(cells), n_columns))
    from_codes = np.zeros((len(cells), codes.shape[1]))
    row, scores = np.zeros(layout[_PADDED]), np.zeros(width)
    for i in range(len(cells)):
        status, place = _score_row(cells[i], codes[i], tables, max_value, row, scores)
        if status != OK:
            return status, i, place, rivals, from_cells, from_codes
        rival, best = 0 if state != 0 else n_states - 1, -math.inf
        for k in range(n_states):
            if k != state and log_predicted[i, k] + scores[k] > best:
                rival, best = k, log_predicted[i, k] + scores[k]
        rivals[i] = rival
        _add_cells(row, numbers, layout, state, 1.0, from_cells[i])
        _add_cells(row, numbers, layout, rival, -1.0, from_cells[i])
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                at = layout[_LEVELS_AT] + (layout[_BOUNDS + j] + codes[i, j]) * width
                from_codes[i, j] = numbers[at + state] - numbers[at + rival]
    return OK, 0, 0, rivals, from_cells, from_codes


@jit
def _add_cells(row: Array, numbers: Array, layout: Array, k: int, sign: float, out: Array) -> None:
    """Add to `out` [D], with a sign, each cell's term of the log density under state k."""
    n, table = len(out), layout[_STATES] * layout[_PADDED]
    at = layout[_COLUMNS_AT] + k * layout[_PADDED]
    scales, locations = numbers[at : at + n], numbers[at + table : at + table + n]
    constants = numbers[at + 2 * table : at + 2 * table + n]
    student = layout[_STUDENT]
    for d in range(n):
        t = row[d] * scales[d] - locations[d]
        size = 0.5 * (t * t)
        if student:
            half_dof, inverse_dof = numbers[at + 3 * table + d], numbers[at + 4 * table + d]
            size = half_dof * math.log1p(min(t * t * inverse_dof, numbers[-1] - 1.0))
        out[d] += sign * (constants[d] - size) if t == t else 0.0


@jit
def _predict(belief: Array, gap: int, numbers: Array, width: int, out: Array) -> None:
    """Write the belief before the row to `out` [K]."""
    first = 2 + gap * width
    for j in range(out.shape[0]):
        out[j] = numbers[j]
        if belief.shape[0] > 0:
            out[j] = 0.0
            for i in range(out.shape[0]):
                out[j] += belief[i] * numbers[(first + i) * width + j]


@jit_exact
def predict_log(belief: Array, log_transition: Array) -> Array:
    """Return the log belief before a row [K]; it never underflows."""
    predicted = np.full(len(belief), -np.inf)
    for i in range(len(belief)):
        log_belief = math.log(belief[i]) if belief[i] > 0.0 else -math.inf
        for j in range(len(belief)):
            term = log_belief + log_transition[i, j]
            top, low = max(term, predicted[j]), min(term, predicted[j])
            if low > -math.inf:
                top += math.log1p(math.exp(low - top))
            predicted[j] = top
    return predicted


@jit_exact
def predict_log_rows(
    beliefs: Array, known: Array, gaps: Array, log_initial: Array, log_transition: Array
) -> Array:
    """Apply `predict_log` to N beliefs [N, K]; rows not `known` get the initial distribution.

    `gaps` [N] are places in log_transition [M, K, K].
    """
    predicted = np.empty_like(beliefs)
    for i in range(len(beliefs)):
        predicted[i] = log_initial
        if known[i]:
            predicted[i] = predict_log(beliefs[i], log_transition[gaps[i]])
    return predicted


@jit
def _cells_log_density(row: Array, numbers: Array, layout: Array, k: int, missing: bool) -> float:
    """Return the log density of a padded row under state k; a missing cell adds nothing at all."""
    width, padded, student = layout[_WIDTH], layout[_PADDED], layout[_STUDENT]
    at, table = layout[_COLUMNS_AT] + k * padded, layout[_STATES] * padded
    nothing = splat(0.0, load16(numbers, (0,)))
    density, constants = nothing, nothing
    for d in range(0, padded, 16):
        x = load16(row, (d,))
        t = residual(x, load16(numbers, (at + d,)), load16(numbers, (at + table + d,)))
        if student:
            ratio = fma(multiply(t, t), load16(numbers, (at + 4 * table + d,)), splat(1.0, nothing))
            ratio = minimum(ratio, splat(numbers[-1], nothing))
            density = fma(load16(numbers, (at + 3 * table + d,)), log(ratio), density)
        else:
            density = fma(t, t, density)
        if missing:
            constants = add(constants, residual(x, nothing, load16(numbers, (at + 2 * table + d,))))
    constant = -total(constants) if missing else numbers[width + k]
    return float((-1.0 if student else -0.5) * total(density) + constant)


@jit
def _update_in_logs(predicted: Array, scores: Array, updated: Array) -> tuple[float, float]:
    """Redo the step in the log domain after underflow; return its shift and normaliser."""
    top = -math.inf
    for j in range(updated.shape[0]):
        updated[j] = scores[j] + math.log(predicted[j]) if predicted[j] > 0.0 else -math.inf
        top = max(top, updated[j])
    evidence = 0.0
    for j in range(updated.shape[0]):
        updated[j] = math.exp(updated[j] - top)
        evidence += updated[j]
    return top, evidence
