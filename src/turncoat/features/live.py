"""Live rows: stored states of customers and counterparties, advanced in one compiled pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import StateError
from turncoat.features import counterparties, history
from turncoat.features.counterparties import advance_counterparty
from turncoat.features.history import advance, compute_time_features
from turncoat.features.plan import FeaturePlan, LiveLayout
from turncoat.features.scaling import fill_row, flag_categories
from turncoat.numerics.jit import jit_exact

_HEADER_BYTES = 8  # the fingerprint of the features, padded so that the numbers are aligned
_N_NUMBERS = len(history.NUMBERS)
_N_OWN, _N_TIME = history.N_CONTINUOUS, len(history.TIME_CONTINUOUS)


class FeatureState(NamedTuple):
    """Stored records behind one transaction; None for a new customer or counterparty."""

    customer: bytes | None = None
    counterparty: bytes | None = None


class LiveRows(NamedTuple):
    """N rows to process in order."""

    cells: Array  # [N, continuous columns]
    hashes: Array  # [N, tracked columns] uint32
    times: Array  # [N]
    label_follows: Array  # [N] bool
    has_counterparty: Array  # [N] bool
    previous: Array  # [N, 2] earlier row of the same customer and counterparty; -1 if none


class FeatureRecords(NamedTuple):
    """Records of N rows as arrays, advanced in place."""

    numbers: Array  # [N, 21]
    seen: Array  # [N, words] uint32
    counterparty_numbers: Array  # [N, 21], or [N, 0] without a counterparty
    counterparty_seen: Array
    counterparty_risk: Array


@jit_exact
def advance_rows(
    rows: LiveRows,
    records: FeatureRecords,
    layout: LiveLayout,
    continuous: Array,
    categorical: Array,
) -> None:
    """Write the features of every row in order, and add each to its records."""
    values, codes = np.empty(layout.n_engineered), np.empty(layout.n_engineered_codes, np.int8)
    n_own_codes = 1 + 2 * rows.hashes.shape[1]
    own, own_codes = values[:_N_OWN], codes[:n_own_codes]
    time_values, time_codes = values[_N_OWN : _N_OWN + _N_TIME], codes[n_own_codes:]
    other, other_codes = values[_N_OWN + _N_TIME :], codes[n_own_codes + 1 :]
    raw, engineered, flagged = layout.raw, layout.engineered, layout.flagged
    for i in range(len(rows.times)):
        cells, hashes, time = rows.cells[i], rows.hashes[i], rows.times[i]
        n_missing = fill_row(
            cells, raw.scale, raw.columns, raw.flags, continuous[i], categorical[i]
        )
        n_missing += flag_categories(categorical[i], layout.n_categorical, flagged[0], flagged[1])
        if layout.n_engineered == 0:
            continue
        customer, counterparty = rows.previous[i]
        if customer >= 0:
            records.numbers[i] = records.numbers[customer]
            records.seen[i] = records.seen[customer]
        if counterparty >= 0:
            records.counterparty_numbers[i] = records.counterparty_numbers[counterparty]
            records.counterparty_seen[i] = records.counterparty_seen[counterparty]
            records.counterparty_risk[i] = records.counterparty_risk[counterparty]
        amount = cells[layout.amount_column] if layout.amount_column >= 0 else math.nan
        missing = float(n_missing)
        numbers, seen = records.numbers[i], records.seen[i]
        advance(numbers, seen, time, amount, missing, hashes, own, own_codes)
        compute_time_features(time, n_missing, time_values, time_codes)
        if len(other) > 0 and rows.has_counterparty[i]:
            numbers, seen = records.counterparty_numbers[i], records.counterparty_seen[i]
            advance_counterparty(
                (numbers, seen, records.counterparty_risk[i]),
                time,
                amount,
                missing,
                hashes[layout.counterparty_tracked],
                layout.delay,
                layout.base_rate,
                rows.label_follows[i],
                other,
                other_codes,
            )
        else:
            other[:] = np.nan
            other_codes[:] = -1
        columns, flags = engineered.columns, engineered.flags
        fill_row(values, engineered.scale, columns, flags, continuous[i], categorical[i])
        categorical[i, layout.first_engineered :] = codes


def customer_bytes(plan: FeaturePlan) -> int:
    """Size of a customer's record."""
    return _HEADER_BYTES + 8 * _N_NUMBERS + 4 * history.seen_words(len(plan.schema.tracked))


