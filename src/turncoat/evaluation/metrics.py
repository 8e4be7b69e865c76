"""How good scores are, against labels: one number per metric.

Every metric takes row weights; a whole weight means that many copies of the row. Equal scores are one group, so that no figure
depends on the order of the rows: a group that lies across the edge of a bin or of a budget is shared out in proportion.

A figure that does not exist is NaN here, and None in results: average precision and recall need a fraud, AUROC and KS need
a genuine row too, all others need a row; and calibration needs scores from 0 to 1. Whether scores are such is a property of all
rows, those of weight 0 included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.results import Curves
from turncoat.numerics.jit import jit_exact

N_BINS = 15
BUDGETS = (0.001, 0.005, 0.01, 0.05)  # shares of all transactions that are alerted
DAILY = 100  # customers, or transactions, that are looked at in a day
_CLIP = 1e-12
_MOST_POINTS = 200


@dataclass(frozen=True)
class Metric:
    """What a metric is called, and how to read it."""

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
    "card_precision_100": Metric(f"Card precision, {DAILY} a day", True),
    "precision_100_daily": Metric(f"Precision, {DAILY} transactions a day", True),
    "recall_at_0.1%": Metric("Recall with 0.1 % alerted", True),
    "recall_at_0.5%": Metric("Recall with 0.5 % alerted", True),
    "recall_at_1%": Metric("Recall with 1 % alerted", True),
    "recall_at_5%": Metric("Recall with 5 % alerted", True),
}
DAY_METRICS = ("card_precision_100", "precision_100_daily")
ROW_METRICS = tuple(
    name for name in METRICS if name not in DAY_METRICS
)  # in the order of `row_figures`


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
    def of(cls, scores: Array, labels: Array) -> Ranking:
        """Sort once."""
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
    """The scores of N transactions beside what they were. The arrays are not to be changed."""

    scores: Array  # [N] higher is more suspicious
    labels: Array  # [N] 1 is fraud, 0 genuine
    customers: Array  # [N] whole numbers
    days: Array  # [N] whole numbers

    def __post_init__(self) -> None:
        """Refuse what cannot be judged."""
        scores = np.asarray(self.scores)
        if scores.ndim != 1 or scores.dtype.kind not in "fiub":
            raise DataError(
                f"scores must be one number per transaction; found {scores.dtype} {scores.shape}"
            )
        if not np.isfinite(scores).all():
            row = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise DataError(
                f"scores must be finite; row {row} has {scores[row]}. Judge only transactions that were scored"
            )
        labels = _whole("labels", self.labels, len(scores), bools=True)
        if ((labels != 0) & (labels != 1)).any():
            row = int(np.flatnonzero((labels != 0) & (labels != 1))[0])
            raise DataError(
                f"labels must be 0 or 1; row {row} has {labels[row]}. Leave out transactions without a known label"
            )
        object.__setattr__(self, "scores", scores.astype(np.float64, copy=False))
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "customers", _whole("customers", self.customers, len(scores)))
        object.__setattr__(self, "days", _whole("days", self.days, len(scores)))

    @classmethod
    def together(cls, parts: Sequence[ScoredLabels]) -> ScoredLabels:
        """The rows of several parts, such as folds, as one."""
        if not parts:
            raise DataError("no part was given to put together; give at least one")
        names = ("scores", "labels", "customers", "days")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        """Number of transactions N."""
        return len(self.scores)

    @cached_property
    def ranking(self) -> Ranking:
        """The rows by score."""
        return Ranking.of(self.scores, self.labels)

    @property
    def n_frauds(self) -> int:
        """Number of frauds."""
        return int(self.labels.sum())

    def take(self, rows: Array) -> ScoredLabels:
        """Some rows, named by number or by a mask."""
        return ScoredLabels(
            self.scores[rows], self.labels[rows], self.customers[rows], self.days[rows]
        )


def _whole(name: str, values: ArrayLike, n_rows: int, *, bools: bool = False) -> Array:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        raise DataError(
            f"{name} must have one entry for each of the {n_rows:,} scores; found shape {array.shape}"
        )
    if n_rows > 0 and array.dtype.kind not in ("iub" if bools else "iu"):
        raise DataError(
            f"{name} must be whole numbers; found type {array.dtype}. Convert them to integers"
        )
    return array.astype(np.int64, copy=False)


def measure(
    judged: ScoredLabels, names: Iterable[str] = tuple(METRICS), weights: ArrayLike | None = None
) -> dict[str, float]:
    """Metrics by name, each row counted `weights` [N] times; NaN where a metric does not exist."""
    wanted = list(names)
    for name in wanted:
        if name not in METRICS:
            raise ConfigError(f"metric {name!r} is unknown; choose from {', '.join(METRICS)}")
    counted = checked_weights(weights, len(judged))
    figures = dict(zip(ROW_METRICS, row_figures(judged.ranking, counted).tolist(), strict=True))
    if "card_precision_100" in wanted:
        figures["card_precision_100"] = card_precision(judged, DAILY, counted)
    if "precision_100_daily" in wanted:
        figures["precision_100_daily"] = daily_precision(judged, DAILY, counted)
    return {name: figures[name] for name in wanted}


def checked_weights(weights: ArrayLike | None, n_rows: int) -> Array:
    """Weights [N] as floats; 1 each by default."""
    if weights is None:
        return np.ones(n_rows)
    array = np.asarray(weights)
    if array.shape != (n_rows,) or array.dtype.kind not in "fiub":
        raise DataError(
            f"weights must be one number for each of the {n_rows:,} rows; found {array.dtype} {array.shape}"
        )
    counted = array.astype(np.float64)
    if not (np.isfinite(counted) & (counted >= 0)).all():
        row = int(np.flatnonzero(~(np.isfinite(counted) & (counted >= 0)))[0])
        raise DataError(f"weights must be finite and not negative; row {row} has {counted[row]}")
    return counted


def or_none(figure: float) -> float | None:
    """A figure as results hold it: None where it does not exist."""
    return None if math.isnan(figure) else float(figure)


def mean_of_known(figures: Array, axis: int = 0) -> Array:
    """Mean over the figures that exist, such as those of the folds that have a fraud; NaN where none does."""
    known = ~np.isnan(figures)
    counts = known.sum(axis=axis)
    sums = np.where(known, figures, 0.0).sum(axis=axis)
    return np.asarray(
        np.divide(sums, counts, out=np.full(np.shape(sums), np.nan), where=counts > 0)
    )


def log_losses(judged: ScoredLabels) -> Array:
    """Minus the log probability of each row's label [N]; NaN if the scores are no probabilities."""
    if not judged.ranking.is_probability:
        return np.full(len(judged), np.nan)
    chances = np.where(judged.labels == 1, judged.scores, 1.0 - judged.scores)
    return np.asarray(-np.log(np.clip(chances, _CLIP, 1.0)))


