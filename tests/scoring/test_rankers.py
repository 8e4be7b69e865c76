"""Rankers: both limits, a convex optimum, honest variances, the same score live."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xgboost
from scipy.optimize import minimize
from scipy.special import expit, log_expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from tests.features.sample_data import of_frame
from tests.scoring.detectors import (
    SCORED,
    classifier,
    plain_detector,
    ranked_detector,
    replay_scores,
    scored_shop,
    time_split,
)
from tests.scoring.simulated import draw_rows, fit_lines
from turncoat import ConfigError, DataError, Detector, load
from turncoat.scoring import DetectorState, Regimes
from turncoat.scoring.rankers import (
    SHRINKAGES,
    RankerRows,
    RegimeRanker,
    XGBoostRanker,
    build_ranker_matrix,
)


def soften(labels: np.ndarray) -> np.ndarray:
    """Platt's targets: one more fraud and one more genuine transaction."""
    n = labels.sum()
    return np.where(labels == 1, (n + 1) / (n + 2), 1 / (len(labels) - n + 2))


@pytest.mark.parametrize("value", [0.0, 5.0, 1e6])
def test_a_constant_score_without_shrinkage_is_the_corrected_score(value: float) -> None:
    _, belief, labels = draw_rows(800, 0)
    scores = np.full(800, value)
    offsets = np.arange(len(labels) + 1)
    regimes = Regimes.measure(
        belief, labels, offsets, np.ones(3), part="calibration", mode="filtered"
    )
    ranked = fit_lines(scores, belief, labels, shrinkage=0.0)
    # But for one more fraud and one more genuine transaction.
    np.testing.assert_allclose(expit(ranked.intercepts), regimes.rates, rtol=0.01)
    assert (ranked.slopes == 0).all()
    probability, variance = ranked.predict(scores, belief)
    np.testing.assert_allclose(probability, belief @ regimes.rates, rtol=0.01)
    independent = belief**2 @ (regimes.rates * (1 - regimes.rates) / regimes.mass)
    np.testing.assert_allclose(variance, independent, rtol=0.02)


@pytest.mark.parametrize("scale", [1.0, 1e-4, 1e5])
def test_with_one_regime_it_is_platt_scaling(scale: float) -> None:
    scores, belief, labels = draw_rows(600, 1)
    scores = scores * scale - 7 * scale
    ranked = fit_lines(scores, np.ones((600, 1)), labels, shrinkage=0.0)
    z = ((scores - scores.mean()) / scores.std())[:, None]
    targets = soften(labels)
    both = np.vstack([z, z]), np.repeat([1, 0], 600), np.concatenate([targets, 1 - targets])
    platt = LogisticRegression(C=np.inf, tol=1e-12, max_iter=1000).fit(*both)
    probability, _ = ranked.predict(scores, np.ones((600, 1)))
    np.testing.assert_allclose(probability, platt.predict_proba(z)[:, 1], atol=1e-6)
    assert belief.shape == (600, 3)


def test_strong_shrinkage_gives_one_line_for_all() -> None:
    scores, belief, labels = draw_rows(900, 2)
    apart = fit_lines(scores, belief, labels, shrinkage=0.0)
    common = fit_lines(scores, belief, labels, shrinkage=1e9)
    platt = fit_lines(scores, np.ones((900, 1)), labels, shrinkage=0.0)
    assert np.ptp(apart.intercepts) > 1
    assert np.ptp(common.intercepts) < 1e-5
    assert np.ptp(common.slopes) < 1e-5
    np.testing.assert_allclose(
        common.predict(scores, belief)[0], platt.predict(scores, np.ones((900, 1)))[0], atol=1e-5
    )
    ratio = common.predict(scores, belief)[1] / platt.predict(scores, np.ones((900, 1)))[1]
    assert (
        ratio.min() > 0.99
    )  # what looks like customers' likeness by chance widens, and never narrows
    assert ratio.max() < 1.3
    spreads = [
        np.ptp(fit_lines(scores, belief, labels, shrinkage=s).intercepts)
        for s in (0.0, 1.0, 10.0, 100.0, 1e4)
    ]
    assert (np.diff(spreads) < 0).all()


