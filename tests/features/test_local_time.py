"""Hours and weekdays are those of the customer's clock, in batch and live."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from turncoat.data import Schema, read
from turncoat.data.parsing import parse_row
from turncoat.features import Features, FeatureState
from turncoat.scoring.descriptions import DescribedRow, FeatureDescriber
from turncoat.scoring.formatting import Clock

SCHEMA = Schema(
    customer="who",
    time="at",
    continuous="paid",
    amount="paid",
    id="ref",
    counterparties=("shop",),
    time_zone_column="tz",
)


def make_frame(n: int = 300) -> pl.DataFrame:
    draw = np.random.default_rng(4)
    who = draw.integers(0, 12, n)
    return pl.DataFrame(
        {
            "ref": range(n),
            "who": who,
            "at": 1709294400 + np.sort(draw.integers(0, 90 * 86400, n)),
            "paid": draw.gamma(2, 20, n),
            "shop": draw.integers(0, 9, n),
            "tz": [["Europe/Berlin", "America/New_York", None][one] for one in who % 3],
        }
    )


def test_live_features_on_local_clocks_have_the_bits_of_the_batch() -> None:
    frame = make_frame()
    transactions = read(frame, SCHEMA)
    features = Features().fit(transactions)
    panel = features.transform(transactions)
    place = {id: row for row, id in enumerate(transactions.ids.tolist())}
    people: dict[int, bytes] = {}
    shops: dict[int, bytes] = {}
    for row in frame.iter_rows(named=True):
        state = FeatureState(people.get(row["who"]), (shops.get(row["shop"]),))
        state, cells = features.step(state, row, label_follows=False)
        people[row["who"]], (shops[row["shop"]],) = state
        np.testing.assert_array_equal(cells.continuous, panel.continuous[place[row["ref"]]])
        np.testing.assert_array_equal(cells.categorical, panel.categorical[place[row["ref"]]])


def test_only_hours_and_weekdays_depend_on_the_clock() -> None:
    frame = make_frame()
    local = read(frame, SCHEMA)
    plain = read(frame, replace(SCHEMA, time_zone_column=None))
    features = Features().fit(local)
    names, ours = features.feature_names[0], features.transform(local).continuous
    theirs = Features().fit(plain).transform(plain).continuous
    pairs = zip(names, ours.T, theirs.T, strict=True)
    differing = {name for name, a, b in pairs if not np.array_equal(a, b, equal_nan=True)}
    habits = {
        f"{party}{what}_habit" for party in ("", "counterparty_") for what in ("hour", "weekday")
    }
    assert differing == {"hour_cos", "hour_sin", *habits}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "at 10:00 UTC"),
        ({"time_zone": "Asia/Tokyo"}, "at 19:00 JST"),
        ({"time_zone_column": "tz"}, "at 05:00 local time"),
    ],
)
def test_hours_are_shown_with_their_clock(settings: dict[str, str], text: str) -> None:
    frame = make_frame().with_columns(at=pl.col("at") // 86400 * 86400 + 36000)
    frame = frame.with_columns(at=pl.col("at") + 3600 * (pl.col("ref") % 3))
    schema = replace(SCHEMA, time_zone_column=None)
    transactions = read(frame, replace(schema, **settings))
    features = Features().fit(transactions)
    describer = FeatureDescriber(features.plan, clock=Clock.of(features.plan.schema))
    row = {"who": 50, "at": 1709287200.0, "paid": 1.0, "tz": "America/New_York"}
    cells = features.step(None, row)[1]
    described = DescribedRow(*cells[:2], parse_row(features.plan.schema, row))
    shown = describer.describe[describer.sources.names.index("hour")](described)
    assert shown.startswith(text)
