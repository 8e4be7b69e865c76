"""Transactions into a panel, a whole file at once or row by row, with identical bits."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import chain
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow, parse_row
from turncoat.data.schema import LABEL_DELAY_DAYS, Schema
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError, NotFittedError, check_count
from turncoat.features import batch, counterparties, history, live
from turncoat.features.chains import Chains, count_causes, pack_chains, unpack_chains
from turncoat.features.live import FeatureState
from turncoat.features.meanings import check_feature_names
from turncoat.features.plan import MAX_DELAY_DAYS, FeaturePlan
from turncoat.features.scaling import Scales, fill_columns
from turncoat.features.vocabulary import Vocabulary, encode_rows, hash_values
from turncoat.numerics.intruder import report_own_label
from turncoat.numerics.label_times import NEVER, UNKNOWN
from turncoat.panel import Panel
from turncoat.storage import BundleFormat, refuse_unreadable

FEATURE_KINDS = ("processed", "engineered")
MISSING_FLAGS = ("distinct", "all", "none")
_FIRST_TIME, _LAST_TIME = (history.NUMBERS.index(name) for name in ("first_time", "last_time"))
_SAMPLE_ROWS = 200_000  # evenly spaced fit rows for scales and missing patterns
_FORMAT = BundleFormat("features", version=6)


class FeatureRow(NamedTuple):
    """One row as a model's `step` takes it."""

    continuous: Array  # [D] float32
    categorical: Array  # [J]


class FeatureSteps(NamedTuple):
    """N live transactions."""

    states: Sequence[FeatureState]  # after each
    continuous: Array  # [N, D]
    categorical: Array  # [N, J]
    causes: Array  # [N, 9 + 4 C] of customer and C counterparties; 0 without chains
    # [N] of the customer's latest transaction in the states given, 0 for a new customer; None if
    # the features keep no history.
    last_times: Array | None
    first_times: Array | None  # [N] of the customer's first transaction, perhaps this; or None


