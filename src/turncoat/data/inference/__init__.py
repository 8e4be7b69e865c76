"""Infer a schema for a file nobody has described, for people to check and correct."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from turncoat.data.csv_files import PLAIN, detect_number_format
from turncoat.data.inference.heuristics import KNOWN_NAMES, SampledColumn, read_as_time
from turncoat.data.inference.roles import SAMPLE_ROWS, InferredSchema, RoleAssigner
from turncoat.data.open_labels import count_open_days, find_labelled_until
from turncoat.data.presets import load_preset
from turncoat.data.reading import open_joined, read
from turncoat.data.schema import FILL_IN, LABEL_DELAY_DAYS, MAX_MATURITY_DAYS, Schema
from turncoat.data.sources import Source, open_source
from turncoat.errors import ConfigError, DataError

__all__ = ["InferredSchema", "infer_schema"]

_COMPARED_ROWS = 1000  # of each file
_POINT = r"^-?\d+\.\d+$"


def infer_schema(origins: Any) -> InferredSchema:
    """Infer the schema of a file, a folder or a frame; of several files; or of two to be joined.

    Files with mostly the same columns are parts of one table. Two others must share a key. Uses the
    first 100,000 rows. Write the result with `write_schema` and check it.
    """
    is_list = isinstance(origins, Sequence) and not isinstance(origins, str | os.PathLike)
    if is_list and not origins:
        raise ConfigError("no file given to infer a schema from. Give at least one")
    tables = [_open_table(origin) for origin in (origins if is_list else [origins])]
    first = tables[0][0]
    if len(tables) > 1 and all(_is_same_table(first, source) for source, _ in tables[1:]):
        tables = [_open_table(origins)]
        first = tables[0][0]
    notes = [f"{difference}. Only common columns are used." for difference in first.differences]
    notes += _compare_decimals(first)
    found = _match_preset([source for source, _ in tables]) or _infer_roles(tables)
    findings = tuple(_describe_files(source) for source, _ in tables if source.path is not None)
    format = PLAIN if first.csv is None else first.csv.format
    schema = replace(found.schema, csv=format)
    try:
        open_days = _find_open_days(origins, schema)
    except DataError as problem:
        open_days = None
        again = f"Correct it and run `turncoat init` again: {problem}"
        notes.append(f"Whether labels of the last days are open could not be checked. {again}.")
    if open_days is not None:
        maturity_days = min(max(open_days - LABEL_DELAY_DAYS, 0.0), MAX_MATURITY_DAYS)
        schema = replace(schema, label_maturity_days=maturity_days)
        notes.append(
            f"{schema.label!r} is unknown on most rows of the last {open_days:g} days. They count "
            f"as open, not as genuine: `label_maturity_days` says for how long after the label "
            f"delay, {LABEL_DELAY_DAYS:g} days by default."
        )
    if format.encoding == "windows-1252":
        notes.append("The text is not UTF-8 and was read as Windows-1252. Check accented letters.")
    return replace(found, schema=schema, findings=findings, warnings=(*notes, *found.warnings))


def _find_open_days(origins: Any, schema: Schema) -> float | None:
    """Days at the end of the table whose genuine transactions are not known yet, if any."""
    if (
        schema.label is None
        or schema.join is not None
        or FILL_IN in (schema.time, *schema.customer)
    ):
        return None
    least = (schema.continuous or schema.categorical)[:1]
    roles: dict[str, Any] = {"continuous": (), "categorical": (), "tracked": (), "money": ()}
    roles["continuous" if schema.continuous else "categorical"] = least
    roles |= {"amount": None, "minor_units": (), "currency": None, "rates": None}
    table = read(origins, replace(schema, counterparties=(), **roles))
    until = find_labelled_until(table.times, table.labels)
    return None if until is None else float(math.ceil(count_open_days(table.times, until)))


def _is_same_table(first: Source, other: Source) -> bool:
    """Whether two files have most of their columns in common."""
    ours, theirs = set(first.columns), set(other.columns)
    return 2 * len(ours & theirs) > len(ours | theirs)


def _open_table(origin: Any) -> tuple[Source, pl.DataFrame]:
    """A table, with the format of CSV files found in it, and its first rows."""
    source = open_source(origin)
    csv = source.csv
    if csv is None:
        return source, _read_sample(source)
    if all(len(name) > 1 and name[0] == name[-1] == "'" for name in source.columns):
        source = open_source(origin, replace(csv.format, quote="'"))
    try:
        sample = _read_sample(source)
    except DataError:
        if all(part.csv is None or part.csv.is_utf8() for part in source.parts):
            raise
        source = open_source(origin, replace(csv.format, encoding="windows-1252"))
        sample = _read_sample(source)
    format = detect_number_format(sample, csv.format)
    if not format.has_plain_numbers and source.csv is not None:
        own = source.csv.format
        own = replace(own, decimal=format.decimal, thousands=format.thousands)
        source = open_source(origin, own)
    return source, sample


def _compare_decimals(source: Source) -> list[str]:
    """A warning if some files write decimals with a point and others with a comma."""
    names = dict[str, str]()  # of the first file with each mark
    for part in source.parts:
        if part.csv is not None:
            sample = part.frame.select(source.columns).head(_COMPARED_ROWS).collect()
            texts = [column for column in sample if column.dtype == pl.String]
            mark = detect_number_format(sample, part.csv.format).decimal
            if mark != "." or any(text.str.contains(_POINT).any() for text in texts):
                names.setdefault(mark, part.name)
    if len(names) < 2:
        return []
    words = " and ".join(f"{name} has {mark!r}" for mark, name in names.items())
    return [f"Decimals are written differently: {words}. Write all files alike."]


def _describe_files(source: Source) -> str:
    """The files of a table and how they are written."""
    text = f"{source.name}: " + ("Parquet" if source.csv is None else f"CSV, {source.csv.format}")
    others = {str(part.csv.format) for part in source.parts if part.csv is not None}
    return f"{text} (in the first file)" if len(others) > 1 else text


def _match_preset(sources: list[Source]) -> InferredSchema | None:
    """The schema of a known data set, without columns these files lack; None for other data."""
    for name, columns in KNOWN_NAMES["presets"].items():
        ordered = sorted(sources, key=lambda source: not set(source.columns) >= set(columns))
        if set(ordered[0].columns) >= set(columns):
            return _reduce_preset(load_preset(name), ordered)
    return None


def _reduce_preset(schema: Schema, sources: list[Source]) -> InferredSchema:
    if len(sources) > 2:
        remedy = "Give the transaction file and the identity file"
        raise ConfigError(f"{len(sources)} files given; {schema.name} has at most two. {remedy}")
    try:
        second = sources[1] if len(sources) > 1 else open_joined(sources[0], schema, None)
    except DataError:
        second = None
    tables = sources[:1] if second is None else [sources[0], second]
    present = [c for c in schema.columns if any(t.find_column(c) is not None for t in tables)]
    roles: dict[str, Any] = {}
    for role in ("continuous", "categorical", "tracked"):
        roles[role] = tuple(column for column in getattr(schema, role) if column in present)
    join = schema.join
    if join is not None:
        columns = tuple(column for column in join.columns if column in present)
        join = replace(join, columns=columns) if columns else None
    label = schema.label if schema.label in present else None
    absent = [c for c in schema.columns if c not in present and c != schema.label]
    warnings = []
    if label is None:
        warnings.append(f"There is no label: column {schema.label!r} is missing.")
    if absent:
        shown = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
        warnings.append(f"{len(absent)} columns of {schema.name} are missing: {shown}.")
    ignored = {}
    for table in tables:
        used = {table.find_column(column) for column in present}
        for name in (name for name in table.columns if name not in used):
            reason = f"it is not part of the {schema.name} schema"
            ignored[name] = KNOWN_NAMES["leaks"].get(name, reason)
    reasons = dict.fromkeys(present, f"a column of {schema.name}")
    reduced = replace(schema, label=label, join=join, **roles)
    return InferredSchema(reduced, reasons, ignored, tuple(warnings))


def _infer_roles(tables: list[tuple[Source, pl.DataFrame]]) -> InferredSchema:
    if len(tables) > 2:
        remedy = "Give one file, several with the same columns, or two that share a key"
        raise ConfigError(f"{len(tables)} files with different columns. {remedy}")
    if len(tables) == 1:
        return RoleAssigner(tables).infer()
    names = f"{tables[0][0].name} and {tables[1][0].name}"
    tables.sort(key=lambda table: not _has_time(*table))
    for (first, sample), (second, second_sample) in (tables, tables[::-1]):
        shared = [name for name in second.columns if name in first.columns]
        columns = SampledColumn.from_table(second, second_sample.select(shared)).values()
        keys = [column for column in columns if column.is_unique and column.is_discrete]
        if keys:
            key = min(keys, key=lambda column: column.match("id") is None)
            return RoleAssigner([(first, sample), (second, second_sample)], key.name).infer()
    problem = f"{names} share no column that is unique in one of them, so rows cannot be matched"
    raise ConfigError(f"{problem}. Give one file, or join them first")


def _read_sample(source: Source) -> pl.DataFrame:
    sample = source.sample(SAMPLE_ROWS)
    if sample.height == 0:
        raise DataError(f"{source.name}: no rows. Check how the file was written")
    return sample


def _has_time(source: Source, sample: pl.DataFrame) -> bool:
    columns = SampledColumn.from_table(source, sample).values()
    return any(read_as_time(column) is not None for column in columns)
