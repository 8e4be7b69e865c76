"""Reasons: they add up to the log odds of a forward step, none is lost, all have text."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.features.sample_data import DAY, SHOP, handbook, ieee, of_frame, shop, shop_frame
from tests.scoring.detectors import (
    EVERY,
    data_of,
    detector,
    forward,
    log_terms,
    model_of,
    replay_scores,
    time_split,
)
from turncoat import ConfigError, DataError, Detector
from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.data.schema import Schema
from turncoat.features import Features
from turncoat.features.plan import FeaturePlan
from turncoat.models.live import LogOddsContributions
from turncoat.scoring import DetectorState, Score
from turncoat.scoring.descriptions import (
    AVERAGE,
    HISTORY,
    OTHERS,
    DescribedRow,
    FeatureDescriber,
    Sources,
)
from turncoat.scoring.reasons import Reason, list_reasons

CUSTOMERS = 3
NOTHING = TransactionRow(0.0, np.empty(0), (), (), ())


def total(score: Score) -> float:
    return math.fsum(reason.log_odds for reason in score.reasons)


def expected_log_odds(made: Detector, data: str) -> tuple[np.ndarray, list[float], np.ndarray]:
    """Rows of some customers, with the log odds of the fraud regime against its rival."""
    transactions = data_of(data).transactions
    panel = made.features_.transform(transactions)
    star = made.regimes.fraud_state
    rows, odds, missing = [], [], []
    for u in range(CUSTOMERS):
        own = np.arange(panel.offsets[u], min(panel.offsets[u + 1], panel.offsets[u] + 12))
        beliefs = forward(*log_terms(made.model_, panel, own))
        odds += [row[star] - np.delete(row, star).max() for row in beliefs]
        rows += own.tolist()
        missing += (
            np.isnan(panel.continuous[own]).any(axis=1) | (panel.categorical[own] < 0).any(axis=1)
        ).tolist()
    return np.array(rows), odds, np.array(missing)


CASES = [
    ("shop", *case, "per-row")
    for case in product(
        ("point", "expected-log", "predictive"), ("engineered", "processed"), (1.0, 5.0)
    )
]
CASES += [
    ("handbook", "expected-log", "engineered", 1.0, "per-row"),
    ("shop", "point", "processed", 1.0, "continuous"),
    ("shop", "expected-log", "engineered", 5.0, "continuous"),
    ("shop", "predictive", "engineered", 1.0, "continuous"),
]


@pytest.mark.parametrize(("data", "kind", "features", "temperature", "transitions"), CASES)
def test_reasons_add_up_to_the_log_odds(
    data: str, kind: str, features: str, temperature: float, transitions: str
) -> None:
    """First and later transactions, missing cells, all reasons or the strongest."""
    made = detector(data, kind, features, temperature=temperature, transitions=transitions)
    rows, odds, missing = expected_log_odds(made, data)
    live = replay_scores(made, data_of(data), n_reasons=EVERY)
    few = replay_scores(made, data_of(data), n_reasons=2)
    assert {live[i].n_seen for i in rows} > {1, 2}
    assert missing.any()
    np.testing.assert_allclose([total(live[i]) for i in rows], odds, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose([total(few[i]) for i in rows], odds, rtol=1e-8, atol=1e-9)
    for i in rows:
        belief = np.array(live[i].belief)
        star = made.regimes.fraud_state
        rival = np.delete(belief, star).max()
        if min(belief[star], rival) > 1e-290:
            assert total(live[i]) == pytest.approx(
                math.log(belief[star] / rival), rel=1e-8, abs=1e-8
            )


def test_reasons_of_hundreds_of_columns_add_up_too() -> None:
    made, data = detector("ieee", "expected-log"), data_of("ieee")
    transactions = data.transactions
    longest = int(np.argmax(np.diff(transactions.offsets)))
    own = np.arange(transactions.offsets[longest], transactions.offsets[longest] + 4)
    panel = made.features_.transform(transactions)
    beliefs = forward(*log_terms(made.model_, panel, own))
    star = made.regimes.fraud_state
    state = DetectorState()
    for i, belief in zip(own, beliefs, strict=True):
        state, score = made.score_one(state, data.rows[transactions.file_rows[i]], n_reasons=EVERY)
        assert total(score) == pytest.approx(belief[star] - np.delete(belief, star).max(), rel=1e-8)
        assert len(score.reasons) == len({reason.source for reason in score.reasons}) > 300


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_explained_paths_add_up_to_their_beliefs(transitions: str) -> None:
    """In batch, where the belief before a row is known to the working precision."""
    made = detector("shop", "predictive", precision="float64", transitions=transitions)
    transactions = data_of("shop").transactions
    star = made.regimes.fraud_state
    for _, score in made.explain(transactions, "c1"):
        belief = np.array(score.belief)
        assert total(score) == pytest.approx(
            math.log(belief[star] / np.delete(belief, star).max()), rel=1e-8, abs=1e-8
        )


def test_a_ranker_or_many_regimes_do_not_change_what_reasons_mean() -> None:
    made = detector("shop", "point", n_states=6)
    star, checked = made.regimes.fraud_state, 0
    for row in data_of("shop").rows[:40]:
        _, score = made.score_one(None, row, n_reasons=EVERY)
        belief = np.array(score.belief)
        if min(belief[star], np.delete(belief, star).max()) > 1e-290:
            assert total(score) == pytest.approx(
                math.log(belief[star] / np.delete(belief, star).max()), rel=1e-8
            )
            checked += 1
    assert checked > 3


PLANS = {
    "shop": lambda: Features(min_count=4).fit(shop(700, 3).transactions),
    "shop, every flag": lambda: Features(missing_flags="all", min_count=4).fit(
        shop(700, 3).transactions
    ),
    "shop, processed": lambda: Features("processed").fit(shop(700, 3).transactions),
    "handbook": lambda: Features().fit(handbook(2500, 4).transactions),
    "ieee": lambda: Features().fit(ieee(700, 2).transactions),
    "ieee, processed": lambda: Features("processed", missing_flags="all").fit(
        ieee(700, 2).transactions
    ),
}


PLAIN_ROWS = {"shop, every flag": lambda: shop(700, 3), "handbook": lambda: handbook(2500, 4)}


@cache
def plan_of(name: str) -> FeaturePlan:
    return PLANS[name]().plan


def made_of(history: float, cells: Any, codes: Any, average: float = 0.0) -> LogOddsContributions:
    """Of one row."""
    terms = (np.array([cells], np.float64), np.array([codes], np.float64))
    return LogOddsContributions(0, np.array([1]), np.array([history]), *terms, np.array([average]))


def described(sources: Sources, words: Any) -> Any:
    return SimpleNamespace(sources=sources, describe=words)


def named(
    made: LogOddsContributions, sources: Sources, most: int | None = None
) -> tuple[Reason, ...]:
    """Reasons of one row whose words are the sources' names."""
    words = [lambda _, name=name: f"{name}!" for name in sources.names]
    (found,) = list_reasons(
        made, described(sources, words), [DescribedRow(made.cells[0], made.codes[0], NOTHING)], most
    )
    return found


