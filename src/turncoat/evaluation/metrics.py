"""Metrics of scores against labels.

Every metric takes row weights; a whole weight counts as that many copies of the row. Equal scores
form one group, so that no metric depends on the order of rows: a group across the edge of a bin or
a budget is shared out in proportion.

A metric that does not exist is NaN here and None in results. Average precision and recall need a
fraud, AUROC and KS also a genuine row, all others a row. Calibration needs scores in [0, 1]; that
is a property of all rows, including those of weight 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.results import Curves, SliceRow, SliceTable
from turncoat.numerics.jit import jit_exact

Weights = ArrayLike | None  # [N] how often each row counts; None for once

N_BINS = 15
BUDGETS = (0.001, 0.005, 0.01, 0.05)  # shares of all transactions that are alerted
DAILY_ALERTS = 100  # customers, or transactions, reviewed in a day
_MAX_ECE_SHARE, _MAX_ECE_OVER_CHANCE = 0.25, 2.0  # of the fraud rate; of what chance would give
_CLIP = 1e-12
_MAX_POINTS = 200
_FIELDS = ("scores", "labels", "customers", "days")  # of ScoredLabels


class Metric(NamedTuple):
    """A metric's title, and how to read it."""

    title: str
    higher_is_better: bool
    needs_probability: bool = False


METRICS: dict[str, Metric] = {
    "average_precision": Metric("Average precision", True),
    "auroc": Metric("AUROC", True),
    "ks": Metric("KS distance", True),
    "ece_width": Metric(f"ECE, {N_BINS} bins of equal width", False, needs_probability=True),
    "ece_mass": Metric(f"ECE, {N_BINS} bins of equal mass", False, needs_probability=True),
    "brier": Metric("Brier score", False, needs_probability=True),
    "log_loss": Metric("Log loss", False, needs_probability=True),
    "card_precision_100": Metric(f"Card precision, {DAILY_ALERTS} a day", True),
    "precision_100_daily": Metric(f"Precision, {DAILY_ALERTS} transactions a day", True),
    "recall_at_0.1%": Metric("Recall with 0.1 % alerted", True),
    "recall_at_0.5%": Metric("Recall with 0.5 % alerted", True),
    "recall_at_1%": Metric("Recall with 1 % alerted", True),
    "recall_at_5%": Metric("Recall with 5 % alerted", True),
    "precision_at_0.1%": Metric("Precision with 0.1 % alerted", True),
    "precision_at_0.5%": Metric("Precision with 0.5 % alerted", True),
    "precision_at_1%": Metric("Precision with 1 % alerted", True),
    "precision_at_5%": Metric("Precision with 5 % alerted", True),
}
DAY_METRICS = ("card_precision_100", "precision_100_daily")
ROW_METRICS = tuple(name for name in METRICS if name not in DAY_METRICS)  # as `row_metrics` orders
SLICE_METRICS = ("average_precision", "auroc", "ece_mass", "brier")
# Slices by length of history, with the smallest number of earlier transactions of each.
HISTORY = {"first": 0, "2nd to 4th": 1, "5th to 19th": 4, "20th and later": 19}


class Ranking(NamedTuple):
    """N rows by falling score in G groups of equal scores, ready for any weights."""

    order: Array  # [N] row at each place
    ends: Array  # [G] place past the last row of each group
    width_ends: Array  # [N_BINS + 1] group past the last of each bin of equal width, bins falling
    scores: Array  # [N] by place, clipped to 0..1
    labels: Array  # [N] by place
    log_losses: Array  # [N] by place
    is_probability: bool  # nothing had to be clipped

    @classmethod
    def sort(cls, scores: Array, labels: Array) -> Ranking:
        """Sort rows by falling score."""
        order = np.argsort(-scores, kind="stable")
        ranked, truth = scores[order], labels[order].astype(np.float64)
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], len(ranked) > 0)) + 1
        kept = np.clip(ranked, 0.0, 1.0)
        bins = np.minimum((kept[ends - 1] * N_BINS).astype(np.int64), N_BINS - 1)
        width_ends = np.searchsorted(-bins, np.arange(-N_BINS, 1), side="right")
        sure = np.clip(kept, _CLIP, 1.0 - _CLIP)
        log_losses = -np.where(truth == 1, np.log(sure), np.log1p(-sure))
        return cls(order, ends, width_ends, kept, truth, log_losses, bool((kept == ranked).all()))


