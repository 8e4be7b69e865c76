"""Metrics against scikit-learn, scipy and plain loops."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ks_2samp
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    precision_recall_curve,
    roc_auc_score,
)

from tests.evaluation.samples import make_scored
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.metrics import (
    BUDGETS,
    METRICS,
    ROW_METRICS,
    ScoredLabels,
    brier_losses,
    card_precision,
    compute_curves,
    daily_precision,
    mean_of_known,
    measure,
    or_none,
)

RECALLS = [name for name in METRICS if name.startswith("recall_at_")]
PRECISIONS = [name for name in METRICS if name.startswith("precision_at_")]


def of(scored: ScoredLabels, name: str, weights: np.ndarray | None = None) -> float:
    return measure(scored, [name], weights)[name]


def same(one: dict[str, float], other: dict[str, float]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == pytest.approx(other[name], abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("n_levels", [None, 200, 7, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_ranking_and_losses_are_those_of_scikit_learn_and_scipy(
    n_levels: int | None, weighted: bool
) -> None:
    for seed in range(3):
        scored = make_scored(seed, n_levels=n_levels)
        weights = np.random.default_rng(seed).gamma(1.0, size=len(scored)) if weighted else None
        y, s = scored.labels, scored.scores
        assert of(scored, "average_precision", weights) == pytest.approx(
            average_precision_score(y, s, sample_weight=weights), abs=1e-12
        )
        assert of(scored, "auroc", weights) == pytest.approx(
            roc_auc_score(y, s, sample_weight=weights), abs=1e-12
        )
        assert of(scored, "brier", weights) == pytest.approx(
            brier_score_loss(y, s, sample_weight=weights), abs=1e-12
        )
        inside = ScoredLabels(np.clip(s, 0.001, 0.999), y, scored.customers, scored.days)
        assert of(inside, "log_loss", weights) == pytest.approx(
            log_loss(y, inside.scores, sample_weight=weights), abs=1e-12
        )
        if not weighted:
            assert of(scored, "ks") == pytest.approx(
                ks_2samp(s[y == 1], s[y == 0], method="asymp").statistic, abs=1e-12
            )


def test_log_loss_of_a_sure_mistake_is_finite() -> None:
    scored = ScoredLabels(
        np.array([0.0, 1.0]), np.array([1, 0]), np.zeros(2, int), np.zeros(2, int)
    )
    assert of(scored, "log_loss") == pytest.approx(-np.log(1e-12), rel=1e-4)


@pytest.mark.parametrize("n_levels", [None, 15, 40, 1])
def test_ece_of_equal_width_is_a_loop_over_bins(n_levels: int | None) -> None:
    scored = make_scored(3, n_levels=n_levels)
    assert n_levels == 1 or scored.scores.max() > 0.6
    expected = 0.0
    for b in range(15):
        inside = np.floor(scored.scores * 15) == b
        if b == 14:
            inside |= scored.scores == 1.0
        if inside.any():
            expected += inside.mean() * abs(
                scored.labels[inside].mean() - scored.scores[inside].mean()
            )
    assert of(scored, "ece_width") == pytest.approx(expected, abs=1e-12)


def test_ece_of_equal_mass_is_a_loop_over_bins() -> None:
    scored = make_scored(4, n_rows=1500)
    order = np.argsort(scored.scores)
    expected = np.mean(
        [
            abs(scored.labels[rows].mean() - scored.scores[rows].mean())
            for rows in np.split(order, 15)
        ]
    )
    assert of(scored, "ece_mass") == pytest.approx(expected, abs=1e-12)


def test_rows_on_a_cut_are_shared_out() -> None:
    """With 20 rows a bin holds 1 1/3: the same as 15 copies of each row, 20 copies to a bin."""
    scored = make_scored(5, n_rows=20, rate=0.5)
    copies = scored.take(np.repeat(np.arange(20), 15))
    order = np.argsort(copies.scores, kind="stable")
    expected = np.mean(
        [
            abs(copies.labels[rows].mean() - copies.scores[rows].mean())
            for rows in np.split(order, 15)
        ]
    )
    assert of(scored, "ece_mass") == pytest.approx(expected, abs=1e-12)
    assert of(copies, "ece_mass") == pytest.approx(expected, abs=1e-12)


def test_a_constant_score_is_off_by_its_distance_to_the_fraud_share() -> None:
    labels = np.arange(1000) < 100  # sorted by label, which must not matter
    scored = ScoredLabels(np.full(1000, 0.3), labels, np.arange(1000), np.zeros(1000, int))
    assert of(scored, "ece_mass") == pytest.approx(0.2)
    assert of(scored, "ece_width") == pytest.approx(0.2)
    assert of(scored, "auroc") == 0.5
    assert of(scored, "ks") == 0.0
    assert of(scored, "average_precision") == pytest.approx(0.1)
    for name, budget in zip(RECALLS, BUDGETS, strict=True):
        assert of(scored, name) == pytest.approx(budget)
    for name in PRECISIONS:
        assert of(scored, name) == pytest.approx(0.1)
    assert daily_precision(scored, 50) == pytest.approx(0.1)


@given(st.integers(0, 10**6), st.integers(0, 60), st.sampled_from([None, 30, 4]))
@settings(deadline=None, max_examples=100)
def test_whole_weights_are_copies_of_rows(seed: int, n_rows: int, n_levels: int | None) -> None:
    scored = make_scored(seed, n_rows, rate=0.3, n_levels=n_levels, n_customers=12, n_days=3)
    weights = np.random.default_rng(seed).integers(0, 4, n_rows)
    copies = scored.take(np.repeat(np.arange(n_rows), weights))
    same(measure(scored, weights=weights), measure(copies))
    for k in (1, 3, 7):
        assert card_precision(scored, k, weights) == pytest.approx(
            card_precision(copies, k), nan_ok=True
        )
        assert daily_precision(scored, k, weights) == pytest.approx(
            daily_precision(copies, k), nan_ok=True
        )


@given(st.integers(0, 10**6), st.sampled_from([None, 30, 4]))
@settings(deadline=None, max_examples=30)
def test_the_order_of_rows_and_the_scale_of_weights_do_not_matter(
    seed: int, n_levels: int | None
) -> None:
    scored = make_scored(seed, 50, rate=0.3, n_levels=n_levels, n_customers=12, n_days=3)
    shuffled = scored.take(np.random.default_rng(seed).permutation(50))
    same(measure(scored), measure(shuffled))
    same(measure(scored, ROW_METRICS), measure(scored, ROW_METRICS, np.full(50, 0.37)))


@given(st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_ranking_only_sees_the_order_of_scores(seed: int) -> None:
    scored = make_scored(seed, 80, rate=0.2, n_levels=20)
    stretched = ScoredLabels(100 * scored.scores - 7, scored.labels, scored.customers, scored.days)
    names = [name for name, metric in METRICS.items() if not metric.needs_probability]
    same(measure(scored, names), measure(stretched, names))


def test_recall_and_precision_at_a_budget_count_the_frauds_among_the_highest_scores() -> None:
    scored = make_scored(6, n_rows=4000)
    ranked = scored.labels[np.argsort(-scored.scores)]
    for recall, precision, budget in zip(RECALLS, PRECISIONS, BUDGETS, strict=True):
        assert recall.endswith(f"_at_{100 * budget:g}%")
        assert precision.endswith(f"_at_{100 * budget:g}%")
        alerted = ranked[: round(budget * 4000)]
        assert of(scored, recall) == pytest.approx(alerted.sum() / ranked.sum(), abs=1e-12)
        assert of(scored, precision) == pytest.approx(alerted.mean(), abs=1e-12)


def handbook_card_precision(frame: pd.DataFrame, k: int) -> float:
    """The Handbook's definition: best score and label by customer and day, without found ones."""
    found: list[int] = []
    shares = []
    for day in sorted(frame["day"].unique()):
        rows = frame[(frame["day"] == day) & ~frame["customer"].isin(found)]
        cards = (
            rows.groupby("customer")
            .max()
            .sort_values(by="score", ascending=False, kind="stable")
            .reset_index()
        )
        top = cards.head(k)
        caught = list(top[top["label"] == 1]["customer"])
        shares.append(len(caught) / k)
        found.extend(caught)
    return float(np.mean(shares))


@pytest.mark.parametrize("n_levels", [None, 5])
@pytest.mark.parametrize("k", [1, 10, 100])
def test_card_precision_is_the_handbook_s(n_levels: int | None, k: int) -> None:
    for seed in range(3):
        scored = make_scored(seed, n_levels=n_levels, n_customers=300, n_days=7)
        frame = pd.DataFrame(
            {
                "score": scored.scores,
                "label": scored.labels,
                "customer": scored.customers,
                "day": scored.days,
            }
        )
        assert card_precision(scored, k) == pytest.approx(
            handbook_card_precision(frame, k), abs=1e-12
        )
    assert measure(scored)["card_precision_100"] == card_precision(scored, 100)


def test_a_customer_found_once_is_not_looked_at_again() -> None:
    scores, labels = np.array([0.9, 0.1, 0.9, 0.8]), np.array([1, 0, 1, 1])
    scored = ScoredLabels(scores, labels, np.array([1, 2, 1, 2]), np.array([0, 0, 1, 1]))
    assert card_precision(scored, 1) == 1.0  # customer 1 on the first day, then customer 2
    assert (
        card_precision(scored.take(np.array([0, 2])), 1) == 0.5
    )  # nobody is left on the second day, which counts
    assert card_precision(scored, 2) == 0.5


