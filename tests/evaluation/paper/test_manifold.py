import numpy as np
import pytest
from scipy.stats import spearmanr

from turncoat.evaluation.paper.manifold import (
    Direction,
    grade_claims,
    measure_adjacency,
    measure_gradualness,
    measure_monotonicity,
    measure_segmentation,
    measure_valley,
    walk,
)

N_ROWS = 2000
PLACES = np.arange(N_ROWS) / N_ROWS
SIXTHS = (PLACES * 6).astype(int)


def drawn(shares, seed=0):
    return (np.random.default_rng(seed).random(len(shares)) < shares).astype(int)


def along(labels, regimes=SIXTHS, fraud_regime=5):
    latents = PLACES[:, None] * [1.0, 2.0]
    walked = walk(Direction("line", np.arange(N_ROWS), PLACES), latents, regimes, labels, 6)
    return walked.axis, grade_claims([walked], PLACES < 0.97, labels, fraud_regime, 0)


def grades(test):
    return [test.one_piece, test.segments, test.fraud_at_end, test.fading]


@pytest.mark.parametrize("sizes", [(5, 5, 5), (1, 98, 1), (3, 300)])
def test_unbroken_segments_of_any_sizes_are_segmented_by_one(sizes):
    assert measure_segmentation(np.repeat(np.arange(len(sizes)), sizes)) == pytest.approx(1.0)


def test_broken_segments_are_less_so_by_the_variance_of_ranks():
    assert measure_segmentation(np.array([0, 1, 0, 1])) == pytest.approx(
        1.0 / 4.0
    )  # between: 4 × 0.5²; at best 4 × 1²
    assert measure_segmentation(np.random.default_rng(0).integers(0, 6, 2000)) < 0.02
    assert measure_segmentation(np.zeros(30, int)) == 0.0


def test_adjacent_is_one_along_any_line_however_uneven():
    centroids = np.array(
        [0.0, 1.0, 5.0, 6.0, 20.0]
    )  # the nearest of 5 and of 1 are on their other sides
    latents, regimes = np.repeat(centroids, 10)[:, None], np.repeat(np.arange(5), 10)
    assert measure_adjacency(latents, regimes, [0, 1, 2, 3, 4]) == 1.0
    assert measure_adjacency(latents, regimes, [1, 0, 4, 2, 3]) == 4 / 5
    assert measure_adjacency(latents, regimes, [0, 2, 4, 1, 3]) == 0.0


def test_adjacent_leaves_out_regimes_of_few_rows():
    latents, regimes = (
        np.array([0.0] * 10 + [1.0] * 10 + [2.0] * 9)[:, None],
        np.repeat([0, 1, 2], [10, 10, 9]),
    )
    assert measure_adjacency(latents, regimes, [0, 1, 2]) is None
    assert (
        measure_adjacency(np.append(latents, [[2.0]], axis=0), np.append(regimes, 2), [0, 1, 2])
        == 1.0
    )


def test_monotone_is_what_a_rising_curve_explains():
    assert measure_monotonicity(np.repeat([0, 0, 1, 1], 50)) == pytest.approx(1.0)
    assert measure_monotonicity(np.repeat([1, 1, 0, 0], 50)) == pytest.approx(0.0)
    assert measure_monotonicity(np.repeat([0, 1, 0], [160, 80, 160])) == pytest.approx(
        1 / 6
    )  # 0, 1/3, 1/3 for 0, 1, 0
    assert measure_monotonicity(np.tile([0, 1], 100)) == 0.0
    assert measure_monotonicity(np.ones(100, int)) is None
    assert measure_monotonicity(np.zeros(100, int)) is None


def test_gradual_tells_a_ramp_from_a_switch():
    assert measure_gradualness(np.repeat([0, 1], 200)) == pytest.approx(0.0, abs=1e-9)
    assert measure_gradualness(drawn(np.where(PLACES > 0.7, 0.6, 0.02))) < 0.15
    assert measure_gradualness(drawn(PLACES)) > 0.8


