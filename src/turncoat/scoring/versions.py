"""What tells one model from another: a digest of all that beliefs are made with, and of nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turncoat.features.storage import pack_features
from turncoat.models.storage import pack_model
from turncoat.storage import digest

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector

_DIGITS = 16
_LABELS = (
    "supervision",
    "n_fraud_states",
    "label_noise",
)  # settings that say how a label moves a belief


def model_version(detector: Detector) -> str:
    """16 hexadecimal digits that are the same for detectors of the same features and model, however they are calibrated.

    How the fit went is left out, and so are regimes and ranker: saving, loading and calibrating do not change the version.
    """
    features, scales = pack_features(detector.features_)
    model, parameters = pack_model(detector.model_)
    model = {name: value for name, value in model.items() if name != "fit_report"}
    if "encoder" in model:  # without how it was trained, and whether it was trained here or given
        model["encoder"] = {
            name: value
            for name, value in model["encoder"].items()
            if name not in ("report", "given")
        }
    settings = {name: getattr(detector, name) for name in _LABELS}
    arrays = {f"features.{name}": array for name, array in scales.items()} | {
        f"model.{name}": array for name, array in parameters.items()
    }
    return digest({"features": features, "model": model, "settings": settings}, arrays)[:_DIGITS]
