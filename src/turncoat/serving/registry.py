"""The model that serves: loaded, tried out, and exchanged for a new one or a new calibration while requests go on."""

from __future__ import annotations

import asyncio
import logging
import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from turncoat.errors import BundleError, TurncoatError
from turncoat.scoring import Detector, load
from turncoat.serving.decoding import TransactionDecoder
from turncoat.serving.drift import DriftMonitor
from turncoat.serving.pseudonyms import Pseudonymiser
from turncoat.serving.settings import ServiceSettings

_log = logging.getLogger("turncoat")
_WATCHED = ("manifest.json", "calibrations/current.json")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A detector in service, and what goes with it."""

    detector: Detector
    decoder: TransactionDecoder
    drift: DriftMonitor


class ModelRegistry:
    """Holds what serves now."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Loads the model; a BundleError if it cannot be trusted."""
        self._settings, self._folder = settings, Path(settings.model_path)
        self._pseudonyms = Pseudonymiser.from_environment() if settings.pseudonymise else None
        self._seen = self._signature()
        self._problem = ""  # that keeps the latest from being taken up
        self.n_failures = 0
        self.current = self._served(*self._load())

    async def reload_if_changed(self) -> bool:
        """Take up a model or calibration that was put in place since; a bad one is reported and the old one goes on serving."""
        signature = self._signature()
        if signature == self._seen:
            return False
        try:
            self.current = self._served(*await asyncio.to_thread(self._load), self.current)
        except TurncoatError as problem:
            if (
                str(problem) != self._problem
            ):  # it is tried again and again, as it may still be on its way, and told once
                self.n_failures += 1
                self._problem = str(problem)
                _log.error("the new model is not taken up: %s", problem)
            return False
        self._seen, self._problem = signature, ""
        detector = self.current.detector
        _log.info(
            "model %s, calibration %d now serves", detector.digest_, detector.calibration_.number
        )
        return True

    def _signature(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Changes when one of the watched files is replaced."""
        found: list[tuple[int, int, int] | None] = []
        for name in _WATCHED:
            try:
                there = (self._folder / name).stat()
                found.append((there.st_ino, there.st_mtime_ns, there.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _load(self) -> tuple[Detector, TransactionDecoder]:
        """What is in the folder, tried out."""
        detector = load(self._folder)
        plan = detector.features_.plan
        if self._pseudonyms is not None and (
            shared := set(plan.schema.customer)
            & {*plan.schema.categorical, *plan.schema.tracked, plan.schema.counterparty}
        ):
            raise BundleError(
                f"{self._folder}: {', '.join(sorted(shared))} names customers and something else too; it cannot be a pseudonym"
            )
        decoder = TransactionDecoder(detector, self._pseudonyms, self._settings.expect_labels)
        example = decoder.decode(msgspec.json.encode(decoder.example)).row
        detector.score_one(
            None, example, n_reasons=self._settings.n_reasons
        )  # compiles, and shows that it works
        return detector, decoder

    def _served(
        self, detector: Detector, decoder: TransactionDecoder, old: ServedModel | None = None
    ) -> ServedModel:
        """A detector with the drift that is measured against it."""
        reference = detector.calibration_.reference
        if old is not None and old.drift.follows(reference):
            return ServedModel(detector, decoder, old.drift)  # what was seen of this model stays
        folder = None
        if self._settings.metrics_dir:
            folder = (
                Path(self._settings.metrics_dir)
                / f"{detector.digest_}-{zlib.crc32(reference.means.tobytes()):08x}"
            )
        return ServedModel(
            detector, decoder, DriftMonitor(reference, folder, detector.features_.plan.continuous)
        )
