"""Calibration against scikit-learn and the Venn-Abers library called directly."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from scipy.special import logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from turncoat import ConfigError, DataError
from turncoat.evaluation.calibrators import Isotonic, Platt, VennAbers

ALL = [Platt, Isotonic, VennAbers]
every = pytest.mark.parametrize("calibrator", ALL)


def rows(n: int = 1500, seed: int = 1) -> tuple[Any, Any]:
    """Scores that overstate a rare event, and labels."""
    rng = np.random.default_rng(seed)
    truth = rng.beta(0.5, 9.5, n)
    return np.sqrt(truth), (rng.random(n) < truth).astype(np.int8)


def test_platt_is_an_unpenalised_logistic_regression_of_log_odds() -> None:
    scores, labels = rows()
    other, _ = rows(200, 2)
    expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(
        logit(scores)[:, None], labels
    )
    found = Platt.fit(scores, labels)
    assert found.uses_log_odds
    np.testing.assert_allclose(
        found.calibrate(other), expected.predict_proba(logit(other)[:, None])[:, 1], rtol=1e-4
    )
    np.testing.assert_allclose(found.calibrate(scores).sum(), labels.sum(), rtol=1e-4)


def test_platt_takes_scores_beyond_probabilities_as_they_are() -> None:
    scores, labels = rows()
    margins = 40.0 * scores - 30.0
    expected = LogisticRegression(C=np.inf, tol=1e-10, max_iter=5000).fit(margins[:, None], labels)
    found = Platt.fit(margins, labels)
    assert not found.uses_log_odds
    np.testing.assert_allclose(
        found.calibrate(margins), expected.predict_proba(margins[:, None])[:, 1], rtol=1e-3
    )


def test_isotonic_is_scikit_learns() -> None:
    scores, labels = rows()
    other = np.linspace(-1.0, 2.0, 301)
    expected = IsotonicRegression(out_of_bounds="clip").fit(scores, labels).predict(other)
    np.testing.assert_array_equal(Isotonic.fit(scores, labels).calibrate(other), expected)


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
@pytest.mark.parametrize("decimals", [None, 2])
def test_venn_abers_is_the_librarys(decimals: int | None) -> None:
    scores, labels = rows()
    other, _ = rows(200, 2)
    with np.errstate(divide="ignore", invalid="ignore"):
        from venn_abers import VennAbers as Library

        library = Library()
        library.fit(np.column_stack([1 - scores, scores]), labels, precision=decimals)
        expected, bounds = library.predict_proba(np.column_stack([1 - other, other]))
    found = VennAbers.fit(scores, labels, decimals)
    lower, upper = found.bounds(other)
    np.testing.assert_allclose(np.column_stack([lower, upper]), bounds, atol=1e-12)
    np.testing.assert_allclose(found.calibrate(other), expected[:, 1], rtol=1e-12)
    assert (lower <= found.calibrate(other)).all()
    assert (found.calibrate(other) <= upper).all()


def test_venn_abers_is_two_isotonic_regressions() -> None:
    scores, labels = rows(60)
    other = np.array([-1.0, 0.0, 0.2, scores[3], 0.55, 2.0])
    bounds = VennAbers.fit(scores, labels).bounds(other)
    for label, bound in zip((0, 1), bounds, strict=True):
        for score, value in zip(other, bound, strict=True):
            fitted = IsotonicRegression().fit(np.append(scores, score), np.append(labels, label))
            np.testing.assert_allclose(value, fitted.predict([score])[0], atol=1e-7)


@every
def test_probabilities_improve_and_keep_their_order(calibrator: Any) -> None:
    scores, labels = rows()
    other, truth = rows(1500, 2)
    found = calibrator.fit(scores, labels).calibrate(other)
    assert ((found >= 0) & (found <= 1)).all()
    assert ((found - truth) ** 2).mean() < ((other - truth) ** 2).mean()
    assert abs(found.mean() - truth.mean()) < 0.01
    assert (np.diff(found[np.argsort(other)]) >= -1e-12).all()


@every
@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [1, 1, 0, 0], [0, 1, 0, 1]])
def test_separated_reversed_and_equal_scores_are_no_accident(
    calibrator: Any, labels: list[int]
) -> None:
    for scores in ([0.0, 0.2, 0.9, 1.0], [0.5, 0.5, 0.5, 0.5]):
        found = calibrator.fit(scores, labels).calibrate([-1.0, 0.0, 0.5, 1.0, 7.0])
        assert ((found >= 0) & (found <= 1)).all()


@every
@pytest.mark.parametrize(
    ("scores", "labels", "words"),
    [
        ([0.1, 0.2], [0, 0], "found \\[0\\]"),
        ([0.1, 0.2, 0.3], [0, 1, -1], "found \\[-1, 0, 1\\]"),
        ([0.1, np.nan], [0, 1], "row 1 is nan"),
        ([np.inf, 0.1], [0, 1], "row 0 is inf"),
        ([0.1, 0.2], [0, 1, 1], "as many labels"),
        ([[0.1, 0.2]], [0, 1], "one for each row"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    calibrator: Any, scores: Any, labels: Any, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        calibrator.fit(scores, labels)


@every
def test_missing_scores_are_refused_later_too(calibrator: Any) -> None:
    fitted = calibrator.fit(*rows(50, 3))
    with pytest.raises(DataError, match="row 1 is nan"):
        fitted.calibrate([0.1, np.nan])


def test_numpys_error_settings_survive_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("venn_abers")]:
        monkeypatch.delitem(sys.modules, name)
    before = np.geterr()
    VennAbers.fit(*rows(50, 3))
    assert np.geterr() == before


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "venn_abers", None)
    with pytest.raises(
        ConfigError,
        match=r"Venn-Abers calibration needs the extra: pip install turncoat\[baselines\]",
    ):
        VennAbers.fit(*rows(50, 3))
