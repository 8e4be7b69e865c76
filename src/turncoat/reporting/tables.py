"""Tables: built once, shown rounded on the page and written in full precision to CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turncoat.evaluation.results import Interval, MetricEstimate
from turncoat.reporting import formatting as show

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Cell:
    """One entry: as the page shows it, and as the file has it."""

    text: str
    value: Value
    small: tuple[str, ...] = ()  # lines in small type
    more: tuple[tuple[str, Value], ...] = ()  # further columns of the file: suffix, value
    muted: bool = False


@dataclass(frozen=True)
class Column:
    """A column of the page; its cells may fill several columns of the file."""

    name: str
    heading: str
    formatter: Callable[[Any], str] = show.text
    meaning: str = ""
    get: Callable[[Any], Any] | None = None  # row to value or cell; by default the attribute `name`
    is_interval: bool = False  # the file has only what `more` holds, such as the bounds

    @property
    def is_number(self) -> bool:
        """Whether cells are aligned as numbers."""
        return self.formatter is not show.text

    def cell(self, row: Any) -> Cell:
        """The cell of a row."""
        value = getattr(row, self.name) if self.get is None else self.get(row)
        return value if isinstance(value, Cell) else Cell(self.formatter(value), value)


@dataclass(frozen=True)
class RowGroup:
    """Rows under one heading."""

    heading: str
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Table:
    """The first column names the row."""

    name: str  # of the file, without extension
    caption: str
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    group_name: str | None = None  # the file's column with the groups' headings

    def csv(self) -> bytes:
        """The file: numbers in full precision, empty where there is none."""
        rows = [(group, row) for group in self.groups for row in group.rows]
        suffixes = [
            list(dict.fromkeys(suffix for _, row in rows for suffix, _ in row[place].more))
            for place in range(len(self.columns))
        ]
        header: list[Value] = [] if self.group_name is None else [self.group_name]
        for column, more in zip(self.columns, suffixes, strict=True):
            header += [] if column.is_interval else [column.name]
            header += [f"{column.name}_{suffix}" for suffix in more]
        lines = [header]
        for group, row in rows:
            line: list[Value] = [] if self.group_name is None else [group.heading]
            for column, cell, more in zip(self.columns, row, suffixes, strict=True):
                values = dict(cell.more)
                line += [] if column.is_interval else [cell.value]
                line += [values.get(suffix) for suffix in more]
            lines.append(line)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue().encode()


def build_table(
    name: str,
    caption: str,
    columns: Iterable[Column],
    rows: Iterable[Any] | Mapping[str, Iterable[Any]],
    group_name: str | None = None,
) -> Table:
    """A table of rows, or of groups of rows by heading; columns turn rows into cells."""
    columns = tuple(columns)
    groups = rows.items() if isinstance(rows, Mapping) else [("", rows)]
    made = tuple(
        RowGroup(heading, tuple(tuple(c.cell(row) for c in columns) for row in members))
        for heading, members in groups
    )
    return Table(name, caption, columns, made, group_name)


def build_file_table(
    name: str,
    caption: str,
    names: Sequence[str],
    groups: Mapping[str, Iterable[Sequence[Value]]],
    group_name: str | None = None,
) -> Table:
    """A table that is only written to disk: column names, and rows of values by group."""

    def column(place: int) -> Column:
        return Column(names[place], names[place], get=lambda row: Cell("", row[place]))

    return build_table(name, caption, map(column, range(len(names))), groups, group_name)


def estimate_cell(metric: str, estimate: MetricEstimate | None, is_probability: bool) -> Cell:
    """A metric with its customer interval and its spread over seeds in small type."""
    if estimate is None:
        return Cell(show.DASH, None)
    shown = show.metric_text(metric)
    small = [show.interval(estimate.customer_interval, shown.decimals)]
    if show.exists(estimate.seed_std):
        small.append(f"± {show.number(estimate.seed_std, shown.decimals)}")
    more = (
        *bounds(estimate.customer_interval, "customer_"),
        *bounds(estimate.transaction_interval, "transaction_"),
        ("seed_std", estimate.seed_std),
        *((f"fold_{place}", value) for place, value in enumerate(estimate.by_fold, start=1)),
    )
    text = show.number(estimate.value, shown.decimals)
    muted = shown.is_calibration and not is_probability
    return Cell(text, estimate.value, tuple(line for line in small if line), more, muted)


def interval_cell(text: str, interval: Interval | None, muted: bool = False) -> Cell:
    """An interval."""
    return Cell(text or show.DASH, None, more=bounds(interval), muted=muted)


def bounds(interval: Interval | None, prefix: str = "") -> tuple[tuple[str, Value], ...]:
    """An interval as two further columns of the file."""
    lower, upper = (None, None) if interval is None else interval
    return (f"{prefix}lower", lower), (f"{prefix}upper", upper)
