"""Files into validated, time-ordered transactions: schemas, reading, splits, simulators."""

from turncoat.data.presets import preset
from turncoat.data.reading import read, read_for_scoring
from turncoat.data.schema import Join, Schema
from turncoat.data.transactions import Transactions

__all__ = ["Join", "Schema", "Transactions", "preset", "read", "read_for_scoring"]
