"""The fifteen features of the Fraud Detection Handbook's baseline (its chapter 3).

Windows are spans of time, as in the book: those of a customer end with the transaction itself,
those of a terminal end seven days before it, when the labels of its earlier transactions are known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncoat.arrays import Array
from turncoat.data import Transactions

DAY = 86_400  # seconds
WINDOW_DAYS = (1, 7, 30)
DELAY_DAYS = 7
FEATURE_NAMES = (
    "TX_AMOUNT",
    "TX_DURING_WEEKEND",
    "TX_DURING_NIGHT",
    *(f"CUSTOMER_ID_NB_TX_{days}DAY_WINDOW" for days in WINDOW_DAYS),
    *(f"CUSTOMER_ID_AVG_AMOUNT_{days}DAY_WINDOW" for days in WINDOW_DAYS),
    *(f"TERMINAL_ID_NB_TX_{days}DAY_WINDOW" for days in WINDOW_DAYS),
    *(f"TERMINAL_ID_RISK_{days}DAY_WINDOW" for days in WINDOW_DAYS),
)
_LAST_NIGHT_HOUR = 6
_MS = 1_000  # per second; times are compared in whole milliseconds
_MAX_SHIFT_MS = (DELAY_DAYS + max(WINDOW_DAYS) + 1) * DAY * _MS


@dataclass(frozen=True, eq=False)
class GroupedRows:
    """N rows by group and time; rows of equal time keep their order."""

    order: Array  # [N] row at each place
    keys: Array  # [N] rising: milliseconds, moved apart by group

    @classmethod
    def sort(cls, groups: Array, times: Array) -> GroupedRows:
        """Rows [N] with a whole number as group and seconds as time."""
        moments = np.rint(times * _MS).astype(np.int64)
        moments -= moments.min()
        # The distance of two groups exceeds every window, so that no window reaches another group.
        keys = groups.astype(np.int64) * (int(moments.max()) + _MAX_SHIFT_MS) + moments
        order = np.argsort(keys, kind="stable")
        return cls(order, keys[order])

    def find_after(self, days: int) -> Array:
        """Place of the first row of the same group that is later than `days` before each row."""
        return np.searchsorted(self.keys, self.keys - days * DAY * _MS, side="right")

    def sum_between(self, values: Array, begins: Array, ends: Array) -> Array:
        """Sum of the values [N, by row] over the places from begin to before end, by row [N]."""
        sums = np.concatenate([[0.0], np.cumsum(values[self.order])])
        return self.by_row(sums[ends] - sums[begins])

    def by_row(self, values: Array) -> Array:
        """Values given by place, by row [N]."""
        rows = np.empty_like(values)
        rows[self.order] = values
        return rows


def compute_book_features(transactions: Transactions) -> Array:
    """The features [N, 15], as FEATURE_NAMES orders them."""
    amounts = transactions.column("TX_AMOUNT")
    terminals = transactions.categories["TERMINAL_ID"].codes[transactions.file_rows]
    labels = transactions.require_labels("the terminals' risk")
    days, seconds = np.divmod(transactions.times, DAY)
    is_weekend = (days + 3) % 7 >= 5  # day 0 is Thursday, January 1, 1970
    is_night = seconds // 3600 <= _LAST_NIGHT_HOUR
    customers = GroupedRows.sort(transactions.customer_codes, transactions.times)
    columns = [
        amounts,
        is_weekend,
        is_night,
        *_customer_columns(customers, amounts),
        *_terminal_columns(GroupedRows.sort(terminals, transactions.times), labels),
    ]
    return np.column_stack(columns).astype(np.float64)


def _customer_columns(rows: GroupedRows, amounts: Array) -> list[Array]:
    """Counts, then average amounts, by window."""
    ends = np.arange(1, len(rows.order) + 1)  # up to the row itself
    counts, averages = [], []
    for window in WINDOW_DAYS:
        begins = rows.find_after(window)
        counts.append(rows.by_row(ends - begins))
        averages.append(rows.sum_between(amounts, begins, ends) / counts[-1])
    return [*counts, *averages]


def _terminal_columns(rows: GroupedRows, labels: Array) -> list[Array]:
    """Counts, then shares of fraud, by window that ended seven days before."""
    ends = rows.find_after(DELAY_DAYS)
    counts, risks = [], []
    for window in WINDOW_DAYS:
        begins = rows.find_after(DELAY_DAYS + window)
        counts.append(rows.by_row(ends - begins))
        frauds = rows.sum_between(labels, begins, ends)
        risks.append(frauds / np.maximum(counts[-1], 1))  # 0 where there are no transactions
    return [*counts, *risks]
