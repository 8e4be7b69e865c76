"""From the oracles' plain arrays to Turncoat's public objects and back.

The only place here that knows both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turncoat import (
    Anchors,
    BaumWelchHMM,
    HMMParams,
    Panel,
    Prior,
    VariationalHMM,
    VariationalParams,
)

from .enumeration import Factors
from .evidence import Hyper
from .problems import Problem

QUIET: dict[str, Any] = {"n_restarts": 1, "precision": "float64", "n_threads": 1}


def panel_of(problem: Problem) -> Panel:
    """The problem's rows as a panel."""
    return Panel.from_arrays(
        continuous=problem.continuous if problem.continuous.shape[1] else None,
        categorical=problem.categorical if problem.categorical.shape[1] else None,
        lengths=problem.lengths,
        n_categories=problem.n_categories or None,
    )


def anchors_of(problem: Problem) -> Anchors | None:
    """The problem's anchors, if any."""
    if problem.codes is None or problem.allowed_states is None:
        return None
    return Anchors(problem.codes, problem.allowed_states, noise=problem.noise)


def params_of(problem: Problem) -> HMMParams:
    """The problem's parameters."""
    return HMMParams(
        initial_probs=problem.initial,
        transition_matrix=problem.transition,
        means=problem.means,
        variances=problem.variances,
        category_probs=problem.category_probs,
    )


def baum_welch(problem: Problem, **options: Any) -> BaumWelchHMM:
    """An unfitted-but-known tier-1 model at the problem's parameters."""
    return BaumWelchHMM.from_params(params_of(problem), **{"precision": "float64", **options})


def posterior_of(factors: Factors) -> VariationalParams:
    """Variational factors as parameters."""
    return VariationalParams(
        initial_concentration=factors.initial,
        transition_concentration=factors.transition,
        location=factors.location,
        mean_strength=factors.mean_strength,
        dof=factors.dof,
        scale=factors.scale,
        category_concentration=factors.category,
    )


def variational(factors: Factors, **options: Any) -> VariationalHMM:
    """A tier-2 model at these factors."""
    return VariationalHMM.from_params(posterior_of(factors), **{"precision": "float64", **options})


def factors_of(model: VariationalHMM) -> Factors:
    """A fitted tier-2 model's posterior as the oracles write it."""
    params = model.params_
    shape = (len(params.initial_concentration), np.asarray(params.location).shape[1])
    return Factors(
        initial=np.asarray(params.initial_concentration, dtype=float),
        transition=np.asarray(params.transition_concentration, dtype=float),
        location=np.asarray(params.location, dtype=float),
        mean_strength=np.broadcast_to(np.asarray(params.mean_strength, dtype=float), shape),
        dof=np.broadcast_to(np.asarray(params.dof, dtype=float), shape),
        scale=np.asarray(params.scale, dtype=float),
        category=tuple(np.asarray(table, dtype=float) for table in params.category_concentration),
    )


def prior_of(hyper: Hyper) -> Prior:
    """A Turncoat prior with these numbers."""
    return Prior(
        initial=hyper.initial,
        transition=hyper.transition,
        sticky=hyper.sticky,
        category=hyper.category,
        mean=hyper.mean,
        mean_strength=hyper.mean_strength,
        dof=hyper.dof,
        scale=hyper.scale,
        standardised=False,
    )


def arrays_of(params: HMMParams | VariationalParams) -> list[np.ndarray[Any, Any]]:
    """Every array of a parameter set, in a fixed order, for bitwise comparison."""
    if isinstance(params, HMMParams):
        head = [params.initial_probs, params.transition_matrix, params.means, params.variances]
        return [np.asarray(part) for part in (*head, *params.category_probs)]
    head = [params.initial_concentration, params.transition_concentration, params.location]
    head += [params.mean_strength, params.dof, params.scale]
    return [np.asarray(part) for part in (*head, *params.category_concentration)]
