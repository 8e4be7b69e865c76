"""Saved detectors: features, model, regimes and ranker in one folder with one manifest, replaced in one instant. Never pickle."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import numpy as np

from turncoat.errors import BundleError, ConfigError
from turncoat.features.storage import pack_features, unpack_features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.storage import pack_model, unpack_model
from turncoat.scoring.detector import Detector, Parts
from turncoat.scoring.ranker import RegimeRanker
from turncoat.scoring.rankers import ColumnRanker, HeadRanker, Ranker, XGBoostRanker
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import MODES
from turncoat.storage import Array, Format

DETECTOR = Format("detector", version=3)
_SETTINGS = ("supervision", "n_fraud_states", "label_noise", "temperature")
_RANKER_BYTES = "ranker.booster"
_KINDS: dict[type, str] = {ColumnRanker: "column", XGBoostRanker: "xgboost", HeadRanker: "head"}


def save_detector(detector: Detector, folder: str | os.PathLike[str]) -> None:
    """Write a fitted detector into a folder of its own; a detector already there is replaced in one instant, or not at all."""
    parts = detector.fitted()
    arrays: dict[str, Array] = {}
    content: dict[str, Any] = {"settings": {name: getattr(detector, name) for name in _SETTINGS}, "temporal_share": parts.temporal_share}
    for name, (plain, tensors) in (("features", pack_features(detector.features_)), ("model", pack_model(detector.model_))):
        content[name] = plain
        arrays |= {f"{name}.{key}": value for key, value in tensors.items()}
    content["regimes"] = {}
    for name, regimes in {**parts.regimes, "in_sample": parts.in_sample}.items():
        content["regimes"][name], tensors = _pack(regimes)
        arrays |= {f"regimes.{name}.{key}": value for key, value in tensors.items()}
    content["ranker"] = None
    if parts.ranker is not None and parts.ranked is not None:
        content["ranker"] = {"kind": _KINDS[type(parts.ranker)]}
        if isinstance(parts.ranker, ColumnRanker):
            content["ranker"]["column"] = parts.ranker.column
        if isinstance(parts.ranker, XGBoostRanker):
            arrays[_RANKER_BYTES] = np.frombuffer(bytes(parts.ranker.booster.save_raw("ubj")), np.uint8)
        for mode, ranked in parts.ranked.items():
            content["ranker"][mode], tensors = _pack(ranked)
            arrays |= {f"ranker.{mode}.{key}": value for key, value in tensors.items()}
    DETECTOR.save(folder, content, arrays)


def load(folder: str | os.PathLike[str]) -> Detector:
    """Read a saved detector; a `BundleError` says what is wrong with one that cannot be trusted."""
    content, arrays = DETECTOR.load(folder)
    try:
        features = unpack_features(content["features"], _below("features", arrays), str(folder))
        model = unpack_model(content["model"], _below("model", arrays))
        detector = Detector(features, model, **content["settings"])
        detector.features_, detector.model_ = features, model
        regimes = {name: _unpack(Regimes, content["regimes"][name], _below(f"regimes.{name}", arrays)) for name in (*MODES, "in_sample")}
        in_sample = regimes.pop("in_sample")
        ranker, ranked = _ranker(content["ranker"], arrays, model)
        detector.parts_ = Parts(regimes, in_sample, float(content["temporal_share"]), ranker, ranked)
        detector.check()
    except (LookupError, TypeError, ValueError, ArithmeticError, ConfigError) as problem:
        raise BundleError(f"{folder}: not a detector this version understands ({problem!r})") from problem
    return detector


def _pack(thing: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """A frozen dataclass as plain values and arrays."""
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    plain = {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}
    return plain, {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _unpack(kind: type, plain: dict[str, Any], arrays: dict[str, Array]) -> Any:
    return kind(**plain, **arrays)


def _below(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(f"{prefix}."): array for name, array in arrays.items() if name.startswith(f"{prefix}.")}


def _ranker(
    content: dict[str, Any] | None, arrays: dict[str, Array], model: HiddenMarkovModel[Any]
) -> tuple[Ranker | None, dict[str, RegimeRanker] | None]:
    if content is None:
        return None, None
    ranked = {mode: _unpack(RegimeRanker, content[mode], _below(f"ranker.{mode}", arrays)) for mode in MODES}
    if content["kind"] == "column":
        return ColumnRanker(content["column"]), ranked
    if content["kind"] == "head":
        if not isinstance(model, NeuralVariationalHMM):
            raise ValueError("the ranker is an encoder's head, and the model has no encoder")
        return HeadRanker(model.encoder_), ranked
    try:
        from xgboost import Booster
    except ImportError as problem:
        raise BundleError("this detector has an XGBoost ranker: install `turncoat[baselines]`") from problem
    return XGBoostRanker(Booster(model_file=bytearray(arrays[_RANKER_BYTES].tobytes()))), ranked
