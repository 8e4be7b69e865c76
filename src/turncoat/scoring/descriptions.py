"""Features as text, grouped by what a person would look at: amount, pace, hour, a column.

Values of the file are shown as they were given; only what is computed from a history is rounded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.categories import normalize_category
from turncoat.data.parsing import TransactionRow
from turncoat.data.schema import Schema
from turncoat.features.plan import FeaturePlan
from turncoat.scoring.formatting import (
    NO_CALENDAR,
    Clock,
    add_currency,
    format_amount,
    format_bound,
    format_number,
    format_rounded,
    format_times,
    shorten,
)

HISTORY, OTHERS, AVERAGE = "history", "others", "average transaction"
PATH_TEXT = "this customer's path"
AMOUNT, PACE, HOUR, WEEKDAY = "amount", "pace", "hour", "weekday"
MISSING, FIRST = "missing fields", "first transaction"
_SPANS = ("hour", "day", "week", "month")
_WINDOWS = tuple(f"{kind}_{span}" for kind in ("count", "sum") for span in _SPANS)
_FEATURES = {  # engineered features, by source
    AMOUNT: ("amount_z", "amount_to_mean", "amount_to_max", "amount_to_last"),
    PACE: ("since_last", "since_first", "n_before", *_WINDOWS),
    HOUR: ("hour_habit", "hour_cos", "hour_sin"),
    WEEKDAY: ("weekday_habit", "weekday"),
    MISSING: ("n_missing", "n_missing_change"),
    FIRST: ("is_first",),
}
_AVERAGE_TEXT = "the baseline: an average transaction"
_RESERVED = frozenset((*_FEATURES, HISTORY, OTHERS, AVERAGE))
_MIN_KNOWN = 0.1  # log(1 + outcomes); below it the counterparty's risk is that of all
_UNITS = (("minutes", 60), ("hours", 3600), ("days", 86400))
_MAX_EXPONENT = 50.0
_MIN_USUAL = 1e-3  # amount that others are compared with
_CURRENCY = re.compile(r"(^|[_ .-])(currency|ccy)([_ .-]?code)?$", re.IGNORECASE)


class DescribedRow(NamedTuple):
    """A transaction as it was given, with its features."""

    continuous: Array  # [D]
    categorical: Array  # [J]
    given: TransactionRow


Describe = Callable[[DescribedRow], str]  # a row's text for one source


@dataclass(frozen=True)
class Values:
    """Finds the values of a transaction by column."""

    schema: Schema

    def number(self, row: TransactionRow, column: str) -> float:
        """A number of the file, money in units of its own currency; NaN if missing."""
        numbers = row.numbers if row.original is None else row.original.numbers
        return float(numbers[self.schema.continuous.index(column)])

    def converted_number(self, row: TransactionRow, column: str) -> float:
        """A number as the features have it, money in the common currency; NaN if missing."""
        return float(row.numbers[self.schema.continuous.index(column)])

    def restore_currency(self, row: TransactionRow, column: str, value: float) -> float:
        """A number of the features in the units of `number`, at the rate of the row."""
        schema = self.schema
        if row.original is None or schema.rates is None or column not in schema.money_columns:
            return value
        return value / schema.rates.find_rate(row.original.currency, row.time)

    def original_currency(self, row: TransactionRow, column: str) -> str | None:
        """The currency that a column of money was converted from; None for other columns."""
        if row.original is None or column not in self.schema.money_columns:
            return None
        return row.original.currency

    def text(self, row: TransactionRow, column: str) -> str | None:
        """A category or name in its canonical spelling; None if it is missing."""
        schema = self.schema
        for names, values in (
            (schema.counterparties, row.counterparties),
            (schema.categorical, row.categories),
            (schema.tracked, row.tracked),
        ):
            if column in names:
                return normalize_category(values[names.index(column)])
        return None

    @cached_property
    def currency_column(self) -> str | None:
        """The column that says the currency of amounts, by its name."""
        columns = (*self.schema.categorical, *self.schema.tracked)
        return next((column for column in columns if _CURRENCY.search(column)), None)

    def currency(self, row: TransactionRow) -> str | None:
        """The currency of the amount as given."""
        if row.original is not None:
            return row.original.currency
        return None if self.currency_column is None else self.text(row, self.currency_column)

    def format(self, row: TransactionRow, column: str) -> str:
        """A number of the file as it was given; money with its currency."""
        value = self.number(row, column)
        if math.isnan(value):
            return "missing"
        if column != self.schema.amount and column not in self.schema.money_columns:
            return format_number(value)
        text = format_amount(value, self.currency(row))
        has_rate = not math.isnan(self.converted_number(row, column))
        return text if has_rate else f"{text} without a rate"


@dataclass(frozen=True)
class Sources:
    """The source of each feature: a column of the file, or a group of engineered features."""

    continuous: tuple[str, ...]  # [D]
    categorical: tuple[str, ...]  # [J]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every source once, sorted, with history and the average transaction."""
        return tuple(sorted({HISTORY, AVERAGE, *self.continuous, *self.categorical}))

    @cached_property
    def places(self) -> Array:
        """Index into `names` of history, the average and every feature [2 + D + J]."""
        places = {name: place for place, name in enumerate(self.names)}
        every = (HISTORY, AVERAGE, *self.continuous, *self.categorical)
        return np.array([places[name] for name in every], dtype=np.int64)


