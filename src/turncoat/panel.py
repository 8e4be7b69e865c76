"""The panel: ragged sequences as flat rows plus offsets. Everything before it makes one, everything after reads one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError

MAX_VALUE = 1e15  # its square, summed over a block, still fits float32
MAX_CATEGORIES = 1_000_000
_CHECKED_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Panel:
    """N rows in U sequences, one per customer. Make one with `Panel.from_arrays`; the arrays are not to be changed."""

    continuous: Array  # [N, D] float32 or float64; NaN is a missing cell
    categorical: Array  # [N, J] smallest signed integer type; -1 is a missing code
    offsets: Array  # [U + 1] int64, first row of each sequence
    n_categories: tuple[int, ...]  # [J]
    missing_cells: Array  # [D] bool: may this continuous column have missing cells
    missing_codes: Array  # [J] bool: may this categorical column have missing codes
    labels: Array | None = None  # [N] int8: 0, 1, or -1 for unknown
    customers: Array | None = None  # [U]
    times: Array | None = None  # [N]
    ids: Array | None = None  # [N]

    @classmethod
    def from_arrays(
        cls,
        continuous: ArrayLike | None = None,
        categorical: ArrayLike | None = None,
        lengths: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        customers: ArrayLike | None = None,
        times: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        n_categories: Sequence[int] | None = None,
    ) -> Panel:
        """Check and join arrays into a panel, without copying what is already in the right form.

        Rows of a customer are neighbours, oldest first. Say where customers begin with `lengths` (rows of each; then
        `customers`, if given, has one key per sequence) or with `customers` (one key per row). With neither, all rows
        are one sequence. `n_categories` gives the number of values of each categorical column; by default it is the
        largest code plus one.
        """
        numbers = _continuous(continuous)
        codes, raw_sizes = _categorical(categorical, n_categories)
        n_rows = _row_count(numbers, codes)
        numbers = np.empty((n_rows, 0), np.float32) if numbers is None else numbers
        missing_cells = _check_cells(numbers)
        codes = np.empty((n_rows, 0), np.int8) if codes is None else codes
        codes, sizes, missing_codes = _check_codes(codes, raw_sizes)
        offsets, keys = _sequences(n_rows, lengths, customers)
        return cls(
            continuous=numbers,
            categorical=codes,
            offsets=offsets,
            n_categories=sizes,
            missing_cells=missing_cells,
            missing_codes=missing_codes,
            labels=_labels(labels, n_rows),
            customers=keys,
            times=_times(times, offsets),
            ids=_ids(ids, n_rows),
        )

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return int(self.offsets[-1])

    @property
    def n_sequences(self) -> int:
        """Number of sequences U."""
        return len(self.offsets) - 1

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns D."""
        return int(self.continuous.shape[1])

    @property
    def n_categorical(self) -> int:
        """Number of categorical columns J."""
        return int(self.categorical.shape[1])

    @property
    def lengths(self) -> Array:
        """Rows of each sequence [U]."""
        return np.diff(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes held by the rows."""
        return int(self.continuous.nbytes + self.categorical.nbytes)

    def __len__(self) -> int:
        """Number of sequences."""
        return self.n_sequences

    def __iter__(self) -> Iterator[Panel]:
        """Each sequence as a panel of its own."""
        return (self[u] for u in range(self.n_sequences))

    def __repr__(self) -> str:
        """One line for people."""
        return (
            f"Panel({self.n_rows:,} rows in {self.n_sequences:,} sequence{'s' if self.n_sequences > 1 else ''}, "
            f"{self.n_continuous} continuous and {self.n_categorical} categorical columns)"
        )

    def __getitem__(self, which: int | slice | ArrayLike) -> Panel:
        """Some sequences as a panel. One, or a slice without a step, shares memory; a list of them is copied."""
        if isinstance(which, int | np.integer):
            place = int(which) + (self.n_sequences if which < 0 else 0)
            if not 0 <= place < self.n_sequences:
                raise IndexError(f"sequence {which} of {self.n_sequences}")
            return self._run(place, place + 1)
        if isinstance(which, slice):
            start, stop, step = which.indices(self.n_sequences)
            if step == 1:
                return self._run(start, max(start, stop))
            which = np.arange(start, stop, step)
        return self._gather(np.asarray(which))

    def _run(self, start: int, stop: int) -> Panel:
        if start == stop:
            raise DataError("a panel of no sequences was asked for; name at least one")
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        return self._with_rows(rows, offsets, slice(start, stop))

    def _gather(self, sequences: Array) -> Panel:
        if sequences.dtype == bool:
            if sequences.shape != (self.n_sequences,):
                raise DataError(
                    f"a mask of sequences has {self.n_sequences} entries, this one {sequences.shape}"
                )
            sequences = np.flatnonzero(sequences)
        if sequences.size == 0:
            raise DataError("a panel of no sequences was asked for; name at least one")
        if sequences.ndim != 1 or sequences.dtype.kind not in "ui":
            raise DataError(
                f"sequences are named by whole numbers or a mask; found {sequences.dtype} {sequences.shape}"
            )
        sequences = np.where(sequences < 0, sequences + self.n_sequences, sequences).astype(
            np.int64
        )
        for wrong in sequences[(sequences < 0) | (sequences >= self.n_sequences)]:
            raise IndexError(f"sequence {wrong} of {self.n_sequences}")
        lengths = self.lengths[sequences]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[sequences] - offsets[:-1], lengths)
        return self._with_rows(rows, offsets, sequences)

    def _with_rows(self, rows: slice | Array, offsets: Array, sequences: slice | Array) -> Panel:
        def pick(values: Array | None, which: slice | Array) -> Array | None:
            return None if values is None else values[which]

        return Panel(
            continuous=self.continuous[rows],
            categorical=self.categorical[rows],
            offsets=offsets,
            n_categories=self.n_categories,
            missing_cells=self.missing_cells,
            missing_codes=self.missing_codes,
            labels=pick(self.labels, rows),
            customers=pick(self.customers, sequences),
            times=pick(self.times, rows),
            ids=pick(self.ids, rows),
        )


def check_is_panel(panel: Any) -> None:
    """Raise a DataError for anything but a Panel."""
    if not isinstance(panel, Panel):
        kind = type(panel).__name__
        raise DataError(f"expected a Panel, found {kind}; make one with Panel.from_arrays")


def _two_dimensional(values: ArrayLike, name: str, missing: float) -> Array:
    """The values as a table; masked cells become the missing value."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64 if np.isnan(missing) else np.int64), missing)
    try:
        array = np.asarray(values)
    except ValueError as problem:
        raise DataError(
            f"{name} must be a table [rows, columns] with rows of equal length"
        ) from problem
    if array.ndim != 2:
        raise DataError(f"{name} must be a table [rows, columns]; found shape {array.shape}")
    return array


def _continuous(values: ArrayLike | None) -> Array | None:
    if values is None:
        return None
    array = _two_dimensional(values, "continuous", np.nan)
    if array.dtype.kind in "bui":
        array = array.astype(np.float64)
    elif array.dtype == np.float16:
        array = array.astype(np.float32)
    elif array.dtype not in (np.float32, np.float64):
        raise DataError(
            f"continuous must hold numbers; found type {array.dtype}. Convert it to float32 or float64"
        )
    return np.ascontiguousarray(array)


def _categorical(
    values: ArrayLike | None, sizes: Sequence[int] | None
) -> tuple[Array | None, Array | None]:
    if values is None:
        if sizes is not None and len(sizes):
            raise DataError("n_categories is given but categorical is not")
        return None, None
    array = _two_dimensional(values, "categorical", -1)
    if array.dtype.kind not in "bui":
        raise DataError(
            f"categorical must hold integer codes; found type {array.dtype}. Number the values of each column from 0 on, "
            "write -1 for missing, and convert with .astype(int)"
        )
    if sizes is None:
        return array, None
    wanted = np.asarray(sizes)
    if wanted.shape != (array.shape[1],):
        raise DataError(
            f"n_categories has {wanted.size} entries for {array.shape[1]} categorical columns"
        )
    if wanted.size and (
        wanted.dtype.kind not in "ui" or wanted.min() < 1 or wanted.max() > MAX_CATEGORIES
    ):
        raise DataError(
            f"n_categories must be whole numbers of at least 1 and at most {MAX_CATEGORIES:,}; found {sizes!r}"
        )
    return array, wanted.astype(np.int64)


def _row_count(numbers: Array | None, codes: Array | None) -> int:
    counts = {
        name: len(a)
        for name, a in (("continuous", numbers), ("categorical", codes))
        if a is not None
    }
    if not counts:
        raise DataError("a panel needs continuous or categorical columns; neither was given")
    if len(set(counts.values())) > 1:
        raise DataError(
            f"continuous has {counts['continuous']} rows but categorical has {counts['categorical']}"
        )
    n_rows = next(iter(counts.values()))
    if n_rows == 0:
        raise DataError("the panel has no rows")
    if sum(a.shape[1] for a in (numbers, codes) if a is not None) == 0:
        raise DataError("the panel has no columns")
    return n_rows


def _check_cells(numbers: Array) -> Array:
    """Refuse infinite and enormous cells; tell which columns have missing ones."""
    missing = np.zeros(numbers.shape[1], bool)
    for start in range(0, len(numbers), _CHECKED_ROWS):
        part = numbers[start : start + _CHECKED_ROWS]
        bad = np.abs(part) > MAX_VALUE
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise DataError(
                f"continuous row {start + row}, column {column}: found {part[row, column]}; values must be finite and "
                f"within {MAX_VALUE:g}. Use NaN for a missing cell, or rescale the column"
            )
        missing |= np.isnan(part).any(axis=0)
    return missing


def _check_codes(codes: Array, sizes: Array | None) -> tuple[Array, tuple[int, ...], Array]:
    """Refuse codes out of range; store them in the smallest type; tell which columns have missing ones."""
    for column in np.flatnonzero(codes.max(axis=0) >= MAX_CATEGORIES):
        row = int(codes[:, column].argmax())
        raise DataError(
            f"categorical row {row}, column {column}: found code {codes[row, column]}; codes must lie below {MAX_CATEGORIES:,}. "
            "Number the values of a column from 0 on"
        )
    largest = codes.max(axis=0).astype(np.int64)
    smallest = codes.min(axis=0).astype(np.int64)
    if sizes is None:
        sizes = np.maximum(largest + 1, 1)
    for column in np.flatnonzero((smallest < -1) | (largest >= sizes)):
        wrong = (codes[:, column] < -1) | (codes[:, column] >= sizes[column])
        row = int(np.flatnonzero(wrong)[0])
        raise DataError(
            f"categorical row {row}, column {column}: found code {codes[row, column]}; "
            f"codes run from 0 to {sizes[column] - 1}, and -1 is missing"
        )
    smallest_type = np.min_scalar_type(-max(int(sizes.max(initial=1)), 1))
    return np.ascontiguousarray(codes, smallest_type), tuple(int(c) for c in sizes), smallest < 0


def _sequences(
    n_rows: int, lengths: ArrayLike | None, customers: ArrayLike | None
) -> tuple[Array, Array | None]:
    keys = None if customers is None else np.asarray(customers)
    if lengths is None:
        return _runs(n_rows, keys)
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "ui" or sizes.size == 0:
        raise DataError("lengths must be a list of whole numbers, one per sequence")
    if sizes.min() < 1:
        place = int(np.flatnonzero(sizes < 1)[0])
        raise DataError(
            f"sequence {place} has length {sizes[place]}; every sequence needs at least one row"
        )
    n_wanted = sum(sizes.tolist())  # as Python integers, which do not overflow
    if n_wanted != n_rows:
        raise DataError(f"lengths add up to {n_wanted} rows but the panel has {n_rows}")
    if keys is not None and keys.shape != sizes.shape:
        raise DataError(
            f"with lengths, customers has one key per sequence: expected {sizes.size}, found {keys.size}"
        )
    if keys is not None:
        _refuse_repeats(keys, "customers", "sequence")
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), keys


