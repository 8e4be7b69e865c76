"""Tests whether regimes are ordered segments of one manifold with fraud fading from its tip.

Chance levels come from shuffles. A sharp boundary that an axis crosses at a slant looks gradual;
no measure here can tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr
from sklearn.isotonic import isotonic_regression

from turncoat.arrays import Array

Graded = tuple[str, float | None]  # a grade, and the level that shuffles reach

MIN_ROWS = 20  # fewer are not laid out along an axis
N_BINS = 20
# Share of rows and of frauds in the largest piece; strays of one cloud in 64 dimensions are 0.2.
MIN_PIECE = 0.75
MAX_VALLEY = 0.5
MIN_SEGMENTED, MIN_PARTLY_SEGMENTED = 0.8, 0.5  # the first also for `adjacency`
MIN_MONOTONE, MIN_PARTLY_MONOTONE = 0.8, 0.5
MIN_GRADUAL, MIN_PARTLY_GRADUAL = 0.5, 0.2
N_SHUFFLES = 39  # to be above all of them by chance has a probability of 1 in 40

HOLDS, PARTLY, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "cannot be tested"
_MIN_GROUP_ROWS = 10  # of a bin, and of a regime with a centroid
_MIN_CELLS, _MIN_CELL_FRAUDS = 4, 5
_RAMP = 0.25  # what the best step leaves unexplained of an even ramp
_END_ROWS, _END_SHARE = 20, 0.01  # outliers at both ends, without peaks and valleys
_GRID = 512
_ROUNDING = 1e-12


@dataclass(frozen=True)
class LatentAxis:
    """Rows along one direction of the latents, in bins of equally many rows."""

    name: str  # "first principal component" or "first diffusion component"
    fraud_rate: tuple[float, ...]  # by bin
    regime_shares: tuple[tuple[float, ...], ...]  # by bin, of every regime
    regime_order: tuple[int, ...]  # by median place
    segmentation: float  # 1 if regimes are unbroken segments, 0 if they are mixed
    adjacency: float | None  # share of regimes nearest to a neighbour on the axis; None below 3
    gradualness: float | None  # 0 for a switch, 1 for an even ramp of fraud; None with few frauds
    monotonicity: float | None  # share of the variance of `fraud_rate` that a monotone fit explains
    valley_depth: float  # of the density: 0 without a valley, 1 for a gap
    head_correlation: float | None = None  # rank correlation with the encoder's own head


@dataclass(frozen=True)
class ManifoldTest:
    """Which parts of the claim hold along the most segmented axis; chance comes from shuffles."""

    axis: int  # place among the map's axes
    n_rows: int  # placed on it
    n_frauds: int
    fraud_in_piece: float | None  # share of frauds in the largest piece
    one_piece: str
    segments: str
    segments_chance: float | None
    fraud_at_end: str
    fraud_at_end_chance: float
    fraud_in_last_bin: float | None  # share of frauds
    fading: str
    fading_chance: float | None


class Direction(NamedTuple):
    """Some rows, each at a place along one direction."""

    name: str
    rows: Array
    places: Array


class Walk(NamedTuple):
    """Regimes and labels of an axis' rows, from where fraud is rarer to where it is commoner."""

    axis: LatentAxis
    regimes: Array
    labels: Array


def walk(
    direction: Direction,
    latents: Array,
    regimes: Array,
    labels: Array,
    n_states: int,
    head: Array | None = None,
) -> Walk:
    """Measure a direction; `head` [N] is the score of the encoder's own head."""
    rows = direction.rows[np.argsort(direction.places, kind="stable")]
    rows = rows[::-1] if _falls(labels[rows]) else rows
    latents, regimes, labels = latents[rows], regimes[rows], labels[rows]
    bins = _assign_bins(len(rows))
    shares = np.zeros((int(bins[-1]) + 1, n_states))
    np.add.at(shares, (bins, regimes), 1.0)
    scores = None if head is None or head[rows].min() == head[rows].max() else head[rows]
    order = np.unique(regimes).tolist()
    order.sort(key=lambda regime: np.median(np.flatnonzero(regimes == regime)))
    axis = LatentAxis(
        direction.name,
        tuple(_group_means(labels, bins).tolist()),
        tuple(map(tuple, (shares / shares.sum(1, keepdims=True)).tolist())),
        tuple(order),
        measure_segmentation(regimes),
        measure_adjacency(latents, regimes, order),
        measure_gradualness(labels),
        measure_monotonicity(labels),
        measure_valley(direction.places),
        None if scores is None else float(spearmanr(np.arange(len(rows)), scores).statistic),
    )
    return Walk(axis, regimes, labels)


