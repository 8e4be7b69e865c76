"""Weights of sequences: weight 2 is the sequence twice, weight 0 is no sequence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conformance.test_estimators import every_chain, make_panel
from tests.reference.bridge import QUIET, arrays_of
from turncoat import (
    Anchors,
    BaumWelchHMM,
    ConfigError,
    DataError,
    HMMParams,
    Panel,
    VariationalHMM,
    align_states,
)

PANEL = make_panel(cells="float64")
COUNTS = np.random.default_rng(4).integers(0, 4, PANEL.n_sequences)
REPEATED = np.repeat(np.arange(PANEL.n_sequences), COUNTS)
ALLOWED = np.array([[True, True, False], [False, True, True]])


def anchors_for(panel: Panel) -> Anchors:
    codes = np.where(np.isnan(panel.continuous[:, 0]), -1, panel.continuous[:, 0] > 3)
    return Anchors(codes.astype(int), ALLOWED, noise=0.05)


def assert_same_fit(first: Any, second: Any, **tolerance: float) -> None:
    np.testing.assert_allclose(
        first.fit_report_.history, second.fit_report_.history, rtol=tolerance["rtol"]
    )
    for found, expected in zip(arrays_of(first.params_), arrays_of(second.params_), strict=True):
        np.testing.assert_allclose(found, expected, **tolerance)


@every_chain
@pytest.mark.parametrize("anchored", [False, True])
def test_a_weight_is_a_number_of_copies(tier: Any, anchored: bool) -> None:
    """From the same start, to rounding: the bound at every iteration and all parameters."""
    init = tier(3, **QUIET, max_iter=2).fit(PANEL).params_
    twice = PANEL[REPEATED]
    options = {**QUIET, "max_iter": 8, "tol": 0.0, "init": init}
    weighted, copied = (
        tier(3, **options).fit(
            panel, sample_weight=weights, anchors=anchors_for(panel) if anchored else None
        )
        for panel, weights in ((PANEL, COUNTS), (twice, None))
    )
    assert_same_fit(weighted, copied, rtol=1e-10, atol=1e-10)


def test_a_weight_is_a_number_of_copies_where_transitions_are_impossible() -> None:
    """The recursion runs in the log domain."""
    rng, chain = np.random.default_rng(0), [[0.8, 0.2, 0.0], [0.0, 0.7, 0.3], [0.4, 0.0, 0.6]]
    init = HMMParams([0.5, 0.3, 0.2], chain, rng.normal(2, 2, (3, 3)), np.full((3, 3), 4.0))
    panel = PANEL.take_columns(np.array([True, True, True, False, False]))
    options = {**QUIET, "max_iter": 5, "tol": 0.0, "init": init}
    weighted = BaumWelchHMM(3, **options).fit(panel, sample_weight=COUNTS)
    copied = BaumWelchHMM(3, **options).fit(panel[REPEATED])
    assert (weighted.params_.transition_matrix[np.array(chain) == 0] == 0).all()
    assert_same_fit(weighted, copied, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
def test_own_starts_lead_to_the_same_optimum(tier: Any) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.integers(0, 3, 200), 5)
    cells = rng.normal(size=(1000, 2)) + np.array([[0, 0], [6, 0], [0, 6]])[truth]
    panel, counts = Panel.from_arrays(cells, lengths=[20] * 50), rng.integers(0, 4, 50)
    copies = panel[np.repeat(np.arange(50), counts)]
    options: dict[str, Any] = {"precision": "float64", "tol": 0.0, "max_iter": 60}
    weighted = tier(3, **options).fit(panel, sample_weight=counts)
    copied = tier(3, **options).fit(copies)
    assert weighted.lower_bound_ == pytest.approx(copied.lower_bound_, rel=1e-10)
    order = align_states(copied.decode(copies), weighted.decode(copies))
    pairs = zip(arrays_of(weighted.params_.reorder(order)), arrays_of(copied.params_), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@every_chain
def test_fractions_count_too(tier: Any) -> None:
    init = tier(3, **QUIET, max_iter=2).fit(PANEL).params_
    twice = PANEL[np.repeat(np.arange(PANEL.n_sequences), 2)]
    options = {**QUIET, "max_iter": 6, "tol": 0.0, "init": init}
    halved = tier(3, **options).fit(twice, sample_weight=np.full(len(twice), 0.5))
    assert_same_fit(halved, tier(3, **options).fit(PANEL), rtol=1e-10, atol=1e-10)


@every_chain
def test_equal_weights_and_weights_by_row_change_no_bit(tier: Any) -> None:
    options = {"n_restarts": 2, "max_iter": 12}
    plain = tier(3, **options).fit(PANEL)
    ones = tier(3, **options).fit(PANEL, sample_weight=np.ones(PANEL.n_sequences))
    weighted = tier(3, **options).fit(PANEL, sample_weight=COUNTS)
    by_row = tier(3, **options).fit(PANEL, sample_weight=np.repeat(COUNTS, PANEL.lengths))
    for first, second in ((plain, ones), (weighted, by_row)):
        assert first.fit_report_.history == second.fit_report_.history
    assert plain.fit_report_.history != weighted.fit_report_.history


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("size", [1e-9, 1e9])
@pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
def test_maximum_likelihood_does_not_see_the_size_of_weights(size: float, precision: str) -> None:
    options = {"precision": precision, "category_smoothing": 0.0, "n_restarts": 2}
    plain = BaumWelchHMM(3, **options).fit(PANEL, sample_weight=COUNTS)
    sized = BaumWelchHMM(3, **options).fit(PANEL, sample_weight=size * COUNTS)
    tolerance = 1e-9 if precision == "float64" else 1e-4
    for found, expected in zip(arrays_of(sized.params_), arrays_of(plain.params_), strict=True):
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@every_chain
def test_the_score_is_weighted(tier: Any) -> None:
    model = tier(2, **QUIET, max_iter=5).fit(PANEL)
    total = model.log_likelihood(PANEL)
    assert model.score(PANEL) == pytest.approx(total.sum() / PANEL.n_rows, rel=1e-12)
    weighted = model.score(PANEL, sample_weight=COUNTS)
    assert weighted == pytest.approx(COUNTS @ total / (COUNTS @ PANEL.lengths), rel=1e-12)
    assert weighted == pytest.approx(model.score(PANEL[REPEATED]), rel=1e-9)


def test_a_large_sample_is_weighted() -> None:
    """Starts come from a part of the rows, whose weights must be those of its sequences."""
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.integers(0, 2, 300), 40)
    panel = Panel.from_arrays(
        rng.normal(size=(12000, 1)) + 8.0 * truth[:, None], lengths=[40] * 300
    )
    weights = np.where(truth[::40] == 1, 3.0, 1.0)
    model = BaumWelchHMM(2, n_restarts=1, max_iter=1).fit(panel, sample_weight=weights)
    share = model.params_.initial_probs[np.argmax(model.params_.means[:, 0])]
    mean = (3 * truth.mean()) / (3 * truth.mean() + 1 - truth.mean())
    assert share == pytest.approx(mean, abs=0.1)


BAD_WEIGHTS = {
    "too few": ([1.0, 2.0], "one weight for each of the 3 sequences or of the 6 rows; found"),
    "negative": ([1.0, -1.0, 1.0], "of sequence 1: found -1.0; weights must be finite"),
    "not a number": ([1.0, 1.0, np.nan], "of sequence 2: found nan"),
    "infinite": ([np.inf, 1.0, 1.0], "of sequence 0: found inf"),
    "all zero": ([0, 0, 0], "0 for every sequence"),
    "text": (["a", "b", "c"], "must hold numbers"),
    "uneven": ([1, 1, 1, 2, 2, 2], "row 3: found 2 after 1; all rows of a sequence"),
    "a table": (np.ones((3, 2)), r"found shape \(3, 2\)"),
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_bad_weights_are_named(name: str) -> None:
    weights, message = BAD_WEIGHTS[name]
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(6, 1)), lengths=[2, 3, 1])
    with pytest.raises(DataError, match=message):
        BaumWelchHMM(1).fit(panel, sample_weight=weights)
    with pytest.raises(DataError, match=message):
        BaumWelchHMM(1, n_restarts=1).fit(panel).score(panel, sample_weight=weights)


def test_anchors_of_sequences_left_out_are_left_out() -> None:
    wrong = replace(anchors_for(PANEL), codes=[0, 1])
    with pytest.raises(DataError, match=f"each of the panel's {PANEL.n_rows} rows; found 2"):
        BaumWelchHMM(3).fit(PANEL, sample_weight=COUNTS, anchors=wrong)
    with pytest.raises(ConfigError, match="anchors must be Anchors"):
        BaumWelchHMM(3).fit(PANEL, sample_weight=COUNTS, anchors=[0, 1])  # type: ignore[arg-type]
