"""Run every measurement in its own process, then write and print the report."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks.engine import report, timing

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TITLES = {
    "first_use": "compilation, import and first calls",
    "arithmetic": "our iterations compared with sgemm",
    "hmmlearn": "hmmlearn log and scaling",
    "pomegranate": "pomegranate",
    "dynamax": "dynamax",
    "variational": "hmmlearn variational",
    "hmmlearn_full": "hmmlearn on the full-size continuous part",
    "full_size": "mixed model at full size",
    "full_size_missing": "mixed model at full size, 30 % missing",
    "growth": "growth with rows",
    "sweep_projection": "iterations for K = 2…10",
    "live": "live step",
    "sweep": "sweep K = 2…10, for real",
}


@dataclass(frozen=True)
class Bench:
    """One run: where its processes leave their numbers, and how large it is."""

    folder: Path
    quick: bool

    def section(self, name: str) -> dict[str, Any]:
        """The numbers of one section, or the last line of its error."""
        if name == "first_use":
            return self._first_use()
        return self._run(
            ["-m", "benchmarks.engine", "--section", name, *(["--quick"] if self.quick else [])]
        )

    def _first_use(self) -> dict[str, Any]:
        """Twice with one compilation cache: first empty, then filled. Later sections use it too."""
        cold, cached = (self._run(["-m", "benchmarks.engine.first_use"]) for _ in range(2))
        return (
            cold
            if "failed" in cold
            else cached
            if "failed" in cached
            else {"cold": cold, "cached": cached}
        )

    def _run(self, arguments: list[str]) -> dict[str, Any]:
        output = self.folder / "numbers.json"
        environment = {
            **os.environ,
            "NUMBA_CACHE_DIR": str(self.folder / "kernels"),
            "JAX_PLATFORMS": "cpu",
        }
        command = [sys.executable, *arguments, str(output)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.stderr.write(done.stderr)
            return {
                "failed": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[
                    -1
                ].replace(str(ROOT), ".")
            }
        numbers: dict[str, Any] = json.loads(output.read_text())
        return numbers


def run_all(names: list[str], quick: bool, console: Console) -> dict[str, Any]:
    """Every section in turn, with a bar that says which one is running."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console) as progress:
        bench, task = Bench(Path(folder), quick), progress.add_task("", total=len(names))
        for name in names:
            progress.update(task, description=TITLES[name])
            meter = timing.LoadMeter()
            results[name] = {**bench.section(name), **meter.read()}
            word = next((word for word in ("failed", "missing") if word in results[name]), "done")
            console.print(f"{TITLES[name]}: {word}, {results[name]['wall_seconds']:.0f} s")
            progress.advance(task)
    return results


def run_section(name: str, quick: bool, output: Path) -> None:
    """One section, here, its numbers into a file."""
    from benchmarks.engine.sections import FULL, QUICK, SECTIONS

    output.write_text(json.dumps(SECTIONS[name](QUICK if quick else FULL)))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine", description="Measure the engine and its peers."
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small workloads, under two minutes; written to its own file",
    )
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="also run the sweep K = 2…10 with restart halving for real",
    )
    parser.add_argument("--section", choices=list(TITLES), help=argparse.SUPPRESS)
    parser.add_argument("output", nargs="?", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    """Run, write, print; 1 if a measurement failed."""
    options = parse()
    if options.section:
        run_section(options.section, options.quick, options.output)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    machine, began = timing.describe_machine(), time.perf_counter()
    results = run_all(
        [name for name in TITLES if name != "sweep" or options.sweep], options.quick, console
    )
    stem, command = (
        "engine-quick" if options.quick else "engine",
        " ".join(["python -m benchmarks.engine", *sys.argv[1:]]),
    )
    seconds = round(time.perf_counter() - began)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{stem}.json").write_text(
        json.dumps({"machine": machine, "seconds": seconds, "results": results}, indent=1) + "\n"
    )
    (RESULTS / f"{stem}.md").write_text(report.to_markdown(machine, results, command))
    report.show(console, machine, results)
    console.print(f"{seconds} s in all; written to benchmarks/results/{stem}.json and {stem}.md")
    return 1 if any("failed" in section for section in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
