"""Simulated data in the shape of the IEEE-CIS fraud detection set.

Nothing here is the genuine data. Only the columns, types, missing rates and numbers of categories
are those of the genuine files. Behind the columns are customers with ordinary regimes and episodes
of fraud.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from itertools import groupby

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.presets import load_ieee_columns
from turncoat.data.simulators.ieee_customers import (
    DAY,
    EPISODES,
    N_BEHAVIOURS,
    NONE,
    NOVELTY,
    PACE,
    PRODUCTS,
    REGIMES,
    SPENDING,
    TAKEOVER,
    Activity,
    Customers,
    draw_customers,
    draw_episodes,
    simulate_activity,
)
from turncoat.errors import ConfigError

FIRST_ID = 2_987_000
_WORLD_SEED = 20171201  # of the recipes of the V columns, which all samples share
_MAX_COVERED = 0.05  # share of rows that may be spent on values nobody happened to draw

# Products for which a block of columns tends to be missing, by the block's first column.
_MISSING_FOR = """
    addr1:C dist1:CRHS dist2:W P_emaildomain:RH R_emaildomain:W D4:CRHS D6:W D7:W D8:W D10:C
    D11:CRHS D12:W D13:W D14:W D15:C M1:CRHS M4:RHS M5:CRHS M6:CRHS M7:CRHS M8:CRHS V12:C
    V35:CRHS V53:C V75:C V138:WC V143:WC V167:W V169:W V217:W V220:W V322:WC id_30:C id_32:C
    id_33:C id_34:C
