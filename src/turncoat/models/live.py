"""The live recursion of a fitted model: beliefs after new rows, and the log odds behind them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array, Rows
from turncoat.errors import DataError, StateError
from turncoat.numerics import live
from turncoat.numerics.layout import LogModel
from turncoat.panel import MAX_VALUE

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


class LiveRecursion:
    """A model as the live kernels read it, always in float64. Build it once and reuse it."""

    def __init__(self, model: LogModel) -> None:
        self._tables = live.build_live_tables(model)
        self._log_initial = _as_writable(model.log_initial)
        self._log_transition = _as_writable(model.log_transition)
        self._shape = (*model.means.shape, len(model.n_categories))

    def step(self, belief: ArrayLike | None, continuous_row: Rows, categorical_row: Rows) -> Array:
        """Return the belief [K] after one row."""
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
        n_states, n_columns, n_codes = self._shape
        is_belief = belief is None or stored.shape == (n_states,)
        if not is_belief or cells.shape != (n_columns,) or codes.shape != (n_codes,):
            raise DataError(
                f"a step takes a belief of {n_states}, {n_columns} continuous cells and {n_codes} "
                f"codes; found {stored.shape}, {cells.shape} and {codes.shape}"
            )
        status, place, updated, _ = live.live_step(stored, cells, codes, self._tables, MAX_VALUE)
        if status != live.OK:
            raise self._error(status, place, cells, codes)
        return updated

    def step_batch(
        self, beliefs: Array, known: Array, continuous: Array, categorical: Array, previous: Array
    ) -> Array:
        """Return the beliefs [N, K] after rows in order, as `HiddenMarkovModel.step_batch`."""
        cells, codes = _as_kernel_rows(continuous, categorical)
        rows = previous, cells, codes
        found = live.live_steps(beliefs, known, *rows, self._tables, MAX_VALUE)
        status, row, place, updated = found
        if status != live.OK:
            raise self._error(status, place, cells[row], codes[row])
        return updated

    def predict_log_beliefs(self, beliefs: Array, known: Array) -> Array:
        """Return log beliefs before N rows [N, K] from the beliefs after the rows before them."""
        return live.predict_log_rows(beliefs, known, self._log_initial, self._log_transition)

    def explain_log_odds(
        self, state: int, log_predicted: Array, continuous: Array, categorical: Array
    ) -> LogOddsContributions:
        """Return the terms of the log odds of a state, given log beliefs before N rows [N, K]."""
        cells, codes = _as_kernel_rows(continuous, categorical)
        rows = log_predicted, cells, codes
        found = live.live_contributions(state, *rows, self._tables, MAX_VALUE)
        status, row, place, rivals, from_cells, from_codes = found
        if status != live.OK:
            raise self._error(status, place, cells[row], codes[row])
        history = log_predicted[:, state] - log_predicted[np.arange(len(rivals)), rivals]
        rest = np.zeros(len(rivals))
        return LogOddsContributions(state, rivals, history, from_cells, from_codes, rest)

    def _error(self, status: int, place: int, cells: Array, codes: Array) -> DataError:
        if status == live.BAD_BELIEF:
            rule = "a belief must be probabilities that add up to 1, as an earlier step returned"
            return StateError(f"{rule} them; None for a new customer")
        if status == live.BAD_CELL:
            return DataError(
                f"continuous column {place}: found {cells[place]}; values must be finite and "
                f"within {MAX_VALUE:g}, NaN if missing"
            )
        max_code = int(self._tables.bounds[place + 1] - self._tables.bounds[place]) - 1
        return DataError(
            f"categorical column {place}: found code {codes[place]}; "
            f"codes run from 0 to {max_code}, -1 is missing"
        )


def _as_kernel_rows(continuous: Array, categorical: Array) -> tuple[Array, Array]:
    return continuous.astype(np.float64, order="C"), categorical.astype(np.int64, order="C")


def _as_codes(codes: Array) -> Array:
    if codes.dtype.kind not in "bui":
        expected = "integer codes (-1 for missing)"
        raise DataError(f"categorical cells must be {expected}; found type {codes.dtype}")
    return _as_writable(codes.astype(np.int64, copy=False))


def _as_writable(array: Array) -> Array:
    """Copy a strided or read-only array. numba would compile the live step again for it."""
    return array if array.flags.carray else array.copy()
