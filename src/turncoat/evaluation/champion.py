"""The champion: the detector that `turncoat fit` chooses without options (docs/champion.md).

Every choice is made on the selection part. The chain's features come in the order of a quick
booster's gain; how many, and the number of states, is decided by average precision, with evidence
weights learnt on some customers and applied to others. The kind of score is the simplest whose
average precision is within one standard error of the best, by customer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.metrics import average_precision_score

from turncoat.arrays import Array
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, require_extra
from turncoat.evaluation.bootstrap import bootstrap
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.features import Features
from turncoat.features.split_panels import build_fit_panel, build_split_panel
from turncoat.models import tuning
from turncoat.models.boosting import BoostedTrees
from turncoat.models.tuning import DEFAULT_PARAMS, TrainingRows, XGBoostParams, sample_customers
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.engine import available_threads
from turncoat.panel import Panel
from turncoat.scoring import Anchoring, Detector
from turncoat.scoring.chain import ChainFit, SelectionRows
from turncoat.scoring.detector import DETECTOR_KINDS
from turncoat.scoring.hybrid import build_training_rows
from turncoat.scoring.rankers import build_ranker_matrix
from turncoat.scoring.supervision import compute_anchor_likelihoods

Announce = Callable[[str], None]

BUDGET_S = 300.0
N_FEATURES = (8, 4, 16, 32)  # of the chain; the first is tried with every number of states
N_STATES = ((12, 6), (20, 10), (6, 3))  # all, and those of fraud
N_SEEDS = 3
# Shares of the budget by when chains, the search of trees and further kinds start nothing new.
_CHAIN_SHARE, _SEARCH_SHARE, _KINDS_SHARE = 0.25, 0.55, 0.75
_CHAIN_ROWS = 60_000  # of the fit part, and of the selection part with its history
_COMPARED_ROWS = 250_000
_SEARCH_ROWS = 60_000
_MAX_TRIALS = 20
_N_RESAMPLES = 200
_WIDE_STATES = 4
_MAX_ITERATIONS = 60
_QUICK = {**DEFAULT_PARAMS, "learning_rate": 0.1, "n_estimators": 100, "max_bin": 1024}

SELECTED, ALL = "selected features", "all features"  # what a chain sees


class ChainTrial(NamedTuple):
    """A chain that was tried, and its average precision on the selection part."""

    n_features: int
    n_states: int
    n_fraud_states: int
    seed: int
    average_precision: float


class KindTrial(NamedTuple):
    """A kind of score and its average precision on the selection part."""

    kind: str
    chain: str  # SELECTED or ALL
    average_precision: float
    shortfall: float  # from the best kind
    standard_error: float  # of the shortfall, by customer


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
        lines.append(f"  score: {kind}, {_WHY[kind]}")
        for one in self.kind_trials:
            mark = "*" if one == self.chosen else " "
            gap = f", {one.shortfall:.3f} ± {one.standard_error:.3f} below the best"
            gap = gap if one.shortfall > 0 else ", the best"
            name = one.kind if one.chain == SELECTED else f"{one.kind}, chain on {one.chain}"
            lines.append(f"  {mark} {name}: average precision {one.average_precision:.3f}{gap}")
        lines.append("  The simplest kind within one standard error of the best is taken.")
        return "\n".join(lines)


_WHY = {
    "regimes": "the regimes' fraud rates alone",
    "ranker": "boosted trees on the features, calibrated inside the regimes",
    "hybrid": "boosted trees that see the customer's path too, calibrated inside the regimes",
}


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

    The budget is for choosing: no trial starts late in it, so that the last fit ends near it on a
    file of usual size. With `max_trials` the effort is this many trials for each search, whatever
    the time, so that a seed gives the same detector on any machine.
    """
    _check_options(kinds, budget_s, max_trials)
    choice = _Choice(
        transactions,
        split,
        features or Features(),
        seed=seed,
        started=time.monotonic(),
        budget_s=math.inf if max_trials is not None else budget_s,
        max_trials=_MAX_TRIALS if max_trials is None else max_trials,
        announce=announce or (lambda text: None),
    )
    return choice.run(kinds)


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
    seed: int
    started: float
    budget_s: float
    max_trials: int
    announce: Announce
    chain_trials: list[ChainTrial] = field(default_factory=list)
    # The parameters of trees by kind and chain.
    params: dict[tuple[str, str], XGBoostParams] = field(default_factory=dict)

    def run(self, kinds: tuple[str, ...]) -> Champion:
        for part in ("fit", "selection", "calibration"):
            rows = self.split.parts[part]
            if len(rows) == 0:
                problem = f"the split {self.split.name!r} has no {part} part"
                raise ConfigError(f"{problem}, and choosing a detector needs one")
            self.transactions.take(rows).require_labels("choosing a detector", part)
        self.announce("features")
        self.features = clone(self.features).fit(self.transactions.take(self.split.fit))
        chain, model = self._choose_chain()
        kind_trials = self._choose_kind(chain, model, kinds)
        chosen = _pick_simplest(kind_trials)
        self.announce(f"fitting the chosen detector, {chosen.kind}")
        settings: dict[str, Any] = {"kind": chosen.kind}
        if chosen.kind != "regimes":
            settings["trees"] = BoostedTrees(params=self.params[chosen.kind, chosen.chain])
        if chosen.chain == SELECTED:
            anchoring = chain.anchoring or Anchoring()
            settings |= {"supervision": "anchored", "n_fraud_states": anchoring.n_fraud_states}
            settings["evidence"] = "weighted"
            start = clone(chain.model).set_params(init=model.params_)
        else:
            start = _make_wide_model(self.seed)
        detector = Detector(self.features, start, **settings)
        detector.fit(self.transactions, self.split)
        seconds = time.monotonic() - self.started
        trials = tuple(self.chain_trials), tuple(kind_trials)
        return Champion(detector, chosen, *trials, self.params.get(("ranker", SELECTED)), seconds)

    def _deadline(self, share: float) -> float:
        return self.started + share * self.budget_s

    def _choose_chain(self) -> tuple[ChainFit, Any]:
        """The best chain, and its model fitted to a sample of the fit part."""
        fit_panel = build_fit_panel(self.features, self.transactions, self.split)
        order = self._order_features(fit_panel)
        fit_panel = _sample_panel(fit_panel, _CHAIN_ROWS, self.seed)
        selection = self._sample_selection()
        sizes = [n for n in N_FEATURES if n < len(order)] or [len(order)]
        if len(sizes) < len(N_FEATURES):
            sizes.append(len(order))
        best: tuple[float, ChainFit, Any] | None = None

        def attempt(n_features: int, states: tuple[int, int], seed: int) -> None:
            nonlocal best
            n_tried = len(self.chain_trials)
            late = time.monotonic() > self._deadline(_CHAIN_SHARE)
            if n_tried >= max(self.max_trials, 1) or (n_tried and late):
                return
            is_used = np.zeros(len(order))
            is_used[order[:n_features]] = 1.0
            chain = _make_chain(is_used.tolist(), states, seed)
            self.announce(f"chain {n_tried + 1}: {n_features} features, {states[0]} regimes")
            model = chain.fit(fit_panel, selection)
            value = _score_held_out(chain, model, selection)[1]
            self.chain_trials.append(ChainTrial(n_features, *states, seed, value))
            if best is None or value > best[0]:
                best = value, chain, model

        for states in N_STATES:
            attempt(sizes[0], states, self.seed)
        chosen = self._best_chain
        for n_features in sizes[1:]:
            attempt(n_features, (chosen.n_states, chosen.n_fraud_states), self.seed)
        chosen = self._best_chain
        for more in range(1, N_SEEDS):
            states = chosen.n_states, chosen.n_fraud_states
            attempt(chosen.n_features, states, self.seed + more)
        assert best is not None  # the first attempt is always made
        return best[1], best[2]

    def _order_features(self, panel: Panel) -> Array:
        """All columns of the panel, by the total gain of a quick booster on fit rows."""
        self.announce("ordering features")
        panel = _sample_panel(panel, _SEARCH_ROWS, self.seed)
        labels = np.asarray(panel.labels)
        rows = np.flatnonzero(labels >= 0)
        columns = build_ranker_matrix(panel.continuous[rows], panel.categorical[rows])
        unused = np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows), bool)
        training = TrainingRows(columns, labels[rows], *unused)
        booster = tuning.fit_booster(_QUICK, training, self.seed, available_threads())
        gains = booster.get_score(importance_type="total_gain")
        values = np.array([gains.get(f"f{i}", 0.0) for i in range(columns.shape[1])])
        return np.argsort(-values, kind="stable")

    def _sample_selection(self) -> SelectionRows:
        selection = self._select_known()
        panel, is_place = selection.panel, np.zeros(selection.panel.n_rows, bool)
        is_place[selection.places] = True
        kept = _sample_sequences(panel, is_place & (panel.labels == 1), _CHAIN_ROWS, self.seed)
        others = np.setdiff1d(np.arange(panel.n_sequences), kept)
        return selection.drop_customers(np.asarray(panel.customers)[others])

    def _select_known(self) -> SelectionRows:
        """The selection rows of known label."""
        rows = self.split.selection
        rows = rows[np.asarray(self.transactions.labels)[rows] >= 0]
        parts = self.features, self.transactions, self.split, "selection"
        return SelectionRows(*build_split_panel(*parts, rows))

    def _choose_kind(self, chain: ChainFit, model: Any, kinds: tuple[str, ...]) -> list[KindTrial]:
        """Figures of every kind on the same rows, the simplest first."""
        if set(kinds) == {"regimes"}:
            value = self._best_chain.average_precision
            return [KindTrial("regimes", SELECTED, value, 0.0, 0.0)]
        split = _reduce(self.split, self.transactions, _COMPARED_ROWS, self.seed)
        parts = self.features, model, chain
        has_path = "hybrid" in kinds and self._can_cross_fit(split)
        rows = build_training_rows(parts, self.transactions, split, has_path)
        n_features = len(sum(self.features.feature_names, ()))
        own = rows._replace(columns=np.ascontiguousarray(rows.columns[:, :n_features]))
        held_out = rows.take(rows.is_validation)
        columns: dict[tuple[str, str], ScoredLabels] = {}
        if "regimes" in kinds:
            self.announce("regimes: scoring the selection part")
            scores = _score_held_out(chain, model, self._select_known())[0]
            columns["regimes", SELECTED] = _as_scored(scores, held_out)
        params = tuning.SearchSpace.of(own).list_first()[0]
        if self.max_trials > 1:
            self.announce("searching the settings of trees")
            trees = BoostedTrees(n_trials=self.max_trials, search_rows=_SEARCH_ROWS)
            params = trees.search(own, self.seed, self._deadline(_SEARCH_SHARE)).params

        def attempt(kind: str, seen: str, training: TrainingRows) -> None:
            self.announce(f"{kind}, chain on {seen}")
            options = training, self.seed, available_threads()
            n_rounds, scores = tuning.validate_params(params, *options)
            self.params[kind, seen] = {**params, "n_estimators": n_rounds}
            columns[kind, seen] = _as_scored(scores, held_out)

        attempt("ranker", SELECTED, own)
        if has_path:
            attempt("hybrid", SELECTED, rows)
        if "hybrid" in kinds and time.monotonic() < self._deadline(_KINDS_SHARE):
            wide = ChainFit(_make_wide_model(self.seed))
            fit_panel = build_fit_panel(self.features, self.transactions, split)
            fitted = wide.fit(_sample_panel(fit_panel, _CHAIN_ROWS, self.seed), None)
            parts = self.features, fitted, wide
            attempt("hybrid", ALL, build_training_rows(parts, self.transactions, split, True))
        wanted = {key: scored for key, scored in columns.items() if key[0] in kinds}
        return _compare_kinds(wanted, self.seed)

    def _can_cross_fit(self, split: Split) -> bool:
        """Whether half of the customers still show fraud and genuine transactions."""
        data, rows = self.transactions, split.fit
        labels, customers = np.asarray(data.labels)[rows], data.customer_codes[rows]
        return all(len(np.unique(customers[labels == label])) > 1 for label in (0, 1))

    @property
    def _best_chain(self) -> ChainTrial:
        return max(self.chain_trials, key=lambda one: one.average_precision)


