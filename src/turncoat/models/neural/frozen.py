"""The trained encoder without torch.

Neighbouring linear layers are multiplied into one, and embedding tables into the layer after them.
Weights are float32 and all sums float64, so a single row and a block of rows get the same latents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array, Rows
from turncoat.errors import ConfigError, DataError
from turncoat.models.neural.encoder import EncoderLayout, TrainedEncoder, TrainingReport
from turncoat.numerics.jit import announce_compilation, jit
from turncoat.panel import Panel
from turncoat.storage import digest

_BLOCK_ROWS = 2048
NORM_EPSILON = 1e-5  # torch's LayerNorm adds it to the variance
_SQRT_HALF = math.sqrt(0.5)

# Latents of the panels in use, by encoder and panel.
_EMBEDDED: WeakKeyDictionary[FrozenEncoder, WeakKeyDictionary[Panel, Panel]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class FrozenEncoder:
    """An encoder ready for scoring. A code's row in `tables` has hidden_dim numbers."""

    layout: EncoderLayout
    first_weight: Array = field(repr=False)  # [D, H], includes the gain of the cells' LayerNorm
    first_bias: Array = field(repr=False)  # [H]
    # [H, H], or [0, H] without continuous columns: the MLP's second layer and its fusion
    second_weight: Array = field(repr=False)
    second_bias: Array = field(repr=False)  # [H]
    # [sum of C_j + 1, H]: embeddings, their projection and its fusion
    tables: Array = field(repr=False)
    norm_gain: Array = field(repr=False)  # [H]
    norm_bias: Array = field(repr=False)  # [H]
    latent_weight: Array = field(repr=False)  # [H, latent_dim]
    head_weight: Array = field(repr=False)  # [latent_dim]
    head_bias: float
    dropout: float = 0.0  # rate of the training
    report: TrainingReport | None = None

    @classmethod
    def from_trained(cls, trained: TrainedEncoder | FrozenEncoder) -> FrozenEncoder:
        """Freeze a trained encoder; return a frozen one as it is."""
        if isinstance(trained, FrozenEncoder):
            return trained
        layout, hidden = trained.layout, trained.layout.hidden_dim
        weights = {name: array.astype(np.float64) for name, array in trained.weights.items()}
        fusion, second_bias = weights["fusion.weight"], weights["fusion.bias"]
        first_weight, second_weight = np.zeros((0, hidden)), np.zeros((0, hidden))
        first_bias = np.zeros(hidden)
        tables = np.zeros((int(layout.table_rows.sum()), hidden))
        if layout.n_continuous:
            inner, from_cells = weights["cell_layers.0.weight"], fusion[:, :hidden]
            gain = weights.get("cell_norm.weight", np.ones(layout.n_continuous))
            shift = weights.get("cell_norm.bias", np.zeros(layout.n_continuous))
            first_weight = (inner * gain).T
            first_bias = inner @ shift + weights["cell_layers.0.bias"]
            second_weight = (from_cells @ weights["cell_layers.3.weight"]).T
            second_bias = second_bias + from_cells @ weights["cell_layers.3.bias"]
        if layout.n_categories:
            from_codes = fusion[:, -hidden:]
            projection = from_codes @ weights["code_projection.weight"]
            second_bias = second_bias + from_codes @ weights["code_projection.bias"]
            at = 0
            for place, (width, columns) in enumerate(layout.table_groups):
                start = 0
                for column in columns:
                    n_rows, first = int(layout.table_rows[column]), int(layout.table_starts[column])
                    table = weights[f"tables.{place}.weight"][start : start + n_rows]
                    tables[first : first + n_rows] = table @ projection[:, at : at + width].T
                    start, at = start + n_rows, at + width
        norm_gain, norm_bias = weights["fusion_norm.weight"], weights["fusion_norm.bias"]
        arrays = first_weight, first_bias, second_weight, second_bias, tables, norm_gain, norm_bias
        head = trained.head_weight, trained.head_bias, trained.dropout, trained.report
        return cls(layout, *arrays, weights["projection.weight"].T, *head)

    def __post_init__(self) -> None:
        layout, hidden = self.layout, self.layout.hidden_dim
        shapes = {
            "first_weight": (layout.n_continuous, hidden),
            "first_bias": (hidden,),
            "second_weight": (hidden if layout.n_continuous else 0, hidden),
            "second_bias": (hidden,),
            "tables": (int(layout.table_rows.sum()), hidden),
            "norm_gain": (hidden,),
            "norm_bias": (hidden,),
            "latent_weight": (hidden, layout.latent_dim),
            "head_weight": (layout.latent_dim,),
        }
        for name, shape in shapes.items():
            array = np.ascontiguousarray(getattr(self, name), np.float32)
            if array.shape != shape or not np.isfinite(array).all():
                expected = f"the encoder's {name} must be finite numbers {shape}"
                raise ConfigError(f"{expected}; found shape {array.shape}")
            object.__setattr__(self, name, array)
        for name in ("head_bias", "dropout"):
            if not math.isfinite(getattr(self, name)):
                value = getattr(self, name)
                raise ConfigError(f"the encoder's {name} must be a finite number; found {value}")

    def __sklearn_clone__(self) -> Self:
        """Return itself: it is immutable, and clones of a model share it."""
        return self

    def embed(self, panel: Panel) -> Panel:
        """Return the panel with latents as columns, cached while encoder and panel are in use."""
        self.layout.check_panel(panel)
        cached = _EMBEDDED.setdefault(self, WeakKeyDictionary())
        if panel not in cached:
            latents = np.empty((panel.n_rows, self.layout.latent_dim), np.float32)
            with announce_compilation():
                self._encode_into(latents, panel.continuous, panel.categorical)
            cached[panel] = replace(
                panel,
                continuous=latents,
                categorical=np.empty((panel.n_rows, 0), np.int8),
                n_categories=(),
                missing_cells=np.zeros(self.layout.latent_dim, bool),
                missing_codes=np.zeros(0, bool),
            )
        return cached[panel]

    def check_rows(
        self, continuous: Rows, categorical: Rows, n_dim: int = 2
    ) -> tuple[Array, Array]:
        """Return valid cells [N, D] float64 and codes [N, J] int64; of one row, [D] and [J]."""
        cells, codes = _as_rows(continuous, categorical, n_dim)
        subject = "the row has" if n_dim == 1 else "the rows have"
        self.layout.check_rows(np.atleast_2d(cells), np.atleast_2d(codes), subject)
        return cells, codes

    def encode(self, continuous: Rows = None, categorical: Rows = None) -> Array:
        """Return latents [N, latent_dim] float32 of cells [N, D] and codes [N, J]."""
        cells, codes = self.check_rows(continuous, categorical)
        latents = np.empty((len(cells), self.layout.latent_dim), np.float32)
        self._encode_into(latents, cells, codes)
        return latents

    def encode_row(self, continuous: Rows = None, categorical: Rows = None) -> Array:
        """Return latents [latent_dim] float32 of one row: cells [D] and codes [J]."""
        cells, codes = self.check_rows(continuous, categorical, n_dim=1)
        options = self.layout.normalises_cells, self.layout.activation == "gelu"
        return _encode_row(cells, self.table_places(codes), self._row_weights, *options)

    def score_head(self, continuous: Rows = None, categorical: Rows = None) -> Array:
        """Return the head's log odds of fraud [N] for rows as in `encode`."""
        return self.score_latents(self.encode(continuous, categorical))

    def score_latents(self, latents: ArrayLike) -> Array:
        """Return the head's log odds of fraud for latents [..., latent_dim]."""
        weight = self.head_weight.astype(np.float64)
        return np.asarray(np.asarray(latents, np.float64) @ weight + self.head_bias)

    @property
    def digest(self) -> str:
        """Digest that identifies the encoder."""
        return digest([repr(self.layout), self.head_bias, self.dropout], self.arrays())

    @cached_property
    def _row_weights(self) -> tuple[Array, ...]:
        """Every array but the head's, in the order of the fields."""
        return tuple(self.arrays().values())[:-1]

    def arrays(self) -> dict[str, Array]:
        """Return the arrays by name."""
        values = ((part.name, getattr(self, part.name)) for part in fields(self))
        return {name: value for name, value in values if isinstance(value, np.ndarray)}

    def table_places(self, codes: Array) -> Array:
        """Return rows of `tables` for codes [..., J]; each table ends with its missing code."""
        sizes = np.asarray(self.layout.n_categories, np.int64)
        return np.where(codes < 0, sizes, codes) + self.layout.table_starts

    def encode_with_masks(self, continuous: Array, categorical: Array, masks: Array) -> Array:
        """Return latents [N, M, latent_dim] with hidden units times masks [M, hidden_dim]."""
        first, second, last = self.float64_weights()
        masked = self._hidden(continuous, first)[:, None, :] * masks
        from_codes = np.zeros((len(continuous), len(self.second_bias)))
        _add_codes(from_codes, self.table_places(categorical), self.tables)
        fused = self._fuse(masked.reshape(-1, masks.shape[1]), second)
        fused += np.repeat(from_codes, len(masks), axis=0)
        _normalise_rows(fused, self.norm_gain, self.norm_bias, self.layout.activation == "gelu")
        return np.asarray(fused @ last).reshape(len(continuous), len(masks), -1)

    def _encode_into(self, latents: Array, continuous: Array, categorical: Array) -> None:
        """Encode block by block, so that memory stays bounded."""
        first, second, last = self.float64_weights()
        for rows in row_blocks(len(latents), _BLOCK_ROWS):
            fused = self._fuse(self._hidden(continuous[rows], first), second)
            _add_codes(fused, self.table_places(categorical[rows]), self.tables)
            _normalise_rows(fused, self.norm_gain, self.norm_bias, self.layout.activation == "gelu")
            latents[rows] = fused @ last

    def float64_weights(self) -> tuple[Array, Array, Array]:
        """Return the first, second and latent weights in float64."""
        weights = self.first_weight, self.second_weight, self.latent_weight
        first, second, last = (weight.astype(np.float64) for weight in weights)
        return first, second, last

    def _hidden(self, continuous: Array, first: Array) -> Array:
        """Hidden units of cells [N, hidden_dim]."""
        cells = np.nan_to_num(continuous.astype(np.float64), nan=0.0)
        if self.layout.normalises_cells:
            cells -= cells.mean(axis=1, keepdims=True)
            cells /= np.sqrt((cells**2).mean(axis=1, keepdims=True) + NORM_EPSILON)
        hidden = cells @ first
        hidden += self.first_bias
        _apply_gelu(hidden)
        return hidden

    def _fuse(self, hidden: Array, second: Array) -> Array:
        """What hidden units [N, hidden_dim] add to the fused layer, with its bias."""
        fused = hidden @ second if len(second) else np.zeros((len(hidden), second.shape[1]))
        fused += self.second_bias
        return fused


