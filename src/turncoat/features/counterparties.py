"""The counterparty of a transaction, a terminal or merchant: the running facts of any party, and how risky it is.

Risk uses only labels that are known at the moment: those of transactions whose day ended at least `delay` seconds ago. Until
then a day's counts wait in a ring of daily cells; when the day comes of age they join totals that fade over a day, a week, a month.
"""

from __future__ import annotations

import math

import numpy as np

from turncoat.arrays import Array
from turncoat.features import history
from turncoat.features.history import DAY, advance
from turncoat.numerics.jit import jit_exact

RISK_WINDOWS = ("day", "week", "month")
CONTINUOUS = (
    *(f"counterparty_{name}" for name in history.CONTINUOUS),
    *(f"counterparty_risk_{window}" for window in RISK_WINDOWS),
    *(f"counterparty_known_{window}" for window in RISK_WINDOWS),
)
N_FACTS = len(CONTINUOUS)
_N_PARTY = history.N_FACTS
_N_NUMBERS = len(history.NUMBERS)
_HABIT_WORDS = history.habit_words(1)
_N, _LAST = history.NUMBERS.index("n"), history.NUMBERS.index("last_time")
_N_RISKS = len(RISK_WINDOWS)
_KNOWN, _FRAUDS, _KNOWN_DAY, _RING = (
    0,
    _N_RISKS,
    2 * _N_RISKS,
    2 * _N_RISKS + 1,
)  # in a counterparty's risk
_FADE_DAYS = np.array([history.WINDOWS[window] / DAY for window in RISK_WINDOWS])
PRIOR_ROWS = (
    5.0  # transactions' worth of the overall fraud rate that every counterparty starts with
)


def risk_numbers(delay: float) -> int:
    """Length of a counterparty's risk: seven numbers, and a count and a fraud count for each day that may still be waiting."""
    return _RING + 2 * ring_days(delay)


def ring_days(delay: float) -> int:
    """Days whose labels can be unknown at one moment, and the one before them."""
    return math.ceil(delay / DAY) + 2


def last_time(numbers: Array) -> float:
    """When the counterparty's latest transaction was."""
    return float(numbers[_LAST])


@jit_exact
def _come_of_age(risk: Array, time: float, delay: float) -> None:
    """Move days that ended `delay` ago into the known totals, fading what was known day by day."""
    n_days = (len(risk) - _RING) // 2
    newest_known = math.floor((time - delay) / DAY) - 1.0  # the last day that ended long enough ago
    day = risk[_KNOWN_DAY]
    if newest_known - day > n_days + 1000.0:  # after years of silence all that was known has faded
        risk[:] = 0.0
        day = newest_known
    for _ in range(int(newest_known - day)):
        day += 1.0
        cell = _RING + 2 * int(day % n_days)
        for w in range(_N_RISKS):
            fade = math.exp(-1.0 / _FADE_DAYS[w])
            risk[_KNOWN + w] = risk[_KNOWN + w] * fade + risk[cell]
            risk[_FRAUDS + w] = risk[_FRAUDS + w] * fade + risk[cell + 1]
        risk[cell] = risk[cell + 1] = 0.0
    risk[_KNOWN_DAY] = day


@jit_exact
def report_fraud(risk: Array, time: float) -> None:
    """A transaction at `time` turned out to be fraud. If its day is of age already, the known totals take it, faded."""
    n_days = (len(risk) - _RING) // 2
    day = math.floor(time / DAY)
    if day > risk[_KNOWN_DAY]:
        risk[_RING + 2 * int(day % n_days) + 1] += 1.0
    else:
        for w in range(_N_RISKS):
            risk[_FRAUDS + w] += math.exp((day - risk[_KNOWN_DAY]) / _FADE_DAYS[w])


@jit_exact
def advance_counterparty(
    state: tuple[Array, Array, Array],
    time: float,
    amount: float,
    n_missing: float,
    names: Array,
    delay: float,
    base_rate: float,
    label_follows: bool,
    facts: Array,
    codes: Array,
) -> None:
    """One transaction at the counterparty: its facts [24] and codes [1 + 2 habits] against the state, which it then joins.

    The state is the numbers and marks of any party, and the risk. Unless the transaction's label will follow, it says nothing
    about risk, now or later.
    """
    numbers, marks, risk = state
    n_days = (len(risk) - _RING) // 2
    if numbers[_N] == 0.0:
        risk[_KNOWN_DAY] = math.floor((time - delay) / DAY) - 1.0
    advance(numbers, marks, time, amount, n_missing, names, facts[:_N_PARTY], codes)
    now = numbers[_LAST]  # a row that arrives late counts as now
    _come_of_age(risk, now, delay)
    facts[_N_PARTY:] = np.nan
    if base_rate > 0.0:
        for w in range(_N_RISKS):
            known, frauds = risk[_KNOWN + w], risk[_FRAUDS + w]
            share = (frauds + PRIOR_ROWS * base_rate) / (max(known, frauds) + PRIOR_ROWS)
            facts[_N_PARTY + w] = math.log(share / (1.0 - share))
            facts[_N_PARTY + _N_RISKS + w] = math.log1p(known)
    if label_follows:
        risk[_RING + 2 * int(math.floor(now / DAY) % n_days)] += 1.0


@jit_exact
def replay_counterparties(
    order: Array,
    counterparties: Array,
    times: Array,
    amounts: Array,
    n_missing: Array,
    names: Array,
    labels: Array,
    delay: float,
    base_rate: float,
    n_risk: int,
    facts: Array,
    codes: Array,
) -> None:
    """`advance_counterparty` over transactions in `order`, which has each counterparty's together, oldest first.

    Writes facts [20, N] and codes [1 + 2 habits, N]. A fraud is reported at once, which changes nothing before its day comes of
    age. Without labels (`labels` empty, or -1) nothing is learnt about risk. Rows without a counterparty (-1) have no facts.
    """
    numbers, marks, risk = (
        np.zeros(_N_NUMBERS),
        np.zeros(_HABIT_WORDS * names.shape[1], np.uint32),
        np.zeros(n_risk),
    )
    row, row_codes = np.empty(N_FACTS), np.empty(len(codes), np.int8)
    last = -1
    for i in order:
        if counterparties[i] < 0:
            facts[:, i] = np.nan
            codes[:, i] = -1
            continue
        if counterparties[i] != last:
            numbers[:] = 0.0
            marks[:] = 0
            risk[:] = 0.0
            last = counterparties[i]
        state = (numbers, marks, risk)
        label_follows = len(labels) > 0 and labels[i] >= 0
        advance_counterparty(
            state,
            times[i],
            amounts[i],
            float(n_missing[i]),
            names[i],
            delay,
            base_rate,
            label_follows,
            row,
            row_codes,
        )
        facts[:, i] = row
        codes[:, i] = row_codes
        if len(labels) > 0 and labels[i] == 1:
            report_fraud(risk, times[i])
