"""Transactions into a panel: columns on a common scale, names as codes, causal history; the same in batch and live."""

from turncoat.features.features import FeatureRow, Features
from turncoat.features.state import FeatureState
from turncoat.features.storage import load_features

__all__ = ["FeatureRow", "FeatureState", "Features", "load_features"]
