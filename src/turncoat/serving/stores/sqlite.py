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
from turncoat.serving.stores.checks import check_write, place_number
from turncoat.serving.stores.protocol import Entry, Group, Stored
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

    async def read(self, keys: Sequence[str]) -> Mapping[str, Stored]:
        """The records that are there."""
        return self._checked().read(keys)

    async def write(self, groups: Sequence[Group]) -> list[bool]:
        """Each group, or nothing of it if a counter is not as expected."""
        check_write(groups)
        return await self._do(self._writer.write, groups, rows_of(groups))

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
        return self._checked().history(key, until, id, moved, max(limit, 0))

    async def log(self, after: str = "", limit: int = 1000) -> list[Entry]:
        """The log from after a place."""
        return self._checked().log(place_number(after), max(limit, 0))

    async def forget(self, before: float, limit: int = 10_000) -> int:
        """Remove the oldest entries, some at a time."""
        removed = 0
        while removed < limit:
            wanted = min(limit - removed, _REMOVED_AT_ONCE)
            n = await self._do(self._writer.forget, before, wanted)
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
