"""Turncoat's errors. A message names the place, the rule, the value found and the remedy."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from typing import Any

_EXTRA_NEEDED = "{} needs the extra: pip install turncoat[baselines]"


class TurncoatError(Exception):
    """Base of all errors raised on purpose."""


class DataError(TurncoatError):
    """The data break a rule."""


class StateError(DataError):
    """The stored state of a customer or counterparty is damaged, or from another detector."""


class ConfigError(TurncoatError):
    """A setting breaks a rule."""


class NotFittedError(TurncoatError):
    """A model was used before `fit`."""


class BundleError(TurncoatError):
    """A saved model is missing, damaged, edited or of a newer format."""


class StoreError(TurncoatError):
    """The store of beliefs is unreachable, full, damaged, or of another kind."""


class CorruptRecordError(StoreError):
    """One entry of the store is damaged."""


class StoreUnavailableError(StoreError):
    """The store is busy or cannot be reached. The same request may succeed later."""


class ContentionError(StoreUnavailableError):
    """Other writers keep changing the same records."""


class ClusterError(TurncoatError):
    """The cluster cannot be reached, went away, or its workers keep dying."""


class EmptyStateWarning(UserWarning):
    """A fit left states without rows."""


def check_count(name: str, value: Any, minimum: int) -> None:
    """Raise `ConfigError` for anything but a whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < minimum:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least {minimum}")


def import_extra(module: str, purpose: str) -> Any:
    """A module of the extra `baselines`; ConfigError with the install command if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as problem:
        raise ConfigError(_EXTRA_NEEDED.format(purpose)) from problem


def require_extra(module: str, purpose: str) -> None:
    """Refuse a missing module of the extra without importing it, which can take seconds."""
    if find_spec(module) is None:
        raise ConfigError(_EXTRA_NEEDED.format(purpose))
