"""Transactions into a panel: scaled columns, coded categories and causal history."""

from turncoat.features.features import FeatureRow, Features, load_features
from turncoat.features.live import FeatureState
from turncoat.numerics.label_times import NEVER, UNKNOWN

__all__ = ["NEVER", "UNKNOWN", "FeatureRow", "FeatureState", "Features", "load_features"]
