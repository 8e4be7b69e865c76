"""Profiles of several columns: chosen where they tell intruders apart, given, saved, explained."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import average_precision_score

from tests.scoring.chains import AMOUNT
from tests.scoring.detectors import model_of, time_split
from turncoat import ConfigError, Detector, load
from turncoat.data.presets import load_preset
from turncoat.data.reading import read
from turncoat.data.simulators.handbook import FraudProcess, simulate_handbook
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.chains import COUNTERPARTY_OUTPUTS
from turncoat.numerics.intruder import OUTPUTS
from turncoat.numerics.label_times import LabelTimes
from turncoat.scoring.chain_fitting import fit_causes
from turncoat.scoring.formatting import format_amount, format_number, format_times
from turncoat.scoring.intruder_fitting import CustomerRows
from turncoat.scoring.profile_choice import choose_profile, screen_columns

DISTANCE, NOISE = "DISTANCE", tuple(f"NOISE_{k}" for k in range(4))
WAITS = LabelTimes(7 * 86400.0, 0.0)
# Thieves' amounts say little, and there is nothing wrong with terminals.
PROCESS = FraudProcess(
    amount_factor=1.3, customer_hazard_per_day=6e-3, terminal_hazard_per_day=0, large_amount=np.inf
)


@cache
def travels(factor: float = 5.0, seed: int = 1, n_noise: int = len(NOISE)) -> Transactions:
    """Payments with a distance of the customer's own, `factor` times as far for thieves."""
    made, rng = simulate_handbook(9000, seed, n_days=90, process=PROCESS), np.random.default_rng(9)
    frame, truth = made["transactions"], made["truth"]
    n, who = frame.height, frame["CUSTOMER_ID"].rank("dense").to_numpy() - 1
    usual = rng.lognormal(2, 1, who.max() + 1)[who]
    is_thief = truth["TX_FRAUD_SCENARIO"].to_numpy() == 3
    distance = usual * rng.lognormal(0, 0.4, n) * np.where(is_thief, factor, 1.0)
    distance[rng.random(n) < 0.1] = np.nan
    noise = {f"NOISE_{k}": rng.lognormal(0, 1, n) for k in range(n_noise)}
    columns = {DISTANCE: distance, **noise}
    frame = frame.with_columns(*(pl.Series(name, column) for name, column in columns.items()))
    return read(frame, replace(load_preset("handbook"), continuous=(AMOUNT, *columns)))


