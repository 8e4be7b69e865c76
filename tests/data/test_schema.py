"""Schemas survive tables and files, and contradictions are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turncoat.data.presets import load_preset
from turncoat.data.reading import resolve_schema
from turncoat.data.schema import Join, Schema
from turncoat.data.schema_file import load_schema, write_schema
from turncoat.errors import ConfigError

FULL = Schema(
    name="full",
    customer=("card", "region"),
    time="when",
    continuous=("amount", "age"),
    categorical=("kind", "device"),
    amount="amount",
    label="fraud",
    label_maturity_days=3.5,
    id="number",
    counterparties=("shop",),
    tracked=("device", "shop"),
    time_unit="ms",
    time_format="%d/%m/%Y",
    customer_age="age",
    join=Join("{prefix}identity", "number", ("device",)),
)
PLAIN = Schema(customer=("card",), time="when", continuous=("amount",))


@pytest.mark.parametrize(
    "schema",
    [
        FULL,
        PLAIN,
        *map(load_preset, ("ieee-cis", "handbook")),
        load_preset("ieee-cis:card1+addr1+D1"),
    ],
    ids=lambda schema: schema.name,
)
def test_tables_come_back(schema):
    again = Schema.from_dict(schema.to_dict())
    assert again == schema
    assert again.name == schema.name


def test_a_table_leaves_out_what_is_default():
    assert PLAIN.to_dict() == {"customer": ["card"], "time": "when", "continuous": ["amount"]}


def test_one_name_may_stand_for_a_list():
    assert Schema.from_dict({"customer": "card", "time": "when", "continuous": "amount"}) == PLAIN
    assert Schema(customer="card", time="when", continuous=["amount"]) == PLAIN


def test_the_former_key_of_one_counterparty_is_refused_with_the_remedy(tmp_path):
    toml = tmp_path / "turncoat.toml"
    lines = ("[schema]", 'customer = "card"', 'time = "when"', 'continuous = ["amount"]')
    toml.write_text("\n".join([*lines, 'counterparty = "TERMINAL_ID"']), encoding="utf-8")
    with pytest.raises(ConfigError, match=r'Write `counterparties = \["TERMINAL_ID"\]`') as raised:
        load_schema(toml)
    assert str(toml) in str(raised.value)
    toml.write_text("\n".join([*lines, 'counterparties = ["TERMINAL_ID", "device"]']))
    schema = load_schema(toml)
    assert schema.counterparties == ("TERMINAL_ID", "device")
    assert schema.text_columns == ("card", "TERMINAL_ID", "device")
    again = tmp_path / "again.toml"
    write_schema(schema, again)
    assert load_schema(again) == schema
    assert 'counterparties = ["TERMINAL_ID", "device"]' in again.read_text(encoding="utf-8")


def test_columns_and_texts():
    assert FULL.columns == (
        "card",
        "region",
        "number",
        "when",
        "fraud",
        "shop",
        "age",
        "amount",
        "kind",
        "device",
    )
    assert FULL.text_columns == ("card", "region", "shop", "kind", "device")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"customer": ()}, "`customer` is empty"),
        ({"customer": ("amount",)}, "'amount' is continuous; it cannot be customer too"),
        ({"time_unit": "weeks"}, "time_unit is 'weeks'; it must be one of s, ms"),
        (
            {"continuous": (), "categorical": (), "amount": None, "customer_age": None},
            "no continuous and no categorical",
        ),
        ({"amount": "kind"}, "amount 'kind' is not among the continuous"),
        ({"categorical": ("amount",)}, "'amount' is both continuous and categorical"),
        ({"time": "fraud"}, "'fraud' is both time and label"),
        ({"id": "amount"}, "'amount' is both id and continuous"),
        ({"continuous": ("amount", "amount")}, "continuous has 'amount' twice"),
        ({"customer": ("fraud",)}, "'fraud' is label; it cannot be customer too"),
        ({"customer": ("when",)}, "'when' is time; it cannot be customer too"),
        ({"tracked": ("number",)}, "'number' is id; it cannot be tracked too"),
        ({"tracked": ("age",)}, "'age' is continuous; it cannot be tracked too"),
        ({"counterparties": "amount"}, "'amount' is continuous; it cannot be counterparties too"),
        ({"customer_age": "kind"}, "'kind' is categorical; it cannot be customer_age too"),
        ({"customer_age": "when"}, "'when' is time; it cannot be customer_age too"),
        ({"customer_age": "shop"}, "customer_age 'shop' is a number"),
        ({"customer": 5}, "customer must be a list of column names, found 5"),
        *(
            (
                {"label_maturity_days": days},
                "label_maturity_days is .*; it must be a number of days",
            )
            for days in (-1, 731, float("nan"), float("inf"), "7", True, None)
        ),
    ],
)
def test_contradictions_are_refused(change, told):
    with pytest.raises(ConfigError, match=told) as caught:
        replace(FULL, **change)
    assert "schema 'full'" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"colour": "red"}, "unknown setting 'colour'; a schema has customer, time"),
        ({"time": 5}, "time must be text, found 5"),
        ({"label": ["fraud"]}, "label must be text"),
        ({"label_maturity_days": "7"}, "label_maturity_days must be a number of days, found '7'"),
        ({"label_maturity_days": True}, "label_maturity_days must be a number of days, found True"),
        ({"customer": [1]}, r"customer must be a list of column names, found \[1\]"),
        ({"tracked": ["kind", "kind"]}, "tracked has 'kind' twice"),
        ({"join": "identity"}, "join must have columns, file, on"),
        ({"join": {"file": "a", "on": "b"}}, "join must have columns, file, on"),
        ({"join": {"file": "a", "on": 5, "columns": []}}, r"join\.on must be text, found 5"),
        ({"join": {"file": "a", "on": "b", "columns": [5]}}, r"join\.columns must be a list"),
    ],
)
def test_wrong_tables_are_refused(change, told):
    with pytest.raises(ConfigError, match=told) as caught:
        Schema.from_dict({**FULL.to_dict(), **change}, source="my.toml")
    assert "my.toml" in str(caught.value)


@pytest.mark.parametrize("key", ["customer", "time"])
def test_what_every_schema_needs(key):
    table = PLAIN.to_dict()
    del table[key]
    with pytest.raises(ConfigError, match=f"{key} is missing. Add a line `{key} = "):
        Schema.from_dict(table)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"[schema\n", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"[scheme]\n", r"has no \[schema\] table"),
        (b"schema = 5\n", r"has no \[schema\] table"),
        (b'[schema]\ntime = "t"\n', "customer is missing"),
        (b'[schema]\ntime = "t"\ncustomer = "c"\nhabit = "x"\n', "unknown setting 'habit'"),
        (
            b'[schema]\ntime = "t"\ncustomer = "c"\ncontinuous = ["t"]\n',
            "'t' is both time and continuous",
        ),
    ],
)
def test_wrong_files_are_refused(tmp_path, content, told):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as caught:
        load_schema(path)
    assert "mine" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"nowhere\.toml: cannot be read: No such file.*turncoat init"
    ):
        load_schema(tmp_path / "nowhere.toml")


def test_schemas_by_name(tmp_path):
    write_schema(FULL, tmp_path / "mine.toml")
    write_schema(PLAIN, tmp_path / "plain.toml")
    assert resolve_schema(str(tmp_path / "mine.toml")) == FULL
    assert resolve_schema(str(tmp_path / "plain.toml")).name == "plain"
    assert resolve_schema("handbook") == load_preset("handbook")
    assert resolve_schema(PLAIN) is PLAIN
    assert resolve_schema("ieee-cis:card1") == resolve_schema("ieee-cis")
    for wrong in ("kaggle", "handbook:card1", "ieee-cis:card2"):
        with pytest.raises(ConfigError, match=f"no schema preset '{wrong}'; there are ieee-cis"):
            resolve_schema(wrong)


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b", "..\\x", ".", "..", ""])
def test_a_joined_file_stays_beside_the_first(file: str) -> None:
    with pytest.raises(ConfigError, match=r"join\.file"):
        Join(file, "id", ("a",))
