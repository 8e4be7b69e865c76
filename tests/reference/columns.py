"""Each column's term of log b(k), written out with scipy: the reference of weights and limits."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats
from scipy.linalg import expm
from scipy.special import digamma

from turncoat import BaumWelchHMM
from turncoat.numerics.generators import MIN_GAP_PROBABILITY, code_hours, gap_codes

from .enumeration import Array, Ints
from .enumeration import log as log0


def log_chain(model: Any, gaps_s: Array | None = None) -> tuple[Array, Array]:
    """Log initial [K] and log transition [K, K], or one for each gap [N, K, K]."""
    q = model.params_
    is_expected = getattr(model, "emission", None) == "expected-log"
    initial = log0(q.initial_probs)
    if is_expected:
        initial = digamma(q.initial_concentration) - digamma(q.initial_concentration.sum())
    if gaps_s is not None:
        generator = np.array(q.generator)
        if is_expected:
            shapes = q.transition_concentration
            rates = np.exp(digamma(shapes)) / np.diag(shapes)[:, None]
            generator = np.where(np.eye(len(shapes), dtype=bool), generator, rates)
        moves = [expm(generator * hours) for hours in code_hours(gap_codes(gaps_s))]
        return initial, np.log(np.maximum(moves, MIN_GAP_PROBABILITY))
    if is_expected:
        counts = q.transition_concentration
        return initial, digamma(counts) - digamma(counts.sum(axis=-1, keepdims=True))
    return initial, log0(q.transition_matrix)


def column_terms(model: Any, continuous: Array, categorical: Ints) -> Array:
    """Terms [N, K, D + J] at temperature 1 and without weights; 0 if missing."""
    cells, codes = np.asarray(continuous, np.float64), np.asarray(categorical, np.int64)
    terms = np.where(np.isnan(cells)[:, None], 0.0, _log_densities(model, cells[:, None, :]))
    tables = _log_categories(model)
    from_codes = [np.where(c < 0, 0.0, t[:, c]).T for c, t in zip(codes.T, tables, strict=True)]
    return np.concatenate([terms, *(term[:, :, None] for term in from_codes)], axis=2)


def weighted_emission(model: Any, continuous: Array, categorical: Ints) -> Array:
    """log b(k) [N, K] at the model's temperature and weights."""
    terms = column_terms(model, continuous, categorical)
    weights = np.ones(terms.shape[2]) if model.weights is None else np.asarray(model.weights)
    return np.asarray((terms * weights).sum(axis=2) / model.temperature)


def _log_densities(model: Any, x: Array) -> Array:
    q = model.params_
    if isinstance(model, BaumWelchHMM):
        return np.asarray(stats.norm.logpdf(x, q.means, np.sqrt(q.variances)))
    if model.emission == "expected-log":
        log_precision = digamma(q.dof / 2) - np.log(q.scale / 2)
        squares = q.dof / q.scale * (x - q.location) ** 2 + 1 / q.mean_strength
        return np.asarray(0.5 * (log_precision - np.log(2 * np.pi) - squares))
    dof, width = q.dof, np.sqrt(q.scale * (1 + 1 / q.mean_strength) / q.dof)
    if model.emission == "predictive":
        return np.asarray(stats.t.logpdf(x, dof, q.location, width))
    dof, width = np.minimum(dof, 4.0), np.maximum(width, 0.1)
    flat_from = np.sqrt(dof * 10.0**2 / 4.0)  # widths
    floor = stats.t.logpdf(flat_from, dof) - np.log(width)
    return np.maximum(stats.t.logpdf(x, dof, q.location, width), floor)


def _log_categories(model: Any) -> list[Array]:
    q = model.params_
    if getattr(model, "emission", None) == "expected-log":
        counts = q.category_concentration
        return [digamma(a) - digamma(a.sum(axis=1, keepdims=True)) for a in counts]
    return [log0(probs) for probs in q.category_probs]
