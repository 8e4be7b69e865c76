"""Reading: equal transactions from every kind of source, and helpful errors."""

from __future__ import annotations

import gzip
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat.data.csv_files import CsvFormat
from turncoat.data.presets import load_ieee_columns
from turncoat.data.reading import read, read_for_scoring
from turncoat.data.schema import Join, Schema
from turncoat.errors import ConfigError, DataError

SCHEMA = Schema(
    customer=("card",),
    time="when",
    continuous=("amount", "score"),
    categorical=("kind",),
    amount="amount",
    label="fraud",
    id="number",
    counterparties=("shop",),
    tracked=("shop",),
)
FRAME = pl.DataFrame(
    {
        "number": [5, 3, 9, 1, 7, 2],
        "card": [20, 7, 20, 7, 100, 20],
        "when": [
            "2024-03-02 10:00:00",
            "2024-03-01 08:30:00",
            "2024-03-02 10:00:00",
            "2024-03-01 08:30:00",
            "2024-03-05",
            "2024-02-28T23:59:59",
        ],
        "amount": [10.5, 3.0, 7.25, 1e3, 0.0, 2.0],
        "score": [None, 0.5, 0.25, None, -1.0, 2.0],
        "kind": ["visa", None, "debit", "visa", "amex", "débit"],
        "fraud": [0, 1, 0, 0, 1, 0],
        "shop": [404, 404, None, 11, 11, 404],
    }
)


def content(transactions):
    """Everything that transactions say, as plain values."""
    columns = (*transactions.numbers, *transactions.categories)
    return {
        "keys": transactions.keys.tolist(),
        "offsets": transactions.offsets.tolist(),
        "times": transactions.times.tolist(),
        "ids": transactions.ids.tolist(),
        "labels": None if transactions.labels is None else transactions.labels.tolist(),
        **{
            name: [
                None if value != value else value for value in transactions.column(name).tolist()
            ]
            for name in columns
        },
    }


EXPECTED = {
    "keys": ["7", "20", "100"],
    "offsets": [0, 2, 5, 6],
    "times": [1709281800.0, 1709281800.0, 1709164799.0, 1709373600.0, 1709373600.0, 1709596800.0],
    "ids": [1, 3, 2, 5, 9, 7],
    "labels": [0, 1, 0, 0, 0, 1],
    "amount": [1e3, 3.0, 2.0, 10.5, 7.25, 0.0],
    "score": [None, 0.5, 2.0, None, 0.25, -1.0],
    "card": ["7", "7", "20", "20", "20", "100"],
    "shop": ["11", "404", "404", "404", None, "11"],
    "kind": ["visa", None, "débit", "visa", "debit", "amex"],
}


def text(frame: pl.DataFrame) -> bytes:
    return frame.write_csv().encode()


def stored(folder, raw, name="payments.csv"):
    path = folder / name
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return path


def csv(*rows, header="card,when,amount,kind,fraud,number"):
    return "\n".join([header, *rows]) + "\n"


CSV_SCHEMA = Schema(
    customer=("card",),
    time="when",
    continuous=("amount",),
    categorical=("kind",),
    label="fraud",
    id="number",
)
GOOD = ("7,10,2.5,visa,0,1", "8,11,3.5,debit,1,2")


# The same from every source


