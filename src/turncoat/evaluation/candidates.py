"""The candidates of a study: each is fitted on a fold and scores calibration and test rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.special import logit
from sklearn.base import clone

from turncoat.arrays import Array
from turncoat.evaluation import baselines
from turncoat.evaluation.calibrators import Isotonic, Platt, VennAbers
from turncoat.evaluation.champion import Champion, choose_champion
from turncoat.evaluation.protocols import CALIBRATION, TEST, TRAIN, Fold
from turncoat.evaluation.results import ChainRow, ChampionChoice, KindRow, load_choice
from turncoat.features import Features
from turncoat.features.split_panels import select_visible
from turncoat.models.boosting import BoostedTrees, FittedTrees
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.panel import select_known
from turncoat.scoring import Detector, load
from turncoat.scoring.path import filter_path_columns
from turncoat.scoring.rankers import RegimeRanker
from turncoat.scoring.scores import MODES
from turncoat.storage import replace_file

Scores = dict[str, Array]  # by part
TuneXGBoost = Callable[..., BoostedTrees]  # called with the folder for its trials

CALIBRATORS: dict[str, type[Platt | Isotonic | VennAbers]]
CALIBRATORS = {"Platt": Platt, "isotonic": Isotonic, "Venn-Abers": VennAbers}
_SCORED = (CALIBRATION, TEST)
_SATURATED = 0.999  # beliefs above this are saturated
_CLIP = 1e-9
_LSTM_THREADS = 1  # its steps are small: more threads gain little, and lose on a busy machine
_XGBOOST_FILE, _TRIALS = "model.json", "trials"
_CHOICE_FILE = "choice.json"
CHAMPION = "champion"  # the key and the column of the champion


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
    is_main: bool = True  # variants for study only are not calibrated afterwards


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """Scores of a fitted candidate by column and part, and figures about the fit."""

    scores: Mapping[str, Scores]
    figures: Mapping[str, float] = field(default_factory=dict)


def load_detector(folder: Path) -> Detector:
    """The fitted detector in a candidate's folder."""
    return load(folder / "detector")


def load_champion_choice(folder: Path) -> ChampionChoice:
    """What was chosen, from the folder of a champion."""
    return load_choice(folder / _CHOICE_FILE)


def measure_saturation(beliefs: Array) -> float:
    """Share of rows whose belief [N, K] in one regime is almost certain."""
    return float((beliefs.max(axis=1) > _SATURATED).mean())


def _load_xgboost(folder: Path) -> FittedTrees:
    return FittedTrees.load(folder / _XGBOOST_FILE)


class Candidate(NamedTuple):
    """One fit of a study, with one or several columns of scores."""

    key: str  # names its folder
    columns: tuple[ScoreColumn, ...]
    needs: tuple[str, ...]  # keys of candidates that must be finished before
    fit: Callable[[Fold, int, Mapping[str, Path], Path], CandidateScores]
    # called with (fold, seed, folders of what it needs, own folder)
    check: Callable[[Path], object] | None = None  # BundleError if its model is damaged


def hmm_candidate(
    key: str, title: str, tier: str, detector: Detector, encoder_of: str | None = None
) -> Candidate:
    """A detector: corrected and raw scores, filtered and smoothed, and in-sample rates.

    In-sample rates show what erratum E8 changes (docs/errata.md). A neural detector trains an
    encoder, whose head is a column too, or takes that of `encoder_of`.
    """
    hmm = (tier, detector.supervision)
    columns = []
    for kind in ("corrected", "raw"):
        for mode in MODES:
            name, main = f"{title}, {kind}, {mode}", (kind, mode) == ("corrected", "filtered")
            about = (kind, kind == "corrected", *hmm, mode)
            columns.append(ScoreColumn(name, "hmm", *about, is_main=main))
    in_sample, head = f"{title}, in-sample rates", f"{title}, encoder's head"
    note = "fraud rates measured on the rows the model was fitted on (E8)"
    about = ("corrected", True, *hmm, "filtered")
    columns.append(ScoreColumn(in_sample, "hmm", *about, note, is_main=False))
    has_head = isinstance(detector.model, NeuralVariationalHMM) and encoder_of is None
    if has_head:
        note = "the encoder's own classifier, which the neural tier discards"
        columns.append(ScoreColumn(head, "baseline", "probability", True, note=note))

    def fit(fold: Fold, seed: int, folders: Mapping[str, Path], folder: Path) -> CandidateScores:
        fitted = clone(detector).set_params(model__random_state=seed)
        if encoder_of is not None:
            fitted.set_params(model__encoder=load_detector(folders[encoder_of]).model_.encoder_)
        fitted.fit(fold.transactions, fold.split).save(folder / "detector")
        scores: dict[str, Scores] = {column.name: {} for column in columns}
        saturation = 0.0
        for part in _SCORED:
            panel, places = fold.panel(part, fitted.features_)
            for mode in MODES:
                scored = fitted.score_panel(panel, mode)
                scores[f"{title}, corrected, {mode}"][part] = scored.probability[places]
                scores[f"{title}, raw, {mode}"][part] = scored.raw[places]
                if mode == "filtered":
                    rates = fitted.calibration_.in_sample.rates
                    scores[in_sample][part] = (scored.belief @ rates)[places]
                    saturation = measure_saturation(scored.belief[places])
            if has_head:
                scores[head][part] = fitted.model_.predict_head_probs(panel)[places]
        return CandidateScores(scores, {"saturation": saturation})

    needs = () if encoder_of is None else (encoder_of,)
    return Candidate(key, tuple(columns), needs, fit, load_detector)


