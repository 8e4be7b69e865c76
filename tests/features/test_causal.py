"""Features use no later rows, no labels before they are known, and no rows outside the fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.sample_data import (
    DAY,
    SHOP,
    STEP,
    Data,
    handbook,
    ieee,
    of_frame,
    shop,
    shop_frame,
    unscaled_features,
)
from turncoat.data import splits
from turncoat.data.categories import CategoryColumn
from turncoat.data.reading import read
from turncoat.data.transactions import Transactions
from turncoat.errors import DataError
from turncoat.features import Features, counterparties
from turncoat.panel import Panel

RISKS = ["counterparty_risk_day", "counterparty_risk_week", "counterparty_risk_month"]
RUN_FACTS = ["counterparty_since_genuine", "counterparty_since_run", "counterparty_run_frauds"]


def by_id(panel: Panel) -> dict[int, tuple[bytes, bytes]]:
    """Each row's features, bit by bit."""
    assert panel.ids is not None
    rows = zip(panel.ids.tolist(), panel.continuous, panel.categorical, strict=True)
    return {
        row: (continuous.tobytes(), categorical.tobytes()) for row, continuous, categorical in rows
    }


def spoiled(frame: pl.DataFrame, which: np.ndarray, seed: int) -> pl.DataFrame:
    """Replace everything but times and ids of some rows: values, categories, labels."""
    rng = np.random.default_rng(seed)
    n = frame.height
    changed = {
        "who": [f"c{k}" for k in rng.integers(14, size=n)],
        "paid": rng.lognormal(9, 3, n),
        "age": np.where(rng.random(n) < 0.5, np.nan, -rng.exponential(1e5, n)),
        "kind": rng.integers(1000, 1005, n),
        "device": [f"new {k}" for k in rng.integers(5, size=n)],
        "town": [["Oslo", "Atlantis", None][k] for k in rng.integers(3, size=n)],
        "shop": [f"s{k}" for k in rng.integers(7, size=n)],
        "fraud": 1 - frame["fraud"].to_numpy(),
    }
    there = pl.Series(which)
    replaced = []
    for column, values in changed.items():
        other = pl.Series(column, values).cast(frame[column].dtype)
        replaced.append(other.zip_with(there, frame[column]))
    return frame.with_columns(replaced)


@settings(max_examples=25, deadline=None)
@given(st.floats(-2 * DAY, 50 * DAY), st.integers(0, 10**6), st.sampled_from([0.0, 0.4, 7.0]))
def test_later_rows_do_not_matter(moment: float, seed: int, delay: float) -> None:
    frame = shop_frame()
    features = Features(min_count=2, label_delay_days=delay).fit(read(frame, SHOP))
    before = by_id(features.transform(read(frame, SHOP)))
    later = frame["at"].to_numpy() > moment
    earlier = frame.filter(pl.Series(~later))["id"].to_list()
    more = shop_frame(60, seed).with_columns(pl.col("at") + moment + 4 * DAY, pl.col("id") + 10_000)
    for other in (
        spoiled(frame, later, seed),
        frame.filter(pl.Series(~later)),
        pl.concat([frame, more]),
        frame.filter(pl.Series(~later)).sample(fraction=1.0, shuffle=True, seed=seed),
    ):
        after = by_id(features.transform(read(other, SHOP)))
        for row in earlier:
            assert after[row] == before[row]
    assert by_id(features.transform(read(spoiled(frame, later, seed), SHOP))) != before


def test_the_history_of_a_row_includes_ties_with_smaller_ids_and_no_others() -> None:
    frame = shop_frame(3).with_columns(
        who=pl.lit("c1"), at=pl.lit(5.0), shop=pl.lit("s1"), id=pl.Series([3, 1, 2])
    )
    features = Features().fit(shop().transactions)
    facts = unscaled_features(features, read(frame, SHOP))
    np.testing.assert_allclose(facts["n_before"], np.log1p([0, 1, 2]), rtol=1e-15)
    np.testing.assert_allclose(facts["counterparty_count_month"], np.log1p([0, 1, 2]), rtol=1e-15)


