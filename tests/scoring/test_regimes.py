"""Regimes: figures as defined, intervals that cover, and nothing found where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from tests.scoring.detectors import data_of, detector, time_split
from tests.scoring.simulated import LENGTH, measure_regimes, random_case, true_rates, world
from turncoat import DataError
from turncoat.scoring import Regimes
from turncoat.scoring.regimes import MIN_OUTCOMES
from turncoat.scoring.scores import compute_beta_interval


def test_every_figure_is_as_defined() -> None:
    probs, labels, lengths = random_case(0)
    regimes = measure_regimes(probs, labels, lengths)
    n, k = probs.shape
    mass = [sum(probs[t, j] for t in range(n)) for j in range(k)]
    frauds = [sum(probs[t, j] for t in range(n) if labels[t] == 1) for j in range(k)]
    rates = [f / m for f, m in zip(frauds, mass, strict=True)]
    star = max(range(k), key=lambda j: rates[j])
    base = labels.sum() / n
    np.testing.assert_allclose(regimes.mass, mass)
    np.testing.assert_allclose(regimes.frauds, frauds)
    np.testing.assert_allclose(regimes.rates, rates)
    np.testing.assert_allclose(regimes.occupancy, np.array(mass) / n)
    np.testing.assert_allclose(regimes.enrichment, np.array(rates) / base)
    assert regimes.fraud_state == star
    assert regimes.base_rate == pytest.approx(base)
    assert regimes.n_rows == pytest.approx(n)
    assert regimes.misread_share == pytest.approx(mass[star] / n * (1 - rates[star]))
    assert regimes.misread_share == pytest.approx(
        sum(probs[t, star] for t in range(n) if labels[t] == 0) / n
    )
    assert regimes.signed_gap == pytest.approx(probs[:, star].mean() - base)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(2, 300))
@settings(deadline=None, max_examples=60)
def test_in_sample_the_mean_corrected_score_is_the_fraud_rate(
    seed: int, n_states: int, n_rows: int
) -> None:
    probs, labels, lengths = random_case(seed, n_states, n_rows)
    probs[:, 0] = 0.0 if n_states > 1 else 1.0  # an empty regime among them
    probs /= np.maximum(probs.sum(axis=1, keepdims=True), 1e-300)
    probs[probs.sum(axis=1) == 0, -1] = 1.0
    regimes = measure_regimes(probs, labels, lengths)
    assert abs((probs @ regimes.rates).mean() - labels.mean()) < 1e-10
    assert regimes.signed_gap == pytest.approx(
        probs[:, regimes.fraud_state].mean() - labels.mean(), abs=1e-10
    )


def test_a_detector_s_in_sample_figures_have_the_identity_and_say_that_they_are_in_sample() -> None:
    made, transactions = detector(), data_of("shop").transactions
    split = time_split(transactions)
    lengths = np.bincount(transactions.customer_codes[split.fit])
    rows = split.fit[lengths[transactions.customer_codes[split.fit]] >= 5]
    panel = made.features_.transform(transactions, rows=rows)
    regimes = made.calibration_.in_sample
    assert (
        abs((made.model_.filter(panel).probs @ regimes.rates).mean() - panel.labels.mean()) < 1e-9
    )
    assert regimes.base_rate == pytest.approx(panel.labels.mean())
    assert (regimes.part, regimes.mode, regimes.in_sample) == ("fit", "filtered", True)
    assert "fit part, filtered, in-sample" in regimes.describe()
    for mode in ("filtered", "smoothed"):
        found = made.calibration_.regimes[mode]
        assert (found.part, found.mode, found.in_sample) == ("calibration", mode, False)
        assert f"calibration part, {mode}, held out" in found.describe()
        assert found.n_rows == pytest.approx(len(split.calibration))
        assert found.base_rate == pytest.approx(transactions.labels[split.calibration].mean())
    assert made.regimes is made.calibration_.regimes["filtered"]
    np.testing.assert_array_equal(
        made.regimes.stickiness, np.diag(made.model_.params_.transition_matrix)
    )


def test_the_posterior_is_a_beta_of_the_evidence() -> None:
    regimes = measure_regimes(
        np.repeat(np.eye(2), [40, 10], axis=0),
        np.r_[np.ones(4), np.zeros(36), np.ones(5), np.zeros(5)],
    )
    np.testing.assert_allclose(regimes.evidence, [40, 10])
    a, b = regimes.posterior
    np.testing.assert_allclose(a, [4.5, 5.5])
    np.testing.assert_allclose(b, [36.5, 5.5])
    np.testing.assert_allclose(regimes.rate_variances, a * b / ((a + b) ** 2 * (a + b + 1)))
    for level in (0.5, 0.9, 0.99):
        low, high = regimes.interval(level)
        np.testing.assert_allclose(beta.cdf(high, a, b) - beta.cdf(low, a, b), level, atol=1e-9)
        np.testing.assert_allclose(beta.cdf(low, a, b), (1 - level) / 2, atol=1e-9)
    np.testing.assert_allclose(regimes.mean_rates, [(4 + 9.5 / 51) / 41, (5 + 9.5 / 51) / 11])


def test_customers_that_are_all_alike_count_once_each() -> None:
    """Customers with all fraud or none: the evidence is the number of customers."""
    labels = np.repeat(np.random.default_rng(0).random(300) < 0.2, 10)
    regimes = measure_regimes(np.ones((3000, 1)), labels, np.full(300, 10))
    assert regimes.evidence[0] == pytest.approx(300, rel=0.02)
    shuffled = measure_regimes(
        np.ones((3000, 1)), np.random.default_rng(1).permutation(labels), np.full(300, 10)
    )
    assert shuffled.evidence[0] > 2400


def test_likeness_seen_in_one_regime_counts_in_another_that_has_few_frauds() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(rng.random(200) < 0.3, 20).reshape(200, 20)
    labels[:, 10:] = (
        0  # the second half of each customer is another regime, where there is but one fraud
    )
    labels[3, 15] = 1
    probs = np.tile(np.repeat(np.eye(2), 10, axis=0), (200, 1))
    regimes = measure_regimes(probs, labels.ravel(), np.full(200, 20))
    np.testing.assert_allclose(regimes.evidence, [200, 200], rtol=0.1)


@pytest.mark.parametrize("n_customers", [40, 150])
@pytest.mark.parametrize(
    "concentration", [None, 3.0, 1.0], ids=["independent", "clustered", "very clustered"]
)
def test_ninety_percent_intervals_cover_the_truth_nine_times_in_ten(
    n_customers: int, concentration: float | None
) -> None:
    """Of the regimes' rates, and of scores of rows that are certain to be in a regime."""
    repetitions = 250
    beliefs, labels, _ = world(repetitions * n_customers, concentration, seed=n_customers)
    truth, size = true_rates(), n_customers * LENGTH
    of_rates, of_scores = np.zeros(3), np.zeros(3)
    for r in range(repetitions):
        rows = slice(r * size, (r + 1) * size)
        regimes = measure_regimes(beliefs[rows], labels[rows], np.full(n_customers, LENGTH))
        low, high = regimes.interval(0.9)
        of_rates += (low <= truth) & (truth <= high)
        low, high = compute_beta_interval(regimes.mean_rates, regimes.rate_variances, 0.9)
        of_scores += (low <= truth) & (truth <= high)
    for covered in (of_rates / repetitions, of_scores / repetitions):
        assert 0.85 <= covered.mean() <= 0.95, covered
        assert covered.min() >= 0.85, covered


