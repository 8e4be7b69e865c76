"""Drift: how far the latest transactions are from the calibration rows, regime by regime.

A verdict needs enough transactions, a shift beyond chance, and one of a size that matters.

Both sides are compared at equal exposure: transactions of customers known for too short a time are
counted on neither (`Reference.min_age_s`). Features that grow with a history for months are not
judged, nor are the scores of trees and encoders that use them. Chance allows for customers whose
transactions resemble each other (design effects). The latest transactions are taken to come from as
many customers as the reference: more of them than it has make nothing surer.

Every process adds to sums in a file of its own, in a common folder, so that each can report on
all. The file is locked until its process ends; the next process to start takes over its sums.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.data.open_labels import find_labelled_until
from turncoat.data.transactions import Transactions
from turncoat.errors import ConfigError, DataError
from turncoat.features.history import DAY, GROWING
from turncoat.numerics.jit import jit
from turncoat.scoring.detector import Detector
from turncoat.scoring.rankers import HeadRanker, XGBoostRanker
from turncoat.scoring.reference import MAX_CELL, MAX_SCORE_BINS, Reference, compute_moments

TOO_FEW, STABLE, WATCH, DRIFTED = "too few", "stable", "watch", "drifted"
VERDICTS = (TOO_FEW, STABLE, WATCH, DRIFTED)
NOT_JUDGED = "not judged"  # of the scores alone
HALF_LIFE = 20_000.0  # transactions

MIN_TRANSACTIONS = 500  # for a verdict on scores and on a regime's share of the traffic
MIN_IN_REGIME = 50  # transactions, now and in the reference, for a verdict on a feature
MIN_Z = 5.0  # standard errors: of 2,000 features one passes by chance in 1 of 1,000 reports
PSI_LIMITS = (0.1, 0.25)  # population stability index minus its value by chance
SHIFT_LIMITS = (0.2, 0.5)  # of a feature's mean, in standard deviations
OCCUPANCY_LIMITS = (0.5, 1.0)  # of a regime's log odds: factors of 1.6 and 2.7
_PSEUDO_COUNT = 0.5  # added to every count, so that an empty bin is not infinitely far
_MIN_SPREAD = 0.05  # of a column's overall spread, where a regime's own is smaller

_SUMS = "scores", "occupancy", "cells", "left_out"
_SUFFIX = ".sums"
_MAX_FILES = 1024
_SUM_TOLERANCE = 1e-3
_MIN_WEIGHT = 1e-9  # of a regime in a row
_NO_DECAY = 1e15  # transactions


@dataclass(frozen=True)
class ScoreDrift:
    """The distribution of scores."""

    psi: float  # population stability index
    psi_by_chance: float  # its mean if nothing has changed
    mean_now: float | None  # None before the first transaction
    mean_then: float
    verdict: str  # one of VERDICTS, or NOT_JUDGED


@dataclass(frozen=True)
class FeatureDrift:
    """The mean of a feature in a regime, on the model's scale."""

    feature: str
    mean_now: float
    mean_then: float
    shift: float  # in standard deviations of the reference
    z: float  # in standard errors
    verdict: str


@dataclass(frozen=True)
class RegimeDrift:
    """A regime: its share of the traffic, and the features that shifted most."""

    regime: int
    transactions: float
    occupancy_now: float | None  # None before the first transaction
    occupancy_then: float
    verdict: str  # on the occupancy
    largest_shift: float  # absolute, of the features beyond chance; 0 if there is none
    features: tuple[FeatureDrift, ...]  # with enough transactions, largest sure shift first


@dataclass(frozen=True)
class DriftReport:
    """All drift. `transactions` is an effective count: earlier ones count less and less."""

    transactions: float
    left_out: float  # effective count of those of customers known for less than `min_age_days`
    min_age_days: float
    verdict: str  # the gravest
    score: ScoreDrift
    regimes: tuple[RegimeDrift, ...]


