"""Drift: how far the latest transactions are from the calibration rows, regime by regime.

A verdict needs enough transactions, a shift beyond chance, and one of a size that matters. Chance
assumes independent transactions; those of one customer resemble each other, so its bar is high.

Every process adds to sums in a file of its own, in a common folder, so that each can report on
all. The file is locked until its process ends; the next process to start takes over its sums.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.features.history import GROWING
from turncoat.numerics.jit import jit
from turncoat.scoring.reference import MAX_CELL, MAX_SCORE_BINS, Reference, compute_moments

if sys.platform != "win32":  # without file locks each process keeps its sums to itself
    import fcntl

TOO_FEW, STABLE, WATCH, DRIFTED = "too few", "stable", "watch", "drifted"
VERDICTS = (TOO_FEW, STABLE, WATCH, DRIFTED)

MIN_TRANSACTIONS = 500  # for a verdict on scores and on a regime's share of the traffic
MIN_IN_REGIME = 50  # transactions, now and in the reference, for a verdict on a feature
MIN_Z = 5.0  # standard errors: one of 2,000 features passes by chance in 1 of 1,000 reports
PSI_LIMITS = (0.1, 0.25)  # population stability index minus its value by chance
SHIFT_LIMITS = (0.2, 0.5)  # of a feature's mean, in standard deviations
OCCUPANCY_LIMITS = (0.5, 1.0)  # of a regime's log odds: factors of 1.6 and 2.7
_PSEUDO_COUNT = 0.5  # added to every count, so that an empty bin is not infinitely far
_MIN_SPREAD = 0.05  # of a column's overall spread, where a regime's own is smaller

_SUFFIX = ".sums"
_MAX_FILES = 1024
_SUM_TOLERANCE = 1e-3
_MIN_WEIGHT = 1e-9  # of a regime in a row


@dataclass(frozen=True)
class ScoreDrift:
    """The distribution of scores."""

    psi: float  # population stability index
    psi_by_chance: float  # its mean if nothing has changed
    mean_now: float | None  # None before the first transaction
    mean_then: float
    verdict: str


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
        *,
        half_life: float = 20_000,
    ) -> None:
        """Share sums in `folder` with the model's other processes; None shares nothing.

        `names` are the panel's continuous columns. After `half_life` more transactions of its
        process a transaction counts half.
        """
        n_states, n_columns = reference.means.shape
        if len(names) != n_columns:
            raise ConfigError(f"the reference has {n_columns} features; found {len(names)} names")
        if not 0 < half_life < np.inf:
            raise ConfigError(
                f"half_life is {half_life!r}; it must be a positive number of transactions"
            )
        self._names, self._half_life = tuple(names), half_life
        ages = [name.removeprefix("counterparty_") in GROWING for name in names]
        self._has_verdict = ~np.array(ages, bool)  # ages drift by nature
        self._set_reference(reference)
        self._shared = SharedSums(folder, _digest_reference(reference), n_states, n_columns)
        empty = np.empty((0, n_states)), np.empty((0, n_columns), np.float32), np.empty(0)
        self.add(*empty)  # compiles

    def _set_reference(self, reference: Reference) -> None:
        self._reference = reference
        self._inner_edges = np.ascontiguousarray(reference.edges[1:-1])

    def add(self, beliefs: Array, rows: Array, probabilities: Array) -> None:
        """Add filtered beliefs [n, K], cells [n, D] (NaN if missing) and scores [n]."""
        n, (n_states, n_columns) = len(rows), self._reference.means.shape
        found = beliefs.shape, rows.shape, probabilities.shape
        if found != ((n, n_states), (n, n_columns), (n,)):
            raise DataError(
                f"drift takes beliefs [n, {n_states}], cells [n, {n_columns}] and scores [n]; "
                f"found {found[0]}, {found[1]} and {found[2]}"
            )
        add_rows(
            self._shared.own.flat,
            _as_contiguous(beliefs, np.float64),
            _as_contiguous(rows, np.float32),
            _as_contiguous(probabilities, np.float64),
            self._inner_edges,
            0.5 ** (n / self._half_life),
        )

    def update_reference(self, reference: Reference) -> bool:
        """Compare with another reference of the same model; False if it is another model's.

        The sums of features stay. Scores are counted anew if the calibration changed.
        """
        old, new = _digest_reference(self._reference), _digest_reference(reference)
        if new.features != old.features:
            return False
        if new.scores != old.scores:
            self._set_reference(reference)
            self._shared.restart_scores(new.scores)
        return True

    def report(self, max_features: int = 5) -> DriftReport:
        """Return the drift of all processes, with the most shifted features of each regime."""
        sums = self._shared.sum_all()
        score = _compare_scores(self._reference, sums)
        regimes = self._compare_regimes(sums, max_features)
        transactions = float(sums.occupancy.sum())
        verdicts = [score.verdict, *(regime.verdict for regime in regimes)]
        verdicts += [feature.verdict for regime in regimes for feature in regime.features]
        verdict = max(verdicts, key=VERDICTS.index)
        if transactions < MIN_TRANSACTIONS:
            verdict = TOO_FEW
        return DriftReport(transactions, verdict, score, regimes)

    def close(self) -> None:
        """Release the file. The next process takes over its sums."""
        self._shared.close()

    def _compare_regimes(self, sums: Sums, max_features: int) -> tuple[RegimeDrift, ...]:
        reference, total = self._reference, float(sums.occupancy.sum())
        log_odds_shifts, log_odds_zs = _compare_occupancy(reference, sums.occupancy)
        means, shifts, errors = _compare_means(reference, sums)
        enough = (sums.mass >= MIN_IN_REGIME) & (reference.mass >= MIN_IN_REGIME)
        enough &= self._has_verdict
        found = []
        for k, occupancy_then in enumerate(reference.occupancy.tolist()):
            features = []
            sure = np.where(enough[k], np.abs(shifts[k]) - 2 * errors[k], -np.inf)
            for d in np.argsort(-sure, kind="stable")[:max_features].tolist():
                if not enough[k, d]:
                    continue
                shift, z = float(shifts[k, d]), float(shifts[k, d] / errors[k, d])
                verdict = _grade(abs(shift), SHIFT_LIMITS) if abs(z) >= MIN_Z else STABLE
                now, then = float(means[k, d]), float(reference.means[k, d])
                features.append(FeatureDrift(self._names[d], now, then, shift, z, verdict))
            is_sure = enough[k] & (np.abs(shifts[k]) >= MIN_Z * errors[k])
            verdict = STABLE
            if abs(log_odds_zs[k]) >= MIN_Z:
                verdict = _grade(abs(log_odds_shifts[k]), OCCUPANCY_LIMITS)
            found.append(
                RegimeDrift(
                    regime=k,
                    transactions=float(sums.occupancy[k]),
                    occupancy_now=float(sums.occupancy[k]) / total if total > 0 else None,
                    occupancy_then=occupancy_then,
                    verdict=TOO_FEW if total < MIN_TRANSACTIONS else verdict,
                    largest_shift=float(np.abs(shifts[k])[is_sure].max(initial=0.0)),
                    features=tuple(features),
                )
            )
        return tuple(found)


def stability_index(now: Array, then: Array) -> float:
    """Return the population stability index of two sets of counts [B], with pseudo-counts."""
    shares = [(counts + _PSEUDO_COUNT) / (counts + _PSEUDO_COUNT).sum() for counts in (now, then)]
    return float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())


def _compare_scores(reference: Reference, sums: Sums) -> ScoreDrift:
    then, now = reference.counts, sums.score_counts[: len(reference.counts)]
    n = float(now.sum())
    if n == 0:
        return ScoreDrift(0.0, 0.0, None, reference.mean_score, TOO_FEW)
    psi = stability_index(now, then)
    by_chance = (len(then) - 1) * (1 / n + 1 / float(then.sum()))
    verdict = TOO_FEW if n < MIN_TRANSACTIONS else _grade(psi - by_chance, PSI_LIMITS)
    return ScoreDrift(psi, by_chance, float(sums.score_total[0]) / n, reference.mean_score, verdict)


def _compare_occupancy(reference: Reference, mass: Array) -> tuple[Array, Array]:
    """Return the shift of each regime's log odds [K], and the same in standard errors."""
    now = mass + _PSEUDO_COUNT
    then = reference.n_rows * reference.occupancy + _PSEUDO_COUNT
    others = [np.maximum(counts.sum() - counts, _PSEUDO_COUNT) for counts in (now, then)]
    shift = np.log(now / others[0]) - np.log(then / others[1])
    return shift, shift / np.sqrt(1 / now + 1 / others[0] + 1 / then + 1 / others[1])