def brier_losses(judged: ScoredLabels) -> Array:
    """Squared distance of score and label [N], the losses whose mean is the Brier score; NaN if the scores are no probabilities."""
    if not judged.ranking.is_probability:
        return np.full(len(judged), np.nan)
    losses: Array = (judged.scores - judged.labels) ** 2
    return losses


LOSSES = {
    "brier": brier_losses,
    "log_loss": log_losses,
}  # metrics that are a mean over transactions


def card_precision(judged: ScoredLabels, k: int = DAILY, weights: ArrayLike | None = None) -> float:
    """Card precision@k of the Fraud Detection Handbook, mean over days.

    Every day the k customers with the highest score of that day are looked at; the precision is how many of them had a fraud
    that day, over k, even if fewer than k are left. Those found are left out on later days. Of equal scores the lower
    customer number goes first. A weight only says whether a row is there: a copy of it is the same card.
    """
    there = np.flatnonzero(checked_weights(weights, len(judged)) > 0)
    found = np.empty(0, np.int64)
    shares = []
    for rows in _by_day(judged, there):
        rows = rows[~np.isin(judged.customers[rows], found)]
        customers, places = np.unique(judged.customers[rows], return_inverse=True)
        best = np.full(len(customers), -np.inf)
        np.maximum.at(best, places, judged.scores[rows])
        defrauded = np.bincount(places, judged.labels[rows], minlength=len(customers)) > 0
        looked_at = np.argsort(-best, kind="stable")[:k]
        caught = customers[looked_at[defrauded[looked_at]]]
        found = np.append(found, caught)
        shares.append(len(caught) / k)
    return float(np.mean(shares)) if shares else math.nan


def daily_precision(
    judged: ScoredLabels, k: int = DAILY, weights: ArrayLike | None = None
) -> float:
    """Frauds among the k highest scores of a day, over k, even if the day has fewer; mean over days.

    Of equal scores at the edge, the share that fits is as fraudulent as all of them.
    """
    counted = checked_weights(weights, len(judged))
    shares = []
    for rows in _by_day(judged, np.flatnonzero(counted > 0)):
        sums = tally(Ranking.of(judged.scores[rows], judged.labels[rows]), counted[rows])[0]
        shares.append(read(sums[0], sums[1], float(k)) / k)
    return float(np.mean(shares)) if shares else math.nan


def _by_day(judged: ScoredLabels, rows: Array) -> list[Array]:
    """The rows of each day, oldest first."""
    if len(rows) == 0:
        return []
    ordered = rows[np.argsort(judged.days[rows], kind="stable")]
    return np.split(ordered, np.flatnonzero(np.diff(judged.days[ordered])) + 1)


