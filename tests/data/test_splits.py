"""Splits: no row in two parts, no customer or time on both sides of a cut."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat.data.open_labels import count_open_days, find_labelled_until
from turncoat.data.splits import (
    DAY,
    PARTS,
    Split,
    drop_short_sequences,
    find_largest_gap,
    split_automatically,
    split_by_customer,
    split_by_time,
    split_prequential,
)
from turncoat.errors import ConfigError, DataError

SEEDS = st.integers(0, 10_000)


def payments(seed, n_customers=40, n_days=90, per_customer=12, whole_hours=False):
    """Customers, times and labels of a small portfolio; whole hours give many ties."""
    rng = np.random.default_rng(seed)
    customers = (
        np.concatenate(
            [
                np.arange(n_customers),
                rng.integers(n_customers, size=n_customers * (per_customer - 1)),
            ]
        )
        * 7
        + 3
    )
    times = rng.uniform(0, n_days * DAY, customers.size)
    times = np.floor(times / 3600) * 3600 if whole_hours else times
    return customers, times, (rng.uniform(size=customers.size) < 0.1).astype(np.int8)


def every_kind(customers, times, labels=None, seed=42):
    """One split of each kind."""
    windows = {
        "train_s": 28 * DAY,
        "gap_s": 3 * DAY,
        "test_s": 14 * DAY,
        "selection_s": 5 * DAY,
        "calibration_s": 5 * DAY,
    }
    return [
        split_by_customer(customers, times, labels, seed=seed),
        split_by_time(customers, times, labels, gap_s=DAY),
        *split_prequential(customers, times, labels, **windows),
    ]


def assert_accounts_for_all(split: Split, n_rows):
    everything = np.concatenate([*split.parts.values(), split.excluded])
    assert np.array_equal(np.sort(everything), np.arange(n_rows))
    for rows in (*split.parts.values(), split.excluded):
        assert rows.dtype == np.int64
        assert np.all(np.diff(rows) > 0)


def membership(split: Split, n_rows):
    found = np.full(n_rows, "excluded", dtype="<U11")
    for part, rows in split.parts.items():
        found[rows] = part
    return found


@given(SEEDS, st.booleans())
@settings(deadline=None, max_examples=40)
def test_every_row_is_in_exactly_one_place(seed, whole_hours):
    data = payments(seed, whole_hours=whole_hours)
    for split in every_kind(*data):
        assert_accounts_for_all(split, data[0].size)
        assert all(rows.size for rows in split.parts.values())


@given(SEEDS, st.floats(0.05, 0.4), st.floats(0, 0.25), st.floats(0, 0.25))
@settings(deadline=None, max_examples=60)
def test_no_customer_is_in_two_parts(seed, test, selection, calibration):
    customers, times, labels = payments(seed)
    split = split_by_customer(
        customers, times, labels, test=test, selection=selection, calibration=calibration, seed=seed
    )
    owners = [set(customers[rows]) for rows in split.parts.values()]
    assert sum(map(len, owners)) == len(set(customers)) == len(set.union(*owners))
    assert split.excluded.size == 0
    for wanted, found in zip((selection, calibration, test), owners[1:], strict=True):
        assert abs(len(found) - wanted * 40) <= max(0.5, 1 - wanted * 40)
        assert bool(found) == (wanted > 0)


@given(SEEDS, st.booleans(), st.floats(0, 5 * DAY))
@settings(deadline=None, max_examples=60)
def test_by_time_each_part_is_strictly_later_and_the_test_by_the_gap(seed, whole_hours, gap):
    customers, times, labels = payments(seed, whole_hours=whole_hours)
    split = split_by_time(customers, times, labels, gap_s=gap)
    for earlier, later in pairwise(split.parts.values()):
        assert times[later].min() > times[earlier].max()
    begin = times[split.test].min()
    for part in (split.fit, split.selection, split.calibration):
        assert begin - times[part].max() >= gap
    is_in_gap = (times >= begin - gap) & (times < begin)
    assert np.array_equal(split.excluded, np.flatnonzero(is_in_gap)), "the other parts meet"
    assert np.array_equal(split.test, split_by_time(customers, times).test), (
        "the gap must not move the test"
    )
    assert gap or not split.excluded.size


@given(SEEDS, st.integers(1, 20), st.integers(0, 10), st.booleans(), st.floats(-1e6, 1e6))
@settings(deadline=None, max_examples=60)
def test_prequential_windows_roll_forward_without_overlap(
    seed, test_days, gap_days, with_gap, origin
):
    customers, times, labels = payments(seed, n_customers=100, n_days=80)
    times = times + origin
    windows = {
        "train_s": 20 * DAY,
        "gap_s": gap_days * DAY * with_gap,
        "test_s": test_days * DAY,
        "selection_s": 4 * DAY,
        "calibration_s": 4 * DAY,
    }
    splits = split_prequential(customers, times, labels, start_s=origin, **windows)
    tested = np.concatenate([split.test for split in splits])
    assert np.array_equal(np.sort(tested), np.unique(tested)), "a row is tested once"
    after_first = times >= times[splits[0].test].min()
    until_last = times <= times[splits[-1].test].max()
    assert np.array_equal(np.sort(tested), np.flatnonzero(after_first & until_last)), (
        "no row between test windows is skipped"
    )
    for i, split in enumerate(splits):
        assert_accounts_for_all(split, customers.size)
        edges = origin + i * windows["test_s"] + np.array([0, 12, 16, 20]) * DAY
        for part, begin, end in zip(
            (split.fit, split.selection, split.calibration), edges, edges[1:], strict=False
        ):
            assert np.array_equal(part, np.flatnonzero((times >= begin) & (times < end)))
        assert times[split.test].min() >= edges[-1] + windows["gap_s"]
        assert times[split.test].max() < edges[-1] + windows["gap_s"] + windows["test_s"]


@given(SEEDS)
@settings(deadline=None, max_examples=30)
def test_fitted_things_cannot_see_what_judges_them(seed):
    customers, times, labels = payments(seed)
    rng = np.random.default_rng(seed)
    amounts = rng.normal(size=customers.size)
    for number, split in enumerate(every_kind(customers, times, labels)):
        poisoned_amounts, poisoned_labels = np.full_like(amounts, np.nan), 1 - labels
        if split.name == "by customer":  # which depends on who has fraud
            places = np.argsort(customers, kind="stable")
            poisoned_labels[places] = labels[np.lexsort((rng.random(labels.size), customers))]
        poisoned_amounts[split.fit], poisoned_labels[split.fit] = (
            amounts[split.fit],
            labels[split.fit],
        )
        again = every_kind(customers, times, poisoned_labels)[number]
        fitted, refitted = (
            (values[rows].mean(), marks[rows].sum(), drop_short_sequences(customers, rows).tolist())
            for values, marks, rows in (
                (amounts, labels, split.fit),
                (poisoned_amounts, poisoned_labels, again.fit),
            )
        )
        assert fitted == refitted


@given(SEEDS)
@settings(deadline=None, max_examples=30)
def test_row_order_does_not_matter_and_labels_only_by_customer(seed):
    customers, times, labels = payments(seed, whole_hours=True)
    order = np.random.default_rng(seed).permutation(customers.size)
    n = customers.size
    for one, shuffled, unlabelled in zip(
        every_kind(customers, times, labels),
        every_kind(customers[order], times[order], labels[order]),
        every_kind(customers, times),
        strict=True,
    ):
        assert np.array_equal(membership(one, n)[order], membership(shuffled, n))
        if one.name != "by customer":
            assert np.array_equal(membership(one, n), membership(unlabelled, n))
    unknown = split_by_customer(customers, times, np.full(n, -1))
    assert np.array_equal(
        membership(unknown, n), membership(split_by_customer(customers, times), n)
    )


@given(
    SEEDS,
    st.integers(20, 300),
    st.integers(0, 300),
    st.tuples(*[st.sampled_from([0.05, 0.1, 0.15, 0.3])] * 3),
)
@settings(deadline=None, max_examples=100)
def test_customers_with_known_fraud_are_divided_in_proportion(seed, n, n_with_fraud, shares):
    """Sizes stay as they are without labels, and every part gets its share of fraud customers."""
    customers = np.repeat(np.arange(n), 3)
    times = np.arange(customers.size, dtype=float)
    with_fraud = np.random.default_rng(seed).permutation(n)[:n_with_fraud]
    labels = np.where(np.isin(customers, with_fraud), [0, 1, -1] * n, [0, -1, 0] * n)
    sizes = dict(zip(("test", "selection", "calibration"), shares, strict=True))
    split = split_by_customer(customers, times, labels, seed=seed, **sizes)
    plain = split_by_customer(customers, times, seed=seed, **sizes)
    frauds = {part: one.frauds for part, one in split.summaries.items() if part != "excluded"}
    assert sum(frauds.values()) == len(with_fraud)
    for part, n_frauds in frauds.items():
        size = split.summaries[part].customers
        assert size == plain.summaries[part].customers
        assert n_frauds <= size
        assert n_frauds or len(with_fraud) < 4
        if len(with_fraud) > 20 * 4:
            assert abs(n_frauds - len(with_fraud) * size / n) <= 1
    assert split.summaries["fit"].labelled == 2 * split.summaries["fit"].customers


def test_a_small_file_has_fraud_in_every_part():
    """Of 200 customers 15 have fraud: drawn regardless of labels, a part is often without."""
    customers = np.repeat(np.arange(200), 5)
    times = np.arange(1000.0)
    labels = ((customers % 13 == 0) & (customers < 195)).astype(int)
    assert np.unique(customers[labels == 1]).size == 15
    for seed in range(50):
        split = split_by_customer(customers, times, labels, seed=seed, require_fraud=True)
        frauds = [split.summaries[part].frauds // 5 for part in PARTS]
        assert sum(frauds) == 15
        assert frauds[0] in (9, 10)
        assert all(1 <= n_frauds <= 3 for n_frauds in frauds[1:])
    others = split_by_customer(customers, times, labels, seed=1)
    assert not np.array_equal(others.test, split.test), "the seed matters"


@given(SEEDS)
@settings(deadline=None, max_examples=40)
def test_dropped_cards_are_exactly_those_known_by_then(seed):
    customers, times, labels = payments(seed, n_customers=150)
    windows = {
        "train_s": 30 * DAY,
        "gap_s": 4 * DAY,
        "test_s": 12 * DAY,
        "selection_s": 0,
        "calibration_s": 0,
        "start_s": 0.0,
    }
    kept = split_prequential(customers, times, labels, drop_compromised=True, **windows)
    full = split_prequential(customers, times, labels, **windows)
    for i, (without, everyone) in enumerate(zip(kept, full, strict=True)):
        expected = [
            row
            for row in everyone.test
            if not np.any(
                (customers == customers[row])
                & (labels == 1)
                & (times >= i * 12 * DAY)
                & (times + 4 * DAY < times[row])
            )
        ]
        assert without.test.tolist() == expected
        assert np.array_equal(without.fit, everyone.fit)
        in_training = np.isin(
            customers[without.test], customers[everyone.fit][labels[everyone.fit] == 1]
        )
        assert not in_training.any()


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    data = payments(0)
    one, same, other = (split_by_customer(*data, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.test, same.test)
    assert np.array_equal(one.fit, same.fit)
    assert not np.array_equal(one.test, other.test)


def test_seed_42_is_stable():
    customers = np.repeat(np.arange(1000), 3)
    split = split_by_customer(customers, np.arange(3000.0))
    tested = np.unique(customers[split.test])
    assert [np.unique(customers[rows]).size for rows in split.parts.values()] == [
        650,
        100,
        100,
        150,
    ]
    assert tested[:8].tolist() == [2, 7, 25, 36, 38, 45, 51, 55]
    assert int(tested.sum()) == 78636


def test_the_tested_customers_do_not_depend_on_the_other_shares():
    data = payments(3)
    assert np.array_equal(
        split_by_customer(*data).test, split_by_customer(*data, selection=0.3, calibration=0).test
    )


def test_rows_of_equal_time_stay_together():
    times = np.array([0, 1, 1, 1, 1, 1, 1, 1, 2, 3], float)
    split = split_by_time(np.arange(10) % 3, times, test=0.5, selection=0, calibration=0)
    assert split.fit.tolist() == [0]
    assert split.test.tolist() == list(range(1, 10))
    assert split.selection.size == split.calibration.size == 0


def test_a_last_window_of_whole_days_is_used_though_the_data_end_before_midnight():
    times = np.arange(0, 42 * DAY - 100, 3600.0)
    windows = {"train_s": 28 * DAY, "gap_s": 7 * DAY, "test_s": 7 * DAY}
    assert len(split_prequential(np.arange(times.size) % 9, times, **windows)) == 1
    short = times < 41 * DAY
    with pytest.raises(DataError, match="more data or shorter windows"):
        split_prequential(np.arange(times.size)[short] % 9, times[short], **windows)


def test_short_sequences_are_counted_within_the_part():
    customers = np.array([1, 1, 1, 2, 2, 2, 1])
    assert drop_short_sequences(customers, [0, 1, 3, 4, 5], min_rows=3).tolist() == [3, 4, 5]
    assert drop_short_sequences(customers, [0, 1, 6], min_rows=3).tolist() == [0, 1, 6]
    assert drop_short_sequences(customers, np.arange(7)).size == 0
    with pytest.raises(ConfigError, match="min_rows is 0; it must be a whole number of at least 1"):
        drop_short_sequences(customers, [0], min_rows=0)


def test_describe_lists_the_parts():
    customers, times, labels = payments(5)
    split = split_by_time(customers, times, labels, gap_s=2 * DAY)
    lines = str(split).splitlines()
    assert len({len(line) for line in lines[1:]}) == 1, "columns are aligned"
    assert lines[1].split() == ["rows", "customers", "frauds", "first", "last"]
    table = {line[:12].strip(): line[12:].replace(",", "").split() for line in lines[2:]}
    assert list(table) == [*PARTS, "excluded"]
    for part, rows in (*split.parts.items(), ("excluded", split.excluded)):
        found = [
            rows.size,
            np.unique(customers[rows]).size,
            labels[rows].sum(),
            times[rows].min(),
            times[rows].max(),
        ]
        assert table[part] == [f"{value:.0f}" for value in found]
    is_unknown = np.zeros(times.size, bool)
    is_unknown[split.test[::2]] = True
    some = split_by_time(customers, times, np.where(is_unknown, -1, labels))
    header, *_, tested, excluded = some.describe().splitlines()[1:]
    assert header.split() == ["rows", "customers", "labelled", "frauds", "first", "last"]
    known = labels[split.test[1::2]]
    assert tested.split()[3:5] == [f"{known.size:,}", str(known.sum())]
    assert excluded.split()[3:5] == ["0", "0"]
    without = split_by_customer(customers, times, selection=0)
    assert "seed 42" in without.describe()
    assert "frauds" not in without.describe()
    assert without.describe().splitlines()[3].split() == ["selection", "0", "0", "-", "-"]


CUSTOMERS, TIMES = np.arange(60) % 20, np.arange(60.0) * DAY


@pytest.mark.parametrize("split", [split_by_customer, split_by_time, split_prequential])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((["a", "b"], [0.0, 1.0]), "customers must be whole numbers"),
        ((np.array([], int), []), "customers must be whole numbers"),
        (
            (CUSTOMERS, TIMES[:-1]),
            "times must have one entry per row, as customers has: expected 60",
        ),
        ((CUSTOMERS, np.where(TIMES == DAY, np.nan, TIMES)), "times row 1: found nan"),
        ((CUSTOMERS, TIMES.astype("datetime64[s]")), "times must be seconds"),
        ((CUSTOMERS, TIMES, np.zeros(3)), "labels must have one entry per row"),
        (
            (CUSTOMERS, TIMES, np.full(60, 2)),
            "labels row 0: found 2; labels are 0, 1, or -1 for unknown",
        ),
    ],
)
def test_broken_data_are_refused(split, data, message):
    with pytest.raises(DataError, match=message):
        split(*data)


@pytest.mark.parametrize("split", [split_by_customer, split_by_time])
@pytest.mark.parametrize(
    ("shares", "message"),
    [
        ({"test": -0.1}, "test must be at least 0 and below 1; found -0.1"),
        ({"test": 1.0}, "test must be at least 0 and below 1"),
        ({"selection": -0.1}, "selection must be at least 0"),
        ({"calibration": np.nan}, "calibration must be at least 0"),
        ({"test": 0.5, "selection": 0.3, "calibration": 0.2}, "add up to less than 1; found 1"),
    ],
)
def test_impossible_shares_are_refused(split, shares, message):
    with pytest.raises(ConfigError, match=message):
        split(CUSTOMERS, TIMES, **shares)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_s": 0}, "train_s must be a number of seconds above 0"),
        ({"test_s": -DAY}, "test_s must be a number of seconds above 0"),
        ({"gap_s": np.inf}, "gap_s must be a number of seconds of at least 0"),
        ({"start_s": np.nan}, "start_s must be a number of seconds that is finite"),
        ({"selection_s": 20 * DAY, "calibration_s": 8 * DAY}, "shorter than train_s together"),
        ({"drop_compromised": True}, "drop_compromised needs labels"),
        ({"require_fraud": True}, "require_fraud needs labels"),
    ],
)
def test_impossible_windows_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        split_prequential(CUSTOMERS, TIMES, **settings)


def test_too_little_data_for_the_parts_is_refused():
    with pytest.raises(
        DataError,
        match="found 1, too few for selection, calibration, test and at least one to fit on",
    ):
        split_by_customer(np.zeros(50, int), np.arange(50.0))
    with pytest.raises(DataError, match="found 3, too few"):
        split_by_customer(np.arange(3), np.arange(3.0))
    assert split_by_customer(np.arange(3), np.arange(3.0), calibration=0).fit.size == 1
    with pytest.raises(DataError, match="by time: fit has no rows"):
        split_by_time(CUSTOMERS, np.zeros(60))
    with pytest.raises(DataError, match="by time: selection has no rows"):
        split_by_time(CUSTOMERS, TIMES[:3].repeat(20))
    with pytest.raises(DataError, match="prequential 1 of 1: selection has no rows"):
        split_prequential(
            CUSTOMERS,
            np.where((TIMES >= 14 * DAY) & (TIMES < 21 * DAY), 0.0, TIMES),
            test_s=20 * DAY,
        )
    with pytest.raises(ConfigError, match="seed is -1; it must be a whole number of at least 0"):
        split_by_customer(CUSTOMERS, TIMES, seed=-1)


@pytest.mark.parametrize("split", [split_by_customer, split_by_time, split_automatically])
def test_without_a_test_part_every_row_is_used(split):
    data = payments(0)
    found = split(*data, test=0)
    assert found.test.size == found.excluded.size == found.summaries["test"].rows == 0
    assert_accounts_for_all(found, data[0].size)
    for part in (found.selection, found.calibration):
        assert part.size == pytest.approx(0.1 * data[0].size, rel=0.5)


def test_automatic_splits_are_by_time_where_every_part_knows_ten_frauds():
    customers, times, _ = payments(3)
    labels = np.zeros(customers.size, np.int8)
    by_time = split_by_time(customers, times, gap_s=DAY)
    for rows in by_time.parts.values():
        labels[rows[:10]] = 1
    split = split_automatically(customers, times, labels, gap_s=DAY, seed=5)
    assert split.name == "by time"
    for part, rows in split.parts.items():
        assert np.array_equal(rows, by_time.parts[part])
    for part in PARTS:
        for label in (0, -1):  # a fraud less, or one that is not known
            fewer = labels.copy()
            fewer[by_time.parts[part][9]] = label
            other = split_automatically(customers, times, fewer, gap_s=DAY, seed=5)
            expected = split_by_customer(customers, times, fewer, seed=5)
            assert (other.name, other.seed) == ("by customer", 5)
            assert np.array_equal(other.fit, expected.fit)
    many = (np.arange(customers.size) % 3 == 0).astype(np.int8)
    assert split_automatically(customers, times, many, test=0).name == "by time"


def test_automatic_splits_without_labels_or_with_few_times_are_by_customer():
    customers, times, labels = payments(3)
    assert split_automatically(customers, times).name == "by customer"
    assert split_automatically(customers, np.zeros_like(times), labels).name == "by customer"
    long_gap = split_automatically(customers, times, labels, gap_s=80 * DAY, test=0.2)
    assert long_gap.name == "by customer"
    assert len(np.unique(customers[long_gap.test])) == 8


def half_year(n_days=180, per_day=150, fraud_rate=0.05, seed=0):
    """Customers, times and labels of so many days, evenly spaced."""
    rng = np.random.default_rng(seed)
    n = n_days * per_day
    times = 1.7e9 + np.arange(n) * DAY / per_day
    return rng.integers(200, size=n), times, (rng.random(n) < fraud_rate).astype(np.int8)


@pytest.mark.parametrize("split", [split_by_time, split_automatically])
@pytest.mark.parametrize("days", [120, 150])
def test_a_long_gap_makes_the_parts_smaller(split, days):
    customers, times, labels = half_year()
    found = split(customers, times, labels, gap_s=days * DAY)
    assert found.name == "by time, sized to the gap"
    assert_accounts_for_all(found, times.size)
    used = times.size - found.excluded.size
    assert used / times.size == pytest.approx(1 - days / 180, rel=0.02)
    for part, share in zip(PARTS, (0.65, 0.1, 0.1, 0.15), strict=True):
        assert found.parts[part].size == pytest.approx(share * used, abs=3)
        assert found.summaries[part].frauds >= 10 or split is split_by_time
    for earlier, later in pairwise(found.parts.values()):
        assert times[earlier].max() < times[later].min()
    gap = times[found.test].min() - times[found.calibration].max()
    assert days * DAY <= gap < (days + 0.1) * DAY


def test_without_enough_rows_outside_the_gap_the_largest_one_is_named():
    data = half_year(fraud_rate=0.02)
    with pytest.raises(DataError, match=r"delay\) of 179 days .* of 180 days of data") as caught:
        split_by_time(*data, gap_s=179 * DAY)
    days = int(re.search(r"At most (\d+) days would fit", str(caught.value))[1])
    assert 100 < days < 179
    assert split_by_time(*data, gap_s=days * DAY).name == "by time, sized to the gap"
    for longer in range(days + 1, 179):
        with pytest.raises(DataError, match=f"At most {days} days"):
            split_by_time(*data, gap_s=longer * DAY)


def test_automatic_splits_name_the_largest_gap_by_time():
    data = half_year(fraud_rate=0.02)
    assert split_automatically(*data, gap_s=170 * DAY).name == "by customer"
    days = find_largest_gap(*data, 170 * DAY)
    assert 0 < days < 170
    assert split_automatically(*data, gap_s=days * DAY).name.startswith("by time")
    for longer in range(days + 1, 170):
        assert split_automatically(*data, gap_s=longer * DAY).name == "by customer"
    assert find_largest_gap(*data[:2], np.zeros(data[0].size, int), 170 * DAY) is None


@given(SEEDS, st.booleans(), st.floats(0, 60 * DAY), st.sampled_from([0.05, 0.15, 0.4]))
@settings(deadline=None, max_examples=100)
def test_usual_parts_are_shares_of_all_rows(seed, whole_hours, gap, test):
    """The definition, step by step; a gap that leaves every part rows never changes the sizes."""
    customers, times, labels = payments(seed, whole_hours=whole_hours)
    ordered, parts = np.sort(times), np.full(times.size, "fit", dtype="<U11")
    begin = ordered[round((1.0 - test) * times.size)]
    parts[times >= begin] = "test"
    parts[(times >= begin - gap) & (times < begin)] = "excluded"
    remaining = float((parts == "fit").mean())
    for part in ("calibration", "selection"):
        remaining -= 0.1
        if round(remaining * times.size) <= 0:
            return
        begin = ordered[round(remaining * times.size)]
        parts[(times >= begin) & (parts == "fit")] = part
    if set(PARTS) <= set(parts):
        found = split_by_time(customers, times, labels, gap_s=gap, test=test)
        assert (found.name, membership(found, times.size).tolist()) == ("by time", parts.tolist())


def test_parts_without_fraud_are_refused_only_if_asked():
    labels = (TIMES < 5 * DAY).astype(int)
    assert split_by_time(CUSTOMERS, TIMES, labels).summaries["test"].frauds == 0
    labels[40:43] = -1
    with pytest.raises(
        DataError,
        match=r"by time: selection has no fraud among 3 rows with a label \(6 in all\)\. Give more",
    ):
        split_by_time(CUSTOMERS, TIMES, labels, require_fraud=True)
    assert (
        split_by_time(CUSTOMERS, TIMES, np.ones(60), require_fraud=True).summaries["test"].frauds
        == 9
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_last_days_of_which_only_frauds_are_known_are_in_no_part(seed):
    customers, times, labels = payments(seed, n_customers=500)
    is_open = times > 60 * DAY
    is_early = is_open & (labels == 1) & (np.arange(times.size) % 2 == 0)
    found = np.where(is_open & ~is_early, -1, labels)
    last = times[found == 0].max()
    windows = {"train_s": 28 * DAY, "test_s": 7 * DAY, "gap_s": 2 * DAY}
    splits = [
        split_by_customer(customers, times, found),
        split_by_time(customers, times, found, gap_s=2 * DAY),
        split_automatically(customers, times, found, gap_s=2 * DAY),
        *split_prequential(customers, times, found, **windows),
    ]
    for split in splits:
        assert all(times[rows].max() <= last for rows in split.parts.values())
        assert split.open_labels.rows == (times > last).sum()
        assert split.open_labels.frauds == (found[times > last] == 1).sum()
        assert "their labels are open" in split.describe()
        assert set(np.flatnonzero(times > last)) <= set(split.excluded)
    assert splits[2].name == "by time"
    assert times[splits[2].test].max() == times[times <= last].max()
    closed = split_by_time(customers, times, labels, gap_s=2 * DAY)
    assert closed.open_labels is None
    assert "open" not in closed.describe()


@pytest.mark.parametrize(
    ("labels", "until"),
    [
        ([0, 0, 1, -1, 1, -1, -1], 1),
        ([0, 0, 0, 1, 1, 1, -1], None),  # most are known
        ([0, 1, 1, -1, -1, -1, 0], None),  # a genuine one is known last
        ([1, 1, -1, -1, -1, -1, -1], None),  # none is known at all
        ([0, 0, 0, 0, 0, 0, -1], None),  # of a single day
    ],
)
def test_labels_are_open_after_the_last_known_genuine_transaction(labels, until):
    times = np.arange(7) * DAY
    rows = np.repeat(times, 10), np.repeat(labels, 10)
    assert find_labelled_until(*rows) == (None if until is None else times[until])
    assert find_labelled_until(times, labels) is None  # too few to tell from chance
    assert find_labelled_until(times, None) is None


@pytest.mark.parametrize(
    ("n_unlabelled", "n_labelled", "n_open"), [(30, 60, 15), (30, 300, 7), (120, 245, 30)]
)
def test_open_labels_are_found_after_days_from_before_labels_began(
    n_unlabelled, n_labelled, n_open
):
    rng, n_days = np.random.default_rng(0), n_unlabelled + n_labelled + n_open
    times = np.sort(rng.uniform(0, n_days * DAY, 100 * n_days))
    labels = np.where(rng.random(times.size) < 0.01, 1, 0)
    labels[times < n_unlabelled * DAY] = -1
    assert find_labelled_until(times, labels) is None
    labels[(times > (n_days - n_open) * DAY) & (labels == 0)] = -1
    assert find_labelled_until(times, labels) == times[labels == 0].max()


@pytest.mark.parametrize("share", [0.03, 0.05])
def test_labels_of_reviewed_alerts_that_go_on_are_not_open(share):
    rng = np.random.default_rng(5)
    times = np.sort(rng.uniform(0, 120 * DAY, 20_000))
    labels = np.where(rng.random(times.size) < 0.02, 1, 0)
    is_reviewed = (labels == 1) | (rng.random(times.size) < share)
    labels[(times > 30 * DAY) & ~is_reviewed] = -1
    assert find_labelled_until(times, labels) is None


def test_a_date_by_mistake_does_not_lengthen_the_open_days():
    times = np.append(np.linspace(0, 100 * DAY, 5000), 400 * DAY)
    labels = np.where(times <= 80 * DAY, 0, -1)
    until = find_labelled_until(times, labels)
    assert until == times[labels == 0].max()
    assert count_open_days(times, until) == pytest.approx(20, abs=0.2)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.004])
def test_single_labels_that_come_early_do_not_hide_an_open_month(share):
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 120 * DAY, 40_000))
    labels = np.where(rng.random(times.size) < 0.01, 1, 0)
    labels[rng.random(times.size) > share] = -1
    assert find_labelled_until(times, labels) is None
    is_open = times > 90 * DAY
    labels[is_open & (labels == 0)] = -1
    last = times[labels == 0].max()
    labels[times.searchsorted(100 * DAY)] = 0
    labels[times.searchsorted(119 * DAY)] = 0 if share > 0.1 else -1
    assert find_labelled_until(times, labels) == pytest.approx(last, abs=DAY / 10)
