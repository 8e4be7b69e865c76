"""What every store refuses, in the same words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from turncoat.serving.stores.protocol import Change, Entry


def check_write(changes: Sequence[Change], entries: Sequence[Entry]) -> None:
    """A ValueError for what no store could write or find again."""
    _distinct((change.key for change in changes), "a write")
    for change in changes:
        if change.expected < 0 or change.steps < 1:
            raise ValueError(
                f"the counter of {change.key!r} must be at 0 or more and rise: it is to go from {change.expected} by {change.steps}"
            )
    for entry in entries:
        _distinct((key for key, _ in entry.parties), f"the entry of transaction {entry.id!r}")
        if not math.isfinite(entry.at) or math.isnan(entry.time):
            raise ValueError(f"the entry of transaction {entry.id!r} must say when, in seconds: time is {entry.time}, at is {entry.at}")


def _distinct(keys: Iterable[str], where: str) -> None:
    seen = set()
    for key in keys:
        if key in seen:
            raise ValueError(f"the key {key!r} is in {where} twice; once is the most")
        seen.add(key)


def place_number(after: str) -> int:
    """A place in a numbered log, 0 for its beginning; a ValueError if the text is no such place."""
    if not after:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise ValueError(f"{after!r} is not a place in this log; give one that an entry of it came with, or nothing for its beginning")
    return int(after)
