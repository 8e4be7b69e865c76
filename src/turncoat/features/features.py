"""Transactions into a panel, a whole file at once or one row at a time: the same compiled code, the same bits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.data.schema import Schema
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError, NotFittedError
from turncoat.features import counterparties, history
from turncoat.features.batch import (
    all_facts,
    count_missing,
    fill_facts,
    fill_raw,
    in_groups,
    raw_cells,
)
from turncoat.features.live import LiveRows, take_rows
from turncoat.features.plan import MAX_DELAY_DAYS, FeaturePlan
from turncoat.features.scaling import Scales
from turncoat.features.state import (
    FeatureState,
    counterparty_bytes,
    customer_bytes,
    pack,
    spelled_hashes,
    unpack,
)
from turncoat.features.vocabulary import Vocabulary, codes_of
from turncoat.panel import Panel

FEATURE_KINDS = ("processed", "engineered")
FLAGS = ("distinct", "all", "none")
_SAMPLE_ROWS = 200_000  # evenly spaced fit rows that scales and missing patterns are taken from


class FeatureRow(NamedTuple):
    """One row as a model's `step` takes it."""

    continuous: Array  # [D] float32
    categorical: Array  # [J]


class Features(BaseEstimator):  # type: ignore[misc]
    """Columns and causal history as features.

    `processed` is the columns themselves: signed log where tails are heavy, standardised, names coded, absence flagged.
    `engineered` adds running facts of each customer and, where the schema has one, of the counterparty. Nothing uses a row's
    own label or anything later.
    """

    def __init__(
        self,
        kind: str = "engineered",
        *,
        missing_flags: str = "distinct",
        min_count: int = 20,
        max_categories: int = 100,
        label_delay_days: float = 7.0,
        include: Sequence[str] | None = None,
    ) -> None:
        """`missing_flags`: one flag for all columns absent on the same rows (`distinct`), one each (`all`) or `none`.

        A name on fewer than `min_count` fit rows, or beyond the `max_categories` commonest, is rare. Labels are taken to be known
        `label_delay_days` after the day of the transaction. `include` names the features to keep, of those that `names` lists without it:
        a hidden Markov model often does better with a few good ones.
        """
        self.include = include
        self.kind = kind
        self.missing_flags = missing_flags
        self.min_count = min_count
        self.max_categories = max_categories
        self.label_delay_days = label_delay_days

    def fit(self, transactions: Transactions) -> Self:
        """Learn scales, vocabularies and missing patterns from these transactions and no others."""
        self._check_settings()
        schema, engineered = transactions.schema, self.kind == "engineered"
        labels = transactions.labels
        rate = 0.0 if labels is None else min(float(labels.mean()), 0.999)
        draft = FeaturePlan(
            schema=schema,
            engineered=engineered,
            label_delay_s=self.label_delay_s,
            base_rate=rate,
            scales=Scales(*(np.ones(len(schema.continuous)) for _ in range(3))),
            flagged=(),
            vocabularies=tuple(
                Vocabulary.of(
                    transactions.categories[column],
                    transactions.file_rows,
                    self.min_count,
                    self.max_categories,
                )
                for column in schema.categorical
            ),
        )
        _refuse_twice((*draft.every_continuous, *draft.every_categorical))
        step = -(-transactions.n_rows // _SAMPLE_ROWS)
        sample = np.arange(0, transactions.n_rows, step)
        facts = (
            all_facts(draft, transactions, count_missing(transactions))[0][:, sample]
            if engineered
            else np.empty((0, len(sample)))
        )
        places = transactions.file_rows[sample]

        def look(columns: slice) -> tuple[Scales, list[bytes | None]]:
            cells = raw_cells(transactions, columns, places)
            return Scales.of(cells), [_pattern(np.isnan(column)) for column in cells]

        looks = in_groups(schema, look)
        patterns = [pattern for _, part in looks for pattern in part]
        patterns += [
            _pattern(transactions.categories[column].codes[places] < 0)
            for column in schema.categorical
        ]
        scales = Scales.joined([*(scales for scales, _ in looks), Scales.of(facts)])
        self.plan_ = self._asked(
            replace(draft, scales=scales, flagged=self._flagged(schema, patterns))
        )
        return self

    def _asked(self, plan: FeaturePlan) -> FeaturePlan:
        """The plan with only the features that are wanted."""
        if self.include is None:
            return plan
        if isinstance(self.include, str) or not all(isinstance(name, str) for name in self.include):
            raise ConfigError(
                f"include is {self.include!r}; it must be a list of names of features"
            )
        every = (*plan.every_continuous, *plan.every_categorical)
        for name in self.include:
            if name not in every:
                near = get_close_matches(name, every, n=5, cutoff=0.4) or every[:5]
                raise ConfigError(
                    f"include names {name!r}, and there is no such feature. Near it are {', '.join(near)}"
                )
        wanted = np.array([name in self.include for name in plan.every_continuous], dtype=bool)
        scales = replace(plan.scales, spreads=np.where(wanted, plan.scales.spreads, 0.0))
        chosen = replace(plan, scales=scales, include=tuple(self.include))
        if not chosen.continuous and not chosen.categorical:
            raise ConfigError(
                f"none of the features that `include` names varies on the fit part: {', '.join(self.include) or 'it is empty'}"
            )
        return chosen

    @property
    def label_delay_s(self) -> float:
        """Seconds from the end of a transaction's day until its label is taken to be known."""
        return float(self.label_delay_days) * history.DAY

    def _check_settings(self) -> None:
        for name, choice, allowed in (
            ("kind", self.kind, FEATURE_KINDS),
            ("missing_flags", self.missing_flags, FLAGS),
        ):
            if choice not in allowed:
                raise ConfigError(f"{name} is {choice!r}; it must be one of {', '.join(allowed)}")
        for name, value in (("min_count", self.min_count), ("max_categories", self.max_categories)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least 1")
        days = self.label_delay_days
        if (
            not isinstance(days, int | float | np.integer | np.floating)
            or isinstance(days, bool)
            or not 0 <= days <= MAX_DELAY_DAYS
        ):
            raise ConfigError(
                f"label_delay_days is {self.label_delay_days!r}; it must be between 0 and {MAX_DELAY_DAYS}"
            )

    def _flagged(self, schema: Schema, patterns: Sequence[bytes | None]) -> tuple[str, ...]:
        """Columns whose absence becomes a feature: absent on some rows, and under `distinct` not on the same rows as an earlier one."""
        flagged: dict[bytes | str, str] = {}
        for column, pattern in zip(
            (*schema.continuous, *schema.categorical), patterns, strict=True
        ):
            if pattern is not None and self.missing_flags != "none":
                flagged.setdefault(pattern if self.missing_flags == "distinct" else column, column)
        return tuple(flagged.values())

    @property
    def plan(self) -> FeaturePlan:
        """What fitting found out."""
        if not hasattr(self, "plan_"):
            raise NotFittedError("these features are not fitted yet. Call `fit` first")
        plan: FeaturePlan = self.plan_
        return plan

    def transform(self, transactions: Transactions, rows: ArrayLike | None = None) -> Panel:
        """A panel of the transactions or, given `rows`, of these among them with the others as their history."""
        plan = self.plan
        if transactions.schema != plan.schema:
            raise DataError(
                f"{transactions.source}: read with schema {transactions.schema.name!r}, and the features were fitted with "
                f"{plan.schema.name!r}. Read it with the same schema"
            )
        chosen = np.arange(transactions.n_rows) if rows is None else transactions.row_indices(rows)
        part = transactions.take(chosen)
        targets = np.full(transactions.n_rows, -1, np.int64)
        targets[chosen] = np.arange(len(chosen))
        continuous = np.empty((len(chosen), len(plan.continuous)), np.float32)
        categorical = np.empty((len(chosen), len(plan.every_categorical)), plan.code_type)
        n_missing = fill_raw(plan, transactions, targets, continuous, categorical)
        for j, (column, vocabulary) in enumerate(
            zip(plan.schema.categorical, plan.vocabularies, strict=True)
        ):
            codes = vocabulary.encode(transactions.categories[column])
            n_missing += codes[transactions.file_rows] < 0
            categorical[:, j] = codes[part.file_rows]
        for j, flag in zip(*plan.flagged_names, strict=True):
            categorical[:, flag] = categorical[:, j] < 0
        if plan.engineered:
            facts, codes = all_facts(plan, transactions, n_missing)
            fill_facts(plan, facts, targets, continuous)
            categorical[:, plan.first_fact :] = codes[:, chosen].T
        return Panel.from_arrays(
            continuous=continuous,
            categorical=categorical if plan.include is None else categorical[:, plan.asked],
            lengths=np.diff(part.offsets),
            labels=part.labels,
            customers=part.keys,
            times=part.times,
            ids=part.ids,
            n_categories=plan.n_categories,
        )

    def step(
        self,
        state: FeatureState | None,
        row: Mapping[str, Any] | TransactionRow,
        *,
        label_follows: bool = True,
    ) -> tuple[FeatureState, FeatureRow]:
        """One transaction, live: the records after it, and its features. `row` maps column names to values; absent is missing.

        A row that is older than the records counts as now. Where no label will be reported, say so with `label_follows=False`, or the
        transaction counts as genuine once its label is due.
        """
        given = row if isinstance(row, TransactionRow) else parse_row(self.plan.schema, row)
        states, continuous, categorical = self.step_batch(
            [state or FeatureState()], [given], [label_follows]
        )
        return states[0], FeatureRow(continuous[0], categorical[0])

    def step_batch(
        self,
        states: Sequence[FeatureState],
        rows: Sequence[TransactionRow],
        label_follows: Sequence[bool],
        previous: Array | None = None,
    ) -> tuple[Sequence[FeatureState], Array, Array]:
        """`step` for transactions in order: the records after each, features [N, D] and [N, J].

        Where some are of one customer, or of one counterparty, `previous` [N, 2] names the transaction before each of them, whose records
        it goes on from; its own state there is not looked at. -1 is none.
        """
        plan = self.plan
        continuous = np.empty((len(rows), len(plan.continuous)), np.float32)
        categorical = np.empty((len(rows), len(plan.every_categorical)), plan.code_type)
        if n_names := len(plan.vocabularies):
            categorical[:, :n_names] = codes_of(plan.vocabularies, (row.categories for row in rows))
        given = LiveRows(
            cells=np.array([row.numbers for row in rows]).reshape(len(rows), plan.n_raw),
            hashes=np.array(
                spelled_hashes([*chain.from_iterable(row.tracked for row in rows)]), np.uint32
            ).reshape(len(rows), -1),
            times=np.array([row.time for row in rows]),
            label_follows=np.array(label_follows, dtype=bool),
            has_counterparty=np.array([row.counterparty is not None for row in rows], dtype=bool),
            previous=np.full((len(rows), 2), -1) if previous is None else previous,
        )
        records = unpack(plan, states if plan.engineered else [FeatureState()] * len(states))
        take_rows(given, records, plan.live_layout, continuous, categorical)
        after = (
            pack(plan, records, states, given.has_counterparty.tolist())
            if plan.engineered
            else states
        )
        return (
            after,
            continuous,
            categorical
            if plan.include is None
            else np.ascontiguousarray(categorical[:, plan.asked]),
        )

    def report_fraud(self, state: FeatureState, time: float) -> FeatureState:
        """The counterparty's record after the news that its transaction at `time` (seconds) was fraud; genuine ones need no report."""
        plan = self.plan
        if not plan.has_counterparty or state.counterparty is None:
            raise DataError(
                "these features keep no record of a counterparty for this state; there is nothing to report fraud to"
            )
        records = unpack(plan, [FeatureState(None, state.counterparty)])
        last = counterparties.last_time(records.counterparty_numbers[0])
        if not (isinstance(time, int | float | np.number) and -np.inf < time <= last):
            raise DataError(
                f"fraud was reported at {time!r} seconds, and this counterparty's latest transaction was at {last}. Give its time"
            )
        counterparties.report_fraud(records.counterparty_risk[0], time)
        return FeatureState(state.customer, pack(plan, records, [state], [True])[0].counterparty)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted features into a folder of their own; `turncoat.features.load_features` reads them."""
        from turncoat.features.storage import save_features

        save_features(self, folder)

    @property
    def state_bytes(self) -> tuple[int, int]:
        """Bytes of a customer's record and of a counterparty's."""
        plan = self.plan
        return customer_bytes(plan), counterparty_bytes(plan)

    @property
    def feature_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the continuous and of the categorical features."""
        plan = self.plan
        return plan.continuous, plan.categorical


def _refuse_twice(names: Sequence[str]) -> None:
    """Refuse a column of the file that has the name of a fact."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"the column {twice[0]!r} has the name of a feature that is made of the history. Rename it, leave it out of the schema, "
            "or use the features `processed`"
        )


def _pattern(absent: Array) -> bytes | None:
    """Which rows lack a value; None if all or none do."""
    return np.packbits(absent).tobytes() if absent.any() and not absent.all() else None
