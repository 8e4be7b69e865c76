"""Real faults and processes: kills, a Redis outage, a full disk, slow clients, many writers."""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import resource
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import live_client

from tests.scoring.detectors import detector
from tests.serving.helpers import MemoryStore, bundle, rows_of, score_by_hand, transactions_of
from tests.serving.process import Server, exchange, running
from tests.serving.redis_server import RedisServer
from turncoat.scoring import DetectorState
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.records import Record, counterparty_key, customer_key, unpack_record
from turncoat.serving.stores import open_store
from turncoat.serving.updater import BeliefUpdater


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return bundle("shop", tmp_path)


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/beliefs.sqlite"
    server: RedisServer = request.getfixturevalue("redis_server")
    return f"{server.url}?prefix={tmp_path.name}"


def records(url: str, keys: list[str]) -> dict[str, Record]:
    async def go() -> dict[str, Record]:
        opened = open_store(url, create=True)
        found: dict[str, Record] = {}
        for start in range(0, len(keys), 500):
            some = await opened.read_records(keys[start : start + 500])
            found |= {key: unpack_record(key, stored.data) for key, stored in some.items()}
        await opened.close()
        return found

    return asyncio.run(go())


def distance(one: bytes, other: bytes) -> float:
    """Largest difference between two states: their beliefs and running facts."""
    made = detector("shop")
    assert len(one) == len(other)
    first, second = (made.live.unpack(DetectorState(state)) for state in (one, other))
    assert first.n_seen == second.n_seen
    facts = 0.0
    records = first.features.customer, second.features.customer
    if records[0] and records[1] and records[0] != records[1]:
        size = 8 + 8 * 21  # fingerprint and numbers; what follows are marks
        assert records[0][size:] == records[1][size:]
        numbers = [np.frombuffer(record[8:size], np.float64) for record in records]
        facts = float((np.abs(numbers[0] - numbers[1]) / np.maximum(np.abs(numbers[0]), 1.0)).max())
    return max(facts, float(np.abs(np.asarray(first.belief) - np.asarray(second.belief)).max()))


# ---- kills


