"""Slices are figures of some of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.evaluation.samples import make_scored
from turncoat.errors import DataError
from turncoat.evaluation.metrics import (
    SLICE_METRICS,
    measure,
    or_none,
    slice_by_history,
    slice_by_scenario,
)


def test_history_is_cut_at_the_2nd_5th_and_20th_transaction() -> None:
    scored = make_scored(0)
    seen = np.random.default_rng(0).integers(0, 30, len(scored))
    table = slice_by_history(scored, seen, "variational")
    assert (table.title, table.candidate) == ("by length of history", "variational")
    nth = seen + 1
    masks = {
        "first": nth == 1,
        "2nd to 4th": (nth >= 2) & (nth <= 4),
        "5th to 19th": (nth >= 5) & (nth <= 19),
        "20th and later": nth >= 20,
    }
    assert [row.label for row in table.rows] == list(masks)
    for row, mask in zip(table.rows, masks.values(), strict=True):
        assert (row.n_rows, row.n_frauds) == (mask.sum(), scored.labels[mask].sum())
        assert row.metrics == measure(scored.take(mask), SLICE_METRICS)
    assert sum(row.n_rows for row in table.rows) == len(scored)


def test_a_scenario_is_its_frauds_among_all_genuine_rows() -> None:
    scored = make_scored(2)
    scenarios = scored.labels * np.random.default_rng(2).integers(1, 4, len(scored))
    table = slice_by_scenario(
        scored, scenarios, {1: "large amount", 2: "terminal", 3: "card", 4: "unheard of"}, "any"
    )
    n_genuine = (scored.labels == 0).sum()
    for number, row in enumerate(table.rows, start=1):
        frauds = (scenarios == number).sum()
        assert (row.n_rows, row.n_frauds) == (n_genuine + frauds, frauds)
        expected = measure(scored.take((scenarios == 0) | (scenarios == number)), SLICE_METRICS)
        assert row.metrics == {name: or_none(figure) for name, figure in expected.items()}
    assert table.rows[3].metrics["auroc"] is None
    assert table.rows[3].metrics["brier"] is not None
    assert sum(row.n_frauds for row in table.rows) == scored.n_frauds


def test_impossible_groups_are_refused() -> None:
    scored = make_scored(3, n_rows=4)
    with pytest.raises(
        DataError, match="n_earlier must have one entry for each of the 4 scored rows"
    ):
        slice_by_history(scored, [0, 1], "any")
    for seen in ([0, 1, 2, -1], [0.0, 1.0, 2.0, 3.0]):
        with pytest.raises(DataError, match="n_earlier must count earlier transactions"):
            slice_by_history(scored, seen, "any")
    with pytest.raises(DataError, match="scenarios must have one entry"):
        slice_by_scenario(scored, [1], {1: "one"}, "any")
