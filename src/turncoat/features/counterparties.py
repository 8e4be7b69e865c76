"""Features of a counterparty, such as a terminal or device: its history and its fraud risk.

Time passes in steps of six hours. A label counts once its transaction's step ended `delay` seconds
ago. A transaction without a label counts as genuine `maturity` seconds later. Until then the counts
of a step stay in a ring of cells, so that a label that arrives in time has the effect that it would
have had from the start. After that they join totals that decay over a day, a week and a month, and
the run: the frauds known since the last known genuine transaction. Where the features have a chain
of compromises, the same labels are its evidence (`chains`).
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np

from turncoat.arrays import Array
from turncoat.features import chains, history
from turncoat.features.history import SEEN_WORDS, Payment, Payments, advance
from turncoat.numerics.compromise import CompromiseTables
from turncoat.numerics.jit import jit_exact
from turncoat.numerics.label_times import NEVER, STEP, STEPS_PER_DAY, UNKNOWN, find_newest_ended

State: TypeAlias = tuple[Array, Array, Array, Array]  # numbers, seen, risk and compromise
Features: TypeAlias = tuple[Array, Array, Array]  # values, codes and causes
RISK_WINDOWS = ("day", "week", "month")
CONTINUOUS = (
    *history.CONTINUOUS,
    *(f"risk_{window}" for window in RISK_WINDOWS),
    *(f"known_{window}" for window in RISK_WINDOWS),
    "since_genuine", "since_run", "since_label", "run_frauds",
)  # fmt: skip
N_CONTINUOUS = len(CONTINUOUS)
OF_LABELS = CONTINUOUS[history.N_CONTINUOUS :]  # what known labels say
# As of a customer, and what depends on how many labels of the counterparty are known by now.
GROWING = (
    *history.GROWING,
    "risk_month", "known_month", "since_genuine", "since_run", "since_label", "run_frauds",
)  # fmt: skip
PRIOR_ROWS = 5.0  # weight of the overall fraud rate in every counterparty's risk, in transactions

_N_HISTORY = history.N_CONTINUOUS
_N_NUMBERS = len(history.NUMBERS)
_N, _LAST = history.NUMBERS.index("n"), history.NUMBERS.index("last_time")
_N_RISKS = len(RISK_WINDOWS)
# Layout of the risk: known transactions, known frauds, the last matured step, the run, the ring.
_KNOWN, _FRAUDS, _MATURE_STEP = 0, _N_RISKS, 2 * _N_RISKS
# Steps of the last genuine label, of the first fraud after it, of the last label (NaN if none), and
# the number of these frauds.
_GENUINE_STEP, _RUN_STEP, _LABEL_STEP, _RUN_FRAUDS = range(_MATURE_STEP + 1, _MATURE_STEP + 5)
_RING = _RUN_FRAUDS + 1
# A step's cell: transactions with a label, frauds among them, and transactions without a label yet.
_CELL_KNOWN, _CELL_FRAUDS, _CELL_WAITING = range(3)
_CELL_SIZE = 3
_DECAY_STEPS = np.array([history.WINDOWS[window] / STEP for window in RISK_WINDOWS])
_STEP_FACTORS = np.array([math.exp(-1.0 / steps) for steps in _DECAY_STEPS])


class RiskRules(NamedTuple):
    """What the risk of every counterparty depends on."""

    delay_s: float  # until labels count
    maturity_s: float  # from then until a transaction without a label counts as genuine
    base_rate: float  # the overall fraud rate; 0 if unknown
    size: int  # numbers in a risk
    compromise_size: int  # numbers in a record of the chain; 0 without one
    chain: CompromiseTables


def risk_size(delay_s: float, maturity_s: float) -> int:
    """Length of a risk: eleven numbers, and a cell for each step that has not matured."""
    return _RING + _CELL_SIZE * (math.ceil((delay_s + maturity_s) / STEP) + 2)


@jit_exact
def _find_cell(risk: Array, step: float) -> int:
    """Where a step's cell begins."""
    n_steps = (len(risk) - _RING) // _CELL_SIZE
    return _RING + _CELL_SIZE * int(step % n_steps)


@jit_exact
def _add_step(totals: Array, step: float, known: float, frauds: float) -> None:
    """Let the totals decay by a step, and add what is known of it to them and to the run."""
    for w in range(_N_RISKS):
        totals[_KNOWN + w] = totals[_KNOWN + w] * _STEP_FACTORS[w] + known
        totals[_FRAUDS + w] = totals[_FRAUDS + w] * _STEP_FACTORS[w] + frauds
    _extend_run(totals, step, known, frauds)


