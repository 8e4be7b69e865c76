"""Calibrations beside a saved detector: numbered folders in its `calibrations/`, and a pointer to the one in use.

Number 0 is the detector as it was saved. A calibration belongs to the features, model and ranker it was made with; one of others, which
a new fit in the same folder leaves behind, is passed over.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turncoat.errors import BundleError
from turncoat.scoring.packing import below, pack, unpack
from turncoat.scoring.ranker import RegimeRanker
from turncoat.scoring.recalibration import MODE
from turncoat.scoring.regimes import Regimes
from turncoat.storage import Format, replace_file

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector

CALIBRATION = Format("calibration", version=1)
_FOLDER = "calibrations"
_CURRENT = "current.json"
_ATTEMPTS = 100  # to take a number, of which another process may take the same


@dataclass(frozen=True)
class About:
    """What is kept beside a calibration."""

    created: float  # seconds since 1970
    n_rows: int  # labelled transactions it was made with
    n_frauds: int
    keep: float  # as given to `Detector.recalibrated`


@dataclass(frozen=True)
class CalibrationInfo:
    """One calibration of a saved detector."""

    number: int  # 0: as saved
    created: float | None  # seconds since 1970; None of number 0
    n_rows: int  # labelled transactions it was made with
    n_frauds: int
    keep: float | None  # how much of what was known before it was kept; None of number 0
    model_version: str
    usable: bool  # whether it belongs to the detector that is in the folder now
    current: bool  # whether `load` takes it


@dataclass(frozen=True, eq=False)
class Calibration:
    """A saved calibration."""

    about: About
    model_version: str
    ranker_version: str
    regimes: Regimes
    ranked: RegimeRanker | None

    def belongs_to(self, manifest: dict[str, Any]) -> bool:
        """Whether the saved detector with this manifest is the one it was made with."""
        return (self.model_version, self.ranker_version) == (
            manifest["model_version"],
            manifest["ranker_version"],
        )


def save_calibration(folder: str | os.PathLike[str], detector: Detector, about: About) -> int:
    """Keep a recalibrated detector's regimes beside the saved detector it was made from, and use them from now on; says their number.

    The detector takes the number, too. If interrupted, the calibration in use stays as it was.
    """
    manifest, _ = _saved_detector(folder)
    parts = detector.fitted()
    if detector.version_ != manifest["model_version"] or (parts.ranked is None) != (
        manifest["ranker"] is None
    ):
        raise BundleError(
            f"{folder}: the detector there is not the one that was recalibrated. Load it, and recalibrate that"
        )
    content: dict[str, Any] = {
        "about": vars(about),
        **{name: manifest[name] for name in ("model_version", "ranker_version")},
    }
    content["regimes"], arrays = pack(parts.regimes[MODE])
    arrays = {f"regimes.{name}": array for name, array in arrays.items()}
    content["ranked"] = None
    if parts.ranked is not None:
        content["ranked"], lines = pack(parts.ranked[MODE])
        arrays |= {f"ranked.{name}": array for name, array in lines.items()}
    number, place = _next_place(Path(folder) / _FOLDER)
    CALIBRATION.save(place, content, arrays)
    _point(folder, number)
    detector.calibration_ = number
    return number


def calibrations(folder: str | os.PathLike[str]) -> list[CalibrationInfo]:
    """All calibrations of a saved detector, the original first."""
    manifest, arrays = _saved_detector(folder)
    found = {
        number: read_calibration(folder, number) for number in _numbers(Path(folder) / _FOLDER)
    }
    usable = {number: calibration.belongs_to(manifest) for number, calibration in found.items()}
    current = current_calibration(folder)
    current = current if usable.get(current, False) else 0
    rows, frauds = (
        round(float(arrays[f"regimes.{MODE}.{name}"].sum())) for name in ("mass", "frauds")
    )
    infos = [
        CalibrationInfo(0, None, rows, frauds, None, manifest["model_version"], True, current == 0)
    ]
    for number, calibration in found.items():
        version, fits = calibration.model_version, usable[number]
        infos.append(
            CalibrationInfo(
                number,
                **vars(calibration.about),
                model_version=version,
                usable=fits,
                current=current == number,
            )
        )
    return infos


def use_calibration(folder: str | os.PathLike[str], number: int) -> None:
    """Have `load` take this calibration from now on, 0 being the original; refused if it is not there, damaged or of another model."""
    from turncoat.scoring.bundle import load  # which reads calibrations

    there = [0, *_numbers(Path(folder) / _FOLDER)]
    if number not in there:
        raise BundleError(
            f"{folder} has no calibration {number}; it has {', '.join(map(str, there))}"
        )
    load(folder, number)
    (Path(folder) / _FOLDER).mkdir(exist_ok=True)
    _point(folder, number)


def current_calibration(folder: str | os.PathLike[str]) -> int:
    """The number that the pointer names; 0 if there is none."""
    path = Path(folder) / _FOLDER / _CURRENT
    try:
        number = json.loads(path.read_bytes())["current"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise BundleError(
            f"{path} cannot be read ({problem!r}). Say again which calibration is to be used"
        ) from problem
    if type(number) is not int or number < 0:
        raise BundleError(
            f"{path} names {number!r}, which is no calibration. Say again which calibration is to be used"
        )
    return number


def read_calibration(folder: str | os.PathLike[str], number: int) -> Calibration:
    """A saved calibration, above 0."""
    place = _place(Path(folder) / _FOLDER, number)
    content, arrays = CALIBRATION.load(place)
    try:
        return Calibration(
            About(**content["about"]),
            str(content["model_version"]),
            str(content["ranker_version"]),
            unpack(Regimes, content["regimes"], below("regimes", arrays)),
            None
            if content["ranked"] is None
            else unpack(RegimeRanker, content["ranked"], below("ranked", arrays)),
        )
    except (LookupError, TypeError, ValueError) as problem:
        raise BundleError(
            f"{place}: not a calibration this version understands ({problem!r})"
        ) from problem


def _saved_detector(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    from turncoat.scoring.bundle import DETECTOR  # which reads calibrations

    return DETECTOR.load(folder)


def _place(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}"


def _numbers(folder: Path) -> list[int]:
    """Of the calibrations that were saved to the end."""
    return sorted(
        int(place.parent.name)
        for place in folder.glob("*/manifest.json")
        if place.parent.name.isdecimal()
    )


def _next_place(folder: Path) -> tuple[int, Path]:
    """The first number above all that were ever taken, and its folder, which nobody else takes."""
    try:
        folder.mkdir(exist_ok=True)
        for _ in range(_ATTEMPTS):
            number = 1 + max(
                (int(place.name) for place in folder.iterdir() if place.name.isdecimal()), default=0
            )
            try:
                _place(folder, number).mkdir()
            except FileExistsError:
                continue
            return number, _place(folder, number)
    except OSError as problem:
        raise BundleError(f"cannot save to {folder}: {problem}") from problem
    raise BundleError(f"cannot save to {folder}: others keep taking the next number. Try again")


def _point(folder: str | os.PathLike[str], number: int) -> None:
    path = Path(folder) / _FOLDER / _CURRENT
    try:
        replace_file(path, json.dumps({"current": number}).encode())
    except OSError as problem:
        raise BundleError(f"cannot save to {path}: {problem}") from problem
