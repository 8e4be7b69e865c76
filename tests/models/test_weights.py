"""Weights of columns: in scoring, in the fit (weight 0), and what a model refuses."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tests.reference.bridge import QUIET, arrays_of, panel_of
from tests.reference.columns import column_terms, log_chain, weighted_emission
from tests.reference.logdomain import forward_backward, viterbi
from tests.reference.problems import random_problem
from turncoat import (
    BaumWelchHMM,
    ConfigError,
    DataError,
    HMMParams,
    NeuralVariationalHMM,
    Panel,
    VariationalHMM,
    VariationalParams,
    load_model,
)

N_CELLS, SIZES = 4, (2, 4, 3)
WEIGHTS = [0.7, 0.0, 1.6, 0.0, 0.0, 0.4, 1.2]
USED = np.array(WEIGHTS) > 0
KINDS = ("point", "expected-log", "predictive", "robust")
kinds = pytest.mark.parametrize("kind", KINDS)


def new_model(kind: str, weights: Any = None, **settings: Any) -> Any:
    settings = {**QUIET, "max_iter": 12, "weights": weights, **settings}
    return (
        BaumWelchHMM(3, **settings)
        if kind == "point"
        else VariationalHMM(3, emission=kind, **settings)
    )


@cache
def wide_panel() -> Panel:
    """Four continuous and three categorical columns, with missing values in all of them."""
    return panel_of(random_problem(4, 3, N_CELLS, SIZES, [12, 1, 9, 25, 3] * 4, missing=0.15))


@cache
def narrow_panel() -> Panel:
    """The used columns alone."""
    panel = wide_panel()
    return Panel.from_arrays(
        panel.continuous[:, USED[:N_CELLS]],
        panel.categorical[:, USED[N_CELLS:]],
        lengths=panel.lengths,
        n_categories=np.array(SIZES)[USED[N_CELLS:]],
    )


@cache
def wide_model(kind: str) -> Any:
    return new_model(kind, WEIGHTS).fit(wide_panel())


@cache
def narrow_model(kind: str) -> Any:
    return new_model(kind, np.array(WEIGHTS)[USED].tolist()).fit(narrow_panel())


def answers(model: Any, panel: Panel) -> dict[str, Any]:
    """All that a model says about a panel, but for terms of columns."""
    filtered = model.filter(panel)
    n_rows = min(panel.n_rows, 40)
    previous = np.arange(-1, n_rows - 1)
    new = np.zeros((n_rows, 3)), np.zeros(n_rows, bool)
    rows = panel.continuous[:n_rows], panel.categorical[:n_rows]
    return {
        "filter": filtered.probs,
        "likelihood at the weights": filtered.log_likelihood,
        "smooth": model.smooth(panel).probs,
        "decode": model.decode(panel),
        "log_likelihood": model.log_likelihood(panel),
        "bic": model.bic(panel),
        "without chain": model.infer_without_chain(panel, [0.2, 0.5, 0.3]).probs,
        "step_batch": model.step_batch(*new, *rows, previous)[2],
        "log_emission": model.log_emission(*rows),
    }


def terms(model: Any, panel: Panel) -> list[Any]:
    """Terms of every column, in the log emission and in the log odds of each state."""
    rows = panel.continuous[:40], panel.categorical[:40]
    before = np.random.default_rng(0).normal(size=(len(rows[0]), 3))
    odds = [model.explain_log_odds(state, before, *rows) for state in range(3)]
    parts = [model.explain_emission(*rows)[:2], *((odd.cells, odd.codes) for odd in odds)]
    return [np.concatenate(part, axis=-1) for part in parts]


def assert_same(found: dict[str, Any], expected: dict[str, Any], **tolerance: float) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, **tolerance, err_msg=name)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@kinds
def test_inference_is_the_recursion_on_weighted_terms(kind: str, precision: str) -> None:
    panel = wide_panel()
    model = wide_model(kind).copy_with(precision=precision, temperature=1.3)
    initial, transition = log_chain(model)
    emission = weighted_emission(model, panel.continuous, panel.categorical)
    parts = np.split(emission, panel.offsets[1:-1])
    expected = [forward_backward(initial, transition, part) for part in parts]
    filtered, atol = model.filter(panel), 1e-10 if precision == "float64" else 2e-5
    for found, name in ((filtered, "filtered"), (model.smooth(panel), "smoothed")):
        rows = np.concatenate([getattr(each, name) for each in expected])
        np.testing.assert_allclose(found.probs, rows, atol=atol)
    likelihoods = [each.log_likelihood for each in expected]
    np.testing.assert_allclose(filtered.log_likelihood, likelihoods, rtol=atol, atol=atol)
    if precision == "float64":
        path = np.concatenate([viterbi(initial, transition, part) for part in parts])
        np.testing.assert_array_equal(model.decode(panel), path)
    for start, stop in pairwise(panel.offsets):
        belief = None
        for row in range(start, stop):
            belief = model.step(belief, panel.continuous[row], panel.categorical[row])
            np.testing.assert_allclose(belief, filtered.probs[row], atol=atol)


@kinds
def test_terms_of_columns_are_weighted(kind: str) -> None:
    panel, model = wide_panel(), wide_model(kind)
    expected = column_terms(model, panel.continuous[:40], panel.categorical[:40]) * WEIGHTS
    emission, *odds = terms(model, panel)
    np.testing.assert_allclose(emission, expected, rtol=1e-10, atol=1e-10)
    for state, found in enumerate(odds):
        rivals = [np.abs(found - expected[:, state] + expected[:, k]).max(axis=1) for k in range(3)]
        assert (np.delete(rivals, state, axis=0).min(axis=0) < 1e-9).all()
    assert all((found[..., ~USED] == 0.0).all() for found in (emission, *odds))


@kinds
def test_equal_weights_are_a_temperature(kind: str) -> None:
    panel, plain = wide_panel(), new_model(kind).fit(wide_panel())
    weighted, hot = plain.copy_with(weights=[0.4] * 7), plain.copy_with(temperature=2.5)
    assert_same(answers(weighted, panel), answers(hot, panel), rtol=1e-9, atol=1e-12)
    assert not np.allclose(weighted.filter(panel).probs, plain.filter(panel).probs, atol=0.01)
    ones = plain.copy_with(weights=[1] * 7)
    np.testing.assert_array_equal(ones.filter(panel).probs, plain.filter(panel).probs)


@kinds
def test_columns_of_weight_0_take_no_part_in_the_fit(kind: str) -> None:
    wide, narrow = wide_model(kind), narrow_model(kind)
    assert wide.fit_report_.history == narrow.fit_report_.history
    assert wide.get_input_columns() == (N_CELLS, SIZES)
    names = [field.name for field in fields(wide.params_)]
    for name in names[:-1]:
        found, expected = getattr(wide.params_, name), getattr(narrow.params_, name)
        if found.shape[-1] == N_CELLS:
            found = found[:, USED[:N_CELLS]]
        np.testing.assert_array_equal(found, expected, err_msg=name)
    tables = [getattr(wide.params_, names[-1])[j] for j in np.flatnonzero(USED[N_CELLS:])]
    for found, expected in zip(tables, getattr(narrow.params_, names[-1]), strict=True):
        np.testing.assert_array_equal(found, expected)


@kinds
def test_a_fit_starts_from_parameters_of_all_columns(kind: str) -> None:
    init = new_model(kind, max_iter=3).fit(wide_panel()).params_
    wide = new_model(kind, WEIGHTS, init=init).fit(wide_panel())
    narrow = new_model(kind, init=init.take_columns(USED)).fit(narrow_panel())
    assert wide.fit_report_.history == narrow.fit_report_.history
    for found, expected in zip(
        arrays_of(wide.params_.take_columns(USED)), arrays_of(narrow.params_), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@kinds
def test_columns_of_weight_0_take_no_part_in_scores(kind: str) -> None:
    wide, narrow = wide_model(kind), narrow_model(kind)
    found, expected = answers(wide, wide_panel()), answers(narrow, narrow_panel())
    assert_same(found, expected, rtol=1e-10, atol=1e-10)
    for all_terms, used in zip(
        terms(wide, wide_panel()), terms(narrow, narrow_panel()), strict=True
    ):
        np.testing.assert_allclose(all_terms[..., USED], used, rtol=1e-9, atol=1e-9)


UNUSED_VALUES = {
    "missing": (np.nan, -1),
    "huge": (1e15, 1),
    "negative": (-1e12, 0),
    "zero": (0.0, 1),
}


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("value", UNUSED_VALUES)
@kinds
def test_values_in_unused_columns_change_nothing(kind: str, value: str, precision: str) -> None:
    panel = wide_panel()
    cells, codes = panel.continuous.copy(), panel.categorical.copy()
    cells[:, ~USED[:N_CELLS]], codes[:, ~USED[N_CELLS:]] = UNUSED_VALUES[value]
    other = Panel.from_arrays(cells, codes, lengths=panel.lengths, n_categories=SIZES)
    model = wide_model(kind).copy_with(precision=precision)
    assert_same(answers(model, other), answers(model, panel), rtol=0.0)
    if precision == "float64":
        refitted = new_model(kind, WEIGHTS).fit(other)
        for found, expected in zip(
            arrays_of(refitted.params_), arrays_of(model.params_), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@kinds
def test_the_likelihood_does_not_depend_on_the_size_of_weights(kind: str) -> None:
    panel, model = wide_panel(), wide_model(kind)
    other = model.copy_with(weights=USED.astype(float).tolist(), temperature=3.0)
    np.testing.assert_array_equal(model.log_likelihood(panel), other.log_likelihood(panel))
    np.testing.assert_allclose(
        other.copy_with(temperature=1.0).filter(panel).log_likelihood, other.log_likelihood(panel)
    )


def test_bic_counts_the_model_s_categories() -> None:
    """A panel without the last category of a column has the same model to pay for."""
    panel, model = wide_panel(), wide_model("point")
    codes = np.minimum(panel.categorical, 1)
    few = [
        Panel.from_arrays(panel.continuous, codes, lengths=panel.lengths, n_categories=sizes)
        for sizes in (SIZES, (2, 2, 2))
    ]
    assert model.bic(few[1]) == pytest.approx(model.bic(few[0]), rel=1e-12)


@kinds
def test_changed_weights_take_effect_at_once(kind: str) -> None:
    panel, model = wide_panel(), wide_model(kind).copy_with()
    row, other = (panel.continuous[1], panel.categorical[1]), [1.0, 0.0, 0.2, 0.0, 0.0, 2.0, 0.0]
    before = model.step(None, *row), model.filter(panel).probs
    model.set_params(weights=other)
    fresh = wide_model(kind).copy_with(weights=other)
    np.testing.assert_array_equal(model.step(None, *row), fresh.step(None, *row))
    np.testing.assert_array_equal(model.filter(panel).probs, fresh.filter(panel).probs)
    assert not np.allclose(before[0], model.step(None, *row))
    assert not np.allclose(before[1], model.filter(panel).probs)


def test_copy_with_keeps_parameters_and_leaves_the_model_alone() -> None:
    model = wide_model("predictive")
    copy = model.copy_with(weights=[1.0] * 7, temperature=2.0, emission="robust")
    assert copy.params_ is model.params_
    assert (copy.temperature, copy.emission, copy.n_states) == (2.0, "robust", 3)
    assert (model.temperature, model.emission, model.weights) == (1.0, "predictive", WEIGHTS)


@pytest.mark.parametrize("as_type", [list, tuple])
@kinds
def test_saved_and_cloned_models_keep_their_weights(
    kind: str, as_type: type, tmp_path: Path
) -> None:
    panel, model = wide_panel(), wide_model(kind).copy_with(weights=as_type(WEIGHTS))
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert list(loaded.weights) == WEIGHTS
    assert_same(answers(loaded, panel), answers(model, panel), rtol=0.0)
    copy = clone(model)
    assert copy.get_params()["weights"] == as_type(WEIGHTS)
    assert not hasattr(copy, "params_")


BAD_WEIGHTS = {
    "negative": [-0.1] + [1.0] * 6,
    "all zero": [0.0] * 7,
    "empty": [],
    "not a number": [float("nan")] + [1.0] * 6,
    "infinite": [float("inf")] + [1.0] * 6,
    "text": ["1"] * 7,
    "truth values": [True] * 7,
    "an array": np.ones(7),
    "a number": 1.0,
    "a string": "1111111",
}


@pytest.mark.parametrize("name", BAD_WEIGHTS)
def test_bad_weights_are_refused(name: str) -> None:
    panel, wrong = wide_panel(), BAD_WEIGHTS[name]
    message = "weights must be a list of finite numbers of at least 0"
    with pytest.raises(ConfigError, match=message):
        new_model("point", wrong).fit(panel)
    with pytest.raises(ConfigError, match=message):
        VariationalHMM.from_params(wide_model("robust").params_, weights=wrong)
    with pytest.raises(ConfigError, match=message):
        wide_model("robust").copy_with(weights=wrong).filter(panel)


@pytest.mark.parametrize("n_weights", [1, 6, 8])
@pytest.mark.parametrize("with_codes", [True, False])
@pytest.mark.parametrize("method", ["fit", "filter", "log_likelihood", "bic", "step"])
def test_weights_of_a_wrong_length_are_refused(
    method: str, with_codes: bool, n_weights: int
) -> None:
    panel = wide_panel() if with_codes else wide_panel().take_columns(np.arange(7) < N_CELLS)
    row = panel.continuous[0], panel.categorical[0]
    model = new_model("robust").fit(panel).copy_with(weights=[1.0] * n_weights)
    with pytest.raises(ConfigError, match=rf"weights .*\b{n_weights}\b"):
        getattr(model, method)(*((None, *row) if method == "step" else (panel,)))


def test_errors_name_the_column_of_the_panel_and_not_of_the_used_ones() -> None:
    model, cells, codes = wide_model("robust"), np.zeros((3, N_CELLS)), np.zeros((3, 3), int)
    cells[1, 2] = np.inf
    rows = np.zeros((3, 3)), np.zeros(3, bool), cells, codes, np.full(3, -1)
    with pytest.raises(DataError, match="continuous column 2"):
        model.step(None, cells[1], codes[1])
    with pytest.raises(DataError, match="continuous column 2"):
        model.step_batch(*rows)
    cells[1, 2], codes[2, 2] = 0.0, 3
    with pytest.raises(DataError, match="categorical column 2: found code 3"):
        model.explain_log_odds(0, np.zeros((3, 3)), cells, codes)


def test_a_neural_model_refuses_weights() -> None:
    with pytest.raises(ConfigError, match=r"weights are of columns.* Leave them out"):
        NeuralVariationalHMM(2, weights=[1.0] * 7).fit(wide_panel())


def test_a_panel_of_some_columns() -> None:
    rows = {"labels": np.zeros(wide_panel().n_rows, int), "times": np.arange(wide_panel().n_rows)}
    panel, mask = replace(wide_panel(), **rows), np.array([1, 0, 0, 1, 0, 1, 0], bool)
    taken = panel.take_columns(mask)
    np.testing.assert_array_equal(taken.continuous, panel.continuous[:, [0, 3]])
    np.testing.assert_array_equal(taken.categorical, panel.categorical[:, [1]])
    assert taken.n_categories == (4,)
    assert taken.continuous.flags.c_contiguous
    assert taken.categorical.flags.c_contiguous
    assert taken.categorical.dtype == panel.categorical.dtype
    np.testing.assert_array_equal(taken.offsets, panel.offsets)
    np.testing.assert_array_equal(taken.labels, rows["labels"])
    np.testing.assert_array_equal(taken.times, rows["times"])
    complete = Panel.from_arrays([[1.0, np.nan], [2.0, 3.0]], [[0, -1], [1, 0]])
    for place in (0, 1):
        mask = np.tile(np.arange(2) == place, 2)
        one = complete.take_columns(mask)
        assert (one.missing_cells.tolist(), one.missing_codes.tolist()) == ([place == 1],) * 2
    no_codes = panel.take_columns(np.arange(7) < 2)
    assert (no_codes.n_continuous, no_codes.categorical.shape) == (2, (panel.n_rows, 0))


NARROW_PARAMS = {
    "point": HMMParams([0.5, 0.5], np.eye(2), [[3.0], [4.0]], [[5.0], [6.0]], ([[0.2, 0.8]] * 2,)),
    "posterior": VariationalParams(
        [1, 2], np.ones((2, 2)), [[3], [4]], [[5], [6]], [[7], [8]], [[9], [8]], ([[2, 8]] * 2,)
    ),
}


@pytest.mark.parametrize("kind", NARROW_PARAMS)
def test_widened_parameters_keep_the_fitted_columns(kind: str) -> None:
    params = NARROW_PARAMS[kind]
    names = [field.name for field in fields(params)]
    wide = params.widen(np.array([0, 1, 0, 0, 1, 0], bool), (3, 2, 5))
    assert type(wide) is type(params)
    assert wide.n_categories == (3, 2, 5)
    for name in names[:2]:
        np.testing.assert_array_equal(getattr(wide, name), getattr(params, name))
    for name in names[2:-1]:
        found = getattr(wide, name)
        assert found.shape == (2, 3)
        np.testing.assert_array_equal(found[:, [1]], getattr(params, name))
        assert (found[0, [0, 2]] == found[1, [0, 2]]).all()  # no evidence for any state
    np.testing.assert_array_equal(getattr(wide, names[-1])[1], getattr(params, names[-1])[0])
    for j in (0, 2):
        np.testing.assert_allclose(wide.category_probs[j], 1.0 / wide.n_categories[j])
    everything = wide.widen(np.ones(6, bool), wide.n_categories)
    for found, expected in zip(arrays_of(everything), arrays_of(wide), strict=True):
        np.testing.assert_array_equal(found, expected)
    back = wide.take_columns(np.array([0, 1, 0, 0, 1, 0], bool))
    for found, expected in zip(arrays_of(back), arrays_of(params), strict=True):
        np.testing.assert_array_equal(found, expected)
    two = wide.take_columns(np.array([1, 0, 1, 0, 1, 0], bool))
    assert all(array.flags.c_contiguous for array in arrays_of(two))  # kernels need it