def test_gradual_sees_a_fall_within_the_last_bin():
    places = np.arange(40_000) / 40_000
    tip = 1.0 - places < 0.05
    assert measure_gradualness(drawn(0.8 * np.exp(-(1.0 - places) / 0.01) * tip)) > 0.5
    assert measure_gradualness(drawn(0.4 * (1.0 - places < 0.02))) < 0.15


def test_gradual_counts_no_fall_as_a_step():
    labels = drawn(
        np.append(np.linspace(0.0, 1.0, 1000), np.full(1000, 0.1))
    )  # the fall explains more than any rise
    assert measure_gradualness(labels) > 0.2


def test_gradual_does_not_exist_without_a_rise_or_with_few_frauds():
    assert measure_gradualness(np.repeat([1, 0], 200)) is None
    assert measure_gradualness(np.repeat([0, 1], [200, 19])) is None
    assert measure_gradualness(np.repeat([0, 1], [200, 20])) is not None
    assert measure_gradualness(np.zeros(50, int)) is None


def test_valley_is_the_depth_between_two_peaks():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=2000), rng.normal(size=2000)
    assert measure_valley(one) < 0.1
    assert measure_valley(np.append(one, two + 20.0)) > 0.99
    assert 0.4 < measure_valley(np.append(one, two + 3.5)) < 0.75  # 0.56 without the kernel's width
    assert measure_valley(np.append(one, two[:200] + 20.0)) > 0.99  # relative to the lower peak


def test_an_outlier_is_no_peak_and_copies_are_no_gaps():
    rng = np.random.default_rng(0)
    assert measure_valley(np.append(rng.normal(size=2000), np.full(15, 30.0))) < 0.1
    assert measure_valley(np.append(rng.normal(size=2000), np.full(60, 30.0))) > 0.9
    assert measure_valley(np.repeat([0.0, 1.0], 20)) == 0.0  # nothing between the ends
    assert measure_valley(np.append(rng.normal(size=900), np.zeros(1100))) < 0.5
    assert (
        measure_valley(np.append(np.zeros(100), rng.normal(size=10))) == 0.0
    )  # one place between the ends


