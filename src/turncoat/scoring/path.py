"""A customer's path as columns for a ranker: belief, its change and entropy, density of the row."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from turncoat.arrays import Array
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.panel import Panel
from turncoat.scoring.scores import compute_entropy

_BATCH_CELLS = 1 << 22
_BATCH_ROWS = 1 << 16


class BeliefPath(NamedTuple):
    """Beliefs before and after N transactions."""

    before: Array  # [N, K]
    has_before: Array  # [N] False for a customer's first transaction
    after: Array  # [N, K]
    gaps_s: Array | None = None  # [N] as in `Panel.gaps_s`; None if transitions are per row

    def take(self, rows: Array) -> BeliefPath:
        """The path at these rows."""
        gaps_s = None if self.gaps_s is None else self.gaps_s[rows]
        return BeliefPath(self.before[rows], self.has_before[rows], self.after[rows], gaps_s)

    def predict(self, model: HiddenMarkovModel[Any]) -> Array:
        """Unnormalised log beliefs [N, K] right before the transactions."""
        return model.predict_log_beliefs(self.before, self.has_before, self.gaps_s)

    @classmethod
    def filter(cls, model: HiddenMarkovModel[Any], panel: Panel) -> BeliefPath:
        """The path through a panel, row by row, with the very bits of live scores."""
        ends = np.searchsorted(panel.offsets, np.arange(_BATCH_ROWS, panel.n_rows, _BATCH_ROWS))
        bounds = np.unique([0, *ends, panel.n_sequences])
        parts, has_gaps = [], model.transitions == "continuous"
        for part in map(panel.__getitem__, map(slice, bounds[:-1], bounds[1:])):
            previous = np.arange(-1, part.n_rows - 1)
            previous[part.offsets[:-1]] = -1
            new = np.zeros((part.n_rows, model.n_states)), np.zeros(part.n_rows, bool)
            gaps_s = part.gaps_s if has_gaps else None
            rows = part.continuous, part.categorical
            parts.append(model.step_batch(*new, *rows, previous, gaps_s))
        before, has_before, after = map(np.concatenate, zip(*parts, strict=True))
        return cls(before, has_before, after, panel.gaps_s if has_gaps else None)


def compute_path_columns(
    model: HiddenMarkovModel[Any], path: BeliefPath, continuous: Array, categorical: Array
) -> Array:
    """Belief [K], its change [K] and entropy, log density of the row: columns [N, 2 K + 2]."""
    n_rows, n_states = path.after.shape
    change = np.where(path.has_before[:, None], path.after - path.before, 0.0)
    log_predicted = path.predict(model)
    density = np.empty(n_rows)
    n_cells = n_states * max(continuous.shape[1], categorical.shape[1], n_states)
    is_neural = isinstance(model, NeuralVariationalHMM)  # rows encoded together differ in bits
    step = 1 if is_neural else max(_BATCH_CELLS // n_cells, 1)
    for start in range(0, n_rows, step):
        rows = slice(start, start + step)
        log_emission = model.log_emission(continuous[rows], categorical[rows])
        density[rows] = np.logaddexp.reduce(log_predicted[rows] + log_emission, axis=1)
    entropy = compute_entropy(path.after)
    return np.column_stack([path.after, change, entropy, density]).astype(np.float32)


def filter_path_columns(model: HiddenMarkovModel[Any], panel: Panel) -> Array:
    """The columns of the path through a panel [N, 2 K + 2]."""
    path = BeliefPath.filter(model, panel)
    return compute_path_columns(model, path, panel.continuous, panel.categorical)
