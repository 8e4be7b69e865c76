"""The README and the demo do what they say, as a user would run them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


PAGES = {"README.md": 4, "docs/scores.md": 1, "docs/tutorials/bring-your-own-data.md": 7}


@pytest.mark.parametrize(("page", "n_python"), PAGES.items())
def test_every_block_of_a_page_runs_in_order(
    page: str, n_python: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Python blocks print what their comments, or the text block after them, promise; `turncoat` commands succeed."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```(\w+)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert sum(kind == "python" for kind, _ in blocks) == n_python
    names: dict[str, object] = {}
    for i, (kind, text) in enumerate(blocks):
        if kind == "python":
            exec(compile(text, page, "exec"), names)
            promised = re.findall(r"^ *print\(.*  # (.*)$", text, re.MULTILINE)
            if i + 1 < len(blocks) and blocks[i + 1][0] == "text":
                promised = blocks[i + 1][1].splitlines()
            assert capsys.readouterr().out.splitlines() == promised
        elif kind == "sh":
            for command in re.findall(r"^turncoat (.*)$", text, re.MULTILINE):
                subprocess.run([sys.executable, "-m", "turncoat", *shlex.split(command)], check=True, capture_output=True, timeout=300)


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_demo_finds_a_regime_that_carries_the_fraud(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--rows", "20000"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, cwd=tmp_path).stdout
    assert (tmp_path / "demo" / "train_transaction.csv").is_file()
    overall = float(re.search(r"filtered; ([\d.]+)% fraud", shown)[1])
    for tier in ("BaumWelchHMM", "VariationalHMM"):
        table = shown[shown.index(tier) :]
        table = table[: table.index("└")]
        shares = [float(share) for share in re.findall(r"│ +\d │ +[\d.]+% │ +([\d.]+)% │", table)]
        assert len(shares) == 4
        assert max(shares) > 3 * overall
    assert "bit-identical True, belief as filtered True" in shown


def test_importing_the_package_stays_light() -> None:
    heavy = ["torch", "jax", "polars", "matplotlib", "uvicorn", "starlette"]
    script = f"import sys, turncoat; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
