"""The panel: ragged sequences as flat rows plus offsets. Features make one, models read one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError

MAX_VALUE = 1e15  # its square, summed over a block, still fits float32
MAX_CATEGORIES = 1_000_000
_BLOCK_ROWS = 8192  # checked at once
_NUMBER_VALUES = "Number the values of each column from 0"
_SORT_ROWS = "sort the rows by customer and time"
_ONE_TYPE = "must be of one type: all numbers, all dates or all text"
_OPTIONAL = ("labels", "customers", "times", "ids", "causes")


@dataclass(frozen=True, eq=False)
class Panel:
    """N rows in U sequences, one per customer, made by `from_arrays`. Do not change the arrays."""

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
    causes: Array | None = None  # [N, C] outputs of two-sided chains

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
        causes: Array | None = None,
    ) -> Panel:
        """Check arrays and join them into a panel. Arrays already in the right form are not copied.

        Rows of a customer are neighbours, oldest first. Mark the sequences with `lengths` (rows of
        each; then `customers` has one key per sequence) or with `customers` (one key per row). With
        neither, all rows are one sequence. `n_categories` gives the number of values of each
        categorical column; by default it is the largest code plus one.
        """
        cells = None if continuous is None else _check_continuous(continuous)
        codes = None if categorical is None else _check_categorical(categorical)
        n_rows = _count_rows(cells, codes)
        cells = np.empty((n_rows, 0), np.float32) if cells is None else cells
        codes = np.empty((n_rows, 0), np.int8) if codes is None else codes
        missing_cells = _find_missing_cells(cells)
        codes, sizes, missing_codes = _check_codes(codes, n_categories)
        offsets, keys = _find_sequences(n_rows, lengths, customers)
        labels = None if labels is None else _check_labels(labels, n_rows)
        times = None if times is None else _check_times(times, offsets)
        ids = None if ids is None else _check_unique(_check_per_row(ids, n_rows, "ids"), "ids")
        missing = (missing_cells, missing_codes)
        return cls(cells, codes, offsets, sizes, *missing, labels, keys, times, ids, causes)

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
    def gaps_s(self) -> Array:
        """Seconds since the customer's previous row [N], 0 for first rows. Numbers are seconds."""
        if self.times is None:
            reason = "the time between rows is needed, and the panel has no times"
            raise DataError(f"{reason}. Give `times` to Panel.from_arrays, in seconds or as dates")
        gaps = np.zeros(self.n_rows)
        steps = self.times[1:] - self.times[:-1]
        gaps[1:] = steps / np.timedelta64(1, "s") if steps.dtype.kind == "m" else steps
        gaps[self.offsets[:-1]] = 0.0
        return gaps

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return int(self.continuous.nbytes + self.categorical.nbytes)

    def __len__(self) -> int:
        return self.n_sequences

    def __iter__(self) -> Iterator[Panel]:
        return (self[u] for u in range(self.n_sequences))

    def __repr__(self) -> str:
        rows = f"{self.n_rows:,} rows in {self.n_sequences:,} sequence"
        columns = f"{self.n_continuous} continuous and {self.n_categorical} categorical columns"
        return f"Panel({rows}{'s' if self.n_sequences > 1 else ''}, {columns})"

    def __getitem__(self, which: int | slice | ArrayLike) -> Panel:
        """Return some sequences as a panel; one, or a slice without a step, shares memory."""
        if isinstance(which, int | np.integer):
            place = int(which) + (self.n_sequences if which < 0 else 0)
            if not 0 <= place < self.n_sequences:
                raise IndexError(f"sequence {which} of {self.n_sequences}")
            return self._take_run(place, place + 1)
        if isinstance(which, slice):
            start, stop, step = which.indices(self.n_sequences)
            if step == 1:
                return self._take_run(start, max(start, stop))
            which = np.arange(start, stop, step)
        return self._take_many(np.asarray(which))

    @classmethod
    def join(cls, panels: Sequence[Panel]) -> Panel:
        """Return the sequences of several panels, in order, as one panel."""
        first = panels[0]
        for place, other in enumerate(panels):
            other.check_columns(first.n_continuous, first.n_categories, "first panel")
            for name in _OPTIONAL:
                if (getattr(other, name) is None) != (getattr(first, name) is None):
                    raise DataError(f"panel {place}: all panels must have `{name}`, or none")
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(one, name) for one in panels])
            for name in ("continuous", "categorical", *_OPTIONAL)
            if getattr(first, name) is not None
        }
        lengths = np.concatenate([one.lengths for one in panels])
        for name in ("missing_cells", "missing_codes"):
            joined[name] = np.any([getattr(one, name) for one in panels], axis=0)
        return replace(first, **joined, offsets=np.concatenate([[0], np.cumsum(lengths)]))

    def take_columns(self, mask: Array) -> Panel:
        """Return the panel with some of its columns: a mask over continuous, then categorical."""
        cells, codes = np.split(mask, [self.n_continuous])
        return replace(
            self,
            continuous=np.ascontiguousarray(self.continuous[:, cells]),
            categorical=np.ascontiguousarray(self.categorical[:, codes]),
            n_categories=tuple(np.array(self.n_categories, np.int64)[codes].tolist()),
            missing_cells=self.missing_cells[cells],
            missing_codes=self.missing_codes[codes],
        )

    def check_columns(self, n_continuous: int, n_categories: tuple[int, ...], owner: str) -> None:
        """Raise a DataError unless the panel has the owner's columns and no unknown codes."""
        expected, found = (n_continuous, len(n_categories)), (self.n_continuous, self.n_categorical)
        check_widths(expected, found, owner, "the panel has")
        for j, (known, present) in enumerate(zip(n_categories, self.n_categories, strict=True)):
            if present > known:
                check_known_codes(self.categorical[:, j : j + 1], (known,), owner, j)

    def _take_run(self, start: int, stop: int) -> Panel:
        _check_not_empty(stop - start)
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        offsets = self.offsets[start : stop + 1] - self.offsets[start]
        return self._take(rows, offsets, slice(start, stop))

    def _take_many(self, sequences: Array) -> Panel:
        if sequences.dtype == bool:
            if sequences.shape != (self.n_sequences,):
                found = f"found shape {sequences.shape}"
                raise DataError(f"a mask of sequences needs {self.n_sequences} entries; {found}")
            sequences = np.flatnonzero(sequences)
        _check_not_empty(sequences.size)
        if sequences.ndim != 1 or sequences.dtype.kind not in "ui":
            found = f"{sequences.dtype} {sequences.shape}"
            raise DataError(f"sequences are chosen by whole numbers or a mask; found {found}")
        places = np.where(sequences < 0, sequences + self.n_sequences, sequences).astype(np.int64)
        for wrong in places[(places < 0) | (places >= self.n_sequences)]:
            raise IndexError(f"sequence {wrong} of {self.n_sequences}")
        lengths = self.lengths[places]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        rows = np.arange(offsets[-1]) + np.repeat(self.offsets[places] - offsets[:-1], lengths)
        return self._take(rows, offsets, places)

    def _take(self, rows: slice | Array, offsets: Array, sequences: slice | Array) -> Panel:
        taken: dict[str, Any] = {"offsets": offsets}
        for name in ("continuous", "categorical", "labels", "times", "ids", "causes"):
            values = getattr(self, name)
            taken[name] = None if values is None else values[rows]
        if self.customers is not None:
            taken["customers"] = self.customers[sequences]
        return replace(self, **taken)


