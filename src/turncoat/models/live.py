"""The live recursion of a fitted model: rows as they come, the beliefs after them, and what each row adds to the odds of a state."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError, StateError
from turncoat.numerics.coding import Terms
from turncoat.numerics.live import (
    BAD_BELIEF,
    BAD_CELL,
    FINE,
    live_contrasts,
    live_step,
    live_steps,
    live_tables,
    log_predicted_rows,
)
from turncoat.panel import LARGEST_VALUE

_NO_CELLS = np.empty(0)
_NO_CODES = np.empty(0, np.int64)


class Contrasts(NamedTuple):
    """What the log odds of a state against each row's strongest rival are made of."""

    state: int
    rivals: Array  # [N]
    history: Array  # [N] what was believed before the row
    cells: Array  # [N, D]
    codes: Array  # [N, J]
    rest: Array  # [N]

    @property
    def log_odds(self) -> Array:
        """The sums of all terms [N]."""
        return np.asarray(
            self.history + self.cells.sum(axis=1) + self.codes.sum(axis=1) + self.rest
        )


class LiveRecursion:
    """A model's terms as the live kernels read them; always in float64."""

    def __init__(self, terms: Terms, n_states: int, n_columns: int, n_codes: int) -> None:
        """Made once for parameters that many rows are scored with."""
        self._tables = live_tables(terms)
        self._shape = n_states, n_columns, n_codes
        self._log_initial, self._log_transition = (
            _plain_array(terms.log_initial),
            _plain_array(terms.log_transition),
        )

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: ArrayLike | None,
        categorical_row: ArrayLike | None,
    ) -> Array:
        """The belief [K] after one row, whatever arrays it comes in."""
        try:
            held = _NO_CELLS if belief is None else _plain_array(np.asarray(belief, np.float64))
            cells = (
                _NO_CELLS
                if continuous_row is None
                else _plain_array(np.asarray(continuous_row, np.float64))
            )
        except (TypeError, ValueError) as problem:
            raise DataError(
                f"a belief and continuous cells must be numbers, NaN if missing: {problem}"
            ) from problem
        codes = _NO_CODES if categorical_row is None else _as_codes(np.asarray(categorical_row))
        n_states, n_columns, n_codes = self._shape
        if (
            (belief is not None and held.shape != (n_states,))
            or cells.shape != (n_columns,)
            or codes.shape != (n_codes,)
        ):
            raise DataError(
                f"a step takes a belief of {n_states}, {n_columns} continuous cells and {n_codes} codes; "
                f"found {held.shape}, {cells.shape} and {codes.shape}"
            )
        status, place, updated, _ = live_step(held, cells, codes, self._tables, LARGEST_VALUE)
        if status != FINE:
            raise self._bad_row(status, place, cells, codes)
        return updated

    def steps(
        self, beliefs: Array, known: Array, continuous: Array, categorical: Array, previous: Array
    ) -> Array:
        """The beliefs [N, K] after rows in order, each going on from row `previous` [N] or, where that is -1, from its own belief."""
        cells, codes = (
            continuous.astype(np.float64, order="C"),
            categorical.astype(np.int64, order="C"),
        )
        status, row, place, updated = live_steps(
            beliefs, known, previous, cells, codes, self._tables, LARGEST_VALUE
        )
        if status != FINE:
            raise self._bad_row(status, place, cells[row], codes[row])
        return updated

    def log_predictions(self, beliefs: Array, known: Array) -> Array:
        """Log beliefs before N rows, given those [N, K] after the rows before them, of which some may not be `known` [N]."""
        return log_predicted_rows(beliefs, known, self._log_initial, self._log_transition)

    def contrasts(
        self, state: int, log_predicted: Array, continuous: Array, categorical: Array
    ) -> Contrasts:
        """What the log odds of a state are made of, given the log beliefs before N rows [N, K]."""
        cells, codes = (
            continuous.astype(np.float64, order="C"),
            categorical.astype(np.int64, order="C"),
        )
        status, row, place, rivals, of_cells, of_codes = live_contrasts(
            state, log_predicted, cells, codes, self._tables, LARGEST_VALUE
        )
        if status != FINE:
            raise self._bad_row(status, place, cells[row], codes[row])
        rows = np.arange(len(rivals))
        history = log_predicted[:, state] - log_predicted[rows, rivals]
        return Contrasts(state, rivals, history, of_cells, of_codes, np.zeros(len(rivals)))

    def _bad_row(self, status: int, place: int, cells: Array, codes: Array) -> DataError:
        if status == BAD_BELIEF:
            return StateError(
                "a belief must be probabilities that add up to 1, as an earlier step returned them; None for a new customer"
            )
        if status == BAD_CELL:
            return DataError(
                f"continuous column {place}: found {cells[place]}; values must be finite and within {LARGEST_VALUE:g}, NaN if missing"
            )
        highest = int(self._tables.bounds[place + 1] - self._tables.bounds[place]) - 1
        return DataError(
            f"categorical column {place}: found code {codes[place]}; codes run from 0 to {highest}, -1 is missing"
        )


def _as_codes(codes: Array) -> Array:
    if codes.dtype.kind not in "bui":
        raise DataError(
            f"categorical cells must be integer codes (-1 for missing); found type {codes.dtype}"
        )
    return _plain_array(codes.astype(np.int64, copy=False))


def _plain_array(array: Array) -> Array:
    """The array, or a copy of a strided or read-only one, for which the live step would be compiled again."""
    return array if array.flags.carray else array.copy()
