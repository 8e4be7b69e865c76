"""How far to trust the emissions: with hundreds of features taken as independent they drown the chain (E9)."""

from __future__ import annotations

from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.base import HiddenMarkovModel
from turncoat.panel import Panel
from turncoat.scoring.regimes import Regimes

TEMPERATURES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


def choose_temperature(
    model: HiddenMarkovModel[Any], fit_panel: Panel, panel: Panel, places: Array
) -> float:
    """The temperature whose corrected scores, with fraud shares from the fit part, have the least log loss on the selection rows."""
    if fit_panel.labels is None or panel.labels is None:
        raise DataError(
            "choosing a temperature needs labels, and the schema names none. Set `label`, or name a temperature"
        )
    seen = model.to_latent_hmm(), model.embed(fit_panel), model.embed(panel)
    losses = [
        log_loss(_scores(temperature, *seen)[places], panel.labels[places])
        for temperature in TEMPERATURES
    ]
    return TEMPERATURES[int(np.argmin(losses))]


def _scores(
    temperature: float, model: HiddenMarkovModel[Any], fit_panel: Panel, panel: Panel
) -> Array:
    warmed = model.copy_at_temperature(temperature)
    stickiness = np.diag(model.params_.transition_matrix)
    probs = warmed.filter(fit_panel).probs
    labels = np.asarray(fit_panel.labels)
    regimes = Regimes.measure(
        probs, labels, fit_panel.offsets, stickiness, part="fit", mode="filtered", in_sample=True
    )
    scores: Array = warmed.filter(panel).probs @ regimes.mean_rates
    return scores


def log_loss(probability: Array, labels: Array) -> float:
    """Mean negative log likelihood of the labels, in nats."""
    kept = np.clip(probability, 1e-12, 1 - 1e-12)
    return float(-np.mean(np.where(labels == 1, np.log(kept), np.log1p(-kept))))
