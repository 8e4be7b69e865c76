"""Rules for constructor arguments: a class annotates its fields, `check_settings` checks them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_type_hints

import numpy as np

from turncoat.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """A test and its description for the error message."""

    description: str
    holds: Callable[[Any], bool]


Rules = Mapping[str, Rule]


def whole_number(minimum: int) -> Rule:
    """An integer of at least `minimum`."""

    def holds(value: Any) -> bool:
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        return is_integer and bool(value >= minimum)

    return Rule(f"a whole number of at least {minimum}", holds)


def number(minimum: float) -> Rule:
    """A finite number of at least `minimum`."""
    description = f"a finite number of at least {minimum:g}"
    return Rule(description, lambda v: _is_finite(v) and bool(v >= minimum))


def positive_number() -> Rule:
    """A finite number above 0."""
    return Rule("a finite number above 0", lambda v: _is_finite(v) and bool(v > 0))


def fraction(allow_zero: bool) -> Rule:
    """A number below 1 and above 0, or of at least 0."""
    lower = number(0.0) if allow_zero else positive_number()
    bound = "of at least" if allow_zero else "above"
    return Rule(f"a number {bound} 0 and below 1", lambda v: lower.holds(v) and bool(v < 1))


def one_of(*choices: Any) -> Rule:
    """One of a few values."""
    described = "one of " + ", ".join(repr(choice) for choice in choices)
    return Rule(described, lambda v: any(v is choice or v == choice for choice in choices))


def instance_of(description: str, *kinds: type) -> Rule:
    """An object of one of these types."""
    return Rule(description, lambda v: isinstance(v, kinds))


def or_none(rule: Rule) -> Rule:
    """The rule, or None."""
    return Rule(f"{rule.description}, or None", lambda v: v is None or rule.holds(v))


@cache
def find_rules(kind: Any) -> Rules:
    """Return the rules in the field annotations of a class, by field."""
    hints = get_type_hints(kind, include_extras=True).items()
    parts = ((name, part) for name, hint in hints for part in getattr(hint, "__metadata__", ()))
    return {name: part for name, part in parts if isinstance(part, Rule)}


def check_settings(owner: object, settings: Mapping[str, Any], rules: Rules | None = None) -> None:
    """Raise a ConfigError for the first setting that breaks a rule, by default of its class."""
    kind: Any = type(owner)
    for name, rule in (find_rules(kind) if rules is None else rules).items():
        if name in settings and not rule.holds(settings[name]):
            expected = f"{name} must be {rule.description}"
            raise ConfigError(f"{kind.__name__}: {expected}; found {settings[name]!r}")


def _is_finite(value: Any) -> bool:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


# Types of fields, with their rules.
Count = Annotated[int, whole_number(1)]
Seed = Annotated[int, whole_number(0)]
Flag = Annotated[bool, one_of(True, False)]
Positive = Annotated[float, positive_number()]
NotNegative = Annotated[float, number(0.0)]
Share = Annotated[float, fraction(allow_zero=True)]
