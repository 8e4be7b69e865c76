"""What a kind of score and its reasons cost the live service: SQLite FULL, one worker.

The same detector is served three times: without reasons, with reasons for the riskiest 2 % of the
traffic (`--reasons above:P`), and with reasons for all. These servers and one that answers a
constant without reasons are loaded in turn. Run it with `python -m benchmarks.service.kinds`; the
kinds of two-sided chains have the Handbook's columns, a hybrid those of IEEE-CIS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console

from benchmarks.engine import timing
from benchmarks.service.servers import (
    CONNECTIONS,
    N_ROUNDS,
    N_STATES,
    RESULTS,
    Environment,
    constant_command,
    fit_detector,
    load_in_turn,
    service_command,
    simulate,
    write_requests,
)
from turncoat import Detector
from turncoat.data.transactions import Transactions
from turncoat.scoring.detector import CHAIN_KINDS
from turncoat.scoring.rankers import XGBoostRanker
from turncoat.serving.records import unpack_log_content
from turncoat.serving.stores import open_store

N_ROWS, N_QUICK_ROWS = 40_000, 4_000
N_REQUESTS, N_QUICK_REQUESTS = 37_000, 2_400
STORE, WORKERS = "sqlite FULL", 1
KINDS = ("hybrid", "chains", "chains+trees")
ALERT_SHARE = 0.02  # of the traffic
REQUIRED_RATIO, TARGET_RATIO = 0.25, 0.35


def find_alert_threshold(detector: Detector, transactions: Transactions, n_requests: int) -> float:
    """Return the probability that `ALERT_SHARE` of the requests reach."""
    first = np.argsort(transactions.times, kind="stable")[:n_requests]
    return float(np.quantile(detector.score(transactions).probability[first], 1 - ALERT_SHARE))


def measure_share(url: str) -> float:
    """Return the share of logged responses that have reasons."""

    async def read() -> list[bool]:
        store, cursor, found = open_store(url), "", []
        while entries := await store.read_log(after=cursor):
            cursor = entries[-1].cursor
            bodies = [unpack_log_content(entry.content).response for entry in entries]
            found += [bool(msgspec.json.decode(body)["reasons"]) for body in bodies]
        await store.close()
        return found

    return float(np.mean(asyncio.run(read())))


def measure(
    kind: str, folder: Path, n_rows: int, n_requests: int, console: Console
) -> dict[str, Any]:
    """Fit, serve and load; return the figures."""
    environment = Environment(folder, None)
    with console.status("fitting"):
        transactions = simulate(n_rows, "handbook" if kind in CHAIN_KINDS else "ieee-cis")
        detector = fit_detector(kind, transactions)
        detector.save(folder / kind)
        sizes = write_requests(folder, transactions, n_requests, detector, n_reasons=0)
        threshold = find_alert_threshold(detector, transactions, n_requests)
    choices = ("none", f"above:{threshold:.6f}", "all")
    row = kind, STORE, WORKERS
    services = [service_command(environment, row, reasons) for reasons in choices]
    constant = constant_command(environment, WORKERS, sizes["response_bytes"], kind)
    with console.status("loading the servers in turn"):
        base, *found = load_in_turn(environment, [constant, *services], n_requests)
    for one, reasons, (command, _) in zip(found, choices, services, strict=True):
        one["reasons"], one["share"] = reasons, measure_share(command[command.index("--store") + 1])
        one["ratio"] = one["per_second"] / base["per_second"]
    customer, *others = detector.features_.state_bytes
    sizes |= {"customer_bytes": customer + 8 * N_STATES, "counterparty_bytes": sum(others)}
    ranker = detector.calibration_.ranker
    if isinstance(ranker, XGBoostRanker):
        sizes["trees"] = ranker.source.num_boosted_rounds()
    return {"sizes": sizes, "requests": n_requests, "constant": base, "table": found}


def render(kind: str, machine: dict[str, Any], results: dict[str, Any], command: str) -> str:
    """Return the results as Markdown."""
    sizes, base, table = results["sizes"], results["constant"], results["table"]
    none, alerts, every = table
    ratio = none["ratio"]
    verdict = (
        "aim met"
        if ratio >= TARGET_RATIO
        else "requirement met, aim missed"
        if ratio >= REQUIRED_RATIO
        else "missed"
    )
    lines = [
        f"# The kind {kind} in the live service",
        "",
        f"{machine['cpu']}, {machine['cores']} cores, shared by servers and client; load before",
        f"the run {machine['load_before']}. Made by `{command}`.",
        f"{sizes['continuous']} continuous and {sizes['categorical']} categorical features, "
        f"K = {N_STATES} regimes, {sizes.get('trees', 0)} trees. Records: customer "
        f"{sizes['customer_bytes']:,} bytes, counterparty {sizes['counterparty_bytes']:,}.",
        "SQLite FULL, one worker, every response logged. "
        f"{results['requests']:,} requests with bodies of {sizes['body_bytes']:,} bytes.",
        "",
        "`constant` is the same service (granian, Starlette, middleware, decoding) answering as",
        "many bytes as a response without reasons, without scoring or storing. "
        f"Medians of {N_ROUNDS} rounds",
        f"of {', '.join(map(str, CONNECTIONS))} connections, all servers in turn, each at its "
        "best number.",
        "",
        "| `--reasons` | responses with reasons | scores / s | ratio to constant | connections "
        "| p50 ms | p99 ms | CPU µs | MB | errors |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{row['reasons']}` | {row['share']:.1%} | {row['per_second']:,.0f} "
        f"| {row['ratio']:.2f} | {row['connections']} | {row['p50_ms']:.1f} | {row['p99_ms']:.1f} "
        f"| {row['cpu_us']:.0f} | {row['resident_mb']:.0f} | {row['errors']} |"
        for row in table
    ]
    lines += [
        f"| constant | | {base['per_second']:,.0f} | 1 | {base['connections']} "
        f"| {base['p50_ms']:.1f} | {base['p99_ms']:.1f} | {base['cpu_us']:.0f} "
        f"| {base['resident_mb']:.0f} | {base['errors']} |",
        "",
        f"Without reasons: {ratio:.2f} of the constant (required {REQUIRED_RATIO}, aim "
        f"{TARGET_RATIO}): {verdict}.",
        *[
            f"Reasons for {row['share']:.0%} of the traffic: "
            f"{row['cpu_us'] - none['cpu_us']:+.0f} µs of CPU per transaction, "
            f"{row['per_second'] / none['per_second'] - 1:+.0%} scores / s."
            for row in (alerts, every)
        ],
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure, write the results, print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service.kinds")
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0])
    parser.add_argument("--quick", action="store_true", help="fewer rows and requests")
    options = parser.parse_args()
    console, machine = Console(stderr=True), timing.describe_machine()
    n_rows = N_QUICK_ROWS if options.quick else N_ROWS
    n_requests = N_QUICK_REQUESTS if options.quick else N_REQUESTS
    with tempfile.TemporaryDirectory() as folder:
        results = measure(options.kind, Path(folder), n_rows, n_requests, console)
    command = " ".join(["python -m benchmarks.service.kinds", *sys.argv[1:]])
    text = render(options.kind, machine, results, command)
    stem = f"{options.kind.replace('+', '_')}_service{'-quick' if options.quick else ''}"
    content = json.dumps({"machine": machine, "results": results}, indent=1)
    (RESULTS / f"{stem}.json").write_text(content + "\n")
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
