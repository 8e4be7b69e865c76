"""The live recursion: one stored belief, one transaction, one new belief. Always in float64."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.coding import Terms
from turncoat.numerics.compiled import compiled, compiled_exactly
from turncoat.numerics.ragged import starts
from turncoat.numerics.structures import padded_columns, padded_states
from turncoat.numerics.vectors import (
    add,
    fma,
    load8,
    load16,
    log,
    multiply,
    residual,
    splat,
    store,
    total,
)

FINE, BAD_CELL, BAD_CODE, BAD_BELIEF = 0, 1, 2, 3
# How far a stored belief may be from adding up to one; and a normaliser too close to the smallest numbers to divide by.
_BELIEF_ROUNDING, _UNDERFLOW = 1e-6, 1e-290


# Places in `LiveTables.layout`; the first rows of the categorical columns, and the end of the last, follow.
_STATES, _WIDTH, _COLUMNS, _PADDED, _COLUMNS_AT, _LEVELS_AT, _STUDENT, _BOUNDS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)


class LiveTables(NamedTuple):
    """A model as the live step reads it. Only two arrays, since unpacking each costs a tenth of the whole step."""

    numbers: Array  # float64: initial [KP], transition [KP, KP], summed constants [KP]; columns [3 or 5, K, DP]; categories [sum of C_j, KP]
    layout: Array  # int64: sizes and places, see above

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return int(self.layout[_STATES])

    @property
    def n_columns(self) -> int:
        """Number of continuous columns D."""
        return int(self.layout[_COLUMNS])

    @property
    def bounds(self) -> Array:
        """First row of each categorical column among the category probabilities, and the end of the last [J + 1]."""
        return np.asarray(self.layout[_BOUNDS:])

    def arrays(self) -> tuple[Array, Array, Array]:
        """The three tables as arrays: chain [KP + 2, KP], columns [3 or 5, K, DP], levels [sum of C_j, KP]."""
        width, columns_at, levels_at = (
            int(self.layout[place]) for place in (_WIDTH, _COLUMNS_AT, _LEVELS_AT)
        )
        columns = self.numbers[columns_at:levels_at].reshape(
            5 if self.layout[_STUDENT] else 3, self.n_states, self.layout[_PADDED]
        )
        return (
            self.numbers[:columns_at].reshape(-1, width),
            columns,
            self.numbers[levels_at:].reshape(-1, width),
        )


def live_tables(terms: Terms) -> LiveTables:
    """Tables for `live_step`: per column the scale, location and constant; for Student columns (dof + 1) / 2 and 1 / dof too."""
    n_states, n_columns = terms.means.shape
    width, padded = padded_states(n_states), padded_columns(n_columns)
    chain = np.zeros((width + 2, width))
    chain[0, :n_states] = np.exp(terms.log_initial)
    chain[1 : n_states + 1, :n_states] = np.exp(terms.log_transition)
    chain[width + 1, :n_states] = terms.constants.sum(axis=1)
    columns = np.zeros((3 if terms.dof is None else 5, n_states, padded))
    columns[0, :, :n_columns] = terms.scales
    columns[1, :, :n_columns] = terms.means * terms.scales
    columns[2, :, :n_columns] = terms.constants
    if terms.dof is not None:
        columns[3, :, :n_columns] = terms.half_dof
        columns[4, :, :n_columns] = 1.0 / terms.dof
    levels = np.zeros((terms.log_categories.shape[1], width))
    levels[:, :n_states] = terms.log_categories.T
    sizes = [
        n_states,
        width,
        n_columns,
        padded,
        chain.size,
        chain.size + columns.size,
        int(terms.dof is not None),
    ]
    bounds = [*starts(terms.n_categories).tolist(), sum(terms.n_categories)]
    numbers = np.concatenate([chain.ravel(), columns.ravel(), levels.ravel()])
    return LiveTables(numbers, np.asarray(sizes + bounds, dtype=np.int64))


@compiled
def live_step(
    belief: Array, cells: Array, codes: Array, tables: LiveTables, largest_value: float
) -> tuple[int, int, Array, float]:
    """New belief [K] from a belief [K] (empty for a new customer) and one row; also its log predictive density.

    Returns (status, place, belief, log density); a bad cell, code or belief is reported by its place, and nothing is computed.
    """
    numbers, layout = tables.numbers, tables.layout
    n_states, width, padded = layout[_STATES], layout[_WIDTH], layout[_PADDED]
    if belief.shape[0] > 0:
        held = 0.0
        for k in range(n_states):
            held += belief[k] if belief[k] >= 0.0 else math.nan
        if not abs(held - 1.0) <= _BELIEF_ROUNDING:
            return BAD_BELIEF, 0, belief, math.nan
    work = np.zeros(
        padded + 2 * width
    )  # the row, what each state makes of it, where the chain is expected
    scores, predicted = work[padded : padded + width], work[padded + width :]
    status, place = _score_row(cells, codes, numbers, layout, largest_value, work[:padded], scores)
    if status != FINE:
        return status, place, belief, math.nan
    top = scores[:n_states].max()
    _predict(belief, numbers, width, predicted[:n_states])
    updated = np.empty(n_states)
    evidence = 0.0
    for j in range(n_states):
        updated[j] = predicted[j] * math.exp(scores[j] - top)
        evidence += updated[j]
    if evidence < _UNDERFLOW:
        top, evidence = _rescue(predicted, scores, updated)
    for j in range(n_states):
        updated[j] /= evidence
    return FINE, 0, updated, top + math.log(evidence)


@compiled
def _score_row(
    cells: Array,
    codes: Array,
    numbers: Array,
    layout: Array,
    largest_value: float,
    row: Array,
    scores: Array,
) -> tuple[int, int]:
    """Put a row's cells into a padded one, and its log density under every state into scores; or say which cell or code is bad."""
    n_bad = n_missing = 0
    for d in range(layout[_COLUMNS]):
        row[d] = cells[d]
        n_bad += abs(cells[d]) > largest_value
        n_missing += cells[d] != cells[d]
    if n_bad > 0:
        for d in range(layout[_COLUMNS]):
            if abs(cells[d]) > largest_value:
                return BAD_CELL, d
    width = layout[_WIDTH]
    for base in range(0, width, 8):
        even = odd = splat(0.0, load8(numbers, (0,)))
        for j in range(codes.shape[0]):
            code, first = codes[j], layout[_BOUNDS + j]
            if code < -1 or code >= layout[_BOUNDS + j + 1] - first:
                return BAD_CODE, j
            if code >= 0:
                even, odd = (
                    odd,
                    add(
                        even, load8(numbers, (layout[_LEVELS_AT] + (first + code) * width + base,))
                    ),
                )
        store(scores, (base,), add(even, odd))
    for k in range(layout[_STATES]):
        scores[k] += _cells_log_density(row, numbers, layout, k, n_missing > 0)
    return FINE, 0


