"""The last days of a table, whose labels are still open.

A fraud is known once it is reported, a genuine transaction only after a while without a report.
Until then the known labels are frauds alone, so nobody can learn or judge on those days.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from turncoat.arrays import Array

_MIN_DAYS = 1.0  # labels of the latest day or so come in at any hour
_MAX_RATIO = 0.05  # of the shares of genuine rows, after and before labels end
_MAX_LATE_RATIO = 0.01  # the same in the later half, where reviewed alerts would go on
_LATEST = 0.999  # quantile of times that ends a table; single later ones may be typing errors
_MIN_GAIN = 10.0  # nats by which two shares must explain the labels better than one


def find_labelled_until(times: ArrayLike, labels: ArrayLike | None) -> float | None:
    """The time until which genuine transactions are known, if labels after it are open; else None.

    They are open if they cover more than a day, most of them are unknown (-1), and hardly any is
    genuine, beyond chance: single ones that were settled early do not count. Genuine ones that go
    on to the end, as where only alerts are reviewed, are labels to learn from.
    """
    if labels is None:
        return None
    seconds, marks = np.asarray(times, np.float64), np.asarray(labels)
    order = np.argsort(seconds, kind="stable")
    seconds, marks = seconds[order], marks[order]
    is_genuine, n_rows = marks == 0, len(marks)
    n_genuine = int(is_genuine.sum())
    if n_genuine == 0:
        return None
    ends = np.unique(np.searchsorted(seconds, seconds[is_genuine], "right"))
    before, rows_later = np.cumsum(is_genuine)[ends - 1], n_rows - ends
    later = n_genuine - before
    is_rare = later * ends <= _MAX_RATIO * before * rows_later
    is_rare &= rows_later > 0
    log_likelihoods = _log_likelihood(before, ends) + _log_likelihood(later, rows_later)
    best = np.argmax(np.where(is_rare, log_likelihoods, -np.inf))
    gain = log_likelihoods[best] - _log_likelihood(np.array(n_genuine), np.array(n_rows))
    end, n_later = int(ends[best]), int(rows_later[best])
    last, n_unknown = float(seconds[end - 1]), int((marks[end:] < 0).sum())
    is_long = seconds[-1] - last > _MIN_DAYS * 86_400
    n_late = n_rows - (end + n_later // 2)
    n_late_genuine = int(is_genuine[n_rows - n_late :].sum())
    goes_on = n_late_genuine > max(1.0, _MAX_LATE_RATIO * n_late * before[best] / end)
    is_open = is_long and is_rare[best] and gain >= _MIN_GAIN and 2 * n_unknown > n_later
    return last if is_open and not goes_on else None


def count_open_days(times: ArrayLike, until: float) -> float:
    """Days from the time until which labels are known to the end of a table."""
    return float(np.quantile(np.asarray(times, np.float64), _LATEST) - until) / 86_400


def _log_likelihood(n_genuine: Array, n_rows: Array) -> Array:
    """Of genuine rows among rows where each is as likely; the best cut between two shares."""
    others = n_rows - n_genuine
    total = xlogy(n_genuine, n_genuine) + xlogy(others, others) - xlogy(n_rows, n_rows)
    return np.asarray(total)
