"""Causes of fraud in words that an analyst can act on: who, since when, how unusual."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.numerics.label_times import STEP
from turncoat.scoring.descriptions import DescribedRow, FeatureDescriber
from turncoat.scoring.formatting import Clock, add_currency, format_rounded, format_times
from turncoat.scoring.scorecard import Scorecard

_PROBABLE, _POSSIBLE = 0.5, 0.05  # probabilities from which something is called so
_MIN_POINTS = 0.5  # log odds of a fact about the transaction that is worth telling
_MAX_FACTS = 2  # about the transaction


class Unusual(NamedTuple):
    """The oddest column of a transaction against what is usual for its customer."""

    column: str
    text: str  # the value as given
    value: float
    times_usual: float  # NaN if nothing is usual
    is_first: bool  # the customer's first transaction, compared with those of all customers
    currency: str | None = None  # of the value, if it was converted

    def describe(self) -> str:
        """The value, and how many times the usual it is."""
        if not self.times_usual > 0:
            return f"no usual {self.column} of this customer to compare with"
        whose = "usual for a new customer" if self.is_first else "this customer's own usual"
        usual = add_currency(format_rounded(self.value / self.times_usual), self.currency)
        times = format_times(self.times_usual)
        return f"{self.column} {self.text}, {times} {whose} (about {usual})"


def describe_intruder(
    unusual: Unusual,
    presence: float,
    n_frauds: float,
    known_days: float,
    n_recent: float,
    n_unusual: float,
) -> str:
    """What is odd about a transaction, and what came before it.

    `presence` is P(intruder present) before the transaction. The first of the customer's known
    frauds was `known_days` ago. Of the `n_recent` transactions just before, `n_unusual` were
    likelier an intruder's than the owner's, as this one; NaN if this one was not.
    """
    text = unusual.describe()
    if n_unusual > 0:
        before = f"{n_unusual:.0f} of the last {n_recent:.0f} before it"
        text += f", unusual like {'the one before it' if n_recent == 1 else before}"
    if n_frauds > 0:
        frauds, days = _count_frauds(n_frauds), _count_days(known_days)
        text += f", {frauds}, {'' if n_frauds == 1 else 'the first '}{days} ago"
    if presence >= _POSSIBLE:
        certainty = "probably" if presence >= _PROBABLE else "possibly"
        return f"{text}, with an intruder {certainty} present before"
    return text


def describe_compromise(
    name: str, clock: Clock, now: float, compromised: float, n_frauds: float, run_days: float
) -> str:
    """How likely a counterparty is compromised, since when, and how many frauds are known there.

    The run's first fraud was `run_days` before the step of six hours that `now` is in.
    """
    if compromised < _POSSIBLE and not n_frauds > 0:
        return f"no sign of a compromise of {name}"
    is_probable = compromised >= _PROBABLE
    certainty = "probably" if is_probable else "possibly"
    text = f"{name} {certainty if compromised >= _POSSIBLE else 'probably not'} compromised"
    if not n_frauds > 0:
        return text
    days = _count_days(run_days)
    frauds = _count_frauds(n_frauds)
    if clock.zone is None:
        when = f"{days} ago" if n_frauds == 1 else f"the first {days} ago"
        return f"{text}: {frauds} there, {when}"
    date = _format_step(clock, STEP * math.floor(now / STEP) - run_days * DAY)
    since = f"on {date}" if n_frauds == 1 else f"since {date}"
    return f"{text}{f' for {days}' if is_probable else ''}: {frauds} there {since}"


@dataclass(frozen=True, eq=False)
class TransactionDescriber:
    """Describes a transaction by the strongest facts of its scorecard."""

    features: FeatureDescriber
    scorecard: Scorecard

    def describe(self, rows: Sequence[DescribedRow]) -> list[str]:
        """The facts with the most points of N transactions, with their points."""
        card, names = self.scorecard, self.features.sources.names
        continuous, categorical = (np.array([row[part] for row in rows]) for part in (0, 1))
        bins = card.find_bins(continuous, categorical)
        sources = self.features.sources.places[2 + card.columns]
        totals = np.zeros((len(names), len(bins)))
        np.add.at(totals, sources, card.points[bins].T)
        found = []
        for own, places, row in zip(totals.T, bins, rows, strict=True):
            facts = []
            for source in np.argsort(-np.abs(own), kind="stable")[:_MAX_FACTS].tolist():
                if abs(own[source]) >= _MIN_POINTS:
                    fact = self._describe_fact(source, places, sources, row)
                    facts.append(f"{fact}: {own[source]:+.1f}")
            found.append(", ".join(facts) or "nothing unusual in the transaction itself")
        return found

    def _describe_fact(self, source: int, bins: Array, sources: Array, row: DescribedRow) -> str:
        """The value and range of a column of the file, or the text for a group of features."""
        for place in np.flatnonzero(sources == source):
            column = int(self.scorecard.columns[place])
            if self.features.is_raw_number(column):
                name = self.features.sources.names[source]
                bounds = self.scorecard.find_range(int(place), int(bins[place]))
                return self.features.describe_range(name, column, bounds, row)
        return self.features.describe[source](row)


def _format_step(clock: Clock, start: float) -> str:
    """The date of a step of six hours: two dates if it has midnight in it, in local time."""
    first, last = clock.format_date(start), clock.format_date(start + STEP - 1.0)
    if first == last:
        return first
    day, month = first.split()
    return f"{day if last.endswith(month) else first} or {last}"


def _count_frauds(n_frauds: float) -> str:
    return "1 known fraud" if n_frauds == 1 else f"{n_frauds:.0f} known frauds"


def _count_days(days: float) -> str:
    n_days = round(days)
    if n_days == 0:
        return "less than a day"
    return "1 day" if n_days == 1 else f"{n_days} days"
