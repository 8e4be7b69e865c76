"""Every failure Turncoat names. A message says where, the rule, the value found, and what to do."""

from __future__ import annotations


class TurncoatError(Exception):
    """Base of all errors raised on purpose."""


class DataError(TurncoatError):
    """The data break a rule."""


class StateError(DataError):
    """What was remembered of a customer or a counterparty is damaged, or another detector's."""


class ConfigError(TurncoatError):
    """A setting breaks a rule."""


class NotFittedError(TurncoatError):
    """A model was asked for something it only knows after `fit`."""


class BundleError(TurncoatError):
    """A saved model is missing, damaged, edited or of a newer format."""


class StoreError(TurncoatError):
    """The store of beliefs is out of reach, full, damaged, or holds something else."""


class CorruptRecordError(StoreError):
    """One thing in the store is damaged."""


class ContentionError(StoreError):
    """Others write the same records all the time."""
