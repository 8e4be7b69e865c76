"""Emission temperature, inference without the chain, and emission terms, against NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from tests.reference.bridge import anchors_of, baum_welch, factors_of, panel_of, variational
from tests.reference.columns import log_chain, weighted_emission
from tests.reference.enumeration import Array, log_emissions
from tests.reference.enumeration import log as log0
from tests.reference.logdomain import forward_backward, viterbi
from tests.reference.problems import Problem, random_factors, random_problem
from turncoat import BaumWelchHMM, ConfigError, HMMParams, Panel, VariationalHMM, load_model
from turncoat.models.variational import build_predictive_model
from turncoat.scoring.calibration import TEMPERATURES, choose_temperature

SHAPES: dict[str, dict[str, Any]] = {
    "gaussian": {"n_continuous": 3, "n_categories": ()},
    "categorical": {"n_continuous": 0, "n_categories": (2, 3, 5)},
    "mixed with missing cells": {
        "n_continuous": 2,
        "n_categories": (2, 4),
        "missing": 0.3,
        "missing_rows": True,
    },
    "wide": {"n_continuous": 19, "n_categories": (2,) * 9 + (3,), "missing": 0.1},
    "anchored": {"n_continuous": 2, "n_categories": (3,), "noise": 0.1},
}
KINDS = ("point", "expected-log", "predictive", "robust")
TOLERANCE = {"float64": 1e-9, "float32": 2e-5}
shapes = pytest.mark.parametrize("shape", list(SHAPES))
kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def problem_of(shape: str) -> Problem:
    return random_problem(17, 3, lengths=(9, 1, 6, 12), **SHAPES[shape])


def model_of(problem: Problem, kind: str, **settings: Any) -> Any:
    if kind == "point":
        return baum_welch(problem, **settings)
    q = random_factors(5, problem.n_states, problem.continuous.shape[1], problem.n_categories)
    return variational(q, emission=kind, **settings)


@cache
def terms_of(shape: str, kind: str) -> tuple[Array, Array, Array]:
    """Log initial, log transition and log emission at temperature 1, each the long way."""
    problem = problem_of(shape)
    if kind == "point":
        rows = log_emissions(
            problem.continuous,
            problem.categorical,
            problem.means,
            problem.variances,
            problem.category_probs,
        )
        return log0(problem.initial), log0(problem.transition), rows
    model = model_of(problem, kind)
    q = factors_of(model)
    if kind == "robust":
        return *log_chain(model), weighted_emission(model, problem.continuous, problem.categorical)
    if kind == "expected-log":
        rows = q.expected_log_emissions(problem.continuous, problem.categorical)
        return q.expected_log_initial(), q.expected_log_transition(), rows
    rows = q.predictive_log_emissions(problem.continuous, problem.categorical)
    return (
        np.log(q.initial / q.initial.sum()),
        np.log(q.transition / q.transition.sum(axis=1, keepdims=True)),
        rows,
    )


@pytest.mark.parametrize("precision", list(TOLERANCE))
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.7, 64.0])
@kinds
@shapes
def test_tempered_inference_is_the_recursion_on_divided_emissions(
    shape: str, kind: str, temperature: float, precision: str
) -> None:
    """Anchors are no emission, and are not divided."""
    problem = problem_of(shape)
    model = model_of(problem, kind, temperature=temperature, precision=precision)
    initial, transition, emission = terms_of(shape, kind)
    rows = emission / temperature + problem.anchor_weights()
    expected = [forward_backward(initial, transition, part) for part in problem.split(rows)]
    panel, anchors, tolerance = panel_of(problem), anchors_of(problem), TOLERANCE[precision]
    filtered = model.filter(panel, anchors)
    np.testing.assert_allclose(
        filtered.probs, np.concatenate([e.filtered for e in expected]), atol=tolerance
    )
    np.testing.assert_allclose(
        model.smooth(panel, anchors).probs,
        np.concatenate([e.smoothed for e in expected]),
        atol=tolerance,
    )
    np.testing.assert_allclose(
        filtered.log_likelihood,
        [e.log_likelihood for e in expected],
        rtol=tolerance,
        atol=tolerance,
    )
    if precision == "float64":
        path = np.concatenate([viterbi(initial, transition, part) for part in problem.split(rows)])
        np.testing.assert_array_equal(model.decode(panel, anchors), path)


@kinds
@shapes
def test_the_live_step_uses_the_temperature(shape: str, kind: str) -> None:
    problem = problem_of(shape)
    model = model_of(problem, kind, temperature=5.0)
    panel = panel_of(problem)
    filtered = model.filter(panel).probs
    for u in range(panel.n_sequences):
        belief = None
        for row in range(panel.offsets[u], panel.offsets[u + 1]):
            belief = model.step(belief, panel.continuous[row], panel.categorical[row])
            np.testing.assert_allclose(belief, filtered[row], atol=1e-12)


@kinds
def test_a_changed_temperature_takes_effect_at_once(kind: str) -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = model_of(problem, kind), panel_of(problem)
    before = [
        model.filter(panel).probs,
        model.step(None, panel.continuous[1], panel.categorical[1]),
    ]
    pieces = model.explain_emission(panel.continuous, panel.categorical)[0]
    model.set_params(temperature=4.0)
    fresh = model_of(problem, kind, temperature=4.0)
    after = [model.filter(panel).probs, model.step(None, panel.continuous[1], panel.categorical[1])]
    np.testing.assert_array_equal(after[0], fresh.filter(panel).probs)
    np.testing.assert_array_equal(
        after[1], fresh.step(None, panel.continuous[1], panel.categorical[1])
    )
    np.testing.assert_allclose(
        model.explain_emission(panel.continuous, panel.categorical)[0],
        pieces / 4.0,
        rtol=1e-12,
        atol=1e-12,
    )
    assert not np.allclose(before[0], after[0])
    assert not np.allclose(before[1], after[1])


@kinds
@shapes
def test_temperature_one_changes_no_bit(shape: str, kind: str) -> None:
    problem = problem_of(shape)
    panel = panel_of(problem)
    plain = model_of(problem, kind, precision="float32")
    terms = plain._build_log_model(plain.params_)
    for one in (1, 1.0, np.float64(1.0)):
        model = model_of(problem, kind, precision="float32", temperature=one)
        np.testing.assert_array_equal(model.filter(panel).probs, plain.filter(panel).probs)
        np.testing.assert_array_equal(model.smooth(panel).probs, plain.smooth(panel).probs)
        divided = terms.apply_temperature(float(one))
        for name in (
            "log_initial",
            "log_transition",
            "means",
            "scales",
            "constants",
            "log_categories",
            "half_dof",
        ):
            np.testing.assert_array_equal(
                getattr(divided, name), getattr(terms, name), err_msg=name
            )


def test_temperatures_multiply() -> None:
    q = random_factors(1, 2, 3, (2, 4))
    terms = build_predictive_model(variational(q).params_)
    twice, once = terms.apply_temperature(2.0).apply_temperature(3.0), terms.apply_temperature(6.0)
    rng = np.random.default_rng(0)
    row = rng.normal(size=(4, 3)), rng.integers(-1, 2, (4, 2))
    for one, other in zip(twice.row_terms(*row), once.row_terms(*row), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@kinds
def test_the_likelihood_is_the_model_s_whatever_the_temperature(kind: str) -> None:
    problem = problem_of("mixed with missing cells")
    panel = panel_of(problem)
    plain, hot = model_of(problem, kind), model_of(problem, kind, temperature=9.0)
    np.testing.assert_array_equal(hot.log_likelihood(panel), plain.log_likelihood(panel))
    assert hot.bic(panel) == plain.bic(panel)
    assert not np.allclose(hot.filter(panel).log_likelihood, plain.log_likelihood(panel))


@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
def test_fitting_is_at_temperature_one(tier: Any) -> None:
    panel = panel_of(random_problem(3, 2, 2, (3,), [10] * 12))
    cold, hot = (tier(2, n_restarts=1, max_iter=6, temperature=t).fit(panel) for t in (1.0, 20.0))
    np.testing.assert_array_equal(cold.params_.means, hot.params_.means)
    assert cold.fit_report_.history == hot.fit_report_.history


@pytest.mark.parametrize("temperature", [1.0, 6.0])
@kinds
@shapes
def test_without_its_chain_a_model_sees_each_row_alone(
    shape: str, kind: str, temperature: float
) -> None:
    problem = problem_of(shape)
    model = model_of(problem, kind, temperature=temperature)
    _, _, emission = terms_of(shape, kind)
    weights = np.array([3.0, 0.5, 1.5])
    rows = np.log(weights / weights.sum()) + emission / temperature
    found = model.infer_without_chain(panel_of(problem), weights)
    np.testing.assert_allclose(found.probs, softmax(rows, axis=1), atol=1e-10)
    expected = [logsumexp(part, axis=1).sum() for part in problem.split(rows)]
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-10)


def test_without_its_chain_a_state_of_no_weight_is_never_believed() -> None:
    problem = problem_of("mixed with missing cells")
    probs = model_of(problem, "point").infer_without_chain(panel_of(problem), [1.0, 0.0, 1.0]).probs
    assert (probs[:, 1] == 0.0).all()
    np.testing.assert_allclose(probs.sum(axis=1), 1.0)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@kinds
@shapes
def test_row_terms_add_up_to_the_emission_of_the_kernels(
    shape: str, kind: str, temperature: float
) -> None:
    """A sequence of one row under a single state has the emission as its likelihood."""
    problem = problem_of(shape)
    model, whole = model_of(problem, kind, temperature=temperature), panel_of(problem)
    cells, names, rest = model.explain_emission(whole.continuous, whole.categorical)
    assert not rest.any()
    assert cells.shape == (whole.n_rows, 3, whole.n_continuous)
    assert names.shape == (whole.n_rows, 3, whole.n_categorical)
    assert (cells.transpose(0, 2, 1)[np.isnan(whole.continuous)] == 0.0).all()
    assert (names.transpose(0, 2, 1)[whole.categorical < 0] == 0.0).all()
    total = cells.sum(axis=2) + names.sum(axis=2)
    np.testing.assert_allclose(
        total, terms_of(shape, kind)[2] / temperature, rtol=1e-10, atol=1e-10
    )
    np.testing.assert_array_equal(model.log_emission(whole.continuous, whole.categorical), total)
    alone = Panel.from_arrays(
        whole.continuous,
        whole.categorical,
        lengths=np.ones(whole.n_rows, int),
        n_categories=whole.n_categories or None,
    )
    for state in range(3):
        kernels = model.infer_without_chain(alone, np.eye(3)[state]).log_likelihood
        np.testing.assert_allclose(total[:, state], kernels, rtol=1e-10, atol=1e-10)


@kinds
def test_the_predicted_belief_is_the_chain_alone(kind: str) -> None:
    problem = problem_of("gaussian")
    model = model_of(problem, kind, temperature=3.0)
    initial, transition, _ = terms_of("gaussian", kind)
    np.testing.assert_allclose(model.predict_log_belief(None), initial, rtol=1e-12)
    for belief in ([0.2, 0.5, 0.3], [1.0, 0.0, 0.0]):
        np.testing.assert_allclose(
            model.predict_log_belief(belief),
            np.log(np.array(belief) @ np.exp(transition)),
            rtol=1e-10,
        )


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "hot", True, None])
def test_bad_temperatures_are_refused(wrong: Any) -> None:
    panel = panel_of(problem_of("gaussian"))
    with pytest.raises(ConfigError, match="temperature"):
        BaumWelchHMM(2, temperature=wrong).fit(panel)
    model = model_of(problem_of("gaussian"), "point")
    model.set_params(temperature=wrong)
    with pytest.raises(ConfigError, match="temperature"):
        model.filter(panel)


def test_a_saved_model_keeps_its_temperature(tmp_path: Any) -> None:
    problem = problem_of("mixed with missing cells")
    model, panel = model_of(problem, "predictive", temperature=7.5), panel_of(problem)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.temperature == 7.5
    np.testing.assert_array_equal(loaded.filter(panel).probs, model.filter(panel).probs)


def with_copies(n_copies: int, seed: int) -> tuple[BaumWelchHMM, Panel]:
    """One informative column, written `n_copies` times.

    The model takes the copies for as many independent columns.
    """
    truth = HMMParams([0.9, 0.1], [[0.95, 0.05], [0.2, 0.8]], [[0.0], [2.0]], [[1.0], [1.0]])
    drawn, states = BaumWelchHMM.from_params(truth).sample([25] * 160, random_state=seed)
    labels = np.random.default_rng(seed).random(len(states)) < np.where(states == 1, 0.6, 0.01)
    params = HMMParams(
        truth.initial_probs,
        truth.transition_matrix,
        *(np.repeat(a, n_copies, 1) for a in (truth.means, truth.variances)),
    )
    cells = np.repeat(drawn.continuous, n_copies, axis=1)
    return BaumWelchHMM.from_params(params), Panel.from_arrays(
        cells, lengths=drawn.lengths, labels=labels
    )


@pytest.mark.parametrize(("n_copies", "least", "most"), [(1, 1.0, 2.0), (32, 16.0, 64.0)])
def test_the_chosen_temperature_undoes_copied_columns(
    n_copies: int, least: float, most: float
) -> None:
    model, fit = with_copies(n_copies, seed=1)
    _, selection = with_copies(n_copies, seed=2)
    chosen = choose_temperature(model, fit, selection, np.arange(selection.n_rows))
    assert chosen in TEMPERATURES
    assert least <= chosen <= most
    assert model.temperature == 1.0


def test_the_temperature_is_judged_on_the_named_rows_only() -> None:
    model, fit = with_copies(32, seed=1)
    _, selection = with_copies(32, seed=2)
    places = np.arange(0, selection.n_rows, 2)
    other = Panel.from_arrays(
        selection.continuous,
        lengths=selection.lengths,
        labels=np.where(np.arange(selection.n_rows) % 2, 1 - selection.labels, selection.labels),
    )
    assert choose_temperature(model, fit, other, places) == choose_temperature(
        model, fit, selection, places
    )
