"""Each compiled kernel against its plain NumPy counterpart, on the same arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from tests.reference import numpy_kernels
from turncoat.arrays import Array
from turncoat.numerics import engine, live
from turncoat.numerics.generators import build_generator, gap_codes
from turncoat.numerics.layout import ColumnLayout, LogModel
from turncoat.numerics.structures import KernelSums, KernelTables, Observations, join_columns


@dataclass(frozen=True)
class Case:
    """Shape and properties of a random problem."""

    n_states: int
    n_columns: int
    n_categories: tuple[int, ...]
    lengths: tuple[int, ...]
    missing: float = 0.0
    cells: str = "float32"
    student: bool = False
    max_ratio: float = np.inf  # of Student columns
    weighted: bool = False  # some columns count less and some more
    zeros: bool = False
    anchors: bool = False
    separation: float = 1.0
    gaps: bool = False  # transitions depend on the time between rows


CASES = {
    "one row": Case(2, 3, (2,), (1,)),
    "continuous": Case(3, 5, (), (4, 1, 9, 30)),
    "categorical": Case(4, 0, (2, 2, 5, 3), (7, 2, 20)),
    "mixed": Case(5, 18, (2,) * 11 + (3, 7), (12, 40, 1, 3)),
    "missing": Case(3, 17, (2,) * 9 + (4,), (30, 8, 8), missing=0.4),
    "float64 cells": Case(3, 6, (2, 3), (15, 25), missing=0.2, cells="float64"),
    "student": Case(4, 9, (2, 3), (10, 30), missing=0.3, student=True),
    "limited student": Case(
        4, 9, (2, 3), (10, 30), missing=0.3, student=True, max_ratio=1.4, separation=3.0
    ),
    "weighted": Case(5, 18, (2,) * 11 + (3, 7), (12, 40, 1, 3), missing=0.2, weighted=True),
    "weighted student": Case(4, 17, (2, 3), (10, 30), missing=0.3, student=True, weighted=True),
    "weighted and limited": Case(
        9, 20, (2,) * 9 + (4,), (20, 30), 0.2, "float64", True, max_ratio=1.4, weighted=True
    ),
    "impossible transitions": Case(4, 3, (3,), (25, 6), zeros=True),
    "anchored": Case(4, 3, (2,), (20, 20), anchors=True),
    "anchored, impossible transitions": Case(4, 3, (2,), (20, 20), anchors=True, zeros=True),
    "one state": Case(1, 4, (2, 3), (10, 5)),
    "eight states": Case(8, 33, (2,) * 20, (50, 60)),
    "more states than lanes": Case(11, 4, (2, 3, 4), (40, 10)),
    "longer than a block": Case(3, 5, (2, 4), (2500, 20, 1024, 1100, 3), missing=0.1),
    "many chunks": Case(3, 2, (2,), (25,) * 300, missing=0.1),
    "gaps": Case(3, 5, (2,), (4, 1, 9, 30), gaps=True),
    "gaps, impossible transitions": Case(4, 3, (3,), (25, 6), zeros=True, gaps=True),
    "gaps, more states than lanes": Case(11, 4, (2, 3, 4), (40, 10), gaps=True),
    "gaps, many chunks": Case(3, 2, (2,), (25,) * 900, missing=0.1, gaps=True),
    "far apart": Case(3, 40, (2,), (50, 10), separation=10.0),
}


@dataclass(frozen=True)
class Problem:
    """A random problem of a case."""

    layout: ColumnLayout
    model: LogModel
    observations: Observations
    tables: KernelTables
    continuous: Array
    categorical: Array
    gaps_s: Array  # seconds before each row
    gap_codes: Array | None


def draw(case: Case, precision: str, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    k, d, n = case.n_states, case.n_columns, sum(case.lengths)
    continuous = (case.separation * rng.integers(-2, 3, (n, 1)) + rng.normal(size=(n, d))).astype(
        case.cells
    )
    categorical = (
        np.stack([rng.integers(0, c, n) for c in case.n_categories], axis=1)
        if case.n_categories
        else np.empty((n, 0), int)
    )
    continuous[rng.random((n, d)) < case.missing] = np.nan
    categorical[rng.random(categorical.shape) < case.missing] = -1
    transition = rng.dirichlet(np.ones(k), k)
    if case.zeros:
        transition = np.triu(transition)
        transition /= transition.sum(axis=1, keepdims=True)
    anchors = np.where(rng.random(n) < 0.5, -1, rng.integers(0, 2, n)) if case.anchors else None
    anchor_table = (
        np.log(np.where(np.arange(k) < k // 2, [[0.9], [0.2]], [[0.1], [0.8]]))
        if case.anchors
        else None
    )
    gaps_s, codes, places, generator = np.full(n, np.nan), None, None, None
    if case.gaps:  # rows of the generator add up to less than 0, as in variational Bayes
        rates = np.triu(rng.gamma(0.5, 1.0, (k, k))) if case.zeros else rng.gamma(0.5, 1.0, (k, k))
        generator = build_generator(rates) - 0.1 * np.diag(rng.random(k))
        gaps_s = np.where(rng.random(n) < 0.2, 0.0, np.exp(rng.normal(8, 4, n)))
        gaps_s[np.concatenate([[0], np.cumsum(case.lengths)[:-1]])] = 0.0
        codes, places = np.unique(gap_codes(gaps_s), return_inverse=True)
    log_initial = np.log(rng.dirichlet(np.ones(k)))
    if case.gaps and case.zeros:
        log_initial[0] = -np.inf
    model = LogModel(
        log_initial=log_initial,
        generator=generator,
        log_transition=np.log(
            transition, out=np.full(transition.shape, -np.inf), where=transition > 0
        ),
        means=case.separation * rng.normal(size=(k, d)),
        scales=rng.uniform(0.5, 2.0, (k, d)),
        constants=rng.normal(size=(k, d)),
        log_categories=join_columns(
            [np.log(rng.dirichlet(np.ones(c), k)) for c in case.n_categories], k
        ),
        n_categories=case.n_categories,
        dof=rng.uniform(3.0, 50.0, (k, d)) if case.student else None,
        max_ratio=case.max_ratio,
    )
    if case.weighted:
        model = model.weigh(rng.uniform(0.01, 2.0, d + len(case.n_categories)))
    layout = ColumnLayout.create(
        case.n_categories, np.isnan(continuous).any(axis=0), (categorical < 0).any(axis=0)
    )
    offsets = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int64)
    observations = layout.pack(continuous, categorical, offsets, anchors, places)
    tables = layout.build_tables(model, continuous.dtype, precision, anchor_table, codes)
    data = continuous, categorical, gaps_s, codes
    return Problem(layout, model, observations, tables, *data)


TOLERANCE = {"float64": {"rtol": 1e-10, "atol": 1e-10}, "float32": {"rtol": 2e-4, "atol": 2e-4}}

both_precisions = pytest.mark.parametrize("precision", ["float64", "float32"])
all_cases = pytest.mark.parametrize("name", CASES)


def assert_same_sums(fast: KernelSums, slow: KernelSums, precision: str) -> None:
    for field in KernelSums._fields:
        np.testing.assert_allclose(
            getattr(fast, field), getattr(slow, field), **TOLERANCE[precision], err_msg=field
        )


@both_precisions
@all_cases
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
@all_cases
def test_collect(name: str, precision: str) -> None:
    problem = draw(CASES[name], precision)
    fast, fast_likelihood = engine.collect(problem.observations, problem.tables)
    slow, slow_likelihood = numpy_kernels.collect(problem.observations, problem.tables)
    assert_same_sums(fast, slow, precision)
    np.testing.assert_allclose(
        fast_likelihood, slow_likelihood, rtol=1e-10 if precision == "float64" else 1e-5
    )


@both_precisions
@all_cases
def test_collect_weighted(name: str, precision: str) -> None:
    problem = draw(CASES[name], precision)
    probs = np.random.default_rng(1).dirichlet(
        np.ones(CASES[name].n_states), len(problem.continuous)
    )
    fast = engine.collect_weighted(problem.observations, problem.tables, probs)
    assert_same_sums(
        fast, numpy_kernels.collect_weighted(problem.observations, problem.tables, probs), precision
    )


@both_precisions
@all_cases
@pytest.mark.parametrize("size", [1e-12, 1e12])
def test_weights_of_sequences(name: str, precision: str, size: float) -> None:
    """Multiplied statistics, whatever the size of the weights."""
    problem, rng = draw(CASES[name], precision), np.random.default_rng(2)
    obs = problem.observations
    obs = obs._replace(weights=rng.uniform(0.1, 3.0, len(obs.offsets) - 1))
    probs = rng.dirichlet(np.ones(CASES[name].n_states), len(problem.continuous))
    weighted = obs._replace(weights=size * obs.weights), problem.tables
    for fast, slow in (
        (engine.collect(*weighted)[0], numpy_kernels.collect(obs, problem.tables)[0]),
        (
            engine.collect_weighted(*weighted, probs),
            numpy_kernels.collect_weighted(obs, problem.tables, probs),
        ),
    ):
        assert_same_sums(KernelSums(*(field / size for field in fast)), slow, precision)


@all_cases
def test_decode(name: str) -> None:
    problem = draw(CASES[name], "float64")
    fast, fast_probs = engine.decode(problem.observations, problem.tables)
    slow, slow_probs = numpy_kernels.decode(problem.observations, problem.tables)
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_allclose(fast_probs, slow_probs, rtol=1e-10)


@all_cases
def test_result_does_not_depend_on_threads(name: str) -> None:
    problem = draw(CASES[name], "float32")
    alone, alone_likelihood = engine.collect(problem.observations, problem.tables, 1)
    for n_threads in (2, 5):
        together, likelihood = engine.collect(problem.observations, problem.tables, n_threads)
        for field in KernelSums._fields:
            np.testing.assert_array_equal(getattr(alone, field), getattr(together, field))
        np.testing.assert_array_equal(alone_likelihood, likelihood)


@pytest.mark.parametrize("name", ["limited student", "weighted and limited"])
def test_limited_cases_reach_the_limit(name: str) -> None:
    problem = draw(CASES[name], "float64")
    free = problem.tables._replace(max_ratio=np.inf)
    limited, unlimited = (
        engine.infer(problem.observations, tables, False)[1] for tables in (problem.tables, free)
    )
    assert (limited > unlimited + 0.1).all()


@all_cases
def test_live_step(name: str) -> None:
    """Four consecutive steps on the first rows of the case."""
    problem = draw(CASES[name], "float64")
    tables = live.build_live_tables(problem.model)
    belief = np.empty(0)
    for row in range(min(4, len(problem.continuous))):
        cells = problem.continuous[row].astype(np.float64)
        codes = problem.categorical[row].astype(np.int64)
        gap_s = problem.gaps_s[row]
        fast = live.live_step(belief, gap_s, cells, codes, tables, 1e30)
        slow = numpy_kernels.live_step(belief, gap_s, cells, codes, tables, 1e30)
        assert fast[:2] == slow[:2] == (live.OK, 0)
        np.testing.assert_allclose(fast[2], slow[2], rtol=1e-9, atol=1e-300)
        assert fast[3] == pytest.approx(slow[3], rel=1e-10)
        belief = fast[2]


@all_cases
def test_live_steps_continue_from_each_other(name: str) -> None:
    """Interleaved rows of three customers, against one step at a time."""
    problem = draw(CASES[name], "float64")
    tables, n_rows = live.build_live_tables(problem.model), min(8, len(problem.continuous))
    cells, codes = (
        problem.continuous[:n_rows].astype(np.float64),
        problem.categorical[:n_rows].astype(np.int64),
    )
    gaps_s = np.nan_to_num(problem.gaps_s[:n_rows])
    k = problem.model.n_states
    beliefs, known = np.zeros((n_rows, k)), np.zeros(n_rows, bool)
    beliefs[1:2], known[1:2] = 1 / k, True  # the second customer was seen before
    belief = {0: np.empty(0), 1: np.full(k, 1 / k), 2: np.empty(0)}
    latest: dict[int, int] = {}
    previous = np.full(n_rows, -1)
    expected = []
    for i in range(n_rows):
        customer = i % 3 if i < 6 else 1
        previous[i], latest[customer] = latest.get(customer, -1), i
        before, belief[customer] = (
            belief[customer],
            numpy_kernels.live_step(belief[customer], gaps_s[i], cells[i], codes[i], tables, 1e30)[
                2
            ],
        )
        expected.append((before, belief[customer]))
    given = beliefs.copy(), known.copy()
    status, _, _, started, has_start, updated = live.live_steps(
        beliefs, known, previous, gaps_s, cells, codes, tables, 1e30
    )
    assert status == live.OK
    np.testing.assert_array_equal(beliefs, given[0])
    np.testing.assert_array_equal(known, given[1])
    for i, (before, after) in enumerate(expected):
        assert has_start[i] == (len(before) > 0)
        np.testing.assert_allclose(updated[i], after, rtol=1e-8, atol=1e-300)
        np.testing.assert_allclose(
            started[i], before if len(before) else np.zeros(k), rtol=1e-8, atol=1e-300
        )


@all_cases
def test_live_contributions(name: str) -> None:
    problem = draw(CASES[name], "float64")
    rows = problem.continuous[:60].astype(np.float64)
    codes = problem.categorical[:60].astype(np.int64)
    rng = np.random.default_rng(0)
    for model in (problem.model, problem.model.apply_temperature(3.0)):
        before = rng.normal(0, 3, (len(rows), model.n_states))
        terms = numpy_kernels.row_terms(rows, codes, *model.row_tables)
        for state in {0, model.n_states - 1}:
            status, _, _, rivals, from_cells, from_codes = live.live_contributions(
                state, before, rows, codes, live.build_live_tables(model), 1e30
            )
            assert status == live.OK
            if model.n_states == 1:
                continue
            for i, (cells, names) in enumerate(zip(*terms, strict=True)):
                rival, expected_cells, expected_codes, _ = numpy_kernels.log_odds_terms(
                    state, before[i], cells, names, np.zeros(model.n_states)
                )
                assert rivals[i] == rival
                np.testing.assert_allclose(from_cells[i], expected_cells, rtol=1e-9, atol=1e-9)
                np.testing.assert_allclose(from_codes[i], expected_codes, rtol=1e-12, atol=1e-12)


def test_live_contributions_name_the_bad_cell() -> None:
    problem = draw(CASES["mixed"], "float64")
    tables = live.build_live_tables(problem.model)
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


@all_cases
def test_predict_log_rows(name: str) -> None:
    model = draw(CASES[name], "float64").model
    beliefs = np.random.default_rng(0).dirichlet(np.ones(model.n_states), 4)
    known = np.array([True, False, True, True])
    gaps = np.array([1, 0, 0, 1], np.int16)
    log_transition = np.stack([model.log_transition, model.log_transition - 1.0])
    found = live.predict_log_rows(beliefs, known, gaps, model.log_initial, log_transition)
    for i in range(4):
        expected = (
            numpy_kernels.predict_log(beliefs[i], log_transition[gaps[i]])
            if known[i]
            else model.log_initial
        )
        np.testing.assert_allclose(found[i], expected, rtol=1e-13)


def test_live_step_refuses_bad_gaps() -> None:
    problem = draw(CASES["gaps"], "float64")
    tables = live.build_live_tables(problem.model)
    belief, cells, codes = np.full(3, 1 / 3), np.zeros(5), np.zeros(1, np.int64)
    for step in (live.live_step, numpy_kernels.live_step):
        for gap_s in (-1.0, np.nan, np.inf):
            assert step(belief, gap_s, cells, codes, tables, 1e30)[0] == live.BAD_GAP
            assert step(np.empty(0), gap_s, cells, codes, tables, 1e30)[0] == live.OK


def test_live_step_names_the_bad_cell() -> None:
    problem = draw(CASES["mixed"], "float64")
    tables = live.build_live_tables(problem.model)
    cells, codes = np.zeros(18), np.zeros(13, np.int64)
    for step in (live.live_step, numpy_kernels.live_step):
        cells[:], codes[:] = 0.0, 0
        cells[7] = np.inf
        assert step(np.empty(0), 0.0, cells, codes, tables, 1e30)[:2] == (live.BAD_CELL, 7)
        cells[7], codes[11] = 0.0, 3
        assert step(np.empty(0), 0.0, cells, codes, tables, 1e30)[:2] == (live.BAD_CODE, 11)
        for belief in (
            np.zeros(5),
            np.full(5, np.nan),
            np.array([1.5, -0.5, 0.0, 0.0, 0.0]),
            np.full(5, 0.3),
        ):
            assert (
                step(belief, 0.0, cells, np.zeros(13, np.int64), tables, 1e30)[0] == live.BAD_BELIEF
            )
        codes[11] = -2
        assert step(np.empty(0), 0.0, cells, codes, tables, 1e30)[:2] == (live.BAD_CODE, 11)


@all_cases
def test_row_terms(name: str) -> None:
    problem = draw(CASES[name], "float64")
    rows, codes = problem.continuous.astype(np.float64), problem.categorical.astype(np.int64)
    for model in (problem.model, problem.model.apply_temperature(3.0)):
        for fast, slow in zip(
            model.row_terms(rows, codes),
            numpy_kernels.row_terms(rows, codes, *model.row_tables),
            strict=True,
        ):
            np.testing.assert_allclose(fast, slow, rtol=1e-14, atol=1e-15)


def test_row_terms_reject_codes_out_of_range() -> None:
    problem = draw(CASES["mixed"], "float64")
    codes = problem.categorical.astype(np.int64)
    codes[1, 11] = 3
    with pytest.raises(IndexError, match="beyond the categories"):
        problem.model.row_terms(problem.continuous, codes)


@pytest.mark.parametrize("belief", [[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [1e-308, 1.0, 5e-324]])
def test_predict_log(belief: list[float]) -> None:
    with np.errstate(divide="ignore"):
        impossible = np.log([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    for moves in (np.log(np.full((3, 3), 1 / 3)), impossible, np.array([[-1.0, -900.0, -2e4]] * 3)):
        fast, slow = (
            predicted(np.array(belief), moves)
            for predicted in (live.predict_log, numpy_kernels.predict_log)
        )
        np.testing.assert_allclose(fast, slow, rtol=1e-14)


@all_cases
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
    """A cell whose squared distance overflows float32 is scored in float64."""
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


def test_underflowed_state_recovers_when_transitions_are_impossible() -> None:
    """Evidence of 40 nats per row against the only possible path must not trap the recursion."""
    n = 60
    cells = np.concatenate([np.zeros(30), np.full(30, 9.0)])[:, None]
    model = LogModel(
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
    tables = layout.build_tables(model, np.dtype("float64"), "float64")
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


@pytest.mark.parametrize("lengths", [[5], [3000, 1, 2, 5000, 700], [40] * 2000])
def test_parts_are_whole_sequences_in_order(lengths, monkeypatch):
    offsets = np.append(0, np.cumsum(lengths)) + 7
    for n_threads in (1, 3):
        monkeypatch.setattr(engine, "available_threads", lambda n=n_threads: n)
        parts = engine.map_parts(offsets, lambda part: part)
        np.testing.assert_array_equal(np.concatenate([[7], *(part[1:] for part in parts)]), offsets)
        assert all(one[-1] == other[0] for one, other in pairwise(parts))
        assert len(parts) == min(len(lengths), len(parts)) <= 2 * 32
    assert (len(parts) > 1) == (sum(lengths) > 1024)
