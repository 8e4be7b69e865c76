"""Point parameters, posterior and prior; sampling from them, and aligning two fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from scipy.optimize import linear_sum_assignment
from scipy.special import digamma

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.numerics.generators import (
    build_gap_table,
    build_generator,
    gap_codes,
    limit_rates,
    transition_over,
)
from turncoat.numerics.structures import column_sums, join_columns
from turncoat.panel import Panel

_SUM_TOLERANCE = 1e-6
_MAY_BE_ZERO = ("sticky", "dof", "scale", "dof_per_column", "scale_per_column")


@dataclass(frozen=True, eq=False)
class _StateArrays:
    """Arrays of K states in this order of fields: initial, chain, columns..., categories.

    Initial has shape [K], the chain [K, K], a column array [K, D], and categories one array
    [K, C_j] per categorical column.
    """

    transitions: ClassVar[str] = "per-row"  # or "continuous": they depend on the time between rows
    chain: ClassVar[str]  # the field of the chain's parameters
    unfitted: ClassVar[Mapping[str, float]]  # values of columns that take no part in the fit

    def __post_init__(self) -> None:
        """Store float64 arrays and check their shapes."""
        initial, chain, *columns, categories = names = _field_names(self)
        for name in names[:-1]:
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        by_column = tuple(np.asarray(array, np.float64) for array in getattr(self, categories))
        object.__setattr__(self, categories, by_column)
        k = len(getattr(self, initial)) if getattr(self, initial).ndim == 1 else 0
        if k == 0:
            raise ConfigError(f"{initial} must be a list of at least one state")
        shape = getattr(self, chain).shape
        if shape != (k, k):
            raise ConfigError(f"{chain} must be [{k}, {k}]; found {shape}")
        n_columns = getattr(self, columns[0]).shape[-1]
        for name in columns:
            shape = getattr(self, name).shape
            if shape != (k, n_columns):
                raise ConfigError(f"{name} must be [{k}, columns]; found {shape}")
        for j, array in enumerate(by_column):
            if array.ndim != 2 or len(array) != k or array.shape[1] == 0:
                raise ConfigError(f"{categories}[{j}] must be [{k}, values]; found {array.shape}")

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return len(getattr(self, _field_names(self)[0]))

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Number of values of each categorical column."""
        return tuple(array.shape[1] for array in getattr(self, _field_names(self)[-1]))

    def take_columns(self, mask: Array) -> Self:
        """Return the parameters of some columns: a mask over continuous, then categorical."""
        cells, codes = np.split(mask, [len(mask) - len(self.n_categories)])
        _, _, *columns, categories = _field_names(self)
        values: dict[str, Any] = {}
        for name in columns:  # kernels read rows of states
            values[name] = np.ascontiguousarray(getattr(self, name)[:, cells])
        parts = getattr(self, categories)
        values[categories] = tuple(parts[j] for j in np.flatnonzero(codes))
        return replace(self, **values)

    def widen(self, is_fitted: Array, n_categories: tuple[int, ...]) -> Self:
        """Return parameters for all columns of a panel, of which a mask [D + J] was fitted.

        The other columns, without a say in anything, get the values in `unfitted`.
        """
        cells, codes = np.split(is_fitted, [len(is_fitted) - len(n_categories)])
        _, _, *columns, categories = _field_names(self)
        values: dict[str, Any] = {}
        for name in columns:
            values[name] = np.full((self.n_states, len(cells)), self.unfitted[name])
            values[name][:, cells] = getattr(self, name)
        parts = [np.full((self.n_states, size), 1.0 / size) for size in n_categories]
        for place, array in zip(np.flatnonzero(codes), getattr(self, categories), strict=True):
            parts[place] = array
        return replace(self, **values, **{categories: tuple(parts)})

    def reorder(self, order: ArrayLike) -> Self:
        """Return the same parameters with the states in another order."""
        places = np.asarray(order)
        if sorted(places.tolist()) != list(range(self.n_states)):
            expected = f"each of the {self.n_states} states once"
            raise ConfigError(f"order must name {expected}; found {places.tolist()}")
        initial, chain, *columns, categories = _field_names(self)
        values: dict[str, Any] = {name: getattr(self, name)[places] for name in (initial, *columns)}
        values[chain] = getattr(self, chain)[np.ix_(places, places)]
        values[categories] = tuple(array[places] for array in getattr(self, categories))
        return replace(self, **values)


