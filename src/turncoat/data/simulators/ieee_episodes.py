"""Fraud in the simulated IEEE-CIS data: whom it hits, for how many transactions, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncoat.arrays import Array
from turncoat.data.simulators.ieee_people import (
    DAY,
    FIRST_DAY,
    N_DAYS,
    PACE,
    SPENDING,
    People,
    folded,
)

FRAUD_RATE = 0.035
EPISODES = ("none", "card-testing", "takeover", "bust-out", "one-off")
NONE, CARD_TESTING, TAKEOVER, BUST_OUT, ONE_OFF = range(len(EPISODES))

_PRODUCT_RISK = np.array(
    [1.0, 6.0, 1.9, 2.4, 3.0]
)  # relative chance that a customer of W, C, R, H, S is hit


@dataclass(frozen=True)
class _Plan:
    """How one kind of episode runs."""

    share: float  # of all fraudulent rows
    fewest: int
    most: int
    minutes_between: float


_PLANS = {
    CARD_TESTING: _Plan(share=0.26, fewest=4, most=10, minutes_between=5.0),
    TAKEOVER: _Plan(share=0.34, fewest=2, most=6, minutes_between=180.0),
    BUST_OUT: _Plan(share=0.20, fewest=5, most=16, minutes_between=2 * 1440.0),
}


@dataclass(frozen=True, eq=False)
class Episodes:
    """One entry per person: at most one episode in each life."""

    kind: Array  # [P] a place in EPISODES
    size: Array  # [P] fraudulent rows


def plan_episodes(people: People, rng: np.random.Generator) -> Episodes:
    """Choose the victims so that the number of fraudulent rows is a binomial draw at the fraud rate."""
    n_rows = int(people.rows.sum())
    wanted = int(rng.binomial(n_rows, FRAUD_RATE))
    kind = np.full(len(people), NONE, np.int8)
    size = np.zeros(len(people), np.int64)
    for code, plan in _PLANS.items():
        proposed = np.minimum(
            rng.integers(plan.fewest, plan.most + 1, len(people)), people.rows - 1
        )  # one row at least is the victim's own
        able = np.flatnonzero((proposed >= plan.fewest) & (kind == NONE))
        line = _in_line(people, able, code, rng)
        hit = line[np.cumsum(proposed[line]) <= round(plan.share * wanted)]
        kind[hit], size[hit] = code, proposed[hit]
    line = _in_line(people, np.flatnonzero(kind == NONE), ONE_OFF, rng)
    hit = line[: wanted - int(size.sum())]
    kind[hit], size[hit] = ONE_OFF, 1
    return Episodes(kind, size)


def _in_line(people: People, able: Array, code: int, rng: np.random.Generator) -> Array:
    """The able people in random order, the likelier victims sooner."""
    risk = _PRODUCT_RISK[people.product[able]] * np.exp(
        0.5 * people.habits[able, PACE] + 0.4 * people.habits[able, SPENDING]
    )
    if code == ONE_OFF:
        risk = risk * people.rows[able]  # every transaction is as likely as any other
    if code == BUST_OUT:
        risk = risk * np.where(people.tenure[able] == 0, 3.0, 1.0)
    return able[np.argsort(rng.exponential(size=len(able)) / risk, kind="stable")]


def episode_times(
    people: People, episodes: Episodes, person: Array, place: Array, rng: np.random.Generator
) -> Array:
    """Seconds of the rows of episodes, given person by person with their place within the episode."""
    kind, last = episodes.kind[person], episodes.size[person] - 1
    gaps = rng.exponential(
        np.array([_PLANS[k].minutes_between if k in _PLANS else 0.0 for k in range(len(EPISODES))])[
            kind
        ]
        * 60
    )
    gaps = np.where(
        (kind == CARD_TESTING) & (place == last), 12 * gaps, gaps
    )  # the tested card is used after a while
    gaps[place == 0] = 0.0
    first_rows = np.flatnonzero(place == 0)
    passed = np.cumsum(gaps)
    passed -= np.repeat(passed[first_rows], np.diff(np.append(first_rows, len(place))))
    starts = _first_seconds(people, kind[first_rows], person[first_rows], rng)
    durations = passed[place == last]
    starts = np.maximum(
        np.minimum(starts, (FIRST_DAY + N_DAYS) * DAY - 1 - durations), FIRST_DAY * DAY
    )
    return np.repeat(starts, last[first_rows] + 1) + passed


def _first_seconds(people: People, kind: Array, person: Array, rng: np.random.Generator) -> Array:
    """Bust-outs come late in a life, other episodes anywhere; takeovers often happen at night."""
    earliest = np.where(kind == BUST_OUT, 0.5, 0.1)
    day = np.floor(folded(people.begin[person] + people.span[person] * rng.uniform(earliest, 1.0)))
    usual = rng.normal(people.hour[person], 3.0) % 24
    at_night = (kind == TAKEOVER) & (rng.random(len(kind)) < 0.6)
    hour = np.where(at_night, rng.uniform(0.0, 6.0, len(kind)), usual)
    seconds: Array = (day * 24 + hour) * 3600
    return seconds
