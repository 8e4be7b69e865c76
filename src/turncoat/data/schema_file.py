"""`turncoat.toml`: the file in which a user keeps the schema of their data and other settings."""

from __future__ import annotations

import json
import os
import re
import textwrap
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turncoat.data.money import RateTable
from turncoat.data.schema import FILL_IN, Schema
from turncoat.errors import ConfigError

if TYPE_CHECKING:
    from turncoat.data.inference import InferredSchema

_WIDTH = 100
_RATES = "What one unit of each currency is worth in a common one; by date: SEK = "
_RATES += '{ "2024-01-01" = 0.089 }. A file with the columns currency, rate and date does too: '
_RATES += '`rates = "rates.csv"` above.'
_MEANINGS = {  # in the order in which settings are written
    "name": "",
    "customer": "columns that together identify a customer",
    "time": "when the transaction was made",
    "time_unit": "unit of numeric times",
    "time_format": "format of text times",
    "time_zone": "clock of hours and weekdays, and of times without an offset",
    "time_zone_column": "clock of each row: a column of zones or offsets, or that of the time",
    "label": "1 or yes for fraud, 0 or no for genuine, empty or -1 if unknown",
    "fraud_labels": "values of the label that mean fraud",
    "genuine_labels": 'values of the label that mean genuine; "" is an empty cell',
    "unknown_labels": "values of the label that mean neither yet",
    "label_maturity_days": "after the label delay, until an unlabelled row counts as genuine",
    "id": "unique per transaction",
    "repeated_ids": "which row of an id that repeats counts: first, last or refuse",
    "amount": "the amount, one of the continuous columns",
    "minor_units": "columns that count cents, or what the currency has instead",
    "currency": "the column of currencies, from which amounts are converted by the rates below",
    "money": "columns in that currency, beside the amount",
    "counterparties": "terminal, merchant or device, each with a history of its own",
    "customer_age": "days since the customer's first use",
    "continuous": "numbers to learn from",
    "categorical": "categories to learn from",
    "tracked": "categories whose new and changed values are features",
}


