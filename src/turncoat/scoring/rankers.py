"""Rankers: another model's score inside each regime (docs/scores.md).

P(fraud) = sum_k belief_k sigma(a_k + b_k s). The lines (a_k, b_k) are a logistic regression of the
label on the score s, weighted by the belief in regime k and shrunk towards one common line. A
constant score gives the corrected score; one regime gives Platt scaling.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import expit, log_expit

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError
from turncoat.features import Features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.live import LogOddsContributions
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.panel import has_both_labels
from turncoat.scoring.causes import CAUSES_TEXT, CauseScore
from turncoat.scoring.descriptions import HISTORY, PATH_TEXT
from turncoat.scoring.regimes import check_arrays, check_keep
from turncoat.scoring.scores import compute_variances

Pair = tuple[Array, Array]

SHRINKAGES = (np.inf, 1e3, 10.0)  # the strongest first
_MAX_ITERATIONS = 100
_MIN_STEP = 1e-10
_RIDGE = 1e-6  # keeps slopes finite in perfectly separated regimes
_MIN_KEEP = 1e-3  # keeps lines finite when all new labels are equal
_ONE_THREAD_ROWS = 1000  # below this, waiting for threads takes longer than the work


class RankerRows(NamedTuple):
    """N transactions as rankers take them."""

    transactions: Transactions | Sequence[TransactionRow]  # of a file, or live
    continuous: Array  # [N, D]
    categorical: Array  # [N, J]
    path: Array | None = None  # [N, P] columns of the path, for a ranker that needs them
    causes: Array | None = None  # [N, C] of two-sided chains, for a ranker that needs them


@dataclass(frozen=True, eq=False)
class Ranker(ABC):
    """Gives transactions scores that rank them; higher is riskier, on any scale."""

    source: Any  # the object that `make_ranker` made it from
    needs_path: ClassVar[bool] = False  # whether it scores with the columns of the path
    history_text: ClassVar[str] = HISTORY  # what its reasons call everything before the row

    @abstractmethod
    def score(self, rows: RankerRows) -> Array:
        """Scores [N]."""


@dataclass(frozen=True, eq=False)
class ColumnRanker(Ranker):
    """The user's own score, in the continuous column `source` of the schema."""

    place: int  # among the continuous columns

    def score(self, rows: RankerRows) -> Array:
        """The values of the column [N]."""
        if isinstance(rows.transactions, Transactions):
            return rows.transactions.column(self.source)
        return np.array([row.numbers[self.place] for row in rows.transactions])


class CausesRanker(Ranker):
    """The causes of fraud: two-sided chains and the scorecard of a `CauseScore`."""

    def score(self, rows: RankerRows) -> Array:
        """Log odds [N]."""
        return score_causes(self.source, rows)


