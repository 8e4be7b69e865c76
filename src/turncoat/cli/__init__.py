"""The `turncoat` command. Each command turns its arguments into library calls."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from turncoat import __version__
from turncoat.cli.choosing import evaluate
from turncoat.cli.comparing import compare, demo, report
from turncoat.cli.explaining import explain
from turncoat.cli.features import features
from turncoat.cli.fitting import fit
from turncoat.cli.initialising import init
from turncoat.cli.scoring import score
from turncoat.cli.serving import erase, new_key, recalibrate, replay, serve
from turncoat.cli.simulating import simulate
from turncoat.cli.store_log import export_log, labels
from turncoat.errors import TurncoatError

COMMANDS = (
    *(simulate, init, features, fit, score, explain, evaluate),
    *(serve, replay, labels, recalibrate, export_log, erase, new_key),
    *(compare, report, demo),
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich tables cut off long lines
)


def _register(command: Callable[..., None]) -> None:
    """Register a command; its docstring is the help text, with one example per line."""
    text, _, examples = inspect.cleandoc(command.__doc__ or "").partition("Examples:")
    lines = [f"  {line.strip('`')}" for line in examples.splitlines() if line]
    app.command(help="\n".join([text, "\b", "Examples:", *lines]))(command)


for _command in COMMANDS:
    _register(_command)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"turncoat {__version__}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", help="Print the version.", is_eager=True, callback=_print_version
)


@app.callback()
def _turncoat(version: Annotated[bool, _VERSION] = False) -> None:
    """Sequential fraud detection with hidden Markov models."""


def main() -> None:
    """Run the command line. An error is one line on stderr with status 2; Ctrl-C is status 130."""
    # XGBoost's threads would spin while they wait, which on a busy machine takes most of the time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except TurncoatError as error:
        _exit_with_error(str(error))
    except MemoryError as error:
        _exit_with_error(f"not enough memory: {error}. Use fewer rows at a time")
    except Exception as error:
        if os.environ.get("TURNCOAT_DEBUG"):
            raise
        _exit_with_error(f"{type(error).__name__}: {error} (TURNCOAT_DEBUG=1 shows the traceback)")


def _exit_with_error(message: str) -> NoReturn:
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"turncoat: {message}", markup=False)
    sys.exit(2)
