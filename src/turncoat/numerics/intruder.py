"""The customer's chain in continuous time: owner alone, or an intruder present (docs/chains.md).

While an intruder is present each transaction is the intruder's with probability `share`, and the
owner's otherwise. A transaction is compared with the owner's profiles of the amount and maybe other
columns, each a Normal-Gamma posterior from the customer's own transactions. How far it lies from a
profile, the surprise, has a density for owners and one for intruders; the tables of their log ratio
are all that the recursion needs. Log ratios of columns add up.

The latest transactions stay in a ring, with their evidence as it was when they were scored. Their
labels join the evidence as they become known: a known fraud is the intruder's or has another cause,
a known genuine transaction is the owner's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact
from turncoat.numerics.label_times import DAY, NEVER, UNKNOWN, LabelTimes, find_known_times

# Surprises are looked up on a grid; at its ends the log ratio stays constant.
MIN_SURPRISE, SURPRISE_STEP, N_SURPRISES = -8.0, 0.25, 161
# Profiles from fewer transactions than these limits have tables of their own.
HISTORY_LIMITS = (4.0, 16.0)
N_HISTORY_GROUPS = len(HISTORY_LIMITS) + 1
ARSINH, ROOT, IDENTITY = range(3)  # scales of columns
_MAX_LOG_RATIO = 500.0  # of all columns together

# A customer's state: the belief before its ring of latest rows, and the belief after the rows whose
# labels are settled, each with its time; the number of settled rows and of all rows, both since the
# customer's first; the profiles, each of three numbers; and the ring.
CHECKPOINT, CHECKPOINT_TIME, SETTLED, SETTLED_TIME, N_SETTLED, N_ROWS = range(6)
_PROFILES = 6
# A profile: its weight, mean and sum of squares.
WEIGHT, MEAN, SQUARES = range(3)
PROFILE_SIZE = 3
# A row of the ring: its time, the ratio of the two densities when it was scored, and its label.
_TIME, _RATIO, _LABEL = range(3)
_ROW_SIZE = 3
# What `advance_intruder` writes of a transaction. `surprise` and `times_usual` are of the column
# with the highest log ratio, the `oddest`. Known are the frauds of the customer that count by then,
# as far as the ring goes back, and the days since the first of them. The last two are the number of
# transactions just before, and of those among them that were likelier the intruder's than the
# owner's by their columns; this one is NaN if the transaction itself was not.
OUTPUTS = (
    "intruder",
    "presence",
    "surprise",
    "times_usual",
    "oddest",
    "known_frauds",
    "known_days",
    "recent_rows",
    "unusual_rows",
)
_INTRUDER, _PRESENCE, _SURPRISE, _TIMES_USUAL, _ODDEST, _KNOWN_FRAUDS, _KNOWN_DAYS = range(7)
_RECENT_ROWS, _UNUSUAL_ROWS = range(7, 9)
MAX_RECENT_ROWS = 5


class IntruderTables(NamedTuple):
    """An intruder chain as compiled code reads it."""

    onset: float  # intrusions per day
    end: float  # ends of an intrusion per day
    share: float  # of the intruder's transactions while present
    background: float  # of fraud among the owner's transactions, for whatever other cause
    memory_rows: int  # in a customer's ring
    scales: Array  # [C] of the profiles' columns: ARSINH, ROOT or IDENTITY
    units: Array  # [C] of arsinh
    priors: Array  # [C, 4] of profiles: mean, its weight, shape and rate of the precision
    # [C, history groups, surprises] log density of intruders less that of owners
    log_ratios: Array
    fixed_gap_days: float = 0.0  # between any two transactions; 0 for the real gaps


@jit_exact
def transform_amount(amount: float, scale: int, unit: float) -> float:
    """An amount, or the value of another column, on the profile's scale."""
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
def compute_surprise(value: float, profile: Array, prior: Array) -> tuple[float, float]:
    """How far a value lies from the profile, in standard normal units, and the profile's mean.

    The predictive distribution is Student's t; Wallace's formula makes it normal.
    """
    weight, kappa = profile[WEIGHT], prior[1] + profile[WEIGHT]
    shape = prior[2] + 0.5 * weight
    mean = (prior[1] * prior[0] + weight * profile[MEAN]) / kappa
    off = profile[MEAN] - prior[0]
    rate = prior[3] + 0.5 * profile[SQUARES] + 0.5 * prior[1] * weight * off * off / kappa
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
def state_size(n_profiles: int, memory_rows: int) -> int:
    """Numbers in a customer's state."""
    return _PROFILES + PROFILE_SIZE * n_profiles + _ROW_SIZE * memory_rows


