"""What each optimisation of the live core earns: transactions per second with and without it.

Runs in this process, without HTTP, on a new SQLite store (FULL) for every measurement.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from turncoat import Detector
from turncoat.serving import records, updater
from turncoat.serving.batcher import MicroBatcher
from turncoat.serving.decoding import Transaction
from turncoat.serving.rounds import PreparedTransaction, ScoringRound
from turncoat.serving.stores import open_store
from turncoat.serving.updater import BeliefUpdater

BATCH_SIZE = 64
N_REPEATS = 5
REQUIRED_GAIN = 0.1  # an optimisation that earns less goes


class SingleRound(ScoringRound):
    """A round that takes one transaction only."""

    def add(self, prepared: PreparedTransaction) -> bool:
        return not self.prepared and super().add(prepared)


class Plain:
    """A codec that leaves bytes as they are."""

    def compress(self, data: bytes, asbytes: bool) -> bytes:
        return data

    def decompress(self, data: memoryview, n_bytes: int, asbytes: bool) -> bytes:
        return bytes(data)


def measure_parts(
    detector: Detector, transactions: Sequence[Transaction]
) -> list[dict[str, float | str]]:
    """Return a row per optimisation: its name, the rates with and without it, and what changes."""
    shuffled = shuffle_locally(transactions, BATCH_SIZE)

    def run_patched(module: Any, name: str, value: Any) -> dict[str, float]:
        with mock.patch.object(module, name, value):
            return run(detector, transactions)

    variants: dict[str, Callable[[], dict[str, float]]] = {
        "base": lambda: run(detector, transactions),
        "one at a time": lambda: run(detector, transactions, max_batch_size=1),
        "one per round": lambda: run_patched(updater, "ScoringRound", SingleRound),
        "plain log": lambda: run_patched(records, "_lz4", Plain()),
        "sorted": lambda: run(detector, shuffled, sort=True),
        "unsorted": lambda: run(detector, shuffled),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in variants}
    for repeat in range(N_REPEATS + 1):  # the first one warms up
        for name, measure in variants.items():
            result = measure()
            if repeat:
                found[name].append(result)
    middle = {
        name: {key: statistics.median(one[key] for one in results) for key in results[0]}
        for name, results in found.items()
    }
    pairs = {
        f"micro-batches of up to {BATCH_SIZE}": ("base", "one at a time"),
        "one scoring pass for a batch": ("base", "one per round"),
        "waiting transactions in order of time": ("sorted", "unsorted"),
        "compressed log (for space)": ("base", "plain log"),
    }
    return [
        {
            "part": part,
            "with": middle[with_]["per_second"],
            "without": middle[without]["per_second"],
            "bytes_with": middle[with_]["bytes"],
            "bytes_without": middle[without]["bytes"],
            "late_with": middle[with_]["late"],
            "late_without": middle[without]["late"],
        }
        for part, (with_, without) in pairs.items()
    ]


def shuffle_locally(transactions: Sequence[Transaction], width: int) -> list[Transaction]:
    """Return the transactions as they arrive over `width` connections: nearly in order."""
    chance = random.Random(0)
    places = [i + chance.uniform(0, width) for i in range(len(transactions))]
    return [one for _, one in sorted(zip(places, transactions, strict=True), key=lambda x: x[0])]


def run(
    detector: Detector,
    transactions: Sequence[Transaction],
    max_batch_size: int = BATCH_SIZE,
    sort: bool = False,
) -> dict[str, float]:
    """Return transactions per second, bytes on disk per transaction, and the share of late ones."""

    async def score(url: str) -> tuple[float, int]:
        store = open_store(url, create=True)
        belief_updater, n_late = BeliefUpdater(store), 0

        async def process(batch: Sequence[Any]) -> Sequence[Any]:
            return await belief_updater.process_batch(detector, batch)

        batcher = MicroBatcher(process, max_batch_size)
        running = asyncio.create_task(batcher.run())
        started = time.perf_counter()
        for i in range(0, len(transactions), BATCH_SIZE):
            some = transactions[i : i + BATCH_SIZE]
            waiting = [batcher.submit(one, sort_time=one.time if sort else None) for one in some]
            n_late += sum(one.late for one in await asyncio.gather(*waiting))
        seconds = time.perf_counter() - started
        batcher.close()
        await running
        await store.close()
        return seconds, n_late

    with tempfile.TemporaryDirectory() as folder:
        seconds, n_late = asyncio.run(score(f"sqlite:///{folder}/store.sqlite"))
        n_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    n = len(transactions)
    return {"per_second": n / seconds, "bytes": n_bytes / n, "late": n_late / n}


def render_parts(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the rows as lines of a Markdown table."""
    lines = [
        "",
        "What each optimisation of the live core earns, in one process without HTTP (SQLite FULL,",
        f"median of {N_REPEATS} rounds in turn; at least {REQUIRED_GAIN:.0%} is required to keep "
        "one for speed):",
        "",
        "| optimisation | scores / s with | without | gain | bytes with (without) "
        "| late with (without) |",
        "|---|---|---|---|---|---|",
    ]
    return lines + [
        f"| {row['part']} | {row['with']:,.0f} | {row['without']:,.0f} "
        f"| {row['with'] / row['without'] - 1:+.0%} "
        f"| {row['bytes_with']:,.0f} ({row['bytes_without']:,.0f}) "
        f"| {row['late_with']:.1%} ({row['late_without']:.1%}) |"
        for row in rows
    ]
