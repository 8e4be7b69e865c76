"""A new month is scored with its history: from files, from a store, or by the service."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.features.sample_data import SHOP, shop_frame
from tests.scoring.detectors import data_of, detector
from tests.serving.helpers import bundle, client, rows_of
from turncoat import load
from turncoat.data.money import RateTable
from turncoat.data.schema_file import write_schema

Command = Callable[..., SimpleNamespace]
FRAME = shop_frame(700, 3).sort("at", "id")
N_EARLIER = 450


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A detector beside its history (with labels) and a month (without)."""
    FRAME[:N_EARLIER].write_parquet(tmp_path / "history.parquet")
    FRAME[N_EARLIER:].drop("fraud").write_parquet(tmp_path / "month.parquet")
    return bundle("shop", tmp_path)


def scores(path: Path) -> pl.DataFrame:
    return pl.read_parquet(path).sort("id")


def compare(left: pl.DataFrame, right: pl.DataFrame) -> None:
    """Both have the same scores, to rounding."""
    names = ["id", "customer", "time", "probability", "lower", "upper", "raw_membership", "n_seen"]
    names += [name for name in left.columns if name.startswith("belief_") and name[7:].isdigit()]
    assert_frame_equal(left[names], right[names], abs_tol=1e-9, rel_tol=1e-7)


