"""One fold of a study: who is fitted on, calibrated with and judged on, and the columns that every candidate gets alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.split_panels import build_split_panel
from turncoat.panel import Panel
from turncoat.scoring.rankers import build_ranker_matrix

TRAIN, CALIBRATION, TEST = (
    "train",
    "calibration",
    "test",
)  # a baseline needs no selection part of its own: it trains on it
_LAST_PART = {TRAIN: "selection", CALIBRATION: "calibration", TEST: "test"}


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows of the three parts, and all engineered features of them, fitted on the fit part."""

    transactions: Transactions
    split: Split
    features: Features  # fitted

    @classmethod
    def of(cls, transactions: Transactions, split: Split, features: Features) -> Fold:
        """With features fitted on the fit part alone."""
        return cls(transactions, split, features.fit(transactions.take(split.fit)))

    def rows(self, part: str) -> Array:
        """Rows of a part among the transactions."""
        if part == TRAIN:
            return np.union1d(self.split.fit, self.split.selection)
        return self.split.parts[part]

    def labels(self, part: str) -> Array:
        """0 and 1 of a part's rows."""
        return np.asarray(self.transactions.labels)[self.rows(part)]

    def customers(self, part: str) -> Array:
        """Customer codes of a part's rows."""
        return self.transactions.customer_codes[self.rows(part)]

    def panel(self, part: str, features: Features) -> tuple[Panel, Array]:
        """A panel in which a part's rows have their customers' earlier rows before them, and the rows' places in it."""
        return build_split_panel(
            features, self.transactions, self.split, _LAST_PART[part], self.rows(part)
        )

    @cached_property
    def columns(self) -> dict[str, Array]:
        """What baselines get, by part [n, D]."""
        found = {}
        for part in _LAST_PART:
            panel, places = self.panel(part, self.features)
            found[part] = build_ranker_matrix(panel.continuous, panel.categorical)[places]
        return found

    @cached_property
    def seen(self) -> Array:
        """How many transactions of its customer came before each test row."""
        starts = self.transactions.offsets[:-1]
        rows = self.rows(TEST)
        counts: Array = (
            rows - starts[np.searchsorted(self.transactions.offsets, rows, side="right") - 1]
        )
        return counts
