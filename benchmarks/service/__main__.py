"""Throughput, latency and memory of the live service.

Each row of the table is a server in its own process, loaded over loopback by a second process on
the same cores. It runs in turn with two servers of the same stack that answer a constant, over
several numbers of connections; the median round of each server at its best number of connections
counts. Run all of it with `python -m benchmarks.service`, or a part with `--quick` or `--key-row`.
The tables of other kinds are made by `python -m benchmarks.service.kinds`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.engine import timing
from benchmarks.service.parts import measure_parts, render_parts
from benchmarks.service.servers import (
    CONNECTIONS,
    N_ROUNDS,
    N_STATES,
    RESULTS,
    Environment,
    Row,
    constant_command,
    find_free_port,
    fit_detector,
    load_in_turn,
    run_server,
    send_requests,
    service_command,
    simulate,
    write_requests,
)
from turncoat import Detector, load
from turncoat.serving.decoding import Transaction, TransactionDecoder
from turncoat.serving.records import FORMAT, RecentScore, Record, pack_record
from turncoat.serving.stores import open_store
from turncoat.serving.stores.protocol import RecordWrite, WriteGroup

N_ROWS, N_QUICK_ROWS = 60_000, 4_000
N_REQUESTS, N_QUICK_REQUESTS = 56_000, 2_400
KEY_ROW = ("variational", "sqlite FULL", 1)  # the row with a required ratio
N_CUSTOMERS, N_QUICK_CUSTOMERS = 100_000, 5_000
N_PART_TRANSACTIONS = 4_096
REQUIRED_RATIO, TARGET_RATIO = 0.4, 0.7


def measure_rows(
    environment: Environment, n_requests: int, n_bytes: int, rows: list[Row], console: Console
) -> list[dict[str, Any]]:
    """Load the service and the two constant servers in turn, for each row of the table."""
    results = []
    for row in rows:
        tier, store, workers = row
        commands = [
            constant_command(environment, workers, n_bytes),
            constant_command(environment, workers, n_bytes, "variational"),
            service_command(environment, row),
        ]
        with console.status(f"{tier}, {store}, {workers} worker(s)"):
            bare, decoding, found = load_in_turn(environment, commands, n_requests)
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
            transactions = simulate(n_rows)
            detector = fit_detector("variational", transactions)
            detector.save(environment.folder / "variational")
            sizes = write_requests(environment.folder, transactions, n_requests, detector)
            if is_full:
                fit_detector("neural", transactions).save(environment.folder / "neural")
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
