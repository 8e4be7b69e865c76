"""Where a ranker's score comes from: a column of the file, XGBoost on the panel's columns, or the head of the model's own encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import expit, log_expit

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError
from turncoat.features import Features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.panel import Panel
from turncoat.scoring.regimes import check_keep
from turncoat.scoring.scores import compute_variances

_ROUNDS = 100
_SMALL_STEP = 1e-10
_RIDGE = 1e-6  # so that perfectly separated regimes keep finite slopes
_LEAST_KEPT = (
    1e-3  # of what was known before an update, so that labels of one kind leave finite lines
)
_FEW_ROWS = 1000  # which take longer to share out among threads than to do


class Ranker(Protocol):
    """Gives transactions scores that rank them; higher is riskier. The scale does not matter."""

    @property
    def source(self) -> Any:
        """What it was made of, as `make_ranker` takes it."""
        ...

    def score_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """Scores [N] of transactions, whose features are the panel's rows, or those of its rows at `places`."""
        ...

    def score_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """Scores [N] of live transactions, as they were given and as features [N, D] and [N, J]."""
        ...


@dataclass(frozen=True)
class ColumnRanker:
    """The user's own score, in a continuous column of the schema."""

    column: str
    place: int  # among the continuous columns

    @property
    def source(self) -> str:
        """The column."""
        return self.column

    def score_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """The column's values."""
        return transactions.column(self.column)

    def score_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """The rows' values."""
        return np.array([row.numbers[self.place] for row in given])


@dataclass(frozen=True, eq=False)
class XGBoostRanker:
    """A fitted booster on continuous columns, then codes (missing as NaN); its log odds are the score."""

    booster: Any

    @property
    def source(self) -> Any:
        """The booster."""
        return self.booster

    def score_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """Log odds of the panel's rows."""
        rows = slice(None) if places is None else places
        return self._margins(panel.continuous[rows], panel.categorical[rows])

    def score_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """Log odds of live rows."""
        return self._margins(continuous, categorical)

    def _margins(self, continuous: Array, categorical: Array) -> Array:
        from xgboost import DMatrix

        best = self.booster.attr("best_iteration")  # of a fit that was stopped early
        margins: Array = self.booster.predict(
            DMatrix(
                build_ranker_matrix(continuous, categorical),
                nthread=1 if len(continuous) < _FEW_ROWS else None,
            ),
            output_margin=True,
            validate_features=False,  # names, if it was fitted on a frame
            iteration_range=(0, 0 if best is None else int(best) + 1),
        )
        return margins.astype(np.float64)


@dataclass(frozen=True, eq=False)
class HeadRanker:
    """The head that a neural model's encoder was trained with; its log odds are the score."""

    encoder: FrozenEncoder

    @property
    def source(self) -> FrozenEncoder:
        """The encoder."""
        return self.encoder

    def score_transactions(
        self, transactions: Transactions, panel: Panel, places: Array | None = None
    ) -> Array:
        """Log odds of the panel's rows."""
        rows = slice(None) if places is None else places
        return self.encoder.score_head(panel.continuous[rows], panel.categorical[rows])

    def score_rows(
        self, given: Sequence[TransactionRow], continuous: Array, categorical: Array
    ) -> Array:
        """Log odds of live rows."""
        return np.array(
            [
                float(self.encoder.score_latents(self.encoder.encode_row(*row)))
                for row in zip(continuous, categorical, strict=True)
            ]
        )


def build_ranker_matrix(continuous: Array, categorical: Array) -> Array:
    """The columns that an XGBoost ranker is to be fitted on [N, D + J]: cells, then codes as numbers; NaN is missing."""
    return np.hstack(
        [continuous, np.where(categorical < 0, np.nan, categorical).astype(np.float32)]
    )


def make_ranker(given: Any, features: Features, model: HiddenMarkovModel[Any]) -> Ranker:
    """A ranker of a column's name, an XGBoost classifier or a booster, or the encoder of the model itself."""
    plan = features.plan
    if isinstance(given, FrozenEncoder):
        own: object = getattr(model, "encoder_", None)
        if own is not given:
            raise ConfigError(
                "the ranker is an encoder, and not the one that the detector's model has. Give `detector.model_.encoder_`"
            )
        return HeadRanker(given)
    if isinstance(given, str):
        if given not in plan.schema.continuous:
            raise ConfigError(
                f"the ranker's column {given!r} is not among the schema's continuous columns. Add it there"
            )
        return ColumnRanker(given, plan.schema.continuous.index(given))
    booster = given.get_booster() if hasattr(given, "get_booster") else given
    if not (hasattr(booster, "save_raw") and hasattr(booster, "num_features")):
        raise ConfigError(
            f"a ranker is a column's name, a fitted XGBoost model or the model's own encoder; found {type(given).__name__}"
        )
    expected = len(plan.continuous) + len(plan.categorical)
    if booster.num_features() != expected:
        raise ConfigError(
            f"the ranker was fitted on {booster.num_features()} columns; the panel has {expected}. Fit it on `build_ranker_matrix`"
        )
    return XGBoostRanker(booster)