def test_intervals_shrink_with_evidence() -> None:
    beliefs, labels, _ = world(6400, 3.0, seed=5)
    widths, variances = [], []
    for n_customers in (100, 400, 1600, 6400):
        rows = slice(0, n_customers * LENGTH)
        regimes = measure_regimes(beliefs[rows], labels[rows], np.full(n_customers, LENGTH))
        low, high = regimes.interval()
        widths.append(high - low)
        variances.append(regimes.rate_variances)
    ratios = np.array(widths)[:-1] / np.array(widths)[1:]
    assert (ratios > 1.2).all()
    np.testing.assert_allclose(
        ratios.mean(), 2.0, atol=0.5
    )  # four times the customers, half the width
    assert (np.diff(variances, axis=0) < 0).all()


def test_shuffled_labels_are_not_enriched_beyond_chance() -> None:
    """At least nine of ten intervals contain the overall rate."""
    n_customers, repetitions = 150, 100
    beliefs, labels, _ = world(n_customers, None, seed=8)
    rng = np.random.default_rng(0)
    inside = 0.0
    enrichment = []
    for _ in range(repetitions):
        regimes = measure_regimes(beliefs, rng.permutation(labels), np.full(n_customers, LENGTH))
        low, high = regimes.interval(0.9)
        inside += ((low <= regimes.base_rate) & (regimes.base_rate <= high)).mean()
        enrichment.append(regimes.enrichment)
    assert inside / repetitions >= 0.9
    np.testing.assert_allclose(np.mean(enrichment, axis=0), 1.0, atol=0.1)
    true = measure_regimes(beliefs, labels, np.full(n_customers, LENGTH))
    assert true.enrichment.max() > 5
    assert true.interval()[0][true.fraud_state] > true.base_rate


