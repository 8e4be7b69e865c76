"""Baselines on the same columns as the hidden Markov models.

Logistic regression, Isolation Forest and XGBoost. Columns [N, D] come from `build_ranker_matrix`:
numbers first, then categorical codes; NaN is missing.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import IsolationForest
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.boosting import check_columns, check_training_rows
from turncoat.models.tuning import TrainingRows, sample_search_rows
from turncoat.models.validation import Rule, check_settings, whole_number
from turncoat.numerics.engine import available_threads

_BATCH_ROWS = 8192
_MAX_ITER = 2000  # of logistic regression
_DESIGN_ROWS = 100_000  # at most, for medians and scales
_MEDIAN: dict[str, Any] = {"strategy": "median", "keep_empty_features": True}  # to fill cells
_SEARCH_RULES = {"search_rows": whole_number(1)}
_FOREST_RULES = {"n_trees": whole_number(1), "subsample": whole_number(2)}
_STRENGTHS = Rule("one or more positive numbers", lambda v: v and all(0 < s < math.inf for s in v))


@dataclass(frozen=True)
class LogisticBaseline:
    """Ridge logistic regression on standardised numbers and one-hot codes.

    The last columns are codes, with `n_categories` values each. The inverse penalty is the one of
    `strengths` with the best average precision on the validation rows, fitted to about
    `search_rows` of the others; the final model is fitted to all rows.
    """

    n_categories: tuple[int, ...] = ()
    strengths: tuple[float, ...] = (0.001, 0.01, 0.1, 1.0)
    search_rows: int = 60_000

    def __post_init__(self) -> None:
        check_settings(self, vars(self), {"strengths": _STRENGTHS, **_SEARCH_RULES})

    def fit(self, rows: TrainingRows, seed: int) -> FittedLogistic:
        """Choose the penalty, then fit to all rows."""
        rows = check_training_rows(rows)
        encoder = DesignEncoder(self.n_categories).fit(rows.columns)
        strength = self.strengths[0]
        if len(self.strengths) > 1:
            part = sample_search_rows(rows, self.search_rows, seed)
            design, held_out = encoder.transform(part.columns), part.is_validation

            def precision(candidate: float) -> float:
                model = LogisticRegression(C=candidate, max_iter=_MAX_ITER)
                fitted = model.fit(design[~held_out], part.labels[~held_out])
                scores = fitted.decision_function(design[held_out])
                return float(average_precision_score(part.labels[held_out], scores))

            strength = max(sorted(self.strengths), key=precision)
        regression = LogisticRegression(C=strength, max_iter=_MAX_ITER)
        fitted = regression.fit(encoder.transform(rows.columns), rows.labels)
        return FittedLogistic(encoder, fitted, strength)


class DesignEncoder:
    """Columns [N, D] into a design matrix; medians and scales are those of fit rows.

    Numbers are filled with the median and standardised, missing ones get a flag, and every code
    gets a column, as does its absence.
    """

    def __init__(self, n_categories: tuple[int, ...]) -> None:
        self.n_categories = n_categories

    def fit(self, columns: Array) -> DesignEncoder:
        """Learn medians, scales and flags from columns [N, D]."""
        self.n_columns = columns.shape[1]
        n_numbers = self.n_columns - len(self.n_categories)
        if n_numbers < 0:
            found = f"{len(self.n_categories)} categorical columns"
            raise ConfigError(f"n_categories names {found}; the rows have {self.n_columns} columns")
        numbers, codes = slice(0, n_numbers), slice(n_numbers, self.n_columns)
        categories = [np.append(np.arange(size), np.nan) for size in self.n_categories]
        steps: list[tuple[str, Any, slice]] = []
        if n_numbers:
            filled = make_pipeline(SimpleImputer(**_MEDIAN), StandardScaler())
            steps.append(("numbers", filled, numbers))
        if np.isnan(columns[:, numbers]).any():
            steps.append(("missing", MissingIndicator(error_on_new=False), numbers))
        if self.n_categories:
            steps.append(("codes", OneHotEncoder(categories=categories), codes))
        self.transformer = ColumnTransformer(steps, sparse_threshold=1.0)
        self.transformer.fit(self._check_codes(columns[:: -(-len(columns) // _DESIGN_ROWS)]))
        return self

    def transform(self, columns: Array) -> Any:
        """The design matrix; sparse if there are codes."""
        return self.transformer.transform(self._check_codes(columns))

    def _check_codes(self, columns: Array) -> Array:
        for j, size in enumerate(self.n_categories):
            codes = columns[:, self.n_columns - len(self.n_categories) + j]
            wrong = np.flatnonzero((codes < 0) | (codes >= size))
            if len(wrong):
                found = f"found code {codes[wrong[0]]:.0f}; codes run from 0 to {size - 1}"
                place = f"row {wrong[0]}, categorical column {j}"
                raise DataError(f"{place}: {found}. Pass the panel's `n_categories`")
        return columns.astype(np.float64)


class FittedLogistic(NamedTuple):
    """A fitted logistic regression."""

    encoder: DesignEncoder
    regression: Any
    strength: float  # the inverse penalty in use

    def score(self, columns: Array) -> Array:
        """Probabilities of fraud [N]."""
        design = self.encoder.transform(check_columns(columns, self.encoder.n_columns))
        return np.asarray(self.regression.predict_proba(design)[:, 1], np.float64)


@dataclass(frozen=True)
class IsolationForestBaseline:
    """Isolation Forest: sees no labels, and its score is not a probability."""

    n_trees: int = 200
    subsample: int = 512

    def __post_init__(self) -> None:
        check_settings(self, vars(self), _FOREST_RULES)

    def fit(self, rows: TrainingRows, seed: int) -> FittedIsolationForest:
        """Fit to the columns of all rows; nothing else is used."""
        columns = check_columns(rows.columns)
        imputer = SimpleImputer(**_MEDIAN).fit(columns)
        forest = IsolationForest(n_estimators=self.n_trees, random_state=seed)
        forest.set_params(max_samples=min(self.subsample, len(columns)))
        return FittedIsolationForest(forest.fit(imputer.transform(columns)), imputer)


class FittedIsolationForest(NamedTuple):
    """A fitted forest."""

    forest: Any
    imputer: Any  # fills missing values with the fit rows' medians

    def score(self, columns: Array) -> Array:
        """Anomaly scores [N], between 0 and 1."""
        columns = self.imputer.transform(check_columns(columns, self.imputer.n_features_in_))
        batches = np.array_split(columns, -(-len(columns) // _BATCH_ROWS))
        # Threads over rows: threads over trees would add up in any order.
        with ThreadPoolExecutor(available_threads()) as pool:
            scores = list(pool.map(self.forest.score_samples, batches))
        return -np.concatenate(scores).astype(np.float64)
