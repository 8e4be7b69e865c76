"""Whether regimes are ordered segments of one manifold with fraud fading from its tip: figures along a line, and sentences.

Chance is what shuffles give. A sharp boundary that the line crosses at a slant looks gradual: no figure here can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.evaluation.results import Axis

LEAST_ROWS = 20  # fewer are not laid out along a line
N_BINS = 20
ONE_PIECE = 0.75  # share in the largest piece of rows and of frauds, at least: strays of a single cloud in 64 dimensions are 0.2
SHALLOW = 0.5  # valley, at most
IN_SEGMENTS, PARTLY_SEGMENTED = 0.8, 0.5  # `segmented`, at least; and `adjacent` for the first
AT_ONE_END, PARTLY_AT_ONE_END = 0.8, 0.5  # `monotone`, at least
FALLS_OFF, PARTLY_FALLS_OFF = 0.5, 0.2  # `gradual`, at least
THE_HEADS_SCORE = 0.9  # rank correlation with it, at least, for a line to be called that
N_SHUFFLES = 39  # to be above all of them by chance has a probability of 1 in 40

HOLDS, IN_PART, FAILS, UNKNOWN = "holds", "holds in part", "does not hold", "cannot be judged"
_FEW = 10  # rows of a bin and of a regime with a centroid, at least
_LEAST_CELLS, _FEW_FRAUDS = 4, 5  # frauds of a cell, at least
_RAMP = 0.25  # what the best step leaves unexplained of an even ramp
_END_ROWS, _END_SHARE = 20, 0.01  # in which no peak and no valley is looked for: outliers are none
_GRID = 512
_ROUNDING = 1e-12


class Direction(NamedTuple):
    """Some rows, each at a place along one direction."""

    name: str
    rows: Array
    places: Array


class Walk(NamedTuple):
    """Regimes and labels of a line's rows in the order of their places, from where fraud is rarer to where it is commoner."""

    axis: Axis
    regimes: Array
    labels: Array


def walk(
    line: Direction,
    latents: Array,
    regimes: Array,
    labels: Array,
    n_states: int,
    head: Array | None = None,
) -> Walk:
    """Go along a line and measure it; `head` [N] is the encoder's own score of each row."""
    rows = line.rows[np.argsort(line.places, kind="stable")]
    rows = rows[::-1] if _falls(labels[rows]) else rows
    latents, regimes, labels = latents[rows], regimes[rows], labels[rows]
    bins = _bins(len(rows))
    shares = np.zeros((int(bins[-1]) + 1, n_states))
    np.add.at(shares, (bins, regimes), 1.0)
    order = sorted(
        np.unique(regimes).tolist(),
        key=lambda regime: float(np.median(np.flatnonzero(regimes == regime))),
    )
    axis = Axis(
        line.name,
        tuple(_shares(labels, bins).tolist()),
        tuple(map(tuple, (shares / shares.sum(1, keepdims=True)).tolist())),
        tuple(order),
        segmented(regimes),
        adjacent(latents, regimes, order),
        gradual(labels),
        monotone(labels),
        valley(line.places),
        None if head is None else correlation(head[rows]),
    )
    return Walk(axis, regimes, labels)


def segmented(regimes: Array) -> float:
    """Between regimes, the share of the variance of ranks [N], over what it would be if each regime were one unbroken segment.

    1 for unbroken segments of any sizes, near 0 for regimes mixed throughout, and 0 with one regime only.
    """
    n_rows, counts = len(regimes), np.bincount(regimes).astype(np.float64)
    held = counts > 0
    if held.sum() < 2:
        return 0.0
    within = (
        counts**3 - counts
    ).sum() / 12.0  # sum of squares of consecutive ranks about their mean
    whole = (n_rows**3 - n_rows) / 12.0
    means = np.bincount(regimes, np.arange(n_rows))[held] / counts[held]
    return float((counts[held] * (means - (n_rows - 1) / 2.0) ** 2).sum() / (whole - within))


def adjacent(latents: Array, regimes: Array, order: Sequence[int]) -> float | None:
    """Of regimes, the share whose nearest centroid among all latents is that of a regime next to them in the order.

    1 for centroids along any line; 2 / K by chance. Regimes of fewer than 10 rows are left out; None below 3 others.
    """
    from scipy.spatial.distance import cdist

    centroids = [
        latents[regimes == regime].mean(axis=0)
        for regime in order
        if (regimes == regime).sum() >= _FEW
    ]
    if len(centroids) < 3:
        return None
    distances = cdist(centroids, centroids)
    np.fill_diagonal(distances, np.inf)
    return float((abs(distances.argmin(axis=1) - np.arange(len(centroids))) == 1).mean())


def monotone(labels: Array) -> float | None:
    """Share of the variance over bins of the fraud share that the best rising curve explains; None if all labels are the same."""
    if labels.min() == labels.max():
        return None
    bins = _bins(len(labels))
    shares, weights = _shares(labels, bins), np.bincount(bins)
    whole = float((weights * (shares - labels.mean()) ** 2).sum())
    return _rising(shares, weights) / whole if whole > _ROUNDING else 0.0


