"""Parse times, and single rows of a live service, by the same rules as files."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import repeat
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.categories import join_key, normalize_category
from turncoat.data.clocks import (
    UTC_NAME,
    WRITTEN_OFFSET,
    extract_offset,
    find_utc_offset,
    find_utc_offsets,
    parse_zone,
    to_utc,
)
from turncoat.data.csv_files import NOT_A_NUMBER, PLAIN, CsvFormat
from turncoat.data.money import OriginalMoney, convert_row
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.errors import DataError

MAX_TIME_S = 1e11  # the year 5138; times further from zero have a wrong unit
ZONE_REMEDY = "Give a name such as Europe/Berlin, or an offset such as +02:00"
YEAR_FIRST = r"^\s*\d{4}[-/]"  # 03/04/2024 is ambiguous and needs `time_format`
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
# Numbers as polars parses them.
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|NaN")


class TransactionRow(NamedTuple):
    """One transaction as features take it, with columns in schema order."""

    time: float  # seconds
    numbers: Array  # [continuous columns] float64; NaN is missing
    categories: Sequence[Any]  # [categorical columns] in any spelling; None is missing
    tracked: Sequence[Any]  # [tracked columns]
    counterparties: tuple[str | None, ...]  # [counterparties] names; None is missing
    utc_offset: float = 0.0  # seconds by which the local clock is ahead
    original: OriginalMoney | None = None  # None if no currency was converted


def parse_dates(texts: pl.Series, time_format: str | None) -> pl.Series:
    """Text as dates in a format, by default ISO; null is not a date.

    Dates with an offset, or in UTC (Z), are converted to UTC; others are on some local clock.
    """
    local, instants = _parse_dates(texts, time_format)
    return pl.select(pl.coalesce(local, instants.dt.replace_time_zone(None))).to_series()


def _parse_dates(texts: pl.Series, time_format: str | None) -> tuple[pl.Series, pl.Series]:
    """Dates without an offset, and dates with one in UTC; null in both is not a date."""
    none_local, none = (
        pl.repeat(None, len(texts), dtype=pl.Datetime("us", zone), eager=True)
        for zone in (None, "UTC")
    )
    if time_format is not None:
        dates = _to_datetime(texts, time_format)
        return (dates, none) if dates.dtype == pl.Datetime("us") else (none_local, dates)
    texts = _shorten_utc(texts)
    is_dated = texts.str.contains(YEAR_FIRST).fill_null(False)
    has_offset = is_dated & texts.str.contains(WRITTEN_OFFSET).fill_null(False)
    is_local = is_dated & ~has_offset
    local = _to_datetime(texts if is_local.all() else texts.set(~is_local, None), None)
    if not has_offset.any():
        return local, none
    return local, _to_datetime(texts.set(~has_offset, None), None).cast(none.dtype)


def _shorten_utc(texts: pl.Series) -> pl.Series:
    """Times that end in UTC or GMT with a Z instead."""
    has_name = texts.str.contains(UTC_NAME).any()
    return texts.str.replace(UTC_NAME, "Z") if has_name else texts


def _to_datetime(texts: pl.Series, time_format: str | None) -> pl.Series:
    try:
        return texts.str.to_datetime(time_format, strict=False, time_unit="us")
    except pl.exceptions.PolarsError:  # nothing in the column is a date
        return pl.repeat(None, len(texts), dtype=pl.Datetime("us"), eager=True)


def to_seconds(
    values: pl.Series, schema: Schema, zones: pl.Series | None = None
) -> pl.Series | None:
    """Float64 seconds, of dates since 1970; None if the values cannot be times.

    Dates without an offset are on the clock of `zones`, names or offsets by row, by default on that
    of the schema's `time_zone`.
    """
    if schema.time_format is not None and values.dtype.is_integer():
        values = values.cast(pl.String)  # 20240131
    if values.dtype == pl.String:
        numbers = None if schema.time_format else _parse_numeric_times(values)
        if numbers is None:
            local, instants = _parse_dates(values, schema.time_format)
            return _merge_times(local, instants, schema, zones)
        values = numbers
    if values.dtype.is_temporal() and values.dtype != pl.Time and values.dtype != pl.Duration:
        if getattr(values.dtype, "time_zone", None) is None:
            return _merge_times(values, None, schema, zones)
        return _from_microseconds(values.cast(pl.Datetime("us", "UTC")).dt.timestamp("us"))
    if values.dtype.is_numeric():
        return values.cast(pl.Float64) * TIME_UNITS[schema.time_unit]
    return None


def _parse_numeric_times(texts: pl.Series) -> pl.Series | None:
    """Texts as numbers; None if most of them are not."""
    numbers = texts.cast(pl.Float64, strict=False)
    is_numeric = numbers.null_count() == texts.null_count()
    return numbers if is_numeric or numbers.null_count() < 0.5 * len(texts) else None


def _merge_times(
    local: pl.Series, instants: pl.Series | None, schema: Schema, zones: pl.Series | None
) -> pl.Series:
    """Seconds of dates on local clocks and of instants."""
    found = to_utc(local, schema.default_zone)
    for name in () if zones is None else zones.drop_nulls().unique():
        zone = parse_zone(name)
        rows = (zones == name).fill_null(False).arg_true()
        if zone is not None:
            found = found.scatter(rows, to_utc(local.gather(rows), zone))
    if instants is not None:
        found = pl.select(pl.coalesce(instants.dt.timestamp("us"), found)).to_series()
    return _from_microseconds(found)


def _from_microseconds(instants: pl.Series) -> pl.Series:
    """Seconds, exact as in Python; polars would round."""
    return pl.Series(instants.name, instants.cast(pl.Float64).to_numpy() / 1e6, nan_to_null=True)


def find_zones(values: pl.Series | None, times: pl.Series, schema: Schema) -> pl.Series | None:
    """The zone that each row names, null for none; None if the schema has no column of zones."""
    if schema.time_zone_column is None:
        return None
    if schema.time_zone_column == schema.time:
        is_text = times.dtype == pl.String
        texts = times if is_text else pl.repeat(None, len(times), dtype=pl.String, eager=True)
        texts = _shorten_utc(texts).str.extract(WRITTEN_OFFSET, 1)
    else:
        texts = pl.Series(values).cast(pl.String).str.strip_chars()
    return texts.set((texts == "").fill_null(False), None)


def find_all_utc_offsets(times: Array, zones: pl.Series | None, schema: Schema) -> Array | None:
    """Seconds by which each row's clock is ahead of UTC [N]; None if hours are in UTC."""
    if not schema.has_local_time:
        return None
    offsets = find_utc_offsets(times, schema.default_zone)
    for name in () if zones is None else zones.drop_nulls().unique():
        zone = parse_zone(name)
        rows = (zones == name).fill_null(False).arg_true().to_numpy()
        if zone is not None:
            offsets[rows] = find_utc_offsets(times[rows], zone)
    return offsets


