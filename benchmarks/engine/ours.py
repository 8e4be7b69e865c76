"""Turncoat's side of the benchmark, through its public interface only."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.engine.peers import VariationalPrior
from benchmarks.engine.workloads import Array, Start, Workload
from turncoat import BaumWelchHMM, HMMParams, Panel, Prior, VariationalHMM, VariationalParams

NEGLIGIBLE = 1e-8


@dataclass(frozen=True)
class Effort:
    """How an iteration is timed.

    The difference between fits of `many` and `few` iterations, each the best of some rounds.
    """

    few: int
    many: int
    rounds: int


def as_panel(workload: Workload) -> Panel:
    """The workload's arrays as a panel."""
    return Panel.from_arrays(
        continuous=workload.continuous,
        categorical=workload.categorical,
        lengths=workload.lengths,
        n_categories=workload.n_categories or None,
    )


def as_params(start: Start) -> HMMParams:
    """The common start as parameters of the Baum-Welch tier."""
    return HMMParams(**{name: getattr(start, name) for name in asdict(start)})


def baum_welch(start: Start) -> BaumWelchHMM:
    """A model that runs from the start to the iteration cap."""
    return BaumWelchHMM(len(start.means), init=as_params(start), tol=0.0, progress=False)


def variational(workload: Workload, prior: VariationalPrior) -> VariationalHMM:
    """A variational model from the same prior and posterior start as hmmlearn's."""
    start = workload.start
    n_states = len(start.means)
    numbers = {"dof": prior.dof, "scale": prior.scale, "sticky": prior.sticky}
    ours = Prior(**numbers, standardised=False)  # hmmlearn's is in the columns' units
    share = workload.n_rows / n_states
    dof = np.full(start.means.shape, prior.dof + share)
    init = VariationalParams(
        initial_concentration=np.ones(n_states),
        transition_concentration=ours.transition_concentration(n_states)
        + start.transition_matrix * share,
        location=start.means,
        mean_strength=np.full(start.means.shape, 1 + share),
        dof=dof,
        scale=start.variances * dof,
    )
    return VariationalHMM(n_states, prior=ours, init=init, tol=0.0, progress=False)


class IterationClock:
    """Times one EM iteration, free of what a fit does once, from as many rounds as it is given."""

    def __init__(self, model: Any, panel: Panel, effort: Effort) -> None:
        """Of a model with `init` set, on a panel."""
        self.model, self.panel, self.effort = model, panel, effort
        self.few: list[tuple[float, int]] = []
        self.many: list[tuple[float, int]] = []

    def round(self) -> None:
        """One short and one long fit."""
        self.few.append(self._timed_fit(self.effort.few))
        self.many.append(self._timed_fit(self.effort.many))

    @property
    def seconds(self) -> float:
        """Difference of the best long and the best short fit, per iteration between them."""
        (few_seconds, few_iterations), (many_seconds, many_iterations) = (
            min(self.few),
            min(self.many),
        )
        return (many_seconds - few_seconds) / (many_iterations - few_iterations)

    def _timed_fit(self, max_iter: int) -> tuple[float, int]:
        self.model.set_params(max_iter=max_iter)
        began = time.perf_counter()
        self.model.fit(self.panel)
        return time.perf_counter() - began, self.model.fit_report_.n_iter


def iteration_seconds(model: Any, panel: Panel, effort: Effort) -> float:
    """Seconds per EM iteration after all rounds of an effort."""
    clock = IterationClock(model, panel, effort)
    for _ in range(effort.rounds):
        clock.round()
    return clock.seconds


def negligible_share(start: Start, panel: Panel) -> float:
    """Share of row x state cells whose posterior at the start is negligible.

    What a kernel may skip.
    """
    probs: Array = BaumWelchHMM.from_params(as_params(start)).smooth(panel).probs
    return float((probs <= NEGLIGIBLE).mean())


def log_likelihood(start: Start, panel: Panel) -> float:
    """Log-likelihood of the panel at the start, in the default precision."""
    return float(BaumWelchHMM.from_params(as_params(start)).log_likelihood(panel).sum())
