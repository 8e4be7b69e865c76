"""`turncoat labels` and `export-log`, as a nightly job uses them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.features.sample_data import DAY, SHOP, shop_frame
from tests.scoring.detectors import model_of, time_split
from tests.serving.helpers import bundle, client
from turncoat import Detector, load
from turncoat.data import read
from turncoat.features import Features

Command = Callable[..., SimpleNamespace]
FRAME = shop_frame(700, 3).sort("at", "id")
STORE = "--store sqlite:///beliefs.sqlite"


@pytest.fixture
def model(turncoat: Command, tmp_path: Path) -> Path:
    """A detector, and a store with a scored file that has no labels."""
    made = bundle("shop", tmp_path)
    FRAME[:300].drop("fraud").write_parquet(tmp_path / "history.parquet")
    FRAME[300:].drop("fraud").write_parquet(tmp_path / "month.parquet")
    turncoat(f"replay detector history.parquet {STORE}")
    turncoat(f"score detector month.parquet {STORE} --update --reasons all --out scores.parquet")
    return made


def read_log(file: Path, kind: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(file) as db:
        sql = "SELECT transaction_id, customer_key FROM log WHERE kind = ? ORDER BY entry"
        return db.execute(sql, (kind,)).fetchall()


def test_a_transaction_is_enough_for_a_label(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    known = FRAME[300:].select("id", "fraud")
    known.write_csv(tmp_path / "labels.csv")
    found = json.loads(turncoat(f"labels detector labels.csv {STORE} --json").stdout)
    n_frauds = int(known["fraud"].sum())
    assert (found["new"], found["known"], found["rejected"]) == (400, 0, 0)
    assert found["frauds"] == n_frauds
    owners = dict(FRAME.select(pl.col("id").cast(pl.String), "who").iter_rows())
    reported = read_log(tmp_path / "beliefs.sqlite", "label")
    assert sorted(reported) == sorted((id, f"c:{owners[id]}") for id in map(str, known["id"]))
    before = (tmp_path / "beliefs.sqlite").read_bytes()
    again = json.loads(turncoat(f"labels detector labels.csv {STORE} --json").stdout)
    assert (again["new"], again["known"], again["frauds"]) == (0, 400, 0)
    assert read_log(tmp_path / "beliefs.sqlite", "label") == reported
    assert (tmp_path / "beliefs.sqlite").read_bytes() == before


def test_files_and_requests_have_the_same_effect(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    known = FRAME[300:].sample(60, seed=1).select("id", "who", "fraud")
    known.write_parquet(tmp_path / "labels.parquet")
    with sqlite3.connect(tmp_path / "beliefs.sqlite") as db:
        db.execute("VACUUM INTO ?", (str(tmp_path / "live.sqlite"),))
    turncoat(f"labels detector labels.parquet {STORE}")
    with client(model, f"sqlite:///{tmp_path}/live.sqlite") as talking:
        lines = [{"id": id, "label": label} for id, _, label in known.iter_rows()]
        lines[::2] = [
            {"id": id, "customer": who, "label": label} for id, who, label in known[::2].iter_rows()
        ]
        body = "\n".join(map(json.dumps, lines))
        answers = [
            json.loads(line)
            for line in talking.post("/v1/labels/batch", content=body).text.splitlines()
        ]
        assert [(int(one["id"]), one["customer"], one["label"]) for one in answers] == list(
            known.iter_rows()
        )
        assert all(one["changed"] for one in answers)
        metrics = talking.get("/metrics").text
        assert f'turncoat_labels_total{{label="1"}} {float(known["fraud"].sum())}' in metrics
    records = []
    for name in ("beliefs", "live"):
        with sqlite3.connect(tmp_path / f"{name}.sqlite") as db:
            records.append(db.execute("SELECT * FROM records ORDER BY key").fetchall())
    assert records[0] == records[1]


def test_a_batch_of_labels_answers_line_by_line(turncoat: Command, model: Path) -> None:
    id = int(FRAME["id"][650])
    lines = [
        json.dumps({"id": id, "label": 1}),
        json.dumps({"id": "nowhere", "label": 1}),
        json.dumps({"id": id, "label": 2}),
        "{",
        json.dumps({"id": id, "label": 1, "more": 1}),
        "",
        json.dumps({"id": str(id), "label": 0}),
    ]
    with client(model, "sqlite:///beliefs.sqlite") as talking:
        response = talking.post("/v1/labels/batch", content="\n".join(lines))
        assert response.status_code == 200
        first, *errors, last = map(json.loads, response.text.splitlines())
        kinds = [(one["line"], one["error"]["kind"]) for one in errors]
        assert kinds == [(2, "not_found"), (3, "invalid"), (4, "malformed"), (5, "invalid")]
        assert (first["changed"], last["changed"], last["label"]) == (True, True, 0)
        single = talking.post("/v1/labels", json={"id": id, "label": 1}).json()
        assert single["customer"] == first["customer"] == FRAME["who"][650]
        unknown = talking.post("/v1/labels", json={"id": "nowhere", "label": 1})
        assert (unknown.status_code, unknown.json()["error"]["kind"]) == (404, "not_found")


def test_an_id_of_several_customers_needs_the_customer(turncoat: Command, model: Path) -> None:
    row = FRAME.row(650, named=True)
    sent = {k: v for k, v in row.items() if v is not None and k != "fraud"}
    with client(model, "sqlite:///beliefs.sqlite") as talking:
        other = sent | {"who": "another", "at": row["at"] + 60}
        assert talking.post("/v1/score", json=other).status_code == 200
        found = talking.post("/v1/labels", json={"id": row["id"], "label": 1})
        assert found.status_code == 422
        assert found.json()["error"]["field"] == "customer"
        named = {"id": row["id"], "customer": "another", "label": 1}
        assert talking.post("/v1/labels", json=named).json()["changed"]


def test_rows_that_cannot_be_applied_are_kept(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    ids = [*FRAME["id"][600:603], 999_999]
    pl.DataFrame({"id": ids, "label": [1, None, 0, 1]}).write_csv(tmp_path / "labels.csv")
    run = turncoat(f"labels detector labels.csv {STORE} --rejected rest/rejected.csv")
    assert run.stdout == "2 new labels (1 frauds), 0 known before, 1 empty, 1 rejected\n"
    assert "first problem: the log has no transaction '999999'" in run.stderr
    (kept,) = pl.read_csv(tmp_path / "rest" / "rejected.csv").to_dicts()
    assert (kept["id"], kept["label"]) == (999_999, 1)
    assert "keep the log long enough" in kept["problem"]
    pl.DataFrame({"id": [999_999]}).write_csv(tmp_path / "none.csv")
    failed = turncoat(f"labels detector none.csv --all-fraud {STORE}", status=3)
    assert "none.csv: none of 1 labels could be applied" in failed.stderr


def test_pseudonyms_are_found_by_the_transaction_too(
    turncoat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNCOAT_PSEUDONYM_KEY", "a key that nobody knows")
    bundle("shop", tmp_path)
    FRAME.drop("fraud").write_parquet(tmp_path / "all.parquet")
    turncoat(f"replay detector all.parquet {STORE} --pseudonymise")
    rows = FRAME[600:604]
    pl.DataFrame({"id": rows["id"][:2]}).write_csv(tmp_path / "ids.csv")
    pl.DataFrame({"id": rows["id"][2:], "who": rows["who"][2:]}).write_csv(tmp_path / "names.csv")
    for name in ("ids", "names"):
        run = f"labels detector {name}.csv --all-fraud --pseudonymise {STORE} --json"
        assert json.loads(turncoat(run).stdout)["new"] == 2


def test_labels_of_a_scored_file_count_in_a_recalibration(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    FRAME[300:].select("id", "fraud").write_csv(tmp_path / "labels.csv")
    turncoat(f"labels detector labels.csv {STORE}")
    found = turncoat(f"recalibrate detector {STORE} --reported-only --dry-run --json").stdout
    assert json.loads(found)["n_rows"] == 400


# ---- chargebacks


def test_labels_may_take_as_long_as_chargebacks(turncoat: Command, tmp_path: Path) -> None:
    """Labels that arrive within 120 days have the effect they would have had from the start."""
    frame = shop_frame(900, 5, days=330.0).sort("at", "id")
    data = read(frame, SHOP)
    names = ("paid", "counterparty_risk_week", "counterparty_risk_month", "device")
    features = Features(label_delay_days=120.0, include=names)
    made = Detector(features, model_of("expected-log")).fit(data, time_split(data))
    made.save(tmp_path / "detector")
    unknown = frame.with_columns(fraud=pl.lit(None, pl.Int64))
    unknown.filter(pl.col("at") < 110 * DAY).write_parquet(tmp_path / "past.parquet")
    turncoat(f"replay detector past.parquet {STORE}")
    found = []
    for start, end in ((110, 200), (200, 300)):
        is_known = pl.col("at").is_between((start - 120) * DAY, (start - 10) * DAY, closed="left")
        known = frame.filter(is_known).select("id", "fraud")
        known.sample(fraction=1.0, shuffle=True, seed=1).write_csv(tmp_path / "labels.csv")
        told = turncoat(f"labels detector labels.csv --no-labels-update-belief {STORE} --json")
        assert json.loads(told.stdout)["known"] < known.height, "some were not known before"
        is_new = pl.col("at").is_between(start * DAY, end * DAY, closed="left")
        frame.filter(is_new).drop("fraud").write_parquet(tmp_path / "new.parquet")
        turncoat(f"score detector new.parquet {STORE} --update --out scores.parquet")
        found.append(pl.read_parquet(tmp_path / "scores.parquet").select("id", "probability"))
    scores = pl.concat(found)
    expected = dict(zip(data.ids, made.score(data).probability, strict=True))
    np.testing.assert_allclose(
        scores["probability"], [expected[id] for id in scores["id"]], atol=1e-9
    )
    without = read(unknown, SHOP)
    blind = dict(zip(without.ids, made.score(without).probability, strict=True))
    shifts = scores["probability"].to_numpy() - [blind[id] for id in scores["id"]]
    assert np.abs(shifts).max() > 1e-3, "labels do matter here"


# ---- the decision log


def test_the_log_is_exported_as_parquet(turncoat: Command, model: Path, tmp_path: Path) -> None:
    FRAME[690:].select("id", "fraud").write_csv(tmp_path / "labels.csv")
    turncoat(f"labels detector labels.csv {STORE}")
    found = json.loads(turncoat(f"export-log {STORE} --out log/all.parquet --json").stdout)
    assert found == {"score": 700, "label": 10, "out": "log/all.parquet"}
    log = pl.read_parquet(tmp_path / "log" / "all.parquet")
    scored = log.filter((pl.col("kind") == "score") & ~pl.col("is_replayed"))
    scores = pl.read_parquet(tmp_path / "scores.parquet").with_columns(pl.col("id").cast(pl.String))
    joined = scored.join(scores, on="id", suffix="_file")
    assert joined.height == 400
    for name in ("probability", "lower", "upper", "raw_membership", "regime", "n_seen", "customer"):
        assert joined[name].to_list() == joined[f"{name}_file"].to_list()
    assert set(scored["model"]) == {load(model).digest_}
    assert set(scored["calibration"]) == {0}
    texts = [
        "; ".join(f"{r['text']}: {r['log_odds']:+.1f}" for r in one) for one in joined["reasons"]
    ]
    assert texts == joined["reasons_file"].to_list()
    shops = {int(row["id"]): row["counterparties"] for row in scored.iter_rows(named=True)}
    for row in FRAME[300:].iter_rows(named=True):
        shop = row["shop"]
        assert shops[row["id"]] == ([] if shop is None else [{"column": "shop", "name": shop}])
    reported = log.filter(pl.col("kind") == "label")
    sent = dict(FRAME[690:].select(pl.col("id").cast(pl.String), "fraud").iter_rows())
    assert dict(reported.select("id", "label").iter_rows()) == sent
    assert abs(log["written_at"].dt.epoch("s").max() - time.time()) < 3600


def test_the_export_can_be_of_a_period(turncoat: Command, model: Path, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "beliefs.sqlite") as db:
        db.execute("UPDATE log SET written_at = 1e9 + entry")
    told = turncoat(f"export-log {STORE} --from {1e9 + 11} --to {1e9 + 31} --out a.parquet").stdout
    assert told == "20 scores and 0 labels. Wrote a.parquet\n"
    assert pl.read_parquet(tmp_path / "a.parquet").height == 20
    turncoat(f"export-log {STORE} --from 2030-01-01 --out b.parquet")
    assert pl.read_parquet(tmp_path / "b.parquet").height == 0
    assert "must end in .parquet" in turncoat(f"export-log {STORE} --out b.csv", status=2).stderr
    assert (
        "there is no store"
        in turncoat("export-log --store sqlite:///typo.sqlite --out c.parquet", status=5).stderr
    )
    assert not (tmp_path / "c.parquet").exists()


def test_old_entries_can_be_deleted_with_an_update(
    turncoat: Command, model: Path, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "beliefs.sqlite") as db:
        db.execute("UPDATE log SET written_at = written_at - 50 * 86400 WHERE entry <= 500")
    run = f"score detector month.parquet {STORE} --update --out again.parquet"
    turncoat(f"{run} --retention-days 60")
    assert len(read_log(tmp_path / "beliefs.sqlite", "score")) == 700
    turncoat(f"{run} --retention-days 40")
    assert len(read_log(tmp_path / "beliefs.sqlite", "score")) == 200
    refused = turncoat(
        f"score detector month.parquet {STORE} --retention-days 9 --out x.csv", status=2
    )
    assert "--retention-days needs --update" in refused.stderr
