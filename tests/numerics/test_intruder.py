"""The customer's chain against sums over all hidden paths, and profiles against scipy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import stats
from scipy.linalg import expm

from tests.reference.enumeration import all_paths, enumerate_paths, log
from turncoat.numerics.intruder import (
    ARSINH,
    DAY,
    HISTORY_LIMITS,
    IDENTITY,
    MEAN,
    MIN_SURPRISE,
    N_HISTORY_GROUPS,
    N_SURPRISES,
    OUTPUTS,
    ROOT,
    SQUARES,
    SURPRISE_STEP,
    WEIGHT,
    IntruderTables,
    advance_intruder,
    compute_surprise,
    find_history_group,
    look_up_log_ratio,
    replay_intruder,
    report_own_label,
    restore_amount,
    state_size,
    transform_amount,
)
from turncoat.numerics.intruder_expectations import IntruderExpectations, expect_intruder
from turncoat.numerics.label_times import NEVER, UNKNOWN, LabelTimes

Array = np.ndarray
INTRUDER, PRESENCE, SURPRISE, TIMES_USUAL, ODDEST, KNOWN_FRAUDS, KNOWN_DAYS = range(7)
PROFILE = slice(6, 9)  # of the first column, in a state
AT_ONCE = LabelTimes(0.0, 0.0)
# A row is the owner's without an intruder, the owner's beside an intruder, or the intruder's.
ALONE, BESIDE, BY_INTRUDER = range(3)
IS_PRESENT = np.array([0, 1, 1])
SCALES = [ARSINH, ROOT, IDENTITY]


def random_chain(
    rng: np.random.Generator, n_columns: int = 1, scale: int = ARSINH, **changes: Any
) -> IntruderTables:
    prior = np.array([rng.normal(3, 1), *rng.uniform(0.5, 3, 3)])
    chain = IntruderTables(
        onset=rng.uniform(0.01, 0.5),
        end=rng.uniform(0.05, 1.0),
        share=rng.uniform(0.1, 0.9),
        background=rng.uniform(0.001, 0.2),
        memory_rows=5,
        scales=np.full(n_columns, scale),
        units=np.full(n_columns, 0.5),
        priors=np.tile(prior, (n_columns, 1)),
        log_ratios=rng.normal(0, 2, (n_columns, N_HISTORY_GROUPS, N_SURPRISES)),
    )
    return chain._replace(**changes)


def advance(
    state: Array, time: float, amount: float, chain: IntruderTables, output: Array
) -> float:
    """One row that no label will follow."""
    row = time, np.array([amount]), NEVER, chain, AT_ONCE, output, np.empty(1)
    return advance_intruder(state, *row)


def replay(
    offsets: Array,
    times: Array,
    amounts: Array,
    chain: IntruderTables,
    outputs: Array,
    labels: Array | None = None,
    waits: LabelTimes = AT_ONCE,
) -> Array:
    """Rows of whole customers; without labels, none will follow."""
    known = np.full(len(times), NEVER) if labels is None else labels
    columns = amounts.reshape(len(times), -1)
    found = outputs, np.empty(columns.shape)
    return replay_intruder(offsets, times, columns, known, chain, waits, *found)


def new_state(chain: IntruderTables) -> Array:
    return np.zeros(state_size(len(chain.units), chain.memory_rows))


def generator(chain: IntruderTables) -> Array:
    return np.array([[-chain.onset, chain.onset], [chain.end, -chain.end]])


class Sum(NamedTuple):
    """What all hidden paths of T rows say."""

    log_likelihood: float
    kinds: Array  # [T, 3] posterior of each row's kind
    pairs: Array  # [T - 1, 2, 2] posterior of (present at t, present at t + 1)


def sum_paths(chain: IntruderTables, gaps: Array, weights: Array) -> Sum:
    """Sum over all paths of kinds, with gaps in days [T - 1] and likelihoods [T, 3]."""
    n = len(weights)
    chosen = np.array([1.0, 1.0 - chain.share, chain.share])  # kind given presence
    presence = chain.onset / (chain.onset + chain.end)
    paths = all_paths(3, n)
    total = np.array([1.0 - presence, presence, presence])[paths[:, 0]]
    total = total * (chosen * weights)[np.arange(n), paths].prod(axis=1)
    for t, gap in enumerate(gaps):
        step = expm(generator(chain) * gap)
        total *= step[IS_PRESENT[paths[:, t]], IS_PRESENT[paths[:, t + 1]]]
    likelihood = total.sum()
    kinds = np.stack([np.bincount(paths[:, t], total, 3) for t in range(n)])
    present, pairs = IS_PRESENT[paths], np.zeros((n - 1, 2, 2))
    for t in range(n - 1):
        np.add.at(pairs[t], (present[:, t], present[:, t + 1]), total)
    return Sum(float(np.log(likelihood)), kinds / likelihood, pairs / likelihood)


def random_gaps(rng: np.random.Generator, n: int) -> Array:
    """Days between rows: none, seconds, days, and many years."""
    return rng.choice([0.0, 1e-5, 0.3, 2.0, 15.0, 1e5], n) * rng.uniform(0.5, 1.5, n)


@pytest.mark.parametrize("seed", range(12))
def test_the_filter_is_the_sum_over_all_paths(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain, n = random_chain(rng), 7
    gaps = random_gaps(rng, n - 1)
    times = 1e9 + DAY * np.append(0.0, np.cumsum(gaps))
    gaps = np.diff(times) / DAY  # as rounded
    amounts = np.where(rng.random(n) < 0.25, np.nan, rng.lognormal(2, 1.5, n))
    outputs = np.zeros((len(OUTPUTS), n))
    log_ratios = replay(np.array([0, n]), times, amounts, chain, outputs)
    np.testing.assert_array_equal(log_ratios == 0, np.isnan(amounts))
    for t in range(n):
        weights = np.column_stack([np.ones((t + 1, 2)), np.exp(log_ratios[: t + 1])])
        found = sum_paths(chain, gaps[:t], weights)
        assert outputs[INTRUDER, t] == pytest.approx(found.kinds[t, BY_INTRUDER], abs=1e-10)
        weights[t] = 1.0
        found = sum_paths(chain, gaps[:t], weights)
        presence = found.kinds[t, BESIDE] + found.kinds[t, BY_INTRUDER]
        assert outputs[PRESENCE, t] == pytest.approx(presence, abs=1e-10)


@pytest.mark.parametrize("memory", [1, 3, 32])
@pytest.mark.parametrize("seed", range(4))
def test_unusual_rows_are_those_of_the_last_whose_columns_point_to_an_intruder(
    seed: int, memory: int
) -> None:
    rng = np.random.default_rng(seed)
    chain, n = random_chain(rng, memory_rows=memory), 40
    amounts = np.where(rng.random(n) < 0.2, np.nan, rng.lognormal(2, 1.5, n))
    outputs, labels = np.zeros((len(OUTPUTS), n)), rng.choice([0, 1, UNKNOWN, NEVER], n)
    rows = np.array([0, 15, n]), DAY * np.arange(n), amounts, chain, outputs, labels
    is_unusual = replay(*rows) > 0
    recent, found = (outputs[OUTPUTS.index(name)] for name in ("recent_rows", "unusual_rows"))
    assert is_unusual.any()
    for t in range(n):
        first = max(0 if t < 15 else 15, t - min(5, memory))
        assert recent[t] == t - first
        expected = is_unusual[first:t].sum() if is_unusual[t] else np.nan
        np.testing.assert_equal(found[t], expected)


def test_the_first_row_of_every_customer_starts_anew() -> None:
    rng = np.random.default_rng(3)
    chain = random_chain(rng)
    times, amounts = DAY * np.arange(9.0), rng.lognormal(2, 1, 9)
    outputs, alone = np.zeros((len(OUTPUTS), 9)), np.zeros((len(OUTPUTS), 9))
    replay(np.array([0, 4, 5, 9]), times, amounts, chain, outputs)
    presence = chain.onset / (chain.onset + chain.end)
    np.testing.assert_allclose(outputs[PRESENCE, [0, 4, 5]], presence, rtol=1e-15)
    for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
        offsets = np.array([0, part.stop - part.start])
        replay(offsets, times[part], amounts[part], chain, alone[:, part])
    np.testing.assert_array_equal(outputs, alone)


def test_a_row_without_an_amount_is_no_evidence() -> None:
    rng = np.random.default_rng(4)
    chain, output = random_chain(rng), np.zeros(len(OUTPUTS))
    state = new_state(chain)
    advance(state, 0.0, 30.0, chain, output)
    before = state.copy()
    assert advance(state, 0.0, np.nan, chain, output) == 0.0
    np.testing.assert_array_equal(state[PROFILE], before[PROFILE])
    later = np.zeros((2, len(OUTPUTS)))
    for some, found in zip((state.copy(), before.copy()), later, strict=True):
        advance(some, DAY, 50.0, chain, found)
    n_recent = OUTPUTS.index("recent_rows")
    assert later[:, n_recent].tolist() == [2, 1]  # it counts as a transaction, though
    np.testing.assert_allclose(*np.delete(later, n_recent, axis=1), rtol=1e-14)
    assert output[INTRUDER] == output[PRESENCE] * chain.share
    assert np.isnan(output[[SURPRISE, TIMES_USUAL]]).all()


def test_a_late_row_counts_as_now() -> None:
    rng = np.random.default_rng(5)
    chain = random_chain(rng)
    amounts, outputs = rng.lognormal(2, 1, 4), np.zeros((2, len(OUTPUTS), 4))
    for times, output in zip(([0, 9, 5, 12], [0, 9, 9, 12]), outputs, strict=True):
        replay(np.array([0, 4]), DAY * np.array(times, float), amounts, chain, output)
    np.testing.assert_array_equal(*outputs)


def test_after_a_long_gap_presence_is_as_for_a_new_customer() -> None:
    rng = np.random.default_rng(6)
    chain, outputs = random_chain(rng), np.zeros((len(OUTPUTS), 3))
    times = np.array([0.0, 1.0, 1.0 + 1e4 * DAY])
    replay(np.array([0, 3]), times, np.full(3, 40.0), chain, outputs)
    usual = chain.onset / (chain.onset + chain.end)
    assert outputs[PRESENCE, 1] != pytest.approx(usual, rel=1e-3)
    assert outputs[PRESENCE, 2] == pytest.approx(usual, rel=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_where_every_row_is_the_intruders_the_filter_is_that_of_two_states(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain, n = random_chain(rng, share=1.0 - 1e-13), 8
    outputs = np.zeros((len(OUTPUTS), n))
    rows = DAY * np.arange(n), rng.lognormal(2, 1.5, n)
    log_ratios = replay(np.array([0, n]), *rows, chain, outputs)
    presence = chain.onset / (chain.onset + chain.end)
    initial, step = np.array([1.0 - presence, presence]), expm(generator(chain))
    emissions = np.column_stack([np.zeros(n), log_ratios])
    found = enumerate_paths(log(initial), log(step), emissions)
    np.testing.assert_allclose(outputs[INTRUDER], found.filtered[:, 1], atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_where_every_row_is_the_intruders_a_label_anchors_the_state(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain, n = random_chain(rng, share=1.0 - 1e-13), 8
    labels, log_ratios = rng.integers(-1, 2, n), rng.normal(0, 2, n)
    presence = chain.onset / (chain.onset + chain.end)
    emissions = np.column_stack([np.zeros(n), log_ratios])
    emissions[labels == 1, 0] = emissions[labels == 0, 1] = -np.inf
    initial, step = np.array([1.0 - presence, presence]), expm(generator(chain))
    found = enumerate_paths(log(initial), log(step), emissions)
    is_intruder, nothing = np.empty(n), np.zeros(n)
    rows = np.array([0, n]), DAY * np.arange(n), labels, log_ratios, nothing
    expected = expect_intruder(*rows, 1e-13, chain, is_intruder)
    np.testing.assert_allclose(is_intruder, found.smoothed[:, 1], atol=1e-9)
    assert expected.log_likelihood == pytest.approx(found.log_likelihood, abs=1e-9)


def weigh_labels(chain: IntruderTables, labels: Array, log_ratios: Array) -> Array:
    """Likelihoods of rows [T, 3] with known labels; -1 is unknown."""
    owner = np.select([labels == 1, labels == 0], [chain.background, 1 - chain.background], 1.0)
    return np.column_stack([owner, owner, np.where(labels == 0, 0.0, np.exp(log_ratios))])


def know_labels(times: Array, labels: Array, nows: Array, waits: LabelTimes) -> Array:
    """What is known at `nows` [T] of the labels of T rows, by the rule in words."""
    ended = (np.floor(4 * times / DAY) + 1) * DAY / 4
    is_known = (labels >= 0) & (nows >= ended + waits.delay_s)
    is_mature = (labels == UNKNOWN) & (nows >= ended + waits.delay_s + waits.maturity_s)
    return np.select([is_known, is_mature], [labels, 0], -1)


WAITS = [
    AT_ONCE,
    LabelTimes(DAY, 0.0),
    LabelTimes(1.5 * DAY, 0.6 * DAY),
    LabelTimes(2 * DAY, 5 * DAY),
]


@pytest.mark.parametrize("memory", [1, 3, 32])
@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize("seed", range(4))
def test_known_labels_condition_the_filter_as_in_the_sum_over_all_paths(
    seed: int, waits: LabelTimes, memory: int
) -> None:
    """A row that leaves the ring stays with what was known of its label by then."""
    rng = np.random.default_rng(seed)
    chain, n = random_chain(rng, memory_rows=memory), 8
    times = 1e9 + DAY * np.append(0.0, np.cumsum(rng.choice([0.0, 0.4, 1.6, 3.0, 40.0], n - 1)))
    gaps, labels = np.diff(times) / DAY, rng.choice([1, 1, 0, 0, UNKNOWN, NEVER], n)
    amounts = np.where(rng.random(n) < 0.2, np.nan, rng.lognormal(2, 1.5, n))
    outputs, n_known = np.zeros((len(OUTPUTS), n)), 0
    log_ratios = replay(np.array([0, n]), times, amounts, chain, outputs, labels, waits)
    for t in range(n):
        last_looks = times[np.minimum(np.arange(t + 1) + memory, t)]
        known = know_labels(times[: t + 1], labels[: t + 1], last_looks, waits)
        known[t] = -1
        n_known += int((known >= 0).sum())
        weights = weigh_labels(chain, known, log_ratios[: t + 1])
        found = sum_paths(chain, gaps[:t], weights)
        assert outputs[INTRUDER, t] == pytest.approx(found.kinds[t, BY_INTRUDER], abs=1e-10)
        weights[t] = 1.0
        found = sum_paths(chain, gaps[:t], weights)
        presence = found.kinds[t, BESIDE] + found.kinds[t, BY_INTRUDER]
        assert outputs[PRESENCE, t] == pytest.approx(presence, abs=1e-10)
        is_in_ring = np.arange(t + 1) >= t - memory
        frauds = is_in_ring & (known == 1)
        assert outputs[KNOWN_FRAUDS, t] == frauds.sum()
        if frauds.any():
            first = np.floor(times[: t + 1][frauds].min() / DAY)
            assert outputs[KNOWN_DAYS, t] == np.floor(times[t] / DAY) - first
        else:
            assert np.isnan(outputs[KNOWN_DAYS, t])
    assert n_known > 0 or memory < 32


@pytest.mark.parametrize("seed", range(5))
def test_where_every_row_is_the_intruders_a_known_label_anchors_the_filter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain, n = random_chain(rng, share=1.0 - 1e-13, background=1e-13), 8
    labels, outputs = rng.choice([-2, 0, 1], n), np.zeros((len(OUTPUTS), n))
    rows = 2 * DAY * np.arange(n), rng.lognormal(2, 1.5, n)
    log_ratios = replay(np.array([0, n]), *rows, chain, outputs, labels)
    presence = chain.onset / (chain.onset + chain.end)
    initial, step = np.array([1.0 - presence, presence]), expm(2 * generator(chain))
    for t in range(n):
        emissions = np.column_stack([np.zeros(t + 1), log_ratios[: t + 1]])
        emissions[:-1][labels[:t] == 1, 0] = emissions[:-1][labels[:t] == 0, 1] = -np.inf
        found = enumerate_paths(log(initial), log(step), emissions)
        assert outputs[INTRUDER, t] == pytest.approx(found.filtered[t, 1], abs=1e-9)


class Customer:
    """The state of one customer, whose rows come hours apart and whose labels count after days."""

    def __init__(self, seed: int, memory: int = 8, waits: LabelTimes = WAITS[3]) -> None:
        rng = np.random.default_rng(seed)
        self.chain, self.waits = random_chain(rng, memory_rows=memory), waits
        self.state, self.output = new_state(self.chain), np.zeros(len(OUTPUTS))
        self.log_ratios: list[float] = []

    def pay(self, day: float, label: int = UNKNOWN, amount: float = 20.0) -> Array:
        row = DAY * day, np.array([amount]), label, self.chain, self.waits, self.output
        self.log_ratios.append(advance_intruder(self.state, *row, np.empty(1)))
        return self.output.copy()

    def report(self, day: float, label: int, n_later: int = 0) -> bool:
        about = DAY * day, n_later, label, self.chain, self.waits
        return report_own_label(self.state, *about)


PAID = [100.1, 100.1, 100.5, 100.9, 101.2, 101.3]  # the first two at the same time
PRICES = [20.0, 300.0, 4.0, 80.0, 81.0, 9.0]
LABELS = [0, 1, 0, 1, 1, 0]


def pay_all(seed: int, labels: list[int]) -> Customer:
    made = Customer(seed)
    for row in zip(PAID, labels, PRICES, strict=True):
        made.pay(*row)
    return made


@pytest.mark.parametrize("earlier", [UNKNOWN, NEVER, 0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_labels_in_any_order_repeated_or_corrected_are_as_known_from_the_start(
    seed: int, earlier: int
) -> None:
    rng = np.random.default_rng(seed)
    expected = pay_all(seed, LABELS)
    for _ in range(20):
        made = pay_all(seed, [earlier] * len(PAID))
        assert not np.array_equal(made.state, expected.state)
        for k in [*rng.integers(len(PAID), size=4), *rng.permutation(len(PAID))]:
            assert made.report(PAID[k], 1 - LABELS[k], n_later=int(k == 0))
            assert made.report(PAID[k], LABELS[k], n_later=int(k == 0))
        np.testing.assert_array_equal(made.state, expected.state)
    for day in (103.0, 103.9, 104.4, 109.0, 140.0):
        np.testing.assert_array_equal(made.pay(day), expected.pay(day))
    assert made.output[KNOWN_FRAUDS] > 0


def test_labels_of_rows_at_the_same_time_belong_to_their_rows() -> None:
    """The two rows have different evidence, so it matters which of them is fraud."""
    found = []
    for k in range(2):
        made = pay_all(1, [NEVER] * len(PAID))
        assert made.report(PAID[k], 1, n_later=1 - k)
        expected = pay_all(1, [1 if place == k else NEVER for place in range(len(PAID))])
        np.testing.assert_array_equal(made.state, expected.state)
        found.append(made.pay(103.0)[PRESENCE])
    assert found[0] != pytest.approx(found[1], rel=1e-3)
    assert not made.report(PAID[0], 1, n_later=2)


@pytest.mark.parametrize("label", [0, 1])
def test_a_label_that_comes_after_it_should_count_conditions_later_rows(label: int) -> None:
    """Later rows keep the evidence that they were scored with."""
    made, chain = pay_all(1, [NEVER] * len(PAID)), random_chain(np.random.default_rng(1))
    made.pay(120.0, NEVER)
    before = made.state.copy()
    assert made.report(PAID[3], label)
    found = made.pay(120.5, NEVER)[PRESENCE]
    labels = np.full(len(PAID) + 2, -1)
    labels[3] = label
    weights = weigh_labels(chain, labels, np.append(made.log_ratios[:-1], 0.0))
    gaps = np.diff(np.array([*PAID, 120.0, 120.5]))
    expected = sum_paths(chain, gaps, weights).kinds[-1]
    assert found == pytest.approx(expected[BESIDE] + expected[BY_INTRUDER], abs=1e-10)
    made.state = before
    other = made.pay(120.5, NEVER)[PRESENCE]
    assert (found > other) if label else (found < other)


def test_a_label_of_a_row_that_left_the_ring_changes_nothing() -> None:
    made = pay_all(2, [UNKNOWN] * len(PAID))
    for day in (101.4, 101.5, 101.6, 101.7):
        made.pay(day)
    before = made.state.copy()
    assert not made.report(PAID[0], 1, n_later=1)
    assert not made.report(PAID[1], 1)
    assert not made.report(55.5, 1)
    np.testing.assert_array_equal(made.state, before)
    assert made.report(PAID[2], 1)
    assert not np.array_equal(made.state, before)


def test_a_known_fraud_says_more_the_rarer_other_causes_are() -> None:
    found = []
    for background in (0.5, 0.1, 1e-3, 1e-6):
        made = Customer(3)
        made.chain = made.chain._replace(background=background)
        made.pay(0.5, 1)
        found.append(made.pay(4.0)[PRESENCE])
    assert (np.diff(found) > 0).all()


def predict(values: Array, prior: Array) -> Any:
    """The predictive distribution of a Normal-Gamma posterior after these values."""
    mean, kappa, shape, rate = prior
    n = len(values)
    average = values.mean() if n else 0.0
    after = (kappa * mean + values.sum()) / (kappa + n)
    shape += n / 2
    rate += ((values - average) ** 2).sum() / 2
    rate += kappa * n * (average - mean) ** 2 / (2 * (kappa + n))
    kappa += n
    return stats.t(2 * shape, after, np.sqrt(rate * (kappa + 1) / (shape * kappa)))


def to_normal(predictive: Any, value: float) -> float:
    """The point that is as far out in a standard normal distribution."""
    if value < predictive.mean():
        return float(stats.norm.ppf(predictive.cdf(value)))
    return float(stats.norm.isf(predictive.sf(value)))


@pytest.mark.parametrize("n", [0, 1, 2, 5, 30])
@pytest.mark.parametrize("scale", SCALES)
def test_the_surprise_is_that_of_the_predictive_distribution(n: int, scale: int) -> None:
    """Wallace's formula is off by at most min(0.45, 4.5 / freedom^2) up to 6 deviations."""
    rng = np.random.default_rng(n)
    prior = np.array([2.5, 0.7, 1.0, 1.3])
    chain = random_chain(
        rng, scale=scale, priors=prior[None], share=0.0
    )  # every row is the owner's
    state, output = new_state(chain), np.zeros(len(OUTPUTS))
    amounts = rng.lognormal(1, 0.5, n)
    for amount in amounts:
        advance(state, 0.0, amount, chain, output)
    values = np.array([transform_amount(amount, scale, chain.units[0]) for amount in amounts])
    predictive = predict(values, prior)
    freedom, centre, spread = predictive.args
    n_compared = 0
    for value in centre + spread * np.linspace(-40, 40, 161):
        surprise, mean = compute_surprise(value, state[PROFILE], prior)
        assert mean == pytest.approx(centre, rel=1e-12)
        ratio = (value - mean) / spread
        wallace = np.sqrt(freedom * np.log1p(ratio**2 / freedom))
        wallace *= (8 * freedom + 1) / (8 * freedom + 3)
        assert abs(surprise) == pytest.approx(wallace, rel=1e-9, abs=1e-12)
        exact = to_normal(predictive, value)
        if abs(exact) < 6:
            n_compared += 1
            assert surprise == pytest.approx(exact, abs=min(0.45, 4.5 / freedom**2))
    assert n_compared > 20


