"""Transactions into a panel: scaled columns, coded categories and causal history."""

from turncoat.features.counterparties import NEVER, UNKNOWN
from turncoat.features.features import FeatureRow, Features, load_features
from turncoat.features.live import FeatureState

__all__ = ["NEVER", "UNKNOWN", "FeatureRow", "FeatureState", "Features", "load_features"]