def row_blocks(n_rows: int, block_rows: int) -> Iterator[slice]:
    """Cut rows into blocks of at most `block_rows`."""
    return (slice(start, start + block_rows) for start in range(0, n_rows, block_rows))


def _as_rows(continuous: Rows, categorical: Rows, n_dim: int) -> tuple[Array, Array]:
    """Cells and codes as arrays of `n_dim` dimensions; columns that are not given are empty."""
    try:
        cells = None if continuous is None else np.asarray(continuous, np.float64)
        codes = None if categorical is None else np.asarray(categorical)
    except (TypeError, ValueError) as problem:
        raise DataError(f"continuous cells must be numbers, NaN if missing: {problem}") from problem
    given = next((array for array in (cells, codes) if array is not None), np.empty((0,) * n_dim))
    empty = (*given.shape[: n_dim - 1], 0)
    cells = np.empty(empty) if cells is None else cells
    codes = np.empty(empty, np.int64) if codes is None else codes
    if cells.ndim != n_dim or codes.ndim != n_dim or cells.shape[:-1] != codes.shape[:-1]:
        expected = f"arrays of {n_dim} dimension{'s' * (n_dim > 1)} with equal rows"
        found = f"{cells.shape} and {codes.shape}"
        raise DataError(f"cells and codes must be {expected}; found {found}")
    if codes.dtype.kind not in "bui" and codes.size:
        expected = "integer codes (-1 for missing)"
        raise DataError(f"categorical cells must be {expected}; found type {codes.dtype}")
    return cells, codes.astype(np.int64, copy=False)


