"""Baselines on the very columns that the hidden Markov models get: logistic regression, Isolation Forest, XGBoost.

Columns [N, D] are those of `build_ranker_matrix`: cells, then codes as numbers; NaN is missing. `customers` [N] has a key for each row.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError, DataError
from turncoat.evaluation.tuning import (
    FIXED,
    Announce,
    Trial,
    XGBoostParams,
    boosted,
    customer_folds,
    from_extra,
    make_objective,
    over_folds,
    predicted,
    search,
    some_customers,
    suggest,
    tree_methods,
    trials_file,
)
from turncoat.numerics.engine import available_threads
from turncoat.storage import replace_file

_ROWS_AT_ONCE = 8192


class FittedBaseline(Protocol):
    """Scores rows."""

    def score(self, columns: Array) -> Array:
        """Scores [N], higher is more suspicious."""
        ...


class Baseline(Protocol):
    """XGBoostParams of a baseline that can be fitted."""

    def fit(
        self, columns: Array, labels: ArrayLike, customers: ArrayLike, seed: int
    ) -> FittedBaseline:
        """Fit to columns [N, D], labels [N] (0 or 1) and the customers' keys [N]."""
        ...


@dataclass(frozen=True)
class LogisticBaseline:
    """Ridge logistic regression on standardised cells and one-hot codes, with a column for what is missing.

    The last columns are codes, `n_categories` of each. Of several inverse penalties in `strengths`, the best in average precision over
    customer-disjoint folds of about `search_rows` rows is used.
    """

    n_categories: tuple[int, ...] = ()
    strengths: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    n_folds: int = 3
    search_rows: int = 60_000

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        _at_least("n_folds", self.n_folds, 2)
        _at_least("search_rows", self.search_rows, 1)
        if not self.strengths or not all(0 < strength < math.inf for strength in self.strengths):
            raise ConfigError(
                f"strengths is {self.strengths!r}; it must be one or more positive numbers"
            )

    def fit(
        self, columns: Array, labels: ArrayLike, customers: ArrayLike, seed: int
    ) -> FittedLogistic:
        """Fit to columns [N, D], labels [N] and customers [N]."""
        columns, known, keys = _training_rows(columns, labels, customers)
        encoding = Encoding.of(columns, self.n_categories)
        strength = self.strengths[0]
        if len(self.strengths) > 1:
            part = some_customers(known, keys, self.search_rows, seed)
            design, answers = encoding.design(columns[part]), known[part]
            folds = customer_folds(answers, keys[part], self.n_folds, seed)

            def precision(candidate: float) -> float:
                return over_folds(
                    folds,
                    answers,
                    lambda fit, test: _regression(
                        design[fit], answers[fit], candidate
                    ).decision_function(design[test]),
                )

            strength = max(sorted(self.strengths), key=precision)
        return FittedLogistic(
            encoding, _regression(encoding.design(columns), known, strength), strength
        )


@dataclass(frozen=True, eq=False)
class Encoding:
    """How columns become a design matrix; everything is measured on the fit rows."""

    medians: Array  # [D - J], for missing cells
    means: Array  # [D - J]
    spreads: Array  # [D - J]
    flagged: Array  # cells that may be missing, which get a column that says so
    n_categories: tuple[int, ...]  # [J]

    @classmethod
    def of(cls, columns: Array, n_categories: tuple[int, ...]) -> Encoding:
        """Measure fit rows."""
        if len(n_categories) > columns.shape[1]:
            raise ConfigError(
                f"n_categories names {len(n_categories)} categorical columns; the rows have {columns.shape[1]} columns"
            )
        cells = columns[:, : columns.shape[1] - len(n_categories)]
        medians = _medians(cells)
        filled = np.where(np.isnan(cells), medians, cells).astype(np.float64)
        spreads = filled.std(axis=0)
        flagged = np.flatnonzero(np.isnan(cells).any(axis=0))
        return cls(
            medians, filled.mean(axis=0), np.where(spreads > 0, spreads, 1.0), flagged, n_categories
        )

    def design(self, columns: Array) -> Any:
        """Cells, flags of missing ones, and a column for each category and its absence; sparse if there are codes."""
        cells = columns[:, : len(self.medians)]
        missing = np.isnan(cells)
        numbers = (
            np.where(missing, self.medians, cells).astype(np.float64) - self.means
        ) / self.spreads
        dense = np.hstack([numbers, missing[:, self.flagged]])
        if not self.n_categories:
            return dense
        sizes = np.asarray(self.n_categories)
        codes = np.nan_to_num(columns[:, len(self.medians) :], nan=-1.0).astype(np.int64)
        wrong = np.argwhere((codes < -1) | (codes >= sizes))
        if len(wrong):
            row, j = wrong[0]
            raise DataError(
                f"row {row}, categorical column {j}: found code {codes[row, j]}; codes run from 0 to {sizes[j] - 1}. "
                "Give LogisticBaseline the panel's `n_categories`"
            )
        places = codes + 1 + np.concatenate([[0], np.cumsum(sizes[:-1] + 1)])
        starts = np.arange(len(codes) + 1) * len(sizes)
        levels = sparse.csr_array(
            (np.ones(codes.size), places.ravel(), starts),
            shape=(len(codes), int((sizes + 1).sum())),
        )
        return sparse.hstack([sparse.csr_array(dense), levels], format="csr")


