"""How XGBoost is tuned: its settings, the search for better ones, and the customer-disjoint folds that evaluate a trial.

Trials that are finished are kept in a file, from which an interrupted search goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError, DataError
from turncoat.storage import digest, replace_file

XGBoostParams = dict[str, int | float | str]
Announce = Callable[
    [int, int, float], None
]  # trials done, trials in all, best average precision so far

MOST_EXACT_ROWS = 50_000  # above which XGBoost's exact trees take too long
MOST_APPROXIMATE_ROWS = 150_000  # likewise
LEAST_TRAVEL = 8.0  # rounds times learning rate: a round moves log odds by about the rate, and 0.5 is far from a rare fraud's share
MOST_ROUNDS = 400
ESTIMATED = "estimated"
_NEEDED = "{} needs the extra: pip install turncoat[baselines]"
_SEARCH_THREADS = 1  # on so few rows more of them gain little, and lose ninefold where other work shares the processors
FIXED: XGBoostParams = {
    "tree_method": "hist",
    "base_score": 0.5,  # from an estimated one, rare fraud's small Hessians leave `min_child_weight` little to split
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
    """XGBoostParams of XGBoost and the average precision they reached over the folds; None without a search."""

    settings: XGBoostParams
    value: float | None = None


def suggest(trial: Any, methods: tuple[str, ...]) -> XGBoostParams:
    """The settings that an Optuna trial proposes."""
    rate = trial.suggest_float("learning_rate", 0.025, 0.3, log=True)
    return {
        "tree_method": trial.suggest_categorical("tree_method", methods),
        "base_score": trial.suggest_categorical("base_score", (0.5, ESTIMATED)),
        "max_depth": trial.suggest_int("max_depth", 3, 10),
        "learning_rate": rate,
        "n_estimators": trial.suggest_int(
            "n_estimators", math.ceil(LEAST_TRAVEL / rate), MOST_ROUNDS, log=True
        ),
        "subsample": trial.suggest_float("subsample", 0.5, 1.0),
        "colsample_bytree": trial.suggest_float("colsample_bytree", 0.4, 1.0),
        "min_child_weight": trial.suggest_float("min_child_weight", 0.01, 30.0, log=True),
        "reg_lambda": trial.suggest_float("reg_lambda", 0.01, 30.0, log=True),
        "gamma": trial.suggest_float("gamma", 0.0, 2.0),
    }


def tree_methods(n_rows: int) -> tuple[str, ...]:
    """XGBoost's tree methods that are fast enough for a fit on so many rows."""
    slower = {"approx": MOST_APPROXIMATE_ROWS, "exact": MOST_EXACT_ROWS}
    return ("hist", *(method for method, most in slower.items() if n_rows <= most))


def search(
    objective: Callable[[XGBoostParams], float],
    propose: Callable[[Any], XGBoostParams],
    n_trials: int,
    seed: int,
    path: Path | None = None,
    announce: Announce | None = None,
) -> Trial:
    """The best of `n_trials`, the first being `FIXED`; at equal values the earlier.

    Every trial has a sampler of its own seed, so what it proposes depends only on the trials before it. Those already in the file are
    proposed again, which takes no time, and not judged again.
    """
    optuna = from_extra("optuna", "the search for XGBoost's settings")
    trials = [] if path is None else _read_trials(path)
    with _quiet(optuna):
        study = optuna.create_study(direction="maximize")
    study.enqueue_trial(FIXED)
    for number in range(n_trials):
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=own_seed, multivariate=False)
        asked = study.ask()
        settings = propose(asked)
        if (
            number >= len(trials) or trials[number].settings != settings
        ):  # another Optuna may propose otherwise
            trials = [*trials[:number], Trial(settings, objective(settings))]
            if path is not None:
                replace_file(path, msgspec.json.format(msgspec.json.encode(trials), indent=1))
        study.tell(asked, trials[number].value)
        if announce is not None:
            announce(number + 1, n_trials, float(study.best_value))
    return max(
        trials[:n_trials], key=lambda trial: -math.inf if trial.value is None else trial.value
    )


def make_objective(
    columns: Array, labels: Array, folds: Array, seed: int
) -> Callable[[XGBoostParams], float]:
    """What tells the average precision of settings over the folds."""

    def objective(settings: XGBoostParams) -> float:
        def scores(fit: Array, test: Array) -> Array:
            return predicted(
                boosted(settings, columns[fit], labels[fit], seed, _SEARCH_THREADS), columns[test]
            )

        return over_folds(folds, labels, scores)

    return objective


