"""How sure the encoder is of a row's latents, by Monte-Carlo dropout, and emissions that are wider where it is not.

The draws are the same for every row, so one row and a block of rows are told the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.anchors import Anchors
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.coding import Terms
from turncoat.numerics.structures import Observations, Potentials
from turncoat.panel import Panel

_BLOCK_NUMBERS = 2**21  # held at once


def dropout_masks(n_draws: int, hidden_dim: int, rate: float, seed: int) -> Array:
    """What hidden units are multiplied with in each draw [n_draws, hidden_dim]: 0, or enough to keep their mean."""
    kept = np.random.default_rng(seed).random((n_draws, hidden_dim)) >= rate
    return kept / (1.0 - rate)


class WidenedVariationalHMM(VariationalHMM):
    """A fitted chain over latents that asks for panels of latents followed by their variances."""

    def _scored(
        self, panel: Panel, anchors: Anchors | None, terms: Terms | None = None
    ) -> tuple[Observations, Potentials]:
        expected = 2 * self._fitted().means.shape[1]
        if isinstance(panel, Panel) and panel.n_continuous != expected:
            raise DataError(
                f"the chain asks for {expected} columns, latents and their variances; the panel has {panel.n_continuous}"
            )
        used = self._terms() if terms is None else terms
        plain = super()._scored
        return widened_tables(panel, used, lambda latents: plain(latents, anchors, used))

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: ArrayLike | None = None,
        categorical_row: ArrayLike | None = None,
    ) -> Array:
        """The live recursion on latents followed by their variances."""
        row = np.asarray(continuous_row, np.float64)
        width = self._fitted().means.shape[1]
        if row.shape != (2 * width,):
            raise DataError(
                f"a step takes {2 * width} cells, latents and their variances; found shape {row.shape}"
            )
        super().step(belief, row[:width])  # which refuses a bad belief
        return live_belief(
            self.log_predicted(belief), self.log_emission(row[None], np.empty((1, 0), np.int64))[0]
        )

    def log_emission(self, continuous: ArrayLike, categorical: ArrayLike) -> Array:
        """Log density of N rows of latents and variances under every state [N, K]."""
        rows = np.asarray(continuous)
        width = self._fitted().means.shape[1]
        return widened_emission(self._terms(), rows[:, :width], rows[:, width:])


def with_variances(encoder: FoldedEncoder, panel: Panel, masks: Array) -> Panel:
    """The panel with latents, then their variances, in place of its columns."""
    latents = encoder.embed(panel)
    variances = latent_variances(encoder, panel.continuous, panel.categorical, masks).astype(
        np.float32
    )
    return replace(
        latents,
        continuous=np.hstack([latents.continuous, variances]),
        missing_cells=np.zeros(2 * encoder.layout.latent_dim, bool),
    )


def widened_tables(
    panel: Panel, terms: Terms, plain: Callable[[Panel], tuple[Observations, Potentials]]
) -> tuple[Observations, Potentials]:
    """A panel that `with_variances` made as the kernels read it; `plain` does the same for its latents alone.

    Every row is anchored by itself: its log emission is a row of the anchors' table, and the columns say nothing.
    """
    width = panel.n_continuous // 2
    latents = replace(
        panel,
        continuous=np.ascontiguousarray(panel.continuous[:, :width]),
        missing_cells=panel.missing_cells[:width],
    )
    observations, potentials = plain(latents)
    table = np.zeros((panel.n_rows, len(potentials.constant)))
    table[:, : terms.n_states] = widened_emission(
        terms, latents.continuous, panel.continuous[:, width:]
    )
    if len(observations.anchors):
        table += potentials.anchor_table[observations.anchors]
    silent = potentials._replace(
        scale=np.zeros_like(potentials.scale),
        location=np.zeros_like(potentials.location),
        constant=np.where(np.isinf(potentials.constant), -np.inf, 0.0),
        anchor_table=table,
    )
    return observations._replace(anchors=np.arange(panel.n_rows, dtype=np.int32)), silent


def latent_variances(
    encoder: FoldedEncoder, continuous: Array, categorical: Array, masks: Array
) -> Array:
    """Variance of every latent over the draws [N, latent_dim]."""
    found = np.empty((len(continuous), encoder.layout.latent_dim))
    for rows in _blocks(len(found), masks.size):
        found[rows] = encoder.draws(continuous[rows], categorical[rows], masks).var(axis=1, ddof=1)
    return found


def widened_pieces(terms: Terms, latents: Array, variances: Array) -> Array:
    """What each latent of N rows adds to log b(k) [N, K, latent_dim] when its variance is added to the state's own.

    Of a Student column the scale is widened likewise, which is an approximation.
    """
    sharpness = (
        terms.scales if terms.dof is not None else terms.scales * np.sqrt(terms.temperature)
    )  # before the temperature
    shrunk = 1.0 / np.sqrt(
        1.0 + variances[:, None, :] * sharpness**2
    )  # [N, K, latent_dim] by which the scale falls
    away = (latents[:, None, :].astype(np.float64) - terms.means) * sharpness * shrunk
    if terms.dof is None:
        size = -0.5 * away**2
    else:
        size = -0.5 * (terms.dof + 1.0) * np.log1p(away**2 / terms.dof)
    return np.asarray(terms.constants + (np.log(shrunk) + size) / terms.temperature)


def widened_emission(terms: Terms, latents: Array, variances: Array) -> Array:
    """Log b(k) of N rows [N, K]."""
    found = np.empty((len(latents), terms.n_states))
    for rows in _blocks(len(found), terms.means.size):
        found[rows] = widened_pieces(terms, latents[rows], variances[rows]).sum(axis=2)
    return found


def live_belief(log_predicted: Array, emission: Array) -> Array:
    """The belief [K] after a row, from what was expected before it and its log emission, both logs [K]."""
    after = log_predicted + emission
    after = np.exp(after - after.max())
    return np.asarray(after / after.sum())


def _blocks(n_rows: int, numbers_each: int) -> Iterator[slice]:
    size = max(1, _BLOCK_NUMBERS // numbers_each)
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))
