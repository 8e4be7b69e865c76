"""Tables in files or in memory: CSV (also .gz), Parquet, a folder, or a frame."""

from __future__ import annotations

import contextlib
import csv
import gzip
import math
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from turncoat.data.categories import normalize_category
from turncoat.errors import ConfigError, DataError

SUFFIXES = (".csv", ".csv.gz", ".parquet")
NOT_A_NUMBER = "NA"  # what R writes for a missing number
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_NOT_UTF8 = re.compile("[\udc80-\udcff]")  # how Python escapes bytes that are not UTF-8


@dataclass(frozen=True)
class Source:
    """A table that is not read yet: a lazy frame, its file if it has one, and its columns."""

    name: str
    frame: pl.LazyFrame
    path: Path | None
    columns: tuple[str, ...]

    @property
    def csv(self) -> Path | None:
        """The file, if it is a CSV file, whose values are text until they are parsed."""
        is_csv = self.path is not None and _suffix(self.path) in (".csv", ".csv.gz")
        return self.path if is_csv else None

    def read(self, columns: Sequence[str], numeric: Sequence[str]) -> pl.DataFrame:
        """Some columns; of a CSV file the `numeric` ones as numbers, NaN if missing."""
        for name in columns if self.csv is not None else ():
            if f"{name}_duplicated_0" in self.columns:  # as polars calls a second of this name
                raise DataError(f"{self.name}: the header has {name!r} twice. Rename or remove one")
        try:
            table = self.frame
            if self.csv is not None:
                self._check_lines(self.csv)
                kinds = dict.fromkeys(numeric, pl.Float64)
                nulls = dict.fromkeys(numeric, NOT_A_NUMBER)
                table = _scan_csv(self.csv, schema_overrides=kinds, null_values=nulls)
                table = table.with_columns(pl.col(numeric).fill_null(math.nan))  # in parallel
            return table.select(columns).collect()
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise self.explain(problem, numeric) from problem

    def explain(self, problem: Exception, numeric: Sequence[str] = ()) -> DataError:
        """Why the table cannot be read: a damaged row, a cell that is no number, or `problem`."""
        damage = self._find_damage() or self._find_wrong_number(numeric)
        return damage or _unreadable(self.name, problem)

    def find_column(self, column: str) -> str | None:
        """The table's spelling of a column: as given, or with `-` for `_` as in IEEE-CIS."""
        if column in self.columns:
            return column
        plain = column.replace("-", "_")
        return next((name for name in self.columns if name.replace("-", "_") == plain), None)

    def _check_lines(self, path: Path) -> None:
        """Refuse a CSV file with a line that has more or fewer fields than the header."""
        whole_lines = {"has_header": False, "separator": "\x1f", "quote_char": None}
        lines = _scan_csv(path, new_columns=["line"], **whole_lines)
        line = pl.col("line")
        n_fields = line.str.replace_all(r'"[^"]*"', "").str.count_matches(",", literal=True) + 1
        is_odd = (n_fields != len(self.columns)) & (line.str.strip_chars() != "")
        # A quoted line break also looks odd, so look again, slowly.
        if lines.filter(is_odd).head(1).collect().height and (damage := self._find_damage()):
            raise damage

    def _find_damage(self) -> DataError | None:
        """The first CSV row that is not UTF-8, or not as wide as the header, as an error."""
        if self.csv is None:
            return None
        open_text: Any = gzip.open if self.csv.name.lower().endswith(".gz") else open
        options = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
        try:
            with open_text(self.csv, "rt", **options) as lines:
                for number, row in enumerate(csv.reader(lines)):
                    if number and row and len(row) != len(self.columns):
                        found = f"{len(row)} fields, but the header has {len(self.columns)}"
                        remedy = "Put values with commas in quotes, or write the file again"
                        return DataError(f"{self.name}, row {number}: {found}. {remedy}")
                    for cell, column in zip(row, self.columns, strict=False):
                        if not cell.isascii() and _NOT_UTF8.search(cell):
                            where = f"column {column!r}, row {number}" if number else "header"
                            found = f"{cell.encode(errors='surrogateescape')!r} is not UTF-8 text"
                            return DataError(f"{self.name}, {where}: {found}. Save it as UTF-8")
        except (csv.Error, OSError, EOFError, zlib.error):
            pass
        return None

    def _find_wrong_number(self, columns: Sequence[str]) -> DataError | None:
        """The first cell of these columns of a CSV file that is not a number, as an error."""
        for column in columns if self.csv is not None else ():
            cell = pl.col(column)
            is_number = cell.cast(pl.Float64, strict=False).is_not_null()
            is_wrong = cell.is_not_null() & (cell != NOT_A_NUMBER) & ~is_number
            cells = self.frame.select(cell).with_row_index("row")
            try:
                found = cells.filter(is_wrong).head(1).collect()
            except (pl.exceptions.PolarsError, OSError):
                return None
            for row, value in found.rows():
                problem = f"column {column!r}, row {row + 1}: {value!r} is not a number"
                remedy = "Write plain numbers such as 1234.56, or make the column categorical"
                return DataError(f"{self.name}, {problem}. {remedy}")
        return None


