"""Every feature has a meaning and a source, and wrong names get near ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turncoat.data import load_preset
from turncoat.data.money import RateTable
from turncoat.errors import ConfigError
from turncoat.features.meanings import check_feature_names, list_features


@pytest.mark.parametrize("engineered", [True, False])
@pytest.mark.parametrize(
    "schema",
    [
        load_preset("ieee-cis"),
        load_preset("handbook"),
        replace(load_preset("ieee-cis"), counterparties=("P_emaildomain", "DeviceInfo")),
        replace(
            load_preset("handbook"),
            time_zone="Europe/Berlin",
            currency="ccy",
            rates=RateTable.from_table({"EUR": 1.0}),
            minor_units=("TX_AMOUNT",),
        ),
    ],
    ids=["ieee", "handbook", "two", "converted"],
)
def test_every_feature_has_a_meaning_and_a_source(schema, engineered):
    found = list_features(schema, engineered)
    names = [one.name for one in found]
    assert len(set(names)) == len(names)
    assert set(schema.continuous) < set(names)
    assert all(one.meaning and one.source for one in found)
    assert ("amount_to_mean" in names) == engineered
    about = {one.name: one for one in found}
    if schema.minor_units:
        assert "converted to EUR" in about["TX_AMOUNT"].meaning
    if schema.time_zone and engineered:
        assert "Europe/Berlin" in about["hour_cos"].meaning
        assert about["counterparty_risk_day"].source == "history at TERMINAL_ID"


def test_a_wrong_name_gets_near_ones():
    names = [one.name for one in list_features(load_preset("handbook"))]
    with pytest.raises(
        ConfigError,
        match=r"include names 'amount_to_man', .* Similar names are amount_to_mean, .* lists all",
    ):
        check_feature_names(["amount_z", "amount_to_man"], names)
