"""The calibration part of a split, read for calibrating: beliefs, labels and cells of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError
from turncoat.features import Features
from turncoat.features.split_panels import build_split_panel
from turncoat.panel import Panel
from turncoat.scoring.calibration import CalibrationRows
from turncoat.scoring.inference import PanelInference
from turncoat.scoring.scores import MODES


class CalibrationPart(NamedTuple):
    """The calibration part, at `places` of a panel with its history, and its beliefs by mode."""

    transactions: Transactions
    panel: Panel
    places: Array
    beliefs: Mapping[str, Array]
    ages_s: Array

    @classmethod
    def read(
        cls, features: Features, transactions: Transactions, split: Split, inference: PanelInference
    ) -> CalibrationPart:
        """The part with its customers' history, and the model's beliefs."""
        panel, places = build_split_panel(features, transactions, split, "calibration")
        beliefs = {mode: inference.infer(panel, mode) for mode in MODES}
        ages_s = np.zeros(len(places))
        if features.plan.engineered:
            times = np.asarray(panel.times)
            firsts = np.repeat(times[panel.offsets[:-1]], panel.lengths)
            ages_s = (times - firsts)[places]
        own = transactions.take(split.calibration)
        return cls(own, panel, places, beliefs, ages_s)

    @property
    def rows(self) -> CalibrationRows:
        """The part as rates and rankers are calibrated on it."""
        part, cells = self.transactions, self.panel.continuous[self.places]
        own = {mode: self.beliefs[mode][self.places] for mode in MODES}
        about = np.asarray(part.labels), part.offsets, part.times
        return CalibrationRows(own, *about, cells, self.ages_s)


def check_calibration_part(data: Transactions, split: Split, purpose: str) -> None:
    """Refuse a split without a calibration part, or one that does not know both labels."""
    if len(split.calibration) == 0:
        missing = f"calibration part, needed for {purpose}. Make one"
        raise ConfigError(f"the split {split.name!r} has no {missing}")
    data.take(split.calibration).require_labels(purpose, "calibration")