"""
_FORM, _DEVICE = 0, 1  # columns of `Customers.omission`
_CERTAIN = 100.0

_CARD_STEEPNESS = {"card2": 0.9, "card3": 3.2, "card5": 1.3}
_CARD_SHARES = {"card4": (0.653, 0.321, 0.014, 0.012), "card6": (0.747, 0.2528, 0.0001, 0.0001)}
# Days since something else was first seen: the address, the e-mail, ...
_DAYS_SINCE_FIRST = ("D4", "D6", "D10", "D11", "D12", "D13", "D14", "D15")
_MATCHES = {  # logit of the chance that details match, and how much novelty takes from it
    "M1": (6.0, 0.5), "M2": (2.3, 0.5), "M3": (1.4, 0.4), "M5": (-0.2, -0.3),
    "M6": (-0.2, 0.3), "M7": (-1.8, 0.2), "M8": (-0.5, 0.3), "M9": (1.8, 0.4),
}  # fmt: skip

# What each C column counts, the behaviour that inflates it, its size, products with mostly zeros.
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
    "C13": ("total", SPENDING, 1.3, ""),
    "C14": ("last_month", PACE, 0.75, ""),
}
_GROUP_SIZE = 4  # neighbouring V columns are variations of one quantity
_SHARED_NOISE, _OWN_NOISE = 0.6, 0.4
_MONEY = ((126, 137), (143, 145), (150, 152), (159, 166), (202, 216), (263, 278), (306, 321),
          (331, 339))  # fmt: skip  # V columns in dollars
_N_FLAGS = 94  # V1 to V94 hold 0, 1 and few larger numbers

_DEVICE_SHARES = (0.46, 0.11, 0.2, 0.23)  # Windows, Mac, iOS, Android
_IS_MOBILE = np.array([False, False, True, True])
_DEVICE_LEVELS = {  # values that each class of device can show, as regular expressions
    "DeviceInfo": ("Windows$|Trident|rv:|Linux", "MacOS$", "iOS Device$", ".*Build/"),
    "id_30": ("Windows|(Linux|other|func|Chrome OS)$", "Mac", "iOS", "Android"),
    "id_31": (
        "(?!.*for (android|ios|tablet)$)(chrome|ie|edge|firefox|opera|aol|other)",
        r"safari|firefox|chrome 6[2-5]\.0$",
        "mobile safari|.*for ios$",
        ".*for android$|samsung|android|google|silk",
    ),
}
_DEVICE_STEEPNESS = {
    "DeviceInfo": (2.0, 1.0, 1.0, 0.7),
    "id_30": (1.5, 0.8, 0.8, 0.8),
    "id_31": (1.1, 1.3, 1.5, 1.1),
}
_NETWORK_STEEPNESS = {
    "id_13": 1.2, "id_14": 1.5, "id_17": 2.2, "id_18": 2.0, "id_19": 0.8, "id_20": 0.8,
    "id_21": 0.8, "id_22": 2.0, "id_23": 1.0, "id_24": 1.5, "id_25": 0.8, "id_26": 0.8,
    "id_32": 2.5, "id_34": 2.0,
}  # fmt: skip


def simulate_ieee_cis(n_rows: int, seed: int) -> dict[str, pl.DataFrame]:
    """Tables `train_transaction`, `train_identity` and `truth`, equal for equal size and seed.

    The window is 182 days at any size; fewer rows mean fewer customers. All seeds share one world:
    columns mean the same and fraud works the same way. `truth`, for evaluation only, holds the
    customer, the regime, the kind of fraud episode and its number (-1 outside episodes).
    """
    if n_rows < 1:
        raise ConfigError(f"n_rows must be at least 1; found {n_rows}. Give 1 or more")
    if seed < 0:
        raise ConfigError(f"seed must be at least 0; found {seed}. Give 0 or more")
    generators = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(6))
    customer_rng, episode_rng, activity_rng, missing_rng, *file_rngs = generators
    customers = draw_customers(n_rows, customer_rng)
    activity = simulate_activity(customers, draw_episodes(customers, episode_rng), activity_rng)
    missing = _draw_missing(customers, activity, missing_rng)
    has_identity = np.flatnonzero(~missing[_no_identity_rate()])
    every_row = np.arange(len(activity))
    transactions = _Columns(customers, activity, every_row, missing, file_rngs[0])
    identity = _Columns(customers, activity, has_identity, missing, file_rngs[1])
    return {
        "train_transaction": transactions.build("transaction"),
        "train_identity": identity.build("identity"),
        "truth": _truth(activity),
    }


def _truth(activity: Activity) -> pl.DataFrame:
    in_episode = activity.episode != NONE
    episode_id = np.full(len(activity), -1, np.int64)
    episode_id[in_episode] = np.unique(activity.customer[in_episode], return_inverse=True)[1]
    regimes, episodes = (pl.Series(names, dtype=pl.String) for names in (REGIMES, EPISODES))
    return pl.DataFrame(
        {
            "TransactionID": FIRST_ID + np.arange(len(activity), dtype=np.int64),
            "customer": activity.customer.astype(np.int64),
            "regime": regimes.gather(activity.regime.astype(np.uint32)),
            "episode": episodes.gather(activity.episode.astype(np.uint32)),
            "episode_id": episode_id,
        }
    )


def _draw_missing(
    customers: Customers, activity: Activity, rng: np.random.Generator
) -> dict[float, Array]:
    """For each missing rate of the genuine data, a mask [N] of the rows with missing cells.

    Columns with equal rates are missing on the same rows: those with the highest propensity, given
    product, customer, card and chance, and never fraud. The rate fixes their number.
    """
    n, product, customer = len(activity), activity.product, activity.customer
    # Nearly all of W, and about a tenth of C, has no row in the identity file.
    propensity = np.array([8.0, 1.5, -4.0, -4.0, -2.0])[product]
    propensity = propensity + 0.9 * customers.omission[customer, _DEVICE] + rng.standard_normal(n)
    no_identity = _mask_highest(propensity, _no_identity_rate())
    columns = reversed(load_ieee_columns())
    missing_for = dict(pair.split(":") for pair in _MISSING_FOR.split())
    first_columns = {column.missing_rate: column for column in columns if column.missing_rate > 0}
    masks = {}
    for rate, column in first_columns.items():
        name, products = column.name, missing_for.get(column.name, "")
        kind = _DEVICE if column.file == "identity" or products.startswith("W") else _FORM
        propensity = 0.9 * customers.omission[customer, kind] + rng.standard_normal(n)
        propensity += 5.0 * np.array([letter in products for letter in PRODUCTS])[product]
        if name.startswith("card"):
            by_card = rng.standard_normal(len(customers.card_numbers))
            propensity += 5.0 * by_card[customers.card[customer]]
        if name in ("D3", "D5", "D7"):  # days since an earlier transaction
            propensity += _CERTAIN * (activity.n_before == 0)
        if name == "D2":
            propensity += _CERTAIN * (activity.card_age == 0)
        if rate >= _no_identity_rate():
            propensity += _CERTAIN * no_identity
        masks[rate] = _mask_highest(propensity, rate)
    masks[_no_identity_rate()] = no_identity
    return masks


def _no_identity_rate() -> float:
    """Share of transactions without a row in the identity file."""
    return next(column.missing_rate for column in load_ieee_columns() if column.name == "id_01")


def _mask_highest(propensity: Array, rate: float) -> Array:
    """A mask [N] of the share `rate` of rows with the highest propensity."""
    n_missing = round(rate * len(propensity))
    mask = np.zeros(len(propensity), bool)
    if n_missing:
        first = len(propensity) - n_missing
        mask[np.argpartition(propensity, first)[first:]] = True
    return mask


@cache
def _load_levels() -> dict[str, tuple[str | float, ...]]:
    """Values of the categorical columns, most frequent first; invented where unknown."""
    known = {column.name: column.levels for column in load_ieee_columns() if column.levels}
    invented = json.loads((files(__package__) / "ieee_levels.json").read_text(encoding="utf-8"))
    return known | {name: tuple(levels) for name, levels in invented.items()}


def levels_of(name: str) -> tuple[str | float, ...]:
    """All values of a categorical column, as many as the genuine column has."""
    return _load_levels()[name]


def _draw_levels(n: int, n_levels: int, steepness: float, rng: np.random.Generator) -> Array:
    """Level numbers [n] with heavy-tailed frequencies, lower numbers more often."""
    weights = np.arange(1, n_levels + 1) ** -steepness
    return rng.choice(n_levels, n, p=weights / weights.sum())


def _cover_levels(codes: Array, n_levels: int, rng: np.random.Generator) -> Array:
    """The codes [n], with levels nobody drew placed once on a few rows; -1 stays missing."""
    counts = np.bincount(codes[codes >= 0], minlength=n_levels)
    absent = np.flatnonzero(counts == 0)[: int(_MAX_COVERED * counts.sum())]
    rows = rng.permutation(np.flatnonzero(codes == counts.argmax()))[: len(absent)]
    covered = codes.copy()
    covered[rows] = absent[: len(rows)]
    return covered


@dataclass(frozen=True)
class VRecipe:
    """How one V column follows from the behaviour."""

    group: int
    sources: tuple[int, int]  # columns of `Activity.behaviour`
    weights: tuple[float, float]
    level: float
    slope: float
    is_money: bool

    def evaluate(self, signal: Array) -> Array:
        """Values [n]: counts, or sums of money that are 0 where there was nothing to sum."""
        if not self.is_money:
            return np.floor(np.exp(self.level + self.slope * signal))
        money = np.round(np.exp(3.6 + self.slope * signal.astype(np.float64)), 2)
        return np.where(signal < -self.level, 0.0, money)


@cache
def _draw_v_recipes() -> dict[str, VRecipe]:
    """The recipes of all V columns, equal for every sample."""
    rng = np.random.default_rng(_WORLD_SEED)
    recipes: dict[str, VRecipe] = {}
    group = 0
    v_columns = (column for column in load_ieee_columns() if column.name.startswith("V"))
    for _, block in groupby(v_columns, key=lambda column: column.missing_rate):
        for index, column in enumerate(block):
            if index % _GROUP_SIZE == 0:
                group += 1
                first, second = map(int, rng.choice(N_BEHAVIOURS, 2, replace=False))
                main, side, level = (
                    float(rng.uniform(*ends)) for ends in ((0.4, 0.8), (-0.5, 0.5), (-0.8, 0.6))
                )
            number = int(column.name[1:])
            is_flag = number <= _N_FLAGS
            recipes[column.name] = VRecipe(
                group=group,
                sources=(first, second),
                weights=(main + float(rng.normal(0, 0.1)), side),
                level=0.2 if is_flag else level + float(rng.normal(0, 0.2)),
                slope=float(rng.uniform(*((0.3, 0.5) if is_flag else (0.7, 1.3)))),
                is_money=any(low <= number <= high for low, high in _MONEY),
            )
    return recipes


class _Columns:
    """Writes the columns of one file in their genuine types, for some rows of the activity."""

    def __init__(
        self,
        customers: Customers,
        activity: Activity,
        rows: Array,
        missing: Mapping[float, Array],
        rng: np.random.Generator,
    ) -> None:
        """`missing` has a mask of all transactions for each missing rate."""
        self.customers, self.rng = customers, rng
        values = {field.name: getattr(activity, field.name)[rows] for field in fields(Activity)}
        self.activity, self.ids, self.n = Activity(**values), FIRST_ID + rows, len(rows)
        self.novelty = self.activity.behaviour[:, NOVELTY]
        masks = {rate: mask[rows] for rate, mask in missing.items()}
        self.masks = {
            column.name: masks[column.missing_rate]
            for column in load_ieee_columns()
            if column.missing_rate > 0
        }

    def build(self, file: str) -> pl.DataFrame:
        """All columns of the transaction or the identity file, in genuine order."""
        if file == "transaction":
            families = (
                self._basics, self._cards, self._addresses, self._emails, self._counts,
                self._days, self._matches, self._v_columns,
            )  # fmt: skip
        else:
            families = (self._scores, self._familiarity, self._networks, self._devices)  # type: ignore[assignment]
        columns = {"TransactionID": pl.Series("TransactionID", self.ids.astype(np.int64))}
        for family in families:
            columns |= {column.name: column for column in family()}
        names = [column.name for column in load_ieee_columns() if column.file == file]
        return pl.DataFrame([columns[name] for name in names])

    def _numbers(self, name: str, values: Array) -> pl.Series:
        """A float64 column; NaN becomes missing."""
        cells = values.astype(np.float64) + 0.0  # no negative zeros
        if name in self.masks:
            cells[self.masks[name]] = np.nan
        return pl.Series(name, cells, nan_to_null=True)

    def _categories(self, name: str, codes: Array, cover: bool = False) -> pl.Series:
        """A column of levels by number; with `cover`, levels nobody drew appear once."""
        levels = levels_of(name)
        codes = np.where(self.masks[name], -1, codes)
        if cover:
            codes = _cover_levels(codes, len(levels), self.rng)
        kind = pl.String if isinstance(levels[0], str) else pl.Float64
        table = pl.Series(name, [*levels, None], dtype=kind)
        return table.gather(np.where(codes < 0, len(levels), codes).astype(np.uint32))

    def _flags(self, name: str, flags: Array) -> pl.Series:
        """A column of two levels, such as F and T."""
        return self._categories(name, flags.astype(np.int64))

    def _basics(self) -> Iterator[pl.Series]:
        activity = self.activity
        yield pl.Series("isFraud", (activity.episode != NONE).astype(np.int64))
        yield pl.Series("TransactionDT", activity.seconds.astype(np.int64))
        yield self._numbers("TransactionAmt", activity.amount)
        products = pl.Series("ProductCD", PRODUCTS, dtype=pl.String)
        yield products.gather(activity.product.astype(np.uint32))

    def _cards(self) -> Iterator[pl.Series]:
        """The card number and the columns that follow from it."""
        card, numbers = self.customers.card[self.activity.customer], self.customers.card_numbers
        yield pl.Series("card1", numbers[card].astype(np.int64))
        for name in ("card2", "card3", "card4", "card5", "card6"):
            n_levels = len(levels_of(name))
            seen = np.bincount(card[~self.masks[name]], minlength=len(numbers)) > 0
            if name in _CARD_SHARES:
                drawn = self.rng.choice(n_levels, len(numbers), p=_CARD_SHARES[name])
            else:
                drawn = _draw_levels(len(numbers), n_levels, _CARD_STEEPNESS[name], self.rng)
            by_card = _cover_levels(np.where(seen, drawn, -1), n_levels, self.rng)
            yield self._categories(name, by_card[card])

    def _addresses(self) -> Iterator[pl.Series]:
        """Billing region and country, and distances, which grow away from home."""
        activity, customer, rng = self.activity, self.activity.customer, self.rng
        n_customers = len(self.customers)
        n_regions, n_countries = len(levels_of("addr1")), len(levels_of("addr2"))
        homes = _draw_levels(2 * n_customers, n_regions, 0.9, rng).reshape(2, -1)
        home = np.where(activity.moved, homes[1][customer], homes[0][customer])
        countries = _draw_levels(n_customers, n_countries, 4.0, rng)
        abroad = activity.away & (rng.random(self.n) < 0.15)
        other = _draw_levels(self.n, n_countries, 1.0, rng)
        country = np.where(abroad, other, countries[customer])
        region = np.where(activity.away, _draw_levels(self.n, n_regions, 0.6, rng), home)
        yield self._categories("addr1", region, cover=True)
        yield self._categories("addr2", country, cover=True)
        for name, size in (("dist1", 1.6), ("dist2", 3.2)):
            logs = size + 0.5 * self.novelty + 1.4 * activity.away
            logs = logs + 1.3 * rng.standard_normal(self.n)
            yield self._numbers(name, np.minimum(np.floor(np.exp(logs)), 11_000))

    def _emails(self) -> Iterator[pl.Series]:
        """The purchaser's domain, which an intruder may change, and the recipient's."""
        activity, rng = self.activity, self.rng
        n_levels = len(levels_of("P_emaildomain"))
        other = _draw_levels(self.n, n_levels, 1.0, rng)
        usual = _draw_levels(len(self.customers), n_levels, 1.35, rng)[activity.customer]
        changed = rng.random(self.n) < np.where(activity.episode == TAKEOVER, 0.3, 0.03)
        purchaser = np.where(changed, other, usual)
        is_gift = rng.random(self.n) < 0.15
        yield self._categories("P_emaildomain", purchaser, cover=True)
        recipient = np.where(is_gift, _draw_levels(self.n, n_levels, 1.2, rng), purchaser)
        yield self._categories("R_emaildomain", recipient, cover=True)

    def _counts(self) -> Iterator[pl.Series]:
        """C1 to C14: uses of the card, inflated by other users and by the behaviour."""
        activity, rng = self.activity, self.rng
        counts = {
            "last_day": activity.last_day,
            "last_month": activity.last_month,
            "total": activity.n_before + 1,
            "one": np.ones(self.n),
        }
        for name, (count, source, size, mostly_zero) in _COUNTS.items():
            noise = 0.6 * rng.standard_normal(self.n, np.float32)
            inflation = 0.45 * activity.behaviour[:, source] + noise
            is_zero = np.array([letter in mostly_zero for letter in PRODUCTS])[activity.product]
            is_zero = is_zero & (rng.random(self.n) < 0.97)
            values = np.floor(size * counts[count] * np.exp(inflation) + 0.3)
            yield self._numbers(name, np.where(is_zero, 0.0, values))

    def _days(self) -> Iterator[pl.Series]:
        """Time deltas in days. The day minus D1 is the day of the card's first use."""
        activity, rng = self.activity, self.rng
        age, since = activity.card_age, activity.days_since
        yield self._numbers("D1", age)
        yield self._numbers("D2", np.where(age > 0, age, np.nan))
        yield self._numbers("D3", np.floor(since))
        for name in ("D5", "D7"):
            same_kind = rng.random(self.n) < 0.8
            yield self._numbers(name, np.where(same_kind, np.floor(since), np.floor(3 * since)))
        tenure = self.customers.tenure
        for name in _DAYS_SINCE_FIRST:
            at_once = rng.random(len(tenure)) < 0.5
            later = np.where(at_once, 0.0, np.floor(rng.random(len(tenure)) * (tenure + 1)))
            days = np.maximum(age - later[activity.customer], 0.0)
            is_new = rng.random(self.n) < 1 / (1 + np.exp(3.2 - 0.7 * self.novelty))
            yield self._numbers(name, np.where(is_new, 0.0, days))
        time_of_day = np.round((activity.seconds % DAY) // 3600 / 24, 6)
        logs = 2.5 - 0.3 * self.novelty + 1.6 * rng.standard_normal(self.n)
        yield self._numbers("D8", np.minimum(np.floor(np.exp(logs)), 1700) + time_of_day)
        yield self._numbers("D9", time_of_day)

    def _matches(self) -> Iterator[pl.Series]:
        """Whether details agree, such as the names on the card and in the address."""
        for name, (logit, loss) in _MATCHES.items():
            chance = 1 / (1 + np.exp(loss * self.novelty - logit))
            yield self._flags(name, self.rng.random(self.n) < chance)
        score = 0.5 * self.novelty + self.rng.standard_normal(self.n)
        yield self._categories("M4", np.where(score < 0.3, 0, np.where(score < 0.8, 1, 2)))

    def _v_columns(self) -> Iterator[pl.Series]:
        """V1 to V339, each only computed where it is present."""
        behaviour, rng = self.activity.behaviour, self.rng
        group = -1
        for name, recipe in _draw_v_recipes().items():
            if recipe.group != group:
                group = recipe.group
                present = np.flatnonzero(~self.masks[name])
                shared = rng.standard_normal(len(present), np.float32)
            (first, second), (main, side) = recipe.sources, recipe.weights
            own = rng.standard_normal(len(present), np.float32)
            signal = _SHARED_NOISE * shared + _OWN_NOISE * own
            signal += main * behaviour[present, first] + side * behaviour[present, second]
            cells = np.full(self.n, np.nan)
            cells[present] = recipe.evaluate(signal)
            yield self._numbers(name, cells)

    def _scores(self) -> Iterator[pl.Series]:
        """Numeric identity columns, mostly whole numbers and often zero."""
        rng, n, novelty = self.rng, self.n, self.novelty
        pace = self.activity.behaviour[:, PACE]

        def add_noise(mean: Array | float, scale: float) -> Array:
            total: Array = mean + scale * rng.standard_normal(n)
            return total

        def excess(mean: Array, scale: float) -> Array:
            whole: Array = np.trunc(np.exp(add_noise(mean, scale)) - 1)
            return whole

        scores = {
            "id_01": -5 * np.clip(np.floor(add_noise(1 + 0.8 * novelty, 1.5)), 0, 20),
            "id_02": np.clip(np.floor(np.exp(add_noise(11.7 + 0.2 * novelty, 0.9))), 1, 999_595),
            "id_03": np.trunc(add_noise(0.2 * pace, 0.6)),
            "id_04": -np.clip(np.floor(add_noise(0.2 * novelty, 0.5)), 0, 28),
            "id_05": np.clip(excess(0.3 * pace, 1.1), -72, 52),
            "id_06": -np.clip(excess(0.3 * novelty, 1.3), 0, 100),
            "id_07": np.clip(np.trunc(add_noise(14, 11)), -46, 61),
            "id_08": np.clip(np.trunc(add_noise(-38, 26)), -100, 0),
            "id_09": np.clip(np.trunc(add_noise(0.3 * pace, 0.7)), -36, 25),
            "id_10": -np.clip(excess(0.2 * novelty, 0.9), 0, 100),
        }
        is_full = rng.random(n) < 0.95
        scores["id_11"] = np.where(is_full, 100.0, np.round(rng.uniform(90, 100, n), 2))
        for name, values in scores.items():
            yield self._numbers(name, values)

    def _familiarity(self) -> Iterator[pl.Series]:
        """Whether device, account and the like were seen before; sometimes wrong."""
        score = 0.7 * self.novelty + 0.9 * self.activity.new_device
        score = score - 0.4 * np.log1p(self.activity.n_before)

        def is_unfamiliar(logit: float, weight: float) -> Array:
            chance: Array = 1 / (1 + np.exp(-logit - weight * score))
            return self.rng.random(self.n) < chance

        yield self._flags("id_12", is_unfamiliar(1.8, 0.3))
        is_unknown = self.rng.random(self.n) < 0.08
        yield self._categories("id_15", np.where(is_unknown, 2, is_unfamiliar(0.3, 0.8)))
        for name, logit, weight in (
            ("id_16", 0.2, 0.5), ("id_27", -4.5, 0.3), ("id_28", 0.4, 0.8), ("id_29", -0.2, 0.5),
            ("id_35", 0.5, -0.4), ("id_36", -2.8, 0.2), ("id_37", 1.2, -0.4), ("id_38", 0.0, -0.5),
        ):  # fmt: skip
            yield self._flags(name, is_unfamiliar(logit, weight))

    def _networks(self) -> Iterator[pl.Series]:
        """Codes of the customer's network and settings, which change away from home."""
        rng = self.rng
        elsewhere = self.activity.away | (rng.random(self.n) < 0.15)
        for name, steepness in _NETWORK_STEEPNESS.items():
            n_levels = len(levels_of(name))
            usual = _draw_levels(len(self.customers), n_levels, steepness, rng)
            other = _draw_levels(self.n, n_levels, steepness, rng)
            codes = np.where(elsewhere, other, usual[self.activity.customer])
            yield self._categories(name, codes, cover=True)

    def _devices(self) -> Iterator[pl.Series]:
        """Each customer has a device, its replacement, and a stranger's device."""
        activity, rng = self.activity, self.rng
        n_devices = 3 * len(self.customers)
        which = np.where(activity.new_device, 2, activity.replaced_device)
        device = which * len(self.customers) + activity.customer
        kind = rng.choice(len(_DEVICE_SHARES), n_devices, p=_DEVICE_SHARES)
        yield self._flags("DeviceType", _IS_MOBILE[kind][device])
        for name, patterns in _DEVICE_LEVELS.items():
            codes = np.empty(n_devices, np.int64)
            for number, pattern in enumerate(patterns):
                texts = map(str, levels_of(name))
                able = np.array([i for i, text in enumerate(texts) if re.match(pattern, text)])
                own = np.flatnonzero(kind == number)
                steepness = _DEVICE_STEEPNESS[name][number]
                codes[own] = able[_draw_levels(len(own), len(able), steepness, rng)]
            yield self._categories(name, codes[device], cover=True)
        screens = _draw_levels(n_devices, len(levels_of("id_33")), 1.1, rng)
        yield self._categories("id_33", screens[device], cover=True)
