"""The customer's chain in continuous time: owner alone, or an intruder present (docs/chains.md).

While an intruder is present each transaction is the intruder's with probability `share`, and the
owner's otherwise. A transaction is compared with the owner's profile, a Normal-Gamma posterior from
the customer's own transactions. How far it lies from the profile, the surprise, has a density for
owners and one for intruders; the table of their log ratio is all that the recursion needs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit, jit_exact

DAY = 86400.0
# Surprises are looked up on a grid; at its ends the log ratio stays constant.
MIN_SURPRISE, SURPRISE_STEP, N_SURPRISES = -8.0, 0.25, 161
# Profiles from fewer transactions than these limits have tables of their own.
HISTORY_LIMITS = (4.0, 16.0)
N_HISTORY_GROUPS = len(HISTORY_LIMITS) + 1
_MAX_EXPLAINED = 1.0 - 1e-12
ARSINH, ROOT, IDENTITY = range(3)  # scales of amounts

# A customer's state: P(intruder present), time of the last transaction; the profile: its weight,
# mean and sum of squares.
PRESENT, LAST_TIME, WEIGHT, MEAN, SQUARES = range(5)
STATE_SIZE = 5
# What `advance_intruder` writes of a transaction.
OUTPUTS = ("intruder", "presence", "surprise", "times_usual")
_INTRUDER, _PRESENCE, _SURPRISE, _TIMES_USUAL = range(len(OUTPUTS))


class IntruderTables(NamedTuple):
    """An intruder chain as compiled code reads it."""

    onset: float  # intrusions per day
    end: float  # ends of an intrusion per day
    share: float  # of the intruder's transactions while present
    scale: int  # of amounts: ARSINH, ROOT or IDENTITY
    unit: float  # of arsinh
    prior: Array  # [4] of profiles: mean, its weight, shape and rate of the precision
    log_ratios: Array  # [history groups, surprises] log density of intruders less that of owners
    fixed_gap_days: float = 0.0  # between any two transactions; 0 for the real gaps


class IntruderExpectations(NamedTuple):
    """Sums of an E-step over all customers."""

    log_likelihood: float
    onsets: float
    ends: float
    absent_days: float
    present_days: float
    present_rows: float
    intruder_rows: float
    background_frauds: float  # frauds of the owner's rows that no known cause explains
    labelled_rows: float


@jit_exact
def transform_amount(amount: float, scale: int, unit: float) -> float:
    """The amount on the profile's scale."""
    if scale == ARSINH:
        return math.asinh(amount / unit)
    if scale == ROOT:
        return math.copysign(math.sqrt(abs(amount)), amount)
    return amount


@jit_exact
def restore_amount(value: float, scale: int, unit: float) -> float:
    """The inverse of `transform_amount`."""
    if scale == ARSINH:
        return math.sinh(min(value, 700.0)) * unit
    if scale == ROOT:
        return math.copysign(value * value, value)
    return value


@jit_exact
def compute_surprise(value: float, state: Array, prior: Array) -> tuple[float, float]:
    """How far a value lies from the profile, in standard normal units, and the profile's mean.

    The predictive distribution is Student's t; Wallace's formula makes it normal.
    """
    weight, kappa = state[WEIGHT], prior[1] + state[WEIGHT]
    shape = prior[2] + 0.5 * weight
    mean = (prior[1] * prior[0] + weight * state[MEAN]) / kappa
    off = state[MEAN] - prior[0]
    rate = prior[3] + 0.5 * state[SQUARES] + 0.5 * prior[1] * weight * off * off / kappa
    ratio = (value - mean) / math.sqrt(rate * (kappa + 1.0) / (shape * kappa))
    freedom = 2.0 * shape
    normal = math.sqrt(freedom * math.log1p(ratio * ratio / freedom))
    normal *= (8.0 * freedom + 1.0) / (8.0 * freedom + 3.0)
    return math.copysign(normal, ratio), mean


@jit_exact
def look_up_log_ratio(table: Array, surprise: float) -> float:
    """The log ratio at a surprise, linear between the points of the grid."""
    place = (surprise - MIN_SURPRISE) / SURPRISE_STEP
    if place <= 0.0:
        return float(table[0])
    if place >= N_SURPRISES - 1:
        return float(table[N_SURPRISES - 1])
    below = int(place)
    part = place - below
    return float(table[below] * (1.0 - part) + table[below + 1] * part)