@dataclass(frozen=True, eq=False)
class ScoredLabels:
    """Scores of N transactions with their labels. Do not change the arrays."""

    scores: Array  # [N] higher is more suspicious
    labels: Array  # [N] 1 is fraud, 0 genuine
    customers: Array  # [N] whole numbers
    days: Array  # [N] whole numbers

    def __post_init__(self) -> None:
        scores = np.asarray(self.scores)
        if scores.ndim != 1 or scores.dtype.kind not in "fiub":
            found = f"{scores.dtype} {scores.shape}"
            raise DataError(f"scores must be one number per transaction; found {found}")
        remedy = ". Leave out transactions without a score"
        _check_each("scores", scores, np.isfinite(scores), "finite", remedy)
        labels = _check_integers("labels", self.labels, len(scores), bools=True)
        remedy = ". Leave out transactions without a known label"
        _check_each("labels", labels, np.isin(labels, (0, 1)), "0 or 1", remedy)
        object.__setattr__(self, "scores", scores.astype(np.float64, copy=False))
        object.__setattr__(self, "labels", labels)
        for name in ("customers", "days"):
            values = _check_integers(name, getattr(self, name), len(scores))
            object.__setattr__(self, name, values)

    @classmethod
    def concatenate(cls, parts: Sequence[ScoredLabels]) -> ScoredLabels:
        """The rows of several parts, such as folds, as one."""
        if not parts:
            raise DataError("no part was given; give at least one")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))

    def __len__(self) -> int:
        """Number of transactions N."""
        return len(self.scores)

    @cached_property
    def ranking(self) -> Ranking:
        """The rows by score."""
        return Ranking.sort(self.scores, self.labels)

    @property
    def n_frauds(self) -> int:
        """Number of frauds."""
        return int(self.labels.sum())

    def take(self, rows: Array) -> ScoredLabels:
        """The rows of a mask or of row numbers."""
        return ScoredLabels(*(getattr(self, name)[rows] for name in _FIELDS))


def _check_each(name: str, values: Array, is_right: Array, rule: str, remedy: str = "") -> None:
    """Refuse the first of the values [N] that is not right."""
    if not is_right.all():
        row = int(is_right.argmin())
        raise DataError(f"{name} must be {rule}; row {row} has {values[row]}{remedy}")


def _check_entries(name: str, values: ArrayLike, n_rows: int) -> Array:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        expected = f"one entry for each of the {n_rows:,} scored rows"
        raise DataError(f"{name} must have {expected}; found shape {array.shape}")
    return array


def _check_integers(name: str, values: ArrayLike, n_rows: int, *, bools: bool = False) -> Array:
    array = _check_entries(name, values, n_rows)
    if n_rows > 0 and array.dtype.kind not in ("iub" if bools else "iu"):
        found = f"found type {array.dtype}. Convert them to integers"
        raise DataError(f"{name} must be whole numbers; {found}")
    return array.astype(np.int64, copy=False)


def measure(
    scored: ScoredLabels, names: Iterable[str] = tuple(METRICS), weights: Weights = None
) -> dict[str, float]:
    """Metrics by name, each row counted `weights` [N] times; NaN where a metric does not exist."""
    wanted = list(names)
    for name in wanted:
        if name not in METRICS:
            raise ConfigError(f"metric {name!r} is unknown; choose from {', '.join(METRICS)}")
    counted = check_weights(weights, len(scored))
    values = dict(zip(ROW_METRICS, row_metrics(scored.ranking, counted).tolist(), strict=True))
    if "card_precision_100" in wanted:
        values["card_precision_100"] = card_precision(scored, DAILY_ALERTS, counted)
    if "precision_100_daily" in wanted:
        values["precision_100_daily"] = daily_precision(scored, DAILY_ALERTS, counted)
    return {name: values[name] for name in wanted}


