"""Where rows come from: CSV (also .gz), Parquet, a folder, or a frame in memory. Opens lazily; says what cannot be opened."""

from __future__ import annotations

import csv
import gzip
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from turncoat.data.categories import normalize_category
from turncoat.errors import ConfigError, DataError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
NOT_A_NUMBER = "NA"  # what R writes for a missing number
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class Source:
    """A table not yet read: a lazy frame, its file if it has one, and its column names."""

    name: str
    frame: pl.LazyFrame
    path: Path | None
    columns: tuple[str, ...]

    @property
    def csv(self) -> Path | None:
        """The file, if it is one whose values are text until someone says what they are."""
        return (
            self.path
            if self.path is not None and _suffix(self.path) in (".csv", ".csv.gz")
            else None
        )

    def with_numbers(self, columns: list[str]) -> pl.LazyFrame:
        """The table, these columns of a CSV file as numbers (NaN where missing) and all its others as text."""
        if self.csv is None:
            return self.frame
        kinds = dict.fromkeys(columns, pl.Float64)
        missing = dict.fromkeys(columns, NOT_A_NUMBER)
        table = pl.scan_csv(
            self.csv, infer_schema=False, schema_overrides=kinds, null_values=missing, glob=False
        )
        return table.with_columns(
            pl.col(columns).fill_null(math.nan)
        )  # here, where all processors do it

    def find_column(self, column: str) -> str | None:
        """How the table spells a column: as asked, or with `-` for `_` (as one genuine IEEE-CIS file has it)."""
        if column in self.columns:
            return column
        plain = column.replace("-", "_")
        return next((name for name in self.columns if name.replace("-", "_") == plain), None)

    def is_twice(self, column: str) -> bool:
        """Whether a CSV file's header has this name more than once."""
        return (
            self.csv is not None and f"{column}_duplicated_0" in self.columns
        )  # the name that polars gives the second

    def check_lines(self) -> None:
        """Refuse a CSV file with a line that has more or fewer fields than its header: its values would shift unnoticed."""
        if self.csv is None:
            return
        line = pl.col("line")
        lines = pl.scan_csv(
            self.csv,
            has_header=False,
            new_columns=["line"],
            infer_schema=False,
            separator="\x1f",
            quote_char=None,
            glob=False,
        )
        fields = line.str.replace_all(r'"[^"]*"', "").str.count_matches(",", literal=True) + 1
        odd = (
            lines.filter((fields != len(self.columns)) & (line.str.strip_chars() != ""))
            .head(1)
            .collect()
        )
        if odd.height and (
            found := self.damage()
        ):  # a quoted line break also looks odd; only a slow look tells
            raise found

    def damage(self) -> DataError | None:
        """The first row of a CSV file that is not UTF-8, or not as wide as the header, as a refusal."""
        if self.csv is None:
            return None
        opened: Any = gzip.open if self.csv.name.lower().endswith(".gz") else open
        try:
            with opened(
                self.csv, "rt", encoding="utf-8", errors="surrogateescape", newline=""
            ) as lines:
                for number, row in enumerate(csv.reader(lines)):
                    if number and row and len(row) != len(self.columns):
                        problem = f"{len(row)} fields, and the header has {len(self.columns)}"
                        return DataError(
                            f"{self.name}, row {number}: {problem}. Put values with commas in quotes, or write the file again"
                        )
                    broken = next(
                        (
                            place
                            for place, cell in enumerate(row)
                            if not (cell.isascii() or _encodes(cell))
                        ),
                        None,
                    )
                    if broken is not None:
                        place = (
                            f"column {self.columns[broken]!r}, row {number}" if number else "header"
                        )
                        found = row[broken].encode(errors="surrogateescape")
                        return DataError(
                            f"{self.name}, {place}: {found!r} is not UTF-8 text. Save the file as UTF-8"
                        )
        except (csv.Error, OSError, EOFError, zlib.error):
            return None
        return None


