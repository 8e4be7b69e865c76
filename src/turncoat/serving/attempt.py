"""One try at a batch of transactions against records that were read: what each is scored with, what it changes, what is logged.

A transaction counts once. The same id again gets the first answer; one older than the belief is scored with the belief it would have met
and, unless the rules say otherwise, moves nothing; a belief of another model is made anew, never mixed in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import starmap

import msgspec
import numpy as np

from turncoat.errors import CorruptRecordError, DataError, StateError, StoreError
from turncoat.scoring import Detector, DetectorState
from turncoat.scoring.live import FilterSteps
from turncoat.scoring.scores import Score
from turncoat.serving.cache import CachedRecord
from turncoat.serving.decoding import FieldError, Transaction
from turncoat.serving.history import ScoreHistory
from turncoat.serving.records import (
    FORMAT,
    LogContent,
    RecentScore,
    Record,
    joined,
    pack_log_content,
    pack_record,
    unpack_record,
)
from turncoat.serving.responses import (
    NEW,
    STORED,
    ReasonModel,
    ScoredResponse,
    ScoredTransaction,
    encode_json,
)
from turncoat.serving.stores import SCORE, LogEntry, RecordWrite, Store, StoredRecord, WriteGroup
from turncoat.serving.waves import PreparedTransaction, RecordUpdate, ScoringRound

_log = logging.getLogger("turncoat")

KEEP, APPLY, REFUSE = "keep", "apply", "refuse"
LATE_POLICIES = (KEEP, APPLY, REFUSE)


class LateTransactionError(FieldError):
    """A transaction older than the belief, where the rules refuse such."""


@dataclass(frozen=True)
class UpdatePolicy:
    """What the service does where there is a choice."""

    late: str = KEEP  # whether a late transaction moves the belief: no (keep), yes as if it came now (apply), or is refused
    ring: int = 16  # recent transactions remembered in a customer's record
    n_reasons: int = 4  # the strongest; the others together are one more
    conditions: bool = (
        True  # whether the label of a customer's latest transaction conditions the belief
    )
    logs: bool = True  # whether answers are logged


class BatchUpdate:
    """One try at a batch: nothing of it is anywhere else until `write`."""

    def __init__(
        self,
        store: Store,
        rules: UpdatePolicy,
        detector: Detector,
        stored: Mapping[str, StoredRecord],
        known: Mapping[str, CachedRecord] | None = None,
    ) -> None:
        """With the records as they were read, and those that are known without reading."""
        self.store, self.rules, self.detector, self.stored, self.known = (
            store,
            rules,
            detector,
            stored,
            known or {},
        )
        self.now = time.time()
        self._schema = detector.features_.plan.schema
        self.held: dict[str, RecordUpdate] = {}
        self.entries: list[LogEntry] = []
        self._past = ScoreHistory(store, detector, self.known, self.entries)

    async def take(self, batch: Sequence[Transaction]) -> list[ScoredResponse | Exception]:
        """Score transactions, each given those before it."""
        given: list[ScoredResponse | Exception | None] = [None] * len(batch)
        left = list(range(len(batch)))
        while left:
            wave, waiting = ScoringRound(), []
            for place in left:
                found = None if wave.is_closed_to(batch[place]) else await self._found(batch[place])
                if found is not None and not isinstance(found, PreparedTransaction):
                    given[place] = found
                elif found is None or not wave.takes(place, found):
                    wave.close_to(batch[place])
                    waiting.append(place)
            for place, one in zip(wave.places, await self._scored(wave.ready), strict=True):
                given[place] = one
            left = waiting
        return [one for one in given if one is not None]

    async def _found(self, one: Transaction) -> PreparedTransaction | ScoredResponse | Exception:
        """What a transaction is to be scored with; or the answer it had before, or why it gets none."""
        try:
            return await self._prepared(one)
        except Exception as problem:
            if isinstance(problem, StoreError) and not isinstance(problem, CorruptRecordError):
                raise
            return _refusal(problem)

    async def _prepared(self, one: Transaction) -> PreparedTransaction | ScoredResponse | DataError:
        if one.schema is not self._schema and one.schema != self._schema:
            return FieldError(
                "the model was replaced by one with other fields while this transaction waited. Send it again"
            )
        key = one.keys[0]
        customer = self.held.get(key) or await self.held_record(key)
        record = customer.record
        if record is not None and (seen := record.answered(one.id)):
            return await self._past.answer_again(one, seen)
        late = record is not None and one.time < record.last_time
        may_be_known = late or (
            record is not None and one.time == record.last_time and record.is_cut
        )
        if may_be_known and (earlier := await self._past.answer(one)):
            return earlier
        if late and self.rules.late == REFUSE:
            return LateTransactionError(
                f"the transaction is older than the customer's last, at {record.last_time if record else 0:.0f} seconds"
            )
        counterparty = None if one.counterparty is None else await self.held_record(one.keys[1])
        stays = late and self.rules.late == KEEP
        before, belief_from = customer.state, customer.came_from
        if stays:
            before, belief_from = await self._past.met(key, customer, one.time)
        beside, counterparty_from = None, None
        if counterparty is not None:
            beside, counterparty_from = counterparty.state, counterparty.came_from
            if (
                stays
                and counterparty.record is not None
                and one.time < counterparty.record.last_time
            ):
                beside, counterparty_from = await self._past.met(
                    one.keys[1], counterparty, one.time
                )
        return PreparedTransaction(
            one,
            customer,
            counterparty,
            DetectorState(before, beside),
            belief_from,
            counterparty_from,
            late,
            stays,
        )

    async def _scored(
        self, ready: Sequence[PreparedTransaction]
    ) -> list[ScoredResponse | Exception]:
        """Answers to the transactions of a wave."""
        if not ready:
            return []
        ones, states = [each.one for each in ready], [each.state for each in ready]
        try:
            previous = np.array([each.previous for each in ready], dtype=np.int64)
            steps = self.detector.live.advance(
                states, [one.row for one in ones], [one.label_follows for one in ones], previous
            )
            scores = self.detector.live.score_steps(steps, n_reasons=self.rules.n_reasons)
        except Exception as problem:
            if len(ready) == 1:
                return [_refusal(problem)]
            return [
                await self._alone(one) for one in ones
            ]  # so that one that cannot be scored is no reason to refuse the others
        given: list[ScoredResponse | Exception] = []
        for place, (each, score) in enumerate(zip(ready, scores, strict=True)):
            try:
                given.append(self._taken(each, steps, place, score))
            except Exception as problem:  # those after it may have gone on from it
                return [
                    *given,
                    _refusal(problem),
                    *[await self._alone(one) for one in ones[place + 1 :]],
                ]
        return given

    async def _alone(self, one: Transaction) -> ScoredResponse | Exception:
        """The answer to a transaction in a wave of its own."""
        found = await self._found(one)
        return (await self._scored([found]))[0] if isinstance(found, PreparedTransaction) else found

    def _taken(
        self, ready: PreparedTransaction, steps: FilterSteps, place: int, score: Score
    ) -> ScoredResponse:
        """The answer to a scored transaction, which joins the records and the log."""
        one, record, state = ready.one, ready.customer.record, steps.states[place]
        if one.label == 1 and state.counterparty is not None:
            state = self.detector.live.report_fraud(state, one.time)
        body = encode_json(
            ScoredTransaction(
                one.id,
                one.customer,
                one.time,
                score.probability,
                score.interval,
                score.raw,
                score.regime,
                score.belief,
                score.entropy,
                score.n_seen,
                ready.late,
                False,
                ready.belief_from,
                ready.counterparty_from,
                self.detector.digest_,
                self.detector.calibration_.number,
                tuple(starmap(ReasonModel, score.reasons)),
            )
        )
        after = None if ready.stays else state
        if self.rules.logs:
            external = None if steps.ranker_scores is None else float(steps.ranker_scores[place])
            self.entries.append(self._entry(ready, after, body, score, external))
        self._change(ready, after, RecentScore(one.id, score.probability))
        age = None if record is None else one.time - record.last_time
        return ScoredResponse(body, score.probability, ready.late, False, age, steps, place)

    def _change(
        self, ready: PreparedTransaction, state: DetectorState | None, seen: RecentScore
    ) -> None:
        """Put a transaction into the records; without a state only the fact that it was answered."""
        one, customer, counterparty = ready.one, ready.customer, ready.counterparty
        version, record = self.detector.digest_, customer.record
        last = one.time if record is None else max(record.last_time, one.time)
        n_since = 1 if record is None or one.time > record.last_time else record.n_since + 1
        ring = joined(() if record is None else record.ring, seen, n_since, self.rules.ring)
        held = (
            state.customer if state is not None else record.state if record is not None else None
        ) or b""
        customer.moved_to(Record(FORMAT, version, last, n_since, ring, held))
        if counterparty is not None and state is not None:
            last = (
                one.time
                if counterparty.record is None
                else max(counterparty.record.last_time, one.time)
            )
            counterparty.moved_to(Record(FORMAT, version, last, 0, (), state.counterparty or b""))

    def _entry(
        self,
        ready: PreparedTransaction,
        state: DetectorState | None,
        body: bytes,
        score: Score,
        external: float | None,
    ) -> LogEntry:
        """The log entry of a transaction that is about to change the records; without a state, of one that moves no belief."""
        one, customer, counterparty = ready.one, ready.customer, ready.counterparty
        parties: tuple[tuple[str, int], ...] = (
            (one.keys[0], customer.expected + customer.n_changes + 1),
        )
        states: tuple[bytes, ...] = ()
        horizons: tuple[float, ...] = ()
        if state is not None:
            states, horizons = (state.customer or b"",), (max(one.time, customer.horizon),)
            if counterparty is not None:
                parties += ((one.keys[1], counterparty.expected + counterparty.n_changes + 1),)
                states += (state.counterparty or b"",)
                horizons += (max(one.time, counterparty.horizon),)
        version, follows = self.detector.digest_, one.label_follows
        logged = LogContent(
            version,
            one.sent,
            body,
            states,
            one.label,
            score.belief,
            external,
            follows,
            one.is_replayed,
            horizons,
        )
        return LogEntry(
            SCORE, one.id, one.time, self.now, parties, state is not None, pack_log_content(logged)
        )

    async def write(
        self,
        batch: Sequence[Transaction],
        beside: Sequence[RecordWrite] = (),
        barred: Set[str] = frozenset(),
    ) -> set[str]:
        """Put into place what the transactions of a batch changed; the keys of the parties for whom that could not be done.

        Transactions whose parties are linked stand or fall together: nothing of them is written if somebody else wrote one of their
        records since, if one that they build on was not written, or if a party is `barred`. So do all, if there are records to be written
        `beside` them.
        """
        changes = {
            key: RecordWrite(key, held.expected, pack_record(held.record), held.n_changes)
            for key, held in self.held.items()
            if held.n_changes and held.record is not None
        }
        roots = (
            dict.fromkeys((key for one in batch for key in one.keys), "")
            if beside
            else _linked(batch)
        )
        lost = {roots[key] for key, known in self.known.items() if known.is_lost} | {
            roots[key] for key in barred & roots.keys()
        }
        groups: dict[str, tuple[list[RecordWrite], list[LogEntry]]] = {
            roots[key]: ([], []) for key in changes if roots[key] not in lost
        }
        for key, change in changes.items():
            if roots[key] not in lost:
                groups[roots[key]][0].append(change)
        for entry in self.entries:
            if roots[entry.parties[0][0]] not in lost:
                groups[roots[entry.parties[0][0]]][1].append(entry)
        if beside and not lost:
            groups.setdefault("", ([], []))[0].extend(beside)
        found_out = lost | groups.keys()
        lost |= {
            roots[key]
            for key in await self._outdated(
                [key for key in self.known if roots[key] not in found_out]
            )
        }
        written = (
            await self.store.write([WriteGroup(*group) for group in groups.values()])
            if groups
            else []
        )
        lost |= {root for root, is_written in zip(groups, written, strict=True) if not is_written}
        return {key for key, root in roots.items() if root in lost}

    async def _outdated(self, keys: Sequence[str]) -> list[str]:
        """Of records that were known and are not written, those that the store has otherwise: nothing else would find that out."""
        stored = await self.store.read_records(keys) if keys else {}
        return [
            key
            for key in keys
            if key not in stored or stored[key].counter != self.known[key].counter
        ]

    async def held_record(self, key: str) -> RecordUpdate:
        """A party's record, made anew if it is another model's."""
        if key not in self.held:
            self.held[key] = await self._first_held(key)
        return self.held[key]

    async def _first_held(self, key: str) -> RecordUpdate:
        if known := self.known.get(key):
            counter, record = known.counter, known.record
        elif stored := self.stored.get(key):
            counter, record = stored.counter, unpack_record(key, stored.data)
        else:
            return RecordUpdate(0, None, NEW)
        if record.model == self.detector.digest_:
            return RecordUpdate(counter, record, STORED)
        state, came_from = await self._past.rebuilt(key)
        return RecordUpdate(
            counter,
            msgspec.structs.replace(record, model=self.detector.digest_, state=state or b""),
            came_from,
        )

    @property
    def made(self) -> dict[str, tuple[int, Record]]:
        """The records that are to be written, and their counters then."""
        return {
            key: (held.expected + held.n_changes, held.record)
            for key, held in self.held.items()
            if held.n_changes and held.record
        }


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
        return CorruptRecordError(
            f"what is stored of the customer or the counterparty is damaged: {problem}"
        )
    if isinstance(problem, DataError):
        return problem if isinstance(problem, FieldError) else FieldError(str(problem))
    if isinstance(problem, CorruptRecordError):
        return problem
    _log.error("a transaction could not be scored", exc_info=problem)
    return problem
