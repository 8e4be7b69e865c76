"""The reference for drift: figures as defined, score bins safe against rounding, saving."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scoring.bundles import manifest_of, rewrite, rewrite_arrays
from tests.scoring.detectors import data_of, detector, ranked_detector, scored_shop, time_split
from turncoat import BundleError, load
from turncoat.data.parsing import parse_row
from turncoat.features import NEVER
from turncoat.features.history import DAY
from turncoat.features.split_panels import build_split_panel
from turncoat.scoring import DetectorState
from turncoat.scoring.calibration_part import CalibrationPart
from turncoat.scoring.reference import Reference, find_score_bins

ARRAYS = (
    *("occupancy", "occupancy_effects", "means", "spreads", "mass", "effects"),
    *("edges", "counts", "beliefs", "customers"),
)


def draw_rows(
    n_rows: int = 300, n_states: int = 3, n_columns: int = 5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    beliefs = rng.dirichlet(np.full(n_states, 0.4), n_rows)
    rows = rng.normal(beliefs @ rng.normal(size=(n_states, n_columns)), 1.0).astype(np.float32)
    rows[rng.random(rows.shape) < 0.2] = np.nan
    rows[:, -1] = np.nan  # never there
    return beliefs, rows, beliefs @ np.linspace(0.001, 0.3, n_states)


def of_scores(probabilities: Any) -> Reference:
    n = len(probabilities)
    return measure(np.ones((n, 1)), np.zeros((n, 1), np.float32), np.asarray(probabilities, float))


def measure(beliefs: Any, rows: Any, scores: Any, ranker_scores: Any = None) -> Reference:
    """The reference of rows of as many customers, none of which is young."""
    n = len(rows)
    return Reference.measure(beliefs, rows, scores, np.arange(n + 1), np.zeros(n), ranker_scores)


def test_every_figure_is_as_defined() -> None:
    beliefs, rows, scores = draw_rows()
    reference = measure(beliefs, rows, scores)
    for k in range(3):
        assert reference.occupancy[k] == pytest.approx(sum(beliefs[:, k]) / 300)
        for d in range(5):
            pairs = [
                (beliefs[t, k], float(rows[t, d])) for t in range(300) if not math.isnan(rows[t, d])
            ]
            mass = sum(w for w, _ in pairs)
            mean = sum(w * x for w, x in pairs) / mass if pairs else 0.0
            assert reference.mass[k, d] == pytest.approx(mass)
            assert reference.means[k, d] == pytest.approx(mean)
            spread = math.sqrt(sum(w * (x - mean) ** 2 for w, x in pairs) / mass) if pairs else 0.0
            assert reference.spreads[k, d] == pytest.approx(spread)
    assert reference.mean_score == pytest.approx(scores.mean())
    assert reference.n_rows == 300
    reference.check(3, 5, has_ranker=False)


def test_many_rows_are_summed_in_parts_and_a_few_are_kept() -> None:
    beliefs, rows, scores = draw_rows(40_000, seed=1)
    whole = measure(beliefs, rows, scores)
    present = np.nan_to_num(rows.astype(float))
    np.testing.assert_allclose(whole.mass, beliefs.T @ ~np.isnan(rows))
    np.testing.assert_allclose(whole.mass * whole.means, beliefs.T @ present, rtol=1e-9, atol=1e-9)
    assert whole.beliefs.shape == (4096, 3)
    assert whole.counts.sum() == 40_000
    again = whole.replace_scores(whole.beliefs @ np.linspace(0.001, 0.3, 3))
    assert again.counts.sum() == 4096
    assert again.mean_score == pytest.approx(whole.mean_score, rel=0.05)


def test_one_enormous_cell_does_not_make_a_mean() -> None:
    beliefs, rows, scores = draw_rows()
    rows[5, 0] = 1e6
    assert np.abs(measure(beliefs, rows, scores).means[:, 0]).max() < 3


@pytest.mark.parametrize("n_rows", [1, 2, 7, 100, 5000])
@pytest.mark.parametrize("kind", ["uniform", "skewed", "atoms", "one", "ends"])
def test_bins_cover_everything_and_rise(n_rows: int, kind: str) -> None:
    rng = np.random.default_rng(n_rows)
    scores = {
        "uniform": rng.random(n_rows),
        "skewed": rng.beta(0.05, 5.0, n_rows),
        "atoms": rng.choice([0.001, 0.01, 0.4], n_rows, p=[0.9, 0.09, 0.01]),
        "one": np.full(n_rows, 0.02),
        "ends": rng.choice([0.0, 1.0], n_rows),
    }[kind]
    reference = of_scores(scores)
    reference.check(1, 1, has_ranker=False)
    assert reference.edges[0] == 0
    assert reference.edges[-1] == 1
    assert (np.diff(reference.edges) > 0).all()
    assert 1 <= len(reference.counts) <= 20
    assert reference.counts.sum() == n_rows
    by_hand = [
        ((scores >= low) & (scores < high)).sum()
        for low, high in zip(reference.edges[:-1], reference.edges[1:], strict=True)
    ]
    by_hand[-1] += (scores == 1.0).sum()
    np.testing.assert_array_equal(reference.counts, by_hand)
    for score in (0.0, 1e-300, 0.5, 1.0):
        assert (
            0
            <= find_score_bins(reference.edges[1:-1], np.array([score]))[0]
            < len(reference.counts)
        )


def test_smooth_scores_have_twenty_bins_finer_where_fraud_is() -> None:
    counts = of_scores(np.random.default_rng(0).beta(0.5, 8.0, 20_000)).counts
    assert len(counts) == 20
    assert counts.max() < 0.2 * 20_000
    assert 0 < counts[-1] < 0.003 * 20_000
    assert counts[-5:].sum() < 0.06 * 20_000


@pytest.mark.parametrize("seed", range(10))
def test_rounding_takes_no_score_into_another_bin(seed: int) -> None:
    """Scores of nearly certain beliefs are a few values; rounding does not split them."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.random(4)) * np.array([0.001, 0.01, 0.1, 1.0])
    exact = rng.choice(values, 3000, p=[0.7, 0.2, 0.08, 0.02])
    one, other = (exact * (1 + 1e-7 * rng.normal(size=3000)) for _ in range(2))
    reference = of_scores(one)
    assert len(reference.counts) == len(np.unique(exact))
    np.testing.assert_array_equal(
        find_score_bins(reference.edges[1:-1], one), find_score_bins(reference.edges[1:-1], other)
    )


