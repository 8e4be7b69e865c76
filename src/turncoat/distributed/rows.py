"""The rows of a fit on a cluster: sums of the parts, always added in the order of the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.distributed import worker_tasks as work
from turncoat.distributed.clusters import gather, submit
from turncoat.errors import DataError
from turncoat.models.fit_rows import FitOptions
from turncoat.models.initialisation import ColumnMoments, RowSample, Runs, draw_runs
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.numerics.layout import LogModel, Statistics
from turncoat.panel import Panel
from turncoat.progress import progress_bars

if TYPE_CHECKING:
    from distributed import Client, Future


class PartList(NamedTuple):
    """Parts of a table, and how a worker reads one."""

    names: tuple[str, ...]  # for messages
    parts: tuple[Any, ...]
    read_part: work.ReadPart
    n_continuous: int
    n_categories: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ClusterRows:
    """Rows that workers read, one task a part."""

    client: Client
    part_list: PartList
    encoder: FrozenEncoder | None = None
    progress: bool | None = None

    @property
    def n_continuous(self) -> int:
        """Number of continuous columns D."""
        return self.part_list.n_continuous

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Number of codes of each categorical column [J]."""
        return self.part_list.n_categories

    def embed(self, encoder: FrozenEncoder) -> ClusterRows:
        """Return rows of latents; workers encode them."""
        latents = self.part_list._replace(n_continuous=encoder.layout.latent_dim, n_categories=())
        return replace(self, part_list=latents, encoder=encoder)

    def pack(self, is_fitted: Array, options: FitOptions) -> PackedParts:
        """Have workers read the parts and keep some columns, a mask [D + J], ready for a fit."""
        # A worker works on as many parts at once as it has threads.
        names, parts, read_part, *_ = self.part_list
        own = read_part, self.encoder, is_fitted, options._replace(n_threads=1)
        futures = submit(self.client, work.build_part, names, parts, *own)
        with progress_bars(self.progress) as show:
            total = len(futures)
            show("reading parts", 0, total)
            asked = submit(self.client, work.summarize, names, futures)
            found = gather(self.client, asked, lambda n_done: show("reading parts", n_done, total))
            show("reading parts", total, total)
        for name, one in zip(names, found, strict=True):
            if one.cell_type != found[0].cell_type:
                rule = f"its cells are {one.cell_type}, and {found[0].cell_type} in {names[0]}"
                raise DataError(f"{name}: {rule}. Give all parts the same type")
        return PackedParts(self.client, names, tuple(futures), tuple(found))


@dataclass(frozen=True, eq=False)
class PackedParts:
    """Parts in the memory of workers. Dask reads a part again if its worker dies."""

    client: Client
    names: tuple[str, ...]
    futures: tuple[Future, ...]
    summaries: tuple[work.PartFacts, ...]

    @property
    def n_rows(self) -> float:
        """Number of rows, at the weights of their sequences."""
        return sum(one.n_rows for one in self.summaries)

    def measure_columns(self) -> ColumnMoments:
        """Return mean and variance of each continuous column."""
        first = submit(self.client, work.guess_means, self.names[:1], self.futures[:1])
        (origin,) = gather(self.client, first)
        moments = self._sum(work.sum_moments, origin)
        return ColumnMoments.from_statistics(moments, self.summaries[0].cell_type)

    def collect(self, model: LogModel) -> Statistics:
        """Return the expected sufficient statistics under a model: the E-step."""
        return self._sum(work.collect, model)

    def list_batches(self, n_batches: int) -> list[PackedParts]:
        """Return the rows in groups of neighbouring parts, which stay where they are."""
        n_parts = len(self.names)
        cuts = np.linspace(0, n_parts, min(n_batches, n_parts) + 1).astype(int).tolist()
        return [
            replace(
                self,
                names=self.names[first:last],
                futures=self.futures[first:last],
                summaries=self.summaries[first:last],
            )
            for first, last in pairwise(cuts)
        ]

    def draw_sample(self, seed: int) -> RowSample:
        """Return the rows to start from that one process would draw from the joined parts."""
        lengths = [one.lengths for one in self.summaries]
        runs = draw_runs(np.concatenate(lengths), np.random.default_rng(seed))
        offsets = np.cumsum([0, *map(len, lengths)])
        owners = np.searchsorted(offsets, runs.sequences, side="right") - 1
        drawn = [np.flatnonzero(owners == part) for part in range(len(lengths))]
        used = [part for part, places in enumerate(drawn) if len(places)]
        futures = []
        for part in used:
            sequences, starts, sizes = (array[drawn[part]] for array in runs)
            own = Runs(sequences - offsets[part], starts, sizes)
            one = self.names[part : part + 1], self.futures[part : part + 1]
            futures += submit(self.client, work.take_runs, *one, own)
        samples = gather(self.client, futures)
        order = np.argsort(np.concatenate([drawn[part] for part in used]))
        return _join_samples(samples, order)

    def _sum(self, task: Callable[..., Statistics], *args: Any) -> Statistics:
        """Return the sums of all parts, added in their order."""
        futures = submit(self.client, task, self.names, self.futures, *args)
        found: list[Statistics] = gather(self.client, futures)
        return reduce(add, found)


def _join_samples(samples: Sequence[RowSample], order: Array) -> RowSample:
    """Return samples as one, its sequences in this order."""
    panel = Panel.join([sample.panel for sample in samples])
    given = [sample.anchors for sample in samples if sample.anchors is not None]
    anchors = None
    if given:  # all parts have anchors, or none
        codes = np.concatenate([np.asarray(one.codes) for one in given])
        by_sequence = np.split(codes, panel.offsets[1:-1])
        anchors = replace(given[0], codes=np.concatenate([by_sequence[u] for u in order]))
    weights = None
    if any(sample.weights is not None for sample in samples):
        weights = np.concatenate([_get_weights(sample) for sample in samples])[order]
    return RowSample(panel[order], anchors, weights)


def _get_weights(sample: RowSample) -> Array:
    weights = sample.weights
    return np.ones(sample.panel.n_sequences) if weights is None else weights
