"""Slices are figures of some of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.evaluation.test_metrics import case
from turncoat.errors import DataError
from turncoat.evaluation.metrics import measure, or_none
from turncoat.evaluation.slices import SLICE_METRICS, by_group, by_history, by_scenario


def test_history_is_cut_at_the_2nd_5th_and_20th_transaction() -> None:
    judged = case(0)
    seen = np.random.default_rng(0).integers(0, 30, len(judged))
    table = by_history(judged, seen, "variational")
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
        assert (row.rows, row.frauds) == (mask.sum(), judged.labels[mask].sum())
        assert row.figures == measure(judged.take(mask), SLICE_METRICS)
    assert sum(row.rows for row in table.rows) == len(judged)


def test_groups_hold_their_rows_in_the_order_of_their_labels() -> None:
    judged = case(1)
    channels = np.random.default_rng(1).choice(["web", "shop", "phone"], len(judged))
    table = by_group(
        judged,
        channels,
        {"web": "on the web", "phone": "by phone", "fax": "by fax"},
        "by channel",
        "any",
    )
    assert [row.label for row in table.rows] == ["on the web", "by phone", "by fax"]
    assert [row.rows for row in table.rows] == [
        (channels == "web").sum(),
        (channels == "phone").sum(),
        0,
    ]
    assert table.rows[0].figures == measure(judged.take(channels == "web"), SLICE_METRICS)
    assert set(table.rows[2].figures.values()) == {None}
    assert table.title == "by channel"


def test_a_scenario_is_its_frauds_among_all_genuine_rows() -> None:
    judged = case(2)
    scenarios = judged.labels * np.random.default_rng(2).integers(1, 4, len(judged))
    table = by_scenario(
        judged, scenarios, {1: "large amount", 2: "terminal", 3: "card", 4: "unheard of"}, "any"
    )
    n_genuine = (judged.labels == 0).sum()
    for number, row in enumerate(table.rows, start=1):
        frauds = (scenarios == number).sum()
        assert (row.rows, row.frauds) == (n_genuine + frauds, frauds)
        expected = measure(judged.take((scenarios == 0) | (scenarios == number)), SLICE_METRICS)
        assert row.figures == {name: or_none(figure) for name, figure in expected.items()}
    assert table.rows[3].figures["auroc"] is None
    assert table.rows[3].figures["brier"] is not None
    assert sum(row.frauds for row in table.rows) == judged.n_frauds


def test_impossible_groups_are_refused() -> None:
    judged = case(3, n_rows=4)
    with pytest.raises(DataError, match="seen must have one entry for each of the 4 judged rows"):
        by_history(judged, [0, 1], "any")
    for seen in ([0, 1, 2, -1], [0.0, 1.0, 2.0, 3.0]):
        with pytest.raises(DataError, match="seen must be counts of earlier transactions"):
            by_history(judged, seen, "any")
    with pytest.raises(DataError, match="groups must have one entry"):
        by_group(judged, ["a"], {"a": "a"}, "by letter", "any")
    with pytest.raises(DataError, match="scenarios must have one entry"):
        by_scenario(judged, [1], {1: "one"}, "any")
