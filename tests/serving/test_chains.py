"""Two-sided chains in the service: scores, labels, the log and replays agree with the library."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from starlette.testclient import TestClient

from tests.features.sample_data import DAY
from tests.scoring.chains import AMOUNT, TERMINAL, chains_detector, payments, with_labels
from tests.serving.helpers import MemoryStore, client, decode_response
from turncoat.data.transactions import Transactions
from turncoat.features import FeatureState
from turncoat.features.chains import INTRUDER, find_compromises
from turncoat.features.live import unpack_states
from turncoat.numerics.intruder import OUTPUTS
from turncoat.scoring import DetectorState
from turncoat.serving.decoding import Label, TransactionDecoder
from turncoat.serving.history import ScoreHistory
from turncoat.serving.maintenance import replay
from turncoat.serving.records import counterparty_key, unpack_log_content, unpack_record
from turncoat.serving.stores.protocol import SCORE
from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

N_ROWS = 1500
KINDS = ("chains", "chains+trees")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    chains_detector().save(tmp_path / "detector")
    return tmp_path / "detector"


@cache
def first_rows(n_rows: int = N_ROWS) -> tuple[Transactions, list[dict[str, Any]]]:
    """The first payments as a file, and as clients send them."""
    data = payments()
    transactions, order = data.transactions, data.live_order[:n_rows]
    schema, rows = transactions.schema, []
    for place in transactions.file_rows[order]:
        row = {k: v for k, v in data.rows[place].items() if k in schema.columns}
        row.pop(str(schema.label))
        rows.append(json.loads(json.dumps(row, default=str)))
    return transactions.take(np.sort(order)), rows


def unlabelled(transactions: Transactions) -> Transactions:
    return with_labels(transactions, np.full(transactions.n_rows, -1))


def send_batch(api: TestClient, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = b"\n".join(json.dumps(row).encode() for row in rows)
    text = api.post("/v1/score/batch", content=lines).text
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize(("kind", "n_rows"), [("chains", N_ROWS), ("chains+trees", 150)])
def test_the_service_answers_as_a_scored_file(kind: str, n_rows: int, tmp_path: Path) -> None:
    made, (transactions, rows) = chains_detector(kind), first_rows(n_rows)
    made.save(tmp_path / "detector")
    scores = made.score(unlabelled(transactions), reasons="all")
    places = {str(id): place for place, id in enumerate(scores.ids)}
    with client(tmp_path / "detector") as api:
        answers = send_batch(api, rows)
        assert api.get("/v1/model").json()["kind"] == kind
    assert len(answers) == n_rows
    assert scores.reasons is not None
    for answer in answers:
        place = places[answer["id"]]
        assert answer["probability"] == pytest.approx(scores.probability[place], abs=1e-6)
        texts = [one["text"] for one in answer["reasons"]]
        assert texts == [one.text for one in scores.reasons[place]]


def test_reasons_carry_the_shares_of_causes(model: Path) -> None:
    with client(model) as api:
        answers = send_batch(api, first_rows(100)[1])
    for answer in answers:
        assert {one["source"] for one in answer["reasons"]} == {"customer", TERMINAL, "transaction"}
        assert sum(one["share"] for one in answer["reasons"]) == pytest.approx(1.0)


def test_a_reported_label_reaches_the_counterparty_s_chain(model: Path) -> None:
    """The next scores are those of a file in which the label is known."""
    made, (transactions, rows) = chains_detector(), first_rows()
    panel = made.features_.transform(unlabelled(transactions))
    assert panel.causes is not None
    who = transactions.categories[TERMINAL].codes[transactions.file_rows]
    busiest = np.bincount(who).argmax()
    own = np.flatnonzero(who == busiest)
    own = own[np.lexsort((transactions.ids[own], transactions.times[own]))]
    labels = np.full(transactions.n_rows, -1)
    labels[own[:2]] = 1
    expected = made.score(with_labels(transactions, labels))
    without = made.score(unlabelled(transactions)).probability
    places = {str(id): place for place, id in enumerate(expected.ids)}
    told = {str(transactions.ids[place]) for place in own[:2]}
    keys = transactions.customers[transactions.customer_codes]
    answers, news = [], []
    with client(model, labels_update_belief=False) as api:
        for row in rows:
            answers.append(api.post("/v1/score", json=row).json())
            if (id := answers[-1]["id"]) in told:
                body = {"id": id, "customer": str(keys[places[id]]), "label": 1}
                news.append(api.post("/v1/labels", json=body).json())
    assert [one["counterparties"] for one in news] == [{TERMINAL: "fraud reported"}] * 2
    found = np.array([one["probability"] for one in answers])
    order = [places[one["id"]] for one in answers]
    np.testing.assert_allclose(found, expected.probability[order], atol=1e-6)
    changed = np.flatnonzero(np.abs(expected.probability - without) > 1e-6)
    own_customers = transactions.customer_codes[own[:2]]
    is_elsewhere = who[changed] != busiest
    assert set(transactions.customer_codes[changed[is_elsewhere]]) <= set(own_customers)
    first, delay = transactions.times[own[0]], made.features_.plan.label_delay_s
    assert transactions.times[changed].min() > first + delay
    assert (expected.probability - without).max() > 0.3


async def process(store: MemoryStore, kind: str, requests: list[Any]) -> list[Any]:
    return await BeliefUpdater(store).process_batch(chains_detector(kind), requests)


def schedule_labels(n_rows: int, seed: int) -> tuple[list[Any], set[str]]:
    """Payments in order, with labels in between, and the ids of those that are fraud at last.

    Labels come in any order, repeated or corrected, but before they count. Frauds are large.
    """
    made, (transactions, rows) = chains_detector(), first_rows(n_rows)
    rng, decoder = np.random.default_rng(seed), TransactionDecoder(made)
    delay = made.features_.plan.label_delay_s
    amounts = transactions.column(AMOUNT)
    frauds = set(map(str, transactions.ids[amounts > np.quantile(amounts, 0.9)]))
    timed: list[tuple[float, int, Any]] = []
    for place, row in enumerate(rows):
        one = decoder.decode(json.dumps(row).encode())
        timed.append((one.time, place, one))
        if one.id in frauds:
            first, second, third = np.sort(rng.uniform(one.time, one.time + delay, 3))
            timed.append((first, n_rows, Label(one.customer, one.id, int(rng.integers(2)))))
            timed.append((second, n_rows, Label(one.customer, one.id, 1)))
            timed.append((third, n_rows, Label(one.customer, one.id, 1)))
    return [one for *_, one in sorted(timed, key=lambda item: item[:2])], frauds


def read_own_chain(state: bytes) -> bytes:
    """The chain of intruders in a customer's stored state."""
    made = chains_detector()
    features = made.live.unpack(DetectorState(state)).features
    numbers = unpack_states(made.features_.plan, [FeatureState(features.customer)]).intruder[0]
    assert numbers.shape == (9 + 3 * 32,)
    return numbers.tobytes()


