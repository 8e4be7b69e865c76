"""Records that are being written or were lately: never more than asked for, never one that was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from turncoat.serving import cache
from turncoat.serving.cache import CachedRecord, RecordCache
from turncoat.serving.records import FORMAT, Record


def in_loop(work: Callable[[], Any]) -> Any:
    async def go() -> Any:
        return work()

    return asyncio.run(go())


def made(*keys: str, counter: int = 1) -> dict[str, CachedRecord]:
    writing = asyncio.get_running_loop().create_future()
    return {
        key: CachedRecord(counter, Record(FORMAT, "model", 0.0, 0, (), b""), writing)
        for key in keys
    }


@pytest.mark.parametrize("most", [0, 2])
def test_what_is_being_written_is_known_and_then_as_much_as_is_asked_for(most: int) -> None:
    def work() -> None:
        records = RecordCache(most)
        first = made("a", "b", "c")
        records.add(first)
        assert records.of(["a", "b", "c", "d"]) == first
        assert list(records.of("a")) == ["a"]  # which makes it the latest used
        records.settle(first, set())
        assert set(records.of("abc")) == ({"c", "a"} if most else set())
        assert not any(one.is_lost or one.writing for one in first.values())

    in_loop(work)


@pytest.mark.parametrize("most", [0, 9])
def test_what_was_lost_is_forgotten_and_what_was_built_on_it_can_tell(most: int) -> None:
    def work() -> None:
        records = RecordCache(most)
        first = made("a", "b")
        records.add(first)
        built_on = records.of(["a", "b"])
        records.settle(first, {"a"})
        assert set(records.of("ab")) == ({"b"} if most else set())
        assert [built_on[key].is_lost for key in "ab"] == [True, False]

    in_loop(work)


@pytest.mark.parametrize("most", [0, 9])
def test_the_end_of_one_write_does_not_forget_the_next(most: int) -> None:
    def work() -> None:
        records = RecordCache(most)
        first, second = made("a"), made("a", counter=2)
        records.add(first)
        records.add(second)
        records.settle(first, {"a"})
        assert records.of("a") == second
        records.settle(second, set())
        assert records.of("a") == (second if most else {})
        records.forget()
        assert records.of("a") == {}

    in_loop(work)


def test_what_was_written_is_remembered_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> None:
        records, now = RecordCache(9), 100.0
        monkeypatch.setattr(cache.time, "monotonic", lambda: now)
        written, waiting = made("a", "b"), made("c")
        records.add(written)
        records.add(waiting)
        records.settle(written, set())
        now += cache.REMEMBERED_SECONDS / 2
        assert set(records.of("ac")) == {"a", "c"}
        now += cache.REMEMBERED_SECONDS
        assert set(records.of("abc")) == {"c"}  # which is still being written

    in_loop(work)


def test_a_record_that_is_being_written_is_never_pushed_out() -> None:
    def work() -> None:
        records = RecordCache(1)
        waiting, others = made("a"), made("b", "c")
        records.add(waiting)
        records.add(others)
        records.settle(others, set())
        assert set(records.of("abc")) == {"a", "c"}
        records.settle(waiting, set())
        assert len(records.of("abc")) == 1

    in_loop(work)
