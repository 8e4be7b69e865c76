"""What two-sided chains cost: fitting, batch scoring, live steps, records, and continuous time.

Run with `python -m benchmarks.chains_cost`; results go to benchmarks/results/. Data are simulated
Handbook payments with 16 per customer and month, and twice as many terminals as customers.
"""

from __future__ import annotations

import argparse
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.engine import timing
from turncoat import BaumWelchHMM, Detector, Panel, VariationalHMM
from turncoat.data import read
from turncoat.data.json_rows import list_fields
from turncoat.data.parsing import parse_row
from turncoat.data.simulators import simulate_tables
from turncoat.data.transactions import Transactions
from turncoat.features import UNKNOWN, Features
from turncoat.features.chains import Chains
from turncoat.scoring import DetectorState
from turncoat.scoring.chain_fitting import fit_causes

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, QUICK_ROWS = (50_000, 100_000, 200_000), (50_000,)
PHASES = (1, 4, 16)
STATES, REPEATS = 8, 5
TRANSITIONS = ("per-row", "continuous")
LIVE_BATCH, LIVE_BATCHES = 60, 40
MUST_ROWS_PER_SECOND, MUST_CONTINUOUS_RATIO = 100_000, 1.5


def simulate(n_rows: int) -> Transactions:
    return read(simulate_tables("handbook", n_rows, 0)["transactions"], "handbook")


def measure_growth(n_rows: int) -> dict[str, float]:
    """Seconds to learn the causes, and rows per second of a detector with and without them."""
    transactions = simulate(n_rows)
    features = Features().fit(transactions)
    found: dict[str, float] = {
        "rows": n_rows,
        "customers": len(transactions.customers),
        "terminals": len(transactions.categories["TERMINAL_ID"].values),
        "fit_causes_s": timing.seconds_of(lambda: fit_causes(features, transactions)),
    }
    for kind in ("regimes", "chains"):
        detector = make_detector(kind)
        found[f"fit_{kind}_s"] = timing.seconds_of(lambda one=detector: one.fit(transactions))
        seconds = timing.best_of(REPEATS, lambda one=detector: one.score(transactions))
        found[f"{kind}_rows_per_second"] = n_rows / seconds
        found[f"{kind}_live_us"] = time_live_steps(detector, transactions)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def make_detector(kind: str) -> Detector:
    model = VariationalHMM(STATES, n_restarts=1, max_iter=10, progress=False)
    return Detector(Features(), model, supervision="anchored", kind=kind)


def time_live_steps(detector: Detector, transactions: Transactions) -> float:
    """Microseconds per transaction, scored without reasons in batches from stored states."""
    rows = np.argsort(transactions.times, kind="stable")[: LIVE_BATCH * LIVE_BATCHES]
    schema = transactions.schema
    sent = [parse_row(schema, fields) for fields in list_fields(transactions, rows)]
    live, labels = detector.live, [UNKNOWN] * LIVE_BATCH
    state = live.advance([DetectorState()], sent[:1], [UNKNOWN]).states[0]
    states = [state] * LIVE_BATCH

    def run() -> None:
        for start in range(0, len(sent), LIVE_BATCH):
            steps = live.advance(states, sent[start : start + LIVE_BATCH], labels)
            live.score_steps(steps, n_reasons=0)

    return 1e6 * timing.best_of(REPEATS, run) / len(sent)


def measure_phases(n_rows: int) -> list[dict[str, float]]:
    """Rows per second of the features, and bytes of a terminal's record, by number of phases."""
    transactions = simulate(n_rows)
    features = Features().fit(transactions)
    chains = fit_causes(features, transactions).chains
    (learnt,) = chains.compromise
    if learnt is None:
        raise RuntimeError("no chain of compromises in the simulated data")
    found = []
    for n_phases in (0, *PHASES):
        other = replace(learnt, n_phases=n_phases) if n_phases else None
        own = features.add_chains(Chains(chains.intruder, (other,)))
        seconds = timing.best_of(REPEATS, lambda one=own: one.transform(transactions))
        sizes = dict(zip(("customer_bytes", "terminal_bytes"), own.state_bytes, strict=True))
        found.append({"phases": n_phases, "rows_per_second": n_rows / seconds, **sizes})
    return found