PanelLike = Panel | Sequence[Panel] | ArrayLike


def select_known(labels: Array, offsets: Array) -> tuple[Array, Array]:
    """Rows with a known label, and the offsets of the customers among these rows.

    Customer u has rows offsets[u] to offsets[u + 1]; customers without a known label are left out.
    """
    known = np.flatnonzero(labels >= 0)
    return known, np.unique(np.searchsorted(known, offsets))


def has_both_labels(labels: Array) -> bool:
    """Whether a fraud and a genuine transaction are known."""
    return bool((labels == 0).any() and (labels == 1).any())


def as_panel(
    rows: PanelLike,
    lengths: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    labels: ArrayLike | None = None,
) -> Panel:
    """Return a panel as it is, panels as one, or a table [N, D] of continuous columns as a panel.

    `lengths` or `groups` (a key per row) tell the sequences of a table, and `labels` its labels. A
    panel knows its own; it ignores `groups`, since scikit-learn passes the groups of folds on.
    """
    if isinstance(rows, list | tuple) and rows and isinstance(rows[0], Panel):
        rows = Panel.join(rows)
    if isinstance(rows, Panel):
        if lengths is not None:
            raise DataError("a Panel has its own sequences; leave out `lengths`")
        return rows
    if lengths is not None and groups is not None:
        raise DataError("`lengths` and `groups` both tell the sequences; give one of them")
    table: Any = rows
    return Panel.from_arrays(table, lengths=lengths, customers=groups, labels=labels)


def check_is_panel(panel: Any) -> None:
    """Raise a DataError for anything but a Panel."""
    if not isinstance(panel, Panel):
        kind = type(panel).__name__
        raise DataError(f"expected a Panel, found {kind}; make one with Panel.from_arrays")


def check_widths(known: tuple[int, int], found: tuple[int, int], owner: str, subject: str) -> None:
    """Raise a DataError unless there are as many columns of each kind as the owner knows."""
    if found != known:
        columns = f"{known[0]} continuous and {known[1]} categorical columns"
        raise DataError(f"the {owner} knows {columns}; {subject} {found[0]} and {found[1]}")


