"""Compares our simulation of the Handbook's process with four months of its published output.

The published file is one draw of the process. Simulating several seeds shows how far two draws may
differ: z is the published value's distance from their mean, in standard deviations of such a
distance.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from benchmarks.handbook_data import parse_with_data
from turncoat.data.simulators.handbook import (
    DAY_SECONDS,
    PUBLISHED_PROCESS,
    HandbookSize,
    simulate_published_process,
)

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SEEDS = 100  # with 20 the standard deviations themselves are too uncertain to speak of 4 of them
MAX_Z = 4.0
WORLD = HandbookSize()
SCENARIOS = {1: "large amount", 2: "terminal compromised", 3: "customer compromised"}
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class Run:
    """Statistics of one draw of the process, and counts to compare distributions with."""

    figures: dict[str, float]
    counts: dict[str, NDArray[np.int64]]


@dataclass(frozen=True)
class StatisticRow:
    """One statistic: published, and over the simulated seeds."""

    statistic: str
    published: float
    mean: float
    sd: float

    @property
    def z(self) -> float:
        """Distance of the published draw from the simulated ones; a new draw has variance 1."""
        spread = self.sd * np.sqrt(1 + 1 / SEEDS)
        return (
            float((self.published - self.mean) / spread)
            if spread
            else (0.0 if self.published == self.mean else float("inf"))
        )

    @property
    def matches(self) -> bool:
        return abs(self.z) <= MAX_Z


def measure(rows: pl.DataFrame) -> Run:
    """All figures of one draw. `rows` has the published columns."""
    day, scenario, amount = (
        rows[name].to_numpy() for name in ("TX_TIME_DAYS", "TX_FRAUD_SCENARIO", "TX_AMOUNT")
    )
    n_days = int(day.max()) + 1
    per_day = np.bincount(day, minlength=n_days)
    figures = {"rows per day, mean": per_day.mean(), "rows per day, sd": per_day.std(ddof=1)}
    figures |= _fraud(day, scenario)
    figures |= {f"amount, {q:.1%} quantile": np.quantile(amount, q) for q in QUANTILES}
    figures |= {"amount, mean": amount.mean(), "amount, sd": amount.std()}
    figures |= _within_customers(rows)
    figures |= {
        f"amount in scenario {s} ({name}), mean": amount[scenario == s].mean()
        for s, name in SCENARIOS.items()
    }
    for column, size in (("CUSTOMER_ID", WORLD.n_customers), ("TERMINAL_ID", WORLD.n_terminals)):
        who = column.removesuffix("_ID").lower()
        rates = np.bincount(rows[column].to_numpy(), minlength=size) / n_days
        figures |= {
            f"rows per {who} and day, sd": rates.std(),
            f"{who}s without a row": np.count_nonzero(rates == 0),
        }
        figures |= {
            f"rows per {who} and day, {q:.0%} quantile": np.quantile(rates, q)
            for q in (0.05, 0.25, 0.5, 0.75, 0.95)
        }
    for scenario_of, column in ((2, "TERMINAL_ID"), (3, "CUSTOMER_ID")):
        hit = rows.filter(pl.col("TX_FRAUD_SCENARIO") == scenario_of)[column].n_unique()
        figures[f"{column.removesuffix('_ID').lower()}s with a fraud of scenario {scenario_of}"] = (
            hit
        )
    figures["terminals used by a customer, mean"] = (
        rows.group_by("CUSTOMER_ID").agg(pl.col("TERMINAL_ID").n_unique())["TERMINAL_ID"].mean()
    )
    seconds = rows["TX_TIME_SECONDS"].to_numpy() % DAY_SECONDS
    figures |= {"second of day, mean": seconds.mean(), "second of day, sd": seconds.std()}
    by_hours = np.bincount(seconds // (3 * 3600), minlength=8) / len(seconds)
    figures |= {
        f"share from {3 * i:02d} to {3 * i + 3:02d} h": share for i, share in enumerate(by_hours)
    }
    counts = {
        "amount": np.bincount(np.round(amount * 100).astype(np.int64), minlength=1_000_000),
        "second of day": np.bincount(seconds, minlength=DAY_SECONDS),
        "rows per customer": np.bincount(
            np.bincount(rows["CUSTOMER_ID"].to_numpy(), minlength=WORLD.n_customers),
            minlength=2_000,
        ),
        "rows per terminal": np.bincount(
            np.bincount(rows["TERMINAL_ID"].to_numpy(), minlength=WORLD.n_terminals),
            minlength=2_000,
        ),
    }
    return Run({name: float(value) for name, value in figures.items()}, counts)


def _fraud(day: NDArray[Any], scenario: NDArray[Any]) -> dict[str, float]:
    """Fraud rates of all days, of the first ones, and once the compromised are stationary."""
    figures: dict[str, float] = {}
    customer_days = PUBLISHED_PROCESS.customer_window_days
    terminal_days = PUBLISHED_PROCESS.terminal_window_days
    periods = {
        "all days": day >= 0,
        f"first {customer_days} days": day < customer_days,
        f"from day {terminal_days} on": day >= terminal_days,
    }
    for period, inside in periods.items():
        figures[f"fraud rate, {period}"] = float(np.mean(scenario[inside] > 0))
        figures |= {
            f"fraud rate of scenario {s} ({name}), {period}": float(np.mean(scenario[inside] == s))
            for s, name in SCENARIOS.items()
        }
    return figures


def _within_customers(rows: pl.DataFrame) -> dict[str, float]:
    """Amounts in units of the customer's own mean: free of which customers happened to be drawn."""
    own = rows.filter(pl.col("TX_FRAUD_SCENARIO") != 3)
    mean, count = pl.col("TX_AMOUNT").mean().over("CUSTOMER_ID"), pl.len().over("CUSTOMER_ID")
    ratios = own.filter(count >= 50).select(pl.col("TX_AMOUNT") / mean).to_series().to_numpy()
    return {
        f"amount ÷ the customer's mean, {q:.1%} quantile": float(np.quantile(ratios, q))
        for q in QUANTILES
    }


