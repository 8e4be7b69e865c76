"""The rows of a fit: in memory, or anywhere else that can collect statistics of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError
from turncoat.models.anchors import Anchors
from turncoat.models.initialisation import (
    SUBSAMPLE_ROWS,
    ColumnMoments,
    RowSample,
    Runs,
    draw_runs,
    guess_means,
    sum_moments,
    take_runs,
)
from turncoat.numerics import engine
from turncoat.numerics.generators import gap_codes
from turncoat.numerics.layout import ColumnLayout, LogModel, Statistics
from turncoat.numerics.structures import Observations
from turncoat.panel import Panel

if TYPE_CHECKING:
    from turncoat.models.neural.frozen import FrozenEncoder

_MAX_DRAWS = 10  # of a sample


class FitOptions(NamedTuple):
    """What a model asks of the rows that it is fitted to."""

    n_states: int
    precision: str
    n_threads: int
    has_gaps: bool  # whether transitions depend on the time between rows


class PackedRows(Protocol):
    """Rows ready for a fit."""

    @property
    def n_rows(self) -> float:
        """Number of rows, at the weights of their sequences."""

    def measure_columns(self) -> ColumnMoments:
        """Return mean and variance of each continuous column."""

    def draw_sample(self, seed: int) -> RowSample:
        """Return some rows to start from."""

    def collect(self, model: LogModel) -> Statistics:
        """Return the expected sufficient statistics under a model: the E-step."""

    def list_batches(self, n_batches: int) -> Sequence[PackedRows]:
        """Return the rows in parts of whole sequences, at most so many and of similar size."""


class FitRows(Protocol):
    """Rows that a model can be fitted to."""

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns D."""

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Number of codes of each categorical column [J]."""

    def pack(self, is_fitted: Array, options: FitOptions) -> PackedRows:
        """Prepare some columns, a mask [D + J], for a fit."""

    def embed(self, encoder: FrozenEncoder) -> FitRows:
        """Return the rows with an encoder's latents as columns."""


@dataclass(frozen=True, eq=False)
class PanelRows:
    """The rows of a panel in memory."""

    panel: Panel
    anchors: Anchors | None = None
    weights: Array | None = None  # [U] of the sequences, above 0

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns D."""
        return self.panel.n_continuous

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Number of codes of each categorical column [J]."""
        return self.panel.n_categories

    def pack(self, is_fitted: Array, options: FitOptions) -> PackedPanel:
        """Prepare some columns, a mask [D + J], for a fit."""
        panel = self.panel if is_fitted.all() else self.panel.take_columns(is_fitted)
        return PackedPanel.pack(replace(self, panel=panel), options)

    def embed(self, encoder: FrozenEncoder) -> PanelRows:
        """Return the rows with an encoder's latents as columns."""
        return replace(self, panel=encoder.embed(self.panel))


