"""The champion: the detector that `turncoat fit` chooses without options (docs/champion.md).

Every choice is made on the selection part. The chain's features come in the order of a quick
booster's gain; how many, and the number of states, is decided by average precision, with evidence
weights learnt on some customers and applied to others. The kind of score is the simplest whose
average precision and log loss are within one standard error of the best, by customer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, log_loss

from turncoat.arrays import Array
from turncoat.data.splits import DAY, Split
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, require_extra
from turncoat.evaluation.bootstrap import Resamples, bootstrap
from turncoat.evaluation.chain_search import (
    CHAIN_ROWS,
    MAX_ITERATIONS,
    Announce,
    ChainSearch,
    ChainTrial,
    Effort,
    sample_panel,
    score_held_out,
)
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.features import Features
from turncoat.features.split_panels import build_fit_panel
from turncoat.models import tuning
from turncoat.models.boosting import BoostedTrees
from turncoat.models.tuning import TrainingRows, XGBoostParams, sample_customers
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.engine import available_threads
from turncoat.panel import has_both_labels
from turncoat.scoring import Anchoring, Detector
from turncoat.scoring.chain import ChainFit
from turncoat.scoring.chain_fitting import LearntCauses, learn_causes
from turncoat.scoring.detector import CHAIN_KINDS, DESCRIPTIONS, DETECTOR_KINDS, TREE_KINDS
from turncoat.scoring.episodes import ScoredRows, filter_held_out
from turncoat.scoring.hybrid import build_training_rows

BUDGET_S = 300.0
# Shares of the budget by when chains, the search of trees and further kinds start nothing new.
_CHAIN_SHARE, _SEARCH_SHARE, _KINDS_SHARE = 0.2, 0.55, 0.75
_MIN_CHOOSING_SHARE = 0.4  # of the budget; the last fits of a large file take the rest
_COMPARED_ROWS = 250_000
_SEARCH_ROWS = 60_000
_MAX_TRIALS = 20
_N_RESAMPLES = 200
_WIDE_STATES = 4
_AP, _LOSS = "average_precision", "log_loss"
_Columns = dict[tuple[str, str], ScoredLabels]  # of the selection part, by kind and chain

SELECTED, ALL = "selected features", "all features"  # what a chain sees


class KindTrial(NamedTuple):
    """A kind of score and its average precision on the selection part."""

    kind: str
    chain: str  # SELECTED or ALL
    average_precision: float
    shortfall: float  # from the best kind
    standard_error: float  # of the shortfall, by customer
    excess_loss: float = 0.0  # log loss above that of the kind with the least
    loss_error: float = 0.0  # standard error of the excess, by customer


@dataclass(frozen=True, eq=False)
class Champion:
    """The chosen detector, fitted, and what was tried on the way."""

    detector: Detector
    chosen: KindTrial
    chain_trials: tuple[ChainTrial, ...]
    kind_trials: tuple[KindTrial, ...]
    ranker: XGBoostParams | None  # the best parameters of trees on the features alone
    seconds: float

    @cached_property
    def chain_features(self) -> dict[str, float]:
        """The chain's features with their evidence weights, largest first; empty for all alike."""
        names = sum(self.detector.features_.feature_names, ())
        weights = self.detector.model_.weights
        pairs = zip(names, weights or [0.0] * len(names), strict=True)
        return dict(sorted(((n, w) for n, w in pairs if w > 0), key=lambda pair: -pair[1]))

    def describe(self) -> str:
        """What was chosen and why, in a few lines."""
        model, kind = self.detector.model_, self.detector.kind
        lines = [f"Chosen on the selection part in {self.seconds:.0f} s:"]
        if self.chosen.chain == SELECTED:
            weights = list(self.chain_features.items())
            shown = ", ".join(f"{name} {weight:.2g}" for name, weight in weights[:8])
            more = f" and {len(weights) - 8} more" if len(weights) > 8 else ""
            n_fraud = self.detector.n_fraud_states
            n_tried = len(self.chain_trials)
            best = f"the best of {n_tried} chains" if n_tried > 1 else "one was tried"
            lines += [
                f"  chain: {model.n_states} regimes, {n_fraud} of them for fraud; {best}",
                f"  evidence weights: {shown}{more}",
            ]
        else:
            text = f"{model.n_states} regimes on all features, fitted without labels"
            lines.append(f"  chain: {text}")
        lines.append(f"  score: {kind}, {DESCRIPTIONS[kind]}")
        for one in self.kind_trials:
            mark = "*" if one == self.chosen else " "
            gap = f", {one.shortfall:.3f} ± {one.standard_error:.3f} below the best"
            gap = gap if one.shortfall > 0 else ", the best"
            name = one.kind if one.chain == SELECTED else f"{one.kind}, chain on {one.chain}"
            lines.append(f"  {mark} {name}: average precision {one.average_precision:.3f}{gap}")
        rule = "within one standard error of the best, in average precision and log loss"
        lines.append(f"  The simplest kind {rule}, is taken.")
        return "\n".join(lines)


