"""Chains in continuous time against brute force over all hidden paths, and known rates.

Gaps have six significant bits in hours, so that the engine's rounding keeps them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.special import digamma, gammaln
from sklearn.base import clone

from turncoat import (
    Anchors,
    BaumWelchHMM,
    ConfigError,
    ContinuousHMMParams,
    ContinuousVariationalParams,
    HMMParams,
    Panel,
    Prior,
    VariationalHMM,
)
from turncoat.models.baum_welch import build_point_model
from turncoat.models.fit_rows import PanelRows, pack_panel
from turncoat.numerics import engine
from turncoat.numerics.generators import code_hours, gap_codes
from turncoat.numerics.layout import ColumnLayout, Statistics

from .bridge import QUIET, anchors_of, panel_of, params_of, posterior_of
from .enumeration import Array, Enumeration, Factors, enumerate_paths, path_log_probs
from .enumeration import log as log0
from .evidence import Hyper, total_kl, update
from .problems import Problem, random_factors, random_problem, stack

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
SHAPES: dict[str, dict[str, Any]] = {
    "mixed": {"n_continuous": 2, "n_categories": (2, 4)},
    "missing": {"n_continuous": 2, "n_categories": (2, 3), "missing": 0.3},
    "missing rows": {"n_continuous": 2, "n_categories": (3,), "missing": 0.2, "missing_rows": True},
    "noisy anchors": {"n_continuous": 1, "n_categories": (3,), "missing": 0.2, "noise": 0.07},
}
LENGTHS = ((6,), (1,), (2, 6, 1, 5), (4, 3, 6, 1, 2))
TOLERANCE = {"float64": 1e-10, "float32": 1e-5}
cases = pytest.mark.parametrize("shape", list(SHAPES))
seeds = pytest.mark.parametrize("seed", range(6))
precisions = pytest.mark.parametrize("precision", list(TOLERANCE))
tiers = pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])


def draw_generator(n_states: int, seed: int) -> Array:
    rates = np.random.default_rng(seed).gamma(1.0, 0.2, (n_states, n_states))
    np.fill_diagonal(rates, 0.0)
    return rates - np.diag(rates.sum(axis=1))


def draw_hours(n_rows: int, seed: int) -> Array:
    """Gaps from seconds to weeks with six significant bits; a few are 0."""
    rng = np.random.default_rng(seed)
    hours = rng.integers(32, 64, n_rows) * 2.0 ** rng.integers(-15, 4, n_rows)
    return np.where(rng.random(n_rows) < 0.15, 0.0, hours)


def make(shape: str, seed: int) -> tuple[Problem, Panel, Array, Array]:
    """A problem, its panel with times, hours before each row and a generator."""
    k = (2, 3, 3, 2, 3, 1)[seed % 6]
    problem = random_problem(1000 + seed, k, lengths=LENGTHS[seed % 4], **SHAPES[shape])
    hours = draw_hours(len(problem.continuous), seed)
    panel = replace(panel_of(problem), times=3600.0 * np.cumsum(hours))
    return problem, panel, hours, draw_generator(k, seed)


def continuous_params(problem: Problem, generator: Array) -> ContinuousHMMParams:
    values = {**params_of(problem).__dict__, "generator": generator}
    values.pop("transition_matrix")
    return ContinuousHMMParams(**values)


def enumerate_gaps(
    problem: Problem, log_initial: Array, generator: Array, hours: Array, rows: Array
) -> list[Enumeration]:
    """Brute force with exp(Qh) between neighbouring rows."""
    matrices = log0(np.array([expm(generator * gap) for gap in hours]))
    parts = zip(problem.split(matrices), problem.split(rows), strict=True)
    return [enumerate_paths(log_initial, moves[1:], part) for moves, part in parts]


def van_loan(generator: Array, weights: Array, hours: float) -> Array:
    """The integral of exp(Q's) W exp(Q'(h - s)) over the gap, as a block of an exponential."""
    k = len(generator)
    block = np.zeros((2 * k, 2 * k))
    block[:k, :k] = block[k:, k:] = generator.T
    block[:k, k:] = weights
    return np.asarray(expm(block * hours)[:k, k:])


def count_jumps(
    problem: Problem, truth: list[Enumeration], generator: Array, hours: Array
) -> Array:
    """Expected jumps, with the hours in each state on the diagonal, from pairs of states.

    They do not change when all paths decay faster or slower. Without decay, no number is extreme.
    """
    total = np.zeros(generator.shape)
    slowest = np.linalg.eigvals(generator).real.max() * np.eye(len(generator))
    for found, gaps in zip(truth, problem.split(hours), strict=True):
        for pair, gap in zip(found.pairs, gaps[1:], strict=True):
            matrix = expm((generator - slowest) * gap)
            weights = np.divide(pair, matrix, out=np.zeros(pair.shape), where=matrix > 0)
            total += van_loan(generator - slowest, weights, gap)
    return np.where(np.eye(len(generator), dtype=bool), total, total * generator)


def assert_equals_enumeration(
    model: Any, panel: Panel, problem: Problem, truth: list[Enumeration], tolerance: float
) -> None:
    anchors = anchors_of(problem)
    expected = np.array([e.log_likelihood for e in truth])
    for found, rows in (
        (model.filter(panel, anchors=anchors), stack(truth, lambda e: e.filtered)),
        (model.smooth(panel, anchors=anchors), stack(truth, lambda e: e.smoothed)),
    ):
        np.testing.assert_allclose(found.probs, rows, atol=tolerance, rtol=0)
        np.testing.assert_allclose(found.log_likelihood, expected, rtol=tolerance, atol=tolerance)
    decoded = model.decode(panel, anchors=anchors)
    for mine, best in zip(problem.split(decoded), truth, strict=True):
        if best.path_margin > tolerance * (1 + abs(best.path_log_prob)):
            np.testing.assert_array_equal(mine, best.path)


@precisions
@seeds
@cases
def test_inference_equals_enumeration(shape: str, seed: int, precision: str) -> None:
    problem, panel, hours, generator = make(shape, seed)
    params = continuous_params(problem, generator)
    model = BaumWelchHMM.from_params(params, precision=precision)
    assert model.transitions == "continuous"
    rows = problem.log_emission()
    truth = enumerate_gaps(problem, log0(problem.initial), generator, hours, rows)
    assert_equals_enumeration(model, panel, problem, truth, TOLERANCE[precision])


@precisions
@pytest.mark.parametrize("emission", ["expected-log", "predictive"])
@seeds
@cases
def test_variational_inference_equals_enumeration(
    shape: str, seed: int, emission: str, precision: str
) -> None:
    problem, panel, hours, _ = make(shape, seed)
    k, columns = problem.n_states, problem.continuous.shape[1]
    q = random_factors(seed, k, columns, problem.n_categories)
    params = ContinuousVariationalParams(**posterior_of(q).__dict__)
    rows = q.predictive_log_emissions(problem.continuous, problem.categorical)
    log_initial, generator = np.log(q.initial / q.initial.sum()), mean_generator(q)
    if emission == "expected-log":
        rows = q.expected_log_emissions(problem.continuous, problem.categorical)
        log_initial, generator = q.expected_log_initial(), expected_generator(q)
    rows = rows + problem.anchor_weights()
    truth = enumerate_gaps(problem, log_initial, generator, hours, rows)
    model = VariationalHMM.from_params(params, emission=emission, precision=precision)
    assert_equals_enumeration(model, panel, problem, truth, TOLERANCE[precision])


@pytest.mark.parametrize("shape", ["mixed", "missing rows"])
@seeds
def test_average_transitions_weigh_the_gaps_after_the_rows_of_a_state(
    shape: str, seed: int
) -> None:
    problem, panel, hours, generator = make(shape, seed)
    params = continuous_params(problem, generator)
    model = BaumWelchHMM.from_params(params, precision="float64")
    beliefs = problem.split(model.filter(panel).probs)
    totals, weights = np.zeros(generator.shape), np.zeros(len(generator))
    for before, gaps in zip(beliefs, problem.split(hours), strict=True):
        for belief, gap in zip(before[:-1], gaps[1:], strict=True):
            totals += belief[:, None] * expm(generator * gap)
            weights += belief
    expected = totals / weights[:, None] if weights.all() else expm(generator)
    np.testing.assert_allclose(model.average_transitions(panel), expected, atol=1e-10)
    plain = BaumWelchHMM.from_params(params_of(problem))
    np.testing.assert_array_equal(plain.average_transitions(panel), problem.transition)


def test_average_transitions_of_a_state_without_rows_are_finite() -> None:
    generator = np.array([[-1.0, 1.0], [2.0, -2.0]])
    params = ContinuousHMMParams(
        [1.0, 0.0], means=[[0.0], [1e6]], variances=[[1.0], [1.0]], generator=generator
    )
    panel = Panel.from_arrays(np.zeros((3, 1)), times=[0.0, 3600.0, 3600.0])
    found = BaumWelchHMM.from_params(params, precision="float64").average_transitions(panel)
    np.testing.assert_allclose(found, (expm(generator) + np.eye(2)) / 2, atol=1e-12)


def mean_generator(q: Factors) -> Array:
    """Posterior mean of the rates; shapes off the diagonal, hours on it."""
    rates = q.transition / np.diag(q.transition)[:, None]
    np.fill_diagonal(rates, 0.0)
    return rates - np.diag(rates.sum(axis=1))


def expected_generator(q: Factors) -> Array:
    """exp(E[log q]) off the diagonal, minus E[q] summed on it."""
    rates = np.exp(digamma(q.transition)) / np.diag(q.transition)[:, None]
    np.fill_diagonal(rates, np.diag(mean_generator(q)))
    return rates


def rate_divergence(q: Factors, jumps: float, hours: float) -> float:
    """KL of the Gammas from their prior, by the textbook formula."""
    total = 0.0
    for i in range(len(q.initial)):
        for j in range(len(q.initial)):
            if i != j:
                a, b = q.transition[i, j], q.transition[i, i]
                total += (a - jumps) * digamma(a) - gammaln(a) + gammaln(jumps)
                total += jumps * np.log(b / hours) + a * (hours - b) / b
    return total


@precisions
@seeds
@cases
def test_one_em_step_equals_the_enumerated_one(shape: str, seed: int, precision: str) -> None:
    problem, panel, hours, generator = make(shape, seed)
    tolerance = 1e-9 if precision == "float64" else 2e-4
    options = {**QUIET, "precision": precision, "max_iter": 2, "tol": 0.0}
    params = continuous_params(problem, generator)
    model = BaumWelchHMM(
        problem.n_states, init=params, transitions="continuous", category_smoothing=0.0, **options
    )
    model.fit(panel, anchors=anchors_of(problem))
    rows = problem.log_emission()
    truth = enumerate_gaps(problem, log0(problem.initial), generator, hours, rows)
    jumps = count_jumps(problem, truth, generator, hours)
    spent = np.diag(jumps)[:, None]
    rates = np.divide(jumps, spent, out=generator.copy(), where=spent > 1e-8)
    np.fill_diagonal(rates, 0.0)
    expected = np.maximum(rates, 1e-12 * (1 - np.eye(len(rates))))
    expected -= np.diag(expected.sum(axis=1))
    np.testing.assert_allclose(model.params_.generator, expected, rtol=tolerance, atol=tolerance)
    bound = sum(e.log_likelihood for e in truth)
    assert model.fit_report_.history[0] == pytest.approx(bound, rel=tolerance, abs=tolerance)
    assert model.fit_report_.history[1] >= bound - tolerance * (1 + abs(bound))
    np.testing.assert_allclose(model.params_.transition_matrix, expm(model.params_.generator))


@precisions
@seeds
@cases
def test_one_variational_step_equals_the_enumerated_one(
    shape: str, seed: int, precision: str
) -> None:
    """The bound before the update, the updated factors, and the bound after it."""
    problem, panel, hours, _ = make(shape, seed)
    tolerance = 1e-9 if precision == "float64" else 2e-4
    k, columns = problem.n_states, problem.continuous.shape[1]
    q = random_factors(seed, k, columns, problem.n_categories)
    options = {**QUIET, "precision": precision, "max_iter": 2, "tol": 0.0}
    prior = Prior(jumps=0.7, hours=3.0, standardised=False)
    start = ContinuousVariationalParams(**posterior_of(q).__dict__)
    model = VariationalHMM(k, init=start, transitions="continuous", prior=prior, **options)
    model.fit(panel, anchors=anchors_of(problem))

    def infer(q: Factors) -> list[Enumeration]:
        rows = q.expected_log_emissions(problem.continuous, problem.categorical)
        rows = rows + problem.anchor_weights()
        chain = q.expected_log_initial(), expected_generator(q)
        return enumerate_gaps(problem, *chain, hours, rows)

    def bound(q: Factors) -> float:
        no_chain = replace(q, transition=np.ones((k, k)))  # its divergence is counted apart
        flat = Hyper(transition=1.0, sticky=0.0)
        rest = total_kl(no_chain, flat)
        total = sum(e.log_likelihood for e in infer(q))
        return float(total - rest - rate_divergence(q, 0.7, 3.0))

    truth = infer(q)
    jumps = count_jumps(problem, truth, expected_generator(q), hours)
    smoothed, first = stack(truth, lambda e: e.smoothed), sum(e.initial for e in truth)
    data = problem.continuous, problem.categorical, problem.n_categories
    updated = update(*data, smoothed, np.asarray(first), np.zeros((k, k)), Hyper())
    updated = replace(updated, transition=np.where(np.eye(k, dtype=bool), 3.0, 0.7) + jumps)
    found = model.params_
    np.testing.assert_allclose(found.transition_concentration, updated.transition, rtol=tolerance)
    near = 10 * tolerance  # a state without rows has a location of rounding errors
    np.testing.assert_allclose(found.location, updated.location, rtol=tolerance, atol=near)
    bounds = [bound(q), bound(updated)]
    np.testing.assert_allclose(model.fit_report_.history, bounds, rtol=tolerance, atol=tolerance)


def big_panel(seed: int = 0, n_sequences: int = 200) -> tuple[Panel, ContinuousHMMParams]:
    """Rows of three known regimes that last days, at random times, and their parameters."""
    rng = np.random.default_rng(seed)
    generator = np.array([[-0.03, 0.02, 0.01], [0.06, -0.1, 0.04], [0.05, 0.0, -0.05]])
    means, variances = np.array([[-2.0, 0.0], [0.5, 2.0], [2.5, -1.0]]), np.full((3, 2), 0.5)
    params = ContinuousHMMParams([0.5, 0.3, 0.2], means, variances, generator=generator)
    lengths = rng.integers(1, 80, n_sequences)
    times = np.cumsum(np.exp(rng.normal(10, 1.5, lengths.sum())))
    panel, _ = BaumWelchHMM.from_params(params).sample(lengths, random_state=1, times=times)
    return panel, params


@tiers
def test_known_rates_come_back(tier: Any) -> None:
    panel, truth = big_panel()
    model = tier(3, n_restarts=2, transitions="continuous").fit(panel)
    order = np.argsort(model.params_.means[:, 0])
    found = model.params_.generator[np.ix_(order, order)]
    states = model.smooth(panel).probs[:, order]
    hours = (states * panel.gaps_s[:, None]).sum(axis=0) / 3600.0  # in each state, roughly
    exits = -np.diag(truth.generator)[:, None]  # jumps between rows are not seen
    error = np.sqrt(exits / hours[:, None])
    off_diagonal = ~np.eye(3, dtype=bool)
    off = (np.abs(found - truth.generator) / error)[off_diagonal]
    assert off.max() < 6.0, off
    np.testing.assert_allclose(model.params_.means[order], truth.means, atol=0.15)
    if tier is VariationalHMM:
        low, high = model.params_.credible_interval("generator", 0.9)
        mean, shapes = model.params_.generator, model.params_.transition_concentration
        assert ((low < mean) & (mean < high))[off_diagonal].all()
        many = off_diagonal & (shapes > 100)  # where a Gamma is close to a normal
        widths = (high - low)[many] / (mean / np.sqrt(shapes))[many]
        np.testing.assert_allclose(widths, 2 * 1.645, rtol=0.02)
        assert np.isnan(np.diag(low)).all()
        assert np.isnan(np.diag(high)).all()
        with pytest.raises(ConfigError, match="choose from initial_probs, generator, means"):
            model.params_.credible_interval("transition_matrix")


@tiers
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_never_decreases(tier: Any, seed: int) -> None:
    panel, _ = big_panel(seed, 60)
    options = {"precision": "float64", "tol": 0.0, "max_iter": 40, "n_restarts": 1}
    report = tier(4, transitions="continuous", random_state=seed, **options).fit(panel).fit_report_
    assert (np.diff(report.history) >= -1e-10 * np.abs(report.history[1:])).all()
    assert report.history[-1] > report.history[0] + 1.0


@tiers
def test_threads_and_chunks_do_not_change_a_fit(tier: Any) -> None:
    """Many chunks, on one thread and on three: the same bits. Parts add up to the whole."""
    panel, params = big_panel(0, 900)
    model = tier(3, max_iter=3, n_restarts=1, transitions="continuous", precision="float64")
    layout = ColumnLayout.create((), panel.missing_cells, panel.missing_codes)
    n_matrices = len(pack_panel(layout, PanelRows(panel), 3, True)[2])
    assert len(engine.make_plan(panel.offsets, n_matrices=n_matrices).order) >= 3
    fits = [clone(model).set_params(n_threads=n).fit(panel) for n in (1, 3)]
    assert fits[0].fit_report_.history == fits[1].fit_report_.history
    np.testing.assert_array_equal(fits[0].params_.generator, fits[1].params_.generator)

    def collect(part: Panel) -> Statistics:
        layout = ColumnLayout.create((), part.missing_cells, part.missing_codes)
        rows, _, gaps = pack_panel(layout, PanelRows(part), 3, True)
        log_model = build_point_model(params)
        tables = layout.build_tables(log_model, np.float64, "float64", None, gaps)
        sums, log_likelihoods = engine.collect(rows, tables)
        jumps = log_model.count_jumps(sums, gaps)
        total = float(log_likelihoods.sum())
        return layout.build_statistics(tables, sums, total, part.n_rows, jumps)

    whole, parts = collect(panel), collect(panel[:300]) + collect(panel[300:])
    np.testing.assert_allclose(parts.transitions, whole.transitions, rtol=1e-10)
    assert parts.log_likelihood == pytest.approx(whole.log_likelihood, rel=1e-12)


def test_equal_gaps_of_an_hour_are_the_discrete_chain() -> None:
    problem, panel, _, generator = make("mixed", 2)
    hourly = replace(panel, times=3600.0 * np.arange(panel.n_rows))
    params = continuous_params(problem, generator)
    per_row = HMMParams(
        problem.initial, expm(generator), params.means, params.variances, params.category_probs
    )
    models = [BaumWelchHMM.from_params(p, precision="float64") for p in (params, per_row)]
    assert [m.transitions for m in models] == ["continuous", "per-row"]
    for method in ("filter", "smooth"):
        first, second = (getattr(model, method)(hourly) for model in models)
        np.testing.assert_allclose(first.probs, second.probs, atol=1e-13)
        np.testing.assert_allclose(first.log_likelihood, second.log_likelihood, rtol=1e-13)
    np.testing.assert_array_equal(*(model.decode(hourly) for model in models))
    assert models[0].bic(hourly) == pytest.approx(models[1].bic(hourly), rel=1e-12)
    day = replace(panel, times=86400.0 * np.arange(panel.n_rows))
    assert np.abs(models[0].filter(day).probs - models[0].filter(hourly).probs).max() > 0.01


def test_dates_are_times_in_any_unit() -> None:
    problem, panel, hours, generator = make("mixed", 2)
    model = BaumWelchHMM.from_params(continuous_params(problem, generator))
    seconds = np.cumsum(np.rint(3600 * hours)).astype(np.int64)
    expected = model.filter(replace(panel, times=seconds)).probs
    for times in (
        np.datetime64("2024-01-01", "s") + seconds.astype("m8[s]"),
        (np.datetime64("2024-01-01", "s") + seconds.astype("m8[s]")).astype("M8[ns]"),
        seconds.astype(np.uint64),
    ):
        np.testing.assert_array_equal(model.filter(replace(panel, times=times)).probs, expected)


def test_a_gap_of_zero_keeps_the_belief_and_a_huge_one_forgets_it() -> None:
    _, params = big_panel(0, 2)
    model = BaumWelchHMM.from_params(params)
    blank, belief = [np.nan, np.nan], np.array([0.2, 0.7, 0.1])
    np.testing.assert_allclose(model.step(belief, blank, gap_s=0.0), belief, atol=1e-15)
    long_run = model.step(belief, blank, gap_s=1e12)
    np.testing.assert_allclose(long_run @ params.generator, 0.0, atol=1e-9)
    np.testing.assert_allclose(model.step(belief, blank, gap_s=1e300), long_run, atol=1e-9)
    np.testing.assert_allclose(model.ahead(long_run, 1e3), long_run, atol=1e-9)


def test_rows_at_the_same_moment_may_contradict_each_other() -> None:
    """A fraud and a genuine transaction in the same second must not stop a fit."""
    cells = np.array([[0.0], [1e4], [0.0], [1e4]] * 10)
    panel = Panel.from_arrays(cells, lengths=[40], times=np.zeros(40))
    anchors = Anchors([0, 1, 0, 1] * 10, np.eye(2, dtype=bool))
    for tier in (BaumWelchHMM, VariationalHMM):
        model = tier(2, n_restarts=1, max_iter=5, transitions="continuous").fit(
            panel, anchors=anchors
        )
        probs = model.smooth(panel, anchors).probs
        np.testing.assert_allclose(probs[:, 1], [0, 1, 0, 1] * 10, atol=1e-12)
        assert np.isfinite(model.params_.generator).all()


def test_ahead_is_the_forecast_of_a_belief() -> None:
    _, params = big_panel(0, 2)
    model, belief = BaumWelchHMM.from_params(params), np.array([0.2, 0.7, 0.1])
    np.testing.assert_array_equal(model.ahead(belief, 0.0), belief)
    later = model.ahead(belief, [0.5, 24.0, 1e5])
    for forecast, hours in zip(later, [0.5, 24.0, 1e5], strict=True):
        np.testing.assert_allclose(forecast, belief @ expm(params.generator * hours), atol=1e-12)
    np.testing.assert_allclose(model.ahead(later[0], 23.5), later[1], atol=1e-12)
    # A row without a cell, a day later, changes nothing but the time.
    step = model.step(belief, [np.nan, np.nan], gap_s=86400.0)
    np.testing.assert_allclose(step, later[1], atol=1e-12)


def test_samples_move_as_the_gaps_say() -> None:
    _, params = big_panel(0, 2)
    model, n = BaumWelchHMM.from_params(params), 20_000
    for hours in (1.0, 24.0):
        times = np.tile([0.0, 3600.0 * hours], n)
        panel, path = model.sample([2] * n, random_state=0, times=times)
        np.testing.assert_array_equal(panel.times, times)
        before, after = path[::2], path[1::2]
        expected = expm(params.generator * hours)
        for k in range(3):
            rows = before == k
            shares = np.bincount(after[rows], minlength=3) / rows.sum()
            error = np.sqrt(np.maximum(expected[k], 1e-3) / rows.sum())
            assert (np.abs(shares - expected[k]) / error).max() < 5.0


def test_a_rate_of_zero_stays_zero() -> None:
    panel, params = big_panel(0, 60)
    assert params.generator[2, 1] == 0.0
    model = BaumWelchHMM(3, init=params, transitions="continuous", max_iter=5).fit(panel)
    assert model.params_.generator[2, 1] == 0.0
    assert (np.diff(model.fit_report_.history) > -1e-3).all()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_rounded_gaps_are_the_same_model_live_and_in_batch(precision: str) -> None:
    """Gaps of any length: the filter and the step round them alike."""
    panel, params = big_panel(3, 20)
    assert (3600.0 * code_hours(gap_codes(panel.gaps_s)) != panel.gaps_s)[1:].any()
    model = BaumWelchHMM.from_params(params, precision=precision)
    filtered, gaps = model.filter(panel).probs, panel.gaps_s
    atol = 1e-12 if precision == "float64" else 1e-5
    for u in range(panel.n_sequences):
        belief = None
        for row in range(panel.offsets[u], panel.offsets[u + 1]):
            belief = model.step(belief, panel.continuous[row], gap_s=gaps[row])
            np.testing.assert_allclose(belief, filtered[row], atol=atol)


def test_likelihood_of_a_path_by_hand() -> None:
    """Two rows, two states: no helper shared with the engine."""
    params = ContinuousHMMParams(
        [0.6, 0.4], [[0.0], [1.0]], [[1.0], [1.0]], generator=[[-0.5, 0.5], [0.25, -0.25]]
    )
    panel = Panel.from_arrays([[0.2], [0.9]], times=[0.0, 7200.0])
    stay = 1 / 3 + 2 / 3 * np.exp(-0.75 * 2)  # from the first state, after two hours
    back = 1 / 3 - 1 / 3 * np.exp(-0.75 * 2)
    matrix = np.array([[stay, 1 - stay], [back, 1 - back]])
    density = np.exp(-0.5 * (np.array([[0.2], [0.9]]) - [[0.0, 1.0]]) ** 2) / np.sqrt(2 * np.pi)
    expected = np.log(((np.array([0.6, 0.4]) * density[0]) @ matrix) @ density[1])
    model = BaumWelchHMM.from_params(params, precision="float64")
    assert model.log_likelihood(panel)[0] == pytest.approx(expected, rel=1e-12)
    path = np.array([[0, 1]])
    score = path_log_probs(path, np.log([0.6, 0.4]), np.log(matrix)[None], np.log(density))[0]
    assert score == pytest.approx(np.log(0.6 * density[0, 0] * (1 - stay) * density[1, 1]))
