"""Saved models: a folder with the parameters (safetensors) and a JSON manifest. Nothing is ever executed on loading.

Each save writes its parameters to a file of its own, and the manifest, which names it, is replaced in one instant: whoever
loads while another saves gets the old model or the new one, and an interrupted save leaves the old one. The manifest carries a
format version, a checksum of the parameters and one of itself, so a truncated, edited or newer folder is refused with a
`BundleError`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from turncoat.errors import BundleError, ConfigError
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.fitting import FitReport, RestartReport
from turncoat.models.parameters import Prior
from turncoat.models.variational import VariationalHMM

FORMAT, FORMAT_VERSION = "turncoat-model", 1
_KINDS: dict[str, type[HiddenMarkovModel[Any]]] = {kind.__name__: kind for kind in (BaumWelchHMM, VariationalHMM)}
_MANIFEST = "manifest.json"
_PARAMS_FILE = re.compile(r"params-[0-9a-f]{16}\.safetensors")
_NOT_SAVED = ("init", "progress", "n_threads")  # facts about a session, not about the model
_LOAD_ATTEMPTS = 10  # a save between reading the manifest and the parameters makes a second look worthwhile


def save_model(model: HiddenMarkovModel[Any], folder: str | os.PathLike[str]) -> None:
    """Write a fitted model into a folder of its own; a model already there is replaced in one instant, or not at all."""
    params = model._fitted()
    target = Path(folder)
    tensors = save_tensors(_flatten(params))
    settings = {k: v for k, v in model.get_params(deep=False).items() if k not in _NOT_SAVED}
    if isinstance(settings.get("prior"), Prior):
        settings["prior"] = asdict(settings["prior"])
    report = getattr(model, "fit_report_", None)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": type(model).__name__,
        "settings": settings,
        "n_categories": list(params.n_categories),
        "fit_report": None if report is None else asdict(report),
        "params_file": f"params-{secrets.token_hex(8)}.safetensors",
        "params_sha256": hashlib.sha256(tensors).hexdigest(),
    }
    manifest["manifest_sha256"] = _digest(manifest)
    content = json.dumps(manifest, indent=2, default=_plain).encode()
    try:
        is_new = not target.exists()
        replaced = _params_in_use(target)
        target.mkdir(parents=True, exist_ok=True)
        try:
            _replace(target / str(manifest["params_file"]), tensors)
            _replace(target / _MANIFEST, content)
        except BaseException:
            if is_new and not any(target.iterdir()):
                target.rmdir()
            raise
        if replaced is not None:
            (target / replaced).unlink(missing_ok=True)
    except OSError as problem:
        raise BundleError(f"cannot save to {target}: {problem}") from problem


def load_model(folder: str | os.PathLike[str]) -> BaumWelchHMM | VariationalHMM:
    """Read a saved model; a `BundleError` says what is wrong with one that cannot be trusted."""
    source = Path(folder)
    manifest, raw = _read(source)
    if hashlib.sha256(raw).hexdigest() != manifest["params_sha256"]:
        raise BundleError(f"{source}: {manifest['params_file']} is truncated or was changed after saving. Save the model again")
    try:
        kind = _KINDS[manifest["kind"]]
        settings = dict(manifest["settings"])
        if settings.get("prior") is not None:
            settings["prior"] = Prior(**settings["prior"])
        params = _unflatten(kind.params_type, load_tensors(raw), len(manifest["n_categories"]))
        settings.pop("n_states")
        model = kind.from_params(params, **settings)
        report = manifest["fit_report"]
        if report is not None:
            model.fit_report_ = _report(report)
            model.lower_bound_ = model.fit_report_.history[-1]
    except (LookupError, TypeError, ValueError, ArithmeticError, ConfigError, SafetensorError) as problem:
        raise BundleError(f"{source}: not a model this version understands ({problem!r})") from problem
    if not isinstance(model, BaumWelchHMM | VariationalHMM):
        raise BundleError(f"{source}: unknown kind of model {manifest['kind']!r}")
    return model


def _read(source: Path) -> tuple[dict[str, Any], bytes]:
    """The manifest and the parameters it names."""
    attempts = _LOAD_ATTEMPTS
    while True:
        manifest = _read_manifest(source)
        try:
            return manifest, (source / manifest["params_file"]).read_bytes()
        except OSError as problem:
            attempts -= 1
            if attempts == 0:
                reason = f"cannot read {manifest['params_file']}: {problem.strerror}"
                raise BundleError(f"{source}: {reason}. Save the model again") from problem


def _params_in_use(target: Path) -> str | None:
    """The parameters' file of the model now in a folder; None if there is none. Raises if the folder holds something else."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return None
    try:
        manifest = json.loads((target / _MANIFEST).read_bytes())
        if manifest["format"] == FORMAT and _PARAMS_FILE.fullmatch(manifest["params_file"]):
            return str(manifest["params_file"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass
    raise BundleError(f"{target} exists and is not a saved model; choose another folder")


def _read_manifest(source: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((source / _MANIFEST).read_bytes())
    except OSError as problem:
        raise BundleError(f"{source} is not a saved model: cannot read {_MANIFEST}: {problem.strerror}") from problem
    except (ValueError, RecursionError) as problem:
        raise BundleError(f"{source}: {_MANIFEST} is truncated or is not JSON. Save the model again") from problem
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BundleError(f"{source}: {_MANIFEST} does not describe a Turncoat model")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise BundleError(f"{source}: format version {version!r}; this Turncoat reads version {FORMAT_VERSION}. Upgrade Turncoat")
    if manifest.pop("manifest_sha256", None) != _digest(manifest):
        raise BundleError(f"{source}: {_MANIFEST} was changed after saving. Save the model again")
    if not _PARAMS_FILE.fullmatch(str(manifest.get("params_file"))) or not isinstance(manifest.get("params_sha256"), str):
        raise BundleError(f"{source}: {_MANIFEST} does not name the parameters")
    return manifest


def _plain(value: Any) -> Any:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__} to a manifest")


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, default=_plain).encode()).hexdigest()


def _replace(path: Path, content: bytes) -> None:
    """Write a file aside and put it in place once it is whole and on disk."""
    handle, name = tempfile.mkstemp(prefix=".saving-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _flatten(params: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for field in fields(params):
        value = getattr(params, field.name)
        named = {field.name: value} if not isinstance(value, tuple) else {f"{field.name}.{j}": a for j, a in enumerate(value)}
        tensors |= {name: np.ascontiguousarray(a) for name, a in named.items()}
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
