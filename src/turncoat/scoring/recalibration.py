"""Labels that arrive later, put to use: the same features and model, with what is now known of each regime's fraud."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.scoring.ranker import RegimeRanker
from turncoat.scoring.regimes import Regimes, check_keep

if TYPE_CHECKING:
    from turncoat.scoring.detector import Parts


MODE = "filtered"  # what live scores are made of
_SUM_TOLERANCE = 1e-3  # beliefs may have been kept in few digits


def recalibrated_parts(
    parts: Parts,
    beliefs: ArrayLike,
    labels: ArrayLike,
    offsets: ArrayLike,
    external: ArrayLike | None = None,
    keep: float = 1.0,
) -> Parts:
    """What fitting made, its filtered regimes and ranker updated as `Detector.recalibrated` says."""
    check_keep(keep)
    old = parts.regimes[MODE]
    rows = _Rows(old.n_states, parts.ranked is not None, beliefs, labels, offsets, external)
    new = Regimes.measure(
        rows.beliefs,
        rows.labels,
        rows.offsets,
        old.stickiness,
        part="labels",
        mode=MODE,
        in_sample=False,
    )
    ranked = None
    if parts.ranked is not None and rows.external is not None:
        ranked = parts.ranked[MODE].updated(
            rows.external, rows.beliefs, rows.labels, rows.offsets, keep
        )
    return rescored(with_calibration(parts, old.updated(new, keep), ranked))


def with_calibration(parts: Parts, regimes: Regimes, ranked: RegimeRanker | None) -> Parts:
    """What fitting made, with other filtered regimes and, if there is a ranker, other lines in them; the reference is the old one."""
    lines = None if parts.ranked is None or ranked is None else {**parts.ranked, MODE: ranked}
    return replace(parts, regimes={**parts.regimes, MODE: regimes}, ranked=lines)


def rescored(parts: Parts) -> Parts:
    """The same with the reference's scores as they are by these regimes and ranker."""
    reference, ranked = parts.reference, None if parts.ranked is None else parts.ranked[MODE]
    scores = filtered_scores(
        parts.regimes[MODE], ranked, reference.beliefs.astype(np.float64), reference.external
    )
    return replace(parts, reference=reference.rescored(scores))


def filtered_scores(
    regimes: Regimes, ranked: RegimeRanker | None, beliefs: Array, external: Array | None
) -> Array:
    """The probability of fraud of each row, from its belief [N, K] and the ranker's score, if there is one."""
    if ranked is None or external is None:
        scores: Array = beliefs @ regimes.mean_rates
        return scores
    return ranked.predict(external, beliefs)[0]


class _Rows:
    """Rows whose labels are known, customer by customer, refused if they are not the detector's."""

    def __init__(
        self,
        n_states: int,
        has_ranker: bool,
        beliefs: ArrayLike,
        labels: ArrayLike,
        offsets: ArrayLike,
        external: ArrayLike | None,
    ) -> None:
        every = np.asarray(labels)
        n_rows = len(every) if every.ndim == 1 else -1
        if n_rows < 0 or every.dtype.kind not in "biuf" or not np.isin(every, (-1, 0, 1)).all():
            raise DataError("labels must be one of 0, 1 and -1 (unknown) for each row")
        known = np.flatnonzero(every >= 0)
        if len(known) == 0:
            raise DataError(
                f"none of the {n_rows:,} rows has a label. Wait for labels, and recalibrate then"
            )
        self.labels = every[known].astype(np.int8)
        self.beliefs = _beliefs(beliefs, n_rows, n_states)[known]
        self.offsets = _offsets(offsets, n_rows, known)
        self.external = _external(external, n_rows)[known] if has_ranker else None


def _beliefs(beliefs: ArrayLike, n_rows: int, n_states: int) -> Array:
    array = np.asarray(beliefs, np.float64)
    if array.shape != (n_rows, n_states):
        raise DataError(
            f"beliefs must be [{n_rows:,} rows, {n_states} regimes], as they were at scoring; found shape {array.shape}"
        )
    wrong = np.flatnonzero(
        ~((array >= 0).all(axis=1) & (np.abs(array.sum(axis=1) - 1) <= _SUM_TOLERANCE))
    )
    if wrong.size:
        raise DataError(
            f"the beliefs of row {wrong[0]} are not probabilities that add up to 1: {array[wrong[0]].tolist()}"
        )
    return np.asarray(array / array.sum(axis=1, keepdims=True))


def _offsets(offsets: ArrayLike, n_rows: int, known: Array) -> Array:
    """Where each customer's known rows start; customers without one are left out."""
    array = np.asarray(offsets)
    if (
        array.ndim != 1
        or array.dtype.kind not in "iu"
        or len(array) < 2
        or array[0] != 0
        or array[-1] != n_rows
        or (np.diff(array) < 0).any()
    ):
        raise DataError(
            f"offsets must rise from 0 to the {n_rows:,} rows, customer u being rows offsets[u] to offsets[u + 1]"
        )
    return np.unique(np.searchsorted(known, array))


def _external(external: ArrayLike | None, n_rows: int) -> Array:
    if external is None:
        raise DataError(
            "this detector has a ranker: give the ranker's score of each row as `external`"
        )
    array = np.asarray(external, np.float64)
    if array.shape != (n_rows,):
        raise DataError(
            f"the ranker's scores must be one for each of the {n_rows:,} rows; found shape {array.shape}"
        )
    return array
