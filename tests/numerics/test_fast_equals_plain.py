"""Each compiled kernel against its plain NumPy counterpart, on the same arrays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.numerics.cases import CASES, draw
from tests.reference import numpy_kernels
from turncoat.numerics import engine, live
from turncoat.numerics.layout import ColumnLayout, LogModel
from turncoat.numerics.structures import KernelSums, KernelTables, Observations

TOLERANCE = {"float64": {"rtol": 1e-10, "atol": 1e-10}, "float32": {"rtol": 2e-4, "atol": 2e-4}}

both_precisions = pytest.mark.parametrize("precision", ["float64", "float32"])
every_case = pytest.mark.parametrize("name", CASES)


def assert_same_sums(fast: KernelSums, slow: KernelSums, precision: str) -> None:
    for field in KernelSums._fields:
        np.testing.assert_allclose(
            getattr(fast, field), getattr(slow, field), **TOLERANCE[precision], err_msg=field
        )


@both_precisions
@every_case
@pytest.mark.parametrize("smoothed", [False, True])
def test_infer(name: str, precision: str, smoothed: bool) -> None:
    problem = draw(CASES[name], precision)
    fast, fast_likelihood = engine.infer(problem.observations, problem.tables, smoothed)
    slow, slow_likelihood = numpy_kernels.infer(problem.observations, problem.tables, smoothed)
    np.testing.assert_allclose(fast, slow, **TOLERANCE[precision])
    np.testing.assert_allclose(fast.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(
        fast_likelihood, slow_likelihood, rtol=1e-10 if precision == "float64" else 1e-5
    )


@both_precisions
@every_case
def test_collect(name: str, precision: str) -> None:
    problem = draw(CASES[name], precision)
    fast, fast_likelihood = engine.collect(problem.observations, problem.tables)
    slow, slow_likelihood = numpy_kernels.collect(problem.observations, problem.tables)
    assert_same_sums(fast, slow, precision)
    np.testing.assert_allclose(
        fast_likelihood, slow_likelihood, rtol=1e-10 if precision == "float64" else 1e-5
    )


@both_precisions
@every_case
def test_collect_given(name: str, precision: str) -> None:
    problem = draw(CASES[name], precision)
    probs = np.random.default_rng(1).dirichlet(
        np.ones(CASES[name].n_states), len(problem.continuous)
    )
    fast = engine.collect_weighted(problem.observations, problem.tables, probs)
    assert_same_sums(
        fast, numpy_kernels.collect_weighted(problem.observations, problem.tables, probs), precision
    )


@every_case
def test_decode(name: str) -> None:
    problem = draw(CASES[name], "float64")
    fast, fast_probs = engine.decode(problem.observations, problem.tables)
    slow, slow_probs = numpy_kernels.decode(problem.observations, problem.tables)
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_allclose(fast_probs, slow_probs, rtol=1e-10)


@every_case
def test_result_does_not_depend_on_threads(name: str) -> None:
    problem = draw(CASES[name], "float32")
    alone, alone_likelihood = engine.collect(problem.observations, problem.tables, 1)
    for n_threads in (2, 5):
        together, likelihood = engine.collect(problem.observations, problem.tables, n_threads)
        for field in KernelSums._fields:
            np.testing.assert_array_equal(getattr(alone, field), getattr(together, field))
        np.testing.assert_array_equal(alone_likelihood, likelihood)


@every_case
def test_live_step(name: str) -> None:
    """Two steps in a row, fast against plain, on the first rows of the case."""
    problem = draw(CASES[name], "float64")
    tables = live.build_live_tables(problem.terms)
    held = np.empty(0)
    for row in range(min(2, len(problem.continuous))):
        cells = problem.continuous[row].astype(np.float64)
        codes = problem.categorical[row].astype(np.int64)
        fast = live.live_step(held, cells, codes, tables, 1e30)
        slow = numpy_kernels.live_step(held, cells, codes, tables, 1e30)
        assert fast[:2] == slow[:2] == (live.OK, 0)
        np.testing.assert_allclose(fast[2], slow[2], rtol=1e-9, atol=1e-300)
        assert fast[3] == pytest.approx(slow[3], rel=1e-10)
        held = fast[2]


@every_case
def test_live_steps_go_on_from_each_other(name: str) -> None:
    """Rows of three customers mixed, against one step after the other."""
    problem = draw(CASES[name], "float64")
    tables, n_rows = live.build_live_tables(problem.terms), min(8, len(problem.continuous))
    cells, codes = (
        problem.continuous[:n_rows].astype(np.float64),
        problem.categorical[:n_rows].astype(np.int64),
    )
    k = problem.terms.n_states
    beliefs, known = np.zeros((n_rows, k)), np.zeros(n_rows, bool)
    beliefs[1:2], known[1:2] = 1 / k, True  # the second customer was seen before
    held = {0: np.empty(0), 1: np.full(k, 1 / k), 2: np.empty(0)}
    latest: dict[int, int] = {}
    previous = np.full(n_rows, -1)
    expected = []
    for i in range(n_rows):
        customer = i % 3 if i < 6 else 1
        previous[i], latest[customer] = latest.get(customer, -1), i
        before, held[customer] = (
            held[customer],
            numpy_kernels.live_step(held[customer], cells[i], codes[i], tables, 1e30)[2],
        )
        expected.append((before, held[customer]))
    status, _, _, updated = live.live_steps(beliefs, known, previous, cells, codes, tables, 1e30)
    assert status == live.OK
    for i, (before, after) in enumerate(expected):
        assert known[i] == (len(before) > 0)
        np.testing.assert_allclose(updated[i], after, rtol=1e-8, atol=1e-300)
        np.testing.assert_allclose(
            beliefs[i], before if len(before) else np.zeros(k), rtol=1e-8, atol=1e-300
        )


@every_case
def test_live_contrasts(name: str) -> None:
    problem = draw(CASES[name], "float64")
    rows, codes = problem.continuous.astype(np.float64), problem.categorical.astype(np.int64)
    rng = np.random.default_rng(0)
    for terms in (problem.terms, problem.terms.apply_temperature(3.0)):
        before = rng.normal(0, 3, (len(rows), terms.n_states))
        pieces = numpy_kernels.row_terms(rows, codes, *terms.row_tables)
        for state in {0, terms.n_states - 1}:
            status, _, _, rivals, of_cells, of_codes = live.live_contributions(
                state, before, rows, codes, live.build_live_tables(terms), 1e30
            )
            assert status == live.OK
            if terms.n_states == 1:
                continue
            for i, (cells, names) in enumerate(zip(*pieces, strict=True)):
                rival, by_cells, by_codes, _ = numpy_kernels.log_odds_terms(
                    state, before[i], cells, names, np.zeros(terms.n_states)
                )
                assert rivals[i] == rival
                np.testing.assert_allclose(of_cells[i], by_cells, rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(of_codes[i], by_codes, rtol=1e-12, atol=1e-12)


def test_live_contrasts_name_the_bad_cell() -> None:
    problem = draw(CASES["mixed"], "float64")
    tables = live.build_live_tables(problem.terms)
    before, cells, codes = np.zeros((3, 5)), np.zeros((3, 18)), np.zeros((3, 13), np.int64)
    cells[1, 7] = np.inf
    assert live.live_contributions(0, before, cells, codes, tables, 1e30)[:3] == (
        live.BAD_CELL,
        1,
        7,
    )
    cells[1, 7], codes[2, 11] = 0.0, 3
    assert live.live_contributions(0, before, cells, codes, tables, 1e30)[:3] == (
        live.BAD_CODE,
        2,
        11,
    )


@every_case
def test_log_predicted_rows(name: str) -> None:
    terms = draw(CASES[name], "float64").terms
    beliefs = np.random.default_rng(0).dirichlet(np.ones(terms.n_states), 4)
    known = np.array([True, False, True, True])
    found = live.predict_log_rows(beliefs, known, terms.log_initial, terms.log_transition)
    for i in range(4):
        expected = (
            numpy_kernels.predict_log(beliefs[i], terms.log_transition)
            if known[i]
            else terms.log_initial
        )
        np.testing.assert_allclose(found[i], expected, rtol=1e-13)


def test_live_step_names_the_bad_cell() -> None:
    problem = draw(CASES["mixed"], "float64")
    tables = live.build_live_tables(problem.terms)
    cells, codes = np.zeros(18), np.zeros(13, np.int64)
    for step in (live.live_step, numpy_kernels.live_step):
        cells[:], codes[:] = 0.0, 0
        cells[7] = np.inf
        assert step(np.empty(0), cells, codes, tables, 1e30)[:2] == (live.BAD_CELL, 7)
        cells[7], codes[11] = 0.0, 3
        assert step(np.empty(0), cells, codes, tables, 1e30)[:2] == (live.BAD_CODE, 11)
        for belief in (
            np.zeros(5),
            np.full(5, np.nan),
            np.array([1.5, -0.5, 0.0, 0.0, 0.0]),
            np.full(5, 0.3),
        ):
            assert step(belief, cells, np.zeros(13, np.int64), tables, 1e30)[0] == live.BAD_BELIEF
        codes[11] = -2
        assert step(np.empty(0), cells, codes, tables, 1e30)[:2] == (live.BAD_CODE, 11)


@every_case
def test_pieces(name: str) -> None:
    problem = draw(CASES[name], "float64")
    rows, codes = problem.continuous.astype(np.float64), problem.categorical.astype(np.int64)
    for terms in (problem.terms, problem.terms.apply_temperature(3.0)):
        for fast, slow in zip(
            terms.row_terms(rows, codes),
            numpy_kernels.row_terms(rows, codes, *terms.row_tables),
            strict=True,
        ):
            np.testing.assert_allclose(fast, slow, rtol=1e-14, atol=1e-300)


def test_pieces_refuse_codes_that_no_category_has() -> None:
    problem = draw(CASES["mixed"], "float64")
    codes = problem.categorical.astype(np.int64)
    codes[1, 11] = 3
    with pytest.raises(IndexError, match="beyond the categories"):
        problem.terms.row_terms(problem.continuous, codes)


@pytest.mark.parametrize("belief", [[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1e-308, 1.0, 5e-324]])
def test_log_predicted(belief: list[float]) -> None:
    with np.errstate(divide="ignore"):
        impossible = np.log([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for moves in (np.log(np.full((3, 3), 1 / 3)), impossible, np.array([[-1.0, -900.0, -2e4]] * 3)):
        fast, slow = (
            predicted(np.array(belief), moves)
            for predicted in (live.predict_log, numpy_kernels.predict_log)
        )
        np.testing.assert_allclose(fast, slow, rtol=1e-14)


@every_case
def test_packing(name: str) -> None:
    problem = draw(CASES[name], "float64")
    slow = np.zeros_like(problem.observations.flags)
    numpy_kernels.pack_flags(
        problem.continuous,
        problem.categorical,
        problem.layout.questions,
        problem.layout.columns,
        slow,
    )
    np.testing.assert_array_equal(problem.observations.flags, slow)
    assert slow.any() == (2 in CASES[name].n_categories or CASES[name].missing > 0)


def test_values_far_beyond_float32_squares_stay_finite() -> None:
    """A cell whose squared distance overflows float32 is scored in float64, and its row still sums to one."""
    problem = draw(CASES["continuous"], "float32")
    continuous = problem.continuous.copy()
    continuous[2, 1] = 1e25
    observations = problem.observations._replace(continuous=continuous)
    fast, fast_likelihood = engine.infer(observations, problem.tables, True)
    slow, slow_likelihood = numpy_kernels.infer(observations, problem.tables, True)
    assert np.isfinite(fast_likelihood).all()
    np.testing.assert_allclose(fast_likelihood, slow_likelihood, rtol=1e-6)
    np.testing.assert_allclose(fast, slow, atol=1e-3)


def _linear_and_log(name: str) -> tuple[Observations, KernelTables, KernelTables]:
    problem = draw(CASES[name], "float64")
    assert problem.tables.linear
    return problem.observations, problem.tables, problem.tables._replace(linear=False)


@pytest.mark.parametrize("name", ["mixed", "far apart", "longer than a block", "anchored"])
def test_scaled_and_log_domain_recursions_agree(name: str) -> None:
    observations, scaled, logarithmic = _linear_and_log(name)
    assert_same_sums(
        engine.collect(observations, scaled)[0],
        engine.collect(observations, logarithmic)[0],
        "float64",
    )


def test_underflowed_state_comes_back_when_moves_are_impossible() -> None:
    """Evidence 40 nats a row against the only possible path must not trap the recursion in a state it has ruled out."""
    n = 60
    cells = np.concatenate([np.zeros(30), np.full(30, 9.0)])[:, None]
    terms = LogModel(
        log_initial=np.log([0.5, 0.5]),
        log_transition=np.array([[0.0, -np.inf], [-np.inf, 0.0]]),
        means=np.array([[0.0], [9.0]]),
        scales=np.ones((2, 1)),
        constants=np.zeros((2, 1)),
        log_categories=np.empty((2, 0)),
        n_categories=(),
    )
    layout = ColumnLayout.create((), np.array([False]), np.empty(0, bool))
    observations = layout.pack(
        np.vstack([cells, cells[-1:]]), np.empty((n + 1, 0), np.int8), np.array([0, n + 1])
    )
    tables = layout.build_tables(terms, np.dtype("float64"), "float64")
    assert not tables.linear
    probs, _ = engine.infer(observations, tables, smoothed=False)
    assert probs[29, 0] > 1 - 1e-12
    assert probs[-1, 1] > 1 - 1e-12


def test_plan_covers_every_sequence_once() -> None:
    lengths = np.random.default_rng(0).integers(1, 2000, 500)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    plan = engine.make_plan(offsets)
    assert plan.groups[0] == 0
    assert plan.groups[-1] == 500
    assert (np.diff(plan.groups) > 0).all()
    assert plan.chunks[-1] == len(plan.groups) - 1
    assert (np.diff(plan.chunks) > 0).all()
    assert plan.longest == np.diff(offsets[plan.groups]).max()
