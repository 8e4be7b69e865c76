"""When: numbers, dates and text as seconds, by the same rules for a file and for one live row."""

from __future__ import annotations

import polars as pl

from turncoat.data.schema import TIME_UNITS, Schema

LATEST = 1e11  # seconds, the year 5138: times further from zero have a wrong unit
# 03/04/2024 may be in March or in April: `time_format` has to say.
_YEAR_FIRST = r"^\s*\d{4}[-/]"


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


def seconds(values: pl.Series, schema: Schema) -> pl.Series | None:
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
