"""The store that a command is given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from turncoat.serving.decoding import Pseudonymiser
    from turncoat.serving.stores.protocol import Store

STORE_KINDS = "`sqlite:///FILE` or `redis://HOST:PORT/DB`"
UPDATE_HELP = "Condition the belief on the label of a customer's latest transaction."
_STORE_HELP = f"{STORE_KINDS}; by default the SQLite file MODEL-beliefs.sqlite."
_PSEUDONYM_HELP = "Store customers by a hash keyed with TURNCOAT_PSEUDONYM_KEY."
StoreUrl = Annotated[str, Option("--store", help=_STORE_HELP)]
Pseudonymise = Annotated[bool, Option("--pseudonymise", help=_PSEUDONYM_HELP)]


@asynccontextmanager
async def open_store(url: str, create: bool = False) -> AsyncIterator[Store]:
    """Open a store, and close it at the end."""
    from turncoat.serving import stores

    store = stores.open_store(url, create=create)
    try:
        yield store
    finally:
        await store.close()


def load_pseudonyms(pseudonymise: bool) -> Pseudonymiser | None:
    """Return what renames customers, if they are renamed."""
    from turncoat.serving.decoding import Pseudonymiser

    return Pseudonymiser() if pseudonymise else None
