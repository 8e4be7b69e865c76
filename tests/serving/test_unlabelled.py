"""A service and a file agree about transactions without a label, told late, in any order."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.features.sample_data import DAY, Data
from tests.scoring.detectors import FEW, data_of, model_of, time_split
from tests.serving.helpers import MemoryStore, decode_response, rows_of
from turncoat import Detector
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.serving.decoding import Label, TransactionDecoder
from turncoat.serving.history import ScoreHistory
from turncoat.serving.maintenance import replay
from turncoat.serving.records import counterparty_key, unpack_record
from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

MATURITIES = [0.0, 3.5, 80.0]


def last_month_unlabelled(maturity: float) -> Data:
    data = data_of("shop")
    t = data.transactions
    labels = np.where(t.times > t.times.max() - 30 * DAY, -1, np.asarray(t.labels))
    schema = replace(t.schema, label_maturity_days=maturity)
    return Data(replace(t, schema=schema, labels=labels.astype(np.int8)), data.rows)


@cache
def fitted(maturity: float, n_states: int = 3) -> Detector:
    transactions = replace(
        last_month_unlabelled(maturity).transactions, labels=data_of("shop").transactions.labels
    )
    made = Detector(Features(min_count=4, include=FEW), model_of("expected-log", n_states))
    return made.fit(transactions, time_split(transactions))


async def read_counterparties(store: MemoryStore, transactions: Transactions) -> dict[str, bytes]:
    keys = [counterparty_key("shop", name) for name in transactions.categories["shop"].values]
    found = await store.read_records(keys)
    return {key: unpack_record(key, record.data).state for key, record in found.items()}


async def run_replay(
    made: Detector, transactions: Transactions, store: MemoryStore
) -> dict[str, float]:
    """Probabilities by id."""
    found = {}
    async for _, responses in replay(BeliefUpdater(store), made, transactions):
        for one in map(decode_response, responses):
            found[one["id"]] = one["probability"]
    return found


async def run_live(made: Detector, store: MemoryStore) -> dict[str, float]:
    decoder, updater, found = TransactionDecoder(made), BeliefUpdater(store), {}
    sent = [decoder.decode(json.dumps(row).encode()) for row in rows_of("shop")]
    for start in range(0, len(sent), 50):
        for one in await updater.process_batch(made, sent[start : start + 50]):
            found[decode_response(one)["id"]] = decode_response(one)["probability"]
    return found


@pytest.mark.parametrize("maturity", MATURITIES)
def test_a_replay_of_an_unlabelled_month_scores_as_the_file(maturity: float) -> None:
    made, transactions = fitted(maturity), last_month_unlabelled(maturity).transactions
    expected = made.score(transactions)
    found = asyncio.run(run_replay(made, transactions, MemoryStore()))
    assert len(found) == transactions.n_rows
    np.testing.assert_allclose(
        [found[str(id)] for id in expected.ids], expected.probability, rtol=1e-9
    )
    full = replace(transactions, labels=data_of("shop").transactions.labels)
    assert not np.allclose(made.score(full).probability, expected.probability), "labels matter"


def test_unlabelled_transactions_live_score_as_in_a_file() -> None:
    """A service that is told nothing equals a file whose labels are all unknown."""
    made, transactions = fitted(0.0), last_month_unlabelled(0.0).transactions
    nothing = replace(transactions, labels=np.full(transactions.n_rows, -1, np.int8))
    expected, found = made.score(nothing), asyncio.run(run_live(made, MemoryStore()))
    np.testing.assert_allclose(
        [found[str(id)] for id in expected.ids], expected.probability, rtol=1e-9
    )


@pytest.mark.parametrize("order", range(3))
def test_labels_told_late_leave_the_records_of_a_replay(order: int) -> None:
    """In any order, before they mature; rebuilt from the log by another model, too."""
    made, other = fitted(80.0), fitted(80.0, 2)
    transactions = last_month_unlabelled(80.0).transactions

    async def go() -> tuple[list[Any], list[dict[str, bytes]]]:
        live, replayed, again = MemoryStore(), MemoryStore(), MemoryStore()
        await run_live(made, live)
        labels = [
            Label(str(transactions.customers[who]), str(id), int(label))
            for id, who, label in zip(
                transactions.ids, transactions.customer_codes, transactions.labels, strict=True
            )
            if label >= 0
        ]
        random.Random(order).shuffle(labels)
        told = []
        for start in range(0, len(labels), 40):
            told += await BeliefUpdater(live).process_batch(made, labels[start : start + 40])
        await run_replay(made, transactions, replayed)
        await run_replay(other, transactions, again)
        found = [
            await read_counterparties(store, transactions) for store in (live, replayed, again)
        ]
        rebuilt = {key: await ScoreHistory(live, other, []).rebuild(key) for key in found[0]}
        assert {source for _, source in rebuilt.values()} == {"rebuilt"}
        return told, [*found, {key: state or b"" for key, (state, _) in rebuilt.items()}]

    told, (live, replayed, again, rebuilt) = asyncio.run(go())
    effects = {(one.label, one.counterparties.get("shop")) for one in told}
    assert effects == {(0, "genuine reported"), (1, "fraud reported"), (0, None), (1, None)}
    assert live == replayed
    assert rebuilt == again


def test_a_genuine_label_says_nothing_new_without_maturity() -> None:
    made, rows = fitted(0.0), rows_of("shop")
    row = next(row for row in rows if row.get("shop"))

    async def go() -> Any:
        store = MemoryStore()
        updater = BeliefUpdater(store)
        sent = TransactionDecoder(made).decode(json.dumps(row).encode())
        await updater.process_batch(made, [sent])
        return await updater.process_batch(made, [Label(sent.customer, sent.id, 0)])

    (told,) = asyncio.run(go())
    assert (told.changed, told.counterparties) == (True, {"shop": "unchanged"})


def test_the_label_of_a_late_transaction_counts_on_the_day_it_counted() -> None:
    """Where late transactions count as of the latest one, so do their labels."""
    made, rows = fitted(80.0), rows_of("shop")
    row = next(row for row in rows if row.get("shop"))
    at = [row["at"] + days * DAY for days in (9, 4)]
    decoder = TransactionDecoder(made)
    sent = [
        decoder.decode(json.dumps(row | {"at": time, "id": i}).encode())
        for i, time in enumerate(at)
    ]

    async def go(*batches: Any) -> bytes:
        store = MemoryStore()
        updater = BeliefUpdater(store, UpdatePolicy(late="apply"))
        for batch in batches:
            await updater.process_batch(made, batch)
        key = counterparty_key("shop", row["shop"])
        return unpack_record(key, (await store.read_records([key]))[key].data).state

    for label in (0, 1):
        told = asyncio.run(go(sent, [Label(sent[1].customer, sent[1].id, label)]))
        known = msgspec.structs.replace(sent[1], label=label, is_replayed=True)
        assert told == asyncio.run(go([sent[0], known]))
