"""Sweeps over the width of an encoder's latents, and the choice between them.

Densities over latents of different widths cannot be compared. What the rule reads of an order, its fraud state, can.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from sklearn.base import clone

from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError
from turncoat.features import Features
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import DELTA, Choice, Order, compared
from turncoat.selection.sweep import ORDERS, Sweep, sweep

WIDTHS = (32, 64, 128)


def sweep_widths(
    transactions: Transactions,
    split: Split,
    *,
    model: NeuralVariationalHMM,
    features: Features,
    widths: Iterable[int] = WIDTHS,
    anchoring: Anchoring | None = None,
    orders: Iterable[int] = ORDERS,
    folder: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> dict[int, Sweep]:
    """`sweep` with every `latent_dim` of `widths`, each with an encoder of its own; by width, rising."""
    if not isinstance(model, NeuralVariationalHMM) or model.encoder is not None:
        raise ConfigError(
            "widths are of the encoder that a NeuralVariationalHMM trains; give one without an `encoder`"
        )
    counts, found = list(orders), {}
    for width in sorted(set(widths)):
        below = None if folder is None else Path(folder) / f"latents-{width}"
        wide = clone(model).set_params(latent_dim=width)
        found[width] = sweep(
            transactions,
            split,
            model=wide,
            features=features,
            anchoring=anchoring,
            orders=counts,
            folder=below,
            progress=progress,
        )
    if not found:
        raise ConfigError("there is no width to sweep. Give at least one, as (32, 64, 128)")
    return found


def choose_width(choices: Mapping[int, Choice], delta: float = DELTA) -> int | None:
    """Walk the widths upward, as the orders: a wider one only where its chosen order is enriched by more than `delta` above the kept one's.

    None if no width has an eligible order.
    """
    kept: tuple[int, Order] | None = None
    for width, choice in sorted(choices.items()):
        order = choice.kept
        if order is not None and compared(order, None if kept is None else kept[1], delta)[0]:
            kept = width, order
    return None if kept is None else kept[0]
