"""One rule for transactions without a label, in a file, row by row, and for labels told late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.sample_data import (
    DAY,
    SHOP,
    Data,
    assert_same_bits,
    at_once,
    handbook,
    just_before_it_counts,
    replayed,
    report_label,
    shop,
)
from turncoat.data.parsing import parse_row
from turncoat.features import NEVER, UNKNOWN, Features, FeatureState

KNOWN, RISK = "counterparty_known_month", "counterparty_risk_month"


def without_last_month(data: Data, maturity: float, days: float = 30.0) -> Data:
    """The same file whose latest labels are unknown."""
    t = data.transactions
    labels = np.where(t.times > t.times.max() - days * DAY, -1, np.asarray(t.labels))
    schema = replace(t.schema, label_maturity_days=maturity)
    return Data(replace(t, schema=schema, labels=labels.astype(np.int8)), data.rows)


@pytest.mark.parametrize("maturity", [0.0, 0.6, 10.0, 45.0])
@pytest.mark.parametrize("delay", [0.0, 2.5, 7.0])
@pytest.mark.parametrize("late", [False, True])
def test_a_file_whose_last_month_is_unlabelled(maturity: float, delay: float, late: bool) -> None:
    """Live, every label of the file is told before it counts; the others never come."""
    data = without_last_month(shop(), maturity)
    assert 50 < (np.asarray(data.transactions.labels) < 0).sum() < 350
    features = Features(label_delay_days=delay, min_count=2).fit(data.transactions)
    due = just_before_it_counts(delay) if late else at_once
    found = replayed(features, data, due, told=(0, 1))
    assert_same_bits(found, features.transform(data.transactions))


def test_without_maturity_genuine_labels_need_not_be_told() -> None:
    data = without_last_month(handbook(), 0.0, 60.0)
    features = Features().fit(data.transactions)
    panel = features.transform(data.transactions)
    assert_same_bits(replayed(features, data), panel)
    genuine = np.asarray(data.transactions.labels).clip(0)
    told = replace(data.transactions, labels=genuine)
    assert_same_bits((panel.continuous, panel.categorical), features.transform(told))


def test_maturity_makes_a_difference_until_it_has_passed() -> None:
    """An unlabelled payment counts from the end of its step, the delay and the maturity on."""
    row = {"who": "c", "shop": "s", "paid": 5.0, "id": 1}
    schema = replace(SHOP, label_maturity_days=3.0)
    fitted = replace(shop().transactions, schema=schema)
    features = Features(label_delay_days=2.0).fit(fitted)
    known = features.feature_names[0].index(KNOWN)

    def known_at(day: float, label: int) -> bool:
        first = [FeatureState()], [parse_row(schema, row | {"at": 0.25 * DAY})], [label]
        state = features.step_batch(*first)[0][0]
        later = [
            features.step(FeatureState(None, others), row | {"at": day * DAY})[1]
            for others in (state.counterparties, ())
        ]
        return bool(later[0].continuous[known] > later[1].continuous[known])

    for label, since in ((0, 2.5), (1, 2.5), (UNKNOWN, 5.5), (NEVER, np.inf)):
        for day in (0.5, 2.49, 2.5, 4.0, 5.49, 5.5, 9.0, 400.0):
            assert known_at(day, label) == (day >= since), (label, day)


payments = st.lists(
    st.tuples(st.floats(0, 12 * DAY), st.sampled_from([0, 1, UNKNOWN])), min_size=1, max_size=12
)


@given(payments, st.sampled_from([0.0, 1.5, 7.0]), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=150)
def test_labels_told_late_in_any_order(
    made: list[tuple[float, int]], delay: float, random: Any
) -> None:
    """Before they mature, labels told late leave the record that labels from the start leave."""
    schema = replace(SHOP, label_maturity_days=14.0)
    features = fitted_with(delay)
    rows = [
        parse_row(schema, {"who": "c", "shop": "s", "paid": 1.0, "at": time, "id": 1})
        for time, _ in sorted(made)
    ]
    labels = [label for _, label in sorted(made)]
    previous = np.column_stack([np.arange(-1, len(rows) - 1)] * 2)

    def state_after(known: list[int]) -> FeatureState:
        states = [FeatureState()] * len(rows)
        return features.step_batch(states, rows, known, previous)[0][-1]

    expected, state = state_after(labels), state_after([UNKNOWN] * len(rows))
    told = [(row.time, label) for row, label in zip(rows, labels, strict=True) if label >= 0]
    random.shuffle(told)
    for time, label in told:
        earlier = UNKNOWN
        if label == 1 and random.random() < 0.3:  # first taken for genuine
            state, earlier = report_label(features, state, time, 0), 0
        state = report_label(features, state, time, label, earlier)
    assert state == expected
    never = state_after([NEVER if label >= 0 else UNKNOWN for label in labels])
    for time, label in told:
        never = report_label(features, never, time, label, NEVER)
    assert never == expected


_FITTED: dict[float, Features] = {}


def fitted_with(delay: float) -> Features:
    if delay not in _FITTED:
        schema = replace(SHOP, label_maturity_days=14.0)
        data = replace(shop().transactions, schema=schema)
        _FITTED[delay] = Features(label_delay_days=delay).fit(data)
    return _FITTED[delay]


@pytest.mark.parametrize("maturity", [0.0, 5.0])
def test_labels_after_maturity(maturity: float) -> None:
    """A genuine one says nothing new; a fraud counts from then on, and decayed by its age."""
    schema = replace(SHOP, label_maturity_days=maturity)
    data = replace(shop().transactions, schema=schema)
    features = Features(label_delay_days=1.0).fit(data)
    risk, known = (features.feature_names[0].index(name) for name in (RISK, KNOWN))
    row = {"who": "c", "shop": "s", "paid": 5.0, "id": 1}
    state, _ = features.step(None, row | {"at": 0.0})
    state, _ = features.step(state, row | {"at": 10 * DAY})
    assert report_label(features, state, 0.0, 0) == state
    fraud = report_label(features, state, 0.0, 1)
    late = row | {"at": 10 * DAY}
    before, after = (features.step(one, late)[1].continuous for one in (state, fraud))
    assert after[risk] > before[risk]
    assert after[known] == before[known]


def test_a_schema_of_another_maturity_has_other_records() -> None:
    data = shop().transactions
    one = Features().fit(data)
    other = Features().fit(replace(data, schema=replace(SHOP, label_maturity_days=1.0)))
    assert one.plan.fingerprint != other.plan.fingerprint