@compiled
def live_steps(
    beliefs: Array,
    known: Array,
    previous: Array,
    cells: Array,
    codes: Array,
    tables: LiveTables,
    largest_value: float,
) -> tuple[int, int, int, Array]:
    """`live_step` for N rows in order: new beliefs [N, K].

    Row i goes on from the new belief of row `previous[i]` where that is not -1, which is then put into `beliefs` and `known`; else from
    `beliefs[i]`, or anew if that is not `known`. Returns (status, row, place, beliefs); a bad cell, code or belief is reported by its row
    and place.
    """
    updated = np.empty_like(beliefs)
    for i in range(len(beliefs)):
        if previous[i] >= 0:
            beliefs[i] = updated[previous[i]]
            known[i] = True
        status, place, belief, _ = live_step(
            beliefs[i] if known[i] else beliefs[i, :0], cells[i], codes[i], tables, largest_value
        )
        if status != FINE:
            return status, i, place, updated
        updated[i] = belief
    return FINE, 0, 0, updated


@compiled
def live_contrasts(
    state: int,
    log_predicted: Array,
    cells: Array,
    codes: Array,
    tables: LiveTables,
    largest_value: float,
) -> tuple[int, int, int, Array, Array, Array]:
    """What N rows add to the log odds of a state against each row's strongest rival, given the log beliefs before them [N, K].

    Returns (status, row, place, rivals [N], what each cell adds [N, D], what each code adds [N, J]); missing ones add nothing. A bad cell
    or code is reported by its row and place.
    """
    numbers, layout = tables.numbers, tables.layout
    n_states, width, padded, n_columns = (
        layout[_STATES],
        layout[_WIDTH],
        layout[_PADDED],
        layout[_COLUMNS],
    )
    rivals = np.zeros(len(cells), np.int64)
    of_cells, of_codes = np.zeros((len(cells), n_columns)), np.zeros((len(cells), codes.shape[1]))
    row, scores = np.zeros(padded), np.zeros(width)
    for i in range(len(cells)):
        status, place = _score_row(cells[i], codes[i], numbers, layout, largest_value, row, scores)
        if status != FINE:
            return status, i, place, rivals, of_cells, of_codes
        rival, best = 0 if state != 0 else n_states - 1, -math.inf
        for k in range(n_states):
            if k != state and log_predicted[i, k] + scores[k] > best:
                rival, best = k, log_predicted[i, k] + scores[k]
        rivals[i] = rival
        _add_cells(row, numbers, layout, state, 1.0, of_cells[i])
        _add_cells(row, numbers, layout, rival, -1.0, of_cells[i])
        for j in range(codes.shape[1]):
            if codes[i, j] >= 0:
                at = layout[_LEVELS_AT] + (layout[_BOUNDS + j] + codes[i, j]) * width
                of_codes[i, j] = numbers[at + state] - numbers[at + rival]
    return FINE, 0, 0, rivals, of_cells, of_codes


