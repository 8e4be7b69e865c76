"""The trained encoder without torch: neighbouring linear layers multiplied into one, embedding tables into what follows them.

Weights are kept in float32 and every sum is taken in float64, so one row and a block of rows give the same latents.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.messages import announced_compilation
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.neural.trained import TrainedEncoder, TrainingReport
from turncoat.numerics.compiled import compiled
from turncoat.panel import Panel
from turncoat.storage import digest

_BLOCK_ROWS = 2048
_NORM_ROUNDING = 1e-5  # torch's LayerNorm adds it to the variance
_ROOT_HALF = math.sqrt(0.5)


_EMBEDDED: WeakKeyDictionary[FoldedEncoder, WeakKeyDictionary[Panel, Panel]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class FoldedEncoder:
    """An encoder ready for use. A code's row in `tables` takes hidden_dim numbers, however narrow its embedding was."""

    layout: EncoderLayout
    first_weight: Array = field(repr=False)  # [D, H] with the gain of the cells' LayerNorm in it
    first_bias: Array = field(repr=False)  # [H]
    second_weight: Array = field(
        repr=False
    )  # [H, H], or [0, H] without continuous columns: the MLP's second layer and its fusion
    second_bias: Array = field(repr=False)  # [H]
    tables: Array = field(
        repr=False
    )  # [sum of C_j + 1, H] embeddings, their projection and its fusion
    norm_gain: Array = field(repr=False)  # [H]
    norm_bias: Array = field(repr=False)  # [H]
    latent_weight: Array = field(repr=False)  # [H, latent_dim]
    head_weight: Array = field(repr=False)  # [latent_dim]
    head_bias: float
    report: TrainingReport | None = None

    @classmethod
    def of(cls, trained: TrainedEncoder | FoldedEncoder) -> FoldedEncoder:
        """Fold a trained encoder; one already folded is returned as it is."""
        return trained if isinstance(trained, FoldedEncoder) else _fold(trained)

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
                raise ConfigError(
                    f"the encoder's {name} must be finite numbers {shape}; found shape {array.shape}"
                )
            object.__setattr__(self, name, array)
        if not math.isfinite(self.head_bias):
            raise ConfigError(
                f"the encoder's head_bias must be a finite number; found {self.head_bias}"
            )

    def __sklearn_clone__(self) -> Self:
        """Itself: nothing about it changes, and clones of a model are to share it."""
        return self

    def embed(self, panel: Panel) -> Panel:
        """The panel with latents in place of its columns; sequences, labels, times and keys are kept.

        Latents are remembered as long as encoder and panel are in use, since many questions are asked about one panel.
        """
        self.layout.check(panel)
        known = _EMBEDDED.setdefault(self, WeakKeyDictionary())
        if panel not in known:
            known[panel] = self._embedded(panel)
        return known[panel]

    def _embedded(self, panel: Panel) -> Panel:
        latents = np.empty((panel.n_rows, self.layout.latent_dim), np.float32)
        with announced_compilation():
            self._encode_into(latents, panel.continuous, panel.categorical)
        return replace(
            panel,
            continuous=latents,
            categorical=np.empty((panel.n_rows, 0), np.int8),
            n_categories=(),
            missing_cells=np.zeros(self.layout.latent_dim, bool),
            missing_codes=np.zeros(0, bool),
        )

    def checked_rows(
        self, continuous: ArrayLike | None, categorical: ArrayLike | None
    ) -> tuple[Array, Array]:
        """Cells [N, D] float64 and codes [N, J] int64, or a refusal of what the encoder does not know."""
        cells, codes = _as_rows(continuous, categorical, 2)
        self.layout.check_widths(cells.shape[1], codes.shape[1], "the rows have")
        self.layout.check_cells(cells)
        self.layout.check_codes(codes)
        return cells, codes

    def checked_row(
        self, continuous: ArrayLike | None, categorical: ArrayLike | None
    ) -> tuple[Array, Array]:
        """Likewise of one row: cells [D] and codes [J]."""
        cells, codes = _as_rows(continuous, categorical, 1)
        self.layout.check_widths(len(cells), len(codes), "the row has")
        self.layout.check_cells(cells[None])
        self.layout.check_codes(codes[None])
        return cells, codes

    def encode(
        self, continuous: ArrayLike | None = None, categorical: ArrayLike | None = None
    ) -> Array:
        """Latents [N, latent_dim] float32 of cells [N, D], NaN if missing, and codes [N, J], -1 if missing."""
        cells, codes = self.checked_rows(continuous, categorical)
        latents = np.empty((len(cells), self.layout.latent_dim), np.float32)
        self._encode_into(latents, cells, codes)
        return latents

    def encode_row(
        self, continuous: ArrayLike | None = None, categorical: ArrayLike | None = None
    ) -> Array:
        """Latents [latent_dim] float32 of one row: cells [D] and codes [J]."""
        cells, codes = self.checked_row(continuous, categorical)
        return _encode_row(
            cells.astype(np.float64),
            self.table_places(codes),
            self.first_weight,
            self.first_bias,
            self.second_weight,
            self.second_bias,
            self.tables,
            self.norm_gain,
            self.norm_bias,
            self.latent_weight,
            self.layout.normalises_cells,
            self.layout.activation == "gelu",
        )

    def head_score(
        self, continuous: ArrayLike | None = None, categorical: ArrayLike | None = None
    ) -> Array:
        """The head's log odds of fraud [N] for rows as in `encode`."""
        return self.head_of(self.encode(continuous, categorical))

    def head_of(self, latents: ArrayLike) -> Array:
        """The head's log odds of fraud for latents [..., latent_dim]."""
        return np.asarray(
            np.asarray(latents, np.float64) @ self.head_weight.astype(np.float64) + self.head_bias
        )

    @property
    def digest(self) -> str:
        """Tells it from other encoders."""
        return digest([repr(self.layout), self.head_bias], self.arrays())

    def arrays(self) -> dict[str, Array]:
        """The arrays by name."""
        return {
            part.name: value
            for part in fields(self)
            if isinstance(value := getattr(self, part.name), np.ndarray)
        }

    def table_places(self, codes: Array) -> Array:
        """Rows of `tables` for codes [..., J]; the last row of a column's table is for a missing code."""
        return (
            np.where(codes < 0, np.asarray(self.layout.n_categories, np.int64), codes)
            + self.layout.table_starts
        )

    def draws(self, continuous: Array, categorical: Array, masks: Array) -> Array:
        """Latents [N, M, latent_dim] of N rows with the hidden units multiplied by each of M masks [M, hidden_dim]."""
        first, second, last = (
            weight.astype(np.float64)
            for weight in (self.first_weight, self.second_weight, self.latent_weight)
        )
        masked = self._hidden(continuous, first)[:, None, :] * masks
        of_codes = np.zeros((len(continuous), len(self.second_bias)))
        _add_codes(of_codes, self.table_places(categorical), self.tables)
        fused = self._fused(masked.reshape(-1, masks.shape[1]), second)
        fused += np.repeat(of_codes, len(masks), axis=0)
        _settle_rows(fused, self.norm_gain, self.norm_bias, self.layout.activation == "gelu")
        return np.asarray(fused @ last).reshape(len(continuous), len(masks), -1)

    def _encode_into(self, latents: Array, continuous: Array, categorical: Array) -> None:
        """Blocks of rows, so that memory stays bounded."""
        first, second, last = (
            weight.astype(np.float64)
            for weight in (self.first_weight, self.second_weight, self.latent_weight)
        )
        for rows in _blocks(len(latents)):
            fused = self._fused(self._hidden(continuous[rows], first), second)
            _add_codes(fused, self.table_places(categorical[rows]), self.tables)
            _settle_rows(fused, self.norm_gain, self.norm_bias, self.layout.activation == "gelu")
            latents[rows] = fused @ last

    def _hidden(self, continuous: Array, first: Array) -> Array:
        """The hidden units of cells [N, hidden_dim]."""
        hidden = self._normalised(continuous) @ first
        hidden += self.first_bias
        _gelu_cells(hidden)
        return hidden

    def _fused(self, hidden: Array, second: Array) -> Array:
        """What hidden units [N, hidden_dim] bring to the fused layer, with its bias."""
        fused = hidden @ second if len(second) else np.zeros((len(hidden), second.shape[1]))
        fused += self.second_bias
        return fused

    def _normalised(self, continuous: Array) -> Array:
        cells = np.nan_to_num(continuous.astype(np.float64), nan=0.0)
        if self.layout.normalises_cells:
            cells -= cells.mean(axis=1, keepdims=True)
            cells /= np.sqrt((cells**2).mean(axis=1, keepdims=True) + _NORM_ROUNDING)
        return cells


