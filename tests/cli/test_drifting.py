"""`turncoat drift`: verdicts on files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from turncoat.data.presets import load_preset
from turncoat.data.schema_file import write_schema
from turncoat.data.simulators.handbook import simulate_handbook

Command = Callable[..., SimpleNamespace]
FIRST_DAY = "2018-05-31"


def write_months(tmp_path: Path, **sizes: int) -> tuple[Path, Path]:
    """Two months and a third."""
    rows = simulate_handbook(15_000, 5, n_days=90, n_customers=300, **sizes)["transactions"]
    earlier, later = tmp_path / "earlier.parquet", tmp_path / "later.parquet"
    is_later = pl.col("TX_TIME_DAYS") >= 60
    rows.filter(~is_later).write_parquet(earlier)
    rows.filter(is_later).write_parquet(later)
    return earlier, later


@pytest.fixture
def months(turncoat: Command, tmp_path: Path) -> tuple[Path, Path]:
    """Two months that a detector was fitted on, and a third."""
    months = write_months(tmp_path)
    options = (
        "--states 3 --restarts 1 --max-iterations 30 --include TX_AMOUNT,amount_to_mean,hour_sin"
    )
    turncoat(f"fit earlier.parquet --config handbook {options}")
    return months


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


def test_labels_that_are_still_open_are_not_drift(turncoat: Command, tmp_path: Path) -> None:
    _, later = write_months(tmp_path, n_terminals=40)
    names = "TX_AMOUNT,amount_to_mean,hour_sin,counterparty_known_day,counterparty_known_week"
    model = f"--states 1 --restarts 1 --max-iterations 30 --include {names}"
    schema = replace(load_preset("handbook"), label_maturity_days=30.0)
    write_schema(schema, tmp_path / "turncoat.toml")
    turncoat(f"fit earlier.parquet {model}")
    command = "drift detector later.parquet --history earlier.parquet"
    shown = turncoat(command).stdout
    assert shown.startswith("stable: "), shown
    rows = pl.read_parquet(later)
    is_known = (pl.col("TX_FRAUD") == 1) & (pl.col("TRANSACTION_ID") % 3 == 0)
    labels = pl.when(is_known).then(pl.col("TX_FRAUD"))
    rows.with_columns(TX_FRAUD=labels).write_parquet(later)
    told, verdict = turncoat(command).stdout.splitlines()[:2]
    assert told.startswith("Please note: labels of the last days are not known yet")
    assert verdict.startswith("stable: ")
    report = json.loads(turncoat(f"{command} --json").stdout)
    assert any("labels of the last days" in note for note in report["notes"])
    assert report["score"]["verdict"] == "not judged"
    rows.with_columns(pl.col("TX_AMOUNT") * 10, TX_FRAUD=labels).write_parquet(later)
    assert json.loads(turncoat(f"{command} --json").stdout)["verdict"] == "drifted"


def test_rows_before_a_time_are_history(turncoat: Command, months: tuple[Path, Path]) -> None:
    both = "earlier.parquet later.parquet"
    by_time = turncoat(f"drift detector {both} --from {FIRST_DAY} --json").stdout
    by_file = turncoat("drift detector later.parquet --history earlier.parquet --json").stdout
    assert json.loads(by_time)["regimes"] == json.loads(by_file)["regimes"]
    refusal = turncoat(f"drift detector {both} --from 2030-01-01", status=3).stderr
    assert "no transaction is at or after --from 2030-01-01" in refusal
