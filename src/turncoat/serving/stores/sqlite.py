"""A store in one SQLite file, which several processes on one machine may share, or in memory.

Plain SQL can read it: `records` has one row per customer or counterparty, `log` one row per scored
transaction or label, `log_counterparties` one row for each counterparty of these.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib.resources import files
from itertools import chain, compress
from pathlib import Path
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

from turncoat.errors import ConfigError, CorruptRecordError, StoreError, StoreUnavailableError
from turncoat.serving.stores import protocol
from turncoat.serving.stores.protocol import EntryFilters, LogEntry, StoredRecord, WriteGroup

T = TypeVar("T")

_logger = logging.getLogger("turncoat")

SYNCHRONOUS = {
    "FULL": "a committed write survives a power failure",
    "NORMAL": "a power failure may undo the latest writes",
    "OFF": "a power failure may damage the file",
}
_MEMORY = "memory://"  # instead of a path, which would be absolute
_APPLICATION_ID = 0x5443_4253  # "TCBS", in the header of the file
_VERSION = 5
_, *_SECTIONS = (files(__package__) / "sqlite.sql").read_text("utf-8").split("\n-- name: ")
_SQL = {name: sql for name, _, sql in (section.partition("\n") for section in _SECTIONS)}
# An optional condition in one statement would keep SQLite from using the index.
_FILTER = "AND belief_updated >= :belief_updated"
_SQL["read_transaction"] = _SQL["read_history"].replace(
    _FILTER, f"{_FILTER} AND transaction_id = :transaction_id"
)

_BUSY_TIMEOUT_S = 5.0  # for another process that holds the write lock
_CHECKPOINT_TIMEOUT_S = 0.5  # for readers, while nobody else can write
_MAX_KEYS = 500  # per query: SQLite may be built with a limit of 999 parameters
_DELETE_BATCH = 500  # entries per transaction, so that writers do not wait long

_REMEDIES = {
    "SQLITE_FULL": "the disk is full. Free some space; the service recovers by itself",
    "SQLITE_IOERR_SHMSIZE": "the disk is full. Free some space and start again",
    "SQLITE_BUSY": f"another process kept it locked for {_BUSY_TIMEOUT_S:g} seconds. Try again",
    "SQLITE_READONLY": "it is read-only. Allow this user to write the file and its folder",
    "SQLITE_CANTOPEN": "it cannot be opened. Check that its folder exists and is writable",
    "SQLITE_IOERR": "reading or writing failed. Check the disk, its limits and the system log",
    "SQLITE_CORRUPT": "the file is damaged. Restore it from a backup",
    "SQLITE_NOTADB": "the file is damaged or not a SQLite file. It was not changed; restore it "
    "from a backup or choose another path",
}


class SQLiteStore:
    """One connection in a thread of its own, so that the event loop never waits for a disk."""

    def __init__(
        self, path: str | os.PathLike[str] | None, synchronous: str = "FULL", create: bool = False
    ) -> None:
        """Open a file, or None for memory. SQLite's `synchronous` says when a write is done."""
        if synchronous not in SYNCHRONOUS:
            names = ", ".join(SYNCHRONOUS)
            raise ConfigError(f"synchronous must be one of {names}, not {synchronous!r}")
        self._path = _MEMORY if path is None else str(Path(path).absolute())
        self._synchronous, self._closed = synchronous, False
        with self._errors():
            self._db = self._connect(create)
            try:
                self._db.execute("PRAGMA page_size = 8192")  # of a new file
                self._check_schema(create)
                self._use_wal()
                self._run_script("settings")
                self._db.execute(f"PRAGMA synchronous = {synchronous}")
                self._is_empty()  # a read opens the -wal file
            except BaseException:
                self._db.close()
                raise
            parts = () if path is None else ("", "-wal", "-shm")
            paths = [f"{self._path}{part}" for part in parts]
            self._files = {path: _identify(path) for path in paths}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sqlite")

    def _connect(self, create: bool) -> sqlite3.Connection:
        uri = f"file:{quote(self._path)}?mode=rw"
        if self._path == _MEMORY:
            uri = "file::memory:"
        elif create:
            with suppress(FileExistsError):  # private, as the -wal and -shm files then are too
                os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not os.path.exists(self._path):
            remedy = "Check the path. `turncoat replay` and `serve --create-store` create one"
            raise StoreError(f"there is no store {self._path}. {remedy}")
        return sqlite3.connect(
            uri, _BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False, uri=True
        )

    def _check_schema(self, create: bool) -> None:
        """Check that the file is a store of this version; create the tables in an empty file."""
        if create and self._is_empty():
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                if self._is_empty():  # no other process was faster
                    self._run_script("schema")
                    self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                    self._db.execute(f"PRAGMA user_version = {_VERSION}")
        if self._read_pragma("application_id") != _APPLICATION_ID:
            raise StoreError(f"the file {self._path} is not a Turncoat store. Choose another path")
        if (version := self._read_pragma("user_version")) != _VERSION:
            old = "It was not changed; fill a new store at another path with `turncoat replay`"
            remedy = old if version < _VERSION else "Upgrade Turncoat"
            problem = f"has version {version}; this Turncoat reads version {_VERSION}"
            raise StoreError(f"the store {self._path} {problem}. {remedy}")

    def _is_empty(self) -> bool:
        (n_tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return n_tables == 0 and not self._read_pragma("application_id")

    def _read_pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _run_script(self, name: str) -> None:
        for statement in _SQL[name].split(";"):
            self._db.execute(statement)

    def _use_wal(self) -> None:
        """Switch to a write-ahead log. SQLite does not wait for its lock here, so this does."""
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as problem:
                is_busy = problem.sqlite_errorname.startswith("SQLITE_BUSY")
                if not is_busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    async def _run(self, operation: Callable[..., T], *args: Any) -> T:
        """Run an operation in the thread of the connection."""
        if self._closed:
            raise StoreError(f"the store {self._path} is closed; open it again")
        for path, identity in self._files.items():
            if _identify(path) != identity:  # writes would be lost
                raise StoreError(
                    f"the store's file {path} was removed or replaced while in use. Stop every "
                    "process that uses the store, restore what is missing, and start again"
                )
        with self._errors():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, operation, *args)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of the system into a StoreError."""
        try:
            yield
        except (sqlite3.Error, OSError) as problem:
            code = getattr(problem, "sqlite_errorname", None) or "SQLITE_CANTOPEN"
            remedy = next((text for name, text in _REMEDIES.items() if code.startswith(name)), code)
            error = StoreUnavailableError if code.startswith("SQLITE_BUSY") else StoreError
            raise error(f"the store {self._path}: {remedy} ({problem})") from problem

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """Return the records that exist, by key."""
        return await self._run(self._read_records, keys)

    def _read_records(self, keys: Sequence[str]) -> dict[str, StoredRecord]:
        with self._db:
            self._db.execute("BEGIN DEFERRED")
            rows = self._select("key, counter, data", keys)
        return {key: protocol.validate_record(counter, data) for key, counter, data in rows}

    def _select(self, columns: str, keys: Sequence[str]) -> list[Any]:
        rows: list[Any] = []
        for i in range(0, len(keys), _MAX_KEYS):
            some = keys[i : i + _MAX_KEYS]
            marks = ",".join("?" * len(some))
            sql = f"SELECT {columns} FROM records WHERE key IN ({marks})"
            rows += self._db.execute(sql, some).fetchall()
        return rows

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Write the groups whose records are at their expected counters."""
        protocol.check_write(groups)
        return await self._run(self._write, groups)

    def _write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        keys = [write.key for group in groups for write in group.writes]
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            counters = dict(self._select("key, counter", keys))
            results = [
                all(counters.get(key, 0) == expected for key, expected, _, _ in group.writes)
                for group in groups
            ]
            records = [
                (key, expected + increment, data)
                for group in compress(groups, results)
                for key, expected, data, increment in group.writes
            ]
            self._db.executemany(_SQL["set_record"], records)
            self._add_entries([e for group in compress(groups, results) for e in group.entries])
        return results

    def _add_entries(self, entries: Sequence[LogEntry]) -> None:
        """Append to the log, with numbers that were never used."""
        last = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'log'").fetchone()
        numbered = list(enumerate(entries, start=1 + (last[0] if last else 0)))
        self._db.executemany(_SQL["add_entry"], [_entry_row(*pair) for pair in numbered])
        others = [
            (number, place, *party)
            for number, entry in numbered
            for place, party in enumerate(entry.parties[1:], start=1)
        ]
        self._db.executemany(_SQL["add_counterparty"], others)

    async def read_history(
        self, key: str, limit: int = 100, **filters: Unpack[EntryFilters]
    ) -> list[LogEntry]:
        """Return a party's latest log entries, newest first."""
        values = {"until": math.inf, "transaction_id": None, "belief_updated": False, **filters}
        values |= {"key": key, "limit": max(limit, 0)}
        name = "read_history" if values["transaction_id"] is None else "read_transaction"
        return await self._run(self._read_entries, _SQL[name], values)

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """Return log entries after a cursor."""
        protocol.check_cursor(after, "[0-9]{1,18}")
        values = int(after or 0), max(limit, 0)
        return await self._run(self._read_entries, _SQL["read_log"], values)

    async def find_customers(self, transaction_ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the keys of the customers with a scored transaction of each id."""
        return await self._run(self._find_customers, transaction_ids)

    def _find_customers(self, ids: Sequence[str]) -> dict[str, tuple[str, ...]]:
        found = {}
        with self._db:
            self._db.execute("BEGIN DEFERRED")
            for id in ids:
                rows = self._execute(_SQL["find_customers"], (id, protocol.MAX_CUSTOMERS))
                found[id] = tuple(key for (key,) in rows)
        return found

    def _read_entries(self, sql: str, values: Any) -> list[LogEntry]:
        """Return the entries of a query with their counterparties, as of one instant."""
        others: dict[int, list[tuple[Any, Any]]] = {}
        with self._db:
            self._db.execute("BEGIN DEFERRED")
            rows = self._execute(sql, values)
            for i in range(0, len(rows), _MAX_KEYS):
                numbers = [row[0] for row in rows[i : i + _MAX_KEYS]]
                marks = ",".join("?" * len(numbers))
                sql = f"SELECT entry, key, counter FROM log_counterparties WHERE entry IN ({marks})"
                for number, *party in self._execute(f"{sql} ORDER BY entry, place", numbers):
                    others.setdefault(number, []).append((party[0], party[1]))
        return [_parse_entry(self._path, row, others.get(row[0], ())) for row in rows]

    def _execute(self, sql: str, values: Any = ()) -> list[Any]:
        return self._db.execute(sql, values).fetchall()

    async def delete_entries_before(self, written_before: float, limit: int = 10_000) -> int:
        """Delete the oldest entries, in batches."""
        return await self._delete(self._delete_oldest, written_before, limit)

    def _delete_oldest(self, written_before: float, limit: int) -> int:
        return self._db.execute(_SQL["delete_oldest"], (written_before, limit)).rowcount

    async def erase(self, key: str) -> int:
        """Delete a party's entries and its record; SQLite overwrites their bytes with zeros."""
        n_deleted = await self._delete(self._erase_batch, key, sys.maxsize)
        await self._run(self._truncate_wal)
        return n_deleted

    def _erase_batch(self, key: str, limit: int) -> int:
        """Delete up to `limit` entries of a party; if that was all, its record too."""
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            values = {"key": key, "limit": limit}
            n_deleted = self._db.execute(_SQL["delete_party"], values).rowcount
            if n_deleted < limit:
                self._db.execute("DELETE FROM records WHERE key = ?", (key,))
        return n_deleted

    async def _delete(self, delete_batch: Callable[[Any, int], int], value: Any, limit: int) -> int:
        """Delete up to `limit` entries, in batches; return how many."""
        n_deleted, n_last = 0, _DELETE_BATCH
        while n_last == _DELETE_BATCH:
            n_last = await self._run(delete_batch, value, min(limit - n_deleted, _DELETE_BATCH))
            n_deleted += n_last
        return n_deleted

    def _truncate_wal(self) -> None:
        """Copy the write-ahead log into the file and empty it, unless a reader holds it."""
        self._db.execute(f"PRAGMA busy_timeout = {round(1000 * _CHECKPOINT_TIMEOUT_S)}")
        try:
            self._db.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            self._db.execute(f"PRAGMA busy_timeout = {round(1000 * _BUSY_TIMEOUT_S)}")

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        ((newest,),) = await self._run(self._execute, "SELECT max(written_at) FROM log")
        if newest is not None and not isinstance(newest, float):
            problem = f"`written_at` of an entry is {newest!r}, which is not a time"
            raise CorruptRecordError(f"the store {self._path}: {problem}. Delete that row")
        return newest

    async def check_writable(self) -> None:
        """Write 64 KB, about a small batch: a full disk often has room for a few bytes."""
        await self._run(self._execute, _SQL["check_write"])

    async def log_durability(self) -> None:
        """Log what the `synchronous` setting guarantees."""
        level = logging.INFO if self._synchronous == "FULL" else logging.WARNING
        promise = f"synchronous={self._synchronous}, {SYNCHRONOUS[self._synchronous]}"
        if self._path == _MEMORY:
            level, promise = logging.WARNING, "all data are lost when the process ends"
        _logger.log(level, "store %s: %s", self._path, promise)

    async def close(self) -> None:
        """Finish running operations and close the file."""
        if not self._closed:
            self._closed = True
            with self._errors():
                await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
            self._executor.shutdown()

    def _close(self) -> None:
        with suppress(sqlite3.Error):  # for example a full disk: the -wal file keeps the data
            self._db.execute("PRAGMA main.wal_checkpoint(PASSIVE)")
        self._db.close()


def _identify(path: str) -> tuple[int, int] | None:
    """Return what tells a file from another at the same path; None if it does not exist."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _entry_row(number: int, entry: LogEntry) -> tuple[Any, ...]:
    """Return an entry as the columns of the log."""
    kind, transaction_id, time, written_at, parties, belief_updated, content, _ = entry
    head = number, kind, transaction_id, float(time), float(written_at), *parties[0]
    return *head, int(belief_updated), content


def _parse_entry(path: str, row: Sequence[Any], others: Sequence[tuple[Any, Any]]) -> LogEntry:
    """Return a row of the log as an entry; raise CorruptRecordError if a column is damaged."""
    number, kind, id, time, written_at, customer, count, updated, content = row
    parties: tuple[tuple[str, int], ...] = ((customer, count), *others)
    types = [str, str, float, float, int, bytes, *[str, int] * len(parties)]
    values = kind, id, time, written_at, updated, content, *chain.from_iterable(parties)
    if [type(value) for value in values] != types:
        damage = f"entry {number} of the log is damaged (a column has the wrong type)"
        remedy = "Restore the file from a backup, or delete this row"
        raise CorruptRecordError(f"the store {path}: {damage}. {remedy}")
    return LogEntry(kind, id, time, written_at, parties, bool(updated), content, str(number))
