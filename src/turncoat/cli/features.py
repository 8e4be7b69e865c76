"""`turncoat features`: what each feature of a schema means."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Option

from turncoat.cli import fitting
from turncoat.cli.output import Json, echo_json


def features(
    config: Annotated[str, Option("--config", help=fitting.FIT_CONFIG_HELP)] = "",
    kind: Annotated[fitting.FeatureKind, Option(help=fitting.FEATURES_HELP)] = "engineered",
    as_json: Json = False,
) -> None:
    """List the features of a schema with meaning and source.

    `--include` takes their names. A fit leaves out features that do not vary, and flags of columns
    that are never absent.

    Examples:
    `turncoat features --config turncoat.toml`
    `turncoat features --config ieee-cis --kind processed --json`
    """
    from turncoat.data.reading import resolve_schema
    from turncoat.features.meanings import list_features

    schema = resolve_schema(config or fitting.find_config(None))
    found = list_features(schema, engineered=kind == "engineered")
    if as_json:
        echo_json({"features": [one._asdict() for one in found]})
        return
    table = Table("feature", "meaning", "source", title=escape(f"Features of {schema.name}"))
    for one in found:
        table.add_row(escape(one.name), escape(one.meaning), escape(one.source))
    Console().print(table)
