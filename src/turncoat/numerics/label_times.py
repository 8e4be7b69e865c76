"""When labels count, and how a transaction's label is coded.

Time passes in steps of six hours. A label counts once its transaction's step ended `delay_s` ago.
A transaction without a label counts as genuine `maturity_s` later.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from turncoat.numerics.jit import jit_exact

DAY = 86400.0
STEPS_PER_DAY = 4
STEP = DAY / STEPS_PER_DAY
UNKNOWN, NEVER = -1, -2  # labels beside 0 and 1: not known yet, and of a row that none will follow


class LabelTimes(NamedTuple):
    """Seconds until labels count."""

    delay_s: float  # from the end of a transaction's step
    maturity_s: float  # from then until a transaction without a label counts as genuine


@jit_exact
def find_newest_ended(time: float, wait_s: float) -> float:
    """The last step that ended at least `wait_s` before `time`."""
    return math.floor((time - wait_s) / STEP) - 1.0


@jit_exact
def find_known_times(time: float, waits: LabelTimes) -> tuple[float, float]:
    """The times before which labels count at `time`, and before which transactions have matured."""
    known = find_newest_ended(time, waits.delay_s)
    matured = find_newest_ended(time, waits.delay_s + waits.maturity_s)
    return (known + 1.0) * STEP, (matured + 1.0) * STEP
