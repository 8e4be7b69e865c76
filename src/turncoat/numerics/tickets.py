"""Handing out work to threads inside compiled code, so that none has to come back to Python for more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba.extending
from llvmlite import ir
from numba import types

_intrinsic: Callable[[Callable[..., Any]], Any] = numba.extending.intrinsic


@_intrinsic
def take_ticket(typing_context: Any, counter: Any) -> Any:
    """The counter's value [1] int64, which goes up by one in the same instant: no two threads get the same."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        cells = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", cells, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(counter), generate
