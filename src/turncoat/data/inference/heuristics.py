"""What a column's name and a sample of its values suggest about its meaning."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import polars as pl

from turncoat.data.csv_files import NOT_A_NUMBER, CsvFormat
from turncoat.data.parsing import YEAR_FIRST, parse_dates, parse_labels
from turncoat.data.schema import FRAUD, GENUINE, LABEL_WORDS, TIME_UNITS, UNKNOWN_LABEL
from turncoat.data.sources import Source

# Names by which columns are recognized; the file's entry `about` says what each table holds.
KNOWN_NAMES = json.loads((files(__package__) / "column_names.json").read_text(encoding="utf-8"))
WORDS = {kind: tuple(words.split()) for kind, words in KNOWN_NAMES["words"].items()}
_KNOWN_WORDS = {word for words in WORDS.values() for word in words}
_ID_ENDINGS = ("id", "key", "nr", "num", "ref")
_BINARY = {"0", "1", "0.0", "1.0", "true", "false"}
_FRAUD_CODES = set(KNOWN_NAMES["fraud_codes"].split())
_FRAUD_VALUE = re.compile("fraud|betrug|frode|bedr|scam|stolen|counterfeit", re.IGNORECASE)
_NOT = re.compile(r"(?<![a-z])(no|not|non|kein|nicht|ingen|geen|pas|sin|never)", re.IGNORECASE)
_MAX_LABEL_VALUES = 100

TIME_OF_DAY = r"^\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?$"
_DATE = re.compile(r"(\d{1,2})([/.\- ])(\d{1,2}|[A-Za-z]{3,9})\2(\d{4}|\d{2})(.*)")
_CLOCK = re.compile(r"(,? +|T)(\d{1,2}):\d{2}(:\d{2})?(\.\d+)?( ?)([AaPp][Mm])?")
_EPOCHS = (("s", 1e8, 1e10), ("ms", 1e11, 1e13), ("us", 1e14, 1e16), ("ns", 1e17, 1e19))
_UNIT_WORDS = {"step": "h", "hour": "h", "hours": "h", "day": "d", "days": "d", "ms": "ms"}
_UNIT_WORDS |= {"minute": "min", "minutes": "min"}
_MIN_DATE_SHARE = 0.95


@dataclass(frozen=True)
class SampledColumn:
    """A column in the sample."""

    name: str
    values: pl.Series  # null is missing
    numbers: pl.Series | None  # float64, if `read` can take the column as continuous
    n_distinct: int

    @classmethod
    def from_table(cls, source: Source, sample: pl.DataFrame) -> dict[str, SampledColumn]:
        """The columns of a table's sample, by name."""
        format = None if source.csv is None else source.csv.format
        return {values.name: cls._from_values(values, format) for values in sample}

    @classmethod
    def _from_values(cls, values: pl.Series, format: CsvFormat | None) -> SampledColumn:
        """Inspect a column; in a CSV file, numbers are parsed from text."""
        kind = values.dtype
        if kind == pl.Categorical or isinstance(kind, pl.Enum):
            values = values.cast(pl.String)
        numbers = None
        if kind.is_numeric():
            numbers = values.cast(pl.Float64).fill_nan(None)
        elif kind == pl.String and format is not None:
            present = values.set(values == NOT_A_NUMBER, None)
            parsed = _parse_texts(present, format)
            is_padded = present.str.contains(r"^0\d").any()  # "007" is a code
            if not is_padded and parsed is not None and parsed.null_count() < len(values):
                values, numbers = present, parsed.fill_nan(None)
        if kind.is_nested() or kind in (pl.Binary, pl.Object):
            return cls(values.name, values, numbers, 0)
        is_exact = numbers is not None and to_float(numbers.abs().max()) < 2**53
        known = numbers if numbers is not None and is_exact else values
        return cls(values.name, values, numbers, known.drop_nulls().n_unique())

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Words of the name without accents; equal for `customerID` and `CUSTOMER-ID`."""
        letters = unicodedata.normalize("NFKD", self.name.replace("ß", "ss"))
        plain = "".join(letter for letter in letters if not unicodedata.combining(letter))
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", plain)
        words = [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]
        return tuple(part for word in words for part in _split_compound(word))

    def match(self, *kinds: str) -> str | None:
        """The first word of these kinds that the name contains; long words match parts of words."""
        words = (word for kind in kinds for word in WORDS[kind])
        return next((w for w in words if any(_matches(w, own) for own in self.words)), None)

    def rank(self, kind: str) -> int:
        """Position of the matching word among words of this kind; lower is more significant."""
        word = self.match(kind)
        return len(WORDS[kind]) if word is None else WORDS[kind].index(word)

    @property
    def n_known(self) -> int:
        """Rows that have a value."""
        known = self.values if self.numbers is None else self.numbers
        return len(known) - known.null_count()

    @cached_property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers."""
        return self.numbers is not None and bool((self.numbers.drop_nulls() % 1 == 0).all())

    @property
    def is_discrete(self) -> bool:
        """Whether the values can be categories or keys: text, booleans or whole numbers."""
        if self.numbers is not None:
            return self.is_whole
        return self.values.dtype in (pl.String, pl.Boolean)

    @cached_property
    def is_binary(self) -> bool:
        """Whether the values are 0 and 1, or false and true."""
        if not 0 < self.n_distinct <= 2:
            return False
        return set(self.values.drop_nulls().unique().cast(pl.String).str.to_lowercase()) <= _BINARY

    @property
    def may_have_thousands(self) -> bool:
        """Whether every point in the texts has three digits after it, as in 1.234."""
        texts = self.values.drop_nulls().cast(pl.String)
        pointed = texts.filter(texts.str.contains(".", literal=True))
        return bool(pointed.len() > 0 and pointed.str.contains(r"^[+-]?[1-9]\d{0,2}\.\d{3}$").all())

    @property
    def mean_chars(self) -> float:
        """Average length of the values as text."""
        return to_float(self.values.cast(pl.String).str.len_chars().mean())

    @property
    def is_unique(self) -> bool:
        """Whether every row has a different value."""
        return self.n_distinct == len(self.values)

    @property
    def is_time_of_day(self) -> bool:
        """Whether the values are times such as 23:59."""
        texts = self.values.drop_nulls()
        return self.values.dtype == pl.String and bool(texts.str.contains(TIME_OF_DAY).all())