def gradual(labels: Array) -> float | None:
    """What the best rising curve of the fraud share explains beyond the best single step, over what it would be for an even ramp.

    0 if fraud switches at one place, 1 if it rises as evenly as a ramp or more so; None if it does not rise, or for fewer
    than 20 frauds. Shares are those of 4 to 20 cells with as many frauds each, 5 at least, as all the rise may be in the last bin.
    """
    cells = _cells(labels)
    shares, weights = _shares(labels, cells), np.bincount(cells)
    curve = _rising(shares, weights)
    if len(shares) < _LEAST_CELLS or curve <= _ROUNDING:
        return None
    return float(np.clip((1.0 - _best_step(shares, weights)[0] / curve) / _RAMP, 0.0, 1.0))


def valley(places: Array) -> float:
    """Depth of the deepest valley of the density, relative to the lower of the highest peaks on its two sides.

    0 without one, 1 for a gap. The density's ends, with 20 rows and one in a hundred each, are left out. The kernel is two thirds as
    wide as Silverman's, which would smear several peaks into one.
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


def correlation(scores: Array) -> float | None:
    """Rank correlation of scores with their places; None if all are the same."""
    from scipy.stats import spearmanr

    return (
        None
        if scores.min() == scores.max()
        else float(spearmanr(np.arange(len(scores)), scores).statistic)
    )


def verdict(
    walks: Sequence[Walk], in_piece: Array, labels: Array, fraud_regime: int, seed: int
) -> tuple[str, ...]:
    """What of the claim holds, in sentences, along the line on which regimes are more segmented: the kinder one to the claim.

    Given are also, of all rows [N], which are in the largest piece, and the labels.
    """
    n_rows = len(labels)
    if not walks:
        return (
            f"Whether latents are one manifold {UNKNOWN}: too few of the {n_rows:,} rows differ (at least {LEAST_ROWS} must).",
        )
    best = max(walks, key=lambda one: one.axis.segmented)
    others = [
        f"{one.axis.segmented:.2f} along the {one.axis.name}" for one in walks if one is not best
    ]
    rng = np.random.default_rng(seed)
    chance = _highest(lambda: monotone(_turned(rng.permutation(best.labels))) or 0.0)
    return (
        f"ScoredLabels along the {best.axis.name}, which places {len(best.labels):,} of {n_rows:,} rows and on which regimes are "
        f"{best.axis.segmented:.2f} segmented{''.join(f' ({other})' for other in others)}; no figure here comes from UMAP.",
        _on_pieces(best, in_piece, labels),
        _on_segments(best, rng),
        _on_tip(best, fraud_regime, chance),
        _on_fading(best, chance, rng),
        *_on_head(best),
    )


def smaller_share(held: Array, labels: Array) -> float:
    """The share of rows that is held, or that of frauds if it is smaller."""
    return float(min(held.mean(), held[labels == 1].mean() if labels.any() else 1.0))


def _on_pieces(best: Walk, in_piece: Array, labels: Array) -> str:
    passed = (smaller_share(in_piece, labels) >= ONE_PIECE) + (best.axis.valley <= SHALLOW)
    frauds = f" and {in_piece[labels == 1].mean():.1%} of frauds" if labels.any() else ""
    return (
        f"One continuous piece: {(FAILS, IN_PART, HOLDS)[passed]}. The largest piece of the mutual neighbours' graph has "
        f"{in_piece.mean():.1%} of rows{frauds} (wanted: {ONE_PIECE:.0%}), and the deepest valley of the density is "
        f"{best.axis.valley:.2f} deep (at most {SHALLOW:.2f})."
    )


def _on_segments(best: Walk, rng: np.random.Generator) -> str:
    axis = best.axis
    if len(axis.order) < 2:
        return f"Regimes are ordered segments: {UNKNOWN}, as all rows are in one."
    chance = _highest(lambda: segmented(rng.permutation(best.regimes)))
    grade = _grade(
        axis.segmented,
        chance,
        IN_SEGMENTS,
        PARTLY_SEGMENTED,
        axis.adjacent is None or axis.adjacent >= IN_SEGMENTS,
    )
    beside = (
        ""
        if axis.adjacent is None
        else f"; {axis.adjacent:.0%} of regimes lie next to the one they are nearest to (wanted: {IN_SEGMENTS:.0%})"
    )
    return (
        f"Regimes are ordered segments: {grade}. They are {axis.segmented:.2f} segmented (1 is clean; wanted: {IN_SEGMENTS:.2f}; shuffled "
        f"regimes reach {chance:.2f}){beside}."
    )


def _on_tip(best: Walk, fraud_regime: int, chance: float) -> str:
    axis = best.axis
    if axis.monotone is None:
        return f"Fraud lies at one end: {UNKNOWN}, as all rows have the same label."
    grade = _grade(
        axis.monotone, chance, AT_ONE_END, PARTLY_AT_ONE_END, axis.order[-1] == fraud_regime
    )
    last = (
        best.labels[_bins(len(best.labels)) == len(axis.fraud_share) - 1].sum() / best.labels.sum()
    )
    where = (
        f"is number {axis.order.index(fraud_regime) + 1} of {len(axis.order)} along it (wanted: the last)"
        if fraud_regime in axis.order
        else "has no row here"
    )
    return (
        f"Fraud lies at one end: {grade}. A rising curve explains {axis.monotone:.0%} of the variance of its share (wanted: "
        f"{AT_ONE_END:.0%}; shuffled labels reach {chance:.0%}), the last of {len(axis.fraud_share)} bins has {last:.0%} of frauds, and "
        f"the fraud regime {where}."
    )


def _on_fading(best: Walk, label_chance: float, rng: np.random.Generator) -> str:
    axis, claim = best.axis, "Fraud falls off gradually from there"
    if axis.monotone is not None and axis.monotone <= label_chance:
        return f"{claim}: {FAILS}. A rising curve explains its share no better than with shuffled labels."
    if axis.gradual is None:
        return f"{claim}: {UNKNOWN}, with {int(best.labels.sum()):,} frauds in {len(best.labels):,} rows."
    cells = _cells(best.labels)
    switch = _best_step(_shares(best.labels, cells), np.bincount(cells))[1]
    edge = int(np.searchsorted(cells, switch))
    sides = best.labels[:edge], best.labels[edge:]
    chance = _highest(
        lambda: gradual(np.concatenate([rng.permutation(side) for side in sides])) or 0.0
    )
    grade = _grade(axis.gradual, chance, FALLS_OFF, PARTLY_FALLS_OFF)
    grade = UNKNOWN if grade == FAILS and chance >= FALLS_OFF else grade
    return (
        f"{claim}: {grade}. On a scale from 0 for a switch at one boundary to 1 for an even ramp it is at {axis.gradual:.2f} (wanted: "
        f"{FALLS_OFF:.2f}; labels shuffled on both sides of the best boundary reach {chance:.2f})."
    )


def _on_head(best: Walk) -> tuple[str, ...]:
    if best.axis.head is None:
        return ()
    found = f"Places along it have a rank correlation of {best.axis.head:.2f} with the score of the encoder's own head"
    if best.axis.head < THE_HEADS_SCORE:
        return (f"{found}.",)
    return (
        f"{found}: the line is that score. An encoder trained to tell fraud from the rest with a linear head lays rows out along one "
        "direction, so a single manifold with fraud at its end is what its training asks for, not something it found.",
    )


def _grade(figure: float, chance: float, enough: float, partly: float, also: bool = True) -> str:
    if figure <= chance or figure < partly:
        return FAILS
    return HOLDS if figure >= enough and also else IN_PART


def _highest(draw: Callable[[], float]) -> float:
    return max(draw() for _ in range(N_SHUFFLES))


def _falls(labels: Array) -> bool:
    """Whether frauds are, on average, in the first half."""
    return bool((labels * (np.arange(len(labels)) - (len(labels) - 1) / 2.0)).sum() < 0.0)


def _turned(labels: Array) -> Array:
    return labels[::-1] if _falls(labels) else labels


def _bins(n_rows: int) -> Array:
    """The bin of each place [N]: 20, or fewer so that they have 10 rows each; sizes differ by one at most."""
    return np.arange(n_rows) * max(1, min(N_BINS, n_rows // _FEW)) // n_rows


def _cells(labels: Array) -> Array:
    """The cell of each place [N], each with as many frauds."""
    n_frauds = int(labels.sum())
    n_cells = max(1, min(N_BINS, n_frauds // _FEW_FRAUDS))
    return np.asarray(
        np.minimum((labels.cumsum() - labels) * n_cells // max(1, n_frauds), n_cells - 1)
    )


def _shares(labels: Array, groups: Array) -> Array:
    return np.asarray(np.bincount(groups, labels) / np.bincount(groups))


def _rising(shares: Array, weights: Array) -> float:
    """Sum of squares that the best rising curve explains."""
    from sklearn.isotonic import isotonic_regression

    fitted = isotonic_regression(shares, sample_weight=weights)
    return float((weights * (fitted - np.average(shares, weights=weights)) ** 2).sum())


def _best_step(shares: Array, weights: Array) -> tuple[float, int]:
    """Sum of squares that the best single rise explains, and the first cell after it."""
    before, sums = weights.cumsum()[:-1], (weights * shares).cumsum()
    after = weights.sum() - before
    rise = (sums[-1] - sums[:-1]) / after - sums[:-1] / before
    explained = np.where(rise > 0.0, rise**2 * before * after / weights.sum(), 0.0)
    return float(explained.max()), int(explained.argmax()) + 1
