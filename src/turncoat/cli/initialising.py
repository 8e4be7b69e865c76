"""`turncoat init`: inspect a file and propose what its columns mean."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from turncoat.cli.output import Json, echo_json

_FILES_HELP = "CSV or Parquet files or a folder of them; two that share a key are joined."


def init(
    files: Annotated[list[Path], Argument(help=_FILES_HELP)],
    out: Annotated[Path, Option(help="Where to write the schema.")] = Path("turncoat.toml"),
    overwrite: Annotated[bool, Option(help="Replace an existing schema.")] = False,
    as_json: Json = False,
) -> None:
    """Infer what the columns of a file mean. The schema is written down for you to check.

    Examples:
    `turncoat init payments.csv`
    `turncoat init exports/`
    `turncoat init train_transaction.csv train_identity.csv --out ieee.toml`
    """
    from turncoat.data.inference import infer_schema
    from turncoat.data.schema_file import find_gaps, write_schema

    with Console(stderr=True).status("inspecting the columns"):
        inferred = infer_schema(files)
    is_joined = inferred.schema.join is not None
    data = files[:1] if is_joined else files
    write_schema(inferred, out, data=data, overwrite=overwrite)
    gaps = find_gaps(out)
    command = shlex.join(["turncoat", "fit", *map(str, data)])
    if not any(folder / "turncoat.toml" == out for folder in (files[0].parent, Path())):
        command += f" --config {shlex.quote(str(out))}"
    if as_json:
        columns = [
            {"column": column, "roles": inferred.schema.roles_of(column), "reason": reason}
            for column, reason in {**inferred.reasons, **inferred.ignored}.items()
        ]
        content = {"out": str(out), "findings": inferred.findings, "columns": columns}
        missing = [{"role": role, "line": line} for role, line in gaps]
        echo_json({**content, "warnings": inferred.warnings, "missing": missing, "next": command})
        return
    console = Console()
    for finding in inferred.findings:
        console.print(finding, markup=False, soft_wrap=True)
    table = Table("column", "role", "reason", title=escape(f"Columns of {files[0].name}"))
    for column, reason in inferred.reasons.items():
        table.add_row(escape(column), ", ".join(inferred.schema.roles_of(column)), escape(reason))
    for column, reason in inferred.ignored.items():
        table.add_row(escape(column), "ignored", escape(reason), style="dim")
    console.print(table)
    for warning in inferred.warnings:
        console.print(f"Please check: {warning}", markup=False)
    todo = "Correct what is wrong"
    if gaps:
        places = " and ".join(f"`{role}` in line {line}" for role, line in gaps)
        todo = f"Fill in {places} first. Correct what is wrong"
    if inferred.schema.label is None:
        todo += ", and name the label, which a detector needs"
    message = f"Wrote {out}. {todo}; then: {command}"
    console.print(message, markup=False, soft_wrap=True)
