"""Validated transactions ordered by customer, time and id: what `read` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn
from turncoat.data.money import OriginalMoney, normalize_currency
from turncoat.data.parsing import TransactionRow
from turncoat.data.schema import Schema
from turncoat.errors import DataError


@dataclass(frozen=True, eq=False)
class Transactions:
    """N transactions of U customers. Columns stay in file order; `file_rows` points into them."""

    schema: Schema
    source: str  # the file, for messages
    numbers: Mapping[str, Array]  # float64 columns in file order; NaN is missing
    categories: Mapping[str, CategoryColumn]  # categorical columns in file order
    customers: Array  # [all customers of the file] their keys
    file_rows: Array  # [N] int64: each transaction's row in the file
    customer_codes: Array  # [N] index into `customers`, rising
    times: Array  # [N] float64 seconds
    ids: Array  # [N]
    labels: Array | None = None  # [N] int8; -1 is unknown
    utc_offsets: Array | None = None  # [N] seconds by which local clocks are ahead; None for UTC
    # Money columns before they became the common currency, in units and in file order.
    original_money: Mapping[str, Array] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what reading left out, for people

    @property
    def n_rows(self) -> int:
        """Number of transactions N."""
        return len(self.file_rows)

    @property
    def n_file_rows(self) -> int:
        """Rows of the whole file."""
        first = next(iter(self.numbers.values()), None)
        return len(next(iter(self.categories.values())).codes if first is None else first)

    @cached_property
    def offsets(self) -> Array:
        """First transaction of each customer, and N: [U + 1]."""
        starts = np.flatnonzero(np.diff(self.customer_codes, prepend=-1))
        return np.append(starts, self.n_rows).astype(np.int64)

    @property
    def clocks(self) -> Array:
        """Times on local clocks, in seconds [N]."""
        return self.times if self.utc_offsets is None else self.times + self.utc_offsets

    @property
    def n_customers(self) -> int:
        """Number of customers U."""
        return len(self.offsets) - 1

    @property
    def keys(self) -> Array:
        """The key of each customer [U]."""
        keys: Array = self.customers[self.customer_codes[self.offsets[:-1]]]
        return keys

    def row_indices(self, rows: ArrayLike) -> Array:
        """Row numbers 0..N-1, or a mask [N], as sorted unique row numbers."""
        chosen = np.asarray(rows)
        if chosen.dtype == bool and chosen.shape == (self.n_rows,):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "ui"):
            rule = f"rows must be whole numbers or a mask of {self.n_rows:,}"
            raise DataError(f"{self.source}: {rule}; found {chosen.dtype} {chosen.shape}")
        if len(chosen) == 0:
            raise DataError(f"{self.source}: no transaction was chosen. Choose at least one")
        chosen = chosen.astype(np.int64)
        if np.any(np.diff(chosen) <= 0):
            chosen = np.unique(chosen)
        if chosen[0] < 0 or chosen[-1] >= self.n_rows:
            wrong = chosen[0] if chosen[0] < 0 else chosen[-1]
            raise DataError(f"{self.source}: transaction {wrong} of {self.n_rows:,} does not exist")
        return chosen

    def take(self, rows: ArrayLike) -> Transactions:
        """Some transactions (see `row_indices`), in order; columns are shared, not copied."""
        chosen = self.row_indices(rows)
        return replace(
            self,
            file_rows=self.file_rows[chosen],
            customer_codes=self.customer_codes[chosen],
            times=self.times[chosen],
            ids=self.ids[chosen],
            labels=None if self.labels is None else self.labels[chosen],
            utc_offsets=None if self.utc_offsets is None else self.utc_offsets[chosen],
        )

    @property
    def n_seen(self) -> Array:
        """The number of each transaction among its customer's [N], from 1."""
        starts: Array = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return np.arange(1, self.n_rows + 1) - starts

    def require_labels(self, purpose: str, part: str = "", both: bool = True) -> Array:
        """The labels [N], -1 where unknown; an error unless a fraud and a genuine one are known.

        `part` names these rows in the message. Without `both`, one known label is enough.
        """
        if self.labels is None:
            problem = f"{purpose} needs labels, but no label column was read"
            raise DataError(f"{self.source}: {problem}. Set `label` in the schema")
        n_frauds, n_genuine, n_unknown = (int((self.labels == code).sum()) for code in (1, 0, -1))
        if not (n_frauds and n_genuine if both else n_frauds or n_genuine):
            where = f"{self.source}, column {self.schema.label!r}"
            counts = f"{n_frauds:,} known frauds, {n_genuine:,} known genuine and {n_unknown:,}"
            found = f"{f'the {part} part has ' if part else 'found '}{counts} unlabelled rows"
            rule = "one of each" if both else "a label"
            remedy = "Choose other rows, or wait for labels"
            raise DataError(f"{where}: {found}, but {purpose} needs {rule}. {remedy}")
        return self.labels

    def column(self, name: str) -> Array:
        """One column's values [N]: float64 with NaN, or text with None."""
        if name in self.categories:
            column = self.categories[name]
            values: Array = np.array([*column.values, None], dtype=object)
            return values[column.codes[self.file_rows]]
        if name in self.numbers:
            numbers: Array = self.numbers[name][self.file_rows]
            return numbers
        columns = ", ".join(self.schema.columns[:20])
        raise DataError(f"{self.source}: column {name!r} was not read; the schema has {columns}...")

    def list_payments(self) -> dict[str, Array]:
        """Amount and currency of every transaction as given, by column; empty without an amount.

        Amounts in minor units are in major ones.
        """
        schema, columns = self.schema, dict[str, Array]()
        if schema.amount is None:
            return columns
        columns["amount"] = self.column(schema.amount)
        if schema.currency is not None:
            columns["amount"] = self.original_money[schema.amount][self.file_rows]
            columns["currency"] = self.column(schema.currency)
        return columns

    def list_rows(self) -> list[TransactionRow]:
        """Every transaction as a live row."""
        schema = self.schema
        numbers = np.array([self.column(name) for name in schema.continuous], dtype=np.float64)
        numbers = numbers.reshape(len(schema.continuous), self.n_rows).T
        texts = [
            zip(*(self.column(name) for name in names), strict=True) if names else None
            for names in (schema.categorical, schema.tracked, schema.counterparties)
        ]
        columns = [[()] * self.n_rows if values is None else values for values in texts]
        clocks = np.zeros(self.n_rows) if self.utc_offsets is None else self.utc_offsets
        times, original = self.times.tolist(), self._list_original_money(numbers)
        return list(map(TransactionRow, times, numbers, *columns, clocks.tolist(), original))

    def _list_original_money(self, numbers: Array) -> Sequence[OriginalMoney | None]:
        """The money of every row in its own currency; `numbers` are [N, continuous]."""
        schema = self.schema
        if schema.currency is None:
            return [None] * self.n_rows
        column, original = self.categories[schema.currency], numbers.copy()
        for place, name in zip(schema.money_places, schema.money_columns, strict=True):
            original[:, place] = self.original_money[name][self.file_rows]
        names = [*map(normalize_currency, column.values), None]
        currencies = [names[code] for code in column.codes[self.file_rows].tolist()]
        return list(map(OriginalMoney, currencies, original))

    def __repr__(self) -> str:
        """One line for people."""
        known = np.empty(0) if self.labels is None else self.labels[self.labels >= 0]
        fraud = f", {known.mean():.2%} fraud" if len(known) else ""
        days = f"{np.ptp(self.times) / 86400:.1f} days"
        size = f"{self.n_rows:,} of {self.n_customers:,} customers"
        return f"Transactions({size} over {days}{fraud}, from {self.source})"


