"""The candidates of a study: each is fitted on a fold and leaves its scores of the calibration and the test rows.

What one candidate needs of another (the hybrid needs a detector, the ranker a detector and XGBoost) is kept on disk beside its scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logit
from sklearn.base import clone

from turncoat.arrays import Array
from turncoat.evaluation.baselines import (
    FittedXGBoost,
    IsolationForestBaseline,
    LogisticBaseline,
    XGBoostBaseline,
)
from turncoat.evaluation.calibrators import Calibrator, Isotonic, Platt, VennAbers
from turncoat.evaluation.folds import CALIBRATION, TEST, TRAIN, Fold
from turncoat.evaluation.hybrid import hybrid_columns
from turncoat.evaluation.tuning import Announce
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.scoring import Detector, load
from turncoat.scoring.rankers import RegimeRanker
from turncoat.scoring.scores import MODES

Scores = dict[str, Array]  # by part

CALIBRATORS: dict[str, type[Calibrator]] = {
    "Platt": Platt,
    "isotonic": Isotonic,
    "Venn-Abers": VennAbers,
}
_SURE = 0.999  # a belief above this is saturated
_RAREST = 1e-9
_LSTM_THREADS = 1  # its steps are small: more threads gain little, and lose a lot where other work shares the processors
_MAIN = ("corrected", "filtered")


@dataclass(frozen=True)
class ScoreColumn:
    """What a column of scores is."""

    name: str
    family: str
    kind: str
    is_probability: bool
    tier: str | None = None
    supervision: str | None = None
    mode: str | None = None
    note: str = ""
    is_main: bool = True  # what one would use: such columns are calibrated afterwards too


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """What fitting a candidate gave: columns of scores by name, and figures about the fit."""

    scores: Mapping[str, Scores]
    figures: Mapping[str, float] = field(default_factory=dict)


def _nothing_kept(_: Path) -> None:
    """Nothing but scores is kept."""


@dataclass(frozen=True)
class Candidate:
    """One fit of a study, of which one or several columns of scores come."""

    key: str  # names its folder
    columns: tuple[ScoreColumn, ...]
    needs: tuple[str, ...]  # candidates that must be finished before
    fit: Callable[
        [Fold, int, Mapping[str, Path], Path], CandidateScores
    ]  # (fold, seed, folders of what it needs, own folder)
    check: Callable[[Path], object] = (
        _nothing_kept  # raises BundleError if the model in its folder is damaged
    )


def hmm(
    key: str, title: str, tier: str, detector: Detector, encoder_of: str | None = None
) -> Candidate:
    """A detector: corrected and raw scores, filtered and smoothed, and the corrected score with rates measured in sample (E8).

    A neural one trains an encoder, whose head is judged too, or takes that of the candidate `encoder_of`.
    """
    how = (tier, detector.supervision)
    columns = [
        ScoreColumn(
            f"{title}, {kind}, {mode}",
            "hmm",
            kind,
            kind == "corrected",
            *how,
            mode,
            is_main=(kind, mode) == _MAIN,
        )
        for kind in ("corrected", "raw")
        for mode in MODES
    ]
    note = "fraud shares measured on the rows the model was fitted on (E8)"
    columns.append(
        ScoreColumn(
            f"{title}, in-sample rates",
            "hmm",
            "corrected",
            True,
            *how,
            "filtered",
            note,
            is_main=False,
        )
    )
    head = ScoreColumn(
        f"{title}, encoder's head",
        "baseline",
        "probability",
        True,
        note="the encoder's own classifier, which is then discarded",
    )
    has_head = isinstance(detector.model, NeuralVariationalHMM) and encoder_of is None
    every = (*columns, *([head] if has_head else []))

    def fit(fold: Fold, seed: int, folders: Mapping[str, Path], folder: Path) -> CandidateScores:
        made = clone(detector).set_params(model__random_state=seed)
        if encoder_of is not None:
            made.set_params(model__encoder=load(folders[encoder_of] / "detector").model_.encoder_)
        made.fit(fold.transactions, fold.split).save(folder / "detector")
        scores: dict[str, Scores] = {column.name: {} for column in every}
        sure = 0.0
        for part in (CALIBRATION, TEST):
            panel, places = fold.panel(part, made.features_)
            for mode in MODES:
                found = made.score_panel(panel, mode)
                scores[f"{title}, corrected, {mode}"][part] = found.probability[places]
                scores[f"{title}, raw, {mode}"][part] = found.raw[places]
                if mode == "filtered":
                    scores[f"{title}, in-sample rates"][part] = (
                        found.belief @ made.calibration_.in_sample.rates
                    )[places]
                    sure = float((found.belief[places].max(axis=1) > _SURE).mean())
            if has_head:
                scores[head.name][part] = made.model_.predict_head_probs(panel)[places]
        return CandidateScores(scores, {"saturation": sure})

    needs = () if encoder_of is None else (encoder_of,)
    return Candidate(key, every, needs, fit, lambda folder: load(folder / "detector"))


def baseline(key: str, title: str, kind: str, make: Callable[[Fold, Path], Any]) -> Candidate:
    """A model on the same rows and columns, without states."""
    column = ScoreColumn(title, "baseline", kind, kind == "probability")

    def fit(fold: Fold, seed: int, _: Mapping[str, Path], folder: Path) -> CandidateScores:
        fitted = make(fold, folder).fit(
            fold.columns[TRAIN], fold.labels(TRAIN), fold.customers(TRAIN), seed
        )
        if isinstance(fitted, FittedXGBoost):
            fitted.save(folder / "model.json")
        return CandidateScores(
            {title: {part: fitted.score(fold.columns[part]) for part in (CALIBRATION, TEST)}}
        )

    check = (
        (lambda folder: FittedXGBoost.load(folder / "model.json"))
        if key == "xgboost"
        else _nothing_kept
    )
    return Candidate(key, (column,), (), fit, check)


def logistic(search_rows: int) -> Candidate:
    """LogisticBaseline regression."""

    def make(fold: Fold, _: Path) -> LogisticBaseline:
        return LogisticBaseline(fold.features.plan.n_categories, search_rows=search_rows)

    return baseline("logistic", "logistic regression", "probability", make)


def isolation_forest() -> Candidate:
    """Isolation Forest, which sees no label."""
    return baseline(
        "isolation-forest", "Isolation Forest", "anomaly", lambda *_: IsolationForestBaseline()
    )


def xgboost(n_trials: int, search_rows: int, announce: Announce) -> Candidate:
    """XGBoost with all engineered columns, tuned; `announce` hears of every trial."""

    def make(_: Fold, folder: Path) -> XGBoostBaseline:
        return XGBoostBaseline(
            n_trials, search_rows=search_rows, folder=folder / "trials", announce=announce
        )

    return baseline("xgboost", "XGBoost", "probability", make)


def lstm(epochs: int) -> Candidate:
    """A recurrent classifier over the same sequences and columns."""
    column = ScoreColumn(
        "LSTM",
        "baseline",
        "probability",
        True,
        note="reads each customer's transactions in order, none after the one scored",
    )

    def fit(fold: Fold, seed: int, _: Mapping[str, Path], __: Path) -> CandidateScores:
        from turncoat.evaluation.lstm import LSTMBaseline

        fitted = LSTMBaseline(epochs=epochs).fit(
            *fold.panel(TRAIN, fold.features), seed, n_threads=_LSTM_THREADS
        )
        scores = {}
        for part in (CALIBRATION, TEST):
            panel, places = fold.panel(part, fold.features)
            scores[part] = fitted.score(panel)[places]
        return CandidateScores({column.name: scores})

    return Candidate("lstm", (column,), (), fit)


def hybrid(needs: str, of: str) -> Candidate:
    """XGBoost with the same columns and a detector's beliefs; its settings are those found for XGBoost alone."""
    column = ScoreColumn(
        "hybrid",
        "hybrid",
        "probability",
        True,
        note=f"XGBoost with the same columns and the beliefs of {of}",
    )

    def fit(fold: Fold, seed: int, folders: Mapping[str, Path], _: Path) -> CandidateScores:
        detector = load(folders[needs] / "detector")
        columns = {}
        for part, own in fold.columns.items():
            panel, places = fold.panel(part, detector.features_)
            columns[part] = np.hstack([hybrid_columns(detector, panel)[places], own])
        alone = FittedXGBoost.load(folders["xgboost"] / "model.json")
        fitted = XGBoostBaseline(settings=alone.trial.settings).fit(
            columns[TRAIN], fold.labels(TRAIN), fold.customers(TRAIN), seed
        )
        return CandidateScores(
            {"hybrid": {part: fitted.score(columns[part]) for part in (CALIBRATION, TEST)}}
        )

    return Candidate("hybrid", (column,), (needs, "xgboost"), fit)


