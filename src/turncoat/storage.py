"""Saved bundles: a folder with arrays (safetensors) and a JSON manifest. Loading executes no code.

Each save writes its arrays to a new file and then replaces the manifest, which names that file, in
one step. A reader gets the old bundle or the new one, and an interrupted save leaves the old one.
The manifest has a format version, a checksum of the arrays and one of itself. A truncated, edited
or newer folder is refused with a `BundleError`.
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
from turncoat.errors import BundleError, ConfigError

_MANIFEST = "manifest.json"
_ARRAYS_FILE = re.compile(r"params-[0-9a-f]{16}\.safetensors")
_LEFTOVER = re.compile(rf"{_ARRAYS_FILE.pattern}|\.saving-.*")  # from a first save that was killed
_WRONG_VALUES = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, ConfigError)
_UNREADABLE = (SafetensorError, *_WRONG_VALUES)
_LOAD_ATTEMPTS = 10  # a save may replace the arrays between reading the manifest and the arrays

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class BundleFormat:
    """A kind of bundle: its name for people, and the version this code reads and writes."""

    what: str
    version: int

    @property
    def name(self) -> str:
        """Name of the format in the manifest."""
        return f"turncoat-{self.what}"

    def save(self, folder: Folder, content: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
        """Write a bundle into its own folder, replacing an earlier one atomically."""
        target = Path(folder)
        tensors = save_tensors({name: np.ascontiguousarray(a) for name, a in arrays.items()})
        arrays_file = f"params-{secrets.token_hex(8)}.safetensors"
        manifest = {"format": self.name, "format_version": self.version, **content}
        manifest["params_file"] = arrays_file
        manifest["params_sha256"] = hashlib.sha256(tensors).hexdigest()
        manifest["manifest_sha256"] = digest(manifest)
        try:
            is_new = not target.exists()
            old_arrays = self._find_arrays(target)
            target.mkdir(parents=True, exist_ok=True)
            try:
                replace_file(target / arrays_file, tensors)
                text = json.dumps(manifest, indent=2, default=_to_python)
                replace_file(target / _MANIFEST, text.encode())
            except BaseException:
                if is_new and not any(target.iterdir()):
                    target.rmdir()
                raise
            if old_arrays is not None:
                (target / old_arrays).unlink(missing_ok=True)
        except OSError as problem:
            raise BundleError(f"cannot save to {target}: {problem}") from problem

    def is_in(self, folder: Folder) -> bool:
        """Whether a folder says that it holds a bundle of this kind; it may still be damaged."""
        return self._peek(Path(folder)) is not None

    def check_target(self, folder: Folder) -> None:
        """Raise a BundleError, before long work, for a folder that `save` would refuse."""
        target = Path(folder)
        self._find_arrays(target)
        check_writable(target)

    def load(self, folder: Folder) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the manifest and the arrays of a folder; raise a BundleError for a damaged one."""
        source = Path(folder)
        manifest, raw = self._read(source)
        if hashlib.sha256(raw).hexdigest() != manifest["params_sha256"]:
            reason = f"{manifest['params_file']} is truncated or was changed after saving"
            raise BundleError(f"{source}: {reason}. Save the {self.what} again")
        with refuse_unreadable(source, f"a {self.what}"):
            return manifest, load_tensors(raw)

    def _read(self, source: Path) -> tuple[dict[str, Any], bytes]:
        """Return the manifest and the bytes of the arrays that it names."""
        error = OSError()
        for _ in range(_LOAD_ATTEMPTS):
            manifest = self._read_manifest(source)
            try:
                return manifest, (source / manifest["params_file"]).read_bytes()
            except OSError as problem:
                error = problem
        reason = f"cannot read {manifest['params_file']}: {error.strerror}"
        raise BundleError(f"{source}: {reason}. Save the {self.what} again") from error

    def _find_arrays(self, target: Path) -> str | None:
        """Return the name of the arrays' file; None for a folder that is new or empty."""
        if not target.exists():
            return None
        if target.is_dir() and all(_LEFTOVER.fullmatch(path.name) for path in target.iterdir()):
            return None
        arrays_file = str((self._peek(target) or {}).get("params_file"))
        if _ARRAYS_FILE.fullmatch(arrays_file):
            return arrays_file
        remedy = "Choose another folder, or move this one away"
        raise BundleError(f"{target} exists and is not a saved {self.what}. {remedy}")

    def _peek(self, source: Path) -> dict[str, Any] | None:
        """Return the manifest, unchecked; None if it is not one of this kind."""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
            manifest = json.loads((source / _MANIFEST).read_bytes())
            if manifest["format"] == self.name:
                return dict(manifest)
        return None

    def _read_manifest(self, source: Path) -> dict[str, Any]:
        again = f"Save the {self.what} again"
        try:
            manifest = json.loads((source / _MANIFEST).read_bytes())
        except OSError as problem:
            reason = f"cannot read {_MANIFEST}: {problem.strerror}"
            raise BundleError(f"{source} is not a saved {self.what}: {reason}") from problem
        except (ValueError, RecursionError) as problem:
            reason = f"{_MANIFEST} is truncated or is not JSON"
            raise BundleError(f"{source}: {reason}. {again}") from problem
        if not isinstance(manifest, dict) or manifest.get("format") != self.name:
            raise BundleError(f"{source}: {_MANIFEST} does not describe a Turncoat {self.what}")
        version = manifest.get("format_version")
        if version != self.version:
            reads = f"this Turncoat reads version {self.version}. Upgrade Turncoat"
            raise BundleError(f"{source}: format version {version!r}; {reads}")
        if manifest.pop("manifest_sha256", None) != digest(manifest):
            raise BundleError(f"{source}: {_MANIFEST} was changed after saving. {again}")
        has_file = _ARRAYS_FILE.fullmatch(str(manifest.get("params_file")))
        if not has_file or not isinstance(manifest.get("params_sha256"), str):
            raise BundleError(f"{source}: {_MANIFEST} does not name the parameters")
        return manifest


