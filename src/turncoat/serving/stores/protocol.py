"""The interface of every store: records by key, and a log of scores and labels.

Records change by compare-and-set. Records and log entries of one group are written together or
not at all. Several processes may use one store at the same time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypedDict, Unpack

SCORE, LABEL = "score", "label"  # kinds of log entries

_MAX_COUNTER = 2**62
MAX_CUSTOMERS = 2  # that `find_customers` returns for an id


class StoredRecord(NamedTuple):
    """A record as the store holds it. The counter starts at 1 and grows with every write."""

    counter: int
    data: bytes


class RecordWrite(NamedTuple):
    """A record to write if its counter is still `expected_counter` (0: no such record yet)."""

    key: str
    expected_counter: int
    data: bytes
    increment: int = 1  # of the counter: one for each log entry that the record gets


class LogEntry(NamedTuple):
    """One line of the log: a scored transaction or a label."""

    kind: str  # SCORE or LABEL
    transaction_id: str
    time: float  # of the transaction, in seconds
    written_at: float  # in seconds since 1970, by the server's clock
    # The customer as (key, counter), then the transaction's counterparties. The counter is the
    # record's value after this entry; it orders a party's history.
    parties: tuple[tuple[str, int], ...]
    belief_updated: bool  # whether it changed the beliefs of these parties
    content: bytes
    cursor: str = ""  # position in the log, set by the store; `read_log` continues after it


class WriteGroup(NamedTuple):
    """Records and log entries that are written together or not at all."""

    writes: Sequence[RecordWrite]
    entries: Sequence[LogEntry] = ()


class EntryFilters(TypedDict, total=False):
    """Keywords of `read_history`: which log entries to return."""

    until: float  # the latest time of a transaction
    transaction_id: str | None
    belief_updated: bool  # True: only the entries that changed beliefs


class RecordStore(Protocol):
    """Records and the histories of parties: all that scoring needs of a store."""

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """Return the records that exist, by key, as of one instant."""

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Write the groups in one transaction; return for each group whether it was written.

        A group is skipped if any of its records is not at its expected counter. Groups share no
        record. Log entries keep the order of the groups. After a StoreError nothing was written,
        unless the connection broke before the reply arrived.
        """

    async def read_history(
        self, key: str, limit: int = 100, **filters: Unpack[EntryFilters]
    ) -> list[LogEntry]:
        """Return a party's latest log entries, newest write first."""


class Store(RecordStore, Protocol):
    """Records and their log. Every method raises StoreError if the store cannot do its work."""

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """Return log entries in the order they were written, starting after a cursor."""

    async def find_customers(self, transaction_ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the keys of the customers with a scored transaction of each id.

        An id is unique within its customer only. Two keys at most are returned: that is enough to
        see that an id does not identify a transaction.
        """

    async def delete_entries_before(self, written_before: float, limit: int = 10_000) -> int:
        """Delete up to `limit` of the oldest entries written before this time; return how many."""

    async def erase(self, key: str) -> int:
        """Delete a party's record and all its log entries; return how many entries.

        Records of other parties stay. Entries go in batches, and the record goes in the same
        transaction as the last batch, so an interrupted erasure can simply be repeated.
        """

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at` in the log; None if the log is empty."""

    async def check_writable(self) -> None:
        """Make one tiny real write; a StoreError says why writes fail."""

    async def log_durability(self) -> None:
        """Log what the store guarantees after a crash; a warning if data may be lost."""

    async def close(self) -> None:
        """Finish running operations and release the store."""


def check_write(groups: Sequence[WriteGroup]) -> None:
    """Raise a ValueError for groups that no store could write or find again."""
    keys: set[str] = set()
    for writes, entries in groups:
        for key, expected, _, increment in writes:
            if key in keys:
                raise ValueError(f"the key {key!r} occurs twice in the write; it may occur once")
            keys.add(key)
            if expected < 0 or increment < 1:
                needs = "expected_counter >= 0 and increment >= 1"
                raise ValueError(f"the record {key!r} needs {needs}, not {expected}, {increment}")
        for _, id, time, written_at, parties, _, _, _ in entries:
            if not -math.inf < written_at < math.inf or time != time:
                problem = f"needs times in seconds, not time={time} and written_at={written_at}"
            elif not parties:
                problem = "needs a customer"
            elif len(dict(parties)) < len(parties):
                problem = f"has a key twice: {', '.join(repr(key) for key, _ in parties)}"
            else:
                continue
            raise ValueError(f"the log entry of transaction {id!r} {problem}")


def matches(entry: LogEntry, filters: EntryFilters) -> bool:
    """Return whether an entry passes the filters of `read_history`."""
    return (
        entry.time <= filters.get("until", math.inf)
        and filters.get("transaction_id") in (None, entry.transaction_id)
        and entry.belief_updated >= filters.get("belief_updated", False)
    )


def validate_record(counter: object, data: object) -> StoredRecord:
    """Return a record as read from a store.

    A damaged record gets empty data: unpacking it raises CorruptRecordError for this record alone,
    and the other records of the same read stay usable.
    """
    if type(counter) is int and 0 < counter < _MAX_COUNTER and isinstance(data, bytes):
        return StoredRecord(counter, data)
    return StoredRecord(1, b"")


def check_cursor(cursor: str, pattern: str) -> None:
    """Raise a ValueError for a cursor of another log; the empty one is the beginning."""
    if cursor and not re.fullmatch(pattern, cursor):
        remedy = "pass the cursor of a log entry, or nothing to start at the beginning"
        raise ValueError(f"{cursor!r} is not a cursor of this log; {remedy}")
