"""The same figures on some of the rows: how scores fare with new customers, or on one kind of fraud."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.evaluation.metrics import Judged, measure, or_none
from turncoat.evaluation.results import SliceRow, SliceTable

SLICE_METRICS = ("average_precision", "auroc", "ece_mass", "brier")
HISTORY = {
    "first": 0,
    "2nd to 4th": 1,
    "5th to 19th": 4,
    "20th and later": 19,
}  # the fewest transactions before one of a slice


def by_history(judged: Judged, seen: ArrayLike, contestant: str) -> SliceTable:
    """Slices by how many transactions of its customer came before each row, `seen` [N]: 0 is the customer's first."""
    counts = _one_per_row("seen", seen, judged)
    if counts.dtype.kind not in "iu" or (counts < 0).any():
        raise DataError(
            f"seen must be counts of earlier transactions, whole numbers from 0; found {counts.dtype} {counts.min(initial=0)}"
        )
    slices = np.searchsorted(list(HISTORY.values()), counts, side="right") - 1
    masks = ((label, slices == s) for s, label in enumerate(HISTORY))
    return _table(judged, masks, "by length of history", contestant)


def by_group(
    judged: Judged, groups: ArrayLike, labels: Mapping[Any, str], title: str, contestant: str
) -> SliceTable:
    """Slices of rows that belong to one group each: `groups` [N], told in the order of `labels`."""
    keys = _one_per_row("groups", groups, judged)
    return _table(
        judged, ((label, keys == key) for key, label in labels.items()), title, contestant
    )


def by_scenario(
    judged: Judged,
    scenarios: ArrayLike,
    labels: Mapping[Any, str],
    contestant: str,
    title: str = "by scenario",
) -> SliceTable:
    """Slices of all genuine rows and the frauds of one scenario each: `scenarios` [N], which says nothing of genuine rows."""
    keys = _one_per_row("scenarios", scenarios, judged)
    masks = ((label, (judged.labels == 0) | (keys == key)) for key, label in labels.items())
    return _table(judged, masks, title, contestant)


def _one_per_row(name: str, values: ArrayLike, judged: Judged) -> Array:
    array = np.asarray(values)
    if array.shape != (len(judged),):
        raise DataError(
            f"{name} must have one entry for each of the {len(judged):,} judged rows; found shape {array.shape}"
        )
    return array


def _table(
    judged: Judged, masks: Iterable[tuple[str, Array]], title: str, contestant: str
) -> SliceTable:
    return SliceTable(
        title, contestant, tuple(_row(label, judged.take(mask)) for label, mask in masks)
    )


def _row(label: str, judged: Judged) -> SliceRow:
    figures = {name: or_none(figure) for name, figure in measure(judged, SLICE_METRICS).items()}
    return SliceRow(label, len(judged), judged.n_frauds, figures)
