"""`turncoat explain`: a customer's latest, one transaction, or the highest scores of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from tests.features.sample_data import shop_frame
from tests.scoring.chains import AMOUNT, TERMINAL, chains_detector, payments
from tests.scoring.detectors import detector, tree_detector
from tests.serving.helpers import bundle
from turncoat.data import read
from turncoat.scoring.descriptions import AVERAGE
from turncoat.scoring.formatting import format_amount

Command = Callable[..., SimpleNamespace]


@pytest.fixture
def frame(tmp_path: Path) -> pl.DataFrame:
    """The Handbook's payments, beside a detector of their causes of fraud."""
    table = pl.DataFrame(payments().rows)
    table.write_parquet(tmp_path / "data.parquet")
    chains_detector().save(tmp_path / "detector")
    return table


def test_the_highest_scores_are_explained_in_one_call(
    turncoat: Command, frame: pl.DataFrame, tmp_path: Path
) -> None:
    told = turncoat("explain detector data.parquet --top 7 --json").stdout
    found = json.loads(told)["explanations"]
    turncoat("score detector data.parquet --out scores.parquet")
    scores = pl.read_parquet(tmp_path / "scores.parquet").sort("probability", descending=True)
    assert [one["probability"] for one in found] == pytest.approx(scores["probability"][:7])
    by_id = {row["TRANSACTION_ID"]: row for row in frame.iter_rows(named=True)}
    for one in found:
        row = by_id[int(one["id"])]
        assert one["amount"] == row[AMOUNT]
        assert one["counterparties"] == {TERMINAL: str(row[TERMINAL])}
        assert one["customer"] == str(row["CUSTOMER_ID"])
        assert one["label"] == row["TX_FRAUD"]
        moment = datetime.fromisoformat(one["time"])
        assert moment.replace(tzinfo=None) == row["TX_DATETIME"]
        date = f"{moment:%A} {moment.day} {moment:%B} {moment:%Y}"
        assert one["moment"] == f"{date}, {moment:%H:%M} UTC"
        assert one["reasons"]
        assert one["currency"] is None


def test_the_table_and_the_page_say_the_same(
    turncoat: Command, frame: pl.DataFrame, tmp_path: Path
) -> None:
    told = turncoat("explain detector data.parquet --top 3 --json").stdout
    found = json.loads(told)["explanations"]
    table = turncoat("explain detector data.parquet --top 3").stdout
    assert table.startswith("The 3 highest scores of data.parquet. Filtered scores.\n")
    told = turncoat("explain detector data.parquet --top 3 --html pages/top.html").stdout
    assert told == "3 transactions explained. Wrote pages/top.html\n"
    page = (tmp_path / "pages" / "top.html").read_text()
    assert "<script" not in page
    assert "default-src 'none'" in page
    for one in found:
        amount = format_amount(one["amount"])
        for text in (one["id"], f"amount {amount}", one["counterparties"][TERMINAL]):
            assert text in table
        plain = re.sub(r"<[^>]+>", " ", page).replace("&#39;", "'")
        for text in (one["id"], one["moment"], amount, *(r["text"] for r in one["reasons"])):
            assert text in plain


def test_the_average_transaction_is_no_strong_reason(turncoat: Command, tmp_path: Path) -> None:
    shop_frame(700, 3).write_parquet(tmp_path / "data.parquet")
    tree_detector().save(tmp_path / "detector")
    found = json.loads(turncoat("explain detector data.parquet --top 5 --json").stdout)
    sources = {one["source"] for row in found["explanations"] for one in row["reasons"]}
    assert AVERAGE in sources
    table = turncoat("explain detector data.parquet --top 5").stdout
    assert "average transaction" not in table


def test_names_from_the_data_are_escaped(turncoat: Command, tmp_path: Path) -> None:
    frame = shop_frame(700, 3).with_columns(shop=pl.lit("<b>[/b]</b>"))
    frame.write_parquet(tmp_path / "data.parquet")
    bundle("shop", tmp_path)
    turncoat("explain detector data.parquet --top 2 --html top.html")
    page = (tmp_path / "top.html").read_text()
    assert "&lt;b&gt;[/b]&lt;/b&gt;" in page
    assert "<b>[" not in page
    assert "<b>[/b]</b>" in turncoat("explain detector data.parquet --top 2").stdout


