"""Scale continuous columns: signed logarithm for heavy tails, then mean 0 and spread 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact

HEAVY_KURTOSIS = 8.0  # an exponential distribution has 9
MAX_SCALED = 1e6  # spreads; values are clipped so that no row can be infinite
_BLOCK_ROWS = 512  # 16 columns of them fit the first-level cache

# log(m) = 2 atanh((m - 1) / (m + 1)); ten terms of its series are exact for m near 1.
_SERIES = tuple(2.0 / (2 * term + 1) for term in range(10))
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_FRACTION_BITS = 0x000FFFFFFFFFFFFF
_LN2 = 0.6931471805599453


class Scales(NamedTuple):
    """Scales of D columns. A spread of 0 means that the column does not vary and is dropped."""

    units: Array  # [D] float64: the signed log is sign(x) log(1 + |x| / unit); 0 for none
    centres: Array  # [D]
    spreads: Array  # [D]

    @property
    def kept(self) -> Array:
        """Columns that vary [D]."""
        kept: Array = self.spreads > 0
        return kept

    @classmethod
    def concatenate(cls, parts: Sequence[Scales]) -> Scales:
        """Scales of columns side by side."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    @classmethod
    def fit(cls, cells: Array) -> Scales:
        """Fit to cells [D, rows]; NaN is missing."""
        fitted = np.array([_fit_column(column) for column in cells]).reshape(-1, 3)
        return cls(*np.ascontiguousarray(fitted.T))


class ScaledColumns(NamedTuple):
    """Scales of some continuous columns, and where they go in a panel."""

    scales: Scales
    columns: Array  # index among the panel's continuous columns; -1 if dropped
    flags: Array  # index of the missing flag among the categorical columns; -1 if none

    def take(self, some: slice) -> ScaledColumns:
        """Some of the columns."""
        scales = Scales(*(array[some] for array in self.scales))
        return ScaledColumns(scales, self.columns[some], self.flags[some])


@jit_exact
def _signed_log(x: float, unit: float) -> float:
    """sign(x) log(1 + |x| / unit); NaN stays NaN. Plain arithmetic, which compiles to SIMD."""
    y = abs(x) / unit
    above = np.float64(1.0 + y).view(np.int64) - _SQRT_HALF_BITS
    exponent = above >> 52
    mantissa = np.int64((above & _FRACTION_BITS) + _SQRT_HALF_BITS).view(np.float64)
    less_one = y if exponent == 0 else mantissa - 1.0  # 1 + y has lost the last digits of a small y
    s = less_one / (less_one + 2.0)
    square = s * s
    series = _SERIES[9]
    for term in range(8, -1, -1):
        series = series * square + _SERIES[term]
    size = exponent * _LN2 + s * series
    return x if x != x else -size if x < 0.0 else size


@jit_exact
def _moments(cells: Array, unit: float) -> tuple[float, float, float, float]:
    """Mean, spread, kurtosis and mean size of known cells, after the signed log if `unit` > 0."""
    n, total, size = 0, 0.0, 0.0
    for x in cells:
        if x == x:
            y = _signed_log(x, unit) if unit > 0.0 else x
            n += 1
            total += y
            size += abs(y)
    if n == 0:
        return 0.0, 0.0, 0.0, 0.0
    mean, second, fourth = total / n, 0.0, 0.0
    for x in cells:
        if x == x:
            y = _signed_log(x, unit) if unit > 0.0 else x
            square = (y - mean) ** 2
            second += square
            fourth += square * square
    variance = second / n
    kurtosis = fourth / n / variance**2 if variance > 0.0 else 0.0
    return mean, math.sqrt(variance), kurtosis, size / n


@jit_exact
def _fit_column(cells: Array) -> tuple[float, float, float]:
    """Unit, centre and spread; a column that does not vary has spread 0."""
    mean, spread, kurtosis, size = _moments(cells, 0.0)
    unit = 0.0
    if not kurtosis <= HEAVY_KURTOSIS:  # or NaN, too large to compute
        unit = size
        mean, spread, _, _ = _moments(cells, unit)
    if not spread > 1e-9 * (abs(mean) + spread):  # nothing but rounding
        return 0.0, 0.0, 0.0
    return unit, mean, spread


@jit_exact
def _clip(x: float) -> np.float32:
    """The number clipped to MAX_SCALED; NaN stays NaN."""
    return np.float32(MAX_SCALED if x > MAX_SCALED else -MAX_SCALED if x < -MAX_SCALED else x)


@jit_exact
def fill_columns(
    cells: Array, rows: Array, layout: ScaledColumns, panel: tuple[Array, Array], n_missing: Array
) -> None:
    """Write G raw columns, `cells` [G, rows], scaled into the panel's two arrays.

    Row i goes to panel row rows[i]; -1 is nowhere. Adds missing cells to `n_missing` [rows].
    """
    (units, centres, spreads), columns, flags = layout
    continuous, categorical = panel
    scaled = np.empty(_BLOCK_ROWS, np.float32)
    for start in range(0, cells.shape[1], _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, cells.shape[1])
        for g in range(cells.shape[0]):
            raw = cells[g, start:stop]
            for i in range(len(raw)):
                n_missing[start + i] += raw[i] != raw[i]
            if columns[g] >= 0:
                unit, centre, spread = units[g], centres[g], spreads[g]
                if unit > 0.0:
                    for i in range(len(raw)):
                        scaled[i] = _clip((_signed_log(raw[i], unit) - centre) / spread)
                else:
                    for i in range(len(raw)):
                        scaled[i] = _clip((raw[i] - centre) / spread)
                for i in range(len(raw)):
                    if rows[start + i] >= 0:
                        continuous[rows[start + i], columns[g]] = scaled[i]
            if flags[g] >= 0:
                for i in range(len(raw)):
                    if rows[start + i] >= 0:
                        categorical[rows[start + i], flags[g]] = raw[i] != raw[i]


@jit_exact
def fill_row(cells: Array, layout: ScaledColumns, continuous: Array, categorical: Array) -> int:
    """`fill_columns` for the cells [G] of one row, to the same bits; returns missing cells."""
    (units, centres, spreads), columns, flags = layout
    scaled = np.empty(len(cells), np.float32)
    for g in range(len(cells)):  # dropped columns too, so that the loop vectorizes
        logged = _signed_log(cells[g], units[g])
        scaled[g] = _clip(((logged if units[g] > 0.0 else cells[g]) - centres[g]) / spreads[g])
    n_missing = 0
    for g in range(len(cells)):
        is_missing = cells[g] != cells[g]
        n_missing += is_missing
        if columns[g] >= 0:
            continuous[columns[g]] = scaled[g]
        if flags[g] >= 0:
            categorical[flags[g]] = is_missing
    return n_missing


@jit_exact
def flag_categories(codes: Array, n_columns: int, columns: Array, flags: Array) -> int:
    """Write the missing flags of some categories of one row; returns how many are missing."""
    for i in range(len(columns)):
        codes[flags[i]] = codes[columns[i]] < 0
    n_missing = 0
    for j in range(n_columns):
        n_missing += codes[j] < 0
    return n_missing
