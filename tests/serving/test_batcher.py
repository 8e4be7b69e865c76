"""The queue of requests: batches, order per customer, deadlines, and what happens on failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.scoring.detectors import detector
from tests.serving.helpers import MemoryStore, decode_response, transactions_of
from turncoat.errors import StoreError
from turncoat.serving.batcher import (
    MicroBatcher,
    OutOfOrderError,
    OverloadedError,
    ShuttingDownError,
)
from turncoat.serving.decoding import Label, Transaction
from turncoat.serving.responses import LabelResponse, ScoredResponse
from turncoat.serving.stores.protocol import SCORE, StoredRecord, WriteGroup
from turncoat.serving.updater import BeliefUpdater, UnknownTransactionError, UpdatePolicy

Work = Callable[[Sequence[Any]], Awaitable[Sequence[Any]]]
replace = msgspec.structs.replace


@pytest.fixture(scope="module")
def some() -> list[Transaction]:
    """60 transactions, each of its own customer."""
    return [replace(one, customer=f"own {i}") for i, one in enumerate(transactions_of("shop", 60))]


@asynccontextmanager
async def running(work: Work, **options: Any) -> Any:
    batcher = MicroBatcher(work, **options)
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher
    finally:
        batcher.close()
        await task


async def echo(batch: Sequence[Any]) -> list[ScoredResponse]:
    await asyncio.sleep(0.001)
    return [ScoredResponse(one.id.encode(), 0.0) for one in batch]


def test_requests_are_processed_in_batches_and_answered_in_order(some: list[Transaction]) -> None:
    batches: list[list[str]] = []

    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse]:
        batches.append([one.id for one in batch])
        return await echo(batch)

    async def go() -> list[bytes]:
        async with running(work, max_batch_size=8) as batcher:
            return [(await answer).body for answer in [batcher.submit(one) for one in some]]

    assert asyncio.run(go()) == [one.id.encode() for one in some]
    assert [id for batch in batches for id in batch] == [one.id for one in some]
    assert max(map(len, batches)) == 8


def test_one_exception_fails_one_request_and_a_raised_one_the_batch(
    some: list[Transaction],
) -> None:
    async def work(batch: Sequence[Transaction]) -> list[Any]:
        if len(batch) == 2:
            raise RuntimeError("all")
        return [ValueError("one") if one is some[0] else ScoredResponse(b"", 0.0) for one in batch]

    async def go() -> list[Any]:
        async with running(work, max_batch_size=3) as batcher:
            waiting = [batcher.submit(one) for one in some[:5]]
            return await asyncio.gather(*waiting, return_exceptions=True)

    found = [type(one) for one in asyncio.run(go())]
    assert found == [ValueError, ScoredResponse, ScoredResponse, RuntimeError, RuntimeError]


def test_a_full_queue_refuses_and_a_closing_one_answers_what_waits(some: list[Transaction]) -> None:
    async def go() -> None:
        batcher = MicroBatcher(echo, max_batch_size=2, max_queue_size=5)
        waiting = [batcher.submit(one) for one in some[:5]]
        with pytest.raises(OverloadedError, match="5 requests"):
            batcher.submit(some[5])
        batcher.close()
        with pytest.raises(ShuttingDownError):
            batcher.submit(some[5])
        await batcher.run()
        assert all(answer.done() for answer in waiting)

    asyncio.run(go())


def test_a_request_after_a_failed_one_is_refused(some: list[Transaction]) -> None:
    faults = {some[0].id: StoreError("gone"), some[1].id: LookupError()}

    async def work(batch: Sequence[Transaction]) -> list[Any]:
        return [faults.get(one.id) or ScoredResponse(one.id.encode(), 0.0) for one in batch]

    async def go() -> None:
        async with running(work) as batcher:
            first = [batcher.submit(one) for one in some[:3]]
            await asyncio.gather(*first, return_exceptions=True)
            with pytest.raises(OutOfOrderError):
                batcher.submit(some[3], first[0])
            # What was wrong with that one alone does not concern others.
            assert isinstance(await batcher.submit(some[4], first[1]), ScoredResponse)
            assert isinstance(await batcher.submit(some[5], first[2]), ScoredResponse)

    asyncio.run(go())


def test_requests_queued_behind_a_failed_one_of_the_same_customer_fail_too(
    some: list[Transaction],
) -> None:
    own = [replace(one, customer="c") for one in some[:4]]
    processed: list[str] = []

    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse]:
        await asyncio.sleep(0.01)
        if own[0] in batch:
            raise StoreError("gone")
        processed.extend(one.id for one in batch)
        return await echo(batch)

    async def go() -> list[Any]:
        async with running(work, max_batch_size=1) as batcher:
            waiting = [batcher.submit(one) for one in (own[0], some[5], own[1], own[2])]
            found = await asyncio.gather(*waiting, return_exceptions=True)
            return [*found, await batcher.submit(own[3])]

    found = [type(one) for one in asyncio.run(go())]
    expected = [StoreError, ScoredResponse, OutOfOrderError, OutOfOrderError, ScoredResponse]
    assert found == expected
    assert processed == [some[5].id, own[3].id]


def test_requests_that_gave_up_are_not_processed_once_the_store_moves_again(
    some: list[Transaction],
) -> None:
    """What was in a batch is processed, what was in the queue is not, nor what waits behind it."""
    own = [replace(one, customer="c") for one in some[:3]]
    processed: list[str] = []

    async def go() -> None:
        gate = asyncio.Event()

        async def work(batch: Sequence[Any]) -> list[ScoredResponse]:
            await gate.wait()
            processed.extend(one.id for one in batch)
            return await echo(batch)

        async with running(work, max_batch_size=1) as batcher:
            requests = (some[5], own[0], Label("d", "label", 1))
            waiting = [asyncio.wait_for(batcher.submit(one), 0.1) for one in requests]
            tasks = asyncio.gather(*waiting, return_exceptions=True)
            await asyncio.sleep(0.05)
            follower = batcher.submit(own[1])
            assert [type(one) for one in await tasks] == [TimeoutError] * 3
            gate.set()
            with pytest.raises(OutOfOrderError):
                await follower
            assert (await batcher.submit(own[2])).body == own[2].id.encode()

    asyncio.run(go())
    assert processed == [some[5].id, own[2].id]


def test_a_request_whose_sender_has_left_is_dropped(some: list[Transaction]) -> None:
    own = [replace(one, customer="c") for one in some[:2]]
    processed: list[str] = []

    async def work(batch: Sequence[Transaction]) -> list[ScoredResponse]:
        processed.extend(one.id for one in batch)
        return await echo(batch)

    async def go() -> list[Any]:
        batcher = MicroBatcher(work)
        waiting = [batcher.submit(one) for one in (own[0], own[1], some[5])]
        waiting[0].cancel()
        batcher.close()
        await batcher.run()
        return await asyncio.gather(*waiting[1:], return_exceptions=True)

    follower, other = asyncio.run(go())
    assert isinstance(follower, OutOfOrderError)
    assert isinstance(other, ScoredResponse)
    assert processed == [some[5].id]


@pytest.mark.parametrize("n_conflicts", [1, 2, 5])
def test_the_order_holds_however_often_another_process_is_faster(n_conflicts: int) -> None:
    """Others write a counterparty again and again while a customer's transactions wait."""
    made, whole = detector("shop"), transactions_of("shop")
    own = [replace(one, counterparties=("busy",)) for one in whole if one.customer == "c1"][:24]
    others = [replace(one, counterparties=("busy",)) for one in whole if one.customer != "c1"]

    class Contested(MemoryStore):
        n_left = n_conflicts

        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            await asyncio.sleep(0.002)
            if self.n_left and any(one.key == "c:c1" for group in groups for one in group.writes):
                self.n_left -= 1
                await BeliefUpdater(rival).process_batch(made, [others[self.n_left]])
            return await MemoryStore.write(self, groups)

    class Rival:
        """The same store, which does not wait."""

        def __getattr__(self, name: str) -> Any:
            return partial(MemoryStore.write, store) if name == "write" else getattr(store, name)

    store, rival = Contested(), Rival()

    async def go() -> list[Any]:
        updater = BeliefUpdater(store)
        async with running(partial(updater.process_batch, made), max_batch_size=6) as batcher:
            return await asyncio.gather(*map(batcher.submit, own))

    answers = [decode_response(one) for one in asyncio.run(go())]
    assert store.n_left == 0
    assert not any(answer["late"] for answer in answers)
    assert [answer["n_seen"] for answer in answers] == list(range(1, len(own) + 1))


