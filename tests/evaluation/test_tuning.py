"""A search shares no customer between folds, covers its space and resumes where it stopped."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.samples import make_training_rows
from turncoat import BundleError
from turncoat.evaluation.protocols import assign_customer_folds, sample_customers
from turncoat.evaluation.tuning import (
    DEFAULT_PARAMS,
    MIN_TRAVEL,
    XGBoostParams,
    fit_booster,
    load_trials,
    predict_booster,
    search,
    suggest_params,
    tree_methods,
)


def test_the_least_rounds_reach_a_rare_base_rate() -> None:
    columns, labels, _ = make_training_rows(20_000)
    rare = labels & (np.arange(len(labels)) % 12 == 0)
    settings: XGBoostParams = {
        **DEFAULT_PARAMS,
        "learning_rate": 0.1,
        "n_estimators": int(MIN_TRAVEL / 0.1),
    }
    scores = predict_booster(fit_booster(settings, columns, rare, 0, 1), columns)
    assert scores.mean() == pytest.approx(rare.mean(), rel=0.1)


def test_folds_share_no_customer_and_all_have_fraud() -> None:
    _, labels, customers = make_training_rows()
    keys = np.array([f"customer {c}" for c in customers])
    folds = assign_customer_folds(labels, keys, 4, 5)
    assert all(len(np.unique(folds[customers == c])) == 1 for c in np.unique(customers))
    frauds = np.bincount(folds, labels, 4)
    assert frauds.min() > 0.6 * frauds.max()
    np.testing.assert_array_equal(folds, assign_customer_folds(labels, keys, 4, 5))
    assert not np.array_equal(folds, assign_customer_folds(labels, keys, 4, 6))


def test_a_search_part_has_whole_customers_and_the_same_share_of_fraud() -> None:
    _, labels, customers = make_training_rows(20_000)
    part = sample_customers(labels, customers, 5000, 1)
    inside = np.isin(np.arange(len(labels)), part)
    assert not set(customers[inside]) & set(customers[~inside])
    assert len(part) == pytest.approx(5000, rel=0.1)
    assert labels[part].mean() == pytest.approx(labels.mean(), rel=0.2)
    np.testing.assert_array_equal(sample_customers(labels, customers, 20_000, 1), np.arange(20_000))


def objective(settings: XGBoostParams) -> float:
    """Stands for the folds where only the order of trials matters."""
    return -abs(float(settings["max_depth"]) - 5) - abs(
        math.log(float(settings["learning_rate"])) + 2
    )


def test_the_search_covers_the_old_defaults_of_xgboost() -> None:
    seen: list[XGBoostParams] = []

    def watch(settings: XGBoostParams) -> float:
        seen.append(settings)
        return objective(settings)

    best = search(watch, partial(suggest_params, methods=tree_methods(1000)), 40, 0)
    assert seen[0] == DEFAULT_PARAMS
    assert {s["tree_method"] for s in seen} == {"hist", "approx", "exact"}
    assert {s["base_score"] for s in seen} == {0.5, "estimated"}
    assert all(set(s) == set(DEFAULT_PARAMS) for s in seen)
    assert all(float(s["n_estimators"]) * float(s["learning_rate"]) >= MIN_TRAVEL for s in seen)
    assert best.value == max(objective(s) for s in seen)
    assert best.value > objective(DEFAULT_PARAMS)
    assert tree_methods(100_000) == ("hist", "approx")
    assert tree_methods(10**6) == ("hist",)


@pytest.mark.parametrize("stopped_after", [1, 5, 14])
def test_an_interrupted_search_ends_as_an_uninterrupted_one(
    tmp_path: Path, stopped_after: int
) -> None:
    propose = partial(suggest_params, methods=tree_methods(1000))
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    best = search(objective, propose, 20, 3, whole)
    scored: list[XGBoostParams] = []

    def stop(settings: XGBoostParams) -> float:
        if len(scored) == stopped_after:
            raise KeyboardInterrupt
        scored.append(settings)
        return objective(settings)

    with pytest.raises(KeyboardInterrupt):
        search(stop, propose, 20, 3, resumed)
    assert len(json.loads(resumed.read_text())) == stopped_after
    told: list[tuple[int, int, float]] = []
    scored.clear()

    def note(settings: XGBoostParams) -> float:
        scored.append(settings)
        return objective(settings)

    assert search(note, propose, 20, 3, resumed, lambda *news: told.append(news)) == best
    assert len(scored) == 20 - stopped_after
    assert resumed.read_bytes() == whole.read_bytes()
    assert [news[:2] for news in told] == [(i + 1, 20) for i in range(20)]
    assert told[-1][2] == best.value
    assert search(objective, propose, 5, 3, whole) == max(
        load_trials(whole)[:5], key=lambda trial: trial.value or 0.0
    )
    assert len(load_trials(whole)) == 20


def test_a_damaged_file_of_trials_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    path.write_text('[{"params": 3}]')
    with pytest.raises(BundleError, match="Delete it to search anew"):
        search(objective, partial(suggest_params, methods=("hist",)), 1, 0, path)
