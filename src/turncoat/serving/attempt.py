"""One try at a batch of transactions against records that were read: what each is scored with, what it changes, what is logged.

A transaction counts once. The same id again gets the first answer; one older than the belief is scored with the belief it would have met
and, unless the rules say otherwise, moves nothing; a belief of another model is made anew, never mixed in.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple

import msgspec
import numpy as np

from turncoat.errors import DamagedError, DataError, StateError, StoreError
from turncoat.scoring import Detector, DetectorState
from turncoat.scoring.live import Steps
from turncoat.scoring.scores import Score
from turncoat.serving.answers import (
    CURRENT,
    LOGGED,
    NEW,
    REBUILT,
    RESTARTED,
    STORED,
    Answer,
    Remembered,
    Why,
    json_bytes,
    repeated,
)
from turncoat.serving.fields import FieldError, Transaction
from turncoat.serving.known import Known
from turncoat.serving.records import (
    FORMAT,
    Logged,
    Record,
    Seen,
    customer_key,
    joined,
    pack_logged,
    pack_record,
    unpack_logged,
    unpack_record,
)
from turncoat.serving.stores import SCORE, Change, Entry, Group, Store, Stored

_log = logging.getLogger("turncoat")

KEEP, APPLY, REFUSE = "keep", "apply", "refuse"
LATE_POLICIES = (KEEP, APPLY, REFUSE)
_REBUILD_FROM = 500  # of a party's latest logged transactions
_LOOK_BACK = 50  # log entries in which the belief that a late transaction would have met is looked for


class LateError(FieldError):
    """A transaction older than the belief, where the rules refuse such."""


@dataclass(frozen=True)
class Rules:
    """What the service does where there is a choice."""

    late: str = KEEP  # whether a late transaction moves the belief: no (keep), yes as if it came now (apply), or is refused
    ring: int = 16  # recent transactions remembered in a customer's record
    n_reasons: int = 8
    conditions: bool = True  # whether the label of a customer's latest transaction conditions the belief
    logs: bool = True  # whether answers are logged


class Given(NamedTuple):
    """An answer, and what is to be counted of it."""

    body: bytes
    probability: float
    late: bool = False
    duplicate: bool = False
    age: float | None = None  # seconds since the belief's last transaction
    steps: Steps | None = None  # what it was scored in, unless it was not
    place: int = 0  # in there


@dataclass(slots=True)
class _Working:
    """A record in the hands of an attempt: what was read, and what it would become."""

    expected: int  # counter as read; 0 if it was not there
    record: Record | None
    came_from: str
    n_changes: int = 0

    def moved_to(self, record: Record) -> None:
        """One more change."""
        self.record, self.came_from = record, STORED
        self.n_changes += 1


class _Ready(NamedTuple):
    """A transaction with what it is to be scored with."""

    one: Transaction
    customer: _Working
    entity: _Working | None
    state: DetectorState
    belief_from: str
    entity_from: str | None
    late: bool
    stays: bool  # whether beliefs stay as they are
    previous: tuple[int, int] = (-1, -1)  # places in its wave of those that left the customer and the entity as it finds them


class _Wave:
    """Transactions scored together, in order. One of a party goes on from what the one before it in the wave left."""

    def __init__(self) -> None:
        self.ready: list[_Ready] = []
        self.places: list[int] = []  # in the batch
        self._latest: dict[str, int] = {}  # place in the wave of a party's latest transaction that moves it
        self._times: dict[str, float] = {}  # of these
        self._ids: set[tuple[str, str]] = set()  # customers and ids
        self._closed: set[str] = set()  # parties of which no more can be taken: one of them has to wait for this wave to be over

    def is_closed_to(self, one: Transaction) -> bool:
        """Whether a transaction has to wait, and so have those that come after it."""
        return not self._closed.isdisjoint(one.keys)

    def close_to(self, one: Transaction) -> None:
        """Let a transaction wait for this wave to be over."""
        self._closed.update(one.keys)

    def takes(self, place: int, ready: _Ready) -> bool:
        """Let a transaction join, unless what it is scored with depends on the outcome of others here in any other way than going on."""
        one, (key, *others) = ready.one, ready.one.keys
        before = self._latest.get(key, -1)
        beside = self._latest.get(others[0], -1) if others else -1
        if (key, one.id) in self._ids or (before >= 0 and one.time < self._times[key]) or (ready.stays and max(before, beside) >= 0):
            return False
        if max(before, beside) >= 0:
            state = DetectorState(None if before >= 0 else ready.state.customer, None if beside >= 0 else ready.state.entity)
            belief_from = STORED if before >= 0 else ready.belief_from
            entity_from = STORED if beside >= 0 else ready.entity_from
            ready = ready._replace(state=state, belief_from=belief_from, entity_from=entity_from, previous=(before, beside))
        self._ids.add((key, one.id))
        if not ready.stays:
            self._latest[key] = len(self.ready)
            self._times[key] = max(one.time, self._times.get(key, one.time), _horizon(ready.customer))
            if others:
                self._latest[others[0]] = len(self.ready)
                if one.label == 1:  # which is told to the second party once it is scored
                    self._closed.add(others[0])
        self.ready.append(ready)
        self.places.append(place)
        return True


class Attempt:
    """One try at a batch: nothing of it is anywhere else until `write`."""

    def __init__(
        self, store: Store, rules: Rules, detector: Detector, stored: Mapping[str, Stored], known: Mapping[str, Known] | None = None
    ) -> None:
        """With the records as they were read, and those that are known without reading."""
        self.store, self.rules, self.detector, self.stored, self.known = store, rules, detector, stored, known or {}
        self.now = time.time()
        self._schema = detector.features_.fitted().schema
        self.held: dict[str, _Working] = {}
        self.entries: list[Entry] = []

    async def take(self, batch: Sequence[Transaction]) -> list[Given | Exception]:
        """Score transactions, each given those before it."""
        given: list[Given | Exception | None] = [None] * len(batch)
        left = list(range(len(batch)))
        while left:
            wave, waiting = _Wave(), []
            for place in left:
                found = None if wave.is_closed_to(batch[place]) else await self._found(batch[place])
                if found is not None and not isinstance(found, _Ready):
                    given[place] = found
                elif found is None or not wave.takes(place, found):
                    wave.close_to(batch[place])
                    waiting.append(place)
            for place, one in zip(wave.places, await self._scored(wave.ready), strict=True):
                given[place] = one
            left = waiting
        return [one for one in given if one is not None]

    async def _found(self, one: Transaction) -> _Ready | Given | Exception:
        """What a transaction is to be scored with; or the answer it had before, or why it gets none."""
        try:
            return await self._prepared(one)
        except Exception as problem:
            if isinstance(problem, StoreError) and not isinstance(problem, DamagedError):
                raise
            return _refusal(problem)

    async def _prepared(self, one: Transaction) -> _Ready | Given | DataError:
        if one.schema is not self._schema and one.schema != self._schema:
            return FieldError("the model was replaced by one with other fields while this transaction waited. Send it again")
        key = one.keys[0]
        customer = self.held.get(key) or await self.held_record(key)
        record = customer.record
        if record is not None and (seen := record.answered(one.id)):
            return await self._again(one, seen)
        late = record is not None and one.time < record.last_time
        if late and (earlier := await self._logged_answer(one)):
            return earlier
        if late and self.rules.late == REFUSE:
            return LateError(f"the transaction is older than the customer's last, at {record.last_time if record else 0:.0f} seconds")
        entity = None if one.entity is None else await self.held_record(one.keys[1])
        stays = late and self.rules.late == KEEP
        before, belief_from = _state(customer), customer.came_from
        if stays:
            before, belief_from = await self._met(key, customer, one.time)
        beside, entity_from = None, None
        if entity is not None:
            beside, entity_from = _state(entity), entity.came_from
            if stays and entity.record is not None and one.time < entity.record.last_time:
                beside, entity_from = await self._met(one.keys[1], entity, one.time)
        return _Ready(one, customer, entity, DetectorState(before, beside), belief_from, entity_from, late, stays)

    async def _scored(self, ready: Sequence[_Ready]) -> list[Given | Exception]:
        """Answers to the transactions of a wave."""
        if not ready:
            return []
        ones, states = [each.one for each in ready], [each.state for each in ready]
        try:
            previous = np.array([each.previous for each in ready], dtype=np.int64)
            steps = self.detector.steps(states, [one.row for one in ones], [one.label_follows for one in ones], previous)
            scores = self.detector.told(steps, n_reasons=self.rules.n_reasons)
        except Exception as problem:
            if len(ready) == 1:
                return [_refusal(problem)]
            return [await self._alone(one) for one in ones]  # so that one that cannot be scored is no reason to refuse the others
        given: list[Given | Exception] = []
        for place, (each, score) in enumerate(zip(ready, scores, strict=True)):
            try:
                given.append(self._taken(each, steps, place, score))
            except Exception as problem:  # those after it may have gone on from it
                return [*given, _refusal(problem), *[await self._alone(one) for one in ones[place + 1 :]]]
        return given

    async def _alone(self, one: Transaction) -> Given | Exception:
        """The answer to a transaction in a wave of its own."""
        found = await self._found(one)
        return (await self._scored([found]))[0] if isinstance(found, _Ready) else found

    def _taken(self, ready: _Ready, steps: Steps, place: int, score: Score) -> Given:
        """The answer to a scored transaction, which joins the records and the log."""
        one, record, state = ready.one, ready.customer.record, steps.states[place]
        if one.label == 1 and state.entity is not None:
            state = self.detector.report_fraud(state, one.time)
        body = json_bytes(
            Answer(
                one.id,
                one.customer,
                one.time,
                score.probability,
                score.interval,
                score.raw,
                score.regime,
                score.belief,
                score.entropy,
                score.seen,
                ready.late,
                False,
                ready.belief_from,
                ready.entity_from,
                self.detector.version_,
                self.detector.calibration_,
                tuple(starmap(Why, score.reasons)),
            )
        )
        after = None if ready.stays else state
        if self.rules.logs:
            external = None if steps.external is None else float(steps.external[place])
            self.entries.append(self._entry(ready, after, body, score, external))
        self._change(ready, after, Seen(one.id, score.probability))
        age = None if record is None else one.time - record.last_time
        return Given(body, score.probability, ready.late, False, age, steps, place)

    def _change(self, ready: _Ready, state: DetectorState | None, seen: Seen) -> None:
        """Put a transaction into the records; without a state only the fact that it was answered."""
        one, customer, entity = ready.one, ready.customer, ready.entity
        version, record = self.detector.version_, customer.record
        last = one.time if record is None else max(record.last_time, one.time)
        n_since = 1 if record is None or one.time > record.last_time else record.n_since + 1
        ring = joined(() if record is None else record.ring, seen, n_since, self.rules.ring)
        held = (state.customer if state is not None else record.state if record is not None else None) or b""
        customer.moved_to(Record(FORMAT, version, last, n_since, ring, held))
        if entity is not None and state is not None:
            last = one.time if entity.record is None else max(entity.record.last_time, one.time)
            entity.moved_to(Record(FORMAT, version, last, 0, (), state.entity or b""))

    def _entry(self, ready: _Ready, state: DetectorState | None, body: bytes, score: Score, external: float | None) -> Entry:
        """The log entry of a transaction that is about to change the records; without a state, of one that moves no belief."""
        one, customer, entity = ready.one, ready.customer, ready.entity
        parties: tuple[tuple[str, int], ...] = ((one.keys[0], customer.expected + customer.n_changes + 1),)
        states: tuple[bytes, ...] = ()
        horizons: tuple[float, ...] = ()
        if state is not None:
            states, horizons = (state.customer or b"",), (max(one.time, _horizon(customer)),)
            if entity is not None:
                parties += ((one.keys[1], entity.expected + entity.n_changes + 1),)
                states += (state.entity or b"",)
                horizons += (max(one.time, _horizon(entity)),)
        version, follows = self.detector.version_, one.label_follows
        logged = Logged(version, one.sent, body, states, one.label, score.belief, external, follows, one.is_replayed, horizons)
        return Entry(SCORE, one.id, one.time, self.now, parties, state is not None, pack_logged(logged))

    async def write(self, batch: Sequence[Transaction], beside: Sequence[Change] = ()) -> set[str]:
        """Put into place what the transactions of a batch changed; the keys of the parties for whom that could not be done.

        Transactions whose parties are linked stand or fall together: nothing of them is written if somebody else wrote one of their
        records since, or if one that they build on was not written. So do all, if there are records to be written `beside` them.
        """
        changes = {
            key: Change(key, held.expected, pack_record(held.record), held.n_changes)
            for key, held in self.held.items()
            if held.n_changes and held.record is not None
        }
        roots = dict.fromkeys(self.held, "") if beside else _linked(batch)
        lost = {roots[key] for key, known in self.known.items() if known.is_lost}
        groups: dict[str, tuple[list[Change], list[Entry]]] = {roots[key]: ([], []) for key in changes if roots[key] not in lost}
        for key, change in changes.items():
            if roots[key] not in lost:
                groups[roots[key]][0].append(change)
        for entry in self.entries:
            if roots[entry.parties[0][0]] not in lost:
                groups[roots[entry.parties[0][0]]][1].append(entry)
        if beside and not lost:
            groups.setdefault("", ([], []))[0].extend(beside)
        written = await self.store.write([Group(*group) for group in groups.values()]) if groups else []
        lost |= {root for root, is_written in zip(groups, written, strict=True) if not is_written}
        return {key for key, root in roots.items() if root in lost}

    async def held_record(self, key: str) -> _Working:
        """A party's record, made anew if it is another model's."""
        if key not in self.held:
            self.held[key] = await self._first_held(key)
        return self.held[key]

    async def _first_held(self, key: str) -> _Working:
        if known := self.known.get(key):
            counter, record = known.counter, known.record
        elif stored := self.stored.get(key):
            counter, record = stored.counter, unpack_record(key, stored.data)
        else:
            return _Working(0, None, NEW)
        return _Working(counter, record, STORED) if record.model == self.detector.version_ else await self._rebuilt(key, counter, record)

    async def _history(
        self, key: str, until: float = math.inf, id: str | None = None, moved: bool = False, limit: int = 100
    ) -> list[Entry]:
        """What is logged of a party, also of a batch that is still being written."""
        known = self.known.get(key)
        if known is not None and known.writing is not None:
            await asyncio.shield(known.writing)
        return await self.store.history(key, until=until, id=id, moved=moved, limit=limit)

    @property
    def made(self) -> dict[str, tuple[int, Record]]:
        """The records that are to be written, and their counters then."""
        return {key: (held.expected + held.n_changes, held.record) for key, held in self.held.items() if held.n_changes and held.record}

    async def _rebuilt(self, key: str, counter: int, record: Record) -> _Working:
        """A record of another model, made anew of what is logged of it; or a new one, where nothing is that this model can read."""
        try:
            packed = self._replayed(key, await self._history(key, limit=_REBUILD_FROM))
        except DataError:  # of another schema
            packed = None
        renewed = msgspec.structs.replace(record, model=self.detector.version_, state=packed or b"")
        return _Working(counter, renewed, RESTARTED if packed is None else REBUILT)

    def _replayed(self, key: str, history: Sequence[Entry]) -> bytes | None:
        """A party's state after the transactions and labels that moved it, given the newest first.

        What the second party was like at each of a customer's transactions is not known any more, and left out as missing.
        """
        detector, schema = self.detector, self.detector.features_.fitted().schema
        is_customer = key == customer_key(key[2:])
        state: DetectorState = DetectorState()
        for entry in reversed(history):
            logged = unpack_logged(entry.content)
            is_score = entry.kind == SCORE
            if is_score and entry.moved:
                row = msgspec.json.decode(logged.sent)
                if is_customer:
                    row.pop(schema.entity, None)
                after, _ = detector.score_one(state, row, n_reasons=0, label_follows=logged.label_follows)
                state = DetectorState(after.customer, None) if is_customer else DetectorState(None, after.entity)
            if is_customer and not is_score and entry.moved and state.customer is not None:
                state = detector.condition(state, int(logged.label or 0))
            if not is_customer and logged.label == 1 and state.entity is not None:
                state = detector.report_fraud(state, entry.time)
        return state.customer if is_customer else state.entity

    async def _met(self, key: str, held: _Working, when: float) -> tuple[bytes | None, str]:
        """The state that a party had at an earlier moment, of which it may know nothing later; and where it is from."""
        found = [entry for entry in reversed(self.entries) if entry.moved and entry.time <= when and key in dict(entry.parties)]
        found += await self._history(key, until=when, moved=True, limit=_LOOK_BACK)
        for entry in found:
            logged, place = unpack_logged(entry.content), list(dict(entry.parties)).index(key)
            if logged.horizons[place] > when:
                continue
            if logged.model == self.detector.version_:
                return logged.states[place], LOGGED
            return await self._rebuilt_until(key, when)
        if not found and (held.expected == 0 or await self._knows_the_first(key)):
            return None, NEW  # and this one is older still
        return _state(held), CURRENT

    async def _rebuilt_until(self, key: str, when: float) -> tuple[bytes | None, str]:
        """The state at an earlier moment when another model served."""
        try:
            return self._replayed(key, await self._history(key, until=when, limit=_REBUILD_FROM)), REBUILT
        except DataError:  # of another schema
            return None, RESTARTED

    async def _knows_the_first(self, key: str) -> bool:
        """Whether the log still has a party's first transaction, as far as is looked."""
        moves = await self._history(key, moved=True, limit=_REBUILD_FROM)
        return bool(moves) and dict(moves[-1].parties)[key] == 1

    async def _again(self, one: Transaction, seen: Seen) -> Given:
        """The first answer to a transaction that comes again."""
        for entry in reversed(self.entries):
            if entry.id == one.id and entry.parties[0][0] == one.keys[0]:
                return Given(*repeated(unpack_logged(entry.content).answer), duplicate=True)
        return await self._logged_answer(one) or Given(
            json_bytes(Remembered(one.id, one.customer, seen.probability)), seen.probability, duplicate=True
        )

    async def _logged_answer(self, one: Transaction) -> Given | None:
        """The answer in the log, if it has one."""
        for entry in await self._history(one.keys[0], id=one.id):
            if entry.kind == SCORE:
                return Given(*repeated(unpack_logged(entry.content).answer), duplicate=True)
        return None


def _linked(batch: Sequence[Transaction]) -> dict[str, str]:
    """For the record of every party, one that stands for all that transactions link it to."""
    above: dict[str, str] = {}

    def top(key: str) -> str:
        while (higher := above.setdefault(key, key)) != key:
            key = higher
        return key

    for one in batch:
        first, *others = map(top, one.keys)
        for other in others:
            above[other] = first
    return {key: top(key) for key in above}


def _refusal(problem: Exception) -> Exception:
    """What is said of a transaction that cannot be scored. What is not the sender's fault is told to the operator."""
    if isinstance(problem, StateError):
        return DamagedError(f"what is stored of the customer or the second party is damaged: {problem}")
    if isinstance(problem, DataError):
        return problem if isinstance(problem, FieldError) else FieldError(str(problem))
    if isinstance(problem, DamagedError):
        return problem
    _log.error("a transaction could not be scored", exc_info=problem)
    return problem


def _horizon(held: _Working | None) -> float:
    """The latest time that a party's state knows of."""
    return -math.inf if held is None or held.record is None else held.record.last_time


def _state(held: _Working) -> bytes | None:
    """A party's state, if it has one yet."""
    return (held.record.state or None) if held.record is not None else None
