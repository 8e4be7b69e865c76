"""What traffic looked like when the detector was calibrated: the mark that drift is measured from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from scipy.special import expit, logit

from turncoat.arrays import Array

MAX_CELL = (
    20.0  # spreads; a cell further out counts as this far, so that no single row makes a mean
)
_CUTS = (
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.75,
    0.8,
    0.85,
    0.9,
    0.925,
    0.95,
    0.97,
    0.98,
    0.99,
    0.995,
    0.999,
)  # finer where fraud is
MAX_SCORE_BINS = len(_CUTS) + 1
_SAME = 1e-3  # log odds; scores that are no further apart are one score and its rounding
_LEAST_CHANCE = 1e-12
_MOST_SAMPLES = 4096
_BLOCK_ROWS = 16_384


@dataclass(frozen=True, eq=False)
class Reference:
    """Filtered calibration rows, regime by regime, and the distribution of their scores."""

    n_rows: int  # transactions
    occupancy: Array  # [K] share of the transactions
    means: Array  # [K, D] of the panel's continuous columns, weighed by belief; 0 where there is no mass
    spreads: Array  # [K, D] standard deviations
    mass: Array  # [K, D] transactions behind each, those with the cell missing left out
    edges: Array  # [B + 1] rising from 0 to 1: score bin b is edges[b] <= score < edges[b + 1], and the last one takes 1, too
    counts: Array  # [B] transactions in each
    mean_score: float
    beliefs: (
        Array  # [M, K] of evenly spaced rows, by which scores under another calibration are found
    )
    ranker_scores: Array | None = (
        None  # [M] the ranker's scores of these rows, if there is a ranker
    )

    @classmethod
    def measure(
        cls, beliefs: Array, rows: Array, probabilities: Array, ranker_scores: Array | None = None
    ) -> Reference:
        """Of filtered beliefs [N, K], continuous cells [N, D] with NaN for missing ones, and scores [N]."""
        mass, means, spreads = _moments(beliefs, rows)
        kept = np.unique(
            np.linspace(0, len(beliefs) - 1, min(len(beliefs), _MOST_SAMPLES))
            .round()
            .astype(np.int64)
        )
        edges, counts = _distribution(probabilities)
        return cls(
            n_rows=len(beliefs),
            occupancy=beliefs.mean(axis=0, dtype=np.float64),
            means=means,
            spreads=spreads,
            mass=mass,
            edges=edges,
            counts=counts,
            mean_score=float(probabilities.mean()),
            beliefs=beliefs[kept].astype(np.float32),
            ranker_scores=None
            if ranker_scores is None
            else np.asarray(ranker_scores, np.float64)[kept],
        )

    def replace_scores(self, probabilities: Array) -> Reference:
        """The same traffic with other scores, one for each of the sampled `beliefs`."""
        edges, counts = _distribution(probabilities)
        return replace(self, edges=edges, counts=counts, mean_score=float(probabilities.mean()))

    def check(self, n_states: int, n_columns: int, has_ranker: bool) -> None:
        """Raise ValueError if this is not the reference of such a detector."""
        shapes = {
            "occupancy": (n_states,),
            **dict.fromkeys(("means", "spreads", "mass"), (n_states, n_columns)),
        }
        shapes |= {
            "edges": (len(self.counts) + 1,),
            "counts": (len(self.counts),),
            "beliefs": (len(self.beliefs), n_states),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if (
                array.shape != shape
                or array.dtype.kind != "f"
                or not np.isfinite(array).all()
                or (name != "means" and (array < 0).any())
            ):
                raise ValueError(f"the reference's {name} are not the model's")
        if (
            self.edges[0] != 0
            or self.edges[-1] != 1
            or (np.diff(self.edges) <= 0).any()
            or not self.counts.sum() > 0
        ):
            raise ValueError("the reference's score bins are none")
        if not len(self.beliefs) or not self.n_rows > 0 or not 0 <= self.mean_score <= 1:
            raise ValueError("the reference has no rows, or no mean score")
        ranker_scores = self.ranker_scores
        if (ranker_scores is not None) != has_ranker or (
            ranker_scores is not None and ranker_scores.shape != (len(self.beliefs),)
        ):
            raise ValueError("the reference's scores of a ranker are not this detector's")


def _moments(beliefs: Array, rows: Array) -> tuple[Array, Array, Array]:
    """Mass, mean and standard deviation of each column in each regime [K, D]."""
    mass, firsts, squares = (np.zeros((beliefs.shape[1], rows.shape[1])) for _ in range(3))
    for start in range(0, len(rows), _BLOCK_ROWS):
        weights = beliefs[start : start + _BLOCK_ROWS].astype(np.float64).T
        cells = np.clip(rows[start : start + _BLOCK_ROWS].astype(np.float64), -MAX_CELL, MAX_CELL)
        present = np.isfinite(cells)
        cells[~present] = 0.0
        mass += weights @ present.astype(np.float64)
        firsts += weights @ cells
        squares += weights @ cells**2
    return mass, *compute_moments(mass, firsts, squares)


def compute_moments(mass: Array, firsts: Array, squares: Array) -> tuple[Array, Array]:
    """From sums of weights, of weighed cells and of their weighed squares; 0 where there is no mass."""
    means, seconds = (
        np.divide(sums, mass, out=np.zeros_like(mass), where=mass > 0) for sums in (firsts, squares)
    )
    return means, np.sqrt(np.maximum(seconds - means**2, 0.0))


def _distribution(probabilities: Array) -> tuple[Array, Array]:
    """Edges of score bins [B + 1] and the scores in each [B]."""
    inner = _inner_edges(probabilities)
    counts = np.bincount(find_score_bins(inner, probabilities), minlength=len(inner) + 1).astype(
        np.float64
    )
    return np.concatenate([[0.0], inner, [1.0]]), counts


def find_score_bins(inner_edges: Array, probabilities: Array) -> Array:
    """The bin of each score."""
    return np.searchsorted(inner_edges, probabilities, side="right")


def _inner_edges(probabilities: Array) -> Array:
    """About the quantiles at `_CUTS`, each in the widest gap between scores nearby, so that rounding takes no score across an edge.

    Where all scores nearby are one score there is no edge, so that there may be few bins, even one.
    """
    odds = logit(np.clip(np.sort(probabilities), _LEAST_CHANCE, 1 - _LEAST_CHANCE))
    gaps = np.diff(odds)
    halfway = (np.array(_CUTS[1:]) + np.array(_CUTS[:-1])) / 2
    bounds = (np.concatenate([[0.0], halfway, [1.0]]) * len(gaps)).round().astype(np.int64)
    places = []
    for start, stop in pairwise(bounds):
        if start < stop and odds[stop] - odds[start] > _SAME:
            place = start + int(gaps[start:stop].argmax())
            places.append((odds[place] + odds[place + 1]) / 2)
    return np.unique(expit(np.array(places, np.float64)))
