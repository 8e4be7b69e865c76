"""A plain log-domain forward-backward and Viterbi for sequences too long to enumerate.

Float64, one row at a time, nothing clever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from .enumeration import Array, Ints


@dataclass(frozen=True)
class ForwardBackward:
    """The same quantities as an enumeration, of one sequence."""

    log_likelihood: float
    filtered: Array  # [T, K]
    smoothed: Array  # [T, K]
    transitions: Array  # [K, K]


def forward_backward(
    log_initial: Array, log_transition: Array, log_emission: Array
) -> ForwardBackward:
    """Textbook recursions on logarithms."""
    length, n_states = log_emission.shape
    alpha = np.empty((length, n_states))
    beta = np.zeros((length, n_states))
    alpha[0] = log_initial + log_emission[0]
    for row in range(1, length):
        alpha[row] = logsumexp(alpha[row - 1][:, None] + log_transition, axis=0) + log_emission[row]
    for row in range(length - 2, -1, -1):
        beta[row] = logsumexp(log_transition + log_emission[row + 1] + beta[row + 1], axis=1)
    log_likelihood = float(logsumexp(alpha[-1]))
    filtered = np.exp(alpha - logsumexp(alpha, axis=1, keepdims=True))
    smoothed = np.exp(alpha + beta - log_likelihood)
    transitions = np.zeros((n_states, n_states))
    for row in range(length - 1):
        transitions += np.exp(
            alpha[row][:, None]
            + log_transition
            + log_emission[row + 1]
            + beta[row + 1]
            - log_likelihood
        )
    return ForwardBackward(log_likelihood, filtered, smoothed, transitions)


def viterbi(log_initial: Array, log_transition: Array, log_emission: Array) -> Ints:
    """The most probable path."""
    length, n_states = log_emission.shape
    score = log_initial + log_emission[0]
    back = np.zeros((length, n_states), dtype=np.int64)
    for row in range(1, length):
        candidates = score[:, None] + log_transition
        back[row] = candidates.argmax(axis=0)
        score = candidates.max(axis=0) + log_emission[row]
    path = np.empty(length, dtype=np.int64)
    path[-1] = score.argmax()
    for row in range(length - 1, 0, -1):
        path[row - 1] = back[row, path[row]]
    return path
