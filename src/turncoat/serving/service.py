"""The service without HTTP: the model, the store, the line of requests, what is counted, and what goes on in the background."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from operator import attrgetter

import msgspec
import numpy as np

from turncoat.errors import DataError, StoreError, TurncoatError
from turncoat.scoring import Detector, DetectorState
from turncoat.serving.attempt import UpdatePolicy
from turncoat.serving.batcher import MicroBatcher
from turncoat.serving.decoding import Transaction
from turncoat.serving.drift import VERDICTS
from turncoat.serving.labels import report
from turncoat.serving.metrics import ServiceMetrics
from turncoat.serving.pseudonyms import Pseudonymiser
from turncoat.serving.records import customer_key, unpack_record
from turncoat.serving.registry import ModelRegistry, ServedModel
from turncoat.serving.responses import (
    CustomerResponse,
    LabelResponse,
    RecentTransaction,
    ScoredResponse,
)
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.stores import open_store
from turncoat.serving.updater import BeliefUpdater

_log = logging.getLogger("turncoat")
_RETENTION_SECONDS = 60.0  # between two removals of old log entries
_DRIFT_SECONDS = 10.0  # between two looks at drift for the metrics
_KNOWN_RECORDS = 4096  # remembered by a service that is alone with its store
_READY_SECONDS = 2.0  # that the store may take to show that it is there
DAY = 86400.0


class Service:
    """Everything that answers requests in one process."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Loads the model and opens the store; `running` starts it."""
        self.settings = settings
        self.registry = ModelRegistry(settings)
        self.pseudonyms = Pseudonymiser.from_environment() if settings.pseudonymise else None
        self.metrics = ServiceMetrics()
        rules = UpdatePolicy(
            settings.late_policy,
            settings.n_recent_ids,
            settings.n_reasons,
            settings.labels_update_belief,
        )
        self.store = open_store(settings.store_url, create=True)
        self.updater = BeliefUpdater(
            self.store, rules, _KNOWN_RECORDS if settings.workers == 1 else 0
        )
        self._shown: tuple[str, str] | None = None  # model and calibration in the metrics
        self.batcher = MicroBatcher(self._score, max_queue_size=settings.max_queue_size)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests; at the end all that wait are answered before the store is closed."""
        self.metrics.starts.inc()
        await self._say_if_new()
        answering = asyncio.create_task(self.batcher.run())
        looking = [
            asyncio.create_task(work)
            for work in (self._renew(), self._forget(), self._watch_drift())
        ]
        try:
            yield
        finally:
            self.batcher.end()
            await answering
            for task in looking:
                task.cancel()
            await asyncio.gather(*looking, return_exceptions=True)
            await self.store.close()
            _log.info("ended")

    async def _say_if_new(self) -> None:
        with contextlib.suppress(StoreError, TimeoutError):
            if not await asyncio.wait_for(self.store.read_log(limit=1), _READY_SECONDS):
                _log.info(
                    "nothing is logged in the store yet: without their history, customers are scored as strangers (turncoat replay)"
                )

    @property
    def detector(self) -> Detector:
        """The one that serves now."""
        return self.registry.current.detector

    async def _score(self, batch: Sequence[Transaction]) -> list[ScoredResponse | Exception]:
        served = self.registry.current
        with self._store_errors_counted():
            given = await self.updater.score_batch(
                served.detector, [self._current(one, served) for one in batch]
            )
        self.metrics.count(given)
        self.metrics.store_errors.inc(any(isinstance(one, StoreError) for one in given))
        scored = [one for one in given if isinstance(one, ScoredResponse) and one.steps is not None]
        for steps, some in itertools.groupby(scored, attrgetter("steps")):
            places, probabilities = zip(
                *((one.place, one.probability) for one in some), strict=True
            )
            rows = list(places)
            served.drift.add(steps.beliefs[rows], steps.continuous[rows], np.array(probabilities))
        return given

    @staticmethod
    def _current(one: Transaction, served: ServedModel) -> Transaction:
        """A transaction as the model in service reads it, if it was decoded for the one before it."""
        if one.schema is served.decoder.plan.schema or one.schema == served.decoder.plan.schema:
            return one
        try:
            again = served.decoder.decode(one.sent)
        except DataError:
            return one  # which the attempt refuses
        if (
            served.decoder.pseudonyms is not None
        ):  # a pseudonym has no parts from which it could be made again
            again = msgspec.structs.replace(again, customer=one.customer)
        return again

    def submit(
        self, transaction: Transaction, after: asyncio.Future[ScoredResponse] | None = None
    ) -> asyncio.Future[ScoredResponse]:
        """Queue a transaction; the future ends with its response once the write is committed."""
        return self.batcher.submit(transaction, after)

    async def label(self, customer: str, id: str, label: int) -> LabelResponse:
        """Take in the outcome of a transaction."""
        with self._store_errors_counted():
            outcome = await report(self.updater, self.detector, self.known_as(customer), id, label)
        if outcome.changed:
            self.metrics.labels.labels(label=str(label)).inc()
        return outcome

    @contextlib.contextmanager
    def _store_errors_counted(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.metrics.store_errors.inc()
            raise

    def known_as(self, customer: str) -> str:
        """A customer's key in the store."""
        return customer if self.pseudonyms is None else self.pseudonyms.of(customer)

    async def customer(self, customer: str) -> CustomerResponse | None:
        """What is remembered of a customer, if anything is."""
        name = self.known_as(customer)
        with self._store_errors_counted():
            stored = (await self.store.read_records([customer_key(name)])).get(customer_key(name))
        if stored is None:
            return None
        record = unpack_record(customer_key(name), stored.data)
        recent = tuple(
            RecentTransaction(seen.id, seen.probability) for seen in reversed(record.ring)
        )
        is_current = record.model == self.detector.digest_
        held = (
            self.detector.live.unpack(DetectorState(record.state))
            if is_current and record.state
            else None
        )
        if held is None or held.belief is None:
            return CustomerResponse(
                name, None, record.last_time, None, None, record.model, is_current, recent
            )
        belief = tuple(held.belief.tolist())
        return CustomerResponse(
            name,
            held.n_seen,
            record.last_time,
            belief,
            int(np.argmax(belief)),
            record.model,
            True,
            recent,
        )

    async def is_ready(self) -> bool:
        """Whether the store can be read now."""
        try:
            await asyncio.wait_for(self.store.read_records(["ready?"]), _READY_SECONDS)
        except (TurncoatError, TimeoutError):
            return False
        return True

    async def _renew(self) -> None:
        """Look for a new model or calibration, for ever."""
        while self.settings.reload_interval_s > 0:
            await asyncio.sleep(self.settings.reload_interval_s)
            before = self.registry.n_failures
            if await self.registry.reload_if_changed():
                self.show_drift()
            self.metrics.reload_errors.inc(self.registry.n_failures - before)

    async def _forget(self) -> None:
        """Remove log entries past their time, for ever, some at a time."""
        while self.settings.retention_days > 0:
            try:
                removed = await self.store.delete_entries_before(
                    time.time() - self.settings.retention_days * DAY, limit=1000
                )
            except StoreError as problem:
                removed = 0
                _log.warning("old log entries are not removed: %s", problem)
            await asyncio.sleep(0.1 if removed else _RETENTION_SECONDS)

    async def _watch_drift(self) -> None:
        """Keep the drift metrics up to date, for ever."""
        while True:
            self.show_drift()
            await asyncio.sleep(_DRIFT_SECONDS)

    def show_drift(self) -> None:
        """Put what is known of drift, and which model serves, into the metrics."""
        served = self.registry.current
        told = served.drift.report()
        self.metrics.score_drift.set(max(told.score.psi - told.score.psi_by_chance, 0.0))
        self.metrics.drift.set(VERDICTS.index(told.verdict))
        for regime in told.regimes:
            self.metrics.regime_drift.labels(regime=str(regime.regime)).set(regime.largest_shift)
        serving = (served.detector.digest_, str(served.detector.calibration_.number))
        if self._shown is not None and self._shown != serving:
            self.metrics.model.labels(*self._shown).set(0)
        self.metrics.model.labels(*serving).set(1)
        self._shown = serving
