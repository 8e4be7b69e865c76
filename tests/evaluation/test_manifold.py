import numpy as np
import pytest
from scipy.stats import spearmanr

from turncoat.evaluation.manifold import (
    Direction,
    adjacent,
    gradual,
    monotone,
    segmented,
    valley,
    verdict,
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
    return walked.axis, verdict([walked], PLACES < 0.97, labels, fraud_regime, 0)


@pytest.mark.parametrize("sizes", [(5, 5, 5), (1, 98, 1), (3, 300)])
def test_unbroken_segments_of_any_sizes_are_segmented_by_one(sizes):
    assert segmented(np.repeat(np.arange(len(sizes)), sizes)) == pytest.approx(1.0)


def test_broken_segments_are_less_so_by_the_variance_of_ranks():
    assert segmented(np.array([0, 1, 0, 1])) == pytest.approx(
        1.0 / 4.0
    )  # between: 4 × 0.5²; at best 4 × 1²
    assert segmented(np.random.default_rng(0).integers(0, 6, 2000)) < 0.02
    assert segmented(np.zeros(30, int)) == 0.0


def test_adjacent_is_one_along_any_line_however_uneven():
    centroids = np.array(
        [0.0, 1.0, 5.0, 6.0, 20.0]
    )  # the nearest of 5 and of 1 are on their other sides
    latents, regimes = np.repeat(centroids, 10)[:, None], np.repeat(np.arange(5), 10)
    assert adjacent(latents, regimes, [0, 1, 2, 3, 4]) == 1.0
    assert adjacent(latents, regimes, [1, 0, 4, 2, 3]) == 4 / 5
    assert adjacent(latents, regimes, [0, 2, 4, 1, 3]) == 0.0


def test_adjacent_leaves_out_regimes_of_few_rows():
    latents, regimes = (
        np.array([0.0] * 10 + [1.0] * 10 + [2.0] * 9)[:, None],
        np.repeat([0, 1, 2], [10, 10, 9]),
    )
    assert adjacent(latents, regimes, [0, 1, 2]) is None
    assert adjacent(np.append(latents, [[2.0]], axis=0), np.append(regimes, 2), [0, 1, 2]) == 1.0


def test_monotone_is_what_a_rising_curve_explains():
    assert monotone(np.repeat([0, 0, 1, 1], 50)) == pytest.approx(1.0)
    assert monotone(np.repeat([1, 1, 0, 0], 50)) == pytest.approx(0.0)
    assert monotone(np.repeat([0, 1, 0], [160, 80, 160])) == pytest.approx(
        1 / 6
    )  # 0, 1/3, 1/3 for 0, 1, 0
    assert monotone(np.tile([0, 1], 100)) == 0.0
    assert monotone(np.ones(100, int)) is None
    assert monotone(np.zeros(100, int)) is None


def test_gradual_tells_a_ramp_from_a_switch():
    assert gradual(np.repeat([0, 1], 200)) == pytest.approx(0.0, abs=1e-9)
    assert gradual(drawn(np.where(PLACES > 0.7, 0.6, 0.02))) < 0.15
    assert gradual(drawn(PLACES)) > 0.8


def test_gradual_sees_a_fall_within_the_last_bin():
    places = np.arange(40_000) / 40_000
    tip = 1.0 - places < 0.05
    assert gradual(drawn(0.8 * np.exp(-(1.0 - places) / 0.01) * tip)) > 0.5
    assert gradual(drawn(0.4 * (1.0 - places < 0.02))) < 0.15


def test_gradual_counts_no_fall_as_a_step():
    labels = drawn(
        np.append(np.linspace(0.0, 1.0, 1000), np.full(1000, 0.1))
    )  # the fall explains more than any rise
    assert gradual(labels) > 0.2


def test_gradual_does_not_exist_without_a_rise_or_with_few_frauds():
    assert gradual(np.repeat([1, 0], 200)) is None
    assert gradual(np.repeat([0, 1], [200, 19])) is None
    assert gradual(np.repeat([0, 1], [200, 20])) is not None
    assert gradual(np.zeros(50, int)) is None


def test_valley_is_the_depth_between_two_peaks():
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=2000), rng.normal(size=2000)
    assert valley(one) < 0.1
    assert valley(np.append(one, two + 20.0)) > 0.99
    assert 0.4 < valley(np.append(one, two + 3.5)) < 0.75  # 0.56 without the kernel's width
    assert valley(np.append(one, two[:200] + 20.0)) > 0.99  # relative to the lower peak


def test_an_outlier_is_no_peak_and_copies_are_no_gaps():
    rng = np.random.default_rng(0)
    assert valley(np.append(rng.normal(size=2000), np.full(15, 30.0))) < 0.1
    assert valley(np.append(rng.normal(size=2000), np.full(60, 30.0))) > 0.9
    assert valley(np.repeat([0.0, 1.0], 20)) == 0.0  # nothing between the ends
    assert valley(np.append(rng.normal(size=900), np.zeros(1100))) < 0.5
    assert (
        valley(np.append(np.zeros(100), rng.normal(size=10))) == 0.0
    )  # one place between the ends


