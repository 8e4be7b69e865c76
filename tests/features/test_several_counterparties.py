"""Several counterparties: each as if it were the only one, except for what they explain."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.features.sample_data import (
    DAY,
    SHOP,
    Data,
    Due,
    assert_same_bits,
    at_once,
    just_before_it_counts,
    of_frame,
    replayed,
    shop_frame,
)
from tests.features.test_chains import CHAINS, COMPROMISES, intruder_chain, propagate
from turncoat.data.parsing import parse_row
from turncoat.data.schema import Schema
from turncoat.errors import ConfigError, StateError
from turncoat.features import UNKNOWN, Features, FeatureState, load_features
from turncoat.features.batch import count_missing, engineer_features
from turncoat.features.chains import (
    INTRUDER,
    Chains,
    count_causes,
    explain_labels,
    find_compromises,
    select_causes,
)

Array = np.ndarray
# The second is a tracked category, too, and all have missing values.
COLUMNS = ("shop", "device", "town")
OF_DEVICES = replace(COMPROMISES, onsets_per_day=0.05, share=0.7, n_phases=3, memory_days=9.0)
OF_TOWNS = replace(COMPROMISES, mean_days=5.0, n_phases=1)
SEVERAL = Chains(intruder_chain(), (COMPROMISES, OF_DEVICES, OF_TOWNS))


def schema_of(*columns: str) -> Schema:
    return replace(SHOP, counterparties=columns, label_maturity_days=3.0)


@cache
def data_of(*columns: str) -> Data:
    """Transactions with these counterparties, some without a label."""
    frame = shop_frame(500, days=90.0)
    is_unknown = np.random.default_rng(0).random(frame.height) < 0.3
    data = of_frame(frame, schema_of(*columns))
    labels = np.asarray(data.transactions.labels).copy()
    labels[is_unknown[data.transactions.file_rows]] = -1
    return replace(data, transactions=replace(data.transactions, labels=labels))


@cache
def fit_features(*columns: str) -> Features:
    return Features(min_count=2, label_delay_days=2.0).fit(data_of(*columns).transactions)


def with_chains(*columns: str) -> Features:
    chains = tuple(SEVERAL.compromise[COLUMNS.index(column)] for column in columns)
    return fit_features(*columns).add_chains(Chains(SEVERAL.intruder, chains))


def engineer(features: Features, data: Data) -> tuple[dict[str, Array], Array]:
    """Unscaled features by name, and causes [causes, N]."""
    t = data.transactions
    values, codes, causes = engineer_features(features.plan, t, count_missing(t))
    names = (*features.plan.engineered_continuous, *features.plan.engineered_categorical)
    return dict(zip(names, (*values, *codes), strict=True)), causes


def same_bits(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


# ---- features


@pytest.mark.parametrize("columns", [("shop", "device"), ("device", "shop"), COLUMNS], ids=str)
def test_features_of_each_are_those_of_an_only_one(columns: tuple[str, ...]) -> None:
    found, causes = engineer(with_chains(*columns), data_of(*columns))
    for place, column in enumerate(columns):
        expected, own = engineer(with_chains(column), data_of(column))
        theirs = {name for name in expected if name.startswith("counterparty_")}
        assert len(theirs) == 28 + 1 + 2 * (2 - (column in SHOP.tracked))
        for name in expected:
            renamed = name.replace("counterparty_", f"{column}_", 1) if name in theirs else name
            assert same_bits(found[renamed], expected[name]), renamed
        assert same_bits(causes[:4], own[:4])
        if place == 0:  # told the same as an only one
            assert same_bits(causes[select_causes(0)], own[select_causes(0)])
        else:  # the run of frauds does not depend on what explains them
            assert same_bits(causes[select_causes(place)][2:], own[select_causes(0)][2:])
            assert not same_bits(causes[select_causes(place)], own[select_causes(0)])
    others = {name for name in found if name.startswith(tuple(f"{c}_" for c in columns))}
    assert not any(name.startswith("counterparty_") for name in found)
    assert len(found) == 18 + 3 + 6 + len(others)


def test_the_panel_has_the_features_of_all() -> None:
    features, data = fit_features(*COLUMNS), data_of(*COLUMNS)
    panel = features.transform(data.transactions)
    for column in COLUMNS:
        only = fit_features(column)
        names, expected = only.feature_names[0], only.transform(data_of(column).transactions)
        for name in ("counterparty_risk_week", "counterparty_count_day"):
            place = features.feature_names[0].index(name.replace("counterparty", column))
            one, other = panel.continuous[:, place], expected.continuous[:, names.index(name)]
            np.testing.assert_array_equal(one, other)
            assert np.isnan(one).any()
            assert np.isfinite(one).any()


def test_a_column_with_the_name_of_a_feature_is_refused() -> None:
    frame = shop_frame().rename({"age": "shop_risk_week"})
    schema = replace(schema_of("shop", "device"), continuous=("paid", "shop_risk_week"))
    with pytest.raises(ConfigError, match="'shop_risk_week' have the names of engineered"):
        Features().fit(of_frame(frame, schema).transactions)
    Features().fit(of_frame(frame, replace(schema, counterparties=("shop",))).transactions)


# ---- what explains a fraud


def test_a_counterparty_is_told_what_those_before_it_explain() -> None:
    """Each chain against plain matrix exponentials of its labels."""
    features, data = with_chains(*COLUMNS), data_of(*COLUMNS)
    t, (_, causes) = data.transactions, engineer(features, data)
    labels = np.asarray(t.labels)
    explained, checked = causes[INTRUDER], 0
    for place, column in enumerate(COLUMNS):
        chain = SEVERAL.compromise[place]
        assert chain is not None
        risk, compromised = causes[select_causes(place)][:2]
        who = t.categories[column].codes[t.file_rows]
        for name in np.unique(who[who >= 0]):
            own = np.flatnonzero(who == name)
            own = own[np.lexsort((t.ids[own], t.times[own]))]
            expected = propagate(chain, t.times[own], labels[own], explained[own])
            np.testing.assert_allclose(compromised[own], expected, rtol=1e-9)
            checked += len(own)
        assert (risk[who < 0] == 0).all()
        np.testing.assert_allclose(risk, chain.share * compromised)
        explained = 1.0 - (1.0 - explained) * (1.0 - risk)
    assert checked > 1200
    found = explain_labels(np.ascontiguousarray(causes.T))
    first, second = (causes[column] for column in find_compromises(3)[:2])
    safe = np.cumprod([1.0 - causes[INTRUDER], 1.0 - first, 1.0 - second], axis=0)
    np.testing.assert_allclose(found, 1.0 - safe.T, atol=1e-15)


def test_a_chain_of_one_leaves_the_others_without() -> None:
    data = data_of("shop", "device")
    only = fit_features("shop", "device").add_chains(Chains(None, (None, OF_DEVICES)))
    found = np.asarray(only.transform(data.transactions).causes)
    assert found.shape == (500, count_causes(2))
    assert (found[:, :4] == 0).all()
    shop, device = (found[:, select_causes(place)] for place in (0, 1))
    assert (shop[:, :2] == 0).all()
    assert len(np.unique(device[:, 1])) > 100
    assert (np.nan_to_num(shop[:, 2]) > 0).any()
    alone = fit_features("device").add_chains(Chains(None, (OF_DEVICES,)))
    expected = np.asarray(alone.transform(data_of("device").transactions).causes)
    np.testing.assert_array_equal(device, expected[:, select_causes(0)])


# ---- live


@pytest.mark.parametrize("columns", [("shop", "device"), COLUMNS], ids=str)
@pytest.mark.parametrize("late", [False, True])
def test_features_of_single_rows_are_the_same_bits(columns: tuple[str, ...], late: bool) -> None:
    features, data = fit_features(*columns), data_of(*columns)
    due = just_before_it_counts(2.0) if late else at_once
    found = replayed(features, data, due, told=(0, 1))
    assert_same_bits(found, features.transform(data.transactions))


def replay_causes(features: Features, data: Data, due: Due | None) -> Array:
    """Causes of every row as a live service finds them; labels come with rows, or when `due`."""
    t, columns = data.transactions, features.plan.counterparties
    records: dict[tuple[str, Any], bytes | None] = {}
    waiting: list[tuple[float, tuple[str, Any], float, int, float]] = []
    own: list[tuple[float, tuple[str, Any], float, int, int]] = []  # waiting for the customer
    times_of: dict[Any, list[float]] = {}  # of each customer's transactions
    found = np.empty((t.n_rows, count_causes(len(columns))))
    for i in data.live_order:
        time, label, row = t.times[i], int(np.asarray(t.labels)[i]), data.rows[t.file_rows[i]]
        for one in [one for one in waiting if one[0] <= time]:
            waiting.remove(one)
            _, key, then, known, explained = one
            told = features.report_label(key[0], records[key], then, known, explained=explained)
            records[key] = told
        for report in [one for one in own if one[0] <= time]:
            own.remove(report)
            _, who, then, known, nth = report
            n_later = times_of[who][nth + 1 :].count(then)
            before = FeatureState(records[who])
            records[who] = features.report_own_label(before, then, known, n_later).customer
        keys = [(column, row[column]) for column in columns]
        who = "customer", t.customer_codes[i]
        state = FeatureState(records.get(who), tuple(records.get(key) for key in keys))
        steps = features.step_batch(
            [state], [parse_row(t.schema, row)], [label if due is None else UNKNOWN]
        )
        found[i] = steps.causes[0]
        records[who] = steps.states[0].customer
        times_of.setdefault(who, []).append(time)
        if due is not None and label >= 0:
            own.append((due(time), who, time, label, len(times_of[who]) - 1))
        explanations = explain_labels(steps.causes)[0].tolist()
        for key, record, explained in zip(
            keys, steps.states[0].counterparties, explanations, strict=True
        ):
            if key[1] is None:
                assert record is None
                continue
            records[key] = record
            if due is not None and label >= 0:
                waiting.append((due(time), key, time, label, explained))
    return found


@pytest.mark.parametrize("columns", [("shop", "device"), COLUMNS], ids=str)
@pytest.mark.parametrize(
    "due", [None, at_once, just_before_it_counts(2.0)], ids=["untold", "at once", "in time"]
)
def test_causes_of_single_rows_are_the_same_bits(columns: tuple[str, ...], due: Due | None) -> None:
    features, data = with_chains(*columns), data_of(*columns)
    found = replay_causes(features, data, due)
    assert same_bits(found, np.asarray(features.transform(data.transactions).causes))
    assert len(np.unique(found[:, find_compromises(len(columns))])) > 400


def test_many_rows_in_one_batch_continue_each_others_records() -> None:
    features, data = with_chains(*COLUMNS), data_of(*COLUMNS)
    t, order = data.transactions, data.live_order
    rows = [data.rows[t.file_rows[i]] for i in order]
    last: dict[Any, int] = {}
    previous = np.full((len(rows), 4), -1)
    for k, (i, row) in enumerate(zip(order, rows, strict=True)):
        keys = [("who", t.customer_codes[i]), *((column, row[column]) for column in COLUMNS)]
        previous[k] = [-1 if key[1] is None else last.get(key, -1) for key in keys]
        last.update(dict.fromkeys(keys, k))
    parsed = [parse_row(t.schema, row) for row in rows]
    labels = np.asarray(t.labels)[order].tolist()
    steps = features.step_batch([FeatureState()] * len(rows), parsed, labels, previous)
    panel = features.transform(t)
    np.testing.assert_array_equal(steps.continuous, panel.continuous[order])
    np.testing.assert_array_equal(steps.categorical, panel.categorical[order])
    np.testing.assert_array_equal(steps.causes, np.asarray(panel.causes)[order])


def test_a_row_without_a_counterparty_keeps_that_record_and_changes_the_others() -> None:
    features = with_chains("shop", "device")
    row = {"who": "c", "at": 0.0, "paid": 5.0, "shop": "x", "device": "x"}
    state, _ = features.step(None, row)
    later, _ = features.step(state, row | {"at": DAY, "shop": None})
    assert later.counterparties[0] == state.counterparties[0]
    assert later.counterparties[1] != state.counterparties[1]
    assert tuple(map(len, (state.customer or b"", *later.counterparties))) == features.state_bytes


def test_states_of_other_counterparties_are_refused() -> None:
    features = with_chains("shop", "device")
    row = {"who": "c", "at": 0.0, "paid": 5.0, "shop": "x", "device": "x"}
    state, _ = features.step(None, row)
    shop, device = state.counterparties
    with pytest.raises(StateError, match="a state with 1 counterparties; these features have 2"):
        features.step(FeatureState(None, (shop,)), row)
    with pytest.raises(StateError, match="made by other features"):
        features.step(FeatureState(None, (device, shop)), row)
    for other in (with_chains("device", "shop"), with_chains(*COLUMNS), with_chains("shop")):
        assert other.plan.fingerprint != features.plan.fingerprint
        with pytest.raises(StateError, match="made by other features"):
            other.step(FeatureState(state.customer), row)


def test_a_label_is_reported_to_one_of_them() -> None:
    features = with_chains("shop", "device")
    row = {"who": "c", "at": 0.0, "paid": 5.0, "shop": "x", "device": "x"}
    state, _ = features.step(None, row)
    for column, record in zip(("shop", "device"), state.counterparties, strict=True):
        assert features.report_label(column, record, 0.0, 1) != record
    with pytest.raises(StateError, match="made by other features"):
        features.report_label("device", state.counterparties[0], 0.0, 1)


# ---- storage


def test_saved_features_load_unchanged(tmp_path: Path) -> None:
    features, data = with_chains(*COLUMNS), data_of(*COLUMNS)
    features.save(tmp_path / "features")
    loaded = load_features(tmp_path / "features")
    assert loaded.plan.schema == features.plan.schema
    assert loaded.plan.fingerprint == features.plan.fingerprint
    assert loaded.state_bytes == features.state_bytes
    one, other = (some.transform(data.transactions) for some in (features, loaded))
    np.testing.assert_array_equal(one.continuous, other.continuous)
    np.testing.assert_array_equal(np.asarray(one.causes), np.asarray(other.causes))


def test_chains_need_one_for_each_counterparty() -> None:
    features = fit_features("shop", "device")
    with pytest.raises(ConfigError, match="chains of 1 counterparties for features with 2"):
        features.add_chains(CHAINS)
    one, other = (features.add_chains(Chains(None, some)) for some in ((), (None, None)))
    assert one.plan.fingerprint == other.plan.fingerprint
