"""Tables onto disk: written aside and put in place when whole, so that a failure leaves what was there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import polars as pl

from turncoat.errors import ConfigError, DataError


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a CSV or Parquet file; one already there is replaced only once the new one is whole."""
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(f"{path}: the name must end in .parquet or .csv")
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            frame.write_csv(aside)
        else:
            frame.write_parquet(aside)
        os.replace(aside, path)
    except (OSError, pl.exceptions.PolarsError) as problem:
        raise DataError(f"{path}: cannot be written: {problem}") from problem
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
