"""What is remembered of a customer, and of a second party, between transactions: records of a fixed size."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turncoat.data.categories import category_text
from turncoat.errors import DataError
from turncoat.features import entities, history
from turncoat.features.plan import FeaturePlan

Array = NDArray[Any]

_HEADER = 8  # the fingerprint of the features, and four bytes so that the numbers are aligned


@dataclass(frozen=True)
class State:
    """The running records behind one transaction. A live service keeps them by customer and by entity, and pairs them here."""

    customer: bytes | None = None  # None is a customer not seen before
    entity: bytes | None = None


def name_hash(text: str | None) -> int:
    """A name as a number that is the same everywhere; 0 for none."""
    return 0 if text is None else zlib.crc32(text.encode("utf-8", "surrogatepass")) or 1


def spelled_hash(value: Any) -> int:
    """The hash of a name however it is spelled."""
    try:
        return _remembered_hash(value)
    except TypeError:  # a value that no dictionary takes
        return name_hash(category_text(value))


@lru_cache(65536, typed=True)  # True equals 1, and is not spelled like it
def _remembered_hash(value: Any) -> int:
    return name_hash(category_text(value))


def customer_bytes(plan: FeaturePlan) -> int:
    """Size of a customer's record."""
    return _HEADER + 8 * len(history.NUMBERS) + 4 * history.habit_words(len(plan.schema.habits))


def entity_bytes(plan: FeaturePlan) -> int:
    """Size of an entity's record; 0 when there is no second party."""
    if not plan.has_entity:
        return 0
    n_numbers = len(history.NUMBERS) + entities.risk_numbers(plan.label_delay)
    return _HEADER + 8 * n_numbers + 4 * history.habit_words(len(plan.entity_names))


def unpack_customer(plan: FeaturePlan, record: bytes | None) -> tuple[Array, Array]:
    """Numbers and marks, free to be changed."""
    n = len(history.NUMBERS)
    if record is None:
        return np.zeros(n), np.zeros(history.habit_words(len(plan.schema.habits)), np.uint32)
    _check(plan, record, customer_bytes(plan), "customer")
    numbers = np.frombuffer(record, np.float64, n, _HEADER).copy()
    return numbers, np.frombuffer(record, np.uint32, -1, _HEADER + 8 * n).copy()


def unpack_entity(plan: FeaturePlan, record: bytes | None) -> tuple[Array, Array, Array]:
    """Numbers, marks and risk, free to be changed."""
    n, words, risk = len(history.NUMBERS), history.habit_words(len(plan.entity_names)), entities.risk_numbers(plan.label_delay)
    if record is None:
        return np.zeros(n), np.zeros(words, np.uint32), np.zeros(risk)
    _check(plan, record, entity_bytes(plan), "entity")
    marks_at = _HEADER + 8 * n
    return (
        np.frombuffer(record, np.float64, n, _HEADER).copy(),
        np.frombuffer(record, np.uint32, words, marks_at).copy(),
        np.frombuffer(record, np.float64, risk, marks_at + 4 * words).copy(),
    )


def pack(plan: FeaturePlan, *parts: Array) -> bytes:
    """A record of these arrays."""
    return plan.fingerprint.to_bytes(_HEADER, "little") + b"".join(part.tobytes() for part in parts)


def _check(plan: FeaturePlan, record: bytes, size: int, whose: str) -> None:
    if len(record) != size or int.from_bytes(record[:_HEADER], "little") != plan.fingerprint:
        raise DataError(
            f"the {whose}'s state ({len(record)} bytes) was made by other features than these (whose states have {size} bytes). "
            "Rebuild the states by replaying the history"
        )
