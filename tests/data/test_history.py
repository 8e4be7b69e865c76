"""Transactions of several files as one history."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from tests.features.sample_data import SHOP, shop_frame
from turncoat import DataError
from turncoat.data import read, read_for_scoring
from turncoat.data.schema import Schema
from turncoat.data.transactions import Transactions, add_history

FRAME = shop_frame(300, 5).sort("at", "id")
NO_ID = replace(SHOP, id=None)


def tabulate(data: Transactions, schema: Schema = SHOP) -> pl.DataFrame:
    columns = {name: data.column(name) for name in (*schema.continuous, *schema.text_columns)}
    keys = np.repeat(data.keys, np.diff(data.offsets))
    own = {"key": keys, "seconds": data.times, "number": data.ids, "outcome": data.labels}
    frame = pl.DataFrame({**columns, **own}, strict=False)
    return frame.sort("key", maintain_order=True)


@pytest.mark.parametrize("cuts", [[200], [100, 200]])
def test_files_are_read_as_if_they_were_one(cuts: list[int]) -> None:
    bounds = [0, *cuts, FRAME.height]
    parts = [FRAME[a:b].sample(fraction=1.0, shuffle=True, seed=1) for a, b in pairwise(bounds)]
    *earlier, current = [read(part, SHOP) for part in parts]
    merged, rows = add_history(current, *earlier)
    assert_frame_equal(tabulate(merged), tabulate(read(FRAME, SHOP)))
    np.testing.assert_array_equal(merged.ids[rows], current.ids)
    np.testing.assert_array_equal(merged.times[rows], current.times)
    assert (np.diff(merged.customer_codes) >= 0).all()


def test_without_history_nothing_changes() -> None:
    current = read(FRAME, SHOP)
    merged, rows = add_history(current)
    assert merged is current
    np.testing.assert_array_equal(rows, np.arange(FRAME.height))


def test_a_transaction_in_both_files_counts_once_with_the_label_that_is_known() -> None:
    current = read_for_scoring(FRAME[200:].drop("fraud"), SHOP)
    merged, rows = add_history(current, read(FRAME, SHOP), read(FRAME[:50], SHOP))
    assert_frame_equal(tabulate(merged), tabulate(read(FRAME, SHOP)))
    assert len(rows) == 100


def test_a_file_without_labels_has_unknown_ones() -> None:
    current = read_for_scoring(FRAME[200:].drop("fraud"), SHOP)
    merged, rows = add_history(current, read(FRAME[:200], SHOP))
    assert merged.labels is not None
    assert (merged.labels[rows] == -1).all()
    assert (np.delete(merged.labels, rows) >= 0).all()


def test_an_id_of_another_transaction_is_refused() -> None:
    current = read(FRAME[200:], SHOP)
    moved = FRAME[:200].with_columns(id=pl.lit(FRAME["id"][250]) + pl.int_range(200) * 1000)
    with pytest.raises(DataError, match="is another customer's or of another time"):
        add_history(current, read(moved, SHOP))


def test_ids_may_be_text_in_one_file_only() -> None:
    text = FRAME[:200].with_columns(id=pl.format("x{}", "id"))
    merged, rows = add_history(read(FRAME[200:], SHOP), read(text, SHOP))
    assert merged.n_rows == 300
    assert len(rows) == 100
    assert sum(id.startswith("x") for id in merged.ids) == 200


def test_without_ids_the_history_must_end_before() -> None:
    frame = FRAME.drop("id")
    cut = int(np.searchsorted(frame["at"].to_numpy(), frame["at"][200]))  # between two times
    current, earlier = read(frame[cut:], NO_ID), read(frame[:cut], NO_ID)
    merged, rows = add_history(current, earlier)
    np.testing.assert_array_equal(merged.ids[rows], current.ids)
    assert len(np.unique(merged.ids)) == 300
    assert (np.delete(merged.ids, rows) < 0).all()
    with pytest.raises(DataError, match="this history overlaps"):
        add_history(current, read(frame[: cut + 1], NO_ID))


def test_files_of_different_schemas_are_not_mixed() -> None:
    with pytest.raises(DataError, match="Read all files with the same schema"):
        add_history(read(FRAME, SHOP), read(FRAME, NO_ID))


def test_transactions_are_numbered_by_customer() -> None:
    data = read(FRAME, SHOP)
    for code in range(data.n_customers):
        own = data.n_seen[data.offsets[code] : data.offsets[code + 1]]
        np.testing.assert_array_equal(own, np.arange(1, len(own) + 1))
