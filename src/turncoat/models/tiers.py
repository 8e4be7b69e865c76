"""The mathematics of each tier: parameters to kernel terms, statistics to parameters, and what the bound adds.

The fit loop (`fitting.py`) is the same for both. A tier only answers three questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from scipy.special import digamma, gammaln

from turncoat.arrays import Array
from turncoat.models.parameters import HMMParams, Prior, VariationalParams
from turncoat.numerics.coding import Statistics, Terms
from turncoat.numerics.conjugate import (
    category_divergence,
    dirichlet_divergence,
    expected_log_categories,
    expected_log_probs,
    normal_gamma_divergence,
)
from turncoat.numerics.ragged import column_sums, joined, split

P = TypeVar("P", HMMParams, VariationalParams)

_LOG_TWO_PI = float(np.log(2.0 * np.pi))
# Expected rows below which counts are nothing but rounding.
_NO_EVIDENCE = 1e-8
# Share of all rows a state needs in a column to move its mean and variance there: the kernels leave out weights of 1e-8.
_LEAST_SHARE = 1e-6
# Keeps every possible transition possible: far below anything a likelihood can feel, far above underflow.
_SMALLEST_PROBABILITY = 1e-30
_SMALLEST_CATEGORY = 1e-300


class Tier(Protocol[P]):
    """What the fit loop asks of a model family."""

    def terms(self, params: P) -> Terms:
        """Additive pieces for the E-step."""

    def update(self, statistics: Statistics, previous: P | None) -> P:
        """M-step; `previous` fills in where the statistics are silent."""

    def penalty(self, params: P) -> float:
        """What is added to the log-likelihood to give the quantity that never decreases."""

    def floored_share(self, params: P) -> float:
        """Share of state x column variances held up by a floor."""


@dataclass(frozen=True)
class MaximumLikelihood(Generic[P]):
    """Tier 1: Baum-Welch with a variance floor and additive smoothing of categories."""

    lowest_variances: Array  # [D]
    column_variances: Array  # [D] where a state has never seen a column
    category_smoothing: float

    def terms(self, params: HMMParams) -> Terms:
        """Gaussian and categorical log densities at the point parameters."""
        return point_terms(params)

    def update(self, statistics: Statistics, previous: HMMParams | None) -> HMMParams:
        """Weighted means, variances and frequencies; a missing cell has no weight."""
        seen = statistics.observed > _LEAST_SHARE * statistics.n_rows
        weight = np.where(seen, statistics.observed, 1.0)
        step = statistics.first / weight
        variances = np.maximum(statistics.second / weight - step**2, self.lowest_variances)
        fallback = (
            previous.variances
            if previous is not None
            else np.broadcast_to(self.column_variances, seen.shape)
        )
        return HMMParams(
            initial_probs=self._frequencies(
                statistics.initial, None if previous is None else previous.initial_probs
            ),
            transition_matrix=self._frequencies(
                statistics.transitions, None if previous is None else previous.transition_matrix
            ),
            means=np.where(
                seen,
                statistics.reference + step,
                statistics.reference if previous is None else previous.means,
            ),
            variances=np.where(seen, variances, fallback),
            category_probs=split(
                self._category_probs(statistics, previous), statistics.n_categories
            ),
        )

    def penalty(self, params: HMMParams) -> float:
        """Log of the Dirichlet that the smoothing stands for, up to a constant."""
        if self.category_smoothing == 0.0:
            return 0.0
        return self.category_smoothing * float(
            np.log(joined(params.category_probs, params.n_states)).sum()
        )

    def floored_share(self, params: HMMParams) -> float:
        """Share of variances that sit on the floor."""
        return (
            float((params.variances <= self.lowest_variances).mean())
            if params.variances.size
            else 0.0
        )

    def _frequencies(self, counts: Array, previous: Array | None) -> Array:
        """Rows of counts as probabilities; an impossible move stays impossible, an unused row stays as it was."""
        total = counts.sum(axis=-1, keepdims=True)
        used = total > _NO_EVIDENCE
        fallback = np.full(counts.shape, 1.0 / counts.shape[-1]) if previous is None else previous
        probs = np.where(used, counts / np.where(used, total, 1.0), fallback)
        probs = np.maximum(probs, _SMALLEST_PROBABILITY)
        if previous is not None:
            probs = np.where(previous > 0.0, probs, 0.0)
        return np.asarray(probs / probs.sum(axis=-1, keepdims=True))

    def _category_probs(self, statistics: Statistics, previous: HMMParams | None) -> Array:
        smoothed = statistics.categories + self.category_smoothing
        sizes = statistics.n_categories
        total = column_sums(smoothed, sizes)
        used = total > _NO_EVIDENCE
        if previous is None:
            fallback = 1.0 / column_sums(np.ones(smoothed.shape), sizes)
        else:
            fallback = joined(previous.category_probs, previous.n_states)
        return np.where(used, smoothed / np.where(used, total, 1.0), fallback)


@dataclass(frozen=True)
class VariationalBayes(Generic[P]):
    """Tier 2: Dirichlet and Normal-Gamma posteriors (the method, section 4)."""

    prior: Prior
    n_columns: int

    def terms(self, params: VariationalParams) -> Terms:
        """Expected log densities under the posterior."""
        return expected_log_terms(params)

    def update(
        self, statistics: Statistics, previous: VariationalParams | None
    ) -> VariationalParams:
        """Prior plus expected counts; a missing cell adds to no count."""
        prior = self.prior
        observed = np.maximum(statistics.observed, 0.0)
        weight = np.where(observed > _NO_EVIDENCE, observed, 1.0)
        step = statistics.first / weight
        average = statistics.reference + step
        scatter = np.maximum(statistics.second - statistics.first * step, 0.0)
        strength = prior.mean_strength + observed
        shrunk = prior.mean_strength * observed / strength
        n_states = len(statistics.initial)
        return VariationalParams(
            initial_concentration=prior.initial + statistics.initial,
            transition_concentration=prior.transition_concentration(n_states)
            + statistics.transitions,
            location=(prior.mean_strength * prior.mean + observed * average) / strength,
            mean_strength=strength,
            dof=prior.total_dof(self.n_columns) + observed,
            scale=prior.total_scale(self.n_columns)
            + scatter
            + shrunk * (average - prior.mean) ** 2,
            category_concentration=split(
                prior.category + statistics.categories, statistics.n_categories
            ),
        )

    def penalty(self, params: VariationalParams) -> float:
        """Minus the divergence of the posterior from the prior: the log-likelihood term plus this is the ELBO (E5)."""
        prior = self.prior
        divergence = dirichlet_divergence(
            params.initial_concentration[None], np.array(prior.initial)
        )
        divergence += dirichlet_divergence(
            params.transition_concentration, prior.transition_concentration(params.n_states)
        )
        divergence += normal_gamma_divergence(
            params.location,
            params.mean_strength,
            params.dof,
            params.scale,
            prior.mean,
            prior.mean_strength,
            prior.total_dof(self.n_columns),
            prior.total_scale(self.n_columns),
        )
        concentration = joined(params.category_concentration, params.n_states)
        divergence += category_divergence(concentration, prior.category, params.n_categories)
        return -divergence

    def floored_share(self, params: VariationalParams) -> float:
        """None: the prior keeps variances up."""
        return 0.0


def _log(probs: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(probs))


def point_terms(params: HMMParams) -> Terms:
    """Terms of the model at point parameters."""
    return Terms(
        log_initial=_log(params.initial_probs),
        log_transition=_log(params.transition_matrix),
        means=params.means,
        scales=1.0 / np.sqrt(params.variances),
        constants=-0.5 * (_LOG_TWO_PI + np.log(params.variances)),
        log_categories=np.log(
            np.maximum(joined(params.category_probs, params.n_states), _SMALLEST_CATEGORY)
        ),
        n_categories=params.n_categories,
    )


def expected_log_terms(params: VariationalParams) -> Terms:
    """Terms under E[log .]: what the variational E-step uses, and the default for scoring."""
    expected_log_precision = digamma(params.dof / 2.0) - np.log(params.scale / 2.0)
    return Terms(
        log_initial=expected_log_probs(params.initial_concentration),
        log_transition=expected_log_probs(params.transition_concentration),
        means=params.location,
        scales=np.sqrt(params.dof / params.scale),
        constants=0.5 * (expected_log_precision - _LOG_TWO_PI - 1.0 / params.mean_strength),
        log_categories=expected_log_categories(
            joined(params.category_concentration, params.n_states), params.n_categories
        ),
        n_categories=params.n_categories,
    )


def predictive_terms(params: VariationalParams) -> Terms:
    """Terms of the posterior predictive: Student-t columns, posterior-mean probabilities."""
    width = np.sqrt(
        params.scale * (params.mean_strength + 1.0) / (params.dof * params.mean_strength)
    )
    return Terms(
        log_initial=_log(params.initial_probs),
        log_transition=_log(params.transition_matrix),
        means=params.location,
        scales=1.0 / width,
        constants=gammaln((params.dof + 1.0) / 2.0)
        - gammaln(params.dof / 2.0)
        - 0.5 * np.log(params.dof * np.pi)
        - np.log(width),
        log_categories=np.log(joined(params.category_probs, params.n_states)),
        n_categories=params.n_categories,
        dof=params.dof,
    )
