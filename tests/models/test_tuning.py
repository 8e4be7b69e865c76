"""A search covers its space, fits to nothing it validates on, and resumes where it stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.evaluation.samples import make_training_rows
from turncoat import BundleError
from turncoat.models.tuning import (
    DEFAULT_PARAMS,
    FIRST_TRIALS,
    MAX_HISTOGRAM,
    SearchSpace,
    Trial,
    XGBoostParams,
    evaluate_params,
    fit_booster,
    load_trials,
    predict_booster,
    sample_customers,
    search,
)

SPACE = SearchSpace(("hist", "approx", "exact"), (0, 7, 14))


def test_trials_end_by_log_loss_with_the_right_mean() -> None:
    rows = make_training_rows(20_000)
    rare = rows._replace(labels=rows.labels & (np.arange(len(rows.labels)) % 12 == 0))
    trial = evaluate_params({**DEFAULT_PARAMS, "learning_rate": 0.1}, rare, 0, 1)
    assert 20 < float(trial.params["n_estimators"]) < 400
    scores = predict_booster(fit_booster(trial.params, rare, 0, 1), rare.columns)
    assert scores.mean() == pytest.approx(rare.labels.mean(), rel=0.15)


def test_a_trial_is_fitted_to_no_validation_row_and_to_its_window_only() -> None:
    rows = make_training_rows()
    found = evaluate_params(DEFAULT_PARAMS, rows, 0, 1)
    wrong = np.where(rows.is_validation, 1 - rows.labels, rows.labels)
    other = evaluate_params(DEFAULT_PARAMS, rows._replace(labels=wrong), 0, 1)
    assert (found.value or 0) > 0.6
    assert (other.value or 1) < wrong[rows.is_validation].mean()  # chance
    recent: XGBoostParams = {**DEFAULT_PARAMS, "window_days": 7}
    is_old = rows.days <= rows.days[~rows.is_validation].max() - 7
    noise = np.random.default_rng(0).permutation(rows.labels)
    shuffled = np.where(is_old & ~rows.is_validation, noise, rows.labels)
    again = evaluate_params(recent, rows._replace(labels=shuffled), 0, 1)
    assert evaluate_params(recent, rows, 0, 1) == again != found


def test_the_space_depends_on_size_and_days() -> None:
    rows = make_training_rows()
    assert SearchSpace.of(rows) == (("hist", "approx", "exact"), (0, 7, 14, 28), False)
    week = rows._replace(days=rows.days / 10, columns=np.zeros((3000, 3000), np.float32))
    assert SearchSpace.of(week) == (("hist", "approx"), (0,), True)
    large = rows._replace(columns=np.broadcast_to(np.float32(0), (3000, 10**5)))
    assert SearchSpace.of(large).tree_methods == ("hist",)
    assert len(SPACE.list_first()) == len(FIRST_TRIALS)
    assert len(SearchSpace(("hist",), (0,)).list_first()) == len(FIRST_TRIALS) - 2
    bins = [int(trial["max_bin"]) for trial in SearchSpace(("hist",), (0,), True).list_first()]
    assert bins == sorted(bins)
    assert SPACE.list_first()[0] == DEFAULT_PARAMS


def test_a_search_part_has_whole_customers_and_the_same_share_of_fraud() -> None:
    rows = make_training_rows(20_000)
    labels, customers = rows.labels, rows.customers
    part = sample_customers(labels, customers, 5000, 1)
    inside = np.isin(np.arange(len(labels)), part)
    assert not set(customers[inside]) & set(customers[~inside])
    assert len(part) == pytest.approx(5000, rel=0.1)
    assert labels[part].mean() == pytest.approx(labels.mean(), rel=0.2)
    np.testing.assert_array_equal(sample_customers(labels, customers, 20_000, 1), np.arange(20_000))


def evaluate(settings: XGBoostParams) -> Trial:
    """Stands for fits where only the order of trials matters."""
    depth, rate = float(settings["max_depth"]), float(settings["learning_rate"])
    return Trial(settings, -abs(depth - 5) - abs(math.log(rate) + 2))


def test_the_search_covers_fine_bins_slow_learning_and_recent_rows() -> None:
    seen: list[XGBoostParams] = []

    def watch(settings: XGBoostParams) -> Trial:
        seen.append(settings)
        return evaluate(settings)

    best = search(watch, SPACE, 60, 0)
    assert {**DEFAULT_PARAMS, **seen[0]} == DEFAULT_PARAMS
    assert {s["tree_method"] for s in seen} == {"hist", "approx", "exact"}
    assert {s["base_score"] for s in seen} == {0.5, "estimated"}
    assert {s["max_bin"] for s in seen} >= {256, 1024, 4096, 16384}
    assert {s["window_days"] for s in seen} == {0, 7, 14}
    assert min(float(s["learning_rate"]) for s in seen) < 0.04
    assert max(int(s["max_bin"]) * 2 ** int(s["max_depth"]) for s in seen) <= MAX_HISTOGRAM
    assert min(float(s["subsample"]) for s in seen) < 0.5
    assert all({*s, "n_estimators"} == set(DEFAULT_PARAMS) for s in seen)
    values = [evaluate(s).value or 0.0 for s in seen]
    assert best.value == max(values) > values[0]


def test_every_proposal_can_be_fitted() -> None:
    rows = make_training_rows(400)
    methods = set()

    def fit(settings: XGBoostParams) -> Trial:
        methods.add(settings["tree_method"])
        return evaluate_params({**settings, "learning_rate": 0.2}, rows, 0, 1)

    assert 0 < (search(fit, SPACE, 12, 0).value or 0) <= 1
    assert methods == {"hist", "approx", "exact"}


@pytest.mark.parametrize("stopped_after", [1, 5, 14])
def test_an_interrupted_search_ends_as_an_uninterrupted_one(
    tmp_path: Path, stopped_after: int
) -> None:
    whole, resumed = tmp_path / "whole.json", tmp_path / "resumed.json"
    best = search(evaluate, SPACE, 20, 3, whole)
    scored: list[XGBoostParams] = []

    def stop(settings: XGBoostParams) -> Trial:
        if len(scored) == stopped_after:
            raise KeyboardInterrupt
        scored.append(settings)
        return evaluate(settings)

    with pytest.raises(KeyboardInterrupt):
        search(stop, SPACE, 20, 3, resumed)
    assert len(json.loads(resumed.read_text())) == stopped_after
    told: list[tuple[int, int, float]] = []
    scored.clear()

    def note(settings: XGBoostParams) -> Trial:
        scored.append(settings)
        return evaluate(settings)

    assert search(note, SPACE, 20, 3, resumed, lambda *news: told.append(news)) == best
    assert len(scored) == 20 - stopped_after
    assert resumed.read_bytes() == whole.read_bytes()
    assert [news[:2] for news in told] == [(i + 1, 20) for i in range(20)]
    assert told[-1][2] == best.value
    assert search(evaluate, SPACE, 5, 3, whole) == max(
        load_trials(whole)[:5], key=lambda trial: trial.value or 0.0
    )
    assert len(load_trials(whole)) == 20


def test_a_damaged_file_of_trials_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trials.json"
    path.write_text('[{"params": 3}]')
    with pytest.raises(BundleError, match="Delete it to search anew"):
        search(evaluate, SPACE, 1, 0, path)