class Features(BaseEstimator):  # type: ignore[misc]
    """Columns and causal history as features.

    `processed` features are the columns: standardised (signed log for heavy tails), categories
    coded, missing values flagged. `engineered` adds the history of each customer and of the
    schema's counterparties. No feature uses the row's own label or anything later.
    """

    def __init__(
        self,
        kind: str = "engineered",
        *,
        missing_flags: str = "distinct",
        min_count: int = 20,
        max_categories: int = 100,
        label_delay_days: float = LABEL_DELAY_DAYS,
        include: Sequence[str] | None = None,
        profile: Sequence[str] | None = None,
    ) -> None:
        """`missing_flags`: a flag per set of columns missing together, per column, or none.

        Categories on fewer than `min_count` fit rows, or beyond the `max_categories` commonest, are
        rare. Labels count from `label_delay_days` after the transaction's day on, and a transaction
        without a label counts as genuine the schema's `label_maturity_days` later. `include`
        names the features to keep, out of `feature_names` without it: a hidden Markov model often
        does better with a few good ones. `profile` names the continuous columns that chains of
        intruders compare with the customer's own past; None leaves the choice to the fit.
        """
        self.kind = kind
        self.missing_flags = missing_flags
        self.min_count = min_count
        self.max_categories = max_categories
        self.label_delay_days = label_delay_days
        self.include = include
        self.profile = profile

    def fit(self, transactions: Transactions) -> Self:
        """Learn scales, vocabularies and missing patterns from these transactions."""
        self._check_settings()
        self._check_profile(transactions.schema)
        schema, rows, n = transactions.schema, transactions.file_rows, transactions.n_rows
        labels = np.empty(0) if transactions.labels is None else transactions.labels
        known = labels[labels >= 0]
        limits = self.min_count, self.max_categories
        categories = [transactions.categories[column] for column in schema.categorical]
        draft = FeaturePlan(
            schema=schema,
            engineered=self.kind == "engineered",
            label_delay_s=float(self.label_delay_days) * history.DAY,
            base_rate=min(float(known.mean()), 0.999) if len(known) else 0.0,
            scales=Scales(*(np.ones(len(schema.continuous)) for _ in range(3))),
            flagged=(),
            vocabularies=tuple(Vocabulary.fit(column, rows, *limits) for column in categories),
        )
        _check_unique((*draft.all_continuous, *draft.all_categorical))
        sample = np.arange(0, n, -(-n // _SAMPLE_ROWS))
        engineered = np.empty((0, len(sample)))
        if draft.engineered:
            n_missing = batch.count_missing(transactions)
            engineered = batch.engineer_features(draft, transactions, n_missing)[0][:, sample]
        file_rows = rows[sample]

        def inspect(columns: slice) -> tuple[Scales, list[bytes | None]]:
            cells = batch.take_cells(transactions, columns, file_rows)
            return Scales.fit(cells), [_missing_pattern(np.isnan(column)) for column in cells]

        groups = batch.map_column_groups(schema, inspect)
        patterns = [pattern for _, some in groups for pattern in some]
        patterns += [_missing_pattern(column.codes[file_rows] < 0) for column in categories]
        scales = Scales.concatenate([*(scales for scales, _ in groups), Scales.fit(engineered)])
        flagged = self._choose_flagged(schema, patterns)
        self.plan_ = self._apply_include(replace(draft, scales=scales, flagged=flagged))
        return self

    def _check_settings(self) -> None:
        for name, allowed in (("kind", FEATURE_KINDS), ("missing_flags", MISSING_FLAGS)):
            if (choice := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} is {choice!r}; it must be one of {', '.join(allowed)}")
        for name in ("min_count", "max_categories"):
            check_count(name, getattr(self, name), 1)
        days = self.label_delay_days
        is_number = isinstance(days, int | float | np.integer | np.floating)
        if not is_number or isinstance(days, bool) or not 0 <= days <= MAX_DELAY_DAYS:
            rule = f"it must be between 0 and {MAX_DELAY_DAYS}"
            raise ConfigError(f"label_delay_days is {days!r}; {rule}")

    def _check_profile(self, schema: Schema) -> None:
        """Refuse a profile of columns that are not there."""
        if self.profile is None:
            return
        names = [] if isinstance(self.profile, str) else list(self.profile)
        if not names or not all(isinstance(name, str) for name in names):
            rule = "it must be a list of column names"
            raise ConfigError(f"profile is {self.profile!r}; {rule}, or None to choose them")
        if len(set(names)) < len(names):
            raise ConfigError(f"profile names a column twice: {', '.join(names)}")
        for name in names:
            if name not in schema.continuous:
                near = get_close_matches(name, schema.continuous, n=5, cutoff=0.4)
                problem = f"profile names {name!r}, but there is no such continuous column"
                similar = ", ".join(near or schema.continuous[:5])
                raise ConfigError(f"{problem}. Similar names are {similar}")

    def _choose_flagged(self, schema: Schema, patterns: Sequence[bytes | None]) -> tuple[str, ...]:
        """Columns that get a missing flag; under `distinct` one per set missing together."""
        flagged: dict[bytes | str, str] = {}
        columns = (*schema.continuous, *schema.categorical)
        for column, pattern in zip(columns, patterns, strict=True):
            if pattern is not None and self.missing_flags != "none":
                flagged.setdefault(pattern if self.missing_flags == "distinct" else column, column)
        return tuple(flagged.values())

    def _apply_include(self, plan: FeaturePlan) -> FeaturePlan:
        """The plan with only the included features."""
        if self.include is None:
            return plan
        if isinstance(self.include, str) or not all(isinstance(n, str) for n in self.include):
            raise ConfigError(f"include is {self.include!r}; it must be a list of feature names")
        names = (*plan.all_continuous, *plan.all_categorical)
        check_feature_names(self.include, names)
        is_kept = np.array([name in self.include for name in plan.all_continuous], dtype=bool)
        scales = plan.scales._replace(spreads=np.where(is_kept, plan.scales.spreads, 0.0))
        kept = replace(plan, scales=scales, include=tuple(self.include))
        if not kept.continuous and not kept.categorical:
            found = ", ".join(self.include) or "it is empty"
            raise ConfigError(f"no feature named by `include` varies on the fit rows: {found}")
        return kept

    @property
    def plan(self) -> FeaturePlan:
        """The fitted plan."""
        if not hasattr(self, "plan_"):
            raise NotFittedError("these features are not fitted yet. Call `fit` first")
        plan: FeaturePlan = self.plan_
        return plan

    @property
    def feature_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the continuous and of the categorical features."""
        return self.plan.continuous, self.plan.categorical

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """Sizes of a customer's record and of each counterparty's."""
        kinds = self.plan.customer_record, *self.plan.counterparty_records
        return tuple(kind.itemsize for kind in kinds)

    def add_chains(self, chains: Chains | None) -> Features:
        """Fitted features like these, with two-sided chains or, for None, without."""
        if chains is not None and not self.plan.engineered:
            raise ConfigError("chains need the features `engineered`, which keep a history")
        n_counterparties = len(self.plan.counterparties)
        if chains is not None and len(chains.compromise) not in (0, n_counterparties):
            found = f"chains of {len(chains.compromise)} counterparties"
            raise ConfigError(f"{found} for features with {n_counterparties}. Give one for each")
        other: Features = clone(self)
        other.plan_ = replace(self.plan, chains=chains)
        return other

    def transform(self, transactions: Transactions, rows: ArrayLike | None = None) -> Panel:
        """A panel of the transactions, or only of `rows` with the others as their history."""
        plan = self.plan
        if transactions.schema != plan.schema:
            found = f"{transactions.source}: read with schema {transactions.schema.name!r}"
            rule = f"the features were fitted with {plan.schema.name!r}"
            raise DataError(f"{found}, but {rule}. Read it with the same schema")
        chosen = np.arange(transactions.n_rows) if rows is None else transactions.row_indices(rows)
        part = transactions.take(chosen)
        targets = np.full(transactions.n_rows, -1, np.int64)
        targets[chosen] = np.arange(len(chosen))
        continuous = np.empty((len(chosen), len(plan.continuous)), np.float32)
        categorical = np.empty((len(chosen), len(plan.all_categorical)), plan.code_type)
        panel = continuous, categorical
        n_missing = batch.fill_raw(plan, transactions, targets, panel)
        pairs = zip(plan.schema.categorical, plan.vocabularies, strict=True)
        for j, (column, vocabulary) in enumerate(pairs):
            codes = vocabulary.encode(transactions.categories[column])
            n_missing += codes[transactions.file_rows] < 0
            categorical[:, j] = codes[part.file_rows]
        for j, flag in zip(*plan.flagged_categorical, strict=True):
            categorical[:, flag] = categorical[:, j] < 0
        causes = None
        if plan.engineered:
            values, codes, every = batch.engineer_features(plan, transactions, n_missing)
            fill_columns(values, targets, plan.layouts[1], panel, n_missing)
            categorical[:, plan.first_engineered :] = codes[:, chosen].T
            if plan.chains is not None:
                causes = np.ascontiguousarray(every[:, chosen].T)
        if plan.include is not None:
            categorical = categorical[:, plan.kept_categorical]
        return Panel.from_arrays(
            continuous=continuous,
            categorical=categorical,
            lengths=np.diff(part.offsets),
            labels=part.labels,
            customers=part.keys,
            times=part.times,
            ids=part.ids,
            n_categories=plan.n_categories,
            causes=causes,
        )

    def step(
        self,
        state: FeatureState | None,
        row: Mapping[str, Any] | TransactionRow,
        *,
        label_follows: bool = True,
    ) -> tuple[FeatureState, FeatureRow]:
        """One live transaction: the state after it, and its features.

        `row` maps column names to values; absent columns are missing. A row older than the state
        counts as now. With `label_follows=False` the transaction never counts as genuine, unless
        `report_label` says so.
        """
        parsed = row if isinstance(row, TransactionRow) else parse_row(self.plan.schema, row)
        one = [state or FeatureState()], [parsed], [UNKNOWN if label_follows else NEVER]
        steps = self.step_batch(*one)
        return steps.states[0], FeatureRow(steps.continuous[0], steps.categorical[0])

    def step_batch(
        self,
        states: Sequence[FeatureState],
        rows: Sequence[TransactionRow],
        labels: Sequence[int],
        previous: Array | None = None,
    ) -> FeatureSteps:
        """`step` for N transactions in order.

        Labels are 0, 1, UNKNOWN or NEVER; they affect later rows only.
        `previous` [N, 1 + C] gives the earlier row of the same customer and of each of the same C
        counterparties, whose record the row continues instead of its own state; -1 is none.
        """
        plan, n = self.plan, len(rows)
        continuous = np.empty((n, len(plan.continuous)), np.float32)
        categorical = np.empty((n, len(plan.all_categorical)), plan.code_type)
        if n_categorical := len(plan.vocabularies):
            codes = encode_rows(plan.vocabularies, (row.categories for row in rows))
            categorical[:, :n_categorical] = codes
        hashes = hash_values([*chain.from_iterable(row.tracked for row in rows)])
        n_counterparties = len(plan.counterparties)
        names = [name is not None for row in rows for name in row.counterparties]
        is_named = np.array(names if n_counterparties else [], bool).reshape(n, n_counterparties)
        live_rows = live.LiveRows(
            cells=np.array([row.numbers for row in rows]).reshape(n, len(plan.schema.continuous)),
            hashes=np.array(hashes, np.uint32).reshape(n, -1),
            times=np.array([row.time for row in rows]),
            clocks=np.array([row.time + row.utc_offset for row in rows]),
            labels=np.array(labels, dtype=np.int8),
            is_named=is_named,
            previous=np.full((n, 1 + n_counterparties), -1) if previous is None else previous,
        )
        records = live.unpack_states(plan, states if plan.engineered else [FeatureState()] * n)
        last_times = records.numbers[:, _LAST_TIME].copy() if plan.engineered else None
        causes = np.zeros((n, count_causes(n_counterparties)))
        live.advance_rows(live_rows, records, plan.live_layout, (continuous, categorical, causes))
        after = states
        if plan.engineered:
            after = live.pack_states(plan, records, states, is_named)
        if plan.include is not None:
            categorical = np.ascontiguousarray(categorical[:, plan.kept_categorical])
        first_times = records.numbers[:, _FIRST_TIME].copy() if plan.engineered else None
        return FeatureSteps(after, continuous, categorical, causes, last_times, first_times)

    def report_label(
        self,
        counterparty: str,
        record: bytes | None,
        time: float,
        label: int,
        earlier: int = UNKNOWN,
        explained: float = 0.0,
    ) -> bytes:
        """The record of a counterparty once the label, 0 or 1, of its transaction is known.

        `counterparty` is its column, `time` the transaction's in seconds; for one that came late,
        the latest time in the record then. `earlier` is the label that it had so far: UNKNOWN,
        NEVER, or 0 or 1 for a correction. `explained` is how far other causes explained it when it
        was scored (`chains.explain_labels`).
        """
        plan = self.plan
        if counterparty not in plan.counterparties or record is None:
            problem = f"these features keep no record of the counterparty {counterparty!r}"
            raise DataError(f"{problem}, so no label can be reported to it")
        if label not in (0, 1):
            raise DataError(f"the label is {label!r}; it must be 1 for fraud or 0 for genuine")
        place = plan.counterparties.index(counterparty)
        records = live.unpack_counterparty(plan, place, [record])
        last = float(records.numbers[0, history.NUMBERS.index("last_time")])
        if not (isinstance(time, int | float | np.number) and -np.inf < time <= last):
            problem = f"this counterparty's latest transaction was at {last}"
            remedy = "Give the time of the transaction"
            raise DataError(f"a label was reported at {time!r} seconds, but {problem}. {remedy}")
        about = plan.risk_rules[place], time, label, earlier, float(explained)
        counterparties.report_label(records.risk[0], records.compromise[0], *about)
        return live.pack_counterparty(plan, place, records)[0]

    def report_own_label(
        self, state: FeatureState, time: float, label: int, n_later: int = 0
    ) -> FeatureState:
        """The state after the label, 0 or 1, of the customer's own transaction at `time` is known.

        `time` is in seconds; for a transaction that came late, the latest time in the state then.
        `n_later` counts the customer's transactions with the same time that came after it. A later
        label replaces an earlier one. Nothing changes without a chain of intruders, or if the
        transaction is no longer among the latest that the record keeps.
        """
        plan = self.plan
        if label not in (0, 1):
            raise DataError(f"the label is {label!r}; it must be 1 for fraud or 0 for genuine")
        if not isinstance(time, int | float | np.number):
            raise DataError(f"the time is {time!r}; it must be the transaction's, in seconds")
        if plan.chains is None or plan.chains.intruder is None or state.customer is None:
            return state
        records = live.unpack_states(plan, [FeatureState(state.customer)])
        chain, numbers = plan.chains.intruder.tables, records.intruder[0]
        if not report_own_label(numbers, time, n_later, label, chain, plan.label_times):
            return state
        is_named = np.zeros((1, len(plan.counterparties)), np.bool_)
        return live.pack_states(plan, records, [state], is_named)[0]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the fitted features into a folder; `load_features` reads them."""
        _FORMAT.save(folder, *pack_features(self))


def load_features(folder: str | os.PathLike[str]) -> Features:
    """Read saved features; raises `BundleError` if they are damaged."""
    content, arrays = _FORMAT.load(folder)
    with refuse_unreadable(folder, "features"):
        return unpack_features(content, arrays, str(folder))


def pack_features(features: Features) -> tuple[dict[str, Any], dict[str, Array]]:
    """Fitted features as plain content and arrays."""
    plan, settings = features.plan, features.get_params(deep=False)
    include = None if features.include is None else list(features.include)
    profile = None if features.profile is None else list(features.profile)
    fitted = {field.name: getattr(plan, field.name) for field in fields(plan)}
    arrays = fitted.pop("scales")._asdict()
    chains, own = pack_chains(fitted.pop("chains"))
    fitted["chains"], arrays = chains, arrays | own
    content = msgspec.to_builtins(fitted | {"schema": plan.schema.to_dict()})
    return {"settings": {**settings, "include": include, "profile": profile}, **content}, arrays


def unpack_features(content: dict[str, Any], arrays: dict[str, Array], source: str) -> Features:
    """Features from the result of `pack_features`; raises if the content is invalid."""
    features = Features(**content["settings"])
    include = content["include"]
    features.plan_ = FeaturePlan(
        schema=Schema.from_dict(content["schema"], source=source),
        engineered=content["engineered"] is True,
        label_delay_s=float(content["label_delay_s"]),
        base_rate=float(content["base_rate"]),
        scales=Scales(*(arrays[name] for name in Scales._fields)),
        flagged=msgspec.convert(content["flagged"], tuple[str, ...]),
        include=None if include is None else msgspec.convert(include, tuple[str, ...]),
        vocabularies=msgspec.convert(content["vocabularies"], tuple[Vocabulary, ...]),
        chains=unpack_chains(content["chains"], arrays),
    )
    features.plan_.check()
    return features


def _check_unique(names: Sequence[str]) -> None:
    """Refuse a column of the file with the name of an engineered feature."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        found = f"columns {', '.join(map(repr, twice))} have the names of engineered features"
        remedy = "Rename them, leave them out of the schema, or use the features `processed`"
        raise ConfigError(f"{found}. {remedy}")


def _missing_pattern(is_missing: Array) -> bytes | None:
    """Which rows lack a value, as bits; None if all or none do."""
    varies = is_missing.any() and not is_missing.all()
    return np.packbits(is_missing).tobytes() if varies else None
