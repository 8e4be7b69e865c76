"""Model digests: the same for the same beliefs, another for others."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tests.scoring.detectors import (
    QUICK,
    data_of,
    detector,
    neural,
    plain_detector,
    ranked_detector,
    time_split,
)
from turncoat import Detector, load

CASES: dict[str, dict[str, Any]] = {
    "point": {"kind": "point"},
    "expected-log": {},
    "anchored": {"supervision": "anchored"},
}


def other_like(made: Detector, **settings: Any) -> Detector:
    """The same detector, to be changed."""
    other = clone(made)
    other.features_, other.model_ = made.features_, copy.copy(made.model_)
    other.calibration_ = made.calibration_
    return other.set_params(**settings)


@pytest.mark.parametrize("case", list(CASES))
def test_saving_and_loading_do_not_change_it(case: str, tmp_path: Path) -> None:
    made = detector(**CASES[case])
    made.save(tmp_path / "bundle")
    loaded = load(tmp_path / "bundle")
    assert re.fullmatch("[0-9a-f]{16}", made.digest_)
    assert loaded.digest_ == made.digest_
    loaded.save(tmp_path / "again")
    assert load(tmp_path / "again").digest_ == made.digest_


def test_nor_that_of_an_encoder(tmp_path: Path) -> None:
    made, _ = neural()
    made.save(tmp_path / "bundle")
    loaded = load(tmp_path / "bundle")
    assert loaded.digest_ == made.digest_
    bare = other_like(made)
    bare.model_.encoder_ = replace(made.model_.encoder_, report=None)
    assert bare.digest_ == made.digest_
    given = other_like(made)
    given.model_.encoder = made.model_.encoder_  # not trained here
    assert given.digest_ == made.digest_
    moved = other_like(made)
    moved.model_.encoder_ = replace(
        made.model_.encoder_, head_bias=made.model_.encoder_.head_bias + 1
    )
    assert moved.digest_ != made.digest_


def test_neither_calibration_nor_ranker_nor_how_the_fit_went_changes_it() -> None:
    made = plain_detector()
    assert ranked_detector("column").digest_ == made.digest_
    recalibrated = made.recalibrate(np.full((4, 3), 1 / 3), [0, 1, 0, 0], [0, 4])
    assert recalibrated.digest_ == made.digest_
    bare = other_like(made)
    del bare.model_.fit_report_
    assert bare.digest_ == made.digest_


def test_whatever_beliefs_depend_on_changes_it() -> None:
    made = detector()
    digests = [made.digest_]
    for settings in ({"temperature": 2.0}, {"emission": "predictive"}, {"precision": "float64"}):
        other = other_like(made)
        other.model_.set_params(**settings)
        digests.append(other.digest_)
    moved = other_like(made)
    location = made.model_.params_.location.copy()
    location[1, 2] = np.nextafter(location[1, 2], np.inf)
    moved.model_.params_ = replace(made.model_.params_, location=location)
    digests.append(moved.digest_)
    plan = made.features_.plan
    later = other_like(made)
    later.features_ = copy.copy(made.features_)
    later.features_.plan_ = replace(plan, label_delay_s=plan.label_delay_s + 1)
    digests.append(later.digest_)
    digests.append(other_like(made, label_noise=0.1).digest_)
    assert len(set(digests)) == len(digests)


def test_it_is_found_once_and_anew_after_another_fit() -> None:
    transactions = data_of("shop").transactions
    made = Detector(model=detector().model.__class__(2, **QUICK)).fit(
        transactions, time_split(transactions)
    )
    first = made.digest_
    assert made.digest_ is first
    made.set_params(model__n_states=3)
    assert made.fit(transactions, time_split(transactions)).digest_ != first
