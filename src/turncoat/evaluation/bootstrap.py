"""Bootstrap: the same metrics on resamples of transactions, or of customers with all their rows.

All columns of scores are measured on the same resamples, so their differences are paired. A
resample is a weight for every row (how often it was drawn), so rows are sorted once per column.
Bins of equal mass are cut again for every weighting.

KS and ECE are maxima or sums of absolute distances, which noise increases. A resample has the
sample's noise and its own, so their intervals lie too high, and may lie above the estimate itself.
Differences between two columns suffer less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from scipy.stats import wilcoxon

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.metrics import ROW_METRICS, ScoredLabels, mean_of_known, row_metrics
from turncoat.evaluation.summary import Interval
from turncoat.numerics.engine import available_threads

Column = str | Sequence[str]  # one column, or several whose mean is meant, such as seeds

N_RESAMPLES = 1000
LEVEL = 0.9
UNITS = ("transaction", "customer")


class Resamples(NamedTuple):
    """Metrics on R resamples, each the mean over the folds where it exists."""

    unit: str  # what was drawn: "transaction" or "customer"
    columns: tuple[str, ...]
    values: Array  # [R, columns, ROW_METRICS]; NaN where a metric does not exist

    def values_of(self, column: Column, metric: str) -> Array:
        """One metric in all resamples [R]."""
        names = (column,) if isinstance(column, str) else tuple(column)
        if unknown := [name for name in names if name not in self.columns]:
            found = f"column {unknown[0]!r} was not resampled"
            raise ConfigError(f"{found}; choose from {', '.join(self.columns)}")
        if metric not in ROW_METRICS:
            found = f"metric {metric!r} is not resampled"
            raise ConfigError(f"{found}; choose from {', '.join(ROW_METRICS)}")
        places = [self.columns.index(name) for name in names]
        return mean_of_known(self.values[:, places, ROW_METRICS.index(metric)], axis=1)

    def interval(self, column: Column, metric: str, level: float = LEVEL) -> Interval | None:
        """Percentile interval of a metric; None if it exists in no resample."""
        return percentile_interval(self.values_of(column, metric), level)

    def difference(
        self, first: Column, second: Column, metric: str, level: float = LEVEL
    ) -> Interval | None:
        """Percentile interval of the first column's metric minus the second's."""
        differences = self.values_of(first, metric) - self.values_of(second, metric)
        return percentile_interval(differences, level)


def bootstrap(
    columns: Mapping[str, Sequence[ScoredLabels]],
    unit: str,
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
    n_threads: int | None = None,
) -> Resamples:
    """Resample named columns of scores; each is a list of folds, with the same rows in all columns.

    Transactions are drawn within every fold. Customers are drawn from all folds at once, so one in
    several folds is drawn for all of them. The result depends on the seed, not on the threads.
    """
    if unit not in UNITS:
        raise ConfigError(f"unit is {unit!r}; it must be one of {', '.join(UNITS)}")
    n_threads = n_threads or available_threads()
    limits = (("n_resamples", n_resamples, 1), ("seed", seed, 0), ("n_threads", n_threads, 1))
    for name, value, minimum in limits:
        if value < minimum:
            raise ConfigError(f"{name} is {value!r}; it must be at least {minimum}")
    folds = _check_common_rows(columns)
    rankings = [[fold.ranking for fold in column] for column in columns.values()]
    sizes = [len(fold) for fold in folds]
    keys = np.concatenate([fold.customers for fold in folds])
    customers, codes = np.unique(keys, return_inverse=True)
    codes_by_fold = np.split(codes, np.cumsum(sizes)[:-1])

    def resample(r: int) -> Array:
        if unit == "transaction":
            weights = list(map(_count, draw_transactions(seed, r, sizes), sizes))
        else:
            counts = _count(draw_customers(seed, r, len(customers)), len(customers))
            weights = [counts[fold] for fold in codes_by_fold]
        by_fold = [list(map(row_metrics, column, weights)) for column in rankings]
        return mean_of_known(np.array(by_fold), axis=1)

    with ThreadPoolExecutor(n_threads) as pool:
        values = np.array(list(pool.map(resample, range(n_resamples))))
    return Resamples(unit, tuple(columns), values)


def draw_transactions(seed: int, r: int, sizes: Sequence[int]) -> list[Array]:
    """The rows of each fold in resample r."""
    rng = np.random.default_rng([seed, 0, r])
    return [rng.integers(0, max(size, 1), size) for size in sizes]


def draw_customers(seed: int, r: int, n_customers: int) -> Array:
    """The customers in resample r, numbered by rank among the customers of all folds."""
    return np.random.default_rng([seed, 1, r]).integers(0, max(n_customers, 1), n_customers)


def wilcoxon_p(first_losses: Array, second_losses: Array) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test on paired losses [N].

    None without rows or losses. The test assumes independent transactions. Those of a customer are
    not, so the value is too small; trust the customer interval of the difference instead.
    """
    if first_losses.shape != second_losses.shape or first_losses.ndim != 1:
        shapes = f"{first_losses.shape} and {second_losses.shape}"
        raise DataError(f"paired losses must be of the same rows; found shapes {shapes}")
    differences = first_losses - second_losses
    if len(differences) == 0 or np.isnan(differences).any():
        return None
    return float(wilcoxon(differences).pvalue) if differences.any() else 1.0


def _check_common_rows(columns: Mapping[str, Sequence[ScoredLabels]]) -> Sequence[ScoredLabels]:
    """The folds of the first column; refuses columns with other rows."""
    if not columns or not all(len(folds) for folds in columns.values()):
        raise DataError("there is nothing to resample: give at least one column with one fold")
    name, common = next(iter(columns.items()))
    for other, folds in columns.items():
        if len(folds) != len(common):
            found = f"{name!r} has {len(common)}, {other!r} has {len(folds)}"
            raise DataError(f"columns must have the same folds; {found}")
        for f, (one, two) in enumerate(zip(common, folds, strict=True)):
            same_labels = np.array_equal(one.labels, two.labels)
            if not same_labels or not np.array_equal(one.customers, two.customers):
                found = f"in fold {f} {name!r} and {other!r} differ in labels or customers"
                raise DataError(f"columns must have the same rows; {found}")
    return common


def _count(drawn: Array, size: int) -> Array:
    return np.bincount(drawn, minlength=size).astype(np.float64)


def percentile_interval(values: Array, level: float = LEVEL) -> Interval | None:
    """The percentile interval of resampled values without NaN; None if there are none."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level!r}; it must be between 0 and 1")
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None
    low, high = np.quantile(known, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
