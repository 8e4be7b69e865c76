"""One try at a batch of transactions against records that were read: what each is scored with, what it changes, what is logged.

A transaction counts once. The same id again gets the first answer; one older than the belief is scored with the belief it would have met
and, unless the rules say otherwise, moves nothing; a belief of another model is made anew, never mixed in.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from numpy.typing import NDArray

from turncoat.errors import DamagedError, DataError, StateError, StoreError
from turncoat.features import FeatureRow
from turncoat.scoring import Detector, DetectorState
from turncoat.scoring.detector import Step
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
from turncoat.serving.records import FORMAT, Logged, Record, Seen, joined, pack_logged, pack_record, unpack_logged, unpack_record
from turncoat.serving.stores import SCORE, Change, Entry, Store, Stored

Array = NDArray[Any]

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
    belief: Array | None = None
    row: FeatureRow | None = None


def customer_key(customer: str) -> str:
    """Where a customer's record is."""
    return f"c:{customer}"


def entity_key(entity: str) -> str:
    """Where a second party's record is."""
    return f"e:{entity}"


def keys_of(one: Transaction) -> tuple[str, ...]:
    """Where the records of a transaction's parties are."""
    return (customer_key(one.customer),) if one.entity is None else (customer_key(one.customer), entity_key(one.entity))


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


def _next_wave(batch: Sequence[Transaction], left: Sequence[int]) -> tuple[list[int], list[int]]:
    """Of the transactions left, those that none before them shares a party with; and the others."""
    wave: list[int] = []
    later: list[int] = []
    taken: set[str] = set()
    for place in left:
        keys = keys_of(batch[place])
        (later if taken.intersection(keys) else wave).append(place)
        taken.update(keys)
    return wave, later


