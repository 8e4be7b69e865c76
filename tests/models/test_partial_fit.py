"""A new month on top of an old posterior, compared with a fit to both months."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.models.test_passes import PANEL, QUIET, arrays_of, every_chain, make_panel
from turncoat import Anchors, ConfigError, DataError, Panel, Prior, VariationalHMM, load_model
from turncoat.models.fit_rows import PanelRows

FIRST, SECOND = PANEL[:70], PANEL[70:]
# The default prior follows the columns of the first month, this one does not.
FIXED = Prior(mean=0.5, scale=3.0, standardised=False)


@every_chain
def test_one_state_equals_a_refit(transitions: str) -> None:
    """Conjugacy: posteriors agree, and the bounds of the months add up to the evidence."""
    options = {**QUIET, "transitions": transitions, "precision": "float64", "prior": FIXED}
    model = VariationalHMM(1, **options).fit(FIRST)
    first_bound = model.lower_bound_
    model.partial_fit(SECOND)
    both = VariationalHMM(1, **options).fit(PANEL)
    for found, expected in zip(arrays_of(model.params_), arrays_of(both.params_), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert first_bound + model.lower_bound_ == pytest.approx(both.lower_bound_, rel=1e-12)


@every_chain
@pytest.mark.parametrize("max_passes", [None, 3])
def test_three_states_are_close_to_a_refit(transitions: str, max_passes: int | None) -> None:
    panel, held_out = make_panel(400, 30, seed=1), make_panel(100, 30, seed=2)
    options = {**QUIET, "transitions": transitions, "max_passes": max_passes}
    both = VariationalHMM(3, **options).fit(panel)
    model = VariationalHMM(3, **options).fit(panel[:200]).partial_fit(panel[200:])
    order = np.argsort(model.params_.means @ [1.0, 2.0])
    expected = both.params_.reorder(np.argsort(both.params_.means @ [1.0, 2.0]))
    found = model.params_.reorder(order)
    np.testing.assert_allclose(found.means, expected.means, atol=0.03)
    np.testing.assert_allclose(found.variances, expected.variances, rtol=0.05)
    np.testing.assert_allclose(found.transition_matrix, expected.transition_matrix, atol=0.01)
    np.testing.assert_allclose(found.initial_probs, expected.initial_probs, atol=0.01)
    assert abs(model.score(held_out) - both.score(held_out)) < 0.001  # nats per row


def test_customers_who_go_on_start_anew() -> None:
    """Each loses one transition, and the initial probabilities count both starts."""
    panel = make_panel(300, 40, seed=3)
    halves = Panel.from_arrays(
        panel.continuous, panel.categorical, lengths=[20] * 600, n_categories=[2, 4]
    )
    model = VariationalHMM(3, **QUIET).fit(halves[::2]).partial_fit(halves[1::2])
    whole = VariationalHMM(3, **QUIET).fit(panel)
    assert model.params_.initial_concentration.sum() == pytest.approx(3 + 600, abs=1e-3)
    assert whole.params_.initial_concentration.sum() == pytest.approx(3 + 300, abs=1e-3)
    prior = Prior.weak().transition_concentration(3).sum()
    counted = [m.params_.transition_concentration.sum() - prior for m in (model, whole)]
    np.testing.assert_allclose(counted, [600 * 19, 300 * 39], rtol=1e-5)
    held_out = make_panel(100, 40, seed=4)
    assert abs(model.score(held_out) - whole.score(held_out)) < 0.002  # nats per row


def test_on_an_unfitted_model_it_is_a_fit() -> None:
    fitted = VariationalHMM(2, **QUIET).fit(FIRST)
    started = VariationalHMM(2, **QUIET)
    assert started.partial_fit(FIRST) is started
    assert started.fit_report_.history == fitted.fit_report_.history


def test_anchors_and_weights_count() -> None:
    options = {**QUIET, "precision": "float64", "tol": 0.0, "max_iter": 30}
    codes = np.where(np.arange(SECOND.n_rows) % 3 == 0, 0, -1)
    anchors = Anchors(codes, [[True, False]])
    model = VariationalHMM(2, **options).fit(FIRST)
    before, plain = model.params_, VariationalHMM.from_params(model.params_, **options)
    model.partial_fit(SECOND, anchors=anchors)
    anchored = model.smooth(SECOND, anchors=anchors).probs[codes == 0]
    np.testing.assert_allclose(anchored[:, 0], 1.0)
    assert not np.allclose(model.params_.means, plain.partial_fit(SECOND).params_.means)
    counts = np.arange(SECOND.n_sequences) % 3
    weighted = VariationalHMM.from_params(before, **options)
    weighted.partial_fit(SECOND, sample_weight=counts)
    copied = VariationalHMM.from_params(before, **options)
    copied.partial_fit(SECOND[np.repeat(np.arange(SECOND.n_sequences), counts)])
    for found, expected in zip(arrays_of(weighted.params_), arrays_of(copied.params_), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_columns_without_weight_stay_out() -> None:
    options = {**QUIET, "weights": [1.0, 0.0, 1.0, 0.0]}
    model = VariationalHMM(2, **options).fit(FIRST).partial_fit(SECOND)
    assert (model.params_.location[:, 1] == 0.0).all()
    assert model.params_.mean_strength[:, 0].sum() > 0.9 * PANEL.n_rows


def test_a_month_may_lack_categories_and_be_one_row() -> None:
    model = VariationalHMM(2, **QUIET).fit(FIRST)
    before = model.params_
    row = Panel.from_arrays(FIRST.continuous[:1], [[0, 1]])
    assert row.n_categories != model.params_.n_categories
    model.partial_fit(row)
    added = model.params_.initial_concentration - before.initial_concentration
    assert added.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(model.params_.means, before.means, atol=0.01)


def test_it_is_saved_and_goes_on_after_loading(tmp_path: Any) -> None:
    model = VariationalHMM(3, max_passes=3, **QUIET).fit(FIRST).partial_fit(SECOND)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, VariationalHMM)
    assert loaded.get_params() == {**model.get_params(), "progress": None}
    assert loaded.lower_bound_ == model.lower_bound_
    assert loaded.fit_report_ == model.fit_report_
    for one in (model, loaded):
        one.partial_fit(FIRST)
    np.testing.assert_array_equal(model.params_.means, loaded.params_.means)


def test_wrong_months_are_named() -> None:
    model = VariationalHMM(2, **QUIET).fit(FIRST)
    with pytest.raises(
        DataError, match=r"knows 2 continuous and 2 categorical columns; .* 3 and 0"
    ):
        model.partial_fit(np.zeros((5, 3)))
    beyond = Panel.from_arrays(np.zeros((2, 2)), [[0, 0], [0, 4]])
    with pytest.raises(DataError, match="row 1, column 1: code 4 is unknown to the model"):
        model.partial_fit(beyond)
    with pytest.raises(DataError, match="no rows"):
        model.partial_fit(np.empty((0, 2)))
    with pytest.raises(ConfigError, match="by name"):
        model.partial_fit(SECOND, Anchors(np.zeros(SECOND.n_rows, int), [[True, False]]))
    with pytest.raises(DataError, match="the posterior describes 2 continuous columns"):
        model.partial_fit_rows(PanelRows(replace(SECOND, n_categories=(2, 5))))
    timed = VariationalHMM(2, transitions="continuous", **QUIET).fit(FIRST)
    with pytest.raises(DataError, match="no times"):
        timed.partial_fit(replace(SECOND, times=None))
    with pytest.raises(ConfigError, match="has 2 states but n_states is 3"):
        model.set_params(n_states=3).partial_fit(SECOND)
    with pytest.raises(ConfigError, match="Refit"):
        timed.set_params(transitions="per-row").partial_fit(SECOND)
