"""Features in words, as a head of fraud reads them."""

from __future__ import annotations

from collections.abc import Sequence

_SPANS = ("hour", "day", "week", "month")
_SHARED = {  # of a customer's history, and of a counterparty's
    "amount_to_last": "amount against the last one",
    "since_last": "time since the last transaction",
    "since_first": "time since the first transaction",
    "n_before": "number of earlier transactions",
    "n_missing_change": "change in missing fields",
    "is_first": "first transaction",
    **{f"count_{span}": f"transactions in the last {span}" for span in _SPANS},
    **{f"sum_{span}": f"amounts in the last {span}" for span in _SPANS},
}
_OWN = {
    **_SHARED,
    "amount_z": "amount against the customer's own spread",
    "amount_to_mean": "amount against the customer's usual",
    "amount_to_max": "amount against the customer's largest",
    "hour_habit": "agreement with the customer's usual hours",
    "weekday_habit": "agreement with the customer's usual weekdays",
    "hour_cos": "closeness to midnight",
    "hour_sin": "closeness to 6 in the morning",
    "n_missing": "number of missing fields",
}
_COUNTERPARTY = {
    **_SHARED,
    "amount_z": "amount against the spread",
    "amount_to_mean": "amount against the usual",
    "amount_to_max": "amount against the largest",
    "hour_habit": "agreement with the usual hours",
    "weekday_habit": "agreement with the usual weekdays",
    **{f"risk_{span}": f"known fraud rate of the last {span}" for span in _SPANS[1:]},
    **{f"known_{span}": f"known outcomes of the last {span}" for span in _SPANS[1:]},
    "since_genuine": "time since the last known genuine transaction",
    "since_label": "time since the last known outcome",
    "since_run": "time since the first of the latest known frauds",
    "run_frauds": "known frauds in a row",
}
_FLAGS = {"new_": "is new", "changed_": "has changed", "no_": "is missing"}


def name_feature(name: str, counterparties: Sequence[str] = ()) -> str:
    """A feature in words; columns of the file keep their names.

    `counterparties` are the schema's, whose features start with their column, or with
    `counterparty` where there is only one.
    """
    if name in _OWN:
        return _OWN[name]
    prefixes = ("counterparty",) if len(counterparties) == 1 else counterparties
    for prefix, column in zip(prefixes, counterparties, strict=True):
        base = name.removeprefix(f"{prefix}_")
        words = _COUNTERPARTY.get(base) or _word_flag(base, "")
        if base != name and words:
            return f"{words} at the {column}"
    return _word_flag(name, " for the customer") or name


def name_with_identifier(name: str, counterparties: Sequence[str] = ()) -> str:
    """A feature in words with its name behind, as `turncoat features` lists it."""
    words = name_feature(name, counterparties)
    return name if words == name else f"{words} ({name})"


def _word_flag(name: str, owner: str) -> str:
    """What a flag of a column says; empty for other features. Only new values have an owner."""
    for prefix, text in _FLAGS.items():
        if name.startswith(prefix):
            whose = owner if prefix == "new_" else ""
            return f"{name.removeprefix(prefix)} {text}{whose}"
    return ""
