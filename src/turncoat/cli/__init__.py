"""The `turncoat` command: arguments into library calls. No number is computed here."""

from __future__ import annotations

import sys

import typer
from rich.console import Console

from turncoat.cli.fitting import fit
from turncoat.cli.initialising import init
from turncoat.cli.scoring import explain, score
from turncoat.cli.simulating import simulate
from turncoat.errors import TurncoatError

app = typer.Typer(
    help="Sequential fraud detection with hidden Markov models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.command()(simulate)
app.command()(init)
app.command()(fit)
app.command()(score)
app.command()(explain)


def main() -> None:
    """Run the command line; a refusal is one line on standard error and exit status 2."""
    try:
        app()
    except TurncoatError as problem:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"turncoat: {problem}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
