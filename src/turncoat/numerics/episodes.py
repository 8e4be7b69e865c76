"""Episodes of fraud: a chain in continuous time whose evidence is another model's score.

While an episode lasts each transaction is part of it with probability `share`. The score is the log
likelihood ratio of a transaction that is part of it, but for a line; so the log odds that it is one
are the score's line plus the log odds from earlier transactions.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact

DAY = 86400.0
# A customer's state: P(an episode lasts), P(the latest transaction is part of it), its label if
# known (else below 0), and its time.
LASTS, LATEST, LABEL, LAST_TIME = range(4)
STATE_SIZE = 4
UNKNOWN = -1.0
_MAX_LOG_ODDS = 30.0


class EpisodeRates(NamedTuple):
    """A chain of episodes as compiled code reads it."""

    onset: float  # episodes per day
    end: float  # ends of an episode per day
    share: float  # of an episode's transactions while it lasts
    intercept: float  # of the score's line
    slope: float


@jit_exact
def advance_episode(
    state: Array, is_first: bool, time: float, score: float, rates: EpisodeRates
) -> float:
    """Log odds that a transaction is part of an episode.

    Adds the transaction to the customer's state [4]. A late transaction counts as now.
    """
    pace = rates.onset + rates.end
    usual = rates.onset / pace
    if is_first:
        state[LASTS], state[LATEST], state[LABEL], state[LAST_TIME] = usual, 0.0, UNKNOWN, time
    lasts = state[LASTS]
    if state[LABEL] == 1.0:
        lasts = 1.0
    elif state[LABEL] == 0.0:
        lasts = (lasts - state[LATEST]) / (1.0 - state[LATEST])
    gap = max(time - state[LAST_TIME], 0.0) / DAY
    lasts = usual + (lasts - usual) * math.exp(-pace * gap)
    share = lasts * rates.share
    found = math.log(share / (1.0 - share)) + rates.intercept + rates.slope * score
    found = min(max(found, -_MAX_LOG_ODDS), _MAX_LOG_ODDS)
    latest = 1.0 / (1.0 + math.exp(-found))
    state[LASTS] = (lasts - share) * (1.0 - latest) / (1.0 - share) + latest
    state[LATEST], state[LABEL] = latest, UNKNOWN
    state[LAST_TIME] = max(time, state[LAST_TIME])
    return found


@jit_exact
def filter_episodes(
    offsets: Array, times: Array, scores: Array, labels: Array, rates: EpisodeRates
) -> Array:
    """`advance_episode` over whole customers: log odds [N].

    A known label (0 or 1) conditions the customer's next transactions, never its own.
    """
    state, found = np.zeros(STATE_SIZE), np.empty(len(times))
    for u in range(len(offsets) - 1):
        for i in range(offsets[u], offsets[u + 1]):
            is_first = i == offsets[u]
            found[i] = advance_episode(state, is_first, times[i], scores[i], rates)
            state[LABEL] = labels[i]
    return found


@jit_exact
def compute_episode_loss(
    offsets: Array, times: Array, scores: Array, labels: Array, rates: EpisodeRates
) -> float:
    """Log loss of the known labels (0 or 1), where no label conditions a later transaction."""
    state, loss = np.zeros(STATE_SIZE), 0.0
    for u in range(len(offsets) - 1):
        for i in range(offsets[u], offsets[u + 1]):
            found = advance_episode(state, i == offsets[u], times[i], scores[i], rates)
            if labels[i] >= 0:
                margin = -found if labels[i] == 1 else found
                loss += max(margin, 0.0) + math.log1p(math.exp(-abs(margin)))
    return loss


@jit_exact
def advance_episodes(
    states: Array,
    is_known: Array,
    previous: Array,
    times: Array,
    scores: Array,
    rates: EpisodeRates,
) -> Array:
    """`advance_episode` of N live transactions in order; states [N, 4] are advanced in place.

    `previous` [N] is the customer's earlier transaction among them, whose state is taken, or -1.
    """
    found = np.empty(len(times))
    for i in range(len(times)):
        is_first = not is_known[i]
        if previous[i] >= 0:
            states[i] = states[previous[i]]
            is_first = False
        found[i] = advance_episode(states[i], is_first, times[i], scores[i], rates)
    return found
