"""Real faults against real processes: kills, a Redis that goes away, a full disk, slow clients, and many writers at once."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from examples import live_client

from tests.scoring.detectors import detector
from tests.serving.cases import bundle, rows_of, transactions_of
from tests.serving.process import Server, exchange, running
from tests.serving.redis_server import RedisServer
from tests.serving.test_updater import by_hand
from turncoat.scoring import DetectorState
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.records import Record, counterparty_key, customer_key, unpack_record
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.stores import open_store
from turncoat.serving.stores.memory import MemoryStore
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


# ------------------------------------------------------------------------------------------------ kills


def send_all(
    server: Server, rows: list[dict[str, Any]], answers: dict[str, dict[str, Any]]
) -> None:
    """Send rows in order until one is not answered; one that was not answered may have been counted or not."""
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
                seen = {one.id for one in record.ring}
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
        _, states = by_hand(made, [form.decode(json.dumps(row).encode()) for row in rows])
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
    assert [answer["seen"] for answer in answers] == list(range(1, len(rows) + 1))


def test_told_to_stop_it_answers_what_it_has_taken(model: Path, tmp_path: Path) -> None:
    rows = rows_of("shop")[:300]
    lines = b"\n".join(json.dumps(row).encode() for row in rows) + b"\n"
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite") as server:
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        head = f"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(lines)}\r\n\r\n".encode()
        connection.sendall(head + lines[: len(lines) // 2])
        assert b"200 OK" in connection.recv(100)
        assert server.process is not None
        server.process.terminate()
        time.sleep(0.2)
        connection.sendall(lines[len(lines) // 2 :])
        received = b""
        while piece := connection.recv(65536):
            received += piece
        connection.close()
        assert server.process.wait(30) == 0
        server.process = None
    assert received.count(b'"probability"') == len(rows)


# ------------------------------------------------------------------------------------------------ the store goes away


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
                assert (status, answer["error"]["kind"]) == (503, "store")
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
    _, states = by_hand(made, [form.decode(json.dumps(row).encode()) for row in rows])
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
        resource.prlimit(
            server.process.pid, resource.RLIMIT_FSIZE, (largest + 20_000, resource.RLIM_INFINITY)
        )
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
        resource.prlimit(
            server.process.pid,
            resource.RLIMIT_FSIZE,
            (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        )
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


def test_a_slow_batch_does_not_keep_it_from_stopping(model: Path) -> None:
    """Lines that wait for their pace when the server is told to stop are not scored, and their sender is told."""
    rows = rows_of("shop")[:200]
    with running(model, "memory://", "--rate-limit-per-s", "50") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        connection.request(
            "POST", "/v1/score/batch", b"\n".join(json.dumps(row).encode() for row in rows)
        )
        response = connection.getresponse()
        first = response.readline()
        assert server.process is not None
        server.process.terminate()
        answers = [json.loads(line) for line in [first, *response.read().splitlines()]]
        connection.close()
        assert server.process.wait(20) == 0
        server.process = None
        said = server.log.read_text()
    assert len(answers) < len(rows)
    assert all("probability" in answer for answer in answers[:-1])
    assert (answers[-1]["error"]["kind"], answers[-1]["line"]) == ("overloaded", len(answers))
    assert "Traceback" not in said


def test_a_batch_that_goes_on_coming_does_not_keep_it_from_stopping(model: Path) -> None:
    lines = [json.dumps(row).encode() + b"\n" for row in rows_of("shop")[:200]]
    with (
        running(model, "memory://") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending,
    ):
        sending.sendall(
            b"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
        )
        sending.sendall(b"".join(lines[:20]))
        received = _received(sending, until=lambda found: found.count(b'"probability"') == 20)
        assert server.process is not None
        server.process.terminate()
        with contextlib.suppress(OSError):
            for line in lines[20:]:
                sending.sendall(line)
                time.sleep(0.05)
        assert server.process.wait(10) == 0
        server.process = None
        answers = [
            json.loads(line)
            for line in (received + _received(sending)).splitlines()
            if line.startswith(b"{")
        ]
    assert 20 < len(answers) < len(lines)
    assert all("probability" in answer for answer in answers[:-1])
    assert (answers[-1]["error"]["kind"], answers[-1]["line"]) == ("overloaded", len(answers))


def test_a_line_that_never_ends_does_not_keep_it_from_stopping(model: Path) -> None:
    first = json.dumps(rows_of("shop")[0]).encode()
    with (
        running(model, "memory://") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending,
    ):
        sending.sendall(
            b"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"
            + first
            + b"\n"
        )
        received = _received(
            sending, until=lambda found: b'"probability"' in found
        )  # which comes though the batch goes on
        assert server.process is not None
        with contextlib.suppress(OSError):
            for number in range(100):
                if number == 5:
                    server.process.terminate()
                sending.sendall(b" ")
                time.sleep(0.05)
        assert server.process.wait(10) == 0
        server.process = None
        last = [
            line for line in (received + _received(sending)).splitlines() if line.startswith(b"{")
        ][-1]
        assert json.loads(last)["error"]["kind"] == "overloaded"
        assert "Traceback" not in server.log.read_text()


def test_a_head_sent_ahead_does_not_end_the_request_before_it(model: Path) -> None:
    """It may wait as long as the other takes; told to stop, the server tells the other, too."""
    lines = b"\n".join(json.dumps(row).encode() for row in rows_of("shop")[:200])
    ahead = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n"
    for stops in (False, True):
        n_lines = 200 if stops else 100
        body = b"\n".join(lines.splitlines()[:n_lines])
        with (
            running(
                model, "memory://", "--client-timeout-s", "0.5", "--rate-limit-per-s", "50"
            ) as server,
            socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending,
        ):
            head = f"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            sending.sendall(head.encode() + body)
            sending.sendall(ahead)
            received = _received(sending, until=lambda found: b'"probability"' in found)
            if stops:
                assert server.process is not None
                server.process.terminate()
            answers = [
                json.loads(line)
                for line in (received + _received(sending)).splitlines()
                if line.startswith(b"{")
            ]
            refused = [answer["error"]["kind"] for answer in answers if "error" in answer]
            if stops:
                assert server.process.wait(10) == 0
                server.process = None
                assert refused[0] == "overloaded"
                assert 0 < len(answers) - len(refused) < n_lines
            else:
                assert len(answers) - len(refused) == n_lines


def _received(sending: socket.socket, until: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """What was sent back: until that is enough, or the other side has hung up."""
    found = b""
    with contextlib.suppress(OSError):
        while not until(found) and (piece := sending.recv(65536)):
            found += piece
    return found


# ------------------------------------------------------------------------------------------------ clients


def test_slow_clients_are_hung_up_on_and_the_others_served(model: Path) -> None:
    with running(model, "memory://", "--client-timeout-s", "0.5") as server:
        slow = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(3)]
        slow[1].sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        slow[2].sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
        )
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200
        said = [connection.recv(1000) for connection in slow]
        for connection in slow:
            connection.close()
        assert said[0] == b""
        assert said[1] == b""
        assert b"408" in said[2]


def _send_until_hung_up(connection: socket.socket) -> int:
    for sent in range(2000):
        try:
            connection.sendall(b"a" * 10_000)
        except OSError:
            return sent
        time.sleep(0.001)
    return 2000


def test_an_endless_head_is_hung_up_on(model: Path) -> None:
    with running(model, "memory://") as server:
        for start in (b"GET /" + b"a" * 1000, b"GET /livez HTTP/1.1\r\nX-Long: " + b"a" * 1000):
            endless = socket.create_connection(("127.0.0.1", server.port), timeout=20)
            endless.sendall(start)
            sent = _send_until_hung_up(endless)
            endless.close()
            assert sent < 2000
        assert server.ask("GET", "/livez")[0] == 200


def test_a_store_that_was_removed_is_noticed(model: Path, tmp_path: Path) -> None:
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite") as server:
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200
        (tmp_path / "beliefs.sqlite").rename(tmp_path / "elsewhere")
        status, answer, _ = server.ask("POST", "/v1/score", rows_of("shop")[1])
        assert (status, answer["error"]["kind"]) == (503, "store")
        assert server.ask("GET", "/readyz")[0] == 503
        (tmp_path / "elsewhere").rename(tmp_path / "beliefs.sqlite")
        assert server.ask("POST", "/v1/score", rows_of("shop")[1])[0] == 200


def test_requests_sent_ahead_are_all_answered(model: Path) -> None:
    """More of them than the head of one may have bytes."""
    with (
        running(model, "memory://") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as ahead,
    ):
        request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 3000 + b"\r\n\r\n"
        ahead.sendall(request * 50)
        answered = b""
        while answered.count(b"HTTP/1.1 200 OK") < 50:
            piece = ahead.recv(65536)
            assert piece, f"hung up on after {answered.count(b'HTTP/1.1 200 OK')} answers"
            answered += piece


def test_requests_sent_ahead_of_garbage_or_the_end_are_no_error_of_ours(model: Path) -> None:
    body = json.dumps(rows_of("shop")[0]).encode()
    request = (
        b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        + body
    )
    with running(model, "memory://") as server:
        for ending in (
            b"garbage\0\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n",
            b"",
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as ahead:
                ahead.sendall(request * 3 + ending)
                if ending:
                    assert b"400 Bad Request" in _received(ahead)
        assert server.ask("POST", "/v1/score", rows_of("shop")[1])[0] == 200
        assert "Traceback" not in server.log.read_text()


_OFFER = b"Connection: Upgrade, HTTP2-ServiceSettings\r\nUpgrade: h2c\r\nHTTP2-ServiceSettings: AAEAAEAA\r\n"


def test_an_offer_to_go_on_in_another_protocol_is_declined(model: Path) -> None:
    """As Java's client makes one: the body is read as ever, whatever pieces it comes in, and so are the requests after it."""
    bodies = [json.dumps(row).encode() for row in rows_of("shop")[:3]]
    head = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
    sent = b"".join(
        [
            head + _OFFER + b"Content-Length: %d\r\n\r\n" % len(bodies[0]) + bodies[0],
            head
            + _OFFER
            + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(bodies[1])
            + bodies[1]
            + b"\r\n0\r\n\r\n",
            head + b"Content-Length: %d\r\n\r\n" % len(bodies[2]) + bodies[2],
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + _OFFER + b"\r\n",
            b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        ]
    )
    with running(model, "memory://") as server:
        for n_bytes in (1, 700, 1_000_000):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending:
                sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for at in range(0, len(sent), n_bytes):
                    sending.sendall(sent[at : at + n_bytes])
                received = _received(sending)
            _check_declined(received, bodies)
        assert "Unsupported upgrade" not in server.log.read_text()


