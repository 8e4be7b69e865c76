"""Choosing the number of regimes K: sweeps, the eligibility rule, and how stable its answer is."""

from turncoat.selection.eligibility import (
    Choice,
    ChoiceStep,
    OrderSummary,
    choose,
    compute_sensitivity,
)
from turncoat.selection.stability import Stability
from turncoat.selection.sweep import Sweep, choose_width, sweep, sweep_feature_kinds, sweep_widths

__all__ = [
    "Choice",
    "ChoiceStep",
    "OrderSummary",
    "Stability",
    "Sweep",
    "choose",
    "choose_width",
    "compute_sensitivity",
    "sweep",
    "sweep_feature_kinds",
    "sweep_widths",
]
