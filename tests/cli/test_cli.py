"""The `turncoat` command, as a user types it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from turncoat import load, load_model
from turncoat.cli import app
from turncoat.data import read
from turncoat.evaluation.results import load_results

ROWS = {"handbook": 20_000, "ieee-cis": 8_000}  # enough for some fraud in every part
QUICK = "--restarts 1 --max-iterations 5 --states 2"


def sweep_folders(path: Path) -> list[str]:
    return sorted(folder.name for folder in path.iterdir() if folder.name.startswith("order"))


@pytest.mark.parametrize(
    ("preset", "schema", "file_format", "transitions"),
    [
        ("handbook", "handbook", "csv", "continuous"),
        ("ieee-cis", "ieee-cis", "parquet", "per-row"),
        ("ieee-cis", "ieee-cis:card1+addr1+D1", "csv", "per-row"),
    ],
)
def test_simulate_fit_score_and_explain(
    turncoat, preset, schema, file_format, transitions, tmp_path
):
    n_rows = ROWS[preset]
    written = turncoat(
        f"simulate {preset} --rows {n_rows} --seed 0 --format {file_format} --out data"
    ).stdout.split()
    assert all((tmp_path / name).is_file() for name in written)
    options = f"{QUICK} --transitions {transitions}"
    shown = turncoat(f"fit data --config {schema} --out detector {options}").stdout
    assert "calibration part, filtered, held out" in shown
    assert load(tmp_path / "detector").model_.transitions == transitions
    summary = json.loads(turncoat("score detector data --out scores.parquet --json").stdout)
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    assert (summary["transactions"], summary["mode"]) == (n_rows, "filtered")
    assert summary["kind"] == "corrected"
    expected = load(tmp_path / "detector").score(read(tmp_path / "data", schema))
    np.testing.assert_array_equal(scores["score"], expected.value)
    assert scores["lower"].le(scores["probability"]).all()
    customer = scores.group_by("customer").len().sort("len", "customer")["customer"][0]
    explain = ("explain detector data --customer", customer)
    path = json.loads(turncoat(*explain, "--json").stdout)["explanations"]
    assert path[-1]["reasons"][0].keys() == {"source", "text", "log_odds"}
    own = scores.filter(pl.col("customer") == customer)
    np.testing.assert_allclose([one["probability"] for one in path], own["probability"], rtol=1e-9)
    assert "P(fraud)" in turncoat(*explain).stdout


def test_init_then_fit_on_an_unknown_file(turncoat, tmp_path):
    rng = np.random.default_rng(0)
    n = 2000
    pl.DataFrame(
        {
            "TxRef": rng.permutation(n) + 70_000,
            "AccountHolder": [f"acc-{i}" for i in rng.integers(0, 60, n)],
            "ts_ms": 1_700_000_000_000 + rng.integers(0, 120 * 86_400_000, n),
            "Value": rng.gamma(2.0, 30.0, n).round(2),
            "Merchant": [f"m{i}" for i in rng.integers(0, 40, n)],
            "Channel": rng.choice(["web", "app", "pos"], n),
            "IsFraud": rng.random(n) < 0.05,
        }
    ).write_csv(tmp_path / "strange.csv")
    shown = turncoat("init strange.csv --out mine.toml").stdout
    assert "AccountHolder" in shown
    assert "mine.toml" in shown
    shown = turncoat(
        f"fit --config mine.toml --split time --tier variational --out out {QUICK}"
    ).stdout
    assert "60 customers" in shown
    schema = load(tmp_path / "out").features_.plan.schema
    assert (schema.time, schema.time_unit, schema.amount) == ("ts_ms", "ms", "Value")
    assert (schema.label, schema.counterparties, schema.id) == ("IsFraud", ("Merchant",), "TxRef")


def test_help_is_complete_and_shows_examples():
    listed = CliRunner().invoke(app, ["--help"]).stdout.split("Commands:")[1]
    assert "..." not in listed, "a line is cut off"
    commands = re.findall(r"^  ([a-z-]+)  ", listed, flags=re.MULTILINE)
    assert {"simulate", "fit", "serve", "compare"} <= set(commands)
    for command in commands:
        helped = CliRunner().invoke(app, [command, "--help"]).stdout
        examples = helped.split("Examples:\n")[1].split("\n\n")[0].splitlines()
        assert all(line.startswith(f"    turncoat {command}") for line in examples)
        assert "…" not in helped


def test_python_m_turncoat_runs_the_command():
    command = [sys.executable, "-m", "turncoat"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"turncoat \d+\.\d+\S*\n", shown.stdout)
    failed = subprocess.run(
        [*command, "simulate", "nosuch", "--out", "x"], capture_output=True, text=True
    )
    assert failed.returncode == 2
    assert failed.stderr.startswith("turncoat: ")
    assert len(failed.stderr.splitlines()) == 1


def test_errors_are_one_line_and_keep_earlier_results(turncoat, tmp_path):
    turncoat("simulate handbook --rows 500 --out data")
    before = (tmp_path / "data" / "transactions.csv").read_bytes()
    again = turncoat("simulate handbook --rows 600 --out data", status=2)
    assert again.stderr.startswith("turncoat: ")
    assert (tmp_path / "data" / "transactions.csv").read_bytes() == before
    assert "nosuch" in turncoat("simulate nosuch --out x", status=2).stderr
    (tmp_path / "regimes").mkdir()
    (tmp_path / "regimes" / "precious.txt").write_text("kept")
    full = turncoat(f"fit data --config handbook --out regimes {QUICK}", status=4)
    assert "not a saved detector" in full.stderr
    assert (tmp_path / "regimes" / "precious.txt").read_text() == "kept"
    assert "no data" in turncoat("fit --config handbook --out y", status=2).stderr
    missing = turncoat("fit nowhere.csv --config handbook --out y", status=3)
    assert "nowhere.csv" in missing.stderr
    assert not (tmp_path / "y").exists()


def test_options_that_do_not_fit_together_are_refused(turncoat):
    fit = "fit data --config handbook --out x"
    for options, words in (
        ("--states few", "--states is 'few'; it must be a whole number"),
        ("--fraud-states 2", "--fraud-states needs --supervision anchored"),
        ("--supervision anchored --fraud-states 12", "--fraud-states is 12; it must be below 10"),
        ("--tier baum-welch --emission predictive", "--emission needs --tier variational"),
        ("--latent-dim 64", "--latent-dim needs --tier neural"),
        ("--temperature hot", "--temperature is 'hot'; it must be a number, or auto"),
        ("--latent-dim 3", "--latent-dim needs --tier neural"),
        ("--activation none", "--activation needs --tier neural"),
        ("--ranker encoder-head", "--ranker encoder-head needs --tier neural"),
    ):
        assert words in turncoat(f"{fit} {options}", status=2).stderr


def test_unexpected_failures_are_one_line(turncoat, tmp_path):
    turncoat("simulate handbook --rows 300 --out y[/b].d")
    (tmp_path / "deep.toml").write_text("x = " + "[" * 20_000)
    rows = "\n".join(f"{i % 5}.5,{i % 7},{i}" for i in range(60))
    (tmp_path / "m.csv").write_text(f"[/b],customer,time\n{rows}")
    for command, status in (
        ("simulate handbook --rows 10 --out /proc/nowhere", 1),
        (f"simulate handbook --rows {10**17} --out z", 1),
        ("fit y[/b].d --config deep.toml --out o", 2),
        ("fit y[/b].d --config handbook --out y[/b].d/transactions.csv/sub", 4),
        (f"fit {'n' * 300}.csv --config handbook --out o", 1),
    ):
        error = turncoat(command, status=status).stderr
        assert error.startswith("turncoat: ")
        assert len(error.splitlines()) == 1
    assert "[/b]" in turncoat("init m.csv").stdout


def test_states_auto_sweeps_and_keeps_the_fits(turncoat, tmp_path):
    turncoat("simulate ieee-cis --rows 8000 --out data --format parquet")
    shown = turncoat(
        "fit data --config ieee-cis --states auto --out detector --restarts 1 --max-iterations 3"
    ).stdout
    chosen = load(tmp_path / "detector").model_.n_states
    assert f"by eligibility: K = {chosen} (" in shown
    assert len(sweep_folders(tmp_path / "detector-sweep")) == 9


def test_anchored_sweep_with_a_json_summary(turncoat, tmp_path):
    turncoat("simulate handbook --rows 20000 --out data --format parquet")
    summary = json.loads(
        turncoat(
            "fit data --config handbook --out detector --supervision anchored --fraud-states 2 "
            "--states auto --restarts 1 --max-iterations 3 --transitions continuous --json"
        ).stdout
    )
    detector = load(tmp_path / "detector")
    assert detector.model_.transitions == "continuous"
    n_states = detector.model_.n_states
    assert (detector.supervision, detector.n_fraud_states) == ("anchored", 2)
    assert summary["states"] == summary["chosen"]["by_eligibility"] == n_states
    assert len(summary["regimes"]) == n_states
    # two fraud states and one other are the smallest model
    assert sweep_folders(tmp_path / "detector-sweep")[0] == "order-03"
    assert summary["fraud_regime"] == detector.regimes.fraud_state
    assert summary["measured"] == {"part": "calibration", "mode": "filtered", "in_sample": False}
    rates = [regime["fraud_rate"] for regime in summary["regimes"]]
    np.testing.assert_allclose(rates, detector.regimes.mean_rates)
    assert summary["split"]["test"]["rows"] > 0


def test_neural_detector_with_its_head_as_ranker(turncoat, tmp_path):
    turncoat("simulate handbook --rows 20000 --out data --format parquet")
    summary = json.loads(
        turncoat(
            "fit data --config handbook --states auto --restarts 1 --max-iterations 3 "
            "--tier neural --latent-dim 3 --max-epochs 1 --class-weighting --activation none "
            "--dropout-draws 2 --device cpu --ranker encoder-head --json --out detector"
        ).stdout
    )
    model = load(tmp_path / "detector").model_
    assert summary["ranker"] == "encoder-head"
    layout = model.encoder_.layout
    assert (layout.latent_dim, layout.activation, model.dropout_draws) == (3, "none", 2)
    assert (model.training_.class_weight > 1, len(model.training_.train_losses)) == (True, 1)
    assert model.n_states == summary["states"] == summary["chosen"]["by_eligibility"]
    swept = load_model(tmp_path / "detector-sweep" / f"order-{summary['states']:02d}" / "model")
    np.testing.assert_array_equal(model.encoder_.first_weight, swept.encoder_.first_weight)
    turncoat("score detector data --out scores.parquet")
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    assert scores["probability"].is_between(0, 1).all()
    # the corrected score alone would only mix a few regimes' fraud rates
    assert scores["probability"].n_unique() > 1000
    refused = turncoat(
        f"fit data --config handbook {QUICK} --ranker nothing --out other", status=2
    ).stderr
    assert "--ranker is 'nothing'" in refused
    assert not (tmp_path / "other").exists()


def test_a_hybrid_is_fitted_scored_and_explained(turncoat, tmp_path):
    turncoat("simulate handbook --rows 20000 --out data --format parquet")
    fit = f"fit data --config handbook {QUICK} --kind hybrid --out detector"
    assert json.loads(turncoat(f"{fit} --json").stdout)["kind"] == "hybrid"
    assert "boosted trees on the features and the customer's path" in turncoat(fit).stdout
    turncoat("score detector data --out scores.parquet")
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    assert scores["probability"].n_unique() > 1000
    customer = scores["customer"][0]
    told = turncoat(f"explain detector data --customer {customer} --last 1 --json").stdout
    assert "this customer's path" in told
    _check_opened_path(turncoat, customer)
    scored = turncoat("score detector data --out some.csv --reasons above:0.05 --json").stdout
    assert json.loads(scored)["transactions"] == len(scores)
    some = pl.read_csv(tmp_path / "some.csv")
    assert 0 < some["reasons"].count() < len(some)
    assert some.filter(pl.col("reasons").is_not_null())["probability"].min() >= 0.05
    assert some.filter(pl.col("reasons").is_null())["probability"].max() < 0.05
    refused = turncoat(f"{fit} --ranker TX_AMOUNT", status=2).stderr
    assert "--ranker and --kind hybrid are two rankers" in refused


def _check_opened_path(turncoat, customer):
    explain = f"explain detector data --customer {customer} --last 1"
    (*_, last) = json.loads(turncoat(f"{explain} --path --json").stdout)["explanations"]
    assert {"history", "amount"} <= {reason["source"] for reason in last["path_reasons"]}
    (*_, closed) = json.loads(turncoat(f"{explain} --json").stdout)["explanations"]
    assert closed == {**last, "path_reasons": []}
    heading = "the path's own reasons, for the fraud regime against the next best:"
    _, opened = turncoat(f"{explain} --path").stdout.split(heading)
    assert opened.splitlines()[1].endswith(last["path_reasons"][0]["text"])
    assert heading not in turncoat(explain).stdout


def test_compare_and_repeat_from_the_manifest(turncoat, tmp_path):
    turncoat("simulate handbook --rows 30000 --seed 3 --out data --format parquet")
    payments = pl.read_parquet(tmp_path / "data" / "transactions.parquet")
    payments.with_columns(
        KIND=pl.col("TX_FRAUD") * (1 + pl.col("TERMINAL_ID").cast(pl.Int64) % 2)
    ).write_parquet(tmp_path / "data.parquet")
    where = "compare data.parquet --config handbook --protocol handbook --folds 1"
    quick = (
        f"{where} --preset quick --states 3 --baselines xgboost --tiers variational "
        "--resamples 50 --trials 2"
    )
    found = json.loads(
        turncoat(
            f"{quick} --include TX_AMOUNT,amount_to_mean,counterparty_risk_day "
            "--scenario KIND --json --out run"
        ).stdout
    )
    results = load_results(tmp_path / "run" / "results.json")
    hybrid = next(one for one in results.candidates if one.name == "hybrid")
    assert found["metrics"]["hybrid"]["auroc"] == hybrid.metrics["auroc"].value
    assert {table.title for table in results.slices} == {"by length of history", "by scenario"}
    assert (tmp_path / found["report"]).read_text().startswith("<!doctype html>")
    shown = turncoat("compare --manifest run/manifest.json --out again").stdout
    assert shown.splitlines()[-1] == "again/report.html"
    assert "Models with " in shown
    assert "Published results" in (tmp_path / "again" / "report.html").read_text()
    for name in ("results.json", "manifest.json", "report.html", "tables/candidates.csv"):
        again, first = tmp_path / "again" / name, tmp_path / "run" / name
        assert again.read_bytes() == first.read_bytes(), name
    refused = turncoat(f"{quick} --out run", status=2).stderr
    assert "holds another study: other settings" in refused
    unknown = turncoat(f"{where} --scenario KINDS --out x", status=2).stderr
    assert "--scenario is 'KINDS', and data.parquet has no such column" in unknown
    assert "cannot be read" in turncoat("report nowhere", status=4).stderr
    payments.head(29_000).write_parquet(tmp_path / "fewer.parquet")
    other = turncoat(
        "compare fewer.parquet --manifest run/manifest.json --out other", status=3
    ).stderr
    assert "not the data of run/manifest.json" in other


def test_compare_with_the_neural_tier_and_joint_training(turncoat, tmp_path):
    turncoat("simulate handbook --rows 12000 --out data --format parquet")
    where = "compare data --config handbook --baselines lstm --ablation joint"
    turncoat(
        f"{where} --preset quick --tiers variational,neural --states 3 --resamples 20 "
        "--latent-dim 3 --max-epochs 1 --out run"
    )
    results = load_results(tmp_path / "run" / "results.json")
    assert results.joint_training is not None
    names = {one.name for one in results.candidates}
    assert {"LSTM", "neural, encoder's head", "regime-calibrated head"} <= names
    for name in (
        *("tables/tiers.csv", "tables/joint.csv"),
        *("figures/latents-1-regimes.svg", "figures/losses-1.svg"),
    ):
        assert (tmp_path / "run" / name).stat().st_size > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(f'id="{anchor}"' in page for anchor in ("tiers", "neural"))
    again = turncoat("report run").stdout
    assert again.strip().endswith("report.html")
    assert (tmp_path / "run" / "report.html").read_text() == page
    refused = turncoat(f"{where} --tiers variational --out x", status=2).stderr
    assert "is of the neural tier" in refused