def check_writable(target: Path) -> None:
    """Raise a BundleError, before long work, for a folder that cannot be made or written."""
    folders = (target.absolute(), *target.absolute().parents)
    existing = next(folder for folder in folders if folder.exists())
    try:
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as problem:
        reason = f"{problem.strerror}. Choose another folder"
        raise BundleError(f"cannot write to {target}: {reason}") from problem


@contextlib.contextmanager
def replace_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a folder to write to; it replaces the target at the end, unless there is an error."""
    if target.exists() and not target.is_dir():
        raise BundleError(f"{target} is a file; choose a folder")
    if target.exists() and any(target.iterdir()) and not overwrite:
        remedy = "Choose another folder, or replace it (--overwrite)"
        raise BundleError(f"{target} is not empty. {remedy}")
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    new, old = aside / "new", aside / "old"
    try:
        new.mkdir()
        yield new
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def refuse_unreadable(folder: Folder, what: str) -> Iterator[None]:
    """Turn an error while unpacking a manifest and its arrays into a BundleError."""
    try:
        yield
    except _UNREADABLE as problem:
        reason = f"not {what} this version understands ({problem!r})"
        raise BundleError(f"{folder}: {reason}") from problem


def digest(content: Any, arrays: Mapping[str, Array] | None = None) -> str:
    """Return the SHA-256 of JSON content and named arrays, as 64 hex digits."""
    sha256 = hashlib.sha256(json.dumps(content, sort_keys=True, default=_to_python).encode())
    for name, array in sorted((arrays or {}).items()):
        sha256.update(f"{name} {array.dtype.str} {array.shape}".encode())
        sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def _to_python(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"cannot write {type(value).__name__} to a manifest")


def replace_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file, put in place once on disk; it keeps an earlier one's permissions and owner."""
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
