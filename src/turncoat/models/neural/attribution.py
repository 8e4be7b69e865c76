"""Integrated gradients: a state's log emission over latents, attributed to a row's cells and codes.

The path runs from an average row (every cell at its mean, every code missing) to the row itself. It
is straight in the cells after the first LayerNorm. Before that norm, similar cells would get huge
contributions of opposite signs. The contributions add up to the difference between the two ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from turncoat.arrays import Array
from turncoat.models.neural import gradients
from turncoat.models.neural.frozen import NORM_EPSILON, FrozenEncoder
from turncoat.models.neural.gradients import PathLayers, PathWeights

# Maps latents [M, latent_dim] to their terms of the log emission of every state [M, K, latent_dim].
EmissionTerms = Callable[[Array], Array]

_MIN_STEPS, _MAX_STEPS = 16, 1024
# The steps are doubled until less than this share of the difference between the ends is missing.
_MAX_MISSING = 1e-4
_DIFFERENCE_STEP = 1e-4  # for slopes of the emission, which is smooth in each latent


def attribute_emission(
    encoder: FrozenEncoder, terms: EmissionTerms, cells: Array, codes: Array
) -> tuple[Array, Array, Array]:
    """Attribute every state's log emission to one row's cells [K, D] and codes [K, J].

    The third array [K] is the average row's log emission plus the integration error, so that all
    three add up to the log emission of the row.
    """
    path = _Path(encoder, cells, codes)
    integral = path.integrate(terms)
    from_cells, from_codes = path.attribute(integral, integral.slopes)
    return from_cells, from_codes, integral.rest


def attribute_log_odds(
    encoder: FrozenEncoder,
    terms: EmissionTerms,
    cells: Array,
    codes: Array,
    state: int,
    log_predicted: Array,
) -> tuple[int, Array, Array, float]:
    """Attribute the log odds of one state against its strongest rival, in a fraction of the time.

    `log_predicted` [K] is the log belief before the row. Returns the rival and what cells [D],
    codes [J] and the average row contribute.
    """
    path = _Path(encoder, cells, codes)
    integral = path.integrate(terms)
    scores = log_predicted + integral.emission
    scores[state] = -np.inf
    rival = int(scores.argmax())
    slopes = integral.slopes[:, state] - integral.slopes[:, rival]
    from_cells, from_codes = path.attribute(integral, slopes[:, None])
    rest = float(integral.rest[state] - integral.rest[rival])
    return rival, from_cells[0], from_codes[0], rest


class _Integral(NamedTuple):
    """A path with enough nodes."""

    weights: Array  # [M] of the nodes
    layers: PathLayers
    slopes: Array  # [M, K, latent_dim] of the log emission in the latents
    emission: Array  # [K] log emission of the row
    rest: Array  # [K] not attributed to cells and codes


class _Path:
    """The path from the average row, at t = 0, to the row, at t = 1."""

    def __init__(self, encoder: FrozenEncoder, cells: Array, codes: Array) -> None:
        self.encoder, self.weights = encoder, _get_weights(encoder)
        self.code_rows = encoder.table_places(np.asarray(codes, np.int64))
        values = np.asarray(cells, np.float64)
        self.missing = np.isnan(values)
        self.cells = np.where(self.missing, 0.0, values)
        self.standard, self.deviation = self.cells, 1.0
        if encoder.layout.normalises_cells:
            centred = self.cells - self.cells.mean()
            self.deviation = math.sqrt(float(np.square(centred).mean()) + NORM_EPSILON)
            self.standard = centred / self.deviation
        self.directions = gradients.path_directions(self.standard, self.code_rows, self.weights)

    def encode(self, t: Array) -> tuple[Array, Array, PathLayers]:
        """Return latents at places t, their derivatives along the path, and the layers there."""
        layout = self.encoder.layout
        is_gelu = layout.activation == "gelu"
        found, layers = gradients.run_along_path(t, *self.directions, self.weights, is_gelu)
        used = found[:, : layout.latent_dim]
        return used[: len(t)], used[len(t) :], layers

    def integrate(self, emission_terms: EmissionTerms) -> _Integral:
        """Integrate along the path with enough nodes for every state."""
        steps, h = _MIN_STEPS, _DIFFERENCE_STEP
        while True:
            t, weights = _gauss_nodes(steps)
            latents, derivatives, layers = self.encode(t)
            start, end = emission_terms(latents[steps:]).sum(axis=2)  # [K]
            inner = latents[:steps]
            slopes = (emission_terms(inner + h) - emission_terms(inner - h)) / (2 * h)
            changes = weights[:, None] * derivatives[:steps]
            missing = end - start - np.einsum("mkl,ml->k", slopes, changes)
            is_complete = np.abs(missing) <= _MAX_MISSING * (1.0 + np.abs(end - start))
            if steps >= _MAX_STEPS or is_complete.all():
                return _Integral(weights, layers, slopes, end, start + missing)
            steps *= 2

    def attribute(self, integral: _Integral, slopes: Array) -> tuple[Array, Array]:
        """Attribute slopes in the latents [M, C, latent_dim] to cells [C, D] and codes [C, J]."""
        nodes, layers, weights = integral.weights, integral.layers, self.weights
        at_layers = gradients.backpropagate(nodes, slopes, layers, weights)
        found = gradients.backpropagate_to_inputs(*at_layers, self.code_rows, weights)
        cell_slopes, from_codes = found
        return self._attribute_cells(cell_slopes), from_codes

    def _attribute_cells(self, slopes: Array) -> Array:
        """Return contributions of cells [C, D] from mean slopes [C, D] in normalised cells."""
        # A missing cell differs from the row's mean because of the other cells: they get its share.
        shares = slopes * self.standard
        if self.encoder.layout.normalises_cells and self.missing.any():
            n_cells = len(self.cells) * self.deviation
            pull = -slopes[:, self.missing].sum(axis=1, keepdims=True) / n_cells
            shares = np.where(self.missing, 0.0, shares + pull * self.cells)
        return np.asarray(shares)


# Packed once per encoder, and never saved.
_PACKED: WeakKeyDictionary[FrozenEncoder, PathWeights] = WeakKeyDictionary()


def _get_weights(encoder: FrozenEncoder) -> PathWeights:
    packed = _PACKED.get(encoder)
    if packed is None:
        packed = _PACKED[encoder] = PathWeights.from_encoder(encoder)
    return packed


@cache
def _gauss_nodes(steps: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes on (0, 1), followed by 0 and 1; and the weights of the nodes."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return np.append(0.5 * (nodes + 1.0), [0.0, 1.0]), 0.5 * weights
