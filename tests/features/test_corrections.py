"""A fraud that is taken back after it has matured counts as in a file that knew from the start."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from turncoat.data import Schema, read
from turncoat.features import Features, FeatureState

DAY = 86_400.0
START = 19_700 * DAY
SCHEMA = Schema(
    customer=("who",),
    time="at",
    id="id",
    label="fraud",
    amount="paid",
    continuous=("paid",),
    counterparties=("shop",),
)
NAMES = ["risk_week", "since_genuine", "since_run", "since_label", "run_frauds"]
DAYS, LABELS = [0, 10, 11, 12, 25, 30], [0, 1, 1, 1, None, None]


def table(labels: list[int | None]) -> pl.DataFrame:
    """Payments at one shop; all but the last have matured by then."""
    return pl.DataFrame(
        {
            "id": range(len(DAYS)),
            "who": "k",
            "at": [START + day * DAY for day in DAYS],
            "paid": [10.0 + day for day in DAYS],
            "shop": "M",
            "fraud": pl.Series(labels, dtype=pl.Int64),
        }
    )


@pytest.fixture(scope="module")
def features() -> Features:
    n, draw = 200, np.random.default_rng(0)
    rows = pl.DataFrame(
        {
            "id": range(n),
            "who": [f"c{i % 7}" for i in range(n)],
            "at": [START + i * DAY / 3 for i in range(n)],
            "paid": draw.lognormal(3, 1, n),
            "shop": [f"m{i % 5}" for i in range(n)],
            "fraud": [int(i % 9 == 0) for i in range(n)],
        }
    )
    include = [f"counterparty_{name}" for name in NAMES]
    return Features(include=include, min_count=2).fit(read(rows, SCHEMA))


@pytest.mark.parametrize("places", [[], [3], [3, 2], [2, 3], [1, 2, 3], [3, 2, 1]])
def test_a_fraud_taken_back_is_as_if_never_reported(features: Features, places: list[int]) -> None:
    told = [0 if place in places else label for place, label in enumerate(LABELS)]
    expected = features.transform(read(table(told), SCHEMA)).continuous[-1]
    state, rows = FeatureState(), table(LABELS).drop("fraud").to_dicts()
    for row, label in zip(rows[:5], LABELS, strict=False):
        state, _ = features.step(state, row)
        if label == 1:
            shop = features.report_label("shop", state.counterparties[0], row["at"], 1)
            state = FeatureState(state.customer, (shop,))
    for place in places:
        shop = features.report_label("shop", state.counterparties[0], rows[place]["at"], 0, 1)
        state = FeatureState(state.customer, (shop,))
    _, cells = features.step(state, rows[5])
    np.testing.assert_allclose(cells.continuous, expected, atol=1e-5)