def assert_sound(regimes: Regimes) -> None:
    low, high = regimes.interval()
    for figure in (
        regimes.rates,
        regimes.mean_rates,
        regimes.rate_variances,
        low,
        high,
        regimes.evidence,
    ):
        assert np.isfinite(figure).all()
    assert ((regimes.mean_rates > 0) & (regimes.mean_rates < 1)).all()
    assert (regimes.rate_variances > 0).all()
    assert (low < high).all()
    assert ((low <= regimes.mean_rates) & (regimes.mean_rates <= high)).all()
    n_frauds = regimes.frauds.sum()
    is_rough = min(n_frauds, regimes.n_rows - n_frauds) < MIN_OUTCOMES
    lines = regimes.describe().splitlines()
    assert len(lines) == regimes.n_states + 2 + is_rough
    assert ("rough" in lines[-1]) == is_rough


def test_an_empty_regime_knows_nothing() -> None:
    probs = np.zeros((50, 3))
    probs[:25, 0] = probs[25:, 1] = 1.0
    regimes = measure_regimes(probs, np.arange(50) % 10 == 0)
    assert_sound(regimes)
    low, high = regimes.interval()
    assert low[2] < 0.01
    assert high[2] > 0.99
    assert regimes.rates[2] == pytest.approx(0.1)
    assert regimes.mean_rates[2] == pytest.approx(0.1, abs=0.01)
    assert regimes.fraud_state != 2


def test_a_trace_of_one_fraud_does_not_make_a_fraud_regime() -> None:
    """A regime with a thousandth of one fraud has rate 1 and no evidence for it."""
    probs = np.repeat(np.eye(3)[:2], [300, 100], axis=0)
    labels = np.r_[np.zeros(300), np.ones(20), np.zeros(80)]
    probs[300] = [0.0, 0.999, 0.001]
    regimes = measure_regimes(probs, labels)
    assert regimes.rates.argmax() == 2
    assert regimes.fraud_state == 1


def test_a_regime_without_fraud_is_not_without_risk() -> None:
    """After 300 genuine transactions the rate may still be 0.5 %, by the rule of three."""
    probs = np.repeat(np.eye(2), [300, 100], axis=0)
    labels = np.r_[np.zeros(300), np.ones(20), np.zeros(80)]
    regimes = measure_regimes(probs, labels)
    assert_sound(regimes)
    low, high = regimes.interval()
    assert regimes.rates[0] == 0.0
    assert low[0] < 0.001
    assert 0.005 < high[0] < 0.01
    low, high = compute_beta_interval(regimes.mean_rates, regimes.rate_variances, 0.9)
    assert 0.005 < high[0] < 0.01
    assert low[0] <= regimes.mean_rates[0]


@pytest.mark.parametrize("n_frauds", [0, 1, 60])
def test_no_one_or_nothing_but_fraud(n_frauds: int) -> None:
    labels = np.arange(60) < n_frauds
    probs = np.random.default_rng(0).dirichlet([1, 1, 1], 60)
    for lengths in (None, [60], [10] * 6):
        regimes = measure_regimes(probs, labels, lengths)
        assert_sound(regimes)
        low, high = regimes.interval()
        assert (high - low > 0.02).all()
        assert np.isnan(regimes.enrichment).all() == (n_frauds == 0)
        assert regimes.base_rate == pytest.approx(n_frauds / 60)
    assert -1 <= regimes.signed_gap <= 1


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="none of the 0 transactions in the calibration part"):
        measure_regimes(np.empty((0, 2)), np.empty(0))


