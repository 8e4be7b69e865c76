"""Saved models: parameters, settings, the report of the fit and, if there is one, the encoder."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from typing import Any

from msgspec import convert

from turncoat.arrays import Array
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.fitting import FitReport
from turncoat.models.neural.encoder import Encoder, EncoderLayout, TrainingReport
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.parameters import Prior
from turncoat.models.variational import VariationalHMM
from turncoat.storage import BundleFormat, refuse_unreadable

Model = BaumWelchHMM | VariationalHMM

MODEL = BundleFormat("model", version=2)
_KINDS = {kind.__name__: kind for kind in (BaumWelchHMM, VariationalHMM, NeuralVariationalHMM)}
# Settings of a session, not of the model. The encoder is packed on its own.
_NOT_SAVED = ("init", "progress", "n_threads", "encoder")
_ENCODER_NOT_SAVED = ("device", "checkpoint_dir")
_PREFIX = "encoder."


def load_model(folder: str | os.PathLike[str]) -> Model:
    """Read a saved model; raise a BundleError for a damaged or unknown one."""
    content, arrays = MODEL.load(folder)
    with refuse_unreadable(folder, "a model"):
        return unpack_model(content, arrays)


def pack_model(model: HiddenMarkovModel[Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a fitted model as JSON content and arrays."""
    params = model._get_params()
    settings = {k: v for k, v in model.get_params(deep=False).items() if k not in _NOT_SAVED}
    if isinstance(settings.get("prior"), Prior):
        settings["prior"] = asdict(settings["prior"])
    report = getattr(model, "fit_report_", None)
    content = {
        "kind": type(model).__name__,
        "settings": settings,
        "n_categories": list(params.n_categories),
        "fit_report": None if report is None else asdict(report),
    }
    arrays: dict[str, Array] = {}
    for name in (field.name for field in fields(params) if field.init):
        value = getattr(params, name)
        if isinstance(value, tuple):
            arrays |= {f"{name}.{j}": array for j, array in enumerate(value)}
        else:
            arrays[name] = value
    if isinstance(model, NeuralVariationalHMM):
        content["encoder"], encoder_arrays = pack_encoder(model)
        arrays |= encoder_arrays
    return content, arrays


def unpack_model(content: dict[str, Any], arrays: dict[str, Array]) -> Model:
    """Rebuild the model of `pack_model`; content that makes no sense raises as in `load_model`."""
    kind: Any = _KINDS[content["kind"]]
    settings = dict(content["settings"])
    if settings.get("prior") is not None:
        settings["prior"] = Prior(**settings["prior"])
    values: dict[str, Any] = {}
    params_type = kind.params_types[settings.get("transitions", "per-row")]
    for name in (field.name for field in fields(params_type) if field.init):
        if name.startswith("category"):
            columns = range(len(content["n_categories"]))
            values[name] = tuple(arrays[f"{name}.{j}"] for j in columns)
        else:
            values[name] = arrays[name]
    settings.pop("n_states")
    encoder = content.get("encoder")
    if encoder is not None:
        settings["encoder"] = unpack_encoder(encoder, arrays)
    model: Model = kind.from_params(params_type(**values), **settings)
    if encoder is not None and encoder["settings"] is not None:
        model.set_params(encoder=Encoder(**encoder["settings"]))
    if content["fit_report"] is not None:
        model.fit_report_ = convert(content["fit_report"], FitReport)
        model.lower_bound_ = model.fit_report_.history[-1]
    return model


def pack_encoder(model: NeuralVariationalHMM) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return a fitted model's encoder as JSON content and arrays under ``encoder.``."""
    encoder, settings = model.encoder_, None
    if isinstance(model.encoder, Encoder):
        params = model.encoder.get_params()
        settings = {k: v for k, v in params.items() if k not in _ENCODER_NOT_SAVED}
    content = {
        "layout": asdict(encoder.layout),
        "head_bias": encoder.head_bias,
        "dropout": encoder.dropout,
        "report": None if encoder.report is None else asdict(encoder.report),
        "settings": settings,  # None where the encoder was given trained
    }
    return content, {f"{_PREFIX}{name}": array for name, array in encoder.arrays().items()}


def unpack_encoder(content: dict[str, Any], arrays: dict[str, Array]) -> FrozenEncoder:
    """Rebuild the encoder of `pack_encoder`; raises as `unpack_model`."""
    weights = {k.removeprefix(_PREFIX): a for k, a in arrays.items() if k.startswith(_PREFIX)}
    return FrozenEncoder(
        layout=convert(content["layout"], EncoderLayout),
        head_bias=float(content["head_bias"]),
        dropout=float(content["dropout"]),
        report=convert(content["report"], TrainingReport | None),
        **weights,
    )
