"""Sample data for the feature tests, and a small live service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from turncoat.data.categories import normalize_category
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.data.simulators import simulate_tables
from turncoat.data.transactions import Transactions
from turncoat.features import FeatureRow, Features, FeatureState
from turncoat.panel import Panel

DAY = 86_400.0
STEP = DAY / 4  # in which labels become known
Row = dict[str, Any]
Due = Callable[[float], float]  # when the label of a transaction at this time is reported


@dataclass(frozen=True, eq=False)
class Data:
    """A file, read, and its rows as a live service gets them."""

    transactions: Transactions
    rows: list[Row]  # in file order

    @property
    def live_order(self) -> np.ndarray:
        """Transactions as they happen: by time, then id."""
        ids = self.transactions.ids
        return np.lexsort((np.argsort(np.argsort(ids)), self.transactions.times))


@cache
def ieee(n_rows: int = 1200, seed: int = 1) -> Data:
    made = simulate_tables("ieee-cis", n_rows, seed)
    frame = made["train_transaction"].join(made["train_identity"], on="TransactionID", how="left")
    return Data(
        read(made["train_transaction"], "ieee-cis", joined=made["train_identity"]), frame.to_dicts()
    )


@cache
def handbook(n_rows: int = 1500, seed: int = 3) -> Data:
    frame = simulate_tables("handbook", n_rows, seed)["transactions"]
    return Data(read(frame, "handbook"), frame.to_dicts())


SHOP = Schema(
    customer="who",
    time="at",
    continuous=("paid", "age"),
    categorical=("kind", "device"),
    amount="paid",
    label="fraud",
    id="id",
    counterparties=("shop",),
    tracked=("device", "town"),
)


def shop_frame(
    n_rows: int = 400, seed: int = 0, n_shops: int = 5, days: float = 60.0
) -> pl.DataFrame:
    """A file with missing cells, missing counterparties, ties in time and unsorted rows."""
    rng = np.random.default_rng(seed)

    def some(values: Sequence[Any], missing: float) -> list[Any]:
        return [
            None if rng.random() < missing else values[k]
            for k in rng.integers(len(values), size=n_rows)
        ]

    def cells(values: np.ndarray, missing: float) -> list[float | None]:
        return [None if rng.random() < missing else float(value) for value in values]

    return pl.DataFrame(
        {
            "who": [f"c{k}" for k in rng.integers(12, size=n_rows)],
            "at": np.floor(rng.uniform(-3 * DAY, days * DAY, n_rows) / 600) * 600,
            "paid": cells(rng.lognormal(3, 1.5, n_rows) - 2, 0.1),
            "age": cells(rng.normal(40, 12, n_rows), 0.2),
            "kind": some([404, 7, -1, 12], 0.1),
            "device": some(["phone", "tablet", "téléphone", "404.0", "desk"], 0.15),
            "town": some(["Oslo", "Zürich", "東京"], 0.2),
            "shop": some([f"s{k}" for k in range(n_shops)], 0.1),
            "fraud": (rng.random(n_rows) < 0.15).astype(int),
            "id": rng.permutation(n_rows) + 100,
        },
        schema_overrides={
            "kind": pl.Int64,
            "device": pl.String,
            "town": pl.String,
            "shop": pl.String,
            "paid": pl.Float64,
            "age": pl.Float64,
        },
    )


@cache
def shop(n_rows: int = 400, seed: int = 0) -> Data:
    return of_frame(shop_frame(n_rows, seed))


def of_frame(frame: pl.DataFrame, schema: Schema = SHOP) -> Data:
    return Data(read(frame, schema), frame.to_dicts())


def at_once(time: float) -> float:
    return time


def just_before_it_counts(delay_days: float) -> Due:
    return lambda time: (math.floor(time / STEP) + 1) * STEP + delay_days * DAY


@dataclass
class Service:
    """Stores a record per customer and counterparty, and passes each row its own."""

    features: Features
    due: Due = at_once
    told: tuple[int, ...] = (1,)  # labels that are reported
    customers: dict[Any, bytes | None] = field(default_factory=dict)
    counterparties: dict[tuple[str, Any], bytes | None] = field(default_factory=dict)
    waiting: list[tuple[float, tuple[str, Any], float, int]] = field(default_factory=list)

    def take(
        self, customer: Any, row: Mapping[str, Any], time: float, label: int = -1
    ) -> FeatureRow:
        """One transaction; the labels due by now are reported first."""
        columns = self.features.plan_.counterparties
        for report in [report for report in self.waiting if report[0] <= time]:
            self.waiting.remove(report)
            _, (column, name), then, told = report
            before = self.counterparties[column, name]
            after = self.features.report_label(column, before, then, told)
            self.counterparties[column, name] = after
        names = [normalize_category(row.get(column)) for column in columns]
        keys = list(zip(columns, names, strict=True))
        others = tuple(self.counterparties.get(key) for key in keys)
        state, found = self.features.step(FeatureState(self.customers.get(customer), others), row)
        self.customers[customer] = state.customer
        for key, record in zip(keys, state.counterparties, strict=True):
            if key[1] is not None:
                self.counterparties[key] = record
                if label in self.told:
                    self.waiting.append((self.due(time), key, time, int(label)))
        return found


def report_label(features: Features, state: FeatureState, *about: Any, **more: Any) -> FeatureState:
    """The state once a label is reported to its only counterparty."""
    (column,), (record,) = features.plan.counterparties, state.counterparties
    after = features.report_label(column, record, *about, **more)
    return FeatureState(state.customer, (after,))


def replayed(
    features: Features,
    data: Data,
    due: Due = at_once,
    change: Callable[[Row], Row] = dict,
    told: tuple[int, ...] = (1,),
) -> tuple[np.ndarray, np.ndarray]:
    """The features of every transaction as a live service finds them, one row after the other."""
    transactions, service = data.transactions, Service(features, due, told)
    found: list[Any] = [None] * transactions.n_rows
    for i in data.live_order:
        label = -1 if transactions.labels is None else transactions.labels[i]
        row = change(data.rows[transactions.file_rows[i]])
        found[i] = service.take(transactions.customer_codes[i], row, transactions.times[i], label)
    return np.stack([f.continuous for f in found]), np.stack([f.categorical for f in found])


def assert_same_bits(found: tuple[np.ndarray, np.ndarray], panel: Panel) -> None:
    continuous, categorical = found
    assert continuous.dtype == panel.continuous.dtype
    assert categorical.dtype == panel.categorical.dtype
    np.testing.assert_array_equal(continuous.view(np.int32), panel.continuous.view(np.int32))
    np.testing.assert_array_equal(categorical, panel.categorical)


def unscaled_features(features: Features, transactions: Transactions) -> dict[str, np.ndarray]:
    """Every continuous fact before it is put on the common scale."""
    from turncoat.features.batch import count_missing, engineer_features

    facts, *_ = engineer_features(features.plan_, transactions, count_missing(transactions))
    return dict(zip(features.plan_.engineered_continuous, facts, strict=True))