def check_weights(weights: Weights, n_rows: int) -> Array:
    """Weights [N] as floats; 1 each by default."""
    if weights is None:
        return np.ones(n_rows)
    array = np.asarray(weights)
    if array.shape != (n_rows,) or array.dtype.kind not in "fiub":
        expected = f"one number for each of the {n_rows:,} rows"
        raise DataError(f"weights must be {expected}; found {array.dtype} {array.shape}")
    counted = array.astype(np.float64)
    is_right = np.isfinite(counted) & (counted >= 0)
    _check_each("weights", counted, is_right, "finite and not negative")
    return counted


def or_none(value: float | Array) -> float | None:
    """A single value as results hold it: None instead of NaN."""
    return None if math.isnan(value) else float(value)


def mean_of_known(values: Array, axis: int = 0) -> Array:
    """Mean over the values that are not NaN; NaN where there is none."""
    known = ~np.isnan(values)
    counts = known.sum(axis=axis)
    sums = np.where(known, values, 0.0).sum(axis=axis)
    missing = np.full(np.shape(sums), np.nan)
    return np.asarray(np.divide(sums, counts, out=missing, where=counts > 0))


def log_losses(scored: ScoredLabels) -> Array:
    """Negative log probability of each row's label [N]; NaN without probabilities."""
    chances = np.where(scored.labels == 1, scored.scores, 1.0 - scored.scores)
    losses = -np.log(np.clip(chances, _CLIP, 1.0))
    return losses if scored.ranking.is_probability else np.full(len(scored), np.nan)


def brier_losses(scored: ScoredLabels) -> Array:
    """Squared distance of score and label [N]; NaN without probabilities."""
    if not scored.ranking.is_probability:
        return np.full(len(scored), np.nan)
    return np.asarray((scored.scores - scored.labels) ** 2)


LOSSES = {"brier": brier_losses, "log_loss": log_losses}  # metrics that are means over rows


def card_precision(scored: ScoredLabels, k: int = DAILY_ALERTS, weights: Weights = None) -> float:
    """Card precision@k of the Fraud Detection Handbook, mean over days.

    Every day the k customers with the highest score are reviewed. The precision is the number of
    them with a fraud that day over k, even if fewer than k are left. Customers found are left out
    on later days. Ties go to the lower customer number. A weight only says whether a row is
    present: a copy of it is the same card.
    """
    present = np.flatnonzero(check_weights(weights, len(scored)) > 0)
    found = np.empty(0, np.int64)
    shares = []
    for rows in _split_by_day(scored, present):
        rows = rows[~np.isin(scored.customers[rows], found)]
        customers, places = np.unique(scored.customers[rows], return_inverse=True)
        best = np.full(len(customers), -np.inf)
        np.maximum.at(best, places, scored.scores[rows])
        defrauded = np.bincount(places, scored.labels[rows], minlength=len(customers)) > 0
        reviewed = np.argsort(-best, kind="stable")[:k]
        caught = customers[reviewed[defrauded[reviewed]]]
        found = np.append(found, caught)
        shares.append(len(caught) / k)
    return float(np.mean(shares)) if shares else math.nan


def daily_precision(scored: ScoredLabels, k: int = DAILY_ALERTS, weights: Weights = None) -> float:
    """Frauds among a day's k highest scores over k, mean over days; ties at the edge are shared."""
    counted = check_weights(weights, len(scored))
    shares = []
    for rows in _split_by_day(scored, np.flatnonzero(counted > 0)):
        sums = accumulate(Ranking.sort(scored.scores[rows], scored.labels[rows]), counted[rows])[0]
        shares.append(interpolate(sums[0], sums[1], float(k)) / k)
    return float(np.mean(shares)) if shares else math.nan


