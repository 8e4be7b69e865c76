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
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from turncoat.errors import ContentionError, CorruptRecordError, DataError, StateError, StoreError
from turncoat.features import NEVER, UNKNOWN
from turncoat.features.chains import explain_labels
from turncoat.scoring import Detector, DetectorState
from turncoat.scoring.live import FilterSteps
from turncoat.scoring.scores import Score
from turncoat.serving import records, responses
from turncoat.serving.batcher import Item
from turncoat.serving.decoding import FieldError, Label, Transaction
from turncoat.serving.history import ScoreHistory
from turncoat.serving.records import LogContent, RecentScore, Record, find_column
from turncoat.serving.responses import LabelResponse, ScoredResponse, encode_json
from turncoat.serving.rounds import PreparedTransaction, RecordUpdate, ScoringRound
from turncoat.serving.stores.protocol import (
    LABEL,
    SCORE,
    LogEntry,
    RecordStore,
    RecordWrite,
    WriteGroup,
)

KEEP, APPLY, REFUSE = "keep", "apply", "refuse"
LATE_POLICIES = (KEEP, APPLY, REFUSE)
_MAX_ATTEMPTS = 100
_MAX_PAUSE_S = 0.02  # between two attempts
_log = logging.getLogger("turncoat")

Response = ScoredResponse | LabelResponse
Result = Response | Exception
_EntryIds = tuple[str, str, float]  # kind of a log entry, id and time of its transaction
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
    min_probability: float = 0.0  # of transactions that get reasons
    labels_update_belief: bool = True  # the label of a customer's latest transaction does
    logs: bool = True


class BeliefUpdater:
    """Applies batches of transactions and labels to stored records."""

    def __init__(self, store: RecordStore, policy: UpdatePolicy | None = None) -> None:
        """The caller closes the store."""
        self.store, self.policy = store, policy or UpdatePolicy()

    async def process_batch(
        self, detector: Detector, batch: Sequence[Item], extra_writes: Sequence[RecordWrite] = ()
    ) -> list[Result]:
        """Return one response per request, in order, all of them committed to the store.

        Records that another process changed meanwhile are read and scored again. With
        `extra_writes`, the whole batch and these records are written together or not at all.
        """
        results: dict[int, Result] = {}
        try:
            for pause_s in _retry_pauses():
                if pause_s:
                    await asyncio.sleep(pause_s)
                open_places = [place for place in range(len(batch)) if place not in results]
                update = BatchUpdate(self.store, self.policy, detector)
                found = await update.apply([batch[place] for place in open_places])
                conflicts = await update.write(extra_writes)
                pairs = zip(open_places, found, strict=True)
                results |= {i: one for i, one in pairs if batch[i].keys[0] not in conflicts}
                if len(results) == len(batch):
                    break
        except StoreError as problem:
            if not results:
                raise
            results = dict.fromkeys(range(len(batch)), problem) | results
        return [results[place] for place in range(len(batch))]


def _retry_pauses() -> Iterator[float]:
    """Yield the seconds to wait before each attempt; a ContentionError after the last."""
    for attempt in range(_MAX_ATTEMPTS):
        yield random.uniform(0.0, min(0.001 * attempt, _MAX_PAUSE_S))
    problem = f"other processes wrote the same records {_MAX_ATTEMPTS} times in a row"
    raise ContentionError(f"{problem}. Try again later, or use fewer workers")


class _Change(NamedTuple):
    """A party's record, its new state, and the latest transaction time in that state."""

    key: str
    update: RecordUpdate
    state: bytes
    time: float