class DriftMonitor:
    """Compares the latest transactions with the reference of the calibration. For one thread."""

    def __init__(
        self,
        reference: Reference,
        folder: Path | None,
        names: Sequence[str],
        growing: Collection[str] = GROWING,
        *,
        judges_scores: bool = True,
        half_life: float = HALF_LIFE,
    ) -> None:
        """Share sums in `folder` with the model's other processes; None shares nothing.

        `names` are the panel's continuous columns; `growing` ones are not judged, and scores
        only if `judges_scores`. After `half_life` more transactions of its process a transaction
        counts half.
        """
        n_states, n_columns = reference.means.shape
        if len(names) != n_columns:
            raise ConfigError(f"the reference has {n_columns} features; found {len(names)} names")
        if not 0 < half_life < np.inf:
            needs = "it must be a positive number of transactions"
            raise ConfigError(f"half_life is {half_life!r}; {needs}")
        self._names, self._half_life = tuple(names), half_life
        self._judges_scores = judges_scores
        self._has_verdict = np.array([name not in growing for name in names], bool)
        self._reference, self._shared = reference, SharedSums(folder, reference)
        empty = np.empty((0, n_states)), np.empty((0, n_columns), np.float32), np.empty(0)
        self.add(*empty, np.empty(0))  # compiles

    def add(self, beliefs: Array, rows: Array, probabilities: Array, ages_s: Array) -> None:
        """Add filtered beliefs [n, K], cells [n, D] (NaN if missing), scores [n] and ages [n].

        Ages are as in `Reference.measure`.
        """
        n, (n_states, n_columns) = len(rows), self._reference.means.shape
        found = beliefs.shape, rows.shape, probabilities.shape, ages_s.shape
        if found != ((n, n_states), (n, n_columns), (n,), (n,)):
            raise DataError(
                f"drift takes beliefs [n, {n_states}], cells [n, {n_columns}], scores [n] and "
                f"ages [n]; found {', '.join(map(str, found))}"
            )
        sums = self._shared.own
        is_old = ages_s >= self._reference.min_age_s
        n_old = int(is_old.sum())
        if n_old < n:
            beliefs, rows, probabilities = beliefs[is_old], rows[is_old], probabilities[is_old]
        kept = 0.5 ** (n_old / self._half_life)
        sums["left_out"] = sums["left_out"] * kept + n - n_old
        add_rows(
            sums["scores"],
            sums["occupancy"],
            sums["cells"],
            _as_contiguous(beliefs, np.float64),
            _as_contiguous(rows, np.float32),
            _as_contiguous(probabilities, np.float64),
            _as_contiguous(self._reference.edges[1:-1], np.float64),
            kept,
        )

    def update_reference(self, reference: Reference) -> bool:
        """Compare with another reference of the same model; False if it is another model's.

        The sums of features stay. Scores are counted anew if the calibration changed.
        """
        digests = _digest_reference(reference)
        has_same_features, has_same_scores = digests == self._shared.own["digests"]
        if has_same_features and not has_same_scores:
            self._reference = reference
            self._shared.own["scores"], self._shared.own["digests"] = 0.0, digests
        return bool(has_same_features)

    def report(self, max_features: int = 5) -> DriftReport:
        """Return the drift of all processes, with the most shifted features of each regime."""
        sums = self._shared.sum_all()
        score = _compare_scores(self._reference, sums["scores"])
        regimes = self._compare_regimes(sums, max_features)
        transactions = float(sums["occupancy"].sum())
        verdicts = [regime.verdict for regime in regimes]
        if self._judges_scores:
            verdicts.append(score.verdict)
        else:
            score = replace(score, verdict=NOT_JUDGED)
        verdicts += [feature.verdict for regime in regimes for feature in regime.features]
        is_enough = transactions >= MIN_TRANSACTIONS
        verdict = max(verdicts, key=VERDICTS.index) if is_enough else TOO_FEW
        left_out, min_age_days = float(sums["left_out"]), self._reference.min_age_s / DAY
        return DriftReport(transactions, left_out, min_age_days, verdict, score, regimes)

    @classmethod
    def watch(
        cls,
        detector: Detector,
        folder: Path | None = None,
        half_life: float = HALF_LIFE,
        *,
        judges_labels: bool = True,
    ) -> DriftMonitor:
        """A monitor of a fitted detector's transactions.

        Without `judges_labels`, features of known labels are not judged either, nor are scores
        that use them.
        """
        plan, calibration = detector.features_.plan, detector.calibration_
        of_labels = () if judges_labels else plan.of_labels
        has_growing, has_labels = (
            not set(names).isdisjoint(plan.continuous) for names in (plan.growing, of_labels)
        )
        is_learnt = isinstance(calibration.ranker, XGBoostRanker | HeadRanker)
        columns = plan.continuous, (*plan.growing, *of_labels)
        judges_scores = not (has_labels or (is_learnt and has_growing))
        options: dict[str, Any] = {"judges_scores": judges_scores, "half_life": half_life}
        return cls(calibration.reference, folder, *columns, **options)

    def close(self) -> None:
        """Release the file. The next process takes over its sums."""
        self._shared.close()

    def _compare_regimes(self, sums: Array, max_features: int) -> tuple[RegimeDrift, ...]:
        reference, occupancy = self._reference, sums["occupancy"].tolist()
        shares_then = self._reference.occupancy.tolist()
        total = float(sums["occupancy"].sum())
        log_odds_shifts, log_odds_zs = _compare_occupancy(reference, sums["occupancy"])
        means, shifts, errors = _compare_means(reference, sums["cells"])
        mass = np.minimum(sums["cells"][0], reference.mass)
        is_enough = (mass >= MIN_IN_REGIME) & self._has_verdict
        is_sure = is_enough & (np.abs(shifts) >= MIN_Z * errors)
        largest = np.where(is_sure, np.abs(shifts), 0.0).max(axis=1, initial=0.0)
        ranks = np.where(is_enough, np.abs(shifts) - 2 * errors, -np.inf)  # of sure shifts
        regimes = []
        for k, (n, share_then) in enumerate(zip(occupancy, shares_then, strict=True)):
            features = []
            for d in np.argsort(-ranks[k], kind="stable")[: min(max_features, is_enough[k].sum())]:
                shift, z = float(shifts[k, d]), float(shifts[k, d] / errors[k, d])
                now, then = float(means[k, d]), float(reference.means[k, d])
                verdict = _grade(shift, SHIFT_LIMITS, z)
                features.append(FeatureDrift(self._names[d], now, then, shift, z, verdict))
            verdict = _grade(log_odds_shifts[k], OCCUPANCY_LIMITS, log_odds_zs[k])
            verdict = TOO_FEW if total < MIN_TRANSACTIONS else verdict
            share = n / total if total > 0 else None
            rest = verdict, float(largest[k]), tuple(features)
            regimes.append(RegimeDrift(k, n, share, share_then, *rest))
        return tuple(regimes)


