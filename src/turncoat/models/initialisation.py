"""Starting points of a fit: k-means++ on short runs of rows, which also have transitions."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike
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

    @classmethod
    def from_statistics(cls, statistics: Statistics, cell_type: DTypeLike) -> Self:
        """Return the moments of cells of this type from the statistics of a single state."""
        observed = statistics.observed[0]
        counts = np.where(observed > 0.0, observed, 1.0)
        step = statistics.first[0] / counts
        variances = statistics.second[0] / counts - step**2
        means = statistics.reference[0] + step
        rounding = 4.0 * np.finfo(np.dtype(cell_type)).eps * np.abs(means)
        constant = np.maximum(means**2, 1.0)  # well above the rounding of a large constant
        return cls(means, np.where(variances > rounding**2, variances, constant))


class RowSample(NamedTuple):
    """Some sequences to start from."""

    panel: Panel
    anchors: Anchors | None
    weights: Array | None  # [U] of the sequences


class Runs(NamedTuple):
    """Runs of neighbouring rows, one each of some sequences."""

    sequences: Array
    starts: Array  # first row within the sequence
    lengths: Array


def guess_means(continuous: Array) -> Array:
    """Return rough means of columns [D] from the first rows, as an origin for sums."""
    first_rows = continuous[:_GUESS_ROWS]
    counts = np.maximum((~np.isnan(first_rows)).sum(axis=0), 1)
    return np.asarray(np.nansum(first_rows, axis=0, dtype=np.float64) / counts)


def sum_moments(
    layout: ColumnLayout, observations: Observations, origin: Array, options: Options
) -> Statistics:
    """Return statistics of all rows in one state, with residuals from an origin [D]."""
    rough = ColumnMoments(origin, np.ones(len(origin)))
    all_rows = np.ones((len(observations.flags), 1))
    return _weighted_statistics(layout, observations, rough, all_rows, options)


def kmeans_statistics(
    start: RowSample, columns: ColumnMoments, n_states: int, seed: int, options: Options
) -> Statistics:
    """Return statistics of a sample under its k-means++ clusters, moved to allowed states."""
    sample, anchors, weights = start
    states = cluster_rows(sample, n_states, columns, seed, weights)
    if anchors is not None:
        states = anchors.move_to_allowed(states)
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


def draw_runs(all_lengths: Array, rng: np.random.Generator) -> Runs:
    """Draw about SUBSAMPLE_ROWS rows of sequences of these lengths [U], as runs of some."""
    n_sequences, n_rows = len(all_lengths), int(all_lengths.sum())
    if n_rows <= SUBSAMPLE_ROWS:
        return Runs(np.arange(n_sequences), np.zeros(n_sequences, np.int64), all_lengths)
    max_length = max(_MIN_RUN_ROWS, -(-SUBSAMPLE_ROWS // n_sequences))
    order = rng.permutation(n_sequences)
    lengths = np.minimum(all_lengths[order], max_length)
    n_kept = int(np.searchsorted(np.cumsum(lengths), SUBSAMPLE_ROWS)) + 1
    order, lengths = order[:n_kept], lengths[:n_kept]
    return Runs(order, rng.integers(0, all_lengths[order] - lengths + 1), lengths)


def take_runs(panel: Panel, runs: Runs) -> tuple[Panel, Array]:
    """Return runs of a panel's rows as sequences, and their places in the panel."""
    lengths = runs.lengths
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    starts = panel.offsets[runs.sequences] + runs.starts
    rows = np.repeat(starts - firsts, lengths) + np.arange(lengths.sum())
    columns = panel.continuous[rows], panel.categorical[rows], lengths
    times = None if panel.times is None else panel.times[rows]
    return Panel.from_arrays(*columns, times=times, n_categories=panel.n_categories), rows


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
