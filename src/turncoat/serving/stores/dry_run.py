"""A store that nothing is written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from turncoat.serving.stores.protocol import (
    EntryFilters,
    LogEntry,
    RecordStore,
    StoredRecord,
    WriteGroup,
)


class DryRunStore:
    """Reads another store; records written here are seen here only. For one writer, without a log.

    The other store may change meanwhile: a record that was not written here is read from it.
    """

    def __init__(self, store: RecordStore) -> None:
        """The caller closes the other store."""
        self._store = store
        self._written: dict[str, StoredRecord] = {}

    async def read_records(self, keys: Sequence[str]) -> Mapping[str, StoredRecord]:
        """Return the records as written here, or as in the other store."""
        written = {key: self._written[key] for key in keys if key in self._written}
        others = [key for key in keys if key not in written]
        return {**await self._store.read_records(others), **written}

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        """Keep the records in memory."""
        for writes, entries in groups:
            if entries:
                raise ValueError("a dry run keeps no log")
            for key, expected, data, increment in writes:
                self._written[key] = StoredRecord(expected + increment, data)
        return [True] * len(groups)

    async def read_history(
        self, key: str, limit: int = 100, **filters: Unpack[EntryFilters]
    ) -> list[LogEntry]:
        """Return a party's entries in the other store."""
        return await self._store.read_history(key, limit, **filters)