def _fold(trained: TrainedEncoder) -> FoldedEncoder:
    layout, hidden = trained.layout, trained.layout.hidden_dim
    weights = {name: array.astype(np.float64) for name, array in trained.weights.items()}
    fusion, second_bias = weights["fusion.weight"], weights["fusion.bias"]
    first_weight, first_bias, second_weight = (
        np.zeros((0, hidden)),
        np.zeros(hidden),
        np.zeros((0, hidden)),
    )
    tables = np.zeros((int(layout.table_rows.sum()), hidden))
    if layout.n_continuous:
        inner, of_cells = weights["cell_layers.0.weight"], fusion[:, :hidden]
        gain = weights.get("cell_norm.weight", np.ones(layout.n_continuous))
        shift = weights.get("cell_norm.bias", np.zeros(layout.n_continuous))
        first_weight, first_bias = (inner * gain).T, inner @ shift + weights["cell_layers.0.bias"]
        second_weight = (of_cells @ weights["cell_layers.3.weight"]).T
        second_bias = second_bias + of_cells @ weights["cell_layers.3.bias"]
    if layout.n_categories:
        of_codes = fusion[:, -hidden:]
        projection = of_codes @ weights["code_projection.weight"]
        second_bias = second_bias + of_codes @ weights["code_projection.bias"]
        at = 0
        for place, (width, columns) in enumerate(layout.table_groups):
            start = 0
            for column in columns:
                n_rows, target = int(layout.table_rows[column]), int(layout.table_starts[column])
                own = weights[f"tables.{place}.weight"][start : start + n_rows]
                tables[target : target + n_rows] = own @ projection[:, at : at + width].T
                start, at = start + n_rows, at + width
    return FoldedEncoder(
        layout=layout,
        first_weight=first_weight,
        first_bias=first_bias,
        second_weight=second_weight,
        second_bias=second_bias,
        tables=tables,
        norm_gain=weights["fusion_norm.weight"],
        norm_bias=weights["fusion_norm.bias"],
        latent_weight=weights["projection.weight"].T,
        head_weight=trained.head_weight,
        head_bias=trained.head_bias,
        report=trained.report,
    )