@pytest.mark.parametrize("name", list(PLANS))
def test_every_feature_has_one_source_and_none_is_lost(name: str) -> None:
    plan = plan_of(name)
    sources = FeatureDescriber(plan).sources
    of_continuous, of_categorical = sources.continuous, sources.categorical
    assert len(of_continuous) == len(plan.continuous)
    assert len(of_categorical) == len(plan.categorical)
    rng = np.random.default_rng(0)
    made = made_of(
        0.25, rng.normal(size=len(plan.continuous)), rng.normal(size=len(plan.categorical))
    )
    found = named(made, sources)
    assert math.fsum(reason.log_odds for reason in found) == pytest.approx(
        made.log_odds[0], abs=1e-9
    )
    by_source = {reason.source: reason.log_odds for reason in found}
    assert len(by_source) == len(found)
    for source, log_odds in by_source.items():
        terms = [t for s, t in zip(of_continuous, made.cells[0], strict=True) if s == source]
        terms += [t for s, t in zip(of_categorical, made.codes[0], strict=True) if s == source]
        assert log_odds == pytest.approx(math.fsum(terms) + (0.25 if source == HISTORY else 0.0))


def test_features_go_where_a_person_would_look_for_them() -> None:
    plan = plan_of("shop, every flag")
    sources = FeatureDescriber(plan).sources
    of_continuous = dict(zip(plan.continuous, sources.continuous, strict=True))
    of_categorical = dict(zip(plan.categorical, sources.categorical, strict=True))
    expected = {
        "paid": "amount",
        "amount_to_mean": "amount",
        "age": "age",
        "count_day": "pace",
        "sum_week": "pace",
        "since_last": "pace",
        "hour_cos": "hour",
        "hour_habit": "hour",
        "weekday_habit": "weekday",
        "n_missing": "missing fields",
        "counterparty_risk_month": "shop",
    }
    assert {name: of_continuous[name] for name in expected} == expected
    expected = {
        "kind": "kind",
        "device": "device",
        "no_device": "device",
        "no_paid": "amount",
        "no_age": "age",
        "new_device": "device",
        "changed_town": "town",
        "new_town": "town",
        "is_first": "first transaction",
        "weekday": "weekday",
    }
    assert {name: of_categorical[name] for name in expected} == expected


