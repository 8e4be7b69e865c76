"""Every number of headers and reasons, parsed back, is that of the data within the digits shown."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.features.sample_data import DAY, STEP
from tests.scoring.chains import AMOUNT, chains_detector, payments
from tests.scoring.detectors import model_of, time_split
from turncoat import Detector
from turncoat.cli import main
from turncoat.data import Schema, read, read_for_scoring
from turncoat.data.json_rows import RowDecoder, list_fields
from turncoat.data.money import RateTable
from turncoat.data.parsing import parse_row
from turncoat.features import Features
from turncoat.scoring import DetectorState
from turncoat.scoring.cause_texts import describe_compromise
from turncoat.scoring.descriptions import Values
from turncoat.scoring.formatting import Clock, format_rounded, format_times

OSLO = ZoneInfo("Europe/Oslo")
START = datetime(2024, 2, 1, tzinfo=UTC).timestamp()
MAY = datetime(2024, 5, 1, tzinfo=UTC).timestamp()
RATES = {
    "EUR": 1.0,
    "SEK": {"2024-01-01": 0.088, "2024-05-01": 0.0912345},
    "JPY": 0.0061,
    "KWD": 3.0,
}
SCHEMA = Schema(
    customer=("card",),
    time="at",
    continuous=("paid", "age"),
    categorical=("device",),
    amount="paid",
    currency="ccy",
    rates=RateTable.from_table(RATES),
    label="fraud",
    id="ref",
    counterparties=("shop",),
    time_zone="Europe/Oslo",
)


def parse(text: str) -> float:
    return float(text.replace(",", ""))


def parse_times(text: str, ratio: float) -> None:
    """Check a multiple such as 2.2× against the ratio."""
    shown = parse(text.removesuffix("×"))
    n_digits = 3 if ratio >= 100 else 2  # significant ones
    assert shown == pytest.approx(ratio, rel=5.01 * 10**-n_digits)


# ---- pieces


@given(st.floats(1e-3, 9.99e5))
def test_multiples_are_right_to_their_digits(ratio: float) -> None:
    parse_times(format_times(ratio), ratio)


@given(st.floats(1e-300, 1e300), st.integers(2, 6))
def test_rounded_numbers_are_right_to_their_digits(value: float, n_digits: int) -> None:
    assert parse(format_rounded(value, n_digits)) == pytest.approx(
        value, rel=0.5 * 10**-n_digits * 10
    )


zones = st.one_of(
    st.sampled_from(["Europe/Oslo", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia"]).map(
        ZoneInfo
    ),
    st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


def parse_moment(text: str) -> tuple[datetime, str]:
    """The local time, to the minute, and the zone; checks the weekday against the date."""
    found = re.fullmatch(r"(\w+) (\d+ \w+ \d+), (\d\d:\d\d) (.+)", text)
    assert found is not None, text
    weekday, date, time, zone = found.groups()
    moment = datetime.strptime(f"{date} {time}", "%d %B %Y %H:%M")
    assert f"{moment:%A}" == weekday
    return moment, zone


@given(st.floats(-3e9, 8e9), zones)
def test_moments_read_back_in_every_zone(seconds: float, zone: Any) -> None:
    expected = datetime.fromtimestamp(seconds, zone)
    moment, name = parse_moment(Clock(zone).format_moment(seconds))
    assert moment == expected.replace(second=0, microsecond=0, tzinfo=None)
    assert name == expected.tzname()
    iso = datetime.fromisoformat(str(Clock(zone).format_iso(seconds)))
    assert iso.timestamp() == expected.timestamp()  # unequal objects where clocks are set back


@given(st.floats(1e9, 3e9), st.integers(0, 400), st.floats(0, 1), zones)
def test_dates_of_known_frauds_are_local(now: float, n_steps: int, part: float, zone: Any) -> None:
    """The record knows the step of six hours; the date is one of the two that it touches."""
    step = math.floor(now / STEP) - n_steps
    fraud = datetime.fromtimestamp(step * STEP + part * (STEP - 1), zone)
    text = describe_compromise("shop", Clock(zone), now, 0.9, 2, n_steps * STEP / DAY)
    days, first, last = re.fullmatch(
        r"shop probably compromised for (.+): 2 known frauds there since (?:([\w ]+) or )?(.+)",
        text,
    ).groups()
    dates = (
        [last] if first is None else [first if " " in first else f"{first} {last.split()[1]}", last]
    )
    assert f"{fraud.day} {fraud:%B}" in dates
    ends = [datetime.fromtimestamp(step * STEP + second, zone) for second in (0, STEP - 1)]
    assert dates == list(dict.fromkeys(f"{end.day} {end:%B}" for end in ends))
    n_days = n_steps * STEP / DAY
    assert days == "less than a day" if n_days <= 0.5 else abs(int(days.split()[0]) - n_days) <= 0.5


# ---- headers and reasons of drawn files


def make_file(n: int = 400, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    currencies = np.array(["EUR", "SEK", "JPY"])[rng.integers(3, size=n)]
    fraud = rng.random(n) < 0.15
    return pl.DataFrame(
        {
            "ref": np.arange(n),
            "card": [f"c{k}" for k in rng.integers(12, size=n)],
            "at": START + np.cumsum(rng.exponential(9000, n)).round(),
            "paid": (np.exp(rng.normal(4 + fraud, 1.5, n)) + 0.01).round(2),
            "ccy": currencies,
            "age": np.where(rng.random(n) < 0.2, None, rng.normal(40, 9, n).round(1)).tolist(),
            "device": rng.choice(["phone", "tablet"], n),
            "shop": [f"s{k}" for k in rng.integers(6, size=n)],
            "fraud": fraud.astype(int),
        }
    )


@cache
def fitted() -> Detector:
    data = read(make_file(), SCHEMA)
    features = Features(min_count=4, label_delay_days=1.0)
    return Detector(features, model_of("expected-log", 2)).fit(data, time_split(data))


cents = st.integers(1, 10**8).map(lambda n: n / 100)
drawn_rows = st.lists(
    st.fixed_dictionaries(
        {
            "card": st.sampled_from(["a", "b"]),
            "gap": st.integers(0, 4 * 86400),
            "paid": cents | st.floats(0.01, 1e6),
            "ccy": st.sampled_from(["EUR", "SEK", "JPY", "NOK", None]),  # no rate of NOK
            "age": st.one_of(st.none(), st.integers(18, 90).map(float)),
            "device": st.sampled_from(["phone", "tablet", "東京 [b]"]),
            "shop": st.one_of(st.none(), st.sampled_from(["s1", "new shop"])),
            "fraud": st.sampled_from([None, 0, 1]),
        }
    ),
    min_size=1,
    max_size=12,
)


def find_rate(row: dict[str, Any]) -> float:
    if row["ccy"] == "SEK":
        return 0.0912345 if row["at"] >= MAY else 0.088
    return {"EUR": 1.0, "JPY": 0.0061}.get(row["ccy"], math.nan)


def to_euros(row: dict[str, Any]) -> float:
    return row["paid"] * find_rate(row)


def mean_size(rows: list[dict[str, Any]]) -> float:
    """The mean in euros, on a logarithmic scale, of rows that have a rate; 0 without any."""
    logs = [math.log1p(to_euros(one)) for one in rows if not math.isnan(to_euros(one))]
    return math.expm1(math.fsum(logs) / len(logs)) if logs else 0.0


def check_comparison(text: str, whose: str, row: dict[str, Any], others: list[Any]) -> bool:
    """Check `5.1× the usual there (about SEK 12)` against the mean of the others, if it is told."""
    found = re.search(rf", ((?:over |less than )?\S+×) {whose} \(about (\w+) (\S+)\)", text)
    if found is None:
        assert whose not in text
        return False
    usual = mean_size(others)
    assert found[2] == row["ccy"]
    assert parse(found[3]) == pytest.approx(usual / find_rate(row), rel=6e-3)
    if found[1][0].isdigit():
        parse_times(found[1], to_euros(row) / usual)
    return True


def find_fraud_rate(row: dict[str, Any], earlier: list[dict[str, Any]]) -> tuple[float, float]:
    """Known outcomes at the shop, fading over a month, and their fraud rate (docs/scores.md)."""
    counted = frauds = 0.0
    for one in earlier:
        ended = (math.floor(one["at"] / STEP) + 1) * STEP
        n_steps = math.floor((row["at"] - DAY - ended) / STEP)
        if n_steps >= 0:
            counted += math.exp(-n_steps / 120)
            frauds += math.exp(-n_steps / 120) * (one["fraud"] == 1)
    return counted, (frauds + 5 * fitted().features_.plan.base_rate) / (counted + 5)


def count_run(row: dict[str, Any], earlier: list[dict[str, Any]]) -> int:
    """Frauds at the shop since its last genuine payment, known a day after their step."""
    steps = [math.floor(one["at"] / STEP) for one in earlier]
    known = [(s + 1) * STEP + DAY <= row["at"] for s in steps]
    genuine = [
        s for s, k, one in zip(steps, known, earlier, strict=True) if k and one["fraud"] != 1
    ]
    last = max(genuine, default=-math.inf)
    pairs = zip(steps, known, earlier, strict=True)
    return sum(k and one["fraud"] == 1 and s >= last for s, k, one in pairs)


@settings(max_examples=40, deadline=None)
@given(drawn_rows, st.floats(0, 300 * DAY).map(round))
def test_headers_and_reasons_say_what_the_file_says(rows: list[dict[str, Any]], start: int) -> None:
    times = START + start + np.cumsum([row.pop("gap") for row in rows])
    rows = [
        {**row, "ref": ref, "at": float(time)}
        for ref, (row, time) in enumerate(zip(rows, times, strict=True))
    ]
    assume(any(row["ccy"] in RATES for row in rows))
    types = {"age": pl.Float64, "shop": pl.String, "fraud": pl.Int64, "ccy": pl.String}
    data = read_for_scoring(pl.DataFrame(rows, schema_overrides=types), SCHEMA)
    explained = fitted().explain_rows(data, np.arange(data.n_rows))
    assert len(explained) == len(rows)
    for one in explained:
        row = rows[int(one.id)]
        before = rows[: int(one.id)]
        has_rate = row["ccy"] in RATES
        moment = datetime.fromtimestamp(row["at"], OSLO)
        # the header
        local, zone = parse_moment(one.facts["time"])
        assert (local, zone) == (moment.replace(second=0, tzinfo=None), moment.tzname())
        assert datetime.fromisoformat(str(one.time)).timestamp() == row["at"]
        assert one.currency == row["ccy"]
        if row["ccy"] is None:
            assert one.amount is None
            assert "amount" not in one.facts
        else:
            currency, amount = one.facts["amount"].split()
            assert currency == row["ccy"]
            assert parse(amount) == one.amount == row["paid"]
        assert one.facts.get("shop") == row["shop"]
        label = {None: None, 0: "genuine", 1: "fraud"}[row["fraud"]]
        assert one.facts.get("known label") == label
        assert one.customer == row["card"]
        # the reasons
        own = [other for other in before if other["card"] == row["card"]]
        assert one.score.n_seen == len(own) + 1
        told = {reason.source: reason.text for reason in one.score.reasons}
        shown, *more = told["amount"].partition(" without a rate")
        assert any(more) != has_rate
        shown = shown.split(", ")[0].removeprefix("amount ")
        assert shown == one.facts.get("amount", shown)
        assert parse(shown.split()[-1]) == row["paid"]
        is_told = check_comparison(told["amount"], "this customer's usual", row, own)
        usual = mean_size(own) if has_rate else 0.0
        assert is_told == (usual >= 1e-3) or usual == pytest.approx(1e-3, rel=0.01)
        assert told["hour"].startswith(f"at {moment:%H:%M} {moment.tzname()}")
        assert told["weekday"].partition(",")[0] == f"{moment:%A}"
        n_missing = (row["age"] is None) + (not has_rate)
        assert told["missing fields"].startswith(f"{n_missing} ")
        assert told["device"].partition(",")[0] == f"device {row['device']}"
        if row["shop"] is None:
            assert told["shop"].startswith("shop missing")
            continue
        there = [other for other in before if other["shop"] == row["shop"]]
        assert told["shop"].startswith(f"shop {row['shop']}")
        is_told = check_comparison(told["shop"], "the usual there", row, there)
        usual = mean_size(there) if has_rate else 0.0
        assert is_told or usual < 1.01e-3 or 0.499 < to_euros(row) / usual < 2.001
        run = count_run(row, there)
        claimed = re.search(r", the last (\w+) known (?:was|were) fraud", told["shop"])
        if claimed is not None:
            assert {"one": 1}.get(claimed[1], claimed[1]) in (run, str(run))
        rate = re.search(r"fraud rate there about (\S+)%", told["shop"])
        known, expected = find_fraud_rate(row, there)
        assert (rate is not None) == (math.log1p(known) >= 0.1) or known == pytest.approx(
            0.105, 0.01
        )
        assert rate is None or float(rate[1]) == pytest.approx(100 * expected, abs=0.0501)


MONEY = Schema(
    customer=("card",),
    time="at",
    continuous=("paid", "fee"),
    amount="paid",
    minor_units=("paid",),
    money=("fee",),
    currency="ccy",
    rates=RateTable.from_table(RATES),
    id="ref",
)
DIGITS = {"EUR": 2, "SEK": 2, "JPY": 0, "KWD": 3, "NOK": 2}


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-(10**15) + 1, 10**15 - 1),
    st.floats(-1e9, 1e9),
    st.sampled_from(list(DIGITS)),
    st.floats(1e-4, 1e4),
)
def test_money_is_shown_as_given_in_files_and_live(
    paid: int, fee: float, currency: str, rate: float
) -> None:
    """Minor units become units, and the rate changes no digit: in files, live and in a replay."""
    rates = RATES | ({} if currency == "NOK" else {currency: rate})
    schema = replace(MONEY, rates=RateTable.from_table(rates))
    row = {"ref": 0, "card": "a", "at": START, "paid": float(paid), "fee": fee, "ccy": currency}
    other = {**row, "ref": 1, "at": START + 1, "ccy": "EUR"}
    data = read(pl.DataFrame([row, other]), schema)
    sent = {"ref": 0, **next(list_fields(data, np.arange(1)))}
    rows = [data.list_rows()[0], parse_row(schema, row), parse_row(schema, sent)]
    rows.append(RowDecoder(schema).decode(msgspec.json.encode(sent)).row)
    for one in rows:
        values = Values(schema)
        without = " without a rate" if currency == "NOK" else ""
        for column, expected in (
            ("paid", Decimal(paid).scaleb(-DIGITS[currency])),
            ("fee", Decimal(repr(fee))),
        ):
            shown = values.format(one, column)
            assert shown.startswith(f"{currency} ")
            assert shown.endswith(without)
            number = shown.removeprefix(currency).removesuffix(without)
            assert Decimal(number.strip().replace(",", "")) == expected
        np.testing.assert_array_equal(one.numbers, rows[0].numbers)


def test_live_reasons_have_the_texts_of_a_file() -> None:
    """The amount, its currency and the usual are the same text, whether sent or read."""
    frame = make_file().with_columns(fraud=pl.lit(None, pl.Int64))
    data = read_for_scoring(frame, SCHEMA)
    explained = {one.id: one for one in fitted().explain_rows(data, np.arange(data.n_rows))}
    cards: dict[str, Any] = {}
    shops: dict[str, Any] = {}
    for row in frame.drop("fraud").head(60).iter_rows(named=True):
        state = DetectorState(cards.get(row["card"]), (shops.get(row["shop"]),))
        state, score = fitted().score_one(state, row, n_reasons=99)
        cards[row["card"]], (shops[row["shop"]],) = state
        live, batch = (
            {reason.source: reason.text for reason in reasons}["amount"]
            for reasons in (score.reasons, explained[str(row["ref"])].score.reasons)
        )
        assert live == batch
        assert live.startswith(f"amount {row['ccy']} ")


# ---- causes of fraud


def test_causes_compare_amounts_in_their_own_currency() -> None:
    data = read(make_file(), SCHEMA)
    features = Features(min_count=4, label_delay_days=1.0)
    made = Detector(features, model_of("expected-log", 2), kind="chains")
    made.fit(data, time_split(data))
    paid = {str(row["ref"]): row for row in make_file().iter_rows(named=True)}
    currencies = set()
    for one in made.explain_rows(data, np.arange(data.n_rows)):
        row = paid[one.id]
        (text,) = [reason.text for reason in one.score.reasons if reason.source == "customer"]
        found = re.match(r"amount (\w+) (\S+), (\S+)× .* \(about (\w+) ([\d.,]+)\)", text)
        if found is None:  # another column, or nothing usual
            assert not text.startswith("amount ")
            continue
        assert found[1] == found[4] == row["ccy"]
        assert parse(found[2]) == row["paid"]
        assert parse(found[3]) * parse(found[5]) == pytest.approx(row["paid"], rel=0.056)
        currencies.add(found[1])
    assert currencies == {"EUR", "SEK", "JPY"}


@cache
def all_causes() -> tuple[Any, list[Any]]:
    data = payments().transactions
    return data, list(chains_detector().score(data, reasons="all").reasons or ())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 11_999))
def test_the_customers_reason_counts_what_the_file_has(place: int) -> None:
    data, reasons = all_causes()
    made = chains_detector()
    (text,) = [one.text for one in reasons[place] if one.source == "customer"]
    own = np.flatnonzero(data.customer_codes == data.customer_codes[place])
    own = own[own < place]  # rows are sorted by customer, then time
    found = re.match(r"amount (\S+), (\S+×) (?:.*) \(about ([\d.,]+)\)", text)
    assert found is not None, text
    amount = data.column(AMOUNT)[place]
    assert parse(found[1]) == amount
    assert parse(found[2][:-1]) * parse(found[3]) == pytest.approx(
        amount, rel=0.056
    )  # two digits, times three
    # known frauds: the labels of the last 32 that count by then
    plan = made.features_.plan
    memory = made.features_.plan.all_chains.intruder.memory_rows
    last, time = own[-memory:], data.times[place]
    known = (np.floor(data.times[last] / STEP) + 1) * STEP + plan.label_delay_s <= time
    frauds = last[known & (np.asarray(data.labels)[last] == 1)]
    counted = re.search(r", (\d+) known frauds?, (?:the first )?(.+?) ago", text)
    assert (0 if counted is None else int(counted[1])) == len(frauds)
    if counted is not None:
        days = 0 if counted[2] == "less than a day" else int(counted[2].split()[0])
        assert abs(days - (time - data.times[frauds].min()) / DAY) < 1
    unusual = re.search(r", unusual like (?:(\d+) of the last (\d+)|the one) before it", text)
    if unusual is not None:
        assert int(unusual[2] or 1) == min(5, len(own))
        assert 1 <= int(unusual[1] or 1) <= min(5, len(own))


def run_command(command: str, monkeypatch: Any, capsys: Any) -> str:
    """What `turncoat` prints."""
    monkeypatch.setattr(sys, "argv", ["turncoat", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return str(capsys.readouterr().out)


def test_the_command_prints_the_same_facts(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """A line of `turncoat explain` has the facts of the header, in the same words."""
    make_file().write_parquet(tmp_path / "data.parquet")
    fitted().save(tmp_path / "detector")
    monkeypatch.chdir(tmp_path)
    shown, as_json = (
        run_command(f"explain detector data.parquet --customer c1 {more}", monkeypatch, capsys)
        for more in ("--last 0", "--json")
    )
    run_command("explain detector data.parquet --top 9 --html top.html", monkeypatch, capsys)
    page = (tmp_path / "top.html").read_text()
    assert len(re.findall(r"\b(?:EUR|SEK|JPY) [\d,.]+", page)) >= 9
    explained = {one["id"]: one for one in json.loads(as_json)["explanations"]}
    data = read(make_file(), SCHEMA)
    rows = np.flatnonzero(data.keys[data.customer_codes] == "c1")
    for one in fitted().explain_rows(data, rows):
        low, high = one.score.interval
        row = make_file().row(int(one.id), named=True)
        about = explained[one.id]
        assert (about["currency"], about["amount"]) == (row["ccy"], row["paid"])
        assert f"\n{one.id}  {'  '.join(one.list_facts())}\n" in shown
        text = f"P(fraud) {one.score.probability:.1%} ({low:.1%} to {high:.1%})"
        assert text in shown
