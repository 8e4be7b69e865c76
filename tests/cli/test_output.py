"""Exit codes, and `--json`: every command prints one JSON object, for an error too."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from tests.features.sample_data import SHOP, shop_frame
from tests.reporting import sample_results
from tests.serving.helpers import bundle
from turncoat import errors
from turncoat.cli import COMMANDS, app
from turncoat.cli.output import ERROR_KINDS, INTERNAL, find_kind
from turncoat.data.schema_file import write_schema
from turncoat.evaluation.results import save_results
from turncoat.serving.stores import sqlite

Command = Callable[..., SimpleNamespace]
PAGE = Path(__file__).parents[2] / "docs" / "operations" / "nightly.md"
NAMES = tuple(command.__name__.replace("_", "-") for command in COMMANDS)
FRAME = shop_frame(700, 3).sort("at", "id")
STORE = "--store sqlite:///beliefs.sqlite"
URL = "http://127.0.0.1:8000"
# What a user types, and a key of the object that is printed. Later runs use files of earlier ones.
RUNS = {
    "simulate": ("handbook --rows 300 --out simulated", "files"),
    "init": ("data.csv --out new.toml", "columns"),
    "features": ("--config turncoat.toml", "features"),
    "fit": ("data.csv --states 2 --restarts 1 --max-iterations 3 --out fitted", "regimes"),
    "score": ("fitted data.csv --out scores.csv", "run_id"),
    "explain": ("detector data.csv --top 2", "explanations"),
    "evaluate": ("detector data.csv", "models"),
    "drift": ("detector data.csv", "verdict"),
    "serve": ("detector", "url"),
    "replay": (f"detector data.csv {STORE}", "scored"),
    "labels": (f"detector labels.csv {STORE}", "known"),
    "recalibrate": (f"detector --list {STORE}", "calibrations"),
    "export-log": (f"{STORE} --out log.parquet", "out"),
    "erase": (f"c0 {STORE} --yes", "erased"),
    "new-key": ("gateway --keys keys.txt", "key"),
    "compare": ("data.csv --config turncoat.toml --out compared", "metrics"),
    "report": ("run", "report"),
    "demo": ("--rows 300", "metrics"),
    "shard": ("data.csv --parts 3 --out shards", "parts"),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A detector beside its data and their schema; `turncoat` runs here."""
    bundle("shop", tmp_path)
    FRAME.write_csv(tmp_path / "data.csv")
    FRAME[600:].select("id", "fraud").write_csv(tmp_path / "labels.csv")
    write_schema(SHOP, tmp_path / "turncoat.toml")
    return tmp_path


