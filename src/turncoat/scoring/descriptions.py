"""Features as text, grouped by what a person would look at: amount, pace, hour, a column."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.features.features import FeatureRow
from turncoat.features.plan import FeaturePlan

Describe = Callable[[FeatureRow], str]  # a row's text for one source

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
_WEEKDAYS = ("Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday")  # 1970
_AVERAGE_TEXT = "the baseline: an average transaction"
_RESERVED = frozenset((*_FEATURES, HISTORY, OTHERS, AVERAGE))
_MIN_KNOWN = 0.1  # log(1 + outcomes); below it the counterparty's risk is that of all
_UNITS = (("minutes", 60), ("hours", 3600), ("days", 86400))
_MAX_EXPONENT = 50.0


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

    def restore(self, row: FeatureRow) -> float:
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

    def describe(self, column: str, row: FeatureRow) -> str:
        """`column value`; what float32 cannot tell from 0 is shown as 0."""
        value = self.restore(row)
        if value != value:
            return f"{column} missing"
        is_zero = abs(value) < 1e-5 * (self.unit or self.spread + abs(self.centre))
        return f"{column} 0" if is_zero else f"{column} {value:.5g}"


@dataclass(frozen=True)
class FeatureDescriber:
    """Assigns each feature of a plan to its source, and describes a row's value there."""

    plan: FeaturePlan
    history: str = HISTORY  # the text of that source
    has_dates: bool = False  # times count from 1970, so that days of the week have names

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

    @property
    def _clock_name(self) -> str:
        """What follows an hour: the zone of the clock, if there is one."""
        schema = self.plan.schema
        if schema.time_zone_column is not None:
            return " local time"
        return "" if schema.time_zone is None else f" {schema.time_zone}"

    def is_raw_number(self, column: int) -> bool:
        """Whether a column of the panel, continuous ones first, is a number of the file."""
        names = self.plan.continuous
        return column < len(names) and names[column] in self.plan.schema.continuous

    def describe_range(self, source: str, column: int, lower: float, upper: float) -> str:
        """A range of a continuous column, whose bounds are on the panel's scale."""
        scale = self._scales[self.plan.continuous[column]]
        if math.isnan(lower):
            return f"{source} missing"
        low, high = (_round(scale.restore_cell(bound)) for bound in (lower, upper))
        if math.isinf(upper):
            return f"any {source}" if math.isinf(lower) else f"{source} above {low}"
        return f"{source} up to {high}" if math.isinf(lower) else f"{source} {low} to {high}"

    def _choose(self, source: str) -> Describe:
        if source == AVERAGE:
            return lambda _: _AVERAGE_TEXT
        if source == HISTORY:
            new = "no history yet" if self.history == HISTORY else self.history
            return lambda row: new if self._code(row, "is_first") == 1 else self.history
        schema, column = self.plan.schema, self._columns.get(source)
        if column is None:
            return partial(self._describe_group, source)
        describe = self._describe_category(column)
        if column in schema.continuous and column != schema.amount:
            scale = self._scales.get(column)
            own = self._describe_absence if scale is None else scale.describe
            describe = partial(own, column)
        if column not in self.plan.counterparties:
            return describe
        prefix = self.plan.counterparty_prefixes[self.plan.counterparties.index(column)]
        return partial(self._describe_counterparty, prefix, describe)

    def _number(self, row: FeatureRow, name: str) -> float:
        """A continuous feature in its own units; NaN if it is missing or unknown."""
        scale = self._scales.get(name)
        return math.nan if scale is None else scale.restore(row)

    def _code(self, row: FeatureRow, name: str) -> int:
        """The code of a categorical feature; -1 if it is missing or unknown."""
        place = self._codes.get(name)
        return -1 if place is None else int(row.categorical.item(place))

    def _describe_group(self, source: str, row: FeatureRow) -> str:
        """The text for a group of engineered features."""
        number = partial(self._number, row)
        if source == AMOUNT:
            schema = self.plan.schema
            base = None if schema.rates is None else schema.rates.base
            return _describe_amount(number(str(schema.amount)), number("amount_to_mean"), base)
        if source == PACE:
            return _describe_pace(number("since_last"), number("count_day"))
        if source == HOUR:
            hour = number("hour_cos"), number("hour_sin"), number("hour_habit")
            return _describe_hour(*hour, self._clock_name)
        if source == WEEKDAY:
            day = self._code(row, "weekday")
            name = _WEEKDAYS[day] if self.has_dates else f"day {day + 1} of the week"
            return (WEEKDAY if day < 0 else name) + _describe_habit(number("weekday_habit"))
        if source == MISSING:
            count = f"{max(0.0, number('n_missing')):.0f}"  # 0 for NaN, whose comparisons fail
            return f"{count} field{'' if count == '1' else 's'} missing"
        is_first = self._code(row, "is_first")
        return f"{FIRST} of this customer" if is_first else "not the first transaction"

    def _describe_category(self, column: str) -> Describe:
        """The category of a row, and whether it is new or changed."""
        plan, place = self.plan, self._codes.get(column)
        texts = None
        if column in plan.schema.categorical and place is not None:
            vocabulary = plan.vocabularies[plan.schema.categorical.index(column)]
            rest = ("of a rare kind", "never seen before", "missing")  # the last has code -1
            texts = tuple(f"{column} {name}" for name in (*vocabulary.frequent, *rest))
        news = {f"new_{column}": ", new for this customer", f"changed_{column}": ", changed"}
        flags = [(self._codes[name], text) for name, text in news.items() if name in self._codes]

        def describe(row: FeatureRow) -> str:
            text = column if texts is None or place is None else texts[row.categorical.item(place)]
            more = (text for flag, text in flags if row.categorical.item(flag) == 1)
            return text + next(more, "")

        return describe

    def _describe_absence(self, column: str, row: FeatureRow) -> str:
        """A column that does not vary: only whether it is missing."""
        return f"{column} missing" if self._code(row, f"no_{column}") == 1 else column

    def _describe_counterparty(self, prefix: str, describe: Describe, row: FeatureRow) -> str:
        """The counterparty's text with its fraud rate, its run of frauds and usual amount."""
        text, risk = describe(row), self._number(row, f"{prefix}_risk_month")
        if not math.isnan(risk):
            rate = 1 / (1 + math.exp(min(-risk, _MAX_EXPONENT)))
            is_known = not self._number(row, f"{prefix}_known_month") < _MIN_KNOWN
            known = f"where {rate:.1%} of known transactions were fraud"
            text += f", {known if is_known else 'with no known outcomes'}"
            run = round(_exp(self._number(row, f"{prefix}_run_frauds")) - 1, 2)  # NaN: unknown
            if is_known and run >= 1:
                text += f", including the last {run:.0f}" if run > 1 else ", including the last one"
        ratio = _exp(self._number(row, f"{prefix}_amount_to_mean"))
        is_unusual = ratio >= 2.0 or ratio <= 0.5
        return f"{text}, {ratio:.2g}x the usual amount there" if is_unusual else text


