"""Categorical values: one spelling for each, whether from a file or a live request."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np
import polars as pl
import pyarrow.compute as pc

from turncoat.arrays import Array

_WHOLE = re.compile(r"[+-]?\d+\.0+")
_SPELLINGS = {"-0": "0", "True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}


def normalize_category(value: Any) -> str | None:
    """The canonical spelling of a value; None if it is missing (None, NaN or "").

    404, 404.0 and "404.0" are all "404"; "007" stays; booleans are "true" and "false".
    """
    if value.__class__ is str:  # the common case first
        return _normalize_text(value)
    if value is None:
        return None
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        if math.isnan(value):
            return None
        is_whole = math.isfinite(value) and value == int(value)
        return str(int(value)) if is_whole else repr(float(value))
    is_pandas_missing = type(value).__name__ in ("NAType", "NaTType")
    if is_pandas_missing or (isinstance(value, np.datetime64) and np.isnat(value)):
        return None
    if isinstance(value, Decimal):
        return None if value.is_nan() else _normalize_text(format(value.normalize(), "f"))
    return _normalize_text(str(value.value) if isinstance(value, Enum) else str(value))


def _normalize_text(text: str) -> str | None:
    if text.endswith("0") and _WHOLE.fullmatch(text):
        text = text.partition(".")[0]
    return _SPELLINGS.get(text, text) or None


def join_key(parts: Iterable[str | None]) -> str:
    """One key from several values, some possibly missing; different values give different keys."""
    return "|".join((part or "").replace("\\", "\\\\").replace("|", "\\|") for part in parts)


@dataclass(frozen=True, eq=False)
class CategoryColumn:
    """A categorical column: a code for every row, and the value of every code."""

    codes: Array  # [rows] int32; -1 is missing
    values: tuple[str, ...]

    @classmethod
    def encode(cls, column: pl.Series) -> CategoryColumn:
        """Code a column of any type by its normalized values, in order of first appearance."""
        kind = column.dtype
        if kind.is_nested() or kind in (pl.Binary, pl.Object):
            raise TypeError(f"{kind} values cannot be categories")
        if kind in (pl.Categorical, pl.Int128) or isinstance(kind, pl.Enum):
            column = column.cast(pl.String)  # Arrow encodes these differently or not at all
        encoded = pc.dictionary_encode(column.rechunk().to_arrow())
        raw = np.asarray(encoded.indices.fill_null(-1)).astype(np.int32, copy=False)
        positions: dict[str, int] = {}
        lookup = np.full(len(encoded.dictionary) + 1, -1, np.int32)  # the last serves code -1
        for code, value in enumerate(encoded.dictionary.to_pylist()):
            text = normalize_category(value)
            if text is not None:
                lookup[code] = positions.setdefault(text, len(positions))
        return cls(lookup[raw], tuple(positions))
