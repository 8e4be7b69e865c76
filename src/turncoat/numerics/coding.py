"""How a panel's columns are laid out for the kernels, and the way back from kernel sums to per-column statistics.

Yes/no facts are packed eight to a byte. A binary column without missing codes is one fact (is it 1?); with missing codes
it is two (is it 1? is it 0?), so that a missing code is neither; a continuous column with missing cells adds one (is it
there?), which carries the column's normalising constant. Categories with more than two values are looked up one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncoat.numerics.compiled import compiled
from turncoat.numerics.structures import (
    Array,
    Observations,
    Potentials,
    Sums,
    padded_columns,
    padded_states,
)

# Below this a transition counts as impossible and the recursions go to the log domain.
_SMALLEST_LINEAR = 1e-100


@dataclass(frozen=True)
class Terms:
    """A model at one moment: chain probabilities and the additive pieces of log b(k)."""

    initial: Array  # [K]
    transition: Array  # [K, K]
    means: Array  # [K, D]
    scales: Array  # [K, D] inverse standard deviations
    constants: Array  # [K, D] log density at the mean
    log_categories: tuple[Array, ...]  # one [K, C_j] per categorical column
    dof: Array | None = None  # [K, D] makes the columns Student instead of Gaussian

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return int(self.initial.shape[0])


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
    categories: tuple[Array, ...]  # one [K, C_j] per categorical column
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
            categories=tuple(a + b for a, b in zip(self.categories, other.categories, strict=True)),
            log_likelihood=self.log_likelihood + other.log_likelihood,
            n_rows=self.n_rows + other.n_rows,
        )


@dataclass(frozen=True)
class Coding:
    """Which column sits where in `Observations`."""

    n_columns: int
    n_categories: tuple[int, ...]
    partial_columns: Array  # continuous columns with missing cells
    binary: Array  # binary columns without missing codes
    partial_binary: Array  # binary columns with missing codes
    many: Array  # columns with more than two values
    bases: Array  # first row of each of `many` in the level table; that row is the missing code

    @classmethod
    def of(cls, n_categories: tuple[int, ...], missing_cells: Array, missing_codes: Array) -> Coding:
        """Lay out D continuous columns (flagged if any cell is missing) and J categorical ones (likewise)."""
        sizes = np.asarray(n_categories, dtype=np.int64)
        two = sizes <= 2
        many = np.flatnonzero(~two)
        rows = np.concatenate([[0], np.cumsum(sizes[many] + 1)])
        return cls(
            n_columns=len(missing_cells),
            n_categories=n_categories,
            partial_columns=np.flatnonzero(missing_cells),
            binary=np.flatnonzero(two & ~missing_codes),
            partial_binary=np.flatnonzero(two & missing_codes),
            many=many,
            bases=rows[:-1],
        )

    @property
    def n_flags(self) -> int:
        """Number of yes/no facts per row."""
        return len(self.binary) + 2 * len(self.partial_binary) + len(self.partial_columns)

    @property
    def n_level_rows(self) -> int:
        """Rows of the level table."""
        return int(sum(self.n_categories[j] + 1 for j in self.many))

    def pack(self, continuous: Array, categorical: Array, offsets: Array, anchors: Array | None = None) -> Observations:
        """Rows in kernel form. Continuous cells are not copied. `anchors` [N] holds codes, -1 for a free row."""
        n_rows = int(offsets[-1])
        flags = np.zeros((n_rows, -(-self.n_flags // 8)), np.uint8)
        at = 0
        for columns, value in ((self.binary, 1), (self.partial_binary, 1), (self.partial_binary, 0)):
            pack_equal(categorical, columns, value, at, flags)
            at += len(columns)
        pack_seen(continuous, self.partial_columns, at, flags)
        small = self.n_level_rows <= np.iinfo(np.uint16).max
        levels = np.empty((n_rows, len(self.many)), np.uint16 if small else np.int32)
        for place, (column, base) in enumerate(zip(self.many, self.bases, strict=True)):
            np.add(categorical[:, column], base + 1, out=levels[:, place], casting="unsafe", dtype=np.int64)
        rows = np.empty(0, np.int32) if anchors is None else (anchors + 1).astype(np.int32)
        return Observations(continuous, flags, levels, rows, offsets)

    def potentials(self, terms: Terms, cell_type: np.dtype[np.floating], precision: str, anchor_table: Array | None = None) -> Potentials:
        """Kernel tables for a model, in the working precision; `anchor_table` is [codes, K] log weights."""
        working = np.dtype(precision)
        n_states = terms.n_states
        width = padded_states(n_states)
        tile_shape = (n_states, padded_columns(self.n_columns))
        wide = working.itemsize == 8 or np.dtype(cell_type).itemsize == 8
        shift = terms.means.mean(axis=0).astype(np.float64 if wide else np.float32)
        scale = np.zeros(tile_shape, working)
        location = np.zeros(tile_shape, working)
        scale[:, : self.n_columns] = terms.scales
        location[:, : self.n_columns] = (terms.means - shift.astype(np.float64)) * terms.scales
        half_dof, inverse_dof = np.zeros((0, 0)), np.zeros((0, 0))
        if terms.dof is not None:
            half_dof, inverse_dof = np.zeros(tile_shape), np.zeros(tile_shape)
            half_dof[:, : self.n_columns] = 0.5 * (terms.dof + 1.0)
            inverse_dof[:, : self.n_columns] = 1.0 / terms.dof
        initial, transition = np.zeros(width), np.zeros((width, width))
        initial[:n_states], transition[:n_states, :n_states] = terms.initial, terms.transition
        with np.errstate(divide="ignore"):
            log_initial, log_transition = np.log(initial), np.log(transition)
        everywhere = np.ones(self.n_columns, bool)
        everywhere[self.partial_columns] = False
        constant = np.full(width, -np.inf)
        constant[:n_states] = terms.constants[:, everywhere].sum(axis=1)
        anchors = np.zeros((1 if anchor_table is None else len(anchor_table) + 1, width))
        if anchor_table is not None:
            anchors[1:, :n_states] = anchor_table
        return Potentials(
            initial=initial,
            transition=transition,
            transition_back=np.ascontiguousarray(transition.T),
            log_initial=log_initial,
            log_transition=log_transition,
            constant=constant,
            shift=shift,
            scale=scale,
            location=location,
            half_dof=half_dof,
            inverse_dof=inverse_dof,
            flag_tables=self._flag_tables(terms, width, working),
            level_table=self._level_table(terms, width, working),
            anchor_table=anchors,
            n_states=n_states,
            linear=bool(min(terms.initial.min(), terms.transition.min()) > _SMALLEST_LINEAR),
        )

    def _flag_tables(self, terms: Terms, width: int, working: np.dtype[np.floating]) -> Array:
        """[G, 256, KP]: the sum over a byte's eight facts, for each value of the byte."""
        n_bytes = -(-self.n_flags // 8)
        when_set, when_clear = np.zeros((8 * n_bytes, width)), np.zeros((8 * n_bytes, width))
        at = 0
        for columns, one, zero in (
            (self.binary, when_set, when_clear),
            (self.partial_binary, when_set, None),
            (self.partial_binary, None, when_set),
        ):
            for column in columns:
                logs = terms.log_categories[column]
                if one is not None and logs.shape[1] > 1:
                    one[at, : terms.n_states] = logs[:, 1]
                if zero is not None:
                    zero[at, : terms.n_states] = logs[:, 0]
                at += 1
        seen = slice(at, at + len(self.partial_columns))
        when_set[seen, : terms.n_states] = terms.constants[:, self.partial_columns].T
        tables = np.zeros((n_bytes, 256, width))
        tables[:, 0] = when_clear.reshape(n_bytes, 8, width).sum(axis=1)
        gain = (when_set - when_clear).reshape(n_bytes, 8, width)
        for bit in range(8):
            tables[:, 1 << bit : 2 << bit] = tables[:, : 1 << bit] + gain[:, bit, None, :]
        return tables.astype(working)

    def _level_table(self, terms: Terms, width: int, working: np.dtype[np.floating]) -> Array:
        table = np.zeros((self.n_level_rows, width), working)
        for column, base in zip(self.many, self.bases, strict=True):
            logs = terms.log_categories[column]
            table[base + 1 : base + 1 + logs.shape[1], : terms.n_states] = logs.T
        return table

    def statistics(self, potentials: Potentials, sums: Sums, log_likelihood: float, n_rows: int) -> Statistics:
        """Kernel sums as per-column statistics in the data's units."""
        k, d = potentials.n_states, self.n_columns
        occupancy = sums.occupancy[:k]
        scale = potentials.scale[:, :d].astype(np.float64)
        location = potentials.location[:, :d].astype(np.float64)
        observed = np.repeat(occupancy[:, None], d, axis=1)
        flags = sums.flags[:, :k].T
        at = len(self.binary) + 2 * len(self.partial_binary)
        observed[:, self.partial_columns] = flags[:, at : at + len(self.partial_columns)]
        return Statistics(
            initial=sums.initial[:k],
            transitions=sums.transitions[:k, :k],
            occupancy=occupancy,
            reference=potentials.shift.astype(np.float64) + location / scale,
            observed=observed,
            first=sums.first[:, :d] / scale,
            second=sums.second[:, :d] / scale**2,
            categories=self._category_counts(occupancy, flags, sums.levels[:, :k].T),
            log_likelihood=log_likelihood,
            n_rows=n_rows,
        )

    def _category_counts(self, occupancy: Array, flags: Array, levels: Array) -> tuple[Array, ...]:
        counts = [np.zeros((len(occupancy), size)) for size in self.n_categories]
        n_binary, n_partial = len(self.binary), len(self.partial_binary)
        for at, column in enumerate(self.binary):
            ones = np.minimum(flags[:, at], occupancy)
            counts[column][:, 0] = occupancy - ones
            if counts[column].shape[1] > 1:
                counts[column][:, 1] = ones
        for at, column in enumerate(self.partial_binary, start=n_binary):
            counts[column][:, 0] = flags[:, at + n_partial]
            if counts[column].shape[1] > 1:
                counts[column][:, 1] = flags[:, at]
        for column, base in zip(self.many, self.bases, strict=True):
            counts[column][:] = levels[:, base + 1 : base + 1 + self.n_categories[column]]
        return tuple(counts)


@compiled
def pack_equal(codes: Array, columns: Array, value: int, first_flag: int, flags: Array) -> None:
    """Set flag first_flag + i wherever codes[:, columns[i]] equals value."""
    for row in range(flags.shape[0]):
        for i in range(columns.shape[0]):
            if codes[row, columns[i]] == value:
                flag = first_flag + i
                flags[row, flag >> 3] |= 1 << (flag & 7)


@compiled
def pack_seen(continuous: Array, columns: Array, first_flag: int, flags: Array) -> None:
    """Set flag first_flag + i wherever continuous[:, columns[i]] is not missing."""
    for row in range(flags.shape[0]):
        for i in range(columns.shape[0]):
            x = continuous[row, columns[i]]
            if x == x:
                flag = first_flag + i
                flags[row, flag >> 3] |= 1 << (flag & 7)
