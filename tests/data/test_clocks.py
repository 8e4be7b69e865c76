"""Times in mixed formats and zones: instants in UTC, and local clocks for hours."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat.data.clocks import find_utc_offset, find_utc_offsets, parse_zone, to_utc
from turncoat.data.inference import infer_schema
from turncoat.data.json_rows import RowDecoder, list_fields
from turncoat.data.parsing import parse_row
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.errors import ConfigError, DataError

SCHEMA = Schema(customer="who", time="at", continuous="paid", id="ref")
NOON = 1709294400.0  # 2024-03-01 12:00 UTC
ZONES = ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]


def frame(times, **columns):
    n = len(times)
    start = {"ref": range(n), "who": ["a"] * n, "at": times, "paid": [1.0] * n}
    return pl.DataFrame({**start, **columns})


def by_row(transactions, values):
    return values[np.argsort(transactions.file_rows)].tolist()


def test_times_with_and_without_offsets_are_read_together():
    texts = [
        "2024-03-01 12:00:00",
        "2024-03-01T12:00:00Z",
        "2024-03-01T13:00:00+01:00",
        "2024-03-01T17:30:00.000+0530",
        "2024-03-01 07:00-05:00",
        "2024-03-01 12:00:00 UTC",
        "2024/03/01 12:00",
    ]
    found = read(frame(texts), SCHEMA)
    assert found.times.tolist() == [NOON] * len(texts)
    assert found.utc_offsets is None
    assert found.clocks is found.times
    for text in texts:
        assert parse_row(SCHEMA, {"who": "a", "at": text}).time == NOON
    berlin = read(frame(texts), replace(SCHEMA, time_zone="Europe/Berlin"))
    local = {0: NOON - 3600, 6: NOON - 3600}
    assert by_row(berlin, berlin.times) == [local.get(i, NOON) for i in range(len(texts))]
    assert berlin.utc_offsets.tolist() == [3600.0] * len(texts)


def test_two_formats_are_refused_with_both():
    with pytest.raises(
        DataError,
        match=r"column 'at', row 2: '31\.01\.2024' is not a time: .*, unlike '2024-01-31 10:00'",
    ):
        read(frame(["2024-01-31 10:00", "31.01.2024"]), SCHEMA)
    day_first = replace(SCHEMA, time_format="%d.%m.%Y")
    with pytest.raises(DataError, match=r"'2024-01-31' is not a time in the format .*unlike '31\."):
        read(frame(["31.01.2024", "2024-01-31"]), day_first)


instants = st.datetimes(datetime(1990, 1, 1), datetime(2035, 12, 31)).map(
    lambda moment: moment.replace(microsecond=0)
)


@given(st.lists(instants, min_size=1, max_size=5), st.sampled_from(ZONES))
@settings(deadline=None, max_examples=150)
def test_zones_agree_with_the_standard_library(moments, name):
    zone = ZoneInfo(name)
    local = pl.Series(moments)
    expected = [moment.replace(tzinfo=zone).timestamp() for moment in moments]
    assert (to_utc(local, name) / 1e6).to_list() == expected
    offsets = [
        datetime.fromtimestamp(time, UTC).astimezone(zone).utcoffset().total_seconds()
        for time in expected
    ]
    assert find_utc_offsets(np.array(expected), name).tolist() == offsets
    assert [find_utc_offset(time, name) for time in expected] == offsets


def test_clocks_that_are_moved():
    texts = ["2024-03-31 01:59:59", "2024-03-31 02:30:00", "2024-10-27 02:30:00"]
    found = read(frame(texts), replace(SCHEMA, time_zone="Europe/Berlin"))
    gap, twice = 1711848600.0, 1729989000.0  # 01:30 and 00:30 UTC
    assert found.times.tolist() == [gap - 1801, gap, twice]
    assert found.utc_offsets.tolist() == [3600.0, 7200.0, 7200.0]


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        *(("Z", 0.0), ("utc", 0.0), ("GMT", 0.0), ("+02:00", 7200.0), ("-0530", -19800.0)),
        *(("UTC+2", 7200.0), ("GMT-03:00", -10800.0), ("5", 18000.0), ("-5", -18000.0)),
        *((" Europe/Paris ", "Europe/Paris"), ("Mars/Base", None), ("120", None), ("+25:00", None)),
    ],
)
def test_names_of_zones(text, zone):
    assert parse_zone(text) == zone


@pytest.mark.parametrize("column", ["tz", "at"])
def test_live_rows_have_the_clock_of_files(column):
    zones = [*ZONES, "+02:00", None]
    texts = ["2024-07-01 23:30:00", "2024-01-01 00:30:00", "2024-06-01T12:00:00+09:00"] * 2
    schema = replace(SCHEMA, time_zone="Europe/Rome", time_zone_column=column)
    rows = frame(texts, tz=zones) if column == "tz" else frame(texts)
    found = read(rows, schema)
    decoder = RowDecoder(schema)
    times, offsets = by_row(found, found.times), by_row(found, found.utc_offsets)
    if column == "at":
        assert offsets == [7200.0, 3600.0, 32400.0] * 2
    else:
        assert offsets == [7200.0, -18000.0, 19800.0, 37800.0, 7200.0, 7200.0]
    for row, time, offset in zip(rows.iter_rows(named=True), times, offsets, strict=True):
        for live in (parse_row(schema, row), decoder.decode(msgspec.json.encode(row)).row):
            assert (live.time, live.utc_offset) == (time, offset)
        naive = None if "+" in row["at"] else datetime.fromisoformat(row["at"])
        if naive is not None:
            assert parse_row(schema, {**row, "at": naive}).time == time
    again = [parse_row(schema, fields) for fields in list_fields(found, np.arange(found.n_rows))]
    assert [(one.time, one.utc_offset) for one in again] == list(
        zip(found.times.tolist(), found.utc_offsets.tolist(), strict=True)
    )


def test_wrong_zones_are_named():
    with pytest.raises(ConfigError, match="time_zone is 'Mars'; it must be a name such as"):
        replace(SCHEMA, time_zone="Mars")
    schema = replace(SCHEMA, time_zone_column="tz")
    with pytest.raises(DataError, match=r"column 'tz', row 2: 'Mars' is not a time zone\. Give a"):
        read(frame(["2024-01-01"] * 2, tz=["UTC", "Mars"]), schema)
    with pytest.raises(DataError, match="column 'tz': 'Mars' is not a time zone"):
        parse_row(schema, {"who": "a", "at": "2024-01-01", "tz": "Mars"})


@pytest.mark.parametrize(
    ("form", "columns", "expected"),
    [
        ("%Y-%m-%d %H:%M:%S", {}, (None, None)),
        ("%Y-%m-%dT%H:%M:%SZ", {}, ("UTC", None)),
        ("%Y-%m-%dT%H:%M:%S+02:00", {}, (None, "booked_at")),
        ("%Y-%m-%d %H:%M:%S", {"tz": ["Europe/Berlin", "Asia/Tokyo"] * 100}, (None, "tz")),
    ],
)
def test_init_finds_the_clock(tmp_path, form, columns, expected):
    draw = np.random.default_rng(1)
    start = datetime(2024, 1, 1)
    payments = pl.DataFrame(
        {
            "customer_id": draw.integers(0, 20, 200),
            "booked_at": [(start + timedelta(hours=7 * k)).strftime(form) for k in range(200)],
            "amount": draw.gamma(2, 20, 200).round(2),
            **columns,
        }
    )
    payments.write_csv(tmp_path / "payments.csv")
    schema = infer_schema(tmp_path / "payments.csv").schema
    assert (schema.time_zone, schema.time_zone_column) == expected
    assert read(tmp_path / "payments.csv", schema).n_rows == 200
