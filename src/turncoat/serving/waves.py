"""Which transactions of a batch are scored together, and what each goes on from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from turncoat.scoring import DetectorState
from turncoat.serving.decoding import Transaction
from turncoat.serving.records import Record
from turncoat.serving.responses import STORED


@dataclass(slots=True)
class RecordUpdate:
    """A record in the hands of an attempt: what was read, and what it would become."""

    expected: int  # counter as read; 0 if it was not there
    record: Record | None
    came_from: str
    n_changes: int = 0

    def moved_to(self, record: Record) -> None:
        """One more change."""
        self.record, self.came_from = record, STORED
        self.n_changes += 1

    @property
    def state(self) -> bytes | None:
        """The party's state, if it has one yet."""
        return None if self.record is None else self.record.state or None

    @property
    def horizon(self) -> float:
        """The latest time that the party's state knows of."""
        return -math.inf if self.record is None else self.record.last_time


class PreparedTransaction(NamedTuple):
    """A transaction with what it is to be scored with."""

    one: Transaction
    customer: RecordUpdate
    counterparty: RecordUpdate | None
    state: DetectorState
    belief_from: str
    counterparty_from: str | None
    late: bool
    stays: bool  # whether beliefs stay as they are
    previous: tuple[int, int] = (
        -1,
        -1,
    )  # places in its wave of those that left the customer and the counterparty as it finds them


class ScoringRound:
    """Transactions scored together, in order. One of a party goes on from what the one before it in the wave left."""

    def __init__(self) -> None:
        """With nobody in it."""
        self.ready: list[PreparedTransaction] = []
        self.places: list[int] = []  # in the batch
        self._latest: dict[
            str, int
        ] = {}  # place in the wave of a party's latest transaction that moves it
        self._times: dict[str, float] = {}  # of these
        self._ids: set[tuple[str, str]] = set()  # customers and ids
        self._closed: set[str] = (
            set()
        )  # parties of which no more can be taken: one of them has to wait for this wave to be over

    def is_closed_to(self, one: Transaction) -> bool:
        """Whether a transaction has to wait, and so have those that come after it."""
        return not self._closed.isdisjoint(one.keys)

    def close_to(self, one: Transaction) -> None:
        """Let a transaction wait for this wave to be over."""
        self._closed.update(one.keys)

    def takes(self, place: int, ready: PreparedTransaction) -> bool:
        """Let a transaction join, unless what it is scored with depends on the outcome of others here in any other way than going on."""
        one, (key, *others) = ready.one, ready.one.keys
        before = self._latest.get(key, -1)
        beside = self._latest.get(others[0], -1) if others else -1
        if (
            (key, one.id) in self._ids
            or (before >= 0 and one.time < self._times[key])
            or (ready.stays and max(before, beside) >= 0)
        ):
            return False
        if max(before, beside) >= 0:
            state = DetectorState(
                None if before >= 0 else ready.state.customer,
                None if beside >= 0 else ready.state.counterparty,
            )
            belief_from = STORED if before >= 0 else ready.belief_from
            counterparty_from = STORED if beside >= 0 else ready.counterparty_from
            ready = ready._replace(
                state=state,
                belief_from=belief_from,
                counterparty_from=counterparty_from,
                previous=(before, beside),
            )
        self._ids.add((key, one.id))
        if not ready.stays:
            self._latest[key] = len(self.ready)
            self._times[key] = max(one.time, self._times.get(key, one.time), ready.customer.horizon)
            if others:
                self._latest[others[0]] = len(self.ready)
                if one.label == 1:  # which is told to the counterparty once it is scored
                    self._closed.add(others[0])
        self.ready.append(ready)
        self.places.append(place)
        return True
