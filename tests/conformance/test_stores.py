"""Conformance tests of every store. A new store registers here instead of copying the tests."""

from __future__ import annotations

import asyncio
import itertools
import math
import multiprocessing
import os
import random
import re
import resource
import signal
import sqlite3
import stat
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.reference.dictionary_store import DictionaryStore
from tests.serving.redis_server import RedisServer, running_redis
from turncoat.errors import ConfigError, CorruptRecordError, StoreError, StoreUnavailableError
from turncoat.serving.records import FORMAT, Record, pack_record, unpack_record
from turncoat.serving.stores import open_store
from turncoat.serving.stores import redis as redis_store
from turncoat.serving.stores import sqlite as sqlite_store
from turncoat.serving.stores.protocol import (
    LABEL,
    SCORE,
    LogEntry,
    RecordWrite,
    Store,
    StoredRecord,
    WriteGroup,
)

T = TypeVar("T")

ALL_BYTES = bytes(range(256))
ODD_KEYS = [
    "c:1",
    "",
    " ",
    "a b",
    "{a}:b",
    "c:{x}{y}",
    "zażółć",
    "👩‍👧",
    "a\0b",
    "a",
    "a\n",
    "'; DROP TABLE records; --",
    "%s",
    "k" * 5000,
]
PERSISTENT = ["sqlite", "redis"]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    return f"{redis_server.url}?prefix=test{next(_numbers)}"


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store, of the kind that the test is parametrised with."""
    kind = getattr(request, "param", None)
    if kind == "redis":
        return str(request.getfixturevalue("redis_url"))
    return (
        f"sqlite:///{tmp_path / 'beliefs.sqlite'}?synchronous=NORMAL"
        if kind == "sqlite"
        else "memory://"
    )


def every(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("url", kinds, indirect=True)


every_store = every("memory", *PERSISTENT)
every_persistent_store = every(*PERSISTENT)


def using(url: str, work: Callable[[Store], Awaitable[T]]) -> T:
    async def main() -> T:
        store = open_store(url, create=True)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(main())


def entry(id: str = "t", counter: int = 1, key: str = "c", **others: Any) -> LogEntry:
    return LogEntry(
        **{
            "kind": SCORE,
            "transaction_id": id,
            "time": 0.0,
            "written_at": 0.0,
            "parties": ((key, counter),),
            "belief_updated": True,
            "content": b"",
            **others,
        }
    )


async def put(
    store: Store, changes: Sequence[RecordWrite], entries: Sequence[LogEntry] = ()
) -> bool:
    """Write one group."""
    (written,) = await store.write([WriteGroup(changes, entries)])
    return written


def ids(entries: Sequence[LogEntry]) -> list[str]:
    return [one.transaction_id for one in entries]


# records


@every_store
def test_missing_records_are_left_out(url: str) -> None:
    async def work(store: Store) -> None:
        assert dict(await store.read_records(["a", "b"])) == {}
        assert dict(await store.read_records([])) == {}

    using(url, work)


@every_store
def test_counters_grow_by_their_increment(url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1"), RecordWrite("b", 0, b"2", increment=3)])
        assert dict(await store.read_records(["a", "b", "c"])) == {
            "a": StoredRecord(1, b"1"),
            "b": StoredRecord(3, b"2"),
        }
        assert await put(
            store, [RecordWrite("a", 1, b"3"), RecordWrite("b", 3, b"4", increment=300)]
        )
        assert dict(await store.read_records(["b", "a", "b"])) == {
            "a": StoredRecord(2, b"3"),
            "b": StoredRecord(303, b"4"),
        }

    using(url, work)


@every_store
@pytest.mark.parametrize("expected", [0, 1, 3])
@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_stale_counter_rejects_the_whole_group(url: str, expected: int, turn: int) -> None:
    async def work(store: Store) -> None:
        assert await put(
            store, [RecordWrite("a", 0, b"1", increment=2), RecordWrite("b", 0, b"old")], [entry()]
        )
        changes = [RecordWrite("new", 0, b"x"), RecordWrite("b", 1, b"new")]
        changes.insert(turn, RecordWrite("a", expected, b"stale"))
        assert not await put(store, changes, [entry("refused", 2)])
        assert dict(await store.read_records(["a", "b", "new"])) == {
            "a": StoredRecord(2, b"1"),
            "b": StoredRecord(1, b"old"),
        }
        assert ids(await store.read_log()) == ids(await store.read_history("c")) == ["t"]
        assert await put(
            store,
            [RecordWrite("a", 2, b"2"), RecordWrite("b", 1, b"new"), RecordWrite("new", 0, b"x")],
            [entry("second", 2)],
        )
        assert dict(await store.read_records(["a", "b", "new"])) == {
            "a": StoredRecord(3, b"2"),
            "b": StoredRecord(2, b"new"),
            "new": StoredRecord(1, b"x"),
        }
        assert ids(await store.read_history("c")) == ["second", "t"]

    using(url, work)


@every_store
def test_a_missing_record_has_counter_zero(url: str) -> None:
    async def work(store: Store) -> None:
        assert not await put(store, [RecordWrite("a", 1, b"")])
        assert dict(await store.read_records(["a"])) == {}

    using(url, work)


@every_store
def test_empty_writes_succeed(url: str) -> None:
    async def work(store: Store) -> None:
        assert await store.write([]) == []
        assert await store.write([WriteGroup([]), WriteGroup([], [])]) == [True, True]
        assert await put(store, [RecordWrite("a", 0, b"")])
        assert dict(await store.read_records(["a"])) == {"a": StoredRecord(1, b"")}
        assert await store.read_log() == []
        assert await put(store, [], [entry()])
        assert ids(await store.read_log()) == ["t"]

    using(url, work)


@every_store
def test_any_bytes_can_be_stored_under_any_key(url: str) -> None:
    async def work(store: Store) -> None:
        changes = [RecordWrite(key, 0, ALL_BYTES + key.encode()) for key in ODD_KEYS]
        entries = [
            entry(key, 1, key, content=ALL_BYTES * (1 + 40 * (i % 2)))
            for i, key in enumerate(ODD_KEYS)
        ]
        assert await put(store, changes, entries)
        assert dict(await store.read_records(ODD_KEYS)) == {
            key: StoredRecord(1, ALL_BYTES + key.encode()) for key in ODD_KEYS
        }
        assert [one._replace(cursor="") for one in await store.read_log()] == entries
        for one in entries:
            (found,) = await store.read_history(
                one.transaction_id, transaction_id=one.transaction_id
            )
            assert found._replace(cursor="") == one
        assert await store.delete_entries_before(1.0) == len(ODD_KEYS)
        for key in ODD_KEYS:
            assert await store.read_history(key) == []

    using(url, work)


@every_store
def test_many_and_large_records(url: str) -> None:
    async def work(store: Store) -> None:
        records = {f"k{i}": random.Random(i).randbytes(i) for i in range(1700)}
        large = b"x" * 3_000_000
        assert await put(
            store,
            [RecordWrite(key, 0, data) for key, data in records.items()],
            [entry("large", content=large)],
        )
        assert dict(await store.read_records([*records, "none"])) == {
            key: StoredRecord(1, data) for key, data in records.items()
        }
        assert (await store.read_history("c"))[0].content == large

    using(url, work)


@every_store
@pytest.mark.parametrize(
    ("changes", "entries"),
    [
        ([RecordWrite("a", 0, b"1"), RecordWrite("b", 0, b""), RecordWrite("a", 0, b"2")], []),
        ([RecordWrite("a", -1, b"")], []),
        ([RecordWrite("a", 0, b"", increment=0)], []),
        ([RecordWrite("a", 0, b"")], [entry(parties=(("c", 1), ("c", 2)))]),
        ([RecordWrite("a", 0, b"")], [entry(parties=())]),
        ([RecordWrite("a", 0, b"")], [entry(parties=(("c", 1), ("d", 1), ("d", 2)))]),
        ([RecordWrite("a", 0, b"")], [entry(time=math.nan)]),
        ([RecordWrite("a", 0, b"")], [entry(written_at=math.nan)]),
        ([RecordWrite("a", 0, b"")], [entry(written_at=math.inf)]),
    ],
)
def test_an_invalid_write_raises_value_error(
    url: str, changes: list[RecordWrite], entries: list[LogEntry]
) -> None:
    async def work(store: Store) -> None:
        with pytest.raises(ValueError, match=r"twice|counter|times in seconds|needs a customer"):
            await put(store, changes, entries)
        assert dict(await store.read_records(["a", "b"])) == {}
        assert await store.read_log() == []

    using(url, work)


# several counterparties


@every_store
def test_an_entry_is_in_the_history_of_each_of_its_parties(url: str) -> None:
    several = [
        entry("a", parties=(("c:1", 1), ("p:x", 3), ("p:y", 1), ("p:z", 9))),
        entry("b", parties=(("c:2", 1), ("p:y", 2), ("p:x", 4))),
        entry("c", parties=(("c:1", 2),)),
    ]
    expected = {"c:1": "ca", "c:2": "b", "p:x": "ba", "p:y": "ba", "p:z": "a"}

    async def work(store: Store) -> None:
        await put(store, [], several)
        found = await store.read_log()
        assert [one.parties for one in found] == [one.parties for one in several]
        for key, ids in expected.items():
            history = await store.read_history(key)
            assert [one.transaction_id for one in history] == list(ids)
            own = [one.parties for one in several if key in dict(one.parties)]
            assert [one.parties for one in reversed(history)] == own
            (newest,) = await store.read_history(key, limit=1)
            assert newest.transaction_id == ids[0]

    using(url, work)


@every_store
def test_erasing_a_party_takes_its_entries_from_all_histories(url: str) -> None:
    async def work(store: Store) -> None:
        keys = ("c:1", "c:2", "p:x", "p:y")
        entries = [
            entry("a", parties=(("c:1", 1), ("p:x", 1), ("p:y", 1))),
            entry("b", parties=(("c:2", 1), ("p:x", 2), ("p:y", 2))),
            entry("c", parties=(("c:2", 2), ("p:y", 3))),
        ]
        await put(store, [RecordWrite(key, 0, b"") for key in keys], entries)
        assert await store.erase("c:1") == 1
        found = {key: [e.transaction_id for e in await store.read_history(key)] for key in keys}
        assert found == {"c:1": [], "c:2": ["c", "b"], "p:x": ["b"], "p:y": ["c", "b"]}
        assert set(await store.read_records(keys)) == {"c:2", "p:x", "p:y"}
        assert await store.erase("p:y") == 2
        assert [await store.read_history(key) for key in keys] == [[], [], [], []]
        assert await store.delete_entries_before(math.inf) == 0
        await put(store, [], [entry("d", parties=(("c:2", 3), ("p:x", 3)))])
        (again,) = await store.read_history("p:x")
        assert (again.transaction_id, again.parties) == ("d", (("c:2", 3), ("p:x", 3)))

    using(url, work)


# groups


@every_store
@pytest.mark.parametrize("stale", [0, 1, 2])
def test_only_stale_groups_are_skipped(url: str, stale: int) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite(key, 0, b"old") for key in "abc"])
        groups = [
            WriteGroup(
                [RecordWrite(f"new {key}", 0, b"x"), RecordWrite(key, 1, b"new")],
                [entry(f"{key}{i}", 2 + i, key) for i in range(2)],
            )
            for key in "abc"
        ]
        groups[stale] = groups[stale]._replace(
            writes=[*groups[stale].writes[:1], RecordWrite("abc"[stale], 2, b"stale")]
        )
        assert await store.write(groups) == [i != stale for i in range(3)]
        current = [key for i, key in enumerate("abc") if i != stale]
        wanted = {
            key: StoredRecord(2, b"new") if key in current else StoredRecord(1, b"old")
            for key in "abc"
        }
        wanted |= {f"new {key}": StoredRecord(1, b"x") for key in current}
        assert dict(await store.read_records(["a", "b", "c", "new a", "new b", "new c"])) == wanted
        assert ids(await store.read_log()) == [f"{key}{i}" for key in current for i in range(2)]
        assert [ids(await store.read_history(key)) for key in "abc"] == [
            [f"{key}1", f"{key}0"] if key in current else [] for key in "abc"
        ]

    using(url, work)


@every_store
def test_stale_groups_leave_nothing(url: str) -> None:
    async def work(store: Store) -> None:
        groups = [WriteGroup([RecordWrite(key, 3, b"")], [entry(key=key)]) for key in "abc"]
        assert await store.write(groups) == [False] * 3
        assert dict(await store.read_records(["a", "b", "c"])) == {}
        assert await store.read_log() == []

    using(url, work)


@every_store
def test_log_keeps_the_order_of_groups(url: str) -> None:
    async def work(store: Store) -> None:
        for turn in range(3):
            groups = [
                WriteGroup(
                    [RecordWrite(f"k{i}", turn, b"")],
                    [entry(f"{turn}-{i}-{j}", 2 * turn + j + 1, f"k{i}") for j in range(i % 3)],
                )
                for i in range(150)
            ]
            assert await store.write(groups) == [True] * 150
        wanted = [f"{turn}-{i}-{j}" for turn in range(3) for i in range(150) for j in range(i % 3)]
        found = await store.read_log(limit=10_000)
        assert ids(found) == wanted
        for i in (0, 1, 30, 31, 32, 63, 64, 149, 150, 151, 300, 448, 449):
            assert await store.read_log(found[i].cursor, limit=40) == found[i + 1 : i + 41]
        assert ids(await store.read_history("k149")) == [
            f"{turn}-149-{j}" for turn in (2, 1, 0) for j in (1, 0)
        ]

    using(url, work)


@every_store
def test_a_key_in_two_groups_raises_value_error(url: str) -> None:
    async def work(store: Store) -> None:
        with pytest.raises(ValueError, match="the key 'b' occurs twice in the write"):
            await store.write(
                [
                    WriteGroup([RecordWrite("a", 0, b""), RecordWrite("b", 0, b"")]),
                    WriteGroup([], [entry()]),
                    WriteGroup([RecordWrite("b", 0, b"")]),
                ]
            )
        assert dict(await store.read_records(["a", "b"])) == {}
        assert await store.read_log() == []

    using(url, work)


@every_persistent_store
def test_groups_of_a_write_become_visible_together(url: str) -> None:
    """One client updates 80 records at once; another never sees a part of an update."""

    async def keep_writing(store: Store) -> None:
        for i in range(60):
            groups = [
                WriteGroup(
                    [RecordWrite(f"k{j}", i, b"%d" % i)], [entry(f"{i}-{j}", i + 1, f"k{j}")]
                )
                for j in range(80)
            ]
            assert all(await store.write(groups))

    async def work(store: Store) -> None:
        other, seen = open_store(url, create=True), set()
        try:
            writing = asyncio.create_task(keep_writing(store))
            while not writing.done():
                held = await other.read_records([f"k{j}" for j in range(80)])
                seen.add(len({record.counter for record in held.values()}))
                assert len(held) in (0, 80)
                assert len(await other.read_log(limit=100_000)) % 80 == 0
                await asyncio.sleep(0)
            await writing
        finally:
            await other.close()
        assert seen <= {0, 1}

    using(url, work)


# the log


@every_store
def test_entries_round_trip(url: str) -> None:
    async def work(store: Store) -> None:
        both = (("c:1", 7), ("e:shop", 2**40))
        first = entry(
            "a", parties=both, time=1.1e9 + 1 / 3, written_at=1.7e9 + 0.1, content=ALL_BYTES
        )
        second = entry(
            "b",
            kind=LABEL,
            parties=(("c:1", 8),),
            time=-0.5,
            belief_updated=False,
            content=b'{"amount": 1.5}' * 300,
        )
        third = entry("c", parties=(("c:2", 1),), time=math.inf)
        assert await put(store, [], [first, second])
        assert await put(store, [], [third])
        found = await store.read_log()
        assert [one._replace(cursor="") for one in found] == [first, second, third]
        assert len({one.cursor for one in found}) == 3
        assert await store.read_history("c:1") == [found[1], found[0]]
        assert await store.read_history("e:shop") == [found[0]]
        assert await store.read_history("e:") == []

    using(url, work)


@every_store
def test_history_is_newest_first_and_filtered(url: str) -> None:
    async def work(store: Store) -> None:
        times = [5.0, 1.0, 4.0, 2.0, 3.0]
        for i, time in enumerate(times):
            parties = (("c", i + 1), ("e", 10 * i + 1)) if i % 2 else (("c", i + 1),)
            assert await put(
                store,
                [],
                [
                    entry(f"t{i}", time=time, parties=parties),
                    entry(f"other{i}", i + 1, "d", time=time),
                ],
            )
        assert ids(await store.read_history("c")) == ["t4", "t3", "t2", "t1", "t0"]
        assert ids(await store.read_history("e")) == ["t3", "t1"]
        assert ids(await store.read_history("c", until=3.0)) == ["t4", "t3", "t1"]
        assert ids(await store.read_history("c", until=3.0, limit=2)) == ["t4", "t3"]
        assert ids(await store.read_history("c", until=0.9)) == []
        assert ids(await store.read_history("c", until=-math.inf)) == []
        assert (
            ids(await store.read_history("c", transaction_id="t1"))
            == ids(await store.read_history("e", transaction_id="t1", until=1.0))
            == ["t1"]
        )
        assert (
            ids(await store.read_history("c", transaction_id="t1", until=0.0))
            == ids(await store.read_history("c", transaction_id=""))
            == []
        )
        assert ids(await store.read_history("c", limit=1)) == ["t4"]
        assert await put(store, [], [entry("t5", 6, time=2.0, belief_updated=False)])
        assert ids(await store.read_history("c", until=2.0)) == ["t5", "t3", "t1"]
        assert ids(await store.read_history("c", until=2.0, belief_updated=True)) == ["t3", "t1"]
        assert ids(await store.read_history("c", belief_updated=True, limit=1)) == ["t4"]
        assert ids(await store.read_history("c", limit=0)) == []

    using(url, work)


@every_store
def test_history_is_ordered_by_counter_and_paged(url: str) -> None:
    async def work(store: Store) -> None:
        n = 250
        assert await put(
            store, [], [entry(f"t{i}", i, time=float(i)) for i in range(2, n)]
        )  # one batch: the counters have two and three digits
        assert await put(store, [], [entry("t1", 1, time=1.0)])
        assert ids(await store.read_history("c", limit=10_000)) == [
            f"t{i}" for i in range(n - 1, 0, -1)
        ]
        assert ids(await store.read_history("c")) == [f"t{i}" for i in range(n - 1, n - 101, -1)]
        assert ids(await store.read_history("c", until=120.0, limit=101)) == [
            f"t{i}" for i in range(120, 19, -1)
        ]
        assert ids(await store.read_history("c", transaction_id="t1")) == ["t1"]

    using(url, work)


@every_store
def test_the_log_is_read_in_pages(url: str) -> None:
    async def work(store: Store) -> None:
        for i in range(5):
            assert await put(
                store, [], [entry(f"t{i}{j}", written_at=-float(i)) for j in range(12)]
            )
        wanted = [f"t{i}{j}" for i in range(5) for j in range(12)]
        assert ids(await store.read_log()) == wanted
        found: list[LogEntry] = []
        while page := await store.read_log(found[-1].cursor if found else "", limit=7):
            assert len(page) <= 7
            found += page
        assert ids(found) == wanted
        assert await store.read_log(limit=0) == []
        last = found[-1].cursor
        assert await store.delete_entries_before(1.0) == 60
        assert await store.read_log(last) == []
        assert await put(store, [], [entry("later")])
        assert (
            ids(await store.read_log(last))
            == ids(await store.read_log(found[3].cursor))
            == ids(await store.read_log())
            == ["later"]
        )

    using(url, work)


@every_store
@pytest.mark.parametrize("place", ["x", "-1", "1 or 1", "٣", "1-2-3", "9" * 40, "\0"])
def test_an_invalid_cursor_raises_value_error(url: str, place: str) -> None:
    with pytest.raises(ValueError, match="is not a cursor of this log"):
        using(url, lambda store: store.read_log(place))


@every_store
def test_oldest_entries_are_deleted_and_records_stay(url: str) -> None:
    async def work(store: Store) -> None:
        parties = (("c", 1), ("e", 1))
        assert await put(
            store,
            [RecordWrite("c", 0, b"belief")],
            [entry("late clock", written_at=9.0), entry("second", written_at=2.0, parties=parties)],
        )
        assert await put(
            store,
            [],
            [
                entry("first", written_at=1.0, parties=(("c", 2),)),
                entry("third", written_at=2.0, parties=(("c", 3),)),
            ],
        )
        assert await store.delete_entries_before(1.0) == 0
        assert await store.delete_entries_before(math.inf, limit=0) == 0
        assert await store.delete_entries_before(2.5, limit=2) == 2
        assert ids(await store.read_log()) == ["late clock", "third"]
        assert ids(await store.read_history("c")) == ["third", "late clock"]
        assert ids(await store.read_history("e")) == []
        assert await store.delete_entries_before(9.0) == 1
        assert ids(await store.read_log()) == ids(await store.read_history("c")) == ["late clock"]
        assert await store.delete_entries_before(math.inf) == 1
        assert await store.read_log() == await store.read_history("c") == []
        assert dict(await store.read_records(["c"])) == {"c": StoredRecord(1, b"belief")}

    using(url, work)


@every_store
def test_entries_written_together_can_be_deleted_one_by_one(url: str) -> None:
    async def work(store: Store) -> None:
        n = 100
        contents = [b"%d;" % i * (i % 7 * 100) for i in range(n)]
        both = [(("c", i + 1), ("e", i + 1)) for i in range(n)]
        written = [
            entry(f"t{i}", parties=both[i], written_at=float(i * 37 % n), content=contents[i])
            for i in range(n)
        ]
        assert await put(store, [], written)
        cursors = [one.cursor for one in await store.read_log()]
        left = written
        for limit in (1, 30, 7, 50):
            assert await store.delete_entries_before(95.0, limit) == limit
            gone = sorted(left, key=lambda one: one.written_at)[:limit]
            left = [one for one in left if one not in gone]
            found = await store.read_log()
            assert [one._replace(cursor="") for one in found] == left
            assert [one.cursor for one in found] == [
                cursors[int(one.transaction_id[1:])] for one in left
            ]
            assert await store.read_history("c") == await store.read_history("e") == found[::-1]
            assert (
                await store.read_log(cursors[50], 3)
                == [one for one in found if int(one.transaction_id[1:]) > 50][:3]
            )
        assert await store.delete_entries_before(95.0) == 7
        assert ids(await store.read_history("c")) == ids(
            [one for one in reversed(written) if one.written_at >= 95.0]
        )

    using(url, work)


@every_store
def test_deletion_stops_at_the_limit(url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(
            store, [], [entry(f"t{i}", i, written_at=i / 1000) for i in range(1, 1301)]
        )
        assert await store.delete_entries_before(8.0, limit=1100) == 1100
        assert ids(await store.read_history("c", limit=1300)) == [
            f"t{i}" for i in range(1300, 1100, -1)
        ]
        assert await store.delete_entries_before(8.0, limit=1100) == 200
        assert await store.delete_entries_before(8.0) == 0

    using(url, work)


@every_store
def test_erasing_a_party_leaves_the_others(url: str) -> None:
    async def work(store: Store) -> None:
        both = (("c", 1), ("e", 1))
        assert await put(
            store,
            [RecordWrite(key, 0, key.encode()) for key in "cde"],
            [entry("both", parties=both, content=b"1" * 600)],
        )
        assert await put(
            store,
            [RecordWrite("c", 1, b"c2")],
            [entry("other", 2, "e"), entry("label", 2, kind=LABEL), entry("own", 3)],
        )
        assert await put(
            store, [], [entry("last", 4), entry("d", 1, "d"), entry("another's", 1, "f")]
        )
        left = [one for one in await store.read_log() if "c" not in dict(one.parties)]
        assert await store.erase("c") == 4
        assert dict(await store.read_records(["c", "d", "e"])) == {
            "d": StoredRecord(1, b"d"),
            "e": StoredRecord(1, b"e"),
        }
        assert await store.read_log() == left
        assert ids(left) == ["other", "d", "another's"]
        assert [ids(await store.read_history(key)) for key in "cde"] == [[], ["d"], ["other"]]
        assert await store.erase("c") == await store.erase("never there") == 0
        assert await store.read_log(left[0].cursor) == left[1:]
        assert await store.delete_entries_before(1.0) == 3

    using(url, work)


@every_store
def test_writes_based_on_an_erased_record_are_rejected(url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("c", 0, b"", increment=7)], [entry("old", 7)])
        await store.erase("c")
        assert not await put(
            store,
            [RecordWrite("c", 7, b"from memory"), RecordWrite("e", 0, b"")],
            [entry("stale", 8)],
        )
        assert dict(await store.read_records(["c", "e"])) == {}
        assert await put(store, [RecordWrite("c", 0, b"anew")], [entry("new")])
        assert dict(await store.read_records(["c"])) == {"c": StoredRecord(1, b"anew")}
        assert ids(await store.read_history("c")) == ids(await store.read_log()) == ["new"]

    using(url, work)


@every_store
def test_erasing_a_record_without_log_and_a_log_without_record(url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("c", 0, b"")], [entry("t", key="d")])
        assert (await store.erase("c"), await store.erase("d")) == (0, 1)
        assert dict(await store.read_records(["c"])) == {}
        assert await store.read_log() == []

    using(url, work)


@every_store
def test_erasing_many_entries_among_others(url: str) -> None:
    async def work(store: Store) -> None:
        n = 1300
        written = [
            entry(
                f"t{i}",
                parties=(("c" if i % 3 else "d", i + 1), (f"e{i % 2}", i + 1)),
                content=b"%d;" % i * 50,
                written_at=float(i),
            )
            for i in range(n)
        ]
        for i in range(0, n, 100):
            assert await put(store, [RecordWrite("c", i, b"", increment=100)], written[i : i + 100])
        left = [one for one in await store.read_log(limit=n) if one.parties[0][0] == "d"]
        assert await store.erase("c") == n - len(left)
        found = await store.read_log(limit=n)
        assert found == left
        assert [one._replace(cursor="") for one in found] == written[::3]
        assert await store.read_history("d", limit=n) == left[::-1]
        assert await store.read_history("e1", limit=n) == left[1::2][::-1]
        assert dict(await store.read_records(["c"])) == {}
        assert await store.delete_entries_before(99.5, limit=n) == 34

    using(url, work)


@every_store
def test_erasing_works_for_any_key(url: str) -> None:
    async def work(store: Store) -> None:
        entries = [entry(f"t{i}", 1, key) for i, key in enumerate(ODD_KEYS)]
        assert await put(store, [RecordWrite(key, 0, b"") for key in ODD_KEYS], entries)
        for i, key in enumerate(ODD_KEYS):
            assert await store.erase(key) == 1
            assert sorted(await store.read_records(ODD_KEYS)) == sorted(ODD_KEYS[i + 1 :])
            assert ids(await store.read_log()) == ids(entries[i + 1 :])

    using(url, work)


@every_persistent_store
def test_an_interrupted_erasure_can_be_repeated(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_store, "_DELETE_BATCH", 100)

    async def work(store: Store) -> None:
        n = 900
        assert await put(
            store,
            [RecordWrite("c", 0, b"", increment=n)],
            [entry(f"t{i}", i + 1, content=b"x" * 300) for i in range(n)],
        )
        other: Any = open_store(url, create=True)
        run, turns = other._run, itertools.count()

        async def cut_off(*args: Any) -> Any:
            if next(turns) == 2:
                raise StoreError("cut off")
            return await run(*args)

        other._run = cut_off
        with pytest.raises(StoreError, match="cut off"):
            await other.erase("c")
        await other.close()
        left = await store.read_history("c", limit=n)
        assert 0 < len(left) < n
        assert ids(left) == [f"t{i}" for i in range(n - 1, n - 1 - len(left), -1)]  # the latest
        assert dict(await store.read_records(["c"])) == {"c": StoredRecord(n, b"")}
        assert await store.erase("c") == len(left)
        assert await store.read_log() == []
        assert dict(await store.read_records(["c"])) == {}

    using(url, work)


@every_persistent_store
def test_a_record_is_deleted_together_with_its_last_entries(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client erases while another writes; record and log entries always fit each other."""
    for module in (sqlite_store, redis_store):
        monkeypatch.setattr(module, "_DELETE_BATCH", 5)

    async def keep_writing(store: Store) -> int:
        n_anew, draw = 0, random.Random(0)
        for i in range(300):
            held = (await store.read_records(["c"])).get("c", StoredRecord(0, b""))
            if await put(
                store, [RecordWrite("c", held.counter, b"")], [entry(f"t{i}", held.counter + 1)]
            ):
                n_anew += held.counter == 0
            await asyncio.sleep(draw.uniform(0, 0.004))
        return n_anew

    async def work(store: Store) -> None:
        other = open_store(url, create=True)
        try:
            assert await put(
                store,
                [RecordWrite("c", 0, b"", increment=50)],
                [entry(f"old{i}", i + 1) for i in range(50)],
            )
            writing, removed = asyncio.create_task(keep_writing(store)), 0
            while not writing.done():
                removed += await other.erase("c")
            assert await writing > 1
        finally:
            await other.close()
        held = (await store.read_records(["c"])).get("c", StoredRecord(0, b""))
        left = await store.read_history("c", limit=1000)
        assert [one.parties for one in left] == [
            (("c", counter),) for counter in range(held.counter, 0, -1)
        ]
        assert removed >= 50
        await store.erase("c")
        assert await store.read_log() == []

    using(url, work)


