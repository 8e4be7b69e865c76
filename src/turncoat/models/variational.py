"""Tier 2: the HMM with a posterior over its parameters, fitted by variational Bayes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma, gammaln

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models import validation as rule
from turncoat.models.anchors import Anchors
from turncoat.models.base import HiddenMarkovModel, Plan, select_sequences
from turncoat.models.estimator import refuse_anchors
from turncoat.models.fit_rows import FitRows, PackedRows, PanelRows
from turncoat.models.fitting import NO_EVIDENCE
from turncoat.models.initialisation import ColumnMoments
from turncoat.models.parameters import (
    ContinuousVariationalParams,
    Prior,
    VariationalParams,
    get_generator,
)
from turncoat.numerics.conjugate import (
    category_divergence,
    dirichlet_divergence,
    expected_log_categories,
    expected_log_probs,
    gamma_divergence,
    normal_gamma_divergence,
)
from turncoat.numerics.generators import limit_rates, transition_over
from turncoat.numerics.layout import LOG_TWO_PI, LogModel, Statistics, log_allowing_zero
from turncoat.numerics.structures import join_columns, split_columns
from turncoat.panel import PanelLike, as_panel

ROBUST_DOF = 4.0
MIN_WIDTH = 0.1  # of the column's standard deviation
MAX_DISTANCE = 10.0  # widths


@dataclass(frozen=True)
class VariationalBayes:
    """Updates of the Dirichlet and Normal-Gamma posteriors (see docs/notation.md)."""

    prior: VariationalParams  # in the same form as a posterior: of every state and column

    def build_log_model(self, params: VariationalParams) -> LogModel:
        """Return the expected log densities under the posterior."""
        return build_expected_log_model(params)

    def update(self, statistics: Statistics, previous: object) -> VariationalParams:
        """Return the prior plus the expected counts; a missing cell adds to no count."""
        prior, counts = self.prior, np.maximum(statistics.observed, 0.0)
        weight = np.where(counts > NO_EVIDENCE, counts, 1.0)
        step = statistics.first / weight
        average = statistics.reference + step
        scatter = np.maximum(statistics.second - statistics.first * step, 0.0)
        strength = prior.mean_strength + counts
        shrinkage = prior.mean_strength * counts / strength * (average - prior.location) ** 2
        categories = join_columns(prior.category_concentration, prior.n_states)
        return replace(
            prior,
            initial_concentration=prior.initial_concentration + statistics.initial,
            transition_concentration=prior.transition_concentration + statistics.transitions,
            location=(prior.mean_strength * prior.location + counts * average) / strength,
            mean_strength=strength,
            dof=prior.dof + counts,
            scale=prior.scale + scatter + shrinkage,
            category_concentration=split_columns(
                categories + statistics.categories, statistics.n_categories
            ),
        )

    def penalty(self, params: VariationalParams) -> float:
        """Return minus the divergence from the prior: a term of the ELBO (E5 in docs/errata.md)."""
        prior, k = self.prior, params.n_states
        categories, own_categories = (
            join_columns(one.category_concentration, k) for one in (params, prior)
        )
        columns, own_columns = (
            (one.location, one.mean_strength, one.dof, one.scale) for one in (params, prior)
        )
        initial, own_initial = params.initial_concentration[None], prior.initial_concentration
        return -(
            dirichlet_divergence(initial, own_initial)
            + self._chain_divergence(params)
            + normal_gamma_divergence(columns, own_columns)
            + category_divergence(categories, own_categories, params.n_categories)
        )

    def _chain_divergence(self, params: VariationalParams) -> float:
        posterior, prior = params.transition_concentration, self.prior.transition_concentration
        if params.transitions == "per-row":
            return dirichlet_divergence(posterior, prior)
        jumps = ~np.eye(params.n_states, dtype=bool)
        hours = np.diag(posterior)[:, None], np.diag(prior)[:, None]
        return float(gamma_divergence(posterior, hours[0], prior, hours[1])[jumps].sum())

    def floored_share(self, params: VariationalParams) -> float:
        """Return 0: the prior keeps variances up, so there is no floor."""
        return 0.0


def build_expected_log_model(params: VariationalParams) -> LogModel:
    """Return E[log .] under the posterior: used by the E-step, and by default for scoring."""
    expected_log_precision = digamma(params.dof / 2.0) - np.log(params.scale / 2.0)
    categories = join_columns(params.category_concentration, params.n_states)
    generator = None
    if isinstance(params, ContinuousVariationalParams):
        generator = limit_rates(params.expected_log_generator)
        log_transition = log_allowing_zero(transition_over(generator, 1.0))
    else:
        log_transition = expected_log_probs(params.transition_concentration)
    return LogModel(
        log_initial=expected_log_probs(params.initial_concentration),
        log_transition=log_transition,
        generator=generator,
        means=params.location,
        scales=np.sqrt(params.dof / params.scale),
        constants=0.5 * (expected_log_precision - LOG_TWO_PI - 1.0 / params.mean_strength),
        log_categories=expected_log_categories(categories, params.n_categories),
        n_categories=params.n_categories,
    )


def build_predictive_model(params: VariationalParams) -> LogModel:
    """Return the posterior predictive: Student-t columns, posterior-mean probabilities."""
    dof, strength = params.dof, params.mean_strength
    width = np.sqrt(params.scale * (strength + 1.0) / (dof * strength))
    log_norm = gammaln((dof + 1.0) / 2.0) - gammaln(dof / 2.0) - 0.5 * np.log(dof * np.pi)
    return LogModel(
        log_initial=log_allowing_zero(params.initial_probs),
        log_transition=log_allowing_zero(params.transition_matrix),
        generator=get_generator(params),
        means=params.location,
        scales=1.0 / width,
        constants=log_norm - np.log(width),
        log_categories=np.log(join_columns(params.category_probs, params.n_states)),
        n_categories=params.n_categories,
        dof=dof,
    )


def build_robust_model(params: VariationalParams) -> LogModel:
    """Return the predictive with heavy tails and limits, so that no single cell decides alone.

    Student columns have at most `ROBUST_DOF` degrees of freedom, are at least `MIN_WIDTH` wide and
    flat beyond `MAX_DISTANCE` widths.
    """
    model = build_predictive_model(params)
    dof, width = np.minimum(params.dof, ROBUST_DOF), np.maximum(1.0 / model.scales, MIN_WIDTH)
    log_norm = gammaln((dof + 1.0) / 2.0) - gammaln(dof / 2.0) - 0.5 * np.log(dof * np.pi)
    limit = 1.0 + MAX_DISTANCE**2 / ROBUST_DOF
    constants = log_norm - np.log(width)
    return replace(model, scales=1.0 / width, constants=constants, dof=dof, max_ratio=limit)


EMISSIONS = {
    "expected-log": build_expected_log_model,
    "predictive": build_predictive_model,
    "robust": build_robust_model,
}


@dataclass(eq=False, repr=False, kw_only=True)
class VariationalHMM(HiddenMarkovModel[VariationalParams]):
    """HMM by variational Bayes: a posterior over every parameter, and a bound on the evidence.

    Parameters
    ----------
    n_states, n_restarts, max_iter, tol, restart_halving, random_state, precision, n_threads, init,
    progress, temperature, weights, transitions, max_passes
        As in `BaumWelchHMM`.
    prior
        `Prior.weak()` by default, which follows the columns' means and variances; `Prior.paper()`
        is the published one, whatever the columns' units.
    emission
        How sequences are scored: ``"expected-log"`` (as in fitting); ``"predictive"``, which
        integrates out the posterior: Student-t columns and posterior-mean probabilities; or
        ``"robust"``, the predictive with heavy tails and limits, for standardised columns, so that
        a single field can move the log odds by a limited amount only (docs/scores.md).

    Attributes
    ----------
    params_ : VariationalParams
        The fitted posterior.
    lower_bound_ : float
        The evidence lower bound (ELBO) at `params_`.
    fit_report_ : FitReport
        Convergence, every restart, floors, empty states, decreases of the bound.
    """

    __metadata_request__partial_fit: ClassVar = {"lengths": True, "groups": True}

    params_types = MappingProxyType(
        {"per-row": VariationalParams, "continuous": ContinuousVariationalParams}
    )

    prior: Annotated[Prior | None, rule.or_none(rule.instance_of("a Prior", Prior))] = None
    emission: Annotated[str, rule.one_of(*EMISSIONS)] = "expected-log"

    @classmethod
    def paper(cls, n_states: int, **overrides: Any) -> Self:
        """Return a model with the published prior and settings: five full restarts, tol 1e-3."""
        published = {"prior": Prior.paper(), "tol": 1e-3, "restart_halving": False}
        return cls(n_states, **{**published, **overrides})

    def partial_fit(
        self,
        X: PanelLike,
        y: object = None,
        *,
        lengths: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        anchors: Anchors | None = None,
    ) -> Self:
        """Add rows to a fit: the posterior so far is their prior. Without one, this is `fit`.

        Every sequence starts anew, also that of a customer whose earlier rows are in the posterior.
        `lower_bound_` is then that of the new rows, given the earlier ones. There are no restarts.
        """
        options: dict[str, Any] = {"sample_weight": sample_weight, "anchors": anchors}
        if not hasattr(self, "params_"):
            return self.fit(X, y, lengths=lengths, groups=groups, **options)
        refuse_anchors(y)
        panel = as_panel(X, lengths, groups)
        params = self._get_params()
        panel.check_columns(params.means.shape[1], params.n_categories, "model")
        panel = replace(panel, n_categories=params.n_categories)  # it may not have met all
        return self.partial_fit_rows(PanelRows(*select_sequences(panel, anchors, sample_weight)))

    def partial_fit_rows(self, rows: FitRows) -> Self:
        """Add rows that need not be in memory; `partial_fit` does so for a panel."""
        self.check_settings(for_fit=False)
        params = self._get_params()
        if params.n_states != self.n_states:
            found = f"the posterior has {params.n_states} states but n_states is {self.n_states}"
            raise ConfigError(f"{found}. Refit")
        known = params.means.shape[1], params.n_categories
        if (rows.n_continuous, rows.n_categories) != known:
            described = f"{known[0]} continuous columns and categories {known[1]}"
            given = f"the rows have {rows.n_continuous} and {rows.n_categories}"
            raise DataError(f"the posterior describes {described}; {given}")

        def prepare(packed: PackedRows, is_fitted: Array) -> Plan[VariationalParams]:
            prior = params.take_columns(is_fitted)
            return Plan.from_params(VariationalBayes(prior), prior, self.random_state)

        return self._fit(rows, prepare)

    def _build_algorithm(
        self, columns: ColumnMoments, n_categories: tuple[int, ...]
    ) -> VariationalBayes:
        prior, moments = self.prior or self._default_prior(), (columns.means, columns.variances)
        params_type = self.params_types[self.transitions]
        return VariationalBayes(prior.to_params(self.n_states, *moments, n_categories, params_type))

    def _default_prior(self) -> Prior:
        return Prior.weak()

    def _build_log_model(self, params: VariationalParams) -> LogModel:
        return EMISSIONS[self.emission](params)