def _split_by_day(scored: ScoredLabels, rows: Array) -> list[Array]:
    """The rows of each day, oldest first."""
    if len(rows) == 0:
        return []
    ordered = rows[np.argsort(scored.days[rows], kind="stable")]
    return np.split(ordered, np.flatnonzero(np.diff(scored.days[ordered])) + 1)


def slice_by_history(scored: ScoredLabels, n_earlier: ArrayLike, candidate: str) -> SliceTable:
    """Slices by the number of earlier transactions of the row's customer, `n_earlier` [N]."""
    counts = _check_entries("n_earlier", n_earlier, len(scored))
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        found = f"found {counts.dtype} {counts.min(initial=0)}"
        raise DataError(f"n_earlier must count earlier transactions, whole numbers from 0; {found}")
    slices = np.searchsorted(list(HISTORY.values()), counts, side="right") - 1
    masks = ((label, slices == s) for s, label in enumerate(HISTORY))
    return _measure_slices(scored, masks, "by length of history", candidate)


def slice_by_scenario(
    scored: ScoredLabels, scenarios: ArrayLike, labels: Mapping[Any, str], candidate: str
) -> SliceTable:
    """Slices of all genuine rows and the frauds of one of the scenarios [N] named by `labels`."""
    keys, is_genuine = _check_entries("scenarios", scenarios, len(scored)), scored.labels == 0
    masks = ((label, is_genuine | (keys == key)) for key, label in labels.items())
    return _measure_slices(scored, masks, "by scenario", candidate)


def _measure_slices(
    scored: ScoredLabels, masks: Iterable[tuple[str, Array]], title: str, candidate: str
) -> SliceTable:
    rows = []
    for label, mask in masks:
        part = scored.take(mask)
        metrics = {name: or_none(v) for name, v in measure(part, SLICE_METRICS).items()}
        rows.append(SliceRow(label, len(part), part.n_frauds, metrics))
    return SliceTable(title, candidate, tuple(rows))


def compute_curves(scored: ScoredLabels, n_bins: int = N_BINS) -> Curves:
    """Precision at up to 200 recalls, and reliability in bins of equal mass, by rising score."""
    weight, frauds, gaps = accumulate(scored.ranking, np.ones(len(scored)))[0]
    recalls = np.linspace(0.0, 1.0, _MAX_POINTS + 1)[1:] if frauds[-1] > 0 else np.empty(0)
    # The first place of each recall: later ones have less precision.
    points = np.searchsorted(frauds, np.unique(np.ceil(recalls * frauds[-1])))
    n_bins = min(n_bins, len(scored)) if scored.ranking.is_probability else 0
    cuts = np.rint(np.linspace(len(scored), 0.0, n_bins + 1)) if n_bins else np.empty(0)
    sizes = -np.diff(cuts)
    frauds_of_bins = -np.diff(np.interp(cuts, weight, frauds))
    scores_of_bins = frauds_of_bins + np.diff(np.interp(cuts, weight, gaps))
    return Curves(
        recall=tuple((frauds[points] / max(frauds[-1], 1.0)).tolist()),
        precision=tuple((frauds[points] / weight[points]).tolist()),
        mean_score=tuple((scores_of_bins / sizes).tolist()),
        fraud_rate=tuple((frauds_of_bins / sizes).tolist()),
        bin_rows=tuple(sizes.astype(int).tolist()),
    )


def expected_ece(curves: Curves) -> float:
    """Equal-mass ECE of a perfectly calibrated score by chance: the mean size of binomial noise."""
    bins = zip(curves.mean_score, curves.bin_rows, strict=True)
    noise = (n * math.sqrt(2 / math.pi * max(p * (1 - p), 0.0) / n) for p, n in bins if n)
    return sum(noise) / max(sum(curves.bin_rows), 1)


def find_ece_limit(curves: Curves, fraud_rate: float) -> float:
    """The equal-mass ECE above which a probability counts as not calibrated."""
    return max(_MAX_ECE_SHARE * fraud_rate, _MAX_ECE_OVER_CHANCE * expected_ece(curves))


