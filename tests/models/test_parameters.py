"""Parameters refuse nonsense; intervals are what SciPy and simulation say."""

from __future__ import annotations

import numpy as np
import pytest

from turncoat import ConfigError, HMMParams, Prior, VariationalParams

GOOD = {
    "initial_probs": [0.5, 0.5],
    "transition_matrix": [[0.9, 0.1], [0.2, 0.8]],
    "means": [[0.0], [1.0]],
    "variances": [[1.0], [2.0]],
    "category_probs": ([[0.3, 0.7], [0.5, 0.5]],),
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("initial_probs", [], "at least one state"),
        ("initial_probs", [0.5, 0.6], "add up to 1"),
        ("initial_probs", [1.5, -0.5], "add up to 1"),
        ("transition_matrix", [[1.0]], r"\[2, 2\]"),
        ("transition_matrix", [[0.9, 0.2], [0.2, 0.8]], "add up to 1"),
        ("means", [[0.0]], r"means must be \[2, columns\]"),
        ("means", [[np.nan], [0.0]], "finite"),
        ("variances", [[0.0], [1.0]], "positive"),
        ("variances", [[1.0, 1.0], [1.0, 1.0]], "variances must be"),
        ("category_probs", ([[0.3, 0.6], [0.5, 0.5]],), r"category_probs\[0\]"),
        ("category_probs", ([[1.0]],), r"category_probs\[0\] must be"),
    ],
)
def test_bad_parameters_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HMMParams(**{**GOOD, name: value})


def posterior() -> VariationalParams:
    return VariationalParams(
        initial_concentration=[3.0, 5.0],
        transition_concentration=[[8.0, 2.0], [1.0, 30.0]],
        location=[[0.5], [-2.0]],
        mean_strength=[[4.0], [50.0]],
        dof=[[6.0], [60.0]],
        scale=[[5.0], [90.0]],
        category_concentration=([[1.0, 2.0, 7.0], [20.0, 5.0, 5.0]], [[4.0], [3.0]]),
    )


def test_intervals_cover_what_they_say() -> None:
    """Quantiles of draws from the posterior itself."""
    params, rng, n = posterior(), np.random.default_rng(0), 200_000
    precision = rng.gamma(params.dof / 2, 2 / params.scale, size=(n, 2, 1))
    drawn = {
        "means": params.location
        + rng.normal(size=precision.shape) / np.sqrt(params.mean_strength * precision),
        "variances": 1 / precision,
        "initial_probs": rng.dirichlet(params.initial_concentration, n),
        "transition_matrix": np.stack(
            [rng.dirichlet(row, n) for row in params.transition_concentration], axis=1
        ),
    }
    for name, values in drawn.items():
        low, high = params.credible_interval(name, 0.8)
        np.testing.assert_allclose(
            ((values > low) & (values < high)).mean(axis=0), 0.8, atol=0.005, err_msg=name
        )
    low, high = params.credible_interval("category_probs", 0.8)[0]
    values = np.stack([rng.dirichlet(row, n) for row in params.category_concentration[0]], axis=1)
    np.testing.assert_allclose(((values > low) & (values < high)).mean(axis=0), 0.8, atol=0.005)
    assert (params.credible_interval("category_probs")[1][0] == 1.0).all()


def test_intervals_refuse_nonsense() -> None:
    with pytest.raises(ConfigError, match="no parameter 'speed'"):
        posterior().credible_interval("speed")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        posterior().credible_interval("means", 1.0)


def test_posterior_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="positive"):
        VariationalParams([1.0], [[1.0]], [[0.0]], [[1.0]], [[-1.0]], [[1.0]])


def test_reordering_must_name_every_state_once() -> None:
    with pytest.raises(ConfigError, match="each of the 2 states once"):
        posterior().reorder([0, 0])


def test_priors_as_published_and_weak() -> None:
    assert (Prior.paper().total_dof(407), Prior.paper().total_scale(407)) == (408.0, 1.0)
    weak = Prior.weak()
    assert weak.total_scale(407) / (weak.total_dof(407) - 2) == 1.0  # prior mean of the variance
    np.testing.assert_array_equal(weak.transition_concentration(2), [[5.0, 1.0], [1.0, 5.0]])