def test_design_effects_are_as_defined() -> None:
    beliefs, rows, scores = draw_rows(400, seed=3)
    habits = 3 * np.random.default_rng(4).normal(size=(50, 5)).repeat(8, axis=0)
    rows = (rows + habits).astype(np.float32)
    offsets = np.array([0, 3, *range(8, 401, 8)])  # the first customer is two
    groups = [range(*pair) for pair in pairwise(offsets.tolist())]
    found = Reference.measure(beliefs, rows, scores, offsets, np.zeros(400))
    cells = np.nan_to_num(rows.astype(float))
    for k in range(3):
        for d in range(4):
            weights = beliefs[:, k] * ~np.isnan(rows[:, d])
            mean, mass = found.means[k, d], weights.sum()
            own = [sum(weights[t] * (cells[t, d] - mean) for t in group) for group in groups]
            n = mass**2 / sum(weights[list(group)].sum() ** 2 for group in groups)
            ratio = sum(x * x for x in own) / mass**2 / (found.spreads[k, d] ** 2 / mass)
            assert ratio > 1.3, "customers differ"
            assert found.effects[k, d] == pytest.approx(ratio * n / (n - 3))
        share = beliefs[:, k].mean()
        own = [sum(beliefs[t, k] - share for t in group) for group in groups]
        ratio = max(sum(x * x for x in own) / 400**2 / (share * (1 - share) / 400), 1.0)
        n = 400**2 / sum(len(group) ** 2 for group in groups)
        assert found.occupancy_effects[k] == pytest.approx(ratio * n / (n - 3))
    alone = measure(beliefs, rows, scores)
    np.testing.assert_allclose(alone.effects[:, :4], 1.0, atol=0.05)


