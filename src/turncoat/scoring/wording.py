"""Features in words, gathered under what a person would look at: the amount, the pace, the hour, the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from turncoat.features.features import FeatureRow
from turncoat.features.plan import FeaturePlan
from turncoat.scoring.reasons import AVERAGE, HISTORY, OTHERS

Array = NDArray[Any]

AMOUNT, PACE, HOUR, WEEKDAY, GAPS, FIRST = "amount", "pace", "hour", "weekday", "missing fields", "first transaction"
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
_RESERVED = frozenset((*_FACTS, HISTORY, OTHERS, AVERAGE))


@dataclass(frozen=True)
class Wording:
    """Knows which source each feature of a plan belongs to, and says what a row has there."""

    plan: FeaturePlan

    @cached_property
    def _source_of(self) -> Mapping[str, str]:
        schema = self.plan.schema
        sources = {name: source for source, names in _FACTS.items() for name in names} if self.plan.engineered else {}
        facts = (*self.plan.continuous_facts, *self.plan.categorical_facts)
        sources |= {name: self._named(str(schema.entity)) for name in facts if name.startswith("entity_")}
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
        entity = () if schema.entity is None else (schema.entity,)
        return {self._named(column): column for column in (*schema.continuous, *schema.categorical, *schema.habits, *entity)}

    @cached_property
    def sources(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The source of each continuous and of each categorical feature."""
        plan, source_of = self.plan, self._source_of
        return tuple(source_of[name] for name in plan.continuous), tuple(source_of[name] for name in plan.categorical)

    def texts(self, row: FeatureRow, sources: Sequence[str]) -> dict[str, str]:
        """What the row has in some of the sources."""
        plan, schema = self.plan, self.plan.schema
        numbers = dict(zip(plan.continuous, plan.scales.original(row.continuous).tolist(), strict=True))
        codes = dict(zip(plan.categorical, row.categorical.tolist(), strict=True))
        facts: dict[str, Callable[[], str]] = {
            AMOUNT: lambda: _amount(numbers.get(str(schema.amount), math.nan), numbers.get("amount_to_mean", math.nan)),
            PACE: lambda: _pace(numbers.get("since_last", math.nan), numbers.get("count_day", math.nan)),
            HOUR: lambda: _hour(numbers),
            WEEKDAY: lambda: _weekday(codes.get("weekday", -1)) + _fit(numbers.get("weekday_habit", math.nan)),
            GAPS: lambda: f"{max(numbers.get('n_missing', 0.0), 0.0):.0f} fields missing",
            FIRST: lambda: "first transaction of this customer" if codes["is_first"] else "not the first transaction",
        }
        texts = {}
        for source in sources:
            column = self._column_of.get(source, "")
            if column in self._columns:
                texts[source] = self._number(column, numbers, codes)
            elif column in self._names:
                texts[source] = self._name(column, codes)
            elif source in facts:
                texts[source] = facts[source]()
            if plan.has_entity and column == schema.entity:
                texts[source] = _entity(texts.get(source, column), numbers)
        return texts

    @cached_property
    def _columns(self) -> frozenset[str]:
        return frozenset(self.plan.schema.continuous) - {self.plan.schema.amount}

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*self.plan.schema.categorical, *self.plan.schema.habits))

    def _number(self, column: str, numbers: Mapping[str, float], codes: Mapping[str, int]) -> str:
        if column not in numbers:  # it does not vary, and only its absence is a feature
            return f"{column} missing" if codes.get(f"no_{column}") == 1 else column
        return f"{column} missing" if math.isnan(numbers[column]) else f"{column} {self._rounded(column, numbers[column]):.5g}"

    def _rounded(self, column: str, value: float) -> float:
        """A number without the digits that its place in a float32 row has made up."""
        place = self.plan.schema.continuous.index(column)
        scales = self.plan.scales
        size = float(scales.units[place] or scales.spreads[place] + abs(scales.centres[place]))
        return 0.0 if abs(value) < 1e-5 * size else value

    def _name(self, column: str, codes: Mapping[str, int]) -> str:
        text = column
        if column in self.plan.schema.categorical:
            vocabulary = self.plan.vocabularies[self.plan.schema.categorical.index(column)]
            code = codes.get(column, -1)
            known = vocabulary.frequent[code] if 0 <= code < len(vocabulary.frequent) else ""
            text = (
                column
                if column not in codes
                else f"{column} missing"
                if code < 0
                else f"{column} {known or ('of a rare kind' if code == len(vocabulary.frequent) else 'never seen before')}"
            )
        if codes.get(f"new_{column}") == 1:
            return f"{text}, new for this customer"
        return f"{text}, not as last time" if codes.get(f"changed_{column}") == 1 else text


def _amount(amount: float, log_ratio: float) -> str:
    shown = "amount missing" if math.isnan(amount) else f"amount {amount:.2f}"
    return shown if math.isnan(log_ratio) else f"{shown}, {math.exp(min(log_ratio, 50.0)):.2g}x this customer's usual"


def _pace(since_last: float, count_day: float) -> str:
    if math.isnan(since_last):
        return "no earlier transaction"
    seconds = math.expm1(min(max(since_last, 0.0), 30.0))
    unit, size = next(
        (unit, size) for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1)) if seconds >= size or size == 1
    )
    recent = "" if math.isnan(count_day) else f", about {math.expm1(min(count_day, 30.0)):.1f} in the last day"
    return f"{seconds / size:.1f} {unit} after the last{recent}"


def _hour(numbers: Mapping[str, float]) -> str:
    cos, sin = numbers.get("hour_cos", math.nan), numbers.get("hour_sin", math.nan)
    if math.isnan(cos) or math.isnan(sin):
        return "hour"
    minutes = round(math.atan2(sin, cos) / (2 * math.pi) * 1440) % 1440
    return f"at {minutes // 60:02d}:{minutes % 60:02d}" + _fit(numbers.get("hour_habit", math.nan))


def _weekday(day: int) -> str:
    return WEEKDAY if day < 0 else f"day {day + 1} of the week"


def _fit(agreement: float) -> str:
    """How well a moment agrees with habit, in words; nothing where there is none."""
    if math.isnan(agreement):
        return ""
    return ", usual for this customer" if agreement > 0.5 else ", unusual for this customer" if agreement < -0.2 else ""


def _entity(text: str, numbers: Mapping[str, float]) -> str:
    risk, log_ratio = numbers.get("entity_risk_month", math.nan), numbers.get("entity_amount_to_mean", math.nan)
    known = "" if math.isnan(risk) else f", where {1 / (1 + math.exp(min(-risk, 50.0))):.1%} of known transactions were fraud"
    ratio = math.nan if math.isnan(log_ratio) else math.exp(min(log_ratio, 50.0))
    return text + known + (f", {ratio:.2g}x the usual amount there" if ratio >= 2.0 or ratio <= 0.5 else "")
