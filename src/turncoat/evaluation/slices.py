"""The same metrics on some of the rows: new customers, or one kind of fraud."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.evaluation.metrics import ScoredLabels, measure, or_none
from turncoat.evaluation.results import SliceRow, SliceTable

SLICE_METRICS = ("average_precision", "auroc", "ece_mass", "brier")
# The smallest number of earlier transactions of each slice.
HISTORY = {"first": 0, "2nd to 4th": 1, "5th to 19th": 4, "20th and later": 19}


def slice_by_history(scored: ScoredLabels, n_earlier: ArrayLike, candidate: str) -> SliceTable:
    """Slices by the number of earlier transactions of the row's customer, `n_earlier` [N]."""
    counts = _check_rows("n_earlier", n_earlier, scored)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise DataError(
            "n_earlier must count earlier transactions, whole numbers from 0; "
            f"found {counts.dtype} {counts.min(initial=0)}"
        )
    slices = np.searchsorted(list(HISTORY.values()), counts, side="right") - 1
    masks = ((label, slices == s) for s, label in enumerate(HISTORY))
    return _measure_slices(scored, masks, "by length of history", candidate)


def slice_by_scenario(
    scored: ScoredLabels, scenarios: ArrayLike, labels: Mapping[Any, str], candidate: str
) -> SliceTable:
    """Slices of all genuine rows and the frauds of one scenario each.

    `scenarios` [N] says nothing about genuine rows; `labels` names the scenarios to show.
    """
    keys = _check_rows("scenarios", scenarios, scored)
    is_genuine = scored.labels == 0
    masks = ((label, is_genuine | (keys == key)) for key, label in labels.items())
    return _measure_slices(scored, masks, "by scenario", candidate)


def _check_rows(name: str, values: ArrayLike, scored: ScoredLabels) -> Array:
    array = np.asarray(values)
    if array.shape != (len(scored),):
        raise DataError(
            f"{name} must have one entry for each of the {len(scored):,} scored rows; "
            f"found shape {array.shape}"
        )
    return array


def _measure_slices(
    scored: ScoredLabels, masks: Iterable[tuple[str, Array]], title: str, candidate: str
) -> SliceTable:
    rows = []
    for label, mask in masks:
        part = scored.take(mask)
        values = measure(part, SLICE_METRICS)
        metrics = {name: or_none(value) for name, value in values.items()}
        rows.append(SliceRow(label, len(part), part.n_frauds, metrics))
    return SliceTable(title, candidate, tuple(rows))
