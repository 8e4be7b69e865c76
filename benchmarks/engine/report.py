"""Tables into a terminal and into Markdown."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from benchmarks.engine.summary import Results, Table, tables

_COLOURS = {
    "aim met": "green",
    "must met": "green",
    "missed": "red",
    "failed": "red",
    "aim missed": "yellow",
    "not installed": "yellow",
    "machine busy": "yellow",
}


def to_markdown(machine: dict[str, Any], results: Results, command: str) -> str:
    """The whole report."""
    parts = [
        "# Engine benchmark",
        _machine_lines(machine),
        f"Made by `{command}`; a `--quick` run is smaller than what is required.",
    ]
    return "\n\n".join(parts + [_markdown_table(table) for table in tables(results)]) + "\n"


def show(console: Console, machine: dict[str, Any], results: Results) -> None:
    """The whole report on a terminal."""
    console.print(_machine_lines(machine))
    for table in tables(results):
        console.print(_rich_table(table))


def _machine_lines(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}; "
        f"load before the run {machine['load_before']}. Python {machine['python']}, {versions}; "
        f"{', '.join(machine['blas'])}."
    )


def _markdown_table(table: Table) -> str:
    lines = ["## " + table.title, ""]
    lines += [_markdown_row(table.columns), "|" + "---|" * len(table.columns)]
    lines += [_markdown_row(row) for row in table.rows]
    return "\n".join(lines + (["", table.remark] if table.remark else []))


def _markdown_row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _rich_table(table: Table) -> RichTable:
    made = RichTable(
        title=table.title,
        caption=table.remark.replace("*", ""),
        title_justify="left",
        caption_justify="left",
    )
    for column in table.columns:
        made.add_column(column, overflow="fold")
    for row in table.rows:
        made.add_row(*(_coloured(cell) for cell in row))
    return made


def _coloured(cell: str) -> str:
    colour = _COLOURS.get(cell)
    return f"[{colour}]{cell}[/]" if colour else cell
