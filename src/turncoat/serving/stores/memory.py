"""Beliefs in this process alone, gone when it ends: for trying things out, and for tests."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from itertools import islice

from turncoat.errors import StoreError
from turncoat.serving.stores.protocol import (
    LogEntry,
    StoredRecord,
    WriteGroup,
    check_write,
    parse_numeric_cursor,
)


class MemoryStore:
    """Dictionaries. Nothing in a method awaits, so on one event loop each is a single moment."""

    def __init__(self) -> None:
        self._records: dict[str, StoredRecord] = {}
        self._log: dict[int, LogEntry] = {}  # by number, rising
        self._parties: dict[str, list[tuple[int, int]]] = {}  # key -> (counter, number), rising
        self._last = 0
        self._closed = False

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """The records that are there."""
        self._check_open()
        return {key: self._records[key] for key in keys if key in self._records}

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Each group, or nothing of it if a counter is not as expected."""
        self._check_open()
        check_write(groups)
        return [self._written(group) for group in groups]

    def _written(self, group: WriteGroup) -> bool:
        if any(self._counter(change.key) != change.expected_counter for change in group.writes):
            return False
        for change in group.writes:
            self._records[change.key] = StoredRecord(
                change.expected_counter + change.increment, change.data
            )
        for entry in group.entries:
            self._append(entry)
        return True

    def _counter(self, key: str) -> int:
        record = self._records.get(key)
        return record.counter if record else 0

    def _append(self, entry: LogEntry) -> None:
        self._last += 1
        self._log[self._last] = entry._replace(cursor=str(self._last))
        for key, counter in entry.parties:
            insort(self._parties.setdefault(key, []), (counter, self._last))

    async def read_history(
        self,
        key: str,
        *,
        until: float = math.inf,
        transaction_id: str | None = None,
        belief_updated: bool = False,
        limit: int = 100,
    ) -> list[LogEntry]:
        """A party's latest entries, newest first."""
        self._check_open()
        entries = (self._log[number] for _, number in reversed(self._parties.get(key, [])))
        wanted = (
            entry
            for entry in entries
            if entry.time <= until
            and transaction_id in (None, entry.transaction_id)
            and entry.belief_updated >= belief_updated
        )
        return list(islice(wanted, max(limit, 0)))

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """The log from after a place."""
        self._check_open()
        first = next(iter(self._log), self._last + 1)
        numbers = range(max(parse_numeric_cursor(after) + 1, first), self._last + 1)
        return list(
            islice((self._log[number] for number in numbers if number in self._log), max(limit, 0))
        )

    async def delete_entries_before(self, before: float, limit: int = 10_000) -> int:
        """Remove the oldest entries."""
        self._check_open()
        old = heapq.nsmallest(
            limit,
            (
                (entry.written_at, number)
                for number, entry in self._log.items()
                if entry.written_at < before
            ),
        )
        self._remove([number for _, number in old])
        return len(old)

    async def erase(self, key: str) -> int:
        """Remove a party's record and entries."""
        self._check_open()
        numbers = [number for _, number in self._parties.get(key, [])]
        self._remove(numbers)
        self._records.pop(key, None)
        return len(numbers)

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for key, counter in self._log.pop(number).parties:
                self._unlist(key, counter, number)

    def _unlist(self, key: str, counter: int, number: int) -> None:
        listed = self._parties[key]
        del listed[bisect_left(listed, (counter, number))]
        if not listed:
            del self._parties[key]

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        self._check_open()
        return max((entry.written_at for entry in self._log.values()), default=None)

    async def check_writable(self) -> None:
        """Memory is always writable."""
        self._check_open()

    async def close(self) -> None:
        """Refuse further use."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store in memory is closed; open another")
