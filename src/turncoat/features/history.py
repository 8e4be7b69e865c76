"""Running facts of a party, a customer or a second one: what a transaction looks like against everything it did before.

The state is a fixed number of floats and marks, advanced once per transaction. The facts of a transaction are taken before it
joins the state, so a row never sees itself, nor anything later. Batch and live run the same compiled `advance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact

HOUR, DAY, WEEK, MONTH = 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0
WINDOWS = {"hour": HOUR, "day": DAY, "week": WEEK, "month": MONTH}

NUMBERS = (
    "n", "first_time", "last_time",
    *(f"count_{window}" for window in WINDOWS),
    *(f"sum_{window}" for window in WINDOWS),
    "n_amounts", "amount_mean", "amount_squares", "amount_max", "amount_last",
    "hour_cos", "hour_sin", "weekday_cos", "weekday_sin", "n_missing_last",
)  # fmt: skip
_N, _FIRST, _LAST, _COUNT, _SUM = 0, 1, 2, 3, 7
_AMOUNTS, _MEAN, _SQUARES, _MAX, _AMOUNT, _HOUR, _WEEKDAY, _MISSING = 11, 12, 13, 14, 15, 16, 18, 20

CONTINUOUS = (
    "since_last", "since_first", "n_before",
    *(f"count_{window}" for window in WINDOWS),
    *(f"sum_{window}" for window in WINDOWS),
    "amount_z", "amount_to_mean", "amount_to_max", "amount_to_last",
    "hour_habit", "weekday_habit", "n_missing_change",
)  # fmt: skip
N_FACTS = len(CONTINUOUS)
GROWING = ("since_first", "n_before")  # facts that only grow

# Which names a party has used is kept as 256 marks per habit column, two for each name. With few names it is exact; with 30
# in use, one new name in 23 is taken for one seen before; with 80, one in 5.
MARK_WORDS = 8
_HABIT_WORDS = 1 + MARK_WORDS  # the last name's hash, then the marks

_WINDOW_SECONDS = np.array(list(WINDOWS.values()))
_LARGEST = 1e300  # an amount whose sums stay finite: an infinite one would never fade


def categorical(habits: Sequence[str]) -> tuple[str, ...]:
    """Names of the yes/no facts: is this the first transaction; then for each habit column, is the name new, has it changed."""
    return ("is_first", *(f"{fact}_{column}" for column in habits for fact in ("new", "changed")))


def habit_words(n_habits: int) -> int:
    """Length of the marks of a state."""
    return _HABIT_WORDS * n_habits


@jit_exact
def _take_facts(numbers: Array, time: float, amount: float, n_missing: float, facts: Array) -> None:
    """Continuous facts [18] of a transaction against a state already decayed to its time. NaN is what cannot be known yet."""
    n = numbers[_N]
    facts[:] = np.nan
    if n > 0.0:
        facts[0] = math.log1p(max(time - numbers[_LAST], 0.0))
        facts[1] = math.log1p(max(time - numbers[_FIRST], 0.0))
        facts[17] = n_missing - numbers[_MISSING]
    facts[2] = math.log1p(n)
    for w in range(4):
        facts[3 + w] = math.log1p(numbers[_COUNT + w])
        facts[7 + w] = math.log1p(numbers[_SUM + w])
    size = math.log1p(max(amount, 0.0))
    if amount == amount and numbers[_AMOUNTS] > 0.0:
        if numbers[_AMOUNTS] > 1.0:
            spread = math.sqrt(numbers[_SQUARES] / (numbers[_AMOUNTS] - 1.0))
            facts[11] = (size - numbers[_MEAN]) / (
                spread + 0.1
            )  # a tenth: habits are not exact to the cent
        facts[12] = size - numbers[_MEAN]
        facts[13] = size - math.log1p(numbers[_MAX])
        facts[14] = size - math.log1p(numbers[_AMOUNT])
    hour = 2.0 * math.pi * (time % DAY) / DAY
    weekday = 2.0 * math.pi * (time % WEEK) / WEEK
    habitual = numbers[_COUNT + 3]
    if habitual > 0.0:
        facts[15] = (
            math.cos(hour) * numbers[_HOUR] + math.sin(hour) * numbers[_HOUR + 1]
        ) / habitual
        facts[16] = (
            math.cos(weekday) * numbers[_WEEKDAY] + math.sin(weekday) * numbers[_WEEKDAY + 1]
        ) / habitual


@jit_exact
def _decay(numbers: Array, time: float) -> None:
    """Let the windows fade from the last transaction to now. A row that arrives late counts as now."""
    passed = max(time - numbers[_LAST], 0.0)
    for w in range(4):
        kept = math.exp(-passed / _WINDOW_SECONDS[w])
        numbers[_COUNT + w] *= kept
        numbers[_SUM + w] *= kept
    kept = math.exp(-passed / MONTH)
    for place in range(_HOUR, _MISSING):
        numbers[place] *= kept


@jit_exact
def _join(numbers: Array, time: float, amount: float, n_missing: float) -> None:
    """Add a transaction to the state."""
    if numbers[_N] == 0.0:
        numbers[_FIRST] = time
        numbers[_LAST] = time
    numbers[_N] += 1.0
    numbers[_LAST] = max(numbers[_LAST], time)
    for w in range(4):
        numbers[_COUNT + w] += 1.0
    if amount == amount:
        paid = max(amount, 0.0)
        size = math.log1p(paid)
        for w in range(4):
            numbers[_SUM + w] += min(paid, _LARGEST)
        numbers[_AMOUNTS] += 1.0
        off = size - numbers[_MEAN]
        numbers[_MEAN] += off / numbers[_AMOUNTS]
        numbers[_SQUARES] += off * (size - numbers[_MEAN])
        numbers[_MAX] = max(numbers[_MAX], paid)
        numbers[_AMOUNT] = paid
    hour = 2.0 * math.pi * (time % DAY) / DAY
    weekday = 2.0 * math.pi * (time % WEEK) / WEEK
    numbers[_HOUR] += math.cos(hour)
    numbers[_HOUR + 1] += math.sin(hour)
    numbers[_WEEKDAY] += math.cos(weekday)
    numbers[_WEEKDAY + 1] += math.sin(weekday)
    numbers[_MISSING] = n_missing


@jit_exact
def _mark(marks: Array, base: int, name: int) -> bool:
    """Set both marks of a name; says whether both were set before."""
    seen = True
    for shift in (0, 8):
        bit = (name >> shift) & 255
        word, one = base + (bit >> 5), np.uint32(1) << np.uint32(bit & 31)
        seen &= (marks[word] & one) != 0
        marks[word] |= one
    return seen


@jit_exact
def advance(
    numbers: Array,
    marks: Array,
    time: float,
    amount: float,
    n_missing: float,
    names: Array,
    facts: Array,
    codes: Array,
) -> None:
    """One transaction: its facts [18] and codes [1 + 2 habits] against the state, which it then joins.

    `names` [habits] are hashes of the habit columns' values, 0 for a missing one. A code of -1 is what cannot be known.
    """
    is_first = numbers[_N] == 0.0
    if not is_first:
        _decay(numbers, time)
    _take_facts(numbers, time, amount, n_missing, facts)
    _join(numbers, time, amount, n_missing)
    codes[0] = is_first
    for h in range(len(names)):
        base = h * _HABIT_WORDS
        name, last = names[h], marks[base]
        codes[1 + 2 * h] = codes[2 + 2 * h] = -1
        if name != 0:
            seen = _mark(marks, base + 1, name)
            if not is_first:
                codes[1 + 2 * h] = not seen
                if last != 0:
                    codes[2 + 2 * h] = name != last
            marks[base] = name


@jit_exact
def replay(
    offsets: Array,
    times: Array,
    amounts: Array,
    n_missing: Array,
    names: Array,
    facts: Array,
    codes: Array,
) -> None:
    """`advance` over whole customers, each from an empty state: facts [18, N] and codes [1 + 2 habits, N]."""
    numbers, row, row_codes = np.empty(21), np.empty(N_FACTS), np.empty(len(codes), np.int8)
    marks = np.empty(_HABIT_WORDS * names.shape[1], np.uint32)
    for u in range(len(offsets) - 1):
        numbers[:] = 0.0
        marks[:] = 0
        for i in range(offsets[u], offsets[u + 1]):
            advance(
                numbers, marks, times[i], amounts[i], float(n_missing[i]), names[i], row, row_codes
            )
            facts[:, i] = row
            codes[:, i] = row_codes
