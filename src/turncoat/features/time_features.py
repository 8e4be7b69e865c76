"""What a transaction says by itself, whoever made it: its place on the clock and in the week, and how many fields it lacks."""

from __future__ import annotations

import math

from turncoat.arrays import Array
from turncoat.features.history import DAY, WEEK
from turncoat.numerics.jit import jit_exact

CONTINUOUS = ("hour_cos", "hour_sin", "n_missing")
CATEGORICAL = ("weekday",)
WEEKDAYS = 7


@jit_exact
def take_moment(time: float, n_missing: int, facts: Array, codes: Array) -> None:
    """Facts [3] and codes [1] of one transaction."""
    hour = 2.0 * math.pi * (time % DAY) / DAY
    facts[0] = math.cos(hour)
    facts[1] = math.sin(hour)
    facts[2] = n_missing
    codes[0] = min(
        int((time % WEEK) // DAY), WEEKDAYS - 1
    )  # a hair before 0 is a whole week after rounding


@jit_exact
def take_moments(times: Array, n_missing: Array, facts: Array, codes: Array) -> None:
    """Facts [3, N] and codes [1, N] of N transactions."""
    for i in range(len(times)):
        take_moment(times[i], n_missing[i], facts[:, i], codes[:, i])
