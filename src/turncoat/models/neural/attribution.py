"""Which input says what: a state's log emission over latents, shared out among the cells and codes of a row by integrated gradients.

The path leads from an average row (every cell at its mean, every code missing) to the row itself, straight in the cells as the first
LayerNorm leaves them. Along the cells themselves that norm would turn ever faster the more alike they are, and give two like cells
huge shares of opposite signs. What the inputs are given adds up to the difference between the two ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from turncoat.arrays import Array
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.models.neural.slopes import ROUNDING, along, back, lead, of_inputs, panels

Emission = Callable[
    [Array], Array
]  # latents [M, latent_dim] to what each adds to the log emission of every state [M, K, latent_dim]

_FEWEST_STEPS, _MOST_STEPS = 16, 1024
_COMPLETE = (
    1e-4  # of the difference between the ends: as long as more is missing, the steps are doubled
)
_SMALL = 1e-4  # for slopes of the emission, which is smooth in each latent


def attributed(
    encoder: FoldedEncoder, emission: Emission, cells: Array, codes: Array
) -> tuple[Array, Array, Array]:
    """Of one row [D] and [J]: what cells and codes add to the log emission of every state [K, D] and [K, J], and the average row's [K].

    The last holds what numerical integration missed, so that all together are the log emission itself.
    """
    path = _Path(encoder, cells, codes)
    walk = path.walked(emission)
    of_cells, of_codes = path.shared_out(walk, walk.slopes)
    return of_cells, of_codes, walk.rest


def attributed_odds(
    encoder: FoldedEncoder,
    emission: Emission,
    cells: Array,
    codes: Array,
    state: int,
    log_predicted: Array,
) -> tuple[int, Array, Array, float]:
    """Likewise for the log odds of one state against its strongest rival alone, given the log belief before the row [K].

    The rival, and what cells [D], codes [J] and the average row add; it takes a fraction of the time that all states take.
    """
    path = _Path(encoder, cells, codes)
    walk = path.walked(emission)
    scores = log_predicted + walk.reached
    scores[state] = -np.inf
    rival = int(scores.argmax())
    slopes = walk.slopes[:, state] - walk.slopes[:, rival]
    of_cells, of_codes = path.shared_out(walk, slopes[:, None])
    return rival, of_cells[0], of_codes[0], float(walk.rest[state] - walk.rest[rival])


class _Layers(NamedTuple):
    """What slopes are led back through at the places of a path, and where it leads from there."""

    changes: Array  # [M, latent_dim] how fast the latents change along the path
    hidden_slopes: Array  # [M, hidden_dim or more] of the first GELU
    settled: Array  # [M, hidden_dim] after the second LayerNorm, without its gain
    spread: Array  # [M] that it divided by
    outer_slopes: Array  # [M, hidden_dim or more] of the second GELU


class _Walk(NamedTuple):
    """A path with as many steps as it needs."""

    weight: Array  # [M] of every step
    layers: _Layers
    slopes: Array  # [M, K, latent_dim] of the log emission in the latents
    reached: Array  # [K] the log emission at the row
    rest: Array  # [K] what is not given to cells and codes


class _Path:
    """From the average row, at t = 0, to the row, at t = 1; and slopes along it."""

    def __init__(self, encoder: FoldedEncoder, cells: Array, codes: Array) -> None:
        self.encoder, self.weights = encoder, _weights(encoder)
        self.own = encoder.table_places(np.asarray(codes, np.int64))
        given = np.asarray(cells, np.float64)
        self.missing = np.isnan(given)
        self.cells = np.where(self.missing, 0.0, given)
        self.standard, self.spread = self.cells, 1.0
        if encoder.layout.normalises_cells:
            centred = self.cells - self.cells.mean()
            self.spread = math.sqrt(float(np.square(centred).mean()) + ROUNDING)
            self.standard = centred / self.spread
        self.inner, self.fused = lead(
            self.standard, self.own, encoder.first_weight, encoder.tables, self.weights.absent
        )

    def latents(self, t: Array) -> tuple[Array, _Layers]:
        """Latents [M, latent_dim] at these places, and the layers on the way."""
        weights, gelu = self.weights, self.encoder.layout.activation == "gelu"
        start = weights.first_bias, self.inner, weights.fused, self.fused
        found, *layers = along(
            t, *start, weights.second, weights.gain, weights.bias, weights.last, gelu
        )
        used = found[:, : self.encoder.layout.latent_dim]
        return used[: len(t)], _Layers(used[len(t) :], *layers)

    def walked(self, emission: Emission) -> _Walk:
        """The path with enough steps for every state."""
        steps = _FEWEST_STEPS
        while True:
            t, weight = _nodes(steps)
            latents, layers = self.latents(t)
            start, end = emission(latents[steps:]).sum(axis=2)  # [K]
            within = latents[:steps]
            slopes = (emission(within + _SMALL) - emission(within - _SMALL)) / (2 * _SMALL)
            given = np.einsum(
                "mkl,ml->k", slopes, weight[:, None] * layers.changes[:steps]
            )  # to all inputs together
            missed = end - start - given
            if (
                steps >= _MOST_STEPS
                or (np.abs(missed) <= _COMPLETE * (1.0 + np.abs(end - start))).all()
            ):
                return _Walk(weight, layers, slopes, end, start + missed)
            steps *= 2

    def shared_out(self, walk: _Walk, slopes: Array) -> tuple[Array, Array]:
        """What cells [C, D] and codes [C, J] are given for slopes in the latents [M, C, latent_dim]."""
        weights, encoder = self.weights, self.encoder
        layers = walk.layers
        at_inner, at_fused = back(
            walk.weight,
            slopes,
            layers.hidden_slopes,
            layers.settled,
            layers.spread,
            layers.outer_slopes,
            weights.gain,
            weights.last_back,
            weights.second_back,
        )
        of_cells, of_codes = of_inputs(
            at_inner, at_fused, encoder.first_weight, encoder.tables, self.own, weights.missing
        )
        return self._of_present(of_cells), of_codes

    def _of_present(self, slopes: Array) -> Array:
        """What cells [C, D] are given for mean slopes [C, D] in normalised cells.

        A missing one is given nothing. It is away from the row's mean because of the others, so its share is theirs.
        """
        given = slopes * self.standard
        if self.encoder.layout.normalises_cells and self.missing.any():
            pull = -slopes[:, self.missing].sum(axis=1, keepdims=True) / (
                len(self.cells) * self.spread
            )
            given = np.where(self.missing, 0.0, given + pull * self.cells)
        return np.asarray(given)


class _Weights(NamedTuple):
    """An encoder in float64: large weights in `panels` as the kernels read them, those for slopes turned."""

    first_bias: Array  # [hidden_dim]
    second: Array
    second_back: Array
    fused: Array  # [hidden_dim] what the fused layer starts from: its bias, every code missing
    gain: Array  # [hidden_dim]
    bias: Array  # [hidden_dim]
    last: Array
    last_back: Array
    missing: Array  # [J] rows of the tables for missing codes
    absent: Array  # [hidden_dim] what they add

    @classmethod
    def of(cls, encoder: FoldedEncoder) -> _Weights:
        first_bias, second, second_bias, gain, bias, last = (
            array.astype(np.float64)
            for array in (
                encoder.first_bias,
                encoder.second_weight,
                encoder.second_bias,
                encoder.norm_gain,
                encoder.norm_bias,
                encoder.latent_weight,
            )
        )
        missing = encoder.table_places(np.full(len(encoder.layout.n_categories), -1))
        absent = encoder.tables[missing].sum(axis=0, dtype=np.float64)
        inner, outer = (panels(second), panels(second.T)), (panels(last), panels(last.T))
        return cls(first_bias, *inner, second_bias + absent, gain, bias, *outer, missing, absent)


_KNOWN: WeakKeyDictionary[FoldedEncoder, _Weights] = (
    WeakKeyDictionary()
)  # made once, and no part of what is saved


def _weights(encoder: FoldedEncoder) -> _Weights:
    known = _KNOWN.get(encoder)
    if known is None:
        known = _KNOWN[encoder] = _Weights.of(encoder)
    return known


@cache
def _nodes(steps: int) -> tuple[Array, Array]:
    """Places between 0 and 1 (Gauss-Legendre), followed by 0 and 1 themselves; the weights of those between."""
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    return np.append(0.5 * (nodes + 1.0), [0.0, 1.0]), 0.5 * weights
