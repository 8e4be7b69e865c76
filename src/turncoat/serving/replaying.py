"""A file's history into a store, in the order it happened, some at a time; a stopped replay goes on where it was."""

from __future__ import annotations

import hashlib
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from turncoat.data.rows import read_row
from turncoat.data.schema import TIME_UNITS, Schema
from turncoat.data.transactions import Transactions
from turncoat.scoring import Detector
from turncoat.serving.attempt import Given
from turncoat.serving.fields import OWN_ID, Transaction
from turncoat.serving.ledger import Ledger
from turncoat.serving.pseudonyms import Pseudonyms
from turncoat.serving.stores import Change

Array = NDArray[Any]

_AT_ONCE = 256


async def replay(
    ledger: Ledger, detector: Detector, transactions: Transactions, pseudonyms: Pseudonyms | None = None
) -> AsyncIterator[tuple[Array, list[Given | Exception]]]:
    """Score the transactions as if they came one by one: for every few, which of them, and their answers, which are in the store by then.

    Labels in the file inform the second parties' records as they do in features of the whole file; they condition no belief.
    """
    order = _order(transactions)
    key = f"replay:{_digest(transactions, detector)}"
    counter, done = await _position(ledger, key)
    for some in np.split(order[done:], range(_AT_ONCE, len(order) - done, _AT_ONCE)):
        if not len(some):
            return
        done += len(some)
        beside = Change(key, counter, msgspec.msgpack.encode(done))
        yield (
            some,
            await ledger.score(detector, list(_rows(transactions, some, detector.features_.fitted().has_entity, pseudonyms)), [beside]),
        )
        counter += 1


def client_rows(transactions: Transactions, most: int) -> Iterator[Transaction]:
    """The first transactions as they happened, as clients would send them."""
    return _rows(transactions, _order(transactions)[:most], True, None)


async def replayed(ledger: Ledger, detector: Detector, transactions: Transactions) -> int:
    """How many of the transactions an earlier replay of the same file by the same model has done."""
    return (await _position(ledger, f"replay:{_digest(transactions, detector)}"))[1]


async def _position(ledger: Ledger, key: str) -> tuple[int, int]:
    stored = (await ledger.store.read([key])).get(key)
    return (0, 0) if stored is None else (stored.counter, msgspec.msgpack.decode(stored.data, type=int))


def _digest(transactions: Transactions, detector: Detector) -> str:
    """Tells this file with this model from others."""
    digest = hashlib.blake2b(detector.version_.encode(), digest_size=16)
    for part in (transactions.times, transactions.ids.astype(str), transactions.customer_codes, transactions.places):
        digest.update(np.ascontiguousarray(part).tobytes())
    for column in (*transactions.numbers.values(), *(named.codes for named in transactions.names.values())):
        digest.update(np.ascontiguousarray(column).tobytes())
    if transactions.labels is not None:
        digest.update(transactions.labels.tobytes())
    return digest.hexdigest()


def _rows(transactions: Transactions, some: Array, has_entity: bool, pseudonyms: Pseudonyms | None) -> Iterator[Transaction]:
    """Transactions as a client would send them."""
    schema, places = transactions.schema, transactions.places[some]
    columns = {name: values[places].tolist() for name, values in transactions.numbers.items()}
    for name, named in transactions.names.items():
        texts = (*named.values, None)
        columns[name] = [texts[code] for code in named.codes[places].tolist()]
    keys = transactions.customers[transactions.customer_codes[some]].tolist()
    labels = np.full(len(some), -1) if transactions.labels is None else transactions.labels[some]
    names = tuple(columns)
    for i, values in enumerate(zip(*columns.values(), strict=True)):
        fields = {name: value for name, value in zip(names, values, strict=True) if value is not None and value == value}
        time, id, customer = float(transactions.times[some[i]]), str(transactions.ids[some[i]]), keys[i]
        fields |= {schema.time: raw_time(schema, time), schema.id or OWN_ID: id}
        if pseudonyms is not None:
            customer = pseudonyms.of(customer)
            fields |= dict.fromkeys(schema.customer, customer)
        row = read_row(schema, fields)._replace(time=time)
        label = None if labels[i] < 0 else int(labels[i])
        entity = row.entity if has_entity else None
        yield Transaction(id, time, customer, entity, row, msgspec.json.encode(fields), label is not None, True, label)


def raw_time(schema: Schema, seconds: float) -> float:
    """A number in the schema's unit that a live row's time is read from as exactly these seconds."""
    unit = TIME_UNITS[schema.time_unit]
    value = seconds / unit
    for candidate in (value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)):
        if candidate * unit == seconds:
            return candidate
    return value


def _order(transactions: Transactions) -> Array:
    """As they happened: by time, then id. That is each customer's order, and each second party's."""
    return np.lexsort((_rank(transactions.ids), transactions.times))


def _rank(ids: Array) -> Array:
    """Ids in a form that sorts as files do."""
    return ids if ids.dtype.kind in "iu" else np.unique(ids, return_inverse=True)[1]
