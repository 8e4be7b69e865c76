"""The control of the book: its features by brute force, its weeks, and how it chooses."""

import argparse
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from benchmarks.book_features import FEATURE_NAMES, compute_book_features
from benchmarks.book_recipe import Outcome, Week, build_page, choose, list_weeks
from benchmarks.handbook_data import parse_with_data

from turncoat.data import read
from turncoat.evaluation.protocols import SplitProtocol

FIRST = datetime(2018, 4, 1)


def build_rows(n_rows: int, n_days: int, n_customers: int, n_terminals: int) -> pl.DataFrame:
    """Transactions in order of time, some at exactly the same time or a whole window apart."""
    rng = np.random.default_rng(1)
    seconds = np.sort(rng.integers(0, n_days * 24, n_rows) * 3600)  # whole hours meet window edges
    return pl.DataFrame(
        {
            "TRANSACTION_ID": np.arange(n_rows),
            "TX_DATETIME": [FIRST + timedelta(seconds=int(second)) for second in seconds],
            "CUSTOMER_ID": rng.integers(0, n_customers, n_rows),
            "TERMINAL_ID": rng.integers(0, n_terminals, n_rows),
            "TX_AMOUNT": np.round(rng.gamma(2.0, 30.0, n_rows), 2),
            "TX_FRAUD": (rng.random(n_rows) < 0.3).astype(int),
        }
    )


def compute_by_hand(rows: list[dict], i: int) -> list[float]:
    """The features of one row, from the book's words; `rows` are in order of time."""
    row, now = rows[i], rows[i]["TX_DATETIME"]
    own = [r for r in rows[: i + 1] if r["CUSTOMER_ID"] == row["CUSTOMER_ID"]]
    there = [r for r in rows if r["TERMINAL_ID"] == row["TERMINAL_ID"]]
    counts, averages, uses, risks = [], [], [], []
    for days in (1, 7, 30):
        begin = now - timedelta(days=days)
        amounts = [r["TX_AMOUNT"] for r in own if r["TX_DATETIME"] > begin]
        counts.append(len(amounts))
        averages.append(sum(amounts) / len(amounts))
        end = now - timedelta(days=7)
        begin = end - timedelta(days=days)
        labels = [r["TX_FRAUD"] for r in there if begin < r["TX_DATETIME"] <= end]
        uses.append(len(labels))
        risks.append(sum(labels) / len(labels) if labels else 0.0)
    calendar = [float(now.weekday() >= 5), float(now.hour <= 6)]
    return [row["TX_AMOUNT"], *calendar, *counts, *averages, *uses, *risks]


def test_features_equal_the_books_words():
    frame = build_rows(n_rows=400, n_days=50, n_customers=5, n_terminals=7)
    transactions = read(frame, "handbook")
    found = compute_book_features(transactions)
    assert found.shape == (400, len(FEATURE_NAMES)) == (400, 15)
    rows = frame.to_dicts()
    for place, i in enumerate(transactions.file_rows):
        assert found[place] == pytest.approx(compute_by_hand(rows, int(i)), abs=1e-9), i


def test_features_equal_pandas_rolling_windows():
    frame = build_rows(n_rows=400, n_days=50, n_customers=5, n_terminals=7)
    transactions = read(frame, "handbook")
    found = compute_book_features(transactions)
    column = FEATURE_NAMES.index("CUSTOMER_ID_AVG_AMOUNT_7DAY_WINDOW")
    risk = FEATURE_NAMES.index("TERMINAL_ID_RISK_30DAY_WINDOW")
    by_id = {int(i): row for i, row in zip(transactions.file_rows, found, strict=True)}
    table = frame.to_pandas().set_index("TX_DATETIME")
    for _, own in table.groupby("CUSTOMER_ID"):
        means = own["TX_AMOUNT"].rolling("7D").mean()
        for i, mean in zip(own["TRANSACTION_ID"], means, strict=True):
            assert by_id[i][column] == pytest.approx(mean)
    for _, own in table.groupby("TERMINAL_ID"):
        sums = {d: own["TX_FRAUD"].rolling(f"{d}D").sum() for d in (7, 37)}
        uses = {d: own["TX_FRAUD"].rolling(f"{d}D").count() for d in (7, 37)}
        with np.errstate(invalid="ignore"):
            risks = (sums[37] - sums[7]).to_numpy() / (uses[37] - uses[7]).to_numpy()
        for i, value in zip(own["TRANSACTION_ID"], np.nan_to_num(risks), strict=True):
            assert by_id[i][risk] == pytest.approx(value)


def test_a_later_label_changes_no_feature_of_the_week_before_it():
    frame = build_rows(n_rows=400, n_days=50, n_customers=5, n_terminals=7)
    day = pl.col("TX_DATETIME")
    changed = frame.with_columns(
        pl.when(day >= FIRST + timedelta(days=30)).then(1).otherwise("TX_FRAUD").alias("TX_FRAUD")
    )
    before, after = (compute_book_features(read(rows, "handbook")) for rows in (frame, changed))
    times = read(frame, "handbook").times
    is_early = times < times.min() - times.min() % 86_400 + 37 * 86_400
    assert np.array_equal(before[is_early], after[is_early])
    assert not np.array_equal(before, after)


def test_weeks_are_those_of_the_protocol():
    transactions = read(build_rows(6_000, 110, 400, 50), "handbook")
    weeks = list_weeks(transactions)
    assert len(weeks) == 8
    days = np.floor(transactions.times / 86_400)
    for cards in (False, True):
        splits = SplitProtocol("handbook", drop_compromised=cards).splits(transactions)
        for week, split in zip(weeks[4:], splits, strict=True):
            rows = week.test[week.kept] if cards else week.test
            assert np.array_equal(rows, split.test)
            assert set(days[week.test] - week.first_day) == set(range(7))
            assert set(days[week.train] - week.first_day) == set(range(-14, -7))
    assert np.diff([week.first_day for week in weeks]).tolist() == [7] * 7


def test_the_setting_is_chosen_on_validation_weeks_alone():
    def figure(value: float) -> dict[str, float]:
        return {"auroc": 0.5, "average_precision": value, "card_precision_100": 0.1}

    early = {"book": {"a": figure(0.6), "b": figure(0.5)}}
    late = {"book": {"a": figure(0.4), "b": figure(0.9)}}
    outcome = choose({"exact": [early] * 4 + [late] * 4}, "book", "exact")
    assert outcome.setting == "a"
    assert outcome.mean("average_precision") == pytest.approx(0.4)
    assert outcome.best_in_hindsight == pytest.approx(0.9)


def test_the_page_shows_means_of_the_test_weeks():
    names = ("auroc", "average_precision", "card_precision_100")
    by_week = {name: [0.6, 0.7, 0.8, 0.7] for name in names}
    outcomes = [Outcome(cards, "exact", "a", by_week, 0.75) for cards in ("book", "all")]
    none = np.empty(0, np.int64)
    weeks = [Week(17_600 + 7 * i, none, none, none) for i in range(8)]
    page = build_page(outcomes, weeks)
    assert page.count("0.700 ± 0.071") == 6
    assert page.count("0.687") == 1


@pytest.mark.parametrize("arguments", [[], ["--data", "absent.parquet"]])
def test_without_data_the_page_is_named(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_with_data(argparse.ArgumentParser(), arguments)
    assert stopped.value.code == 2
    assert "docs/benchmarks.md" in capsys.readouterr().err


def test_optional_data_may_be_absent():
    assert parse_with_data(argparse.ArgumentParser(), [], is_optional=True).data is None
