"""Columns of the simulated IEEE-CIS data in their genuine types."""

from __future__ import annotations

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.simulators.ieee_levels import cover_levels, levels_of


def numbers(name: str, values: Array, empty: Array | None = None) -> pl.Series:
    """A float64 column; NaN and the rows marked empty are missing."""
    cells = values.astype(np.float64) + 0.0  # a zero without a sign
    if empty is not None:
        cells[empty] = np.nan
    return pl.Series(name, cells, nan_to_null=True)


def categories(
    name: str, codes: Array, empty: Array, rng: np.random.Generator | None = None
) -> pl.Series:
    """A column of the genuine levels, by level number; with a generator, levels nobody drew come up once."""
    levels = levels_of(name)
    filled = np.where(empty, -1, codes)
    if rng is not None:
        filled = cover_levels(filled, len(levels), rng)
    table = pl.Series(
        name, [*levels, None], dtype=pl.String if isinstance(levels[0], str) else pl.Float64
    )
    return table.gather(np.where(filled < 0, len(levels), filled).astype(np.uint32))


def two_levels(name: str, second: Array, empty: Array) -> pl.Series:
    """A column of two levels, in the order of the facts: F and T, Found and NotFound."""
    return categories(name, second.astype(np.int64), empty)