@pytest.mark.parametrize("scale", SCALES)
def test_profiles_weigh_rows_by_the_belief_that_they_are_the_owners(scale: int) -> None:
    rng = np.random.default_rng(7)
    chain = random_chain(rng, scale=scale, share=0.8, onset=0.5)
    state, output = new_state(chain), np.zeros(len(OUTPUTS))
    amounts, weights = rng.lognormal(2, 1, 40), []
    values = np.array([transform_amount(amount, scale, chain.units[0]) for amount in amounts])
    for i, amount in enumerate(amounts):
        advance(state, i * DAY, amount, chain, output)
        weights.append(1.0 - output[INTRUDER])
        mean = np.average(values[: i + 1], weights=weights)
        assert state[PROFILE][WEIGHT] == pytest.approx(sum(weights), rel=1e-12)
        assert state[PROFILE][MEAN] == pytest.approx(mean, rel=1e-12)
        squares = np.dot(weights, (values[: i + 1] - mean) ** 2)
        assert state[PROFILE][SQUARES] == pytest.approx(squares, rel=1e-10, abs=1e-12)
    assert min(weights) < 0.5
    assert max(weights) > 0.9


def test_an_amount_is_compared_with_the_customers_usual_one() -> None:
    rng = np.random.default_rng(8)
    for scale in SCALES:
        prior = np.array([transform_amount(20.0, scale, 0.5), 2.0, 2.0, 1.0])
        chain = random_chain(rng, scale=scale, priors=prior[None])
        state, output = new_state(chain), np.zeros(len(OUTPUTS))
        advance(state, 0.0, 100.0, chain, output)
        assert output[TIMES_USUAL] == pytest.approx(5.0, rel=1e-12)
        assert output[SURPRISE] > 0
        _, mean = compute_surprise(0.0, state[PROFILE], prior)
        advance(state, 0.0, 60.0, chain, output)
        usual = restore_amount(mean, scale, 0.5)
        assert output[TIMES_USUAL] == pytest.approx(60.0 / usual, rel=1e-12)
    refunds = random_chain(rng, scale=IDENTITY, priors=np.array([[-5.0, 2.0, 2.0, 1.0]]))
    advance(new_state(refunds), 0.0, 3.0, refunds, output)
    assert np.isnan(output[TIMES_USUAL])


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_can_be_undone(scale: int) -> None:
    amounts = np.array([-1e6, -3.5, -1e-9, 0.0, 1e-9, 0.01, 1.0, 77.7, 1e12])
    values = np.array([transform_amount(amount, scale, 0.3) for amount in amounts])
    assert (np.diff(values) > 0).all()
    restored = np.array([restore_amount(value, scale, 0.3) for value in values])
    np.testing.assert_allclose(restored, amounts, rtol=1e-12)


