"""Transactions against stored beliefs: read, score, write all or nothing, and again if somebody was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from turncoat.errors import ContentionError
from turncoat.scoring import Detector
from turncoat.serving.attempt import Attempt, Given, Rules
from turncoat.serving.fields import Transaction
from turncoat.serving.stores import Change, Store

_ATTEMPTS = 100
_LONGEST_PAUSE = 0.02  # seconds between two tries


async def attempts() -> AsyncIterator[None]:
    """Tries at a write that others may be faster at; a ContentionError if they always are."""
    for attempt in range(_ATTEMPTS):
        yield
        await asyncio.sleep(random.uniform(0.0, min(0.001 * attempt, _LONGEST_PAUSE)))
    raise ContentionError(f"others wrote the same records {_ATTEMPTS} times in a row. Try again later, or use fewer workers")


class Ledger:
    """Keeps a store's beliefs, by one detector at a time."""

    def __init__(self, store: Store, rules: Rules | None = None) -> None:
        """The store belongs to the caller."""
        self.store, self.rules = store, rules or Rules()
        self._order = asyncio.Lock()
        self._busy: dict[str, asyncio.Future[None]] = {}  # records of batches under way, and when they are done

    async def score(self, detector: Detector, batch: Sequence[Transaction], beside: Sequence[Change] = ()) -> list[Given | Exception]:
        """Answers in order, of which none is given before all are written; a refused transaction changes nothing.

        Batches may overlap: one that shares a record with an earlier one waits for it. `beside` are records of the caller's to be written
        in the same instant.
        """
        given: dict[int, Given | Exception] = {}
        async with self._turn(_keys(batch)):
            async for _ in attempts():
                left = [place for place in range(len(batch)) if place not in given]
                tried = [batch[place] for place in left]
                attempted = Attempt(self.store, self.rules, detector, await self.store.read(_keys(tried)))
                found = await attempted.take(tried)
                written = await attempted.write(tried, beside)
                given |= {place: one for place, one, is_written in zip(left, found, written, strict=True) if is_written}
                if len(given) == len(batch):
                    break
        return [given[place] for place in range(len(batch))]

    @asynccontextmanager
    async def _turn(self, keys: Sequence[str]) -> AsyncIterator[None]:
        """Records for oneself, as far as this process goes, in the order they were asked for."""
        async with self._order:
            while waiting := {self._busy[key] for key in keys if key in self._busy}:
                await asyncio.wait(waiting)
            done = asyncio.get_running_loop().create_future()
            self._busy |= dict.fromkeys(keys, done)
        try:
            yield
        finally:
            for key in keys:
                del self._busy[key]
            done.set_result(None)


def _keys(batch: Sequence[Transaction]) -> list[str]:
    """Where the records of all parties are, each once."""
    return list(dict.fromkeys(key for one in batch for key in one.keys))