@every_store
def test_random_operations_match_a_store_of_dictionaries(url: str) -> None:
    """Both stores return the same after the same random operations."""

    async def work(store: Store) -> None:
        draw, model, counters = (random.Random(7), DictionaryStore(), dict.fromkeys("abcde", 0))
        cursors: list[tuple[str, str]] = [("", "")]
        n_mixed = 0
        for i in range(300):
            keys, groups = draw.sample(sorted(counters), draw.randint(0, 5)), []
            for _ in range(draw.randint(0, 3)):
                mine = [keys.pop() for _ in range(draw.randint(0, len(keys)))]
                changes = [
                    RecordWrite(
                        k, max(counters[k] - (draw.random() < 0.1), 0), draw.randbytes(20), 3
                    )
                    for k in mine
                ]
                entries = [
                    entry(
                        f"t{draw.randint(0, 99)}",
                        kind=draw.choice([SCORE, SCORE, LABEL]),
                        time=float(draw.randint(0, 50)),
                        written_at=draw.uniform(i - 5, i),
                        parties=tuple((c.key, c.expected_counter + 1 + j) for c in changes[:2]),
                        belief_updated=draw.random() < 0.8,
                        content=draw.randbytes(draw.choice([0, 30, 3000])),
                    )
                    for j in range(draw.randint(0, 3) if changes else 0)
                ]
                groups.append(WriteGroup(changes, entries))
            written = await model.write(groups)
            assert await store.write(groups) == written
            n_mixed += len(set(written)) == 2
            counters |= {
                c.key: c.expected_counter + c.increment
                for group, taken in zip(groups, written, strict=True)
                if taken
                for c in group.writes
            }
            key, until, limit = (
                draw.choice("abcde"),
                draw.choice([math.inf, float(draw.randint(0, 50))]),
                draw.randint(1, 20),
            )
            id = draw.choice([None, f"t{draw.randint(0, 99)}"])
            for ours, theirs in (
                (
                    await store.read_history(key, until=until, transaction_id=id, limit=limit),
                    await model.read_history(key, until=until, transaction_id=id, limit=limit),
                ),
                (
                    await store.read_log(cursors[-1][0], limit),
                    await model.read_log(cursors[-1][1], limit),
                ),
            ):
                assert [one._replace(cursor="") for one in ours] == [
                    one._replace(cursor="") for one in theirs
                ]
            if ours:
                cursors.append((ours[-1].cursor, theirs[-1].cursor))
            wanted = [f"t{number}" for number in draw.sample(range(99), 3)]
            assert await store.find_customers(wanted) == await model.find_customers(wanted)
            if draw.random() < 0.1:
                limit = draw.randint(1, 20)
                assert await store.delete_entries_before(
                    i - 20, limit
                ) == await model.delete_entries_before(i - 20, limit)
            if draw.random() < 0.05:
                counters[key] = 0
                assert await store.erase(key) == await model.erase(key)
            assert dict(await store.read_records(sorted(counters))) == dict(
                await model.read_records(sorted(counters))
            )
        assert 10 < n_mixed < 200

    using(url, work)