def baseline_candidates(
    max_lstm_epochs: int, search_rows: int, tune_xgboost: TuneXGBoost
) -> dict[str, Candidate]:
    """Models without states on the same rows."""

    def logistic(fold: Fold, _: Path) -> baselines.LogisticBaseline:
        return baselines.LogisticBaseline(fold.features.plan.n_categories, search_rows=search_rows)

    def forest(*_: object) -> baselines.IsolationForestBaseline:
        return baselines.IsolationForestBaseline()

    def xgboost(_: Fold, folder: Path) -> BoostedTrees:
        return tune_xgboost(folder=folder / _TRIALS)

    made = (
        _row_candidate("logistic", "logistic regression", "probability", logistic),
        _row_candidate("isolation-forest", "Isolation Forest", "anomaly", forest),
        _row_candidate("xgboost", "XGBoost", "probability", xgboost),
        _lstm_candidate(max_lstm_epochs),
    )
    return {one.key: one for one in made}


def _row_candidate(key: str, title: str, kind: str, make: Callable[[Fold, Path], Any]) -> Candidate:
    """A baseline that scores rows one by one."""
    column = ScoreColumn(title, "baseline", kind, kind == "probability")

    def fit(fold: Fold, seed: int, _: Mapping[str, Path], folder: Path) -> CandidateScores:
        fitted = make(fold, folder).fit(fold.training_rows(fold.columns[TRAIN]), seed)
        if isinstance(fitted, FittedTrees):
            fitted.save(folder / _XGBOOST_FILE)
        scores = {part: fitted.score(fold.columns[part]) for part in _SCORED}
        return CandidateScores({title: scores})

    return Candidate(key, (column,), (), fit, _load_xgboost if key == "xgboost" else None)


def _lstm_candidate(max_epochs: int) -> Candidate:
    """An LSTM over the same sequences and columns."""
    note = "reads each customer's transactions in order, up to the one it scores"
    column = ScoreColumn("LSTM", "baseline", "probability", True, note=note)

    def fit(fold: Fold, seed: int, _: Mapping[str, Path], __: Path) -> CandidateScores:
        from turncoat.evaluation.lstm import LSTMBaseline

        rows = fold.panel(TRAIN, fold.features)
        fitted = LSTMBaseline(max_epochs=max_epochs).fit(*rows, seed, n_threads=_LSTM_THREADS)
        scores = {}
        for part in _SCORED:
            panel, places = fold.panel(part, fold.features)
            scores[part] = fitted.score(panel)[places]
        return CandidateScores({column.name: scores})

    return Candidate("lstm", (column,), (), fit)


def hybrid_candidate(detector_key: str, title: str, tune_xgboost: TuneXGBoost) -> Candidate:
    """XGBoost, tuned on its own, on the same columns plus a detector's beliefs."""
    note = (
        f"XGBoost with the same columns and the customer's path through the {_name_regimes(title)}"
    )
    column = ScoreColumn("hybrid", "hybrid", "probability", True, note=note)

    def fit(fold: Fold, seed: int, folders: Mapping[str, Path], folder: Path) -> CandidateScores:
        detector = load_detector(folders[detector_key])
        columns = {}
        for part, own in fold.columns.items():
            panel, places = fold.panel(part, detector.features_)
            path = filter_path_columns(detector.model_, panel)
            columns[part] = np.hstack([own, path[places]])
        rows = fold.training_rows(columns[TRAIN])
        fitted = tune_xgboost(folder=folder / _TRIALS).fit(rows, seed)
        fitted.save(folder / _XGBOOST_FILE)
        return CandidateScores({"hybrid": {part: fitted.score(columns[part]) for part in _SCORED}})

    return Candidate("hybrid", (column,), (detector_key,), fit, _load_xgboost)


def _name_regimes(title: str) -> str:
    """The regimes of a detector in words, such as "variational regimes with labels"."""
    tier, _, supervision = title.partition(", ")
    return f"{tier} regimes{' with labels' if supervision else ''}"


