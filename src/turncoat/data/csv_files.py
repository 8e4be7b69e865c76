"""CSV files as they are exported: separators, decimal commas, quotes, encodings, compression."""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from turncoat.errors import ConfigError, DataError

NOT_A_NUMBER = "NA"  # what R writes for a missing number
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
THOUSANDS = ("", ".", ",", "'", " ", "\u00a0", "\u202f", "\u2019")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_NUMBER_FORMATS = (  # decimal mark and thousands separator, likely ones first
    *((".", ""), (",", ""), (".", ","), (",", ".")),
    *((decimal, gap) for gap in THOUSANDS[3:] for decimal in (",", ".")),
)
_HEAD_BYTES = 1 << 16
_COPY_BYTES = 1 << 22
_MAX_HEADER_BYTES = 1 << 24
_N_SAMPLE_LINES = 20
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # how Python escapes bytes that are not UTF-8
_HAS_MARK = r"[0-9][., '\u00a0\u202f\u2019][0-9]"
_SCIENTIFIC = r"([eE][+-]?[0-9]+)?"


@dataclass(frozen=True)
class CsvFormat:
    """How the values of CSV files are written.

    Another separator, or a byte order mark, is noticed in each file: `separator` and `encoding`
    say what to expect where both are possible.
    """

    separator: str = ","
    decimal: str = "."
    thousands: str = ""
    quote: str = '"'  # empty if quotes have no meaning
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        """Validate the settings."""
        rules = {
            "separator": (tuple(SEPARATORS), "a comma, a semicolon, a tab or a bar"),
            "decimal": ((".", ","), "a point or a comma"),
            "thousands": (THOUSANDS, "a point, a comma, an apostrophe, a space or empty"),
            "quote": (('"', "'", ""), "a double quote, a single quote or empty"),
        }
        for name, (allowed, rule) in rules.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"csv.{name} is {value!r}; it must be {rule}")
        if self.thousands == self.decimal:
            raise ConfigError(f"csv.thousands and csv.decimal are both {self.decimal!r}")
        try:
            "".encode(self.encoding)
        except (LookupError, TypeError) as problem:
            rule = "it must name one, such as utf-8, utf-16 or windows-1252"
            raise ConfigError(f"csv.encoding is {self.encoding!r}; {rule}") from problem

    def __str__(self) -> str:
        """The format in words."""
        marks = {".": "decimal points", ",": "decimal commas"}
        texts = [f"separated by {SEPARATORS[self.separator]}", marks[self.decimal]]
        texts += [f"{self.thousands!r} between thousands"] * bool(self.thousands)
        texts += [f"quotes {self.quote!r}" if self.quote else "no quotes"] * (self.quote != '"')
        return ", ".join([*texts, self.encoding.upper()])

    @property
    def has_plain_numbers(self) -> bool:
        """Whether numbers are written as in 1234.56."""
        return self.decimal == "." and not self.thousands

    @cached_property
    def _number(self) -> str:
        """The pattern of a number in this format."""
        decimal, whole = re.escape(self.decimal), r"[0-9]+"
        if self.thousands:
            whole += rf"|[1-9][0-9]{{0,2}}({re.escape(self.thousands)}[0-9]{{3}})+"
        return rf"^[+-]?(({whole})({decimal}[0-9]*)?|{decimal}[0-9]+){_SCIENTIFIC}$|^(nan|NaN)$"

    def parse_numbers(self, texts: pl.Series) -> pl.Series | None:
        """Texts as float64, null for missing ones; None if some are not numbers."""
        numbers = pl.select(self.normalize_numbers(pl.lit(texts))).to_series()
        parsed = numbers.cast(pl.Float64, strict=False)
        return parsed if parsed.null_count() == numbers.null_count() else None

    def normalize_numbers(self, texts: pl.Expr) -> pl.Expr:
        """Numbers in this format as in 1234.56; empty texts and NA are null.

        Texts that are no numbers in this format become ones that are none in any.
        """
        stripped = texts.str.strip_chars()
        plain = stripped.str.replace_all(self.thousands, "", literal=True)
        plain = plain.str.replace(self.decimal, ".", literal=True)
        is_missing = (stripped == "") | (stripped == NOT_A_NUMBER)
        number = pl.when(stripped.str.contains(self._number)).then(plain)
        wrong = pl.lit("not a number: ") + texts
        return pl.when(is_missing.not_()).then(number.otherwise(wrong))

    def normalize_number(self, text: str) -> str | None:
        """`normalize_numbers` of one text; None if it is no number in this format."""
        stripped = text.strip()
        if re.fullmatch(self._number, stripped) is None:
            return None
        return stripped.replace(self.thousands, "").replace(self.decimal, ".", 1)


PLAIN = CsvFormat()


