"""A processor's monthly exports, as they come: inspected, fitted and scored without a change."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl

from turncoat import load
from turncoat.data.schema_file import load_schema
from turncoat.evaluation.verdict import DETECTOR

CURRENCIES = {"EUR": 1.0, "SEK": 0.088, "JPY": 0.006, "GBP": 1.17}


def write_exports(folder: Path, n: int = 3000, n_repeats: int = 40) -> None:
    """Semicolons, decimal commas, minor units, offsets, Y and N, the last month still open.

    Of the last month a few frauds are known, and nothing genuine.
    """
    draw = np.random.default_rng(8)
    card = draw.integers(0, 120, n)
    fraud = draw.random(n) < 0.08
    seconds = np.sort(draw.integers(0, 118 * 86400, n))
    home = np.array(list(CURRENCIES))[card % 4]
    euros = np.exp(draw.normal(np.log(np.where(fraud, 300, 35)), 0.5, n))
    zone = timezone(timedelta(hours=2))
    times = [datetime(2024, 3, 1, tzinfo=UTC) + timedelta(seconds=int(s)) for s in seconds]
    rows = []
    for i, time in enumerate(times):
        worth, units = CURRENCIES[home[i]], 1 if home[i] == "JPY" else 100
        written = time.strftime("%Y-%m-%d %H:%M:%S") if i % 3 else time.astimezone(zone).isoformat()
        is_known = time.month < 6 or (fraud[i] and i % 5 == 0)  # a fifth of the frauds comes early
        label = "" if not is_known else "Y" if fraud[i] else "N"
        score = f"{draw.normal(5, 1):.3f}".replace(".", ",")
        amount, shop = round(euros[i] / worth * units), f"Händler {draw.integers(60)}"
        about = f"R{i:05d}", f"K{card[i]:04d}", written, amount, home[i], shop
        rows.append((time.month, (*about, f'"{score}"', label)))
    rows += [rows[i] for i in draw.choice(n, n_repeats, replace=False)]
    header = ("Referenz", "Kartennummer", "Buchungszeit", "Betrag Cent", "Währung", "Händler")
    header += ("Risikowert", "Chargeback")
    for month in range(3, 7):
        lines = [";".join(map(str, row)) for own, row in rows if own == month]
        text = "\n".join([";".join(header), *lines]) + "\n"
        (folder / f"2024-{month:02d}.csv").write_bytes(text.encode("utf-16"))


def run_turncoat(*arguments: str, cwd: Path) -> str:
    argv = [sys.executable, "-m", "turncoat", *arguments]
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_exports_become_scores_without_a_change(tmp_path: Path) -> None:
    (tmp_path / "exports").mkdir()
    write_exports(tmp_path / "exports")
    shown = run_turncoat("init", "exports", cwd=tmp_path)
    assert "separated by semicolons, decimal commas, UTF-16" in shown
    schema = load_schema(tmp_path / "turncoat.toml")
    assert (schema.customer, schema.time) == (("Kartennummer",), "Buchungszeit")
    assert (schema.id, schema.repeated_ids, schema.label) == ("Referenz", "first", "Chargeback")
    assert (schema.amount, schema.minor_units) == ("Betrag Cent", ("Betrag Cent",))
    assert (schema.currency, schema.counterparties) == ("Währung", ("Händler",))
    assert "Risikowert" in schema.continuous
    assert schema.label_maturity_days > 18

    shown = run_turncoat("fit", "--config", "turncoat.toml", "--quick", "--json", cwd=tmp_path)
    fitted = json.loads(shown)
    until = datetime.fromtimestamp(fitted["split"]["test"]["last"], UTC)
    assert (until.month, until.day) == (5, 31), "the open month is in no part"
    assert fitted["notes"] == [
        "40 rows that repeat an id were left out; the first row of each counts, "
        "with exports/2024-03.csv as the first file and exports/2024-06.csv as the last"
    ]
    shown = run_turncoat("score", "detector", "exports", "--out", "scores.csv", cwd=tmp_path)
    assert "40 rows that repeat an id were left out" in shown
    scores = pl.read_csv(tmp_path / "scores.csv")
    page = (Path(__file__).parents[2] / "docs" / "scores.md").read_text()
    table = page.split("### The table of scores")[1].split("## Reasons")[0]
    described = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.M))))
    assert {"local_time", "amount", "currency"} <= set(scores.columns)
    assert {re.sub(r"_\d+$", "_k", name) for name in scores.columns} <= described
    assert scores.height == 3000
    assert fitted["test"]["n_frauds"] > 10
    assert fitted["test"]["models"][DETECTOR]["average_precision"]["value"] > 0.8

    with (tmp_path / "exports" / "2024-03.csv").open(encoding="utf-16") as lines:
        row = next(csv.DictReader(lines, delimiter=";"))
    label = row.pop("Chargeback")
    assert label in "YN"
    live = load(tmp_path / "detector").score_one(None, row)[1]
    (batch,) = scores.filter(pl.col("id") == row["Referenz"])["score"]
    assert abs(live.probability - batch) < 1e-6