def open_source(origin: Any) -> Source:
    """A path, or a polars, pandas or Arrow frame, as a source."""
    if isinstance(origin, str | os.PathLike):
        return _open_path(Path(origin))
    if isinstance(origin, pl.LazyFrame):
        frame = origin
    elif isinstance(origin, pl.DataFrame):
        frame = origin.lazy()
    elif hasattr(origin, "__arrow_c_stream__") or hasattr(origin, "to_numpy"):
        frame = _foreign(origin).lazy()
    else:
        raise ConfigError(
            f"cannot read a {type(origin).__name__}. Give a path, or a polars, pandas or Arrow frame"
        )
    return Source("the frame", frame, None, tuple(frame.collect_schema().names()))


def _foreign(origin: Any) -> pl.DataFrame:
    """Another library's frame. A pandas column of mixed types becomes text, as it would in a CSV file."""
    try:
        return pl.DataFrame(origin)
    except Exception as problem:  # whatever the other library raises
        if not (hasattr(origin, "isna") and hasattr(origin, "columns")):
            raise DataError(
                f"the {type(origin).__name__} cannot be taken over: {first_line(problem)}. Give a Parquet file"
            ) from problem
    names = [str(name) for name in origin.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(
            f"the frame: columns {', '.join(map(repr, twice))} are there twice. Rename or drop one of each"
        )
    return pl.DataFrame(
        [
            _foreign_column(name, origin[column])
            for name, column in zip(names, origin.columns, strict=True)
        ]
    )


def _foreign_column(name: str, column: Any) -> pl.Series:
    try:
        return pl.Series(name, column)
    except Exception:  # whatever the other library raises on mixed types
        texts = [
            None if missing else normalize_category(value)
            for value, missing in zip(column, column.isna(), strict=True)
        ]
        return pl.Series(name, texts, dtype=pl.String)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def beside(path: Path, stem: str) -> Path | None:
    """A data file with this stem in the same folder."""
    return next(
        (place for suffix in SUFFIXES if (place := path.parent / (stem + suffix)).is_file()), None
    )


def stem(path: Path) -> str:
    """A file's name without its kind."""
    return path.name[: -len(_suffix(path))] if _suffix(path) else path.name


def _suffix(path: Path) -> str:
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def _open_path(path: Path) -> Source:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder. Check the path")
    if path.is_dir():
        return _open_folder(path)
    if not _suffix(path):
        raise DataError(
            f"{path}: cannot tell what this is. Turncoat reads {', '.join(SUFFIXES)} and folders of Parquet files"
        )
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty. Check how it was written")
    return _lazily(path, [path])


def _open_folder(folder: Path) -> Source:
    """The transaction file of a folder, or its Parquet files as one table."""
    files = sorted(place for place in folder.iterdir() if place.is_file() and _suffix(place))
    for wanted in ("train_transaction", "transactions"):
        named = [place for place in files if stem(place) == wanted]
        if len(named) == 1:
            return _open_path(named[0])
        if named:
            raise DataError(
                f"{folder}: {' and '.join(place.name for place in named)} are both there. Give the path of one"
            )
    parts = [place for place in files if _suffix(place) == ".parquet"]
    if parts and len(parts) == len(files):
        return _lazily(folder / "*.parquet", parts)
    if len(files) == 1:
        return _open_path(files[0])
    found = ", ".join(place.name for place in files[:8]) or "nothing readable"
    raise DataError(
        f"{folder}: expected one data file, a transaction file or Parquet files only; found {found}. Give the path of one"
    )


def _lazily(path: Path, files: list[Path]) -> Source:
    try:
        frame = (
            pl.scan_parquet(files, glob=False)
            if _suffix(path) == ".parquet"
            else pl.scan_csv(path, infer_schema=False, glob=False)
        )
        columns = tuple(frame.collect_schema().names())
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise DataError(
            f"{path}: cannot be read: {first_line(problem)}. The file may be truncated; write it again"
        ) from problem
    if any("\0" in name for name in columns):
        raise DataError(f"{path}: the header is not UTF-8 text. Save the file as UTF-8")
    if len(columns) == 1 and (
        sign := next((sign for sign in _OTHER_SEPARATORS if sign in columns[0]), None)
    ):
        raise DataError(
            f"{path}: separated by {_OTHER_SEPARATORS[sign]}; Turncoat reads commas. Write the file again with commas"
        )
    return Source(str(path), frame, path, columns)


def first_line(problem: Exception) -> str:
    """What went wrong, without the details that follow."""
    return (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")
