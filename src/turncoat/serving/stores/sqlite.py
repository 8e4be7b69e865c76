"""Beliefs in one SQLite file, which several processes on one machine may share."""

from __future__ import annotations

import asyncio
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from turncoat.errors import ConfigError, StoreError
from turncoat.serving.stores.checks import check_write, place_number
from turncoat.serving.stores.packing import packed, unpacked
from turncoat.serving.stores.protocol import Change, Entry, Stored

P = ParamSpec("P")
T = TypeVar("T")

SYNCHRONOUS = ("FULL", "NORMAL", "OFF")

_APPLICATION = 0x5443_4253  # "TCBS" in the file's header
_VERSION = 1
_PATIENCE = 5.0  # seconds for which another process may hold the file
_PAGE = 8192  # bytes: with SQLite's usual 4096, an entry of a few KB leaves half of its pages empty
_KEYS_AT_ONCE = 500  # SQLite may be built with a limit of 999 parameters
_FORGOTTEN_AT_ONCE = 200  # entries, so that writes need not wait for long

_SCHEMA = (
    "CREATE TABLE records (key TEXT PRIMARY KEY, counter INTEGER NOT NULL, data BLOB NOT NULL) WITHOUT ROWID",
    """CREATE TABLE log (
        place INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL, time REAL NOT NULL, at REAL NOT NULL,
        moved INTEGER NOT NULL, parties TEXT NOT NULL, content BLOB NOT NULL
    )""",
    "CREATE INDEX log_at ON log (at)",
    "CREATE TABLE log_parties (key TEXT, counter INTEGER, place INTEGER, PRIMARY KEY (key, counter, place)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_COLUMNS = "kind, id, time, at, moved, parties, content, log.place"
_HISTORY = f"""SELECT {_COLUMNS} FROM log_parties AS party CROSS JOIN log ON log.place = party.place
    WHERE party.key = ?1 AND time <= ?2 AND (?3 IS NULL OR id = ?3) AND moved >= ?5
    ORDER BY party.counter DESC, party.place DESC LIMIT ?4"""

_WHAT_HAPPENED = (
    ("SQLITE_FULL", "the disk is full. Free some space; the store goes on by itself"),
    ("SQLITE_BUSY", f"another process kept it locked for {_PATIENCE:g} seconds. Try again"),
    ("SQLITE_READONLY", "it may only be read. Give this user the right to write the file and its folder"),
    ("SQLITE_CANTOPEN", "it cannot be opened. Check that the folder is there and that this user may write in it"),
    ("SQLITE_IOERR", "the disk failed. Check the disk and the messages of the system"),
    ("SQLITE_CORRUPT", "the file is damaged. Restore it from a copy"),
    ("SQLITE_NOTADB", "the file is damaged, or no SQLite file at all. Nothing in it was changed; restore it, or give another path"),
)

_parties_text = msgspec.json.Encoder().encode
_parties_of = msgspec.json.Decoder(tuple[tuple[str, int], ...]).decode


class SQLiteStore:
    """A file and the one thread that writes it. What is read takes microseconds and waits for no writer, so the caller does it.

    `synchronous` says when a write counts as done.

    FULL: when the disk has it; NORMAL: a power cut may take back the latest writes; OFF: a power cut may damage the file.
    """

    def __init__(self, path: str | os.PathLike[str], synchronous: str = "FULL") -> None:
        """Open the file, or make it; a StoreError if it is damaged or somebody else's."""
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self._path = Path(path).absolute()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        try:
            self._writer = self._thread.submit(_File, self._path, synchronous).result()
            self._reader = _File(self._path, synchronous)
        except BaseException:
            self._thread.shutdown()
            raise

    async def read(self, keys: Sequence[str]) -> Mapping[str, Stored]:
        """The records that are there."""
        return self._opened(self._reader).read(keys)

    async def write(self, changes: Sequence[Change], entries: Sequence[Entry] = ()) -> bool:
        """All of it, or nothing and False if a counter is not as expected."""
        check_write(changes, entries)
        return await self._do(self._writer.write, changes, entries)

    async def history(
        self, key: str, *, until: float = math.inf, id: str | None = None, moved: bool = False, limit: int = 100
    ) -> list[Entry]:
        """A party's latest entries, newest first."""
        return self._opened(self._reader).entries(_HISTORY, (key, until, id, max(limit, 0), moved))

    async def log(self, after: str = "", limit: int = 1000) -> list[Entry]:
        """The log from after a place."""
        sql = f"SELECT {_COLUMNS} FROM log WHERE place > ? ORDER BY place LIMIT ?"
        return self._opened(self._reader).entries(sql, (place_number(after), max(limit, 0)))

    async def forget(self, before: float, limit: int = 10_000) -> int:
        """Remove the oldest entries, some at a time."""
        removed = 0
        while removed < limit:
            wanted = min(limit - removed, _FORGOTTEN_AT_ONCE)
            n = await self._do(self._writer.forget, before, wanted)
            removed += n
            if n < wanted:
                break
        return removed

    async def close(self) -> None:
        """Finish what was begun, and tidy the file up."""
        if not self._closed:
            self._closed = True
            self._reader.close()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.close)
            self._thread.shutdown()

    def _opened(self, file: _File) -> _File:
        if self._closed:
            raise StoreError(f"the store {self._path} is closed; open it again")
        return file

    async def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._opened(self._writer)
        return await asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args, **kwargs))


