"""Live rows: stored states of customers and counterparties, advanced in one compiled pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import StateError
from turncoat.features import history
from turncoat.features.chains import COMPROMISE_OUTPUT, INTRUDER, N_EACH, N_OWN, add_cause_compiled
from turncoat.features.counterparties import N_CONTINUOUS, State, advance_counterparty
from turncoat.features.history import Payment, advance, compute_time_features
from turncoat.features.plan import FeaturePlan, LiveLayout
from turncoat.features.scaling import fill_row, flag_categories
from turncoat.numerics.intruder import advance_intruder
from turncoat.numerics.jit import jit_exact

_HEADER_BYTES = 8  # the fingerprint of the features, padded so that the numbers are aligned
_N_OWN, _N_TIME = history.N_CONTINUOUS, len(history.TIME_CONTINUOUS)


class FeatureState(NamedTuple):
    """Stored records behind one transaction; None for a new customer or counterparty."""

    customer: bytes | None = None
    counterparties: tuple[bytes | None, ...] = ()  # in the schema's order; () if all are new


class LiveRows(NamedTuple):
    """N rows to process in order."""

    cells: Array  # [N, continuous columns]
    hashes: Array  # [N, tracked columns] uint32
    times: Array  # [N]
    clocks: Array  # [N] times on local clocks
    labels: Array  # [N] int8: 0, 1, UNKNOWN or NEVER
    is_named: Array  # [N, C] bool: which counterparties the row has
    previous: Array  # [N, 1 + C] earlier row of the same customer, of each counterparty; -1 if none


class CounterpartyRecords(NamedTuple):
    """Records of one of the counterparties of N rows as arrays, advanced in place."""

    numbers: Array  # [N, 21]
    seen: Array  # [N, words] uint32
    risk: Array
    compromise: Array  # [N, 0] without the chain


class FeatureRecords(NamedTuple):
    """Records of N rows as arrays, advanced in place."""

    numbers: Array  # [N, 21]
    seen: Array  # [N, words] uint32
    intruder: Array  # [N, numbers of the chain], or [N, 0] without it
    # One for each counterparty. Without any there is one of no rows: compiled code cannot index an
    # empty tuple.
    counterparties: tuple[CounterpartyRecords, ...]


@jit_exact
def _continue_counterparty(records: CounterpartyRecords, row: int, earlier: int) -> State:
    """The record of a row, a copy of that of the `earlier` row if there is one."""
    if earlier >= 0:
        records.numbers[row] = records.numbers[earlier]
        records.seen[row] = records.seen[earlier]
        records.risk[row] = records.risk[earlier]
        records.compromise[row] = records.compromise[earlier]
    return records.numbers[row], records.seen[row], records.risk[row], records.compromise[row]


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
    flagged, n_counterparties = layout.flagged, rows.is_named.shape[1]
    surprises = np.empty(len(layout.profile_columns))
    for i in range(len(rows.times)):
        cells, hashes, time = rows.cells[i], rows.hashes[i], rows.times[i]
        n_missing = fill_row(cells, layout.raw, continuous[i], categorical[i])
        n_missing += flag_categories(categorical[i], layout.n_categorical, flagged[0], flagged[1])
        if n_engineered == 0:
            continue
        customer = rows.previous[i, 0]
        if customer >= 0:
            records.numbers[i] = records.numbers[customer]
            records.seen[i] = records.seen[customer]
            records.intruder[i] = records.intruder[customer]
        amount = cells[layout.amount_column] if layout.amount_column >= 0 else math.nan
        payment = Payment(time, rows.clocks[i], amount, float(n_missing))
        if records.intruder.shape[1] > 0:
            chain, waits, label = layout.intruder, layout.label_times, rows.labels[i]
            about = cells[layout.profile_columns], label, chain, waits, causes[i, :N_OWN], surprises
            advance_intruder(records.intruder[i], time, *about)
        advance(records.numbers[i], records.seen[i], payment, hashes, own, own_codes)
        compute_time_features(rows.clocks[i], n_missing, time_values, time_codes)
        first_value, first_code, explained = _N_OWN + _N_TIME, n_own_codes + 1, causes[i, INTRUDER]
        for c in range(n_counterparties):
            own_records, tracked = records.counterparties[c], layout.tracked[c]
            last_code = first_code + 1 + 2 * len(tracked)
            other = values[first_value : first_value + N_CONTINUOUS]
            other_codes, first = codes[first_code:last_code], N_OWN + N_EACH * c
            first_value, first_code = first_value + N_CONTINUOUS, last_code
            if not rows.is_named[i, c]:
                other[:] = np.nan
                other_codes[:] = -1
                continue
            state = _continue_counterparty(own_records, i, rows.previous[i, 1 + c])
            rules, label = layout.risk_rules[c], rows.labels[i]
            output = other, other_codes, causes[i, first : first + N_EACH]
            advance_counterparty(state, payment, hashes[tracked], rules, label, explained, output)
            explained = add_cause_compiled(explained, causes[i, first + COMPROMISE_OUTPUT])
        fill_row(values, layout.engineered, continuous[i], categorical[i])
        categorical[i, layout.first_engineered :] = codes


def unpack_states(plan: FeaturePlan, states: Sequence[FeatureState]) -> FeatureRecords:
    """The records of N states as writable arrays, zeros for new customers and counterparties."""
    customers = [state.customer for state in states]
    numbers, seen, intruder = _join_records(plan, plan.customer_record, customers)
    n = len(plan.counterparties)
    for state in states:
        if len(state.counterparties) not in (0, n):
            found = f"a state with {len(state.counterparties)} counterparties"
            raise StateError(f"{found}; these features have {n}")
    others = tuple(
        unpack_counterparty(plan, c, [_find_counterparty(state, c) for state in states])
        for c in range(n)
    )
    empty = np.empty((0, 0))
    nothing = CounterpartyRecords(empty, empty.astype(np.uint32), empty, empty)
    return FeatureRecords(numbers, seen, intruder, others or (nothing,))


def pack_states(
    plan: FeaturePlan, records: FeatureRecords, states: Sequence[FeatureState], is_named: Array
) -> list[FeatureState]:
    """The states of advanced records; a counterparty stays for rows that do not name it."""
    customers = _split_records(plan, plan.customer_record, records[:-1])
    columns = []
    for c in range(len(plan.counterparties)):
        packed = pack_counterparty(plan, c, records.counterparties[c])
        kept = [_find_counterparty(state, c) for state in states]
        triples = zip(packed, kept, is_named[:, c].tolist(), strict=True)
        columns.append([new if is_new else old for new, old, is_new in triples])
    others = zip(*columns, strict=True) if columns else [()] * len(states)
    return list(map(FeatureState, customers, others))


def _find_counterparty(state: FeatureState, place: int) -> bytes | None:
    return state.counterparties[place] if state.counterparties else None


def unpack_counterparty(
    plan: FeaturePlan, place: int, records: Sequence[bytes | None]
) -> CounterpartyRecords:
    """N records of one of the counterparties as writable arrays, zeros for new ones."""
    return CounterpartyRecords(*_join_records(plan, plan.counterparty_records[place], records))


def pack_counterparty(plan: FeaturePlan, place: int, records: CounterpartyRecords) -> list[bytes]:
    """The records of these arrays."""
    return _split_records(plan, plan.counterparty_records[place], records)


def _join_records(
    plan: FeaturePlan, kind: np.dtype[Any], records: Sequence[bytes | None]
) -> list[Array]:
    """The parts of N records as writable arrays [N, ...], without their headers."""
    header, size = plan.fingerprint.to_bytes(_HEADER_BYTES, "little"), kind.itemsize
    empty = header + bytes(size - _HEADER_BYTES)
    known = [empty if record is None else record for record in records]
    for record in known:
        if len(record) != size or not record.startswith(header):
            owner = "customer" if kind is plan.customer_record else "counterparty"
            found = f"the {owner}'s state ({len(record)} bytes) was made by other features"
            remedy = "Rebuild the states by replaying the history"
            raise StateError(f"{found}; states of these have {size} bytes. {remedy}")
    joined = np.frombuffer(b"".join(known), kind)
    return [joined[part].copy() for part in (kind.names or ())[1:]]


def _split_records(plan: FeaturePlan, kind: np.dtype[Any], parts: Sequence[Array]) -> list[bytes]:
    """Records of the rows of arrays [N, ...], with headers."""
    content = np.empty(len(parts[0]), kind)
    for name, part in zip(kind.names or (), (plan.fingerprint, *parts), strict=True):
        content[name] = part
    size, joined = kind.itemsize, content.tobytes()
    return [joined[start : start + size] for start in range(0, len(joined), size)]
