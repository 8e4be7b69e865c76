"""What a run was made with: enough to make it again, bit for bit."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from turncoat.errors import BundleError
from turncoat.evaluation.settings import StudySettings, plain_settings, settings_from
from turncoat.evaluation.study import Study

PACKAGES = (
    "turncoat",
    "numpy",
    "numba",
    "scipy",
    "scikit-learn",
    "polars",
    "xgboost-cpu",
    "xgboost",
    "optuna",
    "venn-abers",
)


def manifest_of(studied: Study, source: str, schema: str, scenario: str) -> dict[str, Any]:
    """Versions, data and settings. `source`, `schema` and the column of scenarios are as they were given."""
    return {
        "source": source,
        "schema": schema,
        "scenario": scenario,
        "data_fingerprint": studied.fingerprint,
        "settings": plain_settings(studied.settings),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def load_manifest(path: Path) -> tuple[Mapping[str, Any], StudySettings]:
    """Read a manifest, and the settings in it."""
    try:
        manifest = json.loads(path.read_bytes())
        if lacking := {"source", "schema", "scenario", "data_fingerprint", "settings"} - set(
            manifest
        ):
            raise BundleError(
                f"{path}: not the manifest of a run: {', '.join(sorted(lacking))} missing"
            )
        return manifest, settings_from(manifest["settings"])
    except OSError as problem:
        raise BundleError(
            f"{path}: cannot be read ({problem.strerror}). Give the manifest.json of a run"
        ) from problem
    except (ValueError, LookupError, TypeError) as problem:
        raise BundleError(f"{path}: not the manifest of a run") from problem


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
