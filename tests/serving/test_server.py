"""The HTTP edge as a process: hostile and slow clients, limits, signals, workers, the proxy."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.serving.helpers import bundle, rows_of
from tests.serving.process import Server, running
from tests.serving.redis_server import RedisServer
from turncoat import ConfigError
from turncoat.serving.server import serve
from turncoat.serving.settings import ServiceSettings

GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return bundle("shop", tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with short time limits, for tests that leave it as it was."""
    limits = ("--idle-timeout-s", "1", "--client-timeout-s", "1", "--max-connections", "64")
    limits += ("--json",)
    with running(bundle("shop", tmp_path_factory.mktemp("edge")), "memory://", *limits) as started:
        yield started
        assert "Traceback" not in started.log.read_text()


def connect(server: Server, receive_buffer_bytes: int | None = None) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return connection


def receive(connection: socket.socket, until: Callable[[bytes], bool] = lambda _: False) -> bytes:
    """Return what the server sends, until that is enough or it closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while not until(found) and (piece := connection.recv(65536)):
            found += piece
    return found


def post(path: str, body: bytes, headers: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return (
        b"POST %s HTTP/1.1\r\nHost: localhost\r\n%s%s\r\n" % (path.encode(), headers, length) + body
    )


def test_a_body_that_is_not_valid_http_gets_400_as_json(server: Server) -> None:
    chunked = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as connection:
        connection.sendall(chunked + b"zz\r\n")
        found = receive(connection, lambda seen: b"}}" in seen)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert json.loads(found.split(b"\r\n\r\n", 1)[1])["error"]["kind"] == "malformed"


def memory_mb(server: Server) -> float:
    """Resident memory of the server's processes."""
    assert server.process is not None
    pids = [server.process.pid, *children(server.process.pid)]
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def answers(received: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in received.splitlines() if line.startswith(b"{")]


# ------------------------------------------------------------------------------- clients


def test_endless_pipelined_requests_take_little_memory(server: Server) -> None:
    before = memory_mb(server)
    connections = [connect(server, 4096) for _ in range(30)]
    rest = [memoryview(GET * 20_000) for _ in connections]
    deadline = time.monotonic() + 4
    while time.monotonic() < deadline:
        for number, connection in enumerate(connections):
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                rest[number] = rest[number][connection.send(rest[number]) :]
        assert server.ask("GET", "/livez", timeout=5)[0] == 200
        time.sleep(0.1)
    assert memory_mb(server) - before < 100
    for connection in connections:
        connection.close()


def test_clients_that_send_no_request_are_disconnected(server: Server) -> None:
    silent, partial, slow_body = (connect(server) for _ in range(3))
    partial.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    slow_body.sendall(b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
    assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200
    assert receive(silent) == b""
    assert receive(partial) == b""
    refused = receive(slow_body)
    assert b" 408 " in refused
    assert b'"body_timeout"' in refused


def test_headers_that_drip_or_never_end_are_refused(server: Server) -> None:
    with connect(server) as dripping, contextlib.suppress(ConnectionError):
        dripping.sendall(b"GET /livez HTTP/1.1\r\n")
        for _ in range(100):
            dripping.sendall(b"X-More: 1\r\n")
            time.sleep(0.05)
        pytest.fail("headers were accepted for five seconds")
    for start in (b"GET /", b"GET /livez HTTP/1.1\r\nX-Long: "):
        with connect(server) as endless, contextlib.suppress(ConnectionError):
            endless.sendall(start)
            for _ in range(2000):
                endless.sendall(b"a" * 10_000)
            pytest.fail("20 MB of headers were accepted")


def test_pipelined_requests_are_all_answered(server: Server) -> None:
    with connect(server) as ahead:
        ahead.sendall(GET.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"a" * 3000 + b"\r\n\r\n") * 50)
        received = receive(ahead, lambda found: found.count(b"HTTP/1.1 200 OK") == 50)
    assert received.count(b"HTTP/1.1 200 OK") == 50


def test_garbage_is_refused_and_no_error_of_the_server(server: Server) -> None:
    request = post("/v1/score", json.dumps(rows_of("shop")[0]).encode())
    for garbage in (b"garbage\0\r\n\r\n", b"GET\r\n\r\n", b"GET /livez HTTP/9.9\r\n\r\n"):
        with connect(server) as ahead:
            ahead.sendall(request + garbage)
            received = receive(ahead)
        assert received.count(b"200 OK") == 1
        assert b"200 OK" not in received.split(b"reasons")[-1]
    with connect(server) as broken:
        broken.sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\nnone\r\n"
        )
        assert b"200 OK" not in receive(broken)
    assert server.ask("POST", "/v1/score", b" \n\t ")[0] == 400
    assert server.ask("POST", "/v1/score", rows_of("shop")[1])[0] == 200


