"""`turncoat fit` with a label delay as long as that of chargebacks."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from turncoat.data.simulators.handbook import FraudProcess, simulate_handbook

BUSY = FraudProcess(terminal_hazard_per_day=0.004, customer_hazard_per_day=0.004)
MODEL = "--states 2 --restarts 1 --max-iterations 5 --include TX_AMOUNT,amount_to_mean"


@pytest.fixture(scope="module")
def half_a_year(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 180 days of payments, every seventh of them fraud."""
    path = tmp_path_factory.mktemp("data") / "payments.parquet"
    simulate_handbook(6000, 1, n_days=180, process=BUSY)["transactions"].write_parquet(path)
    return path


def test_parts_are_sized_to_a_delay_of_120_days(turncoat, half_a_year):
    command = f"fit {half_a_year} --config handbook --label-delay-days 120 {MODEL}"
    shown = " ".join(turncoat(command).stdout.split())
    assert "by time, sized to the gap" in shown
    assert "With a label delay of 120 days, the parts share the" in shown
    assert "of 6,000 rows outside the gap before the test." in shown
    found = json.loads(turncoat(f"{command} --split time --json").stdout)
    assert all(part["frauds"] >= 10 for part in found["split"].values())
    assert found["split"]["excluded"]["rows"] == pytest.approx(4000, abs=200)
    usual = " ".join(turncoat(command.replace("120", "30")).stdout.split())
    assert "by time;" in usual
    assert "outside the gap" not in usual


def test_a_delay_that_does_not_fit_is_refused_with_the_largest_that_does(turncoat, half_a_year):
    command = f"fit {half_a_year} --config handbook --split time {MODEL} --label-delay-days"
    said = " ".join(turncoat(f"{command} 300", status=3).stderr.split())
    assert "a gap (label delay) of 300 days before the test leaves a part of 180 days" in said
    days = int(said.split("At most ")[1].split()[0])
    assert 150 < days < 180
    turncoat(f"{command} {days}")
    turncoat(f"{command} {days + 1}", status=3)


def test_an_automatic_split_by_customer_says_which_delay_would_do(turncoat, half_a_year):
    command = f"fit {half_a_year} --config handbook {MODEL} --label-delay-days"
    shown = " ".join(turncoat(f"{command} 300").stdout.split())
    assert "Split by customer: by time, with a label delay of 300 days, a part would" in shown
    days = int(shown.split("with at most ")[1].split()[0])
    assert "by time" in turncoat(f"{command} {days}").stdout.splitlines()[1]
    assert "by customer" in turncoat(f"{command} {days + 1}").stdout


def test_a_fit_names_the_delay_that_open_labels_show(turncoat, half_a_year, tmp_path):
    rows = pl.read_parquet(half_a_year)
    is_open = pl.col("TX_TIME_DAYS") >= 150
    rows.with_columns(TX_FRAUD=pl.when(~is_open).then("TX_FRAUD")).write_parquet(
        tmp_path / "open.parquet"
    )
    command = f"fit open.parquet --config handbook {MODEL}"
    shown = " ".join(turncoat(command).stdout.split())
    assert "Outcomes are known after about 30 days, and the fit assumes a label delay of 7" in shown
    assert "`--label-delay-days 30`" in shown
    shown = turncoat(f"{command} --label-delay-days 30").stdout
    assert "their labels are open" in shown
    assert "Outcomes are known" not in shown