@pytest.mark.parametrize("delay", [0.0, 0.5, 7.0])
def test_a_rows_own_label_never_matters(delay: float) -> None:
    frame = shop_frame()
    features = Features(min_count=2, label_delay_days=delay).fit(read(frame, SHOP))
    before = by_id(features.transform(read(frame, SHOP)))
    for row in range(0, frame.height, 40):
        flipped = frame.with_columns(
            fraud=pl.Series(
                np.where(np.arange(frame.height) == row, 1 - frame["fraud"], frame["fraud"])
            )
        )
        after = by_id(features.transform(read(flipped, SHOP)))
        itself = frame["id"][row]
        assert after[itself] == before[itself]


BEGIN = 40 * DAY + STEP  # a step begins


@pytest.mark.parametrize("delay", [0.0, 0.25, 1.0, 2.5, 7.0, 100.0])
@pytest.mark.parametrize("second", [0.0, 1.0, 10_800.0, 21_599.0])
def test_a_label_counts_from_the_end_of_its_step_and_the_delay_on(
    delay: float, second: float
) -> None:
    """Probe one shop around the moment the label of an early transaction becomes known."""
    known = BEGIN + STEP + delay * DAY
    probes = [
        BEGIN + second,
        BEGIN + STEP - 0.5,
        known - STEP,
        known - 1.0,
        known - 0.001,
        known,
        known + 1.0,
        known + STEP,
        known + (delay + 30) * DAY,
    ]
    at = np.array(sorted({BEGIN + second, *(probe for probe in probes if probe >= BEGIN + second)}))
    features = Features(label_delay_days=delay).fit(shop().transactions)

    def risks(first_is_fraud: int, next_steps: int = 0) -> tuple[np.ndarray, np.ndarray]:
        n = len(at)
        frame = shop_frame(n).with_columns(
            who=pl.Series([f"c{k}" for k in range(n)]),  # in the order of time
            at=pl.Series(at),
            shop=pl.lit("s1"),
            fraud=pl.Series(
                np.where(at >= BEGIN + STEP, next_steps, np.where(at == at[0], first_is_fraud, 0))
            ),
            id=pl.Series(range(n)),
        )
        facts = unscaled_features(features, read(frame, SHOP))
        order = np.argsort([f"c{k}" for k in range(n)])
        return facts["counterparty_risk_month"][np.argsort(order)], facts[
            "counterparty_known_month"
        ][np.argsort(order)]

    genuine, counted = risks(0)
    fraud, counted_too = risks(1)
    np.testing.assert_array_equal(counted, counted_too)
    np.testing.assert_array_equal(fraud[at < known], genuine[at < known])
    assert (fraud[at >= known] > genuine[at >= known]).all()
    assert (counted[at < known] == 0).all()
    assert (counted[at >= known] > 0).all()
    next_too, _ = risks(1, next_steps=1)
    np.testing.assert_array_equal(next_too[at < known + STEP], fraud[at < known + STEP])
    assert next_too[-1] > fraud[-1]


def test_what_is_known_fades_over_a_month() -> None:
    features = Features(label_delay_days=0).fit(shop().transactions)
    at = [0.0, DAY, 31 * DAY, 61 * DAY, 3000 * DAY]
    frame = shop_frame(5).with_columns(
        who=pl.lit("c0"),
        at=pl.Series(at),
        shop=pl.lit("s1"),
        fraud=pl.Series([1, 0, 0, 0, 0]),
        id=pl.Series(range(5)),
    )
    known = np.expm1(unscaled_features(features, read(frame, SHOP))["counterparty_known_month"])
    fades = [[np.exp(-(now - then - STEP) / (30 * DAY)) for then in at if then < now] for now in at]
    np.testing.assert_allclose(known[:4], [sum(some) for some in fades[:4]], rtol=1e-12)
    assert known[4] < 1e-12


