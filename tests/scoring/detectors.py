"""Detectors for the scoring tests, a live service, and the forward pass written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import xgboost
from scipy.special import logsumexp

from tests.features.sample_data import (
    SHOP,
    Data,
    Due,
    at_once,
    handbook,
    ieee,
    of_frame,
    shop,
    shop_frame,
)
from tests.reference.columns import log_chain, weighted_emission
from tests.reference.enumeration import Array
from turncoat import BaumWelchHMM, Detector, Panel, VariationalHMM
from turncoat.data.categories import normalize_category
from turncoat.data.splits import Split, split_by_customer, split_by_time
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.models.boosting import BoostedTrees
from turncoat.models.neural.encoder import Encoder
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.tuning import DEFAULT_PARAMS
from turncoat.scoring import DetectorState, Score
from turncoat.scoring.rankers import build_ranker_matrix

QUICK: dict[str, Any] = {"n_restarts": 1, "max_iter": 8, "n_threads": 1}
EVERY = 10**9  # reasons
FEW = (
    "paid",
    "age",
    "since_last",
    "count_day",
    "sum_week",
    "amount_z",
    "amount_to_mean",
    "hour_habit",
    "hour_cos",
    "hour_sin",
    "n_missing",
    "counterparty_since_last",
    "counterparty_amount_z",
    "counterparty_risk_week",
    "counterparty_risk_month",
    "counterparty_known_month",
    "kind",
    "device",
    "no_age",
    "new_device",
    "changed_town",
    "weekday",
    "is_first",
    "counterparty_new_device",
)


def model_of(kind: str, n_states: int = 3, **settings: Any) -> BaumWelchHMM | VariationalHMM:
    """An unfitted model: `point`, or an emission of the variational tier."""
    if kind == "point":
        return BaumWelchHMM(n_states, **{**QUICK, **settings})
    return VariationalHMM(n_states, emission=kind, **{**QUICK, **settings})


def data_of(name: str) -> Data:
    """A shop with every kind of column, the handbook file, or hundreds of columns."""
    return {
        "shop": lambda: shop(700, 3),
        "handbook": lambda: handbook(2500, 4),
        "ieee": lambda: ieee(700, 2),
    }[name]()


def customers_split(transactions: Transactions, seed: int = 1) -> Split:
    shares = {"test": 0.2, "selection": 0.2, "calibration": 0.25}
    return split_by_customer(
        transactions.customer_codes, transactions.times, transactions.labels, seed=seed, **shares
    )


def time_split(transactions: Transactions) -> Split:
    shares = {"test": 0.15, "selection": 0.15, "calibration": 0.25}
    return split_by_time(
        transactions.customer_codes, transactions.times, transactions.labels, **shares
    )


@cache
def detector(
    data: str = "shop", kind: str = "expected-log", features: str = "engineered", **settings: Any
) -> Detector:
    """A fitted detector that tests share and must not change."""
    transactions = data_of(data).transactions
    names = ("precision", "n_states", "transitions")
    of_model = {name: settings.pop(name) for name in names if name in settings}
    few = (
        FEW if features == "engineered" and data == "shop" else None
    )  # with more, regimes are the age of shops and beliefs 0 or 1
    made = Detector(
        Features(features, min_count=4, include=few), model_of(kind, **of_model), **settings
    )
    return made.fit(transactions, time_split(transactions))


@dataclass
class Service:
    """Keeps a record for every customer and every counterparty, as a service does."""

    detector: Detector
    due: Due = at_once
    n_reasons: int = 3
    customers: dict[Any, bytes | None] = field(default_factory=dict)
    counterparties: dict[tuple[str, Any], bytes | None] = field(default_factory=dict)
    waiting: list[tuple[float, tuple[str, Any], float]] = field(default_factory=list)

    def take(
        self, customer: Any, row: dict[str, Any], time: float, is_fraud: bool = False
    ) -> Score:
        """One transaction; the frauds due by now are reported first."""
        plan = self.detector.features_.plan
        for report in [report for report in self.waiting if report[0] <= time]:
            self.waiting.remove(report)
            _, (column, name), then = report
            before = self.counterparties[column, name]
            self.counterparties[column, name] = self.detector.live.report_label(
                column, before, then, 1
            )
        names = [normalize_category(row.get(column)) for column in plan.counterparties]
        keys = list(zip(plan.counterparties, names, strict=True))
        others = tuple(self.counterparties.get(key) for key in keys)
        state = DetectorState(self.customers.get(customer), others)
        state, score = self.detector.score_one(state, row, n_reasons=self.n_reasons)
        self.customers[customer] = state.customer
        for key, record in zip(keys, state.counterparties, strict=True):
            if key[1] is not None:
                self.counterparties[key] = record
                if is_fraud:
                    self.waiting.append((self.due(time), key, time))
        return score


def replay_scores(
    made: Detector, data: Data, n_reasons: int = 3, change: Callable[[Any], Any] = dict
) -> list[Score]:
    """Live scores of all transactions, in the order of `transactions`."""
    transactions, service = data.transactions, Service(made, n_reasons=n_reasons)
    found: list[Any] = [None] * transactions.n_rows
    for i in data.live_order:
        is_fraud = transactions.labels is not None and transactions.labels[i] == 1
        row = change(data.rows[transactions.file_rows[i]])
        found[i] = service.take(
            transactions.customer_codes[i], row, transactions.times[i], is_fraud
        )
    return found


def log_terms(model: Any, panel: Panel, rows: Any = slice(None)) -> tuple[Array, Array, Array]:
    """Log initial [K], log transition before each row [N, K, K], log emission [N, K] of rows."""
    gaps_s = panel.gaps_s[rows] if model.transitions == "continuous" else None
    emission = weighted_emission(model, panel.continuous[rows], panel.categorical[rows])
    initial, moves = log_chain(model, gaps_s)
    return initial, np.broadcast_to(moves, (len(emission), *moves.shape[-2:])), emission


def forward(log_initial: Array, log_transition: Array, log_emission: Array) -> Array:
    """Log of the filtered beliefs [T, K] of one sequence."""
    found = [log_initial + log_emission[0]]
    for moves, row in zip(log_transition[1:], log_emission[1:], strict=True):
        last = found[-1] - logsumexp(found[-1])
        found.append(logsumexp(last[:, None] + moves, axis=0) + row)
    return np.array([row - logsumexp(row) for row in found])


SCORED = replace(SHOP, continuous=("paid", "age", "mine"), name="scored shop")


@cache
def scored_shop() -> Data:
    """The invented shop with a column of somebody's own scores, which know something."""
    frame = shop_frame(700, 3)
    rng = np.random.default_rng(5)
    return of_frame(
        frame.with_columns(mine=pl.Series(rng.normal(size=700) + 2.0 * frame["fraud"].to_numpy())),
        SCORED,
    )