@every_store
def test_customers_are_found_by_the_ids_of_their_transactions(url: str) -> None:
    async def work(store: Store) -> None:
        parties = [(("c:a", 1), ("p:shop:x", 1)), (("c:b", 1),), (("c:c", 1),)]
        entries = [entry(id, parties=who) for id in ODD_KEYS for who in parties[:1]]
        entries += [entry("same", parties=who) for who in parties]
        entries += [entry("a label", parties=parties[0], kind=LABEL)]
        assert await put(store, [RecordWrite("c:a", 0, b"")], entries)
        found = await store.find_customers([*ODD_KEYS, "a label", "nothing", "A"])
        nothing = dict.fromkeys(("a label", "nothing", "A"), ())
        assert found == {**dict.fromkeys(ODD_KEYS, ("c:a",)), **nothing}
        assert await store.find_customers(["same"]) == {"same": ("c:a", "c:b")}
        await store.erase("c:a")
        assert await store.find_customers(["same", "c:1"]) == {"same": ("c:b", "c:c"), "c:1": ()}
        assert await store.find_customers([]) == {}

    using(url, work)


@every_store
def test_newest_entry_time(url: str) -> None:
    async def work(store: Store) -> None:
        assert await store.newest_entry_time() is None
        times = [5.5, 1.7e9 + 0.25, 3.0]
        assert await put(
            store, [], [entry(f"t{i}", i + 1, written_at=time) for i, time in enumerate(times)]
        )
        assert await store.newest_entry_time() == 1.7e9 + 0.25
        assert await store.delete_entries_before(math.inf) == 3
        assert await store.newest_entry_time() is None

    using(url, work)


