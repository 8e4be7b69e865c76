"""Files into transactions: only the columns in use, checked cell by cell, ordered by (customer, time, id)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn, join_key
from turncoat.data.parsing import MAX_TIME_S, to_seconds
from turncoat.data.presets import load_preset
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.settings import load_schema
from turncoat.data.sources import NOT_A_NUMBER, Source, beside, first_line, open_source, stem
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError

_TRUTHS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}

T = TypeVar("T")

_YEAR = 365.25 * 86400
_LONGEST_NAME = 100_000  # characters; longer ones are pieces of a file whose quotes do not match


def read(
    origin: Any, schema: Schema | str, *, joined: Any = None, labels: str = "all"
) -> Transactions:
    """Read and check transactions.

    `origin` is a CSV (also .gz) or Parquet file, a folder, or a polars, pandas or Arrow frame. `schema` is a `Schema`, the
    name of a preset (`ieee-cis`, `handbook`) or the path of a `turncoat.toml`. A schema with a second file finds it beside
    the first, or takes it from `joined`. Unsorted rows are sorted; ties in time go by transaction id. `labels` says which
    rows must have one: `all`, `some` (the others are -1), or `none` (the column is not read).
    """
    schema = resolve_schema(schema)
    source = open_source(origin)
    table = _Table(
        source,
        replace(schema, label=None) if labels == "none" else schema,
        second_source(source, schema, joined),
    )
    names = table.named()
    times = table.times()
    known = table.labels(labels)
    numbers = table.numbers()
    codes, customers = _customers(table, names, numbers, times)
    ids, rank = table.ids()
    places = np.lexsort((rank, times, codes))
    return Transactions(
        schema=schema,
        source=source.name,
        numbers=numbers,
        categories=names,
        customers=customers,
        file_rows=places,
        customer_codes=codes[places],
        times=times[places],
        ids=ids[places],
        labels=None if known is None else known[places],
    )


def read_for_scoring(origin: Any, schema: Schema | str, *, joined: Any = None) -> Transactions:
    """Read a file whose labels may not all be known yet: with its label column where it has one, without where it has none."""
    schema = resolve_schema(schema)
    source = open_source(origin)
    has_labels = schema.label is not None and source.find_column(schema.label) is not None
    return read(origin, schema, joined=joined, labels="some" if has_labels else "none")


def resolve_schema(schema: Schema | str) -> Schema:
    """A schema as given, by preset name, or from a `turncoat.toml`."""
    if isinstance(schema, Schema):
        return schema
    if str(schema).endswith(".toml"):
        return load_schema(schema)
    return load_preset(str(schema))


def second_source(source: Source, schema: Schema, joined: Any) -> Source | None:
    """The table that the schema joins to the first, unless its columns are already in the first."""
    if schema.join is None:
        if joined is not None:
            raise ConfigError(f"schema {schema.name!r} joins no second table; leave `joined` out")
        return None
    if joined is not None:
        return open_source(joined)
    if all(source.find_column(column) is not None for column in schema.join.columns):
        return None
    if source.path is None:
        raise DataError(
            f"{source.name}: the columns of the second table are not there. Give it with `joined=`"
        )
    prefix = stem(source.path).removesuffix("transactions").removesuffix("transaction")
    wanted = schema.join.file.replace("{prefix}", prefix)
    place = beside(source.path, wanted)
    if place is None:
        raise DataError(
            f"{source.name}: {wanted}.csv (or .csv.gz, .parquet) is not beside it. Put it there, or give it with `joined=`"
        )
    return open_source(place)


class _Table:
    """The columns in use, read and joined; methods hand each out checked, once, and free its memory."""

    def __init__(self, source: Source, schema: Schema, second: Source | None) -> None:
        """Read both tables."""
        self.source, self.schema = source, schema
        self.owner: dict[str, Source] = {}
        self.partners: pl.Series | None = None  # each row's row in the second table
        join = schema.join if second is not None else None
        theirs = [
            column for column in schema.columns if join is not None and column in join.columns
        ]
        ours = [column for column in schema.columns if column not in theirs]
        self.columns = self._read(
            source, ours if join is None else list(dict.fromkeys([*ours, join.on]))
        )
        self.n_rows = len(next(iter(self.columns.values())))
        if self.n_rows == 0:
            raise DataError(f"{source.name}: no rows. Check how the file was written")
        if join is not None and second is not None:
            self._join(second, join.on, theirs)

    def _read(self, source: Source, columns: list[str]) -> dict[str, pl.Series]:
        spelled = {column: source.find_column(column) for column in columns}
        missing = [
            column
            for column, found in spelled.items()
            if found is None or (found != column and found in columns)
        ]
        if missing:
            shown = ", ".join(repr(column) for column in missing[:8]) + (
                ", ..." if len(missing) > 8 else ""
            )
            have = ", ".join(source.columns[:12]) + (", ..." if len(source.columns) > 12 else "")
            raise DataError(
                f"{source.name}: schema {self.schema.name!r} names {shown}, and the file does not have it. It has {have}. "
                "Correct the schema or choose another"
            )
        self.owner |= {column: source for column in columns if column not in self.owner}
        names = {found: column for column, found in spelled.items() if found is not None}
        for column in filter(source.is_twice, names):
            raise DataError(
                f"{source.name}: the header has {column!r} twice. Rename or remove one of the two columns"
            )
        numeric = [
            found
            for found, column in names.items()
            if column in self.schema.continuous or column == self.schema.customer_age
        ]
        try:
            source.check_lines()
            frame = source.with_numbers(numeric).select(list(names)).rename(names).collect()
            return {column: frame[column] for column in frame.columns}
        except (pl.exceptions.PolarsError, OSError) as problem:
            if damage := source.damage():
                raise damage from problem
            if source.csv is not None:
                self._blame(source, numeric)
            raise DataError(
                f"{source.name}: cannot be read: {first_line(problem)}. The file may be damaged; write it again"
            ) from problem

    def _blame(self, source: Source, numeric: list[str]) -> None:
        """Name the first cell of a CSV file that is not a number, if that is what went wrong."""
        for column in numeric:
            cell = pl.col(column)
            wrong = (
                cell.is_not_null()
                & (cell != NOT_A_NUMBER)
                & cell.cast(pl.Float64, strict=False).is_null()
            )
            try:
                found = (
                    source.frame.select(cell).with_row_index("row").filter(wrong).head(1).collect()
                )
            except (pl.exceptions.PolarsError, OSError):
                return
            if found.height:
                place = f"{source.name}, column {column!r}, row {found['row'][0] + 1}"
                remedy = "Write plain numbers such as 1234.56, or make the column categorical"
                raise DataError(f"{place}: {found[column][0]!r} is not a number. {remedy}")

    def _join(self, second: Source, on: str, columns: list[str]) -> None:
        """Add a second table's columns by key; rows without a partner get missing values."""
        theirs = self._read(second, [on, *columns])
        keys = _key(theirs[on])
        wrong = keys.is_null() | ~keys.is_first_distinct()
        if wrong.any():
            row = self.first(wrong)
            problem = (
                "the key is missing"
                if keys[row] is None
                else f"{keys[row]} is already on row {self.first(keys == keys[row]) + 1}"
            )
            raise DataError(
                f"{second.name}, column {on!r}, row {row + 1}: {problem}. Keep one row for each {on}"
            )
        rows = pl.DataFrame({"key": keys}).with_row_index("row")
        place = pl.DataFrame({"key": _key(self.columns[on])}).join(
            rows, on="key", how="left", maintain_order="left"
        )["row"]
        if place.null_count() == self.n_rows:
            problem = f"no key of this file is one of {self.source.name}'s"
            raise DataError(
                f"{second.name}, column {on!r}: {problem}. Check that both belong together"
            )
        self.columns |= {column: theirs[column].gather(place) for column in columns}
        self.partners = place

    def error(self, column: str, row: int, problem: str, remedy: str) -> DataError:
        """A refusal that names file, column and row (the first row after the header is 1)."""
        source = self.owner.get(column, self.source)
        if source is not self.source and self.partners is not None:
            row = self.partners[row]
        return DataError(f"{source.name}, column {column!r}, row {row + 1}: {problem}. {remedy}")

    def first(self, flags: pl.Series | Array) -> int:
        """The first row that a flag is set for."""
        return int(np.flatnonzero(np.asarray(flags))[0])

    def named(self) -> dict[str, CategoryColumn]:
        """The columns of names, coded."""
        return _in_parallel(self._name, self.schema.text_columns)

    def _name(self, column: str) -> CategoryColumn:
        values = self.columns[column]
        try:
            named = CategoryColumn.of(values)
        except (TypeError, ValueError, NotImplementedError, pl.exceptions.PolarsError) as problem:
            name = self.owner[column].name
            raise DataError(
                f"{name}, column {column!r}: {values.dtype} values cannot be names. Leave the column out"
            ) from problem
        for code, value in enumerate(named.values):
            if "\0" in value or len(value) > _LONGEST_NAME:
                row = self.first(named.codes == code)
                oddity = "a NUL character" if "\0" in value else f"{len(value):,} characters"
                raise self.error(
                    column,
                    row,
                    f"{value[:40]!r} has {oddity}",
                    "The file may be damaged; write it again",
                )
        return named

    def numbers(self) -> dict[str, Array]:
        """The continuous columns as float64, none of them infinite; NaN is missing."""
        ages = () if self.schema.customer_age is None else (self.schema.customer_age,)
        return _in_parallel(self._number, dict.fromkeys((*self.schema.continuous, *ages)))

    def _number(self, column: str) -> Array:
        values = self.columns.pop(column)
        if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.Null)):
            found = values.drop_nulls().head(1).to_list()
            raise DataError(
                f"{self.owner[column].name}, column {column!r}: values are {values.dtype}, such as {found}; a continuous column must be "
                "numeric. Correct the type, or make it categorical"
            )
        numbers = values.cast(pl.Float64).to_numpy()
        endless = np.isinf(numbers)
        if endless.any():
            row = self.first(endless)
            raise self.error(
                column,
                row,
                f"the value is {numbers[row]}, and must be finite",
                "Correct it, or leave it empty",
            )
        return numbers

    def times(self) -> Array:
        """Seconds, one for every row."""
        column, written = self.schema.time, self.schema.time_format
        values = _plain(self.columns[column])
        times = to_seconds(values, self.schema)
        if times is None:
            raise DataError(
                f"{self.owner[column].name}, column {column!r}: {values.dtype} values are not times. Name another column as `time`"
            )
        wrong = ~times.is_finite().fill_null(False)
        if wrong.any():
            row = self.first(wrong)
            if values[row] is None:
                raise self.error(
                    column,
                    row,
                    "the time is missing, and every transaction needs one",
                    "Correct or remove the row",
                )
            form = (
                f" in the format {written!r}"
                if written
                else ": neither a finite number nor a date that begins with its year"
            )
            raise self.error(
                column,
                row,
                f"{values[row]!r} is not a time{form}",
                "Correct it, or set `time_format` in the schema",
            )
        found = times.to_numpy()
        if np.abs(found).max() > MAX_TIME_S:
            row = self.first(np.abs(found) > MAX_TIME_S)
            reading = f"{values[row]!r}, in units of {self.schema.time_unit!r}, is {found[row] / _YEAR:,.0f} years from zero"
            raise self.error(
                column,
                row,
                reading,
                f"Set `time_unit` in the schema: one of {', '.join(TIME_UNITS)}",
            )
        return found

    def labels(self, which: str) -> Array | None:
        """0 or 1 for every row, -1 where one may be missing and is, or None if the schema has no label."""
        column = self.schema.label
        if column is None:
            return None
        values = _plain(self.columns[column])
        if values.dtype == pl.String:
            labels = values.str.to_lowercase().replace_strict(
                _TRUTHS, default=None, return_dtype=pl.Int8
            )
        elif values.dtype == pl.Boolean or values.dtype.is_numeric():
            labels = values.cast(pl.Float64)
            labels = (
                pl.select(pl.when(labels.is_in([0.0, 1.0])).then(labels)).to_series().cast(pl.Int8)
            )
        else:
            name = self.owner[column].name
            raise DataError(
                f"{name}, column {column!r}: {values.dtype} values are not labels. Labels are 0 and 1; name another column"
            )
        wrong = (
            labels.is_null()
            if which == "all"
            else labels.is_null() & values.is_not_null() & (values.cast(pl.String) != "")
        )
        if wrong.any():
            row = self.first(wrong)
            found = "missing" if values[row] is None else repr(values[row])
            raise self.error(
                column,
                row,
                f"the label is {found}, and must be 0 or 1",
                "Correct it, or remove the row",
            )
        return labels.fill_null(-1).to_numpy()

    def ids(self) -> tuple[Array, Array]:
        """Each row's id, and its rank among them, for ties in time."""
        column = self.schema.id
        if column is None:
            places = np.arange(self.n_rows)
            return places, places
        values = _plain(self.columns[column])
        if values.dtype == pl.String or values.dtype.is_integer():
            whole = values.cast(pl.Int64, strict=False)
            values = (
                whole
                if whole.cast(pl.String).eq_missing(values.cast(pl.String)).all()
                else values.cast(pl.String)
            )  # "007" stays text
        if values.null_count():
            raise self.error(
                column,
                self.first(values.is_null()),
                "the transaction id is missing",
                "Every transaction needs one of its own",
            )
        if values.n_unique() < len(values):
            again = self.first(~values.is_first_distinct())
            first = self.first(values == values[again])
            raise self.error(
                column,
                again,
                f"id {values[again]!r} is already on row {first + 1}",
                "Remove one of the rows",
            )
        if values.dtype == pl.String and (values.str.len_chars().max() or 0) > _LONGEST_NAME:  # type: ignore[operator]
            row = self.first(values.str.len_chars() > _LONGEST_NAME)
            raise self.error(
                column,
                row,
                f"the id has {len(values[row]):,} characters",
                "The file may be damaged; write it again",
            )
        if not (values.dtype.is_integer() or values.dtype == pl.String):
            name = self.owner[column].name
            raise DataError(
                f"{name}, column {column!r}: {values.dtype} values are not ids. Make them whole numbers or text, or leave it out"
            )
        ids = values.to_numpy()
        return (
            (ids, ids)
            if values.dtype.is_integer()
            else (ids.astype(str), values.rank("ordinal").to_numpy())
        )


