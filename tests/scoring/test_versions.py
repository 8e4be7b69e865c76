"""Model versions: the same for the same beliefs, another for others."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from turncoat import Detector, load
from turncoat.scoring.versions import model_version

from .cases import QUICK, data_of, detector, time_split
from .test_neural import neural
from .test_ranker import plain_detector, ranked_detector

CASES: dict[str, dict[str, Any]] = {
    "point": {"kind": "point"},
    "expected-log": {},
    "anchored": {"supervision": "anchored"},
}


def other_like(made: Detector, **settings: Any) -> Detector:
    """The same detector, to be changed."""
    other = clone(made)
    other.features_, other.model_ = made.features_, copy.copy(made.model_)
    other.parts_ = made.parts_
    return other.set_params(**settings)


@pytest.mark.parametrize("case", list(CASES))
def test_saving_and_loading_do_not_change_it(case: str, tmp_path: Path) -> None:
    made = detector(**CASES[case])
    made.save(tmp_path / "bundle")
    loaded = load(tmp_path / "bundle")
    assert re.fullmatch("[0-9a-f]{16}", made.version_)
    assert loaded.version_ == made.version_ == model_version(made)
    loaded.save(tmp_path / "again")
    assert load(tmp_path / "again").version_ == made.version_


def test_nor_that_of_an_encoder(tmp_path: Path) -> None:
    made, _ = neural()
    made.save(tmp_path / "bundle")
    loaded = load(tmp_path / "bundle")
    assert loaded.version_ == made.version_
    bare = other_like(made)
    bare.model_.encoder_ = replace(made.model_.encoder_, report=None)
    assert model_version(bare) == made.version_
    moved = other_like(made)
    moved.model_.encoder_ = replace(
        made.model_.encoder_, head_bias=made.model_.encoder_.head_bias + 1
    )
    assert model_version(moved) != made.version_


def test_neither_calibration_nor_ranker_nor_how_the_fit_went_changes_it() -> None:
    made = plain_detector()
    assert ranked_detector("column").version_ == made.version_
    recalibrated = made.recalibrated(np.full((4, 3), 1 / 3), [0, 1, 0, 0], [0, 4])
    assert recalibrated.version_ == made.version_
    bare = other_like(made)
    del bare.model_.fit_report_
    assert model_version(bare) == made.version_


def test_whatever_beliefs_depend_on_changes_it() -> None:
    made = detector()
    versions = [made.version_]
    for settings in ({"temperature": 2.0}, {"emission": "predictive"}, {"precision": "float64"}):
        other = other_like(made)
        other.model_.set_params(**settings)
        versions.append(model_version(other))
    moved = other_like(made)
    location = made.model_.params_.location.copy()
    location[1, 2] = np.nextafter(location[1, 2], np.inf)
    moved.model_.params_ = replace(made.model_.params_, location=location)
    versions.append(model_version(moved))
    plan = made.features_.plan
    later = other_like(made)
    later.features_ = copy.copy(made.features_)
    later.features_.plan_ = replace(plan, label_delay_s=plan.label_delay_s + 1)
    versions.append(model_version(later))
    versions.append(model_version(other_like(made, label_noise=0.1)))
    assert len(set(versions)) == len(versions)


def test_it_is_found_once_and_anew_after_another_fit() -> None:
    transactions = data_of("shop").transactions
    made = Detector(model=detector().model.__class__(2, **QUICK)).fit(
        transactions, time_split(transactions)
    )
    first = made.version_
    assert made.version_ is first
    made.set_params(model__n_states=3)
    assert made.fit(transactions, time_split(transactions)).version_ != first
