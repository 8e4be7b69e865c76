"""Anchors: where anchored rows start, and what a code adds to the emission."""

from __future__ import annotations

import numpy as np

from turncoat import Anchors

ALLOWED = [[True, True, False], [False, False, True]]


def test_anchored_rows_move_to_an_allowed_state() -> None:
    anchors = Anchors([-1, 0, 1, 0, 0], ALLOWED)
    moved = anchors.move_to_allowed(np.array([2, 2, 0, 1, 2]))
    np.testing.assert_array_equal(moved, [2, 0, 2, 1, 0])


def test_log_weights_of_noisy_codes_and_of_likelihoods() -> None:
    noisy = Anchors([0], ALLOWED, noise=0.1).log_weights(3)
    np.testing.assert_allclose(np.exp(noisy), [[0.9, 0.9, 0.1], [0.1, 0.1, 0.9]])
    table = [[0.2, 0.0, 0.5]]
    found = Anchors.from_likelihoods([0], table).log_weights(3)
    np.testing.assert_allclose(np.exp(found), table)
    assert found[0, 1] == -np.inf