class BatchUpdate:
    """One attempt at a batch. Nothing is stored before `write`."""

    def __init__(self, store: RecordStore, policy: UpdatePolicy, detector: Detector) -> None:
        self._store, self._policy, self._detector = store, policy, detector
        self._schema, self._now = detector.features_.plan.schema, time.time()
        self._stored: dict[str, Any] = {}  # records as read
        self._records: dict[str, RecordUpdate] = {}
        self._parties: list[tuple[str, ...]] = []  # that requests link
        self._entries: list[LogEntry] = []
        self._history = ScoreHistory(store, detector, self._entries)

    async def apply(self, batch: Sequence[Item]) -> list[Result]:
        """Score transactions and apply labels, each after those before it."""
        await self._read([request.keys for request in batch])
        results: list[Result | None] = []  # None: in the round, scored at its end
        scoring = ScoringRound()

        async def end_round() -> None:
            nonlocal scoring
            scored = iter(await self._score_round(scoring.prepared))
            results[:] = [next(scored) if one is None else one for one in results]
            scoring = ScoringRound()

        for request in batch:
            if isinstance(request, Label):
                await end_round()
                results.append(await _catch(self._apply_label(request)))
                continue
            found = await _catch(self._prepare(request))
            while isinstance(found, PreparedTransaction) and not scoring.add(found):
                await end_round()  # an empty round takes any transaction
                found = await _catch(self._prepare(request))
            results.append(None if isinstance(found, PreparedTransaction) else found)
        await end_round()
        return [one for one in results if one is not None]

    async def _read(self, parties: Sequence[tuple[str, ...]]) -> None:
        """Read the records that these requests link."""
        self._parties += parties
        keys = dict.fromkeys(key for keys in parties for key in keys)
        missing = [key for key in keys if key not in self._stored]
        self._stored |= await self._store.read_records(missing)

    async def _load(self, key: str) -> RecordUpdate:
        """Return a party's record, rebuilt if another model made it."""
        if key in self._records:
            return self._records[key]
        update, stored = RecordUpdate(0, None, responses.NEW), self._stored.get(key)
        if stored is not None:
            record, digest = records.unpack_record(key, stored.data), self._detector.digest_
            source = responses.STORED
            if record.model != digest:
                state, source = await self._history.rebuild(key)
                record = msgspec.structs.replace(record, model=digest, state=state or b"")
            update = RecordUpdate(stored.counter, record, source)
        self._records[key] = update
        return update

    async def _prepare(self, transaction: Transaction) -> PreparedTransaction | ScoredResponse:
        """Return what a transaction is scored with, or the response it had before."""
        if transaction.schema is not self._schema and transaction.schema != self._schema:
            raise FieldError("the model now in service has other fields. Send it again")
        customer = await self._load(transaction.keys[0])
        is_late = transaction.time < customer.last_time
        if duplicate := await self._find_duplicate(transaction, customer.record):
            return duplicate
        if is_late and self._policy.late == REFUSE:
            latest = f"the customer's latest, at {customer.last_time:.0f} seconds"
            raise LateTransactionError(f"the transaction is older than {latest}")
        keeps_belief = is_late and self._policy.late == KEEP
        updates = [customer, *[await self._load(key) for key in transaction.keys[1:]]]
        states, sources = [each.state for each in updates], [each.source for each in updates]
        for i, update in enumerate(updates if keeps_belief else ()):
            if transaction.time < update.last_time:
                of = transaction.keys[i], transaction.time, update
                states[i], sources[i] = await self._history.belief_at(*of)
        found = transaction, updates, states, sources, is_late, keeps_belief
        return PreparedTransaction(*found, rows=[-1] * len(states))

    async def _find_duplicate(
        self, transaction: Transaction, record: Record | None
    ) -> ScoredResponse | None:
        """Return the response of an earlier transaction with the same id."""
        if record is None:
            return None
        recent, age_s = record.find_recent(transaction.id), record.last_time - transaction.time
        may_be_logged = age_s > 0 or (age_s == 0 and record.may_have_dropped_latest)
        if recent is None and not may_be_logged:
            return None
        duplicate = await self._history.find_response(transaction)
        if duplicate is not None or recent is None:
            return duplicate
        ids = transaction.id, transaction.customer
        body = encode_json(responses.DuplicateResponse(*ids, recent.probability))
        return ScoredResponse(body, recent.probability, duplicate=True)

    async def _score_round(self, prepared: Sequence[PreparedTransaction]) -> list[Result]:
        """Score the transactions of a round in one pass."""
        if not prepared:
            return []
        transactions = [each.transaction for each in prepared]
        try:
            steps = self._detector.live.advance(
                [each.state for each in prepared],
                [each.row for each in transactions],
                [records.encode_label(each.label, each.label_follows) for each in transactions],
                np.array([each.previous for each in prepared], dtype=np.int64),
            )
            scores = self._detector.live.score_steps(
                steps,
                n_reasons=self._policy.n_reasons,
                min_probability=self._policy.min_probability,
            )
        except Exception as problem:
            if len(prepared) == 1:
                return [_explain(problem)]
            # One transaction that cannot be scored must not fail the others.
            return [await self._score_alone(each) for each in transactions]
        scored: list[Result] = []
        explained = explain_labels(np.asarray(steps.causes)).tolist()
        for row, (each, score) in enumerate(zip(prepared, scores, strict=True)):
            try:
                scored.append(self._record_score(each, steps, row, score, explained[row]))
            except Exception as problem:  # later ones may continue from this one
                rest = [await self._score_alone(each) for each in transactions[row + 1 :]]
                return [*scored, _explain(problem), *rest]
        return scored

    async def _score_alone(self, transaction: Transaction) -> Result:
        found = await _catch(self._prepare(transaction))
        if isinstance(found, PreparedTransaction):
            return (await self._score_round([found]))[0]
        return found

    def _record_score(
        self,
        prepared: PreparedTransaction,
        steps: FilterSteps,
        row: int,
        score: Score,
        explained: Sequence[float],
    ) -> ScoredResponse:
        """Put a score into the records and the log; return its response.

        `explained` says for each of the schema's counterparties how far other causes explain a
        fraud.
        """
        transaction, detector = prepared.transaction, self._detector
        customer, record = prepared.updates[0], prepared.updates[0].record
        body = self._encode_response(prepared, score)
        after = steps.states[row].customer, *steps.states[row].counterparties
        places = transaction.places
        parties = zip(transaction.keys, prepared.updates, places, strict=True)
        changes = [
            _Change(key, update, after[place] or b"", max(transaction.time, update.last_time))
            for key, update, place in parties
        ]
        if prepared.keeps_belief:  # only the customer's record counts it
            changes, places = [changes[0]._replace(state=customer.state or b"")], (0,)
        if self._policy.logs:
            logged = () if prepared.keeps_belief else changes
            content = LogContent(
                detector.digest_,
                transaction.body,
                body,
                tuple([change.state for change in logged]),
                transaction.label,
                score.belief,
                None if steps.ranker_scores is None else float(steps.ranker_scores[row]),
                transaction.label_follows,
                transaction.is_replayed,
                tuple([change.time for change in logged]),
                tuple([explained[place - 1] for place in places[1:]]),
            )
            ids = SCORE, transaction.id, transaction.time
            self._append_entry(ids, changes, content, not prepared.keeps_belief)
        is_latest = record is None or transaction.time > record.last_time
        n_since_last = 1 if is_latest or record is None else record.n_since_last + 1
        earlier = () if record is None else record.recent_ids
        recent = (*earlier, RecentScore(transaction.id, score.probability))
        kept: tuple[Any, ...] = (n_since_last, recent[-self._policy.n_recent_ids :])
        age_s = None if record is None else transaction.time - record.last_time
        for change in changes:
            packed = records.FORMAT, detector.digest_, change.time, *kept, change.state
            change.update.replace(Record(*packed))
            kept = (0, ())  # a counterparty has no recent ids
        return ScoredResponse(body, score.probability, prepared.is_late, False, age_s, steps, row)

    def _encode_response(self, prepared: PreparedTransaction, score: Score) -> bytes:
        transaction, detector = prepared.transaction, self._detector
        belief_source, *sources = prepared.sources
        columns = [transaction.schema.counterparties[place - 1] for place in transaction.places[1:]]
        response = responses.ScoredTransaction(
            transaction.id,
            transaction.customer,
            transaction.time,
            *score[:-2],  # probability to regime, in the order of both
            prepared.is_late,
            False,
            belief_source,
            dict(zip(columns, sources, strict=True)),
            detector.digest_,
            detector.calibration_.number,
            score.reasons,
        )
        return encode_json(response)

    async def _apply_label(self, label: Label) -> LabelResponse:
        """Put a label into the records and the log; return its effect.

        The first label conditions the belief if its transaction is the customer's latest. A label
        that changes how its transaction counts at the counterparties is passed to them. Every new
        or corrected label joins the customer's chain of intruders. A corrected label counts in
        recalibration; what the belief learnt from the first one stays.
        """
        (key,), value = label.keys, label.label
        customer = await self._load(key)
        entries = await self._history.find_entries(key, label.id)
        scored = next((entry for entry in entries if entry.kind == SCORE), None)
        if scored is None or customer.record is None:
            problem = f"the log has no transaction {label.id!r} of customer {label.customer!r}"
            remedy = "Score it first, and keep the log long enough"
            raise UnknownTransactionError(f"{problem}. {remedy}")
        others = {find_column(other): other for other, _ in scored.parties[1:]}
        contents = [records.unpack_log_content(entry.content) for entry in entries]
        labels = [content.label for content in contents if content.label is not None]
        why_unchanged = await self._find_why_unchanged(label, labels, customer)
        is_conditioned = why_unchanged is None
        belief = responses.CONDITIONED if is_conditioned else responses.UNCHANGED
        effects = dict.fromkeys(others, responses.UNCHANGED)
        ids = label.id, label.customer, value
        if labels and labels[0] == value:  # the newest says the same
            return LabelResponse(*ids, False, belief, why_unchanged, effects)
        live, states = self._detector.live, {key: customer.state or b""}
        if is_conditioned:
            states[key] = live.condition(DetectorState(customer.state), value).customer or b""
        content = records.unpack_log_content(scored.content)
        has_ring = self._detector.features_.plan.memory_rows > 0
        if has_ring and content.state_times and customer.state:  # late ones may be in no state
            own, time = DetectorState(states[key]), content.state_times[0]
            n_later = await self._history.count_later(key, label.id, time)
            states[key] = live.report_own_label(own, time, value, n_later).customer or b""
        earlier = labels[0] if labels else records.encode_label(None, content.label_follows)
        known = self._detector.features_.plan.counterparties
        told = others.items() if self._is_news(value, earlier) else ()
        for place, (column, other) in enumerate(told):
            if column not in known:  # an earlier model's
                continue
            await self._read([(key, other)])
            if (before := (await self._load(other)).state) is not None:
                time = content.state_times[1 + place]  # late ones counted as of a later time
                about = time, value, earlier, content.explained[place]
                states[other] = live.report_label(column, before, *about)
                is_fraud = value == 1
                effects[column] = responses.REPORTED if is_fraud else responses.GENUINE_REPORTED
        # The customer is written even if unchanged: its counter guards what was read of the log.
        updates = [(self._records[other], other, state) for other, state in states.items()]
        changes = [_Change(other, update, new, update.last_time) for update, other, new in updates]
        after = tuple(change.state for change in changes)
        times = tuple(change.time for change in changes)
        entry = LogContent(self._detector.digest_, b"", b"", after, value, state_times=times)
        entry_ids = LABEL, label.id, scored.time
        self._append_entry(entry_ids, changes, entry, is_conditioned)
        for _, update, new, _ in changes:
            if update.record is not None:
                update.replace(msgspec.structs.replace(update.record, state=new))
        return LabelResponse(*ids, True, belief, why_unchanged, effects)

    async def _find_why_unchanged(
        self, label: Label, earlier: Sequence[int], customer: RecordUpdate
    ) -> str | None:
        """Return why a label does not condition the customer's belief; None if it does."""
        if earlier:
            is_same = earlier[0] == label.label
            return responses.KNOWN_LABEL if is_same else responses.CORRECTED_LABEL
        if not self._policy.labels_update_belief:
            return responses.LABELS_UPDATE_NOTHING
        if not customer.state:
            return responses.NO_BELIEF
        is_latest = await self._history.is_latest(label.keys[0], label.id)
        return None if is_latest else responses.NOT_LATEST

    def _is_news(self, label: int, earlier: int) -> bool:
        """Return whether a label changes how its transaction counts at the counterparty."""
        if label == 1:
            return earlier != 1
        may_wait = self._detector.features_.plan.label_maturity_s > 0
        return earlier in (1, NEVER) or (earlier == UNKNOWN and may_wait)

    def _append_entry(
        self, ids: _EntryIds, changes: Sequence[_Change], content: LogContent, updates_belief: bool
    ) -> None:
        """Add a log entry for these changes."""
        parties = tuple([(change.key, change.update.next_counter) for change in changes])
        data = records.pack_log_content(content)
        self._entries.append(LogEntry(*ids, self._now, parties, updates_belief, data))

    async def write(self, extra_writes: Sequence[RecordWrite] = ()) -> set[str]:
        """Write all changes; return the keys of records that another process changed meanwhile.

        Requests that share a party are one group: it is written as a whole or not at all.
        """
        roots = _link(self._parties)
        groups: dict[str, tuple[list[RecordWrite], list[LogEntry]]] = {}
        if extra_writes:
            roots, groups[""] = dict.fromkeys(roots, ""), (list(extra_writes), [])
        for key, update in self._records.items():
            if update.n_changes and update.record is not None:
                data = records.pack_record(update.record)
                write = RecordWrite(key, update.expected_counter, data, update.n_changes)
                groups.setdefault(roots[key], ([], []))[0].append(write)
        for entry in self._entries:
            groups[roots[entry.parties[0][0]]][1].append(entry)
        if not groups:
            return set()
        written = await self._store.write([WriteGroup(*group) for group in groups.values()])
        is_written = dict(zip(groups, written, strict=True))
        return {key for key, root in roots.items() if not is_written.get(root, True)}


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
        return CorruptRecordError(f"the customer's or counterparty's record is damaged: {problem}")
    if isinstance(problem, UnknownTransactionError | CorruptRecordError | FieldError):
        return problem
    if isinstance(problem, DataError):
        return FieldError(str(problem))
    _log.error("a request could not be processed", exc_info=problem)
    return problem
