"""Schemas of well-known data sets: IEEE-CIS and the Fraud Detection Handbook's simulator."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from turncoat.data.schema import Join, Schema
from turncoat.errors import ConfigError


@dataclass(frozen=True)
class IeeeColumn:
    """A column of the genuine IEEE-CIS data."""

    name: str
    file: str  # "transaction" or "identity"
    kind: str  # "id", "label", "time", "amount", "categorical" or "continuous"
    dtype: str  # "int64", "float64" or "string"
    missing_rate: float  # over all transactions, also for columns of the identity file
    n_categories: int | None = None
    levels: tuple[str | float, ...] = ()  # empty if unknown


@cache
def load_ieee_columns() -> tuple[IeeeColumn, ...]:
    """All 394 transaction and 41 identity columns, in genuine order."""
    records = json.loads((files(__package__) / "ieee_columns.json").read_text(encoding="utf-8"))
    return tuple(IeeeColumn(**{**r, "levels": tuple(r.get("levels", ()))}) for r in records)


def load_preset(name: str) -> Schema:
    """The schema `ieee-cis`, `ieee-cis:card1+addr1+D1` (a finer customer key) or `handbook`."""
    if name == "handbook":
        return _handbook_schema()
    if name in ("ieee-cis", "ieee-cis:card1"):
        return _ieee_schema()
    if name == "ieee-cis:card1+addr1+D1":
        return replace(_ieee_schema(), name=name, customer=("card1", "addr1"), customer_age="D1")
    known = "ieee-cis, ieee-cis:card1+addr1+D1 and handbook"
    remedy = "Give one of these, or the path of a turncoat.toml"
    raise ConfigError(f"no schema preset {name!r}; there are {known}. {remedy}")


def _handbook_schema() -> Schema:
    return Schema(
        name="handbook",
        customer=("CUSTOMER_ID",),
        time="TX_DATETIME",
        id="TRANSACTION_ID",
        label="TX_FRAUD",
        amount="TX_AMOUNT",
        continuous=("TX_AMOUNT",),
        counterparties=("TERMINAL_ID",),
        tracked=("TERMINAL_ID",),
    )


def _ieee_schema() -> Schema:
    columns = load_ieee_columns()
    continuous = [column for column in columns if column.kind == "continuous"]
    categorical = [column for column in columns if column.kind == "categorical"]
    identity = [c.name for c in (*continuous, *categorical) if c.file == "identity"]
    return Schema(
        name="ieee-cis",
        customer=("card1",),
        time="TransactionDT",
        id="TransactionID",
        label="isFraud",
        amount="TransactionAmt",
        continuous=("TransactionAmt", *(column.name for column in continuous)),
        categorical=tuple(column.name for column in categorical if column.name != "card1"),
        tracked=("ProductCD", "addr1", "P_emaildomain", "R_emaildomain", "DeviceInfo", "id_31"),
        join=Join("{prefix}identity", "TransactionID", tuple(identity)),
    )
