"""A customer taken out of a store, as privacy rules may ask."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from turncoat.serving.cache import REMEMBERED_SECONDS
from turncoat.serving.records import customer_key
from turncoat.serving.stores import Store


class Erased(NamedTuple):
    """What was removed of a customer."""

    had_record: bool
    n_entries: int  # of the log


async def wait_for_cache_expiry() -> None:
    """Wait until a service that runs on the store remembers nothing of a customer who was erased."""
    await asyncio.sleep(1.5 * REMEMBERED_SECONDS)


async def erase_customer(store: Store, customer: str) -> Erased:
    """Remove everything that is stored under a customer's name, or pseudonym. Who was cut off may do it again, and finds the rest."""
    key = customer_key(customer)
    had_record = key in await store.read_records([key])
    return Erased(had_record, await store.erase(key))