def test_scales_are_those_of_numpy() -> None:
    for amount in (-40.0, 0.0, 0.2, 900.0):
        assert transform_amount(amount, ARSINH, 0.3) == pytest.approx(np.arcsinh(amount / 0.3))
        root = np.sign(amount) * np.sqrt(abs(amount))
        assert transform_amount(amount, ROOT, 0.3) == pytest.approx(root)
        assert transform_amount(amount, IDENTITY, 0.3) == amount


def test_log_ratios_are_linear_between_points_and_constant_outside() -> None:
    table = np.random.default_rng(9).normal(size=N_SURPRISES)
    grid = MIN_SURPRISE + SURPRISE_STEP * np.arange(N_SURPRISES)
    for surprise in (-np.inf, -1e9, -8.0, -7.99, 0.0, 0.1, 31.99, 32.0, 1e9, np.inf):
        expected = np.interp(surprise, grid, table)
        assert look_up_log_ratio(table, surprise) == pytest.approx(expected, rel=1e-10)


def test_short_histories_have_tables_of_their_own() -> None:
    for weight in (0.0, 3.999, 4.0, 15.0, 16.0, 1e6):
        assert find_history_group(weight) == np.searchsorted(HISTORY_LIMITS, weight, "right")
    rng = np.random.default_rng(10)
    levels = np.array([0.25, 0.5, 0.75])
    tables = np.repeat(levels[:, None], N_SURPRISES, axis=1)
    chain = random_chain(rng, share=1e-9, log_ratios=tables[None])
    amounts, outputs = rng.lognormal(2, 1, 20), np.zeros((len(OUTPUTS), 20))
    found = replay(np.array([0, 20]), np.zeros(20), amounts, chain, outputs)
    # Each row weighs a little less than 1, so the fifth row still has a weight below 4.
    np.testing.assert_array_equal(found, np.repeat(levels, [5, 12, 3]))