@dataclass(frozen=True)
class CsvFile:
    """One CSV file, and how it is written."""

    path: Path
    format: CsvFormat  # with this file's own separator and encoding

    @property
    def name(self) -> str:
        """The path, for messages."""
        return str(self.path)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The header; a second column of the same name gets a suffix."""
        return tuple(self.scan().collect_schema().names())

    @property
    def _is_utf8(self) -> bool:
        return codecs.lookup(self.format.encoding).name == "utf-8"

    @cached_property
    def _content(self) -> Path:
        """The file, or a temporary copy in UTF-8 if it has another encoding.

        The copy is on disk, since the file may be larger than memory. It lives as long as this.
        """
        if self._is_utf8:
            return self.path
        handle, name = tempfile.mkstemp(prefix="turncoat-", suffix=".csv")
        weakref.finalize(self, Path(name).unlink, missing_ok=True)
        stream, encoding = _open_bytes(self.path), self.format.encoding
        try:
            with (
                os.fdopen(handle, "wb") as copy,
                pa.transcoding_input_stream(stream, encoding, "utf-8") as text,
            ):
                block = bytes(text.read(_COPY_BYTES)).removeprefix(codecs.BOM_UTF8)
                while block:
                    copy.write(block)
                    block = bytes(text.read(_COPY_BYTES))
        except UnicodeError as problem:
            found = f"not {encoding} text: {problem}"
            raise DataError(f"{self.name}: {found}. Save it as UTF-8") from problem
        return Path(name)

    def scan(self, **options: Any) -> pl.LazyFrame:
        """All values as text, unless the options say otherwise."""
        own = {"separator": self.format.separator, "quote_char": self.format.quote or None}
        return pl.scan_csv(self._content, infer_schema=False, glob=False, **(own | options))

    def scan_numbers(self, columns: Sequence[str]) -> pl.LazyFrame:
        """The table with these columns as numbers, NaN if missing."""
        if self.format.has_plain_numbers:
            kinds = dict.fromkeys(columns, pl.Float64)
            nulls = dict.fromkeys(columns, NOT_A_NUMBER)
            table = self.scan(schema_overrides=kinds, null_values=nulls)
        else:
            numbers = (self.format.normalize_numbers(pl.col(name)) for name in columns)
            table = self.scan().with_columns(each.cast(pl.Float64) for each in numbers)
        return table.with_columns(pl.col(columns).fill_null(float("nan")))  # in parallel

    def check_lines(self) -> None:
        """Refuse a file with a line that has more or fewer fields than the header."""
        whole_lines = {"has_header": False, "separator": "\x1f", "quote_char": None}
        lines = self.scan(new_columns=["line"], **whole_lines)
        line, quote = pl.col("line"), self.format.quote
        unquoted = line.str.replace_all(f"{quote}[^{quote}]*{quote}", "") if quote else line
        n_fields = unquoted.str.count_matches(self.format.separator, literal=True) + 1
        is_odd = (n_fields != len(self.columns)) & (line.str.strip_chars() != "")
        # A quoted line break also looks odd, so look again, slowly.
        if lines.filter(is_odd).head(1).collect().height and (damage := self.find_damage()):
            raise damage

    def is_utf8(self) -> bool:
        """Whether the whole file is UTF-8 text."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        with _open_bytes(self.path) as stream:
            try:
                while block := bytes(stream.read(_HEAD_BYTES)):
                    decoder.decode(block)
                decoder.decode(b"", final=True)
            except UnicodeDecodeError:
                return False
            except (OSError, EOFError):
                return True  # a compressed file is damaged, which is another problem
        return True

    def find_damage(self) -> DataError | None:
        """The first row that is not UTF-8, or not as wide as the header, as an error."""
        try:
            for number, row in enumerate(self._read_rows()):
                if number and row and len(row) != len(self.columns):
                    found = f"{len(row)} fields, but the header has {len(self.columns)}"
                    what = SEPARATORS[self.format.separator]
                    remedy = f"Put values with {what} in quotes, or write the file again"
                    return DataError(f"{self.name}, row {number}: {found}. {remedy}")
                for cell, column in zip(row, self.columns, strict=False):
                    if not cell.isascii() and _NOT_UTF8.search(cell):
                        where = f"column {column!r}, row {number}" if number else "header"
                        found = f"{cell.encode(errors='surrogateescape')!r} is not UTF-8 text"
                        remedy = 'Save it as UTF-8, or set csv.encoding, often "windows-1252"'
                        return DataError(f"{self.name}, {where}: {found}. {remedy}")
        except (csv.Error, OSError, EOFError):
            pass
        return None

    def _read_rows(self) -> Iterator[list[str]]:
        raw = _open_bytes(self._content)
        options = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": ""}
        with io.TextIOWrapper(raw, **options) as lines:  # type: ignore[arg-type]
            yield from _split_rows(lines, self.format)

    def find_wrong_number(self, columns: Sequence[str]) -> DataError | None:
        """The first cell of these columns that is not a number, as an error."""
        for column in columns:
            cell = pl.col(column)
            is_plain = self.format.has_plain_numbers
            known = pl.when(cell != NOT_A_NUMBER).then(cell)
            number = known if is_plain else self.format.normalize_numbers(cell)
            is_wrong = number.is_not_null() & number.cast(pl.Float64, strict=False).is_null()
            cells = self.scan().select(cell).with_row_index("row")
            try:
                found = cells.filter(is_wrong).head(1).collect()
            except (pl.exceptions.PolarsError, OSError):
                return None
            for row, value in found.rows():
                problem = f"column {column!r}, row {row + 1}: {value!r} is not a number"
                remedy = "Write plain numbers such as 1234.56, or make the column categorical"
                if not is_plain:
                    example = f"1{self.format.thousands}234{self.format.decimal}56"
                    remedy = f"The schema's `csv` says that numbers are written as {example}"
                return DataError(f"{self.name}, {problem}. {remedy}")
        return None


