"""The one way Turncoat compiles a function with numba."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.caching import FunctionCache

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and multiply-adds fused, so the compiler can use vector registers.
# NaN and infinity keep their meaning: NaN marks a missing cell.
_RELAXED = {"reassoc", "contract", "nsz", "arcp"}


@cache
def _hash_sources(folder: Path) -> str:
    sources = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()


class _KernelCache(FunctionCache):  # type: ignore[misc]
    """numba's disk cache, keyed by all kernel sources. Kernels are inlined in each other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        folders = {Path(__file__).parent, Path(function.__code__.co_filename).parent}
        self._sources = tuple(sorted(_hash_sources(folder) for folder in folders))

    def _index_key(self, signature: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(signature, codegen), *self._sources)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Treat a damaged cache file as a missing one."""
        try:
            return super().load_overload(signature, target_context)
        except Exception:
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Ignore a full or failing disk: the next process compiles again.

        An index that cannot be read, such as one that names a renamed class, is started anew.
        """
        with contextlib.suppress(OSError):
            try:
                super().save_overload(signature, data)
            except Exception:
                self.flush()
                super().save_overload(signature, data)


def can_cache() -> bool:
    """Whether compiled kernels can be cached: some cache folder must be writable."""
    try:
        _KernelCache(can_cache)
    except RuntimeError:
        return False
    return True


_CAN_CACHE = can_cache()


def jit(function: F) -> F:
    """Compile without the interpreter lock and cache on disk; sums may be reordered."""
    return _compile(function, fastmath=_RELAXED)


def jit_exact(function: F) -> F:
    """Compile like `jit`, but round every operation as written: the same bits wherever inlined."""
    return _compile(function)


def _compile(function: F, **options: Any) -> F:
    settings = {"nogil": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    dispatcher = numba.njit(**settings, **options)(function)
    if _CAN_CACHE:
        dispatcher._cache = _KernelCache(function)
    return cast(F, dispatcher)


class _CompilationListener(event.Listener):  # type: ignore[misc]
    """Prints once per process that Turncoat's kernels are being compiled."""

    has_printed = False

    def on_start(self, compilation: Any) -> None:
        """Print the message at the first compilation of a Turncoat kernel."""
        module = compilation.data["dispatcher"].py_func.__module__
        if not _CompilationListener.has_printed and module.startswith("turncoat."):
            _CompilationListener.has_printed = True
            advice = "not cached: set NUMBA_CACHE_DIR to a writable folder"
            cached = "cached for later runs" if can_cache() else advice
            message = f"Turncoat: compiling kernels, once (about 15 seconds; {cached})"
            print(message, file=sys.stderr, flush=True)

    def on_end(self, compilation: Any) -> None:
        """Required by numba; prints nothing."""


@contextlib.contextmanager
def announce_compilation() -> Iterator[None]:
    """Announce the first compilation of a kernel inside this context on standard error."""
    with event.install_listener("numba:compile", _CompilationListener()):
        yield
