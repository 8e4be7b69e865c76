"""Rules for constructor arguments, declared beside each class and worded in one place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from turncoat.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """A test and the words for it."""

    words: str
    holds: Callable[[Any], bool]


def whole_number(at_least: int) -> Rule:
    """An integer from a lowest value on."""
    return Rule(
        f"a whole number of at least {at_least}",
        lambda v: (
            isinstance(v, int | np.integer) and not isinstance(v, bool) and bool(v >= at_least)
        ),
    )


def number(at_least: float) -> Rule:
    """A finite number from a lowest value on."""
    return Rule(
        f"a finite number of at least {at_least:g}",
        lambda v: (
            isinstance(v, int | float | np.number)
            and not isinstance(v, bool)
            and math.isfinite(v)
            and bool(v >= at_least)
        ),
    )


def positive_number() -> Rule:
    """A finite number above 0."""
    return Rule(
        "a finite number above 0",
        lambda v: (
            isinstance(v, int | float | np.number)
            and not isinstance(v, bool)
            and math.isfinite(v)
            and bool(v > 0)
        ),
    )


def one_of(*choices: Any) -> Rule:
    """One of a few values."""
    return Rule(
        "one of " + ", ".join(repr(c) for c in choices),
        lambda v: any(v is c or v == c for c in choices),
    )


def instance(kind: type, words: str) -> Rule:
    """An object of a type."""
    return Rule(words, lambda v: isinstance(v, kind))


def or_none(rule: Rule) -> Rule:
    """The rule, or None."""
    return Rule(f"{rule.words}, or None", lambda v: v is None or rule.holds(v))


def check_settings(owner: object, settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Raise a ConfigError that names the first setting that breaks its rule."""
    for name, rule in rules.items():
        if not rule.holds(settings[name]):
            raise ConfigError(
                f"{type(owner).__name__}: {name} must be {rule.words}; found {settings[name]!r}"
            )
