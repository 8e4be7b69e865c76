"""Detectors on disk: one folder with features, model and calibration, replaced atomically.

Later calibrations are numbered folders in `calibrations/`, with a pointer to the current one.
Number 0 is the calibration saved with the detector. A calibration belongs to one model and one
ranker; one that an earlier fit left in the folder is ignored. Nothing is ever pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import BundleError
from turncoat.features import Features
from turncoat.features.features import pack_features, unpack_features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.storage import pack_model, unpack_model
from turncoat.scoring.calibration import FILTERED, Calibration
from turncoat.scoring.causes import CauseScore
from turncoat.scoring.episodes import EpisodeChain
from turncoat.scoring.known_customers import KnownCustomers
from turncoat.scoring.rankers import (
    CausesRanker,
    ColumnRanker,
    CorrectedCausesRanker,
    Ranker,
    RegimeRanker,
    XGBoostRanker,
    make_ranker,
)
from turncoat.scoring.reference import Reference
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.scorecard import Scorecard
from turncoat.scoring.scores import MODES
from turncoat.storage import BundleFormat, Folder, digest, refuse_unreadable, replace_file

DETECTOR_FORMAT = BundleFormat("detector", version=12)
CALIBRATION_FORMAT = BundleFormat("calibration", version=2)
DIGEST_DIGITS = 16
_CALIBRATIONS, _CURRENT = "calibrations", "current.json"
_LABEL_SETTINGS = ("supervision", "n_fraud_states", "label_noise")  # they shape beliefs
_BOOSTER, _CAUSES = "ranker.booster", "ranker.causes"
_T = TypeVar("_T")
Arrays = Mapping[str, Array]
Content = dict[str, Any]  # of a manifest
Model = HiddenMarkovModel[Any]


@dataclass(frozen=True, eq=False)
class Bundle:
    """The fitted parts of a detector, and its settings."""

    settings: Mapping[str, Any]  # arguments of `Detector` besides features and model
    features: Features
    model: Model
    calibration: Calibration
    known_customers: KnownCustomers


@dataclass(frozen=True)
class CalibrationMetadata:
    """How a calibration was made."""

    created: float | None  # seconds since 1970; None for number 0
    n_rows: int  # labelled transactions
    n_frauds: int
    keep: float | None  # as given to `Detector.recalibrate`; None for number 0


@dataclass(frozen=True)
class CalibrationInfo(CalibrationMetadata):
    """One calibration of a saved detector."""

    number: int  # 0: as fitted
    model_digest: str
    is_usable: bool  # whether it belongs to the detector now in the folder
    is_current: bool  # whether `load` uses it


def digest_model(
    features: Features,
    model: Model,
    settings: Mapping[str, Any],
    episodes: EpisodeChain | None = None,
) -> str:
    """16 hex digits of all that states depend on; rates, lines and a fit's report are no part."""
    content, arrays = _pack_fitted(features, model)
    content["model"].pop("fit_report", None)
    for name in ("report", "settings"):  # how an encoder was trained, if it was trained here
        content["model"].get("encoder", {}).pop(name, None)
    content["settings"] = {name: settings[name] for name in _LABEL_SETTINGS}
    content["records"] = features.plan.fingerprint
    content["episodes"] = None if episodes is None else asdict(episodes)
    return digest(content, arrays)[:DIGEST_DIGITS]


def save_bundle(folder: Folder, bundle: Bundle) -> None:
    """Write a bundle into its own folder; an existing detector there is replaced atomically."""
    content, arrays = _pack_fitted(bundle.features, bundle.model)
    content["settings"] = dict(bundle.settings)
    episodes = bundle.calibration.episodes
    content["model_digest"] = digest_model(bundle.features, bundle.model, bundle.settings, episodes)
    content |= pack(replace(bundle.calibration, ranker=None, episodes=None), arrays)
    content["episodes"] = None if episodes is None else asdict(episodes)
    content["known_customers"] = pack(bundle.known_customers, arrays, "known_customers.")
    content["ranker"], booster = _pack_ranker(bundle.calibration.ranker)
    content["ranker_digest"] = digest(content["ranker"], booster)[:DIGEST_DIGITS]
    DETECTOR_FORMAT.save(folder, content, arrays | booster)


