"""A transaction as JSON: a decoder made of the bundle's schema, which names the field that is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from turncoat.data.categories import normalize_category
from turncoat.data.parsing import TransactionRow, pack_numbers, parse_customer, parse_time
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.errors import ConfigError, DataError
from turncoat.scoring import Detector
from turncoat.serving.pseudonyms import Pseudonymiser
from turncoat.serving.records import record_keys

LONGEST_KEY, LONGEST_NAME = 256, 10_000  # characters
DEFAULT_ID_FIELD = (
    "transaction_id"  # what a transaction's id is called where the schema names no column for it
)
_FURTHEST = (
    20 * 365.25 * 86400.0
)  # seconds from the calibration part; what is further has a wrong unit or a wrong zero

_Key = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_KEY)]
_Name = Annotated[str, msgspec.Meta(max_length=LONGEST_NAME)]
_Whole = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_MISSING = math.nan  # one and the same, so that a field that was not sent is known from it
_PLACE = re.compile(r" - at `\$\.(.+)`$|(?:required|unknown) field `(.+)`$|^column '(.+?)':")


class Transaction(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One transaction to be scored, its parties named."""

    id: str
    time: float  # seconds
    customer: str
    counterparty: str | None
    row: TransactionRow  # as features take it
    sent: bytes  # as JSON, the customer under the name that is stored
    schema: Schema
    label_follows: bool = True
    is_replayed: bool = False
    label: int | None = None  # of a replayed transaction, if it is known
    keys: tuple[str, ...] = ()  # of its parties' records, the customer's first; whatever is given

    def __post_init__(self) -> None:
        """Name the records once."""
        msgspec.structs.force_setattr(self, "keys", record_keys(self.customer, self.counterparty))


class FieldError(DataError):
    """A transaction that cannot be scored as it was sent, and the field to blame if there is one."""

    def __init__(self, message: str, field: str | None = None) -> None:
        """What is wrong, and with which field; a message that names one itself needs no `field`."""
        super().__init__(message)
        found = _PLACE.search(message)
        self.field = field or (next(filter(None, found.groups())) if found else None)


class InvalidJsonError(DataError):
    """Bytes that are not JSON."""


class LabelRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The outcome of a transaction, as it is reported."""

    id: _Key | _Whole
    customer: _Key | _Whole  # as an answer has it
    label: Literal[0, 1]  # 1 for fraud, 0 for genuine


_label_decoder = msgspec.json.Decoder(LabelRequest)


def decode_label(body: bytes) -> LabelRequest:
    """The outcome of a JSON object; a FieldError names the field that is wrong."""
    try:
        return _label_decoder.decode(body)
    except msgspec.ValidationError as problem:
        found = FieldError(str(problem))
        if found.field == "label":
            found = FieldError("`label` must be 1 for fraud or 0 for genuine", "label")
        elif "unknown field" in str(problem):
            found = FieldError(
                f"{problem}. There are {', '.join(LabelRequest.__struct_fields__)}", found.field
            )
        raise found from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise InvalidJsonError(f"not JSON: {problem}") from None


class TransactionDecoder:
    """Decodes transactions for one detector."""

    def __init__(
        self,
        detector: Detector,
        pseudonyms: Pseudonymiser | None = None,
        label_follows: bool = True,
    ) -> None:
        """`label_follows` says whether outcomes will be reported, as in `Features.step`."""
        self.plan, self.pseudonyms, self.label_follows = (
            detector.features_.plan,
            pseudonyms,
            label_follows,
        )
        plan, self.times = self.plan, detector.calibration_.time_range
        self._earliest, self._latest = self.times[0] - _FURTHEST, self.times[1] + _FURTHEST
        if plan.schema.id is None and DEFAULT_ID_FIELD in plan.schema.columns:
            raise ConfigError(
                f"schema {plan.schema.name!r} has a column {DEFAULT_ID_FIELD!r} and names no id: name it as `id`, or rename it"
            )
        kinds = _kinds(plan.schema)
        self.id_field = plan.schema.id or DEFAULT_ID_FIELD
        self.fields = tuple(kinds)
        try:
            self.type = msgspec.defstruct(
                "Transaction",
                [(f"f{i}", *kind) for i, kind in enumerate(kinds.values())],
                rename={f"f{i}": name for i, name in enumerate(kinds)},
                forbid_unknown_fields=True,
                omit_defaults=True,
                gc=False,
            )
        except ValueError as problem:
            raise ConfigError(
                f"schema {plan.schema.name!r} has a column whose name cannot be a field of JSON here: {problem}"
            ) from problem
        self._decoder = msgspec.json.Decoder(self.type)
        places, schema = {name: place for place, name in enumerate(kinds)}, plan.schema
        self._numbers = (
            slice(
                places[schema.continuous[0]], places[schema.continuous[0]] + len(schema.continuous)
            )
            if schema.continuous
            else slice(0)
        )
        self._names = _getter([places[column] for column in schema.categorical])
        self._habits = _getter([places[column] for column in schema.tracked])
        self._counterparty = None if schema.counterparty is None else places[schema.counterparty]
        self._id, self._time = places[self.id_field], places[schema.time]
        self._customer = tuple(places[column] for column in schema.customer)

    def decode(self, body: bytes | memoryview) -> Transaction:
        """The transaction of a JSON object; a FieldError names the field that is wrong."""
        try:
            found = self._decoder.decode(body)
        except msgspec.ValidationError as problem:
            raise self._explained(str(problem)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            lines = (
                ". Several transactions, one a line, go to /v1/score/batch"
                if "trailing characters" in str(problem)
                else ""
            )
            raise InvalidJsonError(f"not JSON: {problem}{lines}") from None
        values = msgspec.structs.astuple(found)
        schema = self.plan.schema
        try:
            time = parse_time(schema, {schema.time: values[self._time]})
            customer = self._customer_of(values, time)
        except DataError as problem:
            raise FieldError(str(problem)) from None
        if not self._earliest <= time <= self._latest:
            raise FieldError(
                f"{values[self._time]!r} is more than 20 years from the times that the model was calibrated with, {self.times[0]:.0f} to "
                f"{self.times[1]:.0f} seconds. Give it in the same unit, from the same zero",
                schema.time,
            )
        if self.pseudonyms is not None:
            customer = self.pseudonyms.of(customer)
            for place in self._customer:
                setattr(found, f"f{place}", customer)
            body = msgspec.json.encode(found)
        counterparty = (
            None if self._counterparty is None else normalize_category(values[self._counterparty])
        )
        if counterparty is not None and len(counterparty) > LONGEST_KEY:
            raise FieldError(
                f"the name has {len(counterparty):,} characters, and {LONGEST_KEY} are allowed",
                schema.counterparty,
            )
        numbers = pack_numbers(len(schema.continuous), values[self._numbers])
        if numbers is None:  # some are null
            numbers = np.array(
                [math.nan if value is None else value for value in values[self._numbers]],
                dtype=np.float64,
            )
        party = counterparty if self.plan.has_counterparty else None
        row = TransactionRow(time, numbers, self._names(values), self._habits(values), counterparty)
        return Transaction(
            str(values[self._id]),
            time,
            customer,
            party,
            row,
            bytes(body),
            schema,
            self.label_follows,
        )

    def _customer_of(self, values: tuple[Any, ...], time: float) -> str:
        schema = self.plan.schema
        if len(self._customer) == 1 and schema.customer_age is None:
            return str(normalize_category(values[self._customer[0]]))
        return parse_customer(schema, dict(zip(self.fields, values, strict=True)), time)

    def _explained(self, message: str) -> FieldError:
        problem = FieldError(message)
        if problem.field is not None and problem.field == self.plan.schema.label:
            return FieldError(
                f"{problem.field} is the outcome, which is not known when a transaction is scored. Send it to /v1/labels later",
                problem.field,
            )
        if "unknown field" in message:
            return FieldError(
                f"{message}. GET /v1/model shows an example with every field", problem.field
            )
        return problem

    @cached_property
    def example(self) -> dict[str, Any]:
        """A transaction that this form accepts: average numbers, the commonest names."""
        plan, schema = self.plan, self.plan.schema
        example: dict[str, Any] = {self.id_field: "example-1"}
        example |= dict.fromkeys(schema.customer, "example")
        example[schema.time] = math.ceil(self.times[1]) / TIME_UNITS[schema.time_unit]
        if schema.customer_age is not None:
            example[schema.customer_age] = 100.0
        scales = plan.scales
        for place, column in enumerate(schema.continuous):
            value = float(scales.centres[place])
            unit = float(scales.units[place])
            example.setdefault(
                column,
                float(
                    f"{math.copysign(math.expm1(abs(value)) * unit, value) if unit else value:.6g}"
                ),
            )
        for column, vocabulary in zip(schema.categorical, plan.vocabularies, strict=True):
            if vocabulary.frequent:
                example.setdefault(column, vocabulary.frequent[0])
        if schema.counterparty is not None:
            example.setdefault(schema.counterparty, "example")
        return example


def _getter(places: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What takes the values at these places, by the fastest way there is."""
    if len(places) < 2:
        return lambda values: tuple(values[place] for place in places)
    return itemgetter(*places)


def _kinds(schema: Schema) -> dict[str, tuple[Any, Any]]:
    """The type and the default of every field."""
    name = (_Name | _Whole | float | bool | None, None)
    kinds: dict[str, tuple[Any, Any]] = {
        schema.id or DEFAULT_ID_FIELD: (_Key | _Whole, msgspec.NODEFAULT),
        schema.time: (_Whole | float | str, msgspec.NODEFAULT),
    }
    one = len(schema.customer) == 1
    customer = (
        (_Key | _Whole | float, msgspec.NODEFAULT) if one else (_Key | _Whole | float | None, None)
    )
    kinds |= dict.fromkeys(schema.customer, customer)
    number = (float | None, _MISSING)
    kinds |= dict.fromkeys(schema.continuous, number)  # side by side
    for columns, kind in (
        ((schema.customer_age,) if schema.customer_age else (), number),
        (schema.text_columns, name),
    ):
        for column in columns:
            kinds.setdefault(column, kind)
    return kinds