def _make_chain(weights: list[float], states: tuple[int, int], seed: int) -> ChainFit:
    options: dict[str, Any] = {"random_state": seed, "progress": False, "n_restarts": 1}
    options |= {"max_iter": _MAX_ITERATIONS, "emission": "robust", "weights": weights}
    return ChainFit(
        VariationalHMM(states[0], **options), Anchoring(states[1]), weighs_evidence=True
    )


def _score_held_out(chain: ChainFit, model: Any, selection: SelectionRows) -> tuple[Array, float]:
    """P(fraud) of the selection rows, with weights learnt on other customers; average precision."""
    assert chain.anchoring is not None
    likelihoods = compute_anchor_likelihoods(chain.anchoring, model.n_states)
    panel, places = selection.panel, selection.places
    labels = np.asarray(panel.labels)[places]
    scores = model.filter(panel).probs[places] @ likelihoods[1]
    folds = np.arange(panel.n_sequences) % 2
    for fold in (0, 1) if panel.n_sequences > 1 else ():  # one customer has no other
        own = np.asarray(panel.customers)[folds == fold]
        weighted = chain.reweigh(model, selection.drop_customers(own))
        probs = weighted.filter(panel).probs[places] @ likelihoods[1]
        is_own = np.repeat(folds == fold, panel.lengths)[places]
        scores[is_own] = probs[is_own]
    return scores, float(average_precision_score(labels, scores))