def test_the_strongest_come_first_and_the_rest_are_counted() -> None:
    made = made_of(-3.0, [1.0, -5.0, 0.5], [0.25])
    names = Sources(("a", "b", "a"), ("c",))
    every = named(made, names)
    assert [(r.source, r.log_odds) for r in every] == [
        ("b", -5.0),
        (HISTORY, -3.0),
        ("a", 1.5),
        ("c", 0.25),
    ]
    few = named(made, names, 2)
    assert [r.source for r in few] == ["b", HISTORY, OTHERS]
    assert few[-1].log_odds == 1.75
    assert "2 other" in few[-1].text
    assert str(Reason("b", "b!", 1.94)) == "b!: +1.9"


def plain_reasons(
    made: LogOddsContributions, sources: Sources, most: int | None
) -> list[tuple[str, float]]:
    """Every source in a dictionary, all of them sorted."""
    totals = {HISTORY: float(made.history[0])} | (
        {AVERAGE: float(made.rest[0])} if made.rest[0] else {}
    )
    for names, terms in ((sources.continuous, made.cells[0]), (sources.categorical, made.codes[0])):
        for name, term in zip(names, terms.tolist(), strict=True):
            totals[name] = totals.get(name, 0.0) + term
    ranked = sorted(totals.items(), key=lambda item: (-abs(item[1]), item[0]))
    shown = ranked if most is None else ranked[:most]
    rest = ranked[len(shown) :]
    return shown + (
        [(f"{len(rest)} other facts together", math.fsum(term for _, term in rest))] if rest else []
    )


few_numbers = st.sampled_from([0.0, 1.0, -1.0, 0.5, -2.0, 1e-9])  # so that many are equal


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), few_numbers), max_size=30),
    st.lists(st.tuples(st.sampled_from("efghijkl"), st.floats(-5, 5)), max_size=10),
    st.tuples(few_numbers, few_numbers),
    st.one_of(st.none(), st.integers(0, 20)),
)
def test_the_strongest_are_those_of_a_whole_sort(
    numbers: list[tuple[str, float]],
    codes: list[tuple[str, float]],
    others: tuple[float, float],
    most: int | None,
) -> None:
    history, average = others
    sources = Sources(tuple(name for name, _ in numbers), tuple(name for name, _ in codes))
    made = made_of(history, *([term for _, term in part] for part in (numbers, codes)), average)
    found = named(made, sources, most)
    expected = plain_reasons(made, sources, most)
    assert [reason.text if reason.source == OTHERS else reason.source for reason in found] == [
        name for name, _ in expected
    ]
    np.testing.assert_allclose(
        [reason.log_odds for reason in found], [term for _, term in expected], rtol=0, atol=1e-12
    )


def test_rows_do_not_mix() -> None:
    rng = np.random.default_rng(1)
    sources = Sources(tuple("abcab"), tuple("cd"))
    cells, codes, history, rest = (
        rng.normal(size=(6, 5)),
        rng.normal(size=(6, 2)),
        rng.normal(size=6),
        np.arange(6) % 2.0,
    )
    words = [lambda row, name=name: f"{name} {row.continuous[0]}" for name in sources.names]
    together = LogOddsContributions(0, np.ones(6, np.int64), history, cells, codes, rest)
    found = list_reasons(
        together,
        described(sources, words),
        [DescribedRow(*row, NOTHING) for row in zip(cells, codes, strict=True)],
        3,
    )
    for i, of_row in enumerate(found):
        alone = LogOddsContributions(
            0,
            np.array([1]),
            history[i : i + 1],
            cells[i : i + 1],
            codes[i : i + 1],
            rest[i : i + 1],
        )
        assert list_reasons(
            alone, described(sources, words), [DescribedRow(cells[i], codes[i], NOTHING)], 3
        ) == [of_row]


# ---------- words


