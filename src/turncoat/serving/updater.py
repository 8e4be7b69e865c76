"""The belief update of live requests: read records, score, write by compare-and-set, retry.

Each transaction counts once. A duplicate gets its first response again. A late transaction is
scored with the belief as of its own timestamp and, by default, changes no belief. A belief made
by another model is rebuilt from the log, never mixed in. Labels go through the same batches.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import TypeVar

import msgspec
import numpy as np

from turncoat.errors import ContentionError, CorruptRecordError, DataError, StateError, StoreError
from turncoat.scoring import Detector, DetectorState
from turncoat.scoring.live import FilterSteps
from turncoat.scoring.scores import Score
from turncoat.serving.decoding import FieldError, Label, Transaction
from turncoat.serving.history import ScoreHistory
from turncoat.serving.records import (
    FORMAT,
    LogContent,
    RecentScore,
    Record,
    pack_log_content,
    pack_record,
    unpack_log_content,
    unpack_record,
)
from turncoat.serving.responses import (
    CONDITIONED,
    NEW,
    REPORTED,
    STORED,
    UNCHANGED,
    DuplicateResponse,
    LabelResponse,
    ReasonModel,
    ScoredResponse,
    ScoredTransaction,
    encode_json,
)
from turncoat.serving.rounds import PreparedTransaction, RecordUpdate, ScoringRound
from turncoat.serving.stores import LABEL, SCORE, LogEntry, RecordWrite, Store, WriteGroup

KEEP, APPLY, REFUSE = "keep", "apply", "refuse"
LATE_POLICIES = (KEEP, APPLY, REFUSE)
_MAX_ATTEMPTS = 100
_MAX_PAUSE_S = 0.02  # between two attempts
_log = logging.getLogger("turncoat")

Response = ScoredResponse | LabelResponse
T = TypeVar("T")


class LateTransactionError(FieldError):
    """A late transaction, where the policy refuses them."""


class UnknownTransactionError(DataError):
    """A label for a transaction that is not in the log."""


@dataclass(frozen=True)
class UpdatePolicy:
    """Choices of the operator."""

    late: str = KEEP  # late transactions: change no belief, count as if they came now, or refuse
    n_recent_ids: int = 16  # kept in a customer's record, to recognise duplicates without the log
    n_reasons: int = 4  # the strongest; all others together are one more
    labels_update_belief: bool = True  # the label of a customer's latest transaction does
    logs: bool = True


class BeliefUpdater:
    """Applies batches of transactions and labels to stored records."""

    def __init__(self, store: Store, policy: UpdatePolicy | None = None) -> None:
        """The caller closes the store."""
        self.store, self.policy = store, policy or UpdatePolicy()

    async def process_batch(
        self,
        detector: Detector,
        batch: Sequence[Transaction | Label],
        extra_writes: Sequence[RecordWrite] = (),
    ) -> list[Response | Exception]:
        """Return one response per request, in order, all of them committed to the store.

        Records that another process changed meanwhile are read and scored again. With
        `extra_writes`, the whole batch and these records are written together or not at all.
        """
        responses: dict[int, Response | Exception] = {}
        try:
            for pause_s in _retry_pauses():
                if pause_s:
                    await asyncio.sleep(pause_s)
                open_places = [place for place in range(len(batch)) if place not in responses]
                update = BatchUpdate(self.store, self.policy, detector)
                found = await update.apply([batch[place] for place in open_places])
                conflicts = await update.write(extra_writes)
                responses |= {
                    place: response
                    for place, response in zip(open_places, found, strict=True)
                    if batch[place].keys[0] not in conflicts
                }
                if len(responses) == len(batch):
                    break
        except StoreError as problem:
            if not responses:
                raise
            responses = dict.fromkeys(range(len(batch)), problem) | responses
        return [responses[place] for place in range(len(batch))]


def _retry_pauses() -> Iterator[float]:
    """Yield the seconds to wait before each attempt; a ContentionError after the last."""
    for attempt in range(_MAX_ATTEMPTS):
        yield random.uniform(0.0, min(0.001 * attempt, _MAX_PAUSE_S))
    raise ContentionError(
        f"other processes wrote the same records {_MAX_ATTEMPTS} times in a row. "
        "Try again later, or use fewer workers"
    )


class BatchUpdate:
    """One attempt at a batch. Nothing is stored before `write`."""

    def __init__(self, store: Store, policy: UpdatePolicy, detector: Detector) -> None:
        self._store, self._policy, self._detector = store, policy, detector
        self._schema, self._now = detector.features_.plan.schema, time.time()
        self._records: dict[str, RecordUpdate] = {}
        self._parties: list[tuple[str, ...]] = []  # that requests link
        self._entries: list[LogEntry] = []
        self._history = ScoreHistory(store, detector, self._entries)

    async def apply(self, batch: Sequence[Transaction | Label]) -> list[Response | Exception]:
        """Score transactions and apply labels, each after those before it."""
        self._parties = [request.keys for request in batch]
        stored = await self._store.read_records(
            list(dict.fromkeys(key for keys in self._parties for key in keys))
        )
        self._stored = dict(stored)
        responses: dict[int, Response | Exception] = {}
        waiting = list(range(len(batch)))
        while waiting:
            scoring, later = ScoringRound(), []
            for i, place in enumerate(waiting):
                request = batch[place]
                found: PreparedTransaction | Response | Exception | None = None
                if isinstance(request, Label):
                    found = await _catch(self._apply_label(request, scoring))
                elif not scoring.blocks(*request.keys):
                    found = await _catch(self._prepare(request))
                if isinstance(found, PreparedTransaction):
                    if scoring.add(place, found):
                        continue
                    found = None
                if found is not None:
                    responses[place] = found
                elif isinstance(request, Label):
                    later += waiting[i:]
                    break
                else:
                    scoring.block(*request.keys)
                    later.append(place)
            scored = await self._score_round(scoring.prepared)
            responses |= zip(scoring.places, scored, strict=True)
            waiting = later
        return [responses[place] for place in range(len(batch))]

    async def _prepare(self, transaction: Transaction) -> PreparedTransaction | Response:
        """Return what a transaction is scored with, or the response it had before."""
        if transaction.schema is not self._schema and transaction.schema != self._schema:
            raise FieldError(
                "the model was replaced by one with other fields meanwhile. Send it again"
            )
        key = transaction.keys[0]
        customer = await self._load(key)
        record, is_late = customer.record, transaction.time < customer.last_time
        if record is not None:
            recent = record.find_recent(transaction.id)
            is_uncertain = is_late or (
                transaction.time == record.last_time and record.may_have_dropped_latest
            )
            if recent or is_uncertain:
                duplicate = await self._history.find_response(transaction)
                if duplicate is not None:
                    return duplicate
            if recent:
                body = DuplicateResponse(transaction.id, transaction.customer, recent.probability)
                return ScoredResponse(encode_json(body), recent.probability, duplicate=True)
        if is_late and self._policy.late == REFUSE:
            raise LateTransactionError(
                "the transaction is older than the customer's latest, at "
                f"{customer.last_time:.0f} seconds"
            )
        keeps_belief = is_late and self._policy.late == KEEP
        state, source = customer.state, customer.source
        if keeps_belief:
            state, source = await self._load_belief_at(key, customer, transaction.time)
        counterparty, other_state, other_source = None, None, None
        if transaction.counterparty is not None:
            other_key = transaction.keys[1]
            counterparty = await self._load(other_key)
            other_state, other_source = counterparty.state, counterparty.source
            if keeps_belief and transaction.time < counterparty.last_time:
                other_state, other_source = await self._load_belief_at(
                    other_key, counterparty, transaction.time
                )
        return PreparedTransaction(
            transaction,
            customer,
            counterparty,
            DetectorState(state, other_state),
            source,
            other_source,
            is_late,
            keeps_belief,
        )

    async def _load_belief_at(
        self, key: str, update: RecordUpdate, time: float
    ) -> tuple[bytes | None, str]:
        return await self._history.belief_at(key, time, update.state, update.expected_counter > 0)

    async def _load(self, key: str) -> RecordUpdate:
        """Return a party's record, rebuilt if another model made it."""
        if key not in self._records:
            self._records[key] = await self._unpack(key)
        return self._records[key]

    async def _unpack(self, key: str) -> RecordUpdate:
        stored = self._stored.get(key)
        if stored is None:
            return RecordUpdate(0, None, NEW)
        record, version = unpack_record(key, stored.data), self._detector.digest_
        if record.model == version:
            return RecordUpdate(stored.counter, record, STORED)
        state, source = await self._history.rebuild(key)
        record = msgspec.structs.replace(record, model=version, state=state or b"")
        return RecordUpdate(stored.counter, record, source)

    async def _score_round(
        self, prepared: Sequence[PreparedTransaction]
    ) -> list[Response | Exception]:
        """Score the transactions of a round in one pass."""
        if not prepared:
            return []
        transactions = [each.transaction for each in prepared]
        try:
            steps = self._detector.live.advance(
                [each.state for each in prepared],
                [each.row for each in transactions],
                [each.label_follows for each in transactions],
                np.array([each.previous for each in prepared], dtype=np.int64),
            )
            scores = self._detector.live.score_steps(steps, n_reasons=self._policy.n_reasons)
        except Exception as problem:
            if len(prepared) == 1:
                return [_explain(problem)]
            # One transaction that cannot be scored must not fail the others.
            return [await self._score_alone(each) for each in transactions]
        responses: list[Response | Exception] = []
        for row, (each, score) in enumerate(zip(prepared, scores, strict=True)):
            try:
                responses.append(self._record_score(each, steps, row, score))
            except Exception as problem:  # later ones may continue from this one
                rest = [await self._score_alone(each) for each in transactions[row + 1 :]]
                return [*responses, _explain(problem), *rest]
        return responses

    async def _score_alone(self, transaction: Transaction) -> Response | Exception:
        found = await _catch(self._prepare(transaction))
        if isinstance(found, PreparedTransaction):
            (found,) = await self._score_round([found])
        return found

    def _record_score(
        self, prepared: PreparedTransaction, steps: FilterSteps, row: int, score: Score
    ) -> ScoredResponse:
        """Put a score into the records and the log; return its response."""
        transaction, detector = prepared.transaction, self._detector
        customer, counterparty = prepared.customer, prepared.counterparty
        body = encode_json(
            ScoredTransaction(
                id=transaction.id,
                customer=transaction.customer,
                time=transaction.time,
                probability=score.probability,
                interval=score.interval,
                raw_membership=score.raw,
                regime=score.regime,
                belief=score.belief,
                entropy=score.entropy,
                n_seen=score.n_seen,
                late=prepared.is_late,
                duplicate=False,
                belief_source=prepared.belief_source,
                counterparty_source=prepared.counterparty_source,
                model=detector.digest_,
                calibration=detector.calibration_.number,
                reasons=tuple(starmap(ReasonModel, score.reasons)),
            )
        )
        age = None if customer.record is None else transaction.time - customer.last_time
        last_time = max(transaction.time, customer.last_time)
        if customer.record is None or transaction.time > customer.last_time:
            n_since_last = 1
        else:
            n_since_last = customer.record.n_since_last + 1
        recent = () if customer.record is None else customer.record.recent_ids
        recent = (*recent, RecentScore(transaction.id, score.probability))
        recent = recent[-self._policy.n_recent_ids :]
        changes = {transaction.keys[0]: (customer, customer.state or b"", last_time)}
        if not prepared.keeps_belief:
            state = steps.states[row]
            if transaction.label == 1 and state.counterparty is not None:
                state = detector.live.report_fraud(state, transaction.time)
            changes[transaction.keys[0]] = (customer, state.customer or b"", last_time)
            if counterparty is not None:
                other_time = max(transaction.time, counterparty.last_time)
                other_state = state.counterparty or b""
                changes[transaction.keys[1]] = (counterparty, other_state, other_time)
        updates_belief = not prepared.keeps_belief
        if self._policy.logs:
            content = LogContent(
                model=detector.digest_,
                body=transaction.body,
                response=body,
                states=tuple(state for _, state, _ in changes.values()) if updates_belief else (),
                label=transaction.label,
                belief=score.belief,
                external=None if steps.ranker_scores is None else float(steps.ranker_scores[row]),
                label_follows=transaction.label_follows,
                is_replayed=transaction.is_replayed,
                state_times=tuple(at for *_, at in changes.values()) if updates_belief else (),
            )
            self._append_entry(SCORE, transaction.id, transaction.time, changes, content)
        for update, packed, at in changes.values():
            ids = (n_since_last, recent) if update is customer else (0, ())
            update.replace(Record(FORMAT, detector.digest_, at, *ids, packed))
        return ScoredResponse(body, score.probability, prepared.is_late, False, age, steps, row)

    async def _apply_label(self, label: Label, scoring: ScoringRound) -> LabelResponse | None:
        """Put a label into the records and the log; None if it has to wait for the round.

        A label conditions the belief if its transaction is the customer's latest. The first label
        that reports a fraud is passed to the counterparty. A corrected label counts in
        recalibration; what records learnt from the first one stays.
        """
        (key,) = label.keys
        if scoring.involves(key):
            return None
        customer = await self._load(key)
        entries = await self._history.find_entries(key, label.id)
        scored = next((entry for entry in entries if entry.kind == SCORE), None)
        if scored is None:
            raise UnknownTransactionError(
                f"the log has no transaction {label.id!r} of customer {label.customer!r}. "
                "Score it first, and keep the log long enough"
            )
        if customer.record is None:
            raise UnknownTransactionError(f"customer {label.customer!r} has no record any more")
        others = [other for other, _ in scored.parties[1:]]
        if scoring.involves(*others):
            return None
        labels = [unpack_log_content(entry.content).label for entry in entries]
        labels = [earlier for earlier in labels if earlier is not None]  # newest first
        changes: dict[str, tuple[RecordUpdate, bytes, float]] = {}
        is_new = not labels or labels[0] != label.label
        if (
            not labels
            and self._policy.labels_update_belief
            and customer.state
            and await self._history.is_latest(key, label.id)
        ):
            state = self._detector.live.condition(
                DetectorState(customer.state), label.label
            ).customer
            changes[key] = (customer, state or b"", customer.last_time)
        is_conditioned = bool(changes)
        if is_new:  # the customer's counter guards what was read of the log, even if unchanged
            changes.setdefault(key, (customer, customer.state or b"", customer.last_time))
        is_reported = False
        for other in others if label.label == 1 and 1 not in labels else ():
            await self._read_more(key, other)
            counterparty = await self._load(other)
            if counterparty.state:
                state = self._detector.live.report_fraud(
                    DetectorState(None, counterparty.state), scored.time
                ).counterparty
                changes[other] = (counterparty, state or b"", counterparty.last_time)
                is_reported = True
        if is_new:
            content = LogContent(
                model=self._detector.digest_,
                body=b"",
                response=b"",
                states=tuple(state for _, state, _ in changes.values()),
                label=label.label,
                state_times=tuple(at for *_, at in changes.values()),
            )
            self._append_entry(LABEL, label.id, scored.time, changes, content, is_conditioned)
        for update, state, _ in changes.values():
            if update.record is not None:
                update.replace(msgspec.structs.replace(update.record, state=state))
        return LabelResponse(
            label.id,
            label.customer,
            label.label,
            changed=is_new,
            belief=CONDITIONED if is_conditioned else UNCHANGED,
            counterparty=None if not others else REPORTED if is_reported else UNCHANGED,
        )

    async def _read_more(self, key: str, other: str) -> None:
        """Read a record that the batch did not name, and link it to a customer."""
        self._parties.append((key, other))
        if other not in self._stored and other not in self._records:
            self._stored |= await self._store.read_records([other])

    def _append_entry(
        self,
        kind: str,
        id: str,
        time: float,
        changes: dict[str, tuple[RecordUpdate, bytes, float]],
        content: LogContent,
        updates_belief: bool | None = None,
    ) -> None:
        parties = tuple((key, update.next_counter) for key, (update, *_) in changes.items())
        updates_belief = bool(content.states) if updates_belief is None else updates_belief
        self._entries.append(
            LogEntry(kind, id, time, self._now, parties, updates_belief, pack_log_content(content))
        )

    async def write(self, extra_writes: Sequence[RecordWrite] = ()) -> set[str]:
        """Write all changes; return the keys of records that another process changed meanwhile.

        Requests that share a party are one group: it is written as a whole or not at all.
        """
        roots = _link(self._parties)
        if extra_writes:
            roots = dict.fromkeys(roots, "")
        groups: dict[str, tuple[list[RecordWrite], list[LogEntry]]] = {}
        for key, update in self._records.items():
            if update.n_changes and update.record is not None:
                write = RecordWrite(
                    key, update.expected_counter, pack_record(update.record), update.n_changes
                )
                groups.setdefault(roots[key], ([], []))[0].append(write)
        for entry in self._entries:
            groups[roots[entry.parties[0][0]]][1].append(entry)
        if extra_writes:
            groups.setdefault("", ([], []))[0].extend(extra_writes)
        if not groups:
            return set()
        written = await self._store.write([WriteGroup(*group) for group in groups.values()])
        conflicts = {
            root for root, is_written in zip(groups, written, strict=True) if not is_written
        }
        return {key for key, root in roots.items() if root in conflicts}


def _link(parties: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """Return for every key one that stands for all keys it is linked to (union-find)."""
    parents: dict[str, str] = {}

    def find_root(key: str) -> str:
        while (parent := parents.setdefault(key, key)) != key:
            key = parent
        return key

    for keys in parties:
        first, *others = map(find_root, keys)
        for other in others:
            parents[other] = first
    return {key: find_root(key) for key in parents}


async def _catch(work: Awaitable[T]) -> T | Exception:
    """Return the result, or the exception if it concerns one request and not the whole store."""
    try:
        return await work
    except Exception as problem:
        if isinstance(problem, StoreError) and not isinstance(problem, CorruptRecordError):
            raise
        return _explain(problem)


def _explain(problem: Exception) -> Exception:
    """Return the exception that a sender sees; unexpected ones are logged for the operator."""
    if isinstance(problem, StateError):
        return CorruptRecordError(
            f"the record of the customer or counterparty is damaged: {problem}"
        )
    if isinstance(problem, UnknownTransactionError | CorruptRecordError | FieldError):
        return problem
    if isinstance(problem, DataError):
        return FieldError(str(problem))
    _log.error("a request could not be processed", exc_info=problem)
    return problem
