"""The panel: what it keeps, what it refuses, how it slices."""

from __future__ import annotations

import numpy as np
import pytest

from turncoat import DataError, Panel

CELLS = np.arange(12.0).reshape(6, 2)
CODES = np.array([[0, 1], [1, 0], [-1, 2], [0, 0], [1, 1], [0, 2]])


def test_keeps_arrays_as_given_without_copying() -> None:
    cells, codes = CELLS.astype(np.float32), CODES.astype(np.int8)
    panel = Panel.from_arrays(cells, codes, lengths=[2, 4])
    assert np.shares_memory(panel.continuous, cells)
    assert np.shares_memory(panel.categorical, codes)
    assert Panel.from_arrays(CELLS).continuous.dtype == np.float64
    assert (panel.n_rows, panel.n_sequences, panel.n_continuous, panel.n_categorical) == (
        6,
        2,
        2,
        2,
    )
    assert panel.n_categories == (2, 3)
    assert panel.nbytes == cells.nbytes + codes.nbytes
    assert "6 rows in 2 sequences" in repr(panel)


@pytest.mark.parametrize(
    ("size", "kind"),
    [(2, np.int8), (128, np.int8), (129, np.int16), (32768, np.int16), (32769, np.int32)],
)
def test_codes_take_the_smallest_type(size: int, kind: type) -> None:
    panel = Panel.from_arrays(categorical=[[0], [size - 1]])
    assert panel.categorical.dtype == kind
    assert panel.n_categories == (size,)
    assert panel.categorical[1, 0] == size - 1


def test_integers_and_half_precision_become_floats() -> None:
    assert Panel.from_arrays([[1], [2]]).continuous.dtype == np.float64
    assert Panel.from_arrays(np.ones((2, 1), np.float16)).continuous.dtype == np.float32
    assert Panel.from_arrays(categorical=np.array([[True], [False]])).categorical.dtype == np.int8


def test_missing_values_are_noted_per_column() -> None:
    cells = CELLS.copy()
    cells[3, 1] = np.nan
    panel = Panel.from_arrays(cells, CODES)
    np.testing.assert_array_equal(panel.missing_cells, [False, True])
    np.testing.assert_array_equal(panel.missing_codes, [True, False])


def test_sequences_from_customer_keys() -> None:
    panel = Panel.from_arrays(
        CELLS, customers=["a", "a", "c", "b", "b", "b"], times=[1, 2, 1, 5, 5, 9], ids=np.arange(6)
    )
    np.testing.assert_array_equal(panel.offsets, [0, 2, 3, 6])
    np.testing.assert_array_equal(panel.customers, ["a", "c", "b"])
    assert len(list(panel)) == 3


def test_slices_share_memory_and_lists_copy() -> None:
    panel = Panel.from_arrays(
        CELLS,
        CODES,
        lengths=[1, 2, 3],
        labels=[0, 1, 0, 0, 1, -1],
        customers=[7, 8, 9],
        ids=list("abcdef"),
    )
    middle = panel[1:]
    assert np.shares_memory(middle.continuous, panel.continuous)
    np.testing.assert_array_equal(middle.offsets, [0, 2, 5])
    np.testing.assert_array_equal(middle.customers, [8, 9])
    np.testing.assert_array_equal(middle.ids, list("bcdef"))
    assert middle.n_categories == panel.n_categories
    last = panel[-1]
    np.testing.assert_array_equal(last.continuous, CELLS[3:])
    mixed = panel[[2, 0]]
    np.testing.assert_array_equal(mixed.continuous, CELLS[[3, 4, 5, 0]])
    np.testing.assert_array_equal(mixed.labels, [0, 1, -1, 0])
    np.testing.assert_array_equal(mixed.customers, [9, 7])
    np.testing.assert_array_equal(panel[np.array([True, False, True])].offsets, [0, 1, 4])
    np.testing.assert_array_equal(panel[::-2].continuous, CELLS[[3, 4, 5, 0]])


@pytest.mark.parametrize("which", [slice(2, 2), [], np.zeros(3, bool)])
def test_an_empty_slice_is_refused(which: object) -> None:
    with pytest.raises(DataError, match="at least one sequence"):
        Panel.from_arrays(CELLS, lengths=[1, 2, 3])[which]


def test_a_sequence_out_of_range() -> None:
    with pytest.raises(IndexError):
        Panel.from_arrays(CELLS)[1]


def test_negative_numbers_count_from_the_end() -> None:
    panel = Panel.from_arrays(np.arange(6.0)[:, None], lengths=[1, 2, 3])
    np.testing.assert_array_equal(panel[[-2]].continuous[:, 0], [1, 2])
    np.testing.assert_array_equal(panel[[-1, 0]].continuous[:, 0], [3, 4, 5, 0])
    for wrong in ([3], [-4]):
        with pytest.raises(IndexError, match="of 3"):
            panel[wrong]
    with pytest.raises(DataError, match="whole numbers or a mask"):
        panel[[0.5]]