def test_every_source_gives_the_same(tmp_path):
    FRAME.write_parquet(tmp_path / "one.parquet")
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        FRAME[2 * part : 2 * part + 2].write_parquet(folder / f"part-{part}.parquet")
    sources = {
        "csv": stored(tmp_path, text(FRAME)),
        "text path": str(tmp_path / "payments.csv"),
        "capitals": stored(tmp_path, text(FRAME), "PAYMENTS2.CSV"),
        "brackets": stored(tmp_path, text(FRAME), "pay[1]*.csv"),
        "gz": stored(tmp_path, gzip.compress(text(FRAME)), "payments.csv.gz"),
        "crlf": stored(tmp_path, text(FRAME).replace(b"\n", b"\r\n"), "crlf.csv"),
        "bom": stored(tmp_path, b"\xef\xbb\xbf" + text(FRAME), "bom.csv"),
        "no last line end": stored(tmp_path, text(FRAME).rstrip(b"\n"), "open.csv"),
        "all quoted": stored(
            tmp_path, FRAME.write_csv(quote_style="always").encode(), "quoted.csv"
        ),
        "parquet": tmp_path / "one.parquet",
        "folder": folder,
        "polars": FRAME,
        "lazy": FRAME.lazy(),
        "pandas": FRAME.to_pandas(),
        "pandas nullable": FRAME.to_pandas().convert_dtypes(),
        "arrow": FRAME.to_arrow(),
        "batch": FRAME.to_arrow().to_batches()[0],
        "categorical": FRAME.with_columns(
            pl.col("kind", "when").cast(pl.Categorical),
            pl.col("fraud").cast(pl.String).cast(pl.Enum(["0", "1"])),
        ),
        "truths": FRAME.with_columns(pl.col("fraud").cast(pl.Boolean)),
        "text truths": stored(
            tmp_path,
            text(
                FRAME.with_columns(
                    pl.Series("fraud", ["FALSE", "TRUE", "False", "false", "true", "0.0"])
                )
            ),
            "t.csv",
        ),
        "floats": FRAME.with_columns(pl.col("card", "shop", "fraud").cast(pl.Float64)),
        "small types": FRAME.with_columns(
            pl.col("card", "shop", "number", "fraud").cast(pl.UInt16)
        ),
        "text ids": FRAME.with_columns(pl.col("number", "card").cast(pl.String)),
        "decimals": FRAME.with_columns(
            pl.col("amount").cast(pl.Decimal(12, 2)), pl.col("card").cast(pl.Decimal(12, 2))
        ),
        "quoted line break": FRAME.with_columns(unused=pl.lit("a\nb, c")).write_csv(
            tmp_path / "break.csv"
        )
        or tmp_path / "break.csv",
    }
    for name, source in sources.items():
        assert content(read(source, SCHEMA)) == EXPECTED, name


def test_dates_of_every_type():
    moments = [datetime(2024, 3, 1, 12), datetime(2024, 7, 1, 12)]
    frame = pl.DataFrame({"card": [1, 1], "when": moments, "amount": [1.0, 2.0]})
    schema = Schema(customer=("card",), time="when", continuous=("amount",))
    noon = 1709294400.0
    summer = noon + 122 * 86400
    for kind in ("ms", "us", "ns"):
        assert read(
            frame.with_columns(pl.col("when").cast(pl.Datetime(kind))), schema
        ).times.tolist() == [noon, summer]
    berlin = frame.with_columns(pl.col("when").dt.replace_time_zone("Europe/Berlin"))
    assert read(berlin, schema).times.tolist() == [noon - 3600, summer - 7200]
    assert read(frame.with_columns(pl.col("when").cast(pl.Date)), schema).times.tolist() == [
        noon - 43200,
        summer - 43200,
    ]
    assert read(
        frame.with_columns(pl.Series("when", [date(1969, 12, 31), date(1970, 1, 2)])), schema
    ).times.tolist() == [-86400.0, 86400.0]
    offsets = frame.with_columns(
        pl.Series("when", ["2024-03-01T12:00:00+01:00", "2024-07-01T12:00:00+02:00"])
    )
    assert read(offsets, schema).times.tolist() == [noon - 3600, summer - 7200]
    fractions = frame.with_columns(
        pl.Series("when", ["2024-03-01 12:00:00", "2024-07-01 12:00:00.25"])
    )
    assert read(fractions, schema).times.tolist() == [noon, summer + 0.25]


@pytest.mark.parametrize(("unit", "factor"), [("s", 1), ("ms", 1e-3), ("h", 3600), ("d", 86400)])
def test_numeric_times_have_a_unit(unit, factor):
    schema = Schema(customer=("card",), time="when", continuous=("amount",), time_unit=unit)
    for values in ([-3, 40], [-3.0, 40.0], ["-3", "40"], [Decimal(-3), Decimal(40)]):
        frame = pl.DataFrame({"card": [1, 1], "when": values, "amount": [1.0, 2.0]})
        np.testing.assert_allclose(read(frame, schema).times, [-3 * factor, 40 * factor])


@pytest.mark.parametrize(
    ("form", "value", "seconds"),
    [
        ("%d/%m/%Y %H:%M", "03/01/2024 10:05", 1704276300),
        ("%m/%d/%y %I:%M %p", "01/03/24 10:05 AM", 1704276300),
        ("%d.%m.%Y", "03.01.2024", 1704240000),
        ("%Y%m%d", "20240103", 1704240000),
        ("%Y%m%d", 20240103, 1704240000),
    ],
)
def test_times_in_a_format(form, value, seconds):
    frame = pl.DataFrame({"card": [1], "when": [value], "amount": [1.0]})
    schema = Schema(customer=("card",), time="when", continuous=("amount",), time_format=form)
    assert read(frame, schema).times.tolist() == [seconds]


