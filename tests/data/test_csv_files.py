"""CSV files in every shape of an export, one or many, read as the same transactions."""

from __future__ import annotations

import csv
import gzip
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turncoat.data.csv_files import SEPARATORS, THOUSANDS, CsvFormat, open_csv
from turncoat.data.inference import infer_schema
from turncoat.data.parsing import parse_row
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.data.schema_file import load_schema, write_schema
from turncoat.errors import ConfigError, DataError

SCHEMA = Schema(
    customer=("card",), time="at", continuous=("paid", "fee"), categorical=("shop",), amount="paid"
)
HEADER = ["card", "at", "paid", "fee", "shop"]
ROWS = [
    ("7", "2024-03-01 10:00:00", 1234.5, 0.25, "Bäckerei"),
    ("7", "2024-03-02 11:00:00", 12.75, None, 'a "b"; c, d|e\tf'),
    ("8", "2024-03-03 12:00:00", 2500000.0, -3.5, "two\nlines"),
    ("8", "2024-03-04 13:00:00", 0.5, 1000.0, "it's"),
]


def write_number(value: float | None, format: CsvFormat) -> str:
    """A number as an export in this format has it."""
    text = "" if value is None else f"{value:,.2f}"
    return text.translate(str.maketrans({",": format.thousands, ".": format.decimal}))


def write_rows(format: CsvFormat, rows=ROWS, header=HEADER) -> str:
    """The rows as text in a format."""
    out = io.StringIO()
    options = {"delimiter": format.separator, "lineterminator": "\n"}
    if format.quote:
        writer = csv.writer(out, quotechar=format.quote, **options)
    else:
        writer = csv.writer(out, quoting=csv.QUOTE_NONE, **options)
    writer.writerow(header)
    for row in rows:
        writer.writerow([*row[:2], *(write_number(value, format) for value in row[2:4]), row[4]])
    return out.getvalue()


def store(path: Path, text: str, encoding: str = "utf-8") -> Path:
    raw = text.encode(encoding)
    if path.suffix == ".gz":
        raw = gzip.compress(raw)
    elif path.suffix == ".zst":
        raw = pa.compress(raw, codec="zstd", asbytes=True)
    path.write_bytes(raw)
    return path


def values(transactions):
    columns = (*transactions.numbers, *transactions.categories)
    cells = {name: transactions.column(name).tolist() for name in columns}
    return {"times": transactions.times.tolist(), **cells}


formats = st.builds(
    CsvFormat,
    separator=st.sampled_from(list(SEPARATORS)),
    decimal=st.just("."),
    quote=st.sampled_from(['"', "'", ""]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "windows-1252"]),
)
marks = st.tuples(st.sampled_from(",."), st.sampled_from(THOUSANDS)).filter(lambda m: m[0] != m[1])
texts = st.text(
    st.characters(codec="cp1252", exclude_categories=["Cc"], include_characters="\n;,|\t\"'"),
    min_size=1,
    max_size=8,
).filter(lambda text: text.strip())
cents = st.integers(-(10**9), 10**9).map(lambda n: n / 100)


