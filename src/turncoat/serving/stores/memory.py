"""A store in the memory of one process, for demos and tests. Its data are lost at exit."""

from __future__ import annotations

import heapq
import logging
from bisect import insort
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Unpack

from turncoat.errors import StoreError
from turncoat.serving.stores import protocol
from turncoat.serving.stores.protocol import EntryFilters, LogEntry, StoredRecord, WriteGroup

_logger = logging.getLogger("turncoat")


class MemoryStore:
    """Dictionaries. No method awaits, so each one is atomic on an event loop."""

    def __init__(self) -> None:
        self._records: dict[str, StoredRecord] = {}
        self._log: dict[int, LogEntry] = {}  # by number, ascending
        self._parties: dict[str, list[tuple[int, int]]] = {}  # key -> (counter, number), ascending
        self._last = 0
        self._closed = False

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """Return the records that exist, by key."""
        self._check_open()
        return {key: self._records[key] for key in keys if key in self._records}

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Write the groups whose records are at their expected counters."""
        self._check_open()
        protocol.check_write(groups)
        return [self._write_group(group) for group in groups]

    def _write_group(self, group: WriteGroup) -> bool:
        for key, expected, _, _ in group.writes:
            record = self._records.get(key)
            if expected != (record.counter if record else 0):
                return False
        for key, expected, data, increment in group.writes:
            self._records[key] = StoredRecord(expected + increment, data)
        for entry in group.entries:
            self._last += 1
            self._log[self._last] = entry._replace(cursor=str(self._last))
            for key, counter in entry.parties:
                insort(self._parties.setdefault(key, []), (counter, self._last))
        return True

    async def read_history(
        self, key: str, limit: int = 100, **filters: Unpack[EntryFilters]
    ) -> list[LogEntry]:
        """Return a party's latest log entries, newest first."""
        self._check_open()
        entries = (self._log[number] for _, number in reversed(self._parties.get(key, [])))
        found = (one for one in entries if protocol.matches(one, filters))
        return list(islice(found, max(limit, 0)))

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """Return log entries after a cursor."""
        self._check_open()
        first = next(iter(self._log), self._last + 1)
        numbers = range(max(protocol.parse_numeric_cursor(after) + 1, first), self._last + 1)
        entries = (self._log[number] for number in numbers if number in self._log)
        return list(islice(entries, max(limit, 0)))

    async def delete_entries_before(self, written_before: float, limit: int = 10_000) -> int:
        """Delete the oldest entries."""
        self._check_open()
        times = ((entry.written_at, number) for number, entry in self._log.items())
        oldest = heapq.nsmallest(limit, (one for one in times if one[0] < written_before))
        self._delete([number for _, number in oldest])
        return len(oldest)

    async def erase(self, key: str) -> int:
        """Delete a party's record and entries."""
        self._check_open()
        numbers = [number for _, number in self._parties.get(key, [])]
        self._delete(numbers)
        self._records.pop(key, None)
        return len(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for key, counter in self._log.pop(number).parties:
                self._parties[key].remove((counter, number))
                if not self._parties[key]:
                    del self._parties[key]

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        self._check_open()
        return max((entry.written_at for entry in self._log.values()), default=None)

    async def check_writable(self) -> None:
        """Do nothing: memory is always writable."""
        self._check_open()

    async def log_durability(self) -> None:
        """Warn that the data are lost at exit."""
        _logger.warning("store memory://: all data are lost when the process ends")

    async def close(self) -> None:
        """Refuse further use."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the memory store is closed; open another one")