def _field_names(params: Any) -> list[str]:
    """Names of the given arrays, in the order that `_StateArrays` describes."""
    initial, *others = (f.name for f in fields(params) if f.init and f.name != params.chain)
    return [initial, params.chain, *others]


@dataclass(frozen=True, eq=False)
class HMMParams(_StateArrays):
    """Point parameters of an HMM with K states, D continuous and J categorical columns."""

    chain = "transition_matrix"
    unfitted = MappingProxyType({"means": 0.0, "variances": 1.0})

    initial_probs: Array  # [K]
    transition_matrix: Array  # [K, K]
    means: Array  # [K, D]
    variances: Array  # [K, D]
    category_probs: tuple[Array, ...] = ()  # J arrays [K, C_j]

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_probs(self.initial_probs[None], "initial_probs")
        _check_probs(self.transition_matrix, "transition_matrix")
        _check_category_probs(self.category_probs)
        is_finite = np.isfinite(self.means).all() and np.isfinite(self.variances).all()
        if not is_finite or not (self.variances > 0).all():
            raise ConfigError("means must be finite and variances positive, for all states")


@dataclass(frozen=True, eq=False)
class ContinuousHMMParams(HMMParams):
    """Point parameters of an HMM whose chain runs in continuous time."""

    transitions = "continuous"
    chain = "generator"

    transition_matrix: Array = field(init=False)  # [K, K] over one hour
    generator: Array = field(kw_only=True)  # [K, K] rates per hour; rows add up to 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "generator", _check_generator(self.generator))
        object.__setattr__(self, "transition_matrix", transition_over(self.generator, 1.0))
        super().__post_init__()


@dataclass(frozen=True, eq=False)
class VariationalParams(_StateArrays):
    """Posterior over parameters: Dirichlets, and a Normal-Gamma per state and column."""

    chain = "transition_concentration"
    unfitted = MappingProxyType({"location": 0.0, "mean_strength": 1.0, "dof": 5.0, "scale": 3.0})

    initial_concentration: Array  # [K]
    transition_concentration: Array  # [K, K]
    location: Array  # [K, D] posterior mean of the mean
    mean_strength: Array  # [K, D] pseudo-observations behind it
    dof: Array  # [K, D] the Gamma has shape dof / 2
    scale: Array  # [K, D] and rate scale / 2
    category_concentration: tuple[Array, ...] = ()  # J arrays [K, C_j]

    def __post_init__(self) -> None:
        super().__post_init__()
        chain = self.initial_concentration, self.transition_concentration
        categories = join_columns(self.category_concentration, self.n_states)
        positive = (*chain, self.mean_strength, self.dof, self.scale, categories)
        is_positive = all(np.isfinite(a).all() and (a > 0).all() for a in positive)
        if not is_positive or not np.isfinite(self.location).all():
            rest = "mean_strength, dof and scale must be positive and finite, locations finite"
            raise ConfigError(f"concentrations, {rest}")

    @property
    def initial_probs(self) -> Array:
        """Posterior mean [K]."""
        return _dirichlet_mean(self.initial_concentration)

    @property
    def transition_matrix(self) -> Array:
        """Posterior mean [K, K]."""
        return _dirichlet_mean(self.transition_concentration)

    @property
    def means(self) -> Array:
        """Posterior mean [K, D]."""
        return self.location

    @property
    def variances(self) -> Array:
        """Inverse of the posterior mean precision [K, D]."""
        return np.asarray(self.scale / self.dof)

    @property
    def category_probs(self) -> tuple[Array, ...]:
        """Posterior means, J arrays [K, C_j]."""
        return tuple(_dirichlet_mean(a) for a in self.category_concentration)

    def credible_interval(self, name: str, level: float = 0.9) -> Any:
        """Return the central credible interval of a parameter: (low, high), or one per column."""
        if not 0.0 < level < 1.0:
            raise ConfigError(f"level must lie between 0 and 1; found {level}")
        tails = ((1.0 - level) / 2.0, (1.0 + level) / 2.0)
        if name == "initial_probs":
            return _beta_interval(self.initial_concentration, tails)
        if name == "transition_matrix" and self.transitions == "per-row":
            return _beta_interval(self.transition_concentration, tails)
        if name == "category_probs":
            return tuple(_beta_interval(a, tails) for a in self.category_concentration)
        if name == "means":
            spread = np.sqrt(self.scale / (self.dof * self.mean_strength))
            return tuple(self.location + spread * stats.t.ppf(tail, self.dof) for tail in tails)
        if name == "variances":
            shape, rate = self.dof / 2.0, self.scale / 2.0
            return tuple(stats.invgamma.ppf(tail, shape, scale=rate) for tail in tails)
        known = ", ".join(self._named_parameters)
        raise ConfigError(f"no parameter {name!r}; choose from {known}")

    @property
    def _named_parameters(self) -> list[str]:
        return _field_names(HMMParams)


