"""Tier 1: the HMM with point parameters, fitted by maximum likelihood (Baum-Welch)."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from turncoat.arrays import Array
from turncoat.models import validation as rule
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.fitting import NO_EVIDENCE
from turncoat.models.initialisation import ColumnMoments
from turncoat.models.parameters import ContinuousHMMParams, HMMParams, get_generator
from turncoat.numerics.generators import build_generator, limit_rates
from turncoat.numerics.layout import LOG_TWO_PI, LogModel, Statistics, log_allowing_zero
from turncoat.numerics.structures import column_sums, join_columns, split_columns

# Without a floor, a state on a single value has an unbounded likelihood.
_MIN_FLOOR = 1e-12
# A state needs this share of all rows in a column to move its mean and variance there. The kernels
# leave out weights below 1e-8.
_MIN_SHARE = 1e-6
# Keeps possible transitions possible: far below any effect on a likelihood, far above underflow.
_MIN_PROBABILITY = 1e-30
_MIN_CATEGORY_PROBABILITY = 1e-300
_MIN_RATE = 1e-12  # per hour
_START_RATE = 1.0 / 24.0  # per hour, for states without evidence


@dataclass(frozen=True)
class MaximumLikelihood:
    """Baum-Welch with a variance floor and additive smoothing of categories."""

    min_variances: Array  # [D]
    column_variances: Array  # [D] used where a state has never seen a column
    category_smoothing: float
    is_continuous: bool = False  # in time: the chain has rates

    def build_log_model(self, params: HMMParams) -> LogModel:
        """Return the Gaussian and categorical log densities at the point parameters."""
        return build_point_model(params)

    def update(self, statistics: Statistics, previous: HMMParams | None) -> HMMParams:
        """Return weighted means, variances and frequencies; a missing cell has no weight."""
        has_rows = statistics.observed > _MIN_SHARE * statistics.n_rows
        weight = np.where(has_rows, statistics.observed, 1.0)
        step = statistics.first / weight
        variances = np.maximum(statistics.second / weight - step**2, self.min_variances)
        old_initial, old_chain = None, None
        old_means, old_variances = statistics.reference, self.column_variances
        if previous is not None:
            old_initial, old_chain = previous.initial_probs, getattr(previous, previous.chain)
            old_means, old_variances = previous.means, previous.variances
        categories = self._category_probs(statistics, previous)
        initial_probs = _normalise_counts(statistics.initial, old_initial)
        columns: dict[str, Any] = {
            "means": np.where(has_rows, statistics.reference + step, old_means),
            "variances": np.where(has_rows, variances, old_variances),
            "category_probs": split_columns(categories, statistics.n_categories),
        }
        if self.is_continuous:
            generator = _estimate_rates(statistics.transitions, old_chain)
            return ContinuousHMMParams(initial_probs, generator=generator, **columns)
        return HMMParams(
            initial_probs, _normalise_counts(statistics.transitions, old_chain), **columns
        )

    def penalty(self, params: HMMParams) -> float:
        """Return the log density of the Dirichlet behind the smoothing, up to a constant."""
        if self.category_smoothing == 0.0:
            return 0.0
        probs = join_columns(params.category_probs, params.n_states)
        return self.category_smoothing * float(np.log(probs).sum())

    def floored_share(self, params: HMMParams) -> float:
        """Return the share of variances that sit on the floor."""
        if not params.variances.size:
            return 0.0
        return float((params.variances <= self.min_variances).mean())

    def _category_probs(self, statistics: Statistics, previous: HMMParams | None) -> Array:
        smoothed = statistics.categories + self.category_smoothing
        sizes = statistics.n_categories
        total = column_sums(smoothed, sizes)
        has_rows = total > NO_EVIDENCE
        if previous is None:
            fallback = 1.0 / column_sums(np.ones(smoothed.shape), sizes)
        else:
            fallback = join_columns(previous.category_probs, previous.n_states)
        return np.where(has_rows, smoothed / np.where(has_rows, total, 1.0), fallback)


def _normalise_counts(counts: Array, previous: Array | None) -> Array:
    """Return rows of counts as probabilities. Zeros, and rows without counts, stay as they were."""
    total = counts.sum(axis=-1, keepdims=True)
    has_rows = total > NO_EVIDENCE
    fallback = np.full(counts.shape, 1.0 / counts.shape[-1]) if previous is None else previous
    probs = np.where(has_rows, counts / np.where(has_rows, total, 1.0), fallback)
    probs = np.maximum(probs, _MIN_PROBABILITY)
    if previous is not None:
        probs = np.where(previous > 0.0, probs, 0.0)
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True))


def _estimate_rates(jumps: Array, previous: Array | None) -> Array:
    """Return the generator from jumps [K, K], which have the hours in a state on the diagonal.

    Zeros, and states without hours, stay as they were.
    """
    hours = np.diag(jumps)[:, None]
    has_hours = hours > NO_EVIDENCE
    fallback = np.full(jumps.shape, _START_RATE) if previous is None else previous
    rates = np.where(has_hours, jumps / np.where(has_hours, hours, 1.0), fallback)
    rates = np.maximum(rates, _MIN_RATE)
    if previous is not None:
        rates = np.where(previous > 0.0, rates, 0.0)
    return limit_rates(build_generator(rates))


def build_point_model(params: HMMParams) -> LogModel:
    """Return the log model at point parameters."""
    categories = join_columns(params.category_probs, params.n_states)
    return LogModel(
        log_initial=log_allowing_zero(params.initial_probs),
        log_transition=log_allowing_zero(params.transition_matrix),
        generator=get_generator(params),
        means=params.means,
        scales=1.0 / np.sqrt(params.variances),
        constants=-0.5 * (LOG_TWO_PI + np.log(params.variances)),
        log_categories=np.log(np.maximum(categories, _MIN_CATEGORY_PROBABILITY)),
        n_categories=params.n_categories,
    )


@dataclass(eq=False, repr=False, kw_only=True)
class BaumWelchHMM(HiddenMarkovModel[HMMParams]):
    """HMM by maximum likelihood, with diagonal-Gaussian and categorical emissions.

    Missing cells are left out of the likelihood.

    Parameters
    ----------
    n_states
        Number of hidden states (regimes) K.
    n_restarts, random_state
        Number of k-means++ starts, with seeds ``random_state + 137 r``. The best bound wins.
    max_iter, tol
        Maximum iterations, and the change per transaction (in nats) that counts as convergence.
    variance_floor
        Minimum variance, as a share of the column's overall variance; at least 1e-12.
    category_smoothing
        Pseudo-count of every category, so that an unseen category is rare and not impossible.
    restart_halving
        Drop the worse half of the restarts early instead of running all of them to the end.
    precision
        Working precision of the kernels: ``"float32"`` or ``"float64"``. Totals are float64.
    n_threads
        Number of threads; all processors by default. The result does not depend on it.
    init
        Parameters to start from, in place of restarts.
    progress
        Show a progress bar; by default only on a terminal.
    temperature
        Divides the emissions' log densities when scoring. Fitting does not use it.
    weights
        Weights of the columns' log densities when scoring, at least 0: continuous columns, then
        categorical ones. Columns of weight 0 take no part in the fit; None is 1 for all.
    transitions
        ``"per-row"``: one transition matrix between neighbouring rows. ``"continuous"``: rates per
        hour, so that transitions depend on the time between rows. Panels then need `times`.
    max_passes
        For data too large for many passes: fit a sample first, then go through all rows at most so
        many times (2 or more) and update the parameters after each batch of sequences. None
        iterates over all rows until the bound converges. `n_restarts` and `max_iter` then apply to
        the sample, and `fit_report_` to the second pass and later ones (docs/engine.md).

    Attributes
    ----------
    params_ : HMMParams
        The fitted parameters.
    lower_bound_ : float
        Log-likelihood plus the log density of the smoothing's Dirichlet, at `params_`.
    fit_report_ : FitReport
        Convergence, every restart, floors, empty states, decreases of the bound.
    """

    params_types = MappingProxyType({"per-row": HMMParams, "continuous": ContinuousHMMParams})

    variance_floor: rule.NotNegative = 1e-3
    category_smoothing: rule.NotNegative = 0.1

    @classmethod
    def paper(cls, n_states: int, **overrides: Any) -> Self:
        """Return a model with the published settings: five full restarts, tolerance 1e-3."""
        return cls(n_states, **{"tol": 1e-3, "restart_halving": False, **overrides})

    def _build_algorithm(
        self, columns: ColumnMoments, n_categories: tuple[int, ...]
    ) -> MaximumLikelihood:
        floors = max(self.variance_floor, _MIN_FLOOR) * columns.variances
        smoothing, is_continuous = self.category_smoothing, self.transitions == "continuous"
        return MaximumLikelihood(floors, columns.variances, smoothing, is_continuous)

    def _build_log_model(self, params: HMMParams) -> LogModel:
        return build_point_model(params)
