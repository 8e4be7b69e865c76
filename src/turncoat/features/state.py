"""What is remembered of a customer, and of a counterparty, between transactions: records of a fixed size."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.data.categories import normalize_category
from turncoat.errors import StateError
from turncoat.features import counterparties, history
from turncoat.features.live import Records
from turncoat.features.plan import FeaturePlan

_HEADER = 8  # the fingerprint of the features, and four bytes so that the numbers are aligned


class FeatureState(NamedTuple):
    """The running records behind one transaction. A live service keeps them by customer and by counterparty, and pairs them here."""

    customer: bytes | None = None  # None is a customer not seen before
    counterparty: bytes | None = None


def name_hash(text: str | None) -> int:
    """A name as a number that is the same everywhere; 0 for none."""
    return 0 if text is None else zlib.crc32(text.encode("utf-8", "surrogatepass")) or 1


def spelled_hashes(values: Sequence[Any]) -> list[int]:
    """The hashes of names however they are spelled."""
    try:
        return list(map(_remembered_hash, values))
    except TypeError:  # a value that no dictionary takes
        return [name_hash(normalize_category(value)) for value in values]


@lru_cache(65536, typed=True)  # True equals 1, and is not spelled like it
def _remembered_hash(value: Any) -> int:
    return name_hash(normalize_category(value))


def customer_bytes(plan: FeaturePlan) -> int:
    """Size of a customer's record."""
    return _HEADER + 8 * len(history.NUMBERS) + 4 * history.habit_words(len(plan.schema.tracked))


def counterparty_bytes(plan: FeaturePlan) -> int:
    """Size of a counterparty's record; 0 when there is no counterparty."""
    if not plan.has_counterparty:
        return 0
    n_numbers = len(history.NUMBERS) + counterparties.risk_numbers(plan.label_delay_s)
    return _HEADER + 8 * n_numbers + 4 * history.habit_words(len(plan.counterparty_names))


def unpack(plan: FeaturePlan, states: Sequence[FeatureState]) -> Records:
    """The records of N states as arrays, free to be changed; those of parties not seen before are all zeros."""
    n, words = len(history.NUMBERS), history.habit_words(len(plan.schema.tracked))
    own = _joined(plan, [state.customer for state in states], customer_bytes(plan), "customer")
    numbers, marks = (
        own[:, _HEADER : _HEADER + 8 * n].copy().view(np.float64),
        own[:, _HEADER + 8 * n :].copy().view(np.uint32),
    )
    if not plan.has_counterparty:
        nothing = np.empty((len(states), 0))
        return Records(numbers, marks, nothing, nothing.astype(np.uint32), nothing)
    words = history.habit_words(len(plan.counterparty_names))
    theirs = _joined(
        plan, [state.counterparty for state in states], counterparty_bytes(plan), "counterparty"
    )[:, _HEADER:]
    risk_at = 8 * n + 4 * words
    parts = theirs[:, : 8 * n], theirs[:, 8 * n : risk_at], theirs[:, risk_at:]
    return Records(
        numbers,
        marks,
        *(
            part.copy().view(kind)
            for part, kind in zip(parts, (np.float64, np.uint32, np.float64), strict=True)
        ),
    )


def pack(
    plan: FeaturePlan,
    records: Records,
    states: Sequence[FeatureState],
    has_counterparty: Sequence[bool],
) -> list[FeatureState]:
    """The states of advanced records; a counterparty that a row does not name stays as it was."""
    customers = _apart(plan, records.numbers, records.marks)
    if not plan.has_counterparty:
        return [
            FeatureState(customer, state.counterparty)
            for customer, state in zip(customers, states, strict=True)
        ]
    counterparties_ = _apart(
        plan, records.counterparty_numbers, records.counterparty_marks, records.counterparty_risk
    )
    pairs = zip(customers, counterparties_, states, has_counterparty, strict=True)
    return [
        FeatureState(customer, counterparty if named else state.counterparty)
        for customer, counterparty, state, named in pairs
    ]


def _joined(plan: FeaturePlan, records: Sequence[bytes | None], size: int, whose: str) -> Array:
    """Records [N, bytes]."""
    header = plan.fingerprint.to_bytes(_HEADER, "little")
    nothing = header + bytes(size - _HEADER)
    found = [nothing if record is None else record for record in records]
    joined = np.frombuffer(b"".join(found), np.uint8)
    if (
        set(map(len, found)) == {size}
        and (
            joined[: len(found) * size].reshape(-1, size)[:, :_HEADER]
            == np.frombuffer(header, np.uint8)
        ).all()
    ):
        return joined.reshape(len(found), size)
    wrong = next(record for record in found if len(record) != size or record[:_HEADER] != header)
    raise StateError(
        f"the {whose}'s state ({len(wrong)} bytes) was made by other features than these (whose states have {size} bytes). "
        "Rebuild the states by replaying the history"
    )


def _apart(plan: FeaturePlan, *parts: Array) -> list[bytes]:
    """Records of N rows of arrays."""
    header = np.frombuffer(
        plan.fingerprint.to_bytes(_HEADER, "little") * len(parts[0]), np.uint8
    ).reshape(len(parts[0]), _HEADER)
    content = np.concatenate([header, *(part.view(np.uint8) for part in parts)], axis=1)
    size, joined = content.shape[1], content.tobytes()
    return [joined[start : start + size] for start in range(0, len(joined), size)]
