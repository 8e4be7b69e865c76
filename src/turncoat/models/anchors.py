"""Anchors: rows whose state is known to lie in some set, such as the fraud states of a confirmed fraud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncoat.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False)
class Anchors:
    """Per row a code (-1 is free) and per code the states it allows; with `noise`, the code is wrong that often.

    With three states of which the last is to carry the fraud, and labels 0, 1, or -1 for unknown::

        Anchors(codes=panel.labels, allowed_states=[[True, True, False], [False, False, True]], noise=0.01)
    """

    codes: ArrayLike  # [N] integers
    allowed_states: ArrayLike  # [codes, K] booleans
    noise: float = 0.0
    likelihoods: ArrayLike | None = (
        None  # [codes, K] in place of `allowed_states` and `noise`; see `of_likelihoods`
    )

    @classmethod
    def of_likelihoods(cls, codes: ArrayLike, likelihoods: ArrayLike) -> Anchors:
        """Codes that say something about the state without settling it: P(code | state) [codes, K]."""
        table = np.asarray(likelihoods, dtype=np.float64)
        if not (np.isfinite(table).all() and (table >= 0).all()):
            raise ConfigError("likelihoods of anchor codes must be finite and not negative")
        return cls(codes, table > 0, likelihoods=table)

    def __post_init__(self) -> None:
        try:
            codes, allowed = np.asarray(self.codes), np.asarray(self.allowed_states)
        except ValueError as problem:
            raise ConfigError(
                "allowed_states must be a table of booleans [codes, states]; its rows differ in length"
            ) from problem
        if codes.ndim != 1 or codes.dtype.kind not in "ui":
            raise DataError(
                f"anchor codes must be integers, one per row, -1 for a free row; found {codes.dtype} {codes.shape}"
            )
        if allowed.dtype != bool or allowed.ndim != 2:
            raise ConfigError(
                f"allowed_states must be a table of booleans [codes, states]; found {allowed.dtype} {allowed.shape}"
            )
        if not allowed.any(axis=1).all():
            raise ConfigError(
                f"anchor code {int(np.flatnonzero(~allowed.any(axis=1))[0])} allows no state; allow at least one"
            )
        if not isinstance(self.noise, int | float | np.number) or not 0.0 <= self.noise < 1.0:
            raise ConfigError(
                f"anchor noise must be a number of at least 0 and below 1; found {self.noise!r}"
            )
        wrong = np.flatnonzero((codes < -1) | (codes >= len(allowed)))
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"anchor row {row}: found code {codes[row]}; codes run from -1 (free) to {len(allowed) - 1}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "allowed_states", allowed)

    def log_weights(self, n_states: int) -> NDArray[Any]:
        """What each code adds to log b(k) [codes, K]."""
        allowed = np.asarray(self.allowed_states)
        if allowed.shape[1] != n_states:
            raise ConfigError(
                f"allowed_states must have a column for each of the {n_states} states; found {allowed.shape[1]}"
            )
        weights = (
            np.where(allowed, 1.0 - self.noise, self.noise)
            if self.likelihoods is None
            else np.asarray(self.likelihoods)
        )
        with np.errstate(divide="ignore"):
            return np.log(weights)

    def moved_to_allowed(self, states: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
        """States proposed for some rows, those of anchored ones moved to a state they may be in: the same always to the same."""
        allowed, codes = np.asarray(self.allowed_states), np.asarray(self.codes)[rows]
        moved = states.copy()
        for code in range(len(allowed)):
            own, possible = codes == code, np.flatnonzero(allowed[code])
            barred = own & ~np.isin(states, possible)
            moved[barred] = possible[states[barred] % len(possible)]
        return moved

    def codes_of(self, n_rows: int) -> NDArray[Any]:
        """The codes, if there is one per row."""
        codes = np.asarray(self.codes)
        if len(codes) != n_rows:
            raise DataError(
                f"anchors must have a code for each of the panel's {n_rows} rows; found {len(codes)}"
            )
        return codes
