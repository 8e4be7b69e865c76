"""Records and log contents: MessagePack with a version and a checksum. Reading executes nothing.

Log contents are compressed with LZ4: zstd makes them smaller, and the service slower.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from turncoat.errors import CorruptRecordError
from turncoat.features import NEVER, UNKNOWN

FORMAT = 1
_CHECKSUM_BYTES = _LENGTH_BYTES = 4


def customer_key(customer: str) -> str:
    """Return the key of a customer's record."""
    return f"c:{customer}"


def customer_name(key: str) -> str:
    """Return the customer whose record has this key."""
    return key.removeprefix("c:")


def counterparty_key(column: str, name: str) -> str:
    """Return the key of a counterparty's record: equal names in two columns are two records."""
    return _start_key(column) + name


def split_key(key: str) -> tuple[str, str]:
    """Return the column and the name of a counterparty's record."""
    _, column, name = key.split(":", 2)
    return unquote(column), name


def find_column(key: str) -> str:
    """Return the column of a counterparty's record."""
    return split_key(key)[0]


@cache
def _start_key(column: str) -> str:
    """Return the start of a column's keys; a colon in its name must not end the column."""
    return f"p:{column.replace('%', '%25').replace(':', '%3A')}:"


class RecentScore(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A transaction that was scored lately."""

    id: str
    probability: float


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is stored of a customer, or of a counterparty (then without recent ids)."""

    format: int
    model: str  # version of the model that made the belief
    last_time: float  # latest transaction time in the belief, in seconds
    n_since_last: int  # transactions scored since the first with `last_time`, itself included
    recent_ids: tuple[RecentScore, ...]  # oldest first, at most `UpdatePolicy.n_recent_ids`
    state: bytes  # belief and running features, packed by `DetectorState`

    @property
    def may_have_dropped_latest(self) -> bool:
        """Whether a transaction with time `last_time` may be missing from `recent_ids`."""
        return self.n_since_last > len(self.recent_ids)

    def find_recent(self, id: str) -> RecentScore | None:
        """Return the recent score with this id, or None."""
        return next((recent for recent in self.recent_ids if recent.id == id), None)


def encode_label(label: int | None, label_follows: bool) -> int:
    """Return a label as the features take it."""
    if label is not None:
        return label
    return UNKNOWN if label_follows else NEVER


class LogContent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The content of a log entry: a scored transaction, or a label (without body and response)."""

    model: str
    body: bytes  # the transaction as JSON, with the customer's stored name
    response: bytes  # JSON as sent
    states: tuple[bytes, ...] = ()  # of the parties afterwards, in order; () if unchanged
    label: int | None = None  # reported, or from a replayed file
    belief: tuple[float, ...] = ()  # [K] when scored
    external: float | None = None  # the ranker's score
    label_follows: bool = True
    is_replayed: bool = False  # from a file: the model may have been fitted on it
    state_times: tuple[float, ...] = ()  # latest transaction time in each of `states`
    # How far other causes explained a fraud when scored, for later labels: one for each of the
    # counterparties among the parties.
    explained: tuple[float, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_content = msgspec.msgpack.Decoder(LogContent).decode
_lz4 = pa.Codec("lz4_raw")


def pack_record(record: Record) -> bytes:
    """Return the record as bytes with a checksum."""
    return _add_checksum(_encode(record))


def unpack_record(key: str, data: bytes) -> Record:
    """Return the record in these bytes; a CorruptRecordError if they changed or are too new."""
    try:
        record = _decode_record(_check_checksum(data))
    except (msgspec.DecodeError, ValueError, TypeError) as problem:
        damage = f"the record of {key!r} is damaged ({problem})"
        raise CorruptRecordError(f"{damage}. Remove it, or restore a backup") from problem
    if record.format != FORMAT:
        found = f"the record of {key!r} has format {record.format}"
        raise CorruptRecordError(f"{found}; this Turncoat reads format {FORMAT}. Upgrade Turncoat")
    return record


def pack_log_content(content: LogContent) -> bytes:
    """Return the content of a log entry as bytes with a checksum."""
    data = _encode(content)
    small: bytes = _lz4.compress(data, asbytes=True)
    return _add_checksum(len(data).to_bytes(_LENGTH_BYTES, "big") + small)


def unpack_log_content(data: bytes) -> LogContent:
    """Return the content of a log entry; a CorruptRecordError if its bytes were changed."""
    try:
        small = _check_checksum(data)
        n_bytes = int.from_bytes(small[:_LENGTH_BYTES], "big")
        return _decode_content(_lz4.decompress(small[_LENGTH_BYTES:], n_bytes, asbytes=True))
    except (msgspec.DecodeError, OSError, ValueError, TypeError) as problem:
        remedy = "Restore the store from a backup"
        raise CorruptRecordError(
            f"an entry of the log is damaged ({problem}). {remedy}"
        ) from problem


def _add_checksum(data: bytes) -> bytes:
    return data + zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "big")


def _check_checksum(data: Any) -> memoryview:
    view = memoryview(data)
    content, checksum = view[:-_CHECKSUM_BYTES], view[-_CHECKSUM_BYTES:]
    if zlib.crc32(content) != int.from_bytes(checksum, "big"):
        raise ValueError("its checksum does not match")
    return content
