"""The service without HTTP: retention, readiness, deadlines while the store stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.serving.helpers import MemoryStore, bundle, transactions_of
from turncoat.errors import StoreError
from turncoat.serving.batcher import OutOfOrderError
from turncoat.serving.decoding import Label
from turncoat.serving.service import DAY, Service
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.stores.protocol import WriteGroup
from turncoat.serving.updater import BeliefUpdater


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle("shop", tmp_path_factory.mktemp("service"))


def make_service(model: Path, store: MemoryStore, **settings: Any) -> Service:
    chosen = {"store_url": "memory://", "create_store": True, **settings}
    service = Service(ServiceSettings(model_path=str(model), **chosen))
    service.store = service.updater.store = store
    return service


async def fill(store: MemoryStore, model: Path, written_at: float, n: int = 20) -> None:
    served = make_service(model, store).registry.current
    some = [served.decoder.decode(one.body) for one in transactions_of("shop", n)]
    await BeliefUpdater(store).process_batch(served.detector, some)
    store.run_sql("UPDATE log SET written_at = ?", written_at)


@pytest.mark.parametrize(("age_days", "n_left"), [(40.0, 20), (29.0, 20)])
def test_retention_does_not_delete_the_whole_log(
    model: Path, caplog: pytest.LogCaptureFixture, age_days: float, n_left: int
) -> None:
    """The clock was set ahead: nothing is deleted, not even when new transactions arrive."""
    caplog.set_level("INFO", "turncoat")

    async def go() -> int:
        store = MemoryStore()
        await fill(store, model, time.time() - age_days * DAY)
        service = make_service(model, store, retention_days=30.0)
        new = service.registry.current.decoder.decode(transactions_of("shop", 21)[-1].body)
        async with service.running():
            await asyncio.sleep(0.05)
            await service.batcher.submit(new)
            await asyncio.sleep(0.3)
            return len(await store.read_log())

    assert asyncio.run(go()) == n_left + 1
    assert ("retention is off: the newest log entry is 40.0 days old" in caplog.text) == (
        age_days > 30
    )


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_service_says_that_its_log_is_empty(
    model: Path, caplog: pytest.LogCaptureFixture, is_filled: bool
) -> None:
    caplog.set_level("INFO", "turncoat")

    async def go() -> None:
        store = MemoryStore()
        if is_filled:
            await fill(store, model, time.time(), n=2)
        async with make_service(model, store).running():
            pass

    asyncio.run(go())
    told = "the log is empty. If the store is new, load history with `turncoat replay`"
    assert (told in caplog.text) is not is_filled


def test_the_log_is_kept_as_long_as_labels_take(model: Path) -> None:
    async def read(**settings: Any) -> tuple[float, Any]:
        service = make_service(model, MemoryStore(), **settings)
        return service.retention_days, service.registry.current.detector.features_.plan

    days, plan = asyncio.run(read())
    assert days == 30 + (plan.label_delay_s + plan.label_maturity_s) / DAY == 37
    assert asyncio.run(read(retention_days=5.0))[0] == 5
    assert asyncio.run(read(retention_days=0.0))[0] == 0


def test_retention_deletes_old_entries_while_there_are_new_ones(model: Path) -> None:
    async def go() -> int:
        store = MemoryStore()
        await fill(store, model, time.time() - 40 * DAY)
        newest = "SELECT max(entry) FROM log"
        store.run_sql(f"UPDATE log SET written_at = ? WHERE entry = ({newest})", time.time())
        async with make_service(model, store, retention_days=30.0).running():
            await asyncio.sleep(0.3)
            return len(await store.read_log())

    assert asyncio.run(go()) == 1


class FailingStore(MemoryStore):
    """Reads work; writes fail, or wait for ever, or work."""

    def __init__(self) -> None:
        super().__init__()
        self.fails, self.gate, self.n_checks = False, asyncio.Event(), 0
        self.gate.set()

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        await self.gate.wait()
        if self.fails:
            raise StoreError("read-only")
        return await super().write(groups)

    async def check_writable(self) -> None:
        self.n_checks += 1
        await self.gate.wait()
        if self.fails:
            raise StoreError("read-only")


def test_a_service_is_ready_only_while_writes_succeed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turncoat.serving.service._CHECK_TIMEOUT_S", 0.1)
    monkeypatch.setattr("turncoat.serving.service._CHECK_INTERVAL_S", 0.2)

    async def go() -> None:
        store = FailingStore()
        service = make_service(model, store)
        async with service.running():
            assert await service.is_ready()
            store.fails = True
            await asyncio.gather(*(service.is_ready() for _ in range(50)))
            assert store.n_checks == 1  # not more than one in the interval
            await asyncio.sleep(0.21)
            assert not await service.is_ready()
            store.fails = False
            await asyncio.sleep(0.21)
            assert await service.is_ready()
            store.gate.clear()
            await asyncio.sleep(0.21)
            began = time.monotonic()
            assert not await service.is_ready()
            assert time.monotonic() - began < 1.0
            store.gate.set()

    asyncio.run(go())


def test_scores_and_labels_end_in_time_while_the_store_stands_still(model: Path) -> None:
    """400 clients; when the store moves again nothing has counted twice or out of order."""

    async def go() -> None:
        store = FailingStore()
        service = make_service(model, store)
        decode = service.registry.current.decoder.decode
        some = [decode(one.body) for one in transactions_of("shop", 400)]
        async with service.running():
            await asyncio.gather(*map(service.batcher.submit, some[:10]))
            store.gate.clear()
            began = time.monotonic()
            waiting = [service.batcher.submit(one) for one in some[10:]]
            waiting += [service.batcher.submit(Label(one.customer, one.id, 1)) for one in some[:10]]
            found = await asyncio.gather(
                *(asyncio.wait_for(one, 0.3) for one in waiting), return_exceptions=True
            )
            assert time.monotonic() - began < 2.0
            assert all(isinstance(one, TimeoutError | OutOfOrderError) for one in found)
            store.gate.set()
            again = [await service.batcher.submit(one) for one in some[10:]]
            assert not any(one.late for one in again)
            labels = [Label(one.customer, one.id, 1) for one in some[:10]]
            changed = [await service.batcher.submit(label) for label in labels]
            assert all(one.label == 1 for one in changed)
            scores = [entry for entry in await store.read_log() if entry.kind == "score"]
        assert len({(e.parties[0][0], e.transaction_id) for e in scores}) == len(scores) == 400

    asyncio.run(go())
