"""Features of the counterparty, a terminal or merchant: its history and its fraud risk.

Risk uses only labels that have matured: those of days that ended at least `delay` seconds ago.
Until then a day's counts wait in a ring of daily cells. Matured counts join totals that decay over
a day, a week and a month, and the run: the frauds known since the last known genuine transaction.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from turncoat.arrays import Array
from turncoat.features import history
from turncoat.features.history import DAY, SEEN_WORDS, Payment, Payments, advance
from turncoat.numerics.jit import jit_exact

State: TypeAlias = tuple[Array, Array, Array]  # numbers, seen and risk
Features: TypeAlias = tuple[Array, Array]  # values and codes
RISK_WINDOWS = ("day", "week", "month")
CONTINUOUS = (
    *(f"counterparty_{name}" for name in history.CONTINUOUS),
    *(f"counterparty_risk_{window}" for window in RISK_WINDOWS),
    *(f"counterparty_known_{window}" for window in RISK_WINDOWS),
    "counterparty_since_genuine", "counterparty_since_run", "counterparty_since_label",
    "counterparty_run_frauds",
)  # fmt: skip
N_CONTINUOUS = len(CONTINUOUS)
PRIOR_ROWS = 5.0  # weight of the overall fraud rate in every counterparty's risk, in transactions

_N_HISTORY = history.N_CONTINUOUS
_N_NUMBERS = len(history.NUMBERS)
_N, _LAST = history.NUMBERS.index("n"), history.NUMBERS.index("last_time")
_N_RISKS = len(RISK_WINDOWS)
# Layout of the risk: known transactions, known frauds, the last matured day, the run, the ring.
_KNOWN, _FRAUDS, _KNOWN_DAY = 0, _N_RISKS, 2 * _N_RISKS
# Days of the last genuine label, of the first fraud after it, of the last label (NaN if none), and
# the number of these frauds.
_GENUINE_DAY, _RUN_DAY, _LABEL_DAY, _RUN_FRAUDS = range(_KNOWN_DAY + 1, _KNOWN_DAY + 5)
_RING = _RUN_FRAUDS + 1
_DECAY_DAYS = np.array([history.WINDOWS[window] / DAY for window in RISK_WINDOWS])


class RiskRules(NamedTuple):
    """What the risk of every counterparty depends on."""

    delay_s: float  # until labels are known
    base_rate: float  # the overall fraud rate; 0 if unknown
    size: int  # numbers in a risk


def risk_size(delay_s: float) -> int:
    """Length of a risk: eleven numbers, and two counts for each day that may be pending."""
    return _RING + 2 * (math.ceil(delay_s / DAY) + 2)


@jit_exact
def _mature_days(risk: Array, time: float, delay: float) -> None:
    """Move days that ended `delay` ago into the known totals, which decay day by day."""
    n_days = (len(risk) - _RING) // 2
    newest_known = math.floor((time - delay) / DAY) - 1.0  # the last day that ended long enough ago
    first = risk[_KNOWN_DAY] + 1.0
    n_new = newest_known - first + 1.0
    for i in range(int(min(n_new, n_days))):  # days after these have nothing pending
        cell = _RING + 2 * int((first + i) % n_days)
        for w in range(_N_RISKS):
            factor = math.exp(-1.0 / _DECAY_DAYS[w])
            risk[_KNOWN + w] = risk[_KNOWN + w] * factor + risk[cell]
            risk[_FRAUDS + w] = risk[_FRAUDS + w] * factor + risk[cell + 1]
        _extend_run(risk, first + i, risk[cell], risk[cell + 1])
        risk[cell] = risk[cell + 1] = 0.0
    for w in range(_N_RISKS):
        factor = math.exp(-max(n_new - n_days, 0.0) / _DECAY_DAYS[w])
        risk[_KNOWN + w] *= factor
        risk[_FRAUDS + w] *= factor
    risk[_KNOWN_DAY] = newest_known


@jit_exact
def _extend_run(risk: Array, day: float, known: float, frauds: float) -> None:
    """Add a matured day to the run; a day with both counts as genuine first, then fraud."""
    if known > frauds:
        risk[_GENUINE_DAY], risk[_RUN_DAY], risk[_RUN_FRAUDS] = day, math.nan, 0.0
    if frauds > 0.0:
        risk[_RUN_DAY] = np.fmin(risk[_RUN_DAY], day)  # NaN yields
        risk[_RUN_FRAUDS] += frauds
    if known > 0.0 or frauds > 0.0:
        risk[_LABEL_DAY] = np.fmax(risk[_LABEL_DAY], day)


@jit_exact
def report_fraud(risk: Array, time: float) -> None:
    """Count a fraud at `time`: on its pending day, or decayed if that day has matured."""
    n_days = (len(risk) - _RING) // 2
    day = math.floor(time / DAY)
    if day > risk[_KNOWN_DAY]:
        risk[_RING + 2 * int(day % n_days) + 1] += 1.0
    else:
        for w in range(_N_RISKS):
            risk[_FRAUDS + w] += math.exp((day - risk[_KNOWN_DAY]) / _DECAY_DAYS[w])
        if not day < risk[_GENUINE_DAY]:  # NaN if there was none
            _extend_run(risk, day, 0.0, 1.0)


@jit_exact
def advance_counterparty(
    state: State, payment: Payment, tracked: Array, rules: RiskRules, labelled: bool, row: Features
) -> None:
    """Compute a transaction's counterparty features, then add it to the counterparty's state.

    Writes the `row`: values [28] and codes [1 + 2 tracked]. Without a label, which may follow
    later, the transaction does not count towards risk.
    """
    (numbers, seen, risk), (values, codes) = state, row
    delay, base_rate, _ = rules
    n_days = (len(risk) - _RING) // 2
    if numbers[_N] == 0.0:
        risk[_KNOWN_DAY] = math.floor((payment.time - delay) / DAY) - 1.0
        risk[_GENUINE_DAY:_RUN_FRAUDS] = math.nan
    advance(numbers, seen, payment, tracked, values[:_N_HISTORY], codes)
    now = numbers[_LAST]  # a late row counts as now
    _mature_days(risk, now, delay)
    values[_N_HISTORY:] = np.nan
    if base_rate > 0.0:
        for w in range(_N_RISKS):
            known, frauds = risk[_KNOWN + w], risk[_FRAUDS + w]
            share = (frauds + PRIOR_ROWS * base_rate) / (max(known, frauds) + PRIOR_ROWS)
            values[_N_HISTORY + w] = math.log(share / (1.0 - share))
            values[_N_HISTORY + _N_RISKS + w] = math.log1p(known)
        for i, day in enumerate(risk[_GENUINE_DAY:_RUN_FRAUDS]):
            values[_N_HISTORY + 2 * _N_RISKS + i] = math.log1p(math.floor(now / DAY) - day)
        values[N_CONTINUOUS - 1] = math.log1p(risk[_RUN_FRAUDS])
    if labelled:
        risk[_RING + 2 * int(math.floor(now / DAY) % n_days)] += 1.0


@jit_exact
def replay_counterparties(
    order: Array, who: Array, payments: Payments, labels: Array, rules: RiskRules, output: Features
) -> None:
    """`advance_counterparty` over transactions in `order`: by counterparty, then by time.

    Writes values [28, N] and codes [1 + 2 tracked, N]. Frauds are reported at once, which has no
    effect before they mature. Without labels (empty, or -1) nothing is learnt about risk. A row
    without a counterparty (-1) has no features.
    """
    (times, amounts, n_missing, tracked), (values, codes) = payments, output
    numbers, risk = np.zeros(_N_NUMBERS), np.zeros(rules.size)
    seen = np.zeros(SEEN_WORDS * tracked.shape[1], np.uint32)
    row = np.empty(N_CONTINUOUS), np.empty(len(codes), np.int8)
    last = -1
    for i in order:
        if who[i] < 0:
            values[:, i] = np.nan
            codes[:, i] = -1
            continue
        if who[i] != last:
            numbers[:] = 0.0
            seen[:] = 0
            risk[:] = 0.0
            last = who[i]
        state, payment = (numbers, seen, risk), Payment(times[i], amounts[i], float(n_missing[i]))
        label = labels[i] if len(labels) > 0 else -1
        advance_counterparty(state, payment, tracked[i], rules, label >= 0, row)
        values[:, i], codes[:, i] = row
        if label == 1:
            report_fraud(risk, payment.time)
