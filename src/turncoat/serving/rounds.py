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
    updates: Sequence[RecordUpdate]  # one for each of its keys
    states: Sequence[bytes | None]
    sources: Sequence[str]  # of these states
    is_late: bool
    keeps_belief: bool  # scored without changing any belief
    rows: Sequence[int]  # of the round, that left these states; -1 if none

    @property
    def state(self) -> DetectorState:
        """The states in the order of the schema."""
        customer, *counterparties = self.transaction.arrange(self.states, None)
        return DetectorState(customer, tuple(counterparties))

    @property
    def previous(self) -> list[int]:
        """The rows in the order of the schema."""
        return self.transaction.arrange(self.rows, -1)


class ScoringRound:
    """Transactions scored together, in order.

    A transaction continues from the states that the previous transactions of its customer and
    counterparties leave in the same round. One that depends on the round in another way ends it.
    """

    def __init__(self) -> None:
        self.prepared: list[PreparedTransaction] = []
        self._last_row: dict[str, int] = {}  # of a party's latest transaction that changes it
        self._last_time: dict[str, float] = {}
        self._ids: set[tuple[str, str]] = set()  # (customer key, transaction id)

    def add(self, prepared: PreparedTransaction) -> bool:
        """Add a transaction; return False if it has to wait for the next round."""
        transaction = prepared.transaction
        key = transaction.keys[0]
        rows = [self._last_row.get(party, -1) for party in transaction.keys]
        continues = max(rows) >= 0
        if (
            (key, transaction.id) in self._ids
            or (rows[0] >= 0 and transaction.time < self._last_time[key])
            or (prepared.keeps_belief and continues)
        ):
            return False
        if continues:
            found = list(zip(rows, prepared.states, prepared.sources, strict=True))
            prepared = prepared._replace(
                states=[None if row >= 0 else state for row, state, _ in found],
                sources=[STORED if row >= 0 else source for row, _, source in found],
                rows=rows,
            )
        self._ids.add((key, transaction.id))
        if not prepared.keeps_belief:
            self._last_row.update(dict.fromkeys(transaction.keys, len(self.prepared)))
            earlier = self._last_time.get(key, prepared.updates[0].last_time)
            self._last_time[key] = max(transaction.time, earlier)
        self.prepared.append(prepared)
        return True
