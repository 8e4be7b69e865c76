"""Matching the states of two fits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from turncoat.errors import DataError


def align_states(reference: ArrayLike, other: ArrayLike) -> NDArray[np.int64]:
    """Order of the other fit's states that best matches the reference's, on the same rows.

    Both are posteriors [N, K] or decoded paths [N]. With the answer `order`, `other[:, order]` lines up with the
    reference's columns, `params.reordered(order)` with its parameters, and `np.argsort(order)[path]` with its paths.
    If the numbers of states differ, the larger one counts: places in the answer that only one of the two has are
    padding, matched to what is left.
    """
    first, second = np.asarray(reference), np.asarray(other)
    if (
        first.ndim not in (1, 2)
        or second.ndim not in (1, 2)
        or len(first) != len(second)
        or len(first) == 0
    ):
        raise DataError(
            f"both must describe the same rows; found shapes {first.shape} and {second.shape}"
        )
    width = max(_n_states(first), _n_states(second))
    shared = _as_probs(first, width).T @ _as_probs(second, width)
    return np.asarray(linear_sum_assignment(-shared)[1], dtype=np.int64)


def _n_states(values: NDArray[Any]) -> int:
    if values.ndim == 2:
        if not np.isfinite(values).all():
            raise DataError("posteriors must be finite")
        return int(values.shape[1])
    if values.dtype.kind not in "ui" or values.min() < 0:
        raise DataError("expected posteriors [N, K] or a path [N] of state numbers")
    return int(values.max()) + 1


def _as_probs(values: NDArray[Any], width: int) -> NDArray[Any]:
    probs = np.zeros((len(values), width))
    if values.ndim == 2:
        probs[:, : values.shape[1]] = values
    else:
        probs[np.arange(len(values)), values] = 1.0
    return probs
