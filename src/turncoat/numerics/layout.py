"""How a panel's columns are laid out for the kernels, and kernel sums back as column statistics.

Yes/no facts are packed eight to a byte: the values of binary columns, and which values are missing.
Categories with more than two values are looked up one by one. Continuous cells stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from turncoat.arrays import Array
from turncoat.numerics.generators import (
    MIN_GAP_PROBABILITY,
    GapTable,
    build_gap_table,
    expected_jumps,
)
from turncoat.numerics.jit import jit, jit_exact
from turncoat.numerics.structures import (
    KernelSums,
    KernelTables,
    Observations,
    Sizes,
    column_starts,
    pad_columns,
    pad_states,
    split_columns,
)

LOG_TWO_PI = math.log(2.0 * math.pi)
# With a log probability below this (1e-100) the recursions run in the log domain.
_MIN_LINEAR = -230.0
# What a flag records.
IS_ONE, CODE_MISSING, CELL_MISSING = 1, 2, 3
_NOT_SUMMED = ("reference", "n_categories")


def log_allowing_zero(probs: Array) -> Array:
    """Return log probabilities, -inf where a probability is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probs))


@dataclass(frozen=True)
class LogModel:
    """A model in log form: the chain's log probabilities and the additive terms of log b(k)."""

    log_initial: Array  # [K]
    log_transition: Array  # [K, K]; of one hour where there is a generator
    means: Array  # [K, D]
    scales: Array  # [K, D] inverse standard deviations
    constants: Array  # [K, D] log density at the mean
    log_categories: Array  # [K, sum of C_j], see `join_columns`
    n_categories: Sizes  # [J]
    dof: Array | None = None  # [K, D] makes the columns Student instead of Gaussian
    weights: Array | float = 1.0  # [D] already in scales (Gaussian), constants and categories
    max_ratio: float = math.inf  # limit of 1 + t^2 / dof in Student columns
    generator: Array | None = None  # [K, K] rates per hour: transitions depend on the gap

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return int(self.log_initial.shape[0])

    @cached_property
    def gap_table(self) -> GapTable:
        """Transition matrices of all gap codes; without a generator, code 0 is the only one."""
        if self.generator is not None:
            return build_gap_table(self.generator)
        width = pad_states(self.n_states)
        return GapTable(_pad(np.exp(self.log_transition), (width, width))[None], np.zeros(1))

    def get_transitions(self, codes: Array | None = None) -> tuple[Array, Array]:
        """Return scaled transition matrices [M, KP, KP] and log scales [M] of gap codes, or all."""
        matrices, log_scales = self.gap_table
        if codes is not None:
            matrices, log_scales = matrices[codes], log_scales[codes]
        if self.generator is not None:
            k = self.n_states
            possible = np.zeros(matrices.shape[1:])
            possible[:k, :k] = MIN_GAP_PROBABILITY
            matrices = np.maximum(matrices, possible)
        return matrices, log_scales

    def count_jumps(self, sums: KernelSums, codes: Array | None) -> Array | None:
        """Return `expected_jumps` [K, K] from transitions over gap codes; None if they are none."""
        if self.generator is None or codes is None:
            return None
        k = self.n_states
        transitions = sums.transitions[0, :, :k, :k]
        return expected_jumps(self.generator, self.gap_table, codes, transitions)

    def expected_log_density(self, statistics: Statistics) -> float:
        """Return E[log density of rows and states] from statistics of a model without dof.

        With a generator, states are whole paths: jumps and hours count.
        """
        s, chain = statistics, self.log_transition
        if self.generator is not None:
            is_stay = np.eye(self.n_states, dtype=bool)
            chain = np.where(
                is_stay, self.generator, log_allowing_zero(np.maximum(0.0, self.generator))
            )
        step = self.means - s.reference
        squares = s.second - 2.0 * step * s.first + step**2 * s.observed
        cells = self.constants * s.observed - 0.5 * self.scales**2 * squares
        counts = (s.initial, s.transitions, s.categories)
        logs = (self.log_initial, chain, self.log_categories)
        return float(cells.sum()) + sum(
            float((n[n > 0.0] * log[n > 0.0]).sum()) for n, log in zip(counts, logs, strict=True)
        )

    def weigh(self, weights: Array) -> LogModel:
        """Return the model with each column's term of log b(k) times its weight [D + J]."""
        cells, codes = np.split(weights, [self.means.shape[1]])
        return replace(
            self,
            scales=self.scales if self.dof is not None else self.scales * np.sqrt(cells),
            constants=self.constants * cells,
            log_categories=self.log_categories * np.repeat(codes, self.n_categories),
            weights=self.weights * cells,
        )

    def apply_temperature(self, temperature: float) -> LogModel:
        """Return the model with all terms of log b(k) divided; the chain is unchanged."""
        n_columns = self.means.shape[1] + len(self.n_categories)
        return self.weigh(np.full(n_columns, 1.0 / temperature))

    @property
    def half_dof(self) -> Array | None:
        """Factor of the logarithm in a Student column [K, D]."""
        return None if self.dof is None else 0.5 * (self.dof + 1.0) * self.weights

    @property
    def max_differences(self) -> Array:
        """The most that a field's presence can move the log odds of any two states [D + J].

        Infinite for Gaussian columns: their log density has no lower limit.
        """
        lowest = np.full_like(self.constants, -np.inf)
        if self.half_dof is not None:
            lowest = self.constants - self.half_dof * math.log(self.max_ratio)
        columns = split_columns(self.log_categories, self.n_categories)
        spreads = [np.ptp(column, axis=0).max() for column in columns]
        return np.concatenate([self.constants.max(axis=0) - lowest.min(axis=0), spreads])

    def row_terms(self, continuous: Array, categorical: Array) -> tuple[Array, Array]:
        """Return each cell's and code's term of log b(k), [N, K, D] and [N, K, J]; 0 if missing."""
        cells = continuous.astype(np.float64, order="C")
        return row_terms(cells, categorical.astype(np.int64, order="C"), *self.row_tables)

    @cached_property
    def row_tables(self) -> tuple[Array, Array, Array]:
        """Tables of `row_terms`: columns [3 or 6, K, D], levels [sum of C_j, K], bounds [J + 1]."""
        columns = [self.means, self.scales, self.constants]
        if self.half_dof is not None and self.dof is not None:
            columns += [self.half_dof, self.dof, np.full(self.dof.shape, self.max_ratio)]
        bounds = np.append(column_starts(self.n_categories), sum(self.n_categories))
        return np.stack(columns), np.array(self.log_categories.T, order="C"), bounds


