"""Recalibration with later labels: closed forms, weights of old and new, calibrations on disk."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_expit
from scipy.stats import beta

from tests.scoring.bundles import params_file, rewrite, rewrite_arrays
from tests.scoring.detectors import data_of, detector, plain_detector, ranked_detector, scored_shop
from tests.scoring.simulated import (
    LENGTH,
    draw_rows,
    fit_lines,
    measure_regimes,
    random_case,
    true_rates,
    world,
)
from turncoat import BundleError, ConfigError, DataError, Detector, NotFittedError, load
from turncoat.scoring import Regimes
from turncoat.scoring.bundle import (
    CalibrationMetadata,
    list_calibrations,
    read_current,
    save_calibration,
    use_calibration,
)
from turncoat.scoring.calibration import UNSAVED
from turncoat.scoring.rankers import RankerRows
from turncoat.scoring.scores import compute_beta_interval

METADATA = CalibrationMetadata(created=1.7e9, n_rows=200, n_frauds=20, keep=1.0)


def save(folder: Path, made: Detector, metadata: CalibrationMetadata = METADATA) -> int:
    return save_calibration(folder, made.calibration_, made.digest_, metadata)


def apart(n_rows: tuple[int, int], n_frauds: tuple[int, int]) -> Regimes:
    """Two regimes, each row surely in one of them and a customer of its own."""
    labels = np.concatenate([np.arange(n) < f for n, f in zip(n_rows, n_frauds, strict=True)])
    return measure_regimes(np.repeat(np.eye(2), n_rows, axis=0), labels)


@pytest.mark.parametrize("keep", [1.0, 0.4, 0.0])
def test_independent_rows_update_a_beta_posterior_in_closed_form(keep: float) -> None:
    updated = apart((40, 10), (4, 5)).update(apart((30, 20), (3, 1)), keep)
    a, b = updated.posterior
    np.testing.assert_allclose(a, [0.5 + 4 * keep + 3, 0.5 + 5 * keep + 1])
    np.testing.assert_allclose(b, [0.5 + 36 * keep + 27, 0.5 + 5 * keep + 19])
    np.testing.assert_allclose(updated.mass, [40 * keep + 30, 10 * keep + 20])
    np.testing.assert_allclose(updated.frauds, [4 * keep + 3, 5 * keep + 1])
    np.testing.assert_allclose(updated.rate_variances, beta.var(a, b))
    np.testing.assert_allclose(updated.interval(0.8), beta.ppf([[0.1], [0.9]], a, b))


def test_sources_are_weighed_by_their_evidence_not_by_their_rows() -> None:
    """20 customers with one label each throughout count as 20 rows, not 10,000."""
    labels = np.repeat(np.arange(20) < 10, 500)
    alike = measure_regimes(np.ones((10_000, 1)), labels, np.full(20, 500))
    sure = measure_regimes(np.ones((200, 1)), np.arange(200) < 2)
    updated = sure.update(alike)
    a, b = updated.posterior
    np.testing.assert_allclose(a, sure.posterior[0] + alike.posterior[0] - 0.5)
    np.testing.assert_allclose(b, sure.posterior[1] + alike.posterior[1] - 0.5)
    assert updated.rates[0] == pytest.approx(
        (2 + 0.5 * alike.evidence[0]) / (200 + alike.evidence[0])
    )
    assert updated.rates[0] < 0.1  # by rows it would be half
    assert updated.n_rows == 10_200


@pytest.mark.parametrize("seed", range(5))
def test_two_halves_are_the_whole(seed: int) -> None:
    probs, labels, lengths = random_case(seed, n_rows=4000)
    old, rows = measure_regimes(*random_case(99)), np.cumsum(lengths)
    half = len(lengths) // 2
    middle = rows[half - 1]
    first, second = (
        measure_regimes(probs[:middle], labels[:middle], lengths[:half]),
        measure_regimes(probs[middle:], labels[middle:], lengths[half:]),
    )
    twice, once = (
        old.update(first).update(second),
        old.update(measure_regimes(probs, labels, lengths)),
    )
    np.testing.assert_allclose(twice.mass, once.mass)
    np.testing.assert_allclose(twice.evidence, once.evidence, rtol=0.1)
    np.testing.assert_allclose(twice.mean_rates, once.mean_rates, rtol=0.05, atol=0.005)
    np.testing.assert_allclose(twice.rate_variances, once.rate_variances, rtol=0.15)
    other_way = old.update(second).update(first)
    for name in ("mass", "frauds", "evidence"):
        np.testing.assert_allclose(getattr(twice, name), getattr(other_way, name))
    np.testing.assert_allclose(twice.correlation, other_way.correlation, atol=2e-3)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_a_fraud_rate_that_doubled_is_found(keep: float) -> None:
    beliefs, labels, _ = world(3000, None, seed=1)
    old = measure_regimes(beliefs, labels, np.full(3000, LENGTH))
    more = np.random.default_rng(0).random(len(labels)) < (true_rates() * 2 * beliefs).sum(axis=1)
    new = measure_regimes(beliefs, more, np.full(3000, LENGTH))
    updated = old.update(new, keep)
    if keep == 0.0:
        np.testing.assert_array_equal(updated.mean_rates, new.mean_rates)
        np.testing.assert_allclose(updated.correlation, new.correlation, atol=1e-12)
    assert (
        (updated.rates >= np.minimum(old.rates, new.rates) - 1e-12)
        & (updated.rates <= np.maximum(old.rates, new.rates) + 1e-12)
    ).all()
    weight = keep * old.evidence / (keep * old.evidence + new.evidence)
    np.testing.assert_allclose(
        updated.rates, weight * old.rates + (1 - weight) * new.rates, atol=1e-12
    )
    assert (updated.evidence >= new.evidence).all()


@pytest.mark.parametrize("concentration", [None, 3.0], ids=["independent", "clustered"])
def test_updated_intervals_cover_the_truth(concentration: float | None) -> None:
    repetitions, sizes = 250, (100, 200)
    n_customers = sum(sizes)
    beliefs, labels, _ = world(repetitions * n_customers, concentration, seed=17)
    covered = np.zeros(3)
    for r in range(repetitions):
        start = r * n_customers * LENGTH
        middle, end = start + sizes[0] * LENGTH, start + n_customers * LENGTH
        old, new = (
            measure_regimes(beliefs[a:b], labels[a:b], np.full(n, LENGTH))
            for a, b, n in ((start, middle, sizes[0]), (middle, end, sizes[1]))
        )
        updated = old.update(new)
        low, high = compute_beta_interval(updated.mean_rates, updated.rate_variances, 0.9)
        covered += (low <= true_rates()) & (true_rates() <= high)
    assert 0.85 <= (covered / repetitions).mean() <= 0.97, covered / repetitions
    assert (covered / repetitions).min() >= 0.84, covered / repetitions


def test_errors_that_go_together_still_do_and_the_rest_stays() -> None:
    old, new = (measure_regimes(*random_case(seed, n_rows=900)) for seed in (3, 4))
    updated = old.update(new, 0.7)
    low, high = (
        np.minimum(old.correlation, new.correlation),
        np.maximum(old.correlation, new.correlation),
    )
    assert ((updated.correlation >= low - 0.05) & (updated.correlation <= high + 0.05)).all()
    np.testing.assert_array_equal(np.diag(updated.correlation), 1.0)
    assert np.linalg.eigvalsh(updated.correlation).min() > -1e-12
    np.testing.assert_array_equal(updated.stickiness, old.stickiness)
    further = replace(new, part="labels")
    assert (
        old.update(further).part
        == old.update(further).update(further).part
        == "calibration + labels"
    )
    assert old.update(further, keep=0).part == "labels"


def test_a_regime_that_is_new_or_no_longer_seen_keeps_what_is_known_of_it() -> None:
    first, second = np.repeat(np.eye(2)[:1], 50, axis=0), np.repeat(np.eye(2)[1:], 30, axis=0)
    old, new = (
        measure_regimes(first, np.arange(50) < 5),
        measure_regimes(second, np.arange(30) < 15),
    )
    updated = old.update(new)
    np.testing.assert_allclose(updated.rates, [0.1, 0.5])
    np.testing.assert_allclose(updated.evidence, [50, 30])
    forgotten = old.update(new, keep=0)
    assert forgotten.rates[0] == pytest.approx(0.5)  # the overall rate
    assert forgotten.evidence[0] == 0


def test_updates_that_do_not_fit_are_refused() -> None:
    old = apart((40, 10), (4, 5))
    for keep in (-0.1, 1.1, np.nan, "all", True):
        with pytest.raises(ConfigError, match="keep is"):
            old.update(old, keep)
    with pytest.raises(DataError, match="2 filtered regimes cannot be updated with 1 filtered"):
        old.update(measure_regimes(np.ones((5, 1)), np.zeros(5)))
    with pytest.raises(DataError, match="2 smoothed"):
        old.update(replace(old, mode="smoothed"))


# ---- rankers


def test_a_ranker_that_learns_nothing_new_stays_as_it_is() -> None:
    old = fit_lines(*draw_rows(900, 1))
    scores, belief, labels = draw_rows(50, 2)
    same = old.update(scores, belief * 0.0, labels, np.arange(51))
    for name in ("centre", "spread", "intercepts", "slopes"):
        np.testing.assert_allclose(getattr(same, name), getattr(old, name), atol=1e-9)
    np.testing.assert_allclose(same.covariance, old.covariance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("keep", [1.0, 0.3])
def test_the_updated_lines_are_the_most_likely_ones_given_a_gaussian_prior(keep: float) -> None:
    old = fit_lines(*draw_rows(500, 1))
    scores, belief, labels = draw_rows(400, 2)
    new = old.update(scores, belief, labels, np.arange(401), keep)
    known = np.stack([old.intercepts, old.slopes], axis=1).ravel()
    precision, z = np.linalg.inv(old.covariance / keep), (scores - old.centre) / old.spread

    def loss(at: np.ndarray) -> float:
        odds = at[0::2, None] + at[1::2, None] * z
        fit = belief.T * (labels * log_expit(odds) + (1 - labels) * log_expit(-odds))
        return float(-fit.sum() + 0.5 * (at - known) @ precision @ (at - known))

    found = minimize(loss, known, method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(
        np.stack([new.intercepts, new.slopes], axis=1).ravel(), found.x, atol=1e-4
    )
    assert (np.diag(new.covariance) < np.diag(old.covariance) / keep).all()


def test_an_update_is_about_a_fit_to_all_rows() -> None:
    one, two = draw_rows(3000, 1), draw_rows(3000, 2)
    whole = fit_lines(
        *(np.concatenate(parts) for parts in zip(one, two, strict=True)), shrinkage=0.0
    )
    updated = fit_lines(*one, shrinkage=0.0).update(*two, np.arange(3001))
    at, belief, _ = draw_rows(200, 3)
    np.testing.assert_allclose(
        updated.predict(at, belief)[0], whole.predict(at, belief)[0], atol=0.01
    )
    ratio = updated.predict(at, belief)[1] / whole.predict(at, belief)[1]
    assert 0.7 < np.median(ratio) < 1.4


def test_with_little_kept_it_is_a_fit_to_the_new_rows() -> None:
    one, two = draw_rows(2000, 1), draw_rows(5000, 2)
    flipped = (two[0], two[1], 1 - two[2])
    forgot = fit_lines(*one, shrinkage=0.0).update(*flipped, np.arange(5001), keep=0.0)
    fresh = fit_lines(*flipped, shrinkage=0.0)
    at, belief, _ = draw_rows(200, 3)
    np.testing.assert_allclose(
        forgot.predict(at, belief)[0], fresh.predict(at, belief)[0], atol=0.02
    )


def test_customers_that_are_alike_count_against_an_update() -> None:
    old = fit_lines(*draw_rows(600, 1))
    alike = [np.repeat(part, 15, axis=0) for part in draw_rows(60, 2)]
    together, single = (
        old.update(*alike, offsets) for offsets in (np.arange(0, 901, 15), np.arange(901))
    )
    assert np.trace(together.covariance) > 1.2 * np.trace(single.covariance)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_labels_of_one_kind_leave_finite_lines(label: int, keep: float) -> None:
    old = fit_lines(*draw_rows(900, 1))
    scores, belief, labels = draw_rows(300, 2)
    new = old.update(scores, belief, np.full_like(labels, label), np.arange(301), keep)
    assert np.isfinite(new.covariance).all()
    probability, variance = new.predict(scores, belief)
    assert np.sign((probability - old.predict(scores, belief)[0]).mean()) == 2 * label - 1
    assert (variance > 0).all()


def test_a_constant_score_is_updated_without_slopes() -> None:
    _, belief, labels = draw_rows(900, 1)
    old = fit_lines(np.full(900, 5.0), belief, labels, shrinkage=0.0)
    _, belief, labels = draw_rows(300, 2)
    new = old.update(np.full(300, 5.0), belief, labels, np.arange(301))
    np.testing.assert_allclose(new.slopes, 0.0, atol=1e-9)
    assert np.abs(new.intercepts - old.intercepts).max() > 1e-3


def test_ranker_updates_that_do_not_fit_are_refused() -> None:
    old = fit_lines(*draw_rows(900, 1))
    scores, belief, labels = draw_rows(30, 2)
    with pytest.raises(DataError, match="no labelled transaction"):
        old.update(scores[:0], belief[:0], labels[:0], np.array([0]))
    for wrong in ((scores[:9], belief), (scores, belief[:, :2]), (scores, belief[:9])):
        with pytest.raises(DataError, match="30 labels need as many"):
            old.update(*wrong, labels, np.arange(31))
    with pytest.raises(DataError, match="missing or infinite on row 0"):
        old.update(scores * np.nan, belief, labels, np.arange(31))
    with pytest.raises(ConfigError, match="keep"):
        old.update(scores, belief, labels, np.arange(31), keep=2.0)


# ---- detectors


def newly_labelled(made: Detector, doubled: bool = True) -> dict[str, Any]:
    """Beliefs of the shop's rows, with frauds at twice the measured shares, or at these shares."""
    transactions = (
        scored_shop().transactions if made.calibration_.ranker else data_of("shop").transactions
    )
    scores = made.score(transactions)
    chances = np.minimum(scores.probability * (2 if doubled else 1), 0.99)
    labels = (np.random.default_rng(5).random(len(chances)) < chances).astype(int)
    return {"beliefs": scores.belief, "labels": labels, "offsets": transactions.offsets}


@cache
def recalibrated(keep: float = 1.0) -> Detector:
    return detector().recalibrate(**newly_labelled(detector()), keep=keep)


def test_a_recalibrated_detector_scores_with_the_updated_regimes() -> None:
    made, transactions = detector(), data_of("shop").transactions
    given = newly_labelled(made)
    for keep in (1.0, 0.5, 0.0):
        other = recalibrated(keep)
        new = Regimes.measure(
            given["beliefs"],
            given["labels"],
            given["offsets"],
            made.regimes.stickiness,
            part="labels",
            mode="filtered",
        )
        expected = made.regimes.update(new, keep)
        np.testing.assert_allclose(other.regimes.mean_rates, expected.mean_rates)
        scores = other.score(transactions)
        np.testing.assert_array_equal(scores.belief, made.score(transactions).belief)
        np.testing.assert_allclose(scores.probability, scores.belief @ expected.mean_rates)
        assert scores.variance.sum() != made.score(transactions).variance.sum()
    assert recalibrated(0.0).score(transactions).probability.mean() == pytest.approx(
        given["labels"].mean(), rel=0.05
    )
    means = [recalibrated(keep).score(transactions).probability.mean() for keep in (0.0, 0.5, 1.0)]
    assert means[0] > means[1] > means[2] > made.score(transactions).probability.mean()