class _Scale(NamedTuple):
    """Where a continuous feature is in a row, and its scale as in `Scales`."""

    place: int
    unit: float
    centre: float
    spread: float

    def restore(self, row: DescribedRow) -> float:
        """The feature in its own units, to the precision of float32."""
        return self.restore_cell(row.continuous.item(self.place))

    def restore_cell(self, cell: float) -> float:
        """A value of the panel in the feature's own units."""
        value = cell * self.spread + self.centre
        if self.unit <= 0:
            return value
        try:  # undoes a signed logarithm
            return math.copysign(self.unit * math.expm1(abs(value)), value)
        except OverflowError:
            return math.copysign(math.inf, value)


@dataclass(frozen=True)
class FeatureDescriber:
    """Assigns each feature of a plan to its source, and describes a row's value there."""

    plan: FeaturePlan
    history: str = HISTORY  # the text of that source
    clock: Clock = NO_CALENDAR

    @cached_property
    def sources(self) -> Sources:
        """The source of each continuous and each categorical feature."""
        plan, schema = self.plan, self.plan.schema
        found: dict[str, str] = {}
        if plan.engineered:
            found = {name: source for source, names in _FEATURES.items() for name in names}
        for column, groups in zip(plan.counterparties, plan.counterparty_groups, strict=True):
            found |= dict.fromkeys(chain.from_iterable(groups), _name_source(column))
        for source, column in self._columns.items():
            names = [column, f"no_{column}"]
            if plan.engineered:
                names += [f"new_{column}", f"changed_{column}"]
            found |= dict.fromkeys(names, source)
        if schema.amount is not None:
            found |= {schema.amount: AMOUNT, f"no_{schema.amount}": AMOUNT}
        columns = (plan.continuous, plan.categorical)
        return Sources(*(tuple(found[name] for name in names) for names in columns))

    @cached_property
    def describe(self) -> tuple[Describe, ...]:
        """For each of `sources.names`, the function that describes a row."""
        return tuple(map(self._choose, self.sources.names))

    @cached_property
    def _columns(self) -> Mapping[str, str]:
        """Columns of the file by source."""
        schema = self.plan.schema
        own = (*schema.continuous, *schema.categorical, *schema.tracked)
        columns = (*own, *schema.counterparties)
        return {_name_source(column): column for column in columns}

    @cached_property
    def _scales(self) -> Mapping[str, _Scale]:
        scales, names = self.plan.scales, self.plan.continuous
        parts = (scales.units, scales.centres, scales.spreads)
        kept = (part[scales.kept].tolist() for part in parts)
        values = enumerate(zip(names, *kept, strict=True))
        return {name: _Scale(place, *scale) for place, (name, *scale) in values}

    @cached_property
    def _codes(self) -> Mapping[str, int]:
        """Where each categorical feature is in a row."""
        return {name: place for place, name in enumerate(self.plan.categorical)}

    @cached_property
    def values(self) -> Values:
        """The values of the file's columns."""
        return Values(self.plan.schema)

    def is_raw_number(self, column: int) -> bool:
        """Whether a column of the panel, continuous ones first, is a number of the file."""
        names = self.plan.continuous
        return column < len(names) and names[column] in self.plan.schema.continuous

    def describe_range(
        self, source: str, column: int, bounds: tuple[float, float], row: DescribedRow
    ) -> str:
        """The value of a continuous column, and the range it is in, bounds on the panel's scale."""
        name = self.plan.continuous[column]
        text, value = self.values.format(row.given, name), self.values.number(row.given, name)
        restore_cell = self._scales[name].restore_cell

        def restore(bound: float) -> float:
            return self.values.restore_currency(row.given, name, restore_cell(bound))

        has_lower, has_upper = (math.isfinite(bound) for bound in bounds)
        low = format_bound(restore(bounds[0]), value, is_above=True) if has_lower else ""
        high = format_bound(restore(bounds[1]), value, is_above=False) if has_upper else ""
        if has_lower and has_upper:
            return f"{source} {text} ({low} to {high})"
        limit = f" (above {low})" if has_lower else f" (up to {high})" if has_upper else ""
        return f"{source} {text}{limit}"

    def _choose(self, source: str) -> Describe:
        if source == AVERAGE:
            return lambda _: _AVERAGE_TEXT
        if source == HISTORY:
            new = "no history yet" if self.history == HISTORY else self.history
            return lambda row: new if self._code(row, "is_first") == 1 else self.history
        schema, column = self.plan.schema, self._columns.get(source)
        if column is None:
            return partial(self._describe_group, source)
        if column in schema.continuous and column != schema.amount:
            return lambda row: f"{column} {self.values.format(row.given, column)}"
        describe = self._describe_category(column)
        if column not in self.plan.counterparties:
            return describe
        prefix = self.plan.counterparty_prefixes[self.plan.counterparties.index(column)]
        return partial(self._describe_counterparty, prefix, describe)

    def _number(self, row: DescribedRow, name: str) -> float:
        """A continuous feature in its own units; NaN if it is missing or unknown."""
        scale = self._scales.get(name)
        return math.nan if scale is None else scale.restore(row)

    def _code(self, row: DescribedRow, name: str) -> int:
        """The code of a categorical feature; -1 if it is missing or unknown."""
        place = self._codes.get(name)
        return -1 if place is None else int(row.categorical.item(place))

    def _describe_group(self, source: str, row: DescribedRow) -> str:
        """The text for a group of engineered features."""
        number, time = partial(self._number, row), row.given.time
        clock = self.clock.localize(row.given.utc_offset)
        if source == AMOUNT:
            return self._describe_amount(row)
        if source == PACE:
            return _describe_pace(number("since_last"), number("count_day"))
        if source == HOUR:
            return f"at {clock.format_time(time)}{_describe_habit(number('hour_habit'))}"
        if source == WEEKDAY:
            return clock.format_weekday(time) + _describe_habit(number("weekday_habit"))
        if source == MISSING:
            count = f"{max(0.0, number('n_missing')):.0f}"  # 0 for NaN, whose comparisons fail
            return f"{count} field{'' if count == '1' else 's'} missing"
        is_first = self._code(row, "is_first")
        return f"{FIRST} of this customer" if is_first else "not the first transaction"

    def _describe_amount(self, row: DescribedRow) -> str:
        text = f"amount {self.values.format(row.given, str(self.plan.schema.amount))}"
        amount, usual = self._find_usual(row, "amount_to_mean")
        return text + (self._compare(row, amount, usual, "this customer's usual") if usual else "")

    def _find_usual(self, row: DescribedRow, feature: str) -> tuple[float, float]:
        """The amount, and the usual one that a feature compares it with, 0 if there is none.

        Both are in the common currency.
        """
        column = self.plan.schema.amount
        amount = math.nan if column is None else self.values.converted_number(row.given, column)
        return amount, _find_usual(amount, self._number(row, feature))

    def _compare(self, row: DescribedRow, amount: float, usual: float, whose: str) -> str:
        """How many times the usual an amount is, and the usual in the currency of the row."""
        column, times = str(self.plan.schema.amount), format_times(amount / usual)
        about = format_rounded(self.values.restore_currency(row.given, column, usual))
        about = add_currency(about, self.values.original_currency(row.given, column))
        return f", {times} {whose} (about {about})"

    def _describe_category(self, column: str) -> Describe:
        """The category of a row, and whether it is rare, new or changed."""
        plan, place = self.plan, self._codes.get(column)
        rarities: tuple[str, ...] = ()
        if column in plan.schema.categorical and place is not None:
            vocabulary = plan.vocabularies[plan.schema.categorical.index(column)]
            # The last has code -1.
            rarities = ("",) * len(vocabulary.frequent) + (
                ", rare",
                ", not in the training data",
                "",
            )
        news = {f"new_{column}": ", new for this customer", f"changed_{column}": ", changed"}
        flags = [(self._codes[name], text) for name, text in news.items() if name in self._codes]

        def describe(row: DescribedRow) -> str:
            value = self.values.text(row.given, column)
            text = f"{column} {'missing' if value is None else shorten(value)}"
            if value is not None and rarities and place is not None:
                text += rarities[row.categorical.item(place)]
            more = (text for flag, text in flags if row.categorical.item(flag) == 1)
            return text + next(more, "")

        return describe

    def _describe_counterparty(self, prefix: str, describe: Describe, row: DescribedRow) -> str:
        """The counterparty's text with its fraud rate, its run of frauds and usual amount."""
        text, risk = describe(row), self._number(row, f"{prefix}_risk_month")
        if not math.isnan(risk):
            rate = 1 / (1 + math.exp(min(-risk, _MAX_EXPONENT)))
            is_known = not self._number(row, f"{prefix}_known_month") < _MIN_KNOWN
            known = f"fraud rate there about {rate:.1%}"
            text += f", {known if is_known else 'with no known outcomes'}"
            run = round(_exp(self._number(row, f"{prefix}_run_frauds")) - 1, 2)  # NaN: unknown
            if is_known and run >= 1:
                last = "one known was" if run == 1 else f"{run:.0f} known were"
                text += f", the last {last} fraud"
        amount, usual = self._find_usual(row, f"{prefix}_amount_to_mean")
        is_unusual = usual > 0 and not 0.5 < amount / usual < 2.0
        return text + (self._compare(row, amount, usual, "the usual there") if is_unusual else "")


