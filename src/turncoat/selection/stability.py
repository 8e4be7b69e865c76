"""Stability of the choice: K chosen again on resamples of the customers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from turncoat.progress import progress_bars
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import Choice, OrderSummary
from turncoat.selection.orders import FittedOrder, Model, SelectionPanels

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

    def __str__(self) -> str:
        """The table."""
        return self.describe()


def choose_on_resamples(
    fits: Mapping[int, FittedOrder],
    panels: SelectionPanels,
    proxy: int | None,
    anchoring: Anchoring | None,
    choose: Callable[[list[OrderSummary]], Choice],
    *,
    n_resamples: int,
    seed: int,
    fast: bool,
    progress: bool | None,
) -> tuple[Choice, ...]:
    """The choice on each resample of customers; resample r depends on the seed and r only."""
    choices = []
    n_fits, n_done = n_resamples * len(fits), 0
    with progress_bars(progress) as show:
        for r in range(n_resamples):
            drawn = panels.resample(
                np.random.default_rng([seed, r]), require_both_labels=anchoring is not None
            )
            orders = []
            for fit in fits.values():
                model = _copy_for_refit(fit.model, fast)
                orders.append(FittedOrder.fit(model, drawn, anchoring, proxy).summary)
                n_done += 1
                show("resamples of customers", n_done, n_fits)
            choices.append(choose(orders))
    return tuple(choices)


def _copy_for_refit(model: Model, fast: bool) -> Model:
    """An unfitted copy; with `fast`, one that starts from the model's solution."""
    copy: Model = model.copy_unfitted().set_params(progress=False)
    return copy.set_params(init=model.params_, max_iter=FAST_ITERATIONS) if fast else copy
