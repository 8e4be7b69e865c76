"""The limit of the Handbook's process: calibrated, causal, better the sooner labels are known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from benchmarks.handbook_limit import compute_limit
from sklearn.metrics import average_precision_score, log_loss

from tests.scoring.chains import BUSY, payments
from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.data.transactions import Transactions

N_DAYS = 90


@cache
def simulated() -> Transactions:
    return payments(12_000, 1, N_DAYS).transactions


@cache
def limit(delay_days: float) -> Array:
    return compute_limit(simulated(), BUSY, delay_days)


def test_the_limit_is_calibrated() -> None:
    labels = np.asarray(simulated().labels)
    found = limit(7)
    assert ((found >= 0) & (found <= 1)).all()
    error = np.sqrt((found * (1 - found)).sum())
    assert abs(found.sum() - labels.sum()) < 4 * error
    is_doubtful = (found > 0.05) & (found < 0.95)
    error = np.sqrt((found * (1 - found))[is_doubtful].sum())
    assert abs(found[is_doubtful].sum() - labels[is_doubtful].sum()) < 4 * error


def test_labels_that_are_known_sooner_tell_more() -> None:
    labels = np.asarray(simulated().labels)
    scores = [limit(days) for days in (1, 7, N_DAYS)]
    precisions = [average_precision_score(labels, one) for one in scores]
    losses = [log_loss(labels, one) for one in scores]
    assert precisions == sorted(precisions, reverse=True)
    assert losses == sorted(losses)
    assert precisions[0] > precisions[2] + 0.05


def test_neither_later_rows_nor_labels_that_are_not_known_yet_count() -> None:
    data = simulated()
    origin = np.floor(data.times.min() / DAY) * DAY
    now = origin + 50 * DAY
    labels = np.asarray(data.labels).copy()
    labels[data.times >= now - 7 * DAY] ^= 1
    changed = compute_limit(replace(data, labels=labels), BUSY, 7)
    is_earlier = data.times < now
    np.testing.assert_array_equal(changed[is_earlier], limit(7)[is_earlier])
    alone = compute_limit(data.take(np.flatnonzero(is_earlier)), BUSY, 7)
    np.testing.assert_allclose(alone, limit(7)[is_earlier], rtol=1e-12)
    assert (changed[data.times > now + DAY] != limit(7)[data.times > now + DAY]).any()
