"""A first schema for a file nobody has described: a role for every column, or why it has none. For people to correct."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from turncoat.data.clues import (
    AMOUNT_WORDS,
    CLOCK_WORDS,
    CODE_WORDS,
    COUNTERPARTY_WORDS,
    CUSTOMER_WORDS,
    EVENT_WORDS,
    FRAUD_WORDS,
    HABIT_WORDS,
    ID_WORDS,
    LABEL_WORDS,
    NOT_AMOUNT_WORDS,
    TRAIT_WORDS,
    SampledColumn,
    number,
    rank,
)
from turncoat.data.recognising import TELLTALES, Guess, recognised
from turncoat.data.schema import Join, Schema
from turncoat.data.sources import Source, first_line, open_source, stem
from turncoat.data.time_clues import ONLY_TIME_OF_DAY, Moment, as_moment
from turncoat.errors import ConfigError, DataError

SAMPLE_ROWS = 100_000
MOST_NAMES = 5_000  # of a categorical column
FEW_NUMBERS = 20  # whole numbers with no more values than this are names
LEAST_FRAUDS = 5  # before anything is said about leaks

_BENCHMARK = {
    "time": "EVENT_TIMESTAMP",
    "customer": "ENTITY_ID",
    "label": "EVENT_LABEL",
    "id": "EVENT_ID",
}


def guess(origins: Any) -> Guess:
    """Guess the schema of a file or frame, or of two files of which the second has further columns by key.

    Only the first 100,000 rows are looked at. The guess is for a person to check: write it with `write_schema`.
    """
    several = isinstance(origins, Sequence) and not isinstance(origins, str | os.PathLike)
    sources = [open_source(origin) for origin in (origins if several else [origins])]
    if not sources:
        raise ConfigError("no file to guess from. Give at least one")
    notes: list[str] = []
    if len(sources) > 1 and all(
        set(source.columns) == set(sources[0].columns) for source in sources
    ):
        notes.append(
            f"{len(sources)} files have the same columns, as parts of one table; the guess is from {sources[0].name} alone."
        )
        sources = sources[:1]
    found = recognised(sources) or _unknown(sources)
    return replace(found, warnings=(*notes, *found.warnings))


def _unknown(sources: list[Source]) -> Guess:
    if len(sources) == 1:
        return _Guesser(sources[0], None, "", _sampled(sources[0])).guess()
    if len(sources) > 2:
        raise ConfigError(
            f"{len(sources)} files with different columns. Give one file, or two that share a key"
        )
    tables = [(source, _sampled(source)) for source in sources]
    tables.sort(key=lambda table: not _has_time(*table))
    for (first, ours), (second, theirs) in (tables, tables[::-1]):
        shared = [
            SampledColumn.of(theirs[name], second.csv is not None)
            for name in second.columns
            if name in first.columns
        ]
        keys = sorted(
            (key for key in shared if key.is_unique and key.is_name),
            key=lambda key: key.says(ID_WORDS) is None,
        )
        if keys:
            return _Guesser(first, second, keys[0].name, ours, theirs).guess()
    raise ConfigError(
        f"{sources[0].name} and {sources[1].name} share no column that is unique in one of them, so rows cannot be matched. "
        "Give one file, or join them yourself"
    )


def _sampled(source: Source) -> pl.DataFrame:
    try:
        sample = source.frame.head(SAMPLE_ROWS).collect()
    except (pl.exceptions.PolarsError, OSError) as problem:
        raise source.damage() or DataError(
            f"{source.name}: cannot be read: {first_line(problem)}. Write the file again"
        ) from problem
    if sample.height == 0:
        raise DataError(f"{source.name}: no rows. Check how the file was written")
    return sample


def _has_time(source: Source, sample: pl.DataFrame) -> bool:
    return any(
        as_moment(SampledColumn.of(values, source.csv is not None)) is not None for values in sample
    )


@dataclass
class _Guesser:
    """Gives roles out one by one; what has a role is no longer open."""

    first: Source
    second: Source | None
    key: str
    sample: pl.DataFrame
    other: pl.DataFrame | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Look at every column, those of the second table by their key."""
        self.open = {
            name: SampledColumn.of(self.sample[name], self.first.csv is not None)
            for name in self.sample.columns
        }
        self.theirs: list[str] = []
        if self.other is not None and self.second is not None:
            self.theirs = [name for name in self.other.columns if name not in self.open]
            rows = self.other.select(pl.col(self.key).cast(pl.String), *self.theirs)
            joined = self.sample.select(pl.col(self.key).cast(pl.String)).join(
                rows, on=self.key, how="left", maintain_order="left"
            )
            self.open |= {
                name: SampledColumn.of(joined[name], self.second.csv is not None)
                for name in self.theirs
            }
        self.n_rows = self.sample.height
        self.where = (
            f"the first {self.n_rows:,} rows"
            if self.n_rows == SAMPLE_ROWS
            else f"{self.n_rows:,} rows"
        )

    def guess(self) -> Guess:
        """All roles, in an order in which each leaves less for the next."""
        benchmark = (
            {role: name for role, name in _BENCHMARK.items() if name in self.open}
            if "EVENT_TIMESTAMP" in self.open
            else {}
        )
        considered = list(self.open)
        for name, reason in TELLTALES.items():
            if name in self.open:
                self._leave(name, reason)
        label = self._label(benchmark.get("label"))
        self._leave_useless()
        moment = self._time(benchmark.get("time"), considered)
        id = self._id(benchmark.get("id"))
        customer = self._customer(benchmark.get("customer"), considered)
        self._leave_leaks(label)
        self._leave_copies(moment)
        amount = self._amount()
        counterparty = self._counterparty()
        continuous, categorical, habits = self._rest()
        if counterparty is not None:
            habits.insert(0, counterparty.name)
            if counterparty.n_distinct <= FEW_NUMBERS:
                categorical.insert(0, counterparty.name)
        if amount is not None:
            continuous.insert(0, amount.name)
        if not continuous and not categorical:
            raise DataError(
                f"{self.first.name}: no column is left to learn from. {self._by_hand(considered)}"
            )
        used = (*customer, moment.column.name, *continuous, *categorical, *habits)
        second = tuple(name for name in self.theirs if name in used)
        schema = Schema(
            customer=customer,
            time=moment.column.name,
            continuous=tuple(continuous),
            categorical=tuple(categorical),
            amount=None if amount is None else amount.name,
            label=None if label is None else label.name,
            id=None if id is None else id.name,
            counterparty=None if counterparty is None else counterparty.name,
            tracked=tuple(habits),
            time_unit=moment.unit,
            time_format=moment.form,
            join=Join(self._second_file(), self.key, second) if second else None,
        )
        return Guess(schema, self.reasons, self.left_out, tuple(self.warnings))

    # Each of these takes what it finds out of `open`.

    def _take(self, name: str, reason: str) -> SampledColumn:
        self.reasons[name] = reason
        return self.open.pop(name)

    def _leave(self, name: str, reason: str) -> None:
        self.left_out[name] = reason
        del self.open[name]

    def _label(self, known: str | None) -> SampledColumn | None:
        """0 and 1 under a telling name; a whole file is searched for the 1 that a sample may not have."""
        named = [
            column
            for column in self.open.values()
            if column.name == known or (known is None and column.says(LABEL_WORDS))
        ]
        named.sort(
            key=lambda column: (
                column.says(("flagged", "predicted", "score", "rule")) is not None,
                rank(column, LABEL_WORDS),
            )
        )
        found = next(
            (column for column in named if column.is_truth and column.n_distinct == 2), None
        )
        if found is None:
            found = next(
                (
                    column
                    for column in named
                    if column.is_truth and column.n_distinct == 1 and self._varies(column.name)
                ),
                None,
            )
        reason = (
            f"0 and 1, and the name says {found.says(LABEL_WORDS)!r}"
            if found is not None and found.says(LABEL_WORDS)
            else "0 and 1"
        )
        if found is None:
            for column in named:
                if 0 < column.n_distinct <= 2 and not column.is_truth:
                    shown = " and ".join(
                        repr(value) for value in column.values.drop_nulls().unique().sort()
                    )
                    self.warnings.append(
                        f"{column.name!r} looks like the label, with values {shown}. Write 1 for fraud and 0 for genuine."
                    )
            truths = [
                column
                for column in self.open.values()
                if column.is_truth and column.n_distinct == 2
            ]
            if not named and len(truths) == 1 and _ones(truths[0]) <= 0.1:
                found, reason = (
                    truths[0],
                    "the only column of 0 and 1, and 1 is rare; its name does not tell",
                )
                self.warnings.append(
                    f"{found.name!r} was taken for the label only because it is 0 or 1 and seldom 1. Check it."
                )
        if found is None:
            self.warnings.append(
                "There is no label: no column of 0 and 1 has a name like fraud, label or chargeback."
            )
            return None
        if _ones(found) > 0.5:
            self.warnings.append(
                f"{found.name!r} is 1 on most rows; 1 has to be fraud. Turn it round if it is not."
            )
        if missing := self.n_rows - found.n_known:
            self.warnings.append(
                f"{found.name!r} is missing on {missing:,} of {self.where}; remove those rows, or leave the label out."
            )
        return self._take(found.name, reason)

    def _varies(self, name: str) -> bool:
        """Whether a column has two values in the whole table."""
        source = self.second if self.second is not None and name in self.theirs else self.first
        return int(source.frame.select(pl.col(name).drop_nulls().n_unique()).collect().item()) == 2

    def _leave_useless(self) -> None:
        for name, column in list(self.open.items()):
            if column.n_known == 0:
                self._leave(name, f"no value in {self.where}")
            elif column.n_distinct == 0:
                self._leave(name, f"{column.values.dtype} values are neither numbers nor names")
            elif column.numbers is not None and column.numbers.is_infinite().any():
                self._leave(name, "some values are infinite; correct them, or leave them empty")
            elif column.n_distinct == 1 and column.n_known == self.n_rows:
                self._leave(name, f"the same value in {self.where}")

    def _time(self, known: str | None, considered: list[str]) -> Moment:
        moments = [
            moment for column in self.open.values() if (moment := as_moment(column)) is not None
        ]
        if known is not None:
            moments = [moment for moment in moments if moment.column.name == known]
        if not moments:
            clock = [
                c.name
                for c in self.open.values()
                if c.values.dtype == pl.String and c.values.str.contains(ONLY_TIME_OF_DAY).all()
            ]
            hint = (
                f" {clock[0]!r} holds times of day; join it with the date in one column."
                if clock
                else ""
            )
            raise DataError(
                f"{self.first.name}: no column tells the time of a transaction.{hint} {self._by_hand(considered)}"
            )
        best = max(moments, key=lambda moment: (moment.score, moment.column.n_distinct))
        if best.warning is not None:
            self.warnings.append(best.warning)
        self._take(best.column.name, best.reason)
        for column in list(self.open.values()):
            dated = any(
                moment.column is column and moment.column.numbers is None for moment in moments
            )
            if dated or column.values.dtype.is_temporal():
                self._leave(
                    column.name,
                    f"a second time; {best.column.name!r} is the time of the transaction",
                )
            elif (
                column.values.dtype == pl.String
                and column.values.drop_nulls().str.contains(ONLY_TIME_OF_DAY).all()
            ):
                self._leave(column.name, "a time of day; it belongs with the date in one column")
                self.warnings.append(
                    f"{column.name!r} holds times of day. If {best.column.name!r} has none, join the two in one column."
                )
        return best

    def _leave_copies(self, moment: Moment) -> None:
        """Leave out numbers that are the time again, and numbers of rows."""
        order = moment.values.arg_sort()
        for name, column in list(self.open.items()):
            if column.numbers is None or column.n_known < self.n_rows or column.n_distinct < 3:
                continue
            if (
                column.is_unique
                and column.is_whole
                and (column.numbers.diff().drop_nulls() == 1).all()
            ):
                self._leave(name, "it numbers the rows")
            elif column.says(CLOCK_WORDS) and column.numbers.gather(order).is_sorted():
                self._leave(name, f"a second time: it rises with {moment.column.name!r}")

    def _id(self, known: str | None) -> SampledColumn | None:
        if (
            known is not None
            and known in self.open
            and self.open[known].is_unique
            and self.open[known].is_name
        ):
            return self._take(known, f"unique in {self.where}")
        unique = [
            column
            for column in self.open.values()
            if column.is_unique and column.is_name and column.says(ID_WORDS)
        ]
        unique = [
            column
            for column in unique
            if column.says(EVENT_WORDS) or not column.says((*CUSTOMER_WORDS, *COUNTERPARTY_WORDS))
        ]
        if not unique:
            return None
        best = min(unique, key=lambda column: column.says(EVENT_WORDS) is None)
        return self._take(
            best.name, f"unique in {self.where}, and the name says {best.says(ID_WORDS)!r}"
        )

    def _customer(self, known: str | None, considered: list[str]) -> tuple[str]:
        able = [
            c
            for c in self.open.values()
            if c.is_name and not c.is_truth and c.n_distinct >= 2 and not c.says(FRAUD_WORDS)
        ]
        able = [c for c in able if c.n_distinct >= self.n_rows**0.5 / 10]
        named = [
            column
            for column in able
            if column.says(CUSTOMER_WORDS) and not column.says(TRAIT_WORDS)
        ]
        named.sort(
            key=lambda column: (
                column.is_unique,
                rank(column, CUSTOMER_WORDS),
                column.says(ID_WORDS) is None,
                -column.n_distinct,
            )
        )
        others = [
            c
            for c in able
            if c.says(ID_WORDS)
            and not c.is_unique
            and not c.says((*COUNTERPARTY_WORDS, *TRAIT_WORDS, *EVENT_WORDS))
        ]
        others.sort(key=lambda column: -column.n_distinct)
        if known is not None and known in self.open:
            best, reason = (
                self.open[known],
                "the party whose history counts, in Fraud Dataset Benchmark's names",
            )
        elif named:
            best, reason = named[0], f"the name says {named[0].says(CUSTOMER_WORDS)!r}"
        elif others:
            best, reason = others[0], "an id that repeats; its name does not say whose"
            self.warnings.append(
                f"{best.name!r} was taken for the customer only because it is an id that repeats. Check it."
            )
        else:
            raise DataError(
                f"{self.first.name}: no column tells whose transaction it is. {self._by_hand(considered)}"
            )
        if best.n_distinct > 0.9 * self.n_rows:
            self.warnings.append(
                f"{best.name!r} hardly repeats ({best.n_distinct:,} values in {self.where}), and Turncoat learns from histories. "
                "Name a coarser customer if there is one."
            )
        if missing := self.n_rows - best.n_known:
            self.warnings.append(
                f"{best.name!r} is missing on {missing:,} of {self.where}, and every transaction needs a customer."
            )
        self._take(best.name, f"{reason}; {best.n_distinct:,} values in {self.where}")
        return (best.name,)

    def _leave_leaks(self, label: SampledColumn | None) -> None:
        """Leave out columns that tell the label, by their name or by their values."""
        for name, column in list(self.open.items()):
            if word := column.says(FRAUD_WORDS):
                self._leave(
                    name,
                    f"the name says {word!r}; add it only if it is known when the payment is made",
                )
            elif label is not None and (told := _telltale(column, label)):
                self._leave(name, f"it tells the label: {told}")
                self.warnings.append(
                    f"{name!r} was left out because it tells the label: {told}. Is it known only afterwards?"
                )

    def _amount(self) -> SampledColumn | None:
        numeric = [
            c
            for c in self.open.values()
            if c.numbers is not None and c.says(AMOUNT_WORDS) and not c.says(NOT_AMOUNT_WORDS)
        ]
        if not numeric:
            return None
        best = min(numeric, key=lambda column: rank(column, AMOUNT_WORDS))
        return self._take(best.name, f"numbers, and the name says {best.says(AMOUNT_WORDS)!r}")

    def _counterparty(self) -> SampledColumn | None:
        able = [
            c
            for c in self.open.values()
            if c.is_name
            and c.says(COUNTERPARTY_WORDS)
            and not c.says(TRAIT_WORDS)
            and 2 <= c.n_distinct <= self.n_rows / 2
        ]
        if not able:
            return None
        best = max(able, key=lambda column: (column.says(ID_WORDS) is not None, column.n_distinct))
        return self._take(
            best.name,
            f"the name says {best.says(COUNTERPARTY_WORDS)!r}; {best.n_distinct:,} values in {self.where}",
        )

    def _rest(self) -> tuple[list[str], list[str], list[str]]:
        continuous, categorical, habits = [], [], []
        for name, column in list(self.open.items()):
            habit = column.says(HABIT_WORDS)
            share = column.n_distinct / column.n_known
            coded = column.numbers is None or (
                column.is_whole
                and (column.n_distinct <= FEW_NUMBERS or column.says(CODE_WORDS) is not None)
            )
            values = f"{column.n_distinct:,} values in {self.where}"
            if not coded:
                self._take(name, "numbers")
                continuous.append(name)
            elif column.numbers is None and column.n_distinct > 20 and _is_prose(column):
                self._leave(name, "free text")
            elif column.n_distinct <= FEW_NUMBERS or (
                share <= 0.5 and column.n_distinct <= MOST_NAMES
            ):
                kind = (
                    "whole numbers that look like names" if column.numbers is not None else "names"
                )
                self._take(
                    name,
                    f"{kind}, {values}"
                    + (f"; its changes matter, as the name says {habit!r}" if habit else ""),
                )
                categorical.append(name)
                if habit:
                    habits.append(name)
            elif habit and share <= 0.9:
                self._take(
                    name,
                    f"too many names to learn each ({values}), but their changes matter, as the name says {habit!r}",
                )
                habits.append(name)
            else:
                self._leave(
                    name,
                    "unique on every row" if share == 1 else f"hardly any value repeats: {values}",
                )
        return continuous, categorical, habits

    def _second_file(self) -> str:
        """The second file as a schema names it: by its stem, without the part that it shares with the first."""
        if self.first.path is None or self.second is None or self.second.path is None:
            self.warnings.append(
                "The second table has no file of its own; give it to `read` with `joined=`."
            )
            return "second"
        if self.first.path.parent.resolve() != self.second.path.parent.resolve():
            self.warnings.append(
                f"{self.second.name} is not beside {self.first.name}; put it there, or give it to `read` with `joined=`."
            )
        ours, theirs = stem(self.first.path), stem(self.second.path)
        prefix = ours.removesuffix("transactions").removesuffix("transaction")
        return (
            "{prefix}" + theirs.removeprefix(prefix)
            if prefix not in ("", ours) and theirs.startswith(prefix)
            else theirs
        )

    def _by_hand(self, considered: list[str]) -> str:
        shown = ", ".join(considered[:30]) + (", ..." if len(considered) > 30 else "")
        return (
            f"These were considered: {shown}. Write the schema by hand, in a file turncoat.toml: [schema], then a line each such as "
            'customer = ["..."], time = "...", label = "...", continuous = ["..."], categorical = ["..."]'
        )


