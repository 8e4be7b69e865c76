"""A scorecard: the log odds of fraud as a sum of points, one for the bin of each column.

It rates a transaction by itself, as one of several causes of fraud. Its points are fitted so that
1 - (1 - other causes) (1 - scorecard) explains the labels: a fraud that another cause explains adds
few points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.tree import DecisionTreeRegressor

from turncoat.arrays import Array
from turncoat.numerics.engine import map_parts
from turncoat.numerics.jit import jit_exact

MAX_COLUMNS = 32
_MAX_BINS = 32
_MIN_BIN_ROWS = 20
_N_SCREENING_BINS = 32
_RIDGE = 0.5  # prior precision of a bin's points
_MAX_ITERATIONS = 60  # of a regression
_N_TURNS = 12
_N_PARTS = 32  # of the rows, for threads; sums are added in a fixed order


@dataclass(frozen=True, eq=False)
class Scorecard:
    """Points of each bin; the bins of column c are points[starts[c] : starts[c + 1]]."""

    columns: Array  # [C] among continuous, then categorical columns
    edges: Array  # [all edges] of the continuous columns, rising within a column
    edge_starts: Array  # [C + 1]; a categorical column has none
    starts: Array  # [C + 1]
    points: Array  # a missing value has the first bin of its column
    intercept: float

    @classmethod
    def fit(
        cls, continuous: Array, categorical: Array, labels: Array, others: Array, usable: Array
    ) -> Scorecard:
        """Fit to rows with labels 0 and 1; `others` [N] is the probability of other causes.

        `usable` [D + J] marks the columns that may be used.
        """
        base = np.clip(labels.mean(), 1e-6, 0.5)
        share = base / (1.0 - (1.0 - base) * (1.0 - others))
        targets = np.where(labels == 1, share, 0.0)  # frauds that this cause has to explain
        chosen = _screen_columns(continuous, categorical, targets, usable)
        n_continuous, edges, n_bins = continuous.shape[1], [], []
        for column in chosen:
            if column < n_continuous:
                edges.append(_find_edges(continuous[:, column], targets))
                n_bins.append(len(edges[-1]) + 2)
            else:
                edges.append(np.empty(0))
                n_bins.append(int(categorical[:, column - n_continuous].max()) + 2)
        starts = np.append(0, np.cumsum(n_bins)).astype(np.int64)
        edge_starts = np.append(0, np.cumsum([len(some) for some in edges])).astype(np.int64)
        joined = np.concatenate(edges) if edges else np.empty(0)
        empty = np.zeros(starts[-1]), float(np.log(base / (1.0 - base)))
        card = cls(chosen, joined, edge_starts, starts, *empty)
        return card._fit_points(card.find_bins(continuous, categorical), labels, others)

    def score(self, continuous: Array, categorical: Array) -> Array:
        """Log odds of N rows [N]."""
        bins = self.find_bins(continuous, categorical)
        return np.asarray(self.intercept + self.points[bins].sum(axis=1))

    def check(self, n_continuous: int, n_categories: tuple[int, ...]) -> None:
        """Raise ValueError if this is not a scorecard of a panel with these columns."""
        n, n_columns = len(self.columns), n_continuous + len(n_categories)
        for name, size in (("edge_starts", n + 1), ("starts", n + 1)):
            array = getattr(self, name)
            if array.shape != (size,) or array[0] != 0 or (np.diff(array) < 0).any():
                raise ValueError(f"a scorecard with impossible {name}")
        is_valid = len(self.edges) == self.edge_starts[-1] and len(self.points) == self.starts[-1]
        is_valid &= n == 0 or 0 <= self.columns.min() <= self.columns.max() < n_columns
        is_valid &= all(np.isfinite(part).all() for part in (self.edges, self.points))
        for place, column in enumerate(self.columns):
            n_edges = self.edge_starts[place + 1] - self.edge_starts[place]
            n_bins = self.starts[place + 1] - self.starts[place]
            is_valid &= n_bins == n_edges + 2 if column < n_continuous else n_edges == 0 < n_bins
            own = self.edges[self.edge_starts[place] : self.edge_starts[place + 1]]
            is_valid &= not (np.diff(own) < 0).any()
        if not is_valid or not np.isfinite(self.intercept):
            raise ValueError("a scorecard whose parts do not fit each other")

    def find_bins(self, continuous: Array, categorical: Array) -> Array:
        """The places of the rows' points [N, C]."""
        bins = np.empty((len(continuous), len(self.columns)), np.int64)
        n_continuous = continuous.shape[1]
        for place, column in enumerate(self.columns):
            start, last = self.starts[place], self.starts[place + 1] - 1
            if column < n_continuous:
                cells = continuous[:, column].astype(np.float64)
                edges = self.edges[self.edge_starts[place] : self.edge_starts[place + 1]]
                own = np.where(np.isnan(cells), 0, 1 + np.searchsorted(edges, cells, "left"))
            else:
                codes = categorical[:, column - n_continuous].astype(np.int64)
                own = np.where(codes + 1 > last - start, 0, codes + 1)  # rare codes as missing
            bins[:, place] = start + own
        return bins

    def find_range(self, place: int, bin_place: int) -> tuple[float, float]:
        """Bounds of a bin of the continuous column at `place`; NaN for that of missing values.

        Neighbours with about its points, from half to twice as many, belong to the range.
        """
        first, last = bin_place - self.starts[place], bin_place - self.starts[place]
        if first == 0:
            return math.nan, math.nan
        points = self.points[self.starts[place] : self.starts[place + 1]]
        sizes, own = points * np.sign(points[first]), abs(points[first])
        is_alike = (sizes >= 0.5 * own) & (sizes <= 2.0 * own)
        while first > 1 and is_alike[first - 1]:
            first -= 1
        while last < len(points) - 1 and is_alike[last + 1]:
            last += 1
        edges = self.edges[self.edge_starts[place] : self.edge_starts[place + 1]]
        bounds = np.concatenate([[-math.inf], edges, [math.inf]])
        return float(bounds[first - 1]), float(bounds[last])

    def _fit_points(self, bins: Array, labels: Array, others: Array) -> Scorecard:
        """The most likely points under a Gaussian prior, by EM.

        Each turn asks how likely this cause made each fraud, then fits a logistic regression to
        that. Every regression is convex; the likelihood itself has other, worse optima.
        """
        is_fraud = labels == 1
        at = np.append(self.points, self.intercept)
        targets = np.zeros(len(labels))

        cuts = np.linspace(0, len(bins), _N_PARTS + 1).astype(np.int64)

        def lose_part(part: Array, at: Array) -> tuple[float, Array]:
            rows = slice(part[0], part[-1])
            return _compute_logistic_loss(at, bins[rows], targets[rows])

        def lose(at: Array) -> tuple[float, Array]:
            losses, gradients = zip(*map_parts(cuts, partial(lose_part, at=at)), strict=True)
            loss, gradient = sum(losses), np.sum(gradients, axis=0)
            gradient[:-1] += _RIDGE * at[:-1]
            return loss + 0.5 * _RIDGE * float(at[:-1] @ at[:-1]), gradient

        options = {"maxiter": _MAX_ITERATIONS}
        for _ in range(_N_TURNS):
            own = expit(at[-1] + at[:-1][bins[is_fraud]].sum(axis=1))
            either = 1.0 - (1.0 - others[is_fraud]) * (1.0 - own)
            targets[is_fraud] = own / np.maximum(either, 1e-300)
            at = minimize(lose, at, jac=True, method="L-BFGS-B", options=options).x
        parts = self.columns, self.edges, self.edge_starts, self.starts
        return Scorecard(*parts, at[:-1], float(at[-1]))


