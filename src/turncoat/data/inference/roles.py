"""Assign a role to every column of an undescribed table, or a reason why it has none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from turncoat.data.clocks import WRITTEN_OFFSET, parse_zone
from turncoat.data.inference.heuristics import (
    KNOWN_NAMES,
    LabelReading,
    SampledColumn,
    TimeReading,
    read_as_label,
    read_as_time,
)
from turncoat.data.money import estimate_rates
from turncoat.data.parsing import parse_labels
from turncoat.data.schema import FILL_IN, FRAUD, GENUINE, Join, Schema
from turncoat.data.sources import Source, file_prefix, file_stem
from turncoat.errors import DataError

SAMPLE_ROWS = 100_000
MAX_CATEGORIES = 5_000
MIN_ID_SHARE = 0.9  # of distinct values among the rows, for an id that should be unique
MAX_CODES = 20  # whole numbers with at most this many values are categories
MIN_FRAUDS = 5  # before a column is called a leak
_MAX_TEXT_CHARS = 60  # on average; longer values are free text
_IF_KNOWN = "only if it is known at payment time"


@dataclass(frozen=True)
class InferredSchema:
    """A schema with the reason for every column, used or ignored, and warnings to check."""

    schema: Schema
    reasons: dict[str, str]
    ignored: dict[str, str]
    warnings: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()  # about the files, in words


class RoleAssigner:
    """Assigns roles one by one; a column with a role is no longer a candidate for the next."""

    def __init__(self, tables: Sequence[tuple[Source, pl.DataFrame]], key: str = "") -> None:
        """Inspect every column of a sample; those of a second table are matched by `key`."""
        (self.source, sample), *second = tables
        self.joined: Source | None = None
        self.key = key
        self.reasons: dict[str, str] = {}
        self.ignored: dict[str, str] = {}
        self.taken_columns: dict[str, SampledColumn] = {}
        self.warnings: list[str] = []
        self.has_id = False
        self.n_rows = sample.height
        self.sample = sample
        self.candidates = SampledColumn.from_table(self.source, sample)
        self.joined_columns: list[str] = []
        if second:
            self.joined, rows = second[0]
            self.joined_columns = [name for name in rows.columns if name not in self.candidates]
            keys = sample.select(pl.col(key).cast(pl.String))
            rows = rows.select(pl.col(key).cast(pl.String), *self.joined_columns)
            matched = keys.join(rows, on=key, how="left", maintain_order="left").drop(key)
            self.candidates |= SampledColumn.from_table(self.joined, matched)
        self.rows = f"{self.n_rows:,} rows"
        if self.n_rows == SAMPLE_ROWS:
            self.rows = f"the first {self.rows}"
            if len(self.source.parts) > 1:
                self.rows = f"a sample of {self.n_rows:,} rows"
        self.all_columns = list(self.candidates)

    def infer(self) -> InferredSchema:
        """All roles, in an order in which each leaves fewer candidates for the next."""
        names = KNOWN_NAMES["benchmark"].items()
        known = {role: name for role, name in names if name in self.candidates}
        if "time" not in known:
            known = {}  # another data set that shares some names
        for name, reason in KNOWN_NAMES["leaks"].items():
            if name in self.candidates:
                self._ignore(name, reason)
        label = self._find_label(known.get("label"))
        currency = self._find_currency()
        self._ignore_useless()
        time = self._find_time(known.get("time"))
        zone = {} if time is None else self._find_zone(time)
        id = self._find_id(known.get("id"))
        self.has_id = id is not None
        customer = self._find_customer(known.get("customer"))
        self._ignore_leaks(label)
        if time is not None:
            self._ignore_copies(time)
        amount = self._find_amount()
        counterparty = self._find_counterparty()
        continuous, categorical, tracked = self._assign_rest()
        if counterparty is not None:
            tracked.insert(0, counterparty.name)
            if counterparty.n_distinct <= MAX_CODES:
                categorical.insert(0, counterparty.name)
        if amount is not None:
            continuous.insert(0, amount.name)
        if not continuous and not categorical:
            raise self._error("no column is left to learn from.")
        time_name = FILL_IN if time is None else time.column.name
        used = (customer, time_name, *continuous, *categorical, *tracked)
        joined = tuple(name for name in self.joined_columns if name in used)
        money = self._describe_money(amount, currency, continuous)
        schema = Schema(
            customer=(customer,),
            time=time_name,
            continuous=tuple(continuous),
            categorical=tuple(categorical),
            amount=None if amount is None else amount.name,
            **money,
            label=None if label is None else label.column.name,
            fraud_labels=() if label is None else label.fraud_labels,
            genuine_labels=() if label is None else label.genuine_labels,
            id=None if id is None else id.name,
            repeated_ids="refuse" if id is None else self._choose_repeats(id, label),
            counterparties=() if counterparty is None else (counterparty.name,),
            tracked=tuple(tracked),
            time_unit="s" if time is None else time.unit,
            time_format=None if time is None else time.time_format,
            **zone,
            join=Join(self._name_joined_file(), self.key, joined) if joined else None,
        )
        return InferredSchema(schema, self.reasons, self.ignored, tuple(self.warnings))

    def _assign(self, name: str, reason: str) -> SampledColumn:
        self.reasons[name] = reason
        self.taken_columns[name] = self.candidates.pop(name)
        return self.taken_columns[name]

    def _ignore(self, name: str, reason: str) -> None:
        self.ignored[name] = reason
        del self.candidates[name]

    def _warn(self, column: SampledColumn, warning: str) -> None:
        self.warnings.append(f"{column.name!r} {warning}")

    def _count_values(self, column: SampledColumn) -> str:
        return f"{column.n_distinct:,} values in {self.rows}"

    def _warn_of_gap(self, role: str, problem: str) -> None:
        line = f"Fill in `{role}` where the schema says {FILL_IN}: without it no file can be read."
        self.warnings.append(f"{problem[0].upper()}{problem[1:]} {line}")

    def _error(self, problem: str) -> DataError:
        shown = ", ".join(self.all_columns[:30]) + (", ..." if len(self.all_columns) > 30 else "")
        lines = 'customer = ["..."], time = "...", label = "...", continuous = ["..."]'
        remedy = "Write the schema by hand, in a file turncoat.toml: [schema], then lines such as"
        remedy += f' {lines}, categorical = ["..."]'
        return DataError(f"{self.source.name}: {problem} The columns are {shown}. {remedy}")

    def _find_label(self, known: str | None) -> LabelReading | None:
        """A column of 0 and 1, or of words for them, with a suitable name."""
        columns = self.candidates.values()
        named = [c for c in columns if (c.match("label") if known is None else c.name == known)]
        named.sort(key=lambda c: (c.match("prediction") is not None, c.rank("label")))
        able = [reading for c in named if (reading := read_as_label(c)) is not None]
        able.sort(key=lambda reading: bool(reading.fraud_labels))
        # A sample may hold only one of the two values; then search the whole file.
        found = next((reading for reading in able if reading.has_both), None)
        found = found or next((reading for reading in able if self._varies(reading)), None)
        if found is not None and (word := found.column.match("label")):
            found = found._replace(reason=f"{found.reason}, and the name contains {word!r}")
        if found is None:
            for c in named:
                if 0 < c.n_distinct <= MAX_CODES:
                    values = ", ".join(map(repr, c.values.drop_nulls().unique().sort()[:MAX_CODES]))
                    remedy = "Name it as `label`, with its values in `fraud_labels` and"
                    self._warn(c, f"may be the label. {remedy} `genuine_labels`: {values}.")
            readings = [read_as_label(c) for c in columns if c.is_binary]
            others = [reading for reading in readings if reading is not None and reading.has_both]
            if not named and len(others) == 1 and others[0].fraud_share <= 0.1:
                reason = "the only column of 0 and 1, and 1 is rare"
                found = others[0]._replace(reason=reason)
                text = f"was taken as the label only because it is {reason}. Check it."
                self._warn(found.column, text)
        if found is None:
            warning = "There is no label: no column of 0 and 1, or yes and no, is named like fraud"
            self.warnings.append(f"{warning} or chargeback.")
            return None
        if found.fraud_share > 0.5:
            self._warn(found.column, "is fraud on most rows. List its values under the other word.")
        if found.warning is not None:
            self._warn(found.column, found.warning)
        if missing := self.n_rows - found.n_known:
            effect = "Those rows inform the regimes, but no fraud rate."
            self._warn(found.column, f"is unknown on {missing:,} of {self.rows}. {effect}")
        self._assign(found.column.name, found.reason)
        return found

    def _varies(self, reading: LabelReading) -> bool:
        """Whether a fraud and a genuine transaction are known in the whole table."""
        name = reading.column.name
        is_joined = name in self.joined_columns
        source = self.joined if self.joined is not None and is_joined else self.source
        values = source.frame.select(pl.col(name).unique()).collect().to_series()
        codes = parse_labels(values, reading.words)
        return codes is not None and {FRAUD, GENUINE} <= set(codes)

    def _ignore_useless(self) -> None:
        for name, column in list(self.candidates.items()):
            if column.n_known == 0:
                self._ignore(name, f"no value in {self.rows}")
            elif column.n_distinct == 0:
                self._ignore(name, f"{column.values.dtype} values cannot be used")
            elif column.numbers is not None and column.numbers.is_infinite().any():
                self._ignore(name, "some values are infinite; correct them, or leave them empty")
            elif column.n_distinct == 1 and column.n_known == self.n_rows:
                self._ignore(name, f"the same value in {self.rows}")

    def _find_time(self, known: str | None) -> TimeReading | None:
        readings = [r for c in self.candidates.values() if (r := read_as_time(c)) is not None]
        if known is not None:
            readings = [reading for reading in readings if reading.column.name == known]
        if not readings:
            clocks = [c.name for c in self.candidates.values() if c.is_time_of_day]
            hint = f" {clocks[0]!r} holds times of day; join it with the date." if clocks else ""
            self._warn_of_gap("time", f"no column holds the time of a transaction.{hint}")
            return None
        best = max(readings, key=lambda reading: (reading.score, reading.column.n_distinct))
        time = best.column.name
        if best.warning is not None:
            self._warn(best.column, best.warning)
        self._assign(time, best.reason)
        dates = {r.column.name for r in readings if r.column.numbers is None}
        for name, column in list(self.candidates.items()):
            if name in dates or column.values.dtype.is_temporal():
                self._ignore(name, f"a second time; {time!r} is the time of the transaction")
            elif column.is_time_of_day:
                self._ignore(name, "a time of day; join it with the date in one column")
                remedy = f"If {time!r} has none, join them in one column."
                self._warn(column, f"holds times of day. {remedy}")
        return best

    def _find_zone(self, time: TimeReading) -> dict[str, Any]:
        """Settings of the local clock, from a column of zones or the offsets of the times."""
        for column in [c for c in self.candidates.values() if c.match("zone")]:
            names = column.values.cast(pl.String).drop_nulls().unique()
            if column.is_discrete and all(parse_zone(name) is not None for name in names):
                self._assign(column.name, "the time zone of each row, for hours and weekdays")
                return {"time_zone_column": column.name}
        texts = time.column.values
        if texts.dtype != pl.String or time.time_format is not None:
            return {}
        written = texts.str.extract(WRITTEN_OFFSET, 1)
        offsets = written.drop_nulls().unique()
        if len(offsets) == 0:
            return {}
        if without := written.null_count():
            text = f"has no offset on {without:,} of {self.rows}; these are read as UTC"
            self._warn(time.column, f"{text}. Set `time_zone` if they are on another clock.")
        if all(parse_zone(offset) == 0.0 for offset in offsets):
            remedy = "Set `time_zone`, for example to Europe/Berlin, if customers live elsewhere"
            self._warn(time.column, f"is in UTC, and so are hours and weekdays. {remedy}.")
            return {"time_zone": "UTC"}
        effect = "so hours and weekdays are those of the written clock"
        self._warn(time.column, f"has offsets such as {offsets[0]}, {effect}.")
        return {"time_zone_column": time.column.name}

    def _ignore_copies(self, time: TimeReading) -> None:
        """Ignore copies of the time and row numbers."""
        order = time.values.arg_sort()
        for name, c in list(self.candidates.items()):
            if c.numbers is None or c.n_known < self.n_rows or c.n_distinct < 3:
                continue
            if c.is_unique and c.is_whole and (c.numbers.diff().drop_nulls() == 1).all():
                self._ignore(name, "it numbers the rows")
            elif c.match("clock") and c.numbers.gather(order).is_sorted():
                self._ignore(name, f"a second time: it rises with {time.column.name!r}")

    def _find_id(self, known: str | None) -> SampledColumn | None:
        able = [c for c in self.candidates.values() if c.is_discrete and c.n_known == self.n_rows]
        unique = [c for c in able if c.is_unique]
        if any(c.name == known for c in unique):
            return self._assign(str(known), f"unique in {self.rows}")
        named = [c for c in able if c.match("id") and c.n_distinct >= MIN_ID_SHARE * self.n_rows]
        named = [c for c in named if c.match("event") or not c.match("customer", "counterparty")]
        has_customer = any(c.match("customer") for c in self.candidates.values())
        repeats = [c for c in named if not c.match("attribute", "tracked") and has_customer]
        named = [c for c in named if c.is_unique or c.match("event") or c in repeats]
        if not named:
            return None
        best = min(named, key=lambda c: (not c.is_unique, c.match("event") is None))
        found = "unique" if best.is_unique else self._count_repeats(best)
        reason = f"{found} in {self.rows}, and the name contains {best.match('id')!r}"
        return self._assign(best.name, reason)

    def _count_repeats(self, id: SampledColumn) -> str:
        return f"{self.n_rows - id.n_distinct:,} repeats"

    def _choose_repeats(self, id: SampledColumn, label: LabelReading | None) -> str:
        """Which row of a repeated id to keep; a warning says what differs between them."""
        if id.is_unique:
            return "refuse"
        repeated = self.sample.filter(pl.col(id.name).is_duplicated())
        counts = repeated.group_by(id.name).agg(pl.all().n_unique()).drop(id.name)
        differing = [column.name for column in counts if (column > 1).any()]
        own = [] if label is None else [label.column.name]
        rule = "first" if not differing else "last"
        shown = ", ".join(map(repr, differing[:5])) + (", ..." if len(differing) > 5 else "")
        what = f"The rows of an id differ in {shown}" if differing else "Their rows are equal"
        if differing == own:
            what = "Only the label differs, as in a later export"
        text = f"has {self._count_repeats(id)} in {self.rows}. {what}, so the {rule} row of each"
        self._warn(id, f"{text} counts. Change `repeated_ids` if that is wrong.")
        return rule

    def _find_customer(self, known: str | None) -> str:
        discrete = [c for c in self.candidates.values() if c.is_discrete and not c.is_binary]
        min_values = max(2, self.n_rows**0.5 / 10)
        able = [c for c in discrete if c.n_distinct >= min_values and not c.match("fraud")]
        named = [c for c in able if c.match("customer") and not c.match("attribute")]
        named.sort(key=lambda c: (c.rank("customer"), c.match("id") is None, -c.n_distinct))
        named.sort(key=lambda c: c.is_unique)
        ids = [c for c in able if c.match("id") and not c.is_unique]
        ids = [c for c in ids if not c.match("counterparty", "attribute", "event")]
        ids.sort(key=lambda c: -c.n_distinct)
        if known is not None and known in self.candidates:
            best = self.candidates[known]
            reason = "the customer in the Fraud Dataset Benchmark"
        elif named:
            best = named[0]
            reason = f"the name contains {best.match('customer')!r}"
        elif ids:
            best, reason = ids[0], "an id that repeats"
            self._warn(best, f"was taken as the customer only because it is {reason}. Check it.")
        else:
            self._warn_of_gap("customer", "no column identifies the customer.")
            return FILL_IN
        if best.n_distinct > 0.9 * self.n_rows:
            remedy = "Turncoat learns from histories. Name a coarser customer if there is one."
            self._warn(best, f"hardly repeats ({self._count_values(best)}), but {remedy}")
        if missing := self.n_rows - best.n_known:
            rule = "every transaction needs a customer."
            self._warn(best, f"is missing on {missing:,} of {self.rows}, but {rule}")
        return self._assign(best.name, f"{reason}; {self._count_values(best)}").name

    def _ignore_leaks(self, label: LabelReading | None) -> None:
        """Ignore columns that reveal the label by their name or values."""
        for name, column in list(self.candidates.items()):
            if word := column.match("fraud"):
                self._ignore(name, f"the name contains {word!r}; add it {_IF_KNOWN}")
            elif label is not None and (leak := _find_leak(column, label)):
                reason = f"it reveals the label: {leak}"
                self._ignore(name, reason)
                self._warn(column, f"was ignored because {reason}. Add it {_IF_KNOWN}.")

    def _find_amount(self) -> SampledColumn | None:
        numeric = [c for c in self.candidates.values() if c.numbers is not None]
        able = [c for c in numeric if c.match("amount") and not c.match("not_amount")]
        if not able:
            return None
        best = min(able, key=lambda c: c.rank("amount"))
        csv = self.source.csv
        if csv is not None and csv.format.has_plain_numbers and best.may_have_thousands:
            remedy = 'If the points separate thousands, set `thousands = "."` and `decimal = ","`'
            self._warn(best, f"has three digits after every point. {remedy} in [schema.csv].")
        return self._assign(best.name, f"numbers, and the name contains {best.match('amount')!r}")

    def _find_currency(self) -> SampledColumn | None:
        """The column of currencies, which stays a candidate for a category."""
        named = [c for c in self.candidates.values() if c.is_discrete and c.match("currency")]
        return min(named, key=lambda c: c.rank("currency"), default=None)

    def _describe_money(
        self, amount: SampledColumn | None, currency: SampledColumn | None, continuous: list[str]
    ) -> dict[str, Any]:
        """Settings of amounts: minor units, the currency and estimated rates."""
        if amount is None:
            return {}
        numbers = {**self.taken_columns, amount.name: amount}
        money = [name for name in continuous if numbers[name].match("amount", "money")]
        minor = [name for name in money if numbers[name].match("minor") and numbers[name].is_whole]
        settings: dict[str, Any] = {"minor_units": tuple(minor)}
        if minor:
            self._warn(
                amount, "is in minor units by its name, and is divided (EUR by 100, JPY by 1)."
            )
        elif amount.is_whole:
            remedy = f'If they count cents, set `minor_units = ["{amount.name}"]`'
            if currency is not None:
                remedy += ", and divide estimated rates of currencies without cents (JPY) by 100"
            self._warn(amount, f"has whole numbers only. {remedy}.")
        if currency is None:
            return settings
        both = [amount.name, currency.name]
        if not all(name in self.source.columns for name in both):
            return settings
        table = self.source.read(both, both[:1])
        paid = table[amount.name].cast(pl.Float64)
        found = estimate_rates(paid, table[currency.name], amount.name in minor)
        if found is None:
            return settings
        rates, counts = found
        if len(counts) > 1:
            shown = ", ".join(f"{name} on {n:,} rows" for name, n in list(counts.items())[:8])
            effect = f"Amounts are converted to {rates.base} by rates that make the median amount"
            remedy = "in every currency equal. Replace them in [schema.rates] by rates you trust"
            self._warn(currency, f"has several currencies: {shown}. {effect} {remedy}.")
        self.reasons.setdefault(currency.name, "the currency of the amounts")
        self.ignored.pop(currency.name, None)
        others = tuple(name for name in money if name != amount.name)
        return settings | {"currency": currency.name, "rates": rates, "money": others}

    def _find_counterparty(self) -> SampledColumn | None:
        named = [c for c in self.candidates.values() if c.is_discrete and c.match("counterparty")]
        able = [c for c in named if 2 <= c.n_distinct <= self.n_rows / 2]
        able = [c for c in able if not c.match("attribute")]
        if not able:
            return None
        best = max(able, key=lambda c: (c.match("id") is not None, c.n_distinct))
        reason = f"the name contains {best.match('counterparty')!r}"
        return self._assign(best.name, f"{reason}; {self._count_values(best)}")

    def _assign_rest(self) -> tuple[list[str], list[str], list[str]]:
        """Continuous, categorical and tracked columns among the remaining candidates."""
        continuous, categorical, tracked, distinct = [], [], [], list[SampledColumn]()
        for name, c in list(self.candidates.items()):
            word, share = c.match("tracked"), c.n_distinct / c.n_known
            is_number = c.numbers is not None
            is_code = c.n_distinct <= MAX_CODES or c.match("code") is not None
            values = self._count_values(c)
            changes = f"changes are tracked, as the name contains {word!r}"
            if is_number and not (c.is_whole and is_code):
                self._assign(name, "numbers")
                continuous.append(name)
            elif not is_number and c.n_distinct > MAX_CODES and c.mean_chars > _MAX_TEXT_CHARS:
                self._ignore(name, "free text")
            elif c.n_distinct <= MAX_CODES or (share <= 0.5 and c.n_distinct <= MAX_CATEGORIES):
                kind = "whole numbers that look like codes" if is_number else "categories"
                self._assign(name, f"{kind}, {values}" + (f"; {changes}" if word else ""))
                categorical.append(name)
                if word:
                    tracked.append(name)
            elif word and share <= 0.9:
                self._assign(name, f"too many categories to learn each ({values}); {changes}")
                tracked.append(name)
            elif share == 1:
                self._ignore(name, "unique on every row")
                distinct.append(c)
            else:
                self._ignore(name, f"hardly any value repeats: {values}")
                distinct.append(c)
        asked = [c for c in distinct if not c.is_time_of_day][: 0 if self.has_id else 1]
        for column in asked:
            what = "may identify transactions; a row that is twice in the data counts twice"
            self._warn(column, f'{what}. If it does, set `id = "{column.name}"`.')
        return continuous, categorical, tracked

    def _name_joined_file(self) -> str:
        """The joined file as a schema names it: by its stem, without a prefix both files share."""
        path = self.source.path
        other = None if self.joined is None else self.joined.path
        if path is None or other is None:
            self.warnings.append("The second table has no file. Pass it to `read` as `joined=`.")
            return "second"
        if path.parent.resolve() != other.parent.resolve():
            remedy = "Move it there, or pass it to `read` as `joined=`."
            self.warnings.append(f"{other} is not in the folder of {self.source.name}. {remedy}")
        stem, prefix = file_stem(other), file_prefix(path)
        if prefix not in ("", file_stem(path)) and stem.startswith(prefix):
            return "{prefix}" + stem.removeprefix(prefix)
        return stem


def _find_leak(column: SampledColumn, label: LabelReading) -> str | None:
    """How a column reveals the label: values only on fraud rows that cover nearly all frauds."""
    fraud = label.is_fraud
    n_frauds = int(fraud.sum())
    if n_frauds < MIN_FRAUDS:
        return None
    known = column.values if column.numbers is None else column.numbers
    patterns = {"it has a value": known.is_null()} if known.null_count() else {}
    if column.numbers is not None:
        patterns["it is not 0"] = (column.numbers == 0).fill_null(False)
    if column.n_distinct <= 0.5 * len(known):
        patterns["some values occur"] = known
    for pattern, values in patterns.items():
        groups = pl.DataFrame({"value": values, "fraud": fraud}).group_by("value")
        counts = groups.agg(pl.len(), pl.col("fraud").sum())
        only_fraud = (pl.col("len") == pl.col("fraud")) & (pl.col("len") > 1)
        covered = counts.filter(only_fraud)["fraud"].sum()
        if covered >= 0.95 * n_frauds:
            return f"{pattern} on fraud only, and on {covered:,} of {n_frauds:,} frauds"
    return None
