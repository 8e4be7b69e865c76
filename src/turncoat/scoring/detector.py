"""The detector: features, model, regimes and calibration as one thing that scores transactions and says why.

Every score, batch or live, ends in `judge`: a belief over regimes becomes a probability with its variance.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeGuard

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.data.splits import Split, drop_short_sequences, split_by_customer
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError, NotFittedError
from turncoat.features import FeatureRow, Features, FeatureState
from turncoat.features.split_panels import build_split_panel, select_visible
from turncoat.models.anchors import Anchors
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel
from turncoat.scoring.explaining import explained
from turncoat.scoring.live import Steps, taken, told
from turncoat.scoring.ranker import RegimeRanker
from turncoat.scoring.rankers import Ranker, as_ranker
from turncoat.scoring.reasons import Reason, reasons
from turncoat.scoring.recalibration import filtered_scores, recalibrated_parts
from turncoat.scoring.reference import Reference
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import KINDS, MODES, Score, Scores, mixed_rates
from turncoat.scoring.state import DetectorState, fingerprint, pack_states, unpack_state
from turncoat.scoring.supervision import Anchoring, known_labels, label_likelihoods
from turncoat.scoring.temperature import choose_temperature
from turncoat.scoring.versions import model_version
from turncoat.scoring.wording import Wording

AUTO = "auto"
SUPERVISIONS = ("none", "anchored")
UNSAVED = -1  # number of a calibration that is not saved yet


@dataclass(frozen=True, eq=False)
class Parts:
    """What fitting a detector makes, beside features and model."""

    regimes: Mapping[
        str, Regimes
    ]  # by mode, measured on calibration customers: what scores are made of
    in_sample: Regimes  # measured on the fit part, to be shown beside them
    temporal_share: float  # how far the beliefs are from those of the same model without transitions; calibration, filtered
    reference: Reference  # what drift is measured from; calibration, filtered
    times: tuple[float, float]  # the first and the last of the calibration part, in seconds
    ranker: Ranker | None = None
    ranked: Mapping[str, RegimeRanker] | None = None  # by mode


class Detector(BaseEstimator):  # type: ignore[misc]
    """Scores transactions with a hidden Markov model.

    Scores are filtered (no row looks ahead) and corrected (a probability of fraud, not regime membership) unless asked otherwise by name.
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
    ) -> None:
        """What to make features and beliefs with, and how far labels and emissions are trusted.

        `supervision="anchored"` keeps labelled fit rows in the states of their side, the last `n_fraud_states` being fraud's, with a
        share of wrong labels `label_noise`. `temperature` divides the emissions' log densities when scoring; `auto` chooses it on
        the selection part.
        """
        self.features = features
        self.model = model
        self.supervision = supervision
        self.n_fraud_states = n_fraud_states
        self.label_noise = label_noise
        self.temperature = temperature

    def fit(self, transactions: Transactions, split: Split | None = None) -> Self:
        """Fit features and model on the split's fit part, and measure the regimes on its calibration part."""
        self.check_settings()
        for name in (
            "parts_",
            "fingerprint_",
            "version_",
            "_wording",
            "_exact_model",
        ):  # of an earlier fit
            self.__dict__.pop(name, None)
        if split is None:
            split = split_by_customer(
                transactions.customer_codes, transactions.times, transactions.labels
            )
        if len(split.calibration) == 0:
            raise ConfigError(
                f"the split {split.name!r} has no calibration part, on which fraud rates are measured. Make one that has"
            )
        part = transactions.take(split.calibration)
        labels = part.require_labels("measuring the regimes' fraud rates")
        self.features_ = (Features() if self.features is None else clone(self.features)).fit(
            transactions.take(split.fit)
        )
        self.model_ = VariationalHMM(4) if self.model is None else clone(self.model)
        panel = self.fit_panel(transactions, split)
        anchoring = self.anchoring
        self.model_.fit(
            panel, None if anchoring is None else anchoring.anchors(panel, self.model_.n_states)
        )
        self.model_.set_params(temperature=self._chosen_temperature(transactions, split, panel))
        held_out, places = build_split_panel(self.features_, transactions, split, "calibration")
        beliefs = {mode: self._probs(held_out, mode) for mode in MODES}
        own = {mode: beliefs[mode][places] for mode in MODES}
        regimes = {
            mode: self._regimes(own[mode], labels, part.offsets, "calibration", mode)
            for mode in MODES
        }
        scores = filtered_scores(regimes["filtered"], None, own["filtered"], None)
        self.parts_ = Parts(
            regimes=regimes,
            in_sample=self._regimes(
                self._probs(panel, "filtered"), panel.labels, panel.offsets, "fit", "filtered"
            ),
            temporal_share=self._temporal_share(held_out, places, beliefs["filtered"]),
            reference=Reference.measure(own["filtered"], held_out.continuous[places], scores),
            times=(float(part.times.min()), float(part.times.max())),
        )
        self.calibration_ = 0
        return self

    @cached_property
    def fingerprint_(self) -> int:
        """Tells states of this detector from those of others."""
        return fingerprint(self)

    @cached_property
    def version_(self) -> str:
        """Tells what beliefs are made with from that of other detectors, whatever the calibration."""
        return model_version(self)

    def check_settings(self) -> None:
        """Refuse settings that cannot be, before long work."""
        if self.supervision not in SUPERVISIONS:
            raise ConfigError(
                f"supervision is {self.supervision!r}; it must be one of {', '.join(SUPERVISIONS)}"
            )
        if self.temperature != AUTO and not (
            _is_number(self.temperature) and 0 < self.temperature < np.inf
        ):
            raise ConfigError(
                f"temperature is {self.temperature!r}; it must be a positive number, or {AUTO!r}"
            )
        Anchoring(self.n_fraud_states, self.label_noise)
        if self.model is not None:
            self.model.check_settings()
        own = 1.0 if self.model is None else self.model.temperature
        if self.temperature != AUTO and own not in (1.0, self.temperature):
            raise ConfigError(
                f"the model's temperature is {own!r} and the detector's {self.temperature!r}. Give it to the detector"
            )

    @property
    def anchoring(self) -> Anchoring | None:
        """How labels hold fit rows to states, if they do."""
        return (
            Anchoring(self.n_fraud_states, self.label_noise)
            if self.supervision == "anchored"
            else None
        )

    def fitted(self) -> Parts:
        """What fitting made."""
        if not hasattr(self, "parts_"):
            raise NotFittedError(
                "this detector is not fitted yet. Call `fit` first, or `turncoat.load` a saved one"
            )
        parts: Parts = self.parts_
        return parts

    @property
    def regimes(self) -> Regimes:
        """The regimes that filtered scores are made of."""
        return self.fitted().regimes["filtered"]

    def describe(self) -> str:
        """The regimes, and what to know about the scores made of them."""
        parts, regimes = self.fitted(), self.regimes
        return "\n".join(
            [
                regimes.describe(),
                f"temperature {self.model_.temperature:g}; temporal share {parts.temporal_share:.1%} (how far beliefs are from those of "
                "single rows; calibration part, filtered)",
                f"genuine traffic in the fraud regime (MRIE) {regimes.misread_share:.2%}, signed gap {regimes.signed_gap:+.2%}; "
                "neither is a calibration error",
            ]
        )

    def _chosen_temperature(self, transactions: Transactions, split: Split, panel: Panel) -> float:
        if self.temperature != AUTO:
            return float(self.temperature)
        if len(split.selection) == 0:
            raise ConfigError(
                f"the split {split.name!r} has no selection part, on which a temperature is chosen. Make one, or name a temperature"
            )
        return choose_temperature(
            self.model_, panel, *build_split_panel(self.features_, transactions, split, "selection")
        )

    def fit_panel(self, transactions: Transactions, split: Split) -> Panel:
        """The rows that the model is fitted to: those of the fit part's customers with enough transactions."""
        known, rows = select_visible(transactions, split, "fit")
        kept = drop_short_sequences(known.customer_codes, rows)
        if len(kept) == 0:
            raise DataError(
                f"the fit part of the split {split.name!r} has no customer with 5 transactions. Choose a larger fit part"
            )
        return self.features_.transform(known, rows=kept)

    def _regimes(
        self, probs: Array, labels: Array | None, offsets: Array, part: str, mode: str
    ) -> Regimes:
        if labels is None:
            raise DataError(f"the {part} part has no labels. Set `label` in the schema")
        stickiness = np.diag(self.model_.params_.transition_matrix)
        return Regimes.measure(
            probs, labels, offsets, stickiness, part=part, mode=mode, in_sample=part == "fit"
        )

    def _probs(self, panel: Panel, mode: str, known: Anchors | None = None) -> Array:
        model = self._exact_model
        return (
            model.filter(panel, known) if mode == "filtered" else model.smooth(panel, known)
        ).probs

    @cached_property
    def _exact_model(self) -> HiddenMarkovModel[Any]:
        """The model in float64 whatever it was fitted in, as the live step has it: a score is the same in batch and live."""
        exact = copy(self.model_)
        exact.precision = "float64"
        return exact

    def _temporal_share(self, panel: Panel, places: Array, beliefs: Array) -> float:
        """Mean total variation between the filtered beliefs and those of rows taken one by one (E9)."""
        alone = self.model_.memoryless(panel, beliefs.mean(axis=0)).probs
        return float(0.5 * np.abs(beliefs - alone)[places].sum(axis=1).mean())

    def score(
        self,
        transactions: Transactions,
        mode: str = "filtered",
        kind: str = "corrected",
        known: ArrayLike | None = None,
    ) -> Scores:
        """Scores of all transactions.

        `known` labels (0, 1, or -1 for unknown), each learnt before the customer's next transaction, condition the beliefs after
        their own; no row's score depends on its own label.
        """
        ranker = self.fitted().ranker
        panel = self.features_.transform(transactions)
        external = None if ranker is None else ranker.of_transactions(transactions, panel)
        return self.score_panel(panel, mode, kind, external, known)

    def score_panel(
        self,
        panel: Panel,
        mode: str = "filtered",
        kind: str = "corrected",
        external: Array | None = None,
        known: ArrayLike | None = None,
    ) -> Scores:
        """Scores of a panel made by this detector's features; `external` is the ranker's score of each row, if there is a ranker."""
        parts = self.fitted()
        for name, value, allowed in (("mode", mode, MODES), ("kind", kind, KINDS)):
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")
        belief = self._beliefs(panel, mode, known)
        probability, variance = self.judge(belief, mode, external)
        lengths = np.diff(panel.offsets)
        return Scores(
            mode=mode,
            kind=kind,
            probability=probability,
            variance=variance,
            raw=belief[:, parts.regimes[mode].fraud_state],
            belief=belief,
            seen=np.arange(panel.n_rows) - np.repeat(panel.offsets[:-1], lengths) + 1,
            ids=np.arange(panel.n_rows) if panel.ids is None else panel.ids,
            customers=np.repeat(
                np.arange(panel.n_sequences) if panel.customers is None else panel.customers,
                lengths,
            ),
            times=np.full(panel.n_rows, np.nan) if panel.times is None else panel.times,
            labels=panel.labels,
        )

    @property
    def _label_likelihoods(self) -> Array:
        return label_likelihoods(self.anchoring, self.regimes)

    def _beliefs(self, panel: Panel, mode: str, known: ArrayLike | None) -> Array:
        """State probabilities [N, K] given the known labels of other rows, never a row's own."""
        if known is None:
            return self._probs(panel, mode)
        anchors, own = known_labels(self._label_likelihoods, known, panel.n_rows)
        without = self._probs(panel, mode, anchors) / own
        beliefs: Array = without / without.sum(axis=1, keepdims=True)
        return beliefs

    def judge(self, belief: Array, mode: str, external: Array | None) -> tuple[Array, Array]:
        """Probability of fraud and its variance, from beliefs [N, K] and, with a ranker, its scores [N]."""
        parts = self.fitted()
        if parts.ranked is not None:
            if external is None:
                raise DataError(
                    "this detector has a ranker, and the ranker's scores are missing. Score transactions, or give `external`"
                )
            scores = np.asarray(external, np.float64)
            if scores.shape != (len(belief),):
                raise DataError(
                    f"the ranker's scores must be one for each of the {len(belief):,} rows; found shape {scores.shape}"
                )
            return parts.ranked[mode].predict(scores, belief)
        regimes = parts.regimes[mode]
        return mixed_rates(belief, regimes.mean_rates, regimes.rate_covariance)

    def score_one(
        self,
        state: DetectorState | None,
        transaction: Mapping[str, Any] | TransactionRow,
        *,
        level: float = 0.9,
        n_reasons: int = 4,
        label_follows: bool = True,
    ) -> tuple[DetectorState, Score]:
        """One transaction, live: what is remembered after it, and its score with the strongest reasons and the rest as one.

        `label_follows` is as in `Features.step`.
        """
        self.fitted()
        held = state or DetectorState()
        unpack_state(self, held)  # a state of another detector is refused before the row is
        given = (
            transaction
            if isinstance(transaction, TransactionRow)
            else parse_row(self.features_.plan.schema, transaction)
        )
        steps = self.steps([held], [given], [label_follows])
        return steps.states[0], self.told(steps, level=level, n_reasons=n_reasons)[0]

    def steps(
        self,
        states: Sequence[DetectorState],
        rows: Sequence[TransactionRow],
        label_follows: Sequence[bool],
        previous: Array | None = None,
    ) -> Steps:
        """Several transactions, live and in order, which is faster than one by one: what is remembered after each, and more for `told`.

        Where some are of one customer, or of one counterparty, `previous` [N, 2] names the transaction before each of them, whose state it
        goes on from; its own there is not looked at. -1 is none.
        """
        return taken(
            self,
            states,
            rows,
            label_follows,
            np.full((len(rows), 2), -1) if previous is None else previous,
        )

    def told(self, steps: Steps, *, level: float = 0.9, n_reasons: int = 4) -> list[Score]:
        """The scores of transactions that were taken in."""
        return told(self, steps, level, n_reasons)

    def reasons(
        self,
        before: Array,
        known: Array,
        continuous: Array,
        categorical: Array,
        most: int | None = None,
    ) -> Sequence[tuple[Reason, ...]]:
        """Why each of N rows was scored as it was, given the beliefs before them [N, K] and where there was one [N].

        The log odds of the fraud regime against its strongest rival, taken apart.
        """
        if self.model_.n_states == 1:
            return [()] * len(before)
        contrasts = self.model_.contrasts(
            self.regimes.fraud_state,
            self.model_.log_predictions(before, known),
            continuous,
            categorical,
        )
        wording = self._wording
        return reasons(
            contrasts,
            wording.sources,
            wording.words,
            map(FeatureRow, continuous, categorical),
            most,
        )

    @cached_property
    def _wording(self) -> Wording:
        return Wording(self.features_.plan)

    def explain(
        self,
        transactions: Transactions,
        customer: str,
        transaction: Any = None,
        last: int | None = None,
    ) -> list[tuple[Any, Score]]:
        """The path of one customer: (id, score with reasons) of each of their transactions, of the last few, or of one. Filtered."""
        return explained(self, transactions, customer, transaction, last)

    def condition(self, state: DetectorState, label: int) -> DetectorState:
        """What is remembered once the label of the customer's latest transaction is known."""
        held = unpack_state(self, state)
        if held.belief is None:
            raise DataError("this customer has no transaction yet whose label could be known")
        if label not in (0, 1):
            raise DataError(f"the label is {label!r}, and must be 0 or 1")
        belief = held.belief * self._label_likelihoods[int(label)]
        return pack_states(
            self,
            (belief / belief.sum())[None],
            [held.seen],
            [FeatureState(held.features, held.counterparty)],
        )[0]

    def report_fraud(self, state: DetectorState, time: float) -> DetectorState:
        """What is remembered once it is known that the counterparty's transaction at `time` (seconds) was fraud."""
        counterparty = self.features_.report_fraud(
            FeatureState(None, state.counterparty), time
        ).counterparty
        return DetectorState(state.customer, counterparty)

    def with_ranker(
        self, ranker: Any, transactions: Transactions, split: Split, shrinkage: float = 10.0
    ) -> Detector:
        """The same detector with a ranker's score inside each regime, fitted on the split's calibration part.

        `ranker` is the name of a column of scores, a fitted XGBoost classifier or booster on the panel's columns, or, of a neural
        model, its own encoder (`detector.model_.encoder_`), whose head is then the ranker.
        """
        parts = self.fitted()
        if len(split.calibration) == 0:
            raise ConfigError(
                f"the split {split.name!r} has no calibration part, on which a ranker is fitted. Make one that has"
            )
        made = as_ranker(ranker, self.features_, self.model_)
        part = transactions.take(split.calibration)
        labels = part.require_labels("fitting a ranker inside the regimes")
        panel, places = build_split_panel(self.features_, transactions, split, "calibration")
        external = made.of_transactions(part, panel, places)
        beliefs = {mode: self._probs(panel, mode)[places] for mode in MODES}
        ranked = {
            mode: RegimeRanker.fit(external, beliefs[mode], labels, part.offsets, shrinkage)
            for mode in MODES
        }
        scores = filtered_scores(self.regimes, ranked["filtered"], beliefs["filtered"], external)
        reference = Reference.measure(
            beliefs["filtered"], panel.continuous[places], scores, external
        )
        return self._with(
            replace(parts, reference=reference, ranker=made, ranked=ranked), calibration=0
        )

    def recalibrated(
        self,
        beliefs: ArrayLike,
        labels: ArrayLike,
        offsets: ArrayLike,
        external: ArrayLike | None = None,
        keep: float = 1.0,
    ) -> Detector:
        """The same detector once further labels are known: what it says of a belief changes, beliefs and states do not.

        `beliefs` [N, K] are the filtered ones that rows were scored with, `labels` [N] 0, 1 or -1 (unknown, left out); customer u is rows
        offsets[u] to offsets[u + 1]; `external` [N] is the ranker's score, if there is a ranker. `keep` weighs what was known before, from
        1 (all of it) to 0 (forgotten). Labels must be those of all transactions of some time or customers, not only of suspicious
        ones. Smoothed scores stay as they are.
        """
        return self._with(
            recalibrated_parts(self.fitted(), beliefs, labels, offsets, external, keep),
            calibration=UNSAVED,
        )

    def _with(self, parts: Parts, calibration: int) -> Detector:
        """The same features and model with other parts."""
        other: Detector = clone(self)
        other.features_, other.model_ = self.features_, self.model_
        other.parts_, other.calibration_ = parts, calibration
        return other

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the whole detector into a folder; `turncoat.load` reads it. What is there is replaced in one instant, or not at all."""
        from turncoat.scoring.bundle import save_detector

        save_detector(self, folder)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
