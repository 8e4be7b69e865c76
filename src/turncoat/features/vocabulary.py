"""Names into codes: the frequent names one each, then one code for rare names and one for names never seen in fitting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.categories import CategoryColumn, normalize_category

_ODD = -2  # not found as it is
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")


@dataclass(frozen=True)
class Vocabulary:
    """The names of one column. Codes 0.. are the frequent names, then RARE, then UNSEEN; -1 is missing."""

    frequent: tuple[str, ...]
    rare: tuple[str, ...]

    @classmethod
    def of(
        cls, named: CategoryColumn, places: Array, min_count: int, max_categories: int
    ) -> Vocabulary:
        """Fit to the rows at `places`: a name on at least `min_count` rows, among the `max_categories` commonest, is frequent."""
        counts = np.bincount(named.codes[places] + 1, minlength=len(named.values) + 1)[1:]
        ranked = sorted(
            (
                (-count, name)
                for count, name in zip(counts.tolist(), named.values, strict=True)
                if count
            )
        )
        frequent = [name for count, name in ranked[:max_categories] if -count >= min_count]
        return cls(tuple(frequent), tuple(sorted(name for _, name in ranked[len(frequent) :])))

    @property
    def size(self) -> int:
        """Number of codes."""
        return len(self.frequent) + 2

    @cached_property
    def known(self) -> dict[Any, int]:
        """Code of every known name, also of its number where the name is one, and of None.

        Of 0 and 1 only the names: the numbers equal False and True, which are spelled otherwise.
        """
        codes: dict[Any, int] = {None: -1}
        for code, names in [
            (len(self.frequent), self.rare),
            *((code, (name,)) for code, name in enumerate(self.frequent)),
        ]:
            for name in names:
                codes[name] = code
                if _WHOLE.fullmatch(name) and name not in ("0", "1"):
                    codes[int(name)] = code
        return codes

    def code(self, value: Any) -> int:
        """The code of one value, however it is spelled."""
        return self.known.get(normalize_category(value), len(self.frequent) + 1)

    def encode(self, named: CategoryColumn) -> Array:
        """The codes of a whole column's rows."""
        lookup = np.array(
            [*(self.known.get(name, len(self.frequent) + 1) for name in named.values), -1],
            dtype=np.int32,
        )
        codes: Array = lookup[named.codes]
        return codes


def codes_of(vocabularies: Sequence[Vocabulary], rows: Iterable[Sequence[Any]]) -> list[list[int]]:
    """`Vocabulary.code` of each value of each row; most are found as they are, without spelling them first."""
    known = [vocabulary.known for vocabulary in vocabularies]
    found = []
    for values in rows:
        try:
            codes = list(map(dict.get, known, values, repeat(_ODD)))
        except TypeError:  # a value that no dictionary takes
            codes = [_ODD] * len(values)
        while _ODD in codes:
            odd = codes.index(_ODD)
            codes[odd] = vocabularies[odd].code(values[odd])
        found.append(codes)
    return found
