"""Which input says what: a state's log emission over latents, shared out among the cells and codes of a row by integrated gradients.

The path leads from an average row (every cell at its mean, every code missing) to the row itself, straight in the cells as the first
LayerNorm leaves them. Along the cells themselves that norm would turn ever faster the more alike they are, and give two like cells
huge shares of opposite signs. What the inputs are given adds up to the difference between the two ends.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from turncoat.models.neural.folded import FoldedEncoder

Array = NDArray[Any]
Emission = Callable[[Array], Array]  # latents [M, latent_dim] to what each adds to the log emission of every state [M, K, latent_dim]

_FEWEST_STEPS, _MOST_STEPS = 16, 1024
_COMPLETE = 1e-4  # of the difference between the ends: as long as more is missing, the steps are doubled
_SMALL = 1e-4  # for slopes of the emission, which is smooth in each latent
_ROUNDING = 1e-5  # of LayerNorm, as in the encoder


def attributed(encoder: FoldedEncoder, emission: Emission, cells: Array, codes: Array) -> tuple[Array, Array, Array]:
    """Of one row [D] and [J]: what cells and codes add to the log emission of every state [K, D] and [K, J], and the average row's [K].

    The last holds what numerical integration missed, so that all together are the log emission itself.
    """
    path = _Path(encoder, np.asarray(cells, np.float64), np.asarray(codes, np.int64))
    ends = emission(path.latents(np.array([0.0, 1.0]))[0]).sum(axis=2)  # [2, K]
    steps = _FEWEST_STEPS
    while True:
        of_cells, of_codes = path.integrated(emission, steps)
        missed = ends[1] - ends[0] - of_cells.sum(axis=1) - of_codes.sum(axis=1)
        if steps >= _MOST_STEPS or (np.abs(missed) <= _COMPLETE * (1.0 + np.abs(ends[1] - ends[0]))).all():
            return of_cells, of_codes, ends[0] + missed
        steps *= 2


class _Path:
    """From the average row, at t = 0, to the row, at t = 1; and slopes along it."""

    def __init__(self, encoder: FoldedEncoder, cells: Array, codes: Array) -> None:
        layout = encoder.layout
        self.missing, self.gelu = np.isnan(cells), layout.activation == "gelu"
        self.cells = np.where(self.missing, 0.0, cells)
        self.normalise = layout.normalises_cells
        self.standard, self.spread = self.cells, 1.0
        if self.normalise:
            standard, spread = _standardised(self.cells[None])
            self.standard, self.spread = standard[0], float(spread[0, 0])
        names = ("first_weight", "first_bias", "second_weight", "second_bias", "norm_gain", "norm_bias", "latent_weight")
        self.first, self.first_bias, self.second, self.second_bias, self.gain, self.bias, self.last = (
            getattr(encoder, name).astype(np.float64) for name in names
        )
        missing = np.asarray(layout.n_categories, np.int64) + layout.table_starts
        own = np.where(codes < 0, np.asarray(layout.n_categories, np.int64), codes) + layout.table_starts
        self.absent = encoder.tables[missing].astype(np.float64).sum(axis=0) if len(codes) else np.zeros(layout.hidden_dim)
        self.changes = encoder.tables[own].astype(np.float64) - encoder.tables[missing].astype(np.float64)  # [J, H]

    def latents(self, t: Array) -> tuple[Array, tuple[Array, ...]]:
        """Latents [M, latent_dim] at these places, and the layers on the way."""
        inner = (t[:, None] * self.standard) @ self.first + self.first_bias
        fused = _gelu(inner) @ self.second if len(self.second) else np.zeros((len(t), len(self.gain)))
        fused = fused + self.second_bias + self.absent + t[:, None] * self.changes.sum(axis=0)
        settled, width = _standardised(fused)
        outer = settled * self.gain + self.bias
        return (_gelu(outer) if self.gelu else outer) @ self.last, (inner, settled, width, outer)

    def integrated(self, emission: Emission, steps: int) -> tuple[Array, Array]:
        """What cells [K, D] and codes [K, J] are given, with so many steps."""
        t, weight = _nodes(steps)
        latents, (inner, settled, width, outer) = self.latents(t)
        slopes = (emission(latents + _SMALL) - emission(latents - _SMALL)) / (2 * _SMALL)  # [M, K, latent_dim]
        at_outer = slopes @ self.last.T
        if self.gelu:
            at_outer *= _gelu_slope(outer)[:, None]
        at_fused = _through_norm(at_outer * self.gain, settled[:, None], width[:, None])
        of_codes = _mean(weight, at_fused) @ self.changes.T
        if not len(self.cells):
            return np.zeros((slopes.shape[1], 0)), of_codes
        at_inner = (at_fused @ self.second.T) * _gelu_slope(inner)[:, None]
        return self._shared(_mean(weight, at_inner) @ self.first.T), of_codes

    def _shared(self, slopes: Array) -> Array:
        """What cells [K, D] are given for mean slopes [K, D] in normalised cells.

        A missing one is given nothing. It is away from the row's mean because of the others, so its share is theirs.
        """
        given = slopes * self.standard
        if self.normalise and self.missing.any():
            pull = -slopes[:, self.missing].sum(axis=1, keepdims=True) / (len(self.cells) * self.spread)
            given = np.where(self.missing, 0.0, given + pull * self.cells)
        return np.asarray(given)


@cache
def _nodes(steps: int) -> tuple[Array, Array]:
    """Places between 0 and 1 and their weights (Gauss-Legendre)."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _mean(weight: Array, values: Array) -> Array:
    """Mean [K, H] along the path of values [M, K, H]."""
    return np.asarray(np.tensordot(weight, values, axes=1))


def _standardised(values: Array) -> tuple[Array, Array]:
    """LayerNorm without its gain, and the spread that it divided by [M, 1]."""
    centred = values - values.mean(axis=1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=1, keepdims=True) + _ROUNDING)
    return centred / spread, spread


def _through_norm(slopes: Array, standard: Array, spread: Array) -> Array:
    """Slopes before a LayerNorm from those after it [..., H]."""
    mean = slopes.mean(axis=-1, keepdims=True)
    along = (slopes * standard).mean(axis=-1, keepdims=True)
    return np.asarray((slopes - mean - standard * along) / spread)


def _gelu(values: Array) -> Array:
    return np.asarray(0.5 * values * (1.0 + erf(values * np.sqrt(0.5))))


def _gelu_slope(values: Array) -> Array:
    density = np.exp(-0.5 * values**2) / np.sqrt(2 * np.pi)
    return np.asarray(0.5 * (1.0 + erf(values * np.sqrt(0.5))) + values * density)
