"""Numbers and times as text, exactly as the data have them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

from turncoat.data.schema import Schema

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# Not `strftime`, whose names follow the locale.
_FIRST_MONTHS = ("January", "February", "March", "April", "May", "June")
_MONTHS = (*_FIRST_MONTHS, "July", "August", "September", "October", "November", "December")
_EARLIEST_S = -6e10  # the year 68: dates before it may not exist
_DAY_S = 86_400
_PLAIN_RANGE = 1e-6, 1e15  # numbers beyond it are written with an exponent
_MAX_TIMES = 1e6
_MAX_CHARS = 60
_MAX_DIGITS = 17  # of any number


def format_number(value: float) -> str:
    """A number with all its digits, thousands separated."""
    size = abs(float(value))
    digits = repr(size)
    if size == 0 or _PLAIN_RANGE[0] <= size < _PLAIN_RANGE[1]:
        digits = f"{Decimal(digits):,f}"
    return f"{'-' if value < 0 else ''}{digits.removesuffix('.0')}"


def format_amount(value: float, currency: str | None = None) -> str:
    """An amount with all its digits, at least two after a decimal point, after its currency."""
    text = format_number(value)
    if text[-2:-1] == ".":
        text += "0"
    return add_currency(text, currency)


def add_currency(text: str, currency: str | None) -> str:
    """A number as text, after its currency if there is one: SEK 450."""
    return text if currency is None else f"{shorten(currency)} {text}"


def format_rounded(value: float, n_digits: int = 3) -> str:
    """A number with a few significant digits, thousands separated."""
    return format_number(float(f"{value:.{n_digits}g}"))


def format_bound(bound: float, value: float, is_above: bool) -> str:
    """A bound with as few digits, three at least, as keep `value` on its side."""
    n_digits = 3
    while n_digits < _MAX_DIGITS and (value > float(f"{bound:.{n_digits}g}")) != is_above:
        n_digits += 1
    return format_rounded(bound, n_digits)


def format_times(ratio: float) -> str:
    """A multiple such as 0.5×, 2.2×, 12× or 1,220×: two or three digits."""
    if ratio >= _MAX_TIMES:
        return f"over {_MAX_TIMES:,.0f}×"
    if ratio >= 10:
        return f"{float(f'{ratio:.3g}'):,.0f}×"
    return f"{ratio:.2g}×" if ratio >= 1e-3 else "less than 0.001×"


def shorten(text: str) -> str:
    """A text from the data, cut if it is very long.

    Characters that do not print, such as those that command a terminal or turn the direction of
    writing, are escaped; a text with spaces around it is in quotes.
    """
    if text != text.strip() or not text.isprintable():
        text = repr(text)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


@dataclass(frozen=True)
class Clock:
    """Times as text: dates in a time zone, or days from a start that only the user knows."""

    zone: tzinfo | None = UTC  # None: times have no calendar
    is_local: bool = False  # each transaction has a clock of its own

    @classmethod
    def of(cls, schema: Schema) -> Clock:
        """The clock of a schema whose times have a calendar."""
        zone = schema.default_zone
        if isinstance(zone, str):
            return cls(ZoneInfo(zone), schema.time_zone_column is not None)
        offset = timezone(timedelta(seconds=zone)) if zone else UTC
        return cls(offset, schema.time_zone_column is not None)

    def localize(self, utc_offset_s: float) -> Clock:
        """The clock of a transaction that is this far ahead of UTC."""
        if not self.is_local or self.zone is None:
            return self
        return Clock(timezone(timedelta(seconds=utc_offset_s), "local time"))

    def _locate(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(max(seconds, _EARLIEST_S), self.zone)

    def format_time(self, seconds: float) -> str:
        """The time of day, to the minute, with its zone."""
        if self.zone is None:
            minutes = int(seconds % _DAY_S) // 60
            return f"{minutes // 60:02d}:{minutes % 60:02d}"
        moment = self._locate(seconds)
        return f"{moment.hour:02d}:{moment.minute:02d} {moment.tzname()}"

    def format_weekday(self, seconds: float) -> str:
        """The name of the day, or its number in weeks from the start."""
        if self.zone is None:
            return f"day {int(seconds // _DAY_S % 7) + 1} of the file's week"
        return WEEKDAYS[self._locate(seconds).weekday()]

    def format_date(self, seconds: float, with_year: bool = False) -> str:
        """The day and the month of a calendar time."""
        moment = self._locate(seconds)
        text = f"{moment.day} {_MONTHS[moment.month - 1]}"
        return f"{text} {moment.year}" if with_year else text

    def format_moment(self, seconds: float) -> str:
        """Weekday, date and time; without a calendar the days from the start."""
        if self.zone is None:
            return f"day {math.floor(seconds / _DAY_S):,}, {self.format_time(seconds)}"
        date = self.format_date(seconds, with_year=True)
        return f"{self.format_weekday(seconds)} {date}, {self.format_time(seconds)}"

    def format_iso(self, seconds: float) -> str | None:
        """The time in ISO 8601 with its offset; None without a calendar."""
        return None if self.zone is None else self._locate(seconds).isoformat()


NO_CALENDAR = Clock(None)