def test_history_store_and_service_give_the_same_scores(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    score = "score detector month.parquet --reasons all"
    turncoat(f"{score} --history history.parquet --out history-scores.parquet")
    by_history = scores(tmp_path / "history-scores.parquet")
    assert by_history.height == FRAME.height - N_EARLIER
    url = f"sqlite:///{tmp_path}/store.sqlite"
    turncoat(f"replay detector history.parquet --store {url}")
    before = read_store(tmp_path / "store.sqlite")
    turncoat(f"{score} --store {url} --out dry.parquet")
    assert read_store(tmp_path / "store.sqlite") == before, "nothing is written without --update"
    by_store = scores(tmp_path / "dry.parquet")
    compare(by_history, by_store)
    assert by_history["reasons"].to_list() == by_store["reasons"].to_list()
    turncoat(f"{score} --store {url} --update --out updated.parquet")
    compare(by_history, scores(tmp_path / "updated.parquet"))
    other = f"sqlite:///{tmp_path}/live.sqlite"
    turncoat(f"replay detector history.parquet --store {other}")
    with client(model, other) as talking:
        body = b"\n".join(json.dumps(row).encode() for row in rows_of("shop")[N_EARLIER:])
        lines = talking.post("/v1/score/batch", content=body).text.splitlines()
    live = {int(one["id"]): one for one in map(json.loads, lines)}
    for row in by_history.iter_rows(named=True):
        assert live[row["id"]]["probability"] == pytest.approx(row["probability"], abs=1e-9)
        assert live[row["id"]]["n_seen"] == row["n_seen"]
    assert strip(read_store(tmp_path / "store.sqlite")) == strip(
        read_store(tmp_path / "live.sqlite")
    )


def read_store(file: Path) -> dict[str, Any]:
    with sqlite3.connect(file) as db:
        tables = {"records": "key, counter, data", "log": "transaction_id, time, content"}
        sql = "SELECT {} FROM {}"
        return {
            name: db.execute(sql.format(columns, name)).fetchall()
            for name, columns in tables.items()
        }


def strip(stored: dict[str, Any]) -> Any:
    """Records of customers and counterparties."""
    return sorted(row for row in stored["records"] if not row[0].startswith("replay:"))


def test_a_second_run_of_a_day_changes_nothing(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    turncoat(f"replay detector history.parquet --store {url}")
    run = f"score detector month.parquet --store {url} --update --reasons all --json"
    first = json.loads(turncoat(f"{run} --out first.parquet").stdout)
    stored = read_store(tmp_path / "store.sqlite")
    again = json.loads(turncoat(f"{run} --out again.parquet").stdout)
    assert (first["scored"], first["duplicates"], first["late"]) == (250, 0, 0)
    assert (again["scored"], again["duplicates"], again["late"]) == (0, 250, 0)
    assert read_store(tmp_path / "store.sqlite") == stored
    assert (tmp_path / "first.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


def test_an_interrupted_day_is_completed(turncoat: Command, model: Path, tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        turncoat(f"replay detector history.parquet --store sqlite:///{tmp_path}/{name}.sqlite")
    pl.read_parquet("month.parquet").sort("at", "id")[:100].write_parquet("part.parquet")
    run = "score detector {} --store sqlite:///{}.sqlite --update --out {}.parquet"
    turncoat(run.format("month.parquet", tmp_path / "whole", "whole"))
    turncoat(run.format("part.parquet", tmp_path / "parts", "some"))
    turncoat(run.format("month.parquet", tmp_path / "parts", "parts"))
    compare(scores(tmp_path / "whole.parquet"), scores(tmp_path / "parts.parquet"))
    whole, parts = (strip(read_store(tmp_path / f"{name}.sqlite")) for name in ("whole", "parts"))
    assert whole == parts


def test_known_customers_without_history_are_pointed_out(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    told = turncoat("score detector month.parquet --out alone.parquet --json")
    warning, unlabelled = json.loads(told.stdout)["warnings"]
    assert "has no column" in unlabelled
    assert warning.startswith("about 100% of the customers in month.parquet are known")
    assert f"warning: {warning}" in told.stderr
    assert "--history" in warning
    quiet = turncoat(
        "score detector month.parquet --history history.parquet --out with.parquet --json"
    )
    assert json.loads(quiet.stdout)["warnings"] == []
    assert "warning" not in quiet.stderr
    alone, with_history = (scores(tmp_path / f"{name}.parquet") for name in ("alone", "with"))
    assert (alone["n_seen"] < with_history["n_seen"]).all()
    FRAME.write_parquet(tmp_path / "all.parquet")
    assert "warning" not in turncoat("score detector all.parquet --out x.parquet").stderr
    empty = f"sqlite:///{tmp_path}/empty.sqlite"
    turncoat(f"replay detector history.parquet --store {empty}")
    with sqlite3.connect(tmp_path / "empty.sqlite") as db:
        db.execute("DELETE FROM records")
    told = turncoat(f"score detector month.parquet --store {empty} --out x.parquet")
    assert "warning: about 100%" in told.stderr, "the store does not know them either"
    assert f"`turncoat replay detector FILE --store {empty}` loads them" in told.stderr


def test_evaluation_takes_a_history_too(turncoat: Command, model: Path, tmp_path: Path) -> None:
    FRAME[N_EARLIER:].write_parquet(tmp_path / "judged.parquet")
    FRAME.write_parquet(tmp_path / "all.parquet")
    start = FRAME["at"][N_EARLIER]
    with_history = turncoat("evaluate detector judged.parquet --history history.parquet --json")
    whole = turncoat(f"evaluate detector all.parquet --from {start} --json")
    found, expected = json.loads(with_history.stdout), json.loads(whole.stdout)
    n_same_time = FRAME[:N_EARLIER].filter(pl.col("at") == start).height
    assert n_same_time == 0, "the cut is between two times"
    assert found == expected
    assert found["warnings"] == []
    alone = turncoat("evaluate detector judged.parquet --json")
    assert "warning: about 100%" in alone.stderr
    assert json.loads(alone.stdout)["models"] != found["models"]
    assert "fraud" in turncoat("evaluate detector month.parquet", status=3).stderr


def test_outputs_carry_model_calibration_and_run(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    made = load(model)
    score = "score detector month.parquet --history history.parquet --json"
    summary = json.loads(turncoat(f"{score} --out a.csv").stdout)
    table = pl.read_csv(tmp_path / "a.csv")
    assert set(table["model"]) == {made.digest_} == {summary["model"]}
    assert set(table["calibration"]) == {0} == {summary["calibration"]}
    assert set(table["run_id"]) == {summary["run_id"]}
    again = json.loads(turncoat(f"{score} --out b.csv").stdout)["run_id"]
    assert again == summary["run_id"]
    raw = json.loads(turncoat(f"{score} --kind raw --out c.csv").stdout)["run_id"]
    assert raw != again
    turncoat(f"{score} --run-id scheduled__2024-07-01 --out d.csv")
    assert set(pl.read_csv(tmp_path / "d.csv")["run_id"]) == {"scheduled__2024-07-01"}


def test_customers_of_a_store_may_be_pseudonyms(
    turncoat: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNCOAT_PSEUDONYM_KEY", "a key that nobody knows")
    url = f"sqlite:///{tmp_path}/store.sqlite"
    turncoat(f"replay detector history.parquet --store {url} --pseudonymise")
    turncoat(f"score detector month.parquet --store {url} --pseudonymise --update --out a.parquet")
    turncoat("score detector month.parquet --history history.parquet --out b.parquet")
    compare(scores(tmp_path / "a.parquet"), scores(tmp_path / "b.parquet"))
    keys = {key for key, *_ in read_store(tmp_path / "store.sqlite")["records"]}
    assert not any(key.startswith("c:c") for key in keys)


def test_a_response_that_left_the_log_keeps_its_probability(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/store.sqlite"
    turncoat(f"replay detector history.parquet --store {url} --no-log")
    last = FRAME[:N_EARLIER].group_by("who").last().drop("fraud")
    last.write_parquet(tmp_path / "last.parquet")
    turncoat(f"score detector last.parquet --store {url} --out again.parquet")
    table = scores(tmp_path / "again.parquet")
    data = data_of("shop").transactions
    expected = dict(zip(data.ids, detector("shop").score(data).probability, strict=True))
    np.testing.assert_allclose(
        table["probability"], [expected[id] for id in table["id"]], atol=1e-9
    )
    assert table["lower"].null_count() == table.height


def test_options_that_do_not_go_together_are_refused(turncoat: Command, model: Path) -> None:
    score = "score detector month.parquet --out x.parquet"
    store = "--store sqlite:///x.sqlite"
    for options, words in (
        ("--update", "--update needs --store"),
        ("--pseudonymise", "--pseudonymise needs --store"),
        (f"{store} --history history.parquet", "--store and --history are two histories"),
        (f"{store} --mode smoothed", "looks ahead, and a store only knows the past"),
    ):
        assert words in turncoat(f"{score} {options}", status=2).stderr
    assert "there is no store" in turncoat(f"{score} {store}", status=5).stderr


def test_scores_stand_beside_local_time_amount_and_currency_as_given(
    turncoat: Command, tmp_path: Path
) -> None:
    frame = FRAME.with_columns(
        ccy=pl.Series(["SEK" if k % 2 else "EUR" for k in range(FRAME.height)]),
        moment=pl.lit(datetime(2024, 6, 30, 22, 30)) + pl.duration(seconds="at"),
    )
    own = replace(
        SHOP, time="moment", time_zone="Europe/Berlin", currency="ccy", money=(),
        rates=RateTable.from_table({"EUR": 1.0, "SEK": 0.09}),
    )  # fmt: skip
    write_schema(own, tmp_path / "turncoat.toml")
    frame.write_parquet(tmp_path / "data.parquet")
    turncoat("fit data.parquet --states 2 --restarts 1 --max-iterations 3")
    turncoat("score detector data.parquet --out scores.csv")
    turncoat("replay detector data.parquet --store sqlite:///new.sqlite")
    turncoat("score detector data.parquet --store sqlite:///new.sqlite --out stored.csv")
    for name in ("scores.csv", "stored.csv"):
        table = pl.read_csv(tmp_path / name, try_parse_dates=True).sort("id")
        given = frame.sort("id")
        assert table["amount"].to_list() == pytest.approx(given[own.amount].to_list())
        assert table["currency"].to_list() == given["ccy"].to_list()
        # The schema's times have no offset: they are on the clock of Berlin, as in the file.
        assert (table["local_time"] - given["moment"]).dt.total_seconds().abs().max() <= 1
