"""The `turncoat` command: arguments into library calls. No number is computed here."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from turncoat import __version__
from turncoat.cli.comparing import compare, demo, report
from turncoat.cli.fitting import fit
from turncoat.cli.initialising import init
from turncoat.cli.scoring import explain, score
from turncoat.cli.serving import erase, new_key, recalibrate, replay, serve
from turncoat.cli.simulating import simulate
from turncoat.errors import TurncoatError

app = typer.Typer(
    help="Sequential fraud detection with hidden Markov models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose tables cut off what does not fit
)


def _add(command: Callable[..., None]) -> None:
    """Have a command, whose docstring is its help; its examples keep a line each."""
    said, _, examples = inspect.cleandoc(command.__doc__ or "").partition("Examples:")
    lines = [f"  {line.strip('`')}" for line in examples.splitlines() if line]
    app.command(help="\n".join([said, "\b", "Examples:", *lines]))(command)


for _command in (
    simulate,
    init,
    fit,
    score,
    explain,
    serve,
    replay,
    recalibrate,
    erase,
    new_key,
    compare,
    report,
    demo,
):
    _add(_command)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"turncoat {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Sequential fraud detection with hidden Markov models."""


def main() -> None:
    """Run the command line; whatever goes wrong is one line on standard error, and exit status 2 (130 when interrupted)."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except TurncoatError as problem:
        _refuse(str(problem))
    except MemoryError as problem:
        _refuse(f"not enough memory: {problem}. Ask for less at a time")
    except (
        Exception
    ) as problem:  # a disk, a terminal or a library that fails; nothing was put in place
        if os.environ.get("TURNCOAT_DEBUG"):
            raise
        _refuse(f"{type(problem).__name__}: {problem} (TURNCOAT_DEBUG=1 shows where)")


def _refuse(message: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(
        f"turncoat: {message}", markup=False
    )
    sys.exit(2)