def check_known_codes(
    codes: Array, sizes: Sequence[int], owner: str, first_column: int = 0
) -> None:
    """Raise a DataError for codes [N, columns] outside of -1 to size - 1."""
    for row, column in np.argwhere((codes < -1) | (codes >= np.asarray(sizes))):
        where = f"categorical row {row}, column {first_column + column}"
        known = f"the {owner}, whose codes run from 0 to {sizes[column] - 1}"
        remedy = "Use -1 for an unseen value, or fit with larger n_categories"
        raise DataError(f"{where}: code {codes[row, column]} is unknown to {known}. {remedy}")


def _check_not_empty(n_sequences: int) -> None:
    if n_sequences == 0:
        raise DataError("a panel needs at least one sequence; none was chosen")


def _as_table(values: ArrayLike, name: str, missing: float) -> Array:
    """Return the values as a table; masked cells become the missing value."""
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64 if np.isnan(missing) else np.int64), missing)
    expected = f"{name} must be a table [rows, columns]"
    try:
        array = np.asarray(values)
    except ValueError as problem:
        raise DataError(f"{expected} with rows of equal length") from problem
    if array.ndim != 2:
        raise DataError(f"{expected}; found shape {array.shape}")
    return array


def _check_continuous(values: ArrayLike) -> Array:
    array = _as_table(values, "continuous", np.nan)
    if array.dtype.kind in "bui":
        array = array.astype(np.float64)
    elif array.dtype == np.float16:
        array = array.astype(np.float32)
    elif array.dtype not in (np.float32, np.float64):
        found = f"found type {array.dtype}"
        raise DataError(f"continuous must hold numbers; {found}. Convert it to float32 or float64")
    return np.ascontiguousarray(array)


def _check_categorical(values: ArrayLike) -> Array:
    codes = _as_table(values, "categorical", -1)
    if codes.dtype.kind not in "bui":
        remedy = f"{_NUMBER_VALUES}, write -1 for missing, and convert with .astype(int)"
        raise DataError(f"categorical must hold integer codes; found type {codes.dtype}. {remedy}")
    return codes


def _check_sizes(sizes: Sequence[int], n_columns: int) -> Array:
    given = np.asarray(sizes)
    if given.shape != (n_columns,):
        remedy = "" if n_columns else ": n_categories is given but categorical is not"
        found = f"{given.size} entries for {n_columns} categorical columns"
        raise DataError(f"n_categories has {found}{remedy}")
    is_whole = given.dtype.kind in "ui"
    if given.size and not (is_whole and given.min() >= 1 and given.max() <= MAX_CATEGORIES):
        rule = f"whole numbers of at least 1 and at most {MAX_CATEGORIES:,}"
        raise DataError(f"n_categories must be {rule}; found {sizes!r}")
    return given.astype(np.int64)


def _count_rows(cells: Array | None, codes: Array | None) -> int:
    tables = [table for table in (cells, codes) if table is not None]
    if not tables:
        raise DataError("a panel needs continuous or categorical columns; neither was given")
    n_rows, n_codes = len(tables[0]), len(tables[-1])
    if n_rows != n_codes:
        raise DataError(f"continuous has {n_rows} rows but categorical has {n_codes}")
    if n_rows == 0:
        raise DataError("the panel has no rows")
    if sum(table.shape[1] for table in tables) == 0:
        raise DataError("the panel has no columns")
    return n_rows


def _find_missing_cells(cells: Array) -> Array:
    """Return which columns have missing cells [D]; raise a DataError for infinite or huge cells."""
    missing = np.zeros(cells.shape[1], bool)
    for start in range(0, len(cells), _BLOCK_ROWS):
        block = cells[start : start + _BLOCK_ROWS]
        for row, column in np.argwhere(np.abs(block) > MAX_VALUE):
            where = f"continuous row {start + row}, column {column}: found {block[row, column]}"
            remedy = "Use NaN for a missing cell, or rescale the column"
            raise DataError(f"{where}; values must be finite and within {MAX_VALUE:g}. {remedy}")
        missing |= np.isnan(block).any(axis=0)
    return missing


