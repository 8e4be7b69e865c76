"""The nightly job as a shell script and as an Airflow task, as docs/operations/nightly.md shows it.

The script runs for real, on simulated payments, with the `turncoat` beside this Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.features.sample_data import shop_frame
from tests.serving.helpers import bundle
from turncoat import load

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "nightly.sh"
PAGE = (ROOT / "docs" / "operations" / "nightly.md").read_text()
FRAME = shop_frame(700, 3).sort("at", "id")
DAY = "2024-07-01"

pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="the script needs bash")


def run(cwd: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        arguments,
        cwd=cwd,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def dump_store(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "beliefs.sqlite") as db:
        return list(db.iterdump())


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def prepare(folder: Path) -> Path:
    """A detector, a store with its history, and an inbox with the files of a day."""
    bundle("shop", folder)
    FRAME[:450].write_csv(folder / "history.csv")
    store = "sqlite:///beliefs.sqlite"
    done = run(folder, "turncoat", "replay", "detector", "history.csv", "--store", store)
    assert done.returncode == 0, done.stderr
    (folder / "inbox").mkdir()
    FRAME[450:].drop("fraud").write_csv(folder / "inbox" / f"{DAY}.csv")
    FRAME[450:].select("id", "fraud").write_csv(folder / "inbox" / f"{DAY}-labels.csv")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("nightly"))


def test_a_second_run_changes_nothing_and_a_broken_file_neither(place: Path) -> None:
    first = run(place, str(SCRIPT), DAY)
    assert first.returncode == 0, first.stderr
    score, labels, log = map(json.loads, first.stdout.splitlines())
    assert (score["scored"], score["duplicates"]) == (250, 0)
    assert (labels["new"], labels["rejected"]) == (250, 0)
    assert log["score"] == 700
    files, stored = read_files(place / "results"), dump_store(place)
    names = (f"{DAY}-rejected.csv", f"{DAY}-scores.parquet", "log.parquet")
    assert tuple(files) == names
    scores = pl.read_parquet(place / "results" / f"{DAY}-scores.parquet")
    assert scores.height == 250
    assert set(scores["model"]) == {load(place / "detector").digest_}
    assert (set(scores["calibration"]), set(scores["run_id"])) == ({0}, {f"nightly-{DAY}"})

    again = run(place, str(SCRIPT), DAY)
    assert again.returncode == 0, again.stderr
    score, labels, _ = map(json.loads, again.stdout.splitlines())
    assert (score["scored"], score["duplicates"]) == (0, 250)
    assert (labels["new"], labels["known"]) == (0, 250)
    assert read_files(place / "results") == files
    assert dump_store(place) == stored

    whole = (place / "inbox" / f"{DAY}.csv").read_text()
    (place / "inbox" / f"{DAY}.csv").write_text(whole.replace("paid", "cost", 1))
    broken = run(place, str(SCRIPT), DAY)
    assert broken.returncode == 3
    error = json.loads(broken.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("data", 3)
    assert "paid" in error["message"]
    assert "nightly: exit code 3 needs a person" in broken.stderr
    assert read_files(place / "results") == files
    assert dump_store(place) == stored


def test_a_file_of_chargebacks_needs_no_label_column(tmp_path: Path) -> None:
    prepare(tmp_path)
    chargebacks = FRAME[450:470].select("id")
    chargebacks.write_csv(tmp_path / "inbox" / f"{DAY}-labels.csv")
    refused = run(tmp_path, str(SCRIPT), DAY)
    assert refused.returncode == 3
    assert "--all-fraud" in refused.stderr
    done = run(tmp_path, str(SCRIPT), DAY, LABEL_OPTIONS="--all-fraud")
    assert done.returncode == 0, done.stderr
    _, labels, log = map(json.loads, done.stdout.splitlines())
    assert (labels["new"], labels["frauds"], log["label"]) == (20, 20, 20)


def test_a_file_that_is_not_there_yet_is_for_later(tmp_path: Path) -> None:
    early = run(tmp_path, str(SCRIPT), DAY)
    assert (early.returncode, early.stdout) == (75, "")
    assert "run it again later" in early.stderr
    assert not (tmp_path / "results").exists()
    assert run(tmp_path, str(SCRIPT)).returncode == 2


def test_the_page_shows_the_script() -> None:
    assert f"```bash\n{SCRIPT.read_text()}```" in PAGE


# ---- Airflow, which is not installed: its names are replaced, and the task runs the snippet's code


class AirflowError(Exception):
    """Stands for AirflowException: the task is retried."""


class AirflowFailError(AirflowError):
    """Stands for AirflowFailException: the task is not retried."""


def load_snippet(monkeypatch: pytest.MonkeyPatch) -> tuple[Callable[[str], None], dict[str, Any]]:
    """Return the task of the page's snippet and its options."""
    options: dict[str, Any] = {}
    found: list[Callable[[str], None]] = []

    def task(**given: Any) -> Callable[[Callable[[str], None]], Callable[[str], None]]:
        options.update(given)

        def keep(function: Callable[[str], None]) -> Callable[[str], None]:
            found.append(function)
            return lambda day: None

        return keep

    def dag(**given: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        options.update(given)
        return lambda function: function

    sdk, exceptions = types.ModuleType("airflow.sdk"), types.ModuleType("airflow.exceptions")
    sdk.dag, sdk.task = dag, task
    exceptions.AirflowException = AirflowError
    exceptions.AirflowFailException = AirflowFailError
    modules = {"airflow": types.ModuleType("airflow")}
    modules |= {"airflow.sdk": sdk, "airflow.exceptions": exceptions}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "nightly.md", "exec"), {})
    (function,) = found
    return function, options


@pytest.mark.parametrize(
    ("code", "error"), [(0, None), (75, AirflowError), (3, AirflowFailError), (1, AirflowFailError)]
)
def test_airflow_retries_only_what_may_succeed_later(
    code: int, error: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    score_day, options = load_snippet(monkeypatch)
    assert options["retries"] > 0
    script = tmp_path / "nightly.sh"
    script.write_text(f'#!/bin/sh\necho "$1" > day\nexit {code}\n')
    script.chmod(0o755)
    real_run = subprocess.run
    monkeypatch.setattr(
        subprocess, "run", lambda *given, **more: real_run(*given, **more | {"cwd": tmp_path})
    )
    if error is None:
        score_day(DAY)
    else:
        with pytest.raises(error) as raised:
            score_day(DAY)
        assert type(raised.value) is error
    assert (tmp_path / "day").read_text().strip() == DAY
