"""Simulated data in the shape of the IEEE-CIS fraud detection set.

Nothing here is the genuine data. Only the columns, types, missing rates and numbers of categories
are those of the genuine files. Behind the columns is a world of customers with ordinary regimes and
episodes of fraud.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.random import Generator

from turncoat.arrays import Array
from turncoat.data.presets import load_ieee_columns
from turncoat.data.simulators import ieee_customers as world
from turncoat.errors import check_count

FIRST_ID = 2_987_000
_WORLD_SEED = 20171201  # of the recipes of the V columns, which all samples share
_MAX_COVERED = 0.05  # share of rows that may be spent on values nobody happened to draw
_FORM, _DEVICE = 0, 1  # columns of `Customers.omission`
_CERTAIN = 100.0
# Days since something else was first seen: the address, the e-mail, ...
_DAYS_SINCE_FIRST = ("D4", "D6", "D10", "D11", "D12", "D13", "D14", "D15")
_GROUP_SIZE = 4  # neighbouring V columns are variations of one quantity
_SHARED_NOISE, _OWN_NOISE = 0.6, 0.4
_N_FLAGS = 94  # V1 to V94 hold 0, 1 and few larger numbers
_DEVICE_SHARES = (0.46, 0.11, 0.2, 0.23)  # Windows, Mac, iOS, Android
_IS_MOBILE = np.array([False, False, True, True])


def simulate_ieee_cis(n_rows: int, seed: int) -> dict[str, pl.DataFrame]:
    """Tables `train_transaction`, `train_identity` and `truth`, equal for equal size and seed.

    The window is 182 days at any size; fewer rows mean fewer customers. All seeds share one world:
    columns mean the same and fraud works the same way. `truth`, for evaluation only, holds the
    customer, the regime, the kind of fraud episode and its number (-1 outside episodes).
    """
    check_count("n_rows", n_rows, 1)
    check_count("seed", seed, 0)
    generators = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(6))
    customer_rng, episode_rng, activity_rng, missing_rng, *file_rngs = generators
    customers = world.draw_customers(n_rows, customer_rng)
    episodes = world.draw_episodes(customers, episode_rng)
    activity = world.simulate_activity(customers, episodes, activity_rng)
    missing = _draw_missing(customers, activity, missing_rng)
    has_identity = np.flatnonzero(~missing[_no_identity_rate()])
    transactions = _Columns(customers, activity, np.arange(n_rows), missing, file_rngs[0])
    identity = _Columns(customers, activity, has_identity, missing, file_rngs[1])
    return {
        "train_transaction": transactions.build("transaction"),
        "train_identity": identity.build("identity"),
        "truth": _build_truth(activity),
    }


def _build_truth(activity: world.Activity) -> pl.DataFrame:
    in_episode = activity.episode != world.NONE
    episode_id = np.full(len(activity), -1, np.int64)
    episode_id[in_episode] = np.unique(activity.customer[in_episode], return_inverse=True)[1]
    regimes, episodes = pl.Series(world.REGIMES), pl.Series(world.EPISODES)
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
    customers: world.Customers, activity: world.Activity, rng: Generator
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
    first_columns = {column.missing_rate: column for column in columns if column.missing_rate > 0}
    masks = {}
    for rate, column in first_columns.items():
        name, products = column.name, _load_tables()["missing_for"].get(column.name, "")
        kind = _DEVICE if column.file == "identity" or products.startswith("W") else _FORM
        propensity = 0.9 * customers.omission[customer, kind] + rng.standard_normal(n)
        propensity += 5.0 * _is_among(product, products)
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
    return masks | {_no_identity_rate(): no_identity}


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


def _is_among(product: Array, letters: str) -> Array:
    """Whether each row's product [N] is one of these letters."""
    return np.array([letter in letters for letter in world.PRODUCTS])[product]


@cache
def _load_tables() -> dict[str, Any]:
    """Parameters of the columns; the file's entry `about` says what each table holds."""
    tables = json.loads((files(__package__) / "ieee_tables.json").read_text(encoding="utf-8"))
    known = {column.name: column.levels for column in load_ieee_columns() if column.levels}
    return {**tables, "levels": known | tables["levels"]}


def levels_of(name: str) -> tuple[str | float, ...]:
    """All values of a categorical column, as many as the genuine column has; frequent first."""
    return tuple(_load_tables()["levels"][name])


def _draw_levels(n: int, n_levels: int, steepness: float, rng: Generator) -> Array:
    """Level numbers [n] with heavy-tailed frequencies, lower numbers more often."""
    weights = np.arange(1, n_levels + 1) ** -steepness
    return rng.choice(n_levels, n, p=weights / weights.sum())


def _cover_levels(codes: Array, n_levels: int, rng: Generator) -> Array:
    """The codes [n], with levels nobody drew placed once on a few rows; -1 stays missing."""
    counts = np.bincount(codes[codes >= 0], minlength=n_levels)
    absent = np.flatnonzero(counts == 0)[: int(_MAX_COVERED * counts.sum())]
    rows = rng.permutation(np.flatnonzero(codes == counts.argmax()))[: len(absent)]
    covered = codes.copy()
    covered[rows] = absent[: len(rows)]
    return covered


