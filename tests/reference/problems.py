"""Random hidden Markov problems with a plain NumPy sampler.

Parameters, ragged sequences, missing cells, zeros, anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .enumeration import (
    Array,
    Enumeration,
    Factors,
    Ints,
    anchor_log_weights,
    enumerate_paths,
    log,
    log_emissions,
)
from .logdomain import ForwardBackward, forward_backward

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Parameters, a panel drawn from them and, where anchored.

    Anchors that the drawn states satisfy (unless noise > 0).
    """

    initial: Array
    transition: Array
    means: Array
    variances: Array
    category_probs: tuple[Array, ...]
    lengths: Ints
    states: Ints
    continuous: Array
    categorical: Ints
    codes: Ints | None = None
    allowed_states: NDArray[np.bool_] | None = None
    noise: float = 0.0

    @property
    def n_states(self) -> int:
        """K."""
        return len(self.initial)

    @property
    def n_categories(self) -> tuple[int, ...]:
        """C_j."""
        return tuple(table.shape[1] for table in self.category_probs)

    @property
    def offsets(self) -> Ints:
        """Where each sequence starts, and the end."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    def split(self, rows: T) -> list[T]:
        """An array of rows cut into sequences."""
        return np.split(rows, self.offsets[1:-1])  # type: ignore[call-overload, no-any-return]

    def log_emission(self) -> Array:
        """Log emission weights [N, K], anchors included."""
        return (
            log_emissions(
                self.continuous, self.categorical, self.means, self.variances, self.category_probs
            )
            + self.anchor_weights()
        )

    def anchor_weights(self) -> Array:
        """Log anchor weights [N, K], zero where there are none."""
        if self.codes is None or self.allowed_states is None:
            return np.zeros((len(self.continuous), self.n_states))
        return anchor_log_weights(self.codes, self.allowed_states, self.noise)

    def enumerate(self) -> list[Enumeration]:
        """Brute force, one result for each sequence."""
        return [
            enumerate_paths(log(self.initial), log(self.transition), rows)
            for rows in self.split(self.log_emission())
        ]

    def forward_backward(self) -> list[ForwardBackward]:
        """The log-domain recursions, one result for each sequence."""
        return [
            forward_backward(log(self.initial), log(self.transition), rows)
            for rows in self.split(self.log_emission())
        ]

    def enumerate_expected(self, q: Factors) -> list[Enumeration]:
        """Brute force under the expected-log parameters of a variational posterior."""
        rows = q.expected_log_emissions(self.continuous, self.categorical) + self.anchor_weights()
        return [
            enumerate_paths(q.expected_log_initial(), q.expected_log_transition(), part)
            for part in self.split(rows)
        ]

    def reorder(self, order: Sequence[int] | Ints) -> Problem:
        """The same sequences in another order (or a selection, or repeats)."""
        offsets = self.offsets
        rows = np.concatenate([np.arange(offsets[u], offsets[u + 1]) for u in order])
        return replace(
            self,
            lengths=self.lengths[np.asarray(order)],
            states=self.states[rows],
            continuous=self.continuous[rows],
            categorical=self.categorical[rows],
            codes=None if self.codes is None else self.codes[rows],
        )

    def rows_of(self, order: Sequence[int] | Ints) -> Ints:
        """Row numbers of the sequences in this order."""
        return np.concatenate([np.arange(self.offsets[u], self.offsets[u + 1]) for u in order])


def draw_states(
    rng: np.random.Generator, initial: Array, transition: Array, lengths: Sequence[int] | Ints
) -> Ints:
    """Hidden paths of all sequences, end to end."""
    states = []
    for length in lengths:
        state = rng.choice(len(initial), p=initial)
        states.append(state)
        for _ in range(int(length) - 1):
            state = rng.choice(len(initial), p=transition[state])
            states.append(state)
    return np.array(states, dtype=np.int64)


def draw_rows(
    rng: np.random.Generator,
    states: Ints,
    means: Array,
    variances: Array,
    category_probs: Sequence[Array],
) -> tuple[Array, Ints]:
    """One row for each state, rounded to float32 so that every precision sees the same numbers."""
    continuous = means[states] + np.sqrt(variances[states]) * rng.standard_normal(
        (len(states), means.shape[1])
    )
    categorical = np.zeros((len(states), len(category_probs)), dtype=np.int64)
    for column, table in enumerate(category_probs):
        for row, state in enumerate(states):
            categorical[row, column] = rng.choice(table.shape[1], p=table[state])
    return continuous.astype(np.float32).astype(np.float64), categorical


def random_probs(rng: np.random.Generator, *shape: int) -> Array:
    """Rows of a flat Dirichlet, kept away from zero."""
    probs = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1]) + 0.05
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True))


def random_problem(
    seed: int,
    n_states: int,
    n_continuous: int,
    n_categories: Sequence[int],
    lengths: Sequence[int],
    *,
    missing: float = 0.0,
    missing_rows: bool = False,
    zeros: bool = False,
    noise: float | None = None,
    spread: float = 1.5,
) -> Problem:
    """A problem of this shape.

    `zeros` puts exact zeros into the initial and transition probabilities, `noise` (not None)
    adds anchors.
    """
    rng = np.random.default_rng(seed)
    initial = random_probs(rng, n_states)
    transition = random_probs(rng, n_states, n_states)
    if zeros and n_states > 1:
        initial[rng.integers(n_states)] = 0.0
        for row in transition:
            row[rng.integers(n_states)] = 0.0
        initial /= initial.sum()
        transition /= transition.sum(axis=1, keepdims=True)
    means = spread * rng.standard_normal((n_states, n_continuous))
    variances = rng.uniform(0.3, 2.0, (n_states, n_continuous))
    category_probs = tuple(random_probs(rng, n_states, size) for size in n_categories)
    states = draw_states(rng, initial, transition, lengths)
    continuous, categorical = draw_rows(rng, states, means, variances, category_probs)
    continuous[rng.random(continuous.shape) < missing] = np.nan
    categorical[rng.random(categorical.shape) < missing] = -1
    if missing_rows:
        blank = rng.random(len(states)) < 0.3
        blank[[0, -1]] = True, True
        continuous[blank] = np.nan
        categorical[blank] = -1
    problem = Problem(
        initial,
        transition,
        means,
        variances,
        category_probs,
        np.asarray(lengths),
        states,
        continuous,
        categorical,
    )
    return problem if noise is None else anchored(problem, rng, noise)


def anchored(problem: Problem, rng: np.random.Generator, noise: float) -> Problem:
    """With three anchor codes on about 60 % of rows.

    True to the drawn states when noise = 0, arbitrary otherwise.
    """
    allowed = rng.random((3, problem.n_states)) < 0.5
    allowed[np.arange(3), rng.integers(problem.n_states, size=3)] = True
    allowed[2] = True
    codes = np.full(len(problem.states), -1, dtype=np.int64)
    for row, state in enumerate(problem.states):
        if rng.random() < 0.6:
            fitting = np.arange(3) if noise > 0 else np.flatnonzero(allowed[:, state])
            codes[row] = rng.choice(fitting)
    return replace(problem, codes=codes, allowed_states=allowed, noise=noise)


def random_factors(
    seed: int, n_states: int, n_continuous: int, n_categories: Sequence[int]
) -> Factors:
    """A random variational posterior, not fitted to anything."""
    rng = np.random.default_rng(seed)
    shape = (n_states, n_continuous)
    return Factors(
        initial=rng.uniform(0.5, 4.0, n_states),
        transition=rng.uniform(0.5, 6.0, (n_states, n_states)),
        location=1.5 * rng.standard_normal(shape),
        mean_strength=rng.uniform(0.5, 6.0, shape),
        dof=rng.uniform(2.0, 9.0, shape),
        scale=rng.uniform(1.0, 9.0, shape),
        category=tuple(rng.uniform(0.5, 5.0, (n_states, size)) for size in n_categories),
    )


def stack(
    results: Sequence[Enumeration] | Sequence[ForwardBackward], pick: Callable[..., Array]
) -> Array:
    """Concatenate one field over sequences."""
    return np.concatenate([pick(result) for result in results])