def load_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in the `[schema]` table of a TOML file."""
    table = _load_toml(Path(path)).get("schema")
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: has no [schema] table. `turncoat init FILE` writes one")
    for role, line in find_gaps(path):
        remedy = f"Put the name of the column in place of {FILL_IN}"
        raise ConfigError(f"{path}, line {line}: `{role}` is not filled in. {remedy}")
    if isinstance(name := table.get("rates"), str):
        table = table | {"rates": RateTable.from_file(Path(path).parent / name).to_table()}
    return Schema.from_dict({"name": Path(path).stem, **table}, source=str(path))


def find_gaps(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """The settings of a TOML file that are still to be filled in, with their lines."""
    lines = enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1)
    found = ((re.match(rf"(\w+) *= *\[?\"{FILL_IN}\"", text), line) for line, text in lines)
    return [(match.group(1), line) for match, line in found if match is not None]


def load_data_paths(path: str | os.PathLike[str]) -> list[Path]:
    """The file or files in the `[data]` table, relative to the TOML file."""
    toml = Path(path)
    table = _load_toml(toml).get("data", {})
    is_valid = isinstance(table, dict) and not set(table) - {"file"}
    files = table.get("file", []) if is_valid else []
    names = [files] if isinstance(files, str) else files
    if not is_valid or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        rule = '[data] must hold only `file = "..."` or `file = ["...", "..."]`'
        raise ConfigError(f"{toml}: {rule}; found {table!r}")
    return [toml.parent / name for name in names if name]


def load_table(path: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """Another table of the TOML file; empty if there is none."""
    table = _load_toml(Path(path)).get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: [{name}] must be a table; found {table!r}")
    return table


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        found = f"{path}: cannot be read: {problem.strerror}"
        raise ConfigError(f"{found}. `turncoat init FILE` writes one") from problem
    except (ValueError, RecursionError) as problem:  # bad TOML, encoding, numbers or depth
        raise ConfigError(f"{path}: is not TOML: {problem}") from problem


def write_schema(
    schema: Schema | InferredSchema,
    path: str | os.PathLike[str],
    *,
    data: Sequence[Path] = (),
    overwrite: bool = False,
) -> None:
    """Write a schema, with the reasons of an inferred one, for people to correct.

    `load_schema` reads it back. `data` are the files it describes, the default of `turncoat fit`.
    """
    toml = Path(path)
    if toml.exists() and not overwrite:
        remedy = "Choose another name, or replace it (--overwrite, overwrite=True)"
        raise ConfigError(f"{toml}: already exists. {remedy}")
    temporary = toml.with_name(f".{toml.name}.{os.getpid()}")
    text = _render(schema)
    if data:
        names = [os.path.relpath(file, toml.parent) for file in data]
        files = [f"file = {_quote(names[0])}"] if len(names) == 1 else _render_list("file", names)
        text = "\n".join(["[data]", *files, "", text])
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(toml)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        found = f"{toml}: cannot be written: {problem.strerror}"
        raise ConfigError(f"{found}. Choose another path") from problem


def _render(source: Schema | InferredSchema) -> str:
    schema = source if isinstance(source, Schema) else source.schema
    details = ("reasons", "ignored", "warnings", "findings")
    reasons, ignored, warnings, findings = (getattr(source, name, {}) for name in details)
    lines = ["# What each column means. Correct what is wrong; other columns are not read."]
    for finding in findings:
        lines += _render_comment(f"Found: {finding}")
    for warning in warnings:
        lines += _render_comment(f"Check: {warning}")
    lines += ["", "[schema]"]
    table = schema.to_dict()
    for role in _MEANINGS:
        if role in table:
            lines += _render_setting(role, table[role], reasons)
        elif role == "label" and not isinstance(source, Schema):
            comment = f'{_MEANINGS[role]}. None was found; if there is one: label = "{FILL_IN}"'
            lines += ["", *_render_comment(f"label: {comment}")]
    if ignored:
        lines += ["", "# Ignored:"]
        for column, reason in ignored.items():
            lines += _render_comment(f"{_quote(column)}: {reason}", "#   ")
    if "rates" in table:
        lines += ["", *_render_comment(_RATES), "[schema.rates]"]
        lines += [f"{_quote(name)} = {_render_rate(rate)}" for name, rate in table["rates"].items()]
    if "csv" in table:
        lines += ["", "# How CSV files are written.", "[schema.csv]"]
        lines += [f"{name} = {_quote(value)}" for name, value in table["csv"].items()]
    if schema.join is not None:
        lines += ["", "# A second file in the same folder, whose rows match transactions by a key."]
        lines += ["[schema.join]", f"file = {_quote(schema.join.file)}"]
        lines += [f"on = {_quote(schema.join.on)}", *_render_list("columns", schema.join.columns)]
    return "\n".join(lines) + "\n"


def _render_rate(rate: float | Mapping[str, float]) -> str:
    """A rate, or rates by date."""
    if isinstance(rate, Mapping):
        return f"{{ {', '.join(f'{_quote(day)} = {one!r}' for day, one in rate.items())} }}"
    return repr(rate)


def _render_setting(role: str, value: Any, reasons: Mapping[str, str]) -> list[str]:
    """A setting below its meaning and the reasons for its columns."""
    if role == "name":
        return [f"name = {_quote(value)}"]
    if isinstance(value, float):
        return ["", *_render_comment(f"{role}: {_MEANINGS[role]}"), f"{role} = {value!r}"]
    columns = [value] if isinstance(value, str) else value
    distinct = {reasons.get(column, "") for column in columns}
    shared = distinct.pop() if len(distinct) == 1 else ""
    comment = f"{role}: {_MEANINGS[role]}" + (f" ({shared})" if shared else "")
    lines = ["", *_render_comment(comment)]
    if isinstance(value, str):
        return [*lines, f"{role} = {_quote(value)}"]
    if not distinct:
        return [*lines, *_render_list(role, value)]
    comments = {name: f"  # {_printable(reason)}" for name, reason in reasons.items() if reason}
    items = [f"    {_quote(column)},{comments.get(column, '')}" for column in columns]
    return [*lines, f"{role} = [", *items, "]"]


def _render_list(name: str, values: Any) -> list[str]:
    """A list on one line, or wrapped."""
    texts = [_quote(value) for value in values]
    line = f"{name} = [{', '.join(texts)}]"
    if len(line) <= _WIDTH:
        return [line]
    lines = ["   "]
    for text in texts:
        if len(lines[-1]) + len(text) + 2 > _WIDTH and lines[-1].strip():
            lines.append("   ")
        lines[-1] += f" {text},"
    return [f"{name} = [", *lines, "]"]


def _render_comment(text: str, start: str = "# ") -> list[str]:
    wrapper = textwrap.TextWrapper(_WIDTH, start, start + "  ", break_long_words=False)
    return wrapper.wrap(_printable(text))


def _quote(value: str) -> str:
    """A TOML string: JSON's escapes are valid in TOML, which also escapes DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(text: str) -> str:
    """Text for a comment, with control characters escaped."""
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)
