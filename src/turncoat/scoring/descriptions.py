"""Features in words, gathered under what a person would look at: the amount, the pace, the hour, the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.features.features import FeatureRow
from turncoat.features.plan import FeaturePlan
from turncoat.features.vocabulary import Vocabulary

HISTORY, OTHERS, AVERAGE = "history", "others", "average transaction"
AMOUNT, PACE, HOUR, WEEKDAY, GAPS, FIRST = (
    "amount",
    "pace",
    "hour",
    "weekday",
    "missing fields",
    "first transaction",
)
_FACTS = {
    AMOUNT: ("amount_z", "amount_to_mean", "amount_to_max", "amount_to_last"),
    PACE: (
        "since_last",
        "since_first",
        "n_before",
        *(f"{sum_or}_{w}" for sum_or in ("count", "sum") for w in ("hour", "day", "week", "month")),
    ),
    HOUR: ("hour_habit", "hour_cos", "hour_sin"),
    WEEKDAY: ("weekday_habit", "weekday"),
    GAPS: ("n_missing", "n_missing_change"),
    FIRST: ("is_first",),
}
_OF_NO_COLUMN = {
    HISTORY: "history",
    AVERAGE: "where the encoder starts: all average, nothing named",
}
_FEWEST_KNOWN = 0.1  # log(1 + outcomes), which fade
_UNITS = (("minutes", 60), ("hours", 3600), ("days", 86400))
_RESERVED = frozenset((*_FACTS, HISTORY, OTHERS, AVERAGE))


Describe = Callable[[FeatureRow], str]  # a row as text, from one source


@dataclass(frozen=True)
class Sources:
    """Where each feature comes from: a column of the file, or a fact."""

    continuous: tuple[str, ...]  # [D]
    categorical: tuple[str, ...]  # [J]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every source once, in the order of the alphabet; also history and the average transaction."""
        return tuple(sorted({HISTORY, AVERAGE, *self.continuous, *self.categorical}))

    @cached_property
    def places(self) -> Array:
        """Place among the names of history, of the average transaction and of every feature [2 + D + J]."""
        places = {name: place for place, name in enumerate(self.names)}
        return np.array(
            [places[name] for name in (HISTORY, AVERAGE, *self.continuous, *self.categorical)],
            dtype=np.int64,
        )


