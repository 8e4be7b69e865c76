"""Reads a pickled pandas frame as plain NumPy columns, without pandas and without its code.

A pickle names functions to call. Here each allowed name stands for a small function or class of
this module that only keeps data; every other name is refused before anything is called. The names
are those that pandas 0.25 to 2.x and NumPy write for a frame of numbers, times and objects.
"""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from turncoat.arrays import Array

_KINDS = "biufMO"  # booleans, numbers, times, objects


class FrameError(Exception):
    """A file that is not a pickled frame, or names something that is not allowed."""


class _Dtype:
    """An array's type: what `numpy.dtype` and its state say."""

    def __init__(self, name: str, *_: object) -> None:
        self.numpy = _check_dtype(np.dtype(str(name)))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, byte_order, subarray, names, fields, *rest = state
        if subarray is not None or names is not None or fields is not None:
            raise ValueError("a type has fields")
        if self.numpy.kind == "M":
            unit, *_ = rest[-1][1]
            text = unit.decode("ascii") if isinstance(unit, bytes) else unit
            self.numpy = np.dtype(f"M8[{text}]")
        if byte_order in ("<", ">"):
            self.numpy = self.numpy.newbyteorder(byte_order)


class _Values:
    """An array, built from the state that NumPy writes."""

    array: Array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, data = state
        if isinstance(data, list):
            flat: Array = np.empty(len(data), object)
            flat[:] = data
        else:
            flat = np.frombuffer(data, dtype.numpy)  # refuses objects
        self.array = flat.reshape(shape, order="F" if is_fortran else "C")


class _TimeValues:
    """A `DatetimeArray`: the array within its state."""

    array: Array

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.array = next(part.array for part in state if isinstance(part, _Values))


class _Blocks:
    """A `BlockManager`: pairs of values and places of columns, and the column names."""

    def __init__(self, blocks: Any = (), axes: Any = ()) -> None:
        self.blocks, self.axes = blocks, axes

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        content = state[3]["0.14.1"]  # how pandas wrote blocks up to version 1.2
        self.blocks = [(block["values"], block["mgr_locs"]) for block in content["blocks"]]
        self.axes = content["axes"]


class _Frame:
    """A `DataFrame`: its state is kept as attributes."""


class _Name:
    """A class that is only named, never made."""


def _check_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in _KINDS:
        raise ValueError(f"an array has the type {dtype}")
    return dtype


def _build_values(data: Any, dtype: _Dtype, shape: Any, order: str = "C", *_: object) -> _Values:
    values = _Values()
    values.__setstate__((None, shape, dtype, order == "F", bytes(data)))
    return values


def _reconstruct(*_: object) -> _Values:
    return _Values()


def _build_scalar(dtype: _Dtype, data: bytes) -> Any:
    return np.frombuffer(data, dtype.numpy)[0]


def _build_time_values(_cls: object, _checksum: object, state: Any) -> _TimeValues:
    values = _TimeValues()
    if state is not None:
        values.__setstate__(state)
    return values


def _build_block(values: Any, placement: Any, ndim: int = 2) -> tuple[Any, Any]:
    return values, placement


def _build_index(_cls: object, state: dict[str, Any]) -> Any:
    return state.get("data")


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"bytes are encoded as {encoding!r}")
    return text.encode("latin1")


def _build_slice(*bounds: int | None) -> slice:
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        raise ValueError("a slice has bounds that are not whole numbers")
    return slice(*bounds)


def _build_bytes(*arguments: object) -> bytes:
    if arguments:
        raise ValueError("bytes are made of something")
    return b""


_ALLOWED: dict[tuple[str, str], object] = {
    ("_codecs", "encode"): _encode,
    ("functools", "partial"): functools.partial,  # pandas 1.3; of one of these functions
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Name,
    ("pandas", "DataFrame"): _Frame,
    ("pandas", "Index"): _Name,
    ("pandas", "RangeIndex"): _Name,
    ("pandas.core.frame", "DataFrame"): _Frame,
    ("pandas.core.indexes.base", "Index"): _Name,
    ("pandas.core.indexes.base", "_new_Index"): _build_index,
    ("pandas.core.indexes.numeric", "Int64Index"): _Name,
    ("pandas.core.indexes.range", "RangeIndex"): _Name,
    ("pandas.core.internals.managers", "BlockManager"): _Blocks,
    ("pandas.core.internals.blocks", "new_block"): _build_block,
    ("pandas._libs.internals", "_unpickle_block"): _build_block,
    ("pandas._libs.arrays", "__pyx_unpickle_NDArrayBacked"): _build_time_values,
    ("pandas.arrays", "DatetimeArray"): _Name,
    ("pandas.core.arrays.datetimes", "DatetimeArray"): _Name,
}
for _builtins in ("builtins", "__builtin__"):
    _ALLOWED[_builtins, "slice"] = _build_slice
    _ALLOWED[_builtins, "bytes"] = _build_bytes
for _core in ("numpy.core", "numpy._core"):
    _ALLOWED[f"{_core}.multiarray", "_reconstruct"] = _reconstruct
    _ALLOWED[f"{_core}.multiarray", "scalar"] = _build_scalar
    _ALLOWED[f"{_core}.numeric", "_frombuffer"] = _build_values


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise FrameError(f"names {module}.{name}, which a frame of transactions does not need")
        return found


def read_pickled_frame(path: Path) -> dict[str, Array]:
    """The frame's columns by name, each [N]; an error names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            return _list_columns(_Unpickler(file).load())
    except FrameError as error:
        raise FrameError(f"{path} was refused: it {error}") from None
    except Exception as error:  # a damaged pickle may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise FrameError(f"{path} is damaged or not a pickled frame ({problem})") from error


def _list_columns(frame: Any) -> dict[str, Array]:
    if not isinstance(frame, _Frame):
        raise ValueError("it does not hold a frame")
    state = vars(frame)
    blocks = state["_mgr"] if "_mgr" in state else state["_data"]  # `_data` before pandas 1.1
    names = [str(name) for name in blocks.axes[0].array]
    columns: dict[str, Array] = {}
    for values, placement in blocks.blocks:
        places = placement if isinstance(placement, slice) else placement.array
        own = [names[place] for place in np.arange(len(names))[places]]
        columns |= dict(zip(own, np.atleast_2d(values.array), strict=True))
    if set(columns) != set(names) or len({len(values) for values in columns.values()}) > 1:
        raise ValueError("its columns are incomplete")
    return columns
