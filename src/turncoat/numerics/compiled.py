"""The one way Turncoat compiles a function with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and multiply-adds fused, which is what lets the compiler use vector registers.
# NaN and infinity keep their meaning: NaN is how a missing cell is recognised.
_RELAXED = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: F) -> F:
    """Compile without the interpreter lock, cached on disk, with sums in any order."""
    return cast(F, numba.njit(nogil=True, cache=True, fastmath=_RELAXED, error_model="numpy")(function))
