"""A file's history into a store, in the order it happened, some at a time; a stopped replay goes on where it was."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator

import msgspec
import numpy as np

from turncoat.arrays import Array
from turncoat.data.parsing import parse_row
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.transactions import Transactions
from turncoat.errors import ContentionError
from turncoat.scoring import Detector
from turncoat.serving.decoding import DEFAULT_ID_FIELD, Transaction
from turncoat.serving.pseudonyms import Pseudonymiser
from turncoat.serving.responses import ScoredResponse
from turncoat.serving.stores import RecordWrite
from turncoat.serving.updater import BeliefUpdater
from turncoat.storage import digest as content_digest

_AT_ONCE = 256


async def replay(
    updater: BeliefUpdater,
    detector: Detector,
    transactions: Transactions,
    pseudonyms: Pseudonymiser | None = None,
) -> AsyncIterator[tuple[Array, list[ScoredResponse | Exception]]]:
    """Score the transactions as if they came one by one: for every few, which of them, and their answers, which are in the store by then.

    Labels in the file inform the counterparties' records as they do in features of the whole file; they condition no belief.
    """
    order, digest = _order(transactions), _digest(transactions, detector, pseudonyms)
    counter, done = await _position(updater, f"replay:{digest}")
    size, has_counterparty = _AT_ONCE, detector.features_.plan.has_counterparty
    while done < len(order):
        some = order[done : done + size]
        rows = list(_rows(transactions, some, has_counterparty, pseudonyms, digest))
        beside = RecordWrite(f"replay:{digest}", counter, msgspec.msgpack.encode(done + len(some)))
        try:
            given = await updater.score_batch(detector, rows, [beside])
        except ContentionError:
            if size == 1:
                raise
            size = max(size // 8, 1)  # fewer meet others less often
            continue
        done, counter = done + len(some), counter + 1
        yield some, given


def client_rows(transactions: Transactions, most: int) -> Iterator[Transaction]:
    """The first transactions as they happened, as clients would send them."""
    return _rows(transactions, _order(transactions)[:most], True, None, "")


async def count_replayed(
    updater: BeliefUpdater,
    detector: Detector,
    transactions: Transactions,
    pseudonyms: Pseudonymiser | None = None,
) -> int:
    """How many of the transactions an earlier replay of the same file by the same model has done."""
    return (await _position(updater, f"replay:{_digest(transactions, detector, pseudonyms)}"))[1]


async def _position(updater: BeliefUpdater, key: str) -> tuple[int, int]:
    stored = (await updater.store.read_records([key])).get(key)
    return (
        (0, 0)
        if stored is None
        else (stored.counter, msgspec.msgpack.decode(stored.data, type=int))
    )


def _digest(
    transactions: Transactions, detector: Detector, pseudonyms: Pseudonymiser | None
) -> str:
    """Tells this file with this model, and customers under these names, from others."""
    names = {name: list(named.values) for name, named in transactions.categories.items()}
    arrays = {
        "times": transactions.times,
        "ids": transactions.ids.astype(str),
        "customers": transactions.customer_codes,
        "places": transactions.file_rows,
        **{f"number {name}": values for name, values in transactions.numbers.items()},
        **{f"name {name}": named.codes for name, named in transactions.categories.items()},
    }
    if transactions.labels is not None:
        arrays["labels"] = transactions.labels
    content = [detector.digest_, pseudonyms is not None, transactions.customers.tolist(), names]
    return content_digest(content, arrays)[:32]


def _rows(
    transactions: Transactions,
    some: Array,
    has_counterparty: bool,
    pseudonyms: Pseudonymiser | None,
    digest: str,
) -> Iterator[Transaction]:
    """Transactions as a client would send them."""
    schema, places = transactions.schema, transactions.file_rows[some]
    columns = {name: values[places].tolist() for name, values in transactions.numbers.items()}
    for name, named in transactions.categories.items():
        texts = (*named.values, None)
        columns[name] = [texts[code] for code in named.codes[places].tolist()]
    keys = transactions.customers[transactions.customer_codes[some]].tolist()
    labels = np.full(len(some), -1) if transactions.labels is None else transactions.labels[some]
    names = tuple(columns)
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        fields = {
            name: value
            for name, value in zip(names, values, strict=True)
            if value is not None and value == value
        }
        time, customer = float(transactions.times[some[i]]), keys[i]
        id = str(transactions.ids[some[i]])
        if schema.id is None:  # it is only the row's place in this file
            id = f"{digest[:12]}-{id}"
        fields |= {schema.time: raw_time(schema, time), schema.id or DEFAULT_ID_FIELD: id}
        if pseudonyms is not None:
            customer = pseudonyms.of(customer)
            fields |= dict.fromkeys(schema.customer, customer)
        row = parse_row(schema, fields)._replace(time=time)
        label = None if labels[i] < 0 else int(labels[i])
        counterparty = row.counterparty if has_counterparty else None
        yield Transaction(
            id,
            time,
            customer,
            counterparty,
            row,
            msgspec.json.encode(fields),
            schema,
            label is not None,
            True,
            label,
        )


def raw_time(schema: Schema, seconds: float) -> float:
    """A number in the schema's unit that a live row's time is read from as exactly these seconds."""
    unit = TIME_UNITS[schema.time_unit]
    value = seconds / unit
    for candidate in (value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)):
        if candidate * unit == seconds:
            return candidate
    return value


def _order(transactions: Transactions) -> Array:
    """As they happened: by time, then id. That is each customer's order, and each counterparty's."""
    return np.lexsort((_rank(transactions.ids), transactions.times))


def _rank(ids: Array) -> Array:
    """Ids in a form that sorts as files do."""
    return ids if ids.dtype.kind in "iu" else np.unique(ids, return_inverse=True)[1]
