"""Amounts of money: minor units, and several currencies through a table of rates."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn, normalize_category
from turncoat.data.sources import open_source
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat.data.schema import Schema

# ISO 4217: digits after the decimal point, by letters and by number, where they are not two.
_NO_DIGITS = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX VND VUV XAF XOF XPF"
_NO_DIGITS += " 108 152 262 324 352 392 174 410 600 646 800 704 548 950 952 953"
_THREE_DIGITS = "BHD IQD JOD KWD LYD OMR TND 048 368 400 414 434 512 788"
_MAX_CURRENCIES = 200
_MINOR_DIGITS = dict.fromkeys(_NO_DIGITS.split(), 0) | dict.fromkeys(_THREE_DIGITS.split(), 3)


@dataclass(frozen=True)
class RateTable:
    """What one unit of each currency is worth in a common one, possibly by date.

    A rate holds from its date on until the next; the first holds before its date, too.
    """

    rows: tuple[tuple[str, str, float], ...]  # currency, ISO date or "" for always, rate; sorted

    @classmethod
    def from_table(cls, table: Any, source: str = "rates") -> RateTable:
        """Rates by currency, or by currency and date; errors name `source`."""
        if not isinstance(table, Mapping) or not table:
            rule = "must map currencies to rates, or to rates by date"
            raise ConfigError(f"{source} {rule}; found {table!r}")
        rows = []
        for name, value in table.items():
            dated = value if isinstance(value, Mapping) else {"": value}
            for day, rate in dated.items():
                rows.append((normalize_currency(name) or "", _check_date(day, source), rate))
                is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
                if not is_number or not 0 < rate < math.inf:
                    where = f"{source}: the rate of {name!r}" + (f" from {day}" if day else "")
                    raise ConfigError(f"{where} is {rate!r}; it must be a number above 0")
        keys = [row[:2] for row in rows]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ConfigError(f"{source}: the rate of {' '.join(twice[0]).strip()} is there twice")
        return cls(tuple(sorted((name, day, float(rate)) for name, day, rate in rows)))

    @classmethod
    def from_file(cls, path: Path) -> RateTable:
        """Rates in a CSV or Parquet file with the columns currency, rate and, optionally, date."""
        source = open_source(path)
        missing = [name for name in ("currency", "rate") if name not in source.columns]
        if missing:
            found = f"{path}: lacks the column {missing[0]!r}; it has {', '.join(source.columns)}"
            raise DataError(f"{found}. A table of rates has currency, rate and, if needed, date")
        dated = "date" in source.columns
        frame = source.read([*("currency", "rate"), *["date"] * dated], ["rate"])
        table: dict[str, dict[str, float]] = {}
        days = frame["date"].cast(pl.String) if dated else [""] * frame.height
        for name, rate, day in zip(
            frame["currency"].cast(pl.String), frame["rate"], days, strict=True
        ):
            rates = table.setdefault(str(name), {})
            if day in rates:
                raise ConfigError(f"{path}: the rate of {name} {day} is there twice")
            rates[day or ""] = rate
        return cls.from_table(table, str(path))

    def to_table(self) -> dict[str, Any]:
        """What `from_table` reads."""
        table: dict[str, Any] = {}
        for name, day, rate in self.rows:
            if day:
                table.setdefault(name, {})[day] = rate
            else:
                table[name] = rate
        return table

    @cached_property
    def _steps(self) -> dict[str, tuple[list[float], list[float]]]:
        """When rates begin, in seconds, and the rates, by currency."""
        steps: dict[str, tuple[list[float], list[float]]] = {}
        for name, day, rate in self.rows:
            starts, rates = steps.setdefault(name, ([], []))
            starts.append(_start_of(day) if day else -math.inf)
            rates.append(rate)
        return steps

    @cached_property
    def base(self) -> str | None:
        """The currency of all amounts: the one whose rate is always 1."""
        ones = (name for name, (_, rates) in self._steps.items() if set(rates) == {1.0})
        return next(ones, None)

    @property
    def currencies(self) -> tuple[str, ...]:
        """Every currency with a rate."""
        return tuple(self._steps)

    def find_rate(self, currency: str | None, time: float) -> float:
        """The rate at a time in seconds; NaN if there is none."""
        if currency not in self._steps:
            return math.nan
        starts, rates = self._steps[currency]
        return rates[max(bisect_right(starts, time) - 1, 0)]

    def find_rates(self, currencies: CategoryColumn, times: Array) -> Array:
        """`find_rate` of every row [rows]."""
        found = np.full(len(times), math.nan)
        for code, value in enumerate(currencies.values):
            name = normalize_currency(value)
            if name in self._steps:
                rows = np.flatnonzero(currencies.codes == code)
                starts, rates = map(np.array, self._steps[name])
                steps = np.searchsorted(starts, times[rows], side="right") - 1
                found[rows] = rates[np.maximum(steps, 0)]
        return found


def normalize_currency(value: Any) -> str | None:
    """The spelling of a currency: EUR for `eur `; None if it is missing."""
    text = normalize_category(value)
    return None if text is None or not text.strip() else text.strip().upper()


def minor_units_in(currency: str | None) -> float:
    """How many minor units a unit has: 100, or as the currency has it."""
    return 10.0 ** _MINOR_DIGITS.get(currency or "", 2)


class OriginalMoney(NamedTuple):
    """A row before its money became the common currency."""

    currency: str | None  # None is missing
    numbers: Array  # [continuous columns] float64; money is in units of `currency`


def convert_columns(
    schema: Schema, numbers: dict[str, Array], currencies: CategoryColumn | None, times: Array
) -> tuple[Array | None, dict[str, Array]]:
    """Convert the columns of money in place: into units, and into the common currency.

    Returns the rate of every row, NaN if there is none, and the columns in units of their own
    currencies; None and no columns without currencies.
    """
    units: Array | float = 100.0
    rates = None
    if currencies is not None and schema.rates is not None:
        rates = schema.rates.find_rates(currencies, times)
        by_code = [minor_units_in(normalize_currency(value)) for value in currencies.values]
        units = np.array([*by_code, 100.0])[currencies.codes]
    for column in schema.minor_units:
        numbers[column] = numbers[column] / units
    if rates is None:
        return None, {}
    original = {column: numbers[column] for column in schema.money_columns}
    numbers |= {column: own * rates for column, own in original.items()}
    return rates, original


def convert_row(
    schema: Schema, numbers: Array, currency: Any, time: float
) -> tuple[Array, OriginalMoney | None]:
    """`convert_columns` of one row's continuous columns, to the same bits."""
    name, in_units = normalize_currency(currency), numbers.copy()
    for place in schema.minor_unit_places:
        in_units[place] /= minor_units_in(name)
    if schema.rates is None:
        return in_units, None
    converted, rate = in_units.copy(), schema.rates.find_rate(name, time)
    for place in schema.money_places:
        converted[place] *= rate
    return converted, OriginalMoney(name, in_units)