@given(formats, marks, st.lists(st.tuples(cents, texts), min_size=1, max_size=6), st.data())
@settings(deadline=None, max_examples=150)
def test_any_format_reads_back(tmp_path_factory, format, mark, cells, data):
    format = replace(format, decimal=mark[0], thousands=mark[1])
    rows = [("7", f"2024-01-01 00:00:{i:02d}", x, None, f"x{t}") for i, (x, t) in enumerate(cells)]
    if not format.quote:  # then no value may have a separator or a line break
        assume(format.separator not in mark)
        rows = [(*row[:4], re.sub(r"[;,|\t\n\"']", "", row[4])) for row in rows]
    if format.encoding == "windows-1252" and mark[1] == "\u202f":
        format = replace(format, thousands="\u00a0")  # the other is not in Windows-1252
    suffix = data.draw(st.sampled_from([".csv", ".tsv", ".txt", ".csv.gz", ".csv.zst"]))
    path = tmp_path_factory.mktemp("any") / f"payments{suffix}"
    store(path, write_rows(format, rows), format.encoding)
    expected = replace(format, encoding=format.encoding.replace("-sig", ""))
    found = read(path, replace(SCHEMA, csv=expected))
    assert found.column("paid").tolist() == [row[2] for row in rows]
    assert np.isnan(found.column("fee")).all()
    assert found.column("shop").tolist() == [row[4] for row in rows]
    text = write_number(rows[0][2], format)
    live = parse_row(found.schema, {"card": "7", "at": rows[0][1], "paid": text})
    assert live.numbers[0] == rows[0][2]


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize(
    "marks", [(".", ""), (",", ""), (",", "."), (".", ","), (",", " "), (".", "'"), (",", "\u202f")]
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "windows-1252"])
def test_init_detects_the_format(tmp_path, separator, marks, encoding):
    format = CsvFormat(separator, *marks, encoding=encoding)
    if "\u202f" in marks and encoding == "windows-1252":
        return
    rows = [(f"C{i % 9}", row[1], row[2] + i, row[3], row[4]) for i in range(40) for row in ROWS]
    header = ["customer_id", "timestamp", "amount", "fee", "shop"]
    path = store(tmp_path / "payments.csv", write_rows(format, rows, header), encoding)
    found = infer_schema(path)
    assert found.schema.csv == format
    assert found.findings == (f"{path}: CSV, {format}",)
    write_schema(found, tmp_path / "turncoat.toml")
    again = load_schema(tmp_path / "turncoat.toml")
    assert (again, again.csv) == (found.schema, format)
    assert {"amount", "fee"} <= set(again.continuous)
    assert sum(read(path, again).column("amount")) == sum(row[2] for row in rows)


def test_the_header_decides_about_the_separator_of_each_file(tmp_path):
    schema = replace(SCHEMA, csv=CsvFormat(";"))
    expected = values(read(store(tmp_path / "a.csv", write_rows(CsvFormat(";"))), schema))
    for separator in SEPARATORS:
        path = store(tmp_path / "b.csv", write_rows(CsvFormat(separator)))
        assert str(values(read(path, schema))) == str(expected)
    assert open_csv(tmp_path / "b.csv", CsvFormat()).format.separator == "|"


def test_wrong_numbers_name_the_format(tmp_path):
    text = write_rows(CsvFormat(";", ",", ".")).replace("12,75", "12.75")
    path = store(tmp_path / "a.csv", text)
    schema = replace(SCHEMA, csv=CsvFormat(";", ",", "."))
    with pytest.raises(
        DataError,
        match=r"a\.csv, column 'paid', row 2: '12\.75' is not a number\. .* written as 1\.234,56",
    ):
        read(path, schema)
    with pytest.raises(DataError, match=r"column 'paid': '12\.75' is not a number"):
        parse_row(schema, {"card": "7", "at": 1, "paid": "12.75"})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"separator": "x"}, r"csv\.separator is 'x'; it must be a comma"),
        ({"decimal": ";"}, r"csv\.decimal is ';'; it must be a point or a comma"),
        ({"decimal": ",", "thousands": ","}, "are both ','"),
        ({"encoding": "morse"}, r"csv\.encoding is 'morse'; it must name one"),
        ({"colour": "red"}, "csv may have the texts separator"),
        ({"separator": 5}, "csv may have the texts separator"),
    ],
)
def test_wrong_formats_are_refused(settings, problem):
    table = {"customer": ["card"], "time": "at", "continuous": ["paid"], "csv": settings}
    with pytest.raises(ConfigError, match=problem):
        Schema.from_dict(table, source="turncoat.toml")


# Several files


def months(folder: Path, **changes: str) -> list[Path]:
    """The rows in two files."""
    first, second = write_rows(CsvFormat(), ROWS[:1]), write_rows(CsvFormat(), ROWS[1:])
    for old, new in changes.items():
        second = second.replace(old, new)
    folder.mkdir(exist_ok=True)
    return [store(folder / "jan.csv", first), store(folder / "feb.csv", second)]


