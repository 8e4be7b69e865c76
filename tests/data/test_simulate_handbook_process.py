"""Settings of the Handbook's fraud process: each one changes the data by what it says."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import numpy as np
import polars as pl
import pytest

from turncoat.data.simulators.handbook import (
    PUBLISHED_PROCESS,
    FraudProcess,
    HandbookSize,
    simulate_handbook,
    simulate_published_process,
)
from turncoat.errors import ConfigError

N_DAYS = 200
# About ten payments a day for each terminal or customer, so that nearly every day is seen.
DENSE = {
    "terminal": {"n_rows": 300_000, "n_days": N_DAYS, "n_customers": 500, "n_terminals": 150},
    "customer": {"n_rows": 300_000, "n_days": N_DAYS, "n_customers": 150, "n_terminals": 50},
}


def simulate(process, seed=0, **size):
    tables = simulate_handbook(**{"n_rows": 100_000, **size}, seed=seed, process=process)
    return tables["transactions"].hstack(tables["truth"].drop("TRANSACTION_ID"))


def simulate_episodes(owner, n_seeds, **settings):
    """Episodes of busy terminals or customers, and how many of these there are in all seeds."""
    process, name = FraudProcess(**settings), owner.upper()
    episodes, n_busy = [], 0
    for seed in range(n_seeds):
        rows = simulate(process, seed, **DENSE[owner])
        busy = rows.filter(pl.len().over(f"{name}_ID") >= 6 * N_DAYS)
        n_busy += busy[f"{name}_ID"].n_unique()
        found = busy.select(
            pl.lit(seed).alias("seed"),
            pl.col(f"{name}_ID").alias("id"),
            pl.col(f"{name}_EPISODE_START").alias("start"),
            pl.col(f"{name}_EPISODE_END").alias("end"),
        )
        episodes.append(found.drop_nulls().unique())
    return pl.concat(episodes), n_busy


def within_sampling_error(n_found, n, share):
    """Whether a count is within four standard errors of its expectation."""
    return abs(n_found - n * share) <= 4 * math.sqrt(n * share * (1 - share))


@pytest.mark.parametrize("owner", ["terminal", "customer"])
def test_fixed_windows_have_the_asked_length(owner):
    hazard = {f"{owner}_hazard_per_day": 0.002}
    episodes, _ = simulate_episodes(owner, 2, **hazard, **{f"{owner}_window_days": 5})
    lengths = episodes.filter(pl.col("end") < N_DAYS - 1).select(pl.col("end") - pl.col("start"))
    days = lengths.to_series() + 1
    assert days.len() > 50
    assert days.min() == days.median() == 5
    assert (days == 5).mean() > 0.95, "only overlapping windows are longer"


@pytest.mark.parametrize("owner", ["terminal", "customer"])
def test_exponential_windows_have_the_asked_mean_and_spread(owner):
    settings = {f"{owner}_hazard_per_day": 0.002, f"{owner}_window_days": 8.5}
    episodes, _ = simulate_episodes(owner, 6, **settings, window_distribution="exponential")
    early = episodes.filter(pl.col("start") < N_DAYS // 2)  # their ends are simulated
    days = early.select(pl.col("end") - pl.col("start") + 1).to_series()
    sd = math.sqrt(8.5 * 7.5)
    assert days.len() > 100
    assert days.min() == 1
    assert days.mean() == pytest.approx(8.5, abs=4 * sd / math.sqrt(days.len()))
    assert days.std() == pytest.approx(sd, rel=0.3)


@pytest.mark.parametrize("owner", ["terminal", "customer"])
@pytest.mark.parametrize("hazard", [0.001, 0.01])
def test_hazards_are_the_share_compromised_per_day(owner, hazard):
    settings = {f"{owner}_hazard_per_day": hazard, f"{owner}_window_days": 1}
    episodes, n_busy = simulate_episodes(owner, 2, **settings)
    n_windows = episodes.select(pl.col("end") - pl.col("start") + 1).sum().item()
    assert n_busy > 100
    assert within_sampling_error(n_windows, n_busy * (N_DAYS - 1), hazard)


@pytest.mark.parametrize("share", [0.05, 0.4, 0.9])
def test_the_share_of_a_compromised_terminals_payments_holds(share):
    hazards = {"terminal_hazard_per_day": 0.002, "customer_hazard_per_day": 0}
    rows = simulate(FraudProcess(terminal_fraud_share=share, large_amount=math.inf, **hazards))
    exposed = rows.filter(pl.col("TERMINAL_EPISODE_START").is_not_null())
    assert exposed.height > 2_000
    assert within_sampling_error(exposed["TX_FRAUD"].sum(), exposed.height, share)
    assert exposed["TX_FRAUD"].sum() == rows["TX_FRAUD"].sum(), "no fraud outside of windows"
    assert set(rows["TX_FRAUD_SCENARIO"]) == {0, 2}


@pytest.mark.parametrize("share", [0.02, 0.1, 0.6, 1.0])
def test_the_share_of_a_compromised_customers_payments_holds(share):
    """Also where less than one payment of a window is the thief's."""
    hazards = {"terminal_hazard_per_day": 0, "customer_hazard_per_day": 0.003}
    process = FraudProcess(customer_fraud_share=share, large_amount=math.inf, **hazards)
    rows = pl.concat([simulate(process, seed) for seed in range(3)])
    exposed = rows.filter(pl.col("CUSTOMER_EPISODE_START").is_not_null())
    window = pl.col("CUSTOMER_EPISODE_END") - pl.col("CUSTOMER_EPISODE_START") + 1
    exposed = exposed.filter(window <= 14)  # overlapping windows have two thieves
    assert exposed.height > 3_000
    assert within_sampling_error(exposed["TX_FRAUD"].sum(), exposed.height, share)
    assert set(rows["TX_FRAUD_SCENARIO"]) == {0, 3}


