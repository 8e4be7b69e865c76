"""Drawing sequences from a model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncoat.errors import DataError
from turncoat.models.parameters import HMMParams, VariationalParams
from turncoat.panel import Panel


def sample_panel(
    params: HMMParams | VariationalParams, lengths: ArrayLike, rng: np.random.Generator
) -> tuple[Panel, NDArray[np.int64]]:
    """Rows and hidden path of sequences with the given lengths; a posterior is drawn from at its mean."""
    sizes = np.atleast_1d(np.asarray(lengths))
    if sizes.ndim != 1 or sizes.size == 0 or sizes.dtype.kind not in "ui" or sizes.min() < 1:
        raise DataError(
            f"lengths must be whole numbers of at least 1, one per sequence; found {lengths!r}"
        )
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    states = _paths(params, offsets, rng)
    noise = rng.standard_normal((len(states), params.means.shape[1]))
    continuous = params.means[states] + np.sqrt(params.variances)[states] * noise
    categorical = np.empty((len(states), len(params.n_categories)), np.int64)
    for j, probs in enumerate(params.category_probs):
        for k in range(params.n_states):
            rows = np.flatnonzero(states == k)
            categorical[rows, j] = rng.choice(
                probs.shape[1], size=len(rows), p=probs[k] / probs[k].sum()
            )
    panel = Panel.from_arrays(
        continuous=continuous,
        categorical=categorical,
        lengths=sizes,
        n_categories=params.n_categories,
    )
    return panel, states


def _paths(
    params: HMMParams | VariationalParams, offsets: NDArray[Any], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Hidden paths, all sequences stepping together."""
    states = np.empty(int(offsets[-1]), np.int64)
    states[offsets[:-1]] = _draw(
        np.repeat(params.initial_probs[None], len(offsets) - 1, axis=0), rng
    )
    lengths = np.diff(offsets)
    for t in range(1, int(lengths.max())):
        rows = offsets[:-1][lengths > t] + t
        states[rows] = _draw(params.transition_matrix[states[rows - 1]], rng)
    return states


def _draw(probs: NDArray[Any], rng: np.random.Generator) -> NDArray[np.int64]:
    """One category per row of probabilities."""
    ladder = np.cumsum(probs, axis=1)
    return np.asarray(
        (rng.random((len(probs), 1)) * ladder[:, -1:] >= ladder[:, :-1]).sum(axis=1), dtype=np.int64
    )
