"""Split transactions into fit, selection, calibration and test rows.

No row is in two parts, so nothing is evaluated on rows it was fitted on. A split does not depend
on the order of the rows. It depends on labels only by customer, where each part gets its share of
the customers with fraud, with `drop_compromised`, and at the end of the data: the last days, of
which only frauds are known yet, are excluded. Labels are 0, 1, or -1 for unknown.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.data.open_labels import find_labelled_until
from turncoat.data.timeline import BY_TIME, DAY, MIN_FRAUDS, PARTS, SIZED_BY_TIME, Cuts, Timeline
from turncoat.errors import ConfigError, DataError, check_count

__all__ = [
    "BY_TIME",
    "DAY",
    "MIN_FRAUDS",
    "PARTS",
    "SIZED_BY_TIME",
    "PartSummary",
    "Split",
    "drop_short_sequences",
    "find_largest_gap",
    "split_automatically",
    "split_by_customer",
    "split_by_time",
    "split_prequential",
]

_FIT, _SELECTION, _CALIBRATION, _TEST, _EXCLUDED = range(5)
_FIRST_DATE = 946_684_800.0  # 2000-01-01; smaller times have another start than 1970
_MAX_UNCOVERED = 0.1  # share of the last test window that the data may not reach


@dataclass(frozen=True)
class PartSummary:
    """Size and time span of a part; None where there are no rows or no label column."""

    rows: int
    customers: int
    labelled: int | None  # rows with a known label
    frauds: int | None
    first: float | None
    last: float | None


@dataclass(frozen=True, eq=False)
class Split:
    """Sorted row numbers of each part."""

    name: str
    seed: int | None
    fit: Array  # [n] int64, like the others
    selection: Array
    calibration: Array
    test: Array
    excluded: Array
    summaries: dict[str, PartSummary]  # of the parts and of "excluded"
    open_labels: PartSummary | None = None  # of the excluded rows whose labels are open, if any

    @property
    def parts(self) -> dict[str, Array]:
        """The four parts by name, in the order of their use."""
        return {part: getattr(self, part) for part in PARTS}

    def visible_rows(self, part: str, times: Array) -> Array:
        """Rows that may be used with a part: it, the parts before it, and earlier excluded rows."""
        is_earlier = times[self.excluded] <= times[self.parts[part]].max(initial=-np.inf)
        parts = [self.parts[name] for name in PARTS[: PARTS.index(part) + 1]]
        return np.unique(np.concatenate([*parts, self.excluded[is_earlier]]))

    def describe(self) -> str:
        """A table of the parts' sizes and times."""
        summaries = self.summaries.values()
        has_labels = any(summary.frauds is not None for summary in summaries)
        has_unknown = any(summary.labelled not in (None, summary.rows) for summary in summaries)
        counts = ["labelled"] * has_unknown + ["frauds"] * has_labels
        columns = ["rows", "customers", *counts, "first", "last"]
        table = [["", *columns]]
        times = [
            t for one in self.summaries.values() for t in (one.first, one.last) if t is not None
        ]
        are_dates = min(times, default=0.0) >= _FIRST_DATE
        for part, summary in self.summaries.items():
            cells = [_format_number(getattr(summary, column)) for column in columns[:-2]]
            cells += [_format_time(t, are_dates) for t in (summary.first, summary.last)]
            table.append([part, *cells])
        widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
        seed = "" if self.seed is None else f", seed {self.seed}"
        lines = [f"{self.name}{seed}; {'days in UTC' if are_dates else 'times in seconds'}"]
        for name, *cells in table:
            aligned = (cell.rjust(w) for cell, w in zip(cells, widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *aligned]))
        if self.open_labels is not None:
            rows, known = self.open_labels.rows, self.open_labels.frauds
            first = _format_time(self.open_labels.first, are_dates)
            reason = f"their labels are open ({known:,} frauds and hardly anything genuine known)"
            lines.append(f"Excluded are the last {rows:,} rows, from {first} on: {reason}.")
        return "\n".join(lines)

    __str__ = describe


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
    """Assign every customer, with all their rows, to one part at random.

    Shares are of all customers; the rest is for fitting. A share of 0 omits a part. Customers with
    a known fraud and all others are divided in the same proportion, so that few frauds still reach
    every part; which customers are in the test part thus depends on the labels. With
    `require_fraud`, a part without known fraud is an error.
    """
    rows = _SplitRows.validate(customers, times, labels)
    shares = _check_shares(selection, calibration, test)
    check_count("seed", seed, 0)
    n_customers = rows.n_customers
    sizes = {part: max(1, round(share * n_customers)) for part, share in shares.items() if share}
    if sum(sizes.values()) >= n_customers:
        problem = f"found {n_customers}, too few for {', '.join(sizes)} and at least one to fit on"
        remedy = "Give the transactions of more customers"
        raise DataError(f"customers: {problem}. {remedy}")
    sizes["fit"] = n_customers - sum(sizes.values())
    shuffled = np.random.default_rng(int(seed)).permutation(n_customers)
    has_fraud = rows.has_fraud[shuffled]
    n_with_fraud = _divide_in_proportion(sizes, int(has_fraud.sum()))
    others = {part: size - n_with_fraud[part] for part, size in sizes.items()}
    part_of = np.full(n_customers, _FIT, np.int8)
    for group, counts in ((shuffled[has_fraud], n_with_fraud), (shuffled[~has_fraud], others)):
        rest = group
        for part in ("test", "calibration", "selection"):
            members, rest = np.split(rest, [counts.get(part, 0)])
            part_of[members] = PARTS.index(part)
    parts = ["fit", *(part for part, share in shares.items() if share)]
    return rows.split("by customer", int(seed), part_of[rows.codes], parts, require_fraud)


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
    """Fit on the past, then select, calibrate and test, each on strictly later rows.

    Shares are of all rows; rows of equal time stay together. A share of 0 omits a part. Rows of the
    last `gap_s` seconds before the test are excluded: their labels would not be known by then. The
    other parts meet, because all of them are past when a detector goes live. If a long gap leaves a
    part without rows, shares are of the rows outside the gap, and the split's name says so; each
    part then has a known fraud, or the error names the largest gap that would do.
    """
    rows = _SplitRows.validate(customers, times, labels)
    shares = _check_shares(selection, calibration, test)
    _check_seconds("of at least 0", gap_s=gap_s)
    timeline = rows.sort(shares)
    usual = timeline.place_parts(gap_s)
    if timeline.is_complete(usual, int(require_fraud)) or not test or not gap_s:
        return rows.cut(timeline, usual, BY_TIME, require_fraud)
    min_frauds = max(int(require_fraud), int(timeline.n_frauds[-1] > 0))
    sized = timeline.place_parts(gap_s, is_sized=True)
    if timeline.is_complete(sized, min_frauds):
        return rows.cut(timeline, sized, SIZED_BY_TIME)
    for days in timeline.list_days(gap_s):
        gaps = (timeline.place_parts(days * DAY, is_sized=is_sized) for is_sized in (False, True))
        if any(timeline.is_complete(cuts, min_frauds) for cuts in gaps):
            break
    else:
        return rows.cut(timeline, usual, BY_TIME, require_fraud)
    gap = f"a gap (label delay) of {gap_s / DAY:g} days before the test"
    problem = f"leaves a part of {timeline.days:.0f} days of data without rows or known frauds"
    remedy = f"At most {days} days would fit. Give a shorter one, more data, or split by customer"
    raise DataError(f"{BY_TIME}: {gap} {problem}. {remedy}")


