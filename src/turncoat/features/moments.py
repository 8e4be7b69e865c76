"""What a transaction says by itself, whoever made it: its place on the clock and in the week, and how many fields it lacks."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

from turncoat.features.history import DAY, WEEK
from turncoat.numerics.compiled import compiled_exactly

Array = NDArray[Any]

CONTINUOUS = ("hour_cos", "hour_sin", "n_missing")
CATEGORICAL = ("weekday",)
WEEKDAYS = 7


@compiled_exactly
def take_moments(times: Array, n_missing: Array, facts: Array, codes: Array) -> None:
    """Facts [3, N] and codes [1, N] of N transactions."""
    for i in range(len(times)):
        hour = 2.0 * math.pi * (times[i] % DAY) / DAY
        facts[0, i] = math.cos(hour)
        facts[1, i] = math.sin(hour)
        facts[2, i] = n_missing[i]
        codes[0, i] = min(int((times[i] % WEEK) // DAY), WEEKDAYS - 1)  # a hair before 0 is a whole week after rounding
