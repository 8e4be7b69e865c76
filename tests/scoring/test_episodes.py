from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, logit

from tests.scoring.detectors import (
    FEW,
    TREES,
    data_of,
    model_of,
    replay_scores,
    time_split,
    tree_detector,
)
from turncoat import Detector, load
from turncoat.errors import BundleError, StateError
from turncoat.features import Features
from turncoat.scoring.episodes import EpisodeChain, ScoredRows, filter_held_out, find_episodes

Array = np.ndarray
DAY = 86_400.0
CHAIN = EpisodeChain(0.4, 1.5, 0.6, intercept=0.3, slope=0.8)


def simulate(seed: int, chain: EpisodeChain | None, n_customers: int = 1500) -> ScoredRows:
    """Scores with the log likelihood ratio of the chain; without one, labels do not cluster."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 25, n_customers)
    offsets = np.append(0, np.cumsum(lengths))
    times, labels = np.empty(offsets[-1]), np.empty(offsets[-1], np.int64)
    made = chain or CHAIN
    pace = made.onsets_per_day + made.ends_per_day
    usual = made.onsets_per_day / pace
    for start, end in pairwise(offsets):
        time, lasts = 0.0, rng.random() < usual
        for i in range(start, end):
            gap = rng.exponential(0.4)
            time += gap * DAY
            stays = np.exp(-pace * gap) if chain is not None else 0.0
            lasts = lasts if rng.random() < stays else rng.random() < usual
            times[i], labels[i] = time, lasts and rng.random() < made.share
    evidence = rng.normal(np.where(labels == 1, 1.0, -1.0), 1.0)  # log ratio: twice of it
    return ScoredRows((2.0 * evidence - made.intercept) / made.slope, times, labels, offsets)


TRUTH = EpisodeChain(0.06, 1.2, 0.6, intercept=0.5, slope=0.8)


def log_loss(log_odds: Array, labels: Array) -> float:
    return float(-np.log(np.where(labels == 1, expit(log_odds), expit(-log_odds))).mean())


def test_a_known_chain_comes_back() -> None:
    found = find_episodes(simulate(0, TRUTH))
    assert found is not None
    presence = [
        one.onsets_per_day / (one.onsets_per_day + one.ends_per_day) for one in (found, TRUTH)
    ]
    assert presence[0] * found.share == pytest.approx(presence[1] * TRUTH.share, rel=0.3)
    assert found.ends_per_day == pytest.approx(TRUTH.ends_per_day, rel=0.5)
    assert found.slope == pytest.approx(TRUTH.slope, rel=0.15)


def test_it_predicts_new_customers_nearly_as_well_as_the_truth() -> None:
    found, new = find_episodes(simulate(0, TRUTH)), simulate(1, TRUTH)
    assert found is not None
    rows = new.scores, new.times, new.offsets
    learnt, best = (log_loss(chain.filter(*rows), new.labels) for chain in (found, TRUTH))
    line = logit(new.labels.mean()) + 2.0 * (TRUTH.slope * new.scores + TRUTH.intercept) / 2.0
    assert best < learnt < best * 1.01
    assert learnt < 0.97 * log_loss(line, new.labels)


def test_labels_that_do_not_cluster_have_no_episodes() -> None:
    rows = simulate(2, None)
    assert find_episodes(rows) is None
    np.testing.assert_array_equal(filter_held_out(rows), rows.scores)


def test_shuffled_labels_have_no_episodes() -> None:
    rows = simulate(3, TRUTH)
    labels = np.random.default_rng(0).permutation(rows.labels)
    assert find_episodes(replace(rows, labels=labels)) is None


def test_held_out_log_odds_do_not_depend_on_the_customers_own_labels() -> None:
    rows = simulate(4, TRUTH, 400)
    flipped = rows.labels.copy()
    own = slice(rows.offsets[0], rows.offsets[1])
    assert not flipped[own].any()
    flipped[own] = -1  # the customer stays in the same fold
    found, other = filter_held_out(rows), filter_held_out(replace(rows, labels=flipped))
    np.testing.assert_array_equal(found[own], other[own])


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [1, 1, 1, 1], [-1, -1, 1, 0]])
def test_too_few_labels_find_nothing(labels: list[int]) -> None:
    times, offsets = np.arange(4.0), np.array([0, 2, 4])
    rows = ScoredRows(np.arange(4.0), times, np.array(labels), offsets)
    assert find_episodes(rows) is None


def test_unknown_labels_are_no_evidence() -> None:
    rows = simulate(5, TRUTH, 300)
    unknown = replace(rows, labels=np.where(np.arange(len(rows.labels)) % 3 == 0, -1, rows.labels))
    found = find_episodes(unknown)
    assert found is not None
    assert found.slope == pytest.approx(TRUTH.slope, rel=0.4)


# ---- in a detector


@cache
def made_detector(kind: str = "ranker") -> Detector:
    made = tree_detector(kind)
    return made._replace_calibration(replace(made.calibration_, episodes=CHAIN))


@pytest.mark.parametrize("kind", ["ranker", "hybrid"])
def test_live_scores_and_reasons_are_those_of_a_file(kind: str) -> None:
    made, data = made_detector(kind), data_of("shop")
    scores = made.score(data.transactions, reasons="all")
    live = replay_scores(made, data)
    found = np.array([score.probability for score in live])
    np.testing.assert_allclose(found, scores.probability, atol=1e-6)
    assert np.abs(found - tree_detector(kind).score(data.transactions).probability).max() > 0.005
    assert scores.reasons is not None
    for one, expected in zip(live[::20], scores.reasons[::20], strict=True):
        assert [reason.text for reason in one.reasons[:2]] == [r.text for r in expected[:2]]


@pytest.mark.parametrize("kind", ["ranker", "hybrid"])
def test_reasons_add_up_to_the_log_odds(kind: str) -> None:
    made, transactions = made_detector(kind), data_of("shop").transactions
    log_odds, key = made._rank(transactions, made.features_.transform(transactions)), 0
    assert log_odds is not None
    own = slice(transactions.offsets[key], transactions.offsets[key + 1])
    explained = made.explain(transactions, customer=transactions.keys[key])
    totals = [sum(reason.log_odds for reason in score.reasons) for _, score in explained]
    np.testing.assert_allclose(totals, log_odds[own], atol=1e-4)


def test_no_score_depends_on_later_transactions() -> None:
    made, transactions = made_detector(), data_of("shop").transactions
    cut = np.median(transactions.times)
    early = transactions.take(transactions.times <= cut)
    found = made.score(early).probability
    whole = made.score(transactions).probability[transactions.times <= cut]
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_known_labels_act_as_live_ones(transitions: str) -> None:
    """In continuous time the record has an episode, and a time if the features keep none."""
    data, own_facts = data_of("shop"), [name for name in FEW if "counterparty" not in name]
    transactions, features = data.transactions, Features(min_count=4, include=own_facts)
    if transitions == "continuous":
        features = Features("processed", min_count=4)
    model = model_of("expected-log", transitions=transitions)
    fitted = Detector(features, model, kind="hybrid", trees=TREES)
    fitted.fit(transactions, time_split(transactions))
    made = fitted._replace_calibration(replace(fitted.calibration_, episodes=CHAIN))
    longest = int(np.diff(transactions.offsets).argmax())
    own = np.arange(*transactions.offsets[longest : longest + 2])
    labels = np.where(np.arange(len(own)) % 3 == 0, -1, np.arange(len(own)) % 2)
    expected = made.score(transactions.take(own), known_labels=labels).probability
    state, found = None, []
    for place, label in zip(transactions.file_rows[own], labels, strict=True):
        state, score = made.score_one(state, data.rows[place])
        found.append(score.probability)
        state = state if label < 0 else made.live.condition(state, int(label))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected - made.score(transactions.take(own)).probability).max() > 1e-3


def test_a_saved_detector_has_its_episodes(tmp_path: Path) -> None:
    made, transactions = made_detector(), data_of("shop").transactions
    made.save(tmp_path / "made")
    loaded = load(tmp_path / "made")
    assert loaded.calibration_.episodes == CHAIN
    assert loaded.digest_ == made.digest_
    expected = made.score(transactions).probability
    np.testing.assert_array_equal(loaded.score(transactions).probability, expected)


def test_states_of_other_episodes_are_refused() -> None:
    data = data_of("shop")
    state, _ = made_detector().score_one(None, data.rows[0])
    with pytest.raises(StateError, match="another detector"):
        tree_detector("ranker").score_one(state, data.rows[1])
    with pytest.raises(StateError, match="another detector"):
        made_detector().score_one(tree_detector("ranker").score_one(None, data.rows[0])[0], {})


@pytest.mark.parametrize("changes", [{"share": 1.0}, {"slope": 0.0}, {"ends_per_day": np.nan}])
def test_impossible_chains_are_refused(changes: dict[str, float], tmp_path: Path) -> None:
    made = made_detector()
    damaged = replace(made.calibration_, episodes=replace(CHAIN, **changes))
    made._replace_calibration(damaged).save(tmp_path / "made")
    with pytest.raises(BundleError, match="episodes"):
        load(tmp_path / "made")


def test_recalibration_keeps_the_episodes() -> None:
    made, transactions = made_detector(), data_of("shop").transactions
    scores = made.score(transactions)
    rows = time_split(transactions).calibration
    part = transactions.take(rows)
    ranked = made._rank(transactions, made.features_.transform(transactions))
    assert ranked is not None
    about = scores.belief[rows], part.labels, part.offsets, ranked[rows]
    other = made.recalibrate(*about)
    assert other.calibration_.episodes == CHAIN
    assert other.digest_ == made.digest_