def test_reported_labels_reach_the_customer_s_chain() -> None:
    """Presence is that of a file in which the labels are known; a rebuilt record is the same."""
    made, (transactions, _) = chains_detector(), first_rows()
    policy, (requests, frauds) = (
        UpdatePolicy(labels_update_belief=False),
        schedule_labels(N_ROWS, 0),
    )
    presence = OUTPUTS.index("presence")

    async def go() -> tuple[dict[str, float], dict[str, bytes], dict[str, bytes | None]]:
        store, found = MemoryStore(), {}
        updater = BeliefUpdater(store, policy)
        for start in range(0, len(requests), 50):
            batch = requests[start : start + 50]
            responses = await updater.process_batch(made, batch)
            for one, response in zip(batch, responses, strict=True):
                if not isinstance(one, Label):
                    found[one.id] = float(response.steps.causes[response.row, presence])
        keys = {one.keys[0] for one in requests if isinstance(one, Label)}
        stored = await store.read_records(list(keys))
        states = {key: unpack_record(key, one.data).state for key, one in stored.items()}
        history = ScoreHistory(store, made, [])
        return found, states, {key: (await history.rebuild(key))[0] for key in states}

    found, states, rebuilt = asyncio.run(go())
    labels = np.where([str(id) in frauds for id in transactions.ids], 1, -1)
    expected, without = (
        np.asarray(made.features_.transform(with_labels(transactions, some)).causes)[:, presence]
        for some in (labels, np.full(transactions.n_rows, -1))
    )
    values = [found[str(id)] for id in transactions.ids]
    np.testing.assert_array_equal(values, expected)
    assert (expected - without).max() > 0.1
    for key, state in states.items():
        again = rebuilt[key]
        assert again is not None
        assert read_own_chain(again) == read_own_chain(state)


