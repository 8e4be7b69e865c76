"""Baselines learn what is there and nothing else, never share customers between folds, and resume a search as if nothing had happened."""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from turncoat import BundleError, ConfigError, DataError
from turncoat.evaluation import baselines
from turncoat.evaluation.baselines import (
    FIXED,
    FittedXGBoost,
    IsolationForestBaseline,
    Logistic,
    Settings,
    XGBoost,
    customer_folds,
    search,
    some_customers,
    suggest,
    tree_methods,
)

SIZES = (3, 4)
BASELINES = {"logistic": Logistic(SIZES, search_rows=1500), "forest": IsolationForestBaseline(60, 128), "xgboost": XGBoost(n_threads=1)}
every = pytest.mark.parametrize("name", list(BASELINES))


def rows(n: int = 3000, seed: int = 1) -> tuple[Any, Any, Any]:
    """Columns [N, 5 + 2] with missing cells and codes, rare labels that a shift and a category give away, and customers."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.06).astype(np.int8)
    columns = rng.standard_normal((n, 7)).astype(np.float32)
    columns[:, :2] += 2.5 * labels[:, None]
    columns[:, 5] = rng.integers(3, size=n)
    columns[:, 6] = np.where(rng.random(n) < 0.5 * labels, 3, rng.integers(3, size=n))
    columns[rng.random(columns.shape) < 0.1] = np.nan
    return columns, labels, rng.integers(n // 10, size=n)


def precision_of(baseline: Any, labels: Any, seed: int = 0) -> tuple[float, float]:
    """Average precision on rows with the same kind of labels, and the base rate."""
    columns, _, customers = rows()
    scores = baseline.fit(columns[:2000], labels[:2000], customers[:2000], seed).score(columns[2000:])
    assert scores.shape == (1000,)
    assert scores.dtype == np.float64
    return average_precision_score(labels[2000:], scores), labels[2000:].mean()


@every
def test_each_beats_chance(name: str) -> None:
    found, base_rate = precision_of(BASELINES[name], rows()[1])
    assert found > 5 * base_rate


@every
def test_each_is_at_the_base_rate_on_shuffled_labels(name: str) -> None:
    found, base_rate = precision_of(BASELINES[name], np.random.default_rng(9).permutation(rows()[1]))
    assert found < 2 * base_rate


@every
def test_the_seed_decides(name: str) -> None:
    columns, labels, customers = rows()
    first, second, other = (BASELINES[name].fit(columns, labels, customers, seed).score(columns) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    if name != "logistic":
        assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", ["logistic", "xgboost"])
def test_probabilities_have_the_right_mean(name: str) -> None:
    columns, labels, customers = rows(20_000)
    scores = BASELINES[name].fit(columns[:15_000], labels[:15_000], customers[:15_000], 0).score(columns[15_000:])
    assert scores.mean() == pytest.approx(labels[15_000:].mean(), rel=0.15)


def test_the_least_rounds_reach_a_rare_base_rate() -> None:
    columns, labels, _ = rows(20_000)
    rare = labels & (np.arange(len(labels)) % 12 == 0)
    settings: Settings = {**FIXED, "learning_rate": 0.1, "n_estimators": int(baselines.LEAST_TRAVEL / 0.1)}
    scores = baselines.predicted(baselines.boosted(settings, columns, rare, 0, 1), columns)
    assert scores.mean() == pytest.approx(rare.mean(), rel=0.1)


def test_the_forest_needs_no_labels_and_the_whole_table_may_be_missing() -> None:
    columns, _, customers = rows(300)
    columns[:, 0] = np.nan
    nothing = np.full(300, -1)
    assert np.isfinite(IsolationForestBaseline(20).fit(columns, nothing, customers, 0).score(columns)).all()


def test_the_encoding_says_what_is_missing_and_which_category() -> None:
    columns = np.array([[1.0, 0.0, 2.0], [np.nan, 4.0, np.nan], [3.0, 8.0, 0.0]], np.float32)
    design = baselines.Encoding.of(columns, (3,)).design(columns).toarray()
    spread = np.sqrt(2 / 3)
    expected = [
        [-1 / spread, -(1.5**0.5), 0, 0, 0, 0, 1],
        [0.0, 0.0, 1, 1, 0, 0, 0],
        [1 / spread, 1.5**0.5, 0, 0, 1, 0, 0],
    ]
    np.testing.assert_allclose(design, expected, atol=1e-6)


def test_the_logistic_penalty_is_one_of_those_given() -> None:
    columns, labels, customers = rows()
    assert Logistic(SIZES, (1e-6, 0.1)).fit(columns, labels, customers, 0).strength == 0.1
    assert Logistic(SIZES, (0.5,), n_folds=500).fit(columns, labels, customers, 0).strength == 0.5


def test_folds_share_no_customer_and_all_have_fraud() -> None:
    _, labels, customers = rows()
    keys = np.array([f"customer {c}" for c in customers])
    folds = customer_folds(labels, keys, 4, 5)
    assert all(len(np.unique(folds[customers == c])) == 1 for c in np.unique(customers))
    frauds = np.bincount(folds, labels, 4)
    assert frauds.min() > 0.6 * frauds.max()
    np.testing.assert_array_equal(folds, customer_folds(labels, keys, 4, 5))
    assert not np.array_equal(folds, customer_folds(labels, keys, 4, 6))


def test_a_search_part_has_whole_customers_and_the_same_share_of_fraud() -> None:
    _, labels, customers = rows(20_000)
    part = some_customers(labels, customers, 5000, 1)
    inside = np.isin(np.arange(len(labels)), part)
    assert not set(customers[inside]) & set(customers[~inside])
    assert len(part) == pytest.approx(5000, rel=0.1)
    assert labels[part].mean() == pytest.approx(labels.mean(), rel=0.2)
    np.testing.assert_array_equal(some_customers(labels, customers, 20_000, 1), np.arange(20_000))


def test_too_few_customers_with_fraud_are_refused() -> None:
    columns, labels, _ = rows()
    with pytest.raises(DataError, match="1 customers have fraud, too few for 3 folds"):
        XGBoost(n_trials=1).fit(columns, labels, np.zeros(len(labels)), 0)


# The search. `judge` stands for the folds where only the order of trials matters.


def judge(settings: Settings) -> float:
    return -abs(float(settings["max_depth"]) - 5) - abs(math.log(float(settings["learning_rate"])) + 2)


def test_the_search_covers_the_old_defaults_of_xgboost() -> None:
    seen: list[Settings] = []

    def watch(settings: Settings) -> float:
        seen.append(settings)
        return judge(settings)

    best = search(watch, partial(suggest, methods=tree_methods(1000)), 40, 0)
    assert seen[0] == FIXED
    assert {s["tree_method"] for s in seen} == {"hist", "approx", "exact"}
    assert {s["base_score"] for s in seen} == {0.5, "estimated"}
    assert all(set(s) == set(FIXED) for s in seen)
    assert all(float(s["n_estimators"]) * float(s["learning_rate"]) >= baselines.LEAST_TRAVEL for s in seen)
    assert best.value == max(judge(s) for s in seen)
    assert best.value > judge(FIXED)
    assert tree_methods(10**6) == ("hist", "approx")


@pytest.mark.parametrize("stopped_after", [1, 5, 14])
def test_an_interrupted_search_ends_as_an_uninterrupted_one(tmp_path: Path, stopped_after: int) -> None:
    propose = partial(suggest, methods=tree_methods(1000))
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    best = search(judge, propose, 20, 3, whole)
    judged: list[Settings] = []

    def stop(settings: Settings) -> float:
        if len(judged) == stopped_after:
            raise KeyboardInterrupt
        judged.append(settings)
        return judge(settings)

    with pytest.raises(KeyboardInterrupt):
        search(stop, propose, 20, 3, resumed)
    assert len(json.loads(resumed.read_text())) == stopped_after
    told: list[tuple[int, int, float]] = []
    judged.clear()

    def note(settings: Settings) -> float:
        judged.append(settings)
        return judge(settings)

    assert search(note, propose, 20, 3, resumed, lambda *news: told.append(news)) == best
    assert len(judged) == 20 - stopped_after
    assert resumed.read_bytes() == whole.read_bytes()
    assert [news[:2] for news in told] == [(i + 1, 20) for i in range(20)]
    assert told[-1][2] == best.value
    assert search(judge, propose, 5, 3, whole) == max(_read(whole)[:5], key=lambda trial: trial.value or 0.0)
    assert len(_read(whole)) == 20


def _read(path: Path) -> list[baselines.Trial]:
    return baselines._read_trials(path)


def test_a_resumed_fit_is_the_uninterrupted_one_and_beats_no_search_on_its_folds(tmp_path: Path) -> None:
    columns, labels, customers = rows(1500)
    settings: dict[str, Any] = {"n_folds": 2, "search_rows": 800, "n_threads": 1}
    whole = XGBoost(n_trials=3, **settings).fit(columns, labels, customers, 2)
    XGBoost(n_trials=2, folder=tmp_path / "kept", **settings).fit(columns, labels, customers, 2)
    resumed = XGBoost(n_trials=3, folder=tmp_path / "kept", **settings).fit(columns, labels, customers, 2)
    np.testing.assert_array_equal(whole.score(columns), resumed.score(columns))
    assert whole.trial == resumed.trial
    (path,) = (tmp_path / "kept").iterdir()
    trials = _read(path)
    assert trials[0].settings == FIXED
    assert resumed.trial.value == max(trial.value or 0.0 for trial in trials)
    XGBoost(n_trials=1, folder=tmp_path / "kept", **settings).fit(columns, labels, customers, 3)
    assert len(list((tmp_path / "kept").iterdir())) == 2  # another seed, another search


def test_a_damaged_file_of_trials_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    path.write_text('[{"settings": 3}]')
    with pytest.raises(BundleError, match="Delete it to search anew"):
        search(judge, partial(suggest, methods=("hist",)), 1, 0, path)


def test_a_saved_booster_scores_the_same(tmp_path: Path) -> None:
    columns, labels, customers = rows(500)
    fitted = XGBoost(n_threads=1).fit(columns, labels, customers, 0)
    fitted.save(tmp_path / "model.json")
    json.loads((tmp_path / "model.json").read_text())
    again = FittedXGBoost.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.score(columns), fitted.score(columns))
    assert again.trial == fitted.trial == baselines.Trial(FIXED)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(BundleError, match="not an XGBoost model"):
        FittedXGBoost.load(tmp_path / "model.json")
    with pytest.raises(BundleError, match="cannot be read"):
        FittedXGBoost.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("name", ["logistic", "xgboost"])
def test_rows_that_cannot_be_learnt_from_are_refused(name: str) -> None:
    columns, labels, customers = rows(200)
    infinite = columns.copy()
    infinite[3, 2] = np.inf
    fit = BASELINES[name].fit
    for given, words in [
        ((columns, np.zeros(200), customers), r"found \[0.0\]"),
        ((columns, labels - 1, customers), r"found \[-1, 0\]. Leave out"),
        ((columns, labels[1:], customers), "as many labels and customers"),
        ((columns[:, 0], labels, customers), r"found shape \(200,\)"),
        ((infinite, labels, customers), "row 3, column 2 is infinite"),
    ]:
        with pytest.raises(DataError, match=words):
            fit(*given, 0)


@every
def test_other_columns_than_those_fitted_are_refused(name: str) -> None:
    columns, labels, customers = rows(400)
    fitted = BASELINES[name].fit(columns, labels, customers, 0)
    with pytest.raises(DataError, match=r"\[rows, 7\]; found shape \(400, 6\)"):
        fitted.score(columns[:, 1:])


def test_unknown_categories_are_refused() -> None:
    columns, labels, customers = rows(400)
    with pytest.raises(DataError, match="categorical column 1: found code"):
        Logistic((3, 2)).fit(columns, labels, customers, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    for make in (
        lambda: XGBoost(n_trials=-1),
        lambda: XGBoost(n_folds=1),
        lambda: XGBoost(n_threads=0),
        lambda: Logistic(strengths=()),
        lambda: Logistic(search_rows=0),
        lambda: IsolationForestBaseline(n_trees=0),
    ):
        with pytest.raises(ConfigError, match="must be"):
            make()


@pytest.mark.parametrize("module", ["xgboost", "optuna"])
def test_a_missing_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"needs the extra: pip install turncoat\[baselines\]"):
        XGBoost(n_trials=1).fit(*rows(400), 0)
