"""Read files into transactions: only the schema's columns, every cell checked."""

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
from turncoat.data.clocks import parse_zone
from turncoat.data.money import convert_columns, list_without_rate
from turncoat.data.parsing import (
    MAX_TIME_S,
    ZONE_REMEDY,
    find_all_utc_offsets,
    find_zones,
    parse_labels,
    to_seconds,
)
from turncoat.data.presets import load_preset
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.schema_file import load_schema
from turncoat.data.sources import SUFFIXES, Source, file_prefix, open_source
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError

T = TypeVar("T")

_YEAR_S = 365.25 * 86400
_MAX_TEXT_CHARS = 100_000  # longer values are parts of a file with unmatched quotes


def read(
    origin: Any, schema: Schema | str, *, joined: Any = None, with_labels: bool = True
) -> Transactions:
    """Read and check transactions.

    `origin` is a CSV or Parquet file, several of them or a folder as one table, or a polars, pandas
    or Arrow frame. `schema` is a `Schema`, the name of a preset or the path of a `turncoat.toml`.
    A file that the schema joins is found next to the first, or given as `joined`. Rows are sorted
    by customer and time; ties in time go by transaction id. An unknown label is read as -1.
    `with_labels=False` does not read the label column, which may then be absent.
    """
    schema = resolve_schema(schema)
    source = open_for_schema(origin, schema)
    read_schema = schema if with_labels else replace(schema, label=None)
    table = _TableReader(source, read_schema, open_joined(source, schema, joined))
    categories = table.read_categories()
    times, offsets = table.read_times()
    label_values = table.read_labels()
    numbers = table.read_numbers()
    original_money = table.convert_money(numbers, categories, times)
    codes, customers = table.read_customers(categories, numbers, times)
    ids, rank, is_kept = table.read_ids()
    order = np.lexsort((rank, times, codes))
    order = order if is_kept is None else order[is_kept[order]]
    return Transactions(
        schema=schema,
        source=source.name,
        numbers=numbers,
        categories=categories,
        customers=customers,
        file_rows=order,
        customer_codes=codes[order],
        times=times[order],
        ids=ids[order],
        labels=None if label_values is None else label_values[order],
        utc_offsets=None if offsets is None else offsets[order],
        original_money=original_money,
        notes=tuple(table.notes),
    )


def read_for_scoring(origin: Any, schema: Schema | str, *, joined: Any = None) -> Transactions:
    """Read a file whose label column may be missing."""
    schema = resolve_schema(schema)
    source = open_for_schema(origin, schema)
    has_labels = schema.label is not None and source.find_column(schema.label) is not None
    return read(origin, schema, joined=joined, with_labels=has_labels)


def resolve_schema(schema: Schema | str) -> Schema:
    """A schema as given, by preset name, or from a `turncoat.toml`."""
    if isinstance(schema, Schema):
        return schema
    if str(schema).endswith(".toml"):
        return load_schema(schema)
    return load_preset(str(schema))


def open_for_schema(origin: Any, schema: Schema) -> Source:
    """The table of transactions; a file that the schema joins is no part of it."""
    return open_source(origin, schema.csv, "" if schema.join is None else schema.join.file)


def open_joined(source: Source, schema: Schema, joined: Any) -> Source | None:
    """The table that the schema joins, unless the first already has its columns."""
    if schema.join is None:
        if joined is not None:
            raise ConfigError(f"schema {schema.name!r} joins no second table. Omit `joined`")
        return None
    if joined is not None:
        return open_source(joined, schema.csv)
    if all(source.find_column(column) is not None for column in schema.join.columns):
        return None
    if source.path is None:
        problem = "the columns of the second table are missing. Pass it as `joined=`"
        raise DataError(f"{source.name}: {problem}")
    name = schema.join.file.replace("{prefix}", file_prefix(source.path))
    places = (source.path.parent / (name + suffix) for suffix in SUFFIXES)
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        problem = f"{name}.csv (or .csv.gz, .parquet) is not in the same folder"
        raise DataError(f"{source.name}: {problem}. Put it there, or pass it as `joined=`")
    return open_source(path, schema.csv)


