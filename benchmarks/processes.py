"""Data sets that vary the Handbook's fraud process, to see where a model's advantage comes from.

Each process differs from the published one in one respect. Hazards are adjusted so that all have
about as many frauds: a model then sees as many examples, only of another kind. Every process comes
with three label delays. Equal seeds share customers, terminals and payments before fraud.

`python -m benchmarks.processes` prints each process with its frauds.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np
import polars as pl

from turncoat.data.simulators.handbook import PUBLISHED_PROCESS, FraudProcess, simulate_handbook

N_ROWS, N_DAYS = 180_000, 120  # about 780 customers and 1,570 terminals, as dense as published
TEST_DAYS = 28  # the last days, meant for testing: long windows are as common as they get by then
LABEL_DELAYS_DAYS = (1, 7, 30)
TERMINAL_HAZARD = PUBLISHED_PROCESS.terminal_hazard_per_day
CUSTOMER_HAZARD = PUBLISHED_PROCESS.customer_hazard_per_day


class Setting(NamedTuple):
    """A fraud process and the days after which a label is known. Pairs of name and delay differ."""

    name: str
    description: str
    process: FraudProcess
    label_delay_days: int

    def simulate(self, seed: int) -> pl.DataFrame:
        """Transactions [N_ROWS] with the Handbook's columns. The label delay does not matter."""
        return self.simulate_with_truth(seed)["transactions"]

    def simulate_with_truth(self, seed: int) -> dict[str, pl.DataFrame]:
        """The tables `transactions` and `truth`, rows in the same order."""
        return simulate_handbook(N_ROWS, seed, n_days=N_DAYS, process=self.process)


def build_windows_process(days: int) -> FraudProcess:
    """All windows with a fixed length, and as many compromised at a time as published."""
    return FraudProcess(
        terminal_window_days=days,
        customer_window_days=days,
        terminal_hazard_per_day=TERMINAL_HAZARD * PUBLISHED_PROCESS.terminal_window_days / days,
        customer_hazard_per_day=CUSTOMER_HAZARD * PUBLISHED_PROCESS.customer_window_days / days,
    )


PROCESSES = {
    "published": ("the published process", PUBLISHED_PROCESS),
    "short windows": (
        "terminals and customers are compromised for 5 days, more of them",
        build_windows_process(5),
    ),
    "long windows": (
        "terminals and customers are compromised for 60 days, fewer of them",
        build_windows_process(60),
    ),
    "exponential windows": (
        "windows with the published means (28 and 14 days) and exponential lengths",
        FraudProcess(window_distribution="exponential"),
    ),
    "weak factor": (
        "the thief's amounts are 2 times the customer's, not 5",
        FraudProcess(amount_factor=2),
    ),
    "weak share": (
        "a quarter of a compromised terminal's payments and a tenth of a customer's are fraud; "
        "more terminals and customers are compromised",
        FraudProcess(
            terminal_fraud_share=1 / 4,
            customer_fraud_share=1 / 10,
            terminal_hazard_per_day=TERMINAL_HAZARD * 4,
            customer_hazard_per_day=CUSTOMER_HAZARD * 10 / 3,
        ),
    ),
    "no counterparty effect": (
        "no terminal is compromised, and three times as many customers are",
        FraudProcess(terminal_hazard_per_day=0, customer_hazard_per_day=CUSTOMER_HAZARD * 3),
    ),
    "no customer effect": (
        "no customer is compromised, and one and a half times as many terminals are",
        FraudProcess(terminal_hazard_per_day=TERMINAL_HAZARD * 1.5, customer_hazard_per_day=0),
    ),
}
SETTINGS = tuple(
    Setting(name, description, process, delay)
    for name, (description, process) in PROCESSES.items()
    for delay in LABEL_DELAYS_DAYS
)


def count_frauds(setting: Setting, seed: int) -> dict[str, int]:
    """Rows and frauds of all days, and rows and frauds by scenario of the last `TEST_DAYS`."""
    tables = setting.simulate_with_truth(seed)
    day, fraud = (tables["transactions"][name] for name in ("TX_TIME_DAYS", "TX_FRAUD"))
    scenario = tables["truth"].filter(day >= N_DAYS - TEST_DAYS)["TX_FRAUD_SCENARIO"]
    return {
        "rows": len(day),
        "frauds": int(fraud.sum()),
        "test rows": len(scenario),
        "test frauds": int((scenario > 0).sum()),
        **{f"scenario {number}": int((scenario == number).sum()) for number in (1, 2, 3)},
    }


def build_table(n_seeds: int) -> str:
    """A Markdown table of the processes: means over the seeds, and the range of test frauds."""
    lines = []
    for setting in SETTINGS:
        if setting.label_delay_days != LABEL_DELAYS_DAYS[0]:
            continue  # the data are the same for every label delay
        counts = [count_frauds(setting, seed) for seed in range(n_seeds)]
        cells = {name: f"{np.mean([c[name] for c in counts]):,.0f}" for name in counts[0]}
        found = [count["test frauds"] for count in counts]
        cells["test frauds"] += f" ({min(found)} to {max(found)})"
        lines.append(f"| {setting.name} | {setting.description} | {' | '.join(cells.values())} |")
    titles = ["process", "description", *cells]
    return "\n".join([f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", *lines])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.processes", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seeds", type=int, default=5, help="data sets per process (default 5)")
    print(build_table(parser.parse_args().seeds))


if __name__ == "__main__":
    main()
