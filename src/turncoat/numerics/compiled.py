"""The one way Turncoat compiles a function with numba."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and multiply-adds fused, which is what lets the compiler use vector registers.
# NaN and infinity keep their meaning: NaN is how a missing cell is recognised.
_RELAXED = {"reassoc", "contract", "nsz", "arcp"}


@cache
def _digest(folder: Path) -> str:
    return hashlib.sha256(
        b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    ).hexdigest()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache, keyed by all kernel sources: kernels are inlined in each other, so any edit touches all."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._sources = tuple(
            _digest(folder)
            for folder in {Path(__file__).parent, Path(function.__code__.co_filename).parent}
        )

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(signature, codegen), *sorted(self._sources))

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """A damaged cache file is as good as none."""
        try:
            return super().load_overload(signature, target_context)
        except Exception:
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """A full or failing disk costs the next process a compilation, not this one its result."""
        with contextlib.suppress(OSError):
            super().save_overload(signature, data)


def can_cache() -> bool:
    """Whether compiled kernels can be kept on disk: somewhere must be writable."""
    try:
        _KernelCache(can_cache)
    except RuntimeError:
        return False
    return True


_CAN_CACHE = can_cache()


def compiled(function: F) -> F:
    """Compile without the interpreter lock, cached on disk where possible, with sums in any order."""
    return _cached(
        function,
        numba.njit(nogil=True, no_cfunc_wrapper=True, fastmath=_RELAXED, error_model="numpy")(
            function
        ),
    )


def compiled_exactly(function: F) -> F:
    """Compile likewise, every operation rounded as written: the same bits wherever the function is inlined."""
    return _cached(
        function, numba.njit(nogil=True, no_cfunc_wrapper=True, error_model="numpy")(function)
    )


def _cached(function: F, dispatcher: Any) -> F:
    if _CAN_CACHE:
        dispatcher._cache = _KernelCache(function)
    return cast(F, dispatcher)
