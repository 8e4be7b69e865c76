"""The `turncoat` command, as a user types it."""

from __future__ import annotations

import json
import os
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

ROWS = {"handbook": 20_000, "ieee-cis": 8_000}  # of which some are fraud in every part
QUICK = ["--restarts", "1", "--iterations", "5", "--states", "2"]


def turncoat(*arguments: object, cwd: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command and check how it ended; whatever happens, users never see a traceback."""
    command = [sys.executable, "-m", "turncoat", *map(str, arguments)]
    done = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize(
    ("preset", "schema", "file_format"),
    [
        ("handbook", "handbook", "csv"),
        ("ieee-cis", "ieee-cis", "parquet"),
        ("ieee-cis", "ieee-cis:card1+addr1+D1", "csv"),
    ],
)
def test_from_nothing_to_a_saved_model(
    preset: str, schema: str, file_format: str, tmp_path: Path
) -> None:
    written = turncoat(
        "simulate",
        preset,
        "--rows",
        ROWS[preset],
        "--seed",
        0,
        "--format",
        file_format,
        "--out",
        "data",
        cwd=tmp_path,
    ).stdout.split()
    assert all((tmp_path / name).is_file() for name in written)
    shown = turncoat(
        "fit", "data", "--config", schema, "--out", "detector", *QUICK, cwd=tmp_path
    ).stdout
    assert "calibration part, filtered, held out" in shown
    summary = json.loads(
        turncoat(
            "score", "detector", "data", "--out", "scores.parquet", "--json", cwd=tmp_path
        ).stdout
    )
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    assert (summary["transactions"], summary["mode"], summary["kind"]) == (
        ROWS[preset],
        "filtered",
        "corrected",
    )
    expected = load(tmp_path / "detector").score(read(tmp_path / "data", schema))
    np.testing.assert_array_equal(scores["score"], expected.value)
    assert scores["lower"].le(scores["probability"]).all()
    customer = scores.group_by("customer").len().sort("len", "customer")["customer"][0]
    path = json.loads(
        turncoat(
            "explain", "detector", "data", "--customer", customer, "--json", cwd=tmp_path
        ).stdout
    )
    own = scores.filter(pl.col("customer") == customer)
    np.testing.assert_allclose([one["probability"] for one in path], own["probability"], rtol=1e-9)
    assert (
        "P(fraud)"
        in turncoat("explain", "detector", "data", "--customer", customer, cwd=tmp_path).stdout
    )


def test_init_then_fit_on_a_file_nobody_has_seen(tmp_path: Path) -> None:
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
    shown = turncoat("init", "strange.csv", "--out", "mine.toml", cwd=tmp_path).stdout
    assert "AccountHolder" in shown
    assert "mine.toml" in shown
    fitted = turncoat(
        "fit",
        "--config",
        "mine.toml",
        "--split",
        "time",
        "--tier",
        "variational",
        "--out",
        "out",
        *QUICK,
        cwd=tmp_path,
    )
    assert "60 customers" in fitted.stdout
    plan = load(tmp_path / "out").features_.plan
    assert (plan.schema.time, plan.schema.time_unit, plan.schema.amount) == ("ts_ms", "ms", "Value")
    assert (plan.schema.label, plan.schema.counterparty, plan.schema.id) == (
        "IsFraud",
        "Merchant",
        "TxRef",
    )


def test_help_is_whole_and_shows_examples() -> None:
    listed = CliRunner().invoke(app, ["--help"]).stdout.split("Commands:")[1]
    assert "..." not in listed, "something is cut off"
    commands = re.findall(r"^  ([a-z-]+)  ", listed, flags=re.MULTILINE)
    assert {"simulate", "fit", "serve", "compare"} <= set(commands)
    for command in commands:
        helped = CliRunner().invoke(app, [command, "--help"]).stdout
        examples = helped.split("Examples:\n")[1].split("\n\n")[0].splitlines()
        assert all(line.startswith(f"    turncoat {command}") for line in examples)
        assert "…" not in helped


def test_refusals_are_one_line_and_leave_earlier_results(tmp_path: Path) -> None:
    turncoat("simulate", "handbook", "--rows", 500, "--out", "data", cwd=tmp_path)
    before = (tmp_path / "data" / "transactions.csv").read_bytes()
    again = turncoat("simulate", "handbook", "--rows", 600, "--out", "data", cwd=tmp_path, status=2)
    assert again.stderr.startswith("turncoat: ")
    assert (tmp_path / "data" / "transactions.csv").read_bytes() == before
    assert "nosuch" in turncoat("simulate", "nosuch", "--out", "x", cwd=tmp_path, status=2).stderr
    (tmp_path / "regimes").mkdir()
    (tmp_path / "regimes" / "precious.txt").write_text("kept")
    full = turncoat(
        "fit", "data", "--config", "handbook", "--out", "regimes", *QUICK, cwd=tmp_path, status=2
    )
    assert "not a saved detector" in full.stderr
    assert (tmp_path / "regimes" / "precious.txt").read_text() == "kept"
    assert (
        "no data"
        in turncoat("fit", "--config", "handbook", "--out", "y", cwd=tmp_path, status=2).stderr
    )
    missing = turncoat(
        "fit", "nowhere.csv", "--config", "handbook", "--out", "y", cwd=tmp_path, status=2
    )
    assert "nowhere.csv" in missing.stderr
    assert not (tmp_path / "y").exists()


def test_the_number_of_regimes_can_be_chosen_and_a_stopped_sweep_goes_on(tmp_path: Path) -> None:
    turncoat(
        "simulate", "ieee-cis", "--rows", 8000, "--out", "data", "--format", "parquet", cwd=tmp_path
    )
    quick = ["--restarts", "1", "--iterations", "3"]
    shown = turncoat(
        "fit",
        "data",
        "--config",
        "ieee-cis",
        "--states",
        "auto",
        "--out",
        "detector",
        *quick,
        cwd=tmp_path,
    ).stdout
    chosen = load(tmp_path / "detector").model_.n_states
    assert f"by eligibility: K = {chosen} (" in shown
    kept = sorted(
        path.name
        for path in (tmp_path / "detector-sweep").iterdir()
        if path.name.startswith("order")
    )
    assert len(kept) == 9
    assert (
        "turncoat: --states"
        in turncoat(
            "fit",
            "data",
            "--config",
            "ieee-cis",
            "--states",
            "few",
            "--out",
            "x",
            cwd=tmp_path,
            status=2,
        ).stderr
    )


def test_an_anchored_sweep_and_json_for_scripts(tmp_path: Path) -> None:
    turncoat(
        "simulate",
        "handbook",
        "--rows",
        20_000,
        "--out",
        "data",
        "--format",
        "parquet",
        cwd=tmp_path,
    )
    quick = ["--restarts", "1", "--iterations", "3", "--json"]
    anchored = ["--supervision", "anchored", "--fraud-states", "2", "--states", "auto"]
    done = turncoat(
        "fit", "data", "--config", "handbook", "--out", "detector", *anchored, *quick, cwd=tmp_path
    )
    found, made = json.loads(done.stdout), load(tmp_path / "detector")
    assert (made.supervision, made.n_fraud_states) == ("anchored", 2)
    assert (
        found["states"]
        == found["chosen"]["by_eligibility"]
        == made.model_.n_states
        == len(found["regimes"])
    )
    kept = sorted(
        path.name
        for path in (tmp_path / "detector-sweep").iterdir()
        if path.name.startswith("order")
    )
    assert kept[0] == "order-03"  # two of fraud and one other
    assert found["fraud_regime"] == made.regimes.fraud_state
    assert found["measured"] == {"part": "calibration", "mode": "filtered", "in_sample": False}
    np.testing.assert_allclose(
        [regime["fraud_rate"] for regime in found["regimes"]], made.regimes.mean_rates
    )
    assert found["split"]["test"]["rows"] > 0


def test_whatever_goes_wrong_is_one_line(tmp_path: Path) -> None:
    turncoat("simulate", "handbook", "--rows", 300, "--out", "y[/b].d", cwd=tmp_path)
    (tmp_path / "deep.toml").write_text("x = " + "[" * 20_000)
    (tmp_path / "m.csv").write_text(
        "[/b],customer,time\n" + "\n".join(f"{i % 5}.5,{i % 7},{i}" for i in range(60))
    )
    for command in (
        ("simulate", "handbook", "--rows", 10, "--out", "/proc/nowhere"),
        ("simulate", "handbook", "--rows", 10**17, "--out", "z"),
        ("fit", "y[/b].d", "--config", "deep.toml", "--out", "o"),
        ("fit", "y[/b].d", "--config", "handbook", "--out", "y[/b].d/transactions.csv/sub"),
        ("fit", "n" * 300 + ".csv", "--config", "handbook", "--out", "o"),
    ):
        told = turncoat(*command, cwd=tmp_path, status=2).stderr
        assert told.startswith("turncoat: ")
        assert len(told.splitlines()) == 1
    assert "[/b]" in turncoat("init", "m.csv", cwd=tmp_path).stdout


def test_a_comparison_and_the_same_again_from_its_manifest(tmp_path: Path) -> None:
    turncoat(
        "simulate",
        "handbook",
        "--rows",
        30_000,
        "--seed",
        3,
        "--out",
        "data",
        "--format",
        "parquet",
        cwd=tmp_path,
    )
    quick = [
        "--preset",
        "quick",
        "--states",
        "3",
        "--baselines",
        "xgboost",
        "--tiers",
        "variational",
        "--resamples",
        "50",
        "--trials",
        "2",
    ]
    chosen = [
        "--include",
        "TX_AMOUNT,amount_to_mean,counterparty_risk_day",
        "--scenario",
        "KIND",
        "--json",
    ]
    payments = pl.read_parquet(tmp_path / "data" / "transactions.parquet")
    payments.with_columns(
        KIND=pl.col("TX_FRAUD") * (1 + pl.col("TERMINAL_ID").cast(pl.Int64) % 2)
    ).write_parquet(tmp_path / "data.parquet")
    where = [
        "--config",
        "handbook",
        "--data",
        "data.parquet",
        "--protocol",
        "handbook",
        "--folds",
        "1",
    ]
    done = turncoat("compare", *where, *quick, *chosen, "--out", "run", cwd=tmp_path)
    found = json.loads(done.stdout)
    results = load_results(tmp_path / "run" / "results.json")
    assert (
        found["figures"]["hybrid"]["auroc"]
        == next(one for one in results.candidates if one.name == "hybrid").figures["auroc"].value
    )
    assert {table.title for table in results.slices} == {"by length of history", "by scenario"}
    assert (tmp_path / found["report"]).read_text().startswith("<!doctype html>")
    shown = turncoat(
        "compare", "--manifest", "run/manifest.json", "--out", "again", cwd=tmp_path
    ).stdout
    assert shown.splitlines()[-1] == "again/report.html"
    assert "published: LSTM" in shown
    for name in ("results.json", "manifest.json", "report.html", "tables/candidates.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "run" / name).read_bytes(), (
            name
        )
    refused = turncoat("compare", *where, *quick, "--out", "run", cwd=tmp_path, status=2).stderr
    assert "holds another study: other settings" in refused
    unknown = turncoat(
        "compare", *where, "--scenario", "KINDS", "--out", "x", cwd=tmp_path, status=2
    ).stderr
    assert "--scenario is 'KINDS', and data.parquet has no such column" in unknown
    assert "cannot be read" in turncoat("report", "nowhere", cwd=tmp_path, status=2).stderr
    payments.head(29_000).write_parquet(tmp_path / "fewer.parquet")
    other = turncoat(
        "compare",
        "--manifest",
        "run/manifest.json",
        "--data",
        "fewer.parquet",
        "--out",
        "other",
        cwd=tmp_path,
        status=2,
    ).stderr
    assert "not the data of run/manifest.json" in other


def test_a_neural_detector_with_its_head_as_ranker(tmp_path: Path) -> None:
    turncoat(
        "simulate",
        "handbook",
        "--rows",
        20_000,
        "--out",
        "data",
        "--format",
        "parquet",
        cwd=tmp_path,
    )
    quick = [
        "--restarts",
        "1",
        "--iterations",
        "3",
        "--tier",
        "neural",
        "--latent-dim",
        "3",
        "--epochs",
        "1",
    ]
    options = [
        "--class-weighting",
        "--linear",
        "--dropout-draws",
        "2",
        "--device",
        "cpu",
        "--ranker",
        "encoder-head",
        "--json",
    ]
    found = json.loads(
        turncoat(
            "fit",
            "data",
            "--config",
            "handbook",
            "--states",
            "auto",
            *quick,
            *options,
            "--out",
            "detector",
            cwd=tmp_path,
        ).stdout
    )
    made = load(tmp_path / "detector")
    assert found["ranker"] == "encoder-head"
    assert (
        made.model_.latent_dim,
        made.model_.class_weighting,
        made.model_.activation,
        made.model_.dropout_draws,
    ) == (3, True, "none", 2)
    assert made.model_.n_states == found["states"] == found["chosen"]["by_eligibility"]
    swept = load_model(tmp_path / "detector-sweep" / f"order-{found['states']:02d}" / "model")
    np.testing.assert_array_equal(made.model_.encoder_.first_weight, swept.encoder_.first_weight)
    turncoat("score", "detector", "data", "--out", "scores.parquet", cwd=tmp_path)
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    assert scores["probability"].is_between(0, 1).all()
    assert scores["probability"].n_unique() > 1000  # unlike sums of a few regimes' shares
    for wrong, words in (
        ("encoder-head", "for --tier neural"),
        ("nothing", "--ranker is 'nothing'"),
    ):
        refused = turncoat(
            "fit",
            "data",
            "--config",
            "handbook",
            *QUICK,
            "--ranker",
            wrong,
            "--out",
            "other",
            cwd=tmp_path,
            status=2,
        ).stderr
        assert words in refused
        assert not (tmp_path / "other").exists()


def test_a_comparison_with_the_neural_tier_and_joint_training(tmp_path: Path) -> None:
    turncoat(
        "simulate",
        "handbook",
        "--rows",
        12_000,
        "--out",
        "data",
        "--format",
        "parquet",
        cwd=tmp_path,
    )
    quick = [
        "--preset",
        "quick",
        "--tiers",
        "variational,neural",
        "--states",
        "3",
        "--resamples",
        "20",
        "--latent-dim",
        "3",
        "--epochs",
        "1",
    ]
    where = ["--config", "handbook", "--data", "data", "--baselines", "lstm", "--ablation", "joint"]
    turncoat("compare", *where, *quick, "--out", "run", cwd=tmp_path)
    results = load_results(tmp_path / "run" / "results.json")
    assert results.joint is not None
    assert {"LSTM", "neural, encoder's head", "regime-calibrated head"} <= {
        one.name for one in results.candidates
    }
    for name in (
        "tables/tiers.csv",
        "tables/joint.csv",
        "figures/latents-1-regimes.svg",
        "figures/losses-1.svg",
    ):
        assert (tmp_path / "run" / name).stat().st_size > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(f'id="{anchor}"' in page for anchor in ("tiers", "neural"))
    again = turncoat("report", "run", cwd=tmp_path).stdout
    assert again.strip().endswith("report.html")
    assert (tmp_path / "run" / "report.html").read_text() == page
    refused = turncoat(
        "compare", *where, "--tiers", "variational", "--out", "x", cwd=tmp_path, status=2
    ).stderr
    assert "is of the neural tier" in refused