def test_only_columns_in_use_are_read(tmp_path):
    raw = csv(
        *(row + f",{junk}" for row, junk in zip(GOOD, ("12", "not a number"), strict=True)),
        header="card,when,amount,kind,fraud,number,junk",
    )
    transactions = read(stored(tmp_path, raw), CSV_SCHEMA)
    assert set(transactions.categories) | set(transactions.numbers) == {"card", "kind", "amount"}
    with pytest.raises(DataError, match="column 'junk' was not read"):
        transactions.column("junk")
    mixed = pd.DataFrame({"card": [1, 2], "when": [1, 2], "amount": [1.0, 2.0], "junk": [1, "a"]})
    assert read(mixed, Schema(customer=("card",), time="when", continuous=("amount",))).n_rows == 2
    twice = stored(
        tmp_path,
        csv(*(f"{row},1,2" for row in GOOD), header="card,when,amount,kind,fraud,number,x,x"),
    )
    assert read(twice, CSV_SCHEMA).n_rows == 2


def test_pandas_columns_of_mixed_types_are_categories():
    mixed = pd.DataFrame({"card": [1, "a", 2**70], "when": [1, 2, 3], "kind": ["x", 5.0, None]})
    transactions = read(mixed, Schema(customer=("card",), time="when", categorical=("kind",)))
    assert transactions.keys.tolist() == ["1", str(2**70), "a"]
    assert transactions.column("kind").tolist() == ["x", None, "5"]


def test_missing_numbers_have_several_spellings(tmp_path):
    rows = [
        f"7,{k},{value},visa,0,{k}"
        for k, value in enumerate(("", "NA", "NaN", "nan", "1e3", "-0.5"))
    ]
    transactions = read(stored(tmp_path, csv(*rows)), CSV_SCHEMA)
    np.testing.assert_array_equal(
        transactions.column("amount"), [np.nan, np.nan, np.nan, np.nan, 1000.0, -0.5]
    )


def test_columns_without_any_value(tmp_path):
    path = stored(tmp_path, csv("7,1,,,0,1", "7,2,,,1,2"))
    frame = pl.DataFrame(
        {
            "card": [7, 7],
            "when": [1, 2],
            "amount": [None] * 2,
            "kind": [None] * 2,
            "fraud": [0, 1],
            "number": [1, 2],
        }
    )
    for source in (path, frame):
        transactions = read(source, CSV_SCHEMA)
        assert np.isnan(transactions.column("amount")).all()
        assert transactions.column("kind").tolist() == [None, None]


def test_schemas_without_numbers_or_without_categories():
    assert read(FRAME, replace(SCHEMA, continuous=(), amount=None)).numbers == {}
    assert set(
        read(FRAME, replace(SCHEMA, categorical=(), tracked=(), counterparties=())).categories
    ) == {"card"}


# One order


@given(st.permutations(range(FRAME.height)))
@settings(deadline=None, max_examples=40)
def test_the_order_of_rows_does_not_matter(order):
    assert content(read(FRAME[list(order)], SCHEMA)) == EXPECTED


@given(st.permutations(range(6)))
@settings(deadline=None, max_examples=40)
def test_the_order_of_rows_does_not_matter_for_odd_keys(order):
    """Customers that are equal as numbers, keys with bars in them, and ids that are text."""
    frame = pl.DataFrame(
        {
            "a": ["7", "07", "7.0", "x|", "x", "x"],
            "b": ["1", "1", "1", "y", "|y", None],
            "when": [5, 5, 5, 5, 5, 5],
            "amount": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            "number": ["007", "10", "7", "b", "a", "9"],
        }
    )
    for customer in (("a",), ("a", "b")):
        schema = Schema(customer=customer, time="when", continuous=("amount",), id="number")
        assert content(read(frame[list(order)], schema)) == content(read(frame, schema))
    assert len(set(read(frame, schema).keys)) == read(frame, schema).n_customers == 5


def test_ids_are_numbers_where_all_are_and_text_otherwise():
    def ids(*values):
        frame = pl.DataFrame(
            {
                "card": [1] * len(values),
                "when": [0] * len(values),
                "amount": [1.0] * len(values),
                "number": values,
            }
        )
        return read(
            frame, Schema(customer=("card",), time="when", continuous=("amount",), id="number")
        ).ids.tolist()

    assert ids("10", "9", "-1") == [-1, 9, 10]
    assert ids("7", "007") == ["007", "7"]
    assert ids(2**64 - 1, 5) == ids(str(2**64 - 1), "5") == ["18446744073709551615", "5"]


