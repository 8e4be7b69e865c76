"""`turncoat drift`: verdicts on files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from turncoat.data.simulators.handbook import simulate_handbook

Command = Callable[..., SimpleNamespace]
FIRST_DAY = "2018-05-31"


@pytest.fixture
def months(turncoat: Command, tmp_path: Path) -> tuple[Path, Path]:
    """Two months that a detector was fitted on, and a third."""
    rows = simulate_handbook(15_000, 5, n_days=90, n_customers=300)["transactions"]
    earlier, later = tmp_path / "earlier.parquet", tmp_path / "later.parquet"
    is_later = pl.col("TX_TIME_DAYS") >= 60
    rows.filter(~is_later).write_parquet(earlier)
    rows.filter(is_later).write_parquet(later)
    options = (
        "--states 3 --restarts 1 --max-iterations 30 --include TX_AMOUNT,amount_to_mean,hour_sin"
    )
    turncoat(f"fit earlier.parquet --config handbook {options}")
    return earlier, later


def test_a_file_is_stable_or_drifted(turncoat: Command, months: tuple[Path, Path]) -> None:
    shown = turncoat("drift detector later.parquet --history earlier.parquet").stdout
    assert shown.startswith("stable: "), shown
    assert shown.endswith("Nothing to do.\n")
    rows = pl.read_parquet(months[1])
    rows.with_columns(pl.col("TX_AMOUNT") * 10).write_parquet(months[1])
    shown = turncoat("drift detector later.parquet --history earlier.parquet").stdout
    assert shown.startswith("drifted: "), shown
    assert "TX_AMOUNT: mean moved by +" in shown
    found = turncoat("drift detector later.parquet --history earlier.parquet --json").stdout
    report = json.loads(found)
    assert report["verdict"] == "drifted"
    assert report["warnings"] == []


def test_rows_before_a_time_are_history(turncoat: Command, months: tuple[Path, Path]) -> None:
    both = "earlier.parquet later.parquet"
    by_time = turncoat(f"drift detector {both} --from {FIRST_DAY} --json").stdout
    by_file = turncoat("drift detector later.parquet --history earlier.parquet --json").stdout
    assert json.loads(by_time)["regimes"] == json.loads(by_file)["regimes"]
    refusal = turncoat(f"drift detector {both} --from 2030-01-01", status=3).stderr
    assert "no transaction is at or after --from 2030-01-01" in refusal
