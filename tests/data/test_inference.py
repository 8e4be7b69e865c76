"""Schema inference: roles, reasons and warnings for undescribed files."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat.data.inference import InferredSchema, infer_schema
from turncoat.data.inference.roles import SAMPLE_ROWS
from turncoat.data.presets import load_ieee_columns, load_preset
from turncoat.data.reading import read
from turncoat.data.schema import FILL_IN, LABEL_DELAY_DAYS, Join, Schema
from turncoat.data.schema_file import find_gaps, load_schema, write_schema
from turncoat.errors import ConfigError, DataError

N = 400
START = datetime(2024, 1, 1)


def rng():
    return np.random.default_rng(11)


def moments(n=N, step=timedelta(hours=7, minutes=13)):
    return [START + step * k for k in range(n)]


def payments(**columns) -> pl.DataFrame:
    """A plain file, with columns added, replaced or (None) removed."""
    draw = rng()
    frame = {
        "customer_id": draw.integers(1000, 1040, N),
        "timestamp": [f"{moment:%Y-%m-%d %H:%M:%S}" for moment in moments()],
        "amount": draw.gamma(2, 20, N).round(2),
        "is_fraud": fraud(),
    }
    return pl.DataFrame(
        {name: values for name, values in {**frame, **columns}.items() if values is not None}
    )


def fraud(n=N):
    return (np.arange(n) % 20 == 3).astype(int)


def names(*values, n=N):
    return [values[k] for k in rng().integers(len(values), size=n)]


def check(found: InferredSchema, origin, **roles) -> None:
    """The roles are right, every column is explained, and the schema reads the file."""
    assert {role: getattr(found.schema, role) for role in roles} == roles
    transactions = read(origin, found.schema)
    assert transactions.n_rows == N
    assert not set(found.reasons) & set(found.ignored)
    assert set(found.reasons) == set(found.schema.columns)


def saved(frame: pl.DataFrame, folder, name="payments.csv"):
    frame.write_csv(folder / name)
    return folder / name


def test_plain_file(tmp_path):
    path = saved(payments(city=names("Oslo", "Bergen", "Narvik"), tx_no=range(N)), tmp_path)
    found = infer_schema(path)
    check(
        found,
        path,
        customer=("customer_id",),
        time="timestamp",
        label="is_fraud",
        id="tx_no",
        amount="amount",
        continuous=("amount",),
        categorical=("city",),
        tracked=("city",),
        time_format=None,
    )
    assert found.warnings == ()
    assert found.ignored == {}
    assert "'customer'" in found.reasons["customer_id"]
    assert "400 rows" in found.reasons["tx_no"]


def test_frames_and_files_give_the_same(tmp_path):
    frame = payments(device=names("a", "b", None), n_items=rng().integers(0, 90, N))
    frame.write_parquet(tmp_path / "payments.parquet")
    assert (
        infer_schema(frame).schema
        == infer_schema(saved(frame, tmp_path)).schema
        == infer_schema(str(tmp_path / "payments.parquet")).schema
    )


def test_other_styles_of_names(tmp_path):
    draw = rng()
    frame = pl.DataFrame(
        {
            "PaymentRef": [f"P{k:05d}" for k in range(N)],
            "cardHolderId": [f"CH{k}" for k in draw.integers(30, size=N)],
            "occurredAt": [f"{moment:%d.%m.%Y %H:%M:%S}" for moment in moments()],
            "txAmountEur": draw.gamma(2, 20, N),
            "MerchantNo": draw.integers(500, 540, N),
            "merchantCategory": names("food", "travel"),
            "EntryMode": names("chip", "swipe", "online"),
            "Chargeback": ["true" if one else "false" for one in fraud()],
        }
    )
    path = saved(frame, tmp_path)
    check(
        infer_schema(path),
        path,
        customer=("cardHolderId",),
        time="occurredAt",
        time_format="%d.%m.%Y %H:%M:%S",
        id="PaymentRef",
        amount="txAmountEur",
        counterparties=("MerchantNo",),
        label="Chargeback",
        categorical=("merchantCategory", "EntryMode"),
        tracked=("MerchantNo", "merchantCategory"),
    )


@pytest.mark.parametrize(
    ("written", "form", "warned"),
    [
        ("%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M", False),
        ("%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M", False),
        ("%d-%b-%Y", "%d-%b-%Y", False),
        ("%d %B %Y %H:%M:%S", "%d %B %Y %H:%M:%S", False),
        ("%m/%d/%y %I:%M %p", "%m/%d/%y %I:%M %p", False),
        ("%d.%m.%Y", "%d.%m.%Y", False),
        ("%Y-%m-%dT%H:%M:%SZ", None, True),
        ("%Y/%m/%d %H:%M", None, False),
        ("%Y-%m-%d", None, False),
    ],
)
def test_written_times(tmp_path, written, form, warned):
    path = saved(payments(timestamp=[moment.strftime(written) for moment in moments()]), tmp_path)
    found = infer_schema(path)
    check(found, path, time="timestamp", time_format=form)
    assert bool(found.warnings) == warned
    day = 86400 if "%H" not in written and "%I" not in written else 60
    expected = sorted(
        moment.timestamp() // day for moment in [m.replace(tzinfo=None) for m in moments()]
    )
    shift = (START - datetime(1970, 1, 1)).total_seconds() // day - expected[0]
    np.testing.assert_array_equal(
        np.sort(read(path, found.schema).times // day), np.array(expected) + shift
    )


def test_day_or_month_first(tmp_path):
    days = [START.replace(month=1 + k % 12, day=1 + (k * 5) % 12) for k in range(N)]
    path = saved(payments(timestamp=[f"{day:%d/%m/%Y}" for day in days]), tmp_path)
    found = infer_schema(path)
    check(found, path, time_format="%d/%m/%Y")
    assert any("day or the month first" in warning for warning in found.warnings)
    ordered = [
        START.replace(day=10 + k // 100) if k < 200 else START.replace(month=2, day=1 + k // 100)
        for k in range(N)
    ]
    found = infer_schema(payments(timestamp=[f"{day:%m/%d/%Y}" for day in ordered]))
    assert found.schema.time_format == "%m/%d/%Y"
    assert not found.warnings


@pytest.mark.parametrize(
    ("factor", "unit"), [(1, "s"), (10**3, "ms"), (10**6, "us"), (10**9, "ns")]
)
def test_epochs(tmp_path, factor, unit):
    seconds = np.array(
        [int((moment - datetime(1970, 1, 1)).total_seconds()) for moment in moments()]
    )
    path = saved(payments(timestamp=seconds * factor), tmp_path)
    found = infer_schema(path)
    check(found, path, time="timestamp", time_unit=unit)
    assert read(path, found.schema).times.min() == pytest.approx(seconds[0])


def test_compact_dates_are_dates_in_every_kind_of_file(tmp_path):
    frame = payments(timestamp=None, booking_date=[int(f"{moment:%Y%m%d}") for moment in moments()])
    path = saved(frame, tmp_path)
    found = infer_schema(path)
    check(found, path, time="booking_date", time_format="%Y%m%d")
    np.testing.assert_array_equal(read(frame, found.schema).times, read(path, found.schema).times)
    assert (
        read(frame, found.schema).times.min()
        == datetime(2024, 1, 1).timestamp() - datetime(1970, 1, 1).timestamp()
    )


def test_rising_ids_are_not_times():
    found = infer_schema(payments(timestamp=None, tx_id=np.arange(N) * 3 + 10**9))
    assert found.schema.time == FILL_IN
    assert (
        infer_schema(payments(timestamp=None, moved=np.arange(N) * 3 + 10**9)).schema.time
        == "moved"
    )


def test_long_numbers_stay_distinct(tmp_path):
    path = saved(
        payments(
            customer_id=None,
            cc_num=[4 * 10**18 + k % 50 for k in range(N)],
            tx_id=[7 * 10**18 + k for k in range(N)],
        ),
        tmp_path,
    )
    check(infer_schema(path), path, customer=("cc_num",), id="tx_id")


def test_columns_of_unusable_types_are_ignored():
    frame = payments(
        is_fraud=None,
        parts=[[1]] * N,
        raw=[b"x"] * N,
        empty=pl.Series([None] * N, dtype=pl.List(pl.Int64)),
    )
    found = infer_schema(frame)
    check(found, frame, continuous=("amount",))
    assert set(found.ignored) == {"parts", "raw", "empty"}
    assert (
        infer_schema([frame, pl.DataFrame({"customer_id": [1000], "empty": [None]})]).schema.time
        == "timestamp"
    )


def test_times_of_frames():
    for values in (
        moments(),
        [moment.date() for moment in moments()],
        pl.Series(moments()).dt.replace_time_zone("Asia/Tokyo"),
    ):
        check(
            infer_schema(frame := payments(timestamp=values)),
            frame,
            time="timestamp",
            time_format=None,
        )


def test_payments_simulated_by_steps():
    draw = rng()
    frame = pl.DataFrame(
        {
            "step": np.arange(N) // 5,
            "type": names("PAYMENT", "TRANSFER", "CASH_OUT"),
            "amount": draw.gamma(2, 20, N),
            "nameOrig": [f"C{k}" for k in draw.integers(90, size=N)],
            "oldbalanceOrg": draw.gamma(2, 20, N),
            "nameDest": [f"M{k}" for k in draw.integers(60, size=N)],
            "isFraud": fraud(),
            "isFlaggedFraud": fraud() * (np.arange(N) > 200),
        }
    )
    found = infer_schema(frame)
    check(
        found,
        frame,
        customer=("nameOrig",),
        time="step",
        time_unit="h",
        counterparties=("nameDest",),
        label="isFraud",
        amount="amount",
    )
    assert found.schema.continuous == ("amount", "oldbalanceOrg")
    assert "fraud" in found.ignored["isFlaggedFraud"]
    assert any("time_unit" in warning for warning in found.warnings)


def test_columns_that_reveal_the_label_are_ignored():
    told = fraud().astype(bool)
    refund = np.where(told, rng().uniform(1, 9, N), 0.0)
    frame = payments(
        case_kind=[["stolen", "cloned"][k % 2] if one else None for k, one in enumerate(told)],
        refund=refund,
        closed_by=["analyst" if one else "nobody" for one in told],
        channel=names("web", "app"),
    )
    found = infer_schema(frame)
    check(found, frame, label="is_fraud", continuous=("amount",), categorical=("channel",))
    assert set(found.ignored) == {"case_kind", "refund", "closed_by"}
    for column, reason in found.ignored.items():
        assert "20 of 20 frauds" in reason
        assert any(repr(column) in warning for warning in found.warnings)


def test_a_good_feature_is_not_a_leak():
    hint = np.where(
        fraud() * (np.arange(N) % 40 == 3), "odd", "usual"
    )  # on fraud only, but on half of them
    assert infer_schema(payments(hint=hint)).schema.categorical == ("hint",)


def test_useless_columns_are_ignored():
    draw = rng()
    frame = payments(
        nothing=pl.Series([None] * N, dtype=pl.String),
        same=["x"] * N,
        remark=[
            f"{k} " + "the customer called about this payment and was told that all is well " * 2
            for k in range(N)
        ],
        session=[f"{k:x}" for k in draw.permutation(10**6)[:N]],
        booked_date=[f"{moment + timedelta(days=2):%Y-%m-%d}" for moment in moments()],
        unix_time=[int((moment - START).total_seconds()) + 10**9 for moment in moments()],
        clock=[f"{moment:%H:%M}" for moment in moments()],
        row=range(7, 7 + N),
        parts=[[1, 2]] * N,
        endless=[float("inf"), *([1.5] * (N - 1))],
        hour_of_day=[moment.hour for moment in moments()],
    )
    found = infer_schema(frame)
    check(found, frame, time="timestamp", continuous=("amount", "hour_of_day"), categorical=())
    assert {
        column: reason.split(":")[0].split(";")[0] for column, reason in found.ignored.items()
    } == {
        "nothing": "no value in 400 rows",
        "same": "the same value in 400 rows",
        "remark": "free text",
        "session": "unique on every row",
        "booked_date": "a second time",
        "unix_time": "a second time",
        "clock": "a time of day",
        "row": "it numbers the rows",
        "parts": "List(Int64) values cannot be used",
        "endless": "some values are infinite",
    }


def test_kinds_of_columns():
    draw = rng()
    frame = payments(
        flag=draw.integers(0, 2, N),
        mcc=draw.integers(4000, 4100, N),
        n_logins=draw.integers(0, 60, N),
        grade=draw.integers(1, 6, N),
        ip=[f"10.0.{a}.{b}" for a, b in draw.integers(0, 30, (N, 2))],
        postcode=[f"0{k}" for k in draw.integers(100, 130, N)],
        online=draw.integers(0, 2, N).astype(bool),
    )
    found = infer_schema(frame)
    check(
        found,
        frame,
        continuous=("amount", "n_logins"),
        categorical=("flag", "mcc", "grade", "postcode", "online"),
        tracked=("mcc", "ip"),
    )
    assert "too many categories" in found.reasons["ip"]


def test_no_label(tmp_path):
    path = saved(payments(is_fraud=None), tmp_path)
    found = infer_schema(path)
    check(found, path, label=None)
    assert any("no label" in warning for warning in found.warnings)


def test_an_unnamed_label_is_used_only_if_unique_and_with_a_warning():
    found = infer_schema(payments(is_fraud=None, outcome=fraud()))
    assert found.schema.label == "outcome"
    assert any("'outcome' was taken as the label" in warning for warning in found.warnings)
    assert (
        infer_schema(payments(is_fraud=None, outcome=fraud(), other=1 - fraud())).schema.label
        is None
    )
    assert infer_schema(payments(is_fraud=None, outcome=1 - fraud())).schema.label is None


@pytest.mark.parametrize(
    ("fraud_word", "genuine_word"),
    [("Y", "N"), ("yes", "no"), ("TRUE", "FALSE"), ("Fraud", "Genuine"), ("ja", "nein")],
)
def test_labels_in_words_need_no_settings(tmp_path, fraud_word, genuine_word):
    words = [fraud_word if one else genuine_word for one in fraud()]
    words[:9] = [""] * 9
    path = saved(payments(is_fraud=words), tmp_path)
    found = infer_schema(path)
    check(found, path, label="is_fraud", fraud_labels=(), genuine_labels=())
    assert np.bincount(read(path, found.schema).labels + 1).tolist() == [9, 372, 19]
    assert any("unknown on 9 of 400 rows" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("4837", "13.1", ""), (("4837",), ("13.1", ""))),
        (("CB", "", ""), (("CB",), ("",))),
        (("confirmed fraud", "no fraud", "no fraud"), (("confirmed fraud",), ("no fraud",))),
        (("bad", "fine", "fine"), (("bad",), ("fine",))),
    ],
)
def test_other_values_of_a_label_are_proposed_with_a_warning(tmp_path, words, expected):
    cells = [words[0] if one else words[1 + (i % 9 > 0)] for i, one in enumerate(fraud())]
    path = saved(payments(is_fraud=None, chargeback_reason=cells), tmp_path)
    found = infer_schema(path)
    check(found, path, label="chargeback_reason", fraud_labels=expected[0])
    assert found.schema.genuine_labels == expected[1]
    assert any("was taken as fraud" in warning for warning in found.warnings)
    assert read(path, found.schema).labels.sum() == fraud().sum()
    write_schema(found, tmp_path / "turncoat.toml")
    assert load_schema(tmp_path / "turncoat.toml") == found.schema


def test_labels_that_cannot_be_read_are_pointed_out():
    found = infer_schema(payments(is_fraud=names("A", "B", "C")))
    assert found.schema.label is None
    assert "is_fraud" in found.ignored
    assert any("'is_fraud' may be the label" in warning for warning in found.warnings)
    assert any(
        "is fraud on most rows" in warning
        for warning in infer_schema(payments(is_fraud=1 - fraud())).warnings
    )
    gaps = pl.Series(fraud()).set(pl.Series(np.arange(N) < 9), None)
    assert any(
        "unknown on 9 of 400 rows" in warning
        for warning in infer_schema(payments(is_fraud=gaps)).warnings
    )


@pytest.mark.parametrize("kind", [pl.Int64, pl.Float64, pl.String])
def test_a_label_of_minus_one_is_unknown(kind):
    marks = pl.Series(np.where(np.arange(N) < 9, -1, fraud())).cast(kind)
    found = infer_schema(payments(is_fraud=marks))
    assert found.schema.label == "is_fraud"
    assert any("'is_fraud' is unknown on 9 of 400 rows" in warning for warning in found.warnings)


def test_a_label_that_is_constant_in_the_sample_is_found_in_the_whole(monkeypatch):
    for module in ("turncoat.data.inference", "turncoat.data.inference.roles"):
        monkeypatch.setattr(f"{module}.SAMPLE_ROWS", 100)
    late = (np.arange(N) > 300).astype(int)
    partly = np.where(np.arange(N) % 7 == 0, -1, late)
    assert infer_schema(payments(is_fraud=partly)).schema.label == "is_fraud"
    found = infer_schema(payments(is_fraud=late, tx_id=range(N)))
    assert found.schema.label == "is_fraud"
    assert found.reasons["tx_id"].startswith("unique in the first 100 rows")
    assert SAMPLE_ROWS == 100_000


def test_customers_that_hardly_repeat_or_are_missing_are_pointed_out():
    assert any(
        "hardly repeats" in warning
        for warning in infer_schema(payments(customer_id=[*range(N - 1), 0])).warnings
    )
    unknown = infer_schema(payments(customer_id=None, party_id=rng().integers(50, size=N)))
    assert unknown.schema.customer == ("party_id",)
    assert any("'party_id' was taken as the customer" in warning for warning in unknown.warnings)
    gaps = infer_schema(
        payments(
            customer_id=pl.Series(rng().integers(50, size=N)).set(pl.Series(np.arange(N) < 3), None)
        )
    )
    assert any("missing on 3 of 400 rows" in warning for warning in gaps.warnings)


def test_traits_of_a_customer_are_not_the_customer():
    frame = payments(
        customer_id=None,
        customer_country=names("NO", "SE"),
        card_type=names("debit", "credit"),
        acct=rng().integers(40, size=N),
    )
    assert infer_schema(frame).schema.customer == ("acct",)


@pytest.mark.parametrize(
    ("missing", "role", "text"),
    [
        ("customer_id", "customer", "No column identifies the customer"),
        ("timestamp", "time", "No column holds the time"),
    ],
)
def test_without_customer_or_time_there_is_a_gap_to_fill_in(tmp_path, missing, role, text):
    frame = payments(**{missing: None, "somewhere": names("a", "b")})
    path = saved(frame, tmp_path)
    found = infer_schema(path)
    assert any(text in warning and FILL_IN in warning for warning in found.warnings)
    toml = tmp_path / "turncoat.toml"
    write_schema(found, toml)
    ((gap, line),) = find_gaps(toml)
    assert gap == role
    with pytest.raises(
        ConfigError, match=rf"turncoat\.toml, line {line}: `{role}` is not filled in\. Put the name"
    ):
        load_schema(toml)
    if role == "customer":
        toml.write_text(toml.read_text().replace(f'"{FILL_IN}"', '"somewhere"'))
        assert read(path, load_schema(toml)).n_customers == 2


def test_customer_and_time_may_both_be_gaps(tmp_path):
    frame = payments(customer_id=None, timestamp=None, somewhere=names("a", "b"))
    write_schema(infer_schema(saved(frame, tmp_path)), tmp_path / "turncoat.toml")
    assert [role for role, _ in find_gaps(tmp_path / "turncoat.toml")] == ["customer", "time"]


def test_date_and_time_of_day_in_two_columns():
    frame = payments(timestamp=None, clock=[f"{moment:%H:%M}" for moment in moments()])
    (warning,) = [text for text in infer_schema(frame).warnings if "'clock'" in text]
    assert "'clock' holds times of day; join it with the date" in warning


@pytest.mark.parametrize(
    "columns",
    [
        ("Transaktionsnummer", "Kundennummer", "Buchungsdatum", "Betrag", "Händler", "Betrug"),
        ("Vorgangs-Nr", "Kartennummer", "Zeitpunkt", "Umsatz", "Haendlernummer", "Rückbelastung"),
        ("no_operation", "numero_carte", "horodatage", "montant", "commerçant", "fraude"),
        ("id_transaccion", "numero_tarjeta", "fecha", "importe", "comercio", "contracargo"),
        ("id_transazione", "codice_cliente", "data_ora", "importo", "esercente", "frode"),
        ("transactienummer", "klantnummer", "tijdstip", "bedrag", "winkel", "fraude"),
        ("transaktions_id", "kundnummer", "tidpunkt", "belopp", "butik", "bedrägeri"),
    ],
    ids=lambda columns: columns[0],
)
def test_names_in_other_languages(tmp_path, columns):
    id, customer, time, amount, shop, label = columns
    frame = payments().rename(
        {"customer_id": customer, "timestamp": time, "amount": amount, "is_fraud": label}
    )
    words = {id: [f"T{k}" for k in range(N)], shop: rng().integers(500, 540, N)}
    balance = {"Kontostand": rng().normal(900, 90, N), "Kundenland": names("DE", "FR")}
    more = pl.DataFrame({**words, **balance})
    path = saved(pl.concat([frame, more], how="horizontal"), tmp_path)
    check(
        infer_schema(path),
        path,
        id=id,
        customer=(customer,),
        time=time,
        amount=amount,
        counterparties=(shop,),
        label=label,
    )


def test_nothing_to_learn_from():
    with pytest.raises(DataError, match="no column is left to learn from"):
        infer_schema(payments(amount=None))


def test_empty_and_damaged_files(tmp_path):
    (tmp_path / "a.csv").write_text("customer_id,timestamp\n")
    with pytest.raises(DataError, match=r"a\.csv: no rows"):
        infer_schema(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes(b"customer_id,timestamp\n1,2\n\xff,3,4\n")
    with pytest.raises(DataError, match=r"b\.csv, row 2: 3 fields, but the header has 2"):
        infer_schema(tmp_path / "b.csv")
    with pytest.raises(ConfigError, match="no file"):
        infer_schema([])


# Known data sets


def ieee(n=30, label=True):
    """Frames shaped like the genuine transaction and identity files."""
    draw = rng()
    tables = {"transaction": {}, "identity": {}}
    for column in load_ieee_columns():
        if column.kind == "id":
            values = np.arange(n) + 2987000
        elif column.dtype == "string":
            values = [f"{column.name}{k}" for k in draw.integers(3, size=n)]
        else:
            values = draw.integers(
                1 if column.kind != "label" else 0, 2 if column.kind == "label" else 50, n
            )
        tables[column.file][column.name] = values
    tables["identity"] = {"TransactionID": np.arange(n) + 2987000, **tables["identity"]}
    if not label:
        del tables["transaction"]["isFraud"]
    return pl.DataFrame(tables["transaction"]), pl.DataFrame(tables["identity"]).head(n // 2)


def test_ieee_files_get_the_preset(tmp_path):
    transactions, identity = ieee()
    first, second = (
        saved(transactions, tmp_path, "train_transaction.csv"),
        saved(identity, tmp_path, "train_identity.csv"),
    )
    for origins in (first, tmp_path, [first, second], [second, first]):
        found = infer_schema(origins)
        assert found.schema == load_preset("ieee-cis")
        assert found.schema.name == "ieee-cis"
        assert not found.ignored
    assert read(first, found.schema).n_rows == 30


def test_ieee_without_label_or_identity(tmp_path):
    transactions, _ = ieee(label=False)
    first = saved(transactions.with_columns(mine=pl.lit(1)), tmp_path, "test_transaction.csv")
    found = infer_schema(first)
    assert found.schema.label is None
    assert found.schema.join is None
    assert found.ignored == {"mine": "it is not part of the ieee-cis schema"}
    assert len(found.warnings) == 2
    assert read(first, found.schema).n_rows == 30


def test_handbook_files_get_the_preset():
    frame = pl.DataFrame(
        {
            "TRANSACTION_ID": [0, 1],
            "TX_DATETIME": ["2018-04-01 00:00:31", "2018-04-01 00:02:10"],
            "CUSTOMER_ID": [596, 4961],
            "TERMINAL_ID": [3156, 3412],
            "TX_AMOUNT": [57.16, 81.51],
            "TX_TIME_SECONDS": [31, 130],
            "TX_FRAUD": [0, 1],
            "TX_FRAUD_SCENARIO": [0, 2],
        }
    )
    found = infer_schema(frame)
    assert found.schema == load_preset("handbook")
    assert set(found.ignored) == {"TX_TIME_SECONDS", "TX_FRAUD_SCENARIO"}
    assert "kind of fraud" in found.ignored["TX_FRAUD_SCENARIO"]


def test_fraud_dataset_benchmark_names():
    draw = rng()
    frame = pl.DataFrame(
        {
            "EVENT_ID": [f"e{k}" for k in range(N)],
            "ENTITY_ID": [f"u{k}" for k in draw.integers(60, size=N)],
            "ENTITY_TYPE": ["user"] * N,
            "EVENT_TIMESTAMP": [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in moments()],
            "LABEL_TIMESTAMP": [
                f"{moment + timedelta(days=30):%Y-%m-%dT%H:%M:%SZ}" for moment in moments()
            ],
            "EVENT_LABEL": fraud(),
            "card_bin": draw.integers(400000, 400050, N),
            "customer_job": names("baker", "tailor"),
            "transaction_amt": draw.gamma(2, 20, N),
        }
    )
    found = infer_schema(frame)
    check(
        found,
        frame,
        customer=("ENTITY_ID",),
        time="EVENT_TIMESTAMP",
        label="EVENT_LABEL",
        id="EVENT_ID",
        amount="transaction_amt",
        categorical=("customer_job",),
    )
    assert found.ignored["LABEL_TIMESTAMP"] == "it holds the time the label became known"
    assert "same value" in found.ignored["ENTITY_TYPE"]


@pytest.mark.parametrize(
    ("column", "rule", "text"),
    [
        (None, "first", "Their rows are equal"),
        ("is_fraud", "last", "Only the label differs"),
        ("amount", "last", "differ in 'amount'"),
    ],
)
def test_repeated_ids_get_a_rule(column, rule, text):
    frame = payments(payment_ref=[f"P{k}" for k in range(N)])
    again = frame[:20]
    if column is not None:
        again = again.with_columns(pl.col(column).add(1).mod(2).cast(frame[column].dtype))
    found = infer_schema(pl.concat([frame, again]))
    assert (found.schema.id, found.schema.repeated_ids) == ("payment_ref", rule)
    assert any("20 repeats" in warning and text in warning for warning in found.warnings)
    assert read(pl.concat([frame, again]), found.schema).n_rows == N


# Several files


def test_a_second_file_is_joined_by_its_key(tmp_path):
    frame = payments(tx_id=range(N))
    devices = pl.DataFrame(
        {"tx_id": np.arange(0, N, 2), "device": names("phone", "laptop", n=N // 2)}
    )
    first, second = (
        saved(frame, tmp_path, "may_transactions.csv"),
        saved(devices, tmp_path, "may_devices.csv"),
    )
    found = infer_schema([first, second])
    check(
        found,
        first,
        id="tx_id",
        join=Join("{prefix}devices", "tx_id", ("device",)),
        tracked=("device",),
    )
    assert infer_schema([second, first]).schema == found.schema
    assert np.count_nonzero(read(first, found.schema).categories["device"].codes >= 0) == N // 2
    devices.write_csv(tmp_path / "gadgets.csv")
    assert infer_schema([first, tmp_path / "gadgets.csv"]).schema.join == Join(
        "gadgets", "tx_id", ("device",)
    )


def test_a_second_file_about_customers(tmp_path):
    people = pl.DataFrame(
        {"customer_id": np.arange(1000, 1040), "region": names("north", "south", n=40)}
    )
    first, second = saved(payments(), tmp_path, "a.csv"), saved(people, tmp_path, "b.csv")
    found = infer_schema([first, second])
    check(found, first, join=Join("b", "customer_id", ("region",)), categorical=("region",))
    in_memory = infer_schema([payments(), people])
    assert any("joined=" in warning for warning in in_memory.warnings)
    assert read(payments(), in_memory.schema, joined=people).n_rows == N


def test_files_with_equal_or_unrelated_columns(tmp_path):
    first = saved(payments(), tmp_path, "a.csv")
    second = saved(payments(amount=rng().gamma(3, 20, N).round(3)), tmp_path, "b.csv")
    found = infer_schema([first, second])
    assert found.schema == infer_schema(first).schema
    assert found.findings == (f"{first} and 1 more file: CSV, {found.schema.csv}",)
    with pytest.raises(ConfigError, match=r"a\.csv and .*c\.csv share no column"):
        infer_schema([first, saved(pl.DataFrame({"x": [1, 2]}), tmp_path, "c.csv")])
    with pytest.raises(ConfigError, match="3 files with different columns"):
        infer_schema([first, second, tmp_path / "c.csv"])


# turncoat.toml


def test_written_schemas_are_readable_and_load_again(tmp_path):
    frame = payments(
        tx_id=range(N),
        city=names("Oslo", "Bergen"),
        same=["x"] * N,
        note=fraud(),
        **{f"number_{k}": rng().normal(size=N) for k in range(40)},
    )
    found = infer_schema(frame)
    write_schema(found, tmp_path / "turncoat.toml")
    text = (tmp_path / "turncoat.toml").read_text()
    assert load_schema(tmp_path / "turncoat.toml") == found.schema
    assert '#   "same": the same value in 400 rows' in text
    assert "# Check: 'note' was ignored because it reveals the label" in text.replace("\n#   ", " ")
    assert '"city",  # categories' in text or "(categories, 2 values" in text
    assert max(map(len, text.splitlines())) <= 140
    assert [path.name for path in tmp_path.iterdir()] == ["turncoat.toml"]


@pytest.mark.parametrize("name", ["ieee-cis", "handbook", "ieee-cis:card1+addr1+D1"])
def test_presets_come_back(tmp_path, name):
    write_schema(load_preset(name), tmp_path / "a.toml")
    assert load_schema(tmp_path / "a.toml") == load_preset(name)
    assert load_schema(tmp_path / "a.toml").name == name
    assert max(map(len, (tmp_path / "a.toml").read_text().splitlines())) <= 110


def test_existing_files_are_not_overwritten_by_default(tmp_path):
    path = tmp_path / "turncoat.toml"
    path.write_text("precious")
    with pytest.raises(ConfigError, match=r"turncoat\.toml: already exists"):
        write_schema(load_preset("handbook"), path)
    assert path.read_text() == "precious"
    write_schema(load_preset("handbook"), path, overwrite=True)
    assert load_schema(path) == load_preset("handbook")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_schema(load_preset("handbook"), tmp_path / "nowhere" / "turncoat.toml")


odd_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(st.lists(odd_names, min_size=5, max_size=9, unique=True), odd_names, odd_names)
@settings(deadline=None, max_examples=150)
def test_any_column_names_load_again(tmp_path_factory, columns, reason, form):
    time, customer, key, *others = columns
    schema = Schema(
        customer=(customer,),
        time=time,
        continuous=(others[0],),
        categorical=tuple(others[1:]),
        amount=others[0],
        tracked=tuple(others[1:2]),
        time_format=form,
        join=Join("x" + form.replace("/", "-").replace("\\", "-"), key, tuple(others)),
    )
    path = tmp_path_factory.mktemp("odd") / "turncoat.toml"
    write_schema(
        InferredSchema(
            schema, dict.fromkeys(columns[::2], reason), {key: reason, reason: key}, (reason,)
        ),
        path,
    )
    assert load_schema(path) == schema
    write_schema(schema, path, overwrite=True)
    assert load_schema(path) == schema
    assert load_schema(path) != replace(schema, time_format=form + "x")


def test_a_word_inside_another_known_word_does_not_match() -> None:
    payments = pl.DataFrame(
        {
            "AccountHolder": [f"acc-{i % 60}" for i in range(600)],
            "ts": range(1_700_000_000, 1_700_000_600),
            "Value": [float(i % 37) + 0.5 for i in range(600)],
        }
    )
    assert infer_schema(payments).schema.customer == ("AccountHolder",)


def test_open_last_month_is_not_taken_for_genuine(tmp_path) -> None:
    labels = ["Y" if place % 40 == 0 else "N" for place in range(N)]
    is_open = [moment > moments()[-1] - timedelta(days=30) for moment in moments()]
    known_early = ["Y" if label == "Y" else "" for label in labels]
    pairs = zip(is_open, known_early, labels, strict=True)
    chargeback = [early if is_late else label for is_late, early, label in pairs]
    path = saved(payments(is_fraud=None, chargeback=chargeback), tmp_path)
    found = infer_schema(path)
    assert found.schema.label_maturity_days == pytest.approx(30 - LABEL_DELAY_DAYS, abs=1)
    assert any("`label_maturity_days`" in warning for warning in found.warnings)
    write_schema(found, tmp_path / "turncoat.toml")
    assert load_schema(tmp_path / "turncoat.toml") == found.schema
    closed = infer_schema(payments(is_fraud=None, chargeback=labels))
    assert closed.schema.label_maturity_days == 0
    assert not any("label_maturity_days" in warning for warning in closed.warnings)


def test_what_hides_open_labels_is_said() -> None:
    chargeback = ["" if place >= N - 200 else "NY"[place % 40 == 0] for place in range(N)]
    customers = ["" if place == 5 else f"c{place % 40}" for place in range(N)]
    found = infer_schema(payments(is_fraud=None, chargeback=chargeback, customer_id=customers))
    (told,) = (one for one in found.warnings if "could not be checked" in one)
    assert "row 6" in told


def test_rows_without_a_label_among_others_are_not_an_open_month() -> None:
    chargeback = ["Y" if k % 40 == 0 else ("" if k % 3 else "N") for k in range(N)]
    found = infer_schema(payments(is_fraud=None, chargeback=chargeback))
    assert found.schema.label == "chargeback"
    assert found.schema.label_maturity_days == 0


def test_files_with_different_decimals_are_noticed(tmp_path) -> None:
    amounts = [f"{place % 90}.{place % 100:02d}" for place in range(N)]
    rows = payments(amount=amounts, kind=names("a", "b"))
    comma = rows.with_columns(pl.col("amount").str.replace(".", ",", literal=True))
    rows.write_csv(tmp_path / "a.csv", separator=";")
    assert not any("Decimals" in one for one in infer_schema(tmp_path).warnings)
    comma.write_csv(tmp_path / "b.csv", separator=";")
    (told,) = (one for one in infer_schema(tmp_path).warnings if "Decimals" in one)
    assert "a.csv has '.'" in told
    assert "b.csv has ','" in told


def test_a_truncated_file_is_a_data_error(tmp_path) -> None:
    path = tmp_path / "payments.csv.gz"
    path.write_bytes(gzip.compress(payments().write_csv().encode())[:-2000])
    with pytest.raises(DataError, match=re.escape("payments.csv.gz")):
        infer_schema(path)


def test_compound_names_of_ids_are_known_and_others_are_asked_about(tmp_path) -> None:
    ids = [f"TX{place - place % 2 if place < 8 else place:06d}" for place in range(N)]
    for name in ("Transaktionsref", "Buchungsnr", "PaymentKey"):
        found = infer_schema(saved(payments(**{name: ids}), tmp_path)).schema
        assert (found.id, found.repeated_ids) == (name, "last")
    asked = infer_schema(saved(payments(Vermerk=ids), tmp_path))
    assert asked.schema.id is None
    (told,) = (one for one in asked.warnings if "Vermerk" in one)
    assert 'set `id = "Vermerk"`' in told
