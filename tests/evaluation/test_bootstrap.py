"""The bootstrap by weights against one that copies the rows that were drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wilcoxon

from tests.evaluation.samples import make_scored
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.bootstrap import (
    UNITS,
    bootstrap,
    draw_customers,
    draw_transactions,
    wilcoxon_p,
)
from turncoat.evaluation.metrics import ROW_METRICS, ScoredLabels, brier_losses, measure

Columns = dict[str, list[ScoredLabels]]


def columns_of(sizes: tuple[int, ...], n_levels: int | None, seed: int = 0) -> Columns:
    """Columns on the same folds: a good one, a noisy one with ties, one without probabilities."""
    rng = np.random.default_rng(seed)
    good = [
        make_scored(seed + f, n_rows, rate=0.15, n_levels=n_levels, n_customers=25)
        for f, n_rows in enumerate(sizes)
    ]
    noisy = [
        with_scores(fold, np.round(np.clip(fold.scores + rng.normal(0, 0.2, len(fold)), 0, 1), 2))
        for fold in good
    ]
    return {
        "good": good,
        "noisy": noisy,
        "anomaly": [with_scores(fold, fold.scores - 3) for fold in noisy],
    }


def with_scores(scored: ScoredLabels, scores: np.ndarray) -> ScoredLabels:
    return ScoredLabels(scores, scored.labels, scored.customers, scored.days)


def plain(columns: Columns, unit: str, n_resamples: int, seed: int) -> np.ndarray:
    """Draw, copy the rows that were drawn, measure, take the mean over folds."""
    folds = next(iter(columns.values()))
    everyone = np.unique(np.concatenate([fold.customers for fold in folds]))
    values = np.empty((n_resamples, len(columns), len(ROW_METRICS)))
    for r in range(n_resamples):
        if unit == "transaction":
            drawn = draw_transactions(seed, r, [len(fold) for fold in folds])
        else:
            chosen = everyone[draw_customers(seed, r, len(everyone))]
            drawn = [
                np.concatenate([np.flatnonzero(fold.customers == one) for one in chosen])
                for fold in folds
            ]
        for c, column in enumerate(columns.values()):
            by_fold = [
                list(measure(fold.take(rows), ROW_METRICS).values())
                for fold, rows in zip(column, drawn, strict=True)
            ]
            values[r, c] = [
                np.nan if np.isnan(known).all() else np.nanmean(known)
                for known in np.transpose(by_fold)
            ]
    return values


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    ("sizes", "n_levels"), [((300,), None), ((300, 80, 150), 12), ((40, 6), None)]
)
def test_weights_give_what_copies_of_the_drawn_rows_give(
    unit: str, sizes: tuple[int, ...], n_levels: int | None
) -> None:
    columns = columns_of(sizes, n_levels)
    found = bootstrap(columns, unit, n_resamples=60, seed=3)
    expected = plain(columns, unit, 60, seed=3)
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-12)
    for c, name in enumerate(columns):
        for m, metric in enumerate(ROW_METRICS):
            known = expected[:, c, m][~np.isnan(expected[:, c, m])]
            if len(known) == 0:
                assert found.interval(name, metric) is None
            else:
                assert found.interval(name, metric) == pytest.approx(
                    np.percentile(known, [5, 95]), abs=1e-12
                )
    differences = expected[:, 0, 1] - expected[:, 1, 1]
    assert found.difference("good", "noisy", "auroc") == pytest.approx(
        np.nanpercentile(differences, [5, 95]), abs=1e-12
    )
    assert found.interval("good", "auroc", 0.5) == pytest.approx(
        np.nanpercentile(expected[:, 0, 1], [25, 75]), abs=1e-12
    )


def test_what_does_not_exist_has_no_interval() -> None:
    found = bootstrap(columns_of((300,), None), "customer", n_resamples=20)
    assert found.interval("anomaly", "auroc") is not None
    for metric in ("ece_width", "ece_mass", "brier", "log_loss"):
        assert found.interval("anomaly", metric) is None
        assert found.difference("good", "anomaly", metric) is None
    nothing = {"empty": [make_scored(0, n_rows=0)]}
    for unit in UNITS:
        assert bootstrap(nothing, unit, n_resamples=3).interval("empty", "brier") is None


def test_a_fold_without_fraud_leaves_the_mean_to_the_others() -> None:
    scored = make_scored(0, 400)
    genuine = scored.take(scored.labels == 0)
    both = bootstrap({"a": [scored, genuine]}, "customer", n_resamples=30)
    alone = bootstrap({"a": [scored]}, "customer", n_resamples=30)
    assert both.interval("a", "auroc") == alone.interval("a", "auroc")
    assert both.interval("a", "brier") != alone.interval("a", "brier")


def test_columns_meet_the_same_resamples() -> None:
    columns = columns_of((200, 100), None)
    columns["again"] = columns["good"]
    columns["stretched"] = [with_scores(fold, 7 * fold.scores) for fold in columns["good"]]
    for unit in UNITS:
        found = bootstrap(columns, unit, n_resamples=40)
        assert found.difference("good", "again", "log_loss") == (0.0, 0.0)
        assert found.difference("good", "stretched", "average_precision") == (0.0, 0.0)
        low, high = found.difference("good", "noisy", "brier") or (0.0, 0.0)
        assert found.difference("noisy", "good", "brier") == pytest.approx((-high, -low))
        alone = bootstrap({"noisy": columns["noisy"]}, unit, n_resamples=40)
        assert alone.interval("noisy", "ks") == found.interval("noisy", "ks")


def test_several_columns_stand_for_their_mean() -> None:
    found = bootstrap(columns_of((300,), None), "transaction", n_resamples=40)
    both = (found.values_of("good", "brier") + found.values_of("noisy", "brier")) / 2
    np.testing.assert_allclose(found.values_of(("good", "noisy"), "brier"), both, atol=1e-15)
    assert found.interval(["good"], "brier") == found.interval("good", "brier")


@pytest.mark.parametrize("unit", UNITS)
def test_the_seed_decides_and_the_threads_do_not(unit: str) -> None:
    columns = columns_of((500, 300), 50)
    one, many, other = (
        bootstrap(columns, unit, n_resamples=50, seed=s, n_threads=t).values
        for s, t in ((1, 1), (1, 5), (2, 1))
    )
    np.testing.assert_array_equal(one, many)
    assert not np.array_equal(one, other, equal_nan=True)


def clustered(seed: int, n_customers: int = 60, n_rows: int = 20) -> ScoredLabels:
    """Customers whose fraud, if any, is all they do."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(rng.random(n_customers) < 0.2, n_rows)
    scores = np.clip(0.2 + 0.3 * labels + np.repeat(rng.normal(0, 0.15, n_customers), n_rows), 0, 1)
    return ScoredLabels(
        scores, labels, np.repeat(np.arange(n_customers), n_rows), np.zeros(len(labels), int)
    )


