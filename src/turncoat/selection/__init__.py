"""Which number of regimes, and why: a sweep over orders, the eligibility rule with its trail, and how far to trust the answer."""

from turncoat.selection.eligibility import Choice, Order, Step, choose, sensitivity
from turncoat.selection.stability import Stability
from turncoat.selection.sweep import Sweep, sweep, sweep_both
from turncoat.selection.widths import choose_width, sweep_widths

__all__ = [
    "Choice",
    "Order",
    "Stability",
    "Step",
    "Sweep",
    "choose",
    "choose_width",
    "sensitivity",
    "sweep",
    "sweep_both",
    "sweep_widths",
]