def choose(data: Transactions, seed: int = 0) -> tuple[str, ...]:
    return choose_profile(data, np.zeros(data.n_rows), WAITS, seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_column_that_tells_intruders_apart_is_chosen(seed: int) -> None:
    assert choose(travels(seed=seed), seed)[:2] == (AMOUNT, DISTANCE)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_columns_that_say_nothing_are_rarely_chosen(seed: int) -> None:
    """One standard error lets a column in by chance one time in six."""
    assert len(choose(travels(1.0, seed), seed)) <= 2


def test_the_screen_finds_a_good_column_among_many() -> None:
    data = travels(n_noise=150)
    names = [name for name in data.schema.continuous if name != AMOUNT]
    rows = CustomerRows.sample(data, 0)
    found = screen_columns(data, rows, names, np.zeros(data.n_rows))
    assert found[0] == DISTANCE
    assert len(found) <= 3
    explained = np.asarray(data.labels, float)  # another cause explains every fraud
    assert screen_columns(data, rows, names, explained) == []


def test_without_an_amount_nothing_is_chosen() -> None:
    data = travels()
    unnamed = replace(data, schema=replace(data.schema, amount=None))
    assert choose(unnamed) == ()
    features = Features(profile=[DISTANCE]).fit(unnamed)
    own = fit_causes(features, unnamed).chains.intruder
    assert own is not None  # but a profile may be given
    assert own.columns == (DISTANCE,)


def test_an_amount_that_is_always_missing_has_no_profile() -> None:
    data = travels()
    numbers = {**data.numbers, AMOUNT: np.full(data.n_file_rows, np.nan)}
    missing = replace(data, numbers=numbers)
    assert choose(missing) == (AMOUNT,)
    assert fit_causes(Features().fit(missing), missing).chains.intruder is None


def test_a_fit_chooses_beside_all_other_causes() -> None:
    """Also the scorecard knows the distance, but not that it is the customer's own."""
    data = travels()
    assert fit_causes(Features().fit(data), data).chains.profile_columns == (AMOUNT, DISTANCE)


@cache
def fit(*profile: str) -> Detector:
    data, features = travels(), Features(profile=profile)
    made = Detector(features, model_of("expected-log", 2), kind="chains")
    return made.fit(data, time_split(data))


def test_a_second_profile_finds_more_frauds() -> None:
    data, found = travels(), {}
    test = time_split(data).test
    labels = np.asarray(data.labels)[test]
    assert labels.sum() > 30
    for profile in ((AMOUNT,), (AMOUNT, DISTANCE)):
        made = fit(*profile)
        chains = made.features_.plan.chains
        assert chains is not None
        assert chains.profile_columns == profile
        found[profile] = average_precision_score(labels, made.score(data).probability[test])
    assert found[AMOUNT, DISTANCE] > found[AMOUNT,] + 0.1


def test_reasons_name_the_column_that_is_oddest() -> None:
    made, data = fit(AMOUNT, DISTANCE), travels()
    causes = np.asarray(made.features_.transform(data).causes)
    fact = dict(zip((*OUTPUTS, *COUNTERPARTY_OUTPUTS), causes.T, strict=True))
    reasons = made.score(data, reasons="all").reasons
    assert reasons is not None
    row = int(np.where(fact["oddest"] == 1, fact["intruder"], 0.0).argmax())
    (text,) = [one.text for one in reasons[row] if one.source == "customer"]
    assert text.startswith(
        f"{DISTANCE} {format_number(data.column(DISTANCE)[row])}, "
        f"{format_times(fact['times_usual'][row])} this customer's own usual"
    )
    assert fact["times_usual"][row] > 2
    row = int(np.flatnonzero((fact["oddest"] == 0) & (data.n_seen > 1))[0])
    (text,) = [one.text for one in reasons[row] if one.source == "customer"]
    assert text.startswith(f"amount {format_amount(data.column(AMOUNT)[row])}, ")
    assert f" {format_times(fact['times_usual'][row])} this customer's own usual" in text
    first = int(np.flatnonzero((fact["oddest"] == 0) & (data.n_seen == 1))[0])
    (text,) = [one.text for one in reasons[first] if one.source == "customer"]
    assert "× usual for a new customer" in text


def test_profiles_are_saved_with_the_detector(tmp_path: Path) -> None:
    made, data = fit(AMOUNT, DISTANCE), travels()
    made.save(tmp_path / "made")
    again = load(tmp_path / "made")
    assert list(again.features.profile) == [AMOUNT, DISTANCE]
    expected, found = made.score(data), again.score(data)
    np.testing.assert_array_equal(found.probability, expected.probability)
    chains = again.features_.plan.chains
    assert chains is not None
    assert chains.profile_columns == (AMOUNT, DISTANCE)


def test_a_record_grows_by_three_numbers_for_each_profile() -> None:
    sizes = [fit(*profile).features_.state_bytes[0] for profile in ((AMOUNT,), (AMOUNT, DISTANCE))]
    assert sizes[1] - sizes[0] == 3 * 8


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (["DISTANC"], r"'DISTANC', but there is no such continuous column.*DISTANCE"),
        ([AMOUNT, "TERMINAL_ID"], "'TERMINAL_ID', but there is no such continuous column"),
        ("DISTANCE", "list of column names"),
        ([], "list of column names"),
        ([3], "list of column names"),
        ([AMOUNT, AMOUNT], "twice"),
    ],
    ids=str,
)
def test_impossible_profiles_are_refused(profile: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Features(profile=profile).fit(travels())
