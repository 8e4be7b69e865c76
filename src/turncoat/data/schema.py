"""What each column of a file means: a preset, a table in `turncoat.toml`, or Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from turncoat.errors import ConfigError

TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LISTS = ("customer", "continuous", "categorical", "tracked")


@dataclass(frozen=True)
class Join:
    """A second file with at most one row per transaction; transactions without one stay."""

    file: str  # in the same folder; `{prefix}` is what precedes "transaction" in the first's name
    on: str
    columns: tuple[str, ...]  # the schema's columns that come from this file

    def __post_init__(self) -> None:
        """Require a file in the same folder."""
        if "/" in self.file or "\\" in self.file or self.file in ("", ".", ".."):
            raise ConfigError(
                f"join.file is {self.file!r}; it must be the name of a file in the folder of the "
                "transaction file. Give the name without a folder"
            )


@dataclass(frozen=True)
class Schema:
    """The role of every column in use; other columns are not read."""

    customer: tuple[str, ...]  # columns that together identify a customer
    time: str
    continuous: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    amount: str | None = None  # must be one of `continuous`
    label: str | None = None  # 1 for fraud, 0 for genuine
    id: str | None = None  # unique per transaction; by default the row number
    counterparty: str | None = None  # has a history of its own: terminal, merchant
    tracked: tuple[str, ...] = ()  # new and changed values become features: device, e-mail
    time_unit: str = "s"  # of numeric times
    time_format: str | None = None  # of text times, as in strptime; by default ISO dates
    customer_age: str | None = None  # days since the customer's first use; joins the key
    join: Join | None = None
    name: str = field(default="custom", compare=False)

    def __post_init__(self) -> None:
        """Check that roles do not contradict each other."""
        for role in _LISTS:
            names = _check_names(getattr(self, role), f"schema {self.name!r}: {role}")
            object.__setattr__(self, role, names)
        if not self.customer:
            raise self._error("`customer` is empty. Name the columns that identify a customer")
        if self.time_unit not in TIME_UNITS:
            raise self._error(
                f"time_unit is {self.time_unit!r}; it must be one of {', '.join(TIME_UNITS)}"
            )
        if not self.continuous and not self.categorical:
            raise self._error("no continuous and no categorical column. Name at least one")
        if self.amount is not None and self.amount not in self.continuous:
            raise self._error(
                f"the amount {self.amount!r} is not among the continuous columns. Add it there"
            )
        roles: dict[str, str] = {}
        for role in ("time", "label", "id", "continuous", "categorical"):
            for column in self._columns_of(role):
                if column in roles:
                    raise self._error(
                        f"column {column!r} is both {roles[column]} and {role}. Keep one"
                    )
                roles[column] = role
        not_text = ("time", "label", "id", "continuous")
        not_age = ("time", "label", "id", "categorical")
        forbidden = {
            "customer": not_text,
            "tracked": not_text,
            "counterparty": not_text,
            "customer_age": not_age,
        }
        for role, others in forbidden.items():
            for column in self._columns_of(role):
                if roles.get(column) in others:
                    raise self._error(
                        f"column {column!r} is {roles[column]}; it cannot be {role} too"
                    )
        texts = (*self.customer, *self.tracked, self.counterparty)
        if self.customer_age is not None and self.customer_age in texts:
            raise self._error(
                f"customer_age {self.customer_age!r} is a number; it cannot be a category too"
            )

    def _error(self, problem: str) -> ConfigError:
        return ConfigError(f"schema {self.name!r}: {problem}")

    def _columns_of(self, role: str) -> tuple[str, ...]:
        """The columns with a role."""
        value = getattr(self, role)
        return value if isinstance(value, tuple) else () if value is None else (value,)

    def roles_of(self, column: str) -> tuple[str, ...]:
        """All roles of a column."""
        roles = (
            "customer customer_age time id label amount counterparty continuous categorical tracked"
        )
        return tuple(role for role in roles.split() if column in self._columns_of(role))

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column in use, once."""
        roles = "customer id time label counterparty customer_age continuous categorical tracked"
        columns = (column for role in roles.split() for column in self._columns_of(role))
        return tuple(dict.fromkeys(columns))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns read as categories or keys, not as numbers."""
        roles = ("customer", "counterparty", "categorical", "tracked")
        columns = dict.fromkeys(column for role in roles for column in self._columns_of(role))
        others = (*self.continuous, self.time, self.customer_age)
        return tuple(column for column in columns if column not in others)

    def to_dict(self) -> dict[str, Any]:
        """The schema as a TOML table, without defaults."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        table = {f.name: values[f.name] for f in fields(self) if values[f.name] != f.default}
        if self.join is not None:
            table["join"] = {**asdict(self.join), "columns": list(self.join.columns)}
        return {k: list(value) if isinstance(value, tuple) else value for k, value in table.items()}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], source: str = "schema") -> Schema:
        """Read the table that `to_dict` returns; errors name `source`."""
        values = dict(table)
        known = [f.name for f in fields(cls)]
        for key, value in values.items():
            if key not in known:
                raise ConfigError(
                    f"{source}: unknown setting {key!r}; a schema has {', '.join(known)}"
                )
            if key in _LISTS:
                values[key] = _check_names(value, f"{source}: {key}")
            elif key == "join":
                values[key] = _parse_join(value, source)
            elif not isinstance(value, str):
                raise ConfigError(f"{source}: {key} must be text, found {value!r}")
        for key in ("customer", "time"):
            if key not in values:
                raise ConfigError(
                    f"{source}: {key} is missing. Add a line `{key} = ...` that names the column"
                )
        return cls(**values)


def _check_names(value: Any, where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{where} must be a list of column names, found {value!r}")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where} names a column twice: {', '.join(twice)}")
    return tuple(names)


def _parse_join(value: Any, source: str) -> Join:
    keys = {f.name for f in fields(Join)}
    if not isinstance(value, Mapping) or set(value) != keys:
        raise ConfigError(f"{source}: join must have {', '.join(sorted(keys))}, found {value!r}")
    for key in ("file", "on"):
        if not isinstance(value[key], str):
            raise ConfigError(f"{source}: join.{key} must be text, found {value[key]!r}")
    columns = _check_names(value["columns"], f"{source}: join.columns")
    return Join(value["file"], value["on"], columns)
