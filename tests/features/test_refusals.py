"""Errors of the features, and inputs that stay unmodified."""

from __future__ import annotations

import copy
import datetime
from dataclasses import fields, replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone

from tests.features.sample_data import SHOP, handbook, ieee, of_frame, shop, shop_frame
from turncoat.data.categories import CategoryColumn
from turncoat.errors import ConfigError, DataError, NotFittedError
from turncoat.features import Features


@pytest.fixture
def features() -> Features:
    return Features(min_count=3).fit(shop().transactions)


@pytest.mark.parametrize(
    "use",
    [
        lambda f: f.transform(shop().transactions),
        lambda f: f.step(None, shop().rows[0]),
        lambda f: f.report_label("shop", b"", 0.0, 1),
        lambda f: f.feature_names,
        lambda f: f.state_bytes,
        lambda f: f.plan,
    ],
)
def test_not_fitted(use: Any) -> None:
    with pytest.raises(NotFittedError, match="Call `fit` first"):
        use(Features())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "raw"}, "kind is 'raw'; it must be one of processed, engineered"),
        ({"kind": None}, "kind"),
        ({"missing_flags": True}, "missing_flags is True; it must be one of distinct, all, none"),
        ({"min_count": 0}, "min_count is 0; it must be a whole number of at least 1"),
        ({"min_count": 2.5}, "min_count"),
        ({"min_count": True}, "min_count"),
        ({"max_categories": -1}, "max_categories"),
        ({"max_categories": None}, "max_categories"),
        ({"label_delay_days": -0.1}, "label_delay_days is -0.1; it must be between 0 and 3650"),
        ({"label_delay_days": 3650.5}, "label_delay_days"),
        ({"label_delay_days": float("nan")}, "label_delay_days"),
        ({"label_delay_days": "7"}, "label_delay_days"),
        ({"label_delay_days": None}, "label_delay_days"),
    ],
)
def test_wrong_settings(arguments: dict[str, Any], message: str) -> None:
    features = Features(**arguments)  # as scikit-learn wants it: they are looked at in fit
    with pytest.raises(ConfigError, match=message):
        features.fit(shop().transactions)
    assert not hasattr(features, "plan_")


def test_numbers_of_numpy_are_fine_as_settings() -> None:
    features = Features(
        min_count=np.int64(3), max_categories=np.int32(5), label_delay_days=np.float32(2.5)
    ).fit(shop().transactions)
    assert features.plan_.label_delay_s == 2.5 * 86400


@pytest.mark.parametrize(
    "change",
    [
        {"continuous": ("age", "paid")},
        {"categorical": ("kind",)},
        {"tracked": ()},
        {"counterparties": ()},
        {"time_unit": "ms"},
        {"amount": "age"},
    ],
)
def test_another_schema_is_refused(features: Features, change: dict[str, Any]) -> None:
    other = of_frame(shop_frame(), replace(SHOP, name="other", **change)).transactions
    with pytest.raises(
        DataError, match=r"the frame: read with schema 'other'.*fitted with 'custom'"
    ):
        features.transform(other)


def test_another_name_for_the_same_schema_is_no_other_schema(features: Features) -> None:
    other = of_frame(shop_frame(), replace(SHOP, name="other")).transactions
    np.testing.assert_array_equal(features.transform(other).ids, shop().transactions.ids)


