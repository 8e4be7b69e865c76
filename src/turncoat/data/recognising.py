"""Data sets that are recognised by their columns: the preset's schema, less what these files do not have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from turncoat.data.presets import load_preset
from turncoat.data.reading import second_source
from turncoat.data.schema import Schema
from turncoat.data.sources import Source
from turncoat.errors import ConfigError, DataError

SIGNS = {
    "ieee-cis": {"TransactionID", "TransactionDT", "TransactionAmt", "ProductCD", "card1"},
    "handbook": {"TRANSACTION_ID", "TX_DATETIME", "CUSTOMER_ID", "TERMINAL_ID", "TX_AMOUNT"},
}
TELLTALES = {
    "TX_FRAUD_SCENARIO": "it tells the kind of fraud, which is known only afterwards",
    "LABEL_TIMESTAMP": "it tells when the label became known",
}


@dataclass(frozen=True)
class Guess:
    """A schema, and why: a sentence for every column, used or left out, and what a person should look at."""

    schema: Schema
    reasons: dict[str, str]
    left_out: dict[str, str]
    warnings: tuple[str, ...] = ()


def recognised(sources: list[Source]) -> Guess | None:
    """The guess for a known data set, of which the files may come in any order; None for any other."""
    for name, signs in SIGNS.items():
        ordered = sorted(sources, key=lambda source: not set(source.columns) >= signs)
        if set(ordered[0].columns) >= signs:
            return _less_what_is_absent(load_preset(name), ordered)
    return None


def _less_what_is_absent(schema: Schema, sources: list[Source]) -> Guess:
    """A preset, less the columns that these files do not have."""
    if len(sources) > 2:
        raise ConfigError(
            f"{len(sources)} files, and {schema.name} has two at most. Give the transaction file and the identity file"
        )
    try:
        second = sources[1] if len(sources) > 1 else second_source(sources[0], schema, None)
    except DataError:
        second = None
    tables = sources[:1] if second is None else [sources[0], second]
    have = [
        column
        for column in schema.columns
        if any(table.find_column(column) is not None for table in tables)
    ]
    kept: dict[str, Any] = {
        role: tuple(c for c in getattr(schema, role) if c in have)
        for role in ("continuous", "categorical", "tracked")
    }
    join = schema.join
    if join is not None:
        columns = tuple(column for column in join.columns if column in have)
        join = replace(join, columns=columns) if columns else None
    warnings = []
    absent = [column for column in schema.columns if column not in have]
    if schema.label in absent:
        warnings.append(f"There is no label: the column {schema.label!r} is not there.")
    if absent_others := [column for column in absent if column != schema.label]:
        shown = ", ".join(absent_others[:5]) + (", ..." if len(absent_others) > 5 else "")
        warnings.append(
            f"{len(absent_others)} columns of {schema.name} are not there and were left out of the schema: {shown}."
        )
    label = schema.label if schema.label in have else None
    left_out = {
        name: TELLTALES.get(name, f"it is not part of the {schema.name} schema")
        for table in tables
        for name in table.columns
        if all(table.find_column(column) != name for column in have)
    }
    reasons = dict.fromkeys(have, f"a column of {schema.name}, whose schema is known")
    return Guess(
        replace(schema, label=label, join=join, **kept), reasons, left_out, tuple(warnings)
    )
