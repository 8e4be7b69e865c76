"""The reference for drift: the traffic and the scores of the calibration part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.special import expit, logit

from turncoat.arrays import Array
from turncoat.scoring.regimes import check_arrays

MAX_CELL = 20.0  # spreads; cells are clipped here so that no single row decides a mean
_PERCENTILES = (5, 10, 20, 30, 40, 50, 60, 70, 75, 80, 85, 90, 92.5, 95, 97, 98, 99, 99.5, 99.9)
_QUANTILES = np.array(_PERCENTILES) / 100  # finer where fraud is
MAX_SCORE_BINS = len(_QUANTILES) + 1
_MIN_GAP = 1e-3  # log odds; scores closer than this differ by rounding only
_MIN_PROBABILITY = 1e-12
_MAX_SAMPLES = 4096
_BLOCK_ROWS = 16_384


@dataclass(frozen=True, eq=False)
class Reference:
    """Filtered calibration rows by regime, and the distribution of their scores."""

    n_rows: int  # transactions
    occupancy: Array  # [K] share of the transactions
    means: Array  # [K, D] of the panel's continuous columns, weighted by belief; 0 without mass
    spreads: Array  # [K, D] standard deviations
    mass: Array  # [K, D] transactions behind each, without missing cells
    edges: Array  # [B + 1] from 0 to 1: bin b is edges[b] <= score < edges[b + 1]; the last has 1
    counts: Array  # [B] transactions in each bin
    mean_score: float
    beliefs: Array  # [M, K] of evenly spaced rows, to score under another calibration
    ranker_scores: Array | None = None  # [M] of the same rows; None without a ranker

    @classmethod
    def measure(
        cls, beliefs: Array, cells: Array, scores: Array, ranker_scores: Array | None = None
    ) -> Reference:
        """From filtered beliefs [N, K], continuous cells [N, D] (NaN if missing), scores [N]."""
        n_rows = len(beliefs)
        occupancy = beliefs.mean(axis=0, dtype=np.float64)
        cell_figures, score_figures = _measure_cells(beliefs, cells), _count_scores(scores)
        kept = np.linspace(0, n_rows - 1, min(n_rows, _MAX_SAMPLES)).round().astype(np.int64)
        sample = beliefs[kept].astype(np.float32)
        ranks = None if ranker_scores is None else ranker_scores[kept].astype(np.float64)
        return cls(n_rows, occupancy, *cell_figures, *score_figures, sample, ranks)

    def replace_scores(self, scores: Array) -> Reference:
        """The same traffic with other scores, one for each of the sampled `beliefs`."""
        edges, counts, mean = _count_scores(scores)
        return replace(self, edges=edges, counts=counts, mean_score=mean)

    def check(self, n_states: int, n_columns: int, has_ranker: bool) -> None:
        """Raise ValueError if this is not the reference of such a detector."""
        n_bins, n_samples = len(self.counts), len(self.beliefs)
        check_arrays(self, (n_states,), "occupancy")
        check_arrays(self, (n_states, n_columns), "means", "spreads", "mass")
        check_arrays(self, (n_bins + 1,), "edges")
        check_arrays(self, (n_bins,), "counts")
        check_arrays(self, (n_samples, n_states), "beliefs", dtype="f4")
        for array in (self.occupancy, self.spreads, self.mass, self.counts, self.beliefs):
            if (array < 0).any():
                raise ValueError("the reference has shares, counts or spreads below 0")
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


def _measure_cells(beliefs: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Mean, standard deviation and mass of each column in each regime [K, D]."""
    mass, sums, squares = (np.zeros((beliefs.shape[1], rows.shape[1])) for _ in range(3))
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        weights = beliefs[block].astype(np.float64).T
        cells = np.clip(rows[block].astype(np.float64), -MAX_CELL, MAX_CELL)
        is_present = np.isfinite(cells)
        cells[~is_present] = 0.0
        mass += weights @ is_present.astype(np.float64)
        sums += weights @ cells
        squares += weights @ cells**2
    return *compute_moments(mass, sums, squares), mass


def _count_scores(scores: Array) -> tuple[Array, Array, float]:
    """Edges of score bins [B + 1], the number of scores in each [B], and the mean score."""
    inner = _find_edges(scores)
    counts = np.bincount(find_score_bins(inner, scores), minlength=len(inner) + 1)
    edges = np.concatenate([[0.0], inner, [1.0]])
    return edges, counts.astype(np.float64), float(scores.mean())


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
