"""Converts the Fraud Detection Handbook's published daily files to one Parquet file.

FOLDER is `data` of https://github.com/Fraud-Detection-Handbook/simulated-data-raw, with one pickled
frame per day. The files are read through an allow-list: no code from them is run.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.pickled_frames import FrameError, read_pickled_frame
from turncoat.arrays import Array
from turncoat.storage import replace_file

SCHEMA = {
    "TRANSACTION_ID": pl.Int32(),
    "TX_DATETIME": pl.Datetime("ms"),
    "CUSTOMER_ID": pl.Int16(),
    "TERMINAL_ID": pl.Int16(),
    "TX_AMOUNT": pl.Float64(),
    "TX_TIME_SECONDS": pl.Int32(),
    "TX_TIME_DAYS": pl.Int16(),
    "TX_FRAUD": pl.Int8(),
    "TX_FRAUD_SCENARIO": pl.Int8(),
}
_MAX_NAMED = 5  # missing days that a message lists


class ConversionError(Exception):
    """Files that cannot be converted; the message says which and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert and report; 2 if something is wrong with the files."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.convert_handbook",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="folder of the daily files, YYYY-MM-DD.pkl")
    parser.add_argument("out", type=Path, help="the Parquet file to write")
    for option, which in (("--from", "first"), ("--until", "last")):
        about = f"{which} day to convert, by default the {which} in the folder"
        parser.add_argument(
            option, dest=which, type=date.fromisoformat, metavar="YYYY-MM-DD", help=about
        )
    options = parser.parse_args(arguments)
    try:
        days = list_days(options.folder, options.first, options.last)
        table = pl.concat([convert_day(path, day) for day, path in days.items()])
        write_table(table, options.out)
    except (ConversionError, FrameError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {table.height:,} transactions of {len(days)} days")
    return 0


def list_days(folder: Path, first: date | None, last: date | None) -> dict[date, Path]:
    """The file of each day from `first` to `last`, by default all, in order and without a gap."""
    if not folder.is_dir():
        raise ConversionError(f"there is no folder {folder}")
    found = {}
    for path in folder.glob("*.pkl"):
        if re.fullmatch(r"\d{4}-\d\d-\d\d", path.stem):
            try:
                found[date.fromisoformat(path.stem)] = path
            except ValueError:
                raise ConversionError(f"{path}: {path.stem} is not a date") from None
    if not found:
        raise ConversionError(
            f"{folder} has no files YYYY-MM-DD.pkl. Give the folder that has them"
        )
    begin, end = first or min(found), last or max(found)
    if begin > end:
        raise ConversionError(f"no day was chosen: the range is {begin} to {end}")
    wanted = [begin + timedelta(days) for days in range((end - begin).days + 1)]
    missing = [str(day) for day in wanted if day not in found]
    if missing:
        more = "" if len(missing) <= _MAX_NAMED else f" and {len(missing) - _MAX_NAMED} more"
        named = ", ".join(missing[:_MAX_NAMED])
        raise ConversionError(f"{folder} lacks the days {named}{more}")
    return {day: found[day] for day in wanted}


def convert_day(path: Path, day: date) -> pl.DataFrame:
    """One day's transactions with the columns and types of SCHEMA; further columns are left out."""
    columns = read_pickled_frame(path)
    missing = [name for name in SCHEMA if name not in columns]
    if missing:
        raise ConversionError(f"{path} lacks the columns {', '.join(missing)}")
    try:
        series = [_convert_column(name, columns[name]) for name in SCHEMA]
    except (ValueError, TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise ConversionError(f"{path}, {error}") from None
    table = pl.DataFrame(series)
    outside = table.filter(pl.col("TX_DATETIME").dt.date() != day)
    if outside.height:
        found = outside["TX_DATETIME"][0]
        raise ConversionError(f"{path}, column TX_DATETIME: {found} is not on the day of the file")
    return table


def _convert_column(name: str, values: Array) -> pl.Series:
    """A column in the type of SCHEMA; a value that the type cannot hold is an error."""
    dtype = SCHEMA[name]
    if isinstance(dtype, pl.Datetime):
        if values.dtype.kind != "M" or np.isnat(values).any():
            raise ValueError(f"column {name}: a value is not a time")
        return pl.Series(name, values.astype("M8[ms]"), dtype)
    try:
        numbers = values.astype(np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"column {name}: a value is not a number") from None
    wrong = ~np.isfinite(numbers)
    if dtype.is_integer():
        wrong |= numbers != np.rint(numbers)
    if wrong.any():
        raise ValueError(f"column {name}: found {values[wrong][0]}, expected {dtype}")
    return pl.Series(name, numbers).cast(dtype)  # refuses what the type cannot hold


def write_table(table: pl.DataFrame, out: Path) -> None:
    """Write a Parquet file under another name, then rename it, so that it is never half written."""
    out.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    table.write_parquet(content)
    replace_file(out, content.getvalue())


if __name__ == "__main__":
    sys.exit(main())
