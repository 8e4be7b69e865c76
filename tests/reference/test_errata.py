"""The figures in docs/errata.md that are not the paper's own."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score

from turncoat import Prior


def test_e4_the_published_prior_is_sharp_at_407_columns() -> None:
    prior = Prior.paper()
    low, high = stats.invgamma.ppf(
        [0.025, 0.975], prior.total_dof(407) / 2, scale=prior.total_scale(407) / 2
    )
    assert (round(low, 4), round(high, 4)) == (0.0021, 0.0028)
    assert round(float(np.sqrt(0.5 * (low + high))), 2) == 0.05


def test_e7_the_captured_share_implies_an_average_precision_of_a_third() -> None:
    """1,617 of 2,792 frauds inside 3,176 of 83,791 rows, in random order inside and outside."""
    labels = np.zeros(83_791)
    labels[:1617] = 1
    labels[3176 : 3176 + 2792 - 1617] = 1
    inside = np.arange(83_791) < 3176
    precision = [
        average_precision_score(labels, inside + np.random.default_rng(seed).random(83_791))
        for seed in range(20)
    ]
    assert np.mean(precision) == pytest.approx(0.33, abs=0.01)
    assert abs(0.509 / 14.43 - 17_807 / 504_824) < 1e-4
