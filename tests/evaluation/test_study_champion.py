"""The champion of a study: its scores, what was chosen, resumed, and fitted again."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from tests.evaluation.samples import SCHEMA, make_portfolio
from tests.evaluation.test_study import QUICK, QUIET, of
from turncoat import load
from turncoat.data import Transactions, read
from turncoat.data.splits import DAY, split_automatically
from turncoat.evaluation import study
from turncoat.evaluation.evaluator import evaluate
from turncoat.evaluation.protocols import CALIBRATION, TEST, Fold, SplitProtocol
from turncoat.evaluation.results import Results, load_pieces, load_results, save_results
from turncoat.evaluation.study import Study, run_study
from turncoat.evaluation.summary import Costs
from turncoat.evaluation.verdict import CHANCE
from turncoat.features.split_panels import select_visible
from turncoat.scoring.chain_pieces import PIECE_NAMES
from turncoat.scoring.detector import DETECTOR_KINDS

SETTINGS = replace(QUICK, seeds=(1,), tiers=("variational",), baselines=("logistic", "xgboost"))


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Results, Path]:
    folder = tmp_path_factory.mktemp("champion") / "run"
    found = run_study(read(make_portfolio(), SCHEMA), SETTINGS, folder, QUIET)
    return found, evaluate(found), folder


def test_the_champion_is_a_detector_with_the_scores_of_the_study(
    studied: tuple[Study, Results, Path],
) -> None:
    found, results, folder = studied
    detector = load(folder / "fits" / "fold-1-seed-1" / "champion" / "detector")
    fold, scores = found.folds[0], found.scores(0, 1, "champion")
    whole = detector.score(found.transactions).probability
    np.testing.assert_allclose(whole[fold.rows(TEST)], scores[TEST], atol=1e-6)
    visible, places = select_visible(fold.transactions, fold.split, CALIBRATION)
    earlier = detector.score(visible).probability[places]
    np.testing.assert_allclose(earlier, scores[CALIBRATION], atol=1e-6)
    one = of(results, "champion")
    assert (one.family, one.mode, one.tier, one.is_probability) == (
        "champion",
        "filtered",
        None,
        True,
    )
    assert one.metrics["average_precision"].value == pytest.approx(
        average_precision_score(fold.labels(TEST), scores[TEST])
    )


def test_results_say_what_was_chosen(studied: tuple[Study, Results, Path], tmp_path: Path) -> None:
    found, results, folder = studied
    (champion,) = results.champions
    choice, detector = champion.choice, found.champion
    assert detector is not None
    assert (champion.fold, champion.seed) == (1, 1)
    assert (choice.n_states, choice.chosen.kind) == (detector.model_.n_states, detector.kind)
    assert {one.kind for one in choice.kinds} == set(DETECTOR_KINDS)
    assert sum(one.is_chosen for one in choice.kinds) == 1
    assert min(one.shortfall for one in choice.kinds) == 0
    assert len(choice.chains) == 1  # as many as trials, and one at least
    weights = [weight for weight in detector.model_.weights or () if weight > 0]
    assert sorted(choice.evidence_weights.values()) == pytest.approx(sorted(weights))
    beside = folder / "fits" / "fold-1-seed-1" / "champion" / "choice.json"
    assert "Chosen on the selection part" in json.loads(beside.read_bytes())["description"]
    save_results(results, tmp_path / "results.json")
    assert load_results(tmp_path / "results.json") == results


def test_pieces_of_the_chains_are_measured_once_and_kept(
    studied: tuple[Study, Results, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, results, folder = studied
    assert results.pieces is not None
    assert results.pieces == load_pieces(folder / "pieces.json")
    assert [one.piece for one in results.pieces.pieces] == list(PIECE_NAMES)
    monkeypatch.setattr(study, "measure_pieces", None)  # would fail if it were called
    again = run_study(found.transactions, SETTINGS, folder, QUIET)
    assert again.pieces == found.pieces


def test_headlines_begin_with_the_champion_and_have_the_sober_ones(
    studied: tuple[Study, Results, Path],
) -> None:
    results = studied[1]
    headlines = [one for one in results.comparisons if one.topic]
    assert (headlines[0].first, headlines[0].second) == ("champion", "XGBoost")
    pairs = {(one.first, one.second) for one in headlines}
    for name in (
        "champion",
        "variational, corrected, filtered",
        "variational, anchored, corrected, filtered",
    ):
        assert {(name, "XGBoost"), (name, "logistic regression")} <= pairs
    keys = [(one.first, one.second, one.metric) for one in results.comparisons]
    assert len(set(keys)) == len(keys)


def test_the_verdict_follows_the_interval(studied: tuple[Study, Results, Path]) -> None:
    results = studied[1]
    low, high = results.comparisons[0].customer_interval
    assert results.verdict == ("better" if low > 0 else "worse" if high < 0 else "as good")


def test_the_summary_is_of_the_champion_s_scores(studied: tuple[Study, Results, Path]) -> None:
    found, results, _ = studied
    summary, fold = results.summary, found.folds[0]
    assert summary is not None
    assert (summary.detector, summary.costs) == ("champion", Costs())
    precisions = [
        of(results, one.candidate).metrics["average_precision"].value for one in summary.curves
    ]
    assert precisions == sorted(precisions, reverse=True)
    names = {one.candidate for one in summary.curves}
    assert {"champion", "XGBoost", "logistic regression"} <= names
    assert len(names) <= 10
    assert not any("isotonic" in name or "smoothed" in name or "raw" in name for name in names)
    test, transactions = fold.rows(TEST), found.transactions
    labels, scores = fold.labels(TEST), found.scores(0, 1, "champion")[TEST]
    traffic = summary.traffic
    assert (traffic.n_rows, traffic.n_frauds) == (len(test), labels.sum())
    days = np.floor(transactions.times[test] / DAY)
    assert traffic.n_days == days.max() - days.min() + 1
    every = np.floor(transactions.times / DAY)
    inside = (every >= days.min()) & (every <= days.max())
    assert traffic.scale == pytest.approx(inside.sum() / len(test))
    paid = transactions.column("paid")[test] * (labels == 1)
    assert traffic.fraud_value_per_month == pytest.approx(
        traffic.scale * 30 / traffic.n_days * paid.sum()
    )
    order = np.argsort(-scores, kind="stable")
    for one in summary.budgets:
        n_whole = int(one.n_alerts)
        assert labels[order[:n_whole]].sum() <= one.n_caught + 1e-9
        assert one.n_caught <= labels[order[: n_whole + 1]].sum() + 1e-9
    others = summary.find_budgets("XGBoost")
    for gain, own, other in zip(summary.gains, summary.budgets, others, strict=True):
        gap = own.frauds_per_month.value - other.frauds_per_month.value
        assert gain.value == pytest.approx(gap)
    savings = [one.net_saving.value for one in summary.budgets]
    assert savings[summary.best_budget] == max(savings)
    assert [one.candidate for one in summary.reliability] == ["champion", "XGBoost"]
    assert results.regimes[0].detector == "champion"


def test_the_highest_scored_customers_are_those_of_the_scores(
    studied: tuple[Study, Results, Path],
) -> None:
    found, results, _ = studied
    assert results.summary is not None
    fold, transactions = found.folds[0], found.transactions
    test, scores = fold.rows(TEST), found.scores(0, 1, "champion")[TEST]
    best: dict[str, int] = {}
    for place in np.argsort(-scores, kind="stable"):
        key = str(transactions.customers[transactions.customer_codes[test[place]]])
        best.setdefault(key, int(place))
    customers = results.summary.top_customers
    assert [one.customer for one in customers] == list(best)[:10]
    for one in customers:
        row = test[best[one.customer]]
        assert one.probability == pytest.approx(scores[best[one.customer]])
        assert one.interval[0] <= one.probability <= one.interval[1]
        assert one.is_fraud == (transactions.labels[row] == 1)
        assert one.path[-1].transaction == str(transactions.ids[row])
        assert 1 <= len(one.path) <= 12
        ids = [str(name) for name in transactions.ids]
        rows = [ids.index(step.transaction) for step in one.path]
        assert rows == list(range(row - len(rows) + 1, row + 1))
        clock = found.champion.live.clock
        moments = [clock.format_moment(transactions.times[place]) for place in rows]
        assert [step.moment for step in one.path] == moments
        paid = transactions.column("paid")[rows].tolist()
        assert [step.amount for step in one.path] == pytest.approx(paid)
        (score,) = (
            s
            for _, s in found.champion.explain(transactions, one.customer, one.path[-1].transaction)
        )
        texts = {reason.text for reason in score.reasons}
        assert 1 <= len(one.reasons) <= 3
        assert {reason.text for reason in one.reasons} <= texts
        assert one.n_earlier + len(one.path) == score.n_seen


def test_a_champion_that_was_lost_is_chosen_again_and_the_same(
    studied: tuple[Study, Results, Path], tmp_path: Path
) -> None:
    _, results, folder = studied
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "fits" / "fold-1-seed-1" / "champion" / "choice.json").unlink()
    again = run_study(read(make_portfolio(), SCHEMA), SETTINGS, tmp_path / "run", QUIET)
    assert evaluate(again) == results


def test_without_xgboost_there_is_no_champion(tmp_path: Path) -> None:
    settings = replace(SETTINGS, baselines=("logistic",))
    found = run_study(read(make_portfolio(), SCHEMA), settings, tmp_path / "run", QUIET)
    results = evaluate(found)
    assert found.champion is None
    assert (results.champions, results.verdict, results.pieces) == ((), "", None)
    assert results.summary is not None
    assert results.summary.detector == "variational, anchored, corrected, filtered"
    assert results.summary.gains == ()
    headlines = [one.topic for one in results.comparisons if one.topic]
    assert headlines[:2] == ["regimes_logistic", "regimes_logistic"]


def test_a_detector_that_is_no_better_than_chance_is_said_to_be_so_without_xgboost(
    tmp_path: Path,
) -> None:
    settings = replace(SETTINGS, baselines=("logistic",))
    data = make_portfolio()
    labels = data["fraud"].sample(fraction=1.0, shuffle=True, seed=0)
    shuffled = read(data.with_columns(labels.alias("fraud")), SCHEMA)
    results = evaluate(run_study(shuffled, settings, tmp_path / "run", QUIET))
    assert results.verdict == CHANCE


def change_test_rows(study: Study) -> Transactions:
    """The transactions with other amounts, devices and labels in the test part."""
    data, test = study.transactions, study.folds[-1].rows(TEST)
    rows, labels = data.file_rows[test], np.array(data.labels)
    labels[test] = 1 - labels[test]
    paid, device = data.numbers["paid"].copy(), data.categories["device"]
    paid[rows] *= 1000
    codes = device.codes.copy()
    codes[rows] = codes[rows][::-1]
    return replace(
        data,
        labels=labels,
        numbers={**data.numbers, "paid": paid},
        categories={**data.categories, "device": replace(device, codes=codes)},
    )


def test_a_refitted_champion_sees_no_test_row(studied: tuple[Study, Results, Path]) -> None:
    found = studied[0]
    champion = found.champion
    assert champion is not None
    refitted = found.refit(champion)
    changed = replace(found, transactions=change_test_rows(found))
    same = changed.refit(champion)
    assert same.digest_ == refitted.digest_
    scores = [one.score(found.transactions).probability for one in (refitted, same, champion)]
    np.testing.assert_array_equal(scores[0], scores[1])
    assert np.abs(scores[0] - scores[2]).max() > 1e-6  # the champion had fewer rows
    fold = replace(found.folds[-1], transactions=changed.transactions)
    every = np.arange(found.transactions.n_rows)
    assert set(fold.rows_without_test(7 * DAY)) == set(every) - set(fold.rows(TEST))


@pytest.mark.parametrize("name", ["chronological", "handbook"])
def test_rows_without_the_test_part_were_known_when_it_began(name: str) -> None:
    transactions = read(make_portfolio(400), SCHEMA)
    protocol = SplitProtocol(name, train_days=42, n_folds=2)
    split = protocol.splits(transactions)[-1]
    fold = Fold(transactions, split, SETTINGS.make_features())
    rows, times = fold.rows_without_test(7 * DAY), transactions.times
    begin = times[split.test].min()
    assert set(np.concatenate([split.fit, split.selection, split.calibration])) <= set(rows)
    assert not set(rows) & set(split.test)
    assert times[rows].max() < begin
    known = np.flatnonzero(times + 7 * DAY < begin)
    assert set(known) <= set(rows)
    assert set(rows) - set(known) <= set(split.calibration)
    if name == "handbook":
        assert set(rows) & set(split.excluded)  # rows before the training window
    part = transactions.take(rows)
    parts = split_automatically(part.customer_codes, part.times, part.labels, test=0.0)
    assert len(parts.test) == 0