class XGBoostRanker(Ranker):
    """Fitted trees on continuous columns, then codes (missing as NaN), then the path if any."""

    def score(self, rows: RankerRows) -> Array:
        """Log odds [N]."""
        columns = build_ranker_matrix(rows.continuous, rows.categorical, rows.path)
        margins = self._start_margins(rows)
        found: Array = self._choose_booster(len(columns)).inplace_predict(
            columns, predict_type="margin", base_margin=margins, **self._options
        )
        return found.astype(np.float64)

    def explain(self, rows: RankerRows) -> LogOddsContributions:
        """Exact contributions (TreeSHAP) of N rows' features and history to their log odds."""
        from xgboost import DMatrix

        continuous, categorical = rows.continuous, rows.categorical
        booster, margins = self._choose_booster(len(continuous)), self._start_margins(rows)
        matrix = build_ranker_matrix(continuous, categorical, rows.path)
        columns = DMatrix(matrix, base_margin=margins, nthread=1)
        found: Array = booster.predict(columns, pred_contribs=True, **self._options)
        terms = found.astype(np.float64)
        ends = np.cumsum([continuous.shape[1], categorical.shape[1]])
        cells, codes, of_path = np.split(terms[:, :-1], ends, axis=1)
        history, rest = of_path.sum(axis=1), terms[:, -1]
        if margins is not None:  # XGBoost adds them to the last term
            history, rest = history + margins, rest - margins
        return LogOddsContributions(0, np.zeros(len(terms), np.int64), history, cells, codes, rest)

    def _start_margins(self, rows: RankerRows) -> Array | None:
        """The log odds that the trees start from [N]; None for the same for all."""
        return None

    @cached_property
    def _options(self) -> dict[str, Any]:
        best = self.source.attr("best_iteration")  # set by early stopping
        n_rounds = 0 if best is None else int(best) + 1
        # Names are not checked: the trees may have been fitted on a frame with names.
        return {"iteration_range": (0, n_rounds), "validate_features": False}

    @cached_property
    def _one_thread_booster(self) -> Any:
        """A copy, because the number of threads belongs to the booster and not to a call."""
        booster = self.source.copy()
        booster.set_param({"nthread": 1})
        return booster

    def _choose_booster(self, n_rows: int) -> Any:
        return self._one_thread_booster if n_rows < _ONE_THREAD_ROWS else self.source


class HybridRanker(XGBoostRanker):
    """A booster that sees the path too."""

    needs_path = True
    history_text = PATH_TEXT


@dataclass(frozen=True, eq=False)
class CorrectedCausesRanker(XGBoostRanker):
    """A booster that starts from the log odds of the causes, and corrects them."""

    cause_score: CauseScore
    history_text = CAUSES_TEXT

    def _start_margins(self, rows: RankerRows) -> Array:
        # XGBoost takes ten times as long to read float64.
        return score_causes(self.cause_score, rows).astype(np.float32)


class HeadRanker(Ranker):
    """The classification head that a neural model's encoder was trained with."""

    def score(self, rows: RankerRows) -> Array:
        """Log odds [N]; live rows are encoded one by one, so that a batch changes no bit."""
        cells = rows.continuous, rows.categorical
        if isinstance(rows.transactions, Transactions):
            return np.asarray(self.source.score_head(*cells))
        latents = map(self.source.encode_row, *cells)
        return np.array([float(self.source.score_latents(row)) for row in latents])


def score_causes(score: CauseScore, rows: RankerRows) -> Array:
    """Log odds of the causes [N]; DataError without causes."""
    if rows.causes is None:
        problem = "this detector scores the causes of fraud, and the panel has none"
        raise DataError(f"{problem}. Make it with the detector's own `features_`")
    return score.score(rows.continuous, rows.categorical, rows.causes)


def build_ranker_matrix(continuous: Array, categorical: Array, path: Array | None = None) -> Array:
    """The columns to fit an XGBoost ranker on: cells, codes and path; NaN is missing."""
    codes = np.where(categorical < 0, np.nan, categorical).astype(np.float32)
    return np.hstack([continuous, codes] if path is None else [continuous, codes, path])


