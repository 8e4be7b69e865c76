"""The one way Turncoat compiles a function with numba."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and multiply-adds fused, which is what lets the compiler use vector registers.
# NaN and infinity keep their meaning: NaN is how a missing cell is recognised.
_RELAXED = {"reassoc", "contract", "nsz", "arcp"}

_SOURCES = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache, keyed by all kernel sources: kernels are inlined in each other, so any edit touches all."""

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(signature, codegen), _SOURCES)

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
    dispatcher = numba.njit(nogil=True, fastmath=_RELAXED, error_model="numpy")(function)
    if _CAN_CACHE:
        dispatcher._cache = _KernelCache(function)
    return cast(F, dispatcher)
