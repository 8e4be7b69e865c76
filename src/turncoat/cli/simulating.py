"""`turncoat simulate`: data to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def simulate(
    preset: Annotated[str, typer.Argument(help="Which data: `ieee-cis` or `handbook`.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; made if it is not there.")],
    rows: Annotated[int, typer.Option(help="Number of transactions.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same files.")] = 0,
    file_format: Annotated[str, typer.Option("--format", help="`csv` or `parquet`.")] = "csv",
    overwrite: Annotated[bool, typer.Option(help="Replace files that are already there.")] = False,
) -> None:
    """Write simulated transactions. The hidden truth beside them is read by no model.

    Examples:

    `turncoat simulate ieee-cis --rows 50000 --out data/`

    `turncoat simulate handbook --rows 200000 --seed 7 --format parquet --out data/`
    """
    from turncoat.data import simulators

    with Console(stderr=True).status(f"simulating {rows:,} transactions"):
        files = simulators.simulate_files(
            preset, rows, seed, out=out, file_format=file_format, overwrite=overwrite
        )
    for path in files.values():
        typer.echo(path)
