"""Log entries that were written together, in one piece: what finds them, and all their contents, compressed as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from turncoat.serving.stores.packing import packed, unpacked
from turncoat.serving.stores.protocol import LogEntry

POSITION_BITS = 16  # the lowest of a place: the entry's position in its segment. Above them is the segment's number

# In a segment, unless one content is larger. To take one entry out, all are unpacked, so there should be few; but to compress one more
# segment, Python's lock is let go three times more. LZ4 looks back 64 KB only: more entries would hardly be smaller.
_MOST_ENTRIES, _MOST_BYTES = 32, 1 << 18


class Head(NamedTuple):
    """All of an entry but its content."""

    kind: str
    id: str
    time: float
    at: float
    parties: tuple[tuple[str, int], ...]
    moved: bool
    size: int  # bytes of content


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Head | None]).decode


class Packed(NamedTuple):
    """A segment as it is kept."""

    at: float  # the earliest of its entries'
    contents: bytes
    heads: bytes


class Segment(NamedTuple):
    """A segment as it was read. Where an entry was removed is None, so that the others stay in their positions."""

    number: int
    contents: bytes  # as they are kept
    heads: list[Head | None]

    @classmethod
    def read(cls, number: int, contents: bytes, heads: bytes) -> Segment:
        """What was packed; a ValueError if it was not."""
        return cls(number, contents, _decode(heads))

    def present(self) -> Iterator[tuple[int, Head]]:
        """Positions and heads of the entries that are there."""
        return ((position, head) for position, head in enumerate(self.heads) if head is not None)

    def place(self, position: int) -> int:
        """The number of a position in the whole log."""
        return self.number << POSITION_BITS | position

    def entries(self, positions: Sequence[int]) -> list[LogEntry]:
        """The entries at positions where one is; a ValueError if the contents are damaged."""
        bounds = list(
            accumulate((0 if head is None else head.size for head in self.heads), initial=0)
        )
        contents = unpacked(self.contents)
        if bounds[-1] != len(contents):
            raise ValueError(f"the contents have {len(contents)} bytes, not {bounds[-1]}")
        found = []
        for position in positions:
            head = self.heads[position]
            if head is not None:
                kind, id, time, at, parties, moved, _ = head
                content = contents[bounds[position] : bounds[position + 1]]
                found.append(
                    LogEntry(kind, id, time, at, parties, moved, content, str(self.place(position)))
                )
        return found

    def without(self, positions: set[int]) -> Packed:
        """The segment with these entries removed; some must stay."""
        stay = [position for position, _ in self.present() if position not in positions]
        heads = [head if position in stay else None for position, head in enumerate(self.heads)]
        contents = b"".join(entry.content for entry in self.entries(stay))
        return Packed(
            min(head.at for head in heads if head is not None), packed(contents), _encode(heads)
        )


def cut(entries: Sequence[LogEntry]) -> Iterator[Sequence[LogEntry]]:
    """The entries in order, in pieces that make a segment each."""
    first = size = 0
    for i, entry in enumerate(entries):
        size += len(entry.content)
        if i > first and (i - first >= _MOST_ENTRIES or size > _MOST_BYTES):
            yield entries[first:i]
            first, size = i, len(entry.content)
    if entries:
        yield entries[first:]


def pack(entries: Sequence[LogEntry]) -> Packed:
    """Entries as a segment."""
    heads = [
        (kind, id, time, at, parties, moved, len(content))
        for kind, id, time, at, parties, moved, content, _ in entries
    ]
    return Packed(
        min([head[3] for head in heads]),
        packed(b"".join([entry.content for entry in entries])),
        _encode(heads),
    )
