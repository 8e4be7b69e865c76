"""Features in words: every one that a schema can have, and names beside the words."""

from __future__ import annotations

import pytest

from turncoat.data import Schema
from turncoat.features.meanings import list_features
from turncoat.reporting.feature_words import name_feature, name_with_identifier

COLUMNS = ("paid", "V131", "country", "shop", "terminal")


def schema(*counterparties: str) -> Schema:
    return Schema(
        name="payments",
        customer="client",
        time="at",
        label="fraud",
        amount="paid",
        continuous=("paid", "V131"),
        categorical=("country",),
        tracked=("country", "shop", "terminal"),
        counterparties=counterparties,
    )


@pytest.mark.parametrize("counterparties", [(), ("shop",), ("shop", "terminal")])
def test_every_engineered_feature_has_words(counterparties: tuple[str, ...]) -> None:
    names = [one.name for one in list_features(schema(*counterparties))]
    words = {name: name_feature(name, counterparties) for name in names}
    assert [name for name, text in words.items() if text == name] == [
        name for name in names if name in (*COLUMNS, "weekday")
    ]
    assert all("_" not in text for text in words.values())
    assert len(set(words.values())) == len(names), "no two features have the same words"


def test_features_have_words() -> None:
    assert name_feature("sum_week") == "amounts in the last week"
    assert name_feature("no_addr1") == "addr1 is missing"
    assert name_feature("new_device") == "device is new for the customer"
    one, two = ("shop",), ("shop", "device")
    assert name_feature("counterparty_sum_day", one) == "amounts in the last day at the shop"
    assert name_feature("counterparty_new_country", one) == "country is new at the shop"
    assert name_feature("device_risk_week", two) == (
        "known fraud rate of the last week at the device"
    )
    assert name_feature("counterparty_sum_day") == "counterparty_sum_day"


def test_identifiers_stand_beside_the_words() -> None:
    assert name_with_identifier("count_hour") == "transactions in the last hour (count_hour)"
    assert name_with_identifier("V131", ("shop",)) == "V131"
