"""How a panel's columns are laid out for the kernels, and the way back from kernel sums to per-column statistics.

Yes/no facts are packed eight to a byte: the values of binary columns, and which values are missing. Categories with more
than two values are looked up one by one. Continuous cells stay where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.compiled import compiled, compiled_exactly
from turncoat.numerics.ragged import Sizes, split, starts
from turncoat.numerics.structures import (
    Observations,
    Potentials,
    Sums,
    padded_columns,
    padded_states,
)

# With a log probability below this (1e-100) the recursions go to the log domain.
_LOWEST_LINEAR = -230.0
# What a flag can record.
IS_ONE, CODE_MISSING, CELL_MISSING = 1, 2, 3


@dataclass(frozen=True)
class Terms:
    """A model at one moment: chain probabilities and the additive pieces of log b(k)."""

    log_initial: Array  # [K]
    log_transition: Array  # [K, K]
    means: Array  # [K, D]
    scales: Array  # [K, D] inverse standard deviations
    constants: Array  # [K, D] log density at the mean
    log_categories: Array  # [K, sum of C_j], see `ragged`
    n_categories: Sizes  # [J]
    dof: Array | None = None  # [K, D] makes the columns Student instead of Gaussian
    temperature: float = 1.0  # divides log b(k)

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return int(self.log_initial.shape[0])

    def tempered(self, temperature: float) -> Terms:
        """The same model with its emissions' log densities divided by a temperature; the chain stays as it is."""
        share = 1.0 / temperature
        widened = self.scales if self.dof is not None else self.scales * np.sqrt(share)
        return replace(
            self,
            scales=widened,
            constants=self.constants * share,
            log_categories=self.log_categories * share,
            temperature=self.temperature * temperature,
        )

    @property
    def half_dof(self) -> Array | None:
        """What multiplies the logarithm of a Student column [K, D]."""
        return None if self.dof is None else 0.5 * (self.dof + 1.0) / self.temperature

    def pieces(self, continuous: Array, categorical: Array) -> tuple[Array, Array]:
        """What each cell and each code of N rows adds to log b(k): [N, K, D] and [N, K, J]; a missing one adds 0."""
        return row_pieces(
            continuous.astype(np.float64, order="C"),
            categorical.astype(np.int64, order="C"),
            *self.tables,
        )

    @cached_property
    def tables(self) -> tuple[Array, Array, Array]:
        """Means, scales and constants, and of Student columns `half_dof` and `dof` [3 or 5, K, D]; categories [sum of C_j, K]; bounds."""
        half_dof = self.half_dof
        student = () if half_dof is None or self.dof is None else (half_dof, self.dof)
        bounds = np.append(starts(self.n_categories), sum(self.n_categories))
        return (
            np.stack([self.means, self.scales, self.constants, *student]),
            np.array(self.log_categories.T, order="C"),
            bounds,
        )


@compiled_exactly
def row_pieces(
    rows: Array, codes: Array, columns: Array, levels: Array, bounds: Array
) -> tuple[Array, Array]:
    """`Terms.pieces` of rows [N, D] and codes [N, J], from a model's tables."""
    n_states, n_columns, n_codes = columns.shape[1], columns.shape[2], codes.shape[1]
    cells, names = (
        np.zeros((len(rows), n_states, n_columns)),
        np.zeros((len(rows), n_states, n_codes)),
    )
    for n in range(len(rows)):
        for k in range(n_states):
            for d in range(n_columns):
                away = (rows[n, d] - columns[0, k, d]) * columns[1, k, d]
                cells[n, k, d] = columns[2, k, d] - 0.5 * (away * away) if away == away else 0.0
            if columns.shape[0] > 3:  # Student columns
                for d in range(n_columns):
                    away = (rows[n, d] - columns[0, k, d]) * columns[1, k, d]
                    size = columns[3, k, d] * math.log1p(away * away / columns[4, k, d])
                    cells[n, k, d] = columns[2, k, d] - size if away == away else 0.0
        for j in range(n_codes):
            if codes[n, j] >= bounds[j + 1] - bounds[j]:
                raise IndexError("a code is beyond the categories of its column")
            if codes[n, j] >= 0:
                for k in range(n_states):
                    names[n, k, j] = levels[bounds[j] + codes[n, j], k]
    return cells, names


