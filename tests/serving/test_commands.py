"""The commands around the service, as users type them: replay, recalibrate, erase, new-key."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from tests.features.sample_data import shop_frame
from tests.scoring.detectors import data_of, detector
from tests.serving.helpers import bundle, client, rows_of
from turncoat import DataError, TurncoatError, load
from turncoat.cli import app
from turncoat.scoring.bundle import list_calibrations
from turncoat.serving.auth import ApiKeyAuthenticator, load_keys
from turncoat.serving.decoding import Pseudonymiser
from turncoat.serving.maintenance import collect_labeled_scores
from turncoat.serving.records import customer_key, unpack_record
from turncoat.serving.stores import open_store
from turncoat.serving.stores.protocol import LogEntry
from turncoat.serving.updater import BeliefUpdater


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return bundle("shop", tmp_path)


def turncoat(*words: str | Path) -> str:
    """What a command prints; raises what it refuses."""
    found = CliRunner().invoke(app, [str(word) for word in words])
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    assert found.exit_code == 0, found.output
    return found.stdout


def history(folder: Path) -> Path:
    """The shop's file, as it was fitted on."""
    shop_frame(700, 3).write_parquet(folder / "history.parquet")
    return folder / "history.parquet"


# ---- replay


def test_replay_warms_the_store_and_a_second_one_does_nothing(model: Path, tmp_path: Path) -> None:
    file = history(tmp_path)
    first = json.loads(turncoat("replay", model, file, "--json"))
    again = json.loads(turncoat("replay", model, file, "--json"))
    n_rows = data_of("shop").transactions.n_rows
    assert (
        first["scored"],
        first["late"],
        first["duplicates"],
        first["refused"],
        first["done_before"],
    ) == (n_rows, 0, 0, 0, 0)
    assert (again["scored"], again["done_before"]) == (0, n_rows)
    scores = detector("shop").score(data_of("shop").transactions)
    with client(model, f"sqlite:///{tmp_path}/detector-beliefs.sqlite") as talking:
        for customer in ("c0", "c7"):
            known = talking.get(f"/v1/customers/{customer}").json()
            own = np.flatnonzero(scores.customers == customer)
            assert known["n_seen"] == len(own)
            assert known["belief"] == pytest.approx(scores.belief[own[-1]].tolist(), abs=1e-12)
            assert known["recent"][0]["probability"] == pytest.approx(
                scores.probability[own[-1]], abs=1e-14
            )
    assert "(700 before)" in turncoat("replay", model, file)


