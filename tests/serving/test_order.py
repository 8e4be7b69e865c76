"""Nobody is overtaken: whatever others write meanwhile, whatever fails, whoever leaves, a customer's transactions count in their order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.scoring.cases import detector
from tests.serving.cases import transactions_of
from tests.serving.test_updater import told
from turncoat.errors import StoreError
from turncoat.serving.attempt import UpdatePolicy
from turncoat.serving.decoding import Transaction
from turncoat.serving.priority_lock import PriorityLock
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import StoredRecord, WriteGroup
from turncoat.serving.stores.memory import MemoryStore
from turncoat.serving.updater import BeliefUpdater


@pytest.mark.parametrize("n_conflicts", [1, 2, 5])
def test_however_often_somebody_else_is_faster_nobody_is_overtaken(n_conflicts: int) -> None:
    """A counterparty is written by others again and again while a customer's transactions wait in several batches."""
    made = detector("shop")
    own = [
        msgspec.structs.replace(one, counterparty="busy")
        for one in transactions_of("shop")
        if one.customer == "c1"
    ][:24]
    others = [
        msgspec.structs.replace(one, counterparty="busy")
        for one in transactions_of("shop")
        if one.customer != "c1"
    ]

    class Contested(MemoryStore):
        n_left = n_conflicts

        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            await asyncio.sleep(0.002)
            if self.n_left and any(
                change.key == "c:c1" for group in groups for change in group.writes
            ):
                self.n_left -= 1
                await BeliefUpdater(rival).score_batch(made, [others[self.n_left]])
            return await MemoryStore.write(self, groups)

    class Rival:
        """The same store, which does not wait."""

        def __getattr__(self, name: str) -> Any:
            return partial(MemoryStore.write, store) if name == "write" else getattr(store, name)

    store, rival = Contested(), Rival()

    async def go() -> list[Any]:
        updater = BeliefUpdater(store)
        found = await asyncio.gather(
            *(updater.score_batch(made, own[i : i + 6]) for i in range(0, len(own), 6))
        )
        return [told(one) for batch in found for one in batch]

    answers = asyncio.run(go())
    assert store.n_left == 0
    assert not any(answer["late"] for answer in answers)
    assert [answer["seen"] for answer in answers] == list(range(1, len(own) + 1))


def test_turns_go_by_number_and_are_not_lost() -> None:
    async def go() -> list[int]:
        turns, order = PriorityLock(), []
        numbers = [turns.number() for _ in range(5)]

        async def take(number: int) -> None:
            async with turns.turn(number):
                order.append(number)
                await asyncio.sleep(0)

        tasks = [
            asyncio.create_task(take(number)) for number in (numbers[0], *reversed(numbers[1:]))
        ]
        await asyncio.sleep(0)
        tasks[-1].cancel()  # of number 1, which waits
        await asyncio.gather(*tasks, return_exceptions=True)
        await take(99)
        waiting = asyncio.create_task(take(100))
        async with turns.turn(101):
            await asyncio.sleep(0)
        waiting.cancel()  # in the moment in which it gets its turn
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(take(102), 1)
        return order

    assert asyncio.run(go()) == [0, 2, 3, 4, 99, 102]


class Troubled(MemoryStore):
    """Reads and writes that take a while, some of which meet somebody else, or fail before or after all is written."""

    def __init__(
        self, chance: random.Random, longest: float, conflicts: float, failures: float
    ) -> None:
        super().__init__()
        self.chance, self.longest, self.conflicts, self.failures = (
            chance,
            longest,
            conflicts,
            failures,
        )

    async def _take_a_while(self) -> None:
        await asyncio.sleep(self.chance.random() * self.longest)

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        await self._take_a_while()
        if self.chance.random() < self.failures / 4:
            raise StoreError("cannot be read")
        return await super().read_records(keys)

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        await self._take_a_while()
        fails, comes_to_pass = self.chance.random() < self.failures, self.chance.random() < 0.5
        if fails and not comes_to_pass:
            raise StoreError("cannot be written")
        beaten = [self.chance.random() < self.conflicts for _ in groups]
        written = iter(
            await super().write(
                [group for group, is_beaten in zip(groups, beaten, strict=True) if not is_beaten]
            )
        )
        found = [not is_beaten and next(written) for is_beaten in beaten]
        await self._take_a_while()
        if fails:
            raise StoreError("the answer was lost")
        return found


