"""What a fitted model is: point parameters for Baum-Welch, a posterior for the variational tier, and its prior."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from turncoat.arrays import Array
from turncoat.errors import ConfigError
from turncoat.numerics.ragged import column_sums, joined

_SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class HMMParams:
    """Point parameters of a hidden Markov model with K states, D continuous and J categorical columns."""

    initial_probs: Array  # [K]
    transition_matrix: Array  # [K, K]
    means: Array  # [K, D]
    variances: Array  # [K, D]
    category_probs: tuple[Array, ...] = ()  # J arrays [K, C_j]

    def __post_init__(self) -> None:
        _as_float(self)
        k = _check_shapes(
            self, "initial_probs", "transition_matrix", ("means", "variances"), "category_probs"
        )
        _check_simplex(self.initial_probs[None], "initial_probs")
        _check_simplex(self.transition_matrix, "transition_matrix")
        _check_categories(self.category_probs)
        if not (
            np.isfinite(self.means).all()
            and np.isfinite(self.variances).all()
            and (self.variances > 0).all()
        ):
            raise ConfigError(f"means must be finite and variances positive, for all {k} states")

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return len(self.initial_probs)

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Number of values of each categorical column."""
        return tuple(probs.shape[1] for probs in self.category_probs)

    def reordered(self, order: ArrayLike) -> HMMParams:
        """The same model with its states in another order."""
        return HMMParams(*_reordered(self, np.asarray(order), "transition_matrix"))


@dataclass(frozen=True, eq=False)
class VariationalParams:
    """Posterior over parameters: Dirichlets, and per state and column a Normal-Gamma (shape dof / 2, rate scale / 2)."""

    initial_concentration: Array  # [K]
    transition_concentration: Array  # [K, K]
    location: Array  # [K, D] posterior mean of the mean
    mean_strength: Array  # [K, D] pseudo-observations behind it
    dof: Array  # [K, D]
    scale: Array  # [K, D]
    category_concentration: tuple[Array, ...] = ()  # J arrays [K, C_j]

    def __post_init__(self) -> None:
        _as_float(self)
        columns = ("location", "mean_strength", "dof", "scale")
        _check_shapes(
            self,
            "initial_concentration",
            "transition_concentration",
            columns,
            "category_concentration",
        )
        positive = [
            self.initial_concentration,
            self.transition_concentration,
            self.mean_strength,
            self.dof,
            self.scale,
            joined(self.category_concentration, self.n_states),
        ]
        if (
            not all(np.isfinite(a).all() and (a > 0).all() for a in positive)
            or not np.isfinite(self.location).all()
        ):
            raise ConfigError(
                "concentrations, mean_strength, dof and scale must be positive and finite, locations finite"
            )

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return len(self.initial_concentration)

    @property
    def n_categories(self) -> tuple[int, ...]:
        """Number of values of each categorical column."""
        return tuple(a.shape[1] for a in self.category_concentration)

    @property
    def initial_probs(self) -> Array:
        """Posterior mean [K]."""
        return _mean(self.initial_concentration)

    @property
    def transition_matrix(self) -> Array:
        """Posterior mean [K, K]."""
        return _mean(self.transition_concentration)

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
        return tuple(_mean(a) for a in self.category_concentration)

    def interval(self, name: str, level: float = 0.9) -> Any:
        """Central credible interval (low, high) of a parameter by name; for category_probs, one pair per column."""
        if not 0.0 < level < 1.0:
            raise ConfigError(f"level must lie between 0 and 1; found {level}")
        tails = ((1.0 - level) / 2.0, (1.0 + level) / 2.0)
        if name == "initial_probs":
            return _beta_interval(self.initial_concentration, tails)
        if name == "transition_matrix":
            return _beta_interval(self.transition_concentration, tails)
        if name == "category_probs":
            return tuple(_beta_interval(a, tails) for a in self.category_concentration)
        if name == "means":
            spread = np.sqrt(self.scale / (self.dof * self.mean_strength))
            return tuple(self.location + spread * stats.t.ppf(tail, self.dof) for tail in tails)
        if name == "variances":
            return tuple(
                stats.invgamma.ppf(tail, self.dof / 2.0, scale=self.scale / 2.0) for tail in tails
            )
        raise ConfigError(
            f"no parameter {name!r}; choose from initial_probs, transition_matrix, means, variances, category_probs"
        )

    def reordered(self, order: ArrayLike) -> VariationalParams:
        """The same posterior with its states in another order."""
        return VariationalParams(*_reordered(self, np.asarray(order), "transition_concentration"))


