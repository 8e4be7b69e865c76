"""Helpers of the serving tests: saved detectors, rows as clients send them, updaters, services."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.features.sample_data import Data
from tests.scoring.detectors import data_of, detector
from turncoat import Detector
from turncoat.scoring import DetectorState
from turncoat.serving.app import create_app
from turncoat.serving.decoding import Label, Transaction, TransactionDecoder
from turncoat.serving.records import Record, customer_key, unpack_record
from turncoat.serving.responses import LabelResponse, ScoredResponse
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.stores.sqlite import SQLiteStore
from turncoat.serving.updater import BeliefUpdater, UpdatePolicy


class MemoryStore(SQLiteStore):
    """A new store of memory://, for tests that change how it behaves or look inside."""

    def __init__(self) -> None:
        super().__init__(None, create=True)

    def run_sql(self, sql: str, *values: Any) -> list[Any]:
        """Run a statement while no other work is under way."""
        return self._db.execute(sql, values).fetchall()


@cache
def rows_of(name: str = "shop") -> list[dict[str, Any]]:
    """What clients would have sent, in the order it happened: no labels, and nulls left out."""
    data: Data = data_of(name)
    schema = data.transactions.schema
    ordered = [data.rows[place] for place in data.transactions.file_rows[data.live_order]]
    return [
        _json_row(
            {
                k: v
                for k, v in row.items()
                if v is not None and k in schema.columns and k != schema.label
            }
        )
        for row in ordered
    ]


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(row, default=str))


def transactions_of(
    name: str = "shop", n: int | None = None, made: Detector | None = None
) -> list[Transaction]:
    """The same, decoded."""
    form = TransactionDecoder(made or detector(name))
    return [form.decode(json.dumps(row).encode()) for row in rows_of(name)[:n]]


def changed(one: Transaction, **fields: Any) -> Transaction:
    """The same transaction with other fields."""
    sent = json.loads(one.body) | fields
    return TransactionDecoder(detector("shop")).decode(json.dumps(sent).encode())


@cache
def _saved(name: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="turncoat-test-")
    detector(name).save(Path(folder.name) / "detector")
    return folder


def bundle(name: str, target: Path) -> Path:
    """A saved detector of a test's own."""
    shutil.copytree(Path(_saved(name).name) / "detector", target / "detector")
    return target / "detector"


@contextmanager
def client(
    model: Path, store: str = "memory://", *, raises: bool = True, **settings: Any
) -> Iterator[TestClient]:
    """A running service, spoken to without a network."""
    settings = {"reload_interval_s": 0.05, "create_store": True, **settings}
    chosen = ServiceSettings(model_path=str(model), store_url=store, **settings)
    chosen.check()
    with TestClient(
        create_app(chosen), "http://localhost", raise_server_exceptions=raises
    ) as talking:
        yield talking


def decode_response(response: Any) -> dict[str, Any]:
    """Return the JSON of a score's response; fails if it is an exception."""
    assert isinstance(response, ScoredResponse), response
    return json.loads(response.body)


def process(
    made: Detector,
    batches: Sequence[Sequence[Transaction]],
    store: MemoryStore | None = None,
    **policy: Any,
) -> list[dict[str, Any]]:
    """Return the responses to batches that are processed one after the other."""

    async def go() -> list[Any]:
        updater = BeliefUpdater(store or MemoryStore(), UpdatePolicy(**policy))
        return [one for batch in batches for one in await updater.process_batch(made, batch)]

    return [decode_response(one) for one in asyncio.run(go())]


async def apply_label(
    updater: BeliefUpdater, made: Detector, customer: str, id: str, label: int
) -> LabelResponse:
    """Apply one label; raises its exception."""
    (response,) = await updater.process_batch(made, [Label(customer, id, label)])
    if isinstance(response, Exception):
        raise response
    assert isinstance(response, LabelResponse)
    return response


def score_by_hand(
    made: Detector, transactions: Sequence[Transaction]
) -> tuple[list[Any], dict[str, bytes | None]]:
    """Return scores and states of the library, with a dictionary for a store."""
    states: dict[str, bytes | None] = {}
    scores = []
    for one in transactions:
        customer, *others = one.arrange([states.get(key) for key in one.keys], None)
        state, score = made.score_one(DetectorState(customer, tuple(others)), one.row)
        records = state.customer, *state.counterparties
        states |= {key: records[place] for key, place in zip(one.keys, one.places, strict=True)}
        scores.append(score)
    return scores, states


def read_records(store: MemoryStore) -> dict[str, Record]:
    """Return every party's record, by key."""

    async def go() -> dict[str, Record]:
        keys = {key for entry in await store.read_log(limit=10**6) for key, _ in entry.parties}
        found = await store.read_records(sorted(keys))
        return {key: unpack_record(key, stored.data) for key, stored in found.items()}

    return asyncio.run(go())


def read_record(store: MemoryStore, customer: str) -> Record:
    """Return a customer's record."""
    key = customer_key(customer)
    return unpack_record(key, asyncio.run(store.read_records([key]))[key].data)


def count_entries(store: MemoryStore) -> int:
    """Return the number of log entries."""
    return len(asyncio.run(store.read_log(limit=10**6)))
