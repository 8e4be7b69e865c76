"""Beliefs in this process alone, gone when it ends: for trying things out, and for tests."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from itertools import islice

from turncoat.errors import StoreError
from turncoat.serving.stores.checks import check_write, place_number
from turncoat.serving.stores.protocol import Entry, Group, Stored


class MemoryStore:
    """Dictionaries. Nothing in a method awaits, so on one event loop each is a single moment."""

    def __init__(self) -> None:
        self._records: dict[str, Stored] = {}
        self._log: dict[int, Entry] = {}  # by number, rising
        self._parties: dict[str, list[tuple[int, int]]] = {}  # key -> (counter, number), rising
        self._last = 0
        self._closed = False

    async def read(self, keys: Sequence[str]) -> Mapping[str, Stored]:
        """The records that are there."""
        self._check_open()
        return {key: self._records[key] for key in keys if key in self._records}

    async def write(self, groups: Sequence[Group]) -> list[bool]:
        """Each group, or nothing of it if a counter is not as expected."""
        self._check_open()
        check_write(groups)
        return [self._written(group) for group in groups]

    def _written(self, group: Group) -> bool:
        if any(self._counter(change.key) != change.expected for change in group.changes):
            return False
        for change in group.changes:
            self._records[change.key] = Stored(change.expected + change.steps, change.data)
        for entry in group.entries:
            self._append(entry)
        return True

    def _counter(self, key: str) -> int:
        record = self._records.get(key)
        return record.counter if record else 0

    def _append(self, entry: Entry) -> None:
        self._last += 1
        self._log[self._last] = entry._replace(place=str(self._last))
        for key, counter in entry.parties:
            insort(self._parties.setdefault(key, []), (counter, self._last))

    async def history(
        self,
        key: str,
        *,
        until: float = math.inf,
        id: str | None = None,
        moved: bool = False,
        limit: int = 100,
    ) -> list[Entry]:
        """A party's latest entries, newest first."""
        self._check_open()
        entries = (self._log[number] for _, number in reversed(self._parties.get(key, [])))
        wanted = (
            entry
            for entry in entries
            if entry.time <= until and id in (None, entry.id) and entry.moved >= moved
        )
        return list(islice(wanted, max(limit, 0)))

    async def log(self, after: str = "", limit: int = 1000) -> list[Entry]:
        """The log from after a place."""
        self._check_open()
        first = next(iter(self._log), self._last + 1)
        numbers = range(max(place_number(after) + 1, first), self._last + 1)
        return list(
            islice((self._log[number] for number in numbers if number in self._log), max(limit, 0))
        )

    async def forget(self, before: float, limit: int = 10_000) -> int:
        """Remove the oldest entries."""
        self._check_open()
        old = heapq.nsmallest(
            limit, ((entry.at, number) for number, entry in self._log.items() if entry.at < before)
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

    async def close(self) -> None:
        """Refuse further use."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("the store in memory is closed; open another")
