"""The columns of the IEEE-CIS fraud detection data set: names, types, missing rates, numbers of categories."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class IeeeColumn:
    """What is known of one genuine column."""

    name: str
    file: str  # "transaction" or "identity"
    kind: str  # "id", "label", "time", "amount", "categorical" or "continuous"
    dtype: str  # "int64", "float64" or "string"
    missing_rate: float  # over all transactions, also for a column of the identity file
    n_categories: int | None = None
    levels: tuple[str | float, ...] = ()  # empty when they are not known


@cache
def ieee_columns() -> tuple[IeeeColumn, ...]:
    """All 394 transaction and 41 identity columns, in genuine order."""
    records = json.loads((files(__package__) / "ieee_columns.json").read_text(encoding="utf-8"))
    return tuple(
        IeeeColumn(**{**record, "levels": tuple(record.get("levels", ()))}) for record in records
    )
