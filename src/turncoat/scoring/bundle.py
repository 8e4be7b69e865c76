"""Detectors on disk: one folder with features, model and calibration, replaced atomically.

Later calibrations are numbered folders in `calibrations/`, with a pointer to the current one.
Number 0 is the calibration saved with the detector. A calibration belongs to one model and one
ranker; one that an earlier fit left in the folder is ignored. Nothing is ever pickled.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError
from turncoat.features import Features
from turncoat.features.storage import pack_features, unpack_features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.storage import pack_model, unpack_model
from turncoat.scoring.calibration import FILTERED, Calibration
from turncoat.scoring.rankers import (
    ColumnRanker,
    HeadRanker,
    Ranker,
    RegimeRanker,
    XGBoostRanker,
    make_ranker,
)
from turncoat.scoring.reference import Reference
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scores import MODES
from turncoat.storage import BundleFormat, digest, replace_file

DETECTOR_FORMAT = BundleFormat("detector", version=6)
CALIBRATION_FORMAT = BundleFormat("calibration", version=2)
DIGEST_DIGITS = 16
_CALIBRATIONS, _CURRENT = "calibrations", "current.json"
_MAX_ATTEMPTS = 100  # to claim a number while other processes claim numbers too
_LABEL_SETTINGS = (
    "supervision",
    "n_fraud_states",
    "label_noise",
)  # they say how a label moves a belief
_BOOSTER = "ranker.booster"
_RANKER_KINDS: dict[type, str] = {
    ColumnRanker: "column",
    XGBoostRanker: "xgboost",
    HeadRanker: "head",
}
_UNREADABLE = (LookupError, TypeError, ValueError, ArithmeticError, ConfigError)
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Bundle:
    """The fitted parts of a detector, and its settings."""

    settings: Mapping[str, Any]  # arguments of `Detector` besides features and model
    features: Features
    model: HiddenMarkovModel[Any]
    calibration: Calibration


@dataclass(frozen=True)
class CalibrationMetadata:
    """How a calibration was made."""

    created: float  # seconds since 1970
    n_rows: int  # labelled transactions
    n_frauds: int
    keep: float  # as given to `Detector.recalibrate`


@dataclass(frozen=True)
class CalibrationInfo:
    """One calibration of a saved detector."""

    number: int  # 0: as fitted
    created: float | None  # seconds since 1970; None for number 0
    n_rows: int  # labelled transactions
    n_frauds: int
    keep: float | None  # weight of what was known before; None for number 0
    model_digest: str
    is_usable: bool  # whether it belongs to the detector now in the folder
    is_current: bool  # whether `load` uses it


@dataclass(frozen=True, eq=False)
class _SavedCalibration:
    """A numbered calibration as read from disk."""

    metadata: CalibrationMetadata
    model_digest: str
    ranker_digest: str
    regimes: Regimes
    ranker: RegimeRanker | None

    def belongs_to(self, manifest: Mapping[str, Any]) -> bool:
        return (self.model_digest, self.ranker_digest) == (
            manifest["model_digest"],
            manifest["ranker_digest"],
        )


def digest_model(
    features: Features, model: HiddenMarkovModel[Any], settings: Mapping[str, Any]
) -> str:
    """The identity of a fitted detector: 16 hex digits of everything that beliefs depend on.

    Saving, loading and calibrating do not change it. It leaves out how the fit went.
    """
    of_features, scales = pack_features(features)
    of_model, parameters = pack_model(model)
    of_model = {name: value for name, value in of_model.items() if name != "fit_report"}
    if "encoder" in of_model:  # neither how it was trained, nor where
        encoder = of_model["encoder"].items()
        of_model["encoder"] = {n: v for n, v in encoder if n not in ("report", "given")}
    content = {
        "features": of_features,
        "model": of_model,
        "settings": {name: settings[name] for name in _LABEL_SETTINGS},
    }
    arrays = add_prefix("features", scales) | add_prefix("model", parameters)
    return digest(content, arrays)[:DIGEST_DIGITS]


def save_bundle(folder: str | os.PathLike[str], bundle: Bundle) -> None:
    """Write a bundle into its own folder; an existing detector there is replaced atomically."""
    calibration = bundle.calibration
    content: dict[str, Any] = {
        "settings": dict(bundle.settings),
        "temporal_share": calibration.temporal_share,
        "time_range": calibration.time_range,
        "model_digest": digest_model(bundle.features, bundle.model, bundle.settings),
        "regimes": {},
        "regime_rankers": {},
    }
    arrays: dict[str, Array] = {}

    def add(place: dict[str, Any], name: str, prefix: str, packed: Any) -> None:
        place[name] = packed[0]
        arrays.update(add_prefix(prefix, packed[1]))

    add(content, "features", "features", pack_features(bundle.features))
    add(content, "model", "model", pack_model(bundle.model))
    add(content, "reference", "reference", pack_fields(calibration.reference))
    add(content, "in_sample", "in_sample", pack_fields(calibration.in_sample))
    for mode, regimes in calibration.regimes.items():
        add(content["regimes"], mode, f"regimes.{mode}", pack_fields(regimes))
    for mode, ranker in (calibration.regime_rankers or {}).items():
        add(content["regime_rankers"], mode, f"ranker.{mode}", pack_fields(ranker))
    content["ranker"], booster = _pack_ranker(calibration.ranker)
    content["ranker_digest"] = digest(content["ranker"], booster)[:DIGEST_DIGITS]
    DETECTOR_FORMAT.save(folder, content, arrays | booster)


def load_bundle(folder: str | os.PathLike[str], number: int | None = None) -> Bundle:
    """Read a bundle with the current calibration, or with the one of this `number`.

    A BundleError says what is wrong with a folder that cannot be trusted. A current calibration
    that belongs to another model, left behind when this one was saved, is ignored.
    """
    manifest, arrays = DETECTOR_FORMAT.load(folder)
    try:
        bundle = _unpack_bundle(manifest, arrays, str(folder))
        _check(bundle)
    except _UNREADABLE as problem:
        raise BundleError(
            f"{folder}: not a detector this version understands ({problem!r})"
        ) from problem
    chosen = read_current(folder) if number is None else number
    if chosen == 0:
        return bundle
    saved = _read_calibration(folder, chosen)
    if not saved.belongs_to(manifest):
        if number is None:
            return bundle
        raise BundleError(
            f"{folder}: calibration {chosen} belongs to another model and cannot be used with "
            "this one"
        )
    try:
        saved.regimes.check(bundle.calibration.n_states)
        if saved.ranker is not None:
            saved.ranker.check(bundle.calibration.n_states)
        calibration = bundle.calibration.replace_filtered(saved.regimes, saved.ranker)
        loaded = replace(bundle, calibration=replace(calibration, number=chosen))
        _check(loaded)
    except _UNREADABLE as problem:
        raise BundleError(
            f"{folder}: calibration {chosen} is not one this version understands ({problem!r})"
        ) from problem
    return loaded


def save_calibration(
    folder: str | os.PathLike[str],
    calibration: Calibration,
    model_digest: str,
    metadata: CalibrationMetadata,
) -> int:
    """Save a recalibrated detector's calibration beside it and make it current; its number.

    If interrupted, the current calibration stays as it was.
    """
    manifest, _ = DETECTOR_FORMAT.load(folder)
    rankers = calibration.regime_rankers
    if model_digest != manifest["model_digest"] or (rankers is None) != (
        manifest["ranker"] is None
    ):
        raise BundleError(
            f"{folder}: the detector there is not the one that was recalibrated. "
            "Load it, and recalibrate that"
        )
    content: dict[str, Any] = {
        "metadata": vars(metadata),
        "model_digest": model_digest,
        "ranker_digest": manifest["ranker_digest"],
        "ranker": None,
    }
    content["regimes"], regimes = pack_fields(calibration.regimes[FILTERED])
    arrays = add_prefix("regimes", regimes)
    if rankers is not None:
        content["ranker"], lines = pack_fields(rankers[FILTERED])
        arrays |= add_prefix("ranker", lines)
    number = _claim_number(Path(folder) / _CALIBRATIONS)
    CALIBRATION_FORMAT.save(_calibration_folder(folder, number), content, arrays)
    _write_current(folder, number)
    return number


def list_calibrations(folder: str | os.PathLike[str]) -> list[CalibrationInfo]:
    """All calibrations of a saved detector, the one of the fit first."""
    manifest, arrays = DETECTOR_FORMAT.load(folder)
    saved = {number: _read_calibration(folder, number) for number in _list_numbers(folder)}
    current = read_current(folder)
    if current not in saved or not saved[current].belongs_to(manifest):
        current = 0
    n_rows, n_frauds = (
        round(float(arrays[f"regimes.{FILTERED}.{name}"].sum())) for name in ("mass", "frauds")
    )
    first = CalibrationInfo(
        0, None, n_rows, n_frauds, None, manifest["model_digest"], True, current == 0
    )
    return [
        first,
        *(
            CalibrationInfo(
                number,
                **vars(found.metadata),
                model_digest=found.model_digest,
                is_usable=found.belongs_to(manifest),
                is_current=number == current,
            )
            for number, found in saved.items()
        ),
    ]


def use_calibration(folder: str | os.PathLike[str], number: int) -> None:
    """Make a calibration current; BundleError if it is missing, damaged or of another model."""
    numbers = [0, *_list_numbers(folder)]
    if number not in numbers:
        raise BundleError(
            f"{folder} has no calibration {number}; it has {', '.join(map(str, numbers))}"
        )
    load_bundle(folder, number)
    (Path(folder) / _CALIBRATIONS).mkdir(exist_ok=True)
    _write_current(folder, number)


def read_current(folder: str | os.PathLike[str]) -> int:
    """The number of the current calibration; 0 if none was saved."""
    path = Path(folder) / _CALIBRATIONS / _CURRENT
    remedy = "Choose the calibration to use again"
    try:
        number = json.loads(path.read_bytes())["current"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise BundleError(f"{path} cannot be read ({problem!r}). {remedy}") from problem
    if type(number) is not int or number < 0:
        raise BundleError(f"{path} names {number!r}, which is not a calibration. {remedy}")
    return number


def pack_fields(value: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """The plain fields and the array fields of a dataclass."""
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    arrays = {name: item for name, item in values.items() if isinstance(item, np.ndarray)}
    return {name: item for name, item in values.items() if name not in arrays}, arrays


def add_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays with `prefix.` before their names."""
    return {f"{prefix}.{name}": array for name, array in arrays.items()}


