"""Anchors: rows whose state is known to lie in some set, such as the fraud states of a confirmed fraud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncoat.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class Anchors:
    """Per row a code (-1 is free) and per code the states it allows; with `noise`, the code is wrong that often."""

    codes: ArrayLike  # [N] integers
    allowed_states: ArrayLike  # [codes, K] booleans
    noise: float = 0.0

    def log_weights(self, n_states: int) -> NDArray[Any]:
        """What each code adds to log b(k) [codes, K]."""
        allowed = np.asarray(self.allowed_states)
        if allowed.dtype != bool or allowed.ndim != 2 or allowed.shape[1] != n_states:
            raise ConfigError(f"allowed_states must be booleans [codes, {n_states}]; found {allowed.dtype} {allowed.shape}")
        if not allowed.any(axis=1).all():
            code = int(np.flatnonzero(~allowed.any(axis=1))[0])
            raise ConfigError(f"anchor code {code} allows no state; allow at least one")
        if not 0.0 <= self.noise < 1.0:
            raise ConfigError(f"anchor noise must be at least 0 and below 1; found {self.noise}")
        with np.errstate(divide="ignore"):
            return np.log(np.where(allowed, 1.0 - self.noise, self.noise))

    def checked_codes(self, n_rows: int) -> NDArray[Any]:
        """The codes, if there is one per row and all are known."""
        codes = np.asarray(self.codes)
        if codes.shape != (n_rows,) or codes.dtype.kind not in "ui":
            raise DataError(f"anchor codes must be {n_rows} integers, one per row; found {codes.dtype} {codes.shape}")
        n_codes = len(np.asarray(self.allowed_states))
        wrong = np.flatnonzero((codes < -1) | (codes >= n_codes))
        if wrong.size:
            row = int(wrong[0])
            raise DataError(f"anchor row {row}: found code {codes[row]}; codes run from -1 (free) to {n_codes - 1}")
        return codes.astype(np.int64)