class _File:
    """A connection, used by one thread at a time."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._path = path
        with self._problems():
            self._db = self._opened(synchronous)
            there = os.stat(path)
            self._identity = there.st_dev, there.st_ino

    def _opened(self, synchronous: str) -> sqlite3.Connection:
        _create_private(self._path)
        db = sqlite3.connect(self._path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            db.execute(f"PRAGMA page_size = {_PAGE}")  # of a file that is still to be made
            self._identify(db)
            _use_wal(db)
            db.execute(f"PRAGMA synchronous = {synchronous}")
            db.execute("PRAGMA cache_size = -32768")  # KB
            db.execute("PRAGMA journal_size_limit = 67108864")
        except BaseException:
            db.close()
            raise
        return db

    def _identify(self, db: sqlite3.Connection) -> None:
        """Make sure that the file is a store, or make it one if it is empty."""
        if _is_empty(db):
            db.execute("BEGIN IMMEDIATE")
            if _is_empty(db):  # another process may have been faster
                for statement in _SCHEMA:
                    db.execute(statement)
            db.execute("COMMIT")
        if _pragma(db, "application_id") != _APPLICATION:
            raise StoreError(f"the file {self._path} is not a store of Turncoat's. Nothing in it was changed; give another path")
        if (version := _pragma(db, "user_version")) > _VERSION:
            raise StoreError(
                f"the store {self._path} has version {version}; this Turncoat knows versions up to {_VERSION}. Upgrade Turncoat"
            )

    def _check_place(self) -> None:
        """Refuse to go on with a file that was removed or replaced: what is written to it would be lost."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != self._identity:
            raise StoreError(f"the store {self._path} was removed or replaced while in use. Put it back, or restart")

    def read(self, keys: Sequence[str]) -> dict[str, Stored]:
        with self._problems():
            self._check_place()
            if len(keys) <= _KEYS_AT_ONCE:
                return dict(self._select(keys))
            with self._transaction("DEFERRED"):  # several statements, one moment
                return dict(pair for i in range(0, len(keys), _KEYS_AT_ONCE) for pair in self._select(keys[i : i + _KEYS_AT_ONCE]))

    def _select(self, keys: Sequence[str]) -> Iterator[tuple[str, Stored]]:
        marks = ",".join("?" * len(keys))
        for key, counter, data in self._db.execute(f"SELECT key, counter, data FROM records WHERE key IN ({marks})", keys):
            yield key, Stored(counter, data)

    def write(self, changes: Sequence[Change], entries: Sequence[Entry]) -> bool:
        contents = [packed(entry.content) for entry in entries]  # before the file is locked
        with self._problems():
            self._check_place()
        with self._problems(), self._transaction("IMMEDIATE"):
            if not self._swapped(changes):
                self._db.execute("ROLLBACK")
                return False
            if entries:
                self._append(entries, contents)
            return True

    def _swapped(self, changes: Sequence[Change]) -> bool:
        """Whether every record was at its counter, and is now at the next. If not, some may have been written."""
        news = [(change.key, change.steps, change.data) for change in changes if change.expected == 0]
        olds = [(change.steps, change.data, change.key, change.expected) for change in changes if change.expected]
        return (self._count("INSERT INTO records VALUES (?, ?, ?) ON CONFLICT DO NOTHING", news) == len(news)) and self._count(
            "UPDATE records SET counter = counter + ?, data = ? WHERE key = ? AND counter = ?", olds
        ) == len(olds)

    def _count(self, sql: str, rows: Sequence[tuple[Any, ...]]) -> int:
        """Run a statement for each row; how many records it changed."""
        return self._db.executemany(sql, rows).rowcount if rows else 0

    def _append(self, entries: Sequence[Entry], contents: Sequence[bytes]) -> None:
        (last,) = self._db.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'log'").fetchone()
        places = range((last or 0) + 1, (last or 0) + 1 + len(entries))
        rows = (
            (place, e.kind, e.id, e.time, e.at, e.moved, _parties_text(e.parties).decode(), content)
            for place, e, content in zip(places, entries, contents, strict=True)
        )
        self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        parties = [(key, counter, place) for place, entry in zip(places, entries, strict=True) for key, counter in entry.parties]
        self._db.executemany("INSERT INTO log_parties VALUES (?, ?, ?)", parties)

    def entries(self, sql: str, args: tuple[Any, ...]) -> list[Entry]:
        with self._problems():
            return [_entry(row) for row in self._db.execute(sql, args)]

    def forget(self, before: float, limit: int) -> int:
        with self._problems(), self._transaction("IMMEDIATE"):
            found = self._db.execute("SELECT place, parties FROM log WHERE at < ? ORDER BY at, place LIMIT ?", (before, limit)).fetchall()
            parties = [(key, counter, place) for place, text in found for key, counter in _parties_of(text)]
            self._db.executemany("DELETE FROM log_parties WHERE key = ? AND counter = ? AND place = ?", parties)
            self._db.executemany("DELETE FROM log WHERE place = ?", ((place,) for place, _ in found))
            return len(found)

    def close(self) -> None:
        with self._problems():
            try:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
            finally:
                self._db.close()

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        """Commit at the end, if nobody rolled back; roll back if anything fails, so that the next one finds a clean connection."""
        self._db.execute(f"BEGIN {kind}")
        try:
            yield
            if self._db.in_transaction:
                self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _problems(self) -> Iterator[None]:
        """What SQLite and the system complain about, and what is in the file but should not be, as a StoreError."""
        try:
            yield
        except (sqlite3.Error, OSError, _DamageError) as problem:
            raise StoreError(f"the store {self._path}: {_what_happened(problem)} ({problem})") from problem