def measure_continuous(n_rows: int) -> list[dict[str, Any]]:
    """Seconds of an EM iteration with transitions per row, and in continuous time."""
    rng = np.random.default_rng(0)
    lengths, times = np.full(n_rows // 100, 100), np.cumsum(rng.exponential(8.0, n_rows))
    found = []
    for n_columns in (8, 64):
        cells = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
        panel = Panel.from_arrays(cells, lengths=lengths, times=times)
        for tier in (BaumWelchHMM, VariationalHMM):
            seconds = {name: time_iteration(tier, panel, name) for name in TRANSITIONS}
            ratio = seconds["continuous"] / seconds["per-row"]
            found.append({"tier": tier.__name__, "columns": n_columns, **seconds, "ratio": ratio})
    return found


def time_iteration(tier: type[Any], panel: Panel, transitions: str) -> float:
    """Seconds of an iteration: long fits less short ones, so that their starts cancel out."""
    options = {"n_restarts": 1, "tol": 0.0, "progress": False, "random_state": 0}

    def fit(n_iterations: int) -> None:
        tier(STATES, transitions=transitions, max_iter=n_iterations, **options).fit(panel)

    few, many = (timing.best_of(3, lambda n=n: fit(n)) for n in (5, 25))
    return (many - few) / 20


def build_page(machine: dict[str, Any], results: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    lines = [
        "# What two-sided chains cost",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; load before the run "
        f"{machine['load_before']}. Made by `python -m benchmarks.chains_cost`.",
        "",
        "A detector with eight regimes on the Handbook's features, without chains (`regimes`) and",
        "with them (`chains`). Scoring includes the features. A live step is a transaction in a",
        f"batch of {LIVE_BATCH}, from stored states, without reasons. Required of `chains`: at",
        f"least {MUST_ROWS_PER_SECOND:,} rows/s.",
        "",
        "| rows | customers | terminals | learn the causes, s | fit, s: regimes / chains "
        "| scored rows/s: regimes / chains | live step, µs: regimes / chains | peak MB |",
        "|---" * 8 + "|",
    ]
    for one in results["growth"]:
        lines.append(
            f"| {one['rows']:,} | {one['customers']:,} | {one['terminals']:,} "
            f"| {one['fit_causes_s']:.1f} | {one['fit_regimes_s']:.1f} / {one['fit_chains_s']:.1f} "
            f"| {one['regimes_rows_per_second']:,.0f} / {one['chains_rows_per_second']:,.0f} "
            f"| {one['regimes_live_us']:.0f} / {one['chains_live_us']:.0f} "
            f"| {one['peak_mb']:,.0f} |"
        )
    lines += [
        "",
        "Features alone, and records without the belief, by phases of a compromise (0: no chain):",
        "",
        "| phases | rows/s | customer's record, bytes | terminal's record, bytes |",
        "|---|---|---|---|",
    ]
    for one in results["phases"]:
        lines.append(
            f"| {one['phases']} | {one['rows_per_second']:,.0f} | {one['customer_bytes']:,} "
            f"| {one['terminal_bytes']:,} |"
        )
    lines += [
        "",
        f"An EM iteration with {STATES} states, `transitions` per row and continuous; required: at "
        f"most {MUST_CONTINUOUS_RATIO} times as long.",
        "",
        "| model | columns | per row, ms | continuous, ms | ratio |",
        "|---|---|---|---|---|",
    ]
    for one in results["continuous"]:
        lines.append(
            f"| {one['tier']} | {one['columns']} | {1e3 * one['per-row']:.1f} "
            f"| {1e3 * one['continuous']:.1f} | {one['ratio']:.2f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows")
    options, console = parser.parse_args(), Console(stderr=True)
    sizes, machine = QUICK_ROWS if options.quick else ROWS, timing.describe_machine()
    results: dict[str, Any] = {"growth": []}
    for n_rows in sizes:
        with console.status(f"{n_rows:,} rows"):
            results["growth"].append(measure_growth(n_rows))
    with console.status("phases and transitions"):
        results["phases"] = measure_phases(sizes[-1])
        results["continuous"] = measure_continuous(sizes[-1])
    stem = "chains_cost-quick" if options.quick else "chains_cost"
    content = json.dumps({"machine": machine, "results": results}, indent=1)
    (RESULTS / f"{stem}.json").write_text(content + "\n")
    page = build_page(machine, results)
    (RESULTS / f"{stem}.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