def _compare_means(reference: Reference, sums: Sums) -> tuple[Array, Array, Array]:
    """Return means, shifts and standard errors [K, D], the last two in reference deviations."""
    means, spreads = compute_moments(sums.mass, sums.firsts, sums.squares)
    unit = np.maximum(reference.spreads, _MIN_SPREAD * _overall_spread(reference))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt((np.maximum(spreads, unit) / unit) ** 2 / sums.mass + 1 / reference.mass)
    return means, (means - reference.means) / unit, errors


def _overall_spread(reference: Reference) -> Array:
    """Return each column's spread over all regimes [D]; 1, as in the fit, if it is constant."""
    mass, means, spreads = reference.mass, reference.means, reference.spreads
    firsts, squares = (mass * means).sum(axis=0), (mass * (spreads**2 + means**2)).sum(axis=0)
    spread = compute_moments(mass.sum(axis=0), firsts, squares)[1]
    return np.where(spread > 1e-6, spread, 1.0)


def _grade(size: float, limits: tuple[float, float]) -> str:
    return STABLE if size < limits[0] else WATCH if size < limits[1] else DRIFTED


class Digests(NamedTuple):
    """Digests of a reference's two parts: sums with the same digest can be added."""

    features: int
    scores: int


def _digest_reference(reference: Reference) -> Digests:
    features = (reference.means, reference.spreads, reference.mass, reference.occupancy)
    return Digests(_digest(features), _digest((reference.edges, reference.counts)))


