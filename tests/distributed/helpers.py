"""Parts for the tests, and a reader that takes its worker with it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from turncoat import Panel
from turncoat.models.fit_rows import PanelRows


def make_panels(n_parts: int = 3, n_customers: int = 60) -> list[Panel]:
    """Return parts that differ in size, missing values, categories in use and gaps in time."""
    panels = []
    for part in range(n_parts):
        rng = np.random.default_rng(part)
        lengths = rng.integers(1, 30, n_customers + 20 * part)
        n_rows = int(lengths.sum())
        states = rng.integers(0, 3, n_rows)
        cells = rng.normal(size=(n_rows, 3)) + 2.0 * states[:, None]
        if part:
            cells[rng.random(cells.shape) < 0.05] = np.nan
        codes = np.column_stack([states - (part == 2), rng.integers(0, 2, n_rows)])
        gaps = rng.exponential(3600.0 * (1 + 10 * part), n_rows)
        times = np.concatenate([np.cumsum(own) for own in np.split(gaps, lengths.cumsum()[:-1])])
        sizes = [3, 2]
        panels.append(Panel.from_arrays(cells, codes, lengths, times=times, n_categories=sizes))
    return panels


def kill_worker(_: Any) -> PanelRows:
    """End the process as the system does when it runs out of memory."""
    os._exit(1)