def test_several_files_and_folders_are_one_table(tmp_path):
    whole = values(read(store(tmp_path / "all.csv", write_rows(CsvFormat())), SCHEMA))
    files = months(tmp_path / "exports")
    (tmp_path / "exports" / "readme.txt").write_text("These are payments.")
    found = read(files, SCHEMA)
    assert found.source == f"{files[0]} and 1 more file"
    assert str(values(found)) == str(whole)
    assert str(values(read(tmp_path / "exports", SCHEMA))) == str(whole)
    moved = pl.read_csv(files[1], infer_schema=False).select(reversed(HEADER))
    moved.write_csv(files[1], separator=";")
    store(tmp_path / "exports" / "feb.csv.zst", files[1].read_text())
    files[1].unlink()
    assert str(values(read(tmp_path / "exports", SCHEMA))) == str(whole)


def test_errors_name_the_file_and_its_own_row(tmp_path):
    with pytest.raises(DataError, match=r"feb\.csv, column 'paid', row 2: 'much' is not a number"):
        read(months(tmp_path, **{"2500000.00": "much"}), SCHEMA)
    with pytest.raises(DataError, match=r"feb\.csv, column 'at', row 1: 'soon' is not a time"):
        read(months(tmp_path, **{"2024-03-02 11:00:00": "soon"}), SCHEMA)
    with pytest.raises(DataError, match=r"feb\.csv, row 3: 6 fields, but the header has 5"):
        read(months(tmp_path, **{"it's": "it's,"}), SCHEMA)
    with pytest.raises(
        DataError, match=r"feb\.csv: the file lacks 'paid', named by .*card, at, Pa"
    ):
        read(months(tmp_path, paid="Paid"), SCHEMA)
    with pytest.raises(DataError, match=r"jan\.csv and .*feb\.csv have no column in common"):
        read([*months(tmp_path)[:1], store(tmp_path / "feb.csv", "a,b\n1,2\n")], SCHEMA)


def test_parquet_files_of_different_types_are_named(tmp_path):
    frame = pl.DataFrame({"card": [1, 2], "at": [1, 2], "paid": [1.0, 2.0], "fee": [1, 2]})
    frame = frame.with_columns(shop=pl.lit("s"))
    frame.write_parquet(tmp_path / "a.parquet")
    frame.with_columns(pl.col("fee").cast(pl.Float32)).write_parquet(tmp_path / "b.parquet")
    assert read(tmp_path, SCHEMA).column("fee").tolist() == [1.0, 1.0, 2.0, 2.0]
    frame.with_columns(pl.col("at").cast(pl.String)).write_parquet(tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet: column 'at' is String, but Int64 in .*a\.p"):
        read(tmp_path, SCHEMA)
    store(tmp_path / "c.csv", write_rows(CsvFormat()))
    with pytest.raises(DataError, match=r"c\.csv and .*a\.parquet are of different kinds"):
        read(tmp_path, SCHEMA)


def test_init_names_files_with_other_columns(tmp_path):
    header = ["customer_id", "timestamp", "amount", "fee", "shop"]
    rows = [(f"C{i % 9}", row[1], row[2] + i, row[3], row[4]) for i in range(40) for row in ROWS]
    first = store(tmp_path / "jan.csv", write_rows(CsvFormat(";", ","), rows, header))
    header[3] = "tip"
    second = store(tmp_path / "feb.csv", write_rows(CsvFormat(";", ","), rows, header))
    for found in (infer_schema([first, second]), infer_schema(tmp_path)):
        assert "fee" not in found.schema.columns
        (difference,) = [text for text in found.warnings if "compared with" in text]
        assert all(word in difference for word in ("jan.csv", "feb.csv", "'fee'", "'tip'"))
    write_schema(found, tmp_path / "turncoat.toml", data=[first, second])
    assert 'file = ["jan.csv", "feb.csv"]' in (tmp_path / "turncoat.toml").read_text()
    assert read([first, second], found.schema).n_rows == 2 * len(rows)


@pytest.mark.parametrize(
    ("texts", "is_warned"), [(["1.234", "999", "22.500"], True), (["1.234", "0.5"], False)]
)
def test_points_that_may_separate_thousands_are_pointed_out(tmp_path, texts, is_warned):
    rows = [f"C{i % 9};2024-01-{1 + i % 28:02d};{texts[i % len(texts)]}" for i in range(200)]
    path = store(tmp_path / "a.csv", "\n".join(["customer_id;booked;amount", *rows]) + "\n")
    warnings = infer_schema(path).warnings
    assert any("three digits after every point" in text for text in warnings) == is_warned
