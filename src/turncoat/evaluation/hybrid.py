"""Columns for a ranker from an HMM: belief, its change and entropy, likelihood of the row."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel
from turncoat.scoring import Detector
from turncoat.scoring.scores import compute_entropy

_BATCH_CELLS = 1 << 22


def hybrid_columns(source: Detector | HiddenMarkovModel[Any], panel: Panel) -> Array:
    """Columns [N, 2 K + 2], named by `hybrid_names`; those of a row do not depend on later rows."""
    model = _model_of(source)
    belief = model.filter(panel).probs
    change = np.diff(belief, axis=0, prepend=0.0)
    change[panel.offsets[:-1]] = 0.0
    if model.temperature == 1:
        density = _row_log_likelihoods(model, panel, belief)
    else:
        density = row_log_likelihoods(model, panel)
    return np.column_stack([belief, change, compute_entropy(belief), density]).astype(np.float32)


def hybrid_names(n_states: int) -> tuple[str, ...]:
    """Names of the hybrid columns [2 K + 2]."""
    beliefs = [f"{name}_{k}" for name in ("belief", "belief_change") for k in range(n_states)]
    return (*beliefs, "belief_entropy", "row_log_likelihood")


def row_log_likelihoods(source: Detector | HiddenMarkovModel[Any], panel: Panel) -> Array:
    """Log density of rows given earlier ones [N], at temperature 1; sums to `log_likelihood`."""
    plain = copy(_model_of(source)).set_params(temperature=1.0)
    return _row_log_likelihoods(plain, panel, plain.filter(panel).probs)


def _row_log_likelihoods(model: HiddenMarkovModel[Any], panel: Panel, belief: Array) -> Array:
    """The normaliser of every filtering step: log sum_k P(k | earlier rows) b_k(row)."""
    log_initial = model.predict_log_belief(None)
    n_states = len(log_initial)
    log_transition = np.stack([model.predict_log_belief(certain) for certain in np.eye(n_states)])
    is_first = np.zeros(panel.n_rows, bool)
    is_first[panel.offsets[:-1]] = True
    with np.errstate(divide="ignore"):
        log_before = np.log(np.roll(belief, 1, axis=0))
    found = np.empty(panel.n_rows)
    width = max(panel.n_continuous, panel.n_categorical, n_states)
    step = max(_BATCH_CELLS // (n_states * width), 1)
    for start in range(0, panel.n_rows, step):
        rows = slice(start, start + step)
        log_predicted = np.logaddexp.reduce(log_before[rows, :, None] + log_transition, axis=1)
        log_predicted[is_first[rows]] = log_initial
        log_emission = model.log_emission(panel.continuous[rows], panel.categorical[rows])
        found[rows] = np.logaddexp.reduce(log_predicted + log_emission, axis=1)
    return found


def _model_of(source: Detector | HiddenMarkovModel[Any]) -> HiddenMarkovModel[Any]:
    if isinstance(source, HiddenMarkovModel):
        return source
    _ = source.regimes  # refuses a detector that is not fitted
    model: HiddenMarkovModel[Any] = source.model_
    return model