@dataclass(frozen=True, eq=False)
class FittedLogistic:
    """A fitted logistic regression."""

    encoding: Encoding
    regression: Any
    strength: float  # the inverse penalty that was used

    def score(self, columns: Array) -> Array:
        """Probabilities of fraud [N]."""
        design = self.encoding.design(
            _checked_columns(columns, len(self.encoding.medians) + len(self.encoding.n_categories))
        )
        return np.asarray(self.regression.predict_proba(design)[:, 1], np.float64)


def _regression(design: Any, labels: Array, strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=2000).fit(design, labels)


@dataclass(frozen=True)
class IsolationForestBaseline:
    """Isolation Forest: knows no labels, and its score is no probability. Missing cells and codes take the fit rows' median."""

    n_trees: int = 200
    subsample: int = 512

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        _at_least("n_trees", self.n_trees, 1)
        _at_least("subsample", self.subsample, 2)

    def fit(
        self, columns: Array, labels: ArrayLike, customers: ArrayLike, seed: int
    ) -> FittedIsolationForest:
        """Fit to columns [N, D]; labels and customers do not matter."""
        from sklearn.ensemble import IsolationForest

        columns = _checked_columns(columns)
        medians = _medians(columns)
        forest = IsolationForest(
            n_estimators=self.n_trees,
            max_samples=min(self.subsample, len(columns)),
            random_state=seed,
        )
        return FittedIsolationForest(
            forest.fit(np.where(np.isnan(columns), medians, columns)), medians
        )