def ranker_candidate(detector_key: str, title: str) -> Candidate:
    """XGBoost's score inside the regimes of a detector (docs/scores.md).

    `Detector.add_ranker` would score with the detector's features; XGBoost has more here.
    """
    note = f"XGBoost's score, calibrated inside the {_name_regimes(title)}"
    name = "regime-calibrated XGBoost"
    column = ScoreColumn(name, "ranker", "probability", True, mode="filtered", note=note)

    def fit(fold: Fold, _: int, folders: Mapping[str, Path], __: Path) -> CandidateScores:
        detector = load_detector(folders[detector_key])
        booster = _load_xgboost(folders["xgboost"])
        inputs = {}
        for part in _SCORED:
            panel, places = fold.panel(part, detector.features_)
            scores = np.clip(booster.score(fold.columns[part]), _CLIP, 1 - _CLIP)
            inputs[part] = logit(scores), detector.model_.filter(panel).probs[places]
        labels, rows = fold.labels(CALIBRATION), fold.transactions.take(fold.rows(CALIBRATION))
        known, offsets = select_known(labels, rows.offsets)
        scores, beliefs = (column[known] for column in inputs[CALIBRATION])
        ranker = RegimeRanker.fit(scores, beliefs, labels[known], offsets)
        return CandidateScores({name: {part: ranker.predict(*inputs[part])[0] for part in _SCORED}})

    return Candidate("ranker", (column,), (detector_key, "xgboost"), fit)


def head_ranker_candidate(detector_key: str, title: str) -> Candidate:
    """The head of a neural detector's own encoder inside its regimes."""
    note = f"the encoder's own classifier, calibrated inside the {_name_regimes(title)}"
    name = "regime-calibrated head"
    column = ScoreColumn(name, "ranker", "probability", True, mode="filtered", note=note)

    def fit(fold: Fold, _: int, folders: Mapping[str, Path], folder: Path) -> CandidateScores:
        detector = load_detector(folders[detector_key])
        encoder = detector.model_.encoder_
        ranked = detector.add_ranker(encoder, fold.transactions, fold.split)
        ranked.save(folder / "detector")
        scores = {}
        for part in _SCORED:
            panel, places = fold.panel(part, detector.features_)
            external = encoder.score_head(panel.continuous, panel.categorical)
            scores[part] = ranked.score_panel(panel, ranker_scores=external).probability[places]
        return CandidateScores({name: scores})

    return Candidate("head-ranker", (column,), (detector_key,), fit, load_detector)


def champion_candidate(features: Features, max_trials: int) -> Candidate:
    """The detector that `turncoat fit` would choose, with a fixed number of trials."""
    note = "the detector that `turncoat fit` chooses on the selection part"
    about = ("probability", True, None, None, "filtered")
    column = ScoreColumn(CHAMPION, "champion", *about, note)

    def fit(fold: Fold, seed: int, _: Mapping[str, Path], folder: Path) -> CandidateScores:
        rows = fold.transactions, fold.split
        champion = choose_champion(*rows, features, max_trials=max_trials, seed=seed)
        champion.detector.save(folder / "detector")
        content = {**asdict(_summarise_choice(champion)), "description": champion.describe()}
        choice = msgspec.json.format(msgspec.json.encode(content), indent=1)
        replace_file(folder / _CHOICE_FILE, choice)
        scores = {}
        for part in _SCORED:
            visible, places = select_visible(*rows, part)
            scores[part] = champion.detector.score(visible).probability[places]
        return CandidateScores({CHAMPION: scores})

    def check(folder: Path) -> None:
        load_detector(folder)
        load_champion_choice(folder)

    return Candidate(CHAMPION, (column,), (), fit, check)


def _summarise_choice(champion: Champion) -> ChampionChoice:
    detector, kinds = champion.detector, champion.kind_trials
    is_weighted = detector.evidence == "weighted"
    return ChampionChoice(
        n_states=detector.model_.n_states,
        n_fraud_states=detector.n_fraud_states if detector.anchoring is not None else 0,
        evidence_weights=champion.chain_features if is_weighted else {},
        chains=tuple(ChainRow(*one) for one in champion.chain_trials),
        kinds=tuple(KindRow(*one, is_chosen=one == champion.chosen) for one in kinds),
    )


def calibrate(
    column: ScoreColumn, calibrator: str, fold: Fold, scores: Scores
) -> tuple[ScoreColumn, Array]:
    """Another column's test scores [n], calibrated on the calibration part."""
    known = fold.known(CALIBRATION)
    own = scores[CALIBRATION][known], fold.labels(CALIBRATION)[known]
    fitted = CALIBRATORS[calibrator].fit(*own)
    about = ("calibrated", "probability", True, column.tier, column.supervision, column.mode)
    note = f"{column.name}, calibrated on the calibration part"
    made = ScoreColumn(f"{column.name}, {calibrator}", *about, note)
    return made, fitted.calibrate(scores[TEST])