def load_bundle(folder: Folder, number: int | None = None) -> Bundle:
    """Read a bundle with the current calibration, or with the one of this `number`.

    A current calibration of another model, left behind when this one was saved, is ignored.
    """
    manifest, arrays = DETECTOR_FORMAT.load(folder)
    with refuse_unreadable(folder, "a detector"):
        bundle = _unpack_bundle(manifest, arrays, str(folder))
        _check(bundle)
    chosen = read_current(folder) if number is None else number
    if chosen == 0:
        return bundle
    content, regimes, ranker = _read_calibration(folder, chosen)
    if not _belongs(content, manifest):
        if number is None:
            return bundle
        problem = f"calibration {chosen} belongs to another model and cannot be used here"
        raise BundleError(f"{folder}: {problem}")
    with refuse_unreadable(_calibration_folder(folder, chosen), "a calibration"):
        regimes.check(bundle.calibration.n_states)
        if ranker is not None:
            ranker.check(bundle.calibration.n_states)
        calibration = replace(bundle.calibration.replace_filtered(regimes, ranker), number=chosen)
        bundle = replace(bundle, calibration=calibration)
        _check(bundle)
    return bundle


def save_calibration(
    folder: Folder, calibration: Calibration, model_digest: str, metadata: CalibrationMetadata
) -> int:
    """Save a recalibrated detector's calibration and, as the last step, make it current."""
    manifest, _ = DETECTOR_FORMAT.load(folder)
    rankers = calibration.regime_rankers
    has_ranker = manifest["ranker"] is not None
    if model_digest != manifest["model_digest"] or (rankers is not None) != has_ranker:
        problem = "the detector there is not the one that was recalibrated"
        raise BundleError(f"{folder}: {problem}. Load it, and recalibrate that")
    arrays: dict[str, Array] = {}
    ranker = None if rankers is None else rankers[FILTERED]
    content = pack({"regimes": calibration.regimes[FILTERED], "ranker": ranker}, arrays)
    content |= {"metadata": vars(metadata), "model_digest": model_digest}
    content["ranker_digest"] = manifest["ranker_digest"]
    number = _claim_number(Path(folder) / _CALIBRATIONS)
    CALIBRATION_FORMAT.save(_calibration_folder(folder, number), content, arrays)
    _write_current(folder, number)
    return number


def list_calibrations(folder: Folder) -> list[CalibrationInfo]:
    """All calibrations of a saved detector, the one of the fit first."""
    manifest, arrays = DETECTOR_FORMAT.load(folder)
    saved = {number: _read_calibration(folder, number)[0] for number in _list_numbers(folder)}
    current = read_current(folder)
    if current not in saved or not _belongs(saved[current], manifest):
        current = 0
    mass, frauds = (arrays[f"regimes.{FILTERED}.{name}"].sum() for name in ("mass", "frauds"))
    as_fitted = CalibrationMetadata(None, round(float(mass)), round(float(frauds)), None)
    infos = []
    for number, content in {0: {**manifest, "metadata": vars(as_fitted)}, **saved}.items():
        own: dict[str, Any] = {"number": number, "model_digest": content["model_digest"]}
        own |= {"is_usable": _belongs(content, manifest), "is_current": number == current}
        infos.append(CalibrationInfo(**content["metadata"], **own))
    return infos


def use_calibration(folder: Folder, number: int) -> None:
    """Make a calibration current; BundleError if it is missing, damaged or of another model."""
    numbers = [0, *_list_numbers(folder)]
    if number not in numbers:
        found = ", ".join(map(str, numbers))
        raise BundleError(f"{folder} has no calibration {number}; it has {found}")
    load_bundle(folder, number)
    _write_current(folder, number)


