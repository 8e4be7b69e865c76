"""JSON bodies into transactions and labels. Errors name the field that is wrong."""

from __future__ import annotations

import hashlib
import heapq
import hmac
import math
import os
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from turncoat.data.json_rows import MAX_KEY_CHARS, Integer, Key, RowDecoder
from turncoat.data.money import minor_units_in
from turncoat.data.parsing import TransactionRow, parse_label
from turncoat.data.schema import FRAUD, GENUINE, TIME_UNITS, Schema
from turncoat.errors import ConfigError, DataError
from turncoat.scoring import Detector
from turncoat.serving.records import counterparty_key, customer_key

KEY_VARIABLE = "TURNCOAT_PSEUDONYM_KEY"
_MIN_PSEUDONYM_KEY_CHARS = 16
_MAX_MESSAGE_CHARS = 1000  # of an error; matching a field in a longer one could take seconds
_MAX_DISTANCE_S = 20 * 365.25 * 86400.0  # from the calibration rows; beyond it the unit is wrong
_N_LATEST, _N_WITNESSES = 100, 3  # transactions that show the present where the zero is unknown

_JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_HINTS = {
    "unknown field": "GET /v1/model shows an example with every field",
    "trailing characters": "Send several transactions, one per line, to /v1/score/batch",
}
_FIELD = re.compile(r" - at `\$\.(.+)`$|(?:required|unknown) field `(.+)`$|^column '(.+?)':")
_PSEUDONYM = re.compile(r"~[0-9a-f]{32}")
T = TypeVar("T")


class Transaction(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A decoded transaction."""

    id: str
    time: float  # seconds
    customer: str
    counterparties: tuple[str | None, ...]  # in the schema's order; () if the model has none
    row: TransactionRow  # input of the features
    body: bytes  # compact JSON, with the customer's stored name
    schema: Schema
    label_follows: bool = True
    is_replayed: bool = False
    label: int | None = None  # of a replayed transaction, if known
    keys: tuple[str, ...] = ()  # of its records, the customer's first; always computed
    places: tuple[int, ...] = ()  # of these: 0 is the customer, c + 1 the schema's counterparty c

    def __post_init__(self) -> None:
        """Compute the keys once."""
        keys, places = [customer_key(self.customer)], [0]
        columns = zip(self.schema.counterparties, self.counterparties, strict=False)
        for place, (column, name) in enumerate(columns, start=1):
            if name is not None:
                keys.append(counterparty_key(column, name))
                places.append(place)
        msgspec.structs.force_setattr(self, "keys", tuple(keys))
        msgspec.structs.force_setattr(self, "places", tuple(places))

    def arrange(self, values: Sequence[T], missing: T) -> list[T]:
        """Return a value for the customer and each counterparty, from one for each of the keys."""
        arranged = [missing] * (1 + len(self.counterparties))
        for place, value in zip(self.places, values, strict=True):
            arranged[place] = value
        return arranged


class Label(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a transaction that was scored before."""

    customer: str  # stored name
    id: str
    label: int  # 1 is fraud, 0 is genuine

    @property
    def keys(self) -> tuple[str, ...]:
        """The key of the customer's record; the log knows those of counterparties."""
        return (customer_key(self.customer),)


class FieldError(DataError):
    """A transaction that cannot be scored as sent; `field` names the field, if one is wrong."""

    def __init__(self, message: str, field: str | None = None) -> None:
        """Take the field from the message if it is not given. A long message is cut."""
        if len(message) > _MAX_MESSAGE_CHARS:  # it repeats what was sent
            message = f"{message[:_MAX_MESSAGE_CHARS]} ..."
        super().__init__(message)
        match = _FIELD.search(message)
        self.field = field or (next(filter(None, match.groups())) if match else None)


class InvalidJsonError(DataError):
    """A body that is not JSON."""


_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]


class LabelRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The body of a label request."""

    id: Key | Integer
    label: Literal[0, 1] | _Word  # 1 for fraud, 0 for genuine, or a word of the label column
    customer: Key | Integer | None = None  # as in the score's response; None: as in the log


_label_decoder = msgspec.json.Decoder(LabelRequest)
_LABEL_HINTS = {"unknown field": f"The fields are {', '.join(LabelRequest.__struct_fields__)}"}
_LABEL_RULE = "`label` must be 1 for fraud or 0 for genuine, or a word of the label column for them"


def decode_label(body: bytes, schema: Schema) -> tuple[str | None, str, int]:
    """Return customer, id and label of a JSON object; a FieldError names the field that is wrong.

    The customer is None if it is not given. Words mean the same as in the label column of a file.
    """
    try:
        request = _label_decoder.decode(body)
    except _JSON_ERRORS as problem:
        raise _explain(problem, _LABEL_HINTS, {"label": _LABEL_RULE}) from None
    is_word = isinstance(request.label, str)
    label = parse_label(request.label, schema) if is_word else int(request.label)
    if label not in (FRAUD, GENUINE):
        raise FieldError(f"{request.label!r}: {_LABEL_RULE}", "label")
    customer = None if request.customer is None else str(request.customer)
    return customer, str(request.id), label


def _explain(problem: Exception, hints: Mapping[str, str], rules: Mapping[Any, str]) -> DataError:
    """Return the error to send: with the hint for its phrase, or with the rule of its field."""
    text = str(problem)[:_MAX_MESSAGE_CHARS]
    hint = next((f". {hint}" for phrase, hint in hints.items() if phrase in text), "")
    if not isinstance(problem, msgspec.ValidationError):
        return InvalidJsonError(f"not JSON: {text}{hint}")
    field = FieldError(text).field
    return FieldError(rules.get(field or "", text + hint), field)


class Pseudonymiser:
    """Replaces customers' names by a keyed hash: `~` and 32 hexadecimal digits."""

    def __init__(self) -> None:
        """Use the key in TURNCOAT_PSEUDONYM_KEY; a ConfigError if it is too short."""
        key = os.environ.get(KEY_VARIABLE, "")
        if len(key) < _MIN_PSEUDONYM_KEY_CHARS:
            remedy = f"set {KEY_VARIABLE} to at least {_MIN_PSEUDONYM_KEY_CHARS} random ones"
            raise ConfigError(f"the key for pseudonyms has {len(key)} characters; {remedy}")
        self._key = key.encode()

    def pseudonymise(self, customer: str) -> str:
        """Return the pseudonym of a customer; a pseudonym stays as it is."""
        if _PSEUDONYM.fullmatch(customer):
            return customer
        return "~" + hmac.new(self._key, customer.encode(), hashlib.sha256).hexdigest()[:32]


class FutureCheck:
    """Refuses transactions from the far future: their customer's next ones would all be late.

    Calendar times may be `max_future_s` ahead of the server's clock. The zero of other times is
    unknown: there the third-latest of the last 100 transactions, refused ones included, shows the
    present. As a gap in the traffic looks like a wrong clock, a time may be ahead of it by
    `max_future_s` or by the length of the calibration period, whichever is longer.
    """

    def __init__(self, is_calendar: bool, max_future_s: float, calibration_s: float = 0.0) -> None:
        """Use 0 for no limit."""
        ahead_s = max_future_s if is_calendar else max(max_future_s, calibration_s)
        self._is_calendar, self._max_ahead_s = is_calendar, ahead_s if max_future_s else math.inf
        self._times: deque[float] = deque(maxlen=_N_LATEST)
        self._limit = -math.inf

    def check(self, seconds: float) -> str | None:
        """Return why a time is refused, or None."""
        self._times.append(seconds)
        if seconds <= self._limit:
            return None
        if self._is_calendar:
            present, name = time.time(), "the server's clock"
        elif len(self._times) >= _N_WITNESSES:
            present, name = heapq.nlargest(_N_WITNESSES, self._times)[-1], "other transactions"
        else:
            return None
        self._limit = present + self._max_ahead_s
        if seconds <= self._limit:
            return None
        distance = f"more than {self._max_ahead_s:g} seconds ahead of {name} (max_future_s)"
        return f"it is {distance}. Correct the sender's clock, or raise the limit"


