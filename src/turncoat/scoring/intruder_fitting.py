"""Learn the chain of intruders from labelled transactions, by EM (docs/chains.md).

The scales of columns and the priors of profiles come first, by empirical Bayes. EM then learns the
rates, the intruder's share and two densities of surprises per column, with labels on the rows'
components.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln

from turncoat.arrays import Array
from turncoat.data.transactions import Transactions
from turncoat.features.chains import IntruderChain
from turncoat.models.tuning import sample_customers
from turncoat.numerics import intruder
from turncoat.numerics.engine import map_parts
from turncoat.numerics.intruder import IntruderTables
from turncoat.numerics.intruder_expectations import IntruderExpectations, expect_intruder
from turncoat.numerics.label_times import DAY, LabelTimes
from turncoat.scoring.chain_pieces import ALL_PIECES, ChainPieces

MEMORY_ROWS = 32  # latest transactions of a customer whose labels may still become known
_MAX_ROWS = 250_000  # of whole customers
_N_ITERATIONS = 20
_START = (0.002, 0.1, 0.3)  # onsets and ends per day, share: where EM starts
_PRIOR_ROWS = 20.0  # that densities of all profiles weigh in those of short ones
_FLOOR = 1e-3  # share of a uniform density, so that no surprise is impossible
_MAX_SHARE = 0.999
_WHOLE_SHARE = 1.0 - 1e-9  # of a chain where every transaction of an intrusion is the intruder's
_POPULATION_WEIGHT = 1e12  # of a prior that no customer's transactions change


class CustomerRows(NamedTuple):
    """Rows of whole customers, for the customer's chain."""

    places: Array  # [N] among the transactions
    offsets: Array
    customers: Array  # [N] codes from 0
    times: Array
    labels: Array
    names: tuple[str, ...]
    columns: Array  # [N, C] of these names

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return len(self.places)

    @classmethod
    def sample(cls, data: Transactions, seed: int, max_rows: int = _MAX_ROWS) -> CustomerRows:
        """Whole customers, those with fraud in proportion, without columns."""
        labels = np.asarray(data.labels)
        places = sample_customers(labels == 1, data.customer_codes, max_rows, seed)
        part = data.take(places)
        codes = np.repeat(np.arange(part.n_customers), np.diff(part.offsets))
        own = labels[places].astype(np.int64), (), np.empty((len(places), 0))
        return cls(places, part.offsets, codes, part.times, *own)

    def add_columns(self, data: Transactions, names: Sequence[str]) -> CustomerRows:
        """The same rows with these columns."""
        columns, rows = np.empty((self.n_rows, len(names))), data.file_rows[self.places]
        for c, name in enumerate(names):
            columns[:, c] = data.numbers[name][rows]
        return self._replace(names=tuple(names), columns=columns)

    def find_known(self) -> tuple[str, ...]:
        """The columns with a value on some row that is not fraud: others have no profile."""
        is_known = ~np.isnan(self.columns[self.labels != 1]).all(axis=0)
        return tuple(name for name, known in zip(self.names, is_known, strict=True) if known)

    def select_columns(self, names: Sequence[str]) -> CustomerRows:
        """The same rows with some of their columns."""
        places = [self.names.index(name) for name in names]
        columns = np.ascontiguousarray(self.columns[:, places])
        return self._replace(names=tuple(names), columns=columns)

    def take_customers(self, is_taken: Array) -> CustomerRows:
        """The rows of some customers [customers]."""
        rows, lengths = is_taken[self.customers], np.diff(self.offsets)[is_taken]
        codes = np.repeat(np.arange(len(lengths)), lengths)
        offsets = np.append(0, np.cumsum(lengths))
        taken = self.times[rows], self.labels[rows], self.names, self.columns[rows]
        return CustomerRows(self.places[rows], offsets, codes, *taken)


@dataclass(frozen=True, eq=False)
class Profile:
    """The scales of columns and the priors of their profiles."""

    scales: Array  # [C]
    units: Array  # [C]
    priors: Array  # [C, 4]


def fit_profile(rows: CustomerRows, pieces: ChainPieces = ALL_PIECES) -> Profile:
    """Of each column, the scale and the prior with the highest likelihood of genuine values."""
    found = [_fit_column(rows, column, pieces) for column in rows.columns.T]
    scales, units, priors = zip(*found, strict=True)
    return Profile(np.array(scales, np.int64), np.array(units), np.array(priors))