@dataclass(frozen=True)
class Statistics:
    """Expected sufficient statistics. They add: over blocks, threads, processes and machines alike."""

    initial: Array  # [K] expected first rows
    transitions: Array  # [K, K] expected transitions
    occupancy: Array  # [K] expected rows
    reference: Array  # [K, D] what the residuals are measured from
    observed: Array  # [K, D] expected rows with the cell present
    first: Array  # [K, D] sum of x - reference
    second: Array  # [K, D] sum of (x - reference)^2
    categories: Array  # [K, sum of C_j] expected rows with each category, see `ragged`
    n_categories: Sizes  # [J]
    log_likelihood: float
    n_rows: int

    def __add__(self, other: Statistics) -> Statistics:
        """Statistics of both parts together; both must come from the same parameters."""
        if not np.array_equal(self.reference, other.reference):
            raise ValueError("statistics collected under different parameters cannot be added")
        return Statistics(
            initial=self.initial + other.initial,
            transitions=self.transitions + other.transitions,
            occupancy=self.occupancy + other.occupancy,
            reference=self.reference,
            observed=self.observed + other.observed,
            first=self.first + other.first,
            second=self.second + other.second,
            categories=self.categories + other.categories,
            n_categories=self.n_categories,
            log_likelihood=self.log_likelihood + other.log_likelihood,
            n_rows=self.n_rows + other.n_rows,
        )


