"""One connection to a SQLite file of beliefs: what is read from it and written to it.

Python's lock is let go and taken again around every step of every SQLite statement, and a thread that waits for it while another computes
waits for milliseconds. So a write of any usual size is one statement with one step, and what it needs is made ready by the caller.
"""

from __future__ import annotations

import os
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from turncoat.errors import CorruptRecordError, StoreError
from turncoat.serving.stores.protocol import LogEntry, StoredRecord, WriteGroup, validate_record
from turncoat.serving.stores.segments import POSITION_BITS, Segment
from turncoat.serving.stores.sqlite_tables import (
    APPLICATION,
    DOORS,
    N_COLUMNS,
    SCHEMA,
    VERSION,
    inserting,
    rows_of,
)

_PATIENCE = 5.0  # seconds for which another process may hold the file
_READERS_PATIENCE = 0.5  # seconds for which those who read may keep the write-ahead log: others cannot write meanwhile
_PAGE = 4096  # bytes
_CHECKPOINT = 4000  # pages in the write-ahead log: those that were written several times by then go into the file once
_KEYS_AT_ONCE = 500  # SQLite may be built with a limit of 999 parameters
_ROWS_AT_ONCE = 64  # likewise
_NONE = StoredRecord(0, b"")  # a record that is not there
_STATEMENTS = 256  # kept ready: a read and a batch of every usual size, and some more

_HISTORY = f"""SELECT segment, contents, heads FROM log WHERE segment IN (
    SELECT place >> {POSITION_BITS} FROM (
        SELECT place FROM log_parties WHERE key = ?1 AND time <= ?2 AND (?3 IS NULL OR id = ?3) AND moved >= ?4
        ORDER BY counter DESC, place DESC LIMIT ?5
    )
)"""

_WHAT_HAPPENED = (
    ("SQLITE_FULL", "the disk is full. Free some space; the store goes on by itself"),
    ("SQLITE_BUSY", f"another process kept it locked for {_PATIENCE:g} seconds. Try again"),
    (
        "SQLITE_READONLY",
        "it may only be read. Give this user the right to write the file and its folder",
    ),
    (
        "SQLITE_CANTOPEN",
        "it cannot be opened. Check that the folder is there and that this user may write in it",
    ),
    ("SQLITE_IOERR", "the disk failed. Check the disk and the messages of the system"),
    ("SQLITE_CORRUPT", "the file is damaged. Restore it from a copy"),
    (
        "SQLITE_NOTADB",
        "the file is damaged, or no SQLite file at all. Nothing in it was changed; restore it, or give another path",
    ),
)


