"""Extreme times, amounts and records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.features.sample_data import (
    DAY,
    SHOP,
    assert_same_bits,
    handbook,
    ieee,
    of_frame,
    replayed,
    report_label,
    shop,
    shop_frame,
    unscaled_features,
)
from turncoat.errors import DataError
from turncoat.features import FeatureRow, Features, FeatureState, history

GOOD = {
    "at": 1000.0,
    "paid": 5.0,
    "age": 30.0,
    "kind": 404,
    "device": "phone",
    "town": "Oslo",
    "shop": "s1",
}
# Before the first label is known.
UNKNOWN_YET = [f"counterparty_{name}" for name in ("since_genuine", "since_run", "since_label")]


@pytest.fixture
def features() -> Features:
    return Features(min_count=3).fit(shop().transactions)


def stepped(features: Features, *changes: dict[str, Any]) -> tuple[FeatureState, FeatureRow]:
    state, found = FeatureState(), None
    for change in changes:
        state, found = features.step(state, GOOD | change)
    assert found is not None
    return state, found


def of_name(features: Features, found: FeatureRow, name: str) -> float:
    return float(found.continuous[features.feature_names[0].index(name)])


def code_of(features: Features, found: FeatureRow, name: str) -> int:
    return int(found.categorical[features.feature_names[1].index(name)])


@pytest.mark.parametrize("stretch", [1e-6, 1.0, 500.0], ids=str)
@pytest.mark.parametrize("shift", [0.0, -1e9, 1e9])
def test_times_close_together_far_apart_and_before_zero(stretch: float, shift: float) -> None:
    data = of_frame(shop_frame(120).with_columns(pl.col("at") * stretch + shift))
    features = Features(min_count=3).fit(data.transactions)
    panel = features.transform(data.transactions)
    assert_same_bits(replayed(features, data), panel)
    weekdays = panel.categorical[:, features.feature_names[1].index("weekday")]
    assert weekdays.min() >= 0
    assert weekdays.max() <= 6


@pytest.mark.parametrize(
    ("time", "weekday"),
    [
        (-1e-12, 6),
        (-1.0, 6),
        (0.0, 0),
        (DAY - 0.001, 0),
        (DAY, 1),
        (7 * DAY, 0),
        (-7 * DAY, 0),
        (-7 * DAY - 1, 6),
    ],
)
def test_weekdays_around_zero(features: Features, time: float, weekday: int) -> None:
    _, found = features.step(None, GOOD | {"at": time})
    assert code_of(features, found, "weekday") == weekday


def test_times_that_can_only_be_a_wrong_unit_are_refused(features: Features) -> None:
    with pytest.raises(DataError, match="'at': 1704110400000"):
        stepped(features, {"at": 1_704_110_400_000.0})
    _, found = stepped(features, {"at": -1e11}, {"at": 1e11})
    assert np.isfinite(found.continuous[features.feature_names[0].index("counterparty_risk_month")])


def test_after_decades_windows_decay_but_the_count_stays(features: Features) -> None:
    _, found = stepped(features, {"at": 0.0}, {"at": 1.0}, {"at": 80 * 365 * DAY})
    assert np.isnan(
        [of_name(features, found, "hour_habit"), of_name(features, found, "weekday_habit")]
    ).all()
    _, first = features.step(None, GOOD)
    assert of_name(features, found, "count_month") == of_name(features, first, "count_month")
    assert of_name(features, found, "n_before") > of_name(features, first, "n_before")
    assert of_name(features, found, "counterparty_known_month") == of_name(
        features, first, "counterparty_known_month"
    )
    assert code_of(features, found, "new_device") == 0


@pytest.mark.parametrize("amount", [1e15, 1e100, 1e300, 1.7e308])
def test_one_enormous_amount_does_not_spoil_a_record(features: Features, amount: float) -> None:
    enormous = [{"paid": amount, "at": at} for at in range(3)]
    _, soon = stepped(features, *enormous, {"at": 10.0})
    names = enumerate(features.feature_names[0])
    facts = [k for k, name in names if name not in ("paid", "age", *UNKNOWN_YET)]
    assert np.isfinite(soon.continuous[facts]).all()
    state, later = stepped(features, *enormous, {"at": 10_000 * DAY}, {"at": 30_000 * DAY})
    clean, expected = stepped(features, {"at": 20_000 * DAY}, {"at": 30_000 * DAY})
    for name in ("sum_hour", "sum_month", "count_month"):
        assert of_name(features, later, name) == of_name(features, expected, name)
    assert np.isfinite(np.frombuffer(state.customer[8:], np.float64, len(history.NUMBERS))).all()
    assert len(state.customer) == len(clean.customer)


def test_negative_amounts_count_as_zero(features: Features) -> None:
    negative, found = stepped(features, {"paid": -7.0}, {"paid": -1e300, "at": 2000.0})
    nothing, expected = stepped(features, {"paid": 0.0}, {"paid": 0.0, "at": 2000.0})
    assert negative == nothing
    own = features.feature_names[0].index("paid")
    np.testing.assert_array_equal(
        np.delete(found.continuous, own), np.delete(expected.continuous, own)
    )
    assert found.continuous[own] < expected.continuous[own]


@pytest.mark.parametrize("late", [-1e9, 0.0, 999.0])
def test_rows_out_of_order_leave_a_usable_record(features: Features, late: float) -> None:
    state, found = stepped(
        features, {"at": 40 * DAY}, {"at": late}, {"at": late - 50 * DAY}, {"at": 40 * DAY + 60}
    )
    known = [k for k, name in enumerate(features.feature_names[0]) if name not in UNKNOWN_YET]
    assert np.isfinite(found.continuous[known]).all()
    assert of_name(features, found, "since_last") < of_name(
        features, stepped(features, {"at": 0.0}, {"at": DAY})[1], "since_last"
    )
    reported = report_label(features, state, late, 1)
    _, after = features.step(reported, GOOD | {"at": 60 * DAY})
    _, without = features.step(state, GOOD | {"at": 60 * DAY})
    assert of_name(features, after, "counterparty_risk_month") >= of_name(
        features, without, "counterparty_risk_month"
    )
    assert np.isfinite(after.continuous[known]).all()


def test_a_fraud_reported_late_joins_the_run_unless_a_genuine_label_came_after(
    features: Features,
) -> None:
    state, _ = stepped(features, {"at": 5 * DAY}, {"at": 40 * DAY})
    later = GOOD | {"at": 41 * DAY}
    _, before = features.step(state, later)
    _, after = features.step(report_label(features, state, 5 * DAY, 1), later)
    frauds, since = "counterparty_run_frauds", "counterparty_since_run"
    assert of_name(features, after, frauds) > of_name(features, before, frauds)
    assert np.isnan(of_name(features, before, since))
    assert np.isfinite(of_name(features, after, since))
    _, older = features.step(report_label(features, state, 4 * DAY, 1), later)
    assert of_name(features, older, frauds) == of_name(features, before, frauds)


def test_a_fraud_reported_over_and_over_keeps_the_risk_a_number(features: Features) -> None:
    state, _ = features.step(None, GOOD)
    for _ in range(200):
        state = report_label(features, state, 1000.0, 1)
    for days in (9, 40, 400, 4000):
        state, found = features.step(state, GOOD | {"at": days * DAY})
        assert np.isfinite(of_name(features, found, "counterparty_risk_month"))


@pytest.mark.parametrize("labels", [0, 1])
def test_files_with_only_genuine_or_only_fraud(labels: int) -> None:
    data = of_frame(shop_frame(150).with_columns(fraud=pl.lit(labels)))
    features = Features().fit(data.transactions)
    risk = unscaled_features(features, data.transactions)["counterparty_risk_month"]
    assert np.isfinite(risk).any() == bool(labels)
    assert not np.isinf(risk).any()
    assert_same_bits(replayed(features, data), features.transform(data.transactions))


def test_the_size_of_a_record() -> None:
    assert Features().fit(ieee().transactions).state_bytes == (392,)
    assert Features().fit(handbook().transactions).state_bytes == (212, 984)
    for delay, steps in ((0, 2), (0.1, 3), (0.25, 3), (1, 6), (1.5, 8), (3650, 14_602)):
        assert Features(label_delay_days=delay).fit(shop().transactions).state_bytes == (
            8 + 21 * 8 + 2 * 36,
            8 + 32 * 8 + 2 * 36 + 24 * steps,
        )


def test_the_record_covers_delay_and_maturity() -> None:
    matures = replace(shop().transactions, schema=replace(SHOP, label_maturity_days=9.5))
    size = Features(label_delay_days=2.5).fit(matures).state_bytes[1]
    assert size == 8 + 32 * 8 + 2 * 36 + 24 * (48 + 2)


def test_categories_in_any_script_and_of_any_length() -> None:
    names = [
        "東京",
        "Zürich",
        "Zu\u0308rich",
        "🙂",
        "\u0430",
        "a",
        " ",
        "x" * 10_000,
        "a|b",
        "a\nb",
        "'; --",
        "²",
        "--5",
    ]
    frame = shop_frame(130).with_columns(
        device=pl.Series(names * 10), town=pl.Series(names[::-1] * 10)
    )
    data = of_frame(frame, SHOP)
    features = Features(min_count=2).fit(data.transactions)
    assert len(features.plan_.vocabularies[1].frequent) == len(names)
    assert_same_bits(replayed(features, data), features.transform(data.transactions))
