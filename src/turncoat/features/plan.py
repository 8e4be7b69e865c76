"""Fitted features: everything needed to turn transactions into rows of a panel."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.schema import Schema
from turncoat.features import counterparties, history
from turncoat.features.chains import (
    Chains,
    CompromiseChain,
    count_compromise_numbers,
    list_compromise_tables,
)
from turncoat.features.counterparties import RiskRules, risk_size
from turncoat.features.scaling import ScaledColumns, Scales
from turncoat.features.vocabulary import Vocabulary
from turncoat.numerics.intruder import IntruderTables
from turncoat.numerics.label_times import LabelTimes

MAX_DELAY_DAYS = 3650


class LiveLayout(NamedTuple):
    """A plan as compiled code reads it for live rows."""

    raw: ScaledColumns
    engineered: ScaledColumns
    first_engineered: int  # index of the first categorical engineered feature
    n_categorical: int
    flagged: tuple[Array, Array]
    amount_column: int  # -1 if there is no amount
    profile_columns: Array  # indices of the columns with a profile
    tracked: tuple[Array, ...]  # see `counterparty_tracked`; an empty one without counterparties
    risk_rules: tuple[RiskRules, ...]
    intruder: IntruderTables
    label_times: LabelTimes


@dataclass(frozen=True, eq=False)
class FeaturePlan:
    """Fitted features.

    Continuous columns are the schema's, then engineered ones. Categorical columns are the schema's,
    then missing flags, then engineered ones.
    """

    schema: Schema
    engineered: bool
    label_delay_s: float
    base_rate: float  # fraud share among the fit rows with a label; 0 if unknown
    scales: Scales  # of the schema's continuous columns, then of the engineered ones
    flagged: tuple[str, ...]  # columns with a missing flag, each for all missing on the same rows
    vocabularies: tuple[Vocabulary, ...]  # of the schema's categorical columns
    include: tuple[str, ...] | None = None  # the features to keep; None for all
    chains: Chains | None = None  # two-sided chains, whose outputs are a panel's causes

    @property
    def typical_values(self) -> dict[str, Any]:
        """Average numbers and the most frequent categories, by column of the schema."""
        values: dict[str, Any] = {}
        numbers = zip(self.schema.continuous, self.scales.centres, self.scales.units, strict=False)
        for column, value, unit in numbers:
            number = math.copysign(math.expm1(abs(value)) * unit, value) if unit else value
            values[column] = float(f"{number:.6g}")
        for column, vocabulary in zip(self.schema.categorical, self.vocabularies, strict=True):
            if vocabulary.frequent:
                values.setdefault(column, vocabulary.frequent[0])
        return values

    def check(self) -> None:
        """Raise ValueError if the parts are inconsistent."""
        n_features = len(self.all_continuous)
        for array in self.scales:
            is_valid = array.shape == (n_features,) and array.dtype == np.float64
            if not is_valid or not np.isfinite(array).all():
                found = f"scales of {array.dtype} {array.shape}"
                raise ValueError(f"{found} for {n_features} continuous features")
        if (self.scales.units < 0).any() or (self.scales.spreads < 0).any():
            raise ValueError("units or spreads below 0")
        if len(set(self.flagged)) < len(self.flagged):
            raise ValueError("a column flagged twice")
        n_known, n_categorical = len(self.vocabularies), len(self.schema.categorical)
        if n_known != n_categorical:
            raise ValueError(f"{n_known} vocabularies for {n_categorical} categorical columns")
        for names, allowed, what in (
            (self.flagged, (*self.schema.continuous, *self.schema.categorical), "flagged columns"),
            (self.include or (), (*self.all_continuous, *self.all_categorical), "features"),
            (self.all_chains.profile_columns, self.schema.continuous, "profile columns"),
        ):
            if unknown := sorted(set(names) - set(allowed)):
                raise ValueError(f"unknown {what}: {', '.join(map(repr, unknown))}")
        if not 0 <= self.base_rate < 1:
            raise ValueError(f"a fraud share of {self.base_rate}")
        if not 0 <= self.label_delay_s <= MAX_DELAY_DAYS * history.DAY:
            raise ValueError(f"a label delay of {self.label_delay_s} seconds")
        if self.chains is not None:
            self.chains.expand(len(self.counterparties)).check()
            if not self.engineered:
                raise ValueError("chains without a history")

    @property
    def counterparties(self) -> tuple[str, ...]:
        """The columns of counterparties that there are features of."""
        return self.schema.counterparties if self.engineered else ()

    @property
    def counterparty_prefixes(self) -> tuple[str, ...]:
        """How the features of each counterparty start: an only one's with `counterparty`."""
        return ("counterparty",) if len(self.counterparties) == 1 else self.counterparties

    @cached_property
    def counterparty_tracked(self) -> tuple[Array, ...]:
        """For each counterparty, indices of the tracked columns other than its own."""
        columns = np.array(self.schema.tracked, dtype=object)
        return tuple(np.flatnonzero(columns != own) for own in self.counterparties)

    @cached_property
    def counterparty_groups(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Continuous and categorical features of each counterparty."""
        groups = []
        owners = zip(self.counterparty_prefixes, self.counterparty_tracked, strict=True)
        for prefix, places in owners:
            codes = history.list_categorical([self.schema.tracked[h] for h in places])
            numbers = counterparties.CONTINUOUS
            groups.append((_add_prefix(prefix, numbers), _add_prefix(prefix, codes)))
        return tuple(groups)

    @cached_property
    def _groups(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Continuous and categorical features of customer, transaction and counterparties."""
        if not self.engineered:
            return []
        own = history.CONTINUOUS, history.list_categorical(self.schema.tracked)
        time = history.TIME_CONTINUOUS, history.TIME_CATEGORICAL
        return [own, time, *self.counterparty_groups]

    @cached_property
    def growing(self) -> tuple[str, ...]:
        """Continuous features whose mean depends, for months, on how long histories are."""
        return (*history.GROWING, *self._name_all(counterparties.GROWING))

    @cached_property
    def of_labels(self) -> tuple[str, ...]:
        """Continuous features of the known labels of counterparties."""
        return self._name_all(counterparties.OF_LABELS)

    def _name_all(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Some features of every counterparty."""
        prefixes = self.counterparty_prefixes
        return tuple(chain.from_iterable(_add_prefix(prefix, names) for prefix in prefixes))

    @cached_property
    def engineered_continuous(self) -> tuple[str, ...]:
        """Names of the engineered continuous features."""
        return tuple(name for names, _ in self._groups for name in names)

    @cached_property
    def engineered_categorical(self) -> tuple[str, ...]:
        """Names of the engineered categorical features."""
        return tuple(name for _, names in self._groups for name in names)

    def split_groups(self, values: Array, codes: Array) -> list[tuple[Array, Array]]:
        """Views of the features of customer, transaction and each counterparty."""
        lengths = [[len(group[kind]) for group in self._groups] for kind in (0, 1)]
        ends = [np.cumsum(some)[:-1] for some in lengths]
        return list(zip(np.split(values, ends[0]), np.split(codes, ends[1]), strict=True))

    @property
    def all_continuous(self) -> tuple[str, ...]:
        """Names of all continuous features, also of dropped ones."""
        return (*self.schema.continuous, *self.engineered_continuous)

    @cached_property
    def all_categorical(self) -> tuple[str, ...]:
        """Names of all categorical features, also of dropped ones."""
        flags = (f"no_{column}" for column in self.flagged)
        return (*self.schema.categorical, *flags, *self.engineered_categorical)

    @cached_property
    def continuous(self) -> tuple[str, ...]:
        """Names of the panel's continuous columns."""
        pairs = zip(self.all_continuous, self.scales.kept, strict=True)
        return tuple(name for name, is_kept in pairs if is_kept)

    @cached_property
    def categorical(self) -> tuple[str, ...]:
        """Names of the panel's categorical columns."""
        return tuple(self.all_categorical[j] for j in self.kept_categorical)

    @cached_property
    def kept_categorical(self) -> Array:
        """Indices of the panel's categorical columns among all."""
        include = self.include
        return np.flatnonzero([include is None or name in include for name in self.all_categorical])

    @cached_property
    def n_categories(self) -> tuple[int, ...]:
        """Number of codes of each of the panel's categorical columns."""
        sizes = [vocabulary.size for vocabulary in self.vocabularies] + [2] * len(self.flagged)
        for name in self.engineered_categorical:
            sizes.append(history.N_WEEKDAYS if name in history.TIME_CATEGORICAL else 2)
        return tuple(sizes[j] for j in self.kept_categorical)

    @cached_property
    def code_type(self) -> np.dtype[Any]:
        """The smallest integer type that holds every code."""
        size = max((vocabulary.size for vocabulary in self.vocabularies), default=0)
        return np.dtype(np.int8 if size <= 128 else np.int16 if size <= 32768 else np.int32)

    @cached_property
    def layouts(self) -> tuple[ScaledColumns, ScaledColumns]:
        """Scales and destinations of the schema's continuous columns, and of engineered ones."""
        kept = self.scales.kept
        columns = np.where(kept, np.cumsum(kept) - 1, -1)
        flags = [self._flag_columns.get(name, -1) for name in self.all_continuous]
        layout = ScaledColumns(self.scales, columns, np.array(flags, dtype=np.int64))
        n_raw = len(self.schema.continuous)
        return layout.take(slice(n_raw)), layout.take(slice(n_raw, None))

    @cached_property
    def _flag_columns(self) -> dict[str, int]:
        """Index of each missing flag among the categorical columns."""
        return {column: len(self.vocabularies) + i for i, column in enumerate(self.flagged)}

    @cached_property
    def flagged_categorical(self) -> tuple[Array, Array]:
        """Indices of the categorical columns with a missing flag, and of their flags."""
        flags = self._flag_columns
        pairs = [(j, flags[c]) for j, c in enumerate(self.schema.categorical) if c in flags]
        columns, targets = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return columns, targets

    @property
    def first_engineered(self) -> int:
        """Index of the first engineered categorical feature."""
        return len(self.vocabularies) + len(self.flagged)

    @cached_property
    def live_layout(self) -> LiveLayout:
        """The plan for compiled code."""
        amount, numbers = self.schema.amount, self.schema.continuous
        profile = self.all_chains.profile_columns
        return LiveLayout(
            *self.layouts,
            first_engineered=self.first_engineered,
            n_categorical=len(self.vocabularies),
            flagged=self.flagged_categorical,
            amount_column=-1 if amount is None else numbers.index(amount),
            profile_columns=np.array([numbers.index(name) for name in profile], dtype=np.int64),
            tracked=self.counterparty_tracked or (np.empty(0, np.int64),),
            risk_rules=self.risk_rules or (self._make_rules(None),),
            intruder=self.all_chains.intruder_tables,
            label_times=self.label_times,
        )

    @cached_property
    def risk_rules(self) -> tuple[RiskRules, ...]:
        """What the risk of each counterparty depends on."""
        return tuple(map(self._make_rules, self.all_chains.compromise))

    def _make_rules(self, chain: CompromiseChain | None) -> RiskRules:
        times = self.label_delay_s, self.label_maturity_s
        sizes = risk_size(*times), count_compromise_numbers(chain, sum(times))
        return RiskRules(*times, self.base_rate, *sizes, list_compromise_tables(chain))

    @cached_property
    def all_chains(self) -> Chains:
        """The chain of the customer and of each counterparty, None where there is none."""
        return (self.chains or Chains()).expand(len(self.counterparties))

    @property
    def memory_rows(self) -> int:
        """Latest transactions of a customer whose labels may still become known."""
        own = self.all_chains.intruder
        return 0 if own is None else own.memory_rows

    @property
    def label_times(self) -> LabelTimes:
        """When labels count."""
        return LabelTimes(self.label_delay_s, self.label_maturity_s)

    @property
    def label_maturity_s(self) -> float:
        """Seconds after the label delay until an unlabelled transaction counts as genuine."""
        return self.schema.label_maturity_days * history.DAY

    @cached_property
    def customer_record(self) -> np.dtype[Any]:
        """How the record of a customer is stored."""
        sizes = {"intruder": self.all_chains.intruder_size}
        return _describe_record(len(self.schema.tracked), sizes)

    @cached_property
    def counterparty_records(self) -> tuple[np.dtype[Any], ...]:
        """How the record of each counterparty is stored."""
        types = []
        for rules, tracked in zip(self.risk_rules, self.counterparty_tracked, strict=True):
            sizes = {"risk": rules.size, "compromise": rules.compromise_size}
            types.append(_describe_record(len(tracked), sizes))
        return tuple(types)

    @cached_property
    def fingerprint(self) -> int:
        """A checksum that distinguishes states of different features."""
        s = self.schema
        label_times = self.label_delay_s, self.label_maturity_s
        layout = (5, history.NUMBERS, history.BLOOM_WORDS, *label_times)
        owner = s.customer, s.customer_age
        columns: tuple[Any, ...] = s.amount, s.continuous, s.categorical, s.tracked
        columns += (s.counterparties,)
        if s.converts_money:
            columns += (s.minor_units, s.currency, s.money, s.rates)
        if s.has_local_time:
            columns += (s.time_zone, s.time_zone_column)
        if self.chains is not None:
            columns += self.all_chains.layout
        return zlib.crc32(repr((layout, (*owner, *columns))).encode())


def _add_prefix(prefix: str, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


def _describe_record(n_tracked: int, sizes: dict[str, int]) -> np.dtype[Any]:
    """A record of running features and these further numbers."""
    start = [("header", "<i8", ()), ("numbers", "f8", (len(history.NUMBERS),))]
    seen = ("seen", "u4", (history.SEEN_WORDS * n_tracked,))
    return np.dtype([*start, seen, *((name, "f8", (size,)) for name, size in sizes.items())])
