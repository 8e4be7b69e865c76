"""Categories: one spelling for each value, whatever the column's type."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncoat.data.categories import CategoryColumn, join_key, normalize_category


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (404, "404"),
        (404.0, "404"),
        ("404", "404"),
        ("404.0", "404"),
        ("404.000", "404"),
        (Decimal("404.00"), "404"),
        (np.int64(404), "404"),
        (np.float32(404), "404"),
        ("-3.0", "-3"),
        (-0.0, "0"),
        ("-0.0", "0"),
        (Decimal("4.50"), "4.5"),
        (4.5, "4.5"),
        (Decimal("1E+3"), "1000"),
        (2**70, str(2**70)),
        (float(2**70), str(2**70)),
        ("007", "007"),
        ("4.04", "4.04"),
        ("1.0.0", "1.0.0"),
        ("v2.0", "v2.0"),
        (" a ", " a "),
        (True, "true"),
        (np.bool_(False), "false"),
        ("True", "true"),
        ("FALSE", "false"),
        (date(2024, 2, 1), "2024-02-01"),
        (float("inf"), "inf"),
        (None, None),
        ("", None),
        (float("nan"), None),
        (np.float64("nan"), None),
    ],
)
def test_one_spelling(value, text):
    assert normalize_category(value) == text


@pytest.mark.parametrize(
    "column",
    [
        pl.Series(["404", None, "7", "404"]),
        pl.Series(["404.0", "", "7.0", "404"]),
        pl.Series([404, None, 7, 404]),
        pl.Series([404, None, 7, 404], dtype=pl.UInt16),
        pl.Series([404, None, 7, 404], dtype=pl.Int128),
        pl.Series([404.0, None, 7.0, 404.0]),
        pl.Series([404.0, float("nan"), 7.0, 404.0], dtype=pl.Float32),
        pl.Series([Decimal("404.00"), None, Decimal("7"), Decimal("404")]),
        pl.Series(["404", None, "7", "404"], dtype=pl.Categorical),
        pl.Series(["404", None, "7", "404"], dtype=pl.Enum(["7", "9", "404"])),
        pl.concat([pl.Series(["404", None]), pl.Series(["7", "404"])], rechunk=False),
    ],
    ids=lambda column: str(column.dtype),
)
def test_columns_of_every_type_are_coded_alike(column):
    named = CategoryColumn.encode(column)
    np.testing.assert_array_equal(named.codes, [0, -1, 1, 0])
    assert named.codes.dtype == np.int32
    assert named.values == ("404", "7")


def test_truths_are_coded_alike():
    for column in (
        pl.Series([True, None, False]),
        pl.Series(["True", None, "FALSE"]),
        pl.Series(["true", "", "false"]),
    ):
        named = CategoryColumn.encode(column)
        assert (named.codes.tolist(), named.values) == ([0, -1, 1], ("true", "false"))


def test_empty_columns():
    assert CategoryColumn.encode(pl.Series([None, None])).codes.tolist() == [-1, -1]
    assert CategoryColumn.encode(pl.Series([None, None], dtype=pl.String)).values == ()
    assert len(CategoryColumn.encode(pl.Series([], dtype=pl.Int64)).codes) == 0


@pytest.mark.parametrize(
    "column",
    [pl.Series([[1], [2]]), pl.Series([{"a": 1}]), pl.Series([b"a"]), pl.Series([object()])],
)
def test_types_that_cannot_be_categories_are_refused(column):
    with pytest.raises(TypeError, match="cannot be categories"):
        CategoryColumn.encode(column)


parts = st.lists(
    st.text(alphabet="a|\\", min_size=1, max_size=3) | st.none(), min_size=2, max_size=2
)


@given(parts, parts)
def test_different_values_give_different_keys(left, right):
    assert (join_key(left) == join_key(right)) == (left == right)


def test_plain_keys_are_joined_plainly():
    assert join_key(["9500", "315", None]) == "9500|315|"
