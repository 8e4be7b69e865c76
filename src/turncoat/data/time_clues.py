"""Which columns can be the time of a transaction, and how their values are to be read."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from turncoat.data.clues import (
    ID_WORDS,
    OTHER_TIME_WORDS,
    RELATIVE_WORDS,
    TIME_WORDS,
    SampledColumn,
    number,
)
from turncoat.data.schema import TIME_UNITS

_YEAR_FIRST = r"^\s*\d{4}[-/]"
_DAY_AND_MONTH = re.compile(r"(\d{1,2})([/.\- ])(\d{1,2}|[A-Za-z]{3,9})\2(\d{4}|\d{2})(.*)")
_TIME_OF_DAY = re.compile(r"(,? +|T)(\d{1,2}):\d{2}(:\d{2})?(\.\d+)?( ?)([AaPp][Mm])?")
ONLY_TIME_OF_DAY = r"^\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?$"
_EPOCHS = (("s", 1e8, 1e10), ("ms", 1e11, 1e13), ("us", 1e14, 1e16), ("ns", 1e17, 1e19))
_UNIT_WORDS = {
    "step": "h",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    "minute": "min",
    "minutes": "min",
    "ms": "ms",
}


@dataclass(frozen=True)
class Moment:
    """One way to read a column as time."""

    column: SampledColumn
    values: pl.Series  # as dates or numbers, in the order of the file
    score: float
    reason: str
    unit: str = "s"
    form: str | None = None
    warning: str | None = None


def as_moment(column: SampledColumn) -> Moment | None:
    """A column as the time of a transaction, if it can be that."""
    if column.n_known == 0:
        return None
    named = column.says(TIME_WORDS) is not None
    score = (
        2.0 * named
        - 6.0 * (column.says(OTHER_TIME_WORDS) is not None)
        + (column.n_known == len(column.values))
    )
    if column.values.dtype in (pl.Datetime, pl.Date):
        return Moment(
            column, column.values, score + 4 + (column.values.dtype == pl.Datetime), "dates"
        )
    if column.numbers is not None:
        return _numeric_moment(column, column.numbers, named, score)
    return _written_moment(column, score) if column.values.dtype == pl.String else None


def _numeric_moment(
    column: SampledColumn, numbers: pl.Series, named: bool, score: float
) -> Moment | None:
    texts = column.values.drop_nulls().cast(pl.String)
    if named and (form := _compact_form(texts)) is not None:
        return Moment(column, numbers, score + 4, f"dates such as {texts[0]}", form=form)
    size = number(numbers.abs().median())
    unit = next((unit for unit, least, most in _EPOCHS if least <= size < most), None)
    rising = numbers.is_sorted() and column.n_distinct > 2
    if unit is not None and (named or (rising and not column.says(ID_WORDS))):
        return Moment(
            column, numbers, score + 3, f"numbers as large as times in {unit} since 1970", unit
        )
    if not named or column.n_distinct < 3 or column.says(RELATIVE_WORDS):
        return None
    unit = next((_UNIT_WORDS[word] for word in column.words if word in _UNIT_WORDS), "s")
    warning = f"The times in {column.name!r} were taken to be in units of {TIME_UNITS[unit]:g} seconds; if not, correct `time_unit`."
    return Moment(
        column,
        numbers,
        score + rising,
        f"numbers, and the name says {column.says(TIME_WORDS)!r}",
        unit,
        warning=warning,
    )


def _compact_form(texts: pl.Series) -> str | None:
    """The format of whole numbers such as 20240131 or 20240131235959."""
    for digits, form in ((6, "%Y%m%d"), (12, "%Y%m%d%H%M%S")):
        if (
            texts.str.contains(rf"^(19|20)\d{{{digits}}}$").all()
            and _share(_dates(texts, form), len(texts)) == 1
        ):
            return form
    return None


def _written_moment(column: SampledColumn, score: float) -> Moment | None:
    texts = column.values.drop_nulls()
    first = str(texts[0])
    if (
        number(texts.str.contains(_YEAR_FIRST).mean()) >= 0.95
        and _share(dates := _dates(column.values, None), len(texts)) >= 0.95
    ):
        return Moment(column, dates, score + 4 + (":" in first), f"dates such as {first!r}")
    ways = {
        form: dates
        for form in _forms(first)
        if _share(dates := _dates(column.values, form), column.n_known) >= 0.95
    }
    if not ways:
        return None
    form, why = _chosen(ways, first)
    warning = None
    if why is None:
        why = "read with the day first"
        warning = f"The dates in {column.name!r}, such as {first!r}, can be read with the day or the month first. The day was taken."
    return Moment(
        column,
        ways[form],
        score + 4 + (":" in first),
        f"dates such as {first!r}, {why}",
        form=form,
        warning=warning,
    )


def _chosen(ways: dict[str, pl.Series], first: str) -> tuple[str, str | None]:
    """One of the formats that fit, and what speaks for it."""
    if len(ways) == 1:
        return next(iter(ways)), "which only one order of day and month can be"
    in_order = [form for form, dates in ways.items() if dates.drop_nulls().is_sorted()]
    if len(in_order) == 1:
        return in_order[0], "in the order of day and month in which the file is sorted"
    if first.rstrip()[-1:] in "Mm":
        return next(
            form for form in ways if form.startswith("%m")
        ), "with the month first, as the clock of twelve hours suggests"
    return next(iter(ways)), None


def _forms(text: str) -> list[str]:
    """The formats that a date with its year last can have, day first before month first."""
    match = _DAY_AND_MONTH.fullmatch(text.strip())
    if match is None:
        return []
    _, sign, month, year, rest = match.groups()
    clock = _TIME_OF_DAY.fullmatch(rest)
    if rest and clock is None:
        return []
    end = sign + ("%Y" if len(year) == 4 else "%y")
    if clock is not None:
        gap, _, seconds, fraction, space, half = clock.groups()
        end += (
            gap
            + ("%I" if half else "%H")
            + ":%M"
            + (":%S" if seconds else "")
            + ("%.f" if fraction else "")
            + space
        )
        end += "%p" if half else ""
    if month.isalpha():
        return [f"%d{sign}{'%b' if len(month) == 3 else '%B'}{end}"]
    return [f"%d{sign}%m{end}", f"%m{sign}%d{end}"]


def _dates(texts: pl.Series, form: str | None) -> pl.Series:
    try:
        return texts.str.to_datetime(form, strict=False, time_unit="us")
    except pl.exceptions.PolarsError:
        return pl.Series(texts.name, [None] * len(texts), dtype=pl.Datetime("us"))


def _share(dates: pl.Series, of: int) -> float:
    """Share of so many texts that became dates."""
    return (len(dates) - dates.null_count()) / of