def make_ranker(source: Any, features: Features, model: HiddenMarkovModel[Any]) -> Ranker:
    """A ranker from a column's name, an XGBoost classifier or booster, or the model's encoder."""
    plan = features.plan
    if isinstance(source, CauseScore):
        if plan.chains is None:
            raise ConfigError("the ranker scores the causes of fraud; the features have no chains")
        return CausesRanker(source)
    if isinstance(source, FrozenEncoder):
        if getattr(model, "encoder_", None) is not source:
            problem = "the ranker is an encoder, but not the one of the detector's model"
            raise ConfigError(f"{problem}. Give `detector.model_.encoder_`")
        return HeadRanker(source)
    if isinstance(source, str):
        if source not in plan.schema.continuous:
            problem = f"column {source!r} is not among the schema's continuous columns"
            raise ConfigError(f"the ranker's {problem}. Add it there")
        return ColumnRanker(source, plan.schema.continuous.index(source))
    booster = source.get_booster() if hasattr(source, "get_booster") else source
    if not (hasattr(booster, "save_raw") and hasattr(booster, "num_features")):
        kinds = "a column's name, a fitted XGBoost model or the model's own encoder"
        raise ConfigError(f"a ranker is {kinds}; found {type(source).__name__}")
    if json.loads(booster.save_config())["learner"]["gradient_booster"]["name"] == "gblinear":
        problem = "the ranker is an XGBoost model of booster 'gblinear'; it must have trees"
        raise ConfigError(f"{problem}. Fit it with booster 'gbtree' or 'dart'")
    n_fitted, n_columns = booster.num_features(), len(plan.continuous) + len(plan.categorical)
    if n_fitted == n_columns + 2 * model.n_states + 2:  # as `compute_path_columns` makes them
        return HybridRanker(booster)
    if n_fitted != n_columns:
        problem = f"the ranker was fitted on {n_fitted} columns; the panel has {n_columns}"
        raise ConfigError(f"{problem}. Fit it on `build_ranker_matrix`")
    return XGBoostRanker(booster)


@dataclass(frozen=True, eq=False)
class RegimeRanker:
    """A regression line for each of K regimes, for the score (s - centre) / spread."""

    centre: float
    spread: float
    intercepts: Array  # [K]
    slopes: Array  # [K]
    covariance: Array  # [2 K, 2 K] of (intercept, slope) by regime, widened for similar customers

    @classmethod
    def choose(cls, scores: Array, belief: Array, labels: Array, offsets: Array) -> RegimeRanker:
        """Fit with the strongest of several shrinkages that is within one standard error.

        Each is fitted to half of the customers and measured on the others by log loss. The
        strongest gives all regimes the same line, and so keeps the order of the scores.
        """
        halves = np.repeat(np.arange(len(offsets) - 1) % 2, np.diff(offsets))
        losses = {}
        for shrinkage in SHRINKAGES:
            found = np.empty(len(labels))
            for half in (0, 1):
                own, other = halves == half, halves != half
                if not has_both_labels(labels[other]):
                    return cls.fit(scores, belief, labels, offsets, SHRINKAGES[0])
                ends = np.unique(np.searchsorted(np.flatnonzero(other), offsets))
                lines = cls.fit(scores[other], belief[other], labels[other], ends, shrinkage)
                found[own] = lines.predict(scores[own], belief[own])[0]
            chances = np.clip(np.where(labels == 1, found, 1.0 - found), 1e-12, 1.0)
            losses[shrinkage] = np.add.reduceat(-np.log(chances), offsets[:-1])
        best = min(losses, key=lambda shrinkage: losses[shrinkage].sum())
        for shrinkage in SHRINKAGES:
            gaps = losses[shrinkage] - losses[best]
            if gaps.sum() <= gaps.std() * np.sqrt(len(gaps)):
                break
        return cls.fit(scores, belief, labels, offsets, shrinkage)

    @classmethod
    def fit(
        cls, scores: Array, belief: Array, labels: Array, offsets: Array, shrinkage: float = 10.0
    ) -> RegimeRanker:
        """Fit to scores [N], beliefs [N, K] and labels [N]; customer u has rows offsets[u:u + 2].

        `shrinkage`, in squared log odds, pulls each regime's line to the common one; 0 does not,
        and with infinity all regimes share one line.
        """
        _check_scores(scores)
        if not shrinkage >= 0:
            raise ConfigError(f"shrinkage is {shrinkage!r}; it must be a number of at least 0")
        if labels.min() == labels.max():
            problem = f"all calibration labels are {int(labels[0])}; a ranker needs both 0 and 1"
            raise DataError(f"{problem}. Choose a larger calibration part")
        scale, n_states = (float(scores.mean()), float(scores.std()) or 1.0), belief.shape[1]
        if shrinkage == np.inf:
            whole = belief.sum(axis=1, keepdims=True)
            one = cls.fit(scores, whole, labels, offsets, shrinkage=0.0)
            lines = np.repeat(one.intercepts, n_states), np.repeat(one.slopes, n_states)
            return cls(*scale, *lines, np.tile(one.covariance, (n_states, n_states)))
        penalty = _shrinkage_penalty(n_states, shrinkage)
        prior = np.zeros(len(penalty)), penalty
        return _solve(scale, prior, scores, belief, _soften(labels), offsets)

    def update(
        self, scores: Array, belief: Array, labels: Array, offsets: Array, keep: float = 1.0
    ) -> RegimeRanker:
        """The lines after further labelled rows, as in `fit`; the labels may all be equal.

        The old lines are a Gaussian prior with their covariance / keep, and keep at least 0.001.
        """
        check_keep(keep)
        n_states = len(self.intercepts)
        if len(labels) == 0:
            raise DataError("no labelled transaction to update the ranker with. Wait for labels")
        if scores.shape != labels.shape or belief.shape != (len(labels), n_states):
            rule = f"{len(labels):,} labels need as many scores and beliefs over {n_states} regimes"
            raise DataError(f"{rule}; found {scores.shape} and {belief.shape}")
        _check_scores(scores)
        lines = np.stack([self.intercepts, self.slopes], axis=1).ravel()
        prior = lines, max(keep, _MIN_KEEP) * _invert(self.covariance)
        return _solve((self.centre, self.spread), prior, scores, belief, labels, offsets)

    def check(self, n_states: int) -> None:
        """Raise ValueError if these are not the lines of a model with this many states."""
        check_arrays(self, (n_states,), "intercepts", "slopes")
        check_arrays(self, (2 * n_states, 2 * n_states), "covariance")
        if not 0 < self.spread < np.inf:
            raise ValueError(f"the ranker's spread is {self.spread}")

    def predict(self, scores: Array, belief: Array) -> Pair:
        """Probability of fraud [N] and its variance [N]."""
        _check_scores(scores)
        z = (scores - self.centre) / self.spread
        within = expit(self.intercepts + z[:, None] * self.slopes)
        slope = belief * within * (1 - within)  # derivative by each intercept
        gradient = np.stack([slope, slope * z[:, None]], axis=2).reshape(len(z), -1)
        mean = np.minimum(
            (belief * within).sum(axis=1), 1.0
        )  # beliefs add up to 1 but for rounding
        return mean, compute_variances(gradient, self.covariance)


