"""Reasons: the log odds of the fraud regime against its strongest rival, as a sum of terms.

log odds = history (the belief before the transaction) + one term for each feature (the method,
section 7). Terms of features from the same column are added up under its name. Behind an encoder
a feature's term is its integrated gradient, and one more term is the average transaction's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.features import FeatureRow
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.live import LogOddsContributions
from turncoat.numerics.jit import jit_exact
from turncoat.scoring.descriptions import OTHERS, FeatureDescriber


class Reason(NamedTuple):
    """One term of the log odds."""

    source: str  # the column of the file, the fact, or "history"
    text: str  # as a person would say it
    log_odds: float  # what it adds

    def __str__(self) -> str:
        """`amount 6.2x this customer's usual: +1.9`."""
        return f"{self.text}: {self.log_odds:+.1f}"


@dataclass(frozen=True, eq=False)
class Explainer:
    """Finds the reasons behind the scores of rows."""

    model: HiddenMarkovModel[Any]
    describer: FeatureDescriber
    fraud_state: int

    def explain(
        self,
        prior_beliefs: Array,
        has_prior: Array,
        continuous: Array,
        categorical: Array,
        n_reasons: int | None = None,
    ) -> list[tuple[Reason, ...]]:
        """The reasons of N rows, strongest first; those beyond `n_reasons` are added up as one.

        `prior_beliefs` [N, K] are those before the rows; `has_prior` [N] is False where there is
        none. A model with one state has no reasons.
        """
        if self.model.n_states == 1:
            return [()] * len(prior_beliefs)
        predicted = self.model.predict_log_beliefs(prior_beliefs, has_prior)
        terms = self.model.explain_log_odds(self.fraud_state, predicted, continuous, categorical)
        rows = list(map(FeatureRow, continuous, categorical))
        return list_reasons(terms, self.describer, rows, n_reasons)


def list_reasons(
    contributions: LogOddsContributions,
    describer: FeatureDescriber,
    rows: Sequence[FeatureRow],
    n_reasons: int | None = None,
) -> list[tuple[Reason, ...]]:
    """Reasons of each row, strongest first: terms summed by source, the weakest as one."""
    sources, c = describer.sources, contributions
    names, describe = sources.names, describer.describe
    n_max = len(names) if n_reasons is None else min(max(n_reasons, 0), len(names))
    ranked = _rank_sources(c.history, c.rest, c.cells, c.codes, sources.places, len(names), n_max)
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
    history: Array,
    average: Array,
    continuous: Array,
    categorical: Array,
    places: Array,
    n_sources: int,
    n_max: int,
) -> tuple[Array, Array, Array, Array, Array]:
    """Of N rows: the places and totals of the strongest sources, and how many; the number of others and their sum.

    The largest come first and equal ones by place. The average transaction is a source only where it adds something.
    """
    n_rows = len(history)
    shown, shown_totals = np.zeros((n_rows, n_max), np.int64), np.zeros((n_rows, n_max))
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
            if n == n_max:  # one of them has no place
                n_others[i] += 1
                others[i] += totals[source if at == n_max else best[n_max - 1]]
            n = min(n + 1, n_max)
            for place in range(n - 1, at, -1):
                best[place] = best[place - 1]
            if at < n_max:
                best[at] = source
        for place in range(n):
            shown_totals[i, place] = totals[best[place]]
        n_shown[i] = n
    return shown, shown_totals, n_shown, n_others, others
