"""Labels that arrive: logged for recalibration, told to the second party's record, and to the belief they are about."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

import msgspec

from turncoat.errors import DataError, StoreError
from turncoat.scoring import Detector, DetectorState
from turncoat.serving.answers import Outcome
from turncoat.serving.attempt import customer_key
from turncoat.serving.ledger import Ledger
from turncoat.serving.records import Logged, Record, pack_logged, pack_record, unpack_logged, unpack_record
from turncoat.serving.stores import LABEL, SCORE, Change, Entry, Store

CONDITIONED, REPORTED, UNCHANGED = "conditioned", "fraud reported", "unchanged"
_ATTEMPTS = 100


class UnknownTransactionError(DataError):
    """A label for a transaction that the log does not have."""


@dataclass(frozen=True)
class _Found:
    """A transaction in the log, and what was said of it before."""

    entry: Entry
    label: int | None  # the last that was reported


async def report(ledger: Ledger, detector: Detector, customer: str, id: str, label: int) -> Outcome:
    """Take in the outcome of a transaction: 1 for fraud, 0 for genuine. The same again changes nothing.

    A label that corrects another one counts in recalibration; what records learnt from the first stays.
    """
    key = customer_key(customer)
    for attempt in range(_ATTEMPTS):
        found = await _find(ledger.store, key, customer, id)
        if found.label == label:
            return Outcome(id, customer, label, False, UNCHANGED, None if len(found.entry.parties) == 1 else UNCHANGED)
        keys = [party for party, _ in found.entry.parties]
        stored = await ledger.store.read(keys)
        records = {party: unpack_record(party, stored[party].data) for party in keys if party in stored}
        if key not in records:
            raise UnknownTransactionError(f"customer {customer!r} has no record any more")
        is_first = found.label is None
        changed: dict[str, Record] = {}
        if is_first and ledger.rules.conditions and await _is_latest(ledger.store, key, found.entry, records[key], detector):
            state = detector.condition(DetectorState(records[key].state), label)
            changed[key] = msgspec.structs.replace(records[key], state=state.customer)
        for party in keys[1:]:
            if is_first and label == 1 and party in records and records[party].model == detector.version_:
                state = detector.report_fraud(DetectorState(None, records[party].state), found.entry.time)
                changed[party] = msgspec.structs.replace(records[party], state=state.entity)
        touched = list(dict.fromkeys([key, *changed]))
        writes = [Change(party, stored[party].counter, pack_record(changed.get(party, records[party]))) for party in touched]
        states = tuple(changed.get(party, records[party]).state for party in touched)
        logged = Logged(detector.version_, b"", b"", states, label)
        parties = tuple((party, stored[party].counter + 1) for party in touched)
        entry = Entry(LABEL, id, found.entry.time, time.time(), parties, key in changed, pack_logged(logged))
        if await ledger.store.write(writes, [entry]):
            entity = None if len(keys) == 1 else REPORTED if set(keys[1:]) & set(changed) else UNCHANGED
            return Outcome(id, customer, label, True, CONDITIONED if key in changed else UNCHANGED, entity)
        await asyncio.sleep(random.uniform(0.0, min(0.001 * attempt, 0.02)))
    raise StoreError(f"others wrote the same records {_ATTEMPTS} times in a row. Try again later")


async def _find(store: Store, key: str, customer: str, id: str) -> _Found:
    entries = await store.history(key, id=id)
    scored = next((entry for entry in entries if entry.kind == SCORE), None)
    if scored is None:
        raise UnknownTransactionError(
            f"the log has no transaction {id!r} of customer {customer!r}. Score it first, and keep the log long enough"
        )
    label = next((unpack_logged(entry.content).label for entry in entries if entry.kind == LABEL), None)
    return _Found(scored, label)


async def _is_latest(store: Store, key: str, entry: Entry, record: Record, detector: Detector) -> bool:
    """Whether the belief as it is now is the one that this transaction left."""
    if record.model != detector.version_ or not entry.moved:
        return False
    newest = next((one for one in await store.history(key, limit=100) if one.moved), None)
    return newest is not None and newest.place == entry.place
