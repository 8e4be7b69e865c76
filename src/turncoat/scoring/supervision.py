"""Labels and states: holding labelled rows to the states of their side in fitting, and learning from a label that arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncoat.errors import ConfigError, DataError
from turncoat.models.anchors import Anchors
from turncoat.panel import Panel

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector

Array = NDArray[Any]

SUPERVISIONS = ("none", "anchored")


def anchors_of(panel: Panel, detector: Detector) -> Anchors:
    """Every labelled row of a fit panel held to its side: the last `n_fraud_states` states are fraud's, the others genuine."""
    if panel.labels is None:
        raise DataError("an anchored fit needs labels, and the schema names none. Set `label` in the schema, or use supervision='none'")
    if panel.labels.min() == panel.labels.max():
        raise DataError(
            f"all {panel.n_rows:,} labels of the fit part are {panel.labels[0]}, and an anchored fit needs both 0 and 1. "
            "Choose a larger fit part, or use supervision='none'"
        )
    return Anchors(panel.labels.astype(np.int64), sides(detector), detector.label_noise)


def sides(detector: Detector) -> Array:
    """Which states a genuine (row 0) and a fraudulent (row 1) transaction may be in [2, K]."""
    n_states, n_fraud = detector.model_.n_states, detector.n_fraud_states
    if isinstance(n_fraud, bool) or not isinstance(n_fraud, int | np.integer) or not 1 <= n_fraud < n_states:
        raise ConfigError(f"n_fraud_states is {n_fraud!r}; it must be at least 1 and below the {n_states} states of the model")
    is_fraud = np.arange(n_states) >= n_states - n_fraud
    return np.stack([~is_fraud, is_fraud])


def label_likelihoods(detector: Detector) -> Array:
    """P(label | state) [2, K]: by side in an anchored detector, by the measured fraud share in another."""
    if detector.supervision == "anchored":
        noise = max(detector.label_noise, 1e-6)
        return np.where(sides(detector), 1.0 - noise, noise)
    rates = detector.regimes.mean_rates
    return np.stack([1.0 - rates, rates])


def known_labels(detector: Detector, labels: ArrayLike, n_rows: int) -> tuple[Anchors, Array]:
    """Labels that have arrived as evidence about states, and what each row's label adds to its own belief [N, K]."""
    codes = np.asarray(labels)
    if codes.shape != (n_rows,) or codes.dtype.kind not in "iu" or ((codes < -1) | (codes > 1)).any():
        raise DataError(f"known labels must be 0, 1 or -1 (unknown) for each of the {n_rows:,} rows; found {codes.dtype} {codes.shape}")
    likelihoods = label_likelihoods(detector)
    own = np.vstack([likelihoods, np.ones(likelihoods.shape[1])])[codes]
    return Anchors.of_likelihoods(codes.astype(np.int64), likelihoods), own
