"""The Handbook's process: its rules, its rates at several sizes, and a separate truth."""

from __future__ import annotations

import datetime
import hashlib

import numpy as np
import polars as pl
import pytest
from scipy import stats

from turncoat.data.simulators import handbook as module
from turncoat.data.simulators.handbook import (
    HandbookSize,
    simulate_handbook,
    simulate_published_process,
)
from turncoat.errors import ConfigError

COLUMNS = [
    "TRANSACTION_ID",
    "TX_DATETIME",
    "CUSTOMER_ID",
    "TERMINAL_ID",
    "TX_AMOUNT",
    "TX_TIME_SECONDS",
    "TX_TIME_DAYS",
    "TX_FRAUD",
]


@pytest.fixture(scope="module")
def made():
    """A third of the published size."""
    return simulate_handbook(600_000, 1)


@pytest.fixture(scope="module")
def rows(made):
    return made["transactions"].join(
        made["truth"], on="TRANSACTION_ID", validate="1:1", maintain_order="left"
    )


@pytest.mark.parametrize("n_rows", [1, 2, 17, 1_000, 30_001])
def test_any_size_gives_exactly_the_rows_asked_for(n_rows):
    tables = simulate_handbook(n_rows, 3)
    transactions, truth = tables["transactions"], tables["truth"]
    assert transactions.height == truth.height == n_rows
    assert transactions.columns == COLUMNS
    assert transactions["TRANSACTION_ID"].equals(truth["TRANSACTION_ID"])
    assert transactions["TRANSACTION_ID"].to_list() == list(range(n_rows))
    assert transactions["TX_DATETIME"].is_sorted()
    assert transactions.null_count().sum_horizontal().item() == 0


