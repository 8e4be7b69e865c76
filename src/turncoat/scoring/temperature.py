"""The temperature of emissions: many features, treated as independent, drown the chain (E9)."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.metrics import log_loss

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel
from turncoat.scoring.regimes import Regimes

TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


def choose_temperature(
    model: HiddenMarkovModel[Any], fit_panel: Panel, panel: Panel, places: Array
) -> float:
    """The temperature with the least log loss at `places` of the panel.

    The scores use fraud rates measured on the fit panel.
    """
    if fit_panel.labels is None or panel.labels is None:
        raise DataError(
            "choosing a temperature needs labels, and the schema names none. "
            "Set `label`, or a temperature"
        )
    chain, fit_rows, rows = model.to_latent_hmm(), model.embed(fit_panel), model.embed(panel)
    stickiness = np.diag(chain.params_.transition_matrix)
    losses = []
    for temperature in TEMPERATURES:
        tempered = chain.copy_at_temperature(temperature)
        probs, labels = tempered.filter(fit_rows).probs, fit_panel.labels
        regimes = Regimes.measure(probs, labels, fit_panel.offsets, stickiness, "fit")
        scores = tempered.filter(rows).probs @ regimes.mean_rates
        losses.append(log_loss(panel.labels[places], scores[places], labels=[0, 1]))
    return TEMPERATURES[int(np.argmin(losses))]