@jit_exact
def _mature_steps(risk: Array, compromise: Array, chain: CompromiseTables, newest: float) -> None:
    """Move the steps up to `newest` into the totals; what still has no label counts as genuine."""
    n_steps = (len(risk) - _RING) // _CELL_SIZE
    first = risk[_MATURE_STEP] + 1.0
    n_new = newest - first + 1.0
    for i in range(int(min(n_new, n_steps))):  # steps after these have nothing pending
        cell = _find_cell(risk, first + i)
        waiting = risk[cell + _CELL_WAITING]
        known = risk[cell + _CELL_KNOWN] + waiting
        _add_step(risk, first + i, known, risk[cell + _CELL_FRAUDS])
        risk[cell : cell + _CELL_SIZE] = 0.0
        if len(compromise) > 0:
            chains.mature_step(compromise, chain, first + i, waiting)
    if len(compromise) > 0:
        chains.pass_empty_steps(compromise, chain, n_new - n_steps)
    for w in range(_N_RISKS):
        factor = math.exp(-max(n_new - n_steps, 0.0) / _DECAY_STEPS[w])
        risk[_KNOWN + w] *= factor
        risk[_FRAUDS + w] *= factor
    risk[_MATURE_STEP] = newest


@jit_exact
def _extend_run(risk: Array, step: float, known: float, frauds: float) -> None:
    """Add a step to the run; one with both counts as genuine first, then fraud."""
    if known > frauds:
        risk[_GENUINE_STEP], risk[_RUN_STEP], risk[_RUN_FRAUDS] = step, math.nan, 0.0
    if frauds > 0.0:
        risk[_RUN_STEP] = np.fmin(risk[_RUN_STEP], step)  # NaN yields
        risk[_RUN_FRAUDS] += frauds
    if known > 0.0 or frauds > 0.0:
        risk[_LABEL_STEP] = np.fmax(risk[_LABEL_STEP], step)


@jit_exact
def _shorten_run(risk: Array, step: float) -> None:
    """Take a fraud that turned out to be genuine out of the run, which ends if it was the latest.

    Frauds before a genuine transaction are not of the run, but the record does not know where in
    the run an earlier one was: then the others stay.
    """
    risk[_RUN_FRAUDS] = max(risk[_RUN_FRAUDS] - 1.0, 0.0)
    if risk[_RUN_FRAUDS] == 0.0 or step == risk[_LABEL_STEP]:
        risk[_RUN_FRAUDS], risk[_RUN_STEP] = 0.0, math.nan
        risk[_GENUINE_STEP] = risk[_LABEL_STEP]


@jit_exact
def report_label(
    risk: Array,
    compromise: Array,
    rules: RiskRules,
    time: float,
    label: int,
    earlier: int,
    explained: float,
) -> None:
    """Count the label, 0 or 1, of a transaction at `time` that counted as `earlier` so far.

    In a step that has not matured, the label has the effect that it would have had from the start.
    Later, the transaction has counted as genuine or fraud, and a correction changes the decayed
    totals. The chain remembers steps for longer. `explained` is the probability that other causes
    make the transaction fraud.
    """
    step = math.floor(time / STEP)
    frauds = (1.0 if label == 1 else 0.0) - (1.0 if earlier == 1 else 0.0)
    if len(compromise) > 0:
        counted = 0 if earlier == UNKNOWN and step <= risk[_MATURE_STEP] else earlier
        news = chains.weigh_label(rules.chain, label, explained)
        news -= chains.weigh_label(rules.chain, counted, explained)
        chains.add_label(compromise, rules.chain, risk[_MATURE_STEP], step, news)
    if step > risk[_MATURE_STEP]:
        cell = _find_cell(risk, step)
        if earlier == UNKNOWN:
            risk[cell + _CELL_WAITING] = max(risk[cell + _CELL_WAITING] - 1.0, 0.0)
        if earlier < 0:
            risk[cell + _CELL_KNOWN] += 1.0
        risk[cell + _CELL_FRAUDS] += frauds
        return
    known = 1.0 if earlier == NEVER else 0.0
    for w in range(_N_RISKS):
        factor = math.exp((step - risk[_MATURE_STEP]) / _DECAY_STEPS[w])
        risk[_KNOWN + w] += known * factor
        risk[_FRAUDS + w] += frauds * factor
    if not step < risk[_GENUINE_STEP]:  # NaN if there was none
        if frauds < 0.0:
            _shorten_run(risk, step)
        else:
            _extend_run(risk, step, 0.0, frauds)


