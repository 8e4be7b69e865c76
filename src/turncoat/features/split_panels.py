"""Parts of a split as panels: their rows with the visible history, and nothing later."""

from __future__ import annotations

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import Split, drop_short_sequences
from turncoat.data.transactions import Transactions
from turncoat.features.features import Features
from turncoat.panel import Panel


def select_visible(
    transactions: Transactions, split: Split, part: str, rows: Array | None = None
) -> tuple[Transactions, Array]:
    """The transactions visible to a part, and the indices of its rows (or of `rows`) in them."""
    visible = split.visible_rows(part, transactions.times)
    own = split.parts[part] if rows is None else rows
    return transactions.take(visible), np.searchsorted(visible, own)


def select_fit_rows(customers: Array, rows: Array) -> Array:
    """The rows of customers with enough transactions to learn from.

    Where the others have more than half of the rows, all are kept.
    """
    kept = drop_short_sequences(customers, rows)
    return kept if 2 * len(kept) >= len(rows) else rows


def build_fit_panel(features: Features, transactions: Transactions, split: Split) -> Panel:
    """The fit part as a panel, see `select_fit_rows`."""
    visible, own = select_visible(transactions, split, "fit")
    return features.transform(visible, rows=select_fit_rows(visible.customer_codes, own))


def build_split_panel(
    features: Features,
    transactions: Transactions,
    split: Split,
    part: str,
    rows: Array | None = None,
) -> tuple[Panel, Array]:
    """A panel of a part's rows (or of `rows`) with their customers' history, and their indices."""
    visible, own = select_visible(transactions, split, part, rows)
    is_customer = np.isin(visible.customer_codes, np.unique(visible.customer_codes[own]))
    context = np.flatnonzero(is_customer & (visible.times <= visible.times[own].max()))
    return features.transform(visible, rows=context), np.searchsorted(context, own)
