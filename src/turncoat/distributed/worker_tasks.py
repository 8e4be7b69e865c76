"""What a worker does with one part of the rows: read it, keep it packed, answer questions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.reading import read
from turncoat.distributed.shards import Shard, check_shard
from turncoat.features import Features
from turncoat.models.fit_rows import FitOptions, PackedPanel, PanelRows
from turncoat.models.initialisation import RowSample, Runs
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.numerics.layout import LogModel, Statistics

ReadPart = Callable[[Any], PanelRows]


@dataclass(frozen=True, eq=False)
class ShardReader:
    """Reads parts of a folder, with fitted features."""

    folder: Path
    features: Features

    def __call__(self, shard: Shard) -> PanelRows:
        """Return the rows of one part; raise a DataError for a missing or damaged file."""
        path = self.folder / shard.file
        check_shard(path, shard)
        transactions = read(path, self.features.plan.schema, with_labels=False)
        return PanelRows(self.features.transform(transactions))


def take_rows(rows: PanelRows) -> PanelRows:
    """Return rows that were given directly, as `ShardReader` returns those of a file."""
    return rows


class PartFacts(NamedTuple):
    """What the driver keeps of a part."""

    lengths: Array  # [U] rows of each sequence
    n_rows: float  # at the weights of the sequences
    cell_type: str


@dataclass(frozen=True, eq=False)
class WorkerPart:
    """A packed part in a worker's memory."""

    packed: PackedPanel

    def __sizeof__(self) -> int:
        """Bytes, by which Dask decides what to move and what to keep on disk."""
        panel, weights = self.packed.rows.panel, self.packed.rows.weights
        times = 0 if panel.times is None else panel.times.nbytes
        own = 0 if weights is None else weights.nbytes
        others = sum(
            array.nbytes for array in self.packed.observations if isinstance(array, np.ndarray)
        )
        shared = self.packed.observations.continuous.nbytes
        return int(panel.nbytes + times + own + others - shared)


def build_part(
    part: Any,
    read_part: ReadPart,
    encoder: FrozenEncoder | None,
    is_fitted: Array,
    options: FitOptions,
) -> WorkerPart:
    """Read a part and pack it for a fit, without what a fit does not need."""
    rows = read_part(part)
    if encoder is not None:
        rows = rows.embed(encoder)
    unused: dict[str, Any] = dict.fromkeys(("labels", "customers", "ids", "causes"))
    times = rows.panel.times if options.has_gaps else None
    rows = replace(rows, panel=replace(rows.panel, times=times, **unused))
    return WorkerPart(rows.pack(is_fitted, options))


def summarize(part: WorkerPart) -> PartFacts:
    """Return what the driver keeps of a part."""
    packed = part.packed
    return PartFacts(packed.rows.panel.lengths, packed.n_rows, packed.cell_type.name)


def guess_means(part: WorkerPart) -> Array:
    """Return rough means of the columns [D]."""
    return part.packed.guess_means()


def sum_moments(part: WorkerPart, origin: Array) -> Statistics:
    """Return statistics of all rows in one state, with residuals from an origin [D]."""
    return part.packed.sum_moments(origin)


def take_runs(part: WorkerPart, runs: Runs) -> RowSample:
    """Return runs of rows of a part."""
    return part.packed.take_runs(runs)


def collect(part: WorkerPart, model: LogModel) -> Statistics:
    """Return the expected sufficient statistics of a part under a model."""
    return part.packed.collect(model)