@jit_exact
def row_terms(
    rows: Array, codes: Array, columns: Array, levels: Array, bounds: Array
) -> tuple[Array, Array]:
    """Compute `LogModel.row_terms` of rows [N, D] and codes [N, J] from a model's tables."""
    n_states, n_columns, n_codes = columns.shape[1], columns.shape[2], codes.shape[1]
    from_cells = np.zeros((len(rows), n_states, n_columns))
    from_codes = np.zeros((len(rows), n_states, n_codes))
    for n in range(len(rows)):
        for k in range(n_states):
            for d in range(n_columns):
                t = (rows[n, d] - columns[0, k, d]) * columns[1, k, d]
                from_cells[n, k, d] = columns[2, k, d] - 0.5 * (t * t) if t == t else 0.0
            if columns.shape[0] > 3:  # Student columns
                for d in range(n_columns):
                    t = (rows[n, d] - columns[0, k, d]) * columns[1, k, d]
                    excess = min(t * t / columns[4, k, d], columns[5, k, d] - 1.0)
                    size = columns[3, k, d] * math.log1p(excess)
                    from_cells[n, k, d] = columns[2, k, d] - size if t == t else 0.0
        for j in range(n_codes):
            if codes[n, j] >= bounds[j + 1] - bounds[j]:
                raise IndexError("a code is beyond the categories of its column")
            if codes[n, j] >= 0:
                for k in range(n_states):
                    from_codes[n, k, j] = levels[bounds[j] + codes[n, j], k]
    return from_cells, from_codes