@dataclass(frozen=True, eq=False)
class ContinuousVariationalParams(VariationalParams):
    """Posterior over parameters of an HMM in continuous time, with a Gamma for each rate.

    `transition_concentration` [K, K] holds the Gammas: off the diagonal their shapes (jumps,
    expected and prior), on the diagonal the rate parameter of a row (hours in the state).
    """

    transitions = "continuous"

    @property
    def generator(self) -> Array:
        """Posterior mean of the rates per hour [K, K]; rows add up to 0."""
        return build_generator(self.transition_concentration / self._hours)

    @property
    def expected_log_generator(self) -> Array:
        """Rates exp(E[log q]) off the diagonal, minus the sums of E[q] on it [K, K].

        The expected log density of a path is its log density under this generator.
        """
        shapes, k = self.transition_concentration, self.n_states
        rates = np.exp(digamma(shapes)) / self._hours
        return np.where(np.eye(k, dtype=bool), self.generator, rates)

    @property
    def transition_matrix(self) -> Array:
        """Transition matrix over one hour at the posterior mean of the rates [K, K]."""
        return transition_over(self.generator, 1.0)

    def credible_interval(self, name: str, level: float = 0.9) -> Any:
        """Return the central credible interval of a parameter: (low, high), or one per column.

        Rates are ``"generator"``, NaN on the diagonal.
        """
        if name != "generator" or not 0.0 < level < 1.0:
            return super().credible_interval(name, level)
        off_diagonal = np.where(np.eye(self.n_states, dtype=bool), np.nan, 1.0)
        shapes, scale = self.transition_concentration * off_diagonal, 1.0 / self._hours
        tails = ((1.0 - level) / 2.0, (1.0 + level) / 2.0)
        return tuple(stats.gamma.ppf(tail, shapes, scale=scale) for tail in tails)

    @property
    def _hours(self) -> Array:
        return np.diag(self.transition_concentration)[:, None]

    @property
    def _named_parameters(self) -> list[str]:
        return [
            "generator" if name == HMMParams.chain else name for name in _field_names(HMMParams)
        ]


def get_generator(params: HMMParams | VariationalParams) -> Array | None:
    """Return the rates per hour [K, K] of a chain in continuous time, else None."""
    if isinstance(params, ContinuousHMMParams | ContinuousVariationalParams):
        return limit_rates(params.generator)
    return None


