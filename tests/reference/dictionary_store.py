"""A store of plain dictionaries: what every store must return after the same operations."""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Unpack

from turncoat.serving.stores import protocol
from turncoat.serving.stores.protocol import EntryFilters, LogEntry, StoredRecord, WriteGroup


class DictionaryStore:
    """Records and log of the `Store` protocol, without opening, closing and checks."""

    def __init__(self) -> None:
        self._records: dict[str, StoredRecord] = {}
        self._log: dict[int, LogEntry] = {}  # by number, ascending
        self._parties: dict[str, list[tuple[int, int]]] = {}  # key -> (counter, number), ascending
        self._last = 0

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        return {key: self._records[key] for key in keys if key in self._records}

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
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
        entries = (self._log[number] for _, number in reversed(self._parties.get(key, [])))
        return list(islice((one for one in entries if protocol.matches(one, filters)), limit))

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        return [entry for number, entry in self._log.items() if number > int(after or 0)][:limit]

    async def find_customers(self, transaction_ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        scored = [entry for entry in self._log.values() if entry.kind == protocol.SCORE]
        return {
            id: tuple(sorted({e.parties[0][0] for e in scored if e.transaction_id == id})[:2])
            for id in transaction_ids
        }

    async def delete_entries_before(self, written_before: float, limit: int = 10_000) -> int:
        times = ((entry.written_at, number) for number, entry in self._log.items())
        oldest = heapq.nsmallest(limit, (one for one in times if one[0] < written_before))
        self._delete([number for _, number in oldest])
        return len(oldest)

    async def erase(self, key: str) -> int:
        numbers = [number for _, number in self._parties.get(key, [])]
        self._delete(numbers)
        self._records.pop(key, None)
        return len(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for key, counter in self._log.pop(number).parties:
                self._parties[key].remove((counter, number))
