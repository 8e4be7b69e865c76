"""Scoring speed: rows per second in batch and microseconds per live transaction, IEEE-CIS columns.

Run with `python -m benchmarks.scoring`; results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.engine import timing
from benchmarks.features import row_dictionaries
from turncoat import Detector, VariationalHMM
from turncoat.data import read
from turncoat.data.simulators import simulate_tables
from turncoat.features import Features
from turncoat.scoring import DetectorState

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, QUICK_ROWS, STATES = 200_000, 20_000, 8
REPEATS, LIVE_ROUNDS = 5, 100
MUST_ROWS_PER_SECOND = 100_000


def measure(n_rows: int) -> dict[str, float]:
    """Fit a small detector on simulated data, then score."""
    made = simulate_tables("ieee-cis", n_rows, 0)
    transactions = read(made["train_transaction"], "ieee-cis", joined=made["train_identity"])
    detector = Detector(
        Features(), VariationalHMM(STATES, n_restarts=1, max_iter=10, progress=False)
    ).fit(transactions)
    panel = detector.features_.transform(transactions)
    results: dict[str, float] = {
        "rows": panel.n_rows,
        "continuous": panel.n_continuous,
        "categorical": panel.n_categorical,
    }
    for mode in ("filtered", "smoothed"):
        seconds = timing.best_of(REPEATS, lambda mode=mode: detector.score_panel(panel, mode))
        results[f"{mode}_rows_per_second"] = panel.n_rows / seconds
    scores = detector.score_panel(panel)
    results["table_rows_per_second"] = panel.n_rows / timing.best_of(2, scores.frame)
    rows = row_dictionaries(transactions)
    results["live_step_us"] = _live_us(detector, partial(detector.score_one, n_reasons=0), rows)
    results["explained_path_us"] = _live_us(detector, detector.score_one, rows)
    return results


def _live_us(
    detector: Detector,
    call: Callable[[DetectorState, dict[str, Any]], object],
    rows: list[dict[str, Any]],
) -> float:
    """Microseconds per transaction of a known customer; the best of the rounds."""
    states = [detector.score_one(None, row)[0] for row in rows]
    best = float("inf")
    for _ in range(LIVE_ROUNDS):
        began = time.perf_counter()
        for state, row in zip(states, rows, strict=True):
            call(state, row)
        best = min(best, (time.perf_counter() - began) / len(rows))
    return best * 1e6


def report(machine: dict[str, Any], numbers: dict[str, float], command: str) -> str:
    """The results as Markdown."""
    rate = numbers["filtered_rows_per_second"]
    verdict = "must met" if rate >= MUST_ROWS_PER_SECOND else "missed"
    return "\n".join(
        [
            "# Scoring",
            "",
            f"{machine['cpu']}, {machine['cores']} cores; load before the run "
            f"{machine['load_before']}. Made by `{command}`.",
            f"{numbers['rows']:,.0f} rows, {numbers['continuous']:.0f} + "
            f"{numbers['categorical']:.0f} columns, K = {STATES}.",
            "",
            f"- filtered scores from a panel: {rate:,.0f} rows/s "
            f"(must {MUST_ROWS_PER_SECOND:,}): {verdict}",
            f"- smoothed scores from a panel: {numbers['smoothed_rows_per_second']:,.0f} rows/s",
            f"- scores as a table with intervals: {numbers['table_rows_per_second']:,.0f} rows/s",
            "- live: one transaction with interval and four reasons: "
            f"{numbers['explained_path_us']:.0f} µs; "
            f"without reasons: {numbers['live_step_us']:.0f} µs",
            "",
        ]
    )


def main() -> int:
    """Run, write, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoring", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="fewer rows; written beside the full results"
    )
    options = parser.parse_args()
    machine = timing.describe_machine()
    with Console(stderr=True).status("scoring"):
        numbers = measure(QUICK_ROWS if options.quick else ROWS)
    stem, command = (
        "scoring-quick" if options.quick else "scoring",
        " ".join(["python -m benchmarks.scoring", *sys.argv[1:]]),
    )
    text = report(machine, numbers, command)
    (RESULTS / f"{stem}.json").write_text(
        json.dumps({"machine": machine, "results": numbers}, indent=1) + "\n"
    )
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