class _FilterTables(NamedTuple):
    """The numbers of a chain that the filter needs: without arrays it is passed quickly."""

    onset: float
    end: float
    share: float
    background: float
    fixed_gap_days: float
    ring: int  # where it begins in a state
    memory_rows: int


@jit_exact
def _list_numbers(chain: IntruderTables) -> _FilterTables:
    rates = chain.onset, chain.end, chain.share, chain.background
    ring, gap = _PROFILES + PROFILE_SIZE * len(chain.units), chain.fixed_gap_days
    return _FilterTables(rates[0], rates[1], rates[2], rates[3], gap, ring, chain.memory_rows)


@jit_exact
def _find_row(chain: _FilterTables, row: float) -> int:
    """Where the ring has a row, counted from the customer's first."""
    return chain.ring + _ROW_SIZE * (int(row) % chain.memory_rows)


@jit_exact
def _is_settled(state: Array, place: int, known: tuple[float, float]) -> bool:
    """Whether time alone will not change what is known of the label of a row in the ring.

    `known` are the times before which labels count, and before which rows have matured.
    """
    label, time = state[place + _LABEL], state[place + _TIME]
    return bool(label == NEVER or time < (known[1] if label == UNKNOWN else known[0]))


@jit_exact
def _pass_time(present: float, seconds: float, chain: _FilterTables) -> float:
    """P(intruder present) some time later."""
    pace = chain.onset + chain.end
    usual = chain.onset / pace
    days = chain.fixed_gap_days if chain.fixed_gap_days > 0.0 else seconds / DAY
    return usual + (present - usual) * math.exp(-pace * days)


@jit_exact
def _pass_row(
    state: Array,
    place: int,
    present: float,
    since: float,
    known: tuple[float, float],
    chain: _FilterTables,
) -> float:
    """P(intruder present) after a row of the ring, from its evidence and its label if it counts.

    `present` is the belief after the row before, at the time `since`. A fraud is the intruder's or
    has another cause; a genuine row is the owner's, however odd.
    """
    present = _pass_time(present, state[place + _TIME] - since, chain)
    of_owner, of_intruder = 1.0, state[place + _RATIO]
    if state[place + _LABEL] != NEVER and _is_settled(state, place, known):
        if state[place + _LABEL] == 1.0:
            of_owner = chain.background
        else:
            of_owner, of_intruder = 1.0 - chain.background, 0.0
    here = present * ((1.0 - chain.share) * of_owner + chain.share * of_intruder)
    return float(here / ((1.0 - present) * of_owner + here))


@jit_exact
def _make_room(state: Array, known: tuple[float, float], chain: _FilterTables) -> None:
    """Where the ring is full, let its oldest row join the checkpoint with what is known of it."""
    oldest = state[N_ROWS] - chain.memory_rows
    if oldest < 0.0:
        return
    place, since = _find_row(chain, oldest), state[CHECKPOINT_TIME]
    state[CHECKPOINT] = _pass_row(state, place, state[CHECKPOINT], since, known, chain)
    state[CHECKPOINT_TIME] = state[place + _TIME]
    if state[N_SETTLED] <= oldest:
        state[SETTLED], state[SETTLED_TIME] = state[CHECKPOINT], state[CHECKPOINT_TIME]
        state[N_SETTLED] = oldest + 1.0


@jit_exact
def _settle_rows(
    state: Array, stop: float, known: tuple[float, float], chain: _FilterTables
) -> None:
    """Move the settled belief over the rows before `stop`, up to the first that is not settled."""
    while state[N_SETTLED] < stop:
        place, since = _find_row(chain, state[N_SETTLED]), state[SETTLED_TIME]
        if not _is_settled(state, place, known):
            return
        state[SETTLED] = _pass_row(state, place, state[SETTLED], since, known, chain)
        state[SETTLED_TIME] = state[place + _TIME]
        state[N_SETTLED] += 1.0


