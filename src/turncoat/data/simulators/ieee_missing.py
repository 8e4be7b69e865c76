"""Which cells of the simulated IEEE-CIS data are empty: columns of equal missing rate are empty in the same rows."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from turncoat.arrays import Array
from turncoat.data.ieee_columns import ieee_columns
from turncoat.data.simulators.ieee_lives import Lives
from turncoat.data.simulators.ieee_people import PRODUCTS, People

_FORM, _DEVICE = (
    0,
    1,
)  # the two traits of a person: leaves the order form, or the device's answers, empty

# Products for which a block tends to be empty, by the first column of the block. Other blocks are empty at random.
_EMPTY_FOR = {
    "addr1": "C",
    "dist1": "CRHS",
    "dist2": "W",
    "P_emaildomain": "RH",
    "R_emaildomain": "W",
    "D4": "CRHS",
    "D6": "W",
    "D7": "W",
    "D8": "W",
    "D10": "C",
    "D11": "CRHS",
    "D12": "W",
    "D13": "W",
    "D14": "W",
    "D15": "C",
    "M1": "CRHS",
    "M4": "RHS",
    "M5": "CRHS",
    "M6": "CRHS",
    "M7": "CRHS",
    "M8": "CRHS",
    "V12": "C",
    "V35": "CRHS",
    "V53": "C",
    "V75": "C",
    "V138": "WC",
    "V143": "WC",
    "V167": "W",
    "V169": "W",
    "V217": "W",
    "V220": "W",
    "V322": "WC",
    "id_30": "C",
    "id_32": "C",
    "id_33": "C",
    "id_34": "C",
}
_ONLY_AFTER_ANOTHER = (
    "D3",
    "D5",
    "D7",
)  # time since an earlier transaction: empty at a person's first
_CERTAIN = 100.0


def empty_cells(people: People, lives: Lives, rng: np.random.Generator) -> Mapping[float, Array]:
    """For every missing rate of the genuine data, the rows [N] in which columns of that rate are empty.

    The rows are those of the highest leaning to be empty, which depends on the product, the person, the card and on chance,
    never on fraud; their number follows from the rate.
    """
    no_identity = _highest(_identity_leaning(people, lives, rng), _rate_of_identity())
    firsts = {
        column.missing_rate: column
        for column in reversed(ieee_columns())
        if column.missing_rate > 0
    }
    cells = {}
    for rate, column in firsts.items():
        trait = (
            _DEVICE
            if column.file == "identity" or _EMPTY_FOR.get(column.name, "").startswith("W")
            else _FORM
        )
        leaning = 0.9 * people.traits[lives.person, trait] + rng.standard_normal(len(lives))
        leaning += (
            5.0
            * np.array([product in _EMPTY_FOR.get(column.name, "") for product in PRODUCTS])[
                lives.product
            ]
        )
        if column.name.startswith("card"):
            leaning += (
                5.0 * rng.standard_normal(len(people.card_numbers))[people.card[lives.person]]
            )
        if column.name in _ONLY_AFTER_ANOTHER:
            leaning += _CERTAIN * (lives.place == 0)
        if column.name == "D2":
            leaning += _CERTAIN * (lives.known == 0)
        if rate >= _rate_of_identity():
            leaning += _CERTAIN * no_identity
        cells[rate] = _highest(leaning, rate)
    cells[_rate_of_identity()] = no_identity
    return cells


def _rate_of_identity() -> float:
    """The share of transactions without a row in the identity file."""
    return next(column.missing_rate for column in ieee_columns() if column.name == "id_01")


def _identity_leaning(people: People, lives: Lives, rng: np.random.Generator) -> Array:
    """Nearly all of W lacks a row of identity, and about a tenth of C."""
    by_product = np.array([8.0, 1.5, -4.0, -4.0, -2.0])[lives.product]
    leaning: Array = (
        by_product + 0.9 * people.traits[lives.person, _DEVICE] + rng.standard_normal(len(lives))
    )
    return leaning


def _highest(leaning: Array, rate: float) -> Array:
    """A mask of the rows of highest leaning, as many as the rate asks for."""
    n_empty = round(rate * len(leaning))
    mask = np.zeros(len(leaning), bool)
    if n_empty:
        mask[np.argpartition(leaning, len(leaning) - n_empty)[len(leaning) - n_empty :]] = True
    return mask