def choose_champion(
    transactions: Transactions,
    split: Split,
    features: Features | None = None,
    *,
    kinds: tuple[str, ...] = DETECTOR_KINDS,
    budget_s: float = BUDGET_S,
    max_trials: int | None = None,
    seed: int = 42,
    announce: Announce | None = None,
) -> Champion:
    """Choose features of the chain, states and kind on the selection part, then fit to all rows.

    The budget is meant for everything, with a verdict and another fit to all rows afterwards: no
    trial starts late in it, and in large files, whose last fits take long, trials end earlier. With
    `max_trials` the effort is this many trials for each search, whatever the time, so that a seed
    gives the same detector on any machine.
    """
    _check_options(kinds, budget_s, max_trials)
    effort = Effort(
        seed=seed,
        started=time.monotonic(),
        budget_s=math.inf if max_trials is not None else _limit_choosing(budget_s, split),
        max_trials=_MAX_TRIALS if max_trials is None else max_trials,
        announce=announce or (lambda text: None),
    )
    return _Choice(transactions, split, features or Features(), effort).run(kinds)


def _limit_choosing(budget_s: float, split: Split) -> float:
    """The part of the budget for choosing, which happens on a sample of a large file."""
    share = _COMPARED_ROWS / max(len(split.fit), 1)
    return budget_s * min(max(share, _MIN_CHOOSING_SHARE), 1.0)


def _check_options(kinds: tuple[str, ...], budget_s: float, max_trials: int | None) -> None:
    unknown = [kind for kind in kinds if kind not in DETECTOR_KINDS]
    if unknown or not kinds:
        raise ConfigError(f"kinds is {kinds}; each must be one of {', '.join(DETECTOR_KINDS)}")
    if not budget_s > 0:
        raise ConfigError(f"budget_s is {budget_s!r}; it must be a number of seconds above 0")
    if max_trials is not None and max_trials < 1:
        raise ConfigError(f"max_trials is {max_trials!r}; it must be at least 1")
    for module in ("xgboost", "optuna"):
        require_extra(module, "choosing a detector")


