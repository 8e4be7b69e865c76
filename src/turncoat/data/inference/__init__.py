"""Infer a schema for a file nobody has described, for people to check and correct."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from turncoat.data.inference.heuristics import KNOWN_NAMES, SampledColumn, read_as_time
from turncoat.data.inference.roles import SAMPLE_ROWS, InferredSchema, RoleAssigner
from turncoat.data.presets import load_preset
from turncoat.data.reading import open_joined
from turncoat.data.schema import Schema
from turncoat.data.sources import Source, open_source
from turncoat.errors import ConfigError, DataError

__all__ = ["InferredSchema", "infer_schema"]


def infer_schema(origins: Any) -> InferredSchema:
    """Infer the schema of a file or frame, or of two that share a key.

    Uses the first 100,000 rows. Write the result with `write_schema` and check it.
    """
    is_list = isinstance(origins, Sequence) and not isinstance(origins, str | os.PathLike)
    sources = [open_source(origin) for origin in (origins if is_list else [origins])]
    if not sources:
        raise ConfigError("no file given to infer a schema from. Give at least one")
    notes: list[str] = []
    first = sources[0]
    if len(sources) > 1 and all(set(s.columns) == set(first.columns) for s in sources):
        same = f"{len(sources)} files have the same columns and look like parts of one table"
        notes.append(f"{same}. The schema was inferred from {first.name} alone.")
        sources = [first]
    found = _match_preset(sources) or _infer_roles(sources)
    return replace(found, warnings=(*notes, *found.warnings))


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


def _infer_roles(sources: list[Source]) -> InferredSchema:
    if len(sources) > 2:
        remedy = "Give one file, or two that share a key"
        raise ConfigError(f"{len(sources)} files with different columns. {remedy}")
    tables = [(source, _read_sample(source)) for source in sources]
    if len(sources) == 1:
        return RoleAssigner(tables).infer()
    tables.sort(key=lambda table: not _has_time(*table))
    for (first, sample), (second, second_sample) in (tables, tables[::-1]):
        shared = [name for name in second.columns if name in first.columns]
        columns = SampledColumn.from_table(second, second_sample.select(shared)).values()
        keys = [column for column in columns if column.is_unique and column.is_discrete]
        if keys:
            key = min(keys, key=lambda column: column.match("id") is None)
            return RoleAssigner([(first, sample), (second, second_sample)], key.name).infer()
    names = f"{sources[0].name} and {sources[1].name}"
    problem = f"{names} share no column that is unique in one of them, so rows cannot be matched"
    raise ConfigError(f"{problem}. Give one file, or join them first")


def _read_sample(source: Source) -> pl.DataFrame:
    try:
        sample = source.frame.head(SAMPLE_ROWS).collect()
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise source.explain(problem) from problem
    if sample.height == 0:
        raise DataError(f"{source.name}: no rows. Check how the file was written")
    return sample


def _has_time(source: Source, sample: pl.DataFrame) -> bool:
    columns = SampledColumn.from_table(source, sample).values()
    return any(read_as_time(column) is not None for column in columns)