def story_file() -> Any:
    """One customer who pays about 20 from a phone at 10 o'clock, and others for the vocabulary."""
    rng = np.random.default_rng(0)
    n = 400
    return pl.DataFrame(
        {
            "who": ["me"] * 30 + [f"c{k}" for k in rng.integers(20, size=n - 30)],
            "at": np.r_[
                np.arange(30) * DAY + 10 * 3600.0, np.sort(rng.uniform(0, 60 * DAY, n - 30))
            ],
            "paid": np.r_[np.full(30, 20.0) + rng.normal(0, 0.5, 30), rng.lognormal(3, 1, n - 30)],
            "age": np.where(rng.random(n) < 0.2, np.nan, rng.normal(40, 10, n)),
            "kind": [None if x < 0.1 else 7 if x < 0.95 else 12 for x in rng.random(n)],
            "device": ["phone"] * 30
            + ["tablet" if x < 0.5 else "phone" if x < 0.97 else "odd" for x in rng.random(n - 30)],
            "town": ["Oslo"] * 30 + ["Oslo" if x < 0.5 else "Bergen" for x in rng.random(n - 30)],
            "shop": [f"s{k}" for k in rng.integers(6, size=n)],
            "fraud": (rng.random(n) < 0.2).astype(int),
            "id": np.arange(n),
        }
    )


@pytest.fixture(scope="module")
def story() -> tuple[Detector, DetectorState]:
    data = of_frame(story_file())
    made = Detector(Features(missing_flags="all", min_count=20), model_of("expected-log")).fit(
        data.transactions, time_split(data.transactions)
    )
    state = DetectorState()
    for row in data.rows[:30]:
        state, _ = made.score_one(DetectorState(state.customer), row)
    return made, DetectorState(state.customer)


def told(
    story: tuple[Detector, DetectorState], new: bool = False, **changes: Any
) -> dict[str, str]:
    made, state = story
    row = {
        "who": "me",
        "at": 30 * DAY + 10 * 3600,
        "paid": 20.0,
        "age": 40.0,
        "kind": 7,
        "device": "phone",
        "town": "Oslo",
        "shop": "s1",
    }
    _, score = made.score_one(None if new else state, row | changes, n_reasons=EVERY)
    return {reason.source: reason.text for reason in score.reasons}


def test_words_say_what_is_known_of_a_counterparty(story: tuple[Detector, DetectorState]) -> None:
    made, _ = story
    state = DetectorState()
    row = {
        "who": "me",
        "paid": 20.0,
        "age": 40.0,
        "kind": 7,
        "device": "phone",
        "town": "Oslo",
        "shop": "s1",
    }
    texts = []
    for day in range(15):
        state, score = made.score_one(state, row | {"at": day * DAY}, n_reasons=EVERY)
        texts.append(next(reason.text for reason in score.reasons if reason.source == "shop"))
    assert {"with no known outcomes" in text for text in texts[:7]} == {
        True
    }  # a label takes a week
    assert re.fullmatch(r"shop s1, fraud rate there about \d+\.\d%", texts[-1])
    endings = []
    for day in range(15, 17):
        told = made.live.report_label("shop", state.counterparties[0], (day - 1) * DAY, 1)
        state = DetectorState(state.customer, (told,))
        _, score = made.score_one(state, row | {"at": (day + 9) * DAY}, n_reasons=EVERY)
        text = next(reason.text for reason in score.reasons if reason.source == "shop")
        endings.append(text.partition("%")[2])
        state, _ = made.score_one(state, row | {"at": day * DAY}, n_reasons=EVERY)
    assert endings == [", the last one known was fraud", ", the last 2 known were fraud"]


def test_words_say_what_a_person_would_want_to_know(story: tuple[Detector, DetectorState]) -> None:
    usual = told(story)
    assert usual["amount"] == "amount 20, 1× this customer's usual (about 20.1)"
    assert usual["device"] == "device phone"
    assert usual["kind"] == "kind 7"
    assert usual["age"] == "age 40"
    assert usual["hour"] == "at 10:00, usual for this customer"
    assert usual["first transaction"] == "not the first transaction"
    assert usual["pace"].startswith("1.0 days after the last")
    assert usual["shop"] == "shop s1, with no known outcomes"
    assert usual["history"] == "history"
    assert told(story, new=True)["history"] == "no history yet"
    odd = told(story, paid=4422.5, device="tablet", town="Bergen", at=30 * DAY + 22 * 3600)
    assert odd["amount"] == "amount 4,422.50, 220× this customer's usual (about 20.1)"
    assert odd["device"] == "device tablet, new for this customer"
    assert odd["town"] == "town Bergen, new for this customer"
    assert odd["hour"] == "at 22:00, unusual for this customer"
    gone = told(story, paid=None, age=None, kind=None, device=None)
    assert gone["amount"] == "amount missing"
    assert gone["age"] == "age missing"
    assert gone["kind"] == "kind missing"
    assert gone["device"].startswith("device missing")
    assert gone["missing fields"] == "4 fields missing"
    assert told(story, kind=12)["kind"] == "kind 12, rare"
    assert told(story, kind=99)["kind"] == "kind 99, not in the training data"
    first = told(story, new=True)
    assert first["first transaction"] == "first transaction of this customer"
    assert first["pace"] == "no earlier transaction"
    assert first["amount"] == "amount 20"