def measure_segmentation(regimes: Array) -> float:
    """1 if regimes [N] are unbroken segments, near 0 if they are mixed, and 0 with only one."""
    n_rows, counts = len(regimes), np.bincount(regimes).astype(np.float64)
    present = counts > 0
    if present.sum() < 2:
        return 0.0
    # Sum of squares of consecutive ranks about their mean, within segments and in all.
    within, whole = (counts**3 - counts).sum() / 12.0, (n_rows**3 - n_rows) / 12.0
    means = np.bincount(regimes, np.arange(n_rows))[present] / counts[present]
    between = (counts[present] * (means - (n_rows - 1) / 2.0) ** 2).sum()
    return float(between / (whole - within))


def measure_adjacency(latents: Array, regimes: Array, order: Sequence[int]) -> float | None:
    """Share of regimes whose nearest centroid belongs to a neighbour in the order.

    1 for centroids along any curve, 2 / K by chance. Regimes of fewer than 10 rows are left out;
    None if fewer than 3 remain.
    """
    masks = [regimes == regime for regime in order]
    centroids = [latents[mask].mean(axis=0) for mask in masks if mask.sum() >= _MIN_GROUP_ROWS]
    if len(centroids) < 3:
        return None
    distances = cdist(centroids, centroids)
    np.fill_diagonal(distances, np.inf)
    return float((abs(distances.argmin(axis=1) - np.arange(len(centroids))) == 1).mean())


def measure_monotonicity(labels: Array) -> float | None:
    """Share of the fraud rate's variance over bins that the best rising curve explains, or None."""
    if labels.min() == labels.max():
        return None
    bins = _assign_bins(len(labels))
    rates, weights = _group_means(labels, bins), np.bincount(bins)
    whole = float((weights * (rates - labels.mean()) ** 2).sum())
    return _explain_by_rise(rates, weights) / whole if whole > _ROUNDING else 0.0


def measure_gradualness(labels: Array) -> float | None:
    """What a rising curve of the fraud rate explains beyond one step, relative to an even ramp.

    0 if fraud switches at one place, 1 if it rises as evenly as a ramp; None if it does not rise,
    or with fewer than 20 frauds. Rates are of 4 to 20 cells with equally many frauds, at least 5,
    because all of the rise may be in the last bin.
    """
    cells = _assign_cells(labels)
    rates, weights = _group_means(labels, cells), np.bincount(cells)
    curve = _explain_by_rise(rates, weights)
    if len(rates) < _MIN_CELLS or curve <= _ROUNDING:
        return None
    return float(np.clip((1.0 - _explain_by_step(rates, weights)[0] / curve) / _RAMP, 0.0, 1.0))


def measure_valley(places: Array) -> float:
    """Depth of the density's deepest valley, relative to the lower of the peaks on its sides.

    0 without a valley, 1 for a gap. Outliers at the ends are left out: 20 rows and one in a hundred
    each. The kernel is two thirds as wide as Silverman's, which would merge several peaks.
    """
    end = max(_END_ROWS, math.ceil(_END_SHARE * len(places)))
    inner = np.sort(places)[end:-end]
    if len(inner) == 0 or inner[0] == inner[-1]:
        return 0.0
    width = 0.6 * float(inner.std()) * len(places) ** -0.2
    grid = np.linspace(inner[0], inner[-1], _GRID)
    density = np.array([np.exp(-0.5 * ((place - places) / width) ** 2).sum() for place in grid])
    peaks = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    return float((1.0 - density / peaks).max())


def grade_claims(
    walks: Sequence[Walk], in_piece: Array, labels: Array, fraud_regime: int, seed: int
) -> ManifoldTest | None:
    """Grade the claim along the most segmented axis, the kindest to it; None without an axis."""
    if not walks:
        return None
    best = max(range(len(walks)), key=lambda place: walks[place].axis.segmentation)
    axis, regimes, own_labels = walks[best]
    rng = np.random.default_rng(seed)

    def shuffle_labels() -> float:
        labels = rng.permutation(own_labels)
        return measure_monotonicity(labels[::-1] if _falls(labels) else labels) or 0.0

    end_chance = max(shuffle_labels() for _ in range(N_SHUFFLES))
    n_passed = (smaller_share(in_piece, labels) >= MIN_PIECE) + (axis.valley_depth <= MAX_VALLEY)
    at_end = UNKNOWN
    if axis.monotonicity is not None:
        limits = (MIN_MONOTONE, MIN_PARTLY_MONOTONE)
        is_last = axis.regime_order[-1] == fraud_regime
        at_end = _grade(axis.monotonicity, end_chance, *limits, is_last)
    segments, segments_chance = _grade_segments(axis, regimes, rng)
    fading, fading_chance = _grade_fading(axis, own_labels, end_chance, rng)
    last_bin = _assign_bins(len(own_labels)) == len(axis.fraud_rate) - 1
    n_frauds = int(own_labels.sum())
    return ManifoldTest(
        axis=best,
        n_rows=len(own_labels),
        n_frauds=n_frauds,
        fraud_in_piece=float(in_piece[labels == 1].mean()) if labels.any() else None,
        one_piece=(FAILS, PARTLY, HOLDS)[n_passed],
        segments=segments,
        segments_chance=segments_chance,
        fraud_at_end=at_end,
        fraud_at_end_chance=end_chance,
        fraud_in_last_bin=float(own_labels[last_bin].sum() / n_frauds) if n_frauds else None,
        fading=fading,
        fading_chance=fading_chance,
    )