@dataclass(frozen=True)
class Statistics:
    """Expected sufficient statistics. They add up over blocks, threads, processes and machines."""

    initial: Array  # [K] expected first rows
    transitions: Array  # [K, K] expected transitions; see `expected_jumps` for gaps in time
    occupancy: Array  # [K] expected rows
    reference: Array  # [K, D] origin of the residuals
    observed: Array  # [K, D] expected rows with the cell present
    first: Array  # [K, D] sum of x - reference
    second: Array  # [K, D] sum of (x - reference)^2
    categories: Array  # [K, sum of C_j] expected rows with each category, see `join_columns`
    n_categories: Sizes  # [J]
    log_likelihood: float
    n_rows: float  # at the weights of the sequences, as are all sums

    def __add__(self, other: Statistics) -> Statistics:
        """Return the statistics of both; they must come from the same parameters."""
        if not np.array_equal(self.reference, other.reference):
            raise ValueError("statistics collected under different parameters cannot be added")
        names = [field.name for field in fields(self) if field.name not in _NOT_SUMMED]
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})

    def scale(self, factor: float) -> Statistics:
        """Return the statistics of as many times the rows."""
        names = [field.name for field in fields(self) if field.name not in _NOT_SUMMED]
        return replace(self, **{name: getattr(self, name) * factor for name in names})

    def move_reference(self, reference: Array) -> Statistics:
        """Return the same statistics with residuals from another origin [K, D]."""
        step = self.reference - reference
        first = self.first + step * self.observed
        second = self.second + step * (self.first + first)
        return replace(self, reference=reference, first=first, second=second)


def sum_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Return the sum of statistics of different rows, in order, whatever their parameters."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part.move_reference(total.reference)
    return total