def send_all(
    server: Server, rows: list[dict[str, Any]], answers: dict[str, dict[str, Any]]
) -> None:
    """Send rows in order until one gets no response; that one may have been counted or not."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        for row in rows:
            status, answer, _ = exchange(connection, "POST", "/v1/score", row)
            assert status == 200, answer
            answers[str(row["id"])] = answer
    except (OSError, http.client.HTTPException):
        pass
    finally:
        connection.close()


def test_killed_under_load_it_loses_nothing_it_answered_and_counts_nothing_twice(
    model: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/beliefs.sqlite"
    own: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of("shop")[:480]:
        own[row["who"]].append(
            {name: value for name, value in row.items() if name != "shop"}
        )  # so that order matters by customer only
    answers: dict[str, dict[str, Any]] = {}
    server = Server(model, url, "--workers", "2")
    try:
        for round in range(2):
            server.start()
            left = [[row for row in rows if str(row["id"]) not in answers] for rows in own.values()]
            before = len(answers)
            with ThreadPoolExecutor(len(left)) as pool:
                tasks = [pool.submit(send_all, server, rows, answers) for rows in left]
                while len(answers) < before + 150 and not all(task.done() for task in tasks):
                    time.sleep(0.001)
                server.kill()
            for task in tasks:
                task.result()
            assert len(answers) >= before + 150, f"round {round} answered little"
            for customer, record in records(url, [customer_key(name) for name in own]).items():
                answered = sum(str(row["id"]) in answers for row in own[customer[2:]])
                seen = {one.id for one in record.recent_ids}
                assert all(
                    str(row["id"]) in seen
                    for row in own[customer[2:]][max(answered - 3, 0) : answered]
                )
        server.start()
        for rows in own.values():
            for row in rows:
                status, answer, _ = server.ask("POST", "/v1/score", row)
                assert status == 200
                if str(row["id"]) in answers:
                    assert answer == {**answers[str(row["id"])], "duplicate": True}
        assert server.stop() == 0
    finally:
        server.kill()
    made = detector("shop")
    form = TransactionDecoder(made)
    for customer, rows in own.items():
        _, states = score_by_hand(made, [form.decode(json.dumps(row).encode()) for row in rows])
        key = customer_key(customer)
        assert records(url, [key])[key].state == states[key]


def test_the_example_of_a_client_loses_nothing_and_counts_nothing_twice(
    model: Path, tmp_path: Path
) -> None:
    """Though the server is killed and started again while it sends."""
    rows = [row for row in rows_of("shop") if row["who"] == "c1"][:30]
    with (
        running(model, f"sqlite:///{tmp_path}/beliefs.sqlite") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        answers: list[dict[str, Any]] = []

        def send() -> None:
            for row in rows:
                answers.append(live_client.score(f"http://127.0.0.1:{server.port}", row))

        sending = pool.submit(send)
        while len(answers) < 10 and not sending.done():
            time.sleep(0.001)
        server.kill()
        server.start()
        sending.result(60)
    assert [answer["n_seen"] for answer in answers] == list(range(1, len(rows) + 1))


# ---- the store goes away


def test_a_redis_that_goes_away_means_503_and_then_all_is_well(
    model: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    rows = [row for row in rows_of("shop") if row["who"] in ("c1", "c2", "c3")][:90]
    rows = [{name: value for name, value in row.items() if name != "shop"} for row in rows]
    refused: list[int] = []
    with running(model, f"{redis_server.url}?prefix={tmp_path.name}") as server:
        for i, row in enumerate(rows):
            if i == 30:
                redis_server.stop()
                threading.Timer(1.5, redis_server.start).start()
            while True:
                status, answer, headers = server.ask("POST", "/v1/score", row)
                if status == 200:
                    break
                assert status == 503
                assert answer["error"]["kind"] in ("store", "timeout")
                assert int(headers["retry-after"]) >= 1
                refused.append(i)
                time.sleep(0.1)
            if i == 60:
                assert server.ask("GET", "/readyz")[0] == 200
        text = server.ask("GET", "/metrics")[1].decode()
    assert refused
    assert set(refused) == {30}
    assert "turncoat_store_errors_total 0.0" not in text
    made = detector("shop")
    form = TransactionDecoder(made)
    _, states = score_by_hand(made, [form.decode(json.dumps(row).encode()) for row in rows])
    found = records(f"{redis_server.url}?prefix={tmp_path.name}", list(states))
    assert {key: record.state for key, record in found.items()} == states


def test_a_full_disk_means_503_until_there_is_room_and_nothing_is_lost(
    model: Path, tmp_path: Path
) -> None:
    rows = [{**row, "id": f"{row['id']}-{n}"} for n in range(3) for row in rows_of("shop")]
    limited = {"preexec_fn": lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN), None)[1]}
    url = f"sqlite:///{tmp_path}/beliefs.sqlite"
    with running(model, url, **limited) as server:
        assert server.process is not None
        answered = [server.ask("POST", "/v1/score", row)[1] for row in rows[:50]]
        largest = max(file.stat().st_size for file in tmp_path.glob("beliefs.sqlite*"))
        pid, unlimited = server.process.pid, resource.RLIM_INFINITY
        worker = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (largest + 20_000, unlimited))
        full = 0
        for row in rows[50:400]:
            status, answer, headers = server.ask("POST", "/v1/score", row)
            if status == 503:
                assert answer["error"]["kind"] == "store"
                assert int(headers["retry-after"]) >= 1
                full += 1
                if full == 5:
                    break
            else:
                answered.append(answer)
        assert full == 5, "the disk was never full"
        assert server.ask("GET", "/livez")[0] == 200
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        status, answer, _ = server.ask("POST", "/v1/score", {**rows[0], "who": "late comer"})
        assert status == 200
        first = server.ask("POST", "/v1/score", rows[49])[1]
        assert first == {**answered[49], "duplicate": True}
    latest: dict[str, dict[str, Any]] = {}
    for answer in answered:
        if not answer["late"]:
            latest[answer["customer"]] = answer
    for customer, record in records(url, [customer_key(name) for name in latest]).items():
        assert record.last_time == latest[customer[2:]]["time"]


@pytest.mark.parametrize("part", ["", "-wal", "-shm"])
def test_a_store_that_was_removed_is_noticed(model: Path, tmp_path: Path, part: str) -> None:
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite") as server:
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200
        (tmp_path / f"beliefs.sqlite{part}").rename(tmp_path / "elsewhere")
        status, answer, _ = server.ask("POST", "/v1/score", rows_of("shop")[1])
        assert (status, answer["error"]["kind"]) == (503, "store")
        assert server.ask("GET", "/readyz")[0] == 503
        (tmp_path / "elsewhere").rename(tmp_path / f"beliefs.sqlite{part}")
        assert server.ask("POST", "/v1/score", rows_of("shop")[1])[0] == 200


def test_a_clock_that_goes_backwards_changes_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    made, some = detector("shop"), transactions_of("shop", 60)
    times = iter(np.linspace(2e9, 1e9, 70))
    monkeypatch.setattr("turncoat.serving.updater.time.time", lambda: float(next(times)))

    async def go() -> tuple[MemoryStore, list[Any]]:
        store = MemoryStore()
        updater = BeliefUpdater(store)
        given = [
            one
            for some_of in (some[i : i + 1] for i in range(len(some)))
            for one in await updater.process_batch(made, some_of)
        ]
        assert (
            await store.delete_entries_before(1.5e9, limit=10**6) > 0
        )  # goes by the clock, wherever it stood
        return store, given

    store, given = asyncio.run(go())
    scores, states = score_by_hand(made, some)
    assert [one.probability for one in given] == [score.probability for score in scores]
    found = asyncio.run(store.read_records(list(states)))
    assert {key: unpack_record(key, stored.data).state for key, stored in found.items()} == states


# ---- many at once


@dataclass
class Traffic:
    """Customers' transactions in order, by several writers; some twice at once, some late."""

    own: dict[str, list[dict[str, Any]]]
    rng: random.Random
    n_writers: int = 8
    duplicates: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    late: int = 0

    def events(self, writer: int) -> Iterator[tuple[dict[str, Any], bool]]:
        """Yield what one writer sends, customers interleaved, and whether it is sent late."""
        customers = [name for i, name in enumerate(self.own) if i % self.n_writers == writer]
        turns = [name for name in customers for _ in self.own[name]]
        random.Random(writer).shuffle(turns)
        places = dict.fromkeys(customers, 0)
        for name in turns:
            row = self.own[name][places[name]]
            places[name] += 1
            yield row, False
            if random.Random(str(row["id"])).random() < 0.05:
                yield {**row, "id": f"late-{row['id']}", "at": row["at"] - 1.0}, True