_SAME_TIME_S = 1e-3  # two files may round the same time differently


def add_history(current: Transactions, *earlier: Transactions) -> tuple[Transactions, Array]:
    """The transactions together with their history, and the rows [n] of `current` among them.

    A transaction in several files counts once: as in `current`, or as in the first that has it.
    A label that only another file knows is kept. Without an id column such transactions cannot be
    recognised, so the history must then end before `current` begins.
    """
    if not earlier:
        return current, np.arange(current.n_rows)
    parts = (current, *earlier)
    for part in earlier:
        if part.schema != current.schema:
            problem = f"read with schema {part.schema.name!r}, not {current.schema.name!r}"
            raise DataError(f"{part.source}: {problem}. Read all files with the same schema")
        if current.schema.id is None and part.times.max() >= current.times.min():
            rule = f"it must end before {current.source} begins, because the schema names no `id`"
            remedy = "Name an id column, or cut the history there"
            raise DataError(f"{part.source}: this history overlaps. {rule}. {remedy}")
    starts = np.cumsum([0, *(part.n_file_rows for part in parts[:-1])])
    codes, customers = _merge_values([(p.customer_codes, p.customers.tolist()) for p in parts])
    columns = {
        name: _merge_values([(p.categories[name].codes, p.categories[name].values) for p in parts])
        for name in current.categories
    }
    numbers = {
        name: np.concatenate([part.numbers[name] for part in parts]) for name in current.numbers
    }
    original_money = {
        name: np.concatenate([part.original_money[name] for part in parts])
        for name in current.original_money
    }
    ids = _merge_ids(parts)
    times = np.concatenate([part.times for part in parts])
    labels = _merge_labels(parts)
    clocks = None
    if current.utc_offsets is not None:  # by the schema, which all parts share
        clocks = np.concatenate([np.asarray(part.utc_offsets) for part in parts])
    rows = np.concatenate([p.file_rows + start for p, start in zip(parts, starts, strict=True)])
    if current.schema.id is not None:
        kept = _find_distinct(parts, ids, codes, times, labels)
    else:
        kept = np.arange(len(ids))
    ranks = ids if ids.dtype.kind in "iu" else np.unique(ids, return_inverse=True)[1]
    order = kept[np.lexsort((ranks[kept], times[kept], codes[kept]))]
    merged = Transactions(
        schema=current.schema,
        source=f"{current.source} with {', '.join(part.source for part in earlier)}",
        numbers=numbers,
        categories={name: CategoryColumn(*column) for name, column in columns.items()},
        customers=np.array(customers),
        file_rows=rows[order],
        customer_codes=codes[order],
        times=times[order],
        ids=ids[order],
        labels=None if labels is None else labels[order],
        utc_offsets=None if clocks is None else clocks[order],
        original_money=original_money,
        notes=sum((part.notes for part in parts), ()),
    )
    return merged, np.flatnonzero(order < current.n_rows)