def _check_declined(received: bytes, bodies: list[bytes]) -> None:
    assert received.count(b"HTTP/1.1 200 OK") == 5
    assert re.findall(rb'{"id":"(\w+)"', received) == [
        str(json.loads(body)["id"]).encode() for body in bodies
    ]
    assert received.endswith(b'{"status":"ready"}')


def test_after_an_offer_the_body_is_not_waited_for_for_ever(model: Path) -> None:
    with (
        running(model, "memory://", "--client-timeout-s", "0.5") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending,
    ):
        sending.sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
            + _OFFER
            + b"Content-Length: 100\r\n\r\n"
        )
        assert b"200 OK" not in _received(sending)  # which ends when the server hangs up


def test_many_offers_sent_ahead_are_declined_one_after_the_other(model: Path) -> None:
    with (
        running(model, "memory://") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as ahead,
    ):
        request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + _OFFER + b"\r\n"
        ahead.sendall(request * 1500)
        received = _received(ahead, until=lambda found: found.count(b'"alive"') == 1500)
    assert received.count(b"HTTP/1.1 200 OK") == 1500


def test_nobody_is_kept_for_what_is_no_request(model: Path) -> None:
    """Bytes between requests, or of a body that nobody wanted, win no more time than the head of a request has."""
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"
    with running(model, "memory://", "--client-timeout-s", "1") as server:
        for more, body, later in (
            (b"", b"", b"\r\n"),
            (b"Content-Length: 100\r\n", b"", b"x"),
            (b"Content-Length: 1\r\n", b"x", b"\r\n"),
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending:
                sending.sendall(head + more + b"\r\n")
                assert b"alive" in _received(sending, until=lambda found: b"alive" in found)
                sending.sendall(body)
                n_sent = 0
                with contextlib.suppress(OSError):
                    while n_sent < 50 and not _has_gone(sending):  # which takes a tenth of a second
                        sending.sendall(later)
                        n_sent += 1
                assert n_sent < 50


def _has_gone(sending: socket.socket) -> bool:
    """Whether the other side hung up: reading from one that did not would time out."""
    sending.settimeout(0.1)
    try:
        return sending.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_what_follows_a_body_is_no_part_of_the_head(model: Path) -> None:
    request = b"POST /v1/score HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = json.dumps(rows_of("shop")[0]).encode()
    with (
        running(model, "memory://") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as sending,
    ):
        sending.sendall(
            request + b"%x\r\n" % len(body) + body + b"\r\n0\r\nHost: localhost\r\n\r\n"
        )
        assert b"403 Forbidden" in _received(sending)


def test_who_reads_no_answers_is_hung_up_on(model: Path) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(model, "memory://", "--client-timeout-s", "0.1") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with pytest.raises(ConnectionError):  # a timeout would be none
                deaf.sendall(request * 1_000_000)
        assert server.ask("GET", "/livez")[0] == 200
        assert "Traceback" not in server.log.read_text()


def test_who_breaks_off_is_no_error_of_ours(model: Path) -> None:
    """Also when the time for the next request, or for reading, is over."""
    with running(model, "memory://", "--client-timeout-s", "0.1") as server:
        for request in (
            b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500,
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as leaving:
                leaving.sendall(request)
                leaving.recv(100)
                leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(6)  # uvicorn's patience with who may send another request is 5 seconds
        assert server.ask("GET", "/livez")[0] == 200
        said = server.log.read_text()
    assert "Traceback" not in said
    assert "Exception" not in said


def test_a_batch_may_be_sent_whole_before_its_answers_are_read(model: Path) -> None:
    """More of both than fits between the two."""
    row = {**rows_of("shop")[0], "town": "x" * 3000}
    lines = [json.dumps({**row, "id": i, "who": f"c{i}"}).encode() + b"\n" for i in range(6000)]
    body = b"".join(lines)
    with (
        running(model, "memory://") as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as sending,
    ):
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        head = b"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        sending.sendall(head % len(body) + body)
        received = _received(sending)
    assert re.findall(rb'^{"id":"(\d+)"', received, flags=re.MULTILINE) == [
        b"%d" % i for i in range(len(lines))
    ]


def test_a_worker_whose_parent_has_gone_before_it_could_look_ends(model: Path) -> None:
    settings = ServiceSettings(
        model_path=str(model), store_url="memory://", workers=2, parent_pid=os.getppid()
    )
    code = f"import os, time; os.environ['TURNCOAT_SERVE_SETTINGS'] = {msgspec.json.encode(settings).decode()!r}\n"
    code += "from turncoat.serving.server import worker; app = worker(); time.sleep(60)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], stderr=subprocess.DEVNULL, timeout=50
        ).returncode
        == -signal.SIGTERM
    )


