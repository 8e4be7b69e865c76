"""`turncoat shard`: a table as Parquet files by customer, for fits on many processes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, echo

from turncoat.cli.fitting import DATA_HELP, FIT_CONFIG_HELP, find_config, find_data
from turncoat.cli.output import Json, echo_json

PARTS_HELP = "Number of parts; more than there are processors, each small beside their memory."


def shard(
    data: Annotated[list[Path] | None, Argument(help=DATA_HELP)] = None,
    config: Annotated[str, Option("--config", help=FIT_CONFIG_HELP)] = "",
    parts: Annotated[int, Option(help=PARTS_HELP)] = 64,
    out: Annotated[Path, Option(help="Folder for the parts.")] = Path("shards"),
    overwrite: Annotated[bool, Option(help="Replace an earlier folder of parts.")] = False,
    as_json: Json = False,
) -> None:
    """Write a table as Parquet parts by customer.

    All transactions of a customer are in one file. The folder can be read like any other data, and
    fitted part by part on a cluster; see docs/scale.md. The table may be larger than memory.

    Examples:
    `turncoat shard payments.csv --parts 32 --out shards/`
    `turncoat shard exports/ --config handbook --out shards/ --overwrite`
    """
    from turncoat.distributed import write_shards

    config = config or find_config(data)
    sources = find_data(data, config)
    found = write_shards(sources, config, n_parts=parts, out=out, overwrite=overwrite)
    if as_json:
        shards = [asdict(shard) for shard in found.shards]
        echo_json({"out": str(out), "rows": found.n_rows, "parts": shards})
        return
    rows = [shard.n_rows for shard in found.shards]
    sizes = f"from {min(rows):,} to {max(rows):,} rows each"
    echo(f"{found.n_rows:,} rows in {len(rows)} parts, {sizes}\n{out}")
