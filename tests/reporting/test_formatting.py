from __future__ import annotations

import math

import pytest

from turncoat.reporting import formatting as show

MINUS, DASH, SPACE = "\N{MINUS SIGN}", "\N{EN DASH}", "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (0.65149, 3, "0.651"),
        (-0.65149, 3, f"{MINUS}0.651"),
        (0.0, 3, "0.000"),
        (0.00071, 4, "0.00071"),
        (0.0000456, 4, "0.000046"),
        (3.2e-9, 4, f"3.2e{MINUS}09"),
        (12345.678, 2, "12,345.68"),
        (None, 3, DASH),
        (math.nan, 3, DASH),
        (math.inf, 3, DASH),
    ],
)
def test_numbers(value: float | None, decimals: int, text: str) -> None:
    assert show.number(value, decimals) == text


def test_signs_are_shown_on_differences() -> None:
    assert [show.signed(value) for value in (0.01, -0.01, 0.0, None)] == [
        "+0.0100",
        f"{MINUS}0.0100",
        "0.0000",
        DASH,
    ]
    assert show.signed_interval((-0.01, 0.02)) == f"{MINUS}0.0100 to +0.0200"


def test_shares() -> None:
    shown = [show.percent(value) for value in (0.5, 0.0837, 0.00837, 0.00041, 0.0, None)]
    assert shown == [
        f"50.0{SPACE}%",
        f"8.37{SPACE}%",
        f"0.84{SPACE}%",
        f"0.041{SPACE}%",
        f"0.00{SPACE}%",
        DASH,
    ]
    assert show.round_percent(0.005) == f"0.5{SPACE}%"


def test_estimates_have_two_or_three_digits() -> None:
    shown = [show.share(v) for v in (0.589, 0.0866, 0.00041, 1.0, 0.99967, 0.991, 0.0, -0.2, None)]
    texts = ("59", "8.7", "0.041", "100", "99.9", "99.1", "0", f"{MINUS}20")
    assert shown == [*(f"{text}{SPACE}%" for text in texts), DASH]
    assert [show.significant(v) for v in (12345.6, 0.6799, 7.0, -31.55, None, math.inf)] == [
        "12,300",
        "0.68",
        "7",
        f"{MINUS}31.6",
        DASH,
        DASH,
    ]
    assert [show.tally(v) for v in (89.3, 152.4, 9.96, 4.56, 0.123)] == [
        "89",
        "152",
        "10",
        "4.6",
        "0.12",
    ]
    assert show.money(11972.6, "EUR") == f"EUR{SPACE}12,000"
    assert show.show_range(None, show.share) == DASH
    assert show.show_range((0.1, 0.25), show.share) == f"10{SPACE}% to 25{SPACE}%"


def test_p_values() -> None:
    assert [show.p_value(value) for value in (0.0, 0.0314, None)] == ["< 0.0001", "0.031", DASH]


def test_words() -> None:
    assert show.join_words(["a", "b", "a", "c"]) == "a, b and c"
    assert show.join_words([]) == DASH
    assert show.metric_text("lift_at_10").label == "Lift at 10"
