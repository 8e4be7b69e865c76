"""The report of a large run: size and build time of its page, and how fast the slider reacts.

Scores of a million held-out transactions are simulated for as many models as `turncoat demo` has.
Summary and page are then made as `turncoat compare` makes them; no model is fitted. Parts of the
page that do not grow with the data (regimes, sweeps, training, the map of the latents) are those of
the tests. The slider is timed in headless Chromium, from the input event to the painted frame, at
full speed and with the processor slowed down four times, as on a phone.

Run with `python -m benchmarks.report`; results go to benchmarks/results/. It needs Chromium and
Playwright (`pip install -e ".[bench,test]"`).
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright
from rich.console import Console
from tests.reporting import sample_results as samples

from benchmarks.engine import timing
from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.evaluation.alerts import HeldOutDays, catch_frauds, measure_reliability
from turncoat.evaluation.metrics import ScoredLabels, compute_curves, measure
from turncoat.evaluation.paper.latent_map import LatentMap
from turncoat.evaluation.results import CandidateResult, MetricEstimate, Results
from turncoat.evaluation.summary import AlertCurve, Costs, PathStep, Summary, TopCustomer
from turncoat.evaluation.verdict import AS_GOOD, XGBOOST
from turncoat.reporting.page import write_report
from turncoat.scoring.formatting import Clock
from turncoat.scoring.reasons import Reason

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, QUICK_ROWS = 1_000_000, 50_000
MAX_PAGE_BYTES, MAX_REACTION_MS = 5_000_000, 100
_N_DAYS, _ROWS_PER_CUSTOMER, _FRAUD_RATE, _SEED = 30, 25, 0.005, 0
_N_RESAMPLES, _N_MODELS, _N_COLUMNS = 200, 10, 48  # models in the first table; columns in all
_MAP_ROWS = 5000  # of the latents, the most that a study keeps
_ROUNDS, _SLOWED = 5, 4
_MODELS = ("champion", XGBOOST, "hybrid", "LSTM", "logistic regression")
_MOVE = """
async ([slider, places]) => {
  const input = document.getElementById(slider), times = [];
  for (const place of places) {
    await new Promise(requestAnimationFrame);
    const began = performance.now();
    input.value = place;
    input.dispatchEvent(new Event("input", { bubbles: true }));
    document.body.offsetHeight;
    const scripted = performance.now() - began;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    times.push([scripted, performance.now() - began]);
  }
  return times;
}
"""


@dataclass(frozen=True, eq=False)
class _HeldOut:
    """Simulated test rows, in the order of time."""

    labels: Array
    customers: Array
    times: Array
    amounts: Array

    def score(self, skill: float, rng: np.random.Generator) -> ScoredLabels:
        """Probabilities that a model of this skill gives: the log odds of frauds lie higher."""
        signal = rng.normal(size=len(self.labels)) + skill * self.labels
        odds = np.exp(skill * signal - skill**2 / 2) * _FRAUD_RATE / (1 - _FRAUD_RATE)
        days = np.floor(self.times / DAY).astype(np.int64)
        return ScoredLabels(odds / (1 + odds), self.labels, self.customers, days)


def _simulate(n_rows: int, rng: np.random.Generator) -> _HeldOut:
    customers = rng.integers(0, max(n_rows // _ROWS_PER_CUSTOMER, 1), n_rows)
    times = 1_530_000_000.0 + np.sort(rng.uniform(0, _N_DAYS * DAY, n_rows))
    labels = (rng.uniform(size=n_rows) < _FRAUD_RATE).astype(np.int64)
    return _HeldOut(labels, customers, times, rng.lognormal(3.5, 1.2, n_rows).round(2))


def _list_names() -> list[str]:
    """The models of the first table, and variants for the appendix."""
    named = [*_MODELS, *(f"model {place}" for place in range(len(_MODELS), _N_MODELS))]
    return [*named, *(f"{named[0]}, variant {n}" for n in range(_N_COLUMNS - len(named)))]


def _build_results(rows: _HeldOut, rng: np.random.Generator) -> Results:
    """What an evaluation of the simulated scores gives, as `turncoat compare` has it."""
    base, days = samples.rich(), HeldOutDays((_N_DAYS,), 1.0, (rows.amounts,))
    candidates, found, columns = [], {}, {}
    for place, name in enumerate(_list_names()):
        scored = rows.score(3.2 - 0.03 * place, rng)
        candidates.append(_describe_column(name, scored))
        if place < _N_MODELS:
            columns[name] = [scored]
    traffic = days.measure_traffic(columns[_MODELS[0]])
    budgets = days.choose_budgets(traffic)
    options: Any = {"n_resamples": _N_RESAMPLES, "seed": _SEED}
    found = {name: catch_frauds(own, days, budgets, **options) for name, own in columns.items()}
    costs, deployed = Costs(), _MODELS[0]
    own = found[deployed].list_budgets(traffic, costs)
    frauds_per_day = traffic.n_frauds / _N_DAYS
    savings = [one.net_saving.value or 0.0 for one in own if one.net_saving is not None]
    summary = Summary(
        detector=deployed,
        costs=costs,
        traffic=traffic,
        curves=tuple(AlertCurve(n, one.list_budgets(traffic, costs)) for n, one in found.items()),
        shown_budget=int(np.abs(np.log(np.array(budgets) / frauds_per_day)).argmin()),
        best_budget=int(np.argmax(savings)),
        gains=found[deployed].compare(found[XGBOOST]),
        reliability=tuple(
            measure_reliability(name, columns[name][0], **options) for name in (deployed, XGBOOST)
        ),
        top_customers=tuple(_list_customers(rows, columns[deployed][0])),
    )
    test = replace(base.parts[-1], n_rows=len(rows.labels), n_frauds=traffic.n_frauds)
    maps = tuple(_widen(one, rng) for one in base.latent_maps)
    changes: Any = {"candidates": tuple(candidates), "summary": summary, "latent_maps": maps}
    return replace(base, parts=(*base.parts[:-1], test), verdict=AS_GOOD, **changes)


def _describe_column(name: str, scored: ScoredLabels) -> CandidateResult:
    estimates = {
        metric: MetricEstimate(value, (value,), None, *[(0.97 * value, 1.03 * value)] * 2)
        for metric, value in measure(scored).items()
    }
    family = "champion" if name == _MODELS[0] else "baseline"
    about = family, None, None, None, "probability", True
    return CandidateResult(name, *about, metrics=estimates, curves=compute_curves(scored))


def _list_customers(rows: _HeldOut, scored: ScoredLabels) -> Iterator[TopCustomer]:
    """The customers with the highest scores, with their last twelve transactions."""
    for row in np.argsort(-scored.scores)[:10]:
        places = np.flatnonzero(rows.customers == rows.customers[row])
        places = places[places <= row]
        path = []
        for p in places[-12:].tolist():
            moment, amount = Clock().format_moment(rows.times[p]), float(rows.amounts[p])
            path.append(PathStep(str(p), moment, amount, None, float(scored.scores[p]), 1))
        last, reasons = path[-1].probability, [Reason("amount", "above the usual", 1.0)] * 3
        yield TopCustomer(
            customer=f"customer {rows.customers[row]}",
            is_fraud=bool(rows.labels[row]),
            probability=last,
            interval=(0.9 * last, min(1.1 * last, 1.0)),
            reasons=tuple(reasons),
            counterparties={"merchant": str(row)},
            path=tuple(path),
            n_earlier=max(len(places) - 12, 0),
        )


def _widen(one: LatentMap, rng: np.random.Generator) -> LatentMap:
    """A map with as many points as a study keeps."""
    kept = rng.integers(0, len(one.x), _MAP_ROWS).tolist()
    x, y = (rng.normal(size=_MAP_ROWS).tolist() for _ in range(2))
    regimes, labels = tuple(one.regimes[k] for k in kept), tuple(one.labels[k] for k in kept)
    return replace(one, x=tuple(x), y=tuple(y), regimes=regimes, labels=labels)


def _time_slider(page_file: Path, n_budgets: int) -> dict[str, float]:
    """Milliseconds until the page is loaded, and until a moved slider is painted."""
    places = [place for _ in range(_ROUNDS) for place in range(n_budgets)]
    found: dict[str, float] = {}
    with sync_playwright() as tools:
        path = shutil.which("chromium")
        browser = tools.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        began = time.perf_counter()
        page.goto(page_file.as_uri())
        found["load_ms"] = 1000 * (time.perf_counter() - began)
        client = page.context.new_cdp_session(page)
        for name, rate in (("", 1), ("slowed_", _SLOWED)):
            client.send("Emulation.setCPUThrottlingRate", {"rate": rate})
            scripted, painted = zip(*page.evaluate(_MOVE, ["slider", places]), strict=True)
            found[f"{name}script_max_ms"] = max(scripted)
            best = [min(painted[place::n_budgets]) for place in range(n_budgets)]
            found[f"{name}painted_median_ms"] = statistics.median(painted)
            found[f"{name}painted_max_ms"] = max(painted)
            found[f"{name}slowest_place_ms"] = max(best)
        found["chromium"] = float(browser.version.partition(".")[0])
        browser.close()
    return found


def measure_report(n_rows: int) -> dict[str, float]:
    """Simulate, evaluate, write the page, move its slider."""
    rng = np.random.default_rng(_SEED)
    rows = _simulate(n_rows, rng)
    began = time.perf_counter()
    results = _build_results(rows, rng)
    evaluated = time.perf_counter()
    assert results.summary is not None
    with tempfile.TemporaryDirectory() as folder:
        page = write_report(results, samples.MANIFEST, Path(folder))
        written, size = time.perf_counter(), page.stat().st_size
        numbers = {
            "rows": n_rows,
            "frauds": results.summary.traffic.n_frauds,
            "columns": len(results.candidates),
            "budgets": len(results.summary.budgets),
            "page_bytes": size,
            "evaluate_seconds": evaluated - began,
            "write_seconds": written - evaluated,
            "peak_bytes": timing.peak_bytes(),
        }
        return numbers | _time_slider(page, len(results.summary.budgets))


def describe(machine: dict[str, Any], numbers: dict[str, float], command: str) -> str:
    """The results as Markdown."""
    size, slowest = numbers["page_bytes"], numbers["slowest_place_ms"]
    is_light = "met" if size < MAX_PAGE_BYTES else "missed"
    is_fast = "met" if slowest < MAX_REACTION_MS else "missed"
    return "\n".join(
        [
            "# Report",
            "",
            f"{machine['cpu']}, {machine['cores']} cores; load before the run "
            f"{machine['load_before']}. Made by `{command}`.",
            f"{numbers['rows']:,.0f} simulated test rows, {numbers['frauds']:,.0f} of them fraud; "
            f"{numbers['columns']:.0f} columns of scores; {numbers['budgets']:.0f} alert budgets; "
            f"Chromium {numbers['chromium']:.0f}, headless.",
            "",
            f"- page: {size / 1e6:.2f} MB (must be under {MAX_PAGE_BYTES / 1e6:.0f}): {is_light}",
            f"- metrics and summary, {_N_RESAMPLES} resamples: {numbers['evaluate_seconds']:.0f} s",
            f"- page, tables and figures: {numbers['write_seconds']:.1f} s",
            f"- peak memory: {numbers['peak_bytes'] / 2**20:,.0f} MiB",
            f"- the page opens in {numbers['load_ms']:.0f} ms",
            f"- a moved slider is painted after {slowest:.0f} ms at the slowest of its places, "
            f"best of {_ROUNDS} rounds (must be under {MAX_REACTION_MS}): {is_fast}; all moves, "
            f"on the machine as it was: median {numbers['painted_median_ms']:.0f} ms, slowest "
            f"{numbers['painted_max_ms']:.0f} ms",
            f"- with the processor slowed down {_SLOWED} times: "
            f"{numbers['slowed_slowest_place_ms']:.0f} ms; median "
            f"{numbers['slowed_painted_median_ms']:.0f} ms, slowest "
            f"{numbers['slowed_painted_max_ms']:.0f} ms",
            "",
        ]
    )


def main() -> int:
    """Run, write, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer rows; written beside the full results"
    )
    options = parser.parse_args()
    machine = timing.describe_machine()
    with Console(stderr=True).status("making the report"):
        numbers = measure_report(QUICK_ROWS if options.quick else ROWS)
    stem = "report-quick" if options.quick else "report"
    text = describe(machine, numbers, " ".join(["python -m benchmarks.report", *sys.argv[1:]]))
    (RESULTS / f"{stem}.json").write_text(
        json.dumps({"machine": machine, "results": numbers}, indent=1) + "\n"
    )
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
