"""Schemas of data sets that many people have: IEEE-CIS, the Handbook simulator, Fraud Dataset Benchmark."""

from __future__ import annotations

from dataclasses import replace

from turncoat.data.ieee_columns import ieee_columns
from turncoat.data.schema import Join, Schema
from turncoat.errors import ConfigError

PRESETS = ("ieee-cis", "handbook")


def preset(name: str) -> Schema:
    """A schema by name: `ieee-cis`, `ieee-cis:card1+addr1+D1` (a finer customer key) or `handbook`."""
    base, _, key = name.partition(":")
    if base == "handbook" and not key:
        return _handbook()
    if base == "ieee-cis" and key in ("", "card1"):
        return _ieee()
    if base == "ieee-cis" and key == "card1+addr1+D1":
        return replace(_ieee(), name=name, customer=("card1", "addr1"), customer_age="D1")
    raise ConfigError(
        f"no schema preset {name!r}; there are ieee-cis, ieee-cis:card1+addr1+D1 and handbook. Or name a turncoat.toml"
    )


def _handbook() -> Schema:
    return Schema(
        name="handbook",
        customer=("CUSTOMER_ID",),
        time="TX_DATETIME",
        id="TRANSACTION_ID",
        label="TX_FRAUD",
        amount="TX_AMOUNT",
        continuous=("TX_AMOUNT",),
        counterparty="TERMINAL_ID",
        tracked=("TERMINAL_ID",),
    )


def _ieee() -> Schema:
    columns = ieee_columns()
    of_kind = {
        kind: [c for c in columns if c.kind == kind] for kind in ("continuous", "categorical")
    }
    identity = tuple(c.name for kind in of_kind.values() for c in kind if c.file == "identity")
    return Schema(
        name="ieee-cis",
        customer=("card1",),
        time="TransactionDT",
        id="TransactionID",
        label="isFraud",
        amount="TransactionAmt",
        continuous=("TransactionAmt", *(c.name for c in of_kind["continuous"])),
        categorical=tuple(c.name for c in of_kind["categorical"] if c.name != "card1"),
        tracked=("ProductCD", "addr1", "P_emaildomain", "R_emaildomain", "DeviceInfo", "id_31"),
        join=Join("{prefix}identity", "TransactionID", identity),
    )
