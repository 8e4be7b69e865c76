"""Hyperparameter search for XGBoost over customer-disjoint folds; resumes from a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from sklearn.metrics import average_precision_score

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError
from turncoat.storage import digest, replace_file

XGBoostParams = dict[str, int | float | str]
FitAndScore = Callable[[Array, Array], Array]  # rows to fit and to test; scores of the latter
Objective = Callable[[XGBoostParams], float]  # mean average precision
Announce = Callable[[int, int, float], None]  # (trials done, trials in all, best value so far)

MAX_EXACT_ROWS = 50_000  # above this XGBoost's exact trees take too long
MAX_APPROX_ROWS = 150_000  # likewise for approximate ones
# A round moves log odds by about the learning rate, and 0.5 is far from a rare fraud's rate.
MIN_TRAVEL = 8.0  # rounds times learning rate
MAX_ROUNDS = 400
ESTIMATED = "estimated"
_EXTRA_NEEDED = "{} needs the extra: pip install turncoat[baselines]"
_SEARCH_THREADS = 1  # more gain little on so few rows, and lose ninefold on a busy machine
DEFAULT_PARAMS: XGBoostParams = {
    "tree_method": "hist",
    "base_score": 0.5,  # from an estimated one, rare fraud's small Hessians allow few splits
    "max_depth": 6,
    "learning_rate": 0.1,
    "n_estimators": 200,
    "subsample": 0.8,
    "colsample_bytree": 0.8,
    "min_child_weight": 1.0,
    "reg_lambda": 1.0,
    "gamma": 0.0,
}


@dataclass(frozen=True)
class Trial:
    """Parameters of XGBoost and their mean average precision; None without a search."""

    params: XGBoostParams
    value: float | None = None


def suggest_params(trial: Any, methods: tuple[str, ...]) -> XGBoostParams:
    """The parameters that an Optuna trial proposes."""
    rate = trial.suggest_float("learning_rate", 0.025, 0.3, log=True)
    min_rounds = math.ceil(MIN_TRAVEL / rate)
    return {
        "tree_method": trial.suggest_categorical("tree_method", methods),
        "base_score": trial.suggest_categorical("base_score", (0.5, ESTIMATED)),
        "max_depth": trial.suggest_int("max_depth", 3, 10),
        "learning_rate": rate,
        "n_estimators": trial.suggest_int("n_estimators", min_rounds, MAX_ROUNDS, log=True),
        "subsample": trial.suggest_float("subsample", 0.5, 1.0),
        "colsample_bytree": trial.suggest_float("colsample_bytree", 0.4, 1.0),
        "min_child_weight": trial.suggest_float("min_child_weight", 0.01, 30.0, log=True),
        "reg_lambda": trial.suggest_float("reg_lambda", 0.01, 30.0, log=True),
        "gamma": trial.suggest_float("gamma", 0.0, 2.0),
    }


def tree_methods(n_rows: int) -> tuple[str, ...]:
    """XGBoost's tree methods that are fast enough for a fit on `n_rows`."""
    limits = {"approx": MAX_APPROX_ROWS, "exact": MAX_EXACT_ROWS}
    return ("hist", *(method for method, limit in limits.items() if n_rows <= limit))


def search(
    objective: Objective,
    propose: Callable[[Any], XGBoostParams],
    n_trials: int,
    seed: int,
    path: Path | None = None,
    announce: Announce | None = None,
) -> Trial:
    """The best of `n_trials`; the first tries `DEFAULT_PARAMS`, and ties go to the earlier trial.

    Every trial seeds its own sampler, so a proposal depends only on the trials before it. Trials
    already in the file are proposed again, which takes no time, and not evaluated again.
    """
    optuna = import_extra("optuna", "the search for XGBoost's parameters")
    trials = [] if path is None else load_trials(path)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(verbosity)
    study.enqueue_trial(DEFAULT_PARAMS)
    for number in range(n_trials):
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=own_seed, multivariate=False)
        asked = study.ask()
        params = propose(asked)
        # Another version of Optuna may propose something else than the file has.
        if number >= len(trials) or trials[number].params != params:
            trials = [*trials[:number], Trial(params, objective(params))]
            if path is not None:
                replace_file(path, msgspec.json.format(msgspec.json.encode(trials), indent=1))
        study.tell(asked, trials[number].value)
        if announce is not None:
            announce(number + 1, n_trials, float(study.best_value))
    return max(trials[:n_trials], key=lambda one: -math.inf if one.value is None else one.value)


def make_objective(columns: Array, labels: Array, folds: Array, seed: int) -> Objective:
    """A function from parameters to mean average precision over the folds."""

    def fit_and_score(params: XGBoostParams, fit: Array, test: Array) -> Array:
        booster = fit_booster(params, columns[fit], labels[fit], seed, _SEARCH_THREADS)
        return predict_booster(booster, columns[test])

    return lambda params: cross_validate(folds, labels, partial(fit_and_score, params))


def cross_validate(folds: Array, labels: Array, fit_and_score: FitAndScore) -> float:
    """Mean average precision of `fit_and_score(fit rows, test rows)`; each fold is test once."""
    values = []
    for fold in range(int(folds.max()) + 1):
        fit, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        values.append(average_precision_score(labels[test], fit_and_score(fit, test)))
    return float(np.mean(values))


def trials_file(
    folder: Path, columns: Array, labels: Array, folds: Array, seed: int, methods: tuple[str, ...]
) -> Path:
    """The file for the trials of a search on exactly these rows; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"columns": columns, "labels": labels, "folds": folds}
    return folder / f"trials-{digest([seed, len(methods)], arrays)[:16]}.json"


def load_trials(path: Path) -> list[Trial]:
    """The trials in a file; none if it does not exist."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Trial])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as problem:
        text = f"{path}: not the trials of a search ({problem}). Delete it to search anew"
        raise BundleError(text) from problem


def fit_booster(
    params: XGBoostParams, columns: Array, labels: Array, seed: int, n_threads: int
) -> Any:
    """A booster fitted to columns [N, D] and labels [N]."""
    xgboost = import_extra("xgboost", "the XGBoost baseline")
    own = {k: v for k, v in params.items() if k != "n_estimators" and v != ESTIMATED}
    settings = {"objective": "binary:logistic", "nthread": n_threads, "seed": seed, **own}
    matrix = xgboost.DMatrix(columns, labels, nthread=n_threads)
    return xgboost.train(settings, matrix, int(params["n_estimators"]))


def predict_booster(booster: Any, columns: Array) -> Array:
    """Probabilities of fraud [N]."""
    matrix = import_extra("xgboost", "the XGBoost baseline").DMatrix(columns)
    return np.asarray(booster.predict(matrix), np.float64)


def import_extra(module: str, purpose: str) -> Any:
    """A module of the extra `baselines`; ConfigError with the install command if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as problem:
        raise ConfigError(_EXTRA_NEEDED.format(purpose)) from problem


def require_extra(module: str, purpose: str) -> None:
    """Refuse a missing module of the extra without importing it, which can take seconds."""
    if find_spec(module) is None:
        raise ConfigError(_EXTRA_NEEDED.format(purpose))
