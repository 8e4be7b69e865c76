"""Labels that arrive: logged for recalibration, told to the counterparty's record, and to the belief they are about."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec

from turncoat.errors import DataError
from turncoat.scoring import Detector, DetectorState
from turncoat.serving.attempt import BatchUpdate
from turncoat.serving.history import EVERY
from turncoat.serving.records import (
    LogContent,
    Record,
    customer_key,
    pack_log_content,
    pack_record,
    unpack_log_content,
)
from turncoat.serving.responses import LabelResponse
from turncoat.serving.stores import LABEL, SCORE, LogEntry, RecordWrite, Store, WriteGroup
from turncoat.serving.updater import BeliefUpdater, pauses

CONDITIONED, REPORTED, UNCHANGED = "conditioned", "fraud reported", "unchanged"


class UnknownTransactionError(DataError):
    """A label for a transaction that the log does not have."""


@dataclass(frozen=True)
class _Found:
    """A transaction in the log, and what was said of it before."""

    entry: LogEntry
    label: int | None  # the last that was reported, or that came with a replayed file
    was_fraud: bool  # whether it was ever said to be fraud


async def report(
    updater: BeliefUpdater, detector: Detector, customer: str, id: str, label: int
) -> LabelResponse:
    """Take in the outcome of a transaction: 1 for fraud, 0 for genuine. The same again changes nothing.

    A label that corrects another one counts in recalibration, and a fraud is told to the counterparty; what records learnt from the
    first stays.
    """
    key = customer_key(customer)
    for pause in pauses():
        await asyncio.sleep(pause)
        found = await _find(updater.store, key, customer, id)
        keys = [party for party, _ in found.entry.parties]
        if found.label == label:
            return LabelResponse(
                id, customer, label, False, UNCHANGED, None if len(keys) == 1 else UNCHANGED
            )
        stored = await updater.store.read_records(keys)
        if key not in stored:
            raise UnknownTransactionError(f"customer {customer!r} has no record any more")
        tried = BatchUpdate(updater.store, updater.rules, detector, stored)
        records = {
            party: held.record
            for party in keys
            if (held := await tried.held_record(party)).record is not None
        }
        changed: dict[str, Record] = {}
        if (
            found.label is None
            and updater.rules.conditions
            and records[key].state
            and await _is_latest(updater.store, key, found.entry)
        ):
            state = detector.live.condition(DetectorState(records[key].state), label)
            changed[key] = msgspec.structs.replace(records[key], state=state.customer)
        for party in keys[1:]:
            if label == 1 and not found.was_fraud and party in records and records[party].state:
                state = detector.live.report_fraud(
                    DetectorState(None, records[party].state), found.entry.time
                )
                changed[party] = msgspec.structs.replace(records[party], state=state.counterparty)
        after = {
            party: changed.get(party, records[party]) for party in dict.fromkeys([key, *changed])
        }
        writes = [
            RecordWrite(party, stored[party].counter, pack_record(record))
            for party, record in after.items()
        ]
        logged = LogContent(
            model=detector.digest_,
            sent=b"",
            answer=b"",
            states=tuple(record.state for record in after.values()),
            label=label,
            horizons=tuple(record.last_time for record in after.values()),
        )
        parties = tuple((party, stored[party].counter + 1) for party in after)
        entry = LogEntry(
            LABEL,
            id,
            found.entry.time,
            time.time(),
            parties,
            key in changed,
            pack_log_content(logged),
        )
        (written,) = await updater.store.write([WriteGroup(writes, [entry])])
        if written:
            counterparty = (
                None if len(keys) == 1 else REPORTED if set(keys[1:]) & set(changed) else UNCHANGED
            )
            break
    return LabelResponse(
        id, customer, label, True, CONDITIONED if key in changed else UNCHANGED, counterparty
    )


async def _find(store: Store, key: str, customer: str, id: str) -> _Found:
    entries = await store.read_history(key, transaction_id=id, limit=EVERY)
    scored = next((entry for entry in entries if entry.kind == SCORE), None)
    if scored is None:
        raise UnknownTransactionError(
            f"the log has no transaction {id!r} of customer {customer!r}. Score it first, and keep the log long enough"
        )
    labels = [
        label for entry in entries if (label := unpack_log_content(entry.content).label) is not None
    ]
    return _Found(scored, labels[0] if labels else None, 1 in labels)


async def _is_latest(store: Store, key: str, entry: LogEntry) -> bool:
    """Whether the belief as it is now is the one that this transaction left."""
    newest = await store.read_history(key, belief_updated=True, limit=1)
    return bool(newest) and newest[0].cursor == entry.cursor
