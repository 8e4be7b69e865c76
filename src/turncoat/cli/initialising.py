"""`turncoat init`: look at a file and propose what its columns mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def init(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="A CSV or Parquet file, or a folder of Parquet; a second file may be joined to it."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write the schema.")] = Path("turncoat.toml"),
    overwrite: Annotated[
        bool, typer.Option(help="Replace a schema that is already there.")
    ] = False,
) -> None:
    """Guess what the columns of a file mean, and why. The guess is written down for you to correct.

    Examples:

    `turncoat init payments.csv`

    `turncoat init train_transaction.csv train_identity.csv --out ieee.toml`
    """
    from turncoat.data.guessing import guess
    from turncoat.data.settings import write_schema

    with Console(stderr=True).status("looking at the columns"):
        found = guess(files)
    write_schema(found, out, data=files[0], overwrite=overwrite)
    console = Console()
    table = Table(
        "column", "taken as", "because", title=escape(f"What {files[0].name} seems to hold")
    )
    for column, reason in found.reasons.items():
        table.add_row(escape(column), ", ".join(found.schema.roles(column)), escape(reason))
    for column, reason in found.left_out.items():
        table.add_row(escape(column), "not used", escape(reason), style="dim")
    console.print(table)
    for warning in found.warnings:
        console.print(f"Please check: {warning}", markup=False)
    needed = (
        "Correct what is wrong there"
        if found.schema.label
        else "Correct what is wrong there, and name the label, which a detector needs"
    )
    console.print(
        f"Wrote {out}. {needed}; then: turncoat fit --config {out} --out detector",
        markup=False,
        soft_wrap=True,
    )
