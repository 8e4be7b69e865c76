"""The transaction file of the simulated IEEE-CIS data, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.ieee_columns import ieee_columns
from turncoat.data.simulators.ieee_engineered import count_columns, v_columns
from turncoat.data.simulators.ieee_episodes import NONE, TAKEOVER
from turncoat.data.simulators.ieee_levels import cover_levels, draw_levels, levels_of
from turncoat.data.simulators.ieee_lives import Lives
from turncoat.data.simulators.ieee_people import DAY, NOVELTY, PRODUCTS, People
from turncoat.data.simulators.ieee_series import categories, numbers, two_levels

FIRST_ID = 2_987_000

_CARD_STEEPNESS = {"card2": 0.9, "card3": 3.2, "card5": 1.3}
_CARD_SHARES = {"card4": (0.653, 0.321, 0.014, 0.012), "card6": (0.747, 0.2528, 0.0001, 0.0001)}
_ANCHORED = (
    "D4",
    "D6",
    "D10",
    "D11",
    "D12",
    "D13",
    "D14",
    "D15",
)  # days since another first: of the address, the e-mail, ...
_MATCHES = {  # the chance that details match, as a logit, and how much novelty takes from it
    "M1": (6.0, 0.5),
    "M2": (2.3, 0.5),
    "M3": (1.4, 0.4),
    "M5": (-0.2, -0.3),
    "M6": (-0.2, 0.3),
    "M7": (-1.8, 0.2),
    "M8": (-0.5, 0.3),
    "M9": (1.8, 0.4),
}


def transactions(
    people: People, lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> pl.DataFrame:
    """All genuine columns, in genuine order."""
    columns: dict[str, pl.Series] = {}
    for family in (
        _what_happened(lives),
        _cards(people, lives, empty, rng),
        _addresses(people, lives, empty, rng),
        _emails(people, lives, empty, rng),
        count_columns(lives, rng),
        _days(people, lives, empty, rng),
        _matches(lives, empty, rng),
        v_columns(lives, empty, rng),
    ):
        columns |= {column.name: column for column in family}
    return pl.DataFrame(
        [columns[fact.name] for fact in ieee_columns() if fact.file == "transaction"]
    )


def _empty(empty: Mapping[float, Array], name: str) -> Array:
    return empty[next(fact.missing_rate for fact in ieee_columns() if fact.name == name)]


def _what_happened(lives: Lives) -> Iterator[pl.Series]:
    yield pl.Series("TransactionID", FIRST_ID + np.arange(len(lives), dtype=np.int64))
    yield pl.Series("isFraud", (lives.episode != NONE).astype(np.int64))
    yield pl.Series("TransactionDT", lives.seconds.astype(np.int64))
    yield numbers("TransactionAmt", lives.amount)
    yield (
        pl.Series("ProductCD", PRODUCTS, dtype=pl.String)
        .gather(lives.product.astype(np.uint32))
        .alias("ProductCD")
    )


def _cards(
    people: People, lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """The card number and what follows from it."""
    card = people.card[lives.person]
    yield pl.Series("card1", people.card_numbers[card].astype(np.int64))
    for name in ("card2", "card3", "card4", "card5", "card6"):
        n_levels, n_cards, missing = (
            len(levels_of(name)),
            len(people.card_numbers),
            _empty(empty, name),
        )
        seen = np.bincount(card[~missing], minlength=n_cards) > 0
        if name in _CARD_SHARES:
            drawn = rng.choice(n_levels, n_cards, p=_CARD_SHARES[name])
        else:
            drawn = draw_levels(n_cards, n_levels, _CARD_STEEPNESS[name], rng)
        of_card = cover_levels(np.where(seen, drawn, -1), n_levels, rng)
        yield categories(name, of_card[card], missing)


def _addresses(
    people: People, lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """Region and country of billing, and distances, which grow away from home."""
    n_regions, n_countries = len(levels_of("addr1")), len(levels_of("addr2"))
    homes = draw_levels(2 * len(people), n_regions, 0.9, rng).reshape(2, -1)
    home = np.where(lives.moved, homes[1][lives.person], homes[0][lives.person])
    countries = draw_levels(len(people), n_countries, 4.0, rng)
    abroad = lives.away & (rng.random(len(lives)) < 0.15)
    country = np.where(
        abroad, draw_levels(len(lives), n_countries, 1.0, rng), countries[lives.person]
    )
    region = np.where(lives.away, draw_levels(len(lives), n_regions, 0.6, rng), home)
    yield categories("addr1", region, _empty(empty, "addr1"), rng)
    yield categories("addr2", country, _empty(empty, "addr2"), rng)
    for name, size in (("dist1", 1.6), ("dist2", 3.2)):
        logs = (
            size
            + 0.5 * lives.behaviour[:, NOVELTY]
            + 1.4 * lives.away
            + 1.3 * rng.standard_normal(len(lives))
        )
        yield numbers(name, np.minimum(np.floor(np.exp(logs)), 11_000), _empty(empty, name))


def _emails(
    people: People, lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """The domain of the purchaser, which an intruder may change, and of the recipient, mostly the same."""
    n_levels = len(levels_of("P_emaildomain"))
    other = draw_levels(len(lives), n_levels, 1.0, rng)
    usual = draw_levels(len(people), n_levels, 1.35, rng)[lives.person]
    changed = rng.random(len(lives)) < np.where(lives.episode == TAKEOVER, 0.3, 0.03)
    purchaser = np.where(changed, other, usual)
    gift = rng.random(len(lives)) < 0.15
    yield categories("P_emaildomain", purchaser, _empty(empty, "P_emaildomain"), rng)
    recipient = np.where(gift, draw_levels(len(lives), n_levels, 1.2, rng), purchaser)
    yield categories("R_emaildomain", recipient, _empty(empty, "R_emaildomain"), rng)


def _days(
    people: People, lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """Time deltas in days. The day less D1 is the day of the card's first use: one number for each person."""
    n = len(lives)
    novelty = lives.behaviour[:, NOVELTY]
    yield numbers("D1", lives.known, _empty(empty, "D1"))
    yield numbers("D2", np.where(lives.known > 0, lives.known, np.nan), _empty(empty, "D2"))
    yield numbers("D3", np.floor(lives.since), _empty(empty, "D3"))
    for name in ("D5", "D7"):
        same_kind = rng.random(n) < 0.8
        yield numbers(
            name,
            np.where(same_kind, np.floor(lives.since), np.floor(3 * lives.since)),
            _empty(empty, name),
        )
    for name in _ANCHORED:
        later = np.where(
            rng.random(len(people)) < 0.5,
            0.0,
            np.floor(rng.random(len(people)) * (people.tenure + 1)),
        )
        days = np.maximum(lives.known - later[lives.person], 0.0)
        reset = rng.random(n) < 1 / (
            1 + np.exp(3.2 - 0.7 * novelty)
        )  # what is new is first seen now
        yield numbers(name, np.where(reset, 0.0, days), _empty(empty, name))
    of_day = (lives.seconds % DAY) // 3600 / 24
    long_ago = np.floor(np.exp(2.5 - 0.3 * novelty + 1.6 * rng.standard_normal(n)))
    yield numbers("D8", np.minimum(long_ago, 1700) + np.round(of_day, 6), _empty(empty, "D8"))
    yield numbers("D9", np.round(of_day, 6), _empty(empty, "D9"))


def _matches(
    lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """Whether details agree: names on the card and the address, and the like."""
    novelty = lives.behaviour[:, NOVELTY]
    for name, (logit, taken) in _MATCHES.items():
        chance = 1 / (1 + np.exp(taken * novelty - logit))
        yield two_levels(name, rng.random(len(lives)) < chance, _empty(empty, name))
    score = 0.5 * novelty + rng.standard_normal(len(lives))
    yield categories(
        "M4", np.where(score < 0.3, 0, np.where(score < 0.8, 1, 2)), _empty(empty, "M4")
    )