def _digest(arrays: Sequence[Array]) -> int:
    parts = (str(array.shape).encode() + np.ascontiguousarray(array).tobytes() for array in arrays)
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:8], "little")


def _as_contiguous(array: Array, dtype: type) -> Array:
    """Return the array as `add_rows` was compiled for it."""
    is_plain = array.dtype == dtype and array.flags.carray
    return array if is_plain else np.array(array, dtype, order="C")


class Sums:
    """Sums of scores, beliefs and cells in which earlier transactions fade: views of one array."""

    def __init__(self, flat: Array, n_states: int, n_columns: int) -> None:
        """Use the layout that `add_rows` writes."""
        first = MAX_SCORE_BINS + 1 + n_states
        self.flat, self.score_part = flat, flat[: MAX_SCORE_BINS + 1]
        self.score_total, self.score_counts = flat[0:1], flat[1 : MAX_SCORE_BINS + 1]
        self.occupancy = flat[MAX_SCORE_BINS + 1 : first]  # [K]
        cells = flat[first:].reshape(3, n_states, n_columns)
        self.mass, self.firsts, self.squares = cells

    @staticmethod
    def size(n_states: int, n_columns: int) -> int:
        """Return how many numbers there are."""
        return MAX_SCORE_BINS + 1 + n_states + 3 * n_states * n_columns


@jit
def add_rows(
    sums: Array, beliefs: Array, rows: Array, probabilities: Array, inner_edges: Array, kept: float
) -> None:
    """Scale the sums by `kept`, then add beliefs [n, K], cells [n, D] and scores [n]."""
    n_states, n_columns = beliefs.shape[1], rows.shape[1]
    for i in range(len(sums)):
        sums[i] *= kept
    first = MAX_SCORE_BINS + 1 + n_states
    step = n_states * n_columns
    for r in range(len(rows)):
        total = 0.0
        for k in range(n_states):
            total += beliefs[r, k]
        # NaN would stay in the sums for ever.
        if not (abs(total - 1.0) < _SUM_TOLERANCE and 0.0 <= probabilities[r] <= 1.0):
            continue
        place = 0
        for edge in inner_edges:
            place += 1 if probabilities[r] >= edge else 0
        sums[0] += probabilities[r]
        sums[1 + place] += 1.0
        for k in range(n_states):
            weight = beliefs[r, k]
            if weight < _MIN_WEIGHT:
                continue
            sums[MAX_SCORE_BINS + 1 + k] += weight
            start = first + k * n_columns
            mass, firsts = sums[start : start + n_columns], sums[start + step :]
            squares = sums[start + 2 * step :]
            for d in range(n_columns):
                cell = np.float64(rows[r, d])
                there = cell == cell
                share = weight if there else 0.0
                value = min(max(cell, -MAX_CELL), MAX_CELL) if there else 0.0
                mass[d] += share
                firsts[d] += share * value
                squares[d] += share * value * value


