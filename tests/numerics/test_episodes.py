from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import logit

from turncoat.numerics.episodes import (
    LABEL,
    LATEST,
    STATE_SIZE,
    EpisodeRates,
    advance_episode,
    advance_episodes,
    filter_episodes,
)

Array = np.ndarray
DAY = 86_400.0
UNKNOWN = -1.0


def draw_rates(rng: np.random.Generator) -> EpisodeRates:
    return EpisodeRates(
        onset=rng.uniform(0.05, 2.0),
        end=rng.uniform(0.05, 2.0),
        share=rng.uniform(0.1, 0.9),
        intercept=rng.normal(),
        slope=rng.uniform(0.3, 2.0),
    )


def sum_over_paths(times: Array, scores: Array, labels: Array, rates: EpisodeRates) -> Array:
    """Log odds that each row is an episode's, given earlier labels and scores up to its own."""
    generator = np.array([[-rates.onset, rates.onset], [rates.end, -rates.end]])
    usual = rates.onset / (rates.onset + rates.end)
    found = []
    for n in range(1, len(times) + 1):
        weights = np.zeros(2)  # of paths whose last row is the owner's, and an episode's
        for path in product(((0, 0), (1, 0), (1, 1)), repeat=n):  # lasts, is an episode's
            weight = 1.0
            for i, (lasts, part) in enumerate(path):
                if i == 0:
                    weight *= usual if lasts else 1.0 - usual
                else:
                    gap = (times[i] - times[i - 1]) / DAY
                    weight *= expm(generator * gap)[path[i - 1][0], lasts]
                if lasts:
                    weight *= rates.share if part else 1.0 - rates.share
                if part:
                    weight *= np.exp(rates.intercept + rates.slope * scores[i])
                if i < n - 1 and labels[i] >= 0:
                    weight *= labels[i] == part
            weights[path[-1][1]] += weight
        found.append(np.log(weights[1] / weights[0]))
    return np.array(found)


@pytest.mark.parametrize("seed", range(8))
def test_the_filter_is_the_sum_over_all_paths(seed: int) -> None:
    rng, n = np.random.default_rng(seed), 5
    rates = draw_rates(rng)
    times = np.cumsum(rng.exponential(DAY, n))
    scores, labels = rng.normal(0.0, 2.0, n), rng.choice([UNKNOWN, 0.0, 1.0], n)
    found = filter_episodes(np.array([0, n]), times, scores, labels, rates)
    expected = sum_over_paths(times, scores, labels, rates)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_every_customer_starts_anew() -> None:
    rng = np.random.default_rng(0)
    rates, n = draw_rates(rng), 12
    times, scores = np.cumsum(rng.exponential(DAY, n)), rng.normal(size=n)
    labels = np.full(n, UNKNOWN)
    whole = filter_episodes(np.array([0, 5, 12]), times, scores, labels, rates)
    alone = filter_episodes(np.array([0, 7]), times[5:], scores[5:], labels[5:], rates)
    np.testing.assert_array_equal(whole[5:], alone)


def test_live_batches_continue_each_other() -> None:
    rng = np.random.default_rng(1)
    rates, n = draw_rates(rng), 9
    times, scores = np.cumsum(rng.exponential(DAY, n)), rng.normal(size=n)
    expected = filter_episodes(np.array([0, n]), times, scores, np.full(n, UNKNOWN), rates)
    states = np.zeros((4, STATE_SIZE))
    previous = np.array([-1, 0, 1, 2])
    first = advance_episodes(states, np.zeros(4, bool), previous, times[:4], scores[:4], rates)
    state, found = states[3:].copy(), [*first]
    for i in range(4, n):
        alone = np.array([True]), np.array([-1]), times[i : i + 1], scores[i : i + 1]
        found.extend(advance_episodes(state, *alone, rates))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("label", [0, 1])
def test_the_last_word_on_a_label_counts(label: int) -> None:
    rates = EpisodeRates(0.1, 1.0, 0.5, 0.0, 1.0)
    found = []
    for told in ([label], [1 - label, label], [label, label]):
        state = np.zeros(STATE_SIZE)
        advance_episode(state, True, 0.0, 1.0, rates)
        for each in told:
            state[LABEL] = each
        found.append(advance_episode(state, False, 600.0, 0.0, rates))
    assert found[1:] == found[:1] * 2


def test_suspicion_fades_with_time_and_rises_with_scores() -> None:
    rates = EpisodeRates(0.02, 2.0, 0.5, 0.0, 1.0)
    usual = logit(0.02 / 2.02 * 0.5)
    for score, sign in ((6.0, 1.0), (-6.0, -1.0)):
        added = []
        for gap in (60.0, 3600.0, DAY, 30 * DAY):
            state = np.zeros(STATE_SIZE)
            advance_episode(state, True, 0.0, score, rates)
            added.append(sign * (advance_episode(state, False, gap, 0.0, rates) - usual))
        assert (np.diff(added) < 0).all()
        assert added[0] > 0
        assert added[-1] == pytest.approx(0.0, abs=1e-9)


def test_late_rows_count_as_now_and_extreme_scores_stay_finite() -> None:
    rates = EpisodeRates(0.02, 2.0, 0.5, 0.0, 1.0)
    now, late = np.zeros(STATE_SIZE), np.zeros(STATE_SIZE)
    for state, time in ((now, 1000.0), (late, 10.0)):
        advance_episode(state, True, 1000.0, 2.0, rates)
        advance_episode(state, False, time, 1.0, rates)
    np.testing.assert_array_equal(now, late)
    for score in (1e300, -1e300):
        state = np.zeros(STATE_SIZE)
        for _ in range(3):
            advance_episode(state, False, 0.0, score, rates) if state[LATEST] else advance_episode(
                state, True, 0.0, score, rates
            )
        assert np.isfinite(state).all()
