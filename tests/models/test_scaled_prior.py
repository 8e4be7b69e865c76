"""The default prior follows the columns: their units change nothing but the units of the result."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conformance.test_estimators import every_tier, make_panel
from turncoat import ConfigError, Panel, Prior, VariationalHMM
from turncoat.models.neural.model import latent_prior

PANEL = make_panel(60, cells="float64")
FACTORS, OFFSETS = np.array([1e-4, 1.0, 3e5]), np.array([7e-4, -2.0, 1e6])
OPTIONS: dict[str, Any] = {"precision": "float64", "n_restarts": 2, "max_iter": 30}


def in_other_units(panel: Panel) -> Panel:
    return replace(panel, continuous=FACTORS * panel.continuous + OFFSETS)


@every_tier
@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
@pytest.mark.parametrize("weighted", [False, True])
def test_units_of_columns_change_the_units_of_parameters_alone(
    tier: Any, transitions: str, weighted: bool
) -> None:
    other = in_other_units(PANEL)
    weights = np.arange(1, PANEL.n_sequences + 1) % 3 if weighted else None
    models = [
        tier(3, transitions=transitions, **OPTIONS).fit(panel, sample_weight=weights)
        for panel in (PANEL, other)
    ]
    first, second = (model.params_ for model in models)
    np.testing.assert_allclose(second.means, FACTORS * first.means + OFFSETS, rtol=1e-9)
    np.testing.assert_allclose(second.variances, FACTORS**2 * first.variances, rtol=1e-8)
    np.testing.assert_allclose(second.transition_matrix, first.transition_matrix, atol=1e-9)
    for found, expected in zip(second.category_probs, first.category_probs, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    counts = np.ones(PANEL.n_sequences) if weights is None else weights
    n_cells = np.repeat(counts, PANEL.lengths) @ ~np.isnan(PANEL.continuous)
    shifted = np.array(models[0].fit_report_.history) - n_cells @ np.log(FACTORS)
    np.testing.assert_allclose(models[1].fit_report_.history, shifted, rtol=1e-9)
    np.testing.assert_array_equal(models[1].decode(other), models[0].decode(PANEL))
    np.testing.assert_allclose(
        models[1].filter(other).probs, models[0].filter(PANEL).probs, atol=1e-8
    )


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("factor", [1e-10, 1e-4, 1e4, 1e10])
def test_every_state_is_found_in_any_unit(factor: float, precision: str) -> None:
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.integers(0, 4, 120), 10)
    centres = np.array([[0, 0, 0], [4, 0, 0], [0, 4, 0], [0, 0, 4]])
    cells = factor * (rng.normal(size=(1200, 3)) + centres[truth])
    panel = Panel.from_arrays(cells, lengths=[30] * 40)
    model = VariationalHMM(4, precision=precision).fit(panel)
    assert not model.fit_report_.empty_states
    path = model.predict(panel)
    shares = [np.bincount(path[truth == k]).max() / (truth == k).sum() for k in range(4)]
    assert min(shares) > 0.97


def test_a_constant_column_changes_nothing() -> None:
    panel = PANEL.take_columns(np.array([True, True, True, False, False]))
    constants = np.tile([7e-4, -3.0, 1e9], (panel.n_rows, 1))
    wide = Panel.from_arrays(np.hstack([panel.continuous, constants]), lengths=panel.lengths)
    models = [
        VariationalHMM(2, prior=Prior(mean_strength=2.0), **OPTIONS).fit(one)
        for one in (wide, replace(wide, continuous=wide.continuous * np.array([1e-3] * 6)))
    ]
    paths = [
        model.decode(replace(wide, continuous=wide.continuous * factor))
        for model, factor in zip(models, (1.0, 1e-3), strict=True)
    ]
    np.testing.assert_array_equal(*paths)


def test_a_prior_of_standardised_columns_in_the_columns_units() -> None:
    """Any mean and scale, not the default's alone."""
    means, variances = np.nanmean(PANEL.continuous, axis=0), np.nanvar(PANEL.continuous, axis=0)
    prior = Prior(mean=0.5, mean_strength=3.0, dof=7.0, scale=4.0, scale_per_column=0.5)
    locations, scales = prior.scale_to_columns(means, variances)
    np.testing.assert_allclose(locations, means + 0.5 * np.sqrt(variances))
    np.testing.assert_allclose(scales, 5.5 * variances)
    for fixed in (replace(prior, standardised=False), Prior.paper(), latent_prior()):
        locations, scales = fixed.scale_to_columns(means, variances)
        np.testing.assert_array_equal(locations, fixed.mean)
        np.testing.assert_array_equal(scales, fixed.total_scale(3))
    with pytest.raises(ConfigError, match="standardised must be True or False; found 1"):
        Prior(standardised=1)  # type: ignore[arg-type]


def test_standardised_columns_see_the_same_prior_as_in_their_own_units() -> None:
    cells = PANEL.continuous
    standard = (cells - np.nanmean(cells, axis=0)) / np.nanstd(cells, axis=0)
    panel = replace(PANEL, continuous=standard)
    models = [
        VariationalHMM(3, prior=prior, **OPTIONS).fit(panel)
        for prior in (None, Prior(standardised=False))
    ]
    histories = [model.fit_report_.history for model in models]
    np.testing.assert_allclose(*histories, rtol=1e-9)
    np.testing.assert_allclose(models[0].params_.means, models[1].params_.means, atol=1e-8)
