"""How many transactions a second the service scores, how long each waits, and how much a million customers take.

Every row of the table is a server in a process of its own, loaded over loopback by a second process, both on the same cores, in turn with
two servers of the same stack that answer a constant, over several numbers of connections; of each the best round counts. Run with
`python -m benchmarks.service`.
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
import psutil
from rich.console import Console

from benchmarks.engine import timing
from turncoat import Detector, Encoder, NeuralVariationalHMM, VariationalHMM
from turncoat.data import read
from turncoat.data.simulators import simulate_tables
from turncoat.features import Features
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.maintenance import make_client_transactions
from turncoat.serving.records import FORMAT, RecentScore, Record, pack_record
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import RecordWrite, WriteGroup, open_store
from turncoat.serving.updater import BeliefUpdater

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROWS, QUICK_ROWS, STATES = 30_000, 4_000, 8
CONNECTIONS, REQUESTS, QUICK_REQUESTS = (16, 32, 64), 24_000, 2_400
ROUNDS = 3  # of each number of connections
KEY = ("variational", "sqlite FULL", 1)  # the row that the must is about
CUSTOMERS, QUICK_CUSTOMERS = 100_000, 5_000
MUST, AIM = 0.4, 0.7
MOST_REFUSED = 0.01  # share of answers that a store that stalled may cost; the table says how many


@dataclass(frozen=True)
class Place:
    """Where a benchmark has its files and its Redis."""

    folder: Path
    redis_port: int | None


def prepare(folder: Path, n_rows: int, n_requests: int, neural: bool) -> dict[str, int]:
    """Detectors and requests, made before anything is timed."""
    made = simulate_tables("ieee-cis", n_rows, 0)
    transactions = read(made["train_transaction"], "ieee-cis", joined=made["train_identity"])
    quick: dict[str, Any] = {"n_restarts": 1, "max_iter": 10, "progress": False}
    detector = Detector(Features(), VariationalHMM(STATES, **quick), supervision="anchored").fit(
        transactions
    )
    detector.save(folder / "variational")
    if neural:
        model = NeuralVariationalHMM(STATES, encoder=Encoder(max_epochs=2), **quick)
        Detector(Features(), model, supervision="anchored").fit(transactions).save(
            folder / "neural"
        )
    bodies = [one.body for one in make_client_transactions(transactions, n_requests)]
    form = TransactionDecoder(detector)
    given = asyncio.run(
        BeliefUpdater(open_store("memory://", create=True)).process_batch(
            detector, [form.decode(bodies[0])]
        )
    )[0]
    head = "POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
    if not isinstance(given, ScoredResponse):
        raise TypeError(given)
    (folder / "requests").write_bytes(
        msgspec.msgpack.encode([head.format(len(body)).encode() + body for body in bodies])
    )
    plan = detector.features_.plan
    columns = {
        "continuous": len(plan.continuous),
        "categorical": len(plan.categorical),
        "rows": n_rows,
    }
    return {
        **columns,
        "body_bytes": sum(map(len, bodies)) // len(bodies),
        "answer_bytes": len(given.body),
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(command: list[str], port: int) -> Iterator[psutil.Process]:
    """A server until the block ends."""
    process = subprocess.Popen([sys.executable, "-m", *command], stderr=subprocess.PIPE)
    try:
        for _ in range(600):
            time.sleep(0.1)
            if process.poll() is not None:
                raise RuntimeError(
                    process.stderr.read().decode() if process.stderr else "the server ended"
                )
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                    break
            except OSError:
                continue
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def loaded(port: int, folder: Path, first: int, last: int, connections: int) -> dict[str, Any]:
    """What a client in a process of its own sees."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.service.load",
        str(port),
        str(connections),
        str(folder / "requests"),
        str(first),
        str(last),
    ]
    found: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, check=True, timeout=600).stdout
    )
    answered, total = found["statuses"].get("200", 0), sum(found["statuses"].values())
    if answered < (1 - MOST_REFUSED) * total:
        raise RuntimeError(f"answers other than 200: {found['statuses']}")
    found["refused"] = total - answered
    return found


