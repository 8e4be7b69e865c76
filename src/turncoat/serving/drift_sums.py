"""What drift is measured with: sums over the latest transactions, in memory that other processes can read.

A process takes a file of its own in a common folder, held by a lock that ends with it. What processes that ended have left there is
added to the sums of the next one to start, and is forgotten in time like all else.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError
from turncoat.numerics.jit import jit
from turncoat.scoring.reference import MAX_CELL, MAX_SCORE_BINS

if sys.platform != "win32":  # where there are no such locks, each process keeps its sums to itself
    import fcntl


_SUFFIX = ".sums"
_MOST_FILES = 1024
_WORDS = 2  # before the sums: what the features are compared with, and what the scores are
_WORD = 8
_SUM_TOLERANCE = 1e-3
_LEAST_WEIGHT = 1e-9  # of a state in a row that is worth adding to the state's sums


class Marks(NamedTuple):
    """Digests of what features and scores are compared with: sums can be added if these are the same."""

    features: int
    scores: int


class Sums:
    """Exponentially forgotten sums of scores, beliefs and cells, as views of one array."""

    def __init__(self, flat: Array, n_states: int, n_columns: int) -> None:
        self.flat = flat
        self.score_part = flat[: MAX_SCORE_BINS + 1]
        self.score_total, self.score_counts = flat[0:1], flat[1 : MAX_SCORE_BINS + 1]
        self.occupancy = flat[MAX_SCORE_BINS + 1 : MAX_SCORE_BINS + 1 + n_states]  # [K]
        self.mass, self.firsts, self.squares = flat[MAX_SCORE_BINS + 1 + n_states :].reshape(
            3, n_states, n_columns
        )

    @staticmethod
    def size(n_states: int, n_columns: int) -> int:
        """How many numbers there are."""
        return MAX_SCORE_BINS + 1 + n_states + 3 * n_states * n_columns


@jit
def add_rows(
    sums: Array, beliefs: Array, rows: Array, probabilities: Array, inner_edges: Array, kept: float
) -> None:
    """Keep so much of the sums and add beliefs [n, K], cells [n, D] and scores [n]; sums are laid out as in `Sums`."""
    n_states, n_columns = beliefs.shape[1], rows.shape[1]
    for i in range(len(sums)):
        sums[i] *= kept
    first = MAX_SCORE_BINS + 1 + n_states
    step = n_states * n_columns
    for r in range(len(rows)):
        total = 0.0
        for k in range(n_states):
            total += beliefs[r, k]
        # A value that is no number would stay in the sums for ever.
        if not (abs(total - 1.0) < _SUM_TOLERANCE and 0.0 <= probabilities[r] <= 1.0):
            continue
        place = 0
        for edge in inner_edges:
            place += 1 if probabilities[r] >= edge else 0
        sums[0] += probabilities[r]
        sums[1 + place] += 1.0
        for k in range(n_states):
            weight = beliefs[r, k]
            if weight < _LEAST_WEIGHT:
                continue
            sums[MAX_SCORE_BINS + 1 + k] += weight
            start = first + k * n_columns
            mass, firsts, squares = (
                sums[start : start + n_columns],
                sums[start + step :],
                sums[start + 2 * step :],
            )
            for d in range(n_columns):
                cell = np.float64(rows[r, d])
                there = cell == cell
                share = weight if there else 0.0
                value = min(max(cell, -MAX_CELL), MAX_CELL) if there else 0.0
                mass[d] += share
                firsts[d] += share * value
                squares[d] += share * value * value


class SharedSums:
    """The sums of one process, and those of all processes together."""

    def __init__(self, folder: Path | None, marks: Marks, n_states: int, n_columns: int) -> None:
        """In a folder shared by the processes, or in memory alone. To be made in the process that adds to it, not before a fork."""
        self._shape = n_states, n_columns
        self._folder, self._lock = folder, -1
        self._path: Path | None = None
        self._marks = np.zeros(_WORDS, np.uint64)
        self.own = Sums(np.zeros(Sums.size(*self._shape)), *self._shape)
        if folder is not None and sys.platform != "win32":
            try:
                self._share(folder, marks)
            except OSError as problem:
                raise ConfigError(
                    f"cannot keep what drift is measured with in {folder}: {problem}. Choose another folder"
                ) from problem
        self._marks[:] = marks

    def all(self) -> Sums:
        """The sums of all processes that compare with the same; their scores only where these have the same bins."""
        total = Sums(self.own.flat.copy(), *self._shape)
        marks = Marks(*self._marks.tolist())
        if self._folder is not None:
            for path in self._folder.glob(f"*{_SUFFIX}"):
                if path != self._path:
                    with contextlib.suppress(OSError):  # it may go as we look
                        total.flat += self._comparable(path.read_bytes(), marks)
        return total

    def restart_scores(self, mark: int) -> None:
        """Forget the scores, which will be compared with others from now on."""
        self.own.score_part[:] = 0.0
        self._marks[1] = mark

    def close(self) -> None:
        """Let go of the file, for another process to go on from."""
        if self._lock >= 0:
            self.own = Sums(self.own.flat.copy(), *self._shape)
            self._marks = self._marks.copy()
            os.close(self._lock)
            self._lock, self._path, self._folder = -1, None, None

    def _share(self, folder: Path, marks: Marks) -> None:
        """Take a file that nobody holds, and all that others have left."""
        folder.mkdir(parents=True, exist_ok=True)
        left = np.zeros(Sums.size(*self._shape))
        for number in range(_MOST_FILES):
            path = folder / f"{number:04d}{_SUFFIX}"
            if self._lock >= 0 and not path.exists():
                break
            lock = _locked(path)
            if lock is None:
                continue
            left += self._comparable(path.read_bytes(), marks)
            if self._lock < 0:
                self._lock, self._path = lock, path
            else:
                os.ftruncate(lock, 0)
                os.close(lock)
        if self._path is None:
            raise OSError(f"{_MOST_FILES} processes are at work there")
        content = np.array(marks, np.uint64).tobytes() + left.tobytes()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, content, 0)  # a full disk is found out now, not by a signal later
        whole = mmap.mmap(self._lock, len(content))
        self._marks = np.frombuffer(whole, np.uint64, _WORDS)
        self.own = Sums(np.frombuffer(whole, np.float64, offset=_WORD * _WORDS), *self._shape)

    def _comparable(self, content: bytes, marks: Marks) -> Array:
        """A file's sums, less what is compared with something else.

        One that is being written to may hold part of a batch more in some sums than in others, which does not matter.
        """
        size = Sums.size(*self._shape)
        if len(content) != _WORD * (_WORDS + size):
            return np.zeros(size)
        found = Marks(*np.frombuffer(content, np.uint64, _WORDS).tolist())
        flat = np.frombuffer(content, np.float64, offset=_WORD * _WORDS).copy()
        if found.features != marks.features or not np.isfinite(flat).all():
            return np.zeros(size)
        if found.scores != marks.scores:
            Sums(flat, *self._shape).score_part[:] = 0.0
        return flat


def _locked(path: Path) -> int | None:
    """A descriptor of the file with the lock on it; None if another process has that."""
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