@dataclass(frozen=True)
class FeatureDescriber:
    """Knows which source each feature of a plan belongs to, and says what a row has there."""

    plan: FeaturePlan

    @cached_property
    def _source_of(self) -> Mapping[str, str]:
        schema = self.plan.schema
        sources = (
            {name: source for source, names in _FACTS.items() for name in names}
            if self.plan.engineered
            else {}
        )
        facts = (*self.plan.engineered_continuous, *self.plan.engineered_categorical)
        sources |= {
            name: self._named(str(schema.counterparty))
            for name in facts
            if name.startswith("counterparty_")
        }
        for source, column in self._column_of.items():
            sources |= {column: source, f"no_{column}": source}
            if self.plan.engineered:
                sources |= {f"new_{column}": source, f"changed_{column}": source}
        if schema.amount is not None:
            sources |= {schema.amount: AMOUNT, f"no_{schema.amount}": AMOUNT}
        return sources

    def _named(self, column: str) -> str:
        """The source of a column: its name, unless that is the name of something else."""
        return f"{column} column" if column in _RESERVED else column

    @cached_property
    def _column_of(self) -> Mapping[str, str]:
        schema = self.plan.schema
        counterparty = () if schema.counterparty is None else (schema.counterparty,)
        return {
            self._named(column): column
            for column in (*schema.continuous, *schema.categorical, *schema.tracked, *counterparty)
        }

    @cached_property
    def sources(self) -> Sources:
        """The source of each continuous and of each categorical feature."""
        plan, source_of = self.plan, self._source_of
        return Sources(
            tuple(source_of[name] for name in plan.continuous),
            tuple(source_of[name] for name in plan.categorical),
        )

    @cached_property
    def describe(self) -> tuple[Describe, ...]:
        """What says what a row has in each source, in the order of the sources' names; only what it needs of a row is looked at."""
        return tuple(map(self._words_of, self.sources.names))

    def _words_of(self, source: str) -> Describe:
        if source in _OF_NO_COLUMN:
            return lambda _: _OF_NO_COLUMN[source]
        schema, column = self.plan.schema, self._column_of.get(source)
        if column is None:
            return partial(self._fact, source)
        words = self._name(column)
        if column in schema.continuous and column != schema.amount:
            number = self._numbers.get(column)
            words = partial(self._absent_or_not, column) if number is None else number.words(column)
        return (
            partial(self._counterparty, words)
            if self.plan.has_counterparty and column == schema.counterparty
            else words
        )

    @cached_property
    def _numbers(self) -> Mapping[str, _Number]:
        """Where each continuous feature is in a row, and its scale."""
        scales, names = self.plan.scales, self.plan.continuous
        scaled = (
            part[scales.kept].tolist() for part in (scales.units, scales.centres, scales.spreads)
        )
        return {
            name: _Number(place, *scale)
            for place, (name, *scale) in enumerate(zip(names, *scaled, strict=True))
        }

    @cached_property
    def _codes(self) -> Mapping[str, int]:
        """Where each categorical feature is in a row."""
        return {name: place for place, name in enumerate(self.plan.categorical)}

    @cached_property
    def _vocabularies(self) -> Mapping[str, Vocabulary]:
        return dict(zip(self.plan.schema.categorical, self.plan.vocabularies, strict=True))

    def _number(self, row: FeatureRow, name: str) -> float:
        """A continuous feature on its own scale; NaN if missing, or if there is none of this name."""
        number = self._numbers.get(name)
        return math.nan if number is None else number.of(row)

    def _code(self, row: FeatureRow, name: str) -> int:
        """The code of a categorical feature; -1 if missing, or if there is none of this name."""
        place = self._codes.get(name)
        return -1 if place is None else int(row.categorical.item(place))

    def _fact(self, source: str, row: FeatureRow) -> str:
        number, code = partial(self._number, row), partial(self._code, row)
        if source == AMOUNT:
            return _amount(number(str(self.plan.schema.amount)), number("amount_to_mean"))
        if source == PACE:
            return _pace(number("since_last"), number("count_day"))
        if source == HOUR:
            return _hour(number("hour_cos"), number("hour_sin"), number("hour_habit"))
        if source == WEEKDAY:
            return _weekday(code("weekday")) + _fit(number("weekday_habit"))
        if source == GAPS:
            return _gaps(number("n_missing"))
        return (
            "first transaction of this customer"
            if code("is_first")
            else "not the first transaction"
        )

    def _name(self, column: str) -> Describe:
        """What says which name a row has in a column, and whether that is news."""
        vocabulary, place = self._vocabularies.get(column), self._codes.get(column)
        texts = None
        if vocabulary is not None and place is not None:
            names = (
                *vocabulary.frequent,
                "of a rare kind",
                "never seen before",
                "missing",
            )  # the last has code -1
            texts = tuple(f"{column} {name}" for name in names)
        news = [
            (self._codes[name], text) for name, text in self._news(column) if name in self._codes
        ]

        def words(row: FeatureRow) -> str:
            text = column if texts is None or place is None else texts[row.categorical.item(place)]
            for flag, more in news:
                if row.categorical.item(flag) == 1:
                    return text + more
            return text

        return words

    @staticmethod
    def _news(column: str) -> tuple[tuple[str, str], ...]:
        return (f"new_{column}", ", new for this customer"), (
            f"changed_{column}",
            ", not as last time",
        )

    def _absent_or_not(self, column: str, row: FeatureRow) -> str:
        """Of a column that does not vary, so that only its absence is a feature."""
        return f"{column} missing" if self._code(row, f"no_{column}") == 1 else column

    def _counterparty(self, words: Describe, row: FeatureRow) -> str:
        """What is said of the counterparty, and what is known of it."""
        risk, log_ratio = (
            self._number(row, "counterparty_risk_month"),
            self._number(row, "counterparty_amount_to_mean"),
        )
        known = (
            ""
            if math.isnan(risk)
            else f", where {1 / (1 + math.exp(min(-risk, 50.0))):.1%} of known transactions were fraud"
        )
        if (
            known and self._number(row, "counterparty_known_month") < _FEWEST_KNOWN
        ):  # the risk is that of all
            known = ", of which no outcome is known"
        ratio = math.nan if math.isnan(log_ratio) else math.exp(min(log_ratio, 50.0))
        return (
            words(row)
            + known
            + (f", {ratio:.2g}x the usual amount there" if ratio >= 2.0 or ratio <= 0.5 else "")
        )


class _Number(NamedTuple):
    """A continuous feature: its place in a row, and its scale as in `Scales`."""

    place: int
    unit: float
    centre: float
    spread: float

    def of(self, row: FeatureRow) -> float:
        """What a row has there, on its own scale, to the precision of float32."""
        place, unit, centre, spread = self
        value: float = row.continuous.item(place) * spread + centre
        return _grown(value, unit) if unit > 0 else value

    def words(self, column: str) -> Describe:
        """What says what a row has there. Digits that its place in a float32 row has made up are left out."""
        place, unit, centre, spread = self
        least = 1e-5 * (unit or spread + abs(centre))

        def words(row: FeatureRow) -> str:
            value = row.continuous.item(place) * spread + centre
            if value != value:
                return f"{column} missing"
            if unit > 0:
                value = _grown(value, unit)
            return f"{column} 0" if -least < value < least else f"{column} {value:.5g}"

        return words


def _grown(value: float, unit: float) -> float:
    """A number of which the signed logarithm, in units, is the value."""
    try:
        return math.copysign(unit * math.expm1(abs(value)), value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _amount(amount: float, log_ratio: float) -> str:
    shown = "amount missing" if math.isnan(amount) else f"amount {amount:.2f}"
    return (
        shown
        if math.isnan(log_ratio)
        else f"{shown}, {math.exp(min(log_ratio, 50.0)):.2g}x this customer's usual"
    )


def _pace(since_last: float, count_day: float) -> str:
    if math.isnan(since_last):
        return "no earlier transaction"
    seconds = math.expm1(min(max(since_last, 0.0), 30.0))
    unit, size = "seconds", 1
    for longer, seconds_each in _UNITS:
        if seconds >= seconds_each:
            unit, size = longer, seconds_each
    recent = (
        ""
        if math.isnan(count_day)
        else f", about {math.expm1(min(count_day, 30.0)):.1f} in the last day"
    )
    return f"{seconds / size:.1f} {unit} after the last{recent}"


def _hour(cos: float, sin: float, habit: float) -> str:
    if math.isnan(cos) or math.isnan(sin):
        return "hour"
    minutes = round(math.atan2(sin, cos) / (2 * math.pi) * 1440) % 1440
    return f"at {minutes // 60:02d}:{minutes % 60:02d}" + _fit(habit)


def _weekday(day: int) -> str:
    return WEEKDAY if day < 0 else f"day {day + 1} of the week"


def _gaps(n_missing: float) -> str:
    count = f"{0.0 if math.isnan(n_missing) else max(n_missing, 0.0):.0f}"
    return f"{count} field{'' if count == '1' else 's'} missing"


def _fit(agreement: float) -> str:
    """How well a moment agrees with habit, in words; nothing where there is none."""
    if math.isnan(agreement):
        return ""
    return (
        ", usual for this customer"
        if agreement > 0.5
        else ", unusual for this customer"
        if agreement < -0.2
        else ""
    )