def test_everything_else_of_it_stays_and_so_does_the_old_one() -> None:
    made, transactions = detector(), data_of("shop").transactions
    before = made.score(transactions).probability
    other = recalibrated()
    assert other.calibration_.regimes["smoothed"] is made.calibration_.regimes["smoothed"]
    assert other.calibration_.in_sample is made.calibration_.in_sample
    assert (made.calibration_.number, other.calibration_.number) == (0, -1)
    np.testing.assert_array_equal(made.score(transactions).probability, before)
    state, score = made.score_one(None, data_of("shop").rows[0])
    other_state, other_score = other.score_one(None, data_of("shop").rows[0])
    assert other_state == state  # what is remembered can be used by both
    assert other_score.probability != score.probability
    assert other_score.probability == pytest.approx(
        np.array(score.belief) @ other.regimes.mean_rates
    )
    other.calibration_.check(len(made.features_.plan.continuous))
    assert "calibration + labels part, filtered, held out" in other.describe()


def test_rows_without_a_label_and_customers_without_one_are_left_out() -> None:
    made, given = detector(), newly_labelled(detector())
    known = np.arange(len(given["labels"])) % 3 == 0
    known[: given["offsets"][1]] = False
    offsets = np.searchsorted(np.flatnonzero(known), given["offsets"])
    some = made.recalibrate(
        given["beliefs"], np.where(known, given["labels"], -1), given["offsets"]
    )
    same = made.recalibrate(given["beliefs"][known], given["labels"][known], offsets)
    np.testing.assert_array_equal(some.regimes.mean_rates, same.regimes.mean_rates)
    np.testing.assert_array_equal(some.regimes.evidence, same.regimes.evidence)
    assert some.regimes.n_rows == pytest.approx(made.regimes.n_rows + known.sum())


