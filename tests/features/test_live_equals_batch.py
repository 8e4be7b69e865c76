"""A file replayed row by row gives the features of the whole file to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.sample_data import (
    DAY,
    Due,
    Row,
    Service,
    assert_same_bits,
    at_once,
    handbook,
    ieee,
    just_before_it_counts,
    of_frame,
    replayed,
    shop,
)
from turncoat.data.schema import Schema
from turncoat.features import Features, FeatureState


@pytest.mark.parametrize("kind", ["engineered", "processed"])
def test_ieee_with_all_its_columns(kind: str) -> None:
    data = ieee()
    assert len(data.rows[0]) == 394 + 41 - 1
    features = Features(kind).fit(data.transactions)
    panel = features.transform(data.transactions)
    assert panel.n_continuous > 300
    assert_same_bits(replayed(features, data), panel)


def test_ieee_rows_that_were_not_fitted_on() -> None:
    fitted, data = ieee(300, seed=5), ieee(500, seed=6)
    features = Features(missing_flags="all", min_count=3).fit(fitted.transactions)
    assert_same_bits(replayed(features, data), features.transform(data.transactions))


def in_between(time: float) -> float:
    """At some moment between the fraud and the day its label counts, another one for each."""
    return time + (time * 7919 % 1) * DAY + time % 5 * DAY


@pytest.mark.parametrize("due", [at_once, just_before_it_counts(7.0), in_between])
def test_handbook_with_frauds_reported_before_they_count(due: Due) -> None:
    data = handbook()
    features = Features().fit(data.transactions)
    panel = features.transform(data.transactions)
    risk = panel.continuous[:, features.feature_names[0].index("counterparty_risk_month")]
    assert len(np.unique(risk)) > 50
    assert_same_bits(replayed(features, data, due), panel)


def test_a_fraud_never_reported_does_matter() -> None:
    data = handbook()
    features = Features().fit(data.transactions)
    continuous, _ = replayed(features, data, lambda time: np.inf)
    panel = features.transform(data.transactions)
    wrong = np.array(features.feature_names[0])[
        (continuous != panel.continuous).any(axis=0) & ~np.isnan(continuous).any(axis=0)
    ]
    assert list(wrong) == [
        "counterparty_risk_day",
        "counterparty_risk_week",
        "counterparty_risk_month",
        "counterparty_run_frauds",
    ]


@pytest.mark.parametrize("delay", [0.0, 0.3, 1.0, 2.5, 45.0, 3650.0])
@pytest.mark.parametrize("late", [False, True])
def test_any_label_delay(delay: float, late: bool) -> None:
    data = shop()
    features = Features(label_delay_days=delay, min_count=2).fit(data.transactions)
    due = just_before_it_counts(delay) if late else at_once
    assert_same_bits(replayed(features, data, due), features.transform(data.transactions))


def test_numeric_categories_in_any_live_spelling() -> None:
    data = shop()
    features = Features(min_count=2).fit(data.transactions)
    spellings = [
        float,
        str,
        np.int64,
        np.float32,
        lambda kind: f"{kind}.0",
        lambda kind: np.str_(kind),
    ]

    def respelled(row: Row) -> Row:
        kind = row["kind"]
        missing = [None, float("nan"), "", np.nan][row["id"] % 4]
        return row | {
            "kind": missing if kind is None else spellings[row["id"] % len(spellings)](kind)
        }

    assert_same_bits(
        replayed(features, data, change=respelled), features.transform(data.transactions)
    )


def test_absent_keys_are_missing_values_and_others_do_not_matter() -> None:
    data = shop()
    features = Features(min_count=2).fit(data.transactions)

    def sparse(row: Row) -> Row:
        return {column: value for column, value in row.items() if value is not None} | {
            "weather": ["wet"],
            "fraud": "?",
            "id": None,
        }

    assert_same_bits(replayed(features, data, change=sparse), features.transform(data.transactions))


numbers = st.one_of(
    st.none(),
    st.sampled_from([0.0, -0.0, 1.0, -5.5, 1e-300, 1e12, -1e9, 0.1]),
    st.floats(-1e6, 1e6),
)
times = st.one_of(
    st.sampled_from(
        [0.0, 0.5, 86399.999, 86400.0, 604800.0, -1.0, -1e-12, 1e9, 3e9, -4e8, 1e9 + 1]
    ),
    st.floats(-1e8, 2e9),
    st.integers(-100, 10**6),
)
names = {
    "text": (
        st.sampled_from(
            [
                "a",
                "b",
                "é",
                "東京",
                "007",
                "7",
                "7.0",
                "--5",
                "²",
                " ",
                "True",
                "-0",
                "1e3",
                "a|b",
                "nan",
            ]
        ),
        pl.String,
    ),
    "whole": (st.sampled_from([-1, 0, 1, 2, 404, 2**53 + 1, -(2**60)]), pl.Int64),
    "float": (
        st.sampled_from([-1.0, -0.0, 0.0, 1.0, 404.0, 2.5, float("nan"), 1e22, 2.0**53]),
        pl.Float64,
    ),
    "truth": (st.booleans(), pl.Boolean),
    "nothing": (st.none(), pl.String),
}


@st.composite
def odd_files(draw: st.DrawFn) -> tuple[pl.DataFrame, Schema, dict[str, Any]]:
    """A small random file: columns of any type, with missing values, or absent."""
    n_rows = draw(st.integers(1, 14))
    n_continuous, n_categorical = draw(
        st.sampled_from([(0, 1), (1, 0), (1, 1), (2, 2), (17, 1), (0, 3)])
    )
    continuous = [f"x{k}" for k in range(n_continuous)]
    categorical = [f"g{k}" for k in range(n_categorical)]
    columns: dict[str, pl.Series] = {}
    for column in continuous:
        columns[column] = pl.Series(
            draw(st.lists(numbers, min_size=n_rows, max_size=n_rows)), dtype=pl.Float64
        )
    for column in [*categorical, "place", "town"]:
        values, kind = names[draw(st.sampled_from(sorted(names)))]
        drawn = draw(st.lists(st.one_of(st.none(), values), min_size=n_rows, max_size=n_rows))
        columns[column] = pl.Series(drawn, dtype=kind)
    n_customers = draw(st.integers(1, 3))
    columns["who"] = pl.Series(
        draw(st.lists(st.integers(1, n_customers), min_size=n_rows, max_size=n_rows))
    )
    columns["at"] = pl.Series(
        draw(st.lists(times, min_size=n_rows, max_size=n_rows)), dtype=pl.Float64
    )
    columns["fraud"] = pl.Series(
        draw(st.lists(st.booleans(), min_size=n_rows, max_size=n_rows)), dtype=pl.Boolean
    )
    columns["id"] = pl.Series(draw(st.permutations(range(n_rows))))
    if draw(st.booleans()):
        columns["id"] = columns["id"].cast(pl.String)
    schema = Schema(
        customer="who",
        time="at",
        continuous=tuple(continuous),
        categorical=tuple(categorical),
        amount=draw(st.sampled_from([None, *continuous])),
        label=draw(st.sampled_from([None, "fraud"])),
        id=draw(st.sampled_from([None, "id"])),
        counterparties=draw(st.sampled_from([(), ("place",)])),
        tracked=draw(st.sampled_from([(), ("town",), ("town", "place"), tuple(categorical)])),
        time_unit=draw(st.sampled_from(["s", "ms"])),
    )
    arguments = {
        "kind": draw(st.sampled_from(["engineered", "engineered", "processed"])),
        "missing_flags": draw(st.sampled_from(["distinct", "all", "none"])),
        "min_count": draw(st.integers(1, 3)),
        "max_categories": draw(st.sampled_from([1, 2, 100])),
        "label_delay_days": draw(st.sampled_from([0, 0.25, 1, 7.0, 3650])),
    }
    return pl.DataFrame(columns), schema, arguments


def has_columns(features: Features) -> bool:
    return bool(features.feature_names[0]) or bool(features.feature_names[1])


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(odd_files(), st.booleans())
def test_odd_files_of_invented_kinds(
    file: tuple[pl.DataFrame, Schema, dict[str, Any]], late: bool
) -> None:
    frame, schema, arguments = file
    data = of_frame(frame, schema)
    features = Features(**arguments).fit(data.transactions)
    if has_columns(features):
        due = just_before_it_counts(float(arguments["label_delay_days"])) if late else at_once
        assert_same_bits(replayed(features, data, due), features.transform(data.transactions))


def test_records_are_bytes_of_one_size_whatever_the_history() -> None:
    data = shop()
    features = Features(label_delay_days=2.5).fit(data.transactions)
    of_customer, of_counterparty = features.state_bytes
    service = Service(features)
    for i in data.live_order:
        transactions = data.transactions
        service.take(
            transactions.customer_codes[i],
            data.rows[transactions.file_rows[i]],
            transactions.times[i],
            transactions.labels[i],
        )
        for record in service.customers.values():
            assert type(record) is bytes
            assert len(record) == of_customer
        assert {len(record) for record in service.counterparties.values()} <= {of_counterparty}
    assert len(service.customers) == 12
    assert len(service.counterparties) == 5


def test_records_that_went_through_a_store_are_as_good() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    rows = [data.rows[i] for i in data.transactions.file_rows[:30]]
    kept = stored = FeatureState()
    for row in rows:
        kept, expected = features.step(kept, row)
        records = stored.customer, *stored.counterparties
        customer, *others = (bytes.fromhex((record or b"").hex()) or None for record in records)
        stored, found = features.step(FeatureState(customer, tuple(others)), row)
        np.testing.assert_array_equal(found.continuous, expected.continuous)
        np.testing.assert_array_equal(found.categorical, expected.categorical)
        assert stored == kept


def test_a_step_leaves_the_record_it_was_given_as_it_was() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    first, _ = features.step(None, data.rows[0])
    before = bytes(first.customer or b""), tuple(map(bytes, first.counterparties))
    again = [features.step(first, data.rows[1])[1].continuous for _ in range(2)]
    np.testing.assert_array_equal(*again)
    assert before == (first.customer, first.counterparties)


def test_processed_features_keep_no_record() -> None:
    data = shop()
    features = Features("processed").fit(data.transactions)
    assert features.step(None, data.rows[0])[0] == FeatureState()
    assert features.step(FeatureState(b"kept"), data.rows[0])[0] == FeatureState(b"kept")


def test_a_row_without_a_counterparty_keeps_that_record() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    row = next(row for row in data.rows if row["shop"] is not None)
    state, _ = features.step(None, row)
    later, found = features.step(state, row | {"shop": None})
    assert later.counterparties == state.counterparties
    assert later.customer != state.customer
    risk = features.feature_names[0].index("counterparty_risk_month")
    assert np.isnan(found.continuous[risk])