@dataclass(frozen=True, eq=False)
class RegimeRanker:
    """Intercepts and slopes of K regimes for a score measured from `centre` in units of `spread`."""

    centre: float
    spread: float
    intercepts: Array  # [K]
    slopes: Array  # [K]
    covariance: Array  # [2 K, 2 K] of intercept and slope of each regime in turn; customers' likeness counts against it

    @classmethod
    def fit(
        cls,
        scores: Array,
        belief: Array,
        labels: Array,
        offsets: Array,
        shrinkage: float = 10.0,
        with_slopes: bool = True,
    ) -> RegimeRanker:
        """Fit to scores [N], beliefs [N, K] and labels [N] of calibration customers, rows offsets[u]..offsets[u + 1] being one's.

        `shrinkage` is the strength, in units of squared log odds, that draws each regime to the common line; 0 leaves them apart.
        """
        _refuse_missing(scores)
        if not 0 <= shrinkage < np.inf:
            raise ConfigError(f"shrinkage is {shrinkage!r}; it must be a number of at least 0")
        if labels.min() == labels.max():
            raise DataError(
                f"all calibration labels are {int(labels[0])}; a ranker needs both 0 and 1. Choose a larger calibration part"
            )
        centre, spread = float(scores.mean()), float(scores.std()) or 1.0
        penalty = _shrinking(belief.shape[1], shrinkage, with_slopes)
        return _solved(
            centre,
            spread,
            scores,
            belief,
            labels,
            offsets,
            penalty,
            np.zeros(len(penalty)),
            with_slopes,
        )

    def update(
        self, scores: Array, belief: Array, labels: Array, offsets: Array, keep: float = 1.0
    ) -> RegimeRanker:
        """The lines once further labelled rows, as in `fit`, are known. What was known is a Gaussian prior, its covariance over `keep`.

        A thousandth is kept at least. Labels may be all of one kind.
        """
        check_keep(keep)
        n_states = len(self.intercepts)
        if len(labels) == 0:
            raise DataError(
                "no labelled transaction to update the ranker's regimes with. Wait for labels"
            )
        if scores.shape != labels.shape or belief.shape != (len(labels), n_states):
            raise DataError(
                f"{len(labels):,} labels need as many scores and beliefs over {n_states} regimes; found {scores.shape} and {belief.shape}"
            )
        _refuse_missing(scores)
        with_slopes = bool(self.covariance[1::2, 1::2].any())
        known = np.stack([self.intercepts, self.slopes], axis=1).ravel()
        penalty = max(keep, _LEAST_KEPT) * _precision(self.covariance)
        return _solved(
            self.centre, self.spread, scores, belief, labels, offsets, penalty, known, with_slopes
        )

    def check(self, n_states: int) -> None:
        """Raise ValueError if these are not the lines of a model with this many states."""
        arrays = (self.intercepts, self.slopes, self.covariance)
        shapes = ((n_states,), (n_states,), (2 * n_states, 2 * n_states))
        finite = all(np.isfinite(array).all() for array in arrays)
        if tuple(array.shape for array in arrays) != shapes or not finite:
            raise ValueError("the ranker's regimes are not those of the model")
        if not 0 < self.spread < np.inf:
            raise ValueError(f"the ranker's spread is {self.spread}")

    def predict(self, scores: Array, belief: Array) -> tuple[Array, Array]:
        """Probability of fraud [N], and its variance."""
        _refuse_missing(scores)
        z = (scores - self.centre) / self.spread
        within = expit(self.intercepts + z[:, None] * self.slopes)
        steep = belief * within * (1 - within)  # by which the probability moves with each intercept
        moves = np.stack([steep, steep * z[:, None]], axis=2).reshape(len(z), -1)
        return (belief * within).sum(axis=1), compute_variances(moves, self.covariance)


def _solved(
    centre: float,
    spread: float,
    scores: Array,
    belief: Array,
    labels: Array,
    offsets: Array,
    penalty: Array,
    known: Array,
    with_slopes: bool,
) -> RegimeRanker:
    """The lines that explain the labels best, less the penalty of being away from `known`, and their covariance."""
    z = (scores - centre) / spread if with_slopes else np.zeros(len(scores))
    solution, hessian = _newton(z, belief, labels.astype(np.float64), penalty, known)
    own = slice(2 * belief.shape[1])
    lines = solution[own].reshape(-1, 2)
    inverse = np.linalg.inv(hessian)[own, own]
    covariance = inverse + inverse @ _excess(z, belief, labels, lines, offsets) @ inverse
    if not with_slopes:
        covariance[1::2] = covariance[:, 1::2] = 0.0
    return RegimeRanker(centre, spread, lines[:, 0].copy(), lines[:, 1].copy(), covariance)


