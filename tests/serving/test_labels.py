"""Labels go through the same batches and compare-and-set as scores: each counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.scoring.detectors import detector
from tests.serving.helpers import MemoryStore, bundle, decode_response, transactions_of
from turncoat.serving.batcher import MicroBatcher
from turncoat.serving.decoding import Label, Transaction
from turncoat.serving.records import counterparty_key, unpack_record
from turncoat.serving.responses import LabelResponse
from turncoat.serving.service import Service
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.stores.protocol import StoredRecord, WriteGroup
from turncoat.serving.updater import BeliefUpdater, UnknownTransactionError

replace = msgspec.structs.replace


@pytest.fixture
def own() -> list[Transaction]:
    """Six transactions of one customer with one counterparty."""
    whole = [one for one in transactions_of("shop") if one.customer == "c1"][:6]
    return [
        replace(one, counterparties=("s",), row=one.row._replace(counterparties=("s",)))
        for one in whole
    ]


class SlowStore(MemoryStore):
    """Every call lets other tasks run first."""

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        await asyncio.sleep(0)
        return await super().read_records(keys)

    async def read_history(self, *args: Any, **options: Any) -> list[Any]:
        await asyncio.sleep(0)
        found = await super().read_history(*args, **options)
        await asyncio.sleep(0)
        return found

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        await asyncio.sleep(0)
        return await super().write(groups)


async def read_counterparty(store: MemoryStore, name: str = "s") -> bytes:
    key = counterparty_key("shop", name)
    return unpack_record(key, (await store.read_records([key]))[key].data).state


def test_concurrent_labels_of_a_service_report_a_fraud_once(
    own: list[Transaction], tmp_path: Path
) -> None:
    """Eight clients label the same transactions at the same time."""
    settings = ServiceSettings(
        model_path=str(bundle("shop", tmp_path)), store_url="memory://", create_store=True
    )

    async def go() -> tuple[list[LabelResponse], bytes, list[bytes]]:
        service = Service(settings)
        service.store = service.updater.store = store = SlowStore()
        made = service.registry.current.detector
        async with service.running():
            again = [service.registry.current.decoder.decode(one.body) for one in own]
            again = [
                replace(one, counterparties=("s",), row=one.row._replace(counterparties=("s",)))
                for one in again
            ]
            await asyncio.gather(*map(service.batcher.submit, again))
            before = await read_counterparty(store)
            clients = [
                service.batcher.submit(Label("c1", one.id, 1)) for one in own for _ in range(8)
            ]
            responses = await asyncio.gather(*clients)
            after = await read_counterparty(store)
        expected = [before]
        for one in own:
            expected.append(made.live.report_label("shop", expected[-1], one.time, 1))
        return responses, after, expected

    responses, after, expected = asyncio.run(go())
    assert sum(one.counterparties == {"shop": "fraud reported"} for one in responses) == len(own)
    assert sum(one.changed for one in responses) == len(own)
    assert after == expected[-1] != expected[0]


@pytest.mark.parametrize("n_labels", [2, 5])
def test_concurrent_labels_of_several_processes_report_a_fraud_once(
    own: list[Transaction], n_labels: int
) -> None:
    """Each process reads the log after the customer's record, whose counter guards it."""
    made = detector("shop")

    async def go() -> tuple[list[Any], bytes, bytes]:
        store = SlowStore()
        await BeliefUpdater(store).process_batch(made, own)
        before = await read_counterparty(store)
        label = Label("c1", own[2].id, 1)
        work = (BeliefUpdater(store).process_batch(made, [label]) for _ in range(n_labels))
        found = [response for (response,) in await asyncio.gather(*work)]
        once = made.live.report_label("shop", before, own[2].time, 1)
        return found, await read_counterparty(store), once

    found, after, once = asyncio.run(go())
    assert after == once
    assert [one.counterparties["shop"] for one in found].count("fraud reported") == 1
    assert [one.changed for one in found].count(True) == 1


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_labels_keep_their_place_among_the_transactions(
    own: list[Transaction], batch_size: int
) -> None:
    """A label changes what comes after it and nothing before it, however batches are cut."""
    made = detector("shop")
    requests: list[Transaction | Label] = []
    for one in own:
        requests += [one, Label("c1", one.id, 1), replace(one, customer="c2", id=f"other {one.id}")]

    async def go(size: int) -> list[Any]:
        batcher = MicroBatcher(
            partial(BeliefUpdater(MemoryStore()).process_batch, made), max_batch_size=size
        )
        waiting = [batcher.submit(request) for request in requests]
        batcher.close()
        await batcher.run()
        return [await response for response in waiting]

    expected, found = asyncio.run(go(1)), asyncio.run(go(batch_size))
    for one, other in zip(expected, found, strict=True):
        if isinstance(one, LabelResponse):
            assert one == other
            assert (one.belief, one.counterparties["shop"]) == ("conditioned", "fraud reported")
        else:
            assert decode_response(one) == decode_response(other)


def test_a_label_of_a_transaction_in_the_same_batch_finds_it(own: list[Transaction]) -> None:
    """Also if that transaction is late, and changes no belief."""
    made = detector("shop")
    batch = [own[1], own[0], Label("c1", own[0].id, 1), Label("c1", own[1].id, 0)]

    async def go() -> list[Any]:
        return await BeliefUpdater(MemoryStore()).process_batch(made, batch)

    *_, late, latest = asyncio.run(go())
    assert isinstance(late, LabelResponse)
    assert (late.changed, late.belief) == (True, "unchanged")
    assert (latest.changed, latest.belief) == (True, "conditioned")


def test_labels_of_unknown_transactions_fail_alone(own: list[Transaction]) -> None:
    async def go() -> list[Any]:
        batch = [Label("c1", own[0].id, 1), *own, Label("nobody", "1", 1), Label("c1", "none", 0)]
        return await BeliefUpdater(MemoryStore()).process_batch(detector("shop"), batch)

    first, *scored, nobody, none = asyncio.run(go())
    assert all(isinstance(one, UnknownTransactionError) for one in (first, nobody, none))
    assert not any(decode_response(one)["late"] for one in scored)
