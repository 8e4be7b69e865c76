"""Starting points of a fit: k-means++ on short runs of rows, which also have transitions."""

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
from turncoat.numerics.generators import MAX_RATE, SECONDS_PER_HOUR
from turncoat.numerics.layout import ColumnLayout, LogModel, Statistics
from turncoat.numerics.structures import Observations
from turncoat.panel import Panel

SUBSAMPLE_ROWS = 5000
_MIN_RUN_ROWS = 32
_SPREAD_SHARE = 0.1  # of each row, spread over all states so that none starts empty
_MAX_DEVIATION = 5.0  # standard deviations; k-means should not spend a state on an outlier
_MAX_INDICATORS = 8  # per categorical column
_GUESS_ROWS = 4096

Options = tuple[str, int]  # working precision and number of threads

# Only k-means uses BLAS and OpenMP. One thread keeps them from competing with our threads, and a
# process that is forked later from waiting for theirs. The lock makes sure the limit is lifted.
_kmeans_lock = threading.Lock()


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Moments of the continuous columns before any state exists.

    They are the scale of floors, priors and starts.
    """

    means: Array  # [D]
    variances: Array  # [D]; of a constant or missing column, the squared mean or 1 if larger


def measure_columns(
    layout: ColumnLayout, observations: Observations, options: Options
) -> ColumnMoments:
    """Return mean and variance of each column over its present cells, computed by the kernels."""
    first_rows = observations.continuous[:_GUESS_ROWS]
    counts = np.maximum((~np.isnan(first_rows)).sum(axis=0), 1)
    guess = np.nansum(first_rows, axis=0, dtype=np.float64) / counts
    rough = ColumnMoments(guess, np.ones(len(guess)))
    all_rows = np.ones((len(observations.flags), 1))
    statistics = _weighted_statistics(layout, observations, rough, all_rows, options)
    observed = statistics.observed[0]
    counts = np.where(observed > 0.0, observed, 1.0)
    step = statistics.first[0] / counts
    variances = statistics.second[0] / counts - step**2
    means = statistics.reference[0] + step
    rounding = 4.0 * np.finfo(observations.continuous.dtype).eps * np.abs(means)
    constant = np.maximum(means**2, 1.0)  # well above the rounding of a large constant
    return ColumnMoments(means, np.where(variances > rounding**2, variances, constant))


def kmeans_statistics(
    panel: Panel,
    anchors: Anchors | None,
    columns: ColumnMoments,
    n_states: int,
    seed: int,
    options: Options,
    weights: Array | None = None,
) -> Statistics:
    """Return statistics of a subsample under its k-means++ clusters, moved to allowed states.

    `weights` [U] are of the panel's sequences.
    """
    sample, rows = subsample(panel, np.random.default_rng(seed))
    if weights is not None:
        weights = weights[np.searchsorted(panel.offsets, rows[sample.offsets[:-1]], "right") - 1]
    states = cluster_rows(sample, n_states, columns, seed, weights)
    if anchors is not None:
        states = anchors.move_to_allowed(states, rows)
    probs = np.full((sample.n_rows, n_states), _SPREAD_SHARE / n_states)
    probs[np.arange(sample.n_rows), states] += 1.0 - _SPREAD_SHARE
    layout = ColumnLayout.create(sample.n_categories, sample.missing_cells, sample.missing_codes)
    cells, codes = sample.continuous, sample.categorical
    observations = layout.pack(cells, codes, sample.offsets, weights=weights)
    return _weighted_statistics(layout, observations, columns, probs, options)


def guess_jumps(statistics: Statistics, panel: Panel) -> Array:
    """Return a first guess of jumps [K, K], with hours in each state on the diagonal.

    Neighbouring rows in two states are one jump, and all gaps are the median one. A mean would be
    that of the few longest gaps, which say nothing of the rates.
    """
    gaps_s, counts = panel.gaps_s, statistics.transitions
    hours = 1.0
    if (gaps_s > 0).any():
        hours = max(float(np.median(gaps_s[gaps_s > 0])) / SECONDS_PER_HOUR, 1.0 / MAX_RATE)
    return np.where(np.eye(len(counts), dtype=bool), hours * counts.sum(axis=1), counts)


def _weighted_statistics(
    layout: ColumnLayout, rows: Observations, columns: ColumnMoments, probs: Array, options: Options
) -> Statistics:
    """Return statistics under state probabilities [N, K]; residuals are taken from the means."""
    (precision, n_threads), k, sizes = options, probs.shape[1], layout.n_categories
    shape, chain = (k, len(columns.means)), (np.full(k, -np.log(k)), np.full((k, k), -np.log(k)))
    locations = np.broadcast_to(columns.means, shape)
    scales = np.broadcast_to(1.0 / np.sqrt(columns.variances), shape)
    no_categories = np.zeros((k, sum(sizes)))
    model = LogModel(*chain, locations, scales, np.zeros(shape), no_categories, sizes)
    tables = layout.build_tables(model, rows.continuous.dtype, precision)
    sums = engine.collect_weighted(rows, tables, probs, n_threads)
    return layout.build_statistics(tables, sums, 0.0, float(sums.occupancy.sum()))


def subsample(panel: Panel, rng: np.random.Generator) -> tuple[Panel, Array]:
    """Return about SUBSAMPLE_ROWS rows as runs of random sequences, and their places."""
    if panel.n_rows <= SUBSAMPLE_ROWS:
        return panel, np.arange(panel.n_rows)
    max_length = max(_MIN_RUN_ROWS, -(-SUBSAMPLE_ROWS // panel.n_sequences))
    order = rng.permutation(panel.n_sequences)
    lengths = np.minimum(panel.lengths[order], max_length)
    n_kept = int(np.searchsorted(np.cumsum(lengths), SUBSAMPLE_ROWS)) + 1
    order, lengths = order[:n_kept], lengths[:n_kept]
    starts = panel.offsets[order] + rng.integers(0, panel.lengths[order] - lengths + 1)
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    rows = np.repeat(starts - firsts, lengths) + np.arange(lengths.sum())
    columns, sizes = (panel.continuous[rows], panel.categorical[rows]), panel.n_categories
    return Panel.from_arrays(*columns, lengths, n_categories=sizes), rows


def cluster_rows(
    sample: Panel, n_states: int, columns: ColumnMoments, seed: int, weights: Array | None = None
) -> Array:
    """Return a state per row [N] from k-means++ on standardised cells and category indicators.

    `weights` [U] are of the sequences.
    """
    if n_states == 1:
        return np.zeros(sample.n_rows, np.int64)
    points = _build_points(sample, columns)
    n_clusters = min(n_states, sample.n_rows)
    kmeans = KMeans(n_clusters, n_init=1, max_iter=20, random_state=seed % 2**32)
    with _kmeans_lock, threadpool_limits(1), warnings.catch_warnings():
        # Fewer distinct rows than states is fine here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        by_row = None if weights is None else np.repeat(weights, sample.lengths)
        states: Array = kmeans.fit_predict(points, sample_weight=by_row)
    return states


def _build_points(sample: Panel, columns: ColumnMoments) -> Array:
    """Standardise the cells, 0 where missing, and append indicators of groups of categories."""
    groups = [min(size, _MAX_INDICATORS) for size in sample.n_categories]
    points = np.zeros((sample.n_rows, sample.n_continuous + sum(groups)), np.float32)
    deviations = np.sqrt(columns.variances)
    standard = np.nan_to_num((sample.continuous - columns.means) / deviations, nan=0.0)
    points[:, : sample.n_continuous] = np.clip(standard, -_MAX_DEVIATION, _MAX_DEVIATION)
    start = sample.n_continuous
    for j, n_groups in enumerate(groups):
        codes = sample.categorical[:, j].astype(np.int64)
        rows = np.flatnonzero(codes >= 0)
        points[rows, start + codes[rows] % n_groups] = 1.0
        start += n_groups
    return points
