"""Why: the log odds of the fraud regime against its strongest rival, taken apart exactly (the method, section 7).

log odds = history (what was believed before the transaction) + one term for every feature. Terms of features that come from the
same column of the file are added up under its name. Where an encoder comes first, a term is what integrated gradients give a feature, and
there is one more for what an average transaction, with no names, would add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.features import FeatureRow
from turncoat.models.live import Contrasts
from turncoat.numerics.compiled import compiled_exactly

HISTORY, OTHERS, AVERAGE = "history", "others", "average transaction"


class Reason(NamedTuple):
    """One term of the log odds."""

    source: str  # the column of the file, the fact, or "history"
    text: str  # as a person would say it
    log_odds: float  # what it adds

    def __str__(self) -> str:
        """`amount 6.2x this customer's usual: +1.9`."""
        return f"{self.text}: {self.log_odds:+.1f}"


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
        return np.array(
            [places[name] for name in (HISTORY, AVERAGE, *self.continuous, *self.categorical)],
            dtype=np.int64,
        )


Words = Callable[[FeatureRow], str]  # what a row has in one source


def reasons(
    contrasts: Contrasts,
    sources: Sources,
    words: Sequence[Words],
    rows: Iterable[FeatureRow],
    most: int | None = None,
) -> list[tuple[Reason, ...]]:
    """Of every row: the terms, those of one source added up, the strongest first; all but the `most` strongest as one.

    `words` are those of the sources, in the order of their names.
    """
    c, names = contrasts, sources.names
    wanted = len(names) if most is None else min(max(most, 0), len(names))
    found = []
    columns = _strongest(c.history, c.rest, c.cells, c.codes, sources.places, len(names), wanted)
    for row, shown, totals, n_shown, n_others, others in zip(
        rows, *(column.tolist() for column in columns), strict=True
    ):
        told = [
            Reason(names[place], words[place](row), total)
            for place, total in zip(shown[:n_shown], totals, strict=False)
        ]
        if n_others:
            told.append(Reason(OTHERS, f"{n_others} other facts together", others))
        found.append(tuple(told))
    return found


@compiled_exactly
def _strongest(
    history: Array,
    average: Array,
    continuous: Array,
    categorical: Array,
    places: Array,
    n_sources: int,
    most: int,
) -> tuple[Array, Array, Array, Array, Array]:
    """Of N rows: the places and totals of the strongest sources, and how many; the number of others and their sum.

    The largest come first and equal ones by place. The average transaction is a source only where it adds something.
    """
    n_rows = len(history)
    shown, shown_totals = np.zeros((n_rows, most), np.int64), np.zeros((n_rows, most))
    n_shown, n_others, others = (
        np.zeros(n_rows, np.int64),
        np.zeros(n_rows, np.int64),
        np.zeros(n_rows),
    )
    totals = np.empty(n_sources)
    for i in range(n_rows):
        totals[:] = 0.0
        totals[places[0]] += history[i]
        totals[places[1]] += average[i]
        for d in range(continuous.shape[1]):
            totals[places[2 + d]] += continuous[i, d]
        for j in range(categorical.shape[1]):
            totals[places[2 + continuous.shape[1] + j]] += categorical[i, j]
        best, n = shown[i], 0
        for source in range(n_sources):
            if source == places[1] and average[i] == 0.0:
                continue
            at = n
            while at > 0 and abs(totals[source]) > abs(totals[best[at - 1]]):
                at -= 1
            if n == most:  # one of them has no place
                n_others[i] += 1
                others[i] += totals[source if at == most else best[most - 1]]
            n = min(n + 1, most)
            for place in range(n - 1, at, -1):
                best[place] = best[place - 1]
            if at < most:
                best[at] = source
        for place in range(n):
            shown_totals[i, place] = totals[best[place]]
        n_shown[i] = n
    return shown, shown_totals, n_shown, n_others, others
