"""Each transaction counts once: duplicates, late ones, new models, conflicts and replays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scoring.detectors import data_of, detector
from tests.serving.helpers import (
    MemoryStore,
    apply_label,
    changed,
    count_entries,
    decode_response,
    process,
    read_record,
    read_records,
    score_by_hand,
    transactions_of,
)
from turncoat import DataError, Detector
from turncoat.errors import CorruptRecordError, StoreError
from turncoat.scoring.live import LiveScorer
from turncoat.serving.decoding import FieldError, Transaction, TransactionDecoder
from turncoat.serving.maintenance import replay
from turncoat.serving.records import Record, counterparty_key, customer_key, pack_record
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores.protocol import RecordWrite, WriteGroup
from turncoat.serving.updater import BeliefUpdater, LateTransactionError, UpdatePolicy

replace = msgspec.structs.replace

PER_ROW: dict[str, str] = {}
CONTINUOUS = {"transitions": "continuous"}
WITHOUT_HISTORY = {**CONTINUOUS, "features": "processed"}  # the record stores the time itself
chains = pytest.mark.parametrize(
    "chain",
    [PER_ROW, CONTINUOUS, WITHOUT_HISTORY],
    ids=["per row", "continuous", "continuous without history"],
)
files = pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("shop", PER_ROW),
        ("handbook", PER_ROW),
        ("ieee", PER_ROW),
        ("shop", WITHOUT_HISTORY),
        ("handbook", CONTINUOUS),
    ],
)


@files
@pytest.mark.parametrize("size", [1, 7, 200])
def test_any_batch_size_gives_the_scores_of_the_library(
    name: str, chain: dict[str, str], size: int
) -> None:
    made = detector(name, **chain)
    some = transactions_of(name, 200, made)
    store = MemoryStore()
    answers = process(made, [some[i : i + size] for i in range(0, len(some), size)], store)
    scores, states = score_by_hand(made, some)
    assert [one["probability"] for one in answers] == [score.probability for score in scores]
    assert [tuple(one["belief"]) for one in answers] == [score.belief for score in scores]
    assert [[why["source"] for why in one["reasons"]] for one in answers] == [
        [r.source for r in score.reasons] for score in scores
    ]
    assert {key: record.state for key, record in read_records(store).items()} == {
        key: state or b"" for key, state in states.items()
    }
    assert not any(one["late"] or one["duplicate"] for one in answers)
    assert {one["belief_source"] for one in answers} == {"new", "stored"}


@pytest.mark.parametrize(
    ("late", "chain"),
    [("keep", PER_ROW), ("apply", PER_ROW), ("keep", CONTINUOUS), ("apply", WITHOUT_HISTORY)],
)
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_batch_equals_single_requests(
    late: str, chain: dict[str, str], data: st.DataObject
) -> None:
    """In any order, with late transactions, duplicates and known frauds."""
    made = detector("shop", **chain)
    some = transactions_of("shop", 60, made)
    busy = [one for one in some if one.customer in {"c1", "c2", "c3", "c4"}]
    mixed = data.draw(st.lists(st.sampled_from(busy), min_size=2, max_size=25))
    frauds = data.draw(st.sets(st.sampled_from([one.id for one in busy]), max_size=4))
    sent = [replace(one, label=1) if one.id in frauds else one for one in mixed]
    cut = data.draw(st.integers(0, len(sent)))
    stores = MemoryStore(), MemoryStore()
    together = process(made, [sent[:cut], sent[cut:]], stores[0], late=late)
    alone = process(made, [[one] for one in sent], stores[1], late=late)
    assert together == alone
    assert read_records(stores[0]) == read_records(stores[1])


@files
def test_a_replay_equals_filtered_batch_scores(name: str, chain: dict[str, str]) -> None:
    made, whole = detector(name, **chain), data_of(name).transactions

    async def go() -> np.ndarray:
        found = np.full(whole.n_rows, np.nan)
        async for rows, answers in replay(
            BeliefUpdater(MemoryStore(), UpdatePolicy(n_reasons=0)), made, whole
        ):
            found[rows] = [decode_response(one)["probability"] for one in answers]
        return found

    assert np.abs(asyncio.run(go()) - made.score(whole).probability).max() < 1e-14


def test_an_interrupted_replay_continues_and_a_complete_one_does_nothing() -> None:
    made, whole = detector("shop"), data_of("shop").transactions

    async def go() -> tuple[list[tuple[int, int]], MemoryStore]:
        store = MemoryStore()
        updater = BeliefUpdater(store, UpdatePolicy(n_reasons=0))
        async for rows, _ in replay(updater, made, whole):
            first = len(rows)
            break
        rest = [(len(rows), len(answers)) async for rows, answers in replay(updater, made, whole)]
        again = [(len(rows), len(answers)) async for rows, answers in replay(updater, made, whole)]
        assert rest[0] == (first, 0)  # done before
        assert again == [(whole.n_rows, 0)]
        return rest, store

    rest, store = asyncio.run(go())
    assert all(n_rows == n_answers > 0 for n_rows, n_answers in rest[1:])
    assert sum(n_rows for n_rows, _ in rest) == whole.n_rows
    _, states = score_by_hand(made, transactions_of("shop"))
    customers = {
        key: record.state for key, record in read_records(store).items() if key.startswith("c:")
    }
    assert customers.keys() == {key for key in states if key.startswith("c:")}


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "min", "h", "d"])
def test_inverted_times_read_back_exactly(unit: str) -> None:
    from turncoat.data.json_rows import invert_time
    from turncoat.data.parsing import parse_time
    from turncoat.data.schema import Schema

    schema = Schema(customer=("who",), time="at", continuous=("paid",), time_unit=unit)
    for number in np.random.default_rng(0).integers(0, 10**6, 300).tolist():
        seconds = parse_time(schema, {"at": number})
        assert parse_time(schema, {"at": invert_time(schema, seconds)}) == seconds


# --- duplicates


@pytest.mark.parametrize("together", [True, False])
def test_a_duplicate_gets_the_first_response_and_changes_nothing(together: bool) -> None:
    made, some = detector("shop"), transactions_of("shop", 40)
    store, other = MemoryStore(), MemoryStore()
    twice = [one for each in some for one in (each, each)]
    answers = process(made, [twice] if together else [[one] for one in twice], store)
    once = process(made, [some], other)
    for first, second, plain in zip(answers[::2], answers[1::2], once, strict=True):
        assert first == plain
        assert second == {**first, "duplicate": True}
    assert read_records(store) == read_records(other)
    assert count_entries(store) == len(some)


@pytest.mark.parametrize("late", ["keep", "apply", "refuse"])
def test_a_duplicate_within_a_long_batch_is_recognised(late: str) -> None:
    own = [changed(transactions_of("shop", 1)[0], id=f"t{i}", at=1000.0 * i) for i in range(22)]
    store = MemoryStore()
    answers = process(detector("shop"), [[*own, own[0]]], store, late=late)
    assert answers[-1] == {**answers[0], "duplicate": True}
    assert count_entries(store) == 22


def test_transactions_count_again_after_the_store_lost_them() -> None:
    """A store that comes back without what it had: what is sent again must count again."""
    made, some = (
        detector("shop"),
        [one for one in transactions_of("shop") if one.customer == "c1"][:3],
    )

    async def go() -> list[list[dict[str, Any]]]:
        store = MemoryStore()
        updater = BeliefUpdater(store)
        first = await updater.process_batch(made, some)
        for key in some[0].keys:
            await store.erase(key)
        again = await updater.process_batch(made, [some[0]])
        rest = await updater.process_batch(made, some[1:])
        return [[decode_response(one) for one in given] for given in (first, again, rest)]

    first, again, rest = asyncio.run(go())
    assert [answer["duplicate"] for answer in (*again, *rest)] == [False] * 3
    assert (
        [answer["n_seen"] for answer in (*again, *rest)]
        == [answer["n_seen"] for answer in first]
        == [1, 2, 3]
    )


def test_an_old_duplicate_is_found_in_the_log_or_is_late() -> None:
    made = detector("shop")
    some = [one for one in transactions_of("shop") if one.customer == "c1"]
    assert len(some) > 20
    store = MemoryStore()
    first, *_ = process(made, [some], store, n_recent_ids=4)
    before = read_records(store)[customer_key("c1")]
    assert len(before.recent_ids) == 4
    assert process(made, [[some[0]]], store, n_recent_ids=4) == [{**first, "duplicate": True}]
    asyncio.run(store.delete_entries_before(np.inf, 10**6))
    [again] = process(made, [[some[0]]], store, n_recent_ids=4)
    assert (again["late"], again["duplicate"], again["belief_source"]) == (True, False, "current")
    assert read_record(store, "c1").state == before.state
    asyncio.run(store.delete_entries_before(np.inf, 10**6))
    [last] = process(made, [[some[-1]]], store, n_recent_ids=4)
    assert last["duplicate"]
    assert last["id"] == some[-1].id
    assert "reasons" not in last


def test_many_transactions_of_one_instant_are_told_apart() -> None:
    made, one = detector("shop"), transactions_of("shop", 1)[0]
    some = [replace(one, id=f"n{i}") for i in range(50)]
    store = MemoryStore()
    process(made, [some], store, n_recent_ids=2)
    assert all(answer["duplicate"] for answer in process(made, [some], store, n_recent_ids=2))
    later = changed(one, id="later", at=one.time + 1)
    process(made, [[later]], store, n_recent_ids=2)
    assert len(read_record(store, one.customer).recent_ids) == 2


# --- late


@chains
def test_a_late_transaction_is_scored_with_the_belief_of_its_time_and_changes_nothing(
    chain: dict[str, str],
) -> None:
    made = detector("shop", **chain)
    some = [one for one in transactions_of("shop", made=made) if one.customer == "c2"][:12]
    scores, _ = score_by_hand(made, some)
    for held_back in (0, 3, 7, 10):
        rest = [one for i, one in enumerate(some) if i != held_back]
        for together in (True, False):
            store = MemoryStore()
            batches = [[*rest, some[held_back]]] if together else [rest, [some[held_back]]]
            late = process(made, batches, store)[-1]
            if some[held_back].time < rest[-1].time:
                assert late["late"]
                assert late["belief_source"] == ("new" if held_back == 0 else "logged")
                assert late["n_seen"] == held_back + 1
                alone, _ = score_by_hand(made, some[: held_back + 1])
                if some[held_back].counterparties in ((None,), ()):
                    assert (
                        late["belief"] == list(alone[-1].belief) == list(scores[held_back].belief)
                    )
            assert read_record(store, "c2").last_time == some[-1].time
            without = MemoryStore()
            process(made, [rest], without)
            assert read_record(store, "c2").state == read_record(without, "c2").state
            again = process(made, [[some[held_back]]], store)[0]
            assert again == {**late, "duplicate": True}


def test_a_late_transaction_is_scored_with_the_counterparty_of_its_time() -> None:
    made = detector("handbook")
    some = transactions_of("handbook")
    busiest = max(
        {one.counterparties for one in some},
        key=lambda named: sum(one.counterparties == named for one in some),
    )
    own = [one for one in some if one.counterparties == busiest][:20]
    held_back = own[9]
    rest = [one for one in own if one is not held_back] + [
        replace(own[-1], id="x", customer=held_back.customer)
    ]
    store = MemoryStore()
    process(made, [rest], store)
    [late] = process(made, [[held_back]], store)
    assert late["late"]
    assert late["counterparty_sources"] == {"TERMINAL_ID": "logged"}
    expected, _ = score_by_hand(made, own[:10])
    assert late["belief"] == pytest.approx(list(expected[-1].belief), abs=1e-12)


def test_many_late_transactions_of_one_time_get_the_same_belief() -> None:
    made = detector("shop")
    one = next(one for one in transactions_of("shop") if one.counterparties == (None,))
    first, last = changed(one, id="first", at=0.0), changed(one, id="last", at=1e6)
    store = MemoryStore()
    process(made, [[first, last]], store)
    late = process(made, [[changed(one, id=f"late {i}", at=5000.0)] for i in range(120)], store)
    assert {(answer["belief_source"], answer["n_seen"]) for answer in late} == {("logged", 2)}
    assert len({tuple(answer["belief"]) for answer in late}) == 1


def test_a_late_transaction_does_not_see_the_counterpartys_future() -> None:
    made, some = detector("handbook"), transactions_of("handbook")
    form = TransactionDecoder(made)

    def at(customer: str, time: float) -> Transaction:
        sent = json.loads(some[0].body) | {
            "CUSTOMER_ID": customer,
            "TERMINAL_ID": "7",
            "TX_DATETIME": made.calibration_.time_range[0] + time,
            "TRANSACTION_ID": f"{customer}{time}",
        }
        return form.decode(json.dumps(sent).encode())

    async def go() -> dict[str, Any]:
        updater = BeliefUpdater(MemoryStore())
        await updater.process_batch(
            made,
            [
                at("a", 10.0),
                *(at("b", 20.0 + 100 * i) for i in range(30)),
                at("c", 5000.0),
                at("d", 12.0),
            ],
        )
        await apply_label(
            updater, made, "a", "a10.0", 1
        )  # which says of a transaction at 10 what the record is now
        [late] = await updater.process_batch(made, [at("c", 15.0)])
        return decode_response(late)

    late = asyncio.run(go())
    expected, _ = score_by_hand(made, [at("a", 10.0), at("c", 15.0)])
    assert late["counterparty_sources"] == {"TERMINAL_ID": "logged"}
    assert late["probability"] == pytest.approx(expected[-1].probability, abs=1e-12)
    assert [(why["text"], why["log_odds"]) for why in late["reasons"]] == [
        (why.text, why.log_odds) for why in expected[-1].reasons
    ]


@chains
def test_late_transactions_can_be_applied_or_refused(chain: dict[str, str]) -> None:
    made = detector("shop", **chain)
    some = [one for one in transactions_of("shop", made=made) if one.customer == "c3"][:6]
    mixed = [some[0], some[2], some[1], *some[3:]]
    store = MemoryStore()
    applied = process(made, [mixed], store, late="apply")
    _, states = score_by_hand(made, mixed)
    assert [one["late"] for one in applied] == [False, False, True, False, False, False]
    assert read_record(store, "c3").state == states[customer_key("c3")]

    async def refused() -> list[ScoredResponse | Exception]:
        return await BeliefUpdater(MemoryStore(), UpdatePolicy(late="refuse")).process_batch(
            made, mixed
        )

    found = asyncio.run(refused())
    assert isinstance(found[2], LateTransactionError)
    assert [isinstance(one, ScoredResponse) for one in found] == [
        True,
        True,
        False,
        True,
        True,
        True,
    ]


# --- other models


@chains
def test_a_belief_of_another_model_is_rebuilt_or_restarted(chain: dict[str, str]) -> None:
    old, new = detector("ieee"), detector("ieee", "point", **chain)
    some = transactions_of("ieee", 150)
    store = MemoryStore()
    process(old, [some[:-20]], store)
    answers = process(new, [some[-20:]], store)
    fresh = process(new, [some], MemoryStore())[-20:]
    known = {one.customer for one in some[:-20]}
    for one, answer, expected in zip(some[-20:], answers, fresh, strict=True):
        assert answer["belief"] == expected["belief"]
        assert answer["n_seen"] == expected["n_seen"]
        assert answer["model"] == new.digest_
        assert answer["belief_source"] in (
            ("rebuilt", "stored") if one.customer in known else ("new", "stored")
        )
    assert "rebuilt" in {answer["belief_source"] for answer in answers}

    store = MemoryStore()
    process(old, [some[:-20]], store)
    asyncio.run(store.delete_entries_before(np.inf, 10**6))
    for one, answer in zip(some[-20:], process(new, [some[-20:]], store), strict=True):
        if answer["belief_source"] == "restarted":
            assert one.customer in known
            assert answer["n_seen"] == 1
            break
    else:
        pytest.fail("no belief was restarted")


def test_a_counterparty_is_rebuilt_exactly() -> None:
    old, new = detector("handbook"), detector("handbook", "point")
    some = transactions_of("handbook", 300)
    store, fresh = MemoryStore(), MemoryStore()
    process(old, [some[:-1]], store)
    process(new, [some[:-1]], fresh)
    [answer] = process(new, [[some[-1]]], store)
    process(new, [[some[-1]]], fresh)
    assert answer["counterparty_sources"] == {"TERMINAL_ID": "rebuilt"}
    key = counterparty_key("TERMINAL_ID", str(some[-1].counterparties[0]))
    assert read_records(store)[key].state == read_records(fresh)[key].state


@pytest.mark.parametrize("chain", [PER_ROW, CONTINUOUS], ids=["per row", "continuous"])
def test_a_rebuild_includes_labels(chain: dict[str, str]) -> None:
    old, new = detector("shop"), detector("shop", "point", **chain)
    some = [
        one
        for one in transactions_of("shop")
        if one.customer == "c1" and one.counterparties != (None,)
    ][:8]
    store, fresh = MemoryStore(), MemoryStore()

    async def go(made: Detector, store: MemoryStore, policy: UpdatePolicy = UpdatePolicy()) -> None:  # noqa: B008
        updater = BeliefUpdater(store, policy)
        await updater.process_batch(made, some[:-1])
        await apply_label(updater, made, "c1", some[-2].id, 1)

    asyncio.run(go(old, store))
    asyncio.run(go(new, fresh))
    [answer] = process(new, [[some[-1]]], store)
    process(new, [[some[-1]]], fresh)
    assert answer["belief_source"] == "rebuilt"
    if some[-1].counterparties in {one.counterparties for one in some[:-1]}:
        assert answer["counterparty_sources"] == {"shop": "rebuilt"}
    key = counterparty_key("shop", str(some[-2].counterparties[0]))
    if some[-1].counterparties == some[-2].counterparties:
        assert read_records(store)[key].state == read_records(fresh)[key].state
    [untaught] = process(new, [some], MemoryStore())[-1:]
    assert answer["belief"] != untaught["belief"]


def test_a_label_right_after_a_new_model_is_not_lost() -> None:
    old, new = detector("shop"), detector("shop", "point")
    some = [
        one
        for one in transactions_of("shop")
        if one.customer == "c1" and one.counterparties != (None,)
    ][:4]
    store, fresh = MemoryStore(), MemoryStore()

    async def go(first: Detector, store: MemoryStore) -> Any:
        updater = BeliefUpdater(store)
        await updater.process_batch(first, some)
        return await apply_label(updater, new, "c1", some[-1].id, 1)

    outcome = asyncio.run(go(old, store))
    asyncio.run(go(new, fresh))
    assert (outcome.belief, outcome.counterparties["shop"]) == ("conditioned", "fraud reported")
    key = counterparty_key("shop", str(some[-1].counterparties[0]))
    assert read_records(store)[key].state == read_records(fresh)[key].state


def test_a_late_transaction_after_a_new_model_gets_a_rebuilt_belief() -> None:
    old, new = detector("ieee"), detector("ieee", "point")
    own = transactions_of("ieee", 300)
    busiest = max(
        {one.customer for one in own}, key=lambda name: sum(one.customer == name for one in own)
    )
    own = [one for one in own if one.customer == busiest]
    store = MemoryStore()
    process(old, [[*own[:-2], own[-1]]], store)
    [late] = process(new, [[own[-2]]], store)
    if own[-2].time < own[-1].time:
        expected, _ = score_by_hand(new, own[:-1])
        assert (late["late"], late["belief_source"]) == (True, "rebuilt")
        assert late["belief"] == list(expected[-1].belief)


def test_a_damaged_record_fails_only_its_customer() -> None:
    made, some = detector("shop"), transactions_of("shop", 30)
    for damage in (
        b"\xff\xfe",
        b"\x96\x01\xa1\xff",
        pack_record(Record(1, made.digest_, 0.0, 1, (), b"short")),
    ):
        store = MemoryStore()

        async def go(
            store: MemoryStore = store, damage: bytes = damage
        ) -> list[ScoredResponse | Exception]:
            assert await store.write(
                [WriteGroup([RecordWrite(customer_key(some[0].customer), 0, damage)])]
            )
            return await BeliefUpdater(store).process_batch(made, some)

        found = asyncio.run(go())
        for one, answer in zip(some, found, strict=True):
            assert isinstance(
                answer, CorruptRecordError if one.customer == some[0].customer else ScoredResponse
            ), answer


def test_the_first_response_is_found_after_many_labels() -> None:
    made, own = (
        detector("shop"),
        [one for one in transactions_of("shop") if one.customer == "c1"][:20],
    )

    async def go() -> tuple[Any, ...]:
        updater = BeliefUpdater(MemoryStore(), UpdatePolicy(late="apply"))
        first, *_ = [(await updater.process_batch(made, [one]))[0] for one in own]
        outcomes = [
            await apply_label(updater, made, "c1", own[0].id, (i + 1) % 2) for i in range(120)
        ]
        return first, outcomes, (await updater.process_batch(made, [own[0]]))[0]

    first, outcomes, again = asyncio.run(go())
    assert all(outcome.changed for outcome in outcomes)
    assert decode_response(again) == decode_response(first) | {"duplicate": True}


def test_the_latest_transaction_counts_once_after_thousands_of_late_ones() -> None:
    made, one = (
        detector("shop"),
        next(one for one in transactions_of("shop") if one.customer == "c1"),
    )
    late = [replace(one, id=f"late {i}", time=one.time - 5000.0 + i / 10) for i in range(4100)]
    store = MemoryStore()
    batches = [[one], *([late[i : i + 500] for i in range(0, len(late), 500)]), [one]]
    first, *others, again = process(made, batches, store, n_reasons=0)
    assert all(answer["late"] for answer in others)
    assert again == first | {"duplicate": True}


def test_a_log_of_another_schema_restarts_beliefs() -> None:
    made = detector("ieee")
    some = transactions_of("ieee", 30)
    store = MemoryStore()

    async def go() -> list[ScoredResponse | Exception]:
        updater = BeliefUpdater(store)
        other = detector("shop")
        form = TransactionDecoder(other)
        await updater.process_batch(
            other,
            [form.decode(json.dumps({"id": "1", "who": some[0].customer, "at": 5.0}).encode())],
        )
        return await updater.process_batch(made, some)

    answers = [decode_response(one) for one in asyncio.run(go())]
    assert answers[0]["belief_source"] == "restarted"
    assert {one["belief_source"] for one in answers[1:]} <= {"new", "stored"}


# --- refusals and rivals


@pytest.mark.parametrize("problem", [DataError("column 'paid': too much"), ZeroDivisionError()])
def test_a_transaction_that_cannot_be_scored_fails_alone(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, some = detector("shop"), transactions_of("shop", 10)
    advance = LiveScorer.advance

    def fail_at_the_fifth(self: LiveScorer, states: Any, rows: Any, *more: Any) -> Any:
        if any(row is some[4].row for row in rows):
            raise problem
        return advance(self, states, rows, *more)

    monkeypatch.setattr(LiveScorer, "advance", fail_at_the_fifth)

    async def go() -> list[ScoredResponse | Exception]:
        return await BeliefUpdater(MemoryStore()).process_batch(made, some)

    found = asyncio.run(go())
    if isinstance(problem, DataError):
        assert isinstance(found[4], FieldError)
        assert found[4].field == "paid"
    else:
        assert found[4] is problem
    monkeypatch.undo()
    plain = process(made, [[*some[:4], *some[5:]]])
    assert [
        decode_response(one)["probability"] for one in found if isinstance(one, ScoredResponse)
    ] == [one["probability"] for one in plain]


class Contested(MemoryStore):
    """Somebody else writes first, a few times."""

    def __init__(self, times: int, rival: Transaction, made: Detector) -> None:
        super().__init__()
        self.times, self.rival, self.made = times, rival, made

    async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
        if self.times > 0:
            self.times -= 1
            await BeliefUpdater(self).process_batch(
                self.made, [replace(self.rival, id=f"rival {self.times}")]
            )
        return await super().write(groups)


def test_conflicting_writes_are_retried_and_count_once() -> None:
    made, one = detector("shop"), transactions_of("shop", 1)[0]

    class Once(Contested):
        busy = False

        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            if self.busy:
                return await MemoryStore.write(self, groups)
            self.busy = True
            try:
                return await super().write(groups)
            finally:
                self.busy = False

    store = Once(3, one, made)
    [answer] = process(made, [[one]], store)
    assert answer["n_seen"] == 4
    assert count_entries(store) == 4

    class Busy(MemoryStore):
        """Somebody else has one of the customers in hand for a while."""

        tries = 0
        sizes: ClassVar[list[int]] = []

        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            self.tries += 1
            self.sizes.append(sum(len(group.entries) for group in groups))
            theirs = [
                any(change.key == one.keys[0] for change in group.writes) and self.tries < 4
                for group in groups
            ]
            written = iter(
                await super().write(
                    [group for group, wait in zip(groups, theirs, strict=True) if not wait]
                )
            )
            return [False if wait else next(written) for wait in theirs]

    lonely = [replace(other, counterparties=(None,)) for other in transactions_of("shop", 30)]
    theirs = sum(other.customer == one.customer for other in lonely)
    store = Busy()
    answers = process(made, [lonely], store)
    assert store.sizes == [
        30,
        theirs,
        theirs,
        theirs,
    ]  # who is not in the way of others is not tried again
    assert [answer["probability"] for answer in answers] == [
        score.probability for score in score_by_hand(made, lonely)[0]
    ]

    class Failing(Busy):
        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            if self.tries:
                raise StoreError("gone")
            return await super().write(groups)

    found = asyncio.run(BeliefUpdater(Failing()).process_batch(made, lonely))
    assert [isinstance(given, StoreError) for given in found] == [
        other.customer == one.customer for other in lonely
    ]
    assert 0 < theirs < len(lonely)  # what was written is answered, though the rest cannot be

    class Hopeless(MemoryStore):
        async def write(self, groups: Sequence[WriteGroup]) -> list[bool]:
            return [False] * len(groups)

    with pytest.raises(StoreError, match="in a row"):
        process(made, [[one]], Hopeless())
