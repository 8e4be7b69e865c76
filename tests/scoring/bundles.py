"""Damage to saved folders, checksums included."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save

from turncoat import storage


def params_file(folder: Path) -> Path:
    return next(folder.glob("params-*.safetensors"))


def manifest_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def rewrite(folder: Path, **changes: Any) -> None:
    """Edit the manifest as a careful forger would, checksum included."""
    manifest = {**manifest_of(folder), **changes}
    del manifest["manifest_sha256"]
    manifest["manifest_sha256"] = storage.digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rewrite_arrays(folder: Path, changes: dict[str, Any]) -> None:
    raw = save(
        {
            name: array
            for name, array in {**load_file(params_file(folder)), **changes}.items()
            if array is not None
        }
    )
    params_file(folder).write_bytes(raw)
    rewrite(folder, params_sha256=hashlib.sha256(raw).hexdigest())