def test_without_ids_ties_keep_their_order():
    schema = replace(SCHEMA, id=None)
    assert read(FRAME, schema).ids.tolist() == [1, 3, 5, 0, 2, 4]


def test_taking_some_transactions():
    some = read(FRAME, SCHEMA).take([4, 0, 0])
    assert some.ids.tolist() == [1, 9]
    assert some.keys.tolist() == ["7", "20"]
    assert some.column("amount").tolist() == [1e3, 7.25]
    for rows in ([], [6], [-1]):
        with pytest.raises(DataError, match="the frame: "):
            some.take(rows)


# IEEE-CIS


def ieee(n=12):
    """Frames shaped as the genuine files; the identity file has every third transaction."""
    draw = np.random.default_rng(3)
    numbers = np.arange(n) + 2987000
    tables = {"transaction": {}, "identity": {"TransactionID": numbers}}
    for column in load_ieee_columns():
        if column.kind == "id":
            values = numbers
        elif column.kind == "label":
            values = np.arange(n) % 2
        elif column.dtype == "string":
            values = [f"{column.name}={k}" for k in draw.integers(3, size=n)]
        else:
            values = draw.integers(1, 50, n).astype(column.dtype)
        tables[column.file][column.name] = values
    tables["transaction"] |= {
        "TransactionDT": 86400 * np.arange(n),
        "D1": np.arange(n) % 4,
        "card1": 9500 + np.arange(n) % 2,
        "addr1": [315.0] * n,
    }
    return pl.DataFrame(tables["transaction"]), pl.DataFrame(tables["identity"])[::3]


def dashed(identity):
    return identity.rename(
        {name: name.replace("_", "-") for name in identity.columns if name.startswith("id_")}
    )


def test_ieee_files_are_joined(tmp_path):
    transactions, identity = ieee()
    (tmp_path / "plain").mkdir()
    (tmp_path / "dashed").mkdir()
    for folder, second in (("plain", identity), ("dashed", dashed(identity))):
        transactions.write_csv(tmp_path / folder / "train_transaction.csv")
        second.sample(fraction=1.0, shuffle=True, seed=1).write_csv(
            tmp_path / folder / "train_identity.csv"
        )
    found = read(tmp_path / "plain" / "train_transaction.csv", "ieee-cis")
    partner = {number: row for row, number in enumerate(identity["TransactionID"])}
    rows = [partner.get(number) for number in found.ids.tolist()]
    assert sum(row is not None for row in rows) == 4
    assert found.column("id_31").tolist() == [
        None if row is None else identity["id_31"][row] for row in rows
    ]
    np.testing.assert_array_equal(
        found.column("id_01"), [np.nan if row is None else identity["id_01"][row] for row in rows]
    )
    everything = content(found)
    transactions.write_parquet(tmp_path / "train_transaction.parquet")
    for other in (
        read(tmp_path / "plain", "ieee-cis"),
        read(tmp_path / "dashed", "ieee-cis"),
        read(transactions, "ieee-cis", joined=dashed(identity)),
        read(
            transactions,
            "ieee-cis",
            joined=identity.with_columns(pl.col("TransactionID").cast(pl.Float64)),
        ),
        read(
            transactions.with_columns(pl.col("TransactionID").cast(pl.String)),
            "ieee-cis",
            joined=identity.to_pandas(),
        ),
        read(
            tmp_path / "train_transaction.parquet",
            "ieee-cis",
            joined=tmp_path / "dashed" / "train_identity.csv",
        ),
        read(transactions.join(identity, on="TransactionID", how="left"), "ieee-cis"),
    ):
        assert content(other) == everything


def test_ieee_finer_customers():
    transactions, identity = ieee()
    found = read(transactions, "ieee-cis:card1+addr1+D1", joined=identity)
    began = np.arange(12) - np.arange(12) % 4
    expected = {
        f"{card}|315|{day}" for card, day in zip(9500 + np.arange(12) % 2, began, strict=True)
    }
    assert set(found.keys.tolist()) == expected
    assert found.n_customers == 6
    unknown = read(
        transactions.with_columns(D1=pl.lit(None, pl.Float64)),
        "ieee-cis:card1+addr1+D1",
        joined=identity,
    )
    assert set(unknown.keys.tolist()) == {"9500|315|", "9501|315|"}