def ranker(needs: str, of: str) -> Candidate:
    """XGBoost's score inside the regimes of a detector (method, section 7b).

    Not by `Detector.add_ranker`, which scores with one set of features: XGBoost has columns here that the detector has not.
    """
    note = f"XGBoost inside the regimes of {of}, fitted on the calibration part"
    column = ScoreColumn(
        "regime-calibrated XGBoost", "ranker", "probability", True, mode="filtered", note=note
    )

    def fit(fold: Fold, _: int, folders: Mapping[str, Path], __: Path) -> CandidateScores:
        detector = load(folders[needs] / "detector")
        booster = FittedXGBoost.load(folders["xgboost"] / "model.json")
        margins = {
            part: logit(np.clip(booster.score(fold.columns[part]), _RAREST, 1 - _RAREST))
            for part in (CALIBRATION, TEST)
        }
        beliefs = {}
        for part in (CALIBRATION, TEST):
            panel, places = fold.panel(part, detector.features_)
            beliefs[part] = detector.model_.filter(panel).probs[places]
        offsets = fold.transactions.take(fold.rows(CALIBRATION)).offsets
        ranked = RegimeRanker.fit(
            margins[CALIBRATION], beliefs[CALIBRATION], fold.labels(CALIBRATION), offsets
        )
        return CandidateScores(
            {
                column.name: {
                    part: ranked.predict(margins[part], beliefs[part])[0]
                    for part in (CALIBRATION, TEST)
                }
            }
        )

    return Candidate("ranker", (column,), (needs, "xgboost"), fit)


