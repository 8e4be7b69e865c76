"""Monte-Carlo dropout: how certain the encoder is of a row's latents, and emissions widened by it.

All rows share the same draws, so a single row and a block of rows get the same variances.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array, Rows
from turncoat.errors import DataError
from turncoat.models.anchors import Anchors
from turncoat.models.neural.frozen import FrozenEncoder, row_blocks
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.layout import LogModel
from turncoat.numerics.structures import KernelTables, Observations
from turncoat.panel import Panel

_BLOCK_NUMBERS = 2**21  # in memory at once


def draw_dropout_masks(n_draws: int, hidden_dim: int, rate: float, seed: int) -> Array:
    """Return factors of the hidden units [n_draws, hidden_dim]: 0, or enough to keep the mean."""
    kept = np.random.default_rng(seed).random((n_draws, hidden_dim)) >= rate
    return kept / (1.0 - rate)


@dataclass(eq=False, repr=False)
class WidenedVariationalHMM(VariationalHMM):
    """A fitted HMM over latents whose rows hold latents followed by their variances."""

    def _build_tables(
        self, panel: Panel, anchors: Anchors | None, model: LogModel | None = None
    ) -> tuple[Observations, KernelTables]:
        # Each row is anchored to its own row of the anchor table, which holds its log emission. The
        # columns themselves then contribute nothing.
        model = self._scoring_model() if model is None else model
        latents, variances = self._split(panel.continuous)
        missing = panel.missing_cells[: latents.shape[1]]
        narrow = replace(panel, continuous=np.ascontiguousarray(latents), missing_cells=missing)
        observations, tables = super()._build_tables(narrow, anchors, model)
        emissions = np.zeros((panel.n_rows, len(tables.constant)))
        emissions[:, : model.n_states] = widened_emission(model, narrow.continuous, variances)
        if len(observations.anchors):
            emissions += tables.anchor_table[observations.anchors]
        silent = tables._replace(
            scale=np.zeros_like(tables.scale),
            location=np.zeros_like(tables.location),
            constant=np.where(np.isinf(tables.constant), -np.inf, 0.0),
            anchor_table=emissions,
        )
        return observations._replace(anchors=np.arange(panel.n_rows, dtype=np.int32)), silent

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: Rows = None,
        categorical_row: Rows = None,
        gap_s: float | None = None,
    ) -> Array:
        """Update the belief [K] with latents followed by their variances."""
        row = np.atleast_2d(np.asarray(continuous_row, np.float64))
        super().step(belief, self._split(row)[0][0], gap_s=gap_s)  # checks the belief
        log_belief = (
            self.predict_log_belief(belief, gap_s) + self.log_emission(row, no_codes(row))[0]
        )
        updated = np.exp(log_belief - log_belief.max())
        return np.asarray(updated / updated.sum())

    def log_emission(self, continuous: ArrayLike, categorical: ArrayLike) -> Array:
        """Return the log density of N rows of latents and variances under every state [N, K]."""
        return widened_emission(self._scoring_model(), *self._split(np.asarray(continuous)))

    def _split(self, rows: Array) -> tuple[Array, Array]:
        width = self._get_params().means.shape[1]
        if rows.shape[1] != 2 * width:
            expected = f"{2 * width} columns, latents and their variances"
            raise DataError(f"the model needs {expected}; found {rows.shape[1]}")
        return rows[:, :width], rows[:, width:]


def no_codes(rows: Array) -> Array:
    """Return codes [N, 0] for rows without categorical columns."""
    return np.empty((len(rows), 0), np.int64)


def latent_variances(
    encoder: FrozenEncoder, continuous: Array, categorical: Array, masks: Array
) -> Array:
    """Return the variance of every latent over the draws [N, latent_dim]."""
    variances = np.empty((len(continuous), encoder.layout.latent_dim))
    for rows in row_blocks(len(variances), max(1, _BLOCK_NUMBERS // masks.size)):
        draws = encoder.encode_with_masks(continuous[rows], categorical[rows], masks)
        variances[rows] = draws.var(axis=1, ddof=1)
    return variances


def widened_terms(model: LogModel, latents: Array, variances: Array) -> Array:
    """Return each latent's term of log b(k) [N, K, latent_dim], with its variance added."""
    scales = model.scales  # of the emission before its weights
    if model.dof is None:
        scales = scales / np.sqrt(model.weights)
    shrinkage = 1.0 / np.sqrt(1.0 + variances[:, None, :] * scales**2)  # [N, K, latent_dim]
    residual = (latents[:, None, :].astype(np.float64) - model.means) * scales * shrinkage
    if model.dof is None:
        log_kernel = -0.5 * residual**2
    else:  # widened in the same way, which is an approximation
        ratio = np.minimum(1.0 + residual**2 / model.dof, model.max_ratio)
        log_kernel = -0.5 * (model.dof + 1.0) * np.log(ratio)
    return np.asarray(model.constants + (np.log(shrinkage) + log_kernel) * model.weights)


def widened_emission(model: LogModel, latents: Array, variances: Array) -> Array:
    """Return log b(k) of N rows [N, K]."""
    emission = np.empty((len(latents), model.n_states))
    for rows in row_blocks(len(emission), max(1, _BLOCK_NUMBERS // model.means.size)):
        emission[rows] = widened_terms(model, latents[rows], variances[rows]).sum(axis=2)
    return emission