def unpack_fields(
    kind: type[_T], content: Mapping[str, Any], arrays: Mapping[str, Array], prefix: str
) -> _T:
    """A dataclass from its plain fields and the arrays with this prefix."""
    return kind(**content, **select_prefix(prefix, arrays))


def select_prefix(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays with this prefix, without it."""
    start = f"{prefix}."
    return {
        name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)
    }


def _unpack_bundle(manifest: Mapping[str, Any], arrays: Mapping[str, Array], folder: str) -> Bundle:
    features = unpack_features(manifest["features"], select_prefix("features", arrays), folder)
    model = unpack_model(manifest["model"], select_prefix("model", arrays))
    ranker = _unpack_ranker(manifest["ranker"], arrays, features, model)
    lines = {
        mode: unpack_fields(RegimeRanker, content, arrays, f"ranker.{mode}")
        for mode, content in manifest["regime_rankers"].items()
    }
    if set(lines) != (set() if ranker is None else set(MODES)):
        raise ValueError("the ranker's regression lines are not those of its modes")
    first, last = map(float, manifest["time_range"])
    calibration = Calibration(
        regimes={
            mode: unpack_fields(Regimes, manifest["regimes"][mode], arrays, f"regimes.{mode}")
            for mode in MODES
        },
        in_sample=unpack_fields(Regimes, manifest["in_sample"], arrays, "in_sample"),
        temporal_share=float(manifest["temporal_share"]),
        reference=unpack_fields(Reference, manifest["reference"], arrays, "reference"),
        time_range=(first, last),
        ranker=ranker,
        regime_rankers=lines or None,
    )
    return Bundle(manifest["settings"], features, model, calibration)


def _check(bundle: Bundle) -> None:
    """Raise ValueError or ConfigError if the parts do not fit each other."""
    plan, calibration = bundle.features.plan, bundle.calibration
    if bundle.model.get_input_columns() != (len(plan.continuous), plan.n_categories):
        raise ValueError("the model's columns are not those of the features")
    if calibration.n_states != bundle.model.params_.n_states:
        raise ValueError("the regimes are not those of the model")
    calibration.check(len(plan.continuous))
    if calibration.ranker is not None:
        make_ranker(calibration.ranker.source, bundle.features, bundle.model)


def _pack_ranker(ranker: Ranker | None) -> tuple[dict[str, Any] | None, dict[str, Array]]:
    if ranker is None:
        return None, {}
    content: dict[str, Any] = {"kind": _RANKER_KINDS[type(ranker)]}
    if isinstance(ranker, ColumnRanker):
        content["column"] = ranker.column
    if isinstance(ranker, XGBoostRanker):
        booster = bytes(ranker.source.save_raw("ubj"))
        return content, {_BOOSTER: np.frombuffer(booster, np.uint8)}
    return content, {}


def _unpack_ranker(
    content: Mapping[str, Any] | None,
    arrays: Mapping[str, Array],
    features: Features,
    model: HiddenMarkovModel[Any],
) -> Ranker | None:
    if content is None:
        return None
    if content["kind"] == "column":
        return make_ranker(str(content["column"]), features, model)
    if content["kind"] == "head":
        if not isinstance(model, NeuralVariationalHMM):
            raise ValueError("the ranker is an encoder's head, and the model has no encoder")
        return HeadRanker(model.encoder_)
    try:
        from xgboost import Booster
    except ImportError as problem:
        raise BundleError(
            "this detector has an XGBoost ranker: install `turncoat[baselines]`"
        ) from problem
    return XGBoostRanker(Booster(model_file=bytearray(arrays[_BOOSTER].tobytes())))


def _read_calibration(folder: str | os.PathLike[str], number: int) -> _SavedCalibration:
    place = _calibration_folder(folder, number)
    content, arrays = CALIBRATION_FORMAT.load(place)
    try:
        ranker = content["ranker"]
        return _SavedCalibration(
            CalibrationMetadata(**content["metadata"]),
            str(content["model_digest"]),
            str(content["ranker_digest"]),
            unpack_fields(Regimes, content["regimes"], arrays, "regimes"),
            None if ranker is None else unpack_fields(RegimeRanker, ranker, arrays, "ranker"),
        )
    except (LookupError, TypeError, ValueError) as problem:
        raise BundleError(
            f"{place}: not a calibration this version understands ({problem!r})"
        ) from problem


def _calibration_folder(folder: str | os.PathLike[str], number: int) -> Path:
    return Path(folder) / _CALIBRATIONS / f"{number:04d}"


def _list_numbers(folder: str | os.PathLike[str]) -> list[int]:
    """The numbers of completely saved calibrations."""
    places = (place.parent.name for place in (Path(folder) / _CALIBRATIONS).glob("*/manifest.json"))
    return sorted(int(name) for name in places if name.isdecimal())


def _claim_number(folder: Path) -> int:
    """Create the folder of the next free number, above every number ever claimed."""
    try:
        folder.mkdir(exist_ok=True)
        for _ in range(_MAX_ATTEMPTS):
            numbers = (int(place.name) for place in folder.iterdir() if place.name.isdecimal())
            number = 1 + max(numbers, default=0)
            try:
                (folder / f"{number:04d}").mkdir()
            except FileExistsError:
                continue
            return number
    except OSError as problem:
        raise BundleError(f"cannot save to {folder}: {problem}") from problem
    raise BundleError(f"cannot save to {folder}: other processes keep claiming numbers. Try again")


def _write_current(folder: str | os.PathLike[str], number: int) -> None:
    path = Path(folder) / _CALIBRATIONS / _CURRENT
    try:
        replace_file(path, json.dumps({"current": number}).encode())
    except OSError as problem:
        raise BundleError(f"cannot save to {path}: {problem}") from problem
