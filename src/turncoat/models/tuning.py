"""XGBoost's fits and the search for its parameters, which resumes from a file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from sklearn.metrics import average_precision_score

from turncoat.arrays import Array
from turncoat.errors import BundleError, DataError, import_extra
from turncoat.storage import digest, replace_file

XGBoostParams = dict[str, int | float | str]
Announce = Callable[[int, int, float], None]  # (trials done, trials in all, best value so far)

MAX_EXACT_CELLS = 3_000_000  # above this XGBoost's exact trees take too long
MAX_APPROX_CELLS = 10_000_000  # likewise for approximate ones
MAX_NARROW_COLUMNS = 200
MAX_ROUNDS = 1000
MAX_HISTOGRAM = 2**19  # bins times leaves of a tree: more takes too long
PATIENCE = 40  # rounds without a lower log loss that end a fit
WINDOWS_DAYS = (7, 14, 28, 56)  # of recent training rows, where the rows span more
ALL_DAYS = 0
ESTIMATED = "estimated"
DEFAULT_PARAMS: XGBoostParams = {
    "tree_method": "hist",
    "max_bin": 4096,  # with 256, no tree can cut at an amount that decides
    "base_score": 0.5,  # from an estimated one, rare fraud's small Hessians allow few splits
    "max_depth": 5,
    "learning_rate": 0.03,
    "n_estimators": 300,
    "subsample": 0.7,
    "colsample_bytree": 1.0,
    "colsample_bynode": 0.4,
    "min_child_weight": 1.0,
    "reg_lambda": 1.0,
    "gamma": 0.0,
    "window_days": ALL_DAYS,
}
# The first trials of a search, as changes of the defaults; later ones learn from them.
FIRST_TRIALS: tuple[XGBoostParams, ...] = (
    {},
    {"learning_rate": 0.05, "subsample": 0.8, "colsample_bytree": 0.8, "colsample_bynode": 1.0},
    {"max_depth": 4},
    {"max_bin": 16384, "subsample": 0.5, "colsample_bytree": 0.5, "colsample_bynode": 1.0},
    {"max_depth": 7, "min_child_weight": 10.0},
    {"base_score": ESTIMATED, "max_depth": 4, "learning_rate": 0.1},
    {"window_days": 14},
    {"tree_method": "exact"},
    {"max_bin": 256, "max_depth": 6},
)


class TrainingRows(NamedTuple):
    """N labelled rows to fit trees or a baseline on. Some validate its settings first."""

    columns: Array  # [N, D] numbers, then categorical codes; NaN is missing
    labels: Array  # [N]
    customers: Array  # [N] keys
    days: Array  # [N] time of the transaction
    is_validation: Array  # [N] bool
    margins: Array | None = None  # [N] log odds that trees start from; None for the same for all

    def take(self, rows: Array) -> TrainingRows:
        """Some of the rows, by index or mask."""
        taken = {name: part[rows] for name, part in self._asdict().items() if part is not None}
        return TrainingRows(**taken)

    def make_matrix(self, n_threads: int) -> Any:
        """The rows for XGBoost."""
        xgboost = import_extra("xgboost", "XGBoost")
        given = {} if self.margins is None else {"base_margin": self.margins}
        return xgboost.DMatrix(self.columns, self.labels, nthread=n_threads, **given)


@dataclass(frozen=True)
class Trial:
    """Parameters of XGBoost and their average precision on validation rows, if searched."""

    params: XGBoostParams
    value: float | None = None


class SearchSpace(NamedTuple):
    """What a search may try."""

    tree_methods: tuple[str, ...]
    windows_days: tuple[int, ...]
    is_wide: bool = False  # so many columns that fine bins take long

    @classmethod
    def of(cls, rows: TrainingRows) -> SearchSpace:
        """Tree methods that are fast enough for these rows, and windows shorter than they span."""
        limits = {"approx": MAX_APPROX_CELLS, "exact": MAX_EXACT_CELLS}
        methods = (method for method, limit in limits.items() if rows.columns.size <= limit)
        days = rows.days[~rows.is_validation]
        windows = (window for window in WINDOWS_DAYS if window < days.max() - days.min())
        is_wide = rows.columns.shape[1] > MAX_NARROW_COLUMNS
        return cls(("hist", *methods), (ALL_DAYS, *windows), is_wide)

    def list_first(self) -> list[XGBoostParams]:
        """The first trials that are in the space; in wide tables those with few bins first."""
        trials = [{**DEFAULT_PARAMS, **changes} for changes in FIRST_TRIALS]
        if self.is_wide:
            trials.sort(key=lambda one: int(one["max_bin"]))
        inside = {"tree_method": self.tree_methods, "window_days": self.windows_days}
        return [one for one in trials if all(one[name] in inside[name] for name in inside)]

    def propose(self, trial: Any) -> XGBoostParams:
        """The parameters of an Optuna trial, except the number of rounds."""
        choose, draw = trial.suggest_categorical, trial.suggest_float
        depth = trial.suggest_int("max_depth", 3, 9)
        n_bins = choose("max_bin", (256, 1024, 4096, 16384))
        return {
            "tree_method": choose("tree_method", self.tree_methods),
            "max_bin": min(n_bins, MAX_HISTOGRAM >> depth),
            "base_score": choose("base_score", (0.5, ESTIMATED)),
            "max_depth": depth,
            "learning_rate": draw("learning_rate", 0.03, 0.2, log=True),
            "subsample": draw("subsample", 0.4, 1.0),
            "colsample_bytree": draw("colsample_bytree", 0.3, 1.0),
            "colsample_bynode": draw("colsample_bynode", 0.3, 1.0),
            "min_child_weight": draw("min_child_weight", 0.01, 30.0, log=True),
            "reg_lambda": draw("reg_lambda", 0.01, 30.0, log=True),
            "gamma": draw("gamma", 0.0, 2.0),
            "window_days": choose("window_days", self.windows_days),
        }


def search(
    evaluate: Callable[[XGBoostParams], Trial],
    space: SearchSpace,
    n_trials: int,
    seed: int,
    path: Path | None = None,
    announce: Announce | None = None,
    deadline: float = math.inf,
) -> Trial:
    """The best of `n_trials`; the first are `FIRST_TRIALS`, and ties go to the earlier trial.

    No trial after the first starts past the `deadline`, a time of `time.monotonic`.

    Every trial seeds its own sampler, so a proposal depends only on the trials before it. Trials
    already in the file are proposed again, which takes no time, and not evaluated again.
    """
    optuna = import_extra("optuna", "the search for XGBoost's parameters")
    trials = [] if path is None else load_trials(path)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    optuna.logging.set_verbosity(verbosity)
    for first in space.list_first():
        study.enqueue_trial(first)
    for number in range(n_trials):
        if number and time.monotonic() > deadline:
            break
        own_seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(seed=own_seed, multivariate=False)
        asked = study.ask()
        params = space.propose(asked)
        # Another version of Optuna may propose something else than the file has.
        if number >= len(trials) or not trials[number].params.items() >= params.items():
            trials = [*trials[:number], evaluate(params)]
            if path is not None:
                replace_file(path, msgspec.json.format(msgspec.json.encode(trials), indent=1))
        study.tell(asked, trials[number].value)
        if announce is not None:
            announce(number + 1, n_trials, float(study.best_value))
    return max(trials[:n_trials], key=lambda one: -math.inf if one.value is None else one.value)


def evaluate_params(params: XGBoostParams, rows: TrainingRows, seed: int, n_threads: int) -> Trial:
    """Fit to the rows that do not validate; the others choose the rounds and give the value."""
    n_rounds, scores = validate_params(params, rows, seed, n_threads)
    value = float(average_precision_score(rows.labels[rows.is_validation], scores))
    return Trial({**params, "n_estimators": n_rounds}, value)


def validate_params(
    params: XGBoostParams, rows: TrainingRows, seed: int, n_threads: int
) -> tuple[int, Array]:
    """The best number of rounds, and then the scores of the validation rows."""
    fit = take_window(rows.take(~rows.is_validation), params)
    matrix = rows.take(rows.is_validation).make_matrix(n_threads)
    stopping: Any = {"evals": [(matrix, "validation")], "early_stopping_rounds": PATIENCE}
    booster = _train(params, fit, MAX_ROUNDS, seed, n_threads, verbose_eval=False, **stopping)
    n_rounds = int(booster.best_iteration) + 1
    return n_rounds, booster.predict(matrix, iteration_range=(0, n_rounds))


def take_window(rows: TrainingRows, params: XGBoostParams) -> TrainingRows:
    """The recent rows that the parameters ask for."""
    window = float(params.get("window_days", ALL_DAYS))
    return rows.take(rows.days > rows.days.max() - window) if window else rows


def trials_file(folder: Path, rows: TrainingRows, seed: int) -> Path:
    """The file for the trials of a search on exactly these rows; makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {name: part for name, part in rows._asdict().items() if part is not None}
    return folder / f"trials-{digest([seed, MAX_ROUNDS], given)[:16]}.json"


