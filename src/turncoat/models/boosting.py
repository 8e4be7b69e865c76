"""Gradient boosted trees on rows of features, with parameters given, by default or searched."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from turncoat.arrays import Array
from turncoat.errors import BundleError, DataError, import_extra
from turncoat.models import tuning
from turncoat.models.tuning import DEFAULT_PARAMS, Announce, TrainingRows, Trial, XGBoostParams
from turncoat.models.validation import check_settings, or_none, whole_number
from turncoat.numerics.engine import available_threads
from turncoat.storage import replace_file

_RULES = {
    "n_trials": whole_number(0),
    "search_rows": whole_number(1),
    "n_threads": or_none(whole_number(1)),
}


@dataclass(frozen=True)
class BoostedTrees:
    """Gradient boosted trees with default, given or searched parameters.

    A search fits `n_trials` to about `search_rows` of the rows that do not validate. The validation
    rows end each fit by log loss and compare the trials by average precision. After a search on
    fewer rows than there are, a fit to all of them finds the number of rounds that these need. The
    final model uses the validation rows too, and only rows in the window that won. Classes are not
    weighted, because that would spoil the probabilities. With a `folder`, finished trials are kept
    there and an interrupted search resumes from them with the same outcome.
    """

    n_trials: int = 0
    search_rows: int = 60_000
    folder: Path | None = None
    n_threads: int | None = None
    params: XGBoostParams | None = None  # used instead of a search
    announce: Announce | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_settings(self, vars(self), _RULES)

    def fit(self, rows: TrainingRows, seed: int) -> FittedTrees:
        """Search if trials are asked for, then fit to all rows."""
        rows = check_training_rows(rows)
        import_extra("xgboost", "XGBoost")
        best = Trial(self.params or DEFAULT_PARAMS)
        n_threads = self.n_threads or available_threads()
        if self.n_trials and not self.params:
            best = self.search(rows, seed)
            if (~rows.is_validation).sum() > self.search_rows:
                n_rounds, _ = tuning.validate_params(best.params, rows, seed, n_threads)
                best = replace(best, params={**best.params, "n_estimators": n_rounds})
        booster = tuning.fit_booster(best.params, rows, seed, n_threads)
        booster.set_attr(turncoat=json.dumps({"params": best.params, "value": best.value}))
        return FittedTrees(booster)

    def search(self, rows: TrainingRows, seed: int, deadline: float = math.inf) -> Trial:
        """The best parameters; no trial but the first starts after the `deadline`."""
        part = tuning.sample_search_rows(rows, self.search_rows, seed)
        path = None if self.folder is None else tuning.trials_file(self.folder, part, seed)
        known: Any = {
            "rows": part,
            "seed": seed,
            "n_threads": self.n_threads or available_threads(),
        }
        evaluate = partial(tuning.evaluate_params, **known)
        space = tuning.SearchSpace.of(rows)  # of all rows: the final fit takes longer
        return tuning.search(evaluate, space, self.n_trials, seed, path, self.announce, deadline)


@dataclass(frozen=True, eq=False)
class FittedTrees:
    """A fitted booster that remembers its parameters. It can be a detector's ranker."""

    booster: Any

    @property
    def trial(self) -> Trial:
        """The parameters, and the average precision that they reached in the search."""
        return msgspec.json.decode(self.booster.attr("turncoat"), type=Trial)

    def score(self, columns: Array) -> Array:
        """Probabilities of fraud [N]."""
        columns = check_columns(columns, self.booster.num_features())
        return tuning.predict_booster(self.booster, columns)

    def save(self, path: Path) -> None:
        """Write the booster as XGBoost's JSON; the file is replaced atomically."""
        replace_file(path, bytes(self.booster.save_raw("json")))

    @classmethod
    def load(cls, path: Path) -> FittedTrees:
        """Read a booster that `save` wrote."""
        booster = import_extra("xgboost", "XGBoost").Booster()
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


def check_training_rows(rows: TrainingRows) -> TrainingRows:
    """The rows with float32 columns and int8 labels; DataError if they cannot be learnt from."""
    columns = check_columns(rows.columns)
    for name, part in list(rows._asdict().items())[1:]:
        if part is not None and np.shape(part) != (len(columns),):
            found = f"found shape {np.shape(part)}"
            raise DataError(f"{len(columns)} rows need as many values of `{name}`; {found}")
    values = np.unique(rows.labels).tolist()
    if values != [0, 1]:
        rule = "a baseline needs labels 0 and 1, both present"
        raise DataError(f"{rule}; found {values[:5]}. Leave out rows without a label")
    return rows._replace(columns=columns, labels=np.asarray(rows.labels).astype(np.int8))


def check_columns(columns: Array, width: int | None = None) -> Array:
    """The columns as float32; DataError if they are no table of this width, or infinite."""
    columns = np.asarray(columns, np.float32)
    if columns.ndim != 2 or 0 in columns.shape or (width is not None and columns.shape[1] != width):
        rule = f"columns must be a table [rows, {width or 'columns'}]"
        remedy = "Make it with `build_ranker_matrix`"
        raise DataError(f"{rule}; found shape {columns.shape}. {remedy}")
    for row, column in np.argwhere(np.isinf(columns)):
        raise DataError(f"row {row}, column {column} is infinite; use NaN for a missing value")
    return columns
