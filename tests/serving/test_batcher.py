"""Requests in line: taken together, in order, never more than fit, all answered at the end; batches that share a record take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from typing import Any

import pytest

from tests.scoring.cases import detector
from tests.serving.cases import transactions_of
from tests.serving.test_updater import by_hand, told
from turncoat.errors import StoreError
from turncoat.serving.batcher import MicroBatcher, OverloadedError
from turncoat.serving.decoding import Transaction
from turncoat.serving.records import customer_key, unpack_record
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import WriteGroup
from turncoat.serving.stores.memory import MemoryStore
from turncoat.serving.updater import BeliefUpdater

SOME = transactions_of("shop", 60)


def test_what_waits_is_taken_together_and_answered_in_order() -> None:
    batches: list[list[str]] = []

    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse | Exception]:
        batches.append([one.id for one in batch])
        await asyncio.sleep(0.001)
        return [ScoredResponse(one.id.encode(), 0.0) for one in batch]

    async def go() -> list[bytes]:
        line = MicroBatcher(work, max_batch_size=8)
        running = asyncio.create_task(line.run())
        answers = [line.submit(one) for one in SOME]
        found = [(await answer).body for answer in answers]
        line.end()
        await running
        return found

    assert asyncio.run(go()) == [one.id.encode() for one in SOME]
    assert [id for batch in batches for id in batch] == [one.id for one in SOME]
    assert max(map(len, batches)) == 8


def test_one_that_fails_fails_alone_and_a_batch_that_fails_fails_together() -> None:
    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse | Exception]:
        if len(batch) == 2:
            raise RuntimeError("all")
        return [ValueError("one") if one is SOME[0] else ScoredResponse(b"", 0.0) for one in batch]

    async def go() -> list[Any]:
        line = MicroBatcher(work, max_batch_size=3)
        running = asyncio.create_task(line.run())
        found = await asyncio.gather(
            *(line.submit(one) for one in SOME[:5]), return_exceptions=True
        )
        line.end()
        await running
        return found

    assert [type(one) for one in asyncio.run(go())] == [
        ValueError,
        ScoredResponse,
        ScoredResponse,
        RuntimeError,
        RuntimeError,
    ]


def test_too_many_are_turned_away_and_at_the_end_all_who_wait_are_answered() -> None:
    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse | Exception]:
        await asyncio.sleep(0.001)
        return [ScoredResponse(b"", 0.0) for _ in batch]

    async def go() -> None:
        line = MicroBatcher(work, max_batch_size=2, max_queue_size=5)
        waiting = [line.submit(one) for one in SOME[:5]]
        with pytest.raises(OverloadedError, match="5 transactions"):
            line.submit(SOME[5])
        line.end()
        with pytest.raises(OverloadedError, match="ending"):
            line.submit(SOME[5])
        await line.run()
        assert all(answer.done() for answer in waiting)

    asyncio.run(go())


def test_one_that_comes_after_another_that_failed_is_not_scored() -> None:
    faults = {SOME[0].id: StoreError("gone"), SOME[1].id: LookupError()}

    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse | Exception]:
        return [faults.get(one.id) or ScoredResponse(one.id.encode(), 0.0) for one in batch]

    async def go() -> list[Any]:
        line = MicroBatcher(work)
        running = asyncio.create_task(line.run())
        first = [line.submit(one) for one in SOME[:3]]
        await asyncio.gather(*first, return_exceptions=True)
        second = [line.submit(SOME[3 + i], first[i]) for i in range(3)]
        found = await asyncio.gather(
            *second, line.submit(SOME[6], second[0]), return_exceptions=True
        )
        line.end()
        await running
        return found

    failed, after_another_fault, fine, behind = asyncio.run(go())
    assert isinstance(failed, OverloadedError)
    assert isinstance(behind, OverloadedError)
    assert isinstance(
        after_another_fault, ScoredResponse
    )  # what was wrong with that one alone is nothing to wait for
    assert isinstance(fine, ScoredResponse)


class Slow(MemoryStore):
    """Writes that take a while, the first the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = self.n = 0

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        self.n += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.02 if self.n == 1 else 0.001)
        self.under_way -= 1
        return await super().write(groups)


def test_the_next_batch_is_scored_while_one_is_written_and_written_after_it() -> None:
    own = [one for one in transactions_of("shop") if one.customer == "c1"][:9]
    made, events = copy(detector("shop")), []

    class Noted(Slow):
        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            events.append("write")
            written = await super().write(groups)
            events.append("written")
            return written

    def advance(*args: Any) -> Any:
        events.append("score")
        return detector("shop").live.advance(*args)

    made.live = copy(made.live)
    object.__setattr__(made.live, "advance", advance)

    async def go() -> tuple[Slow, list[Any]]:
        store = Noted()
        updater = BeliefUpdater(store)
        found = await asyncio.gather(
            *(updater.score_batch(made, batch) for batch in (own[:3], own[3:6], own[6:]))
        )
        return store, [told(one) for batch in found for one in batch]

    store, answers = asyncio.run(go())
    scores, states = by_hand(detector("shop"), own)
    assert events == [
        "score",
        "write",
        "score",
        "score",
        "written",
        "write",
        "written",
        "write",
        "written",
    ]
    assert store.most == 1
    assert [one["probability"] for one in answers] == [score.probability for score in scores]
    record = asyncio.run(store.read_records([customer_key("c1")]))[customer_key("c1")]
    assert unpack_record("c1", record.data).state == states[customer_key("c1")]


@pytest.mark.parametrize("max_cached", [0, 100])
@pytest.mark.parametrize("fails", ["a rival", "the store"])
def test_what_is_built_on_a_write_that_failed_is_not_written(fails: str, max_cached: int) -> None:
    """Somebody else takes the counter that the first batch would have had; the second, which expects it, must not go ahead."""
    made = detector("shop")
    own = [one for one in transactions_of("shop") if one.customer == "c1"][:6]

    class Beaten(MemoryStore):
        n = 0

        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            self.n += 1
            if self.n == 2:
                await asyncio.sleep(0.01)  # in which the next batch is scored
                if fails == "the store":
                    raise StoreError("gone")
                await BeliefUpdater(self).score_batch(made, [own[1]])
            return await super().write(groups)

    async def go() -> tuple[MemoryStore, list[Any]]:
        store = Beaten()
        updater = BeliefUpdater(store, max_cached=max_cached)
        await updater.score_batch(made, [own[0]])
        found = await asyncio.gather(
            *(updater.score_batch(made, [one]) for one in (own[2], own[3])), return_exceptions=True
        )
        rest = await updater.score_batch(made, own[4:])
        return store, [*found, rest]

    store, (first, second, rest) = asyncio.run(go())
    record = unpack_record(
        "c1", asyncio.run(store.read_records([customer_key("c1")]))[customer_key("c1")].data
    )
    if fails == "the store":
        assert isinstance(first, StoreError)
        assert isinstance(
            second[0], StoreError
        )  # or what failed would be late when it is sent again
        counted = [own[0], *own[4:]]
    else:
        counted = own
    assert not isinstance(rest, BaseException)
    assert [seen.id for seen in record.ring] == [one.id for one in counted]
    assert told(rest[-1])["seen"] == len(counted)