def test_refusals_of_the_second_table(tmp_path):
    transactions, identity = ieee()
    path = stored(tmp_path, text(transactions), "train_transaction.csv")
    with pytest.raises(
        DataError, match=r"train_identity\.csv .* is not in the same folder.*`joined=`"
    ):
        read(path, "ieee-cis")
    with pytest.raises(
        DataError, match=r"the frame: the columns of the second table are missing\..*`joined=`"
    ):
        read(transactions, "ieee-cis")
    stored(tmp_path, text(pl.concat([identity, identity[1:2]])), "train_identity.csv")
    with pytest.raises(
        DataError,
        match=r"train_identity\.csv, column 'TransactionID', row 5: 2987003 is already on row 2",
    ):
        read(path, "ieee-cis")
    with pytest.raises(DataError, match="column 'TransactionID', row 1: the key is missing"):
        read(path, "ieee-cis", joined=identity.with_columns(TransactionID=pl.lit(None, pl.Int64)))
    stored(tmp_path, text(identity.with_columns(id_02=pl.lit("many"))), "train_identity.csv")
    with pytest.raises(
        DataError, match=r"train_identity\.csv, column 'id_02', row 1: 'many' is not a number"
    ):
        read(path, "ieee-cis")
    stored(tmp_path, text(identity.drop("id_02")), "train_identity.csv")
    with pytest.raises(
        DataError, match=r"train_identity\.csv: the file lacks 'id_02', named by schema 'ieee-cis'"
    ):
        read(path, "ieee-cis")
    with pytest.raises(ConfigError, match=r"joins no second table\. Omit `joined`"):
        read(FRAME, SCHEMA, joined=FRAME)


def test_a_second_table_about_customers():
    people = pl.DataFrame({"card": [7, 20], "region": ["north", "south"]})
    schema = replace(
        SCHEMA, categorical=("kind", "region"), join=Join("people", "card", ("region",))
    )
    assert read(FRAME, schema, joined=people).column("region").tolist() == ["north"] * 2 + [
        "south"
    ] * 3 + [None]
    by_shop = replace(
        SCHEMA,
        counterparties=(),
        tracked=(),
        categorical=("region",),
        join=Join("shops", "shop", ("region",)),
    )
    shops = pl.DataFrame({"shop": [404], "region": ["west"]})
    found = read(FRAME, by_shop, joined=shops)
    assert found.column("region").tolist() == [None, "west", "west", "west", None, None]
    assert "shop" not in found.categories


# Refusals


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (
            ("7,10,2.5,visa,0,1", "8,11,much,debit,1,2"),
            r"column 'amount', row 2: 'much' is not a number\. Write plain numbers",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,-inf,debit,1,2"),
            r"column 'amount', row 2: the value is -inf; it must be finite\. Correct it",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,,2.5,debit,1,2"),
            r"column 'when', row 2: the time is missing.*Correct or remove",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5,debit,1,2", "8,soon,2.5,debit,1,3"),
            r"column 'when', row 3: 'soon' is not a time.*Correct it",
        ),
        (
            ("7,2024-01-01,2.5,visa,0,1", "8,2024-13-01,2.5,debit,1,2"),
            r"column 'when', row 2: '2024-13-01' is not .*`time_format`",
        ),
        (
            ("7,03/04/2024,2.5,visa,0,1",),
            r"column 'when', row 1: '03/04/2024' is not .* begins with its year.*`time_format`",
        ),
        (("7,inf,2.5,visa,0,1",), r"column 'when', row 1: 'inf' is not a time"),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5,debit,2,2"),
            r"column 'fraud', row 2: the label is '2'; it must be 0, 1, a word .*or empty",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5,debit,1,1"),
            r"column 'number', row 2: id 1 is already on row 1 of .*; 1 rows repeat an id\. Set",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5,debit,1,"),
            r"column 'number', row 2: the transaction id is missing\. Every",
        ),
        (
            ("7,10,2.5,visa,0,1", ",11,2.5,debit,1,2"),
            r"column 'card', row 2: the customer is missing\. Name it, or remove",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5,vi\0sa,1,2"),
            r"column 'kind', row 2: 'vi\\x00sa' has a NUL character.*write it again",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5"),
            r"row 2: 3 fields, but the header has 6\. .*write the file again",
        ),
        (
            ("7,10,2.5,visa,0,1", "8,11,2.5,Smith, John,1,2", "9,10,2.5,visa,0,3"),
            r"row 2: 7 fields, but the header has 6\. Put values",
        ),
        (
            ("7,10,2.5,'visa',0,1", '8,11,2.5,"a, b",1,2', '"a\nb",9,10,"visa",0,3,4'),
            "row 3: 7 fields",
        ),
        (
            ("7,10,2.5,visa,0,1", "", "9,10,2.5,visa,0,3"),
            "column 'when', row 2: the time is missing",
        ),
    ],
)
@pytest.mark.parametrize("name", ["payments.csv", "payments.csv.gz"])
def test_wrong_cells_are_named(tmp_path, rows, told, name):
    raw = csv(*rows).encode()
    path = stored(tmp_path, gzip.compress(raw) if name.endswith("gz") else raw, name)
    with pytest.raises(DataError, match=told) as caught:
        read(path, CSV_SCHEMA)
    assert str(caught.value).startswith(str(path))


