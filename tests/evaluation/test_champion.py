"""The champion: the same by seed, the simplest of equals, chosen on nothing but its own parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.special import expit

from tests.evaluation.samples import SCHEMA, make_payments, make_portfolio
from turncoat import ConfigError, DataError
from turncoat.data import read
from turncoat.data.splits import Split, split_automatically, split_by_customer, split_by_time
from turncoat.data.transactions import Transactions
from turncoat.evaluation import chain_search
from turncoat.evaluation import champion as champions
from turncoat.evaluation.champion import ALL, SELECTED, Champion, KindTrial, choose_champion
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.features import Features
from turncoat.models import boosting, tuning
from turncoat.scoring import detector
from turncoat.scoring.detector import CHAIN_KINDS, DESCRIPTIONS, DETECTOR_KINDS
from turncoat.scoring.rankers import XGBoostRanker

PLAIN = Features("processed", min_count=4)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short searches on one thread."""
    monkeypatch.setattr(tuning, "MAX_ROUNDS", 60)
    for module in (champions, chain_search, boosting):
        monkeypatch.setattr(module, "available_threads", lambda: 1)


@cache
def portfolio() -> Transactions:
    return read(make_portfolio(100), SCHEMA)


def split(transactions: Transactions, by: Any = split_by_time) -> Split:
    rows = transactions.customer_codes, transactions.times, transactions.labels
    return by(*rows, selection=0.15, calibration=0.15)


def choose(transactions: Transactions, parts: Split, **settings: Any) -> Champion:
    options: dict[str, Any] = {"features": PLAIN, "max_trials": 1, **settings}
    return choose_champion(transactions, parts, **options)


def digest(found: Champion) -> tuple[Any, ...]:
    """Everything that was chosen and fitted."""
    ranker = found.detector.calibration_.ranker
    trees = bytes(ranker.source.save_raw("json")) if isinstance(ranker, XGBoostRanker) else None
    fitted = found.detector.digest_, found.detector.regimes.frauds.tolist(), trees
    return found.chosen, found.chain_trials, found.kind_trials, found.ranker, fitted


def with_labels(transactions: Transactions, labels: np.ndarray) -> Transactions:
    return replace(transactions, labels=labels.astype(np.int8))


def test_a_seed_gives_the_same_champion() -> None:
    data = portfolio()
    parts = split(data)
    first = choose(data, parts, max_trials=2, seed=3)
    assert digest(choose(data, parts, max_trials=2, seed=3, budget_s=1e-9)) == digest(first)
    other = choose(data, parts, max_trials=2, seed=4, kinds=("regimes",))
    assert [trial.seed for trial in other.chain_trials] == [4, 4]
    assert len(first.chain_trials) == 2
    assert digest(other) != digest(first)


def test_every_kind_is_compared_and_the_choice_is_described() -> None:
    data, told = portfolio(), []
    found = choose(data, split(data), announce=told.append)
    tried = [(trial.kind, trial.chain) for trial in found.kind_trials]
    trees = [("ranker", SELECTED), ("hybrid", SELECTED), ("hybrid", ALL)]
    assert tried == [("regimes", SELECTED), *trees]
    assert found.chosen == champions._pick_simplest(list(found.kind_trials))
    assert max(trial.average_precision for trial in found.kind_trials) > 0.8
    assert min(trial.shortfall for trial in found.kind_trials) == 0.0
    assert found.detector.kind == found.chosen.kind
    text = found.describe()
    assert f"score: {found.chosen.kind}" in text
    assert all(f"{trial.average_precision:.3f}" in text for trial in found.kind_trials)
    assert told[0] == "features"
    assert found.chosen.kind in told[-1]


@pytest.mark.parametrize("kind", ["regimes", "ranker", "hybrid"])
def test_only_the_kinds_asked_for_are_chosen(kind: str) -> None:
    data = portfolio()
    parts = split(data, split_by_customer)
    found = choose(data, parts, kinds=(kind,))
    assert {trial.kind for trial in found.kind_trials} == {found.detector.kind} == {kind}
    if found.chosen.chain == SELECTED:
        settings = found.detector.get_params(deep=False)
        assert (settings["supervision"], settings["evidence"]) == ("anchored", "weighted")
        assert found.chain_features.keys() <= set(sum(found.detector.features_.feature_names, ()))
        assert list(found.chain_features.values()) == sorted(found.chain_features.values())[::-1]
    else:
        assert found.chain_features == {}
    assert "Chosen on the selection part" in found.describe()
    scores = found.detector.score(data).probability[parts.test]
    labels = np.asarray(data.labels)[parts.test]
    assert scores[labels == 1].mean() > 3 * scores[labels == 0].mean()


