"""The one fit loop: restarts, halving, convergence, monotonicity and the report, for every tier."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.fit_rows import PackedRows
from turncoat.models.parameters import HMMParams, VariationalParams
from turncoat.numerics.layout import LogModel, Statistics, sum_statistics

P = TypeVar("P", HMMParams, VariationalParams)

Starts = list[tuple[int, Callable[[], P]]]  # seeds, and functions that make starts

RESTART_SEED_STEP = 137
_MAX_BATCHES, _MIN_BATCH_ROWS = 50, 1000
_STEP_POWER = 0.5  # measured in docs/decisions/0027-batches-with-kept-statistics.md
NO_EVIDENCE = 1e-8  # expected rows below which counts are rounding errors
_FIRST_HALVING = 10  # iterations
_EMPTY_STATE_ROWS = 1.0
_ROUNDING = {"float32": 2e-7, "float64": 1e-10}


class EMAlgorithm(Protocol[P]):
    """What the fit loop needs from a tier: parameters for the E-step, the M-step, the penalty."""

    def build_log_model(self, params: P) -> LogModel:
        """Return the model that the E-step runs with."""

    def update(self, statistics: Statistics, previous: P | None) -> P:
        """Run the M-step. `previous` is kept where the statistics hold no evidence."""

    def penalty(self, params: P) -> float:
        """Return what is added to the log-likelihood to give the bound, which never decreases."""

    def floored_share(self, params: P) -> float:
        """Return the share of state x column variances that sit on a floor."""


@dataclass(frozen=True)
class RestartReport:
    """How one restart went."""

    seed: int
    lower_bound: float
    n_iter: int
    converged: bool
    stopped_early: bool  # by halving: other restarts were ahead


@dataclass(frozen=True)
class FitReport:
    """How a fit went. All but `restarts` and `seconds` describe the best restart."""

    converged: bool
    stop_reason: str  # "tolerance" or "iteration cap"
    n_iter: int
    history: tuple[float, ...] = field(repr=False)  # the bound at every iteration, or later pass
    restarts: tuple[RestartReport, ...] = field(repr=False)
    floored_share: float  # of state x column variances that sit on the floor
    empty_states: tuple[int, ...]  # states with less than one expected row
    decreases: tuple[int, ...]  # iterations at which the bound fell by more than rounding
    seconds: float  # all restarts together


@dataclass
class _Run(Generic[P]):
    """One restart. `params` are the parameters at which the last bound was computed."""

    seed: int
    next_params: P
    params: P
    occupancy: Array = field(default_factory=lambda: np.zeros(0))
    history: list[float] = field(default_factory=list)
    converged: bool = False
    stopped_early: bool = False

    @property
    def bound(self) -> float:
        return self.history[-1]

    def record(self, bound: float, statistics: Statistics, tol: float) -> None:
        """Note the bound at `next_params`, and whether it has converged."""
        if not np.isfinite(bound):
            place = f"iteration {len(self.history) + 1} of the restart with seed {self.seed}"
            raise DataError(
                f"the fit reached a bound of {bound} at {place}: some sequence has no possible "
                "path under the starting parameters or anchors, or some value is too far out. "
                "Check `init`, allow some anchor noise, or rescale extreme columns"
            )
        self.params, self.occupancy = self.next_params, statistics.occupancy
        self.history.append(bound)
        if len(self.history) > 1:
            self.converged = bool(abs(bound - self.history[-2]) <= tol * statistics.n_rows)


def fit(
    algorithm: EMAlgorithm[P],
    starts: Starts[P],
    collect: Callable[[LogModel], Statistics],
    report_iteration: Callable[[int, int, float], None],
    *,
    max_iter: int,
    tol: float,
    restart_halving: bool,
    precision: str,
) -> tuple[P, FitReport]:
    """Run the restarts and return the parameters with the highest bound, and the report.

    `report_iteration` gets (restart, iteration, bound). `restart_halving` drops the worse half of
    the restarts after 10, 20, 40, ... iterations.
    """
    started = time.perf_counter()
    runs = [_Run(seed, params, params) for seed, start in starts for params in (start(),)]
    active = list(range(len(runs)))

    def advance(n_iter: int) -> None:
        for i in active:
            report = partial(report_iteration, i)
            _iterate(algorithm, runs[i], collect, tol, n_iter, report)

    halving = _FIRST_HALVING
    while restart_halving and len(active) > 1 and halving < max_iter:
        advance(halving)
        ranked = sorted(active, key=lambda i: -runs[i].bound)
        survivors = ranked[: -(-len(active) // 2) if len(active) > 3 else 1]
        for i in set(active) - set(survivors):
            runs[i].stopped_early = not runs[i].converged
        active = sorted(survivors)
        halving *= 2
    advance(max_iter)
    best = max((runs[i] for i in active), key=lambda run: run.bound)
    seconds = time.perf_counter() - started
    return best.params, _build_report(algorithm, best, runs, precision, seconds)


def _iterate(
    algorithm: EMAlgorithm[P],
    run: _Run[P],
    collect: Callable[[LogModel], Statistics],
    tol: float,
    max_iter: int,
    report_iteration: Callable[[int, float], None],
) -> None:
    """Iterate one restart until it converges or has done `max_iter` iterations."""
    while len(run.history) < max_iter and not run.converged:
        statistics = collect(algorithm.build_log_model(run.next_params))
        bound = statistics.log_likelihood + algorithm.penalty(run.next_params)
        run.record(bound, statistics, tol)
        report_iteration(len(run.history), bound)
        if not run.converged:
            run.next_params = algorithm.update(statistics, run.params)


def fit_in_batches(
    algorithm: EMAlgorithm[P],
    start: tuple[int, P],
    rows: PackedRows,
    report_pass: Callable[[int, float], None],
    *,
    max_passes: int,
    tol: float,
    precision: str,
) -> tuple[P, FitReport]:
    """Update the parameters after each batch of rows, and return them with the report.

    The first pass takes steps of size 1, 2^-0.5, 3^-0.5, ... towards what each batch says of all
    rows. Later passes keep each batch's latest statistics and sum them; there is no step size. The
    bound is then known without another pass, and never decreases. The report's history is that of
    the later passes. `report_pass` gets (pass, bound).
    """
    started = time.perf_counter()
    seed, params = start
    run = _Run(seed, params, params)
    n_batches = min(_MAX_BATCHES, max(1, int(rows.n_rows / _MIN_BATCH_ROWS)))
    batches = rows.list_batches(n_batches)
    statistics = _step_through(algorithm, run, batches, rows.n_rows)
    latest = [statistics.scale(batch.n_rows / rows.n_rows) for batch in batches]
    entropies = np.zeros(len(batches))  # of each batch's states, as they were last inferred
    for number in range(2, max_passes + 1):
        for place, batch in enumerate(batches):
            model = algorithm.build_log_model(run.next_params)
            latest[place] = batch.collect(model)
            known = model.expected_log_density(latest[place])
            entropies[place] = latest[place].log_likelihood - known
            statistics = sum_statistics(latest)
            run.next_params = algorithm.update(statistics, run.next_params)
        model = algorithm.build_log_model(run.next_params)
        expected = model.expected_log_density(statistics) + float(entropies.sum())
        bound = expected + algorithm.penalty(run.next_params)
        run.record(bound, statistics, tol)
        report_pass(number, bound)
        if run.converged:
            break
    seconds = time.perf_counter() - started
    return run.params, _build_report(algorithm, run, [run], precision, seconds)


def _step_through(
    algorithm: EMAlgorithm[P], run: _Run[P], batches: Sequence[PackedRows], n_rows: float
) -> Statistics:
    """Step towards each batch in random order, and return the statistics of the last step."""

    def collect(place: int) -> Statistics:
        """Return a batch's statistics, as if it were all rows."""
        part = batches[place].collect(algorithm.build_log_model(run.next_params))
        return part.scale(n_rows / part.n_rows)

    first, *others = np.random.default_rng(run.seed).permutation(len(batches)).tolist()
    total = collect(first)
    run.next_params = algorithm.update(total, run.next_params)
    for number, place in enumerate(others, 2):
        size = number**-_STEP_POWER
        total = sum_statistics([collect(place).scale(size), total.scale(1.0 - size)])
        run.next_params = algorithm.update(total, run.next_params)
    return total


def _build_report(
    algorithm: EMAlgorithm[P], best: _Run[P], runs: list[_Run[P]], precision: str, seconds: float
) -> FitReport:
    history = np.array(best.history)
    fell = np.diff(history) < -_ROUNDING[precision] * np.maximum(np.abs(history[1:]), 1.0)
    restarts = (
        RestartReport(r.seed, r.bound, len(r.history), r.converged, r.stopped_early) for r in runs
    )
    return FitReport(
        converged=best.converged,
        stop_reason="tolerance" if best.converged else "iteration cap",
        n_iter=len(best.history),
        history=tuple(best.history),
        restarts=tuple(restarts),
        floored_share=algorithm.floored_share(best.params),
        empty_states=tuple(np.flatnonzero(best.occupancy < _EMPTY_STATE_ROWS).tolist()),
        decreases=tuple((np.flatnonzero(fell) + 2).tolist()),
        seconds=seconds,
    )
