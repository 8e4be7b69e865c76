"""Work on a store beside the live requests: replay and score files, collect labels, erase."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.json_rows import DEFAULT_ID_FIELD, list_fields
from turncoat.data.parsing import parse_row
from turncoat.data.transactions import Transactions
from turncoat.errors import ContentionError, DataError
from turncoat.scoring import Detector
from turncoat.serving.decoding import Pseudonymiser, Transaction
from turncoat.serving.records import customer_key, unpack_log_content
from turncoat.serving.responses import DuplicateResponse, ScoredTransaction, decode_score
from turncoat.serving.stores.protocol import LABEL, RecordWrite, Store
from turncoat.serving.updater import BeliefUpdater, Response
from turncoat.storage import digest as compute_digest

_BATCH_SIZE = 256


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
    digest = digest_file(transactions)
    about = [digest, detector.digest_, pseudonymiser is not None]
    key = f"replay:{compute_digest(about)[:32]}"
    if earlier := (await updater.store.read_records([key])).get(key):
        counter, done = earlier.counter, msgspec.msgpack.decode(earlier.data, type=int)
        yield order[:done], []
    size, builder = _BATCH_SIZE, _TransactionBuilder(transactions, detector, pseudonymiser, digest)
    has_labels = transactions.labels is not None
    while done < len(order):
        rows = order[done : done + size]
        made = builder.build(rows, label_follows=has_labels, is_replayed=True)
        writes = [RecordWrite(key, counter, msgspec.msgpack.encode(done + len(rows)))]
        try:
            responses = await updater.process_batch(detector, made, writes)
        except ContentionError:
            if size == 1:
                raise
            size = max(size // 8, 1)  # a smaller batch meets other writers less often
            continue
        done, counter = done + len(rows), counter + 1
        yield rows, responses


async def score_file(
    updater: BeliefUpdater,
    detector: Detector,
    transactions: Transactions,
    pseudonymiser: Pseudonymiser | None = None,
) -> AsyncIterator[tuple[Array, list[Response]]]:
    """Score a file's transactions in time order as the service does; yield rows and responses.

    A transaction that the store knows gets its first response again, so a file may be scored again.
    Labels count as in `replay`; transactions without one wait for theirs.
    """
    order = _order_by_time(transactions)
    builder = _TransactionBuilder(transactions, detector, pseudonymiser, digest_file(transactions))
    for start in range(0, len(order), _BATCH_SIZE):
        rows = order[start : start + _BATCH_SIZE]
        batch = builder.build(rows, label_follows=True, is_replayed=False)
        responses = []
        for row, response in zip(rows, await updater.process_batch(detector, batch), strict=True):
            if isinstance(response, Exception) and not isinstance(response, DataError):
                raise response  # a fault of the store or of the program
            if isinstance(response, Exception):
                place = f"row {transactions.file_rows[row] + 1}"
                raise DataError(f"{transactions.source}, {place}: {response}") from response
            responses.append(response)
        yield rows, responses


def digest_file(transactions: Transactions) -> str:
    """Return 32 hex digits of everything that was read of a file."""
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
    return compute_digest([transactions.customers.tolist(), names], arrays)[:32]


@dataclass(frozen=True)
class _TransactionBuilder:
    """Makes decoded transactions of the rows of a file."""

    transactions: Transactions
    detector: Detector
    pseudonymiser: Pseudonymiser | None
    digest: str  # of the file: part of the ids if it has none

    def build(self, rows: Array, label_follows: bool, is_replayed: bool) -> list[Transaction]:
        """Return rows of the file as transactions."""
        transactions, rename = self.transactions, self.pseudonymiser
        schema, ids = transactions.schema, transactions.ids[rows].astype(str).tolist()
        customers = transactions.customers[transactions.customer_codes[rows]].tolist()
        labels = np.full(len(rows), -1)
        if transactions.labels is not None:
            labels = transactions.labels[rows]
        found = []
        for i, fields in enumerate(list_fields(transactions, rows)):
            customer, time = customers[i], float(transactions.times[rows[i]])
            id = ids[i] if schema.id is not None else f"{self.digest[:12]}-{ids[i]}"
            fields[schema.id or DEFAULT_ID_FIELD] = id
            if rename is not None:
                customer = rename.pseudonymise(customer)
                fields |= dict.fromkeys(schema.customer, customer)
            row = parse_row(schema, fields)._replace(time=time)
            label = None if labels[i] < 0 else int(labels[i])
            others = row.counterparties if self.detector.features_.plan.counterparties else ()
            values = id, time, customer, others, row, msgspec.json.encode(fields), schema
            found.append(Transaction(*values, label_follows, is_replayed, label))
        return found


def _order_by_time(transactions: Transactions) -> Array:
    """Return row numbers by time, then id: also the order of each customer and counterparty."""
    ids = transactions.ids
    ranks = ids if ids.dtype.kind in "iu" else np.unique(ids, return_inverse=True)[1]
    return np.lexsort((ranks, transactions.times))


_RESPONSE_COLUMNS: dict[str, Any] = {
    **dict.fromkeys(("probability", "lower", "upper", "raw_membership"), pl.Float64),
    "regime": pl.Int64,
    "entropy": pl.Float64,
    "n_seen": pl.Int64,
    "reasons": pl.String,
    "late": pl.Boolean,
    "belief_source": pl.String,
    "model": pl.String,
    "calibration": pl.Int64,
}


def tabulate_responses(
    transactions: Transactions, bodies: Sequence[bytes], kind: str
) -> pl.DataFrame:
    """Return a table like that of `Scores.frame` from the responses to N transactions.

    A transaction whose first response is no longer in the log has nothing but its probability.
    """
    found = [decode_score(body) for body in bodies]
    table = pl.DataFrame([*map(_list_cells, found)], _RESPONSE_COLUMNS, orient="row")
    beliefs = [one.belief if isinstance(one, ScoredTransaction) else () for one in found]
    for k in range(max(map(len, beliefs), default=0)):
        own = [belief[k] if k < len(belief) else None for belief in beliefs]
        table = table.with_columns(pl.Series(f"belief_{k}", own, dtype=pl.Float64))
    keys = np.repeat(transactions.keys, np.diff(transactions.offsets))
    score = table["raw_membership" if kind == "raw" else "probability"].alias("score")
    columns = {"id": transactions.ids, "customer": keys, "time": transactions.times}
    if transactions.labels is not None:
        table = table.with_columns(label=pl.Series(transactions.labels).replace(-1, None))
    return pl.DataFrame(columns).with_columns(score).hstack(table)


def _list_cells(one: ScoredTransaction | DuplicateResponse) -> tuple[Any, ...]:
    """Return the cells of `_RESPONSE_COLUMNS`."""
    if isinstance(one, DuplicateResponse):
        return one.probability, *[None] * (len(_RESPONSE_COLUMNS) - 1)
    numbers = one.probability, *one.interval, one.raw_membership, one.regime, one.entropy
    reasons = "; ".join(map(str, one.reasons)) or None
    versions = one.model, one.calibration
    return *numbers, one.n_seen, reasons, one.late, one.belief_source, *versions


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
                if content.label is not None:  # of a scored file
                    reported.setdefault(name, content.label)
    if include_unreported:
        names = sorted(name for name, (at, *_) in scored.items() if at <= now - delay)
    else:
        names = sorted(scored.keys() & reported.keys())
    if not reported.keys() & set(names):
        n_young = len(reported.keys() & scored.keys())
        days = f"{delay / 86400:g} days"
        young = f", all within the last {days} by the clock, where more may still be reported"
        raise DataError(
            f"no label can be used: {len(reported):,} were reported, {n_young:,} of them for "
            f"transactions that this model scored live{young if n_young else ''}. Report labels "
            "to /v1/labels and wait, or see --reported-only. `--delay-days 0` uses all scores: for "
            "months that were scored afterwards and have all their labels"
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
