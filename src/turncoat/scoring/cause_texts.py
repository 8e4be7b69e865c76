"""Causes of fraud in words that an analyst can act on: who, since when, how unusual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.features import FeatureRow
from turncoat.numerics.label_times import STEP
from turncoat.scoring.descriptions import FeatureDescriber
from turncoat.scoring.scorecard import Scorecard

_PROBABLE, _POSSIBLE = 0.5, 0.05  # probabilities from which something is called so
_MIN_POINTS = 0.5  # log odds of a fact about the transaction that is worth telling
_MAX_FACTS = 2  # about the transaction
# Not `strftime`, whose names follow the locale.
_FIRST_MONTHS = ("January", "February", "March", "April", "May", "June")
_MONTHS = (*_FIRST_MONTHS, "July", "August", "September", "October", "November", "December")
_EARLIEST_S = -6e10  # the year 68: dates before it may not exist


def describe_intruder(
    column: str, times_usual: float, presence: float, n_frauds: float, known_days: float
) -> str:
    """A column, "" for the amount, against the customer's own usual, and what came before.

    `presence` is P(intruder present) before the transaction. The first of the customer's known
    frauds was `known_days` ago.
    """
    if not times_usual > 0:
        text = f"no usual {column or 'amount'} of this customer to compare with"
    else:
        times = f"{times_usual:.2g}" if times_usual < 10 else f"{times_usual:,.0f}"
        text = f"{column} {times} times this customer's own usual".strip()
    if n_frauds > 0:
        frauds, days = _count_frauds(n_frauds), _count_days(known_days)
        text += f", {frauds}, {'' if n_frauds == 1 else 'the first '}{days} ago"
    if presence >= _POSSIBLE:
        certainty = "probably" if presence >= _PROBABLE else "possibly"
        return f"{text}, with an intruder {certainty} present before"
    return text


def describe_compromise(
    name: str, now: float | None, compromised: float, n_frauds: float, run_days: float
) -> str:
    """How likely a counterparty is compromised, since when, and how many frauds are known there.

    The run's first fraud was `run_days` before `now`, in seconds since 1970; None without a
    calendar.
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
    if now is None:
        when = f"{days} ago" if n_frauds == 1 else f"the first {days} ago"
        return f"{text}: {frauds} there, {when}"
    date = _format_date(now - run_days * DAY)
    since = f"on {date}" if n_frauds == 1 else f"since {date}"
    return f"{text}{f' for {days}' if is_probable else ''}: {frauds} there {since}"


def find_step_start(time: float, has_calendar: bool) -> float | None:
    """The start of a time's step, from which runs are counted; None without a calendar."""
    return STEP * math.floor(time / STEP) if has_calendar else None


@dataclass(frozen=True, eq=False)
class TransactionDescriber:
    """Describes a transaction by the strongest facts of its scorecard."""

    features: FeatureDescriber
    scorecard: Scorecard

    def describe(self, continuous: Array, categorical: Array) -> list[str]:
        """The facts with the most points of N transactions, with their points."""
        card, names = self.scorecard, self.features.sources.names
        bins = card.find_bins(continuous, categorical)
        sources = self.features.sources.places[2 + card.columns]
        totals = np.zeros((len(names), len(bins)))
        np.add.at(totals, sources, card.points[bins].T)
        found = []
        for own, places, *cells in zip(totals.T, bins, continuous, categorical, strict=True):
            row, facts = FeatureRow(*cells), []
            for source in np.argsort(-np.abs(own), kind="stable")[:_MAX_FACTS].tolist():
                if abs(own[source]) >= _MIN_POINTS:
                    fact = self._describe_fact(source, places, sources, row)
                    facts.append(f"{fact}: {own[source]:+.1f}")
            found.append(", ".join(facts) or "nothing unusual in the transaction itself")
        return found

    def _describe_fact(self, source: int, bins: Array, sources: Array, row: FeatureRow) -> str:
        """The range of a column of the file, or the text for a group of features."""
        for place in np.flatnonzero(sources == source):
            column = int(self.scorecard.columns[place])
            if self.features.is_raw_number(column):
                name = self.features.sources.names[source]
                bounds = self.scorecard.find_range(int(place), int(bins[place]))
                return self.features.describe_range(name, column, *bounds)
        return self.features.describe[source](row)


def _count_frauds(n_frauds: float) -> str:
    return "1 known fraud" if n_frauds == 1 else f"{n_frauds:.0f} known frauds"


def _count_days(days: float) -> str:
    n_days = round(days)
    if n_days == 0:
        return "less than a day"
    return "1 day" if n_days == 1 else f"{n_days} days"


def _format_date(seconds: float) -> str:
    date = datetime.fromtimestamp(max(seconds, _EARLIEST_S), UTC)
    return f"{date.day} {_MONTHS[date.month - 1]}"
