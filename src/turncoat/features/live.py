"""Live rows: stored states of customers and counterparties, advanced in one compiled pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import StateError
from turncoat.features import history
from turncoat.features.chains import INTRUDER, N_OWN
from turncoat.features.counterparties import advance_counterparty
from turncoat.features.history import Payment, advance, compute_time_features
from turncoat.features.plan import FeaturePlan, LiveLayout
from turncoat.features.scaling import fill_row, flag_categories
from turncoat.numerics.intruder import advance_intruder
from turncoat.numerics.jit import jit_exact

_HEADER_BYTES = 8  # the fingerprint of the features, padded so that the numbers are aligned
_N_PARTS = 3  # of a customer's record
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
    labels: Array  # [N] int8: 0, 1, UNKNOWN or NEVER
    has_counterparty: Array  # [N] bool
    previous: Array  # [N, 2] earlier row of the same customer and counterparty; -1 if none


class FeatureRecords(NamedTuple):
    """Records of N rows as arrays, advanced in place."""

    numbers: Array  # [N, 21]
    seen: Array  # [N, words] uint32
    intruder: Array  # [N, numbers of the chain], or [N, 0] without it
    counterparty_numbers: Array  # [N, 21], or [N, 0] without a counterparty
    counterparty_seen: Array
    counterparty_risk: Array
    counterparty_compromise: Array


@jit_exact
def advance_rows(
    rows: LiveRows, records: FeatureRecords, layout: LiveLayout, panel: tuple[Array, Array, Array]
) -> None:
    """Write the features and causes of every row in order, and add each to its records."""
    continuous, categorical, causes = panel
    n_engineered, n_codes = len(layout.engineered.columns), categorical.shape[1]
    values, codes = np.empty(n_engineered), np.empty(n_codes - layout.first_engineered, np.int8)
    n_own_codes = 1 + 2 * rows.hashes.shape[1]
    own, own_codes = values[:_N_OWN], codes[:n_own_codes]
    time_values, time_codes = values[_N_OWN : _N_OWN + _N_TIME], codes[n_own_codes:]
    other, other_codes = values[_N_OWN + _N_TIME :], codes[n_own_codes + 1 :]
    flagged, surprises = layout.flagged, np.empty(len(layout.profile_columns))
    for i in range(len(rows.times)):
        cells, hashes, time = rows.cells[i], rows.hashes[i], rows.times[i]
        n_missing = fill_row(cells, layout.raw, continuous[i], categorical[i])
        n_missing += flag_categories(categorical[i], layout.n_categorical, flagged[0], flagged[1])
        if n_engineered == 0:
            continue
        customer, counterparty = rows.previous[i]
        if customer >= 0:
            records.numbers[i] = records.numbers[customer]
            records.seen[i] = records.seen[customer]
            records.intruder[i] = records.intruder[customer]
        if counterparty >= 0:
            records.counterparty_numbers[i] = records.counterparty_numbers[counterparty]
            records.counterparty_seen[i] = records.counterparty_seen[counterparty]
            records.counterparty_risk[i] = records.counterparty_risk[counterparty]
            records.counterparty_compromise[i] = records.counterparty_compromise[counterparty]
        amount = cells[layout.amount_column] if layout.amount_column >= 0 else math.nan
        payment = Payment(time, amount, float(n_missing))
        if records.intruder.shape[1] > 0:
            chain, waits, label = layout.intruder, layout.label_times, rows.labels[i]
            about = cells[layout.profile_columns], label, chain, waits, causes[i, :N_OWN], surprises
            advance_intruder(records.intruder[i], time, *about)
        advance(records.numbers[i], records.seen[i], payment, hashes, own, own_codes)
        compute_time_features(time, n_missing, time_values, time_codes)
        if len(other) > 0 and rows.has_counterparty[i]:
            numbers, seen = records.counterparty_numbers[i], records.counterparty_seen[i]
            state = numbers, seen, records.counterparty_risk[i], records.counterparty_compromise[i]
            tracked, rules = hashes[layout.counterparty_tracked], layout.risk_rules
            label, explained = rows.labels[i], causes[i, INTRUDER]
            row = other, other_codes, causes[i, N_OWN:]
            advance_counterparty(state, payment, tracked, rules, label, explained, row)
        else:
            other[:] = np.nan
            other_codes[:] = -1
        fill_row(values, layout.engineered, continuous[i], categorical[i])
        categorical[i, layout.first_engineered :] = codes


def unpack_states(plan: FeaturePlan, states: Sequence[FeatureState]) -> FeatureRecords:
    """The records of N states as writable arrays, zeros for new customers and counterparties."""
    parts = _join_records(plan, "customer", [state.customer for state in states])
    if plan.has_counterparty:
        parts += _join_records(plan, "counterparty", [state.counterparty for state in states])
    else:
        empty = np.empty((len(states), 0))
        parts += [empty, empty.astype(np.uint32), empty, empty]
    return FeatureRecords(*parts)


def pack_states(
    plan: FeaturePlan, records: FeatureRecords, states: Sequence[FeatureState], named: list[bool]
) -> list[FeatureState]:
    """The states of advanced records; the counterparty stays for rows that name none."""
    customers = _split_records(plan, "customer", records[:_N_PARTS])
    others = [state.counterparty for state in states]
    if plan.has_counterparty:
        packed = _split_records(plan, "counterparty", records[_N_PARTS:])
        triples = zip(packed, others, named, strict=True)
        others = [new if is_named else old for new, old, is_named in triples]
    return list(map(FeatureState, customers, others))


def _join_records(plan: FeaturePlan, owner: str, records: Sequence[bytes | None]) -> list[Array]:
    """The parts of N records as writable arrays [N, ...], without their headers."""
    kind = plan.record_types[owner]
    header, size = plan.fingerprint.to_bytes(_HEADER_BYTES, "little"), kind.itemsize
    empty = header + bytes(size - _HEADER_BYTES)
    known = [empty if record is None else record for record in records]
    for record in known:
        if len(record) != size or not record.startswith(header):
            found = f"the {owner}'s state ({len(record)} bytes) was made by other features"
            remedy = "Rebuild the states by replaying the history"
            raise StateError(f"{found}; states of these have {size} bytes. {remedy}")
    joined = np.frombuffer(b"".join(known), kind)
    return [joined[part].copy() for part in kind.names[1:]]


def _split_records(plan: FeaturePlan, owner: str, parts: Sequence[Array]) -> list[bytes]:
    """Records of the rows of arrays [N, ...], with headers."""
    kind = plan.record_types[owner]
    content = np.empty(len(parts[0]), kind)
    for name, part in zip(kind.names, (plan.fingerprint, *parts), strict=True):
        content[name] = part
    size, joined = kind.itemsize, content.tobytes()
    return [joined[start : start + size] for start in range(0, len(joined), size)]