def _check_codes(
    codes: Array, n_categories: Sequence[int] | None
) -> tuple[Array, tuple[int, ...], Array]:
    """Return codes in the smallest type, sizes [J] and which columns have missing codes [J]."""
    n_columns, highest, lowest = codes.shape[1], codes.max(axis=0), codes.min(axis=0)
    sizes = None if n_categories is None else _check_sizes(n_categories, n_columns)
    limits = [MAX_CATEGORIES] * n_columns if sizes is None else sizes.tolist()
    for column, limit in enumerate(limits):
        if lowest[column] < -1 or highest[column] >= limit:
            row = np.flatnonzero((codes[:, column] < -1) | (codes[:, column] >= limit))[0]
            where = f"categorical row {row}, column {column}: found code {codes[row, column]}"
            rule = f"codes run from 0 to {limit - 1:,}, and -1 is missing"
            raise DataError(f"{where}; {rule}. {_NUMBER_VALUES}")
    if sizes is None:
        sizes = np.maximum(highest.astype(np.int64) + 1, 1)
    smallest_type = np.min_scalar_type(-max(int(sizes.max(initial=1)), 1))
    return np.ascontiguousarray(codes, smallest_type), tuple(sizes.tolist()), lowest < 0


def _find_sequences(
    n_rows: int, lengths: ArrayLike | None, customers: ArrayLike | None
) -> tuple[Array, Array | None]:
    """Return offsets [U + 1] and one customer key per sequence [U]."""
    keys = None if customers is None else np.asarray(customers)
    if lengths is None:
        return _find_runs(n_rows, keys)
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "ui" or sizes.size == 0:
        raise DataError("lengths must be a list of whole numbers, one per sequence")
    if sizes.min() < 1:
        place = int(np.flatnonzero(sizes < 1)[0])
        rule = "every sequence needs at least one row"
        raise DataError(f"sequence {place} has length {sizes[place]}; {rule}")
    total = sum(sizes.tolist())  # Python integers do not overflow
    if total != n_rows:
        raise DataError(f"lengths add up to {total} rows but the panel has {n_rows}")
    if keys is not None:
        if keys.shape != sizes.shape:
            found = f"expected {sizes.size}, found {keys.size}"
            raise DataError(f"with lengths, customers has one key per sequence: {found}")
        _check_unique(keys, "customers", "sequence")
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), keys


def _find_runs(n_rows: int, keys: Array | None) -> tuple[Array, Array | None]:
    """Find sequences as runs of equal customer keys, one key per row."""
    if keys is None:
        return np.array([0, n_rows], np.int64), None
    if keys.shape != (n_rows,):
        found = f"expected {n_rows}, found {keys.size}"
        raise DataError(f"without lengths, customers has one key per row: {found}")
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1]).astype(np.int64)
    firsts = keys[starts]
    try:
        distinct, places = np.unique(firsts, return_inverse=True)
    except TypeError as problem:
        raise DataError(f"customers {_ONE_TYPE}") from problem
    if distinct.size < firsts.size:
        again = next(i for i in range(1, firsts.size) if places[i] in places[:i])
        found = f"customer {firsts[again]!r} appears again after other customers"
        raise DataError(f"row {starts[again]}: {found}; {_SORT_ROWS}")
    return np.append(starts, n_rows), firsts


def _check_unique(keys: Array, name: str, unit: str = "row") -> Array:
    try:
        order = np.argsort(keys, kind="stable")
    except TypeError as problem:
        raise DataError(f"{name} {_ONE_TYPE}") from problem
    equal = np.flatnonzero(keys[order][1:] == keys[order][:-1])
    for first, second in zip(order[equal], order[equal + 1], strict=True):
        places = f"{unit} {first} and again at {unit} {second}"
        raise DataError(f"{name}: {keys[first]!r} stands at {places}")
    return keys


def _check_per_row(values: ArrayLike, n_rows: int, name: str) -> Array:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        expected = f"{name} must have one entry per row: expected {n_rows}"
        raise DataError(f"{expected}, found shape {array.shape}")
    return array


def _check_labels(values: ArrayLike, n_rows: int) -> Array:
    labels = _check_per_row(values, n_rows, "labels")
    if labels.dtype.kind not in "buif":
        raise DataError(f"labels must be 0, 1, or -1 for unknown; found type {labels.dtype}")
    for row in np.flatnonzero(~np.isin(labels, (-1, 0, 1))):
        found = f"labels row {row}: found {labels[row]}"
        raise DataError(f"{found}; labels are 0, 1, or -1 for unknown")
    return labels.astype(np.int8)


def _check_times(values: ArrayLike, offsets: Array) -> Array:
    times = _check_per_row(values, int(offsets[-1]), "times")
    if times.dtype.kind not in "uifMm":
        raise DataError(f"times must be numbers or dates; found type {times.dtype}")
    is_missing = np.isnat(times) if times.dtype.kind in "Mm" else ~np.isfinite(times)
    for row in np.flatnonzero(is_missing):
        raise DataError(f"times row {row}: found {times[row]}; every row needs a time")
    backwards = times[1:] < times[:-1]
    backwards[offsets[1:-1] - 1] = False
    for row in np.flatnonzero(backwards):
        found = f"{times[row + 1]} comes after {times[row]} of the same customer"
        raise DataError(f"times row {row + 1}: {found}; {_SORT_ROWS}")
    return times
