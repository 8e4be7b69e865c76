"""Tier 1 as an estimator."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from turncoat.models.base import HiddenMarkovModel
from turncoat.models.initialisation import Columns
from turncoat.models.parameters import HMMParams
from turncoat.models.settings import Rule, number
from turncoat.models.tiers import MaximumLikelihood, Tier, point_terms
from turncoat.numerics.coding import Terms

_LOWEST_FLOOR = 1e-12  # without any floor, a state on a single value has a likelihood without bound


class BaumWelchHMM(HiddenMarkovModel[HMMParams]):
    """Hidden Markov model by maximum likelihood: diagonal-Gaussian times categorical emissions, missing cells left out.

    Parameters
    ----------
    n_states
        Number of hidden regimes K.
    n_restarts, random_state
        k-means++ starts, with seeds ``random_state + 137 r``; the best final likelihood wins.
    max_iter, tol
        Iterations at most, and the change per transaction (in nats) below which a fit has converged.
    variance_floor
        Lowest variance, as a share of the column's overall variance; never taken below 1e-12.
    category_smoothing
        Pseudo-count given to every category, so that one a state has never seen is rare and not impossible.
    restart_halving
        Drop the worse half of the restarts early instead of running all of them to the end.
    precision
        Working precision of the kernels inside a block: ``"float32"`` or ``"float64"``. Totals are always float64.
    n_threads
        Threads; all available processors by default. The result does not depend on it.
    init
        Parameters to start from, in place of restarts.
    progress
        Show a progress bar; by default only on a terminal.

    Attributes
    ----------
    params_ : HMMParams
        What was fitted.
    lower_bound_ : float
        Log-likelihood plus the log of the smoothing's Dirichlet, at `params_`: the quantity that never decreases.
    fit_report_ : FitReport
        How the fit went: convergence, every restart, floors, empty states, decreases.
    """

    rules: ClassVar[dict[str, Rule]] = {
        **HiddenMarkovModel.rules,
        "variance_floor": number(0.0),
        "category_smoothing": number(0.0),
    }
    params_type = HMMParams

    def __init__(
        self,
        n_states: int,
        *,
        n_restarts: int = 5,
        max_iter: int = 100,
        tol: float = 1e-5,
        variance_floor: float = 1e-3,
        category_smoothing: float = 0.1,
        restart_halving: bool = True,
        random_state: int = 0,
        precision: str = "float32",
        n_threads: int | None = None,
        init: HMMParams | None = None,
        progress: bool | None = None,
        temperature: float = 1.0,
    ) -> None:
        self.n_states = n_states
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.tol = tol
        self.variance_floor = variance_floor
        self.category_smoothing = category_smoothing
        self.restart_halving = restart_halving
        self.random_state = random_state
        self.precision = precision
        self.n_threads = n_threads
        self.init = init
        self.progress = progress
        self.temperature = temperature

    @classmethod
    def paper(cls, n_states: int, **overrides: Any) -> Self:
        """The published settings: five full restarts, 100 iterations, tolerance 1e-3."""
        return cls(
            n_states,
            **{
                "n_restarts": 5,
                "max_iter": 100,
                "tol": 1e-3,
                "restart_halving": False,
                **overrides,
            },
        )

    def _tier(self, columns: Columns) -> Tier[HMMParams]:
        lowest = max(self.variance_floor, _LOWEST_FLOOR) * columns.variances
        return MaximumLikelihood(lowest, columns.variances, self.category_smoothing)

    def _scoring_terms(self, params: HMMParams) -> Terms:
        return point_terms(params)
