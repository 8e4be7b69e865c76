"""The detector: features, model and calibration as one estimator that scores transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.data.splits import Split, split_by_customer
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, NotFittedError
from turncoat.features import NEVER, UNKNOWN, Features
from turncoat.features.split_panels import build_fit_panel, build_split_panel, select_fit_rows
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.boosting import BoostedTrees, FittedTrees
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.validation import Rule, check_settings, one_of, positive_number
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel
from turncoat.scoring.bundle import Bundle, digest_model, load_bundle, save_bundle
from turncoat.scoring.calibration import FILTERED, Calibration
from turncoat.scoring.calibration_part import CalibrationPart, check_calibration_part
from turncoat.scoring.chain import AUTO, ChainFit, SelectionRows
from turncoat.scoring.chain_fitting import (
    FittedCauses,
    LearntCauses,
    combine_held_out,
    learn_causes,
)
from turncoat.scoring.explanations import Explainer, Explanation, find_rows
from turncoat.scoring.hybrid import check_trees, fit_trees
from turncoat.scoring.inference import Labels, PanelInference
from turncoat.scoring.known_customers import KnownCustomers
from turncoat.scoring.live import DetectorState, FilterSteps, LiveScorer
from turncoat.scoring.path import BeliefPath, compute_path_columns
from turncoat.scoring.rankers import (
    CorrectedCausesRanker,
    Ranker,
    RankerRows,
    XGBoostRanker,
    make_ranker,
)
from turncoat.scoring.reasons import Reasons, parse_min_probability
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import KINDS, MODES, Score, Scores
from turncoat.scoring.supervision import Anchoring, compute_label_likelihoods
from turncoat.storage import Folder, refuse_unreadable

_DEFAULT_TREES = BoostedTrees(n_trials=1)
_POSITIVE_OR_AUTO = Rule(
    f"a positive number, or {AUTO!r}", lambda v: v == AUTO or positive_number().holds(v)
)
DETECTOR_KINDS = ("regimes", "chains", "ranker", "hybrid", "chains+trees")  # the simplest first
CHAIN_KINDS = ("chains", "chains+trees")
TREE_KINDS = ("ranker", "hybrid", "chains+trees")
DESCRIPTIONS = {
    "regimes": "the regimes' fraud rates alone",
    "chains": "the causes of fraud: intruder, compromised counterparty, the transaction by itself",
    "ranker": "boosted trees on the features",
    "hybrid": "boosted trees on the features and the customer's path",
    "chains+trees": "the causes of fraud, corrected by boosted trees",
}
_RULES = {
    "supervision": one_of("none", "anchored"),
    "temperature": _POSITIVE_OR_AUTO,
    "evidence": one_of("plain", "weighted"),
    "kind": one_of(*DETECTOR_KINDS),
}
_SCORE_RULES = {"mode": one_of(*MODES), "kind": one_of(*KINDS)}
_SETTINGS = ("supervision", "n_fraud_states", "label_noise", "temperature", "evidence", "kind")
_REASONS_ROWS = 1 << 14  # explained at a time
_CACHED = ("calibration_", "digest_", "live", "_inference")


class Detector(BaseEstimator):  # type: ignore[misc]
    """Scores transactions with a hidden Markov model.

    Scores are filtered (no row sees the future) and corrected (a probability of fraud, not regime
    membership) unless `mode` and `kind` ask otherwise. After `fit`: `features_`, `model_`,
    `calibration_` and `known_customers_`. `live` scores transactions as they arrive.

    `supervision="anchored"` holds labelled fit rows to the states of their class: the last
    `n_fraud_states` are fraud's, and a share `label_noise` of the labels may be wrong.
    `temperature` divides the emissions' log densities when scoring; `auto` chooses it on the
    selection part. With `evidence="weighted"` each column has a weight of its own instead, learnt
    there too (needs anchored states). `kind` is how transactions are scored: by the `regimes`
    alone; by two-sided `chains`, the causes of fraud; by a `ranker` (boosted trees on the
    features); as a `hybrid`, whose trees see the customer's path through the regimes too; or by
    `chains+trees`, whose trees correct the chains. All but the first are calibrated inside the
    regimes. `trees` has the settings of trees.
    """

    def __init__(
        self,
        features: Features | None = None,
        model: HiddenMarkovModel[Any] | None = None,
        *,
        supervision: str = "none",
        n_fraud_states: int = 1,
        label_noise: float = 0.0,
        temperature: float | str = 1.0,
        evidence: str = "plain",
        kind: str = "regimes",
        trees: BoostedTrees | None = None,
    ) -> None:
        self.features = features
        self.model = model
        self.supervision = supervision
        self.n_fraud_states = n_fraud_states
        self.label_noise = label_noise
        self.temperature = temperature
        self.evidence = evidence
        self.kind = kind
        self.trees = trees

    def fit(
        self,
        transactions: Transactions,
        split: Split | None = None,
        causes: LearntCauses | None = None,
    ) -> Self:
        """Fit features and model on the fit part, and calibrate on the calibration part.

        `causes` that were learnt from the same split are not learnt again.
        """
        self.check_settings()
        if self.kind in TREE_KINDS:
            check_trees(self.kind, self.model)
        for name in _CACHED:  # left by an earlier fit
            self.__dict__.pop(name, None)
        if split is None:
            columns = (transactions.customer_codes, transactions.times, transactions.labels)
            split = split_by_customer(*columns)
        check_calibration_part(transactions, split, "measuring the regimes' fraud rates")
        self._check_labels(transactions, split)
        features = Features() if self.features is None else clone(self.features)
        self.features_ = features.fit(transactions.take(split.fit))
        self.known_customers_ = KnownCustomers.sample(transactions)
        if self.kind in CHAIN_KINDS:
            with_trees, seed = self.kind in TREE_KINDS, self._chain.model.random_state
            causes = causes or learn_causes(self.features_, transactions, split, seed, with_trees)
            self.features_ = self.features_.add_chains(causes.chains)
        panel, chain = build_fit_panel(self.features_, transactions, split), self._chain
        selection = self._select_unfitted(transactions, split) if chain.needs_selection else None
        self.model_ = chain.fit(panel, selection)
        inference = PanelInference(self.model_)
        part = CalibrationPart.read(self.features_, transactions, split, inference)
        stickiness = np.diag(self.model_.average_transitions(part.panel))
        known = (np.asarray(panel.labels), panel.offsets, stickiness, "fit")
        by_likelihood = self.evidence == "weighted"
        in_sample = Regimes.measure(inference.infer(panel), *known, FILTERED, by_likelihood)
        share = inference.measure_temporal_share(part.panel, part.places, part.beliefs[FILTERED])
        self.calibration_ = Calibration.measure(part.rows, in_sample, share)
        if self.kind != "regimes":
            ranker = self._fit_ranker(transactions, split, causes)
            is_tree = self.kind in TREE_KINDS  # chains know episodes already
            self.calibration_ = self._calibrate_ranker(ranker, part, seeks_episodes=is_tree)
        return self

    def _fit_ranker(
        self, transactions: Transactions, split: Split, causes: LearntCauses | None
    ) -> Ranker:
        """The ranker of the detector's kind, before it is calibrated."""
        trees, seed = self.trees or _DEFAULT_TREES, self.model_.random_state
        if self.kind not in CHAIN_KINDS or causes is None:
            fitted = self.features_, self.model_, self._chain
            booster = fit_trees(trees, fitted, transactions, split, self.kind == "hybrid")
            return make_ranker(booster, self.features_, self.model_)
        if self.kind == "chains" or causes.corrected is None:
            return make_ranker(causes.score, self.features_, self.model_)
        return CorrectedCausesRanker(trees.fit(causes.corrected, seed).booster, causes.score)

    def refit(self, transactions: Transactions, split: Split) -> Detector:
        """A new detector with the same choices, fitted to other rows. Works on a loaded one too.

        The chain starts from the parameters of this one. Trees keep their settings and number.
        """
        self._check_fitted()
        ranker = self.calibration_.ranker
        if self.kind == "regimes" and ranker is not None:
            problem = "a ranker that was added to a fitted detector cannot be fitted again"
            raise ConfigError(f"{problem}. Fit a detector, and add the ranker to it")
        features = clone(self.features_).fit(transactions.take(split.fit))
        model = clone(self.model_).set_params(**self._carry_over(features))
        other: Detector = clone(self).set_params(features=clone(features), model=model)
        if isinstance(ranker, XGBoostRanker):
            other.set_params(trees=BoostedTrees(params=FittedTrees(ranker.source).trial.params))
        return other.fit(transactions, split)

    def check_settings(self) -> None:
        """Raise ConfigError for invalid settings, before any long work."""
        check_settings(self, self._settings, _RULES)
        Anchoring(self.n_fraud_states, self.label_noise)
        if self.model is not None:
            self.model.check_settings()
        own = 1.0 if self.model is None else self.model.temperature
        if self.temperature != AUTO and own not in (1.0, self.temperature):
            both = f"the model's temperature is {own!r} and the detector's {self.temperature!r}"
            raise ConfigError(f"{both}. Give it to the detector")
        self._chain.check()

    def score(
        self,
        transactions: Transactions,
        mode: str = FILTERED,
        kind: str = "corrected",
        known_labels: ArrayLike | None = None,
        reasons: str = "none",
        rows: ArrayLike | None = None,
    ) -> Scores:
        """Scores of all transactions, or only of `rows` with the others as their history.

        `known_labels` (0, 1, or -1 for unknown), each learnt before the customer's next
        transaction, condition later beliefs; no row's score depends on its own label. `reasons`
        adds the strongest reasons of `all` transactions, or of those with at least a probability
        P (`above:P`).
        """
        self._check_fitted()
        min_probability = parse_min_probability(reasons)
        if reasons != "none" and mode != FILTERED:
            problem = f"reasons are those of filtered scores; mode is {mode!r}"
            raise ConfigError(f"{problem}. Use mode {FILTERED!r}, or no reasons")
        chosen = np.arange(transactions.n_rows) if rows is None else transactions.row_indices(rows)
        own = _select_customers(transactions, chosen)
        data, places = transactions.take(own), np.searchsorted(own, chosen)
        if known_labels is not None and len(own) < transactions.n_rows:
            known_labels = np.asarray(known_labels)[own]
        panel = self.features_.transform(transactions, rows=own)
        ranker_scores = self._rank(data, panel, known_labels)
        scores = self.score_panel(panel, mode, kind, ranker_scores, known_labels).take(places)
        if reasons == "none":
            return scores
        path = self._inference.filter_path(panel, known_labels)
        found: list[Reasons] = [()] * len(scores.ids)
        shown = np.flatnonzero(scores.probability >= min_probability)
        for start in range(0, len(shown), _REASONS_ROWS):
            some = shown[start : start + _REASONS_ROWS]
            steps = _select_steps(data, panel, path, places[some], ranker_scores)
            for row, score in zip(some, self.live.score_steps(steps), strict=True):
                found[row] = score.reasons
        return replace(scores, reasons=found)

    def score_panel(
        self,
        panel: Panel,
        mode: str = FILTERED,
        kind: str = "corrected",
        ranker_scores: Array | None = None,
        known_labels: ArrayLike | None = None,
    ) -> Scores:
        """Scores of a panel made by `features_`; `ranker_scores` [N] are needed with a ranker."""
        self._check_fitted()
        check_settings(self, {"mode": mode, "kind": kind}, _SCORE_RULES)
        belief = self._inference.infer_given_labels(panel, mode, known_labels)
        probability, variance = self.calibration_.predict(belief, mode, ranker_scores)
        raw = belief[:, self.calibration_.regimes[mode].fraud_state]
        lengths, places = np.diff(panel.offsets), np.arange(panel.n_rows)
        n_seen = places - np.repeat(panel.offsets[:-1], lengths) + 1
        ids = places if panel.ids is None else panel.ids
        keys = np.arange(panel.n_sequences) if panel.customers is None else panel.customers
        times = np.full(panel.n_rows, np.nan) if panel.times is None else panel.times
        owners = (ids, np.repeat(keys, lengths), times, panel.labels)
        return Scores(mode, kind, probability, variance, raw, belief, n_seen, *owners)

    def score_one(
        self,
        state: DetectorState | None,
        transaction: Mapping[str, Any] | TransactionRow,
        *,
        level: float = 0.9,
        n_reasons: int = 4,
        opens_path: bool = False,
        label_follows: bool = True,
    ) -> tuple[DetectorState, Score]:
        """Score one transaction as it arrives: the new state to store, and the score.

        Reasons beyond the `n_reasons` strongest become one; `opens_path` as in `explain`;
        `label_follows` as in `Features.step`.
        """
        live, before = self.live, state or DetectorState()
        live.unpack(before)  # refuses another detector's state before it reads the row
        row = transaction
        if not isinstance(row, TransactionRow):
            row = parse_row(self.features_.plan.schema, row)
        steps = live.advance([before], [row], [UNKNOWN if label_follows else NEVER])
        options: dict[str, Any] = {"n_reasons": n_reasons, "opens_path": opens_path}
        return steps.states[0], live.score_steps(steps, level=level, **options)[0]

    def explain(
        self,
        transactions: Transactions,
        customer: str,
        transaction: Any = None,
        last: int | None = None,
        opens_path: bool = False,
    ) -> list[tuple[Any, Score]]:
        """(id, filtered score with all reasons) of a customer's `last` transactions, or of one.

        Trees give the path one reason. `opens_path` adds the regimes' own: `Score.path_reasons`.
        """
        wanted = None if transaction is None else str(transaction)
        rows = find_rows(transactions, str(customer), wanted)
        rows = rows if last is None else rows[max(len(rows) - last, 0) :]
        explained = self.explain_rows(transactions, rows, opens_path)
        return [(id, one.score) for id, one in zip(transactions.ids[rows], explained, strict=True)]

    def explain_rows(
        self,
        transactions: Transactions,
        rows: ArrayLike,
        opens_path: bool = False,
        n_reasons: int | None = None,
    ) -> list[Explanation]:
        """Some transactions, by rising row number, with filtered scores and their reasons.

        Reasons beyond the `n_reasons` strongest become one.
        """
        self._check_fitted()
        chosen = transactions.row_indices(rows)
        own = _select_customers(transactions, chosen)
        data, places = transactions.take(own), np.searchsorted(own, chosen)
        panel = self.features_.transform(transactions, rows=own)
        ranker_scores = self._rank(data, panel)
        path = self._inference.filter_path(panel)
        steps = _select_steps(data, panel, path, places, ranker_scores)
        scores = self.live.score_steps(steps, n_reasons=n_reasons, opens_path=opens_path)
        part = transactions.take(chosen)
        keys = np.repeat(part.keys, np.diff(part.offsets)).tolist()
        labels: list[int | None] = [None] * len(chosen)
        if part.labels is not None:
            labels = [None if label < 0 else label for label in part.labels.tolist()]
        explain = Explainer(self.live.values, self.live.clock).explain
        return list(map(explain, map(str, part.ids), keys, labels, steps.rows, scores))

    def add_ranker(
        self, ranker: Any, transactions: Transactions, split: Split, shrinkage: float = 10.0
    ) -> Detector:
        """A new detector with a ranker's score inside each regime, fitted on the calibration part.

        `ranker` is the name of a column of scores, a fitted XGBoost classifier or booster on the
        panel's columns, or a neural model's own encoder (`detector.model_.encoder_`), for its head.
        """
        self._check_fitted()
        made = make_ranker(ranker, self.features_, self.model_)
        check_calibration_part(transactions, split, "fitting a ranker in the regimes")
        part = CalibrationPart.read(self.features_, transactions, split, self._inference)
        return self._replace_calibration(self._calibrate_ranker(made, part, shrinkage))

    def replace_causes(
        self, causes: FittedCauses, transactions: Transactions, split: Split
    ) -> Detector:
        """A new detector of kind `chains` with other causes inside the same regimes.

        They are combined on the selection part and calibrated on the calibration part.
        """
        other = self._replace_calibration(self.calibration_)
        other.set_params(kind="chains")
        other.features_ = self.features_.add_chains(causes.chains)
        score, _ = combine_held_out(other.features_, causes.scorecard, transactions, split)
        ranker = make_ranker(score, other.features_, other.model_)
        part = CalibrationPart.read(other.features_, transactions, split, other._inference)
        other.calibration_ = other._calibrate_ranker(ranker, part)
        return other

    def recalibrate(
        self,
        beliefs: ArrayLike,
        labels: ArrayLike,
        offsets: ArrayLike,
        ranker_scores: ArrayLike | None = None,
        keep: float = 1.0,
    ) -> Detector:
        """A new detector whose fraud rates include further labels; beliefs and states stay valid.

        `beliefs` [N, K] are the filtered ones at scoring, `labels` [N] 0, 1 or -1 (unknown, left
        out); customer u has rows offsets[u] to offsets[u + 1]; `ranker_scores` [N] are needed with
        a ranker. `keep` weighs what was known before, from 1 (all) to 0 (forget it). The labels
        must cover all transactions of some period or customers, not only suspicious ones. Smoothed
        scores do not change.
        """
        self._check_fitted()
        updated = self.calibration_.update(beliefs, labels, offsets, ranker_scores, keep)
        return self._replace_calibration(updated)

    def save(self, folder: Folder) -> None:
        """Write the detector into a folder, atomically; `turncoat.load` reads it."""
        save_bundle(folder, Bundle(self._settings, *self._parts, self.known_customers_))

    def describe(self) -> str:
        """The regimes as a table, with what to know about the scores."""
        regimes, share = self.regimes, self.calibration_.temporal_share
        return (
            f"{regimes.describe()}\n"
            f"temperature {self.model_.temperature:g}; temporal share {share:.1%} (how far "
            "beliefs are from those of single rows; calibration part, filtered)\n"
            f"genuine traffic in the fraud regime (MRIE) {regimes.misread_share:.2%}, signed "
            f"gap {regimes.signed_gap:+.2%}; neither is a calibration error"
        )

    @property
    def regimes(self) -> Regimes:
        """The regimes of filtered scores."""
        self._check_fitted()
        return self.calibration_.regimes[FILTERED]

    @property
    def anchoring(self) -> Anchoring | None:
        """How labels hold fit rows to states; None without supervision."""
        is_anchored = self.supervision == "anchored"
        return Anchoring(self.n_fraud_states, self.label_noise) if is_anchored else None

    @cached_property
    def digest_(self) -> str:
        """The identity of features, model and label settings, whatever the calibration."""
        self._check_fitted()
        parts = self.features_, self.model_, self._settings
        return digest_model(*parts, self.calibration_.episodes)

    @cached_property
    def live(self) -> LiveScorer:
        """Scores transactions as they arrive."""
        return LiveScorer(*self._parts, self._label_likelihoods, self.digest_)

    @property
    def _parts(self) -> tuple[Features, HiddenMarkovModel[Any], Calibration]:
        self._check_fitted()
        return self.features_, self.model_, self.calibration_

    @property
    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _SETTINGS}

    @property
    def _label_likelihoods(self) -> Array:
        return compute_label_likelihoods(self.anchoring, self.regimes)

    @cached_property
    def _inference(self) -> PanelInference:
        return PanelInference(self.model_, self._label_likelihoods)

    def _check_fitted(self) -> None:
        if not hasattr(self, "calibration_"):
            remedy = "Call `fit` first, or `turncoat.load` a saved one"
            raise NotFittedError(f"this detector is not fitted yet. {remedy}")

    def _carry_over(self, features: Features) -> dict[str, Any]:
        """Weights by feature, and parameters to start from if all columns are the same."""
        old, new = self.features_.plan, features.plan
        settings: dict[str, Any] = {"init": None}
        if self.model_.weights is not None:
            weights = dict(zip(old.continuous + old.categorical, self.model_.weights, strict=True))
            names = new.continuous + new.categorical
            settings["weights"] = [weights.get(name, 0.0) for name in names]
        columns = ("continuous", "categorical", "n_categories", "vocabularies")
        is_same = all(getattr(old, name) == getattr(new, name) for name in columns)
        if is_same and not isinstance(self.model_, NeuralVariationalHMM):
            settings["init"] = self.model_.params_
        return settings

    @property
    def _chain(self) -> ChainFit:
        model = VariationalHMM(4) if self.model is None else self.model
        is_weighted = self.evidence == "weighted"
        return ChainFit(model, self.anchoring, self.temperature, is_weighted)

    def _check_labels(self, transactions: Transactions, split: Split) -> None:
        """Refuse parts with too few known labels before any long work."""
        fit = select_fit_rows(transactions.customer_codes, split.fit)
        needs_both = self.anchoring is not None or self.kind != "regimes"
        transactions.take(fit).require_labels("this fit", "fit", needs_both)
        trees = (self.trees or _DEFAULT_TREES) if self.kind in TREE_KINDS else None
        searches = trees is not None and trees.n_trials > 0 and trees.params is None
        if len(split.selection) and (searches or self._chain.needs_selection):
            part = transactions.take(split.selection)
            part.require_labels("choosing temperature, weights or trees", "selection")

    def _select_unfitted(self, transactions: Transactions, split: Split) -> SelectionRows:
        if len(split.selection) == 0:
            missing = "selection part to choose a temperature or evidence weights on. Make one"
            raise ConfigError(f"the split {split.name!r} has no {missing}, or choose neither")
        return SelectionRows(*build_split_panel(self.features_, transactions, split, "selection"))

    def _calibrate_ranker(
        self,
        ranker: Ranker,
        part: CalibrationPart,
        shrinkage: float | None = None,
        seeks_episodes: bool = False,
    ) -> Calibration:
        """The calibration with a ranker inside the regimes."""
        panel, places = part.panel, part.places
        path = self._compute_path(panel, ranker)
        cells = panel.continuous[places], panel.categorical[places]
        more = (None if each is None else each[places] for each in (path, panel.causes))
        scores = ranker.score(RankerRows(part.transactions, *cells, *more))
        options = {"seeks_episodes": seeks_episodes}
        return self.calibration_.add_ranker(ranker, scores, part.rows, shrinkage, **options)

    def _rank(self, data: Transactions, panel: Panel, labels: Labels = None) -> Array | None:
        """The ranker's scores [N]; None without a ranker."""
        ranker = self.calibration_.ranker
        if ranker is None:
            return None
        path = self._compute_path(panel, ranker, labels)
        cells = panel.continuous, panel.categorical
        scores = ranker.score(RankerRows(data, *cells, path, panel.causes))
        episodes = self.calibration_.episodes
        if episodes is None:
            return scores
        known = None if labels is None else np.asarray(labels)
        return episodes.filter(scores, data.times, panel.offsets, known)

    def _compute_path(self, panel: Panel, ranker: Ranker, labels: Labels = None) -> Array | None:
        """The columns of the path [N, P]; None if the ranker does not score with them."""
        if not ranker.needs_path:
            return None
        path = self._inference.filter_path(panel, labels)
        return compute_path_columns(self.model_, path, panel.continuous, panel.categorical)

    def _replace_calibration(self, calibration: Calibration) -> Detector:
        other: Detector = clone(self)
        other.features_, other.model_ = self.features_, self.model_
        other.calibration_, other.known_customers_ = calibration, self.known_customers_
        return other


