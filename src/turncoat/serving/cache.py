"""Records as this process left them: what is being written, so that the next batch need not wait for it, and what was written lately."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Set
from itertools import islice

from turncoat.serving.records import Record

# For which a written record is remembered. Counters start anew when a customer is erased, and a record remembered from before could meet
# the very counter that it expects, if others have brought it there: who erases waits for longer than this.
REMEMBERED_SECONDS = 1.0


class CachedRecord:
    """A record as a batch left it. It holds once the batch is written, and is nothing if that fails."""

    __slots__ = ("counter", "is_lost", "record", "until", "writing")

    def __init__(self, counter: int, record: Record, writing: asyncio.Future[None]) -> None:
        """`writing` ends when it is known what became of the write."""
        self.counter, self.record = counter, record
        self.writing: asyncio.Future[None] | None = writing  # None once it is written
        self.is_lost = False
        self.until = math.inf  # when it is to be forgotten


class RecordCache:
    """The latest of them. Compare-and-set finds out whoever builds on one that others have changed since."""

    def __init__(self, most: int) -> None:
        """Of those that are written, `most` are kept: none where other processes write the same records all the time."""
        self._most = most
        self._records: dict[str, CachedRecord] = {}  # the longest unused first

    def of(self, keys: Iterable[str]) -> dict[str, CachedRecord]:
        """Those that are known."""
        records, now = self._records, time.monotonic()
        found = {
            key: known
            for key in keys
            if (known := records.pop(key, None)) is not None and known.until >= now
        }
        records |= found
        return found

    def add(self, made: Mapping[str, CachedRecord]) -> None:
        """Take in what a batch that is about to be written has made."""
        for key, known in made.items():
            self._records.pop(key, None)
            self._records[key] = known

    def settle(self, made: Mapping[str, CachedRecord], lost: Set[str]) -> None:
        """What a batch has made is written, but for those that were lost."""
        for key in made.keys() & lost:
            made[key].is_lost = True
        until = time.monotonic() + REMEMBERED_SECONDS
        for key, known in made.items():
            known.writing, known.until = None, until
            if (known.is_lost or not self._most) and self._records.get(key) is known:
                del self._records[key]
        for key in list(islice(self._records, max(len(self._records) - self._most, 0))):
            if self._records[key].writing is None:
                del self._records[key]

    def drop(self, keys: Iterable[str]) -> None:
        """Read these anew, unless they are being written."""
        for key in keys:
            if (known := self._records.get(key)) is not None and known.writing is None:
                del self._records[key]

    def forget(self) -> None:
        """Start anew: the store may not have what it had."""
        self._records.clear()