def test_workers_end_with_their_parent(model: Path, tmp_path: Path) -> None:
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite", "--workers", "2") as server:
        assert server.process is not None
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 20
        while True:
            try:
                server.ask("GET", "/livez", timeout=2)
            except OSError:
                break
            assert time.monotonic() < deadline, "a worker goes on without its parent"
            time.sleep(0.1)


def test_a_client_that_does_not_read_its_answers_holds_up_nobody(model: Path) -> None:
    lines = (
        b"\n".join(json.dumps({**row, "id": f"b{row['id']}"}).encode() for row in rows_of("shop"))
        + b"\n"
    )
    with running(model, "memory://") as server:
        deaf = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(
            f"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(lines)}\r\n\r\n".encode()
        )
        sender = threading.Thread(target=lambda: _ignore(lambda: deaf.sendall(lines)))
        sender.start()
        for row in rows_of("shop")[:50]:
            assert server.ask("POST", "/v1/score", {**row, "who": "hearing"}, timeout=10)[0] == 200
        deaf.close()
        sender.join()
        assert server.ask("GET", "/readyz")[0] == 200


def _ignore(work: Any) -> None:
    with contextlib.suppress(OSError):
        work()


def test_a_clock_that_goes_backwards_changes_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    made, some = detector("shop"), transactions_of("shop", 60)
    times = iter(np.linspace(2e9, 1e9, 70))
    monkeypatch.setattr("turncoat.serving.attempt.time.time", lambda: float(next(times)))

    async def go() -> tuple[MemoryStore, list[Any]]:
        store = MemoryStore()
        updater = BeliefUpdater(store)
        given = [
            one
            for some_of in (some[i : i + 1] for i in range(len(some)))
            for one in await updater.score_batch(made, some_of)
        ]
        assert (
            await store.delete_entries_before(1.5e9, limit=10**6) > 0
        )  # goes by the clock, wherever it stood
        return store, given

    store, given = asyncio.run(go())
    scores, states = by_hand(made, some)
    assert [one.probability for one in given] == [score.probability for score in scores]
    found = asyncio.run(store.read_records(list(states)))
    assert {key: unpack_record(key, stored.data).state for key, stored in found.items()} == states


