"""What the service counts, for Prometheus; with several workers, summed over all of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from turncoat.serving.responses import ScoredResponse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_AGES = (
    60.0,
    600.0,
    3600.0,
    6 * 3600.0,
    86400.0,
    3 * 86400.0,
    7 * 86400.0,
    30 * 86400.0,
    90 * 86400.0,
)
_SCORES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)


class _Histogram(Histogram):
    """One that takes in several values at a time, which costs little more than one."""

    def observe_all(self, values: Sequence[float]) -> None:
        """As `observe` of each."""
        if not values:
            return
        self._sum.inc(math.fsum(values))
        places = [bisect_left(self._upper_bounds, value) for value in values]
        for place in set(places):
            self._buckets[place].inc(places.count(place))


class ServiceMetrics:
    """Counters of one process."""

    def __init__(self) -> None:
        """In a registry of their own."""
        self._registry = registry = CollectorRegistry()
        self.scores = Counter(
            "turncoat_scores", "Transactions scored, each once.", registry=registry
        )
        self.duplicates = Counter(
            "turncoat_duplicates", "Transactions that had been answered before.", registry=registry
        )
        self.late = Counter(
            "turncoat_late_arrivals",
            "Transactions older than their customer's belief.",
            registry=registry,
        )
        self.refused = Counter(
            "turncoat_refused",
            "Requests and lines of batches that were refused.",
            ["kind"],
            registry=registry,
        )
        self.labels = Counter("turncoat_labels", "Outcomes reported.", ["label"], registry=registry)
        self.store_errors = Counter(
            "turncoat_store_errors",
            "Times the store could not be read or written.",
            registry=registry,
        )
        self.reload_errors = Counter(
            "turncoat_reload_errors", "New models that were not taken up.", registry=registry
        )
        self.starts = Counter(
            "turncoat_starts", "Processes that began to serve.", registry=registry
        )
        self.duration = _Histogram(
            "turncoat_score_duration_seconds",
            "From request to answer.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch = _Histogram(
            "turncoat_batch_size",
            "Transactions written together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )
        self.ages = _Histogram(
            "turncoat_belief_age_seconds",
            "From a customer's last transaction to this one.",
            buckets=_AGES,
            registry=registry,
        )
        self.probability = _Histogram(
            "turncoat_score_probability",
            "Probabilities of fraud that were answered.",
            buckets=_SCORES,
            registry=registry,
        )
        self.score_drift = Gauge(
            "turncoat_score_drift_psi",
            "Population stability index of the scores, less what chance gives.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self.regime_drift = Gauge(
            "turncoat_regime_drift_shift", "Largest standardised shift of a feature's mean.", ["regime"], registry=registry,
            multiprocess_mode="mostrecent",
        )  # fmt: skip
        self.drift = Gauge(
            "turncoat_drift", "The gravest verdict: 0 too few, 1 stable, 2 watch, 3 drifted.", registry=registry,
            multiprocess_mode="mostrecent",
        )  # fmt: skip
        self.model = Gauge(
            "turncoat_model_info",
            "The model that serves.",
            ["model", "calibration"],
            registry=registry,
            multiprocess_mode="mostrecent",
        )

    def count(self, given: Sequence[ScoredResponse | Exception]) -> None:
        """Count a batch that was answered."""
        self.batch.observe(len(given))
        answered = [one for one in given if isinstance(one, ScoredResponse)]
        scored = [one for one in answered if not one.duplicate]
        self.duplicates.inc(len(answered) - len(scored))
        self.scores.inc(len(scored))
        self.probability.observe_all([one.probability for one in scored])
        self.late.inc(sum(one.late for one in scored))
        self.ages.observe_all([one.age for one in scored if one.age is not None and not one.late])

    def text(self, shared_folder: str | None) -> bytes:
        """For Prometheus; of all the processes that share a folder."""
        if shared_folder is None:
            return generate_latest(self._registry)
        everything = CollectorRegistry()
        multiprocess.MultiProcessCollector(everything, path=shared_folder)  # type: ignore[no-untyped-call]
        return generate_latest(everything)