def test_log_ratios_of_columns_add_up() -> None:
    """Each column has its own scale, prior and tables; a missing one is no evidence."""
    rng = np.random.default_rng(11)
    chain, n = random_chain(rng, n_columns=3, share=1e-12), 40
    priors = np.array([[3.0, 1.0, 2.0, 1.5], [6.0, 0.5, 1.0, 4.0], [0.0, 2.0, 3.0, 1.0]])
    chain = chain._replace(scales=np.array(SCALES), units=np.array([0.5, 1, 1]), priors=priors)
    columns = np.column_stack([rng.lognormal(2, 1, n), rng.gamma(2, 20, n), rng.normal(0, 1, n)])
    columns[rng.random((n, 3)) < 0.2] = np.nan
    rows, never = (np.array([0, n]), DAY * np.arange(n)), np.full(n, NEVER)
    outputs, surprises = np.zeros((len(OUTPUTS), n)), np.empty((n, 3))
    found = replay_intruder(*rows, columns, never, chain, AT_ONCE, outputs, surprises)
    apart, own_surprises = np.zeros((n, 3)), np.empty((n, 3))
    for c in range(3):
        one = chain._replace(
            scales=chain.scales[[c]],
            units=chain.units[[c]],
            priors=priors[[c]],
            log_ratios=chain.log_ratios[[c]],
        )
        about = one, AT_ONCE, outputs[:, :].copy(), own_surprises[:, [c]].copy()
        apart[:, c] = replay_intruder(*rows, columns[:, [c]].copy(), never, *about)
        np.testing.assert_allclose(surprises[:, c], about[3][:, 0], rtol=1e-9)
    np.testing.assert_allclose(found, apart.sum(axis=1), rtol=1e-9, atol=1e-9)
    known = ~np.isnan(columns)
    np.testing.assert_array_equal(np.isnan(surprises), ~known)
    some = known.any(axis=1)
    oddest = np.where(known, apart, -np.inf).argmax(axis=1)
    np.testing.assert_array_equal(outputs[ODDEST, some], oddest[some])
    np.testing.assert_array_equal(outputs[SURPRISE, some], surprises[some, oddest[some]])
    assert np.isnan(outputs[ODDEST, ~some]).all()
    assert (np.bincount(oddest[some]) > 3).all()


