"""Bodies into transactions: what is stored of them, and times from the far future."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest

from tests.scoring.detectors import detector
from tests.serving.helpers import rows_of
from turncoat.data.parsing import parse_row
from turncoat.serving.decoding import FieldError, FutureCheck, InvalidJsonError, TransactionDecoder

DAY = 86400.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The server's clock, to be set."""
    clock = [time.time()]
    monkeypatch.setattr("turncoat.serving.decoding.time.time", lambda: clock[0])
    return clock


def test_a_body_of_white_space_is_refused_and_none_is_stored() -> None:
    decoder, row = TransactionDecoder(detector("shop")), rows_of("shop")[0]
    for body in (b"", b" ", b"\n\t " * 10_000):
        with pytest.raises(InvalidJsonError):
            decoder.decode(body)
    padded = json.dumps(row, indent=40).encode() + b" " * 100_000
    name = {**row, "device": "two  spaces\tand a tab"}
    assert decoder.decode(padded).body == json.dumps(row, separators=(",", ":")).encode()
    assert json.loads(decoder.decode(json.dumps(name).encode()).body) == name


@pytest.mark.parametrize("time_format", [None, "%d.%m.%Y %H:%M:%S %z"])
def test_times_with_an_offset_have_one_in_the_example(time_format: str | None) -> None:
    decoder = TransactionDecoder(detector("handbook"))
    schema = decoder.plan.schema
    changes = {"time_zone_column": schema.time, "time_format": time_format}
    decoder.plan = replace(decoder.plan, schema=replace(schema, **changes))
    example = decoder.example
    assert str(example[schema.time]).endswith("+0000" if time_format else "+00:00")
    assert parse_row(decoder.plan.schema, example).time == math.ceil(decoder.times[1])


def test_calendar_times_ahead_of_the_server_are_refused_with_the_limit(now: list[float]) -> None:
    decoder = TransactionDecoder(detector("handbook"), max_future_s=DAY)
    row = dict(rows_of("handbook")[0])
    now[0] = decoder.times[1]
    for ahead, is_refused in ((0.0, False), (0.9 * DAY, False), (1.1 * DAY, True), (-DAY, False)):
        body = json.dumps({**row, "TX_DATETIME": now[0] + ahead}).encode()
        if is_refused:
            with pytest.raises(FieldError, match=r"86400 seconds ahead.*max_future_s") as refusal:
                decoder.decode(body)
            assert refusal.value.field == "TX_DATETIME"
        else:
            decoder.decode(body)
    now[0] += DAY
    assert decoder.decode(json.dumps({**row, "TX_DATETIME": now[0]}).encode())


def test_without_a_limit_no_future_is_refused() -> None:
    assert FutureCheck(True, 0.0).check(time.time() + 1e9) is None
    check = FutureCheck(False, 0.0)
    assert [check.check(moment) for moment in (0.0, 0.0, 0.0, 1e9)] == [None] * 4


def test_where_the_zero_is_unknown_other_transactions_show_the_present() -> None:
    check = FutureCheck(False, DAY, calibration_s=10 * DAY)
    assert all(check.check(moment) is None for moment in (100.0, 200.0, -5 * DAY, 300.0))
    for wrong in (11 * DAY, 400 * DAY):  # one or two wrong clocks convince nobody
        assert "864000 seconds ahead of other transactions" in str(check.check(wrong))
    assert check.check(9 * DAY) is None  # a gap in the traffic
    assert check.check(400 * DAY) is not None
    assert check.check(400 * DAY + 1) is None  # the third: the clock has really moved
    assert check.check(401 * DAY) is None


@pytest.mark.parametrize("phrase", ["unknown field `", " - at `$."])
def test_a_long_name_is_cut_before_the_error_is_searched(phrase: str) -> None:
    decoder = TransactionDecoder(detector("shop"))
    body = json.dumps({phrase * 10_000 + "\nq": 1}).encode()
    with pytest.raises(FieldError) as caught:
        decoder.decode(body)
    assert len(str(caught.value)) < 1200