def test_labels_only_matter_through_the_risk_of_the_counterparty() -> None:
    data = handbook()
    features = Features().fit(data.transactions)
    labels = data.transactions.labels
    assert labels is not None
    before = features.transform(data.transactions)
    after = features.transform(with_labels(data.transactions, 1 - labels))
    differs = ((before.continuous != after.continuous) & ~np.isnan(before.continuous)).any(axis=0)
    found = [name for name, d in zip(features.feature_names[0], differs, strict=True) if d]
    assert found == [*RISKS, *RUN_FACTS]
    np.testing.assert_array_equal(before.categorical, after.categorical)
    without = Features().fit(ieee().transactions)
    np.testing.assert_array_equal(
        without.transform(ieee().transactions).continuous,
        without.transform(
            with_labels(ieee().transactions, 1 - ieee().transactions.labels)
        ).continuous,
    )


def with_labels(transactions: Transactions, labels: np.ndarray) -> Transactions:
    return replace(transactions, labels=labels)


@pytest.mark.parametrize("data", [shop, handbook, ieee])
@pytest.mark.parametrize("kind", ["engineered", "processed"])
def test_some_rows_of_the_whole_are_the_rows_of_the_whole(
    data: Callable[[], Data], kind: str
) -> None:
    transactions = data().transactions
    features = Features(kind).fit(transactions)
    whole = features.transform(transactions)
    rng = np.random.default_rng(0)
    every = np.arange(transactions.n_rows)
    for rows in (
        every[:1],
        every[-1:],
        every[::7],
        np.sort(rng.choice(every, 90, replace=False)),
        every,
    ):
        part = features.transform(transactions, rows=rows)
        np.testing.assert_array_equal(part.continuous, whole.continuous[rows])
        np.testing.assert_array_equal(part.categorical, whole.categorical[rows])
        np.testing.assert_array_equal(part.ids, whole.ids[rows])
        np.testing.assert_array_equal(part.labels, whole.labels[rows])
        np.testing.assert_array_equal(
            np.repeat(part.customers, part.lengths), np.repeat(whole.customers, whole.lengths)[rows]
        )


def test_rows_as_numbers_or_as_a_mask() -> None:
    transactions = shop().transactions
    features = Features().fit(transactions)
    expected = features.transform(transactions, rows=[3, 5, 200])
    mask = np.zeros(transactions.n_rows, bool)
    mask[[3, 5, 200]] = True
    for rows in ([200, 3, 5, 5], mask, mask.tolist(), np.array([3, 5, 200], np.uint16)):
        np.testing.assert_array_equal(features.transform(transactions, rows=rows).ids, expected.ids)
    for wrong in ([0.5], mask[:10], [[1]], ["1"], 3, [-1], [transactions.n_rows], []):
        with pytest.raises(DataError):
            features.transform(transactions, rows=wrong)


def poisoned(transactions: Transactions, kept: np.ndarray) -> Transactions:
    """The same transactions, every cell, name and label outside `kept` changed."""
    outside = np.setdiff1d(np.arange(transactions.n_rows), kept)
    places = transactions.file_rows[outside]
    rng = np.random.default_rng(0)
    numbers = {}
    for column, values in transactions.numbers.items():
        numbers[column] = values.copy()
        numbers[column][places] = np.where(
            np.isnan(values[places]) | (rng.random(len(places)) < 0.3), rng.normal(1e6, 1e9), np.nan
        )
    names = {}
    for column, named in transactions.categories.items():
        codes = named.codes.copy()
        codes[places] = np.where(
            codes[places] < 0, 0, rng.integers(-1, 2, len(places)) + len(named.values)
        )
        names[column] = CategoryColumn(codes, (*named.values, "poison", "venom"))
    labels = None if transactions.labels is None else transactions.labels.copy()
    if labels is not None:
        labels[outside] = 1 - labels[outside]
    return replace(transactions, numbers=numbers, categories=names, labels=labels)


