"""The one fit loop: restarts, halving, convergence, monotonicity and the report, for every tier."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Generic

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.tiers import P, Tier
from turncoat.numerics.coding import Statistics, Terms

RESTART_SEED_STEP = 137
_FIRST_RUNG = 10
_EMPTY_ROWS = 1.0
_ROUNDING = {"float32": 2e-7, "float64": 1e-10}


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
    """What a person reads about a fit; all but `restarts` and `seconds` concern the winning restart."""

    converged: bool
    stop_reason: str  # "tolerance" or "iteration cap"
    n_iter: int
    history: tuple[float, ...] = field(repr=False)  # the bound at every iteration
    restarts: tuple[RestartReport, ...] = field(repr=False)
    floored_share: float  # of state x column variances that sit on the floor
    empty_states: tuple[int, ...]  # states holding less than one expected row
    decreases: tuple[int, ...]  # iterations at which the bound fell by more than rounding
    seconds: float  # all restarts together


@dataclass(frozen=True)
class FitOptions:
    """How long and how often to try."""

    max_iter: int
    tol: float
    restart_halving: bool
    precision: str


@dataclass
class _Run(Generic[P]):
    """One restart under way. `params` are the parameters at which the last bound was computed."""

    seed: int
    upcoming: P
    params: P
    occupancy: Array = field(default_factory=lambda: np.zeros(0))
    history: list[float] = field(default_factory=list)
    converged: bool = False
    stopped_early: bool = False

    @property
    def bound(self) -> float:
        return self.history[-1]


Announce = Callable[[int, int, int, float], None]
"""Called after every iteration with (restart, restarts, iteration, bound)."""


def fit(
    tier: Tier[P],
    starts: list[tuple[int, Callable[[], P]]],
    collect: Callable[[Terms], Statistics],
    options: FitOptions,
    announce: Announce,
) -> tuple[P, FitReport]:
    """Run every start to its end, or halve their number as they go, and keep the one with the highest bound."""
    began = time.perf_counter()
    runs = [_begin(seed, start()) for seed, start in starts]
    alive = list(range(len(runs)))
    rung = _FIRST_RUNG
    while options.restart_halving and len(alive) > 1 and rung < options.max_iter:
        for place in alive:
            _advance(tier, runs[place], collect, options, rung, partial(announce, place, len(runs)))
        best = sorted(alive, key=lambda place: -runs[place].bound)
        survivors = best[: -(-len(alive) // 2) if len(alive) > 3 else 1]
        for place in set(alive) - set(survivors):
            runs[place].stopped_early = not runs[place].converged
        alive = sorted(survivors)
        rung *= 2
    for place in alive:
        _advance(
            tier,
            runs[place],
            collect,
            options,
            options.max_iter,
            partial(announce, place, len(runs)),
        )
    winner = max((runs[place] for place in alive), key=lambda run: run.bound)
    return winner.params, _report(tier, winner, runs, options, time.perf_counter() - began)


def _begin(seed: int, start: P) -> _Run[P]:
    return _Run(seed, upcoming=start, params=start)


def _advance(
    tier: Tier[P],
    run: _Run[P],
    collect: Callable[[Terms], Statistics],
    options: FitOptions,
    until: int,
    announce: Callable[[int, float], None],
) -> None:
    """Iterate one restart until it converges or has done `until` iterations."""
    while len(run.history) < until and not run.converged:
        statistics = collect(tier.terms(run.upcoming))
        bound = statistics.log_likelihood + tier.penalty(run.upcoming)
        if not np.isfinite(bound):
            raise DataError(
                f"the fit reached a bound of {bound} at iteration {len(run.history) + 1} of the restart with seed {run.seed}: "
                "some sequence has no possible path under the starting parameters or anchors, or some value is too far out. "
                "Check `init`, allow some anchor noise, or rescale extreme columns"
            )
        run.params, run.occupancy = run.upcoming, statistics.occupancy
        run.history.append(bound)
        announce(len(run.history), bound)
        if len(run.history) > 1:
            run.converged = bool(abs(bound - run.history[-2]) <= options.tol * statistics.n_rows)
        if not run.converged:
            run.upcoming = tier.update(statistics, run.params)


def _report(
    tier: Tier[P], winner: _Run[P], runs: list[_Run[P]], options: FitOptions, seconds: float
) -> FitReport:
    history = np.array(winner.history)
    fell = (
        np.flatnonzero(np.diff(history) < -_ROUNDING[options.precision] * np.abs(history[1:])) + 2
    )
    return FitReport(
        converged=winner.converged,
        stop_reason="tolerance" if winner.converged else "iteration cap",
        n_iter=len(winner.history),
        history=tuple(winner.history),
        restarts=tuple(
            RestartReport(run.seed, run.bound, len(run.history), run.converged, run.stopped_early)
            for run in runs
        ),
        floored_share=tier.floored_share(winner.params),
        empty_states=tuple(int(k) for k in np.flatnonzero(winner.occupancy < _EMPTY_ROWS)),
        decreases=tuple(int(i) for i in fell),
        seconds=seconds,
    )
