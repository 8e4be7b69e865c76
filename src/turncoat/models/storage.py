"""Saved models: parameters and, beside them, the settings and the report of the fit."""

from __future__ import annotations

import os
from dataclasses import asdict, fields
from typing import Any

from turncoat.errors import BundleError, ConfigError
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.fitting import FitReport, RestartReport
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.neural.storage import NOT_SAVED, pack_encoder, settle_encoder, unpack_encoder
from turncoat.models.parameters import Prior
from turncoat.models.variational import VariationalHMM
from turncoat.storage import Format

MODEL = Format("model", version=1)
_KINDS: dict[str, type[HiddenMarkovModel[Any]]] = {
    kind.__name__: kind for kind in (BaumWelchHMM, VariationalHMM, NeuralVariationalHMM)
}
_NOT_SAVED = (
    "init",
    "progress",
    "n_threads",
    *NOT_SAVED,
)  # facts about a session, not about the model


def save_model(model: HiddenMarkovModel[Any], folder: str | os.PathLike[str]) -> None:
    """Write a fitted model into a folder of its own; a model already there is replaced in one instant, or not at all."""
    MODEL.save(folder, *pack_model(model))


def load_model(folder: str | os.PathLike[str]) -> BaumWelchHMM | VariationalHMM:
    """Read a saved model; a `BundleError` says what is wrong with one that cannot be trusted."""
    content, arrays = MODEL.load(folder)
    try:
        return unpack_model(content, arrays)
    except (LookupError, TypeError, ValueError, ArithmeticError, ConfigError) as problem:
        raise BundleError(
            f"{folder}: not a model this version understands ({problem!r})"
        ) from problem


def pack_model(model: HiddenMarkovModel[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A fitted model as plain content and arrays."""
    params = model._fitted()
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
    arrays = _flatten(params)
    if isinstance(model, NeuralVariationalHMM):
        content["encoder"], tensors = pack_encoder(model)
        arrays |= tensors
    return content, arrays


def unpack_model(content: dict[str, Any], arrays: dict[str, Any]) -> BaumWelchHMM | VariationalHMM:
    """The model that `pack_model` took apart; a LookupError, TypeError or ValueError if it makes no sense."""
    kind = _KINDS[content["kind"]]
    settings = dict(content["settings"])
    if settings.get("prior") is not None:
        settings["prior"] = Prior(**settings["prior"])
    params = _unflatten(kind.params_type, arrays, len(content["n_categories"]))
    settings.pop("n_states")
    if "encoder" in content:
        settings["encoder"] = unpack_encoder(content["encoder"], arrays)
    model = kind.from_params(params, **settings)
    if "encoder" in content:
        settle_encoder(model, content["encoder"])
    report = content["fit_report"]
    if report is not None:
        model.fit_report_ = _report(report)
        model.lower_bound_ = model.fit_report_.history[-1]
    if not isinstance(model, BaumWelchHMM | VariationalHMM):
        raise ValueError(f"unknown kind of model {content['kind']!r}")
    return model


def _flatten(params: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for field in fields(params):
        value = getattr(params, field.name)
        tensors |= (
            {field.name: value}
            if not isinstance(value, tuple)
            else {f"{field.name}.{j}": a for j, a in enumerate(value)}
        )
    return tensors


def _unflatten(kind: type, tensors: dict[str, Any], n_categorical: int) -> Any:
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name.startswith("category"):
            values[field.name] = tuple(tensors[f"{field.name}.{j}"] for j in range(n_categorical))
        else:
            values[field.name] = tensors[field.name]
    return kind(**values)


def _report(saved: dict[str, Any]) -> FitReport:
    listed = {name: tuple(saved[name]) for name in ("history", "empty_states", "decreases")}
    restarts = tuple(RestartReport(**restart) for restart in saved["restarts"])
    return FitReport(**{**saved, **listed, "restarts": restarts})
