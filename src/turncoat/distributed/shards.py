"""A table as a folder of Parquet files, each with all rows of some customers: the parts of a fit.

The folder is an ordinary input: `read` takes the whole folder, or one part. A manifest beside the
parts names their rows and checksums.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow.parquet as pq

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn
from turncoat.data.reading import open_for_schema, resolve_schema
from turncoat.data.schema import Schema
from turncoat.data.sources import Source
from turncoat.errors import BundleError, ConfigError, DataError, check_count
from turncoat.features.vocabulary import hash_category
from turncoat.progress import progress_bars
from turncoat.storage import Folder, check_writable, digest, refuse_unreadable, replace_folder

MAX_PARTS = 4096  # each is an open file while the folder is written
_MANIFEST = "manifest.json"
_FORMAT, _VERSION = "turncoat-shards", 1
_BUFFER_BYTES = 1 << 27  # of all parts together, before they are written as row groups
_HASH_BYTES = 1 << 20  # read at once
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, with bits spread evenly


@dataclass(frozen=True)
class Shard:
    """One part: a file in the folder, its number of rows and its checksum."""

    file: str
    n_rows: int
    n_bytes: int
    sha256: str


@dataclass(frozen=True)
class ShardFolder:
    """A folder of parts, as its manifest describes it."""

    path: Path
    customer: tuple[str, ...]  # the columns that tell which part a row is in
    columns: dict[str, str]  # names and types
    shards: tuple[Shard, ...]

    @property
    def n_rows(self) -> int:
        """Rows of all parts."""
        return sum(shard.n_rows for shard in self.shards)


def write_shards(
    origin: Any,
    schema: Schema | str,
    *,
    n_parts: int,
    out: Folder,
    overwrite: bool = False,
    progress: bool | None = None,
) -> ShardFolder:
    """Write a table as a folder of at most `n_parts` Parquet files, a customer in one file only.

    `origin` and `schema` are as for `read`. Rows stay in the order of the table, and memory does
    not grow with their number. Numbers of CSV files become numbers, other columns stay text. The
    folder appears once it is complete; an earlier one is replaced with `overwrite` only.
    """
    check_count("n_parts", n_parts, 1)
    if n_parts > MAX_PARTS:
        raise ConfigError(f"n_parts is {n_parts}; it must be at most {MAX_PARTS:,}")
    target, schema = Path(out), resolve_schema(schema)
    _check_target(target)
    source = open_for_schema(origin, schema)
    _check_columns(source, schema)
    with replace_folder(target, overwrite) as folder:
        columns = _write_parts(source, schema, n_parts, folder, progress)
        paths = sorted(folder.iterdir())
        shards = tuple(_describe(path) for path in paths)
        found = ShardFolder(target, _spell(source, schema.customer), columns, shards)
        _write_manifest(found, folder / _MANIFEST)
    return found


def load_shards(folder: Folder) -> ShardFolder:
    """Return what the manifest of a folder says; raise a BundleError if it is none or damaged."""
    path = Path(folder)
    again = "Write the folder again with `turncoat shard`"
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
    except OSError as problem:
        reason = f"cannot read {_MANIFEST}: {problem.strerror}"
        raise BundleError(f"{path} is no folder of parts: {reason}. {again}") from problem
    except (ValueError, RecursionError) as problem:
        reason = f"{_MANIFEST} is truncated or is not JSON"
        raise BundleError(f"{path}: {reason}. {again}") from problem
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise BundleError(f"{path}: {_MANIFEST} does not describe a folder of parts. {again}")
    if manifest.get("format_version") != _VERSION:
        reads = f"this Turncoat reads version {_VERSION}. {again}"
        found = manifest.get("format_version")
        raise BundleError(f"{path}: the parts have format version {found!r}; {reads}")
    if manifest.pop("manifest_sha256", None) != digest(manifest):
        raise BundleError(f"{path}: {_MANIFEST} was changed after writing. {again}")
    with refuse_unreadable(path, "a folder of parts"):
        shards = msgspec.convert(manifest["shards"], tuple[Shard, ...])
        columns = tuple(manifest["customer"]), dict(manifest["columns"])
    return ShardFolder(path, *columns, shards)


def check_shard(path: Path, shard: Shard) -> None:
    """Raise a DataError unless the file of a part is there and as it was written."""
    remedy = "Restore it, or write the folder again with `turncoat shard`"
    try:
        found = _describe_bytes(path)
    except OSError as problem:
        raise DataError(f"{path}: the part cannot be read: {problem.strerror}. {remedy}") from None
    if found != (shard.n_bytes, shard.sha256):
        changed = f"{found[0]:,} bytes instead of {shard.n_bytes:,}"
        reason = "other bytes than were written" if found[0] == shard.n_bytes else changed
        raise DataError(f"{path}: the part is damaged: it has {reason}. {remedy}")


def _check_target(target: Path) -> None:
    """Refuse, before long work, a folder that is not of parts or cannot be written."""
    if target.is_dir() and any(target.iterdir()) and not (target / _MANIFEST).is_file():
        remedy = "Choose another folder"
        raise BundleError(f"{target} is not empty, and is no folder of parts. {remedy}")
    check_writable(target)


def _check_columns(source: Source, schema: Schema) -> None:
    """Refuse a table without the customer's columns, or whose columns are in two tables."""
    lacking = [name for name in schema.customer if source.find_column(name) is None]
    if lacking:
        names = ", ".join(map(repr, lacking))
        problem = f"the file lacks {names}, which name the customer in schema {schema.name!r}"
        raise DataError(f"{source.name}: {problem}. Correct the schema or choose another")
    theirs = () if schema.join is None else schema.join.columns
    if schema.join is not None and any(source.find_column(name) is None for name in theirs):
        problem = f"schema {schema.name!r} joins a second file, {schema.join.file}"
        remedy = f"Write one Parquet file with the columns of both, joined on {schema.join.on!r}"
        raise ConfigError(f"{source.name}: {problem}; parts are made of one table. {remedy}")