def head_ranker(needs: str, of: str) -> Candidate:
    """The head of a neural detector's own encoder inside its regimes."""
    note = f"the encoder's head inside the regimes of {of}, fitted on the calibration part"
    column = ScoreColumn(
        "regime-calibrated head", "ranker", "probability", True, mode="filtered", note=note
    )

    def fit(fold: Fold, _: int, folders: Mapping[str, Path], folder: Path) -> CandidateScores:
        detector = load(folders[needs] / "detector")
        ranked = detector.add_ranker(detector.model_.encoder_, fold.transactions, fold.split)
        ranked.save(folder / "detector")
        scores = {}
        for part in (CALIBRATION, TEST):
            panel, places = fold.panel(part, detector.features_)
            external = detector.model_.encoder_.score_head(panel.continuous, panel.categorical)
            scores[part] = ranked.score_panel(panel, ranker_scores=external).probability[places]
        return CandidateScores({column.name: scores})

    return Candidate(
        "head-ranker", (column,), (needs,), fit, lambda folder: load(folder / "detector")
    )


def calibrated(of: ScoreColumn, how: str, fold: Fold, scores: Scores) -> tuple[ScoreColumn, Scores]:
    """Another's scores, calibrated afterwards on the calibration part."""
    made = CALIBRATORS[how].fit(scores[CALIBRATION], fold.labels(CALIBRATION))
    note = f"{of.name}, calibrated on the calibration part"
    column = ScoreColumn(
        f"{of.name}, {how}",
        "calibrated",
        "probability",
        True,
        of.tier,
        of.supervision,
        of.mode,
        note,
    )
    return column, {TEST: made.calibrate(scores[TEST])}
