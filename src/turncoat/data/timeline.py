"""Where parts of a split by time begin and end."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array

DAY = 86_400.0  # seconds
PARTS = ("fit", "selection", "calibration", "test")
MIN_FRAUDS = 10  # of each part, for a split by time to be chosen
BY_TIME, SIZED_BY_TIME = "by time", "by time, sized to the gap"


class Cuts(NamedTuple):
    """Where parts begin in the order of time, and where the rows before the gap end."""

    selection: int
    calibration: int
    gap: int
    test: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """Rows in the order of time, to be cut into parts of these shares."""

    shares: dict[str, float]  # of the rows, by part; the rest is for fitting
    n_rows: int  # N
    order: Array  # [n] of the rows that may be in a part
    times: Array  # [n] sorted
    n_frauds: Array  # [n + 1] known frauds among the first n rows

    @classmethod
    def sort(
        cls, times: Array, labels: Array | None, until: float, shares: dict[str, float]
    ) -> Timeline:
        """The rows [N] up to a time, in order."""
        order = np.argsort(times, kind="stable")
        order = order[times[order] <= until]
        is_fraud = np.zeros(order.size, bool) if labels is None else labels[order] == 1
        n_frauds = np.append(0, np.cumsum(is_fraud))
        return cls(shares, times.size, order, times[order], n_frauds)

    @property
    def days(self) -> float:
        """From the first row to the last."""
        return float(self.times[-1] - self.times[0]) / DAY

    @property
    def required(self) -> list[str]:
        """The parts that need rows."""
        return ["fit", *(part for part, share in self.shares.items() if share)]

    def place_parts(self, gap_s: float, *, is_sized: bool = False) -> Cuts:
        """Cut between different times. `is_sized`: shares are of the rows outside the gap."""
        n, share = self.times.size, self.shares["test"]
        test = gap = n
        unit: float = n  # rows that shares are of
        if share:
            place = min(round((1.0 - share) * n), n - 1)
            if is_sized:  # the first place from which on the test is small enough
                fits = partial(self._is_small_test, gap_s)
                place = min(bisect_left(range(n), True, key=fits), n - 1)
            test, gap = self._count_before(self.times[place]), self._find_gap(gap_s, place)
            unit = gap / (1.0 - share) if is_sized else n
        cuts, end, remaining = {}, gap, gap / unit if unit else 0.0
        for part in ("calibration", "selection"):  # backwards, so that later parts are fixed
            if self.shares[part]:
                remaining -= self.shares[part]
                place = min(max(round(remaining * unit), 0), n - 1)
                end = min(self._count_before(self.times[place]), end)
            cuts[part] = end
        return Cuts(cuts["selection"], cuts["calibration"], gap, test)

    def _is_small_test(self, gap_s: float, place: int) -> bool:
        n_test = self.times.size - self._count_before(self.times[place])
        return n_test * (1 - self.shares["test"]) <= self.shares["test"] * self._find_gap(
            gap_s, place
        )

    def _find_gap(self, gap_s: float, place: int) -> int:
        return self._count_before(self.times[place] - gap_s)

    def _count_before(self, time: float) -> int:
        return int(np.searchsorted(self.times, time))

    def _list_ranges(self, cuts: Cuts) -> dict[str, tuple[int, int]]:
        edges = (0, cuts.selection, cuts.calibration, cuts.gap)
        past = dict(zip(PARTS, pairwise(edges), strict=False))
        return {**past, "test": (cuts.test, self.times.size)}

    def count_frauds(self, cuts: Cuts) -> dict[str, int]:
        """Known frauds of each part."""
        ranges = self._list_ranges(cuts).items()
        return {
            part: int(self.n_frauds[end] - self.n_frauds[begin]) for part, (begin, end) in ranges
        }

    def is_complete(self, cuts: Cuts, min_frauds: int) -> bool:
        """Whether each part has rows, and at least so many known frauds."""
        ranges, frauds = self._list_ranges(cuts), self.count_frauds(cuts)
        has_rows = all(ranges[part][0] < ranges[part][1] for part in self.required)
        return has_rows and min(frauds[part] for part in self.required) >= min_frauds

    def choose_parts(self, gap_s: float) -> tuple[str, Cuts | None]:
        """The name and the parts of a split in which each knows ten frauds, if there is one.

        Parts are sized only if the gap is the problem: it leaves too little to fit on.
        """
        usual = self.place_parts(gap_s)
        if self.is_complete(usual, MIN_FRAUDS):
            return BY_TIME, usual
        sized = self.place_parts(gap_s, is_sized=True)
        has_fit = self.is_complete(usual, 0) and self.count_frauds(usual)["fit"] >= MIN_FRAUDS
        is_useful = self.shares["test"] > 0 and not has_fit
        is_good = is_useful and self.is_complete(sized, MIN_FRAUDS)
        return SIZED_BY_TIME, sized if is_good else None

    def list_days(self, gap_s: float) -> range:
        """Whole days of gaps up to this one, longest first."""
        return range(int(min(gap_s / DAY, self.days)), -1, -1)

    def number_parts(self, cuts: Cuts) -> Array:
        """Each row's part as a place in `PARTS`, or their number where it is in none [N]."""
        parts = np.full(self.n_rows, len(PARTS), np.int8)
        for part, (begin, end) in self._list_ranges(cuts).items():
            parts[self.order[begin:end]] = PARTS.index(part)
        return parts