def to_minor_units(value: float, currency: Any) -> float:
    """The number of minor units that is read as `value`, a whole one if there is one; NaN stays."""
    unit = minor_units_in(normalize_currency(currency))
    near = value * unit
    if not math.isfinite(near):
        return math.nan
    candidates: list[float] = [float(round(near)), near]
    for towards in (math.inf, -math.inf):
        step = near
        for _ in range(3):
            step = math.nextafter(step, towards)
            candidates.append(step)
    return next((one for one in candidates if one / unit == value), near)


def estimate_rates(
    amounts: pl.Series, currencies: pl.Series, in_minor_units: bool
) -> tuple[RateTable, dict[str, int]] | None:
    """Rates that make the median amount equal in all currencies, and the rows of each.

    The most frequent currency has rate 1. None if the values are not currencies, or if one has no
    amount above 0.
    """
    names = currencies.cast(pl.String).map_elements(normalize_currency, pl.String)
    known = names.drop_nulls().unique()
    is_code = known.str.contains(r"^([A-Z]{3}|[0-9]{3})$").all()
    if not is_code or not 0 < len(known) <= _MAX_CURRENCIES:
        return None
    rows = pl.DataFrame({"name": names, "paid": amounts}).drop_nulls("name")
    paid = pl.col("paid").fill_nan(None)
    medians = rows.group_by("name").agg(pl.len(), median=paid.filter(paid > 0).median())
    if medians["median"].null_count():
        return None
    medians = medians.sort("len", "name", descending=[True, False])
    sizes = {}
    for name, _, median in medians.rows():
        sizes[name] = median / (minor_units_in(name) if in_minor_units else 1.0)
    base = next(iter(sizes.values()))
    table = {name: float(f"{base / size:.4g}") for name, size in sizes.items()}
    return RateTable.from_table(table), dict(zip(medians["name"], medians["len"], strict=True))


def _check_date(day: Any, source: str) -> str:
    """A date as ISO text; "" for none."""
    text = day.isoformat() if isinstance(day, date) else str(day)
    if text:
        try:
            return date.fromisoformat(text[:10]).isoformat()
        except ValueError as problem:
            rule = "a rate holds from an ISO date such as 2024-01-31 on"
            raise ConfigError(f"{source}: {rule}; found {text!r}") from problem
    return text


def _start_of(day: str) -> float:
    """Seconds from 1970 to the start of a day (UTC)."""
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def list_without_rate(currencies: CategoryColumn, rates: Array) -> list[str]:
    """The currencies that have no rate, and on how many rows, in words."""
    is_missing = np.isnan(rates)
    counts = np.bincount(currencies.codes[is_missing] + 1, minlength=len(currencies.values) + 1)
    names = ["no currency", *currencies.values]
    return [f"{n:,} in {name}" for name, n in zip(names, counts.tolist(), strict=True) if n]