@given(st.floats(0, 1), st.floats(0, 1e13), st.floats(0.5, 0.999))
@settings(deadline=None, max_examples=200)
def test_intervals_of_any_moments_are_sound(mean: float, variance: float, level: float) -> None:
    low, high = compute_beta_interval(np.array([mean]), np.array([variance]), level)
    assert 0 <= low[0] <= mean <= high[0] <= 1


def test_the_interval_of_moments_is_that_of_the_beta_with_these_moments() -> None:
    a, b = np.array([3.0, 40.0, 0.5]), np.array([7.0, 2.0, 900.0])
    mean, variance = beta.stats(a, b, moments="mv")
    low, high = compute_beta_interval(mean, variance, 0.8)
    np.testing.assert_allclose(low, beta.ppf(0.1, a, b), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(high, beta.ppf(0.9, a, b), rtol=2e-3)


def plain_interval(
    mean: np.ndarray, variance: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray]:
    """The interval written with arrays and SciPy's distribution."""
    variance = np.maximum(variance, 1e-16)
    least = np.minimum(np.sqrt(variance / 2), 0.5)
    centre = np.clip(mean, least, 1 - least)
    count = np.maximum(centre * (1 - centre) / variance - 1, 1e-6)
    a, b, tail = centre * count, (1 - centre) * count, (1 - level) / 2
    return np.minimum(beta.ppf(tail, a, b), mean), np.maximum(beta.ppf(1 - tail, a, b), mean)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.9999])
def test_intervals_are_those_of_the_beta_distribution_to_the_last_bit(level: float) -> None:
    rng = np.random.default_rng(0)
    mean = np.r_[
        0.0, 1.0, 0.5, 1e-300, 1 - 1e-16, rng.uniform(size=300), 10 ** rng.uniform(-9, 0, 300)
    ]
    variance = np.r_[
        0.0, 0.0, 1e13, 1e-300, 0.25, rng.uniform(size=300), 10 ** rng.uniform(-20, 0, 300)
    ]
    for found, expected in zip(
        compute_beta_interval(mean, variance, level),
        plain_interval(mean, variance, level),
        strict=True,
    ):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("softness", [0.2, 50.0], ids=["sure", "soft"])
@pytest.mark.parametrize("n_states", [2, 6])
def test_intervals_of_spread_beliefs_cover_the_truth_too(n_states: int, softness: float) -> None:
    """A customer's rows sit in several regimes, so that the errors of their rates go together."""
    rng = np.random.default_rng(n_states)
    at = np.full(n_states, 1 / n_states)
    covered, n_customers = 0, 200
    for _ in range(150):
        levels = np.repeat(rng.normal(-3.0, 2.0, n_customers), LENGTH)
        labels = rng.random(len(levels)) < 1 / (1 + np.exp(-levels))
        beliefs = rng.dirichlet(np.full(n_states, softness), len(levels))
        regimes = measure_regimes(beliefs, labels, np.full(n_customers, LENGTH))
        low, high = compute_beta_interval(
            np.array([at @ regimes.mean_rates]), np.array([at @ regimes.rate_covariance @ at]), 0.9
        )
        covered += low[0] <= MEAN_OF_LEVELS <= high[0]
    assert 0.83 <= covered / 150 <= 0.97


MEAN_OF_LEVELS = float(
    np.mean(1 / (1 + np.exp(-np.random.default_rng(0).normal(-3.0, 2.0, 2_000_000))))
)


def test_empty_regimes_share_one_line_of_the_table() -> None:
    beliefs = np.zeros((400, 5))
    beliefs[:300, 0], beliefs[300:, 2] = 1.0, 1.0
    labels = (np.arange(400) >= 350).astype(np.int8)
    measured = Regimes.measure(beliefs, labels, np.array([0, 400]), np.full(5, 0.9), "fit")
    table = measured.describe().splitlines()
    assert [line.split()[0] for line in table[2:4]] == ["0", "2*"]
    assert table[4] == "hardly any transaction in 1, 3, 4"