@jit_exact
def _predict_presence(
    state: Array, time: float, known: tuple[float, float], chain: _FilterTables
) -> float:
    """P(intruder present) at `time`, from all rows and the labels that count."""
    present, since = state[SETTLED], state[SETTLED_TIME]
    place = _find_row(chain, state[N_SETTLED])
    for _ in range(int(state[N_ROWS] - state[N_SETTLED])):
        present = _pass_row(state, place, present, since, known, chain)
        since = state[place + _TIME]
        place += _ROW_SIZE
        if place == len(state):
            place = chain.ring
    return _pass_time(present, time - since, chain)


@jit_exact
def _find_known_frauds(
    state: Array, known: tuple[float, float], chain: _FilterTables
) -> tuple[float, float]:
    """The number of frauds in the ring whose labels count, and the time of the first."""
    n_frauds, first = 0.0, math.nan
    for i in range(min(int(state[N_ROWS]), chain.memory_rows)):
        place = chain.ring + _ROW_SIZE * i
        if state[place + _LABEL] == 1.0 and state[place + _TIME] < known[0]:
            n_frauds += 1.0
            first = np.fmin(first, state[place + _TIME])  # NaN yields
    return n_frauds, first


@jit_exact
def _count_unusual_rows(state: Array, chain: _FilterTables) -> tuple[float, float]:
    """The number of latest rows that are looked at, and of those likelier the intruder's."""
    n_recent, n_unusual = min(state[N_ROWS], chain.memory_rows, MAX_RECENT_ROWS), 0.0
    for back in range(int(n_recent)):
        n_unusual += state[_find_row(chain, state[N_ROWS] - 1.0 - back) + _RATIO] > 1.0
    return n_recent, n_unusual


@jit_exact
def _weigh_columns(
    state: Array, columns: Array, chain: IntruderTables, output: Array, surprises: Array
) -> float:
    """The log ratio of a transaction's columns [C]; writes their surprises and the oddest of them.

    A column that is missing, or beyond computing, is no evidence; its surprise is NaN.
    """
    total, highest = 0.0, -math.inf
    output[_SURPRISE] = output[_TIMES_USUAL] = output[_ODDEST] = math.nan
    for c in range(len(columns)):
        scale, unit, first = chain.scales[c], chain.units[c], _PROFILES + PROFILE_SIZE * c
        value = transform_amount(columns[c], scale, unit)
        profile = state[first : first + PROFILE_SIZE]
        surprise, mean = compute_surprise(value, profile, chain.priors[c])
        surprises[c] = math.nan
        if not math.isfinite(surprise):
            continue
        surprises[c] = surprise
        table = chain.log_ratios[c, find_history_group(profile[WEIGHT])]
        log_ratio = look_up_log_ratio(table, surprise)
        total += log_ratio
        if log_ratio > highest:
            highest = log_ratio
            usual = restore_amount(mean, scale, unit)
            output[_SURPRISE], output[_ODDEST] = surprise, c
            output[_TIMES_USUAL] = columns[c] / usual if usual > 0.0 else math.nan
    return min(max(total, -_MAX_LOG_RATIO), _MAX_LOG_RATIO)


@jit_exact
def _learn_columns(
    state: Array, columns: Array, surprises: Array, weight: float, chain: IntruderTables
) -> None:
    """Add a transaction's columns to the profiles with the weight of its being the owner's."""
    for c in range(len(columns)):
        if math.isnan(surprises[c]):
            continue
        value = transform_amount(columns[c], chain.scales[c], chain.units[c])
        first = _PROFILES + PROFILE_SIZE * c
        profile = state[first : first + PROFILE_SIZE]
        profile[WEIGHT] += weight
        if profile[WEIGHT] > 0.0:
            off = value - profile[MEAN]
            profile[MEAN] += off * weight / profile[WEIGHT]
            profile[SQUARES] += weight * off * (value - profile[MEAN])