def test_scores_of_customers_have_a_design_effect_that_survives_a_recalibration() -> None:
    rng = np.random.default_rng(5)
    levels = np.array([0.001, 0.01, 0.4])[rng.integers(3, size=60)]
    scores = levels.repeat(20)
    beliefs, rows = np.ones((1200, 1)), np.zeros((1200, 1), np.float32)
    offsets = np.arange(61) * 20
    found = Reference.measure(beliefs, rows, scores, offsets, np.zeros(1200))
    assert found.score_effect == pytest.approx(20 * 60 / 57), "as if each customer were one row"
    assert found.replace_scores(scores / 2).score_effect == pytest.approx(found.score_effect)
    mixed = rng.permutation(scores)
    assert found.replace_scores(mixed).score_effect < 2


@pytest.mark.parametrize(("days", "limit"), [(90, 30.0), (40, 20.0), (0, 0.0)])
def test_the_older_half_of_the_rows_counts_at_least(days: int, limit: float) -> None:
    beliefs, rows, scores = draw_rows(301)
    ages = np.linspace(0, days * DAY, 301)
    found = Reference.measure(beliefs, rows, scores, np.arange(302), ages)
    assert found.min_age_s == pytest.approx(limit * DAY)
    is_old = ages >= found.min_age_s
    expected = measure(beliefs[is_old], rows[is_old], scores[is_old])
    np.testing.assert_array_equal(found.means, expected.means)
    np.testing.assert_array_equal(found.counts, expected.counts)


@pytest.mark.parametrize("features", ["engineered", "processed"])
def test_ages_are_the_same_live_and_in_the_reference(features: str) -> None:
    made, data = detector(features=features), data_of("shop")
    transactions = data.transactions
    order = np.asarray(data.live_order)
    codes, schema = transactions.customer_codes, made.features_.plan.schema
    links = np.full((len(order), 1 + len(made.features_.plan.counterparties)), -1)
    latest: dict[int, int] = {}
    for i, place in enumerate(order.tolist()):
        links[i, 0] = latest.get(codes[place], -1)
        latest[codes[place]] = i
    rows = [parse_row(schema, data.rows[transactions.file_rows[place]]) for place in order]
    steps = made.live.advance([DetectorState()] * len(rows), rows, [NEVER] * len(rows), links)
    live = np.empty(len(order))
    live[order] = steps.ages_s
    split = time_split(transactions)
    expected = CalibrationPart.read(made.features_, transactions, split, made._inference).ages_s
    np.testing.assert_allclose(live[split.calibration], expected, atol=1e-3)
    assert (expected.max() > DAY) == (features == "engineered")