@dataclass(frozen=True)
class ColumnLayout:
    """Which column sits where in `Observations`.

    Flag f of a row is bit f % 8 of byte f // 8. `questions` and `columns` say what it records:
    0 nothing, 1 "is this binary code a one?", 2 "is this binary code missing?", 3 "is this
    continuous cell missing?". A byte about missing values exists only if some value is missing. It
    always covers the same eight columns, so a row's terms add up in the same order in every panel.
    """

    n_columns: int
    n_categories: Sizes
    questions: Array  # [8 G]
    columns: Array  # [8 G]
    many: Array  # columns with more than two values
    bases: Array  # first row of each of `many` in the level table; that row is the missing code

    @classmethod
    def create(cls, n_categories: Sizes, missing_cells: Array, missing_codes: Array) -> Self:
        """Lay out the columns; the masks [D] and [J] mark those with missing values."""
        sizes = np.asarray(n_categories, dtype=np.int64)
        binary, many = np.flatnonzero(sizes <= 2), np.flatnonzero(sizes > 2)
        every, cells = np.ones(len(binary), bool), np.arange(len(missing_cells))
        flags = [
            _build_flags(IS_ONE, binary, every),
            _build_flags(CODE_MISSING, binary, missing_codes[binary]),
            _build_flags(CELL_MISSING, cells, missing_cells),
        ]
        questions, columns = np.concatenate(flags, axis=1)
        rows = np.concatenate([[0], np.cumsum(sizes[many] + 1)]).astype(np.int64)
        return cls(len(missing_cells), n_categories, questions, columns, many, rows[:-1])

    @property
    def n_level_rows(self) -> int:
        """Rows of the level table."""
        return int(sum(self.n_categories[j] + 1 for j in self.many))

    def pack(
        self,
        continuous: Array,
        categorical: Array,
        offsets: Array,
        anchors: Array | None = None,
        gaps: Array | None = None,
        weights: Array | None = None,
    ) -> Observations:
        """Return rows as the kernels read them, without copying continuous cells.

        `anchors` [N] holds codes, -1 for a free row. `gaps` [N] are places in the gap codes that
        the tables are built for; by default all rows use the first matrix. `weights` [U] are above
        0; by default every sequence counts once.
        """
        n_rows = int(offsets[-1])
        cells, codes = _as_writable(continuous), _as_writable(categorical)
        flags = np.zeros((n_rows, len(self.questions) // 8), np.uint8)
        pack_flags(cells, codes, self.questions, self.columns, flags)
        is_small = self.n_level_rows <= np.iinfo(np.uint16).max
        levels = np.empty((n_rows, len(self.many)), np.uint16 if is_small else np.int32)
        for place, (column, base) in enumerate(zip(self.many, self.bases, strict=True)):
            source, target = categorical[:, column], levels[:, place]
            np.add(source, base + 1, out=target, casting="unsafe", dtype=np.int64)
        rows = np.empty(0, np.int32) if anchors is None else (anchors + 1).astype(np.int32)
        gaps = np.zeros(n_rows, np.int16) if gaps is None else gaps.astype(np.int16)
        counts = np.empty(0) if weights is None else np.asarray(weights, np.float64)
        is_complete = not np.any(self.questions == CELL_MISSING)
        return Observations(cells, flags, levels, rows, gaps, offsets, counts, bool(is_complete))

    def build_tables(
        self,
        model: LogModel,
        cell_type: DTypeLike,
        precision: str,
        anchors: Array | None = None,
        gap_codes: Array | None = None,
    ) -> KernelTables:
        """Return a model's tables in the working precision; `anchors` [codes, K] are logs.

        `gap_codes` [M] are those of the rows, for a model with a generator.
        """
        working = np.dtype(precision)
        n_states = model.n_states
        width = pad_states(n_states)
        shape = (n_states, pad_columns(self.n_columns))
        is_wide = working.itemsize == 8 or np.dtype(cell_type).itemsize == 8
        # Weighted by precision, so that the narrowest states have the smallest numbers.
        shift = np.average(model.means, axis=0, weights=model.scales**2)
        shift = shift.astype(np.float64 if is_wide else np.float32)
        location = (model.means - shift.astype(np.float64)) * model.scales
        transition, log_scales = model.get_transitions(gap_codes)
        no_dof = np.zeros((0, 0))
        free = np.zeros((1, n_states))
        anchor_table = free if anchors is None else np.vstack([free, anchors])
        min_log_prob = model.log_initial.min()
        log_transition = _pad(model.log_transition, (width, width), fill=-np.inf)[None]
        if model.generator is None:
            min_log_prob = min(min_log_prob, model.log_transition.min())
        else:
            log_transition = log_allowing_zero(transition) + log_scales[:, None, None]
        return KernelTables(
            initial=_pad(np.exp(model.log_initial), (width,)),
            transition=transition,
            transition_back=np.ascontiguousarray(transition.transpose(0, 2, 1)),
            log_initial=_pad(model.log_initial, (width,), fill=-np.inf),
            log_transition=log_transition,
            log_scales=log_scales,
            constant=_pad(model.constants.sum(axis=1), (width,), fill=-np.inf),
            shift=shift,
            scale=_pad(model.scales, shape).astype(working),
            location=_pad(location, shape).astype(working),
            half_dof=no_dof if model.half_dof is None else _pad(model.half_dof, shape),
            inverse_dof=no_dof if model.dof is None else _pad(1.0 / model.dof, shape),
            max_ratio=model.max_ratio,
            flag_tables=self._build_flag_tables(model, width).astype(working),
            level_table=self._build_level_table(model, width).astype(working),
            anchor_table=_pad(anchor_table, (len(anchor_table), width)),
            n_states=n_states,
            linear=bool(min_log_prob > _MIN_LINEAR),
        )

    def _build_flag_tables(self, model: LogModel, width: int) -> Array:
        """Return [G, 256, KP]: the sum over a byte's eight flags, for each value of the byte.

        `KernelTables.constant` already has the constant of every cell, and a missing binary code
        looks like a zero. The flags of missing values subtract those terms again.
        """
        n_bytes = len(self.questions) // 8
        if_set, if_clear = np.zeros((8 * n_bytes, width)), np.zeros((8 * n_bytes, width))
        k = model.n_states
        kinds = IS_ONE, CODE_MISSING, CELL_MISSING
        ones, no_codes, no_cells = (self.questions == kind for kind in kinds)
        if_clear[ones, :k] = model.log_categories[:, self._first_places(ones)].T
        if_set[ones, :k] = model.log_categories[:, self._last_places(ones)].T
        if_set[no_codes, :k] = -model.log_categories[:, self._first_places(no_codes)].T
        if_set[no_cells, :k] = -model.constants[:, self.columns[no_cells]].T
        tables = np.zeros((n_bytes, 256, width))
        tables[:, 0] = if_clear.reshape(n_bytes, 8, width).sum(axis=1)
        gain = (if_set - if_clear).reshape(n_bytes, 8, width)
        for bit in range(8):
            tables[:, 1 << bit : 2 << bit] = tables[:, : 1 << bit] + gain[:, bit, None, :]
        return tables

    def _first_places(self, flags: Array) -> Array:
        """Places of category 0 of these flags' columns in a joined array."""
        return np.asarray(column_starts(self.n_categories)[self.columns[flags]])

    def _last_places(self, flags: Array) -> Array:
        """Places of their last category: 1 for a binary column."""
        sizes = np.asarray(self.n_categories, dtype=np.int64)[self.columns[flags]]
        return self._first_places(flags) + sizes - 1

    def _build_level_table(self, model: LogModel, width: int) -> Array:
        table = np.zeros((max(self.n_level_rows, 1), width))
        columns = split_columns(model.log_categories, self.n_categories)
        for column, base in zip(self.many, self.bases, strict=True):
            stop = base + 1 + self.n_categories[column]
            table[base + 1 : stop, : model.n_states] = columns[column].T
        return table

    def build_statistics(
        self,
        tables: KernelTables,
        sums: KernelSums,
        log_likelihood: float,
        n_rows: float,
        transitions: Array | None = None,
    ) -> Statistics:
        """Return kernel sums, of a single part, as column statistics in the data's units.

        `transitions` [K, K] take the place of those of the first matrix.
        """
        k, d = tables.n_states, self.n_columns
        occupancy = sums.occupancy[0, :k]
        flags = sums.flags[0, :, :k].T
        observed = np.repeat(occupancy[:, None], d, axis=1)
        no_cells = self.questions == CELL_MISSING
        observed[:, self.columns[no_cells]] -= flags[:, no_cells]
        return Statistics(
            initial=sums.initial[0, :k],
            transitions=sums.transitions[0, 0, :k, :k] if transitions is None else transitions,
            occupancy=occupancy,
            reference=np.repeat(tables.shift[None].astype(np.float64), k, axis=0),
            observed=np.maximum(observed, 0.0),
            first=sums.first[0, :, :d],
            second=sums.second[0, :, :d],
            categories=self._count_categories(occupancy, flags, sums.levels[0, :, :k].T),
            n_categories=self.n_categories,
            log_likelihood=log_likelihood,
            n_rows=n_rows,
        )

    def _count_categories(self, occupancy: Array, flags: Array, levels: Array) -> Array:
        """Return [K, sum of C_j]. Zeros of a binary column are rows neither one nor missing."""
        counts = np.zeros((len(occupancy), sum(self.n_categories)))
        ones, no_codes = self.questions == IS_ONE, self.questions == CODE_MISSING
        zeros, last = self._first_places(ones), self._last_places(ones)
        two = last > zeros
        counts[:, zeros] = occupancy[:, None]
        counts[:, zeros[two]] -= flags[:, ones][:, two]
        counts[:, last[two]] = flags[:, ones][:, two]
        counts[:, self._first_places(no_codes)] -= flags[:, no_codes]
        columns = split_columns(counts, self.n_categories)
        for column, base in zip(self.many, self.bases, strict=True):
            columns[column][:] = levels[:, base + 1 : base + 1 + self.n_categories[column]]
        return np.maximum(counts, 0.0)


def _build_flags(question: int, columns: Array, wanted: Array) -> Array:
    """Return questions and columns [2, 8 n] of the bytes with a wanted column; spare bits: 0."""
    n_bytes = -(-len(columns) // 8)
    questions, places = np.zeros((n_bytes, 8), np.int64), np.zeros((n_bytes, 8), np.int64)
    questions.flat[: len(columns)], places.flat[: len(columns)] = question, columns
    is_wanted = np.zeros((n_bytes, 8), bool)
    is_wanted.flat[: len(columns)] = wanted
    rows = is_wanted.any(axis=1)
    return np.stack([questions[rows].ravel(), places[rows].ravel()])


class _WritableMemory:
    """Another array's memory, declared writable."""

    def __init__(self, array: Array) -> None:
        self.owner = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _as_writable(array: Array) -> Array:
    """Return the same memory as a writable array.

    Kernels only read it, but numba would compile them again for a read-only array.
    """
    return array if array.flags.writeable else np.asarray(_WritableMemory(array))


def _pad(values: Array, shape: tuple[int, ...], fill: float = 0.0) -> Array:
    """Return the values in the corner of a larger float64 array."""
    padded = np.full(shape, fill)
    padded[tuple(slice(n) for n in values.shape)] = values
    return padded


@jit
def pack_flags(
    continuous: Array, categorical: Array, questions: Array, columns: Array, flags: Array
) -> None:
    """Answer every row's questions (see `ColumnLayout`) in `flags` [N, G], which must be zero."""
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
