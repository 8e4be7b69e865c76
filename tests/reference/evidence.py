"""Closed forms.

Conjugate evidence (one state, or summed over every hidden path), KL divergences, the ELBO and its
coordinate updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.special import digamma, gammaln, logsumexp

from .enumeration import Array, Factors, Ints, all_paths, weighted_counts, weighted_moments


@dataclass(frozen=True)
class Hyper:
    """Prior hyperparameters as numbers.

    Mu | lambda ~ N(mean, 1 / (mean_strength lambda)), lambda ~ Gamma(dof / 2, rate = scale /
    2).
    """

    initial: float = 1.0
    transition: float = 1.0
    sticky: float = 4.0
    category: float = 1.0
    mean: float = 0.0
    mean_strength: float = 1.0
    dof: float = 5.0
    scale: float = 3.0

    @classmethod
    def paper(cls, n_columns: int) -> Hyper:
        """The paper's prior for raw features: nu0 = D + 1, S0 = 1, kappa0 = 1, m0 = 0."""
        return cls(dof=n_columns + 1.0, scale=1.0)

    def factors(self, n_states: int, n_columns: int, n_categories: Sequence[int]) -> Factors:
        """The prior itself, as factors."""
        shape = (n_states, n_columns)
        return Factors(
            initial=np.full(n_states, self.initial),
            transition=np.full((n_states, n_states), self.transition)
            + self.sticky * np.eye(n_states),
            location=np.full(shape, self.mean),
            mean_strength=np.full(shape, self.mean_strength),
            dof=np.full(shape, self.dof),
            scale=np.full(shape, self.scale),
            category=tuple(np.full((n_states, size), self.category) for size in n_categories),
        )


def normal_gamma_log_evidence(values: Array, prior: Hyper) -> float:
    """Log marginal density of iid normal values with mean and precision integrated out."""
    n = len(values)
    if n == 0:
        return 0.0
    shape0, rate0, kappa0 = prior.dof / 2, prior.scale / 2, prior.mean_strength
    average = values.mean()
    squares = ((values - average) ** 2).sum()
    kappa, shape = kappa0 + n, shape0 + n / 2
    rate = rate0 + squares / 2 + kappa0 * n * (average - prior.mean) ** 2 / (2 * kappa)
    return float(
        gammaln(shape)
        - gammaln(shape0)
        + shape0 * np.log(rate0)
        - shape * np.log(rate)
        + 0.5 * np.log(kappa0 / kappa)
        - n / 2 * np.log(2 * np.pi)
    )


def dirichlet_log_evidence(counts: Array, concentration: Array) -> float:
    """Log probability of an ordered sequence of categories with these counts.

    Probabilities integrated out.
    """
    return float(
        gammaln(concentration.sum())
        - gammaln(concentration.sum() + counts.sum())
        + (gammaln(concentration + counts) - gammaln(concentration)).sum()
    )


def iid_log_evidence(
    continuous: Array, categorical: Ints, n_categories: Sequence[int], prior: Hyper
) -> float:
    """Log evidence of rows that share one state.

    The columns are independent, missing cells drop out. This is K = 1, whose chain adds 0.
    """
    total = 0.0
    for column in continuous.T:
        total += normal_gamma_log_evidence(column[~np.isnan(column)], prior)
    for column, size in zip(categorical.T, n_categories, strict=True):
        counts = np.bincount(column[column >= 0], minlength=size).astype(float)
        total += dirichlet_log_evidence(counts, np.full(size, prior.category))
    return total


def chain_log_evidence(paths: Sequence[Ints], n_states: int, prior: Hyper) -> float:
    """Log probability of hidden paths, with the chain's parameters integrated out."""
    first = np.zeros(n_states)
    moves = np.zeros((n_states, n_states))
    for path in paths:
        first[path[0]] += 1
        for before, after in pairwise(path):
            moves[before, after] += 1
    rows = prior.factors(n_states, 0, ()).transition
    total = dirichlet_log_evidence(first, np.full(n_states, prior.initial))
    return total + sum(
        dirichlet_log_evidence(moves[state], rows[state]) for state in range(n_states)
    )