GOOD = {
    "at": 1000.0,
    "paid": 5.0,
    "age": 30.0,
    "kind": 404,
    "device": "phone",
    "town": "Oslo",
    "shop": "s1",
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paid": "much"}, "column 'paid': 'much' is not a number"),
        ({"age": {}}, "column 'age'"),
        ({"age": [1.0, 2.0]}, "column 'age'"),
        ({"paid": 1 + 2j}, "column 'paid'"),
        ({"paid": datetime.date(2024, 1, 1)}, "column 'paid'"),
        ({"paid": float("inf")}, "column 'paid': the value is inf; it must be finite"),
        ({"age": -np.inf}, "column 'age': the value is -inf"),
        ({"age": "-inf"}, "column 'age'"),
        ({"at": None}, "column 'at': None is not a time"),
        ({"at": float("nan")}, "column 'at': nan is not a time"),
        ({"at": float("-inf")}, "column 'at'"),
        ({"at": "yesterday"}, "column 'at': 'yesterday' is not a time"),
        ({"at": ""}, "column 'at'"),
        ({"at": True}, "column 'at'"),
        ({"at": [5.0]}, "column 'at'"),
        ({"at": {}}, "column 'at'"),
        ({"at": np.datetime64("NaT")}, "column 'at'"),
    ],
    ids=str,
)
def test_bad_rows_are_refused_and_say_which_column(
    features: Features, change: dict[str, Any], message: str
) -> None:
    features.step(None, GOOD)
    for kind in (features, Features("processed").fit(shop().transactions)):
        with pytest.raises(DataError, match=message):
            kind.step(None, GOOD | change)


def test_a_row_without_a_time_is_refused(features: Features) -> None:
    with pytest.raises(DataError, match="column 'at'"):
        features.step(None, {column: value for column, value in GOOD.items() if column != "at"})


def test_a_row_with_only_a_time_is_all_missing(features: Features) -> None:
    _, found = features.step(None, {"at": 5})
    named = dict(zip(features.feature_names[0], found.continuous, strict=True))
    assert np.isnan(
        [named["paid"], named["age"], named["amount_z"], named["counterparty_count_day"]]
    ).all()
    codes = dict(zip(features.feature_names[1], found.categorical.tolist(), strict=True))
    assert (codes["kind"], codes["device"], codes["new_town"], codes["is_first"]) == (-1, -1, -1, 1)
    assert codes["no_paid"] == codes["no_kind"] == 1


def test_columns_of_no_use_are_ignored(features: Features) -> None:
    plain = features.step(None, GOOD)
    more = features.step(
        None, {**GOOD, "who": "c1", "fraud": "?", "weather": {"wet": [1, 2]}, "id": None, 5: 6}
    )
    assert more[0] == plain[0]
    np.testing.assert_array_equal(more[1].continuous, plain[1].continuous)
    np.testing.assert_array_equal(more[1].categorical, plain[1].categorical)


@pytest.mark.parametrize("value", [["phone"], {"a": 1}, ("phone",), {1, 2}], ids=str)
def test_an_object_as_category_is_unseen(features: Features, value: Any) -> None:
    place = features.feature_names[1].index("device")
    _, found = features.step(None, GOOD | {"device": value})
    assert found.categorical[place] == features.plan_.vocabularies[1].size - 1


@pytest.mark.parametrize(
    "moment",
    [
        datetime.datetime(2018, 4, 1, 7, 25, 53),
        "2018-04-01 07:25:53",
        np.datetime64("2018-04-01T07:25:53"),
    ],
)
def test_times_as_dates(moment: Any) -> None:
    data = handbook()
    features = Features().fit(data.transactions)
    row = {"TX_AMOUNT": 10.0, "TERMINAL_ID": 1}
    expected, _ = features.step(None, row | {"TX_DATETIME": 1_522_567_553})
    assert features.step(None, row | {"TX_DATETIME": moment})[0] == expected


@pytest.mark.parametrize("time", [float("nan"), float("inf"), 1000.5, 1e12])
def test_fraud_is_reported_of_transactions_that_were(features: Features, time: float) -> None:
    state, _ = features.step(None, GOOD)
    (record,) = state.counterparties
    assert features.report_label("shop", record, 1000.0, 1) != record
    with pytest.raises(DataError, match="latest transaction was"):
        features.report_label("shop", record, time, 1)


@pytest.mark.parametrize("label", [-1, 2, 0.5, None])
def test_only_labels_of_0_and_1_are_reported(features: Features, label: Any) -> None:
    state, _ = features.step(None, GOOD)
    with pytest.raises(DataError, match="it must be 1 for fraud or 0 for genuine"):
        features.report_label("shop", state.counterparties[0], 1000.0, label)


