"""Seeded data of the benchmark.

Ragged lengths, state paths, and rows drawn block by block without temporaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SEED = 20240137
BLOCK_ROWS = 4096
STAY = 0.9
EQUAL_LENGTH = 100
N_CONTINUOUS, N_BINARY, N_CATEGORICAL = 407, 294, 334
FULL_ROWS, FULL_SEQUENCES, FULL_LONGEST = 493_401, 5_527, 14_000
SEPARATED, SOFT = 0.3, 0.02  # standard deviation of the state means, in units of a column's noise


@dataclass(frozen=True)
class Start:
    """Parameters that generate the data or that every implementation starts from."""

    initial_probs: Array
    transition_matrix: Array
    means: Array
    variances: Array
    category_probs: tuple[Array, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Flat rows, the length of every sequence, and the start that all implementations share."""

    continuous: Array
    categorical: Array | None
    lengths: Array
    n_categories: tuple[int, ...]
    start: Start

    @property
    def n_rows(self) -> int:
        """Rows over all sequences."""
        return int(self.continuous.shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.continuous.nbytes + (0 if self.categorical is None else self.categorical.nbytes)


def shrunk_lengths(n_rows: int, rng: np.random.Generator) -> Array:
    """Heavy-tailed (log-normal) lengths of at least 2 that sum to `n_rows`.

    Sequences and the longest shrink with `n_rows`.
    """
    share = n_rows / FULL_ROWS
    n_sequences = round(FULL_SEQUENCES * share)
    longest = max(round(FULL_LONGEST * share), 10 * n_rows // n_sequences)
    raw = rng.lognormal(0.0, 1.6, n_sequences)
    lengths: Array = np.clip(np.floor(raw * n_rows / raw.sum()), 2, longest).astype(np.int64)
    lengths[np.argmax(lengths)] = longest
    _settle(lengths, n_rows, longest, rng)
    return lengths


def sampled_lengths(n_rows: int, rng: np.random.Generator) -> Array:
    """Every so-manyth sequence of the full-size panel, ordered by length.

    The same profile, thinned evenly.
    """
    longest_first = np.sort(shrunk_lengths(FULL_ROWS, rng))[::-1]
    step = FULL_ROWS / n_rows
    lengths = longest_first[
        ((np.arange(round(FULL_SEQUENCES / step)) + 0.5) * step).astype(np.int64)
    ].copy()
    _settle(lengths, n_rows, FULL_LONGEST, rng)
    rng.shuffle(lengths)
    return lengths


def _settle(lengths: Array, n_rows: int, longest: int, rng: np.random.Generator) -> None:
    """Spread the rows still missing or left over, in place, over the sequences that have room."""
    while (gap := n_rows - int(lengths.sum())) != 0:
        room = np.flatnonzero((lengths > 2) & (lengths < longest))
        chosen = rng.choice(room, size=min(abs(gap), len(room)), replace=False)
        lengths[chosen] += np.sign(gap)


def sticky_states(lengths: Array, n_states: int, rng: np.random.Generator) -> Array:
    """One state per row.

    Kept with probability STAY, else drawn anew, and drawn anew at every sequence start.
    """
    n_rows = int(lengths.sum())
    fresh = rng.random(n_rows) >= STAY
    fresh[np.concatenate(([0], np.cumsum(lengths)[:-1]))] = True
    drawn = rng.integers(0, n_states, n_rows)
    return drawn[np.maximum.accumulate(np.where(fresh, np.arange(n_rows), 0))]


def draw_truth(
    n_states: int,
    n_continuous: int,
    spread: float,
    n_categories: tuple[int, ...],
    rng: np.random.Generator,
) -> Start:
    """Parameters whose state means have standard deviation `spread`."""
    transition_matrix = np.full((n_states, n_states), (1 - STAY) / n_states) + STAY * np.eye(
        n_states
    )
    return Start(
        initial_probs=np.full(n_states, 1 / n_states),
        transition_matrix=transition_matrix,
        means=rng.normal(0.0, spread, (n_states, n_continuous)),
        variances=np.ones((n_states, n_continuous)),
        category_probs=tuple(rng.dirichlet(np.full(size, 4.0), n_states) for size in n_categories),
    )


def nearby(truth: Start, spread: float, rng: np.random.Generator) -> Start:
    """The common start.

    The truth with its means moved by a third of their spread and its variances by a tenth.
    """
    means = truth.means + rng.normal(0.0, spread / 3, truth.means.shape)
    variances = rng.uniform(0.9, 1.1, truth.variances.shape)
    return Start(
        truth.initial_probs, truth.transition_matrix, means, variances, truth.category_probs
    )


def category_sizes(rng: np.random.Generator) -> tuple[int, ...]:
    """294 binary columns and 40 of 3 to 20 levels."""
    many = rng.integers(3, 21, N_CATEGORICAL - N_BINARY)
    return (2,) * N_BINARY + tuple(int(size) for size in many)


def fill_continuous(
    rows: Array, states: Array, means: Array, missing: float, rng: np.random.Generator
) -> None:
    """Draw unit-variance Gaussian rows in place, block by block.

    With a share of the cells missing.
    """
    means = means.astype(np.float32)
    for begin in range(0, len(rows), BLOCK_ROWS):
        block = rows[begin : begin + BLOCK_ROWS]
        rng.standard_normal(dtype=np.float32, out=block)
        block += means[states[begin : begin + BLOCK_ROWS]]
        if missing:
            block[rng.random(block.shape, dtype=np.float32) < missing] = np.nan


def fill_categorical(
    codes: Array, states: Array, category_probs: tuple[Array, ...], rng: np.random.Generator
) -> None:
    """Draw category codes in place, block by block."""
    bounds = [np.cumsum(probs, axis=1)[:, :-1].astype(np.float32) for probs in category_probs]
    for begin in range(0, len(codes), BLOCK_ROWS):
        block, at = codes[begin : begin + BLOCK_ROWS], states[begin : begin + BLOCK_ROWS]
        draws = rng.random(block.shape, dtype=np.float32)
        for column, bound in enumerate(bounds):
            block[:, column] = (draws[:, column, None] > bound[at]).sum(axis=1)


PROFILES: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "sampled": sampled_lengths,
    "shrunk": shrunk_lengths,
    "equal": lambda n_rows, rng: np.full(n_rows // EQUAL_LENGTH, EQUAL_LENGTH),
}


def gaussian(
    n_rows: int, n_continuous: int, n_states: int, spread: float, profile: str
) -> Workload:
    """Continuous columns only, with one of the length profiles."""
    rng = np.random.default_rng(SEED)
    lengths = PROFILES[profile](n_rows, rng)
    truth = draw_truth(n_states, n_continuous, spread, (), rng)
    rows = np.empty((int(lengths.sum()), n_continuous), np.float32)
    fill_continuous(rows, sticky_states(lengths, n_states, rng), truth.means, 0.0, rng)
    return Workload(rows, None, lengths, (), nearby(truth, spread, rng))


def mixed(n_rows: int, n_states: int, missing: float = 0.0) -> Workload:
    """407 continuous and 334 categorical columns, ragged."""
    rng = np.random.default_rng(SEED)
    lengths, sizes = shrunk_lengths(n_rows, rng), category_sizes(rng)
    truth = draw_truth(n_states, N_CONTINUOUS, SEPARATED, sizes, rng)
    states = sticky_states(lengths, n_states, rng)
    rows, codes = (
        np.empty((n_rows, N_CONTINUOUS), np.float32),
        np.empty((n_rows, N_CATEGORICAL), np.int8),
    )
    fill_continuous(rows, states, truth.means, missing, rng)
    fill_categorical(codes, states, truth.category_probs, rng)
    return Workload(rows, codes, lengths, sizes, nearby(truth, SEPARATED, rng))
