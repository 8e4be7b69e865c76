"""Requests in line: taken together, in order, never more than fit, all answered at the end; batches that share a record take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.scoring.cases import detector
from tests.serving.cases import transactions_of
from tests.serving.test_ledger import by_hand, told
from turncoat.serving.attempt import Given
from turncoat.serving.fields import Transaction
from turncoat.serving.ledger import Ledger
from turncoat.serving.line import Line, OverloadedError
from turncoat.serving.records import customer_key, unpack_record
from turncoat.serving.stores import Group
from turncoat.serving.stores.memory import MemoryStore

SOME = transactions_of("shop", 60)


def test_what_waits_is_taken_together_and_answered_in_order() -> None:
    batches: list[list[str]] = []

    async def work(batch: Sequence[Transaction]) -> list[Given | Exception]:
        batches.append([one.id for one in batch])
        await asyncio.sleep(0.001)
        return [Given(one.id.encode(), 0.0) for one in batch]

    async def go() -> list[bytes]:
        line = Line(work, most_at_once=8)
        running = asyncio.create_task(line.run())
        answers = [line.ask(one) for one in SOME]
        found = [(await answer).body for answer in answers]
        line.end()
        await running
        return found

    assert asyncio.run(go()) == [one.id.encode() for one in SOME]
    assert [id for batch in batches for id in batch] == [one.id for one in SOME]
    assert max(map(len, batches)) == 8


def test_one_that_fails_fails_alone_and_a_batch_that_fails_fails_together() -> None:
    async def work(batch: Sequence[Transaction]) -> list[Given | Exception]:
        if len(batch) == 2:
            raise RuntimeError("all")
        return [ValueError("one") if one is SOME[0] else Given(b"", 0.0) for one in batch]

    async def go() -> list[Any]:
        line = Line(work, most_at_once=3)
        running = asyncio.create_task(line.run())
        found = await asyncio.gather(*(line.ask(one) for one in SOME[:5]), return_exceptions=True)
        line.end()
        await running
        return found

    assert [type(one) for one in asyncio.run(go())] == [ValueError, Given, Given, RuntimeError, RuntimeError]


def test_too_many_are_turned_away_and_at_the_end_all_who_wait_are_answered() -> None:
    async def work(batch: Sequence[Transaction]) -> list[Given | Exception]:
        await asyncio.sleep(0.001)
        return [Given(b"", 0.0) for _ in batch]

    async def go() -> None:
        line = Line(work, most_at_once=2, most_waiting=5)
        waiting = [line.ask(one) for one in SOME[:5]]
        with pytest.raises(OverloadedError, match="5 transactions"):
            line.ask(SOME[5])
        line.end()
        with pytest.raises(OverloadedError, match="ending"):
            line.ask(SOME[5])
        await line.run()
        assert all(answer.done() for answer in waiting)

    asyncio.run(go())


class Slow(MemoryStore):
    """Writes that take a while, the first the longest."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.most = self.n = 0

    async def write(self, groups: Sequence[Group]) -> list[bool]:
        self.n += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0.02 if self.n == 1 else 0.001)
        self.under_way -= 1
        return await super().write(groups)


def test_batches_that_share_a_record_take_turns_and_others_overlap() -> None:
    made = detector("shop")
    own = [one for one in transactions_of("shop") if one.customer == "c1"][:9]

    async def go(batches: Sequence[Sequence[Transaction]]) -> tuple[Slow, list[Any]]:
        store = Slow()
        ledger = Ledger(store)
        found = await asyncio.gather(*(ledger.score(made, batch) for batch in batches))
        return store, [told(one) for batch in found for one in batch]

    store, answers = asyncio.run(go([own[:3], own[3:6], own[6:]]))
    scores, states = by_hand(made, own)
    assert store.most == 1
    assert [one["probability"] for one in answers] == [score.probability for score in scores]
    record = asyncio.run(store.read([customer_key("c1")]))[customer_key("c1")]
    assert unpack_record("c1", record.data).state == states[customer_key("c1")]
    lonely = [msgspec.structs.replace(own[0], customer=f"lonely{i}", entity=None) for i in range(3)]
    store, _ = asyncio.run(go([[one] for one in lonely]))
    assert store.most == 3