@compiled
def _add_cells(row: Array, numbers: Array, layout: Array, k: int, sign: float, out: Array) -> None:
    """Add, or take away, what each cell [D] of a padded row adds to the log density under state k."""
    at, table = layout[_COLUMNS_AT] + k * layout[_PADDED], layout[_STATES] * layout[_PADDED]
    scales, places = numbers[at : at + len(out)], numbers[at + table : at + table + len(out)]
    constants = numbers[at + 2 * table : at + 2 * table + len(out)]
    if layout[_STUDENT]:
        halves, shares = (
            numbers[at + 3 * table : at + 3 * table + len(out)],
            numbers[at + 4 * table : at + 4 * table + len(out)],
        )
        for d in range(len(out)):
            away = row[d] * scales[d] - places[d]
            out[d] += (
                sign * (constants[d] - halves[d] * math.log1p(away * away * shares[d]))
                if away == away
                else 0.0
            )
    else:
        for d in range(len(out)):
            away = row[d] * scales[d] - places[d]
            out[d] += sign * (constants[d] - 0.5 * (away * away)) if away == away else 0.0


@compiled
def _predict(belief: Array, numbers: Array, width: int, out: Array) -> None:
    """Where the chain is expected before the row is seen."""
    for j in range(out.shape[0]):
        out[j] = numbers[j]
        if belief.shape[0] > 0:
            out[j] = 0.0
            for i in range(out.shape[0]):
                out[j] += belief[i] * numbers[(i + 1) * width + j]


@compiled_exactly
def log_predicted(belief: Array, log_transition: Array) -> Array:
    """Where the chain is expected before a row is seen, as logs [K]: never lost to underflow."""
    expected = np.full(len(belief), -np.inf)
    for i in range(len(belief)):
        held = math.log(belief[i]) if belief[i] > 0.0 else -math.inf
        for j in range(len(belief)):
            moved = held + log_transition[i, j]
            top, low = max(moved, expected[j]), min(moved, expected[j])
            if low > -math.inf:
                top += math.log1p(math.exp(low - top))
            expected[j] = top
    return expected


@compiled_exactly
def log_predicted_rows(
    beliefs: Array, known: Array, log_initial: Array, log_transition: Array
) -> Array:
    """`log_predicted` for N beliefs [N, K]; where none is `known`, the beginning of the chain."""
    expected = np.empty_like(beliefs)
    for i in range(len(beliefs)):
        if known[i]:
            expected[i] = log_predicted(beliefs[i], log_transition)
        else:
            expected[i] = log_initial
    return expected


@compiled
def _cells_log_density(row: Array, numbers: Array, layout: Array, k: int, missing: bool) -> float:
    """Log density of one padded row under state k; a missing cell adds nothing, not even its constant."""
    n_states, width, padded, student = (
        layout[_STATES],
        layout[_WIDTH],
        layout[_PADDED],
        layout[_STUDENT],
    )
    at, table = layout[_COLUMNS_AT] + k * padded, n_states * padded
    nothing = splat(0.0, load16(numbers, (0,)))
    density, constants = nothing, nothing
    for d in range(0, padded, 16):
        x = load16(row, (d,))
        t = residual(x, load16(numbers, (at + d,)), load16(numbers, (at + table + d,)))
        if student:
            ratio = fma(multiply(t, t), load16(numbers, (at + 4 * table + d,)), splat(1.0, nothing))
            density = fma(load16(numbers, (at + 3 * table + d,)), log(ratio), density)
        else:
            density = fma(t, t, density)
        if missing:
            constants = add(constants, residual(x, nothing, load16(numbers, (at + 2 * table + d,))))
    constant = -total(constants) if missing else numbers[(width + 1) * width + k]
    return float((-1.0 if student else -0.5) * total(density) + constant)


@compiled
def _rescue(predicted: Array, scores: Array, updated: Array) -> tuple[float, float]:
    """Redo the step in the log domain when every product underflowed; returns its shift and normaliser."""
    top = -math.inf
    for j in range(updated.shape[0]):
        updated[j] = scores[j] + math.log(predicted[j]) if predicted[j] > 0.0 else -math.inf
        top = max(top, updated[j])
    evidence = 0.0
    for j in range(updated.shape[0]):
        updated[j] = math.exp(updated[j] - top)
        evidence += updated[j]
    return top, evidence
