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
from turncoat.evaluation.baselines import (
    DesignEncoder,
    FittedXGBoost,
    IsolationForestBaseline,
    LogisticBaseline,
    XGBoostBaseline,
)
from turncoat.evaluation.tuning import DEFAULT_PARAMS, Trial, load_trials

SIZES = (3, 4)
BASELINES = {
    "logistic": LogisticBaseline(SIZES, search_rows=1500),
    "forest": IsolationForestBaseline(60, 128),
    "xgboost": XGBoostBaseline(n_threads=1),
}
every = pytest.mark.parametrize("name", list(BASELINES))


def precision_of(baseline: Any, labels: Any, seed: int = 0) -> tuple[float, float]:
    """Average precision on rows with the same kind of labels, and the base rate."""
    columns, _, customers = make_training_rows()
    scores = baseline.fit(columns[:2000], labels[:2000], customers[:2000], seed).score(
        columns[2000:]
    )
    assert scores.shape == (1000,)
    assert scores.dtype == np.float64
    return average_precision_score(labels[2000:], scores), labels[2000:].mean()


@every
def test_each_beats_chance(name: str) -> None:
    found, base_rate = precision_of(BASELINES[name], make_training_rows()[1])
    assert found > 5 * base_rate


@every
def test_each_is_at_the_base_rate_on_shuffled_labels(name: str) -> None:
    found, base_rate = precision_of(
        BASELINES[name], np.random.default_rng(9).permutation(make_training_rows()[1])
    )
    assert found < 2 * base_rate


@every
def test_the_seed_decides(name: str) -> None:
    columns, labels, customers = make_training_rows()
    first, second, other = (
        BASELINES[name].fit(columns, labels, customers, seed).score(columns) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, second)
    if name != "logistic":
        assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", ["logistic", "xgboost"])
def test_probabilities_have_the_right_mean(name: str) -> None:
    columns, labels, customers = make_training_rows(20_000)
    scores = (
        BASELINES[name]
        .fit(columns[:15_000], labels[:15_000], customers[:15_000], 0)
        .score(columns[15_000:])
    )
    assert scores.mean() == pytest.approx(labels[15_000:].mean(), rel=0.15)


def test_the_forest_needs_no_labels_and_the_whole_table_may_be_missing() -> None:
    columns, _, customers = make_training_rows(300)
    columns[:, 0] = np.nan
    nothing = np.full(300, -1)
    assert np.isfinite(
        IsolationForestBaseline(20).fit(columns, nothing, customers, 0).score(columns)
    ).all()


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


def test_the_logistic_penalty_is_one_of_those_given() -> None:
    columns, labels, customers = make_training_rows()
    assert LogisticBaseline(SIZES, (1e-6, 0.1)).fit(columns, labels, customers, 0).strength == 0.1
    assert (
        LogisticBaseline(SIZES, (0.5,), n_folds=500).fit(columns, labels, customers, 0).strength
        == 0.5
    )


def test_too_few_customers_with_fraud_are_refused() -> None:
    columns, labels, _ = make_training_rows()
    with pytest.raises(DataError, match="1 customers have fraud, too few for 3 folds"):
        XGBoostBaseline(n_trials=1).fit(columns, labels, np.zeros(len(labels)), 0)


def test_a_resumed_fit_is_the_uninterrupted_one_and_beats_no_search_on_its_folds(
    tmp_path: Path,
) -> None:
    columns, labels, customers = make_training_rows(1500)
    settings: dict[str, Any] = {"n_folds": 2, "search_rows": 800, "n_threads": 1}
    whole = XGBoostBaseline(n_trials=3, **settings).fit(columns, labels, customers, 2)
    XGBoostBaseline(n_trials=2, folder=tmp_path / "kept", **settings).fit(
        columns, labels, customers, 2
    )
    resumed = XGBoostBaseline(n_trials=3, folder=tmp_path / "kept", **settings).fit(
        columns, labels, customers, 2
    )
    np.testing.assert_array_equal(whole.score(columns), resumed.score(columns))
    assert whole.trial == resumed.trial
    (path,) = (tmp_path / "kept").iterdir()
    trials = load_trials(path)
    assert trials[0].params == DEFAULT_PARAMS
    assert resumed.trial.value == max(trial.value or 0.0 for trial in trials)
    XGBoostBaseline(n_trials=1, folder=tmp_path / "kept", **settings).fit(
        columns, labels, customers, 3
    )
    assert len(list((tmp_path / "kept").iterdir())) == 2  # another seed, another search


def test_given_settings_stand_in_for_a_search_that_found_them() -> None:
    columns, labels, customers = make_training_rows(1500)
    found = XGBoostBaseline(n_trials=3, n_folds=2, search_rows=800, n_threads=1).fit(
        columns, labels, customers, 2
    )
    given = XGBoostBaseline(n_trials=3, n_threads=1, params=found.trial.params).fit(
        columns, labels, customers, 2
    )
    assert found.trial.params != DEFAULT_PARAMS
    assert given.trial == Trial(found.trial.params)  # without a value, since nothing was searched
    np.testing.assert_array_equal(given.score(columns), found.score(columns))


def test_a_saved_booster_scores_the_same(tmp_path: Path) -> None:
    columns, labels, customers = make_training_rows(500)
    fitted = XGBoostBaseline(n_threads=1).fit(columns, labels, customers, 0)
    fitted.save(tmp_path / "model.json")
    json.loads((tmp_path / "model.json").read_text())
    again = FittedXGBoost.load(tmp_path / "model.json")
    np.testing.assert_array_equal(again.score(columns), fitted.score(columns))
    assert again.trial == fitted.trial == Trial(DEFAULT_PARAMS)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(BundleError, match="not an XGBoost model"):
        FittedXGBoost.load(tmp_path / "model.json")
    with pytest.raises(BundleError, match="cannot be read"):
        FittedXGBoost.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("name", ["logistic", "xgboost"])
def test_rows_that_cannot_be_learnt_from_are_refused(name: str) -> None:
    columns, labels, customers = make_training_rows(200)
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
    columns, labels, customers = make_training_rows(400)
    fitted = BASELINES[name].fit(columns, labels, customers, 0)
    with pytest.raises(DataError, match=r"\[rows, 7\]; found shape \(400, 6\)"):
        fitted.score(columns[:, 1:])


def test_unknown_categories_are_refused() -> None:
    columns, labels, customers = make_training_rows(400)
    with pytest.raises(DataError, match="categorical column 1: found code"):
        LogisticBaseline((3, 2)).fit(columns, labels, customers, 0)


def test_settings_that_cannot_be_are_refused() -> None:
    for make in (
        lambda: XGBoostBaseline(n_trials=-1),
        lambda: XGBoostBaseline(n_folds=1),
        lambda: XGBoostBaseline(n_threads=0),
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
        XGBoostBaseline(n_trials=1).fit(*make_training_rows(400), 0)