def open_source(origin: Any) -> Source:
    """Open a path, or a polars, pandas or Arrow frame."""
    if isinstance(origin, str | os.PathLike):
        return _open_path(Path(origin))
    if isinstance(origin, pl.LazyFrame):
        frame = origin
    elif isinstance(origin, pl.DataFrame):
        frame = origin.lazy()
    elif hasattr(origin, "__arrow_c_stream__") or hasattr(origin, "to_numpy"):
        frame = _convert_frame(origin).lazy()
    else:
        kind = type(origin).__name__
        raise ConfigError(f"cannot read a {kind}. Give a path or a polars, pandas or Arrow frame")
    return Source("the frame", frame, None, tuple(frame.collect_schema().names()))


def _convert_frame(origin: Any) -> pl.DataFrame:
    """Another library's frame. Pandas columns of mixed types become text, as in a CSV file."""
    try:
        return pl.DataFrame(origin)
    except Exception as problem:  # whatever the other library raises
        if not (hasattr(origin, "isna") and hasattr(origin, "columns")):
            what = f"the {type(origin).__name__} cannot be converted: {_first_line(problem)}"
            raise DataError(f"{what}. Give a Parquet file") from problem
    names = [str(name) for name in origin.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        shown = ", ".join(map(repr, twice))
        raise DataError(f"the frame: columns {shown} occur twice. Rename or drop one of each")
    columns = zip(names, origin.columns, strict=True)
    return pl.DataFrame([_convert_column(name, origin[column]) for name, column in columns])


def _convert_column(name: str, column: Any) -> pl.Series:
    try:
        return pl.Series(name, column)
    except Exception:  # whatever the other library raises on mixed types
        cells = zip(column, column.isna(), strict=True)
        texts = [None if is_missing else normalize_category(value) for value, is_missing in cells]
        return pl.Series(name, texts, dtype=pl.String)


def file_stem(path: Path) -> str:
    """A file's name without its suffix."""
    return path.name[: -len(_suffix(path))] if _suffix(path) else path.name


def file_prefix(path: Path) -> str:
    """What precedes "transaction" or "transactions" in a file's name."""
    return file_stem(path).removesuffix("transactions").removesuffix("transaction")


def _suffix(path: Path) -> str:
    return next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")


def _open_path(path: Path) -> Source:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder. Check the path")
    if path.is_dir():
        return _open_folder(path)
    if not _suffix(path):
        known = ", ".join(SUFFIXES)
        raise DataError(f"{path}: unknown file type. Give {known} or a folder of Parquet files")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty. Check how it was written")
    return _scan(path, [path])


def _open_folder(folder: Path) -> Source:
    """The transaction file of a folder, or its Parquet files as one table."""
    files = sorted(place for place in folder.iterdir() if place.is_file() and _suffix(place))
    for stem in ("train_transaction", "transactions"):
        named = [place for place in files if file_stem(place) == stem]
        if len(named) == 1:
            return _open_path(named[0])
        if named:
            names = " and ".join(place.name for place in named)
            raise DataError(f"{folder}: found both {names}. Give the path of one")
    if files and all(_suffix(place) == ".parquet" for place in files):
        return _scan(folder / "*.parquet", files)
    if len(files) == 1:
        return _open_path(files[0])
    found = ", ".join(place.name for place in files[:8]) or "nothing readable"
    rule = "expected one data file, a transaction file or only Parquet files"
    raise DataError(f"{folder}: {rule}; found {found}. Give the path of one")


def _scan(path: Path, files: list[Path]) -> Source:
    try:
        if _suffix(path) == ".parquet":
            frame = pl.scan_parquet(files, glob=False)
        else:
            frame = _scan_csv(path)
        columns = tuple(frame.collect_schema().names())
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise _unreadable(str(path), problem) from problem
    if any("\0" in name for name in columns):
        raise DataError(f"{path}: the header is not UTF-8 text. Save the file as UTF-8")
    for separator, name in _OTHER_SEPARATORS.items():
        if len(columns) == 1 and separator in columns[0]:
            raise DataError(f"{path}: separated by {name}. Write the file again with commas")
    return Source(str(path), frame, path, columns)


def _scan_csv(path: Path, **options: Any) -> pl.LazyFrame:
    """A CSV file with all values as text, unless the options say otherwise."""
    return pl.scan_csv(path, infer_schema=False, glob=False, **options)


def _unreadable(name: str, problem: Exception) -> DataError:
    cause = _first_line(problem)
    return DataError(f"{name}: cannot be read: {cause}. The file may be damaged; write it again")


def _first_line(problem: Exception) -> str:
    return (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".")


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a CSV or Parquet file; an existing file is replaced once the new one is complete."""
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"{path}: the name must end in .parquet or .csv")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        (frame.write_csv if path.suffix == ".csv" else frame.write_parquet)(temporary)
        os.replace(temporary, path)
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise DataError(f"{path}: cannot be written: {problem}") from problem
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
