"""The identity file of the simulated IEEE-CIS data: devices, networks, and answers about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import polars as pl

from turncoat.arrays import Array
from turncoat.data.ieee_columns import ieee_columns
from turncoat.data.simulators.ieee_levels import draw_levels, levels_of
from turncoat.data.simulators.ieee_lives import Lives
from turncoat.data.simulators.ieee_people import NOVELTY, PACE, People
from turncoat.data.simulators.ieee_series import categories, numbers, two_levels
from turncoat.data.simulators.ieee_transactions import FIRST_ID

_CLASSES = ("windows", "mac", "ios", "android")
_CLASS_SHARES = (0.46, 0.11, 0.2, 0.23)
_MOBILE = np.array([False, False, True, True])
_ON_MOBILE = ("for android", "for ios", "for tablet")
_BELONGS: dict[
    str, tuple[Callable[[str], bool], ...]
] = {  # which levels each class of device can show
    "DeviceInfo": (
        lambda level: level == "Windows" or level.startswith(("Trident", "rv:", "Linux")),
        lambda level: level == "MacOS",
        lambda level: level == "iOS Device",
        lambda level: "Build/" in level,
    ),
    "id_30": (
        lambda level: (
            level.startswith("Windows") or level in ("Linux", "other", "func", "Chrome OS")
        ),
        lambda level: level.startswith("Mac"),
        lambda level: level.startswith("iOS"),
        lambda level: level.startswith("Android"),
    ),
    "id_31": (
        lambda level: (
            level.startswith(("chrome", "ie", "edge", "firefox", "opera", "aol", "other"))
            and not level.endswith(_ON_MOBILE)
        ),
        lambda level: (
            level.startswith(("safari", "firefox"))
            or level in ("chrome 63.0", "chrome 65.0", "chrome 64.0", "chrome 62.0")
        ),
        lambda level: level.startswith("mobile safari") or level.endswith("for ios"),
        lambda level: (
            level.endswith("for android")
            or level.startswith(("samsung", "android", "google", "silk"))
        ),
    ),
}
_STEEPNESS = {
    "DeviceInfo": (2.0, 1.0, 1.0, 0.7),
    "id_30": (1.5, 0.8, 0.8, 0.8),
    "id_31": (1.1, 1.3, 1.5, 1.1),
}  # by class
_NETWORKS = {
    "id_13": 1.2,
    "id_14": 1.5,
    "id_17": 2.2,
    "id_18": 2.0,
    "id_19": 0.8,
    "id_20": 0.8,
}  # codes by steepness
_PROXIES = {"id_21": 0.8, "id_22": 2.0, "id_23": 1.0, "id_24": 1.5, "id_25": 0.8, "id_26": 0.8}
_SETTINGS = {"id_32": 2.5, "id_34": 2.0}


def identities(
    people: People, lives: Lives, empty: Mapping[float, Array], rng: np.random.Generator
) -> pl.DataFrame:
    """All genuine columns, in genuine order, for the transactions that have an identity."""
    facts = [fact for fact in ieee_columns() if fact.file == "identity"]
    rows = np.flatnonzero(~empty[next(fact.missing_rate for fact in facts if fact.name == "id_01")])
    masks = {fact.name: empty[fact.missing_rate][rows] for fact in facts if fact.missing_rate > 0}
    columns = {"TransactionID": pl.Series("TransactionID", FIRST_ID + rows.astype(np.int64))}
    for family in (
        _scores(lives.behaviour[rows], masks, rng),
        _familiar(lives, rows, masks, rng),
        _networks(people, lives, rows, masks, rng),
        _devices(people, lives, rows, masks, rng),
    ):
        columns |= {column.name: column for column in family}
    return pl.DataFrame([columns[fact.name] for fact in facts])


def _scores(
    behaviour: Array, masks: Mapping[str, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """The numeric answers, most of them whole and many of them zero."""
    novelty, pace = behaviour[:, NOVELTY], behaviour[:, PACE]

    def noise() -> Array:
        return rng.standard_normal(len(behaviour))

    yield numbers(
        "id_01", -5 * np.clip(np.floor(1 + 0.8 * novelty + 1.5 * noise()), 0, 20), masks["id_01"]
    )
    yield numbers(
        "id_02",
        np.clip(np.floor(np.exp(11.7 + 0.2 * novelty + 0.9 * noise())), 1, 999_595),
        masks["id_02"],
    )
    yield numbers("id_03", np.trunc(0.2 * pace + 0.6 * noise()), masks["id_03"])
    yield numbers("id_04", -np.clip(np.floor(0.2 * novelty + 0.5 * noise()), 0, 28), masks["id_04"])
    yield numbers(
        "id_05", np.clip(np.trunc(np.exp(0.3 * pace + 1.1 * noise()) - 1), -72, 52), masks["id_05"]
    )
    yield numbers(
        "id_06",
        -np.clip(np.trunc(np.exp(0.3 * novelty + 1.3 * noise()) - 1), 0, 100),
        masks["id_06"],
    )
    yield numbers("id_07", np.clip(np.trunc(14 + 11 * noise()), -46, 61), masks["id_07"])
    yield numbers("id_08", np.clip(np.trunc(-38 + 26 * noise()), -100, 0), masks["id_08"])
    yield numbers("id_09", np.clip(np.trunc(0.3 * pace + 0.7 * noise()), -36, 25), masks["id_09"])
    yield numbers(
        "id_10",
        -np.clip(np.trunc(np.exp(0.2 * novelty + 0.9 * noise()) - 1), 0, 100),
        masks["id_10"],
    )
    whole = rng.random(len(behaviour)) < 0.95
    yield numbers(
        "id_11",
        np.where(whole, 100.0, np.round(rng.uniform(90, 100, len(behaviour)), 2)),
        masks["id_11"],
    )


def _familiar(
    lives: Lives, rows: Array, masks: Mapping[str, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """Whether device, account and the like were seen before: mostly right about new devices, at times wrong."""
    n = len(rows)
    novelty = lives.behaviour[rows, NOVELTY]
    score = 0.7 * novelty + 0.9 * lives.new_device[rows] - 0.4 * np.log1p(lives.place[rows])

    def unfamiliar(logit: float, weight: float) -> Array:
        chance: Array = 1 / (1 + np.exp(-logit - weight * score))
        return rng.random(n) < chance

    yield two_levels("id_12", unfamiliar(1.8, 0.3), masks["id_12"])
    yield categories(
        "id_15", np.where(rng.random(n) < 0.08, 2, unfamiliar(0.3, 0.8)), masks["id_15"]
    )
    yield two_levels("id_16", unfamiliar(0.2, 0.5), masks["id_16"])
    yield two_levels("id_27", unfamiliar(-4.5, 0.3), masks["id_27"])
    yield two_levels("id_28", unfamiliar(0.4, 0.8), masks["id_28"])
    yield two_levels("id_29", unfamiliar(-0.2, 0.5), masks["id_29"])
    for name, logit, weight in (
        ("id_35", 0.5, -0.4),
        ("id_36", -2.8, 0.2),
        ("id_37", 1.2, -0.4),
        ("id_38", 0.0, -0.5),
    ):
        yield two_levels(name, unfamiliar(logit, weight), masks[name])


def _networks(
    people: People, lives: Lives, rows: Array, masks: Mapping[str, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """Codes that belong to a person's network and place, and change when away; proxies are rare."""
    person = lives.person[rows]
    elsewhere = lives.away[rows] | (rng.random(len(rows)) < 0.15)
    for name, steepness in {**_NETWORKS, **_PROXIES, **_SETTINGS}.items():
        n_levels = len(levels_of(name))
        usual = draw_levels(len(people), n_levels, steepness, rng)[person]
        yield categories(
            name,
            np.where(elsewhere, draw_levels(len(rows), n_levels, steepness, rng), usual),
            masks[name],
            rng,
        )


def _devices(
    people: People, lives: Lives, rows: Array, masks: Mapping[str, Array], rng: np.random.Generator
) -> Iterator[pl.Series]:
    """What the device says of itself: one device for each person, its replacement, and a strange one."""
    n_devices = 3 * len(people)
    which = np.where(lives.new_device, 2, lives.replaced_device) * len(people) + lives.person
    kind = rng.choice(len(_CLASSES), n_devices, p=_CLASS_SHARES)
    device = which[rows]
    yield two_levels("DeviceType", _MOBILE[kind][device], masks["DeviceType"])
    for name, belongs in _BELONGS.items():
        shown = np.empty(n_devices, np.int64)
        for number, fits in enumerate(belongs):
            levels = np.array(
                [place for place, level in enumerate(levels_of(name)) if fits(str(level))]
            )
            of_kind = np.flatnonzero(kind == number)
            shown[of_kind] = levels[
                draw_levels(len(of_kind), len(levels), _STEEPNESS[name][number], rng)
            ]
        yield categories(name, shown[device], masks[name], rng)
    screens = draw_levels(n_devices, len(levels_of("id_33")), 1.1, rng)
    yield categories("id_33", screens[device], masks["id_33"], rng)
