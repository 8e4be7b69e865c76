"""Who is fitted on, chosen with, calibrated with and judged on. No row is in two parts, so nothing fitted sees what judges it.

A split does not depend on the order of the rows, and on their labels only where compromised cards are asked to be dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError

DAY = 86_400.0  # seconds
PARTS = ("fit", "selection", "calibration", "test")
_FIT, _SELECTION, _CALIBRATION, _TEST, _EXCLUDED = range(5)
_MAY_LACK = 0.1  # of the last test window: data seldom reach the very end of their last day


@dataclass(frozen=True)
class Summary:
    """How much is in a part. Times are None where there are no rows, frauds where there are no labels."""

    rows: int
    customers: int
    frauds: int | None
    first: float | None
    last: float | None


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of each part, as sorted row numbers. Made by `split_by_customer`, `split_by_time` and `split_prequential`."""

    name: str
    seed: int | None
    fit: Array  # [n] int64, as are the others
    selection: Array
    calibration: Array
    test: Array
    excluded: Array
    summaries: dict[str, Summary]  # of the parts and of "excluded"

    @property
    def parts(self) -> dict[str, Array]:
        """The four parts by name, in the order of their use."""
        return {part: getattr(self, part) for part in PARTS}

    def visible_rows(self, part: str, times: Array) -> Array:
        """Rows that may be looked at when a part is used: it, the parts before it and, as history, rows of no part that are not later."""
        outside = self.excluded[
            times[self.excluded] <= times[self.parts[part]].max(initial=-np.inf)
        ]
        return np.unique(
            np.concatenate(
                [*(self.parts[name] for name in PARTS[: PARTS.index(part) + 1]), outside]
            )
        )

    def describe(self) -> str:
        """A small table of who is where."""
        with_labels = any(summary.frauds is not None for summary in self.summaries.values())
        columns = ["rows", "customers", *(["frauds"] if with_labels else []), "first", "last"]
        cells = [["", *columns]]
        for part, summary in self.summaries.items():
            values = (getattr(summary, column) for column in columns)
            cells.append([part, *("-" if value is None else f"{value:,.0f}" for value in values)])
        widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in cells
        ]
        return "\n".join(
            [
                self.name
                + (f", seed {self.seed}" if self.seed is not None else "")
                + "; times in seconds",
                *lines,
            ]
        )

    def __str__(self) -> str:
        """The table."""
        return self.describe()


def split_by_customer(
    customers: ArrayLike,
    times: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    test: float = 0.15,
    selection: float = 0.1,
    calibration: float = 0.1,
    seed: int = 42,
    require_fraud: bool = False,
) -> Split:
    """Give every customer, with all their rows, to one part at random.

    Shares are of all customers; what remains is fitted on. A share of 0 leaves selection or calibration out. Who is tested
    depends on `test` and `seed` only. With `require_fraud`, a part without a fraud is refused.
    """
    rows = _Rows.checked(customers, times, labels)
    shares = _shares(selection, calibration, test)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be a whole number of at least 0; found {seed!r}")
    n_customers = rows.n_customers
    sizes = {part: max(1, round(share * n_customers)) for part, share in shares.items() if share}
    if sum(sizes.values()) >= n_customers:
        raise DataError(
            f"customers: found {n_customers}, too few for {', '.join(sizes)} and at least one to fit on. "
            "Give more customers, or set selection or calibration to 0"
        )
    shuffled = np.random.default_rng(int(seed)).permutation(n_customers)
    part_of = np.full(n_customers, _FIT, np.int8)
    begin = 0
    for part in ("test", "calibration", "selection"):
        end = begin + sizes.get(part, 0)
        part_of[shuffled[begin:end]] = PARTS.index(part)
        begin = end
    return _split(
        "by customer", int(seed), rows, part_of[rows.codes], ["fit", *sizes], require_fraud
    )


def split_by_time(
    customers: ArrayLike,
    times: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    test: float = 0.15,
    selection: float = 0.1,
    calibration: float = 0.1,
    gap_s: float = 0.0,
    require_fraud: bool = False,
) -> Split:
    """Fit on the past, then select, calibrate and test, each on strictly later rows than the part before.

    Shares are of all rows; rows of equal time stay together. A share of 0 leaves selection or calibration out. The rows
    of the last `gap_s` seconds before the next part begins are left out, as their labels would not be known by then.
    """
    rows = _Rows.checked(customers, times, labels)
    shares = _shares(selection, calibration, test)
    _seconds("gap_s", gap_s, at_least=0.0)
    ordered = np.sort(rows.times)
    membership = np.full(rows.times.size, _FIT, np.int8)
    remaining = 1.0
    for part in (
        "test",
        "calibration",
        "selection",
    ):  # backwards, so that the parts tested on do not move with the others
        if not shares[part]:
            continue
        remaining -= shares[part]
        begin = ordered[min(round(remaining * ordered.size), ordered.size - 1)]
        membership[(rows.times >= begin) & (membership == _FIT)] = PARTS.index(part)
        membership[(rows.times >= begin - gap_s) & (membership == _FIT)] = _EXCLUDED
    wanted = ["fit", *(part for part, share in shares.items() if share)]
    return _split("by time", None, rows, membership, wanted, require_fraud)


