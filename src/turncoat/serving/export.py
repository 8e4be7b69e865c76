"""The log of a store as a Parquet file: every score and every label, in the order written."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from turncoat.errors import DataError
from turncoat.serving.records import LogContent, customer_name, split_key, unpack_log_content
from turncoat.serving.responses import decode_scored
from turncoat.serving.stores.protocol import LogEntry, Store

_PAGE = 1000  # entries in memory
_REASON = pa.struct(
    [
        ("source", pa.string()),
        ("text", pa.string()),
        ("log_odds", pa.float64()),
        ("share", pa.float64()),
    ]
)
_COUNTERPARTY = pa.struct([("column", pa.string()), ("name", pa.string())])
SCHEMA = pa.schema(
    [
        ("kind", pa.string()),  # score or label
        ("id", pa.string()),  # of the transaction
        ("customer", pa.string()),  # as stored
        ("counterparties", pa.list_(_COUNTERPARTY)),
        ("time", pa.float64()),  # of the transaction, in seconds
        ("written_at", pa.timestamp("us", tz="UTC")),
        ("probability", pa.float64()),
        ("lower", pa.float64()),
        ("upper", pa.float64()),
        ("raw_membership", pa.float64()),
        ("regime", pa.int64()),
        ("entropy", pa.float64()),
        ("n_seen", pa.int64()),
        ("belief", pa.list_(pa.float64())),
        ("ranker_score", pa.float64()),
        ("reasons", pa.list_(_REASON)),
        ("late", pa.bool_()),
        ("belief_source", pa.string()),
        ("label", pa.int8()),  # reported, or in the file that was scored
        ("is_replayed", pa.bool_()),
        ("model", pa.string()),
        ("calibration", pa.int64()),
    ]
)


async def export_log(
    store: Store, path: Path, since: float = -math.inf, until: float = math.inf
) -> dict[str, int]:
    """Write the entries written from `since` up to `until`, in seconds since 1970.

    The file appears once it is complete. Returns how many scores and labels it has.
    """
    counts, cursor = {"score": 0, "label": 0}, ""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with parquet.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
            while entries := await store.read_log(after=cursor, limit=_PAGE):
                cursor = entries[-1].cursor
                rows = [_list_cells(one) for one in entries if since <= one.written_at < until]
                for row in rows:
                    counts[row["kind"]] += 1
                if rows:
                    writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
        os.replace(temporary, path)
    except (OSError, pa.ArrowException) as problem:
        raise DataError(f"{path}: cannot be written: {problem}") from problem
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return counts


def _list_cells(entry: LogEntry) -> dict[str, Any]:
    """Return the cells of an entry by column; columns without a value are left out."""
    (customer, _), *others = entry.parties
    content = unpack_log_content(entry.content)
    named = [dict(zip(("column", "name"), split_key(key), strict=True)) for key, _ in others]
    cells: dict[str, Any] = {"kind": entry.kind, "id": entry.transaction_id}
    cells |= {"customer": customer_name(customer), "counterparties": named, "time": entry.time}
    cells |= {"written_at": round(entry.written_at * 1e6), "label": content.label}
    cells |= {"is_replayed": content.is_replayed, "model": content.model}
    return cells | (_list_score(content) if content.response else {})


def _list_score(content: LogContent) -> dict[str, Any]:
    """Return the cells of a score."""
    sent = decode_scored(content.response)
    reasons = [
        {"source": one.source, "text": one.text, "log_odds": one.log_odds, "share": one.share}
        for one in sent.reasons
    ]
    lower, upper = sent.interval
    names = ("probability", "raw_membership", "regime", "entropy", "n_seen", "late")
    cells = {name: getattr(sent, name) for name in (*names, "belief_source", "calibration")}
    cells |= {"lower": lower, "upper": upper, "belief": list(sent.belief), "reasons": reasons}
    return cells | {"ranker_score": content.external}
