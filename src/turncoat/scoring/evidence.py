"""Evidence weights: how much each column's log density counts when scoring (docs/scores.md).

log b_k(x) = sum_j w_j log b_kj(x_j). A model takes columns as independent, so facts that repeat
each other count too often. The weights are learnt from labels that the fit did not use. They
minimise -log P(label | row), with the belief before the row as prior, plus an L1 term that drops
columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from turncoat.arrays import Array
from turncoat.models.base import HiddenMarkovModel
from turncoat.numerics.jit import jit_exact
from turncoat.panel import Panel
from turncoat.scoring.path import BeliefPath

MAX_EFFECT = 12.0  # log odds that the presence of one field can move, with robust emissions
_START = 0.3
_L1 = 2.0  # nats for each unit of weight
_N_ROUNDS = 3  # beliefs before the rows depend on the weights, so both are updated in turn
_MAX_ROWS = 10_000  # of each label
_MAX_ITERATIONS = 100
_MIN_WEIGHT = 1e-3  # smaller ones are 0


class EvidenceRows(NamedTuple):
    """N labelled rows whose columns' terms are weighed."""

    terms: Array  # [N, K, C] log density of each column under each state
    log_prior: Array  # [N, K] belief before the row, up to a constant in each row
    likelihoods: Array  # [N, K] P(label of the row | state)
    counts: Array  # [N] how many rows each one stands for


def learn_weights(
    model: HiddenMarkovModel[Any], panel: Panel, rows: Array, likelihoods: Array, seed: int
) -> Array:
    """Weights of all columns [D + J], learnt from the labels at `rows` of the panel.

    `likelihoods` [2, K] are P(label | state). Columns that the model was not fitted on get 0.
    """
    chosen, counts = _sample_rows(np.asarray(panel.labels)[rows], seed)
    rows = rows[chosen]
    labels = np.asarray(panel.labels)[rows]
    n_columns = panel.n_continuous + panel.n_categorical
    is_fitted = np.ones(n_columns, bool) if model.weights is None else np.asarray(model.weights) > 0
    plain = model.copy_with(weights=is_fitted.astype(np.float64).tolist(), temperature=1.0)
    cells, codes, _ = plain.explain_emission(panel.continuous[rows], panel.categorical[rows])
    terms = np.concatenate([cells, codes], axis=2)[:, :, is_fitted]
    limits = np.maximum(plain.limit_field_effects()[is_fitted], 1e-9)
    max_weights = np.minimum(MAX_EFFECT / limits, 1e6) if np.isfinite(limits).all() else None
    weights = np.full(terms.shape[2], _START)
    for _ in range(_N_ROUNDS):
        every = np.zeros(n_columns)
        every[is_fitted] = np.maximum(weights, _MIN_WEIGHT)
        path = BeliefPath.filter(model.copy_with(weights=every.tolist(), temperature=1.0), panel)
        prior = path.take(rows).predict(model)
        found = EvidenceRows(terms, prior, likelihoods[labels], counts)
        weights = minimise_loss(found, weights, max_weights)
    is_kept = weights >= _MIN_WEIGHT
    every = np.zeros(n_columns)
    every[is_fitted] = np.where(is_kept, weights, 0.0) if is_kept.any() else _MIN_WEIGHT
    return every


def minimise_loss(rows: EvidenceRows, start: Array, max_weights: Array | None = None) -> Array:
    """The weights [C] of least loss, at least 0."""
    tops = np.full(len(start), np.inf) if max_weights is None else max_weights
    bounds = [(0.0, None if top == np.inf else top) for top in tops]

    def loss(weights: Array) -> tuple[float, Array]:
        value, gradient = compute_loss(weights, *rows)
        return value + _L1 * weights.sum(), gradient + _L1

    options = {"maxiter": _MAX_ITERATIONS}
    start = np.minimum(start, tops)
    return np.asarray(minimize(loss, start, jac=True, bounds=bounds, options=options).x)


@jit_exact
def compute_loss(
    weights: Array, terms: Array, log_prior: Array, likelihoods: Array, counts: Array
) -> tuple[float, Array]:
    """Sum of -log P(label | row), and its gradient [C]; arguments as in `EvidenceRows`."""
    n_rows, n_states, n_columns = terms.shape
    value, gradient = 0.0, np.zeros(n_columns)
    scores, gaps = np.empty(n_states), np.empty(n_states)
    for n in range(n_rows):
        for k in range(n_states):
            scores[k] = log_prior[n, k]
            for j in range(n_columns):
                scores[k] += weights[j] * terms[n, k, j]
        top = scores.max()
        total = known = 0.0
        for k in range(n_states):
            scores[k] = np.exp(scores[k] - top)
            total += scores[k]
            known += scores[k] * likelihoods[n, k]
        known = max(known, 1e-300)
        value -= counts[n] * (np.log(known) - np.log(total))
        for k in range(n_states):
            gaps[k] = counts[n] * scores[k] * (1.0 / total - likelihoods[n, k] / known)
            for j in range(n_columns):
                gradient[j] += gaps[k] * terms[n, k, j]
    return value, gradient


def _sample_rows(labels: Array, seed: int) -> tuple[Array, Array]:
    """Indices of at most `_MAX_ROWS` rows of each label, and how many rows each stands for."""
    rng = np.random.default_rng(seed)
    groups = [np.flatnonzero(labels == label) for label in (0, 1)]
    chosen = [rng.permutation(group)[:_MAX_ROWS] for group in groups]
    pairs = zip(groups, chosen, strict=True)
    counts = [np.full(len(some), len(group) / max(len(some), 1)) for group, some in pairs]
    return np.concatenate(chosen), np.concatenate(counts)