def constant(place: Place, workers: int, length: int, decodes: bool) -> tuple[list[str], int]:
    """The command and the port of the stack with nothing behind it, or only what decodes and checks the body."""
    port = _free_port()
    model = [str(place.folder / "variational")] if decodes else []
    return ["benchmarks.service.constant", str(port), str(workers), str(length), *model], port


def service(place: Place, tier: str, store: str, workers: int) -> tuple[list[str], int]:
    """Those of the service itself, on an empty store."""
    port = _free_port()
    urls = {
        "memory": "memory://",
        "redis": f"redis://127.0.0.1:{place.redis_port}/0?prefix={tier}{workers}",
    }
    for mode in ("FULL", "NORMAL"):
        file = place.folder / f"{tier}-{workers}-{mode}.sqlite"
        urls[f"sqlite {mode}"] = f"sqlite:///{file}?synchronous={mode}"
    command = [
        "turncoat",
        "serve",
        str(place.folder / tier),
        "--store",
        urls[store],
        "--port",
        str(port),
        "--workers",
        str(workers),
    ]
    return command, port


class Loaded:
    """A server under load in turn with others: the best of its rounds, and what its processes took over all of them."""

    def __init__(self, process: psutil.Process, port: int, folder: Path, n_requests: int) -> None:
        self.port, self.folder, self.family = (
            port,
            folder,
            [process, *process.children(recursive=True)],
        )
        self.share = n_requests // (ROUNDS * len(CONNECTIONS) + 1)
        loaded(port, folder, 0, self.share, CONNECTIONS[-1])  # to warm up
        self.cpu = 0.0
        self.rounds: list[dict[str, Any]] = []

    def round(self, connections: int) -> None:
        """Requests that it has not had before."""
        before = self._seconds()
        first = self.share * (len(self.rounds) + 1)
        self.rounds.append(
            {
                "connections": connections,
                **loaded(self.port, self.folder, first, first + self.share, connections),
            }
        )
        self.cpu += self._seconds() - before

    def _seconds(self) -> float:
        return sum(sum(one.cpu_times()[:2]) for one in self.family)

    def found(self) -> dict[str, Any]:
        """The best round, and the rest."""
        best = _fastest(self.rounds)
        spread = {
            many: [one["per_second"] for one in self.rounds if one["connections"] == many]
            for many in CONNECTIONS
        }
        curve = [
            _fastest([one for one in self.rounds if one["connections"] == many])
            for many in CONNECTIONS
        ]
        more = {
            "rounds": spread,
            "curve": curve,
            "refused": sum(one["refused"] for one in self.rounds),
        }
        cpu = 1e6 * self.cpu / (self.share * len(self.rounds))
        return {
            **best,
            **more,
            "cpu_us": cpu,
            "resident_mb": sum(one.memory_info().rss for one in self.family) / 2**20,
        }