@every_store
def test_the_write_check_leaves_records_and_log_alone(url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        for _ in range(3):
            await store.check_writable()
        assert dict(await store.read_records(["a", "write-check"])) == {"a": StoredRecord(1, b"1")}
        assert ids(await store.read_log()) == ["t"]
        assert await put(store, [RecordWrite("a", 1, b"2")])

    using(url, work)


# concurrency


async def count_up(store: Store, name: str, n: int, keys: Sequence[str] = ("a", "b", "c")) -> None:
    """Add one to two shared counts, n times; read and write again after a conflict."""
    draw = random.Random(name)
    for i in range(n):
        mine = draw.sample(keys, 2)
        while True:
            held = await store.read_records(mine)
            await asyncio.sleep(0)
            counts = {key: held.get(key, StoredRecord(0, b"0")) for key in mine}
            changes = [
                RecordWrite(key, counter, b"%d" % (int(data) + 1))
                for key, (counter, data) in counts.items()
            ]
            parties = tuple((change.key, change.expected_counter + 1) for change in changes)
            if await put(store, changes, [entry(f"{name}:{i}", parties=parties)]):
                break
            await asyncio.sleep(draw.uniform(0.0, 0.002))


async def assert_counted(store: Store, names: Sequence[str], n: int) -> None:
    held = await store.read_records(["a", "b", "c"])
    assert sum(int(one.data) for one in held.values()) == 2 * n * len(names)
    assert all(int(one.data) == one.counter for one in held.values())
    assert sorted(ids(await store.read_log(limit=10_000))) == sorted(
        f"{name}:{i}" for name in names for i in range(n)
    )
    for key, one in held.items():
        history = await store.read_history(key, limit=10_000)
        assert [dict(found.parties)[key] for found in history] == list(range(one.counter, 0, -1))


@every_store
def test_concurrent_tasks_count_exactly_once(url: str) -> None:
    async def work(store: Store) -> None:
        names = [f"task{i}" for i in range(8)]
        async with asyncio.TaskGroup() as tasks:
            for name in names:
                tasks.create_task(count_up(store, name, 15))
        await assert_counted(store, names, 15)

    using(url, work)


@every_persistent_store
def test_two_clients_of_one_store_see_each_others_writes(url: str) -> None:
    async def work(store: Store) -> None:
        other = open_store(url, create=True)
        try:
            assert await put(store, [RecordWrite("a", 0, b"1")])
            assert not await put(other, [RecordWrite("a", 0, b"2")])
            assert dict(await other.read_records(["a"])) == {"a": StoredRecord(1, b"1")}
            assert await put(other, [RecordWrite("a", 1, b"2")])
            assert not await put(store, [RecordWrite("a", 1, b"3")])
            assert (
                await store.write([WriteGroup([RecordWrite(key, 0, b"1")]) for key in "bcd"])
                == [True] * 3
            )
            assert await other.write(
                [WriteGroup([RecordWrite(key, key == "c", b"2")], [entry(key)]) for key in "bcde"]
            ) == [False, True, False, True]
        finally:
            await other.close()
        held = await store.read_records(list("abcde"))
        assert {key: (counter, data) for key, (counter, data) in held.items()} == {
            "a": (2, b"2"),
            "b": (1, b"1"),
            "c": (2, b"2"),
            "d": (1, b"1"),
            "e": (1, b"2"),
        }
        assert ids(await store.read_log()) == ["c", "e"]

    using(url, work)


def processes() -> Any:
    """A context whose processes start quickly: forks of one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def count_up_in_process(url: str, name: str, n: int) -> None:
    using(url, lambda store: count_up(store, name, n))


@every_persistent_store
def test_concurrent_processes_count_exactly_once(url: str) -> None:
    names = [f"process{i}" for i in range(4)]
    running = [
        processes().Process(target=count_up_in_process, args=(url, name, 25)) for name in names
    ]  # all create the file at the same time
    for process in running:
        process.start()
    for process in running:
        process.join(60)
    try:
        assert [process.exitcode for process in running] == [0] * 4
    finally:
        for process in running:
            process.kill()
            process.join()
            process.close()
    using(url, lambda store: assert_counted(store, names, 25))


# opening and closing


@every_store
def test_a_closed_store_raises_store_error(url: str) -> None:
    async def work() -> None:
        store = open_store(url, create=True)
        assert await put(store, [RecordWrite("a", 0, b"")])
        await store.close()
        await store.close()
        for use in (
            store.read_records(["a"]),
            put(store, [RecordWrite("a", 1, b"")]),
            store.read_history("a"),
            store.read_log(),
            store.delete_entries_before(0.0),
            store.erase("a"),
            store.newest_entry_time(),
            store.check_writable(),
        ):
            with pytest.raises(StoreError, match="is closed"):
                await use

    asyncio.run(work())


@every_persistent_store
def test_data_survive_reopening(url: str) -> None:
    async def write(store: Store) -> list[LogEntry]:
        assert await put(
            store, [RecordWrite("a", 0, b"1")], [entry("t", key="a", content=b"long" * 1000)]
        )
        return await store.read_log()

    async def read_back(store: Store) -> list[LogEntry]:
        assert dict(await store.read_records(["a"])) == {"a": StoredRecord(1, b"1")}
        assert await store.read_history("a") == await store.read_log()
        return await store.read_log()

    assert using(url, write) == using(url, read_back) == using(url, read_back)


@every_persistent_store
def test_close_waits_for_running_writes(url: str) -> None:
    async def work() -> list[bool]:
        store = open_store(url, create=True)
        begun = [
            asyncio.create_task(put(store, [RecordWrite(f"k{i}", 0, b"x" * 10_000)]))
            for i in range(30)
        ]
        await asyncio.sleep(0)  # each has been handed over
        await store.close()
        return await asyncio.gather(*begun)

    assert asyncio.run(work()) == [True] * 30
    assert len(using(url, lambda store: store.read_records([f"k{i}" for i in range(30)]))) == 30


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "beliefs.sqlite",
        "postgres://localhost/db",
        "memory://x",
        "memory://?synchronous=OFF",
        "sqlite://",
        "sqlite:///",
        "sqlite:////",
        "sqlite://host/path.sqlite",
        "sqlite:///:memory:",
        "sqlite:///x.sqlite?mode=ro",
        "sqlite:///x.sqlite?synchronous",
        "sqlite:///x.sqlite?synchronous=OFF&synchronous=FULL",
        "redis://localhost:port/0",
        "redis://localhost:99999/0",
        "redis://localhost:6379/zero",
        "redis://localhost/0?prefix=",
        "redis://localhost/0?socket_timeout=9",
        "unix://",
        "unix://host/path.sock",
        "unix:///path.sock?db=x",
    ],
)
def test_an_invalid_url_is_refused_with_the_valid_forms(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError,
        match=r"memory://, sqlite:///.*synchronous=FULL.*redis://host:port/db.*unix:///",
    ):
        open_store(bad, create=True)
    assert not list(tmp_path.iterdir())


def test_a_sqlite_path_is_relative_or_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("/relative name%20#1.sqlite", f"/{tmp_path}/absolute.sqlite"):
        assert using(f"sqlite://{place}", lambda store: put(store, [RecordWrite("a", 0, b"")]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "absolute.sqlite",
        "relative name%20#1.sqlite",
    ]


# SQLite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "beliefs.sqlite"


def fill(path: Path, n: int = 300) -> None:
    """Create a store of many pages, with nothing left in the write-ahead log."""
    changes = [RecordWrite(f"k{i}", 0, random.Random(i).randbytes(500)) for i in range(n)]
    entries = [
        entry(f"t{i}", 1, f"k{i}", content=random.Random(i).randbytes(900)) for i in range(n)
    ]
    assert using(f"sqlite:///{path}", lambda store: put(store, changes, entries))


def read_everything(path: Path) -> None:
    async def work(store: Store) -> None:
        await store.read_records([f"k{i}" for i in range(300)])
        await store.read_log(limit=10_000)
        for i in range(300):
            await store.read_history(f"k{i}")

    using(f"sqlite:///{path}", work)


async def run_sql(store: Any, sql: str) -> list[Any]:
    """Run a statement on the connection of a store."""
    rows: list[Any] = await store._run(store._execute, sql)
    return rows


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL", "OFF"])
def test_sqlite_uses_wal_and_the_chosen_synchronous_setting(path: Path, synchronous: str) -> None:
    async def work(store: Store) -> None:
        assert await run_sql(store, "PRAGMA journal_mode") == [("wal",)]
        assert await run_sql(store, "PRAGMA synchronous") == [
            ({"OFF": 0, "NORMAL": 1, "FULL": 2}[synchronous],)
        ]

    using(f"sqlite:///{path}" + f"?synchronous={synchronous}" * (synchronous != "FULL"), work)


def test_sqlite_refuses_an_unknown_synchronous_setting(path: Path) -> None:
    with pytest.raises(ConfigError, match="FULL, NORMAL, OFF, not 'fast'"):
        open_store(f"sqlite:///{path}?synchronous=fast", create=True)
    assert not path.exists()


def test_sqlite_files_are_private(path: Path) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"")])
        files = list(path.parent.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}

    using(f"sqlite:///{path}", work)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_sqlite_tolerates_another_process_creating_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, 3)
    kind = sqlite_store.SQLiteStore
    is_empty, first = kind._is_empty, iter([True])
    monkeypatch.setattr(kind, "_is_empty", lambda self: next(first, False) or is_empty(self))
    assert (
        len(using(f"sqlite:///{path}", lambda store: store.read_records(["k0", "k1", "k2"]))) == 3
    )


def make_text(path: Path) -> None:
    path.write_text("customer,amount\n" * 500)


def make_other_database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE records (key TEXT, counter INTEGER, data BLOB)")
    db.close()


def make_marked_database(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA application_id = 42")
    db.close()


def make_store_of_version(path: Path, version: int) -> None:
    fill(path)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def make_newer_store(path: Path) -> None:
    make_store_of_version(path, 6)


def make_older_store(path: Path) -> None:
    make_store_of_version(path, 4)


def make_store_without_header(path: Path) -> None:
    fill(path)
    path.write_bytes(b"\0" * 100 + path.read_bytes()[100:])


def make_truncated_store(path: Path) -> None:
    fill(path)
    os.truncate(path, path.stat().st_size // 2)


def make_short_store(path: Path) -> None:
    fill(path)
    os.truncate(path, 60)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_text, "damaged or not a SQLite file"),
        (make_other_database, "is not a Turncoat store"),
        (make_marked_database, "is not a Turncoat store"),
        (make_newer_store, "has version 6; this Turncoat reads version 5. Upgrade"),
        (make_older_store, "has version 4; this Turncoat reads version 5.*turncoat replay"),
        (make_store_without_header, "damaged"),
        (make_truncated_store, "damaged"),
        (make_short_store, "damaged"),
    ],
)
def test_sqlite_refuses_other_files_and_does_not_change_them(
    path: Path, make: Callable[[Path], None], words: str
) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=words) as raised:
        open_store(f"sqlite:///{path}", create=True)
    assert str(path) in str(raised.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("page", [1, 2, 3, 6, 10, 40, 80, 120])
def test_sqlite_reports_a_damaged_page(path: Path, page: int) -> None:
    fill(path)
    with path.open("r+b") as file:
        file.seek(4096 * page)
        file.write(random.Random(page).randbytes(4096))
    with pytest.raises(StoreError, match="damaged"):
        read_everything(path)


def test_sqlite_reports_a_missing_folder(path: Path) -> None:
    with pytest.raises(StoreError, match="Check that its folder exists") as raised:
        open_store(f"sqlite:///{path.parent}/none/beliefs.sqlite", create=True)
    assert "none/beliefs.sqlite" in str(raised.value)


@contextmanager
def run_as_nobody() -> Iterator[None]:
    """Switch to another user, because root may write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="rights are another matter on this system")
