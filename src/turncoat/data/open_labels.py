"""The last days of a table, whose labels are still open.

A fraud is known once it is reported, a genuine transaction only after a while without a report.
Until then the known labels are frauds alone, so nobody can learn or judge on those days.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_MIN_DAYS = 1.0  # labels of the latest day or so come in at any hour


def find_labelled_until(times: ArrayLike, labels: ArrayLike | None) -> float | None:
    """The time of the last known genuine transaction, if labels after it are open; else None.

    They are open if they cover more than a day, and most of them are unknown (-1).
    """
    if labels is None:
        return None
    seconds, marks = np.asarray(times, np.float64), np.asarray(labels)
    genuine = seconds[marks == 0]
    if genuine.size == 0:
        return None
    last = float(genuine.max())
    is_late = seconds > last
    is_long = seconds.max() - last > _MIN_DAYS * 86_400
    return last if is_long and 2 * int((marks[is_late] < 0).sum()) > is_late.sum() else None