# ------------------------------------------------------------------------------------------------ many at once


@dataclass
class Traffic:
    """Customers' transactions in order, sent by several writers; some twice at once, some too late."""

    own: dict[str, list[dict[str, Any]]]
    rng: random.Random
    n_writers: int = 8
    duplicates: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    late: int = 0

    def events(self, writer: int) -> Iterator[tuple[dict[str, Any], bool]]:
        """What one writer sends: its customers interleaved, each in order; and whether it is an old one, sent late."""
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
        running(model, store, "--workers", "2", "--reasons", "2") as server,
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
    found = records(store, [counterparty_key(name) for name in shops])
    for name in shops:
        numbers = np.frombuffer(
            found[counterparty_key(name)].state, np.float64, 1, 8
        )  # how many were counted
        assert numbers[0] == sum(row.get("shop") == name for row in rows)


def test_the_command_refuses_what_could_not_work(tmp_path: Path, model: Path) -> None:
    def refusal(*options: str) -> str:
        command = [sys.executable, "-m", "turncoat", "serve", *options]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert found.returncode == 2
        return found.stderr

    assert "--keys" in refusal(str(model), "--host", "0.0.0.0")
    assert "not a saved detector" in refusal(str(tmp_path / "nothing"))
    assert "memory" in refusal(str(model), "--store", "memory://", "--workers", "2")
    assert "TURNCOAT_REDIS_PASSWORD" in refusal(
        str(model), "--store", "redis://:secret@127.0.0.1/0"
    )
    (model / "manifest.json").write_text("{}")
    assert "manifest" in refusal(str(model))
    assert "manifest" in refusal(str(model), "--workers", "2")
