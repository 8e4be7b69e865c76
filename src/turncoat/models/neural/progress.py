"""How far the training of an encoder has come, for the person waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


@contextmanager
def training_progress(epochs: int, wanted: bool | None) -> Iterator[Callable[[int, float], None]]:
    """A bar over epochs on standard error, told (epoch, validation loss); by default only where a person can see it."""
    console = Console(stderr=True)
    visible = console.is_terminal if wanted is None else wanted
    if not visible:
        yield lambda epoch, loss: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("validation loss {task.fields[loss]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("Training the encoder", total=epochs, loss="")
        yield lambda epoch, loss: progress.update(task, completed=epoch, loss=f"{loss:.5f}")
