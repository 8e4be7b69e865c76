"""Run `turncoat` commands in this process, as a user types them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from turncoat.cli import main


@pytest.fixture
def turncoat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., SimpleNamespace]:
    """Return a function that runs one command in `tmp_path` and checks its exit status."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TURNCOAT_DEBUG", raising=False)

    def run(command: str, *arguments: object, status: int = 0) -> SimpleNamespace:
        argv = ["turncoat", *command.split(), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", argv)
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        assert exit_.value.code == status, err
        assert "Traceback" not in err
        return SimpleNamespace(stdout=out, stderr=err)

    return run