def counterparty_bytes(plan: FeaturePlan) -> int:
    """Size of a counterparty's record; 0 without a counterparty."""
    if not plan.has_counterparty:
        return 0
    n_numbers = _N_NUMBERS + counterparties.risk_size(plan.label_delay_s)
    n_words = history.seen_words(len(plan.counterparty_tracked))
    return _HEADER_BYTES + 8 * n_numbers + 4 * n_words


def unpack_states(plan: FeaturePlan, states: Sequence[FeatureState]) -> FeatureRecords:
    """The records of N states as writable arrays, zeros for new customers and counterparties."""
    size = 8 * _N_NUMBERS
    customers = [state.customer for state in states]
    own = _join_records(plan, customers, customer_bytes(plan), "customer")
    numbers, seen = own[:, :size].copy().view(np.float64), own[:, size:].copy().view(np.uint32)
    if not plan.has_counterparty:
        empty = np.empty((len(states), 0))
        return FeatureRecords(numbers, seen, empty, empty.astype(np.uint32), empty)
    others = [state.counterparty for state in states]
    other = _join_records(plan, others, counterparty_bytes(plan), "counterparty")
    risk_begin = size + 4 * history.seen_words(len(plan.counterparty_tracked))
    return FeatureRecords(
        numbers,
        seen,
        other[:, :size].copy().view(np.float64),
        other[:, size:risk_begin].copy().view(np.uint32),
        other[:, risk_begin:].copy().view(np.float64),
    )


def pack_states(
    plan: FeaturePlan,
    records: FeatureRecords,
    states: Sequence[FeatureState],
    has_counterparty: Sequence[bool],
) -> list[FeatureState]:
    """The states of advanced records; the counterparty stays for rows that name none."""
    customers = _split_records(plan, records.numbers, records.seen)
    others = [state.counterparty for state in states]
    if plan.has_counterparty:
        packed = _split_records(
            plan, records.counterparty_numbers, records.counterparty_seen, records.counterparty_risk
        )
        triples = zip(packed, others, has_counterparty, strict=True)
        others = [new if is_named else old for new, old, is_named in triples]
    return list(map(FeatureState, customers, others))


def _join_records(
    plan: FeaturePlan, records: Sequence[bytes | None], size: int, owner: str
) -> Array:
    """Records as an array [N, bytes] without their headers."""
    header = plan.fingerprint.to_bytes(_HEADER_BYTES, "little")
    empty = header + bytes(size - _HEADER_BYTES)
    known = [empty if record is None else record for record in records]
    for record in known:
        if len(record) != size or not record.startswith(header):
            raise StateError(
                f"the {owner}'s state ({len(record)} bytes) was made by other features; states of "
                f"these have {size} bytes. Rebuild the states by replaying the history"
            )
    joined = np.frombuffer(b"".join(known), np.uint8).reshape(len(known), size)
    return joined[:, _HEADER_BYTES:]


def _split_records(plan: FeaturePlan, *parts: Array) -> list[bytes]:
    """Records of the rows of arrays [N, ...], with headers."""
    n = len(parts[0])
    header = plan.fingerprint.to_bytes(_HEADER_BYTES, "little") * n
    headers = np.frombuffer(header, np.uint8).reshape(n, _HEADER_BYTES)
    content = np.concatenate([headers, *(part.view(np.uint8) for part in parts)], axis=1)
    size, joined = content.shape[1], content.tobytes()
    return [joined[start : start + size] for start in range(0, len(joined), size)]
