"""How a service runs: everything that can be chosen, in one place that worker processes can be handed."""

from __future__ import annotations

import ipaddress
import math
import os
from pathlib import Path

import msgspec

from turncoat.errors import ConfigError
from turncoat.serving.attempt import LATE_POLICIES

MEGABYTE = 1024 * 1024


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Of `turncoat serve`. Secrets are not among them: those come from the environment only."""

    model: str  # folder of a saved detector
    store: str  # URL
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    keys: str | None = None  # file of API keys
    late: str = "keep"
    labels_follow: bool = True  # whether outcomes are reported to /v1/labels: what is not, counts as genuine once its label is due
    labels_condition: bool = True
    pseudonymise: bool = False
    reasons: int = 4
    ring: int = 16
    retention_days: float = 30.0  # of the log
    most_body: int = MEGABYTE  # bytes of one transaction
    most_lines: int = 100_000  # of one batch
    client_seconds: float = 10.0  # that a client may take to send the head of a request, a body, or the next piece of a batch
    requests_per_second: float = 0.0  # of each caller; 0 is no limit
    most_waiting: int = 4096
    most_connections: int = 1000
    reload_seconds: float = 2.0  # between looks for a new model or calibration; 0 never looks
    run_folder: str = ""  # where worker processes share what is counted
    parent: int = 0  # the process that started them

    def check(self) -> None:
        """Refuse what cannot be."""
        if self.late not in LATE_POLICIES:
            raise ConfigError(
                f"late is {self.late!r}; it must be one of {', '.join(LATE_POLICIES)}"
            )
        least = {
            "workers": 1,
            "ring": 1,
            "reasons": 0,
            "retention_days": 0,
            "most_body": 1024,
            "most_lines": 1,
            "most_waiting": 1,
        }
        least |= {"most_connections": 1, "requests_per_second": 0, "reload_seconds": 0}
        for name, number in least.items():
            if not number <= getattr(self, name) < math.inf:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be a number of at least {number}"
                )
        if not 0 < self.client_seconds < math.inf:
            raise ConfigError(
                f"client_seconds is {self.client_seconds!r}; it must be a number above 0"
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port!r}; it must be between 0 and 65535")
        if self.workers > 1 and self.store.startswith("memory:"):
            raise ConfigError(
                "a store in memory cannot be shared by workers. Use one worker, or sqlite:///... or redis://..."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


_VARIABLE = "TURNCOAT_SERVE_SETTINGS"


def hand_over(settings: Settings) -> None:
    """Leave the settings where the worker processes that this one starts find them."""
    os.environ[_VARIABLE] = msgspec.json.encode(settings).decode()


def handed_over() -> Settings:
    """The settings that the parent process left."""
    return msgspec.json.decode(os.environ[_VARIABLE], type=Settings)


def default_store(model: Path) -> str:
    """A SQLite file beside the model's folder."""
    folder = Path(os.path.abspath(model))  # a link keeps its own name
    return f"sqlite:///{folder.with_name(f'{folder.name}-beliefs.sqlite')}"
