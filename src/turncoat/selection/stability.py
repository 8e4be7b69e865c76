"""Stability of the choice: K chosen again on resamples of the customers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from turncoat.models.storage import Model
from turncoat.selection.eligibility import Choice

FAST_ITERATIONS = 10
_RULES = ("by_eligibility", "by_criterion")


@dataclass(frozen=True)
class Stability:
    """The choices made on resamples of customers."""

    reference: Choice  # on the original customers
    choices: tuple[Choice, ...]
    fast: bool  # refitted from the sweep's solutions, not from scratch

    def frame(self) -> pl.DataFrame:
        """For every K the share of resamples that chose it, by either rule; null K means none."""
        counts = [Counter(getattr(choice, rule) for choice in self.choices) for rule in _RULES]
        orders: list[int | None] = [step.n_states for step in self.reference.trail]
        if any(None in by_rule for by_rule in counts):
            orders.append(None)
        shares = ([by_rule[k] / len(self.choices) for k in orders] for by_rule in counts)
        schema = {"n_states": pl.Int64, **dict.fromkeys(_RULES, pl.Float64)}
        return pl.DataFrame([orders, *shares], schema=schema, orient="col")

    def describe(self) -> str:
        """A small table."""
        how = "from scratch"
        if self.fast:
            how = f"{FAST_ITERATIONS} iterations from the sweep's solutions (no other optima)"
        lines = [
            f"{len(self.choices)} resamples of customers, refitted {how}",
            "   K  by eligibility  by criterion",
        ]
        for k, *shares in self.frame().rows():
            marks = ["*" if k == getattr(self.reference, rule) else " " for rule in _RULES]
            name = "none" if k is None else k
            lines.append(f"{name:>4}  {shares[0]:>13.0%}{marks[0]}  {shares[1]:>11.0%}{marks[1]}")
        return "\n".join([*lines, "* the answer on the original customers"])

    __str__ = describe


def copy_for_refit(model: Model, fast: bool) -> Model:
    """An unfitted copy; with `fast`, one that starts from the model's solution."""
    copy: Model = model.copy_unfitted().set_params(progress=False)
    return copy.set_params(init=model.params_, max_iter=FAST_ITERATIONS) if fast else copy