def _soften(labels: Array) -> Array:
    """Labels [N] with one more fraud and one more genuine transaction in mind (Platt, 1999).

    n frauds become (n + 1) / (n + 2) each. Without this, scores that happen to separate all frauds
    would be taken for certain.
    """
    n_frauds = int(labels.sum())
    targets = 1.0 / (len(labels) - n_frauds + 2.0), (n_frauds + 1.0) / (n_frauds + 2.0)
    return np.where(labels == 1, targets[1], targets[0])


def _check_scores(scores: Array) -> None:
    for row in np.flatnonzero(~np.isfinite(scores)):
        problem = f"the ranker's score is missing or infinite on row {row}"
        raise DataError(f"{problem}. Give every row one")


def _solve(scale: tuple[float, float], prior: Pair, scores: Array, *rows: Array) -> RegimeRanker:
    """The most likely lines under a Gaussian prior (mean, precision); `rows` as in `fit`."""
    belief, labels, offsets = rows
    centre, spread = scale
    z = (scores - centre) / spread
    solution, hessian = _minimise(z, belief, np.asarray(labels, np.float64), *prior)
    own = slice(2 * belief.shape[1])
    lines = solution[own].reshape(-1, 2)
    inverse = np.linalg.inv(hessian)[own, own]
    covariance = inverse + inverse @ _excess(z, belief, labels, lines, offsets) @ inverse
    return RegimeRanker(centre, spread, lines[:, 0].copy(), lines[:, 1].copy(), covariance)


