"""The reference for drift: the traffic and the scores of the calibration part.

Young histories differ from old ones, whatever their customers do. So only transactions of customers
known for a month count, here and live, or for as long as half of the calibration rows allow.

Transactions of one customer resemble each other. A design effect says how many times larger that
makes the variance of a mean or share than it were with independent transactions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.special import expit, logit

from turncoat.arrays import Array
from turncoat.scoring.regimes import check_arrays

MAX_AGE_S = 30 * 86_400.0  # of a history that is too young to count
MAX_CELL = 20.0  # spreads; cells are clipped here so that no single row decides a mean
_PERCENTILES = (5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 97, 98, 99, 99.5, 99.9)
_QUANTILES = np.array(_PERCENTILES) / 100  # finer where fraud is
MAX_SCORE_BINS = len(_QUANTILES) + 1
_MIN_GAP = 1e-3  # log odds; scores closer than this differ by rounding only
_MIN_PROBABILITY = 1e-12
_MAX_SAMPLES = 4096
_BLOCK_ROWS = 16_384
_MAX_EFFECT = 1e6


@dataclass(frozen=True, eq=False)
class Reference:
    """Filtered calibration rows by regime, and the distribution of their scores."""

    min_age_s: float  # rows of customers known for less are not counted
    n_rows: int  # transactions
    occupancy: Array  # [K] share of the transactions
    means: Array  # [K, D] of the panel's continuous columns, weighted by belief; 0 without mass
    spreads: Array  # [K, D] standard deviations
    mass: Array  # [K, D] transactions behind each, without missing cells
    effects: Array  # [K, D] design effects of the means
    occupancy_effects: Array  # [K] of the shares
    edges: Array  # [B + 1] from 0 to 1: bin b is edges[b] <= score < edges[b + 1]; the last has 1
    counts: Array  # [B] transactions in each bin
    mean_score: float
    score_effect: float  # design effect of the counts
    beliefs: Array  # [M, K] of evenly spaced rows, to score under another calibration
    customers: Array  # [M] of the same rows: numbers that rise from customer to customer
    ranker_scores: Array | None = None  # [M] of the same rows; None without a ranker

    @classmethod
    def measure(
        cls,
        beliefs: Array,
        cells: Array,
        scores: Array,
        offsets: Array,
        ages_s: Array,
        ranker_scores: Array | None = None,
    ) -> Reference:
        """From filtered beliefs [N, K], continuous cells [N, D] (NaN if missing), scores [N].

        Customer u has rows offsets[u] to offsets[u + 1]; `ages_s` [N] is the time since the
        customer's first transaction.
        """
        min_age_s = min(MAX_AGE_S, float(np.quantile(ages_s, 0.5, method="lower")))
        old = np.flatnonzero(ages_s >= min_age_s)
        beliefs, cells, scores = beliefs[old], cells[old], scores[old]
        customers = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[old]
        n_rows = len(old)
        occupancy = beliefs.mean(axis=0, dtype=np.float64)
        starts = np.flatnonzero(np.diff(customers, prepend=-1))
        traffic = occupancy, *_measure_cells(beliefs, cells, starts)
        occupancy_effects = _measure_occupancy_effects(beliefs, occupancy, starts)
        kept = np.linspace(0, n_rows - 1, min(n_rows, _MAX_SAMPLES)).round().astype(np.int64)
        sample = beliefs[kept].astype(np.float32), customers[kept].astype(np.int32)
        ranks = None if ranker_scores is None else ranker_scores[old][kept].astype(np.float64)
        score_figures = _count_scores(scores, customers)
        return cls(min_age_s, n_rows, *traffic, occupancy_effects, *score_figures, *sample, ranks)

    def replace_scores(self, scores: Array) -> Reference:
        """The same traffic with other scores, one for each of the sampled `beliefs`."""
        edges, counts, mean, effect = _count_scores(scores, self.customers)
        return replace(self, edges=edges, counts=counts, mean_score=mean, score_effect=effect)

    def check(self, n_states: int, n_columns: int, has_ranker: bool) -> None:
        """Raise ValueError if this is not the reference of such a detector."""
        n_bins, n_samples = len(self.counts), len(self.beliefs)
        check_arrays(self, (n_states,), "occupancy", "occupancy_effects")
        check_arrays(self, (n_states, n_columns), "means", "spreads", "mass", "effects")
        check_arrays(self, (n_bins + 1,), "edges")
        check_arrays(self, (n_bins,), "counts")
        check_arrays(self, (n_samples, n_states), "beliefs", dtype="f4")
        check_arrays(self, (n_samples,), "customers", dtype="i4")
        for array in (self.occupancy, self.spreads, self.mass, self.counts, self.beliefs):
            if (array < 0).any():
                raise ValueError("the reference has shares, counts or spreads below 0")
        effects = self.effects, self.occupancy_effects, np.array([self.score_effect])
        if not all((array >= 1).all() for array in effects) or not self.min_age_s >= 0:
            raise ValueError("the reference has design effects below 1, or ages below 0")
        ends = self.edges[0], self.edges[-1]
        if ends != (0, 1) or (np.diff(self.edges) <= 0).any() or not self.counts.sum() > 0:
            raise ValueError("the score bins of the reference are not valid")
        if not n_samples or not self.n_rows > 0 or not 0 <= self.mean_score <= 1:
            raise ValueError("the reference has no rows, or no mean score")
        scores = self.ranker_scores
        if (scores is not None) != has_ranker or (scores is not None and len(scores) != n_samples):
            raise ValueError("the ranker scores of the reference are not those of this detector")


def compute_moments(mass: Array, sums: Array, squares: Array) -> tuple[Array, Array]:
    """Means and standard deviations from weighted sums; 0 without mass."""
    means = np.divide(sums, mass, out=np.zeros_like(mass), where=mass > 0)
    seconds = np.divide(squares, mass, out=np.zeros_like(mass), where=mass > 0)
    return means, np.sqrt(np.maximum(seconds - means**2, 0.0))


def find_score_bins(inner_edges: Array, scores: Array) -> Array:
    """The bin of each score."""
    return np.searchsorted(inner_edges, scores, side="right")


def _measure_cells(beliefs: Array, rows: Array, starts: Array) -> tuple[Array, Array, Array, Array]:
    """Mean, standard deviation, mass and design effect of each column in each regime [K, D].

    `starts` are the first rows of the customers.
    """
    shape = beliefs.shape[1], rows.shape[1]
    # Over all rows, then over customers: of their masses W and sums S.
    mass, sums, squares, mass_squares, products, sum_squares = (np.zeros(shape) for _ in range(6))
    places = np.searchsorted(starts, np.arange(0, len(rows), _BLOCK_ROWS))
    firsts = starts[np.unique(places[places < len(starts)])]  # blocks of whole customers
    for start, stop in pairwise([*firsts.tolist(), len(rows)]):
        own = starts[(starts >= start) & (starts < stop)] - start
        weights = beliefs[start:stop].astype(np.float64).T
        cells = np.clip(rows[start:stop].astype(np.float64), -MAX_CELL, MAX_CELL)
        is_present = np.isfinite(cells)
        cells[~is_present] = 0.0
        squares += weights @ cells**2
        for k, regime_weights in enumerate(weights[:, :, None]):
            own_mass = np.add.reduceat(regime_weights * is_present, own)
            own_sums = np.add.reduceat(regime_weights * cells, own)
            mass[k] += own_mass.sum(axis=0)
            sums[k] += own_sums.sum(axis=0)
            mass_squares[k] += (own_mass**2).sum(axis=0)
            products[k] += (own_mass * own_sums).sum(axis=0)
            sum_squares[k] += (own_sums**2).sum(axis=0)
    means, spreads = compute_moments(mass, sums, squares)
    scatter = sum_squares - 2 * means * products + means**2 * mass_squares  # of S - mean W
    return means, spreads, mass, _design_effect(scatter, mass * spreads**2, mass, mass_squares)


def _measure_occupancy_effects(beliefs: Array, occupancy: Array, starts: Array) -> Array:
    """Design effect of each regime's share of the transactions [K]."""
    n_rows = len(beliefs)
    sizes = np.diff(starts, append=n_rows).astype(np.float64)
    sums = np.add.reduceat(beliefs.astype(np.float64), starts)
    scatter = ((sums - sizes[:, None] * occupancy) ** 2).sum(axis=0)
    expected = n_rows * occupancy * (1 - occupancy)
    return _design_effect(scatter, expected, np.array(float(n_rows)), (sizes**2).sum())