REFUSALS = {
    "nothing": ({}, "neither was given"),
    "no rows": ({"continuous": np.empty((0, 2))}, "no rows"),
    "no columns": ({"continuous": np.empty((3, 0))}, "no columns"),
    "one dimension": ({"continuous": [1.0, 2.0]}, r"table \[rows, columns\]"),
    "text": ({"continuous": [["a"], ["b"]]}, "must hold numbers"),
    "infinite": ({"continuous": [[1.0, 2.0], [3.0, np.inf]]}, "row 1, column 1: found inf"),
    "minus infinite": ({"continuous": np.full((9000, 1), -np.inf)}, "row 0, column 0: found -inf"),
    "enormous": ({"continuous": [[1e16]]}, "row 0, column 0: found 1e"),
    "float codes": ({"categorical": [[1.0]]}, "integer codes"),
    "negative code": ({"categorical": [[0], [-2]]}, "row 1, column 0: found code -2"),
    "code out of range": (
        {"categorical": [[0, 0], [0, 3]], "n_categories": [1, 3]},
        "row 1, column 1: found code 3",
    ),
    "sizes without codes": ({"continuous": CELLS, "n_categories": [2]}, "categorical is not"),
    "wrong number of sizes": ({"categorical": CODES, "n_categories": [2]}, "1 entries for 2"),
    "zero size": ({"categorical": CODES, "n_categories": [0, 3]}, "at least 1"),
    "rows disagree": (
        {"continuous": CELLS, "categorical": CODES[:3]},
        "6 rows but categorical has 3",
    ),
    "lengths fall short": (
        {"continuous": CELLS, "lengths": [2, 3]},
        "add up to 5 rows but the panel has 6",
    ),
    "lengths that overflow": (
        {"continuous": CELLS, "lengths": np.array([2**62] * 4 + [6])},
        "add up to 18446744073709551622 rows",
    ),
    "codes that overflow": (
        {"categorical": np.array([[0], [2**63]], np.uint64), "n_categories": [5]},
        "row 1, column 0",
    ),
    "identifiers as codes": (
        {"categorical": [[0], [123456789]]},
        "row 1, column 0: found code 123456789",
    ),
    "ragged table": ({"continuous": [[1.0], [1.0, 2.0]]}, "rows of equal length"),
    "customers of mixed types": (
        {"continuous": CELLS, "customers": np.array([1, "a", 2, "b", 3, "c"], object)},
        "of one type",
    ),
    "ids of mixed types": (
        {"continuous": CELLS, "ids": np.array([1, "a", 2, "b", 3, "c"], object)},
        "of one type",
    ),
    "zero length": ({"continuous": CELLS, "lengths": [6, 0]}, "sequence 1 has length 0"),
    "lengths of a wrong type": ({"continuous": CELLS, "lengths": [2.5, 3.5]}, "whole numbers"),
    "customers per sequence": (
        {"continuous": CELLS, "lengths": [2, 4], "customers": [1]},
        "one key per sequence",
    ),
    "customer twice": (
        {"continuous": CELLS, "lengths": [2, 4], "customers": [1, 1]},
        "sequence 0 and again at sequence 1",
    ),
    "customers per row": ({"continuous": CELLS, "customers": [1, 2]}, "one key per row"),
    "customer comes back": (
        {"continuous": CELLS, "customers": [1, 1, 2, 2, 1, 1]},
        "row 4: customer .*1.* appears again",
    ),
    "label": ({"continuous": CELLS, "labels": [0, 1, 2, 0, 0, 0]}, "row 2: found 2"),
    "label missing": ({"continuous": CELLS, "labels": [0, 1, np.nan, 0, 0, 0]}, "row 2: found nan"),
    "labels as text": ({"continuous": CELLS, "labels": list("010101")}, "labels must be 0, 1"),
    "labels too few": ({"continuous": CELLS, "labels": [0]}, "one entry per row"),
    "time goes back": (
        {"continuous": CELLS, "lengths": [3, 3], "times": [1, 2, 3, 5, 4, 6]},
        "row 4: 4 comes after 5",
    ),
    "time missing": ({"continuous": CELLS, "times": [1, 2, np.nan, 5, 6, 7]}, "row 2"),
    "times as text": ({"continuous": CELLS, "times": list("abcdef")}, "numbers or dates"),
    "id twice": ({"continuous": CELLS, "ids": [1, 2, 3, 4, 2, 6]}, "row 1 and again at row 4"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refuses_and_says_where(name: str) -> None:
    arguments, message = REFUSALS[name]
    with pytest.raises(DataError, match=message):
        Panel.from_arrays(**arguments)


def test_times_may_start_over_with_each_customer() -> None:
    panel = Panel.from_arrays(
        CELLS, lengths=[3, 3], times=np.array([5, 6, 7, 1, 1, 2], dtype="datetime64[s]")
    )
    assert panel.times is not None


def test_joined_panels_are_the_panel() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 20)
    n = int(lengths.sum())
    cells, codes = rng.normal(size=(n, 2)), rng.integers(-1, 3, (n, 2))
    cells[rng.random(cells.shape) < 0.1] = np.nan
    rows = {"times": np.arange(n), "ids": np.arange(n), "labels": np.arange(n) % 2}
    panel = Panel.from_arrays(cells, codes, lengths, customers=np.arange(20), **rows)
    joined = Panel.join(list(panel))
    names = ("continuous", "categorical", "offsets", "missing_cells", "missing_codes", "customers")
    for name in (*names, *rows):
        np.testing.assert_array_equal(getattr(joined, name), getattr(panel, name), err_msg=name)
        assert getattr(joined, name).dtype == getattr(panel, name).dtype
    assert joined.n_categories == panel.n_categories
    order = rng.permutation(20)
    shuffled, expected = Panel.join([panel[int(u)] for u in order]), panel[order]
    np.testing.assert_array_equal(shuffled.ids, expected.ids)
    np.testing.assert_array_equal(shuffled.offsets, expected.offsets)
