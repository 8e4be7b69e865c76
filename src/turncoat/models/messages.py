"""What a long fit tells the person waiting: that kernels are being compiled, and how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event

from turncoat.models.fitting import Announce
from turncoat.numerics.compiled import can_cache
from turncoat.progress import progress_bars


class _CompilationListener(event.Listener):  # type: ignore[misc]
    """Says once per process that Turncoat's own kernels are being compiled."""

    told = False

    def on_start(self, compilation: Any) -> None:
        """Tell, if this is the first of ours."""
        dispatcher = compilation.data["dispatcher"]
        if not _CompilationListener.told and dispatcher.py_func.__module__.startswith("turncoat."):
            _CompilationListener.told = True
            later = (
                "cached for later runs"
                if can_cache()
                else "not cached: set NUMBA_CACHE_DIR to a writable folder"
            )
            print(
                f"Turncoat: compiling kernels, once (about 15 seconds; {later})",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, compilation: Any) -> None:
        """Nothing to add."""


@contextmanager
def announced_compilation() -> Iterator[None]:
    """Inside, the first compilation of a kernel is announced on standard error."""
    with event.install_listener("numba:compile", _CompilationListener()):
        yield


@contextmanager
def fit_progress(title: str, max_iter: int, wanted: bool | None) -> Iterator[Announce]:
    """A progress bar for each restart."""
    with progress_bars(wanted) as show:

        def announce(restart: int, restarts: int, iteration: int, bound: float) -> None:
            name = f"{title}, restart {restart + 1} of {restarts}"
            show(name, iteration, max_iter, f"bound {bound:,.1f}")

        yield announce
