"""The `turncoat` command. Each command turns its arguments into library calls."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from turncoat import __version__
from turncoat.cli.choosing import evaluate
from turncoat.cli.comparing import compare, demo, report
from turncoat.cli.drifting import drift
from turncoat.cli.explaining import explain
from turncoat.cli.features import features
from turncoat.cli.fitting import fit
from turncoat.cli.initialising import init
from turncoat.cli.output import INTERNAL, INTERRUPTED, exit_with_error, find_kind, list_exit_codes
from turncoat.cli.scoring import score
from turncoat.cli.serving import erase, new_key, recalibrate, replay, serve
from turncoat.cli.sharding import shard
from turncoat.cli.simulating import simulate
from turncoat.cli.store_log import export_log, labels

COMMANDS = (
    *(simulate, init, features, fit, score, explain, evaluate, drift),
    *(serve, replay, labels, recalibrate, export_log, erase, new_key),
    *(compare, report, demo, shard),
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


@app.callback(epilog=f"\b\nExit codes:\n{list_exit_codes()}")
def _turncoat(version: Annotated[bool, _VERSION] = False) -> None:
    """Sequential fraud detection with hidden Markov models."""


def main() -> None:
    """Run the command line. An error is one line on stderr; `--help` lists the exit codes."""
    # XGBoost's threads would spin while they wait, which on a busy machine takes most of the time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    as_json = "--json" in sys.argv[1:]  # known even if the command line cannot be parsed
    try:
        code = app(prog_name="turncoat", standalone_mode=False)  # Typer raises its errors
        if code == INTERRUPTED.exit_code:
            raise KeyboardInterrupt
    except (Exception, KeyboardInterrupt) as error:
        if find_kind(error) is INTERNAL and os.environ.get("TURNCOAT_DEBUG"):
            raise
        exit_with_error(error, as_json)
    sys.exit(code or 0)
