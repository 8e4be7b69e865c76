"""What each feature of a schema means and where it comes from, before anything is fitted."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np

from turncoat.data.schema import Schema
from turncoat.errors import ConfigError
from turncoat.features.plan import FeaturePlan
from turncoat.features.scaling import Scales

_SPANS = {"hour": "an hour", "day": "a day", "week": "a week", "month": "a month"}
_HISTORY = {
    "since_last": "log(1 + seconds since the last transaction)",
    "since_first": "log(1 + seconds since the first transaction)",
    "n_before": "log(1 + transactions so far)",
    **{
        f"count_{window}": f"log(1 + transactions, fading over {text})"
        for window, text in _SPANS.items()
    },
    **{
        f"sum_{window}": f"log(1 + sum of amounts, fading over {text})"
        for window, text in _SPANS.items()
    },
    "amount_z": "log amount against the usual, in own standard deviations",
    "amount_to_mean": "log ratio of the amount to the usual amount",
    "amount_to_max": "log ratio of the amount to the largest so far",
    "amount_to_last": "log ratio of the amount to the last",
    "hour_habit": "agreement with the usual hour, from -1 to 1",
    "weekday_habit": "agreement with the usual weekday, from -1 to 1",
    "n_missing_change": "change of the number of absent fields",
    "is_first": "whether there is no history yet",
}
_CLOCK = {
    "hour_cos": "the hour on a circle, first coordinate",
    "hour_sin": "the hour on a circle, second coordinate",
    "weekday": "the day of the week",
}
_RISK = {
    **{
        f"risk_{window}": f"log odds of fraud among labels known by then, fading over a {window}"
        for window in ("day", "week", "month")
    },
    **{
        f"known_{window}": f"log(1 + labels known by then, fading over a {window})"
        for window in ("day", "week", "month")
    },
    "since_genuine": "log(1 + days since the last transaction known to be genuine)",
    "since_label": "log(1 + days since the last transaction of known label)",
    "since_run": "log(1 + days since the first known fraud of the latest run)",
    "run_frauds": "log(1 + known frauds since the last known genuine transaction)",
}


class FeatureMeaning(NamedTuple):
    """One feature."""

    name: str
    kind: str  # "continuous" or "categorical"
    meaning: str
    source: str  # the column, or whose history


def list_features(schema: Schema, engineered: bool = True) -> list[FeatureMeaning]:
    """Every feature that the schema's columns can give; a fit drops those that do not vary."""
    plan = _draft_plan(schema, engineered)
    about = _describe_columns(schema)
    if engineered:
        about |= _describe_history(schema)
        owners = zip(plan.counterparties, plan.counterparty_prefixes, strict=True)
        for (column, prefix), names in zip(owners, plan.counterparty_groups, strict=True):
            for name in (*names[0], *names[1]):
                base = name.removeprefix(f"{prefix}_")
                about[name] = _explain_base(base), f"history at {column}"
    kinds = (("continuous", plan.all_continuous), ("categorical", plan.all_categorical))
    return [FeatureMeaning(name, kind, *about[name]) for kind, names in kinds for name in names]


def check_feature_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Refuse the first name that is no feature, with the nearest ones that are."""
    for name in names:
        if name not in known:
            near = ", ".join(get_close_matches(name, known, n=5, cutoff=0.4) or known[:5])
            problem = f"include names {name!r}, but there is no such feature"
            raise ConfigError(f"{problem}. Similar names are {near}; `turncoat features` lists all")


def _draft_plan(schema: Schema, engineered: bool) -> FeaturePlan:
    flagged = (*schema.continuous, *schema.categorical)
    return FeaturePlan(schema, engineered, 0.0, 0.0, Scales(*[np.empty(0)] * 3), flagged, ())


def _describe_columns(schema: Schema) -> dict[str, tuple[str, str]]:
    """Meaning and source of the columns and of their missing flags."""
    about = {}
    for column in schema.continuous:
        meaning = "a number"
        if column == schema.amount:
            meaning = "the amount"
        if column in schema.minor_units:
            meaning += ", in units rather than minor units"
        if column in schema.money_columns and schema.rates is not None:
            meaning += f", converted to {schema.rates.base or 'one currency'}"
        about[column] = meaning, column
    about |= {column: ("a category", column) for column in schema.categorical}
    flags = {f"no_{name}": ("whether it is absent", name) for name in about}
    return about | flags


def _describe_history(schema: Schema) -> dict[str, tuple[str, str]]:
    """Meaning and source of the features of the customer's history and of the transaction."""
    owner = f"history of {' + '.join(schema.customer)}"
    about = {name: (meaning, owner) for name, meaning in _HISTORY.items()}
    clock = schema.time_zone_column or schema.time_zone
    zone = f", on the clock of {clock}" if clock else ""
    about |= {name: (f"{meaning}{zone}", schema.time) for name, meaning in _CLOCK.items()}
    about["n_missing"] = "number of absent fields", "all columns"
    for column in schema.tracked:
        for kind in ("new", "changed"):
            about[f"{kind}_{column}"] = _explain_base(f"{kind}_{column}"), owner
    return about


def _explain_base(name: str) -> str:
    """The meaning of a feature of some history."""
    if name in _HISTORY or name in _RISK:
        return (_HISTORY | _RISK)[name]
    kind, _, column = name.partition("_")
    return f"whether {column} was {'never used before' if kind == 'new' else 'another last time'}"