def _name_source(column: str) -> str:
    """The source of a column: its name, unless the name is reserved."""
    return f"{column} column" if column in _RESERVED else column


def _exp(value: float) -> float:
    return math.exp(min(value, _MAX_EXPONENT)) if not math.isnan(value) else math.nan


def _find_usual(amount: float, log_ratio: float) -> float:
    """The mean, on a logarithmic scale, that an amount was compared with; 0 if there is none.

    Nor is there one below `_MIN_USUAL`: features are in single precision.
    """
    if not amount > 0 or math.isnan(log_ratio):
        return 0.0
    usual = math.expm1(min(math.log1p(amount) - log_ratio, _MAX_EXPONENT))
    return usual if usual >= _MIN_USUAL else 0.0


def _describe_pace(since_last: float, count_day: float) -> str:
    if math.isnan(since_last):
        return "no earlier transaction"
    seconds = math.expm1(min(max(since_last, 0.0), 30.0))
    unit, size = "seconds", 1
    for longer, seconds_each in _UNITS:
        if seconds >= seconds_each:
            unit, size = longer, seconds_each
    text = f"{seconds / size:.1f} {unit} after the last"
    if math.isnan(count_day):
        return text
    return f"{text}, about {math.expm1(min(max(count_day, 0.0), 30.0)):.1f} a day lately"


def _describe_habit(agreement: float) -> str:
    """Whether a time is usual for the customer; empty if neither."""
    if agreement > 0.5:
        return ", usual for this customer"
    return ", unusual for this customer" if agreement < -0.2 else ""
