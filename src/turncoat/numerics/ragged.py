"""Categories of many columns side by side in one array [K, C_1 + ... + C_J], so that no step loops over columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turncoat.arrays import Array

Sizes = tuple[int, ...]


def starts(sizes: Sizes) -> Array:
    """First place of each column [J]."""
    return np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)


def joined(parts: Sequence[Array], n_states: int) -> Array:
    """One array [K, sum of C_j] from one [K, C_j] per column."""
    return np.concatenate(parts, axis=1) if parts else np.empty((n_states, 0))


def split(flat: Array, sizes: Sizes) -> tuple[Array, ...]:
    """The columns again, as views."""
    return tuple(
        flat[:, at : at + size] for at, size in zip(starts(sizes).tolist(), sizes, strict=True)
    )


def column_sums(flat: Array, sizes: Sizes) -> Array:
    """Sum over each column's categories, repeated for each of them: same shape as `flat`."""
    if not sizes:
        return flat
    return np.repeat(np.add.reduceat(flat, starts(sizes), axis=1), sizes, axis=1)
