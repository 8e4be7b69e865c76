"""Scaling of continuous columns, and missing flags."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.sample_data import ieee
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.data.transactions import Transactions
from turncoat.features import Features, load_features
from turncoat.features.scaling import (
    HEAVY_KURTOSIS,
    ScaledColumns,
    Scales,
    _signed_log,
    fill_columns,
    fill_row,
)

RNG_ROWS = 4000


def signed_log(x: float | np.ndarray, unit: float) -> np.ndarray:
    return np.sign(x) * np.log1p(np.abs(x) / unit)


def file_of(**columns: object) -> Transactions:
    n = len(next(iter(columns.values())))
    frame = pl.DataFrame({"who": np.arange(n) % 7, "at": np.arange(n), **columns}, nan_to_null=True)
    return read(frame, Schema(customer="who", time="at", continuous=tuple(columns)))


@settings(max_examples=300, deadline=None)
@given(st.floats(-1e300, 1e300), st.sampled_from([1e-8, 0.3, 1.0, 7.5, 1e9]))
def test_signed_log_is_exact_to_rounding(x: float, unit: float) -> None:
    np.testing.assert_allclose(_signed_log(x, unit), signed_log(x, unit), rtol=1e-15, atol=1e-323)


def test_signed_log_at_the_edges() -> None:
    sizes = np.concatenate(
        [
            10.0 ** np.arange(-320, 308),
            np.nextafter(np.sqrt(2) ** np.arange(-8, 9), 0),
            2.0 ** np.arange(-60, 60) - 1,
        ]
    )
    for x in sizes[sizes >= 0]:
        np.testing.assert_allclose(_signed_log(x, 1.0), np.log1p(x), rtol=4e-16, atol=1e-323)
        assert _signed_log(-x, 1.0) == -_signed_log(x, 1.0)
    assert np.isnan(_signed_log(np.nan, 1.0))
    assert _signed_log(0.0, 1.0) == _signed_log(-0.0, 2.0) == 0.0
    rising = [_signed_log(x, 3.0) for x in np.linspace(-20, 20, 4001)]
    assert (np.diff(rising) > 0).all()


def kurtosis(values: np.ndarray) -> float:
    off = values - values.mean()
    return float((off**4).mean() / (off**2).mean() ** 2)


@pytest.mark.parametrize(
    ("shape", "is_heavy"),
    [
        ("normal", False),
        ("uniform", False),
        ("flags", False),
        ("lognormal", True),
        ("pareto both ways", True),
        ("rare flags", True),
    ],
)
def test_only_heavy_tails_are_logged(shape: str, is_heavy: bool) -> None:
    rng = np.random.default_rng(0)
    column = {
        "normal": rng.normal(100, 5, RNG_ROWS),
        "uniform": rng.uniform(-1, 1, RNG_ROWS),
        "flags": rng.integers(0, 2, RNG_ROWS).astype(float),
        "lognormal": rng.lognormal(3, 1.5, RNG_ROWS),
        "pareto both ways": rng.pareto(2, RNG_ROWS) * rng.choice([-1, 1], RNG_ROWS),
        "rare flags": (np.arange(RNG_ROWS) % 50 == 0).astype(float),
    }[shape]
    assert (kurtosis(column) > HEAVY_KURTOSIS) == is_heavy
    scales = Scales.fit(np.stack([column]))
    assert (scales.units[0] > 0) == is_heavy
    if is_heavy:
        np.testing.assert_allclose(scales.units[0], np.abs(column).mean(), rtol=1e-12)
    treated = signed_log(column, scales.units[0]) if is_heavy else column
    np.testing.assert_allclose(
        [scales.centres[0], scales.spreads[0]], [treated.mean(), treated.std()], rtol=1e-9
    )


def test_the_boundary_of_a_heavy_tail() -> None:
    def two_values(share: float) -> np.ndarray:  # whose kurtosis is 1 / (share (1 - share)) - 3
        return (np.arange(10_000) < share * 10_000).astype(float)

    for share, is_heavy in ((0.1, True), (0.102, False)):
        column = two_values(share)
        assert (kurtosis(column) > HEAVY_KURTOSIS) == is_heavy
        assert (Scales.fit(column[None]).units[0] > 0) == is_heavy


def test_fitted_columns_have_mean_0_and_spread_1() -> None:
    transactions = ieee().transactions
    features = Features().fit(transactions)
    cells = features.transform(transactions).continuous.astype(np.float64)
    assert cells.shape[1] > 300
    np.testing.assert_allclose(np.nanmean(cells, axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(np.nanstd(cells, axis=0), 1, atol=1e-5)


def test_constant_columns_are_dropped() -> None:
    rng = np.random.default_rng(1)
    n = 300
    lone = np.full(n, np.nan)
    lone[5] = 3.0
    rounding = 0.1 + np.where(np.arange(n) % 2, 1e-17, 0.0)
    transactions = file_of(
        steady=np.full(n, 7.0),
        empty=np.full(n, np.nan),
        lone=lone,
        rounding=1e6 + rounding,
        zeros=np.zeros(n),
        varied=rng.normal(size=n),
        holes=np.where(np.arange(n) % 3, 2.0, np.nan),
    )
    features = Features("processed").fit(transactions)
    assert features.feature_names[0] == ("varied",)
    assert features.feature_names[1] == ("no_lone", "no_holes")
    assert features.transform(transactions).n_continuous == 1


def test_a_dropped_column_stays_dropped_when_it_varies_later() -> None:
    features = Features("processed").fit(file_of(steady=np.full(50, 7.0), varied=np.arange(50.0)))
    later = features.transform(file_of(steady=np.arange(20.0), varied=np.arange(20.0)))
    assert later.n_continuous == 1
    assert np.isfinite(later.continuous).all()


@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30, 1e80, 1e150])
def test_enormous_and_tiny_columns(scale: float) -> None:
    rng = np.random.default_rng(2)
    transactions = file_of(a=rng.normal(size=500) * scale, b=rng.lognormal(0, 2, 500) * scale)
    cells = Features("processed").fit(transactions).transform(transactions).continuous
    assert cells.shape == (500, 2)
    assert np.abs(cells).max() < 30
    np.testing.assert_allclose(cells.std(axis=0), 1, rtol=1e-4)


def test_cells_near_the_largest_number_do_not_spoil_what_is_saved(tmp_path) -> None:
    column = np.linspace(1.0, 2.0, 40)
    column[::4] = 1.7e308
    features = Features("processed").fit(file_of(a=column, b=np.arange(40.0)))
    for array in (
        features.plan_.scales.units,
        features.plan_.scales.centres,
        features.plan_.scales.spreads,
    ):
        assert np.isfinite(array).all()
    features.save(tmp_path / "features")
    assert load_features(tmp_path / "features").feature_names == features.feature_names


def test_absence_stays_absent() -> None:
    column = np.where(np.arange(90) % 4, np.arange(90.0), np.nan)
    transactions = file_of(a=column)
    panel = Features("processed").fit(transactions).transform(transactions)
    np.testing.assert_array_equal(
        np.isnan(panel.continuous[:, 0]), np.isnan(column)[transactions.file_rows]
    )
    np.testing.assert_array_equal(panel.categorical[:, 0], np.isnan(column)[transactions.file_rows])


@pytest.fixture
def with_holes() -> Transactions:
    n = np.arange(120)

    def holes(every: int) -> np.ndarray:
        return np.where(n % every, n, np.nan)

    frame = pl.DataFrame(
        {
            "who": n % 5,
            "at": n,
            "a": holes(3),
            "b": holes(3),  # absent on the same rows as a
            "c": holes(4),
            "full": n * 1.0,
            "empty": np.full(120, np.nan),
            "g": np.where(n % 3, "x", ""),  # as are these names
            "h": np.where(n % 5, "x", ""),
            "k": np.full(120, "x"),
        },
        nan_to_null=True,
    )
    columns = {"continuous": ("a", "b", "c", "full", "empty"), "categorical": ("g", "h", "k")}
    return read(frame, Schema(customer="who", time="at", **columns))


@pytest.mark.parametrize(
    ("which", "flags"),
    [
        ("distinct", ["no_a", "no_c", "no_h"]),
        ("all", ["no_a", "no_b", "no_c", "no_g", "no_h"]),
        ("none", []),
    ],
)
def test_missing_flags(with_holes: Transactions, which: str, flags: list[str]) -> None:
    features = Features("processed", missing_flags=which).fit(with_holes)
    panel = features.transform(with_holes)
    assert list(features.feature_names[1]) == ["g", "h", "k", *flags]
    every = {"no_a": 3, "no_b": 3, "no_c": 4, "no_g": 3, "no_h": 5}
    for flag in flags:
        column = panel.categorical[:, features.feature_names[1].index(flag)]
        np.testing.assert_array_equal(column, with_holes.file_rows % every[flag] == 0)
    row = {"at": 0, "a": 1.0, "c": None, "h": "x"}
    found = dict(
        zip(
            features.feature_names[1], features.step(None, row)[1].categorical.tolist(), strict=True
        )
    )
    expected = {"g": -1, "h": 0, "k": -1, "no_a": 0, "no_b": 1, "no_c": 1, "no_g": 1, "no_h": 0}
    assert found == {name: expected[name] for name in features.feature_names[1]}


def test_large_fits_take_scales_from_rows_spread_over_the_whole_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from turncoat.features import features as module

    column = np.arange(1000.0)
    whole = Features("processed").fit(file_of(a=column)).plan_.scales
    monkeypatch.setattr(module, "_SAMPLE_ROWS", 100)
    sampled = Features("processed").fit(file_of(a=column)).plan_.scales
    assert sampled.centres[0] != whole.centres[0]
    np.testing.assert_allclose(
        [sampled.centres[0], sampled.spreads[0]], [whole.centres[0], whole.spreads[0]], rtol=0.03
    )


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(allow_infinity=False), st.sampled_from([0.0, 1e-8, 0.3, 1e9]), st.booleans()
        ),
        max_size=40,
    )
)
def test_a_row_alone_has_the_bits_of_one_among_many(
    columns: list[tuple[float, float, bool]],
) -> None:
    """Logged or not, left out or kept, missing or not; every other column has a missing flag."""
    n = len(columns)
    cells, units = (np.array([column[i] for column in columns], np.float64) for i in range(2))
    kept = np.array([column[2] for column in columns], bool)
    scale = (units, np.linspace(-1, 1, n), np.where(kept, np.linspace(0.1, 3, n), 0.0))
    places, flags = (
        np.where(kept, np.cumsum(kept) - 1, -1),
        np.where(np.arange(n) % 2, np.arange(n) // 2, -1),
    )
    many = np.zeros((3, n), np.float32), np.zeros((3, n), np.int8), np.zeros(3, np.int32)
    layout = ScaledColumns(Scales(*scale), places, flags)
    repeated = np.repeat(cells[:, None], 3, axis=1)
    fill_columns(repeated, np.arange(3), layout, many[:2], many[2])
    one = np.zeros(n, np.float32), np.zeros(n, np.int8)
    assert fill_row(cells, layout, *one) == many[2][1] == np.isnan(cells).sum()
    np.testing.assert_array_equal(one[0].view(np.int32), many[0][1].view(np.int32))
    np.testing.assert_array_equal(one[1], many[1][1])