def stability_index(now: Array, then: Array) -> float:
    """Return the population stability index of two sets of counts [B], with pseudo-counts."""
    p, q = ((counts + _PSEUDO_COUNT) / (counts + _PSEUDO_COUNT).sum() for counts in (now, then))
    return float(((p - q) * np.log(p / q)).sum())


def _compare_scores(reference: Reference, sums: Array) -> ScoreDrift:
    then, now = reference.counts, sums[1 : 1 + len(reference.counts)]
    n = float(now.sum())
    if n == 0:
        return ScoreDrift(0.0, 0.0, None, reference.mean_score, TOO_FEW)
    psi = stability_index(now, then)
    n_then = float(then.sum())
    by_chance = (len(then) - 1) * reference.score_effect * (1 / min(n, n_then) + 1 / n_then)
    verdict = TOO_FEW if n < MIN_TRANSACTIONS else _grade(max(psi - by_chance, 0.0), PSI_LIMITS)
    return ScoreDrift(psi, by_chance, float(sums[0]) / n, reference.mean_score, verdict)


def _compare_occupancy(reference: Reference, mass: Array) -> tuple[Array, Array]:
    """Return the shift of each regime's log odds [K], and the same in standard errors."""
    then = reference.n_rows * reference.occupancy + _PSEUDO_COUNT
    now = mass * min(reference.n_rows / max(mass.sum(), 1.0), 1.0) + _PSEUDO_COUNT
    others = [np.maximum(counts.sum() - counts, _PSEUDO_COUNT) for counts in (now, then)]
    shift = np.log(now / others[0]) - np.log(then / others[1])
    variance = 1 / now + 1 / others[0] + 1 / then + 1 / others[1]
    return shift, shift / np.sqrt(reference.occupancy_effects * variance)


