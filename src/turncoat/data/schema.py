"""What each column of a file means. A schema is a preset, a table in `turncoat.toml`, or written in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from turncoat.errors import ConfigError

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Join:
    """A second file whose rows belong, at most one each, to transactions. Transactions without one keep their place."""

    file: str  # a name beside the transaction file; `{prefix}` stands for what precedes "transaction" in its name
    on: str
    columns: tuple[str, ...]  # those of the schema's columns that come from this file

    def __post_init__(self) -> None:
        """Keep the file beside the first."""
        if "/" in self.file or "\\" in self.file or self.file in ("", ".", ".."):
            raise ConfigError(
                f"join.file is {self.file!r}; it must be the name of a file beside the transaction file, without a folder"
            )


@dataclass(frozen=True)
class Schema:
    """The role of every column in use; columns not named are not read."""

    customer: tuple[str, ...]  # columns whose values together name a customer
    time: str
    continuous: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    amount: str | None = None  # must be among `continuous`
    label: str | None = None  # 1 for fraud, 0 for genuine
    id: str | None = None  # unique per transaction; by default the row's place in the file
    counterparty: str | None = None  # a counterparty with a history of its own: terminal, merchant
    tracked: tuple[
        str, ...
    ] = ()  # columns whose first-time values and changes matter: device, e-mail, address
    time_unit: str = "s"  # of numeric times
    time_format: str | None = None  # of text times, as in strptime; None recognises ISO dates
    customer_age: str | None = (
        None  # days since the customer's first use: the day it began joins the key
    )
    join: Join | None = None
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        """Check that roles do not contradict each other."""
        for role in ("customer", "continuous", "categorical", "tracked"):
            object.__setattr__(
                self, role, _names(getattr(self, role), f"schema {self.name!r}: {role}")
            )
        if not self.customer:
            raise ConfigError(
                f"schema {self.name!r}: `customer` is empty. Name the column (or columns) that identify a customer"
            )
        if self.time_unit not in TIME_UNITS:
            raise ConfigError(
                f"schema {self.name!r}: time_unit {self.time_unit!r} is none of {', '.join(TIME_UNITS)}"
            )
        if not self.continuous and not self.categorical:
            raise ConfigError(
                f"schema {self.name!r}: no continuous and no categorical column. Name at least one"
            )
        if self.amount is not None and self.amount not in self.continuous:
            raise ConfigError(
                f"schema {self.name!r}: the amount {self.amount!r} is not among the continuous columns. Add it there"
            )
        role_of: dict[str, str] = {}
        for role in ("time", "label", "id", "continuous", "categorical"):
            for column in self._columns_of(role):
                if column in role_of:
                    raise ConfigError(
                        f"schema {self.name!r}: column {column!r} is both {role_of[column]} and {role}. Keep one"
                    )
                role_of[column] = role
        names = ("time", "label", "id", "continuous")
        forbidden = {
            "customer": names,
            "tracked": names,
            "counterparty": names,
            "customer_age": (*names[:3], "categorical"),
        }
        for role, others in forbidden.items():
            for column in self._columns_of(role):
                if role_of.get(column) in others:
                    raise ConfigError(
                        f"schema {self.name!r}: column {column!r} is {role_of[column]}; it cannot be {role} too"
                    )
        if self.customer_age is not None and self.customer_age in (
            *self.customer,
            *self.tracked,
            self.counterparty,
        ):
            raise ConfigError(
                f"schema {self.name!r}: customer_age {self.customer_age!r} is a number; it cannot be a name too"
            )

    def _columns_of(self, role: str) -> tuple[str, ...]:
        """The columns with a role, of which some have one and some several."""
        value = getattr(self, role)
        return value if isinstance(value, tuple) else () if value is None else (value,)

    def roles(self, column: str) -> tuple[str, ...]:
        """Everything a column is used as."""
        every = (
            "customer",
            "customer_age",
            "time",
            "id",
            "label",
            "amount",
            "counterparty",
            "continuous",
            "categorical",
            "tracked",
        )
        return tuple(role for role in every if column in self._columns_of(role))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column in use, each once."""
        single = (self.id, self.time, self.label, self.counterparty, self.customer_age)
        every = (
            *self.customer,
            *(c for c in single if c is not None),
            *self.continuous,
            *self.categorical,
            *self.tracked,
        )
        return tuple(dict.fromkeys(every))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns read as names, not as numbers."""
        named = (
            *self.customer,
            *((self.counterparty,) if self.counterparty else ()),
            *self.categorical,
            *self.tracked,
        )
        return tuple(
            c
            for c in dict.fromkeys(named)
            if c not in self.continuous and c not in (self.time, self.customer_age)
        )

    def to_dict(self) -> dict[str, Any]:
        """The schema as a TOML table: what is absent or default is left out."""
        table = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }
        if self.join is not None:
            table["join"] = {**asdict(self.join), "columns": list(self.join.columns)}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in table.items()
        }

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], source: str = "schema") -> Schema:
        """Read the table that `to_dict` writes; `source` is named in what goes wrong."""
        values = dict(table)
        known = {f.name: f for f in fields(cls)}
        for key, value in values.items():
            if key not in known:
                raise ConfigError(
                    f"{source}: unknown setting {key!r}; a schema has {', '.join(known)}"
                )
            if key in ("customer", "continuous", "categorical", "tracked"):
                values[key] = _names(value, f"{source}: {key}")
            elif key == "join":
                values[key] = _join(value, source)
            elif not isinstance(value, str):
                raise ConfigError(f"{source}: {key} must be text, found {value!r}")
        for key in ("customer", "time"):
            if key not in values:
                raise ConfigError(
                    f"{source}: {key} is missing. Add a line `{key} = ...` that names the column"
                )
        return cls(**values)


def _names(value: Any, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of column names, found {value!r}")
    if len(set(names)) < len(names):
        raise ConfigError(
            f"{where} names a column twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}"
        )
    return tuple(names)


def _join(value: Any, source: str) -> Join:
    wanted = {f.name for f in fields(Join)}
    if not isinstance(value, Mapping) or set(value) != wanted:
        raise ConfigError(f"{source}: join must have {', '.join(sorted(wanted))}, found {value!r}")
    for key in ("file", "on"):
        if not isinstance(value[key], str):
            raise ConfigError(f"{source}: join.{key} must be text, found {value[key]!r}")
    return Join(value["file"], value["on"], _names(value["columns"], f"{source}: join.columns"))