def test_every_command_prints_one_json_object(
    turncoat: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tuple(RUNS) == NAMES, "say how a new command is run"
    results = sample_results.rich()  # studies and servers have tests of their own
    monkeypatch.setattr("turncoat.cli.comparing._run_and_report", lambda *_: results)
    monkeypatch.setattr("turncoat.serving.server.serve", lambda _, announce: announce(URL))
    (place / "run").mkdir()
    save_results(results, place / "run" / "results.json")
    manifest = sample_results.MANIFEST, None
    monkeypatch.setattr("turncoat.evaluation.study.load_manifest", lambda _: manifest)
    for name, (arguments, key) in RUNS.items():
        done = turncoat(f"{name} {arguments} --json")
        assert len(done.stdout.splitlines()) == 1, name
        found = json.loads(done.stdout, parse_constant=pytest.fail)
        assert isinstance(found, dict), name
        assert found[key], name


def test_values_of_json_are_those_of_the_text(turncoat: Command, place: Path) -> None:
    def parse(command: str) -> Any:
        return json.loads(turncoat(f"{command} --json").stdout)

    files = parse("simulate handbook --rows 300 --out simulated")["files"]
    assert all((place / path).is_file() for path in files.values())
    inspected = parse("init data.csv --out new.toml")
    assert (place / inspected["out"]).is_file()
    assert inspected["next"] == "turncoat fit data.csv --config new.toml"
    assert {one["role"] for one in inspected["missing"]} == {"customer", "time"}
    roles = {one["column"]: one["roles"] for one in inspected["columns"]}
    assert set(roles) == set(FRAME.columns)
    assert roles["fraud"] == ["label"]
    created = parse("new-key gateway --keys keys.txt")
    assert created["line"] in (place / "keys.txt").read_text()
    assert created["key"] not in (place / "keys.txt").read_text()
    assert parse("new-key other")["keys"] is None
    turncoat(f"replay detector data.csv {STORE}")
    n_entries = FRAME.filter(who="c0").height
    gone = parse(f"erase c0 nobody {STORE} --yes")["erased"]
    nothing = {"record": False, "log_entries": 0}
    assert gone == {"c0": {"record": True, "log_entries": n_entries}, "nobody": nothing}


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_in_a_command_line_is_json_too(turncoat: Command, name: str) -> None:
    failed = turncoat(f"{name} --json --nonsense", status=2)
    error = json.loads(failed.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("usage", 2)
    assert "--nonsense" in error["message"]
    assert error["message"] in failed.stderr
    assert f"Usage: turncoat {name}" in failed.stderr
    assert turncoat(f"{name} --nonsense", status=2).stdout == ""


def fail(error: BaseException) -> Callable[..., Any]:
    def raise_(*_: Any, **__: Any) -> Any:
        raise error

    return raise_


@pytest.mark.parametrize(
    ("command", "kind", "status", "words"),
    [
        ("nosuch", "usage", 2, "No such command"),
        ("simulate nosuch --out x", "usage", 2, "nosuch"),
        ("score detector data.csv --out x.csv --update", "usage", 2, "--update needs --store"),
        ("score detector nowhere.csv --out x.csv", "data", 3, "nowhere.csv: no such file"),
        ("erase nobody --store sqlite:///beliefs.sqlite --yes", "data", 3, "has nothing of nobody"),
        ("score nowhere data.csv --out x.csv", "model", 4, "nowhere"),
        ("report nowhere", "model", 4, "cannot be read"),
        ("export-log --store sqlite:///typo.sqlite --out x.parquet", "store", 5, "is no store"),
        ("export-log --store redis://127.0.0.1:1/0 --out x.parquet", "unavailable", 75, "is up"),
    ],
)
def test_the_exit_code_says_what_is_wrong(
    turncoat: Command, place: Path, command: str, kind: str, status: int, words: str
) -> None:
    if "beliefs" in command:
        turncoat(f"replay detector data.csv {STORE}")
    failed = turncoat(f"{command} --json", status=status)
    error = json.loads(failed.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == (kind, status)
    assert words in error["message"]
    assert error["message"] in failed.stderr
    plain = turncoat(command, status=status)
    assert (plain.stdout, plain.stderr) == ("", failed.stderr)


@pytest.mark.parametrize(
    ("error", "kind", "status", "words"),
    [
        (KeyboardInterrupt(), "interrupted", 130, "stopped"),
        (MemoryError("of 1 TB"), "internal", 1, "not enough memory: of 1 TB"),
        (ZeroDivisionError("a bug"), "internal", 1, "ZeroDivisionError: a bug (TURNCOAT_DEBUG=1"),
        (errors.StateError("old"), "store", 5, "old"),
        (errors.ContentionError("busy"), "unavailable", 75, "busy"),
    ],
)
def test_faults_of_the_machine_and_of_the_program_have_codes(
    turncoat: Command,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    kind: str,
    status: int,
    words: str,
) -> None:
    monkeypatch.setattr("turncoat.data.simulators.simulate_files", fail(error))
    failed = turncoat("simulate handbook --out x --json", status=status)
    found = json.loads(failed.stdout)["error"]
    assert (found["kind"], found["exit_code"]) == (kind, status)
    assert found["message"].startswith(words)


def test_a_locked_store_is_for_later(
    turncoat: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turncoat(f"replay detector data.csv {STORE}")
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.1)
    with sqlite3.connect(place / "beliefs.sqlite") as other:
        other.execute("BEGIN IMMEDIATE")
        failed = turncoat(f"erase c0 {STORE} --yes --json", status=75)
    assert json.loads(failed.stdout)["error"]["kind"] == "unavailable"
    turncoat(f"erase c0 {STORE} --yes")


@pytest.mark.parametrize("answer", ["n", ""])
def test_what_is_not_confirmed_is_not_done(
    turncoat: Command, place: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    turncoat(f"replay detector data.csv {STORE}")
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    failed = turncoat(f"erase c0 {STORE} --json", status=2)
    assert "give --yes" in json.loads(failed.stdout)["error"]["message"]
    turncoat(f"erase c0 {STORE} --yes")


def test_the_page_and_the_help_list_all_codes(turncoat: Command) -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    expected = sorted((one.exit_code, one.name) for one in ERROR_KINDS)
    assert [(int(code), name) for code, name in rows] == expected
    shown = turncoat("--help").stdout.split("Exit codes:")[1]
    listed = re.findall(r"^ +(\d+)  (\w+): ", shown, re.MULTILINE)
    assert [(int(code), name) for code, name in listed] == expected


def test_every_error_of_turncoat_has_a_kind() -> None:
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    raised = [one for one in found if issubclass(one, errors.TurncoatError)]
    for error in raised:
        if error is not errors.TurncoatError:
            assert find_kind(error("text")) is not INTERNAL, error


def test_commands_are_registered_by_their_names() -> None:
    assert tuple(typer.main.get_command(app).commands) == NAMES