@cache
def plain_detector(precision: str = "float64") -> Detector:
    transactions = scored_shop().transactions
    return Detector(Features(min_count=4), model_of("expected-log", precision=precision)).fit(
        transactions, time_split(transactions)
    )


@cache
def classifier(early: bool = False) -> Any:
    transactions = scored_shop().transactions
    split = time_split(transactions)
    panel = plain_detector().features_.transform(transactions)
    columns = build_ranker_matrix(panel.continuous, panel.categorical)
    settings: dict[str, Any] = {
        "n_estimators": 25,
        "max_depth": 3,
        "n_jobs": 1,
        "random_state": 0,
        "eval_metric": "logloss",
    }
    if early:
        settings |= {"early_stopping_rounds": 2, "n_estimators": 200, "learning_rate": 1.0}
    model = xgboost.XGBClassifier(**settings)
    held = [(columns[split.selection], transactions.labels[split.selection])] if early else None
    return model.fit(
        columns[split.fit], transactions.labels[split.fit], eval_set=held, verbose=False
    )


@cache
def ranked_detector(ranker: str) -> Detector:
    given = {"column": "mine", "xgboost": None, "booster": None, "early": None}[ranker]
    if given is None:
        model = classifier(ranker == "early")
        given = model.get_booster() if ranker == "booster" else model
    transactions = scored_shop().transactions
    return plain_detector().add_ranker(given, transactions, time_split(transactions))


TINY = {
    "encoder": Encoder(latent_dim=4, hidden_dim=12, max_epochs=3, device="cpu"),
    "n_restarts": 1,
    "max_iter": 8,
    "n_threads": 1,
    "progress": False,
}


@cache
def neural(
    supervision: str = "none", temperature: float | str = 2.0, transitions: str = "per-row"
) -> tuple[Detector, Data]:
    data = data_of("shop")
    made = Detector(
        Features(min_count=4),
        NeuralVariationalHMM(3, transitions=transitions, **TINY),
        supervision=supervision,
        temperature=temperature,
    )
    return made.fit(data.transactions, time_split(data.transactions)), data


TREES = BoostedTrees(params={**DEFAULT_PARAMS, "n_estimators": 25, "max_bin": 64}, n_threads=1)


@cache
def tree_detector(
    kind: str = "hybrid", supervision: str = "none", transitions: str = "per-row"
) -> Detector:
    """A fitted detector with trees, of the shop."""
    transactions = data_of("shop").transactions
    features = Features(min_count=4, include=FEW)
    model = model_of("expected-log", transitions=transitions)
    made = Detector(features, model, kind=kind, supervision=supervision, trees=TREES)
    return made.fit(transactions, time_split(transactions))
