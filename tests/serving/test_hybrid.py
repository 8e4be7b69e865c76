"""A hybrid in the service: scores, duplicates, labels, recalibration, versions, drift, reasons."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests.features.sample_data import shop_frame
from tests.scoring.detectors import data_of, tree_detector
from tests.serving.helpers import client, rows_of
from turncoat import ConfigError, load
from turncoat.cli import app
from turncoat.scoring import DetectorState
from turncoat.serving.settings import ServiceSettings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tree_detector().save(tmp_path / "detector")
    return tmp_path / "detector"


def turncoat(*words: str | Path) -> str:
    """What a command prints; raises what it refuses."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None:
        raise found.exception
    return found.stdout


def send_batch(api: TestClient, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    lines = b"\n".join(json.dumps(row).encode() for row in rows)
    text = api.post("/v1/score/batch", content=lines).text
    return [json.loads(line) for line in text.splitlines()]


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_service_answers_as_a_scored_file(model: Path, tmp_path: Path) -> None:
    """Without labels: they would be known to the file's counterparties at another time."""
    shop_frame(700, 3).drop("fraud").write_parquet(tmp_path / "file.parquet")
    threshold = float(np.quantile(tree_detector().score(data_of("shop").transactions).value, 0.9))
    reasons = ("--reasons", f"above:{threshold:.4f}")
    scored = tmp_path / "scores.parquet"
    turncoat("score", model, tmp_path / "file.parquet", "--out", scored, *reasons)
    expected = {str(row["id"]): row for row in pl.read_parquet(scored).iter_rows(named=True)}
    with client(model, expect_labels=False, reasons=reasons[1]) as api:
        answers = send_batch(api, rows_of("shop"))
        assert api.get("/v1/model").json()["kind"] == "hybrid"
    assert len(answers) == len(expected) == 700
    n_with_reasons = 0
    for answer in answers:
        row = expected[answer["id"]]
        for name, value in (
            ("probability", answer["probability"]),
            ("lower", answer["interval"][0]),
            ("upper", answer["interval"][1]),
            ("belief_1", answer["belief"][1]),
        ):
            assert value == pytest.approx(row[name], abs=1e-6)
        shown = [f"{one['text']}: {one['log_odds']:+.1f}" for one in answer["reasons"]]
        assert ("; ".join(shown) or None) == row["reasons"]
        n_with_reasons += bool(shown)
    assert 20 < n_with_reasons < 200


def test_a_duplicate_gets_its_first_response_with_its_reasons(model: Path) -> None:
    rows = rows_of("shop")[:30]
    with client(model) as api:
        first = send_batch(api, rows)
        again = [api.post("/v1/score", json=row).json() for row in rows]
    assert all(one["reasons"] for one in first)
    assert again == [{**one, "duplicate": True} for one in first]


def split_customers() -> dict[str, list[dict[str, Any]]]:
    """Every customer's first rows, without counterparties: their records have another order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of("shop"):
        own = found.setdefault(row["who"], [])
        if len(own) < 6:
            own.append({**row, "shop": None})
    return found


@pytest.mark.parametrize(
    ("label", "transitions"), [(0, "per-row"), (1, "per-row"), (1, "continuous")]
)
def test_labels_condition_what_the_trees_see_of_the_path(
    tmp_path: Path, label: int, transitions: str
) -> None:
    made = tree_detector("hybrid", "anchored", transitions)
    made.save(tmp_path / "detector")
    effects, customers = [], split_customers()
    with client(tmp_path / "detector") as api:
        for customer, rows in customers.items():
            state = DetectorState()
            for place, row in enumerate(rows):
                _, unlabelled = made.score_one(state, row)
                if place:
                    body = {"id": rows[place - 1]["id"], "customer": customer, "label": label}
                    assert api.post("/v1/labels", json=body).json()["belief"] == "conditioned"
                    state = made.live.condition(state, label)
                state, expected = made.score_one(state, row)
                found = api.post("/v1/score", json=row).json()
                assert found["probability"] == pytest.approx(expected.probability, abs=1e-9)
                assert found["belief"] == pytest.approx(expected.belief, abs=1e-9)
                effects.append(abs(expected.probability - unlabelled.probability))
    assert max(effects) > 1e-3


def test_recalibration_moves_the_lines_and_goes_back(model: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/detector-beliefs.sqlite"
    new = {**rows_of("shop")[0], "who": "somebody", "id": "new", "shop": None}
    with client(model, store, labels_update_belief=False) as api:
        answers = send_batch(api, rows_of("shop"))
        for answer in answers[::2]:  # half of all, whatever the trees thought
            body = {"id": answer["id"], "customer": answer["customer"], "label": 1}
            assert api.post("/v1/labels", json=body).json()["changed"]
        before = api.post("/v1/score", json=new).json()
        turncoat("recalibrate", model, "--keep", "0", "--delay-days", "0")
        wait_until(lambda: api.get("/v1/model").json()["calibration"] == 1)
        after = api.post("/v1/score", json={**new, "who": "another"}).json()
        turncoat("recalibrate", model, "--use", "0")
        wait_until(lambda: api.get("/v1/model").json()["calibration"] == 0)
        back = api.post("/v1/score", json={**new, "who": "a third"}).json()
    assert (before["calibration"], after["calibration"], back["calibration"]) == (0, 1, 0)
    assert before["belief"] == after["belief"] == back["belief"]
    assert after["probability"] > before["probability"] + 0.1
    updated = load(model, calibration=1).calibration_.regime_rankers["filtered"]
    assert np.abs(updated.slopes).max() < 0.1  # labels were at random


def test_another_version_rebuilds_beliefs_and_keeps_scoring(model: Path) -> None:
    other = tree_detector("hybrid", "anchored")
    rows = split_customers()["c6"][:4]
    state = DetectorState()
    for row in rows[:3]:
        state = other.score_one(state, row)[0]
    _, expected = other.score_one(state, rows[3])
    with client(model) as api:
        first = send_batch(api, rows[:3])
        other.save(model)
        wait_until(lambda: api.get("/v1/model").json()["model"] == other.digest_)
        found = api.post("/v1/score", json=rows[3]).json()
    assert {one["model"] for one in first} == {tree_detector().digest_}
    assert (found["model"], found["belief_source"]) == (other.digest_, "rebuilt")
    assert found["probability"] == pytest.approx(expected.probability, abs=1e-9)


def test_drift_watches_the_scores_of_the_trees(model: Path) -> None:
    rows = rows_of("shop")
    with client(model) as api:
        send_batch(api, rows)
        usual = api.get("/v1/drift").json()
    with client(model) as api:
        send_batch(api, [{**row, "paid": 50 * row.get("paid", 1.0)} for row in rows])
        strange = api.get("/v1/drift").json()
    assert usual["transactions"] + usual["left_out"] == pytest.approx(len(rows), rel=0.05)
    assert usual["transactions"] > 300
    assert strange["score"]["psi"] > usual["score"]["psi"] + 0.1


# ---- reasons


def score_all(model: Path, **settings: Any) -> list[dict[str, Any]]:
    with client(model, **settings) as api:
        return send_batch(api, rows_of("shop")[:100])


def test_reasons_for_all_for_none_or_for_likely_frauds(model: Path) -> None:
    every, none = score_all(model), score_all(model, reasons="none")
    assert {len(one["reasons"]) for one in every} == {5}  # four, and the others as one
    threshold = sorted(one["probability"] for one in every)[-10]
    some = score_all(model, reasons=f"above:{threshold!r}")
    assert none == [{**one, "reasons": []} for one in every]
    assert some == [
        one if one["probability"] >= threshold else {**one, "reasons": []} for one in every
    ]
    assert 10 <= sum(bool(one["reasons"]) for one in some) < 100
    few = score_all(model, n_reasons=1)
    assert [one["reasons"][0] for one in few] == [one["reasons"][0] for one in every]
    assert {len(one["reasons"]) for one in few} == {2}


@pytest.mark.parametrize("reasons", ["above:2", "above:x", "4", "some"])
def test_a_wrong_choice_of_reasons_is_refused_before_anything_starts(
    model: Path, tmp_path: Path, reasons: str
) -> None:
    rule = rf"reasons is '{reasons}'; it must be all, none, or above:P .*, such as above:0\.05"
    with pytest.raises(ConfigError, match=rule):
        ServiceSettings(model_path=str(model), store_url="memory://", reasons=reasons).check()
    with pytest.raises(ConfigError, match=rule):
        turncoat("serve", model, "--reasons", reasons)
    out = tmp_path / "scores.csv"
    with pytest.raises(ConfigError, match=rule):
        turncoat("score", tmp_path / "missing", "missing", "--out", out, "--reasons", reasons)
    assert not out.exists()


def test_no_reasons_are_asked_for_by_name(model: Path) -> None:
    with pytest.raises(ConfigError, match="n_reasons is 0; it must be a number of at least 1"):
        ServiceSettings(model_path=str(model), store_url="memory://", n_reasons=0).check()
