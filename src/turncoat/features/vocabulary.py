"""Categories into codes and hashes.

Frequent values have a code each. Rare values share one code, and values never seen in fitting
share another.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn, normalize_category

_NOT_FOUND = -2
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Vocabulary:
    """Values of one column. Codes are 0.. for frequent values, then rare, unseen; -1 missing."""

    frequent: tuple[str, ...]
    rare: tuple[str, ...]

    @classmethod
    def fit(
        cls, column: CategoryColumn, rows: Array, min_count: int, max_categories: int
    ) -> Vocabulary:
        """Fit to some rows: the `max_categories` commonest values on at least `min_count`."""
        counts = np.bincount(column.codes[rows] + 1, minlength=len(column.values) + 1)[1:]
        pairs = zip(counts.tolist(), column.values, strict=True)
        ranked = sorted((-count, value) for count, value in pairs if count)
        frequent = [value for count, value in ranked[:max_categories] if -count >= min_count]
        return cls(tuple(frequent), tuple(sorted(value for _, value in ranked[len(frequent) :])))

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.frequent) + 2

    @cached_property
    def known(self) -> dict[Any, int]:
        """Codes of all known values, of their numbers where they are whole, and of None.

        0 and 1 are known as text only: the numbers equal False and True, which are spelled
        differently.
        """
        codes: dict[Any, int] = {None: -1}
        codes |= dict.fromkeys(self.rare, len(self.frequent))
        codes |= {value: code for code, value in enumerate(self.frequent)}
        for value, code in list(codes.items())[1:]:
            if _WHOLE.fullmatch(value) and value not in ("0", "1"):
                codes[int(value)] = code
        return codes

    def code(self, value: Any) -> int:
        """The code of one value in any spelling."""
        return self.known.get(normalize_category(value), len(self.frequent) + 1)

    def encode(self, column: CategoryColumn) -> Array:
        """The codes of a whole column's rows."""
        unseen = len(self.frequent) + 1
        codes = [*(self.known.get(value, unseen) for value in column.values), -1]
        encoded: Array = np.array(codes, dtype=np.int32)[column.codes]
        return encoded


def encode_rows(
    vocabularies: Sequence[Vocabulary], rows: Iterable[Sequence[Any]]
) -> list[list[int]]:
    """`Vocabulary.code` of each value of each row; most are found without normalizing them."""
    known = [vocabulary.known for vocabulary in vocabularies]
    encoded = []
    for values in rows:
        try:
            codes = list(map(dict.get, known, values, repeat(_NOT_FOUND)))
        except TypeError:  # an unhashable value
            codes = [_NOT_FOUND] * len(values)
        while _NOT_FOUND in codes:
            j = codes.index(_NOT_FOUND)
            codes[j] = vocabularies[j].code(values[j])
        encoded.append(codes)
    return encoded


def hash_category(text: str | None) -> int:
    """A hash [uint32] that is equal everywhere; 0 for None."""
    return 0 if text is None else zlib.crc32(text.encode("utf-8", "surrogatepass")) or 1


def hash_values(values: Sequence[Any]) -> list[int]:
    """Hashes of values in any spelling."""
    try:
        return list(map(_hash_cached, values))
    except TypeError:  # an unhashable value
        return [hash_category(normalize_category(value)) for value in values]


@lru_cache(65536, typed=True)  # typed: True equals 1 but is spelled differently
def _hash_cached(value: Any) -> int:
    return hash_category(normalize_category(value))
