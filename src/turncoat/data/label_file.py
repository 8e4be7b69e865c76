"""Files of labels: one row for each transaction whose outcome became known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from turncoat.arrays import Array
from turncoat.data.categories import normalize_category
from turncoat.data.parsing import parse_labels
from turncoat.data.schema import Schema
from turncoat.data.sources import Source, open_source
from turncoat.errors import DataError

_ID_NAMES, _CUSTOMER_NAMES, _LABEL_NAMES = ("id", "transaction_id"), ("customer",), ("label",)


@dataclass(frozen=True, eq=False)
class LabelFile:
    """N labels, in the order of the file."""

    source: str
    ids: Sequence[str]  # of the transactions
    customers: Sequence[str | None]  # None where the file does not say
    labels: Array  # [N] int8; -1 is unknown


def read_label_file(path: Path, schema: Schema, all_fraud: bool = False) -> LabelFile:
    """Read and check a file of labels; columns have the schema's names, or those of the service.

    With `all_fraud` every row is a fraud, and the file needs no label column. Customers are read if
    there is one column that names them.
    """
    source = open_source(path, schema.csv)
    own_customer = schema.customer if len(schema.customer) == 1 and not schema.customer_age else ()
    id_column = _find_column(source, (schema.id, *_ID_NAMES))
    label_column = _find_column(source, (schema.label, *_LABEL_NAMES))
    customer_column = _find_column(source, (*own_customer, *_CUSTOMER_NAMES))
    if id_column is None:
        names = ", ".join(dict.fromkeys(filter(None, (schema.id, *_ID_NAMES))))
        problem = f"no column with the transactions' ids, which would be one of {names}"
        raise DataError(f"{source.name}: {problem}; found {', '.join(source.columns)}")
    if label_column is None and not all_fraud:
        problem = f"no label column, which would be {schema.label or 'label'}"
        remedy = "Name it so, or say that every row is a fraud with --all-fraud"
        raise DataError(f"{source.name}: {problem}; found {', '.join(source.columns)}. {remedy}")
    wanted = dict.fromkeys(filter(None, (id_column, label_column, customer_column)))
    table = source.read(list(wanted), numeric=())
    ids = [normalize_category(value) for value in table[id_column]]
    for row, id in enumerate(ids):
        if id is None:
            problem = "the transaction's id is missing. Every label needs one"
            raise DataError(f"{source.name}, column {id_column!r}, row {row + 1}: {problem}")
    labels = pl.Series([1] * len(ids), dtype=pl.Int8)
    if not all_fraud and label_column is not None:
        labels = _parse_labels(source, table[label_column], schema)
    customers: list[str | None] = [None] * len(ids)
    if customer_column is not None:
        customers = [normalize_category(value) for value in table[customer_column]]
    return LabelFile(source.name, [str(id) for id in ids], customers, labels.to_numpy())


def _find_column(source: Source, names: Sequence[str | None]) -> str | None:
    return next((name for name in names if name is not None and name in source.columns), None)


def _parse_labels(source: Source, values: pl.Series, schema: Schema) -> pl.Series:
    """0, 1, or -1 where it is unknown."""
    labels = parse_labels(values, schema.label_codes)
    if labels is None:
        problem = f"{values.dtype} values are not labels. Name another column"
        raise DataError(f"{source.name}, column {values.name!r}: {problem}")
    for row in labels.is_null().arg_true():
        rule = "it must be 0, 1, a word of the label column, or empty if unknown. Correct it"
        problem = f"the label is {values[row]!r}; {rule}"
        raise DataError(f"{source.name}, column {values.name!r}, row {row + 1}: {problem}")
    return labels
