"""What the service says, as JSON; what each field means is in the interface's description, too."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from turncoat.scoring.live import FilterSteps

# Where the belief came from that a transaction was scored with.
NEW = "new"  # the customer's first transaction
STORED = "stored"  # as the last transaction left it
LOGGED = "logged"  # a late transaction: the belief it would have met, from the log
CURRENT = "current"  # a late transaction whose belief the log does not have: that of now
REBUILT = "rebuilt"  # another model's, made anew by this one from the logged transactions
RESTARTED = "restarted"  # another model's, and nothing logged: as for a new customer


class ReasonModel(msgspec.Struct, frozen=True, gc=False):
    """One term of the log odds of the fraud regime."""

    source: Annotated[str, Meta(description="the column or fact")]
    text: Annotated[str, Meta(description="the same in words")]
    log_odds: Annotated[float, Meta(description="above 0 for the fraud regime, below 0 against it")]


class ScoredTransaction(msgspec.Struct, frozen=True, gc=False):
    """A scored transaction."""

    id: str
    customer: Annotated[str, Meta(description="as it is stored: the name to report outcomes with")]
    time: Annotated[float, Meta(description="in seconds")]
    probability: Annotated[float, Meta(description="of fraud")]
    interval: Annotated[tuple[float, float], Meta(description="of the probability, 90 %")]
    raw_membership: Annotated[
        float, Meta(description="belief in the fraud regime, which is no probability of fraud")
    ]
    regime: Annotated[int, Meta(description="the likeliest")]
    belief: Annotated[tuple[float, ...], Meta(description="after this transaction, in each regime")]
    entropy: Annotated[float, Meta(description="of the belief, in nats")]
    seen: Annotated[int, Meta(description="transactions of the customer so far, with this one")]
    late: Annotated[bool, Meta(description="whether it is older than the customer's last")]
    duplicate: Annotated[bool, Meta(description="whether it was answered before")]
    belief_from: Annotated[
        str,
        Meta(
            description="the belief before it: new, stored, logged, current, rebuilt or restarted"
        ),
    ]
    counterparty_from: Annotated[
        str | None, Meta(description="the same of the counterparty's record; null without one")
    ]
    model: Annotated[str, Meta(description="digest of the model")]
    calibration: Annotated[
        int, Meta(description="number of the calibration; 0 is the one of the fit")
    ]
    reasons: Annotated[
        tuple[ReasonModel, ...], Meta(description="the strongest, and the others together")
    ]


class ScoredResponse(NamedTuple):
    """An answer, and what is to be counted of it."""

    body: bytes
    probability: float
    late: bool = False
    duplicate: bool = False
    age: float | None = None  # seconds since the belief's last transaction
    steps: FilterSteps | None = None  # what it was scored in, unless it was not
    place: int = 0  # in there


class DuplicateResponse(msgspec.Struct, frozen=True):
    """A transaction answered before, of which the log no longer has the whole answer."""

    id: str
    customer: str
    probability: float
    duplicate: bool = True


class LabelResponse(msgspec.Struct, frozen=True):
    """What became known of a transaction."""

    id: str
    customer: str
    label: int
    changed: Annotated[bool, Meta(description="whether this was news")]
    belief: Annotated[
        str, Meta(description="what became of the customer's: conditioned or unchanged")
    ]
    counterparty: Annotated[
        str | None,
        Meta(
            description="of the counterparty's record: fraud reported or unchanged; null without one"
        ),
    ]


class RecentTransaction(msgspec.Struct, frozen=True):
    """A transaction of a customer, lately."""

    id: str
    probability: float


class CustomerResponse(msgspec.Struct, frozen=True):
    """What is remembered of a customer."""

    customer: str
    seen: Annotated[
        int | None, Meta(description="transactions so far; null if the belief is another model's")
    ]
    last_time: Annotated[float, Meta(description="of the latest transaction, in seconds")]
    belief: Annotated[
        tuple[float, ...] | None, Meta(description="in each regime; null if it is another model's")
    ]
    regime: Annotated[
        int | None, Meta(description="the likeliest; null if the belief is another model's")
    ]
    model: Annotated[str, Meta(description="digest of the model whose belief it is")]
    is_current: Annotated[
        bool,
        Meta(
            description="whether that model serves; if not the belief is made anew with the next transaction"
        ),
    ]
    recent: Annotated[
        tuple[RecentTransaction, ...], Meta(description="latest transactions, newest first")
    ]


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer."""

    kind: Annotated[str, Meta(description="for programs; see docs/operations/run.md")]
    message: Annotated[str, Meta(description="for people")]
    field: Annotated[str | None, Meta(description="the one to blame, if there is one")] = None


class ErrorResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error, as it is sent."""

    error: ErrorDetail
    line: Annotated[int | None, Meta(description="of a batch")] = None


_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(ScoredTransaction).decode


def encode_json(thing: Any) -> bytes:
    """As JSON."""
    return _encode(thing)


def repeated(answer: bytes) -> tuple[bytes, float]:
    """An answer given before, marked as such, and its probability."""
    first = _decode_answer(answer)
    return _encode(msgspec.structs.replace(first, duplicate=True)), first.probability