def test_overwhelming_evidence_stays_finite() -> None:
    rng = np.random.default_rng(12)
    chain = random_chain(rng, n_columns=4)
    for level in (-400.0, 400.0):
        chain = chain._replace(log_ratios=np.full(chain.log_ratios.shape, level))
        outputs, columns = np.zeros((len(OUTPUTS), 30)), rng.lognormal(2, 1, (30, 4))
        labels = rng.choice([0, 1, NEVER], 30)
        replay(np.array([0, 30]), 2 * DAY * np.arange(30.0), columns, chain, outputs, labels)
        risks = outputs[[INTRUDER, PRESENCE]]
        assert np.isfinite(risks).all()
        assert ((risks >= 0) & (risks <= 1)).all()


class Rows(NamedTuple):
    """Labelled rows of several customers."""

    offsets: Array
    times: Array
    labels: Array
    log_ratios: Array
    explained: Array


def random_rows(rng: np.random.Generator, lengths: list[int]) -> Rows:
    n = sum(lengths)
    gaps = random_gaps(rng, n)
    gaps[gaps > 1e3] = 300.0
    return Rows(
        np.append(0, np.cumsum(lengths)),
        1e8 + DAY * np.cumsum(gaps),
        rng.choice([-1, -1, 0, 0, 1], n),
        rng.normal(0, 2, n),
        rng.choice([0.0, 0.05, 0.6], n),
    )