def _fastest(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return max(rounds, key=lambda one: one["per_second"])


def measure(
    place: Place, n_requests: int, length: int, rows: list[tuple[str, str, int]], console: Console
) -> list[dict[str, Any]]:
    """Every row of the table: the service and the two constant stacks loaded in turn, and of each the best round counts."""
    results = []
    for tier, store, workers in rows:
        commands = [
            *(constant(place, workers, length, decodes) for decodes in (False, True)),
            service(place, tier, store, workers),
        ]
        with console.status(f"{tier}, {store}, {workers} worker(s)"), ExitStack() as stack:
            started = [
                (stack.enter_context(running(command, port)), port) for command, port in commands
            ]
            servers = [Loaded(process, port, place.folder, n_requests) for process, port in started]
            for connections in CONNECTIONS * ROUNDS:
                for server in servers:
                    server.round(connections)
            bare, decoding, found = (server.found() for server in servers)
        if store.startswith("sqlite"):
            files = place.folder.glob(f"{tier}-{workers}-{store.split()[1]}*")
            found["store_bytes"] = sum(file.stat().st_size for file in files) / n_requests
        for name, other in (("bare", bare), ("constant", decoding)):
            found |= {
                f"{name}_{what}": other[what]
                for what in ("per_second", "connections", "rounds", "curve", "cpu_us")
            }
            found[f"{name}_ratio"] = found["per_second"] / other["per_second"]
        results.append({"tier": tier, "store": store, "workers": workers, **found})
    return results


def alone(place: Place, n_requests: int) -> dict[str, Any]:
    """One client at a time: what a single caller waits."""
    port = _free_port()
    command = [
        "turncoat",
        "serve",
        str(place.folder / "variational"),
        "--store",
        f"sqlite:///{place.folder / 'alone.sqlite'}",
    ]
    with running([*command, "--port", str(port)], port):
        loaded(port, place.folder, 0, n_requests // 4, 1)
        return loaded(port, place.folder, n_requests // 4, n_requests // 2, 1)


def memory(place: Place, n_customers: int) -> dict[str, float]:
    """Bytes that a customer takes in each store, from records of real size."""
    from turncoat import load

    detector = load(place.folder / "variational")
    form = TransactionDecoder(detector)
    state = (
        detector.score_one(None, form.decode(msgspec.json.encode(form.example)).row)[0].customer
        or b""
    )
    ring = tuple(RecentScore(f"{i:012d}", 0.0123) for i in range(16))
    data = pack_record(Record(FORMAT, detector.digest_, 1.0, 1, ring, state))
    first = pack_record(Record(FORMAT, detector.digest_, 1.0, 1, ring[:1], state))
    found: dict[str, float] = {
        "record_bytes": len(data),
        "first_record_bytes": len(first),
        "state_bytes": len(state),
    }

    async def fill(url: str) -> None:
        store = open_store(url, create=True)
        for start in range(0, n_customers, 500):
            await store.write(
                [
                    WriteGroup([RecordWrite(f"c:{i:010d}", 0, data)])
                    for i in range(start, min(start + 500, n_customers))
                ]
            )
        await store.close()

    file = place.folder / "memory.sqlite"
    asyncio.run(fill(f"sqlite:///{file}?synchronous=NORMAL"))
    found["sqlite_bytes"] = file.stat().st_size / n_customers
    if place.redis_port is not None:
        import redis

        with redis.Redis(port=place.redis_port) as client:
            client.flushall()
            before = client.info("memory")["used_memory"]
            asyncio.run(fill(f"redis://127.0.0.1:{place.redis_port}/0"))
            found["redis_bytes"] = (client.info("memory")["used_memory"] - before) / n_customers
            client.flushall()
    return found


@contextmanager
def redis_server(folder: Path) -> Iterator[int | None]:
    """A Redis of our own, written to disk every second; None where none is installed."""
    if shutil.which("redis-server") is None:
        yield None
        return
    port = _free_port()
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
    }
    command = [
        "redis-server",
        *(text for name, value in settings.items() for text in (f"--{name}", str(value))),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def report(machine: dict[str, Any], told: dict[str, Any], command: str) -> str:
    """The results as Markdown."""
    sizes, kept = told["sizes"], told["memory"]
    lines = [
        "# The live service",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, shared by server and client; load before the run "
        f"{machine['load_before']}. Made by `{command}`.",
        f"IEEE-CIS feature set ({sizes['continuous']} + {sizes['categorical']} columns), K = {STATES}, "
        f"bodies of {sizes['body_bytes']:,} bytes, "
        f"{told['requests']:,} requests, four reasons in every answer, every answer logged.",
        "The constant stack is the same uvicorn, protocol and Starlette route, reading and decoding the same bodies with msgspec and "
        "answering as many bytes; the bare one does not decode. Neither scores or stores. "
        f"Of {ROUNDS} rounds in turn over each of {', '.join(map(str, CONNECTIONS[:-1]))} and {CONNECTIONS[-1]} connections the best "
        "counts, of each server, whatever number suits it best.",
        "",
        "| tier | store | workers | scored / s | connections | p50 ms | p99 ms | constant / s | ratio | bare / s | ratio "
        "| CPU µs (constant, bare) | MB | 503s |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in told["table"]:
        lines.append(
            f"| {row['tier']} | {row['store']} | {row['workers']} | {row['per_second']:,.0f} | {row['connections']} "
            f"| {row['p50_ms']:.1f} | {row['p99_ms']:.1f} "
            f"| {row['constant_per_second']:,.0f} | {row['constant_ratio']:.2f} | {row['bare_per_second']:,.0f} | {row['bare_ratio']:.2f} "
            f"| {row['cpu_us']:.0f} ({row['constant_cpu_us']:.0f}, {row['bare_cpu_us']:.0f}) | {row['resident_mb']:.0f} "
            f"| {row['refused']} |"
        )
    key = next(row for row in told["table"] if (row["tier"], row["store"], row["workers"]) == KEY)
    ratio = key["constant_ratio"]
    verdict = "aim met" if ratio >= AIM else "must met, aim missed" if ratio >= MUST else "missed"
    lines += [
        "",
        f"Variational tier, SQLite FULL, one worker, against the same stack answering a constant: {ratio:.2f} (must {MUST}, aim {AIM}): "
        f"{verdict}. Against the bare one, {key['bare_ratio']:.2f}.",
    ]
    one = told["alone"]
    lines += [
        "",
        "The same row by the number of connections, each the best of its rounds:",
        "",
        "| connections | scored / s | p50 ms | p99 ms | constant / s | ratio |",
        "|---|---|---|---|---|---|",
        f"| 1 | {one['per_second']:,.0f} | {one['p50_ms']:.2f} | {one['p99_ms']:.2f} | | |",
        *(
            f"| {ours['connections']} | {ours['per_second']:,.0f} | {ours['p50_ms']:.2f} | {ours['p99_ms']:.2f} "
            f"| {theirs['per_second']:,.0f} | {ours['per_second'] / theirs['per_second']:.2f} |"
            for ours, theirs in zip(key["curve"], key["constant_curve"], strict=True)
        ),
        "",
        f"A customer's record is {kept['first_record_bytes']:,.0f} bytes after the first transaction and "
        f"{kept['record_bytes']:,.0f} with a full ring, "
        f"of which {kept['state_bytes']:,.0f} are belief and running facts.",
        f"A logged transaction, with its answer and its customer's record: {key['store_bytes'] / 1000:.1f} KB on disk in SQLite.",
        f"A million customers with full rings ({told['customers']:,} written): {kept['sqlite_bytes'] / 1000:,.2f} GB on disk in SQLite"
        + (
            f", {kept['redis_bytes'] / 1000:,.2f} GB of memory in Redis."
            if "redis_bytes" in kept
            else "; no Redis here."
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Run, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer requests and rows of the table; written beside the full results",
    )
    options = parser.parse_args()
    console, machine = Console(stderr=True), timing.describe_machine()
    n_requests = QUICK_REQUESTS if options.quick else REQUESTS
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder)) as port:
        place = Place(Path(folder), port)
        with console.status("fitting"):
            sizes = prepare(
                place.folder, QUICK_ROWS if options.quick else ROWS, n_requests, not options.quick
            )
        stores = [
            "memory",
            "sqlite FULL",
            "sqlite NORMAL",
            *(["redis"] if port is not None else []),
        ]
        rows = [("variational", store, 1) for store in stores]
        if not options.quick:
            rows += [("variational", store, 2) for store in stores[1:]]
            rows += [
                ("neural", store, workers)
                for workers in (1, 2)
                for store in ("sqlite FULL", *stores[3:])
            ]
        table = measure(place, n_requests, sizes["answer_bytes"], rows, console)
        with console.status("one caller, memory"):
            told: dict[str, Any] = {
                "sizes": sizes,
                "requests": n_requests,
                "table": table,
                "alone": alone(place, n_requests),
            }
            told["customers"] = QUICK_CUSTOMERS if options.quick else CUSTOMERS
            told["memory"] = memory(place, told["customers"])
    stem, command = (
        "service-quick" if options.quick else "service",
        " ".join(["python -m benchmarks.service", *sys.argv[1:]]),
    )
    text = report(machine, told, command)
    (RESULTS / f"{stem}.json").write_text(
        json.dumps({"machine": machine, "results": told}, indent=1) + "\n"
    )
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
