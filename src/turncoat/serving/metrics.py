"""Prometheus metrics of the service; with several workers, summed over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, multiprocess

from turncoat.serving.responses import ScoredResponse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DAY = 86400.0
_TIMES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_AGES_S = (60.0, 600.0, 3600.0, _DAY / 4, _DAY, 3 * _DAY, 7 * _DAY, 30 * _DAY, 90 * _DAY)
_RISKS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class ServiceMetrics:
    """Counters, histograms and gauges of one process. docs/operations/run.md explains them."""

    def __init__(self) -> None:
        """Create the metrics in a registry of their own."""
        self._registry = own = CollectorRegistry()
        counter = partial(prometheus.Counter, namespace="turncoat", registry=own)
        histogram = partial(prometheus.Histogram, namespace="turncoat", registry=own)
        newest = partial(prometheus.Gauge, multiprocess_mode="mostrecent")
        gauge = partial(newest, namespace="turncoat", registry=own)
        self.scores = counter("scores", "Transactions scored.")
        self.duplicates = counter("duplicate_transactions", "Ids scored before.")
        self.late = counter("late_transactions", "Transactions older than the belief.")
        self.errors = counter("request_errors", "Error responses and lines.", ["kind"])
        self.labels = counter("labels", "Labels that were new.", ["label"])
        self.store_errors = counter("store_errors", "Failed reads and writes.")
        self.reload_errors = counter("reload_errors", "Models that failed to load.")
        self.starts = counter("worker_starts", "Worker processes that started.")
        self.duration = histogram("score_duration_seconds", "Request to score.", buckets=_TIMES_S)
        self.batch = histogram("batch_size", "Scored together.", buckets=_SIZES)
        self.ages = histogram("belief_age_seconds", "Since the last transaction.", buckets=_AGES_S)
        self.probability = histogram("score_probability", "Probabilities of fraud.", buckets=_RISKS)
        self.score_drift = gauge("score_drift_psi", "PSI of scores, less chance.")
        self.regime_drift = gauge("regime_drift_shift", "Largest shift.", ["regime"])
        self.drift = gauge("drift_level", "0 too few, 1 stable, 2 watch, 3 drifted.")
        self.model = gauge("model_info", "1 for the model in service.", ["model", "calibration"])

    def count_error(self, kind: str) -> None:
        """Count an error response or a batch line in error."""
        self.errors.labels(kind).inc()

    def count(self, responses: Sequence[ScoredResponse | Exception]) -> None:
        """Count the transactions of a micro-batch."""
        self.batch.observe(len(responses))
        answered = [one for one in responses if isinstance(one, ScoredResponse)]
        scored = [one for one in answered if not one.duplicate]
        self.scores.inc(len(scored))
        self.duplicates.inc(len(answered) - len(scored))
        for one in scored:
            self.probability.observe(one.probability)
            if one.late:
                self.late.inc()
            elif one.belief_age_s is not None:
                self.ages.observe(one.belief_age_s)

    def render(self, metrics_dir: str) -> bytes:
        """Return the text for Prometheus: of all workers that share a folder, or of this one."""
        registry = self._registry
        if metrics_dir:
            registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(registry, path=metrics_dir)  # type: ignore[no-untyped-call]
        return prometheus.generate_latest(registry)
