"""Closed forms of the conjugate families: expected logarithms and Kullback-Leibler divergences."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln

from turncoat.arrays import Array
from turncoat.numerics.structures import Sizes, column_starts, column_sums


def expected_log_probs(concentration: Array) -> Array:
    """Return E[log p] under Dirichlet rows (last axis)."""
    return np.asarray(digamma(concentration) - digamma(concentration.sum(axis=-1, keepdims=True)))


def expected_log_categories(concentration: Array, sizes: Sizes) -> Array:
    """Return E[log p] under the Dirichlets of many columns, joined as by `join_columns`."""
    return np.asarray(digamma(concentration) - digamma(column_sums(concentration, sizes)))


def category_divergence(posterior: Array, prior: Array, sizes: Sizes) -> float:
    """Return the sum over states and columns of KL(Dirichlet(posterior) || Dirichlet(prior)).

    The columns are joined as by `join_columns`.
    """
    starts = column_starts(sizes)
    posterior_totals, prior_totals = (
        column_sums(one, sizes)[:, starts] for one in (posterior, prior)
    )
    by_column = gammaln(posterior_totals) - gammaln(prior_totals)
    log_probs = expected_log_categories(posterior, sizes)
    by_category = gammaln(prior) - gammaln(posterior) + (posterior - prior) * log_probs
    return float(by_column.sum() + by_category.sum())


def dirichlet_divergence(posterior: Array, prior: Array) -> float:
    """Return the sum over rows of KL(Dirichlet(posterior) || Dirichlet(prior))."""
    prior = np.broadcast_to(prior, posterior.shape)
    log_norms = gammaln(posterior.sum(-1)) - gammaln(prior.sum(-1))
    log_norms += (gammaln(prior) - gammaln(posterior)).sum(-1)
    return float(np.sum(log_norms + ((posterior - prior) * expected_log_probs(posterior)).sum(-1)))


def normal_gamma_divergence(posterior: tuple[Array, ...], prior: tuple[Array, ...]) -> float:
    """Return the sum over cells [K, D] of KL between Normal-Gammas (E3 in docs/errata.md).

    Both have location, strength, dof and scale; the Gammas have shape dof / 2 and rate scale / 2.
    """
    location, strength, dof, scale = posterior
    prior_location, prior_strength, prior_dof, prior_scale = prior
    shape, rate = dof / 2.0, scale / 2.0
    prior_shape, prior_rate = prior_dof / 2.0, prior_scale / 2.0
    precision = shape / rate
    shift = prior_strength * precision * (location - prior_location) ** 2
    normal = 0.5 * (prior_strength / strength + shift - 1.0 + np.log(strength / prior_strength))
    return float(np.sum(normal + gamma_divergence(shape, rate, prior_shape, prior_rate)))


def gamma_divergence(
    shape: Array, rate: Array, prior_shape: ArrayLike, prior_rate: ArrayLike
) -> Array:
    """Return KL(Gamma(shape, rate) || Gamma(prior_shape, prior_rate)) of each cell."""
    gamma = (shape - prior_shape) * digamma(shape) - gammaln(shape) + gammaln(prior_shape)
    gamma += prior_shape * (np.log(rate) - np.log(prior_rate))
    gamma += shape / rate * (prior_rate - rate)
    return np.asarray(gamma)