@pytest.mark.parametrize("n_bytes", [1, 700, 1_000_000])
def test_an_offer_to_upgrade_is_ignored(server: Server, n_bytes: int) -> None:
    """Java's client offers HTTP/2 with every request."""
    bodies = [json.dumps(row).encode() for row in rows_of("shop")[:2]]
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(bodies[1]), bodies[1])
    start = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE
    sent = post("/v1/score", bodies[0], UPGRADE)
    sent += start + b"Transfer-Encoding: chunked\r\n\r\n" + chunked
    sent += b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connect(server) as sending:
        sending.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(sent), n_bytes):
            sending.sendall(sent[at : at + n_bytes])
        received = receive(sending)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert re.findall(rb'{"id":"(\w+)"', received) == [
        str(json.loads(body)["id"]).encode() for body in bodies
    ]


def test_trailers_are_not_headers(server: Server) -> None:
    body = json.dumps(rows_of("shop")[0]).encode()
    head = b"POST /v1/score HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n"
    with connect(server) as sending:
        sending.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        sending.sendall(b"%x\r\n" % len(body) + body + b"\r\n0\r\nHost: localhost\r\n\r\n")
        assert b"403 Forbidden" in receive(sending)


def test_a_refused_body_need_not_be_sent(server: Server) -> None:
    with connect(server) as sending:
        sending.sendall(
            b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n"
        )
        assert b" 413 " in receive(sending)


def test_clients_that_leave_are_no_error_of_the_server(server: Server) -> None:
    body = json.dumps(rows_of("shop")[0]).encode()
    for request in (
        GET,
        GET.replace(b"livez", b"openapi.json") * 100,
        post("/v1/score", body)[:-5],
        post("/v1/score/batch", (body + b"\n") * 50)[:-5],
    ):
        with connect(server) as leaving:
            leaving.sendall(request)
            leaving.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    time.sleep(0.3)
    assert server.ask("GET", "/livez")[0] == 200
    assert "Traceback" not in server.log.read_text()


def test_more_connections_than_allowed_wait_for_a_free_one(model: Path) -> None:
    limits = ("--max-connections", "2", "--idle-timeout-s", "1")
    with running(model, "memory://", *limits) as server:
        idle = [connect(server) for _ in range(2)]
        began = time.monotonic()
        assert server.ask("GET", "/livez")[0] == 200
        assert 0.3 < time.monotonic() - began < 5
        for connection in idle:
            connection.close()


def test_request_ids_are_returned_and_logged(model: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/beliefs.sqlite"
    with running(model, url, "--log-format", "json") as server:
        (tmp_path / "beliefs.sqlite").rename(tmp_path / "elsewhere")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        body = json.dumps(rows_of("shop")[0])
        connection.request("POST", "/v1/score", body, {"X-Request-ID": "trace-17"})
        response = connection.getresponse()
        assert (response.status, response.headers["X-Request-ID"]) == (503, "trace-17")
        response.read()
        connection.request("GET", "/livez", headers={"X-Request-ID": 'no "id"\t'})
        response = connection.getresponse()
        assert re.fullmatch("[0-9a-f]{16}", response.headers["X-Request-ID"])
        connection.close()
        lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"time", "level", "message"} <= lines[0].keys()
    assert any(line.get("request_id") == "trace-17" for line in lines)


# ------------------------------------------------------------------------------- batches


def test_a_batch_may_be_sent_whole_before_it_is_read(server: Server) -> None:
    """Both the batch and its responses are larger than the buffers between client and server."""
    row = {**rows_of("shop")[0], "town": "x" * 3000}
    lines = [json.dumps({**row, "id": i, "who": f"c{i}"}).encode() + b"\n" for i in range(6000)]
    with connect(server, 65536) as sending:
        sending.settimeout(60)
        sending.sendall(post("/v1/score/batch", b"".join(lines), b"Connection: close\r\n"))
        received = receive(sending)
    found = re.findall(rb'^{"id":"(\d+)"', received, flags=re.MULTILINE)
    assert found == [b"%d" % i for i in range(len(lines))]


