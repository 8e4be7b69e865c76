"""Drift: definitions by hand, injected shifts, and sums shared by processes."""

from __future__ import annotations

import json
import multiprocessing
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from turncoat import ConfigError, DataError
from turncoat.features.history import DAY
from turncoat.scoring.drift import (
    DRIFTED,
    NOT_JUDGED,
    STABLE,
    TOO_FEW,
    WATCH,
    DriftMonitor,
    DriftReport,
    stability_index,
)
from turncoat.scoring.reference import Reference

K, D = 3, 12
NAMES = tuple(f"feature {d}" for d in range(D))
RATES = np.array([0.001, 0.02, 0.4])
CENTRES = np.random.default_rng(99).normal(size=(K, D))
Traffic = tuple[np.ndarray, np.ndarray, np.ndarray]


def traffic(n_rows: int, seed: int, weights: tuple[float, ...] = (0.8, 0.15, 0.05)) -> Traffic:
    """Return mostly certain beliefs, cells around their regime's mean, and scores."""
    rng = np.random.default_rng(seed)
    states = rng.choice(K, n_rows, p=weights)
    beliefs = 0.98 * np.eye(K)[states] + 0.02 * rng.dirichlet(np.ones(K), n_rows)
    rows = rng.normal(CENTRES[states], 1.0).astype(np.float32)
    rows[rng.random(rows.shape) < 0.1] = np.nan
    rows[:, 3] = np.nan  # a column that is never there
    rows[:, 4] = 2.0  # and one that never varies
    return beliefs, rows, beliefs @ RATES


def measure(beliefs: np.ndarray, rows: np.ndarray, scores: np.ndarray) -> Reference:
    """Return the reference of transactions of as many customers, all known for long."""
    n = len(rows)
    return Reference.measure(beliefs, rows, scores, np.arange(n + 1), OLD[:n])


OLD = np.full(10_000, 100 * DAY)
REFERENCE = measure(*traffic(6000, 1))


def monitor(
    folder: Path | None = None, reference: Reference = REFERENCE, **settings: Any
) -> DriftMonitor:
    return DriftMonitor(reference, folder, NAMES, **settings)


def told(*parts: Traffic, n_each: int = 64, **settings: Any) -> DriftReport:
    """What is said of these transactions, which come in batches."""
    made = monitor(**settings)
    for beliefs, rows, scores in parts:
        for start, stop in pairwise([*range(0, len(rows), n_each), len(rows)]):
            made.add(beliefs[start:stop], rows[start:stop], scores[start:stop], OLD[start:stop])
    return made.report(max_features=D)


def feature(report: DriftReport, regime: int, name: str) -> Any:
    return next(f for f in report.regimes[regime].features if f.feature == name)


def test_the_stability_index_is_the_sum_by_hand() -> None:
    now, then = (
        np.array([9.5, 29.5, 59.5]),
        np.array([49.5, 29.5, 19.5]),
    )  # half a transaction is added to each
    p, q = np.array([10, 30, 60]) / 100, np.array([50, 30, 20]) / 100
    by_hand = (0.1 - 0.5) * np.log(0.1 / 0.5) + (0.6 - 0.2) * np.log(0.6 / 0.2)
    assert stability_index(now, then) == pytest.approx(by_hand)
    assert stability_index(now, then) == pytest.approx(float(((p - q) * np.log(p / q)).sum()))
    assert stability_index(then, then) == 0.0
    assert np.isfinite(stability_index(np.array([100.0, 0.0]), np.array([0.0, 100.0])))


def test_growing_histories_are_not_drift() -> None:
    names = ("n_before", "counterparty_since_first", *NAMES[2:])
    for moved, verdict in (([0, 1], STABLE), ([2], DRIFTED)):
        beliefs, rows, scores = traffic(3000, 2)
        rows[:, moved] += 3.0
        made = DriftMonitor(REFERENCE, None, names, names[:2])
        made.add(beliefs, rows, scores, OLD[: len(rows)])
        report = made.report(max_features=D)
        assert report.verdict == verdict
        assert {f.feature for regime in report.regimes for f in regime.features}.isdisjoint(
            names[:2]
        )
        assert (max(regime.largest_shift for regime in report.regimes) > 1) == (verdict == DRIFTED)