def split_prequential(
    customers: ArrayLike,
    times: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    train_s: float = 28 * DAY,
    gap_s: float = 7 * DAY,
    test_s: float = 7 * DAY,
    selection_s: float = 7 * DAY,
    calibration_s: float = 7 * DAY,
    start_s: float | None = None,
    drop_compromised: bool = False,
    memory_s: float | None = None,
    require_fraud: bool = False,
) -> list[Split]:
    """Train on a window, wait a gap for its labels, test on the window after; then move on by the length of the test.

    All lengths are in seconds. Calibration takes the last seconds of the training window, selection those before, the fit
    what remains; 0 leaves one out. Windows begin at `start_s`, by default the first time, and a last test window that the data
    cover to less than nine tenths is not used. With `drop_compromised`, a card's rows leave the test as soon as a fraud on it
    since the training window began, or with `memory_s` since so many seconds before its end, is known, which is `gap_s` seconds after the
    fraud.
    """
    rows = _Rows.checked(customers, times, labels)
    for name, seconds in (("train_s", train_s), ("test_s", test_s)):
        _seconds(name, seconds, above=0.0)
    for name, seconds in (
        ("gap_s", gap_s),
        ("selection_s", selection_s),
        ("calibration_s", calibration_s),
    ):
        _seconds(name, seconds, at_least=0.0)
    if selection_s + calibration_s >= train_s:
        raise ConfigError(
            f"selection_s and calibration_s must be shorter than train_s together; found {selection_s:g} and {calibration_s:g} of {train_s:g} seconds"
        )
    if memory_s is not None:
        _seconds("memory_s", memory_s, above=0.0)
    if drop_compromised and rows.labels is None:
        raise ConfigError(
            "drop_compromised needs labels to know which cards are compromised; give labels"
        )
    origin = float(rows.times.min()) if start_s is None else start_s
    _seconds("start_s", origin)
    covered = float(rows.times.max()) - origin - train_s - gap_s
    n_splits = int(covered / test_s + _MAY_LACK)
    if n_splits < 1:
        raise DataError(
            f"times: from {origin:,.0f} on they span {covered + train_s + gap_s:,.0f} seconds, but train_s, gap_s and test_s take "
            f"{train_s + gap_s + test_s:,.0f}. Give more data or shorter windows"
        )
    wanted = [
        "fit",
        *(
            part
            for part, length in (("selection", selection_s), ("calibration", calibration_s))
            if length
        ),
        "test",
    ]
    splits = []
    for i in range(n_splits):
        begin = origin + i * test_s
        # An end is computed exactly as the next split's beginning, so that test windows neither overlap nor leave a row between them.
        tested_from, tested_until = (origin + train_s + gap_s + j * test_s for j in (i, i + 1))
        known_until = tested_from - gap_s
        calibrated_from = known_until - calibration_s
        edges = [
            begin,
            calibrated_from - selection_s,
            calibrated_from,
            known_until,
            tested_from,
            tested_until,
        ]
        window = np.searchsorted(edges, rows.times, side="right")
        membership = np.array(
            [_EXCLUDED, _FIT, _SELECTION, _CALIBRATION, _EXCLUDED, _TEST, _EXCLUDED], np.int8
        )[window]
        if drop_compromised:
            since = begin if memory_s is None else known_until - memory_s
            membership[
                (membership == _TEST) & (rows.times > rows.known_compromised(since, gap_s))
            ] = _EXCLUDED
        splits.append(
            _split(
                f"prequential {i + 1} of {n_splits}", None, rows, membership, wanted, require_fraud
            )
        )
    return splits


def drop_short_sequences(customers: ArrayLike, rows: ArrayLike, min_rows: int = 5) -> Array:
    """Those of a part's `rows` whose customer has at least `min_rows` rows in the part. For fitting only; score all rows."""
    if isinstance(min_rows, bool) or not isinstance(min_rows, int | np.integer) or min_rows < 1:
        raise ConfigError(f"min_rows must be a whole number of at least 1; found {min_rows!r}")
    part = np.asarray(rows, np.int64)
    _, codes, lengths = np.unique(
        np.asarray(customers)[part], return_inverse=True, return_counts=True
    )
    kept: Array = part[lengths[codes] >= min_rows]
    return kept


