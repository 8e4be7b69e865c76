"""What is remembered of a customer between transactions: the belief, how many were seen, and the features' record."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turncoat.arrays import Array
from turncoat.errors import StateError
from turncoat.features import FeatureState

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector


_HEADER = struct.Struct("<IIQ")  # fingerprint, number of regimes, transactions seen


class DetectorState(NamedTuple):
    """The records behind one transaction, as bytes of a fixed size; a service keeps them by customer and by counterparty."""

    customer: bytes | None = None  # None is a customer not seen before
    counterparty: bytes | None = None


@dataclass(frozen=True, eq=False)
class Held:
    """A state taken apart."""

    seen: int
    belief: Array | None
    features: bytes | None
    counterparty: bytes | None


def fingerprint(detector: Detector) -> int:
    """Tells states of this detector from those of others."""
    params = detector.model_.params_
    encoder = getattr(detector.model_, "encoder_", None)
    parts = (
        params.means,
        params.transition_matrix,
        *params.category_probs,
        *(() if encoder is None else encoder.arrays().values()),
    )
    crc = detector.features_.plan.fingerprint
    for part in parts:
        crc = zlib.crc32(np.ascontiguousarray(part).tobytes(), crc)
    return crc


def unpack_states(
    detector: Detector, states: Sequence[DetectorState]
) -> tuple[list[int], Array, NDArray[np.bool_], list[FeatureState]]:
    """Of N states, if they are this detector's: transactions seen, beliefs [N, K], whether there is one [N], and the features' states."""
    n_states = detector.model_.n_states
    start, end, mark, nothing = (
        _HEADER.size,
        _HEADER.size + 8 * n_states,
        (detector.fingerprint_, n_states),
        bytes(8 * n_states),
    )
    seen, beliefs, features = [], [], []
    for customer, counterparty in states:
        if customer is None:
            seen.append(0)
            beliefs.append(nothing)
            features.append(FeatureState(None, counterparty))
            continue
        if len(customer) < end or (header := _HEADER.unpack_from(customer))[:2] != mark:
            raise StateError(
                "this state was made by another detector. Rebuild the states by replaying the history"
            )
        seen.append(header[2])
        beliefs.append(customer[start:end])
        features.append(FeatureState(customer[end:] or None, counterparty))
    held = np.frombuffer(bytearray(b"".join(beliefs)), np.float64).reshape(len(states), n_states)
    return (
        seen,
        held,
        np.array([belief is not nothing for belief in beliefs], dtype=np.bool_),
        features,
    )


def unpack_state(detector: Detector, state: DetectorState) -> Held:
    """One state's parts."""
    if not isinstance(state, DetectorState):
        raise StateError(
            f"a state is a DetectorState, or None for a new customer; found {type(state).__name__}"
        )
    (seen,), beliefs, (known,), (features,) = unpack_states(detector, [state])
    return Held(seen, beliefs[0] if known else None, *features)


def pack_states(
    detector: Detector, beliefs: Array, seen: Sequence[int], features: Sequence[FeatureState]
) -> list[DetectorState]:
    """N states of these parts."""
    mark, size, joined = (
        (detector.fingerprint_, beliefs.shape[1]),
        8 * beliefs.shape[1],
        beliefs.tobytes(),
    )
    return [
        DetectorState(
            b"".join((_HEADER.pack(*mark, n), joined[i * size : (i + 1) * size], customer or b"")),
            counterparty,
        )
        for i, (n, (customer, counterparty)) in enumerate(zip(seen, features, strict=True))
    ]