@jit
def _gelu(value: float) -> float:
    return 0.5 * value * (1.0 + math.erf(value * _SQRT_HALF))


@jit
def _apply_gelu(table: Array) -> None:
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            table[row, column] = _gelu(table[row, column])


@jit
def add_code_rows(fused: Array, rows: Array, tables: Array) -> None:
    """Add the table rows of one row's codes to its fused layer [H]."""
    for place in rows:
        for h in range(fused.shape[0]):
            fused[h] += tables[place, h]


@jit
def _add_codes(fused: Array, rows: Array, tables: Array) -> None:
    for n in range(fused.shape[0]):
        add_code_rows(fused[n], rows[n], tables)


@jit
def standardise(values: Array) -> float:
    """Apply LayerNorm without gain and bias to values [H]; return the deviation it divided by."""
    mean, square = 0.0, 0.0
    for h in range(len(values)):
        mean += values[h]
    mean /= len(values)
    for h in range(len(values)):
        values[h] -= mean
        square += values[h] * values[h]
    deviation = math.sqrt(square / len(values) + NORM_EPSILON)
    for h in range(len(values)):
        values[h] /= deviation
    return deviation


@jit
def _normalise_row(fused: Array, gain: Array, bias: Array, gelu: bool) -> None:
    """Apply LayerNorm, and GELU if set, to one row's fused layer [H]."""
    standardise(fused)
    for h in range(fused.shape[0]):
        value = fused[h] * gain[h] + bias[h]
        fused[h] = _gelu(value) if gelu else value


