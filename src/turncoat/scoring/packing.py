"""Frozen dataclasses as plain values and arrays, which a saved folder holds, and back."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from turncoat.arrays import Array


def pack(thing: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """A frozen dataclass as plain values and arrays."""
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    plain = {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}
    return plain, {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def unpack(kind: type, plain: dict[str, Any], arrays: dict[str, Array]) -> Any:
    """The dataclass that `pack` took apart."""
    return kind(**plain, **arrays)


def below(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Arrays whose names begin with a prefix, without it."""
    return {
        name.removeprefix(f"{prefix}."): array
        for name, array in arrays.items()
        if name.startswith(f"{prefix}.")
    }
