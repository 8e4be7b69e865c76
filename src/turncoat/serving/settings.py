"""Settings of the live service."""

from __future__ import annotations

import math
import os
from pathlib import Path

import msgspec

from turncoat.errors import ConfigError
from turncoat.scoring.reasons import parse_min_probability
from turncoat.serving.updater import LATE_POLICIES

LOG_FORMATS = ("text", "json")
_MIN_VALUES = {
    1024: ("max_body_bytes",),
    1: (
        *("workers", "n_recent_ids", "n_reasons"),
        *("max_batch_lines", "max_queue_size", "max_connections"),
    ),
    0: ("max_future_s", "rate_limit_per_s", "reload_interval_s"),
}
_AT_LEAST = "a number of at least {}"
_ABOVE_ZERO = ("request_timeout_s", "client_timeout_s", "idle_timeout_s")


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `turncoat serve`. Secrets come from the environment and are not kept here."""

    model_path: str  # folder of a saved detector
    store_url: str
    create_store: bool = False  # create a missing SQLite store instead of refusing to start
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keys_file: str | None = None
    late_policy: str = "keep"
    expect_labels: bool = True  # frauds are reported: unreported transactions count as genuine
    labels_update_belief: bool = True
    pseudonymise: bool = False
    reasons: str = "all"  # transactions that get them: all, none, or above:P for a probability P
    n_reasons: int = 4  # the strongest; all others together are one more
    n_recent_ids: int = 16
    retention_days: float | None = None  # of log entries; 0: for ever, None: as labels need
    max_future_s: float = 86400.0  # how far ahead of the server's clock a transaction may be
    request_timeout_s: float = 2.0  # from a complete request (or batch line) to its response
    client_timeout_s: float = 10.0  # for a client to send a body, or more of a batch
    idle_timeout_s: float = 10.0  # until the headers of the next request have come
    max_body_bytes: int = 1024 * 1024  # of one transaction
    max_batch_lines: int = 100_000
    max_queue_size: int = 4096  # transactions that wait to be scored
    max_connections: int = 1000
    rate_limit_per_s: float = 0.0  # requests of each caller; 0 is no limit
    reload_interval_s: float = 2.0  # between checks for a new model or calibration; 0 never checks
    log_format: str = "text"
    metrics_dir: str = ""  # where worker processes share their metrics

    def check(self) -> None:
        """Validate the settings. Raises a ConfigError that names the first wrong one."""
        for name, choices in (("late_policy", LATE_POLICIES), ("log_format", LOG_FORMATS)):
            self._check(name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        for least, names in _MIN_VALUES.items():
            for name in names:
                is_valid = least <= getattr(self, name) < math.inf
                self._check(name, is_valid, _AT_LEAST.format(least))
        for name in _ABOVE_ZERO:
            self._check(name, 0 < getattr(self, name) < math.inf, "a number above 0")
        days = self.retention_days
        self._check("retention_days", days is None or 0 <= days < math.inf, _AT_LEAST.format(0))
        parse_min_probability(self.reasons)
        self._check("port", 0 <= self.port <= 65535, "between 0 and 65535")
        if self.workers > 1 and self.store_url.startswith("memory:"):
            remedy = "Use one worker, or sqlite:///... or redis://..."
            raise ConfigError(f"a store in memory cannot be shared by workers. {remedy}")

    def _check(self, name: str, is_valid: bool, rule: str) -> None:
        if not is_valid:
            raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be {rule}")


def default_store_url(model: Path) -> str:
    """Return the URL of a SQLite file beside the model's folder."""
    folder = Path(os.path.abspath(model))  # a symbolic link keeps its own name
    return f"sqlite:///{folder.with_name(f'{folder.name}-beliefs.sqlite')}"
