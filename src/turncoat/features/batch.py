"""Whole files through the feature kernels: groups of columns on all processors, customers and counterparties in order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from turncoat.arrays import Array
from turncoat.data.schema import Schema
from turncoat.data.transactions import Transactions
from turncoat.features import counterparties, history
from turncoat.features.plan import FeaturePlan
from turncoat.features.scaling import fill_columns
from turncoat.features.state import name_hash
from turncoat.features.time_features import take_moments
from turncoat.numerics.engine import available_threads

T = TypeVar("T")

_GROUP_COLUMNS = 16  # a cache line of float32 cells
_NO_FLAGS = np.empty((0, 0), np.int8)


def in_groups(schema: Schema, work: Callable[[slice], T]) -> list[T]:
    """Do work on groups of the raw continuous columns, on all processors."""
    n_columns = len(schema.continuous)
    groups = [
        slice(start, min(start + _GROUP_COLUMNS, n_columns))
        for start in range(0, n_columns, _GROUP_COLUMNS)
    ]
    with ThreadPoolExecutor(available_threads()) as pool:
        return list(pool.map(work, groups))


def raw_cells(transactions: Transactions, columns: slice, places: Array) -> Array:
    """Some raw continuous columns at these places of the file [G, rows]; NaN is missing."""
    names = transactions.schema.continuous[columns]
    cells = np.empty((len(names), len(places)))
    for g, name in enumerate(names):
        np.take(
            transactions.numbers[name], places, out=cells[g], mode="clip"
        )  # which does not buffer
    return cells


def count_missing(transactions: Transactions) -> Array:
    """Number of missing cells and names of each transaction [N]."""
    numbers, names, schema = transactions.numbers, transactions.categories, transactions.schema

    def count(columns: slice) -> Array:
        total = np.zeros(transactions.n_file_rows, np.int32)
        for name in schema.continuous[columns]:
            total += np.isnan(numbers[name])
        return total

    total = np.zeros(transactions.n_file_rows, np.int32)
    for absent in (
        *in_groups(schema, count),
        *(names[column].codes < 0 for column in schema.categorical),
    ):
        total += absent
    counts: Array = total[transactions.file_rows]
    return counts


def fill_raw(
    plan: FeaturePlan,
    transactions: Transactions,
    targets: Array,
    continuous: Array,
    categorical: Array,
) -> Array:
    """Write the raw continuous columns and their missing flags; returns each row's number of missing cells."""

    def fill(columns: slice) -> Array:
        n_missing = np.zeros(transactions.n_rows, np.int32)
        fill_columns(
            raw_cells(transactions, columns, transactions.file_rows),
            targets,
            *plan.raw_columns.part(columns),
            continuous,
            categorical,
            n_missing,
        )
        return n_missing

    total = np.zeros(transactions.n_rows, np.int32)
    for n_missing in in_groups(plan.schema, fill):
        total += n_missing
    return total


def all_facts(
    plan: FeaturePlan, transactions: Transactions, n_missing: Array
) -> tuple[Array, Array]:
    """Continuous facts [F, N] and categorical ones [C, N] of every transaction, from empty records."""
    schema, places, times = transactions.schema, transactions.file_rows, transactions.times
    if schema.amount is not None:
        amounts = transactions.numbers[schema.amount][places]
    else:
        amounts = np.full(transactions.n_rows, np.nan)
    names = np.zeros((transactions.n_rows, len(schema.tracked)), np.uint32)
    for h, column in enumerate(schema.tracked):
        named = transactions.categories[column]
        names[:, h] = np.array([*map(name_hash, named.values), 0], dtype=np.uint32)[
            named.codes[places]
        ]
    facts = np.empty((len(plan.engineered_continuous), transactions.n_rows))
    codes = np.empty((len(plan.engineered_categorical), transactions.n_rows), np.int8)
    own, moment, second = plan.parts(facts, codes)
    history.replay(transactions.offsets, times, amounts, n_missing, names, *own)
    take_moments(times, n_missing, *moment)
    if plan.has_counterparty:
        who = transactions.categories[str(schema.counterparty)].codes[places]
        labels = np.empty(0, np.int8) if transactions.labels is None else transactions.labels
        order = np.lexsort((_rank(transactions.ids), times, who))
        of_counterparty = np.ascontiguousarray(names[:, plan.counterparty_names])
        rules = plan.label_delay_s, plan.base_rate, counterparties.risk_numbers(plan.label_delay_s)
        counterparties.replay_counterparties(
            order, who, times, amounts, n_missing, of_counterparty, labels, *rules, *second
        )
    return facts, codes


def _rank(ids: Array) -> Array:
    """Ids in a form that sorts as `read` sorts them."""
    return (
        ids if ids.dtype.kind in "iu" else np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    )


def fill_facts(plan: FeaturePlan, facts: Array, targets: Array, continuous: Array) -> None:
    """Write the continuous facts [F, rows], on their common scale, to the panel rows that are wanted."""
    fill_columns(
        facts,
        targets,
        *plan.fact_columns,
        continuous,
        _NO_FLAGS,
        np.zeros(facts.shape[1], np.int32),
    )
