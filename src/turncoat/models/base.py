"""The estimator base of all tiers: fitting on a panel, inference, the live step, saving."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, ClassVar, Generic, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError, EmptyStateWarning, NotFittedError, StateError
from turncoat.models import validation as rule
from turncoat.models.anchors import Anchors
from turncoat.models.estimator import SequenceEstimator, refuse_anchors, weigh_sequences
from turncoat.models.fit_rows import FitOptions, FitRows, PackedRows, PanelRows, pack_panel
from turncoat.models.fitting import RESTART_SEED_STEP, EMAlgorithm, FitReport, P, fit
from turncoat.models.initialisation import ColumnMoments, guess_jumps, kmeans_statistics
from turncoat.models.live import LiveInference, LiveRecursion, UsedColumns
from turncoat.models.parameters import get_generator, sample_panel
from turncoat.numerics import engine
from turncoat.numerics.generators import build_gap_table, gap_codes, transition_over
from turncoat.numerics.jit import announce_compilation
from turncoat.numerics.layout import ColumnLayout, LogModel, log_allowing_zero
from turncoat.numerics.structures import KernelTables, Observations
from turncoat.panel import Panel, PanelLike, as_panel, check_is_panel
from turncoat.progress import progress_bars

_IS_WEIGHTS = rule.Rule(
    "a list of finite numbers of at least 0, and some above 0",
    lambda v: isinstance(v, list | tuple) and all(map(rule.number(0).holds, v)) and any(v),
)


@dataclass(frozen=True, eq=False)
class Posteriors:
    """State probabilities [N, K] and the log-likelihood of each sequence [U]."""

    probs: Array
    log_likelihood: Array


@dataclass(eq=False, repr=False)
class HiddenMarkovModel(LiveInference, SequenceEstimator, Generic[P]):
    """Base of the tiers. A subclass names its parameters, its EM algorithm and its log model.

    After `fit`: `params_` (parameters), `lower_bound_` (their bound), `fit_report_` (the report).
    """

    params_types: ClassVar[Mapping[str, type]]  # by the setting `transitions`

    n_states: rule.Count
    _: KW_ONLY
    n_restarts: rule.Count = 5
    max_iter: rule.Count = 100
    tol: rule.NotNegative = 1e-5
    restart_halving: rule.Flag = True
    random_state: rule.Seed = 0
    precision: Annotated[str, rule.one_of("float32", "float64")] = "float32"
    n_threads: Annotated[int | None, rule.or_none(rule.whole_number(1))] = None
    init: P | None = None
    progress: Annotated[bool | None, rule.one_of(None, True, False)] = None
    temperature: rule.Positive = 1.0
    weights: Annotated[Sequence[float] | None, rule.or_none(_IS_WEIGHTS)] = None
    transitions: Annotated[str, rule.one_of("per-row", "continuous")] = "per-row"

    @abstractmethod
    def _build_algorithm(self, columns: ColumnMoments) -> EMAlgorithm[P]:
        """Return the tier's EM algorithm for columns with these moments."""

    @abstractmethod
    def _build_log_model(self, params: P) -> LogModel:
        """Return the model used for scoring, at temperature 1 and without weights."""

    @classmethod
    def from_params(cls, params: P, **settings: Any) -> Self:
        """Return a model with given parameters, ready to score."""
        kinds = tuple(cls.params_types.values())
        if not isinstance(params, kinds):
            expected, found = kinds[0].__name__, type(params).__name__
            raise ConfigError(f"{cls.__name__}.from_params needs {expected}; found {found}")
        settings = {"transitions": params.transitions, **settings}
        model = cls(n_states=params.n_states, **settings)
        model.check_settings()
        model._set_params(params).check_settings(for_fit=False)
        return model

    def fit(
        self,
        X: PanelLike,
        y: object = None,
        *,
        lengths: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        anchors: Anchors | None = None,
    ) -> Self:
        """Fit to a panel, or to a table whose sequences `lengths` or `groups` tell.

        `y` is not used. `sample_weight` has one weight per sequence, or per row and then the same
        in all rows of a sequence: 2 counts like the sequence twice, 0 like a sequence left out.
        Anchored rows may only be in the states that their code allows.
        """
        self.check_settings()
        refuse_anchors(y)
        panel, anchors, weights = select_sequences(
            as_panel(X, lengths, groups), anchors, sample_weight
        )
        return self.fit_rows(PanelRows(panel, anchors, weights))

    def fit_rows(self, rows: FitRows) -> Self:
        """Fit to rows that need not be in memory; `fit` does so for a panel."""
        self.check_settings()
        self._check_init(rows)
        n_categories = rows.n_categories
        is_fitted = self._find_weighted(rows.n_continuous + len(n_categories))
        title = f"{type(self).__name__} with {self.n_states} states"
        with announce_compilation(), progress_bars(self.progress) as show:
            is_continuous = self.transitions == "continuous"
            threads = self._count_threads()
            asked = FitOptions(self.n_states, self.precision, threads, is_continuous)
            packed = rows.pack(is_fitted, asked)
            columns = packed.measure_columns()
            algorithm = self._build_algorithm(columns)
            starts = self._list_starts(packed, columns, is_fitted)

            def report_iteration(restart: int, iteration: int, bound: float) -> None:
                name = f"{title}, restart {restart + 1} of {len(starts)}"
                show(name, iteration, self.max_iter, f"bound {bound:,.1f}")

            names = ("max_iter", "tol", "restart_halving", "precision")
            options = {name: getattr(self, name) for name in names}
            params, report = fit(algorithm, starts, packed.collect, report_iteration, **options)
        self._set_params(params.widen(is_fitted, n_categories))
        self.fit_report_: FitReport = report
        self.lower_bound_: float = report.history[-1]
        if report.empty_states:
            states = ", ".join(map(str, report.empty_states))
            found = f"empty states {states} (numbered from 0; less than one expected row each)"
            remedy = "Use fewer states or more restarts"
            warnings.warn(f"{title}: {found}. {remedy}", EmptyStateWarning, stacklevel=3)
        return self

    def filter(self, panel: Panel, anchors: Anchors | None = None) -> Posteriors:
        """Return P(state | rows so far) of every row: what was known at that moment."""
        return self._infer(panel, anchors, smoothed=False)

    def smooth(self, panel: Panel, anchors: Anchors | None = None) -> Posteriors:
        """Return P(state | all rows of the sequence). It looks ahead: not for live scores."""
        return self._infer(panel, anchors, smoothed=True)

    def decode(self, panel: Panel, anchors: Anchors | None = None) -> NDArray[np.int64]:
        """Return the most likely path of states [N], each sequence on its own."""
        with announce_compilation():
            tables = self._build_tables(panel, anchors)
            path, log_probs = engine.decode(*tables, self._count_threads())
        _check_possible(log_probs)
        return path

    def log_likelihood(self, panel: Panel) -> Array:
        """Return the log-likelihood of each sequence [U], at temperature 1 and unweighted."""
        model = self._build_log_model(self._get_used_params())
        return self._infer(panel, None, smoothed=False, model=model).log_likelihood

    def infer_without_chain(self, panel: Panel, weights: ArrayLike) -> Posteriors:
        """Return P(state | the row alone) with states drawn for every row with weights [K]."""
        shares = np.asarray(weights, np.float64)
        log_shares = log_allowing_zero(shares / shares.sum())
        log_rows = np.tile(log_shares, (len(shares), 1))
        model = replace(self._scoring_model(), log_initial=log_shares, log_transition=log_rows)
        model = replace(model, generator=None)
        return self._infer(panel, None, smoothed=False, model=model)

    def ahead(self, belief: ArrayLike, hours: ArrayLike) -> Array:
        """Return the belief [K] after some hours without rows; for many hours [H], [H, K].

        Needs ``transitions="continuous"``. In the variational tier, rates are posterior means.
        """
        generator = get_generator(self._get_params())
        if generator is None:
            rule = 'needs transitions="continuous"; these are per row, whatever the time between'
            raise ConfigError(f"{type(self).__name__}.ahead {rule}")
        now: Array = np.asarray(belief, np.float64)
        spans: Array = np.asarray(hours, np.float64)
        if now.shape != (self.n_states,) or not (now >= 0).all() or abs(now.sum() - 1.0) > 1e-6:
            raise StateError(f"a belief must be {self.n_states} probabilities that add up to 1")
        if not ((spans >= 0) & np.isfinite(spans)).all():
            raise DataError(f"hours must be finite and not negative; found {hours!r}")
        later = [now @ transition_over(generator, span) for span in spans.ravel()]
        return np.reshape(later, (*spans.shape, self.n_states))

    def average_transitions(self, panel: Panel) -> Array:
        """Return P(state of the next row | state of a row) [K, K], on average over a panel.

        With ``transitions="continuous"`` a state counts the gaps after its own rows, by filtered
        probabilities. If no row has a next one, the matrix is the one over an hour.
        """
        params = self._get_params()
        generator, k = get_generator(params), params.n_states
        has_next = np.ones(panel.n_rows, bool)
        has_next[panel.offsets[1:] - 1] = False
        rows = np.flatnonzero(has_next)
        if generator is None or not len(rows):
            return np.asarray(params.transition_matrix)
        codes, places = np.unique(gap_codes(panel.gaps_s[rows + 1]), return_inverse=True)
        weights = np.full((len(codes), k), np.finfo(np.float64).tiny)  # a state may have no rows
        np.add.at(weights, places, self.filter(panel).probs[rows])
        matrices = build_gap_table(generator).matrices[codes, :k, :k]
        shares = weights / weights.sum(axis=0)
        return np.asarray((shares[:, :, None] * matrices).sum(axis=0))

    def explain_emission(
        self, continuous: ArrayLike, categorical: ArrayLike
    ) -> tuple[Array, Array, Array]:
        """Split N rows' log emissions: cells [N, K, D], codes [N, K, J] and the rest [N, K]."""
        used = self._used_columns()
        rows = used.narrow(np.asarray(continuous), np.asarray(categorical))
        cells, codes = used.widen(*self._scoring_model().row_terms(*rows))
        return cells, codes, np.zeros(cells.shape[:2])

    def log_emission(self, continuous: ArrayLike, categorical: ArrayLike) -> Array:
        """Return the log density of N rows under every state, at the model's temperature [N, K]."""
        rows = np.asarray(continuous), np.asarray(categorical)
        cells, codes = self._scoring_model().row_terms(*self._used_columns().narrow(*rows))
        return np.asarray(cells.sum(axis=2) + codes.sum(axis=2))

    def get_input_columns(self) -> tuple[int, tuple[int, ...]]:
        """Return the number of continuous columns and the sizes of the categorical ones."""
        params = self._get_params()
        return params.means.shape[1], tuple(params.n_categories)

    def embed(self, panel: Panel) -> Panel:
        """Return the panel as the chain sees it: itself, unless an encoder comes first."""
        return panel

    def to_latent_hmm(self) -> HiddenMarkovModel[Any]:
        """Return the model over what `embed` returns: itself, unless an encoder comes first."""
        return self

    def prepare_sweep(self, panel: Panel, checkpoint_dir: PathLike[str] | None = None) -> Self:
        """Return a model whose copies of several orders share work on one panel."""
        return self

    @property
    def has_comparable_orders(self) -> bool:
        """Whether models of several orders give densities of the same data."""
        return True

    def copy_unfitted(self) -> Self:
        """Return an unfitted model with the same settings, which shares prepared work."""
        model: Self = clone(self)
        return model

    def copy_with(self, **settings: Any) -> Self:
        """Return a model with the same parameters and other settings for scoring."""
        self._get_params()
        model: Self = copy(self).set_params(**settings)
        return model

    def limit_field_effects(self) -> Array:
        """Return how far each column can move the log odds of two states at most [D + J].

        This is the effect of leaving the column out; a change of its value can have twice that.
        Finite for ``emission="robust"`` only.
        """
        used = self._used_columns()
        limits = np.split(self._scoring_model().max_differences, [int(used.cells.sum())])
        return np.concatenate(used.widen(*limits))

    def bic(self, panel: Panel) -> float:
        """Return the Bayesian information criterion -2 log L + p log N; lower is better.

        In the variational tier, prefer the lower bound. There log L is what `log_likelihood`
        returns, which is a log density only under ``emission="predictive"``. A chain has K(K - 1)
        free numbers: probabilities per row, or rates.
        """
        params = self._get_used_params()
        k, d = params.n_states, params.means.shape[1]
        n_free = (k - 1) + k * (k - 1) + 2 * k * d + k * sum(c - 1 for c in params.n_categories)
        return float(-2.0 * self.log_likelihood(panel).sum() + n_free * np.log(panel.n_rows))

    def sample(
        self, lengths: ArrayLike, random_state: int | None = None, times: ArrayLike | None = None
    ) -> tuple[Panel, NDArray[np.int64]]:
        """Draw sequences of the given lengths: the panel and the hidden path [N].

        With ``transitions="continuous"``, `times` [N] are needed: seconds or dates, by sequence.
        """
        seed = self.random_state if random_state is None else random_state
        return sample_panel(self._get_params(), lengths, np.random.default_rng(seed), times)

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the fitted model to a folder. An earlier model there is replaced atomically."""
        from turncoat.models import storage

        storage.MODEL.save(folder, *storage.pack_model(self))

    def check_settings(self, for_fit: bool = True) -> None:
        """Raise a ConfigError for settings that break a rule; `init` is checked for fits only."""
        rule.check_settings(self, self.get_params(deep=False))
        name, params = type(self).__name__, getattr(self, "params_", None)
        if not for_fit and params is not None and params.transitions != self.transitions:
            found = f'parameters with transitions="{params.transitions}"'
            raise ConfigError(f'{name}: transitions is "{self.transitions}"; found {found}. Refit')
        if not for_fit or self.init is None:
            return
        init, kind = self.init, self.params_types[self.transitions]
        if not isinstance(init, kind) or init.transitions != self.transitions:
            found = type(init).__name__
            raise ConfigError(f"{name}: init must be {kind.__name__} or None; found {found}")
        if init.n_states != self.n_states:
            raise ConfigError(f"init has {init.n_states} states but n_states is {self.n_states}")

    def _find_weighted(self, n_columns: int) -> Array:
        """The columns with a weight above 0, as a mask [D + J]."""
        if self.weights is None:
            return np.ones(n_columns, bool)
        weights = np.asarray(self.weights)
        if len(weights) != n_columns:
            expected = f"weights must have one for each of the {n_columns} columns"
            raise ConfigError(f"{expected}; found {len(weights)}")
        return np.asarray(weights > 0)

    def _used_columns(self) -> UsedColumns:
        """The columns that count when scoring."""
        params = self._get_params()
        n_continuous = params.means.shape[1]
        mask = self._find_weighted(n_continuous + len(params.n_categories))
        return UsedColumns.split(mask, n_continuous)

    def _get_used_params(self) -> P:
        return self._get_params().take_columns(np.concatenate(self._used_columns()))

    def _get_params(self) -> P:
        if not hasattr(self, "params_"):
            name = type(self).__name__
            raise NotFittedError(f"this {name} has no parameters; call fit or from_params")
        return self.params_

    def _set_params(self, params: P) -> Self:
        self.params_: P = params
        self._cached_model: tuple[Any, LogModel] | None = None
        self._cached_recursion: tuple[Any, LiveRecursion] | None = None
        return self

    def _count_threads(self) -> int:
        return engine.available_threads() if self.n_threads is None else self.n_threads

    def _infer(
        self, panel: Panel, anchors: Anchors | None, smoothed: bool, model: LogModel | None = None
    ) -> Posteriors:
        with announce_compilation():
            tables = self._build_tables(panel, anchors, model)
            probs, log_likelihoods = engine.infer(*tables, smoothed, self._count_threads())
        _check_possible(log_likelihoods)
        return Posteriors(probs, log_likelihoods)

    def _cache_key(self) -> tuple[Any, ...]:
        weights = None if self.weights is None else tuple(self.weights)
        return id(self._get_params()), self.temperature, weights, getattr(self, "emission", None)

    def _scoring_model(self) -> LogModel:
        """The log model of the used columns, at the temperature and weights; built once."""
        key = self._cache_key()
        if self._cached_model is None or self._cached_model[0] != key:
            model = self._build_log_model(self._get_used_params())
            if self.temperature != 1:
                model = model.apply_temperature(self.temperature)
            if self.weights is not None:
                weights = np.asarray(self.weights, np.float64)
                model = model.weigh(weights[weights > 0])
            self._cached_model = key, model
        return self._cached_model[1]

    def _recursion(self) -> LiveRecursion:
        key = self._cache_key()
        if self._cached_recursion is None or self._cached_recursion[0] != key:
            self.check_settings(for_fit=False)
            parts = self._scoring_model(), self._used_columns()
            self._cached_recursion = key, LiveRecursion.from_model(*parts)
        return self._cached_recursion[1]

    def _build_tables(
        self, panel: Panel, anchors: Anchors | None, model: LogModel | None = None
    ) -> tuple[Observations, KernelTables]:
        """Prepare a panel and a model, by default the scoring model, for the kernels."""
        params = self._get_params()
        self.check_settings(for_fit=False)
        check_is_panel(panel)
        panel.check_columns(params.means.shape[1], params.n_categories, "model")
        used = self._used_columns()
        if not used.are_all:
            panel = panel.take_columns(np.concatenate(used))
        sizes = self._get_used_params().n_categories  # the panel may not have met every category
        layout = ColumnLayout.create(sizes, panel.missing_cells, panel.missing_codes)
        model = self._scoring_model() if model is None else model
        has_gaps = model.generator is not None
        packed = pack_panel(layout, PanelRows(panel, anchors), model.n_states, has_gaps)
        observations, anchor_table, gaps = packed
        dtype = panel.continuous.dtype
        return observations, layout.build_tables(model, dtype, self.precision, anchor_table, gaps)

    def _check_init(self, rows: FitRows) -> None:
        if self.init is None:
            return
        found = self.init.means.shape[1], self.init.n_categories
        expected = rows.n_continuous, rows.n_categories
        if found != expected:
            described = f"{found[0]} continuous columns and categories {found[1]}"
            panel_has = f"the panel has {expected[0]} and {expected[1]}"
            raise ConfigError(f"init describes {described}; {panel_has}")

    def _list_starts(
        self, packed: PackedRows, columns: ColumnMoments, is_fitted: Array
    ) -> list[tuple[int, Callable[[], P]]]:
        """Return (seed, start) pairs: `init`, or one k-means++ start per restart."""
        if self.init is not None:
            init = self.init.take_columns(is_fitted)
            return [(self.random_state, lambda: init)]

        def start(seed: int) -> P:
            options, sample = (self.precision, self._count_threads()), packed.draw_sample(seed)
            statistics = kmeans_statistics(sample, columns, self.n_states, seed, options)
            if self.transitions == "continuous":
                statistics = replace(statistics, transitions=guess_jumps(statistics, sample.panel))
            return self._build_algorithm(columns).update(statistics, None)

        seeds = [self.random_state + RESTART_SEED_STEP * r for r in range(self.n_restarts)]
        return [(seed, partial(start, seed)) for seed in seeds]


def select_sequences(
    panel: Panel, anchors: Anchors | None, sample_weight: ArrayLike | None
) -> tuple[Panel, Anchors | None, Array | None]:
    """Return the sequences with a weight above 0, their anchors and weights; None if all are 1."""
    weights = weigh_sequences(panel, sample_weight)
    if weights is None:
        return panel, anchors, None
    used = weights > 0.0
    if not used.all():
        if isinstance(anchors, Anchors):
            codes = anchors.check_codes(panel.n_rows)
            anchors = replace(anchors, codes=codes[np.repeat(used, panel.lengths)])
        panel, weights = panel[used], weights[used]
    return panel, anchors, None if (weights == 1.0).all() else weights


def _check_possible(log_likelihoods: Array) -> None:
    impossible = np.flatnonzero(~np.isfinite(log_likelihoods))
    if impossible.size:
        reason = "its transitions or anchors contain zeros that rule it out"
        raise DataError(f"sequence {impossible[0]} has no possible path under this model: {reason}")
