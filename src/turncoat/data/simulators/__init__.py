"""Simulated payments with known ground truth, as tables or as files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from turncoat.errors import ConfigError

PRESETS = ("handbook", "ieee-cis")
FORMATS = ("csv", "parquet")


def simulate_tables(preset: str, n_rows: int, seed: int = 0) -> dict[str, pl.DataFrame]:
    """Simulate `n_rows` payments; returns tables by name, `truth` among them. Seeds repeat."""
    if preset == "handbook":  # imported on demand: scipy.spatial is slow to load
        from turncoat.data.simulators.handbook import simulate_handbook

        return simulate_handbook(n_rows, seed)
    if preset == "ieee-cis":
        from turncoat.data.simulators.ieee import simulate_ieee_cis

        return simulate_ieee_cis(n_rows, seed)
    raise ConfigError(f"preset must be one of {', '.join(PRESETS)}; found {preset!r}")


def simulate_files(
    preset: str,
    n_rows: int,
    seed: int = 0,
    *,
    out: Path | str,
    file_format: str = "csv",
    overwrite: bool = False,
) -> dict[str, Path]:
    """Simulate `n_rows` payments into the folder `out`; returns the file of each table.

    The files appear together once all are complete. A run that fails leaves earlier files intact.
    """
    if file_format not in FORMATS:
        raise ConfigError(f"file_format must be one of {', '.join(FORMATS)}; found {file_format!r}")
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"out must be a folder; found the file {folder}. Name another folder")
    tables = simulate_tables(preset, n_rows, seed)
    paths = {name: folder / f"{name}.{file_format}" for name in tables}
    for path in paths.values():
        if path.is_dir():
            raise ConfigError(f"{path} is a folder, not a file. Move it, or name another folder")
        if path.exists() and not overwrite:
            remedy = "Name another folder, or replace it (--overwrite, overwrite=True)"
            raise ConfigError(f"{path} already exists. {remedy}")
    folder.mkdir(parents=True, exist_ok=True)
    # Inside the folder, so that moving a file is a rename on one file system.
    temporary = Path(tempfile.mkdtemp(prefix=".simulate-", dir=folder))
    try:
        for name, table in tables.items():
            path = temporary / paths[name].name
            if file_format == "csv":
                table.write_csv(path, datetime_format="%Y-%m-%d %H:%M:%S")
            else:
                table.write_parquet(path)
        _move_files(temporary, paths)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return paths


def _move_files(temporary: Path, paths: Mapping[str, Path]) -> None:
    """Move complete files into place; restore everything if one cannot be moved."""
    backup = temporary / "backup"
    backup.mkdir()
    replaced = [path for path in paths.values() if path.exists()]
    try:
        for path in replaced:
            path.replace(backup / path.name)
        for path in paths.values():
            (temporary / path.name).replace(path)
    except BaseException:
        for path in paths.values():
            if path not in replaced:
                path.unlink(missing_ok=True)
            elif (backup / path.name).exists():
                (backup / path.name).replace(path)
        raise