def test_sqlite_reports_a_read_only_file() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "beliefs.sqlite"
        fill(path, 3)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        before = path.read_bytes()
        try:
            with run_as_nobody(), pytest.raises(StoreError, match=r"Allow this user|writable"):
                using(f"sqlite:///{path}", lambda store: put(store, [RecordWrite("new", 0, b"")]))
        finally:
            Path(folder).chmod(0o755)
        assert path.read_bytes() == before


@pytest.mark.parametrize("make", [lambda path: None, Path.touch], ids=["missing", "empty"])
def test_sqlite_creates_a_store_only_if_asked(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    before = [(file.name, file.stat().st_size) for file in path.parent.iterdir()]
    with pytest.raises(StoreError, match=r"--create-store|is not a Turncoat store") as raised:
        open_store(f"sqlite:///{path}")
    assert str(path) in str(raised.value)
    assert [(file.name, file.stat().st_size) for file in path.parent.iterdir()] == before
    fill(path, 3)
    store = open_store(f"sqlite:///{path}")
    assert len(asyncio.run(store.read_records(["k0", "k1"]))) == 2
    asyncio.run(store.close())


def test_a_memory_store_is_refused_where_data_are_expected() -> None:
    with pytest.raises(ConfigError, match="always starts empty"):
        open_store("memory://")


def test_a_memory_store_leaves_no_file_and_warns_that_data_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        assert await store.erase("a") == 0
        await store.check_writable()
        await store.log_durability()
        assert not list(tmp_path.iterdir())

    using("memory://", work)
    (logged,) = caplog.records
    assert (logged.levelname, "all data are lost" in logged.getMessage()) == ("WARNING", True)
    assert using("memory://", lambda store: store.read_log()) == []


def replace_by_a_copy(file: Path) -> None:
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.rename(file)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("remove", [Path.unlink, replace_by_a_copy])
def test_sqlite_notices_that_a_file_was_removed_or_replaced(
    path: Path, suffix: str, remove: Callable[[Path], None]
) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        remove(Path(f"{path}{suffix}"))
        for use in (
            lambda: store.check_writable(),
            lambda: put(store, [RecordWrite("a", 1, b"2")]),
            lambda: store.read_records(["a"]),
            lambda: store.read_log(),
            lambda: store.erase("c"),
        ):
            with pytest.raises(StoreError, match=f"{path}{suffix} was removed or replaced"):
                await use()

    using(f"sqlite:///{path}", work)


def test_sqlite_saves_the_content_of_a_removed_wal_file(path: Path) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        Path(f"{path}-wal").unlink()

    async def check(store: Store) -> None:
        assert dict(await store.read_records(["a"])) == {"a": StoredRecord(1, b"1")}
        assert await run_sql(store, "PRAGMA integrity_check") == [("ok",)]

    using(f"sqlite:///{path}", work)
    using(f"sqlite:///{path}", check)


@contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_sqlite_reports_files_that_cannot_grow_and_recovers(path: Path) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        with file_size_limit(Path(f"{path}-wal").stat().st_size):
            errors = []
            for use in (
                store.check_writable,
                lambda: put(store, [RecordWrite("a", 1, b"2")], [entry("lost", 2)]),
            ):
                with pytest.raises(StoreError) as raised:
                    await use()
                errors.append(str(raised.value))
            other = open_store(f"sqlite:///{path}")  # a second worker starts all the same
            assert dict(await other.read_records(["a"])) == {"a": StoredRecord(1, b"1")}
            await other.close()
        assert all(str(path) in error and "Check the disk" in error for error in errors)
        await store.check_writable()
        assert await put(store, [RecordWrite("a", 1, b"2")], [entry("second", 2)])
        assert ids(await store.read_log()) == ["t", "second"]

    using(f"sqlite:///{path}", work)


def test_sqlite_reports_a_full_disk_when_opened(path: Path) -> None:
    fill(path, 3)
    with file_size_limit(20_000), pytest.raises(StoreError) as raised:
        open_store(f"sqlite:///{path}")
    assert "the disk is full. Free some space" in str(raised.value)
    assert len(using(f"sqlite:///{path}", lambda store: store.read_records(["k0", "k1"]))) == 2


def test_sqlite_tables_can_be_read_with_plain_sql(path: Path) -> None:
    async def work(store: Store) -> None:
        assert await put(
            store,
            [RecordWrite("c:1", 0, b"belief"), RecordWrite("e:shop", 0, b"")],
            [
                entry("a", parties=(("c:1", 1), ("e:shop", 1)), time=5.0, written_at=6.0),
                entry("a", 2, "c:1", kind=LABEL, belief_updated=False),
            ],
        )

    using(f"sqlite:///{path}", work)
    with sqlite3.connect(path) as db:
        sql = """SELECT entry, kind, transaction_id, time, written_at, customer_key,
            belief_updated FROM log"""
        assert db.execute(sql).fetchall() == [
            (1, "score", "a", 5.0, 6.0, "c:1", 1),
            (2, "label", "a", 0.0, 0.0, "c:1", 0),
        ]
        sql = "SELECT entry, place, key, counter FROM log_counterparties"
        assert db.execute(sql).fetchall() == [(1, 1, "e:shop", 1)]
        sql = "SELECT key, counter, data FROM records ORDER BY key"
        assert db.execute(sql).fetchall() == [("c:1", 1, b"belief"), ("e:shop", 1, b"")]
        kinds = {kind for (kind,) in db.execute("SELECT DISTINCT type FROM sqlite_master")}
        assert kinds == {"table", "index"}
    db.close()


@pytest.mark.parametrize(
    "name",
    [
        *("read_history", "read_transaction", "find_customers"),
        *("delete_oldest", "delete_party", "read_log"),
    ],
)
def test_sqlite_finds_entries_by_an_index(path: Path, name: str) -> None:
    fill(path, 3)
    sql = sqlite_store._SQL[name]
    values: Any = {
        "key": "c",
        "until": 1.0,
        "transaction_id": "t1",
        "belief_updated": 0,
        "limit": 5,
    }
    with sqlite3.connect(path) as db:
        plan = [
            row[3]
            for row in db.execute(f"EXPLAIN QUERY PLAN {sql}", values if ":key" in sql else (1, 5))
        ]
    db.close()
    assert any("SEARCH log" in step for step in plan)
    assert not any("SCAN log" in step for step in plan)


@pytest.mark.parametrize(
    ("synchronous", "level"), [("FULL", "INFO"), ("NORMAL", "WARNING"), ("OFF", "WARNING")]
)
def test_sqlite_logs_what_survives_a_power_failure(
    path: Path, synchronous: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "turncoat")
    using(f"sqlite:///{path}?synchronous={synchronous}", lambda store: store.log_durability())
    (logged,) = caplog.records
    assert logged.levelname == level
    assert f"synchronous={synchronous}" in logged.getMessage()


def test_sqlite_recovers_from_a_full_disk(path: Path) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")])
        ((n_pages,),) = await run_sql(store, "PRAGMA page_count")
        await run_sql(store, f"PRAGMA max_page_count = {n_pages + 3}")
        large = [
            RecordWrite("a", 1, b"2"),
            *(RecordWrite(f"large{i}", 0, bytes(3000)) for i in range(50)),
        ]
        for _ in range(3):
            with pytest.raises(StoreError, match=r"beliefs\.sqlite: the disk is full"):
                await put(store, large, [entry()])
        assert dict(await store.read_records(["a", "large0"])) == {"a": StoredRecord(1, b"1")}
        assert await store.read_log() == []
        assert await put(store, [RecordWrite("a", 1, b"small")])
        await run_sql(store, "PRAGMA max_page_count = 1000000")
        assert await put(store, [RecordWrite("a", 2, b"2"), *large[1:]], [entry()])
        assert len(await store.read_records([change.key for change in large])) == 51
        assert ids(await store.read_log()) == ["t"]

    using(f"sqlite:///{path}", work)


def test_sqlite_reports_a_lock_held_by_another_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "_BUSY_TIMEOUT_S", 0.05)

    async def work(store: Store) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        try:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match="kept it locked"):
                await put(store, [RecordWrite("a", 0, b"")])
            assert dict(await store.read_records(["a"])) == {}  # readers do not wait for writers
            other.execute("ROLLBACK")
            assert await put(store, [RecordWrite("a", 0, b"")])
        finally:
            other.close()

    using(f"sqlite:///{path}", work)


