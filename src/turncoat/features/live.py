"""Rows in order, live: features and records of each in one compiled pass, by the functions that whole files go through."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.features import history
from turncoat.features.counterparties import advance_counterparty
from turncoat.features.history import advance
from turncoat.features.plan import LiveLayout
from turncoat.features.scaling import fill_row, flag_names
from turncoat.features.time_features import CONTINUOUS as MOMENT_FACTS
from turncoat.features.time_features import take_moment
from turncoat.numerics.jit import jit_exact

_OWN, _MOMENT = history.N_FACTS, len(MOMENT_FACTS)


class LiveRows(NamedTuple):
    """N rows as they were given."""

    cells: Array  # [N, raw continuous columns]
    hashes: Array  # [N, habit columns] uint32
    times: Array  # [N]
    label_follows: Array  # [N] bool
    has_counterparty: Array  # [N] bool: whether the row names a counterparty
    previous: Array  # [N, 2] the earlier row of the same customer, and of the same counterparty; -1 where there is none


class Records(NamedTuple):
    """The records of the rows' parties, which are advanced in place; those of a party with a previous row are that row's."""

    numbers: Array  # [N, 21]
    marks: Array  # [N, words] uint32
    counterparty_numbers: Array  # [N, 21], or [N, 0] where there is no counterparty
    counterparty_marks: Array
    counterparty_risk: Array


@jit_exact
def take_rows(
    rows: LiveRows, records: Records, layout: LiveLayout, continuous: Array, categorical: Array
) -> None:
    """Write the features of every row, given the records of its parties, and let it join those."""
    facts, codes = np.empty(layout.n_facts), np.empty(layout.n_fact_codes, np.int8)
    n_own_codes = 1 + 2 * rows.hashes.shape[1]
    for i in range(len(rows.times)):
        cells, names, time = rows.cells[i], rows.hashes[i], rows.times[i]
        raw = layout.raw
        n_missing = fill_row(cells, raw.scale, raw.places, raw.flags, continuous[i], categorical[i])
        n_missing += flag_names(
            categorical[i], layout.n_names, layout.flagged[0], layout.flagged[1]
        )
        if layout.n_facts == 0:
            continue
        customer, counterparty = rows.previous[i]
        if customer >= 0:
            records.numbers[i], records.marks[i] = (
                records.numbers[customer],
                records.marks[customer],
            )
        if counterparty >= 0:
            records.counterparty_numbers[i], records.counterparty_marks[i] = (
                records.counterparty_numbers[counterparty],
                records.counterparty_marks[counterparty],
            )
            records.counterparty_risk[i] = records.counterparty_risk[counterparty]
        amount = cells[layout.amount_place] if layout.amount_place >= 0 else math.nan
        missing = float(n_missing)
        advance(
            records.numbers[i],
            records.marks[i],
            time,
            amount,
            missing,
            names,
            facts[:_OWN],
            codes[:n_own_codes],
        )
        take_moment(
            time, n_missing, facts[_OWN : _OWN + _MOMENT], codes[n_own_codes : n_own_codes + 1]
        )
        second, second_codes = facts[_OWN + _MOMENT :], codes[n_own_codes + 1 :]
        if len(second) > 0 and rows.has_counterparty[i]:
            record = (
                records.counterparty_numbers[i],
                records.counterparty_marks[i],
                records.counterparty_risk[i],
            )
            theirs = names[layout.counterparty_names]
            follows = rows.label_follows[i]
            advance_counterparty(
                record,
                time,
                amount,
                missing,
                theirs,
                layout.delay,
                layout.base_rate,
                follows,
                second,
                second_codes,
            )
        else:
            second[:] = np.nan
            second_codes[:] = -1
        of_facts = layout.facts
        fill_row(
            facts, of_facts.scale, of_facts.places, of_facts.flags, continuous[i], categorical[i]
        )
        categorical[i, layout.first_fact :] = codes