def split_automatically(
    customers: ArrayLike,
    times: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    test: float = 0.15,
    gap_s: float = 0.0,
    seed: int = 42,
) -> Split:
    """By time where each part then knows ten frauds, as a detector is used; else by customer.

    If a long gap leaves too few rows to fit on, the parts are sized as by `split_by_time`.
    """
    rows, shares = _SplitRows.validate(customers, times, labels), _check_shares(0.1, 0.1, test)
    _check_seconds("of at least 0", gap_s=gap_s)
    timeline = rows.sort(shares)
    name, cuts = timeline.choose_parts(gap_s)
    if cuts is None:
        return split_by_customer(customers, times, labels, test=test, seed=seed)
    return rows.cut(timeline, cuts, name)


def find_largest_gap(
    customers: ArrayLike, times: ArrayLike, labels: ArrayLike | None, gap_s: float
) -> int | None:
    """The most days up to `gap_s` with which `split_automatically` is by time; None if none is."""
    shares = _check_shares(0.1, 0.1, 0.15)
    timeline = _SplitRows.validate(customers, times, labels).sort(shares)
    fitting = (days for days in timeline.list_days(gap_s) if timeline.choose_parts(days * DAY)[1])
    return next(fitting, None)


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
    """Train on a window, wait a gap for its labels, test on the next window; then move on.

    Calibration takes the end of the training window, selection the time before, the fit the rest;
    0 omits one. Windows begin at `start_s`, by default the first time. A last test window that the
    data cover to less than nine tenths is dropped. With `drop_compromised`, a card's rows leave the
    test once a fraud on it is known, `gap_s` after the fraud. Only frauds since the training window
    began count, or with `memory_s` those since so many seconds before its end.
    """
    rows = _SplitRows.validate(customers, times, labels)
    _check_seconds("above 0", train_s=train_s, test_s=test_s, memory_s=memory_s)
    optional = {"selection_s": selection_s, "calibration_s": calibration_s}
    _check_seconds("of at least 0", gap_s=gap_s, **optional)
    if selection_s + calibration_s >= train_s:
        rule = "selection_s and calibration_s must be shorter than train_s together"
        found = f"{selection_s:g} and {calibration_s:g} of {train_s:g} seconds"
        raise ConfigError(f"{rule}; found {found}")
    if drop_compromised and rows.labels is None:
        raise ConfigError("drop_compromised needs labels to find compromised cards; give labels")
    origin = float(rows.times.min()) if start_s is None else start_s
    _check_seconds("that is finite", start_s=origin)
    span = rows.labelled_until - origin
    n_splits = int((span - train_s - gap_s) / test_s + _MAX_UNCOVERED)
    if n_splits < 1:
        found = f"from {origin:,.0f} on they span {span:,.0f} seconds"
        needed = f"train_s, gap_s and test_s take {train_s + gap_s + test_s:,.0f}"
        raise DataError(f"times: {found}, but {needed}. Give more data or shorter windows")
    required = ["fit", *(name[:-2] for name, length in optional.items() if length), "test"]
    windows = _EXCLUDED, _FIT, _SELECTION, _CALIBRATION, _EXCLUDED, _TEST, _EXCLUDED
    splits = []
    for i in range(n_splits):
        begin = origin + i * test_s
        # An end is computed exactly as the next begin, so that test windows meet without overlap.
        test_begin, test_end = (origin + train_s + gap_s + j * test_s for j in (i, i + 1))
        train_end = test_begin - gap_s
        calibration_begin = train_end - calibration_s
        selection_begin = calibration_begin - selection_s
        edges = [begin, selection_begin, calibration_begin, train_end, test_begin, test_end]
        parts = np.array(windows, np.int8)[np.searchsorted(edges, rows.times, side="right")]
        if drop_compromised:
            since = begin if memory_s is None else train_end - memory_s
            is_known = rows.times > rows.compromise_known_at(since, gap_s)
            parts[(parts == _TEST) & is_known] = _EXCLUDED
        name = f"prequential {i + 1} of {n_splits}"
        splits.append(rows.split(name, None, parts, required, require_fraud))
    return splits


