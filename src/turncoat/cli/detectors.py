"""The detector that a command is given: a folder of `turncoat fit`, or of `turncoat compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument

from turncoat.errors import BundleError

CHAMPION_FOLDER = "champion"  # in the folder of a run
_HELP = "Folder of a detector (`turncoat fit`), or of a run with a champion (`turncoat compare`)."


def find_detector(folder: Path) -> Path:
    """Return the folder, or the champion's folder in it if it is a run's."""
    from turncoat.scoring.bundle import DETECTOR_FORMAT

    if DETECTOR_FORMAT.is_in(folder):
        return folder
    if (folder / CHAMPION_FOLDER).is_dir():
        return folder / CHAMPION_FOLDER
    from turncoat.evaluation.study import STUDY_FILE

    if (folder / STUDY_FILE).exists():
        reason = "it is not finished, or XGBoost was not among its baselines"
        remedy = f"Run `turncoat compare` to its end, or give a detector in {folder / 'fits'}"
        raise BundleError(f"{folder} is a run without a champion: {reason}. {remedy}")
    return folder  # loading it says what is wrong


Model = Annotated[Path, Argument(help=_HELP, callback=find_detector)]
