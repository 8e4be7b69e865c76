"""Closed forms of the conjugate families: expected logarithms and Kullback-Leibler divergences."""

from __future__ import annotations

import numpy as np
from scipy.special import digamma, gammaln

from turncoat.arrays import Array
from turncoat.numerics.ragged import Sizes, column_sums, starts


def expected_log_probs(concentration: Array) -> Array:
    """E[log p] under Dirichlet rows (last axis)."""
    return np.asarray(digamma(concentration) - digamma(concentration.sum(axis=-1, keepdims=True)))


def expected_log_categories(concentration: Array, sizes: Sizes) -> Array:
    """E[log p] under the Dirichlets of many columns side by side (see `ragged`)."""
    return np.asarray(digamma(concentration) - digamma(column_sums(concentration, sizes)))


def category_divergence(posterior: Array, prior: float, sizes: Sizes) -> float:
    """Sum over states and columns of KL(Dirichlet(posterior) || Dirichlet(prior, ..., prior)), columns side by side."""
    firsts = starts(sizes)
    posterior_totals = column_sums(posterior, sizes)[:, firsts]
    prior_totals = prior * np.asarray(sizes, dtype=np.float64)
    by_column = gammaln(posterior_totals) - gammaln(prior_totals)
    by_category = (
        gammaln(prior)
        - gammaln(posterior)
        + (posterior - prior) * expected_log_categories(posterior, sizes)
    )
    return float(by_column.sum() + by_category.sum())


def dirichlet_divergence(posterior: Array, prior: Array) -> float:
    """Sum over rows of KL(Dirichlet(posterior) || Dirichlet(prior))."""
    prior = np.broadcast_to(prior, posterior.shape)
    log_norms = (
        gammaln(posterior.sum(-1))
        - gammaln(prior.sum(-1))
        + (gammaln(prior) - gammaln(posterior)).sum(-1)
    )
    return float(np.sum(log_norms + ((posterior - prior) * expected_log_probs(posterior)).sum(-1)))


def normal_gamma_divergence(
    location: Array,
    strength: Array,
    dof: Array,
    scale: Array,
    prior_location: float,
    prior_strength: float,
    prior_dof: float,
    prior_scale: float,
) -> float:
    """Sum over cells of KL between Normal-Gammas with shape dof / 2 and rate scale / 2 (E3: the diagonal form)."""
    shape, rate = dof / 2.0, scale / 2.0
    prior_shape, prior_rate = prior_dof / 2.0, prior_scale / 2.0
    precision = shape / rate
    normal = 0.5 * (
        prior_strength / strength
        + prior_strength * precision * (location - prior_location) ** 2
        - 1.0
        + np.log(strength / prior_strength)
    )
    gamma = (
        (shape - prior_shape) * digamma(shape)
        - gammaln(shape)
        + gammaln(prior_shape)
        + prior_shape * (np.log(rate) - np.log(prior_rate))
        + precision * (prior_rate - rate)
    )
    return float(np.sum(normal + gamma))