def integrate(chain: IntruderTables, days: float, place: tuple[int, int]) -> Array:
    """Integrals over s of P(start, a, s) P(b, end, days - s), by van Loan's block exponential."""
    blocks = np.zeros((4, 4))
    blocks[:2, :2] = blocks[2:, 2:] = generator(chain)
    blocks[place[0], 2 + place[1]] = 1.0
    return expm(blocks * days)[:2, 2:]


def test_the_integrals_are_those_of_a_fine_grid() -> None:
    chain, days = random_chain(np.random.default_rng(1)), 3.0
    middles = (np.arange(2000) + 0.5) * days / 2000
    left = [expm(generator(chain) * s) for s in middles]
    for a in range(2):
        for b in range(2):
            terms = (np.outer(x[:, a], y[b]) for x, y in zip(left, left[::-1], strict=True))
            found = sum(terms) * days / 2000
            np.testing.assert_allclose(found, integrate(chain, days, (a, b)), rtol=1e-6, atol=1e-7)


def add_up(rows: Rows, background: float, chain: IntruderTables) -> tuple[dict[str, float], Array]:
    """The sums of an E-step from all hidden paths, and P(row is the intruder's)."""
    total, posterior = dict.fromkeys(IntruderExpectations._fields, 0.0), []
    for first, stop in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        own = slice(first, stop)
        labels, gaps = rows.labels[own], np.diff(rows.times[own]) / DAY
        other = 1.0 - (1.0 - background) * (1.0 - rows.explained[own])
        owner = np.select([labels == 1, labels == 0], [other, 1.0 - other], 1.0)
        by_intruder = np.where(labels == 0, 0.0, np.exp(rows.log_ratios[own]))
        found = sum_paths(chain, gaps, np.column_stack([owner, owner, by_intruder]))
        share = found.kinds[:, BY_INTRUDER]
        posterior.append(share)
        total["log_likelihood"] += found.log_likelihood
        total["present_rows"] += found.kinds[:, 1:].sum()
        total["intruder_rows"] += share.sum()
        total["other_frauds"] += ((labels == 1) * (1.0 - share)).sum()
        total["labelled_rows"] += (labels >= 0).sum()
        total["unexplained_frauds"] += ((labels == 1) * (1.0 - share) * background / other).sum()
        for gap, pairs in zip(gaps, found.pairs, strict=True):
            weights = pairs / expm(generator(chain) * gap) if gap > 0 else np.zeros((2, 2))
            for name, place, rate in (
                ("absent_days", (0, 0), 1.0),
                ("onsets", (0, 1), chain.onset),
                ("ends", (1, 0), chain.end),
                ("present_days", (1, 1), 1.0),
            ):
                total[name] += rate * (weights * integrate(chain, gap, place)).sum()
    return total, np.concatenate(posterior)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("background", [1e-4, 0.05])
