"""From an evaluated study to the summary of its first screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.evaluation.alerts import HeldOutDays, LabelWeights, catch_frauds, measure_reliability
from turncoat.evaluation.candidates import CHAMPION
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.evaluation.protocols import TEST, Fold
from turncoat.evaluation.summary import (
    MONTH_DAYS,
    AlertCurve,
    Costs,
    PathStep,
    Summary,
    TopCustomer,
)
from turncoat.evaluation.verdict import LOGISTIC, XGBOOST
from turncoat.features.split_panels import select_visible
from turncoat.scoring import Detector
from turncoat.scoring.descriptions import AVERAGE, OTHERS
from turncoat.scoring.explanations import Explanation
from turncoat.scoring.reasons import Reasons

if TYPE_CHECKING:
    from turncoat.evaluation.evaluator import Evaluator
    from turncoat.evaluation.study import Study

_MAX_MODELS = 10
_N_CUSTOMERS = 10
_PATH_STEPS = 12
_MIN_SHARE = 0.1  # of a cause, to be shown
_N_REASONS, _MAX_REASONS = 3, 10  # shown, and looked through for those that raised the score


def summarise(evaluator: Evaluator, costs: Costs) -> Summary:
    """What a head of fraud asks first, about the detector of the last fold and the first seed."""
    study = evaluator.study
    name, detector = _find_deployed(study)
    seed = study.settings.seeds[0]
    options: Any = {"n_resamples": study.settings.n_resamples, "seed": seed}
    columns = {one: evaluator.scored(one, seed) for one in _choose_models(evaluator, name)}
    places = [evaluator.rows(f, evaluator.columns[name]) for f in range(len(study.folds))]
    days = _find_days(study.folds, places)
    traffic = days.measure_traffic(columns[name])
    budgets = days.choose_budgets(traffic)
    found = {one: catch_frauds(folds, days, budgets, **options) for one, folds in columns.items()}
    frauds_per_day = traffic.frauds_per_month / MONTH_DAYS
    own = found[name].list_budgets(traffic, costs)
    savings = [-np.inf if one.net_saving is None else one.net_saving.value or 0.0 for one in own]
    return Summary(
        detector=name,
        costs=costs,
        traffic=traffic,
        curves=tuple(AlertCurve(one, f.list_budgets(traffic, costs)) for one, f in found.items()),
        shown_budget=int(np.abs(np.log(np.array(budgets) / frauds_per_day)).argmin()),
        best_budget=None if days.amounts is None else int(np.argmax(savings)),
        gains=found[name].compare(found[XGBOOST]) if XGBOOST in found else (),
        reliability=tuple(
            measure_reliability(one, ScoredLabels.concatenate(columns[one]), **options)
            for one in (name, XGBOOST)
            if one in columns
        ),
        top_customers=_list_top_customers(study.folds[-1], places[-1], columns[name][-1], detector),
    )


def _find_deployed(study: Study) -> tuple[str, Detector]:
    """The column and the detector to deploy: the champion, or else the anchored regimes."""
    fits = study.fits[len(study.folds) - 1, study.settings.seeds[0]]
    if CHAMPION in fits:
        return CHAMPION, fits[CHAMPION].detector
    title = study.settings.detectors["anchored"]
    return f"{title}, corrected, filtered", fits["anchored"].detector


def _choose_models(evaluator: Evaluator, deployed: str) -> list[str]:
    """At most ten models that one would use, best first by average precision.

    The detector to deploy, XGBoost and logistic regression are always among them. All have the
    same rows.
    """
    columns, values = evaluator.columns, {}
    for one in evaluator.candidates:
        column, estimate = columns[one.name], one.metrics["average_precision"]
        is_main = column.is_main and column.family != "calibrated"
        same_rows = (column.tier is None) == (columns[deployed].tier is None)
        if is_main and (same_rows or not evaluator.is_paper):
            values[one.name] = estimate.value or 0.0
    ranked = sorted(values, key=values.__getitem__, reverse=True)
    kept = [name for name in (deployed, XGBOOST, LOGISTIC) if name in values]
    others = [name for name in ranked if name not in kept]
    kept += others[: _MAX_MODELS - len(kept)]
    return [name for name in ranked if name in kept]


def _find_days(folds: Sequence[Fold], places: Sequence[Array]) -> HeldOutDays:
    """Length and traffic of the test days, and the amounts of the test rows at `places`."""
    transactions = folds[0].transactions
    column = transactions.schema.amount
    every = None if column is None else transactions.column(column)
    days, labels = np.floor(transactions.times / DAY), np.asarray(transactions.labels)
    n_days, n_rows, amounts, n_known, n_frauds, n_held_out = [], 0, [], 0, 0, 0
    for fold, own in zip(folds, places, strict=True):
        test = fold.rows(TEST)
        first, last = days[test].min(), days[test].max()
        n_days.append(int(last - first) + 1)
        counts = (days >= first) & (days <= last)
        counts[fold.split.excluded] = False
        n_rows += int(counts.sum())
        n_known += int((labels[counts] >= 0).sum())
        n_frauds += int((labels[counts] == 1).sum())
        n_held_out += int((labels[test[own]] == 1).sum())
        if every is not None:
            amounts.append(every[test[own]])
    n_own, fraud_rate = sum(map(len, places)), n_frauds / n_known
    paid = None if every is None else tuple(amounts)
    weights = LabelWeights.match(n_own, n_held_out, fraud_rate)
    return HeldOutDays(tuple(n_days), n_rows / n_own, paid, fraud_rate, weights)


def _list_top_customers(
    fold: Fold, places: Array, scored: ScoredLabels, detector: Detector
) -> tuple[TopCustomer, ...]:
    """The customers with the highest scores of a fold, each with the path up to that score."""
    visible, tests = select_visible(fold.transactions, fold.split, TEST)
    rows = tests[places]  # of the scored transactions
    order = np.argsort(-scored.scores, kind="stable")
    first = np.sort(np.unique(scored.customers[order], return_index=True)[1])[:_N_CUSTOMERS]
    best = order[first]
    starts = np.searchsorted(visible.customer_codes, visible.customer_codes[rows[best]])
    begins = np.maximum(starts, rows[best] - _PATH_STEPS + 1)
    paths = [np.arange(begin, row + 1) for begin, row in zip(begins, rows[best], strict=True)]
    explained = np.sort(np.concatenate(paths))
    explanations = detector.explain_rows(visible, explained, n_reasons=_MAX_REASONS)
    by_row = dict(zip(explained.tolist(), explanations, strict=True))
    found = []
    for place, start, path in zip(best, starts, paths, strict=True):
        top = by_row[int(path[-1])]
        found.append(
            TopCustomer(
                customer=top.customer,
                is_fraud=bool(scored.labels[place] == 1),
                probability=top.score.probability,
                interval=top.score.interval,
                reasons=_select_reasons(top.score.reasons),
                counterparties=dict(top.counterparties),
                path=tuple(_take_step(by_row[row]) for row in path.tolist()),
                n_earlier=int(path[0] - start),
            )
        )
    return tuple(found)


def _take_step(one: Explanation) -> PathStep:
    paid = one.amount, one.currency
    return PathStep(one.id, one.moment, *paid, one.score.probability, one.score.regime)


def _select_reasons(reasons: Reasons) -> Reasons:
    """The strongest facts that raised a score, or else the strongest of all."""
    facts = [one for one in reasons if one.source not in (AVERAGE, OTHERS)]
    raised = [one for one in facts if one.log_odds > 0 or (one.share or 0.0) >= _MIN_SHARE]
    return tuple((raised or facts[:1])[:_N_REASONS])