def test_a_replay_that_was_cut_off_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, url = history(tmp_path), f"sqlite:///{tmp_path}/a.sqlite"
    calls = []
    score = BeliefUpdater.process_batch

    async def cut_off(self: BeliefUpdater, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return await score(self, *args)

    monkeypatch.setattr(BeliefUpdater, "process_batch", cut_off)
    assert (
        CliRunner().invoke(app, ["replay", str(model), str(file), "--store", url]).exit_code == 130
    )
    monkeypatch.undo()
    rest = json.loads(turncoat("replay", model, file, "--store", url, "--json"))
    assert 0 < rest["done_before"] < 700
    assert rest["scored"] == 700 - rest["done_before"]
    turncoat("replay", model, file, "--store", f"sqlite:///{tmp_path}/b.sqlite")
    assert _records(tmp_path / "a.sqlite") == _records(tmp_path / "b.sqlite")


def _records(file: Path) -> dict[str, Any]:
    with sqlite3.connect(file) as db:
        rows = db.execute("SELECT key, data FROM records WHERE key NOT LIKE 'replay:%'").fetchall()
    return {key: unpack_record(key, data) for key, data in rows}


def test_a_file_with_other_names_is_another_file(model: Path, tmp_path: Path) -> None:
    frame = shop_frame(700, 3)
    frame.write_parquet(tmp_path / "one.parquet")
    frame.with_columns(pl.col("who") + "x", id=pl.col("id") + 10_000).write_parquet(
        tmp_path / "other.parquet"
    )
    for name in ("one", "other"):
        assert (
            json.loads(turncoat("replay", model, tmp_path / f"{name}.parquet", "--json"))["scored"]
            == 700
        )


def test_files_without_ids_do_not_take_each_others_rows_for_duplicates(tmp_path: Path) -> None:
    from tests.features.sample_data import SHOP, of_frame
    from tests.scoring.detectors import FEW, model_of, time_split
    from turncoat import Detector
    from turncoat.features import Features

    frame = shop_frame(400, 3).drop("id").sort("at")
    schema = replace(SHOP, id=None)
    whole = of_frame(frame, schema).transactions
    made = Detector(Features(min_count=4, include=FEW), model_of("point")).fit(
        whole, time_split(whole)
    )
    made.save(tmp_path / "detector")
    found = []
    for name, part in (("first", frame[:200]), ("second", frame[200:])):
        part.write_parquet(tmp_path / f"{name}.parquet")
        found.append(
            json.loads(
                turncoat("replay", tmp_path / "detector", tmp_path / f"{name}.parquet", "--json")
            )
        )
    assert [one["duplicates"] for one in found] == [0, 0]
    assert found[0]["scored"] == 200


def test_a_fraud_that_a_replayed_file_knew_is_no_news(model: Path, tmp_path: Path) -> None:
    turncoat("replay", model, history(tmp_path))
    fraud = (
        shop_frame(700, 3)
        .filter((pl.col("fraud") == 1) & pl.col("shop").is_not_null())
        .row(0, named=True)
    )
    genuine = (
        shop_frame(700, 3)
        .filter((pl.col("fraud") == 0) & pl.col("shop").is_not_null())
        .row(0, named=True)
    )
    with client(model, f"sqlite:///{tmp_path}/detector-beliefs.sqlite") as talking:

        def told(row: dict[str, Any], label: int) -> Any:
            return talking.post(
                "/v1/labels", json={"id": row["id"], "customer": row["who"], "label": label}
            ).json()

        assert not told(fraud, 1)["changed"]
        effects = [told(genuine, label)["counterparties"]["shop"] for label in (1, 0, 1)]
        assert effects == ["fraud reported", "genuine reported", "fraud reported"]


def test_replay_can_leave_the_log_out_and_customers_unnamed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNCOAT_PSEUDONYM_KEY", "a key that nobody knows")
    turncoat("replay", model, history(tmp_path), "--no-log", "--pseudonymise")
    file = tmp_path / "detector-beliefs.sqlite"
    with sqlite3.connect(file) as db:
        assert db.execute("SELECT count(*) FROM log").fetchone() == (0,)
    assert all(key.startswith(("c:~", "p:")) for key in _records(file))


def test_a_replayed_history_that_comes_again_live_is_known(model: Path, tmp_path: Path) -> None:
    turncoat("replay", model, history(tmp_path))
    with client(model, f"sqlite:///{tmp_path}/detector-beliefs.sqlite") as talking:
        answer = talking.post("/v1/score", json=rows_of("shop")[-1]).json()
        assert answer["duplicate"]


# ---- recalibration


def served_with_outcomes(model: Path, store: str, flipped: bool) -> list[dict[str, Any]]:
    """Score everything and report the frauds; `flipped` reports half of the others as fraud."""
    data = data_of("shop").transactions
    labels = dict(
        zip(
            data.ids.astype(str).tolist(),
            (data.labels if data.labels is not None else []).tolist(),
            strict=True,
        )
    )
    answers = []
    with client(model, store, labels_update_belief=False) as talking:
        lines = b"\n".join(json.dumps(row).encode() for row in rows_of("shop"))
        answers = [
            json.loads(line)
            for line in talking.post("/v1/score/batch", content=lines).text.splitlines()
        ]
        for number, answer in enumerate(answers):
            fraud = labels[answer["id"]] == 1 or (
                flipped and answer["probability"] < 0.2 and number % 2
            )
            if fraud:
                body = {"id": answer["id"], "customer": answer["customer"], "label": 1}
                assert talking.post("/v1/labels", json=body).json()["changed"]
    return answers


def test_recalibration_follows_the_world_and_is_taken_up_and_taken_back(
    model: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/detector-beliefs.sqlite"
    answers = served_with_outcomes(model, store, flipped=True)
    before = load(model).regimes.mean_rates
    assert "not saved" in turncoat(
        "recalibrate", model, "--keep", "0", "--delay-days", "0", "--dry-run"
    )
    assert load(model).calibration_.number == 0
    shown = turncoat("recalibrate", model, "--keep", "0", "--delay-days", "0")
    assert "*    1" in shown
    updated = load(model)
    assert updated.calibration_.number == 1
    beliefs = np.array([answer["belief"] for answer in answers])
    fraud = np.array([answer["probability"] < 0.2 for answer in answers])
    regime = int(np.argmin(before))
    assert updated.regimes.mean_rates[regime] > before[regime] + 0.1
    assert beliefs[fraud, regime].sum() > 0
    with client(model, store) as talking:
        example = talking.get("/v1/model").json()["example"]
        assert talking.post("/v1/score", json=example).json()["calibration"] == 1
        turncoat("recalibrate", model, "--use", "0")
        for _ in range(1000):
            if talking.get("/v1/model").json()["calibration"] == 0:
                break
            asyncio.run(asyncio.sleep(0.01))
        else:
            pytest.fail("the earlier calibration was not taken up")
        assert (
            talking.post(
                "/v1/score",
                json={**example, "transaction_id": "2"}
                if "id" not in example
                else {**example, "id": "2"},
            ).json()["calibration"]
            == 0
        )
    np.testing.assert_array_equal(load(model).regimes.mean_rates, before)
    assert [one.number for one in list_calibrations(model)] == [0, 1]
    found = json.loads(turncoat("recalibrate", model, "--list", "--json"))["calibrations"]
    assert [one["is_current"] for one in found] == [True, False]


def test_recalibration_counts_each_outcome_once_whatever_the_order(
    model: Path, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/beliefs.sqlite"
    answers = served_with_outcomes(model, store, flipped=False)
    made = load(model)

    async def known(delay: float, unreported: bool = True) -> Any:
        opened = open_store(store, create=True)
        try:
            return await collect_labeled_scores(opened, made, 4e9, delay, unreported)
        finally:
            await opened.close()

    everything = asyncio.run(known(0.0))
    labels = data_of("shop").transactions.labels
    assert len(everything.labels) == len(answers)
    assert everything.labels.sum() == (0 if labels is None else labels.sum())
    assert len(everything.offsets) == len({answer["customer"] for answer in answers}) + 1
    with pytest.raises(DataError, match="labels are frauds"):  # of which no share can be told
        asyncio.run(known(0.0, unreported=False))
    frauds = {
        id
        for id, label in zip(data_of("shop").transactions.ids.astype(str), labels, strict=True)
        if label == 1
    }
    genuine = next(answer for answer in answers if answer["id"] not in frauds)
    with client(model, store, labels_update_belief=False) as talking:
        talking.post(
            "/v1/labels", json={"id": genuine["id"], "customer": genuine["customer"], "label": 0}
        )
    reported = asyncio.run(known(0.0, unreported=False))
    assert reported.labels.sum() == everything.labels.sum() == len(reported.labels) - 1
    with pytest.raises(
        DataError, match="in the last 115741 days"
    ):  # frauds among the young ones are not taken without the genuine ones
        asyncio.run(known(1e10))
    ordered = sorted(answers, key=lambda answer: (customer_key(answer["customer"]), answer["id"]))
    np.testing.assert_allclose(everything.beliefs, [answer["belief"] for answer in ordered])


def test_recalibration_leaves_replayed_history_out(model: Path, tmp_path: Path) -> None:
    turncoat("replay", model, history(tmp_path))
    with client(model, f"sqlite:///{tmp_path}/detector-beliefs.sqlite") as talking:
        for i in range(3):
            row = {
                **rows_of("shop")[-1],
                "id": f"live{i}",
                "at": rows_of("shop")[-1]["at"] + 60.0 * i,
            }
            talking.post("/v1/score", json=row)
        body = {"id": "live0", "customer": rows_of("shop")[-1]["who"], "label": 1}
        assert talking.post("/v1/labels", json=body).json()["changed"]
    assert (
        "1 frauds and 2 genuine"
        in CliRunner().invoke(app, ["recalibrate", str(model), "--delay-days", "0"]).stderr
    )
    assert [(one.n_rows, one.n_frauds) for one in list_calibrations(model)][1:] == [(3, 1)]


def test_recalibration_needs_outcomes(model: Path, tmp_path: Path) -> None:
    with client(model, f"sqlite:///{tmp_path}/detector-beliefs.sqlite") as talking:
        talking.post("/v1/score", json=rows_of("shop")[0])
    with pytest.raises(TurncoatError, match="no label can be used: 0 were reported"):
        turncoat("recalibrate", model)
    assert load(model).calibration_.number == 0


# ---- erasing


def entries_of(file: Path) -> dict[str, list[LogEntry]]:
    """A store's log by customer."""

    async def read() -> list[LogEntry]:
        opened = open_store(f"sqlite:///{file}")
        try:
            return await opened.read_log(limit=10**6)
        finally:
            await opened.close()

    found: dict[str, list[LogEntry]] = {}
    for entry in asyncio.run(read()):
        found.setdefault(entry.parties[0][0], []).append(entry)
    return found


def test_erased_customers_are_gone_and_the_others_as_they_were(model: Path, tmp_path: Path) -> None:
    turncoat("replay", model, history(tmp_path))
    file = tmp_path / "detector-beliefs.sqlite"
    records, entries = _records(file), entries_of(file)
    said = turncoat("erase", "c0", "c7", "nobody", "c0", "--store", f"sqlite:///{file}", "--yes")
    gone = {key: len(entries.pop(key)) for key in ("c:c0", "c:c7")}
    assert said.splitlines() == [
        f"c0: the record and {gone['c:c0']} log entries erased",
        f"c7: the record and {gone['c:c7']} log entries erased",
        "nobody: nothing was stored",
    ]
    assert entries_of(file) == entries
    assert _records(file) == {key: record for key, record in records.items() if key not in gone}


def test_who_was_never_there_cannot_be_erased(model: Path, tmp_path: Path) -> None:
    turncoat("replay", model, history(tmp_path))
    file = tmp_path / "detector-beliefs.sqlite"
    before = _records(file)
    found = CliRunner().invoke(
        app, ["erase", "nobody", "c", "--store", f"sqlite:///{file}", "--yes"]
    )
    assert isinstance(found.exception, DataError)
    words = "nothing of nobody, c. Give names as responses show them, or use --pseudonymise"
    assert f"{file} has {words}" in str(found.exception)
    assert _records(file) == before
    with pytest.raises(TurncoatError, match="no ://"):
        turncoat("erase", "c0", "--store", str(file), "--yes")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_erasing_is_asked_about(model: Path, tmp_path: Path, answer: str, code: int) -> None:
    turncoat("replay", model, history(tmp_path))
    file = tmp_path / "detector-beliefs.sqlite"
    found = CliRunner().invoke(
        app, ["erase", "c0", "c7", "--store", f"sqlite:///{file}"], input=answer
    )
    assert f"Erase c0, c7 from sqlite:///{file} for ever?" in found.stderr
    assert found.exit_code == code
    assert ("c:c0" in _records(file)) == ("c:c0" in entries_of(file)) == (code == 1)


def test_a_pseudonym_is_erased_by_the_name_or_as_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNCOAT_PSEUDONYM_KEY", "a key that nobody knows")
    turncoat("replay", model, history(tmp_path), "--pseudonymise")
    file = tmp_path / "detector-beliefs.sqlite"
    store = f"sqlite:///{file}"
    stored = [Pseudonymiser().pseudonymise(name) for name in ("c0", "c7")]
    assert CliRunner().invoke(app, ["erase", "c0", "--store", store, "--yes"]).exit_code == 1
    assert turncoat("erase", "c0", "--store", store, "--pseudonymise", "--yes").startswith(
        "c0: the record and "
    )
    assert turncoat("erase", stored[1], "--store", store, "--yes").startswith(
        f"{stored[1]}: the record and "
    )
    assert not {customer_key(name) for name in stored} & (
        _records(file).keys() | entries_of(file).keys()
    )
    monkeypatch.delenv("TURNCOAT_PSEUDONYM_KEY")
    with pytest.raises(TurncoatError, match="TURNCOAT_PSEUDONYM_KEY"):
        turncoat("erase", "c0", "--store", store, "--pseudonymise", "--yes")


def test_a_running_service_meets_an_erased_customer_anew(model: Path, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/beliefs.sqlite"
    rows = [row for row in rows_of("shop") if row["who"] == "c0"]
    with client(model, store) as talking:
        for row in rows[:5]:
            assert talking.post("/v1/score", json=row).status_code == 200
        assert (
            turncoat("erase", "c0", "--store", store, "--yes")
            == "c0: the record and 5 log entries erased\n"
        )
        assert talking.get("/v1/customers/c0").status_code == 404
        assert (
            talking.post(
                "/v1/labels", json={"id": rows[0]["id"], "customer": "c0", "label": 1}
            ).status_code
            == 404
        )
        answer = talking.post("/v1/score", json=rows[5]).json()
        assert (answer["belief_source"], answer["n_seen"], answer["late"]) == ("new", 1, False)
        assert talking.get("/v1/customers/c0").json()["n_seen"] == 1


def test_a_running_service_forgets_what_it_remembers_of_an_erased_customer(
    model: Path, tmp_path: Path
) -> None:
    """Otherwise it could overwrite a record that others created anew since."""
    store = f"sqlite:///{tmp_path}/beliefs.sqlite"
    row = rows_of("shop")[0]
    with client(model, store) as talking:
        assert talking.post("/v1/score", json=row).json()["n_seen"] == 1
        assert talking.post("/v1/score", json=row).json()["duplicate"]
        turncoat("erase", row["who"], "--store", store, "--yes")
        again = talking.post("/v1/score", json=row).json()
        assert (again["duplicate"], again["n_seen"], again["belief_source"]) == (False, 1, "new")


def test_an_erased_customer_can_be_replayed(model: Path, tmp_path: Path) -> None:
    turncoat("replay", model, history(tmp_path))
    file = tmp_path / "detector-beliefs.sqlite"
    before = _records(file)["c:c0"]
    turncoat("erase", "c0", "--store", f"sqlite:///{file}", "--yes")
    theirs = shop_frame(700, 3).filter(pl.col("who") == "c0")
    theirs.write_parquet(tmp_path / "theirs.parquet")
    found = json.loads(turncoat("replay", model, tmp_path / "theirs.parquet", "--json"))
    assert (found["scored"], found["late"], found["duplicates"]) == (theirs.height, 0, 0)
    after = _records(file)["c:c0"]
    assert (after.last_time, [seen.id for seen in after.recent_ids]) == (
        before.last_time,
        [seen.id for seen in before.recent_ids],
    )


# ---- keys


def test_a_new_key_is_added_to_its_file_by_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    secrets = [
        turncoat("new-key", name, "--scopes", scopes, "--keys", file).splitlines()[0].split()[-1]
        for name, scopes in (("gate", "score"), ("desk", "read,label"))
    ]
    authenticator = ApiKeyAuthenticator(load_keys(file))
    found = [authenticator.find_key(secret) for secret in secrets]
    assert [(key.name, sorted(key.scopes)) for key in found if key is not None] == [
        ("gate", ["score"]),
        ("desk", ["label", "read"]),
    ]
    before = file.read_bytes()
    for bad in (("gate", "score"), ("other", "drink"), ("two words", "score")):
        with pytest.raises(TurncoatError):
            turncoat("new-key", bad[0], "--scopes", bad[1], "--keys", file)
    assert file.read_bytes() == before
    assert "SHA" not in turncoat("new-key", "solo")


def test_a_keys_file_keeps_its_place_rights_and_owner(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    file, link = tmp_path / "kept" / "keys", tmp_path / "keys"
    link.symlink_to(file)
    turncoat("new-key", "gate", "--keys", link)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
    owner = file.stat().st_uid
    turncoat("new-key", "desk", "--keys", link)
    assert link.is_symlink()
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o640, owner)
    assert [key.name for key in load_keys(file)] == ["gate", "desk"]
    with pytest.raises(TurncoatError, match="cannot be written: No such file"):
        turncoat("new-key", "gate", "--keys", tmp_path / "absent" / "keys")


def test_a_file_of_another_schema_is_refused(model: Path, tmp_path: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(TurncoatError, match="schema"):
        turncoat("replay", model, tmp_path / "other.parquet")


@pytest.mark.parametrize("store", ["sqlite:///{}/typo.sqlite", "memory://"])
def test_what_looks_into_a_store_makes_none(model: Path, tmp_path: Path, store: str) -> None:
    url = store.format(tmp_path)
    for command in (["erase", "c1", "--yes"], ["recalibrate", model, "--dry-run"]):
        with pytest.raises(TurncoatError, match=r"there is no store|always starts empty"):
            turncoat(*command, "--store", url)
    assert not (tmp_path / "typo.sqlite").exists()
