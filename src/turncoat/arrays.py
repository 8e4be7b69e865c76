"""The type aliases for arrays that every module shares."""

from typing import Any, TypeAlias

from numpy.typing import ArrayLike, NDArray

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = ArrayLike | None  # cells or codes; None without columns of that kind