def _parse_texts(texts: pl.Series, format: CsvFormat) -> pl.Series | None:
    """Texts as `read` takes them as numbers; None if some are not."""
    if not format.has_plain_numbers:
        return format.parse_numbers(texts)
    parsed = texts.cast(pl.Float64, strict=False)
    return parsed if parsed.null_count() == texts.null_count() else None


def _split_compound(word: str) -> tuple[str, ...]:
    """`transaktionsref` as `transaktions` and `ref`; other words as they are."""
    if word not in _KNOWN_WORDS:
        for end in _ID_ENDINGS:
            start = word.removesuffix(end)
            if start != word and not _KNOWN_WORDS.isdisjoint((start, start[:-1])):
                return start, end
    return (word,)


def _matches(word: str, own: str) -> bool:
    if own in _KNOWN_WORDS:  # "account" does not end in "count"
        return own == word
    return len(word) >= 4 and (own.startswith(word) or own.endswith(word))


def to_float(value: Any) -> float:
    """A polars aggregate as a float; 0 for an empty column."""
    return 0.0 if value is None else float(value)


class LabelReading(NamedTuple):
    """One way to read a column as labels."""

    column: SampledColumn
    codes: pl.Series  # 1, 0 or -1, in file order
    reason: str
    fraud_labels: tuple[str, ...] = ()
    genuine_labels: tuple[str, ...] = ()
    warning: str | None = None

    @property
    def words(self) -> dict[str, int]:
        """The label of every known value in lower case."""
        own = ((FRAUD, self.fraud_labels), (GENUINE, self.genuine_labels))
        return LABEL_WORDS | {value.lower(): code for code, some in own for value in some}

    @property
    def is_fraud(self) -> pl.Series:
        """Whether each row is known to be fraud."""
        return self.codes == FRAUD

    @property
    def n_known(self) -> int:
        """Rows with a known label."""
        return int((self.codes >= 0).sum())

    @property
    def fraud_share(self) -> float:
        """Share of frauds among the known labels."""
        return to_float(self.is_fraud.sum()) / max(self.n_known, 1)

    @property
    def has_both(self) -> bool:
        """Whether a fraud and a genuine transaction are known."""
        return 0 < self.fraud_share < 1