def test_customers_that_are_all_alike_make_wider_intervals() -> None:
    scored = clustered(0)
    widths = {}
    for unit in UNITS:
        found = bootstrap({"a": [scored]}, unit, n_resamples=300)
        widths[unit] = {
            metric: np.ptp(found.interval("a", metric) or (np.nan, np.nan))
            for metric in ("auroc", "brier", "average_precision")
        }
    for metric, width in widths["customer"].items():
        assert width > 2.5 * widths["transaction"][metric], (
            metric
        )  # the square root of 20 rows each is 4.5
    shuffled = ScoredLabels(
        scored.scores,
        scored.labels,
        np.random.default_rng(0).permutation(scored.customers),
        scored.days,
    )
    width = np.ptp(
        bootstrap({"a": [shuffled]}, "customer", n_resamples=300).interval("a", "brier")
        or (np.nan, np.nan)
    )
    assert width == pytest.approx(widths["transaction"]["brier"], rel=0.5)


@pytest.mark.parametrize(
    ("unit", "low", "high"), [("customer", 0.82, 0.95), ("transaction", 0.2, 0.5)]
)
def test_about_nine_in_ten_intervals_by_customer_hold_the_truth(
    unit: str, low: float, high: float
) -> None:
    """Rows of one customer are alike here, so intervals by transaction are far too narrow."""
    truth = measure(clustered(12345, n_customers=200_000, n_rows=1), ("brier", "auroc"))
    inside = []
    for seed in range(120):
        found = bootstrap(
            {"a": [clustered(seed, n_customers=200, n_rows=8)]}, unit, n_resamples=150, seed=seed
        )
        for metric, value in truth.items():
            lower, upper = found.interval("a", metric) or (np.nan, np.nan)
            inside.append(lower <= value <= upper)
    assert low <= np.mean(inside) <= high