def load(folder: Folder, calibration: int | None = None) -> Detector:
    """Read a saved detector with its current calibration, or with a numbered one (0: as fitted)."""
    bundle = load_bundle(folder, calibration)
    with refuse_unreadable(folder, "a detector"):
        detector = Detector(bundle.features, bundle.model, **bundle.settings)
        detector.check_settings()
        if detector.anchoring is not None:
            detector.anchoring.allowed_states(bundle.calibration.n_states)
    detector.features_, detector.model_ = bundle.features, bundle.model
    detector.calibration_, detector.known_customers_ = bundle.calibration, bundle.known_customers
    return detector


def _select_customers(data: Transactions, rows: Array) -> Array:
    """All rows of the customers of some rows."""
    is_chosen = np.zeros(len(data.customers), bool)
    is_chosen[data.customer_codes[rows]] = True
    return np.flatnonzero(is_chosen[data.customer_codes])


def _select_steps(
    data: Transactions, panel: Panel, path: BeliefPath, rows: Array, ranker_scores: Array | None
) -> FilterSteps:
    """Rows of a panel of these transactions as live scoring would have advanced by them."""
    cells = panel.continuous[rows], panel.categorical[rows]
    before, has_before, after, gaps_s = path.take(rows)
    beliefs = before, has_before, after
    ranks = None if ranker_scores is None else ranker_scores[rows]
    causes = None if panel.causes is None else panel.causes[rows]
    n_seen, given = data.n_seen[rows].tolist(), data.take(rows).list_rows()
    return FilterSteps([], *cells, *beliefs, n_seen, ranks, causes, given, gaps_s)
