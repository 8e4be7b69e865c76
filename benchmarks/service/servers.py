"""Servers under load: the detectors and requests, the server processes and their figures."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil

from turncoat import Detector, Encoder, NeuralVariationalHMM, VariationalHMM
from turncoat.data import read
from turncoat.data.json_rows import list_fields
from turncoat.data.simulators import simulate_tables
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.models.base import HiddenMarkovModel
from turncoat.scoring.detector import DETECTOR_KINDS
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import open_store
from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

RESULTS = Path(__file__).resolve().parents[1] / "results"
N_STATES = 8
CONNECTIONS = (16, 32, 64, 128)
N_ROUNDS = 9  # of each number of connections
MAX_ERROR_SHARE = 0.01  # of responses; the table shows their number
Row = tuple[str, str, int]  # tier, store, workers


@dataclass(frozen=True)
class Environment:
    """The folder and the Redis of a benchmark."""

    folder: Path
    redis_port: int | None


def simulate(n_rows: int, preset: str = "ieee-cis") -> Transactions:
    """Return transactions like those of IEEE-CIS, or of the Handbook, which have terminals."""
    tables = simulate_tables(preset, n_rows, 0)
    if preset == "handbook":
        return read(tables["transactions"], preset)
    return read(tables["train_transaction"], preset, joined=tables["train_identity"])


def fit_detector(tier: str, transactions: Transactions) -> Detector:
    """Return a detector of a tier (`variational`, `neural`) or kind, fitted in little time."""
    quick: dict[str, Any] = {"n_restarts": 1, "max_iter": 10, "progress": False}
    model: HiddenMarkovModel[Any] = VariationalHMM(N_STATES, **quick)
    if tier == "neural":
        model = NeuralVariationalHMM(N_STATES, encoder=Encoder(max_epochs=2), **quick)
    kind = tier if tier in DETECTOR_KINDS else "regimes"
    return Detector(Features(), model, supervision="anchored", kind=kind).fit(transactions)


def write_requests(
    folder: Path, transactions: Transactions, n_requests: int, detector: Detector, **policy: Any
) -> dict[str, int]:
    """Write the requests to a file, in order of time. Returns sizes; `policy` as in the service."""
    rows = np.argsort(transactions.times, kind="stable")[:n_requests]
    ids, sent = transactions.ids[rows].astype(str).tolist(), list_fields(transactions, rows)
    pairs = zip(ids, sent, strict=True)
    name = str(transactions.schema.id)
    bodies = [msgspec.json.encode(fields | {name: id}) for id, fields in pairs]
    first = TransactionDecoder(detector).decode(bodies[0])
    updater = BeliefUpdater(open_store("memory://", create=True), UpdatePolicy(**policy))
    (response,) = asyncio.run(updater.process_batch(detector, [first]))
    if not isinstance(response, ScoredResponse):
        raise TypeError(response)
    requests = [
        b"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        for body in bodies
    ]
    (folder / "requests").write_bytes(msgspec.msgpack.encode(requests))
    plan = detector.features_.plan
    return {
        "continuous": len(plan.continuous),
        "categorical": len(plan.categorical),
        "rows": transactions.n_rows,
        "body_bytes": sum(map(len, bodies)) // len(bodies),
        "response_bytes": len(response.body),
    }


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def run_server(command: list[str], port: int) -> Iterator[psutil.Process]:
    """Run a server for as long as the block."""
    process = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            time.sleep(0.1)
            if process.poll() is not None:
                raise RuntimeError(process.stderr.read().decode() if process.stderr else "ended")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                    break
            except OSError:
                continue
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def send_requests(
    port: int, folder: Path, first: int, last: int, connections: int
) -> dict[str, Any]:
    """Send some of the requests from a process of its own. Returns its figures."""
    arguments = [port, connections, folder / "requests", first, last]
    command = [sys.executable, "-m", "benchmarks.service.load", *map(str, arguments)]
    output = subprocess.run(command, capture_output=True, check=True, timeout=600).stdout
    found: dict[str, Any] = json.loads(output)
    total = sum(found["statuses"].values())
    found["errors"] = total - found["statuses"].get("200", 0)
    if found["errors"] > MAX_ERROR_SHARE * total:
        raise RuntimeError(f"responses other than 200: {found['statuses']}")
    return found


def constant_command(
    environment: Environment, workers: int, n_bytes: int, tier: str | None = None
) -> tuple[list[str], int]:
    """Return command and port of the same stack answering a constant; with a tier, it decodes."""
    port = find_free_port()
    model = [] if tier is None else [str(environment.folder / tier)]
    return ["benchmarks.service.constant", str(port), str(workers), str(n_bytes), *model], port


def service_command(
    environment: Environment, row: Row, reasons: str = "all"
) -> tuple[list[str], int]:
    """Return command and port of the service on an empty store."""
    tier, store, workers = row
    port = find_free_port()
    if store == "memory":
        url = "memory://"
    elif store == "redis":
        url = f"redis://127.0.0.1:{environment.redis_port}/0?prefix={tier}{workers}"
    else:
        mode = store.split()[1]
        file = environment.folder / f"{tier}-{workers}-{mode}-{reasons.replace(':', '-')}.sqlite"
        url = f"sqlite:///{file}?synchronous={mode}"
    command = ["turncoat", "serve", str(environment.folder / tier), "--store", url]
    options = ["--create-store", "--port", str(port), "--workers", str(workers)]
    return [*command, *options, "--reasons", reasons], port


class LoadedServer:
    """A server under load: the figures of its rounds, and the CPU time of its processes."""

    def __init__(self, process: psutil.Process, port: int, folder: Path, n_requests: int) -> None:
        self.port, self.folder = port, folder
        self.processes = [process, *process.children(recursive=True)]
        self.n_per_round = n_requests // (N_ROUNDS * len(CONNECTIONS) + 1)
        send_requests(port, folder, 0, self.n_per_round, CONNECTIONS[-1])  # warm up
        self.cpu_s = 0.0
        self.rounds: list[dict[str, Any]] = []

    def run_round(self, connections: int) -> None:
        """Send requests that this server has not had before."""
        before = self._read_cpu_s()
        first = self.n_per_round * (len(self.rounds) + 1)
        last = first + self.n_per_round
        found = send_requests(self.port, self.folder, first, last, connections)
        self.rounds.append({"connections": connections, **found})
        self.cpu_s += self._read_cpu_s() - before

    def _read_cpu_s(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.processes)

    def summarise(self) -> dict[str, Any]:
        """Return the best of the median rounds, all of them, CPU time and memory."""
        by_connections = {
            number: [one for one in self.rounds if one["connections"] == number]
            for number in CONNECTIONS
        }
        curve = [_median_round(rounds) for rounds in by_connections.values()]
        return {
            **max(curve, key=lambda one: float(one["per_second"])),
            "rounds": {
                number: [one["per_second"] for one in rounds]
                for number, rounds in by_connections.items()
            },
            "curve": curve,
            "errors": sum(one["errors"] for one in self.rounds),
            "cpu_us": 1e6 * self.cpu_s / (self.n_per_round * len(self.rounds)),
            "resident_mb": sum(one.memory_info().rss for one in self.processes) / 2**20,
        }


def load_in_turn(
    environment: Environment, commands: list[tuple[list[str], int]], n_requests: int
) -> list[dict[str, Any]]:
    """Run servers at the same time and load them in turn. Returns the figures of each."""
    with ExitStack() as stack:
        servers = [
            LoadedServer(
                stack.enter_context(run_server(command, port)), port, environment.folder, n_requests
            )
            for command, port in commands
        ]
        for connections in CONNECTIONS * N_ROUNDS:
            for server in servers:
                server.run_round(connections)
        return [server.summarise() for server in servers]


def _median_round(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(rounds, key=lambda one: float(one["per_second"]))[len(rounds) // 2]