def _compare_kinds(columns: dict[tuple[str, str], ScoredLabels], seed: int) -> list[KindTrial]:
    """Average precision of each kind, and how far it is from the best, on the same resamples."""
    metric, names = "average_precision", {key: " ".join(key) for key in columns}
    rows = {names[key]: [scored] for key, scored in columns.items()}
    resamples = bootstrap(rows, "customer", n_resamples=_N_RESAMPLES, seed=seed)
    values = {
        key: float(average_precision_score(one.labels, one.scores)) for key, one in columns.items()
    }
    best = max(values, key=lambda key: values[key])
    trials = []
    for key, value in values.items():
        gaps = resamples.values_of(names[best], metric) - resamples.values_of(names[key], metric)
        trials.append(KindTrial(*key, value, values[best] - value, float(np.nanstd(gaps))))
    return trials


def _pick_simplest(trials: list[KindTrial]) -> KindTrial:
    """The first trial, the simplest, within one standard error of the best."""
    return next(one for one in trials if one.shortfall <= one.standard_error)


def _make_wide_model(seed: int) -> VariationalHMM:
    """A chain on all features that sees no label; trees get the customer's path through it."""
    options: dict[str, Any] = {"random_state": seed, "progress": False, "n_restarts": 1}
    return VariationalHMM(_WIDE_STATES, max_iter=_MAX_ITERATIONS, **options)


