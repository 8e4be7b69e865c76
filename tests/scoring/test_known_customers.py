"""The sample of customers that shows when histories are missing."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.scoring.detectors import detector
from turncoat import load
from turncoat.data import read
from turncoat.data.schema import Schema
from turncoat.scoring import known_customers
from turncoat.scoring.known_customers import KnownCustomers

SCHEMA = Schema(customer="who", time="at", continuous=("paid",))


def sample(names: list[str], at: float = 0.0) -> KnownCustomers:
    frame = pl.DataFrame({"who": names, "at": [at] * len(names), "paid": [1.0] * len(names)})
    return KnownCustomers.sample(read(frame, SCHEMA))


def estimate(known: KnownCustomers, names: list[str], at: float, n_seen: int = 1) -> float:
    n = len(names)
    return known.estimate_missing(np.array(names), np.full(n, at), np.full(n, n_seen))


def test_known_customers_without_history_are_counted() -> None:
    known = sample([f"c{i}" for i in range(100)])
    names = [f"c{i}" for i in range(80, 120)]
    assert estimate(known, names, at=1e6) == 0.5
    assert estimate(known, names, at=0.0) == 0.0, "the same first transaction"
    assert estimate(known, names, at=1e6, n_seen=2) == 0.0, "history is there"
    assert estimate(known, ["x", "y"], at=1e6) == 0.0, "new customers"


def test_a_customer_counts_once_however_many_transactions() -> None:
    known = sample(["a", "b"])
    found = known.estimate_missing(
        np.array(["a", "a", "a", "x"]), np.full(4, 1e6), np.array([1, 2, 3, 1])
    )
    assert found == 0.5


def test_a_large_fit_is_sampled_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_customers, "MAX_CUSTOMERS", 500)
    known = sample([f"c{i}" for i in range(20_000)])
    assert len(known.hashes) == 500
    names = [f"c{i}" for i in range(16_000, 26_000)]  # four in ten are known
    # About 250 customers are covered, so the standard error is 0.031.
    assert estimate(known, names, at=1e6) == pytest.approx(0.4, abs=0.1)


def test_the_warning_names_source_and_share() -> None:
    known = sample(["a", "b", "c", "d"])
    args = np.array(["a", "b", "c", "x"]), np.full(4, 1e6)
    text = known.describe_missing("july.csv", *args, np.ones(4))
    assert text == (
        "about 75% of the customers in july.csv are known from the fit, but are scored as new "
        "ones: their earlier transactions are missing"
    )
    assert known.describe_missing("july.csv", *args, np.full(4, 2)) is None


def test_a_saved_detector_keeps_its_sample(tmp_path) -> None:
    made = detector("shop")
    made.save(tmp_path / "detector")
    again = load(tmp_path / "detector").known_customers_
    np.testing.assert_array_equal(again.hashes, made.known_customers_.hashes)
    np.testing.assert_array_equal(again.first_times, made.known_customers_.first_times)


@pytest.mark.parametrize(
    ("hashes", "times"),
    [
        (np.array([2, 1], np.uint64), np.zeros(2)),
        (np.array([1, 2], np.int64), np.zeros(2)),
        (np.array([1, 2], np.uint64), np.zeros(1)),
        (np.array([1, 2], np.uint64), np.array([0.0, np.nan])),
        (np.array([], np.uint64), np.zeros(0)),
    ],
)
def test_damaged_samples_are_refused(hashes: np.ndarray, times: np.ndarray) -> None:
    with pytest.raises(ValueError, match="known customer"):
        KnownCustomers(hashes, times).check()