def calibration_rows(made: Any, transactions: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    panel, places = build_split_panel(
        made.features_, transactions, time_split(transactions), "calibration"
    )
    ages = CalibrationPart.read(
        made.features_, transactions, time_split(transactions), made._inference
    ).ages_s
    return panel.continuous[places], made._inference.infer(panel)[places], ages


def test_a_fitted_detector_has_that_of_its_calibration_rows() -> None:
    made, transactions = detector(), data_of("shop").transactions
    rows, beliefs, ages = calibration_rows(made, transactions)
    offsets = transactions.take(time_split(transactions).calibration).offsets
    scores = beliefs @ made.regimes.mean_rates
    expected = Reference.measure(beliefs, rows, scores, offsets, ages)
    assert 0 < expected.min_age_s <= 30 * DAY
    for name in ARRAYS:
        np.testing.assert_allclose(
            getattr(made.calibration_.reference, name), getattr(expected, name), rtol=1e-12
        )
    is_old = ages >= expected.min_age_s
    np.testing.assert_allclose(expected.occupancy, beliefs[is_old].mean(axis=0))
    assert made.calibration_.reference.ranker_scores is None


def test_with_a_ranker_the_scores_are_the_ranked_ones() -> None:
    made, transactions = ranked_detector("column"), scored_shop().transactions
    _, beliefs, ages = calibration_rows(made, transactions)
    external = transactions.column("mine")[time_split(transactions).calibration]
    reference = made.calibration_.reference
    beliefs, external = (array[ages >= reference.min_age_s] for array in (beliefs, external))
    scores = made.calibration_.regime_rankers["filtered"].predict(external, beliefs)[0]
    assert reference.mean_score == pytest.approx(scores.mean())
    np.testing.assert_array_equal(reference.counts, of_scores(scores).counts)
    assert reference.mean_score != pytest.approx(
        (beliefs @ made.regimes.mean_rates).mean(), rel=1e-6
    )
    assert reference.ranker_scores is not None
    np.testing.assert_array_equal(reference.ranker_scores, external)


@pytest.mark.parametrize("ranked", [False, True])
def test_it_is_saved_with_the_detector(ranked: bool, tmp_path: Path) -> None:
    made = ranked_detector("column") if ranked else detector()
    made.save(tmp_path)
    one, other = made.calibration_.reference, load(tmp_path).calibration_.reference
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("n_rows", "mean_score", "min_age_s", "score_effect"):
        assert getattr(one, name) == getattr(other, name)
    assert (other.ranker_scores is not None) == ranked


WRONG: dict[str, dict[str, Any]] = {
    "means of other columns": {"means": np.zeros((3, 2))},
    "another number of regimes": {"occupancy": np.full(4, 0.25)},
    "less than no mass": {"mass": "negative"},
    "means that are no number": {"means": "nan"},
    "edges that fall": {"edges": "reversed"},
    "no edges": {"edges": None},
    "beliefs of none": {"beliefs": np.zeros((0, 3), np.float32)},
    "a ranker's scores": {"external": np.zeros(2)},
    "counts in whole numbers": {"counts": "whole"},
    "effects below 1": {"effects": "negative"},
    "customers of no row": {"customers": np.zeros(0, np.int32)},
}


@pytest.mark.parametrize("name", list(WRONG))
def test_one_that_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    detector().save(tmp_path)
    reference = detector().calibration_.reference
    ways = {
        "negative": lambda a: -a,
        "nan": lambda a: a * np.nan,
        "reversed": lambda a: a[::-1].copy(),
        "whole": lambda a: a.astype(int),
    }
    changes = {
        key: ways[value](getattr(reference, key)) if isinstance(value, str) else value
        for key, value in WRONG[name].items()
    }
    rewrite_arrays(tmp_path, {f"reference.{key}": value for key, value in changes.items()})
    with pytest.raises(BundleError, match="not a detector this version understands"):
        load(tmp_path)


def test_nonsense_beside_the_arrays_is_refused(tmp_path: Path) -> None:
    detector().save(tmp_path)
    content = manifest_of(tmp_path)["reference"]
    for wrong in (
        None,
        {},
        {**content, "mean_score": 2.0},
        {**content, "n_rows": 0},
        {**content, "charm": 1},
        {**content, "mean_score": None},
        {**content, "min_age_s": -1.0},
        {**content, "score_effect": 0.5},
    ):
        rewrite(tmp_path, reference=wrong)
        with pytest.raises(BundleError, match="not a detector this version understands"):
            load(tmp_path)
    rewrite(tmp_path, reference=content)
    load(tmp_path)


def test_check_tells_a_ranker_s_reference_from_another() -> None:
    reference = measure(*draw_rows())
    with pytest.raises(ValueError, match="ranker"):
        reference.check(3, 5, has_ranker=True)
    with pytest.raises(ValueError, match="ranker"):
        replace(reference, ranker_scores=np.zeros(3)).check(3, 5, has_ranker=True)
    replace(reference, ranker_scores=np.zeros(300)).check(3, 5, has_ranker=True)