@dataclass
class _Choice:
    """One run of the choice."""

    transactions: Transactions
    split: Split
    features: Features
    effort: Effort
    # The parameters of trees by kind and chain.
    params: dict[tuple[str, str], XGBoostParams] = field(default_factory=dict)
    causes: LearntCauses | None = None

    def run(self, kinds: tuple[str, ...]) -> Champion:
        effort = self.effort
        for part in ("fit", "selection", "calibration"):
            rows = self.split.parts[part]
            if len(rows) == 0:
                problem = f"the split {self.split.name!r} has no {part} part"
                raise ConfigError(f"{problem}, and choosing a detector needs one")
            self.transactions.take(rows).require_labels("choosing a detector", part)
        effort.announce("features")
        self.features = clone(self.features).fit(self.transactions.take(self.split.fit))
        if not self.features.plan.engineered and set(kinds) <= set(CHAIN_KINDS):
            problem = f"the kinds {', '.join(kinds)} need a history"
            raise ConfigError(f"{problem}; use the features 'engineered'")
        search = ChainSearch(self.transactions, self.split, self.features, effort)
        chain, model = search.run(_CHAIN_SHARE)
        if set(kinds) == {"regimes"}:
            kind_trials = [KindTrial("regimes", SELECTED, search.best.average_precision, 0.0, 0.0)]
        else:
            kind_trials = self._choose_kind(search, chain, model, kinds)
        chosen = _pick_simplest(kind_trials)
        effort.announce(f"fitting the chosen detector, {chosen.kind}")
        settings: dict[str, Any] = {"kind": chosen.kind}
        if chosen.kind in TREE_KINDS:
            settings["trees"] = BoostedTrees(params=self.params[chosen.kind, chosen.chain])
        if chosen.chain == SELECTED:
            anchoring = chain.anchoring or Anchoring()
            settings |= {"supervision": "anchored", "n_fraud_states": anchoring.n_fraud_states}
            settings["evidence"] = "weighted"
            start = clone(chain.model).set_params(init=model.params_)
        else:
            start = _make_wide_model(effort.seed)
        detector = Detector(self.features, start, **settings)
        detector.fit(self.transactions, self.split, self.causes)
        seconds = time.monotonic() - effort.started
        trials = tuple(search.trials), tuple(kind_trials)
        return Champion(detector, chosen, *trials, self.params.get(("ranker", SELECTED)), seconds)

    def _choose_kind(
        self, search: ChainSearch, chain: ChainFit, model: Any, kinds: tuple[str, ...]
    ) -> list[KindTrial]:
        """Figures of every kind on the same rows, the simplest first."""
        data, effort = self.transactions, self.effort
        split = _reduce(self.split, data, _COMPARED_ROWS, effort.seed)
        parts = self.features, model, chain
        own = build_training_rows(parts, data, split, has_path=False)
        held_out = own.take(own.is_validation)
        columns: dict[tuple[str, str], ScoredLabels] = {}
        if "regimes" in kinds:
            effort.announce("regimes: scoring the selection part")
            scores = score_held_out(chain, model, search.select_known())[0]
            columns["regimes", SELECTED] = _as_scored(scores, held_out)
        causes = None
        if set(kinds) & set(CHAIN_KINDS) and self.features.plan.engineered:
            effort.announce("chains: learning the causes of fraud")
            with_trees = "chains+trees" in kinds
            causes = learn_causes(self.features, data, self.split, effort.seed, with_trees)
            columns["chains", SELECTED] = _as_scored(expit(causes.held_out), held_out)
            self.causes = causes
        if not set(kinds) & set(TREE_KINDS):
            return _compare_kinds(_keep(columns, kinds), effort.seed)
        params = tuning.SearchSpace.of(own).list_first()[0]
        if effort.max_trials > 1:
            effort.announce("searching the settings of trees")
            trees = BoostedTrees(n_trials=effort.max_trials, search_rows=_SEARCH_ROWS)
            deadline = effort.find_deadline(_SEARCH_SHARE)
            params = trees.search(own, effort.seed, deadline).params

        def attempt(kind: str, seen: str, training: TrainingRows) -> None:
            effort.announce(f"{kind}, chain on {seen}")
            options = training, effort.seed, available_threads()
            n_rounds, scores = tuning.validate_params(params, *options)
            self.params[kind, seen] = {**params, "n_estimators": n_rounds}
            columns[kind, seen] = _as_scored(_add_episodes(scores, held_out), held_out)

        attempt("ranker", SELECTED, own)
        if causes is not None and causes.corrected is not None:
            attempt("chains+trees", SELECTED, self._take_compared(causes.corrected, split))

        def tries_hybrid() -> bool:  # the only kind that is asked for is tried however late it is
            is_due = set(kinds) == {"hybrid"} and ("hybrid", SELECTED) not in columns
            is_early = time.monotonic() < effort.find_deadline(_KINDS_SHARE)
            return "hybrid" in kinds and (is_due or is_early)

        if tries_hybrid() and self._can_cross_fit(split):
            attempt("hybrid", SELECTED, build_training_rows(parts, data, split, has_path=True))
        if tries_hybrid():
            wide = ChainFit(_make_wide_model(effort.seed))
            fit_panel = build_fit_panel(self.features, data, split)
            fitted = wide.fit(sample_panel(fit_panel, CHAIN_ROWS, effort.seed), None)
            parts = self.features, fitted, wide
            attempt("hybrid", ALL, build_training_rows(parts, data, split, has_path=True))
        return _compare_kinds(_keep(columns, kinds), effort.seed)

    def _take_compared(self, rows: TrainingRows, split: Split) -> TrainingRows:
        """Those of the whole split's rows that are in the split for comparing kinds."""
        every, some = (np.union1d(one.fit, one.selection) for one in (self.split, split))
        known = every[np.asarray(self.transactions.labels)[every] >= 0]
        return rows.take(np.isin(known, some))

    def _can_cross_fit(self, split: Split) -> bool:
        """Whether half of the customers still show fraud and genuine transactions."""
        data, rows = self.transactions, split.fit
        labels, customers = np.asarray(data.labels)[rows], data.customer_codes[rows]
        return all(len(np.unique(customers[labels == label])) > 1 for label in (0, 1))