def test_sqlite_recovers_from_a_write_of_the_wrong_type(path: Path) -> None:
    async def work(store: Store) -> None:
        wrong: Any = {"not": "bytes"}
        with pytest.raises(StoreError):
            await put(store, [RecordWrite("a", 0, b"1"), RecordWrite("b", 0, wrong)])
        with pytest.raises(ValueError, match="surrogates"):
            await put(store, [RecordWrite("a", 0, b"1"), RecordWrite("\ud800", 0, b"")])
        assert await put(store, [RecordWrite("a", 0, b"2")])

    using(f"sqlite:///{path}", work)


def test_sqlite_deletes_entries_for_both_parties(path: Path) -> None:
    async def work(store: Store) -> None:
        entries = [
            entry(f"t{i}", parties=(("c", i), (f"e{i}", 1)), written_at=float(i))
            for i in range(300)
        ]
        assert await put(store, [], entries)
        for before, n_left in ((9.0, 291), (150.0, 150), (400.0, 0)):
            await store.delete_entries_before(before)
            assert await run_sql(store, "SELECT count(*) FROM log") == [(n_left,)]
            ids = range(300 - n_left, 300)
            assert [len(await store.read_history(f"e{i}")) for i in range(300)] == [
                int(i in ids) for i in range(300)
            ]

    using(f"sqlite:///{path}", work)


def read_all_bytes(path: Path) -> bytes:
    """The content of the database file and of the files beside it."""
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


