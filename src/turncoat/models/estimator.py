"""What scikit-learn expects of every model: predictions and a score, of tables or of panels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.anchors import Anchors
from turncoat.panel import Panel, PanelLike, as_panel

if TYPE_CHECKING:
    from turncoat.models.base import Posteriors

MODES = ("filtered", "smoothed")
_SEQUENCES: Mapping[str, bool] = {"lengths": True, "groups": True}


class SequenceEstimator(ABC, BaseEstimator):  # type: ignore[misc]
    """The methods that scikit-learn calls by name.

    Rows are a Panel, or a table [N, D] of continuous columns. `lengths` (rows of each sequence) or
    `groups` (a key per row; rows of a key are neighbours) tell the sequences of a table. With
    neither, all rows are one sequence. When metadata routing is on, scikit-learn passes both on.
    """

    __metadata_request__fit: ClassVar = _SEQUENCES
    __metadata_request__predict: ClassVar = _SEQUENCES
    __metadata_request__predict_proba: ClassVar = {**_SEQUENCES, "mode": True}
    __metadata_request__score: ClassVar = _SEQUENCES

    @abstractmethod
    def filter(self, panel: Panel) -> Posteriors:
        """Return P(state | rows so far) of every row."""

    @abstractmethod
    def smooth(self, panel: Panel) -> Posteriors:
        """Return P(state | all rows of the sequence)."""

    @abstractmethod
    def decode(self, panel: Panel) -> NDArray[np.int64]:
        """Return the most likely path of states [N]."""

    @abstractmethod
    def log_likelihood(self, panel: Panel) -> Array:
        """Return the log-likelihood of each sequence [U]."""

    def predict(
        self, X: PanelLike, *, lengths: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Return the most likely path of states [N]. It uses hindsight: not for live decisions."""
        return self.decode(as_panel(X, lengths, groups))

    def predict_proba(
        self,
        X: PanelLike,
        *,
        mode: str,
        lengths: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Array:
        """Return the states' probabilities [N, K].

        With `mode` ``"filtered"`` a row's probabilities depend on it and on the rows before it;
        with ``"smoothed"`` on all rows of the sequence, later ones included.
        """
        if mode not in MODES:
            meaning = "'filtered' (up to the row) or 'smoothed' (later rows too)"
            raise ConfigError(f"mode must be {meaning}; found {mode!r}")
        panel = as_panel(X, lengths, groups)
        posteriors = self.filter(panel) if mode == "filtered" else self.smooth(panel)
        return posteriors.probs

    def score(
        self,
        X: PanelLike,
        y: object = None,
        *,
        lengths: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the mean log-likelihood per row; higher is better. `y` is not used.

        `sample_weight` is as in `fit`.
        """
        panel = as_panel(X, lengths, groups)
        weights = weigh_sequences(panel, sample_weight)
        counts = np.ones(panel.n_sequences) if weights is None else weights
        return float(counts @ self.log_likelihood(panel) / (counts @ panel.lengths))


def refuse_anchors(y: object) -> None:
    """Raise a ConfigError for anchors in the place of `y`, where they would have no effect."""
    if isinstance(y, Anchors):
        raise ConfigError("anchors are given by name: fit(panel, anchors=anchors)")


def weigh_sequences(panel: Panel, sample_weight: ArrayLike | None) -> Array | None:
    """Return the weight of each sequence [U], from one per sequence or per row; None for none."""
    if sample_weight is None:
        return None
    try:
        weights: Array = np.asarray(sample_weight, np.float64)
    except (TypeError, ValueError) as problem:
        raise DataError("sample_weight must hold numbers") from problem
    if weights.shape == (panel.n_rows,):
        by_sequence = weights[panel.offsets[:-1]]
        for row in np.flatnonzero(weights != np.repeat(by_sequence, panel.lengths)):
            found = f"found {weights[row]:g} after {weights[row - 1]:g}"
            rule = "all rows of a sequence have the same weight"
            raise DataError(f"sample_weight row {row}: {found}; {rule}")
        weights = by_sequence
    if weights.shape != (panel.n_sequences,):
        expected = f"one weight for each of the {panel.n_sequences} sequences"
        rows = f"or of the {panel.n_rows} rows"
        raise DataError(f"sample_weight must have {expected} {rows}; found shape {weights.shape}")
    for place in np.flatnonzero(~(np.isfinite(weights) & (weights >= 0))):
        rule = "weights must be finite and at least 0"
        raise DataError(f"sample_weight of sequence {place}: found {weights[place]}; {rule}")
    if not weights.any():
        raise DataError("sample_weight is 0 for every sequence; some must be above 0")
    return weights