@dataclass(frozen=True)
class Prior:
    """Prior of the variational tier, with nu0 and S0 as in `total_dof` and `total_scale`.

    `mean` and `scale` are those of standardised columns: a fit multiplies them by each column's
    standard deviation and variance and adds its mean, so that units do not matter. With
    ``standardised=False`` they are in the columns' own units.
    """

    initial: float = 1.0
    transition: float = 1.0
    sticky: float = 4.0  # added to a state's transition to itself
    category: float = 1.0
    mean: float = 0.0
    mean_strength: float = 1.0
    dof: float = 5.0
    dof_per_column: float = 0.0
    scale: float = 3.0
    scale_per_column: float = 0.0
    jumps: float = 1.0  # in continuous time: prior jumps from a state to each other one
    hours: float = 24.0  # and the prior hours in the state
    standardised: bool = True

    @classmethod
    def weak(cls) -> Prior:
        """Return a weak prior: expect the columns' own mean and variance, worth a few rows."""
        return cls()

    @classmethod
    def paper(cls) -> Prior:
        """Return the published prior for raw features (E4 in docs/errata.md)."""
        return cls(dof=1.0, dof_per_column=1.0, scale=1.0, standardised=False)

    def __post_init__(self) -> None:
        if not isinstance(self.standardised, bool):
            found = repr(self.standardised)
            raise ConfigError(f"prior standardised must be True or False; found {found}")
        for name in (f.name for f in fields(self) if f.name != "standardised"):
            value = getattr(self, name)
            if not isinstance(value, int | float | np.number) or not np.isfinite(value):
                raise ConfigError(f"prior {name} must be a finite number; found {value!r}")
            is_valid = value >= 0.0 if name in _MAY_BE_ZERO else value > 0.0
            if name != "mean" and not is_valid:
                bound = "at least" if name in _MAY_BE_ZERO else "above"
                raise ConfigError(f"prior {name} must be {bound} 0; found {value}")
        if self.dof + self.dof_per_column <= 0 or self.scale + self.scale_per_column <= 0:
            raise ConfigError("prior dof and scale must be positive")

    def total_dof(self, n_columns: int) -> float:
        """Return nu0 for D columns."""
        return self.dof + self.dof_per_column * n_columns

    def total_scale(self, n_columns: int) -> float:
        """Return S0 for D columns."""
        return self.scale + self.scale_per_column * n_columns

    def scale_to_columns(self, means: Array, variances: Array) -> tuple[Array, Array]:
        """Return m0 and S0 of each column [D] from the columns' means and variances [D]."""
        mean, scale = np.full(len(means), self.mean), self.total_scale(len(means))
        if not self.standardised:
            return mean, np.full(len(means), scale)
        return means + np.sqrt(variances) * mean, scale * variances

    def to_params(
        self,
        n_states: int,
        means: Array,
        variances: Array,
        n_categories: tuple[int, ...],
        params_type: type[VariationalParams],
    ) -> VariationalParams:
        """Return the prior of all states in the form of a posterior.

        `means` and `variances` [D] are the columns'.
        """
        shape = n_states, len(means)
        location, scale = self.scale_to_columns(means, variances)
        is_continuous = params_type.transitions == "continuous"
        chain = self.rate_concentration if is_continuous else self.transition_concentration
        return params_type(
            initial_concentration=np.full(n_states, self.initial),
            transition_concentration=chain(n_states),
            location=np.broadcast_to(location, shape),
            mean_strength=np.full(shape, self.mean_strength),
            dof=np.full(shape, self.total_dof(len(means))),
            scale=np.broadcast_to(scale, shape),
            category_concentration=tuple(
                np.full((n_states, size), self.category) for size in n_categories
            ),
        )

    def transition_concentration(self, n_states: int) -> Array:
        """Return the prior of the transition rows [K, K]."""
        return np.full((n_states, n_states), self.transition) + self.sticky * np.eye(n_states)

    def rate_concentration(self, n_states: int) -> Array:
        """Return the prior of the rates [K, K]: jumps, and hours on the diagonal."""
        return np.where(np.eye(n_states, dtype=bool), self.hours, self.jumps)


def _check_probs(rows: Array, name: str) -> None:
    is_distribution = np.abs(rows.sum(axis=1) - 1.0) <= _SUM_TOLERANCE
    if not (np.isfinite(rows).all() and (rows >= 0).all() and is_distribution.all()):
        raise ConfigError(f"{name} must be probabilities that add up to 1")


def _check_generator(values: ArrayLike) -> Array:
    generator = np.asarray(values, np.float64)
    if generator.ndim != 2 or len(generator) != generator.shape[1]:
        raise ConfigError(f"generator must be [states, states]; found {generator.shape}")
    is_rates = np.isfinite(generator).all() and (generator >= np.diag(np.diag(generator))).all()
    tolerance = _SUM_TOLERANCE * np.abs(np.diag(generator))
    if not is_rates or not (np.abs(generator.sum(axis=1)) <= tolerance).all():
        rule = "finite rates of at least 0 off the diagonal, and rows that add up to 0"
        raise ConfigError(f"generator must have {rule}")
    return build_generator(generator)


def _check_category_probs(columns: tuple[Array, ...]) -> None:
    """Check all columns at once, and each only to find the wrong one."""
    if not columns:
        return
    flat, sizes = join_columns(columns, len(columns[0])), tuple(a.shape[1] for a in columns)
    is_distribution = np.abs(column_sums(flat, sizes) - 1.0) <= _SUM_TOLERANCE
    if np.isfinite(flat).all() and (flat >= 0).all() and is_distribution.all():
        return
    for j, probs in enumerate(columns):
        _check_probs(probs, f"category_probs[{j}]")


def _dirichlet_mean(concentration: Array) -> Array:
    return np.asarray(concentration / concentration.sum(axis=-1, keepdims=True))


def _beta_interval(concentration: Array, tails: tuple[float, float]) -> tuple[Array, ...]:
    rest = concentration.sum(axis=-1, keepdims=True) - concentration
    is_certain = rest <= 0  # a single category or state has probability one
    safe = np.where(is_certain, 1.0, rest)
    bounds = (stats.beta.ppf(tail, concentration, safe) for tail in tails)
    return tuple(np.where(is_certain, 1.0, bound) for bound in bounds)


