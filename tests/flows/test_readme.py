"""The README and the demo do what they say, as a user would run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_python_block_of_the_readme_runs_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    promised = re.findall(r"^print\(.*  # (.*)$", "".join(blocks), re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == promised
    assert (tmp_path / "regimes" / "manifest.json").is_file()


def test_links_in_the_documentation_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_demo_recovers_the_truth() -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--customers", "400"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "BaumWelchHMM" in shown
    assert "VariationalHMM" in shown
    shares = [float(share) for share in re.findall(r"([\d.]+)% of", shown)]
    assert len(shares) == 4
    assert min(shares) > 90


def test_importing_the_package_stays_light() -> None:
    heavy = ["torch", "jax", "polars", "matplotlib", "uvicorn", "starlette"]
    script = f"import sys, turncoat; print([name for name in {heavy} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
