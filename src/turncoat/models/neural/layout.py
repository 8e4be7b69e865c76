"""The encoder's shape: what it reads and how wide its layers are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.settings import Rule, check_settings, one_of, whole_number
from turncoat.panel import LARGEST_VALUE, Panel

LAYOUT_RULES: dict[str, Rule] = {
    "latent_dim": whole_number(1),
    "hidden_dim": whole_number(1),
    "activation": one_of("gelu", "none"),
}
_WIDEST_TABLE = 50


@dataclass(frozen=True)
class EncoderLayout:
    """D continuous and J categorical columns in, `latent_dim` numbers out; `activation` is the one before the last layer."""

    n_continuous: int
    n_categories: tuple[int, ...]  # [J]
    latent_dim: int = 64
    hidden_dim: int = 512
    activation: str = "gelu"

    def __post_init__(self) -> None:
        check_settings(self, vars(self), LAYOUT_RULES)

    @property
    def normalises_cells(self) -> bool:
        """Whether cells pass a LayerNorm first; of a single column it would leave nothing."""
        return self.n_continuous > 1

    @property
    def n_blocks(self) -> int:
        """How many of the two kinds of columns there are."""
        return int(self.n_continuous > 0) + int(len(self.n_categories) > 0)

    @property
    def table_rows(self) -> Array:
        """Rows of each column's embedding table [J]: one per code, and the last for a missing one."""
        return np.asarray(self.n_categories, np.int64) + 1

    @property
    def table_starts(self) -> Array:
        """First row of each column's table [J] when all are stacked in the order of the columns."""
        return np.asarray(np.cumsum(self.table_rows) - self.table_rows)

    @property
    def table_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Columns whose tables have the same width, narrow ones first: (width, columns). Their tables are looked up together."""
        columns = sorted(
            range(len(self.n_categories)), key=lambda j: (table_width(self.n_categories[j]), j)
        )
        return tuple(
            (width, tuple(group))
            for width, group in groupby(columns, key=lambda j: table_width(self.n_categories[j]))
        )

    def check(self, panel: Panel) -> None:
        """Refuse a panel with other columns, or with codes that no table has."""
        if not isinstance(panel, Panel):
            raise DataError(
                f"expected a Panel, found {type(panel).__name__}; make one with Panel.from_arrays"
            )
        self.check_widths(panel.n_continuous, panel.n_categorical, "the panel has")
        for j, (known, present) in enumerate(
            zip(self.n_categories, panel.n_categories, strict=True)
        ):
            if present > known:
                self.check_codes(panel.categorical[:, j : j + 1], j)

    def check_widths(self, n_continuous: int, n_categorical: int, found: str) -> None:
        """Refuse another number of columns."""
        if (n_continuous, n_categorical) != (self.n_continuous, len(self.n_categories)):
            raise DataError(
                f"the encoder knows {self.n_continuous} continuous and {len(self.n_categories)} categorical columns; "
                f"{found} {n_continuous} and {n_categorical}"
            )

    def check_cells(self, cells: Array) -> None:
        """Refuse infinite and enormous cells [N, D]."""
        bad = np.abs(cells) > LARGEST_VALUE
        if bad.any():
            row, column = (int(place) for place in np.argwhere(bad)[0])
            raise DataError(
                f"continuous row {row}, column {column}: found {cells[row, column]}; values must be finite and within "
                f"{LARGEST_VALUE:g}, NaN if missing"
            )

    def check_codes(self, codes: Array, first: int = 0) -> None:
        """Refuse codes [N, columns] that no table has; `first` is the place of the first column."""
        sizes = np.asarray(self.n_categories[first : first + codes.shape[1]])
        bad = (codes < -1) | (codes >= sizes)
        if bad.any():
            row, column = (int(place) for place in np.argwhere(bad)[0])
            raise DataError(
                f"categorical row {row}, column {first + column}: code {codes[row, column]} is unknown to the encoder, whose codes run "
                f"from 0 to {sizes[column] - 1}. Use -1 for a value it has never seen, or fit with n_categories that leave room"
            )


def table_width(n_categories: int) -> int:
    """Width of a column's embedding table (the method, section 5)."""
    return min(_WIDEST_TABLE, max(2, (n_categories + 1) // 2))