def test_something_used_before_but_not_last_time(story: tuple[Detector, DetectorState]) -> None:
    made, state = story
    row = {"who": "me", "at": 30 * DAY, "paid": 20.0, "device": "tablet", "town": "Oslo"}
    state, _ = made.score_one(state, row)
    _, score = made.score_one(state, row | {"at": 31 * DAY, "device": "phone"}, n_reasons=EVERY)
    assert "device phone, changed" in [reason.text for reason in score.reasons]


@pytest.mark.parametrize("minute", [0, 1, 59, 719, 720, 840, 1020, 1439])
def test_the_clock_is_right_to_the_minute(
    story: tuple[Detector, DetectorState], minute: int
) -> None:
    assert told(story, at=31 * DAY + 60 * minute)["hour"].startswith(
        f"at {minute // 60:02d}:{minute % 60:02d}"
    )


def test_a_column_that_never_varied_is_only_called_missing_where_it_is() -> None:
    frame = story_file().with_columns(
        age=pl.when(pl.col("age").is_nan()).then(None).otherwise(40.0)
    )
    data = of_frame(frame)
    features = Features(missing_flags="all").fit(data.transactions)
    assert "age" not in features.feature_names[0]
    describer = FeatureDescriber(features.plan)
    describe = dict(zip(describer.sources.names, describer.describe, strict=True))["age"]
    for value, text in ((40.0, "age 40"), (None, "age missing")):
        given = data.rows[0] | {"age": value}
        _, row = features.step(None, given)
        assert describe(DescribedRow(*row, parse_row(features.plan.schema, given))) == text


anything = st.one_of(
    st.none(),
    st.floats(allow_infinity=False),
    st.sampled_from([1e300, -1e300, 1e15, -0.0, 5e-324, 0]),
)
names = st.one_of(
    st.none(),
    st.text(max_size=8),
    st.integers(),
    st.sampled_from(["phone", "tablet", "", "nan", 7, 404.0]),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "at": st.floats(-1e9, 4e9),
                "paid": anything,
                "age": anything,
                "kind": names,
                "device": names,
                "town": names,
                "shop": names,
            }
        ),
        min_size=1,
        max_size=4,
    )
)
def test_no_live_row_is_too_strange_for_words(
    story: tuple[Detector, DetectorState], rows: list[dict[str, Any]]
) -> None:
    """Any values give a score with reasons that add up, or a refusal of the row."""
    made, state = story
    for row in rows:
        try:
            state, score = made.score_one(DetectorState(state.customer), row, n_reasons=EVERY)
        except DataError:
            continue
        assert all(reason.text and reason.text == reason.text.strip() for reason in score.reasons)
        belief = np.array(score.belief)
        star = made.regimes.fraud_state
        if min(belief[star], np.delete(belief, star).max()) > 1e-290:
            assert total(score) == pytest.approx(
                math.log(belief[star] / np.delete(belief, star).max()), rel=1e-6, abs=1e-6
            )


cells = st.one_of(
    st.floats(width=32, allow_infinity=False),
    st.just(math.nan),
    st.sampled_from([1e15, -1e15, 1e5, -1e5, 0.0]),
)


