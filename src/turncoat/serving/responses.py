"""What the service sends, as msgspec structs. The OpenAPI page shows their descriptions."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from turncoat.scoring.live import FilterSteps
from turncoat.scoring.reasons import Reason

# Where the belief came from that a transaction was scored with.
NEW = "new"  # no record yet: the first transaction
STORED = "stored"  # the record, as the last transaction left it
LOGGED = "logged"  # late transaction: the belief as of its own timestamp, from the log
CURRENT = "current"  # late transaction whose belief is no longer in the log: the present belief
REBUILT = "rebuilt"  # another model's record, rebuilt by this model from logged transactions
RESTARTED = "restarted"  # another model's record without a log: starts like a new one

# What a label changed.
CONDITIONED, REPORTED, UNCHANGED = "conditioned", "fraud reported", "unchanged"
GENUINE_REPORTED = "genuine reported"  # where an unlabelled transaction does not count as genuine
# Why a belief is unchanged.
KNOWN_LABEL = "this label was reported before"
CORRECTED_LABEL = "only a transaction's first label changes the belief"
LABELS_UPDATE_NOTHING = "this service runs with --no-labels-update-belief"
NO_BELIEF = "this model has no belief of the customer"
NOT_LATEST = "this is not the customer's latest transaction"

_COUNTERPARTY_SOURCES = "same for each counterparty, by its column"
_COUNTERPARTY_EFFECTS = "by column: fraud reported, genuine reported or unchanged"


def _doc(text: str) -> Meta:
    """Describe a field on the OpenAPI page."""
    return Meta(description=text)


class ScoredTransaction(msgspec.Struct, frozen=True, gc=False):
    """The score of a transaction."""

    id: str
    customer: Annotated[str, _doc("name under which labels are reported")]
    time: Annotated[float, _doc("in seconds")]
    probability: Annotated[float, _doc("of fraud")]
    interval: Annotated[tuple[float, float], _doc("90 % interval of the probability")]
    raw_membership: Annotated[float, _doc("belief in the fraud regime, not a probability of fraud")]
    belief: Annotated[tuple[float, ...], _doc("per regime, after this transaction")]
    entropy: Annotated[float, _doc("of the belief, in nats")]
    n_seen: Annotated[int, _doc("transactions of this customer, with this one")]
    regime: Annotated[int, _doc("most likely regime")]
    late: Annotated[bool, _doc("older than the customer's latest transaction")]
    duplicate: Annotated[bool, _doc("scored before; this is the first response")]
    belief_source: Annotated[str, _doc("new, stored, logged, current, rebuilt or restarted")]
    counterparty_sources: Annotated[dict[str, str], _doc(_COUNTERPARTY_SOURCES)]
    model: Annotated[str, _doc("digest of the model")]
    calibration: Annotated[int, _doc("number of the calibration; 0 is the fit's")]
    reasons: Annotated[
        tuple[Reason, ...], _doc("the strongest, then all others as one; empty if not asked for")
    ]


class ScoredResponse(NamedTuple):
    """An encoded response, with the values that metrics and drift need."""

    body: bytes
    probability: float
    late: bool = False
    duplicate: bool = False
    belief_age_s: float | None = None  # since the customer's latest transaction
    steps: FilterSteps | None = None  # arrays of its scoring round; None for duplicates
    row: int = 0  # in those arrays


class DuplicateResponse(msgspec.Struct, frozen=True):
    """The score of a duplicate whose full response is no longer in the log."""

    id: str
    customer: str
    probability: float
    duplicate: bool = True


class LabelResponse(msgspec.Struct, frozen=True):
    """The effect of a label."""

    id: str
    customer: str
    label: int
    changed: Annotated[bool, _doc("whether the label is new")]
    belief: Annotated[str, _doc("of the customer: conditioned or unchanged")]
    why_unchanged: Annotated[str | None, _doc("why the belief is unchanged; null if it is not")]
    counterparties: Annotated[dict[str, str], _doc(_COUNTERPARTY_EFFECTS)]


class RecentTransaction(msgspec.Struct, frozen=True):
    """A recent transaction of a customer."""

    id: str
    probability: float


class CustomerResponse(msgspec.Struct, frozen=True):
    """The stored record of a customer."""

    customer: str
    n_seen: Annotated[int | None, _doc("null if another model made the belief")]
    last_time: Annotated[float, _doc("of the latest transaction, in seconds")]
    belief: Annotated[tuple[float, ...] | None, _doc("per regime; null if another model's")]
    regime: Annotated[int | None, _doc("most likely; null if another model's")]
    model: Annotated[str, _doc("digest of the model that made the belief")]
    is_current: Annotated[bool, _doc("if not, the next transaction rebuilds the belief")]
    recent: Annotated[tuple[RecentTransaction, ...], _doc("latest transactions, newest first")]


class ErrorDetail(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a request failed."""

    kind: Annotated[str, _doc("for programs; see docs/operations/run.md")]
    message: Annotated[str, _doc("for people")]
    field: Annotated[str | None, _doc("name of the invalid field")] = None


class ErrorResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error."""

    error: ErrorDetail
    line: Annotated[int | None, _doc("line number in a batch")] = None


encode_json = msgspec.json.Encoder().encode
decode_scored = msgspec.json.Decoder(ScoredTransaction).decode


def decode_score(body: bytes) -> ScoredTransaction | DuplicateResponse:
    """Return the response that was sent as these bytes."""
    try:
        return decode_scored(body)
    except msgspec.ValidationError:  # most fields are missing
        return msgspec.json.decode(body, type=DuplicateResponse)


def mark_duplicate(body: bytes) -> ScoredResponse:
    """Return an earlier response, marked as a duplicate."""
    first = decode_scored(body)
    again = encode_json(msgspec.structs.replace(first, duplicate=True))
    return ScoredResponse(again, first.probability, duplicate=True)