def exact_log_evidence(
    continuous: Array,
    categorical: Ints,
    n_categories: Sequence[int],
    lengths: Sequence[int],
    n_states: int,
    prior: Hyper,
) -> float:
    """Log evidence of a whole tiny panel.

    For each joint hidden path everything integrates in closed form; sum over all paths.
    """
    ends = np.cumsum(lengths)[:-1]
    terms = []
    for path in all_paths(n_states, len(continuous)):
        term = chain_log_evidence(np.split(path, ends), n_states, prior)
        for state in range(n_states):
            mine = path == state
            term += iid_log_evidence(continuous[mine], categorical[mine], n_categories, prior)
        terms.append(term)
    return float(logsumexp(terms))


def dirichlet_kl(q: Array, p: Array) -> float:
    """KL(Dir(q) || Dir(p)); zero for a single component."""
    expected_log = digamma(q) - digamma(q.sum())
    return float(
        gammaln(q.sum())
        - gammaln(p.sum())
        + (gammaln(p) - gammaln(q)).sum()
        + ((q - p) * expected_log).sum()
    )


def normal_gamma_kl(m: float, kappa: float, nu: float, s: float, prior: Hyper) -> float:
    """KL(NG(m, kappa, nu / 2, s / 2) || prior).

    The gamma's KL plus the expected KL of the normals given the precision.
    """
    shape, rate, shape0, rate0 = nu / 2, s / 2, prior.dof / 2, prior.scale / 2
    gammas = (
        (shape - shape0) * digamma(shape)
        - gammaln(shape)
        + gammaln(shape0)
        + shape0 * (np.log(rate) - np.log(rate0))
        + shape * (rate0 - rate) / rate
    )
    ratio = prior.mean_strength / kappa
    normals = 0.5 * (
        ratio - 1 - np.log(ratio) + prior.mean_strength * shape / rate * (m - prior.mean) ** 2
    )
    return float(gammas + normals)


def total_kl(q: Factors, prior: Hyper) -> float:
    """KL of all the factors from the prior."""
    n_states, n_columns = q.location.shape
    p = prior.factors(n_states, n_columns, [table.shape[1] for table in q.category])
    total = dirichlet_kl(q.initial, p.initial)
    for state in range(n_states):
        total += dirichlet_kl(q.transition[state], p.transition[state])
        for column in range(n_columns):
            cell = (state, column)
            total += normal_gamma_kl(
                q.location[cell], q.mean_strength[cell], q.dof[cell], q.scale[cell], prior
            )
        total += sum(
            dirichlet_kl(mine[state], theirs[state])
            for mine, theirs in zip(q.category, p.category, strict=True)
        )
    return total


def update(
    continuous: Array,
    categorical: Ints,
    n_categories: Sequence[int],
    smoothed: Array,
    initial: Array,
    transitions: Array,
    prior: Hyper,
) -> Factors:
    """The coordinate update of every factor from state posteriors [N, K].

    First-state sums [K] and expected transition counts [K, K].
    """
    p = prior.factors(smoothed.shape[1], continuous.shape[1], n_categories)
    weight, average, squares = weighted_moments(continuous, smoothed)
    kappa = p.mean_strength + weight
    return Factors(
        initial=p.initial + initial,
        transition=p.transition + transitions,
        location=(p.mean_strength * p.location + weight * average) / kappa,
        mean_strength=kappa,
        dof=p.dof + weight,
        scale=p.scale + squares + p.mean_strength * weight / kappa * (average - p.location) ** 2,
        category=tuple(
            a + b
            for a, b in zip(
                p.category, weighted_counts(categorical, smoothed, n_categories), strict=True
            )
        ),
    )
