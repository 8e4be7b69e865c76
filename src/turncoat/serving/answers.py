"""What the service says, as JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from turncoat.scoring.live import Steps

# Where the belief came from that a transaction was scored with.
NEW = "new"  # the customer's first transaction
STORED = "stored"  # as the last transaction left it
LOGGED = "logged"  # a late transaction: the belief it would have met, from the log
CURRENT = "current"  # a late transaction whose belief the log does not have: that of now
REBUILT = "rebuilt"  # another model's, made anew by this one from the logged transactions
RESTARTED = "restarted"  # another model's, and nothing logged: as for a new customer


class Why(msgspec.Struct, frozen=True, gc=False):
    """One term of the log odds of the fraud regime."""

    source: str
    text: str
    log_odds: float


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A scored transaction."""

    id: str
    customer: str
    time: float
    probability: float
    interval: tuple[float, float]
    raw_membership: float
    regime: int
    belief: tuple[float, ...]
    entropy: float
    seen: int
    late: bool
    duplicate: bool
    belief_from: str
    entity_from: str | None
    model: str
    calibration: int
    reasons: tuple[Why, ...]


class Given(NamedTuple):
    """An answer, and what is to be counted of it."""

    body: bytes
    probability: float
    late: bool = False
    duplicate: bool = False
    age: float | None = None  # seconds since the belief's last transaction
    steps: Steps | None = None  # what it was scored in, unless it was not
    place: int = 0  # in there


class Remembered(msgspec.Struct, frozen=True):
    """A transaction answered before, of which the log no longer has the whole answer."""

    id: str
    customer: str
    probability: float
    duplicate: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """What became known of a transaction."""

    id: str
    customer: str
    label: int
    changed: bool  # whether this was news
    belief: str  # what became of the customer's belief
    entity: str | None  # what became of the second party's record


class Recent(msgspec.Struct, frozen=True):
    """A transaction of a customer, lately."""

    id: str
    probability: float


class Customer(msgspec.Struct, frozen=True):
    """What is remembered of a customer."""

    customer: str
    seen: int
    last_time: float
    belief: tuple[float, ...]
    regime: int
    model: str
    is_current: bool  # whether the belief is of the model now serving; if not it is rebuilt with the next transaction
    recent: tuple[Recent, ...]  # newest first


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer."""

    kind: str
    message: str
    field: str | None = None


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error, as it is sent."""

    error: Problem
    line: int | None = None  # of a batch


_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(Answer).decode


def json_bytes(thing: Any) -> bytes:
    """As JSON."""
    return _encode(thing)


def repeated(answer: bytes) -> tuple[bytes, float]:
    """An answer given before, marked as such, and its probability."""
    first = _decode_answer(answer)
    return _encode(msgspec.structs.replace(first, duplicate=True)), first.probability