def test_a_walk_goes_where_fraud_rises_in_bins_of_equal_mass():
    labels = drawn(1.0 - PLACES)
    axis, _ = along(labels)
    assert axis.name == "line"
    assert axis.order == (5, 4, 3, 2, 1, 0)
    assert axis.fraud_share == pytest.approx(labels.reshape(20, 100).mean(axis=1)[::-1])
    assert axis.regime_shares[0] == (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert axis.regime_shares[3] == pytest.approx((0.0, 0.0, 0.0, 0.0, 2 / 3, 1 / 3), abs=0.01)
    assert (axis.segmented, axis.adjacent) == (pytest.approx(1.0), 1.0)


def test_few_rows_have_fewer_bins():
    walked = walk(
        Direction("line", np.arange(35), PLACES[:35]),
        PLACES[:35, None],
        SIXTHS[:35],
        np.zeros(35, int),
        6,
    )
    assert len(walked.axis.fraud_share) == 3
    assert (
        walked.axis.monotone,
        walked.axis.gradual,
        walked.axis.adjacent,
        walked.axis.segmented,
    ) == (None, None, None, 0.0)
    told = verdict([walked], np.ones(40, bool), np.zeros(40, int), 5, 0)
    assert [text.split(": ", 1)[1].split(",")[0] for text in told[2:]] == ["cannot be judged"] * 3
    assert "35 of 40 rows" in told[0]


def test_everything_holds_where_it_does():
    _, told = along(drawn(0.7 * PLACES**2))
    assert [text.split(": ")[1].split(".")[0] for text in told[1:]] == ["holds"] * 4
    assert "97.0%" in told[1]
    assert "number 6 of 6" in told[3]


@pytest.mark.parametrize(
    ("labels", "fraud_regime", "tip", "fading"),
    [
        (drawn(np.where(PLACES > 0.7, 0.6, 0.02)), 5, "holds", "does not hold"),
        (drawn(0.7 * PLACES**2), 4, "holds in part", "holds"),
        (drawn(0.6 * np.exp(-(((PLACES - 0.5) / 0.15) ** 2))), 5, "does not hold", "does not hold"),
        (drawn(np.full(N_ROWS, 0.1)), 5, "does not hold", "does not hold"),
        (drawn(np.where(PLACES > 0.5, 0.035, 0.0035), 4), 5, "holds in part", "cannot be judged"),
    ],
    ids=["switch", "other regime", "middle", "anywhere", "few frauds"],
)
def test_what_fraud_does_is_told(labels, fraud_regime, tip, fading):
    _, told = along(labels, fraud_regime=fraud_regime)
    assert told[3].startswith(f"Fraud lies at one end: {tip}.")
    assert told[4].startswith(f"Fraud falls off gradually from there: {fading}.")


def test_regimes_at_random_are_no_segments():
    axis, told = along(drawn(PLACES), regimes=np.random.default_rng(1).integers(0, 6, N_ROWS))
    assert axis.segmented < 0.02
    assert told[2].startswith("Regimes are ordered segments: does not hold.")


def test_segments_that_overlap_hold_in_part():
    shifted = np.clip(PLACES + np.random.default_rng(0).normal(0.0, 0.2, N_ROWS), 0.0, 0.999)
    axis, told = along(drawn(PLACES), regimes=(shifted * 6).astype(int))
    assert 0.5 < axis.segmented < 0.8
    assert told[2].startswith("Regimes are ordered segments: holds in part.")


def test_the_line_that_is_kinder_to_the_claim_is_judged():
    labels, latents = drawn(PLACES), PLACES[:, None]
    folded = walk(
        Direction("folded", np.arange(N_ROWS), abs(PLACES - 0.5)), latents, SIXTHS, labels, 6
    )
    straight = walk(Direction("straight", np.arange(N_ROWS), PLACES), latents, SIXTHS, labels, 6)
    told = verdict([folded, straight], PLACES < 1.0, labels, 5, 0)
    assert told[0].startswith("ScoredLabels along the straight, ")
    assert f"({folded.axis.segmented:.2f} along the folded)" in told[0]


def test_a_piece_too_small_or_a_valley_too_deep_is_told():
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
    told = [
        verdict([one], some < percent, labels, 5, 0)[1]
        for one in (flat, gap)
        for percent in (80, 70)
    ]
    assert [text.split(": ")[1].split(".")[0] for text in told] == [
        "holds",
        "holds in part",
        "holds in part",
        "does not hold",
    ]


def test_an_island_of_frauds_is_another_piece():
    labels = (PLACES > 0.96).astype(int)
    walked = walk(Direction("line", np.arange(N_ROWS), PLACES), PLACES[:, None], SIXTHS, labels, 6)
    told = verdict([walked], labels == 0, labels, 5, 0)
    assert told[1].startswith("One continuous piece: holds in part.")
    assert "96.0% of rows and 0.0% of frauds" in told[1]


@pytest.mark.parametrize(("noise", "is_the_heads"), [(0.0, True), (0.05, True), (2.0, False)])
def test_whether_the_line_is_the_heads_own_score_is_told(noise, is_the_heads):
    labels = drawn(1 - PLACES)  # the walk goes the other way
    head = np.exp(-PLACES) + noise * np.random.default_rng(1).normal(size=N_ROWS)
    walked = walk(
        Direction("line", np.arange(N_ROWS), PLACES), PLACES[:, None], SIXTHS, labels, 6, head
    )
    assert walked.axis.head == pytest.approx(spearmanr(-PLACES, head).statistic)
    told = verdict([walked], PLACES < 0.97, labels, 0, 0)
    assert f"rank correlation of {walked.axis.head:.2f}" in told[-1]
    assert ("the line is that score" in told[-1]) == is_the_heads
    assert (
        walk(
            Direction("line", np.arange(N_ROWS), PLACES),
            PLACES[:, None],
            SIXTHS,
            labels,
            6,
            np.ones(N_ROWS),
        ).axis.head
        is None
    )
    assert along(labels)[0].head is None
