"""Transactions against stored beliefs: read, score, write all or nothing, and again if somebody was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence

from turncoat.errors import ContentionError, StoreError
from turncoat.scoring import Detector
from turncoat.serving.answers import Given
from turncoat.serving.attempt import Attempt, Rules
from turncoat.serving.fields import Transaction
from turncoat.serving.known import Known, KnownRecords, Lost
from turncoat.serving.stores import Change, Store
from turncoat.serving.turns import Turns

_ATTEMPTS = 100
_LONGEST_PAUSE = 0.02  # seconds between two tries


def pauses() -> Iterator[float]:
    """Seconds to wait before each try at a write that others may be faster at; a ContentionError if they always are."""
    for attempt in range(_ATTEMPTS):
        yield random.uniform(0.0, min(0.001 * attempt, _LONGEST_PAUSE))
    raise ContentionError(f"others wrote the same records {_ATTEMPTS} times in a row. Try again later, or use fewer workers")


class Ledger:
    """Keeps a store's beliefs, by one detector at a time."""

    def __init__(self, store: Store, rules: Rules | None = None, most_known: int = 0) -> None:
        """The store belongs to the caller. `most_known` records are remembered, where nobody else writes them all the time."""
        self.store, self.rules = store, rules or Rules()
        self._known = KnownRecords(most_known)
        self._scoring, self._writing = Turns(), asyncio.Lock()

    async def score(self, detector: Detector, batch: Sequence[Transaction], beside: Sequence[Change] = ()) -> list[Given | Exception]:
        """Answers in order, of which none is given before it is written; a refused transaction changes nothing.

        Batches may overlap: while one is written the next is scored, with what the first will leave. If the first has to be tried again, it
        is before the next, which has to be as well; if it fails, so do those of the next that build on it. `beside` are records of the
        caller's to be written in the same instant.
        """
        given: dict[int, Given | Exception] = {}
        number = self._scoring.number()
        try:
            for pause in pauses():
                left = [place for place in range(len(batch)) if place not in given]
                found, lost = await self._tried(detector, [batch[place] for place in left], beside, number, pause)
                for place, one in zip(left, found, strict=True):
                    problem = lost.get(batch[place].keys[0])
                    if problem is not None or batch[place].keys[0] not in lost:
                        given[place] = problem or one
                if len(given) == len(batch):
                    break
        except StoreError as problem:
            if not given:
                raise
            given = dict.fromkeys(range(len(batch)), problem) | given  # those that are written have their answer all the same
        return [given[place] for place in range(len(batch))]

    async def _tried(
        self, detector: Detector, batch: Sequence[Transaction], beside: Sequence[Change], number: int, pause: float
    ) -> tuple[list[Given | Exception], Lost]:
        """Answers in order, and the keys of the parties for whom they do not count: nothing was written for those."""
        if pause:
            async with self._scoring.turn(number):  # so that those who came later wait, too
                await asyncio.sleep(pause)
        async with self._scoring.turn(number):
            attempted, found = await self._scored(detector, batch)
            done = asyncio.get_running_loop().create_future()
            made = {key: Known(*record, done) for key, record in attempted.made.items()}
            self._known.add(made)
        return found, await self._written(attempted, batch, beside, made, done)

    async def _scored(self, detector: Detector, batch: Sequence[Transaction]) -> tuple[Attempt, list[Given | Exception]]:
        """A try at a batch, with the records that are known and, of the others, those that are stored."""
        keys = dict.fromkeys(key for one in batch for key in one.keys)
        known = self._known.of(keys)
        others = [key for key in keys if key not in known]
        try:
            stored = await self.store.read(others) if others else {}
            attempted = Attempt(self.store, self.rules, detector, stored, known)
            return attempted, await attempted.take(batch)
        except StoreError:
            self._known.forget()
            raise

    async def _written(
        self,
        attempted: Attempt,
        batch: Sequence[Transaction],
        beside: Sequence[Change],
        made: Mapping[str, Known],
        done: asyncio.Future[None],
    ) -> Lost:
        """Write what was tried, after those who were before it; for whom that could not be done, and why if it is no use to try again."""
        lost: Lost = dict.fromkeys(made)
        try:
            async with self._writing:
                lost = await attempted.write(batch, beside)
        except StoreError as problem:
            lost = dict.fromkeys(made, problem)
            self._known.forget()
            raise
        finally:
            self._known.settle(made, lost)
            done.set_result(None)
        self._known.drop(lost)
        return lost
