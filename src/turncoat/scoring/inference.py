"""Beliefs of whole panels, with the very bits of live scores."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.models.anchors import Anchors
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel
from turncoat.scoring.calibration import FILTERED
from turncoat.scoring.path import BeliefPath
from turncoat.scoring.supervision import anchor_known_labels

Labels = ArrayLike | None  # known labels of a panel's rows: 0, 1, or -1 for unknown


@dataclass(frozen=True, eq=False)
class PanelInference:
    """Infers the states of a panel's rows with a fitted model."""

    model: HiddenMarkovModel[Any]
    label_likelihoods: Array | None = None  # [2, K] P(label | state), to infer given labels

    def infer(self, panel: Panel, mode: str = FILTERED, anchors: Anchors | None = None) -> Array:
        """State probabilities [N, K]."""
        run = self._exact_model.filter if mode == FILTERED else self._exact_model.smooth
        return run(panel, anchors).probs

    def infer_given_labels(self, panel: Panel, mode: str, labels: Labels) -> Array:
        """State probabilities [N, K] given the known labels of other rows, never a row's own."""
        if labels is None:
            return self.infer(panel, mode)
        anchors, own = self._anchor(labels, panel)
        without = self.infer(panel, mode, anchors) / own
        return np.asarray(without / without.sum(axis=1, keepdims=True))

    def filter_path(self, panel: Panel, labels: Labels = None) -> BeliefPath:
        """Beliefs before and after each row, given the known labels of other rows."""
        path = BeliefPath.filter(self.model, panel)
        if labels is None:
            return path
        anchors, _ = self._anchor(labels, panel)
        before = np.roll(self.infer(panel, FILTERED, anchors), 1, axis=0)
        return path._replace(before=before, after=self.infer_given_labels(panel, FILTERED, labels))

    def measure_temporal_share(self, panel: Panel, places: Array, beliefs: Array) -> float:
        """Mean total variation between filtered beliefs and those of single rows."""
        alone = self.model.infer_without_chain(panel, beliefs.mean(axis=0)).probs
        return float(0.5 * np.abs(beliefs - alone)[places].sum(axis=1).mean())

    def _anchor(self, labels: ArrayLike, panel: Panel) -> tuple[Anchors, Array]:
        assert self.label_likelihoods is not None  # a fitted detector has them
        return anchor_known_labels(self.label_likelihoods, labels, panel.n_rows)

    @cached_property
    def _exact_model(self) -> HiddenMarkovModel[Any]:
        """The model in float64, as in live scoring, so that batch and live scores agree."""
        exact = copy(self.model)
        exact.precision = "float64"
        return exact
