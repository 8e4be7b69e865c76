"""Files into validated, time-ordered transactions: schemas, reading, splits, simulators."""

from turncoat.data.presets import load_preset
from turncoat.data.reading import read, read_for_scoring
from turncoat.data.schema import Join, Schema
from turncoat.data.transactions import Transactions

__all__ = ["Join", "Schema", "Transactions", "load_preset", "read", "read_for_scoring"]
