"""Explained transactions: what they are, how they scored, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.data.transactions import Transactions
from turncoat.errors import DataError
from turncoat.scoring.descriptions import Values
from turncoat.scoring.formatting import Clock, format_amount, shorten
from turncoat.scoring.scores import Score


class Explanation(Struct, frozen=True):
    """A transaction as it was given, with its score and reasons."""

    id: str
    customer: str
    time: Annotated[str | None, Meta(description="ISO 8601; null without a calendar")]
    seconds: float
    moment: Annotated[str, Meta(description="the time in words")]
    amount: float | None
    currency: str | None
    counterparties: Mapping[str, str]  # by column; those that are known
    label: int | None  # 1 is fraud, 0 is genuine
    score: Score

    @property
    def facts(self) -> dict[str, str]:
        """What the transaction is: time, amount, counterparties and known label, as text."""
        facts = {"time": self.moment}
        if self.amount is not None:
            facts["amount"] = format_amount(self.amount, self.currency)
        facts |= {column: shorten(name) for column, name in self.counterparties.items()}
        if self.label is not None:
            facts["known label"] = "fraud" if self.label else "genuine"
        return facts

    def list_facts(self) -> list[str]:
        """The same, each with its name, except for the time."""
        time, *others = self.facts.items()
        return [time[1], *(f"{name} {text}" for name, text in others)]


def find_rows(
    transactions: Transactions,
    customer: str | None = None,
    transaction: str | None = None,
    rows: ArrayLike | None = None,
) -> Array:
    """The rows of a customer, or of one transaction, among all or these; DataError without any."""
    chosen = np.arange(transactions.n_rows) if rows is None else transactions.row_indices(rows)
    source = transactions.source
    if customer is not None:
        keys = np.repeat(transactions.keys, np.diff(transactions.offsets))
        chosen = chosen[keys[chosen] == customer]
        if len(chosen) == 0:
            first = f"The first customers are {', '.join(map(str, transactions.keys[:5]))}"
            raise DataError(f"{source}: no customer {customer!r}. {first}")
    if transaction is not None:
        chosen = chosen[transactions.ids[chosen].astype(str) == transaction]
        if len(chosen) == 0:
            whose = "there is" if customer is None else f"customer {customer!r} has"
            raise DataError(f"{source}: {whose} no transaction {transaction!r}")
    return chosen


@dataclass(frozen=True)
class Explainer:
    """Puts transactions beside their scores."""

    values: Values
    clock: Clock

    def explain(
        self, id: str, customer: str, label: int | None, row: TransactionRow, score: Score
    ) -> Explanation:
        """The explanation of a transaction; a label of None is unknown."""
        schema, amount = self.values.schema, math.nan
        currency = self.values.currency(row)
        # Beside others with a currency, an amount without one says nothing.
        if schema.amount is not None and (schema.currency is None or currency is not None):
            amount = self.values.number(row, schema.amount)
        named = zip(schema.counterparties, row.counterparties, strict=True)
        clock = self.clock.localize(row.utc_offset)
        return Explanation(
            id=id,
            customer=customer,
            time=clock.format_iso(row.time),
            seconds=row.time,
            moment=clock.format_moment(row.time),
            amount=None if math.isnan(amount) else amount,
            currency=currency,
            counterparties={column: name for column, name in named if name is not None},
            label=label,
            score=score,
        )
