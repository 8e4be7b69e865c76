"""What fitting found out about each column: everything needed to turn transactions into rows of a panel, and nothing else."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.schema import Schema
from turncoat.features import counterparties, history, time_features
from turncoat.features.scaling import Scales
from turncoat.features.vocabulary import Vocabulary

MAX_DELAY_DAYS = 3650


class Treatment(NamedTuple):
    """Some neighbouring continuous columns, as `fill_columns` and `fill_row` take them."""

    scale: tuple[Array, Array, Array]
    places: Array  # among the panel's continuous columns; -1 if left out
    flags: Array  # place of the missing flag among the categorical columns; -1 if there is none

    def part(self, some: slice) -> Treatment:
        """Some of the columns."""
        return Treatment(
            (self.scale[0][some], self.scale[1][some], self.scale[2][some]),
            self.places[some],
            self.flags[some],
        )


class LiveLayout(NamedTuple):
    """A plan as the pass over live rows reads it."""

    raw: Treatment
    facts: Treatment
    n_facts: int  # continuous ones; 0 if there are none
    n_fact_codes: int
    first_fact: int  # place of the first categorical fact
    n_names: int
    flagged: tuple[Array, Array]
    amount_place: int  # -1 if there is no amount
    counterparty_names: Array
    delay: float
    base_rate: float


@dataclass(frozen=True, eq=False)
class FeaturePlan:
    """Fitted features. Continuous columns are the schema's, then the facts; categorical ones its names, missing flags, facts."""

    schema: Schema
    engineered: bool
    label_delay_s: float
    base_rate: float  # fraud share among the fit rows; 0 when unknown
    scales: Scales  # of the raw continuous columns and then of the facts
    flagged: tuple[
        str, ...
    ]  # columns whose absence is a feature; each stands for all that are absent on the same rows
    vocabularies: tuple[Vocabulary, ...]  # of the schema's categorical columns
    include: tuple[str, ...] | None = None  # the features asked for; None for all

    def check(self) -> None:
        """Raise ValueError if the parts do not fit each other."""
        facts = len(self.engineered_continuous)
        for array in (self.scales.units, self.scales.centres, self.scales.spreads):
            if (
                array.shape != (self.n_raw + facts,)
                or array.dtype != np.float64
                or not np.isfinite(array).all()
            ):
                raise ValueError(
                    f"scales of {array.dtype} {array.shape} for {self.n_raw} columns and {facts} facts"
                )
        if (self.scales.units < 0).any() or (self.scales.spreads < 0).any():
            raise ValueError("units or spreads below 0")
        names = [
            name
            for vocabulary in self.vocabularies
            for name in (*vocabulary.frequent, *vocabulary.rare)
        ]
        if not all(isinstance(name, str) for name in (*names, *self.flagged)) or len(
            set(self.flagged)
        ) < len(self.flagged):
            raise ValueError("names that are no text, or a column flagged twice")
        if len(self.vocabularies) != len(self.schema.categorical):
            raise ValueError(
                f"{len(self.vocabularies)} vocabularies for {len(self.schema.categorical)} categorical columns"
            )
        if unknown := set(self.flagged) - {*self.schema.continuous, *self.schema.categorical}:
            raise ValueError(
                f"missing flags for columns that are not there: {', '.join(map(repr, sorted(unknown)))}"
            )
        if self.include is not None and (
            unknown := set(self.include) - {*self.every_continuous, *self.every_categorical}
        ):
            raise ValueError(
                f"features asked for that are not there: {', '.join(map(repr, sorted(unknown)))}"
            )
        if not (
            0 <= self.base_rate < 1 and 0 <= self.label_delay_s <= MAX_DELAY_DAYS * history.DAY
        ):
            raise ValueError(
                f"a fraud share of {self.base_rate} or a label delay of {self.label_delay_s} seconds cannot be"
            )

    @property
    def n_raw(self) -> int:
        """Continuous columns of the schema."""
        return len(self.schema.continuous)

    @property
    def has_counterparty(self) -> bool:
        """Whether a counterparty has running facts."""
        return self.engineered and self.schema.counterparty is not None

    @cached_property
    def counterparty_names(self) -> Array:
        """Places of the counterparty's habit columns among the schema's."""
        return np.array(
            [
                h
                for h, column in enumerate(self.schema.tracked)
                if column != self.schema.counterparty
            ],
            dtype=np.int64,
        )

    @cached_property
    def _facts(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Names of the continuous and the categorical facts of the customer, of the transaction itself, of the counterparty."""
        if not self.engineered:
            return ()
        habits = [self.schema.tracked[h] for h in self.counterparty_names]
        counterparty = (
            counterparties.CONTINUOUS,
            tuple(f"counterparty_{name}" for name in history.categorical(habits)),
        )
        own = (history.CONTINUOUS, history.categorical(self.schema.tracked))
        return (
            own,
            (time_features.CONTINUOUS, time_features.CATEGORICAL),
            counterparty if self.has_counterparty else ((), ()),
        )

    @cached_property
    def engineered_continuous(self) -> tuple[str, ...]:
        """Names of the continuous facts."""
        return tuple(name for names, _ in self._facts for name in names)

    @cached_property
    def engineered_categorical(self) -> tuple[str, ...]:
        """Names of the categorical facts."""
        return tuple(name for _, names in self._facts for name in names)

    def parts(self, facts: Array, codes: Array) -> list[tuple[Array, Array]]:
        """Facts and codes of the customer, of the transaction itself and of the counterparty, as views of these."""
        return [(facts[some], codes[others]) for some, others in self._slices]

    @cached_property
    def _slices(self) -> list[tuple[slice, slice]]:
        facts, codes = (
            np.cumsum([0, *(len(part[i]) for part in self._facts)]).tolist() for i in range(2)
        )
        return [
            (slice(*facts[k : k + 2]), slice(*codes[k : k + 2])) for k in range(len(self._facts))
        ]

    @property
    def every_continuous(self) -> tuple[str, ...]:
        """Names of all continuous columns, also those that do not vary or were not asked for."""
        return (*self.schema.continuous, *self.engineered_continuous)

    @cached_property
    def continuous(self) -> tuple[str, ...]:
        """Names of the panel's continuous columns."""
        return tuple(
            name for name, kept in zip(self.every_continuous, self.scales.kept, strict=True) if kept
        )

    @cached_property
    def categorical(self) -> tuple[str, ...]:
        """Names of the panel's categorical columns."""
        return tuple(self.every_categorical[j] for j in self.asked)

    @cached_property
    def asked(self) -> Array:
        """Places of the categorical columns that were asked for among all."""
        return np.flatnonzero(
            [self.include is None or name in self.include for name in self.every_categorical]
        )

    @cached_property
    def every_categorical(self) -> tuple[str, ...]:
        """Names of all categorical columns, also those that were not asked for."""
        return (
            *self.schema.categorical,
            *(f"no_{column}" for column in self.flagged),
            *self.engineered_categorical,
        )

    @cached_property
    def n_categories(self) -> tuple[int, ...]:
        """Number of codes of each categorical column."""
        facts = (
            time_features.WEEKDAYS if name in time_features.CATEGORICAL else 2
            for name in self.engineered_categorical
        )
        every = (*(v.size for v in self.vocabularies), *(2 for _ in self.flagged), *facts)
        return tuple(every[j] for j in self.asked)

    @cached_property
    def code_type(self) -> np.dtype[Any]:
        """The smallest integers that hold every code."""
        most = max((vocabulary.size for vocabulary in self.vocabularies), default=0)
        return np.dtype(np.int8 if most <= 128 else np.int16 if most <= 32768 else np.int32)

    @cached_property
    def raw_columns(self) -> Treatment:
        """How the schema's continuous columns are treated, and where they go."""
        return self._treatment(0, self.n_raw, self.schema.continuous)

    @cached_property
    def fact_columns(self) -> Treatment:
        """How the continuous facts are treated, and where they go."""
        return self._treatment(self.n_raw, len(self.scales.kept), ())

    def _treatment(self, start: int, stop: int, names: tuple[str, ...]) -> Treatment:
        kept = self.scales.kept
        places = np.where(kept, np.cumsum(kept) - 1, -1)[start:stop]
        flags = (
            [self._flag_places.get(name, -1) for name in names]
            if names
            else np.full(stop - start, -1)
        )
        return Treatment(self.scales.part(start, stop), places, np.array(flags, dtype=np.int64))

    @cached_property
    def _flag_places(self) -> dict[str, int]:
        """Place of each missing flag among the categorical columns."""
        return {column: len(self.vocabularies) + i for i, column in enumerate(self.flagged)}

    @cached_property
    def flagged_names(self) -> tuple[Array, Array]:
        """The categorical columns that have a missing flag, and the flags' places."""
        flagged = [
            (j, self._flag_places[column])
            for j, column in enumerate(self.schema.categorical)
            if column in self._flag_places
        ]
        sources, places = np.array(flagged, dtype=np.int64).reshape(-1, 2).T
        return sources, places

    @cached_property
    def live_layout(self) -> LiveLayout:
        """All that live rows need to know."""
        return LiveLayout(
            raw=self.raw_columns,
            facts=self.fact_columns,
            n_facts=len(self.engineered_continuous),
            n_fact_codes=len(self.engineered_categorical),
            first_fact=self.first_fact,
            n_names=len(self.vocabularies),
            flagged=self.flagged_names,
            amount_place=-1
            if self.schema.amount is None
            else self.schema.continuous.index(self.schema.amount),
            counterparty_names=self.counterparty_names,
            delay=self.label_delay_s,
            base_rate=self.base_rate,
        )

    @property
    def first_fact(self) -> int:
        """Place of the first categorical fact."""
        return len(self.vocabularies) + len(self.flagged)

    @cached_property
    def fingerprint(self) -> int:
        """Tells states of these features from those of others."""
        s = self.schema
        layout = (2, history.NUMBERS, history.MARK_WORDS, self.label_delay_s)
        meaning = (
            s.customer,
            s.customer_age,
            s.amount,
            s.continuous,
            s.categorical,
            s.tracked,
            s.counterparty,
        )
        return zlib.crc32(repr((layout, meaning)).encode())
