"""Validated transactions ordered by customer, time and id: what `read` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn
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

    def __repr__(self) -> str:
        """One line for people."""
        known = np.empty(0) if self.labels is None else self.labels[self.labels >= 0]
        fraud = f", {known.mean():.2%} fraud" if len(known) else ""
        days = f"{np.ptp(self.times) / 86400:.1f} days"
        size = f"{self.n_rows:,} of {self.n_customers:,} customers"
        return f"Transactions({size} over {days}{fraud}, from {self.source})"