def _blocks(n_rows: int) -> Iterator[slice]:
    return (
        slice(start, min(start + _BLOCK_ROWS, n_rows)) for start in range(0, n_rows, _BLOCK_ROWS)
    )


def _as_rows(
    continuous: ArrayLike | None, categorical: ArrayLike | None, n_dim: int
) -> tuple[Array, Array]:
    """Cells and codes as arrays of the wanted dimension; what is not given has no columns."""
    try:
        cells = None if continuous is None else np.asarray(continuous, np.float64)
        codes = None if categorical is None else np.asarray(categorical)
    except (TypeError, ValueError) as problem:
        raise DataError(f"continuous cells must be numbers, NaN if missing: {problem}") from problem
    given = next((array for array in (cells, codes) if array is not None), np.empty((0,) * n_dim))
    none = (*given.shape[: n_dim - 1], 0)
    cells = np.empty(none) if cells is None else cells
    codes = np.empty(none, np.int64) if codes is None else codes
    if cells.ndim != n_dim or codes.ndim != n_dim or cells.shape[:-1] != codes.shape[:-1]:
        found = f"found {cells.shape} and {codes.shape}"
        raise DataError(
            f"cells and codes must be arrays of {n_dim} dimension{'s' * (n_dim > 1)} with equal rows; {found}"
        )
    if codes.dtype.kind not in "bui" and codes.size:
        raise DataError(
            f"categorical cells must be integer codes (-1 for missing); found type {codes.dtype}"
        )
    return cells, codes.astype(np.int64, copy=False)


