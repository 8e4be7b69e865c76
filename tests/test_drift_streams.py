"""Drift on simulated streams: stationary ones are stable, and injected changes are found."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from benchmarks.drift import CHANGES, VARIANTS, run_seed, simulate, watch

from turncoat.data import read
from turncoat.data.splits import DAY
from turncoat.scoring.drift import NOT_JUDGED, STABLE, TOO_FEW, DriftMonitor

REGIMES = {name: one for name, one in VARIANTS.items() if one.kind == "regimes"}


@cache
def run() -> dict[str, Any]:
    return run_seed(1, REGIMES, list(CHANGES))


@pytest.mark.parametrize("title", REGIMES)
def test_a_stationary_stream_is_stable_although_histories_grow(title: str) -> None:
    found = run()[title][""]
    assert (found["stable"], found["found"], found["changed"]) == (True, False, [])


@pytest.mark.parametrize("title", REGIMES)
@pytest.mark.parametrize("change", CHANGES)
def test_injected_changes_are_found(title: str, change: str) -> None:
    assert run()[title][change]["found"]


def test_an_empty_store_gets_no_verdict_until_histories_are_a_month_old() -> None:
    """The service starts without any history: nothing is known of customers that are old."""
    transactions = read(simulate(1), "handbook")
    begin = np.floor(transactions.times.min() / DAY) * DAY + 90 * DAY
    early, late = (
        transactions.take(np.flatnonzero(is_in))
        for is_in in (transactions.times < begin, transactions.times >= begin)
    )
    detector = REGIMES["regimes, split by time"].fit(early, 1)
    reports = watch(detector, late, begin)
    assert [report.verdict for report in reports[:4]] == [TOO_FEW] * 4
    assert reports[3].left_out == pytest.approx(0.47 * late.n_rows, rel=0.05)
    assert {report.verdict for report in reports[4:]} <= {TOO_FEW, STABLE}
    assert reports[-1].verdict == STABLE


def test_scores_of_trees_are_judged_only_without_growing_features() -> None:
    transactions = read(simulate(1), "handbook").take(np.arange(5_000))
    for names, is_judged in ((["TX_AMOUNT", "amount_z"], True), (["amount_z", "n_before"], False)):
        variant = VARIANTS["trees, split by time"]
        detector = variant.fit(transactions, 1, names)
        report = DriftMonitor.watch(detector).report()
        assert (report.score.verdict != NOT_JUDGED) == is_judged
