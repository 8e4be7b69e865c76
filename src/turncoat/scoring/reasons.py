"""Why: the log odds of the fraud regime against its strongest rival, taken apart exactly (the method, section 7).

log odds = history (what was believed before the transaction) + one term for every feature. Terms of features that come from the
same column of the file are added up under its name. Where an encoder comes first, a term is what integrated gradients give a feature, and
there is one more for what an average transaction, with no names, would add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turncoat.models.base import Contrast
from turncoat.numerics.compiled import compiled_exactly

Array = NDArray[Any]

HISTORY, OTHERS, AVERAGE = "history", "others", "average transaction"


class Reason(NamedTuple):
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
    def of(cls, log_predicted: Array, row: Contrast) -> Decomposition:
        """From the log belief before the row [K] and what the row adds."""
        history = float(log_predicted[row.state] - log_predicted[row.rival])
        return cls(row.state, row.rival, history, row.cells, row.codes, row.rest)


@dataclass(frozen=True)
class Sources:
    """Where each feature comes from: a column of the file, or a fact."""

    continuous: tuple[str, ...]  # [D]
    categorical: tuple[str, ...]  # [J]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every source once, in the order of the alphabet; also history and the average transaction."""
        return tuple(sorted({HISTORY, AVERAGE, *self.continuous, *self.categorical}))

    @cached_property
    def places(self) -> Array:
        """Place among the names of history, of the average transaction and of every feature [2 + D + J]."""
        places = {name: place for place, name in enumerate(self.names)}
        return np.array([places[name] for name in (HISTORY, AVERAGE, *self.continuous, *self.categorical)], dtype=np.int64)


def reasons(
    decomposition: Decomposition, sources: Sources, words: Callable[[Sequence[str]], Mapping[str, str]], most: int | None = None
) -> tuple[Reason, ...]:
    """The terms, those of one source added up, the strongest first; all but the `most` strongest as one.

    `words` says what a row has in some of the sources.
    """
    d, names = decomposition, sources.names
    wanted = len(names) if most is None else min(max(most, 0), len(names))
    shown, totals, n_others, others = _strongest(d.history, d.average, d.continuous, d.categorical, sources.places, len(names), wanted)
    told = [names[place] for place in shown.tolist()]
    texts = {HISTORY: "history", AVERAGE: "where the encoder starts: all average, nothing named", **words(told)}
    found = [Reason(source, texts[source], total) for source, total in zip(told, totals.tolist(), strict=True)]
    if n_others:
        found.append(Reason(OTHERS, f"{n_others} other facts together", others))
    return tuple(found)


@compiled_exactly
def _strongest(
    history: float, average: float, continuous: Array, categorical: Array, places: Array, n_sources: int, most: int
) -> tuple[Array, Array, int, float]:
    """The places and totals of the strongest sources, the largest first and equal ones by place; the number of others and their sum.

    The average transaction is a source only where it adds something.
    """
    totals = np.zeros(n_sources)
    totals[places[0]] += history
    totals[places[1]] += average
    for d in range(len(continuous)):
        totals[places[2 + d]] += continuous[d]
    for j in range(len(categorical)):
        totals[places[2 + len(continuous) + j]] += categorical[j]
    shown = np.empty(most, np.int64)
    n_shown, n_others, others = 0, 0, 0.0
    for source in range(n_sources):
        if source == places[1] and average == 0.0:
            continue
        at = n_shown
        while at > 0 and abs(totals[source]) > abs(totals[shown[at - 1]]):
            at -= 1
        if n_shown == most:  # one of them has no place
            n_others += 1
            others += totals[source if at == most else shown[most - 1]]
        n_shown = min(n_shown + 1, most)
        for place in range(n_shown - 1, at, -1):
            shown[place] = shown[place - 1]
        if at < most:
            shown[at] = source
    return shown[:n_shown], totals[shown[:n_shown]], n_others, others
