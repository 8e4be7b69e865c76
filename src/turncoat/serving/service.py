"""The live service without HTTP: model, store, batches, metrics and background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from operator import attrgetter

import msgspec
import numpy as np

from turncoat.errors import DataError, StoreError, TurncoatError
from turncoat.scoring import DetectorState
from turncoat.scoring.drift import VERDICTS
from turncoat.scoring.reasons import parse_min_probability
from turncoat.serving import responses
from turncoat.serving.batcher import Item, MicroBatcher
from turncoat.serving.decoding import Label, decode_label
from turncoat.serving.labels import find_customers
from turncoat.serving.metrics import ServiceMetrics
from turncoat.serving.records import customer_key, unpack_record
from turncoat.serving.registry import ModelRegistry, ServedModel
from turncoat.serving.responses import CustomerResponse, LabelResponse, ScoredResponse
from turncoat.serving.settings import ServiceSettings
from turncoat.serving.stores import open_store
from turncoat.serving.updater import BeliefUpdater, Response, UpdatePolicy

_log = logging.getLogger("turncoat")
_RETENTION_INTERVAL_S = 60.0
_DRIFT_INTERVAL_S = 10.0
_CHECK_INTERVAL_S = 1.0  # at most one readiness check of the store in this time
_CHECK_TIMEOUT_S = 1.5  # below the deadline of a request, so that a store that hangs is logged
DAY = 86400.0
_SPARE_DAYS = 30.0  # for which log entries are kept after their labels should be known
_RETENTION_OFF = (
    "retention is off: the newest log entry is %.1f days old and the retention is %g days, so the "
    "whole log would go. Check the server's clock; if it is right, restart the service after new "
    "transactions were scored"
)


class Service:
    """Everything that handles requests in one process."""

    def __init__(self, settings: ServiceSettings) -> None:
        """Load the model and open the store; `running` starts the service."""
        self.settings = settings
        self.registry = ModelRegistry(settings)
        self.metrics = ServiceMetrics()
        self.store = open_store(settings.store_url, create=settings.create_store)
        policy = UpdatePolicy(
            late=settings.late_policy,
            n_recent_ids=settings.n_recent_ids,
            n_reasons=settings.n_reasons,
            min_probability=parse_min_probability(settings.reasons),
            labels_update_belief=settings.labels_update_belief,
        )
        self.updater = BeliefUpdater(self.store, policy)
        self.batcher = MicroBatcher(self._process, max_queue_size=settings.max_queue_size)
        self._shown_model: tuple[str, str] | None = None  # labels of the model metric
        self._ready: tuple[float, bool] = (-math.inf, True)  # time and result of the latest check
        self._checking = asyncio.Lock()
        self._is_retention_off = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Handle requests; at the end, finish those in the queue and close the store."""
        self.metrics.starts.inc()
        with contextlib.suppress(StoreError, TimeoutError):
            await asyncio.wait_for(self._check_log(), _CHECK_TIMEOUT_S)
        batches = asyncio.create_task(self.batcher.run())
        endless = (self._reload_models(), self._apply_retention(), self._update_drift())
        background = [asyncio.create_task(task) for task in endless]
        try:
            yield
        finally:
            self.batcher.close()
            await batches
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await self.store.close()
            _log.info("ended")

    async def decode_label(self, body: bytes) -> Label:
        """Return the label of a JSON object; without a customer, the log says whose it is."""
        customer, id, label = decode_label(body, self.registry.current.decoder.plan.schema)
        if customer is not None:
            return Label(self.stored_name(customer), id, label)
        with self._count_store_errors():
            (found,) = await find_customers(self.store, [id])
        if isinstance(found, Exception):
            raise found
        return Label(found, id, label)

    async def _process(self, batch: Sequence[Item]) -> Sequence[Response | Exception]:
        model = self.registry.current
        requests = [_decode_again(request, model) for request in batch]
        with self._count_store_errors():
            found = await self.updater.process_batch(model.detector, requests)
        self.metrics.store_errors.inc(any(isinstance(each, StoreError) for each in found))
        self.metrics.count([each for each in found if not isinstance(each, LabelResponse)])
        for one in found:
            if isinstance(one, LabelResponse) and one.changed:
                self.metrics.labels.labels(label=str(one.label)).inc()
        scored = [each for each in found if isinstance(each, ScoredResponse) and each.steps]
        for steps, group in itertools.groupby(scored, attrgetter("steps")):
            own = list(group)
            rows, probabilities = [each.row for each in own], [each.probability for each in own]
            cells, ages_s = steps.continuous[rows], np.asarray(steps.ages_s)[rows]
            model.drift.add(steps.beliefs[rows], cells, np.array(probabilities), ages_s)
        return found

    @contextlib.contextmanager
    def _count_store_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.metrics.store_errors.inc()
            self._ready = (-math.inf, self._ready[1])  # check again at the next question
            raise

    def stored_name(self, customer: str) -> str:
        """Return the name under which a customer is stored."""
        pseudonymiser = self.registry.pseudonymiser
        return customer if pseudonymiser is None else pseudonymiser.pseudonymise(customer)

    async def customer(self, customer: str) -> CustomerResponse | None:
        """Return a customer's record, or None."""
        name, detector = self.stored_name(customer), self.registry.current.detector
        key = customer_key(name)
        with self._count_store_errors():
            stored = (await self.store.read_records([key])).get(key)
        if stored is None:
            return None
        record, belief, n_seen = unpack_record(key, stored.data), None, None
        is_current = record.model == detector.digest_
        if is_current and record.state:
            state = detector.live.unpack(DetectorState(record.state))
            belief, n_seen = state.belief, state.n_seen
        recent = [(score.id, score.probability) for score in reversed(record.recent_ids)]
        return CustomerResponse(
            customer=name,
            n_seen=None if belief is None else n_seen,
            last_time=record.last_time,
            belief=None if belief is None else tuple(belief.tolist()),
            regime=None if belief is None else int(np.argmax(belief)),
            model=record.model,
            is_current=is_current,
            recent=tuple(itertools.starmap(responses.RecentTransaction, recent)),
        )

    async def is_ready(self) -> bool:
        """Return whether the store accepts a write now, checked at most once a second."""
        async with self._checking:
            checked_at, is_ready = self._ready
            if time.monotonic() - checked_at < _CHECK_INTERVAL_S:
                return is_ready
            try:
                await asyncio.wait_for(self.store.check_writable(), _CHECK_TIMEOUT_S)
                is_ready = True
            except (TurncoatError, TimeoutError) as problem:
                if is_ready:
                    _log.error("not ready: the store accepts no writes: %s", problem)
                is_ready = False
            self._ready = time.monotonic(), is_ready
            return is_ready

    async def _reload_models(self) -> None:
        while self.settings.reload_interval_s > 0:
            await asyncio.sleep(self.settings.reload_interval_s)
            before = self.registry.n_failures
            if await self.registry.reload_if_changed():
                self.show_drift()
            self.metrics.reload_errors.inc(self.registry.n_failures - before)

    async def _check_log(self) -> None:
        """Log what the store guarantees, and whether its log is empty."""
        await self.store.log_durability()
        if await self._check_retention() is None:
            advice = "If the store is new, load history with `turncoat replay`"
            _log.info("the log is empty. %s", advice)

    @property
    def retention_days(self) -> float:
        """How long log entries are kept: as set, or for 30 days longer than labels take."""
        if self.settings.retention_days is not None:
            return self.settings.retention_days
        plan = self.registry.current.detector.features_.plan
        return _SPARE_DAYS + (plan.label_delay_s + plan.label_maturity_s) / DAY

    async def _check_retention(self) -> float | None:
        """Turn retention off if it would delete the whole log; return the newest entry's time."""
        newest, days = await self.store.newest_entry_time(), self.retention_days
        if newest is not None and 0 < days * DAY < (age_s := time.time() - newest):
            self._is_retention_off = True
            _log.error(_RETENTION_OFF, age_s / DAY, days)
        return newest

    async def _apply_retention(self) -> None:
        """Delete old log entries, a few at a time."""
        while self.retention_days > 0 and not self._is_retention_off:
            n_deleted = 0
            try:
                await self._check_retention()
                if not self._is_retention_off:
                    limit = time.time() - self.retention_days * DAY
                    n_deleted = await self.store.delete_entries_before(limit, limit=1000)
            except StoreError as problem:
                _log.warning("old log entries are not deleted: %s", problem)
            await asyncio.sleep(0.1 if n_deleted else _RETENTION_INTERVAL_S)

    async def _update_drift(self) -> None:
        while True:
            self.show_drift()
            await asyncio.sleep(_DRIFT_INTERVAL_S)

    def show_drift(self) -> None:
        """Set the metrics of drift and of the model in service."""
        model = self.registry.current
        report = model.drift.report()
        self.metrics.score_drift.set(max(report.score.psi - report.score.psi_by_chance, 0.0))
        self.metrics.drift.set(VERDICTS.index(report.verdict))
        for regime in report.regimes:
            self.metrics.regime_drift.labels(regime=str(regime.regime)).set(regime.largest_shift)
        shown = (model.detector.digest_, str(model.detector.calibration_.number))
        if self._shown_model is not None and self._shown_model != shown:
            self.metrics.model.labels(*self._shown_model).set(0)
        self.metrics.model.labels(*shown).set(1)
        self._shown_model = shown


def _decode_again(request: Item, model: ServedModel) -> Item:
    """Decode a transaction again if the model was replaced while it waited."""
    schema = model.decoder.plan.schema
    if isinstance(request, Label) or request.schema is schema or request.schema == schema:
        return request
    try:
        again = model.decoder.decode(request.body)
    except DataError:
        return request  # the updater refuses it
    if model.decoder.pseudonymiser is not None:  # the body holds the pseudonym, not the name
        again = msgspec.structs.replace(again, customer=request.customer)
    return again
