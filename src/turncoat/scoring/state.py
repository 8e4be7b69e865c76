"""What is remembered of a customer between transactions: the belief, how many were seen, and the features' record."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from turncoat.errors import StateError
from turncoat.features import State as FeatureState

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector

Array = NDArray[Any]

_HEADER = struct.Struct("<IIQ")  # fingerprint, number of regimes, transactions seen


@dataclass(frozen=True)
class DetectorState:
    """The records behind one transaction, as bytes of a fixed size; a service keeps them by customer and by entity."""

    customer: bytes | None = None  # None is a customer not seen before
    entity: bytes | None = None


@dataclass(frozen=True, eq=False)
class Held:
    """A state taken apart."""

    seen: int
    belief: Array | None
    features: bytes | None
    entity: bytes | None


def fingerprint(detector: Detector) -> int:
    """Tells states of this detector from those of others."""
    params = detector.model_.params_
    encoder = getattr(detector.model_, "encoder_", None)
    parts = (params.means, params.transition_matrix, *params.category_probs, *(() if encoder is None else encoder.arrays().values()))
    crc = detector.features_.fitted().fingerprint
    for part in parts:
        crc = zlib.crc32(np.ascontiguousarray(part).tobytes(), crc)
    return crc


def unpack_state(detector: Detector, state: DetectorState) -> Held:
    """The state's parts, if it is one of this detector's."""
    if not isinstance(state, DetectorState):
        raise StateError(f"a state is a DetectorState, or None for a new customer; found {type(state).__name__}")
    if state.customer is None:
        return Held(0, None, None, state.entity)
    n_states = detector.model_.n_states
    size = _HEADER.size + 8 * n_states
    if len(state.customer) < size or _HEADER.unpack_from(state.customer)[:2] != (detector.fingerprint_, n_states):
        raise StateError("this state was made by another detector. Rebuild the states by replaying the history")
    belief = np.frombuffer(state.customer, np.float64, n_states, _HEADER.size)
    return Held(_HEADER.unpack_from(state.customer)[2], belief, state.customer[size:] or None, state.entity)


def pack_state(detector: Detector, belief: Array, seen: int, features: FeatureState) -> DetectorState:
    """A state of these parts."""
    header = _HEADER.pack(detector.fingerprint_, len(belief), seen)
    return DetectorState(header + np.asarray(belief, np.float64).tobytes() + (features.customer or b""), features.entity)
