"""The two panels a sweep needs: the one that models are fitted on, and the one that they are judged on.

Nothing here reads a row of the calibration or the test part, not even as history.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import Split, drop_short_sequences
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError
from turncoat.features import Features
from turncoat.panel import Panel
from turncoat.storage import digest

HISTORY = -1  # label of rows that are there for what follows them and are not judged
DIGESTED = ("fit rows", "selection rows")


@dataclass(frozen=True, eq=False)
class Parts:
    """Panels of the fit and of the selection part."""

    fit: Panel
    held_out: (
        Panel  # selection rows, and before them their customers' earlier rows, labelled HISTORY
    )

    @classmethod
    def of(cls, transactions: Transactions, split: Split, features: Features) -> Parts:
        """Panels made by fitted features. Customers with few rows are not fitted on, but they are judged."""
        codes = transactions.customer_codes
        before = split.visible_rows("fit", transactions.times)
        fit = features.transform(
            transactions.take(before),
            rows=np.searchsorted(before, drop_short_sequences(codes, split.fit)),
        )
        before = split.visible_rows("selection", transactions.times)
        context = np.isin(codes[before], codes[split.selection])
        panel = features.transform(transactions.take(before), rows=context)
        is_judged = np.isin(before[context], split.selection)
        return cls(
            fit,
            replace(panel, labels=np.where(is_judged, np.asarray(panel.labels), np.int8(HISTORY))),
        )

    @property
    def digests(self) -> dict[str, str]:
        """What tells these panels from others."""
        return dict(zip(DIGESTED, (_digest(self.fit), _digest(self.held_out)), strict=True))

    def resampled(self, rng: np.random.Generator, both_kinds: bool = False) -> Parts:
        """As many customers of each part, drawn with replacement; one drawn twice is two customers.

        With `both_kinds`, again until the fit part has both labels, as an anchored fit needs.
        """
        fit, held_out = (
            panel[np.sort(rng.integers(len(panel), size=len(panel)))]
            for panel in (self.fit, self.held_out)
        )
        labels = np.asarray(fit.labels)
        return (
            self.resampled(rng, both_kinds)
            if both_kinds and labels.min() == labels.max()
            else Parts(fit, held_out)
        )


def check_split(transactions: Transactions, split: Split) -> None:
    """Refuse data on which K cannot be chosen."""
    if len(split.selection) == 0:
        raise ConfigError(
            f"the split {split.name!r} has no selection part, on which K is chosen. Make one that has"
        )
    transactions.take(split.selection).require_labels("choosing K")


def judged(panel: Panel) -> Array:
    """Which rows count [N]; the others are history."""
    if panel.labels is None:
        raise DataError("the panel has no labels, and fraud cannot be measured without")
    rows: Array = panel.labels != HISTORY
    return rows


def history(panel: Panel) -> Panel | None:
    """The rows that do not count, as sequences of their own; None if all do."""
    kept = ~judged(panel)
    if not kept.any():
        return None
    lengths = np.add.reduceat(kept, panel.offsets[:-1], dtype=np.int64)
    return Panel.from_arrays(
        panel.continuous[kept],
        panel.categorical[kept],
        lengths[lengths > 0],
        n_categories=panel.n_categories,
    )


def _digest(panel: Panel) -> str:
    arrays = {"continuous": panel.continuous, "categorical": panel.categorical}
    arrays |= {"offsets": panel.offsets, "labels": np.asarray(panel.labels)}
    return digest(panel.n_categories, arrays)
