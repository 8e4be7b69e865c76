"""Values of the categorical columns of the simulated IEEE-CIS data, most frequent first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np

from turncoat.arrays import Array
from turncoat.data.presets import load_ieee_columns


def split_list(text: str, separator: str | None = None) -> list[str]:
    """The items of a text, by white space or by a separator."""
    return [item.strip() for item in text.split(separator)]


WORLD_SEED = 20171201  # shared by all samples: frequent values and recipes of the V columns

_MAX_COVERED = 0.05  # share of rows that may be spent on values nobody happened to draw

# Numeric codes: smallest value, largest value, most frequent values.
_CODES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "card2": (100, 600, (321, 111, 555, 490, 583, 170, 194, 545, 360, 514)),
    "card3": (100, 231, (150, 185)),
    "card5": (100, 237, (226, 224, 166, 102, 117, 138, 195, 137, 126, 219)),
    "addr1": (
        100,
        540,
        (299, 325, 204, 264, 330, 315, 441, 272, 123, 126, 184, 337, 191, 181, 143, 476),
    ),
    "addr2": (10, 102, (87, 60, 96, 32, 65)),
    "id_13": (10, 64, (52, 49, 64, 33, 14, 27)),
    "id_17": (100, 229, (166, 225, 102, 159, 100)),
    "id_18": (10, 29, (15, 13, 12, 18, 17)),
    "id_19": (100, 671, (266, 410, 427, 529, 312, 153)),
    "id_20": (100, 661, (507, 222, 325, 533, 214, 597)),
    "id_21": (100, 854, (252, 228, 849, 225)),
    "id_22": (10, 44, (14, 41, 33, 21)),
    "id_24": (11, 26, (11, 15, 16, 21)),
    "id_25": (100, 548, (321, 205, 426, 501)),
    "id_26": (100, 216, (161, 184, 142, 100)),
}
_KNOWN: dict[str, tuple[str | float, ...]] = {  # values with very unequal frequencies
    "card4": ("visa", "mastercard", "american express", "discover"),
    "card6": ("debit", "credit", "debit or credit", "charge card"),
    "id_32": (24.0, 32.0, 16.0, 0.0),
    "id_34": ("match_status:2", "match_status:1", "match_status:0", "match_status:-1"),
    "id_23": ("IP_PROXY:TRANSPARENT", "IP_PROXY:ANONYMOUS", "IP_PROXY:HIDDEN"),
}
_TIME_ZONES = (
    *(-300, -360, -480, -420, -600, 60, 0, -240, -180, 120, -660, -540, -210, -120, -60, 180, 210),
    *(240, 270, 300, 330, 345, 480, 540, 600),
)  # minutes
_EMAILS = split_list("""
    gmail.com yahoo.com hotmail.com anonymous.com aol.com comcast.net icloud.com outlook.com
    msn.com att.net live.com sbcglobal.net verizon.net ymail.com bellsouth.net yahoo.com.mx
    me.com cox.net optonline.net charter.net live.com.mx rocketmail.com mail.com earthlink.net
    gmail outlook.es mac.com juno.com aim.com hotmail.es roadrunner.com windstream.net
    hotmail.fr frontier.com embarqmail.com web.de netzero.com twc.com prodigy.net.mx
    centurylink.net netzero.net frontiernet.net q.com suddenlink.net cfl.rr.com sc.rr.com
    cableone.net gmx.de yahoo.fr yahoo.es hotmail.co.uk protonmail.com yahoo.de ptd.net live.fr
    yahoo.co.uk hotmail.de servicios-ta.com yahoo.co.jp scranton.edu
""")
_SYSTEMS = {
    "Windows": "10 7 8.1 8 Vista XP",
    "iOS": "11.2.1 11.1.2 11.4.0 11.3.0 11.2.6 10.3.3 11.2.5 11.2.2 11.4.1 11.0.3 11.2.0 11.1.1 "
    "11.3.1 10.2.1 9.3.5 11.0.2 10.3.2 10.3.1 10.1.1 11.0.1 11.0.0 10.2.0 10.0.2 11.1.0",
    "Mac OS X": "10_13_2 10_12_6 10_11_6 10_13_4 10_13_3 10_13_1 10_10_5 10_9_5 10_13_5 10_12_5 "
    "10_8_5 10_7_5 10_12_3 10_6_8 10.13 10_12_4 10_12_2 10_11_5 10_13_6 10.12 10_11_4 10_12_1 "
    "10.11 10_11_3 10_12 10.10 10_13 10.9 10.6",
    "Android": "7.0 8.0.0 6.0.1 5.1.1 7.1.1 4.4.2 5.0.2 7.1.2 8.1.0 6.0 5.0",
    "": "Linux,other,func,Windows Phone,Chrome OS",
}
_PHONES = split_list("""
    SM-J700M SM-G610M SM-G531H SM-J500M SM-G570M SM-J710MN SM-G935F SM-G950U SM-G930V SM-A300H
    SM-N950U SM-G955U SM-J327P SM-G920V SM-A720F SM-G532M SM-J730GM SM-T560NU SM-N920A SM-S920L
    ALE-L23 TRT-LX3 CAM-L03 RNE-L03 ANE-LX3 WAS-LX3 PRA-LX3 VNS-L23 FRD-L14 LG-M250 LG-K430
    LG-D320 LG-K540 LGMS210 LGLS777 VS501 Moto-G4 Moto-E4-Plus moto-g(5) XT1635-02 XT1650 Z831
    Z981 Z982 BLADE-V8 HTC-One-M9 HTC-Desire-626s Pixel Pixel-XL Pixel-2 Nexus-5X Nexus-6P
    ONEPLUS-A5010 Redmi-Note-4 Redmi-4X Hisense-L675 Ilium-X220 F3113 E5306 G3123 KFAUWI KFFOWI
    M4-SS4457 5010G 4047G 5012G
