"""What a store keeps of a party between transactions, and what the log keeps of each: small, versioned, never executed."""

from __future__ import annotations

import msgspec

from turncoat.errors import CorruptRecordError

FORMAT = 1
_MOST_AT_ONCE = 4096  # transactions of one moment that are told apart


def customer_key(customer: str) -> str:
    """Where a customer's record is."""
    return f"c:{customer}"


def counterparty_key(counterparty: str) -> str:
    """Where a counterparty's record is."""
    return f"e:{counterparty}"


def record_keys(customer: str, counterparty: str | None) -> tuple[str, ...]:
    """Where the records of a transaction's parties are: the customer's first, then the counterparty's if there is one."""
    return (
        (customer_key(customer),)
        if counterparty is None
        else (customer_key(customer), counterparty_key(counterparty))
    )


class RecentScore(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A transaction already answered."""

    id: str
    probability: float


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A customer, or a counterparty, whose ring is empty."""

    format: int
    model: str  # version of the model whose belief this is
    last_time: float  # of the latest transaction that moved the belief
    n_since: int  # how many of the ring came since the first with that time: these are never dropped, or one could count twice
    ring: tuple[RecentScore, ...]  # recent transactions, oldest first
    state: bytes  # belief and running facts, as `DetectorState` has them

    @property
    def is_cut(self) -> bool:
        """Whether one as late as the latest may have been dropped from the ring."""
        return self.n_since > _MOST_AT_ONCE

    def answered(self, id: str) -> RecentScore | None:
        """The transaction with this id, if it was answered lately."""
        for seen in self.ring:
            if seen.id == id:
                return seen
        return None


class LogContent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The content of a log entry."""

    model: str
    sent: bytes  # the transaction, as JSON
    answer: bytes  # JSON, as it was sent
    states: tuple[
        bytes, ...
    ]  # of the parties after it, in the entry's order; none where it did not move them
    label: int | None = None  # of an entry about a label, or of a replayed transaction
    belief: tuple[float, ...] = ()  # over the regimes, when it was scored
    external: float | None = None  # the ranker's score
    label_follows: bool = True
    is_replayed: bool = False  # from a file, which the model may have been fitted on
    horizons: tuple[float, ...] = ()  # the latest time in each of the states


_encode = msgspec.msgpack.Encoder().encode
_decode_record = msgspec.msgpack.Decoder(Record).decode
_decode_logged = msgspec.msgpack.Decoder(LogContent).decode


def pack_record(record: Record) -> bytes:
    """As bytes."""
    return _encode(record)


def unpack_record(key: str, data: bytes) -> Record:
    """The record of these bytes; a StoreError if they are none that this version can read."""
    try:
        record = _decode_record(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, TypeError) as problem:
        raise CorruptRecordError(
            f"the record of {key!r} is damaged ({problem}). Remove it, or restore the store from a copy"
        ) from problem
    if record.format != FORMAT:
        raise CorruptRecordError(
            f"the record of {key!r} has format {record.format}; this Turncoat reads format {FORMAT}. Upgrade Turncoat"
        )
    return record


def pack_log_content(logged: LogContent) -> bytes:
    """As bytes."""
    return _encode(logged)


def unpack_log_content(content: bytes) -> LogContent:
    """The content of a log entry."""
    try:
        return _decode_logged(content)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, TypeError) as problem:
        raise CorruptRecordError(
            f"an entry of the log is damaged ({problem}). Restore the store from a copy"
        ) from problem


def joined(
    ring: tuple[RecentScore, ...], seen: RecentScore, n_since: int, size: int
) -> tuple[RecentScore, ...]:
    """The ring after one more: as many as fit, and the `n_since` newest in any case."""
    return (*ring, seen)[-max(size, min(n_since, _MOST_AT_ONCE)) :]
