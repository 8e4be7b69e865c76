"""Compilation is announced once, and works without a writable cache folder."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from turncoat import BaumWelchHMM, Panel
from turncoat.models import base

# Few kernels, so that a cold compilation is short.
ENCODE = """
import numpy as np
from turncoat import Panel
from turncoat.models.neural.encoder import EncoderLayout
from turncoat.models.neural.frozen import FrozenEncoder
one = np.ones
weights = one((2, 4)), one(4), one((4, 4)), one(4), one((0, 4)), one(4), one(4), one((4, 3)), one(3)
encoder = FrozenEncoder(EncoderLayout(2, (), 3, 4), *weights, 0.5)
for _ in range(2):
    encoder.embed(Panel.from_arrays(np.random.default_rng(0).normal(size=(50, 2))))
"""


def test_compilation_is_announced_once_and_cached(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    runs = [
        subprocess.run(
            [sys.executable, "-c", ENCODE],
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


def test_kernels_compile_without_a_writable_folder() -> None:
    script = "from numba.core import caching; caching.CacheImpl._locator_classes = []\n" + ENCODE
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stderr.count("compiling kernels, once") == 1
    assert "not cached: set NUMBA_CACHE_DIR" in run.stderr


def test_fitting_and_scoring_announce_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[str] = []
    monkeypatch.setattr(base, "announce_compilation", lambda: entered.append("") or nullcontext())
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(50, 2)))
    model = BaumWelchHMM(2, max_iter=3).fit(panel)
    assert len(entered) == 1
    model.filter(panel)
    model.decode(panel)
    assert len(entered) == 3


def test_an_index_that_names_a_missing_class_is_started_anew(tmp_path: Path) -> None:
    module = tmp_path / "renamed.py"
    source = """
from collections import namedtuple
from turncoat.numerics.jit import jit
{name} = namedtuple("{name}", "value")
@jit
def double(pair):
    return 2 * pair.value
assert double({name}(3)) == 6
assert double._cache._cache_file._load_index()
"""
    for name in ("Before", "After"):
        module.write_text(source.format(name=name))
        importing = [sys.executable, "-c", "import renamed"]
        subprocess.run(importing, cwd=tmp_path, check=True, timeout=300)
