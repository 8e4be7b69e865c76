"""Local clocks: time zones and offsets, by the same rules for columns and single rows."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
import polars as pl

from turncoat.arrays import Array

# At the end of a text with a time of day: a name of UTC, and an offset from it.
UTC_NAME = r"\s*(UTC|GMT)\s*$"
WRITTEN_OFFSET = r":\d{2}[^+\-Zz]*([Zz]|[+-]\d{2}(?::?\d{2})?)\s*$"
_OFFSET = re.compile(r"(?:UTC|GMT)?([+-]?)(\d{1,2})(?::(\d{2}))?|([+-])(\d{2})(\d{2})")
_MAX_HOURS = 14
_SLOT_S = 900.0  # offsets change at full quarters of an hour
_GAP = pl.duration(hours=3)  # longer than clocks are ever moved

Zone = str | float  # a name of the time zone database, or seconds ahead of UTC


@lru_cache(maxsize=10_000)
def parse_zone(text: str) -> Zone | None:
    """The zone of a name such as Europe/Berlin, or of an offset such as +02:00; None if neither."""
    text = text.strip()
    if text.upper() in ("Z", "UTC", "GMT"):
        return 0.0
    if match := _OFFSET.fullmatch(text.upper()):
        sign, hours, minutes = match.group(1), match.group(2), match.group(3)
        if hours is None:
            sign, hours, minutes = match.group(4), match.group(5), match.group(6)
        if int(hours) <= _MAX_HOURS and int(minutes or 0) < 60:
            seconds = 3600.0 * int(hours) + 60.0 * int(minutes or 0)
            return -seconds if sign == "-" else seconds
        return None
    try:
        _in_zone(pl.Series([0]), text)
    except pl.exceptions.PolarsError:
        return None
    return text


def _in_zone(microseconds: pl.Series, zone: str) -> pl.Series:
    return microseconds.cast(pl.Datetime("us", "UTC")).dt.convert_time_zone(zone)


def to_utc(local: pl.Series, zone: Zone) -> pl.Series:
    """Dates without an offset, on a zone's clock, as microseconds since 1970.

    A time that occurs twice is the earlier one; a time that was skipped is read as if the clock had
    not moved yet.
    """
    plain = local.cast(pl.Datetime("us"))
    if isinstance(zone, float):
        return plain.dt.timestamp("us") - round(zone * 1e6)

    def localize(dates: pl.Expr) -> pl.Expr:
        return dates.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")

    frame = pl.DataFrame({"local": plain})
    column = pl.col("local")
    moved = localize(column - _GAP) + _GAP
    found = frame.select(pl.coalesce(localize(column), moved).dt.timestamp("us"))
    return found.to_series()


def find_utc_offsets(times: Array, zone: Zone) -> Array:
    """How far a zone's clock is ahead of UTC at each time, in seconds [N]."""
    if isinstance(zone, float):
        return np.full(len(times), zone)
    slots, rows = np.unique(np.floor(times / _SLOT_S), return_inverse=True)
    instants = _in_zone(pl.Series((slots * _SLOT_S * 1e6).astype(np.int64)), zone)
    offsets = instants.dt.base_utc_offset() + instants.dt.dst_offset()
    seconds: Array = offsets.dt.total_seconds().to_numpy().astype(np.float64)
    return seconds[rows]


def find_utc_offset(time: float, zone: Zone) -> float:
    """`find_utc_offsets` of one time."""
    return zone if isinstance(zone, float) else _find_slot_offset(time // _SLOT_S, zone)


@lru_cache(maxsize=100_000)
def _find_slot_offset(slot: float, zone: str) -> float:
    return float(find_utc_offsets(np.array([slot * _SLOT_S]), zone)[0])


def extract_offset(value: Any) -> str | None:
    """The offset at the end of a written time; None if there is none."""
    if not isinstance(value, str):
        return None
    match = re.search(WRITTEN_OFFSET, re.sub(UTC_NAME, "Z", value))
    return None if match is None else match.group(1)
