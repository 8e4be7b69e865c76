"""A table: its rows are made once and shown twice, rounded on the page and in full in a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from turncoat.evaluation.results import Figure, Interval
from turncoat.reporting.formatting import DASH, exists, interval, metric_of, number

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Cell:
    """One entry: as the page shows it, and as the file has it."""

    text: str
    value: Value
    small: tuple[str, ...] = ()  # lines in small type
    more: tuple[
        tuple[str, Value], ...
    ] = ()  # further columns of the file: ending of the name, value
    muted: bool = False


@dataclass(frozen=True)
class Column:
    """Of one or more cells in the file, all named after it."""

    name: str
    heading: str
    is_number: bool = True
    meaning: str = ""
    is_interval: bool = False  # the file has only what `more` says, such as its bounds


@dataclass(frozen=True)
class RowGroup:
    """Rows under one heading."""

    heading: str
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Table:
    """The first column names the row."""

    name: str  # of the file, without ending
    caption: str
    columns: tuple[Column, ...]
    groups: tuple[RowGroup, ...]
    group_name: str | None = None  # of the file's column with the groups' headings

    def csv(self) -> bytes:
        """The file: every number in full precision, nothing where there is none."""
        rows = [(group, row) for group in self.groups for row in group.rows]
        endings = [
            list(dict.fromkeys(ending for _, row in rows for ending, _ in row[place].more))
            for place in range(len(self.columns))
        ]
        header = [] if self.group_name is None else [self.group_name]
        for column, more in zip(self.columns, endings, strict=True):
            header += [] if column.is_interval else [column.name]
            header += [f"{column.name}_{ending}" for ending in more]
        lines: list[list[Value]] = [list(header)]
        for group, row in rows:
            line: list[Value] = [] if self.group_name is None else [group.heading]
            for column, cell, more in zip(self.columns, row, endings, strict=True):
                values = dict(cell.more)
                line += [] if column.is_interval else [cell.value]
                line += [values.get(ending) for ending in more]
            lines.append(line)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        return text.getvalue().encode()


def one_group(rows: Sequence[tuple[Cell, ...]]) -> tuple[RowGroup, ...]:
    """Rows without headings between them."""
    return (RowGroup("", tuple(rows)),)


def words(text: str, *small: str) -> Cell:
    """An entry of words."""
    return Cell(text or DASH, text, tuple(line for line in small if line))


def figure_cell(metric: str, figure: Figure | None, is_probability: bool = True) -> Cell:
    """A metric with its by-customer interval and its spread over seeds in small type."""
    shown = metric_of(metric)
    if figure is None:
        return Cell(DASH, None)
    small = [interval(figure.by_customer, shown.decimals)]
    if exists(figure.over_seeds):
        small.append(f"± {number(figure.over_seeds, shown.decimals)}")
    folds: list[tuple[str, Value]] = [
        (f"fold_{place}", value) for place, value in enumerate(figure.by_fold, start=1)
    ]
    more = (
        *bounds("by_customer", figure.by_customer),
        *bounds("by_transaction", figure.by_transaction),
        ("over_seeds", figure.over_seeds),
        *folds,
    )
    text = number(figure.value, shown.decimals)
    return Cell(
        text,
        figure.value,
        tuple(line for line in small if line),
        more,
        muted=shown.is_calibration and not is_probability,
    )


def interval_cell(text: str, pair: Interval | None, muted: bool = False) -> Cell:
    """An interval."""
    lower, upper = (None, None) if pair is None else pair
    return Cell(text or DASH, None, more=(("lower", lower), ("upper", upper)), muted=muted)


def bounds(name: str, pair: Interval | None) -> tuple[tuple[str, Value], ...]:
    """An interval as two further columns of the file."""
    return tuple((f"{name}_{ending}", value) for ending, value in interval_cell("", pair).more)
