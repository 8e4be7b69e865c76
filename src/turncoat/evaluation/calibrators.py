"""Calibration afterwards: scores into probabilities, fitted on calibration rows only."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.evaluation.tuning import from_extra

_CERTAIN = 1e-9  # scores closer to 0 or 1 have the log odds of this


class Calibrator(Protocol):
    """Fitted; turns scores into probabilities."""

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> Self:
        """Fit to scores [N] and labels [N] (0 or 1)."""
        ...

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]."""
        ...


@dataclass(frozen=True)
class Platt:
    """A logistic line through the log odds of scores that are all between 0 and 1, or through other scores as they are."""

    intercept: float
    slope: float
    of_log_odds: bool

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> Platt:
        """Fit to scores [N] and labels [N], without a penalty."""
        from sklearn.linear_model import LogisticRegression

        values, known = _calibration_rows(scores, labels)
        of_log_odds = bool(values.min() >= 0 and values.max() <= 1)
        z = _log_odds(values) if of_log_odds else values
        centre, spread = float(z.mean()), float(z.std()) or 1.0
        line = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(
            ((z - centre) / spread)[:, None], known
        )
        slope = float(line.coef_[0, 0]) / spread
        return cls(float(line.intercept_[0]) - slope * centre, slope, of_log_odds)

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]."""
        values = _checked(scores)
        return np.asarray(
            expit(self.intercept + self.slope * (_log_odds(values) if self.of_log_odds else values))
        )


@dataclass(frozen=True, eq=False)
class Isotonic:
    """The best rising step function, straight between its steps; scores beyond the calibration rows' take the value at the end."""

    regression: Any

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike) -> Isotonic:
        """Fit to scores [N] and labels [N]."""
        from sklearn.isotonic import IsotonicRegression

        return cls(
            IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
                *_calibration_rows(scores, labels)
            )
        )

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]."""
        return np.asarray(self.regression.predict(_checked(scores)))


@dataclass(frozen=True, eq=False)
class VennAbers:
    """Inductive Venn-Abers: two isotonic regressions for every score, as if its label were 0 or 1, merged into one probability."""

    if_genuine: (
        Array  # [M + 1] probability of fraud below the first of the M scores, and from each on
    )
    if_fraud: Array  # [M + 1] likewise, up to each
    scores: Array  # [M] different ones of the calibration rows, rising

    @classmethod
    def fit(cls, scores: ArrayLike, labels: ArrayLike, decimals: int | None = None) -> VennAbers:
        """Fit to scores [N] and labels [N].

        Exact, 60,000 rows take a second or two, and the time grows with their square; `decimals` rounds the scores to save it.
        """
        values, known = _calibration_rows(scores, labels)
        with np.errstate(
            divide="ignore", invalid="ignore"
        ):  # the library also sets these for good, unless it is imported in here
            library = from_extra("venn_abers", "Venn-Abers calibration")
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", RuntimeWarning
                )  # it asks for the smallest of no slopes
                fitted = library.VennAbers().fit(
                    np.column_stack([1 - values, values]), known, precision=decimals
                )
        return cls(fitted.p0[:, 1], fitted.p1[:, 1], fitted.c)

    def bounds(self, scores: ArrayLike) -> tuple[Array, Array]:
        """The two probabilities p0 <= p1 of each score."""
        values = _checked(scores)
        return (
            np.clip(self.if_genuine[np.searchsorted(self.scores, values, "right")], 0.0, 1.0),
            np.clip(self.if_fraud[np.searchsorted(self.scores, values, "left")], 0.0, 1.0),
        )

    def calibrate(self, scores: ArrayLike) -> Array:
        """Probabilities of fraud [N]: p1 / (1 - p0 + p1), which has the least regret in log loss."""
        lower, upper = self.bounds(scores)
        return np.asarray(upper / (1 - lower + upper))


def _calibration_rows(scores: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    values, known = _checked(scores), np.asarray(labels)
    if known.shape != values.shape:
        raise DataError(f"{len(values)} scores need as many labels; found shape {known.shape}")
    kinds = np.unique(known).tolist()
    if kinds != [0, 1]:
        raise DataError(
            f"calibration labels must be 0 and 1, both of them; found {kinds[:5]}. Choose a larger calibration part"
        )
    return values, known.astype(np.int64)


def _checked(scores: ArrayLike) -> Array:
    values = np.asarray(scores, np.float64)
    if values.ndim != 1:
        raise DataError(f"scores must be one for each row; found shape {values.shape}")
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise DataError(
            f"the score of row {wrong[0]} is {values[wrong[0]]}. Give every row a finite one"
        )
    return values


def _log_odds(values: Array) -> Array:
    return np.asarray(logit(np.clip(values, _CERTAIN, 1 - _CERTAIN)))