def _in_parallel(work: Callable[[str], T], columns: Iterable[str]) -> dict[str, T]:
    """Do work on each column, on all processors; of several failures the first column's is raised."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = {column: pool.submit(work, column) for column in columns}
    return {column: task.result() for column, task in tasks.items()}


def _plain(values: pl.Series) -> pl.Series:
    """Values of a categorical type as the text they stand for."""
    return (
        values.cast(pl.String)
        if values.dtype == pl.Categorical or isinstance(values.dtype, pl.Enum)
        else values
    )


def _key(values: pl.Series) -> pl.Series:
    """Keys of a join as text: a whole number is one key, whether its file holds integers, floats or text."""
    return _plain(values).cast(pl.String).str.replace(r"^([+-]?\d+)\.0+$", "$1")


def _customers(
    table: _Table, names: dict[str, CategoryColumn], numbers: dict[str, Array], times: Array
) -> tuple[Array, Array]:
    """A code for every row's customer, and the customers' keys, sorted."""
    schema = table.schema
    parts = [
        names[column] if column in names else CategoryColumn.of(pl.Series(numbers[column]))
        for column in schema.customer
    ]
    unnamed = np.all([part.codes < 0 for part in parts], axis=0)
    if unnamed.any():
        raise table.error(
            schema.customer[0],
            table.first(unnamed),
            "the customer is missing",
            "Name it, or remove the row",
        )
    if schema.customer_age is not None:
        began = np.floor(times / 86400) - np.floor(numbers[schema.customer_age])
        parts.append(CategoryColumn.of(pl.Series(began)))
    if len(parts) == 1:
        return _ranked(parts[0].codes, parts[0].values)
    codes: Array = np.zeros(len(times), np.int64)
    for part in parts:
        _, first, codes = np.unique(
            codes * (len(part.values) + 1) + part.codes, return_index=True, return_inverse=True
        )
    spelled = [np.array([*part.values, ""], dtype=object)[part.codes[first]] for part in parts]
    return _ranked(codes, [join_key(key) for key in zip(*spelled, strict=True)])


def _ranked(codes: Array, keys: Any) -> tuple[Array, Array]:
    """Number the keys in their own order, numbers by size, so that customers do not depend on the order of the rows."""
    texts = np.array(keys, dtype=str)
    try:
        order = np.lexsort((texts, texts.astype(np.int64)))  # by text where "07" meets "7"
    except (ValueError, OverflowError):
        order = np.argsort(texts)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[codes], texts[order]
