"""Where a fit starts: k-means++ on a subsample of rows, taken in short runs so that transitions can be counted too."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from turncoat.arrays import Array
from turncoat.models.anchors import Anchors
from turncoat.numerics import engine
from turncoat.numerics.coding import Coding, Statistics, Terms
from turncoat.numerics.structures import Observations
from turncoat.panel import Panel

SUBSAMPLE_ROWS = 5000
_SHORTEST_RUN = 32
_DOUBT = 0.1  # share of each row spread over all states, so that none starts empty
_FARTHEST = 5.0  # standard deviations; k-means should not spend a state on an outlier
_MOST_LEVELS = 8
_GUESS_ROWS = 4096

# k-means is the one place that uses BLAS and OpenMP. They are held to one thread there, so that they do not compete with
# ours and a process forked later does not wait for their threads; one at a time, so that the limit is always lifted again.
_kmeans_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class Columns:
    """What the columns look like before any state exists: the scale for floors and starts."""

    centre: Array  # [D]
    variances: Array  # [D]; 1 for a column that is constant or all missing


def measure_columns(
    coding: Coding, observations: Observations, precision: str, n_threads: int
) -> Columns:
    """Mean and variance of each column over the cells that are there, by the same kernels as everything else."""
    first_rows = observations.continuous[:_GUESS_ROWS]
    counts = np.maximum((~np.isnan(first_rows)).sum(axis=0), 1)
    guess = np.nansum(first_rows, axis=0, dtype=np.float64) / counts
    terms = _flat_terms(1, guess, np.ones(coding.n_columns), coding.n_categories)
    everyone = np.ones((int(observations.offsets[-1]), 1))
    statistics = _weighted(coding, observations, terms, everyone, precision, n_threads)
    seen = np.maximum(statistics.observed[0], 1.0)
    step = statistics.first[0] / seen
    variances = statistics.second[0] / seen - step**2
    centre = statistics.reference[0] + step
    rounding = 4.0 * np.finfo(observations.continuous.dtype).eps * np.abs(centre)
    varies = variances > rounding**2
    return Columns(centre, np.where(varies, variances, 1.0))


def kmeans_statistics(
    panel: Panel,
    anchors: Anchors | None,
    columns: Columns,
    n_states: int,
    seed: int,
    precision: str,
    n_threads: int,
) -> Statistics:
    """Statistics of a subsample under its k-means++ clusters: what a first M-step needs. Anchored rows start where they may be."""
    sample, rows = subsample(panel, np.random.default_rng(seed))
    spread = np.sqrt(columns.variances)
    states = clusters(sample, n_states, columns.centre, spread, seed)
    if anchors is not None:
        states = anchors.moved_to_allowed(states, rows)
    probs = np.full((sample.n_rows, n_states), _DOUBT / n_states)
    probs[np.arange(sample.n_rows), states] += 1.0 - _DOUBT
    coding = Coding.of(sample.n_categories, sample.missing_cells, sample.missing_codes)
    observations = coding.pack(sample.continuous, sample.categorical, sample.offsets)
    terms = _flat_terms(n_states, columns.centre, 1.0 / spread, sample.n_categories)
    return _weighted(coding, observations, terms, probs, precision, n_threads)


def _flat_terms(
    n_states: int, centre: Array, scales: Array, n_categories: tuple[int, ...]
) -> Terms:
    """Terms that say nothing about states, only where and how residuals are measured."""
    shape = (n_states, len(centre))
    return Terms(
        log_initial=np.full(n_states, -np.log(n_states)),
        log_transition=np.full((n_states, n_states), -np.log(n_states)),
        means=np.broadcast_to(centre, shape),
        scales=np.broadcast_to(scales, shape),
        constants=np.zeros(shape),
        log_categories=np.zeros((n_states, sum(n_categories))),
        n_categories=n_categories,
    )


def _weighted(
    coding: Coding,
    observations: Observations,
    terms: Terms,
    probs: Array,
    precision: str,
    n_threads: int,
) -> Statistics:
    potentials = coding.potentials(terms, observations.continuous.dtype, precision)
    sums = engine.collect_given(observations, potentials, probs, n_threads)
    return coding.statistics(potentials, sums, 0.0, len(probs))


def subsample(panel: Panel, rng: np.random.Generator) -> tuple[Panel, Array]:
    """At most about SUBSAMPLE_ROWS rows, runs of neighbours from randomly chosen sequences; and their places in the panel."""
    if panel.n_rows <= SUBSAMPLE_ROWS:
        return panel, np.arange(panel.n_rows)
    longest = max(_SHORTEST_RUN, -(-SUBSAMPLE_ROWS // panel.n_sequences))
    order = rng.permutation(panel.n_sequences)
    lengths = np.minimum(panel.lengths[order], longest)
    kept = int(np.searchsorted(np.cumsum(lengths), SUBSAMPLE_ROWS)) + 1
    order, lengths = order[:kept], lengths[:kept]
    spare = panel.lengths[order] - lengths
    starts = panel.offsets[order] + rng.integers(0, spare + 1)
    rows = np.repeat(starts - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths) + np.arange(
        lengths.sum()
    )
    sample = Panel.from_arrays(
        continuous=panel.continuous[rows],
        categorical=panel.categorical[rows],
        lengths=lengths,
        n_categories=panel.n_categories,
    )
    return sample, rows


def clusters(sample: Panel, n_states: int, centre: Array, spread: Array, seed: int) -> Array:
    """A state for every row [rows], from k-means++ on standardised columns and one-hot categories."""
    if n_states == 1:
        return np.zeros(sample.n_rows, np.int64)
    points = _points(sample, centre, spread)
    n_clusters = min(n_states, sample.n_rows)
    with _kmeans_lock, threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # fewer distinct rows than states is no fault here
        found: Array = KMeans(
            n_clusters, n_init=1, max_iter=20, random_state=seed % 2**32
        ).fit_predict(points)
    return found


def _points(sample: Panel, centre: Array, spread: Array) -> Array:
    """Rows as k-means sees them: standardised cells, 0 where missing, and indicators of a few groups of categories."""
    groups = [min(size, _MOST_LEVELS) for size in sample.n_categories]
    points = np.zeros((sample.n_rows, sample.n_continuous + sum(groups)), np.float32)
    standard = np.nan_to_num((sample.continuous - centre) / spread, nan=0.0)
    points[:, : sample.n_continuous] = np.clip(standard, -_FARTHEST, _FARTHEST)
    at = sample.n_continuous
    for j, n_groups in enumerate(groups):
        codes = sample.categorical[:, j].astype(np.int64)
        rows = np.flatnonzero(codes >= 0)
        points[rows, at + codes[rows] % n_groups] = 1.0
        at += n_groups
    return points
