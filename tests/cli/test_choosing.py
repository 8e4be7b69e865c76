"""`turncoat fit` without model options, and `turncoat evaluate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.evaluation.samples import make_portfolio
from turncoat import load
from turncoat.cli import app
from turncoat.cli.choosing import parse_budget
from turncoat.data import read
from turncoat.evaluation import chain_search
from turncoat.evaluation import champion as champions
from turncoat.evaluation.verdict import DETECTOR, SHOWN, describe_verdict
from turncoat.models import boosting, tuning

BEGIN = 1_704_067_200  # 2024-01-01
VERDICTS = ("better", "as good", "worse", "no better than chance")


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    """Short searches on one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "MAX_ROUNDS", 40)
        for module in (champions, chain_search, boosting):
            patch.setattr(module, "available_threads", lambda: 1)
        yield


def write_payments(folder: Path, n_customers: int = 100) -> None:
    """payments.csv with dates, and its turncoat.toml as `turncoat init` writes it."""
    frame = make_portfolio(n_customers).with_columns(
        at=pl.from_epoch((pl.col("at") + BEGIN).cast(pl.Int64)).dt.strftime("%Y-%m-%d %H:%M:%S")
    )
    frame.write_csv(folder / "payments.csv")
    names = "customer = 'who'\ntime = 'at'\nlabel = 'fraud'\namount = 'paid'\nid = 'id'\n"
    columns = "continuous = ['paid', 'age']\ncategorical = ['device']\ncounterparties = ['shop']\n"
    (folder / "turncoat.toml").write_text(f"[schema]\n{names}{columns}")