def _ones(column: SampledColumn) -> float:
    """Share of rows that are 1 or true."""
    return number(
        column.values.drop_nulls()
        .cast(pl.String)
        .str.to_lowercase()
        .is_in(["1", "1.0", "true"])
        .mean()
    )


def _is_prose(column: SampledColumn) -> bool:
    return number(column.values.cast(pl.String).str.len_chars().mean()) > 60


def _telltale(column: SampledColumn, label: SampledColumn) -> str | None:
    """How a column tells the label, if some of its values are on fraud rows only and cover nearly all of them."""
    fraud = label.values.cast(pl.String).str.to_lowercase().is_in(["1", "1.0", "true"])
    n_frauds = int(fraud.sum())
    if n_frauds < LEAST_FRAUDS:
        return None
    known = column.values if column.numbers is None else column.numbers
    ways = {"it has a value": known.is_null()} if known.null_count() else {}
    if column.numbers is not None:
        ways["it is not 0"] = (column.numbers == 0).fill_null(False)
    if column.n_distinct <= 0.5 * len(known):
        ways["some of its values are there"] = known
    for told, values in ways.items():
        groups = (
            pl.DataFrame({"value": values, "fraud": fraud})
            .group_by("value")
            .agg(pl.len(), pl.col("fraud").sum())
        )
        covered = groups.filter((pl.col("len") == pl.col("fraud")) & (pl.col("len") > 1))[
            "fraud"
        ].sum()
        if covered >= 0.95 * n_frauds:
            return f"{told} on fraud only, and on {covered:,} of {n_frauds:,} frauds"
    return None