def _merge_values(columns: Sequence[tuple[Array, Sequence[str]]]) -> tuple[Array, tuple[str, ...]]:
    """Codes of several columns as codes of one, -1 for missing; the first keeps its codes."""
    places: dict[str, int] = {}
    merged = []
    for codes, values in columns:
        lookup = [places.setdefault(str(value), len(places)) for value in values]
        merged.append(np.array([*lookup, -1], dtype=codes.dtype)[codes])
    return np.concatenate(merged), tuple(places)


def _merge_ids(parts: Sequence[Transactions]) -> Array:
    """The ids of all parts; where they are row numbers, those of the history are below 0."""
    if parts[0].schema.id is None:
        ends = np.cumsum([part.n_file_rows for part in parts[1:]])
        own = [part.ids - end for part, end in zip(parts[1:], ends, strict=True)]
        return np.concatenate([parts[0].ids, *own])
    are_numbers = all(part.ids.dtype.kind in "iu" for part in parts)
    return np.concatenate([part.ids if are_numbers else part.ids.astype(str) for part in parts])


def _merge_labels(parts: Sequence[Transactions]) -> Array | None:
    if all(part.labels is None for part in parts):
        return None
    unknown = (np.full(part.n_rows, -1, np.int8) for part in parts)
    pairs = zip(parts, unknown, strict=True)
    return np.concatenate([none if part.labels is None else part.labels for part, none in pairs])


def _find_distinct(
    parts: Sequence[Transactions], ids: Array, codes: Array, times: Array, labels: Array | None
) -> Array:
    """The first row of every id; a label that only a later one knows moves to it."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    originals = first[inverse]
    again = np.flatnonzero(originals != np.arange(len(ids)))
    before = originals[again]
    differs = (codes[again] != codes[before]) | (
        np.abs(times[again] - times[before]) > _SAME_TIME_S
    )
    for row in again[differs][:1]:
        ends = np.cumsum([part.n_rows for part in parts])
        source = parts[int(np.searchsorted(ends, row, side="right"))].source
        other = parts[int(np.searchsorted(ends, originals[row], side="right"))].source
        problem = f"id {ids[row].item()!r} is another customer's or of another time in {other}"
        raise DataError(f"{source}: {problem}. Ids must be unique in all files together")
    if labels is not None:
        known = again[labels[again] >= 0]
        target = originals[known]
        labels[target] = np.where(labels[target] < 0, labels[known], labels[target])
    return first
