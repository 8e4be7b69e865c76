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
_PSEUDONYM_HELP = "Store customers by a hash keyed with TURNCOAT_PSEUDONYM_KEY."
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