def test_daily_precision_is_a_loop_over_days() -> None:
    scored = make_scored(7, n_days=9)
    for k in (1, 10, 100, 1000):
        shares = []
        for day in np.unique(scored.days):
            rows = np.flatnonzero(scored.days == day)
            shares.append(scored.labels[rows[np.argsort(-scored.scores[rows])]][:k].sum() / k)
        assert daily_precision(scored, k) == pytest.approx(np.mean(shares), abs=1e-12)
    assert measure(scored)["precision_100_daily"] == daily_precision(scored, 100)


def test_what_does_not_exist_is_nan() -> None:
    scored = make_scored(8, n_rows=300)
    needs_fraud = {"average_precision", "auroc", "ks", *RECALLS, *PRECISIONS}
    for rows, missing in (
        (np.empty(0, int), set(METRICS)),
        (np.flatnonzero(scored.labels == 0), needs_fraud),
        (np.flatnonzero(scored.labels == 1), {"auroc", "ks"}),
    ):
        figures = measure(scored.take(rows))
        assert {name for name, figure in figures.items() if np.isnan(figure)} == missing
        by_weight = measure(scored, weights=np.isin(np.arange(300), rows))
        same(figures, by_weight)
    assert or_none(figures["auroc"]) is None
    assert or_none(figures["brier"]) == figures["brier"]


@pytest.mark.parametrize("outlier", [-0.1, 1.1, -1e300, 1e300])
def test_scores_beyond_0_and_1_have_no_calibration(outlier: float) -> None:
    scored = make_scored(9)
    scores = scored.scores.copy()
    scores[7] = outlier
    other = ScoredLabels(scores, scored.labels, scored.customers, scored.days)
    for weights in (None, np.arange(len(scored)) != 7):
        figures = measure(other, weights=weights)
        assert {name for name, figure in figures.items() if np.isnan(figure)} == {
            n for n, m in METRICS.items() if m.needs_probability
        }
    assert np.isnan(brier_losses(other)).all()
    assert (
        compute_curves(other).mean_score
        == compute_curves(other).fraud_rate
        == compute_curves(other).bin_rows
        == ()
    )
    assert brier_losses(scored).mean() == pytest.approx(of(scored, "brier"))


def test_the_precision_recall_curve_lies_on_scikit_learn_s() -> None:
    scored = make_scored(10, n_rows=20_000, n_levels=3000)
    found = compute_curves(scored)
    precision, recall, _ = precision_recall_curve(scored.labels, scored.scores)
    theirs = {(round(r, 12), round(p, 12)) for r, p in zip(recall, precision, strict=True)}
    assert {
        (round(r, 12), round(p, 12)) for r, p in zip(found.recall, found.precision, strict=True)
    } <= theirs
    assert 190 <= len(found.recall) <= 200
    assert found.recall[-1] == 1.0
    assert np.diff(found.recall).max() < 0.02
    few = compute_curves(make_scored(11, n_rows=60, rate=0.1))
    assert len(few.recall) == len(set(few.recall)) <= 60