def _name_source(column: str) -> str:
    """The source of a column: its name, unless the name is reserved."""
    return f"{column} column" if column in _RESERVED else column


def _round(value: float) -> str:
    """A number with three digits."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _exp(value: float) -> float:
    return math.exp(min(value, _MAX_EXPONENT)) if not math.isnan(value) else math.nan


def _describe_amount(amount: float, log_ratio: float, currency: str | None) -> str:
    text = "amount missing" if math.isnan(amount) else f"amount {amount:.2f}"
    text += f" {currency}" if currency and not math.isnan(amount) else ""
    usual = f", {_exp(log_ratio):.2g}x this customer's usual"
    return text if math.isnan(log_ratio) else text + usual


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
    return f"{text}, about {math.expm1(min(max(count_day, 0.0), 30.0)):.1f} in the last day"


def _describe_hour(cos: float, sin: float, habit: float, clock: str) -> str:
    if math.isnan(cos) or math.isnan(sin):
        return "hour"
    minutes = round(math.atan2(sin, cos) / (2 * math.pi) * 1440) % 1440
    return f"at {minutes // 60:02d}:{minutes % 60:02d}{clock}" + _describe_habit(habit)


def _describe_habit(agreement: float) -> str:
    """Whether a time is usual for the customer; empty if neither."""
    if agreement > 0.5:
        return ", usual for this customer"
    return ", unusual for this customer" if agreement < -0.2 else ""