def _create_private(path: Path) -> None:
    """Make the file, for this user's eyes only, unless it is there. The files that SQLite puts beside it get the same rights."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _is_empty(db: sqlite3.Connection) -> bool:
    (n_tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return n_tables == 0 and _pragma(db, "application_id") == 0 and _pragma(db, "user_version") == 0


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch to a write-ahead log. SQLite does not wait here for another process that does the same, so this does."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as problem:
            if not problem.sqlite_errorname.startswith("SQLITE_BUSY") or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _what_happened(problem: Exception) -> str:
    name = getattr(problem, "sqlite_errorname", None) or ("SQLITE_CANTOPEN" if isinstance(problem, OSError) else "")
    name = "SQLITE_CORRUPT" if isinstance(problem, _DamageError) else name
    return next((text for start, text in _WHAT_HAPPENED if name.startswith(start)), "SQLite refused")


class _DamageError(Exception):
    """Something in the file that no store put there."""


def _entry(row: tuple[Any, ...]) -> Entry:
    kind, id, when, at, moved, parties, content, place = row
    try:
        return Entry(kind, id, when, at, _parties_of(parties), bool(moved), unpacked(content), str(place))
    except (TypeError, ValueError) as problem:
        raise _DamageError(f"entry {place} of the log: {problem}") from problem