@jit_exact
def advance_counterparty(
    state: State,
    payment: Payment,
    tracked: Array,
    rules: RiskRules,
    label: int,
    explained: float,
    row: Features,
) -> None:
    """Compute a transaction's counterparty features, then add it to the counterparty's state.

    Writes the `row`: values [28], codes [1 + 2 tracked] and causes [4]. The label is 0, 1, UNKNOWN
    or NEVER; `explained` is the probability that other causes make it 1. Neither affects the row's
    own features.
    """
    (numbers, seen, risk, compromise), (values, codes, causes) = state, row
    delay, maturity, base_rate, _, _, chain = rules
    has_chain = len(compromise) > 0
    if numbers[_N] == 0.0:
        risk[_MATURE_STEP] = find_newest_ended(payment.time, delay + maturity)
        risk[_GENUINE_STEP:_RUN_FRAUDS] = math.nan
        if has_chain:
            chains.start_compromise(compromise, chain, risk[_MATURE_STEP])
    advance(numbers, seen, payment, tracked, values[:_N_HISTORY], codes)
    now = numbers[_LAST]  # a late row counts as now
    current, newest_known = math.floor(now / STEP), find_newest_ended(now, delay)
    _mature_steps(risk, compromise, chain, find_newest_ended(now, delay + maturity))
    values[_N_HISTORY:] = np.nan
    causes[:] = 0.0
    if has_chain:
        chains.forget_steps(compromise, chain, current)
        steps = risk[_MATURE_STEP], newest_known, current
        causes[1] = chains.predict_compromised(compromise, chain, steps[0], steps[1], steps[2])
        causes[0] = causes[1] * chain.share
        chains.add_label(
            compromise, chain, steps[0], current, chains.weigh_label(chain, label, explained)
        )
    if base_rate > 0.0:
        n_known_steps = int(newest_known - risk[_MATURE_STEP])
        totals = risk[:_RING].copy() if n_known_steps > 0 else risk[:_RING]
        for i in range(n_known_steps):
            step = risk[_MATURE_STEP] + 1.0 + i
            cell = _find_cell(risk, step)
            _add_step(totals, step, risk[cell + _CELL_KNOWN], risk[cell + _CELL_FRAUDS])
        for w in range(_N_RISKS):
            known, frauds = totals[_KNOWN + w], totals[_FRAUDS + w]
            share = (frauds + PRIOR_ROWS * base_rate) / (max(known, frauds) + PRIOR_ROWS)
            values[_N_HISTORY + w] = math.log(share / (1.0 - share))
            values[_N_HISTORY + _N_RISKS + w] = math.log1p(known)
        for i, step in enumerate(totals[_GENUINE_STEP:_RUN_FRAUDS]):
            values[_N_HISTORY + 2 * _N_RISKS + i] = math.log1p((current - step) / STEPS_PER_DAY)
        values[N_CONTINUOUS - 1] = math.log1p(totals[_RUN_FRAUDS])
        causes[2] = totals[_RUN_FRAUDS]
        causes[3] = (current - totals[_RUN_STEP]) / STEPS_PER_DAY
    if label != NEVER:
        cell = _find_cell(risk, current)
        risk[cell + (_CELL_WAITING if label == UNKNOWN else _CELL_KNOWN)] += 1.0
        risk[cell + _CELL_FRAUDS] += 1.0 if label == 1 else 0.0


@jit_exact
def replay_counterparties(
    order: Array,
    who: Array,
    payments: Payments,
    labels: Array,
    explained: Array,
    rules: RiskRules,
    output: Features,
) -> None:
    """`advance_counterparty` over transactions in `order`: by counterparty, then by time.

    Writes values [28, N], codes [1 + 2 tracked, N] and causes [4, N]. Labels [N] are passed with
    their rows, which has no effect before they count. A row without a counterparty (-1) has no
    features. What the counterparty explains of each row is added to `explained` [N].
    """
    (times, clocks, amounts, n_missing, tracked), (values, codes, causes) = payments, output
    numbers, risk = np.zeros(_N_NUMBERS), np.zeros(rules.size)
    compromise = np.zeros(rules.compromise_size)
    seen = np.zeros(SEEN_WORDS * tracked.shape[1], np.uint32)
    row = np.empty(N_CONTINUOUS), np.empty(len(codes), np.int8), np.empty(len(causes))
    last = -1
    for i in order:
        if who[i] < 0:
            values[:, i] = np.nan
            codes[:, i] = -1
            causes[:, i] = 0.0
            continue
        if who[i] != last:
            numbers[:] = 0.0
            seen[:] = 0
            risk[:] = 0.0
            last = who[i]
        state = numbers, seen, risk, compromise
        payment = Payment(times[i], clocks[i], amounts[i], float(n_missing[i]))
        advance_counterparty(state, payment, tracked[i], rules, labels[i], explained[i], row)
        values[:, i], codes[:, i], causes[:, i] = row
        explained[i] = chains.add_cause_compiled(explained[i], row[2][chains.COMPROMISE_OUTPUT])
