"""What both tiers share as estimators: fitting on a panel, inference over sequences, the live step, saving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Generic, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, clone

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError, NotFittedError
from turncoat.models.anchors import Anchors
from turncoat.models.fitting import RESTART_SEED_STEP, FitOptions, FitReport, fit
from turncoat.models.initialisation import Columns, kmeans_statistics, measure_columns
from turncoat.models.live import Contrasts, LiveRecursion
from turncoat.models.messages import announced_compilation, fit_progress
from turncoat.models.sampling import sample_panel
from turncoat.models.settings import (
    Rule,
    check_settings,
    number,
    one_of,
    or_none,
    positive_number,
    whole_number,
)
from turncoat.models.tiers import P, Tier
from turncoat.numerics import engine
from turncoat.numerics.coding import Coding, Statistics, Terms
from turncoat.numerics.structures import Observations, Potentials
from turncoat.panel import Panel


@dataclass(frozen=True, eq=False)
class Posteriors:
    """State probabilities [N, K] and the log-likelihood of each sequence [U]."""

    probs: Array
    log_likelihood: Array


class HiddenMarkovModel(BaseEstimator, ABC, Generic[P]):  # type: ignore[misc]
    """Base of the tiers. A subclass names its parameters, its tier and the terms it scores with.

    After `fit`: `params_`, the parameters; `lower_bound_`, the bound they reach; `fit_report_`, how the fit went.
    """

    rules: ClassVar[dict[str, Rule]] = {
        "n_states": whole_number(1),
        "n_restarts": whole_number(1),
        "max_iter": whole_number(1),
        "tol": number(0.0),
        "restart_halving": one_of(True, False),
        "random_state": whole_number(0),
        "precision": one_of("float32", "float64"),
        "n_threads": or_none(whole_number(1)),
        "progress": one_of(None, True, False),
        "temperature": positive_number(),
    }
    params_type: ClassVar[type]

    n_states: int
    n_restarts: int
    max_iter: int
    tol: float
    restart_halving: bool
    random_state: int
    precision: str
    n_threads: int | None
    init: P | None
    progress: bool | None
    temperature: float

    params_: P
    lower_bound_: float
    fit_report_: FitReport

    @abstractmethod
    def _tier(self, columns: Columns) -> Tier[P]:
        """The tier's mathematics for these columns."""

    @abstractmethod
    def _scoring_terms(self, params: P) -> Terms:
        """Terms used outside fitting."""

    def _scoring_name(self) -> str:
        """Which scoring terms are in use, where a tier has a choice."""
        return "point"

    @classmethod
    def from_params(cls, params: P, **settings: Any) -> Self:
        """A model with given parameters, ready to score. Other settings are as in the constructor."""
        if not isinstance(params, cls.params_type):
            raise ConfigError(
                f"{cls.__name__}.from_params needs {cls.params_type.__name__}; found {type(params).__name__}"
            )
        model = cls(n_states=params.n_states, **settings)
        model.check_settings()
        return model._adopt(params)

    def fit(self, panel: Panel, anchors: Anchors | None = None) -> Self:
        """Fit to a panel; anchored rows may only sit in the states their code allows."""
        self.check_settings()
        _check_panel(panel)
        coding = Coding.of(panel.n_categories, panel.missing_cells, panel.missing_codes)
        options = FitOptions(self.max_iter, self.tol, self.restart_halving, self.precision)
        title = f"{type(self).__name__} with {self.n_states} states"
        with announced_compilation():
            observations, anchor_table = self._observe(coding, panel, anchors, self.n_states)
            columns = measure_columns(coding, observations, self.precision, self._threads())
            tier = self._tier(columns)

            def collect(terms: Terms) -> Statistics:
                potentials = coding.potentials(
                    terms, panel.continuous.dtype, self.precision, anchor_table
                )
                sums, log_likelihoods = engine.collect(observations, potentials, self._threads())
                return coding.statistics(
                    potentials, sums, float(log_likelihoods.sum()), panel.n_rows
                )

            with fit_progress(title, self.max_iter, self.progress) as announce:
                params, report = fit(
                    tier, self._starts(panel, anchors, tier, columns), collect, options, announce
                )
        self._adopt(params)
        self.fit_report_ = report
        self.lower_bound_ = report.history[-1]
        return self

    def filter(self, panel: Panel, anchors: Anchors | None = None) -> Posteriors:
        """P(state | rows so far) for every row: what was knowable at that moment."""
        return self._infer(panel, anchors, smoothed=False)

    def smooth(self, panel: Panel, anchors: Anchors | None = None) -> Posteriors:
        """P(state | all rows of the sequence) for every row. Looks ahead: for study, not for live scores."""
        return self._infer(panel, anchors, smoothed=True)

    def decode(self, panel: Panel, anchors: Anchors | None = None) -> NDArray[np.int64]:
        """The most likely path of states [N], each sequence on its own."""
        with announced_compilation():
            path, log_probs = engine.decode(*self._scored(panel, anchors), self._threads())
        _refuse_impossible(log_probs)
        return path

    def log_likelihood(self, panel: Panel) -> Array:
        """Log-likelihood of each sequence [U], whatever the temperature."""
        return self._infer(
            panel, None, smoothed=False, terms=self._scoring_terms(self._fitted())
        ).log_likelihood

    def memoryless(self, panel: Panel, weights: ArrayLike) -> Posteriors:
        """P(state | the row alone) when states are drawn anew for every row with these weights [K]: the model without its chain."""
        shares = np.asarray(weights, np.float64)
        with np.errstate(divide="ignore"):
            log_shares = np.log(shares / shares.sum())
        chain = {"log_initial": log_shares, "log_transition": np.tile(log_shares, (len(shares), 1))}
        return self._infer(panel, None, smoothed=False, terms=replace(self._terms(), **chain))

    def pieces(self, continuous: ArrayLike, categorical: ArrayLike) -> tuple[Array, Array, Array]:
        """What each cell and each code of N rows adds to the log emission of every state, [N, K, D] and [N, K, J], and the rest [N, K]."""
        cells, names = self._terms().pieces(np.asarray(continuous), np.asarray(categorical))
        return cells, names, np.zeros(cells.shape[:2])

    def contrasts(
        self, state: int, log_predicted: Array, continuous: Array, categorical: Array
    ) -> Contrasts:
        """Of N rows: `pieces` of a state against its strongest rival, given the log beliefs before the rows [N, K]."""
        return self._recursion().contrasts(state, log_predicted, continuous, categorical)

    def log_emission(self, continuous: ArrayLike, categorical: ArrayLike) -> Array:
        """Log density of N rows under every state, at the temperature in use [N, K]."""
        cells, names = self._terms().pieces(np.asarray(continuous), np.asarray(categorical))
        return np.asarray(cells.sum(axis=2) + names.sum(axis=2))

    def input_columns(self) -> tuple[int, tuple[int, ...]]:
        """Continuous columns, and the number of values of each categorical one, that panels and rows must have."""
        params = self._fitted()
        return params.means.shape[1], tuple(params.n_categories)

    def embed(self, panel: Panel) -> Panel:
        """The panel as the chain sees it: itself, where no encoder comes first."""
        return panel

    def chain(self) -> HiddenMarkovModel[Any]:
        """The hidden Markov model over what `embed` gives: itself, where no encoder comes first."""
        return self

    def prepared(self, panel: Panel, folder: PathLike[str] | None = None) -> Self:
        """A model like this for fits of several orders to one panel, with done what they can share; `folder` keeps it."""
        return self

    @property
    def orders_compare(self) -> bool:
        """Whether densities of models like this of several orders are densities of the same thing."""
        return True

    def again(self) -> Self:
        """An unfitted model like this one, which shares what was prepared for it."""
        model: Self = clone(self)
        return model

    def log_predicted(self, belief: ArrayLike | None) -> Array:
        """Log of the unnormalised belief [K] before a row, given the belief after the one before it (None for a new customer)."""
        held = (
            np.zeros((1, self.n_states)) if belief is None else np.array(belief, np.float64)[None]
        )
        predicted: Array = self.log_predictions(held, np.array([belief is not None]))[0]
        return predicted

    def log_predictions(self, beliefs: Array, known: Array) -> Array:
        """`log_predicted` before N rows, given beliefs [N, K], of which those not `known` [N] are of new customers."""
        return self._recursion().log_predictions(beliefs, known)

    def bic(self, panel: Panel) -> float:
        """Bayesian information criterion, lower is better: -2 log L + p log N.

        For the variational tier the lower bound is the criterion of choice; here log L is what `log_likelihood` gives, which is
        a log density only under ``emission="predictive"``.
        """
        params = self._fitted()
        k, d = params.n_states, params.means.shape[1]
        free = (k - 1) + k * (k - 1) + 2 * k * d + k * sum(size - 1 for size in params.n_categories)
        return float(-2.0 * self.log_likelihood(panel).sum() + free * np.log(panel.n_rows))

    def sample(
        self, lengths: ArrayLike, random_state: int | None = None
    ) -> tuple[Panel, NDArray[np.int64]]:
        """Draw sequences of the given lengths from the model: the panel and the hidden path [N]."""
        seed = self.random_state if random_state is None else random_state
        return sample_panel(self._fitted(), lengths, np.random.default_rng(seed))

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: ArrayLike | None = None,
        categorical_row: ArrayLike | None = None,
    ) -> Array:
        """The live recursion: a stored belief [K] (None for a new customer) and one row give the new belief [K].

        Always in float64, and equal to `filter` on the same rows to the rounding of `precision`.
        """
        return self._recursion().step(belief, continuous_row, categorical_row)

    def steps(
        self, beliefs: Array, known: Array, continuous: Array, categorical: Array, previous: Array
    ) -> Array:
        """`step` for rows [N, D] and [N, J] in order: beliefs [N, K] after them.

        A row goes on from row `previous` [N], if that is not -1; else from `beliefs` [N, K], where those not `known` [N] are of new
        customers. What each row went on from is put into these two.
        """
        return self._recursion().steps(beliefs, known, continuous, categorical, previous)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the fitted model to a folder; an earlier model there is replaced only once the new one is whole."""
        from turncoat.models.storage import save_model

        save_model(self, folder)

    def _fitted(self) -> P:
        if not hasattr(self, "params_"):
            raise NotFittedError(
                f"this {type(self).__name__} has no parameters yet; call fit(panel) or use from_params"
            )
        return self.params_

    def _adopt(self, params: P) -> Self:
        self.params_ = params
        self._live: tuple[Any, LiveRecursion] | None = None
        self._held_terms: tuple[Any, Terms] | None = None
        return self

    def check_settings(self, of_fit: bool = True) -> None:
        """Refuse bad settings; those that only matter to a fit are left alone when a fitted model is used."""
        check_settings(self, self.get_params(deep=False), self.rules)
        if not of_fit:
            return
        if self.init is not None and not isinstance(self.init, self.params_type):
            raise ConfigError(
                f"{type(self).__name__}: init must be {self.params_type.__name__} or None; found {type(self.init).__name__}"
            )
        if self.init is not None and self.init.n_states != self.n_states:
            raise ConfigError(
                f"init has {self.init.n_states} states but n_states is {self.n_states}"
            )

    def _threads(self) -> int:
        return engine.available_threads() if self.n_threads is None else self.n_threads

    def _observe(
        self, coding: Coding, panel: Panel, anchors: Anchors | None, n_states: int
    ) -> tuple[Observations, Array | None]:
        if anchors is not None and not isinstance(anchors, Anchors):
            raise ConfigError(
                f"anchors must be Anchors(codes, allowed_states), or None; found {type(anchors).__name__}"
            )
        codes = None if anchors is None else anchors.codes_of(panel.n_rows)
        table = None if anchors is None else anchors.log_weights(n_states)
        return coding.pack(panel.continuous, panel.categorical, panel.offsets, codes), table

    def _infer(
        self, panel: Panel, anchors: Anchors | None, smoothed: bool, terms: Terms | None = None
    ) -> Posteriors:
        with announced_compilation():
            probs, log_likelihoods = engine.infer(
                *self._scored(panel, anchors, terms), smoothed, self._threads()
            )
        _refuse_impossible(log_likelihoods)
        return Posteriors(probs, log_likelihoods)

    def _terms(self) -> Terms:
        """The terms used for scoring, at the temperature in use; made once."""
        params = self._fitted()
        key = (id(params), self._scoring_name(), self.temperature)
        if self._held_terms is None or self._held_terms[0] != key:
            terms = self._scoring_terms(params)
            self._held_terms = (
                key,
                terms if self.temperature == 1 else terms.tempered(self.temperature),
            )
        return self._held_terms[1]

    def _scored(
        self, panel: Panel, anchors: Anchors | None, terms: Terms | None = None
    ) -> tuple[Observations, Potentials]:
        """A panel and this model as the kernels read them, under the terms used for scoring or those given."""
        coding = self._coding_for(panel)
        observations, anchor_table = self._observe(coding, panel, anchors, self.params_.n_states)
        terms = self._terms() if terms is None else terms
        return observations, coding.potentials(
            terms, panel.continuous.dtype, self.precision, anchor_table
        )

    def _coding_for(self, panel: Panel) -> Coding:
        """Layout for a panel under this model, if the two agree about columns and categories."""
        params = self._fitted()
        self.check_settings(of_fit=False)
        _check_panel(panel)
        if panel.n_continuous != params.means.shape[1] or panel.n_categorical != len(
            params.n_categories
        ):
            raise DataError(
                f"the model knows {params.means.shape[1]} continuous and {len(params.n_categories)} categorical columns; "
                f"the panel has {panel.n_continuous} and {panel.n_categorical}"
            )
        for j, (known, present) in enumerate(
            zip(params.n_categories, panel.n_categories, strict=True)
        ):
            if present > known and (panel.categorical[:, j] >= known).any():
                row = int(np.flatnonzero(panel.categorical[:, j] >= known)[0])
                raise DataError(
                    f"categorical row {row}, column {j}: code {panel.categorical[row, j]} is unknown to the model, whose codes run "
                    f"from 0 to {known - 1}. Use -1 for a value it has never seen, or fit with n_categories that leave room"
                )
        return Coding.of(params.n_categories, panel.missing_cells, panel.missing_codes)

    def _starts(
        self, panel: Panel, anchors: Anchors | None, tier: Tier[P], columns: Columns
    ) -> list[tuple[int, Callable[[], P]]]:
        """The given start, or one k-means++ start per restart with seeds 137 apart."""
        if self.init is not None:
            given = self.init
            if (
                given.means.shape[1] != panel.n_continuous
                or given.n_categories != panel.n_categories
            ):
                raise ConfigError(
                    f"init describes {given.means.shape[1]} continuous columns and categories {given.n_categories}; the panel "
                    f"has {panel.n_continuous} and {panel.n_categories}"
                )
            return [(self.random_state, lambda: given)]

        seeds = [self.random_state + RESTART_SEED_STEP * r for r in range(self.n_restarts)]
        return [(seed, partial(self._start, panel, anchors, tier, columns, seed)) for seed in seeds]

    def _start(
        self, panel: Panel, anchors: Anchors | None, tier: Tier[P], columns: Columns, seed: int
    ) -> P:
        statistics = kmeans_statistics(
            panel, anchors, columns, self.n_states, seed, self.precision, self._threads()
        )
        return tier.update(statistics, None)

    def _recursion(self) -> LiveRecursion:
        """The live recursion, made once for the parameters and the emission in use."""
        params = self._fitted()
        key = (id(params), self._scoring_name(), self.temperature)
        if self._live is None or self._live[0] != key:
            self.check_settings(of_fit=False)
            self._live = (
                key,
                LiveRecursion(
                    self._terms(), params.n_states, params.means.shape[1], len(params.n_categories)
                ),
            )
        return self._live[1]


def _check_panel(panel: object) -> None:
    if not isinstance(panel, Panel):
        raise DataError(
            f"expected a Panel, found {type(panel).__name__}; make one with Panel.from_arrays"
        )


def _refuse_impossible(log_likelihoods: Array) -> None:
    impossible = np.flatnonzero(~np.isfinite(log_likelihoods))
    if impossible.size:
        raise DataError(
            f"sequence {impossible[0]} has no possible path under this model: its transitions or anchors contain zeros that rule it out"
        )