def of_customers(n_customers: int, n_each: int, seed: int) -> tuple[Traffic, np.ndarray]:
    """Return transactions of customers with habits of their own in all columns, and offsets."""
    beliefs, rows, scores = traffic(n_customers * n_each, seed)
    habits = np.random.default_rng(1000 + seed).normal(size=(n_customers, D))
    rows = (rows + 2 * habits.repeat(n_each, axis=0)).astype(np.float32)
    return (beliefs, rows, scores), np.arange(n_customers + 1) * n_each


def test_other_customers_with_the_same_habits_are_not_drift() -> None:
    n_false = 0
    for seed in range(5):
        then, offsets = of_customers(40, 60, seed)
        now, _ = of_customers(150, 60, 100 + seed)
        reference = Reference.measure(*then, offsets, OLD[:2400])
        assert told(now, reference=reference).verdict == STABLE
        n_false += told(now, reference=measure(*then)).verdict != STABLE
        now[1][:, 7] += 6.0
        report = told(now, reference=reference)
        assert (report.verdict, report.regimes[0].features[0].feature) == (DRIFTED, NAMES[7])
    assert n_false >= 3, "as if transactions were independent"


def test_a_regime_of_three_customers_has_no_sure_features() -> None:
    (beliefs, rows, scores), offsets = of_customers(40, 60, 1)
    beliefs[:] = np.eye(K)[0]
    beliefs[: 3 * 60] = np.eye(K)[1]
    reference = Reference.measure(beliefs, rows, scores, offsets, OLD[:2400])
    report = told((beliefs, rows + 9, scores), reference=reference)
    assert report.regimes[0].features[0].verdict == DRIFTED
    assert report.regimes[1].features
    assert all(one.verdict == STABLE for one in report.regimes[1].features)


def test_young_histories_count_on_neither_side() -> None:
    beliefs, rows, scores = traffic(6000, 1)
    ages = np.where(np.arange(6000) % 3 == 0, 10.0, 60.0) * DAY
    changed = rows.copy()
    changed[ages < 30 * DAY] += 4.0
    reference = Reference.measure(beliefs, changed, scores, np.arange(6001), ages)
    is_old = ages >= 30 * DAY
    alone = measure(beliefs[is_old], rows[is_old], scores[is_old])
    np.testing.assert_array_equal(reference.means, alone.means)
    assert (reference.min_age_s, reference.n_rows) == (30 * DAY, 4000)
    one, other = monitor(reference=reference, half_life=1e12), monitor(reference=alone)
    one.add(beliefs, changed, scores, ages)
    other.add(beliefs[is_old], rows[is_old], scores[is_old], ages[is_old])
    report = one.report()
    assert (report.transactions, report.left_out) == (pytest.approx(4000), pytest.approx(2000))
    assert (report.min_age_days, report.verdict) == (30.0, STABLE)
    assert report.regimes[0].features[0].mean_now == pytest.approx(
        other.report().regimes[0].features[0].mean_now
    )
    young = monitor(reference=reference)
    young.add(beliefs, changed, scores, np.minimum(ages, 29 * DAY))
    assert (young.report().verdict, young.report().left_out) == (TOO_FEW, pytest.approx(6000))


def test_scores_of_trees_may_be_left_to_the_reader() -> None:
    beliefs, rows, scores = traffic(5000, 7)
    made = monitor(judges_scores=False)
    made.add(beliefs, rows, np.sqrt(scores), OLD[:5000])
    report = made.report()
    assert (report.score.verdict, report.verdict) == (NOT_JUDGED, STABLE)
    assert report.score.psi > 0.25


@pytest.mark.parametrize("n_each", [1, 7, 64, 700])
def test_the_report_equals_its_definitions(n_each: int) -> None:
    beliefs, rows, scores = now = traffic(700, 2)
    report = told(now, n_each=n_each, half_life=1e12)
    assert report.transactions == pytest.approx(700)
    counts = np.histogram(scores, REFERENCE.edges)[0]
    assert report.score.psi == pytest.approx(stability_index(counts, REFERENCE.counts))
    assert report.score.mean_now == pytest.approx(scores.mean())
    assert report.score.mean_then == pytest.approx(REFERENCE.mean_score)
    for k, regime in enumerate(report.regimes):
        assert regime.transactions == pytest.approx(beliefs[:, k].sum())
        assert regime.occupancy_now == pytest.approx(beliefs[:, k].mean())
        assert regime.occupancy_then == pytest.approx(REFERENCE.occupancy[k])
    for d in (0, 7):
        there = ~np.isnan(rows[:, d])
        weights, cells = beliefs[there, 0], rows[there, d].astype(float)
        mean = (weights * cells).sum() / weights.sum()
        found = feature(report, 0, NAMES[d])
        assert found.mean_now == pytest.approx(mean)
        assert found.mean_then == pytest.approx(REFERENCE.means[0, d])
        assert found.shift == pytest.approx(
            (mean - REFERENCE.means[0, d]) / REFERENCE.spreads[0, d]
        )
        spread = np.sqrt((weights * (cells - mean) ** 2).sum() / weights.sum())
        ratio = max(spread / REFERENCE.spreads[0, d], 1.0)
        variance = ratio**2 / weights.sum() + 1 / REFERENCE.mass[0, d]
        error = np.sqrt(REFERENCE.effects[0, d] * variance)
        assert found.z == pytest.approx(found.shift / error)