class TransactionDecoder:
    """Decodes transactions of one detector's schema."""

    def __init__(
        self,
        detector: Detector,
        pseudonymiser: Pseudonymiser | None = None,
        label_follows: bool = True,
        max_future_s: float = 0.0,
    ) -> None:
        """`label_follows`: labels will be reported, as in `Features.step`; 0 is no time limit."""
        self.plan = detector.features_.plan
        self.pseudonymiser, self.label_follows = pseudonymiser, label_follows
        self.times = detector.calibration_.time_range
        schema = self.plan.schema
        self._rows = RowDecoder(schema)
        self.type = self._rows.type  # the struct of the fields
        remedy = "unknown when a transaction is scored. Report it to /v1/labels later"
        self._label_rule = {schema.label: f"{schema.label} is the label, {remedy}"}
        is_calendar, length_s = detector.live.has_calendar_times, self.times[1] - self.times[0]
        self._future = FutureCheck(is_calendar, max_future_s, length_s)

    def decode(self, body: bytes | memoryview) -> Transaction:
        """Return the transaction of a JSON object; a FieldError names the field that is wrong."""
        try:
            id, customer, row, sent_time, fields = self._rows.decode(body)
        except _JSON_ERRORS as problem:
            raise _explain(problem, _HINTS, self._label_rule) from None
        except DataError as problem:
            raise FieldError(str(problem)) from None
        self._check_time(row.time, sent_time)
        schema = self.plan.schema
        for column, name in zip(schema.counterparties, row.counterparties, strict=True):
            if name is not None and len(name) > MAX_KEY_CHARS:
                found = f"the name has {len(name):,} characters"
                raise FieldError(f"{found}, and {MAX_KEY_CHARS} are allowed", column)
        if self.pseudonymiser is not None:
            customer = self.pseudonymiser.pseudonymise(customer)
            body = self._rows.encode(fields, customer)
        body = _strip_white_space(bytes(body))
        others = row.counterparties if self.plan.counterparties else ()
        return Transaction(id, row.time, customer, others, row, body, schema, self.label_follows)

    def _check_time(self, time: float, value: Any) -> None:
        first, last = self.times
        problem = self._future.check(time)
        if not first - _MAX_DISTANCE_S <= time <= last + _MAX_DISTANCE_S:
            times = f"the times of the model's calibration, {first:.0f} to {last:.0f} seconds"
            problem = f"it is more than 20 years from {times}. Use the same unit and the same zero"
        if problem is not None:
            raise FieldError(f"{value!r}: {problem}", self.plan.schema.time)

    @cached_property
    def example(self) -> dict[str, Any]:
        """A valid transaction with average numbers and the most frequent categories."""
        schema = self.plan.schema
        example: dict[str, Any] = {self._rows.id_field: "example-1"}
        example |= dict.fromkeys(schema.customer, "example")
        now = math.ceil(self.times[1])
        example[schema.time] = now / TIME_UNITS[schema.time_unit]
        if schema.time_zone_column == schema.time:  # as text: a number has no offset
            moment = datetime.fromtimestamp(now, UTC)
            text_format = schema.time_format
            example[schema.time] = (
                moment.strftime(text_format) if text_format else moment.isoformat()
            )
        if schema.customer_age is not None:
            example[schema.customer_age] = 100.0
        example = {**example, **self.plan.typical_values, **example}  # in this order
        if schema.converts_money:
            self._invert_money(example)
        for column in schema.counterparties:
            example.setdefault(column, "example")
        return example

    def _invert_money(self, example: dict[str, Any]) -> None:
        """Give amounts as a sender would: in minor units, in the common currency."""
        schema, currency, rate = self.plan.schema, None, 1.0
        if schema.currency is not None and schema.rates is not None:
            currency = schema.rates.base or schema.rates.currencies[0]
            rate = schema.rates.find_rate(currency, self.times[1])
            example[schema.currency] = currency
        for name in {*schema.money_columns, *schema.minor_units} & set(example):
            own = example[name] / (rate if name in schema.money_columns else 1.0)
            units = minor_units_in(currency) if name in schema.minor_units else 1.0
            example[name] = float(f"{own * units:.6g}")
            if name in schema.minor_units:
                example[name] = float(round(example[name]))


def _strip_white_space(body: bytes) -> bytes:
    """Return JSON without the padding that is not worth storing; single spaces may stay."""
    is_padded = b"  " in body or b"\n" in body or b"\t" in body or b"\r" in body
    return msgspec.json.format(body, indent=-1) if is_padded else body