@pytest.fixture
def sqlite_without_secure_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn secure_delete off by default; some builds of SQLite turn it on."""
    connect = sqlite3.connect

    def connect_without_secure_delete(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        db.execute("PRAGMA secure_delete = OFF")
        return db

    monkeypatch.setattr(sqlite_store.sqlite3, "connect", connect_without_secure_delete)


@pytest.mark.usefixtures("sqlite_without_secure_delete")
def test_sqlite_overwrites_erased_bytes(path: Path) -> None:
    noise = random.Random("hers").randbytes(8000)  # does not compress
    marks = [b"c:Wanda", b"wandas-", *(noise[i : i + 16] for i in range(0, len(noise), 500))]

    async def work(store: Store) -> None:
        others = [
            entry(f"t{i}", i + 1, "c:Eve", content=random.Random(i).randbytes(900))
            for i in range(40)
        ]
        hers = [
            entry(
                f"wandas-{i}",
                parties=(("c:Wanda", i + 1), ("e", i + 1)),
                content=noise[1000 * i :][:1000],
            )
            for i in range(8)
        ]
        mixed = [one for i in range(8) for one in (*others[5 * i : 5 * i + 5], hers[i])]
        for i in range(6):  # records that grow, and pages that fill up
            assert await put(
                store,
                [RecordWrite("c:Wanda", i, b"wandas-" * 9 * i), RecordWrite("e", i, b"")],
                mixed[8 * i : 8 * i + 8],
            )
            if i == 3:
                await run_sql(
                    store, "PRAGMA wal_checkpoint(TRUNCATE)"
                )  # some in the file, some in the write-ahead log
        assert await put(store, [], [entry("wandas-alone", 9, "c:Wanda", content=noise)])
        before = read_all_bytes(path)
        assert all(mark in before for mark in marks)
        assert await store.erase("c:Wanda") == 9
        after = read_all_bytes(path)
        assert [mark for mark in marks if mark in after] == []
        assert [one._replace(cursor="") for one in await store.read_log()] == others
        assert await run_sql(store, "PRAGMA integrity_check") == [("ok",)]

    using(f"sqlite:///{path}", work)


def test_sqlite_vacuum_removes_all_erased_bytes(path: Path) -> None:
    """SQLite leaves copies of cells in pages that it split; VACUUM removes these copies."""

    async def work(store: Store) -> None:
        draw = random.Random(0)
        for i in range(100):
            changes = [
                RecordWrite(f"c:cust{k:02d}", i, b"cust%02d" % k * draw.choice([1, 30, 300]))
                for k in range(60)
            ]
            entries = [
                entry(f"{change.key[2:]}-{i}", i + 1, change.key, written_at=float(i))
                for change in changes
            ]
            assert await put(store, changes, entries)
        assert await store.delete_entries_before(90.0) == 5400
        for k in range(30):
            assert await store.erase(f"c:cust{k:02d}") == 10
        await run_sql(store, "VACUUM")
        await run_sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
        after = read_all_bytes(path)
        assert [b"cust%02d" % k in after for k in range(60)] == [False] * 30 + [True] * 30

    using(f"sqlite:///{path}", work)


def test_sqlite_erases_while_another_process_reads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "_CHECKPOINT_TIMEOUT_S", 0.01)

    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("c:Wanda", 0, b"")], [entry("t", key="c:Wanda")])
        reader = sqlite3.connect(path, isolation_level=None)
        try:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM log").fetchone() == (1,)
            assert await store.erase("c:Wanda") == 1
            assert dict(await store.read_records(["c:Wanda"])) == {}
            reader.execute("COMMIT")
        finally:
            reader.close()
        assert await store.erase("c:Wanda") == 0
        assert b"Wanda" not in read_all_bytes(path)
        assert await run_sql(store, "PRAGMA busy_timeout") == [(5000,)]

    using(f"sqlite:///{path}", work)


@pytest.mark.parametrize(
    "damage",
    [
        "content = 'text'",
        "kind = x'00'",
        "transaction_id = x'00'",
        "time = 'noon'",
        "written_at = x'00'",
        "customer_counter = 'many'",
        "belief_updated = 'yes'",
    ],
)
def test_sqlite_reports_a_damaged_entry(path: Path, damage: str) -> None:
    check_damage_is_reported(path, f"UPDATE log SET {damage}")


@pytest.mark.parametrize("damage", ["key = x'00'", "counter = 'many'"])
def test_sqlite_reports_a_damaged_counterparty(path: Path, damage: str) -> None:
    check_damage_is_reported(path, f"UPDATE log_counterparties SET {damage}")


def check_damage_is_reported(path: Path, sql: str) -> None:
    async def work(store: Store) -> None:
        parties = ("c", 1), ("d", 1)
        assert await put(store, [], [entry(parties=parties, content=b"long" * 1000)])
        await run_sql(store, sql)
        for use in (store.read_log(), store.read_history("c")):
            with pytest.raises(CorruptRecordError, match="entry 1 of the log is damaged"):
                await use

    using(f"sqlite:///{path}", work)


@pytest.mark.parametrize("value", ["'noon'", "x'00'"])
def test_sqlite_reports_a_damaged_time_of_writing(path: Path, value: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [], [entry()])
        await run_sql(store, f"UPDATE log SET written_at = {value}")
        with pytest.raises(CorruptRecordError, match="not a time"):
            await store.newest_entry_time()

    using(f"sqlite:///{path}", work)


@pytest.mark.parametrize("counter", ["-1", "0", "9223372036854775807", "'many'", "x'00'", "1.5"])
def test_sqlite_a_damaged_counter_affects_one_record_only(path: Path, counter: str) -> None:
    async def work(store: Store) -> None:
        sound = pack_record(Record(FORMAT, "model", 0.0, 0, (), b""))
        assert await put(store, [RecordWrite("a", 0, sound), RecordWrite("b", 0, b"2")], [])
        assert unpack_record("a", (await store.read_records(["a"]))["a"].data)
        await run_sql(store, f"UPDATE records SET counter = {counter} WHERE key = 'a'")
        held = await store.read_records(["a", "b"])
        assert held["b"] == StoredRecord(1, b"2")
        with pytest.raises(CorruptRecordError):
            unpack_record("a", held["a"].data)

    using(f"sqlite:///{path}", work)


def keep_writing(url: str, reported: Connection, first: int) -> None:
    """Write and report each write, until killed."""

    async def work(store: Store) -> None:
        for i in range(first, first + 100_000):
            held = (await store.read_records(["count"])).get("count", StoredRecord(0, b""))
            change = RecordWrite("count", held.counter, b"%d" % i)
            if await put(
                store,
                [change, RecordWrite(f"k{i}", 0, b"%d" % i)],
                [entry(f"t{i}", held.counter + 1, "count", content=b"x" * 3000)],
            ):
                reported.send(i)

    using(url, work)


def collect_from_killed_writer(url: str, first: int, n: int) -> list[int]:
    ours, theirs = processes().Pipe(duplex=False)
    process = processes().Process(target=keep_writing, args=(url, theirs, first))
    process.start()
    theirs.close()
    reported = []
    with ours:
        try:
            for _ in range(n):
                assert ours.poll(60)
                reported.append(ours.recv())
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            process.close()
        try:
            while True:
                reported.append(ours.recv())
        except (EOFError, OSError):  # the last message may be cut
            return reported


def test_sqlite_keeps_committed_writes_after_kill(path: Path) -> None:
    url, reported = f"sqlite:///{path}?synchronous=OFF", []  # a kill needs no sync

    async def check(store: Store) -> None:
        held = await store.read_records([f"k{i}" for i in reported])
        assert sorted(held) == sorted(f"k{i}" for i in reported)
        (count,) = (await store.read_records(["count"])).values()
        log = await store.read_log(limit=100_000)
        assert set(ids(log)) >= {f"t{i}" for i in reported}
        assert len(log) == len(set(ids(log))) == count.counter
        assert await run_sql(store, "PRAGMA integrity_check") == [("ok",)]

    for turn in range(6):
        reported += collect_from_killed_writer(url, 1_000_000 * turn, 1 + 40 * turn)
        using(url, check)


# Redis


def test_a_redis_url_may_have_an_ipv6_address() -> None:
    store: Any = open_store("redis://[::1]:7000/3")
    found = store._pool.connection_kwargs
    assert (found["host"], found["port"], found["db"]) == ("::1", 7000, 3)


def list_keys(server: RedisServer, url: str) -> set[bytes]:
    prefix = url.rpartition("=")[2].encode()
    return {key.removeprefix(prefix + b":") for key in server.command("KEYS", prefix + b":*")}


def test_redis_over_a_unix_socket(redis_server: RedisServer) -> None:
    for url in (
        f"{redis_server.socket_url}?prefix=socket&db=3",
        f"redis://127.0.0.1:{redis_server.port}/3?prefix=socket",
    ):
        stored = using(url, lambda store: write_and_read_one(store))
        assert stored == {"a": StoredRecord(1, b"1")}


async def write_and_read_one(store: Store) -> dict[str, StoredRecord]:
    await put(store, [RecordWrite("a", 0, b"1")])
    return dict(await store.read_records(["a"]))


def test_redis_prefixes_are_separate_stores(redis_server: RedisServer, redis_url: str) -> None:
    assert using(redis_url, write_and_read_one)
    assert not using(redis_url + "x", lambda store: store.read_records(["a"]))
    assert list_keys(redis_server, redis_url) == {b"record:a"}


def test_redis_leaves_no_keys_of_deleted_entries(redis_server: RedisServer, redis_url: str) -> None:
    async def work(store: Store) -> None:
        both = (("c", 1), ("e", 1))
        assert await put(
            store,
            [RecordWrite("c", 0, b""), RecordWrite("e", 0, b"")],
            [entry("t", parties=both), entry("u", 2, "c", written_at=5.0)],
        )
        assert list_keys(redis_server, redis_url) == {
            b"record:c",
            b"record:e",
            b"history:c",
            b"history:e",
            b"log-by-time",
            b"log-by-id",
            b"log",
        }
        assert await store.delete_entries_before(1.0) == 1
        assert list_keys(redis_server, redis_url) == {
            b"record:c",
            b"record:e",
            b"history:c",
            b"log-by-time",
            b"log-by-id",
            b"log",
        }
        assert await store.delete_entries_before(6.0) == 1
        assert list_keys(redis_server, redis_url) == {
            b"record:c",
            b"record:e",
            b"log",
        }  # an empty stream, which keeps its last id

    using(redis_url, work)


def test_redis_leaves_no_keys_of_an_erased_party(redis_server: RedisServer, redis_url: str) -> None:
    prefix = redis_url.rpartition("=")[2]

    async def work(store: Store) -> None:
        both = [(("c", i), ("e", i)) for i in range(1, 251)]
        assert await put(
            store,
            [RecordWrite("c", 0, b""), RecordWrite("e", 0, b"")],
            [entry(f"t{i}", parties=one) for i, one in enumerate(both)],
        )
        for one in (await store.read_log())[50:180]:
            redis_server.command("XDEL", f"{prefix}:log", one.cursor)  # as XTRIM would
        assert await store.erase("c") == 120
        assert list_keys(redis_server, redis_url) == {b"record:e", b"log"}

    using(redis_url, work)


def test_redis_erases_nothing_if_a_key_has_another_type(
    redis_server: RedisServer, redis_url: str
) -> None:
    prefix = redis_url.rpartition("=")[2]

    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("c", 0, b"")], [entry(parties=(("c", 1), ("e", 1)))])
        for name in ("log", "log-by-time", "log-by-id", "history:c", "history:e"):
            redis_server.command("RENAME", f"{prefix}:{name}", f"{prefix}:aside")
            redis_server.command("SET", f"{prefix}:{name}", "something else")
            with pytest.raises(StoreError, match="a key has another type"):
                await store.erase("c")
            redis_server.command("RENAME", f"{prefix}:aside", f"{prefix}:{name}")
        assert (
            len(await store.read_records(["c"]))
            == len(await store.read_history("c"))
            == len(await store.read_history("e"))
            == 1
        )
        assert await store.erase("c") == 1

    using(redis_url, work)


def test_redis_skips_trimmed_entries(redis_server: RedisServer, redis_url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [], [entry(f"t{i}", i) for i in range(1, 351)])
        log = await store.read_log()
        for one in log[150:300]:
            redis_server.command("XDEL", redis_url.rpartition("=")[2] + ":log", one.cursor)
        wanted = ids([*log[:150], *log[300:]][::-1])
        assert ids(await store.read_history("c", limit=1000)) == wanted
        assert redis_server.command("ZCARD", redis_url.rpartition("=")[2] + ":history:c") == 200
        assert await store.delete_entries_before(1.0, limit=1000) == 200
        assert list_keys(redis_server, redis_url) == {b"log"}

    using(redis_url, work)


def test_redis_writes_nothing_if_a_key_has_another_type(
    redis_server: RedisServer, redis_url: str
) -> None:
    prefix = redis_url.rpartition("=")[2]

    async def work(store: Store) -> None:
        for name in ("log", "log-by-time", "log-by-id", "history:c"):
            redis_server.command("SET", f"{prefix}:{name}", "something else")
            with pytest.raises(StoreError, match="a key has another type"):
                await put(store, [RecordWrite("a", 0, b"")], [entry()])
            redis_server.command("DEL", f"{prefix}:{name}")
        assert list_keys(redis_server, redis_url) == set()
        redis_server.command("SET", f"{prefix}:record:a", "short")
        with pytest.raises(CorruptRecordError, match="record of 'a' is damaged"):
            unpack_record("a", (await store.read_records(["a"]))["a"].data)
        redis_server.command("XADD", f"{prefix}:log", "*", "somebody", "else")
        with pytest.raises(StoreError, match="of the Redis log is damaged"):
            await store.read_log()

    using(redis_url, work)


def test_redis_recovers_when_the_server_is_back(redis_server: RedisServer, redis_url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        assert (
            len(await asyncio.gather(*(store.read_records(["a"]) for _ in range(5)))) == 5
        )  # several connections that will break
        redis_server.stop()
        uses = [
            store.read_records(["a"]),
            put(store, [RecordWrite("a", 1, b"2")]),
            store.read_history("c"),
            store.read_log(),
            store.delete_entries_before(1.0),
            store.erase("c"),
        ]
        for use in uses:
            with pytest.raises(StoreError, match=f"127.0.0.1:{redis_server.port}"):
                await asyncio.wait_for(use, 10)
        redis_server.start()
        found = await asyncio.gather(*(store.read_records(["a"]) for _ in range(5)))
        assert [dict(one) for one in found] == [{"a": StoredRecord(1, b"1")}] * 5
        assert ids(await store.read_log()) == ["t"]
        assert await put(store, [RecordWrite("a", 1, b"2")])
        redis_server.stop()
        redis_server.start()
        await asyncio.sleep(0.01)  # in which the loop hears of the broken connections
        assert await put(store, [RecordWrite("a", 2, b"3")])

    try:
        using(redis_url, work)
    finally:
        if redis_server.process is None:
            redis_server.start()


def test_redis_times_out_if_the_server_hangs(redis_server: RedisServer, redis_url: str) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"")])
        redis_server.pause()
        try:
            with pytest.raises(StoreError, match="Timeout"):
                await asyncio.wait_for(store.read_records(["a"]), 10)
        finally:
            redis_server.resume()
        assert await put(store, [RecordWrite("a", 1, b"")])

    using(redis_url, work)


@asynccontextmanager
async def proxy_that_drops_replies(port: int) -> AsyncIterator[int]:
    """Forward a port to Redis, and close the connection instead of returning a script's reply."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        while said := await reader.read(65536):
            back.write(said)
            answer = await there.read(65536)
            if b"EVAL" in said:
                break
            writer.write(answer)
        back.close()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_redis_does_not_repeat_a_write_whose_reply_was_lost(
    redis_server: RedisServer, redis_url: str
) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"")])  # so that the server knows the script
        async with proxy_that_drops_replies(redis_server.port) as port:
            behind = open_store(redis_url.replace(str(redis_server.port), str(port)), create=True)
            with pytest.raises(StoreError):
                await put(behind, [], [entry()])
            await behind.close()
        assert ids(await store.read_log()) == ["t"]

    using(redis_url, work)