def test_expectations_are_sums_over_all_paths(seed: int, background: float) -> None:
    rng = np.random.default_rng(seed)
    chain, rows = random_chain(rng), random_rows(rng, [6, 1, 3, 7])
    is_intruder = np.empty(len(rows.times))
    found = expect_intruder(*rows, background, chain, is_intruder)
    expected, posterior = add_up(rows, background, chain)
    np.testing.assert_allclose(is_intruder, posterior, atol=1e-10)
    for name, value in found._asdict().items():
        assert value == pytest.approx(expected[name], rel=1e-9, abs=1e-10), name
    days = found.absent_days + found.present_days
    gaps = [np.ptp(rows.times[i:j]) for i, j in zip(rows.offsets, rows.offsets[1:], strict=False)]
    assert days == pytest.approx(sum(gaps) / DAY, rel=1e-9)


def test_a_fraud_is_the_intruders_unless_something_else_explains_it() -> None:
    chain = random_chain(np.random.default_rng(2))
    posteriors = []
    for label, explained in ((1, 0.0), (1, 0.5), (1, 0.999), (-1, 0.0), (0, 0.0)):
        row = np.array([0, 1]), np.zeros(1), np.array([label]), np.zeros(1), np.array([explained])
        expect_intruder(*row, 1e-9, chain, posterior := np.empty(1))
        posteriors.append(posterior[0])
    assert posteriors[0] > 1 - 1e-6
    assert sorted(posteriors, reverse=True) == posteriors
    assert posteriors[-1] == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_em_never_decreases_the_likelihood(seed: int) -> None:
    """The ratio of the rates, and with it the initial presence, stays fixed: then EM is exact."""
    rng = np.random.default_rng(seed)
    chain, background = random_chain(rng), 0.02
    rows = random_rows(rng, [20] * 15)
    presence, likelihoods = chain.onset / (chain.onset + chain.end), []
    for _ in range(30):
        is_intruder = np.empty(len(rows.times))
        found = expect_intruder(*rows, background, chain, is_intruder)
        likelihoods.append(found.log_likelihood)
        waits = presence * found.absent_days + (1.0 - presence) * found.present_days
        pace = (found.onsets + found.ends) / waits
        owner_rows = (1.0 - is_intruder)[rows.labels >= 0].sum()
        background = found.unexplained_frauds / owner_rows
        share = found.intruder_rows / found.present_rows
        chain = chain._replace(onset=presence * pace, end=(1.0 - presence) * pace, share=share)
    assert (np.diff(likelihoods) > -1e-9).all()
    assert likelihoods[-1] > likelihoods[0] + 1.0
