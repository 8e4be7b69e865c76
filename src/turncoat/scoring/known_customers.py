"""The customers of the fit: a sample that shows when a file lacks their history."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from turncoat.arrays import Array
from turncoat.data.transactions import Transactions

MAX_CUSTOMERS = 4096
_MIN_SHARE = 0.05  # of a file's customers that lack their history, to be worth a warning
_TOLERANCE_S = 1.0  # two files may round the same time differently


@dataclass(frozen=True, eq=False)
class KnownCustomers:
    """The customers of the fit with the smallest hashes: a random sample, the same in every file.

    Of a file's customers, those with a hash up to `limit` are either in the sample or new.
    """

    hashes: Array  # [M] uint64, rising
    first_times: Array  # [M] seconds, of each customer's first transaction

    @classmethod
    def sample(cls, transactions: Transactions) -> KnownCustomers:
        """At most 4,096 customers of these transactions."""
        hashes, places = np.unique(_hash_keys(transactions.keys), return_index=True)
        first_times = transactions.times[transactions.offsets[:-1]][places]
        return cls(hashes[:MAX_CUSTOMERS], first_times[:MAX_CUSTOMERS])

    @property
    def limit(self) -> int:
        """The largest hash that the sample covers."""
        is_complete = len(self.hashes) < MAX_CUSTOMERS
        return 2**64 - 1 if is_complete else int(self.hashes[-1])

    def estimate_missing(self, customers: Array, times: Array, n_seen: Array) -> float:
        """The share of the customers of N scored transactions whose history is missing.

        These are scored as new (`n_seen` [N] is 1), although the fit knew an earlier transaction.
        """
        keys = np.unique(customers)
        n_covered = int((_hash_keys(keys) <= self.limit).sum())
        is_first = n_seen == 1
        hashes = _hash_keys(customers[is_first])
        places = np.searchsorted(self.hashes, hashes).clip(max=len(self.hashes) - 1)
        is_known = self.hashes[places] == hashes
        n_missing = is_known & (times[is_first] > self.first_times[places] + _TOLERANCE_S)
        return int(n_missing.sum()) / n_covered if n_covered else 0.0

    def describe_missing(
        self, source: str, customers: Array, times: Array, n_seen: Array
    ) -> str | None:
        """A warning about missing histories, or None; arguments as in `estimate_missing`."""
        share = self.estimate_missing(customers, times, n_seen)
        if share < _MIN_SHARE:
            return None
        who = f"about {share:.0%} of the customers in {source} are known from the fit"
        return f"{who}, but are scored as new ones: their earlier transactions are missing"

    def check(self) -> None:
        """Raise ValueError if this is not a sample of customers."""
        n = len(self.hashes)
        if self.hashes.shape != (n,) or self.first_times.shape != (n,) or not n:
            raise ValueError("the known customers have no hashes, or not one time for each")
        if self.hashes.dtype != np.uint64 or (self.hashes[1:] <= self.hashes[:-1]).any():
            raise ValueError("the hashes of the known customers do not rise")
        if not np.isfinite(self.first_times).all():
            raise ValueError("a known customer has no first time")


def _hash_keys(keys: Array) -> Array:
    """A hash of every key [M], the same on every machine."""
    digests = b"".join(blake2b(key.encode(), digest_size=8).digest() for key in keys.tolist())
    return np.frombuffer(digests, "<u8").astype(np.uint64)
