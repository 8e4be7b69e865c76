"""Categories into codes: frequent, rare, unseen, missing, in any spelling."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turncoat.data.categories import CategoryColumn, normalize_category
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.features import Features
from turncoat.features.vocabulary import Vocabulary, encode_rows

SCHEMA = Schema(customer="who", time="at", categorical=("g",))


def fitted(values: list[Any], min_count: int = 1, max_categories: int = 100) -> Vocabulary:
    return Vocabulary.fit(
        CategoryColumn.encode(pl.Series(values)), np.arange(len(values)), min_count, max_categories
    )


def file_of(values: Any) -> pl.DataFrame:
    column = pl.Series("g", values)
    return pl.DataFrame(
        {"who": np.arange(len(column)) % 3, "at": np.arange(len(column)), "g": column}
    )


def test_frequent_rare_unseen_and_missing() -> None:
    vocabulary = fitted(
        ["a"] * 5 + ["b"] * 3 + ["c"] * 2 + ["d"] + [None] * 9, min_count=2, max_categories=2
    )
    assert vocabulary == Vocabulary(frequent=("a", "b"), rare=("c", "d"))
    assert vocabulary.size == 4
    codes = {"a": 0, "b": 1, "c": 2, "d": 2, "z": 3, None: -1, "": -1, float("nan"): -1}
    assert {value: vocabulary.code(value) for value in codes} == codes
    assert encode_rows([vocabulary] * len(codes), [list(codes)])[0] == list(codes.values())


def test_min_count_and_max_categories() -> None:
    values = ["a"] * 3 + ["b"] * 2 + ["c"] * 2 + ["d"]
    assert fitted(values, min_count=2).frequent == ("a", "b", "c")
    assert fitted(values, min_count=3).frequent == ("a",)
    assert fitted(values, min_count=4).frequent == ()
    assert fitted(values, max_categories=1).frequent == ("a",)
    assert fitted(values, max_categories=2) == Vocabulary(("a", "b"), ("c", "d"))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "b", "é", "東", "07", "7", None]), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
    st.integers(1, 3),
)
def test_by_number_and_then_by_name_whatever_the_order_of_rows(
    values: list[str | None], random: Any, max_categories: int
) -> None:
    counts = Counter(value for value in values if value is not None)
    ranked = sorted(counts, key=lambda name: (-counts[name], name))
    frequent = [name for name in ranked if counts[name] >= 2][:max_categories]
    expected = Vocabulary(tuple(frequent), tuple(sorted(set(counts) - set(frequent))))
    shuffled = random.sample(values, len(values))
    for column in (values, shuffled):
        named = CategoryColumn.encode(pl.Series(column, dtype=pl.String))
        assert Vocabulary.fit(named, np.arange(len(column)), 2, max_categories) == expected


def test_only_rows_in_the_fit_count() -> None:
    named = CategoryColumn.encode(pl.Series(["a", "b", "b", "c"]))
    assert Vocabulary.fit(named, np.array([0, 3]), 1, 10) == Vocabulary(("a", "c"), ())


SPELLINGS = [
    404,
    404.0,
    "404",
    "404.0",
    "404.00",
    np.int64(404),
    np.float32(404),
    np.str_("404"),
    Decimal("404"),
    Decimal("404.0"),
]


@pytest.mark.parametrize(
    "column",
    [[404, 7], [404.0, 7.0], ["404", "7"], ["404.0", "7.0"]],
    ids=["int", "float", "text", "text floats"],
)
def test_one_name_for_a_number_however_it_is_spelled(column: list[Any]) -> None:
    vocabulary = fitted(column * 2)
    assert vocabulary.frequent == ("404", "7")
    for value in SPELLINGS:
        assert vocabulary.code(value) == 0, repr(value)
        assert encode_rows([vocabulary], [[value]])[0] == [0], repr(value)
    assert encode_rows([vocabulary] * 3, [["0404", "404.5", 404.5]])[0] == [3, 3, 3]
    ones = fitted([1, 0] * 3)
    for value in (True, np.True_, [1], 1):
        assert encode_rows([vocabulary, ones], [[404, value]])[0] == [0, ones.code(value)]


@pytest.mark.parametrize("truth", [True, np.True_, np.bool_(True), "true", "True", "TRUE"])
def test_true_is_not_one(truth: Any) -> None:
    numbers, truths = fitted([1, 0]), fitted([True, False])
    assert encode_rows([truths], [[truth]])[0] == [truths.frequent.index("true")]
    assert encode_rows([numbers], [[truth]])[0] == [3]
    assert encode_rows([numbers], [[1]])[0] == [numbers.frequent.index("1")]
    assert encode_rows([truths], [[1]])[0] == [3]


ODD_NAMES = [
    "²",
    "③",
    "--5",
    "-",
    "-0",
    "+7",
    "٣",
    "9" * 5000,
    "-" + "9" * 30,
    "1_000",
    " 7",
    "7 ",
    "0x10",
    "1e3",
    "½",
    "007",
    "-007",
    "é",
    "e\u0301",
]


def test_categories_that_look_like_numbers() -> None:
    vocabulary = fitted(ODD_NAMES)
    assert len(vocabulary.frequent) == len(ODD_NAMES)
    for name in ODD_NAMES:
        assert vocabulary.frequent[vocabulary.code(name)] == normalize_category(name)
    assert encode_rows([vocabulary] * len(ODD_NAMES), [ODD_NAMES])[0] == [
        vocabulary.code(name) for name in ODD_NAMES
    ]
    assert encode_rows([vocabulary] * 5, [[7, 5, 1000, 16, 3]])[0] == [len(ODD_NAMES) + 1] * 5
    assert vocabulary.frequent[vocabulary.code(0)] == "0"


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.sampled_from(
        [
            1.0,
            -0.0,
            2.5,
            1e22,
            np.float32(0.1),
            np.int8(1),
            np.bool_(False),
            Decimal("1.50"),
            [1],
            {"a": 1},
            (1,),
        ]
    ),
    st.text(max_size=4),
    st.sampled_from(["1", "1.0", "-1", "true", "a", "2.5", "--1", "¹"]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(values, min_size=1, max_size=6), st.lists(values, min_size=0, max_size=8))
def test_the_fast_way_to_codes_is_the_plain_way(asked: list[Any], seen: list[Any]) -> None:
    names = tuple(
        dict.fromkeys(text for value in seen if (text := normalize_category(value)) is not None)
    )
    vocabulary = Vocabulary(names[::2], names[1::2])
    every = [*names[::2]]

    def plain(value: Any) -> int:
        text = normalize_category(value)
        if text is None:
            return -1
        return every.index(text) if text in every else len(every) + (text not in names)

    assert encode_rows([vocabulary] * len(asked), [asked])[0] == [plain(value) for value in asked]


@pytest.mark.parametrize("max_categories", [1, 126, 127, 128, 1000])
def test_the_panel_knows_the_number_of_codes(max_categories: int) -> None:
    many = [f"n{k}" for k in range(300)]
    frame = file_of(many * 2)
    transactions = read(frame, SCHEMA)
    features = Features("processed", min_count=2, max_categories=max_categories).fit(transactions)
    panel = features.transform(transactions)
    n_frequent = min(max_categories, 300)
    assert panel.n_categories == (n_frequent + 2,)
    assert panel.categorical.dtype == (np.int8 if n_frequent + 2 <= 128 else np.int16)
    assert panel.categorical.max() == (n_frequent if n_frequent < 300 else 299)
    unseen = features.step(None, {"at": 0, "g": "never"})[1].categorical
    assert unseen.dtype == panel.categorical.dtype
    assert unseen.tolist() == [n_frequent + 1]
    later = features.transform(read(file_of(["never", "n0", None]), SCHEMA))
    np.testing.assert_array_equal(
        later.categorical[:, 0], [n_frequent + 1, features.plan_.vocabularies[0].code("n0"), -1]
    )
    assert later.n_categories == panel.n_categories


def test_very_many_categories() -> None:
    n = 40_000
    frame = file_of([f"näme {k}" for k in range(n)])
    transactions = read(frame, SCHEMA)
    features = Features("processed", min_count=1, max_categories=35_000).fit(transactions)
    panel = features.transform(transactions)
    assert panel.n_categories == (35_002,)
    assert panel.categorical.dtype == np.int32
    assert np.bincount(panel.categorical[:, 0]).tolist() == [1] * 35_000 + [5_000]
    assert features.step(None, {"at": 0, "g": "näme 7"})[1].categorical[
        0
    ] == features.plan_.vocabularies[0].code("näme 7")