def test_the_clock_is_consistent(rows):
    assert rows["TX_DATETIME"].dtype == pl.Datetime("ms")
    start = datetime.datetime(2018, 4, 1)
    assert (
        rows.select((pl.col("TX_DATETIME") - start).dt.total_seconds() == pl.col("TX_TIME_SECONDS"))
        .to_series()
        .all()
    )
    assert (
        rows.select(pl.col("TX_TIME_SECONDS") // 86_400 == pl.col("TX_TIME_DAYS")).to_series().all()
    )
    assert (rows["TX_TIME_DAYS"].min(), rows["TX_TIME_DAYS"].max()) == (0, 182)
    of_day = rows["TX_TIME_SECONDS"].to_numpy() % 86_400
    assert of_day.min() >= 1
    expected = stats.truncnorm(-2.16, 2.16, 43_200, 20_000)
    assert stats.kstest(of_day[::20] + 0.5, expected.cdf).pvalue > 1e-4


def test_the_truth_is_not_in_the_transactions(made):
    assert set(made["transactions"].columns).isdisjoint(
        set(made["truth"].columns) - {"TRANSACTION_ID"}
    )
    assert "TX_FRAUD_SCENARIO" in made["truth"].columns


def test_the_scenarios_follow_their_rules(rows):
    scenario = pl.col("TX_FRAUD_SCENARIO")
    in_terminal_episode = pl.col("TERMINAL_EPISODE_START").is_not_null()
    assert rows.select(((scenario > 0) == (pl.col("TX_FRAUD") == 1)).all()).item()
    assert set(rows["TX_FRAUD_SCENARIO"].unique()) == {0, 1, 2, 3}
    assert rows.filter((scenario == 0) & (pl.col("TX_AMOUNT") > 220)).is_empty()
    assert rows.filter(scenario == 1)["TX_AMOUNT"].min() > 220
    assert rows.filter(in_terminal_episode & ~scenario.is_in([2, 3])).is_empty(), (
        "all payments at a compromised terminal are fraud"
    )
    assert rows.filter(~in_terminal_episode & (scenario == 2)).is_empty()
    assert rows.filter(pl.col("CUSTOMER_EPISODE_START").is_null() & (scenario == 3)).is_empty()
    exposed = rows.filter(pl.col("CUSTOMER_EPISODE_START").is_not_null())
    assert 0.29 < (exposed["TX_FRAUD_SCENARIO"] == 3).mean() < 0.35, (
        "a third of a compromised customer's payments"
    )
    for name, length in (("TERMINAL", 28), ("CUSTOMER", 14)):
        inside = rows.filter(pl.col(f"{name}_EPISODE_START").is_not_null())
        first, last = inside[f"{name}_EPISODE_START"], inside[f"{name}_EPISODE_END"]
        assert ((first <= inside["TX_TIME_DAYS"]) & (inside["TX_TIME_DAYS"] <= last)).all()
        lengths = (last - first + 1).filter(last < 182)
        assert lengths.min() == lengths.mode().item() == length


def test_fraud_of_a_compromised_customer_is_five_times_the_usual(rows):
    cents = (
        (rows.filter(pl.col("TX_FRAUD_SCENARIO") == 3)["TX_AMOUNT"] * 100).round().cast(pl.Int64)
    )
    assert (cents % 5 == 0).all()
    usual = (
        rows.filter(pl.col("TX_FRAUD_SCENARIO") == 0)
        .group_by("CUSTOMER_ID")
        .agg(pl.col("TX_AMOUNT").mean().alias("usual"))
    )
    frauds = rows.filter(pl.col("TX_FRAUD_SCENARIO") == 3).join(usual, on="CUSTOMER_ID")
    assert (frauds["TX_AMOUNT"].mean() / frauds["usual"].mean()) == pytest.approx(5, rel=0.1)


@pytest.mark.parametrize("n_rows", [100_000, 600_000])
def test_rates_are_as_published_at_any_size(n_rows):
    """From day 28 on, 0.056, 0.548 and 0.279 % of rows are fraud of the three scenarios."""
    steady = []
    for seed in range(1_200_000 // n_rows):
        tables = simulate_handbook(n_rows, seed)
        steady.append(
            tables["truth"].filter(tables["transactions"]["TX_TIME_DAYS"] >= 28)[
                "TX_FRAUD_SCENARIO"
            ]
        )
    found = pl.concat(steady)
    for scenario, rate, tolerance in ((1, 0.00057, 0.15), (2, 0.0055, 0.08), (3, 0.00275, 0.08)):
        assert (found == scenario).mean() == pytest.approx(rate, rel=tolerance)
    assert simulate_handbook(n_rows, 0)["transactions"]["CUSTOMER_ID"].n_unique() == pytest.approx(
        n_rows / 351, rel=0.02
    )


def test_as_large_a_share_is_draw_compromised_at_any_size():
    rng = np.random.default_rng(0)
    published = module._draw_compromised(rng, 5_000, 183, 3 / 5_000)
    assert [np.unique(drawn).size for drawn in published] == [3] * 182, "none on the last day"
    few = [
        sum(drawn.size for drawn in module._draw_compromised(rng, 4, 183, 3 / 5_000))
        for _ in range(2_000)
    ]
    assert np.mean(few) == pytest.approx(4 * 182 * 3 / 5_000, rel=0.1), (
        "less than one in all, still as many on average"
    )


def test_payments_stay_near_home_and_terminals_share_them(rows):
    reached = rows.group_by("CUSTOMER_ID").agg(
        pl.col("TERMINAL_ID").n_unique().alias("n"), pl.len()
    )
    busy = reached.filter(pl.col("len") > 400)["n"]
    assert busy.mean() == pytest.approx(72, rel=0.06), (
        "terminals within 5 of home, fewer at the edges of the map"
    )
    per_day = rows.group_by("TERMINAL_ID").len()["len"] / 183
    assert per_day.mean() == pytest.approx(0.958, rel=0.02)


def test_amounts_are_normal_around_the_customers_mean(rows):
    own = rows.filter(pl.col("TX_FRAUD_SCENARIO") != 3).filter(pl.len().over("CUSTOMER_ID") > 300)
    ratio = own.select(
        pl.col("TX_AMOUNT") / pl.col("TX_AMOUNT").mean().over("CUSTOMER_ID")
    ).to_series()
    for quantile, published in ((0.05, 0.2554), (0.5, 0.9869), (0.95, 1.7823), (0.99, 2.108)):
        assert ratio.quantile(quantile) == pytest.approx(published, rel=0.02)
    means = own.group_by("CUSTOMER_ID").agg(pl.col("TX_AMOUNT").mean())["TX_AMOUNT"] / 1.0085
    assert stats.kstest(means, stats.uniform(5, 95).cdf).pvalue > 1e-3


def test_seeds_repeat_and_differ():
    one, same, other = (simulate_handbook(5_000, seed) for seed in (7, 7, 8))
    for name, table in one.items():
        assert table.equals(same[name])
        assert not table.equals(other[name])


def compute_digest(tables):
    """A digest of every cell as a whole number (amounts in cents, times in ms, null as -1)."""
    digest = hashlib.sha256()
    for name, table in tables.items():
        for column in table:
            scale = 100 if column.name == "TX_AMOUNT" else 1
            cells = column.to_physical().fill_null(-1).to_numpy() * scale
            digest.update(f"{name} {column.name} {column.dtype}".encode())
            digest.update(np.round(cells).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def test_the_published_process_draws_the_same_rows_as_ever():
    """Committed results and other people's files rely on these draws. Do not renew the digests."""
    small = {"n_days": 40, "n_customers": 300, "n_terminals": 20}
    size = HandbookSize(n_customers=300, n_terminals=600, n_days=60)
    assert compute_digest(simulate_handbook(20_000, 1)) == "01f05dd901df2462"
    assert compute_digest(simulate_handbook(200_000, 7)) == "beee7fc15f3b0141"
    assert compute_digest(simulate_handbook(5_000, 3, **small)) == "d789e90afdac3bc1"
    assert compute_digest(simulate_published_process(2, size)) == "88094a1cd6417b96"


def test_rows_left_to_chance_are_as_many_as_the_rates_make():
    world = HandbookSize(n_customers=1_000, n_terminals=2_000, n_days=30)
    totals = [simulate_published_process(seed, world)["transactions"].height for seed in range(20)]
    expected = 1_000 * 30 * 2 * (module.LATEST - module.EARLIEST)
    assert np.mean(totals) == pytest.approx(expected, abs=4 * 0.0185 * expected / np.sqrt(20))
    assert len(set(totals)) > 15


def test_sizes_can_be_chosen_and_few_terminals_are_still_in_reach():
    made = simulate_handbook(2_000, 0, n_days=10, n_customers=300, n_terminals=2)["transactions"]
    assert made.height == 2_000
    assert made["TX_TIME_DAYS"].max() == 9
    assert set(made["TERMINAL_ID"]) == {0, 1}
    assert made["CUSTOMER_ID"].max() < 300
    assert simulate_handbook(5, 0, n_days=1)["truth"]["TX_FRAUD_SCENARIO"].is_in([0, 1]).all(), (
        "nobody is compromised on the last day"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_rows": 0}, "n_rows is 0; it must be a whole number of at least 1"),
        ({"n_rows": -5}, "n_rows is -5; it must be"),
        ({"n_rows": 1.5}, "n_rows is 1.5; it must be a whole number of at least 1"),
        ({"n_rows": True}, "n_rows is True; it must be"),
        ({"n_rows": 10, "n_days": 0}, "n_days is 0; it must be"),
        ({"n_rows": 10, "n_terminals": 0}, "n_terminals is 0; it must be"),
        ({"n_rows": 10, "n_customers": -1}, "n_customers is -1; it must be"),
        ({"n_rows": 10, "seed": -1}, "seed is -1; it must be a whole number of at least 0"),
    ],
)
def test_impossible_sizes_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        simulate_handbook(**{"seed": 0, **settings})
