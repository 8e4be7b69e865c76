"""The service with two counterparties: scores, labels, the log, replays, rebuilds and erasure."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.scoring.chains import DEVICE, TERMINAL, device_detector, device_payments, with_labels
from tests.scoring.detectors import model_of, time_split
from tests.serving.helpers import MemoryStore, apply_label, client, decode_response, read_records
from turncoat import Detector
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.chains import INTRUDER, find_compromises
from turncoat.scoring import DetectorState
from turncoat.serving.decoding import Label, TransactionDecoder
from turncoat.serving.history import ScoreHistory
from turncoat.serving.maintenance import erase_customer, replay
from turncoat.serving.records import (
    counterparty_key,
    customer_key,
    find_column,
    unpack_log_content,
    unpack_record,
)
from turncoat.serving.responses import LabelResponse, ScoredResponse
from turncoat.serving.stores.protocol import SCORE
from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

N_ROWS = 1500
COLUMNS = (DEVICE, TERMINAL)


@cache
def first_rows(n_rows: int = N_ROWS) -> tuple[Transactions, list[dict[str, Any]]]:
    """The first payments as a file, and as clients send them: without what is missing."""
    data = device_payments()
    transactions, order = data.transactions, data.live_order[:n_rows]
    schema, rows = transactions.schema, []
    for place in transactions.file_rows[order]:
        row = {k: v for k, v in data.rows[place].items() if k in schema.columns and v is not None}
        row.pop(str(schema.label))
        rows.append(json.loads(json.dumps(row, default=str)))
    return transactions.take(np.sort(order)), rows


def decode(rows: list[dict[str, Any]]) -> list[Any]:
    decoder = TransactionDecoder(device_detector())
    return [decoder.decode(json.dumps(row).encode()) for row in rows]


def unlabelled(transactions: Transactions) -> Transactions:
    return with_labels(transactions, np.full(transactions.n_rows, -1))


def list_labels(transactions: Transactions, label: int = 1) -> list[Label]:
    """Every fraud of the file, or every known genuine transaction, as it is reported."""
    keys = transactions.customers[transactions.customer_codes]
    rows = np.flatnonzero(np.asarray(transactions.labels) == label)
    return [Label(str(keys[i]), str(transactions.ids[i]), label) for i in rows]


async def process(store: MemoryStore, requests: list[Any], **policy: Any) -> list[Any]:
    updater = BeliefUpdater(store, UpdatePolicy(**policy))
    found = []
    for start in range(0, len(requests), 60):
        found += await updater.process_batch(device_detector(), requests[start : start + 60])
    assert not [one for one in found if isinstance(one, Exception)]
    return found


async def replay_file(store: MemoryStore, transactions: Transactions) -> dict[str, float]:
    found = {}
    async for _, responses in replay(BeliefUpdater(store), device_detector(), transactions):
        for one in map(decode_response, responses):
            found[one["id"]] = one["probability"]
    return found


def states_of(store: MemoryStore) -> dict[str, bytes]:
    """The state of every counterparty."""
    found = read_records(store)
    return {key: one.state for key, one in found.items() if key.startswith("p:")}


# ---- scores


def test_rows_miss_some_counterparties() -> None:
    sent = decode(first_rows()[1])
    assert {one.places for one in sent} == {(0, 2), (0, 1, 2)}
    without = decode([{k: v for k, v in first_rows()[1][0].items() if k != TERMINAL}])
    assert without[0].places in {(0,), (0, 1)}


def test_the_service_answers_as_a_scored_file(tmp_path: Path) -> None:
    made, (transactions, rows) = device_detector(), first_rows()
    made.save(tmp_path / "detector")
    scores = made.score(unlabelled(transactions))
    places = {str(id): place for place, id in enumerate(scores.ids)}
    with client(tmp_path / "detector") as api:
        lines = b"\n".join(json.dumps(row).encode() for row in rows)
        text = api.post("/v1/score/batch", content=lines).text
        example = api.get("/v1/model").json()["example"]
        assert api.post("/v1/score", json=example).status_code == 200
    answers = [json.loads(line) for line in text.splitlines()]
    assert len(answers) == N_ROWS
    for answer, row in zip(answers, rows, strict=True):
        expected = scores.probability[places[answer["id"]]]
        assert answer["probability"] == pytest.approx(expected, abs=1e-6)
        assert set(answer["counterparty_sources"]) == {name for name in COLUMNS if name in row}
    assert {DEVICE, TERMINAL} <= set(example)
    found = [one["counterparty_sources"] for one in answers]
    assert {one[TERMINAL] for one in found} == {"new", "stored"}


def test_a_replay_scores_as_the_file() -> None:
    transactions, _ = first_rows()
    expected = device_detector().score(transactions)
    found = asyncio.run(replay_file(MemoryStore(), transactions))
    values = [found[str(id)] for id in expected.ids]
    np.testing.assert_allclose(values, expected.probability, rtol=1e-6, atol=1e-9)


def test_the_log_carries_what_explains_a_fraud_at_each() -> None:
    made, (transactions, rows) = device_detector(), first_rows(300)
    store, (labelled, _) = MemoryStore(), first_rows()
    asyncio.run(replay_file(store, labelled))
    panel = made.features_.transform(labelled)
    causes = dict(zip(map(str, labelled.ids), np.asarray(panel.causes), strict=True))
    n_checked = 0
    for entry in asyncio.run(store.read_log(limit=10**6)):
        content, own = unpack_log_content(entry.content), causes[entry.transaction_id]
        first = own[INTRUDER]
        second = 1.0 - (1.0 - first) * (1.0 - own[find_compromises(2)[0]])
        both = dict(zip(COLUMNS, (first, second), strict=True))
        expected = [both[find_column(key)] for key, _ in entry.parties[1:]]
        assert content.explained == pytest.approx(expected, abs=1e-9)
        n_checked += len(expected) == 2
    assert n_checked > 1000
    assert len(rows) == transactions.n_rows


# ---- labels


def test_labels_at_once_give_the_scores_of_a_labelled_file() -> None:
    """Frauds reported before they count reach both counterparties as in a file."""
    transactions, rows = first_rows()
    expected = device_detector().score(transactions)
    without = device_detector().score(unlabelled(transactions))
    told = {one.id: one for one in list_labels(transactions)}
    requests: list[Any] = []
    for one in decode(rows):
        requests += [one, told[one.id]] if one.id in told else [one]
    responses = asyncio.run(process(MemoryStore(), requests, labels_update_belief=False))
    answers = [decode_response(one) for one in responses if isinstance(one, ScoredResponse)]
    found = {one["id"]: one["probability"] for one in answers}
    values = [found[str(id)] for id in expected.ids]
    np.testing.assert_allclose(values, expected.probability, atol=1e-6)
    assert np.abs(expected.probability - without.probability).max() > 0.2
    effects = [one.counterparties for one in responses if isinstance(one, LabelResponse)]
    assert {frozenset(one) for one in effects} == {frozenset(COLUMNS), frozenset({TERMINAL})}
    assert {effect for one in effects for effect in one.values()} == {"fraud reported"}


@pytest.mark.parametrize("corrects", ["nothing", "genuine", "fraud"])
def test_late_and_corrected_labels_reach_both(corrects: str) -> None:
    """Reported after 1500 transactions, some wrongly at first: the next ones know of them.

    The chain of the first counterparty is then as if the labels had come with their transactions.
    What explained them at the second is what was known when they were scored.
    """
    made, (transactions, rows) = device_detector(), first_rows(N_ROWS + 300)
    n_last, sent = 300, decode(rows)
    labels = np.asarray(transactions.labels)
    is_told = np.isin(transactions.ids.astype(str), [one.id for one in sent[:-n_last]])
    is_fraud = is_told & (labels == 1)
    is_withdrawn = is_told & (labels == 0) & (np.arange(labels.size) % 50 == 0)
    is_withdrawn &= corrects == "fraud"
    known = with_labels(transactions, np.where(is_fraud, 1, np.where(is_withdrawn, 0, -1)))
    told = list_labels(known)
    withdrawn = list_labels(known, 0)
    wrong = {"nothing": [], "genuine": told[::2], "fraud": withdrawn}[corrects]
    first = [msgspec.structs.replace(one, label=1 - one.label) for one in wrong]
    told += withdrawn
    expected = dict(
        zip(map(str, known.ids), np.asarray(made.features_.transform(known).causes), strict=True)
    )
    nothing = dict(
        zip(
            map(str, known.ids),
            np.asarray(made.features_.transform(unlabelled(known)).causes),
            strict=True,
        )
    )

    async def go() -> list[Any]:
        store = MemoryStore()
        await process(store, sent[:-n_last], labels_update_belief=False)
        found = await process(store, [*first, *told], labels_update_belief=False)
        for one, answer in zip([*first, *told], found, strict=True):
            expected = "fraud reported" if one.label else "genuine reported"
            is_news = one.label == 1 or corrects == "fraud"
            assert (expected in answer.counterparties.values()) == is_news
        return await process(store, sent[-n_last:], labels_update_belief=False)

    changed = np.zeros(2)
    of_devices, of_terminals = find_compromises(2)
    for one, response in zip(sent[-n_last:], asyncio.run(go()), strict=True):
        causes, before = response.steps.causes[response.row], nothing[one.id]
        own = [of_devices, of_devices + 1]
        np.testing.assert_allclose(causes[own], expected[one.id][own], rtol=1e-9, atol=1e-12)
        changed += np.abs(causes - before)[[of_devices, of_terminals]] > 0.1
    assert (changed > 0).all()


def test_a_label_reaches_both_and_changes_what_follows() -> None:
    made, (_, rows) = device_detector(), first_rows(400)
    row = next(row for row in rows if DEVICE in row and TERMINAL in row)
    plan, beliefs = made.features_.plan, {}
    for label in (0, 1):
        later = {**row, "TRANSACTION_ID": 10**9, "CUSTOMER_ID": "another"}
        later["TX_DATETIME"] = str(np.datetime64(row["TX_DATETIME"]) + np.timedelta64(9, "D"))
        (sent, following) = decode([row, later])

        async def go(label: int = label, sent: Any = sent, following: Any = following) -> Any:
            updater = BeliefUpdater(MemoryStore())
            await updater.process_batch(made, [sent])
            told = await apply_label(updater, made, sent.customer, sent.id, label)
            (response,) = await updater.process_batch(made, [following])
            return told, response.steps.causes[response.row]

        told, causes = asyncio.run(go())
        effect = "fraud reported" if label else "unchanged"
        assert told.counterparties == {DEVICE: effect, TERMINAL: effect}
        beliefs[label] = causes[find_compromises(2)]
    assert plan.label_maturity_s == 0
    assert (beliefs[1] > 1.5 * beliefs[0]).all()


# ---- rebuilding


@pytest.mark.parametrize("is_replayed", [False, True])
def test_counterparties_are_rebuilt_from_the_log(is_replayed: bool) -> None:
    transactions, rows = first_rows()

    async def go() -> tuple[dict[str, bytes], dict[str, bytes | None]]:
        store, made = MemoryStore(), device_detector()
        if is_replayed:
            await replay_file(store, transactions)
        else:
            await process(store, decode(rows))
            await process(store, list_labels(transactions))
        names = [
            counterparty_key(column, name)
            for column in COLUMNS
            for name in transactions.categories[column].values
        ]
        stored = await store.read_records(names)
        states = {key: unpack_record(key, one.data).state for key, one in stored.items()}
        history = ScoreHistory(store, made, [])
        return states, {key: (await history.rebuild(key))[0] for key in states}

    states, rebuilt = asyncio.run(go())
    assert {find_column(key) for key in states} == set(COLUMNS)
    assert [key for key in states if rebuilt[key] != states[key]] == []


def test_a_rebuilt_customer_keeps_what_it_tracked() -> None:
    """Terminals are tracked: that one was used before is still known without its record."""
    made, (_, rows) = device_detector(), first_rows()
    busiest = max((row["CUSTOMER_ID"] for row in rows), key=[r["CUSTOMER_ID"] for r in rows].count)
    own = decode([row for row in rows if row["CUSTOMER_ID"] == busiest])

    async def go() -> tuple[bytes, bytes | None]:
        store = MemoryStore()
        await process(store, own)
        key = own[0].keys[0]
        stored = unpack_record(key, (await store.read_records([key]))[key].data).state
        return stored, (await ScoreHistory(store, made, []).rebuild(key))[0]

    stored, rebuilt = asyncio.run(go())
    assert rebuilt is not None
    one, other = (made.live.unpack(DetectorState(state)) for state in (stored, rebuilt))
    assert one.n_seen == other.n_seen == len(own)
    assert one.features.customer == other.features.customer


# ---- records


def test_equal_names_in_two_columns_are_two_records() -> None:
    row = {**first_rows(10)[1][0], TERMINAL: 7, DEVICE: 7}
    (sent,) = decode([row])
    assert sent.keys == (customer_key(sent.customer), f"p:{DEVICE}:7", f"p:{TERMINAL}:7")
    store = MemoryStore()
    asyncio.run(process(store, [sent]))
    states = states_of(store)
    assert len(states) == 2
    assert len(set(states.values())) == 2


@pytest.mark.parametrize("column", ["a", "a:b", "a%3Ab", "%", "100%:", "ü:", ""])
@pytest.mark.parametrize("name", ["x", "b:x", ":", "%3A"])
def test_keys_tell_columns_and_names_apart(column: str, name: str) -> None:
    key = counterparty_key(column, name)
    assert find_column(key) == column
    assert key.endswith(name)
    others = [(a, b) for a in ("a", "a:b", "a%3Ab", "%") for b in ("x", "b:x", ":", "%3A")]
    assert [pair for pair in others if counterparty_key(*pair) == key] in ([], [(column, name)])


def test_erasing_a_customer_leaves_the_records_of_both_counterparties() -> None:
    sent = decode(first_rows(400)[1])
    customer = sent[0].customer

    async def go() -> tuple[MemoryStore, int]:
        store = MemoryStore()
        await process(store, sent)
        before = states_of_log(await store.read_log(limit=10**6))
        had_record, n_entries = await erase_customer(store, customer)
        assert had_record
        after = states_of_log(await store.read_log(limit=10**6))
        assert {key for key in before if key not in after} >= {customer_key(customer)}
        for key in sent[0].keys:
            entries = await store.read_history(key)
            assert all(entry.parties[0][0] != customer_key(customer) for entry in entries)
        assert set(await store.read_records(sent[0].keys)) == set(sent[0].keys[1:])
        return store, n_entries

    store, n_entries = asyncio.run(go())
    assert n_entries == sum(one.customer == customer for one in sent)
    left = store.run_sql("SELECT count(*) FROM log_counterparties")
    named = sum(len(one.keys) - 1 for one in sent if one.customer != customer)
    assert left == [(named,)]


def states_of_log(entries: list[Any]) -> set[str]:
    return {key for entry in entries if entry.kind == SCORE for key, _ in entry.parties}


def test_a_label_of_a_column_that_the_model_dropped_is_not_passed_on() -> None:
    """A new model has terminals only; the log still names the device."""
    data = device_payments(9000, counterparties=(TERMINAL,))
    new = only_terminals(data.transactions)
    row = next(row for row in first_rows()[1] if DEVICE in row and TERMINAL in row)
    (sent,) = decode([row])

    async def go() -> Any:
        store = MemoryStore()
        await BeliefUpdater(store).process_batch(device_detector(), [sent])
        return await apply_label(BeliefUpdater(store), new, sent.customer, sent.id, 1)

    assert asyncio.run(go()).counterparties == {DEVICE: "unchanged", TERMINAL: "fraud reported"}


@cache
def only_terminals(transactions: Transactions) -> Detector:
    made = Detector(Features(min_count=4), model_of("expected-log", 2))
    return made.fit(transactions, time_split(transactions))