def read_current(folder: Folder) -> int:
    """The number of the current calibration; 0 if none was saved."""
    path, remedy = Path(folder) / _CALIBRATIONS / _CURRENT, "Choose the calibration to use again"
    try:
        number = json.loads(path.read_bytes())["current"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise BundleError(f"{path} cannot be read ({problem!r}). {remedy}") from problem
    if type(number) is not int or number < 0:
        raise BundleError(f"{path} names {number!r}, which is not a calibration. {remedy}")
    return number


def pack(value: Any, arrays: dict[str, Array], prefix: str = "") -> Any:
    """Dataclasses and mappings as plain dicts; their arrays move to `arrays`, by dotted name."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if not isinstance(value, Mapping):
        return value
    content = {}
    for name, item in value.items():
        if isinstance(item, np.ndarray):
            arrays[f"{prefix}{name}"] = item
        else:
            content[name] = pack(item, arrays, f"{prefix}{name}.")
    return content


def unpack(kind: type[_T], content: Mapping[str, Any], arrays: Arrays, prefix: str) -> _T:
    """A dataclass from its plain content and the arrays below a prefix."""
    return kind(**content, **_select(prefix, arrays))


def _select(prefix: str, arrays: Arrays) -> dict[str, Array]:
    """The arrays below a prefix, without it."""
    start = f"{prefix}."
    return {name[len(start) :]: array for name, array in arrays.items() if name.startswith(start)}


def _pack_fitted(features: Features, model: Model) -> tuple[Content, dict[str, Array]]:
    content: Content = {}
    arrays: dict[str, Array] = {}
    for name, packed in (("features", pack_features(features)), ("model", pack_model(model))):
        content[name], own = packed
        arrays |= {f"{name}.{key}": array for key, array in own.items()}
    return content, arrays


def _unpack_bundle(manifest: Mapping[str, Any], arrays: Arrays, folder: str) -> Bundle:
    features = unpack_features(manifest["features"], _select("features", arrays), folder)
    model = unpack_model(manifest["model"], _select("model", arrays))
    ranker = _unpack_ranker(manifest["ranker"], arrays, features, model)
    rankers = manifest["regime_rankers"]
    if (ranker is None) != (rankers is None):
        raise ValueError("the regression lines do not belong to the ranker")
    first, last = map(float, manifest["time_range"])
    share = float(manifest["temporal_share"])

    def unpack_modes(kind: type[_T], name: str) -> dict[str, _T]:
        content = manifest[name]
        return {mode: unpack(kind, content[mode], arrays, f"{name}.{mode}") for mode in MODES}

    regimes = unpack_modes(Regimes, "regimes")
    in_sample = unpack(Regimes, manifest["in_sample"], arrays, "in_sample")
    reference = unpack(Reference, manifest["reference"], arrays, "reference")
    lines = None if rankers is None else unpack_modes(RegimeRanker, "regime_rankers")
    found = manifest["episodes"]
    episodes = None if found is None else EpisodeChain(**found)
    parts = regimes, in_sample, share, reference, (first, last), ranker, lines, episodes
    calibration = Calibration(*parts)
    known = unpack(KnownCustomers, manifest["known_customers"], arrays, "known_customers")
    return Bundle(manifest["settings"], features, model, calibration, known)


def _check(bundle: Bundle) -> None:
    """Raise ValueError or ConfigError if the parts do not fit each other."""
    plan, calibration = bundle.features.plan, bundle.calibration
    if bundle.model.get_input_columns() != (len(plan.continuous), plan.n_categories):
        raise ValueError("the model's columns are not those of the features")
    if calibration.n_states != bundle.model.params_.n_states:
        raise ValueError("the regimes are not those of the model")
    calibration.check(len(plan.continuous))
    bundle.known_customers.check()
    ranker, columns = calibration.ranker, (len(plan.continuous), plan.n_categories)
    if ranker is not None:
        make_ranker(ranker.source, bundle.features, bundle.model)
    if isinstance(ranker, CausesRanker | CorrectedCausesRanker):
        score = ranker.source if isinstance(ranker, CausesRanker) else ranker.cause_score
        make_ranker(score, bundle.features, bundle.model)
        score.check(*columns, len(plan.counterparties))


def _pack_ranker(ranker: Ranker | None) -> tuple[dict[str, Any] | None, dict[str, Array]]:
    if ranker is None:
        return None, {}
    if isinstance(ranker, ColumnRanker):
        return {"kind": "column", "column": ranker.source}, {}
    if isinstance(ranker, CausesRanker):
        return _pack_causes(ranker.source)
    if isinstance(ranker, XGBoostRanker):
        booster = np.frombuffer(bytes(ranker.source.save_raw("ubj")), np.uint8)
        content: Content = {"kind": "xgboost"}
        arrays: dict[str, Array] = {_BOOSTER: booster}
        if isinstance(ranker, CorrectedCausesRanker):
            content["causes"], own = _pack_causes(ranker.cause_score)
            arrays |= own
        return content, arrays
    return {"kind": "head"}, {}


def _pack_causes(score: CauseScore) -> tuple[Content, dict[str, Array]]:
    arrays: dict[str, Array] = {}
    content = pack(score, arrays, f"{_CAUSES}.")
    return {"kind": "causes", **content}, arrays


def _unpack_causes(content: Mapping[str, Any], arrays: Arrays) -> CauseScore:
    own = _select(_CAUSES, arrays)
    scorecard = unpack(Scorecard, content["scorecard"], own, "scorecard")
    return CauseScore(scorecard, own.get("weights"), float(content["intercept"]))


def _unpack_ranker(content: Any, arrays: Arrays, features: Features, model: Model) -> Ranker | None:
    if content is None:
        return None
    if content["kind"] == "column":
        return make_ranker(str(content["column"]), features, model)
    if content["kind"] == "causes":
        return make_ranker(_unpack_causes(content, arrays), features, model)
    if content["kind"] == "head":
        if not isinstance(model, NeuralVariationalHMM):
            raise ValueError("the ranker is an encoder's head, and the model has no encoder")
        return make_ranker(model.encoder_, features, model)
    try:
        from xgboost import Booster
    except ImportError as problem:
        remedy = "install `turncoat[baselines]`"
        raise BundleError(f"this detector has an XGBoost ranker: {remedy}") from problem
    booster = Booster(model_file=bytearray(arrays[_BOOSTER].tobytes()))
    if "causes" in content:
        return CorrectedCausesRanker(booster, _unpack_causes(content["causes"], arrays))
    return make_ranker(booster, features, model)


def _read_calibration(folder: Folder, number: int) -> tuple[Content, Regimes, RegimeRanker | None]:
    """The manifest, regimes and ranker of a numbered calibration."""
    place = _calibration_folder(folder, number)
    content, arrays = CALIBRATION_FORMAT.load(place)
    with refuse_unreadable(place, "a calibration"):
        CalibrationMetadata(**content["metadata"])
        _belongs(content, content)
        regimes, ranker = unpack(Regimes, content["regimes"], arrays, "regimes"), content["ranker"]
        lines = None if ranker is None else unpack(RegimeRanker, ranker, arrays, "ranker")
    return content, regimes, lines


def _belongs(content: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
    """Whether a calibration was made with the model and the ranker of a detector."""
    return all(content[name] == manifest[name] for name in ("model_digest", "ranker_digest"))


def _calibration_folder(folder: Folder, number: int) -> Path:
    return Path(folder) / _CALIBRATIONS / f"{number:04d}"


def _list_numbers(folder: Folder) -> list[int]:
    """The numbers of completely saved calibrations."""
    found = (Path(folder) / _CALIBRATIONS).glob("*/manifest.json")
    return sorted(int(path.parent.name) for path in found if path.parent.name.isdecimal())


def _claim_number(folder: Path) -> int:
    """Create the folder of the next free number, above every number ever claimed."""
    try:
        folder.mkdir(exist_ok=True)
        numbers = (int(place.name) for place in folder.iterdir() if place.name.isdecimal())
        number = 1 + max(numbers, default=0)
        while True:
            with suppress(FileExistsError):  # another process may claim numbers too
                (folder / f"{number:04d}").mkdir()
                return number
            number += 1
    except OSError as problem:
        raise BundleError(f"cannot save to {folder}: {problem}") from problem


def _write_current(folder: Folder, number: int) -> None:
    path = Path(folder) / _CALIBRATIONS / _CURRENT
    try:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, json.dumps({"current": number}).encode())
    except OSError as problem:
        raise BundleError(f"cannot save to {path}: {problem}") from problem