@dataclass(frozen=True, eq=False)
class FittedIsolationForest:
    """A fitted forest."""

    forest: Any
    medians: Array

    def score(self, columns: Array) -> Array:
        """Anomaly scores [N], between 0 and 1."""
        columns = _checked_columns(columns, len(self.medians))
        filled = np.where(np.isnan(columns), self.medians, columns)
        with ThreadPoolExecutor(
            available_threads()
        ) as pool:  # over rows, since threads over trees add up in any order
            parts = pool.map(
                self.forest.score_samples, np.array_split(filled, -(-len(filled) // _ROWS_AT_ONCE))
            )
            return np.concatenate([-part for part in parts]).astype(np.float64)


@dataclass(frozen=True)
class XGBoostBaseline:
    """Gradient boosted trees, with fixed settings or with the best of `n_trials` that Optuna tries, the fixed ones first.

    Trials are judged by average precision over customer-disjoint folds of some customers with about `search_rows` rows in all, drawn
    by the seed; the final model has all rows and all threads. Classes are not weighted, which would spoil the probabilities. With a
    `folder` finished trials are kept there: a search that was interrupted goes on from them, and ends as it would have otherwise.
    """

    n_trials: int = 0
    n_folds: int = 3
    search_rows: int = 30_000
    folder: Path | None = None
    n_threads: int | None = None
    settings: XGBoostParams | None = None  # in place of a search, as an earlier one found
    announce: Announce | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        _at_least("n_trials", self.n_trials, 0)
        _at_least("n_folds", self.n_folds, 2)
        _at_least("search_rows", self.search_rows, 1)
        if self.n_threads is not None:
            _at_least("n_threads", self.n_threads, 1)

    def fit(
        self, columns: Array, labels: ArrayLike, customers: ArrayLike, seed: int
    ) -> FittedXGBoost:
        """Search, if trials are asked for, and fit to columns [N, D], labels [N] and customers [N]."""
        columns, known, keys = _training_rows(columns, labels, customers)
        from_extra("xgboost", "the XGBoost baseline")
        best = (
            self._searched(columns, known, keys, seed)
            if self.n_trials and not self.settings
            else Trial(self.settings or FIXED)
        )
        booster = boosted(best.settings, columns, known, seed, self._threads())
        booster.set_attr(turncoat=json.dumps({"settings": best.settings, "value": best.value}))
        return FittedXGBoost(booster)

    def _searched(self, columns: Array, labels: Array, customers: Array, seed: int) -> Trial:
        part = some_customers(labels, customers, self.search_rows, seed)
        methods = tree_methods(len(labels))
        columns, labels, customers = columns[part], labels[part], customers[part]
        folds = customer_folds(labels, customers, self.n_folds, seed)
        path = (
            None
            if self.folder is None
            else trials_file(self.folder, columns, labels, folds, seed, methods)
        )
        objective = make_objective(columns, labels, folds, seed)
        return search(
            objective, partial(suggest, methods=methods), self.n_trials, seed, path, self.announce
        )

    def _threads(self) -> int:
        return available_threads() if self.n_threads is None else self.n_threads


@dataclass(frozen=True, eq=False)
class FittedXGBoost:
    """A fitted booster, which remembers what it was fitted with. It can be a detector's ranker."""

    booster: Any

    @property
    def trial(self) -> Trial:
        """The settings, and the average precision that they reached in the search."""
        return msgspec.json.decode(self.booster.attr("turncoat"), type=Trial)

    def score(self, columns: Array) -> Array:
        """Probabilities of fraud [N]."""
        return predicted(self.booster, _checked_columns(columns, self.booster.num_features()))

    def save(self, path: Path) -> None:
        """Write the booster as XGBoost's JSON, in one instant or not at all."""
        replace_file(path, bytes(self.booster.save_raw("json")))

    @classmethod
    def load(cls, path: Path) -> FittedXGBoost:
        """Read what `save` wrote."""
        booster = from_extra("xgboost", "the XGBoost baseline").Booster()
        try:
            booster.load_model(bytearray(path.read_bytes()))
        except OSError as problem:
            raise BundleError(f"{path}: cannot be read ({problem.strerror})") from problem
        except ValueError as problem:  # XGBoostError is one
            raise BundleError(
                f"{path}: not an XGBoost model as `save` writes it. Fit it again"
            ) from problem
        if booster.attr("turncoat") is None:
            raise BundleError(
                f"{path}: an XGBoost model that is not of this baseline. Fit it again"
            )
        return cls(booster)


def _training_rows(
    columns: Array, labels: ArrayLike, customers: ArrayLike
) -> tuple[Array, Array, Array]:
    columns, known, keys = _checked_columns(columns), np.asarray(labels), np.asarray(customers)
    if known.shape != (len(columns),) or keys.shape != (len(columns),):
        raise DataError(
            f"{len(columns)} rows need as many labels and customers; found {known.shape} and {keys.shape}"
        )
    kinds = np.unique(known).tolist()
    if kinds != [0, 1]:
        raise DataError(
            f"a baseline learns from labels 0 and 1, both of them; found {kinds[:5]}. Leave out rows without a label"
        )
    return columns, known.astype(np.int8), keys


def _checked_columns(columns: Array, width: int | None = None) -> Array:
    columns = np.asarray(columns, np.float32)
    if columns.ndim != 2 or 0 in columns.shape or (width is not None and columns.shape[1] != width):
        raise DataError(
            f"columns must be a table [rows, {width or 'columns'}]; found shape {columns.shape}. Make it with `build_ranker_matrix`"
        )
    infinite = np.argwhere(np.isinf(columns))
    if len(infinite):
        raise DataError(
            f"row {infinite[0][0]}, column {infinite[0][1]} is infinite; use NaN for a missing value"
        )
    return columns


def _medians(columns: Array) -> Array:
    """Of what is there in each column; 0 where nothing is."""
    present = [column[~np.isnan(column)] for column in columns.T]
    return np.array([np.median(column) if len(column) else 0.0 for column in present], np.float32)


def _at_least(name: str, value: int, least: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least {least}")