def test_fraud_cannot_be_reported_without_a_counterparty(features: Features) -> None:
    with pytest.raises(DataError, match="no label can be reported"):
        features.report_label("shop", None, 0.0, 1)
    with pytest.raises(DataError, match="no record of the counterparty 'device'"):
        features.report_label("device", b"", 0.0, 1)
    for others in (
        Features("processed").fit(shop().transactions),
        Features().fit(ieee().transactions),
    ):
        with pytest.raises(DataError, match="no label can be reported"):
            others.report_label("shop", b"", 0.0, 1)


def test_clones_are_not_fitted(features: Features) -> None:
    assert features.get_params() == {
        "kind": "engineered",
        "missing_flags": "distinct",
        "min_count": 3,
        "max_categories": 100,
        "label_delay_days": 7.0,
        "include": None,
        "profile": None,
    }
    other = clone(features)
    assert other.get_params() == features.get_params()
    assert not hasattr(other, "plan_")
    assert other.set_params(kind="processed").kind == "processed"
    assert features.kind == "engineered"
    assert "min_count=3" in repr(features)


def test_fitting_again_forgets(features: Features) -> None:
    again = features.fit(shop(200, seed=9).transactions)
    assert again is features
    fresh = Features(min_count=3).fit(shop(200, seed=9).transactions)
    expected, found = fresh.transform(shop().transactions), again.transform(shop().transactions)
    np.testing.assert_array_equal(found.continuous, expected.continuous)


def test_inputs_are_not_modified() -> None:
    data = of_frame(shop_frame())
    transactions = data.transactions
    arrays = [
        *transactions.numbers.values(),
        *(named.codes for named in transactions.categories.values()),
        *(
            value
            for field in fields(transactions)
            if isinstance(value := getattr(transactions, field.name), np.ndarray)
        ),
    ]
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    features = Features().fit(transactions)
    features.transform(transactions)
    features.transform(transactions, rows=[1, 5])
    for array, before in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, before)
    row = dict(data.rows[3])
    before = copy.deepcopy(row)
    features.step(None, row)
    assert row == before
    assert list(row) == list(before)


def test_a_panel_shares_no_memory_with_the_file() -> None:
    data = of_frame(shop_frame())
    features = Features().fit(data.transactions)
    panel = features.transform(data.transactions)
    before = features.transform(data.transactions).continuous.copy()
    panel.continuous[:] = 0
    np.testing.assert_array_equal(features.transform(data.transactions).continuous, before)


def test_rows_are_not_shared_between_steps(features: Features) -> None:
    _, first = features.step(None, GOOD)
    kept = first.continuous.copy(), first.categorical.copy()
    features.step(None, GOOD | {"paid": 99.0, "device": None})
    np.testing.assert_array_equal(first.continuous, kept[0])
    np.testing.assert_array_equal(first.categorical, kept[1])


def test_a_constant_file_has_no_features() -> None:
    frame = pl.DataFrame({"who": [1, 2], "at": [0, 0], "paid": [5.0, 5.0]})
    from turncoat.data.schema import Schema

    transactions = of_frame(
        frame, Schema(customer="who", time="at", continuous=("paid",))
    ).transactions
    features = Features("processed").fit(transactions)
    assert features.feature_names == ((), ())
    with pytest.raises(DataError, match="no columns"):
        features.transform(transactions)


def test_categories_without_rows_are_not_in_the_vocabulary() -> None:
    """Names of a file that none of these transactions has."""
    transactions = shop().transactions
    named = transactions.categories["device"]
    more = replace(
        transactions,
        categories={
            **transactions.categories,
            "device": CategoryColumn(named.codes, (*named.values, "never")),
        },
    )
    assert "never" not in Features(min_count=1).fit(more).plan_.vocabularies[1].known