def drop_short_sequences(customers: ArrayLike, rows: ArrayLike, min_rows: int = 5) -> Array:
    """Those `rows` of a part whose customer has at least `min_rows` of them. For fitting only."""
    check_count("min_rows", min_rows, 1)
    part = np.asarray(rows, np.int64)
    keys = np.asarray(customers)[part]
    _, codes, lengths = np.unique(keys, return_inverse=True, return_counts=True)
    kept: Array = part[lengths[codes] >= min_rows]
    return kept


@dataclass(frozen=True, eq=False)
class _SplitRows:
    """Validated rows to split."""

    codes: Array  # [N] each row's customer, numbered from 0 in the order of their keys
    n_customers: int
    times: Array  # [N] float64
    labels: Array | None  # [N] int8; -1 is unknown
    labelled_until: float  # labels of later rows are open

    @classmethod
    def validate(
        cls, customers: ArrayLike, times: ArrayLike, labels: ArrayLike | None
    ) -> _SplitRows:
        """Check the columns of all rows."""
        keys = np.asarray(customers)
        if keys.ndim != 1 or keys.size == 0 or keys.dtype.kind not in "ui":
            rule = "customers must be whole numbers, one per row"
            remedy = "Number other keys with np.unique(keys, return_inverse=True)"
            raise DataError(f"{rule}; found {keys.dtype} of shape {keys.shape}. {remedy}")
        seconds = _check_length("times", times, keys.size)
        if seconds.dtype.kind not in "uif":
            found = f"times must be seconds as numbers; found {seconds.dtype}"
            raise DataError(f"{found}. Convert dates first")
        for row in np.flatnonzero(~np.isfinite(seconds)):
            problem = f"found {seconds[row]}; every row needs a finite time"
            raise DataError(f"times row {row}: {problem}. Drop the row or give its time")
        marks = None if labels is None else _check_length("labels", labels, keys.size)
        if marks is not None:
            for row in np.flatnonzero(~np.isin(marks, (-1, 0, 1))):
                problem = f"found {marks[row]}; labels are 0, 1, or -1 for unknown"
                raise DataError(f"labels row {row}: {problem}. Correct it, or give no labels")
            marks = marks.astype(np.int8)
        distinct, codes = np.unique(keys, return_inverse=True)
        until = find_labelled_until(seconds, marks)
        last = float(seconds.max()) if until is None else until
        return cls(codes, distinct.size, seconds.astype(np.float64), marks, last)

    @property
    def has_fraud(self) -> Array:
        """Which customers have a known fraud [customers]."""
        found = np.zeros(self.n_customers, bool)
        if self.labels is not None:
            found[self.codes[self.labels == 1]] = True
        return found

    def compromise_known_at(self, begin: float, delay: float) -> Array:
        """When each row's customer is first known to be compromised after `begin`, or inf."""
        first = np.full(self.n_customers, np.inf)
        if self.labels is not None:
            frauds = (self.labels == 1) & (self.times >= begin)
            np.minimum.at(first, self.codes[frauds], self.times[frauds])
        known: Array = first[self.codes] + delay
        return known

    def summarize(self, rows: Array) -> PartSummary:
        """Size and time span of some rows."""
        labelled = frauds = None
        if self.labels is not None:
            labels = self.labels[rows]
            labelled, frauds = (
                int(np.count_nonzero(is_in)) for is_in in (labels >= 0, labels == 1)
            )
        n_customers, times = len(np.unique(self.codes[rows])), self.times[rows]
        first, last = (float(times.min()), float(times.max())) if rows.size else (None, None)
        return PartSummary(rows.size, n_customers, labelled, frauds, first, last)

    def sort(self, shares: dict[str, float]) -> Timeline:
        """The rows in the order of time, without those whose labels are open."""
        return Timeline.sort(self.times, self.labels, self.labelled_until, shares)

    def cut(self, timeline: Timeline, cuts: Cuts, name: str, require_fraud: bool = False) -> Split:
        """The split whose parts are between these cuts."""
        parts = timeline.number_parts(cuts)
        return self.split(name, None, parts, timeline.required, require_fraud)

    def split(
        self, name: str, seed: int | None, parts: Array, required: list[str], require_fraud: bool
    ) -> Split:
        """The split with a part number per row; required parts must have rows, or even fraud."""
        if require_fraud and self.labels is None:
            raise ConfigError("require_fraud needs labels to count frauds; give labels")
        is_open = self.times > self.labelled_until
        parts = np.where(is_open, _EXCLUDED, parts)
        rows = {part: np.flatnonzero(parts == i) for i, part in enumerate((*PARTS, "excluded"))}
        summaries = {part: self.summarize(members) for part, members in rows.items()}
        for part in required:
            summary = summaries[part]
            if not summary.rows:
                problem = f"{part} has no rows; too few times differ or windows are too short"
                raise DataError(f"{name}: {problem}. Make {part} larger or the gap shorter")
            if require_fraud and not summary.frauds:
                counts = f"{summary.labelled:,} rows with a label ({summary.rows:,} in all)"
                remedy = f"Give more data, a larger {part} part, or another split"
                raise DataError(f"{name}: {part} has no fraud among {counts}. {remedy}")
        open_labels = self.summarize(np.flatnonzero(is_open)) if is_open.any() else None
        return Split(name, seed, **rows, summaries=summaries, open_labels=open_labels)


