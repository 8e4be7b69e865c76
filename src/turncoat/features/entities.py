"""Running facts of the second party, a terminal or merchant: how busy it is, how large this amount is for it, how risky it is.

Risk uses only labels that are known at the moment: those of transactions whose day ended at least `delay` seconds ago. Until
then a day's counts wait in a ring of daily cells; when the day comes of age they join totals that fade over a month.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turncoat.features.history import DAY, MONTH, WEEK
from turncoat.numerics.compiled import compiled_exactly

Array = NDArray[Any]

CONTINUOUS = ("entity_since_last", "entity_count_day", "entity_count_week", "entity_count_month", "entity_amount_z",
              "entity_risk", "entity_known")  # fmt: skip
N_FACTS = len(CONTINUOUS)
_N, _LAST, _COUNT, _AMOUNTS, _MEAN, _SQUARES, _KNOWN, _FRAUDS, _KNOWN_DAY, _RING = 0, 1, 2, 5, 6, 7, 8, 9, 10, 11
_WINDOW_SECONDS = np.array([DAY, WEEK, MONTH])
_FADE_DAYS = MONTH / DAY
PRIOR_ROWS = 20.0  # transactions' worth of the overall fraud rate that every entity starts with


def entity_numbers(delay: float) -> int:
    """Length of an entity's state: eleven numbers, and a count and a fraud count for each day that may still be waiting."""
    return _RING + 2 * ring_days(delay)


def ring_days(delay: float) -> int:
    """Days whose labels can be unknown at one moment, and the one before them."""
    return math.ceil(delay / DAY) + 2


def last_time(numbers: Array) -> float:
    """When the entity's latest transaction was."""
    return float(numbers[_LAST])


@compiled_exactly
def _come_of_age(numbers: Array, time: float, delay: float) -> None:
    """Move days that ended `delay` ago into the known totals, fading what was known day by day."""
    n_days = (len(numbers) - _RING) // 2
    newest_known = math.floor((time - delay) / DAY) - 1.0  # the last day that ended long enough ago
    day = numbers[_KNOWN_DAY]
    if newest_known - day > n_days + 1000.0:  # after years of silence all that was known has faded
        numbers[_KNOWN] = numbers[_FRAUDS] = 0.0
        numbers[_RING:] = 0.0
        day = newest_known
    fade = math.exp(-1.0 / _FADE_DAYS)
    for _ in range(int(newest_known - day)):
        day += 1.0
        cell = _RING + 2 * int(day % n_days)
        numbers[_KNOWN] = numbers[_KNOWN] * fade + numbers[cell]
        numbers[_FRAUDS] = numbers[_FRAUDS] * fade + numbers[cell + 1]
        numbers[cell] = numbers[cell + 1] = 0.0
    numbers[_KNOWN_DAY] = day


@compiled_exactly
def report_fraud(numbers: Array, time: float) -> None:
    """A transaction at `time` turned out to be fraud. If its day is of age already, the known totals take it, faded."""
    n_days = (len(numbers) - _RING) // 2
    day = math.floor(time / DAY)
    if day > numbers[_KNOWN_DAY]:
        numbers[_RING + 2 * int(day % n_days) + 1] += 1.0
    else:
        numbers[_FRAUDS] += math.exp((day - numbers[_KNOWN_DAY]) / _FADE_DAYS)


@compiled_exactly
def advance_entity(numbers: Array, time: float, amount: float, delay: float, base_rate: float, label_follows: bool, facts: Array) -> None:
    """One transaction at the entity: its facts [7] against the state, which it then joins.

    Unless its label will follow, it says nothing about risk, now or later.
    """
    facts[:] = np.nan
    n_days = (len(numbers) - _RING) // 2
    if numbers[_N] == 0.0:
        numbers[_LAST] = time
        numbers[_KNOWN_DAY] = math.floor((time - delay) / DAY) - 1.0
    else:
        facts[0] = math.log1p(max(time - numbers[_LAST], 0.0))
    now = max(time, numbers[_LAST])  # a row that arrives late counts as now
    passed = now - numbers[_LAST]
    for w in range(3):
        numbers[_COUNT + w] *= math.exp(-passed / _WINDOW_SECONDS[w])
        facts[1 + w] = math.log1p(numbers[_COUNT + w])
    size = math.log1p(max(amount, 0.0))
    if amount == amount and numbers[_AMOUNTS] > 1.0:
        spread = math.sqrt(numbers[_SQUARES] / (numbers[_AMOUNTS] - 1.0))
        facts[4] = (size - numbers[_MEAN]) / (spread + 0.1)
    _come_of_age(numbers, now, delay)
    if base_rate > 0.0:
        share = (numbers[_FRAUDS] + PRIOR_ROWS * base_rate) / (max(numbers[_KNOWN], numbers[_FRAUDS]) + PRIOR_ROWS)
        facts[5] = math.log(share / (1.0 - share))
        facts[6] = math.log1p(numbers[_KNOWN])
    numbers[_N] += 1.0
    numbers[_LAST] = now
    for w in range(3):
        numbers[_COUNT + w] += 1.0
    if amount == amount:
        numbers[_AMOUNTS] += 1.0
        off = size - numbers[_MEAN]
        numbers[_MEAN] += off / numbers[_AMOUNTS]
        numbers[_SQUARES] += off * (size - numbers[_MEAN])
    if label_follows:
        numbers[_RING + 2 * int(math.floor(now / DAY) % n_days)] += 1.0


@compiled_exactly
def replay_entities(
    order: Array, entities: Array, times: Array, amounts: Array, labels: Array, delay: float, base_rate: float, n_numbers: int, facts: Array
) -> None:
    """`advance_entity` over transactions in `order`, which has each entity's together, oldest first: facts [7, N].

    A fraud is reported at once, which changes nothing before its day comes of age. Without labels
    (`labels` empty) nothing is learnt about risk. Rows without an entity (-1) have no facts.
    """
    numbers, row = np.zeros(n_numbers), np.empty(N_FACTS)
    last = -1
    for i in order:
        if entities[i] < 0:
            facts[:, i] = np.nan
            continue
        if entities[i] != last:
            numbers[:] = 0.0
            last = entities[i]
        advance_entity(numbers, times[i], amounts[i], delay, base_rate, len(labels) > 0, row)
        facts[:, i] = row
        if len(labels) > 0 and labels[i] == 1:
            report_fraud(numbers, times[i])