def test_ten_thousand_customers_eight_writers_duplicates_and_late_arrivals(
    model: Path, store: str
) -> None:
    rng = random.Random(7)
    template = [
        {name: value for name, value in row.items() if name != "shop"} for row in rows_of("shop")
    ]
    own: dict[str, list[dict[str, Any]]] = {}
    for i in range(10_000):
        picked = sorted(rng.sample(range(len(template)), rng.choice((1, 2, 2, 3))))
        own[f"k{i}"] = [
            {**template[place], "who": f"k{i}", "id": f"{i}-{place}", "at": 1000.0 * place + i}
            for place in picked
        ]
    traffic = Traffic(own, rng)
    counts: dict[str, int] = defaultdict(int)
    lock = threading.Lock()

    def write(writer: int, server: Server) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        other = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        mine: dict[str, int] = defaultdict(int)
        batch: list[dict[str, Any]] = []

        def flush() -> None:
            body = b"\n".join(json.dumps(row).encode() for row in batch)
            connection.request("POST", "/v1/score/batch", body)
            for line in connection.getresponse().read().splitlines():
                answer = json.loads(line)
                assert "error" not in answer, answer
                mine["late" if answer["late"] else "scored"] += not answer["duplicate"]
                mine["duplicate"] += answer["duplicate"]
            batch.clear()

        for row, is_late in traffic.events(writer):
            twice = not is_late and random.Random(f"twice{row['id']}").random() < 0.05
            if twice or len(batch) >= 200:
                flush()
            if not twice:
                batch.append(row)
                continue
            data = json.dumps(row).encode()
            for one in (connection, other):  # both on their way before either is answered
                one.request("POST", "/v1/score", data)
            both = [json.loads(one.getresponse().read()) for one in (connection, other)]
            assert sorted(answer["duplicate"] for answer in both) == [False, True]
            assert both[0]["probability"] == both[1]["probability"]
            assert both[0]["belief"] == both[1]["belief"]
            mine["scored"] += 1
            mine["duplicate"] += 1
        flush()
        connection.close()
        other.close()
        with lock:
            for name, number in mine.items():
                counts[name] += number

    with (
        running(model, store, "--workers", "2", "--n-reasons", "2") as server,
        ThreadPoolExecutor(traffic.n_writers) as pool,
    ):
        for task in [pool.submit(write, writer, server) for writer in range(traffic.n_writers)]:
            task.result()
        text = server.ask("GET", "/metrics")[1].decode()
    n_rows = sum(map(len, own.values()))
    assert counts["scored"] == n_rows
    assert 0.03 * n_rows < counts["duplicate"] < 0.07 * n_rows
    assert 0.03 * n_rows < counts["late"] < 0.07 * n_rows
    assert f"turncoat_scores_total {float(n_rows + counts['late'])}" in text
    made = detector("shop")
    form = TransactionDecoder(made)
    found = records(store, [customer_key(name) for name in own])
    worst = 0.0
    for name, rows in own.items():
        state: DetectorState | None = None
        for row in rows:
            state, _ = made.score_one(state, form.decode(json.dumps(row).encode()).row, n_reasons=0)
        assert state is not None
        assert state.customer is not None
        worst = max(worst, distance(found[customer_key(name)].state, state.customer))
    assert worst <= 1e-12


def test_customers_and_second_parties_move_together_under_two_workers(
    model: Path, store: str
) -> None:
    """Every transaction that is counted is counted by both its parties, whoever was faster."""
    rows = [
        {**row, "id": f"{row['id']}-{writer}", "who": f"{row['who']}-{writer}"}
        for row in rows_of("shop")[:150]
        for writer in range(4)
    ]
    with (
        running(model, store, "--workers", "2", "--late", "apply") as server,
        ThreadPoolExecutor(4) as pool,
    ):

        def send(some: list[dict[str, Any]]) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            for row in some:
                assert exchange(connection, "POST", "/v1/score", row)[0] == 200
            connection.close()

        for task in [pool.submit(send, rows[writer::4]) for writer in range(4)]:
            task.result()
    shops = sorted({row["shop"] for row in rows if "shop" in row})
    found = records(store, [counterparty_key("shop", name) for name in shops])
    for name in shops:
        numbers = np.frombuffer(
            found[counterparty_key("shop", name)].state, np.float64, 1, 8
        )  # how many were counted
        assert numbers[0] == sum(row.get("shop") == name for row in rows)
