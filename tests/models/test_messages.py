"""What a waiting person sees."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turncoat import BaumWelchHMM, Panel

SCRIPT = """
import numpy as np
from turncoat import BaumWelchHMM, Panel
panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(50, 2)))
BaumWelchHMM(2, max_iter=3).fit(panel).filter(panel)
"""


def test_compilation_is_announced_once_and_only_when_it_happens(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        for _ in range(2)
    ]
    assert runs[0].stderr.count("compiling kernels, once") == 1
    assert "compiling" not in runs[1].stderr
    assert [run.stdout for run in runs] == ["", ""]


def test_without_a_writable_folder_kernels_are_compiled_and_not_cached() -> None:
    script = "from numba.core import caching; caching.CacheImpl._locator_classes = []\n" + SCRIPT
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stderr.count("compiling kernels, once") == 1
    assert "not cached: set NUMBA_CACHE_DIR" in run.stderr


def test_progress_is_shown_when_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(50, 2)))
    BaumWelchHMM(2, n_restarts=2, max_iter=3, progress=True).fit(panel)
    shown = capfd.readouterr()
    assert "restart 2 of 2" in shown.err
    assert shown.out == ""
    BaumWelchHMM(2, n_restarts=2, max_iter=3).fit(panel)
    assert capfd.readouterr().err == ""