def test_a_header_says_what_the_transaction_is(turncoat: Command, frame: pl.DataFrame) -> None:
    row = frame.filter(pl.col("TX_FRAUD") == 1).row(0, named=True)
    told = turncoat(f"explain detector data.parquet --transaction {row['TRANSACTION_ID']}").stdout
    lines = told.splitlines()
    moment = row["TX_DATETIME"]
    assert lines[0].startswith(f"Customer {row['CUSTOMER_ID']}, transaction ")
    date = f"{moment:%A} {moment.day} {moment:%B} {moment:%Y}, {moment:%H:%M} UTC"
    amount = format_amount(row[AMOUNT])
    assert lines[3] == (
        f"{row['TRANSACTION_ID']}  {date}  amount {amount}  {TERMINAL} {row[TERMINAL]}"
        "  known label fraud"
    )
    assert lines[4].startswith("  P(fraud) ")


def test_a_history_joins_the_file_but_is_not_explained(turncoat: Command, tmp_path: Path) -> None:
    frame = shop_frame(700, 3).sort("at", "id")
    frame.write_parquet(tmp_path / "all.parquet")
    frame[:500].write_parquet(tmp_path / "past.parquet")
    frame[500:].drop("fraud").write_parquet(tmp_path / "now.parquet")
    bundle("shop", tmp_path)
    quiet = turncoat("explain detector now.parquet --history past.parquet --top 200 --json")
    found = json.loads(quiet.stdout)["explanations"]
    assert quiet.stderr == ""
    assert {int(one["id"]) for one in found} == set(frame["id"][500:])
    assert {one["label"] for one in found} == {None}
    turncoat("score detector now.parquet --history past.parquet --out scores.parquet")
    scores = pl.read_parquet(tmp_path / "scores.parquet")
    expected = dict(zip(scores["id"], scores["probability"], strict=True))
    for one in found:
        assert one["probability"] == pytest.approx(expected[int(one["id"])], abs=1e-9)
    alone = turncoat("explain detector now.parquet --customer c1 --json")
    (warning,) = json.loads(alone.stdout)["warnings"]
    assert warning.startswith("about 100% of the customers in now.parquet")
    assert f"warning: {warning}" in alone.stderr
    kept = turncoat("explain detector now.parquet --history past.parquet --customer c1 --json")
    n_own = frame[500:].filter(pl.col("who") == "c1").height
    assert len(json.loads(kept.stdout)["explanations"]) == n_own


def test_the_last_of_a_customer_are_printed(turncoat: Command, frame: pl.DataFrame) -> None:
    told = turncoat("explain detector data.parquet --customer 3 --last 2").stdout
    assert told.count("P(fraud)") == 2
    assert re.match(r"Customer 3, transaction \d+ and 1 before it\. Filtered scores\.", told)


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ("", 2, "give --customer, --transaction or --top"),
        ("--top 3 --customer 3", 2, "give --customer, --transaction or --top"),
        ("--top 3 --json --html x.html", 2, "--html and --json are two outputs"),
        ("--customer nobody", 3, "no customer 'nobody'"),
        ("--transaction none", 3, "there is no transaction 'none'"),
        ("--customer 3 --transaction none", 3, "customer '3' has no transaction 'none'"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    turncoat: Command, frame: pl.DataFrame, options: str, status: int, words: str
) -> None:
    assert words in turncoat(f"explain detector data.parquet {options}", status=status).stderr


def test_rows_are_explained_with_all_their_reasons() -> None:
    frame = shop_frame(700, 3)
    data = read(frame, detector("shop").features_.plan.schema)
    made = detector("shop")
    explained = made.explain_rows(data, [5, 300, 40])
    assert [one.id for one in explained] == [str(data.ids[row]) for row in (5, 40, 300)]
    (pair,) = made.explain(data, explained[0].customer, explained[0].id)
    assert pair[1] == explained[0].score
    assert explained[0].time is None, "these times have no calendar"
    assert explained[0].moment.startswith("day ")
