"""Beliefs in one SQLite file, which several processes on one machine may share."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from turncoat.errors import ConfigError, StoreError
from turncoat.serving.stores.protocol import (
    LogEntry,
    StoredRecord,
    WriteGroup,
    check_write,
    parse_numeric_cursor,
)
from turncoat.serving.stores.sqlite_file import SQLiteFile
from turncoat.serving.stores.sqlite_tables import rows_of

P = ParamSpec("P")
T = TypeVar("T")

SYNCHRONOUS = ("FULL", "NORMAL", "OFF")
_REMOVED_AT_ONCE = 200  # entries, so that writes need not wait for long


class SQLiteStore:
    """A file and the one thread that writes it. What is read takes microseconds and waits for no writer, so the caller does it.

    `synchronous` says when a write counts as done.

    FULL: when the disk has it; NORMAL: a power cut may take back the latest writes; OFF: a power cut may damage the file.
    """

    def __init__(self, path: str | os.PathLike[str], synchronous: str = "FULL") -> None:
        """Open the file, or make it; a StoreError if it is damaged or somebody else's."""
        if synchronous not in SYNCHRONOUS:
            raise ConfigError(
                f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}"
            )
        self._path = Path(path).absolute()
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sqlite-writer")
        try:
            self._writer = self._thread.submit(SQLiteFile, self._path, synchronous).result()
            self._reader = SQLiteFile(self._path, synchronous)
        except BaseException:
            self._thread.shutdown()
            raise

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """The records that are there."""
        return self._checked().read_records(keys)

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Each group, or nothing of it if a counter is not as expected."""
        check_write(groups)
        return await self._do(self._writer.write, groups, rows_of(groups))

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
        return self._checked().read_history(
            key, until, transaction_id, belief_updated, max(limit, 0)
        )

    async def read_log(self, after: str = "", limit: int = 1000) -> list[LogEntry]:
        """The log from after a place."""
        return self._checked().read_log(parse_numeric_cursor(after), max(limit, 0))

    async def delete_entries_before(self, before: float, limit: int = 10_000) -> int:
        """Remove the oldest entries, some at a time."""
        removed = 0
        while removed < limit:
            wanted = min(limit - removed, _REMOVED_AT_ONCE)
            n = await self._do(self._writer.delete_entries_before, before, wanted)
            removed += n
            if n < wanted:
                break
        return removed

    async def erase(self, key: str) -> int:
        """Remove a party's entries, some at a time, and its record with the last of them. Their bytes are overwritten."""
        removed, n = 0, _REMOVED_AT_ONCE
        while n == _REMOVED_AT_ONCE:
            n = await self._do(self._writer.erase, key, _REMOVED_AT_ONCE)
            removed += n
        await self._do(self._writer.empty_wal)
        return removed

    async def newest_entry_time(self) -> float | None:
        """Return the latest `written_at`."""
        return self._checked().newest_entry_time()

    async def check_writable(self) -> None:
        """Write one page."""
        await self._do(self._writer.check_writable)

    async def close(self) -> None:
        """Finish what was begun, and tidy the file up."""
        if not self._closed:
            self._closed = True
            self._reader.close()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._writer.close)
            self._thread.shutdown()

    def _checked(self) -> SQLiteFile:
        """The connection that reads, if the store is open and its file still in its place."""
        if self._closed:
            raise StoreError(f"the store {self._path} is closed; open it again")
        self._reader.check_place()
        return self._reader

    async def _do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._checked()
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, partial(work, *args, **kwargs)
        )