class TroubledStore(MemoryStore):
    """Slow reads and writes. Some meet another writer, some fail before or after the write."""

    def __init__(
        self, chance: random.Random, max_delay_s: float, conflicts: float, failures: float
    ) -> None:
        super().__init__()
        self.chance, self.max_delay_s = chance, max_delay_s
        self.conflicts, self.failures = conflicts, failures

    async def _delay(self) -> None:
        await asyncio.sleep(self.chance.random() * self.max_delay_s)

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        await self._delay()
        if self.chance.random() < self.failures / 4:
            raise StoreError("cannot be read")
        return await super().read_records(keys)

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        await self._delay()
        fails, is_written = self.chance.random() < self.failures, self.chance.random() < 0.5
        if fails and not is_written:
            raise StoreError("cannot be written")
        lost = [self.chance.random() < self.conflicts for _ in groups]
        kept = [group for group, is_lost in zip(groups, lost, strict=True) if not is_lost]
        written = iter(await super().write(kept))
        found = [not is_lost and next(written) for is_lost in lost]
        await self._delay()
        if fails:
            raise StoreError("the reply was lost")
        return found


@pytest.mark.parametrize("seed", range(48))
def test_in_any_trouble_the_order_is_kept_and_everything_counts_once(seed: int) -> None:
    """Transactions and labels, slow and failing stores, conflicts, senders that leave."""
    chance, made = random.Random(seed), detector("shop")
    names, shops = "abcd", ([None], ["one"], ["one", "two"])[seed % 3]
    example = transactions_of("shop", 1)[0]
    n_sent, at_once = dict.fromkeys(names, 0), chance.random() < 0.5
    max_delay_s = chance.choice([0.0, 0.002, 0.01])
    conflicts, failures = chance.choice([0.0, 0.1, 0.5]), chance.choice([0.0, 0.0, 0.1])

    def make_request() -> Transaction | Label:
        customer = chance.choice(names)
        if n_sent[customer] and chance.random() < 0.2:
            return Label(customer, str(chance.randint(1, n_sent[customer])), 1)
        n_sent[customer] += 1
        time, shop = example.time + n_sent[customer], chance.choice(shops)
        return replace(
            example,
            id=str(n_sent[customer]),
            time=time,
            customer=customer,
            counterparties=(shop,),
            row=example.row._replace(time=time, counterparties=(shop,)),
        )

    async def go() -> tuple[TroubledStore, list[tuple[Any, Any, bool]], list[tuple[Any, Any]]]:
        # The store's draws depend on timing, ours do not.
        store = TroubledStore(random.Random(seed + 1), max_delay_s, conflicts, failures)
        updater = BeliefUpdater(store, UpdatePolicy(n_reasons=0))
        requests = [make_request() for _ in range(150)]
        work = partial(updater.process_batch, made)
        async with running(work, max_batch_size=chance.choice([1, 4, 16])) as batcher:
            waiting, has_left = [], []
            for request in requests:
                waiting.append(batcher.submit(request))
                has_left.append(seed % 2 == 1 and chance.random() < 0.1)
                if has_left[-1]:
                    asyncio.get_running_loop().call_later(
                        chance.random() * max_delay_s * 4, waiting[-1].cancel
                    )
                if not at_once:
                    await asyncio.sleep(chance.choice([0.0, chance.random() * max_delay_s]))
            found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
            store.failures = 0.0
            to_resend = (StoreError, OverloadedError, asyncio.CancelledError)
            again = [
                (request, await batcher.submit(request))
                for request, answer in zip(requests, found, strict=True)
                if at_once and isinstance(request, Transaction) and isinstance(answer, to_resend)
            ]
        return store, list(zip(requests, found, has_left, strict=True)), again

    store, answered, again = asyncio.run(go())
    logged = asyncio.run(store.read_log(limit=10_000))
    logged_ids = {
        name: [
            int(entry.transaction_id)
            for entry in logged
            if entry.parties[0][0] == f"c:{name}" and entry.kind == SCORE
        ]
        for name in names
    }
    for name, ids in logged_ids.items():
        assert ids == sorted(set(ids)), name
    scored = [(one, answer) for one, answer, _ in answered if isinstance(answer, ScoredResponse)]
    for one, answer in scored + again:
        assert not decode_response(answer)["late"]
        assert int(one.id) in logged_ids[one.customer]
    for one, answer, has_left in answered:
        excused: tuple[Any, ...] = (asyncio.CancelledError,) if has_left else ()
        if failures or seed % 2 == 1:
            excused += (StoreError, OverloadedError)
        if isinstance(one, Label):  # of a transaction that failed
            excused += (LabelResponse, UnknownTransactionError) if failures or seed % 2 else ()
        assert isinstance(answer, (ScoredResponse, LabelResponse, *excused)), answer
    assert scored or again


def test_requests_of_a_customer_that_wait_together_are_processed_by_time(
    some: list[Transaction],
) -> None:
    own, other = [replace(one, customer="c") for one in some[:3]], some[3]
    seen: list[list[str]] = []

    async def process(batch: Sequence[Any]) -> list[ScoredResponse]:
        seen.append([one.id for one in batch])
        return [ScoredResponse(one.id.encode(), 0.0) for one in batch]

    async def go(times: Sequence[float | None]) -> None:
        batcher = MicroBatcher(process)
        batcher.submit(own[2], sort_time=times[2])
        batcher.submit(other, sort_time=0.0)
        batcher.submit(own[0], sort_time=times[0])
        batcher.submit(own[1], sort_time=times[1])
        batcher.close()
        await batcher.run()

    asyncio.run(go([1.0, 2.0, 3.0]))
    asyncio.run(go([1.0, None, 3.0]))  # one keeps its place
    first = [own[0].id, other.id, own[1].id, own[2].id]
    second = [own[0].id, other.id, own[2].id, own[1].id]
    assert seen == [first, second]
