"""How sure figures are: the same metrics on resamples of transactions, or of customers with all that they did.

All columns of scores meet the same resamples, so their differences are paired. A resample is a weight for every row (how often
it was drawn), so the rows are sorted once per column. Bins of equal mass are cut anew in every resample, as for any weights.

KS and ECE are sums or maxima of absolute distances, to which noise adds. A resample has the sample's noise and its own, so
their intervals lie too high, and may lie above the figure itself; differences of two columns suffer less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from scipy.stats import wilcoxon

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.metrics import ROW_METRICS, ScoredLabels, mean_of_known, row_figures
from turncoat.evaluation.results import Interval
from turncoat.numerics.engine import available_threads

Column = (
    str | Sequence[str]
)  # a column by name, or several (such as seeds of one model), of which the mean is meant

N_RESAMPLES = 1000
LEVEL = 0.9
UNITS = ("transaction", "customer")


@dataclass(frozen=True, eq=False)
class Resamples:
    """Metrics on R resamples, each the mean over the folds where it exists. Intervals are of the resamples where it exists."""

    unit: str  # what was drawn: "transaction" or "customer"
    columns: tuple[str, ...]
    values: Array  # [R, columns, ROW_METRICS]; NaN where a metric does not exist

    def of(self, column: Column, metric: str) -> Array:
        """One metric in all resamples [R]."""
        names = (column,) if isinstance(column, str) else tuple(column)
        for name in names:
            if name not in self.columns:
                raise ConfigError(
                    f"column {name!r} was not resampled; choose from {', '.join(self.columns)}"
                )
        if metric not in ROW_METRICS:
            raise ConfigError(
                f"metric {metric!r} is not resampled; choose from {', '.join(ROW_METRICS)}"
            )
        places = [self.columns.index(name) for name in names]
        return mean_of_known(self.values[:, places, ROW_METRICS.index(metric)], axis=1)

    def interval(self, column: Column, metric: str, level: float = LEVEL) -> Interval | None:
        """Percentile interval of a metric; None if it exists in no resample."""
        return percentiles(self.of(column, metric), level)

    def difference(
        self, first: Column, second: Column, metric: str, level: float = LEVEL
    ) -> Interval | None:
        """Percentile interval of the first column's metric less the second's, on the same resamples."""
        return percentiles(self.of(first, metric) - self.of(second, metric), level)


def bootstrap(
    columns: Mapping[str, Sequence[ScoredLabels]],
    unit: str,
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
    n_threads: int | None = None,
) -> Resamples:
    """Resample named columns of scores, each a list of folds with the same rows as the other columns have.

    Transactions are drawn within every fold. Customers are drawn from those of all folds, and one that is in several is drawn
    for all of them at once. The result depends on the seed, not on the threads.
    """
    if unit not in UNITS:
        raise ConfigError(f"unit is {unit!r}; it must be one of {', '.join(UNITS)}")
    for name, value, least in (
        ("n_resamples", n_resamples, 1),
        ("seed", seed, 0),
        ("n_threads", n_threads or available_threads(), 1),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value!r}; it must be at least {least}")
    folds = _common_rows(columns)
    rankings = [[fold.ranking for fold in column] for column in columns.values()]
    sizes = [len(fold) for fold in folds]
    customers, codes = np.unique(
        np.concatenate([fold.customers for fold in folds]), return_inverse=True
    )
    of_fold = np.split(codes, np.cumsum(sizes)[:-1])

    def weights(r: int) -> list[Array]:
        if unit == "transaction":
            return [
                _counts(rows, size)
                for rows, size in zip(drawn_transactions(seed, r, sizes), sizes, strict=True)
            ]
        counts = _counts(drawn_customers(seed, r, len(customers)), len(customers))
        return [counts[fold] for fold in of_fold]

    def resample(r: int) -> Array:
        drawn = weights(r)
        by_fold = [
            [row_figures(*pair) for pair in zip(column, drawn, strict=True)] for column in rankings
        ]
        return mean_of_known(np.array(by_fold), axis=1)

    with ThreadPoolExecutor(n_threads or available_threads()) as pool:
        return Resamples(
            unit, tuple(columns), np.array(list(pool.map(resample, range(n_resamples))))
        )


def drawn_transactions(seed: int, r: int, sizes: Sequence[int]) -> list[Array]:
    """The rows of each fold that resample r consists of."""
    rng = np.random.default_rng([seed, 0, r])
    return [rng.integers(0, max(size, 1), size) for size in sizes]


def drawn_customers(seed: int, r: int, n_customers: int) -> Array:
    """The customers that resample r consists of, numbered by rank among the customers of all folds."""
    return np.random.default_rng([seed, 1, r]).integers(0, max(n_customers, 1), n_customers)


def wilcoxon_p(first_losses: Array, second_losses: Array) -> float | None:
    """Two-sided p-value of Wilcoxon's signed-rank test on paired losses [N], such as `brier_losses`.

    None without rows or losses. It takes transactions for independent; those of a customer are not, so it is too small: the
    interval of the difference by customer is the one to trust.
    """
    if first_losses.shape != second_losses.shape or first_losses.ndim != 1:
        raise DataError(
            f"paired losses must be of the same rows; found shapes {first_losses.shape} and {second_losses.shape}"
        )
    differences = first_losses - second_losses
    if len(differences) == 0 or np.isnan(differences).any():
        return None
    if not differences.any():
        return 1.0
    return float(wilcoxon(differences).pvalue)


def _common_rows(columns: Mapping[str, Sequence[ScoredLabels]]) -> Sequence[ScoredLabels]:
    """The folds of the first column, whose rows are those of all."""
    if not columns or not all(len(folds) for folds in columns.values()):
        raise DataError(
            "there is nothing to resample: give at least one column, and at least one fold in each"
        )
    name, common = next(iter(columns.items()))
    for other, folds in columns.items():
        if len(folds) != len(common):
            raise DataError(
                f"columns must have the same folds; {name!r} has {len(common)}, {other!r} has {len(folds)}"
            )
        for f, (one, two) in enumerate(zip(common, folds, strict=True)):
            if not (
                np.array_equal(one.labels, two.labels)
                and np.array_equal(one.customers, two.customers)
            ):
                raise DataError(
                    f"columns must be judged on the same rows; in fold {f} {name!r} and {other!r} differ in labels or customers"
                )
    return common


def _counts(drawn: Array, size: int) -> Array:
    return np.bincount(drawn, minlength=size).astype(np.float64)


def percentiles(values: Array, level: float = LEVEL) -> Interval | None:
    """The percentile interval of resampled figures, NaN left out; None if there are none."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level!r}; it must be between 0 and 1")
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None
    low, high = np.quantile(known, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return float(low), float(high)