def load_trials(path: Path) -> list[Trial]:
    """The trials in a file; none if it does not exist."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Trial])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as problem:
        text = f"{path}: not the trials of a search ({problem}). Delete it to search anew"
        raise BundleError(text) from problem


def fit_booster(params: XGBoostParams, rows: TrainingRows, seed: int, n_threads: int) -> Any:
    """A booster fitted to the rows in the parameters' window."""
    n_rounds = int(params["n_estimators"])
    return _train(params, take_window(rows, params), n_rounds, seed, n_threads)


def _train(
    params: XGBoostParams, rows: TrainingRows, n_rounds: int, seed: int, n_threads: int, **more: Any
) -> Any:
    xgboost = import_extra("xgboost", "XGBoost")
    other = ("n_estimators", "window_days")
    own = {name: v for name, v in params.items() if name not in other and v != ESTIMATED}
    if own.get("tree_method") == "exact":
        for refused in ("max_bin", "colsample_bynode"):
            own.pop(refused, None)
    settings = {"objective": "binary:logistic", "nthread": n_threads, "seed": seed, **own}
    return xgboost.train(settings, rows.make_matrix(n_threads), n_rounds, **more)


def predict_booster(booster: Any, columns: Array) -> Array:
    """Probabilities of fraud [N]."""
    matrix = import_extra("xgboost", "XGBoost").DMatrix(columns)
    return np.asarray(booster.predict(matrix), np.float64)


