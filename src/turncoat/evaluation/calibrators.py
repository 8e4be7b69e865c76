"""Post-hoc calibration: scores into probabilities, fitted on the calibration rows only."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from turncoat.arrays import Array
from turncoat.errors import DataError, import_extra

_CLIP = 1e-9  # scores closer to 0 or 1 are moved here before taking log odds


@dataclass(frozen=True)
class Platt:
    """A logistic curve over log odds if all scores are in [0, 1], else over the scores."""

    intercept: float
    slope: float
    uses_log_odds: bool

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> Platt:
        """Fit to scores [N] and labels [N], without a penalty."""
        values, known = _check_rows(scores, labels)
        uses_log_odds = bool(values.min() >= 0 and values.max() <= 1)
        z = _log_odds(values) if uses_log_odds else values
        centre, spread = float(z.mean()), float(z.std()) or 1.0
        model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000)
        model.fit(((z - centre) / spread)[:, None], known)
        slope = float(model.coef_[0, 0]) / spread
        return cls(float(model.intercept_[0]) - slope * centre, slope, uses_log_odds)

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]."""
        values = _check_scores(scores)
        z = _log_odds(values) if self.uses_log_odds else values
        return np.asarray(expit(self.intercept + self.slope * z))


@dataclass(frozen=True, eq=False)
class Isotonic:
    """Isotonic regression; scores outside the calibration range take the value at its end."""

    regression: Any

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> Isotonic:
        """Fit to scores [N] and labels [N]."""
        regression = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        return cls(regression.fit(*_check_rows(scores, labels)))

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]."""
        return np.asarray(self.regression.predict(_check_scores(scores)))


@dataclass(frozen=True, eq=False)
class VennAbers:
    """Inductive Venn-Abers: isotonic fits with the label as 0 and as 1, merged into one."""

    if_genuine: Array  # [M + 1] probability below the first of the M scores, and from each on
    if_fraud: Array  # [M + 1] probability up to each score
    scores: Array  # [M] distinct calibration scores, rising

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike, decimals: int | None = None) -> VennAbers:
        """Fit to scores [N] and labels [N]; `decimals` rounds scores, for very many rows."""
        values, known = _check_rows(scores, labels)
        # The library sets NumPy's error state for good unless it is imported in here.
        with np.errstate(divide="ignore", invalid="ignore"):
            library = import_extra("venn_abers", "Venn-Abers calibration")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # from the minimum of no slopes
                both = np.column_stack([1 - values, values])
                fitted = library.VennAbers().fit(both, known, precision=decimals)
        return cls(fitted.p0[:, 1], fitted.p1[:, 1], fitted.c)

    def bounds(self, scores: ArrayLike) -> tuple[Array, Array]:
        """The two probabilities p0 <= p1 of each score [N]."""
        values = _check_scores(scores)
        lower = self.if_genuine[np.searchsorted(self.scores, values, "right")]
        upper = self.if_fraud[np.searchsorted(self.scores, values, "left")]
        return np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0)

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]: p1 / (1 - p0 + p1), the least regret in log loss."""
        lower, upper = self.bounds(scores)
        return np.asarray(upper / (1 - lower + upper))


def _check_rows(scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    values, known = _check_scores(scores), np.asarray(labels)
    if known.shape != values.shape:
        raise DataError(f"{len(values)} scores need as many labels; found shape {known.shape}")
    found = np.unique(known).tolist()
    if found != [0, 1]:
        rule = "calibration labels must be 0 and 1, both present"
        raise DataError(f"{rule}; found {found[:5]}. Choose a larger calibration part")
    return values, known.astype(np.int64)


def _check_scores(scores: ArrayLike) -> Array:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1:
        raise DataError(f"scores must be one for each row; found shape {values.shape}")
    if not np.isfinite(values).all():
        row = np.isfinite(values).argmin()
        raise DataError(f"the score of row {row} is {values[row]}. Give every row a finite score")
    return values


def _log_odds(values: Array) -> Array:
    return np.asarray(logit(np.clip(values, _CLIP, 1 - _CLIP)))