def detect_number_format(table: pl.DataFrame, format: CsvFormat) -> CsvFormat:
    """The format with the decimal mark and thousands separator that make most texts numbers."""
    texts = [column for column in table if column.dtype == pl.String]
    marked = [column for column in texts if column.str.contains(_HAS_MARK).any()]
    best, most = format, 0
    for decimal, thousands in _NUMBER_FORMATS:
        tried = replace(format, decimal=decimal, thousands=thousands)
        numeric = [column for column in marked if tried.parse_numbers(column) is not None]
        # 1,234 may be a thousand and 12 345 678 a telephone: decimals must show what they are.
        # Where commas are decimal marks, semicolons separate columns.
        evidence = rf"{re.escape(decimal)}(\d{{1,2}}|\d{{4,}})$"
        expected = (",", "") if format.separator == ";" else (".", ",")
        if (decimal, thousands) not in ((".", ""), expected):
            numeric = [column for column in numeric if column.str.contains(evidence).any()]
        if len(numeric) > most:
            best, most = tried, len(numeric)
    return best


def open_csv(path: Path, expected: CsvFormat) -> CsvFile:
    """A CSV file with its own separator and encoding, found in its first lines."""
    head = _read_head(path)
    encoding = next((e for mark, e in _BYTE_ORDER_MARKS if head.startswith(mark)), None)
    if encoding is None:
        encoding = _guess_utf16(head) or expected.encoding
        if encoding == "utf-16":  # expected, but this file has no mark
            encoding = "utf-8"
    text = head.decode(encoding, errors="replace").removeprefix("\ufeff")
    separator = _find_separator(text, expected)
    return CsvFile(path, replace(expected, separator=separator, encoding=encoding))


def _open_bytes(path: Path) -> pa.NativeFile:
    """The file's bytes, decompressed if its name ends in .gz or .zst."""
    return pa.input_stream(str(path), compression="detect")


def _read_head(path: Path) -> bytes:
    """The first bytes, at least up to the first end of a line."""
    with _open_bytes(path) as stream:
        head = bytes(stream.read(_HEAD_BYTES))
        while b"\n" not in head and len(head) < _MAX_HEADER_BYTES:
            more = bytes(stream.read(len(head)))
            if not more:
                break
            head += more
    return head


def _guess_utf16(head: bytes) -> str | None:
    """UTF-16 without a byte order mark: every second byte of plain letters is zero."""
    start = head[: _HEAD_BYTES // 2 * 2]
    for encoding, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if len(zeros) and zeros.count(0) > 0.5 * len(zeros):
            return encoding
    return None


def _find_separator(text: str, expected: CsvFormat) -> str:
    """The separator that gives the first lines most columns, and the same number each."""

    def rate(separator: str) -> tuple[bool, int, bool]:
        try:
            rows = list(_split_rows(lines, CsvFormat(separator, quote=expected.quote)))
        except csv.Error:
            return False, 0, False
        widths = {len(row) for row in rows if row}
        n_columns = len(rows[0]) if rows else 0
        is_even = len(widths) == 1 and n_columns > 1
        return is_even, n_columns, separator == expected.separator

    lines = text.splitlines(keepends=True)[: _N_SAMPLE_LINES + 1]
    if len(lines) > _N_SAMPLE_LINES or len(text) >= _HEAD_BYTES // 4:
        lines = lines[:-1] or lines  # the last may be cut
    return max(SEPARATORS, key=rate)


def _split_rows(lines: Any, format: CsvFormat) -> Iterator[list[str]]:
    if not format.quote:
        return csv.reader(lines, delimiter=format.separator, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, delimiter=format.separator, quotechar=format.quote)
