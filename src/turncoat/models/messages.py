"""What a long fit tells the person waiting: that kernels are being compiled, and how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core import event
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from turncoat.models.fitting import Announce
from turncoat.numerics.compiled import can_cache


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
    """A bar per restart on standard error; by default only where a person can see it."""
    console = Console(stderr=True)
    visible = console.is_terminal if wanted is None else wanted
    if not visible:
        yield lambda restart, restarts, iteration, bound: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("bound {task.fields[bound]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[int, Any] = {}

        def announce(restart: int, restarts: int, iteration: int, bound: float) -> None:
            if restart not in tasks:
                name = f"{title}, restart {restart + 1} of {restarts}"
                tasks[restart] = progress.add_task(name, total=max_iter, bound="")
            progress.update(tasks[restart], completed=iteration, bound=f"{bound:,.1f}")

        yield announce
