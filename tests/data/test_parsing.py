"""A live row is parsed by the rules of a file."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from turncoat.data import Schema, read
from turncoat.data.parsing import parse_label, parse_numbers, parse_time
from turncoat.errors import ConfigError, DataError

NOON = 1_704_110_400.0  # 2024-01-01 12:00 UTC


def schema(**settings: Any) -> Schema:
    return Schema(customer=("who",), time="when", continuous=("paid",), **settings)


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        (NOON, {}),
        (int(NOON), {}),
        (str(int(NOON)), {}),
        (np.float64(NOON), {}),
        (NOON * 1000, {"time_unit": "ms"}),
        (datetime(2024, 1, 1, 12), {}),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), {}),
        (datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))), {}),
        (np.datetime64("2024-01-01T12:00:00", "us"), {}),
        (pd.Timestamp("2024-01-01 12:00"), {}),
        ("2024-01-01 12:00:00", {}),
        ("2024-01-01T12:00:00", {}),
        ("2024/01/01 12:00:00", {}),
        ("01.01.2024 12h00", {"time_format": "%d.%m.%Y %Hh%M"}),
        (202401011200, {"time_format": "%Y%m%d%H%M"}),
    ],
)
def test_times_live_are_times_in_a_file(value: Any, settings: dict[str, str]) -> None:
    assert parse_time(schema(**settings), {"when": value}) == NOON
    when = np.array([value]) if isinstance(value, np.datetime64) else [value]
    in_file = read(pl.DataFrame({"who": ["a"], "when": when, "paid": [1.0]}), schema(**settings))
    assert in_file.times[0] == NOON


def test_a_day_is_its_midnight() -> None:
    assert parse_time(schema(), {"when": date(2024, 1, 1)}) == NOON - 43_200


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        float("nan"),
        float("inf"),
        10**400,
        "soon",
        "01/02/2024",
        "2024-W05-1",
        pd.NaT,
        [1],
        {"at": 1},
        timedelta(1),
        b"1",
        "",
    ],
)
def test_what_is_no_time_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match="'when'"):
        parse_time(schema(), {"when": value})


def test_a_time_that_overflows_in_its_unit_is_refused() -> None:
    with pytest.raises(DataError, match="not a time"):
        parse_time(schema(time_unit="d"), {"when": 1e308})


@pytest.mark.parametrize(
    "value",
    [
        "much",
        "1_000",
        "1.5 ",
        "\uff11\uff12",
        b"1.5",
        np.timedelta64(5, "s"),
        np.datetime64("2024-01-01"),
        [1.0],
        np.array([1.0]),
        {"eur": 1},
        10**400,
        datetime(2024, 1, 1),
    ],
)
@pytest.mark.parametrize("others", [(), ("other",)])
def test_what_is_no_number_is_refused(value: Any, others: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="'paid'"):
        parse_numbers(("paid", *others), {"paid": value, "other": 3.0})


def test_numbers_are_parsed_and_absent_ones_are_missing() -> None:
    found = parse_numbers(
        ("a", "b", "c", "d"), {"a": 1, "b": None, "c": np.float32(2.5), "e": "unused"}
    )
    np.testing.assert_array_equal(found, [1, np.nan, 2.5, np.nan])
    with pytest.raises(DataError, match="finite"):
        parse_numbers(("a",), {"a": float("inf")})


def test_text_that_a_file_reads_as_missing_is_missing() -> None:
    np.testing.assert_array_equal(
        parse_numbers(("a", "b", "c"), {"a": "", "b": "NA", "c": "1.5e3"}), [np.nan, np.nan, 1500]
    )


def test_dates_far_from_now_have_the_bits_of_a_file() -> None:
    far = datetime(2789, 3, 30, 0, 9, 32, 777217)
    assert (
        parse_time(schema(), {"when": far})
        == read(pl.DataFrame({"who": ["a"], "when": [far], "paid": [1.0]}), schema()).times[0]
    )


@pytest.mark.parametrize(
    ("value", "label"),
    [
        *(
            (value, 1)
            for value in (1, 1.0, "1.0", True, "Y", " yes ", "Fraud", "OUI", "10.4", 10.4)
        ),
        *((value, 0) for value in (0, "0", False, "n", "No", "genuine", "13.1", "none so far")),
        *((value, -1) for value in (-1, "-1.0", None, "", float("nan"), "pending", "Disputed")),
        *((value, None) for value in (2, "maybe", [1])),
    ],
)
def test_labels_in_words_are_the_same_in_files_and_alone(value, label):
    schema = Schema(
        customer="who",
        time="at",
        continuous="paid",
        label="fraud",
        fraud_labels=["10.4"],
        genuine_labels=["13.1", "None so far"],
        unknown_labels=["disputed"],
    )
    assert parse_label(value, schema) == label
    frame = pl.DataFrame({"who": ["a"], "at": [1], "paid": [1.0], "fraud": pl.Series([value])})
    if label is None:
        with pytest.raises(DataError, match="column 'fraud'"):
            read(frame, schema)
    else:
        assert read(frame, schema).labels.tolist() == [label]


def test_an_empty_label_means_what_the_schema_says(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("who,at,paid,code\na,1,1,\na,2,1,4837\na,3,1,x\n")
    schema = Schema(customer="who", time="at", continuous="paid", label="code")
    with pytest.raises(DataError, match=r"the label is '4837'; .* list it in .*`fraud_labels`"):
        read(path, schema)
    words = {"fraud_labels": ("4837",), "unknown_labels": ("X",)}
    assert read(path, replace(schema, **words)).labels.tolist() == [-1, 1, -1]
    assert read(path, replace(schema, **words, genuine_labels=("",))).labels.tolist() == [0, 1, -1]
    with pytest.raises(ConfigError, match="'x' has two meanings"):
        replace(schema, fraud_labels=("x",), genuine_labels=("X",))
