"""The page about selection runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "selection.md"


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(block, PAGE.name, "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[2:6]] == ["2", "3", "4", "5"]
    assert shown[-2].startswith("by eligibility: ")
    assert shown[-1].startswith("by criterion: ")
    assert len(list((tmp_path / "orders").glob("order-*"))) == 4
