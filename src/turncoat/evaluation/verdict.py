"""How good a detector is: figures with intervals on labelled rows, and a verdict in words.

Every figure is of filtered scores, on rows of known label. Intervals resample customers. Alerts are
the rows with the highest scores; among equal scores each is as likely to be alerted as the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY, MIN_FRAUDS, Split
from turncoat.data.transactions import Transactions
from turncoat.evaluation.baselines import LogisticBaseline
from turncoat.evaluation.bootstrap import bootstrap
from turncoat.evaluation.metrics import (
    METRICS,
    ScoredLabels,
    compute_curves,
    find_ece_limit,
    measure,
)
from turncoat.evaluation.protocols import TEST, TRAIN, Fold
from turncoat.evaluation.summary import Figure
from turncoat.features.split_panels import select_visible
from turncoat.models.boosting import BoostedTrees
from turncoat.models.tuning import XGBoostParams
from turncoat.scoring import Detector
from turncoat.scoring.rankers import RankerRows, XGBoostRanker

DETECTOR, XGBOOST, LOGISTIC = "detector", "XGBoost", "logistic regression"
SHOWN = {
    "average_precision": "average precision",
    "recall_at_0.5%": "frauds caught, 0.5 % alerted",
    "precision_at_0.5%": "precision, 0.5 % alerted",
    "recall_at_1%": "frauds caught, 1 % alerted",
    "precision_at_1%": "precision, 1 % alerted",
    "log_loss": "log loss",
    "ece_mass": "ECE",
    "auroc": "AUROC",
}
CHANCE, BETTER, WORSE, AS_GOOD = "no better than chance", "better", "worse", "as good"
TOO_FEW = "too few frauds"
_FOUR_DIGITS = ("log_loss", "ece_mass")
_N_RESAMPLES = 500
_LOGISTIC_ROWS = 60_000
_VERDICTS = {  # a conclusion, and what to do
    TOO_FEW: (
        "There are too few frauds to judge the {name}",
        f"Figures mean little with fewer than {MIN_FRAUDS}. Give more data",
    ),
    CHANCE: (
        "Do not use the {name}: it is no better than chance",
        "Check labels and columns, or give more data",
    ),
    BETTER: ("Use the {name}: it is better than XGBoost", ""),
    AS_GOOD: (
        "The {name} is as good as XGBoost",
        "Use it for its intervals and reasons, or keep XGBoost",
    ),
    WORSE: ("Keep XGBoost: the {name} is worse", "Give it more data, or a longer search"),
}


@dataclass(frozen=True)
class Evaluation:
    """Figures of one or several models on the same rows."""

    n_rows: int
    n_frauds: int
    n_customers: int
    models: Mapping[str, Mapping[str, Figure]]  # by model, then by metric
    differences: Mapping[str, Figure]  # average precision of the detector less each other model's
    mean_score: float = 0.0  # the detector's; compare it with the fraud rate
    ece_limit: float = np.inf  # above it, the detector's probabilities are not calibrated here

    @property
    def is_calibrated(self) -> bool:
        """Whether the detector's probabilities agree with the fraud rates of these rows."""
        ece = self.models[DETECTOR]["ece_mass"].value
        return ece is None or ece <= self.ece_limit

    @property
    def verdict(self) -> str:
        """TOO_FEW, CHANCE, or how the detector does against XGBoost; empty if none can be said."""
        if self.n_frauds < MIN_FRAUDS:
            return TOO_FEW
        own = self.models[DETECTOR]["average_precision"].interval
        if own is None:
            return ""
        if own[0] <= self.n_frauds / self.n_rows:  # the average precision of random scores
            return CHANCE
        gap = self.differences.get(XGBOOST)
        if gap is None or gap.interval is None:
            return ""
        low, high = gap.interval
        return BETTER if low > 0 else WORSE if high < 0 else AS_GOOD

    def describe(self) -> str:
        """The figures as a table, and the verdict."""
        rate = self.n_frauds / self.n_rows
        size = f"{self.n_rows:,} transactions of {self.n_customers:,} customers"
        names = [*self.models]
        cells = [["", *names]]
        for metric, title in SHOWN.items():
            digits = 4 if metric in _FOUR_DIGITS else 3
            row = (_format(self.models[name].get(metric), digits) for name in names)
            cells.append([title, *row])
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [f"{size}, {self.n_frauds:,} of them fraud ({rate:.2%}); filtered scores"]
        for first, *rest in cells:
            aligned = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            lines.append("  ".join([first.ljust(widths[0]), *aligned]).rstrip())
        note = "ECE's lies high, because resampling adds noise"
        lines.append(f"In brackets: 90 % intervals, by customer. {note}.")
        for name, gap in self.differences.items():
            text = f"average precision less {name}'s: {_format(gap, 3, sign='+')}"
            lines.append(f"{text[0].upper()}{text[1:]}")
        if self.verdict:
            conclusion, *advice = describe_verdict(self.verdict, DETECTOR)
            if self.verdict == AS_GOOD and not self.is_calibrated:
                advice = ["Keep XGBoost."]
            lines.append(f"Verdict: {' '.join([conclusion, *advice])}")
        if not self.is_calibrated and self.verdict != TOO_FEW:
            lines.append(
                f"The detector's probabilities are not calibrated here: their ECE is above "
                f"{self.ece_limit:.4f}, and they expect {self.mean_score:.2%} fraud. Trust their "
                "order, not their size, until `turncoat recalibrate` has seen newer labels."
            )
        logistic = self.differences.get(LOGISTIC)
        if logistic is not None and logistic.interval is not None and logistic.interval[1] < 0:
            lines.append("Logistic regression on the same rows does better.")
        return "\n".join(lines)