def test_a_customer_of_several_folds_is_drawn_for_all_of_them() -> None:
    """Two copies of a fold are no more evidence than one, though they seem so by transaction."""
    scored = clustered(1)
    one, two = (
        bootstrap({"a": folds}, "customer", n_resamples=50)
        for folds in ([scored], [scored, scored])
    )
    assert one.interval("a", "brier") == pytest.approx(two.interval("a", "brier"), abs=1e-12)
    one, two = (
        bootstrap({"a": folds}, "transaction", n_resamples=200)
        for folds in ([scored], [scored, scored])
    )
    assert np.ptp(one.interval("a", "brier") or ()) > 1.2 * np.ptp(two.interval("a", "brier") or ())


def test_wilcoxon_is_scipy_s_over_the_losses_of_transactions() -> None:
    columns = columns_of((400,), None)
    good, noisy, anomaly = (brier_losses(folds[0]) for folds in columns.values())
    assert wilcoxon_p(good, noisy) == pytest.approx(wilcoxon(good, noisy).pvalue)
    assert wilcoxon_p(good, noisy) == wilcoxon_p(noisy, good)
    assert wilcoxon_p(good, good) == 1.0
    assert wilcoxon_p(good, anomaly) is None
    assert wilcoxon_p(np.empty(0), np.empty(0)) is None
    with pytest.raises(DataError, match="same rows"):
        wilcoxon_p(good, noisy[:-1])


def test_impossible_requests_are_refused() -> None:
    columns = columns_of((50, 40), None)
    good = columns["good"]
    with pytest.raises(
        ConfigError, match="unit is 'terminal'; it must be one of transaction, customer"
    ):
        bootstrap(columns, "terminal")
    for setting, value in (("n_resamples", 0), ("seed", -1), ("n_threads", -2)):
        with pytest.raises(ConfigError, match=f"{setting} is {value}; it must be at least"):
            bootstrap(columns, "customer", **{setting: value})
    for nothing in ({}, {"a": []}):
        with pytest.raises(DataError, match="nothing to resample"):
            bootstrap(nothing, "customer")
    with pytest.raises(DataError, match="'good' has 2, 'short' has 1"):
        bootstrap({"good": good, "short": good[:1]}, "customer")
    with pytest.raises(DataError, match="in fold 1 'good' and 'other' differ"):
        bootstrap({"good": good, "other": [good[0], good[1].take(np.arange(39))]}, "customer")
    found = bootstrap(columns, "customer", n_resamples=2)
    with pytest.raises(
        ConfigError, match="column 'best' was not resampled; choose from good, noisy, anomaly"
    ):
        found.interval("best", "auroc")
    with pytest.raises(ConfigError, match="metric 'card_precision_100' is not resampled"):
        found.interval("good", "card_precision_100")
    with pytest.raises(ConfigError, match="level is 90"):
        found.interval("good", "auroc", 90)
