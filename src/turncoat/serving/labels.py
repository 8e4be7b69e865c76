"""Labels beside the single request: which customer they belong to, and whole files of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from turncoat.data.label_file import LabelFile
from turncoat.errors import StoreError
from turncoat.scoring import Detector
from turncoat.serving.decoding import FieldError, Label, Pseudonymiser
from turncoat.serving.records import customer_name
from turncoat.serving.stores.protocol import Store
from turncoat.serving.updater import BeliefUpdater, Result, UnknownTransactionError

_BATCH_SIZE = 256


async def find_customers(store: Store, ids: Sequence[str]) -> list[str | Exception]:
    """Return for each transaction the stored name of its customer, or why there is none."""
    found = await store.find_customers(list(dict.fromkeys(ids)))
    return [_choose(id, found[id]) for id in ids]


def _choose(id: str, keys: Sequence[str]) -> str | Exception:
    if not keys:
        remedy = "Score it first, and keep the log long enough"
        return UnknownTransactionError(f"the log has no transaction {id!r}. {remedy}")
    if len(keys) > 1:
        problem = f"several customers have a transaction {id!r}"
        return FieldError(f"{problem}. Name the customer", "customer")
    return customer_name(keys[0])


async def apply_labels(
    store: Store,
    updater: BeliefUpdater,
    detector: Detector,
    file: LabelFile,
    pseudonymiser: Pseudonymiser | None = None,
) -> AsyncIterator[tuple[Sequence[int], list[Result]]]:
    """Apply the known labels of a file in order; yield row numbers and results by batch.

    A batch is yielded after its write is committed. The same file again changes nothing.
    """
    rename = str if pseudonymiser is None else pseudonymiser.pseudonymise
    known = [row for row, label in enumerate(file.labels.tolist()) if label >= 0]
    for start in range(0, len(known), _BATCH_SIZE):
        rows = known[start : start + _BATCH_SIZE]
        unnamed = [file.ids[row] for row in rows if file.customers[row] is None]
        looked_up = iter(await find_customers(store, unnamed))
        labels: list[Label | Exception] = []
        for row in rows:
            name = file.customers[row]
            customer = next(looked_up) if name is None else rename(name)
            if isinstance(customer, str):
                labels.append(Label(customer, file.ids[row], int(file.labels[row])))
            else:
                labels.append(customer)
        sent = [one for one in labels if isinstance(one, Label)]
        responses = iter(await updater.process_batch(detector, sent))
        results = [next(responses) if isinstance(one, Label) else one for one in labels]
        for found in results:
            if isinstance(found, StoreError):
                raise found
        yield rows, results
