"""A small portfolio with a planted fraud regime, and its sweep."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import polars as pl

from turncoat import BaumWelchHMM, VariationalHMM
from turncoat.data import Schema, Transactions, read
from turncoat.data.splits import DAY, Split, split_by_customer
from turncoat.features import Features
from turncoat.selection import Sweep, sweep

SCHEMA = Schema(
    customer=("who",),
    time="at",
    continuous=("paid", "age"),
    categorical=("device",),
    amount="paid",
    label="fraud",
    id="id",
    counterparties=("shop",),
)
ORDERS = (2, 3, 4)


def frame(n_customers: int = 60, per_customer: int = 18, seed: int = 0) -> pl.DataFrame:
    """Payments of 90 days; every fourth customer has six large frauds at a few bad shops."""
    rng = np.random.default_rng(seed)
    burst = np.arange(n_customers) % 4 == 0
    who = np.concatenate(
        [np.repeat(np.arange(n_customers), per_customer), np.repeat(np.flatnonzero(burst), 6)]
    )
    fraud = np.arange(len(who)) >= n_customers * per_customer
    begins = np.repeat(rng.uniform(5 * DAY, 85 * DAY, burst.sum()), 6) + np.tile(
        np.arange(6) * 900.0, burst.sum()
    )
    at = np.concatenate([rng.uniform(0, 90 * DAY, n_customers * per_customer), begins])
    return pl.DataFrame(
        {
            "id": np.arange(len(who)),
            "who": [f"c{k:03d}" for k in who],
            "at": at,
            "paid": np.exp(rng.normal(3.0 + 2.0 * fraud, 0.7)),
            "age": np.where(rng.random(len(who)) < 0.1, np.nan, rng.normal(40, 12, len(who))),
            "device": np.where(rng.random(len(who)) < 0.05 + 0.8 * fraud, "emulator", "phone"),
            "shop": [
                f"s{k}"
                for k in np.where(
                    fraud, rng.integers(0, 3, len(who)), rng.integers(0, 12, len(who))
                )
            ],
            "fraud": fraud.astype(int),
        }
    )


@cache
def portfolio() -> tuple[Transactions, Split]:
    transactions = read(frame(), SCHEMA)
    return transactions, customer_split(transactions)


def customer_split(transactions: Transactions) -> Split:
    return split_by_customer(
        transactions.customer_codes, transactions.times, transactions.labels, selection=0.3
    )


def baum_welch(**settings: Any) -> BaumWelchHMM:
    return BaumWelchHMM(2, **{"n_restarts": 1, "max_iter": 12, **settings})


def variational(**settings: Any) -> VariationalHMM:
    return VariationalHMM(2, **{"n_restarts": 1, "max_iter": 12, **settings})


def swept(
    transactions: Transactions | None = None, split: Split | None = None, **settings: Any
) -> Sweep:
    """The sweep of the portfolio, or of other transactions, with what is said otherwise."""
    if transactions is None:
        transactions, split = portfolio()
    chosen = {
        "model": baum_welch(),
        "features": Features(min_count=5),
        "orders": ORDERS,
        **settings,
    }
    return sweep(transactions, customer_split(transactions) if split is None else split, **chosen)


@cache
def reference(tier: str = "baum-welch") -> Sweep:
    return swept(model=baum_welch() if tier == "baum-welch" else variational())


def assert_same(one: Sweep, other: Sweep) -> None:
    """Equal to the last bit: figures, parameters, reports."""
    assert one.frame().equals(other.frame(), null_equal=True)
    assert one.choose() == other.choose()
    assert list(one.fits) == list(other.fits)
    for k, fit in one.fits.items():
        assert_same_arrays(fit.model.params_, other.models[k].params_)
        assert_same_arrays(fit.held_out, other.fits[k].held_out)
        assert_same_arrays(fit.in_sample, other.fits[k].in_sample)
        assert fit.model.get_params(deep=False) == other.models[k].get_params(deep=False)
        assert fit.model.lower_bound_ == other.models[k].lower_bound_
        assert fit.model.fit_report_.history == other.models[k].fit_report_.history


def assert_same_arrays(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for name, value in vars(one).items():
        for a, b in zip(
            *((v if isinstance(v, tuple) else (v,)) for v in (value, getattr(other, name))),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b, err_msg=name)


def same_params(one: Sweep, other: Sweep) -> bool:
    return all(
        np.array_equal(model.params_.means, other.models[k].params_.means)
        for k, model in one.models.items()
    )


def changed(rows: np.ndarray, **columns: pl.Expr) -> tuple:
    """The portfolio with other values on some of its transactions."""
    transactions, split = portfolio()
    is_changed = pl.col("id").is_in(transactions.ids[rows].tolist())
    made = frame().with_columns(
        [
            pl.when(is_changed).then(e).otherwise(pl.col(name)).alias(name)
            for name, e in columns.items()
        ]
    )
    return read(made, SCHEMA), split
