"""Throughput, latency and memory of the live service.

Each row of the table is a server in its own process, loaded over loopback by a second process on
the same cores. It runs in turn with two servers of the same stack that answer a constant, over
several numbers of connections; the median round of each server at its best number of connections
counts. Run all of it with `python -m benchmarks.service`, or a part with `--quick` or `--key-row`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
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
from rich.console import Console

from benchmarks.engine import timing
from benchmarks.service.parts import measure_parts, render_parts
from turncoat import Detector, Encoder, NeuralVariationalHMM, VariationalHMM, load
from turncoat.data import read
from turncoat.data.json_rows import list_fields
from turncoat.data.simulators import simulate_tables
from turncoat.features import Features
from turncoat.serving.decoding import Transaction, TransactionDecoder
from turncoat.serving.records import FORMAT, RecentScore, Record, pack_record
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import open_store
from turncoat.serving.stores.protocol import RecordWrite, WriteGroup
from turncoat.serving.updater import BeliefUpdater

RESULTS = Path(__file__).resolve().parents[1] / "results"
N_ROWS, N_QUICK_ROWS, N_STATES = 60_000, 4_000, 8
N_REQUESTS, N_QUICK_REQUESTS = 56_000, 2_400
CONNECTIONS = (16, 32, 64, 128)
N_ROUNDS = 9  # of each number of connections
KEY_ROW = ("variational", "sqlite FULL", 1)  # the row with a required ratio
N_CUSTOMERS, N_QUICK_CUSTOMERS = 100_000, 5_000
N_PART_TRANSACTIONS = 4_096
REQUIRED_RATIO, TARGET_RATIO = 0.4, 0.7
MAX_ERROR_SHARE = 0.01  # of responses; the table shows their number
Row = tuple[str, str, int]  # tier, store, workers


@dataclass(frozen=True)
class Environment:
    """The folder and the Redis of a benchmark."""

    folder: Path
    redis_port: int | None


def prepare(folder: Path, n_rows: int, n_requests: int, neural: bool) -> dict[str, int]:
    """Fit the detectors and write the requests to files. Returns their sizes."""
    tables = simulate_tables("ieee-cis", n_rows, 0)
    transactions = read(tables["train_transaction"], "ieee-cis", joined=tables["train_identity"])
    quick: dict[str, Any] = {"n_restarts": 1, "max_iter": 10, "progress": False}
    model = VariationalHMM(N_STATES, **quick)
    detector = Detector(Features(), model, supervision="anchored").fit(transactions)
    detector.save(folder / "variational")
    if neural:
        network = NeuralVariationalHMM(N_STATES, encoder=Encoder(max_epochs=2), **quick)
        other = Detector(Features(), network, supervision="anchored").fit(transactions)
        other.save(folder / "neural")
    rows = np.argsort(transactions.times, kind="stable")[:n_requests]
    ids, sent = transactions.ids[rows].astype(str).tolist(), list_fields(transactions, rows)
    pairs = zip(ids, sent, strict=True)
    bodies = [msgspec.json.encode(fields | {"TransactionID": id}) for id, fields in pairs]
    first = TransactionDecoder(detector).decode(bodies[0])
    updater = BeliefUpdater(open_store("memory://", create=True))
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
        "rows": n_rows,
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
    environment: Environment, workers: int, n_bytes: int, decodes: bool
) -> tuple[list[str], int]:
    """Return command and port of the same stack answering a constant."""
    port = find_free_port()
    model = [str(environment.folder / "variational")] if decodes else []
    return ["benchmarks.service.constant", str(port), str(workers), str(n_bytes), *model], port


def service_command(environment: Environment, row: Row) -> tuple[list[str], int]:
    """Return command and port of the service on an empty store."""
    tier, store, workers = row
    port = find_free_port()
    if store == "memory":
        url = "memory://"
    elif store == "redis":
        url = f"redis://127.0.0.1:{environment.redis_port}/0?prefix={tier}{workers}"
    else:
        mode = store.split()[1]
        file = environment.folder / f"{tier}-{workers}-{mode}.sqlite"
        url = f"sqlite:///{file}?synchronous={mode}"
    command = ["turncoat", "serve", str(environment.folder / tier), "--store", url]
    options = ["--create-store", "--port", str(port), "--workers", str(workers)]
    return [*command, *options], port


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


def _median_round(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return sorted(rounds, key=lambda one: float(one["per_second"]))[len(rounds) // 2]


def measure_rows(
    environment: Environment, n_requests: int, n_bytes: int, rows: list[Row], console: Console
) -> list[dict[str, Any]]:
    """Load the service and the two constant servers in turn, for each row of the table."""
    results = []
    for row in rows:
        tier, store, workers = row
        commands = [
            constant_command(environment, workers, n_bytes, decodes=False),
            constant_command(environment, workers, n_bytes, decodes=True),
            service_command(environment, row),
        ]
        with console.status(f"{tier}, {store}, {workers} worker(s)"), ExitStack() as stack:
            servers = [
                LoadedServer(
                    stack.enter_context(run_server(command, port)),
                    port,
                    environment.folder,
                    n_requests,
                )
                for command, port in commands
            ]
            for connections in CONNECTIONS * N_ROUNDS:
                for server in servers:
                    server.run_round(connections)
            bare, decoding, found = (server.summarise() for server in servers)
        if store.startswith("sqlite"):
            files = environment.folder.glob(f"{tier}-{workers}-{store.split()[1]}*")
            found["store_bytes"] = sum(file.stat().st_size for file in files) / n_requests
        for name, other in (("bare", bare), ("constant", decoding)):
            for what in ("per_second", "connections", "rounds", "curve", "cpu_us"):
                found[f"{name}_{what}"] = other[what]
            found[f"{name}_ratio"] = found["per_second"] / other["per_second"]
        results.append({"tier": tier, "store": store, "workers": workers, **found})
    return results


def measure_single_client(environment: Environment, n_requests: int) -> dict[str, Any]:
    """Measure what one client that waits for each response gets."""
    port, folder = find_free_port(), environment.folder
    store = f"sqlite:///{folder / 'single.sqlite'}"
    command = ["turncoat", "serve", str(folder / "variational"), "--store", store]
    with run_server([*command, "--create-store", "--port", str(port)], port):
        send_requests(port, folder, 0, n_requests // 8, 1)
        return send_requests(port, folder, n_requests // 8, n_requests // 4, 1)


def measure_memory(environment: Environment, n_customers: int) -> dict[str, float]:
    """Measure the bytes of a customer in each store, with records of real size."""
    detector = load(environment.folder / "variational")
    decoder = TransactionDecoder(detector)
    example = decoder.decode(msgspec.json.encode(decoder.example))
    state = detector.score_one(None, example.row)[0].customer or b""
    recent = tuple(RecentScore(f"{i:012d}", 0.0123) for i in range(16))
    data = pack_record(Record(FORMAT, detector.digest_, 1.0, 1, recent, state))
    first = pack_record(Record(FORMAT, detector.digest_, 1.0, 1, recent[:1], state))
    found: dict[str, float] = {
        "record_bytes": len(data),
        "first_record_bytes": len(first),
        "state_bytes": len(state),
    }

    async def fill(url: str) -> None:
        store = open_store(url, create=True)
        for start in range(0, n_customers, 500):
            numbers = range(start, min(start + 500, n_customers))
            await store.write([WriteGroup([RecordWrite(f"c:{i:010d}", 0, data)]) for i in numbers])
        await store.close()

    file = environment.folder / "memory.sqlite"
    asyncio.run(fill(f"sqlite:///{file}?synchronous=NORMAL"))
    found["sqlite_bytes"] = file.stat().st_size / n_customers
    if environment.redis_port is not None:
        import redis

        with redis.Redis(port=environment.redis_port) as client:
            client.flushall()
            before = client.info("memory")["used_memory"]
            asyncio.run(fill(f"redis://127.0.0.1:{environment.redis_port}/0"))
            found["redis_bytes"] = (client.info("memory")["used_memory"] - before) / n_customers
            client.flushall()
    return found


def read_transactions(environment: Environment) -> tuple[Detector, list[Transaction]]:
    """Return the detector and the first requests as transactions."""
    detector = load(environment.folder / "variational")
    decode = TransactionDecoder(detector).decode
    requests = msgspec.msgpack.decode((environment.folder / "requests").read_bytes())
    bodies = [request.split(b"\r\n\r\n", 1)[1] for request in requests[:N_PART_TRANSACTIONS]]
    return detector, [decode(body) for body in bodies]


@contextmanager
def run_redis(folder: Path) -> Iterator[int | None]:
    """Run a Redis that syncs every second. Yields its port, or None if it is not installed."""
    if shutil.which("redis-server") is None:
        yield None
        return
    port = find_free_port()
    options = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync everysec".split()
    command = ["redis-server", *options, "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def render(machine: dict[str, Any], results: dict[str, Any], command: str) -> str:
    """Return the results as Markdown."""
    sizes = results["sizes"]
    numbers = ", ".join(map(str, CONNECTIONS))
    lines = [
        "# The live service",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, shared by server and client; load before the",
        f"run {machine['load_before']}. Made by `{command}`.",
        f"IEEE-CIS features ({sizes['continuous']} + {sizes['categorical']} columns), "
        f"K = {N_STATES}, bodies of {sizes['body_bytes']:,} bytes,",
        f"{results['requests']:,} requests, four reasons in every response, every response logged.",
        "",
        "`constant` is the same service (granian, Starlette, middleware, decoding) answering as",
        "many bytes without scoring or storing. `bare` is granian and Starlette alone: it reads",
        "the body and answers.",
        f"Medians of {N_ROUNDS} rounds of {numbers} connections, each server at its best number.",
        "",
        "| tier | store | workers | scores / s | connections | p50 ms | p99 ms | constant / s "
        "| ratio | bare / s | ratio | CPU µs (constant, bare) | MB | errors |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["table"]:
        lines.append(
            f"| {row['tier']} | {row['store']} | {row['workers']} | {row['per_second']:,.0f} "
            f"| {row['connections']} | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} "
            f"| {row['constant_per_second']:,.0f} | {row['constant_ratio']:.2f} "
            f"| {row['bare_per_second']:,.0f} | {row['bare_ratio']:.2f} "
            f"| {row['cpu_us']:.0f} ({row['constant_cpu_us']:.0f}, {row['bare_cpu_us']:.0f}) "
            f"| {row['resident_mb']:.0f} | {row['errors']} |"
        )
    key = next(
        row for row in results["table"] if (row["tier"], row["store"], row["workers"]) == KEY_ROW
    )
    ratio, single = key["constant_ratio"], results["single_client"]
    verdict = (
        "target met"
        if ratio >= TARGET_RATIO
        else "requirement met, target missed"
        if ratio >= REQUIRED_RATIO
        else "missed"
    )
    lines += [
        "",
        f"Variational tier, SQLite FULL, one worker, against the constant: {ratio:.2f} "
        f"(required {REQUIRED_RATIO}, target {TARGET_RATIO}): {verdict}.",
        f"Against the bare stack: {key['bare_ratio']:.2f}.",
        "",
        "The same row by number of connections, each the median of its rounds:",
        "",
        "| connections | scores / s | p50 ms | p99 ms | constant / s | ratio |",
        "|---|---|---|---|---|---|",
        f"| 1 | {single['per_second']:,.0f} | {single['p50_ms']:.2f} | {single['p99_ms']:.2f} "
        "| | |",
    ]
    for ours, theirs in zip(key["curve"], key["constant_curve"], strict=True):
        lines.append(
            f"| {ours['connections']} | {ours['per_second']:,.0f} | {ours['p50_ms']:.2f} "
            f"| {ours['p99_ms']:.2f} | {theirs['per_second']:,.0f} "
            f"| {ours['per_second'] / theirs['per_second']:.2f} |"
        )
    lines += render_parts(results["parts"])
    memory = results["memory"]
    if "redis_bytes" in memory:
        in_redis = f"{memory['redis_bytes'] / 1000:,.2f} GB of memory in Redis"
    else:
        in_redis = "Redis was not installed"
    lines += [
        "",
        f"A customer's record has {memory['first_record_bytes']:,.0f} bytes after the first "
        f"transaction and {memory['record_bytes']:,.0f}",
        f"with a full list of recent ids; {memory['state_bytes']:,.0f} of them are belief and "
        "running facts.",
        "A logged transaction with its response and its customer's record takes "
        f"{key['store_bytes'] / 1000:.1f} KB on disk in SQLite.",
        f"A million customers with full lists ({results['customers']:,} written): "
        f"{memory['sqlite_bytes'] / 1000:,.2f} GB on disk in SQLite, {in_redis}.",
        "",
    ]
    return "\n".join(lines)


def choose_rows(options: argparse.Namespace, has_redis: bool) -> list[Row]:
    """Return the rows of the table."""
    if options.key_row:
        return [KEY_ROW]
    stores = ["memory", "sqlite FULL", "sqlite NORMAL", *(["redis"] if has_redis else [])]
    rows: list[Row] = [("variational", store, 1) for store in stores]
    if not options.quick:
        rows += [("variational", store, 2) for store in ("sqlite FULL", *stores[3:])]
        rows += [("neural", "sqlite FULL", workers) for workers in (1, 2)]
    return rows


def main() -> int:
    """Measure, write the results, print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer requests and rows")
    parser.add_argument("--key-row", action="store_true", help="only the row with a required ratio")
    options = parser.parse_args()
    console, machine = Console(stderr=True), timing.describe_machine()
    n_requests = N_QUICK_REQUESTS if options.quick else N_REQUESTS
    n_rows = N_QUICK_ROWS if options.quick else N_ROWS
    is_full = not (options.quick or options.key_row)
    n_customers = N_CUSTOMERS if is_full else N_QUICK_CUSTOMERS
    with tempfile.TemporaryDirectory() as folder, run_redis(Path(folder)) as port:
        environment = Environment(Path(folder), port)
        with console.status("fitting"):
            sizes = prepare(environment.folder, n_rows, n_requests, neural=is_full)
        rows = choose_rows(options, has_redis=port is not None)
        table = measure_rows(environment, n_requests, sizes["response_bytes"], rows, console)
        with console.status("one client, memory, parts of the core"):
            results: dict[str, Any] = {
                "sizes": sizes,
                "requests": n_requests,
                "customers": n_customers,
                "table": table,
                "single_client": measure_single_client(environment, n_requests),
                "memory": measure_memory(environment, n_customers),
                "parts": measure_parts(*read_transactions(environment)),
            }
    text = render(machine, results, " ".join(["python -m benchmarks.service", *sys.argv[1:]]))
    stem = "service" if is_full else "service-quick"
    content = json.dumps({"machine": machine, "results": results}, indent=1)
    (RESULTS / f"{stem}.json").write_text(content + "\n")
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