def parse_labels(values: pl.Series, words: Mapping[str, int]) -> pl.Series | None:
    """Labels as int8: 1, 0 or -1, null for other words; None if the values cannot be labels."""
    kind = values.dtype
    if not (kind == pl.String or kind == pl.Boolean or kind == pl.Null or kind.is_numeric()):
        return None
    if kind.is_float():
        values = values.fill_nan(None)
    texts = values.cast(pl.String).str.strip_chars().str.to_lowercase().fill_null("")
    texts = texts.str.replace(r"^([+-]?\d+)\.0+$", "$1")
    return texts.replace_strict(words, default=None, return_dtype=pl.Int8)


def parse_label(value: Any, schema: Schema) -> int | None:
    """One label as in a file: 1, 0 or -1; None for an unknown word."""
    codes = parse_labels(pl.Series([value]), schema.label_codes)
    return None if codes is None else codes[0]


def parse_row(schema: Schema, row: Mapping[str, Any]) -> TransactionRow:
    """Parse a mapping from column names to values; absent columns are missing."""
    if not isinstance(row, Mapping):
        found = type(row).__name__
        raise DataError(f"a live row must map column names to values; found {found}. Give a dict")
    time, numbers = parse_time(schema, row), parse_numbers(schema.continuous, row, schema.csv)
    original = None
    if schema.converts_money:
        numbers, original = convert_row(schema, numbers, row.get(schema.currency or ""), time)
    counterparties = tuple(normalize_category(row.get(name)) for name in schema.counterparties)
    texts = tuple(map(row.get, schema.categorical)), tuple(map(row.get, schema.tracked))
    offset = parse_utc_offset(schema, row, time)
    return TransactionRow(time, numbers, *texts, counterparties, offset, original)


