"""Baselines on the same columns as the hidden Markov models.

Logistic regression, Isolation Forest and XGBoost. Columns [N, D] come from `build_ranker_matrix`:
numbers first, then categorical codes; NaN is missing.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import IsolationForest
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError, DataError
from turncoat.evaluation import tuning
from turncoat.evaluation.protocols import TrainingRows, sample_customers
from turncoat.evaluation.tuning import DEFAULT_PARAMS, Announce, Trial, XGBoostParams
from turncoat.models.validation import Rule, check_settings, or_none, whole_number
from turncoat.numerics.engine import available_threads
from turncoat.storage import replace_file

_BATCH_ROWS = 8192
_MAX_ITER = 2000  # of logistic regression
_MEDIAN: dict[str, Any] = {"strategy": "median", "keep_empty_features": True}  # to fill cells
_SEARCH_RULES = {"search_rows": whole_number(1)}
_XGBOOST_RULES = {"n_trials": whole_number(0), "n_threads": or_none(whole_number(1))}
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
        rows = _check_training_rows(rows)
        encoder = DesignEncoder(self.n_categories).fit(rows.columns)
        strength = self.strengths[0]
        if len(self.strengths) > 1:
            part = _sample_search_rows(rows, self.search_rows, seed)
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
    """Columns [N, D] into a design matrix; everything is learnt from the fit rows.

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
        steps = [
            ("numbers", make_pipeline(SimpleImputer(**_MEDIAN), StandardScaler()), numbers),
            ("missing", MissingIndicator(error_on_new=False), numbers),
            ("codes", OneHotEncoder(categories=categories), codes),
        ]
        kept = steps[: 2 if not self.n_categories else 3] if n_numbers else steps[2:]
        self.transformer = ColumnTransformer(kept, sparse_threshold=1.0)
        self.transformer.fit(self._check_codes(columns))
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
        design = self.encoder.transform(_check_columns(columns, self.encoder.n_columns))
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
        columns = _check_columns(rows.columns)
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
        columns = self.imputer.transform(_check_columns(columns, self.imputer.n_features_in_))
        batches = np.array_split(columns, -(-len(columns) // _BATCH_ROWS))
        # Threads over rows: threads over trees would add up in any order.
        with ThreadPoolExecutor(available_threads()) as pool:
            scores = list(pool.map(self.forest.score_samples, batches))
        return -np.concatenate(scores).astype(np.float64)


@dataclass(frozen=True)
class XGBoostBaseline:
    """Gradient boosted trees with default, given or searched parameters.

    A search fits `n_trials` to about `search_rows` of the rows that do not validate. The validation
    rows end each fit by log loss and compare the trials by average precision. The final model uses
    all rows in the window that won. Classes are not weighted, because that would spoil the
    probabilities. With a `folder`, finished trials are kept there and an interrupted search resumes
    from them with the same outcome.
    """

    n_trials: int = 0
    search_rows: int = 60_000
    folder: Path | None = None
    n_threads: int | None = None
    params: XGBoostParams | None = None  # used instead of a search
    announce: Announce | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_settings(self, vars(self), {**_SEARCH_RULES, **_XGBOOST_RULES})

    def fit(self, rows: TrainingRows, seed: int) -> FittedXGBoost:
        """Search if trials are asked for, then fit to all rows."""
        rows = _check_training_rows(rows)
        tuning.import_extra("xgboost", "the XGBoost baseline")
        best, n_threads = (
            Trial(self.params or DEFAULT_PARAMS),
            self.n_threads or available_threads(),
        )
        if self.n_trials and not self.params:
            best = self._search(rows, seed, n_threads)
        booster = tuning.fit_booster(best.params, rows, seed, n_threads)
        booster.set_attr(turncoat=json.dumps({"params": best.params, "value": best.value}))
        return FittedXGBoost(booster)

    def _search(self, rows: TrainingRows, seed: int, n_threads: int) -> Trial:
        part = _sample_search_rows(rows, self.search_rows, seed)
        path = None if self.folder is None else tuning.trials_file(self.folder, part, seed)
        evaluate = partial(tuning.evaluate_params, rows=part, seed=seed, n_threads=n_threads)
        space = tuning.SearchSpace.of(rows)  # of all rows: the final fit takes longer
        return tuning.search(evaluate, space, self.n_trials, seed, path, self.announce)


@dataclass(frozen=True, eq=False)
class FittedXGBoost:
    """A fitted booster that remembers its parameters. It can be a detector's ranker."""

    booster: Any

    @property
    def trial(self) -> Trial:
        """The parameters, and the average precision that they reached in the search."""
        return msgspec.json.decode(self.booster.attr("turncoat"), type=Trial)

    def score(self, columns: Array) -> Array:
        """Probabilities of fraud [N]."""
        columns = _check_columns(columns, self.booster.num_features())
        return tuning.predict_booster(self.booster, columns)

    def save(self, path: Path) -> None:
        """Write the booster as XGBoost's JSON; the file is replaced atomically."""
        replace_file(path, bytes(self.booster.save_raw("json")))

    @classmethod
    def load(cls, path: Path) -> FittedXGBoost:
        """Read a booster that `save` wrote."""
        booster = tuning.import_extra("xgboost", "the XGBoost baseline").Booster()
        try:
            booster.load_model(bytearray(path.read_bytes()))
        except OSError as problem:
            raise BundleError(f"{path}: cannot be read ({problem.strerror})") from problem
        except ValueError as problem:  # XGBoostError is one
            rule = "not an XGBoost model as `save` writes it"
            raise BundleError(f"{path}: {rule}. Fit it again") from problem
        if booster.attr("turncoat") is None:
            raise BundleError(f"{path}: an XGBoost model of another program. Fit it again")
        return cls(booster)


def _check_training_rows(rows: TrainingRows) -> TrainingRows:
    columns = _check_columns(rows.columns)
    for name, part in list(rows._asdict().items())[1:]:
        if np.shape(part) != (len(columns),):
            found = f"found shape {np.shape(part)}"
            raise DataError(f"{len(columns)} rows need as many values of `{name}`; {found}")
    values = np.unique(rows.labels).tolist()
    if values != [0, 1]:
        rule = "a baseline needs labels 0 and 1, both present"
        raise DataError(f"{rule}; found {values[:5]}. Leave out rows without a label")
    return rows._replace(columns=columns, labels=np.asarray(rows.labels).astype(np.int8))


def _sample_search_rows(rows: TrainingRows, n_rows: int, seed: int) -> TrainingRows:
    """All validation rows, and about `n_rows` of the others, of whole customers."""
    fit, held_out = (np.flatnonzero(rows.is_validation == part) for part in (False, True))
    for part, name in ((fit, "rows to fit to"), (held_out, "validation rows")):
        if len(np.unique(rows.labels[part])) < 2:
            n_frauds = int(rows.labels[part].sum())
            found = f"{n_frauds} of {len(part)} {name} are fraud, and a search needs both kinds"
            raise DataError(f"{found}. Make that part larger, or search nothing (n_trials=0)")
    drawn = fit[sample_customers(rows.labels[fit], rows.customers[fit], n_rows, seed)]
    return rows.take(np.union1d(drawn, held_out))


def _check_columns(columns: Array, width: int | None = None) -> Array:
    columns = np.asarray(columns, np.float32)
    if columns.ndim != 2 or 0 in columns.shape or (width is not None and columns.shape[1] != width):
        rule = f"columns must be a table [rows, {width or 'columns'}]"
        remedy = "Make it with `build_ranker_matrix`"
        raise DataError(f"{rule}; found shape {columns.shape}. {remedy}")
    for row, column in np.argwhere(np.isinf(columns)):
        raise DataError(f"row {row}, column {column} is infinite; use NaN for a missing value")
    return columns