@compiled
def _gelu(value: float) -> float:
    return 0.5 * value * (1.0 + math.erf(value * _ROOT_HALF))


@compiled
def _gelu_cells(table: Array) -> None:
    for row in range(table.shape[0]):
        for column in range(table.shape[1]):
            table[row, column] = _gelu(table[row, column])


@compiled
def add_code_rows(fused: Array, rows: Array, tables: Array) -> None:
    """What the codes of one row add to its fused layer [H]."""
    for place in rows:
        for h in range(fused.shape[0]):
            fused[h] += tables[place, h]


@compiled
def _add_codes(fused: Array, rows: Array, tables: Array) -> None:
    for n in range(fused.shape[0]):
        add_code_rows(fused[n], rows[n], tables)


@compiled
def _settle(fused: Array, gain: Array, bias: Array, gelu: bool) -> None:
    """One row's fused layer [H]: LayerNorm, then GELU if wanted."""
    width = fused.shape[0]
    mean = 0.0
    for h in range(width):
        mean += fused[h]
    mean /= width
    variance = 0.0
    for h in range(width):
        fused[h] -= mean
        variance += fused[h] * fused[h]
    scale = 1.0 / math.sqrt(variance / width + _NORM_ROUNDING)
    for h in range(width):
        settled = fused[h] * scale * gain[h] + bias[h]
        fused[h] = _gelu(settled) if gelu else settled


@compiled
def _settle_rows(fused: Array, gain: Array, bias: Array, gelu: bool) -> None:
    for n in range(fused.shape[0]):
        _settle(fused[n], gain, bias, gelu)


@compiled
def add_products(values: Array, weight: Array, out: Array) -> None:
    """out [H] += values [I] @ weight [I, H], four inputs at a time."""
    n_inputs, width = weight.shape
    whole = n_inputs - n_inputs % 4
    for i in range(0, whole, 4):
        a, b, c, d = values[i], values[i + 1], values[i + 2], values[i + 3]
        for h in range(width):
            out[h] += (
                a * weight[i, h]
                + b * weight[i + 1, h]
                + c * weight[i + 2, h]
                + d * weight[i + 3, h]
            )
    for i in range(whole, n_inputs):
        for h in range(width):
            out[h] += values[i] * weight[i, h]


@compiled
def _encode_row(
    cells: Array,
    rows: Array,
    first_weight: Array,
    first_bias: Array,
    second_weight: Array,
    second_bias: Array,
    tables: Array,
    norm_gain: Array,
    norm_bias: Array,
    latent_weight: Array,
    normalise: bool,
    gelu: bool,
) -> Array:
    fused = second_bias.astype(np.float64)
    if cells.shape[0] > 0:
        standard = np.empty(cells.shape[0])
        mean = 0.0
        for d in range(cells.shape[0]):
            standard[d] = cells[d] if cells[d] == cells[d] else 0.0
            mean += standard[d]
        if normalise:
            mean /= cells.shape[0]
            variance = 0.0
            for d in range(cells.shape[0]):
                standard[d] -= mean
                variance += standard[d] * standard[d]
            scale = 1.0 / math.sqrt(variance / cells.shape[0] + _NORM_ROUNDING)
            for d in range(cells.shape[0]):
                standard[d] *= scale
        hidden = first_bias.astype(np.float64)
        add_products(standard, first_weight, hidden)
        for h in range(hidden.shape[0]):
            hidden[h] = _gelu(hidden[h])
        add_products(hidden, second_weight, fused)
    add_code_rows(fused, rows, tables)
    _settle(fused, norm_gain, norm_bias, gelu)
    latent = np.zeros(latent_weight.shape[1])
    add_products(fused, latent_weight, latent)
    return latent.astype(np.float32)