@dataclass(frozen=True, eq=False)
class PackedPanel:
    """The rows of a panel as the kernels read them."""

    rows: PanelRows
    options: FitOptions
    layout: ColumnLayout
    observations: Observations
    anchor_table: Array | None
    gaps: Array | None  # the distinct gap codes

    @classmethod
    def pack(cls, rows: PanelRows, options: FitOptions) -> Self:
        """Pack all columns of these rows."""
        panel = rows.panel
        layout = ColumnLayout.create(panel.n_categories, panel.missing_cells, panel.missing_codes)
        packed = pack_panel(layout, rows, options.n_states, options.has_gaps)
        return cls(rows, options, layout, *packed)

    @property
    def n_rows(self) -> float:
        """Number of rows, at the weights of their sequences."""
        rows = self.rows
        return (
            rows.panel.n_rows if rows.weights is None else float(rows.weights @ rows.panel.lengths)
        )

    def measure_columns(self) -> ColumnMoments:
        """Return mean and variance of each continuous column."""
        return ColumnMoments.from_statistics(self.sum_moments(self.guess_means()), self.cell_type)

    @property
    def cell_type(self) -> np.dtype[np.floating]:
        """The type of continuous cells."""
        return np.dtype(self.observations.continuous.dtype)

    def guess_means(self) -> Array:
        """Return rough means of the columns [D], as an origin for sums."""
        return guess_means(self.observations.continuous)

    def sum_moments(self, origin: Array) -> Statistics:
        """Return statistics of all rows in one state, with residuals from an origin [D]."""
        numbers = self.options.precision, self.options.n_threads
        return sum_moments(self.layout, self.observations, origin, numbers)

    def draw_sample(self, seed: int) -> RowSample:
        """Return some rows to start from."""
        return self.take_runs(draw_runs(self.rows.panel.lengths, np.random.default_rng(seed)))

    def take_runs(self, runs: Runs) -> RowSample:
        """Return runs of rows with their anchors and weights."""
        panel, anchors, weights = self.rows.panel, self.rows.anchors, self.rows.weights
        sample, places = take_runs(panel, runs)
        if anchors is not None:
            anchors = replace(anchors, codes=np.asarray(anchors.codes)[places])
        return RowSample(sample, anchors, None if weights is None else weights[runs.sequences])

    def collect(self, model: LogModel) -> Statistics:
        """Return the expected sufficient statistics under a model: the E-step."""
        layout, weights = self.layout, self.rows.weights
        numbers = self.cell_type, self.options.precision
        tables = layout.build_tables(model, *numbers, self.anchor_table, self.gaps)
        sums, log_likelihoods = engine.collect(self.observations, tables, self.options.n_threads)
        weighted = log_likelihoods if weights is None else weights * log_likelihoods
        total, jumps = float(weighted.sum()), model.count_jumps(sums, self.gaps)
        return layout.build_statistics(tables, sums, total, self.n_rows, jumps)

    def list_batches(self, n_batches: int) -> list[PackedPanel]:
        """Return the rows in parts of neighbouring sequences, which share memory with all."""
        offsets = self.observations.offsets
        cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], n_batches + 1))
        return [self._take_run(*cut) for cut in pairwise(np.unique(cuts).tolist())]

    def _take_run(self, first: int, last: int) -> PackedPanel:
        """Return the sequences from `first` up to `last`."""
        rows, all_rows = self.rows, self.observations
        start, stop = all_rows.offsets[[first, last]].tolist()
        names = ("continuous", "flags", "levels", "anchors", "gaps")
        taken = {name: getattr(all_rows, name)[start:stop] for name in names}
        taken["offsets"] = all_rows.offsets[first : last + 1] - start
        taken["weights"] = all_rows.weights[first:last]
        weights = None if rows.weights is None else rows.weights[first:last]
        anchors = rows.anchors
        if anchors is not None:
            anchors = replace(anchors, codes=np.asarray(anchors.codes)[start:stop])
        part = PanelRows(rows.panel[first:last], anchors, weights)
        return replace(self, rows=part, observations=all_rows._replace(**taken))


def take_sample(packed: PackedRows, seed: int, options: FitOptions) -> PackedPanel:
    """Return some of the rows, in memory and ready for a fit: several draws as one."""
    n_draws = min(_MAX_DRAWS, max(1, round(packed.n_rows / SUBSAMPLE_ROWS)))
    draws = [packed.draw_sample(seed + i) for i in range(n_draws)]
    anchors, weights = draws[0].anchors, draws[0].weights
    if anchors is not None:
        codes = [np.asarray(one.anchors.codes) for one in draws if one.anchors is not None]
        anchors = replace(anchors, codes=np.concatenate(codes))
    if weights is not None:
        weights = np.concatenate([one.weights for one in draws if one.weights is not None])
    panel = Panel.join([one.panel for one in draws])
    return PackedPanel.pack(PanelRows(panel, anchors, weights), options)


def pack_panel(
    layout: ColumnLayout, rows: PanelRows, n_states: int, has_gaps: bool
) -> tuple[Observations, Array | None, Array | None]:
    """Return rows as the kernels read them, the anchors' table and the distinct gap codes."""
    panel, anchors, codes, table = rows.panel, rows.anchors, None, None
    if anchors is not None:
        if not isinstance(anchors, Anchors):
            expected = "Anchors(codes, allowed_states), or None"
            raise ConfigError(f"anchors must be {expected}; found {type(anchors).__name__}")
        codes, table = anchors.check_codes(panel.n_rows), anchors.log_weights(n_states)
    gaps, places = None, None
    if has_gaps:
        gaps, places = np.unique(gap_codes(panel.gaps_s), return_inverse=True)
    columns = panel.continuous, panel.categorical, panel.offsets
    return layout.pack(*columns, codes, places, rows.weights), table, gaps
