"""Calibration: how beliefs become probabilities of fraud (docs/scores.md).

A calibration holds the regimes' fraud rates, the optional ranker inside each regime, and the
reference for drift. Updating it changes neither features nor model, so stored beliefs stay valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import log_loss

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel, select_known
from turncoat.scoring.episodes import EpisodeChain, ScoredRows, find_episodes
from turncoat.scoring.rankers import Ranker, RegimeRanker
from turncoat.scoring.reference import Reference
from turncoat.scoring.regimes import Regimes, check_keep
from turncoat.scoring.scores import MODES

FILTERED = "filtered"  # the mode of live scores
UNSAVED = -1  # the number of a calibration that is not saved yet
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_SUM_TOLERANCE = 1e-3  # beliefs may have been stored with few digits


class CalibrationRows(NamedTuple):
    """N transactions of the calibration part; rates use those with a known label."""

    beliefs: Mapping[str, Array]  # [N, K] by mode
    labels: Array  # [N]; -1 is unknown
    offsets: Array  # customer u has rows offsets[u] to offsets[u + 1]
    times: Array  # [N] in seconds
    cells: Array  # [N, D] continuous features
    ages_s: Array  # [N] since the customer's first transaction; 0 without features of history


@dataclass(frozen=True, eq=False)
class Calibration:
    """Regimes, ranker and reference of a fitted model, measured on calibration customers."""

    regimes: Mapping[str, Regimes]  # by mode; scores are computed from these
    in_sample: Regimes  # measured on the fit part, for comparison
    temporal_share: float  # how far beliefs are from those of single rows
    reference: Reference  # what drift is measured against; filtered
    time_range: tuple[float, float]  # first and last calibration transaction, in seconds
    ranker: Ranker | None = None
    regime_rankers: Mapping[str, RegimeRanker] | None = None  # by mode
    episodes: EpisodeChain | None = None  # applied to the ranker's scores before its lines
    number: int = 0  # 0 as fitted, UNSAVED, or the number it was saved under

    @classmethod
    def measure(cls, rows: CalibrationRows, in_sample: Regimes, share: float) -> Calibration:
        """Measure the regimes and the reference; `share` is the temporal share."""
        known = (rows.labels, rows.offsets, in_sample.stickiness, "calibration")
        regimes = {
            mode: Regimes.measure(rows.beliefs[mode], *known, mode, in_sample.by_likelihood)
            for mode in MODES
        }
        beliefs = rows.beliefs[FILTERED]
        scores, _ = regimes[FILTERED].predict(beliefs)
        reference = Reference.measure(beliefs, rows.cells, scores, rows.offsets, rows.ages_s)
        time_range = (float(rows.times.min()), float(rows.times.max()))
        return cls(regimes, in_sample, share, reference, time_range)

    @property
    def n_states(self) -> int:
        """Number of regimes K."""
        return self.in_sample.n_states

    def predict(
        self, beliefs: Array, mode: str = FILTERED, ranker_scores: Array | None = None
    ) -> tuple[Array, Array]:
        """Probability of fraud [N] and its variance [N]; a ranker needs `ranker_scores` [N]."""
        if self.regime_rankers is None:
            return self.regimes[mode].predict(beliefs)
        scores = _check_ranker_scores(ranker_scores, len(beliefs))
        return self.regime_rankers[mode].predict(scores, beliefs)

    def add_ranker(
        self,
        ranker: Ranker,
        ranker_scores: Array,
        rows: CalibrationRows,
        shrinkage: float | None = None,
        *,
        seeks_episodes: bool = False,
    ) -> Calibration:
        """Fit a ranker's scores [N] inside each regime; without a shrinkage, one is chosen.

        `seeks_episodes` puts a chain of episodes between the two where that predicts better.
        """
        episodes = None
        if seeks_episodes:
            scored = ScoredRows(ranker_scores, rows.times, rows.labels, rows.offsets)
            episodes = find_episodes(scored)
        if episodes is not None:
            ranker_scores = episodes.filter(ranker_scores, rows.times, rows.offsets)
        beliefs, (known, offsets) = rows.beliefs, select_known(rows.labels, rows.offsets)
        labelled = (rows.labels[known], offsets)
        fit: Callable[..., RegimeRanker] = RegimeRanker.choose
        if shrinkage is not None:
            fit = partial(RegimeRanker.fit, shrinkage=shrinkage)
        fitted = {
            mode: fit(ranker_scores[known], beliefs[mode][known], *labelled) for mode in MODES
        }
        scores, _ = fitted[FILTERED].predict(ranker_scores, beliefs[FILTERED])
        about = rows.cells, scores, rows.offsets, rows.ages_s, ranker_scores
        reference = Reference.measure(beliefs[FILTERED], *about)
        changed = replace(self, ranker=ranker, regime_rankers=fitted, episodes=episodes)
        return replace(changed, reference=reference, number=0)

    def update(
        self,
        beliefs: ArrayLike,
        labels: ArrayLike,
        offsets: ArrayLike,
        ranker_scores: ArrayLike | None = None,
        keep: float = 1.0,
    ) -> Calibration:
        """Add labelled rows to the filtered regimes and ranker; see `Detector.recalibrate`."""
        check_keep(keep)
        known, known_labels, known_offsets = _check_labels(labels, offsets)
        n_rows, old = np.size(labels), self.regimes[FILTERED]
        known_beliefs = _check_beliefs(beliefs, n_rows, self.n_states)[known]
        rows = (known_beliefs, known_labels, known_offsets)
        kind = FILTERED, old.by_likelihood
        regimes = old.update(Regimes.measure(*rows, old.stickiness, "labels", *kind), keep)
        ranker = None
        if self.regime_rankers is not None:
            scores = _check_ranker_scores(ranker_scores, n_rows)[known]
            ranker = self.regime_rankers[FILTERED].update(scores, *rows, keep)
        return replace(self.replace_filtered(regimes, ranker), number=UNSAVED)

    def replace_filtered(self, regimes: Regimes, ranker: RegimeRanker | None) -> Calibration:
        """Use other filtered regimes and lines; the reference keeps its traffic."""
        lines = None if ranker is None else {**(self.regime_rankers or {}), FILTERED: ranker}
        rates = {**self.regimes, FILTERED: regimes}
        changed = replace(self, regimes=rates, regime_rankers=lines)
        reference = self.reference
        beliefs = reference.beliefs.astype(np.float64)
        scores, _ = changed.predict(beliefs, FILTERED, reference.ranker_scores)
        return replace(changed, reference=reference.replace_scores(scores))

    def check(self, n_columns: int) -> None:
        """Raise ValueError if the parts, read from disk, do not fit each other or the model."""
        for regimes in (*self.regimes.values(), self.in_sample):
            regimes.check(self.n_states)
        for ranker in (self.regime_rankers or {}).values():
            ranker.check(self.n_states)
        self.reference.check(self.n_states, n_columns, self.regime_rankers is not None)
        if self.episodes is not None:
            self.episodes.check()
            if self.ranker is None:
                raise ValueError("a chain of episodes without a ranker")
        first, last = self.time_range
        if not -np.inf < first <= last < np.inf:
            raise ValueError(f"a calibration cannot run from {first} to {last} seconds")


def choose_temperature(
    model: HiddenMarkovModel[Any], fit_panel: Panel, panel: Panel, places: Array
) -> float:
    """The temperature with the least log loss at `places` of the panel (docs/errata.md, E9)."""
    if fit_panel.labels is None or panel.labels is None:
        problem = "choosing a temperature needs labels, and the schema names none"
        raise DataError(f"{problem}. Set `label`, or a temperature")
    chain, fit_rows, rows = model.to_latent_hmm(), model.embed(fit_panel), model.embed(panel)
    stickiness = np.diag(chain.params_.transition_matrix)
    places = places[panel.labels[places] >= 0]
    losses = []
    for temperature in TEMPERATURES:
        tempered = chain.copy_with(temperature=temperature)
        probs, labels = tempered.filter(fit_rows).probs, fit_panel.labels
        regimes = Regimes.measure(probs, labels, fit_panel.offsets, stickiness, "fit")
        scores = tempered.filter(rows).probs @ regimes.mean_rates
        losses.append(log_loss(panel.labels[places], scores[places], labels=[0, 1]))
    return TEMPERATURES[int(np.argmin(losses))]


def _check_ranker_scores(scores: ArrayLike | None, n_rows: int) -> Array:
    if scores is None:
        problem = "this detector has a ranker, and the ranker's scores are missing"
        remedy = "Score transactions instead of a panel, or pass `ranker_scores`"
        raise DataError(f"{problem}. {remedy}")
    array = np.asarray(scores, np.float64)
    if array.shape != (n_rows,):
        rule = f"ranker_scores must have one value for each of the {n_rows:,} rows"
        raise DataError(f"{rule}; found shape {array.shape}")
    return array


def _check_labels(labels: ArrayLike, offsets: ArrayLike) -> tuple[Array, Array, Array]:
    """Places of the labelled rows, their labels and the customers' offsets among them."""
    codes, starts = np.asarray(labels), np.asarray(offsets)
    if codes.ndim != 1 or codes.dtype.kind not in "biuf" or not np.isin(codes, (-1, 0, 1)).all():
        raise DataError("labels must be one of 0, 1 and -1 (unknown) for each row")
    n_rows = len(codes)
    if not (codes >= 0).any():
        raise DataError(f"none of the {n_rows:,} rows has a label. Recalibrate once labels arrive")
    is_list = starts.ndim == 1 and starts.dtype.kind in "iu" and len(starts) >= 2
    if not is_list or (starts[0], starts[-1]) != (0, n_rows) or (np.diff(starts) < 0).any():
        rule = "customer u has rows offsets[u] to offsets[u + 1]"
        raise DataError(f"offsets must rise from 0 to the {n_rows:,} rows; {rule}")
    known, known_offsets = select_known(codes, starts)
    return known, codes[known].astype(np.int8), known_offsets


def _check_beliefs(beliefs: ArrayLike, n_rows: int, n_states: int) -> Array:
    array = np.asarray(beliefs, np.float64)
    if array.shape != (n_rows, n_states):
        rule = f"beliefs must be [{n_rows:,} rows, {n_states} regimes], as they were at scoring"
        raise DataError(f"{rule}; found shape {array.shape}")
    sums = array.sum(axis=1)
    is_valid = (array >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)
    for row in np.flatnonzero(~is_valid):
        rule = f"the beliefs of row {row} are not probabilities that add up to 1"
        raise DataError(f"{rule}: {array[row].tolist()}")
    return np.asarray(array / sums[:, None])