""")
_BUILDS = split_list("""
    NRD90M MMB29K MMB29M LMY47X NMF26X LMY47V KOT49H NRD90U LRX22G OPM1.171019.011 R16NW LMY49J
    NJH47F NPJS25.93-14-18 MRA58K HUAWEI KTU84P NOF26V NPN25.137-93 OPR6.170623.013 LRX22C
    LVY48F M1AJQ NHG47K NPPS26.102-49-11 OPD1.170816.010 MRA58M JDQ39 N2G47H
""")
_DEVICES = "Windows,iOS Device,MacOS,Trident/7.0,rv:11.0,rv:57.0,rv:59.0,rv:58.0,Linux,rv:52.0"
_SCREENS = (
    "1920x1080 1366x768 1334x750 2208x1242 1440x900 1600x900 2048x1536 1280x800 2436x1125 "
    "1680x1050 1136x640 1280x1024"
)


@cache
def list_levels(name: str) -> tuple[str | float, ...]:
    """All values of a categorical column, as many as the genuine column has."""
    column = next(column for column in load_ieee_columns() if column.name == name)
    if known := _KNOWN.get(name) or column.levels:
        return known
    values: Sequence[str | float]
    if name in _CODES:
        low, high, frequent = _CODES[name]
        others = [code for code in _shuffle(range(low, high + 1)) if code not in frequent]
        values = [float(code) for code in (*frequent, *others)]
    elif name.endswith("emaildomain"):
        values = _EMAILS
    elif name == "id_14":
        values = [float(minutes) for minutes in _TIME_ZONES]
    elif name == "id_33":
        frequent_screens = _SCREENS.split()
        sizes = product(range(800, 3900, 80), range(480, 2200, 90))
        screens = [f"{w}x{h}" for w, h in sizes if 1.2 < w / h < 2.4]
        shuffled = (screens[i] for i in _shuffle(range(len(screens))))
        values = [*frequent_screens, *(s for s in shuffled if s not in frequent_screens)]
    elif name == "DeviceInfo":
        phones = [f"{model} Build/{build}" for model, build in product(_PHONES, _BUILDS)]
        values = [*_DEVICES.split(","), *(phones[i] for i in _shuffle(range(len(phones))))]
    else:
        values = {"id_30": _list_systems, "id_31": _list_browsers}[name]()
    return tuple(values[: column.n_categories])


def draw_levels(n: int, n_levels: int, steepness: float, rng: np.random.Generator) -> Array:
    """Level numbers [n] with heavy-tailed frequencies, lower numbers more often."""
    weights = np.arange(1, n_levels + 1) ** -steepness
    return rng.choice(n_levels, n, p=weights / weights.sum())


def cover_levels(codes: Array, n_levels: int, rng: np.random.Generator) -> Array:
    """The codes [n], with levels nobody drew placed once on a few rows; -1 stays missing."""
    counts = np.bincount(codes[codes >= 0], minlength=n_levels)
    absent = np.flatnonzero(counts == 0)[: int(_MAX_COVERED * counts.sum())]
    rows = rng.permutation(np.flatnonzero(codes == counts.argmax()))[: len(absent)]
    covered = codes.copy()
    covered[rows] = absent[: len(rows)]
    return covered


def _shuffle(values: Sequence[int]) -> list[int]:
    shuffled = np.random.default_rng(WORLD_SEED).permutation(np.asarray(values))
    return [int(value) for value in shuffled]


def _list_systems() -> list[str]:
    """Operating systems, alternating between the families."""
    families = [
        [f"{family} {version}".strip() for version in versions.split("," if not family else None)]
        for family, versions in _SYSTEMS.items()
    ]
    longest = max(map(len, families))
    return [family[i] for i in range(longest) for family in families if i < len(family)]


def _list_browsers() -> list[str]:
    versions = (63, 65, 64, 62, 66, 67, 61, 60, 59, 55, 49, 58)
    on = ("", " for android", " for ios")
    chrome = [f"chrome {v}.0{suffix}" for v in versions for suffix in on]
    safari = [f"{kind}safari {v}.0" for v in (11, 10, 9, 8) for kind in ("mobile ", "")]
    firefox = [f"firefox {v}.0" for v in (*range(57, 64), *range(56, 46, -1))]
    edge = [f"edge {v}.0" for v in (16, 15, 17, 14, 13)]
    samsung_versions = split_list("6.2 6.4 5.4 7.0 4.0 5.2 3.3 4.2 7.2 6.0")
    samsung = [f"samsung browser {version}" for version in samsung_versions]
    ie = ["ie 11.0 for desktop", "ie 11.0 for tablet", "ie 10.0 for desktop"]
    rest = split_list(
        """
        google search application 48.0, google search application 52.0, android webview 4.0,
        android browser 4.0, chrome, safari generic, firefox generic, mobile safari generic,
        chrome generic, opera generic, edge, other
        """,
        ",",
    )
    rest += [f"opera {v}.0" for v in range(49, 54)]
    rest += [f"chrome {v}.0 for android" for v in range(35, 49)]
    rest += [f"chrome {v}.0" for v in range(39, 49)] + ["google nexus", "google pixel"]
    rest += [f"aol {v}.0" for v in (9, 10, 11)] + [f"uc browser {v}.0" for v in (11, 12)]
    rest += [f"silk {v}.0" for v in range(60, 70)]
    first = [*chrome[:3], *safari[:3], ie[0], *edge[:2], *firefox[:2]]
    return [*first, *chrome[3:], *safari[3:], *samsung, *firefox[2:], *ie[1:], *edge[2:], *rest]