def _fit_column(rows: CustomerRows, column: Array, pieces: ChainPieces) -> tuple[int, float, Array]:
    """The scale of a column, its unit, and the Normal-Gamma prior of its profiles."""
    is_used = (rows.labels != 1) & ~np.isnan(column)
    used, customers = column[is_used], rows.customers[is_used]
    sizes = np.abs(used)
    unit = 0.01 * float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 1.0
    best: tuple[float, tuple[int, float, Array]] | None = None
    for scale in (intruder.ARSINH, intruder.ROOT, intruder.IDENTITY):
        if scale == intruder.ARSINH:
            values, slopes = np.arcsinh(used / unit), 1.0 / np.hypot(used, unit)
        elif scale == intruder.ROOT:
            values = np.sign(used) * np.sqrt(sizes)
            slopes = 0.5 / np.sqrt(np.maximum(sizes, unit))
        else:
            values, slopes = used, np.ones(len(used))
        if pieces.own_profile:
            prior, log_likelihood = _fit_prior(values, customers)
        else:
            prior, log_likelihood = _fit_population(values)
        log_likelihood += float(np.log(slopes).sum())
        if best is None or log_likelihood > best[0]:
            best = log_likelihood, (scale, unit, prior)
    assert best is not None
    return best[1]


def _fit_prior(values: Array, customers: Array) -> tuple[Array, float]:
    """Empirical Bayes: the prior that maximises the marginal likelihood of customers' values."""
    counts = np.bincount(customers)
    is_used = counts > 0
    n = counts[is_used].astype(np.float64)
    centre, spread = float(values.mean()), float(values.std()) or 1.0
    scaled = (values - centre) / spread
    means = np.bincount(customers, scaled)[is_used] / n
    squares = np.maximum(np.bincount(customers, scaled**2)[is_used] - n * means**2, 0.0)

    def lose(at: Array) -> float:
        mean, (weight, shape, rate) = at[0], np.exp(np.clip(at[1:], -12.0, 12.0))
        weights, shapes = weight + n, shape + 0.5 * n
        rates = rate + 0.5 * squares + 0.5 * weight * n * (means - mean) ** 2 / weights
        terms = gammaln(shapes) - gammaln(shape) + shape * np.log(rate) - shapes * np.log(rates)
        terms += 0.5 * np.log(weight / weights) - 0.5 * n * math.log(2 * math.pi)
        return -float(terms.sum()) / len(values)

    best = minimize(lose, [0.0, 0.0, 1.0, 0.0], method="Nelder-Mead", options={"maxfev": 1500})
    weight, shape, rate = np.exp(np.clip(best.x[1:], -12.0, 12.0))
    prior = np.array([best.x[0] * spread + centre, weight, shape, rate * spread**2])
    return prior, -best.fun * len(values) - len(values) * math.log(spread)


def _fit_population(values: Array) -> tuple[Array, float]:
    """One normal distribution of all customers' values, as a prior that no customer changes."""
    spread = float(values.std()) or 1.0
    prior = np.array([float(values.mean()), 1.0, 1.0, spread**2])
    prior[1:] *= _POPULATION_WEIGHT
    return prior, -len(values) * (0.5 * math.log(2 * math.pi) + 0.5 + math.log(spread))


def fit_intruder(
    rows: CustomerRows,
    profile: Profile,
    explained: Array,
    waits: LabelTimes,
    pieces: ChainPieces = ALL_PIECES,
    n_iterations: int = _N_ITERATIONS,
) -> IntruderChain:
    """EM over rates, share, background and each column's two densities of surprises.

    Surprises are as when rows are scored, with the labels known by then; beliefs use hindsight.
    """
    fixed, n_columns = (profile.scales, profile.units, profile.priors), len(rows.names)
    empty = np.zeros((n_columns, intruder.N_HISTORY_GROUPS, intruder.N_SURPRISES))
    unexplained = max(float((rows.labels == 1).mean()), 1e-6)
    tables = IntruderTables(*_START, unexplained, MEMORY_ROWS, *fixed, empty)
    if not pieces.row_share:
        tables = tables._replace(share=_WHOLE_SHARE)
    if not pieces.time_gaps:
        tables = tables._replace(fixed_gap_days=_measure_mean_gap(rows))
        rows = rows._replace(times=_count_rows(rows) * tables.fixed_gap_days * DAY)
    is_intruder = np.where(rows.labels == 1, 0.5 * (1.0 - explained), 0.0)
    outputs, surprises = (
        np.zeros((len(intruder.OUTPUTS), rows.n_rows)),
        np.empty(rows.columns.shape),
    )
    groups = _group_histories(rows)

    def replay() -> Array:
        rest = rows.times, rows.columns, rows.labels, tables, waits, outputs, surprises
        found = map_parts(rows.offsets, lambda part: intruder.replay_intruder(part, *rest))
        return np.concatenate(found)

    def compare() -> Array:
        pairs = zip(surprises.T, groups, strict=True)
        return np.stack([_compare_densities(*pair, is_intruder) for pair in pairs])

    replay()
    tables = tables._replace(log_ratios=compare())
    for _ in range(n_iterations):
        rest = rows.times, rows.labels, replay(), explained, unexplained, tables, is_intruder
        found = _expect(rows.offsets, *rest)
        unexplained = (found.unexplained_frauds + 0.5) / (found.labelled_rows + 1.0)
        tables = tables._replace(
            onset=(found.onsets + 0.5) / (found.absent_days + 1.0),
            end=(found.ends + 0.5) / (found.present_days + 5.0),
            background=(found.other_frauds + 0.5) / (found.labelled_rows + 1.0),
            log_ratios=compare(),
        )
        if pieces.row_share:
            share = (found.intruder_rows + 0.5) / (found.present_rows + 1.0)
            tables = tables._replace(share=min(share, _MAX_SHARE))
    return IntruderChain(*tables[:5], rows.names, *tables[5:])


