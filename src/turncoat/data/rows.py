"""One transaction as a mapping, as a live service has it, read by the same rules as a file."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from turncoat.data.categories import Array
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.errors import DataError


def row_time(schema: Schema, row: Mapping[str, Any]) -> float:
    """Seconds, as `read` gives them: of a number in the schema's unit, a date, or a date as text."""
    value = row.get(schema.time)
    moment = value
    if schema.time_format is not None and isinstance(value, str | int) and not isinstance(value, bool):
        moment = pl.Series([str(value)]).str.to_datetime(schema.time_format, strict=False, time_unit="us").item()
    elif isinstance(value, str):
        moment = _number_or_date(value)
    if isinstance(moment, np.datetime64):
        moment = moment.astype("datetime64[us]").item()
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(moment, int | float | np.integer | np.floating) and not isinstance(moment, bool) and math.isfinite(moment):
        return float(moment) * TIME_UNITS[schema.time_unit]
    raise DataError(f"column {schema.time!r}: {value!r} is not a time. Give seconds, or a date as in the file the features were fitted on")


def _number_or_date(text: str) -> float | datetime | None:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def row_numbers(columns: Sequence[str], row: Mapping[str, Any]) -> Array:
    """The continuous columns, NaN where the row has none."""
    values = list(map(row.get, columns))
    try:
        numbers: Array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        wrong = next(column for column, value in zip(columns, values, strict=True) if not _is_number(value))
        raise DataError(f"column {wrong!r}: {row[wrong]!r} is not a number. Give a number, or leave it out if unknown") from None
    if np.isinf(numbers).any():
        wrong = columns[int(np.flatnonzero(np.isinf(numbers))[0])]
        raise DataError(f"column {wrong!r}: the value is {row[wrong]}, and must be finite. Leave it out if unknown")
    return numbers


def _is_number(value: Any) -> bool:
    try:
        return value is None or isinstance(operator.index(value) if isinstance(value, int) else float(value), int | float)
    except (TypeError, ValueError):
        return False
