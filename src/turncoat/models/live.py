"""The live half of every model: beliefs after new rows, and the log odds behind them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array, Rows
from turncoat.errors import DataError, StateError
from turncoat.numerics import live
from turncoat.numerics.generators import gap_codes
from turncoat.numerics.layout import LogModel
from turncoat.panel import MAX_VALUE

_GAP_RULE = "the seconds since the customer's previous row, finite and not negative"
_NO_CELLS = np.empty(0)
_NO_CODES = np.empty(0, np.int64)


class LogOddsContributions(NamedTuple):
    """Terms of the log odds of a state against each row's strongest rival."""

    state: int
    rivals: Array  # [N]
    history: Array  # [N] from the belief before the row
    cells: Array  # [N, D]
    codes: Array  # [N, J]
    rest: Array  # [N]

    @property
    def log_odds(self) -> Array:
        """Sums of all terms [N]."""
        from_row = self.cells.sum(axis=1) + self.codes.sum(axis=1)
        return np.asarray(self.history + from_row + self.rest)


class UsedColumns(NamedTuple):
    """The columns that a model uses: masks over the continuous [D] and categorical ones [J]."""

    cells: Array
    codes: Array

    @classmethod
    def split(cls, mask: Array, n_continuous: int) -> UsedColumns:
        """From one mask [D + J]."""
        return cls(mask[:n_continuous], mask[n_continuous:])

    @property
    def are_all(self) -> bool:
        """Whether no column is left out."""
        return bool(self.cells.all() and self.codes.all())

    def narrow(self, continuous: Array, categorical: Array) -> tuple[Array, Array]:
        """Rows with the used columns only."""
        if self.are_all:
            return continuous, categorical
        return continuous[..., self.cells], categorical[..., self.codes]

    def widen(self, cells: Array, codes: Array) -> tuple[Array, Array]:
        """Terms of the used columns among zeros for the others."""
        if self.are_all:
            return cells, codes
        wide = (np.zeros((*cells.shape[:-1], len(mask))) for mask in self)
        wide_cells, wide_codes = wide
        wide_cells[..., self.cells], wide_codes[..., self.codes] = cells, codes
        return wide_cells, wide_codes


class LiveRecursion(NamedTuple):
    """A model as the live kernels read it, always in float64. Build it once and reuse it."""

    tables: live.LiveTables
    log_initial: Array
    log_transition: Array  # [1, K, K], or one matrix per gap code
    n_states: int
    used: UsedColumns
    has_gaps: bool  # transitions depend on the time between rows

    @classmethod
    def from_model(cls, model: LogModel, used: UsedColumns) -> LiveRecursion:
        """Build the tables of a model over the used columns."""
        log_transition = model.log_transition[None]
        if model.generator is not None:
            matrices, log_scales = model.get_transitions()
            k = model.n_states
            log_transition = np.log(matrices[:, :k, :k]) + log_scales[:, None, None]
        chain = _as_writable(model.log_initial), _as_writable(log_transition)
        has_gaps = model.generator is not None
        return cls(live.build_live_tables(model), *chain, model.n_states, used, has_gaps)

    def narrow_rows(self, continuous: Array, categorical: Array) -> tuple[Array, Array]:
        """Rows [N, D] and [N, J] as the kernels take them."""
        cells, codes = self.used.narrow(continuous, categorical)
        return cells.astype(np.float64, order="C"), codes.astype(np.int64, order="C")

    def raise_for(self, status: int, place: int, cells: Array, codes: Array) -> None:
        """Raise the error that a kernel's status at a used column stands for, if it is not OK."""
        if status == live.BAD_BELIEF:
            rule = "a belief must be probabilities that add up to 1, as an earlier step returned"
            raise StateError(f"{rule} them; None for a new customer")
        if status == live.BAD_GAP:
            raise DataError(f"gap_s must be {_GAP_RULE}: transitions depend on it")
        if status == live.BAD_CELL:
            rule = f"values must be finite and within {MAX_VALUE:g}, NaN if missing"
            column = np.flatnonzero(self.used.cells)[place]
            raise DataError(f"continuous column {column}: found {cells[place]}; {rule}")
        if status == live.BAD_CODE:
            max_code = int(self.tables.bounds[place + 1] - self.tables.bounds[place]) - 1
            rule = f"codes run from 0 to {max_code}, -1 is missing"
            column = np.flatnonzero(self.used.codes)[place]
            raise DataError(f"categorical column {column}: found code {codes[place]}; {rule}")


