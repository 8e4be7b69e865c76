"""The same figures on some of the rows: how scores fare with new customers, or on one kind of fraud."""

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
HISTORY = {
    "first": 0,
    "2nd to 4th": 1,
    "5th to 19th": 4,
    "20th and later": 19,
}  # the fewest transactions before one of a slice


def by_history(judged: ScoredLabels, seen: ArrayLike, candidate: str) -> SliceTable:
    """Slices by how many transactions of its customer came before each row, `seen` [N]: 0 is the customer's first."""
    counts = _one_per_row("seen", seen, judged)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise DataError(
            f"seen must be counts of earlier transactions, whole numbers from 0; found {counts.dtype} {counts.min(initial=0)}"
        )
    slices = np.searchsorted(list(HISTORY.values()), counts, side="right") - 1
    masks = ((label, slices == s) for s, label in enumerate(HISTORY))
    return _table(judged, masks, "by length of history", candidate)


def by_group(
    judged: ScoredLabels, groups: ArrayLike, labels: Mapping[Any, str], title: str, candidate: str
) -> SliceTable:
    """Slices of rows that belong to one group each: `groups` [N], told in the order of `labels`."""
    keys = _one_per_row("groups", groups, judged)
    return _table(judged, ((label, keys == key) for key, label in labels.items()), title, candidate)


def by_scenario(
    judged: ScoredLabels,
    scenarios: ArrayLike,
    labels: Mapping[Any, str],
    candidate: str,
    title: str = "by scenario",
) -> SliceTable:
    """Slices of all genuine rows and the frauds of one scenario each: `scenarios` [N], which says nothing of genuine rows."""
    keys = _one_per_row("scenarios", scenarios, judged)
    masks = ((label, (judged.labels == 0) | (keys == key)) for key, label in labels.items())
    return _table(judged, masks, title, candidate)


def _one_per_row(name: str, values: ArrayLike, judged: ScoredLabels) -> Array:
    array = np.asarray(values)
    if array.shape != (len(judged),):
        raise DataError(
            f"{name} must have one entry for each of the {len(judged):,} judged rows; found shape {array.shape}"
        )
    return array


def _table(
    judged: ScoredLabels, masks: Iterable[tuple[str, Array]], title: str, candidate: str
) -> SliceTable:
    return SliceTable(
        title, candidate, tuple(_row(label, judged.take(mask)) for label, mask in masks)
    )


def _row(label: str, judged: ScoredLabels) -> SliceRow:
    figures = {name: or_none(figure) for name, figure in measure(judged, SLICE_METRICS).items()}
    return SliceRow(label, len(judged), judged.n_frauds, figures)