@settings(max_examples=100, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", ["shop, every flag", "handbook"])
def test_no_feature_row_is_too_strange_for_words(name: str, data: st.DataObject) -> None:
    plan = plan_of(name)
    continuous = data.draw(
        st.lists(cells, min_size=len(plan.continuous), max_size=len(plan.continuous))
    )
    codes = [data.draw(st.integers(-1, size - 1)) for size in plan.n_categories]
    describer = FeatureDescriber(plan)
    given = PLAIN_ROWS[name]().transactions.take([0]).list_rows()[0]
    with np.errstate(over="ignore"):
        texts = [
            words(DescribedRow(np.array(continuous, np.float32), np.array(codes, np.int16), given))
            for words in describer.describe
        ]
    assert len(texts) == len(describer.sources.names)
    assert all(isinstance(text, str) and text for text in texts)


def test_columns_named_like_facts_keep_their_terms() -> None:
    """A file may use the names of engineered features for its own columns."""
    frame = story_file().rename(
        {"age": "hour", "kind": "pace", "town": "history", "device": "amount"}
    )
    schema = Schema(
        customer="who",
        time="at",
        continuous=("paid", "hour"),
        categorical=("pace", "amount"),
        amount="paid",
        label="fraud",
        id="id",
        counterparties=("shop",),
        tracked=("amount", "history"),
    )
    data = of_frame(frame, schema)
    made = Detector(Features(), model_of("point"), temperature=20.0).fit(
        data.transactions, time_split(data.transactions)
    )
    state, _ = made.score_one(None, data.rows[0])
    _, score = made.score_one(DetectorState(state.customer), data.rows[1], n_reasons=EVERY)
    belief = np.array(score.belief)
    star = made.regimes.fraud_state
    assert total(score) == pytest.approx(
        math.log(belief[star] / np.delete(belief, star).max()), rel=1e-8
    )
    told = {reason.source: reason.text for reason in score.reasons}
    assert told["amount"].startswith(f"amount {data.rows[1]['paid']}")
    assert told["amount column"].startswith("amount ")
    assert {"hour", "hour column", "pace", "pace column", "history", "history column"} <= set(told)
    assert told["history"] == "history"


@pytest.mark.parametrize(
    "name", ["weekday", "amount_z", "counterparty_risk_day", "new_device", "n_missing"]
)
def test_columns_that_have_the_name_of_a_fact_are_refused(name: str) -> None:
    schema = replace(SHOP, continuous=("paid", name))
    data = of_frame(shop_frame(80).rename({"age": name}), schema)
    with pytest.raises(
        ConfigError, match=f"columns '{name}' have the names of engineered features"
    ):
        Features().fit(data.transactions)
    assert name in Features("processed").fit(data.transactions).feature_names[0]


def test_schemas_without_amount_label_time_of_day_or_names() -> None:
    frame = story_file()
    for schema in (
        Schema(customer="who", time="at", continuous=("age",), label="fraud"),
        Schema(
            customer="who", time="at", categorical=("device",), label="fraud", tracked=("town",)
        ),
        Schema(
            customer="who",
            time="at",
            continuous=("paid",),
            amount="paid",
            label="fraud",
            counterparties=("shop",),
        ),
    ):
        data = of_frame(frame, schema)
        for kind in ("engineered", "processed"):
            made = Detector(Features(kind), model_of("point", 2)).fit(
                data.transactions, time_split(data.transactions)
            )
            _, score = made.score_one(None, data.rows[0], n_reasons=EVERY)
            assert all(reason.text for reason in score.reasons)
            belief = np.array(score.belief)
            star = made.regimes.fraud_state
            assert total(score) == pytest.approx(
                math.log(belief[star] / belief[1 - star]), rel=1e-8, abs=1e-8
            )


def test_the_last_few_are_explained_as_in_the_whole_path() -> None:
    made, data = detector(), data_of("shop")
    customer = str(data.transactions.keys[0])
    whole = made.explain(data.transactions, customer)
    assert made.explain(data.transactions, customer, last=2) == whole[-2:]
    assert made.explain(data.transactions, customer, last=len(whole) + 5) == whole


def test_days_of_the_week_have_names_where_times_are_dates() -> None:
    made, data = detector("handbook"), data_of("handbook")
    transactions = data.transactions
    customer = str(transactions.keys[np.diff(transactions.offsets).argmax()])
    own = slice(*transactions.offsets[np.diff(transactions.offsets).argmax() :][:2])
    expected = [f"{datetime.fromtimestamp(at, UTC):%A}" for at in transactions.times[own]]
    texts = [
        next(one.text for one in score.reasons if one.source == "weekday")
        for _, score in made.explain(transactions, customer)
    ]
    assert [text.partition(",")[0] for text in texts] == expected
    assert len(set(expected)) > 3


def test_days_of_the_week_are_counted_where_the_start_is_unknown(
    story: tuple[Detector, DetectorState],
) -> None:
    assert told(story, at=30 * DAY)["weekday"].startswith("day 3 of the file's week")