def test_a_hazard_of_zero_turns_its_scenario_off():
    for owner, scenario in (("terminal", 2), ("customer", 3)):
        rows = simulate(FraudProcess(**{f"{owner}_hazard_per_day": 0}))
        assert rows[f"{owner.upper()}_EPISODE_START"].is_null().all()
        assert rows[f"{owner.upper()}_EPISODE_END"].is_null().all()
        assert set(rows["TX_FRAUD_SCENARIO"]) == {0, 1, 2, 3} - {scenario}
    off = {"terminal_hazard_per_day": 0, "customer_hazard_per_day": 0, "large_amount": math.inf}
    assert simulate(FraudProcess(**off))["TX_FRAUD"].sum() == 0


def measure_terminal_effect(process):
    """Variance of the frauds per terminal, in standard errors above that of shuffled labels."""
    rows, rng = simulate(process), np.random.default_rng(0)
    fraud, customer, terminal = (
        rows[name].to_numpy() for name in ("TX_FRAUD", "CUSTOMER_ID", "TERMINAL_ID")
    )
    by_customer, labels, shuffled = np.argsort(customer, kind="stable"), fraud.copy(), []
    for _ in range(50):  # among the payments of each customer
        labels[by_customer] = fraud[np.lexsort((rng.random(fraud.size), customer))]
        shuffled.append(np.bincount(terminal, labels).var())
    return (np.bincount(terminal, fraud).var() - np.mean(shuffled)) / np.std(shuffled)


def test_without_compromised_terminals_fraud_does_not_depend_on_the_terminal():
    off = FraudProcess(terminal_hazard_per_day=0, customer_hazard_per_day=0.01)
    assert abs(measure_terminal_effect(off)) < 4
    assert measure_terminal_effect(PUBLISHED_PROCESS) > 20


@pytest.mark.parametrize("factor", [0.5, 2, 7.5])
def test_amounts_are_multiplied_by_the_factor(factor):
    before = simulate(FraudProcess(customer_hazard_per_day=0))["TX_AMOUNT"].to_numpy()
    rows = simulate(FraudProcess(amount_factor=factor))
    after, stolen = rows["TX_AMOUNT"].to_numpy(), (rows["TX_FRAUD_SCENARIO"] == 3).to_numpy()
    assert stolen.sum() > 100
    np.testing.assert_array_equal(after[~stolen], before[~stolen])
    once = np.abs(after - factor * before) <= 0.006  # rounded to cents
    twice = np.abs(after - factor**2 * before) <= 0.006
    assert (once | twice)[stolen].all()
    assert once[stolen].mean() > 0.95, "twice only in overlapping windows"


def test_amounts_above_the_limit_are_fraud():
    off = {"terminal_hazard_per_day": 0, "customer_hazard_per_day": 0}
    rows = simulate(FraudProcess(large_amount=150, **off))
    assert ((rows["TX_AMOUNT"] > 150) == (rows["TX_FRAUD"] == 1)).all()
    assert rows["TX_FRAUD"].sum() > 500


