"""The measurements. Each runs in its own process and returns plain numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.engine import ours, peers, timing, workloads
from benchmarks.engine.ours import Effort
from benchmarks.engine.workloads import (
    N_CATEGORICAL,
    N_CONTINUOUS,
    SEPARATED,
    SOFT,
    Array,
    Workload,
)
from turncoat import BaumWelchHMM

Result = dict[str, Any]

N_STATES = 8
SPREADS = {"separated": SEPARATED, "soft": SOFT}
SGEMM_REPEATS = 3
VARIATIONAL_COLUMNS, VARIATIONAL_SPREAD = 64, 0.5
SWEEP = range(2, 11)


@dataclass(frozen=True)
class Scale:
    """How large the workloads are and how often each is timed."""

    gaussian_rows: int
    full_rows: int
    series: tuple[int, ...]
    sweep_rows: int
    live_calls: int
    ragged: tuple[str, ...]
    short: Effort
    long: Effort


FULL = Scale(
    gaussian_rows=50_000,
    full_rows=workloads.FULL_ROWS,
    series=(50_000, 100_000, 200_000, workloads.FULL_ROWS),
    sweep_rows=50_000,
    live_calls=20_000,
    ragged=("sampled", "shrunk"),
    short=Effort(few=2, many=22, rounds=4),
    long=Effort(few=1, many=4, rounds=3),
)
QUICK = Scale(
    gaussian_rows=10_000,
    full_rows=50_000,
    series=(10_000, 20_000, 50_000),
    sweep_rows=10_000,
    live_calls=5_000,
    ragged=("shrunk",),
    short=Effort(few=2, many=12, rounds=3),
    long=Effort(few=1, many=4, rounds=2),
)
FULL_EFFORT = Effort(few=1, many=4, rounds=2)  # compared with hmmlearn at full size, which is slow


def arithmetic(scale: Scale) -> Result:
    """Our iterations on every length profile and spread.

    Against the matrix-multiplication rate of this run.
    """
    rate, cases = timing.sgemm_rate(SGEMM_REPEATS), []
    for profile in (*scale.ragged, "equal"):
        rate = max(rate, timing.sgemm_rate(SGEMM_REPEATS))
        for spread in SPREADS:
            workload = _gaussian(scale, spread, profile)
            panel = ours.as_panel(workload)
            seconds = ours.iteration_seconds(ours.baum_welch(workload.start), panel, scale.short)
            case = {
                "seconds": seconds,
                "skippable_share": ours.negligible_share(workload.start, panel),
            }
            cases.append({"profile": profile, "spread": spread, **_lengths(workload), **case})
    for case in cases:
        case["useful_flops"] = 8 * case["rows"] * N_CONTINUOUS * N_STATES
        case["share_of_sgemm"] = case["useful_flops"] / case["seconds"] / rate
    return {"sgemm_gflops": rate / 1e9, "cases": cases}


def hmmlearn(scale: Scale) -> Result:
    """GaussianHMM in both implementations."""
    makers = {name: _hmmlearn_maker(name) for name in ("log", "scaling")}
    return _against("hmmlearn", makers, scale.ragged, scale)


def hmmlearn_full(scale: Scale) -> Result:
    """GaussianHMM in both implementations on the continuous part of the full-size panel."""
    if find_spec("hmmlearn") is None:
        return {"missing": "hmmlearn"}
    workload = workloads.gaussian(scale.full_rows, N_CONTINUOUS, N_STATES, SEPARATED, "shrunk")
    cases = [
        {
            "model": name,
            "profile": "full size",
            "spread": "separated",
            **_compare(workload, _hmmlearn_maker(name), FULL_EFFORT),
        }
        for name in ("log", "scaling")
    ]
    return {"cases": cases}


def pomegranate(scale: Scale) -> Result:
    """DenseHMM with diagonal Normals."""
    return _against("pomegranate", {"DenseHMM": peers.pomegranate}, scale.ragged, scale)


def dynamax(scale: Scale) -> Result:
    """DiagonalGaussianHMM on equal lengths."""
    return _against("dynamax", {"DiagonalGaussianHMM": peers.dynamax}, ("equal",), scale)


def variational(scale: Scale) -> Result:
    """VariationalGaussianHMM and VariationalHMM, from the same prior and start."""
    if find_spec("hmmlearn") is None:
        return {"missing": "hmmlearn"}
    workload = workloads.gaussian(
        scale.gaussian_rows, VARIATIONAL_COLUMNS, N_STATES, VARIATIONAL_SPREAD, "shrunk"
    )
    prior = peers.VariationalPrior(dof=VARIATIONAL_COLUMNS, scale=VARIATIONAL_COLUMNS)
    peer, their_model = peers.hmmlearn_variational(workload, prior)
    our_model, panel = ours.variational(workload, prior), ours.as_panel(workload)
    clock, their_times = ours.IterationClock(our_model, panel, scale.short), []
    iterations = scale.short.rounds
    for _ in range(iterations):
        timing.settle()
        clock.round()
        timing.settle()
        their_times.append(timing.seconds_of(peer.iterate))
    our_seconds, their_seconds = clock.seconds, min(their_times)
    our_model.set_params(max_iter=iterations + 1).fit(
        panel
    )  # the parameters kept are those before the last update
    return {
        "what": peer.what,
        **_lengths(workload),
        "columns": VARIATIONAL_COLUMNS,
        "our_seconds": our_seconds,
        "their_seconds": their_seconds,
        "ratio": their_seconds / our_seconds,
        "iterations_compared": iterations,
        "same_state_share": _same_states(their_model, our_model, workload),
        "largest_mean_difference": float(
            np.abs(their_model.means_posterior_ - our_model.params_.means).max()
        ),
    }


def full_size(scale: Scale) -> Result:
    """The mixed model at full size."""
    return _mixed_fit(scale, missing=0.0)


def full_size_missing(scale: Scale) -> Result:
    """The mixed model at full size with 30 % of its continuous cells missing."""
    return _mixed_fit(scale, missing=0.3)


def growth(scale: Scale) -> Result:
    """Seconds per iteration of the mixed model as rows grow, and the slope in logarithms."""
    workload = workloads.mixed(scale.full_rows, N_STATES)
    panel, model = ours.as_panel(workload), ours.baum_welch(workload.start)
    rows, seconds = [], []
    for wanted in scale.series:
        n_sequences = int(np.searchsorted(np.cumsum(workload.lengths), wanted)) + 1
        part = panel[:n_sequences]
        more = (
            scale.long.many * panel.n_rows // part.n_rows
        )  # the same rows in all, so that small panels are timed as well
        rows.append(part.n_rows)
        seconds.append(
            ours.iteration_seconds(model, part, Effort(scale.long.few, more, scale.long.rounds))
        )
    slope = float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])
    per_row, fixed = np.polyfit(rows, seconds, 1, w=1 / np.array(seconds))
    return {
        "rows": rows,
        "seconds": seconds,
        "slope": slope,
        "fixed_seconds": float(fixed),
        "seconds_per_row": float(per_row),
    }


def sweep_projection(scale: Scale) -> Result:
    """Seconds per iteration for every K of the sweep at full size, from k-means starts."""
    panel = ours.as_panel(workloads.mixed(scale.full_rows, N_STATES))
    effort = Effort(scale.long.few, scale.long.many, scale.long.rounds - 1)
    models = {k: BaumWelchHMM(k, n_restarts=1, tol=0.0, progress=False) for k in SWEEP}
    return {
        "rows": panel.n_rows,
        "seconds": {k: ours.iteration_seconds(model, panel, effort) for k, model in models.items()},
    }


def live(scale: Scale) -> Result:
    """Microseconds of one live step.

    For a row as a panel stores it and as float64 with int64 codes.
    """
    workload = workloads.mixed(2_000, N_STATES)
    model = BaumWelchHMM.from_params(ours.as_params(workload.start))
    assert workload.categorical is not None
    stored = (workload.continuous, workload.categorical)
    wide = (workload.continuous.astype(np.float64), workload.categorical.astype(np.int64))
    return {
        "stored": _step_times(model, *stored, scale.live_calls),
        "wide": _step_times(model, *wide, scale.live_calls),
    }


def sweep(scale: Scale) -> Result:
    """The whole sweep for real.

    Five restarts with halving, at most 100 iterations, the default tolerance.
    """
    panel = ours.as_panel(workloads.mixed(scale.sweep_rows, N_STATES))
    fits = {k: _sweep_fit(BaumWelchHMM(k, progress=False), panel) for k in SWEEP}
    return {
        "rows": panel.n_rows,
        "fits": fits,
        "seconds": sum(fit["seconds"] for fit in fits.values()),
    }


SECTIONS: dict[str, Callable[[Scale], Result]] = {
    "arithmetic": arithmetic,
    "hmmlearn": hmmlearn,
    "pomegranate": pomegranate,
    "dynamax": dynamax,
    "variational": variational,
    "hmmlearn_full": hmmlearn_full,
    "full_size": full_size,
    "full_size_missing": full_size_missing,
    "growth": growth,
    "sweep_projection": sweep_projection,
    "live": live,
    "sweep": sweep,
}


def _gaussian(scale: Scale, spread: str, profile: str) -> Workload:
    return workloads.gaussian(scale.gaussian_rows, N_CONTINUOUS, N_STATES, SPREADS[spread], profile)


def _lengths(workload: Workload) -> Result:
    lengths = workload.lengths
    seen_by_a_row = float((lengths**2).sum() / lengths.sum())
    return {
        "rows": workload.n_rows,
        "sequences": len(lengths),
        "longest": int(lengths.max()),
        "length_around_a_row": seen_by_a_row,
    }


def _hmmlearn_maker(implementation: str) -> Callable[[Workload], peers.Peer]:
    return lambda workload: peers.hmmlearn_gaussian(workload, implementation)


def _against(
    package: str,
    makers: dict[str, Callable[[Workload], peers.Peer]],
    profiles: tuple[str, ...],
    scale: Scale,
) -> Result:
    """Every model of a peer on every profile and spread, or the word that it is missing."""
    if find_spec(package) is None:
        return {"missing": package}
    cases = []
    for profile in profiles:
        for spread in SPREADS:
            workload = _gaussian(scale, spread, profile)
            for name, make in makers.items():
                case = _compare(workload, make, scale.short)
                cases.append({"model": name, "profile": profile, "spread": spread, **case})
    return {"cases": cases}


def _compare(workload: Workload, make: Callable[[Workload], peers.Peer], effort: Effort) -> Result:
    """Ours and the peer in alternating rounds after a warm-up iteration, the best of each.

    Likelihoods at the start.
    """
    panel, peer = ours.as_panel(workload), make(workload)
    theirs, mine = peer.log_likelihood(), ours.log_likelihood(workload.start, panel)
    clock, their_times = ours.IterationClock(ours.baum_welch(workload.start), panel, effort), []
    peer.iterate()
    for _ in range(effort.rounds):
        timing.settle()
        clock.round()
        timing.settle()
        their_times.append(timing.seconds_of(peer.iterate))
    our_seconds, their_seconds = clock.seconds, min(their_times)
    return {
        "what": peer.what,
        **_lengths(workload),
        "our_seconds": our_seconds,
        "their_seconds": their_seconds,
        "ratio": their_seconds / our_seconds,
        "log_likelihood": mine,
        "log_likelihood_relative_difference": abs(mine - theirs) / abs(theirs),
    }


def _same_states(their_model: Any, our_model: Any, workload: Workload) -> float:
    """Share of rows whose most probable smoothed state agrees.

    States correspond because the start is the same.
    """
    theirs: Array = their_model.predict_proba(
        workload.continuous.astype(np.float64), workload.lengths
    )
    mine: Array = our_model.smooth(ours.as_panel(workload)).probs
    return float((theirs.argmax(axis=1) == mine.argmax(axis=1)).mean())


def _mixed_fit(scale: Scale, missing: float) -> Result:
    """Peak memory of three iterations, then seconds per iteration."""
    libraries = timing.peak_bytes()
    workload = workloads.mixed(scale.full_rows, N_STATES, missing)
    panel, model = ours.as_panel(workload), ours.baum_welch(workload.start)
    before_fit = timing.peak_bytes()
    model.set_params(max_iter=3).fit(panel)
    peak = timing.peak_bytes()
    return {
        **_lengths(workload),
        "columns": [N_CONTINUOUS, N_CATEGORICAL],
        "panel_bytes": workload.nbytes,
        "libraries_bytes": libraries,
        "before_fit_bytes": before_fit,
        "peak_bytes": peak,
        "peak_over_panel": peak / workload.nbytes,
        "before_fit_over_panel": before_fit / workload.nbytes,
        "seconds": ours.iteration_seconds(model, panel, scale.long),
    }


def _step_times(model: BaumWelchHMM, continuous: Array, categorical: Array, n_calls: int) -> Result:
    belief, nanoseconds = model.step(None, continuous[0], categorical[0]), np.empty(n_calls)
    for call in range(n_calls):
        cells, codes = continuous[call % len(continuous)], categorical[call % len(continuous)]
        began = time.perf_counter_ns()
        belief = model.step(belief, cells, codes)
        nanoseconds[call] = time.perf_counter_ns() - began
    return {
        "calls": n_calls,
        "median_us": float(np.median(nanoseconds)) / 1e3,
        "p99_us": float(np.quantile(nanoseconds, 0.99)) / 1e3,
    }


def _sweep_fit(model: BaumWelchHMM, panel: Any) -> Result:
    seconds = timing.seconds_of(lambda: model.fit(panel))
    report = model.fit_report_
    iterations = [restart.n_iter for restart in report.restarts]
    return {
        "seconds": seconds,
        "iterations": iterations,
        "stop_reason": report.stop_reason,
        "bic": model.bic(panel),
    }
