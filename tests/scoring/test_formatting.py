"""Numbers and times as text, and every number of a reason against the data."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.sample_data import DAY, SHOP, of_frame
from tests.scoring.detectors import EVERY, model_of, time_split
from turncoat import Detector
from turncoat.features import Features
from turncoat.scoring.formatting import (
    NO_CALENDAR,
    Clock,
    format_amount,
    format_bound,
    format_number,
    format_times,
    shorten,
)

MONDAY = datetime(2024, 6, 3, 22, 30, tzinfo=UTC).timestamp()


def parse(text: str) -> float:
    return float(text.replace(",", ""))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_keeps_all_its_digits(value: float) -> None:
    assert parse(format_number(value)) == value
    assert parse(format_amount(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (106348.0, "106,348"),
        (106348.01, "106,348.01"),
        (19.9, "19.90"),
        (0.125, "0.125"),
        (-1234.5, "-1,234.50"),
        (-0.0, "0"),
        (1e300, "1e+300"),
    ],
)
def test_amounts_are_shown_as_given(value: float, text: str) -> None:
    assert format_amount(value) == text
    assert format_amount(value, "EUR") == f"EUR {text}"


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (220.3, "220×"),
        (2.24, "2.2×"),
        (0.5, "0.5×"),
        (0.034, "0.034×"),
        (9.96, "10×"),
        (12_345.6, "12,300×"),
        (1224.9, "1,220×"),
        (1e9, "over 1,000,000×"),
        (1e-9, "less than 0.001×"),
    ],
)
def test_multiples_have_no_exponent(ratio: float, text: str) -> None:
    assert format_times(ratio) == text


@given(st.floats(0.01, 1e6), st.floats(0.01, 1e6))
def test_a_value_is_on_the_side_of_its_bound_that_is_told(bound: float, value: float) -> None:
    is_above = value > bound
    shown = parse(format_bound(bound, value, is_above))
    assert (value > shown) == is_above
    assert shown == pytest.approx(bound, rel=0.01)


def test_times_have_their_weekday_and_zone() -> None:
    assert Clock().format_moment(MONDAY) == "Monday 3 June 2024, 22:30 UTC"
    oslo = Clock(ZoneInfo("Europe/Oslo"))
    assert oslo.format_moment(MONDAY) == "Tuesday 4 June 2024, 00:30 CEST"
    assert oslo.format_iso(MONDAY) == "2024-06-04T00:30:00+02:00"
    assert NO_CALENDAR.format_moment(4 * DAY + 3660) == "day 4, 01:01"
    assert NO_CALENDAR.format_weekday(4 * DAY) == "day 5 of the file's week"
    assert NO_CALENDAR.format_iso(MONDAY) is None


@given(st.integers(-(10**9), 4 * 10**9))
def test_the_clock_is_that_of_the_calendar(seconds: int) -> None:
    expected = datetime.fromtimestamp(seconds, UTC)
    assert Clock().format_time(seconds) == f"{expected:%H:%M} UTC"
    assert Clock().format_weekday(seconds) == f"{expected:%A}"
    assert Clock().format_iso(seconds) == expected.isoformat()


def test_long_texts_are_cut() -> None:
    assert shorten("x" * 60) == "x" * 60
    assert shorten("x" * 61) == "x" * 59 + "…"
    assert [shorten(" "), shorten("a b"), shorten("b ")] == ["' '", "a b", "'b '"]
    assert shorten("\x1b[31mRED\u202eabc") == "'\\x1b[31mRED\\u202eabc'"
    assert shorten("Käse 咖啡 ☕") == "Käse 咖啡 ☕"


# ---- every number of a reason


N_CUSTOMERS, TOWNS = 6, ("Oslo", "Bergen", "東京")


def make_file(seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    n = 240
    frame = {
        "who": [f"c{k}" for k in rng.integers(N_CUSTOMERS, size=n)],
        "at": MONDAY + np.cumsum(rng.exponential(9000.0, n)).round(),
        "paid": np.exp(rng.normal(4, 2, n)).round(rng.integers(0, 3)),
        "age": [None if rng.random() < 0.2 else round(age, 1) for age in rng.normal(40, 12, n)],
        "kind": rng.integers(0, 9, n),
        "device": rng.choice(["phone", "tablet", "404.0"], n),
        "town": rng.choice(TOWNS, n),
        "shop": [f"s{k}" for k in rng.integers(5, size=n)],
        "fraud": (rng.random(n) < 0.2).astype(int),
        "id": rng.permutation(n) + 100,
    }
    frame["fraud"][::7] = 1
    return pl.DataFrame(frame)


def find_numbers(text: str) -> list[str]:
    """All numbers of a text, without thousands separators."""
    return [found.replace(",", "") for found in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def check_amount(text: str, row: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
    amount, *usual = re.fullmatch(
        r"amount (\S+)(?:, (?:over |less than )?(\S+)× this customer's usual \(about (\S+)\))?",
        text,
    ).groups()
    assert parse(amount) == row["paid"]
    sizes = [math.log1p(max(one["paid"], 0.0)) for one in earlier]
    expected = math.expm1(sum(sizes) / len(sizes)) if sizes else 0.0
    if not row["paid"] > 0 or not expected > 1.01e-3:
        return
    assert usual != [None, None]
    times, about = map(parse, usual)
    assert about == pytest.approx(expected, rel=6e-3)  # three digits
    if 1e-3 <= row["paid"] / expected < 1e6:
        assert times == pytest.approx(row["paid"] / expected, rel=0.06)  # two digits


def check_pace(text: str, row: dict[str, Any], earlier: list[dict[str, Any]]) -> None:
    if not earlier:
        assert text == "no earlier transaction"
        return
    units = {"seconds": 1, "minutes": 60, "hours": 3600, "days": DAY}
    since, unit, pace = re.fullmatch(
        r"(\S+) (\w+) after the last, about (\S+) a day lately", text
    ).groups()
    seconds = row["at"] - earlier[-1]["at"]
    assert float(since) == pytest.approx(seconds / units[unit], abs=0.0501, rel=1e-5)
    decayed = sum(math.exp((one["at"] - row["at"]) / DAY) for one in earlier)
    assert float(pace) == pytest.approx(decayed, abs=0.0501, rel=1e-4)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_every_number_of_a_reason_equals_the_data(seed: int) -> None:
    frame = make_file(seed)
    data = of_frame(frame, SHOP)
    made = Detector(Features(min_count=30), model_of("expected-log", 2)).fit(
        data.transactions, time_split(data.transactions)
    )
    by_id = {row["id"]: row for row in frame.iter_rows(named=True)}
    for customer in data.transactions.keys[:3]:
        earlier: list[dict[str, Any]] = []
        for id, score in made.explain(data.transactions, str(customer)):
            row = by_id[id]
            moment = datetime.fromtimestamp(row["at"], UTC)
            told = {reason.source: reason.text for reason in score.reasons}
            check_amount(told.pop("amount"), row, earlier)
            check_pace(told.pop("pace"), row, earlier)
            age = "missing" if row["age"] is None else format_number(row["age"])
            assert told.pop("age") == f"age {age}"
            assert told.pop("weekday").partition(",")[0] == f"{moment:%A}"
            assert told.pop("hour").partition(",")[0] == f"at {moment:%H:%M} UTC"
            missing = "1 field" if row["age"] is None else "0 fields"
            assert told.pop("missing fields") == f"{missing} missing"
            assert told.pop("kind").partition(",")[0] == f"kind {row['kind']}"
            for name in ("device", "town"):
                value = row[name].removesuffix(".0")
                seen = {one[name].removesuffix(".0") for one in earlier}
                text = told.pop(name)
                assert text.partition(",")[0] == f"{name} {value}"
                # A Bloom filter may take a new value for a familiar one, never the reverse.
                if earlier and "new for this customer" in text:
                    assert value not in seen
            assert told.pop("shop").partition(",")[0] == f"shop {row['shop']}"
            assert not any(map(find_numbers, told.values())), told
            earlier.append(row)
    _, score = made.score_one(None, by_id[100], n_reasons=EVERY)
    assert f"shop {by_id[100]['shop']}" in " ".join(reason.text for reason in score.reasons)


def test_amounts_have_the_currency_of_their_column() -> None:
    frame = make_file(1).with_columns(TX_CURRENCY=pl.Series(["EUR", "NOK"] * 120))
    schema = SHOP.__class__(
        customer="who",
        time="at",
        continuous=("paid",),
        categorical=("TX_CURRENCY",),
        amount="paid",
        label="fraud",
        id="id",
    )
    data = of_frame(frame, schema)
    made = Detector(Features(min_count=4), model_of("point", 2)).fit(
        data.transactions, time_split(data.transactions)
    )
    row = frame.row(7, named=True)
    _, score = made.score_one(None, row, n_reasons=EVERY)
    texts = {reason.source: reason.text for reason in score.reasons}
    assert texts["amount"] == f"amount {row['TX_CURRENCY']} {format_amount(row['paid'])}"