def test_large_files_leave_less_of_the_budget_for_choosing() -> None:
    parts = split(portfolio())
    sizes = (100_000, 250_000, 500_000, 625_000, 5_000_000)
    found = [champions._limit_choosing(300.0, replace(parts, fit=np.arange(n))) for n in sizes]
    assert found == [300.0, 300.0, 150.0, 120.0, 120.0]


def test_past_the_deadline_a_hybrid_is_tried_only_if_it_is_asked_for() -> None:
    data = portfolio()
    parts, late = split(data), {"max_trials": None, "budget_s": 1e-9}
    found = choose(data, parts, **late)
    assert [trial.kind for trial in found.kind_trials] == ["regimes", "ranker"]
    (only,) = choose(data, parts, kinds=("hybrid",), **late).kind_trials
    assert (only.kind, only.chain) == ("hybrid", SELECTED)


def test_the_simplest_within_one_standard_error_is_taken() -> None:
    def pick(*pairs: tuple[float, float]) -> int:
        trials = [KindTrial(str(i), SELECTED, 0.5, *pair) for i, pair in enumerate(pairs)]
        return int(champions._pick_simplest(trials).kind)

    assert pick((0.02, 0.03), (0.0, 0.0)) == 0
    assert pick((0.03, 0.02), (0.01, 0.02), (0.0, 0.0)) == 1
    assert pick((0.03, 0.02), (0.02, 0.01), (0.0, 0.0)) == 2
    assert pick((0.0, 0.0), (0.0, 0.0)) == 0


def test_the_standard_error_is_of_the_difference_by_customer() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(1500) < 0.1).astype(np.int64)
    good = labels + rng.normal(0, 0.7, 1500)

    def as_scored(scores: np.ndarray, customers: np.ndarray) -> ScoredLabels:
        return ScoredLabels(scores, labels, customers, np.zeros(1500, int))

    everyone, few = np.arange(1500), np.arange(1500) // 100
    keys = ("regimes", SELECTED), ("ranker", SELECTED), ("hybrid", SELECTED)
    columns = (good + rng.normal(0, 0.05, 1500), good, good + rng.normal(0, 2.0, 1500))
    near, best, far = champions._compare_kinds(
        {key: as_scored(one, everyone) for key, one in zip(keys, columns, strict=True)}, 0
    )
    assert max(near.average_precision, best.average_precision) > far.average_precision + 0.1
    assert abs(near.average_precision - best.average_precision) < 0.02
    assert max(near.standard_error, best.standard_error) < 0.01  # they err on the same rows
    assert 0.02 < far.standard_error < far.shortfall
    burst = np.where(few < 2, -good, good)  # wrong for two of fifteen customers
    alone = champions._compare_kinds(
        {keys[0]: as_scored(good, few), keys[1]: as_scored(burst, few)}, 0
    )
    rows = champions._compare_kinds(
        {keys[0]: as_scored(good, everyone), keys[1]: as_scored(burst, everyone)}, 0
    )
    assert alone[1].standard_error > 1.5 * rows[1].standard_error


def test_the_simplest_must_be_close_in_log_loss_too() -> None:
    def pick(*figures: tuple[float, ...]) -> int:
        trials = [KindTrial(str(i), SELECTED, 0.5, *some) for i, some in enumerate(figures)]
        return int(champions._pick_simplest(trials).kind)

    best = (0.0, 0.0, 0.0, 0.0)
    assert pick((0.01, 0.02, 0.001, 0.002), best) == 0
    assert pick((0.01, 0.02, 0.003, 0.002), best) == 1
    assert pick((0.03, 0.02, 0.001, 0.002), best) == 1
    # One orders best and another calibrates best: the one that orders best is taken.
    assert pick((0.02, 0.01, 0.0, 0.0), (0.0, 0.0, 0.004, 0.001)) == 1


def test_log_losses_compare_what_kinds_know_and_not_their_scale() -> None:
    rng = np.random.default_rng(0)
    labels, customers = (rng.random(3000) < 0.1).astype(np.int64), np.arange(3000) // 10
    good = expit(2.5 * labels - 3 + rng.normal(0, 1, 3000))
    columns = {"regimes": good, "chains": 0.01 * good, "ranker": rng.random(3000)}
    days = np.zeros(3000, int)
    scored = {(k, SELECTED): ScoredLabels(v, labels, customers, days) for k, v in columns.items()}
    plain, tiny, useless = champions._compare_kinds(scored, 0)
    assert min(one.excess_loss for one in (plain, tiny, useless)) == 0
    assert abs(plain.excess_loss - tiny.excess_loss) < 0.01
    assert useless.excess_loss > 3 * useless.loss_error > 0
    assert plain.shortfall == tiny.shortfall == 0