def describe_verdict(verdict: str, name: str) -> tuple[str, ...]:
    """What to conclude from a verdict on the detector `name`, and what to do: one or two sentences.

    Empty for an unknown verdict.
    """
    return tuple(f"{text.format(name=name)}." for text in _VERDICTS.get(verdict, ()) if text)


def evaluate_scores(columns: Mapping[str, ScoredLabels], seed: int = 0) -> Evaluation:
    """Figures of columns of scores on the same rows; the detector's are named `DETECTOR`."""
    folds = {name: [scored] for name, scored in columns.items()}
    resamples = bootstrap(folds, "customer", n_resamples=_N_RESAMPLES, seed=seed)
    values = {name: measure(scored, SHOWN) for name, scored in columns.items()}
    models, differences = {}, {}
    for name in columns:
        figures = {}
        for metric in SHOWN:
            value = values[name][metric]
            exists = value == value and not (
                METRICS[metric].needs_probability and not columns[name].ranking.is_probability
            )
            interval = resamples.interval(name, metric) if exists else None
            figures[metric] = Figure(value if exists else None, interval)
        models[name] = figures
        if name != DETECTOR:
            gap = values[DETECTOR]["average_precision"] - values[name]["average_precision"]
            interval = resamples.difference(DETECTOR, name, "average_precision")
            differences[name] = Figure(gap, interval)
    own = columns[DETECTOR]
    size = len(own), own.n_frauds, len(np.unique(own.customers))
    limit = find_ece_limit(compute_curves(own), own.n_frauds / len(own))
    return Evaluation(*size, models, differences, float(own.scores.mean()), limit)


def evaluate_detector(
    detector: Detector, transactions: Transactions, rows: Array | None = None
) -> Evaluation:
    """Figures of a detector on the rows of known label, or on those of them among `rows`."""
    chosen = np.arange(transactions.n_rows) if rows is None else rows
    part = transactions.take(chosen)
    labels = part.require_labels("evaluating a detector")
    scores = detector.score(transactions, rows=chosen).probability
    return evaluate_scores({DETECTOR: _keep_known(scores, labels, part)})


def evaluate_against_baselines(
    detector: Detector,
    transactions: Transactions,
    split: Split,
    params: XGBoostParams | None,
    seed: int = 0,
) -> Evaluation:
    """Figures of a detector on the test part, beside XGBoost's and logistic regression's.

    Both see the detector's features and the rows that its trees saw. XGBoost has the given
    parameters; a detector whose ranker is XGBoost on the features is compared with that.
    """
    transactions.take(split.test).require_labels("the verdict", TEST)
    visible, places = select_visible(transactions, split, TEST)
    part = visible.take(places)
    labels = np.asarray(part.labels)
    columns = {DETECTOR: detector.score(visible).probability[places]}
    fold = Fold(transactions, split, detector.features_)
    ranker, training = detector.calibration_.ranker, fold.training_rows(fold.columns[TRAIN])
    if type(ranker) is XGBoostRanker:  # not a subclass, which sees more
        panel, own = fold.panel(TEST, fold.features)
        cells = panel.continuous[own], panel.categorical[own]
        columns[XGBOOST] = 1.0 / (1.0 + np.exp(-ranker.score(RankerRows(part, *cells))))
    else:
        trees = BoostedTrees(params=params).fit(training, seed)
        columns[XGBOOST] = trees.score(fold.columns[TEST])
    sizes = detector.features_.plan.n_categories
    logistic = LogisticBaseline(sizes, search_rows=_LOGISTIC_ROWS).fit(training, seed)
    columns[LOGISTIC] = logistic.score(fold.columns[TEST])
    known = {name: _keep_known(scores, labels, part) for name, scores in columns.items()}
    return evaluate_scores(known, seed)


def _keep_known(scores: Array, labels: Array, rows: Transactions) -> ScoredLabels:
    known = labels >= 0
    days = np.floor(rows.times / DAY).astype(np.int64)
    parts = scores, labels.astype(np.int64), rows.customer_codes.astype(np.int64), days
    return ScoredLabels(*(part[known] for part in parts))


def _format(figure: Figure | None, digits: int, sign: str = "") -> str:
    if figure is None or figure.value is None:
        return "-"
    text = f"{figure.value:{sign}.{digits}f}"
    if figure.interval is None:
        return text
    low, high = figure.interval
    return f"{text} ({low:{sign}.{digits}f} to {high:{sign}.{digits}f})"