@dataclass(frozen=True, eq=False)
class _Rows:
    """What a split is made from, checked."""

    codes: Array  # [N] each row's customer, numbered from 0 in the order of their keys
    n_customers: int
    times: Array  # [N] float64
    labels: Array | None  # [N] int8

    @classmethod
    def checked(cls, customers: ArrayLike, times: ArrayLike, labels: ArrayLike | None) -> _Rows:
        keys = np.asarray(customers)
        if keys.ndim != 1 or keys.size == 0 or keys.dtype.kind not in "ui":
            raise DataError(
                f"customers must be whole numbers, one per row; found {keys.dtype} of shape {keys.shape}. "
                "Number other keys with np.unique(keys, return_inverse=True)"
            )
        seconds = _per_row("times", times, keys.size)
        if seconds.dtype.kind not in "uif":
            raise DataError(
                f"times must be seconds as numbers; found {seconds.dtype}. Convert dates to seconds first"
            )
        for row in np.flatnonzero(~np.isfinite(seconds)):
            raise DataError(
                f"times row {row}: found {seconds[row]}; every row needs a finite time. Drop the row or give its time"
            )
        marks = None if labels is None else _per_row("labels", labels, keys.size)
        if marks is not None:
            for row in np.flatnonzero(~np.isin(marks, (0, 1))):
                raise DataError(
                    f"labels row {row}: found {marks[row]}; labels are 0 or 1. Drop rows of unknown label, or give no labels"
                )
            marks = marks.astype(np.int8)
        distinct, codes = np.unique(keys, return_inverse=True)
        return cls(codes, distinct.size, seconds.astype(np.float64), marks)

    def known_compromised(self, begin: float, delay: float) -> Array:
        """For each row, when its customer is first known to be compromised by a fraud from `begin` on; infinite if never."""
        first = np.full(self.n_customers, np.inf)
        if self.labels is not None:
            frauds = (self.labels == 1) & (self.times >= begin)
            np.minimum.at(first, self.codes[frauds], self.times[frauds])
        known: Array = first[self.codes] + delay
        return known

    def summary(self, rows: Array) -> Summary:
        """How much is in these rows."""
        times = self.times[rows]
        return Summary(
            rows=rows.size,
            customers=int(
                np.count_nonzero(np.bincount(self.codes[rows], minlength=self.n_customers))
            ),
            frauds=None if self.labels is None else int(np.count_nonzero(self.labels[rows])),
            first=float(times.min()) if rows.size else None,
            last=float(times.max()) if rows.size else None,
        )


def _split(
    name: str,
    seed: int | None,
    rows: _Rows,
    membership: Array,
    wanted: Sequence[str],
    require_fraud: bool,
) -> Split:
    """The split that a part number per row says; every wanted part must have rows, and frauds if they are needed."""
    if require_fraud and rows.labels is None:
        raise ConfigError("require_fraud needs labels to count frauds; give labels")
    fit, selection, calibration, test, excluded = (
        np.flatnonzero(membership == part) for part in range(5)
    )
    named = dict(
        zip([*PARTS, "excluded"], (fit, selection, calibration, test, excluded), strict=True)
    )
    summaries = {part: rows.summary(members) for part, members in named.items()}
    for part in wanted:
        if not summaries[part].rows:
            raise DataError(
                f"{name}: {part} has no rows, as too few times differ or windows are too short. Make {part} larger or the gap shorter"
            )
        if require_fraud and not summaries[part].frauds:
            raise DataError(
                f"{name}: {part} has no fraud among {summaries[part].rows:,} rows. Give more data, a larger {part} part, or another split"
            )
    return Split(name, seed, fit, selection, calibration, test, excluded, summaries)


def _shares(selection: float, calibration: float, test: float) -> dict[str, float]:
    shares = {"selection": selection, "calibration": calibration, "test": test}
    for name, share in shares.items():
        may_be_absent = name != "test"
        if not (0 < share < 1 or (may_be_absent and share == 0)):
            ends = "at least 0" if may_be_absent else "above 0"
            raise ConfigError(
                f"{name} must be {ends} and below 1; found {share!r}. Give the share of the data it gets, such as 0.1"
            )
    if sum(shares.values()) >= 1:
        raise ConfigError(
            f"selection, calibration and test must add up to less than 1; found {sum(shares.values()):g}. Leave some to fit on"
        )
    return shares


def _seconds(name: str, value: float, at_least: float = -np.inf, above: float = -np.inf) -> None:
    if not (np.isfinite(value) and value >= at_least and value > above):
        rule = "above 0" if above == 0 else "of at least 0" if at_least == 0 else "that is finite"
        raise ConfigError(
            f"{name} must be a number of seconds {rule}; found {value!r}. A week is 7 * DAY"
        )


def _per_row(name: str, values: ArrayLike, n_rows: int) -> Array:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        raise DataError(
            f"{name} must have one entry per row, as customers has: expected {n_rows}, found shape {array.shape}"
        )
    return array
