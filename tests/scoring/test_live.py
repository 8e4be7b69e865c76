"""Live scoring in batches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.features.sample_data import DAY
from tests.scoring.detectors import data_of, detector
from turncoat import ConfigError
from turncoat.data.parsing import parse_row
from turncoat.features import UNKNOWN
from turncoat.scoring import DetectorState

MADE = pytest.mark.parametrize(
    ("features", "transitions"),
    [("engineered", "per-row"), ("engineered", "continuous"), ("processed", "continuous")],
)


@MADE
def test_a_batch_of_linked_transactions_equals_one_at_a_time(
    features: str, transitions: str
) -> None:
    """Some have the same time, and some are late."""
    made, data = detector(features=features, transitions=transitions), data_of("shop")
    transactions, order = data.transactions, data.live_order[:60]
    rows = [parse_row(transactions.schema, data.rows[transactions.file_rows[i]]) for i in order]
    rows = [row._replace(time=row.time // DAY * DAY - (i % 7 == 0)) for i, row in enumerate(rows)]
    customers = transactions.customer_codes[order].tolist()
    previous = np.full((len(rows), 2), -1)
    last: dict[object, int] = {}
    states: dict[object, bytes | None] = {}
    expected = []
    for i, (customer, row) in enumerate(zip(customers, rows, strict=True)):
        (name,) = row.counterparties
        shop = f"shop {name}"
        previous[i, 0] = last.get(customer, -1)
        if name is not None:
            previous[i, 1] = last.get(shop, -1)
            last[shop] = i
        last[customer] = i
        known = None if name is None else states.get(shop)
        state, score = made.score_one(DetectorState(states.get(customer), (known,)), row)
        states[customer] = state.customer
        if name is not None:
            (states[shop],) = state.counterparties
        expected.append((state, score))
    expected_of = [score for _, score in expected]
    assert (previous >= 0).any(axis=0).all()
    new = [DetectorState(None, (None,))] * len(rows)
    steps = made.live.advance(new, rows, [UNKNOWN] * len(rows), previous)
    assert list(steps.states) == [state for state, _ in expected]
    scores = made.live.score_steps(steps)
    assert [score._replace(reasons=()) for score in scores] == [
        score._replace(reasons=()) for _, score in expected
    ]
    totals = [[sum(r.log_odds for r in s.reasons) for s in some] for some in (scores, expected_of)]
    np.testing.assert_allclose(*totals, rtol=1e-9)
    if transitions == "continuous":
        assert {0.0, DAY} <= set(steps.gaps_s[previous[:, 0] >= 0].round())
    with pytest.raises(ConfigError, match="level is 1"):
        made.live.score_steps(steps, level=1)


@MADE
def test_a_record_stores_a_time_only_if_the_features_keep_none(
    features: str, transitions: str
) -> None:
    made = detector(features=features, transitions=transitions)
    of_features, n_states = made.features_.state_bytes[0], made.model_.n_states
    expected = 20 + 8 * n_states + (of_features if features == "engineered" else 8)
    state, _ = made.score_one(None, data_of("shop").rows[0])
    assert len(state.customer or b"") == expected
    assert len(made.live.condition(state, 1).customer or b"") == expected
