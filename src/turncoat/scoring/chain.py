"""How a detector fits its hidden Markov model: anchors, then temperature or evidence weights."""

from __future__ import annotations

import warnings
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from turncoat.arrays import Array
from turncoat.errors import ConfigError, EmptyStateWarning
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel
from turncoat.scoring.calibration import choose_temperature
from turncoat.scoring.evidence import learn_weights
from turncoat.scoring.supervision import Anchoring, compute_anchor_likelihoods

Model = HiddenMarkovModel[Any]
AUTO = "auto"


@dataclass(frozen=True, eq=False)
class SelectionRows:
    """Labelled rows that the fit does not use, with their customers' history."""

    panel: Panel
    places: Array  # of the rows in the panel

    def drop_customers(self, customers: Array) -> SelectionRows:
        """The rows of all but these customers."""
        is_kept = ~np.isin(np.asarray(self.panel.customers), customers)
        is_kept_row = np.repeat(is_kept, self.panel.lengths)
        new_places = np.cumsum(is_kept_row) - 1
        return SelectionRows(self.panel[is_kept], new_places[self.places[is_kept_row[self.places]]])


@dataclass(frozen=True, eq=False)
class ChainFit:
    """A hidden Markov model to fit, and what to do with labels."""

    model: Model  # unfitted
    anchoring: Anchoring | None = None
    temperature: float | str = 1.0  # or AUTO
    weighs_evidence: bool = False

    @property
    def needs_selection(self) -> bool:
        """Whether rows are needed that the fit does not use."""
        return self.weighs_evidence or self.temperature == AUTO

    def fit(self, panel: Panel, selection: SelectionRows | None) -> Model:
        """The fitted model, at the temperature or with the weights that the selection rows ask."""
        model: Model = clone(self.model)
        anchoring, n_states = self.anchoring, model.n_states
        anchors = None if anchoring is None else anchoring.make_anchors(panel, n_states)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyStateWarning)  # every regime reports its share
            model.fit(panel, anchors=anchors)
        if self.weighs_evidence and selection is not None:
            return self.reweigh(model, selection)
        temperature = self.temperature
        if temperature == AUTO and selection is not None:
            temperature = choose_temperature(model, panel, selection.panel, selection.places)
        return model.set_params(temperature=float(temperature))  # type: ignore[no-any-return]

    def reweigh(self, model: Model, selection: SelectionRows) -> Model:
        """A fitted model with evidence weights learnt from the selection rows."""
        if self.anchoring is None:
            raise ConfigError("evidence weights need anchored states")
        likelihoods = compute_anchor_likelihoods(self.anchoring, model.n_states)
        fitted = model.copy_with(weights=self.model.weights)
        rows = (selection.panel, selection.places)
        weights = learn_weights(fitted, *rows, likelihoods, model.random_state)
        weighed: Model = copy(model).set_params(weights=weights.tolist())
        return weighed

    def restart(self) -> ChainFit:
        """The same fit from its own start, not from given parameters."""
        return replace(self, model=clone(self.model).set_params(init=None))

    def check(self) -> None:
        """Raise ConfigError if evidence cannot be weighed."""
        if not self.weighs_evidence:
            return
        if self.anchoring is None:
            rule = "evidence weights are learnt from the states of fraud"
            raise ConfigError(f"{rule}; use supervision='anchored', or evidence='plain'")
        if self.temperature != 1.0:
            found = f"temperature is {self.temperature!r}, and evidence is 'weighted'"
            raise ConfigError(f"{found}: a temperature is equal weights for all. Leave one out")