@pytest.mark.parametrize("ranker", ["column", "xgboost"])
def test_a_ranker_is_recalibrated_too(ranker: str) -> None:
    made, data = ranked_detector(ranker), scored_shop()
    given = newly_labelled(made)
    panel = made.features_.transform(data.transactions)
    rows = RankerRows(data.transactions, panel.continuous, panel.categorical)
    external = made.calibration_.ranker.score(rows)
    with pytest.raises(DataError, match="or pass `ranker_scores`"):
        made.recalibrate(**given)
    with pytest.raises(DataError, match="one value for each of the 700 rows"):
        made.recalibrate(**given, ranker_scores=external[:3])
    other = made.recalibrate(**given, ranker_scores=external, keep=0.5)
    lines = made.calibration_.regime_rankers["filtered"].update(
        external, given["beliefs"], given["labels"], given["offsets"], 0.5
    )
    np.testing.assert_allclose(
        other.score(data.transactions).probability, lines.predict(external, given["beliefs"])[0]
    )
    assert (
        other.calibration_.regime_rankers["smoothed"]
        is made.calibration_.regime_rankers["smoothed"]
    )
    assert other.calibration_.ranker is made.calibration_.ranker
    assert (
        other.score(data.transactions).probability.mean()
        > 1.2 * made.score(data.transactions).probability.mean()
    )
    other.calibration_.check(len(made.features_.plan.continuous))


def test_the_reference_scores_are_those_of_the_new_calibration() -> None:
    made, other = detector(), recalibrated(0.0)
    sampled = made.calibration_.reference.beliefs.astype(float) @ other.regimes.mean_rates
    assert other.calibration_.reference.mean_score == pytest.approx(sampled.mean())
    assert other.calibration_.reference.mean_score > 1.3 * made.calibration_.reference.mean_score
    np.testing.assert_array_equal(
        other.calibration_.reference.means, made.calibration_.reference.means
    )


def test_what_does_not_fit_a_detector_is_refused() -> None:
    made, given = detector(), newly_labelled(detector())
    n = len(given["labels"])
    uneven = given["beliefs"].copy()
    uneven[7] = [0.9, 0.9, 0.0]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"labels": np.full(n, -1)}, "none of the 700 rows has a label"),
        (
            {"beliefs": np.empty((0, 3)), "labels": np.empty(0), "offsets": np.array([0, 0])},
            "none of the 0 rows",
        ),
        ({"labels": np.full(n, 2)}, "0, 1 and -1"),
        ({"labels": given["labels"][None]}, "0, 1 and -1"),
        ({"labels": given["labels"].astype(str)}, "0, 1 and -1"),
        ({"beliefs": given["beliefs"][:, :2]}, r"\[700 rows, 3 regimes\]"),
        ({"beliefs": given["beliefs"][:5]}, r"found shape \(5, 3\)"),
        ({"beliefs": uneven}, "row 7 are not probabilities"),
        ({"beliefs": given["beliefs"] * np.nan}, "row 0 are not probabilities"),
        ({"offsets": given["offsets"][:-1]}, "offsets must rise from 0 to the 700 rows"),
        ({"offsets": given["offsets"][::-1]}, "offsets must rise"),
        ({"offsets": [0, 500, 400, n]}, "offsets must rise"),
        ({"offsets": [0.0, float(n)]}, "offsets must rise"),
    ]
    for change, match in wrong:
        with pytest.raises(DataError, match=match):
            made.recalibrate(**{**given, **change})
    with pytest.raises(ConfigError, match="keep is 3"):
        made.recalibrate(**given, keep=3)
    with pytest.raises(NotFittedError):
        Detector().recalibrate(**given)