def fitted_plan(features: Features) -> str:
    plan = features.plan_
    scales = [
        array.tolist() for array in (plan.scales.units, plan.scales.centres, plan.scales.spreads)
    ]
    return json.dumps(
        [
            scales,
            plan.flagged,
            plan.base_rate,
            [(v.frequent, v.rare) for v in plan.vocabularies],
            plan.n_categories,
        ]
    )


@pytest.mark.parametrize("data", [shop, handbook, ieee])
@pytest.mark.parametrize("split", ["customer", "time", "prequential"])
def test_fitting_sees_the_fit_rows_and_no_others(data: Callable[[], Data], split: str) -> None:
    transactions = data().transactions
    who, at = transactions.customer_codes, transactions.times
    if split == "customer":
        parts = splits.split_by_customer(who, at, transactions.labels, seed=1)
    elif split == "time":
        parts = splits.split_by_time(who, at, transactions.labels, gap_s=DAY)
    else:
        parts = splits.split_prequential(who, at, transactions.labels)[0]
    assert 0 < len(parts.fit) < transactions.n_rows
    features = Features(min_count=3)
    clean = fitted_plan(features.fit(transactions.take(parts.fit)))
    poison = poisoned(transactions, parts.fit)
    assert fitted_plan(features.fit(poison.take(parts.fit))) == clean
    assert fitted_plan(features.fit(poison)) != clean
    assert "poison" not in clean


def test_later_test_rows_do_not_change_earlier_ones() -> None:
    """A test row of a split by time has the fit rows as its history, and never a later test row."""
    transactions = shop().transactions
    parts = splits.split_by_time(transactions.customer_codes, transactions.times)
    features = Features(min_count=3).fit(transactions.take(parts.fit))
    until = np.median(transactions.times[parts.test])
    early = parts.test[transactions.times[parts.test] < until]
    assert 0 < len(early) < len(parts.test)
    before = features.transform(transactions, rows=early)
    after = features.transform(
        poisoned(transactions, np.flatnonzero(transactions.times < until)), rows=early
    )
    np.testing.assert_array_equal(before.continuous, after.continuous)
    np.testing.assert_array_equal(before.categorical, after.categorical)


def test_customers_are_independent_without_a_counterparty() -> None:
    data = of_frame(shop_frame(), SHOP)
    transactions = ieee().transactions
    features = Features().fit(transactions)
    one = features.transform(transactions)[7]
    rows = np.flatnonzero(
        transactions.customer_codes == transactions.customer_codes[transactions.offsets[7]]
    )
    np.testing.assert_array_equal(
        features.transform(transactions.take(rows)).continuous, one.continuous
    )
    shared = Features(min_count=3).fit(data.transactions)
    alone = np.arange(data.transactions.offsets[1])
    with_others = shared.transform(data.transactions)[0].continuous
    by_itself = shared.transform(data.transactions.take(alone)).continuous
    differs = ((with_others != by_itself) & ~np.isnan(with_others)).any(axis=0)
    assert {name for name, d in zip(shared.feature_names[0], differs, strict=True) if d} <= {
        *(f"counterparty_{name}" for name in counterparties.CONTINUOUS)
    }
    assert differs.any()


def test_the_base_rate_is_that_of_known_labels() -> None:
    transactions = handbook().transactions
    labels = np.asarray(transactions.labels)
    some = np.where(np.arange(len(labels)) % 3 == 0, -1, labels).astype(np.int8)
    fitted = Features().fit(with_labels(transactions, some))
    assert fitted.plan.base_rate == labels[some >= 0].mean() != labels.mean()
    nothing = Features().fit(with_labels(transactions, np.full_like(labels, -1)))
    assert nothing.plan.base_rate == 0
    assert not [name for name in nothing.feature_names[0] if "risk" in name]
