"""What each column of a file means: a preset, a table in `turncoat.toml`, or Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from itertools import chain
from typing import Any

from turncoat.data.clocks import Zone, parse_zone
from turncoat.data.csv_files import CsvFormat
from turncoat.data.money import RateTable
from turncoat.errors import ConfigError

LABEL_DELAY_DAYS = 7.0  # until a label is known, where no setting says otherwise
MAX_MATURITY_DAYS = 730  # an unlabelled transaction older than two years says nothing more
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
FILL_IN = "FILL IN"  # a column that inference did not find
REPEATED_IDS = ("refuse", "first", "last")
FRAUD, GENUINE, UNKNOWN_LABEL = 1, 0, -1
_WORDS = {
    FRAUD: "1 true t yes y ja j oui si sí sim fraud fraudulent fraude betrug bedrägeri frode",
    GENUINE: "0 false f no n nein non nee não nej genuine legit legitimate",
    UNKNOWN_LABEL: "-1 unknown pending open",
}
LABEL_WORDS = {"": UNKNOWN_LABEL}  # labels in lower case; "" is an empty cell
LABEL_WORDS |= {word: code for code, words in _WORDS.items() for word in words.split()}
_LABEL_LISTS = {"fraud_labels": FRAUD, "genuine_labels": GENUINE, "unknown_labels": UNKNOWN_LABEL}
_COLUMN_LISTS = (
    *("customer", "counterparties", "continuous", "categorical", "tracked"),
    *("minor_units", "money"),
)
_LISTS = (*_COLUMN_LISTS, *_LABEL_LISTS)
_ROLES = (
    *("customer", "customer_age", "time", "time_zone_column", "id", "label", "amount", "currency"),
    *_COLUMN_LISTS[1:],
)
_TEXT_ROLES = ("customer", "counterparties", "tracked", "currency", "time_zone_column")


@dataclass(frozen=True)
class Join:
    """A second file with at most one row per transaction; transactions without one stay."""

    file: str  # in the same folder; `{prefix}` is what precedes "transaction" in the first's name
    on: str
    columns: tuple[str, ...]  # the schema's columns that come from this file

    def __post_init__(self) -> None:
        """Require a file in the same folder."""
        if "/" in self.file or "\\" in self.file or self.file in ("", ".", ".."):
            rule = "it must be the name of a file in the folder of the transaction file"
            raise ConfigError(f"join.file is {self.file!r}; {rule}. Give it without a folder")


@dataclass(frozen=True)
class Schema:
    """The role of every column in use; other columns are not read."""

    customer: tuple[str, ...]  # columns that together identify a customer
    time: str
    continuous: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    amount: str | None = None  # must be one of `continuous`
    minor_units: tuple[str, ...] = ()  # continuous columns that count cents
    currency: str | None = None  # the column of currencies; needs `rates`
    money: tuple[str, ...] = ()  # continuous columns in that currency, beside the amount
    rates: RateTable | None = None  # what one unit of each currency is worth in a common one
    label: str | None = None  # 1 for fraud, 0 for genuine, or words; empty or -1 if unknown
    # Values of the label beside the usual words, in any case. "" is an empty cell.
    fraud_labels: tuple[str, ...] = ()
    genuine_labels: tuple[str, ...] = ()
    unknown_labels: tuple[str, ...] = ()
    # Days after the label delay from which an unlabelled transaction counts as genuine.
    label_maturity_days: float = 0.0
    id: str | None = None  # unique per transaction; by default the row number
    repeated_ids: str = "refuse"  # which row of a repeated id counts: first, last or refuse
    counterparties: tuple[str, ...] = ()  # each has a history of its own: terminal, device
    tracked: tuple[str, ...] = ()  # new and changed values become features: device, e-mail
    time_unit: str = "s"  # of numeric times
    time_format: str | None = None  # of text times, as in strptime; by default ISO dates
    time_zone: str | None = None  # of the clock behind hours and weekdays: a name or an offset
    # The same for each row. The time itself, if its offset says so. Empty cells: `time_zone`.
    time_zone_column: str | None = None
    customer_age: str | None = None  # days since the customer's first use; joins the key
    join: Join | None = None
    csv: CsvFormat = field(default=CsvFormat(), compare=False)  # how CSV files are written
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        """Check that roles do not contradict each other."""
        for role in _LISTS:
            names = _check_names(getattr(self, role), f"schema {self.name!r}: {role}")
            object.__setattr__(self, role, names)
        own = [word.strip().lower() for role in _LABEL_LISTS for word in getattr(self, role)]
        if twice := sorted({word for word in own if own.count(word) > 1}):
            listed = ", ".join(map(repr, twice))
            raise self._error(f"{listed} has two meanings among {', '.join(_LABEL_LISTS)}")
        if not self.customer:
            raise self._error("`customer` is empty. Name the columns that identify a customer")
        if self.time_unit not in TIME_UNITS:
            units = ", ".join(TIME_UNITS)
            raise self._error(f"time_unit is {self.time_unit!r}; it must be one of {units}")
        if self.time_zone is not None and parse_zone(self.time_zone) is None:
            rule = "it must be a name such as Europe/Berlin, or an offset such as +02:00"
            raise self._error(f"time_zone is {self.time_zone!r}; {rule}")
        if self.repeated_ids not in REPEATED_IDS:
            rule = f"it must be one of {', '.join(REPEATED_IDS)}"
            raise self._error(f"repeated_ids is {self.repeated_ids!r}; {rule}")
        if not self.continuous and not self.categorical:
            raise self._error("no continuous and no categorical column. Name at least one")
        if self.amount is not None and self.amount not in self.continuous:
            raise self._error(f"amount {self.amount!r} is not among the continuous columns. Add it")
        for role in ("minor_units", "money"):
            if others := sorted(set(getattr(self, role)) - set(self.continuous)):
                raise self._error(f"{role} {others[0]!r} is not among the continuous columns")
        if self.currency is None and (self.rates is not None or self.money):
            raise self._error("rates and money need `currency`, the column of currencies. Name it")
        if self.currency is not None and self.rates is None:
            remedy = "Add [schema.rates]; `turncoat init` estimates them"
            raise self._error(f"currency {self.currency!r} needs rates of its currencies. {remedy}")
        roles: dict[str, str] = {}
        for role in ("time", "label", "id", "continuous", "categorical"):
            for column in self._columns_of(role):
                other = roles.setdefault(column, role)
                if other != role:
                    raise self._error(f"column {column!r} is both {other} and {role}. Keep one")
        for role in (*_TEXT_ROLES, "customer_age"):
            allowed = "continuous" if role == "customer_age" else "categorical"
            for column in self._columns_of(role):
                if column == FILL_IN or (role == "time_zone_column" and column == self.time):
                    continue
                if (other := roles.get(column, allowed)) != allowed:
                    raise self._error(f"column {column!r} is {other}; it cannot be {role} too")
        days = self.label_maturity_days
        if not _is_number(days) or not 0 <= days <= MAX_MATURITY_DAYS:
            rule = f"it must be a number of days from 0 to {MAX_MATURITY_DAYS}"
            raise self._error(f"label_maturity_days is {days!r}; {rule}")
        object.__setattr__(self, "label_maturity_days", float(days))
        age = self.customer_age
        if age is not None and age in self._columns_of("customer", "tracked", "counterparties"):
            raise self._error(f"customer_age {age!r} is a number; it cannot be a category too")

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"schema {self.name!r}: {problem}")

    def _columns_of(self, *roles: str) -> tuple[str, ...]:
        """The columns with any of these roles, once."""
        values = [getattr(self, role) for role in roles if getattr(self, role) is not None]
        lists = (value if isinstance(value, tuple) else (value,) for value in values)
        return tuple(dict.fromkeys(chain.from_iterable(lists)))

    def roles_of(self, column: str) -> tuple[str, ...]:
        """All roles of a column."""
        return tuple(role for role in _ROLES if column in self._columns_of(role))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column in use, once."""
        first = "customer", "id", "time", "label", "counterparties", "customer_age"
        return self._columns_of(*first, "continuous", "categorical", *_TEXT_ROLES)

    @cached_property
    def label_codes(self) -> dict[str, int]:
        """The label of every known word in lower case; "" is an empty cell."""
        codes = dict(LABEL_WORDS)
        for role, code in _LABEL_LISTS.items():
            codes |= {word.strip().lower(): code for word in getattr(self, role)}
        return codes

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns read as categories or keys, not as numbers."""
        columns = self._columns_of("customer", "counterparties", "categorical", *_TEXT_ROLES)
        return tuple(column for column in columns if column != self.time)

    @property
    def has_local_time(self) -> bool:
        """Whether hours and weekdays are those of a named clock."""
        return self.time_zone is not None or self.time_zone_column is not None

    @cached_property
    def default_zone(self) -> Zone:
        """The zone of rows that name none."""
        zone = None if self.time_zone is None else parse_zone(self.time_zone)
        return 0.0 if zone is None else zone

    @property
    def money_columns(self) -> tuple[str, ...]:
        """Continuous columns that are converted into a common currency."""
        return () if self.currency is None else self._columns_of("amount", "money")

    @cached_property
    def money_places(self) -> tuple[int, ...]:
        """Indices of `money_columns` among the continuous ones."""
        return tuple(map(self.continuous.index, self.money_columns))

    @cached_property
    def minor_unit_places(self) -> tuple[int, ...]:
        """Indices of `minor_units` among the continuous columns."""
        return tuple(map(self.continuous.index, self.minor_units))

    @cached_property
    def converts_money(self) -> bool:
        """Whether amounts are not as in the file."""
        return bool(self.minor_units or self.money_columns)

    def to_dict(self) -> dict[str, Any]:
        """The schema as a TOML table, without defaults."""
        defaults = {f.name: f.default for f in fields(self)}
        table = {k: v for k, v in asdict(self).items() if getattr(self, k) != defaults[k]}
        if self.join is not None:
            table["join"]["columns"] = list(self.join.columns)
        if self.rates is not None:
            table["rates"] = self.rates.to_table()
        if self.csv != CsvFormat():
            table["csv"] = {k: v for k, v in asdict(self.csv).items() if v != getattr(CsvFormat, k)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in table.items()}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], source: str = "schema") -> Schema:
        """Read the table that `to_dict` returns; errors name `source`."""
        values = dict(table)
        known = [f.name for f in fields(cls)]
        for key, value in values.items():
            if key == "counterparty":
                remedy = f'Write `counterparties = ["{value}"]`'
                raise ConfigError(f"{source}: `counterparty` is now a list. {remedy}")
            if key not in known:
                settings = ", ".join(known)
                raise ConfigError(f"{source}: unknown setting {key!r}; a schema has {settings}")
            if key in _LISTS:
                values[key] = _check_names(value, f"{source}: {key}")
            elif key == "join":
                values[key] = _parse_join(value, source)
            elif key == "rates":
                values[key] = RateTable.from_table(value, f"{source}: rates")
            elif key == "csv":
                values[key] = _parse_csv_format(value, source)
            elif key == "label_maturity_days":
                if not _is_number(value):
                    raise ConfigError(f"{source}: {key} must be a number of days, found {value!r}")
            elif not isinstance(value, str):
                raise ConfigError(f"{source}: {key} must be text, found {value!r}")
        for key in ("customer", "time"):
            if key not in values:
                remedy = f"Add a line `{key} = ...` that names the column"
                raise ConfigError(f"{source}: {key} is missing. {remedy}")
        return cls(**values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_names(value: Any, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        what = "texts" if where.endswith("_labels") else "column names"
        raise ConfigError(f"{where} must be a list of {what}, found {value!r}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where} has {', '.join(map(repr, twice))} twice")
    return tuple(names)


def _parse_csv_format(value: Any, source: str) -> CsvFormat:
    keys = [f.name for f in fields(CsvFormat)]
    is_valid = isinstance(value, Mapping) and all(isinstance(v, str) for v in value.values())
    if not is_valid or set(value) - set(keys):
        raise ConfigError(f"{source}: csv may have the texts {', '.join(keys)}, found {value!r}")
    try:
        return CsvFormat(**value)
    except ConfigError as problem:
        raise ConfigError(f"{source}: {problem}") from problem


def _parse_join(value: Any, source: str) -> Join:
    keys = {f.name for f in fields(Join)}
    if not isinstance(value, Mapping) or set(value) != keys:
        raise ConfigError(f"{source}: join must have {', '.join(sorted(keys))}, found {value!r}")
    for key in ("file", "on"):
        if not isinstance(value[key], str):
            raise ConfigError(f"{source}: join.{key} must be text, found {value[key]!r}")
    columns = _check_names(value["columns"], f"{source}: join.columns")
    return Join(value["file"], value["on"], columns)