# ---- on disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    detector().save(tmp_path / "bundle")
    return tmp_path / "bundle"


def rates(folder: Path, calibration: int | None = None) -> np.ndarray:
    return load(folder, calibration).regimes.mean_rates


def test_calibrations_are_numbered_used_and_listed(folder: Path) -> None:
    made, one, two = (
        detector(),
        recalibrated(1.0),
        detector().recalibrate(**newly_labelled(detector()), keep=0.25),
    )
    assert [info.number for info in list_calibrations(folder)] == [0]
    assert list_calibrations(folder)[0].is_current
    assert save(folder, one) == 1
    assert save(folder, two, replace(METADATA, created=1.8e9, keep=0.25)) == 2
    for number, expected in ((None, two), (0, made), (1, one), (2, two)):
        loaded = load(folder, number)
        np.testing.assert_array_equal(loaded.regimes.mean_rates, expected.regimes.mean_rates)
        np.testing.assert_array_equal(
            loaded.regimes.rate_covariance, expected.regimes.rate_covariance
        )
        np.testing.assert_array_equal(
            loaded.calibration_.reference.counts, expected.calibration_.reference.counts
        )
        assert loaded.calibration_.number == (2 if number is None else number)
        assert loaded.digest_ == made.digest_
    original, first, second = list_calibrations(folder)
    assert (original.created, original.keep, original.is_current, original.is_usable) == (
        None,
        None,
        False,
        True,
    )
    assert original.n_rows == round(made.regimes.n_rows)
    assert original.n_frauds == round(made.regimes.frauds.sum())
    assert (
        first.number,
        first.created,
        first.n_rows,
        first.n_frauds,
        first.keep,
        first.is_current,
    ) == (1, 1.7e9, 200, 20, 1.0, False)
    assert (second.number, second.keep, second.is_current, second.model_digest) == (
        2,
        0.25,
        True,
        made.digest_,
    )
    assert two.calibration_.number == UNSAVED


