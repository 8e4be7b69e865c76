"""The engineered columns of the simulated IEEE-CIS data: counts C and the V columns, noisy views of a low-rank behaviour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.ieee_columns import ieee_columns
from turncoat.data.simulators.ieee_levels import WORLD_SEED
from turncoat.data.simulators.ieee_lives import N_BEHAVIOURS, Lives
from turncoat.data.simulators.ieee_people import NOVELTY, PACE, PRODUCTS, SPENDING
from turncoat.data.simulators.ieee_series import numbers

_GROUP = 4  # neighbouring V columns are variations of one quantity
_SHARED_NOISE, _OWN_NOISE = 0.6, 0.4
_MONEY = (
    (126, 137),
    (143, 145),
    (150, 152),
    (159, 166),
    (202, 216),
    (263, 278),
    (306, 321),
    (331, 339),
)  # V columns in dollars
_FLAGS = (1, 94)  # V columns that hold 0, 1 and few larger numbers

# For each count: what is counted, the behaviour that inflates it, its size, and the products for which it is mostly zero.
_COUNTS = {
    "C1": ("last_month", PACE, 0.8, ""),
    "C2": ("last_month", NOVELTY, 0.8, ""),
    "C3": ("one", NOVELTY, 0.03, "W"),
    "C4": ("last_day", PACE, 0.7, "W"),
    "C5": ("last_month", SPENDING, 0.5, "CRHS"),
    "C6": ("last_month", SPENDING, 0.7, ""),
    "C7": ("one", NOVELTY, 0.15, "W"),
    "C8": ("last_month", PACE, 0.5, "W"),
    "C9": ("last_month", PACE, 0.6, "CRHS"),
    "C10": ("last_day", NOVELTY, 0.6, "W"),
    "C11": ("last_day", PACE, 1.1, ""),
    "C12": ("one", PACE, 0.12, "W"),
    "C13": ("place", SPENDING, 1.3, ""),
    "C14": ("last_month", PACE, 0.75, ""),
}


def count_columns(lives: Lives, rng: np.random.Generator) -> Iterator[pl.Series]:
    """C1 to C14: how often something was seen with the card, inflated by others' use and by the behaviour."""
    counted = {
        "last_day": lives.last_day,
        "last_month": lives.last_month,
        "place": lives.place + 1,
        "one": np.ones(len(lives)),
    }
    for name, (what, behaviour, size, mostly_zero) in _COUNTS.items():
        inflation = 0.45 * lives.behaviour[:, behaviour] + 0.6 * rng.standard_normal(
            len(lives), np.float32
        )
        zero = np.array([product in mostly_zero for product in PRODUCTS])[lives.product] & (
            rng.random(len(lives)) < 0.97
        )
        yield numbers(
            name, np.where(zero, 0.0, np.floor(size * counted[what] * np.exp(inflation) + 0.3))
        )


@dataclass(frozen=True)
class _Recipe:
    """How one V column is made of the behaviour."""

    group: int
    sources: tuple[int, int]
    loads: tuple[float, float]
    level: float
    slope: float
    money: bool


@cache
def _recipes() -> dict[str, _Recipe]:
    """The recipes of all V columns, the same for every sample."""
    rng = np.random.default_rng(WORLD_SEED)
    recipes: dict[str, _Recipe] = {}
    group = 0
    blocks = groupby(
        (c for c in ieee_columns() if c.name.startswith("V")),
        key=lambda column: column.missing_rate,
    )
    for _, block in blocks:
        for place, column in enumerate(block):
            if place % _GROUP == 0:
                group += 1
                first, second = (
                    int(source) for source in rng.choice(N_BEHAVIOURS, 2, replace=False)
                )
                main, side, level = (
                    float(rng.uniform(0.4, 0.8)),
                    float(rng.uniform(-0.5, 0.5)),
                    float(rng.uniform(-0.8, 0.6)),
                )
            number = int(column.name[1:])
            flag = _FLAGS[0] <= number <= _FLAGS[1]
            recipes[column.name] = _Recipe(
                group=group,
                sources=(first, second),
                loads=(main + float(rng.normal(0, 0.1)), side),
                level=0.2 if flag else level + float(rng.normal(0, 0.2)),
                slope=float(rng.uniform(0.3, 0.5) if flag else rng.uniform(0.7, 1.3)),
                money=any(low <= number <= high for low, high in _MONEY),
            )
    return recipes


def v_columns(
    lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """V1 to V339, one at a time, each only computed where it is present."""
    facts = [column for column in ieee_columns() if column.name.startswith("V")]
    group, shared = -1, np.empty(0, np.float32)
    present = np.empty(0, np.int64)
    for column in facts:
        recipe = _recipes()[column.name]
        if recipe.group != group:
            group = recipe.group
            present = np.flatnonzero(~empty[column.missing_rate])
            shared = rng.standard_normal(len(present), np.float32)
        (first, second), (main, side) = recipe.sources, recipe.loads
        signal = _SHARED_NOISE * shared + _OWN_NOISE * rng.standard_normal(len(present), np.float32)
        signal += main * lives.behaviour[present, first] + side * lives.behaviour[present, second]
        cells = np.full(len(lives), np.nan)
        cells[present] = (
            _money(signal, recipe)
            if recipe.money
            else np.floor(np.exp(recipe.level + recipe.slope * signal))
        )
        yield numbers(column.name, cells)


def _money(signal: Array, recipe: _Recipe) -> Array:
    """Sums of amounts, zero where there was nothing to add up."""
    return np.where(
        signal < -recipe.level,
        0.0,
        np.round(np.exp(3.6 + recipe.slope * signal.astype(np.float64)), 2),
    )
