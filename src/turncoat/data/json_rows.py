"""Transactions as JSON objects: typed by a schema, and rows of a file in the same form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from operator import itemgetter
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from turncoat.arrays import Array
from turncoat.data.categories import normalize_category
from turncoat.data.money import convert_row, to_minor_units
from turncoat.data.parsing import (
    TransactionRow,
    pack_numbers,
    parse_customer,
    parse_time,
    parse_utc_offset,
)
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError

DEFAULT_ID_FIELD = "transaction_id"  # used if the schema names no id column
MAX_KEY_CHARS, MAX_TEXT_CHARS = 256, 10_000
Key = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARS)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MISSING = math.nan  # a single object, so that encoding can omit it as the default


class DecodedRow(NamedTuple):
    """A transaction of a JSON object."""

    id: str
    customer: str
    row: TransactionRow
    sent_time: Any  # as in the object
    fields: Any  # the object, an instance of `RowDecoder.type`


class RowDecoder:
    """Decodes JSON objects with the fields of one schema."""

    def __init__(self, schema: Schema) -> None:
        """Raise ConfigError if the schema's columns cannot be fields."""
        if schema.id is None and DEFAULT_ID_FIELD in schema.columns:
            problem = f"has a column {DEFAULT_ID_FIELD!r} but names no id"
            raise ConfigError(f"schema {schema.name!r} {problem}: name it as `id`, or rename it")
        self.schema, self.id_field = schema, schema.id or DEFAULT_ID_FIELD
        types = _field_types(schema)
        try:
            self.type = msgspec.defstruct(
                "Transaction",
                [(f"f{i}", *type) for i, type in enumerate(types.values())],
                rename={f"f{i}": name for i, name in enumerate(types)},
                forbid_unknown_fields=True,
                omit_defaults=True,
                gc=False,
            )
        except ValueError as error:
            problem = f"a column's name cannot be a JSON field here: {error}"
            raise ConfigError(f"schema {schema.name!r}: {problem}") from error
        self._decoder, self._fields = msgspec.json.Decoder(self.type), tuple(types)
        index = {name: i for i, name in enumerate(types)}
        first = index[schema.continuous[0]] if schema.continuous else 0
        self._numbers = slice(first, first + len(schema.continuous))
        self._names = _make_getter([index[column] for column in schema.categorical])
        self._habits = _make_getter([index[column] for column in schema.tracked])
        self._counterparties = tuple(index[column] for column in schema.counterparties)
        self._id, self._time = index[self.id_field], index[schema.time]
        zone = schema.time_zone_column
        self._zone = None if zone is None else index[zone]
        self._currency = None if schema.currency is None else index[schema.currency]
        self._customer = tuple(index[column] for column in schema.customer)

    def decode(self, body: bytes | memoryview) -> DecodedRow:
        """The transaction of a JSON object.

        Raises a msgspec error for wrong JSON or types, and DataError for a wrong time or customer.
        """
        decoded = self._decoder.decode(body)
        values, schema = msgspec.structs.astuple(decoded), self.schema
        sent_time = values[self._time]
        about = {schema.time: sent_time}
        if self._zone is not None:
            about = {str(schema.time_zone_column): values[self._zone], **about}
        time = parse_time(schema, about)
        if len(self._customer) == 1 and schema.customer_age is None:
            customer = str(normalize_category(values[self._customer[0]]))
        else:
            named = dict(zip(self._fields, values, strict=True))
            customer = parse_customer(schema, named, time)
        counterparties = tuple([normalize_category(values[i]) for i in self._counterparties])
        cells = values[self._numbers]
        numbers = pack_numbers(len(cells), cells)
        if numbers is None:  # some are null
            numbers = np.array([math.nan if cell is None else cell for cell in cells], np.float64)
        original = None
        if schema.converts_money:
            currency = None if self._currency is None else values[self._currency]
            numbers, original = convert_row(schema, numbers, currency, time)
        texts = self._names(values), self._habits(values)
        offset = parse_utc_offset(schema, about, time)
        row = TransactionRow(time, numbers, *texts, counterparties, offset, original)
        return DecodedRow(str(values[self._id]), customer, row, sent_time, decoded)

    def encode(self, fields: Any, customer: str) -> bytes:
        """The fields as JSON, with another name of the customer."""
        for i in self._customer:
            setattr(fields, f"f{i}", customer)
        return msgspec.json.encode(fields)


def list_fields(transactions: Transactions, rows: Array) -> Iterator[dict[str, Any]]:
    """The fields of rows of a file, without missing ones; id and customer are the file's columns.

    Times become numbers in the schema's unit, or text if their offset matters. Amounts are as in
    the file, before conversion.
    """
    schema, places = transactions.schema, transactions.file_rows[rows]
    numbers = {**transactions.numbers, **transactions.original_money}
    columns = {name: values[places].tolist() for name, values in numbers.items()}
    for name, category in transactions.categories.items():
        texts = (*category.values, None)
        columns[name] = [texts[code] for code in category.codes[places].tolist()]
    times = transactions.times[rows].tolist()
    currencies = columns.get(schema.currency or "", [None] * len(times))
    for name in schema.minor_units:
        columns[name] = list(map(to_minor_units, columns[name], currencies))
    written: list[Any] = [invert_time(schema, time) for time in times]
    if schema.time_zone_column == schema.time and transactions.utc_offsets is not None:
        offsets = transactions.utc_offsets[rows].tolist()
        written = list(map(_write_time, times, offsets))
    for time, cells in zip(written, zip(*columns.values(), strict=True), strict=True):
        named = zip(columns, cells, strict=True)
        fields = {name: cell for name, cell in named if cell is not None and cell == cell}
        yield fields | {schema.time: time}


def _write_time(seconds: float, utc_offset: float) -> str:
    """A time with its offset, as ISO text."""
    zone = timezone(timedelta(seconds=utc_offset))
    return (_EPOCH + timedelta(seconds=seconds)).astimezone(zone).isoformat()


def invert_time(schema: Schema, seconds: float) -> float:
    """A number in the schema's unit that reads back as exactly these seconds."""
    unit = TIME_UNITS[schema.time_unit]
    value = seconds / unit
    candidates = value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)
    return next((one for one in candidates if one * unit == seconds), value)


def _make_getter(indexes: Sequence[int]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """A function that selects these values of a tuple, the fastest way there is."""
    if len(indexes) < 2:
        return lambda values: tuple(values[i] for i in indexes)
    return itemgetter(*indexes)


def _field_types(schema: Schema) -> dict[str, tuple[Any, Any]]:
    """The type and the default of every field; continuous columns are consecutive."""
    text, number = (_Text | Integer | float | bool | None, None), (float | None, _MISSING)
    customer: tuple[Any, Any] = (Key | Integer | float, msgspec.NODEFAULT)
    if len(schema.customer) > 1:  # one of several parts may be missing
        customer = (customer[0] | None, None)
    types: dict[str, tuple[Any, Any]] = {
        schema.id or DEFAULT_ID_FIELD: (Key | Integer, msgspec.NODEFAULT),
        schema.time: (Integer | float | str, msgspec.NODEFAULT),
    }
    types |= dict.fromkeys(schema.customer, customer) | dict.fromkeys(schema.continuous, number)
    if schema.customer_age:
        types.setdefault(schema.customer_age, number)
    for column in schema.text_columns:
        types.setdefault(column, text)
    return types
