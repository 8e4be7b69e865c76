"""Fits in a few passes over batches: exactness, the bound, determinism, closeness to full fits."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from turncoat import Anchors, BaumWelchHMM, ConfigError, Panel, Prior, VariationalHMM
from turncoat.models import fitting
from turncoat.models.fit_rows import FitOptions, PackedPanel, PanelRows
from turncoat.models.fitting import fit_in_batches
from turncoat.models.parameters import VariationalParams
from turncoat.models.variational import VariationalBayes
from turncoat.numerics.layout import sum_statistics

QUIET: dict[str, Any] = {"progress": False, "n_restarts": 2}
TRANSITIONS = ["per-row", "continuous"]
every_chain = pytest.mark.parametrize("transitions", TRANSITIONS)


def make_panel(n_sequences: int = 120, length: int = 50, seed: int = 0) -> Panel:
    rng = np.random.default_rng(seed)
    n = n_sequences * length
    states = np.repeat(rng.integers(0, 3, n // 5), 5)
    cells = rng.normal(size=(n, 2)) + 3.0 * np.array([[0, 0], [1, 0], [0, 1]])[states]
    cells[rng.random(cells.shape) < 0.05] = np.nan
    codes = np.stack([(rng.random(n) < 0.2 + 0.3 * states), rng.integers(0, 4, n)], axis=1)
    times = np.cumsum(rng.exponential(3600.0, n).round())
    columns: dict[str, Any] = {
        "lengths": [length] * n_sequences,
        "times": times,
        "n_categories": [2, 4],
    }
    return Panel.from_arrays(cells, codes.astype(int), **columns)


PANEL = make_panel()


def pack(panel: Panel, transitions: str, **rows: Any) -> PackedPanel:
    options = FitOptions(3, "float64", 1, transitions == "continuous")
    return PanelRows(panel, **rows).pack(np.ones(4, bool), options)


def start_from(panel: Panel, transitions: str) -> tuple[VariationalBayes, VariationalParams]:
    options = {**QUIET, "transitions": transitions, "precision": "float64"}
    model = VariationalHMM(3, max_iter=2, **options).fit(panel)
    columns = pack(panel, transitions).measure_columns()
    return model._build_algorithm(columns, panel.n_categories), model.params_


def run(
    algorithm: VariationalBayes, start: VariationalParams, rows: PackedPanel, max_passes: int
) -> tuple[VariationalParams, fitting.FitReport]:
    options: dict[str, Any] = {"max_passes": max_passes, "tol": 0.0, "precision": "float64"}
    return fit_in_batches(algorithm, (0, start), rows, lambda *_: None, **options)


def arrays_of(params: VariationalParams) -> list[np.ndarray]:
    given = [getattr(params, field.name) for field in fields(params) if field.init]
    return [array for value in given for array in (value if isinstance(value, tuple) else [value])]


@every_chain
def test_one_batch_is_the_full_iteration(transitions: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(fitting, "_MAX_BATCHES", 1)
    algorithm, start = start_from(PANEL, transitions)
    packed = pack(PANEL, transitions)
    expected, bounds = start, []
    for _ in range(4):
        statistics = packed.collect(algorithm.build_log_model(expected))
        bounds.append(statistics.log_likelihood + algorithm.penalty(expected))
        expected = algorithm.update(statistics, expected)
    found, report = run(algorithm, start, packed, max_passes=4)
    assert type(found) is type(expected)
    for one, other in zip(arrays_of(found), arrays_of(expected), strict=True):
        np.testing.assert_array_equal(one, other)
    # The bound after an update lies between those of the states inferred before and after it.
    assert bounds[2] <= report.history[1] <= bounds[3] + 1e-6
    assert report.n_iter == 3


@every_chain
@pytest.mark.parametrize("anchored", [False, True])
def test_the_bound_is_tracked_without_another_pass(transitions: str, anchored: bool) -> None:
    """It never exceeds the ELBO of its parameters, meets it in the end, and never falls."""
    codes = np.where(np.arange(PANEL.n_rows) % 7 == 0, 0, -1)
    anchors = Anchors(codes, [[True, True, False]], noise=0.1) if anchored else None
    algorithm, start = start_from(PANEL, transitions)
    packed = pack(PANEL, transitions, anchors=anchors)
    for passes in (2, 3, 60):
        params, report = run(algorithm, start, packed, passes)
        log_likelihood = packed.collect(algorithm.build_log_model(params)).log_likelihood
        elbo = log_likelihood + algorithm.penalty(params)
        # Rates that are rounded to gap codes keep the two from meeting exactly.
        assert report.history[-1] <= elbo + 1e-7 * abs(elbo)
    assert report.history[-1] == pytest.approx(elbo, rel=1e-7)
    assert (np.diff(report.history) >= -1e-9 * abs(elbo)).all()
    assert not report.decreases


@every_chain
def test_batches_share_memory_and_add_up_to_all_rows(transitions: str) -> None:
    weights = np.random.default_rng(0).uniform(0.5, 2.0, PANEL.n_sequences)
    anchors = Anchors(np.arange(PANEL.n_rows) % 2, np.array([[True] * 3, [False, True, True]]))
    algorithm, start = start_from(PANEL, transitions)
    packed = pack(PANEL, transitions, anchors=anchors, weights=weights)
    batches = packed.list_batches(7)
    assert len(batches) == 7
    assert all(
        np.shares_memory(b.observations.continuous, packed.observations.continuous) for b in batches
    )
    model = algorithm.build_log_model(start)
    whole, parts = packed.collect(model), sum_statistics([b.collect(model) for b in batches])
    for field in fields(whole):
        pair = getattr(parts, field.name), getattr(whole, field.name)
        np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-7)
    one = batches[3].draw_sample(0)
    assert one.anchors is not None
    assert len(np.asarray(one.anchors.codes)) == one.panel.n_rows


def test_fewer_sequences_than_batches() -> None:
    batches = pack(PANEL[:3], "per-row").list_batches(50)
    assert [batch.rows.panel.n_sequences for batch in batches] == [1, 1, 1]


def test_statistics_with_another_reference_are_the_same() -> None:
    algorithm, start = start_from(PANEL, "per-row")
    statistics = pack(PANEL, "per-row").collect(algorithm.build_log_model(start))
    moved = statistics.move_reference(statistics.reference + np.array([1.0, -2.0]))
    assert not np.allclose(moved.second, statistics.second)
    for first, second in zip(
        arrays_of(algorithm.update(moved, None)),
        arrays_of(algorithm.update(statistics, None)),
        strict=True,
    ):
        np.testing.assert_allclose(first, second, rtol=1e-12)
    model = algorithm.build_log_model(start)
    assert model.expected_log_density(moved) == pytest.approx(
        model.expected_log_density(statistics), rel=1e-12
    )


@every_chain
def test_one_state_reaches_the_evidence(transitions: str) -> None:
    options = {**QUIET, "transitions": transitions, "precision": "float64"}
    full = VariationalHMM(1, **options).fit(PANEL)
    quick = VariationalHMM(1, max_passes=2, **options).fit(PANEL)
    assert quick.lower_bound_ == pytest.approx(full.lower_bound_, rel=1e-12)
    for found, expected in zip(arrays_of(quick.params_), arrays_of(full.params_), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("tier", [BaumWelchHMM, VariationalHMM])
@every_chain
def test_three_passes_are_close_to_the_full_fit(tier: Any, transitions: str) -> None:
    panel = make_panel(300, 80)
    options = {**QUIET, "transitions": transitions}
    full = tier(3, **options).fit(panel)
    quick = tier(3, max_passes=3, tol=0.0, **options).fit(panel)
    assert quick.lower_bound_ > full.lower_bound_ - 1e-3 * abs(full.lower_bound_)
    assert quick.lower_bound_ > full.lower_bound_ - 0.01 * panel.n_rows  # nats
    report = quick.fit_report_
    assert (report.n_iter, len(report.restarts), report.converged) == (2, 1, False)


@every_chain
def test_same_seed_same_bits_whatever_the_threads(transitions: str) -> None:
    options = {**QUIET, "transitions": transitions, "max_passes": 3}
    first = VariationalHMM(3, n_threads=1, **options).fit(PANEL)
    again = VariationalHMM(3, n_threads=2, **options).fit(PANEL)
    other = VariationalHMM(3, random_state=1, **options).fit(PANEL)
    for one, two in zip(arrays_of(first.params_), arrays_of(again.params_), strict=True):
        np.testing.assert_array_equal(one, two)
    assert first.fit_report_.history == again.fit_report_.history
    assert first.fit_report_.history != other.fit_report_.history


def test_passes_end_at_the_tolerance() -> None:
    report = VariationalHMM(3, max_passes=50, tol=1e-4, **QUIET).fit(PANEL).fit_report_
    assert report.converged
    assert report.n_iter < 10


def test_given_parameters_are_the_start() -> None:
    full = VariationalHMM(3, tol=1e-9, max_iter=300, precision="float64", **QUIET).fit(PANEL)
    onward = VariationalHMM(3, init=full.params_, max_passes=4, precision="float64").fit(PANEL)
    assert onward.lower_bound_ == pytest.approx(full.lower_bound_, abs=0.01 * PANEL.n_rows)
    np.testing.assert_allclose(onward.params_.means, full.params_.means, atol=0.05)


def test_weights_of_sequences_count() -> None:
    counts = np.random.default_rng(0).integers(0, 3, PANEL.n_sequences)
    options = {**QUIET, "max_passes": 40, "tol": 0.0, "precision": "float64"}
    start = VariationalHMM(3, **QUIET).fit(PANEL).params_
    weighted = VariationalHMM(3, init=start, **options).fit(PANEL, sample_weight=counts)
    copies = PANEL[np.repeat(np.arange(PANEL.n_sequences), counts)]
    copied = VariationalHMM(3, init=start, **options).fit(copies)
    assert weighted.lower_bound_ == pytest.approx(copied.lower_bound_, rel=1e-6)


def test_sorted_sequences_do_not_mislead_it() -> None:
    """The first batches may hold one state only."""
    rng = np.random.default_rng(0)
    states = np.repeat(np.arange(3), 4000)
    panel = Panel.from_arrays(
        rng.normal(size=(12000, 1)) + 6.0 * states[:, None], lengths=[40] * 300
    )
    options = {**QUIET, "prior": Prior.weak()}
    full = VariationalHMM(3, **options).fit(panel)
    quick = VariationalHMM(3, max_passes=3, **options).fit(panel)
    assert quick.lower_bound_ > full.lower_bound_ - 1e-3 * abs(full.lower_bound_)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_passes must be a whole number of at least 2"):
        VariationalHMM(2, max_passes=1).fit(PANEL)