class VRecipe(NamedTuple):
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
                first, second = map(int, rng.choice(world.N_BEHAVIOURS, 2, replace=False))
                main, side, base = map(float, rng.uniform((0.4, -0.5, -0.8), (0.8, 0.5, 0.6)))
            number = int(column.name[1:])
            is_flag = number <= _N_FLAGS
            weights = main + float(rng.normal(0, 0.1)), side
            level = 0.2 if is_flag else base + float(rng.normal(0, 0.2))
            slope = float(rng.uniform(*((0.3, 0.5) if is_flag else (0.7, 1.3))))
            is_money = any(low <= number <= high for low, high in _load_tables()["money"])
            recipe = VRecipe(group, (first, second), weights, level, slope, is_money)
            recipes[column.name] = recipe
    return recipes


class _Columns:
    """Writes the columns of one file in their genuine types, for some rows of the activity."""

    def __init__(
        self,
        customers: world.Customers,
        activity: world.Activity,
        rows: Array,
        missing: Mapping[float, Array],
        rng: Generator,
    ) -> None:
        """`missing` has a mask of all transactions for each missing rate."""
        self.customers, self.rng = customers, rng
        self.activity, self.ids, self.n = activity.take(rows), FIRST_ID + rows, len(rows)
        self.novelty = self.activity.behaviour[:, world.NOVELTY]
        masks = {rate: mask[rows] for rate, mask in missing.items()}
        with_missing = (column for column in load_ieee_columns() if column.missing_rate > 0)
        self.masks = {column.name: masks[column.missing_rate] for column in with_missing}

    def build(self, file: str) -> pl.DataFrame:
        """All columns of the transaction or the identity file, in genuine order."""
        families = [self._scores, self._familiarity, self._networks, self._devices]
        if file == "transaction":
            families = [self._basics, self._cards, self._addresses, self._emails]
            families += [self._counts, self._days, self._matches, self._v_columns]
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
        table = pl.Series(name, [*levels, None])
        return table.gather(np.where(codes < 0, len(levels), codes).astype(np.uint32))

    def _draw(self, name: str, n: int, steepness: float) -> Array:
        """Random level numbers [n] of a categorical column."""
        return _draw_levels(n, len(levels_of(name)), steepness, self.rng)

    def _basics(self) -> Iterator[pl.Series]:
        activity = self.activity
        yield pl.Series("isFraud", (activity.episode != world.NONE).astype(np.int64))
        yield pl.Series("TransactionDT", activity.seconds.astype(np.int64))
        yield self._numbers("TransactionAmt", activity.amount)
        yield pl.Series("ProductCD", world.PRODUCTS).gather(activity.product.astype(np.uint32))

    def _cards(self) -> Iterator[pl.Series]:
        """The card number and the columns that follow from it."""
        card, numbers = self.customers.card[self.activity.customer], self.customers.card_numbers
        steepness, shares = _load_tables()["card_steepness"], _load_tables()["card_shares"]
        yield pl.Series("card1", numbers[card].astype(np.int64))
        for name in ("card2", "card3", "card4", "card5", "card6"):
            n_levels = len(levels_of(name))
            seen = np.bincount(card[~self.masks[name]], minlength=len(numbers)) > 0
            if name in shares:
                drawn = self.rng.choice(n_levels, len(numbers), p=shares[name])
            else:
                drawn = self._draw(name, len(numbers), steepness[name])
            by_card = _cover_levels(np.where(seen, drawn, -1), n_levels, self.rng)
            yield self._categories(name, by_card[card])

    def _addresses(self) -> Iterator[pl.Series]:
        """Billing region and country, and distances, which grow away from home."""
        activity, customer, rng = self.activity, self.activity.customer, self.rng
        n_customers = len(self.customers)
        homes = self._draw("addr1", 2 * n_customers, 0.9).reshape(2, -1)
        home = np.where(activity.moved, homes[1][customer], homes[0][customer])
        countries = self._draw("addr2", n_customers, 4.0)
        abroad = activity.away & (rng.random(self.n) < 0.15)
        country = np.where(abroad, self._draw("addr2", self.n, 1.0), countries[customer])
        region = np.where(activity.away, self._draw("addr1", self.n, 0.6), home)
        yield self._categories("addr1", region, cover=True)
        yield self._categories("addr2", country, cover=True)
        for name, size in (("dist1", 1.6), ("dist2", 3.2)):
            logs = size + 0.5 * self.novelty + 1.4 * activity.away
            logs = logs + 1.3 * rng.standard_normal(self.n)
            yield self._numbers(name, np.minimum(np.floor(np.exp(logs)), 11_000))

    def _emails(self) -> Iterator[pl.Series]:
        """The purchaser's domain, which an intruder may change, and the recipient's."""
        activity, rng = self.activity, self.rng
        other = self._draw("P_emaildomain", self.n, 1.0)
        usual = self._draw("P_emaildomain", len(self.customers), 1.35)[activity.customer]
        changed = rng.random(self.n) < np.where(activity.episode == world.TAKEOVER, 0.3, 0.03)
        purchaser = np.where(changed, other, usual)
        is_gift = rng.random(self.n) < 0.15
        yield self._categories("P_emaildomain", purchaser, cover=True)
        recipient = np.where(is_gift, self._draw("P_emaildomain", self.n, 1.2), purchaser)
        yield self._categories("R_emaildomain", recipient, cover=True)

    def _counts(self) -> Iterator[pl.Series]:
        """C1 to C14: uses of the card, inflated by other users and by the behaviour."""
        activity, rng = self.activity, self.rng
        counts = {"last_day": activity.last_day, "last_month": activity.last_month}
        counts |= {"total": activity.n_before + 1, "one": np.ones(self.n)}
        for name, (count, source, size, mostly_zero) in _load_tables()["counts"].items():
            noise = 0.6 * rng.standard_normal(self.n, np.float32)
            inflation = 0.45 * activity.behaviour[:, world.HABITS.index(source)] + noise
            is_zero = _is_among(activity.product, mostly_zero) & (rng.random(self.n) < 0.97)
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
        time_of_day = np.round((activity.seconds % world.DAY) // 3600 / 24, 6)
        logs = 2.5 - 0.3 * self.novelty + 1.6 * rng.standard_normal(self.n)
        yield self._numbers("D8", np.minimum(np.floor(np.exp(logs)), 1700) + time_of_day)
        yield self._numbers("D9", time_of_day)

    def _matches(self) -> Iterator[pl.Series]:
        """Whether details agree, such as the names on the card and in the address."""
        for name, (logit, loss) in _load_tables()["matches"].items():
            chance = 1 / (1 + np.exp(loss * self.novelty - logit))
            yield self._categories(name, self.rng.random(self.n) < chance)
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
        pace = self.activity.behaviour[:, world.PACE]

        def add_noise(mean: Any, scale: float) -> Any:
            return mean + scale * rng.standard_normal(n)

        def excess(mean: Array, scale: float) -> Any:
            return np.trunc(np.exp(add_noise(mean, scale)) - 1)

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
        yield from (self._numbers(name, values) for name, values in scores.items())

    def _familiarity(self) -> Iterator[pl.Series]:
        """Whether device, account and the like were seen before; sometimes wrong."""
        score = 0.7 * self.novelty + 0.9 * self.activity.new_device
        score = score - 0.4 * np.log1p(self.activity.n_before)

        def is_unfamiliar(logit: float, weight: float) -> Array:
            chance: Array = 1 / (1 + np.exp(-logit - weight * score))
            return self.rng.random(self.n) < chance

        yield self._categories("id_12", is_unfamiliar(1.8, 0.3))
        is_unknown = self.rng.random(self.n) < 0.08
        yield self._categories("id_15", np.where(is_unknown, 2, is_unfamiliar(0.3, 0.8)))
        for name, (logit, weight) in _load_tables()["unfamiliar"].items():
            yield self._categories(name, is_unfamiliar(logit, weight))

    def _networks(self) -> Iterator[pl.Series]:
        """Codes of the customer's network and settings, which change away from home."""
        elsewhere = self.activity.away | (self.rng.random(self.n) < 0.15)
        for name, steepness in _load_tables()["network_steepness"].items():
            usual = self._draw(name, len(self.customers), steepness)
            other = self._draw(name, self.n, steepness)
            codes = np.where(elsewhere, other, usual[self.activity.customer])
            yield self._categories(name, codes, cover=True)

    def _devices(self) -> Iterator[pl.Series]:
        """Each customer has a device, its replacement, and a stranger's device."""
        activity, rng, tables = self.activity, self.rng, _load_tables()
        n_devices = 3 * len(self.customers)
        which = np.where(activity.new_device, 2, activity.replaced_device)
        device = which * len(self.customers) + activity.customer
        kind = rng.choice(len(_DEVICE_SHARES), n_devices, p=_DEVICE_SHARES)
        yield self._categories("DeviceType", _IS_MOBILE[kind][device])
        for name, patterns in tables["device_patterns"].items():
            codes = np.empty(n_devices, np.int64)
            texts = list(map(str, levels_of(name)))
            for number, pattern in enumerate(patterns):
                able = np.array([i for i, text in enumerate(texts) if re.match(pattern, text)])
                own = np.flatnonzero(kind == number)
                steepness = tables["device_steepness"][name][number]
                codes[own] = able[_draw_levels(len(own), len(able), steepness, rng)]
            yield self._categories(name, codes[device], cover=True)
        yield self._categories("id_33", self._draw("id_33", n_devices, 1.1)[device], cover=True)
