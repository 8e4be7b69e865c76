"""Minor units and currencies: one rule in files, live rows and rows read back."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat.data.inference import infer_schema
from turncoat.data.json_rows import RowDecoder, list_fields
from turncoat.data.money import RateTable, convert_row, to_minor_units
from turncoat.data.parsing import parse_row
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.data.schema_file import load_schema, write_schema
from turncoat.data.transactions import add_history
from turncoat.errors import ConfigError, DataError

DAY = 86400
RATES = {"EUR": 1.0, "SEK": {"2024-01-01": 0.09, "2024-02-01": 0.08}, "JPY": 0.006, "KWD": 3.0}
SCHEMA = Schema(
    customer="card",
    time="at",
    continuous=("paid", "fee", "age"),
    amount="paid",
    minor_units=("paid",),
    currency="ccy",
    money=("fee",),
    rates=RateTable.from_table(RATES),
    id="ref",
)
JANUARY = 1704067200.0
FRAME = pl.DataFrame(
    {
        "ref": range(8),
        "card": ["a"] * 8,
        "at": [JANUARY + day * DAY for day in (-9, 0, 30, 31, 40, 41, 42, 43)],
        "paid": [1999, 1999, 1999, 1999, 1999, 1999, 1999, None],
        "fee": [1.0] * 8,
        "age": [40.0] * 8,
        "ccy": ["SEK", "sek ", "SEK", "SEK", "JPY", "KWD", "NOK", "EUR"],
    }
)


def test_amounts_are_in_units_of_one_currency():
    found = read(FRAME, SCHEMA)
    sek = 19.99 * 0.09
    expected = [sek, sek, sek, 19.99 * 0.08, 1999 * 0.006, 1.999 * 3.0, math.nan, math.nan]
    np.testing.assert_array_equal(found.column("paid"), expected)
    np.testing.assert_array_equal(
        found.column("fee"), [0.09, 0.09, 0.09, 0.08, 0.006, 3.0, math.nan, 1.0]
    )
    assert found.column("age").tolist() == [40.0] * 8
    assert found.notes == ("amounts without a rate count as missing: 1 in NOK rows",)
    with pytest.raises(DataError, match=r"column 'ccy': no row has a rate: 8 in XXX\. There are"):
        read(FRAME.with_columns(ccy=pl.lit("XXX")), SCHEMA)
    plain = replace(SCHEMA, currency=None, rates=None, money=())
    assert read(FRAME, plain).column("paid")[:7].tolist() == [19.99] * 7


def test_live_rows_are_converted_as_files_are():
    found = read(FRAME, SCHEMA)
    expected = np.array([found.column(name) for name in SCHEMA.continuous]).T
    decoder = RowDecoder(SCHEMA)
    for row, numbers in zip(FRAME.iter_rows(named=True), expected, strict=True):
        np.testing.assert_array_equal(parse_row(SCHEMA, row).numbers, numbers)
        body = msgspec.json.encode(row)
        np.testing.assert_array_equal(decoder.decode(body).row.numbers, numbers)
    fields = list(list_fields(found, np.arange(found.n_rows)))
    assert [one.get("paid") for one in fields] == [1999.0] * 7 + [None]
    for one, numbers in zip(fields, expected, strict=True):
        np.testing.assert_array_equal(parse_row(SCHEMA, one).numbers, numbers)


def test_money_is_kept_in_its_own_currency_with_history_and_live():
    current, earlier = read(FRAME[3:], SCHEMA), read(FRAME[:4], SCHEMA)
    for found, row in zip(
        add_history(current, earlier)[0].take(np.arange(1, 8)).list_rows(),
        FRAME[1:].iter_rows(named=True),
        strict=True,
    ):
        live = parse_row(SCHEMA, row)
        assert found.original.currency == live.original.currency == row["ccy"].strip().upper()
        digits = {"JPY": 0, "KWD": 3}.get(found.original.currency, 2)
        paid = math.nan if row["paid"] is None else row["paid"] / 10**digits
        for one in (found, live):
            np.testing.assert_array_equal(one.original.numbers, [paid, 1.0, 40.0])
    plain = replace(SCHEMA, currency=None, rates=None, money=())
    assert read(FRAME, plain).list_rows()[0].original is None
    assert parse_row(plain, FRAME.row(0, named=True)).original is None


@given(
    st.floats(-1e9, 1e9) | st.integers(0, 10**9).map(float), st.sampled_from(["EUR", "JPY", "KWD"])
)
@settings(deadline=None, max_examples=300)
def test_amounts_read_back_exactly(paid, currency):
    converted, original = convert_row(SCHEMA, np.array([paid, 1.0, 2.0]), currency, 0.0)
    minor = to_minor_units(original.numbers[0], currency)
    if paid == round(paid):
        assert minor == paid
    again, _ = convert_row(SCHEMA, np.array([minor, 1.0, 2.0]), currency, 0.0)
    np.testing.assert_array_equal(again, converted)


def test_rates_in_files_and_in_turncoat_toml(tmp_path):
    write_schema(SCHEMA, tmp_path / "turncoat.toml")
    assert load_schema(tmp_path / "turncoat.toml") == SCHEMA
    assert Schema.from_dict(SCHEMA.to_dict()) == SCHEMA
    text = (tmp_path / "turncoat.toml").read_text()
    table = text[text.index("[schema.rates]") :]
    text = text.replace(table, "").replace("[schema]", '[schema]\nrates = "rates.csv"')
    (tmp_path / "turncoat.toml").write_text(text)
    rows = "EUR;1;\nSEK;0.09;2024-01-01\nSEK;0.08;2024-02-01\nJPY;0.006;\nKWD;3;\n"
    (tmp_path / "rates.csv").write_text("currency;rate;date\n" + rows)
    assert load_schema(tmp_path / "turncoat.toml") == SCHEMA
    (tmp_path / "rates.csv").write_text("currency,value\nEUR,1\n")
    with pytest.raises(DataError, match=r"rates\.csv: lacks the column 'rate'; it has currency"):
        load_schema(tmp_path / "turncoat.toml")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rates": None}, "currency 'ccy' needs rates of its currencies"),
        ({"currency": None}, "rates and money need `currency`"),
        ({"money": ("ccy",)}, "money 'ccy' is not among the continuous columns"),
        ({"minor_units": ("x",)}, "minor_units 'x' is not among the continuous columns"),
        ({"currency": "paid"}, "'paid' is continuous; it cannot be currency too"),
    ],
)
def test_contradictions_are_refused(change, problem):
    with pytest.raises(ConfigError, match=problem):
        replace(SCHEMA, **change)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "must map currencies to rates"),
        ({"EUR": 0}, "the rate of 'EUR' is 0; it must be a number above 0"),
        ({"EUR": "1"}, "the rate of 'EUR' is '1'"),
        (
            {"EUR": {"soon": 1.0}},
            "a rate holds from an ISO date such as 2024-01-31 on; found 'soon'",
        ),
        ({"EUR": 1, "eur": 1}, "the rate of EUR is there twice"),
    ],
)
def test_wrong_rates_are_refused(table, problem):
    with pytest.raises(ConfigError, match=problem):
        RateTable.from_table(table)


def payments(n=600):
    """Payments of about 40 EUR, in minor units of three currencies."""
    draw = np.random.default_rng(3)
    currency = draw.choice(["EUR", "SEK", "JPY"], n, p=[0.5, 0.3, 0.2])
    euros = np.exp(draw.normal(np.log(40), 0.7, n))
    worth = np.select([currency == "EUR", currency == "SEK"], [1.0, 0.088], 0.0061)
    units = np.where(currency == "JPY", 1, 100)
    return pl.DataFrame(
        {
            "customer_id": draw.integers(0, 30, n),
            "timestamp": [f"2024-01-{1 + i // 24:02d} {i % 24:02d}:00:00" for i in range(n)],
            "amount_minor": np.round(euros / worth * units).astype(int),
            "currency": currency,
            "is_fraud": (np.arange(n) % 20 == 3).astype(int),
        }
    )


def test_init_estimates_rates_and_says_so(tmp_path):
    payments().write_csv(tmp_path / "payments.csv")
    found = infer_schema(tmp_path / "payments.csv")
    schema = found.schema
    assert (schema.amount, schema.currency) == ("amount_minor", "currency")
    assert schema.minor_units == ("amount_minor",)
    assert schema.rates.base == "EUR"
    assert schema.rates.find_rate("SEK", 0.0) == pytest.approx(0.088, rel=0.2)
    assert schema.rates.find_rate("JPY", 0.0) == pytest.approx(0.0061, rel=0.2)
    (warning,) = [text for text in found.warnings if "several currencies" in text]
    assert "EUR on" in warning
    assert "[schema.rates]" in warning
    assert "currency" in schema.categorical
    amounts = read(tmp_path / "payments.csv", schema).column("amount_minor")
    assert np.exp(np.std(np.log(amounts))) < 2.5
    one = infer_schema(payments().with_columns(currency=pl.lit("EUR"))).schema
    assert (one.currency, one.rates.currencies) == ("currency", ("EUR",))
    assert "currency" not in one.categorical
    words = payments().with_columns(currency=pl.lit("crowns"))
    assert infer_schema(words).schema.currency is None


def test_init_asks_whether_whole_amounts_count_cents():
    plain = payments().rename({"amount_minor": "amount"})
    (asked,) = [text for text in infer_schema(plain).warnings if "whole numbers only" in text]
    assert 'minor_units = ["amount"]' in asked
    assert "(JPY) by 100" in asked
    (alone,) = infer_schema(plain.drop("currency")).warnings
    assert "whole numbers only" in alone
    assert "JPY" not in alone
    exact = plain.with_columns(amount=pl.col("amount") / 100)
    assert not any("whole numbers" in text for text in infer_schema(exact).warnings)
