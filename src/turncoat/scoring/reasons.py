"""Why: the log odds of the fraud regime against its strongest rival, taken apart exactly (the method, section 7).

log odds = history (what was believed before the transaction) + one term for every feature. Terms of features that come from the
same column of the file are added up under its name. Where an encoder comes first, a term is what integrated gradients give a feature, and
there is one more for what an average transaction, with no names, would add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

HISTORY, OTHERS, AVERAGE = "history", "others", "average transaction"


@dataclass(frozen=True)
class Reason:
    """One term of the log odds."""

    source: str  # the column of the file, the fact, or "history"
    text: str  # as a person would say it
    log_odds: float  # what it adds

    def __str__(self) -> str:
        """`amount 6.2x this customer's usual: +1.9`."""
        return f"{self.text}: {self.log_odds:+.1f}"


@dataclass(frozen=True, eq=False)
class Decomposition:
    """The log odds of one state against another, feature by feature."""

    state: int
    rival: int
    history: float
    continuous: Array  # [D]
    categorical: Array  # [J]
    average: float = 0.0

    @property
    def log_odds(self) -> float:
        """The sum of all terms."""
        return float(self.history + self.continuous.sum() + self.categorical.sum() + self.average)

    @classmethod
    def of(cls, state: int, log_predicted: Array, cells: Array, names: Array, rest: Array) -> Decomposition:
        """From the log belief before the row [K] and the row's log emission pieces [K, D], [K, J] and [K]."""
        scores = log_predicted + cells.sum(axis=1) + names.sum(axis=1) + rest
        rival = int(np.argmax(np.where(np.arange(len(scores)) == state, -np.inf, scores)))
        return cls(
            state,
            rival,
            float(log_predicted[state] - log_predicted[rival]),
            cells[state] - cells[rival],
            names[state] - names[rival],
            float(rest[state] - rest[rival]),
        )


def reasons(
    decomposition: Decomposition,
    sources: tuple[Sequence[str], Sequence[str]],
    words: Callable[[Sequence[str]], Mapping[str, str]],
    most: int | None = None,
) -> tuple[Reason, ...]:
    """The terms, those of one source added up, the strongest first; all but the `most` strongest as one.

    `sources` are those of the continuous and of the categorical features; `words` says what a row has there.
    """
    totals: dict[str, float] = {HISTORY: decomposition.history}
    if decomposition.average:
        totals[AVERAGE] = decomposition.average
    for names, terms in zip(sources, (decomposition.continuous, decomposition.categorical), strict=True):
        for name, term in zip(names, terms.tolist(), strict=True):
            totals[name] = totals.get(name, 0.0) + term
    ranked = sorted(totals.items(), key=lambda item: (-abs(item[1]), item[0]))
    shown, rest = ranked[:most], ranked[most:] if most is not None else []
    texts = {HISTORY: "history", AVERAGE: "where the encoder starts: all average, nothing named", **words([source for source, _ in shown])}
    told = [Reason(source, texts[source], term) for source, term in shown]
    if rest:
        told.append(Reason(OTHERS, f"{len(rest)} other facts together", sum(term for _, term in rest)))
    return tuple(told)