def _spell(source: Source, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Columns as the source spells them; the source has them."""
    return tuple(str(source.find_column(name)) for name in columns)


def _write_parts(
    source: Source, schema: Schema, n_parts: int, folder: Path, progress: bool | None
) -> dict[str, str]:
    """Write the parts that have rows; return the names and types of their columns."""
    numeric = {*schema.continuous, schema.customer_age}
    found = [source.find_column(name) for name in numeric if name is not None]
    batches = source.read_batches(source.columns, [name for name in found if name is not None])
    customer, n_read, columns = _spell(source, schema.customer), 0, dict[str, str]()
    with progress_bars(progress) as show, _open_parts(folder, n_parts) as writer:
        for batch in batches:
            columns = {name: str(kind) for name, kind in batch.schema.items()}
            places = _assign_parts(batch.select(customer), n_parts)
            if (places < 0).any():
                where = source.locate(n_read + int(np.argmax(places < 0)))
                rule = "the customer is missing. Name it, or remove the row"
                column = f"column {customer[0]!r}, row {where[1] + 1}"
                raise DataError(f"{where[0]}, {column}: {rule}")
            writer.add(batch, places)
            n_read += batch.height
            show("writing parts", 0, 1, f"{n_read:,} rows")
        if n_read == 0:
            raise DataError(f"{source.name}: no rows. Check how the file was written")
        writer.flush()
        show("writing parts", 1, 1, f"{n_read:,} rows")
    return columns


def _assign_parts(keys: pl.DataFrame, n_parts: int) -> Array:
    """Return the part of each row's customer [rows], -1 where the customer is missing.

    Equal customers are in the same part in every file, however their values are typed.
    """
    mixed, is_missing = np.zeros(keys.height, np.uint64), np.ones(keys.height, bool)
    for column in map(CategoryColumn.encode, keys):
        hashes = np.array([*map(hash_category, column.values), 0], np.uint64)
        mixed = (mixed ^ hashes[column.codes]) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(32)  # the low bits choose the part
        is_missing &= column.codes < 0
    return np.where(is_missing, -1, (mixed % np.uint64(n_parts)).astype(np.int64))


class _PartWriter:
    """Collects the rows of each part, and writes them as row groups when they fill the buffer."""

    def __init__(self, folder: Path, n_parts: int, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._files: list[pq.ParquetWriter | None] = [None] * n_parts
        self._rows: list[list[pl.DataFrame]] = [[] for _ in range(n_parts)]
        self._n_bytes = 0

    def add(self, batch: pl.DataFrame, places: Array) -> None:
        """Add rows with their parts [rows]."""
        order = np.argsort(places, kind="stable")  # rows of a part stay in order
        counts = np.bincount(places, minlength=len(self._rows))
        grouped, start = batch[order], 0
        for part in np.flatnonzero(counts):
            self._rows[part].append(grouped.slice(start, counts[part]))
            start += counts[part]
        self._n_bytes += int(batch.estimated_size())
        if self._n_bytes >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        for part, frames in enumerate(self._rows):
            if frames:
                self._write(part, pl.concat(frames))
                frames.clear()
        self._n_bytes = 0

    def _write(self, part: int, rows: pl.DataFrame) -> None:
        table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
        file = self._files[part]
        if file is None:
            path = self._folder / f"part-{part:0{len(str(MAX_PARTS))}d}.parquet"
            file = self._stack.enter_context(
                pq.ParquetWriter(path, table.schema, compression="zstd")
            )
            self._files[part] = file
        file.write_table(table)


@contextmanager
def _open_parts(folder: Path, n_parts: int) -> Iterator[_PartWriter]:
    """Open the files of the parts as rows come; close them at the end."""
    try:
        with ExitStack() as stack:
            yield _PartWriter(folder, n_parts, stack)
    except OSError as problem:
        raise DataError(f"{folder}: the parts cannot be written: {problem}") from problem


def _describe(path: Path) -> Shard:
    n_rows = int(pq.read_metadata(path).num_rows)
    return Shard(path.name, n_rows, *_describe_bytes(path))


def _describe_bytes(path: Path) -> tuple[int, str]:
    """The size and the SHA-256 of a file."""
    sha256, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_HASH_BYTES):
            sha256.update(block)
            size += len(block)
    return size, sha256.hexdigest()


def _write_manifest(found: ShardFolder, path: Path) -> None:
    content = asdict(found) | {"format": _FORMAT, "format_version": _VERSION}
    del content["path"]
    content["manifest_sha256"] = digest(content)
    path.write_text(json.dumps(content, indent=2))