class SharedSums:
    """The sums of one process, and of all processes that share a folder."""

    def __init__(
        self, folder: Path | None, digests: Digests, n_states: int, n_columns: int
    ) -> None:
        """Create this in the process that adds to it, after a fork. None shares nothing."""
        self._shape = n_states, n_columns
        self._size = len(digests) + Sums.size(*self._shape)
        self._folder, self._lock = folder, -1
        self._path: Path | None = None
        memory: Array = np.zeros(self._size)
        if folder is not None and sys.platform != "win32":
            try:
                memory = self._open_file(folder, digests)
            except OSError as problem:
                raise ConfigError(
                    f"drift cannot keep its sums in {folder}: {problem}. Choose another folder"
                ) from problem
        self._use(memory)
        self._digests[:] = digests

    def _use(self, memory: Array) -> None:
        """Keep two digests and the sums in this memory [2 + size]."""
        self._memory, self._digests = memory, memory[:2].view(np.uint64)
        self.own = Sums(memory[2:], *self._shape)

    def sum_all(self) -> Sums:
        """Return the sums of all processes with the same reference."""
        total = Sums(self.own.flat.copy(), *self._shape)
        digests = Digests(*self._digests.tolist())
        for path in self._folder.glob(f"*{_SUFFIX}") if self._folder else ():
            if path != self._path:
                with contextlib.suppress(OSError):  # another process may remove it now
                    total.flat += self._read_sums(path, digests)
        return total

    def restart_scores(self, digest: int) -> None:
        """Forget the scores: a new calibration makes others."""
        self.own.score_part[:] = 0.0
        self._digests[1] = digest

    def close(self) -> None:
        """Release the file for another process."""
        if self._lock >= 0:
            self._use(np.array(self._memory))
            os.close(self._lock)
            self._lock, self._path, self._folder = -1, None, None

    def _open_file(self, folder: Path, digests: Digests) -> Array:
        """Lock a free file, take over the sums of processes that ended, and map it to memory."""
        folder.mkdir(parents=True, exist_ok=True)
        content = np.zeros(self._size)
        for number in range(_MAX_FILES):
            path = folder / f"{number:04d}{_SUFFIX}"
            if self._lock >= 0 and not path.exists():
                break
            lock = _lock_file(path)
            if lock is None:
                continue
            content[2:] += self._read_sums(path, digests)
            if self._lock < 0:
                self._lock, self._path = lock, path
            else:
                os.ftruncate(lock, 0)
                os.close(lock)
        if self._path is None:
            raise OSError(f"{_MAX_FILES} processes use it already")
        content[:2].view(np.uint64)[:] = digests
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, content.tobytes(), 0)  # finds a full disk now, before a signal does
        return np.frombuffer(mmap.mmap(self._lock, content.nbytes), np.float64)

    def _read_sums(self, path: Path, digests: Digests) -> Array:
        """Return a file's sums with the same digests, zeros for the rest.

        A file that is being written to may have added part of a batch; that does not matter.
        """
        data = path.read_bytes()
        if len(data) != 8 * self._size:
            return np.zeros(self._size - 2)
        content = np.frombuffer(data, np.float64).copy()
        found, flat = Digests(*content[:2].view(np.uint64).tolist()), content[2:]
        if found.features != digests.features or not np.isfinite(flat).all():
            return np.zeros(self._size - 2)
        if found.scores != digests.scores:
            Sums(flat, *self._shape).score_part[:] = 0.0
        return flat


def _lock_file(path: Path) -> int | None:
    """Return a descriptor that holds the file's lock; None if another process holds it."""
    if sys.platform == "win32":
        return None
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock
