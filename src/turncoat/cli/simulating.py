"""`turncoat simulate`: write simulated data to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from turncoat.cli.output import Json, echo_json


def simulate(
    preset: Annotated[str, typer.Argument(help="Which data: `ieee-cis` or `handbook`.")],
    out: Annotated[Path, typer.Option(help="Folder to write to; created if missing.")],
    rows: Annotated[int, typer.Option(help="Number of transactions.")] = 20_000,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal files.")] = 0,
    file_format: Annotated[str, typer.Option("--format", help="`csv` or `parquet`.")] = "csv",
    overwrite: Annotated[bool, typer.Option(help="Replace existing files.")] = False,
    as_json: Json = False,
) -> None:
    """Write simulated transactions. No model reads the ground truth beside them.

    Examples:
    `turncoat simulate ieee-cis --rows 50000 --out data/`
    `turncoat simulate handbook --rows 200000 --seed 7 --format parquet --out data/`
    """
    from turncoat.data.simulators import simulate_files

    with Console(stderr=True).status(f"simulating {rows:,} transactions"):
        files = simulate_files(
            preset, rows, seed, out=out, file_format=file_format, overwrite=overwrite
        )
    if as_json:
        echo_json({"files": {name: str(path) for name, path in files.items()}})
        return
    for path in files.values():
        typer.echo(path)