@dataclass(frozen=True)
class Coding:
    """Which column sits where in `Observations`.

    Flag f of a row is bit f % 8 of byte f // 8. `questions` and `columns` say what it records: 0 nothing, 1 "is this
    binary code a one?", 2 "is this binary code missing?", 3 "is this continuous cell missing?". A byte asking after missing
    values is only there if some value is missing, and always asks about the same eight columns, so that a row's terms add
    up in the same order whatever panel it is part of.
    """

    n_columns: int
    n_categories: Sizes
    questions: Array  # [8 G]
    columns: Array  # [8 G]
    many: Array  # columns with more than two values
    bases: Array  # first row of each of `many` in the level table; that row is the missing code

    @classmethod
    def of(cls, n_categories: Sizes, missing_cells: Array, missing_codes: Array) -> Coding:
        """Lay out D continuous columns (True if any cell is missing) and J categorical ones (likewise)."""
        sizes = np.asarray(n_categories, dtype=np.int64)
        binary, many = np.flatnonzero(sizes <= 2), np.flatnonzero(sizes > 2)
        asked = [
            _bytes_of(IS_ONE, binary, np.ones(len(binary), bool)),
            _bytes_of(CODE_MISSING, binary, np.asarray(missing_codes)[binary]),
            _bytes_of(CELL_MISSING, np.arange(len(missing_cells)), np.asarray(missing_cells)),
        ]
        questions, columns = np.concatenate(asked, axis=1)
        rows = np.concatenate([[0], np.cumsum(sizes[many] + 1)]).astype(np.int64)
        return cls(len(missing_cells), n_categories, questions, columns, many, rows[:-1])

    @property
    def n_level_rows(self) -> int:
        """Rows of the level table."""
        return int(sum(self.n_categories[j] + 1 for j in self.many))

    def pack(
        self, continuous: Array, categorical: Array, offsets: Array, anchors: Array | None = None
    ) -> Observations:
        """Rows in kernel form. Continuous cells are not copied. `anchors` [N] holds codes, -1 for a free row."""
        n_rows = int(offsets[-1])
        flags = np.zeros((n_rows, len(self.questions) // 8), np.uint8)
        pack_flags(
            _writable(continuous), _writable(categorical), self.questions, self.columns, flags
        )
        small = self.n_level_rows <= np.iinfo(np.uint16).max
        levels = np.empty((n_rows, len(self.many)), np.uint16 if small else np.int32)
        for place, (column, base) in enumerate(zip(self.many, self.bases, strict=True)):
            np.add(
                categorical[:, column],
                base + 1,
                out=levels[:, place],
                casting="unsafe",
                dtype=np.int64,
            )
        rows = np.empty(0, np.int32) if anchors is None else (anchors + 1).astype(np.int32)
        complete = not np.any(self.questions == CELL_MISSING)
        return Observations(_writable(continuous), flags, levels, rows, offsets, bool(complete))

    def potentials(
        self,
        terms: Terms,
        cell_type: np.dtype[Any],
        precision: str,
        anchor_table: Array | None = None,
    ) -> Potentials:
        """Kernel tables for a model, in the working precision; `anchor_table` is [codes, K] log weights."""
        working = np.dtype(precision)
        n_states = terms.n_states
        width = padded_states(n_states)
        shape = (n_states, padded_columns(self.n_columns))
        wide = working.itemsize == 8 or np.dtype(cell_type).itemsize == 8
        # Precision-weighted, so that the states with the least room for rounding have the smallest numbers.
        shift = np.average(terms.means, axis=0, weights=terms.scales**2).astype(
            np.float64 if wide else np.float32
        )
        location = (terms.means - shift.astype(np.float64)) * terms.scales
        initial = _padded(np.exp(terms.log_initial), (width,))
        transition = _padded(np.exp(terms.log_transition), (width, width))
        no_dof = np.zeros((0, 0))
        anchors = (
            np.zeros((1, n_states))
            if anchor_table is None
            else np.vstack([np.zeros(n_states), anchor_table])
        )
        return Potentials(
            initial=initial,
            transition=transition,
            transition_back=np.ascontiguousarray(transition.T),
            log_initial=_padded(terms.log_initial, (width,), fill=-np.inf),
            log_transition=_padded(terms.log_transition, (width, width), fill=-np.inf),
            constant=_padded(terms.constants.sum(axis=1), (width,), fill=-np.inf),
            shift=shift,
            scale=_padded(terms.scales, shape).astype(working),
            location=_padded(location, shape).astype(working),
            half_dof=no_dof if terms.half_dof is None else _padded(terms.half_dof, shape),
            inverse_dof=no_dof if terms.dof is None else _padded(1.0 / terms.dof, shape),
            flag_tables=self._flag_tables(terms, width).astype(working),
            level_table=self._level_table(terms, width).astype(working),
            anchor_table=_padded(anchors, (len(anchors), width)),
            n_states=n_states,
            linear=bool(min(terms.log_initial.min(), terms.log_transition.min()) > _LOWEST_LINEAR),
        )

    def _flag_tables(self, terms: Terms, width: int) -> Array:
        """[G, 256, KP]: the sum over a byte's eight flags, for each value of the byte.

        The constant of every cell is already in `Potentials.constant`, and a missing binary code looks like a zero, so the
        flags of missing values take those terms back.
        """
        n_bytes = len(self.questions) // 8
        when_set, when_clear = np.zeros((8 * n_bytes, width)), np.zeros((8 * n_bytes, width))
        k = terms.n_states
        ones, no_codes, no_cells = (
            self.questions == question for question in (IS_ONE, CODE_MISSING, CELL_MISSING)
        )
        when_clear[ones, :k] = terms.log_categories[:, self._zeros(ones)].T
        when_set[ones, :k] = terms.log_categories[:, self._last(ones)].T
        when_set[no_codes, :k] = -terms.log_categories[:, self._zeros(no_codes)].T
        when_set[no_cells, :k] = -terms.constants[:, self.columns[no_cells]].T
        tables = np.zeros((n_bytes, 256, width))
        tables[:, 0] = when_clear.reshape(n_bytes, 8, width).sum(axis=1)
        gain = (when_set - when_clear).reshape(n_bytes, 8, width)
        for bit in range(8):
            tables[:, 1 << bit : 2 << bit] = tables[:, : 1 << bit] + gain[:, bit, None, :]
        return tables

    def _zeros(self, flags: Array) -> Array:
        """Where the category 0 of these flags' columns stands in `ragged` order."""
        return np.asarray(starts(self.n_categories)[self.columns[flags]])

    def _last(self, flags: Array) -> Array:
        """Where their last category stands: 1 of a binary column."""
        return (
            self._zeros(flags)
            + np.asarray(self.n_categories, dtype=np.int64)[self.columns[flags]]
            - 1
        )

    def _level_table(self, terms: Terms, width: int) -> Array:
        table = np.zeros((max(self.n_level_rows, 1), width))
        columns = split(terms.log_categories, self.n_categories)
        for column, base in zip(self.many, self.bases, strict=True):
            table[base + 1 : base + 1 + self.n_categories[column], : terms.n_states] = columns[
                column
            ].T
        return table

    def statistics(
        self, potentials: Potentials, sums: Sums, log_likelihood: float, n_rows: int
    ) -> Statistics:
        """Kernel sums, of a single part, as per-column statistics in the data's units."""
        k, d = potentials.n_states, self.n_columns
        occupancy = sums.occupancy[0, :k]
        flags = sums.flags[0, :, :k].T
        observed = np.repeat(occupancy[:, None], d, axis=1)
        of_cells = self.questions == CELL_MISSING
        observed[:, self.columns[of_cells]] -= flags[:, of_cells]
        return Statistics(
            initial=sums.initial[0, :k],
            transitions=sums.transitions[0, :k, :k],
            occupancy=occupancy,
            reference=np.repeat(potentials.shift[None].astype(np.float64), k, axis=0),
            observed=np.maximum(observed, 0.0),
            first=sums.first[0, :, :d],
            second=sums.second[0, :, :d],
            categories=self._category_counts(occupancy, flags, sums.levels[0, :, :k].T),
            n_categories=self.n_categories,
            log_likelihood=log_likelihood,
            n_rows=n_rows,
        )

    def _category_counts(self, occupancy: Array, flags: Array, levels: Array) -> Array:
        """[K, sum of C_j]: a zero of a binary column is what neither a one nor a missing code accounts for."""
        counts = np.zeros((len(occupancy), sum(self.n_categories)))
        ones, no_codes = self.questions == IS_ONE, self.questions == CODE_MISSING
        two = self._last(ones) > self._zeros(ones)
        counts[:, self._zeros(ones)] = occupancy[:, None]
        counts[:, self._zeros(ones)[two]] -= flags[:, ones][:, two]
        counts[:, self._last(ones)[two]] = flags[:, ones][:, two]
        counts[:, self._zeros(no_codes)] -= flags[:, no_codes]
        columns = split(counts, self.n_categories)
        for column, base in zip(self.many, self.bases, strict=True):
            columns[column][:] = levels[:, base + 1 : base + 1 + self.n_categories[column]]
        return np.maximum(counts, 0.0)


def _bytes_of(question: int, columns: Array, wanted: Array) -> Array:
    """Questions and columns [2, 8 n] of the bytes in which any of eight columns is wanted; spare bits ask nothing."""
    n_bytes = -(-len(columns) // 8)
    asked, about = np.zeros((n_bytes, 8), np.int64), np.zeros((n_bytes, 8), np.int64)
    asked.flat[: len(columns)], about.flat[: len(columns)] = question, columns
    kept = np.zeros((n_bytes, 8), bool)
    kept.flat[: len(columns)] = wanted
    rows = kept.any(axis=1)
    return np.stack([asked[rows].ravel(), about[rows].ravel()])


class _Memory:
    """Another array's memory, declared writable."""

    def __init__(self, array: Array) -> None:
        self.owner = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def _writable(array: Array) -> Array:
    """The same memory under numba's common type: kernels only read it, but would be compiled again for a read-only array."""
    return array if array.flags.writeable else np.asarray(_Memory(array))


def _padded(values: Array, shape: tuple[int, ...], fill: float = 0.0) -> Array:
    """The values in the corner of a larger float64 array."""
    padded = np.full(shape, fill)
    padded[tuple(slice(n) for n in values.shape)] = values
    return padded


@compiled
def pack_flags(
    continuous: Array, categorical: Array, questions: Array, columns: Array, flags: Array
) -> None:
    """Answer every row's questions (see `Coding`), eight to a byte, in `flags` [N, G], which must be zero."""
    for row in range(flags.shape[0]):
        for flag in range(questions.shape[0]):
            question, column = questions[flag], columns[flag]
            answer = False
            if question == IS_ONE:
                answer = categorical[row, column] == 1
            elif question == CODE_MISSING:
                answer = categorical[row, column] < 0
            elif question == CELL_MISSING:
                answer = continuous[row, column] != continuous[row, column]
            if answer:
                flags[row, flag >> 3] |= 1 << (flag & 7)