def _divide_in_proportion(sizes: dict[str, int], n: int) -> dict[str, int]:
    """How many of `n` customers each part gets, in proportion to its size and never more than it.

    A part that would get none takes one from the largest, as long as that has several.
    """
    parts = [part for part in ("fit", "calibration", "test", "selection") if part in sizes]
    quotas = {part: sizes[part] * n / sum(sizes.values()) for part in parts}
    found: dict[str, int] = {part: math.floor(quota) for part, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda part: found[part] - quotas[part])
    for part in by_remainder[: n - sum(found.values())]:
        found[part] += 1
    for part in parts:  # the most necessary first
        largest = max(found, key=found.__getitem__)
        if found[part] == 0 and found[largest] > 1:
            found[largest] -= 1
            found[part] = 1
    return found


def _format_number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _format_time(seconds: float | None, is_date: bool) -> str:
    if seconds is None:
        return "-"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}" if is_date else f"{seconds:,.0f}"


def _check_shares(selection: float, calibration: float, test: float) -> dict[str, float]:
    shares = {"selection": selection, "calibration": calibration, "test": test}
    for name, share in shares.items():
        if not 0 <= share < 1:
            remedy = "Give its share of the data, such as 0.1"
            raise ConfigError(f"{name} must be at least 0 and below 1; found {share!r}. {remedy}")
    total = sum(shares.values())
    if total >= 1:
        rule = "selection, calibration and test must add up to less than 1"
        raise ConfigError(f"{rule}; found {total:g}. Leave some to fit on")
    return shares


def _check_seconds(rule: str, **settings: float | None) -> None:
    """Refuse a length that is not `above 0`, `of at least 0` or just one `that is finite`."""
    for name, value in settings.items():
        if value is None:
            continue
        is_low = value <= 0 if rule == "above 0" else value < 0 and rule == "of at least 0"
        if is_low or not np.isfinite(value):
            problem = f"{name} must be a number of seconds {rule}; found {value!r}"
            raise ConfigError(f"{problem}. A week is 7 * DAY")


def _check_length(name: str, values: ArrayLike, n_rows: int) -> Array:
    array = np.asarray(values)
    if array.shape != (n_rows,):
        found = f"expected {n_rows}, found shape {array.shape}"
        raise DataError(f"{name} must have one entry per row, as customers has: {found}")
    return array