@jit_exact
def row_metrics(ranking: Ranking, weights: Array) -> Array:
    """The ROW_METRICS, in order, with row weights [N]."""
    sums, brier, log_loss = accumulate(ranking, weights)
    weight, frauds, gaps = sums[0], sums[1], sums[2]
    n_budgets = len(BUDGETS)
    values = np.full(7 + 2 * n_budgets, np.nan)
    all_rows, all_frauds = weight[-1], frauds[-1]
    if all_frauds > 0:
        values[0] = _average_precision(weight, frauds)
        for b in range(n_budgets):
            alerts = BUDGETS[b] * all_rows
            found = interpolate(weight, frauds, alerts)
            values[7 + b] = found / all_frauds
            values[7 + n_budgets + b] = found / alerts
        if all_frauds < all_rows:
            values[1], values[2] = _auroc_and_ks(weight, frauds)
    if all_rows > 0 and ranking.is_probability:
        # Bins of equal width; a score on an edge is in the upper one.
        values[3] = np.abs(np.diff(gaps[ranking.width_ends])).sum() / all_rows
        values[4] = _ece_mass(weight, gaps) / all_rows
        values[5] = brier / all_rows
        values[6] = log_loss / all_rows
    return values


@jit_exact
def accumulate(ranking: Ranking, weights: Array) -> tuple[Array, float, float]:
    """Running sums [3, G + 1] of weights, frauds and labels minus scores; Brier and log loss."""
    sums = np.zeros((3, len(ranking.ends) + 1))
    weight = frauds = gap = brier = log_loss = 0.0
    start = 0
    for g in range(len(ranking.ends)):
        for i in range(start, ranking.ends[g]):
            w, label = weights[ranking.order[i]], ranking.labels[i]
            residual = label - ranking.scores[i]
            weight += w
            frauds += w * label
            gap += w * residual
            brier += w * (residual * residual)
            log_loss += w * ranking.log_losses[i]
        sums[0, g + 1], sums[1, g + 1], sums[2, g + 1] = weight, frauds, gap
        start = ranking.ends[g]
    return sums, brier, log_loss


@jit_exact
def _average_precision(weight: Array, frauds: Array) -> float:
    """Precision at every group, weighted by the recall it adds."""
    total = 0.0
    for g in range(1, len(frauds)):
        if frauds[g] > frauds[g - 1]:
            total += (frauds[g] - frauds[g - 1]) * (frauds[g] / weight[g])
    return float(total / frauds[-1])


@jit_exact
def _auroc_and_ks(weight: Array, frauds: Array) -> tuple[float, float]:
    """AUROC (ties count half), and the largest distance between the two score distributions."""
    all_frauds, all_genuine = frauds[-1], weight[-1] - frauds[-1]
    pairs = distance = before = 0.0
    for g in range(1, len(frauds)):
        genuine = weight[g] - frauds[g]
        pairs += (genuine - before) * (frauds[g - 1] + frauds[g])
        distance = max(distance, abs(frauds[g] * all_genuine - genuine * all_frauds))
        before = genuine
    return pairs / (2.0 * all_frauds * all_genuine), distance / (all_frauds * all_genuine)


@jit_exact
def _ece_mass(weight: Array, gaps: Array) -> float:
    """Absolute gaps over bins of equal weight; rows on a cut are shared out."""
    total = before = 0.0
    for b in range(1, N_BINS + 1):
        after = interpolate(weight, gaps, b * weight[-1] / N_BINS)
        total += abs(after - before)
        before = after
    return total


@jit_exact
def interpolate(weight: Array, sums: Array, place: float) -> float:
    """A running sum at the place where the running weight is `place`."""
    g = np.searchsorted(weight, place)
    if g == 0:
        return 0.0
    if g == len(weight):
        return float(sums[-1])
    share = (place - weight[g - 1]) / (weight[g] - weight[g - 1])
    return float(sums[g - 1] + share * (sums[g] - sums[g - 1]))
