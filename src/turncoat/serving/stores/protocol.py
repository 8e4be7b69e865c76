"""What a store of beliefs does: records that change all together or not at all, and the log of why they changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

SCORE, LABEL = "score", "label"


class Stored(NamedTuple):
    """A record as the store holds it. The counter starts at 1 and rises with every write."""

    counter: int
    data: bytes


class Change(NamedTuple):
    """A record to be written, if its counter is still `expected` (0: it is not there yet). Its new counter is `steps` more."""

    key: str
    expected: int
    data: bytes
    steps: int = 1  # one for every log entry that the record gets with this write


class Entry(NamedTuple):
    """One line of the log: an answer or a label, under every record it belongs to."""

    kind: str  # SCORE or LABEL
    id: str  # of the transaction
    time: float  # of the transaction, in seconds
    at: float  # when it was written, in seconds since 1970 by the server's clock
    parties: tuple[
        tuple[str, int], ...
    ]  # (key, counter that is this entry's alone): the customer's first, then the counterparty's if there is one
    moved: bool  # whether the beliefs of these parties moved
    content: bytes
    place: str = ""  # in the log, given by the store: what `log` can go on from


class Group(NamedTuple):
    """What is written whole or not at all."""

    changes: Sequence[Change]
    entries: Sequence[Entry] = ()


class BeliefStore(Protocol):
    """Records by key. Safe with several processes on one store."""

    async def read(self, keys: Sequence[str]) -> Mapping[str, Stored]:
        """The records that are there, as of one moment. A StoreError if the store cannot be reached."""
        ...

    async def write(self, groups: Sequence[Group]) -> list[bool]:
        """Write each group, all its records and log entries, or nothing of it if the counter of any of its records is not as expected.

        Says for each which. Groups share no record; their entries come into the log in the groups' order. All that is written is written
        in one instant, and lasts from then on as the store's setting promises. A StoreError if it failed, and then nothing was written,
        unless the answer was lost on the way.
        """
        ...

    async def close(self) -> None:
        """Finish what was begun, and let go of the store."""
        ...


class ScoreLog(Protocol):
    """What was answered and learnt, for audit, for late transactions and for rebuilding beliefs."""

    async def history(
        self,
        key: str,
        *,
        until: float = math.inf,
        id: str | None = None,
        moved: bool = False,
        limit: int = 100,
    ) -> list[Entry]:
        """A party's latest entries, newest write first: those with `time` up to `until`, of one transaction if `id` is given.

        With `moved`, only those that moved beliefs.
        """
        ...

    async def log(self, after: str = "", limit: int = 1000) -> list[Entry]:
        """The whole log from after a place, in the order it was written."""
        ...

    async def forget(self, before: float, limit: int = 10_000) -> int:
        """Remove up to `limit` of the oldest entries, those written (`at`) before a moment; says how many. Records stay."""
        ...


class Store(BeliefStore, ScoreLog, Protocol):
    """Both, written together."""

    async def erase(self, key: str) -> int:
        """Remove a party's record and all entries that belong to it, also from the histories of other parties; says how many entries.

        Other parties' records stay. Entries go some at a time, the record in the same instant as the last of them: till then it is as it
        was, so what a service writes meanwhile goes too, and who was cut off finds the rest again.
        """
        ...