def _expect(offsets: Array, *rest: Any) -> IntruderExpectations:
    """`expect_intruder` on threads; sums are added in a fixed order."""
    found = map_parts(offsets, lambda part: expect_intruder(part, *rest))
    return IntruderExpectations(*np.sum(found, axis=0).tolist())


def _measure_mean_gap(rows: CustomerRows) -> float:
    """The mean time between a customer's transactions, in days; 0 if there are none."""
    n_gaps = rows.n_rows - (len(rows.offsets) - 1)
    spans = rows.times[rows.offsets[1:] - 1] - rows.times[rows.offsets[:-1]]
    return float(spans.sum()) / DAY / n_gaps if n_gaps else 0.0


def _count_rows(rows: CustomerRows) -> Array:
    """The number of the customer's earlier rows, of each row [N]."""
    starts, lengths = rows.offsets[:-1], np.diff(rows.offsets)
    return np.asarray(np.arange(rows.n_rows) - np.repeat(starts, lengths))


def _group_histories(rows: CustomerRows) -> list[Array]:
    """The history groups of the rows [N] of each column, by the number of earlier values."""
    groups = []
    for column in rows.columns.T:
        has_value = ~np.isnan(column)
        earlier = np.cumsum(has_value) - has_value
        earlier -= np.repeat(earlier[rows.offsets[:-1]], np.diff(rows.offsets))
        groups.append(np.searchsorted(intruder.HISTORY_LIMITS, earlier, "right"))
    return groups


def _compare_densities(surprises: Array, groups: Array, is_intruder: Array) -> Array:
    """Log ratios of intruders' to owners' densities [groups, surprises]."""
    is_known = ~np.isnan(surprises)
    kinds = []
    for weights in (is_intruder, 1.0 - is_intruder):
        common = _estimate_density(surprises[is_known], weights[is_known])
        densities = np.empty((intruder.N_HISTORY_GROUPS, intruder.N_SURPRISES))
        for group in range(intruder.N_HISTORY_GROUPS):
            own = is_known & (groups == group)
            total = float(weights[own].sum())
            density = _estimate_density(surprises[own], weights[own]) if total > 0 else common
            densities[group] = (total * density + _PRIOR_ROWS * common) / (total + _PRIOR_ROWS)
        kinds.append(np.log((1 - _FLOOR) * densities + _FLOOR / intruder.N_SURPRISES))
    return np.asarray(kinds[0] - kinds[1])


def _estimate_density(surprises: Array, weights: Array) -> Array:
    """A kernel density on the grid of surprises that adds up to 1, with Silverman's width."""
    n, step = intruder.N_SURPRISES, intruder.SURPRISE_STEP
    places = np.rint((surprises - intruder.MIN_SURPRISE) / step).astype(np.int64).clip(0, n - 1)
    total = weights.sum()
    if not total > 0:
        return np.full(n, 1.0 / n)
    n_effective = total**2 / (weights**2).sum()
    mean = (weights * surprises).sum() / total
    spread = math.sqrt((weights * (surprises - mean) ** 2).sum() / total)
    width = max(0.9 * spread * n_effective**-0.2, 0.5 * step)
    grid = step * np.arange(n)
    kernel = np.exp(-0.5 * ((grid[:, None] - grid) / width) ** 2)
    return np.asarray(kernel / kernel.sum(axis=0) @ np.bincount(places, weights, n) / total)
