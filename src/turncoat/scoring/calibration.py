"""Calibration: how beliefs become probabilities of fraud (the method, sections 6 and 7b).

A calibration holds the regimes' fraud rates, the optional ranker inside each regime, and the
reference for drift. Updating it changes neither features nor model, so stored beliefs stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import log_loss

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel
from turncoat.scoring.rankers import Ranker, RegimeRanker
from turncoat.scoring.reference import Reference
from turncoat.scoring.regimes import Regimes, check_keep
from turncoat.scoring.scores import MODES, mix_rates

FILTERED = "filtered"  # the mode of live scores
UNSAVED = -1  # the number of a calibration that is not saved yet
TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_SUM_TOLERANCE = 1e-3  # beliefs may have been stored with few digits


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
    number: int = 0  # 0 as fitted, UNSAVED, or the number it was saved under

    @classmethod
    def measure(
        cls,
        beliefs: Mapping[str, Array],
        labels: Array,
        offsets: Array,
        times: Array,
        cells: Array,
        in_sample: Regimes,
        temporal_share: float,
    ) -> Calibration:
        """Measure on N calibration rows: beliefs [N, K] by mode, continuous cells [N, D]."""
        rows, part = (labels, offsets, in_sample.stickiness), "calibration"
        regimes = {mode: Regimes.measure(beliefs[mode], *rows, part, mode) for mode in MODES}
        scores, _ = _predict(regimes[FILTERED], None, beliefs[FILTERED], None)
        reference = Reference.measure(beliefs[FILTERED], cells, scores)
        time_range = (float(times.min()), float(times.max()))
        return cls(regimes, in_sample, temporal_share, reference, time_range)

    @property
    def n_states(self) -> int:
        """Number of regimes K."""
        return self.in_sample.n_states

    def predict(
        self, beliefs: Array, mode: str = FILTERED, ranker_scores: Array | None = None
    ) -> tuple[Array, Array]:
        """Probability of fraud [N] and its variance [N].

        `beliefs` are [N, K]; `ranker_scores` [N] are needed if there is a ranker.
        """
        if self.regime_rankers is None:
            return _predict(self.regimes[mode], None, beliefs, None)
        scores = _check_ranker_scores(ranker_scores, len(beliefs))
        return _predict(self.regimes[mode], self.regime_rankers[mode], beliefs, scores)

    def add_ranker(
        self,
        ranker: Ranker,
        ranker_scores: Array,
        beliefs: Mapping[str, Array],
        labels: Array,
        offsets: Array,
        cells: Array,
        shrinkage: float,
    ) -> Calibration:
        """Fit a ranker inside each regime on calibration rows; arguments as in `measure`."""
        fitted = {
            mode: RegimeRanker.fit(ranker_scores, beliefs[mode], labels, offsets, shrinkage)
            for mode in MODES
        }
        scores, _ = fitted[FILTERED].predict(ranker_scores, beliefs[FILTERED])
        reference = Reference.measure(beliefs[FILTERED], cells, scores, ranker_scores)
        return replace(self, reference=reference, ranker=ranker, regime_rankers=fitted, number=0)

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
        old, has_ranker = self.regimes[FILTERED], self.regime_rankers is not None
        rows = _check_rows(self.n_states, beliefs, labels, offsets, ranker_scores, has_ranker)
        belief, label, offset, scores = rows
        new = Regimes.measure(belief, label, offset, old.stickiness, "labels")
        ranker = None
        if self.regime_rankers is not None and scores is not None:
            ranker = self.regime_rankers[FILTERED].update(scores, belief, label, offset, keep)
        return replace(self.replace_filtered(old.update(new, keep), ranker), number=UNSAVED)

    def replace_filtered(self, regimes: Regimes, ranker: RegimeRanker | None) -> Calibration:
        """Use other filtered regimes and, if there is a ranker, other regression lines.

        The reference keeps its traffic and gets the scores of the new regimes.
        """
        lines, rates = self.regime_rankers, {**self.regimes, FILTERED: regimes}
        lines = None if lines is None or ranker is None else {**lines, FILTERED: ranker}
        changed = replace(self, regimes=rates, regime_rankers=lines)
        reference = self.reference
        beliefs = reference.beliefs.astype(np.float64)
        scores, _ = changed.predict(beliefs, FILTERED, reference.ranker_scores)
        return replace(changed, reference=reference.replace_scores(scores))

    def check(self, n_columns: int) -> None:
        """Raise ValueError if the parts, read from disk, do not fit each other or the model."""
        k = self.n_states
        for regimes in (*self.regimes.values(), self.in_sample):
            regimes.check(k)
        for ranker in (self.regime_rankers or {}).values():
            ranker.check(k)
        self.reference.check(k, n_columns, self.regime_rankers is not None)
        first, last = self.time_range
        if not -np.inf < first <= last < np.inf:
            raise ValueError(f"a calibration cannot run from {first} to {last} seconds")


def choose_temperature(
    model: HiddenMarkovModel[Any], fit_panel: Panel, panel: Panel, places: Array
) -> float:
    """The temperature of the emissions with the least log loss at `places` of the panel.

    Many features, treated as independent, drown the chain (E9). The scores use fraud rates
    measured on the fit panel.
    """
    if fit_panel.labels is None or panel.labels is None:
        raise DataError(
            "choosing a temperature needs labels, and the schema names none. "
            "Set `label`, or a temperature"
        )
    chain, fit_rows, rows = model.to_latent_hmm(), model.embed(fit_panel), model.embed(panel)
    stickiness = np.diag(chain.params_.transition_matrix)
    losses = []
    for temperature in TEMPERATURES:
        tempered = chain.copy_at_temperature(temperature)
        probs, labels = tempered.filter(fit_rows).probs, fit_panel.labels
        regimes = Regimes.measure(probs, labels, fit_panel.offsets, stickiness, "fit")
        scores = tempered.filter(rows).probs @ regimes.mean_rates
        losses.append(log_loss(panel.labels[places], scores[places], labels=[0, 1]))
    return TEMPERATURES[int(np.argmin(losses))]


def _predict(
    regimes: Regimes, ranker: RegimeRanker | None, beliefs: Array, scores: Array | None
) -> tuple[Array, Array]:
    if ranker is None or scores is None:
        return mix_rates(beliefs, regimes.mean_rates, regimes.rate_covariance)
    return ranker.predict(scores, beliefs)


def _check_ranker_scores(scores: ArrayLike | None, n_rows: int) -> Array:
    if scores is None:
        raise DataError(
            "this detector has a ranker, and the ranker's scores are missing. "
            "Score transactions instead of a panel, or pass `ranker_scores`"
        )
    array = np.asarray(scores, np.float64)
    if array.shape != (n_rows,):
        raise DataError(
            f"ranker_scores must have one value for each of the {n_rows:,} rows; "
            f"found shape {array.shape}"
        )
    return array


def _check_rows(
    n_states: int,
    beliefs: ArrayLike,
    labels: ArrayLike,
    offsets: ArrayLike,
    ranker_scores: ArrayLike | None,
    has_ranker: bool,
) -> tuple[Array, Array, Array, Array | None]:
    """Beliefs, labels, offsets and ranker scores of the labelled rows; DataError if invalid."""
    every = np.asarray(labels)
    if every.ndim != 1 or every.dtype.kind not in "biuf" or not np.isin(every, (-1, 0, 1)).all():
        raise DataError("labels must be one of 0, 1 and -1 (unknown) for each row")
    n_rows, known = len(every), np.flatnonzero(every >= 0)
    if len(known) == 0:
        raise DataError(f"none of the {n_rows:,} rows has a label. Recalibrate once labels arrive")
    belief = _check_beliefs(beliefs, n_rows, n_states)[known]
    starts = np.asarray(offsets)
    if (
        starts.ndim != 1
        or starts.dtype.kind not in "iu"
        or len(starts) < 2
        or (starts[0], starts[-1]) != (0, n_rows)
        or (np.diff(starts) < 0).any()
    ):
        raise DataError(
            f"offsets must rise from 0 to the {n_rows:,} rows; "
            "customer u has rows offsets[u] to offsets[u + 1]"
        )
    kept = np.unique(np.searchsorted(known, starts))  # customers without a label drop out
    scores = _check_ranker_scores(ranker_scores, n_rows)[known] if has_ranker else None
    return belief, every[known].astype(np.int8), kept, scores


def _check_beliefs(beliefs: ArrayLike, n_rows: int, n_states: int) -> Array:
    array = np.asarray(beliefs, np.float64)
    if array.shape != (n_rows, n_states):
        raise DataError(
            f"beliefs must be [{n_rows:,} rows, {n_states} regimes], as they were at scoring; "
            f"found shape {array.shape}"
        )
    sums = array.sum(axis=1)
    wrong = np.flatnonzero(~((array >= 0).all(axis=1) & (np.abs(sums - 1) <= _SUM_TOLERANCE)))
    if wrong.size:
        raise DataError(
            f"the beliefs of row {wrong[0]} are not probabilities that add up to 1: "
            f"{array[wrong[0]].tolist()}"
        )
    return np.asarray(array / sums[:, None])