def _precision(covariance: Array) -> Array:
    """The inverse of a covariance [2 K, 2 K]; slopes that are held, and do not vary, have 1, which never matters."""
    held = np.diag(covariance) == 0
    sizes, directions = np.linalg.eigh(covariance + np.diag(held.astype(np.float64)))
    return np.asarray((directions / np.maximum(sizes, 1e-14 * sizes.max())) @ directions.T)


def _excess(z: Array, belief: Array, labels: Array, lines: Array, offsets: Array) -> Array:
    """By how much the gradients of customers vary more than those of independent transactions [2 K, 2 K].

    Direction by direction, and never less than nothing: few frauds that happen to agree are no evidence of agreement.
    """
    within = expit(lines[:, 0] + z[:, None] * lines[:, 1])  # [N, K]
    design = np.stack([np.ones_like(z), z], axis=1)
    pulls = (belief * (labels[:, None] - within))[:, :, None] * design[:, None, :]
    sums = np.add.reduceat(pulls.reshape(len(z), -1), offsets[:-1], axis=0)
    alone = np.zeros((2 * belief.shape[1],) * 2)
    for k in range(belief.shape[1]):
        own = slice(2 * k, 2 * k + 2)
        alone[own, own] = (design.T * (belief[:, k] * within[:, k] * (1 - within[:, k]))) @ design
    sizes, directions = np.linalg.eigh(alone)
    roots = directions * np.sqrt(np.maximum(sizes, 1e-9 * max(sizes.max(), 1e-300)))
    back = np.linalg.inv(roots)
    ratios, axes = np.linalg.eigh(back @ (sums.T @ sums) @ back.T)
    stretched = roots @ axes
    return np.asarray((stretched * np.maximum(ratios - 1.0, 0.0)) @ stretched.T)


def _refuse_missing(scores: Array) -> None:
    missing = np.flatnonzero(~np.isfinite(scores))
    if missing.size:
        raise DataError(
            f"the ranker's score is missing or infinite on row {missing[0]}. Give every row one"
        )


def _shrinking(n_states: int, shrinkage: float, with_slopes: bool) -> Array:
    """The penalty that draws K lines to a common one [2 K + 2, 2 K + 2], for [a_0, b_0, a_1, b_1, ..., a, b]."""
    size = 2 * n_states + 2
    common = slice(2 * n_states, size)
    penalty = np.zeros((size, size))
    for k in range(n_states):
        own = slice(2 * k, 2 * k + 2)
        penalty[own, own] += shrinkage * np.eye(2)
        penalty[common, common] += shrinkage * np.eye(2)
        penalty[own, common] -= shrinkage * np.eye(2)
        penalty[common, own] -= shrinkage * np.eye(2)
    penalty += _RIDGE * np.diag([float(i % 2 == 1 or i >= 2 * n_states) for i in range(size)])
    if not with_slopes:
        penalty += np.diag([1.0 * (i % 2 == 1) for i in range(size)])
    return penalty


def _newton(
    z: Array, belief: Array, labels: Array, penalty: Array, known: Array
) -> tuple[Array, Array]:
    """Minimise the loss of K lines [a_0, b_0, a_1, ...], and of what else is penalised for being away from `known`; its Hessian too."""
    n_states = belief.shape[1]
    design = np.stack([np.ones_like(z), z])  # [2, N]
    x = known

    def loss(at: Array) -> float:
        lines = at[: 2 * n_states].reshape(n_states, 2) @ design
        fit = labels * log_expit(lines) + (1 - labels) * log_expit(-lines)
        return float(-(belief.T * fit).sum() + 0.5 * (at - known) @ penalty @ (at - known))

    best = loss(x)
    for _ in range(_ROUNDS):
        gradient, hessian = penalty @ (x - known), penalty.copy()
        for k in range(n_states):
            own = slice(2 * k, 2 * k + 2)
            within = expit(x[own] @ design)
            gradient[own] -= design @ (belief[:, k] * (labels - within))
            hessian[own, own] += (design * (belief[:, k] * within * (1 - within))) @ design.T
        hessian += 1e-12 * np.eye(len(x))
        step = np.linalg.solve(hessian, gradient)
        scale = 1.0
        while (moved := loss(x - scale * step)) > best and scale > 1e-8:
            scale /= 2
        x, best = x - scale * step, moved
        if np.abs(scale * step).max() < _SMALL_STEP:
            break
    return x, hessian
