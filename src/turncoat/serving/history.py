"""Reads the log: earlier responses, beliefs at earlier times, beliefs rebuilt for a new model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import msgspec
import numpy as np

from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.errors import CorruptRecordError, DataError
from turncoat.features import NEVER
from turncoat.scoring import Detector, DetectorState
from turncoat.serving import responses
from turncoat.serving.decoding import Transaction
from turncoat.serving.records import (
    LogContent,
    customer_key,
    encode_label,
    find_column,
    unpack_log_content,
)
from turncoat.serving.rounds import RecordUpdate
from turncoat.serving.stores.protocol import SCORE, EntryFilters, LogEntry, RecordStore, matches

_Belief = tuple[bytes | None, str]  # a state, None if there is none yet, and its source
_ALL = 2**31 - 1  # entries of one transaction: its label may have been reported many times
_MAX_REBUILD_ENTRIES = 500  # latest entries from which a belief is rebuilt
_LOOKBACK_LIMITS = (2, 50)  # entries in which the belief at an earlier time is searched


class ScoreHistory:
    """The log as one batch sees it: the store's entries, and the entries the batch will add."""

    def __init__(self, store: RecordStore, detector: Detector, pending: Sequence[LogEntry]) -> None:
        """`pending` are the entries of the batch, oldest first; the list grows."""
        self._store, self._detector, self._pending = store, detector, pending

    async def _read(
        self, key: str, limit: int = _ALL, **filters: Unpack[EntryFilters]
    ) -> list[LogEntry]:
        """Return a party's entries, newest first."""
        pending = [entry for entry in reversed(self._pending) if key in dict(entry.parties)]
        own = [entry for entry in pending if matches(entry, filters)]
        return own + await self._store.read_history(key, limit=limit, **filters)

    async def find_entries(self, key: str, transaction_id: str) -> list[LogEntry]:
        """Return the score and the labels of a customer's transaction, newest first."""
        entries = await self._read(key, transaction_id=transaction_id)
        return [entry for entry in entries if entry.parties[0][0] == key]

    async def find_response(self, transaction: Transaction) -> responses.ScoredResponse | None:
        """Return the first response to a transaction, marked as a duplicate; None if not logged."""
        for entry in await self.find_entries(transaction.keys[0], transaction.id):
            if entry.kind == SCORE:
                return responses.mark_duplicate(_unpack(entry).response)
        return None

    async def is_latest(self, key: str, transaction_id: str) -> bool:
        """Return whether this transaction was the last to change the customer's belief."""
        newest = (await self._read(key, belief_updated=True, limit=1))[:1]
        return [(entry.kind, entry.transaction_id) for entry in newest] == [(SCORE, transaction_id)]

    async def count_later(self, key: str, transaction_id: str, time: float) -> int:
        """Return how many of the customer's transactions with this time came after this one.

        `time` is the time at which the transaction counts in the customer's state.
        """
        n_later, n_rows = 0, self._detector.features_.plan.memory_rows
        # Each transaction in the state has at most one label that changed the belief.
        for entry in await self._read(key, belief_updated=True, limit=2 * n_rows):
            if entry.kind == SCORE and entry.transaction_id == transaction_id:
                break
            if entry.kind == SCORE and entry.time <= time:  # at the same time, or late
                n_later += _unpack(entry).state_times[0] == time
        return n_later

    async def belief_at(self, key: str, time: float, update: RecordUpdate) -> _Belief:
        """Return a party's belief as of `time`, or the present one if the log is too short."""
        entries: list[LogEntry] = []
        for limit in _LOOKBACK_LIMITS:
            n_searched = len(entries)
            entries = await self._read(key, until=time, belief_updated=True, limit=limit)
            for entry in entries[n_searched:]:
                content = _unpack(entry)
                place = list(dict(entry.parties)).index(key)
                if content.state_times[place] > time:
                    continue
                if content.model == self._detector.digest_:
                    return content.states[place], responses.LOGGED
                return await self.rebuild(key, time)
            if len(entries) < limit:
                break
        is_new = update.expected_counter == 0
        if not entries and (is_new or await self._has_first_entry(key)):
            return None, responses.NEW  # older than all others
        return update.state, responses.CURRENT

    async def _has_first_entry(self, key: str) -> bool:
        entries = await self._read(key, belief_updated=True, limit=_MAX_REBUILD_ENTRIES)
        return bool(entries) and dict(entries[-1].parties)[key] == 1

    async def rebuild(self, key: str, until: float = math.inf) -> _Belief:
        """Return the state that this model makes of a party's log, and its source."""
        entries = await self._read(key, until=until, limit=_MAX_REBUILD_ENTRIES)
        try:
            state = self._replay(key, entries)
        except DataError:  # the log has transactions of another schema
            state = None
        return state, responses.RESTARTED if state is None else responses.REBUILT

    def _replay(self, key: str, entries: Sequence[LogEntry]) -> bytes | None:
        """Return a party's state after these transactions and labels, given newest first.

        A party is replayed without the others: how they were at the time is not logged.
        """
        live, plan = self._detector.live, self._detector.features_.plan
        has_ring = plan.memory_rows > 0
        column = None if key == customer_key(key[2:]) else find_column(key)
        state: bytes | None = None
        rows: list[tuple[TransactionRow, int]] = []  # not yet in `state`, with labels
        # How each transaction counts: its label, its time or the latest before it, and how far
        # other causes explain a fraud.
        counted: dict[tuple[str, str], tuple[int, float, float]] = {}
        at: dict[float, list[str]] = {}  # ids of the transactions that count at each time
        latest = -math.inf
        for entry in reversed(entries):
            content, is_score = _unpack(entry), entry.kind == SCORE
            name = (entry.parties[0][0], entry.transaction_id)
            if is_score and entry.belief_updated:
                row = parse_row(plan.schema, msgspec.json.decode(content.body))
                label = encode_label(content.label, content.label_follows)
                # A fraud is reported with what other causes explained then: the row does not say.
                weighs = column is not None and label == 1
                rows.append((row, NEVER if weighs else label))
                latest, explained = max(latest, entry.time), 0.0
                if column is not None:
                    explained = content.explained[list(dict(entry.parties)).index(key) - 1]
                counted[name] = label, latest, explained
                at.setdefault(latest, []).append(entry.transaction_id)
                if column is not None and weighs:
                    state, rows = self._advance(state, rows, column), []
                    if state is not None:
                        about = latest, label, NEVER, explained
                        state = live.report_label(column, state, *about)
            conditions = column is None and not is_score and (entry.belief_updated or has_ring)
            reports = column is not None and not is_score
            if conditions or reports:
                state, rows = self._advance(state, rows, column), []
            if conditions and state is not None:
                own, label = DetectorState(state), int(content.label or 0)
                if entry.belief_updated:
                    own = live.condition(own, label)
                if has_ring and name in counted:
                    time = counted[name][1]
                    n_later = len(at[time]) - 1 - at[time].index(entry.transaction_id)
                    own = live.report_own_label(own, time, label, n_later)
                state = own.customer
            if column is not None and reports and state is not None:
                label = int(content.label or 0)
                earlier, time, explained = counted.get(name, (NEVER, min(entry.time, latest), 0.0))
                counted[name] = label, time, explained
                state = live.report_label(column, state, time, label, earlier, explained)
        return self._advance(state, rows, column)

    def _advance(
        self, state: bytes | None, rows: Sequence[tuple[TransactionRow, int]], column: str | None
    ) -> bytes | None:
        """Return the state of a customer, or of a column's counterparty, after these rows."""
        names = self._detector.features_.plan.counterparties
        is_own = [name == column for name in names]
        sent, labels = [], []
        for row, label in rows:
            named = zip(row.counterparties, is_own, strict=True) if names else ()
            others = tuple(name if own else None for name, own in named)
            if column is None or any(others):
                sent.append(row._replace(counterparties=others))
                labels.append(label)
        if not sent:
            return state
        first = DetectorState(state)
        if column is not None:
            first = DetectorState(None, tuple(state if own else None for own in is_own))
        side = 0 if column is None else 1 + names.index(column)
        previous = np.full((len(sent), 1 + len(names)), -1)
        previous[1:, side] = np.arange(len(sent) - 1)
        states = [first, *[DetectorState()] * (len(sent) - 1)]
        last = self._detector.live.advance(states, sent, labels, previous).states[-1]
        return last.customer if column is None else last.counterparties[side - 1]


def _unpack(entry: LogEntry) -> LogContent:
    """Return the content of an entry; a CorruptRecordError if it belongs to another entry."""
    content = unpack_log_content(entry.content)
    n_states = len(entry.parties) if entry.belief_updated else len(content.states)
    has_response = entry.kind != SCORE or bool(content.response)
    n_explained = n_states - 1 if entry.kind == SCORE and n_states else 0
    is_complete = len(content.states) == len(content.state_times) == n_states
    is_complete &= len(content.explained) == n_explained
    if not has_response or not is_complete:
        problem = f"the entry of transaction {entry.transaction_id!r} has another entry's content"
        raise CorruptRecordError(f"{problem}. Restore the store from a backup")
    return content
