"""What every estimator must do.

A new tier registers here; it does not get its own copy of these tests.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from threadpoolctl import threadpool_info

from turncoat import (
    Anchors,
    BaumWelchHMM,
    ConfigError,
    ContinuousHMMParams,
    DataError,
    EmptyStateWarning,
    HMMParams,
    NotFittedError,
    Panel,
    Prior,
    VariationalHMM,
    align_states,
    load_model,
)

TIERS = [BaumWelchHMM, VariationalHMM]


class Continuous:
    """A tier whose models have transitions in continuous time unless a test says otherwise."""

    def __init__(self, tier: Any) -> None:
        self.__name__, self.tier, self.from_params = tier.__name__, tier, tier.from_params

    def __call__(self, n_states: int, **settings: Any) -> Any:
        return self.tier(n_states, **{"transitions": "continuous", **settings})


CHAINS = [*TIERS, *map(Continuous, TIERS)]
QUICK: dict[str, Any] = {"n_restarts": 2, "max_iter": 15}


def make_panel(
    n_sequences: int = 30, seed: int = 0, missing: float = 0.1, cells: str = "float32"
) -> Panel:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 25, n_sequences)
    n = int(lengths.sum())
    continuous = (rng.normal(size=(n, 3)) + 3.0 * rng.integers(0, 2, (n, 1))).astype(cells)
    categorical = np.stack([rng.integers(0, 2, n), rng.integers(0, 4, n)], axis=1)
    continuous[rng.random(continuous.shape) < missing] = np.nan
    categorical[rng.random(categorical.shape) < missing] = -1
    times = np.cumsum(np.exp(np.random.default_rng(seed).normal(9.0, 3.0, n)).round())
    return Panel.from_arrays(
        continuous, categorical, lengths=lengths, times=times, n_categories=[2, 4]
    )


@pytest.fixture(scope="module")
def panel() -> Panel:
    return make_panel()


every_tier = pytest.mark.parametrize("tier", TIERS)
every_chain = pytest.mark.parametrize(
    "tier", CHAINS, ids=[*(t.__name__ for t in TIERS), *(f"Continuous{t.__name__}" for t in TIERS)]
)


def assert_sound(model: Any, panel: Panel) -> None:
    """Finite parameters, posteriors that add up, a path within range."""
    for name in ("initial_probs", "transition_matrix", "means", "variances"):
        assert np.isfinite(getattr(model.params_, name)).all(), name
    for posteriors in (model.filter(panel), model.smooth(panel)):
        assert posteriors.probs.shape == (panel.n_rows, model.n_states)
        np.testing.assert_allclose(posteriors.probs.sum(axis=1), 1.0, atol=1e-12)
        assert posteriors.log_likelihood.shape == (panel.n_sequences,)
        assert np.isfinite(posteriors.log_likelihood).all()
    path = model.decode(panel)
    assert path.shape == (panel.n_rows,)
    assert ((path >= 0) & (path < model.n_states)).all()
    assert np.isfinite(model.bic(panel))
    assert np.isfinite(model.lower_bound_)


@every_chain
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("cells", ["float32", "float64"])
def test_fit_and_infer(tier: Any, precision: str, cells: str) -> None:
    panel = make_panel(cells=cells)
    assert_sound(tier(3, precision=precision, **QUICK).fit(panel), panel)


@every_chain
def test_scikit_learn_conventions(tier: Any, panel: Panel) -> None:
    model = tier(3, max_iter=7, tol=0.5)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(n_states=2).n_states == 2
    assert model.fit(panel) is model
    assert not hasattr(clone(model), "params_")
    assert tier.__name__ in repr(model)


@every_chain
def test_inputs_are_not_changed(tier: Any, panel: Panel) -> None:
    cells, codes = panel.continuous.copy(), panel.categorical.copy()
    model = tier(3, **QUICK).fit(panel)
    model.smooth(panel)
    np.testing.assert_array_equal(panel.continuous, cells)
    np.testing.assert_array_equal(panel.categorical, codes)


@every_chain
def test_same_seed_same_bits_another_seed_other_starts(tier: Any, panel: Panel) -> None:
    first = tier(3, random_state=5, **QUICK).fit(panel)
    again = tier(3, random_state=5, n_threads=2, **QUICK).fit(panel)
    np.testing.assert_array_equal(first.params_.means, again.params_.means)
    assert first.fit_report_.history == again.fit_report_.history
    assert [r.seed for r in first.fit_report_.restarts] == [5, 142]
    other = tier(3, random_state=6, **QUICK).fit(panel)
    assert first.fit_report_.history[0] != other.fit_report_.history[0]


@every_chain
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_replaying_steps_equals_filter(tier: Any, precision: str, panel: Panel) -> None:
    model = tier(3, precision=precision, **QUICK).fit(panel)
    filtered = model.filter(panel).probs
    for u in range(5):
        belief = None
        for row in range(panel.offsets[u], panel.offsets[u + 1]):
            values = panel.continuous[row], panel.categorical[row]
            belief = model.step(belief, *values, gap_s=panel.gaps_s[row])
            np.testing.assert_allclose(
                belief, filtered[row], atol=1e-12 if precision == "float64" else 1e-5
            )


@every_chain
def test_round_trip_through_disk(tier: Any, panel: Panel, tmp_path: Any) -> None:
    model = tier(3, **QUICK).fit(panel)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert type(loaded) is type(model)
    assert type(loaded.params_) is type(model.params_)
    np.testing.assert_array_equal(model.filter(panel).probs, loaded.filter(panel).probs)
    assert loaded.fit_report_ == model.fit_report_
    assert loaded.lower_bound_ == model.lower_bound_
    assert loaded.get_params() == model.get_params()


@every_chain
def test_a_fit_from_fitted_parameters_continues(tier: Any, panel: Panel) -> None:
    first = tier(3, **QUICK, precision="float64", tol=0.0).fit(panel)
    onward = tier(3, init=first.params_, max_iter=5, precision="float64").fit(panel)
    assert onward.fit_report_.history[0] == pytest.approx(first.lower_bound_, rel=1e-12)
    assert onward.lower_bound_ >= first.lower_bound_
    assert len(onward.fit_report_.restarts) == 1


@every_tier
def test_reaching_the_cap_is_not_convergence(tier: Any, panel: Panel) -> None:
    short = tier(3, n_restarts=1, max_iter=2, tol=0.0).fit(panel).fit_report_
    assert (short.converged, short.stop_reason, short.n_iter) == (False, "iteration cap", 2)
    full = tier(3, n_restarts=1, max_iter=500, tol=1e-4).fit(panel).fit_report_
    assert (full.converged, full.stop_reason) == (True, "tolerance")
    assert full.n_iter == len(full.history) < 500
    assert full.seconds > 0


@every_chain
def test_halving_keeps_the_best_and_reports_the_rest(tier: Any, panel: Panel) -> None:
    report = (
        tier(4, n_restarts=5, max_iter=60, tol=0.0, restart_halving=True).fit(panel).fit_report_
    )
    iterations = sorted(r.n_iter for r in report.restarts)
    assert iterations == [10, 10, 20, 20, 60]
    assert sum(r.stopped_early for r in report.restarts) == 4
    winner = max(report.restarts, key=lambda r: r.n_iter)
    assert winner.lower_bound == report.history[-1]
    full = tier(4, n_restarts=5, max_iter=60, tol=0.0, restart_halving=False).fit(panel).fit_report_
    assert [r.n_iter for r in full.restarts] == [60] * 5
    assert full.history[-1] == max(r.lower_bound for r in full.restarts)


@every_chain
def test_alignment_undoes_a_permutation(tier: Any, panel: Panel) -> None:
    model = tier(3, **QUICK).fit(panel)
    shuffled = tier.from_params(model.params_.reorder([2, 0, 1]))
    order = align_states(model.smooth(panel).probs, shuffled.smooth(panel).probs)
    np.testing.assert_array_equal(order, [1, 2, 0])
    np.testing.assert_allclose(
        shuffled.smooth(panel).probs[:, order], model.smooth(panel).probs, atol=1e-4
    )
    path_order = align_states(model.decode(panel), shuffled.decode(panel))
    np.testing.assert_array_equal(
        np.argsort(path_order)[shuffled.decode(panel)], model.decode(panel)
    )
    np.testing.assert_array_equal(shuffled.params_.reorder(order).means, model.params_.means)


@every_chain
def test_samples_have_the_model_s_moments(tier: Any, panel: Panel) -> None:
    model = tier(2, **QUICK).fit(panel)
    times = 1000.0 * np.arange(40 * 500)
    drawn, states = model.sample([40] * 500, random_state=3, times=times)
    again, _ = model.sample([40] * 500, random_state=3, times=times)
    np.testing.assert_array_equal(drawn.continuous, again.continuous)
    for k in range(2):
        rows = states == k
        spread = np.sqrt(model.params_.variances[k])
        assert np.abs(
            (drawn.continuous[rows].mean(axis=0) - model.params_.means[k]) / spread
        ).max() < 5 / np.sqrt(rows.sum())
        shares = np.bincount(drawn.categorical[rows, 1], minlength=4) / rows.sum()
        assert np.abs(shares - model.params_.category_probs[1][k]).max() < 5 / np.sqrt(rows.sum())


@every_chain
def test_anchored_fit_puts_rows_where_they_belong(tier: Any) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    times = 1000.0 * np.arange(400)
    cells = rng.normal(size=(400, 1)) + truth[:, None]
    panel = Panel.from_arrays(cells, lengths=[20] * 20, times=times)
    codes = np.where(rng.random(400) < 0.5, truth, -1)
    allowed = np.array([[True, False], [False, True]])
    model = tier(2, **QUICK).fit(panel, anchors=Anchors(codes, allowed))
    assert model.params_.means[1, 0] > model.params_.means[0, 0] + 0.5
    clamped = model.smooth(panel, anchors=Anchors(codes, allowed)).probs
    np.testing.assert_allclose(clamped[codes == 1, 1], 1.0)
    noisy = model.smooth(panel, anchors=Anchors(codes, allowed, noise=0.2)).probs
    assert 0.0 < noisy[codes == 1, 0].max() < 1.0
    free = Anchors(np.full(400, -1), allowed)
    np.testing.assert_array_equal(
        model.filter(panel, anchors=free).probs, model.filter(panel).probs
    )


AWKWARD = {
    "one row": lambda rng: {"continuous": rng.normal(size=(1, 2))},
    "one customer": lambda rng: {"continuous": rng.normal(size=(50, 2))},
    "more states than rows": lambda rng: {"continuous": rng.normal(size=(2, 2)), "lengths": [1, 1]},
    "constant column": lambda rng: {
        "continuous": np.c_[np.full(60, 7.0), rng.normal(size=60)],
        "lengths": [6] * 10,
    },
    "huge constant column": lambda rng: {
        "continuous": np.c_[np.full(60, 1e14), rng.normal(size=60)],
        "lengths": [6] * 10,
    },
    "all rows equal": lambda rng: {"continuous": np.ones((60, 2)), "lengths": [6] * 10},
    "column all missing": lambda rng: {
        "continuous": np.c_[np.full(60, np.nan), rng.normal(size=60)],
        "lengths": [6] * 10,
    },
    "everything missing": lambda rng: {
        "continuous": np.full((20, 2), np.nan),
        "categorical": np.full((20, 1), -1),
    },
    "category all missing": lambda rng: {
        "continuous": rng.normal(size=(60, 1)),
        "categorical": np.full((60, 2), -1),
        "n_categories": [2, 5],
    },
    "one category": lambda rng: {"categorical": np.zeros((40, 1), int), "lengths": [4] * 10},
    "large offset": lambda rng: {
        "continuous": 1e6 + rng.normal(size=(200, 2)),
        "lengths": [20] * 10,
    },
    "wild scales": lambda rng: {
        "continuous": rng.normal(size=(200, 3)) * [1e-8, 1.0, 1e12],
        "lengths": [20] * 10,
    },
    "an outlier": lambda rng: {
        "continuous": np.r_[rng.normal(size=(199, 1)), [[1e6]]],
        "lengths": [20] * 10,
    },
    "an absurd outlier": lambda rng: {
        "continuous": np.r_[rng.normal(size=(199, 1)), [[1e14]]],
        "lengths": [20] * 10,
    },
    "many categories": lambda rng: {
        "categorical": rng.integers(0, 3000, (500, 1)),
        "n_categories": [3000],
        "lengths": [50] * 10,
    },
}


@every_chain
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_panels_give_finite_results(tier: Any, precision: str, name: str) -> None:
    panel = Panel.from_arrays(**AWKWARD[name](np.random.default_rng(0)))
    panel = replace(panel, times=977.0 * np.arange(panel.n_rows) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", EmptyStateWarning)
        model = tier(3, precision=precision, **QUICK).fit(panel)
        assert_sound(model, panel)
    assert not model.fit_report_.decreases


@every_chain
@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_panels_in_few_passes_and_as_a_second_month(tier: Any, name: str) -> None:
    panel = Panel.from_arrays(**AWKWARD[name](np.random.default_rng(0)))
    panel = replace(panel, times=977.0 * np.arange(panel.n_rows) ** 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", EmptyStateWarning)
        model = tier(3, max_passes=3, **QUICK).fit(panel)
        assert_sound(model, panel)
        if hasattr(model, "partial_fit"):
            assert_sound(model.partial_fit(panel), panel)
            assert_sound(model.set_params(max_passes=None).partial_fit(panel), panel)
    assert not model.fit_report_.decreases


@every_tier
def test_an_emptied_state_is_kept_finite_and_reported(tier: Any) -> None:
    """Six states for two tight clusters, one start deliberately out of reach."""
    rng = np.random.default_rng(0)
    panel = Panel.from_arrays(
        rng.normal(size=(100, 1)) * 0.01 + 10.0 * rng.integers(0, 2, (100, 1)), lengths=[10] * 10
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = tier(6, n_restarts=1, max_iter=60, tol=0.0).fit(panel)
    assert_sound(model, panel)
    occupancy = model.smooth(panel).probs.sum(axis=0)
    empty = model.fit_report_.empty_states
    assert set(empty) >= set(np.flatnonzero(occupancy < 0.5))
    assert [warning.category for warning in caught] == [EmptyStateWarning] * bool(empty)
    assert not empty or f"states {', '.join(map(str, empty))} (" in str(caught[0].message)


def test_a_state_no_row_can_reach_is_reported_empty() -> None:
    far = HMMParams([0.5, 0.5], [[0.5, 0.5], [0.5, 0.5]], [[0.0], [1e6]], [[1.0], [1.0]])
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(50, 1)))
    with pytest.warns(EmptyStateWarning, match="empty states 1 "):
        model = BaumWelchHMM(2, init=far, max_iter=5, tol=0.0).fit(panel)
    assert model.fit_report_.empty_states == (1,)
    assert_sound(model, panel)


def test_floored_variances_are_counted() -> None:
    panel = Panel.from_arrays(
        np.repeat([0.0, 1.0], 50)[:, None] + 0.0 * np.arange(100)[:, None], lengths=[10] * 10
    )
    model = BaumWelchHMM(2, **QUICK).fit(panel)
    assert model.fit_report_.floored_share == 1.0
    np.testing.assert_allclose(model.params_.variances, 1e-3 * 0.25)


@every_tier
def test_a_category_never_seen_in_the_fit(tier: Any) -> None:
    """Inside the declared categories it is improbable but finite.

    Beyond them it is refused with its place.
    """
    panel = Panel.from_arrays(
        categorical=np.random.default_rng(0).integers(0, 3, (60, 1)),
        n_categories=[4],
        lengths=[6] * 10,
    )
    model = tier(2, **QUICK).fit(panel)
    unseen = Panel.from_arrays(categorical=[[0], [3]], n_categories=[4])
    assert np.isfinite(model.filter(unseen).log_likelihood).all()
    assert np.isfinite(model.step(None, None, [3])).all()
    beyond = Panel.from_arrays(categorical=[[0], [4]])
    with pytest.raises(DataError, match="row 1, column 0: code 4 is unknown"):
        model.filter(beyond)
    with pytest.raises(DataError, match="column 0: found code 4"):
        model.step(None, None, [4])
    roomy = Panel.from_arrays(categorical=[[0], [3]], n_categories=[9])
    assert np.isfinite(model.filter(roomy).log_likelihood).all()


@every_chain
def test_use_before_fit_is_refused(tier: Any, panel: Panel) -> None:
    for question in (
        lambda m: m.filter(panel),
        lambda m: m.smooth(panel),
        lambda m: m.decode(panel),
        lambda m: m.bic(panel),
        lambda m: m.sample([1]),
        lambda m: m.step(None, [0.0]),
        lambda m: m.save("nowhere"),
    ):
        with pytest.raises(NotFittedError, match="fit"):
            question(tier(2))


BAD_SETTINGS = {
    "n_states": 0,
    "n_restarts": 1.5,
    "max_iter": True,
    "tol": -1.0,
    "random_state": -3,
    "precision": "float16",
    "n_threads": 0,
    "restart_halving": "yes",
    "progress": 2,
    "init": {"means": 3},
    "transitions": "hourly",
}


@every_tier
@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_bad_settings_are_named(tier: Any, name: str, panel: Panel) -> None:
    settings = {"n_states": 2, name: BAD_SETTINGS[name]}
    with pytest.raises(ConfigError, match=name):
        tier(**settings).fit(panel)


def test_bad_settings_of_one_tier(panel: Panel) -> None:
    for model in (
        BaumWelchHMM(2, variance_floor=-1),
        BaumWelchHMM(2, category_smoothing=float("nan")),
        VariationalHMM(2, prior="weak"),
        VariationalHMM(2, emission="best"),
    ):
        with pytest.raises(ConfigError, match="must be"):
            model.fit(panel)
    with pytest.raises(ConfigError, match="mean_strength must be above 0"):
        Prior(mean_strength=0.0)
    with pytest.raises(ConfigError, match="sticky must be at least 0"):
        Prior(sticky=-1.0)


@every_chain
def test_a_panel_of_other_columns_is_refused(tier: Any, panel: Panel) -> None:
    model = tier(2, **QUICK).fit(panel)
    with pytest.raises(
        DataError, match="3 continuous and 2 categorical columns; the panel has 1 and 0"
    ):
        model.filter(Panel.from_arrays([[1.0]]))
    with pytest.raises(ConfigError, match="init describes"):
        tier(2, init=model.params_).fit(Panel.from_arrays([[1.0]]))
    with pytest.raises(ConfigError, match="init has 2 states"):
        tier(3, init=model.params_).fit(panel)


@every_chain
def test_a_bad_live_row_is_named(tier: Any, panel: Panel) -> None:
    model = tier(2, **QUICK).fit(panel)
    good = (panel.continuous[0], panel.categorical[0])
    with pytest.raises(DataError, match="a belief of 2, 3 continuous cells and 2 codes"):
        model.step(None, [1.0], [0, 0])
    with pytest.raises(DataError, match="a belief of 2"):
        model.step([1.0], *good)
    with pytest.raises(DataError, match="continuous column 1: found inf"):
        model.step(None, [0.0, np.inf, 0.0], [0, 0])
    with pytest.raises(DataError, match="integer codes"):
        model.step(None, [0.0, 0.0, 0.0], [0.0, 0.5])
    belief = model.step(None, [np.nan] * 3, [-1, -1])
    assert belief.sum() == pytest.approx(1.0)


BAD_ANCHORS = {
    "one per row": (
        (np.zeros(3, int), np.ones((1, 2), bool)),
        DataError,
        "each of the panel's 20 rows; found 3",
    ),
    "unknown code": ((np.full(20, 1), np.ones((1, 2), bool)), DataError, "row 0: found code 1"),
    "float codes": ((np.zeros(20), np.ones((1, 2), bool)), DataError, "integers"),
    "one number": ((0, np.ones((1, 2), bool)), DataError, "one per row"),
    "allows nothing": (
        (np.zeros(20, int), np.zeros((1, 2), bool)),
        ConfigError,
        "code 0 allows no state",
    ),
    "wrong width": (
        (np.zeros(20, int), np.ones((1, 3), bool)),
        ConfigError,
        "each of the 2 states; found 3",
    ),
    "lists of states": ((np.zeros(20, int), [[0, 1], [2]]), ConfigError, "table of booleans"),
    "numbers": ((np.zeros(20, int), [[0, 1]]), ConfigError, "table of booleans"),
    "noise": ((np.zeros(20, int), np.ones((1, 2), bool), 1.0), ConfigError, "below 1"),
    "noise in words": ((np.zeros(20, int), np.ones((1, 2), bool), "some"), ConfigError, "below 1"),
}


@pytest.mark.parametrize("name", BAD_ANCHORS)
def test_bad_anchors_are_named(name: str) -> None:
    arguments, kind, message = BAD_ANCHORS[name]
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(20, 1)))
    with pytest.raises(kind, match=message):
        BaumWelchHMM(2, **QUICK).fit(panel, anchors=Anchors(*arguments))


def test_anchors_that_rule_out_every_path() -> None:
    """Two states that never communicate, and anchors that ask for both in one sequence."""
    params = HMMParams([0.5, 0.5], np.eye(2), [[0.0], [1.0]], [[1.0], [1.0]])
    panel = Panel.from_arrays(np.zeros((4, 1)))
    anchors = Anchors([0, -1, -1, 1], np.eye(2, dtype=bool))
    with pytest.raises(DataError, match="sequence 0 has no possible path"):
        BaumWelchHMM.from_params(params).filter(panel, anchors=anchors)
    with pytest.raises(DataError, match="no possible path"):
        BaumWelchHMM.from_params(params).decode(panel, anchors=anchors)
    with pytest.raises(DataError, match="no possible path"):
        BaumWelchHMM(2, init=params).fit(panel, anchors=anchors)


@every_tier
def test_things_of_the_wrong_kind_are_named(tier: Any, panel: Panel) -> None:
    with pytest.raises(ConfigError, match="anchors must be Anchors"):
        tier(2).fit(panel, anchors=np.zeros(panel.n_rows, int))
    with pytest.raises(ConfigError, match=r"by name: fit\(panel, anchors=anchors\)"):
        tier(2).fit(panel, Anchors([0], [[True, True]]))
    model = tier(2, **QUICK).fit(panel)
    with pytest.raises(
        DataError, match=r"expected a Panel, found ndarray; make one with Panel\.from_arrays"
    ):
        model.filter(np.zeros((3, 2)))
    for lengths in ([], [0], [-1], [1.5]):
        with pytest.raises(DataError, match="whole numbers of at least 1"):
            model.sample(lengths)
    model.set_params(n_threads=0)
    with pytest.raises(ConfigError, match="n_threads"):
        model.filter(panel)
    with pytest.raises(DataError, match="finite"):
        align_states(np.full((3, 2), np.nan), np.full((3, 2), 0.5))
    for belief in ([0.0, 0.0], [np.nan, 1.0], [1.5, -0.5], [0.9, 0.9]):
        with pytest.raises(DataError, match="add up to 1"):
            tier.from_params(model.params_).step(belief, panel.continuous[0], panel.categorical[0])


def test_settings_are_checked_again_when_a_fitted_model_is_used(panel: Panel) -> None:
    model = VariationalHMM(2, **QUICK).fit(panel).set_params(emission="bogus")
    with pytest.raises(ConfigError, match="emission"):
        model.filter(panel)
    with pytest.raises(ConfigError, match="emission"):
        model.step(None, panel.continuous[0], panel.categorical[0])


def test_a_column_a_state_never_sees_keeps_its_parameters() -> None:
    """State 1 sits on rows without column 1.

    Its mean there must stay put, and the likelihood must not fall.
    """
    rng = np.random.default_rng(0)
    cells = np.r_[
        np.c_[rng.normal(0, 1, 300), rng.normal(50, 1, 300)],
        np.c_[rng.normal(30, 1, 300), np.full(300, np.nan)],
    ]
    panel = Panel.from_arrays(cells, lengths=[300, 300])
    start = HMMParams(
        [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.0, 50.0], [30.0, -20.0]], np.ones((2, 2))
    )
    model = BaumWelchHMM(2, init=start, max_iter=5, tol=0.0, precision="float64").fit(panel)
    assert model.params_.means[1, 1] == -20.0
    assert (np.diff(model.fit_report_.history) > -1e-9).all()


def test_a_prior_so_sparse_that_probabilities_underflow_keeps_its_logarithms() -> None:
    """exp(E[log pi]) is 0 in float64 for the state no sequence begins in.

    But E[log pi] is not minus infinity.
    """
    rng = np.random.default_rng(0)
    cells = np.repeat([[0.0], [40.0], [0.0]], 20, axis=0) + rng.normal(size=(60, 1))
    panel = Panel.from_arrays(cells, lengths=[60])
    prior = Prior(initial=1e-3, transition=1e-3, sticky=0.0)
    model = VariationalHMM(2, prior=prior, max_iter=30, precision="float64").fit(panel)
    assert not model.fit_report_.decreases
    path = model.decode(panel)
    assert len(set(path[:20])) == len(set(path[20:40])) == 1
    assert path[0] == path[59] != path[30]
    assert (model.filter(panel).probs[np.arange(60), path] > 0.999).all()
    assert np.isfinite(model.filter(panel[:1]).log_likelihood).all()
    backwards = Panel.from_arrays(
        cells[20:40]
    )  # begins in the other state, which the prior makes all but impossible
    assert (model.decode(backwards)[1:] == path[30]).all()
    assert (model.filter(backwards).probs[1:, path[30]] > 0.999).all()


AWKWARD_TIMES: dict[str, Callable[[int], Any]] = {
    "all at once": np.zeros,
    "mostly at once": lambda n: np.arange(n) // 7,
    "milliseconds apart": lambda n: np.arange(n) / 1000.0,
    "years apart": lambda n: 1e9 * np.arange(n),
    "centuries apart": lambda n: 1e12 * np.arange(n),
    "from seconds to years": lambda n: np.exp(np.linspace(-5.0, 20.0, n)),
    "dates": lambda n: np.datetime64("2024-01-01") + np.arange(n),
    "minutes": lambda n: np.datetime64("2024-01-01T00:00") + np.arange(n),
}


@every_tier
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("name", AWKWARD_TIMES)
def test_awkward_times_give_finite_results(tier: Any, precision: str, name: str) -> None:
    panel = make_panel()
    panel = replace(panel, times=AWKWARD_TIMES[name](panel.n_rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", EmptyStateWarning)
        model = tier(3, transitions="continuous", precision=precision, **QUICK).fit(panel)
        assert_sound(model, panel)
    assert not model.fit_report_.decreases
    assert np.isfinite(model.params_.generator).all()


@every_tier
def test_continuous_transitions_need_times(tier: Any, panel: Panel) -> None:
    untimed = replace(panel, times=None)
    with pytest.raises(DataError, match="the panel has no times"):
        tier(2, transitions="continuous").fit(untimed)
    model = tier(2, transitions="continuous", **QUICK).fit(panel)
    for question in (model.filter, model.smooth, model.decode, model.log_likelihood):
        with pytest.raises(DataError, match="the panel has no times"):
            question(untimed)
    with pytest.raises(DataError, match="give `times`"):
        model.sample([3])
    shares = model.infer_without_chain(untimed, [0.5, 0.5]).probs  # needs none
    np.testing.assert_array_equal(shares, model.infer_without_chain(panel, [0.5, 0.5]).probs)


@every_tier
def test_continuous_steps_need_gaps(tier: Any, panel: Panel) -> None:
    model = tier(2, transitions="continuous", **QUICK).fit(panel)
    row = panel.continuous[0], panel.categorical[0]
    belief = model.step(None, *row)  # a new customer has no gap
    for gap_s in (None, -1.0, np.nan, np.inf):
        with pytest.raises(DataError, match="seconds since the customer's previous row"):
            model.step(belief, *row, gap_s=gap_s)
        with pytest.raises(DataError, match="seconds since the customer's previous row"):
            model.predict_log_belief(belief, gap_s)
    beliefs, known, previous = np.zeros((2, 2)), np.zeros(2, bool), np.array([-1, 0])
    rows = panel.continuous[:2], panel.categorical[:2], previous
    with pytest.raises(DataError, match="seconds since the customer's previous row"):
        model.step_batch(beliefs, known, *rows)
    gaps_s = np.array([np.nan, 7200.0])
    before, has_before, after = model.step_batch(beliefs, known, *rows, gaps_s)
    np.testing.assert_array_equal(has_before, [False, True])
    np.testing.assert_array_equal(after[0], belief)
    second = panel.continuous[1], panel.categorical[1]
    np.testing.assert_array_equal(after[1], model.step(belief, *second, gap_s=7200.0))
    np.testing.assert_array_equal(before[1], belief)
    later = np.exp(model.predict_log_belief(belief, 7200.0))
    rest = model.log_emission(*(values[None] for values in second))[0]
    joint = later * np.exp(rest - rest.max())
    np.testing.assert_allclose(joint / joint.sum(), after[1], atol=1e-12)


@every_tier
def test_forecasts_are_beliefs(tier: Any, panel: Panel) -> None:
    model = tier(2, transitions="continuous", **QUICK).fit(panel)
    forecast = model.ahead([0.3, 0.7], [0.0, 1.0, 1e7])
    assert forecast.shape == (3, 2)
    np.testing.assert_allclose(forecast.sum(axis=1), 1.0, atol=1e-7)
    np.testing.assert_allclose(forecast[0], [0.3, 0.7], atol=1e-15)
    assert model.ahead([0.3, 0.7], 2).shape == (2,)
    for belief in ([0.3, 0.3], [1.0], [1.5, -0.5]):
        with pytest.raises(DataError, match="add up to 1"):
            model.ahead(belief, 1.0)
    for hours in (-1.0, np.nan, np.inf):
        with pytest.raises(DataError, match="hours must be finite"):
            model.ahead([0.3, 0.7], hours)
    with pytest.raises(ConfigError, match='needs transitions="continuous"'):
        tier(2, **QUICK).fit(panel).ahead([0.3, 0.7], 1.0)


@every_tier
def test_parameters_and_transitions_must_agree(tier: Any, panel: Panel) -> None:
    model = tier(2, transitions="continuous", **QUICK).fit(panel)
    assert tier.from_params(model.params_).transitions == "continuous"
    with pytest.raises(ConfigError, match='transitions is "per-row"'):
        tier.from_params(model.params_, transitions="per-row")
    with pytest.raises(ConfigError, match='transitions is "per-row"'):
        model.copy_with(transitions="per-row").filter(panel)
    plain = tier(2, **QUICK).fit(panel)
    with pytest.raises(ConfigError, match="init must be Continuous"):
        tier(2, init=plain.params_, transitions="continuous").fit(panel)
    with pytest.raises(ConfigError, match="init must be"):
        tier(2, init=model.params_).fit(panel)
    model.set_params(transitions="per-row").fit(panel)  # a new fit may choose anew
    assert model.params_.transitions == "per-row"


@every_chain
def test_order_of_customers_does_not_matter(tier: Any, panel: Panel) -> None:
    model = tier(3, **QUICK).fit(panel)
    order = np.random.default_rng(0).permutation(panel.n_sequences)
    shuffled = panel[order]
    first, second = model.filter(panel), model.filter(shuffled)
    np.testing.assert_allclose(second.log_likelihood, first.log_likelihood[order], rtol=1e-12)
    options = {"max_iter": 4, "tol": 0.0, "precision": "float64"}
    fits = [tier(3, init=model.params_, **options).fit(p) for p in (panel, shuffled)]
    bounds = [fit.fit_report_.history for fit in fits]
    np.testing.assert_allclose(*bounds, rtol=1e-12)


def test_bad_generators_are_named() -> None:
    columns = {"means": np.zeros((2, 1)), "variances": np.ones((2, 1))}
    for generator in ([[-1.0, 1.0]], [[-1.0, 0.5], [1.0, -1.0]], [[1.0, -1.0], [0.0, 0.0]]):
        with pytest.raises(ConfigError, match="generator must"):
            ContinuousHMMParams([0.5, 0.5], generator=generator, **columns)
    with pytest.raises(ConfigError, match="hours must be above 0"):
        Prior(hours=0.0)


@every_tier
@pytest.mark.parametrize("scale", [1e-7, 1.0, 1e7])
def test_units_of_a_column_do_not_matter(tier: Any, scale: float) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 400)
    panel = Panel.from_arrays(
        scale * (rng.normal(size=(400, 1)) + 6.0 * truth[:, None]), lengths=[20] * 20
    )
    path = tier(2).fit(panel).decode(panel)
    assert max((path == truth).mean(), (path != truth).mean()) > 0.98


def test_read_only_and_masked_arrays(panel: Panel) -> None:
    cells = panel.continuous.copy()
    cells.flags.writeable = False
    frozen = Panel.from_arrays(
        cells, panel.categorical, lengths=panel.lengths, n_categories=panel.n_categories
    )
    model = BaumWelchHMM(2, **QUICK).fit(frozen)
    np.testing.assert_array_equal(model.filter(panel).probs, model.filter(frozen).probs)
    np.testing.assert_array_equal(
        model.step(None, cells[0], panel.categorical[0]),
        model.step(None, cells[0].copy(), panel.categorical[0]),
    )
    masked = Panel.from_arrays(
        np.ma.masked_invalid(panel.continuous),
        np.ma.masked_less(panel.categorical, 0),
        lengths=panel.lengths,
    )
    np.testing.assert_array_equal(masked.continuous, panel.continuous.astype(np.float64))
    np.testing.assert_array_equal(masked.categorical, panel.categorical)


def test_a_forked_child_can_fit(panel: Panel) -> None:
    """OpenMP and BLAS threads of the parent must not leave a child waiting for them."""
    BaumWelchHMM(2, **QUICK).fit(panel)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = multiprocessing.get_context("fork").Process(
            target=BaumWelchHMM(2, **QUICK).fit, args=(panel,)
        )
        child.start()
    child.join(60)
    assert child.exitcode == 0


def test_fits_at_the_same_time_agree_and_give_threads_back(panel: Panel) -> None:
    before = {info["filepath"]: info["num_threads"] for info in threadpool_info()}
    alone = BaumWelchHMM(2, **QUICK).fit(panel)
    models = [BaumWelchHMM(2, **QUICK) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda model: model.fit(panel), models))
    for model in models:
        np.testing.assert_array_equal(model.params_.means, alone.params_.means)
    assert {info["filepath"]: info["num_threads"] for info in threadpool_info()} == before
