"""How many frauds a number of alerts a day catches, and what they are worth.

Alerts are the highest scores of a fold's test days, as many as the budget has in total: a threshold
that gives the budget on average, with busy and quiet days. Among equal scores each is as likely to
be alerted as the others. Intervals resample customers; the number of alerts stays.

Held-out customers may have more or fewer frauds than others. Frauds and genuine transactions are
weighted so that fraud is as frequent as in all data of known label of the test days. Transactions
of unknown label count as if fraud were as frequent among them: without any, the frauds of a month
are all known ones. Those caught are the recall times that, and precision and money agree with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.evaluation.bootstrap import draw_customers, percentile_interval
from turncoat.evaluation.metrics import ScoredLabels, or_none
from turncoat.evaluation.summary import (
    MONTH_DAYS,
    AlertBudget,
    Costs,
    Figure,
    Reliability,
    ReliabilityBin,
    Traffic,
)
from turncoat.numerics.engine import available_threads
from turncoat.numerics.jit import jit_exact

_ROUND_NUMBERS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)  # ten in a power of ten
_MAX_ALERTED = 0.2  # share of transactions of the largest budget
_MAX_RANGE = 1e4  # largest budget over smallest
_MIN_ALERTS = 5  # held out, of the smallest budget
_BIN_FRAUDS, _MAX_BINS = 10, 10  # frauds of a bin of reliability, about; and number of bins


class LabelWeights(NamedTuple):
    """How much a held-out transaction counts."""

    genuine: float = 1.0
    fraud: float = 1.0

    @classmethod
    def match(cls, n_rows: int, n_frauds: int, fraud_rate: float) -> LabelWeights:
        """Weights that give held-out rows this fraud rate; their sum stays the number of rows."""
        own = n_frauds / n_rows
        return cls((1 - fraud_rate) / (1 - own), fraud_rate / own) if 0 < own < 1 else cls()


_AS_THEY_ARE = LabelWeights()


@dataclass(frozen=True, eq=False)
class HeldOutDays:
    """What alerts need to know about the test rows of known label, besides their scores."""

    n_days: tuple[int, ...]  # by fold
    scale: float  # all transactions of these days over held-out ones
    amounts: tuple[Array, ...] | None  # [N] by fold; NaN is unknown; None without the column
    fraud_rate: float | None = None  # of all transactions of known label of these days
    weights: LabelWeights = _AS_THEY_ARE

    @property
    def month(self) -> float:
        """The factor from held-out rows to 30 days of all transactions."""
        return self.scale * MONTH_DAYS / sum(self.n_days)

    def measure_traffic(self, folds: Sequence[ScoredLabels]) -> Traffic:
        """The transactions that alerts are chosen from."""
        n_rows, n_frauds = sum(map(len, folds)), sum(fold.n_frauds for fold in folds)
        value, n_unknown = None, 0
        if self.amounts is not None:
            pairs = zip(folds, self.amounts, strict=True)
            paid = np.concatenate([own[fold.labels == 1] for fold, own in pairs])
            value = self.month * self.weights.fraud * float(_cost(paid).sum())
            n_unknown = int(np.isnan(paid).sum())
        return Traffic(
            n_rows=n_rows,
            n_frauds=n_frauds,
            n_customers=len(np.unique(np.concatenate([fold.customers for fold in folds]))),
            n_days=sum(self.n_days),
            scale=self.scale,
            rows_per_day=self.scale * n_rows / sum(self.n_days),
            frauds_per_month=self.month * self.weights.fraud * n_frauds,
            fraud_value_per_month=value,
            n_frauds_without_amount=n_unknown,
            fraud_rate=self.fraud_rate,
        )

    def choose_budgets(self, traffic: Traffic) -> tuple[float, ...]:
        """Alerts a day, rising: round numbers, ten for each power of ten.

        From one a day, less only where there are few transactions, up to a fifth of them.
        """
        high = _MAX_ALERTED * traffic.rows_per_day
        min_per_day = _MIN_ALERTS * self.scale / traffic.n_days
        low = max(high / _MAX_RANGE, min_per_day, 1.0 if high >= 20 else 0.0)
        low = min(low, high / 10)
        powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
        numbers = (float(f"{number}e{power}") for power in powers for number in _ROUND_NUMBERS)
        return tuple(number for number in numbers if low <= number <= high)


@dataclass(frozen=True, eq=False)
class CaughtFrauds:
    """Held-out frauds, and their amounts, that B budgets catch with one model; both weighted.

    The first of the R + 1 entries is of the rows themselves, the others of resampled customers.
    """

    alerts_per_day: tuple[float, ...]  # [B]
    days: HeldOutDays
    caught: Array  # [R + 1, 2, B] frauds and their amounts
    totals: Array  # [R + 1, 2] of all frauds

    def list_budgets(self, traffic: Traffic, costs: Costs) -> tuple[AlertBudget, ...]:
        """What each budget finds."""
        (frauds, values), days = self.caught.transpose(1, 2, 0), self.days
        all_frauds, all_values = self.totals.T
        found = []
        for b, alerts in enumerate(self.alerts_per_day):
            n_alerts = alerts * sum(days.n_days) / days.scale
            precision = _estimate(frauds[b] / n_alerts)
            n_caught = float(frauds[b, 0]) / days.weights.fraud
            n_genuine = (n_alerts - float(frauds[b, 0])) / days.weights.genuine
            reviews = alerts * MONTH_DAYS
            value = share = prevented = cost = saving = None
            if days.amounts is not None:
                value, share = _estimate(days.month * values[b]), _divide(values[b], all_values)
                losses = costs.recoverable_share * days.month * values[b]
                prevented, cost = float(losses[0]), costs.per_review * reviews
                saving = _estimate(losses - cost)
            found.append(
                AlertBudget(
                    alerts_per_day=alerts,
                    alerted_share=alerts / traffic.rows_per_day,
                    reviews_per_month=reviews,
                    n_alerts=n_caught + n_genuine,
                    n_caught=n_caught,
                    frauds_per_month=_estimate(days.month * frauds[b]),
                    recall=_divide(frauds[b], all_frauds),
                    precision=precision,
                    false_alerts=_count_false_alerts(precision),
                    value_per_month=value,
                    value_share=share,
                    loss_prevented=prevented,
                    review_cost=cost,
                    net_saving=saving,
                )
            )
        return tuple(found)

    def compare(self, other: CaughtFrauds) -> tuple[Figure, ...]:
        """Frauds a month above those of another model on the same resamples, by budget."""
        gaps = self.days.month * (self.caught[:, 0] - other.caught[:, 0])
        return tuple(map(_estimate, gaps.T))


def catch_frauds(
    folds: Sequence[ScoredLabels],
    days: HeldOutDays,
    alerts_per_day: Sequence[float],
    *,
    n_resamples: int,
    seed: int,
) -> CaughtFrauds:
    """What budgets catch with one model; resamples depend on customers and seed alone."""
    keys = np.concatenate([fold.customers for fold in folds])
    customers, codes = np.unique(keys, return_inverse=True)
    own = np.split(codes, np.cumsum([len(fold) for fold in folds])[:-1])
    totals, ranked = np.zeros((2, len(customers))), []
    for f, (fold, who) in enumerate(zip(folds, own, strict=True)):
        labels = days.weights.fraud * fold.labels
        weights = np.where(fold.labels == 1, labels, days.weights.genuine)
        values = labels if days.amounts is None else labels * _cost(days.amounts[f])
        for place, column in enumerate((labels, values)):
            totals[place] += np.bincount(who, column, minlength=len(customers))
        order, ends = fold.ranking.order, fold.ranking.ends
        limits = np.array(alerts_per_day) * (days.n_days[f] / days.scale)
        columns = (column[order] for column in (who, weights, labels, values))
        ranked.append((*columns, ends, limits))

    def resample(r: int) -> tuple[Array, Array]:
        counts = np.ones(len(customers))
        if r:
            drawn = draw_customers(seed, r - 1, len(customers))
            counts = np.bincount(drawn, minlength=len(customers)).astype(np.float64)
        caught = sum(_catch(counts, *fold) for fold in ranked)
        return np.asarray(caught), (totals * counts).sum(axis=1)  # BLAS may depend on threads

    with ThreadPoolExecutor(available_threads()) as pool:
        caught, sums = zip(*pool.map(resample, range(n_resamples + 1)), strict=True)
    return CaughtFrauds(tuple(alerts_per_day), days, np.array(caught), np.array(sums))


def measure_reliability(
    name: str, scored: ScoredLabels, *, n_resamples: int, seed: int
) -> Reliability:
    """Scores against fraud rates; every bin expects as many frauds, so that rare ones are seen."""
    ranking, n_bins = scored.ranking, min(max(scored.n_frauds // _BIN_FRAUDS, 2), _MAX_BINS)
    expected = np.append(0.0, np.cumsum(ranking.scores)[ranking.ends - 1])
    middles = (expected[1:] + expected[:-1]) / 2  # equal scores share a bin
    places = np.minimum((n_bins * middles / max(expected[-1], 1e-300)).astype(np.int64), n_bins - 1)
    sizes = np.diff(ranking.ends, prepend=0)
    bins = np.unique(np.repeat(places, sizes), return_inverse=True)[1]
    n_rows, sums = np.bincount(bins), np.bincount(bins, ranking.scores)
    customers, codes = np.unique(scored.customers, return_inverse=True)
    cells = codes[ranking.order] * len(n_rows) + bins
    shape = len(customers), len(n_rows)
    columns = (np.ones(len(bins)), ranking.labels)
    rows, frauds = (
        np.bincount(cells, c, minlength=math.prod(shape)).reshape(shape) for c in columns
    )
    rates = [frauds.sum(axis=0) / n_rows]
    for r in range(n_resamples):
        counts = np.bincount(draw_customers(seed, r, shape[0]), minlength=shape[0])
        drawn = counts @ rows
        rates.append(
            np.divide(counts @ frauds, drawn, where=drawn > 0, out=np.full(shape[1], np.nan))
        )
    means = sums / n_rows
    figures = map(_estimate, np.array(rates).T)
    made = zip(means.tolist(), figures, n_rows.tolist(), strict=True)
    return Reliability(name, tuple(ReliabilityBin(*one) for one in made))


@jit_exact
def _catch(
    counts: Array,
    customers: Array,
    weights: Array,
    labels: Array,
    values: Array,
    ends: Array,
    limits: Array,
) -> Array:
    """Frauds and values [2, B] among the first rows, a customer's `counts` times.

    The first rows are those whose `weights` [N] add up to `limits` [B]; `labels` are the weights
    of frauds, and 0. Rows [N] come by falling score, in groups of equal scores that end at
    `ends` [G].
    """
    found = np.zeros((2, len(limits)))
    weight = caught = value = 0.0
    b = start = 0
    for g in range(len(ends)):
        rows = frauds = worth = 0.0
        for i in range(start, ends[g]):
            count = counts[customers[i]]
            rows += count * weights[i]
            frauds += count * labels[i]
            worth += count * values[i]
        while b < len(limits) and rows > 0 and limits[b] <= weight + rows:
            share = (limits[b] - weight) / rows
            found[0, b], found[1, b] = caught + share * frauds, value + share * worth
            b += 1
        if b == len(limits):
            return found
        weight, caught, value, start = weight + rows, caught + frauds, value + worth, ends[g]
    found[0, b:], found[1, b:] = caught, value
    return found


def _cost(amounts: Array) -> Array:
    """What frauds of these amounts cost: nothing where the amount is unknown or below 0."""
    return np.asarray(np.maximum(np.nan_to_num(amounts, posinf=0.0, neginf=0.0), 0.0))


def _estimate(values: Array) -> Figure:
    """A figure, from its value and its resampled values [R + 1]."""
    return Figure(or_none(values[0]), percentile_interval(values[1:]))


def _divide(parts: Array, totals: Array) -> Figure:
    missing = np.full(len(parts), np.nan)
    return _estimate(np.divide(parts, totals, out=missing, where=totals > 0))


def _count_false_alerts(precision: Figure) -> Figure:
    """Genuine alerts for each fraud caught; None where none is caught."""
    low, high = precision.interval or (0.0, 0.0)
    value = 1 / precision.value - 1 if precision.value else None
    return Figure(value, (1 / high - 1, 1 / low - 1) if low > 0 else None)