@pytest.mark.parametrize(
    "process",
    [
        FraudProcess(window_distribution="exponential"),
        FraudProcess(terminal_window_days=60, customer_window_days=3),
        FraudProcess(terminal_fraud_share=0.5, customer_fraud_share=0.5),
        FraudProcess(terminal_hazard_per_day=0.01, customer_hazard_per_day=0.02),
    ],
)
def test_the_truth_is_consistent_with_the_labels(process):
    rows = simulate(process)
    scenario = pl.col("TX_FRAUD_SCENARIO")
    assert rows.select(((scenario > 0) == (pl.col("TX_FRAUD") == 1)).all()).item()
    for name, number in (("TERMINAL", 2), ("CUSTOMER", 3)):
        start, end = pl.col(f"{name}_EPISODE_START"), pl.col(f"{name}_EPISODE_END")
        assert rows.filter((scenario == number) & start.is_null()).is_empty()
        assert rows.select((start.is_null() == end.is_null()).all()).item()
        inside = rows.filter(start.is_not_null())
        assert inside.select(pl.col("TX_TIME_DAYS").is_between(start, end).all()).item()
        per_episode = inside.group_by(f"{name}_ID", f"{name}_EPISODE_START").agg(end.n_unique())
        assert (per_episode[f"{name}_EPISODE_END"] == 1).all()
    assert rows.filter((scenario == 0) & (pl.col("TX_AMOUNT") > 220)).is_empty()


def test_the_default_is_the_published_process():
    assert FraudProcess() == PUBLISHED_PROCESS
    given = simulate_handbook(20_000, 4, process=FraudProcess())
    for name, table in simulate_handbook(20_000, 4).items():
        assert table.equals(given[name])
    size = HandbookSize(n_customers=200, n_terminals=400, n_days=50)
    given = simulate_published_process(4, size, FraudProcess())
    for name, table in simulate_published_process(4, size).items():
        assert table.equals(given[name])


def test_both_simulations_use_the_process_and_repeat_with_the_seed():
    process = FraudProcess(window_distribution="exponential", customer_fraud_share=0.2)
    size = HandbookSize(n_customers=200, n_terminals=400, n_days=50)
    one, same = (simulate_published_process(1, size, process) for _ in range(2))
    assert one["truth"].equals(same["truth"])
    assert not one["truth"].equals(simulate_published_process(1, size)["truth"])
    assert simulate(process).equals(simulate(process))


def test_processes_share_the_payments_before_fraud():
    one = simulate(PUBLISHED_PROCESS)
    other = simulate(FraudProcess(terminal_hazard_per_day=0.01, window_distribution="exponential"))
    for column in ("TX_DATETIME", "CUSTOMER_ID", "TERMINAL_ID"):
        assert one[column].equals(other[column])


def test_windows_longer_than_the_simulation_end_with_it():
    for days, distribution in ((10**9, "fixed"), (1e300, "exponential")):
        windows = {"terminal_window_days": days, "customer_window_days": days}
        rows = simulate(FraudProcess(**windows, window_distribution=distribution), n_rows=20_000)
        ends = rows["TERMINAL_EPISODE_END"].drop_nulls()
        assert ends.len() > 0
        assert (ends == 182).all()


def test_everyone_can_be_compromised_every_day():
    always = {"terminal_hazard_per_day": 1, "customer_hazard_per_day": 1.0}
    rows = simulate(FraudProcess(**always), n_rows=2_000, n_days=10)
    assert (rows["TERMINAL_EPISODE_START"] == 0).all()
    assert rows["TX_FRAUD"].min() == 1


def test_a_process_cannot_be_changed_but_replaced():
    with pytest.raises(FrozenInstanceError):
        PUBLISHED_PROCESS.amount_factor = 2
    assert replace(PUBLISHED_PROCESS, amount_factor=2).amount_factor == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"large_amount": 0}, "large_amount is 0; it must be a number above 0, or inf"),
        ({"large_amount": math.nan}, "large_amount is nan; it must be"),
        ({"amount_factor": -1}, "amount_factor is -1; it must be a finite number above 0"),
        ({"amount_factor": math.inf}, "amount_factor is inf; it must be"),
        ({"amount_factor": "5"}, "amount_factor is '5'; it must be"),
        ({"terminal_hazard_per_day": -0.1}, "terminal_hazard_per_day is -0.1; it must be a number"),
        ({"customer_hazard_per_day": 1.1}, "customer_hazard_per_day is 1.1; it must be a number"),
        ({"customer_hazard_per_day": None}, "customer_hazard_per_day is None; it must be"),
        ({"terminal_fraud_share": 0}, "terminal_fraud_share is 0; .* Set terminal_hazard_per_day"),
        ({"customer_fraud_share": 1.5}, "customer_fraud_share is 1.5; it must be a number above 0"),
        ({"customer_fraud_share": True}, "customer_fraud_share is True; it must be"),
        ({"terminal_window_days": 0}, "terminal_window_days is 0; it must be a whole number"),
        ({"customer_window_days": 2.5}, "customer_window_days is 2.5; it must be a whole number"),
        ({"customer_window_days": math.inf}, "customer_window_days is inf; it must be"),
        (
            {"customer_window_days": 0.5, "window_distribution": "exponential"},
            "customer_window_days is 0.5; it must be a finite number of at least 1",
        ),
        ({"window_distribution": "gamma"}, "is 'gamma'; it must be one of fixed, exponential"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        FraudProcess(**settings)