def compare(published: Run, simulated: Sequence[Run]) -> list[StatisticRow]:
    """A row for each statistic, and for each distribution its distance from the simulated ones."""
    lines = []
    for name, value in published.figures.items():
        values = np.array([run.figures[name] for run in simulated])
        lines.append(StatisticRow(name, value, values.mean(), values.std(ddof=1)))
    for name, counts in published.counts.items():
        together = np.sum([run.counts[name] for run in simulated], axis=0)
        distances = np.array(
            [_distance(run.counts[name], together - run.counts[name]) for run in simulated]
        )
        lines.append(
            StatisticRow(
                f"{name}, Kolmogorov-Smirnov distance",
                _distance(counts, together),
                distances.mean(),
                distances.std(ddof=1),
            )
        )
    return lines


def _distance(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    return float(np.abs(np.cumsum(one) / one.sum() - np.cumsum(other) / other.sum()).max())


def simulate(seed: int, n_days: int) -> Run:
    """The first days of one simulated run of the published size."""
    made = simulate_published_process(
        seed, WORLD._replace(n_days=n_days + 1)
    )  # nothing is drawn on the last day of a run
    rows = made["transactions"].hstack([made["truth"]["TX_FRAUD_SCENARIO"]])
    return measure(rows.filter(pl.col("TX_TIME_DAYS") < n_days))


def report(lines: Sequence[StatisticRow], n_days: int) -> str:
    """The comparison as Markdown."""
    worst = max(lines, key=lambda line: abs(line.z))
    outside = sum(not line.matches for line in lines)
    verdict = (
        f"All {len(lines)} statistics match"
        if not outside
        else f"{outside} of {len(lines)} statistics do not match"
    )
    table = [
        f"| {line.statistic} | {line.published:.6g} | {line.mean:.6g} | {line.sd:.3g} "
        f"| {line.z:+.2f} | {'yes' if line.matches else 'NO'} |"
        for line in lines
    ]
    return "\n".join(
        [
            "# Handbook simulator and the published data",
            "",
            f"{verdict}: |z| is at most {abs(worst.z):.2f} ({worst.statistic}); "
            f"beyond {MAX_Z:g} is a mismatch.",
            "",
            f"The first {n_days} days of the published run of {WORLD.n_customers:,} customers at "
            f"{WORLD.n_terminals:,} terminals, next to {SEEDS} simulated runs of that size. z is "
            "the published value minus the simulated mean, in standard deviations of the "
            "difference between one draw and that mean. A Kolmogorov-Smirnov distance is to all "
            "(other) simulated runs together. "
            "Made by `python -m benchmarks.handbook --data FILE`.",
            "",
            "| statistic | published | simulated mean | simulated sd | z | match |",
            "|---|---|---|---|---|---|",
            *table,
            "",
        ]
    )


def main() -> int:
    """Compare, print and write; 1 if a statistic does not match, 2 without published data."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.handbook", description=__doc__.splitlines()[0]
    )
    data = parse_with_data(parser).data
    rows = pl.read_parquet(data)
    n_days = int(rows["TX_TIME_DAYS"].to_numpy().max()) + 1
    lines = compare(measure(rows), [simulate(seed, n_days) for seed in range(SEEDS)])
    text = report(lines, n_days)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "handbook_simulator.md").write_text(text)
    numbers = [{**vars(line), "z": line.z, "match": line.matches} for line in lines]
    found = {
        "data": data.name,
        "days": n_days,
        "seeds": SEEDS,
        "largest_z_allowed": MAX_Z,
        "statistics": numbers,
    }
    (RESULTS / "handbook_simulator.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(line.matches for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
