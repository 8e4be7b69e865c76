"""Tables in files or in memory: CSV and Parquet files, several of them, a folder, or a frame."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from turncoat.data.categories import normalize_category
from turncoat.data.csv_files import CsvFile, CsvFormat, open_csv
from turncoat.errors import ConfigError, DataError

_CSV_SUFFIXES = tuple(
    kind + packed for kind in (".csv", ".tsv", ".txt") for packed in ("", ".gz", ".zst")
)
SUFFIXES = (*_CSV_SUFFIXES, ".parquet")
_EXCEL_SUFFIXES = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
KNOWN_TYPES = "CSV (.csv, .tsv or .txt, also .gz and .zst) and .parquet"
_MAX_SHOWN = 8
_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class SourcePart:
    """One file, or a frame."""

    name: str
    frame: pl.LazyFrame  # the values of a CSV file are text
    columns: tuple[str, ...]
    path: Path | None = None
    csv: CsvFile | None = None

    def read(self, columns: Sequence[str], numeric: Sequence[str]) -> pl.LazyFrame:
        """Some columns; of a CSV file the `numeric` ones as numbers, NaN if missing."""
        if self.csv is None:
            return self.frame.select(columns)
        for name in columns:
            if f"{name}_duplicated_0" in self.columns:  # as polars calls a second of this name
                raise DataError(f"{self.name}: the header has {name!r} twice. Rename or remove one")
        self.csv.check_lines()
        return self.csv.scan_numbers(numeric).select(columns)

    def find_column(self, column: str) -> str | None:
        """The part's spelling of a column."""
        return _find_spelling(column, self.columns)

    def count_rows(self) -> int:
        """How many rows there are."""
        return int(self.frame.select(pl.len()).collect().item())


@dataclass(frozen=True)
class Source:
    """A table that is not read yet, from one or several parts with the same columns."""

    name: str
    parts: tuple[SourcePart, ...]

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that every part has, in the first part's order."""
        first, *others = (part.columns for part in self.parts)
        return tuple(name for name in first if all(name in columns for columns in others))

    @cached_property
    def frame(self) -> pl.LazyFrame:
        """The common columns of all parts; of CSV files as text."""
        return _concatenate([part.frame.select(self.columns) for part in self.parts])

    @property
    def path(self) -> Path | None:
        """The first file, if there is one."""
        return self.parts[0].path

    @property
    def csv(self) -> CsvFile | None:
        """The first file if it is a CSV file, whose values are text until they are parsed."""
        return self.parts[0].csv

    @property
    def differences(self) -> tuple[str, ...]:
        """What each file lacks or has in addition, compared with the first."""
        first, found = self.parts[0], []
        for part in self.parts[1:]:
            lacks = [name for name in first.columns if name not in part.columns]
            adds = [name for name in part.columns if name not in first.columns]
            texts = [f"lacks {_list_names(lacks)}"] * bool(lacks)
            texts += [f"adds {_list_names(adds)}"] * bool(adds)
            if texts:
                found.append(f"{part.name} {' and '.join(texts)}, compared with {first.name}")
        return tuple(found)

    def sample(self, n_rows: int) -> pl.DataFrame:
        """The first rows, an equal number of each part."""
        self._check_types(self.columns)
        n_each = -(-n_rows // len(self.parts))
        heads = [part.frame.select(self.columns).head(n_each) for part in self.parts]
        try:
            return _concatenate(heads).collect()
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise self.explain(problem) from problem

    def read(self, columns: Sequence[str], numeric: Sequence[str]) -> pl.DataFrame:
        """Some columns; of CSV files the `numeric` ones as numbers, NaN if missing."""
        try:
            return self._scan(columns, numeric).collect()
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise self.explain(problem, numeric) from problem

    def read_batches(
        self, columns: Sequence[str], numeric: Sequence[str]
    ) -> Iterator[pl.DataFrame]:
        """Some columns as `read` has them, in batches of rows, for tables larger than memory."""
        try:
            frame = self._scan(columns, numeric)
            yield from frame.collect_batches(chunk_size=_BATCH_ROWS, maintain_order=True)
        except (pl.exceptions.PolarsError, OSError) as problem:
            raise self.explain(problem, numeric) from problem

    def _scan(self, columns: Sequence[str], numeric: Sequence[str]) -> pl.LazyFrame:
        self._check_types(columns)
        return _concatenate([part.read(columns, numeric) for part in self.parts])

    def explain(self, problem: Exception, numeric: Sequence[str] = ()) -> DataError:
        """Why the table cannot be read: a damaged row, a cell that is no number, or `problem`."""
        for part in self.parts:
            csv = part.csv
            damage = csv and (csv.find_damage() or csv.find_wrong_number(numeric))
            if damage:
                return damage
            try:
                part.frame.select(pl.len()).collect()
            except (pl.exceptions.PolarsError, OSError) as own:
                return _unreadable(part.name, own)
        return _unreadable(self.name, problem)

    def _check_types(self, columns: Sequence[str]) -> None:
        """Refuse parts in which a column has another type than in the first."""
        first = self.parts[0].frame.collect_schema()
        for part in self.parts[1:]:
            types = part.frame.collect_schema()
            for name in columns:
                own, other = first[name], types[name]
                if own != other and not (own.is_numeric() and other.is_numeric()):
                    found = f"column {name!r} is {other}, but {own} in {self.parts[0].name}"
                    raise DataError(f"{part.name}: {found}. Write both with the same type")

    def locate(self, row: int) -> tuple[str, int]:
        """The part that has a row of the table, and its row there; both count from 0."""
        for part in self.parts[:-1]:
            n_rows = part.count_rows()
            if row < n_rows:
                return part.name, row
            row -= n_rows
        return self.parts[-1].name, row

    def find_column(self, column: str) -> str | None:
        """The table's spelling of a column."""
        return _find_spelling(column, self.columns)

    def find_part_without(self, column: str) -> SourcePart:
        """The first part that lacks a column; the first part if all have it."""
        lacking = (part for part in self.parts if part.find_column(column) is None)
        return next(lacking, self.parts[0])


def open_source(origin: Any, format: CsvFormat | None = None, leave_out: str = "") -> Source:
    """Open a path, several paths as one table, or a polars, pandas or Arrow frame.

    `format` says how CSV files are written. In a folder, the file with the stem `leave_out` is no
    part of the table.
    """
    expected = format or CsvFormat()
    if isinstance(origin, str | os.PathLike):
        return _open_path(Path(origin), expected, leave_out)
    if isinstance(origin, Sequence) and origin:
        sources = [open_source(one, expected, leave_out) for one in origin]
        n_more = sum(len(source.parts) for source in sources[1:])
        more = f" and {n_more} more file{'' if n_more == 1 else 's'}" if n_more else ""
        return _join_parts(f"{sources[0].name}{more}", sources)
    if isinstance(origin, pl.LazyFrame):
        frame = origin
    elif isinstance(origin, pl.DataFrame):
        frame = origin.lazy()
    elif hasattr(origin, "__arrow_c_stream__") or hasattr(origin, "to_numpy"):
        frame = _convert_frame(origin).lazy()
    else:
        kind = type(origin).__name__
        raise ConfigError(f"cannot read a {kind}. Give a path or a polars, pandas or Arrow frame")
    columns = tuple(frame.collect_schema().names())
    return Source("the frame", (SourcePart("the frame", frame, columns),))


def _join_parts(name: str, sources: Sequence[Source]) -> Source:
    """One table of several; an error if they are of different kinds or share no column."""
    parts = tuple(part for source in sources for part in source.parts)
    first = parts[0]
    if len(parts) == 1:
        return sources[0]
    if len({part.csv is None for part in parts}) > 1:
        names = " and ".join(
            next(part.name for part in parts if (part.csv is None) is kind)
            for kind in (False, True)
        )
        raise DataError(f"{names} are of different kinds. Give only CSV or only Parquet files")
    joined = Source(name, parts)
    if not joined.columns:
        other = next(part for part in parts[1:] if not set(part.columns) & set(first.columns))
        problem = f"{first.name} and {other.name} have no column in common"
        raise DataError(f"{problem}. Give files of one table")
    return joined


def _find_spelling(column: str, columns: Sequence[str]) -> str | None:
    """A column as given, or with `-` for `_` as in IEEE-CIS."""
    if column in columns:
        return column
    plain = column.replace("-", "_")
    return next((name for name in columns if name.replace("-", "_") == plain), None)


def _concatenate(frames: list[pl.LazyFrame]) -> pl.LazyFrame:
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="vertical_relaxed")


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MAX_SHOWN])) + (", ..." if len(names) > _MAX_SHOWN else "")


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