@jit_exact
def find_history_group(weight: float) -> int:
    """The table for a profile of this weight."""
    group = 0
    for limit in HISTORY_LIMITS:
        group += weight >= limit
    return group


@jit_exact
def measure_gap(chain: IntruderTables, earlier: float, later: float) -> float:
    """Days between two transactions of a customer; none if they came out of order."""
    if chain.fixed_gap_days > 0.0:
        return chain.fixed_gap_days
    return max(later - earlier, 0.0) / DAY


@jit_exact
def advance_intruder(
    state: Array, is_first: bool, time: float, amount: float, chain: IntruderTables, output: Array
) -> float:
    """Write the outputs of a transaction, then add it to the customer's state [5].

    The profile learns from it in proportion to the probability that it is the owner's. A late
    transaction counts as now. Without an amount there is no evidence. Returns the log ratio.
    """
    pace = chain.onset + chain.end
    usual_presence = chain.onset / pace
    if is_first:
        state[:] = 0.0
        state[PRESENT], state[LAST_TIME] = usual_presence, time
    gap = measure_gap(chain, state[LAST_TIME], time)
    present = usual_presence + (state[PRESENT] - usual_presence) * math.exp(-pace * gap)
    state[LAST_TIME] = max(time, state[LAST_TIME])
    output[_PRESENCE] = present
    value = transform_amount(amount, chain.scale, chain.unit)
    surprise, mean = compute_surprise(value, state, chain.prior)
    if not math.isfinite(surprise):  # no amount, or one beyond computing
        state[PRESENT] = present
        output[_INTRUDER] = present * chain.share
        output[_SURPRISE] = output[_TIMES_USUAL] = math.nan
        return 0.0
    table = chain.log_ratios[find_history_group(state[WEIGHT])]
    log_ratio = look_up_log_ratio(table, surprise)
    intruder = present * chain.share * math.exp(log_ratio)
    total = 1.0 - present * chain.share + intruder
    state[PRESENT] = (present * (1.0 - chain.share) + intruder) / total
    output[_INTRUDER], output[_SURPRISE] = intruder / total, surprise
    usual = restore_amount(mean, chain.scale, chain.unit)
    output[_TIMES_USUAL] = amount / usual if usual > 0.0 else math.nan
    weight = 1.0 - output[_INTRUDER]
    state[WEIGHT] += weight
    if state[WEIGHT] > 0.0:
        off = value - state[MEAN]
        state[MEAN] += off * weight / state[WEIGHT]
        state[SQUARES] += weight * off * (value - state[MEAN])
    return log_ratio


@jit_exact
def replay_intruder(
    offsets: Array, times: Array, amounts: Array, chain: IntruderTables, outputs: Array
) -> Array:
    """`advance_intruder` over whole customers: outputs [4, N]; returns the log ratios [N]."""
    state, output, log_ratios = np.zeros(STATE_SIZE), np.zeros(len(OUTPUTS)), np.zeros(len(times))
    for u in range(len(offsets) - 1):
        for i in range(offsets[u], offsets[u + 1]):
            is_first = i == offsets[u]
            log_ratios[i] = advance_intruder(state, is_first, times[i], amounts[i], chain, output)
            outputs[:, i] = output
    return log_ratios


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
    background: float,
    chain: IntruderTables,
    is_intruder: Array,
) -> IntruderExpectations:
    """E-step with labels: a fraud is the intruder's unless something else explains it.

    `explained` [N] is the probability that another known cause makes the row fraud, `background`
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
    present_rows = intruder_rows = frauds = labelled = 0.0
    for u in range(len(offsets) - 1):
        first, n = offsets[u], offsets[u + 1] - offsets[u]
        present = presence
        for t in range(n):
            i = first + t
            if t > 0:
                decay = math.exp(-pace * (times[i] - times[i - 1]) / DAY)
                present = presence + (filtered[t - 1, 1] - presence) * decay
            other = min(1.0 - (1.0 - background) * (1.0 - explained[i]), _MAX_EXPLAINED)
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
                other = min(1.0 - (1.0 - background) * (1.0 - explained[i]), _MAX_EXPLAINED)
                frauds += (1.0 - is_intruder[i]) * background / other
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
        labelled,
    )
