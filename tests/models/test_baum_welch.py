"""The maximum-likelihood update: impossible transitions stay impossible, unused states stay."""

from __future__ import annotations

import numpy as np

from turncoat import BaumWelchHMM, HMMParams, Panel


def test_impossible_transitions_stay_impossible() -> None:
    rng = np.random.default_rng(0)
    init = HMMParams(
        initial_probs=[0.6, 0.4, 0.0],
        transition_matrix=[[0.8, 0.2, 0.0], [0.0, 0.7, 0.3], [0.5, 0.0, 0.5]],
        means=[[0.0], [2.0], [4.0]],
        variances=np.ones((3, 1)),
    )
    panel = Panel.from_arrays(rng.normal(2.0, 2.0, size=(200, 1)), lengths=[20] * 10)
    params = BaumWelchHMM(3, init=init, max_iter=5, tol=0.0).fit(panel).params_
    np.testing.assert_array_equal(params.transition_matrix == 0, init.transition_matrix == 0)
    np.testing.assert_array_equal(params.initial_probs == 0, init.initial_probs == 0)
    assert np.abs(params.transition_matrix - init.transition_matrix).max() > 0.01
