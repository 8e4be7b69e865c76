"""`turncoat labels` and `export-log`: what goes into the log of a store, and what comes out."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option, echo

from turncoat.cli.choosing import parse_time
from turncoat.cli.detectors import Model
from turncoat.cli.output import Json, echo_json
from turncoat.cli.stores import (
    STORE_KINDS,
    UPDATE_HELP,
    Pseudonymise,
    StoreUrl,
    load_pseudonyms,
    open_store,
)
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat import Detector
    from turncoat.data.label_file import LabelFile
    from turncoat.serving.decoding import Pseudonymiser

_FILE_HELP = "A file with a transaction id and a label in each row; the customer is optional."
_FRAUD_HELP = "Every row is a fraud; the file needs no label column."
_REJECTED_HELP = "Write the rows that could not be applied, and why, to this .csv or .parquet file."
_FROM_HELP = "Only entries written from this time on (ISO date in UTC, or seconds since 1970)."


def labels(
    model: Model,
    data: Annotated[Path, Argument(help=_FILE_HELP)],
    store: StoreUrl = "",
    all_fraud: Annotated[bool, Option("--all-fraud", help=_FRAUD_HELP)] = False,
    labels_update_belief: Annotated[bool, Option(help=UPDATE_HELP)] = True,
    pseudonymise: Pseudonymise = False,
    rejected: Annotated[Path | None, Option(help=_REJECTED_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Report a file of labels, such as chargebacks.

    The id of a transaction is enough: the log says whose it is. Rows with an empty label are
    skipped. The same file again changes nothing. Labels can be applied as long as their
    transactions are in the log: see --retention-days of `turncoat serve`.

    Examples:
    `turncoat labels detector/ labels.csv`
    `turncoat labels detector/ chargebacks.csv --all-fraud --store sqlite:///beliefs.sqlite`
    `turncoat labels detector/ labels.parquet --rejected rejected.csv --json`
    """
    import polars as pl

    from turncoat import load
    from turncoat.data.label_file import read_label_file
    from turncoat.data.sources import write_table
    from turncoat.serving.settings import default_store_url

    pseudonyms = load_pseudonyms(pseudonymise)
    detector = load(model)
    with Console(stderr=True).status(escape(f"reading {data}")) as status:
        file = read_label_file(data, detector.features_.plan.schema, all_fraud)
        status.update(escape(f"applying {len(file.ids):,} labels"))
        url = store or default_store_url(model)
        work = _apply_labels(detector, file, url, labels_update_belief, pseudonyms)
        counts, problems = asyncio.run(work)
    if rejected is not None:
        columns = {
            "id": [file.ids[row] for row in problems],
            "customer": [file.customers[row] for row in problems],
            "label": [int(file.labels[row]) for row in problems],
            "problem": list(problems.values()),
        }
        types = {"customer": pl.String, "problem": pl.String, "id": pl.String}
        write_table(pl.DataFrame(columns, schema_overrides=types), rejected)
    first = next(iter(problems.values()), None)
    if problems and len(problems) == len(file.ids) - counts["skipped"]:
        raise DataError(f"{data}: none of {len(problems):,} labels could be applied: {first}")
    if as_json:
        echo_json({**counts, "rejected": len(problems), "first_problem": first})
        return
    echo(
        f"{counts['new']:,} new labels ({counts['frauds']:,} frauds), "
        f"{counts['known']:,} known before, {counts['skipped']:,} empty, "
        f"{len(problems):,} rejected"
    )
    if first is not None:
        echo(f"first problem: {first}", err=True)


async def _apply_labels(
    detector: Detector,
    file: LabelFile,
    url: str,
    labels_update_belief: bool,
    pseudonyms: Pseudonymiser | None,
) -> tuple[dict[str, int], dict[int, str]]:
    """Return counts of labels, and the problem of each row that could not be applied."""
    from turncoat.serving.labels import apply_labels
    from turncoat.serving.responses import LabelResponse
    from turncoat.serving.updater import BeliefUpdater, UpdatePolicy

    problems: dict[int, str] = {}
    counts = {"new": 0, "frauds": 0, "known": 0, "conditioned": 0}
    counts["skipped"] = int((file.labels < 0).sum())
    async with open_store(url) as store:
        policy = UpdatePolicy(labels_update_belief=labels_update_belief)
        updater = BeliefUpdater(store, policy)
        async for rows, results in apply_labels(store, updater, detector, file, pseudonyms):
            for row, found in zip(rows, results, strict=True):
                if not isinstance(found, LabelResponse):
                    problems[row] = str(found)
                    continue
                counts["new" if found.changed else "known"] += 1
                counts["frauds"] += found.changed and found.label
                counts["conditioned"] += found.changed and found.why_unchanged is None
    return counts, problems


def export_log(
    store: Annotated[str, Option(help=f"Store of the service: {STORE_KINDS}.")],
    out: Annotated[Path, Option(help="Output file: .parquet.")],
    since: Annotated[str, Option("--from", help=_FROM_HELP)] = "",
    until: Annotated[str, Option("--to", help="Only entries written before this time.")] = "",
    as_json: Json = False,
) -> None:
    """Write the decision log as a Parquet file.

    It has scores, intervals, reasons, versions and labels.
    The service may keep running. One row is one score or one label, in the order written.

    Examples:
    `turncoat export-log --store sqlite:///detector-beliefs.sqlite --out log.parquet`
    `turncoat export-log --store redis://127.0.0.1:6379/0 --from 2024-07-01 --out july.parquet`
    """
    if out.suffix != ".parquet":
        raise ConfigError(f"--out is {out}; the name must end in .parquet")
    limits = (
        parse_time("--from", since) if since else -math.inf,
        parse_time("--to", until) if until else math.inf,
    )
    with Console(stderr=True).status(escape(f"writing {out}")):
        counts = asyncio.run(_export_log(store, out, *limits))
    if as_json:
        echo_json({**counts, "out": str(out)})
        return
    echo(f"{counts['score']:,} scores and {counts['label']:,} labels. Wrote {out}")


async def _export_log(url: str, out: Path, *limits: float) -> dict[str, Any]:
    from turncoat.serving.export import export_log as export

    async with open_store(url) as store:
        return await export(store, out, *limits)
