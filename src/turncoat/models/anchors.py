"""Anchors: rows whose state is known to lie in a set, such as the fraud states of a known fraud."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.numerics.layout import log_allowing_zero


@dataclass(frozen=True, eq=False)
class Anchors:
    """A code per row (-1: free), and per code the states that it allows.

    `noise` is the probability that a code is wrong. With three states, the last for fraud, and
    labels 0, 1, or -1 for unknown::

        states = [[True, True, False], [False, False, True]]
        Anchors(codes=panel.labels, allowed_states=states, noise=0.01)
    """

    codes: ArrayLike  # [N] integers
    allowed_states: ArrayLike  # [codes, K] booleans
    noise: float = 0.0
    # [codes, K], in place of `allowed_states` and `noise`; see `from_likelihoods`
    likelihoods: ArrayLike | None = None

    @classmethod
    def from_likelihoods(cls, codes: ArrayLike, likelihoods: ArrayLike) -> Anchors:
        """Return anchors from P(code | state) [codes, K]: evidence about the state."""
        table = np.asarray(likelihoods, dtype=np.float64)
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise ConfigError("likelihoods of anchor codes must be finite and not negative")
        return cls(codes, table > 0, likelihoods=table)

    def __post_init__(self) -> None:
        expected = "allowed_states must be a table of booleans [codes, states]"
        try:
            codes, allowed = np.asarray(self.codes), np.asarray(self.allowed_states)
        except ValueError as problem:
            raise ConfigError(f"{expected}; its rows differ in length") from problem
        if codes.ndim != 1 or codes.dtype.kind not in "ui":
            rule = "anchor codes must be integers, one per row, -1 for a free row"
            raise DataError(f"{rule}; found {codes.dtype} {codes.shape}")
        if allowed.dtype != bool or allowed.ndim != 2:
            raise ConfigError(f"{expected}; found {allowed.dtype} {allowed.shape}")
        if not allowed.any(axis=1).all():
            code = int(np.flatnonzero(~allowed.any(axis=1))[0])
            raise ConfigError(f"anchor code {code} allows no state; allow at least one")
        if not isinstance(self.noise, int | float | np.number) or not 0.0 <= self.noise < 1.0:
            rule = "anchor noise must be a number of at least 0 and below 1"
            raise ConfigError(f"{rule}; found {self.noise!r}")
        wrong = np.flatnonzero((codes < -1) | (codes >= len(allowed)))
        if wrong.size:
            row, rule = int(wrong[0]), f"codes run from -1 (free) to {len(allowed) - 1}"
            raise DataError(f"anchor row {row}: found code {codes[row]}; {rule}")
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "allowed_states", allowed)

    def log_weights(self, n_states: int) -> Array:
        """Return what each code adds to log b(k) [codes, K]."""
        allowed = np.asarray(self.allowed_states)
        if allowed.shape[1] != n_states:
            rule = f"allowed_states must have a column for each of the {n_states} states"
            raise ConfigError(f"{rule}; found {allowed.shape[1]}")
        weights = self.likelihoods
        if weights is None:
            weights = np.where(allowed, 1.0 - self.noise, self.noise)
        return log_allowing_zero(np.asarray(weights))

    def move_to_allowed(self, states: Array) -> Array:
        """Move the states [N] that are not allowed, each to the same allowed state."""
        allowed, codes = np.asarray(self.allowed_states), np.asarray(self.codes)
        moved = states.copy()
        for code in range(len(allowed)):
            possible = np.flatnonzero(allowed[code])
            wrong = (codes == code) & ~np.isin(states, possible)
            moved[wrong] = possible[states[wrong] % len(possible)]
        return moved

    def check_codes(self, n_rows: int) -> Array:
        """Return the codes [N]; raise a DataError unless there is one per row."""
        codes = np.asarray(self.codes)
        if len(codes) != n_rows:
            rule = f"anchors must have a code for each of the panel's {n_rows} rows"
            raise DataError(f"{rule}; found {len(codes)}")
        return codes