def _add_episodes(scores: Array, rows: TrainingRows) -> Array:
    """Probabilities given the customer's earlier ones too, where that predicts better."""
    log_odds = logit(np.clip(scores.astype(np.float64), 1e-9, 1.0 - 1e-9))
    starts = np.flatnonzero(np.diff(rows.customers, prepend=-1) != 0)
    offsets = np.append(starts, len(log_odds))
    found = filter_held_out(ScoredRows(log_odds, rows.days * DAY, rows.labels, offsets))
    return np.asarray(expit(found))


def _keep(columns: _Columns, kinds: tuple[str, ...]) -> _Columns:
    """The columns of these kinds, the simplest first."""
    wanted = sorted(columns, key=lambda key: DETECTOR_KINDS.index(key[0]))
    return {key: columns[key] for key in wanted if key[0] in kinds}


def _compare_kinds(columns: _Columns, seed: int) -> list[KindTrial]:
    """Average precision and log loss of each kind, and how far it is from the best.

    Log losses are of scores calibrated on other customers, so that they compare what kinds know.
    """
    names = {key: " ".join(key) for key in columns}
    calibrated = {key: _calibrate_by_halves(one) for key, one in columns.items()}

    def resample(scored: _Columns) -> Resamples:
        rows = {names[key]: [one] for key, one in scored.items()}
        return bootstrap(rows, "customer", n_resamples=_N_RESAMPLES, seed=seed)

    ranked, priced = resample(columns), resample(calibrated)
    values = {
        key: float(average_precision_score(one.labels, one.scores)) for key, one in columns.items()
    }
    losses = {key: float(log_loss(one.labels, one.scores)) for key, one in calibrated.items()}
    best, cheapest = max(values, key=values.__getitem__), min(losses, key=losses.__getitem__)
    trials = []
    for key, value in values.items():
        gaps = ranked.values_of(names[best], _AP) - ranked.values_of(names[key], _AP)
        costs = priced.values_of(names[key], _LOSS) - priced.values_of(names[cheapest], _LOSS)
        errors = float(np.nanstd(gaps)), float(np.nanstd(costs))
        excess = losses[key] - losses[cheapest]
        trials.append(KindTrial(*key, value, values[best] - value, errors[0], excess, errors[1]))
    return trials


def _calibrate_by_halves(scored: ScoredLabels) -> ScoredLabels:
    """Platt scaling of each half of the customers, fitted to the other half."""
    columns = logit(np.clip(scored.scores, 1e-9, 1.0 - 1e-9))[:, None]
    halves = np.unique(scored.customers, return_inverse=True)[1] % 2
    found = np.full(len(columns), np.mean(scored.labels))
    for half in (0, 1):
        own = halves == half
        if own.any() and has_both_labels(scored.labels[~own]):
            model = LogisticRegression().fit(columns[~own], scored.labels[~own])
            found[own] = model.predict_proba(columns[own])[:, 1]
    return replace(scored, scores=found)


def _pick_simplest(trials: list[KindTrial]) -> KindTrial:
    """The first trial, the simplest, within one standard error of the best in both figures.

    If no kind is, because one orders best and another calibrates best: the one that orders best.
    """
    close = [
        one
        for one in trials
        if one.shortfall <= one.standard_error and one.excess_loss <= one.loss_error
    ]
    return close[0] if close else min(trials, key=lambda one: one.shortfall)


def _make_wide_model(seed: int) -> VariationalHMM:
    """A chain on all features that sees no label; trees get the customer's path through it."""
    options: dict[str, Any] = {"random_state": seed, "progress": False, "n_restarts": 1}
    return VariationalHMM(_WIDE_STATES, max_iter=MAX_ITERATIONS, **options)


def _as_scored(scores: Array, rows: TrainingRows) -> ScoredLabels:
    days = np.floor(rows.days).astype(np.int64)
    return ScoredLabels(np.asarray(scores, np.float64), rows.labels, rows.customers, days)


def _reduce(split: Split, transactions: Transactions, n_rows: int, seed: int) -> Split:
    """The split with about `n_rows` rows to fit on; the others remain as history."""
    labels = np.asarray(transactions.labels)[split.fit] == 1
    customers = transactions.customer_codes[split.fit]
    kept = split.fit[sample_customers(labels, customers, n_rows, seed)]
    rest = np.setdiff1d(split.fit, kept)
    return replace(split, fit=kept, excluded=np.union1d(split.excluded, rest))
