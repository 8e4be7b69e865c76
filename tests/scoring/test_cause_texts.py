"""Causes of fraud in words."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.scoring.chains import AMOUNT, payments
from turncoat.data.money import OriginalMoney, RateTable
from turncoat.features import Features
from turncoat.scoring.cause_texts import (
    TransactionDescriber,
    Unusual,
    describe_compromise,
    describe_intruder,
)
from turncoat.scoring.descriptions import DescribedRow, FeatureDescriber
from turncoat.scoring.formatting import NO_CALENDAR, Clock, format_amount
from turncoat.scoring.scorecard import Scorecard

MAY_11 = datetime(2024, 5, 11, tzinfo=UTC).timestamp()
USUAL = "this customer's own usual (about 40)"


def make_unusual(times: float, column: str = "amount", is_first: bool = False) -> Unusual:
    value = 40.0 * times
    return Unusual(column, format_amount(round(value, 2)), value, times, is_first)


@pytest.mark.parametrize(
    ("n_frauds", "days", "text"),
    [
        (2, 6.0, f"amount 204.80, 5.1× {USUAL}, 2 known frauds, the first 6 days ago"),
        (1, 1.0, f"amount 204.80, 5.1× {USUAL}, 1 known fraud, 1 day ago"),
        (1, 0.0, f"amount 204.80, 5.1× {USUAL}, 1 known fraud, less than a day ago"),
        (0, math.nan, f"amount 204.80, 5.1× {USUAL}"),
    ],
)
def test_known_frauds_are_told(n_frauds: int, days: float, text: str) -> None:
    assert describe_intruder(make_unusual(5.12), 0.01, n_frauds, days, 5, math.nan) == text
    told = describe_intruder(make_unusual(5.12), 0.2, n_frauds, days, 5, 0)
    assert told == f"{text}, with an intruder possibly present before"


def test_an_intruder_before_is_named_by_its_probability() -> None:
    told = describe_intruder(make_unusual(5.12), 0.7, 0, math.nan, 0, math.nan)
    assert told.endswith("with an intruder probably present before")


@pytest.mark.parametrize(
    ("n_recent", "n_unusual", "words"),
    [
        (5, 2, ", unusual like 2 of the last 5 before it"),
        (3, 3, ", unusual like 3 of the last 3 before it"),
        (1, 1, ", unusual like the one before it"),
        (5, 0, ""),
        (0, 0, ""),
        (5, math.nan, ""),
    ],
)
def test_transactions_that_looked_the_same_are_counted(
    n_recent: int, n_unusual: float, words: str
) -> None:
    told = describe_intruder(make_unusual(5.12), 0.01, 0, math.nan, n_recent, n_unusual)
    assert told == f"amount 204.80, 5.1× {USUAL}{words}"


@pytest.mark.parametrize(
    ("times", "shown"),
    [(5.12, "204.80, 5.1×"), (0.034, "1.36, 0.034×"), (12.3, "492, 12×"), (220.0, "8,800, 220×")],
)
def test_multiples_are_readable(times: float, shown: str) -> None:
    assert make_unusual(times).describe() == f"amount {shown} {USUAL}"


@pytest.mark.parametrize("missing", [math.nan, 0.0])
def test_without_a_usual_there_is_nothing_to_compare_with(missing: float) -> None:
    assert Unusual("amount", "20", 20.0, missing, False).describe() == (
        "no usual amount of this customer to compare with"
    )
    assert Unusual("DISTANCE", "20", 20.0, missing, False).describe() == (
        "no usual DISTANCE of this customer to compare with"
    )


def test_a_new_customer_has_no_usual_of_their_own() -> None:
    text = make_unusual(6.0, "DISTANCE", is_first=True).describe()
    assert text == "DISTANCE 240, 6× usual for a new customer (about 40)"


def test_the_usual_is_in_the_currency_of_the_amount() -> None:
    text = make_unusual(6.0)._replace(text="SEK 240", currency="SEK").describe()
    assert text == "amount SEK 240, 6× this customer's own usual (about SEK 40)"


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ((0.96, 3, 9), "shop 7 probably compromised for 9 days: 3 known frauds there since 2 May"),
        ((0.96, 1, 1), "shop 7 probably compromised for 1 day: 1 known fraud there on 10 May"),
        (
            (0.96, 2, 0.25),
            "shop 7 probably compromised for less than a day: 2 known frauds there since 10 May",
        ),
        ((0.3, 3, 9), "shop 7 possibly compromised: 3 known frauds there since 2 May"),
        ((0.01, 1, 9), "shop 7 probably not compromised: 1 known fraud there on 2 May"),
        ((0.7, 0, math.nan), "shop 7 probably compromised"),
        ((0.01, 0, math.nan), "no sign of a compromise of shop 7"),
        ((0.0, math.nan, math.nan), "no sign of a compromise of shop 7"),
    ],
)
def test_a_compromise_has_its_days_its_frauds_and_a_date(
    facts: tuple[float, float, float], text: str
) -> None:
    for hours in (0.0, 5.9):  # the same step of six hours
        assert describe_compromise("shop 7", Clock(), MAY_11 + 3600 * hours, *facts) == text


def test_dates_are_local() -> None:
    oslo, facts = Clock(ZoneInfo("Europe/Oslo")), (0.96, 3, 9.25)
    assert describe_compromise("shop 7", Clock(), MAY_11, *facts).endswith("since 1 May")
    assert describe_compromise("shop 7", oslo, MAY_11 + 21600, *facts).endswith("since 2 May")


def test_without_a_calendar_days_are_counted_back() -> None:
    text = describe_compromise("shop 7", NO_CALENDAR, MAY_11, 0.96, 3, 9)
    assert text == "shop 7 probably compromised: 3 known frauds there, the first 9 days ago"
    text = describe_compromise("shop 7", NO_CALENDAR, MAY_11, 0.96, 1, 1)
    assert text == "shop 7 probably compromised: 1 known fraud there, 1 day ago"


@pytest.mark.parametrize("today", [-1e11, -1e9, 0.0, 1e11])
def test_every_time_that_can_be_read_has_a_date(today: float) -> None:
    assert " there since " in describe_compromise("shop 7", Clock(), today, 0.96, 3, 700)


def describe_amounts(
    points: list[float], edges: list[float], amounts: list[float], currency: str | None = None
) -> list[str]:
    """Texts for transactions with these amounts, by a scorecard of the amount alone.

    With a currency they were ten times as many before a conversion.
    """
    transactions = payments().transactions
    features = Features(min_count=4).fit(transactions)
    column = features.plan.continuous.index(AMOUNT)
    panel = features.transform(transactions)
    continuous, categorical = panel.continuous[: len(amounts)].copy(), panel.categorical
    # The panel's scale is monotone.
    scale = np.sort(transactions.column(AMOUNT)), np.sort(panel.continuous[:, column].astype(float))
    continuous[:, column] = np.interp(amounts, *scale)
    starts = np.array([0, len(edges)]), np.array([0, len(edges) + 2])
    cuts = np.interp(edges, *scale)
    card = Scorecard(np.array([column]), cuts, *starts, np.array(points), -4.0)
    plan = features.plan
    if currency is not None:
        rates = RateTable.from_table({"EUR": 1.0, currency: 0.1})
        plan = replace(plan, schema=replace(plan.schema, currency="ccy", rates=rates))
    describer = TransactionDescriber(FeatureDescriber(plan), card)
    given = transactions.take(np.arange(len(amounts))).list_rows()
    paid = transactions.schema.continuous.index(AMOUNT)
    for row, amount in zip(given, amounts, strict=True):
        row.numbers[paid] = amount
    if currency is not None:
        given = [row._replace(original=OriginalMoney(currency, 10 * row.numbers)) for row in given]
    rows = map(DescribedRow, continuous, categorical[: len(amounts)], given)
    return describer.describe(list(rows))


def test_a_bin_is_told_in_the_units_of_the_file() -> None:
    points, edges = [1.0, -0.7, 0.6, 3.14], [50.0, 220.0]
    assert describe_amounts(points, edges, [300.0, 60.0, 5.0, math.nan]) == [
        "amount 300 (above 220): +3.1",
        "amount 60 (50 to 220): +0.6",
        "amount 5 (up to 50): -0.7",
        "amount missing: +1.0",
    ]
    assert describe_amounts([0.0, 2.0], [], [60.0]) == ["amount 60: +2.0"]
    assert describe_amounts(points, edges, [300.0, 60.0, 5.0], "SEK") == [
        "amount SEK 3,000 (above 2,200): +3.1",
        "amount SEK 600 (500 to 2,200): +0.6",
        "amount SEK 50 (up to 500): -0.7",
    ]


def test_neighbours_with_about_the_same_points_belong_to_the_range() -> None:
    points, edges = [5.0, -0.7, 0.6, 3.0, 2.0, 1.6, -2.0], [50.0, 100.0, 150.0, 200.0, 250.0]
    assert describe_amounts(points, edges, [160.0, 120.0, 230.0, 300.0]) == [
        "amount 160 (100 to 250): +2.0",
        "amount 120 (100 to 250): +3.0",
        "amount 230 (100 to 250): +1.6",
        "amount 300 (above 250): -2.0",
    ]


def test_weak_facts_are_not_told() -> None:
    texts = describe_amounts([0.4, 0.3, -0.2, 0.1], [50.0, 220.0], [60.0, 5.0])
    assert texts == ["nothing unusual in the transaction itself"] * 2
