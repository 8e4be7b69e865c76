"""Reasons: the log odds of the fraud regime against its strongest rival, as a sum of terms.

log odds = history (the belief before the transaction) + one term for each feature. Terms of
features from the same column are added up under its name. Behind an encoder a feature's term is its
integrated gradient, and one more term is the average transaction's (docs/scores.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from turncoat.arrays import Array
from turncoat.errors import ConfigError
from turncoat.models.live import LogOddsContributions
from turncoat.numerics.jit import jit_exact
from turncoat.scoring.descriptions import OTHERS, DescribedRow, FeatureDescriber


class Reason(Struct, frozen=True, gc=False, omit_defaults=True):
    """One term of the log odds behind a score: of the fraud regime, of trees, or a cause."""

    source: Annotated[str, Meta(description="column, group of features, or history")]
    text: Annotated[str, Meta(description="the same in words")]
    log_odds: Annotated[float, Meta(description="above 0 for fraud, below 0 against it")]
    share: Annotated[float | None, Meta(description="of a cause among all causes")] = None

    def __str__(self) -> str:
        if self.share is not None:
            return f"{self.text} ({self.share:.0%})"
        return f"{self.text}: {self.log_odds:+.1f}"


Reasons = tuple[Reason, ...]
_ABOVE = "above:"


def parse_min_probability(which: str) -> float:
    """The least probability that gets reasons, for `all` (0), `none` (infinity) or `above:P`."""
    if which in ("all", "none"):
        return 0.0 if which == "all" else math.inf
    try:
        probability = float(which.removeprefix(_ABOVE)) if which.startswith(_ABOVE) else math.nan
    except ValueError:
        probability = math.nan
    if not 0 <= probability <= 1:
        rule = "it must be all, none, or above:P with a probability P, such as above:0.05"
        raise ConfigError(f"reasons is {which!r}; {rule}")
    return probability


def list_reasons(
    contributions: LogOddsContributions,
    describer: FeatureDescriber,
    rows: Sequence[DescribedRow],
    n_reasons: int | None = None,
) -> list[Reasons]:
    """Reasons of each row, strongest first: terms summed by source, the weakest as one."""
    names, describe = describer.sources.names, describer.describe
    n_max = len(names) if n_reasons is None else min(max(n_reasons, 0), len(names))
    ranked = _rank_sources(contributions, describer.sources.places, len(names), n_max)
    found = []
    for row, shown, totals, n_shown, n_others, others in zip(
        rows, *(column.tolist() for column in ranked), strict=True
    ):
        reasons = [
            Reason(names[place], describe[place](row), total)
            for place, total in zip(shown[:n_shown], totals, strict=False)
        ]
        if n_others:
            reasons.append(Reason(OTHERS, f"{n_others} other facts together", others))
        found.append(tuple(reasons))
    return found


@jit_exact
def _rank_sources(
    terms: LogOddsContributions, places: Array, n_sources: int, n_max: int
) -> tuple[Array, Array, Array, Array, Array]:
    """Of N rows: the strongest sources, their totals and count; the others' number and sum.

    `places` are those of history, the average and the features. The largest sources come first,
    equal ones by place. The average counts only where it is not 0.
    """
    n_rows, n_columns = terms.cells.shape
    best, best_totals = np.zeros((n_rows, n_max), np.int64), np.zeros((n_rows, n_max))
    n_best, n_others = np.zeros(n_rows, np.int64), np.zeros(n_rows, np.int64)
    others, totals = np.zeros(n_rows), np.empty(n_sources)
    for i in range(n_rows):
        totals[:] = 0.0
        totals[places[0]] += terms.history[i]
        totals[places[1]] += terms.rest[i]
        for d in range(n_columns):
            totals[places[2 + d]] += terms.cells[i, d]
        for j in range(terms.codes.shape[1]):
            totals[places[2 + n_columns + j]] += terms.codes[i, j]
        row, n = best[i], 0
        for source in range(n_sources):
            if source == places[1] and terms.rest[i] == 0.0:
                continue
            at = n
            while at > 0 and abs(totals[source]) > abs(totals[row[at - 1]]):
                at -= 1
            if n == n_max:  # the weakest drops out
                n_others[i] += 1
                others[i] += totals[source if at == n_max else row[n_max - 1]]
            n = min(n + 1, n_max)
            for place in range(n - 1, at, -1):
                row[place] = row[place - 1]
            if at < n_max:
                row[at] = source
        for place in range(n):
            best_totals[i, place] = totals[row[place]]
        n_best[i] = n
    return best, best_totals, n_best, n_others, others
