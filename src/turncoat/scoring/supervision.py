"""Labels and states: holding labelled rows to the states of their side in fitting, and learning from a label that arrived."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.anchors import Anchors
from turncoat.panel import Panel
from turncoat.scoring.regimes import Regimes

_LEAST_NOISE = 1e-6  # a label that has arrived may be wrong, whatever was said of those in fitting


@dataclass(frozen=True)
class Anchoring:
    """Labelled fit rows sit in the states of their side: the last `n_fraud_states` are fraud's, the others genuine."""

    n_fraud_states: int = 1
    label_noise: float = 0.0  # share of wrong labels

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        n_fraud, noise = self.n_fraud_states, self.label_noise
        if isinstance(n_fraud, bool) or not isinstance(n_fraud, int | np.integer) or n_fraud < 1:
            raise ConfigError(
                f"n_fraud_states is {n_fraud!r}; it must be a whole number of at least 1"
            )
        if (
            isinstance(noise, bool)
            or not isinstance(noise, int | float | np.number)
            or not 0 <= noise < 0.5
        ):
            raise ConfigError(f"label_noise is {noise!r}; it must be at least 0 and below 0.5")

    def sides(self, n_states: int) -> Array:
        """Which states a genuine (row 0) and a fraudulent (row 1) transaction may be in [2, K]."""
        if self.n_fraud_states >= n_states:
            raise ConfigError(
                f"n_fraud_states is {self.n_fraud_states!r}; it must be below the {n_states} states of the model"
            )
        is_fraud = np.arange(n_states) >= n_states - self.n_fraud_states
        return np.stack([~is_fraud, is_fraud])

    def anchors(self, panel: Panel, n_states: int) -> Anchors:
        """Every row of a fit panel held to its side."""
        if panel.labels is None:
            raise DataError(
                "an anchored fit needs labels, and the schema names none. Set `label` in the schema, or use supervision='none'"
            )
        if panel.labels.min() == panel.labels.max():
            raise DataError(
                f"all {panel.n_rows:,} labels of the fit part are {panel.labels[0]}, and an anchored fit needs both 0 and 1. "
                "Choose a larger fit part, or use supervision='none'"
            )
        return Anchors(panel.labels.astype(np.int64), self.sides(n_states), self.label_noise)


def compute_label_likelihoods(anchoring: Anchoring | None, regimes: Regimes) -> Array:
    """P(label | state) [2, K]: by side in an anchored detector, by the measured fraud share in another."""
    if anchoring is not None:
        noise = max(anchoring.label_noise, _LEAST_NOISE)
        return np.where(anchoring.sides(regimes.n_states), 1.0 - noise, noise)
    rates = regimes.mean_rates
    return np.stack([1.0 - rates, rates])


def anchor_known_labels(
    likelihoods: Array, labels: ArrayLike, n_rows: int
) -> tuple[Anchors, Array]:
    """Labels that have arrived as evidence about states, and what each row's label adds to its own belief [N, K]."""
    codes = np.asarray(labels)
    if (
        codes.shape != (n_rows,)
        or codes.dtype.kind not in "iu"
        or ((codes < -1) | (codes > 1)).any()
    ):
        raise DataError(
            f"known labels must be 0, 1 or -1 (unknown) for each of the {n_rows:,} rows; found {codes.dtype} {codes.shape}"
        )
    own = np.vstack([likelihoods, np.ones(likelihoods.shape[1])])[codes]
    return Anchors.from_likelihoods(codes.astype(np.int64), likelihoods), own
