"""The path of one customer through a file, transaction by transaction, with every reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from turncoat.data.transactions import Transactions
from turncoat.errors import DataError
from turncoat.scoring.scores import Score

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector


def explained(
    detector: Detector,
    transactions: Transactions,
    customer: str,
    transaction: Any = None,
    last: int | None = None,
) -> list[tuple[Any, Score]]:
    """(id, score with reasons) of each of a customer's transactions, of the last few, or of one. Filtered."""
    own = np.flatnonzero(
        transactions.keys[
            np.repeat(np.arange(transactions.n_customers), np.diff(transactions.offsets))
        ]
        == str(customer)
    )
    if len(own) == 0:
        raise DataError(
            f"{transactions.source}: no customer {customer!r}. The first there are {', '.join(map(str, transactions.keys[:5]))}"
        )
    if transaction is not None and str(transaction) not in transactions.ids[own].astype(str):
        raise DataError(
            f"{transactions.source}: customer {customer!r} has no transaction {transaction!r}"
        )
    panel = detector.features_.transform(transactions, rows=own)
    parts = detector.fitted()
    external = (
        None
        if parts.ranker is None
        else parts.ranker.of_transactions(transactions.take(own), panel)
    )
    scores = detector.score_panel(panel, external=external)
    low, high = scores.interval()
    asked = [
        i
        for i in range(0 if last is None else max(panel.n_rows - last, 0), panel.n_rows)
        if transaction is None or str(scores.ids[i]) == str(transaction)
    ]
    before = np.roll(scores.belief, 1, axis=0)[asked]  # of which the first is not known
    known = np.array(asked, dtype=np.int64) > 0
    why = detector.reasons(before, known, panel.continuous[asked], panel.categorical[asked])
    return [
        (
            scores.ids[i],
            Score(
                probability=float(scores.probability[i]),
                interval=(float(low[i]), float(high[i])),
                raw=float(scores.raw[i]),
                belief=tuple(scores.belief[i].tolist()),
                entropy=float(scores.entropy[i]),
                seen=i + 1,
                regime=int(scores.regime[i]),
                reasons=reason,
            ),
        )
        for i, reason in zip(asked, why, strict=True)
    ]
