"""Running features of a customer or counterparty: a transaction compared with everything before it.

The state has a fixed size and is advanced once per transaction. Features are computed before the
transaction joins the state, so a row never sees itself or anything later. Batch and live run the
same compiled `advance`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact

HOUR, DAY, WEEK, MONTH = 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0
WINDOWS = {"hour": HOUR, "day": DAY, "week": WEEK, "month": MONTH}

NUMBERS = (  # of the state
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
N_CONTINUOUS = len(CONTINUOUS)
# Features whose mean depends on how long a history has been watched, for months.
GROWING = ("since_first", "n_before", "count_month", "sum_month", "amount_to_max")

TIME_CONTINUOUS = ("hour_cos", "hour_sin", "n_missing")  # of the transaction alone
TIME_CATEGORICAL = ("weekday",)
N_WEEKDAYS = 7

# Values of a tracked column are remembered in a Bloom filter of 256 bits, two per value. It is
# exact for few values. With 30 values, one new value in 23 looks familiar; with 80, one in 5.
BLOOM_WORDS = 8
SEEN_WORDS = 1 + BLOOM_WORDS  # per tracked column: the hash of the last value, the Bloom filter

_WINDOW_SECONDS = np.array(list(WINDOWS.values()))
_MAX_AMOUNT = 1e300  # keeps sums finite: an infinite sum would never decay


class Payment(NamedTuple):
    """What the running features take from one transaction."""

    time: float  # seconds
    clock: float  # the same on the local clock, for hours and weekdays
    amount: float  # NaN if unknown
    n_missing: float


class Payments(NamedTuple):
    """What the running features take from N transactions."""

    times: Array  # [N]
    clocks: Array  # [N]
    amounts: Array  # [N]
    n_missing: Array  # [N] int32
    tracked: Array  # [N, tracked columns] uint32: hashes of values, 0 for missing ones


def list_categorical(tracked: Sequence[str]) -> tuple[str, ...]:
    """Names of the binary features: first transaction; then new and changed tracked values."""
    return ("is_first", *(f"{name}_{column}" for column in tracked for name in ("new", "changed")))


@jit_exact
def _compute_continuous(numbers: Array, payment: Payment, values: Array) -> None:
    """Continuous features [18] against a state decayed to the payment; NaN is not known yet."""
    time, clock, amount, n_missing = payment
    n = numbers[_N]
    values[:] = np.nan
    if n > 0.0:
        values[0] = math.log1p(max(time - numbers[_LAST], 0.0))
        values[1] = math.log1p(max(time - numbers[_FIRST], 0.0))
        values[17] = n_missing - numbers[_MISSING]
    values[2] = math.log1p(n)
    for w in range(4):
        values[3 + w] = math.log1p(numbers[_COUNT + w])
        values[7 + w] = math.log1p(numbers[_SUM + w])
    size = math.log1p(max(amount, 0.0))
    if amount == amount and numbers[_AMOUNTS] > 0.0:
        if numbers[_AMOUNTS] > 1.0:
            spread = math.sqrt(numbers[_SQUARES] / (numbers[_AMOUNTS] - 1.0))
            values[11] = (size - numbers[_MEAN]) / (spread + 0.1)  # amounts vary by a tenth anyway
        values[12] = size - numbers[_MEAN]
        values[13] = size - math.log1p(numbers[_MAX])
        values[14] = size - math.log1p(numbers[_AMOUNT])
    hour, day = _angle(clock, DAY), _angle(clock, WEEK)
    count = numbers[_COUNT + 3]
    if count > 0.0:
        similarity = math.cos(hour) * numbers[_HOUR] + math.sin(hour) * numbers[_HOUR + 1]
        values[15] = similarity / count
        similarity = math.cos(day) * numbers[_WEEKDAY] + math.sin(day) * numbers[_WEEKDAY + 1]
        values[16] = similarity / count


@jit_exact
def _angle(time: float, period: float) -> float:
    """Where a time is in its period, from 0 to 2 pi."""
    return 2.0 * math.pi * (time % period) / period


@jit_exact
def _decay(numbers: Array, time: float) -> None:
    """Decay the windows from the last transaction to now. A late row counts as now."""
    passed = max(time - numbers[_LAST], 0.0)
    for w in range(4):
        factor = math.exp(-passed / _WINDOW_SECONDS[w])
        numbers[_COUNT + w] *= factor
        numbers[_SUM + w] *= factor
    factor = math.exp(-passed / MONTH)
    for i in range(_HOUR, _MISSING):
        numbers[i] *= factor


@jit_exact
def _add_transaction(numbers: Array, payment: Payment) -> None:
    """Add a transaction to the state."""
    time, clock, amount, n_missing = payment
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
            numbers[_SUM + w] += min(paid, _MAX_AMOUNT)
        numbers[_AMOUNTS] += 1.0
        off = size - numbers[_MEAN]
        numbers[_MEAN] += off / numbers[_AMOUNTS]
        numbers[_SQUARES] += off * (size - numbers[_MEAN])
        numbers[_MAX] = max(numbers[_MAX], paid)
        numbers[_AMOUNT] = paid
    for begin, period in ((_HOUR, DAY), (_WEEKDAY, WEEK)):
        numbers[begin] += math.cos(_angle(clock, period))
        numbers[begin + 1] += math.sin(_angle(clock, period))
    numbers[_MISSING] = n_missing


@jit_exact
def _add_to_bloom(seen: Array, base: int, value: int) -> bool:
    """Set both bits of a value; returns whether both were set before."""
    is_seen = True
    for shift in (0, 8):
        bit = (value >> shift) & 255
        word, mask = base + (bit >> 5), np.uint32(1) << np.uint32(bit & 31)
        is_seen &= (seen[word] & mask) != 0
        seen[word] |= mask
    return is_seen


@jit_exact
def advance(
    numbers: Array, seen: Array, payment: Payment, tracked: Array, values: Array, codes: Array
) -> None:
    """Compute a transaction's features against the state, then add it to the state.

    Writes `values` [18] and `codes` [1 + 2 tracked]; a code of -1 is unknown.
    """
    is_first = numbers[_N] == 0.0
    if not is_first:
        _decay(numbers, payment.time)
    _compute_continuous(numbers, payment, values)
    _add_transaction(numbers, payment)
    codes[0] = is_first
    for h in range(len(tracked)):
        base = h * SEEN_WORDS
        value, last = tracked[h], seen[base]
        codes[1 + 2 * h] = codes[2 + 2 * h] = -1
        if value != 0:
            is_seen = _add_to_bloom(seen, base + 1, value)
            if not is_first:
                codes[1 + 2 * h] = not is_seen
                if last != 0:
                    codes[2 + 2 * h] = value != last
            seen[base] = value


@jit_exact
def replay_customers(offsets: Array, payments: Payments, values: Array, codes: Array) -> None:
    """`advance` over whole customers: values [18, N], codes [1 + 2 tracked, N]."""
    times, clocks, amounts, n_missing, tracked = payments
    numbers, seen = np.empty(21), np.empty(SEEN_WORDS * tracked.shape[1], np.uint32)
    row, row_codes = np.empty(N_CONTINUOUS), np.empty(len(codes), np.int8)
    for u in range(len(offsets) - 1):
        numbers[:] = 0.0
        seen[:] = 0
        for i in range(offsets[u], offsets[u + 1]):
            payment = Payment(times[i], clocks[i], amounts[i], float(n_missing[i]))
            advance(numbers, seen, payment, tracked[i], row, row_codes)
            values[:, i] = row
            codes[:, i] = row_codes


@jit_exact
def compute_time_features(clock: float, n_missing: int, values: Array, codes: Array) -> None:
    """Hour, number of missing fields [3] and weekday [1] of one transaction on its local clock."""
    values[0] = math.cos(_angle(clock, DAY))
    values[1] = math.sin(_angle(clock, DAY))
    values[2] = n_missing
    # A time just before 0 rounds to a full week.
    codes[0] = min(int((clock % WEEK) // DAY), N_WEEKDAYS - 1)


@jit_exact
def compute_all_time_features(payments: Payments, values: Array, codes: Array) -> None:
    """`compute_time_features` of N transactions: values [3, N] and codes [1, N]."""
    for i, clock in enumerate(payments.clocks):
        compute_time_features(clock, payments.n_missing[i], values[:, i], codes[:, i])