def _invert(covariance: Array) -> Array:
    """The precision [2 K, 2 K] of a covariance, which may be nearly singular."""
    sizes, directions = np.linalg.eigh(covariance)
    return np.asarray((directions / np.maximum(sizes, 1e-14 * sizes.max())) @ directions.T)


def _excess(z: Array, belief: Array, labels: Array, lines: Array, offsets: Array) -> Array:
    """How much more customers' gradients vary than those of independent rows [2 K, 2 K]."""
    within = expit(lines[:, 0] + z[:, None] * lines[:, 1])  # [N, K]
    design = np.stack([np.ones_like(z), z], axis=1)
    gradients = (belief * (labels[:, None] - within))[:, :, None] * design[:, None, :]
    sums = np.add.reduceat(gradients.reshape(len(z), -1), offsets[:-1], axis=0)
    independent = np.zeros((2 * belief.shape[1],) * 2)
    for k in range(belief.shape[1]):
        own, weights = slice(2 * k, 2 * k + 2), belief[:, k] * within[:, k] * (1 - within[:, k])
        independent[own, own] = (design.T * weights) @ design
    sizes, directions = np.linalg.eigh(independent)
    roots = directions * np.sqrt(np.maximum(sizes, 1e-9 * max(sizes.max(), 1e-300)))
    inverse = np.linalg.inv(roots)
    ratios, axes = np.linalg.eigh(inverse @ (sums.T @ sums) @ inverse.T)
    stretched = roots @ axes
    excess = np.maximum(ratios - 1.0, 0.0)  # a few frauds that happen to agree prove nothing
    return np.asarray((stretched * excess) @ stretched.T)


def _shrinkage_penalty(n_states: int, shrinkage: float) -> Array:
    """The precision that pulls K lines to a common one, for [a_0, b_0, a_1, ..., a, b]."""
    pulls = np.eye(n_states + 1)
    pulls[-1] = pulls[:, -1] = -1.0
    pulls[-1, -1] = n_states
    places = np.arange(2 * n_states + 2)
    is_slope, is_common = places % 2 == 1, places >= 2 * n_states
    ridge = np.diag((is_slope | is_common).astype(np.float64))
    return np.kron(pulls, shrinkage * np.eye(2)) + _RIDGE * ridge


def _minimise(z: Array, belief: Array, labels: Array, mean: Array, precision: Array) -> Pair:
    """Newton's method: the lines [a_0, b_0, a_1, ...] of least loss, and the Hessian there."""
    n_states = belief.shape[1]
    design = np.stack([np.ones_like(z), z])  # [2, N]
    x = mean

    def loss(at: Array) -> float:
        lines = at[: 2 * n_states].reshape(n_states, 2) @ design
        fit = labels * log_expit(lines) + (1 - labels) * log_expit(-lines)
        return float(-(belief.T * fit).sum() + 0.5 * (at - mean) @ precision @ (at - mean))

    best = loss(x)
    for _ in range(_MAX_ITERATIONS):
        gradient, hessian = precision @ (x - mean), precision.copy()
        for k in range(n_states):
            own = slice(2 * k, 2 * k + 2)
            within = expit(x[own] @ design)
            gradient[own] -= design @ (belief[:, k] * (labels - within))
            hessian[own, own] += (design * (belief[:, k] * within * (1 - within))) @ design.T
        hessian += 1e-12 * np.eye(len(x))
        step = np.linalg.solve(hessian, gradient)
        scale = 1.0
        while (reached := loss(x - scale * step)) > best and scale > 1e-8:
            scale /= 2
        x, best = x - scale * step, reached
        if np.abs(scale * step).max() < _MIN_STEP:
            break
    return x, hessian
