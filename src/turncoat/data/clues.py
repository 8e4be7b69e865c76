"""What a column's name and a sample of its values say about it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from turncoat.data.sources import NOT_A_NUMBER

_TRUTHS = {"0", "1", "0.0", "1.0", "true", "false"}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Words in column names, the most telling first.
LABEL_WORDS = _words("fraud fraudulent chargeback label target class scam")
FRAUD_WORDS = _words("fraud chargeback label scam")
TIME_WORDS = _words("timestamp datetime time date dt ts epoch unix occurred created step when")
CLOCK_WORDS = _words(
    "timestamp datetime time date epoch unix seconds days"
)  # of a copy of the time
OTHER_TIME_WORDS = _words(
    "birth dob expiry expires opened updated registered signup settled label valid"
)
ID_WORDS = _words("id uuid guid number num nr no key ref reference hash")
EVENT_WORDS = _words("transaction trans txn tx trx event payment order record row")
CUSTOMER_WORDS = _words(
    "customer client cardholder user account acct card cc pan iban sender payer orig originator buyer member holder entity"
)
COUNTERPARTY_WORDS = _words(
    "terminal merchant shop store seller vendor payee dest beneficiary recipient receiver counterparty"
)
TRAIT_WORDS = _words(  # what a customer or merchant is like, not who it is
    "type brand country city state zip category cat mcc age balance limit score count amount amt days since agent lat long lon "
    "gender job present risk email phone device currency"
)
AMOUNT_WORDS = _words("amount amt price total sum value")
NOT_AMOUNT_WORDS = _words("balance count mean avg average max min limit ratio old new id fee tax")
HABIT_WORDS = _words(
    "device email mail address addr city country state zip region location product category merchant terminal shop store mcc "
    "browser ip phone os channel currency"
)
CODE_WORDS = _words("id code zip postcode mcc type category class number num nr")
RELATIVE_WORDS = _words("since of diff delta lag elapsed")  # of times between, not times
_KNOWN_WORDS = {
    word
    for words in (
        LABEL_WORDS, FRAUD_WORDS, TIME_WORDS, CLOCK_WORDS, OTHER_TIME_WORDS, ID_WORDS, EVENT_WORDS, CUSTOMER_WORDS, COUNTERPARTY_WORDS,
        TRAIT_WORDS, AMOUNT_WORDS, NOT_AMOUNT_WORDS, HABIT_WORDS, CODE_WORDS, RELATIVE_WORDS,
    )
    for word in words
}  # fmt: skip


@dataclass(frozen=True)
class SampledColumn:
    """What the sample shows of one column."""

    name: str
    values: pl.Series  # null is missing
    numbers: pl.Series | None  # if `read` can take the column as continuous
    n_distinct: int

    @classmethod
    def of(cls, values: pl.Series, from_text: bool) -> SampledColumn:
        """Look at a column; in a file of text, numbers are what can be read as such."""
        kind = values.dtype
        if kind == pl.Categorical or isinstance(kind, pl.Enum):
            values = values.cast(pl.String)
        numbers = None
        if kind.is_numeric():
            numbers = values.cast(pl.Float64).fill_nan(None)
        elif kind == pl.String and from_text:
            present = values.set(values == NOT_A_NUMBER, None)
            parsed = present.cast(pl.Float64, strict=False)
            padded = present.str.contains(r"^0\d").any()  # "007" is a name
            if not padded and parsed.null_count() == present.null_count() < len(values):
                values, numbers = present, parsed.fill_nan(None)
        unusable = kind.is_nested() or kind in (pl.Binary, pl.Object)
        exact = (
            numbers is not None and number(numbers.abs().max()) < 2**53
        )  # larger ones can be told apart only as they are
        known = numbers if numbers is not None and exact else values
        return cls(values.name, values, numbers, 0 if unusable else known.drop_nulls().n_unique())

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of the name: `customerID`, `customer-id` and `CUSTOMER_ID` have the same."""
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", self.name)
        return tuple(word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word)

    def says(self, words: Sequence[str]) -> str | None:
        """The first of these words that the name has, on its own or, if long, as the beginning or end of one."""
        return next((word for word in words if any(_is_in(word, own) for own in self.words)), None)

    @property
    def n_known(self) -> int:
        """Rows that have a value."""
        return (
            len(self.values) - (self.values if self.numbers is None else self.numbers).null_count()
        )

    @cached_property
    def is_whole(self) -> bool:
        """Whether the numbers are whole."""
        return self.numbers is not None and bool((self.numbers.drop_nulls() % 1 == 0).all())

    @property
    def is_name(self) -> bool:
        """Whether the values can be names: text, truths or whole numbers."""
        return (
            self.is_whole
            if self.numbers is not None
            else self.values.dtype in (pl.String, pl.Boolean)
        )

    @cached_property
    def is_truth(self) -> bool:
        """Whether the values are 0 and 1, or false and true."""
        if not 0 < self.n_distinct <= 2:
            return False
        return set(self.values.drop_nulls().unique().cast(pl.String).str.to_lowercase()) <= _TRUTHS

    @property
    def is_unique(self) -> bool:
        """Whether no two rows have the same value."""
        return self.n_distinct == len(self.values)


def _is_in(word: str, own: str) -> bool:
    if own in _KNOWN_WORDS:  # "account" does not end in "count"
        return own == word
    return len(word) >= 4 and (own.startswith(word) or own.endswith(word))


def rank(column: SampledColumn, words: Sequence[str]) -> int:
    """The place, among words of which the first tells most, of the one that the name has."""
    word = column.says(words)
    return len(words) if word is None else words.index(word)


def number(value: Any) -> float:
    """What polars makes of a column of numbers, of which it may have none."""
    return 0.0 if value is None else float(value)