def _compare_means(reference: Reference, cells: Array) -> tuple[Array, Array, Array]:
    """Return means, shifts and standard errors [K, D], the last two in reference deviations."""
    means, spreads = compute_moments(*cells)
    unit = np.maximum(reference.spreads, _MIN_SPREAD * _overall_spread(reference))
    with np.errstate(divide="ignore", invalid="ignore"):
        now = (np.maximum(spreads, unit) / unit) ** 2 / np.minimum(cells[0], reference.mass)
        errors = np.sqrt(reference.effects * (now + 1 / reference.mass))
    return means, (means - reference.means) / unit, errors


def _overall_spread(reference: Reference) -> Array:
    """Return each column's spread over all regimes [D]; 1, as in the fit, if it is constant."""
    mass, means, spreads = reference.mass, reference.means, reference.spreads
    firsts, squares = (mass * means).sum(axis=0), (mass * (spreads**2 + means**2)).sum(axis=0)
    spread = compute_moments(mass.sum(axis=0), firsts, squares)[1]
    return np.where(spread > 1e-6, spread, 1.0)


def _grade(shift: float, limits: tuple[float, float], z: float = np.inf) -> str:
    """Return the verdict on the size of a shift that is `z` standard errors."""
    if not abs(z) >= MIN_Z or abs(shift) < limits[0]:
        return STABLE
    return WATCH if abs(shift) < limits[1] else DRIFTED


def _digest_reference(reference: Reference) -> Array:
    """Return digests of features and scores [2]: sums with the same digest can be added."""
    age = np.array(reference.min_age_s)
    features = reference.means, reference.spreads, reference.mass, reference.occupancy, age
    digests = b""
    for arrays in (features, (reference.edges, reference.counts)):
        parts = [str(array.shape).encode() + array.tobytes() for array in arrays]
        digests += hashlib.sha256(b"".join(parts)).digest()[:8]
    return np.frombuffer(digests, "<u8")


def _as_contiguous(array: Array, dtype: type) -> Array:
    """Return the array as `add_rows` was compiled for it."""
    is_plain = array.dtype == dtype and array.flags.carray
    return array if is_plain else np.array(array, dtype, order="C")


@jit
def add_rows(
    scores: Array,
    occupancy: Array,
    cells: Array,
    beliefs: Array,
    rows: Array,
    probabilities: Array,
    inner_edges: Array,
    kept: float,
) -> None:
    """Scale the sums, as in SharedSums, by `kept`; add beliefs [n, K], rows [n, D], scores [n]."""
    for sums in (scores, occupancy, cells.reshape(-1)):
        sums *= kept
    for r in range(len(rows)):
        # NaN would stay in the sums for ever.
        is_sum_one = abs(beliefs[r].sum() - 1.0) < _SUM_TOLERANCE
        if not (is_sum_one and 0.0 <= probabilities[r] <= 1.0):
            continue
        scores[0] += probabilities[r]
        scores[1 + np.searchsorted(inner_edges, probabilities[r], side="right")] += 1.0
        for k in range(len(occupancy)):
            weight = beliefs[r, k]
            if weight < _MIN_WEIGHT:
                continue
            occupancy[k] += weight
            mass, firsts, squares = cells[0, k], cells[1, k], cells[2, k]
            for d in range(rows.shape[1]):
                cell = np.float64(rows[r, d])
                there = cell == cell
                share = weight if there else 0.0
                value = min(max(cell, -MAX_CELL), MAX_CELL) if there else 0.0
                mass[d] += share
                firsts[d] += share * value
                squares[d] += share * value * value


def watch_periods(
    detector: Detector,
    transactions: Transactions,
    periods: Sequence[Array],
    half_life: float,
    judges_labels: bool = True,
) -> list[DriftReport]:
    """The report after each period, given as rows of a file; other rows are history only."""
    cells = detector.features_.transform(transactions).continuous
    scores, times = detector.score(transactions), transactions.times
    ages_s = times - np.repeat(times[transactions.offsets[:-1]], np.diff(transactions.offsets))
    monitor = DriftMonitor.watch(detector, half_life=half_life, judges_labels=judges_labels)
    reports = []
    for period in periods:
        rows = period[np.argsort(times[period], kind="stable")]
        monitor.add(scores.belief[rows], cells[rows], scores.probability[rows], ages_s[rows])
        reports.append(monitor.report())
    monitor.close()
    return reports


