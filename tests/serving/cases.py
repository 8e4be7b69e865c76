"""A fitted detector on disk, rows as clients send them, and a service to send them to."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.features.cases import Data
from tests.scoring.cases import data_of, detector
from turncoat import Detector
from turncoat.serving.app import create_app
from turncoat.serving.decoding import Transaction, TransactionDecoder
from turncoat.serving.settings import ServiceSettings


@cache
def rows_of(name: str = "shop") -> list[dict[str, Any]]:
    """What clients would have sent, in the order it happened: no labels, and nulls left out."""
    data: Data = data_of(name)
    schema = data.transactions.schema
    ordered = [data.rows[place] for place in data.transactions.file_rows[data.live_order]]
    return [
        _json_row(
            {
                k: v
                for k, v in row.items()
                if v is not None and k in schema.columns and k != schema.label
            }
        )
        for row in ordered
    ]


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(row, default=str))


def transactions_of(
    name: str = "shop", n: int | None = None, made: Detector | None = None
) -> list[Transaction]:
    """The same, decoded."""
    form = TransactionDecoder(made or detector(name))
    return [form.decode(json.dumps(row).encode()) for row in rows_of(name)[:n]]


def changed(one: Transaction, **fields: Any) -> Transaction:
    """The same transaction with other fields."""
    sent = json.loads(one.sent) | fields
    return TransactionDecoder(detector("shop")).decode(json.dumps(sent).encode())


@cache
def _saved(name: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="turncoat-test-")
    detector(name).save(Path(folder.name) / "detector")
    return folder


def bundle(name: str, target: Path) -> Path:
    """A saved detector of a test's own."""
    shutil.copytree(Path(_saved(name).name) / "detector", target / "detector")
    return target / "detector"


@contextmanager
def client(
    model: Path, store: str = "memory://", *, raises: bool = True, **settings: Any
) -> Iterator[TestClient]:
    """A running service, spoken to without a network."""
    settings = {"reload_interval_s": 0.05, "create_store": True, **settings}
    chosen = ServiceSettings(model_path=str(model), store_url=store, **settings)
    chosen.check()
    with TestClient(
        create_app(chosen), "http://localhost", raise_server_exceptions=raises
    ) as talking:
        yield talking