def trials_file(
    folder: Path, columns: Array, labels: Array, folds: Array, seed: int, methods: tuple[str, ...]
) -> Path:
    """The file in the folder, which is made, for the trials of a search on just this."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {"columns": columns, "labels": labels, "folds": folds}
    return folder / f"trials-{digest([seed, len(methods)], arrays)[:16]}.json"


def boosted(
    settings: XGBoostParams, columns: Array, labels: Array, seed: int, n_threads: int
) -> Any:
    """A booster fitted with these settings."""
    xgboost = from_extra("xgboost", "the XGBoost baseline")
    own = {
        name: value
        for name, value in settings.items()
        if name != "n_estimators" and value != ESTIMATED
    }
    params = {"objective": "binary:logistic", "nthread": n_threads, "seed": seed, **own}
    return xgboost.train(
        params, xgboost.DMatrix(columns, labels, nthread=n_threads), int(settings["n_estimators"])
    )


def predicted(booster: Any, columns: Array) -> Array:
    """Probabilities of fraud [N]."""
    return np.asarray(
        booster.predict(from_extra("xgboost", "the XGBoost baseline").DMatrix(columns)), np.float64
    )


def customer_folds(labels: Array, customers: Array, n_folds: int, seed: int) -> Array:
    """The fold of each row [N]: no customer is in two, and those with fraud are dealt out evenly."""
    codes, with_fraud = _fraud_customers(labels, customers)
    if with_fraud.sum() < n_folds:
        raise DataError(
            f"{int(with_fraud.sum())} customers have fraud, too few for {n_folds} folds without shared customers. "
            "Give more rows, or search with fewer folds"
        )
    rng = np.random.default_rng(seed)
    order = np.concatenate(
        [rng.permutation(np.flatnonzero(with_fraud)), rng.permutation(np.flatnonzero(~with_fraud))]
    )
    folds = np.empty(len(order), np.int64)
    folds[order] = np.arange(len(order)) % n_folds
    return np.asarray(folds[codes])


def some_customers(labels: Array, customers: Array, n_rows: int, seed: int) -> Array:
    """Rows, in their order, of customers drawn at random with about `n_rows` in all: the same share of those with and without fraud."""
    if len(labels) <= n_rows:
        return np.arange(len(labels))
    codes, with_fraud = _fraud_customers(labels, customers)
    rng = np.random.default_rng(seed)
    drawn = np.zeros(len(with_fraud), bool)
    for group in (np.flatnonzero(with_fraud), np.flatnonzero(~with_fraud)):
        drawn[rng.permutation(group)[: math.ceil(len(group) * n_rows / len(labels))]] = True
    return np.flatnonzero(drawn[codes])


def over_folds(folds: Array, labels: Array, scores: Callable[[Array, Array], Array]) -> float:
    """Mean average precision of scores(fit rows, test rows), each fold being the test once."""
    from sklearn.metrics import average_precision_score

    found = []
    for fold in range(int(folds.max()) + 1):
        test = np.flatnonzero(folds == fold)
        found.append(
            average_precision_score(labels[test], scores(np.flatnonzero(folds != fold), test))
        )
    return float(np.mean(found))


def from_extra(module: str, purpose: str) -> Any:
    """A module of the extra `baselines`, or an error that says how to get it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as problem:
        raise ConfigError(_NEEDED.format(purpose)) from problem


def check_extra(module: str, purpose: str) -> None:
    """Refuse where a module of the extra is missing; without importing it, which takes seconds for some."""
    if find_spec(module) is None:
        raise ConfigError(_NEEDED.format(purpose))


def _fraud_customers(labels: Array, customers: Array) -> tuple[Array, Array]:
    """A number for each row's customer [N], and which of the customers have fraud."""
    keys, codes = np.unique(customers, return_inverse=True)
    return codes, np.bincount(codes, labels, len(keys)) > 0


def _read_trials(path: Path) -> list[Trial]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Trial])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as problem:
        raise BundleError(
            f"{path}: not the trials of a search ({problem}). Delete it to search anew"
        ) from problem


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without Optuna's announcements."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
