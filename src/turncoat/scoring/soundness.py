"""Whether the parts of a detector that was read from disk fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turncoat.scoring.rankers import as_ranker

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector


def check_detector(detector: Detector) -> None:
    """Raise ValueError or ConfigError if settings, features, model, regimes and ranker do not fit each other."""
    detector.check_settings()
    plan, params, parts = detector.features_.plan, detector.model_.params_, detector.fitted()
    if detector.anchoring is not None:
        detector.anchoring.sides(params.n_states)
    if detector.model_.input_columns() != (len(plan.continuous), plan.n_categories):
        raise ValueError("the model's columns are not the features'")
    k = params.n_states
    for regimes in (*parts.regimes.values(), parts.in_sample):
        arrays = (regimes.mass, regimes.frauds, regimes.evidence, regimes.stickiness)
        if any(
            array.shape != (k,)
            or array.dtype != np.float64
            or not (array >= 0).all()
            or np.isinf(array).any()
            for array in arrays
        ):
            raise ValueError("the regimes are not the model's")
        if (
            regimes.correlation.shape != (k, k)
            or not (np.abs(regimes.correlation) <= 1 + 1e-9).all()
        ):
            raise ValueError("the regimes' errors are not the model's")
        if not regimes.mass.sum() > 0 or (regimes.frauds > regimes.mass * (1 + 1e-9)).any():
            raise ValueError("the regimes hold no transactions, or more frauds than transactions")
    for ranked in (parts.ranked or {}).values():
        shapes = (ranked.intercepts.shape, ranked.slopes.shape, ranked.covariance.shape)
        finite = all(
            np.isfinite(part).all()
            for part in (ranked.intercepts, ranked.slopes, ranked.covariance)
        )
        if shapes != ((k,), (k,), (2 * k, 2 * k)) or not finite or not 0 < ranked.spread < np.inf:
            raise ValueError("the ranker's regimes are not the model's")
    parts.reference.check(k, len(plan.continuous), parts.ranked is not None)
    if not -np.inf < parts.times[0] <= parts.times[1] < np.inf:
        raise ValueError(f"calibration from {parts.times[0]} to {parts.times[1]} seconds cannot be")
    if parts.ranker is not None:
        as_ranker(parts.ranker.given, detector.features_, detector.model_)