def curves(judged: ScoredLabels, n_bins: int = N_BINS) -> Curves:
    """Precision over recall at up to 200 evenly spaced recalls, and reliability in bins of equal mass, lowest scores first.

    Without fraud there is no recall, and without probabilities no reliability: those are empty.
    """
    weight, frauds, gaps = tally(judged.ranking, np.ones(len(judged)))[0]
    wanted = (
        np.unique(np.ceil(np.linspace(0.0, 1.0, _MOST_POINTS + 1)[1:] * frauds[-1]))
        if frauds[-1] > 0
        else np.empty(0)
    )
    points = np.searchsorted(
        frauds, wanted
    )  # the first of each recall: the others have less precision
    n_bins = min(n_bins, len(judged)) if judged.ranking.is_probability else 0
    cuts = np.rint(np.linspace(len(judged), 0.0, n_bins + 1)) if n_bins else np.empty(0)
    sizes = -np.diff(cuts)
    frauds_of_bins = -np.diff(np.interp(cuts, weight, frauds))
    scores_of_bins = frauds_of_bins + np.diff(np.interp(cuts, weight, gaps))
    return Curves(
        recall=tuple((frauds[points] / max(frauds[-1], 1.0)).tolist()),
        precision=tuple((frauds[points] / weight[points]).tolist()),
        mean_score=tuple((scores_of_bins / sizes).tolist()),
        fraud_share=tuple((frauds_of_bins / sizes).tolist()),
        bin_rows=tuple(sizes.astype(int).tolist()),
    )


@jit_exact
def row_figures(ranking: Ranking, weights: Array) -> Array:
    """The ROW_METRICS, in order, with row weights [N]."""
    sums, brier, log_loss = tally(ranking, weights)
    weight, frauds, gaps = sums[0], sums[1], sums[2]
    figures = np.full(7 + len(BUDGETS), np.nan)
    all_rows, all_frauds = weight[-1], frauds[-1]
    if all_frauds > 0:
        figures[0] = _average_precision(weight, frauds)
        for b in range(len(BUDGETS)):
            figures[7 + b] = read(weight, frauds, BUDGETS[b] * all_rows) / all_frauds
        if all_frauds < all_rows:
            figures[1], figures[2] = _auroc_and_ks(weight, frauds)
    if all_rows > 0 and ranking.is_probability:
        figures[3] = _ece_width(gaps, ranking.width_ends) / all_rows
        figures[4] = _ece_mass(weight, gaps) / all_rows
        figures[5] = brier / all_rows
        figures[6] = log_loss / all_rows
    return figures


@jit_exact
def tally(ranking: Ranking, weights: Array) -> tuple[Array, float, float]:
    """Weight, frauds, and frauds less scores, of the g best groups [3, G + 1]; and the sums of Brier and log losses."""
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
    """Share of pairs of fraud and genuine in the right order, ties half; the largest distance of their distributions."""
    all_frauds, all_genuine = frauds[-1], weight[-1] - frauds[-1]
    pairs = distance = before = 0.0
    for g in range(1, len(frauds)):
        genuine = weight[g] - frauds[g]
        pairs += (genuine - before) * (frauds[g - 1] + frauds[g])
        distance = max(distance, abs(frauds[g] * all_genuine - genuine * all_frauds))
        before = genuine
    return pairs / (2.0 * all_frauds * all_genuine), distance / (all_frauds * all_genuine)


@jit_exact
def _ece_width(gaps: Array, ends: Array) -> float:
    """Absolute gaps summed over bins of equal width; a score on an edge is in the upper bin, 1 in the last."""
    total = 0.0
    for b in range(1, len(ends)):
        total += abs(gaps[ends[b]] - gaps[ends[b - 1]])
    return total


@jit_exact
def _ece_mass(weight: Array, gaps: Array) -> float:
    """Absolute gaps summed over bins of equal weight, cut anew for every weighting; rows on a cut are shared out."""
    total = before = 0.0
    for b in range(1, N_BINS + 1):
        after = read(weight, gaps, b * weight[-1] / N_BINS)
        total += abs(after - before)
        before = after
    return total


@jit_exact
def read(weight: Array, sums: Array, place: float) -> float:
    """A running sum where the running weight is `place`; all of it beyond the end."""
    g = np.searchsorted(weight, place)
    if g == 0:
        return 0.0
    if g == len(weight):
        return float(sums[-1])
    share = (place - weight[g - 1]) / (weight[g] - weight[g - 1])
    return float(sums[g - 1] + share * (sums[g] - sums[g - 1]))
