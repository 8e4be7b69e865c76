"""What every store refuses, in the same words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turncoat.serving.stores.protocol import Change, Entry, Group, Stored

_MOST_COUNTED = 2**62


def check_write(groups: Sequence[Group]) -> None:
    """A ValueError for what no store could write or find again."""
    n_changes, keys = 0, set()
    for changes, entries in groups:
        n_changes += len(changes)
        for change in changes:
            key, expected, _, steps = change
            keys.add(key)
            if expected < 0 or steps < 1:
                raise _no_rise(change)
        for entry in entries:
            _, id, time, at, parties, _, _, _ = entry
            if not -math.inf < at < math.inf or time != time:
                raise _no_moment(entry)
            if len(parties) > 1:
                _check_distinct([key for key, _ in parties], "the entry of transaction " + repr(id))
    if len(keys) < n_changes:
        _check_distinct([change.key for group in groups for change in group.changes], "a write")


def _no_rise(change: Change) -> ValueError:
    return ValueError(
        f"the counter of {change.key!r} must be at 0 or more and rise: it is to go from {change.expected} by {change.steps}"
    )


def _no_moment(entry: Entry) -> ValueError:
    return ValueError(
        f"the entry of transaction {entry.id!r} must say when, in seconds: time is {entry.time}, at is {entry.at}"
    )


def _check_distinct(keys: Sequence[str], where: str) -> None:
    if len(set(keys)) < len(keys):
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {twice!r} is in {where} twice; once is the most")


def sound_record(counter: object, data: object) -> Stored:
    """A record as it was read; if it is none that a store wrote, one that whoever unpacks it finds damaged, and that harms no other."""
    if type(counter) is int and 0 < counter < _MOST_COUNTED and isinstance(data, bytes):
        return Stored(counter, data)
    return Stored(1, b"")


def place_number(after: str) -> int:
    """A place in a numbered log, 0 for its beginning; a ValueError if the text is no such place."""
    if not after:
        return 0
    if not (after.isascii() and after.isdigit() and len(after) < 19):
        raise ValueError(
            f"{after!r} is not a place in this log; give one that an entry of it came with, or nothing for its beginning"
        )
    return int(after)