def parse(text: str) -> Any:
    """Strict JSON, without NaN or infinity."""
    return json.loads(text, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A folder with payments and the detector that `turncoat fit payments.csv` chose."""
    folder = tmp_path_factory.mktemp("chosen")
    write_payments(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        found = CliRunner().invoke(app, ["fit", "payments.csv", "--quick"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return SimpleNamespace(folder=folder, stdout=found.stdout)


def test_a_file_beside_its_schema_needs_no_options(chosen, turncoat, tmp_path):
    shown, where = chosen.stdout, chosen.folder
    assert "Chosen on the selection part" in shown
    assert "On the test part, which nothing was fitted or chosen on:" in shown
    assert any(f"Verdict: {' '.join(describe_verdict(one, DETECTOR))}" in shown for one in VERDICTS)
    assert "fitted again to all rows" in shown
    assert "Saved to detector. Next: turncoat score detector payments.csv" in shown
    detector, data = where / "detector", where / "payments.csv"
    turncoat(f"score {detector} {data} --out scores.parquet")
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    found = load(detector).score(read(data, str(where / "turncoat.toml")))
    np.testing.assert_array_equal(scores["probability"], found.probability)
    assert scores["probability"].mean() == pytest.approx(found.labels.mean(), rel=0.5)
    customer = scores["customer"][0]
    told = turncoat(f"explain {detector} {data} --customer {customer} --last 2 --json").stdout
    assert parse(told)["explanations"][-1]["reasons"]
    text = turncoat(f"evaluate {detector} {data}").stdout
    assert "average precision" in text
    assert "Please note" in text


def test_a_saved_choice_is_fitted_to_all_rows_unless_told_otherwise(chosen, turncoat, tmp_path):
    write_payments(tmp_path)
    first = turncoat("fit payments.csv --trials 1 --kind regimes --json --no-refit --out test-left")
    summary = parse(first.stdout)
    assert summary["refitted"] is False
    assert summary["kind"] == "regimes"
    assert summary["split"]["test"]["rows"] > 0
    assert {one["kind"] for one in summary["kinds"]} == {"regimes"}
    assert summary["evidence_weights"]
    figures = summary["test"]["models"]
    assert figures.keys() == {"detector", "XGBoost", "logistic regression"}
    assert figures["detector"].keys() == SHOWN.keys()
    low, high = figures["detector"]["average_precision"]["interval"]
    assert 0 <= low <= figures["detector"]["average_precision"]["value"] <= high <= 1
    assert summary["test"]["verdict"] in VERDICTS
    left, whole = load(tmp_path / "test-left"), load(chosen.folder / "detector")
    assert left.calibration_.time_range[1] < whole.calibration_.time_range[1]


def test_the_choice_is_repeatable_and_says_that_it_replaced(turncoat, tmp_path):
    write_payments(tmp_path, 80)
    fit = "fit payments.csv --trials 1 --kind ranker --seed 5"
    turncoat(fit)
    first = load(tmp_path / "detector").digest_
    assert "Replaced the detector in detector" in turncoat(fit).stdout
    assert load(tmp_path / "detector").digest_ == first


def test_options_that_do_not_fit_together_are_refused(turncoat, tmp_path):
    write_payments(tmp_path)
    for options, words in (
        ("--budget abc", "--budget is 'abc'; it must be a time above 0, such as 90s, 5m or 1h"),
        ("--budget 0s", "--budget is '0s'"),
        ("--budget 5", "--budget is '5'"),
        ("--states 4 --budget 1m", "--budget is for choosing a detector, and --states chooses one"),
        ("--include paid --quick", "--quick is for choosing a detector, and --include chooses one"),
        ("--supervision anchored --trials 2", "--trials is for choosing a detector"),
        ("--tier baum-welch --no-refit", "--refit is for choosing a detector"),
        ("--trials -1", "max_trials is -1"),
    ):
        assert words in turncoat(f"fit payments.csv {options}", status=2).stderr
    assert not (tmp_path / "detector").exists()


def test_a_budget_that_is_exceeded_is_said(turncoat, tmp_path):
    write_payments(tmp_path, 80)
    told = "This took longer than the budget: it is the least that can be tried."
    fit = "fit payments.csv --kind regimes --no-refit"
    assert told in turncoat(f"{fit} --budget 0.01s").stdout
    assert told not in turncoat(f"{fit} --budget 0.01s --trials 1").stdout


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1.5h", 5400)])
def test_budgets_are_times(text: str, seconds: float):
    assert parse_budget(text) == seconds


def test_the_schema_is_looked_for_beside_the_data_and_here(turncoat, tmp_path):
    (tmp_path / "far").mkdir()
    write_payments(tmp_path / "far")
    turncoat("fit far/payments.csv --states 2 --restarts 1 --max-iterations 2 --out beside")
    (tmp_path / "far" / "turncoat.toml").rename(tmp_path / "turncoat.toml")
    turncoat("fit far/payments.csv --states 2 --restarts 1 --max-iterations 2 --out here")
    assert load(tmp_path / "here").digest_ == load(tmp_path / "beside").digest_
    (tmp_path / "turncoat.toml").unlink()
    refused = turncoat("fit far/payments.csv", status=2).stderr
    assert "there is no turncoat.toml beside far/payments.csv or here" in refused
    assert "`turncoat init far/payments.csv` writes one; or give --config" in refused


def test_a_file_without_fraud_in_a_part_is_refused_with_counts(turncoat, tmp_path):
    write_payments(tmp_path)
    frame = pl.read_csv(tmp_path / "payments.csv")
    frame.with_columns(fraud=(pl.col("id") == 1900).cast(int)).write_csv(tmp_path / "payments.csv")
    refused = turncoat("fit payments.csv --quick", status=3).stderr
    assert "part has 0 known frauds" in refused
    assert not (tmp_path / "detector").exists()


def test_evaluate_from_a_date_or_seconds(chosen, turncoat):
    command = f"evaluate {chosen.folder / 'detector'} {chosen.folder / 'payments.csv'}"
    whole = parse(turncoat(f"{command} --json").stdout)
    n_rows, n_frauds = whole["n_rows"], whole["n_frauds"]
    by_date = parse(turncoat(f"{command} --from 2024-02-15 --json").stdout)
    later = pl.read_csv(chosen.folder / "payments.csv").filter(pl.col("at") >= "2024-02-15")
    assert by_date["n_rows"] == len(later) < n_rows
    assert by_date["n_frauds"] == later["fraud"].sum() < n_frauds
    assert by_date["models"]["detector"].keys() == SHOWN.keys()
    for moment in (f"{BEGIN + 45 * 86_400}", "2024-02-15T00:00:00+00:00", "2024-02-15T01:00+01:00"):
        same = parse(turncoat(f"{command} --from {moment} --json").stdout)
        assert same == by_date
    shown = turncoat(f"{command} --from 2024-02-15").stdout
    assert f"{len(later):,} transactions of" in shown


def test_evaluate_says_which_rows_are_not_later_than_the_detectors_data(chosen, turncoat, tmp_path):
    detector = chosen.folder / "detector"
    last = load(detector).calibration_.time_range[1]
    frame = pl.read_csv(chosen.folder / "payments.csv", try_parse_dates=True)
    n_seen = int((frame["at"].dt.epoch("s") <= last).sum())
    command = f"evaluate {detector} {chosen.folder / 'payments.csv'}"
    note = parse(turncoat(f"{command} --json").stdout)["note"]
    assert note.startswith(
        f"{n_seen:,} of the {len(frame):,} labelled transactions are not later than"
    )
    assert f"Please note: {note}." in turncoat(command).stdout
    later = frame.with_columns(pl.col("at") + pl.duration(days=200))
    later.write_csv(tmp_path / "later.csv", datetime_format="%Y-%m-%d %H:%M:%S")
    new = parse(turncoat(f"evaluate {detector} later.csv --json").stdout)
    assert (new["note"], new["n_rows"]) == ("", len(frame))
    assert "Please note" not in turncoat(f"evaluate {detector} later.csv").stdout


def test_evaluate_leaves_out_days_whose_labels_are_open(chosen, turncoat, tmp_path):
    frame, command = (
        pl.read_csv(chosen.folder / "payments.csv"),
        f"evaluate {chosen.folder}/detector",
    )
    is_open = (pl.col("at") >= "2024-03-20") & (pl.col("fraud") == 0)
    label = pl.when(is_open).then(None).otherwise(pl.col("fraud"))
    frame.with_columns(fraud=label).write_csv(tmp_path / "open.csv")
    frame.filter(pl.col("at") < "2024-03-20").write_csv(tmp_path / "closed.csv")
    found = parse(turncoat(f"{command} open.csv --json").stdout)
    closed = parse(turncoat(f"{command} closed.csv --json").stdout)
    assert found["models"] == closed["models"]
    n_later = int((frame["at"] >= "2024-03-20").sum())
    (note,) = (one for one in found["notes"] if "labels are open" in one)
    assert note.startswith(f"{n_later:,} of {len(frame):,} transactions are of the last days")
    assert f"Please note: {note}." in turncoat(f"{command} open.csv").stdout
    late = turncoat(f"{command} open.csv --from 2024-03-25", status=3).stderr
    assert "their labels are open. Wait for labels" in late


def test_evaluate_refuses_times_that_are_none_or_too_late(chosen, turncoat, tmp_path):
    command = f"evaluate {chosen.folder / 'detector'} {chosen.folder / 'payments.csv'}"
    bad = turncoat(f"{command} --from yesterday", status=2).stderr
    assert "--from is 'yesterday'; it must be an ISO date such as 2024-07-01, or seconds" in bad
    late = turncoat(f"{command} --from 2030-01-01", status=3).stderr
    assert "no transaction is at or after --from 2030-01-01" in late
    nan = turncoat(f"{command} --from nan", status=3).stderr
    assert "--from" in nan
    frame = pl.read_csv(chosen.folder / "payments.csv")
    frame.with_columns(fraud=pl.lit(0)).write_csv(tmp_path / "genuine.csv")
    none = turncoat(f"evaluate {chosen.folder / 'detector'} genuine.csv", status=3).stderr
    assert "found 0 known frauds" in none
