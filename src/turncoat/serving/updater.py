"""Transactions against stored beliefs: read, score, write all or nothing, and again if somebody was faster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from turncoat.errors import ContentionError, StoreError
from turncoat.scoring import Detector
from turncoat.serving.attempt import BatchUpdate, UpdatePolicy
from turncoat.serving.cache import CachedRecord, RecordCache
from turncoat.serving.decoding import Transaction
from turncoat.serving.priority_lock import PriorityLock
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import RecordWrite, Store

_ATTEMPTS = 100
_LONGEST_PAUSE = 0.02  # seconds between two tries


def pauses() -> Iterator[float]:
    """Seconds to wait before each try at a write that others may be faster at; a ContentionError if they always are."""
    for attempt in range(_ATTEMPTS):
        yield random.uniform(0.0, min(0.001 * attempt, _LONGEST_PAUSE))
    raise ContentionError(
        f"others wrote the same records {_ATTEMPTS} times in a row. Try again later, or use fewer workers"
    )


class Call:
    """A batch that is under way."""

    def __init__(self, number: int, batch: Sequence[Transaction]) -> None:
        """Numbers rise with every call."""
        self.number, self.batch = number, batch
        self.given: dict[int, ScoredResponse | Exception] = {}  # by their places in the batch
        self.failed: dict[
            str, StoreError
        ] = {}  # customers who had an earlier transaction that failed, and how

    def left(self) -> list[int]:
        """The places of those without an answer; there is no other for customers who failed."""
        places = [place for place in range(len(self.batch)) if place not in self.given]
        if self.failed:
            self.given |= {
                place: self.failed[key]
                for place in places
                if (key := self.batch[place].keys[0]) in self.failed
            }
            places = [place for place in places if place not in self.given]
        return places

    def customers_left(self) -> set[str]:
        """Of whom a transaction has no answer yet."""
        return {one.keys[0] for place, one in enumerate(self.batch) if place not in self.given}


class Tried:
    """A try at some of a batch: their places in it, their answers if all is written, and the records that this would leave."""

    def __init__(
        self,
        attempt: BatchUpdate,
        places: Sequence[int],
        batch: Sequence[Transaction],
        found: Sequence[ScoredResponse | Exception],
    ) -> None:
        """Of transactions that were scored."""
        self.attempt, self.places, self.batch, self.found = attempt, places, batch, found
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.made = {key: CachedRecord(*record, self.ended) for key, record in attempt.made.items()}


class BeliefUpdater:
    """Keeps a store's beliefs, by one detector at a time."""

    def __init__(
        self, store: Store, rules: UpdatePolicy | None = None, max_cached: int = 0
    ) -> None:
        """The store belongs to the caller. `max_cached` records are remembered, where nobody else writes them all the time."""
        self.store, self.rules = store, rules or UpdatePolicy()
        self._known = RecordCache(max_cached)
        self._scoring, self._writing = PriorityLock(), asyncio.Lock()
        self._under_way: dict[int, Call] = {}

    async def score_batch(
        self, detector: Detector, batch: Sequence[Transaction], beside: Sequence[RecordWrite] = ()
    ) -> list[ScoredResponse | Exception]:
        """Answers in order, of which none is given before it is written; a refused transaction changes nothing.

        Batches may overlap: while one is written the next is scored, with what the first will leave. If somebody else was faster at a
        record, what was lost is tried again, the first batch before the next, until nothing is. If the store fails, so do transactions
        of the same customers in later batches that are under way: sent again, none is late. `beside` are records of the caller's to be
        written in the same instant.
        """
        call = Call(self._scoring.number(), batch)
        self._under_way[call.number] = call
        try:
            async with self._scoring.turn(call.number):
                tried = await self._scored(detector, call)
            await self._written(call, tried, beside, self._writing)
            if len(call.given) < len(batch):
                async with (
                    self._scoring.turn(call.number),
                    self._writing,
                ):  # nobody else is being scored or written
                    for pause in pauses():
                        await asyncio.sleep(pause)
                        await self._written(
                            call, await self._scored(detector, call), beside, nullcontext()
                        )
                        if len(call.given) == len(batch):
                            break
        except StoreError as problem:
            for other in self._under_way.values():
                if (
                    other.number > call.number
                ):  # and must not be before this one when both are sent again
                    other.failed |= dict.fromkeys(call.customers_left(), problem)
            if not call.given:
                raise
            call.given = (
                dict.fromkeys(range(len(batch)), problem) | call.given
            )  # those that are written have their answer all the same
        finally:
            del self._under_way[call.number]
        return [call.given[place] for place in range(len(batch))]

    async def _scored(self, detector: Detector, call: Call) -> Tried:
        """A try at what is left of a batch, with the records that are known and, of the others, those that are stored."""
        places = call.left()
        batch = [call.batch[place] for place in places]
        keys = dict.fromkeys(key for one in batch for key in one.keys)
        known = self._known.of(keys)
        others = [key for key in keys if key not in known]
        try:
            stored = await self.store.read_records(others) if others else {}
            attempt = BatchUpdate(self.store, self.rules, detector, stored, known)
            tried = Tried(attempt, places, batch, await attempt.take(batch))
        except StoreError:
            self._known.forget()
            raise
        self._known.add(tried.made)
        return tried

    async def _written(
        self,
        call: Call,
        tried: Tried,
        beside: Sequence[RecordWrite],
        turn: AbstractAsyncContextManager[None],
    ) -> None:
        """Write what was tried, when it is its turn, and take down the answers that count."""
        lost = {key for one in tried.batch for key in one.keys}
        try:
            async with turn:
                lost = await tried.attempt.write(tried.batch, beside, self._waited_for(call))
        except StoreError:
            self._known.forget()
            raise
        finally:
            self._known.settle(tried.made, lost)
            tried.ended.set_result(None)
        self._known.drop(lost)
        answers = zip(tried.places, tried.batch, tried.found, strict=True)
        call.given |= {place: found for place, one, found in answers if one.keys[0] not in lost}

    def _waited_for(self, call: Call) -> set[str]:
        """Customers of whom an earlier batch has a transaction that is to be tried again: those of this batch are after it."""
        return {
            key
            for other in self._under_way.values()
            if other.number < call.number
            for key in other.customers_left()
        }
