"""Labels as evidence about states: anchored fits, and labels that arrive after scoring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.anchors import Anchors
from turncoat.models.validation import Rule, check_settings, number, whole_number
from turncoat.panel import Panel, has_both_labels
from turncoat.scoring.regimes import Regimes

_RULES = {
    "n_fraud_states": whole_number(1),
    "label_noise": Rule("at least 0 and below 0.5", lambda v: number(0).holds(v) and v < 0.5),
}
_MIN_NOISE = 1e-6  # a label that arrives may be wrong, even if those of the fit are not


@dataclass(frozen=True)
class Anchoring:
    """Holds labelled fit rows to states: the last `n_fraud_states` for fraud, others genuine."""

    n_fraud_states: int = 1
    label_noise: float = 0.0  # share of wrong labels

    def __post_init__(self) -> None:
        """Validate the settings."""
        check_settings(self, vars(self), _RULES)

    def allowed_states(self, n_states: int) -> Array:
        """The states of a genuine (row 0) and of a fraudulent transaction (row 1) [2, K]."""
        if self.n_fraud_states >= n_states:
            rule = f"it must be below the {n_states} states of the model"
            raise ConfigError(f"n_fraud_states is {self.n_fraud_states!r}; {rule}")
        is_fraud = np.arange(n_states) >= n_states - self.n_fraud_states
        return np.stack([~is_fraud, is_fraud])

    def make_anchors(self, panel: Panel, n_states: int) -> Anchors:
        """Anchors for every row of a fit panel; a row of unknown label is free."""
        labels, remedy = panel.labels, "or use supervision='none'"
        if labels is None:
            problem = "an anchored fit needs labels, and the schema names none"
            raise DataError(f"{problem}. Set `label` in the schema, {remedy}")
        if not has_both_labels(labels):
            known = f"{(labels == 1).sum():,} frauds and {(labels == 0).sum():,} genuine rows known"
            rule = f"an anchored fit needs one of each; of {panel.n_rows:,} rows it has {known}"
            raise DataError(f"{rule}. Choose a larger fit part, {remedy}")
        return Anchors(labels.astype(np.int64), self.allowed_states(n_states), self.label_noise)


def compute_label_likelihoods(anchoring: Anchoring | None, regimes: Regimes) -> Array:
    """P(label | state) [2, K]: from the allowed states if anchored, else from the fraud rates."""
    if anchoring is not None:
        return compute_anchor_likelihoods(anchoring, regimes.n_states)
    return np.stack([1.0 - regimes.mean_rates, regimes.mean_rates])


def compute_anchor_likelihoods(anchoring: Anchoring, n_states: int) -> Array:
    """P(label | state) [2, K] of anchored states."""
    noise = max(anchoring.label_noise, _MIN_NOISE)
    return np.where(anchoring.allowed_states(n_states), 1.0 - noise, noise)


def anchor_known_labels(
    likelihoods: Array, labels: ArrayLike, n_rows: int
) -> tuple[Anchors, Array]:
    """Known labels as anchors, and the likelihood of each row's own label [N, K]."""
    codes = np.asarray(labels)
    is_valid = codes.shape == (n_rows,) and codes.dtype.kind in "iu"
    if not is_valid or ((codes < -1) | (codes > 1)).any():
        rule = f"0, 1 or -1 (unknown) for each of the {n_rows:,} rows"
        raise DataError(f"known labels must be {rule}; found {codes.dtype} {codes.shape}")
    own = np.vstack([likelihoods, np.ones(likelihoods.shape[1])])[codes]
    return Anchors.from_likelihoods(codes.astype(np.int64), likelihoods), own