def test_an_earlier_one_can_be_used_again(folder: Path) -> None:
    save(folder, recalibrated(1.0))
    save(folder, recalibrated(0.0))
    use_calibration(folder, 1)
    assert load(folder).calibration_.number == 1
    use_calibration(folder, 0)
    np.testing.assert_array_equal(rates(folder), detector().regimes.mean_rates)
    with pytest.raises(BundleError, match="no calibration 7; it has 0, 1, 2"):
        use_calibration(folder, 7)
    assert read_current(folder) == 0
    assert save(folder, recalibrated(0.0)) == 3  # numbers are not used twice
    assert load(folder).calibration_.number == 3


def test_the_original_can_be_named_before_there_are_others(folder: Path) -> None:
    use_calibration(folder, 0)
    assert load(folder).calibration_.number == 0
    with pytest.raises(BundleError, match="0001 is not a saved calibration"):
        load(folder, 1)


@pytest.mark.parametrize("ranker", ["column", "xgboost"])
def test_a_ranker_s_calibration_is_saved(ranker: str, tmp_path: Path) -> None:
    made, transactions = ranked_detector(ranker), scored_shop().transactions
    made.save(tmp_path)
    panel = made.features_.transform(transactions)
    rows = RankerRows(transactions, panel.continuous, panel.categorical)
    external = made.calibration_.ranker.score(rows)
    other = made.recalibrate(**newly_labelled(made), ranker_scores=external)
    save(tmp_path, other)
    np.testing.assert_array_equal(
        load(tmp_path).score(transactions).probability, other.score(transactions).probability
    )
    np.testing.assert_array_equal(
        load(tmp_path).score(transactions).variance, other.score(transactions).variance
    )
    np.testing.assert_array_equal(
        load(tmp_path, 0).score(transactions).probability, made.score(transactions).probability
    )
    load(tmp_path, 0).save(tmp_path)  # the same detector, saved again
    assert load(tmp_path).calibration_.number == 1
    plain_detector().save(tmp_path)  # the same model, without its ranker
    assert load(tmp_path).calibration_.number == 0
    assert [info.is_usable for info in list_calibrations(tmp_path)] == [True, False]
    with pytest.raises(BundleError, match="not the one that was recalibrated"):
        save(tmp_path, other)


def test_calibrations_of_another_model_are_passed_over(folder: Path) -> None:
    save(folder, recalibrated())
    other = detector(kind="point")
    other.save(folder)
    loaded = load(folder)
    assert loaded.calibration_.number == 0
    np.testing.assert_array_equal(loaded.regimes.mean_rates, other.regimes.mean_rates)
    with pytest.raises(BundleError, match="calibration 1 belongs to another model"):
        load(folder, 1)
    with pytest.raises(BundleError, match="another model"):
        use_calibration(folder, 1)
    with pytest.raises(BundleError, match="not the one that was recalibrated"):
        save(folder, recalibrated())
    original, left = list_calibrations(folder)
    assert (original.is_current, left.is_current, left.is_usable) == (True, False, False)
    again = other.recalibrate(**newly_labelled(other))
    assert save(folder, again) == 2
    np.testing.assert_array_equal(rates(folder), again.regimes.mean_rates)
    detector().save(folder)  # the first one comes back, and what was in use was the other's
    assert load(folder).calibration_.number == 0
    assert load(folder, 1).calibration_.number == 1