def test_scores_of_0_and_1_can_be_compared() -> None:
    rng = np.random.default_rng(0)
    labels, customers = (rng.random(600) < 0.2).astype(np.int64), np.arange(600) // 6
    sure = np.where(rng.random(600) < 0.05, 1 - labels, labels).astype(float)
    scored = {
        ("regimes", SELECTED): ScoredLabels(sure, labels, customers, np.zeros(600, int)),
        ("chains", SELECTED): ScoredLabels(0.5 * sure, labels, customers, np.zeros(600, int)),
    }
    for one in champions._compare_kinds(scored, 0):
        assert np.isfinite([one.excess_loss, one.loss_error]).all()


ENGINEERED = Features(min_count=4)


def test_chains_are_compared_with_every_other_kind() -> None:
    data = portfolio()
    found = choose(data, split(data, split_by_customer), features=ENGINEERED)
    assert {trial.kind for trial in found.kind_trials} == set(DETECTOR_KINDS)
    order = [DETECTOR_KINDS.index(trial.kind) for trial in found.kind_trials]
    assert order == sorted(order)  # the simplest first
    precision = {trial.kind: trial.average_precision for trial in found.kind_trials}
    assert min(precision["chains"], precision["chains+trees"]) > 0.5


@pytest.mark.parametrize("kind", ["chains", "chains+trees"])
def test_chains_can_be_chosen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among all kinds, as if they were the simplest that is good enough."""

    def pick(trials: list[KindTrial]) -> KindTrial:
        assert {trial.kind for trial in trials} == {"regimes", "ranker", *CHAIN_KINDS}
        return next(trial for trial in trials if trial.kind == kind)

    monkeypatch.setattr(champions, "_pick_simplest", pick)
    data = portfolio()
    parts, kinds = split(data, split_by_customer), ("regimes", "ranker", *CHAIN_KINDS)
    found = choose(data, parts, features=ENGINEERED, kinds=kinds)
    assert found.chosen.kind == found.detector.kind == kind
    assert found.detector.features_.plan.chains is not None
    assert f"score: {kind}, {DESCRIPTIONS[kind]}" in found.describe()
    assert f"* {kind}: average precision" in found.describe()
    scores = found.detector.score(data).probability[parts.test]
    labels = np.asarray(data.labels)[parts.test]
    assert scores[labels == 1].mean() > 3 * scores[labels == 0].mean()


def test_chains_alone_need_no_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(tuning, "validate_params", refuse)
    data = portfolio()
    parts = split(data, split_by_customer)
    found = choose(data, parts, features=ENGINEERED, kinds=("regimes", "chains"))
    assert {trial.kind for trial in found.kind_trials} == {"regimes", "chains"}
    assert found.ranker is None


def test_causes_are_learnt_once_from_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    learn, splits, n_compared = champions.learn_causes, [], []

    def watch_learning(features: Any, data: Any, parts: Split, *rest: Any) -> Any:
        splits.append(parts)
        return learn(features, data, parts, *rest)

    def watch_comparing(params: Any, rows: Any, *rest: Any) -> Any:
        n_compared.append((len(rows.labels), None if rows.margins is None else len(rows.margins)))
        return validate(params, rows, *rest)

    validate = tuning.validate_params
    monkeypatch.setattr(champions, "learn_causes", watch_learning)
    monkeypatch.setattr(detector, "learn_causes", watch_learning)
    monkeypatch.setattr(tuning, "validate_params", watch_comparing)
    monkeypatch.setattr(champions, "_COMPARED_ROWS", 300)
    data = portfolio()
    parts = split(data, split_by_customer)
    choose(data, parts, features=ENGINEERED, kinds=("ranker", "chains+trees"))
    assert splits == [parts]
    (n_rows, without), (n_corrected, n_margins) = n_compared
    assert without is None
    assert n_rows == n_corrected == n_margins < len(parts.fit) + len(parts.selection)


def test_features_without_a_history_leave_chains_out() -> None:
    data = portfolio()
    found = choose(data, split(data), kinds=("regimes", "chains"))
    assert {trial.kind for trial in found.kind_trials} == {"regimes"}


@pytest.mark.parametrize("by", [split_by_time, split_by_customer])
def test_nothing_of_the_test_part_reaches_the_choice(by: Any) -> None:
    """Neither labels nor values of its rows."""
    data = portfolio()
    parts, labels = split(data, by), np.asarray(data.labels).copy()
    expected = digest(choose(data, parts, features=Features(min_count=4, include=INCLUDED)))
    labels[parts.test] = 1 - labels[parts.test]
    frame, test = make_portfolio(100), np.zeros(data.n_rows, bool)
    test[data.file_rows[parts.test]] = True
    changed = frame.with_columns(
        paid=pl.Series(np.where(test, 1e4 * frame["paid"], frame["paid"])),
        device=pl.Series(np.where(test, "unheard", frame["device"])),
        shop=pl.Series(np.where(test, "s0", frame["shop"])),
    )
    other = with_labels(read(changed, SCHEMA), labels)
    np.testing.assert_array_equal(other.file_rows, data.file_rows)
    assert not np.array_equal(other.column("paid"), data.column("paid"))
    found = choose(other, parts, features=Features(min_count=4, include=INCLUDED))
    assert digest(found) == expected


INCLUDED = ("paid", "amount_z", "count_hour", "device", "counterparty_risk_month")


def test_unknown_labels_are_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    data = portfolio()
    parts, is_known = split(data), np.arange(data.n_rows) % 3 > 0
    truth, n_compared = np.asarray(data.labels), []
    hidden = with_labels(data, np.where(is_known, truth, -1))
    frame = make_portfolio(100)
    unknown_in_file = np.zeros(data.n_rows, bool)
    unknown_in_file[data.file_rows[~is_known]] = True
    flipped = np.where(unknown_in_file, 1 - frame["fraud"], frame["fraud"])
    other = read(frame.with_columns(fraud=pl.Series(flipped)), SCHEMA)
    other = with_labels(other, np.where(is_known, np.asarray(other.labels), -1))
    compare, fit = champions._compare_kinds, tuning.fit_booster

    def watch_compare(columns: Any, seed: int) -> Any:
        n_compared.extend(len(one) for one in columns.values())
        return compare(columns, seed)

    def watch_fit(params: Any, rows: Any, *options: Any) -> Any:
        assert set(np.unique(rows.labels)) == {0, 1}
        return fit(params, rows, *options)

    monkeypatch.setattr(champions, "_compare_kinds", watch_compare)
    monkeypatch.setattr(tuning, "fit_booster", watch_fit)
    assert digest(choose(hidden, parts)) == digest(choose(other, parts))
    assert set(n_compared) == {int(is_known[parts.selection].sum())}


@pytest.mark.parametrize(
    ("lengths", "by"),
    [
        pytest.param([1500], split_by_time, id="one customer"),
        pytest.param([400] * 5, split_by_time, id="few customers"),
        pytest.param([1, 2, 3] * 350, split_by_customer, id="short histories"),
        pytest.param([1, 2, 3] * 350, split_by_time, id="short histories, by time"),
    ],
)
def test_histories_of_any_length(lengths: list[int], by: Any) -> None:
    data = read(make_payments(lengths), SCHEMA)
    parts = split(data, by)
    found = choose(data, parts)
    scores = found.detector.score(data)
    assert np.isfinite(scores.probability).all()
    assert scores.probability.mean() == pytest.approx(0.08, abs=0.04)
    test, labels = scores.probability[parts.test], np.asarray(data.labels)[parts.test]
    assert test[labels == 1].mean() > 2 * test[labels == 0].mean()
    rows = data.customer_codes, data.times, data.labels
    again = found.detector.refit(data, split_automatically(*rows, test=0.0))
    assert again.score(data).probability.mean() == pytest.approx(0.08, abs=0.04)


NAMES = r"regimes, chains, ranker, hybrid, chains\+trees"


def test_options_that_cannot_be_are_refused() -> None:
    data = portfolio()
    parts = split(data)
    for settings, words in (
        ({"kinds": ()}, rf"kinds is \(\); each must be one of {NAMES}"),
        ({"kinds": ("regimes", "best")}, "kinds is"),
        ({"budget_s": 0.0, "max_trials": None}, "budget_s is 0.0"),
        ({"budget_s": float("nan")}, "budget_s is nan"),
        ({"max_trials": 0}, "max_trials is 0; it must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=words):
            choose(data, parts, **settings)


@pytest.mark.parametrize("part", ["fit", "selection", "calibration"])
def test_parts_without_rows_or_fraud_are_named(part: str) -> None:
    data = portfolio()
    parts, labels = split(data), np.asarray(data.labels).copy()
    n_rows = len(parts.parts[part])
    labels[parts.parts[part]] = 0
    found = f"the {part} part has 0 known frauds, {n_rows:,} known genuine and 0 unlabelled"
    with pytest.raises(DataError, match=found):
        choose(with_labels(data, labels), parts)
    with pytest.raises(ConfigError, match=f"has no {part} part, and choosing a detector needs one"):
        choose(data, replace(parts, **{part: np.empty(0, np.int64)}))


def test_a_file_without_labels_is_refused() -> None:
    frame = make_portfolio(100).drop("fraud")
    data = read(frame, replace(SCHEMA, label=None))
    with pytest.raises(DataError, match="choosing a detector needs labels"):
        choose(data, split(portfolio()))