def smaller_share(mask: Array, labels: Array) -> float:
    """The marked share of rows or of frauds, whichever is smaller."""
    return float(min(mask.mean(), mask[labels == 1].mean() if labels.any() else 1.0))


def _grade_segments(axis: LatentAxis, regimes: Array, rng: np.random.Generator) -> Graded:
    if len(axis.regime_order) < 2:
        return UNKNOWN, None
    chance = max(measure_segmentation(rng.permutation(regimes)) for _ in range(N_SHUFFLES))
    is_adjacent = axis.adjacency is None or axis.adjacency >= MIN_SEGMENTED
    limits = (MIN_SEGMENTED, MIN_PARTLY_SEGMENTED)
    return _grade(axis.segmentation, chance, *limits, is_adjacent), chance


def _grade_fading(axis: LatentAxis, labels: Array, end: float, rng: np.random.Generator) -> Graded:
    """The grade; `end` is the monotonicity that shuffled labels reach."""
    if axis.monotonicity is not None and axis.monotonicity <= end:
        return FAILS, None
    if axis.gradualness is None:
        return UNKNOWN, None
    cells = _assign_cells(labels)
    switch = _explain_by_step(_group_means(labels, cells), np.bincount(cells))[1]
    edge = int(np.searchsorted(cells, switch))

    def shuffle_sides() -> float:
        sides = rng.permutation(labels[:edge]), rng.permutation(labels[edge:])
        return measure_gradualness(np.concatenate(sides)) or 0.0

    chance = max(shuffle_sides() for _ in range(N_SHUFFLES))
    grade = _grade(axis.gradualness, chance, MIN_GRADUAL, MIN_PARTLY_GRADUAL)
    return (UNKNOWN if grade == FAILS and chance >= MIN_GRADUAL else grade), chance


def _grade(value: float, chance: float, full: float, partly: float, also: bool = True) -> str:
    if value <= chance or value < partly:
        return FAILS
    return HOLDS if value >= full and also else PARTLY


def _falls(labels: Array) -> bool:
    """Whether frauds are, on average, in the first half."""
    return bool((labels * (np.arange(len(labels)) - (len(labels) - 1) / 2.0)).sum() < 0.0)


def _assign_bins(n_rows: int) -> Array:
    """The bin of each place [N]: up to 20 of at least 10 rows; sizes differ by at most one."""
    return np.arange(n_rows) * max(1, min(N_BINS, n_rows // _MIN_GROUP_ROWS)) // n_rows


def _assign_cells(labels: Array) -> Array:
    """The cell of each place [N]; every cell has equally many frauds."""
    n_frauds = int(labels.sum())
    n_cells = max(1, min(N_BINS, n_frauds // _MIN_CELL_FRAUDS))
    cells = (labels.cumsum() - labels) * n_cells // max(1, n_frauds)
    return np.asarray(np.minimum(cells, n_cells - 1))


def _group_means(labels: Array, groups: Array) -> Array:
    return np.asarray(np.bincount(groups, labels) / np.bincount(groups))


def _explain_by_rise(rates: Array, weights: Array) -> float:
    """Sum of squares that the best rising curve explains."""
    fitted = isotonic_regression(rates, sample_weight=weights)
    return float((weights * (fitted - np.average(rates, weights=weights)) ** 2).sum())


def _explain_by_step(rates: Array, weights: Array) -> tuple[float, int]:
    """Sum of squares that the best single rise explains, and the first cell after it."""
    before, sums = weights.cumsum()[:-1], (weights * rates).cumsum()
    after = weights.sum() - before
    rise = (sums[-1] - sums[:-1]) / after - sums[:-1] / before
    explained = np.where(rise > 0.0, rise**2 * before * after / weights.sum(), 0.0)
    return float(explained.max()), int(explained.argmax()) + 1