def measure_drift(detector: Detector, transactions: Transactions, rows: Array) -> DriftReport:
    """Drift of some rows of a file, each counted once; the others are history only.

    Features of known labels are judged only if labels are known up to the end.
    """
    judges_labels = not has_open_labels(transactions)
    options: dict[str, Any] = {"half_life": _NO_DECAY, "judges_labels": judges_labels}
    return watch_periods(detector, transactions, [rows], **options)[0]


def has_open_labels(transactions: Transactions) -> bool:
    """Whether the labels of the last days are not known yet, or none is."""
    labels = transactions.labels
    return labels is None or find_labelled_until(transactions.times, labels) is not None


class SharedSums:
    """The sums of one process, in which earlier transactions fade, and of all in a folder."""

    def __init__(self, folder: Path | None, reference: Reference) -> None:
        """Create this in the process that adds to it, after a fork. None shares nothing."""
        n_states, n_columns = reference.means.shape
        fields = [
            ("digests", np.uint64, (2,)),  # of the reference's features and scores
            ("scores", np.float64, (1 + MAX_SCORE_BINS,)),  # their sum, then counts by bin
            ("occupancy", np.float64, (n_states,)),
            ("cells", np.float64, (3, n_states, n_columns)),  # mass, sums, sums of squares
            ("left_out", np.float64, ()),
        ]
        self.own: Array = np.zeros((), fields)
        self.own["digests"] = _digest_reference(reference)
        self._folder, self._lock = folder, -1
        self._path: Path | None = None
        if folder is not None and sys.platform != "win32":  # without locks nothing is shared
            try:
                self._open_file(folder)
            except OSError as problem:
                message = f"drift cannot keep its sums in {folder}: {problem}"
                raise ConfigError(f"{message}. Choose another folder") from problem

    def sum_all(self) -> Array:
        """Return the sums of all processes with the same reference."""
        total = self.own.copy()
        for path in self._folder.glob(f"*{_SUFFIX}") if self._folder else ():
            if path != self._path:
                with suppress(OSError):  # another process may remove it now
                    _add_file(total, path)
        return total

    def close(self) -> None:
        """Release the file for another process."""
        if self._lock >= 0:
            self.own = self.own.copy()
            os.close(self._lock)
            self._lock, self._path, self._folder = -1, None, None

    def _open_file(self, folder: Path) -> None:
        """Lock a free file, take over the sums of processes that ended, and map it to memory."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(_MAX_FILES):
            path = folder / f"{number:04d}{_SUFFIX}"
            if self._path is not None and not path.exists():
                break
            if (lock := _lock_file(path)) is None:
                continue
            _add_file(self.own, path)
            if self._path is None:
                self._lock, self._path = lock, path
            else:
                os.ftruncate(lock, 0)
                os.close(lock)
        if self._path is None:
            raise OSError(f"{_MAX_FILES} processes use it already")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, self.own.tobytes(), 0)  # finds a full disk now, before a signal does
        memory = mmap.mmap(self._lock, self.own.nbytes)
        self.own = np.frombuffer(memory, self.own.dtype).reshape(())


def _add_file(total: Array, path: Path) -> None:
    """Add a file's sums to those with the same digests."""
    data = path.read_bytes()  # of another process: perhaps with part of a batch, no matter
    if len(data) != total.nbytes:
        return
    found = np.frombuffer(data, total.dtype).reshape(())
    has_same_features, has_same_scores = found["digests"] == total["digests"]
    if has_same_features and all(np.isfinite(found[name]).all() for name in _SUMS):
        for name in _SUMS if has_same_scores else _SUMS[1:]:
            total[name] += found[name]


def _lock_file(path: Path) -> int | None:
    """Return a descriptor that holds the file's lock; None if another process holds it."""
    import fcntl  # not on Windows

    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