def _runs(n_rows: int, keys: Array | None) -> tuple[Array, Array | None]:
    """Sequences from runs of equal customer keys, one key per row."""
    if keys is None:
        return np.array([0, n_rows], np.int64), None
    if keys.shape != (n_rows,):
        raise DataError(
            f"without lengths, customers has one key per row: expected {n_rows}, found {keys.size}"
        )
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1]).astype(np.int64)
    firsts = keys[starts]
    try:
        distinct, places = np.unique(firsts, return_inverse=True)
    except TypeError as problem:
        raise DataError(
            "customers must be of one type: all numbers, all dates or all text"
        ) from problem
    if distinct.size < firsts.size:
        again = next(i for i in range(1, firsts.size) if places[i] in places[:i])
        raise DataError(
            f"row {starts[again]}: customer {firsts[again]!r} appears again after other customers; sort the rows by customer and time"
        )
    return np.append(starts, n_rows), firsts


def _refuse_repeats(keys: Array, name: str, unit: str) -> None:
    try:
        order = np.argsort(keys, kind="stable")
    except TypeError as problem:
        raise DataError(
            f"{name} must be of one type: all numbers, all dates or all text"
        ) from problem
    equal = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    if equal.size:
        first, second = int(order[equal[0]]), int(order[equal[0] + 1])
        raise DataError(
            f"{name}: {keys[first]!r} stands at {unit} {first} and again at {unit} {second}"
        )


