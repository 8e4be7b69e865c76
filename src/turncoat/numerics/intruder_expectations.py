"""The E-step of the customer's chain: expected intrusions, given labels in hindsight."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.intruder import IntruderTables
from turncoat.numerics.jit import jit
from turncoat.numerics.label_times import DAY

_MAX_EXPLAINED = 1.0 - 1e-12


class IntruderExpectations(NamedTuple):
    """Sums of an E-step over all customers."""

    log_likelihood: float
    onsets: float
    ends: float
    absent_days: float
    present_days: float
    present_rows: float
    intruder_rows: float
    unexplained_frauds: float  # frauds of the owner's rows that no known cause explains
    other_frauds: float  # all frauds of the owner's rows
    labelled_rows: float


@jit
def _integrate(start: int, end: int, days: float, presence: float, pace: float) -> Array:
    """Expected days in each state, and passages between them per rate, times P(end | start).

    The integrals of P(start, a, s) P(b, end, days - s) over s for (a, b) = (0, 0), (0, 1), (1, 0)
    and (1, 1); every transition probability is a constant plus a multiple of exp(-pace s).
    """
    decay = math.exp(-pace * days)
    single, double = (1.0 - decay) / pace, days * decay
    left = np.empty((2, 2))  # constant and factor of P(start, a)
    right = np.empty((2, 2))  # of P(b, end)
    left[0, 0], left[1, 0] = 1.0 - presence, presence
    left[0, 1], left[1, 1] = (presence, -presence) if start == 0 else (presence - 1, 1 - presence)
    for b in range(2):
        right[b, 0] = presence if end == 1 else 1.0 - presence
        right[b, 1] = (presence if b == 0 else presence - 1.0) * (1.0 if end == 0 else -1.0)
    found = np.empty(4)
    for a in range(2):
        for b in range(2):
            mixed = left[a, 1] * right[b, 0] + left[a, 0] * right[b, 1]
            constant, squared = left[a, 0] * right[b, 0], left[a, 1] * right[b, 1]
            found[2 * a + b] = constant * days + mixed * single + squared * double
    return found


@jit
def expect_intruder(
    offsets: Array,
    times: Array,
    labels: Array,
    log_ratios: Array,
    explained: Array,
    unexplained: float,
    chain: IntruderTables,
    is_intruder: Array,
) -> IntruderExpectations:
    """E-step with labels: a fraud is the intruder's unless something else explains it.

    `explained` [N] is the probability that another known cause makes the row fraud, `unexplained`
    that an unknown one does. Labels are 0, 1, or -1 for unknown. Writes P(the row is the
    intruder's | all rows and labels of the customer) to `is_intruder` [N].
    """
    pace, share = chain.onset + chain.end, chain.share
    presence = chain.onset / pace
    n_max = 0
    for u in range(len(offsets) - 1):
        n_max = max(n_max, offsets[u + 1] - offsets[u])
    filtered, emissions, parts = np.empty((n_max, 2)), np.empty((n_max, 2)), np.empty(n_max)
    total = onsets = ends = absent_days = present_days = 0.0
    present_rows = intruder_rows = frauds = other_frauds = labelled = 0.0
    for u in range(len(offsets) - 1):
        first, n = offsets[u], offsets[u + 1] - offsets[u]
        present = presence
        for t in range(n):
            i = first + t
            if t > 0:
                decay = math.exp(-pace * (times[i] - times[i - 1]) / DAY)
                present = presence + (filtered[t - 1, 1] - presence) * decay
            other = min(1.0 - (1.0 - unexplained) * (1.0 - explained[i]), _MAX_EXPLAINED)
            of_owner, of_intruder = 1.0, 1.0
            if labels[i] == 1:
                of_owner = other
            elif labels[i] == 0:
                of_owner, of_intruder = 1.0 - other, 0.0
            intruder = share * math.exp(log_ratios[i]) * of_intruder
            emissions[t, 0] = of_owner
            emissions[t, 1] = (1.0 - share) * of_owner + intruder
            parts[t] = intruder / emissions[t, 1]
            evidence = (1.0 - present) * emissions[t, 0] + present * emissions[t, 1]
            total += math.log(evidence)
            filtered[t, 0] = (1.0 - present) * emissions[t, 0] / evidence
            filtered[t, 1] = present * emissions[t, 1] / evidence
        ahead = np.ones(2)
        for t in range(n - 1, -1, -1):
            i = first + t
            absent, here = filtered[t, 0] * ahead[0], filtered[t, 1] * ahead[1]
            here /= absent + here
            is_intruder[i] = here * parts[t]
            present_rows += here
            intruder_rows += is_intruder[i]
            if labels[i] >= 0:
                labelled += 1.0
            if labels[i] == 1:
                other = min(1.0 - (1.0 - unexplained) * (1.0 - explained[i]), _MAX_EXPLAINED)
                other_frauds += 1.0 - is_intruder[i]
                frauds += (1.0 - is_intruder[i]) * unexplained / other
            if t == 0:
                continue
            days = (times[i] - times[i - 1]) / DAY
            decay = math.exp(-pace * days)
            ahead *= emissions[t]
            onset, end = presence * (1.0 - decay), (1.0 - presence) * (1.0 - decay)
            behind = np.array(
                [
                    (1.0 - onset) * ahead[0] + onset * ahead[1],
                    end * ahead[0] + (1.0 - end) * ahead[1],
                ]
            )
            norm = filtered[t - 1, 0] * behind[0] + filtered[t - 1, 1] * behind[1]
            for start in range(2 if days > 0.0 else 0):
                for stop in range(2):
                    weight = filtered[t - 1, start] * ahead[stop] / norm
                    found = _integrate(start, stop, days, presence, pace)
                    absent_days += weight * found[0]
                    onsets += weight * chain.onset * found[1]
                    ends += weight * chain.end * found[2]
                    present_days += weight * found[3]
            ahead = behind / max(behind[0], behind[1])
    return IntruderExpectations(
        total,
        onsets,
        ends,
        absent_days,
        present_days,
        present_rows,
        intruder_rows,
        frauds,
        other_frauds,
        labelled,
    )
