"""`turncoat.toml`: the file in which a user keeps the schema of their data."""

from __future__ import annotations

import json
import os
import re
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turncoat.data.schema import Schema
from turncoat.errors import ConfigError

if TYPE_CHECKING:
    from turncoat.data.recognising import Guess

_WIDTH = 110
_MEANINGS = {
    "customer": "the column, or columns, that together name a customer",
    "time": "when the transaction was made",
    "continuous": "numbers to learn from",
    "categorical": "names to learn from",
    "amount": "the amount, one of the numbers below",
    "label": "1 for fraud, 0 for genuine",
    "id": "unique per transaction",
    "counterparty": "a counterparty with a history of its own",
    "tracked": "names whose first use and change matter",
    "time_unit": "of numeric times",
    "time_format": "of times that are text",
    "customer_age": "days since the customer's first use",
}
_ORDER = (
    "name",
    "customer",
    "time",
    "time_unit",
    "time_format",
    "label",
    "id",
    "amount",
    "counterparty",
    "customer_age",
)
_LISTS = ("continuous", "categorical", "tracked")


def load_schema(path: str | os.PathLike[str]) -> Schema:
    """The schema in the `[schema]` table of a TOML file."""
    table = _read(Path(path)).get("schema")
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: has no [schema] table. `turncoat init FILE` writes one")
    return Schema.from_dict({"name": Path(path).stem, **table}, source=str(path))


def load_data_path(path: str | os.PathLike[str]) -> Path | None:
    """The file named in the `[data]` table, taken from the TOML file's folder; None if there is none."""
    place = Path(path)
    table = _read(place).get("data", {})
    if (
        not isinstance(table, dict)
        or set(table) - {"file"}
        or not isinstance(table.get("file", ""), str)
    ):
        raise ConfigError(f'{place}: [data] must hold `file = "..."` alone; found {table!r}')
    return place.parent / table["file"] if table.get("file") else None


def _read(place: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(place.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(
            f"{place}: cannot be read: {problem.strerror}. `turncoat init FILE` writes one"
        ) from problem
    except (
        ValueError,
        RecursionError,
    ) as problem:  # of TOML, of its encoding, of its numbers, of its depth
        raise ConfigError(f"{place}: is not TOML: {problem}") from problem


def write_schema(
    schema: Schema | Guess,
    path: str | os.PathLike[str],
    *,
    data: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Write a schema, or a guess with its reasons, as a file for people to correct. `load_schema` reads it back.

    `data` is the file it is about, which `turncoat fit` then takes by default.
    """
    place = Path(path)
    if place.exists() and not overwrite:
        raise ConfigError(
            f"{place}: is already there. Choose another name, or replace it (--overwrite, overwrite=True)"
        )
    aside = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        aside.write_text(
            _data_table(data, place) + _document(schema), encoding="utf-8", newline="\n"
        )
        aside.replace(place)
    except OSError as problem:
        aside.unlink(missing_ok=True)
        raise ConfigError(
            f"{place}: cannot be written: {problem.strerror}. Choose another place"
        ) from problem


def _data_table(data: Path | None, place: Path) -> str:
    if data is None:
        return ""
    return f"[data]\nfile = {_text(os.path.relpath(data, place.parent))}\n\n"


def _document(source: Schema | Guess) -> str:
    schema = source if isinstance(source, Schema) else source.schema
    reasons = {} if isinstance(source, Schema) else source.reasons
    left_out = {} if isinstance(source, Schema) else source.left_out
    table = schema.to_dict()
    lines = [
        "# What each column means. Correct what is wrong; columns not named here are not read."
    ]
    for warning in () if isinstance(source, Schema) else source.warnings:
        lines += _comment(f"Check: {warning}")
    lines += ["", "[schema]"]
    for role in (*_ORDER, *_LISTS):
        if role in table:
            lines += _setting(role, table[role], reasons)
    if left_out:
        lines += ["", "# Left out:"]
        for column, reason in left_out.items():
            lines += _comment(f"{_text(column)}: {reason}", "#   ")
    if schema.join is not None:
        lines += [
            "",
            "# A second file beside the first; its rows belong to transactions by a key.",
            "[schema.join]",
        ]
        lines += [
            f"file = {_text(schema.join.file)}",
            f"on = {_text(schema.join.on)}",
            *_list("columns", schema.join.columns),
        ]
    return "\n".join(lines) + "\n"


def _setting(role: str, value: Any, reasons: Mapping[str, str]) -> list[str]:
    """A setting below what it means and, for its columns, why."""
    if role == "name":
        return [f"name = {_text(value)}"]
    columns = [value] if isinstance(value, str) else value
    why = {reasons.get(column, "") for column in columns}
    shared = why.pop() if len(why) == 1 else ""
    lines = ["", *_comment(f"{role}: {_MEANINGS[role]}" + (f" ({shared})" if shared else ""))]
    if isinstance(value, str):
        return [*lines, f"{role} = {_text(value)}"]
    if not why:
        return [*lines, *_list(role, value)]
    return [
        *lines,
        f"{role} = [",
        *(f"    {_text(column)},{_remark(reasons.get(column))}" for column in columns),
        "]",
    ]


def _list(name: str, values: Any) -> list[str]:
    """A list on one line, or on lines of a sensible width."""
    texts = [_text(value) for value in values]
    line = f"{name} = [{', '.join(texts)}]"
    if len(line) <= _WIDTH:
        return [line]
    lines, current = [f"{name} = ["], "   "
    for text in texts:
        if len(current) + len(text) + 2 > _WIDTH and current.strip():
            lines.append(current)
            current = "   "
        current += f" {text},"
    return [*lines, current, "]"]


def _comment(text: str, start: str = "# ") -> list[str]:
    return textwrap.wrap(
        _printable(text),
        _WIDTH,
        initial_indent=start,
        subsequent_indent=start + "  ",
        break_long_words=False,
    )


def _remark(text: str | None) -> str:
    return f"  # {_printable(text)}" if text else ""


def _text(value: str) -> str:
    """A TOML string: JSON's escapes are among TOML's, which also wants one for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _printable(text: str) -> str:
    """Text for a comment, where control characters may not stand."""
    return re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\x{ord(found[0]):02x}", text)
