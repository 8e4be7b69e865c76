"""Simulated payments with known truth, as tables or as files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import polars as pl

from turncoat.errors import ConfigError

PRESETS = {
    "handbook": "handbook.handbook",
    "ieee-cis": "ieee.ieee_cis",
}  # imported when asked for: each needs its own libraries
FORMATS = ("csv", "parquet")


def simulate_tables(preset: str, n_rows: int, seed: int = 0) -> dict[str, pl.DataFrame]:
    """Simulate `n_rows` payments; one of the tables is the truth about them. The same seed gives the same tables."""
    if preset not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}; found {preset!r}")
    module, function = PRESETS[preset].split(".")
    made: dict[str, pl.DataFrame] = getattr(import_module(f"{__name__}.{module}"), function)(
        n_rows, seed
    )
    return made


def simulate_files(
    preset: str,
    n_rows: int,
    seed: int = 0,
    *,
    out: Path | str,
    file_format: str = "csv",
    overwrite: bool = False,
) -> dict[str, Path]:
    """Simulate `n_rows` payments into the folder `out`, one file per table, and tell where each table is.

    Files come into view together, once all are complete; a run that fails leaves the folder's earlier files as they were.
    """
    if file_format not in FORMATS:
        raise ConfigError(f"file_format must be one of {', '.join(FORMATS)}; found {file_format!r}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out must be a folder; found the file {folder}. Name another folder")
    made = simulate_tables(preset, n_rows, seed)
    paths = {name: folder / f"{name}.{file_format}" for name in made}
    for path in paths.values():
        if path.is_dir():
            raise ConfigError(
                f"{path} is a folder; a file of that name is to be written. Move it away, or name another folder"
            )
        if path.exists() and not overwrite:
            raise ConfigError(
                f"{path} exists already. Name another folder, or replace it (--overwrite, overwrite=True)"
            )
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(
        tempfile.mkdtemp(prefix=".simulate-", dir=folder)
    )  # in the folder itself, so that moving is renaming
    try:
        for name, table in made.items():
            _write(table, aside / paths[name].name)
        _put_in_place(aside, paths)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return paths


def _write(table: pl.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        table.write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S")
    else:
        table.write_parquet(path)


def _put_in_place(aside: Path, paths: Mapping[str, Path]) -> None:
    """Move complete files to where they belong; if one cannot be moved, everything is put back."""
    earlier = aside / "earlier"
    earlier.mkdir()
    replaced = [path for path in paths.values() if path.exists()]
    try:
        for path in replaced:
            path.replace(earlier / path.name)
        for path in paths.values():
            (aside / path.name).replace(path)
    except BaseException:
        for path in paths.values():
            if path not in replaced:
                path.unlink(missing_ok=True)
            elif (earlier / path.name).exists():
                (earlier / path.name).replace(path)
        raise