@pytest.mark.parametrize("seed", range(60))
def test_in_any_trouble_the_order_is_kept_and_everything_counts_once(seed: int) -> None:
    chance, made = random.Random(seed), detector("shop")
    names, shops = "abcd", ([None], ["one"], ["one", "two"])[seed % 3]
    example = transactions_of("shop", 1)[0]
    sent, at_once = dict.fromkeys(names, 0), chance.random() < 0.5
    longest, conflicts, failures = (
        chance.choice([0.0, 0.002, 0.01]),
        chance.choice([0.0, 0.1, 0.5]),
        chance.choice([0.0, 0.0, 0.1]),
    )

    def next_one() -> Transaction:
        customer = chance.choice(names)
        sent[customer] += 1
        more = {
            "id": str(sent[customer]),
            "time": example.time + sent[customer],
            "counterparty": chance.choice(shops),
        }
        return msgspec.structs.replace(
            example,
            customer=customer,
            row=example.row._replace(time=more["time"], counterparty=more["counterparty"]),
            **more,
        )

    async def go() -> tuple[
        Troubled, list[tuple[Transaction, Any, bool]], list[tuple[Transaction, Any]]
    ]:
        store = Troubled(
            random.Random(seed + 1), longest, conflicts, failures
        )  # whose draws depend on what is faster, unlike ours
        updater = BeliefUpdater(store, UpdatePolicy(n_reasons=0), chance.choice([0, 4096]))
        batches, tasks, left = [], [], []
        for _ in range(50):
            batches.append([next_one() for _ in range(chance.randint(1, 6))])
            tasks.append(asyncio.create_task(updater.score_batch(made, batches[-1])))
            left.append(seed % 2 == 1 and chance.random() < 0.2)
            if left[-1]:
                asyncio.get_running_loop().call_later(
                    chance.random() * longest * 4, tasks[-1].cancel
                )
            if not at_once:
                await asyncio.sleep(chance.choice([0.0, chance.random() * longest]))
        found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        given = [
            one if isinstance(one, list) else [one] * len(batch)
            for one, batch in zip(found, batches, strict=True)
        ]
        answered = [
            (one, answer, has_left)
            for batch, answers, has_left in zip(batches, given, left, strict=True)
            for one, answer in zip(batch, answers, strict=True)
        ]
        again = []
        if (
            at_once
        ):  # then all that came after one that failed have failed, too, and can be sent again
            store.failures = 0.0
            again = [
                (one, (await updater.score_batch(made, [one]))[0])
                for one, answer, _ in answered
                if isinstance(answer, StoreError)
            ]
        return store, answered, again

    store, answered, again = asyncio.run(go())
    logged = asyncio.run(store.read_log(limit=10_000))
    by_customer = {
        name: [int(entry.transaction_id) for entry in logged if entry.parties[0][0] == f"c:{name}"]
        for name in names
    }
    for name, ids in by_customer.items():
        assert ids == sorted(set(ids)), name
    counted = [
        (one, answer) for one, answer, _ in answered if isinstance(answer, ScoredResponse)
    ] + again
    for one, answer in counted:
        assert isinstance(answer, ScoredResponse), answer
        assert not told(answer)["late"]
        assert int(one.id) in by_customer[one.customer]
    for _, answer, has_left in answered:
        excused = (StoreError,) * (failures > 0) + (asyncio.CancelledError,) * has_left
        assert isinstance(answer, (ScoredResponse, *excused)), answer
    assert counted
