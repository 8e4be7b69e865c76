"""Progress for the person who waits, on standard error.

`visible=None` shows it only on a terminal; True and False decide otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

ShowProgress = Callable[..., None]  # (name, completed, total, text=""): updates the bar of a name


def progress_console(visible: bool | None = None) -> Console:
    """A console on standard error that prints plain lines, or nothing."""
    console = Console(stderr=True, markup=False, highlight=False)
    console.quiet = not (console.is_terminal if visible is None else visible)
    return console


@contextmanager
def progress_bars(visible: bool | None = None) -> Iterator[ShowProgress]:
    """Progress bars on standard error; the first call for a name creates its bar."""
    console = progress_console(visible)
    if console.quiet:
        yield lambda name, completed, total, text="": None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bars: dict[str, TaskID] = {}
    with Progress(*columns, console=console) as progress:

        def show(name: str, completed: int, total: int, text: str = "") -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total, text=text)
            progress.update(bars[name], completed=completed, text=text)

        yield show
