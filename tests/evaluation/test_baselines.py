"""Baselines learn what is there, refuse bad rows, and score the same once saved or resumed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from tests.evaluation.samples import make_training_rows
from turncoat import BundleError, ConfigError, DataError
from turncoat.evaluation.baselines import DesignEncoder, IsolationForestBaseline, LogisticBaseline
from turncoat.models.boosting import BoostedTrees, FittedTrees
from turncoat.models.tuning import DEFAULT_PARAMS, Trial, load_trials, validate_params

SIZES = (3, 4)
BASELINES = {
    "logistic": LogisticBaseline(SIZES, search_rows=1500),
    "forest": IsolationForestBaseline(60, 128),
    "xgboost": BoostedTrees(n_threads=1),
}
every = pytest.mark.parametrize("name", list(BASELINES))


def precision_of(baseline: Any, labels: Any, seed: int = 0) -> tuple[float, float]:
    """Average precision on rows with the same kind of labels, and the base rate."""
    rows = make_training_rows()._replace(labels=labels)
    scores = baseline.fit(rows.take(slice(2000)), seed).score(rows.columns[2000:])
    assert scores.shape == (1000,)
    assert scores.dtype == np.float64
    return average_precision_score(labels[2000:], scores), labels[2000:].mean()


@every
def test_each_beats_chance(name: str) -> None:
    found, base_rate = precision_of(BASELINES[name], make_training_rows().labels)
    assert found > 5 * base_rate


@every
def test_each_is_at_the_base_rate_on_shuffled_labels(name: str) -> None:
    found, base_rate = precision_of(
        BASELINES[name], np.random.default_rng(9).permutation(make_training_rows().labels)
    )
    assert found < 2 * base_rate


@every
def test_the_seed_decides(name: str) -> None:
    rows = make_training_rows()
    fits = (BASELINES[name].fit(rows, seed).score(rows.columns) for seed in (3, 3, 4))
    first, second, other = fits
    np.testing.assert_array_equal(first, second)
    if name != "logistic":
        assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", ["logistic", "xgboost"])
def test_probabilities_have_the_right_mean(name: str) -> None:
    rows = make_training_rows(20_000)
    fitted = BASELINES[name].fit(rows.take(slice(15_000)), 0)
    scores, labels = fitted.score(rows.columns[15_000:]), rows.labels[15_000:]
    assert scores.mean() == pytest.approx(labels.mean(), rel=0.15)


def test_the_forest_needs_no_labels_and_the_whole_table_may_be_missing() -> None:
    rows = make_training_rows(300)._replace(labels=np.full(300, -1))
    rows.columns[:, 0] = np.nan
    assert np.isfinite(IsolationForestBaseline(20).fit(rows, 0).score(rows.columns)).all()


def test_the_encoding_says_what_is_missing_and_which_category() -> None:
    columns = np.array([[1.0, 0.0, 2.0], [np.nan, 4.0, np.nan], [3.0, 8.0, 0.0]], np.float32)
    design = DesignEncoder((3,)).fit(columns).transform(columns).toarray()
    spread = np.sqrt(2 / 3)
    expected = [
        [-1 / spread, -(1.5**0.5), 0, 0, 0, 1, 0],
        [0.0, 0.0, 1, 0, 0, 0, 1],
        [1 / spread, 1.5**0.5, 0, 1, 0, 0, 0],
    ]
    np.testing.assert_allclose(design, expected, atol=1e-6)


def test_columns_without_missing_values_need_no_flags() -> None:
    rows = make_training_rows(1000)
    numbers = np.nan_to_num(rows.columns[:, :5])
    for columns, sizes in ((np.hstack([numbers, rows.columns[:, 5:]]), SIZES), (numbers, ())):
        fitted = LogisticBaseline(sizes, (0.1,)).fit(rows._replace(columns=columns), 0)
        value = average_precision_score(rows.labels, fitted.score(columns))
        assert value > 0.5


def test_the_logistic_penalty_is_one_of_those_given() -> None:
    rows = make_training_rows()
    assert LogisticBaseline(SIZES, (1e-6, 0.1)).fit(rows, 0).strength == 0.1
    assert LogisticBaseline(SIZES, (0.5,)).fit(rows, 0).strength == 0.5


def test_a_search_without_fraud_in_one_part_is_refused() -> None:
    rows = make_training_rows()
    is_fraud, is_half = rows.labels == 1, np.arange(len(rows.labels)) % 2 == 0
    for held_out, part in ((is_half & ~is_fraud, "validation rows"), (is_fraud, "rows to fit to")):
        with pytest.raises(DataError, match=rf"0 of \d+ {part} are fraud"):
            BoostedTrees(n_trials=1).fit(rows._replace(is_validation=held_out), 0)


def test_a_resumed_fit_is_the_uninterrupted_one(tmp_path: Path) -> None:
    rows = make_training_rows(1500)
    settings: dict[str, Any] = {"search_rows": 800, "n_threads": 1}
    kept = {"folder": tmp_path / "kept", **settings}
    whole = BoostedTrees(n_trials=3, **settings).fit(rows, 2)
    BoostedTrees(n_trials=2, **kept).fit(rows, 2)
    resumed = BoostedTrees(n_trials=3, **kept).fit(rows, 2)
    np.testing.assert_array_equal(whole.score(rows.columns), resumed.score(rows.columns))
    assert whole.trial == resumed.trial
    (path,) = (tmp_path / "kept").iterdir()
    trials = load_trials(path)
    searched = {name: v for name, v in trials[0].params.items() if name != "n_estimators"}
    assert searched == {name: DEFAULT_PARAMS[name] for name in searched}
    assert resumed.trial.value == max(trial.value or 0.0 for trial in trials)
    BoostedTrees(n_trials=1, **kept).fit(rows, 3)
    assert len(list((tmp_path / "kept").iterdir())) == 2  # another seed, another search


def test_given_settings_stand_in_for_a_search_that_found_them() -> None:
    rows = make_training_rows(1500)
    found = BoostedTrees(n_trials=3, search_rows=800, n_threads=1).fit(rows, 2)
    params = found.trial.params
    given = BoostedTrees(n_trials=3, n_threads=1, params=params).fit(rows, 2)
    assert params != DEFAULT_PARAMS
    assert given.trial == Trial(params)  # without a value, since nothing was searched
    np.testing.assert_array_equal(given.score(rows.columns), found.score(rows.columns))


def test_a_search_on_some_rows_finds_the_rounds_that_all_rows_need() -> None:
    rows = make_training_rows(1500)
    trees = BoostedTrees(n_trials=2, search_rows=300, n_threads=1)
    searched, fitted = trees.search(rows, 2), trees.fit(rows, 2)
    n_rounds, _ = validate_params(searched.params, rows, 2, 1)
    assert fitted.trial.params == {**searched.params, "n_estimators": n_rounds}
    assert n_rounds != searched.params["n_estimators"]
    whole = BoostedTrees(n_trials=2, search_rows=1500, n_threads=1)
    assert whole.fit(rows, 2).trial == whole.search(rows, 2)


def test_a_saved_booster_scores_the_same(tmp_path: Path) -> None:
    rows = make_training_rows(500)
    fitted = BoostedTrees(n_threads=1).fit(rows, 0)
    fitted.save(tmp_path / "model.json")
    json.loads((tmp_path / "model.json").read_text())
    again = FittedTrees.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.score(rows.columns), fitted.score(rows.columns))
    assert again.trial == fitted.trial == Trial(DEFAULT_PARAMS)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(BundleError, match="not an XGBoost model"):
        FittedTrees.load(tmp_path / "model.json")
    with pytest.raises(BundleError, match="cannot be read"):
        FittedTrees.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("name", ["logistic", "xgboost"])
def test_rows_that_cannot_be_learnt_from_are_refused(name: str) -> None:
    rows = make_training_rows(200)
    infinite = rows.columns.copy()
    infinite[3, 2] = np.inf
    for given, words in [
        ({"labels": np.zeros(200)}, r"found \[0.0\]"),
        ({"labels": rows.labels - 1}, r"found \[-1, 0\]. Leave out"),
        ({"labels": rows.labels[1:]}, r"as many values of `labels`; found shape \(199,\)"),
        ({"days": rows.days[1:]}, "as many values of `days`"),
        ({"columns": rows.columns[:, 0]}, r"found shape \(200,\)"),
        ({"columns": infinite}, "row 3, column 2 is infinite"),
    ]:
        with pytest.raises(DataError, match=words):
            BASELINES[name].fit(rows._replace(**given), 0)


@every
def test_other_columns_than_those_fitted_are_refused(name: str) -> None:
    rows = make_training_rows(400)
    fitted = BASELINES[name].fit(rows, 0)
    with pytest.raises(DataError, match=r"\[rows, 7\]; found shape \(400, 6\)"):
        fitted.score(rows.columns[:, 1:])


def test_unknown_categories_are_refused() -> None:
    with pytest.raises(DataError, match="categorical column 1: found code"):
        LogisticBaseline((3, 2)).fit(make_training_rows(400), 0)


def test_settings_that_cannot_be_are_refused() -> None:
    for make in (
        lambda: BoostedTrees(n_trials=-1),
        lambda: BoostedTrees(search_rows=0),
        lambda: BoostedTrees(n_threads=0),
        lambda: LogisticBaseline(strengths=()),
        lambda: LogisticBaseline(search_rows=0),
        lambda: IsolationForestBaseline(n_trees=0),
    ):
        with pytest.raises(ConfigError, match="must be"):
            make()


@pytest.mark.parametrize("module", ["xgboost", "optuna"])
def test_a_missing_extra_is_named(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"needs the extra: pip install turncoat\[baselines\]"):
        BoostedTrees(n_trials=1).fit(make_training_rows(400), 0)