@dataclass(frozen=True)
class Prior:
    """Prior of the variational tier. Per column: nu0 = dof + dof_per_column * D, S0 = scale + scale_per_column * D."""

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

    @classmethod
    def weak(cls) -> Prior:
        """Weakly informative on standardised columns: expected variance 1, worth a handful of observations."""
        return cls()

    @classmethod
    def paper(cls) -> Prior:
        """The published prior for raw features (nu0 = D + 1, S0 = 1); see errata E4 before using it on many columns."""
        return cls(dof=1.0, dof_per_column=1.0, scale=1.0)

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            lowest = (
                0.0
                if field.name in ("sticky", "dof", "scale", "dof_per_column", "scale_per_column")
                else None
            )
            if not isinstance(value, int | float | np.number) or not np.isfinite(value):
                raise ConfigError(f"prior {field.name} must be a finite number; found {value!r}")
            if field.name != "mean" and (value < 0.0 if lowest == 0.0 else value <= 0.0):
                raise ConfigError(
                    f"prior {field.name} must be {'at least' if lowest == 0.0 else 'above'} 0; found {value}"
                )
        if self.dof + self.dof_per_column <= 0 or self.scale + self.scale_per_column <= 0:
            raise ConfigError("prior dof and scale must be positive")

    def total_dof(self, n_columns: int) -> float:
        """nu0 for D columns."""
        return self.dof + self.dof_per_column * n_columns

    def total_scale(self, n_columns: int) -> float:
        """S0 for D columns."""
        return self.scale + self.scale_per_column * n_columns

    def transition_concentration(self, n_states: int) -> Array:
        """Prior of the transition rows [K, K]."""
        return np.full((n_states, n_states), self.transition) + self.sticky * np.eye(n_states)


def _as_float(params: Any) -> None:
    """Store every field as float64; those named for categories hold one array per column."""
    for field in fields(params):
        value = getattr(params, field.name)
        if field.name.startswith("category"):
            value = tuple(np.asarray(a, np.float64) for a in value)
        else:
            value = np.asarray(value, np.float64)
        object.__setattr__(params, field.name, value)


def _check_shapes(
    params: Any, initial: str, transition: str, columns: tuple[str, ...], categories: str
) -> int:
    k = len(getattr(params, initial)) if getattr(params, initial).ndim == 1 else 0
    if k == 0:
        raise ConfigError(f"{initial} must be a list of at least one state")
    if getattr(params, transition).shape != (k, k):
        raise ConfigError(
            f"{transition} must be [{k}, {k}]; found {getattr(params, transition).shape}"
        )
    shape = getattr(params, columns[0]).shape
    for name in columns:
        if getattr(params, name).ndim != 2 or getattr(params, name).shape != (k, shape[-1]):
            raise ConfigError(f"{name} must be [{k}, columns]; found {getattr(params, name).shape}")
    for j, array in enumerate(getattr(params, categories)):
        if array.ndim != 2 or len(array) != k or array.shape[1] == 0:
            raise ConfigError(f"{categories}[{j}] must be [{k}, values]; found {array.shape}")
    return k


def _check_simplex(rows: Array, name: str) -> None:
    if (
        not np.isfinite(rows).all()
        or (rows < 0).any()
        or (np.abs(rows.sum(axis=1) - 1.0) > _SUM_TOLERANCE).any()
    ):
        raise ConfigError(f"{name} must be probabilities that add up to 1")


def _check_categories(columns: tuple[Array, ...]) -> None:
    """All columns at once; only if something is wrong, which one."""
    if not columns:
        return
    flat, sizes = joined(columns, len(columns[0])), tuple(probs.shape[1] for probs in columns)
    if (
        np.isfinite(flat).all()
        and (flat >= 0).all()
        and (np.abs(column_sums(flat, sizes) - 1.0) <= _SUM_TOLERANCE).all()
    ):
        return
    for j, probs in enumerate(columns):
        _check_simplex(probs, f"category_probs[{j}]")


def _mean(concentration: Array) -> Array:
    return np.asarray(concentration / concentration.sum(axis=-1, keepdims=True))


def _beta_interval(concentration: Array, tails: tuple[float, float]) -> tuple[Array, ...]:
    rest = concentration.sum(axis=-1, keepdims=True) - concentration
    certain = rest <= 0  # a single category or state has probability one
    safe = np.where(certain, 1.0, rest)
    return tuple(
        np.where(certain, 1.0, stats.beta.ppf(tail, concentration, safe)) for tail in tails
    )


def _reordered(params: Any, order: Array, transition: str) -> list[Any]:
    if sorted(order.tolist()) != list(range(params.n_states)):
        raise ConfigError(
            f"order must name each of the {params.n_states} states once; found {order.tolist()}"
        )
    values: list[Any] = []
    for field in fields(params):
        value = getattr(params, field.name)
        if field.name == transition:
            values.append(value[np.ix_(order, order)])
        elif isinstance(value, tuple):
            values.append(tuple(a[order] for a in value))
        else:
            values.append(value[order])
    return values
