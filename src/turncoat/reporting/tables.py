"""Tables: built once, shown rounded on the page and written in full precision to CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from turncoat.evaluation.results import MetricEstimate
from turncoat.evaluation.summary import Interval
from turncoat.reporting import formatting as show

Value = str | float | int | bool | None
Groups = Mapping[str, Iterable[Any]]  # rows by heading
Rows = Iterable[Any] | Groups


class Cell(NamedTuple):
    """One entry: as the page shows it, and as the file has it."""

    text: str
    value: Value
    small: tuple[str, ...] = ()  # lines in small type
    more: tuple[tuple[str, Value], ...] = ()  # further columns of the file: suffix, value
    muted: bool = False


class Column(NamedTuple):
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


class RowGroup(NamedTuple):
    """Rows under one heading."""

    heading: str
    rows: tuple[tuple[Cell, ...], ...]


class Table(NamedTuple):
    """The first column names the row."""

    name: str  # of the file, without extension
    caption: str
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    group_name: str | None = None  # the file's column with the groups' headings

    def csv(self) -> bytes:
        """The file: numbers in full precision, empty where there is none."""
        rows = [row for group in self.groups for row in group.rows]
        file_columns: list[list[Value]] = []  # each starts with its name
        if self.group_name is not None:
            headings = [group.heading for group in self.groups for _ in group.rows]
            file_columns.append([self.group_name, *headings])
        for place, column in enumerate(self.columns):
            cells = [row[place] for row in rows]
            if not column.is_interval:
                file_columns.append([column.name, *(cell.value for cell in cells)])
            for suffix in dict.fromkeys(suffix for cell in cells for suffix, _ in cell.more):
                values = (dict(cell.more).get(suffix) for cell in cells)
                file_columns.append([f"{column.name}_{suffix}", *values])
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(zip(*file_columns, strict=True))
        return text.getvalue().encode()


def build_table(
    name: str, caption: str, columns: Iterable[Column], rows: Rows, group_name: str | None = None
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
    name: str, caption: str, names: Sequence[str], groups: Groups, group_name: str | None = None
) -> Table:
    """A table that is only written to disk: column names, and rows of values by group."""

    def column(place: int) -> Column:
        return Column(names[place], names[place], get=lambda row: Cell("", row[place]))

    return build_table(name, caption, map(column, range(len(names))), groups, group_name)


def estimate_cell(metric: str, estimate: MetricEstimate | None, is_probability: bool) -> Cell:
    """A metric with its customer interval and its spread over seeds in small type."""
    if estimate is None:
        return Cell(show.DASH, None)
    shown, spread = show.metric_text(metric), estimate.seed_std
    small = [show.interval(estimate.customer_interval, shown.decimals)]
    small += [f"± {show.number(spread, shown.decimals)}"] if show.exists(spread) else []
    more = (
        *bounds(estimate.customer_interval, "customer_"),
        *bounds(estimate.transaction_interval, "transaction_"),
        ("seed_std", spread),
        *((f"fold_{place}", value) for place, value in enumerate(estimate.by_fold, start=1)),
    )
    text = show.number(estimate.value, shown.decimals)
    return Cell(text, estimate.value, tuple(filter(None, small)), more, shown.mutes(is_probability))


def interval_cell(text: str, interval: Interval | None, muted: bool = False) -> Cell:
    """An interval."""
    return Cell(text or show.DASH, None, more=bounds(interval), muted=muted)


def bounds(interval: Interval | None, prefix: str = "") -> tuple[tuple[str, Value], ...]:
    """An interval as two further columns of the file."""
    lower, upper = interval or (None, None)
    return (f"{prefix}lower", lower), (f"{prefix}upper", upper)
