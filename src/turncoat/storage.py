"""Saved things: a folder with arrays (safetensors) and a JSON manifest. Nothing is ever executed on loading.

Each save writes its arrays to a file of its own, and the manifest, which names it, is replaced in one instant: whoever
loads while another saves gets the old thing or the new one, and an interrupted save leaves the old one. The manifest carries a
format version, a checksum of the arrays and one of itself, so a truncated, edited or newer folder is refused with a
`BundleError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from turncoat.arrays import Array
from turncoat.errors import BundleError

_MANIFEST = "manifest.json"
_PARAMS_FILE = re.compile(r"params-[0-9a-f]{16}\.safetensors")
_LEFT_OVER = re.compile(rf"{_PARAMS_FILE.pattern}|\.saving-.*")  # of a first save that was killed
_LOAD_ATTEMPTS = (
    10  # a save between reading the manifest and the arrays makes a second look worthwhile
)


@dataclass(frozen=True)
class BundleFormat:
    """A kind of thing that is saved: what people call it, its name in the manifest, the version this code reads and writes."""

    what: str
    version: int

    @property
    def name(self) -> str:
        """The format's name in the manifest."""
        return f"turncoat-{self.what}"

    def save(
        self,
        folder: str | os.PathLike[str],
        content: Mapping[str, Any],
        arrays: Mapping[str, Array],
    ) -> None:
        """Write into a folder of its own; what is already there is replaced in one instant, or not at all."""
        target = Path(folder)
        tensors = save_tensors(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        )
        manifest = {
            "format": self.name,
            "format_version": self.version,
            **content,
            "params_file": f"params-{secrets.token_hex(8)}.safetensors",
            "params_sha256": hashlib.sha256(tensors).hexdigest(),
        }
        manifest["manifest_sha256"] = digest(manifest)
        try:
            is_new = not target.exists()
            replaced = self._params_in_use(target)
            target.mkdir(parents=True, exist_ok=True)
            try:
                replace_file(target / str(manifest["params_file"]), tensors)
                replace_file(
                    target / _MANIFEST, json.dumps(manifest, indent=2, default=_plain).encode()
                )
            except BaseException:
                if is_new and not any(target.iterdir()):
                    target.rmdir()
                raise
            if replaced is not None:
                (target / replaced).unlink(missing_ok=True)
        except OSError as problem:
            raise BundleError(f"cannot save to {target}: {problem}") from problem

    def check_target(self, folder: str | os.PathLike[str]) -> None:
        """Refuse, before long work, a folder that `save` would refuse."""
        target = Path(folder)
        self._params_in_use(target)
        check_writable(target)

    def load(self, folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
        """The content and the arrays of a folder; a `BundleError` says what is wrong with one that cannot be trusted."""
        source = Path(folder)
        manifest, raw = self._read(source)
        again = f"Save the {self.what} again"
        if hashlib.sha256(raw).hexdigest() != manifest["params_sha256"]:
            raise BundleError(
                f"{source}: {manifest['params_file']} is truncated or was changed after saving. {again}"
            )
        try:
            return manifest, load_tensors(raw)
        except (
            SafetensorError,
            KeyError,
            TypeError,
            ValueError,
        ) as problem:  # also of number types that NumPy has not
            raise BundleError(
                f"{source}: not a {self.what} this version understands ({problem!r})"
            ) from problem

    def _read(self, source: Path) -> tuple[dict[str, Any], bytes]:
        """The manifest and the arrays it names."""
        attempts = _LOAD_ATTEMPTS
        while True:
            manifest = self._read_manifest(source)
            try:
                return manifest, (source / manifest["params_file"]).read_bytes()
            except OSError as problem:
                attempts -= 1
                if attempts == 0:
                    reason = f"cannot read {manifest['params_file']}: {problem.strerror}"
                    raise BundleError(
                        f"{source}: {reason}. Save the {self.what} again"
                    ) from problem

    def _params_in_use(self, target: Path) -> str | None:
        """The arrays' file of what is now in a folder; None if there is none. Raises if the folder holds something else."""
        if not target.exists() or (
            target.is_dir() and all(_LEFT_OVER.fullmatch(place.name) for place in target.iterdir())
        ):
            return None
        try:
            manifest = json.loads((target / _MANIFEST).read_bytes())
            if manifest["format"] == self.name and _PARAMS_FILE.fullmatch(manifest["params_file"]):
                return str(manifest["params_file"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            pass
        raise BundleError(
            f"{target} exists and is not a saved {self.what}. Choose another folder, or move this one away"
        )

    def _read_manifest(self, source: Path) -> dict[str, Any]:
        try:
            manifest = json.loads((source / _MANIFEST).read_bytes())
        except OSError as problem:
            raise BundleError(
                f"{source} is not a saved {self.what}: cannot read {_MANIFEST}: {problem.strerror}"
            ) from problem
        except (ValueError, RecursionError) as problem:
            raise BundleError(
                f"{source}: {_MANIFEST} is truncated or is not JSON. Save the {self.what} again"
            ) from problem
        if not isinstance(manifest, dict) or manifest.get("format") != self.name:
            raise BundleError(f"{source}: {_MANIFEST} does not describe a Turncoat {self.what}")
        version = manifest.get("format_version")
        if version != self.version:
            raise BundleError(
                f"{source}: format version {version!r}; this Turncoat reads version {self.version}. Upgrade Turncoat"
            )
        if manifest.pop("manifest_sha256", None) != digest(manifest):
            raise BundleError(
                f"{source}: {_MANIFEST} was changed after saving. Save the {self.what} again"
            )
        if not _PARAMS_FILE.fullmatch(str(manifest.get("params_file"))) or not isinstance(
            manifest.get("params_sha256"), str
        ):
            raise BundleError(f"{source}: {_MANIFEST} does not name the parameters")
        return manifest


def check_writable(target: Path) -> None:
    """Refuse, before long work, a folder that cannot be made or written to."""
    there = next(
        place for place in (target.absolute(), *target.absolute().parents) if place.exists()
    )
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as problem:
        raise BundleError(
            f"cannot write to {target}: {problem.strerror}. Choose another folder"
        ) from problem


@contextlib.contextmanager
def replace_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write to, which takes the target's place when all is written; a failure leaves the target as it was."""
    check_replaceable(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        written = aside / "new"
        written.mkdir()
        yield written
        if target.exists():
            target.rename(aside / "old")
        written.rename(target)
    finally:
        if (aside / "old").exists() and not target.exists():
            (aside / "old").rename(target)
        shutil.rmtree(aside, ignore_errors=True)


def check_replaceable(target: Path, overwrite: bool) -> None:
    """Refuse a target with something in it, unless that is to be replaced."""
    if target.exists() and not target.is_dir():
        raise BundleError(f"{target} is a file; choose a folder")
    if target.exists() and any(target.iterdir()) and not overwrite:
        raise BundleError(
            f"{target} is not empty. Choose another folder, or say that it is to be replaced (--overwrite)"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__} to a manifest")


def digest(content: Any, arrays: Mapping[str, Array] | None = None) -> str:
    """SHA-256 of plain content (anything JSON can hold) and named arrays, as 64 hex digits."""
    sha256 = hashlib.sha256(json.dumps(content, sort_keys=True, default=_plain).encode())
    for name, array in sorted((arrays or {}).items()):
        sha256.update(f"{name} {array.dtype.str} {array.shape}".encode())
        sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file aside and put it in place once it is whole and on disk; one that was there hands on its rights and, if it can, owner."""
    before = path.stat() if path.exists() else None
    handle, name = tempfile.mkstemp(prefix=".saving-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if before is not None:
            mode = stat.S_IMODE(before.st_mode)
            for owner in (-1, before.st_uid):
                with contextlib.suppress(OSError):
                    os.chown(name, owner, before.st_gid)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
