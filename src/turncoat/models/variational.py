"""Tier 2 as an estimator."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from turncoat.models.base import HiddenMarkovModel
from turncoat.models.initialisation import Columns
from turncoat.models.parameters import Prior, VariationalParams
from turncoat.models.settings import Rule, instance, one_of, or_none
from turncoat.models.tiers import Tier, VariationalBayes, expected_log_terms, predictive_terms
from turncoat.numerics.coding import Terms


class VariationalHMM(HiddenMarkovModel[VariationalParams]):
    """Hidden Markov model by variational Bayes: a posterior over every parameter, and a lower bound on the evidence.

    Parameters
    ----------
    n_states, n_restarts, max_iter, tol, restart_halving, random_state, precision, n_threads, init, progress
        As in `BaumWelchHMM`.
    prior
        `Prior.weak()` by default, meant for standardised columns; `Prior.paper()` is the published one.
    emission
        How sequences are scored once fitted: ``"expected-log"`` (as in fitting) or ``"predictive"``, which integrates the
        posterior out: Student-t columns and posterior-mean probabilities.

    Attributes
    ----------
    params_ : VariationalParams
        What was fitted.
    lower_bound_ : float
        The evidence lower bound (ELBO) at `params_`.
    fit_report_ : FitReport
        How the fit went: convergence, every restart, floors, empty states, decreases.
    """

    rules: ClassVar[dict[str, Rule]] = {
        **HiddenMarkovModel.rules,
        "prior": or_none(instance(Prior, "a Prior")),
        "emission": one_of("expected-log", "predictive"),
    }
    params_type = VariationalParams

    def __init__(
        self,
        n_states: int,
        *,
        prior: Prior | None = None,
        emission: str = "expected-log",
        n_restarts: int = 5,
        max_iter: int = 100,
        tol: float = 1e-5,
        restart_halving: bool = True,
        random_state: int = 0,
        precision: str = "float32",
        n_threads: int | None = None,
        init: VariationalParams | None = None,
        progress: bool | None = None,
        temperature: float = 1.0,
    ) -> None:
        self.n_states = n_states
        self.prior = prior
        self.emission = emission
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.tol = tol
        self.restart_halving = restart_halving
        self.random_state = random_state
        self.precision = precision
        self.n_threads = n_threads
        self.init = init
        self.progress = progress
        self.temperature = temperature

    @classmethod
    def paper(cls, n_states: int, **overrides: Any) -> Self:
        """The published settings for raw features: its prior, five full restarts, 100 iterations, tolerance 1e-3."""
        published = {
            "prior": Prior.paper(),
            "n_restarts": 5,
            "max_iter": 100,
            "tol": 1e-3,
            "restart_halving": False,
        }
        return cls(n_states, **{**published, **overrides})

    def _tier(self, columns: Columns) -> Tier[VariationalParams]:
        return VariationalBayes(self.prior or Prior.weak(), len(columns.centre))

    def _scoring_name(self) -> str:
        return self.emission

    def _scoring_terms(self, params: VariationalParams) -> Terms:
        return (
            expected_log_terms(params)
            if self.emission == "expected-log"
            else predictive_terms(params)
        )