def sample_search_rows(rows: TrainingRows, n_rows: int, seed: int) -> TrainingRows:
    """All validation rows, and about `n_rows` of the others, of whole customers."""
    fit, held_out = (np.flatnonzero(rows.is_validation == part) for part in (False, True))
    for part, name in ((fit, "rows to fit to"), (held_out, "validation rows")):
        if len(np.unique(rows.labels[part])) < 2:
            n_frauds = int(rows.labels[part].sum())
            found = f"{n_frauds} of {len(part)} {name} are fraud, and a search needs both kinds"
            raise DataError(f"{found}. Make that part larger, or search nothing (n_trials=0)")
    drawn = fit[sample_customers(rows.labels[fit], rows.customers[fit], n_rows, seed)]
    return rows.take(np.union1d(drawn, held_out))


def sample_customers(labels: Array, customers: Array, n_rows: int, seed: int) -> Array:
    """Rows of about `n_rows` / N of the customers with fraud, and of those without, in order."""
    if len(labels) <= n_rows:
        return np.arange(len(labels))
    keys, codes = np.unique(customers, return_inverse=True)
    with_fraud = np.bincount(codes, labels, len(keys)) > 0
    rng = np.random.default_rng(seed)
    drawn = np.zeros(len(keys), bool)
    for group in (np.flatnonzero(with_fraud), np.flatnonzero(~with_fraud)):
        drawn[rng.permutation(group)[: math.ceil(len(group) * n_rows / len(labels))]] = True
    return np.flatnonzero(drawn[codes])