def read_as_label(column: SampledColumn) -> LabelReading | None:
    """The best way to read a column as labels, if there is one."""
    codes = parse_labels(column.values, LABEL_WORDS)
    if codes is None or column.n_distinct == 0:
        return None
    if codes.null_count() == 0:
        values = column.values.cast(pl.String).drop_nulls().unique().sort()[:4]
        return LabelReading(column, codes, " and ".join(values))
    if column.n_distinct > _MAX_LABEL_VALUES:
        return None
    texts = column.values.cast(pl.String).str.strip_chars().fill_null("")
    is_empty = texts == ""
    counts = texts.filter(~is_empty).value_counts(sort=True)
    fraud, genuine, rule = _divide_labels(counts, 2 * int(is_empty.sum()) > len(texts))
    if not fraud or not genuine:
        return None
    shown = f"{', '.join(map(repr, fraud))} was taken as fraud {rule}"
    reading = LabelReading(column, codes, f"words, {rule}", fraud, genuine)
    codes = parse_labels(texts, reading.words)
    empty = " Empty cells count as genuine." if "" in genuine else ""
    warning = f"{shown}, the rest as genuine.{empty} Check `fraud_labels` and `genuine_labels`."
    return reading._replace(codes=reading.codes if codes is None else codes, warning=warning)


