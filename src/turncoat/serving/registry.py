"""The model in service: loaded, tested, and replaced by a newer one while requests go on."""

from __future__ import annotations

import asyncio
import logging
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from turncoat.errors import BundleError, TurncoatError
from turncoat.scoring import Detector, load
from turncoat.scoring.drift import DriftMonitor
from turncoat.serving.decoding import Pseudonymiser, TransactionDecoder
from turncoat.serving.settings import ServiceSettings

_log = logging.getLogger("turncoat")
_WATCHED_FILES = ("manifest.json", "calibrations/current.json")


class ServedModel(NamedTuple):
    """A detector with its decoder and its drift monitor."""

    detector: Detector
    decoder: TransactionDecoder
    drift: DriftMonitor


class ModelRegistry:
    """Holds the model in service."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Load the model; a BundleError if it is missing, damaged or edited."""
        self._settings, self._folder = settings, Path(settings.model_path)
        self.pseudonymiser = Pseudonymiser() if settings.pseudonymise else None
        self._signature = self._read_signature()
        self._problem = ""  # why the newest files are not in service
        self.n_failures = 0
        self.current = self._serve(*self._load())

    async def reload_if_changed(self) -> bool:
        """Load a new model or calibration, if there is one; return whether it now serves.

        If it cannot be loaded, the old one stays in service and the next call tries again.
        """
        signature = self._read_signature()
        if signature == self._signature:
            return False
        try:
            self.current = self._serve(*await asyncio.to_thread(self._load), self.current)
        except TurncoatError as problem:
            if str(problem) != self._problem:  # log it once, not at every attempt
                self.n_failures += 1
                self._problem = str(problem)
                _log.error("the new model is not in service: %s", problem)
            return False
        self._signature, self._problem = signature, ""
        new = self.current.detector
        _log.info("model %s, calibration %d now serves", new.digest_, new.calibration_.number)
        return True

    def _read_signature(self) -> dict[str, tuple[int, int, int]]:
        """Return values that change when a watched file is replaced."""
        found = {}
        for name in _WATCHED_FILES:
            with suppress(OSError):
                status = (self._folder / name).stat()
                found[name] = (status.st_ino, status.st_mtime_ns, status.st_size)
        return found

    def _load(self) -> tuple[Detector, TransactionDecoder]:
        """Load the detector and score its example."""
        settings, detector = self._settings, load(self._folder)
        schema = detector.features_.plan.schema
        features = {*schema.categorical, *schema.tracked, *schema.counterparties}
        if self.pseudonymiser is not None and (shared := features & set(schema.customer)):
            columns = f"{self._folder}: {', '.join(sorted(map(str, shared)))}"
            problem = "is part of the customer's name and a feature too"
            raise BundleError(f"{columns} {problem}, so it cannot be replaced by a pseudonym")
        rules = settings.expect_labels, settings.max_future_s
        decoder = TransactionDecoder(detector, self.pseudonymiser, *rules)
        example = decoder.decode(msgspec.json.encode(decoder.example)).row
        detector.score_one(None, example, n_reasons=settings.n_reasons)  # compiles, too
        return detector, decoder

    def _serve(
        self, detector: Detector, decoder: TransactionDecoder, old: ServedModel | None = None
    ) -> ServedModel:
        """Return the detector with a drift monitor: the old one if it still applies."""
        reference = detector.calibration_.reference
        if old is not None and old.drift.update_reference(reference):
            return ServedModel(detector, decoder, old.drift)
        folder = None
        if self._settings.metrics_dir:
            digest = f"{detector.digest_}-{zlib.crc32(reference.means.tobytes()):08x}"
            folder = Path(self._settings.metrics_dir) / digest
        return ServedModel(detector, decoder, DriftMonitor.watch(detector, folder))