def test_labels_of_payments_at_the_same_time_belong_to_theirs() -> None:
    """Three payments at the same time; one that comes late counts with them."""
    made, (_, rows) = chains_detector(), first_rows(300)
    own = [row for row in rows if row["CUSTOMER_ID"] == rows[0]["CUSTOMER_ID"]][:4]
    same = {**own[-1], "TX_DATETIME": own[-2]["TX_DATETIME"]}
    late = {**own[0], "TRANSACTION_ID": 10**9, AMOUNT: 3.0}
    decoder, found = TransactionDecoder(made), {}
    sent = [decoder.decode(json.dumps(row).encode()) for row in (*own[:-1], same, late)]
    assert sent[-1].time < sent[-2].time == sent[-3].time
    policy = UpdatePolicy(labels_update_belief=False, late="apply")

    async def go(place: int, with_row: bool) -> bytes:
        store = MemoryStore()
        updater = BeliefUpdater(store, policy)
        known = replace(sent[place], label=1) if with_row else sent[place]
        await updater.process_batch(made, [*sent[:place], known, *sent[place + 1 :]])
        if not with_row:
            label = Label(sent[place].customer, sent[place].id, 1)
            await updater.process_batch(made, [label])
        key = sent[0].keys[0]
        return read_own_chain(unpack_record(key, (await store.read_records([key]))[key].data).state)

    for place in range(len(sent)):
        found[place] = asyncio.run(go(place, with_row=False))
        assert found[place] == asyncio.run(go(place, with_row=True))
    assert len(set(found.values())) == len(sent)


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_carries_what_the_customer_s_side_explains(kind: str) -> None:
    made, (transactions, rows) = chains_detector(kind), first_rows(150)
    decoder, store = TransactionDecoder(made), MemoryStore()
    sent = [decoder.decode(json.dumps(row).encode()) for row in rows]

    async def go() -> list[Any]:
        await process(store, kind, sent)
        return await store.read_log(limit=10**6)

    entries = [entry for entry in asyncio.run(go()) if entry.kind == SCORE]
    panel = made.features_.transform(unlabelled(transactions))
    assert panel.causes is not None
    expected = dict(zip(map(str, transactions.ids), panel.causes[:, INTRUDER], strict=True))
    assert len(entries) == len(expected) == 150
    for entry in entries:
        (logged,) = unpack_log_content(entry.content).explained
        assert logged == pytest.approx(expected[entry.transaction_id], abs=1e-9)
    assert max(expected.values()) > 0


