"""Every engineered feature against its definition over all earlier transactions."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.features.sample_data import (
    DAY,
    SHOP,
    STEP,
    Data,
    assert_same_bits,
    handbook,
    of_frame,
    replayed,
    report_label,
    shop,
    shop_frame,
    unscaled_features,
)
from turncoat.data.categories import normalize_category
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.errors import ConfigError
from turncoat.features import Features, FeatureState, counterparties, history, load_features
from turncoat.features.plan import FeaturePlan

_COUNTERPARTY_FACTS = [f"counterparty_{name}" for name in counterparties.CONTINUOUS]
RUN_FACTS = [f"counterparty_{name}" for name in ("since_genuine", "since_run", "since_label")]
RUN_FACTS.append("counterparty_run_frauds")
HOUR, WEEK, MONTH = DAY / 24, 7 * DAY, 30 * DAY
WINDOWS = {"hour": HOUR, "day": DAY, "week": WEEK, "month": MONTH}
NOTHING = float("nan")


class ExpectedRow:
    """What the oracle knows of a transaction."""

    def __init__(self, row: dict[str, Any], schema: Schema, time: float, label: int) -> None:
        self.time, self.label = time, label
        self.cells = [row[column] for column in schema.continuous]
        self.names = [normalize_category(row[column]) for column in schema.categorical]
        self.habits = [normalize_category(row[column]) for column in schema.tracked]
        self.amount = row[schema.amount] if schema.amount else None
        names = [normalize_category(row[column]) for column in schema.counterparties]
        self.counterparty = names[0] if names else None

    @property
    def size(self) -> float | None:
        return None if self.amount is None else math.log1p(max(self.amount, 0.0))

    @property
    def n_missing(self) -> int:
        return self.cells.count(None) + self.names.count(None)


def told(data: Data) -> list[ExpectedRow]:
    """In the order of the transactions."""
    t = data.transactions
    labels = np.zeros(t.n_rows) if t.labels is None else t.labels
    return [
        ExpectedRow(data.rows[place], t.schema, time, int(label))
        for place, time, label in zip(t.file_rows, t.times, labels, strict=True)
    ]


def agreement(now: ExpectedRow, earlier: list[ExpectedRow], period: float) -> float:
    weights = [math.exp(-(now.time - one.time) / MONTH) for one in earlier]
    if not weights or sum(weights) == 0:
        return NOTHING
    near = sum(
        w * math.cos(2 * math.pi * (now.time - one.time) / period)
        for w, one in zip(weights, earlier, strict=True)
    )
    return near / sum(weights)


def amount_z(now: ExpectedRow, sizes: list[float]) -> float:
    if now.size is None or len(sizes) < 2:
        return NOTHING
    mean = math.fsum(sizes) / len(sizes)
    spread = math.sqrt(math.fsum((size - mean) ** 2 for size in sizes) / (len(sizes) - 1))
    return (now.size - mean) / (spread + 0.1)


def own_facts(now: ExpectedRow) -> dict[str, float]:
    return {
        "n_missing": now.n_missing,
        "hour_cos": math.cos(2 * math.pi * now.time / DAY),
        "hour_sin": math.sin(2 * math.pi * now.time / DAY),
    }


def party_facts(now: ExpectedRow, earlier: list[ExpectedRow]) -> dict[str, float]:
    facts = {
        "since_last": math.log1p(now.time - earlier[-1].time) if earlier else NOTHING,
        "since_first": math.log1p(now.time - earlier[0].time) if earlier else NOTHING,
        "n_before": math.log1p(len(earlier)),
        "n_missing_change": now.n_missing - earlier[-1].n_missing if earlier else NOTHING,
        "hour_habit": agreement(now, earlier, DAY),
        "weekday_habit": agreement(now, earlier, WEEK),
    }
    for window, seconds in WINDOWS.items():
        weights = [math.exp(-(now.time - one.time) / seconds) for one in earlier]
        paid = [max(one.amount or 0.0, 0.0) for one in earlier]
        facts[f"count_{window}"] = math.log1p(math.fsum(weights))
        facts[f"sum_{window}"] = math.log1p(
            math.fsum(w * p for w, p in zip(weights, paid, strict=True))
        )
    sizes = [one.size for one in earlier if one.size is not None]
    facts["amount_z"] = amount_z(now, sizes)
    compares = now.size is not None and bool(sizes)
    facts["amount_to_max"] = now.size - max(sizes) if compares else NOTHING
    facts["amount_to_last"] = now.size - sizes[-1] if compares else NOTHING
    facts["amount_to_mean"] = now.size - math.fsum(sizes) / len(sizes) if compares else NOTHING
    return facts


def counterparty_facts(
    now: ExpectedRow, earlier: list[ExpectedRow], plan: FeaturePlan
) -> dict[str, float]:
    if now.counterparty is None:
        return dict.fromkeys(_COUNTERPARTY_FACTS, NOTHING)
    facts = {f"counterparty_{name}": value for name, value in party_facts(now, earlier).items()}
    facts |= dict.fromkeys(RUN_FACTS, NOTHING)
    base_rate, delay = plan.base_rate, plan.label_delay_s
    known = [one for one in earlier if counts(one, now, plan)]
    for window, days in (("day", 1), ("week", 7), ("month", 30)):
        counted = frauds = 0.0
        for one in known:
            ended = (math.floor(one.time / STEP) + 1) * STEP
            n_steps = math.floor((now.time - delay - ended) / STEP)
            weight = math.exp(-n_steps / (4 * days))
            counted += weight
            frauds += weight * (one.label == 1)
        share = (frauds + 5 * base_rate) / (counted + 5)
        facts[f"counterparty_risk_{window}"] = (
            math.log(share / (1 - share)) if base_rate else NOTHING
        )
        facts[f"counterparty_known_{window}"] = math.log1p(counted) if base_rate else NOTHING
    return facts | (run_facts(now, known) if base_rate else {})


def counts(one: ExpectedRow, now: ExpectedRow, plan: FeaturePlan) -> bool:
    """Whether the outcome of an earlier row counts: told, or genuine for lack of a label."""
    ended = (math.floor(one.time / STEP) + 1) * STEP
    maturity = plan.schema.label_maturity_days * DAY if one.label < 0 else 0.0
    return ended <= now.time - (plan.label_delay_s + maturity)


def run_facts(now: ExpectedRow, known: list[ExpectedRow]) -> dict[str, float]:
    steps = {
        is_fraud: [math.floor(one.time / STEP) for one in known if (one.label == 1) == is_fraud]
        for is_fraud in (False, True)
    }
    last_genuine = max(steps[0], default=-math.inf)
    run = [step for step in steps[1] if step >= last_genuine]

    def since(step: float | None) -> float:
        return NOTHING if step is None else math.log1p((math.floor(now.time / STEP) - step) / 4)

    return {
        "counterparty_since_genuine": since(max(steps[0], default=None)),
        "counterparty_since_run": since(min(run, default=None)),
        "counterparty_since_label": since(max(steps[0] + steps[1], default=None)),
        "counterparty_run_frauds": math.log1p(len(run)),
    }


def oracle(data: Data, features: Features) -> dict[str, np.ndarray]:
    rows = told(data)
    order = data.live_order
    plan = features.plan_
    columns: dict[str, list[float]] = {}
    past: dict[Any, list[ExpectedRow]] = {}
    found: dict[int, dict[str, float]] = {}
    for i in order:
        whose = [
            ("customer", data.transactions.customer_codes[i]),
            ("counterparty", rows[i].counterparty),
        ]
        mine, theirs = (past.setdefault(key, []) for key in whose)
        found[i] = party_facts(rows[i], mine) | own_facts(rows[i])
        if plan.counterparties:
            found[i] |= counterparty_facts(rows[i], theirs, plan)
        mine.append(rows[i])
        theirs.append(rows[i])
    for i in range(len(rows)):
        for name, value in found[i].items():
            columns.setdefault(name, []).append(value)
    return {name: np.array(values, dtype=float) for name, values in columns.items()}


def unlabelled(data: Data, maturity: float, since: float = 30.0) -> Data:
    """The same file with labels unknown after `since` days, and on every fifth row before."""
    t = replace(data.transactions, schema=replace(SHOP, label_maturity_days=maturity))
    is_unknown = (t.times - t.times.min() > since * DAY) | (np.arange(t.n_rows) % 5 == 0)
    labels = np.where(is_unknown, -1, np.asarray(t.labels)).astype(np.int8)
    return Data(replace(t, labels=labels), data.rows)


@pytest.mark.parametrize(
    ("data", "delay"),
    [
        (unlabelled(shop(), 0.0), 7.0),
        (unlabelled(shop(), 12.0), 7.0),
        (unlabelled(shop(300, seed=4), 20.0), 0.0),
        (unlabelled(shop(300, seed=5), 3.75), 2.5),
        (shop(), 7.0),
        (shop(300, seed=4), 0.0),
        (shop(300, seed=5), 2.5),
        (handbook(), 7.0),
        (handbook(700, seed=8), 0.4),
    ],
    ids=[
        "unlabelled",
        "12 days",
        "20 days",
        "3.75 days",
        "shop",
        "at once",
        "two days and a half",
        "handbook",
        "ten hours",
    ],
)
def test_every_continuous_feature(data: Data, delay: float) -> None:
    features = Features(label_delay_days=delay).fit(data.transactions)
    found, expected = unscaled_features(features, data.transactions), oracle(data, features)
    assert (
        set(found)
        == set(expected)
        == {*history.CONTINUOUS, *history.TIME_CONTINUOUS, *_COUNTERPARTY_FACTS}
    )
    for name, values in expected.items():
        assert np.isfinite(values).any()
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-9, err_msg=name)


def test_the_panel_holds_the_scaled_features() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    panel, scales = features.transform(data.transactions), features.plan_.scales
    names = (*data.transactions.schema.continuous, *features.plan_.engineered_continuous)
    expected = oracle(data, features)
    checked = 0
    for name, unit, centre, spread in zip(
        names, scales.units, scales.centres, scales.spreads, strict=True
    ):
        if name in expected and spread > 0:
            values = expected[name]
            values = np.sign(values) * np.log1p(np.abs(values) / unit) if unit > 0 else values
            column = panel.continuous[:, features.feature_names[0].index(name)]
            np.testing.assert_allclose(
                column, (values - centre) / spread, rtol=1e-5, atol=1e-5, err_msg=name
            )
            checked += 1
    assert checked >= 41


def test_without_amount_counterparty_tracked_columns_or_labels() -> None:
    schema = Schema(customer="who", time="at", continuous=("age",), id="id")
    data = of_frame(shop_frame(150), schema)
    features = Features().fit(data.transactions)
    found, expected = unscaled_features(features, data.transactions), oracle(data, features)
    assert list(found) == [*history.CONTINUOUS, *history.TIME_CONTINUOUS]
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-9, atol=1e-9, err_msg=name)
    for name in ("amount_z", "amount_to_max", "amount_to_last", "amount_to_mean"):
        assert np.isnan(found[name]).all()
        assert name not in features.feature_names[0]


def test_without_labels_there_is_no_risk() -> None:
    data = of_frame(shop_frame(150), replace(SHOP, label=None))
    features = Features().fit(data.transactions)
    found = unscaled_features(features, data.transactions)
    assert np.isnan(found["counterparty_risk_month"]).all()
    assert np.isnan(found["counterparty_known_month"]).all()
    assert not [name for name in features.feature_names[0] if "risk" in name or "known" in name]
    assert "counterparty_count_day" in features.feature_names[0]


def expected_codes(
    now: ExpectedRow, earlier: list[ExpectedRow], habits: tuple[str, ...]
) -> dict[str, int]:
    expected = {"is_first": int(not earlier)}
    for h, column in enumerate(habits):
        before = [one.habits[h] for one in earlier if one.habits[h] is not None]
        known = now.habits[h] is not None and bool(earlier)
        expected[f"new_{column}"] = int(now.habits[h] not in before) if known else -1
        expected[f"changed_{column}"] = int(now.habits[h] != before[-1]) if known and before else -1
    return expected


def test_first_weekday_new_and_changed() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    panel, names = features.transform(data.transactions), features.feature_names[1]
    rows, codes = told(data), data.transactions.customer_codes
    habits = data.transactions.schema.tracked
    checked: dict[str, set[int]] = {}
    past: dict[Any, list[ExpectedRow]] = {}
    for i in data.live_order:
        now = rows[i]
        mine, theirs = (
            past.setdefault(("customer", codes[i]), []),
            past.setdefault(("counterparty", now.counterparty), []),
        )
        of_counterparty = expected_codes(now, theirs, habits)
        if now.counterparty is None:
            of_counterparty = dict.fromkeys(of_counterparty, -1)
        expected = expected_codes(now, mine, habits) | {"weekday": math.floor(now.time / DAY) % 7}
        expected |= {f"counterparty_{name}": value for name, value in of_counterparty.items()}
        assert {*names} >= {*expected}
        for name, value in expected.items():
            assert panel.categorical[i, names.index(name)] == value, (i, name)
            checked.setdefault(name, set()).add(value)
        mine.append(now)
        theirs.append(now)
    assert checked["is_first"] == {0, 1}
    assert checked["counterparty_is_first"] == {-1, 0, 1}
    assert checked["weekday"] == set(range(7))
    for column in habits:
        for whose in ("", "counterparty_"):
            assert (
                checked[f"{whose}new_{column}"] == checked[f"{whose}changed_{column}"] == {-1, 0, 1}
            )


def test_the_counterparty_has_every_feature_of_the_customer_except_its_own_column() -> None:
    data = of_frame(shop_frame(150), replace(SHOP, tracked=("device", "shop", "town")))
    plan = Features().fit(data.transactions).plan_
    own = {*history.CONTINUOUS, *history.list_categorical(("device", "shop", "town"))}
    facts = {*plan.engineered_continuous, *plan.engineered_categorical}
    assert own <= facts
    lacking = own - {
        name.removeprefix("counterparty_") for name in facts if name.startswith("counterparty_")
    }
    assert lacking == {"new_shop", "changed_shop"}


HABIT = Schema(customer="who", time="at", categorical=("town",), tracked=("town",))


@pytest.mark.parametrize(
    ("n_names", "lowest", "highest"),
    [(1, 0.0, 0.001), (5, 0.0, 0.004), (30, 1 / 27, 1 / 19), (80, 1 / 5.5, 1 / 4)],
)
def test_false_positive_rate_of_the_bloom_filter(
    n_names: int, lowest: float, highest: float
) -> None:
    frame = pl.DataFrame({"who": [1, 1], "at": [0, 1], "town": ["a", "b"]})
    features = Features().fit(read(frame, HABIT))
    new = features.feature_names[1].index("new_town")
    taken_for_old = probed = 0
    for customer in range(40):
        state = FeatureState()
        used = [f"{customer}/{k * 7919 % 10_007}" for k in range(n_names)]
        for name in used:
            state, _ = features.step(state, {"at": 0.0, "town": name})
        for name in used:
            assert (
                features.step(state, {"at": 1.0, "town": name})[1].categorical[new] == 0
            )  # never the other way
        for k in range(100):
            taken_for_old += (
                features.step(state, {"at": 1.0, "town": f"unheard of {k} {customer}"})[
                    1
                ].categorical[new]
                == 0
            )
            probed += 1
    assert lowest <= taken_for_old / probed <= highest


def test_a_row_that_arrives_late_counts_as_now() -> None:
    data = shop()
    features = Features().fit(data.transactions)
    row = {"at": 50 * DAY, "paid": 10.0, "shop": "s1", "device": "phone"}
    state = FeatureState()
    for at in (10 * DAY, 40 * DAY, 50 * DAY):
        state, _ = features.step(state, row | {"at": at})
    numbers = np.frombuffer(state.customer[8:], np.float64, len(history.NUMBERS))
    late, found = features.step(state, row | {"at": 20 * DAY})
    after = np.frombuffer(late.customer[8:], np.float64, len(history.NUMBERS))
    place = history.NUMBERS.index
    assert after[place("n")] == 4
    assert after[place("last_time")] == 50 * DAY
    assert after[place("count_hour")] == numbers[place("count_hour")] + 1
    assert np.isfinite(found.continuous[features.feature_names[0].index("since_last")])
    _, on_time = features.step(state, row | {"at": 50 * DAY})
    for name in (
        "since_last",
        "count_hour",
        "count_month",
        "sum_week",
        "amount_z",
        "counterparty_count_day",
        "counterparty_risk_month",
        "counterparty_known_month",
    ):
        column = features.feature_names[0].index(name)
        assert found.continuous[column] == on_time.continuous[column], name


@pytest.mark.parametrize("days", [(0, 5, 10, 12), (0, 2, 2.1), (0.9, 3, 4), (0, 1, 2, 3)], ids=str)
def test_a_fraud_reported_late_counts_from_then_on_with_its_decayed_weight(
    days: tuple[float, ...],
) -> None:
    data = shop()
    features = Features(label_delay_days=1.0).fit(data.transactions)
    risk = features.feature_names[0].index("counterparty_risk_month")

    def risk_at(report_before: float) -> np.float32:
        state, found, reported = FeatureState(), None, False
        for at in np.array(days) * DAY:
            if at >= report_before and not reported:
                state, reported = report_label(features, state, days[0] * DAY, 1), True
            state, found = features.step(state, {"at": at, "paid": 1.0, "shop": "s1"})
        return found.continuous[risk]

    in_time, late, never = risk_at(days[1] * DAY), risk_at(days[-1] * DAY), risk_at(np.inf)
    assert in_time > never
    np.testing.assert_allclose(late, in_time, rtol=1e-6)


FEW = (
    "amount_to_mean",
    "paid",
    "counterparty_risk_day",
    "device",
    "no_age",
    "counterparty_new_town",
)


@pytest.mark.parametrize(
    "include",
    [FEW, ("device",), ("paid",), FEW[::-1]],
    ids=["mixed", "a name", "a number", "in another order"],
)
def test_include_keeps_some_features(include: tuple[str, ...], tmp_path: Path) -> None:
    data = shop()
    every, some = (
        Features(min_count=3, include=names).fit(data.transactions) for names in (None, include)
    )
    assert [set(names) for names in some.feature_names] == [
        set(names) & set(include) for names in every.feature_names
    ]
    whole, part = (features.transform(data.transactions) for features in (every, some))
    for name in some.feature_names[0]:
        np.testing.assert_array_equal(
            part.continuous[:, some.feature_names[0].index(name)],
            whole.continuous[:, every.feature_names[0].index(name)],
        )
    for name in some.feature_names[1]:
        np.testing.assert_array_equal(
            part.categorical[:, some.feature_names[1].index(name)],
            whole.categorical[:, every.feature_names[1].index(name)],
        )
    assert_same_bits(replayed(some, data), part)
    some.save(tmp_path / "features")
    assert_same_bits(replayed(load_features(tmp_path / "features"), data), part)


@pytest.mark.parametrize(
    ("include", "message"),
    [
        (
            ("amount_to_meen",),
            "'amount_to_meen', but there is no such feature. Similar names are amount_to_mean",
        ),
        ((), "no feature named by"),
        ("paid", "must be a list"),
        ((3,), "must be a list"),
    ],
)
def test_unknown_features_are_refused(include: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Features(include=include).fit(shop().transactions)
