"""Records and log contents: read back as written, and any damage is noticed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.scoring.detectors import detector
from tests.serving.helpers import (
    MemoryStore,
    apply_label,
    changed,
    process,
    read_record,
    transactions_of,
)
from turncoat.errors import CorruptRecordError
from turncoat.serving.decoding import Label
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
from turncoat.serving.updater import BeliefUpdater

RECORD = Record(
    FORMAT, "model", 12.5, 1, (RecentScore("a", 0.25), RecentScore("b", 0.5)), b"\0state"
)
CONTENT = LogContent("model", b"{}", b'{"probability":0.5}', (b"one", b"two"), 1, (0.25, 0.75))


@pytest.mark.parametrize(
    ("data", "unpack", "value"),
    [
        (pack_record(RECORD), lambda data: unpack_record("c:a", data), RECORD),
        (pack_log_content(CONTENT), unpack_log_content, CONTENT),
    ],
)
def test_every_changed_byte_is_noticed(
    data: bytes, unpack: Callable[[bytes], Any], value: Any
) -> None:
    assert unpack(data) == value
    chance = random.Random(0)
    damaged = [data[:i] for i in range(len(data))] + [data + b"\0", data[1:], b""]
    damaged += [
        data[:i] + bytes([data[i] ^ chance.randint(1, 255)]) + data[i + 1 :]
        for i in range(len(data))
    ]
    for each in damaged:
        with pytest.raises(CorruptRecordError, match="damaged"):
            unpack(each)


def test_a_record_of_a_newer_format_is_refused() -> None:
    newer = Record(FORMAT + 1, "model", 0.0, 1, (), b"")
    with pytest.raises(CorruptRecordError, match="Upgrade"):
        unpack_record("c:a", pack_record(newer))


def process_with_contents(replace_content: Callable[[bytes], bytes]) -> list[Any]:
    """Answers to a duplicate, a late transaction, a label and a new one, with a changed log."""
    made = detector("shop")
    own = [one for one in transactions_of("shop") if one.customer == "c1"][:5]
    late, new = changed(own[0], id="late", at=own[1].time - 1), changed(own[0], id="n", at=1e6)

    async def go() -> list[Any]:
        store = MemoryStore()
        updater = BeliefUpdater(store)
        await updater.process_batch(made, own)
        for entry in await store.read_log():
            changes = replace_content(entry.content), int(entry.cursor)
            store.run_sql("UPDATE log SET content = ? WHERE entry = ?", *changes)
        return await updater.process_batch(made, [own[0], late, Label("c1", own[0].id, 1), new])

    return asyncio.run(go())


def test_a_damaged_log_entry_fails_only_requests_that_need_it() -> None:
    """As a CorruptRecordError, a fault of the store and never an internal error."""
    *failed, scored = process_with_contents(lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    assert [type(one) for one in failed] == [CorruptRecordError] * 3
    assert scored.probability > 0


def test_the_content_of_another_entry_is_a_fault_of_the_store() -> None:
    label = pack_log_content(LogContent("model", b"", b"", label=1))
    duplicate, late, _, scored = process_with_contents(lambda _: label)
    assert [type(duplicate), type(late)] == [CorruptRecordError] * 2
    assert scored.probability > 0


def test_the_list_of_recent_ids_stays_at_its_size_after_a_wrong_clock() -> None:
    """One transaction from the future makes all later ones late; the record must not grow."""
    made, one = detector("shop"), transactions_of("shop", 1)[0]
    store = MemoryStore()
    future = changed(one, id="future", at=one.time + 1e6)
    later = [changed(one, id=f"n{i}", at=one.time + i) for i in range(100)]
    answers = process(made, [[one, future], later], store, n_reasons=0)
    assert all(answer["late"] for answer in answers[2:])
    assert len(read_record(store, one.customer).recent_ids) == 16
    again = process(made, [[future, *later]], store, n_reasons=0)
    assert all(answer["duplicate"] for answer in again)


def test_a_label_is_stored_with_a_checksum_too() -> None:
    made, one = detector("shop"), transactions_of("shop", 1)[0]
    store = MemoryStore()

    async def go() -> Any:
        updater = BeliefUpdater(store)
        await updater.process_batch(made, [one])
        await apply_label(updater, made, one.customer, one.id, 1)
        return await store.read_log()

    assert [unpack_log_content(entry.content).label for entry in asyncio.run(go())] == [None, 1]
