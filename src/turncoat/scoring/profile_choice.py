"""Which columns, beside the amount, are worth a profile of the customer (docs/chains.md).

A cheap screen of all continuous columns on half of the customers names a few candidates. Each is
added if a chain of intruders from these customers then predicts the labels of the other half better
by more than one standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from turncoat.arrays import Array
from turncoat.data.transactions import Transactions
from turncoat.numerics import intruder
from turncoat.numerics.label_times import LabelTimes
from turncoat.panel import has_both_labels
from turncoat.scoring.intruder_fitting import CustomerRows, fit_intruder, fit_profile

_N_CANDIDATES = 3
_MAX_ROWS = 100_000  # of whole customers
_N_BINS = 12
_N_ITERATIONS = 10  # of EM while comparing


def choose_profile(
    data: Transactions, explained: Array, waits: LabelTimes, seed: int
) -> tuple[str, ...]:
    """The columns that get a profile: the amount first, none without one.

    `explained` [N] is the probability that another known cause makes a transaction fraud.
    """
    amount = data.schema.amount
    if amount is None:
        return ()
    chosen: tuple[str, ...] = (amount,)
    others = [name for name in data.schema.continuous if name != amount]
    if not others:
        return chosen
    rows = CustomerRows.sample(data, seed, _MAX_ROWS)
    is_train = _draw_half(np.bincount(rows.customers, rows.labels == 1), seed)
    train, test = (rows.take_customers(some) for some in (is_train, ~is_train))
    if not all(has_both_labels(some.labels) for some in (train, test)):
        return chosen
    candidates = screen_columns(data, train, others, explained)
    train, test = (some.add_columns(data, (amount, *candidates)) for some in (train, test))
    usable = train.find_known()
    if amount not in usable or len(usable) == 1:
        return chosen
    best = _predict_labels(train, test, chosen, explained, waits)
    for name in usable[1:]:
        found = _predict_labels(train, test, (*chosen, name), explained, waits)
        gains = found - best
        if gains.sum() > gains.std() * math.sqrt(len(gains)):
            chosen, best = (*chosen, name), found
    return chosen


def _draw_half(n_frauds: Array, seed: int) -> Array:
    """Every second customer [customers], by number of frauds and then at random."""
    chance = np.random.default_rng(seed).random(len(n_frauds))
    is_drawn = np.zeros(len(n_frauds), np.bool_)
    is_drawn[np.lexsort((chance, n_frauds))[::2]] = True
    return is_drawn


def screen_columns(
    data: Transactions, rows: CustomerRows, names: Sequence[str], explained: Array
) -> list[str]:
    """The columns whose distance from the customer's own mean differs most on unexplained frauds.

    Measured by the divergence of its distribution on frauds from that on other rows, less what
    chance would make of as few frauds.
    """
    frauds = np.where(rows.labels == 1, 1.0 - explained[rows.places], 0.0)
    others = (rows.labels == 0).astype(np.float64)
    found = []
    for name in names:
        column = data.numbers[name][data.file_rows[rows.places]]
        known = ~np.isnan(column)
        n_frauds, n_others = frauds[known].sum(), others[known].sum()
        if n_frauds < 1.0 or n_others < _N_BINS:
            continue
        distances = _measure_distances(column[known], rows.customers[known], others[known])
        edges = np.quantile(distances, np.arange(1, _N_BINS) / _N_BINS)
        bins = np.searchsorted(edges, distances, "right")
        shares = [
            (np.bincount(bins, weights, _N_BINS) + 0.5) / (weights.sum() + 0.5 * _N_BINS)
            for weights in (frauds[known], others[known])
        ]
        divergence = float((shares[0] * np.log(shares[0] / shares[1])).sum())
        gain = n_frauds * divergence - 0.5 * (_N_BINS - 1)
        if gain > 0:
            found.append((-gain, name))
    return [name for _, name in sorted(found)[:_N_CANDIDATES]]


def _measure_distances(values: Array, customers: Array, weights: Array) -> Array:
    """Values less the customer's mean over the rows with weight, on a scale without heavy tails."""
    sizes = np.abs(values)
    unit = float(np.median(sizes[sizes > 0])) if (sizes > 0).any() else 1.0
    scaled = np.arcsinh(values / unit)
    totals = np.bincount(customers, weights * scaled), np.bincount(customers, weights)
    means = totals[0] / np.maximum(totals[1], 1.0)
    return np.asarray(scaled - means[customers])


def _predict_labels(
    train: CustomerRows,
    test: CustomerRows,
    names: tuple[str, ...],
    explained: Array,
    waits: LabelTimes,
) -> Array:
    """Log likelihoods of the test labels by customer, with profiles of these columns."""
    train, test = train.select_columns(names), test.select_columns(names)
    other = explained[train.places]
    chain = fit_intruder(train, fit_profile(train), other, waits, n_iterations=_N_ITERATIONS)
    outputs = np.zeros((len(intruder.OUTPUTS), test.n_rows))
    own = chain.tables, waits, outputs, np.empty(test.columns.shape)
    intruder.replay_intruder(test.offsets, test.times, test.columns, test.labels, *own)
    risk = outputs[intruder.OUTPUTS.index("intruder")]
    safe = np.clip((1.0 - risk) * (1.0 - explained[test.places]), 1e-9, 1.0 - 1e-9)
    terms = np.select([test.labels == 1, test.labels == 0], [np.log1p(-safe), np.log(safe)], 0.0)
    return np.bincount(test.customers, terms, len(test.offsets) - 1)