def sample_panel(
    params: HMMParams | VariationalParams,
    lengths: ArrayLike,
    rng: np.random.Generator,
    times: ArrayLike | None = None,
) -> tuple[Panel, NDArray[np.int64]]:
    """Draw sequences of these lengths, from a posterior's mean: the panel and the path [N].

    A chain in continuous time needs the times of the rows [N].
    """
    sizes = np.atleast_1d(np.asarray(lengths))
    if sizes.ndim != 1 or sizes.size == 0 or sizes.dtype.kind not in "ui" or sizes.min() < 1:
        expected = "whole numbers of at least 1, one per sequence"
        raise DataError(f"lengths must be {expected}; found {lengths!r}")
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    states = np.empty(int(offsets[-1]), np.int64)
    matrices, gaps = _find_matrices(params, sizes, len(states), times)
    initial = np.repeat(params.initial_probs[None], len(sizes), axis=0)
    states[offsets[:-1]] = _draw_categories(initial, rng)
    for t in range(1, int(sizes.max())):  # all sequences step together
        rows = offsets[:-1][sizes > t] + t
        states[rows] = _draw_categories(matrices[gaps[rows], states[rows - 1]], rng)
    noise = rng.standard_normal((len(states), params.means.shape[1]))
    continuous = params.means[states] + np.sqrt(params.variances)[states] * noise
    categorical = np.empty((len(states), len(params.n_categories)), np.int64)
    for j, probs in enumerate(params.category_probs):
        for k in range(params.n_states):
            rows, p = np.flatnonzero(states == k), probs[k] / probs[k].sum()
            categorical[rows, j] = rng.choice(probs.shape[1], size=len(rows), p=p)
    n_categories = params.n_categories
    panel = Panel.from_arrays(
        continuous, categorical, sizes, times=times, n_categories=n_categories
    )
    return panel, states


def _find_matrices(
    params: HMMParams | VariationalParams, lengths: Array, n_rows: int, times: ArrayLike | None
) -> tuple[Array, Array]:
    """Return transition matrices [M, K, K] and the place of each row's among them [N]."""
    generator, k = get_generator(params), params.n_states
    if generator is None:
        return params.transition_matrix[None], np.zeros(n_rows, np.int64)
    if times is None:
        raise DataError("transitions depend on the time between rows; give `times`, one per row")
    clock = Panel.from_arrays(np.zeros((n_rows, 1)), lengths=lengths, times=times)
    return build_gap_table(generator).matrices[:, :k, :k], gap_codes(clock.gaps_s)


def _draw_categories(probs: Array, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw one category per row of probabilities."""
    cumulative = np.cumsum(probs, axis=1)
    draws = rng.random((len(probs), 1)) * cumulative[:, -1:]
    return np.asarray((draws >= cumulative[:, :-1]).sum(axis=1), dtype=np.int64)


def align_states(reference: ArrayLike, other: ArrayLike) -> NDArray[np.int64]:
    """Return the order of the other fit's states that best matches the reference's.

    Both are posteriors [N, K] or decoded paths [N] of the same rows. With the result `order`,
    `other[:, order]` lines up with the reference's columns, `params.reorder(order)` with its
    parameters, and `np.argsort(order)[path]` with its paths. If the numbers of states differ, the
    smaller fit is padded with empty states.
    """
    first, second = np.asarray(reference), np.asarray(other)
    has_shapes = first.ndim in (1, 2) and second.ndim in (1, 2)
    if not has_shapes or len(first) != len(second) or len(first) == 0:
        found = f"shapes {first.shape} and {second.shape}"
        raise DataError(f"both must describe the same rows; found {found}")
    overlap = _as_probs(first).T @ _as_probs(second)
    n_rows, n_columns = overlap.shape
    padding = (0, max(n_columns - n_rows, 0)), (0, max(n_rows - n_columns, 0))
    return np.asarray(linear_sum_assignment(-np.pad(overlap, padding))[1], dtype=np.int64)


def _as_probs(values: Array) -> Array:
    """Return posteriors [N, K] as they are, and a path [N] as posteriors of 0 and 1."""
    if values.ndim == 2:
        if not np.isfinite(values).all():
            raise DataError("posteriors must be finite")
        return values.astype(np.float64)
    if values.dtype.kind not in "ui" or values.min() < 0:
        raise DataError("expected posteriors [N, K] or a path [N] of state numbers")
    return np.asarray(np.eye(int(values.max()) + 1)[values])
