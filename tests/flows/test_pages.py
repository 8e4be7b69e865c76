"""The README, the pages and the demo work as a user runs them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from turncoat import load
from turncoat.evaluation.results import load_results
from turncoat.scoring.detector import DETECTOR_KINDS

ROOT = Path(__file__).parents[2]
PAGES = {  # number of Python blocks
    "README.md": 1,
    "docs/coming-from-hmmlearn.md": 10,
    "docs/engine.md": 7,
    "docs/scores.md": 1,
    "docs/tutorials/bring-your-own-data.md": 7,
}


# A choice within minutes is the user's; one trial of each search runs the same code.
SHORTER = {
    "turncoat fit data --config ieee-cis\n": "turncoat fit data --config ieee-cis --quick\n",
    "choose_champion(transactions, split, budget_s=60)": (
        "choose_champion(transactions, split, max_trials=1)"
    ),
}


def run_turncoat(command: str, cwd: Path) -> list[str]:
    """Run a command in a folder and return the lines of its output."""
    argv = [sys.executable, "-m", "turncoat", *shlex.split(command)]
    done = subprocess.run(argv, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)
    return done.stdout.splitlines()


@pytest.mark.parametrize(("page", "n_python"), PAGES.items())
def test_every_block_of_a_page_runs(
    page: str,
    n_python: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """Python blocks print what their comment or the next text block says; commands succeed."""
    monkeypatch.chdir(tmp_path)
    content = (ROOT / page).read_text()
    for long, short in SHORTER.items() if page == "README.md" else ():
        assert long in content
        content = content.replace(long, short)
    blocks = re.findall(r"```(\w+)\n(.*?)```", content, re.DOTALL)
    assert sum(kind == "python" for kind, _ in blocks) == n_python
    names: dict[str, object] = {}
    for i, (kind, text) in enumerate(blocks):
        if kind == "python":
            exec(compile(text, page, "exec"), names)
            expected = re.findall(r"^ *print\(.*  # (.*)$", text, re.MULTILINE)
            if i + 1 < len(blocks) and blocks[i + 1][0] == "text":
                expected = blocks[i + 1][1].splitlines()
            assert capsys.readouterr().out.splitlines() == expected
        elif kind == "sh":
            for command in re.findall(r"^turncoat (.*)$", text, re.MULTILINE):
                run_turncoat(command, tmp_path)


@pytest.mark.skipif(
    not shutil.which("curl") or not shutil.which("bash"),
    reason="the README example needs bash and curl",
)
def test_the_service_responds_as_the_readme_shows(tmp_path: Path) -> None:
    """Run the block as written, on a free port, with a small detector in place of the demo's."""
    (block,) = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    detector, data = re.search(r"^detector=(\S+) data=(\S+)$", block, re.MULTILINE).groups()
    run_turncoat(f"simulate ieee-cis --rows 2000 --out {data}", tmp_path)
    options = "--config ieee-cis --supervision anchored --states 3 --restarts 1"
    run_turncoat(f"fit {data} {options} --out {detector}", tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -e\n" + block.replace("8000", port)
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            shown = shell.communicate(timeout=120)[0].splitlines()
        finally:
            with contextlib.suppress(ProcessLookupError):  # the server may still run
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0
    ready, first, second, customer, label = map(json.loads, shown[1:6])
    assert ready == {"status": "ready"}
    assert (first["duplicate"], second) == (False, {**first, "duplicate": True})
    assert (customer["n_seen"], customer["belief"]) == (1, first["belief"])
    assert (label["changed"], label["belief"]) == (True, "conditioned")
    assert shown[0].startswith("2,000 transactions replayed")


def test_the_demo_writes_a_report_and_a_detector(tmp_path: Path) -> None:
    shown = run_turncoat("demo --rows 5000", tmp_path)
    report = tmp_path / shown[-1]
    assert report.name == "report.html"
    assert len(shown) <= 34
    assert max(map(len, shown)) <= 100
    results = load_results(report.parent / "results.json")
    names = {candidate.name for candidate in results.candidates}
    assert {"XGBoost", "hybrid", "variational, corrected, filtered"} <= names
    saved = re.search(r"Saved the champion to (\S+)\. Next: turncoat serve", "\n".join(shown))[1]
    assert Path(saved).name == "champion"
    assert load(tmp_path / saved).kind in DETECTOR_KINDS
    before = report.read_bytes()
    assert run_turncoat(f"report {report.parent}", tmp_path) == [str(report)]
    assert report.read_bytes() == before


def test_importing_the_package_stays_light() -> None:
    heavy = ["torch", "jax", "polars", "matplotlib", "granian", "starlette", "dask", "distributed"]
    script = f"import sys, turncoat; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "[]"