class Attempt:
    """One try at a batch: nothing of it is anywhere else until `write`."""

    def __init__(self, store: Store, rules: Rules, detector: Detector, stored: Mapping[str, Stored]) -> None:
        """With the records as they were read."""
        self.store, self.rules, self.detector, self.stored = store, rules, detector, stored
        self.now = time.time()
        self.held: dict[str, _Working] = {}
        self.entries: list[Entry] = []

    async def take(self, batch: Sequence[Transaction]) -> list[Given | Exception]:
        """Score transactions, each given those before it."""
        given: list[Given | Exception | None] = [None] * len(batch)
        left = list(range(len(batch)))
        while left:
            wave, left = _next_wave(batch, left)
            ready: list[tuple[int, _Ready]] = []
            for place in wave:
                try:
                    found: _Ready | Given | Exception = await self._prepared(batch[place])
                except Exception as problem:
                    if isinstance(problem, StoreError) and not isinstance(problem, DamagedError):
                        raise
                    found = _refusal(problem)
                if isinstance(found, _Ready):
                    ready.append((place, found))
                else:
                    given[place] = found
            for (place, _), one in zip(ready, self._scored([one for _, one in ready]), strict=True):
                given[place] = one
        return [one for one in given if one is not None]

    async def _prepared(self, one: Transaction) -> _Ready | Given | DataError:
        """What a transaction is to be scored with; or the answer it had before, or why it gets none."""
        if one.schema != self.detector.features_.fitted().schema:
            return FieldError("the model was replaced by one with other fields while this transaction waited. Send it again")
        customer = await self.held_record(customer_key(one.customer))
        record = customer.record
        if record is not None and (seen := record.answered(one.id)):
            return await self._again(one, seen)
        late = record is not None and one.time < record.last_time
        if late and (earlier := await self._logged_answer(one)):
            return earlier
        if late and self.rules.late == REFUSE:
            return LateError(f"the transaction is older than the customer's last, at {record.last_time if record else 0:.0f} seconds")
        entity = None if one.entity is None else await self.held_record(entity_key(one.entity))
        stays = late and self.rules.late == KEEP
        before, belief_from = _state(customer), customer.came_from
        if stays:
            before, belief_from = await self._met(customer_key(one.customer), customer, one.time)
        beside, entity_from = None, None
        if entity is not None and one.entity is not None:
            beside, entity_from = _state(entity), entity.came_from
            if stays and entity.record is not None and one.time < entity.record.last_time:
                beside, entity_from = await self._met(entity_key(one.entity), entity, one.time)
        return _Ready(one, customer, entity, DetectorState(before, beside), belief_from, entity_from, late, stays)

    def _scored(self, ready: Sequence[_Ready]) -> list[Given | Exception]:
        """Answers to transactions of different parties."""
        if not ready:
            return []
        follows = [each.one.label_follows for each in ready]
        try:
            steps = self.detector.steps([each.state for each in ready], [each.one.row for each in ready], follows)
            scores = self.detector.told_all(steps, n_reasons=self.rules.n_reasons)
        except Exception as problem:
            if len(ready) > 1:  # so that one that cannot be scored is no reason to refuse the others
                return [given for each in ready for given in self._scored([each])]
            return [_refusal(problem)]
        given: list[Given | Exception] = []
        for each in zip(ready, steps, scores, strict=True):
            try:
                given.append(self._taken(*each))
            except Exception as problem:
                given.append(_refusal(problem))
        return given

    def _taken(self, ready: _Ready, step: Step, score: Score) -> Given:
        """The answer to a scored transaction, which joins the records and the log."""
        one, record = ready.one, ready.customer.record
        state = step.state
        if one.label == 1 and state.entity is not None:
            state = self.detector.report_fraud(state, one.time)
        answer = Answer(
            id=one.id,
            customer=one.customer,
            time=one.time,
            probability=score.probability,
            interval=score.interval,
            raw_membership=score.raw,
            regime=score.regime,
            belief=score.belief,
            entropy=score.entropy,
            seen=score.seen,
            late=ready.late,
            duplicate=False,
            belief_from=ready.belief_from,
            entity_from=ready.entity_from,
            model=self.detector.version_,
            calibration=self.detector.calibration_,
            reasons=tuple(Why(*reason) for reason in score.reasons),
        )
        body = json_bytes(answer)
        after = None if ready.stays else state
        if self.rules.logs:
            self.entries.append(self._entry(ready, after, body, score, step.external))
        self._change(ready, after, Seen(one.id, score.probability))
        age = None if record is None else one.time - record.last_time
        return Given(body, score.probability, late=ready.late, age=age, belief=step.belief, row=step.row)

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
        parties: tuple[tuple[str, int], ...] = ((customer_key(one.customer), customer.expected + customer.n_changes + 1),)
        states: tuple[bytes, ...] = () if state is None else (state.customer or b"",)
        if entity is not None and one.entity is not None and state is not None:
            parties += ((entity_key(one.entity), entity.expected + entity.n_changes + 1),)
            states += (state.entity or b"",)
        horizons = tuple(max(one.time, _horizon(party)) for party in (customer, entity)[: len(states)])
        version, follows = self.detector.version_, one.label_follows
        logged = Logged(version, one.sent, body, states, one.label, score.belief, external, follows, one.is_replayed, horizons)
        return Entry(SCORE, one.id, one.time, self.now, parties, state is not None, pack_logged(logged))

    async def write(self, beside: Sequence[Change]) -> bool:
        """Put everything in place, unless somebody else wrote one of the records since."""
        changes = [
            Change(key, held.expected, pack_record(held.record), held.n_changes)
            for key, held in self.held.items()
            if held.n_changes and held.record is not None
        ]
        return not (changes or beside) or await self.store.write([*changes, *beside], self.entries)

    async def held_record(self, key: str) -> _Working:
        """A party's record, made anew if it is another model's."""
        if key not in self.held:
            stored = self.stored.get(key)
            if stored is None:
                self.held[key] = _Working(0, None, NEW)
            else:
                record = unpack_record(key, stored.data)
                ours = record.model == self.detector.version_
                self.held[key] = _Working(stored.counter, record, STORED) if ours else await self._rebuilt(key, stored.counter, record)
        return self.held[key]

    async def _rebuilt(self, key: str, counter: int, record: Record) -> _Working:
        """A record of another model, made anew of what is logged of it; or a new one, where nothing is that this model can read."""
        try:
            packed = self._replayed(key, await self.store.history(key, limit=_REBUILD_FROM))
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
        state = DetectorState()
        for entry in reversed(history):
            logged = unpack_logged(entry.content)
            is_score = entry.kind == SCORE
            if is_score and entry.moved:
                row = msgspec.json.decode(logged.sent)
                if is_customer:
                    row.pop(schema.entity, None)
                after = detector.step(state, row, label_follows=logged.label_follows).state
                state = DetectorState(after.customer, None) if is_customer else DetectorState(None, after.entity)
            if is_customer and not is_score and entry.moved and state.customer is not None:
                state = detector.condition(state, int(logged.label or 0))
            if not is_customer and logged.label == 1 and state.entity is not None:
                state = detector.report_fraud(state, entry.time)
        return state.customer if is_customer else state.entity

    async def _met(self, key: str, held: _Working, when: float) -> tuple[bytes | None, str]:
        """The state that a party had at an earlier moment, of which it may know nothing later; and where it is from."""
        found = [entry for entry in reversed(self.entries) if entry.moved and entry.time <= when and key in dict(entry.parties)]
        found += await self.store.history(key, until=when, moved=True, limit=_LOOK_BACK)
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
            return self._replayed(key, await self.store.history(key, until=when, limit=_REBUILD_FROM)), REBUILT
        except DataError:  # of another schema
            return None, RESTARTED

    async def _knows_the_first(self, key: str) -> bool:
        """Whether the log still has a party's first transaction, as far as is looked."""
        moves = await self.store.history(key, moved=True, limit=_REBUILD_FROM)
        return bool(moves) and dict(moves[-1].parties)[key] == 1

    async def _again(self, one: Transaction, seen: Seen) -> Given:
        """The first answer to a transaction that comes again."""
        for entry in reversed(self.entries):
            if entry.id == one.id and entry.parties[0][0] == customer_key(one.customer):
                return Given(*repeated(unpack_logged(entry.content).answer), duplicate=True)
        return await self._logged_answer(one) or Given(
            json_bytes(Remembered(one.id, one.customer, seen.probability)), seen.probability, duplicate=True
        )

    async def _logged_answer(self, one: Transaction) -> Given | None:
        """The answer in the log, if it has one."""
        for entry in await self.store.history(customer_key(one.customer), id=one.id):
            if entry.kind == SCORE:
                return Given(*repeated(unpack_logged(entry.content).answer), duplicate=True)
        return None


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