class LiveInference(ABC):
    """The methods of a fitted model that work on stored beliefs and new rows."""

    n_states: int

    @abstractmethod
    def _recursion(self) -> LiveRecursion:
        """Return the live recursion of the scoring model; built once."""

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: Rows = None,
        categorical_row: Rows = None,
        gap_s: float | None = None,
    ) -> Array:
        """Update a stored belief [K] (None for a new customer) with one row; return the new one.

        Models with ``transitions="continuous"`` need the seconds since the customer's previous row.
        Runs in float64 and equals `filter` on the same rows, to the rounding of `precision`.
        """
        recursion = self._recursion()
        try:
            stored, cells = _NO_CELLS, _NO_CELLS
            if belief is not None:
                stored = _as_writable(np.asarray(belief, np.float64))
            if continuous_row is not None:
                cells = _as_writable(np.asarray(continuous_row, np.float64))
        except (TypeError, ValueError) as problem:
            expected = "a belief and continuous cells must be numbers, NaN if missing"
            raise DataError(f"{expected}: {problem}") from problem
        codes = _NO_CODES if categorical_row is None else _as_codes(np.asarray(categorical_row))
        n_states, used = recursion.n_states, recursion.used
        n_columns, n_codes = map(len, used)
        is_belief = belief is None or stored.shape == (n_states,)
        if not is_belief or cells.shape != (n_columns,) or codes.shape != (n_codes,):
            expected = f"a belief of {n_states}, {n_columns} continuous cells and {n_codes} codes"
            found = f"{stored.shape}, {cells.shape} and {codes.shape}"
            raise DataError(f"a step takes {expected}; found {found}")
        cells, codes = used.narrow(cells, codes)
        row = stored, math.nan if gap_s is None else float(gap_s), cells, codes
        status, place, updated, _ = live.live_step(*row, recursion.tables, MAX_VALUE)
        if status != live.OK:
            recursion.raise_for(status, place, cells, codes)
        return updated

    def step_batch(
        self,
        beliefs: Array,
        known: Array,
        continuous: Array,
        categorical: Array,
        previous: Array,
        gaps_s: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """Apply `step` to rows [N, D] and [N, J] in order, with gaps [N].

        Row i continues from row `previous[i]`, or if that is -1 from `beliefs[i]`, which counts as
        a new customer unless `known[i]`. Returns the belief before each row [N, K], whether there
        was one [N], and the belief after each row [N, K].
        """
        recursion = self._recursion()
        rows = recursion.narrow_rows(continuous, categorical)
        gaps = np.full(len(beliefs), np.nan) if gaps_s is None else gaps_s.astype(np.float64)
        found = live.live_steps(beliefs, known, previous, gaps, *rows, recursion.tables, MAX_VALUE)
        status, row, place, before, has_before, after = found
        if status != live.OK:
            recursion.raise_for(status, place, rows[0][row], rows[1][row])
        return before, has_before, after

    def predict_log_belief(self, belief: ArrayLike | None, gap_s: float | None = None) -> Array:
        """Return the unnormalised log belief [K] before the next row; None for a new customer."""
        is_known = belief is not None
        stored = np.array(belief, np.float64)[None] if is_known else np.zeros((1, self.n_states))
        gaps = None if gap_s is None else np.array([gap_s])
        predicted: Array = self.predict_log_beliefs(stored, np.array([is_known]), gaps)[0]
        return predicted

    def predict_log_beliefs(
        self, beliefs: Array, known: Array, gaps_s: Array | None = None
    ) -> Array:
        """Apply `predict_log_belief` to beliefs [N, K]; rows not `known` [N] are new customers."""
        recursion = self._recursion()
        chain = recursion.log_initial, recursion.log_transition
        gaps = np.zeros(len(beliefs), np.int16)
        if recursion.has_gaps and known.any():
            seconds = np.full(len(beliefs), np.nan) if gaps_s is None else gaps_s
            if not ((seconds >= 0) & (seconds < np.inf))[known].all():
                recursion.raise_for(live.BAD_GAP, 0, _NO_CELLS, _NO_CODES)
            gaps[known] = gap_codes(seconds[known])
        return live.predict_log_rows(beliefs, known, gaps, *chain)

    def explain_log_odds(
        self, state: int, log_predicted: Array, continuous: Array, categorical: Array
    ) -> LogOddsContributions:
        """Split N rows' log odds of a state, given log beliefs before them [N, K], into terms."""
        recursion = self._recursion()
        rows = recursion.narrow_rows(continuous, categorical)
        inputs = log_predicted, *rows, recursion.tables, MAX_VALUE
        status, row, place, rivals, from_cells, from_codes = live.live_contributions(state, *inputs)
        if status != live.OK:
            recursion.raise_for(status, place, rows[0][row], rows[1][row])
        history = log_predicted[:, state] - log_predicted[np.arange(len(rivals)), rivals]
        terms = recursion.used.widen(from_cells, from_codes)
        return LogOddsContributions(state, rivals, history, *terms, np.zeros(len(rivals)))


def _as_codes(codes: Array) -> Array:
    if codes.dtype.kind not in "bui":
        expected = "integer codes (-1 for missing)"
        raise DataError(f"categorical cells must be {expected}; found type {codes.dtype}")
    return _as_writable(codes.astype(np.int64, copy=False))


def _as_writable(array: Array) -> Array:
    """Copy a strided or read-only array. numba would compile the live step again for it."""
    return array if array.flags.carray else array.copy()