def _per_row(values: ArrayLike, n_rows: int, name: str) -> Array:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        raise DataError(
            f"{name} must have one entry per row: expected {n_rows}, found shape {array.shape}"
        )
    return array


def _labels(values: ArrayLike | None, n_rows: int) -> Array | None:
    if values is None:
        return None
    array = _per_row(values, n_rows, "labels")
    if array.dtype.kind not in "buif":
        raise DataError(f"labels must be 0, 1, or -1 for unknown; found type {array.dtype}")
    wrong = np.flatnonzero(~np.isin(array, (-1, 0, 1)))
    if wrong.size:
        raise DataError(
            f"labels row {wrong[0]}: found {array[wrong[0]]}; labels are 0, 1, or -1 for unknown"
        )
    return array.astype(np.int8)


def _times(values: ArrayLike | None, offsets: Array) -> Array | None:
    if values is None:
        return None
    array = _per_row(values, int(offsets[-1]), "times")
    if array.dtype.kind not in "uifMm":
        raise DataError(f"times must be numbers or dates; found type {array.dtype}")
    missing = np.flatnonzero(np.isnat(array) if array.dtype.kind in "Mm" else ~np.isfinite(array))
    if missing.size:
        raise DataError(
            f"times row {missing[0]}: found {array[missing[0]]}; every row needs a time"
        )
    backwards = array[1:] < array[:-1]
    backwards[offsets[1:-1] - 1] = False
    wrong = np.flatnonzero(backwards)
    if wrong.size:
        raise DataError(
            f"times row {wrong[0] + 1}: {array[wrong[0] + 1]} comes after {array[wrong[0]]} of the same customer; "
            "sort the rows by customer and time"
        )
    return array


def _ids(values: ArrayLike | None, n_rows: int) -> Array | None:
    if values is None:
        return None
    array = _per_row(values, n_rows, "ids")
    _refuse_repeats(array, "ids", "row")
    return array
