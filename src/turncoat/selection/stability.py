"""Would other customers have given the same K? The choice repeated on resamples of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from turncoat.progress import progress_bars
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import Choice, Order
from turncoat.selection.fitted import FittedOrder, Model
from turncoat.selection.parts import Parts

FAST_ITERATIONS = 10


@dataclass(frozen=True)
class Stability:
    """The choices made on resamples of customers."""

    reference: Choice  # on the customers themselves
    choices: tuple[Choice, ...]
    fast: bool  # refitted from the sweep's solutions, not from scratch

    def frame(self) -> pl.DataFrame:
        """For every K the share of the resamples that chose it, by either rule; a null K is none."""
        by_rule = [
            Counter(getattr(choice, rule) for choice in self.choices)
            for rule in ("by_eligibility", "by_criterion")
        ]
        orders: list[int | None] = [step.n_states for step in self.reference.trail]
        if any(None in counts for counts in by_rule):
            orders.append(None)
        shares = ([counts[k] / len(self.choices) for k in orders] for counts in by_rule)
        return pl.DataFrame(
            [orders, *shares],
            schema={"n_states": pl.Int64, "by_eligibility": pl.Float64, "by_criterion": pl.Float64},
            orient="col",
        )

    def describe(self) -> str:
        """A small table."""
        how = (
            f"{FAST_ITERATIONS} iterations from the sweep's solutions: other optima are not looked for"
            if self.fast
            else "from scratch"
        )
        lines = [
            f"{len(self.choices)} resamples of customers, refitted {how}",
            "   K  by eligibility  by criterion",
        ]
        for k, eligible, criterion in self.frame().rows():
            stars = (
                "*" if k == self.reference.by_eligibility else " ",
                "*" if k == self.reference.by_criterion else " ",
            )
            lines.append(
                f"{'none' if k is None else k:>4}  {eligible:>13.0%}{stars[0]}  {criterion:>11.0%}{stars[1]}"
            )
        return "\n".join([*lines, "* the answer on the customers themselves"])

    def __str__(self) -> str:
        """The table."""
        return self.describe()


def resampled_choices(
    fits: Mapping[int, FittedOrder],
    parts: Parts,
    proxy: int | None,
    anchoring: Anchoring | None,
    decide: Callable[[list[Order]], Choice],
    *,
    n_resamples: int,
    seed: int,
    fast: bool,
    progress: bool | None,
) -> tuple[Choice, ...]:
    """The choice on each resample of fit and selection customers; resample r depends on the seed and on r only."""
    choices = []
    n_fits, n_done = n_resamples * len(fits), 0
    with progress_bars(progress) as show:
        for r in range(n_resamples):
            drawn = parts.resampled(
                np.random.default_rng([seed, r]), both_kinds=anchoring is not None
            )
            orders = []
            for fit in fits.values():
                orders.append(
                    FittedOrder.fit(_again(fit.model, fast), drawn, anchoring, proxy).order
                )
                n_done += 1
                show("resamples of customers", n_done, n_fits)
            choices.append(decide(orders))
    return tuple(choices)


def _again(model: Model, fast: bool) -> Model:
    """The model, to be fitted once more."""
    again: Model = model.again().set_params(progress=False)
    return again.set_params(init=model.params_, max_iter=FAST_ITERATIONS) if fast else again
