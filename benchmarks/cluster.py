"""Fits on a cluster beside fits in one process: overhead of an iteration, and one to two workers.

Run with `python -m benchmarks.cluster`; results go to benchmarks/results/. Data are simulated
Handbook payments, written as parts by customer.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.engine import timing
from turncoat import Panel, VariationalHMM, distributed
from turncoat.data import load_preset, read
from turncoat.data.simulators import simulate_files
from turncoat.features import Features

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, QUICK_ROWS = 1_000_000, 20_000
N_PARTS, N_STATES = 16, 8
WORKERS = (1, 2)
FEW, MANY, REPEATS = 5, 25, 3  # iterations, and fits of each length
MUST_RATIO, AIM_RATIO = 1.25, 1.1


def build_model(n_iterations: int, n_threads: int = 1) -> VariationalHMM:
    options: dict[str, Any] = {"n_restarts": 1, "tol": 0.0, "progress": False}
    return VariationalHMM(N_STATES, max_iter=n_iterations, n_threads=n_threads, **options)


def time_iteration(fit: Any) -> float:
    """Seconds of an iteration: long fits less short ones, so that starts and reading cancel out."""
    few, many = (timing.best_of(REPEATS, partial(fit, n)) for n in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def choose_features(part: Path) -> Features:
    """Features of the customer's own history, fitted on one part."""
    transactions = read(part, "handbook")
    every = Features().fit(transactions)
    theirs = {name for group in every.plan.counterparty_groups for names in group for name in names}
    own = [name for names in every.feature_names for name in names if name not in theirs]
    return Features(include=own).fit(transactions)


def measure(n_rows: int, folder: Path, console: Console) -> dict[str, Any]:
    with console.status(f"simulating {n_rows:,} rows"):
        files = simulate_files("handbook", n_rows, out=folder, file_format="parquet")
    began = time.perf_counter()
    schema, parts = load_preset("handbook"), folder / "parts"
    found = distributed.write_shards(
        files["transactions"], schema, n_parts=N_PARTS, out=parts, progress=False
    )
    shard_s = time.perf_counter() - began
    features = choose_features(parts / found.shards[0].file)
    with console.status("one process"):
        panels = [features.transform(read(parts / one.file, schema)) for one in found.shards]
        joined = Panel.join(panels)
        del panels
        local_s = time_iteration(lambda n: build_model(n).fit(joined))
        both_s = time_iteration(lambda n: build_model(n, max(WORKERS)).fit(joined))
        expected = build_model(FEW).fit(joined).lower_bound_
    results: dict[str, Any] = {
        "rows": found.n_rows,
        "columns": joined.n_continuous + joined.n_categorical,
        "parts": len(found.shards),
        "shard_rows_per_second": n_rows / shard_s,
        "local_s": local_s,
        "local_threads_s": both_s,
        "workers": [],
    }
    for n_workers in WORKERS:
        with (
            console.status(f"{n_workers} workers"),
            distributed.connect(f"local:{n_workers}", progress=False) as client,
        ):

            def fit(n: int) -> VariationalHMM:
                return distributed.fit(build_model(n), parts, features, cluster=client)

            model = fit(FEW)  # compiled kernels are loaded outside the timer
            error = abs(model.lower_bound_ - expected) / abs(expected)
            seconds = time_iteration(fit)
        one = {"workers": n_workers, "seconds": seconds, "bound_error": error}
        results["workers"].append(one | {"ratio": seconds * n_workers / local_s})
    return results


def build_page(machine: dict[str, Any], results: dict[str, Any]) -> str:
    """The table, in Markdown."""
    local = f"{1e3 * results['local_s']:.1f}"
    lines = [
        "# Fits on a cluster",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; load before the run "
        f"{machine['load_before']}. Made by `python -m benchmarks.cluster`.",
        "",
        f"An EM iteration of `VariationalHMM({N_STATES})` on {results['rows']:,} payments of the",
        f"Handbook's simulator, {results['columns']} features, {results['parts']} parts, local",
        "workers of one thread. The ratio is processor time beside one process with one thread;",
        f"with one worker it must be at most {MUST_RATIO}, better {AIM_RATIO}.",
        f"`turncoat shard` wrote {results['shard_rows_per_second']:,.0f} rows/s.",
        "",
        "| fit | iteration, ms | ratio | relative difference of the bound |",
        "|---|---|---|---|",
        f"| one process, one thread | {local} | 1.00 | |",
        f"| one process, {max(WORKERS)} threads | {1e3 * results['local_threads_s']:.1f} "
        f"| {max(WORKERS) * results['local_threads_s'] / results['local_s']:.2f} | |",
    ]
    for one in results["workers"]:
        name = f"{one['workers']} worker{'s' if one['workers'] > 1 else ''}"
        lines.append(
            f"| {name} | {1e3 * one['seconds']:.1f} | {one['ratio']:.2f} "
            f"| {one['bound_error']:.0e} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    options, console = parser.parse_args(), Console(stderr=True)
    machine = timing.describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        n_rows = QUICK_ROWS if options.quick else ROWS
        results = measure(n_rows, Path(folder), console)
    stem = "cluster-quick" if options.quick else "cluster"
    content = json.dumps({"machine": machine, "results": results}, indent=1)
    (RESULTS / f"{stem}.json").write_text(content + "\n")
    page = build_page(machine, results)
    (RESULTS / f"{stem}.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
