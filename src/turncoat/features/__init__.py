"""Transactions into a panel: scaled columns, coded categories and causal history."""

from turncoat.features.features import FeatureRow, Features, load_features
from turncoat.features.live import FeatureState

__all__ = ["FeatureRow", "FeatureState", "Features", "load_features"]