class _TableReader:
    """Reads and joins the schema's columns; methods return each of them checked."""

    def __init__(self, source: Source, schema: Schema, second: Source | None) -> None:
        """Read both tables."""
        self.source, self.schema = source, schema
        self.owner: dict[str, Source] = {}
        self.second_rows: pl.Series | None = None  # each row's row in the second table
        self.notes: list[str] = []  # what was left out
        join = schema.join if second is not None else None
        theirs = [c for c in schema.columns if join is not None and c in join.columns]
        ours = [c for c in schema.columns if c not in theirs]
        if join is not None:
            ours = list(dict.fromkeys([*ours, join.on]))
        self.columns = self._read_columns(source, ours)
        self.n_rows = len(next(iter(self.columns.values())))
        if self.n_rows == 0:
            raise DataError(f"{source.name}: no rows. Check how the file was written")
        if join is not None and second is not None:
            self._join(second, join.on, theirs)

    def _read_columns(self, source: Source, columns: list[str]) -> dict[str, pl.Series]:
        found = {column: source.find_column(column) for column in columns}
        taken = set(columns)
        if missing := [c for c, name in found.items() if name is None or name in taken - {c}]:
            part = source.find_part_without(missing[0])
            missing = [column for column in missing if part.find_column(column) is None] or missing
            names = ", ".join(map(repr, missing[:8])) + (", ..." if len(missing) > 8 else "")
            have = ", ".join(part.columns[:12]) + (", ..." if len(part.columns) > 12 else "")
            problem = f"the file lacks {names}, named by schema {self.schema.name!r}. It has {have}"
            raise DataError(f"{part.name}: {problem}. Correct the schema or choose another")
        self.owner |= {column: source for column in columns if column not in self.owner}
        names_to_columns = {name: column for column, name in found.items() if name is not None}
        numeric_columns = {*self.schema.continuous, self.schema.customer_age}
        numeric = [name for name, column in names_to_columns.items() if column in numeric_columns]
        frame = source.read(list(names_to_columns), numeric)
        return {names_to_columns[series.name]: series for series in frame}

    def _join(self, second: Source, on: str, columns: list[str]) -> None:
        """Add a second table's columns by key; rows without a match get missing values."""
        theirs = self._read_columns(second, [on, *columns])
        keys = _normalize_keys(theirs[on])
        is_wrong = keys.is_null() | ~keys.is_first_distinct()
        for row in is_wrong.arg_true().head(1):
            first = int(np.argmax(keys.eq_missing(keys[row])))
            problem = f"{keys[row]} is already on row {first + 1}"
            if keys[row] is None:
                problem = "the key is missing"
            where = f"{second.name}, column {on!r}, row {row + 1}"
            raise DataError(f"{where}: {problem}. Keep one row per {on}")
        rows = pl.DataFrame({"key": keys}).with_row_index("row")
        own = pl.DataFrame({"key": _normalize_keys(self.columns[on])})
        matches = own.join(rows, on="key", how="left", maintain_order="left")["row"]
        if matches.null_count() == self.n_rows:
            problem = f"no key of this file occurs in {self.source.name}"
            remedy = "Check that both files belong together"
            raise DataError(f"{second.name}, column {on!r}: {problem}. {remedy}")
        self.columns |= {column: theirs[column].gather(matches) for column in columns}
        self.second_rows = matches

    def _error(self, column: str, problem: str, row: int | None = None) -> DataError:
        """An error that names file, column and row (the first row after the header is 1)."""
        source = self.owner[column]
        if row is not None and source is not self.source and self.second_rows is not None:
            row = self.second_rows[row]
        name, where = source.name, f"column {column!r}"
        if row is not None:
            name, own_row = source.locate(row)
            where += f", row {own_row + 1}"
        return DataError(f"{name}, {where}: {problem}")

    def _refuse(self, column: str, is_wrong: Any, values: Any, problem: str) -> None:
        """Raise an error for the first wrong cell, if there is one; `{}` stands for its value."""
        flags = np.asarray(is_wrong)
        if flags.any():
            row = int(flags.argmax())
            found = "missing" if values[row] is None else repr(values[row])
            raise self._error(column, problem.replace("{}", found), row)

    def read_categories(self) -> dict[str, CategoryColumn]:
        """The categorical columns, coded."""
        return _map_columns(self._read_category, self.schema.text_columns)

    def _read_category(self, column: str) -> CategoryColumn:
        values = self.columns[column]
        try:
            encoded = CategoryColumn.encode(values)
        except (TypeError, ValueError, NotImplementedError, pl.exceptions.PolarsError) as cause:
            problem = f"{values.dtype} values cannot be categories. Leave the column out"
            raise self._error(column, problem) from cause
        for code, value in enumerate(encoded.values):
            if "\0" in value or len(value) > _MAX_TEXT_CHARS:
                oddity = "a NUL character" if "\0" in value else f"{len(value):,} characters"
                problem = f"{value[:40]!r} has {oddity}. The file may be damaged; write it again"
                raise self._error(column, problem, int(np.argmax(encoded.codes == code)))
        return encoded

    def read_numbers(self) -> dict[str, Array]:
        """The continuous columns as finite float64; NaN is missing."""
        ages = () if self.schema.customer_age is None else (self.schema.customer_age,)
        return _map_columns(self._read_number, dict.fromkeys((*self.schema.continuous, *ages)))

    def _read_number(self, column: str) -> Array:
        values = self.columns.pop(column)  # frees its memory
        if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.Null)):
            examples = values.drop_nulls().head(1).to_list()
            problem = f"values are {values.dtype}, such as {examples}; a continuous column must be"
            remedy = "Correct the type, or make it categorical"
            raise self._error(column, f"{problem} numeric. {remedy}")
        numbers = values.cast(pl.Float64).to_numpy()
        problem = "the value is {}; it must be finite. Correct it, or leave it empty"
        self._refuse(column, np.isinf(numbers), values, problem)
        return numbers

    def convert_money(
        self, numbers: dict[str, Array], categories: dict[str, CategoryColumn], times: Array
    ) -> dict[str, Array]:
        """Convert amounts by the schema's rules; without a rate they are missing.

        Returns the columns that changed currency as they were before, in units.
        """
        schema = self.schema
        currencies = None if schema.currency is None else categories[schema.currency]
        rates, original = convert_columns(schema, numbers, currencies, times)
        if currencies is None or rates is None or not np.isnan(rates).any():
            return original
        without = ", ".join(list_without_rate(currencies, rates)[:8])
        if np.isnan(rates).all():
            known = ", ".join(() if schema.rates is None else schema.rates.currencies)
            problem = f"no row has a rate: {without}. There are rates of {known}"
            raise self._error(str(schema.currency), f"{problem}. Add the others to the schema")
        self.notes.append(f"amounts without a rate count as missing: {without} rows")
        return original

    def read_times(self) -> tuple[Array, Array | None]:
        """Seconds [rows], and seconds by which local clocks are ahead, None if they are not."""
        column, schema = self.schema.time, self.schema
        values = _plain(self.columns[column])
        zones = self._read_zones(values)
        seconds = to_seconds(values, schema, zones)
        if seconds is None:
            problem = f"{values.dtype} values are not times. Name another column as `time`"
            raise self._error(column, problem)
        problem = "the time is {}, but it is required. Correct or remove the row"
        self._refuse(column, values.is_null(), values, problem)
        rule = ": neither a finite number nor a date that begins with its year"
        if schema.time_format:
            rule = f" in the format {schema.time_format!r}"
        is_time = seconds.is_finite().fill_null(False)
        other = f", unlike {values[int(is_time.arg_max() or 0)]!r}" if is_time.any() else ""
        problem = f"{{}} is not a time{rule}{other}. Correct it, or set `time_format`"
        self._refuse(column, ~is_time, values, problem)
        times = seconds.to_numpy()
        for row in np.flatnonzero(np.abs(times) > MAX_TIME_S)[:1].tolist():
            problem = f"{values[row]!r}, in units of {schema.time_unit!r}, is "
            problem += f"{times[row] / _YEAR_S:,.0f} years from zero. Set `time_unit` in the schema"
            raise self._error(column, f"{problem}: one of {', '.join(TIME_UNITS)}", row)
        return times, find_all_utc_offsets(times, zones, schema)

    def _read_zones(self, times: pl.Series) -> pl.Series | None:
        """The zone that each row names, checked; None if the schema has no column of zones."""
        column = self.schema.time_zone_column
        if column is None:
            return None
        zones = find_zones(_plain(self.columns[column]), times, self.schema)
        for name in () if zones is None else zones.drop_nulls().unique():
            if parse_zone(name) is None:
                problem = f"{{}} is not a time zone. {ZONE_REMEDY}"
                self._refuse(column, (zones == name).fill_null(False), zones, problem)
        return zones

    def read_labels(self) -> Array | None:
        """0, 1, or -1 where it is unknown, for every row; None without a label."""
        column = self.schema.label
        if column is None:
            return None
        values = _plain(self.columns[column])
        labels = parse_labels(values, self.schema.label_codes)
        if labels is None:
            remedy = "Labels are 0, 1, words, or -1 if unknown; name another column"
            raise self._error(column, f"{values.dtype} values are not labels. {remedy}")
        rule = "it must be 0, 1, a word such as yes or no, or empty if unknown"
        remedy = "Correct it, or list it in the schema's `fraud_labels`, `genuine_labels` or"
        problem = f"the label is {{}}; {rule}. {remedy} `unknown_labels`"
        self._refuse(column, labels.is_null(), values, problem)
        return labels.to_numpy()

    def read_ids(self) -> tuple[Array, Array, Array | None]:
        """Each row's id, its rank among them, which breaks ties in time, and whether it counts.

        None if all rows count.
        """
        column = self.schema.id
        if column is None:
            rows = np.arange(self.n_rows)
            return rows, rows, None
        values = _plain(self.columns[column])
        if values.dtype == pl.String or values.dtype.is_integer():
            whole, texts = values.cast(pl.Int64, strict=False), values.cast(pl.String)
            is_exact = whole.cast(pl.String).eq_missing(texts).all()  # "007" stays text
            values = whole if is_exact else texts
        problem = "the transaction id is {}. Every transaction needs one of its own"
        self._refuse(column, values.is_null(), values, problem)
        is_kept = self._choose_among_repeats(column, values)
        if values.dtype.is_integer():
            ids = values.to_numpy()
            return ids, ids, is_kept
        if values.dtype != pl.String:
            problem = "values are not ids. Make them whole numbers or text, or leave them out"
            raise self._error(column, f"{values.dtype} {problem}")
        lengths = values.str.len_chars()
        problem = "the id has {} characters. The file may be damaged; write it again"
        self._refuse(column, lengths > _MAX_TEXT_CHARS, lengths, problem)
        return values.to_numpy().astype(str), values.rank("ordinal").to_numpy(), is_kept

    def _choose_among_repeats(self, column: str, ids: pl.Series) -> Array | None:
        """Whether each row counts, by the schema's rule for repeated ids; None if none repeats."""
        n_repeats = len(ids) - ids.n_unique()
        if n_repeats == 0:
            return None
        if self.schema.repeated_ids == "refuse":
            row = int(np.argmin(ids.is_first_distinct()))
            name, first = self.owner[column].locate(int(np.argmax(ids == ids[row])))
            found = f"id {ids[row]!r} is already on row {first + 1} of {name}"
            remedy = 'Set `repeated_ids = "first"` or "last" in the schema, or correct the ids'
            raise self._error(column, f"{found}; {n_repeats:,} rows repeat an id. {remedy}", row)
        is_first = self.schema.repeated_ids == "first"
        rule = f"the {self.schema.repeated_ids} row of each counts"
        if len(parts := self.source.parts) > 1:
            rule += f", with {parts[0].name} as the first file and {parts[-1].name} as the last"
        self.notes.append(f"{n_repeats:,} rows that repeat an id were left out; {rule}")
        return (ids.is_first_distinct() if is_first else ids.is_last_distinct()).to_numpy()

    def read_customers(
        self, categories: dict[str, CategoryColumn], numbers: dict[str, Array], times: Array
    ) -> tuple[Array, Array]:
        """A code for every row's customer, and the customers' keys, sorted."""
        schema = self.schema
        parts = [categories[column] for column in schema.customer]
        is_missing = np.all([part.codes < 0 for part in parts], axis=0)
        problem = "the customer is missing. Name it, or remove the row"
        self._refuse(schema.customer[0], is_missing, parts[0].codes, problem)
        if schema.customer_age is not None:
            first_day = np.floor(times / 86400) - np.floor(numbers[schema.customer_age])
            parts.append(CategoryColumn.encode(pl.Series(first_day)))
        if len(parts) == 1:
            return _rank_keys(parts[0].codes, parts[0].values)
        codes: Array = np.zeros(len(times), np.int64)
        for part in parts:
            combined = codes * (len(part.values) + 1) + part.codes
            _, first, codes = np.unique(combined, return_index=True, return_inverse=True)
        texts = [np.array([*part.values, ""], dtype=object)[part.codes[first]] for part in parts]
        return _rank_keys(codes, [join_key(key) for key in zip(*texts, strict=True)])


def _map_columns(work: Callable[[str], T], columns: Iterable[str]) -> dict[str, T]:
    """Do work on all columns in parallel; raises the first column's error."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        tasks = {column: pool.submit(work, column) for column in columns}
    return {column: task.result() for column, task in tasks.items()}


def _plain(values: pl.Series) -> pl.Series:
    """Values of a categorical type as text."""
    is_categorical = values.dtype == pl.Categorical or isinstance(values.dtype, pl.Enum)
    return values.cast(pl.String) if is_categorical else values


def _normalize_keys(values: pl.Series) -> pl.Series:
    """Join keys as text, equal for whole numbers stored as integers, floats or text."""
    return _plain(values).cast(pl.String).str.replace(r"^([+-]?\d+)\.0+$", "$1")


def _rank_keys(codes: Array, keys: Any) -> tuple[Array, Array]:
    """Number the keys in sorted order, whole numbers by size, whatever the order of the rows."""
    texts = np.array(keys, dtype=str)
    try:
        order = np.lexsort((texts, texts.astype(np.int64)))  # by text for "07" and "7"
    except (ValueError, OverflowError):
        order = np.argsort(texts)
    return np.argsort(order)[codes], texts[order]