@pytest.mark.parametrize("fails_at", ["params", "manifest.json", "current.json"])
def test_an_interrupted_save_leaves_the_calibration_in_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    save(folder, recalibrated(1.0))
    put = os.replace

    def full_disk(source: str, target: Path) -> None:
        if target.name.startswith(fails_at):
            raise OSError(28, "No space left on device")
        put(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(BundleError, match="No space left"):
        save(folder, recalibrated(0.0))
    monkeypatch.undo()
    np.testing.assert_array_equal(rates(folder), recalibrated(1.0).regimes.mean_rates)
    assert [info.number for info in list_calibrations(folder) if info.is_current] == [1]
    assert save(folder, recalibrated(0.0)) == 3
    np.testing.assert_array_equal(rates(folder), recalibrated(0.0).regimes.mean_rates)


def test_a_damaged_pointer_is_refused(folder: Path) -> None:
    save(folder, recalibrated())
    pointer = folder / "calibrations" / "current.json"
    whole = pointer.read_bytes()
    bad = [whole[:n] for n in range(len(whole))] + [
        json.dumps(thing).encode() for thing in ([], {}, {"current": "1"}, {"current": True})
    ]
    for content in (*bad, b'{"current": -1}', b'{"current": 1.0}', b"\xff"):
        pointer.write_bytes(content)
        with pytest.raises(BundleError, match=r"current\.json"):
            load(folder)
        assert load(folder, 1).calibration_.number == 1
    pointer.write_text('{"current": 5}')
    with pytest.raises(BundleError, match="0005"):
        load(folder)
    use_calibration(folder, 1)
    assert load(folder).calibration_.number == 1


def test_a_damaged_calibration_is_refused_and_the_original_still_loads(folder: Path) -> None:
    save(folder, recalibrated())
    place = folder / "calibrations" / "0001"
    saved = {path: path.read_bytes() for path in place.iterdir()}

    def restore() -> None:
        for path, content in saved.items():
            path.write_bytes(content)

    for path, content in saved.items():
        for n in (0, 9, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:n])
            with pytest.raises(BundleError):
                load(folder)
        restore()
    for changes in (
        {"regimes": None},
        {"regimes": {}},
        {"metadata": {}},
        {"ranker": 3},
        {"format_version": 3},
    ):
        rewrite(place, **changes)
        with pytest.raises(BundleError):
            load(folder)
        restore()
    for changes in (
        {"regimes.mass": np.ones(4)},
        {"regimes.evidence": -np.ones(3)},
        {"regimes.frauds": None},
    ):
        rewrite_arrays(place, changes)
        with pytest.raises(BundleError):
            load(folder)
        restore()
    assert load(folder, 0).calibration_.number == 0
    assert load(folder).calibration_.number == 1
    params_file(place).unlink()
    with pytest.raises(BundleError, match="cannot read params"):
        load(folder)


def test_only_what_was_made_from_a_saved_detector_is_kept_beside_it(
    tmp_path: Path, folder: Path
) -> None:
    with pytest.raises(BundleError, match="not a saved detector"):
        save(tmp_path / "nowhere", recalibrated())
    with pytest.raises(BundleError, match="not a saved detector"):
        list_calibrations(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="not the one that was recalibrated"):
        save(folder, detector(kind="point"))
    assert not (folder / "calibrations").exists()


def test_saving_the_detector_again_keeps_its_calibrations(folder: Path) -> None:
    save(folder, recalibrated())
    detector().save(folder)
    assert load(folder).calibration_.number == 1
    load(folder).save(folder.parent / "copy")  # a detector of its own, as it scored
    assert load(folder.parent / "copy").calibration_.number == 0
    np.testing.assert_array_equal(rates(folder.parent / "copy"), rates(folder))


def test_a_fresh_fit_is_number_0_again() -> None:
    again = recalibrated().recalibrate(**newly_labelled(detector()))
    assert again.calibration_.number == -1
    assert again.fit(data_of("shop").transactions).calibration_.number == 0


def test_regime_rankers_are_not_changed_in_place() -> None:
    old = fit_lines(*draw_rows(900, 1))
    before = old.intercepts.copy(), old.covariance.copy()
    old.update(*draw_rows(300, 2), np.arange(301))
    np.testing.assert_array_equal(old.intercepts, before[0])
    np.testing.assert_array_equal(old.covariance, before[1])
