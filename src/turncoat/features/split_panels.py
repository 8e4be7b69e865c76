"""A part of the data as a panel: its rows with the history that may be known, and nothing of the parts after it."""

from __future__ import annotations

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import Split, drop_short_sequences
from turncoat.data.transactions import Transactions
from turncoat.errors import DataError
from turncoat.features.features import Features
from turncoat.panel import Panel


def select_visible(
    transactions: Transactions, split: Split, part: str, rows: Array | None = None
) -> tuple[Transactions, Array]:
    """What may be known when a part is used, and the part's rows in it, or other rows that may be known by then."""
    kept = split.visible_rows(part, transactions.times)
    return transactions.take(kept), np.searchsorted(
        kept, split.parts[part] if rows is None else rows
    )


def build_fit_panel(features: Features, transactions: Transactions, split: Split) -> Panel:
    """The fit part as a panel, without customers that have too few transactions to learn from."""
    known, rows = select_visible(transactions, split, "fit")
    kept = drop_short_sequences(known.customer_codes, rows)
    if len(kept) == 0:
        raise DataError(
            f"the fit part of the split {split.name!r} has no customer with 5 transactions. "
            "Choose a larger fit part"
        )
    return features.transform(known, rows=kept)


def build_split_panel(
    features: Features,
    transactions: Transactions,
    split: Split,
    part: str,
    rows: Array | None = None,
) -> tuple[Panel, Array]:
    """A panel in which these rows have all of their customers' earlier rows before them, and the rows' places in it."""
    known, own = select_visible(transactions, split, part, rows)
    customers = np.unique(known.customer_codes[own])
    context = np.flatnonzero(
        np.isin(known.customer_codes, customers) & (known.times <= known.times[own].max())
    )
    return features.transform(known, rows=context), np.searchsorted(context, own)