def _as_scored(scores: Array, rows: TrainingRows) -> ScoredLabels:
    days = np.floor(rows.days).astype(np.int64)
    return ScoredLabels(np.asarray(scores, np.float64), rows.labels, rows.customers, days)


def _sample_panel(panel: Panel, n_rows: int, seed: int) -> Panel:
    """About `n_rows` of a panel, of whole customers, with fraud in proportion."""
    if panel.n_rows <= n_rows:
        return panel
    return panel[_sample_sequences(panel, np.asarray(panel.labels) == 1, n_rows, seed)]


def _sample_sequences(panel: Panel, is_fraud: Array, n_rows: int, seed: int) -> Array:
    """Customers with about `n_rows`, those with and without fraud in proportion."""
    customers = np.repeat(np.arange(panel.n_sequences), panel.lengths)
    return np.unique(customers[sample_customers(is_fraud, customers, n_rows, seed)])


def _reduce(split: Split, transactions: Transactions, n_rows: int, seed: int) -> Split:
    """The split with about `n_rows` rows to fit on; the others remain as history."""
    labels = np.asarray(transactions.labels)[split.fit] == 1
    customers = transactions.customer_codes[split.fit]
    kept = split.fit[sample_customers(labels, customers, n_rows, seed)]
    rest = np.setdiff1d(split.fit, kept)
    return replace(split, fit=kept, excluded=np.union1d(split.excluded, rest))