def test_old_transactions_fade_with_the_half_life() -> None:
    made = monitor(half_life=100)
    beliefs, rows, scores = traffic(100, 3)
    made.add(beliefs, rows, scores, OLD[: len(rows)])
    assert made.report().transactions == pytest.approx(100)
    made.add(beliefs, rows, scores, OLD[: len(rows)])
    assert made.report().transactions == pytest.approx(150)
    for _ in range(40):
        made.add(beliefs, rows, scores, OLD[: len(rows)])
    assert made.report().transactions == pytest.approx(200)
    moved = rows.copy()
    moved[:, 0] += 3
    for _ in range(10):  # what came before is a thousandth of all
        made.add(beliefs, moved, scores, OLD[: len(rows)])
    found = feature(made.report(max_features=D), 0, NAMES[0])
    there = ~np.isnan(rows[:, 0])
    assert found.mean_now == pytest.approx(
        np.average(moved[there, 0], weights=beliefs[there, 0]), abs=0.01
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_rows", [600, 5000])
def test_unchanged_traffic_is_stable(n_rows: int, seed: int) -> None:
    report = told(traffic(n_rows, 100 + seed))
    assert report.verdict == STABLE, report
    assert report.score.verdict == STABLE
    assert all(regime.verdict == STABLE for regime in report.regimes)
    assert all(f.verdict == STABLE for regime in report.regimes for f in regime.features)
    assert all(regime.largest_shift < 0.2 for regime in report.regimes)


@pytest.mark.parametrize(("size", "verdict"), [(0.35, WATCH), (-1.0, DRIFTED)])
@pytest.mark.parametrize("regime", [0, 1])
def test_an_injected_shift_is_found_in_its_regime_and_feature(
    regime: int, size: float, verdict: str
) -> None:
    beliefs, rows, scores = traffic(8000, 5)
    rows[beliefs.argmax(axis=1) == regime, 7] += size
    report = told((beliefs, rows, scores))
    first = report.regimes[regime].features[0]
    assert (first.feature, first.verdict) == (NAMES[7], verdict)
    assert first.shift == pytest.approx(size, rel=0.2)
    assert report.regimes[regime].largest_shift == abs(first.shift)
    others = [
        (r.regime, f)
        for r in report.regimes
        for f in r.features
        if (r.regime, f.feature) != (regime, NAMES[7])
    ]
    assert all(f.verdict == STABLE for _, f in others), others
    assert report.score.verdict == STABLE
    assert report.verdict == verdict


def test_a_constant_column_that_starts_to_vary_is_found() -> None:
    beliefs, rows, scores = traffic(3000, 6)
    assert all(
        f.feature != NAMES[3]
        for regime in told((beliefs, rows, scores)).regimes
        for f in regime.features
    )
    assert feature(told((beliefs, rows, scores)), 0, NAMES[4]).shift == 0.0
    rows[:, 4] += 1.0
    assert feature(told((beliefs, rows, scores)), 0, NAMES[4]).verdict == DRIFTED


def test_more_traffic_in_a_regime_is_found_in_its_share_and_in_the_scores() -> None:
    report = told(traffic(5000, 7, weights=(0.5, 0.3, 0.2)))
    assert [regime.verdict for regime in report.regimes] == [DRIFTED, WATCH, DRIFTED]
    assert report.score.verdict == DRIFTED
    assert report.score.mean_now is not None
    assert report.score.mean_now > 2 * report.score.mean_then
    slight = told(traffic(5000, 8, weights=(0.65, 0.23, 0.12)))
    assert slight.score.verdict in (WATCH, DRIFTED)
    assert slight.score.psi < report.score.psi


def test_few_transactions_get_no_verdict() -> None:
    beliefs, rows, scores = traffic(450, 9)
    report = told((beliefs, rows + 5, scores))
    assert report.verdict == report.score.verdict == TOO_FEW
    assert all(regime.verdict == TOO_FEW for regime in report.regimes)
    assert report.regimes[2].features == ()  # too few in this regime
    assert report.regimes[0].features[0].verdict == DRIFTED
    nothing = monitor().report()
    assert (nothing.transactions, nothing.verdict, nothing.score.psi, nothing.score.mean_now) == (
        0.0,
        TOO_FEW,
        0.0,
        None,
    )
    assert all(
        regime.occupancy_now is None and regime.largest_shift == 0 and regime.features == ()
        for regime in nothing.regimes
    )


def test_extreme_cells_and_nan_rows_change_nothing() -> None:
    beliefs, rows, scores = traffic(3000, 10)
    rows[5, 0] = 1e6
    assert told((beliefs, rows, scores)).verdict == STABLE
    bad_beliefs, bad_scores = beliefs.copy(), scores.copy()
    bad_beliefs[7], bad_scores[8] = np.nan, np.nan
    report = told((bad_beliefs, rows, bad_scores), half_life=1e12)
    assert report.transactions == pytest.approx(2998)
    assert report.verdict == STABLE


def test_the_most_shifted_features_come_first() -> None:
    beliefs, rows, scores = traffic(4000, 11)
    rows[:, 2] += 0.4
    rows[:, 9] -= 0.9
    made = monitor()
    made.add(beliefs, rows, scores, OLD[: len(rows)])
    for regime in made.report(max_features=2).regimes:
        assert [f.feature for f in regime.features] == [NAMES[9], NAMES[2]]
    assert all(len(regime.features) == 5 for regime in made.report().regimes)


def test_a_report_is_json() -> None:
    for report in (monitor().report(), told(traffic(900, 12))):
        plain = json.loads(json.dumps(asdict(report), allow_nan=False))
        assert plain["regimes"][0]["regime"] == 0
        assert msgspec.json.decode(msgspec.json.encode(report), type=DriftReport) == report


def test_other_dtypes_are_accepted_and_other_shapes_refused() -> None:
    beliefs, rows, scores = traffic(700, 13)
    one, other = monitor(), monitor()
    one.add(beliefs, rows, scores, OLD[: len(rows)])
    frozen = scores.copy()
    frozen.flags.writeable = False
    other.add(beliefs.astype(np.float32), np.asfortranarray(rows.astype(float)), frozen, OLD[:700])
    assert other.report().score == one.report().score
    assert other.report().regimes[0].features[0].shift == pytest.approx(
        one.report().regimes[0].features[0].shift, abs=1e-6
    )
    for wrong in (
        (beliefs[:, :2], rows, scores, OLD[:700]),
        (beliefs, rows[:, :2], scores, OLD[:700]),
        (beliefs, rows, scores[:2], OLD[:700]),
        (beliefs[:9], rows, scores, OLD[:700]),
        (beliefs, rows, scores, OLD[:9]),
    ):
        with pytest.raises(DataError, match=r"\[n, 3\], cells \[n, 12\], scores \[n\] and ages"):
            one.add(*wrong)
    with pytest.raises(ConfigError, match="12 features; found 2 names"):
        DriftMonitor(REFERENCE, None, ("one", "two"))
    with pytest.raises(ConfigError, match="half_life"):
        monitor(half_life=0)


def test_one_regime_or_no_columns_still_give_a_report() -> None:
    ones = np.ones((800, 1))
    alone = measure(ones, np.zeros((800, 0), np.float32), np.full(800, 0.01))
    made = DriftMonitor(alone, None, ())
    made.add(ones[:600], np.zeros((600, 0), np.float32), np.full(600, 0.01), OLD[:600])
    report = made.report()
    assert (report.verdict, report.score.psi, report.regimes[0].occupancy_now) == (STABLE, 0.0, 1.0)


# ---- several processes


def test_monitors_of_one_folder_report_their_sum(tmp_path: Path) -> None:
    made = [monitor(tmp_path / "run" / "drift", half_life=1e12) for _ in range(3)]
    parts = [traffic(400, 20 + i) for i in range(3)]
    for one, part in zip(made, parts, strict=True):
        one.add(*part, OLD[:400])
    together = told(*parts, n_each=400, half_life=1e12)
    reports = [one.report(max_features=D) for one in made]
    assert reports[0].transactions == pytest.approx(1200)
    for report in reports:
        assert report.score.psi == pytest.approx(together.score.psi)
        assert feature(report, 0, NAMES[0]).mean_now == pytest.approx(
            feature(together, 0, NAMES[0]).mean_now
        )
    for one in made:
        one.close()


def _work(folder: Path, seed: int, done: Any, leave: Any) -> None:
    one = DriftMonitor(REFERENCE, folder, NAMES, half_life=1e12)
    one.add(*traffic(300, seed), OLD[:300])
    done.wait()
    leave.wait()  # with no word to anybody, as a process that is killed


def test_processes_share_sums_and_inherit_those_of_ended_ones(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    done, leave = context.Barrier(3), context.Event()
    workers = [
        context.Process(target=_work, args=(tmp_path, seed, done, leave)) for seed in (30, 31)
    ]
    for worker in workers:
        worker.start()
    try:
        done.wait(60)
        own = monitor(tmp_path, half_life=1e12)
        assert own.report().transactions == pytest.approx(600)
        own.add(*traffic(300, 32), OLD[:300])
        assert own.report().transactions == pytest.approx(900)
        own.close()
    finally:
        leave.set()
        for worker in workers:
            worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    heir = monitor(tmp_path, half_life=300)
    assert heir.report().transactions == pytest.approx(900)
    heir.add(*traffic(300, 33), OLD[:300])
    assert heir.report().transactions == pytest.approx(
        750
    )  # all that was left is forgotten in time
    second = monitor(tmp_path)
    assert second.report().transactions == pytest.approx(750)
    heir.close()
    second.close()


def test_sums_survive_a_restart(tmp_path: Path) -> None:
    first = monitor(tmp_path)
    first.add(*traffic(700, 40), OLD[:700])
    before = first.report()
    first.close()
    assert first.report() == before
    first.add(*traffic(5, 41), OLD[:5])  # still does not fail, and is nobody's
    again = monitor(tmp_path)
    assert again.report() == before
    again.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_other_models_and_damaged_files_are_not_added(tmp_path: Path) -> None:
    other = monitor(tmp_path, measure(*traffic(6000, 2)))
    other.add(*traffic(700, 50), OLD[:700])
    wide = DriftMonitor(
        measure(np.ones((50, 1)), np.zeros((50, 2), np.float32), np.full(50, 0.1)),
        tmp_path,
        ("a", "b"),
    )
    own = monitor(tmp_path)
    own.add(*traffic(700, 51), OLD[:700])
    size = max(path.stat().st_size for path in tmp_path.iterdir())
    (tmp_path / "7777.sums").write_bytes(b"nonsense")
    (tmp_path / "7778.sums").write_bytes(b"\xff" * size)
    assert own.report().transactions == pytest.approx(700, rel=0.05)
    assert other.report().transactions == pytest.approx(700, rel=0.05)
    for one in (other, wide, own):
        one.close()
    whole = (tmp_path / "0002.sums").read_bytes()
    (tmp_path / "0002.sums").write_bytes(whole[:-8] + np.array([np.nan]).tobytes())
    again = monitor(tmp_path)
    assert again.report().transactions == 0
    again.close()


def test_a_new_calibration_restarts_scores_only(tmp_path: Path) -> None:
    made, late = monitor(tmp_path, half_life=1e12), monitor(tmp_path, half_life=1e12)
    beliefs, rows, scores = traffic(700, 60)
    for one in (made, late):
        one.add(beliefs, rows, scores, OLD[: len(rows)])
    doubled = REFERENCE.replace_scores(REFERENCE.beliefs @ (2 * RATES))
    assert made.update_reference(REFERENCE)
    assert made.report().score.verdict == STABLE
    assert made.update_reference(doubled)
    assert made.report().score.mean_now is None
    assert made.report().transactions == pytest.approx(1400)
    made.add(beliefs, rows, 2 * scores, OLD[: len(rows)])
    report = made.report()
    assert report.score.mean_now == pytest.approx(2 * scores.mean())
    assert (report.score.verdict, report.verdict) == (STABLE, STABLE)
    assert late.update_reference(doubled)
    late.add(beliefs, rows, 2 * scores, OLD[: len(rows)])
    assert made.report() == late.report()
    assert not made.update_reference(replace(REFERENCE, means=REFERENCE.means + 1))
    for one in (made, late):
        one.close()
    again = monitor(tmp_path, doubled)  # after a restart
    assert again.report().score.mean_now == pytest.approx(2 * scores.mean())
    again.close()


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot keep its sums"):
        monitor(tmp_path / "file")