def test_a_walk_goes_where_fraud_rises_in_bins_of_equal_mass():
    labels = drawn(1.0 - PLACES)
    axis, _ = along(labels)
    assert axis.name == "line"
    assert axis.regime_order == (5, 4, 3, 2, 1, 0)
    assert axis.fraud_rate == pytest.approx(labels.reshape(20, 100).mean(axis=1)[::-1])
    assert axis.regime_shares[0] == (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert axis.regime_shares[3] == pytest.approx((0.0, 0.0, 0.0, 0.0, 2 / 3, 1 / 3), abs=0.01)
    assert (axis.segmentation, axis.adjacency) == (pytest.approx(1.0), 1.0)


def test_few_rows_have_fewer_bins():
    walked = walk(
        Direction("line", np.arange(35), PLACES[:35]),
        PLACES[:35, None],
        SIXTHS[:35],
        np.zeros(35, int),
        6,
    )
    assert len(walked.axis.fraud_rate) == 3
    assert (
        walked.axis.monotonicity,
        walked.axis.gradualness,
        walked.axis.adjacency,
        walked.axis.segmentation,
    ) == (None, None, None, 0.0)
    test = grade_claims([walked], np.ones(40, bool), np.zeros(40, int), 5, 0)
    assert grades(test)[1:] == ["cannot be tested"] * 3
    assert (test.n_rows, test.n_frauds, test.fraud_in_piece) == (35, 0, None)


def test_everything_holds_where_it_does():
    labels = drawn(0.7 * PLACES**2)
    axis, test = along(labels)
    assert grades(test) == ["holds"] * 4
    assert test.fraud_in_piece == pytest.approx(labels[PLACES < 0.97].sum() / labels.sum())
    assert test.fraud_in_last_bin == pytest.approx(labels[-100:].sum() / labels.sum())
    assert axis.regime_order[-1] == 5
    for value, chance in (
        (axis.segmentation, test.segments_chance),
        (axis.monotonicity, test.fraud_at_end_chance),
        (axis.gradualness, test.fading_chance),
    ):
        assert 0.0 <= chance < value


@pytest.mark.parametrize(
    ("labels", "fraud_regime", "tip", "fading"),
    [
        (drawn(np.where(PLACES > 0.7, 0.6, 0.02)), 5, "holds", "does not hold"),
        (drawn(0.7 * PLACES**2), 4, "holds in part", "holds"),
        (drawn(0.6 * np.exp(-(((PLACES - 0.5) / 0.15) ** 2))), 5, "does not hold", "does not hold"),
        (drawn(np.full(N_ROWS, 0.1)), 5, "does not hold", "does not hold"),
        (drawn(np.where(PLACES > 0.5, 0.035, 0.0035), 4), 5, "holds in part", "cannot be tested"),
    ],
    ids=["switch", "other regime", "middle", "anywhere", "few frauds"],
)
def test_where_fraud_lies_is_graded(labels, fraud_regime, tip, fading):
    _, test = along(labels, fraud_regime=fraud_regime)
    assert (test.fraud_at_end, test.fading) == (tip, fading)


def test_regimes_at_random_are_no_segments():
    axis, test = along(drawn(PLACES), regimes=np.random.default_rng(1).integers(0, 6, N_ROWS))
    assert axis.segmentation < 0.02
    assert test.segments == "does not hold"


def test_segments_that_overlap_hold_in_part():
    shifted = np.clip(PLACES + np.random.default_rng(0).normal(0.0, 0.2, N_ROWS), 0.0, 0.999)
    axis, test = along(drawn(PLACES), regimes=(shifted * 6).astype(int))
    assert 0.5 < axis.segmentation < 0.8
    assert test.segments == "holds in part"


def test_the_most_segmented_axis_is_graded():
    labels, latents = drawn(PLACES), PLACES[:, None]
    folded = walk(
        Direction("folded", np.arange(N_ROWS), abs(PLACES - 0.5)), latents, SIXTHS, labels, 6
    )
    straight = walk(Direction("straight", np.arange(N_ROWS), PLACES), latents, SIXTHS, labels, 6)
    assert grade_claims([folded, straight], PLACES < 1.0, labels, 5, 0).axis == 1
    assert grade_claims([straight, folded], PLACES < 1.0, labels, 5, 0).axis == 0
    assert grade_claims([], PLACES < 1.0, labels, 5, 0) is None


def test_a_small_piece_or_a_deep_valley_lowers_the_grade():
    flat = walk(
        Direction("line", np.arange(N_ROWS), PLACES), PLACES[:, None], SIXTHS, drawn(PLACES), 6
    )
    gap = walk(
        Direction("line", np.arange(N_ROWS), PLACES + 5.0 * (PLACES > 0.5)),
        PLACES[:, None],
        SIXTHS,
        drawn(PLACES),
        6,
    )
    labels = drawn(PLACES)
    some = np.arange(N_ROWS) % 100
    found = [
        grade_claims([one], some < percent, labels, 5, 0).one_piece
        for one in (flat, gap)
        for percent in (80, 70)
    ]
    assert found == ["holds", "holds in part", "holds in part", "does not hold"]


def test_an_island_of_frauds_is_another_piece():
    labels = (PLACES > 0.96).astype(int)
    walked = walk(Direction("line", np.arange(N_ROWS), PLACES), PLACES[:, None], SIXTHS, labels, 6)
    test = grade_claims([walked], labels == 0, labels, 5, 0)
    assert (test.one_piece, test.fraud_in_piece) == ("holds in part", 0.0)


@pytest.mark.parametrize("noise", [0.0, 0.05, 2.0])
def test_the_correlation_with_the_head_is_measured(noise):
    labels = drawn(1 - PLACES)  # the walk goes the other way
    head = np.exp(-PLACES) + noise * np.random.default_rng(1).normal(size=N_ROWS)
    walked = walk(
        Direction("line", np.arange(N_ROWS), PLACES), PLACES[:, None], SIXTHS, labels, 6, head
    )
    assert walked.axis.head_correlation == pytest.approx(spearmanr(-PLACES, head).statistic)
    assert (
        walk(
            Direction("line", np.arange(N_ROWS), PLACES),
            PLACES[:, None],
            SIXTHS,
            labels,
            6,
            np.ones(N_ROWS),
        ).axis.head_correlation
        is None
    )
    assert along(labels)[0].head_correlation is None
