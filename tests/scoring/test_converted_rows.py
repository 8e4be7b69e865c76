"""Rows that the schema converts score as converted ones, in batch and live."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest

from turncoat import BaumWelchHMM, Detector
from turncoat.data import Schema, read, splits
from turncoat.data.money import RateTable
from turncoat.features import Features
from turncoat.scoring import DetectorState
from turncoat.scoring.formatting import format_amount
from turncoat.serving.decoding import TransactionDecoder

RATES = {"EUR": 1.0, "SEK": {"2024-01-01": 0.09, "2024-02-01": 0.085}, "JPY": 0.006}
SCHEMA = Schema(
    customer="card",
    time="at",
    continuous=("paid",),
    amount="paid",
    minor_units=("paid",),
    currency="ccy",
    rates=RateTable.from_table(RATES),
    label="chargeback",
    id="ref",
    counterparties=("shop",),
    tracked=("shop",),
)


def make_payments(n: int = 900) -> pl.DataFrame:
    """Cards of three countries that pay about 40 EUR, and frauds of 400."""
    draw = np.random.default_rng(5)
    card = draw.integers(0, 40, n)
    fraud = draw.random(n) < 0.06
    currency = np.where(draw.random(n) < 0.1, "EUR", np.array(["EUR", "SEK", "JPY"])[card % 3])
    worth = np.select([currency == "EUR", currency == "SEK"], [1.0, 0.088], 0.006)
    units = np.where(currency == "JPY", 1, 100)
    euros = np.exp(draw.normal(np.log(np.where(fraud, 400, 40)), 0.4, n))
    return pl.DataFrame(
        {
            "ref": range(n),
            "card": card,
            "at": 1704067200 + np.sort(draw.integers(0, 60 * 86400, n)),
            "paid": np.round(euros / worth * units),
            "ccy": currency,
            "shop": draw.integers(0, 25, n),
            "chargeback": np.where(fraud, "Y", "N"),
        }
    )


def fit(transactions) -> Detector:
    rows = transactions.customer_codes, transactions.times, transactions.labels
    split = splits.split_by_customer(*rows)
    model = BaumWelchHMM(n_states=2, n_restarts=1, max_iter=15)
    return Detector(Features(), model).fit(transactions, split)


def test_mixed_currencies_score_as_one_currency_and_live_as_batch() -> None:
    payments = make_payments()
    mixed = read(payments, SCHEMA)
    is_new_rate = pl.from_epoch("at") >= pl.datetime(2024, 2, 1)
    rate = {"EUR": 1.0, "SEK": pl.when(is_new_rate).then(0.085).otherwise(0.09), "JPY": 0.006}
    worth = [pl.when(pl.col("ccy") == name).then(one) for name, one in rate.items()]
    units = pl.when(pl.col("ccy") == "JPY").then(1).otherwise(100)
    euros = payments.with_columns(
        paid=pl.col("paid") / units * pl.coalesce(worth),
        chargeback=(pl.col("chargeback") == "Y").cast(pl.Int8),
    )
    plain = replace(SCHEMA, minor_units=(), currency=None, rates=None)
    one = read(euros, plain)
    detector, other = fit(mixed), fit(one)
    scores = detector.score(mixed)
    np.testing.assert_allclose(mixed.column("paid"), one.column("paid"), rtol=1e-12)
    np.testing.assert_allclose(scores.value, other.score(one).value, rtol=1e-6)
    raw = read(payments, plain)
    assert not np.allclose(scores.value, fit(raw).score(raw).value)

    by_id = dict(zip(scores.ids.tolist(), scores.value.tolist(), strict=True))
    cards: dict[int, bytes] = {}
    shops: dict[int, bytes] = {}
    for row in payments.head(120).drop("chargeback").iter_rows(named=True):
        state = DetectorState(cards.get(row["card"]), (shops.get(row["shop"]),))
        state, score = detector.score_one(state, row)
        cards[row["card"]], (shops[row["shop"]],) = state
        if row["ref"] < 20:  # before any label is known, which batch scores use
            assert abs(score.probability - by_id[row["ref"]]) < 1e-9
    decoder = TransactionDecoder(detector)
    assert decoder.example["ccy"] == "EUR"
    sent = decoder.decode(msgspec.json.encode(decoder.example)).row
    assert 100 * sent.numbers[0] == pytest.approx(decoder.example["paid"])
    for one in detector.explain_rows(mixed, np.arange(0, 900, 50)):
        row = payments.row(int(one.id), named=True)
        assert one.amount == row["paid"] / (1 if row["ccy"] == "JPY" else 100)
        shown = f"{row['ccy']} {format_amount(one.amount)}"
        assert one.facts["amount"] == shown
        assert any(f"amount {shown}" in reason.text for reason in one.score.reasons)
