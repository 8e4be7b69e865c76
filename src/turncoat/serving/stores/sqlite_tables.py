"""What a SQLite file of beliefs consists of, and a write as rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from turncoat.serving.stores.protocol import LogEntry, WriteGroup
from turncoat.serving.stores.segments import POSITION_BITS, cut, pack

APPLICATION = 0x5443_4253  # "TCBS" in the file's header
VERSION = 2

SCHEMA = (
    "CREATE TABLE records (key TEXT PRIMARY KEY NOT NULL, counter INTEGER NOT NULL, data BLOB NOT NULL)",
    """CREATE TABLE log (
        segment INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, contents BLOB NOT NULL, heads BLOB NOT NULL
    )""",  # heads come last, so that SQLite follows all pages of the contents on the way to them, and notices damage there
    "CREATE INDEX log_at ON log (at)",
    """CREATE TABLE log_parties (
        key TEXT NOT NULL, counter INTEGER NOT NULL, place INTEGER NOT NULL, time REAL NOT NULL, id TEXT NOT NULL, moved INTEGER NOT NULL,
        PRIMARY KEY (key, counter, place)
    ) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)

# What is inserted into these views happens to the tables, in one step for any number of rows. A row of a batch has a record, a segment
# of the log and an entry of the index by party, or any of these (the others are NULL). A record that is not at its counter ends the
# whole statement. A statement is a transaction of its own, if it is in no other.
_BATCH_COLUMNS = "key, expected, counter, data, at, contents, heads, party, party_counter, position, time, id, moved"
DOORS = (
    f"CREATE TEMP VIEW batch AS SELECT {', '.join(f'NULL AS {name}' for name in _BATCH_COLUMNS.split(', '))}",
    f"""CREATE TEMP TRIGGER batch_row INSTEAD OF INSERT ON batch BEGIN
        INSERT INTO records SELECT NEW.key, NEW.counter, NEW.data WHERE NEW.expected = 0;
        UPDATE records SET counter = NEW.counter, data = NEW.data WHERE key = NEW.key AND counter = NEW.expected;
        SELECT RAISE(ABORT, 'a record is not at its counter') WHERE NEW.expected > 0 AND changes() = 0;
        INSERT INTO log (at, contents, heads) SELECT NEW.at, NEW.contents, NEW.heads WHERE NEW.heads IS NOT NULL;
        INSERT INTO log_parties SELECT NEW.party, NEW.party_counter, (SELECT max(segment) FROM log) << {POSITION_BITS} | NEW.position,
            NEW.time, NEW.id, NEW.moved WHERE NEW.party IS NOT NULL;
    END""",
    "CREATE TEMP VIEW removal AS SELECT NULL AS key, NULL AS counter, NULL AS place",
    """CREATE TEMP TRIGGER removal_row INSTEAD OF INSERT ON removal BEGIN
        DELETE FROM log_parties WHERE key = NEW.key AND counter = NEW.counter AND place = NEW.place;
    END""",
)
N_COLUMNS = {"batch": 13, "removal": 3}
_NO_CHANGE, _NO_SEGMENT, _NO_PARTY, _NOT_LOGGED = (None,) * 4, (None,) * 3, (None,) * 6, (None,) * 9


@cache
def inserting(view: str, n: int) -> str:
    """SQL for n rows."""
    row = f"({', '.join('?' * N_COLUMNS[view])})"
    return f"INSERT INTO {view} VALUES {', '.join([row] * n)}"


def rows_of(groups: Sequence[WriteGroup]) -> list[Any]:
    """All values of all rows that a write puts in, one after another."""
    changes: list[tuple[Any, ...]] = [
        (key, expected, expected + steps, data)
        for group in groups
        for key, expected, data, steps in group.writes
    ]
    logged = [
        row
        for entries in cut([entry for group in groups for entry in group.entries])
        for row in _log_rows(entries)
    ]
    changes += [_NO_CHANGE] * (len(logged) - len(changes))
    logged += [_NOT_LOGGED] * (len(changes) - len(logged))
    values: list[Any] = []
    for change, line in zip(changes, logged, strict=True):
        values += change
        values += line
    return values


def _log_rows(entries: Sequence[LogEntry]) -> list[tuple[Any, ...]]:
    """A segment, in the first row, and the parties of its entries."""
    parties: list[tuple[Any, ...]] = [
        (key, counter, position, time, id, moved)
        for position, (_, id, time, _, entry_parties, moved, _, _) in enumerate(entries)
        for key, counter in entry_parties
    ]
    first, *others = parties or [_NO_PARTY]
    return [(*pack(entries), *first), *((*_NO_SEGMENT, *party) for party in others)]