def parse_time(schema: Schema, row: Mapping[str, Any]) -> float:
    """Seconds, as `read` gives them: from a number in the schema's unit, a date, or text."""
    value: Any = row.get(schema.time)
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    kind = value.__class__
    try:
        if kind is float or (kind is int and schema.time_format is None):
            time = value * TIME_UNITS[schema.time_unit]
        elif kind is datetime and (value.tzinfo or not schema.has_local_time):
            instant = value if value.tzinfo else value.replace(tzinfo=UTC)
            time = (instant - _EPOCH) // _MICROSECOND / 1e6
        else:
            zone = _find_zone_name(schema, row)
            zones = None if zone is None else pl.Series([zone])
            times = None if kind is bool else to_seconds(pl.Series([value]), schema, zones)
            time = math.nan if times is None or times[0] is None else times[0]
        if abs(time) <= MAX_TIME_S:
            return float(time)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    remedy = "Give seconds, or a date as in the file the features were fitted on"
    raise DataError(f"column {schema.time!r}: {value!r} is not a time. {remedy}")


def _find_zone_name(schema: Schema, row: Mapping[str, Any]) -> str | None:
    """The zone that a row names; None if it names none."""
    column = schema.time_zone_column
    if column is None:
        return None
    value = row.get(column)
    if column == schema.time:
        return extract_offset(value)
    name = (normalize_category(value) or "").strip()
    if name and parse_zone(name) is None:
        raise DataError(f"column {column!r}: {name!r} is not a time zone. {ZONE_REMEDY}")
    return name or None


def parse_utc_offset(schema: Schema, row: Mapping[str, Any], time: float) -> float:
    """Seconds by which the clock of a row is ahead of UTC; 0 if hours are in UTC."""
    if not schema.has_local_time:
        return 0.0
    name = _find_zone_name(schema, row)
    zone = None if name is None else parse_zone(name)
    return find_utc_offset(time, schema.default_zone if zone is None else zone)


def parse_customer(schema: Schema, row: Mapping[str, Any], time: float) -> str:
    """The customer's key, as `read` gives it; `time` is the row's, in seconds."""
    parts = [normalize_category(row.get(column)) for column in schema.customer]
    if not any(parts):
        where = f"column {schema.customer[0]!r}"
        raise DataError(f"{where}: the customer is missing. Every transaction needs one")
    if schema.customer_age is not None:
        age = parse_numbers((schema.customer_age,), row, schema.csv)[0]
        first_day = math.floor(time / 86400) - math.floor(age) if math.isfinite(age) else None
        parts.append(normalize_category(first_day))
    return str(parts[0]) if len(parts) == 1 else join_key(parts)


def parse_numbers(
    columns: Sequence[str], row: Mapping[str, Any], format: CsvFormat = PLAIN
) -> Array:
    """The continuous columns as float64, NaN where the row has none; text is as in CSV files."""
    numbers = pack_numbers(len(columns), map(row.get, columns, repeat(math.nan)))
    if numbers is None:
        values = (math.nan if value is None else value for value in map(row.get, columns))
        numbers = pack_numbers(len(columns), values)
    if numbers is None:
        numbers = _parse_mixed_numbers(columns, row, format)
    if np.isinf(numbers).any():
        column = columns[int(np.flatnonzero(np.isinf(numbers))[0])]
        problem = f"the value is {row[column]}; it must be finite. Leave it out if unknown"
        raise DataError(f"column {column!r}: {problem}")
    return numbers


def pack_numbers(n_numbers: int, values: Iterable[Any]) -> Array | None:
    """A float64 array of Python numbers, fast; None if a value is something else."""
    try:
        return np.frombuffer(_packer(n_numbers).pack(*values))
    except (struct.error, OverflowError):
        return None


@cache
def _packer(n_numbers: int) -> struct.Struct:
    return struct.Struct(f"{n_numbers}d")


def _parse_mixed_numbers(
    columns: Sequence[str], row: Mapping[str, Any], format: CsvFormat
) -> Array:
    """The columns where some values are text or other types."""
    values = [row.get(column) for column in columns]
    for i, value in enumerate(values):
        if isinstance(value, str) and value in ("", NOT_A_NUMBER):
            values[i] = None
        elif isinstance(value, str) and not format.has_plain_numbers:
            values[i] = format.normalize_number(value) or f"not a number: {value}"
    try:
        numbers: Array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.shape != (len(columns),) or not all(map(_is_number, values)):
        column = columns[[_is_number(value) for value in values].index(False)]
        problem = f"{row[column]!r} is not a number. Give a number, or leave it out if unknown"
        raise DataError(f"column {column!r}: {problem}")
    return numbers


def _is_number(value: Any) -> bool:
    """Whether a numeric column of a file could hold the value."""
    if value is None:
        return True
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    if not isinstance(value, Number | np.bool_) or isinstance(value, complex | np.timedelta64):
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True
