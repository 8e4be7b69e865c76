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
from turncoat.data.categories import category_text, key_text
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.sources import NOT_A_NUMBER
from turncoat.data.times import LATEST, seconds
from turncoat.errors import DataError

_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_WRITTEN = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|nan|NaN"
)  # as polars reads numbers


class Row(NamedTuple):
    """One transaction as features take it: columns in the order of the schema, names however they are spelled."""

    time: float  # seconds
    numbers: Array  # [continuous columns] float64; NaN is missing
    names: Sequence[Any]  # [categorical columns]; None is missing
    habits: Sequence[Any]  # [habit columns]
    counterparty: str | None  # the counterparty


def read_row(schema: Schema, row: Mapping[str, Any]) -> Row:
    """The row of a mapping from column names to values; absent is missing."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"a live row is a mapping from column names to values; found {type(row).__name__}"
        )
    time, numbers = row_time(schema, row), row_numbers(schema.continuous, row)
    counterparty = (
        None if schema.counterparty is None else category_text(row.get(schema.counterparty))
    )
    return Row(
        time,
        numbers,
        tuple(map(row.get, schema.categorical)),
        tuple(map(row.get, schema.habits)),
        counterparty,
    )


def row_time(schema: Schema, row: Mapping[str, Any]) -> float:
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
            times = None if kind is bool else seconds(pl.Series([value]), schema)
            time = math.nan if times is None or times[0] is None else times[0]
        if abs(time) <= LATEST:
            return float(time)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    raise DataError(
        f"column {schema.time!r}: {value!r} is not a time. Give seconds, or a date as in the file the features were fitted on"
    )


def row_customer(schema: Schema, row: Mapping[str, Any], time: float) -> str:
    """The customer's key, as `read` gives it; `time` is the row's, in seconds."""
    parts = [category_text(row.get(column)) for column in schema.customer]
    if not any(parts):
        raise DataError(
            f"column {schema.customer[0]!r}: the customer is missing. Every transaction needs one"
        )
    if schema.customer_age is not None:
        age = row_numbers((schema.customer_age,), row)[0]
        parts.append(
            category_text(math.floor(time / 86400) - math.floor(age))
            if math.isfinite(age)
            else None
        )
    return str(parts[0]) if len(parts) == 1 else key_text(parts)


def row_numbers(columns: Sequence[str], row: Mapping[str, Any]) -> Array:
    """The continuous columns, NaN where the row has none."""
    numbers = packed_numbers(len(columns), map(row.get, columns, repeat(math.nan)))
    if numbers is None:
        numbers = packed_numbers(
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


def packed_numbers(n_numbers: int, values: Iterable[Any]) -> Array | None:
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