@jit
def _normalise_rows(fused: Array, gain: Array, bias: Array, gelu: bool) -> None:
    for n in range(fused.shape[0]):
        _normalise_row(fused[n], gain, bias, gelu)


@jit
def add_products(values: Array, weight: Array, out: Array) -> None:
    """out [H] += values [I] @ weight [I, H], four inputs at a time."""
    n_inputs, width = weight.shape
    whole = n_inputs - n_inputs % 4
    for i in range(0, whole, 4):
        a, b, c, d = values[i], values[i + 1], values[i + 2], values[i + 3]
        for h in range(width):
            pair = a * weight[i, h] + b * weight[i + 1, h]
            out[h] += pair + c * weight[i + 2, h] + d * weight[i + 3, h]
    for i in range(whole, n_inputs):
        for h in range(width):
            out[h] += values[i] * weight[i, h]


@jit
def _encode_row(
    cells: Array, rows: Array, weights: tuple[Array, ...], normalise: bool, gelu: bool
) -> Array:
    first_weight, first_bias, second_weight, second_bias = weights[:4]
    tables, norm_gain, norm_bias, latent_weight = weights[4:]
    fused = second_bias.astype(np.float64)
    if cells.shape[0] > 0:
        standard = np.empty(cells.shape[0])
        for d in range(cells.shape[0]):
            standard[d] = cells[d] if cells[d] == cells[d] else 0.0
        if normalise:
            standardise(standard)
        hidden = first_bias.astype(np.float64)
        add_products(standard, first_weight, hidden)
        for h in range(hidden.shape[0]):
            hidden[h] = _gelu(hidden[h])
        add_products(hidden, second_weight, fused)
    add_code_rows(fused, rows, tables)
    _normalise_row(fused, norm_gain, norm_bias, gelu)
    latent = np.zeros(latent_weight.shape[1])
    add_products(fused, latent_weight, latent)
    return latent.astype(np.float32)
