"""Saved detectors: features, model, regimes and ranker in one folder with one manifest, replaced in one instant. Never pickle.

Calibrations made later lie beside them (`calibrations`), and the one in use is loaded.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError
from turncoat.features import Features
from turncoat.features.storage import pack_features, unpack_features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.storage import pack_model, unpack_model
from turncoat.scoring.calibrations import current_calibration, read_calibration
from turncoat.scoring.detector import Detector, Parts
from turncoat.scoring.packing import below, pack, unpack
from turncoat.scoring.ranker import RegimeRanker
from turncoat.scoring.rankers import ColumnRanker, HeadRanker, Ranker, XGBoostRanker, as_ranker
from turncoat.scoring.recalibration import rescored, with_calibration
from turncoat.scoring.reference import Reference
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import MODES
from turncoat.scoring.soundness import check_detector
from turncoat.storage import Format, digest

DETECTOR = Format("detector", version=5)
_SETTINGS = ("supervision", "n_fraud_states", "label_noise", "temperature")
_RANKER_BYTES = "ranker.booster"
_KINDS: dict[type, str] = {ColumnRanker: "column", XGBoostRanker: "xgboost", HeadRanker: "head"}


def save_detector(detector: Detector, folder: str | os.PathLike[str]) -> None:
    """Write a fitted detector into a folder of its own; a detector already there is replaced in one instant, or not at all."""
    parts = detector.fitted()
    arrays: dict[str, Array] = {}
    content: dict[str, Any] = {
        "settings": {name: getattr(detector, name) for name in _SETTINGS},
        "temporal_share": parts.temporal_share,
    }
    for name, (plain, tensors) in (
        ("features", pack_features(detector.features_)),
        ("model", pack_model(detector.model_)),
    ):
        content[name] = plain
        arrays |= {f"{name}.{key}": value for key, value in tensors.items()}
    content["regimes"] = {}
    for name, regimes in {**parts.regimes, "in_sample": parts.in_sample}.items():
        content["regimes"][name], tensors = pack(regimes)
        arrays |= {f"regimes.{name}.{key}": value for key, value in tensors.items()}
    content["reference"], tensors = pack(parts.reference)
    arrays |= {f"reference.{key}": value for key, value in tensors.items()}
    content["times"] = parts.times
    content["model_version"] = detector.version_
    content["ranker"], content["ranker_version"] = None, ""
    if parts.ranker is not None and parts.ranked is not None:
        content["ranker"] = {"kind": _KINDS[type(parts.ranker)]}
        if isinstance(parts.ranker, ColumnRanker):
            content["ranker"]["column"] = parts.ranker.column
        if isinstance(parts.ranker, XGBoostRanker):
            arrays[_RANKER_BYTES] = np.frombuffer(
                bytes(parts.ranker.booster.save_raw("ubj")), np.uint8
            )
        content["ranker_version"] = digest(
            content["ranker"], {name: arrays[name] for name in (_RANKER_BYTES,) if name in arrays}
        )
        for mode, ranked in parts.ranked.items():
            content["ranker"][mode], tensors = pack(ranked)
            arrays |= {f"ranker.{mode}.{key}": value for key, value in tensors.items()}
    DETECTOR.save(folder, content, arrays)


def load(folder: str | os.PathLike[str], calibration: int | None = None) -> Detector:
    """Read a saved detector; a `BundleError` says what is wrong with one that cannot be trusted.

    `calibration` is the number of one that was saved beside it, 0 being the detector as it was saved; None takes the one in use. One that
    was made with another model, and left behind when this one was saved in its place, is not in use.
    """
    content, arrays = DETECTOR.load(folder)
    try:
        features = unpack_features(content["features"], below("features", arrays), str(folder))
        model = unpack_model(content["model"], below("model", arrays))
        detector = Detector(features, model, **content["settings"])
        detector.features_, detector.model_ = features, model
        regimes = {
            name: unpack(Regimes, content["regimes"][name], below(f"regimes.{name}", arrays))
            for name in (*MODES, "in_sample")
        }
        in_sample = regimes.pop("in_sample")
        reference = unpack(Reference, content["reference"], below("reference", arrays))
        ranker, ranked = _ranker(content["ranker"], arrays, features, model)
        first, last = map(float, content["times"])
        detector.parts_ = Parts(
            regimes,
            in_sample,
            float(content["temporal_share"]),
            reference,
            (first, last),
            ranker,
            ranked,
        )
        detector.calibration_ = 0
        check_detector(detector)
    except (LookupError, TypeError, ValueError, ArithmeticError, ConfigError) as problem:
        raise BundleError(
            f"{folder}: not a detector this version understands ({problem!r})"
        ) from problem
    number = current_calibration(folder) if calibration is None else calibration
    return (
        detector
        if number == 0
        else _calibrated(detector, content, folder, number, asked=calibration is not None)
    )


def _calibrated(
    detector: Detector,
    content: dict[str, Any],
    folder: str | os.PathLike[str],
    number: int,
    asked: bool,
) -> Detector:
    """The detector with a saved calibration; as it is if that belongs to another and was not asked for."""
    calibration = read_calibration(folder, number)
    if not calibration.belongs_to(content):
        if asked:
            raise BundleError(
                f"{folder}: calibration {number} was made with another model, and cannot be used with this one"
            )
        return detector
    try:
        detector.parts_ = with_calibration(
            detector.fitted(), calibration.regimes, calibration.ranked
        )
        check_detector(detector)
        detector.parts_, detector.calibration_ = rescored(detector.parts_), number
    except (LookupError, TypeError, ValueError, ArithmeticError, ConfigError) as problem:
        raise BundleError(
            f"{folder}: calibration {number} is not one this version understands ({problem!r})"
        ) from problem
    return detector


def _ranker(
    content: dict[str, Any] | None,
    arrays: dict[str, Array],
    features: Features,
    model: HiddenMarkovModel[Any],
) -> tuple[Ranker | None, dict[str, RegimeRanker] | None]:
    if content is None:
        return None, None
    ranked = {
        mode: unpack(RegimeRanker, content[mode], below(f"ranker.{mode}", arrays)) for mode in MODES
    }
    if content["kind"] == "column":
        return as_ranker(str(content["column"]), features, model), ranked
    if content["kind"] == "head":
        if not isinstance(model, NeuralVariationalHMM):
            raise ValueError("the ranker is an encoder's head, and the model has no encoder")
        return HeadRanker(model.encoder_), ranked
    try:
        from xgboost import Booster
    except ImportError as problem:
        raise BundleError(
            "this detector has an XGBoost ranker: install `turncoat[baselines]`"
        ) from problem
    return XGBoostRanker(Booster(model_file=bytearray(arrays[_RANKER_BYTES].tobytes()))), ranked
