"""One transaction as a mapping, as a live service has it, read by the same rules as a file."""

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
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.sources import NOT_A_NUMBER
from turncoat.errors import DataError

MAX_TIME_S = 1e11  # seconds, the year 5138: times further from zero have a wrong unit
# 03/04/2024 may be in March or in April: `time_format` has to say.
_YEAR_FIRST = r"^\s*\d{4}[-/]"
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_WRITTEN = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|NaN"
)  # as polars reads numbers


def text_times(values: pl.Series, written: str | None) -> pl.Series:
    """Text as numbers or, if that fails, as dates: in the format `written`, else with the year first. Null is not a time."""
    if written is None:
        numbers = values.cast(pl.Float64, strict=False)
        if numbers.null_count() == values.null_count() or numbers.null_count() < 0.5 * len(values):
            return numbers
    try:
        dates = values.str.to_datetime(written, strict=False, time_unit="us")
    except pl.exceptions.PolarsError:  # nothing in the column is a date
        return pl.Series(values.name, [None] * len(values), dtype=pl.Datetime("us"))
    return dates if written else dates.set(~values.str.contains(_YEAR_FIRST).fill_null(False), None)


def to_seconds(values: pl.Series, schema: Schema) -> pl.Series | None:
    """Float64 seconds: of numeric times since their own zero, of dates since 1970; None if the values are no times at all."""
    if schema.time_format is not None and values.dtype.is_integer():
        values = values.cast(pl.String)  # 20240131
    if values.dtype == pl.String:
        values = text_times(values, schema.time_format)
    if values.dtype.is_temporal() and values.dtype != pl.Time and values.dtype != pl.Duration:
        instants = values.cast(pl.Datetime("us")).dt.timestamp("us").cast(pl.Float64).to_numpy()
        return pl.Series(
            values.name, instants / 1e6
        )  # NumPy divides as Python does; polars multiplies by the inverse
    if values.dtype.is_numeric():
        return values.cast(pl.Float64) * TIME_UNITS[schema.time_unit]
    return None


class TransactionRow(NamedTuple):
    """One transaction as features take it: columns in the order of the schema, names however they are spelled."""

    time: float  # seconds
    numbers: Array  # [continuous columns] float64; NaN is missing
    categories: Sequence[Any]  # [categorical columns]; None is missing
    tracked: Sequence[Any]  # [tracked columns]
    counterparty: str | None  # the counterparty


def parse_row(schema: Schema, row: Mapping[str, Any]) -> TransactionRow:
    """The row of a mapping from column names to values; absent is missing."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"a live row is a mapping from column names to values; found {type(row).__name__}"
        )
    time, numbers = parse_time(schema, row), parse_numbers(schema.continuous, row)
    counterparty = (
        None if schema.counterparty is None else normalize_category(row.get(schema.counterparty))
    )
    return TransactionRow(
        time,
        numbers,
        tuple(map(row.get, schema.categorical)),
        tuple(map(row.get, schema.tracked)),
        counterparty,
    )


def parse_time(schema: Schema, row: Mapping[str, Any]) -> float:
    """Seconds, as `read` gives them: of a number in the schema's unit, a date, or either as text."""
    value: Any = row.get(schema.time)
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    kind = value.__class__
    try:
        if kind is float or (kind is int and schema.time_format is None):
            time = value * TIME_UNITS[schema.time_unit]
        elif kind is datetime:
            time = (
                ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH)
                // _MICROSECOND
                / 1e6
            )
        else:
            times = None if kind is bool else to_seconds(pl.Series([value]), schema)
            time = math.nan if times is None or times[0] is None else times[0]
        if abs(time) <= MAX_TIME_S:
            return float(time)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    raise DataError(
        f"column {schema.time!r}: {value!r} is not a time. Give seconds, or a date as in the file the features were fitted on"
    )


def parse_customer(schema: Schema, row: Mapping[str, Any], time: float) -> str:
    """The customer's key, as `read` gives it; `time` is the row's, in seconds."""
    parts = [normalize_category(row.get(column)) for column in schema.customer]
    if not any(parts):
        raise DataError(
            f"column {schema.customer[0]!r}: the customer is missing. Every transaction needs one"
        )
    if schema.customer_age is not None:
        age = parse_numbers((schema.customer_age,), row)[0]
        parts.append(
            normalize_category(math.floor(time / 86400) - math.floor(age))
            if math.isfinite(age)
            else None
        )
    return str(parts[0]) if len(parts) == 1 else join_key(parts)


def parse_numbers(columns: Sequence[str], row: Mapping[str, Any]) -> Array:
    """The continuous columns, NaN where the row has none."""
    numbers = pack_numbers(len(columns), map(row.get, columns, repeat(math.nan)))
    if numbers is None:
        numbers = pack_numbers(
            len(columns), [math.nan if value is None else value for value in map(row.get, columns)]
        )
    if numbers is None:
        numbers = _any_numbers(columns, row)
    if np.isinf(numbers).any():
        wrong = columns[int(np.flatnonzero(np.isinf(numbers))[0])]
        raise DataError(
            f"column {wrong!r}: the value is {row[wrong]}, and must be finite. Leave it out if unknown"
        )
    return numbers


def pack_numbers(n_numbers: int, values: Iterable[Any]) -> Array | None:
    """An array of Python's numbers by the fastest way there is; None where one is something else."""
    try:
        return np.frombuffer(_packer(n_numbers).pack(*values))
    except (struct.error, OverflowError):
        return None


@cache
def _packer(n_numbers: int) -> struct.Struct:
    return struct.Struct(f"{n_numbers}d")


def _any_numbers(columns: Sequence[str], row: Mapping[str, Any]) -> Array:
    """The columns where some are text or something else."""
    values = [
        None
        if (value := row.get(column)).__class__ is str and value in ("", NOT_A_NUMBER)
        else value
        for column in columns
    ]
    try:
        numbers: Array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty(0)
    if numbers.shape != (len(columns),) or not all(map(_is_number, values)):
        wrong = next(
            column for column, value in zip(columns, values, strict=True) if not _is_number(value)
        )
        raise DataError(
            f"column {wrong!r}: {row[wrong]!r} is not a number. Give a number, or leave it out if unknown"
        )
    return numbers


def _is_number(value: Any) -> bool:
    """Whether a file's column of numbers could hold the value."""
    if value is None:
        return True
    if isinstance(value, str):
        return _WRITTEN.fullmatch(value) is not None
    if not isinstance(value, Number | np.bool_) or isinstance(value, complex | np.timedelta64):
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False
    return True
