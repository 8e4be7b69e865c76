"""Does drift stay silent on stationary streams, and does it find injected changes?

Each seed simulates five months of the Handbook's process. All customers and terminals are seen
first in the first days, so every history grows until the end. A detector is fitted and calibrated
on the first three months; the last two are watched in order of time, with a look after each week.
A stream counts as stable only if every look that has enough transactions says so. A change begins
with the fourth month; it counts as found if the last look says "watch" or "drifted".
The trees see features that grow, so their scores are not judged; their regimes and features are,
and these are the same as without trees. Not among the changes is a field that is missing more
often: drift does not watch that.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from turncoat import Detector, VariationalHMM
from turncoat.data import Transactions, read
from turncoat.data.simulators.handbook import PUBLISHED_PROCESS, FraudProcess, simulate_handbook
from turncoat.data.splits import DAY, split_by_customer, split_by_time
from turncoat.features import Features
from turncoat.scoring.drift import (
    DRIFTED,
    HALF_LIFE,
    STABLE,
    TOO_FEW,
    WATCH,
    DriftReport,
    watch_periods,
)

RESULTS = Path(__file__).parent / "results"
N_DAYS, FIRST_WATCHED, LOOK_DAYS = 150, 90, 7
N_ROWS, N_CUSTOMERS = 25_000, 400
FRAUD_WAVE = replace(PUBLISHED_PROCESS, customer_hazard_per_day=20 * 3 / 5000)
ALARMS = (WATCH, DRIFTED)
AMOUNT, TERMINAL, DATE, DAYS = "TX_AMOUNT", "TERMINAL_ID", "TX_DATETIME", "TX_TIME_DAYS"


class Variant(NamedTuple):
    """A kind of detector, and how its data are split."""

    kind: str
    split: str

    def fit(
        self, transactions: Transactions, seed: int, include: list[str] | None = None
    ) -> Detector:
        rows = transactions.customer_codes, transactions.times, transactions.labels
        if self.split == "time":
            split = split_by_time(*rows, test=0.0)
        else:
            split = split_by_customer(*rows, test=0.0, seed=seed)
        model = VariationalHMM(4, n_restarts=1, max_iter=60, n_threads=1, random_state=seed)
        return Detector(Features(include=include), model, kind=self.kind).fit(transactions, split)


VARIANTS = {
    "regimes, split by time": Variant("regimes", "time"),
    "regimes, split by customer": Variant("regimes", "customer"),
    "trees, split by time": Variant("ranker", "time"),
}


def simulate(
    seed: int, process: FraudProcess = PUBLISHED_PROCESS, n_rows: int = N_ROWS
) -> pl.DataFrame:
    """Five months of payments."""
    size: Any = {"n_days": N_DAYS, "n_customers": N_CUSTOMERS}
    return simulate_handbook(n_rows, seed, process=process, **size)["transactions"]


def change_where_watched(column: str, value: pl.Expr) -> Callable[[int], pl.DataFrame]:
    """Streams with another value of a column in the watched months."""
    changed = pl.when(pl.col(DAYS) >= FIRST_WATCHED).then(value).otherwise(pl.col(column))
    return lambda seed: simulate(seed).with_columns(changed.alias(column))


def raise_fraud(seed: int) -> pl.DataFrame:
    """Twenty times as many customers are compromised per day; the payments are the same."""
    is_watched = pl.col(DAYS) >= FIRST_WATCHED
    return pl.concat(
        [simulate(seed).filter(~is_watched), simulate(seed, FRAUD_WAVE).filter(is_watched)]
    )


def raise_activity(seed: int) -> pl.DataFrame:
    """Twice as many payments per customer: every second one before the change is dropped."""
    is_kept = (pl.col(DAYS) >= FIRST_WATCHED) | (pl.col("TRANSACTION_ID") % 2 == 0)
    return simulate(seed, n_rows=2 * N_ROWS).filter(is_kept)


def _is_chosen(share: float) -> pl.Expr:
    """A share of the payments, spread evenly."""
    return pl.col("TRANSACTION_ID") % 100 < 100 * share


CHANGES: dict[str, Callable[[int], pl.DataFrame]] = {
    "amounts are 1.5 times as large": change_where_watched(AMOUNT, 1.5 * pl.col(AMOUNT)),
    "twice as many payments per customer": raise_activity,
    "twenty times as many customers are compromised": raise_fraud,
    "half of the payments go to ten new terminals": change_where_watched(
        TERMINAL,
        pl.when(_is_chosen(0.5))
        .then(10**6 + pl.col("TRANSACTION_ID") % 10)
        .otherwise(pl.col(TERMINAL)),
    ),
    "the clock is eight hours ahead": change_where_watched(
        DATE, pl.col(DATE) + pl.duration(hours=8)
    ),
}


def watch(detector: Detector, transactions: Transactions, begin: float) -> list[DriftReport]:
    """What drift says after each week from `begin` on, having seen the weeks before."""
    times = transactions.times
    weeks = [
        np.flatnonzero((times >= start) & (times < start + LOOK_DAYS * DAY))
        for start in np.arange(begin, times.max(), LOOK_DAYS * DAY)
    ]
    return watch_periods(detector, transactions, weeks, HALF_LIFE)


def is_stable(reports: list[DriftReport]) -> bool:
    """Whether there is a verdict, and no look says anything but stable."""
    return {STABLE} <= {report.verdict for report in reports} <= {STABLE, TOO_FEW}


def list_causes(report: DriftReport) -> set[str]:
    """What a report finds changed."""
    found = {"scores"} if report.score.verdict in ALARMS else set()
    for regime in report.regimes:
        found |= {"share of a regime"} if regime.verdict in ALARMS else set()
        found |= {one.feature for one in regime.features if one.verdict in ALARMS}
    return found


def run_seed(seed: int, variants: dict[str, Variant], changes: list[str]) -> dict[str, Any]:
    """Per variant: whether the stationary stream is stable, and which changes are found."""
    streams = {"": simulate(seed), **{name: CHANGES[name](seed) for name in changes}}
    data = {name: read(frame, "handbook") for name, frame in streams.items()}
    found: dict[str, Any] = {}
    for title, variant in variants.items():
        fitted: dict[str, Detector] = {}
        own: dict[str, Any] = {}
        for name, transactions in data.items():
            begin = np.floor(transactions.times.min() / DAY) * DAY + FIRST_WATCHED * DAY
            known = transactions.take(np.flatnonzero(transactions.times < begin))
            # All other changes leave the first three months as they are.
            key = name if name and CHANGES[name] is raise_activity else ""
            if key not in fitted:
                fitted[key] = variant.fit(known, seed)
            reports = watch(fitted[key], transactions, begin)
            looks = reports[-1:] if name else reports
            own[name] = {
                "stable": is_stable(reports),
                "found": reports[-1].verdict in ALARMS,
                "changed": sorted(set().union(*map(list_causes, looks))),
            }
        found[title] = own
    return found


def summarize(runs: list[dict[str, Any]], change_runs: int) -> dict[str, Any]:
    """Counts over the seeds."""
    summary: dict[str, Any] = {}
    for title in runs[0]:
        stationary = [run[title][""] for run in runs]
        alarms = Counter(cause for one in stationary for cause in one["changed"])
        changes = {}
        for name in CHANGES:
            own = [run[title][name] for run in runs[:change_runs]]
            causes = Counter(cause for one in own for cause in one["changed"])
            found = sum(one["found"] for one in own)
            changes[name] = {"found": found, "of": len(own), "by": dict(causes.most_common(3))}
        stable = sum(one["stable"] for one in stationary)
        summary[title] = {
            "stable": stable,
            "of": len(stationary),
            "false_alarms": dict(alarms.most_common()),
            "changes": changes,
        }
    return summary


def build_page(summary: dict[str, Any]) -> str:
    """The tables, in Markdown."""
    lines = ["# Drift on stationary and on changed streams", ""]
    lines += [f"Made by `python -m benchmarks.drift`. {' '.join((__doc__ or '').split())}", ""]
    lines += [
        "## Stationary streams",
        "",
        "| detector | stable | false alarms by |",
        "|---|---|---|",
    ]
    for title, own in summary.items():
        alarms = ", ".join(f"{name} ({n})" for name, n in own["false_alarms"].items()) or "none"
        lines.append(f"| {title} | {own['stable']} of {own['of']} | {alarms} |")
    lines += ["", "## Changed streams", ""]
    lines += [f"| change | {' | '.join(f'found: {title}' for title in summary)} |"]
    lines += ["|---" * (1 + len(summary)) + "|"]
    for name in CHANGES:
        cells = [own["changes"][name] for own in summary.values()]
        shown = " | ".join(f"{one['found']} of {one['of']}" for one in cells)
        lines.append(f"| {name} | {shown} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="stationary streams")
    parser.add_argument("--changed-seeds", type=int, default=20, help="streams per change")
    options = parser.parse_args()
    runs = []
    for seed in range(options.seeds):
        changes = list(CHANGES) if seed < options.changed_seeds else []
        runs.append(run_seed(seed, VARIANTS, changes))
        print(seed, {title: own[""]["changed"] for title, own in runs[-1].items()}, flush=True)
    summary = summarize(runs, options.changed_seeds)
    page = build_page(summary)
    (RESULTS / "drift.json").write_text(json.dumps(summary, indent=1) + "\n")
    (RESULTS / "drift.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
