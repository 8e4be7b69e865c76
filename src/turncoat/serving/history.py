"""What the log knows: answers that were given, beliefs as they were, and what makes them anew for another model."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.errors import DataError
from turncoat.scoring import Detector, DetectorState
from turncoat.serving.cache import CachedRecord
from turncoat.serving.decoding import Transaction
from turncoat.serving.records import RecentScore, customer_key, unpack_log_content
from turncoat.serving.responses import (
    CURRENT,
    LOGGED,
    NEW,
    REBUILT,
    RESTARTED,
    DuplicateResponse,
    ScoredResponse,
    encode_json,
    repeated,
)
from turncoat.serving.stores import SCORE, LogEntry, Store
from turncoat.serving.waves import RecordUpdate

EVERY = (
    2**31 - 1
)  # entry of a transaction: labels may have come again and again since it was scored
_REBUILD_FROM = 500  # of a party's latest logged transactions
_LOOK_BACK = (
    50  # log entries in which the belief that a late transaction would have met is looked for
)


class ScoreHistory:
    """The log as an attempt sees it: what is stored, what is still being written, and what the attempt itself will add."""

    def __init__(
        self,
        store: Store,
        detector: Detector,
        known: Mapping[str, CachedRecord],
        entries: Sequence[LogEntry],
    ) -> None:
        """`known` are records that others may still be writing, `entries` the attempt's own so far."""
        self._store, self._detector, self._known, self._entries = store, detector, known, entries

    async def _history(
        self,
        key: str,
        until: float = math.inf,
        id: str | None = None,
        moved: bool = False,
        limit: int = 100,
    ) -> list[LogEntry]:
        """What is stored of a party once nobody in this process is writing it any more."""
        known = self._known.get(key)
        if known is not None and known.writing is not None:
            await asyncio.shield(known.writing)
        return await self._store.read_history(
            key, until=until, transaction_id=id, belief_updated=moved, limit=limit
        )

    async def answer(self, one: Transaction) -> ScoredResponse | None:
        """The answer that was given to a transaction, if it is in the log."""
        own = (
            entry
            for entry in reversed(self._entries)
            if entry.transaction_id == one.id and entry.parties[0][0] == one.keys[0]
        )
        for entry in (*own, *await self._history(one.keys[0], id=one.id, limit=EVERY)):
            if entry.kind == SCORE:
                return ScoredResponse(
                    *repeated(unpack_log_content(entry.content).answer), duplicate=True
                )
        return None

    async def answer_again(self, one: Transaction, seen: RecentScore) -> ScoredResponse:
        """The first answer to a transaction that comes again; of one that is no longer in the log, what the record has of it."""
        remembered = ScoredResponse(
            encode_json(DuplicateResponse(one.id, one.customer, seen.probability)),
            seen.probability,
            duplicate=True,
        )
        return await self.answer(one) or remembered

    async def met(self, key: str, held: RecordUpdate, when: float) -> tuple[bytes | None, str]:
        """The state that a party had at an earlier moment, of which it may know nothing later; and where it is from."""
        found = [
            entry
            for entry in reversed(self._entries)
            if entry.belief_updated and entry.time <= when and key in dict(entry.parties)
        ]
        found += await self._history(key, until=when, moved=True, limit=_LOOK_BACK)
        for entry in found:
            logged, place = unpack_log_content(entry.content), list(dict(entry.parties)).index(key)
            if logged.horizons[place] > when:
                continue
            if logged.model == self._detector.version_:
                return logged.states[place], LOGGED
            return await self.rebuilt(key, when)
        if not found and (held.expected == 0 or await self._knows_the_first(key)):
            return None, NEW  # and this one is older still
        return held.state, CURRENT

    async def rebuilt(self, key: str, until: float = math.inf) -> tuple[bytes | None, str]:
        """The state of a party as this model would have it; none where nothing is logged that it can read."""
        try:
            state = self._replayed(key, await self._history(key, until=until, limit=_REBUILD_FROM))
        except DataError:  # of another schema
            state = None
        return state, RESTARTED if state is None else REBUILT

    async def _knows_the_first(self, key: str) -> bool:
        """Whether the log still has a party's first transaction, as far as is looked."""
        moves = await self._history(key, moved=True, limit=_REBUILD_FROM)
        return bool(moves) and dict(moves[-1].parties)[key] == 1

    def _replayed(self, key: str, history: Sequence[LogEntry]) -> bytes | None:
        """A party's state after the transactions and labels that moved it, given the newest first.

        What the counterparty was like at each of a customer's transactions is not known any more, and left out as missing.
        """
        detector, schema = self._detector, self._detector.features_.plan.schema
        is_customer = key == customer_key(key[2:])
        state: bytes | None = None
        rows: list[tuple[TransactionRow, bool]] = []  # since then
        for entry in reversed(history):
            logged = unpack_log_content(entry.content)
            is_score = entry.kind == SCORE
            if is_score and entry.belief_updated:
                sent = msgspec.json.decode(logged.sent)
                if is_customer:
                    sent.pop(schema.counterparty, None)
                rows.append((parse_row(schema, sent), logged.label_follows))
            conditions, reports = (
                is_customer and not is_score and entry.belief_updated,
                not is_customer and logged.label == 1,
            )
            if conditions or reports:
                state, rows = self._advanced(state, rows, is_customer), []
            if conditions and state is not None:
                state = detector.live.condition(
                    DetectorState(state), int(logged.label or 0)
                ).customer
            if reports and state is not None:
                state = detector.live.report_fraud(
                    DetectorState(None, state), entry.time
                ).counterparty
        return self._advanced(state, rows, is_customer)

    def _advanced(
        self, state: bytes | None, rows: Sequence[tuple[TransactionRow, bool]], is_customer: bool
    ) -> bytes | None:
        """A party's state after rows, each with whether its label follows."""
        own = [
            (row, follows) for row, follows in rows if is_customer or row.counterparty is not None
        ]
        if not own:
            return state
        first = DetectorState(state, None) if is_customer else DetectorState(None, state)
        previous = np.full((len(own), 2), -1)
        previous[1:, 0 if is_customer else 1] = np.arange(len(own) - 1)
        states = [first, *[DetectorState()] * (len(own) - 1)]
        after = self._detector.live.advance(
            states, [row for row, _ in own], [follows for _, follows in own], previous
        ).states[-1]
        return after.customer if is_customer else after.counterparty
