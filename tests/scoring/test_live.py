"""Live scoring in batches."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scoring.detectors import data_of, detector
from turncoat import ConfigError
from turncoat.data.parsing import parse_row
from turncoat.features import UNKNOWN
from turncoat.scoring import DetectorState


def test_a_batch_of_linked_transactions_equals_one_at_a_time() -> None:
    made, data = detector(), data_of("shop")
    transactions, order = data.transactions, data.live_order[:60]
    rows = [parse_row(transactions.schema, data.rows[transactions.file_rows[i]]) for i in order]
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
    assert (previous >= 0).any(axis=0).all()
    steps = made.live.advance([DetectorState()] * len(rows), rows, [UNKNOWN] * len(rows), previous)
    assert list(steps.states) == [state for state, _ in expected]
    scores = made.live.score_steps(steps)
    assert [score._replace(reasons=()) for score in scores] == [
        score._replace(reasons=()) for _, score in expected
    ]
    with pytest.raises(ConfigError, match="level is 1"):
        made.live.score_steps(steps, level=1)