def test_a_client_that_does_not_read_its_batch_is_given_up(server: Server) -> None:
    row = json.dumps({**rows_of("shop")[0], "town": "x" * 3000}).encode()
    with connect(server, 4096) as deaf:
        deaf.sendall(post("/v1/score/batch", (row + b"\n") * 12_000))
        for row_sent in rows_of("shop")[:20]:
            assert server.ask("POST", "/v1/score", {**row_sent, "who": "other"})[0] == 200
        deadline = time.monotonic() + 20
        while "did not read the responses" not in server.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_responses_come_while_the_batch_goes_on(server: Server) -> None:
    line = json.dumps(rows_of("shop")[0]).encode() + b"\n"
    with connect(server) as sending:
        sending.sendall(post("/v1/score/batch", b"x" * 100_000)[:-100_000] + line)
        assert b'"probability"' in receive(sending, lambda found: b'"probability"' in found)
        assert b'"body_timeout"' in receive(sending)  # nothing more came


# ------------------------------------------------------------------------------- shutdown


def terminate(server: Server) -> subprocess.Popen[bytes]:
    assert server.process is not None
    process, server.process = server.process, None
    process.terminate()
    return process


def test_at_shutdown_requests_in_progress_are_finished(model: Path, tmp_path: Path) -> None:
    lines = [json.dumps(row).encode() + b"\n" for row in rows_of("shop")[:300]]
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite") as server:
        with connect(server) as sending:
            request = post("/v1/score/batch", b"".join(lines))
            sending.sendall(request[: len(request) // 2])
            assert b"200 OK" in sending.recv(100)
            process = terminate(server)
            time.sleep(0.2)
            sending.sendall(request[len(request) // 2 :])
            received = receive(sending)
        assert process.wait(30) == 0
    assert received.count(b'"probability"') == len(lines)


@pytest.mark.parametrize("drips", ["lines", "bytes"])
def test_a_batch_without_end_does_not_stop_a_shutdown(model: Path, drips: str) -> None:
    lines = [json.dumps(row).encode() + b"\n" for row in rows_of("shop")[:200]]
    with running(model, "memory://", "--request-timeout-s", "0.5") as server:
        with connect(server) as sending:
            sending.sendall(
                post("/v1/score/batch", b"x" * 10**6)[: -(10**6)] + b"".join(lines[:20])
            )
            received = receive(sending, lambda found: found.count(b'"probability"') == 20)
            process = terminate(server)
            with contextlib.suppress(OSError):
                for line in lines[20:]:
                    sending.sendall(line if drips == "lines" else b" ")
                    time.sleep(0.05)
            assert process.wait(10) == 0
            found = answers(received + receive(sending))
        assert "Traceback" not in server.log.read_text()
    assert all("probability" in answer for answer in found[:-1])
    assert found[-1]["error"]["kind"] == "overloaded"
    assert "Send it again" in found[-1]["error"]["message"]


def test_lines_that_wait_for_their_rate_do_not_stop_a_shutdown(model: Path) -> None:
    body = b"\n".join(json.dumps(row).encode() for row in rows_of("shop")[:200])
    options = ("--rate-limit-per-s", "20", "--request-timeout-s", "0.5")
    with running(model, "memory://", *options) as server:
        with connect(server) as sending:
            sending.sendall(post("/v1/score/batch", body))
            received = receive(sending, lambda found: b'"probability"' in found)
            process = terminate(server)
            found = answers(received + receive(sending))
        assert process.wait(20) == 0
    assert 10 < len(found) < 200
    assert (found[-1]["error"]["kind"], found[-1]["line"]) == ("overloaded", len(found))


def test_at_shutdown_two_workers_refuse_new_connections_at_once(
    model: Path, tmp_path: Path
) -> None:
    options = ("--workers", "2", "--request-timeout-s", "3")
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite", *options) as server:
        line = json.dumps(rows_of("shop")[0]).encode() + b"\n"
        sending = [connect(server) for _ in range(4)]
        for connection in sending:  # requests in progress, on both workers
            connection.sendall(post("/v1/score/batch", b"x" * 5000)[:-5000] + line)
            assert b"200 OK" in connection.recv(1000)
        process = terminate(server)
        time.sleep(0.5)
        began, n_refused = time.monotonic(), 0
        while process.poll() is None and time.monotonic() - began < 2:
            with pytest.raises(ConnectionRefusedError):
                connect(server)
            n_refused += 1
            time.sleep(0.05)
        assert n_refused > 5
        for connection in sending:
            connection.close()
        assert process.wait(30) == 0


def test_workers_end_with_their_parent(model: Path, tmp_path: Path) -> None:
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite", "--workers", "2") as server:
        assert server.process is not None
        workers = children(server.process.pid)
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, "a worker goes on without its parent"
            time.sleep(0.1)


def test_a_worker_that_dies_is_replaced(model: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/beliefs.sqlite"
    with running(model, url, "--workers", "2") as server:
        assert server.process is not None
        _await_worker_starts(server, 2)  # or the killed one may not have counted its start
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        _await_worker_starts(server, 3)
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200


def _await_worker_starts(server: Server, n_starts: int) -> None:
    deadline = time.monotonic() + 60
    while f"turncoat_worker_starts_total {n_starts}.0" not in _metrics(server):
        assert time.monotonic() < deadline, f"fewer than {n_starts} workers were started"
        time.sleep(0.2)


def _metrics(server: Server) -> str:
    try:
        return str(server.ask("GET", "/metrics")[1].decode())
    except OSError:
        return ""


# ------------------------------------------------------------------------------- the store


def ask_many(server: Server, n_clients: int) -> list[tuple[int, Any, dict[str, str], float]]:
    """Status, response, headers and seconds of requests sent at the same time."""

    def ask(number: int) -> tuple[int, Any, dict[str, str], float]:
        began = time.monotonic()
        row = {**rows_of("shop")[0], "who": f"new{number}", "id": f"new{number}"}
        return *server.ask("POST", "/v1/score", row), time.monotonic() - began

    with ThreadPoolExecutor(n_clients) as pool:
        return list(pool.map(ask, range(n_clients)))


def check_deadline(server: Server) -> None:
    for status, response, headers, seconds in ask_many(server, 60):
        assert status == 503, response
        assert response["error"]["kind"] in ("timeout", "store", "overloaded")
        assert int(headers["retry-after"]) >= 1
        assert seconds < 3.0


def test_a_locked_sqlite_store_ends_every_request_at_its_deadline(
    model: Path, tmp_path: Path
) -> None:
    with running(model, f"sqlite:///{tmp_path}/beliefs.sqlite") as server:
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200
        with contextlib.closing(sqlite3.connect(tmp_path / "beliefs.sqlite")) as other:
            other.execute("BEGIN IMMEDIATE")
            check_deadline(server)
            with connect(server) as sending:
                lines = [json.dumps({**row, "who": "b"}).encode() for row in rows_of("shop")[:9]]
                sending.sendall(
                    post("/v1/score/batch", b"\n".join(lines), b"Connection: close\r\n")
                )
                began = time.monotonic()
                found = answers(receive(sending))
                assert time.monotonic() - began < 3.5
            assert len(found) == 9
            assert all(answer["error"]["kind"] != "internal" for answer in found)
            other.execute("ROLLBACK")
        deadline = time.monotonic() + 20
        while server.ask("POST", "/v1/score", rows_of("shop")[1])[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_a_paused_redis_ends_every_request_at_its_deadline(
    model: Path, tmp_path: Path, redis_server: RedisServer
) -> None:
    with running(model, f"{redis_server.url}?prefix={tmp_path.name}") as server:
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 200
        redis_server.pause()
        try:
            check_deadline(server)
            assert server.ask("GET", "/readyz")[0] == 503
        finally:
            redis_server.resume()
        deadline = time.monotonic() + 20
        while server.ask("POST", "/v1/score", rows_of("shop")[1])[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.2)


def _ignore_file_size_signal() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_it_is_not_ready_while_writes_fail(model: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/beliefs.sqlite"
    with running(model, url, preexec_fn=_ignore_file_size_signal) as server:
        assert server.process is not None
        (worker,) = children(server.process.pid)
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (1024, unlimited))
        assert server.ask("POST", "/v1/score", rows_of("shop")[0])[0] == 503
        time.sleep(1.1)  # the outcome of a probe is kept for a second
        status, response, headers = server.ask("GET", "/readyz")
        assert (status, response["error"]["kind"]) == (503, "store")
        assert int(headers["retry-after"]) >= 1
        assert server.ask("GET", "/livez")[0] == 200
        resource.prlimit(worker, resource.RLIMIT_FSIZE, (unlimited, unlimited))
        time.sleep(1.1)
        assert server.ask("GET", "/readyz")[0] == 200


# ------------------------------------------------------------------------------- the command


def test_the_address_is_printed_as_json(server: Server) -> None:
    lines = server.log.read_text().splitlines()
    (found,) = [json.loads(line) for line in lines if line.startswith("{")]
    about = {"store": "memory://", "workers": 1, "model": found["model"]}
    assert found == {"url": f"http://127.0.0.1:{server.port}", **about}


def refuse(*options: str, status: int = 2, **more: Any) -> str:
    """Return the message with which the command refuses to start."""
    command = [sys.executable, "-m", "turncoat", "serve", *options]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)
    assert found.returncode == status, found.stderr
    assert "Traceback" not in found.stderr
    return found.stderr


def test_settings_that_could_not_work_are_refused(model: Path) -> None:
    def check(message: str, **changes: Any) -> None:
        settings = ServiceSettings(model_path=str(model), store_url="memory://", **changes)
        with pytest.raises(ConfigError, match=message):
            serve(settings)

    check("--keys", host="0.0.0.0")
    check("memory", workers=2)
    check("late_policy is 'drop'", late_policy="drop")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        check("--port", port=taken.getsockname()[1])


def test_the_command_refuses_what_could_not_work(tmp_path: Path, model: Path) -> None:
    assert "not a saved detector" in refuse(str(tmp_path / "nothing"), status=4)
    missing = f"sqlite:///{tmp_path}/missing.sqlite"
    assert "--create-store" in refuse(str(model), "--store", missing, status=5)
    (model / "manifest.json").write_text("{}")
    assert "manifest" in refuse(str(model), "--workers", "2", status=4)


def test_two_workers_say_so_when_the_disk_is_full(model: Path, tmp_path: Path) -> None:
    def limit() -> None:
        _ignore_file_size_signal()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))

    options = ("--store", f"sqlite:///{tmp_path}/beliefs.sqlite", "--create-store")
    message = refuse(str(model), *options, "--workers", "2", preexec_fn=limit)
    assert "share metrics" in message
    assert "File too large" in message


# ------------------------------------------------------------------------------- the proxy


@pytest.fixture
def proxy(server: Server, tmp_path: Path) -> Iterator[int]:
    """The port of an nginx with the configuration we ship, in front of the server."""
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed, so its configuration was not tested")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    for old, new in {
        "listen 443 ssl;": f"listen 127.0.0.1:{port};",
        "127.0.0.1:8000": f"127.0.0.1:{server.port}",
        "client_header_timeout 10s": "client_header_timeout 1s",
        "send_timeout 10s": "send_timeout 1s",
        "rate=200r/s": "rate=20r/s",
        "burst=400": "burst=20",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    text = re.sub(r" *ssl_certificate.*\n", "", text)
    settings = f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/error.log;\n"
    (tmp_path / "nginx.conf").write_text(settings + text)
    command = ["nginx", "-p", str(tmp_path), "-e", str(tmp_path / "error.log"), "-c"]
    process = subprocess.Popen([*command, str(tmp_path / "nginx.conf")])
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert process.poll() is None, (tmp_path / "error.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def test_the_proxy_passes_requests_and_batches_on(server: Server, proxy: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=20)
    body = json.dumps({**rows_of("shop")[0], "who": "proxied"})
    connection.request("POST", "/v1/score", body, {"X-Request-ID": "through-nginx"})
    response = connection.getresponse()
    assert (response.status, response.headers["X-Request-ID"]) == (200, "through-nginx")
    response.read()
    connection.close()
    with socket.create_connection(("127.0.0.1", proxy), timeout=20) as sending:
        head = b"POST /v1/score/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
        sending.sendall(head + body.encode() + b"\n")
        found = receive(sending, lambda found: b'"probability"' in found)
        assert b'"probability"' in found  # though the batch goes on


def test_the_proxy_limits_slow_and_greedy_clients(server: Server, proxy: int) -> None:
    def open_connection() -> socket.socket:
        return socket.create_connection(("127.0.0.1", proxy), timeout=20)

    with open_connection() as slow:
        slow.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-")
        began = time.monotonic()
        assert b"200 OK" not in receive(slow)
        assert time.monotonic() - began < 10
    with open_connection() as endless, contextlib.suppress(ConnectionError):
        endless.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 100_000)
        assert b" 400 " in receive(endless)
    with open_connection() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line = json.dumps(rows_of("shop")[0]).encode() + b"\n"
        deaf.sendall(post("/v1/score/batch", line * 10_000, b"Connection: close\r\n"))
        time.sleep(4)  # more than send_timeout
        assert receive(deaf).count(b'"probability"') < 10_000
    with ThreadPoolExecutor(16) as pool:

        def ask(_: int) -> int:
            connection = http.client.HTTPConnection("127.0.0.1", proxy, timeout=20)
            connection.request("GET", "/livez")
            status = connection.getresponse().status
            connection.close()
            return status

        assert set(pool.map(ask, range(100))) == {200, 429}
