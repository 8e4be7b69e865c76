"""Panels on which an encoder has something to learn, small enough for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from turncoat import Encoder, Panel

WITHOUT_TORCH = """
import sys
class _Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, _Blocked())
"""  # begins a script that runs as if torch were not installed


def small_encoder(**changes: Any) -> Encoder:
    small = {"latent_dim": 4, "hidden_dim": 16, "max_epochs": 3, "batch_size": 64, "device": "cpu"}
    return Encoder(**{**small, **changes})


FIT: dict[str, Any] = {"n_threads": 1, "n_restarts": 1, "max_iter": 20}


def mixed_panel(
    n_sequences: int = 40,
    seed: int = 0,
    n_continuous: int = 5,
    categories: tuple[int, ...] = (2, 9, 3),
) -> Panel:
    """Some missing cells and codes; fraud where two columns have the same sign and lie far out."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 14, n_sequences)
    n = int(lengths.sum())
    cells = rng.normal(size=(n, n_continuous)).astype(np.float32)
    codes = (
        np.stack([rng.integers(-1, size, n) for size in categories], axis=1) if categories else None
    )
    labels = (cells[:, 0] * cells[:, 1] > 0.5) if n_continuous > 1 else rng.random(n) < 0.2
    cells[rng.random(cells.shape) < 0.05] = np.nan
    return Panel.from_arrays(
        cells if n_continuous else None,
        codes,
        lengths=lengths,
        labels=labels.astype(np.int8),
        n_categories=list(categories) or None,
    )


def hidden_rule_panel(n_sequences: int = 150, length: int = 20, seed: int = 0) -> tuple[Panel, Any]:
    """Return a panel and its labels. Fraud shows only in the sign of a product of three columns.

    It comes in episodes. Any two of the columns look the same for fraud and the rest.
    """
    rng = np.random.default_rng(seed)
    n = n_sequences * length
    fraud = np.zeros((n_sequences, length), bool)
    for t in range(length):
        before = fraud[:, t - 1] if t else np.zeros(n_sequences, bool)
        fraud[:, t] = rng.random(n_sequences) < np.where(before, 0.8, 0.03)
    labels = fraud.ravel()
    cells = rng.normal(size=(n, 6))
    cells += 0.7 * np.sign(cells)
    wanted = np.where(labels, 1.0, -1.0)
    cells[:, 2] = np.abs(cells[:, 2]) * wanted * np.sign(cells[:, 0] * cells[:, 1])
    return Panel.from_arrays(
        cells.astype(np.float32), lengths=[length] * n_sequences, labels=labels.astype(np.int8)
    ), labels