def _design_effect(scatter: Array, expected: Array, mass: Array, mass_squares: Array) -> Array:
    """The ratio of a variance over customers to the one `expected` of independent rows.

    Never below 1. Few customers say little about how customers differ: with the mass of n equal
    customers the ratio is multiplied by n / (n - 3), and is very large for three or fewer.
    """
    ratio = np.divide(scatter, expected, out=np.zeros_like(expected), where=expected > 1e-12)
    with np.errstate(divide="ignore", invalid="ignore"):
        n_customers = np.nan_to_num(mass**2 / mass_squares)
    effect = np.maximum(ratio, 1.0) * n_customers / np.maximum(n_customers - 3.0, 1e-9)
    return np.clip(effect, 1.0, _MAX_EFFECT)


def _count_scores(scores: Array, customers: Array) -> tuple[Array, Array, float, float]:
    """Edges of score bins [B + 1], counts [B], the mean score and the counts' design effect."""
    inner = _find_edges(scores)
    n_bins, bins = len(inner) + 1, find_score_bins(inner, scores)
    _, codes = np.unique(customers, return_inverse=True)
    shape = int(codes.max()) + 1, n_bins
    table = np.bincount(codes * n_bins + bins, minlength=shape[0] * n_bins).reshape(shape)
    counts, sizes = table.sum(axis=0), table.sum(axis=1, dtype=np.float64)
    shares = counts / len(scores)
    scatter = ((table - sizes[:, None] * shares) ** 2).sum(axis=0)
    # Of the stability index: the sum over bins of the shares' variances divided by the shares.
    index = np.divide(scatter, counts, out=np.zeros(n_bins), where=counts > 0).sum()
    about = np.array(float(n_bins - 1)), sizes.sum(), (sizes**2).sum()
    effect = float(_design_effect(index, *about))
    edges = np.concatenate([[0.0], inner, [1.0]])
    return edges, counts.astype(np.float64), float(scores.mean()), effect


def _find_edges(scores: Array) -> Array:
    """Inner edges near the quantiles, in the widest gap nearby; none where scores are equal."""
    odds = logit(np.clip(np.sort(scores), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY))
    gaps = np.diff(odds)
    halfway = (_QUANTILES[1:] + _QUANTILES[:-1]) / 2
    bounds = (np.concatenate([[0.0], halfway, [1.0]]) * len(gaps)).round().astype(np.int64)
    places = []
    for start, stop in pairwise(bounds):
        if start < stop and odds[stop] - odds[start] > _MIN_GAP:
            place = start + int(gaps[start:stop].argmax())
            places.append((odds[place] + odds[place + 1]) / 2)
    return np.unique(expit(np.array(places, np.float64)))