def test_bytes_that_are_not_text_are_named(tmp_path):
    path = stored(tmp_path, csv(*GOOD).encode().replace(b"debit", b"d\xe9bit"))
    with pytest.raises(
        DataError,
        match=r"payments\.csv, column 'kind', row 2: b'd\\xe9bit' is not UTF-8 text\. Save it",
    ):
        read(path, CSV_SCHEMA)
    stored(tmp_path, csv(*GOOD).encode().replace(b"kind", b"k\xefnd"))
    with pytest.raises(DataError, match=r"payments\.csv, header: b'k\\xefnd' is not UTF-8 text"):
        read(path, replace(CSV_SCHEMA, categorical=()))
    latin = replace(CSV_SCHEMA, csv=CsvFormat(encoding="windows-1252"))
    stored(tmp_path, csv(*GOOD).encode().replace(b"debit", b"d\xe9bit"))
    assert read(path, latin).column("kind").tolist() == ["visa", "débit"]


@pytest.mark.parametrize(
    ("name", "raw", "told"),
    [
        ("a.csv", b"", r"the file is empty\. Check how it was written"),
        ("a.parquet", b"", "the file is empty"),
        ("a.csv", b"\n\n", "cannot be read"),
        ("a.csv", csv().encode(), r"no rows\. Check how the file was written"),
        ("a.csv", csv().encode().rstrip(), "no rows"),
        (
            "a.csv",
            csv(*(f"{row},5" for row in GOOD)).replace("number", "number,card").encode(),
            r"the header has 'card' twice\. Rename or remove one",
        ),
        (
            "a.csv",
            csv(*GOOD).replace("kind", "Kind").encode(),
            r"lacks 'kind', named by schema 'custom'.*It has card, when, amount, Kind.*Correct",
        ),
        ("a.parquet", b"PAR1 and then nothing of use", "cannot be read: .*damaged; write it again"),
        (
            "a.csv.gz",
            gzip.compress(csv(*(f"7,{k},2,{k * k},0,{k}" for k in range(3000))).encode())[:-900],
            "cannot be read: .*write it again",
        ),
        ("a.xlsx", b"PK", r"a spreadsheet, .* Save it as CSV UTF-8"),
        ("a.json", b"{}", r"unknown file type\. Known are CSV \(\.csv, \.tsv or \.txt, also"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, raw, told):
    with pytest.raises(DataError, match=told) as caught:
        read(stored(tmp_path, raw, name), CSV_SCHEMA)
    assert name in str(caught.value)


def test_truncated_parquet(tmp_path):
    FRAME.write_parquet(tmp_path / "whole.parquet")
    raw = (tmp_path / "whole.parquet").read_bytes()
    for kept in (3, len(raw) // 2, len(raw) - 1):
        with pytest.raises(
            DataError, match=r"cut\.parquet: cannot be read: .* may be damaged; write it again"
        ):
            read(stored(tmp_path, raw[:kept], "cut.parquet"), SCHEMA)


def test_paths_that_lead_nowhere(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.csv: no such file or folder\. Check the path"):
        read(tmp_path / "nowhere.csv", SCHEMA)
    with pytest.raises(DataError, match="found nothing readable"):
        read(tmp_path, SCHEMA)
    stored(tmp_path, text(FRAME), "a.csv")
    assert read(tmp_path, SCHEMA).n_rows == 6
    stored(tmp_path, text(FRAME).replace(b"number", b"no"), "b.csv")
    with pytest.raises(DataError, match=r"b\.csv: the file lacks 'number', named by schema"):
        read(tmp_path, SCHEMA)
    stored(tmp_path, text(FRAME[:3]), "transactions.csv")
    assert read(tmp_path, SCHEMA).n_rows == 3
    stored(tmp_path, b"", "transactions.csv.gz")
    with pytest.raises(
        DataError,
        match=r"found both transactions\.csv and transactions\.csv\.gz\. Give the path of one",
    ):
        read(tmp_path, SCHEMA)
    with pytest.raises(ConfigError, match=r"cannot read a dict\. Give a path or a polars"):
        read({"card": [1]}, SCHEMA)


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        (
            "amount",
            ["1"] * 6,
            r"column 'amount': values are String, such as \['1'\]; .* must be numeric\. Correct",
        ),
        ("amount", [[1]] * 6, r"column 'amount': values are List"),
        ("when", [True] * 6, r"column 'when': Boolean values are not times\. Name another column"),
        (
            "fraud",
            [date(2024, 1, 1)] * 6,
            r"column 'fraud': Date values are not labels\. Labels are 0, 1, words, or -1",
        ),
        (
            "fraud",
            [0.5] * 6,
            r"column 'fraud', row 1: the label is 0\.5; it must be 0, 1, a word .*or empty",
        ),
        (
            "number",
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            r"column 'number': Float64 values are not ids\. Make them whole numbers or text",
        ),
        (
            "kind",
            [[1]] * 6,
            r"column 'kind': List\(Int64\) values cannot be categories\. Leave the column out",
        ),
        ("kind", [b"x"] * 6, r"column 'kind': Binary values cannot be categories"),
        ("card", [None] * 6, r"column 'card', row 1: the customer is missing"),
    ],
)
def test_wrong_types_are_named(column, values, told):
    with pytest.raises(DataError, match="the frame, " + told):
        read(FRAME.with_columns(pl.Series(column, values)), SCHEMA)


def test_pandas_columns_that_are_there_twice():
    frame = pd.concat([FRAME.to_pandas(), FRAME.to_pandas()[["card"]]], axis=1)
    with pytest.raises(DataError, match=r"columns 'card' occur twice\. Rename or drop"):
        read(frame, SCHEMA)


def test_labels_of_one_kind_are_refused_where_both_are_needed():
    genuine = read(FRAME.with_columns(fraud=pl.lit(0)), SCHEMA)
    with pytest.raises(
        DataError,
        match=r"column 'fraud': found 0 known frauds, 6 known genuine and 0 unlabelled rows, but "
        r"calibration needs one of each\. Choose",
    ):
        genuine.require_labels("calibration")
    with pytest.raises(
        DataError, match=r"calibration needs labels, but no label column was read\. Set `label`"
    ):
        read(FRAME, replace(SCHEMA, label=None)).require_labels("calibration")
    assert read(FRAME, SCHEMA).require_labels("calibration").tolist() == EXPECTED["labels"]


def test_repr(tmp_path):
    shown = repr(read(stored(tmp_path, text(FRAME)), SCHEMA))
    assert "6 of 3 customers over 5.0 days, 33.33% fraud" in shown
    assert "payments.csv" in shown


def test_a_file_to_be_scored_needs_no_labels(tmp_path: Path) -> None:
    schema = Schema(customer=("who",), time="when", continuous=("paid",), label="fraud")
    path = tmp_path / "new.csv"
    path.write_text("who,when,paid\na,1,2.5\n")
    with pytest.raises(DataError, match="'fraud'"):
        read(path, schema)
    transactions = read(path, schema, with_labels=False)
    assert transactions.labels is None
    assert transactions.schema == schema


@pytest.mark.parametrize(
    "cells",
    [
        ("1", "", "0"),
        ("True", "", "false"),
        ("", "", ""),
        ("1.0", "", "0.0"),
        ("1", "-1", "0"),
        ("-1.0", "-1.0", "1.0"),
    ],
    ids=str,
)
def test_a_file_may_have_some_labels(tmp_path: Path, cells: tuple[str, ...]) -> None:
    schema = Schema(
        customer=("who",),
        time="when",
        continuous=("paid",),
        label="fraud",
        counterparties=("shop",),
    )
    path = tmp_path / "some.csv"
    path.write_text(
        "who,when,paid,shop,fraud\n"
        + "".join(f"a,{i},2.5,s,{cell}\n" for i, cell in enumerate(cells))
    )
    expected = [{"1": 1, "t": 1, "0": 0, "f": 0}.get(cell[:1].lower(), -1) for cell in cells]
    for found in (read(path, schema), read_for_scoring(path, schema)):
        assert found.labels is not None
        assert found.labels.tolist() == expected
    middle = found.take([1])
    with pytest.raises(
        DataError,
        match=r"some\.csv, column 'fraud': the test part has 0 known frauds, 0 known genuine and 1 "
        r"unlabelled rows, but judging needs one of each\. Choose other rows, or wait for labels",
    ):
        middle.require_labels("judging", "test")
    if {0, 1} <= {*expected}:
        assert found.require_labels("judging", "test").tolist() == expected
    path.write_text("who,when,paid,shop,fraud\na,1,2.5,s,maybe\na,2,2.5,s,\n")
    with pytest.raises(DataError, match="'maybe'"):
        read_for_scoring(path, schema)


def test_times_in_the_wrong_unit_are_refused(tmp_path: Path) -> None:
    schema = Schema(customer=("who",), time="when", continuous=("paid",))
    path = tmp_path / "ms.csv"
    path.write_text("who,when,paid\na,1704110400000,2.5\na,1714110400000,2.5\n")
    with pytest.raises(
        DataError,
        match=r"'1704110400000', in units of 's', is 54,000 years from zero. Set `time_unit`",
    ):
        read(path, schema)
    assert read(path, replace(schema, time_unit="ms")).times[1] == 1714110400


def test_refusals_in_the_joined_file_name_its_own_rows_and_spelling(tmp_path: Path) -> None:
    schema = Schema(
        customer="who", time="at", continuous=("x_1",), id="id", join=Join("ident", "id", ("x_1",))
    )
    trans, ident = tmp_path / "trans.csv", tmp_path / "ident.csv"
    trans.write_text("who,at,id\n1,1,1\n1,2,2\n1,3,3\n")
    ident.write_text("id,x_1\n3,inf\n1,2\n")
    with pytest.raises(DataError, match=r"ident\.csv, column 'x_1', row 1: the value is inf"):
        read(trans, schema)
    ident.write_text("id,x-1\n3,abc\n1,2\n")
    with pytest.raises(DataError, match=r"ident\.csv, column 'x-1', row 1: 'abc' is not a number"):
        read(trans, schema)
    ident.write_text("id,x_1\n3.0,7\n1.0,2\n")
    np.testing.assert_array_equal(read(trans, schema).column("x_1"), [2, np.nan, 7])
    ident.write_text("id,x_1\n8,7\n9,2\n")
    with pytest.raises(DataError, match="no key of this file"):
        read(trans, schema)


def test_a_column_is_not_confused_with_its_twin_with_a_dash(tmp_path: Path) -> None:
    path = tmp_path / "h.csv"
    path.write_text("who,at,a-b\n1,1,2\n1,2,3\n")
    with pytest.raises(DataError, match="lacks 'a_b'"):
        read(path, Schema(customer="who", time="at", continuous=("a_b", "a-b")))


def test_an_endless_name_is_refused_not_stored() -> None:
    people = [f"c{i}" for i in range(999)] + ["z" * 200_000]
    frame = pl.DataFrame({"who": people, "at": range(1000), "x": [1.0] * 1000})
    with pytest.raises(DataError, match=r"column 'who', row 1000: 'zz.*200,000 characters"):
        read(frame, Schema(customer="who", time="at", continuous=("x",)))


@pytest.mark.parametrize(("rule", "paid"), [("first", [1.0, 2.0, 4.0]), ("last", [2.0, 3.0, 5.0])])
def test_one_row_of_a_repeated_id_counts(tmp_path: Path, rule: str, paid: list[float]) -> None:
    schema = Schema(customer="who", time="at", continuous="paid", id="ref", repeated_ids=rule)
    months = [tmp_path / "jan.csv", tmp_path / "feb.csv"]
    months[0].write_text("who,at,paid,ref\na,1,1,x\na,2,2,y\n")
    months[1].write_text("who,at,paid,ref\na,1,3,x\nb,5,4,z\nb,6,5,z\n")
    found = read(months, schema)
    assert sorted(found.column("paid")) == paid
    assert found.n_file_rows == 5
    assert found.notes == (
        f"2 rows that repeat an id were left out; the {rule} row of each counts, "
        f"with {months[0]} as the first file and {months[1]} as the last",
    )
    assert read(months[:1], schema).notes == ()
    refusing = replace(schema, repeated_ids="refuse")
    with pytest.raises(
        DataError,
        match=r"feb\.csv, column 'ref', row 1: id 'x' is already on row 1 of .*jan\.csv; 2 rows "
        r'repeat an id\. Set `repeated_ids = "first"` or "last"',
    ):
        read(months, refusing)
    with pytest.raises(ConfigError, match="repeated_ids is 'all'; it must be one of refuse"):
        replace(schema, repeated_ids="all")


def test_numbered_files_of_a_folder_are_read_in_their_order(tmp_path: Path) -> None:
    schema = Schema(customer="who", time="at", continuous="paid", id="ref", repeated_ids="last")
    for number in (10, 9, 1):
        (tmp_path / f"export_{number}.csv").write_text(f"who,at,paid,ref\na,1,{number},x\n")
    assert read(tmp_path, schema).column("paid").tolist() == [10]