def objective(
    lines: np.ndarray, z: np.ndarray, belief: np.ndarray, labels: np.ndarray, shrinkage: float
) -> float:
    """The penalised loss of K lines, the common line at its best."""
    lines = lines.reshape(-1, 2)
    common = shrinkage * lines.sum(axis=0) / (len(lines) * shrinkage + 1e-6)
    odds = lines[:, :1] + lines[:, 1:] * z
    fit = belief.T * (labels * log_expit(odds) + (1 - labels) * log_expit(-odds))
    penalty = 0.5 * shrinkage * ((lines - common) ** 2).sum() + 0.5e-6 * (
        (lines[:, 1] ** 2).sum() + (common**2).sum()
    )
    return float(-fit.sum() + penalty)


@pytest.mark.parametrize("shrinkage", [0.1, 10.0, 1000.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_solution_is_the_optimum_of_a_convex_loss(shrinkage: float, seed: int) -> None:
    scores, belief, labels = draw_rows(400, 10 + seed)
    ranked = fit_lines(scores, belief, labels, shrinkage)
    z = (scores - ranked.centre) / ranked.spread
    at = np.stack([ranked.intercepts, ranked.slopes], axis=1).ravel()
    arguments = (z, belief, soften(labels), shrinkage)
    best = objective(at, *arguments)
    step = 1e-5
    slopes = [
        (objective(at + step * e, *arguments) - objective(at - step * e, *arguments)) / (2 * step)
        for e in np.eye(6)
    ]
    assert np.abs(slopes).max() < 1e-4
    rng = np.random.default_rng(seed)
    for size in (1e-2, 1.0, 5.0):
        assert all(objective(at + size * rng.normal(size=6), *arguments) > best for _ in range(10))
    found = minimize(
        objective, rng.normal(size=6), args=arguments, method="BFGS", options={"gtol": 1e-6}
    )
    np.testing.assert_allclose(found.x, at, atol=1e-3)


def test_in_sample_the_mean_probability_is_the_fraud_rate_without_shrinkage() -> None:
    scores, belief, labels = draw_rows(700, 3)
    probability, _ = fit_lines(scores, belief, labels, shrinkage=0.0).predict(scores, belief)
    assert probability.mean() == pytest.approx(soften(labels).mean(), abs=1e-8)


def test_scores_that_separate_all_frauds_are_not_taken_for_certain() -> None:
    """As in a small calibration part: probabilities stay near one in the number of rows."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], [3000, 30])
    scores = np.where(labels == 1, 4.0, -7.0) + rng.normal(0, 0.5, len(labels))
    belief = rng.dirichlet(np.full(3, 0.2), len(labels))
    for shrinkage in SHRINKAGES:
        lines = fit_lines(scores, belief, labels, shrinkage)
        probability, variance = lines.predict(np.array([-7.0, 4.0]), np.full((2, 3), 1 / 3))
        assert 1e-4 < probability[0] < 1e-3
        assert 0.9 < probability[1] < 0.99
        assert (np.sqrt(variance) > 0.2 * np.minimum(probability, 1 - probability)).all()


def test_variances_are_positive_and_shrink_with_data() -> None:
    at, belief, _ = draw_rows(50, 99)
    variances = [
        fit_lines(*draw_rows(n, 4)).predict(at, belief)[1] for n in (500, 2000, 8000, 32000)
    ]
    assert all((variance > 0).all() for variance in variances)
    ratios = np.array(variances)[:-1] / np.array(variances)[1:]
    assert (np.median(ratios, axis=1) > 2.5).all()
    np.testing.assert_allclose(np.median(ratios), 4.0, atol=1.0)


@pytest.mark.parametrize("shrinkage", [0.0, 10.0, 1e6])
def test_variances_are_those_of_repeated_fits(shrinkage: float) -> None:
    """The variance is at least half of what 150 samples show, and not far above."""
    at, belief = np.linspace(0, 10, 6), np.array([[0.4, 0.3, 0.3]] * 6)
    fits = [
        fit_lines(*draw_rows(600, 1000 + r, softness=0.1), shrinkage).predict(at, belief)
        for r in range(150)
    ]
    shown = np.var([probability for probability, _ in fits], axis=0)
    claimed = np.mean([variance for _, variance in fits], axis=0)
    ratio = claimed / shown
    assert ratio.min() > 0.5
    assert ratio.max() < 2.5


def test_customers_whose_rows_are_alike_count_against_the_variance() -> None:
    """Fifteen rows of a customer that all carry the same label say as much as one."""
    n_customers, n_each = 120, 15
    at, belief = np.linspace(0, 10, 6), np.array([[0.4, 0.3, 0.3]] * 6)
    offsets = np.arange(0, n_customers * n_each + 1, n_each)
    alike, apart = [], []
    for r in range(120):
        whole = [
            np.repeat(part, n_each, axis=0)
            for part in draw_rows(n_customers, 5000 + r, softness=0.1)
        ]
        alike.append(RegimeRanker.fit(*whole, offsets).predict(at, belief))
        apart.append(fit_lines(*whole).predict(at, belief))
    shown = np.var([probability for probability, _ in alike], axis=0)
    claimed, naive = (
        np.mean([variance for _, variance in fits], axis=0) for fits in (alike, apart)
    )
    assert (naive / shown).max() < 0.5
    assert (claimed / shown).min() > 0.5
    assert (claimed / shown).max() < 3.0


def draw_common(n_rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Scores, beliefs and labels; regimes say nothing that the scores do not."""
    scores, belief, _ = draw_rows(n_rows, seed)
    rng = np.random.default_rng(seed)
    return scores, belief, (rng.random(n_rows) < expit((scores - 9) / 2)).astype(np.int8)


def choose_lines(scores: Any, belief: Any, labels: Any) -> RegimeRanker:
    return RegimeRanker.choose(scores, belief, labels, np.arange(len(labels) + 1))


@pytest.mark.parametrize(("n_rows", "n_frauds"), [(400, None), (2000, None), (400, 1), (400, 3)])
def test_a_score_that_needs_no_regimes_gets_one_line(n_rows: int, n_frauds: int | None) -> None:
    scores, belief, labels = draw_common(n_rows, 0)
    if n_frauds is not None:
        labels[np.flatnonzero(labels)[n_frauds:]] = 0
    lines, order = choose_lines(scores, belief, labels), np.argsort(scores)
    np.testing.assert_allclose(lines.intercepts, lines.intercepts[0], atol=1e-4)
    np.testing.assert_allclose(lines.slopes, lines.slopes[0], atol=1e-4)
    far = order[np.append(True, np.diff(scores[order]) > 1e-3)]  # all but near ties
    assert (np.diff(lines.predict(scores, belief)[0][far]) > 0).all()


def test_regimes_that_differ_get_lines_of_their_own_and_better_probabilities() -> None:
    for seed in range(3):
        scores, belief, labels = draw_rows(1000, seed)
        lines = choose_lines(scores, belief, labels)
        common = fit_lines(scores, belief, labels, SHRINKAGES[0])
        assert np.ptp(lines.intercepts) > 0.5
        scores, belief, labels = draw_rows(5000, seed + 100)
        found, other = (log_loss(labels, one.predict(scores, belief)[0]) for one in (lines, common))
        assert found < other - 0.02


def test_shrinkage_is_chosen_on_customers_that_the_lines_have_not_seen() -> None:
    """Each customer's rows are one row written 20 times: in-sample, own lines win by far."""
    chosen = []
    for seed in range(5):
        rows = [np.repeat(part, 20, axis=0) for part in draw_common(60, seed)]
        lines = RegimeRanker.choose(*rows, np.arange(0, 1201, 20))
        chosen.append(np.ptp(lines.intercepts) < 0.05)
    assert sum(chosen) >= 4


@pytest.mark.parametrize("shrinkage", [0.0, 10.0])
def test_perfect_rankers_and_empty_or_pure_regimes_stay_finite(shrinkage: float) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 4 == 0
    belief = np.zeros((200, 4))
    belief[np.arange(200), rng.integers(0, 2, 200)] = 1.0  # regime 2 is empty
    belief[labels == 0, 3] = 1e-9  # and regime 3 has a trace of genuine ones
    for scores in (labels * 1.0, rng.normal(size=200), np.zeros(200), labels * 1e12):
        ranked = fit_lines(scores, belief, labels.astype(np.int8), shrinkage)
        probability, variance = ranked.predict(scores, rng.dirichlet(np.ones(4), 200))
        assert np.isfinite(ranked.covariance).all()
        assert ((probability >= 0) & (probability <= 1)).all()
        assert np.isfinite(variance).all()
        assert (variance >= 0).all()
    perfect = fit_lines(labels * 1.0, belief, labels.astype(np.int8), shrinkage)
    inside = belief[:, :2] / belief[:, :2].sum(axis=1, keepdims=True)
    probability, _ = perfect.predict(labels * 1.0, np.hstack([inside, np.zeros((200, 2))]))
    assert probability[labels].min() > 0.9 > 0.1 > probability[~labels].max()


def test_scores_or_labels_that_will_not_do() -> None:
    scores, belief, labels = draw_rows(100, 0)
    for wrong in (np.nan, np.inf):
        holed = scores.copy()
        holed[7] = wrong
        with pytest.raises(DataError, match="missing or infinite on row 7"):
            fit_lines(holed, belief, labels)
        with pytest.raises(DataError, match="missing or infinite on row 7"):
            fit_lines(scores, belief, labels).predict(holed, belief)
    for one in (0, 1):
        with pytest.raises(DataError, match=f"all calibration labels are {one}"):
            fit_lines(scores, belief, np.full(100, one, np.int8))


# ---------- in a detector


RANKERS = pytest.mark.parametrize("ranker", ["column", "xgboost", "booster", "early"])


@RANKERS
def test_a_ranked_detector_scores_live_as_in_batch(ranker: str) -> None:
    made, data = ranked_detector(ranker), scored_shop()
    whole, live = made.score(data.transactions), replay_scores(made, data)
    np.testing.assert_allclose([score.probability for score in live], whole.probability, atol=1e-9)
    np.testing.assert_allclose(
        [score.interval for score in live], np.transpose(whole.interval()), atol=1e-6
    )
    plain = plain_detector().score(data.transactions)
    np.testing.assert_array_equal(whole.belief, plain.belief)
    np.testing.assert_array_equal(whole.raw, plain.raw)
    assert not np.allclose(whole.probability, plain.probability)
    assert live[0].reasons


def test_a_row_alone_is_judged_as_among_others() -> None:
    made, data = ranked_detector("column"), scored_shop()
    ranked, belief = (
        made.calibration_.regime_rankers["filtered"],
        made.score(data.transactions).belief,
    )
    external = data.transactions.column("mine")
    together = ranked.predict(external, belief)
    for i in range(len(belief)):
        alone = ranked.predict(external[i : i + 1], belief[i : i + 1])
        assert (alone[0][0], alone[1][0]) == (together[0][i], together[1][i])


@RANKERS
@pytest.mark.parametrize("mode", ["filtered", "smoothed"])
def test_the_scores_are_those_of_the_regime_ranker(ranker: str, mode: str) -> None:
    made, data = ranked_detector(ranker), scored_shop()
    transactions = data.transactions
    split = time_split(transactions)
    panel = made.features_.transform(transactions)
    if ranker == "column":
        external = transactions.column("mine")
    else:
        columns = build_ranker_matrix(panel.continuous, panel.categorical)
        external = classifier(ranker == "early").predict(columns, output_margin=True).astype(float)
    scores = made.score(transactions, mode=mode)
    by_hand = fit_lines(
        external[split.calibration],
        scores.belief[split.calibration],
        transactions.labels[split.calibration],
    )
    tolerance = (
        1e-6 if mode == "filtered" else 0.02
    )  # a smoothed calibration row does not look beyond the calibration part
    np.testing.assert_allclose(
        scores.probability, by_hand.predict(external, scores.belief)[0], atol=tolerance
    )


@RANKERS
def test_a_saved_ranker_scores_as_before(ranker: str, tmp_path: Any) -> None:
    made, data = ranked_detector(ranker), scored_shop()
    made.save(tmp_path / "bundle")
    loaded = load(tmp_path / "bundle")
    np.testing.assert_array_equal(
        loaded.score(data.transactions).probability, made.score(data.transactions).probability
    )
    np.testing.assert_array_equal(
        loaded.score(data.transactions).variance, made.score(data.transactions).variance
    )
    one, other = (d.score_one(None, data.rows[0])[1] for d in (made, loaded))
    assert one == other


def test_the_detector_without_a_ranker_is_left_alone() -> None:
    before = plain_detector().score(scored_shop().transactions).probability
    ranked_detector("column")
    np.testing.assert_array_equal(
        plain_detector().score(scored_shop().transactions).probability, before
    )
    assert plain_detector().calibration_.ranker is None
    state, _ = plain_detector().score_one(None, scored_shop().rows[0])
    ranked_detector("column").score_one(
        DetectorState(state.customer), scored_shop().rows[1]
    )  # the states are the same


def test_a_ranker_of_a_frame_is_taken_by_its_columns_order() -> None:
    transactions = scored_shop().transactions
    split = time_split(transactions)
    panel = plain_detector().features_.transform(transactions)
    columns = build_ranker_matrix(panel.continuous, panel.categorical)
    frame = pd.DataFrame(columns, columns=[f"column {i}" for i in range(columns.shape[1])])
    settings: dict[str, Any] = {"n_estimators": 5, "n_jobs": 1}
    named = xgboost.XGBClassifier(**settings).fit(
        frame.iloc[split.fit], transactions.labels[split.fit]
    )
    plain = xgboost.XGBClassifier(**settings).fit(
        columns[split.fit], transactions.labels[split.fit]
    )
    one, other = (
        plain_detector().add_ranker(r, transactions, split).score(transactions).probability
        for r in (named, plain)
    )
    np.testing.assert_array_equal(one, other)


def test_rankers_that_do_not_fit_are_refused() -> None:
    made, transactions = plain_detector(), scored_shop().transactions
    split = time_split(transactions)
    narrow = xgboost.XGBClassifier(n_estimators=2, n_jobs=1).fit(np.zeros((4, 3)), [0, 1, 0, 1])
    with pytest.raises(ConfigError, match=r"fitted on 3 columns; the panel has \d+"):
        made.add_ranker(narrow, transactions, split)
    with pytest.raises(ConfigError, match="not among the schema's continuous columns"):
        made.add_ranker("device", transactions, split)
    for wrong in (LogisticRegression(), 3, None, np.zeros(700)):
        with pytest.raises(
            ConfigError, match="a column's name, a fitted XGBoost model or the model's own encoder"
        ):
            made.add_ranker(wrong, transactions, split)
    with pytest.raises(DataError, match="missing or infinite"):
        made.add_ranker("age", transactions, split)


def test_missing_scores_are_refused_when_scoring() -> None:
    made, data = ranked_detector("column"), scored_shop()
    frame = pl.DataFrame(data.rows).with_columns(
        mine=pl.when(pl.col("id") == 105).then(None).otherwise(pl.col("mine"))
    )
    with pytest.raises(DataError, match="missing or infinite"):
        made.score(of_frame(frame, SCORED).transactions)
    with pytest.raises(DataError, match="missing or infinite"):
        made.score_one(None, data.rows[0] | {"mine": None})
    panel = made.features_.transform(data.transactions)
    with pytest.raises(DataError, match="scores are missing"):
        made.score_panel(panel)
    with pytest.raises(DataError, match="one value for each of the 700 rows"):
        made.score_panel(panel, ranker_scores=np.zeros(3))


def test_the_ranker_does_not_see_the_test_part() -> None:
    data = scored_shop()
    split = time_split(data.transactions)
    frame = pl.DataFrame(data.rows)
    hit = pl.Series(np.isin(np.arange(700), data.transactions.file_rows[split.test]))
    other = of_frame(
        frame.with_columns(
            mine=pl.when(hit).then(99.0).otherwise(pl.col("mine")),
            fraud=pl.when(hit).then(1 - pl.col("fraud")).otherwise(pl.col("fraud")),
        ),
        SCORED,
    )
    one, two = (
        plain_detector().add_ranker("mine", d.transactions, split).calibration_.regime_rankers
        for d in (data, other)
    )
    assert one is not None
    assert two is not None
    for mode in one:
        np.testing.assert_array_equal(one[mode].intercepts, two[mode].intercepts)
        np.testing.assert_array_equal(one[mode].slopes, two[mode].slopes)


def test_a_good_ranker_makes_better_probabilities_than_regimes_alone() -> None:
    data = scored_shop()
    split = time_split(data.transactions)
    labels = data.transactions.labels[split.test]

    def loss(made: Detector) -> float:
        p = made.score(data.transactions).probability[split.test]
        return float(-np.mean(np.where(labels == 1, np.log(p), np.log1p(-p))))

    assert loss(ranked_detector("column")) < 0.8 * loss(plain_detector())


def test_a_certain_score_is_no_more_than_certain() -> None:
    """Beliefs add up to 1 only to rounding."""
    lines = fit_lines(*draw_rows(500, 1))
    belief = np.random.default_rng(0).dirichlet(np.ones(3), 2000) * (1 + 4e-16)
    assert belief.sum(axis=1).max() > 1
    probability, _ = lines.predict(np.full(2000, 1e4), belief)
    assert probability.max() == 1


def test_trees_give_the_same_bits_alone_in_a_batch_and_in_a_file() -> None:
    """Small batches are scored by a copy with one thread; the given booster stays as it was."""
    made = ranked_detector("booster")
    ranker, panel = made.calibration_.ranker, made.features_.transform(scored_shop().transactions)
    assert isinstance(ranker, XGBoostRanker)
    before = json.loads(ranker.source.save_config())
    cells, codes = panel.continuous.repeat(2, axis=0), panel.categorical.repeat(2, axis=0)
    cells[::3, ::2], codes[::4] = np.nan, -1
    whole = ranker.score(RankerRows([], cells, codes))
    assert len(whole) >= 1000  # as in a file
    few = RankerRows([], cells[:64], codes[:64])
    columns = xgboost.DMatrix(build_ranker_matrix(cells, codes))
    np.testing.assert_array_equal(whole, ranker.source.predict(columns, output_margin=True))
    np.testing.assert_array_equal(ranker.score(few), whole[:64])
    one_by_one = [RankerRows([], cells[i : i + 1], codes[i : i + 1]) for i in range(64)]
    alone = [ranker.score(row)[0] for row in one_by_one]
    np.testing.assert_array_equal(alone, whole[:64])
    terms = ranker.explain(few)
    np.testing.assert_allclose(terms.log_odds, whole[:64], atol=1e-4)
    assert json.loads(ranker.source.save_config()) == before
    assert len(np.unique(whole)) > 100


def test_small_batches_use_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ranker = ranked_detector("booster").calibration_.ranker
    assert isinstance(ranker, XGBoostRanker)
    n_columns, n_threads = ranker.source.num_features(), []
    predict = xgboost.Booster.inplace_predict

    def spy(booster: Any, *args: Any, **options: Any) -> Any:
        config = json.loads(booster.save_config())["learner"]["generic_param"]
        n_threads.append(int(config["nthread"]))
        return predict(booster, *args, **options)

    monkeypatch.setattr(xgboost.Booster, "inplace_predict", spy)
    monkeypatch.setattr("turncoat.scoring.rankers._ONE_THREAD_ROWS", 4)
    XGBoostRanker(_with_threads(ranker.source, 3)).score(_empty_rows(3, n_columns))
    XGBoostRanker(_with_threads(ranker.source, 3)).score(_empty_rows(4, n_columns))
    assert n_threads == [1, 3]


def _with_threads(booster: Any, n_threads: int) -> Any:
    changed = booster.copy()
    changed.set_param({"nthread": n_threads})
    return changed


def _empty_rows(n_rows: int, n_columns: int) -> RankerRows:
    cells, codes = np.zeros((n_rows, n_columns), np.float32), np.zeros((n_rows, 0), np.int32)
    return RankerRows([], cells, codes)


def test_a_linear_booster_is_refused() -> None:
    transactions = scored_shop().transactions
    panel = plain_detector().features_.transform(transactions)
    columns = np.nan_to_num(build_ranker_matrix(panel.continuous, panel.categorical))
    matrix = xgboost.DMatrix(columns, transactions.labels)
    linear = xgboost.train({"booster": "gblinear", "objective": "binary:logistic"}, matrix, 3)
    with pytest.raises(ConfigError, match="of booster 'gblinear'; it must have trees"):
        plain_detector().add_ranker(linear, transactions, time_split(transactions))
