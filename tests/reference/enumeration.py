"""Brute force over all K^T hidden paths of one sequence, in float64.

Slow, short, and hard to get wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, logsumexp
from scipy.stats import t as student_t

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Enumeration:
    """All that the paths of one sequence say: T rows, K states."""

    log_likelihood: float
    filtered: Array  # [T, K]
    smoothed: Array  # [T, K]
    pairs: Array  # [T - 1, K, K]: posterior of (state at t, state at t + 1)
    path: Ints  # [T]
    path_log_prob: float  # log of the joint weight of the best path
    path_margin: (
        float  # by how much it beats the second best: paths that permute the same moves tie exactly
    )

    @property
    def initial(self) -> Array:
        """Posterior of the first state."""
        return self.smoothed[0]

    @property
    def transitions(self) -> Array:
        """Expected transition counts, [K, K]."""
        return self.pairs.sum(axis=0)


def log(values: Array) -> Array:
    """Logarithm with log 0 = -inf and no warning."""
    with np.errstate(divide="ignore"):
        return np.log(values)


def all_paths(n_states: int, length: int) -> Ints:
    """Every path, [K^T, T]."""
    return np.array(list(product(range(n_states), repeat=length)), dtype=np.int64).reshape(
        -1, length
    )


def path_log_probs(
    paths: Ints, log_initial: Array, log_transition: Array, log_emission: Array
) -> Array:
    """Joint log weight of each path and its observations, [P].

    The weights need not be normalised (variational E-step). Transitions are [K, K], or
    [T - 1, K, K] where each has its own.
    """
    length, shape = paths.shape[1], log_transition.shape[-2:]
    total = log_initial[paths[:, 0]] + log_emission[np.arange(length), paths].sum(axis=1)
    by_row = np.broadcast_to(log_transition, (length - 1, *shape))
    return total + by_row[np.arange(length - 1), paths[:, :-1], paths[:, 1:]].sum(axis=1)


def enumerate_paths(log_initial: Array, log_transition: Array, log_emission: Array) -> Enumeration:
    """Sum over all paths of one sequence with emission log weights [T, K]."""
    length, n_states = log_emission.shape
    paths = all_paths(n_states, length)
    joint = path_log_probs(paths, log_initial, log_transition, log_emission)
    log_likelihood = float(logsumexp(joint))
    weight = np.exp(joint - log_likelihood)

    smoothed = np.zeros((length, n_states))
    for row in range(length):
        np.add.at(smoothed[row], paths[:, row], weight)
    pairs = np.zeros((length - 1, n_states, n_states))
    for row in range(length - 1):
        np.add.at(pairs[row], (paths[:, row], paths[:, row + 1]), weight)

    filtered = np.zeros((length, n_states))
    for row in range(length):  # each row from the prefixes that end there, knowing nothing later
        prefixes = all_paths(n_states, row + 1)
        moves = log_transition[:row] if log_transition.ndim == 3 else log_transition
        prefix_joint = path_log_probs(prefixes, log_initial, moves, log_emission[: row + 1])
        np.add.at(filtered[row], prefixes[:, -1], np.exp(prefix_joint - logsumexp(prefix_joint)))

    best = int(np.argmax(joint))
    margin = float(joint[best] - np.delete(joint, best).max(initial=-np.inf))
    return Enumeration(
        log_likelihood, filtered, smoothed, pairs, paths[best], float(joint[best]), margin
    )


def log_emissions(
    continuous: Array,
    categorical: Ints,
    means: Array,
    variances: Array,
    category_probs: Sequence[Array],
) -> Array:
    """Log density of each row under each state, [N, K]; a missing cell (NaN, -1) has factor one."""
    result = np.zeros((len(continuous), len(means)))
    for column, values in enumerate(continuous.T):
        for row in np.flatnonzero(~np.isnan(values)):
            variance = variances[:, column]
            result[row] -= 0.5 * (
                np.log(2 * np.pi * variance) + (values[row] - means[:, column]) ** 2 / variance
            )
    for column, codes in enumerate(categorical.T):
        for row in np.flatnonzero(codes >= 0):
            result[row] += log(category_probs[column][:, codes[row]])
    return result


def anchor_log_weights(codes: Ints, allowed_states: NDArray[np.bool_], noise: float) -> Array:
    """Log of (1 - noise) for states that the row's code allows, of noise for the others.

    0 for a free row; [N, K].
    """
    result = np.zeros((len(codes), allowed_states.shape[1]))
    for row, code in enumerate(codes):
        if code >= 0:
            result[row] = log(np.where(allowed_states[code], 1.0 - noise, noise))
    return result


@dataclass(frozen=True)
class Factors:
    """A mean-field posterior over the parameters.

    Dirichlets and one Normal-Gamma for each state and column.
    """

    initial: Array  # [K]
    transition: Array  # [K, K]
    location: Array  # [K, D] m
    mean_strength: Array  # [K, D] kappa
    dof: Array  # [K, D] nu = 2a
    scale: Array  # [K, D] S = 2b
    category: tuple[Array, ...]  # [K, C_j]

    def expected_log_initial(self) -> Array:
        """E[log pi]."""
        return dirichlet_expected_log(self.initial)

    def expected_log_transition(self) -> Array:
        """E[log A]."""
        return dirichlet_expected_log(self.transition)

    def expected_log_emissions(self, continuous: Array, categorical: Ints) -> Array:
        """E[log b] of each row under each state, [N, K]."""
        result = np.zeros((len(continuous), len(self.initial)))
        for row, (numbers, codes) in enumerate(zip(continuous, categorical, strict=True)):
            for state in range(len(self.initial)):
                for column, value in enumerate(numbers):
                    if not np.isnan(value):
                        m, kappa = self.location[state, column], self.mean_strength[state, column]
                        shape, rate = self.dof[state, column] / 2, self.scale[state, column] / 2
                        expected_log_precision = digamma(shape) - np.log(rate)
                        expected_square = shape / rate * (value - m) ** 2 + 1 / kappa
                        result[row, state] += 0.5 * (
                            expected_log_precision - np.log(2 * np.pi) - expected_square
                        )
                for column, code in enumerate(codes):
                    if code >= 0:
                        result[row, state] += dirichlet_expected_log(self.category[column][state])[
                            code
                        ]
        return result

    def predictive_log_emissions(self, continuous: Array, categorical: Ints) -> Array:
        """Log of the posterior predictive density (Student-t.

        Posterior-mean categories) of each row, [N, K].
        """
        result = np.zeros((len(continuous), len(self.initial)))
        for row, (numbers, codes) in enumerate(zip(continuous, categorical, strict=True)):
            for state in range(len(self.initial)):
                for column, value in enumerate(numbers):
                    if not np.isnan(value):
                        kappa, nu = self.mean_strength[state, column], self.dof[state, column]
                        spread = np.sqrt(self.scale[state, column] * (kappa + 1) / (nu * kappa))
                        result[row, state] += student_t.logpdf(
                            value, nu, self.location[state, column], spread
                        )
                for column, code in enumerate(codes):
                    if code >= 0:
                        alpha = self.category[column][state]
                        result[row, state] += np.log(alpha[code] / alpha.sum())
        return result


def dirichlet_expected_log(concentration: Array) -> Array:
    """E[log p] under a Dirichlet (last axis)."""
    result: Array = digamma(concentration) - digamma(concentration.sum(axis=-1, keepdims=True))
    return result


def weighted_moments(continuous: Array, smoothed: Array) -> tuple[Array, Array, Array]:
    """Weight.

    Mean and sum of squares about the mean of each state and column over the observed cells,
    each [K, D].
    """
    n_states, n_columns = smoothed.shape[1], continuous.shape[1]
    weight, mean, squares = (np.zeros((n_states, n_columns)) for _ in range(3))
    for column in range(n_columns):
        seen = ~np.isnan(continuous[:, column])
        value = continuous[seen, column]
        for state in range(n_states):
            gamma = smoothed[seen, state]
            weight[state, column] = gamma.sum()
            if weight[state, column] > 0:
                mean[state, column] = gamma @ value / gamma.sum()
                squares[state, column] = gamma @ (value - mean[state, column]) ** 2
    return weight, mean, squares


def weighted_counts(
    categorical: Ints, smoothed: Array, n_categories: Sequence[int]
) -> tuple[Array, ...]:
    """Expected category counts of each state over the observed cells.

    One [K, C_j] for each column.
    """
    counts = tuple(np.zeros((smoothed.shape[1], size)) for size in n_categories)
    for column, table in enumerate(counts):
        for row, code in enumerate(categorical[:, column]):
            if code >= 0:
                table[:, code] += smoothed[row]
    return counts