@jit_exact
def advance_intruder(
    state: Array,
    time: float,
    columns: Array,
    label: int,
    chain: IntruderTables,
    waits: LabelTimes,
    output: Array,
    surprises: Array,
) -> float:
    """Write the outputs of a transaction [9], then add it to the customer's state.

    `columns` [C] are those of the profiles, NaN if missing; their surprises are written to
    `surprises` [C]. The label is 0, 1, UNKNOWN or NEVER; it affects later rows only, once it
    counts. Profiles learn from a row in proportion to the probability that it is the owner's, as of
    now. A late transaction counts as now. Returns the log ratio.
    """
    n_rows, numbers = state[N_ROWS], _list_numbers(chain)
    if n_rows == 0.0:
        state[:] = 0.0
        state[CHECKPOINT] = state[SETTLED] = chain.onset / (chain.onset + chain.end)
        state[CHECKPOINT_TIME] = state[SETTLED_TIME] = time
    else:
        time = max(time, state[_find_row(numbers, n_rows - 1.0) + _TIME])
    known = find_known_times(time, waits)
    n_frauds, first = _find_known_frauds(state, known, numbers)
    output[_KNOWN_FRAUDS] = n_frauds
    output[_KNOWN_DAYS] = math.nan  # compiled code has no floor of NaN
    if n_frauds > 0.0:
        output[_KNOWN_DAYS] = math.floor(time / DAY) - math.floor(first / DAY)
    _make_room(state, known, numbers)
    _settle_rows(state, n_rows, known, numbers)
    present = output[_PRESENCE] = _predict_presence(state, time, known, numbers)
    log_ratio = _weigh_columns(state, columns, chain, output, surprises)
    output[_RECENT_ROWS], n_unusual = _count_unusual_rows(state, numbers)
    output[_UNUSUAL_ROWS] = n_unusual if log_ratio > 0.0 else math.nan
    place, ratio = _find_row(numbers, n_rows), math.exp(log_ratio)
    state[place + _TIME], state[place + _RATIO], state[place + _LABEL] = time, ratio, float(label)
    state[N_ROWS] += 1.0
    intruder = present * chain.share * ratio
    output[_INTRUDER] = intruder / (1.0 - present * chain.share + intruder)
    _learn_columns(state, columns, surprises, 1.0 - output[_INTRUDER], chain)
    return log_ratio


@jit_exact
def report_own_label(
    state: Array, time: float, n_later: int, label: int, chain: IntruderTables, waits: LabelTimes
) -> bool:
    """Set the label, 0 or 1, of the customer's transaction at `time`; False if it left the ring.

    `n_later` counts the customer's transactions with the same time that came after it. The state is
    then as if the label had been known from the start, apart from outputs made in between.
    """
    newest, numbers = state[N_ROWS] - 1.0, _list_numbers(chain)
    first = max(state[N_ROWS] - chain.memory_rows, 0.0)
    row = newest
    while row >= first and (state[_find_row(numbers, row) + _TIME] != time or n_later > 0):
        n_later -= state[_find_row(numbers, row) + _TIME] == time
        row -= 1.0
    if row < first:
        return False
    state[_find_row(numbers, row) + _LABEL] = float(label)
    state[SETTLED], state[SETTLED_TIME] = state[CHECKPOINT], state[CHECKPOINT_TIME]
    state[N_SETTLED] = first
    known = find_known_times(state[_find_row(numbers, newest) + _TIME], waits)
    _settle_rows(state, newest, known, numbers)
    return True


@jit_exact
def replay_intruder(
    offsets: Array,
    times: Array,
    columns: Array,
    labels: Array,
    chain: IntruderTables,
    waits: LabelTimes,
    outputs: Array,
    surprises: Array,
) -> Array:
    """`advance_intruder` over whole customers: columns [N, C]; returns the log ratios [N].

    Writes outputs [9, N] and surprises [N, C]. With the offsets of some customers only, writes to
    their rows and returns the log ratios of these.
    """
    state, first = np.zeros(state_size(len(chain.units), chain.memory_rows)), offsets[0]
    output, log_ratios = np.zeros(len(OUTPUTS)), np.zeros(offsets[-1] - first)
    for u in range(len(offsets) - 1):
        state[N_ROWS] = 0.0
        for i in range(offsets[u], offsets[u + 1]):
            row = columns[i], labels[i], chain, waits, output, surprises[i]
            log_ratios[i - first] = advance_intruder(state, times[i], *row)
            outputs[:, i] = output
    return log_ratios
