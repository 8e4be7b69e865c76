"""How close fits in a few passes come to full fits, and a new month to a refit.

Run with `python -m benchmarks.stochastic`; results go to benchmarks/results/. Bounds of both fits
are evaluated on all rows, at the final parameters.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.engine import timing, workloads
from turncoat import Panel, VariationalHMM

RESULTS = Path(__file__).resolve().parent / "results"
PASSES = (2, 3)
MAX_GAP = 0.001  # of the full bound, after three passes
HELD_OUT = 0.1  # of the sequences


@dataclass(frozen=True)
class Data:
    """One panel and how it is fitted."""

    panel: Panel
    n_states: int
    transitions: str = "per-row"


def make_wide(share: float) -> Data:
    """128 continuous columns, 8 states that many columns tell apart."""
    made = workloads.gaussian(int(200_000 * share), 128, 8, workloads.SEPARATED, "shrunk")
    return Data(Panel.from_arrays(made.continuous, lengths=made.lengths), 8)


def make_mixed(share: float) -> Data:
    """407 continuous and 334 categorical columns, 5 % of the cells missing."""
    made = workloads.mixed(int(100_000 * share), 8, missing=0.05)
    columns = made.continuous, made.categorical, made.lengths
    return Data(Panel.from_arrays(*columns, n_categories=made.n_categories), 8)


def make_heavy(share: float, is_sorted: bool = False) -> Data:
    """12 continuous columns with heavy tails, four of them skewed, and 3 categorical ones.

    No number of Gaussian states is right: the bound has plateaus and many optima. If sorted, the
    sequences are ordered by a column.
    """
    n_rows, n_states = int(300_000 * share), 6
    rng = np.random.default_rng(workloads.SEED)
    lengths = workloads.shrunk_lengths(n_rows, rng)
    states = workloads.sticky_states(lengths, n_states, rng)
    means, spread = rng.normal(0.0, 0.7, (n_states, 12)), rng.normal(0.0, 0.4, (n_states, 12))
    rows = means[states] + np.exp(spread)[states] * rng.standard_t(4, (n_rows, 12))
    rows[:, :4] = np.exp(0.5 * np.clip(rows[:, :4], -6.0, 6.0))
    probs = tuple(rng.dirichlet(np.ones(6), n_states) for _ in range(3))
    codes = np.empty((n_rows, 3), np.int8)
    workloads.fill_categorical(codes, states, probs, rng)
    cells = rows.astype(np.float32)
    panel = Panel.from_arrays(cells, codes, lengths=lengths, n_categories=[6] * 3)
    if is_sorted:
        means_of = np.add.reduceat(cells[:, 5], panel.offsets[:-1]) / panel.lengths
        panel = panel[np.argsort(means_of)]
    return Data(panel, 8)


def make_timed(share: float) -> Data:
    """8 continuous columns, 5 states in continuous time."""
    n_rows, rng = int(200_000 * share), np.random.default_rng(workloads.SEED)
    lengths = workloads.shrunk_lengths(n_rows, rng)
    states = workloads.sticky_states(lengths, 5, rng)
    cells = rng.normal(size=(n_rows, 8)) + rng.normal(size=(5, 8))[states]
    times = np.cumsum(rng.exponential(8 * 3600.0, n_rows))
    panel = Panel.from_arrays(cells.astype(np.float32), lengths=lengths, times=times)
    return Data(panel, 5, "continuous")


# How to make each, and the number of seeds.
WORKLOADS: dict[str, tuple[Callable[[float], Data], int]] = {
    "heavy tails": (make_heavy, 4),
    "heavy tails, sorted": (lambda share: make_heavy(share, is_sorted=True), 3),
    "continuous time": (make_timed, 3),
    "wide": (make_wide, 2),
    "mixed": (make_mixed, 1),
}


def build_model(data: Data, seed: int, **settings: Any) -> VariationalHMM:
    options = {"random_state": seed, "transitions": data.transitions, "progress": False}
    return VariationalHMM(data.n_states, **{**options, **settings})


def measure_passes(name: str, data: Data, seed: int, one_state: float) -> dict[str, Any]:
    """Bounds and seconds of a full fit and of fits in a few passes."""
    n_rows = data.panel.n_rows
    full = build_model(data, seed, max_iter=500).fit(data.panel)
    found: dict[str, Any] = {
        "workload": name,
        "seed": seed,
        "rows": n_rows,
        "bound": full.lower_bound_,
        "per_row": full.lower_bound_ / n_rows,
        "iterations": [one.n_iter for one in full.fit_report_.restarts],
        "seconds": full.fit_report_.seconds,
        "passes": [],
    }
    for n_passes in PASSES:
        model = build_model(data, seed, max_passes=n_passes, tol=0.0)
        seconds = timing.seconds_of(lambda one=model: one.fit(data.panel))
        again = build_model(data, seed, init=model.params_, max_iter=1, precision="float64")
        bound = again.fit(data.panel).lower_bound_
        entry = {
            "passes": n_passes,
            "bound": bound,
            "tracked_bound": model.lower_bound_,
            "gap": (full.lower_bound_ - bound) / abs(full.lower_bound_),
            "nats_per_row": (full.lower_bound_ - bound) / n_rows,
            "share_of_gain": (bound - one_state) / (full.lower_bound_ - one_state),
            "seconds": seconds,
        }
        found["passes"].append(entry)
    onward = build_model(data, seed, init=model.params_, max_iter=500).fit(data.panel)
    found["converged_from_there"] = onward.lower_bound_
    found["iterations_from_there"] = onward.fit_report_.n_iter
    return found


def measure_month(name: str, data: Data, seed: int) -> dict[str, Any]:
    """Held-out log-likelihood after fit and partial_fit of halves, next to a fit to both."""
    order = np.random.default_rng(seed).permutation(data.panel.n_sequences)
    n_held_out = round(HELD_OUT * len(order))
    held_out, rest = data.panel[np.sort(order[:n_held_out])], order[n_held_out:]
    months = [data.panel[np.sort(part)] for part in np.array_split(rest, 2)]
    both = build_model(data, seed, max_iter=500).fit(data.panel[np.sort(rest)])
    first = build_model(data, seed, max_iter=500).fit(months[0])
    before = first.score(held_out)
    seconds = timing.seconds_of(lambda: first.partial_fit(months[1]))
    return {
        "workload": name,
        "seed": seed,
        "first_month": before,
        "both_months": first.score(held_out),
        "refit": both.score(held_out),
        "partial_fit_s": seconds,
        "refit_s": both.fit_report_.seconds,
    }


def build_page(machine: dict[str, Any], results: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    gaps = [one["passes"][-1]["gap"] for one in results["passes"]]
    differences = [one["refit"] - one["both_months"] for one in results["months"]]
    lines = [
        "# Fits in a few passes, and new months",
        "",
        f"{machine['cpu']}, {machine['cores']} cores; load before the run "
        f"{machine['load_before']}. Made by `python -m benchmarks.stochastic`. Other work ran on",
        "the machine: read the seconds as rough, the bounds do not depend on it.",
        "",
        f"After three passes the largest gap to the full bound is {100 * max(gaps):.3f} %; "
        f"required: at most {100 * MAX_GAP:.1f} %.",
        "",
        "`VariationalHMM(max_passes=...)` next to the full fit with five restarts, run until it",
        "converges. Both bounds are evaluated on all rows. A negative gap is a better bound than",
        "the full fit's. The share is of the gain from one state to the full fit. Seconds include",
        "the start, a fit to a sample of at most 50,000 rows, a large part of panels this small.",
        "",
        "| workload | rows | seed | full bound per row | full fit: iterations of restarts "
        "| gap after 2 passes | after 3 passes | the same, nats per row | share of the gain "
        "| seconds: full / 3 passes |",
        "|---" * 10 + "|",
    ]
    for one in results["passes"]:
        two, three = one["passes"]
        lines.append(
            f"| {one['workload']} | {one['rows']:,} | {one['seed']} | {one['per_row']:.3f} "
            f"| {', '.join(map(str, one['iterations']))} | {100 * two['gap']:.4f} % "
            f"| {100 * three['gap']:.4f} % | {three['nats_per_row']:.5f} "
            f"| {100 * three['share_of_gain']:.2f} % "
            f"| {one['seconds']:.1f} / {three['seconds']:.1f} |"
        )
    lines += [
        "",
        "Before these passes, every fit reads the columns once for their means and variances.",
        "",
        "## A new month",
        "",
        "The sequences are two months and a tenth held out. Mean held-out log-likelihood per row",
        f"after `fit` and `partial_fit`, next to a refit to both; largest loss "
        f"{max(differences):.4f} nats per row.",
        "",
        "| workload | seed | first month | after partial_fit | refit "
        "| seconds: partial_fit / refit |",
        "|---|---|---|---|---|---|",
    ]
    for one in results["months"]:
        lines.append(
            f"| {one['workload']} | {one['seed']} | {one['first_month']:.4f} "
            f"| {one['both_months']:.4f} | {one['refit']:.4f} "
            f"| {one['partial_fit_s']:.1f} / {one['refit_s']:.1f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stochastic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows, one seed")
    options, console = parser.parse_args(), Console(stderr=True)
    machine = timing.describe_machine()
    share = 0.25 if options.quick else 1.0
    results: dict[str, Any] = {"passes": [], "months": []}
    for name, (make, n_seeds) in WORKLOADS.items():
        data = make(share)
        single = VariationalHMM(1, n_restarts=1, transitions=data.transitions, progress=False).fit(
            data.panel
        )
        for seed in range(1 if options.quick else n_seeds):
            with console.status(f"{name}, seed {seed}"):
                found = measure_passes(name, data, seed, single.lower_bound_)
                results["passes"].append(found)
                if seed == 0:
                    results["months"].append(measure_month(name, data, seed))
            last = found["passes"][-1]
            console.print(f"{name}, seed {seed}: gap {100 * last['gap']:.4f} %")
    stem = "stochastic-quick" if options.quick else "stochastic"
    content = json.dumps({"machine": machine, "results": results}, indent=1)
    (RESULTS / f"{stem}.json").write_text(content + "\n")
    page = build_page(machine, results)
    (RESULTS / f"{stem}.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