def test_a_label_is_weighed_with_the_intruder_of_its_transaction() -> None:
    """A fraud that the customer's side explains says less about the counterparty."""
    made, (_, rows) = chains_detector(), first_rows(400)
    decoder = TransactionDecoder(made)
    history = [row for row in rows if row["CUSTOMER_ID"] == rows[0]["CUSTOMER_ID"]][:20]
    last = history[-1]
    beliefs = []
    for factor in (1.0, 30.0):  # usual, and far above the customer's profile
        odd = {**last, TERMINAL: "new", AMOUNT: factor * last[AMOUNT]}
        later = {**last, TERMINAL: "new", "TRANSACTION_ID": 10**9, "CUSTOMER_ID": "another"}
        later["TX_DATETIME"] = str(np.datetime64(last["TX_DATETIME"]) + np.timedelta64(20, "D"))
        sent = [decoder.decode(json.dumps(row).encode()) for row in (*history[:-1], odd)]
        next_one = decoder.decode(json.dumps(later).encode())

        async def go(sent: Any = sent, next_one: Any = next_one) -> float:
            store = MemoryStore()
            await process(store, "chains", sent)
            await process(store, "chains", [Label(sent[-1].customer, sent[-1].id, 1)])
            (response,) = await process(store, "chains", [next_one])
            assert response.steps is not None
            return float(response.steps.causes[response.row, find_compromises(1)[0]])

        beliefs.append(asyncio.run(go()))
    plain, explained = beliefs
    assert explained < 0.9 * plain


@pytest.mark.parametrize(("kind", "n_rows"), [("chains", N_ROWS), ("chains+trees", 150)])
def test_a_replay_scores_as_the_file(kind: str, n_rows: int) -> None:
    made, (transactions, _) = chains_detector(kind), first_rows(n_rows)
    expected = made.score(transactions)

    async def go() -> dict[str, float]:
        found = {}
        async for _, responses in replay(BeliefUpdater(MemoryStore()), made, transactions):
            for one in map(decode_response, responses):
                found[one["id"]] = one["probability"]
        return found

    found = asyncio.run(go())
    assert len(found) == n_rows
    values = [found[str(id)] for id in expected.ids]
    np.testing.assert_allclose(values, expected.probability, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("is_replayed", [False, True])
def test_counterparties_are_rebuilt_from_the_log(is_replayed: bool) -> None:
    """Labels weigh as they did, whether they came with a file or later."""
    made, (transactions, rows) = chains_detector(), first_rows()
    labels = np.asarray(transactions.labels)
    keys = transactions.customers[transactions.customer_codes]
    names = [counterparty_key(TERMINAL, name) for name in transactions.categories[TERMINAL].values]

    async def go() -> tuple[dict[str, bytes], dict[str, bytes | None]]:
        store = MemoryStore()
        if is_replayed:
            async for _ in replay(BeliefUpdater(store), made, transactions):
                pass
        else:
            decoder = TransactionDecoder(made)
            sent = [decoder.decode(json.dumps(row).encode()) for row in rows]
            frauds = np.flatnonzero(labels == 1)
            await process(store, "chains", sent)
            told = [Label(str(keys[place]), str(transactions.ids[place]), 1) for place in frauds]
            await process(store, "chains", told)
        stored = await store.read_records(names)
        states = {key: unpack_record(key, one.data).state for key, one in stored.items()}
        history = ScoreHistory(store, made, [])
        return states, {key: (await history.rebuild(key))[0] for key in states}

    states, rebuilt = asyncio.run(go())
    assert len(states) > 20
    different = [key for key in states if rebuilt[key] != states[key]]
    assert different == []


def test_late_payments_are_scored_with_the_chains_of_their_time(model: Path) -> None:
    made, (_, rows) = chains_detector(), first_rows(300)
    own = [row for row in rows if row["CUSTOMER_ID"] == rows[0]["CUSTOMER_ID"]][:6]
    *early, late, latest = own
    with client(model) as api:
        in_order = [api.post("/v1/score", json=row).json() for row in (*early, late)]
    with client(model) as api:
        for row in (*early, latest):
            api.post("/v1/score", json=row)
        found = api.post("/v1/score", json=late).json()
    assert found["late"]
    assert found["probability"] == pytest.approx(in_order[-1]["probability"], abs=1e-9)
    assert made.features_.plan.label_delay_s >= DAY