class SQLiteFile:
    """A connection, used by one thread at a time."""

    def __init__(self, path: Path, synchronous: str) -> None:
        """Open the file, or make it."""
        self._path = path
        with self._problems():
            self._db = self._opened(synchronous)
            there = os.stat(path)
            self._identity = there.st_dev, there.st_ino

    def _opened(self, synchronous: str) -> sqlite3.Connection:
        _create_private(self._path)
        db = sqlite3.connect(
            self._path,
            timeout=_PATIENCE,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
        )
        try:
            db.execute(f"PRAGMA page_size = {_PAGE}")  # of a file that is still to be made
            self._identify(db)
            _use_wal(db)
            db.execute(f"PRAGMA synchronous = {synchronous}")
            db.execute("PRAGMA cache_size = -32768")  # KB
            db.execute("PRAGMA journal_size_limit = 67108864")
            db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
            db.execute("PRAGMA temp_store = MEMORY")
            # Overwrite what is removed. To do so only while a customer is erased would leave what was moved or replaced before.
            db.execute("PRAGMA secure_delete = ON")
            for statement in DOORS:
                db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db

    def _identify(self, db: sqlite3.Connection) -> None:
        """Make sure that the file is a store, or make it one if it is empty."""
        if _is_empty(db):
            db.execute("BEGIN IMMEDIATE")
            if _is_empty(db):  # another process may have been faster
                for statement in SCHEMA:
                    db.execute(statement)
            db.execute("COMMIT")
        if _pragma(db, "application_id") != APPLICATION:
            raise StoreError(
                f"the file {self._path} is not a store of Turncoat's. Nothing in it was changed; give another path"
            )
        version = _pragma(db, "user_version")
        if version < VERSION:
            raise StoreError(
                f"the store {self._path} has version {version}; this Turncoat reads version {VERSION} only. Nothing in it was changed; "
                "give another path, for a new store, and fill it from your own books with `turncoat replay`"
            )
        if version > VERSION:
            raise StoreError(
                f"the store {self._path} has version {version}; this Turncoat knows versions up to {VERSION}. Upgrade Turncoat"
            )

    def check_place(self) -> None:
        """Refuse to go on with a file that was removed or replaced: what is written to it would be lost."""
        there = None
        with self._problems(), suppress(FileNotFoundError):
            there = os.stat(self._path)
        if there is None or (there.st_dev, there.st_ino) != self._identity:
            raise StoreError(
                f"the store {self._path} was removed or replaced while in use. Put it back, or restart"
            )

    def read_records(self, keys: Sequence[str]) -> dict[str, StoredRecord]:
        """The records that are there, as of one moment."""
        with self._problems():
            if len(keys) <= _KEYS_AT_ONCE:
                return self._records(keys)
            with self._transaction("DEFERRED"):  # several statements, one moment
                return self._records(keys)

    def _records(self, keys: Sequence[str]) -> dict[str, StoredRecord]:
        held: dict[str, StoredRecord] = {}
        for i in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[i : i + _KEYS_AT_ONCE]
            sql = (
                f"SELECT key, counter, data FROM records WHERE key IN ({','.join('?' * len(some))})"
            )
            held |= {
                key: validate_record(counter, data)
                for key, counter, data in self._db.execute(sql, some)
            }
        return held

    def write(self, groups: Sequence[WriteGroup], values: Sequence[Any]) -> list[bool]:
        """Each group whole, or nothing of it; which. `values` are those of all of them, as `rows_of` gives them."""
        with self._problems():
            try:
                self._put(values)
            except (
                sqlite3.IntegrityError
            ):  # and rolled back: somebody else wrote one of the records
                return self._put_some(groups)
            return [True] * len(groups)

    def _put(self, values: Sequence[Any]) -> None:
        """Write a batch, all or nothing. What is no more than one statement needs no transaction around it."""
        several = len(values) > N_COLUMNS["batch"] * _ROWS_AT_ONCE and not self._db.in_transaction
        with self._transaction("IMMEDIATE") if several else nullcontext():
            self._insert("batch", values)

    def _insert(self, view: str, values: Sequence[Any]) -> None:
        """Rows, of which all the values are given one after another."""
        at_once = N_COLUMNS[view] * _ROWS_AT_ONCE
        for i in range(0, len(values), at_once):
            some = values[i : i + at_once]
            # Unlike `execute` it does not ask for the last row's number, for which Python's lock would be let go once more.
            self._db.executemany(inserting(view, len(some) // N_COLUMNS[view]), (some,))

    def _put_some(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Write those groups whose records are at their counters; which these are."""
        with self._transaction("IMMEDIATE"):
            held = self._records([change.key for group in groups for change in group.writes])
            fit = [
                all(
                    held.get(change.key, _NONE).counter == change.expected_counter
                    for change in group.writes
                )
                for group in groups
            ]
            self._put(rows_of([group for group, fits in zip(groups, fit, strict=True) if fits]))
            return fit

    def read_history(
        self, key: str, until: float, id: str | None, moved: bool, limit: int
    ) -> list[LogEntry]:
        """A party's latest entries, newest first."""
        found: list[tuple[int, LogEntry]] = []
        with self._problems():
            for row in self._rows(_HISTORY, (key, until, id, moved, limit)):
                with _sound(row[0]):
                    segment = Segment.read(*row)
                    counters = {
                        position: counter
                        for position, head in segment.present()
                        for party, counter in head.parties
                        if party == key
                        and head.time <= until
                        and id in (None, head.id)
                        and head.moved >= moved
                    }
                    found += zip(counters.values(), segment.entries(list(counters)), strict=True)
        found.sort(key=lambda one: (one[0], int(one[1].cursor)), reverse=True)
        return [entry for _, entry in found[:limit]]

    def read_log(self, after: int, limit: int) -> list[LogEntry]:
        """The log from after a place."""
        found: list[LogEntry] = []
        with self._problems():
            sql = "SELECT segment, contents, heads FROM log WHERE segment >= ? ORDER BY segment"
            for row in self._rows(sql, (after >> POSITION_BITS,)):
                if len(found) >= limit:
                    break
                with _sound(row[0]):
                    segment = Segment.read(*row)
                    positions = [
                        position
                        for position, _ in segment.present()
                        if segment.place(position) > after
                    ]
                    found += segment.entries(positions[: limit - len(found)])
        return found

    def _rows(self, sql: str, args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Row by row; who leaves early holds no row of the file open."""
        with closing(self._db.execute(sql, args)) as rows:
            yield from rows

    def delete_entries_before(self, before: float, limit: int) -> int:
        """Remove the oldest entries; how many."""
        with self._problems(), self._transaction("IMMEDIATE"):
            segments, oldest = self._oldest(before, limit)
            for number, gone in _by_segment(
                (number, position) for _, number, position in oldest
            ).items():
                self._remove(segments[number], gone)
            return len(oldest)

    def erase(self, key: str, limit: int) -> int:
        """Remove a party's oldest entries and, if there are less than the limit, its record."""
        with self._problems(), self._transaction("IMMEDIATE"):
            sql = "SELECT place FROM log_parties WHERE key = ? ORDER BY counter, place LIMIT ?"
            places = [place for (place,) in self._db.execute(sql, (key, limit)).fetchall()]
            for number, gone in _by_segment(
                divmod(place, 1 << POSITION_BITS) for place in places
            ).items():
                self._remove(self._with_entries(number, gone), gone)
            if len(places) < limit:
                self._db.execute("DELETE FROM records WHERE key = ?", (key,))
            return len(places)

    def _with_entries(self, number: int, positions: set[int]) -> Segment:
        """A segment, without contents, that has entries at these positions, as the index says."""
        row = self._db.execute("SELECT heads FROM log WHERE segment = ?", (number,)).fetchone()
        if row is None:
            raise _DamageError(f"segment {number} of the log is missing")
        with _sound(number):
            segment = Segment.read(number, b"", *row)
            if not positions <= {position for position, _ in segment.present()}:
                raise ValueError("an entry is missing")
        return segment

    def empty_wal(self) -> None:
        """Put what is in the write-ahead log into the file, and nothing in its place, unless others read from it all the while."""
        with self._problems():
            self._db.execute(f"PRAGMA busy_timeout = {round(1000 * _READERS_PATIENCE)}")
            try:
                self._db.execute("PRAGMA main.wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {round(1000 * _PATIENCE)}")

    def _oldest(
        self, before: float, limit: int
    ) -> tuple[dict[int, Segment], list[tuple[float, int, int]]]:
        """When the oldest entries were written, in which segments and positions; and these segments, without contents."""
        segments: dict[int, Segment] = {}
        found: list[tuple[float, int, int]] = []
        for number, at, heads in self._rows(
            "SELECT segment, at, heads FROM log WHERE at < ? ORDER BY at, segment", (before,)
        ):
            if bisect_left(found, (at, number)) >= limit:  # all that follows is younger
                break
            with _sound(number):
                segments[number] = Segment.read(number, b"", heads)
            found += [
                (head.at, number, position)
                for position, head in segments[number].present()
                if head.at < before
            ]
            found.sort()
        return segments, found[:limit]

    def _remove(self, segment: Segment, positions: set[int]) -> None:
        """Take entries out of a segment, and the segment away if none is left."""
        gone = [
            value
            for position, head in segment.present()
            for party, counter in head.parties
            if position in positions
            for value in (party, counter, segment.place(position))
        ]
        self._insert("removal", gone)
        if len(positions) == len(list(segment.present())):
            self._db.execute("DELETE FROM log WHERE segment = ?", (segment.number,))
        else:
            (contents,) = self._db.execute(
                "SELECT contents FROM log WHERE segment = ?", (segment.number,)
            ).fetchone()
            with _sound(segment.number):
                rest = segment._replace(contents=contents).without(positions)
            self._db.execute(
                "UPDATE log SET at = ?, contents = ?, heads = ? WHERE segment = ?",
                (*rest, segment.number),
            )

    def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        with self._problems():
            newest: float | None = self._db.execute("SELECT max(at) FROM log").fetchone()[0]
            return newest

    def check_writable(self) -> None:
        """Write one page."""
        with self._problems():
            self._db.execute(f"PRAGMA user_version = {VERSION}")

    def close(self) -> None:
        """Bring the write-ahead log into the file as far as nobody needs it, and let go."""
        with self._problems():
            try:
                self._db.execute("PRAGMA main.wal_checkpoint(PASSIVE)")
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
            kind = CorruptRecordError if isinstance(problem, _DamageError) else StoreError
            raise kind(
                f"the store {self._path}: {_what_happened(problem)} ({problem})"
            ) from problem


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
            if (
                not problem.sqlite_errorname.startswith("SQLITE_BUSY")
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(0.01)


def _what_happened(problem: Exception) -> str:
    name = getattr(problem, "sqlite_errorname", None) or (
        "SQLITE_CANTOPEN" if isinstance(problem, OSError) else ""
    )
    name = "SQLITE_CORRUPT" if isinstance(problem, _DamageError) else name
    return next(
        (text for start, text in _WHAT_HAPPENED if name.startswith(start)), "SQLite refused"
    )


class _DamageError(Exception):
    """Something in the file that no store put there."""


@contextmanager
def _sound(number: int) -> Iterator[None]:
    """While a segment of the log is unpacked."""
    try:
        yield
    except (TypeError, ValueError) as problem:
        raise _DamageError(f"segment {number} of the log: {problem}") from problem


def _by_segment(places: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
    """The positions in each segment."""
    positions: dict[int, set[int]] = {}
    for number, position in places:
        positions.setdefault(number, set()).add(position)
    return positions