def test_redis_scripts_are_loaded_again_after_a_flush(
    redis_server: RedisServer, redis_url: str
) -> None:
    async def work(store: Store) -> None:
        for i in range(3):
            assert await put(store, [RecordWrite("a", i, b"")], [entry(f"t{i}", i)])
            redis_server.command("SCRIPT", "FLUSH")
        assert ids(await store.read_history("c")) == ["t2", "t1", "t0"]

    using(redis_url, work)


@pytest.mark.parametrize(
    ("breaking", "mending", "words"),
    [
        (
            ("CONFIG", "SET", "maxmemory", "1"),
            ("CONFIG", "SET", "maxmemory", "0"),
            "out of memory. Raise maxmemory",
        ),
        (
            ("REPLICAOF", "127.0.0.1", "1"),
            ("REPLICAOF", "NO", "ONE"),
            "is a read-only replica. Use the URL of the primary",
        ),
    ],
)
def test_redis_reports_that_it_cannot_write_and_changes_nothing(
    redis_server: RedisServer,
    redis_url: str,
    breaking: tuple[str, ...],
    mending: tuple[str, ...],
    words: str,
) -> None:
    async def work(store: Store) -> None:
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        redis_server.command(*breaking)
        try:
            with pytest.raises(StoreError, match=words):
                await put(
                    store, [RecordWrite("b", 0, b""), RecordWrite("a", 1, b"2")], [entry("no", 2)]
                )
            with pytest.raises(StoreError, match=words):
                await store.check_writable()
        finally:
            redis_server.command(*mending)
        assert dict(await store.read_records(["a", "b"])) == {"a": StoredRecord(1, b"1")}
        assert ids(await store.read_log()) == ids(await store.read_history("c")) == ["t"]
        assert await put(store, [RecordWrite("a", 1, b"2")])

    using(redis_url, work)


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({}, []),
        ({"appendonly": "no"}, ["appendonly is no, so a restart of Redis loses"]),
        ({"maxmemory-policy": "allkeys-lru"}, ["maxmemory-policy is allkeys-lru, so Redis may"]),
    ],
)
def test_redis_settings_that_lose_data_are_logged(
    redis_server: RedisServer,
    redis_url: str,
    settings: dict[str, str],
    warnings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "turncoat")
    usual = {"appendonly": "yes", "maxmemory-policy": "noeviction"}
    for name, value in settings.items():
        redis_server.command("CONFIG", "SET", name, value)
    try:
        using(redis_url, lambda store: store.log_durability())
    finally:
        for name in settings:
            redis_server.command("CONFIG", "SET", name, usual[name])
    first, *others = caplog.records
    for name, value in (usual | settings).items():
        assert f"{name}={value}" in first.getMessage()
    assert [one.levelname for one in others] == ["WARNING"] * len(warnings)
    assert all(words in one.getMessage() for one, words in zip(others, warnings, strict=True))


def test_redis_works_without_the_right_to_read_its_settings(
    redis_server: RedisServer,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    redis_server.command(
        "ACL", "SETUSER", "plain", "on", ">secret", "~*", "+@all", "-@admin", "-config"
    )
    monkeypatch.setenv("TURNCOAT_REDIS_USERNAME", "plain")
    monkeypatch.setenv("TURNCOAT_REDIS_PASSWORD", "secret")

    async def work(store: Store) -> None:
        await store.log_durability()
        await store.check_writable()
        assert await put(store, [RecordWrite("a", 0, b"1")], [entry()])
        assert ids(await store.read_history("c")) == ["t"]
        assert await store.erase("c") == 1

    try:
        using(redis_url, work)
    finally:
        redis_server.command("ACL", "DELUSER", "plain")
    (logged,) = caplog.records
    assert logged.levelname == "WARNING"
    assert "could not be checked" in logged.getMessage()


@asynccontextmanager
async def forward_connections(ports: list[int]) -> AsyncIterator[int]:
    """Forward new connections to the last of the ports; open connections stay as they are."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", ports[-1])
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_redis_follows_a_failover_behind_the_same_address(redis_server: RedisServer) -> None:
    """The old primary stays up as a replica, and open connections to it stay open."""

    async def work(second: RedisServer) -> None:
        ports = [redis_server.port]
        async with forward_connections(ports) as port:
            store = open_store(f"redis://127.0.0.1:{port}/0?prefix=failover")
            assert await put(store, [RecordWrite("a", 0, b"1")])
            redis_server.command("REPLICAOF", "127.0.0.1", "1")
            ports.append(second.port)
            with pytest.raises(StoreError, match="read-only replica"):
                await put(store, [RecordWrite("a", 1, b"2")])
            assert await put(store, [RecordWrite("a", 0, b"anew")])
            await store.close()
        assert second.command("GET", "failover:record:a") == b"1:anew"

    with running_redis() as second:
        try:
            asyncio.run(work(second))
        finally:
            redis_server.command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("script", [redis_store._WRITE, redis_store._DELETE])
def test_redis_scripts_touch_only_keys_that_are_passed_as_keys(script: str) -> None:
    touched = re.findall(r"redis\.call\('\w+', ([^,)]+)", script)
    assert touched
    assert all(key == "key" or key.startswith("KEYS[") for key in touched)
    assert "'record:" not in script
    assert "'history:" not in script


def test_redis_values_can_be_read_by_hand(redis_server: RedisServer, redis_url: str) -> None:
    prefix = redis_url.rpartition("=")[2]

    async def work(store: Store) -> None:
        parties = (("c:1", 12), ("e:shop", 7))
        assert await put(
            store,
            [RecordWrite("c:1", 0, b"belief", increment=12)],
            [entry("a", parties=parties, time=5.0, written_at=6.5)],
        )

    using(redis_url, work)
    assert redis_server.command("GET", f"{prefix}:record:c:1") == b"12:belief"
    ((id, fields),) = redis_server.command("XRANGE", f"{prefix}:log", "-", "+")
    assert fields == {
        b"kind": b"score",
        b"transaction_id": b"a",
        b"time": b"5.0",
        b"written_at": b"6.5",
        b"customer_key": b"c:1",
        b"customer_counter": b"12",
        b"counterparty_1_key": b"e:shop",
        b"counterparty_1_counter": b"7",
        b"belief_updated": b"1",
        b"content": b"",
    }
    for name, score in (("history:c:1", 12.0), ("history:e:shop", 7.0), ("log-by-time", 6.5)):
        found = redis_server.command("ZRANGE", f"{prefix}:{name}", 0, -1, "WITHSCORES")
        assert found == [[id, score]]


def test_redis_password_comes_from_the_environment(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_server.command("CONFIG", "SET", "requirepass", "correct-horse")
    try:
        with pytest.raises(StoreError, match="Authentication"):
            using(redis_url, lambda store: store.read_records(["a"]))
        monkeypatch.setenv("TURNCOAT_REDIS_PASSWORD", "hunter2")
        with pytest.raises(StoreError, match="username-password") as raised:
            using(redis_url, lambda store: store.read_records(["a"]))
        assert not isinstance(raised.value, StoreUnavailableError), "it will not get better"
        assert "hunter2" not in str(raised.value)
        monkeypatch.setenv("TURNCOAT_REDIS_PASSWORD", "correct-horse")
        assert using(redis_url, write_and_read_one) == {"a": StoredRecord(1, b"1")}
        monkeypatch.setenv("TURNCOAT_REDIS_USERNAME", "nobody")
        with pytest.raises(StoreError, match="username-password"):
            using(redis_url, lambda store: store.read_records(["a"]))
    finally:
        redis_server.command("CONFIG", "SET", "requirepass", "", password="correct-horse")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@localhost:6379/0",
        "rediss://user:hunter2@localhost/0",
        "redis://:/hunter2@localhost/0",
        "redis://:?hunter2@localhost/0",
        "redis://:#hunter2@localhost/0",
        "unix://:hunter2@/path.sock",
        "redis://localhost:hunter2/0",
        "redis://localhost/0?password=hunter2",
        "redis://localhost/hunter2",
        "redsi://:hunter2@localhost",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_store(url, create=True)
    shown = [
        str(problem) for problem in (raised.value, raised.value.__cause__) if problem is not None
    ]
    assert not any("hunter2" in text for text in shown)
    if "@" in url and not url.startswith("redsi"):
        assert "TURNCOAT_REDIS_PASSWORD" in shown[0]
