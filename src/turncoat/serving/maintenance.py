"""Work on a store beside the live requests: replay history, collect labels, erase customers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from turncoat.arrays import Array
from turncoat.data.json_rows import DEFAULT_ID_FIELD, list_fields
from turncoat.data.parsing import parse_row
from turncoat.data.transactions import Transactions
from turncoat.errors import ContentionError, DataError
from turncoat.scoring import Detector
from turncoat.serving.decoding import Pseudonymiser, Transaction
from turncoat.serving.records import customer_key, unpack_log_content
from turncoat.serving.stores.protocol import LABEL, RecordWrite, Store
from turncoat.serving.updater import BeliefUpdater, Response
from turncoat.storage import digest as compute_digest

_REPLAY_BATCH_SIZE = 256


async def replay(
    updater: BeliefUpdater,
    detector: Detector,
    transactions: Transactions,
    pseudonymiser: Pseudonymiser | None = None,
) -> AsyncIterator[tuple[Array, list[Response | Exception]]]:
    """Score a file's transactions in time order; yield row numbers and responses by batch.

    A batch is yielded after its write is committed. A replay that was interrupted continues where
    it stopped: it first yields the rows that are done, without responses. Labels in the file, and
    rows without one, inform the counterparties' records as in the features of the whole file; they
    condition no belief.
    """
    order, counter, done = _order_by_time(transactions), 0, 0
    digest = _digest_file(transactions, detector, pseudonymiser)
    key = f"replay:{digest}"
    if earlier := (await updater.store.read_records([key])).get(key):
        counter, done = earlier.counter, msgspec.msgpack.decode(earlier.data, type=int)
        yield order[:done], []
    size, has_counterparties = _REPLAY_BATCH_SIZE, bool(detector.features_.plan.counterparties)
    while done < len(order):
        rows = order[done : done + size]
        made = _make_transactions(transactions, rows, has_counterparties, pseudonymiser, digest)
        writes = [RecordWrite(key, counter, msgspec.msgpack.encode(done + len(rows)))]
        try:
            responses = await updater.process_batch(detector, list(made), writes)
        except ContentionError:
            if size == 1:
                raise
            size = max(size // 8, 1)  # a smaller batch meets other writers less often
            continue
        done, counter = done + len(rows), counter + 1
        yield rows, responses


def _digest_file(
    transactions: Transactions, detector: Detector, pseudonymiser: Pseudonymiser | None
) -> str:
    """Return a digest of the file's content, the model, and whether names are pseudonyms."""
    names = {name: list(each.values) for name, each in transactions.categories.items()}
    arrays = {
        "times": transactions.times,
        "ids": transactions.ids.astype(str),
        "customers": transactions.customer_codes,
        "rows": transactions.file_rows,
        **{f"number {name}": values for name, values in transactions.numbers.items()},
        **{f"name {name}": each.codes for name, each in transactions.categories.items()},
    }
    if transactions.labels is not None:
        arrays["labels"] = transactions.labels
    has_pseudonyms, customers = pseudonymiser is not None, transactions.customers.tolist()
    return compute_digest([detector.digest_, has_pseudonyms, customers, names], arrays)[:32]


def _make_transactions(
    transactions: Transactions,
    rows: Array,
    has_counterparties: bool,
    pseudonymiser: Pseudonymiser | None,
    digest: str,
) -> Iterator[Transaction]:
    """Yield rows of a file as decoded transactions."""
    schema, ids = transactions.schema, transactions.ids[rows].astype(str).tolist()
    customers = transactions.customers[transactions.customer_codes[rows]].tolist()
    has_labels = transactions.labels is not None
    labels = np.asarray(transactions.labels)[rows] if has_labels else np.full(len(rows), -1)
    for i, fields in enumerate(list_fields(transactions, rows)):
        customer, time = customers[i], float(transactions.times[rows[i]])
        id = ids[i] if schema.id is not None else f"{digest[:12]}-{ids[i]}"  # its row number
        fields[schema.id or DEFAULT_ID_FIELD] = id
        if pseudonymiser is not None:
            customer = pseudonymiser.pseudonymise(customer)
            fields |= dict.fromkeys(schema.customer, customer)
        row = parse_row(schema, fields)._replace(time=time)
        label = None if labels[i] < 0 else int(labels[i])
        others = row.counterparties if has_counterparties else ()
        values = id, time, customer, others, row, msgspec.json.encode(fields), schema
        yield Transaction(*values, label_follows=has_labels, is_replayed=True, label=label)


def _order_by_time(transactions: Transactions) -> Array:
    """Return row numbers by time, then id: also the order of each customer and counterparty."""
    ids = transactions.ids
    ranks = ids if ids.dtype.kind in "iu" else np.unique(ids, return_inverse=True)[1]
    return np.lexsort((ranks, transactions.times))


class LabeledScores(NamedTuple):
    """N live scores with labels, each customer's together."""

    beliefs: Array  # [N, K] when the transaction was scored
    labels: Array  # [N]
    offsets: Array  # [customers + 1]
    external: Array | None  # [N] the ranker's scores


async def collect_labeled_scores(
    store: Store, detector: Detector, now: float, delay: float, include_unreported: bool = True
) -> LabeledScores:
    """Return this model's live scores in the log, each with its latest label.

    Scores of replayed transactions are left out: the model may have been fitted on them. With
    `include_unreported`, scores older than `delay` seconds are used, and without a label they count
    as genuine; frauds are reported first, so younger scores are left out. Without it, all scores
    with a label are used; these must not be frauds only.
    """
    scored: dict[tuple[str, str], tuple[float, tuple[float, ...], float | None]] = {}
    reported: dict[tuple[str, str], int] = {}
    cursor = ""
    while entries := await store.read_log(after=cursor):
        cursor = entries[-1].cursor
        for entry in entries:
            name = (entry.parties[0][0], entry.transaction_id)
            content = unpack_log_content(entry.content)
            if entry.kind == LABEL:
                reported[name] = int(content.label or 0)
            elif content.model == detector.digest_ and not content.is_replayed:
                scored.setdefault(name, (entry.written_at, content.belief, content.external))
    if include_unreported:
        names = sorted(name for name, (at, *_) in scored.items() if at <= now - delay)
    else:
        names = sorted(scored.keys() & reported.keys())
    if not reported.keys() & set(names):
        n_young = len(reported.keys() & scored.keys())
        young = f", all in the last {delay / 86400:g} days, where more may still be reported"
        raise DataError(
            f"no label can be used: {len(reported):,} were reported, {n_young:,} of them for "
            f"transactions that this model scored live{young if n_young else ''}. Report labels "
            "to /v1/labels; wait, or see --delay-days and --reported-only"
        )
    if all(reported.get(name, 0) for name in names):
        problem = f"all {len(names):,} labels are frauds, so fraud rates cannot be estimated"
        raise DataError(f"{problem}. Report genuine transactions, too")
    customers = np.array([customer for customer, _ in names])
    starts = np.flatnonzero(np.append(True, customers[1:] != customers[:-1]))
    external = [scored[name][2] for name in names]
    has_external = all(each is not None for each in external)
    return LabeledScores(
        beliefs=np.array([scored[name][1] for name in names]),
        labels=np.array([reported.get(name, 0) for name in names], dtype=np.int8),
        offsets=np.append(starts, len(names)).astype(np.int64),
        external=np.array(external, dtype=np.float64) if has_external else None,
    )


async def erase_customer(store: Store, customer: str) -> tuple[bool, int]:
    """Delete a customer by stored name; return if there was a record, and how many log entries."""
    key = customer_key(customer)
    return key in await store.read_records([key]), await store.erase(key)
