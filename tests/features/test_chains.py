"""Two-sided chains as part of the features: records, labels that come late, and storage."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.linalg import expm

from tests.features.sample_data import (
    DAY,
    SHOP,
    STEP,
    Data,
    Due,
    at_once,
    just_before_it_counts,
    of_frame,
    report_label,
    shop,
    shop_frame,
)
from tests.features.test_storage import rewrite, rewrite_arrays
from turncoat.data.parsing import parse_row
from turncoat.data.reading import read
from turncoat.errors import BundleError, ConfigError, DataError
from turncoat.features import NEVER, UNKNOWN, Features, FeatureState, load_features
from turncoat.features.batch import compute_intruder_risk
from turncoat.features.chains import (
    INTRUDER,
    N_OWN,
    Chains,
    CompromiseChain,
    IntruderChain,
    count_causes,
)
from turncoat.numerics.intruder import (
    ARSINH,
    IDENTITY,
    N_HISTORY_GROUPS,
    N_SURPRISES,
    OUTPUTS,
    ROOT,
)

Array = np.ndarray
KNOWN_FRAUDS = OUTPUTS.index("known_frauds")
COMPROMISE, COMPROMISED, RUN_FRAUDS, RUN_DAYS = range(N_OWN, N_OWN + 4)
RISKS = [COMPROMISE, COMPROMISED]


def intruder_chain(
    scale: int = ARSINH, columns: tuple[str, ...] = ("paid", "age")
) -> IntruderChain:
    surprises = np.linspace(-2.0, 6.0, N_SURPRISES)
    log_ratios = np.stack([surprises * k / N_HISTORY_GROUPS for k in (1, 2, 3)])
    profiles = {
        "paid": (scale, 0.5, [3.0, 1.0, 2.0, 1.5], log_ratios),
        "age": (IDENTITY, 1.0, [40.0, 1.0, 2.0, 150.0], 0.4 * log_ratios),
    }
    chosen = (profiles[name] for name in columns)
    scales, units, priors, tables = map(np.array, zip(*chosen, strict=True))
    return IntruderChain(0.02, 0.2, 0.6, 0.03, 8, columns, scales, units, priors, tables)


COMPROMISES = CompromiseChain(0.02, 12.0, 0.5, 0.02, n_phases=2, memory_days=6.0)
CHAINS = Chains(intruder_chain(), (COMPROMISES,))


@cache
def fitted(delay: float = 2.0, maturity: float = 3.0) -> Features:
    schema = replace(SHOP, label_maturity_days=maturity)
    return Features(min_count=2, label_delay_days=delay).fit(
        replace(shop().transactions, schema=schema)
    )


@cache
def with_chains(delay: float = 2.0, maturity: float = 3.0) -> Features:
    return fitted(delay, maturity).add_chains(CHAINS)


def partly_labelled(maturity: float, share: float = 0.3, seed: int = 0) -> Data:
    """Transactions of shops, some without a label."""
    frame = shop_frame(500, seed, days=90.0)
    is_unknown = np.random.default_rng(seed).random(frame.height) < share
    data = of_frame(frame, replace(SHOP, label_maturity_days=maturity))
    labels = np.asarray(data.transactions.labels).copy()
    labels[is_unknown[data.transactions.file_rows]] = -1
    return replace(data, transactions=replace(data.transactions, labels=labels))


def causes_of(features: Features, data: Data) -> Array:
    causes = features.transform(data.transactions).causes
    assert causes is not None
    return np.asarray(causes)


def assert_same_bits(found: Array, expected: Array) -> None:
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    bits = [np.where(np.isnan(some), 0.0, some).view(np.int64) for some in (found, expected)]
    np.testing.assert_array_equal(*bits)


def replay(features: Features, data: Data, due: Due | None) -> Array:
    """Causes of every row as a live service finds them, in the order of the panel.

    Labels come with their rows, or with `due` are reported then, in the order of transactions.
    """
    t, schema = data.transactions, data.transactions.schema
    customers: dict[Any, bytes | None] = {}
    shops: dict[Any, bytes | None] = {}
    waiting: list[tuple[float, Any, Any, float, int, float]] = []
    times_of: dict[Any, list[float]] = {}  # of each customer's transactions
    found = np.empty((t.n_rows, count_causes(1)))
    for i in data.live_order:
        time, label, row = t.times[i], int(np.asarray(t.labels)[i]), data.rows[t.file_rows[i]]
        for report in [report for report in waiting if report[0] <= time]:
            waiting.remove(report)
            _, (who, nth), where, then, known, explained = report
            n_later = times_of[who][nth + 1 :].count(then)
            own = FeatureState(customers[who])
            customers[who] = features.report_own_label(own, then, known, n_later).customer
            if where is not None:
                shops[where] = features.report_label(
                    "shop", shops[where], then, known, explained=explained
                )
        who, where = t.customer_codes[i], row["shop"]
        state = FeatureState(customers.get(who), (shops.get(where),))
        told = label if due is None else UNKNOWN
        steps = features.step_batch([state], [parse_row(schema, row)], [told])
        found[i] = steps.causes[0]
        customers[who] = steps.states[0].customer
        times_of.setdefault(who, []).append(time)
        if where is not None:
            (shops[where],) = steps.states[0].counterparties
        if due is not None and label >= 0:
            row_of = who, len(times_of[who]) - 1
            waiting.append((due(time), row_of, where, time, label, float(found[i, INTRUDER])))
    return found


TIMES = [(0.0, 0.0), (2.0, 3.0), (7.0, 0.0), (1.5, 0.6)]


@pytest.mark.parametrize(("delay", "maturity"), TIMES)
def test_causes_of_a_file_and_of_single_rows_are_the_same_bits(
    delay: float, maturity: float
) -> None:
    features, data = with_chains(delay, maturity), partly_labelled(maturity)
    expected = causes_of(features, data)
    assert len(np.unique(expected[:, COMPROMISED])) > 100
    assert len(np.unique(expected[:, INTRUDER])) > 100
    assert_same_bits(replay(features, data, None), expected)


@pytest.mark.parametrize(("delay", "maturity"), TIMES)
@pytest.mark.parametrize("late", [False, True])
def test_labels_reported_before_they_count_give_the_same_bits(
    delay: float, maturity: float, late: bool
) -> None:
    features, data = with_chains(delay, maturity), partly_labelled(maturity)
    due = just_before_it_counts(delay) if late else at_once
    assert_same_bits(replay(features, data, due), causes_of(features, data))


def test_labels_reported_in_another_order_give_the_same_causes() -> None:
    features, data = with_chains(4.0, 3.0), partly_labelled(3.0)
    found = replay(features, data, lambda time: time + (time * 0.317 / DAY) % 1 * 4 * DAY)
    np.testing.assert_allclose(found, causes_of(features, data), rtol=1e-12, atol=1e-15)


def test_without_maturity_genuine_labels_need_not_be_reported() -> None:
    features, data = with_chains(2.0, 0.0), partly_labelled(0.0)
    labels = np.asarray(data.transactions.labels)
    genuine = replace(data, transactions=replace(data.transactions, labels=labels.clip(0)))
    found, expected = causes_of(features, data), causes_of(features, genuine)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_many_rows_in_one_batch_continue_each_others_records() -> None:
    features, data = with_chains(), partly_labelled(3.0)
    t, order = data.transactions, data.live_order
    rows = [data.rows[t.file_rows[i]] for i in order]
    last: dict[Any, int] = {}
    previous = np.full((len(rows), 2), -1)
    for k, (i, row) in enumerate(zip(order, rows, strict=True)):
        keys = ("who", t.customer_codes[i]), ("shop", row["shop"])
        previous[k] = [last.get(key, -1) for key in keys]
        last.update(dict.fromkeys(keys, k))
        last.pop(("shop", None), None)
    parsed = [parse_row(t.schema, row) for row in rows]
    labels = np.asarray(t.labels)[order].tolist()
    steps = features.step_batch([FeatureState()] * len(rows), parsed, labels, previous)
    found = np.empty_like(steps.causes)
    found[order] = steps.causes
    assert_same_bits(found, causes_of(features, data))


def test_chains_leave_the_features_as_they_are() -> None:
    data = partly_labelled(3.0)
    one, other = (some.transform(data.transactions) for some in (fitted(), with_chains()))
    np.testing.assert_array_equal(one.continuous, other.continuous)
    np.testing.assert_array_equal(one.categorical, other.categorical)
    assert one.causes is None
    assert other.causes is not None


def test_the_risk_of_intruders_can_be_had_alone() -> None:
    data = partly_labelled(3.0)
    alone = compute_intruder_risk(with_chains().plan, data.transactions)
    assert_same_bits(alone, causes_of(with_chains(), data)[:, INTRUDER].copy())
    assert (compute_intruder_risk(fitted().plan, data.transactions) == 0).all()
    unlabelled = replace(data.transactions, labels=None)
    assert not np.array_equal(alone, compute_intruder_risk(with_chains().plan, unlabelled))


def test_a_side_without_a_chain_is_no_cause() -> None:
    data = partly_labelled(3.0)
    both = causes_of(with_chains(), data)
    own = causes_of(fitted().add_chains(Chains(intruder=CHAINS.intruder)), data)
    np.testing.assert_array_equal(own[:, :N_OWN], both[:, :N_OWN])
    assert (own[:, RISKS] == 0).all()
    other = causes_of(fitted().add_chains(Chains(compromise=CHAINS.compromise)), data)
    assert (other[:, :N_OWN] == 0).all()
    assert (other[:, COMPROMISED] != both[:, COMPROMISED]).any()  # nothing explains a fraud away
    named = np.array([row["shop"] is not None for row in data.rows])[data.transactions.file_rows]
    assert (both[~named, N_OWN:] == 0).all()
    assert (both[named, COMPROMISED] > 0).all()


ROW = {"who": "c", "shop": "s", "paid": 20.0, "id": 1}


class Shop:
    """The record of one counterparty, whose customers are all new."""

    def __init__(self, features: Features) -> None:
        self.features = features
        self.state = FeatureState()

    def pay(self, day: float, label: int = UNKNOWN) -> Array:
        """The causes of a transaction."""
        row = parse_row(self.features.plan.schema, ROW | {"at": day * DAY})
        steps = self.features.step_batch([self.state], [row], [label])
        self.state = FeatureState(None, steps.states[0].counterparties)
        return steps.causes[0]

    def report(
        self, day: float, label: int, earlier: int = UNKNOWN, explained: float | None = None
    ) -> None:
        """A label becomes known."""
        usual = float(Shop(self.features).pay(0.0)[INTRUDER]) if explained is None else explained
        self.state = report_label(self.features, self.state, day * DAY, label, earlier, usual)

    @property
    def belief(self) -> float:
        """P(compromised) twenty days after the first transaction, without changing the record."""
        other = Shop(self.features)
        other.state = self.state
        return float(other.pay(20.5)[COMPROMISED])


PAID = [0.2, 0.7, 3.1, 4.4, 4.6, 8.0, 9.9, 13.0]
LABELS = [1, 0, 1, 1, 0, 0, 1, 0]


def pay_all(labels: list[int], features: Features | None = None) -> Shop:
    made = Shop(features or with_chains(2.0, 5.0))
    for day, label in zip(PAID, labels, strict=True):
        made.pay(day, label)
    return made


def test_labels_may_become_known_in_any_order() -> None:
    expected = pay_all(LABELS).belief
    hidden = [UNKNOWN if k in (0, 2, 3, 6) else label for k, label in enumerate(LABELS)]
    assert pay_all(hidden).belief != pytest.approx(expected, rel=1e-3)
    for order in permutations((0, 2, 3, 6)):
        made = pay_all(hidden)
        for k in order:
            made.report(PAID[k], LABELS[k])
        assert made.belief == pytest.approx(expected, rel=1e-12)


def test_a_label_of_a_row_that_was_not_to_have_one() -> None:
    hidden = [NEVER if k in (0, 3) else label for k, label in enumerate(LABELS)]
    made = pay_all(hidden)
    assert made.belief != pytest.approx(pay_all(LABELS).belief, rel=1e-3)
    for k in (3, 0):
        made.report(PAID[k], LABELS[k], NEVER)
    assert made.belief == pytest.approx(pay_all(LABELS).belief, rel=1e-12)


@pytest.mark.parametrize("k", [0, 2, 6])
def test_a_correction_has_the_effect_of_the_right_label_from_the_start(k: int) -> None:
    wrong = [0 if place == k else label for place, label in enumerate(LABELS)]
    made = pay_all(wrong)
    before = made.belief
    made.report(PAID[k], 1, earlier=0)
    assert made.belief == pytest.approx(pay_all(LABELS).belief, rel=1e-12)
    assert made.belief != pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize(("delay", "maturity"), TIMES)
def test_labels_within_the_memory_count_however_late(delay: float, maturity: float) -> None:
    """A label of a step up to the delay, the maturity and the memory ago has its full effect."""
    features = with_chains(delay, maturity)
    oldest = delay + maturity + COMPROMISES.memory_days
    for age in (0.0, 1.0, delay, delay + maturity, delay + maturity + 1.0, oldest - 1.0, oldest):
        made, expected, untold = Shop(features), Shop(features), Shop(features)
        for day in sorted({-40.0, -30.0, -age, -age / 2, 0.0}):
            for some in (made, expected, untold):
                is_told = day < -age or (day == -age and some is expected)
                some.pay(50.5 + day, UNKNOWN if not is_told else 0 if day < -age else 1)
        made.report(50.5 - age, 1)
        found, known, without = (some.pay(53.5 + delay) for some in (made, expected, untold))
        np.testing.assert_allclose(found[RISKS], known[RISKS], rtol=1e-12)
        assert found[COMPROMISED] != pytest.approx(without[COMPROMISED], rel=1e-3)


def test_labels_older_than_the_memory_change_nothing() -> None:
    features = with_chains(2.0, 3.0)
    for age, counts in ((2 + 3 + 6, True), (2 + 3 + 6 + 10, False), (300, False)):
        made, told = Shop(features), Shop(features)
        for some in (made, told):
            some.pay(500.5 - age)
            some.pay(500.5)
        told.report(500.5 - age, 1)
        found, expected = (some.pay(503.5)[RISKS] for some in (told, made))
        assert (found > expected).all() == counts
        assert (found == expected).all() != counts


def test_an_explained_fraud_says_less_about_the_counterparty() -> None:
    beliefs = []
    for explained in (0.0, 0.2, 0.9, 1.0):
        made = pay_all([UNKNOWN] * len(PAID))
        made.report(PAID[-1], 1, explained=explained)
        beliefs.append(made.belief)
    assert (np.diff(beliefs) < 0).all()
    nothing = pay_all([UNKNOWN] * (len(PAID) - 1) + [NEVER])
    assert beliefs[-1] == pytest.approx(nothing.belief, rel=1e-12)


def test_a_run_of_frauds_is_counted_from_its_first_step() -> None:
    made = Shop(with_chains(2.0, 5.0))
    for day, label in ((1.0, 1), (2.5, 0), (4.5, 1), (6.0, 1), (6.5, 1), (8.0, UNKNOWN)):
        made.pay(day, label)
    found = made.pay(10.5)
    assert found[RUN_FRAUDS] == 3
    assert found[RUN_DAYS] == 6
    assert made.pay(17.0)[RUN_FRAUDS] == 0  # what has no label counts as genuine


def propagate(chain: CompromiseChain, times: Array, labels: Array, explained: Array) -> list[float]:
    """P(compromised) at each transaction of one counterparty, by plain means.

    Keeps every step since the first, and takes labels as known from the start.
    """
    delay, maturity = 2.0, 3.0
    size = chain.n_phases + 1
    rates = np.zeros((size, size))
    for state in range(size):
        rate = chain.onsets_per_day if state == 0 else chain.n_phases / chain.mean_days
        rates[state, state] -= rate
        rates[state, (state + 1) % size] += rate
    usual = chain.onsets_per_day * chain.mean_days
    initial = np.array([1.0, *[usual / chain.n_phases] * chain.n_phases]) / (1.0 + usual)
    steps, found = np.floor(times / STEP), []
    move = cache(lambda n_steps: expm(rates * n_steps / 4))
    for now in times:
        waits = delay * DAY, (delay + maturity) * DAY
        known, mature = (math.floor((now - wait) / STEP) - 1 for wait in waits)
        belief, last = initial, steps[0]
        for step in np.unique(steps[steps <= known]):
            ratio = 0.0
            for i in np.flatnonzero(steps == step):
                other = 1.0 - (1.0 - explained[i]) * (1.0 - chain.background)
                if labels[i] == 1:
                    ratio += math.log((chain.share + (1 - chain.share) * other) / other)
                elif labels[i] == 0 or (labels[i] == UNKNOWN and step <= mature):
                    ratio += math.log(1.0 - chain.share)
            belief = belief @ move(step - last)
            belief = belief * np.exp(ratio * (np.arange(size) > 0))
            belief, last = belief / belief.sum(), step
        belief = belief @ move(math.floor(now / STEP) - last)
        found.append(1.0 - belief[0])
    return found


def visit(features: Features, times: Array, labels: Array) -> tuple[Array, Array]:
    """Causes of transactions at one shop, each of a new customer."""
    n = len(times)
    frame = shop_frame(n).with_columns(
        who=pl.Series([f"c{k:04}" for k in range(n)]),
        at=pl.Series(times),
        shop=pl.lit("s1"),
        fraud=pl.Series(np.maximum(labels, 0)),
        id=pl.Series(range(n)),
    )
    data = of_frame(frame, features.plan.schema)
    transactions = replace(data.transactions, labels=labels.astype(np.int8))
    return causes_of(features, replace(data, transactions=transactions))[
        :, [INTRUDER, COMPROMISED]
    ].T


@pytest.mark.parametrize("n_phases", [1, 3])
@pytest.mark.parametrize("memory", [0.0, 6.0, 30.0])
def test_a_ring_that_wraps_many_times_forgets_nothing(n_phases: int, memory: float) -> None:
    rng = np.random.default_rng(1)
    chain = replace(COMPROMISES, n_phases=n_phases, memory_days=memory, mean_days=20.0)
    features = fitted().add_chains(Chains(CHAINS.intruder, (chain,)))
    times = np.cumsum(rng.exponential(0.8, 220)) * DAY
    labels = rng.choice([-1, 0, 0, 0, 1], 220)
    explained, found = visit(features, times, labels)
    expected = propagate(chain, times, labels, explained)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert times[-1] > 150 * DAY


@pytest.mark.parametrize("memory", [0.0, 6.0, 30.0])
@pytest.mark.parametrize("gap", [5.0, 8.0, 12.0, 17.0, 40.0, 61.0, 400.0, 2500.0])
def test_gaps_of_days_and_of_years(memory: float, gap: float) -> None:
    """A slow chain, so that a label matters after years, and busy days on both sides of a gap."""
    rng = np.random.default_rng(int(gap))
    chain = CompromiseChain(1e-5, 4000.0, 0.3, 0.05, 1, memory)
    features = fitted().add_chains(Chains(CHAINS.intruder, (chain,)))
    before = np.arange(0.0, 45.0, 0.5)
    days = np.concatenate([before, 45.0 + gap + np.array([0.0, 1.0, 6.0]), [47.0 + 3 * gap + 6.0]])
    labels = rng.choice([-1, 0, 0, 1], len(days))
    explained, found = visit(features, days * DAY, labels)
    expected = propagate(chain, days * DAY, labels, explained)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def by_id(features: Features, frame: pl.DataFrame) -> dict[int, bytes]:
    panel = features.transform(read(frame, features.plan.schema))
    assert panel.causes is not None
    assert panel.ids is not None
    return {row: causes.tobytes() for row, causes in zip(panel.ids, panel.causes, strict=True)}


@pytest.mark.parametrize("moment", [4.0, 20.3, 41.0])
@pytest.mark.parametrize(("delay", "maturity"), TIMES)
def test_later_rows_and_labels_not_known_yet_do_not_matter(
    delay: float, maturity: float, moment: float
) -> None:
    features, frame = with_chains(delay, maturity), shop_frame()
    before = by_id(features, frame)
    at = frame["at"].to_numpy() / DAY
    earlier = frame["id"].to_numpy()[at <= moment]
    more = shop_frame(60, 5).with_columns(
        pl.col("at") % DAY + moment * DAY + 1, pl.col("id") + 10_000
    )
    is_pending = (np.floor(4 * at) + 1) / 4 + delay > moment
    flipped = np.where(is_pending, 1 - frame["fraud"], frame["fraud"])
    hidden = frame.with_columns(fraud=pl.Series(flipped))
    for other in (pl.concat([frame, more]), frame.filter(pl.Series(at <= moment)), hidden):
        after = by_id(features, other)
        assert all(after[row] == before[row] for row in earlier)
    assert by_id(features, hidden) != before


def test_a_label_known_by_now_does_matter() -> None:
    features, at = with_chains(2.0, 3.0), [0.5, 2.74, 2.75]
    found = {}
    for label in (0, 1):
        made = Shop(features)
        found[label] = [made.pay(day, label if day == 0.5 else 0)[COMPROMISED] for day in at]
    assert found[0][:2] == found[1][:2]
    assert found[0][2] < found[1][2]


def test_a_known_fraud_of_the_customer_makes_an_intruder_likelier() -> None:
    features, found = with_chains(2.0, 3.0), {}
    for label in (0, 1):
        state, _ = features.step(None, ROW | {"at": 0.0})
        state = features.report_own_label(state, 0.0, label)
        row = parse_row(features.plan.schema, ROW | {"at": 3 * DAY})
        found[label] = features.step_batch([state], [row], [UNKNOWN]).causes[0]
        assert found[label][KNOWN_FRAUDS] == label
    assert found[1][INTRUDER] > 2 * found[0][INTRUDER]


def test_labels_of_own_transactions_that_no_record_keeps_change_nothing() -> None:
    state, _ = with_chains().step(None, ROW | {"at": 0.0})
    assert with_chains().report_own_label(state, 5.0, 1) == state
    assert with_chains().report_own_label(state, 0.0, 1, n_later=1) == state
    assert with_chains().report_own_label(state, 0.0, 1).customer != state.customer
    assert with_chains().report_own_label(FeatureState(), 0.0, 1) == FeatureState()
    plain, _ = fitted().step(None, ROW | {"at": 0.0})
    assert fitted().report_own_label(plain, 0.0, 1) == plain
    with pytest.raises(DataError, match="1 for fraud or 0 for genuine"):
        with_chains().report_own_label(state, 0.0, -1)
    with pytest.raises(DataError, match="in seconds"):
        with_chains().report_own_label(state, "noon", 1)


def test_records_have_one_size_whatever_the_history() -> None:
    features = with_chains()
    made = pay_all(LABELS, features)
    made.pay(4000.0, 1)
    made.report(4000.0, 1, earlier=0)
    (record,) = made.state.counterparties
    assert record is not None
    assert len(record) == features.state_bytes[1]
    assert features.state_bytes[0] == fitted().state_bytes[0] + (6 + 3 * 2 + 3 * 8) * 8
    assert features.state_bytes[1] > fitted().state_bytes[1]


def test_records_of_other_chains_are_refused() -> None:
    state, _ = with_chains().step(None, ROW | {"at": 0.0})
    other_chains = [
        None,
        Chains(CHAINS.intruder),
        Chains(None, CHAINS.compromise),
        Chains(CHAINS.intruder, (replace(COMPROMISES, n_phases=3),)),
        Chains(replace(intruder_chain(), memory_rows=7), (COMPROMISES,)),
        Chains(CHAINS.intruder, (replace(COMPROMISES, memory_days=7.0),)),
    ]
    prints = {with_chains().plan.fingerprint}
    for chains in other_chains:
        other = fitted().add_chains(chains)
        prints.add(other.plan.fingerprint)
        with pytest.raises(DataError, match="made by other features"):
            other.step(state, ROW | {"at": 1.0})
    assert len(prints) == 1 + len(other_chains)


def test_records_of_the_same_size_but_another_layout_are_refused() -> None:
    """One phase more takes the place of half a day of memory."""
    sizes, prints = set(), set()
    for n_phases, memory in ((2, 6.0), (3, 5.5)):
        chain = replace(COMPROMISES, n_phases=n_phases, memory_days=memory)
        features = fitted().add_chains(Chains(CHAINS.intruder, (chain,)))
        sizes.add(features.state_bytes)
        prints.add(features.plan.fingerprint)
    assert len(sizes) == 1
    assert len(prints) == 2


def test_profiles_on_another_scale_are_refused() -> None:
    """The mean and squares in a record mean nothing on another scale, or with another unit."""
    other = [
        intruder_chain(ROOT),
        intruder_chain(IDENTITY),
        replace(intruder_chain(), units=np.array([9.0, 1.0])),
    ]
    other.append(replace(intruder_chain(), memory_rows=9))
    other.append(intruder_chain(columns=("paid",)))
    other.append(intruder_chain(columns=("age", "paid")))
    chains = [CHAINS, *(Chains(own, CHAINS.compromise) for own in other)]
    assert len({fitted().add_chains(some).plan.fingerprint for some in chains}) == 7


def test_chains_need_a_history() -> None:
    features = Features("processed").fit(shop().transactions)
    with pytest.raises(ConfigError, match="history"):
        features.add_chains(CHAINS)
    assert features.add_chains(None).plan.chains is None
    assert with_chains().add_chains(None).plan.fingerprint == fitted().plan.fingerprint


@pytest.mark.parametrize(
    "chains",
    [CHAINS, Chains(CHAINS.intruder), Chains(None, CHAINS.compromise), Chains()],
    ids=["both", "customer", "counterparty", "none"],
)
def test_saved_chains_load_unchanged(tmp_path: Path, chains: Chains) -> None:
    features, data = fitted().add_chains(chains), partly_labelled(3.0)
    features.save(tmp_path / "features")
    loaded = load_features(tmp_path / "features")
    assert_same_bits(causes_of(loaded, data), causes_of(features, data))
    assert loaded.plan.fingerprint == features.plan.fingerprint
    state, _ = features.step(None, ROW | {"at": 0.0})
    again = loaded.step(state, ROW | {"at": DAY})[0]
    assert again == features.step(state, ROW | {"at": DAY})[0]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with_chains().save(tmp_path / "features")
    return tmp_path / "features"


@pytest.mark.parametrize(
    ("side", "changes"),
    [
        ("intruder", {"onsets_per_day": 0.0}),
        ("intruder", {"onsets_per_day": float("nan")}),
        ("intruder", {"ends_per_day": -1.0}),
        ("intruder", {"ends_per_day": float("inf")}),
        ("intruder", {"share": 0.0}),
        ("intruder", {"share": 1.0}),
        ("intruder", {"share": "half"}),
        ("intruder", {"columns": ["paid"]}),
        ("intruder", {"columns": ["paid", "paid"]}),
        ("intruder", {"columns": ["paid", "sum"]}),
        ("intruder", {"columns": []}),
        ("intruder", {"columns": 3}),
        ("intruder", {"background": 0.0}),
        ("intruder", {"background": 1.0}),
        ("intruder", {"memory_rows": 0}),
        ("intruder", {"memory_rows": 5000}),
        ("intruder", {"memory_rows": 1.5}),
        ("intruder", {"colour": 1.0}),
        ("compromise", {"onsets_per_day": 0.0}),
        ("compromise", {"onsets_per_day": None}),
        ("compromise", {"mean_days": -3.0}),
        ("compromise", {"mean_days": float("nan")}),
        ("compromise", {"share": 1.5}),
        ("compromise", {"background": 0.0}),
        ("compromise", {"background": 1.0}),
        ("compromise", {"n_phases": 0}),
        ("compromise", {"n_phases": 65}),
        ("compromise", {"n_phases": 1.5}),
        ("compromise", {"memory_days": -1.0}),
        ("compromise", {"memory_days": 1e9}),
        ("compromise", {"colour": 1.0}),
    ],
    ids=str,
)
def test_impossible_chains_are_refused(saved: Path, side: str, changes: dict[str, Any]) -> None:
    chains = json.loads((saved / "manifest.json").read_text())["chains"]
    rewrite(saved, chains=chains)
    load_features(saved)
    wrong = {**chains[side], **changes} if side == "intruder" else [{**chains[side][0], **changes}]
    rewrite(saved, chains={**chains, side: wrong})
    with pytest.raises(BundleError):
        load_features(saved)


@pytest.mark.parametrize("chains", [7, {}, {"intruder": None}, {"intruder": {}, "compromise": {}}])
def test_chains_that_make_no_sense_are_refused(saved: Path, chains: Any) -> None:
    rewrite(saved, chains=chains)
    with pytest.raises(BundleError):
        load_features(saved)


def test_chains_without_a_history_are_refused(saved: Path) -> None:
    rewrite(saved, engineered=False)
    with pytest.raises(BundleError):
        load_features(saved)


TABLE = 2, N_HISTORY_GROUPS, N_SURPRISES


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("scales", np.array([ARSINH, 3])),
        ("scales", np.array([ARSINH, ROOT], np.int32)),
        ("scales", None),
        ("units", np.array([0.0, 1.0])),
        ("units", np.ones(1)),
        ("units", None),
        ("priors", np.ones((2, 3))),
        ("priors", np.ones((1, 4))),
        ("priors", np.array([[0.0, 1.0, -1.0, 1.0], np.ones(4)])),
        ("priors", np.array([np.ones(4), [0.0, 0.0, 1.0, 1.0]])),
        ("priors", np.array([np.ones(4), [np.nan, 1.0, 1.0, 1.0]])),
        ("priors", None),
        ("log_ratios", np.zeros(TABLE[::-1])),
        ("log_ratios", np.zeros(TABLE, np.float32)),
        ("log_ratios", np.full(TABLE, np.inf)),
        ("log_ratios", None),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(saved: Path, name: str, array: Array | None) -> None:
    rewrite_arrays(saved, **{f"intruder.{name}": array})
    with pytest.raises(BundleError):
        load_features(saved)