@jit_exact
def _compute_logistic_loss(at: Array, bins: Array, targets: Array) -> tuple[float, Array]:
    """Log loss of all rows and its gradient; `at` holds the points, then the intercept."""
    loss, gradient = 0.0, np.zeros(len(at))
    for i in range(len(bins)):
        margin = at[-1]
        for place in bins[i]:
            margin += at[place]
        decay = math.exp(-abs(margin))
        loss += max(margin, 0.0) + math.log1p(decay) - targets[i] * margin
        slope = (1.0 if margin > 0.0 else decay) / (1.0 + decay) - targets[i]
        for place in bins[i]:
            gradient[place] += slope
        gradient[-1] += slope
    return loss, gradient


def _find_edges(cells: Array, targets: Array) -> Array:
    """Edges of a column's bins: the cuts of a regression tree of the targets."""
    is_known = ~np.isnan(cells)
    values = cells[is_known].astype(np.float64)
    if len(values) < 2 * _MIN_BIN_ROWS:
        return np.empty(0)
    tree = DecisionTreeRegressor(max_leaf_nodes=_MAX_BINS, min_samples_leaf=_MIN_BIN_ROWS)
    cuts = tree.fit(values[:, None], targets[is_known]).tree_
    return np.sort(cuts.threshold[cuts.feature >= 0])


def _screen_columns(continuous: Array, categorical: Array, targets: Array, usable: Array) -> Array:
    """The usable columns whose bins explain most of the targets' variance, the best first."""
    n_continuous, gains = continuous.shape[1], np.zeros(len(usable))
    for column in np.flatnonzero(usable):
        if column < n_continuous:
            cells = continuous[:, column]
            quantiles = np.linspace(0, 1, _N_SCREENING_BINS + 1)[1:-1]
            is_known = ~np.isnan(cells)
            if not is_known.any():
                continue
            edges = np.unique(np.quantile(cells[is_known], [*quantiles, 0.99, 0.999]))
            bins = np.where(is_known, 1 + np.searchsorted(edges, cells), 0)
        else:
            bins = categorical[:, column - n_continuous].astype(np.int64) + 1
        counts = np.bincount(bins)
        sums = np.bincount(bins, targets)
        is_used = counts > 0
        gain = (sums[is_used] ** 2 / counts[is_used]).sum() - targets.sum() ** 2 / len(targets)
        noise = (is_used.sum() - 1) * targets.var()  # what bins explain by chance
        gains[column] = gain - noise
    order = np.argsort(-gains, kind="stable")
    return order[gains[order] > 0][:MAX_COLUMNS].astype(np.int64)