def _suffix(path: Path, suffixes: Sequence[str] = SUFFIXES) -> str:
    return next((suffix for suffix in suffixes if path.name.lower().endswith(suffix)), "")


def _open_path(path: Path, expected: CsvFormat, leave_out: str) -> Source:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder. Check the path")
    if path.is_dir():
        return _open_folder(path, expected, leave_out)
    if _suffix(path, _EXCEL_SUFFIXES):
        remedy = "Save it as CSV UTF-8 in the spreadsheet, and give that file"
        raise DataError(
            f"{path}: a spreadsheet, which can show dates and numbers rounded. {remedy}"
        )
    if not _suffix(path):
        raise DataError(f"{path}: unknown file type. Known are {KNOWN_TYPES}, or a folder of them")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty. Check how it was written")
    return Source(str(path), (_open_file(path, expected),))


def _open_folder(folder: Path, expected: CsvFormat, leave_out: str) -> Source:
    """The transaction file of a folder, or all its files as one table."""
    files = [place for place in folder.iterdir() if place.is_file() and _suffix(place)]
    files.sort(key=_natural_order)
    for stem in ("train_transaction", "transactions"):
        named = [place for place in files if file_stem(place) == stem]
        if len(named) == 1:
            return _open_path(named[0], expected, leave_out)
        if named:
            names = " and ".join(place.name for place in named)
            raise DataError(f"{folder}: found both {names}. Give the path of one")
    files = [place for place in files if file_stem(place) != leave_out and _is_data(place)]
    if not files:
        raise DataError(f"{folder}: found nothing readable. Known are {KNOWN_TYPES}")
    sources = [_open_path(place, expected, leave_out) for place in files]
    return _join_parts(f"{folder} ({len(files)} files)", sources)


def _natural_order(path: Path) -> list[tuple[int, str]]:
    """Sorts files by name, and numbers in names by value: export_9 before export_10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]


def _is_data(path: Path) -> bool:
    """Whether a file in a folder is part of its data: text files beside them may be notes."""
    return not _suffix(path).startswith(".txt") and not path.name.startswith(".")


def _open_file(path: Path, expected: CsvFormat) -> SourcePart:
    try:
        csv = None if _suffix(path) == ".parquet" else open_csv(path, expected)
        frame = pl.scan_parquet(path, glob=False) if csv is None else csv.scan()
        columns = tuple(frame.collect_schema().names())
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise _unreadable(str(path), problem) from problem
    if any("\0" in name for name in columns):
        raise DataError(f"{path}: the header is not UTF-8 text. Save the file as UTF-8")
    return SourcePart(str(path), frame, columns, path, csv)


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
