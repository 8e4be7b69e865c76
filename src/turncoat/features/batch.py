"""Features of whole files: columns in parallel, customers and counterparties in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from turncoat.arrays import Array
from turncoat.data.schema import Schema
from turncoat.data.transactions import Transactions
from turncoat.features import chains, counterparties, history
from turncoat.features.plan import FeaturePlan
from turncoat.features.scaling import fill_columns
from turncoat.features.vocabulary import hash_category
from turncoat.numerics.engine import available_threads, map_parts
from turncoat.numerics.intruder import replay_intruder
from turncoat.numerics.label_times import NEVER

T = TypeVar("T")

_GROUP_COLUMNS = 16  # a cache line of float32 cells


def map_column_groups(schema: Schema, work: Callable[[slice], T]) -> list[T]:
    """Do work on groups of the raw continuous columns in parallel."""
    n, step = len(schema.continuous), _GROUP_COLUMNS
    groups = [slice(start, min(start + step, n)) for start in range(0, n, step)]
    with ThreadPoolExecutor(available_threads()) as pool:
        return list(pool.map(work, groups))


def take_cells(transactions: Transactions, columns: slice, file_rows: Array) -> Array:
    """Some raw continuous columns at these rows of the file [G, rows]; NaN is missing."""
    names = transactions.schema.continuous[columns]
    cells = np.empty((len(names), len(file_rows)))
    for g, name in enumerate(names):
        np.take(transactions.numbers[name], file_rows, out=cells[g], mode="clip")  # unbuffered
    return cells


def count_missing(transactions: Transactions) -> Array:
    """Number of missing cells and categories of each transaction [N]."""
    schema = transactions.schema

    def count(columns: slice) -> Array:
        total = np.zeros(transactions.n_file_rows, np.int32)
        for name in schema.continuous[columns]:
            total += np.isnan(transactions.numbers[name])
        return total

    total = sum(map_column_groups(schema, count), np.zeros(transactions.n_file_rows, np.int32))
    for column in schema.categorical:
        total += transactions.categories[column].codes < 0
    counts: Array = total[transactions.file_rows]
    return counts


def fill_raw(
    plan: FeaturePlan, transactions: Transactions, targets: Array, panel: tuple[Array, Array]
) -> Array:
    """Write the raw continuous columns and their missing flags; returns missing cells [N]."""

    def fill(columns: slice) -> Array:
        n_missing = np.zeros(transactions.n_rows, np.int32)
        cells = take_cells(transactions, columns, transactions.file_rows)
        fill_columns(cells, targets, plan.layouts[0].take(columns), panel, n_missing)
        return n_missing

    return sum(map_column_groups(plan.schema, fill), np.zeros(transactions.n_rows, np.int32))


def compute_causes(plan: FeaturePlan, transactions: Transactions) -> Array:
    """Outputs of the plan's chains [N, causes], without the features."""
    causes = engineer_features(plan, transactions, count_missing(transactions))[2]
    return np.ascontiguousarray(causes.T)


def compute_intruder_risk(plan: FeaturePlan, transactions: Transactions) -> Array:
    """The probability that each transaction is an intruder's [N]; 0 without such a chain."""
    causes = _replay_intruder(plan, transactions, _get_labels(transactions))
    return np.asarray(causes[chains.INTRUDER])


def engineer_features(
    plan: FeaturePlan, transactions: Transactions, n_missing: Array
) -> tuple[Array, Array, Array]:
    """Unscaled continuous [F, N] and categorical [C, N] features and causes, from empty states.

    Causes are [9 + 4 C, N] for C counterparties, all 0 for a side without a chain. A counterparty
    is told how far the intruder and the counterparties before it explain a fraud.
    """
    schema, rows, times = transactions.schema, transactions.file_rows, transactions.times
    amounts = np.full(transactions.n_rows, np.nan)
    if schema.amount is not None:
        amounts = transactions.numbers[schema.amount][rows]
    hashes = np.zeros((transactions.n_rows, len(schema.tracked)), np.uint32)
    for h, name in enumerate(schema.tracked):
        column = transactions.categories[name]
        by_code = np.array([*map(hash_category, column.values), 0], dtype=np.uint32)
        hashes[:, h] = by_code[column.codes[rows]]
    values = np.empty((len(plan.engineered_continuous), transactions.n_rows))
    codes = np.empty((len(plan.engineered_categorical), transactions.n_rows), np.int8)
    own, time, *others = plan.split_groups(values, codes)
    payments = history.Payments(times, transactions.clocks, amounts, n_missing, hashes)
    map_parts(transactions.offsets, lambda part: history.replay_customers(part, payments, *own))
    history.compute_all_time_features(payments, *time)
    labels, ids = _get_labels(transactions), transactions.ids
    causes = np.zeros((chains.count_causes(len(others)), transactions.n_rows))
    causes[: chains.N_OWN] = _replay_intruder(plan, transactions, labels)
    if not others:
        return values, codes, causes
    rank = ids if ids.dtype.kind in "iu" else np.unique(ids, return_inverse=True)[1]
    explained = causes[chains.INTRUDER].copy()
    for place, output in enumerate(others):
        who = transactions.categories[plan.counterparties[place]].codes[rows]
        order = np.lexsort((rank, times, who))
        tracked = np.ascontiguousarray(hashes[:, plan.counterparty_tracked[place]])
        data, rules = payments._replace(tracked=tracked), plan.risk_rules[place]
        found = *output, causes[chains.select_causes(place)]
        _replay_counterparties(order, who, data, labels, explained, rules, found)
    return values, codes, causes


def _get_labels(transactions: Transactions) -> Array:
    """The labels [N], as of transactions that never get one if there are none."""
    if transactions.labels is None:
        return np.full(transactions.n_rows, NEVER, np.int8)
    return transactions.labels


def _replay_intruder(plan: FeaturePlan, transactions: Transactions, labels: Array) -> Array:
    """Outputs of the intruder's chain [9, N]; 0 without one."""
    causes = np.zeros((chains.N_OWN, transactions.n_rows))
    if plan.chains is not None and plan.chains.intruder is not None:
        chain, rows = plan.chains.intruder, transactions.file_rows
        columns = np.column_stack([transactions.numbers[name][rows] for name in chain.columns])
        rest = transactions.times, columns, labels, chain.tables, plan.label_times
        scratch = causes, np.empty(columns.shape)
        map_parts(transactions.offsets, lambda part: replay_intruder(part, *rest, *scratch))
    return causes


def _replay_counterparties(order: Array, who: Array, *rest: Any) -> None:
    """`replay_counterparties` on threads, with whole counterparties each."""
    offsets = np.append(np.flatnonzero(np.diff(who[order], prepend=-2)), len(order))
    map_parts(
        offsets,
        lambda part: counterparties.replay_counterparties(order[part[0] : part[-1]], who, *rest),
    )
