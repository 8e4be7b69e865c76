"""A scoring round: transactions of a batch that one compiled pass can score together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turncoat.scoring import DetectorState
from turncoat.serving.decoding import Transaction
from turncoat.serving.records import Record
from turncoat.serving.responses import STORED


@dataclass(slots=True)
class RecordUpdate:
    """A record while a batch is applied: as read, then as it will be written."""

    expected_counter: int  # as read; 0 if there was no record
    record: Record | None
    source: str  # of the belief
    n_changes: int = 0

    def replace(self, record: Record) -> None:
        """Make one more change."""
        self.record, self.source = record, STORED
        self.n_changes += 1

    @property
    def next_counter(self) -> int:
        """The counter of the next change."""
        return self.expected_counter + self.n_changes + 1

    @property
    def state(self) -> bytes | None:
        """The party's state; None if it has none yet."""
        return None if self.record is None else self.record.state or None

    @property
    def last_time(self) -> float:
        """The latest transaction time in the state."""
        return -math.inf if self.record is None else self.record.last_time


class PreparedTransaction(NamedTuple):
    """A transaction with the records and states that it is scored with."""

    transaction: Transaction
    updates: Sequence[RecordUpdate]  # of the customer and, if there is one, the counterparty
    state: DetectorState
    sources: Sequence[str]  # of their states
    is_late: bool
    keeps_belief: bool  # scored without changing any belief
    previous: tuple[int, int] = (-1, -1)  # rows of the round that left customer and counterparty


class ScoringRound:
    """Transactions scored together, in order.

    A transaction continues from the state that its customer's and its counterparty's previous
    transaction leaves in the same round. One that depends on the round in another way ends it.
    """

    def __init__(self) -> None:
        self.prepared: list[PreparedTransaction] = []
        self._last_row: dict[str, int] = {}  # of a party's latest transaction that changes it
        self._last_time: dict[str, float] = {}
        self._ids: set[tuple[str, str]] = set()  # (customer key, transaction id)

    def add(self, prepared: PreparedTransaction) -> bool:
        """Add a transaction; return False if it has to wait for the next round."""
        transaction = prepared.transaction
        key, *others = transaction.keys
        rows = [self._last_row.get(party, -1) for party in transaction.keys]
        continues = max(rows) >= 0
        if (
            (key, transaction.id) in self._ids
            or (rows[0] >= 0 and transaction.time < self._last_time[key])
            or (prepared.keeps_belief and continues)
        ):
            return False
        if continues:
            found = list(zip(rows, prepared.state[: len(rows)], prepared.sources, strict=True))
            prepared = prepared._replace(
                state=DetectorState(*(None if row >= 0 else state for row, state, _ in found)),
                sources=[STORED if row >= 0 else source for row, _, source in found],
                previous=(rows[0], rows[1] if others else -1),
            )
        self._ids.add((key, transaction.id))
        if not prepared.keeps_belief:
            self._last_row.update(dict.fromkeys(transaction.keys, len(self.prepared)))
            earlier = self._last_time.get(key, prepared.updates[0].last_time)
            self._last_time[key] = max(transaction.time, earlier)
        self.prepared.append(prepared)
        return True
