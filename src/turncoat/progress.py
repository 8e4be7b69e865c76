"""Progress on standard error: on a terminal only, unless `visible` is True or False."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as rich_progress
from rich.console import Console

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
    done = ("{task.description}", rich_progress.BarColumn(), rich_progress.MofNCompleteColumn())
    times = (rich_progress.TimeElapsedColumn(), rich_progress.TimeRemainingColumn())
    bars: dict[str, rich_progress.TaskID] = {}
    columns = (*done, "{task.fields[text]}", *times)
    with rich_progress.Progress(*columns, console=console) as progress:

        def show(name: str, completed: int, total: int, text: str = "") -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=total, text=text)
            progress.update(bars[name], completed=completed, text=text)

        yield show