def _divide_labels(
    counts: pl.DataFrame, is_mostly_empty: bool
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Values of a label that mean fraud and genuine, and why; none if there is no way to tell."""
    values, empty = counts.to_series(0).to_list(), ("",) if is_mostly_empty else ()
    unknown = [value for value in values if LABEL_WORDS.get(value.lower()) == UNKNOWN_LABEL]
    values = [value for value in values if value not in unknown]
    codes = [value for value in values if value.upper() in _FRAUD_CODES]
    named = [value for value in values if _FRAUD_VALUE.search(value) and not _NOT.search(value)]
    for fraud, rule in (
        (codes, "because it is a card network's code for fraud"),
        (named, "because of its name"),
    ):
        if fraud:
            genuine = tuple(value for value in values if value not in fraud)
            return tuple(fraud), (*genuine, *empty), rule
    if len(values) == 1 and empty:
        return tuple(values), empty, "because it marks few rows"
    if len(values) == 2 and not empty and counts["count"][-1] <= 0.2 * counts["count"][0]:
        return (values[1],), (values[0],), "because it is rare"
    return (), (), ""


class TimeReading(NamedTuple):
    """One way to read a column as times."""

    column: SampledColumn
    values: pl.Series  # dates or numbers, in file order
    score: float
    reason: str
    unit: str = "s"
    time_format: str | None = None
    warning: str | None = None


def read_as_time(column: SampledColumn) -> TimeReading | None:
    """The best way to read a column as the time of a transaction, if there is one."""
    if column.n_known == 0:
        return None
    score = 2.0 * (column.match("time") is not None)
    score -= 6.0 * (column.match("other_time") is not None)
    score += column.n_known == len(column.values)
    kind = column.values.dtype
    if kind in (pl.Datetime, pl.Date):
        return TimeReading(column, column.values, score + 4 + (kind == pl.Datetime), "dates")
    if column.numbers is not None:
        return _read_numbers(column, column.numbers, score)
    return _read_texts(column, score) if kind == pl.String else None


def _read_numbers(column: SampledColumn, numbers: pl.Series, score: float) -> TimeReading | None:
    is_named = column.match("time") is not None
    texts = column.values.drop_nulls().cast(pl.String)
    if is_named and (time_format := _find_compact_format(texts)) is not None:
        reason = f"dates such as {texts[0]}"
        return TimeReading(column, numbers, score + 4, reason, time_format=time_format)
    size = to_float(numbers.abs().median())
    unit = next((unit for unit, low, high in _EPOCHS if low <= size < high), None)
    is_rising = numbers.is_sorted() and column.n_distinct > 2
    if unit is not None and (is_named or (is_rising and not column.match("id"))):
        reason = f"numbers in the range of times in {unit} since 1970"
        return TimeReading(column, numbers, score + 3, reason, unit)
    if not is_named or column.n_distinct < 3 or column.match("duration"):
        return None
    unit = next((_UNIT_WORDS[word] for word in column.words if word in _UNIT_WORDS), "s")
    reason = f"numbers, and the name contains {column.match('time')!r}"
    unit_text = f"was read as times in units of {TIME_UNITS[unit]:g} seconds"
    warning = f"{unit_text}. Correct `time_unit` if that is wrong."
    return TimeReading(column, numbers, score + is_rising, reason, unit, warning=warning)


def _find_compact_format(texts: pl.Series) -> str | None:
    """The format of whole numbers such as 20240131 or 20240131235959."""
    for n_digits, time_format in ((6, "%Y%m%d"), (12, "%Y%m%d%H%M%S")):
        if not texts.str.contains(rf"^(19|20)\d{{{n_digits}}}$").all():
            continue
        if parse_dates(texts, time_format).null_count() == 0:
            return time_format
    return None


def _read_texts(column: SampledColumn, score: float) -> TimeReading | None:
    texts = column.values.drop_nulls()
    example = str(texts[0])
    score, reason = score + 4 + (":" in example), f"dates such as {example!r}"

    def is_read(dates: pl.Series) -> bool:
        return (len(dates) - dates.null_count()) / len(texts) >= _MIN_DATE_SHARE

    if to_float(texts.str.contains(YEAR_FIRST).mean()) >= _MIN_DATE_SHARE:
        dates = parse_dates(column.values, None)
        if is_read(dates):
            return TimeReading(column, dates, score, reason)
    parsed = {form: parse_dates(column.values, form) for form in _list_formats(example)}
    parsed = {form: dates for form, dates in parsed.items() if is_read(dates)}
    if not parsed:
        return None
    time_format, evidence = _choose_format(parsed, example)
    warning = None
    if evidence is None:
        evidence = "read with the day first"
        warning = f"has dates such as {example!r}, with the day or the month first; {evidence}."
    reason, dates = f"{reason}, {evidence}", parsed[time_format]
    return TimeReading(column, dates, score, reason, time_format=time_format, warning=warning)


def _choose_format(parsed: dict[str, pl.Series], example: str) -> tuple[str, str | None]:
    """One of the formats that fit, and the evidence for it."""
    formats = list(parsed)
    if len(formats) == 1:
        return formats[0], "the only order of day and month that fits"
    in_order = [form for form, dates in parsed.items() if dates.drop_nulls().is_sorted()]
    if len(in_order) == 1:
        return in_order[0], "with day and month in the order that sorts the file"
    if example.rstrip()[-1:] in "Mm":
        month_first = next(form for form in formats if form.startswith("%m"))
        return month_first, "with the month first, as usual with a 12-hour clock"
    return formats[0], None


def _list_formats(text: str) -> list[str]:
    """Formats that fit a date with the year last, day first before month first."""
    match = _DATE.fullmatch(text.strip())
    if match is None:
        return []
    _, separator, month, year, rest = match.groups()
    clock = _CLOCK.fullmatch(rest)
    if rest and clock is None:
        return []
    end = separator + ("%Y" if len(year) == 4 else "%y")
    if clock is not None:
        gap, _, seconds, fraction, space, half = clock.groups()
        end += gap + ("%I" if half else "%H") + ":%M" + (":%S" if seconds else "")
        end += ("%.f" if fraction else "") + space + ("%p" if half else "")
    if month.isalpha():
        return [f"%d{separator}{'%b' if len(month) == 3 else '%B'}{end}"]
    return [f"%d{separator}%m{end}", f"%m{separator}%d{end}"]
