"""Which rows train the encoder and which tell it when to stop: never the same customer's."""

from __future__ import annotations

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.panel import Panel


def split_rows(panel: Panel, share: float, seed: int) -> tuple[Array, Array]:
    """Rows with known labels, for training and for validation; that share of the customers with fraud and of the others."""
    if panel.labels is None:
        raise DataError(
            "training an encoder needs labels, and the panel has none. Give `labels`, or a trained `encoder`"
        )
    known = panel.labels >= 0
    kinds = np.unique(panel.labels[known])
    if len(kinds) < 2:
        found = f"only label {kinds[0]}" if len(kinds) else "no known label"
        raise DataError(
            f"training an encoder needs rows of both labels, 0 and 1; the panel has {found}"
        )
    with_fraud = np.logical_or.reduceat(panel.labels == 1, panel.offsets[:-1])
    with_known = np.logical_or.reduceat(known, panel.offsets[:-1])
    rng = np.random.default_rng(seed)
    held_out = np.zeros(panel.n_sequences, bool)
    for kind in (with_fraud, with_known & ~with_fraud):
        customers = rng.permutation(np.flatnonzero(kind))
        held_out[customers[: _share_of(len(customers), share)]] = True
    in_validation = np.repeat(held_out, panel.lengths)
    parts = np.flatnonzero(known & ~in_validation), np.flatnonzero(known & in_validation)
    for name, rows in zip(("training", "validation"), parts, strict=True):
        if len(np.unique(panel.labels[rows])) < 2:
            raise DataError(
                f"the encoder's {name} customers do not have rows of both labels: of {panel.n_sequences} customers, "
                f"{int(with_fraud.sum())} have fraud. Both parts need some; give more customers, or a trained `encoder`"
            )
    return parts


def _share_of(count: int, share: float) -> int:
    """At least one where there are two."""
    return min(max(round(share * count), 1), count - 1) if count > 1 else 0