def test_reliability_shows_the_bins_of_equal_mass() -> None:
    scored = make_scored(12, n_rows=1500)
    found = compute_curves(scored)
    rows = np.split(np.argsort(scored.scores), 15)
    np.testing.assert_allclose(
        found.mean_score, [scored.scores[r].mean() for r in rows], atol=1e-12
    )
    np.testing.assert_allclose(
        found.fraud_rate, [scored.labels[r].mean() for r in rows], atol=1e-12
    )
    assert found.bin_rows == (100,) * 15
    gap = np.abs(np.array(found.mean_score) - found.fraud_rate) @ np.array(found.bin_rows) / 1500
    assert gap == pytest.approx(of(scored, "ece_mass"), abs=1e-12)
    odd = compute_curves(make_scored(12, n_rows=1234), n_bins=50)
    assert len(odd.bin_rows) == 50
    assert sum(odd.bin_rows) == 1234
    assert len(compute_curves(scored.take(np.arange(4))).bin_rows) == 4


def test_curves_of_no_fraud_and_of_no_rows_are_empty() -> None:
    genuine = ScoredLabels(np.linspace(0, 1, 30), np.zeros(30, int), np.arange(30), np.arange(30))
    assert compute_curves(genuine).recall == compute_curves(genuine).precision == ()
    assert compute_curves(genuine).fraud_rate == (0.0,) * 15
    assert compute_curves(genuine.take(np.empty(0, int))).bin_rows == ()


def test_the_mean_is_of_the_figures_that_exist() -> None:
    np.testing.assert_array_equal(
        mean_of_known(np.array([[1.0, np.nan, np.nan], [3.0, 5.0, np.nan]])), [2.0, 5.0, np.nan]
    )


def test_parts_are_put_together() -> None:
    scored = make_scored(13, n_rows=100)
    both = ScoredLabels.concatenate([scored.take(np.arange(30)), scored.take(np.arange(100) >= 30)])
    assert measure(both) == measure(scored)
    assert (len(both), both.n_frauds) == (100, scored.labels.sum())
    with pytest.raises(DataError, match="at least one"):
        ScoredLabels.concatenate([])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scores": [0.1, np.nan, 0.2]}, "scores must be finite; row 1 has nan"),
        ({"scores": [[0.1, 0.2, 0.3]]}, "scores must be one number per transaction"),
        ({"scores": ["a", "b", "c"]}, "scores must be one number per transaction"),
        ({"labels": [0, 1]}, "labels must have one entry for each of the 3 scored rows"),
        ({"labels": [0, 1, -1]}, "labels must be 0 or 1; row 2 has -1"),
        ({"labels": [0.0, 1.0, 1.0]}, "labels must be whole numbers; found type float64"),
        ({"customers": [1, 2]}, "customers must have one entry"),
        ({"customers": ["a", "b", "c"]}, "customers must be whole numbers"),
        ({"days": [0.5, 1.0, 2.0]}, "days must be whole numbers"),
    ],
)
def test_bad_scores_and_labels_are_refused(changed: dict[str, list[object]], message: str) -> None:
    fields = {
        "scores": [0.1, 0.2, 0.3],
        "labels": [0, 1, 0],
        "customers": [1, 1, 2],
        "days": [0, 0, 1],
    }
    with pytest.raises(DataError, match=message):
        ScoredLabels(**{name: np.array(values) for name, values in (fields | changed).items()})


def test_unknown_metrics_and_impossible_weights_are_refused() -> None:
    scored = make_scored(14, n_rows=3)
    with pytest.raises(ConfigError, match="'f1' is unknown; choose from average_precision"):
        measure(scored, ["f1"])
    for weights in ([1, 2], ["a", "b", "c"]):
        with pytest.raises(DataError, match="one number for each of the 3 rows"):
            measure(scored, weights=weights)
    for weight in (-1.0, np.inf, np.nan):
        with pytest.raises(DataError, match="finite and not negative; row 1"):
            measure(scored, weights=[1.0, weight, 1.0])


def test_every_metric_has_a_title_and_a_figure() -> None:
    assert len({metric.title for metric in METRICS.values()}) == len(METRICS) == 17
    assert list(measure(make_scored(15))) == list(METRICS)
    assert {n for n, m in METRICS.items() if not m.higher_is_better} == {
        n for n, m in METRICS.items() if m.needs_probability
    }
